//! Pinned ranges: their lines stay in the pool, and are otherwise like all other lines.

use crate::lru::Lru;
use crate::patrol::seal_all;
use crate::rig::{LINE, Rig, Table, VOLUME, attempt_after};
use forebay_engine::{
    Fate, IoVerb, LineMeta, Outbox, Outcome, PreloadKind, PreloadOutcome, ReadOutcome, ResizeStep,
    SealVerdict, Shard, ShardConfig, Slot, WriteOutcome, retained_lines_max,
};
use forebay_policy::{Eviction, Hint, Lines};
use forebay_types::{ByteRange, GRANULE_BYTES, IoError, Mode, PinnedRanges};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pinned ranges, each given as its first line and the end of its lines.
fn pins(ranges: &[(u64, u64)]) -> PinnedRanges {
    let mut pins = PinnedRanges::default();
    for (first, end) in ranges {
        pins.add(ByteRange::new(first * LINE, (end - first) * LINE));
    }
    pins
}

/// Pins these lines and no others.
fn pin_only(shard: &mut Shard<Table>, ranges: &[(u64, u64)]) {
    let pins = Arc::new(pins(ranges));
    shard.pinned().set(VOLUME, &pins, pins.lines());
    assert_eq!(shard.pinned().follow(VOLUME, 0, Slot::MAX), None);
    shard.self_check();
}

/// Reads lines one by one, each until it is answered.
fn scan(rig: &mut Rig, lines: Range<u64>) {
    lines.for_each(|line| drop(rig.read_to_end(line * LINE, LINE)));
}

/// The lines that a read finds in the pool.
fn hits(rig: &mut Rig, lines: Range<u64>) -> u64 {
    let mut hits = 0;
    for line in lines {
        let (outcome, segments) = rig.read(1, line * LINE, LINE);
        if outcome == ReadOutcome::Ready {
            let values: Vec<_> = (line * 8..line * 8 + 8).map(Rig::on_disk).collect();
            assert_eq!(rig.values(&segments), values);
            rig.release(&segments);
            hits += 1;
        }
        rig.complete_all();
    }
    hits
}

fn retained(rig: &Rig) -> u64 {
    rig.shard.slots().warm().retained_lines(VOLUME)
}

#[test]
fn pinned_lines_stay_while_a_scan_evicts_the_others() {
    let mut rig = Rig::new(32, 600, Mode::WriteThrough);
    scan(&mut rig, 0..8);
    pin_only(&mut rig.shard, &[(0, 6), (10, 12)]);
    assert_eq!(retained(&rig), 6);
    scan(&mut rig, 100..300);
    assert_eq!(hits(&mut rig, 0..6), 6);
    assert_eq!(hits(&mut rig, 6..8), 0);
    // Lines of a pinned range that are read later stay, too.
    assert_eq!((hits(&mut rig, 10..12), retained(&rig)), (0, 8));
    scan(&mut rig, 300..500);
    assert_eq!(hits(&mut rig, 0..6) + hits(&mut rig, 10..12), 8);
    assert_eq!(rig.shard.usage().resident_lines, 32);
    // Lines that are no longer pinned can be evicted again.
    pin_only(&mut rig.shard, &[(0, 3)]);
    assert_eq!(retained(&rig), 3);
    scan(&mut rig, 100..300);
    assert_eq!((hits(&mut rig, 0..3), hits(&mut rig, 3..6), hits(&mut rig, 10..12)), (3, 0, 0));
    pin_only(&mut rig.shard, &[]);
    assert_eq!(retained(&rig), 0);
    scan(&mut rig, 100..300);
    assert_eq!(hits(&mut rig, 0..12), 0);
}

#[test]
fn unpinned_lines_are_in_the_policy_as_if_just_read() {
    let mut rig = Rig::new(8, 600, Mode::WriteThrough);
    pin_only(&mut rig.shard, &[(0, 4)]);
    scan(&mut rig, 0..4);
    scan(&mut rig, 100..104);
    pin_only(&mut rig.shard, &[]);
    // The policy of these tests evicts the line that was read longest ago.
    scan(&mut rig, 104..108);
    assert_eq!(hits(&mut rig, 0..4), 4);
    scan(&mut rig, 108..116);
    assert_eq!(hits(&mut rig, 0..4), 0);
}

