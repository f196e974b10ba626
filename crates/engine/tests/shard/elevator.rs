//! Two shards of one volume that share an elevator.

use crate::rig::{LINE, Rig, VOLUME};
use forebay_engine::{Elevator, IoVerb, Outcome, ReadOutcome, ShardConfig, WriteOutcome};
use forebay_types::{IoError, Mode, Stripes, VolumeId};
use std::sync::Arc;

/// Two shards of one volume. Each may have 8 dirty lines, and has a backlog from the fifth on.
fn pair() -> [Rig; 2] {
    let elevator = Elevator::new(2, 0, false);
    [0, 1].map(|number| {
        let config = ShardConfig {
            dirty_lines_max: 8,
            dirty_lines_background: 4,
            destage_operations_all: 4,
            ..ShardConfig::for_slots(32)
        };
        let mut rig = Rig::with(32, 256, Mode::WriteBack, config);
        rig.shard.volume_mut(VOLUME).set_elevator(Arc::clone(&elevator), number);
        rig
    })
}

/// Makes lines dirty. The tests take every other line, so that each is an I/O of its own.
fn dirty(rig: &mut Rig, lines: impl IntoIterator<Item = u64>) {
    for line in lines {
        assert_eq!(rig.write(line, line * LINE, LINE, line), WriteOutcome::Done);
    }
}

/// Delivers wakes like a driver until there are none. Returns their number.
fn wake_shards(rigs: &mut [Rig; 2]) -> usize {
    let mut count = 0;
    while let Some(next) = rigs.iter_mut().find_map(|rig| rig.wakes.pop()) {
        rigs[next].wake();
        count += 1;
        assert!(count < 100, "wakes never end");
    }
    count
}

/// Starts the elevator, by throttling a writer of the first shard.
fn run_elevator(rigs: &mut [Rig; 2]) {
    assert_eq!(rigs[0].write(900, 200 * LINE, LINE, 1), WriteOutcome::Waiting);
    wake_shards(rigs);
    assert_eq!(lines_in_flight(rigs)[0].len(), 4);
}

/// Two shards: the elevator is destaging the first half of the first shard's lines, and in the
/// second shard, whose dirty lines are `lines`, a writer is throttled.
fn throttled(lines: impl IntoIterator<Item = u64>) -> [Rig; 2] {
    let mut rigs = pair();
    dirty(&mut rigs[0], (0..8).map(|line| 2 * line));
    dirty(&mut rigs[1], lines);
    rigs[0].tick(50);
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs), [vec![0, 2, 4, 6], vec![]]);
    rigs[1].now_ms = 60;
    assert_eq!(rigs[1].write(1, 200 * LINE, LINE, 1), WriteOutcome::Waiting);
    rigs
}

/// The lines that each shard is destaging.
fn lines_in_flight(rigs: &[Rig; 2]) -> [Vec<u64>; 2] {
    [0, 1].map(|at: usize| rigs[at].ios.iter().map(|io| io.range.offset / LINE).collect())
}

#[test]
fn shards_destage_in_one_ascending_order() {
    let mut rigs = pair();
    dirty(&mut rigs[0], [10, 12, 14, 50, 52, 54, 56]);
    dirty(&mut rigs[1], [20, 22, 24, 26, 60, 62]);
    rigs[0].tick(50);
    wake_shards(&mut rigs);
    assert_eq!(
        lines_in_flight(&rigs),
        [vec![10, 12, 14], vec![20]],
        "four operations of all shards"
    );
    // Lines that become dirty ahead of the elevator are destaged in this round, those behind it in
    // the next.
    dirty(&mut rigs[1], [2, 28]);
    rigs[1].tick(100);
    for at in [0, 0] {
        rigs[0].complete(at, Ok(()));
        wake_shards(&mut rigs);
    }
    assert_eq!(lines_in_flight(&rigs), [vec![14], vec![20, 22, 24]]);
    rigs[0].complete(0, Ok(()));
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs), [vec![], vec![20, 22, 24, 26]]);
}

#[test]
fn the_elevator_serves_shards_below_the_limit_while_another_is_above() {
    let mut rigs = pair();
    dirty(&mut rigs[0], [100]);
    dirty(&mut rigs[1], [90, 102, 104, 106, 108]);
    rigs[1].tick(50);
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs), [vec![], vec![90]], "the backlog is in flight");
    dirty(&mut rigs[1], [110, 112, 114]);
    rigs[1].tick(100);
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs), [vec![100], vec![90, 102, 104]]);
}

