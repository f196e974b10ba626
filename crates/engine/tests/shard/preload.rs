//! Preload: reads of absent lines into the pool before a client needs them.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{
    LineKey, Outcome, PreloadKind, PreloadOutcome, ReadOutcome, WriteOutcome, begin_forecast,
    end_former_forecasts,
};
use forebay_types::{GRANULE_BYTES, GRANULE_LINES, IoError, Mode, VolumeId};

#[test]
fn a_preload_reads_the_chosen_lines_and_reports_its_end() {
    let mut rig = Rig::new(64, 80, Mode::WriteThrough);
    // Lines 1, 2 and 20 of the second granule: the gap between the last two is too long to bridge.
    let outcome = rig.preload(1, GRANULE_BYTES, GRANULE_BYTES, 1 << 1 | 1 << 2 | 1 << 20);
    assert_eq!(outcome, PreloadOutcome::Started);
    let ranges: Vec<_> = rig.ios.iter().map(|io| (io.range.offset, io.range.len)).collect();
    let first = GRANULE_BYTES;
    assert_eq!(ranges, [(first + LINE, 2 * LINE), (first + 20 * LINE, LINE)]);
    assert!(rig.ios.iter().all(|io| io.is_background()));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), None, "one of two I/Os has completed");
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Retry(None)));
    let counters = *rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.preloaded_lines, counters.preload_used_lines, counters.waits), (3, 0, 0));
    for _ in 0..2 {
        let values: Vec<_> = (264..272).map(Rig::on_disk).collect();
        assert_eq!(rig.read_to_end(first + LINE, LINE), values);
    }
    let counters = *rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.preload_used_lines, counters.read_miss_lines), (1, 0));
    // A demand read is no background I/O.
    assert_eq!(rig.read(2, 0, LINE).0, ReadOutcome::Waiting);
    assert!(!rig.ios[0].is_background());
    rig.complete_all();
    rig.shard.self_check();
}