#[test]
fn pinned_ranges_leave_room_for_other_lines() {
    let mut rig = Rig::new(32, 600, Mode::WriteThrough);
    pin_only(&mut rig.shard, &[(0, 600)]);
    scan(&mut rig, 0..100);
    assert_eq!(retained(&rig), retained_lines_max(32) as u64);
    assert_eq!(hits(&mut rig, 0..20), 20);
    // The other lines of the ranges can be evicted.
    scan(&mut rig, 200..300);
    assert_eq!(hits(&mut rig, 20..100), 0);
    // Lines beyond the limit are retained once there is room, here when the pins change.
    scan(&mut rig, 520..524);
    pin_only(&mut rig.shard, &[(500, 600)]);
    assert_eq!(retained(&rig), 4);
}

#[test]
fn a_preload_of_a_pinned_range_evicts_others_and_reads_what_lines_lack() {
    let mut rig = Rig::new(32, 600, Mode::WriteThrough);
    // A single sector of line 5 is in the pool.
    assert_eq!(rig.write(1, 5 * LINE + 512, 512, 77), WriteOutcome::Started);
    rig.complete_all();
    scan(&mut rig, 100..131);
    let preload =
        |id, rig: &mut Rig| rig.preload_as(id, 0, GRANULE_BYTES, 0xff, PreloadKind::Pinned);
    assert_eq!(preload(2, &mut rig), PreloadOutcome::Done, "nothing is pinned");
    pin_only(&mut rig.shard, &[(2, 8)]);
    assert_eq!(preload(3, &mut rig), PreloadOutcome::Started);
    assert!(rig.ios.iter().all(|io| io.is_background()));
    rig.complete_all();
    assert_eq!(rig.take_outcome(3), Some(Outcome::Retry(None)));
    assert_eq!((retained(&rig), rig.shard.usage().resident_lines), (6, 32));
    let counters = *rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.pin_loaded_lines, counters.preloaded_lines), (6, 0));
    assert_eq!(hits(&mut rig, 6..8) + hits(&mut rig, 2..5), 5);
    let (outcome, segments) = rig.read(4, 5 * LINE, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    let disk = Rig::on_disk;
    assert_eq!(
        rig.values(&segments),
        [40, 0, 42, 43, 44, 45, 46, 47].map(|sector| match sector {
            0 => 77,
            sector => disk(sector),
        })
    );
    rig.release(&segments);
    assert_eq!(preload(5, &mut rig), PreloadOutcome::Done, "everything is there");
    assert_eq!(hits(&mut rig, 0..2), 0);
}

#[test]
fn a_failed_preload_of_a_pinned_range_is_reported_and_repeated() {
    let mut rig = Rig::new(32, 600, Mode::WriteThrough);
    pin_only(&mut rig.shard, &[(0, 4)]);
    let kind = PreloadKind::Pinned;
    assert_eq!(rig.preload_as(1, 0, GRANULE_BYTES, 0xf, kind), PreloadOutcome::Started);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Retry(Some(IoError::Io))));
    assert_eq!(retained(&rig), 0);
    assert_eq!(rig.preload_as(2, 0, GRANULE_BYTES, 0xf, kind), PreloadOutcome::Started);
    rig.complete_all();
    assert_eq!((retained(&rig), hits(&mut rig, 0..4)), (4, 4));
}

#[test]
fn at_the_dirty_limit_nothing_is_evicted_for_a_pinned_range() {
    let mut rig = Rig::new(32, 600, Mode::WriteBack);
    pin_only(&mut rig.shard, &[(0, 8)]);
    let mut id = 0;
    while rig.write(id, (100 + id) * LINE, LINE, 5) == WriteOutcome::Done {
        id += 1;
    }
    let limit = ShardConfig::for_slots(32).dirty_lines_max as u64;
    assert_eq!(id, limit - (limit * 8).div_ceil(32), "the limit without the pinned part");
    rig.ios.clear();
    let outcome = rig.preload_as(900, 0, GRANULE_BYTES, 0xff, PreloadKind::Pinned);
    assert_eq!(outcome, PreloadOutcome::Done);
    // Without pins, more lines may be dirty.
    pin_only(&mut rig.shard, &[]);
    assert_eq!(rig.write(901, 300 * LINE, LINE, 5), WriteOutcome::Done);
}

