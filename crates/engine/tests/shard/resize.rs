//! A shard that shrinks and grows while it is in use.

use crate::lru::Lru;
use crate::patrol::seal_all;
use crate::rig::{LINE, Rig, TORN, Table, VOLUME, attempt_after};
use forebay_engine::{
    Attempt, Fate, LineMeta, Outbox, Outcome, PreloadKind, ReadOutcome, ResizeStep, SealVerdict,
    Segment, Shard, ShardConfig, Slab, Slot, WriteOutcome, retained_lines_max,
};
use forebay_types::{ByteRange, IoError, Mode, PinnedRanges};
use proptest::prelude::*;
use std::sync::Arc;

/// A shard with slabs of `slab_lines` lines.
fn rig(slots: usize, slab_lines: usize) -> Rig {
    let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
    Rig::with(slots, 2 * slots as u64, Mode::WriteBack, config)
}

/// The number of lines that can be staged: free slots, and clean lines that can be evicted.
fn room(rig: &mut Rig) -> usize {
    let mut slots: Vec<Slot> = Vec::new();
    while let Some(slot) = rig.stage(slots.len() as u64 * LINE, LINE, TORN) {
        slots.extend(slot);
    }
    rig.unstage(&slots);
    slots.len()
}

fn given_back(rig: &Rig) -> Vec<usize> {
    rig.shard.slots().slabs().given_back().map(|slab| slab.number).collect()
}

#[test]
fn untouched_slabs_go_first_and_then_those_with_the_fewest_lines() {
    let mut rig = rig(16, 4);
    rig.read_to_end(0, 6 * LINE);
    assert_eq!(rig.resize(8), (true, vec![2, 3]), "no line is in these");
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 6);
    assert_eq!(rig.resize(7), (true, vec![1]), "sizes are rounded down to whole slabs");
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 4);
    assert_eq!(rig.resize(0), (true, vec![]), "one slab stays");
    let usage = rig.shard.usage();
    assert_eq!((usage.capacity_lines, usage.given_back_lines), (4, 12));
    assert_eq!(room(&mut rig), 4);
    assert_eq!(rig.read_to_end(5 * LINE, 512), [Rig::on_disk(40)]);
}

#[test]
fn a_slab_that_is_taken_back_is_used_like_a_new_one() {
    let mut rig = rig(16, 4);
    rig.read_to_end(0, 14 * LINE);
    let (done, slabs) = rig.resize(4);
    assert!(done && slabs.len() == 3);
    assert_eq!(room(&mut rig), 4);
    assert_eq!(rig.resize(9), (true, vec![]), "sizes are rounded down");
    assert_eq!(room(&mut rig), 8);
    assert_eq!(rig.resize(usize::MAX), (true, vec![]));
    assert_eq!(room(&mut rig), 16);
    assert_eq!(rig.read_to_end(0, 14 * LINE).len(), 14 * 8);
    assert!(!rig.shard.slots().slabs().is_resizing());
}

#[test]
fn a_short_last_slab_is_given_back_like_the_others() {
    let mut rig = rig(10, 4);
    assert_eq!(rig.resize(9), (true, vec![2]));
    assert_eq!(rig.shard.usage().capacity_lines, 8);
    assert_eq!(rig.resize(10), (true, vec![]));
    assert_eq!(room(&mut rig), 10);
}

