//! Tests of the log through its public API.

#![allow(clippy::unwrap_used)]

use forebay_format::journal::{
    BATCH_BYTES_MAX, BatchHeader, Geometry, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET, RecordKind,
    Superblock, SuperblockInvalid, check_batch, seal_batch,
};
use forebay_journal::{
    Damage, Found, Image, Log, LogAdmission, LogEntry, LogError, LogWrite, Notification, ReadAt,
    RecordOutcome, RecoverError, beat, is_durable_before, needs_checkpoint_for_starts,
    promise_beats, recover,
};
use forebay_types::{ByteRange, IoError};

const JOURNAL: JournalId = JournalId([9; 16]);
const SIZE: u64 = JOURNAL_BYTES_MIN;

struct Device {
    bytes: Vec<u8>,
    unreadable: Option<u64>,
}

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let at = position as usize;
        let end = at + buffer.len();
        let is_bad = |bad: u64| (at..end).contains(&(bad as usize));
        if self.unreadable.is_some_and(is_bad) {
            return Err(IoError::Io);
        }
        buffer.copy_from_slice(self.bytes.get(at..end).ok_or(IoError::Io)?);
        Ok(())
    }
}

struct Lab {
    device: Device,
    log: Log<Vec<u8>, u32>,
    volume: u16,
}

fn buffers(count: usize) -> Vec<Vec<u8>> {
    vec![vec![0; BATCH_BYTES_MAX as usize]; count]
}

fn entry(volume: u16, sector: u64, sectors: u64) -> LogEntry {
    let range = ByteRange::new(sector * 512, sectors * 512);
    LogEntry { kind: RecordKind::Write, volume, range }
}

impl Lab {
    fn new() -> Self {
        Self::of_size(SIZE)
    }

    fn of_size(size: u64) -> Self {
        let geometry = Geometry::for_size(size).unwrap();
        let mut log = Log::format(JOURNAL, size, geometry, buffers(3));
        let volume = log.add_volume("disk", 1 << 30, [4; 32]).unwrap();
        let device = Device { bytes: vec![0; size as usize], unreadable: None };
        let mut lab = Self { device, log, volume };
        assert_eq!(lab.pump(), []);
        lab
    }

    fn put(&mut self, write: &LogWrite<Vec<u8>>) {
        let at = write.position as usize;
        self.device.bytes[at..at + write.len].copy_from_slice(write.bytes());
    }

    /// Carries out all writes that are due.
    fn pump(&mut self) -> Vec<(u32, Notification)> {
        let mut notifications = Vec::new();
        while let Some(write) = self.log.poll_write() {
            self.put(&write);
            self.log.complete(write, Ok(()), &mut notifications);
            self.log.self_check();
        }
        notifications
    }

    fn write(&mut self, sector: u64, bytes: &[u8], waiter: u32) {
        let sectors = bytes.len() as u64 / 512;
        assert_eq!(self.log.admit(self.volume, bytes.len() as u64, waiter), LogAdmission::Granted);
        assert!(self.log.append(
            entry(self.volume, sector, sectors),
            [bytes].into_iter(),
            Some(waiter)
        ));
    }

    /// Forwards a block.
    fn forward(&mut self, block: LogEntry) {
        let len = block.range.len;
        assert_eq!(self.log.admit_forward(block.volume, len), LogAdmission::Granted);
        let payload = vec![7; len as usize];
        assert!(self.log.append(block, [&payload[..]].into_iter(), None));
        self.pump();
    }

    fn recover(&mut self) -> Found {
        let size = self.device.bytes.len() as u64;
        recover(&mut self.device, size).unwrap()
    }
}

#[test]
fn writes_during_a_batch_write_share_the_next_batch() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    let first = lab.log.poll_write().unwrap();
    for waiter in 2..10 {
        lab.write(u64::from(waiter), &[waiter as u8; 4096], waiter);
    }
    assert!(lab.log.poll_write().is_none(), "one batch is written at a time");
    let mut notifications = Vec::new();
    lab.put(&first);
    lab.log.complete(first, Ok(()), &mut notifications);
    assert_eq!(notifications, [(1, Notification::Durable)]);
    let notifications = lab.pump();
    let expected: Vec<_> = (2..10).map(|waiter| (waiter, Notification::Durable)).collect();
    assert_eq!(notifications, expected);
    assert_eq!(lab.log.usage().batches, 2);
    let found = lab.recover();
    assert_eq!((found.records.len(), found.damage.len()), (9, 0));
    let last = found.records[8];
    let at = last.position as usize;
    assert_eq!(lab.device.bytes[at..at + 4096], [9; 4096]);
}

#[test]
fn barrier_waits_for_all_earlier_records() {
    let mut lab = Lab::new();
    assert_eq!(lab.log.barrier(1), Ok(true), "nothing is in flight");
    lab.write(0, &[1; 512], 2);
    assert_eq!(lab.log.barrier(3), Ok(false));
    let write = lab.log.poll_write().unwrap();
    assert_eq!(lab.log.barrier(4), Ok(false));
    let mut notifications = Vec::new();
    lab.put(&write);
    lab.log.complete(write, Ok(()), &mut notifications);
    assert_eq!(
        notifications,
        [(2, Notification::Durable), (3, Notification::Durable), (4, Notification::Durable)]
    );
    assert_eq!(lab.log.barrier(5), Ok(true));
}

