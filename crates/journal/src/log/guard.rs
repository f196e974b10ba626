//! Which samples of a volume's disk count: the part of the log that knows when a block may change.
//!
//! A sample counts as long as nothing was let at its block. Before the first write or erase that
//! touches it goes anywhere, superblocks in which the sample does not count are durable. So after a
//! crash a block that counts and differs was changed by somebody else, whatever was on its way.
//!
//! Blocks whose samples don't count are sampled anew when a checkpoint of the volume has ended,
//! beside everything else. One that was touched since that checkpoint began, or since the one
//! before it began, still does not count: what touched it may be on its way to the disk.
//!
//! The price: up to 64 writes of a superblock between two checkpoints of a volume, each waited for
//! by the write that causes it.

use super::{Log, Writing};
use crate::identity::{Place, all_places};
use forebay_format::journal::{BLOCK_BYTES, SAMPLES_MAX, Samples, Superblock};
use forebay_types::ByteRange;

/// What is known of the samples of one volume. Sets of samples are bits by their number.
#[derive(Debug)]
struct Watch {
    number: u16,
    /// Ascending.
    places: Vec<Place>,
    /// Touched since the newest checkpoint of the volume began.
    touched: u64,
    /// Touched between the beginnings of the two newest checkpoints.
    before: u64,
    /// Those that count in a superblock on the device.
    durable: u64,
    /// Those that count in a copy that was begun since both were the same.
    writing: u64,
    /// Counts the beginnings of checkpoints.
    epoch: u64,
}

impl Watch {
    /// The samples that lie in a range, wholly or in part.
    fn in_range(&self, range: ByteRange) -> u64 {
        let first = self.places.partition_point(|place| place.offset + BLOCK_BYTES <= range.offset);
        let places = self.places[first..].iter().take_while(|place| place.offset < range.end());
        places.fold(0, |bits, place| bits | 1 << place.index)
    }
}

/// The watches of all volumes, and who waits for a superblock.
#[derive(Debug)]
pub(super) struct Guards<W> {
    watches: Vec<Watch>,
    /// They wait until all copies of the superblock are durable as it is.
    waiting: Vec<W>,
    /// Volumes of which the checkpoint under way of theirs says nothing.
    missing: Vec<u16>,
}

impl<W> Guards<W> {
    /// For a superblock that is on its device, or of which nothing is.
    pub(super) fn new(superblock: &Superblock) -> Self {
        let (watches, waiting, missing) = Default::default();
        let mut guards = Self { watches, waiting, missing };
        for volume in &superblock.volumes {
            guards.add(superblock, volume.number);
            let durable = volume.guard.samples.valid;
            guards.watches.last_mut().expect("added just now").durable = durable;
        }
        guards
    }

    /// Watches a volume, anew if its size is another one.
    pub(super) fn add(&mut self, superblock: &Superblock, number: u16) {
        let size_bytes = superblock.volume(number).map_or(0, |volume| volume.size_bytes);
        let places = all_places(superblock.journal, number, size_bytes);
        let old = self.watch(number).map(|watch| (watch.durable, watch.writing));
        let (durable, writing) = old.unwrap_or_default();
        self.watches.retain(|watch| watch.number != number);
        let (touched, before, epoch) = (0, 0, 0);
        self.watches.push(Watch { number, places, touched, before, durable, writing, epoch });
    }

    fn watch(&mut self, number: u16) -> Option<&mut Watch> {
        self.watches.iter_mut().find(|watch| watch.number == number)
    }

    /// Something is recorded of a range.
    pub(super) fn mark(&mut self, number: u16, range: ByteRange) {
        if let Some(watch) = self.watch(number) {
            watch.touched |= watch.in_range(range);
        }
    }

    /// Whether the checkpoint that ends says something of the volume.
    pub(super) fn counts_for(&mut self, number: u16) -> bool {
        let before = self.missing.len();
        self.missing.retain(|other| *other != number);
        self.missing.len() == before
    }

    /// A checkpoint of these volumes begins.
    pub(super) fn begin(&mut self, numbers: &[u16]) {
        self.missing.retain(|missing| !numbers.contains(missing));
        for watch in self.watches.iter_mut().filter(|watch| numbers.contains(&watch.number)) {
            watch.before = std::mem::take(&mut watch.touched);
            watch.epoch += 1;
        }
    }

    /// A copy of the superblock is on its way.
    pub(super) fn written(&mut self, superblock: &Superblock) {
        for watch in &mut self.watches {
            let volume = superblock.volume(watch.number);
            watch.writing |= volume.map_or(0, |volume| volume.guard.samples.valid);
        }
    }

