//! A simulated disk: sectors behind a volatile write cache.
//!
//! A write goes to the volatile cache. A flush moves all cached sectors to stable storage; the disk
//! also moves some by itself. On a power failure, each cached unit is lost or not, so a write of
//! several units can be torn.

use crate::harness::dice::{Dice, Ppm};
use crate::harness::oracle::stamp;
use forebay_types::{ByteRange, SECTOR_BYTES, SECTORS_PER_LINE};

pub(crate) struct Disk {
    volatile: Vec<u64>,
    stable: Vec<u64>,
    /// Cached sectors; some may have reached stable storage.
    unflushed: Vec<u32>,
    write_behind: Ppm,
    /// Sectors that reach stable storage together.
    unit: u64,
    /// Sectors with read errors, and with write errors.
    unreadable: Vec<u64>,
    unwritable: Vec<u64>,
}

pub(crate) const fn sectors_of(range: ByteRange) -> std::ops::Range<u64> {
    range.offset / SECTOR_BYTES..range.end() / SECTOR_BYTES
}

impl Disk {
    /// Units are as large as a block, but at most 4 KiB.
    pub(crate) fn new(volume: u16, sectors: u64, block_sectors: u64, write_behind: Ppm) -> Self {
        let unit = block_sectors.min(SECTORS_PER_LINE.into());
        let volatile: Vec<u64> = (0..sectors).map(|at| stamp(volume, at, 0)).collect();
        let stable = volatile.clone();
        let unflushed = Vec::new();
        let (unreadable, unwritable) = (Vec::new(), Vec::new());
        Self { volatile, stable, unflushed, write_behind, unit, unreadable, unwritable }
    }

    /// The sectors of a unit, which survives a power failure wholly or not at all.
    pub(crate) const fn unit(&self) -> u64 {
        self.unit
    }

    pub(crate) fn content(&self) -> &[u64] {
        &self.volatile
    }

    /// The content of stable storage.
    pub(crate) fn stable(&self) -> &[u64] {
        &self.stable
    }

    pub(crate) fn damage(&mut self, sector: u64, reads: bool, writes: bool) {
        if reads {
            self.unreadable.push(sector);
        }
        if writes {
            self.unwritable.push(sector);
        }
    }

    pub(crate) fn heal(&mut self) {
        self.unreadable.clear();
        self.unwritable.clear();
    }

    /// Whether the I/O touches a bad sector.
    pub(crate) fn is_bad(&self, range: ByteRange, write: bool) -> bool {
        let bad = if write { &self.unwritable } else { &self.unreadable };
        let sectors = sectors_of(range);
        bad.iter().any(|sector| sectors.contains(sector))
    }

    /// Writes a sector to the volatile cache.
    pub(crate) fn write(&mut self, sector: u64, content: u64) {
        let at = sector as usize;
        if self.volatile[at] == self.stable[at] {
            self.unflushed.push(sector as u32);
        }
        self.volatile[at] = content;
    }

    /// Moves sectors that were just written to stable storage, with the probability of a
    /// write-behind.
    pub(crate) fn write_behind(&mut self, sectors: std::ops::Range<u64>, dice: &mut Dice) {
        if dice.chance(self.write_behind) {
            self.stabilize(sectors);
        }
    }

    pub(crate) fn stabilize(&mut self, sectors: std::ops::Range<u64>) {
        let range = sectors.start as usize..sectors.end as usize;
        self.stable[range.clone()].copy_from_slice(&self.volatile[range]);
    }

    pub(crate) fn flush(&mut self) {
        for sector in self.unflushed.drain(..) {
            self.stable[sector as usize] = self.volatile[sector as usize];
        }
    }

    /// Loses power: each cached unit survives with this probability.
    pub(crate) fn lose_power(&mut self, survive: Ppm, dice: &mut Dice) {
        self.unflushed.sort_unstable();
        let mut last = None;
        for sector in self.unflushed.drain(..) {
            let unit = u64::from(sector) / self.unit;
            let survives = match last {
                Some((known, survives)) if known == unit => survives,
                _ => dice.chance(survive),
            };
            last = Some((unit, survives));
            let at = sector as usize;
            if survives {
                self.stable[at] = self.volatile[at];
            }
            self.volatile[at] = self.stable[at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flushed_sectors_survive_a_power_failure() {
        let mut dice = Dice::new(1);
        let mut disk = Disk::new(0, 8, 1, 0);
        disk.write(1, 11);
        disk.flush();
        disk.write(1, 12);
        disk.write(2, 21);
        disk.write(3, 31);
        disk.stabilize(3..4);
        assert_eq!(&disk.content()[1..4], [12, 21, 31]);
        disk.lose_power(0, &mut dice);
        assert_eq!(&disk.content()[1..4], [11, stamp(0, 2, 0), 31]);
    }

    #[test]
    fn a_unit_survives_wholly_or_not_at_all() {
        let mut dice = Dice::new(1);
        let mut outcomes = [0; 2];
        for _ in 0..100 {
            let mut disk = Disk::new(0, 16, 128, 0);
            (0..8).rev().for_each(|sector| disk.write(sector, 7));
            disk.lose_power(500_000, &mut dice);
            let there = disk.content()[..8].iter().filter(|&&content| content == 7).count();
            outcomes[there / 8] += 1;
            assert!(there == 0 || there == 8);
        }
        assert!(outcomes.iter().all(|&count| count > 0));
    }

    #[test]
    fn bad_sectors_fail_ios_until_healed() {
        let mut disk = Disk::new(0, 8, 1, 0);
        disk.damage(3, true, false);
        assert!(disk.is_bad(ByteRange::new(1024, 1024), false));
        assert!(!disk.is_bad(ByteRange::new(2048, 512), false));
        assert!(!disk.is_bad(ByteRange::new(0, 4096), true));
        disk.heal();
        assert!(!disk.is_bad(ByteRange::new(0, 4096), false));
    }
}