/// Fails if a block that the disk refuses keeps the log full.
#[test]
fn a_block_that_the_disk_refuses_is_forwarded_from_a_log_with_only_the_reserve_left() {
    let mut lab = Lab::new();
    let bad = entry(lab.volume, 0, 8);
    lab.write(0, &[7; 4096], 1);
    let payload = vec![1; 1 << 20];
    while lab.log.admit(lab.volume, 1 << 20, 2) == LogAdmission::Granted {
        let entry = entry(lab.volume, 2048, 2048);
        assert!(lab.log.append(entry, [&payload[..]].into_iter(), None));
        lab.pump();
    }
    // Records of write-throughs use up all space except the reserve.
    lab.log.skip_to_next_segment();
    lab.log.begin_checkpoint().unwrap();
    assert!(lab.log.can_forward(lab.volume, 4096, 1));
    assert_eq!(lab.log.admit_forward(lab.volume, 4096), LogAdmission::Granted);
    assert!(lab.log.append(bad, [&[7; 4096][..]].into_iter(), None));
    lab.pump();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.pump();
    assert_eq!(lab.log.admit(lab.volume, 1 << 20, 3), LogAdmission::Granted);
    let found = lab.recover();
    let records: Vec<ByteRange> = found.records.iter().map(|found| found.record.range).collect();
    assert_eq!(records, [bad.range]);
}

/// Fails if a flush is answered that a stale device lacks: after a power failure, that device may
/// be the only one left.
#[test]
fn a_barrier_after_the_loss_of_a_device_waits_until_the_loss_is_recorded() {
    let geometry = Geometry::for_size(SIZE).unwrap();
    let mut log = Log::format(JOURNAL, SIZE, geometry, buffers(3)).mirrored([1, 2]);
    let volume = log.add_volume("disk", 1 << 30, [4; 32]).unwrap();
    let mut told: Vec<(u32, Notification)> = Vec::new();
    while let Some(write) = log.poll_write() {
        log.complete(write, Ok(()), &mut told);
    }
    // Nothing waits for this record: its write was acknowledged from memory.
    assert_eq!(log.admit(volume, 512, 1), LogAdmission::Granted);
    assert!(log.append(entry(volume, 0, 1), [&[1; 512][..]].into_iter(), None));
    let write = log.poll_write().unwrap();
    log.complete_on(write, [Ok(()), Err(IoError::Io)], &mut told);
    assert_eq!(log.barrier(1), Ok(false), "nothing records that device 1 is stale");
    assert_eq!(log.unrecorded_loss(), Some(vec![1]));
    assert!(log.poll_write().is_none());
    log.confirm_loss_recorded();
    assert_eq!(log.barrier(2), Ok(false), "the superblock does not record it");
    assert_eq!(told, []);
    while let Some(write) = log.poll_write() {
        assert!(!write.goes_to(1));
        log.complete(write, Ok(()), &mut told);
    }
    assert_eq!(told, [(1, Notification::Durable), (2, Notification::Durable)]);
    assert_eq!(log.barrier(3), Ok(true));
    log.self_check();
}

#[test]
fn failed_write_fails_all_waiters_and_stops_the_log() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    let write = lab.log.poll_write().unwrap();
    lab.write(1, &[1; 512], 2);
    assert_eq!(lab.log.barrier(3), Ok(false));
    let mut notifications = Vec::new();
    lab.log.complete(write, Err(IoError::NoSpace), &mut notifications);
    let lost = Notification::Lost(IoError::NoSpace);
    assert_eq!(notifications, [(1, lost), (2, lost), (3, lost)]);
    assert_eq!(lab.log.admit(lab.volume, 512, 4), LogAdmission::Failed);
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(0, 0, 1) };
    assert_eq!(lab.log.record(forget, Some(5)), RecordOutcome::Refused);
    assert_eq!(lab.log.barrier(6), Err(IoError::NoSpace));
    assert!(lab.log.poll_write().is_none());
    assert!(!lab.log.close(), "the content of the device is unknown");
    lab.log.self_check();
}

#[test]
fn full_log_refuses_writes_until_a_checkpoint() {
    let mut lab = Lab::new();
    let megabyte = vec![3; 1 << 20];
    let mut admitted = 0;
    while lab.log.admit(lab.volume, 1 << 20, 0) == LogAdmission::Granted {
        assert!(lab.log.append(entry(lab.volume, 0, 2048), [&megabyte[..]].into_iter(), Some(0)));
        lab.pump();
        admitted += 1;
    }
    assert_eq!(lab.log.admit(lab.volume, 512, 0), LogAdmission::Full);
    assert!(admitted >= 12, "{admitted} MiB in a log of 32 MiB");
    assert!(lab.log.wants_checkpoint());
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(lab.volume, 0, 1) };
    assert_eq!(
        lab.log.record(forget, Some(7)),
        RecordOutcome::Recorded,
        "records without payload still fit"
    );
    assert_eq!(lab.pump(), [(7, Notification::Durable)]);
    let checkpoint = lab.log.begin_checkpoint().unwrap();
    assert_eq!(checkpoint.volumes, [lab.volume]);
    assert_eq!(lab.log.begin_checkpoint(), None, "the volume has a checkpoint in progress");
    lab.log.end_checkpoint(lab.volume, Err(IoError::Io));
    assert_eq!(lab.log.admit(lab.volume, 512, 0), LogAdmission::Full, "the checkpoint failed");
    lab.log.begin_checkpoint().unwrap();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    assert_eq!(
        lab.log.admit(lab.volume, 512, 0),
        LogAdmission::Full,
        "the superblock is not durable yet"
    );
    lab.pump();
    assert_eq!(lab.log.admit(lab.volume, 512, 0), LogAdmission::Granted);
    lab.log.withdraw();
    assert!(lab.log.is_clean(lab.volume));
}

