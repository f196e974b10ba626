//! The guaranteed and the largest shares of volumes in a shard.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{
    Attempt, Outcome, PreloadKind, PreloadOutcome, ReadOutcome, ShardConfig, WriteOutcome,
    set_dirty_lines_max, set_pool_share,
};
use forebay_types::{ByteRange, GRANULE_BYTES, Mode, PinnedRanges, PoolShare, VolumeId};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// A second volume. Its lines in these tests are from [`FAR`] on.
const OTHER: VolumeId = VolumeId(1);
const FAR: u64 = 1_000;
const THIRD: VolumeId = VolumeId(2);

fn rig_of(mut rig: Rig) -> Rig {
    for volume in [OTHER, THIRD] {
        rig.shard.add_volume(volume, 4_000 * LINE, Mode::WriteBack);
    }
    rig
}

/// A shard of some slots, with the policy of the server.
fn rig(slots: usize) -> Rig {
    rig_of(Rig::with_weir(slots, 4_000, Mode::WriteBack))
}

/// The same with an LRU policy, which a scan flushes.
fn lru_rig(slots: usize) -> Rig {
    rig_of(Rig::new(slots, 4_000, Mode::WriteBack))
}

/// The same with slabs of `slab_lines` lines.
fn rig_with_slabs(slots: usize, slab_lines: usize) -> Rig {
    let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
    rig_of(Rig::with(slots, 4_000, Mode::WriteBack, config))
}

fn share(rig: &mut Rig, volume: VolumeId, min: u8, max: u8) {
    set_pool_share(&mut rig.shard, volume, PoolShare::of_percent(min, max).unwrap());
    rig.shard.self_check();
}

fn lines(rig: &Rig, volume: VolumeId) -> u64 {
    rig.shard.slots().resident_lines(volume)
}

fn dirty(rig: &Rig, volume: VolumeId) -> usize {
    rig.shard.volume(volume).dirty_lines()
}

/// Reads lines of a volume one by one.
fn scan(rig: &mut Rig, volume: VolumeId, lines: Range<u64>) {
    rig.volume = volume;
    lines.for_each(|line| drop(rig.read_to_end(line * LINE, LINE)));
}

/// The lines of a volume that a read finds in the pool.
fn hits(rig: &mut Rig, volume: VolumeId, lines: Range<u64>) -> u64 {
    rig.volume = volume;
    let mut hits = 0;
    for line in lines {
        let (outcome, segments) = rig.read(1, line * LINE, LINE);
        hits += u64::from(outcome == ReadOutcome::Ready);
        rig.release(&segments);
        rig.complete_all();
    }
    hits
}

/// Writes lines until one is not acknowledged from memory. Every other line, so that each is an I/O
/// of its own. Returns the number of acknowledged writes, and the outcome of the last.
fn fill(rig: &mut Rig, volume: VolumeId, first: u64) -> (u64, WriteOutcome) {
    rig.volume = volume;
    for count in 0.. {
        let outcome = rig.write(10_000 + first + count, (first + 2 * count) * LINE, LINE, count);
        if outcome != WriteOutcome::Done {
            return (count, outcome);
        }
    }
    unreachable!("the pool takes a limited number of writes");
}

#[test]
fn a_scan_takes_no_guaranteed_lines() {
    for mut rig in [rig(64), lru_rig(64)] {
        share(&mut rig, VOLUME, 25, 100);
        scan(&mut rig, VOLUME, 0..16);
        for _ in 0..3 {
            scan(&mut rig, OTHER, FAR..FAR + 300);
        }
        assert_eq!((lines(&rig, VOLUME), lines(&rig, OTHER)), (16, 48));
        assert_eq!(hits(&mut rig, VOLUME, 0..16), 16);
    }
    let mut rig = lru_rig(64);
    scan(&mut rig, VOLUME, 0..16);
    scan(&mut rig, OTHER, FAR..FAR + 300);
    assert_eq!(lines(&rig, VOLUME), 0, "without the share, the same scan takes them all");
}

