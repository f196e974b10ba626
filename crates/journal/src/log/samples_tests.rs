use super::super::{LogAdmission, LogEntry, Notification};
use super::*;
use crate::identity::samples_of;
use forebay_format::journal::{Geometry, JOURNAL_BYTES_MIN, JournalId, RecordKind, sample_places};
use forebay_types::IoError;

const SIZE: u64 = 1 << 30;
const BUFFER: usize = 128 << 10;

struct Lab {
    log: Log<Vec<u8>, u32>,
    volume: u16,
    /// The valid samples in the superblock on the device.
    on_device: u64,
    notifications: Vec<(u32, Notification)>,
}

impl Lab {
    fn new() -> Self {
        let geometry = Geometry::for_size(JOURNAL_BYTES_MIN).unwrap();
        let buffers = vec![vec![0; BUFFER]; 3];
        let mut log = Log::format(JournalId([9; 16]), JOURNAL_BYTES_MIN, geometry, buffers);
        let volume = log.add_volume("disk", SIZE, [4; 32]).unwrap();
        log.attach_disk(volume, (SIZE, [4; 32], 0), Some(all()));
        let mut lab = Self { log, volume, on_device: 0, notifications: Vec::new() };
        lab.pump();
        assert_eq!(lab.on_device, all().valid);
        lab
    }

    /// Carries out one write, if one is due.
    fn step(&mut self, result: Result<(), IoError>) -> bool {
        let Some(write) = self.log.poll_write() else { return false };
        if write.batch().is_none() && result.is_ok() {
            let superblock = Superblock::decode(write.bytes()).unwrap();
            self.on_device = superblock.volume(self.volume).unwrap().disk.samples.valid;
        }
        self.log.complete(write, result, &mut self.notifications);
        true
    }

    fn pump(&mut self) {
        while self.step(Ok(())) {}
    }

    fn places(&self) -> &[SamplePlace] {
        self.log.samples.volume(self.volume).map_or(&[], |volume| &volume.places)
    }

    fn touch(&mut self, at: usize, waiter: u32) -> bool {
        let range = ByteRange::new(place(at) + 512, 512);
        self.log.invalidate_samples(self.volume, range, waiter)
    }

    fn record(&mut self, at: usize) {
        let entry = LogEntry {
            kind: RecordKind::Write,
            volume: self.volume,
            range: ByteRange::new(place(at) + 512, 512),
        };
        assert_eq!(self.log.admit(self.volume, 512, 0), LogAdmission::Granted);
        assert!(self.log.append(entry, [&[1; 512][..]].into_iter(), None));
        self.pump();
    }

    /// Runs a checkpoint, with `meanwhile` in the middle, and takes new samples at its end.
    fn checkpoint(&mut self, meanwhile: impl FnOnce(&mut Self)) {
        let checkpoint = self.log.begin_checkpoint().unwrap();
        assert_eq!(checkpoint.volumes, [self.volume]);
        meanwhile(self);
        self.log.end_checkpoint(self.volume, Ok(()));
        let (epoch, stale) = self.log.stale_places(self.volume);
        self.log.store_samples(self.volume, epoch, samples_at(&stale));
        self.pump();
    }
}

fn place(at: usize) -> u64 {
    sample_places(JournalId([9; 16]), 0, SIZE)[at]
}

/// All samples of a fully readable disk.
fn all() -> Samples {
    samples_at(&all_places(JournalId([9; 16]), 0, SIZE))
}

fn samples_at(places: &[SamplePlace]) -> Samples {
    let block = [7; BLOCK_BYTES as usize];
    samples_of(&places.iter().map(|place| (*place, Some(&block[..]))).collect::<Vec<_>>())
}

#[test]
fn change_waits_until_its_sample_is_durably_invalid() {
    let mut lab = Lab::new();
    let between_samples = ByteRange::new(place(9) + BLOCK_BYTES, 512);
    assert!(lab.log.invalidate_samples(lab.volume, between_samples, 1));
    assert!(!lab.touch(9, 2));
    assert!(!lab.touch(9, 3), "the superblock is not durable yet");
    assert_eq!(lab.notifications, []);
    // A change during the superblock write waits for the next superblock.
    let write = lab.log.poll_write().unwrap();
    assert!(!lab.touch(20, 4));
    lab.log.complete(write, Ok(()), &mut lab.notifications);
    assert_eq!(lab.notifications, [], "the other superblock copy still has the samples");
    assert!(!lab.touch(9, 2) && !lab.touch(20, 5));
    lab.pump();
    let waiters: Vec<u32> = lab.notifications.iter().map(|(waiter, _)| *waiter).collect();
    assert_eq!(waiters, [2, 3, 4, 2, 5]);
    assert_eq!(lab.on_device, all().valid & !(1 << 9 | 1 << 20));
    assert!(lab.touch(20, 4));
}

