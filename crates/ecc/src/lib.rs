//! Damage to cached data: checksums that notice it, and parity that undoes it.
//!
//! Memory and disks change bits without a word, and now and then put a good block in the wrong
//! place. A [`checksum`] over content and place notices; a [`Code`] computes parity from which up
//! to six wrong bytes in each group of 64 are put right, wherever in the group or its parity they
//! are, and how many groups there may be. What was repaired counts only when the checksum agrees
//! ([`Code::repair`]): damage beyond six bytes may look like other, lighter damage.
//!
//! **The code** is a Reed-Solomon code over the field of 256 elements with the modulus 0x11d, cut
//! short to 76 bytes: 64 of data, 12 of parity. The generator's roots are the powers 122 to 133 of
//! 2. The first byte of a group is the coefficient of x^75, the last byte of its parity that of
//! x^0.
//!
//! **Layout.** A group is 64 consecutive bytes of data. Parity is kept apart from the data, sector
//! by sector: 96 bytes for each, so that sectors come and go by themselves. Within those the first
//! parity bytes of the sector's eight groups come first, then their second ones, and so on: byte
//! `b` of group `g` is at `8 * b + g`. Nothing depends on the processor: parity that one kernel
//! wrote, any other reads.
//!
//! **Invariants.** Parity belongs to a valid sector and was written after its data; there is none
//! for others. A group that can not be corrected is left as it was found. Nothing is allocated and
//! nothing is kept: a [`Code`] is one pointer to the kernel that suits the processor.
//!
//! **Price.** 18.75 % of the bytes that are protected, and time for each write: about that of a
//! few copies with vectors, of fifty without (the program `ecc` in `bench` prints it). Intact data
//! is checked for the price of a write; a read need not do even that as long as its checksum
//! agrees. Correcting takes microseconds for each damaged group.

mod checksum;
mod decode;
mod field;
mod kernels;
mod seal;
#[cfg(test)]
mod tests;

use forebay_types::{LINE_BYTES, SECTOR_BYTES, SECTORS_PER_LINE};

pub use checksum::{checksum, checksum_sectors, seed};
use kernels::{Kernel, SCALAR};
pub use seal::{Repair, seal};

/// Data that is protected together: up to [`CORRECTABLE_BYTES`] of it may be wrong.
pub const GROUP_BYTES: usize = 64;
/// Parity of a group.
pub const GROUP_PARITY_BYTES: usize = 12;
/// How many wrong bytes in a group and its parity are put right.
pub const CORRECTABLE_BYTES: usize = GROUP_PARITY_BYTES / 2;
/// Groups of a sector.
pub const GROUPS_PER_SECTOR: usize = SECTOR_BYTES as usize / GROUP_BYTES;
/// Groups of a line.
pub const GROUPS_PER_LINE: usize = LINE_BYTES as usize / GROUP_BYTES;
/// Parity of a sector.
pub const SECTOR_PARITY_BYTES: usize = GROUPS_PER_SECTOR * GROUP_PARITY_BYTES;
/// Parity of a line, that of its sectors one behind the other.
pub const LINE_PARITY_BYTES: usize = SECTORS_PER_LINE as usize * SECTOR_PARITY_BYTES;

/// The data of a line.
pub type Line = [u8; LINE_BYTES as usize];
/// The data of a sector.
pub type Sector = [u8; SECTOR_BYTES as usize];
/// The parity of a line.
pub type LineParity = [u8; LINE_PARITY_BYTES];
/// The parity of a sector.
pub type SectorParity = [u8; SECTOR_PARITY_BYTES];

/// What came of checking data and parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing was wrong.
    Clean,
    /// This many bytes of data and parity were wrong, and are right now.
    Corrected {
        /// At most six for each group.
        bytes: u32,
    },
    /// Data was lost.
    Uncorrectable {
        /// The groups that are wrong and were left so, one bit each, the first group the lowest. In
        /// a repair that failed at the checksum this may be none: data and parity agree with each
        /// other, but are not what was expected here.
        groups: u64,
    },
}