#[test]
fn writers_wait_for_a_free_buffer() {
    let mut lab = Lab::new();
    let half = vec![3; 600 << 10];
    lab.log.admit(lab.volume, half.len() as u64, 1);
    assert!(lab.log.append(entry(lab.volume, 0, 1200), [&half[..]].into_iter(), Some(1)));
    let first = lab.log.poll_write().unwrap();
    for waiter in [2, 3] {
        assert_eq!(lab.log.admit(lab.volume, half.len() as u64, waiter), LogAdmission::Granted);
        assert!(lab.log.append(entry(lab.volume, 0, 1200), [&half[..]].into_iter(), Some(waiter)));
    }
    assert_eq!(lab.log.admit(lab.volume, 512, 4), LogAdmission::Wait);
    let mut notifications = Vec::new();
    lab.log.complete(first, Ok(()), &mut notifications);
    assert_eq!(notifications, [(1, Notification::Durable), (4, Notification::Retry)]);
    lab.log.self_check();
}

#[test]
fn closed_log_has_no_records() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    assert!(!lab.log.close(), "the disk lacks a write");
    lab.log.begin_checkpoint().unwrap();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    assert!(!lab.recover().records.is_empty(), "the log is not closed yet");
    assert!(lab.log.close());
    lab.pump();
    let found = lab.recover();
    assert!(found.superblock.is_clean && found.records.is_empty());
    let mut next = Log::<_, u32>::resume(&found, buffers(2)).unwrap();
    assert_eq!(next.superblock().generation(), 2);
    assert_eq!(next.add_volume("disk", 1 << 30, [4; 32]), Ok(lab.volume));
    assert_eq!(next.add_volume("other", 1 << 30, [5; 32]), Ok(lab.volume + 1));
}

#[test]
fn records_of_a_removed_volume_are_void() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    assert!(lab.log.remove_volume(lab.volume).is_err(), "the disk lacks a write");
    lab.log.begin_checkpoint().unwrap();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.log.remove_volume(lab.volume).unwrap();
    let again = lab.log.add_volume("disk", 1 << 30, [4; 32]).unwrap();
    assert_ne!(again, lab.volume);
    lab.pump();
    assert!(lab.recover().records.is_empty());
}

#[test]
fn a_journal_without_volume_numbers_says_so() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    let mut found = lab.recover();
    found.superblock.next_volume = u16::MAX - 1;
    let mut log: Log<_, u32> = Log::resume(&found, buffers(3)).unwrap();
    assert_eq!(log.add_volume("last", 1 << 30, [5; 32]), Ok(u16::MAX - 1));
    let error = log.add_volume("other", 1 << 30, [6; 32]).unwrap_err();
    assert_eq!(error, LogError::NoMoreNumbers);
    assert_eq!(error.to_string(), "it has used up its 65535 volume numbers");
    // A log without records starts over.
    found.drop_records();
    let mut log: Log<_, u32> = Log::resume(&found, buffers(3)).unwrap();
    assert_eq!(log.add_volume("other", 1 << 30, [6; 32]), Ok(0));
}

#[test]
fn recovery_memory_is_bounded_for_overwritten_records() {
    const RECORDS: u64 = 600_000;
    let mut lab = Lab::of_size(64 << 20);
    for at in 0..RECORDS {
        let range = entry(lab.volume, at % 100, 1 + at % 3).range;
        let zero = LogEntry { kind: RecordKind::Zero { unmap: false }, volume: lab.volume, range };
        assert_eq!(lab.log.record(zero, None), RecordOutcome::Recorded);
        if at % 1000 == 0 {
            lab.pump();
        }
    }
    lab.pump();
    let found = lab.recover();
    assert_eq!((found.next_record, found.damage.len()), (RECORDS, 0));
    assert!(found.records.len() < 1 << 18, "{} records", found.records.len());
    let newest = found.records.last().unwrap().record.range;
    assert_eq!(newest, entry(lab.volume, (RECORDS - 1) % 100, 1 + (RECORDS - 1) % 3).range);
    let image = Image::of_volume(&found.records, lab.volume);
    let bytes: u64 = image.extents().map(|extent| extent.range.len).sum();
    assert_eq!(bytes, 102 * 512, "only overwritten records are dropped");
}

/// Writes ten batches of one write each, and returns their positions.
fn ten_batches(lab: &mut Lab) -> Vec<u64> {
    let mut positions = Vec::new();
    for at in 0..10 {
        lab.write(u64::from(at), &[at as u8 + 1; 512], at);
        let write = lab.log.poll_write().unwrap();
        positions.push(write.position);
        lab.put(&write);
        lab.log.complete(write, Ok(()), &mut Vec::new());
    }
    positions
}

#[test]
fn damaged_payload_loses_one_record_only() {
    let mut lab = Lab::new();
    let positions = ten_batches(&mut lab);
    lab.device.bytes[positions[4] as usize + 300] ^= 4;
    let found = lab.recover();
    assert_eq!(found.damage, [Damage::Payload { batch: 4 }]);
    let damaged: Vec<bool> = found.records.iter().map(|record| record.is_damaged).collect();
    assert_eq!(damaged, (0..10).map(|at| at == 4).collect::<Vec<_>>());
}