#[test]
fn beyond_its_guaranteed_lines_a_volume_loses_lines_to_others() {
    let mut rig = lru_rig(64);
    share(&mut rig, VOLUME, 25, 100);
    scan(&mut rig, VOLUME, 0..64);
    assert_eq!(lines(&rig, VOLUME), 64);
    scan(&mut rig, OTHER, FAR..FAR + 500);
    assert_eq!((lines(&rig, VOLUME), lines(&rig, OTHER)), (16, 48));
    // It may still take lines of the other one.
    scan(&mut rig, VOLUME, 100..400);
    assert!(lines(&rig, VOLUME) > 16);
}

#[test]
fn a_volume_at_its_largest_share_replaces_its_own_lines() {
    let mut rig = rig(64);
    scan(&mut rig, OTHER, FAR..FAR + 32);
    share(&mut rig, VOLUME, 0, 25);
    scan(&mut rig, VOLUME, 0..200);
    assert_eq!((lines(&rig, VOLUME), lines(&rig, OTHER)), (16, 32), "and 16 slots are unused");
    assert_eq!(hits(&mut rig, OTHER, FAR..FAR + 32), 32);
    assert_eq!(hits(&mut rig, VOLUME, 199..200), 1, "the newest line");
    // A read of more lines than the share has is served past the pool.
    rig.volume = VOLUME;
    let long = ByteRange::new(0, 40 * LINE);
    let (outcome, _) =
        rig.read_again(5, long.offset, long.len, Attempt { count: 9, ..attempt_after(None) });
    assert_eq!(outcome, ReadOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.take_outcome(5), Some(Outcome::Done(Ok(()))));
}

/// With the policy of the server, lines with hits stay while others of the volume are replaced.
#[test]
fn at_its_largest_share_a_volume_keeps_the_lines_that_it_reads_often() {
    let mut rig = rig(256);
    share(&mut rig, VOLUME, 0, 25);
    scan(&mut rig, VOLUME, 0..64);
    for round in 0..10 {
        // All in the pool, beside a scan of half as many lines.
        hits(&mut rig, VOLUME, 0..32);
        hits(&mut rig, VOLUME, 0..32);
        scan(&mut rig, VOLUME, 1_000 + 16 * round..1_016 + 16 * round);
    }
    assert_eq!(lines(&rig, VOLUME), 64);
    let kept = hits(&mut rig, VOLUME, 0..32);
    assert!(kept >= 28, "{kept} of 32 lines that are read twice per round");
}

#[test]
fn a_writer_at_its_largest_share_waits_for_its_own_writeback() {
    let mut rig = rig(64);
    share(&mut rig, VOLUME, 0, 25);
    // Two thirds of 16 lines.
    assert_eq!(fill(&mut rig, VOLUME, 0), (10, WriteOutcome::Waiting));
    assert!(!rig.ios.is_empty(), "its dirty lines are destaged at once");
    rig.volume = OTHER;
    for line in 0..10 {
        let outcome = rig.write(500 + line, (FAR + 2 * line) * LINE, LINE, 1);
        assert_eq!(outcome, WriteOutcome::Done, "no other volume waits");
    }
    rig.volume = VOLUME;
    while rig.take_outcome(10_010).is_none() {
        rig.complete(0, Ok(()));
    }
    assert_eq!(rig.retry(10_010, 20 * LINE, LINE, 10), WriteOutcome::Done);
    rig.complete_all();
    assert!(dirty(&rig, VOLUME) <= 10 && dirty(&rig, OTHER) == 10);
    for line in 0..11 {
        assert_eq!(rig.read_to_end(2 * line * LINE, LINE), [line; 8]);
    }
    assert_eq!(rig.flush_to_end(900), Ok(()));
}

#[test]
fn writeback_begins_before_a_volume_reaches_its_largest_share() {
    let mut rig = rig(64);
    share(&mut rig, VOLUME, 0, 25);
    rig.volume = VOLUME;
    for line in 0..9 {
        assert_eq!(rig.write(line, 2 * line * LINE, LINE, line), WriteOutcome::Done);
    }
    rig.tick(50);
    assert!(!rig.ios.is_empty(), "9 of 16 lines are dirty");
    rig.complete_all();
    assert!(dirty(&rig, VOLUME) <= 8);
}

