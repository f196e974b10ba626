//! Held-out regions are served as if there were no cache, except for dirty data, which only the
//! pool has.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{Attempt, IoVerb, Outcome, Place, ReadOutcome, WriteOutcome};
use forebay_types::{HoldOut, Mode, REGION_BYTES};

/// A shard of which all regions are held out.
fn held_out(mode: Mode) -> Rig {
    let mut rig = Rig::new(64, 1024, mode);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    rig
}

#[test]
fn a_read_goes_to_the_disk_although_the_line_is_in_the_pool() {
    let mut rig = Rig::new(64, 1024, Mode::WriteThrough);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    let (outcome, segments) = rig.read(2, 0, LINE);
    assert_eq!((outcome, rig.ios.len()), (ReadOutcome::Started, 1));
    assert!(matches!(segments[..], [one] if matches!(one.place, Place::Private { .. })));
    rig.complete_all();
    let counters = *rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.direct_reads_hold_out, counters.read_hit_lines), (1, 0));
    // The line has stayed, and is used again afterwards.
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::NONE);
    let (outcome, segments) = rig.read(3, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    rig.release(&segments);
}

#[test]
fn a_miss_fills_nothing() {
    let mut rig = held_out(Mode::WriteBack);
    assert_eq!(rig.read(1, 0, 4 * LINE).0, ReadOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.shard.usage().resident_lines, 0);
}

#[test]
fn dirty_sectors_come_from_the_pool_and_the_others_from_the_disk() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    assert_eq!(rig.write(1, 512, 1024, 7), WriteOutcome::Done);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    // All of it is dirty, so it comes from the pool without I/O.
    let (outcome, segments) = rig.read(2, 512, 1024);
    assert_eq!((outcome, rig.ios.len()), (ReadOutcome::Ready, 0));
    assert_eq!(rig.values(&segments), [7, 7]);
    rig.release(&segments);
    let (outcome, segments) = rig.read(3, 0, LINE);
    assert_eq!((outcome, rig.ios.len()), (ReadOutcome::Started, 2));
    let places: Vec<bool> =
        segments.iter().map(|part| matches!(part.place, Place::Slot { .. })).collect();
    assert_eq!(places, [false, true, false]);
    rig.complete_all();
    rig.release(&segments);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_read_waits_for_the_destage_of_other_sectors_of_its_line() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    assert_eq!(rig.write(1, 512, 1024, 7), WriteOutcome::Done);
    assert_eq!(rig.flush(2), None);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    assert_eq!(rig.read(3, 0, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    assert!(matches!(rig.take_outcome(3), Some(Outcome::Retry(None))));
    let (outcome, segments) = rig.read_again(3, 0, LINE, attempt_after(None));
    assert_eq!(outcome, ReadOutcome::Started, "the disk has all of it now");
    assert!(segments.iter().all(|part| matches!(part.place, Place::Private { .. })));
    rig.complete_all();
}

#[test]
fn a_write_is_acknowledged_from_the_disk_and_renews_what_is_in_the_pool() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    for (id, offset, resident) in [(2, 0, 1), (3, 8 * LINE, 1)] {
        assert_eq!(rig.write(id, offset, LINE, id), WriteOutcome::Started);
        assert_eq!(rig.ios.len(), 1);
        assert!(matches!(rig.ios[0].verb, IoVerb::Write { fua: false }));
        rig.complete_all();
        assert!(matches!(rig.take_outcome(id), Some(Outcome::Done(Ok(())))));
        assert_eq!(rig.disk[(offset / 512) as usize], id);
        assert_eq!(rig.shard.usage().resident_lines, resident, "nothing new comes into the pool");
    }
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_hold_out, 2);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::NONE);
    let (outcome, segments) = rig.read(4, 0, LINE);
    assert_eq!((outcome, rig.values(&segments)), (ReadOutcome::Ready, vec![2; 8]));
    rig.release(&segments);
}

#[test]
fn a_long_write_leaves_nothing_new_in_the_pool() {
    let mut rig = held_out(Mode::WriteThrough);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::NONE);
    assert_eq!(rig.read(1, 2 * LINE, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    let slots = rig.stage(0, 16 * LINE, 5).unwrap();
    let outcome = rig.write_staged(2, 0, 16 * LINE, &slots, Attempt::default());
    assert_eq!(outcome, WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.shard.usage().resident_lines, 1, "the line that was there");
    assert_eq!((rig.disk[0], rig.disk[16 * 8 - 1], rig.shard.pins()), (5, 5, 0));
}

#[test]
fn a_write_over_dirty_sectors_destages_them_first() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 7), WriteOutcome::Done);
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    assert_eq!(rig.write(2, 0, 512, 8), WriteOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.disk[..8], [7; 8]);
    assert_eq!(rig.retry(2, 0, 512, 8), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.disk[..8], [8, 7, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn an_ordered_volume_defers_writes_of_held_out_regions_too() {
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_ordered();
    rig.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    assert_eq!(rig.write(1, 0, LINE, 7), WriteOutcome::Done);
    let (outcome, segments) = rig.read(2, 0, LINE);
    assert_eq!((outcome, rig.values(&segments)), (ReadOutcome::Ready, vec![7; 8]));
    rig.release(&segments);
}

/// One past the pool would wait for the destages of those that are not held out.
#[test]
fn a_write_back_volume_of_which_a_part_is_held_out_defers_all_writes() {
    let hold_out = HoldOut::new(500_000, 3);
    let held = (0..4).find(|&region| hold_out.holds(region)).unwrap() * REGION_BYTES;
    let mut rig = Rig::new(64, 1024, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_hold_out(hold_out);
    assert_eq!(rig.write(1, held, LINE, 7), WriteOutcome::Done);
    let (outcome, segments) = rig.read(2, held, LINE);
    assert_eq!((outcome, rig.values(&segments)), (ReadOutcome::Ready, vec![7; 8]));
    rig.release(&segments);
    let mut rig = Rig::new(64, 1024, Mode::WriteThrough);
    rig.shard.volume_mut(VOLUME).set_hold_out(hold_out);
    assert_eq!(rig.write(1, held, LINE, 7), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_hold_out, 1);
}

#[test]
fn only_the_chosen_regions_are_held_out() {
    let mut rig = Rig::new(64, 1024, Mode::WriteThrough);
    let hold_out = HoldOut::new(500_000, 3);
    rig.shard.volume_mut(VOLUME).set_hold_out(hold_out);
    let held = (0..4).map(|region| {
        let (outcome, segments) = rig.read(region, region * REGION_BYTES, LINE);
        rig.complete_all();
        rig.release(&segments);
        outcome == ReadOutcome::Started
    });
    let held: Vec<bool> = held.collect();
    assert_eq!(held, (0..4).map(|region| hold_out.holds(region)).collect::<Vec<_>>());
    assert!(held.contains(&true) && held.contains(&false), "the salt shows both");
}