#[test]
fn damaged_header_is_not_the_end_of_the_log() {
    for damaged in [0, 4] {
        let mut lab = Lab::new();
        let positions = ten_batches(&mut lab);
        let position = positions[damaged];
        lab.device.bytes[position as usize] ^= 4;
        let found = lab.recover();
        let (first, next) = (damaged as u64, Some(damaged as u64 + 1));
        assert_eq!(found.damage, [Damage::Batches { first, next, position }]);
        assert_eq!(found.records.len(), 9);
    }
}

#[test]
fn unreadable_batch_is_not_the_end_of_the_log() {
    let mut lab = Lab::new();
    let positions = ten_batches(&mut lab);
    lab.device.unreadable = Some(positions[9]);
    let found = lab.recover();
    let (first, position) = (9, positions[9]);
    assert_eq!(found.damage, [Damage::Batches { first, next: None, position }]);
    lab.device.unreadable = Some(positions[3]);
    assert_eq!(lab.recover().records.len(), 9);
}

/// Fails if the log is continued with these numbers: the next superblock with them is refused, and
/// with it the whole journal.
#[test]
fn a_batch_with_a_number_that_no_superblock_may_contain_is_damage() {
    for numbers in [(9, 1 << 60), (1 << 60, 9)] {
        let mut lab = Lab::new();
        let positions = ten_batches(&mut lab);
        let position = positions[9];
        let bytes = &mut lab.device.bytes[position as usize..];
        let mut header = BatchHeader::decode(JOURNAL, 0, position - LOG_OFFSET, bytes).unwrap();
        let mut records = Vec::new();
        check_batch(&header, bytes, &mut records).unwrap();
        (header.batch, header.first_record) = numbers;
        seal_batch(JOURNAL, header, &records, bytes);
        let found = lab.recover();
        assert_eq!((found.next_batch, found.next_record), (9, 9));
        let damage = Damage::Batches { first: 9, next: None, position };
        assert_eq!(damage.to_string(), format!("batch 9 at byte {position} is unreadable"));
        let lost = |next| Damage::Batches { first: 9, next: Some(next), position }.to_string();
        assert_eq!(lost(10), format!("batch 9 at byte {position} is damaged"));
        assert_eq!(lost(12), format!("batches 9 to 11 at byte {position} are damaged"));
        assert_eq!(found.damage, [damage]);
    }
}

/// Regression: the number before it was computed.
#[test]
fn a_first_batch_in_a_place_that_is_not_the_first_is_damage() {
    let mut lab = Lab::new();
    let positions = ten_batches(&mut lab);
    lab.device.bytes[positions[0] as usize] ^= 4;
    let position = positions[1];
    let bytes = &mut lab.device.bytes[position as usize..];
    let mut header = BatchHeader::decode(JOURNAL, 0, position - LOG_OFFSET, bytes).unwrap();
    let mut records = Vec::new();
    check_batch(&header, bytes, &mut records).unwrap();
    header.batch = 0;
    seal_batch(JOURNAL, header, &records, bytes);
    let damage = &lab.recover().damage[0];
    assert_eq!(*damage, Damage::Batches { first: 0, next: Some(0), position: positions[0] });
    let text = format!("batch 0 is not at byte {}, where it belongs", positions[0]);
    assert_eq!(damage.to_string(), text);
}

#[test]
fn rejects_devices_without_a_journal() {
    let error = |bytes: &[u8], size| {
        let mut device = Device { bytes: bytes.to_vec(), unreadable: None };
        recover(&mut device, size).unwrap_err()
    };
    let zeroes = vec![0; LOG_OFFSET as usize];
    let foreign = RecoverError::Superblock(SuperblockInvalid::Foreign);
    assert_eq!(error(&zeroes, SIZE), foreign);
    assert_eq!(error(&[], 0), RecoverError::Io(IoError::Io));
    let lab = Lab::new();
    let truncated = RecoverError::Truncated { expected: SIZE, found: SIZE - 1 };
    assert_eq!(error(&lab.device.bytes, SIZE - 1), truncated);
}

#[test]
fn refuses_a_log_with_segments_shorter_than_a_batch() {
    let geometry = Geometry { segment_bytes: 4096, segments: 8 };
    let long = Log::<_, u32>::format(JOURNAL, SIZE, Geometry::for_size(SIZE).unwrap(), buffers(3));
    let superblock = Superblock { geometry, ..long.superblock().clone() };
    let mut device = Device { bytes: vec![0; SIZE as usize], unreadable: None };
    let bytes = superblock.encode();
    device.bytes[..bytes.len()].copy_from_slice(&bytes);
    let found = recover(&mut device, SIZE).unwrap();
    let error = Log::<_, u32>::resume(&found, buffers(3)).unwrap_err();
    assert_eq!(error, LogError::ShortSegments { segment_bytes: 4096 });
    assert!(error.to_string().contains("segments of 4096 bytes"), "{error}");
}

