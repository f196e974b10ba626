//! What a disk did not take stays in the journal, and an adopted pool is recorded again: the steps
//! of [`Retention`] and [`RecordAgain`], and the log that a start finds after them.

use forebay_engine::{JournalOp, JournalRequest, LineKey, Outcome, PartId};
use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind};
use forebay_journal::{Log, LogAdmission, LogEntry, ReadAt, pieces_to_restore, recover};
use forebay_protect::{
    JournalState, RecordAgain, RecordAgainStep, Retention, RetentionStep, StuckLine, runs_of,
};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};

const GEOMETRY: Geometry = Geometry { segment_bytes: 64 << 10, segments: 8 };
const SIZE_BYTES: u64 = LOG_OFFSET + GEOMETRY.log_bytes();
const OLD: u8 = 1;
const NEW: u8 = 2;

struct Device(Vec<u8>);

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> IoResult {
        buffer.copy_from_slice(&self.0[position as usize..][..buffer.len()]);
        Ok(())
    }
}

/// A journal with one volume, on a device that takes writes when the test says so.
struct Rig {
    journal: JournalState<Vec<u8>>,
    number: u16,
    device: Device,
}

impl Rig {
    fn new() -> Self {
        let buffers = vec![vec![0; 64 << 10]; 3];
        let log = Log::format(JournalId([7; 16]), SIZE_BYTES, GEOMETRY, buffers);
        let mut journal = JournalState::new(log);
        let number = journal.log.add_volume("volume", 1 << 30, [1; 32]).expect("there is room");
        let mut rig = Self { journal, number, device: Device(vec![0; SIZE_BYTES as usize]) };
        rig.write_log();
        rig
    }

    /// With durable records of line 1, sectors 0 and 1, and of line 2, sector 0.
    fn with_old_records() -> Self {
        let mut rig = Self::new();
        rig.record(line(1), 0b11, OLD);
        rig.record(line(2), 0b1, OLD);
        rig.write_log();
        rig
    }

    /// Executes the log's writes.
    fn write_log(&mut self) {
        while let Some(write) = self.journal.log.poll_write() {
            let bytes = write.bytes_for(0);
            self.device.0[write.position as usize..][..bytes.len()].copy_from_slice(bytes);
            self.journal.handle_written(write, [Ok(()); 2]);
        }
    }

    /// A process that starts with the journal as the device has it.
    fn restart(&mut self) {
        let found = recover(&mut self.device, SIZE_BYTES).expect("there is a journal");
        let buffers = vec![vec![0; 64 << 10]; 3];
        let log = Log::resume(&found, buffers).expect("the journal has space to resume");
        self.journal = JournalState::new(log);
        self.journal.log.end_restore(self.number);
        self.write_log();
    }

    fn fail_log(&mut self) {
        self.record(line(9), 1, NEW);
        let write = self.journal.log.poll_write().expect("there is a record");
        self.journal.handle_written(write, [Err(IoError::Io); 2]);
    }

    /// Records the sectors in `mask` of a line, filled with `byte`.
    fn record(&mut self, key: LineKey, mask: u8, byte: u8) {
        for range in runs_of(key, mask) {
            let admitted = self.journal.log.admit(self.number, range.len, PartId(0));
            assert_eq!(admitted, LogAdmission::Granted);
            let entry = LogEntry { kind: RecordKind::Write, volume: self.number, range };
            let bytes = vec![byte; range.len as usize];
            assert!(self.journal.log.append(entry, [&bytes[..]].into_iter(), None));
        }
    }

    /// The retention of a checkpoint that left these lines dirty, after its first flush.
    fn flushed(&mut self, lines: &[StuckLine]) -> Retention {
        let mut retention = self.retention(lines);
        assert_eq!(retention.poll(&self.journal), RetentionStep::FlushDisk);
        assert_eq!(retention.poll(&self.journal), RetentionStep::Wait, "one flush at a time");
        retention.handle_flush(&mut self.journal, Ok(()));
        retention
    }

    fn retention(&self, lines: &[StuckLine]) -> Retention {
        Retention::new(self.number, self.journal.log.next_record(), lines.to_vec())
    }

    /// Records the lines of a [`RecordAgain`] until it asks for a flush. Sectors in `lost` are left
    /// out.
    fn record_lines(&mut self, again: &mut RecordAgain, lost: u8) {
        loop {
            match again.poll(&self.journal) {
                RecordAgainStep::RecordLine(line) => {
                    self.record(line.key, line.dirty & !lost, NEW);
                    again.handle_line(lost);
                }
                step => return assert_eq!(step, RecordAgainStep::FlushDisk),
            }
        }
    }

    /// The first byte of each sector of a line that a start would restore.
    fn restored(&mut self, key: LineKey) -> [Option<u8>; 8] {
        let found = recover(&mut self.device, SIZE_BYTES).expect("there is a journal");
        assert!(found.damage.is_empty(), "{:?}", found.damage);
        let mut sectors = [None; 8];
        for piece in pieces_to_restore(&found.records, self.number) {
            let position = piece.position.expect("only data is recorded");
            for at in (0..piece.range.len).step_by(SECTOR_BYTES as usize) {
                let offset = piece.range.offset + at;
                if offset / LINE_BYTES == key.line() {
                    let sector = (offset % LINE_BYTES / SECTOR_BYTES) as usize;
                    sectors[sector] = Some(self.device.0[(position + at) as usize]);
                }
            }
        }
        sectors
    }
}