#[test]
fn a_guaranteed_share_takes_writes_while_others_are_at_the_dirty_limit() {
    let mut rig = rig(64);
    share(&mut rig, VOLUME, 50, 100);
    // Half of the dirty limit of 43 lines belongs to the first volume.
    assert_eq!(fill(&mut rig, OTHER, FAR), (22, WriteOutcome::Waiting));
    assert_eq!(fill(&mut rig, VOLUME, 0), (21, WriteOutcome::Waiting));
    rig.complete_all();
    let (one, other) = (dirty(&rig, VOLUME), dirty(&rig, OTHER));
    assert!(one <= 21 && other <= 22, "{one} and {other} are dirty");
    // Beyond its own part, it shares the rest with the others.
    for (volume, part) in [(OTHER, 901), (VOLUME, 902)] {
        rig.volume = volume;
        rig.flush(part);
        rig.complete_all();
    }
    assert_eq!(fill(&mut rig, VOLUME, 200), (43, WriteOutcome::Waiting));
}

#[test]
fn staged_writes_keep_to_the_largest_share() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let mut rig = rig(64);
        rig.shard.volume_mut(VOLUME).set_mode(mode);
        share(&mut rig, VOLUME, 0, 25);
        scan(&mut rig, VOLUME, 0..16);
        let slots = rig.stage(100 * LINE, 8 * LINE, 7).unwrap();
        let outcome = rig.write_staged(1, 100 * LINE, 8 * LINE, &slots, Attempt::default());
        let is_back = mode == Mode::WriteBack;
        assert_eq!(outcome, if is_back { WriteOutcome::Done } else { WriteOutcome::Started });
        assert_eq!(lines(&rig, VOLUME), 16);
        rig.complete_all();
        assert_eq!(rig.read_to_end(100 * LINE, 8 * LINE), [7; 64]);
        // More lines than the share has.
        let slots = rig.stage(200 * LINE, 20 * LINE, 8).unwrap();
        let outcome = rig.write_staged(2, 200 * LINE, 20 * LINE, &slots, Attempt::default());
        assert_eq!(outcome, WriteOutcome::Started);
        rig.complete_all();
        assert!(rig.disk[200 * 8..220 * 8].iter().all(|&sector| sector == 8));
        assert!(lines(&rig, VOLUME) <= 16);
    }
}

#[test]
fn a_lower_share_evicts_clean_lines_at_ticks_and_dirty_ones_after_their_destage() {
    let mut rig = rig(64);
    scan(&mut rig, VOLUME, 0..32);
    rig.volume = VOLUME;
    for line in 0..24 {
        assert_eq!(rig.write(line, (100 + 2 * line) * LINE, LINE, line), WriteOutcome::Done);
    }
    assert_eq!(lines(&rig, VOLUME), 56);
    share(&mut rig, VOLUME, 0, 25);
    assert!(rig.shard.needs_tick());
    rig.tick(50);
    assert_eq!((lines(&rig, VOLUME), dirty(&rig, VOLUME)), (24, 24), "the clean ones have left");
    // It gets no more lines meanwhile.
    scan(&mut rig, OTHER, FAR..FAR + 4);
    rig.volume = VOLUME;
    let before = lines(&rig, VOLUME);
    let (outcome, _) = rig.read(7, 500 * LINE, LINE);
    assert!(outcome != ReadOutcome::Ready && lines(&rig, VOLUME) <= before);
    let mut now_ms = 100;
    while dirty(&rig, VOLUME) > 0 || rig.shard.needs_tick() {
        rig.complete_all();
        rig.tick(now_ms);
        now_ms += 50;
        assert!(now_ms < 60_000, "{} lines are left", lines(&rig, VOLUME));
    }
    assert!(lines(&rig, VOLUME) <= 16);
    for line in 0..24 {
        assert_eq!(rig.read_to_end((100 + 2 * line) * LINE, LINE), [line; 8]);
    }
}