/// Regression: a checkpoint before the restore was complete lost data at the next power failure.
#[test]
fn no_checkpoint_before_the_restore_is_complete() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    let found = lab.recover();
    let mut next = Log::<_, u32>::resume(&found, buffers(2)).unwrap();
    assert_eq!(next.begin_checkpoint(), None);
    assert!(!next.close());
    next.end_restore(lab.volume);
    assert_eq!(next.begin_checkpoint().unwrap().volumes, [lab.volume]);
}

/// Every start takes a segment and a generation. Otherwise, servers that are killed or taken over
/// again and again would leave a log that cannot be resumed, although hardly anything is in it.
#[test]
fn starts_in_a_row_make_a_checkpoint_due() {
    let mut lab = Lab::of_size(256 << 20);
    lab.write(0, &[1; 512], 1);
    lab.pump();
    let resume = |lab: &mut Lab| {
        let found = lab.recover();
        lab.log = Log::resume(&found, buffers(3)).unwrap();
        lab.log.end_restore(lab.volume);
        lab.pump();
        lab.write(8, &[2; 512], 1);
        lab.pump();
    };
    for round in 0..4 {
        assert!(!lab.log.wants_checkpoint(), "there is space, round {round}");
        (0..5).for_each(|_| resume(&mut lab));
        assert!(lab.log.wants_checkpoint() && needs_checkpoint_for_starts(&lab.log));
        lab.log.begin_checkpoint().unwrap();
        lab.log.end_checkpoint(lab.volume, Ok(()));
        lab.pump();
        assert!(!needs_checkpoint_for_starts(&lab.log));
        // The next records must not have to wait for a segment of their own.
        lab.write(16, &[3; 512], 1);
        lab.pump();
    }
}

/// Otherwise an older record of the sector would be taken for its newest content.
#[test]
fn a_log_that_has_failed_is_not_durable_although_no_record_is_pending() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    assert_eq!(is_durable_before(&lab.log, lab.log.next_record()), Ok(false));
    lab.pump();
    assert_eq!(is_durable_before(&lab.log, lab.log.next_record()), Ok(true));
    lab.write(0, &[2; 512], 2);
    let write = lab.log.poll_write().unwrap();
    lab.log.complete(write, Err(IoError::Io), &mut Vec::new());
    assert_eq!(lab.log.first_pending_record(), lab.log.next_record());
    assert_eq!(is_durable_before(&lab.log, 0), Err(IoError::Io));
}

/// The runtime admits first and appends later, and the log may fail in between.
#[test]
fn append_after_a_failure_returns_false() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    let write = lab.log.poll_write().unwrap();
    assert_eq!(lab.log.admit(lab.volume, 512, 2), LogAdmission::Granted);
    lab.log.complete(write, Err(IoError::Io), &mut Vec::new());
    assert!(!lab.log.append(entry(lab.volume, 1, 1), [&[1; 512][..]].into_iter(), Some(2)));
    lab.log.self_check();
}

/// A batch without payload needs a buffer too, but must not take one reserved by a permit.
#[test]
fn record_without_payload_takes_no_reserved_buffer() {
    let mut lab = Lab::new();
    let half = vec![3; 600 << 10];
    for waiter in 1..=3 {
        assert_eq!(lab.log.admit(lab.volume, half.len() as u64, waiter), LogAdmission::Granted);
    }
    let discard = LogEntry { kind: RecordKind::Discard, ..entry(lab.volume, 0, 1) };
    assert_eq!(lab.log.record(discard, Some(4)), RecordOutcome::Recorded);
    assert!(lab.log.poll_write().is_none(), "all buffers are reserved");
    for waiter in 1..=3 {
        assert!(lab.log.append(entry(lab.volume, 0, 1200), [&half[..]].into_iter(), Some(waiter)));
    }
    assert_eq!(lab.pump().len(), 4);
}

#[test]
fn survives_the_loss_of_either_superblock_copy() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    let whole = lab.recover().records;
    assert_eq!(whole.len(), 1);
    for copy in [0, LOG_OFFSET / 2] {
        lab.device.unreadable = Some(copy);
        assert_eq!(lab.recover().records, whole, "the copy at {copy} is unreadable");
        lab.device.unreadable = None;
        lab.device.bytes[copy as usize + 20] ^= 1;
        assert_eq!(lab.recover().records, whole, "the copy at {copy} is corrupt");
        lab.device.bytes[copy as usize + 20] ^= 1;
    }
}

#[test]
fn detects_the_loss_of_the_first_batch_of_a_segment() {
    let mut lab = Lab::new();
    let segment_bytes = Geometry::for_size(SIZE).unwrap().segment_bytes;
    let long = vec![1; 1000 << 10];
    let per_segment = segment_bytes / (long.len() as u64);
    for sector in 0..per_segment {
        lab.write(sector * 2000, &long, 1);
        lab.pump();
    }
    let before = lab.recover().records.len();
    lab.write(0, &long, 2);
    lab.pump();
    lab.write(2000, &[2; 512], 3);
    lab.pump();
    assert_eq!(lab.recover().records.len(), before + 2);
    let first = LOG_OFFSET + segment_bytes;
    lab.device.bytes[first as usize + 8] ^= 1;
    let found = lab.recover();
    assert!(matches!(found.damage[..], [Damage::Batches { next: Some(_), .. }]), "{found:?}");
    assert_eq!(found.records.len(), before + 1);
    lab.device.bytes[first as usize + 8] ^= 1;
    lab.device.unreadable = Some(first);
    assert!(!lab.recover().damage.is_empty());
}