#[test]
fn a_writer_throttled_far_from_the_elevator_waits_a_quarter_of_a_second() {
    let mut rigs = throttled((50..58).map(|line| 2 * line));
    wake_shards(&mut rigs);
    rigs[1].tick(300);
    assert_eq!(lines_in_flight(&rigs)[1], []);
    rigs[1].tick(350);
    assert_eq!(lines_in_flight(&rigs)[1].len(), 1, "out of order");
    // The elevator is paused until that destage completes.
    for left in (0..4).rev() {
        rigs[0].complete(0, Ok(()));
        wake_shards(&mut rigs);
        assert_eq!(lines_in_flight(&rigs)[0].len(), left);
    }
    rigs[1].now_ms = 360;
    rigs[1].complete(0, Ok(()));
    assert_eq!(rigs[1].take_outcome(1), Some(Outcome::Retry(None)));
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs).iter().map(Vec::len).sum::<usize>(), 4);
}

#[test]
fn the_elevator_is_notified_of_lines_dirtied_before_the_published_stop() {
    let mut rigs = pair();
    dirty(&mut rigs[0], (0..8).map(|line| 40 + 2 * line));
    run_elevator(&mut rigs);
    dirty(&mut rigs[1], [80]);
    assert_eq!(rigs[1].wakes, [1], "the shard had no stop");
    wake_shards(&mut rigs);
    dirty(&mut rigs[1], [90, 30]);
    assert_eq!(rigs[1].wakes, [], "one line is beyond the published stop, one behind the elevator");
    dirty(&mut rigs[1], [50]);
    assert_eq!(rigs[1].wakes, [1]);
    wake_shards(&mut rigs);
    dirty(&mut rigs[1], [47]);
    wake_shards(&mut rigs);
    rigs[0].complete(0, Ok(()));
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs), [vec![42, 44, 46], vec![47]]);
}

#[test]
fn aging_is_deferred_while_the_elevator_runs() {
    let mut rigs = pair();
    dirty(&mut rigs[1], [80, 90]);
    dirty(&mut rigs[0], (0..8).map(|line| 2 * line));
    run_elevator(&mut rigs);
    for now_ms in [5_000, 10_000, 15_000, 20_000, 40_000] {
        rigs[1].tick(now_ms);
        assert_eq!(lines_in_flight(&rigs)[1], [], "at {now_ms} ms");
    }
    rigs[1].tick(45_000);
    assert_eq!(lines_in_flight(&rigs)[1], [80, 90]);
}

/// Whether a flush fails with the disk's error if every I/O fails. The parameters are the number of
/// dirty stripes, the limits of operations of the elevator and of flushes, and the order of
/// completions.
fn flush_fails_with_all_ios(stripes: u64, ops: u32, ops_flush: u32, order: usize) -> bool {
    let config = ShardConfig {
        dirty_lines_max: 4 * stripes as usize,
        dirty_lines_background: 1,
        destage_operations_max: ops_flush,
        destage_operations_all: ops,
        ..ShardConfig::for_slots(64)
    };
    let mut rig = Rig::with(64, 256, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(4 * LINE, 0));
    (0..stripes).for_each(|stripe| {
        assert_eq!(rig.write(stripe, stripe * 8 * LINE, 4 * LINE, 1), WriteOutcome::Done);
    });
    rig.write(90, 200 * LINE, LINE, 1);
    rig.flush(91);
    for step in 1..500 {
        rig.now_ms = step;
        if rig.ios.is_empty() {
            rig.tick(step);
        }
        if let Some(left) = rig.ios.len().checked_sub(1) {
            rig.complete([0, left, left / 2, step as usize % (left + 1)][order], Err(IoError::Io));
        }
        if let Some(outcome) = rig.take_outcome(91) {
            return outcome == Outcome::Done(Err(IoError::Io));
        }
    }
    false
}

#[test]
fn a_flush_completes_beside_the_elevator_if_every_io_fails() {
    for case in 0..7 * 4 * 4 * 4 {
        let (stripes, ops) = (2 + case % 7, 1 + case / 7 % 4);
        let (ops_flush, order) = (1 + case / 28 % 4, case / 112);
        let ends = flush_fails_with_all_ios(stripes, ops as u32, ops_flush as u32, order as usize);
        assert!(ends, "{stripes} stripes, {ops} and {ops_flush} operations, order {order}");
    }
}

#[test]
fn a_throttled_write_goes_through_if_the_disk_fails() {
    let mut rigs = throttled((50..58).map(|line| 2 * line));
    rigs[1].tick(350);
    rigs[1].now_ms = 360;
    rigs[1].complete(0, Err(IoError::Io));
    assert_eq!(rigs[1].take_outcome(1), Some(Outcome::Retry(None)), "the volume backs off");
}