#[test]
fn shares_follow_a_shard_that_shrinks_and_grows() {
    let mut rig = rig_with_slabs(64, 4);
    share(&mut rig, VOLUME, 25, 100);
    share(&mut rig, OTHER, 0, 50);
    scan(&mut rig, OTHER, FAR..FAR + 32);
    scan(&mut rig, VOLUME, 0..32);
    assert_eq!((lines(&rig, VOLUME), lines(&rig, OTHER)), (32, 32));
    let (done, _) = rig.resize(32);
    rig.tick(50);
    assert!(done && lines(&rig, VOLUME) >= 8 && lines(&rig, OTHER) <= 16);
    scan(&mut rig, THIRD, 2_000..2_100);
    assert_eq!(lines(&rig, VOLUME), 8, "a quarter of half of the lines");
    assert!(rig.resize(64).0);
    scan(&mut rig, OTHER, FAR..FAR + 200);
    assert_eq!(lines(&rig, OTHER), 32);
    scan(&mut rig, VOLUME, 0..16);
    scan(&mut rig, THIRD, 2_000..2_300);
    assert_eq!(hits(&mut rig, VOLUME, 0..16), 16);
}

/// The guaranteed lines are in the slabs that are emptied: they move to others.
#[test]
fn a_shrink_moves_guaranteed_lines() {
    let mut rig = rig_with_slabs(32, 8);
    scan(&mut rig, OTHER, FAR..FAR + 16);
    share(&mut rig, VOLUME, 50, 100);
    scan(&mut rig, VOLUME, 0..8);
    // Used often, so that the slabs of the other volume are worth more.
    for _ in 0..5 {
        hits(&mut rig, OTHER, FAR..FAR + 16);
    }
    assert!(rig.resize(16).0);
    assert_eq!(lines(&rig, VOLUME), 8);
    assert_eq!(hits(&mut rig, VOLUME, 0..8), 8);
}

#[test]
fn pinned_ranges_take_most_of_a_share_but_not_all() {
    let mut rig = rig(64);
    share(&mut rig, VOLUME, 0, 50);
    let pin = |rig: &mut Rig, volume: VolumeId, first: u64, count: u64| {
        let mut ranges = PinnedRanges::default();
        ranges.add(ByteRange::new(first * LINE, count * LINE));
        rig.shard.pinned().set(volume, &Arc::new(ranges), count);
        rig.volume = volume;
        for line in (first..first + count).step_by(32) {
            let (offset, part) = (line * LINE, 900 + line);
            let outcome =
                rig.preload_as(part, offset, GRANULE_BYTES, u32::MAX, PreloadKind::Pinned);
            assert_eq!(outcome, PreloadOutcome::Started);
            rig.complete_all();
        }
        rig.shard.slots().warm().retained_lines(volume)
    };
    assert_eq!(pin(&mut rig, VOLUME, 0, 32), 20, "five eighths of 32 lines");
    assert!(lines(&rig, VOLUME) <= 32);
    scan(&mut rig, VOLUME, 200..300);
    assert_eq!(lines(&rig, VOLUME), 32, "the rest of the share takes other lines");
    assert_eq!(hits(&mut rig, VOLUME, 0..20), 20);
    // A guaranteed share has its own pinned lines, beside those of other volumes.
    share(&mut rig, VOLUME, 0, 100);
    share(&mut rig, OTHER, 50, 100);
    assert_eq!(pin(&mut rig, OTHER, 1_024, 32), 20, "in its guaranteed share");
    let all = rig.shard.slots().warm().retained_lines(VOLUME);
    assert_eq!(all, 20, "five eighths of the 32 lines that nobody is guaranteed");
}

