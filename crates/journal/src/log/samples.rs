//! Tracks which samples of a volume's disk are valid.
//!
//! A sample is valid until the first write or erase of its block. That change waits until no
//! durable copy of the superblock has the sample. So if a block differs from its valid sample after
//! a crash, another program has changed the block, whatever was in flight.
//!
//! After a checkpoint of a volume, blocks without valid samples are sampled again in the
//! background. A block that was touched since that checkpoint or the previous one began is skipped,
//! because the change may still be in flight to the disk.
//!
//! The price: up to 64 superblock writes between two checkpoints of a volume, each delaying the
//! write that causes it.

use super::Log;
use crate::identity::{SamplePlace, all_places};
use forebay_format::journal::{BLOCK_BYTES, SAMPLES_MAX, Samples, Superblock, VolumeEntry};
use forebay_types::ByteRange;

/// The samples of one volume. A set of samples is a bit mask by index.
#[derive(Debug)]
struct VolumeSamples {
    number: u16,
    /// Ascending.
    places: Vec<SamplePlace>,
    /// Touched since the newest checkpoint of the volume began.
    touched: u64,
    /// Touched between the starts of the two newest checkpoints.
    touched_before: u64,
    /// Valid in a superblock on the device.
    durable: u64,
    /// Valid in some superblock that was or is being written since all copies on the device were
    /// last equal.
    writing: u64,
    /// The version of the samples: see `store_samples`.
    epoch: u64,
}

impl VolumeSamples {
    /// Marks all blocks, because any may have a change in flight. None is sampled before two
    /// checkpoints have begun.
    const fn touch_all(&mut self) {
        (self.touched, self.touched_before) = (u64::MAX, u64::MAX);
    }

    /// The samples whose blocks overlap a range.
    fn in_range(&self, range: ByteRange) -> u64 {
        let first = self.places.partition_point(|place| place.offset + BLOCK_BYTES <= range.offset);
        let places = self.places[first..].iter().take_while(|place| place.offset < range.end());
        places.fold(0, |bits, place| bits | 1 << place.index)
    }
}

/// The samples of all volumes, and the waiters for a superblock.
#[derive(Debug)]
pub(super) struct SampleTracker<W> {
    volumes: Vec<VolumeSamples>,
    /// Waiters for the superblock that invalidates their samples.
    waiters: Vec<W>,
    /// Volumes whose checkpoint in progress is invalid, see [`Log::retain_records`].
    invalid_checkpoints: Vec<u16>,
}

impl<W> SampleTracker<W> {
    /// Tracks the samples of a superblock that is on the device or belongs to a new log.
    pub(super) fn new(superblock: &Superblock) -> Self {
        let (volumes, waiters, invalid_checkpoints) = Default::default();
        let mut tracker = Self { volumes, waiters, invalid_checkpoints };
        for volume in &superblock.volumes {
            tracker.add(superblock, volume.number);
            let durable = volume.disk.samples.valid;
            tracker.volumes.last_mut().expect("the volume was added").durable = durable;
        }
        tracker
    }

    /// Adds a volume, or recomputes its places after its size changed.
    pub(super) fn add(&mut self, superblock: &Superblock, number: u16) {
        let size_bytes = superblock.volume(number).map_or(0, |volume| volume.size_bytes);
        let places = all_places(superblock.journal, number, size_bytes);
        assert!(places.len() <= SAMPLES_MAX, "{} places", places.len());
        // Samples requested before may be of another disk: `store_samples` rejects their epoch.
        let old = self.volume(number);
        let old = old.map(|volume| (volume.durable, volume.writing, volume.epoch + 2));
        let (durable, writing, epoch) = old.unwrap_or_default();
        self.remove(number);
        let (touched, touched_before) = (0, 0);
        self.volumes.push(VolumeSamples {
            number,
            places,
            touched,
            touched_before,
            durable,
            writing,
            epoch,
        });
    }

    pub(super) fn remove(&mut self, number: u16) {
        self.volumes.retain(|volume| volume.number != number);
    }

