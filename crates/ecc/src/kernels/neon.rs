//! Vectors of AArch64: NEON, with table lookups.

use std::arch::aarch64::*;

use super::Kernel;
use super::vector::{HALVES, Multiplier, Places, Vector, encode};
use crate::{GROUPS_PER_LINE, GROUPS_PER_SECTOR, LINE_PARITY_BYTES};
use crate::{Line, LineParity, Sector, SectorParity};

/// The NEON kernel.
pub static NEON: Kernel = Kernel { name: "neon", line, sector };

#[target_feature(enable = "neon")]
unsafe fn line(line: &Line, parity: &mut LineParity) {
    const LANES: usize = <uint8x16_t as Vector>::LANES;
    let mut group = 0;
    while group < GROUPS_PER_LINE {
        // SAFETY: the features of this function are those of the vector, and the groups and their
        // share of the parity are within the line's.
        unsafe {
            encode::<uint8x16_t, Tables, LANES>(
                line.as_ptr().add(group * (line.len() / GROUPS_PER_LINE)),
                parity.as_mut_ptr().add(group * (LINE_PARITY_BYTES / GROUPS_PER_LINE)),
            );
        }
        group += LANES;
    }
}

#[target_feature(enable = "neon")]
unsafe fn sector(sector: &Sector, parity: &mut SectorParity) {
    // SAFETY: as above; the groups are those of one sector.
    unsafe {
        encode::<uint8x16_t, Tables, GROUPS_PER_SECTOR>(sector.as_ptr(), parity.as_mut_ptr());
    }
}

/// Products as the sum of two lookups, one for each nibble of a byte.
struct Tables;

// "SAFETY: see above" refers to this: the caller guarantees that the processor has the
// instructions, and register operations need nothing else. The memory of loads and stores is valid
// by its type, or because the caller guarantees it.

impl Vector for uint8x16_t {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { vdupq_n_u8(0) }
    }

    #[inline(always)]
    unsafe fn gather(places: impl Places) -> Self {
        // SAFETY: see above.
        unsafe { vld1q_u8(places.of_block(0)) }
    }

    #[inline(always)]
    unsafe fn interleave_low(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { vzip1q_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn interleave_high(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { vzip2q_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { veorq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn store(self, bytes: &mut [u8; 64]) {
        // SAFETY: see above.
        unsafe { vst1q_u8(bytes.as_mut_ptr(), self) }
    }
}

impl Multiplier<uint8x16_t> for Tables {
    type Factor = (uint8x16_t, uint8x16_t);
    type Constant = (uint8x16_t, uint8x16_t);
    // The sum of both lookups, because each product is used twice.
    type Product = uint8x16_t;

    #[inline(always)]
    unsafe fn constant(index: usize) -> Self::Constant {
        // SAFETY: see above; a table has 16 bytes.
        unsafe { (vld1q_u8(HALVES[index][0].as_ptr()), vld1q_u8(HALVES[index][1].as_ptr())) }
    }

    #[inline(always)]
    unsafe fn factor(vector: uint8x16_t) -> Self::Factor {
        // SAFETY: see above.
        unsafe { (vandq_u8(vector, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(vector)) }
    }

    #[inline(always)]
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product {
        // SAFETY: see above.
        unsafe { veorq_u8(vqtbl1q_u8(constant.0, factor.0), vqtbl1q_u8(constant.1, factor.1)) }
    }

    #[inline(always)]
    unsafe fn add(vector: uint8x16_t, product: Self::Product) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { veorq_u8(vector, product) }
    }
}