    /// All copies say the same, durably. Returns who waited for it.
    pub(super) fn durable(&mut self, superblock: &Superblock) -> impl Iterator<Item = W> + '_ {
        for watch in &mut self.watches {
            let volume = superblock.volume(watch.number);
            watch.durable = volume.map_or(0, |volume| volume.guard.samples.valid);
            watch.writing = 0;
        }
        self.waiting.drain(..)
    }

    /// The log has failed. Returns who waited.
    pub(super) fn fail(&mut self) -> impl Iterator<Item = W> + '_ {
        self.waiting.drain(..)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Something is about to be let at a range of a volume's disk, now or later. True when that may
    /// be; otherwise the waiter is told [`Told::Room`](super::Told::Room) when it may ask again.
    #[must_use]
    pub fn touch(&mut self, number: u16, range: ByteRange, waiter: W) -> bool {
        let Some(watch) = self.guards.watch(number).filter(|_| self.failed.is_none()) else {
            return true;
        };
        let bits = watch.in_range(range);
        if bits == 0 {
            return true;
        }
        watch.touched |= bits;
        let on_device = (watch.durable | watch.writing) & bits;
        let mut volumes = self.superblock.volumes.iter_mut();
        let Some(volume) = volumes.find(|volume| volume.number == number) else { return true };
        let valid = &mut volume.guard.samples.valid;
        let in_memory = *valid & bits;
        if on_device | in_memory == 0 {
            return true;
        }
        *valid &= !bits;
        self.guards.waiting.push(waiter);
        // Otherwise the word that it does not count is on its way already.
        if in_memory != 0 {
            self.change_superblock();
        }
        false
    }

    /// What the log holds of a volume is to be written again: its disk may have lost it. Nothing of
    /// it is let go before [`Log::restored`], and not by a checkpoint that is under way.
    pub fn keep(&mut self, number: u16) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.number == number) {
            volume.is_restoring = true;
            if volume.checkpoint.is_some() {
                self.guards.missing.push(number);
            }
        }
    }

    /// The number of the first record that is not durable.
    pub fn first_pending_record(&self) -> u64 {
        let writing = match &self.writing {
            Writing::Batch { records, .. } => records.len() as u64,
            _ => 0,
        };
        self.next_record - writing - self.unwritten_records(&[])
    }

    /// The number that the next record will have.
    pub const fn next_record(&self) -> u64 {
        self.next_record
    }

    /// Where the disk of a volume is sampled.
    pub fn places(&self, number: u16) -> Vec<Place> {
        let watch = self.guards.watches.iter().find(|watch| watch.number == number);
        watch.map(|watch| watch.places.clone()).unwrap_or_default()
    }

    /// Where the disk of a volume is worth being sampled, now that a checkpoint of it has ended,
    /// and what to hand to [`Log::sampled`] with the result.
    pub fn stale_places(&self, number: u16) -> (u64, Vec<Place>) {
        let watch = self.guards.watches.iter().find(|watch| watch.number == number);
        let (Some(watch), Some(volume)) = (watch, self.superblock.volume(number)) else {
            return (0, Vec::new());
        };
        let not_worth = volume.guard.samples.valid | watch.touched | watch.before;
        let places = watch.places.iter().filter(|place| not_worth >> place.index & 1 == 0);
        (watch.epoch, places.copied().collect())
    }

    /// The volume's disk was sampled at places that were stale after a checkpoint.
    pub fn sampled(&mut self, number: u16, epoch: u64, samples: Samples) {
        let Some(watch) = self.guards.watch(number) else { return };
        // Two checkpoints later it is not known any more what was touched after they were read.
        if watch.epoch > epoch + 1 {
            return;
        }
        let new = samples.valid & !(watch.touched | watch.before);
        let mut volumes = self.superblock.volumes.iter_mut();
        let Some(volume) = volumes.find(|volume| volume.number == number) else { return };
        let kept = &mut volume.guard.samples;
        let new = new & !kept.valid;
        for at in (0..SAMPLES_MAX).filter(|at| new >> at & 1 == 1) {
            kept.sums[at] = samples.sums[at];
        }
        kept.valid |= new;
        if new != 0 {
            self.change_superblock();
        }
    }

    /// The volume is attached to this disk: what names it, how large it is and what its hardware is
    /// called are written down. With `samples`, taken while nothing was recorded or under way,
    /// these count from then on; otherwise those that are there, if the size is the same.
    pub fn attach_disk(
        &mut self,
        number: u16,
        (size_bytes, identity, hardware): (u64, [u8; 32], u64),
        samples: Option<Samples>,
    ) {
        let mut volumes = self.superblock.volumes.iter_mut();
        let Some(volume) = volumes.find(|volume| volume.number == number) else { return };
        let before = volume.clone();
        let is_as_large = volume.size_bytes == size_bytes;
        (volume.size_bytes, volume.identity, volume.guard.hardware) =
            (size_bytes, identity, hardware);
        let kept = if is_as_large { volume.guard.samples } else { Samples::default() };
        volume.guard.samples = samples.unwrap_or(kept);
        if *volume != before {
            self.change_superblock();
        }
        self.guards.add(&self.superblock, number);
    }

    /// Samples that a record covers don't count any more: its content is brought to the disk
    /// without asking.
    pub(super) fn void_covered(&mut self, number: u16, range: ByteRange) {
        let Some(watch) = self.guards.watch(number) else { return };
        let bits = watch.in_range(range);
        let mut volumes = self.superblock.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.number == number) {
            volume.guard.samples.valid &= !bits;
        }
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
