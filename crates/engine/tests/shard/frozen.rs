//! A frozen volume: what is in the pool is used and renewed, and nothing is added except pinned
//! ranges and dirty data.

use crate::lru::Lru;
use crate::patrol::seal_all;
use crate::rig::{LINE, Rig, Table, VOLUME, attempt_after};
use forebay_engine::{
    Attempt, Fate, Outcome, Place, PreloadKind, PreloadOutcome, ReadOutcome, SealVerdict, Shard,
    ShardConfig, Slot, WriteOutcome,
};
use forebay_types::{ByteRange, GRANULE_BYTES, IoError, Mode, PinnedRanges};
use std::sync::Arc;

/// A shard with the first four lines of the disk in the pool, frozen.
fn frozen(mode: Mode) -> Rig {
    let mut rig = Rig::new(64, 1024, mode);
    rig.read_to_end(0, 4 * LINE);
    freeze(&mut rig, true);
    rig
}

fn freeze(rig: &mut Rig, is_frozen: bool) {
    rig.shard.volume_mut(VOLUME).set_frozen(is_frozen);
}

/// The lines in the pool, in order.
fn resident(rig: &Rig) -> Vec<u64> {
    let key = |line| forebay_engine::LineKey::new(VOLUME, line);
    (0..1024).filter(|&line| rig.shard.slots().find_valid(key(line), 0).is_some()).collect()
}

fn pin(rig: &mut Rig, range: ByteRange) {
    let mut pins = PinnedRanges::default();
    pins.add(range);
    let lines = pins.lines();
    rig.shard.pinned().set(VOLUME, &Arc::new(pins), lines);
    assert_eq!(rig.shard.pinned().follow(VOLUME, 0, Slot::MAX), None);
}

#[test]
fn reads_hit_what_is_in_the_pool_and_admit_nothing_else() {
    let mut rig = frozen(Mode::WriteThrough);
    let before = *rig.shard.volume(VOLUME).counters();
    // A scan that is longer than the pool.
    for line in 0..1024 {
        let (outcome, segments) = rig.read(line, line * LINE, LINE);
        let expected = if line < 4 { ReadOutcome::Ready } else { ReadOutcome::Started };
        assert_eq!(outcome, expected, "line {line}");
        rig.complete_all();
        rig.release(&segments);
    }
    assert_eq!(resident(&rig), [0, 1, 2, 3]);
    assert_eq!((rig.shard.usage().evicted_lines, rig.shard.pins()), (0, 0));
    let counters = *rig.shard.volume(VOLUME).counters();
    assert_eq!(counters.read_hit_lines - before.read_hit_lines, 4);
    assert_eq!(counters.read_miss_lines - before.read_miss_lines, 1020);
    assert_eq!((counters.direct_reads_frozen, counters.direct_reads_no_room), (1020, 0));
    freeze(&mut rig, false);
    rig.read_to_end(100 * LINE, LINE);
    assert_eq!(resident(&rig), [0, 1, 2, 3, 100], "it admits again");
}

#[test]
fn a_read_takes_from_the_pool_what_is_there_and_the_rest_from_the_disk() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 5 * LINE + 512, 1024, 7), WriteOutcome::Done);
    let (outcome, segments) = rig.read(2, 3 * LINE, 3 * LINE);
    assert_eq!(outcome, ReadOutcome::Started);
    let places = segments.iter().map(|part| matches!(part.place, Place::Slot { .. }));
    assert_eq!(places.collect::<Vec<_>>(), [true, false, false, true, false]);
    assert_eq!(rig.ios.len(), 2, "lines 4 and 5 are read up to the dirty sectors, and after them");
    rig.complete_all();
    rig.release(&segments);
    assert_eq!((resident(&rig), rig.shard.pins()), (vec![0, 1, 2, 3, 5], 0));
}

#[test]
fn hits_keep_lines_in_the_pool() {
    let mut rig = frozen(Mode::WriteThrough);
    // The other volume takes all but one of the slots afterwards.
    rig.read_to_end(0, LINE);
    freeze(&mut rig, false);
    rig.read_to_end(100 * LINE, 63 * LINE);
    assert_eq!(resident(&rig)[0], 0, "the policy has learned of the read");
    assert_eq!(resident(&rig)[1], 100);
}