/// A shard whose first slab has one dirty line and whose second slab is worth more.
fn with_a_dirty_line() -> (Rig, Vec<Segment>) {
    let mut rig = rig(16, 4);
    assert_eq!(rig.write(1, 0, LINE, 7), WriteOutcome::Done);
    rig.read_to_end(LINE, 7 * LINE);
    let (outcome, held) = rig.read(2, 4 * LINE, 2 * LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    assert_eq!(rig.resize(8), (true, vec![2, 3]));
    (rig, held)
}

#[test]
fn a_dirty_line_moves_to_a_slab_that_stays() {
    let (mut rig, held) = with_a_dirty_line();
    assert_eq!(rig.resize(4), (true, vec![0]));
    assert_eq!(rig.shard.volume(VOLUME).counters().moved_lines, 1);
    assert_eq!(rig.shard.usage().dirty_lines, 1);
    assert_eq!(rig.read_to_end(0, LINE), [7; 8]);
    assert_eq!(rig.values(&held)[0], Rig::on_disk(32), "pinned data stays");
    rig.release(&held);
    assert_eq!(rig.flush_to_end(3), Ok(()));
    assert_eq!(rig.disk[..8], [7; 8]);
}

#[test]
fn dirty_lines_without_room_are_destaged_first() {
    let mut rig = rig(16, 4);
    for line in 0..8 {
        assert_eq!(rig.write(line, line * LINE, LINE, 100 + line), WriteOutcome::Done);
    }
    let (done, slabs) = rig.resize(4);
    assert!(!done && slabs == [2, 3], "no clean line can be evicted: {slabs:?}");
    assert_eq!(rig.shard.usage().dirty_lines, 8, "no dirty line is dropped");
    rig.tick(50);
    assert!(!rig.ios.is_empty(), "the dirty limit of the smaller shard is exceeded");
    // The disk fails: everything stays.
    while !rig.ios.is_empty() {
        rig.complete(0, Err(IoError::Io));
    }
    assert_eq!((rig.continue_resize().0, rig.shard.usage().dirty_lines), (false, 8));
    rig.tick(20_000);
    rig.complete_all();
    assert!(rig.continue_resize().0);
    assert_eq!(rig.shard.usage().capacity_lines, 4);
    assert!(rig.shard.usage().dirty_lines <= 4);
    for line in 0..8 {
        assert_eq!(rig.read_to_end(line * LINE, LINE), [100 + line; 8]);
    }
}

#[test]
fn a_request_does_not_walk_through_untouched_slabs_that_are_being_emptied() {
    let mut rig = rig(64, 4);
    rig.read_to_end(0, 16 * LINE);
    rig.shard.resize(8);
    while rig.shard.usage().capacity_lines > 8 {
        assert_eq!(rig.step_resize(), ResizeStep::More);
    }
    let staged = rig.stage(20 * LINE, LINE, TORN).unwrap();
    assert_eq!(rig.shard.slots().used(), 16, "a line is evicted instead");
    rig.unstage(&staged);
    assert!(rig.resize(64).0);
    assert_eq!(room(&mut rig), 64);
}

#[test]
fn a_slab_with_a_pinned_line_waits() {
    let mut rig = rig(8, 4);
    rig.read_to_end(0, 8 * LINE);
    // Both slabs are equally valuable.
    let (_, first) = rig.read(1, 0, LINE);
    let (_, second) = rig.read(2, 6 * LINE, LINE);
    assert_eq!(rig.resize(4), (false, vec![]));
    assert_eq!(rig.values(&second), (48..56).map(Rig::on_disk).collect::<Vec<_>>());
    rig.release(&first);
    assert_eq!(rig.continue_resize(), (false, vec![]), "the other slab was chosen");
    rig.release(&second);
    assert_eq!(rig.continue_resize(), (true, vec![1]));
}

#[test]
fn a_read_in_flight_keeps_its_slab() {
    let mut rig = rig(8, 4);
    rig.read_to_end(0, 4 * LINE);
    rig.read_to_end(0, 4 * LINE);
    let (outcome, _) = rig.read(1, 4 * LINE, LINE);
    assert_eq!(outcome, ReadOutcome::Waiting);
    rig.shard.drop_clean(VOLUME, 0, 3);
    // The first slab has one line, the second a pinned one.
    assert_eq!(rig.resize(4), (true, vec![0]));
    rig.complete_all();
    assert_eq!(rig.read_to_end(4 * LINE, 512), [Rig::on_disk(32)]);
}

#[test]
fn a_growth_keeps_slabs_that_are_still_being_emptied() {
    let mut rig = rig(16, 4);
    rig.read_to_end(0, 16 * LINE);
    let held: Vec<_> = [0, 4, 8, 12].map(|line| rig.read(1, line * LINE, LINE).1).into();
    assert_eq!(rig.resize(4), (false, vec![]), "each slab has a pinned line");
    assert_eq!(rig.shard.usage().capacity_lines, 4);
    assert_eq!(rig.resize(12), (false, vec![]));
    assert_eq!((rig.shard.usage().capacity_lines, given_back(&rig)), (12, vec![]));
    held.iter().for_each(|segments| rig.release(segments));
    rig.continue_resize();
    assert_eq!((given_back(&rig).len(), room(&mut rig)), (1, 12));
}

#[test]
fn an_empty_slab_is_not_used_before_its_memory_is_given_back() {
    let mut rig = rig(8, 4);
    rig.read_to_end(0, 5 * LINE);
    rig.shard.resize(4);
    let slab = loop {
        if let ResizeStep::Empty(slab) = rig.step_resize() {
            break slab;
        }
    };
    assert_eq!(rig.step_resize(), ResizeStep::Waiting);
    rig.shard.resize(8);
    assert_eq!(rig.step_resize(), ResizeStep::Waiting);
    assert_eq!(room(&mut rig), 4);
    rig.give_back(slab);
    assert_eq!(rig.continue_resize(), (true, vec![]));
    assert_eq!(room(&mut rig), 8);
}

#[test]
fn lines_of_closed_epochs_wait_for_their_destage() {
    let mut rig = rig(12, 4);
    rig.shard.volume_mut(VOLUME).set_ordered();
    rig.epoch = 1;
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    assert_eq!(rig.write(2, LINE, LINE, 11), WriteOutcome::Done);
    rig.epoch = 2;
    // Freezes the older version of the first line.
    assert_eq!(rig.write(3, 0, LINE, 20), WriteOutcome::Done);
    rig.read_to_end(3 * LINE, LINE);
    // The second slab is worth more, and has a free slot.
    rig.read_to_end(4 * LINE, 3 * LINE);
    let (_, pinned) = rig.read(4, 4 * LINE, 3 * LINE);
    assert_eq!(rig.resize(8), (true, vec![2]));
    assert!(!rig.resize(4).0, "the closed epoch is dirty");
    assert_eq!(rig.shard.oldest_epoch(VOLUME, 2), Some(1));
    assert_eq!(rig.destage_epoch(100, 1), None);
    rig.complete_all();
    assert_eq!(rig.take_outcome(100), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.disk[0], rig.disk[8]), (10, 11), "the closed epoch as it was");
    assert_eq!(rig.continue_resize(), (true, vec![0]));
    rig.release(&pinned);
    assert_eq!(rig.read_to_end(0, LINE), [20; 8]);
    assert_eq!(rig.read_to_end(LINE, LINE), [11; 8]);
}