    fn volume(&self, number: u16) -> Option<&VolumeSamples> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    fn volume_mut(&mut self, number: u16) -> Option<&mut VolumeSamples> {
        self.volumes.iter_mut().find(|volume| volume.number == number)
    }

    /// The samples of a volume whose blocks overlap a range.
    pub(super) fn in_range(&self, number: u16, range: ByteRange) -> u64 {
        self.volume(number).map_or(0, |volume| volume.in_range(range))
    }

    /// Marks the samples in a range as touched, because the log records a change of the range.
    pub(super) fn mark_touched(&mut self, number: u16, range: ByteRange) {
        if let Some(volume) = self.volume_mut(number) {
            volume.touched |= volume.in_range(range);
        }
    }

    /// Returns whether the checkpoint of this volume, which is ending, is valid. Clears the mark of
    /// an invalid one.
    pub(super) fn take_checkpoint_validity(&mut self, number: u16) -> bool {
        let before = self.invalid_checkpoints.len();
        self.invalid_checkpoints.retain(|other| *other != number);
        self.invalid_checkpoints.len() == before
    }

    pub(super) fn begin_checkpoint(&mut self, numbers: &[u16]) {
        self.invalid_checkpoints.retain(|other| !numbers.contains(other));
        for volume in self.volumes.iter_mut().filter(|volume| numbers.contains(&volume.number)) {
            volume.touched_before = std::mem::take(&mut volume.touched);
            volume.epoch += 1;
        }
    }

    /// Begins the write of a copy of the superblock.
    pub(super) fn begin_superblock_write(&mut self, superblock: &Superblock) {
        for samples in &mut self.volumes {
            let volume = superblock.volume(samples.number);
            samples.writing |= volume.map_or(0, |volume| volume.disk.samples.valid);
        }
    }