#[test]
fn a_read_of_a_line_that_is_being_destaged_waits_and_then_comes_from_the_disk() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 8 * LINE, 512, 7), WriteOutcome::Done);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.read(3, 8 * LINE, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    assert!(matches!(rig.take_outcome(3), Some(Outcome::Retry(None))));
    assert_eq!(rig.read_again(3, 8 * LINE, LINE, attempt_after(None)).0, ReadOutcome::Started);
    rig.complete_all();
    assert_eq!(resident(&rig), [0, 1, 2, 3]);
}

#[test]
fn a_write_to_the_disk_renews_lines_and_adds_none() {
    let mut rig = frozen(Mode::WriteThrough);
    assert_eq!(rig.write(1, 3 * LINE, 2 * LINE, 5), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(resident(&rig), [0, 1, 2, 3]);
    assert_eq!((rig.disk[3 * 8], rig.disk[4 * 8]), (5, 5));
    let (outcome, segments) = rig.read(2, 3 * LINE, LINE);
    assert_eq!((outcome, rig.values(&segments)), (ReadOutcome::Ready, vec![5; 8]));
    rig.release(&segments);
    // The same with a payload that was received into the pool.
    let slots = rig.stage(2 * LINE, 16 * LINE, 6).unwrap();
    let outcome = rig.write_staged(3, 2 * LINE, 16 * LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Started);
    rig.complete_all();
    assert_eq!((resident(&rig), rig.shard.pins()), (vec![0, 1, 2, 3], 0));
    assert_eq!((rig.disk[2 * 8], rig.disk[18 * 8 - 1]), (6, 6));
    assert_eq!(rig.read_to_end(2 * LINE, LINE), [6; 8]);
}

#[test]
fn dirty_data_takes_lines_until_the_disk_has_it() {
    let mut rig = frozen(Mode::WriteBack);
    // A line of the pool, one that is not there, and a payload received into the pool.
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    assert_eq!(rig.write(2, 8 * LINE, 512, 6), WriteOutcome::Done);
    let slots = rig.stage(16 * LINE, 8 * LINE, 7).unwrap();
    let outcome = rig.write_staged(3, 16 * LINE, 8 * LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Done);
    assert_eq!((resident(&rig).len(), rig.ios.len()), (13, 0), "no write goes to the disk");
    // A failed destage loses nothing.
    assert_eq!(rig.flush(4), None);
    while !rig.ios.is_empty() {
        rig.complete(0, Err(IoError::Io));
    }
    assert_eq!(rig.read_to_end(16 * LINE, LINE), [7; 8]);
    rig.tick(10_000);
    rig.complete_all();
    assert_eq!(rig.flush_to_end(5), Ok(()));
    assert_eq!(resident(&rig), [0, 1, 2, 3], "the line that was there has stayed");
    assert_eq!((rig.disk[0], rig.disk[64], rig.disk[24 * 8 - 1]), (5, 6, 7));
    assert_eq!((rig.read_to_end(0, LINE), rig.ios.len()), (vec![5; 8], 0));
}

#[test]
fn data_rewritten_during_its_destage_stays_until_the_disk_has_it() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 8 * LINE, LINE, 6), WriteOutcome::Done);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.write(3, 8 * LINE, 512, 7), WriteOutcome::Done);
    rig.complete_all();
    assert_eq!(rig.read_to_end(8 * LINE, LINE), [7, 6, 6, 6, 6, 6, 6, 6]);
    assert_eq!(rig.flush_to_end(4), Ok(()));
    assert_eq!((resident(&rig), rig.disk[64]), (vec![0, 1, 2, 3], 7));
}

#[test]
fn dirty_data_of_an_ordered_volume_is_dropped_epoch_by_epoch() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_ordered();
    rig.epoch = 1;
    freeze(&mut rig, true);
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    assert_eq!(rig.write(2, LINE, LINE, 6), WriteOutcome::Done);
    rig.epoch = 2;
    assert_eq!(rig.write(3, 0, LINE, 7), WriteOutcome::Done);
    for (id, left) in [(1, vec![0]), (2, vec![])] {
        assert_eq!(rig.destage_epoch(100 + id, id), None);
        rig.complete_all();
        assert_eq!(resident(&rig), left, "epoch {id}");
    }
    assert_eq!((rig.disk[0], rig.disk[8], rig.shard.pins()), (7, 6, 0));
}

#[test]
fn after_a_thaw_dirty_data_stays_as_usual() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 8 * LINE, LINE, 6), WriteOutcome::Done);
    freeze(&mut rig, false);
    assert_eq!(rig.flush_to_end(2), Ok(()));
    assert_eq!(resident(&rig), [0, 1, 2, 3, 8]);
    // It is one of the lines that the next freeze keeps.
    freeze(&mut rig, true);
    assert_eq!(rig.write(3, 8 * LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.flush_to_end(4), Ok(()));
    assert_eq!(resident(&rig), [0, 1, 2, 3, 8]);
}