#[test]
fn parity_in_a_removed_slab_is_dropped_and_computed_again() {
    let mut rig = rig(12, 3);
    rig.shard.set_parity(true);
    for line in 0..3 {
        assert_eq!(rig.write(line, line * LINE, LINE, 7), WriteOutcome::Done);
    }
    assert_eq!(seal_all(&mut rig), 3);
    assert_eq!((rig.shard.usage().parity_lines, rig.shard.usage().parity_slots), (3, 1));
    assert_eq!(rig.resize(6), (true, vec![2, 3]));
    // A line that a read has pinned keeps its parity, and with it the slab in which that is stored.
    let (_, held) = rig.read(5, 0, LINE);
    assert_eq!(rig.resize(3), (false, vec![]));
    assert_eq!((rig.shard.usage().parity_lines, rig.verify.len()), (1, 2));
    rig.release(&held);
    assert_eq!(rig.continue_resize(), (true, vec![1]));
    assert_eq!((rig.shard.usage().parity_slots, rig.verify.len()), (0, 3));
    assert!(rig.verify.iter().all(|(seal, kept)| seal.parity.is_some() && *kept == 0xff));
    assert_eq!(seal_all(&mut rig), 3, "the lines are sealed again, although without parity");
    assert_eq!(rig.shard.usage().parity_lines, 0, "the only slab is full of dirty lines");
    assert!(rig.resize(12).0);
    while let Some(found) = rig.shard.next_sealed() {
        rig.shard.inspected(&found, SealVerdict::Intact);
    }
    assert_eq!(rig.shard.usage().parity_lines, 3);
    rig.shard.self_check();
}