#[test]
fn a_pinned_line_has_the_newest_data_through_writes_and_erases() {
    let mut rig = Rig::new(32, 600, Mode::WriteBack);
    pin_only(&mut rig.shard, &[(0, 4)]);
    scan(&mut rig, 0..4);
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    // A reply and then a destage use the line, which is relocated for the next writes.
    let (_, segments) = rig.read(2, 0, LINE);
    assert_eq!(rig.write(3, 0, LINE, 6), WriteOutcome::Done);
    assert_eq!(rig.values(&segments), [5; 8]);
    rig.release(&segments);
    assert_eq!(rig.flush(4), None);
    assert_eq!(rig.write(5, 512, 512, 7), WriteOutcome::Done);
    assert_eq!(retained(&rig), 4);
    scan(&mut rig, 100..200);
    rig.complete_all();
    assert_eq!(rig.read_to_end(0, 1536), [6, 7, 6]);
    assert!(rig.zero(6, 0, 2 * LINE));
    rig.complete_all();
    assert_eq!(retained(&rig), 2, "erased lines have no data");
    assert_eq!(rig.read_to_end(0, LINE), [0; 8]);
    assert_eq!(retained(&rig), 3);
    // To bypass, and back.
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    rig.shard.drop_clean(VOLUME, 0, Slot::MAX);
    assert_eq!(retained(&rig), 0);
    assert_eq!(rig.write(7, 0, LINE, 8), WriteOutcome::Started);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_mode(Mode::WriteThrough);
    assert_eq!(rig.read_to_end(0, LINE), [8; 8]);
    assert_eq!(retained(&rig), 1);
    rig.shard.remove_volume(VOLUME);
    assert_eq!(rig.shard.usage().resident_lines, 0);
    rig.shard.add_volume(VOLUME, 600 * LINE, Mode::WriteThrough);
    scan(&mut rig, 0..4);
    assert_eq!(retained(&rig), 0, "the pins ended with the volume");
}

#[test]
fn a_damaged_clean_line_of_a_pinned_range_is_read_again() {
    let mut rig = Rig::new(32, 600, Mode::WriteThrough);
    pin_only(&mut rig.shard, &[(0, 4)]);
    scan(&mut rig, 0..4);
    seal_all(&mut rig);
    let found = rig.shard.next_sealed().unwrap();
    rig.shard.inspected(&found, SealVerdict::Lost { sectors: 1 });
    rig.shard.self_check();
    assert_eq!(retained(&rig), 3);
    let outcome = rig.preload_as(1, 0, GRANULE_BYTES, 0xf, PreloadKind::Pinned);
    assert_eq!(outcome, PreloadOutcome::Started);
    rig.complete_all();
    assert_eq!((retained(&rig), hits(&mut rig, 0..4)), (4, 4));
}

#[test]
fn an_adopted_table_is_pinned_again() {
    let mut rig = Rig::new(32, 600, Mode::WriteBack);
    pin_only(&mut rig.shard, &[(0, 6)]);
    scan(&mut rig, 0..4);
    assert_eq!(rig.write(1, 4 * LINE, LINE, 9), WriteOutcome::Done);
    let table = Table::new(rig.shard.slots().table().to_vec());
    let (policy, config) = (Box::new(Lru::new(32)), ShardConfig::for_slots(32));
    let (mut shard, found) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    shard.finish_call();
    assert_eq!((found.lines, shard.slots().warm().retained_lines(VOLUME)), (5, 0));
    shard.add_volume(VOLUME, 600 * LINE, Mode::WriteBack);
    shard.self_check();
    pin_only(&mut shard, &[(0, 6)]);
    assert_eq!(shard.slots().warm().retained_lines(VOLUME), 5);
    rig.shard = shard;
    scan(&mut rig, 100..200);
    assert_eq!(hits(&mut rig, 0..4), 4);
    assert_eq!(rig.read_to_end(4 * LINE, LINE), [9; 8]);
}

#[test]
fn reads_and_writes_end_although_all_other_lines_are_in_use() {
    let config = ShardConfig { dirty_lines_max: 32, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 600, Mode::WriteBack, config);
    // More lines are dirty than may be once something is pinned.
    for id in 0..16 {
        assert_eq!(rig.write(id, (100 + id) * LINE, LINE, 5), WriteOutcome::Done);
    }
    pin_only(&mut rig.shard, &[(0, 20)]);
    // The disk completes reads, but no writes yet.
    let complete_reads = |rig: &mut Rig| {
        let is_read = |io: &forebay_engine::IoAction| matches!(io.verb, IoVerb::Read);
        while let Some(at) = rig.ios.iter().position(is_read) {
            rig.complete(at, Ok(()));
        }
    };
    for line in 0..16 {
        assert_eq!(rig.read(40, line * LINE, LINE).0, ReadOutcome::Waiting);
        complete_reads(&mut rig);
    }
    assert_eq!(retained(&rig), 16);
    // No line can be evicted: a read bypasses the cache, and a write goes to the disk.
    let (outcome, _) = rig.read(50, 300 * LINE, LINE);
    assert_eq!(outcome, ReadOutcome::Started);
    complete_reads(&mut rig);
    assert_eq!(rig.take_outcome(50), Some(Outcome::Done(Ok(()))));
    let mut attempt = forebay_engine::Attempt::default();
    for _ in 0..20 {
        match rig.write_again(51, 301 * LINE, LINE, 6, false, attempt) {
            WriteOutcome::Waiting => {}
            outcome => {
                assert!(matches!(outcome, WriteOutcome::Started | WriteOutcome::Done));
                rig.complete_all();
                return;
            }
        }
        rig.complete_all();
        attempt = attempt_after(None);
    }
    panic!("the write waits for ever");
}