#[test]
fn sample_is_valid_again_two_checkpoints_after_the_last_change() {
    let mut lab = Lab::new();
    assert!(!lab.touch(9, 1));
    lab.pump();
    lab.record(9);
    lab.checkpoint(|lab| {
        assert!(!lab.touch(30, 2));
        lab.pump();
        lab.record(30);
    });
    // The change of 9 may still be in flight; 30 was touched since.
    assert_eq!(lab.on_device, all().valid & !(1 << 9 | 1 << 30));
    lab.checkpoint(|lab| lab.record(1));
    assert_eq!(lab.on_device, all().valid & !(1 << 30));
    lab.checkpoint(|_| {});
    assert_eq!(lab.on_device, all().valid);
}

#[test]
fn late_samples_are_valid_while_later_changes_are_known() {
    let mut lab = Lab::new();
    for at in [9, 20, 30] {
        assert!(!lab.touch(at, 0));
    }
    lab.pump();
    lab.record(9);
    lab.checkpoint(|_| {});
    lab.record(9);
    lab.log.begin_checkpoint().unwrap();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    let (epoch, stale) = lab.log.stale_places(lab.volume);
    let taken = samples_at(&stale);
    let stale: Vec<usize> = stale.iter().map(|place| place.index).collect();
    assert_eq!(stale, [20, 30], "9 was touched too recently");
    // The next checkpoint begins before the samples arrive; changes from now on are known.
    assert!(lab.touch(20, 0));
    lab.record(20);
    lab.log.begin_checkpoint().unwrap();
    lab.log.store_samples(lab.volume, epoch, taken);
    lab.pump();
    assert_eq!(lab.on_device, all().valid & !(1 << 9 | 1 << 20));
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.record(20);
    lab.log.begin_checkpoint().unwrap();
    lab.log.store_samples(lab.volume, epoch, taken);
    lab.pump();
    assert_eq!(lab.on_device, all().valid & !(1 << 9 | 1 << 20), "too late");
}

#[test]
fn change_waits_for_a_superblock_in_flight_that_adds_its_sample() {
    let mut lab = Lab::new();
    assert!(!lab.touch(9, 0));
    lab.record(3);
    lab.checkpoint(|_| {});
    lab.record(3);
    lab.notifications.clear();
    lab.log.begin_checkpoint().unwrap();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.pump();
    let (epoch, stale) = lab.log.stale_places(lab.volume);
    lab.log.store_samples(lab.volume, epoch, samples_at(&stale));
    // A superblock with a valid sample 9 is in flight. If it is the last one before a crash, block
    // 9 must not have changed.
    let write = lab.log.poll_write().unwrap();
    assert!(!lab.touch(9, 1) && !lab.touch(9, 2));
    lab.log.complete(write, Ok(()), &mut lab.notifications);
    assert_eq!(lab.notifications, []);
    assert!(!lab.touch(9, 3));
    lab.pump();
    assert_eq!(lab.notifications.len(), 3);
    assert!(lab.touch(9, 1));
}

#[test]
fn waiter_retries_and_proceeds_after_the_log_fails() {
    let mut lab = Lab::new();
    assert!(!lab.touch(9, 1));
    let write = lab.log.poll_write().unwrap();
    assert!(!lab.touch(12, 2));
    lab.log.complete(write, Err(IoError::Io), &mut lab.notifications);
    assert_eq!(lab.notifications, [(1, Notification::Retry), (2, Notification::Retry)]);
    assert!(lab.touch(9, 1), "the failure is recorded before anything continues");
}