#[test]
fn a_throttled_write_is_admitted_after_an_erase_of_the_dirty_lines() {
    let mut rigs = throttled(100..108);
    wake_shards(&mut rigs);
    assert_eq!(lines_in_flight(&rigs)[1], []);
    // The erase cleans the dirty lines.
    rigs[1].zero(2, 100 * LINE, 8 * LINE);
    rigs[1].complete(0, Ok(()));
    assert_eq!(rigs[1].shard.volume(VOLUME).dirty_lines(), 0);
    assert!(rigs[1].shard.needs_tick());
    rigs[1].tick(350);
    assert_eq!(rigs[1].take_outcome(1), Some(Outcome::Retry(None)));
    assert!(!rigs[1].shard.needs_tick());
}

#[test]
fn a_wake_for_a_removed_volume_is_ignored() {
    let [mut rig, _] = pair();
    rig.shard.wake(VolumeId(7), 0, &mut forebay_engine::Outbox::default());
    rig.shard.remove_volume(VOLUME);
    rig.shard.wake(VOLUME, 0, &mut forebay_engine::Outbox::default());
    rig.shard.self_check();
}

/// Regression: a writer counted as throttled even if no destage made progress, and the write then
/// went through. From then on, destages were urgent although no writer waited for them.
#[test]
fn destages_are_not_urgent_after_a_write_that_did_not_wait() {
    let config =
        ShardConfig { dirty_lines_max: 8, dirty_lines_background: 4, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 256, Mode::WriteBack, config);
    dirty(&mut rig, (0..8).map(|line| 2 * line));
    rig.tick(50);
    assert!(!rig.ios.is_empty(), "above the background limit");
    while !rig.ios.is_empty() {
        rig.complete(0, Err(IoError::Io));
    }
    // No destage is due soon, so the write goes through.
    assert_eq!(rig.write(1, 200 * LINE, LINE, 1), WriteOutcome::Started);
    rig.complete(0, Ok(()));
    assert_eq!(rig.shard.volume(VOLUME).counters().throttled_writes, 0);
    rig.tick(4_000);
    assert!(!rig.ios.is_empty(), "it is tried again");
    rig.complete_all();
    let counters = *rig.shard.volume(VOLUME).counters();
    assert!(counters.destages_background > 0, "{counters:?}");
    assert_eq!(counters.destages_urgent, 0, "{counters:?}");
}

#[test]
fn dirty_data_is_no_older_than_the_last_moment_without_any() {
    let mut rig = Rig::with(32, 256, Mode::WriteBack, ShardConfig::for_slots(32));
    let since = |rig: &Rig| rig.shard.volume(VOLUME).dirty_since_ms();
    rig.tick(1000);
    assert_eq!(since(&rig), None);
    dirty(&mut rig, [0]);
    rig.tick(1050);
    assert_eq!(since(&rig), Some(50), "at most a second before the tick that finds it");
    dirty(&mut rig, [4]);
    rig.tick(2050);
    assert_eq!(since(&rig), Some(50), "the first line is still dirty");
    assert_eq!(rig.flush(7), None);
    rig.complete_all();
    assert_eq!((rig.shard.volume(VOLUME).dirty_lines(), since(&rig)), (0, None));
    rig.tick(3000);
    dirty(&mut rig, [8]);
    rig.tick(3100);
    assert_eq!(since(&rig), Some(2100));
}

#[test]
fn the_age_of_dirty_data_is_bounded_while_a_volume_is_written_steadily() {
    let mut rig = Rig::with(2048, 4096, Mode::WriteBack, ShardConfig::for_slots(2048));
    let age_ms = ShardConfig::DIRTY_AGE_MS;
    for step in 0..2_000 {
        let now_ms = 1_000 + step * 50;
        dirty(&mut rig, [step * 8 % 4096]);
        rig.tick(now_ms);
        // The disk takes what it gets.
        rig.complete_all();
        let volume = rig.shard.volume(VOLUME);
        let since_ms = volume.dirty_since_ms().expect("there is dirty data");
        assert!(volume.dirty_lines() > 0 && since_ms + 3 * age_ms >= now_ms, "{since_ms} {now_ms}");
    }
    let counters = rig.shard.volume(VOLUME).counters();
    let mean_ms = counters.dirty_line_ms / counters.cleaned_lines;
    assert!((age_ms..2 * age_ms).contains(&mean_ms), "{mean_ms}");
}

