//! One stripe of a parity array, one block high: cached blocks, pending requests, and the next
//! step. Sets of drives are bit sets, bit *n* for drive *n*.

use super::layout::Row;

/// A stripe in the cache.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// Blocks in memory, or computable from these.
    known: u64,
    /// Blocks being read.
    reading: u64,
    /// Blocks being written.
    writing: u64,
    /// Blocks that waiting writes replace completely.
    overwritten: u64,
    /// Blocks that waiting writes change in part.
    changed: u64,
    /// Waiting reads, each with its block.
    readers: Vec<(u64, u64)>,
    /// Waiting writes.
    writers: Vec<u64>,
    /// Writes in flight.
    written: Vec<u64>,
    /// Whether a waiting write has FUA.
    fua: bool,
}

/// The next step of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to do now.
    Wait,
    /// Read these blocks.
    Read(u64),
    /// Write these blocks.
    Write { blocks: u64, fua: bool },
}

impl Stripe {
    /// Queues read `number` of the block on `drive`.
    pub(super) fn add_read(&mut self, number: u64, drive: u32) {
        self.readers.push((number, 1 << drive));
    }

    /// Queues write `number` to the block on `drive`, to all of it if `whole`.
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

    /// Whether any I/O waits or is in flight.
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

    /// The next step, which the caller must execute. One write of a stripe is in flight at a time;
    /// later ones wait, and are then written together.
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
        assert!(self.writing != 0, "too many drives are missing");
        self.know(changed | row.parity, row);
        Step::Write { blocks: self.writing, fua: std::mem::take(&mut self.fua) }
    }

    /// The blocks to read before parity can be computed: either the old content of the changed
    /// blocks and the parity (read-modify-write), or the unchanged blocks (reconstruct-write),
    /// whichever are fewer, with reconstruct-write on a tie. A missing block rules out its method;
    /// if both are ruled out, all available blocks are read.
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

    /// Adds known blocks. Once all available blocks are known, so are the missing ones.
    const fn know(&mut self, blocks: u64, row: Row) {
        self.known |= blocks;
        let all = row.data | row.parity;
        if all & !row.missing & !self.known == 0 {
            self.known = all;
        }
    }

    /// The block on `drive` has been written. After the last one, returns the completed writes.
    pub(super) fn on_written(&mut self, drive: u32) -> Vec<u64> {
        self.writing &= !(1 << drive);
        if self.writing == 0 { std::mem::take(&mut self.written) } else { Vec::new() }
    }
}

/// The blocks to read for `wanted`: a missing one needs all available ones.
const fn from_drives(wanted: u64, at_hand: u64, row: Row) -> u64 {
    if wanted & row.missing == 0 {
        wanted
    } else {
        (row.data | row.parity) & !row.missing & !at_hand
    }
}