#[test]
fn samples_are_dropped_for_a_disk_of_another_size() {
    let mut lab = Lab::new();
    lab.log.attach_disk(lab.volume, (2 * SIZE, [5; 32], 6), None);
    lab.pump();
    assert_eq!(lab.on_device, 0);
    let volume = lab.log.superblock().volume(lab.volume).unwrap();
    assert_eq!((volume.size_bytes, volume.identity, volume.disk.hardware), (2 * SIZE, [5; 32], 6));
    assert_eq!(lab.places().last().unwrap().offset, 2 * SIZE - BLOCK_BYTES);
}

#[test]
fn the_places_of_a_growing_disk_move_only_when_no_superblock_on_the_device_has_samples() {
    let mut lab = Lab::new();
    assert!(!lab.log.grow_disk(lab.volume, 2 * SIZE));
    assert!(!lab.touch(9, 1), "the device still has the sample");
    let write = lab.log.poll_write().unwrap();
    lab.log.complete(write, Ok(()), &mut lab.notifications);
    assert!(!lab.log.grow_disk(lab.volume, 2 * SIZE), "the other superblock copy has them");
    lab.pump();
    assert_eq!(lab.on_device, 0);
    assert_eq!(lab.log.superblock().volume(lab.volume).unwrap().size_bytes, SIZE);
    assert!(lab.touch(9, 1) && lab.log.grow_disk(lab.volume, 2 * SIZE));
    lab.pump();
    assert_eq!(lab.log.superblock().volume(lab.volume).unwrap().size_bytes, 2 * SIZE);
    assert_eq!(lab.places().last().unwrap().offset, 2 * SIZE - BLOCK_BYTES);
    // Changes recorded before may be in flight.
    lab.record(3);
    lab.checkpoint(|lab| lab.record(1));
    assert_eq!(lab.on_device, 0);
    lab.checkpoint(|_| {});
    assert!(lab.on_device.count_ones() > 60, "{:x}", lab.on_device);
}

/// Fails if samples that a thread has read from the previous disk are stored for the new one.
#[test]
fn samples_requested_before_a_volume_was_attached_again_come_too_late() {
    let mut lab = Lab::new();
    assert!(!lab.touch(9, 1));
    lab.record(3);
    for _ in 0..2 {
        lab.log.begin_checkpoint().unwrap();
        lab.log.end_checkpoint(lab.volume, Ok(()));
        lab.record(3);
    }
    let (epoch, stale) = lab.log.stale_places(lab.volume);
    assert_eq!(stale.iter().map(|place| place.index).collect::<Vec<_>>(), [9]);
    lab.log.attach_disk(lab.volume, (SIZE, [5; 32], 6), Some(Samples::default()));
    lab.log.store_samples(lab.volume, epoch, samples_at(&stale));
    lab.pump();
    assert_eq!(lab.on_device, 0, "a sample of the disk before is valid");
}

#[test]
fn a_removed_volume_leaves_no_samples_behind() {
    let mut lab = Lab::new();
    assert!(!lab.places().is_empty());
    lab.log.remove_volume(lab.volume).unwrap();
    assert!(lab.places().is_empty());
    let again = lab.log.add_volume("disk", SIZE, [4; 32]).unwrap();
    assert_ne!(again, lab.volume, "late samples would be of the volume before");
    lab.log.store_samples(lab.volume, 0, all());
    while let Some(write) = lab.log.poll_write() {
        lab.log.complete(write, Ok(()), &mut lab.notifications);
    }
    assert_eq!(lab.log.superblock().volume(again).unwrap().disk.samples.valid, 0);
}

#[test]
fn checkpoint_in_progress_frees_no_retained_records() {
    let mut lab = Lab::new();
    lab.record(3);
    lab.log.begin_checkpoint().unwrap();
    lab.log.retain_records(lab.volume);
    lab.log.end_checkpoint(lab.volume, Ok(()));
    assert!(!lab.log.is_clean(lab.volume), "the disk may have lost data that it had taken");
    assert_eq!(lab.log.begin_checkpoint(), None);
    lab.log.end_restore(lab.volume);
    lab.checkpoint(|_| {});
    assert!(lab.log.is_clean(lab.volume));
    // A checkpoint that begins later is valid.
    lab.record(3);
    lab.log.retain_records(lab.volume);
    lab.log.end_restore(lab.volume);
    lab.checkpoint(|_| {});
    assert!(lab.log.is_clean(lab.volume));
    assert_eq!(lab.log.first_pending_record(), lab.log.next_record());
}