fn line(number: u64) -> LineKey {
    LineKey::new(VolumeId(0), number)
}

fn stuck(number: u64, dirty: u8, lost: u8) -> StuckLine {
    StuckLine { shard: 0, key: line(number), dirty, lost }
}

#[test]
fn sectors_of_a_mask_are_runs() {
    let runs: Vec<ByteRange> = runs_of(line(1), 0b1100_0101).collect();
    let at =
        |sector, count| ByteRange::new(LINE_BYTES + sector * SECTOR_BYTES, count * SECTOR_BYTES);
    assert_eq!(runs, [at(0, 1), at(2, 1), at(6, 2)]);
    assert_eq!(runs_of(line(1), 0).count(), 0);
    assert_eq!(runs_of(line(2), 0xff).collect::<Vec<_>>(), [ByteRange::new(8192, 4096)]);
}

#[test]
fn a_disk_that_has_taken_everything_meanwhile_ends_the_checkpoint() {
    let mut rig = Rig::new();
    let mut retention = rig.flushed(&[]);
    assert_eq!(retention.poll(&rig.journal), RetentionStep::End(Ok(())));
    assert_eq!(rig.journal.kept().forward_bytes, 0);
}

#[test]
fn a_disk_that_does_not_flush_fails_the_checkpoint() {
    let mut rig = Rig::new();
    let mut retention = rig.retention(&[stuck(1, 1, 0)]);
    assert_eq!(retention.poll(&rig.journal), RetentionStep::FlushDisk);
    retention.handle_flush(&mut rig.journal, Err(IoError::Io));
    assert_eq!(retention.poll(&rig.journal), RetentionStep::End(Err(IoError::Io)));
}

#[test]
fn stuck_lines_are_recorded_once_more_before_the_checkpoint_ends() {
    let mut rig = Rig::new();
    let mut retention = rig.flushed(&[stuck(5, 0b11, 0), stuck(2, 0b1000_0001, 0)]);
    for (number, dirty) in [(2, 0b1000_0001), (5, 0b11)] {
        let step = RetentionStep::CopyLine(stuck(number, dirty, 0));
        assert_eq!(retention.poll(&rig.journal), step, "in ascending order");
        retention.handle_line(&mut rig.journal, dirty, 0, &[NEW; LINE_BYTES as usize]);
    }
    assert_eq!(retention.poll(&rig.journal), RetentionStep::Wait, "the records are not durable");
    rig.write_log();
    assert_eq!(retention.poll(&rig.journal), RetentionStep::End(Ok(())));
    assert_eq!(rig.journal.kept().forward_bytes, 4 * SECTOR_BYTES);
    let (new, none) = (Some(NEW), None);
    assert_eq!(rig.restored(line(2)), [new, none, none, none, none, none, none, new]);
    assert_eq!(rig.restored(line(5)), [new, new, none, none, none, none, none, none]);
}

#[test]
fn what_was_destaged_while_the_rest_is_recorded_is_flushed() {
    let mut rig = Rig::new();
    let mut retention = rig.flushed(&[stuck(1, 0b11, 0)]);
    assert!(matches!(retention.poll(&rig.journal), RetentionStep::CopyLine(_)));
    retention.handle_line(&mut rig.journal, 0b10, 0, &[NEW; LINE_BYTES as usize]);
    rig.write_log();
    assert_eq!(retention.poll(&rig.journal), RetentionStep::FlushDisk, "sector 0 is in its cache");
    retention.handle_flush(&mut rig.journal, Ok(()));
    assert_eq!(retention.poll(&rig.journal), RetentionStep::End(Ok(())));
}

#[test]
fn a_lost_sector_keeps_its_older_records_and_fails_the_checkpoint() {
    for is_lost_before in [true, false] {
        let mut rig = Rig::with_old_records();
        let lost = u8::from(is_lost_before);
        let mut retention = rig.flushed(&[stuck(1, 0b11 & !lost, lost)]);
        if !is_lost_before {
            assert!(matches!(retention.poll(&rig.journal), RetentionStep::CopyLine(_)));
            retention.handle_line(&mut rig.journal, 0b10, 1, &[NEW; LINE_BYTES as usize]);
        }
        assert_eq!(retention.poll(&rig.journal), RetentionStep::End(Err(IoError::Io)));
        assert_eq!(rig.journal.kept().fences, 1);
        rig.write_log();
        assert_eq!(rig.restored(line(1))[..2], [Some(OLD); 2]);
        assert_eq!(rig.restored(line(2)), [None; 8], "the disk has it");
    }
}

