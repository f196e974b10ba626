//! One stripe of a parity array, one block high: cached blocks, pending requests, and the next
//! step. Sets of drives are bit sets, bit *n* for drive *n*.

use super::layout::ChunkRow;

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
pub(super) enum StripeStep {
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

    /// Queues write `number` to the block on `drive`, to all of it if `is_whole`.
    pub(super) fn add_write(&mut self, number: u64, drive: u32, is_whole: bool, fua: bool) {
        let block = 1 << drive;
        if is_whole {
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
    pub(super) fn step(&mut self, row: ChunkRow) -> StripeStep {
        if self.writing != 0 {
            return StripeStep::Wait;
        }
        let known_soon = self.known | self.reading;
        let wanted = self.readers.iter().fold(0, |wanted, (_, block)| wanted | block);
        let mut reads = blocks_to_read(wanted & !known_soon, known_soon, row);
        if !self.writers.is_empty() {
            reads |= self.reads_for_writing(known_soon, row);
        }
        if reads != 0 {
            self.reading |= reads;
            return StripeStep::Read(reads);
        }
        if self.reading != 0 || self.writers.is_empty() {
            return StripeStep::Wait;
        }
        let changed = std::mem::take(&mut self.overwritten) | std::mem::take(&mut self.changed);
        self.written = std::mem::take(&mut self.writers);
        self.writing = (changed | row.parity) & !row.missing;
        assert!(self.writing != 0, "too many drives are missing");
        self.add_known(changed | row.parity, row);
        StripeStep::Write { blocks: self.writing, fua: std::mem::take(&mut self.fua) }
    }

    /// The blocks to read before parity can be computed: either the old content of the changed
    /// blocks and the parity (read-modify-write), or the unchanged blocks (reconstruct-write),
    /// whichever are fewer, with reconstruct-write on a tie. A missing block rules out its method;
    /// if both are ruled out, all available blocks are read.
    fn reads_for_writing(&self, known_soon: u64, row: ChunkRow) -> u64 {
        let modify = (self.overwritten | self.changed | row.parity) & !known_soon;
        let reconstruct = row.data & !self.overwritten & !known_soon;
        let is_possible = |reads: u64| reads & row.missing == 0;
        if is_possible(modify)
            && (!is_possible(reconstruct) || modify.count_ones() < reconstruct.count_ones())
        {
            modify
        } else {
            blocks_to_read(reconstruct, known_soon, row)
        }
    }

    /// Handles the completed read of the block on `drive`.
    pub(super) fn on_read(&mut self, drive: u32, row: ChunkRow) {
        self.reading &= !(1 << drive);
        self.add_known(1 << drive, row);
    }

    /// Adds known blocks. Once all available blocks are known, so are the missing ones.
    const fn add_known(&mut self, blocks: u64, row: ChunkRow) {
        self.known |= blocks;
        let all = row.data | row.parity;
        if all & !row.missing & !self.known == 0 {
            self.known = all;
        }
    }

    /// Handles the completed write of the block on `drive`. After the last one, returns the
    /// completed writes.
    pub(super) fn on_written(&mut self, drive: u32) -> Vec<u64> {
        self.writing &= !(1 << drive);
        if self.writing == 0 { std::mem::take(&mut self.written) } else { Vec::new() }
    }
}

/// The blocks to read for `wanted`: if one of them is missing, all present blocks. Blocks in
/// `known_soon` are known or being read.
const fn blocks_to_read(wanted: u64, known_soon: u64, row: ChunkRow) -> u64 {
    if wanted & row.missing == 0 {
        wanted
    } else {
        (row.data | row.parity) & !row.missing & !known_soon
    }
}