#[test]
fn parity_of_a_kept_slab_is_used_again() {
    let mut rig = rig(12, 3);
    rig.shard.set_parity(true);
    for line in 0..3 {
        assert_eq!(rig.write(line, line * LINE, LINE, 7), WriteOutcome::Done);
    }
    seal_all(&mut rig);
    assert_eq!(rig.resize(6), (true, vec![2, 3]));
    let (_, held) = rig.read(5, 0, 3 * LINE);
    assert_eq!(rig.resize(3), (false, vec![]), "the lines of the parity are pinned");
    assert!(rig.resize(12).0);
    rig.release(&held);
    assert_eq!(rig.write(6, 8 * LINE, LINE, 7), WriteOutcome::Done);
    seal_all(&mut rig);
    assert_eq!((rig.shard.usage().parity_lines, rig.shard.usage().parity_slots), (4, 1));
}

#[test]
fn a_step_moves_few_lines() {
    let mut rig = rig(1024, 512);
    for line in 0..100 {
        assert_eq!(rig.write(line, line * LINE, LINE, 500 + line), WriteOutcome::Done);
    }
    for first in [100, 300, 500, 700, 900] {
        rig.read_to_end(first * LINE, 200.min(1024 - first) * LINE);
    }
    let (_, held) = rig.read(200, 800 * LINE, 64 * LINE);
    rig.shard.resize(512);
    let (mut steps, mut moved) = (0, 0);
    loop {
        let step = rig.step_resize();
        (steps, moved) = (steps + 1, moved + rig.copies);
        assert!(rig.copies <= 64, "{} lines are moved in one step", rig.copies);
        match step {
            ResizeStep::Empty(slab) => rig.give_back(slab),
            ResizeStep::More | ResizeStep::TakenBack(_) => {}
            ResizeStep::Done | ResizeStep::Waiting => break,
        }
    }
    assert_eq!((moved, given_back(&rig)), (100, vec![0]));
    assert!((3..20).contains(&steps), "{steps} steps");
    rig.release(&held);
    for line in 0..100 {
        assert_eq!(rig.read_to_end(line * LINE, 512), [500 + line]);
    }
}

fn recover(lines: Vec<LineMeta>, slab_lines: usize) -> Shard<Table> {
    let slots = lines.len();
    let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
    let (table, policy) = (Table::new(lines), Box::new(Lru::new(slots)));
    let (shard, _) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    shard.self_check();
    shard
}

#[test]
fn an_adopted_table_shows_which_slabs_are_given_back() {
    let mut rig = rig(16, 4);
    rig.read_to_end(0, 6 * LINE);
    assert!(rig.resize(8).0);
    let lines = rig.shard.slots().table().to_vec();
    let mut shard = recover(lines.clone(), 4);
    assert_eq!(shard.usage().capacity_lines, 8);
    let slabs: Vec<usize> = shard.slots().slabs().given_back().map(|slab| slab.number).collect();
    assert_eq!(slabs, [2, 3]);
    assert_eq!(shard.slots().slabs().target(), 8);
    assert_eq!(shard.slots().used(), 6, "the memory of all other slots is still untouched");
    shard.resize(16);
    while shard.step_resize(&mut Outbox::default()) != ResizeStep::Done {}
    assert_eq!(shard.usage().capacity_lines, 16);
    shard.self_check();
    // The process was killed while it marked the last slab.
    let mut partly = lines;
    partly[13] = LineMeta::FREE;
    assert_eq!(recover(partly, 4).usage().capacity_lines, 12);
}

#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, count: u64 },
    Read { sector: u64, count: u64 },
    Hold { sector: u64 },
    Release(usize),
    Zero { sector: u64, count: u64 },
    Flush { fails: bool },
    Tick,
    Seal,
    SetLines(usize),
    Continue(u8),
    GiveBack,
    Pin { line: u64, count: u64 },
    LoadPins,
}