/// A shard with slabs of four lines, into which `lines` have been read.
fn full(slots: usize, mode: Mode, lines: Range<u64>) -> Rig {
    let config =
        ShardConfig { slab_lines: 4, dirty_lines_max: slots, ..ShardConfig::for_slots(slots) };
    let mut rig = Rig::with(slots, 600, mode, config);
    scan(&mut rig, lines);
    rig
}

#[test]
fn a_shrink_moves_pinned_lines_and_drops_others() {
    let mut rig = full(32, Mode::WriteThrough, 0..32);
    // In every second slab, one line is pinned.
    let pinned = [0, 8, 16, 24];
    pin_only(&mut rig.shard, &pinned.map(|line| (line, line + 1)));
    let held = pinned.map(|line| rig.read(1, line * LINE, LINE).1);
    // The slabs without pinned lines are given back first. Two more wait for the replies that use
    // their lines.
    assert_eq!(rig.resize(8), (false, vec![1, 3, 5, 7]));
    let moved = |rig: &Rig| rig.shard.volume(VOLUME).counters().moved_lines;
    assert_eq!((moved(&rig), retained(&rig)), (0, 4));
    held.iter().for_each(|segments| rig.release(segments));
    let (is_done, mut slabs) = rig.continue_resize();
    slabs.sort_unstable();
    assert_eq!((is_done, slabs), (true, vec![4, 6]));
    assert_eq!((moved(&rig), retained(&rig)), (2, 4));
    let found: u64 = pinned.iter().map(|&line| hits(&mut rig, line..line + 1)).sum();
    assert_eq!(found, 4, "every pinned line is read from the smaller shard");
    scan(&mut rig, 100..200);
    let found: u64 = pinned.iter().map(|&line| hits(&mut rig, line..line + 1)).sum();
    assert_eq!((found, rig.shard.usage().resident_lines), (4, 8));
}

#[test]
fn a_shard_that_is_too_small_for_its_pins_keeps_some_until_it_grows() {
    let mut rig = full(32, Mode::WriteThrough, 0..16);
    pin_only(&mut rig.shard, &[(0, 16)]);
    assert_eq!(retained(&rig), 16);
    assert!(rig.resize(8).0);
    let max = retained_lines_max(8) as u64;
    assert_eq!(retained(&rig), max);
    scan(&mut rig, 100..200);
    assert_eq!(hits(&mut rig, 0..16), max, "the others were evicted");
    assert_eq!(retained(&rig), max);
    assert!(rig.resize(4).0);
    assert_eq!(retained(&rig), retained_lines_max(4) as u64);
    assert!(rig.resize(32).0);
    let outcome = rig.preload_as(1, 0, GRANULE_BYTES, 0xffff, PreloadKind::Pinned);
    assert_eq!(outcome, PreloadOutcome::Started);
    rig.complete_all();
    scan(&mut rig, 100..200);
    assert_eq!((retained(&rig), hits(&mut rig, 0..16)), (16, 16));
}

#[test]
fn the_dirty_limit_follows_size_and_pins() {
    let config = ShardConfig { slab_lines: 4, ..ShardConfig::for_slots(32) };
    let limit = config.dirty_lines_max as u64;
    let dirty_lines = |change: &dyn Fn(&mut Rig)| {
        let mut rig = Rig::with(32, 600, Mode::WriteBack, config);
        change(&mut rig);
        let mut id = 0;
        while rig.write(id, (100 + id) * LINE, LINE, 5) == WriteOutcome::Done {
            id += 1;
        }
        id
    };
    let pin = |rig: &mut Rig| pin_only(&mut rig.shard, &[(0, 8)]);
    let resize = |rig: &mut Rig, lines| assert!(rig.resize(lines).0);
    let found = dirty_lines(&|rig| (pin(rig), resize(rig, 16)).1);
    assert_eq!(found, limit * 8 / 32, "of a half, half is pinned");
    let found = dirty_lines(&|rig| (resize(rig, 16), pin(rig)).1);
    assert_eq!(found, limit * 8 / 32);
    let found = dirty_lines(&|rig| (pin(rig), resize(rig, 8)).1);
    assert_eq!(found, limit * (8 - retained_lines_max(8) as u64) / 32, "pins have their limit");
    let found = dirty_lines(&|rig| (pin(rig), resize(rig, 8), resize(rig, 32)).2);
    assert_eq!(found, limit * 24 / 32);
    let found = dirty_lines(&|rig| (pin(rig), resize(rig, 16), pin_only(&mut rig.shard, &[])).2);
    assert_eq!(found, limit * 16 / 32);
}