#[test]
fn a_failed_log_ends_both() {
    let mut rig = Rig::new();
    let mut retention = rig.retention(&[stuck(1, 1, 0)]);
    let mut again = RecordAgain::new(&rig.journal, rig.number, vec![stuck(1, 1, 0)]);
    rig.fail_log();
    assert!(matches!(retention.poll(&rig.journal), RetentionStep::End(Err(_))));
    assert!(matches!(again.poll(&rig.journal), RecordAgainStep::End { result: Err(_), .. }));
}

#[test]
fn an_adopted_pool_replaces_all_older_records() {
    let mut rig = Rig::with_old_records();
    let mut again = RecordAgain::new(&rig.journal, rig.number, vec![stuck(1, 0b10, 0)]);
    rig.record_lines(&mut again, 0);
    rig.write_log();
    assert_eq!(rig.restored(line(2))[0], Some(OLD), "still valid: the disk may not be flushed");
    let since = rig.journal.log.next_record();
    again.handle_flush(&mut rig.journal, since, &[stuck(1, 0b10, 0)]);
    assert_eq!(again.poll(&rig.journal), RecordAgainStep::Wait, "the mark is not durable");
    rig.write_log();
    let end = RecordAgainStep::End { result: Ok(()), is_whole: true };
    assert_eq!(again.poll(&rig.journal), end);
    assert_eq!(rig.restored(line(1))[..2], [None, Some(NEW)], "sector 0 was destaged");
    assert_eq!(rig.restored(line(2)), [None; 8]);
}

#[test]
fn older_records_of_lost_data_stay() {
    for is_lost_before in [true, false] {
        let mut rig = Rig::with_old_records();
        let lost = u8::from(is_lost_before);
        let lines = vec![stuck(1, 0b11 & !lost, lost)];
        let mut again = RecordAgain::new(&rig.journal, rig.number, lines);
        rig.record_lines(&mut again, 1);
        rig.write_log();
        let since = rig.journal.log.next_record();
        again.handle_flush(&mut rig.journal, since, &[stuck(1, 0b10, 1)]);
        rig.write_log();
        let end = RecordAgainStep::End { result: Ok(()), is_whole: false };
        assert_eq!(again.poll(&rig.journal), end);
        assert_eq!(rig.restored(line(1))[..2], [Some(OLD), Some(NEW)]);
        assert_eq!(rig.restored(line(2)), [None; 8], "the disk has it");
    }
}

#[test]
fn starts_on_an_adopted_pool_do_not_fill_the_log() {
    let mut rig = Rig::with_old_records();
    for start in 0..4 * GEOMETRY.segments {
        rig.restart();
        let stuck = vec![stuck(1, 0b11, 0)];
        let mut again = RecordAgain::new(&rig.journal, rig.number, stuck.clone());
        rig.record_lines(&mut again, 0);
        rig.write_log();
        let since = rig.journal.log.next_record();
        again.handle_flush(&mut rig.journal, since, &stuck);
        rig.write_log();
        let end = RecordAgainStep::End { result: Ok(()), is_whole: true };
        assert_eq!(again.poll(&rig.journal), end, "start {start}");
        assert_eq!(rig.restored(line(1))[..2], [Some(NEW); 2]);
    }
}

/// Another host has the disk of the volume, and not yet the journal.
#[test]
fn a_volume_that_ends_without_its_disk_voids_none_of_its_records() {
    let mut rig = Rig::with_old_records();
    assert!(rig.journal.log.begin_checkpoint().is_some());
    let mut copying = rig.flushed(&[stuck(1, 0b1, 0)]);
    let mut flushing = rig.retention(&[stuck(1, 0b1, 0)]);
    assert_eq!(flushing.poll(&rig.journal), RetentionStep::FlushDisk);
    rig.journal.end(rig.number);
    // What the volume writes goes nowhere, and succeeds.
    flushing.handle_flush(&mut rig.journal, Ok(()));
    copying.handle_line(&mut rig.journal, 0, 0, &[]);
    for mut retention in [flushing, copying] {
        let end = RetentionStep::End(Err(IoError::Shutdown));
        assert_eq!(retention.poll(&rig.journal), end);
    }
    rig.journal.end_checkpoint(rig.number, Ok(()));
    let range = ByteRange::new(LINE_BYTES, LINE_BYTES);
    let forget =
        JournalRequest { part: PartId(1), volume: VolumeId(0), range, kind: JournalOp::Forget };
    let answer = rig.journal.record(rig.number, &forget, std::iter::empty());
    assert_eq!(answer.map(|answer| answer.outcome), Some(Outcome::JournalFailed));
    rig.write_log();
    let (old, none) = (Some(OLD), None);
    assert_eq!(rig.restored(line(1)), [old, old, none, none, none, none, none, none]);
    assert_eq!(rig.restored(line(2)), [old, none, none, none, none, none, none, none]);
    // It comes back.
    let _ = rig.journal.withdraw_volume(rig.number);
    rig.journal.serve(rig.number);
    assert!(rig.journal.record(rig.number, &forget, std::iter::empty()).is_none());
    rig.write_log();
    assert_eq!(rig.restored(line(1)), [none; 8]);
}
