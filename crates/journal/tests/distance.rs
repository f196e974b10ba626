//! How far a log is from admitting no more writes because of a volume.

#![allow(clippy::unwrap_used)]

use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind};
use forebay_journal::{Log, LogAdmission, LogEntry, distance};
use forebay_types::ByteRange;

const SEGMENTS: u64 = 64;
const GEOMETRY: Geometry = Geometry { segment_bytes: 64 << 10, segments: SEGMENTS };

type TestLog = Log<Vec<u8>, u32>;

fn write_out(log: &mut TestLog) {
    let mut notices = Vec::new();
    while let Some(write) = log.poll_write() {
        log.complete(write, Ok(()), &mut notices);
    }
}

/// Records a write of a volume. Returns false if the log does not admit it.
fn write(log: &mut TestLog, volume: u16) -> bool {
    let range = ByteRange::new(0, 4096);
    let admission = log.admit(volume, range.len, 0);
    if admission == LogAdmission::Granted {
        let entry = LogEntry { kind: RecordKind::Write, volume, range };
        assert!(log.append(entry, [&[0; 4096][..]].into_iter(), None));
        write_out(log);
    }
    admission == LogAdmission::Granted
}

fn share_left(log: &TestLog, volume: u16) -> f64 {
    let (left, all) = distance(log, volume);
    left as f64 / all as f64
}

#[test]
fn the_distance_ends_where_the_log_admits_no_more_writes() {
    let buffers = vec![vec![0; 16 << 10]; 3];
    let size_bytes = LOG_OFFSET + SEGMENTS * GEOMETRY.segment_bytes;
    let mut log = TestLog::format(JournalId([1; 16]), size_bytes, GEOMETRY, buffers);
    let [old, new] =
        ["old", "young"].map(|name| log.add_volume(name, 1 << 20, [name.len() as u8; 32]));
    let (old, new) = (old.unwrap(), new.unwrap());
    write_out(&mut log);
    assert_eq!((share_left(&log, old), share_left(&log, new)), (1.0, 1.0));
    let used = |log: &TestLog| log.usage().used_bytes / GEOMETRY.segment_bytes;
    assert!(write(&mut log, old));
    let mut before = 1.0;
    while write(&mut log, new) {
        let now = share_left(&log, old);
        assert!(now <= before, "it falls from {before} to {now}");
        let quarter = used(&log).cmp(&(SEGMENTS / 4));
        assert!(if now < 1.0 { quarter.is_ge() } else { quarter.is_le() }, "{now}: {quarter:?}");
        before = now;
    }
    assert_eq!(share_left(&log, old), 0.0, "the log admits no more writes");
}

#[test]
fn the_distance_of_a_volume_counts_from_its_own_oldest_record() {
    let buffers = vec![vec![0; 16 << 10]; 3];
    let size_bytes = LOG_OFFSET + SEGMENTS * GEOMETRY.segment_bytes;
    let mut log = TestLog::format(JournalId([1; 16]), size_bytes, GEOMETRY, buffers);
    let [old, new] =
        ["old", "young"].map(|name| log.add_volume(name, 1 << 20, [name.len() as u8; 32]));
    let (old, new) = (old.unwrap(), new.unwrap());
    write_out(&mut log);
    while share_left(&log, old) > 0.5 {
        assert!(write(&mut log, old));
    }
    assert!(write(&mut log, new));
    assert_eq!(share_left(&log, new), 1.0, "the other volume is to be destaged");
    for volume in log.begin_checkpoint().unwrap().volumes {
        log.end_checkpoint(volume, Ok(()));
    }
    assert_eq!(share_left(&log, old), 1.0);
}
