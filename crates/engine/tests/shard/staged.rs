//! Payloads that are received into the pool before they are written.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{Attempt, Outcome, ReadOutcome, ShardConfig, WriteOutcome};
use forebay_types::{IoError, Mode};

#[test]
fn a_staged_payload_is_invisible_until_written() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 7);
    let slots = rig.stage(0, 2 * LINE, 8).unwrap();
    assert_eq!(rig.read_to_end(0, LINE), [7; 8]);
    assert_eq!(rig.read_to_end(LINE, LINE), (8..16).map(Rig::on_disk).collect::<Vec<_>>());
    let outcome = rig.write_staged(2, 0, 2 * LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!(rig.read_to_end(0, 2 * LINE), [8; 16]);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn staged_slots_are_not_evicted_and_can_be_released() {
    let mut rig = Rig::new(8, 64, Mode::WriteThrough);
    let slots = rig.stage(0, 4 * LINE, 9).unwrap();
    for line in 8..40 {
        rig.read_to_end(line * LINE, LINE);
    }
    assert_eq!(rig.shard.pins(), 4);
    assert!(rig.stage(8 * LINE, 5 * LINE, 1).is_none(), "only four slots are left");
    assert_eq!(rig.shard.pins(), 4, "a failed stage keeps no slot");
    rig.unstage(&slots);
    assert_eq!(rig.shard.pins(), 0);
    assert!(rig.stage(0, 8 * LINE, 1).is_some());
}

#[test]
fn a_staged_write_keeps_pinned_data() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 7);
    let (outcome, segments) = rig.read(2, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    // From the second sector of the first line to the middle of the second.
    let slots = rig.stage(512, 4096, 8).unwrap();
    let outcome = rig.write_staged(3, 512, 4096, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!(rig.values(&segments), [7; 8]);
    let mut expected = vec![8; 8];
    expected[0] = 7;
    assert_eq!(rig.read_to_end(0, LINE), expected);
    rig.release(&segments);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_staged_write_waits_for_a_fill_and_keeps_its_slots() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    let slots = rig.stage(0, LINE, 7).unwrap();
    let outcome = rig.write_staged(2, 0, LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Waiting);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    assert_eq!(rig.write_staged(2, 0, LINE, &slots, attempt_after(None)), WriteOutcome::Done);
    assert_eq!(rig.read_to_end(0, LINE), [7; 8]);
}

#[test]
fn a_staged_write_past_the_cache_leaves_no_line() {
    let mut rig = Rig::new(8, 4, Mode::Bypass);
    for (value, result) in [(5, Ok(())), (6, Err(IoError::Io))] {
        let slots = rig.stage(0, LINE + 512, value).unwrap();
        let outcome = rig.write_staged(1, 0, LINE + 512, &slots, Attempt::default());
        assert_eq!(outcome, WriteOutcome::Started);
        rig.complete(0, result);
        assert_eq!(rig.take_outcome(1), Some(Outcome::Done(result)));
        assert_eq!((rig.shard.pins(), rig.shard.usage().resident_lines), (0, 0));
    }
    assert_eq!(rig.disk[..9], [5; 9]);
}

/// Regression: a staged write in bypass keeps its lines busy but pins only the slots of its
/// payload, so the later write was acknowledged first. The journal then recorded the older write as
/// the newer one.
#[test]
fn after_bypass_a_write_waits_for_the_staged_write_before_it() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, 512, 7), WriteOutcome::Done);
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    let slots = rig.stage(1024, 512, 8).unwrap();
    let outcome = rig.write_staged(2, 1024, 512, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Started);
    rig.shard.volume_mut(VOLUME).set_mode(Mode::WriteBack);
    assert_eq!(rig.write(3, 1024, 512, 9), WriteOutcome::Waiting);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(3), Some(Outcome::Retry(None)));
    let outcome = rig.retry(3, 1024, 512, 9);
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!((rig.read_to_end(0, 512), rig.read_to_end(1024, 512)), (vec![7], vec![9]));
}

#[test]
fn a_failed_staged_write_through_leaves_no_valid_sector() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    rig.read_to_end(0, LINE);
    let slots = rig.stage(0, LINE, 5).unwrap();
    let outcome = rig.write_staged(1, 0, LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Started);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!(rig.read_to_end(0, LINE), (0..8).map(Rig::on_disk).collect::<Vec<_>>());
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_line_that_is_staged_repeatedly_is_destaged_by_age() {
    let mut config = ShardConfig::for_slots(8);
    config.dirty_age_ms = 100;
    let mut rig = Rig::with(8, 4, Mode::WriteBack, config);
    for round in 0..30 {
        let slots = rig.stage(0, LINE, round).unwrap();
        let outcome = rig.write_staged(1, 0, LINE, &slots, Attempt::default());
        assert_eq!(outcome, WriteOutcome::Done);
        rig.tick(round * 10);
    }
    assert!(!rig.ios.is_empty(), "the line has been dirty for three times the age");
    rig.complete_all();
    assert!(rig.shard.volume(VOLUME).counters().destaged_lines > 0);
}