#[test]
fn a_read_that_waits_for_a_preload_is_the_first_use_of_its_lines() {
    let mut rig = Rig::new(64, 80, Mode::WriteThrough);
    assert_eq!(rig.preload(1, 0, GRANULE_BYTES, 1 << 1 | 1 << 2), PreloadOutcome::Started);
    assert_eq!(rig.read(2, LINE, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().preload_used_lines, 1);
    rig.read_to_end(LINE, LINE);
    assert_eq!(rig.shard.volume(VOLUME).counters().preload_used_lines, 1);
}

#[test]
fn a_preload_takes_free_slots_only() {
    let mut rig = Rig::new(8, 80, Mode::WriteThrough);
    rig.read_to_end(40 * LINE, 6 * LINE);
    assert_eq!(rig.preload(1, 0, GRANULE_BYTES, u32::MAX), PreloadOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 8);
    assert_eq!(rig.shard.usage().evicted_lines, 0);
    assert_eq!(rig.preload(2, 0, GRANULE_BYTES, u32::MAX), PreloadOutcome::Done);
    assert_eq!(rig.shard.volume(VOLUME).counters().preloaded_lines, 2);
    // One of the two preloaded lines is read, and then all are evicted.
    rig.read_to_end(0, LINE);
    rig.read_to_end(50 * LINE, 8 * LINE);
    assert_eq!(rig.shard.slots().warm().preloaded_in_vain(VOLUME), 1);
    assert_eq!(rig.shard.volume(VOLUME).counters().preload_used_lines, 1);
    rig.shard.remove_volume(VOLUME);
    assert_eq!(rig.shard.slots().warm().preloaded_in_vain(VOLUME), 0);
    assert_eq!(rig.shard.slots().warm().preloaded_in_vain(VolumeId(9)), 0);
}

#[test]
fn a_preload_for_a_forecast_evicts_clean_lines_and_reports_their_first_use() {
    let mut rig = Rig::new(8, 80, Mode::WriteBack);
    rig.read_to_end(40 * LINE, 6 * LINE);
    assert_eq!(rig.write(1, 70 * LINE, 2 * LINE, 7), WriteOutcome::Done);
    let forecast = PreloadKind::Forecast;
    let outcome = rig.preload_as(2, 0, GRANULE_BYTES, u32::MAX, forecast);
    assert_eq!(outcome, PreloadOutcome::Started);
    rig.complete_all();
    // The dirty lines and the lines of the preload itself stay.
    assert_eq!(rig.shard.usage().evicted_lines, 6);
    assert_eq!(rig.shard.volume(VOLUME).counters().preloaded_lines, 6);
    assert_eq!(rig.read_to_end(70 * LINE, LINE), [7; 8]);
    for used in [1, 1, 2] {
        rig.read_to_end((used - 1) * LINE, LINE);
        assert_eq!(rig.preloads_used().len() as u64, used, "each counts once");
    }
    assert_eq!(rig.preloads_used().iter().map(|key| key.line()).collect::<Vec<_>>(), [0, 1]);
    rig.shard.self_check();
}

#[test]
fn a_preload_changes_no_line_in_the_pool() {
    let mut rig = Rig::new(64, 80, Mode::WriteBack);
    assert_eq!(rig.write(1, LINE, LINE, 71), WriteOutcome::Done);
    // One sector of line 3 only.
    assert_eq!(rig.write(2, 3 * LINE, 512, 73), WriteOutcome::Done);
    // Line 5 is being filled for a client.
    assert_eq!(rig.read(3, 5 * LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.preload(4, 0, GRANULE_BYTES, 0xff), PreloadOutcome::Started);
    assert_eq!(rig.shard.volume(VOLUME).counters().preloaded_lines, 5);
    rig.complete_all();
    assert_eq!(rig.read_to_end(LINE, LINE), [71; 8]);
    assert_eq!(rig.read_to_end(3 * LINE, 512), [73]);
    assert_eq!(rig.flush_to_end(5), Ok(()));
    assert_eq!(rig.disk[8..16], [71; 8]);
    assert_eq!(rig.disk[24..26], [73, Rig::on_disk(25)]);
    rig.shard.self_check();
}

#[test]
fn a_write_to_a_line_being_preloaded_follows_the_preload() {
    let mut rig = Rig::new(64, 80, Mode::WriteBack);
    assert_eq!(rig.preload(1, 0, GRANULE_BYTES, 0xf), PreloadOutcome::Started);
    assert_eq!(rig.write(2, LINE, 1024, 9), WriteOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.take_outcome(1), Some(Outcome::Retry(None)));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(2, LINE, 1024, 9), WriteOutcome::Done);
    let mut expected: Vec<_> = (8..16).map(Rig::on_disk).collect();
    expected[..2].fill(9);
    assert_eq!(rig.read_to_end(LINE, LINE), expected);
    rig.shard.self_check();
}

#[test]
fn a_failed_preload_leaves_no_line_and_fails_no_read() {
    let mut rig = Rig::new(64, 80, Mode::WriteThrough);
    assert_eq!(rig.preload(1, 0, GRANULE_BYTES, 0xf), PreloadOutcome::Started);
    assert_eq!(rig.read(2, LINE, LINE).0, ReadOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Retry(Some(IoError::Io))));
    let Some(Outcome::Retry(error)) = rig.take_outcome(2) else { panic!("not retried") };
    assert_eq!(rig.read_again(2, LINE, LINE, attempt_after(error)).0, ReadOutcome::Started);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 0);
}