#[test]
fn detects_the_loss_of_the_last_batch_of_an_older_generation() {
    let mut lab = Lab::new();
    lab.write(0, &[1; 512], 1);
    lab.pump();
    lab.write(8, &[2; 512], 2);
    lab.pump();
    let found = lab.recover();
    let last = found.records[1].position;
    lab.log = Log::resume(&found, buffers(3)).unwrap();
    lab.pump();
    assert_eq!(lab.recover().records.len(), 2);
    lab.device.bytes[last as usize] ^= 1;
    let found = lab.recover();
    assert!(matches!(found.damage[..], [Damage::Payload { batch: 1 }]), "{found:?}");
    lab.device.unreadable = Some(last);
    let found = lab.recover();
    assert!(matches!(found.damage[..], [Damage::Batches { first: 1, .. }]), "{found:?}");
    // Records after the damage are readable again.
    lab.device.unreadable = None;
    lab.log = Log::resume(&found, buffers(3)).unwrap();
    lab.pump();
    lab.write(16, &[3; 512], 3);
    lab.pump();
    assert!(lab.recover().records.iter().any(|found| found.record.range.offset == 16 * 512));
}

/// Fills the log with writes of the first volume until it admits no more.
fn fill(lab: &mut Lab) {
    let megabyte = vec![3; 1 << 20];
    while lab.log.admit(lab.volume, 1 << 20, 0) == LogAdmission::Granted {
        assert!(lab.log.append(entry(lab.volume, 0, 2048), [&megabyte[..]].into_iter(), Some(0)));
        lab.pump();
    }
}

#[test]
fn clean_volume_needs_no_log_space_while_another_disk_hangs() {
    let mut lab = Lab::new();
    let other = lab.log.add_volume("other", 1 << 30, [2; 32]).unwrap();
    assert_eq!(lab.log.admit(other, 512, 1), LogAdmission::Granted);
    assert!(lab.log.append(entry(other, 8, 1), [&[1; 512][..]].into_iter(), Some(1)));
    fill(&mut lab);
    let checkpoint = lab.log.begin_checkpoint().unwrap();
    assert_eq!(checkpoint.volumes, [lab.volume, other]);
    lab.log.end_checkpoint(other, Ok(()));
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(other, 8, 1) };
    assert_eq!(
        lab.log.record(forget, Some(2)),
        RecordOutcome::Recorded,
        "the superblock is not durable yet"
    );
    assert_eq!(lab.pump(), [(2, Notification::Durable)]);
    let written = lab.log.usage().written_bytes;
    let zero = LogEntry { kind: RecordKind::Zero { unmap: false }, ..forget };
    for _ in 0..10_000 {
        assert_eq!(lab.log.admit(other, 512, 3), LogAdmission::Full);
        assert_eq!(lab.log.record(forget, Some(3)), RecordOutcome::Unneeded);
        assert_eq!(lab.log.record(zero, Some(3)), RecordOutcome::Refused);
    }
    assert_eq!(lab.log.usage().written_bytes, written);
    let found = lab.recover();
    assert!(found.records.iter().all(|found| found.record.volume == lab.volume));
    // The disk that hung completes its checkpoint: new records of the other volume are valid.
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.pump();
    assert_eq!(lab.log.admit(other, 512, 4), LogAdmission::Granted);
    assert!(lab.log.append(entry(other, 9, 1), [&[2; 512][..]].into_iter(), Some(4)));
    assert_eq!(lab.log.record(forget, Some(5)), RecordOutcome::Recorded);
    lab.pump();
    let found = lab.recover();
    assert_eq!(found.records.iter().filter(|found| found.record.volume == other).count(), 2);
    // After a restart, record numbers continue after all void records.
    let next = Log::<_, u32>::resume(&found, buffers(2)).unwrap();
    assert!(next.next_record() >= found.superblock.volume(other).unwrap().void_before);
}

#[test]
fn write_through_waits_before_it_takes_the_last_space() {
    let mut lab = Lab::new();
    fill(&mut lab);
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(lab.volume, 0, 1) };
    let mut records = 0;
    while lab.log.admit(lab.volume, 512, 7) == LogAdmission::Full {
        assert_eq!(lab.log.record(forget, Some(0)), RecordOutcome::Recorded);
        lab.pump();
        records += 1;
        assert!(records < 10_000, "the log never fills");
    }
    lab.log.begin_checkpoint().unwrap();
    // The disk has everything except one sector.
    let kept = ByteRange::new(4096, 512);
    let since = lab.log.next_record();
    assert!(lab.log.fence(lab.volume, since, &[kept], false));
    lab.log.end_checkpoint(lab.volume, Err(IoError::Io));
    let mut notifications = Vec::new();
    lab.log.poll_notifications(&mut notifications);
    assert_eq!(notifications, [(7, Notification::Retry)]);
    lab.pump();
    assert_eq!(lab.log.record(forget, Some(8)), RecordOutcome::Unneeded);
    let inside = LogEntry { range: kept, ..forget };
    assert_eq!(lab.log.record(inside, Some(8)), RecordOutcome::Recorded);
    assert_eq!(
        lab.log.record(inside, Some(8)),
        RecordOutcome::Recorded,
        "the first record is not durable yet"
    );
    lab.pump();
    assert_eq!(lab.log.record(inside, Some(8)), RecordOutcome::Unneeded);
}

