//! Detection and correction of corrupt cached data, by checksums and parity.
//!
//! Memory and disks flip bits, and disks occasionally write or return the wrong block, without
//! reporting an error. A [`checksum`] over content and place detects both. A [`Code`] computes
//! parity that corrects up to six wrong bytes in each group of 64, anywhere in the group or its
//! parity, in any number of groups. [`Code::repair`] accepts a correction only if the checksum
//! matches, [`Code::repair_sealed`] also if one bit of the seal is wrong: more than six wrong bytes
//! may look like a different error of six bytes or fewer.
//!
//! **The code** is a Reed-Solomon code over GF(256) with the modulus 0x11d, shortened to 76 bytes:
//! 64 of data, 12 of parity. The roots of the generator are the powers 122 to 133 of 2. The first
//! byte of a group is the coefficient of x^75, the last byte of its parity that of x^0.
//!
//! **Layout.** A group is 64 consecutive bytes of data. Parity is stored apart from the data, 96
//! bytes per sector, so that sectors are independent. The first parity bytes of the sector's eight
//! groups come first, then the second ones, and so on: byte `b` of group `g` is at `8 * b + g`. The
//! layout is the same for all kernels and processors.
//!
//! **Invariants.** Only the parity of valid sectors is used. A group that cannot be corrected is
//! left unchanged. The code allocates nothing and has no state: a [`Code`] is one pointer to the
//! kernel for the processor.
//!
//! **Price.** Parity takes 18.75 % of the protected bytes. Encoding a line takes as long as copying
//! it a few times with vector instructions, or about fifty times without (measured by the program
//! `ecc` in `bench`). Checking data costs the same as encoding, and is not needed if the checksum
//! matches. Correction takes microseconds per damaged group.

#![deny(missing_docs)]

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

/// Bytes of data in a group, the unit of correction.
pub const GROUP_BYTES: usize = 64;
/// Bytes of parity per group.
pub const GROUP_PARITY_BYTES: usize = 12;
/// Maximum number of correctable bytes in a group and its parity.
pub const CORRECTABLE_BYTES: usize = GROUP_PARITY_BYTES / 2;
/// Groups per sector.
pub const GROUPS_PER_SECTOR: usize = SECTOR_BYTES as usize / GROUP_BYTES;
/// Groups per line.
pub const GROUPS_PER_LINE: usize = LINE_BYTES as usize / GROUP_BYTES;
/// Bytes of parity per sector.
pub const SECTOR_PARITY_BYTES: usize = GROUPS_PER_SECTOR * GROUP_PARITY_BYTES;
/// Bytes of parity per line: the concatenated parity of its sectors.
pub const LINE_PARITY_BYTES: usize = SECTORS_PER_LINE as usize * SECTOR_PARITY_BYTES;

/// The data of a line.
pub type Line = [u8; LINE_BYTES as usize];
/// The data of a sector.
pub type Sector = [u8; SECTOR_BYTES as usize];
/// The parity of a line.
pub type LineParity = [u8; LINE_PARITY_BYTES];
/// The parity of a sector.
pub type SectorParity = [u8; SECTOR_PARITY_BYTES];

/// The result of checking data and parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CheckOutcome {
    /// No errors.
    Clean,
    /// Errors in data or parity were corrected.
    Corrected {
        /// Number of corrected bytes of data and parity: at most six per group, or up to twelve if
        /// a repair replaces damaged parity.
        bytes: u32,
    },
    /// Some of the errors could not be corrected.
    Uncorrectable {
        /// Bit mask of the damaged groups, which are unchanged; bit 0 is the first group. After a
        /// repair this may be zero: data and parity match each other, but not the checksum.
        groups: u64,
    },
}

/// The code, with an implementation for this processor.
#[derive(Clone, Copy)]
pub struct Code {
    kernel: &'static Kernel,
}

impl Code {
    /// The fastest implementation that this processor supports and that passes a self-test. So with
    /// faulty instructions in a processor or emulator, a slower implementation is used. Takes some
    /// microseconds; call it once.
    pub fn detect() -> Self {
        let fastest = Self::available().find(|code| code.passes_self_test());
        fastest.unwrap_or(Self { kernel: &SCALAR })
    }

    /// All implementations that this processor supports, fastest first. The last is the portable
    /// one.
    pub fn available() -> impl Iterator<Item = Self> {
        kernels::available().map(|kernel| Self { kernel })
    }

    /// The name of the implementation.
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