/// Sectors of the volume: twenty lines.
const SECTORS: u64 = 160;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range =
        || (0..SECTORS, 1..40u64).prop_map(|(sector, count)| (sector, count.min(SECTORS - sector)));
    prop::collection::vec(
        prop_oneof![
            6 => range().prop_map(|(sector, count)| Step::Write { sector, count }),
            6 => range().prop_map(|(sector, count)| Step::Read { sector, count }),
            1 => (0..SECTORS).prop_map(|sector| Step::Hold { sector }),
            2 => any::<usize>().prop_map(Step::Release),
            1 => range().prop_map(|(sector, count)| Step::Zero { sector, count }),
            1 => any::<bool>().prop_map(|fails| Step::Flush { fails }),
            1 => Just(Step::Tick),
            1 => Just(Step::Seal),
            2 => (0usize..20).prop_map(Step::SetLines),
            5 => (1u8..12).prop_map(Step::Continue),
            2 => Just(Step::GiveBack),
            1 => (0..SECTORS / 8, 0u64..12).prop_map(|(line, count)| Step::Pin { line, count }),
            1 => Just(Step::LoadPins),
        ],
        1..120,
    )
}

/// A shard that is resized, and the content that its volume must have.
struct World {
    rig: Rig,
    oracle: Vec<u64>,
    held: Vec<(u64, Vec<Segment>)>,
    empty: Vec<Slab>,
}

impl World {
    fn new(slots: usize, slab_lines: usize) -> Self {
        let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
        let mut rig = Rig::with(slots, SECTORS / 8, Mode::WriteBack, config);
        rig.shard.set_parity(slots.is_multiple_of(2));
        let oracle = (0..SECTORS).map(Rig::on_disk).collect();
        Self { rig, oracle, held: Vec::new(), empty: Vec::new() }
    }

    fn write(&mut self, sector: u64, count: u64, value: u64) {
        let mut attempt = Attempt::default();
        for _ in 0..64 {
            let (offset, len) = (sector * 512, count * 512);
            let outcome = self.rig.write_again(1, offset, len, value, false, attempt);
            self.rig.complete_all();
            if matches!(outcome, WriteOutcome::Done | WriteOutcome::Started) {
                self.oracle[sector as usize..(sector + count) as usize].fill(value);
                return;
            }
            attempt = attempt.after(None);
        }
        panic!("a write is never done");
    }

    fn read(&mut self, sector: u64, count: u64) {
        for count_before in 0..6 {
            let attempt = Attempt { count: count_before, ..Attempt::default() };
            let (outcome, segments) = self.rig.read_again(2, sector * 512, count * 512, attempt);
            self.rig.complete_all();
            if outcome == ReadOutcome::Ready {
                let expected = &self.oracle[sector as usize..(sector + count) as usize];
                assert_eq!(self.rig.values(&segments), expected);
            }
            self.rig.release(&segments);
            // A direct read takes its data from the disk, whose content is checked after a flush.
            if matches!(outcome, ReadOutcome::Ready | ReadOutcome::Started) {
                return;
            }
        }
        panic!("a read is never answered");
    }

    fn retained(&self) -> u64 {
        self.rig.shard.slots().warm().retained_lines(VOLUME)
    }

    fn step_resize(&mut self) -> ResizeStep {
        let dirty = self.rig.shard.usage().dirty_lines;
        let slabs = self.rig.shard.slots().slabs();
        let retained_max = retained_lines_max(slabs.usable().min(slabs.target()) as usize) as u64;
        let retained = self.retained();
        let step = self.rig.step_resize();
        assert_eq!(self.rig.shard.usage().dirty_lines, dirty, "a resize changes no dirty line");
        assert_eq!(self.retained(), retained.min(retained_max), "pinned lines that fit stay");
        let slabs = self.rig.shard.slots().slabs();
        match step {
            ResizeStep::Done => assert_eq!(slabs.usable(), slabs.target()),
            ResizeStep::Empty(slab) => self.empty.push(slab),
            ResizeStep::More | ResizeStep::Waiting | ResizeStep::TakenBack(_) => {}
        }
        step
    }