#[test]
fn a_write_beyond_the_dirty_limit_adds_no_line() {
    let config = ShardConfig { dirty_lines_max: 2, ..ShardConfig::for_slots(64) };
    let mut rig = Rig::with(64, 1024, Mode::WriteBack, config);
    freeze(&mut rig, true);
    assert_eq!(rig.write(1, 8 * LINE, 4 * LINE, 5), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!((resident(&rig), rig.disk[64]), (vec![], 5));
}

#[test]
fn what_is_pinned_is_read_into_the_pool_and_stays() {
    let mut rig = frozen(Mode::WriteBack);
    pin(&mut rig, ByteRange::new(32 * LINE, 8 * LINE));
    let preload = |rig: &mut Rig, kind| {
        let outcome = rig.preload_as(1, GRANULE_BYTES, GRANULE_BYTES, u32::MAX, kind);
        rig.complete_all();
        outcome
    };
    assert_eq!(rig.write(2, 39 * LINE, LINE, 6), WriteOutcome::Done);
    assert_eq!(rig.flush_to_end(3), Ok(()));
    assert_eq!(preload(&mut rig, PreloadKind::Pinned), PreloadOutcome::Started);
    let mut expected: Vec<u64> = (0..4).collect();
    expected.extend(32..40);
    assert_eq!(resident(&rig), expected);
}

#[test]
fn dirty_data_stays_if_its_range_is_pinned_later() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 8 * LINE, 2 * LINE, 6), WriteOutcome::Done);
    pin(&mut rig, ByteRange::new(8 * LINE, LINE));
    assert_eq!(rig.flush_to_end(2), Ok(()));
    assert_eq!(resident(&rig), [0, 1, 2, 3, 8]);
}

#[test]
fn a_line_that_was_kept_for_lost_sectors_is_dropped_once_they_are_given_up() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 8 * LINE, 1024, 6), WriteOutcome::Done);
    seal_all(&mut rig);
    let found = rig.shard.next_sealed().unwrap();
    let key = forebay_engine::LineKey::new(VOLUME, 8);
    let mut found = found;
    while found.seal.key != key {
        rig.shard.inspected(&found, SealVerdict::Intact);
        found = rig.shard.next_sealed().unwrap();
    }
    rig.shard.inspected(&found, SealVerdict::Lost { sectors: 1 });
    // The other sector reaches the disk; the lost one keeps the line.
    assert_eq!(rig.flush(2), None);
    rig.complete_all();
    assert_eq!(resident(&rig), [0, 1, 2, 3, 8]);
    rig.shard.abandon_lost(VOLUME);
    rig.shard.self_check();
    assert_eq!(resident(&rig), [0, 1, 2, 3]);
}

#[test]
fn dirty_data_is_told_apart_in_an_adopted_pool() {
    let mut rig = frozen(Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    assert_eq!(rig.write(2, 8 * LINE, LINE, 6), WriteOutcome::Done);
    let table = Table::new(rig.shard.slots().table().to_vec());
    let (policy, config) = (Box::new(Lru::new(64)), ShardConfig::for_slots(64));
    let (mut shard, found) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    shard.finish_call();
    assert_eq!((found.lines, found.dirty_lines), (5, 2));
    shard.add_volume(VOLUME, 1024 * LINE, Mode::WriteBack);
    rig.shard = shard;
    freeze(&mut rig, true);
    assert_eq!(rig.flush_to_end(3), Ok(()));
    assert_eq!((resident(&rig), rig.disk[0], rig.disk[64]), (vec![0, 1, 2, 3], 5, 6));
}

#[test]
fn more_memory_would_not_help_what_a_frozen_volume_does_not_admit() {
    // The smallest share of the pool that has a curve.
    let mut rig = Rig::new(512, 64, Mode::WriteBack);
    rig.read_to_end(0, 4 * LINE);
    freeze(&mut rig, true);
    let accesses = |rig: &Rig| rig.shard.volume(VOLUME).curve().unwrap().accesses();
    assert_eq!(accesses(&rig), 4.0);
    assert_eq!(rig.read(1, 8 * LINE, LINE).0, ReadOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.write(2, 9 * LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(accesses(&rig), 4.0);
    rig.read_to_end(0, LINE);
    assert_eq!(rig.write(3, LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(accesses(&rig), 6.0, "hits are counted");
}