/// A backlog keeps the passes by age from running: the disk takes as many lines as are written.
#[test]
fn the_age_of_dirty_data_is_bounded_beside_a_backlog() {
    let config = ShardConfig {
        dirty_lines_max: 512,
        dirty_lines_background: 16,
        ..ShardConfig::for_slots(2048)
    };
    let mut rig = Rig::with(2048, 4096, Mode::WriteBack, config);
    let mut written = 0;
    let mut write = |rig: &mut Rig| {
        written += 1;
        dirty(rig, [written * 1237 % 512 * 8]);
    };
    (0..64).for_each(|_| write(&mut rig));
    for step in 0..4_000 {
        let now_ms = 1_000 + step * 50;
        write(&mut rig);
        rig.tick(now_ms);
        if rig.shard.volume(VOLUME).dirty_lines() > 64 && !rig.ios.is_empty() {
            rig.complete(0, Ok(()));
        }
        let volume = rig.shard.volume(VOLUME);
        assert!(volume.dirty_lines() > 16, "there is a backlog");
        let since_ms = volume.dirty_since_ms().expect("there is dirty data");
        // Two steps of the age, and the time that the elevator takes for all lines.
        let bound_ms = 65_000;
        assert!(since_ms + bound_ms >= now_ms, "{since_ms} at {now_ms}");
    }
}

/// While clients read, the disk gets no more at the dirty limit than the throttled writers would
/// have in flight without a cache: a read must not wait for a megabyte of destages.
#[test]
fn destages_at_the_dirty_limit_take_the_place_of_the_writes_that_wait() {
    let config = ShardConfig {
        dirty_lines_max: 96,
        dirty_lines_background: 48,
        ..ShardConfig::for_slots(256)
    };
    let mut rig = Rig::with(256, 1024, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_gather_below(16 * LINE);
    assert_eq!(rig.write(1, 0, 96 * LINE, 1), WriteOutcome::Done);
    assert_eq!(rig.read(9, 1000 * LINE, LINE).0, ReadOutcome::Waiting);
    let writes = |rig: &Rig| {
        let writes = rig.ios.iter().filter(|io| io.verb != IoVerb::Read);
        writes.map(|io| io.range.len / LINE).collect::<Vec<_>>()
    };
    let in_flight = |rig: &Rig| writes(rig).iter().sum::<u64>();
    assert_eq!(rig.write(2, 512 * LINE, 4 * LINE, 2), WriteOutcome::Waiting);
    assert_eq!(in_flight(&rig), 2, "an eighth of the threshold of gathering");
    assert_eq!(rig.write(3, 516 * LINE, 4 * LINE, 3), WriteOutcome::Waiting);
    rig.now_ms = 50;
    rig.shard.volume_mut(VOLUME).set_reading(true);
    rig.tick(50);
    assert_eq!(writes(&rig), [2, 4], "both writers have one in flight");
    rig.now_ms = 100;
    rig.shard.volume_mut(VOLUME).set_reading(false);
    rig.tick(100);
    assert!(in_flight(&rig) > 32, "without reads, the disk gets all it can take");
}

/// A disk with one arm gets no destage between reads: a slice, then the reads have their turn.
#[test]
fn on_a_disk_with_one_arm_reads_and_destages_take_turns() {
    let config = ShardConfig {
        dirty_lines_max: 96,
        dirty_lines_background: 48,
        ..ShardConfig::for_slots(256)
    };
    let mut rig = Rig::with(256, 1024, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_elevator(Elevator::new(1, 0, true), 0);
    rig.shard.volume_mut(VOLUME).set_gather_below(16 * LINE);
    assert_eq!(rig.write(1, 0, 96 * LINE, 1), WriteOutcome::Done);
    let reads = [1000, 1002, 1004].map(|line| rig.read(line, line * LINE, LINE).0);
    assert_eq!(reads, [ReadOutcome::Waiting; 3]);
    assert_eq!(rig.write(2, 512 * LINE, 4 * LINE, 2), WriteOutcome::Waiting);
    assert_eq!(rig.ios.len(), 4, "one slice");
    let slice = rig.ios.iter().position(|io| io.verb != IoVerb::Read).unwrap();
    rig.now_ms = 20;
    rig.complete(slice, Ok(()));
    rig.tick(20);
    assert!(rig.ios.iter().all(|io| io.verb == IoVerb::Read), "it is the turn of the reads");
    (0..3).for_each(|_| rig.complete(0, Ok(())));
    assert!(rig.ios.iter().any(|io| io.verb != IoVerb::Read), "each reader had its turn");
}