#[test]
fn values_are_listed_for_lines_with_data_a_few_slots_at_a_time() {
    let mut rig = Rig::new(16, 80, Mode::WriteBack);
    rig.read_to_end(0, 5 * LINE);
    assert_eq!(rig.write(1, GRANULE_LINES * LINE, 512, 9), WriteOutcome::Done);
    // Lines without data yet.
    assert_eq!(rig.read(2, 70 * LINE, 2 * LINE).0, ReadOutcome::Waiting);
    // A detached slot: the line has moved to another one.
    let (_, held) = rig.read(3, 0, LINE);
    assert_eq!(rig.write(4, 0, LINE, 7), WriteOutcome::Done);
    let (mut lines, mut next, mut calls) = (Vec::new(), Some(0), 0);
    while let Some(first) = next {
        next = rig.shard.slots().warm().values(first, 2, |key: LineKey, value| {
            assert_eq!(value, 1, "the value of this policy");
            lines.push(key.line());
        });
        calls += 1;
    }
    lines.sort_unstable();
    assert_eq!(lines, [0, 1, 2, 3, 4, 32]);
    assert_eq!(calls, 5, "nine slots are in use");
    rig.release(&held);
    rig.complete_all();
}

/// Regression: when the forecast ended, such lines were evicted first, as if they had never been
/// hot.
#[test]
fn hot_lines_that_a_forecast_names_again_stay_hot() {
    let mut rig = Rig::with_weir(64, 256, Mode::WriteThrough);
    let preload = |rig: &mut Rig, mask, kind| {
        let outcome = rig.preload_as(1, 0, GRANULE_BYTES, mask, kind);
        rig.complete_all();
        rig.take_outcome(1);
        outcome
    };
    assert_eq!(preload(&mut rig, 0xff, PreloadKind::Hot), PreloadOutcome::Started);
    begin_forecast(&mut rig.shard);
    assert_eq!(preload(&mut rig, 0xff, PreloadKind::Forecast), PreloadOutcome::Done);
    assert_eq!(rig.shard.slots().warm().forecast_lines(VOLUME), (0, 0));
    begin_forecast(&mut rig.shard);
    assert!(!end_former_forecasts(&mut rig.shard, 100));
    for line in 64..64 + 100 {
        rig.read_to_end(line * LINE, LINE);
    }
    let misses = rig.shard.volume(VOLUME).counters().read_miss_lines;
    rig.read_to_end(0, 8 * LINE);
    assert_eq!(rig.shard.volume(VOLUME).counters().read_miss_lines, misses);
}

/// Regression: uses of lines of the previous forecast counted for the current one.
#[test]
fn the_use_of_a_line_counts_for_its_own_forecast() {
    let mut rig = Rig::with_weir(64, 256, Mode::WriteThrough);
    let forecast = |rig: &mut Rig, mask| {
        rig.preload_as(1, 0, GRANULE_BYTES, mask, PreloadKind::Forecast);
        rig.complete_all();
        rig.take_outcome(1);
    };
    begin_forecast(&mut rig.shard);
    forecast(&mut rig, 0xff);
    rig.read_to_end(0, LINE);
    let counts = |rig: &Rig| {
        let (lines, used) = rig.shard.slots().warm().forecast_lines(VOLUME);
        (lines, used, rig.shard.volume(VOLUME).counters().preload_used_lines)
    };
    assert_eq!(counts(&rig), (8, 1, 1));
    begin_forecast(&mut rig.shard);
    // Four new lines, and two of the earlier forecast, of which the first was used.
    forecast(&mut rig, 0xf03);
    assert_eq!(counts(&rig), (13, 1, 1));
    rig.read_to_end(2 * LINE, LINE);
    assert_eq!(counts(&rig), (13, 1, 2), "of the forecast before");
    end_former_forecasts(&mut rig.shard, 100);
    rig.read_to_end(3 * LINE, LINE);
    assert_eq!(counts(&rig), (13, 1, 3), "of the forecast before");
    rig.read_to_end(LINE, LINE);
    rig.read_to_end(8 * LINE, LINE);
    assert_eq!(counts(&rig), (13, 3, 5));
    rig.shard.self_check();
}
