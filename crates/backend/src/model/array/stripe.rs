//! One stripe of an array with parity, a block high: what is known of it, what is wanted, and what
//! that takes. Sets of drives are bits, bit *n* for drive *n*.

use super::layout::Row;

/// A stripe in the cache.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// Blocks that are in memory, or can be computed from those that are.
    known: u64,
    /// Blocks on their way from the drives.
    reading: u64,
    /// Blocks on their way to the drives.
    writing: u64,
    /// Blocks that writes which wait replace as a whole.
    overwritten: u64,
    /// Blocks that writes which wait change in part.
    changed: u64,
    /// Reads that wait, each with its block.
    readers: Vec<(u64, u64)>,
    /// Writes that wait.
    writers: Vec<u64>,
    /// Writes that are on their way to the drives.
    written: Vec<u64>,
    /// Whether one of the writes that wait must reach stable storage.
    fua: bool,
}

/// What a stripe is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, or nothing yet.
    Wait,
    /// Read these blocks.
    Read(u64),
    /// Write these blocks.
    Write { blocks: u64, fua: bool },
}

impl Stripe {
    /// I/O `number` wants the block on `drive`.
    pub(super) fn add_read(&mut self, number: u64, drive: u32) {
        self.readers.push((number, 1 << drive));
    }

    /// I/O `number` writes the block on `drive`, all of it if `whole`.
    pub(super) fn add_write(&mut self, number: u64, drive: u32, whole: bool, fua: bool) {
        let block = 1 << drive;
        if whole {
            self.overwritten |= block;
            self.changed &= !block;
        } else if self.overwritten & block == 0 {
            self.changed |= block;
        }
        self.writers.push(number);
        self.fua |= fua;
    }

    /// Whether anything waits or is under way.
    pub(super) const fn is_active(&self) -> bool {
        self.reading | self.writing != 0 || !self.readers.is_empty() || !self.writers.is_empty()
    }

    /// Takes the reads whose blocks are known.
    pub(super) fn take_readers(&mut self) -> impl Iterator<Item = u64> + use<> {
        let known = self.known;
        let served: Vec<_> =
            self.readers.extract_if(.., |(_, block)| *block & !known == 0).collect();
        served.into_iter().map(|(number, _)| number)
    }

    /// What comes next, which the caller must then do. One writing of a stripe is in flight at a
    /// time; what comes meanwhile waits, and goes together with what else waits.
    pub(super) fn step(&mut self, row: Row) -> Step {
        if self.writing != 0 {
            return Step::Wait;
        }
        let at_hand = self.known | self.reading;
        let wanted = self.readers.iter().fold(0, |wanted, (_, block)| wanted | block);
        let mut reads = from_drives(wanted & !at_hand, at_hand, row);
        if !self.writers.is_empty() {
            reads |= self.reads_for_writing(at_hand, row);
        }
        if reads != 0 {
            self.reading |= reads;
            return Step::Read(reads);
        }
        if self.reading != 0 || self.writers.is_empty() {
            return Step::Wait;
        }
        let changed = std::mem::take(&mut self.overwritten) | std::mem::take(&mut self.changed);
        self.written = std::mem::take(&mut self.writers);
        self.writing = (changed | row.parity) & !row.missing;
        assert!(self.writing != 0, "no more drives are missing than may be");
        self.know(changed | row.parity, row);
        Step::Write { blocks: self.writing, fua: std::mem::take(&mut self.fua) }
    }

    /// The blocks that have to be read before parity can be computed. Either the old ones of what
    /// changes and of the parity, which are taken out of it (read-modify-write), or those that do
    /// not change (reconstruct-write), whichever are fewer; the latter if it is the same. Where
    /// one of them is missing, a way is closed, and with both closed all there is is read.
    fn reads_for_writing(&self, at_hand: u64, row: Row) -> u64 {
        let modify = (self.overwritten | self.changed | row.parity) & !at_hand;
        let reconstruct = row.data & !self.overwritten & !at_hand;
        let is_open = |reads: u64| reads & row.missing == 0;
        if is_open(modify)
            && (!is_open(reconstruct) || modify.count_ones() < reconstruct.count_ones())
        {
            modify
        } else {
            from_drives(reconstruct, at_hand, row)
        }
    }

    /// The block on `drive` has been read.
    pub(super) fn on_read(&mut self, drive: u32, row: Row) {
        self.reading &= !(1 << drive);
        self.know(1 << drive, row);
    }

    /// These blocks are known now, and with the last of those that are there, the missing ones.
    const fn know(&mut self, blocks: u64, row: Row) {
        self.known |= blocks;
        let all = row.data | row.parity;
        if all & !row.missing & !self.known == 0 {
            self.known = all;
        }
    }

    /// The block on `drive` has been written. With the last one, gives the writes that are done.
    pub(super) fn on_written(&mut self, drive: u32) -> Vec<u64> {
        self.writing &= !(1 << drive);
        if self.writing == 0 { std::mem::take(&mut self.written) } else { Vec::new() }
    }
}

/// What to read for `wanted` blocks: a missing one takes all that are there.
const fn from_drives(wanted: u64, at_hand: u64, row: Row) -> u64 {
    if wanted & row.missing == 0 {
        wanted
    } else {
        (row.data | row.parity) & !row.missing & !at_hand
    }
}