    /// Bit mask of the groups of `line` with errors in data or parity. Detects any error of up to
    /// twelve bytes in a group.
    pub fn damaged(self, line: &Line, parity: &LineParity) -> u64 {
        let mut fresh = [0; LINE_PARITY_BYTES];
        self.encode(line, &mut fresh);
        differing(parity, &fresh)
    }

    /// As [`Code::damaged`], for a sector.
    pub fn damaged_sector(self, sector: &Sector, parity: &SectorParity) -> u64 {
        let mut fresh = [0; SECTOR_PARITY_BYTES];
        self.encode_sector(sector, &mut fresh);
        differing(parity, &fresh)
    }

    /// Corrects errors in `line` and `parity`, in each group that is correctable. A group with more
    /// than six wrong bytes may be miscorrected; [`Code::repair`] detects that.
    pub fn correct(self, line: &mut Line, parity: &mut LineParity) -> CheckOutcome {
        let mut fresh = [0; LINE_PARITY_BYTES];
        self.encode(line, &mut fresh);
        correct(line, parity, &fresh)
    }

    /// As [`Code::correct`], for a sector.
    pub fn correct_sector(self, sector: &mut Sector, parity: &mut SectorParity) -> CheckOutcome {
        let mut fresh = [0; SECTOR_PARITY_BYTES];
        self.encode_sector(sector, &mut fresh);
        correct(sector, parity, &fresh)
    }

    /// Repairs `line` so that its [`checksum`] with `seed` is `expected`, and repairs its `parity`.
    /// If the checksum matches, the data is right, and only the parity is repaired. Otherwise the
    /// data is corrected by its parity; if the checksum still does not match, data and parity are
    /// left unchanged.
    pub fn repair(
        self,
        line: &mut Line,
        parity: &mut LineParity,
        seed: u64,
        expected: u32,
    ) -> CheckOutcome {
        let matches = |line: &Line| checksum(seed, line) == expected;
        let found = (*line, *parity);
        let is_intact = matches(line);
        let outcome = if is_intact { CheckOutcome::Clean } else { self.correct(line, parity) };
        if is_intact || (outcome != CheckOutcome::Clean && matches(line)) {
            self.encode(line, parity);
            return repaired([(&found.0, line), (&found.1, parity)]);
        }
        (*line, *parity) = found;
        CheckOutcome::Uncorrectable { groups: self.damaged(line, parity) }
    }

    /// As [`Code::repair`], for a sector.
    pub fn repair_sector(
        self,
        sector: &mut Sector,
        parity: &mut SectorParity,
        seed: u64,
        expected: u32,
    ) -> CheckOutcome {
        let matches = |sector: &Sector| checksum(seed, sector) == expected;
        let found = (*sector, *parity);
        let is_intact = matches(sector);
        let outcome =
            if is_intact { CheckOutcome::Clean } else { self.correct_sector(sector, parity) };
        if is_intact || (outcome != CheckOutcome::Clean && matches(sector)) {
            self.encode_sector(sector, parity);
            return repaired([(&found.0, sector), (&found.1, parity)]);
        }
        (*sector, *parity) = found;
        CheckOutcome::Uncorrectable { groups: self.damaged_sector(sector, parity) }
    }

    /// Whether the implementation computes the same parity as the portable one.
    fn passes_self_test(self) -> bool {
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

/// Bit mask of the groups in which `parity` and `fresh` differ.
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

/// Corrects `data` and `parity` of some sectors. `fresh` is the parity of the present data.
fn correct(data: &mut [u8], parity: &mut [u8], fresh: &[u8]) -> CheckOutcome {
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
        (0, _) => CheckOutcome::Clean,
        (_, 0) => CheckOutcome::Corrected { bytes },
        _ => CheckOutcome::Uncorrectable { groups: lost },
    }
}

/// The index of byte `byte` of the parity of `group`.
const fn parity_at(group: usize, byte: usize) -> usize {
    let sector = group / GROUPS_PER_SECTOR * SECTOR_PARITY_BYTES;
    sector + byte * GROUPS_PER_SECTOR + group % GROUPS_PER_SECTOR
}

/// The outcome of a successful repair, from the content before and after it.
fn repaired(pieces: [(&[u8], &[u8]); 2]) -> CheckOutcome {
    let changed = |(before, after): (&[u8], &[u8])| {
        if before == after { 0 } else { before.iter().zip(after).filter(|(a, b)| a != b).count() }
    };
    match pieces.into_iter().map(changed).sum::<usize>() as u32 {
        0 => CheckOutcome::Clean,
        bytes => CheckOutcome::Corrected { bytes },
    }
}