/// What a test does with one of three volumes.
#[derive(Clone, Debug)]
enum Step {
    Read(u16, u64, u64),
    Write(u16, u64, u64),
    Staged(u16, u64, u64),
    Complete(usize),
    Tick,
    Share(u16, u8, u8),
    Mode(u16, Mode),
    Resize(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..3u16, 0..60u64, 1..6u64);
    let step = prop_oneof![
        4 => place().prop_map(|(volume, line, count)| Step::Read(volume, line, count)),
        4 => place().prop_map(|(volume, line, count)| Step::Write(volume, line, count)),
        1 => place().prop_map(|(volume, line, count)| Step::Staged(volume, line, count)),
        4 => (0..8usize).prop_map(Step::Complete),
        2 => Just(Step::Tick),
        1 => (0..3u16, 0..17u8, 1..=100u8)
            .prop_map(|(volume, min, max)| Step::Share(volume, min.min(max), max)),
        1 => (0..3u16, prop::sample::select(vec![Mode::WriteBack, Mode::WriteThrough]))
            .prop_map(|(volume, mode)| Step::Mode(volume, mode)),
        1 => (8..40usize).prop_map(Step::Resize),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Whatever three volumes do: none takes guaranteed lines of another, and none gets more lines,
    /// or dirty lines, than its largest share unless it had them.
    #[test]
    fn shares_are_kept_by_any_sequence_of_requests(steps in steps()) {
        let mut rig = rig_with_slabs(40, 4);
        let mut shares = [PoolShare::NONE; 3];
        let volumes = [VOLUME, OTHER, THIRD];
        let mut part = 0;
        for step in steps {
            let before = volumes.map(|volume| (lines(&rig, volume), dirty(&rig, volume)));
            let mut actor = None;
            rig.shard.self_check();
            part += 1;
            let at = |volume: u16, line: u64| (FAR * u64::from(volume) + line) * LINE;
            match step {
                Step::Read(volume, line, count) => {
                    actor = Some(volume);
                    rig.volume = VolumeId(volume);
                    let (_, segments) = rig.read(part, at(volume, line), count * LINE);
                    rig.release(&segments);
                }
                Step::Write(volume, line, count) => {
                    actor = Some(volume);
                    rig.volume = VolumeId(volume);
                    rig.write(part, at(volume, line), count * LINE, part);
                }
                Step::Staged(volume, line, count) => {
                    actor = Some(volume);
                    rig.volume = VolumeId(volume);
                    let (offset, len) = (at(volume, line), count * LINE);
                    if let Some(slots) = rig.stage(offset, len, part) {
                        let default = Attempt::default();
                        let outcome = rig.write_staged(part, offset, len, &slots, default);
                        if outcome == WriteOutcome::Waiting {
                            rig.unstage(&slots);
                        }
                    }
                }
                Step::Complete(at) if at < rig.ios.len() => rig.complete(at, Ok(())),
                Step::Complete(_) => {}
                Step::Tick => rig.tick(rig.now_ms + 50),
                Step::Share(volume, min, max) => {
                    share(&mut rig, VolumeId(volume), min, max);
                    shares[usize::from(volume)] = PoolShare::of_percent(min, max).unwrap();
                }
                Step::Mode(volume, mode) => {
                    rig.shard.volume_mut(VolumeId(volume)).set_mode(mode);
                }
                Step::Resize(lines) => drop(rig.resize(lines)),
            }
            let slabs = rig.shard.slots().slabs();
            let usable = slabs.usable().min(slabs.target()) as usize;
            for (at, volume) in volumes.into_iter().enumerate() {
                let ((had, had_dirty), has) = (before[at], lines(&rig, volume));
                let (min, max) = (shares[at].lines_min(usable), shares[at].lines_max(usable));
                let loses = has < had && has < min as u64;
                let is_actor = actor.is_none() || actor == Some(at as u16);
                prop_assert!(!loses || is_actor, "{volume} had {had} of {min} lines, now {has}");
                if let Some(max) = max {
                    prop_assert!(has <= had.max(max as u64), "{volume} has {has} of {max} lines");
                    let (_, dirty_max) = rig.shard.quota().limits_of(volume);
                    let most = had_dirty.max(dirty_max.unwrap());
                    prop_assert!(dirty(&rig, volume) <= most, "of {most} dirty lines");
                }
            }
        }
    }
}

#[test]
fn a_volume_with_a_limit_of_dirty_lines_waits_and_others_do_not() {
    let mut rig = rig(64);
    set_dirty_lines_max(&mut rig.shard, VOLUME, Some(4));
    for line in 0..4 {
        assert_eq!(rig.write(line, line * LINE, LINE, 1), WriteOutcome::Done);
    }
    let fifth = rig.write(5, 5 * LINE, LINE, 1);
    assert!(!matches!(fifth, WriteOutcome::Done), "{fifth:?}");
    assert_eq!(dirty(&rig, VOLUME), 4);
    rig.volume = OTHER;
    for line in 0..8 {
        assert_eq!(rig.write(10 + line, line * LINE, LINE, 1), WriteOutcome::Done);
    }
    rig.volume = VOLUME;
    set_dirty_lines_max(&mut rig.shard, VOLUME, None);
    assert_eq!(rig.write(30, 6 * LINE, LINE, 1), WriteOutcome::Done);
    rig.shard.self_check();
}