    fn apply(&mut self, step: &Step, value: u64) {
        match *step {
            Step::Write { sector, count } => self.write(sector, count, value),
            Step::Read { sector, count } => self.read(sector, count),
            Step::Hold { sector } => {
                let (outcome, segments) = self.rig.read(3, sector * 512, 512);
                self.rig.complete_all();
                match outcome {
                    ReadOutcome::Ready => {
                        self.held.push((self.oracle[sector as usize], segments));
                    }
                    _ => self.rig.release(&segments),
                }
            }
            Step::Release(at) if !self.held.is_empty() => {
                let (value, segments) = self.held.swap_remove(at % self.held.len());
                assert_eq!(self.rig.values(&segments), [value], "pinned data has changed");
                self.rig.release(&segments);
            }
            Step::Zero { sector, count } => {
                if self.rig.zero(4, sector * 512, count * 512) {
                    self.rig.complete_all();
                    self.oracle[sector as usize..(sector + count) as usize].fill(0);
                }
            }
            Step::Flush { fails: true } => {
                self.rig.flush(5);
                while !self.rig.ios.is_empty() {
                    self.rig.complete(0, Err(IoError::Io));
                }
            }
            Step::Flush { fails: false } => self.flush(),
            Step::Tick => {
                self.rig.now_ms += 6_000;
                self.rig.tick(self.rig.now_ms);
                self.rig.complete_all();
            }
            Step::Seal => {
                seal_all(&mut self.rig);
            }
            Step::SetLines(lines) => self.rig.shard.resize(lines),
            Step::Continue(count) => (0..count).for_each(|_| {
                self.step_resize();
            }),
            Step::GiveBack if !self.empty.is_empty() => {
                let slab = self.empty.remove(0);
                self.rig.give_back(slab);
            }
            Step::Pin { line, count } => {
                let mut pins = PinnedRanges::default();
                pins.add(ByteRange::new(line * LINE, count.min(SECTORS / 8 - line) * LINE));
                let lines = pins.lines();
                self.rig.shard.pinned().set(VOLUME, &Arc::new(pins), lines);
                self.rig.shard.pinned().follow(VOLUME, 0, Slot::MAX);
            }
            Step::LoadPins => {
                let (len, kind) = (SECTORS * 512, PreloadKind::Pinned);
                self.rig.preload_as(6, 0, len, u32::MAX, kind);
                self.rig.complete_all();
            }
            Step::Release(_) | Step::GiveBack => {}
        }
        self.rig.answers.clear();
    }

    fn flush(&mut self) {
        self.rig.flush(5);
        self.rig.complete_all();
        assert_eq!(self.rig.disk, self.oracle);
    }

    /// Releases and destages everything, after which the resize must reach its target.
    fn finish(&mut self) {
        for (value, segments) in std::mem::take(&mut self.held) {
            assert_eq!(self.rig.values(&segments), [value], "pinned data has changed");
            self.rig.release(&segments);
        }
        self.flush();
        for _ in 0..1000 {
            while let Some(slab) = self.empty.pop() {
                self.rig.give_back(slab);
            }
            if self.step_resize() == ResizeStep::Done {
                (0..SECTORS / 8).for_each(|line| self.read(line * 8, 8));
                assert_eq!(self.rig.shard.pins(), 0);
                return;
            }
        }
        panic!("the resize never ends");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_shard_that_shrinks_and_grows_loses_nothing(
        slots in 4usize..24,
        slab_lines in 1usize..8,
        steps in steps(),
    ) {
        let mut world = World::new(slots, slab_lines);
        for (value, step) in steps.iter().enumerate() {
            world.apply(step, value as u64);
        }
        world.finish();
    }
}

#[test]
fn a_retried_write_after_a_shrink_is_not_lost() {
    // Throttled at the limit of the larger shard, and retried in the smaller one.
    let config = ShardConfig { dirty_lines_max: 2, slab_lines: 2, ..ShardConfig::for_slots(8) };
    let mut rig = Rig::with(8, 16, Mode::WriteBack, config);
    assert_eq!(rig.write(1, 0, LINE, 1), WriteOutcome::Done);
    assert_eq!(rig.write(2, LINE, LINE, 2), WriteOutcome::Done);
    let throttled = rig.write(3, 2 * LINE, LINE, 3);
    rig.resize(2);
    rig.complete_all();
    let outcome = match throttled {
        WriteOutcome::Waiting => rig.write_again(3, 2 * LINE, LINE, 3, false, attempt_after(None)),
        outcome => outcome,
    };
    rig.complete_all();
    assert!(matches!(outcome, WriteOutcome::Done | WriteOutcome::Started), "{outcome:?}");
    assert_eq!(rig.flush(4).unwrap_or(Ok(())), Ok(()));
    rig.complete_all();
    assert_eq!([rig.disk[0], rig.disk[8], rig.disk[16]], [1, 2, 3]);
}