    /// Completes the write of the superblock, all copies of which are durable. Returns the waiters.
    pub(super) fn complete_superblock(
        &mut self,
        superblock: &Superblock,
    ) -> impl Iterator<Item = W> + '_ {
        for samples in &mut self.volumes {
            let volume = superblock.volume(samples.number);
            samples.durable = volume.map_or(0, |volume| volume.disk.samples.valid);
            samples.writing = 0;
        }
        self.waiters.drain(..)
    }

    /// Takes the waiters, because the log has failed.
    pub(super) fn take_waiters(&mut self) -> impl Iterator<Item = W> + '_ {
        self.waiters.drain(..)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Notes that the disk of a volume, which is in use, has grown to `size_bytes`. The places of
    /// its samples depend on the size, so all samples are invalidated first: a change of a block
    /// that is sampled no more would be taken for that of another program. Returns false until no
    /// superblock on the device has samples of the volume; call it again when the superblock is
    /// durable.
    #[must_use]
    pub fn grow_disk(&mut self, number: u16, size_bytes: u64) -> bool {
        let Some(samples) = self.samples.volume_mut(number) else { return true };
        let Some(volume) = self.extent.superblock().volume(number) else { return true };
        if volume.size_bytes >= size_bytes {
            return true;
        }
        samples.touch_all();
        let on_device = samples.durable | samples.writing;
        let has_samples = volume.disk.samples.valid != 0;
        if on_device != 0 && !has_samples {
            return false;
        }
        let entry = self.extent.entry_mut(number).expect("the volume was found");
        if has_samples {
            entry.disk.samples.valid = 0;
            return false;
        }
        entry.size_bytes = size_bytes;
        self.samples.add(self.extent.superblock(), number);
        self.samples.volume_mut(number).expect("the volume was added").touch_all();
        true
    }

    /// Invalidates the samples in a range of a volume's disk, before the range changes. Returns
    /// true if the change may proceed; otherwise the log notifies the waiter with
    /// [`Notification::Retry`](super::Notification::Retry).
    #[must_use]
    pub fn invalidate_samples(&mut self, number: u16, range: ByteRange, waiter: W) -> bool {
        let has_failed = self.failed.is_some();
        let Some(samples) = self.samples.volume_mut(number).filter(|_| !has_failed) else {
            return true;
        };
        let bits = samples.in_range(range);
        if bits == 0 {
            return true;
        }
        samples.touched |= bits;
        let on_device = (samples.durable | samples.writing) & bits;
        let Some(volume) = self.extent.superblock().volume(number) else { return true };
        let in_memory = volume.disk.samples.valid & bits;
        if on_device | in_memory == 0 {
            return true;
        }
        self.samples.waiters.push(waiter);
        // If the superblock in memory lacks these samples already, its write is due or in progress.
        if in_memory != 0 {
            let entry = self.extent.entry_mut(number).expect("the volume was found");
            entry.disk.samples.valid &= !bits;
        }
        false
    }

    /// Retains all records of a volume until [`Log::end_restore`], because its disk may have lost
    /// writes that it had completed. A checkpoint in progress frees no records.
    pub fn retain_records(&mut self, number: u16) {
        if let Some(volume) = self.volumes.get_mut(number) {
            volume.is_restoring = true;
            if volume.checkpoint.is_some() {
                self.samples.invalid_checkpoints.push(number);
            }
        }
    }

    /// The number of the first record that is not durable.
    pub fn first_pending_record(&self) -> u64 {
        self.next_record() - self.batches.record_count()
    }

    /// The number of the next record.
    pub const fn next_record(&self) -> u64 {
        self.volumes.next_record()
    }

    /// The places of a volume's disk to sample again after a checkpoint, and the epoch to pass to
    /// [`Log::store_samples`] with the result.
    pub fn stale_places(&self, number: u16) -> (u64, Vec<SamplePlace>) {
        let samples = self.samples.volume(number);
        let (Some(samples), Some(volume)) = (samples, self.superblock().volume(number)) else {
            return (0, Vec::new());
        };
        let skipped = volume.disk.samples.valid | samples.touched | samples.touched_before;
        let places = samples.places.iter().filter(|place| skipped >> place.index & 1 == 0);
        (samples.epoch, places.copied().collect())
    }

    /// Stores new samples of stale places. `epoch` is from [`Log::stale_places`].
    pub fn store_samples(&mut self, number: u16, epoch: u64, samples: Samples) {
        let Some(tracked) = self.samples.volume_mut(number) else { return };
        // After two more checkpoints, it is no longer known which blocks changed since
        // `stale_places`.
        if tracked.epoch > epoch + 1 {
            return;
        }
        let new = samples.valid & !(tracked.touched | tracked.touched_before);
        let Some(volume) = self.extent.superblock().volume(number) else { return };
        let new = new & !volume.disk.samples.valid;
        if new == 0 {
            return;
        }
        let entry = self.extent.entry_mut(number).expect("the volume was found");
        let kept = &mut entry.disk.samples;
        for at in (0..SAMPLES_MAX).filter(|at| new >> at & 1 == 1) {
            kept.sums[at] = samples.sums[at];
        }
        kept.valid |= new;
    }

    /// Attaches a volume to a disk: stores the disk's size, identity and hardware identifier.
    /// `samples`, if given, must have been read while no change was recorded or in flight; they
    /// replace the stored ones. Otherwise the stored samples stay valid if the size is the same.
    pub fn attach_disk(
        &mut self,
        number: u16,
        (size_bytes, identity, hardware): (u64, [u8; 32], u64),
        samples: Option<Samples>,
    ) {
        let Some(before) = self.extent.superblock().volume(number) else { return };
        let has_same_size = before.size_bytes == size_bytes;
        let kept = if has_same_size { before.disk.samples } else { Samples::default() };
        let mut volume = VolumeEntry { size_bytes, identity, ..before.clone() };
        volume.disk.hardware = hardware;
        volume.disk.samples = samples.unwrap_or(kept);
        if volume != *before {
            *self.extent.entry_mut(number).expect("the volume was found") = volume;
        }
        self.samples.add(self.extent.superblock(), number);
    }
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