#[test]
fn a_pinned_line_waits_for_a_destage_rather_than_leave() {
    let mut rig = full(16, Mode::WriteBack, 0..2);
    pin_only(&mut rig.shard, &[(0, 2)]);
    for id in 0..11 {
        assert_eq!(rig.write(id, (100 + id) * LINE, LINE, 5), WriteOutcome::Done);
    }
    let (done, slabs) = rig.resize(8);
    assert!(!done, "most lines are dirty: {slabs:?}");
    assert_eq!((retained(&rig), rig.shard.usage().dirty_lines), (2, 11));
    assert_eq!(rig.flush(20), None);
    rig.complete_all();
    assert!(rig.continue_resize().0);
    assert_eq!((retained(&rig), hits(&mut rig, 0..2)), (2, 2));
    assert_eq!(rig.shard.usage().capacity_lines, 8);
}

#[test]
fn an_adopted_table_that_was_made_smaller_retains_what_fits() {
    let mut rig = full(32, Mode::WriteThrough, 0..16);
    pin_only(&mut rig.shard, &[(0, 16)]);
    assert!(rig.resize(8).0);
    let table = Table::new(rig.shard.slots().table().to_vec());
    let config = ShardConfig { slab_lines: 4, ..ShardConfig::for_slots(32) };
    let (mut shard, _) =
        Shard::recover(table, Box::new(Lru::new(32)), config, &|_| Fate::Kept, &mut Vec::new())
            .unwrap();
    shard.finish_call();
    shard.add_volume(VOLUME, 600 * LINE, Mode::WriteThrough);
    pin_only(&mut shard, &[(0, 16)]);
    rig.shard = shard;
    scan(&mut rig, 0..16);
    assert_eq!(retained(&rig), retained_lines_max(8) as u64);
}

#[test]
fn the_policy_has_the_capacity_beside_the_pins() {
    let capacity = Arc::new(AtomicUsize::new(0));
    let policy = Box::new(Watched { inner: Lru::new(32), capacity: Arc::clone(&capacity) });
    let config = ShardConfig { slab_lines: 4, ..ShardConfig::for_slots(32) };
    let mut shard = Shard::new(Table::new(vec![LineMeta::FREE; 32]), policy, config);
    shard.add_volume(VOLUME, 600 * LINE, Mode::WriteThrough);
    let now = || capacity.load(Ordering::Relaxed);
    pin_only(&mut shard, &[(0, 8)]);
    assert_eq!(now(), 24);
    shard.resize(16);
    let mut out = Outbox::default();
    loop {
        match shard.step_resize(&mut out) {
            ResizeStep::Empty(slab) => shard.gave_back(slab),
            ResizeStep::Done => break,
            _ => {}
        }
    }
    assert_eq!(now(), 8);
    pin_only(&mut shard, &[]);
    assert_eq!(now(), 16);
}

/// A policy that records its capacity.
struct Watched {
    inner: Lru,
    capacity: Arc<AtomicUsize>,
}

impl Eviction for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn on_insert(&mut self, slot: Slot, key: u64, hint: Hint) {
        self.inner.on_insert(slot, key, hint);
    }

    fn on_hit(&mut self, slot: Slot) {
        self.inner.on_hit(slot);
    }

    fn on_write(&mut self, slot: Slot) {
        self.inner.on_write(slot);
    }

    fn on_remove(&mut self, slot: Slot) {
        self.inner.on_remove(slot);
    }

    fn evict(&mut self, incoming: u64, hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        self.inner.evict(incoming, hint, lines)
    }

    fn set_capacity(&mut self, lines: usize) {
        self.capacity.store(lines, Ordering::Relaxed);
    }

    fn metadata_bytes(&self) -> usize {
        self.inner.metadata_bytes()
    }

    fn self_check(&self) {
        self.inner.self_check();
    }
}