/// The code, by the means of this processor.
#[derive(Clone, Copy)]
pub struct Code {
    kernel: &'static Kernel,
}

impl Code {
    /// The fastest implementation that this processor can do, and that gives the right parity for
    /// a piece of test data: a processor or an emulator that gets its instructions wrong costs
    /// speed and no data. Takes some microseconds, so it is asked for once.
    pub fn detect() -> Self {
        let fastest = Self::available().find(|code| code.agrees());
        fastest.unwrap_or(Self { kernel: &SCALAR })
    }

    /// All implementations that this processor can do, best first. The last is the portable one.
    pub fn available() -> impl Iterator<Item = Self> {
        kernels::available().map(|kernel| Self { kernel })
    }

    /// What the implementation is called.
    pub fn name(self) -> &'static str {
        self.kernel.name()
    }

    /// Writes the parity of `line`.
    pub fn encode(self, line: &Line, parity: &mut LineParity) {
        self.kernel.encode_line(line, parity);
    }

    /// Writes the parity of `sector`.
    pub fn encode_sector(self, sector: &Sector, parity: &mut SectorParity) {
        self.kernel.encode_sector(sector, parity);
    }

    /// The groups of `line` in which something is wrong, data or parity, one bit each. Any six
    /// wrong bytes of a group are noticed, and any twelve.
    pub fn damaged(self, line: &Line, parity: &LineParity) -> u64 {
        let mut fresh = [0; LINE_PARITY_BYTES];
        self.encode(line, &mut fresh);
        differing(parity, &fresh)
    }

    /// As [`Code::damaged`], of a sector.
    pub fn damaged_sector(self, sector: &Sector, parity: &SectorParity) -> u64 {
        let mut fresh = [0; SECTOR_PARITY_BYTES];
        self.encode_sector(sector, &mut fresh);
        differing(parity, &fresh)
    }

    /// Puts right what is wrong in `line` and `parity`, in each group where that can be done.
    /// Groups with more than six wrong bytes may be taken for others with less, and made worse:
    /// [`Code::repair`] does not let that pass.
    pub fn correct(self, line: &mut Line, parity: &mut LineParity) -> Outcome {
        let mut fresh = [0; LINE_PARITY_BYTES];
        self.encode(line, &mut fresh);
        correct(line, parity, &fresh)
    }

    /// As [`Code::correct`], of a sector.
    pub fn correct_sector(self, sector: &mut Sector, parity: &mut SectorParity) -> Outcome {
        let mut fresh = [0; SECTOR_PARITY_BYTES];
        self.encode_sector(sector, &mut fresh);
        correct(sector, parity, &fresh)
    }

    /// Makes sure that `line` is what it was when its [`checksum`] with `seed` was `expected`, and
    /// `parity` its parity. Data whose checksum agrees is right whatever its parity says; data
    /// whose checksum does not agree is corrected, and if it still does not agree, data and parity
    /// are left as they were found.
    pub fn repair(
        self,
        line: &mut Line,
        parity: &mut LineParity,
        seed: u64,
        expected: u32,
    ) -> Outcome {
        let agrees = |line: &Line| checksum(seed, line) == expected;
        let found = (*line, *parity);
        let intact = agrees(line);
        let outcome = if intact { Outcome::Clean } else { self.correct(line, parity) };
        if intact || (outcome != Outcome::Clean && agrees(line)) {
            self.encode(line, parity);
            return repaired([(&found.0, line), (&found.1, parity)]);
        }
        (*line, *parity) = found;
        Outcome::Uncorrectable { groups: self.damaged(line, parity) }
    }

    /// As [`Code::repair`], of a sector.
    pub fn repair_sector(
        self,
        sector: &mut Sector,
        parity: &mut SectorParity,
        seed: u64,
        expected: u32,
    ) -> Outcome {
        let agrees = |sector: &Sector| checksum(seed, sector) == expected;
        let found = (*sector, *parity);
        let intact = agrees(sector);
        let outcome = if intact { Outcome::Clean } else { self.correct_sector(sector, parity) };
        if intact || (outcome != Outcome::Clean && agrees(sector)) {
            self.encode_sector(sector, parity);
            return repaired([(&found.0, sector), (&found.1, parity)]);
        }
        (*sector, *parity) = found;
        Outcome::Uncorrectable { groups: self.damaged_sector(sector, parity) }
    }

    /// Whether the implementation does what the portable one does.
    fn agrees(self) -> bool {
        let mut line = [0; LINE_BYTES as usize];
        let mut state = 1u32;
        for byte in &mut line {
            state = state.wrapping_mul(0x915f_77f5).wrapping_add(1);
            *byte = (state >> 24) as u8;
        }
        let (sector, _) = line.as_chunks();
        let mut ours = ([0; LINE_PARITY_BYTES], [0; SECTOR_PARITY_BYTES]);
        let mut theirs = ([0; LINE_PARITY_BYTES], [0; SECTOR_PARITY_BYTES]);
        self.encode(&line, &mut ours.0);
        self.encode_sector(&sector[1], &mut ours.1);
        SCALAR.encode_line(&line, &mut theirs.0);
        SCALAR.encode_sector(&sector[1], &mut theirs.1);
        ours == theirs
    }
}