/// Regression: a waiter that retried between the end of the checkpoint and its superblock waited
/// forever.
#[test]
fn waiter_is_notified_once_space_is_free() {
    let mut lab = Lab::new();
    fill(&mut lab);
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(lab.volume, 0, 1) };
    while lab.log.admit(lab.volume, 512, 7) == LogAdmission::Full {
        assert_eq!(lab.log.record(forget, Some(0)), RecordOutcome::Recorded);
        lab.pump();
    }
    lab.log.begin_checkpoint().unwrap();
    // An erase meanwhile keeps the checkpoint from voiding all records.
    let zero = LogEntry { kind: RecordKind::Zero { unmap: false }, ..forget };
    assert_eq!(lab.log.record(zero, Some(1)), RecordOutcome::Recorded);
    lab.pump();
    lab.log.end_checkpoint(lab.volume, Ok(()));
    let mut notifications = Vec::new();
    lab.log.poll_notifications(&mut notifications);
    assert_eq!(notifications, [(7, Notification::Retry)]);
    assert_eq!(lab.log.admit(lab.volume, 512, 8), LogAdmission::Wait, "no space is free yet");
    assert!(lab.pump().contains(&(8, Notification::Retry)));
    assert_eq!(lab.log.admit(lab.volume, 512, 8), LogAdmission::Granted);
}

/// Regression: on a disk that completed writes but failed to flush, write-throughs filled the log
/// to the last byte. No fence could be recorded once the disk flushed again, and all writers waited
/// forever.
#[test]
fn space_for_a_fence_is_reserved() {
    let mut lab = Lab::new();
    fill(&mut lab);
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(lab.volume, 0, 1) };
    let mut notifications = Vec::new();
    let (mut waits, mut recorded) = (0, 0);
    loop {
        if lab.log.admit(lab.volume, 512, 7) == LogAdmission::Wait {
            waits += 1;
            lab.log.begin_checkpoint().unwrap();
            lab.log.end_checkpoint(lab.volume, Err(IoError::Io));
            lab.log.poll_notifications(&mut notifications);
            assert_eq!(
                notifications.pop(),
                Some((7, Notification::Retry)),
                "notified after one checkpoint"
            );
            continue;
        }
        let outcome = lab.log.record(forget, Some(0));
        lab.pump();
        lab.log.self_check();
        if outcome == RecordOutcome::NoSpace {
            break;
        }
        assert_eq!(outcome, RecordOutcome::Recorded);
        recorded += 1;
        assert!(recorded < 10_000, "the log never fills");
    }
    assert!(waits > 1 && recorded > 0, "{waits} waits, {recorded} records");
    // The disk flushes again.
    let kept = ByteRange::new(4096, 512);
    let since = lab.log.next_record();
    assert!(lab.log.fence(lab.volume, since, &[kept], false));
    lab.pump();
    assert_eq!(lab.log.record(forget, Some(8)), RecordOutcome::Unneeded);
    // Further fences leave space for the last one.
    let mut fences = 0;
    while lab.log.fence(lab.volume, since, &[ByteRange::new(4096 * fences, 512)], false) {
        lab.pump();
        fences += 1;
        assert!(fences < 10_000, "the log never fills");
    }
    assert!(lab.log.fence(lab.volume, since, &[kept], true));
    lab.pump();
    assert!(lab.log.fence(lab.volume, since, &[kept], true), "the same fence is already recorded");
}

/// Regression: erases are recorded after the disk has completed them, and filled a pinned log to
/// the last byte.
#[test]
fn erase_waits_for_space_and_leaves_the_space_of_a_fence() {
    let mut lab = Lab::new();
    let zero = LogEntry { kind: RecordKind::Zero { unmap: true }, ..entry(lab.volume, 0, 1) };
    assert!(lab.log.admit_erase(lab.volume, 7));
    fill(&mut lab);
    let mut notifications = Vec::new();
    let (mut waits, mut recorded) = (0, 0);
    loop {
        if !lab.log.admit_erase(lab.volume, 7) {
            waits += 1;
            lab.log.begin_checkpoint().unwrap();
            lab.log.end_checkpoint(lab.volume, Err(IoError::Io));
            lab.log.poll_notifications(&mut notifications);
            assert_eq!(notifications.pop(), Some((7, Notification::Retry)));
            continue;
        }
        let outcome = lab.log.record(zero, Some(0));
        lab.pump();
        if outcome == RecordOutcome::NoSpace {
            break;
        }
        assert_eq!(outcome, RecordOutcome::Recorded);
        recorded += 1;
        assert!(recorded < 10_000, "the log never fills");
    }
    assert!(waits > 1 && recorded > 0, "{waits} waits, {recorded} records");
    let since = lab.log.next_record();
    assert!(lab.log.fence(lab.volume, since, &[ByteRange::new(4096, 512)], false));
}

/// A log with a block of each of two volumes and only the reserve left, and the second volume.
fn full_log_of_two_volumes() -> (Lab, u16) {
    let mut lab = Lab::new();
    let other = lab.log.add_volume("other", 1 << 30, [2; 32]).unwrap();
    lab.write(8192, &[7; 4096], 1);
    assert_eq!(lab.log.admit(other, 4096, 1), LogAdmission::Granted);
    assert!(lab.log.append(entry(other, 8192, 8), [&[7; 4096][..]].into_iter(), Some(1)));
    fill(&mut lab);
    lab.log.skip_to_next_segment();
    (lab, other)
}

