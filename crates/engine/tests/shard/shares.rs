//! The share of a shard for writes.

use crate::rig::{LINE, Rig, VOLUME};
use forebay_engine::{Outcome, PreloadKind, PreloadOutcome, ShardConfig, WriteOutcome};
use forebay_types::{GRANULE_BYTES, Mode, PinnedRanges, WriteShare};
use std::sync::Arc;

fn share(percent: u8) -> Option<WriteShare> {
    Some(WriteShare::of_percent(percent).unwrap())
}

/// Dirty lines, and the dirty limit.
fn quota(rig: &mut Rig) -> (usize, usize) {
    let quota = rig.shard.quota();
    (quota.dirty_lines(), quota.config().dirty_lines_max)
}

fn dirty_lines(rig: &Rig) -> usize {
    rig.shard.volume(VOLUME).dirty_lines()
}

#[test]
fn writeback_reaches_a_lower_share_and_loses_nothing() {
    let mut rig = Rig::new(64, 256, Mode::WriteBack);
    // Every other line, so that each is an I/O of its own.
    for line in 0..40 {
        assert_eq!(rig.write(line, line * 2 * LINE, LINE, 100 + line), WriteOutcome::Done);
    }
    rig.shard.quota().set_share(share(25));
    assert_eq!(quota(&mut rig), (40, 16));
    assert_eq!(rig.shard.quota().limits_with(share(50)).dirty_lines_max, 32);
    let outcome = rig.write(900, 200 * LINE, LINE, 9);
    assert_eq!(outcome, WriteOutcome::Waiting, "like any write at the dirty limit");
    let mut seen = vec![dirty_lines(&rig)];
    while rig.take_outcome(900).is_none() {
        rig.complete(0, Ok(()));
        seen.push(dirty_lines(&rig));
    }
    assert_eq!((seen[0], seen[seen.len() - 1]), (40, 15), "until there is room: {seen:?}");
    assert_eq!(rig.retry(900, 200 * LINE, LINE, 9), WriteOutcome::Done);
    // Without writers, writeback continues to the background limit, and beyond it by age.
    rig.complete_all();
    rig.tick(50);
    rig.complete_all();
    assert!(dirty_lines(&rig) <= 12, "{} are dirty", dirty_lines(&rig));
    for line in 0..40 {
        assert_eq!(rig.read_to_end(line * 2 * LINE, LINE), [100 + line; 8]);
    }
    assert_eq!(rig.flush_to_end(901), Ok(()));
    let on_disk = |line: u64| rig.disk[(line * 8) as usize];
    assert!((0..40).all(|line| on_disk(line * 2) == 100 + line) && on_disk(200) == 9);
}

#[test]
fn without_writers_too_writeback_reaches_a_lower_share() {
    let mut rig = Rig::new(64, 256, Mode::WriteBack);
    for line in 0..30 {
        assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
    }
    rig.tick(50);
    assert_eq!((rig.ios.len(), dirty_lines(&rig)), (0, 30), "below the background limit");
    rig.shard.quota().set_share(share(20));
    for now_ms in (100..1_000).step_by(50) {
        rig.tick(now_ms);
        rig.complete_all();
    }
    assert!(dirty_lines(&rig) <= 9, "{} are dirty", dirty_lines(&rig));
}

#[test]
fn a_larger_share_takes_writes_at_once() {
    let mut rig = Rig::new(64, 256, Mode::WriteBack);
    rig.shard.quota().set_share(share(10));
    let fill = |rig: &mut Rig, from: u64| {
        let mut line = from;
        while rig.write(1_000 + line, line * 2 * LINE, LINE, line) == WriteOutcome::Done {
            line += 1;
        }
        line
    };
    assert_eq!(fill(&mut rig, 0), 6);
    rig.shard.quota().set_share(share(75));
    assert_eq!(fill(&mut rig, 50) - 50, 42, "48 lines in all");
    rig.shard.quota().set_share(None);
    assert_eq!(quota(&mut rig), (48, ShardConfig::for_slots(64).dirty_lines_max));
}

/// A throttled write that exceeds a limit lowered meanwhile would wait for ever while other writers
/// keep the disk busy.
#[test]
fn a_throttled_write_that_exceeds_a_lower_limit_goes_through() {
    let config = ShardConfig { dirty_lines_max: 8, ..ShardConfig::for_slots(64) };
    let mut rig = Rig::with(64, 256, Mode::WriteBack, config);
    for line in 0..8 {
        assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
    }
    assert_eq!(rig.write(100, 100 * LINE, 5 * LINE, 1), WriteOutcome::Waiting);
    rig.shard.quota().set_share(share(5));
    assert_eq!(quota(&mut rig), (8, 3));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(100), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(100, 100 * LINE, 5 * LINE, 1), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_dirty_limit, 1);
    assert_eq!(rig.read_to_end(100 * LINE, 5 * LINE), [1; 40]);
}

#[test]
fn without_a_share_for_writes_they_go_through_and_pinned_ranges_are_loaded() {
    let mut rig = Rig::new(64, 256, Mode::WriteBack);
    rig.shard.quota().set_share(share(0));
    assert_eq!(rig.write(1, 0, LINE, 7), WriteOutcome::Started);
    rig.complete_all();
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.writes_back, counters.writes_through_dirty_limit), (0, 1));
    assert_eq!((dirty_lines(&rig), rig.disk[0]), (0, 7));
    let mut ranges = PinnedRanges::default();
    ranges.add(forebay_types::ByteRange::new(100 * LINE, GRANULE_BYTES));
    rig.shard.pinned().set(VOLUME, &Arc::new(ranges), 16);
    let granule = 100 * LINE / GRANULE_BYTES * GRANULE_BYTES;
    let outcome = rig.preload_as(2, granule, GRANULE_BYTES, 0xfff0, PreloadKind::Pinned);
    assert_eq!(outcome, PreloadOutcome::Started);
    rig.complete_all();
    assert_eq!(quota(&mut rig), (0, 0), "beside pinned ranges, too");
}
