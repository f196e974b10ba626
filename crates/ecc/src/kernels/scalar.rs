//! The portable kernel: parity by table lookup, and the reference for the other kernels.
//!
//! Divides by the generator with one lookup per byte: the twelve bytes of the remainder are one
//! integer, and the table gives the feedback for the byte that is shifted out at the top. The eight
//! groups of a sector are divided in parallel, so that eight lookups overlap. The price: a table of
//! 4 KiB.

use crate::field::{GENERATOR, multiply_slowly};
use crate::{GROUP_BYTES, GROUP_PARITY_BYTES, GROUPS_PER_SECTOR};
use crate::{Line, LineParity, Sector, SectorParity};

/// Number of bits in the remainder. Bits shifted out of it stay in the upper bits of the 128, which
/// are ignored.
const REMAINDER_BITS: usize = 8 * GROUP_PARITY_BYTES;

/// For each byte shifted out, the remainder of its product with x^12. The highest byte is the
/// coefficient of x^11.
static FEEDBACK: [u128; 256] = feedback();

pub fn encode_line(line: &Line, parity: &mut LineParity) {
    let (sectors, _) = line.as_chunks();
    let (parities, _) = parity.as_chunks_mut();
    for (sector, parity) in sectors.iter().zip(parities) {
        encode_sector(sector, parity);
    }
}

pub fn encode_sector(sector: &Sector, parity: &mut SectorParity) {
    let mut remainders = [0u128; GROUPS_PER_SECTOR];
    for byte in 0..GROUP_BYTES {
        for (group, remainder) in remainders.iter_mut().enumerate() {
            let data = sector[group * GROUP_BYTES + byte];
            let leaving = (*remainder >> (REMAINDER_BITS - 8)) as u8 ^ data;
            *remainder = (*remainder << 8) ^ FEEDBACK[usize::from(leaving)];
        }
    }
    for (byte, row) in parity.as_chunks_mut::<GROUPS_PER_SECTOR>().0.iter_mut().enumerate() {
        for (out, remainder) in row.iter_mut().zip(remainders) {
            *out = (remainder >> (REMAINDER_BITS - 8 - 8 * byte)) as u8;
        }
    }
}

const fn feedback() -> [u128; 256] {
    let mut table = [0; 256];
    let mut leaving = 0;
    while leaving < 256 {
        let mut power = 0;
        while power < GROUP_PARITY_BYTES {
            let product = multiply_slowly(leaving as u8, GENERATOR[power]) as u128;
            table[leaving] |= product << (8 * power);
            power += 1;
        }
        leaving += 1;
    }
    table
}