#[test]
fn blocks_that_two_disks_refuse_are_forwarded_into_the_reserve() {
    let (mut lab, other) = full_log_of_two_volumes();
    let checkpoint = lab.log.begin_checkpoint().unwrap();
    assert_eq!(checkpoint.volumes, [lab.volume, other]);
    for volume in checkpoint.volumes {
        assert!(lab.log.can_forward(volume, 4096, 1));
        lab.forward(entry(volume, 8192, 8));
        lab.log.end_checkpoint(volume, Ok(()));
    }
    lab.pump();
    assert_eq!(lab.log.admit(lab.volume, 1 << 20, 2), LogAdmission::Granted);
}

/// Regression: while the disk of another volume hung, a refused block was forwarded at each
/// checkpoint, until no volume had the space of a fence.
#[test]
fn a_block_is_not_forwarded_into_the_reserve_if_that_frees_nothing() {
    let (mut lab, other) = full_log_of_two_volumes();
    let block = entry(lab.volume, 8192, 8);
    let mut forwards = 0;
    // The checkpoint of the other volume never ends.
    for _ in 0..2000 {
        lab.log.begin_checkpoint().unwrap();
        let result = if lab.log.can_forward(lab.volume, 4096, 1) {
            lab.forward(block);
            forwards += 1;
            Ok(())
        } else {
            let since = lab.log.next_record();
            let is_fenced = lab.log.fence(lab.volume, since, &[block.range], false);
            assert!(is_fenced, "no space for a fence after {forwards} forwarded blocks");
            Err(IoError::Io)
        };
        lab.log.end_checkpoint(lab.volume, result);
        lab.pump();
    }
    assert_eq!(forwards, 1, "the first time, it might have been the beginning of the log");
    let kept: Vec<ByteRange> = (0..1000).map(|at| ByteRange::new(at << 13, 512)).collect();
    let since = lab.log.next_record();
    assert!(lab.log.fence(other, since, &kept, false));
}

/// Regression: the first forwarded block voided the fence, and with it the permission to forward
/// the next one. So each checkpoint failed, and took a part of the reserve.
#[test]
fn all_blocks_that_may_be_forwarded_are_admitted() {
    let mut lab = Lab::new();
    let blocks = [8192, 8208].map(|sector| entry(lab.volume, sector, 8));
    lab.write(8192, &[7; 4096], 1);
    lab.write(8208, &[7; 4096], 1);
    fill(&mut lab);
    let forget = LogEntry { kind: RecordKind::Forget, ..entry(lab.volume, 0, 1) };
    while lab.log.record(forget, None) == RecordOutcome::Recorded {
        lab.pump();
    }
    lab.log.begin_checkpoint().unwrap();
    assert!(!lab.log.can_forward(lab.volume, 8192, 2), "only the space of a fence is left");
    let since = lab.log.next_record();
    assert!(lab.log.fence(lab.volume, since, &blocks.map(|block| block.range), false));
    lab.log.end_checkpoint(lab.volume, Err(IoError::Io));
    lab.pump();
    lab.log.begin_checkpoint().unwrap();
    assert!(lab.log.can_forward(lab.volume, 8192, 2), "a fence is recorded already");
    blocks.into_iter().for_each(|block| lab.forward(block));
    lab.log.end_checkpoint(lab.volume, Ok(()));
    lab.pump();
    assert_eq!(lab.log.record(forget, Some(2)), RecordOutcome::Unneeded, "the fence is valid");
    assert_eq!(lab.log.admit(lab.volume, 1 << 20, 2), LogAdmission::Granted);
    let found = lab.recover();
    let writes = found.records.iter().map(|found| found.record);
    let writes = writes.filter(|record| record.kind == RecordKind::Write);
    assert!(writes.map(|record| record.range).eq(blocks.map(|block| block.range)));
}

#[test]
fn a_beat_writes_one_copy_of_the_superblock_and_changes_only_its_number() {
    let mut lab = Lab::new();
    promise_beats(&mut lab.log, 1250);
    lab.pump();
    let copies = |device: &Device| {
        [0, 1].map(|copy| {
            let from = copy * forebay_format::journal::SUPERBLOCK_BYTES;
            let to = from + forebay_format::journal::SUPERBLOCK_BYTES;
            Superblock::decode(&device.bytes[from..to]).unwrap()
        })
    };
    for _ in 0..5 {
        let before = copies(&lab.device);
        let newest = before.iter().map(|copy| copy.sequence).max().unwrap();
        beat(&mut lab.log);
        // Until it is on the device, a further beat adds nothing.
        beat(&mut lab.log);
        lab.pump();
        let after = copies(&lab.device);
        let changed = (0..2).filter(|&at| before[at] != after[at]).collect::<Vec<_>>();
        assert_eq!(changed.len(), 1, "the other copy stays intact");
        let expected = Superblock { sequence: newest + 1, ..before[changed[0]].clone() };
        assert_eq!((after[changed[0]].clone(), expected.beat_ms), (expected, 1250));
    }
    // The same promise again is no reason to write.
    promise_beats(&mut lab.log, 1250);
    assert!(lab.log.poll_write().is_none());
    // A failed log does not claim that its owner serves.
    beat(&mut lab.log);
    let write = lab.log.poll_write().unwrap();
    lab.log.complete(write, Err(IoError::Io), &mut Vec::new());
    beat(&mut lab.log);
    assert!(lab.log.poll_write().is_none());
}