/// The groups whose bytes of `parity` and `fresh` are not the same.
fn differing(parity: &[u8], fresh: &[u8]) -> u64 {
    if parity == fresh {
        return 0;
    }
    let (parity, _) = parity.as_chunks::<SECTOR_PARITY_BYTES>();
    let (fresh, _) = fresh.as_chunks::<SECTOR_PARITY_BYTES>();
    let mut groups = 0;
    for (sector, (parity, fresh)) in parity.iter().zip(fresh).enumerate() {
        for (at, (a, b)) in parity.iter().zip(fresh).enumerate() {
            let group = sector * GROUPS_PER_SECTOR + at % GROUPS_PER_SECTOR;
            groups |= u64::from(a != b) << group;
        }
    }
    groups
}

/// Corrects `data` and `parity` of some sectors. `fresh` is the parity of the data as it is.
fn correct(data: &mut [u8], parity: &mut [u8], fresh: &[u8]) -> Outcome {
    let damaged = differing(parity, fresh);
    let (mut bytes, mut lost) = (0, 0);
    let mut rest = damaged;
    while rest != 0 {
        let group = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let mut remainder = [0; GROUP_PARITY_BYTES];
        for (byte, difference) in remainder.iter_mut().enumerate() {
            let at = parity_at(group, byte);
            *difference = parity[at] ^ fresh[at];
        }
        let Some(errors) = decode::decode(&remainder) else {
            lost |= 1 << group;
            continue;
        };
        for &(byte, change) in errors.bytes() {
            bytes += 1;
            match byte.checked_sub(GROUP_BYTES) {
                None => data[group * GROUP_BYTES + byte] ^= change,
                Some(byte) => parity[parity_at(group, byte)] ^= change,
            }
        }
    }
    match (damaged, lost) {
        (0, _) => Outcome::Clean,
        (_, 0) => Outcome::Corrected { bytes },
        _ => Outcome::Uncorrectable { groups: lost },
    }
}

/// Where byte `byte` of the parity of `group` is.
const fn parity_at(group: usize, byte: usize) -> usize {
    let sector = group / GROUPS_PER_SECTOR * SECTOR_PARITY_BYTES;
    sector + byte * GROUPS_PER_SECTOR + group % GROUPS_PER_SECTOR
}

/// The outcome of a repair that went well, from what there was before and after it.
fn repaired(pieces: [(&[u8], &[u8]); 2]) -> Outcome {
    let changed = |(before, after): (&[u8], &[u8])| {
        if before == after { 0 } else { before.iter().zip(after).filter(|(a, b)| a != b).count() }
    };
    match pieces.into_iter().map(changed).sum::<usize>() as u32 {
        0 => Outcome::Clean,
        bytes => Outcome::Corrected { bytes },
    }
}
