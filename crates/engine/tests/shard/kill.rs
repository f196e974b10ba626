//! A process killed between any two stores to the line table, or in the middle of any copy: the
//! next process finds everything that was acknowledged, and no torn sector.

use crate::lru::Lru;
use crate::rig::{LINE, Rig, Snapshot, TORN, Table, VOLUME, attempt_after, index, run_steps};
use forebay_engine::{
    Fate, IoAction, IoVerb, LineKey, Outcome, ReadOutcome, ResizeStep, Segment, Shard, ShardConfig,
    Slab, TableDamage, WriteOutcome, abandon_unclaimed,
};
use forebay_policy::Weir;
use forebay_types::{IoError, Mode, VolumeId};
use proptest::prelude::*;

const LINES: u64 = 6;
const SECTORS: u64 = LINES * 8;

/// A request that has not been answered yet, and the value it writes.
struct Pending {
    id: u64,
    first: u64,
    count: u64,
    value: u64,
    is_retried: bool,
}

/// The values that each sector may hold: one of `settled`, or that of a pending request.
struct Oracle {
    settled: Vec<Vec<u64>>,
    pending: Vec<Pending>,
}

impl Oracle {
    fn new() -> Self {
        let settled = (0..SECTORS).map(|sector| vec![Rig::on_disk(sector)]).collect();
        Self { settled, pending: Vec::new() }
    }

    fn allows(&self, sector: u64, found: u64) -> bool {
        self.settled[sector as usize].contains(&found)
            || self
                .pending
                .iter()
                .any(|p| (p.first..p.first + p.count).contains(&sector) && p.value == found)
    }

    fn end(&mut self, id: u64, ok: bool) {
        let at = self.pending.iter().position(|p| p.id == id).unwrap();
        let Pending { first, count, value, .. } = self.pending.remove(at);
        for sector in first..first + count {
            let settled = &mut self.settled[sector as usize];
            if ok {
                settled.clear();
            }
            settled.push(value);
        }
    }
}

/// The content and the dirty sectors that recovery finds in a snapshot. With `deep`, also kills
/// recovery at every point and expects the same result.
fn recover_from(
    snapshot: &Snapshot,
    disk: &[u64],
    slab_lines: usize,
    deep: bool,
) -> (Vec<u64>, Vec<(LineKey, u8)>) {
    let slots = snapshot.lines.len();
    let table = Table::new(snapshot.lines.clone());
    let trace = std::sync::Arc::clone(&table.trace);
    *trace.lock().unwrap() = deep.then(Vec::new);
    let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
    let policy = Box::new(Weir::new(slots));
    let mut steps = Vec::new();
    let (mut shard, found) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut steps).unwrap();
    let mut pool = snapshot.pool.clone();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    let before = trace.lock().unwrap().as_mut().map(std::mem::take).unwrap_or_default();
    snapshots.extend(before.into_iter().map(|lines| Snapshot { lines, pool: pool.clone() }));
    let lines = shard.slots().table().to_vec();
    run_steps(steps, &mut pool, 0, |pool| {
        snapshots.push(Snapshot { lines: lines.clone(), pool: pool.to_vec() });
    });
    shard.finish_call();
    let after = trace.lock().unwrap().take().unwrap_or_default();
    snapshots.extend(after.into_iter().map(|lines| Snapshot { lines, pool: pool.clone() }));
    assert_eq!(shard.unclaimed(VOLUME), found.dirty_lines);
    shard.self_check();
    shard.add_volume(VOLUME, LINES * LINE, Mode::WriteBack);
    shard.self_check();
    assert_eq!((shard.pins(), shard.volume(VOLUME).dirty_lines() as u64), (0, found.dirty_lines));
    let content = |sector: u64| {
        let key = LineKey::new(VOLUME, sector / 8);
        let slot = shard.slots().find_valid(key, 1 << (sector % 8));
        slot.map_or(disk[sector as usize], |slot| pool[index(slot, sector as u32 % 8 * 512)])
    };
    let content: Vec<u64> = (0..SECTORS).map(content).collect();
    if deep {
        for snapshot in snapshots {
            let again = recover_from(&snapshot, disk, slab_lines, false);
            assert_eq!(again, (content.clone(), shard.dirty_sectors(VOLUME)));
        }
    }
    (content, shard.dirty_sectors(VOLUME))
}

/// One shard. After each call, recovery is checked from every point at which the process could have
/// been killed.
struct Killed {
    rig: Rig,
    oracle: Oracle,
    held: Vec<Vec<Segment>>,
    /// I/Os in flight when the current call began.
    in_flight: Vec<IoAction>,
    last: Option<Snapshot>,
    /// Empty slabs whose memory was not given back yet.
    empty: Vec<Slab>,
    slab_lines: usize,
    ids: u64,
    snapshots: usize,
}

impl Killed {
    fn new(slots: usize, slab_lines: usize, ordered: bool) -> Self {
        let config = ShardConfig { slab_lines, ..ShardConfig::for_slots(slots) };
        let mut rig = Rig::with(slots, LINES, Mode::WriteBack, config);
        if ordered {
            rig.shard.volume_mut(VOLUME).set_ordered();
            rig.epoch = 1;
        }
        rig.record_snapshots();
        Self {
            rig,
            oracle: Oracle::new(),
            held: Vec::new(),
            in_flight: Vec::new(),
            last: None,
            empty: Vec::new(),
            slab_lines,
            ids: 0,
            snapshots: 0,
        }
    }

    /// Checks every snapshot of a call twice: with none and with all of the writes and erases in
    /// flight applied to the disk.
    fn check_snapshots(&mut self) {
        let disk = self.rig.disk.clone();
        let pool = self.rig.pool.clone();
        let mut in_flight = std::mem::replace(&mut self.in_flight, self.rig.ios.clone());
        in_flight.retain(|io| io.verb != IoVerb::Read && self.rig.ios.contains(io));
        for io in &in_flight {
            self.rig.apply_io(io, Ok(()));
        }
        let cut = std::mem::replace(&mut self.rig.disk, disk);
        self.rig.pool = pool;
        let snapshots = std::mem::take(self.rig.snapshots.as_mut().unwrap());
        let last = snapshots.last().cloned().or(self.last.clone());
        for snapshot in std::mem::replace(&mut self.last, last).into_iter().chain(snapshots) {
            self.snapshots += 1;
            for disk in [&self.rig.disk, &cut] {
                let deep = self.snapshots.is_multiple_of(16);
                let (content, dirty) = recover_from(&snapshot, disk, self.slab_lines, deep);
                for (sector, &found) in (0..).zip(&content) {
                    assert!(found != TORN, "sector {sector} is torn");
                    assert!(self.oracle.allows(sector, found), "sector {sector} holds {found}");
                    let key = LineKey::new(VOLUME, sector / 8);
                    let is_dirty =
                        dirty.iter().any(|(k, m)| *k == key && m >> (sector % 8) & 1 != 0);
                    assert!(
                        is_dirty || found == disk[sector as usize],
                        "a clean sector differs from the disk"
                    );
                }
            }
        }
    }

    fn write(&mut self, first: u64, count: u64, staged: bool) {
        self.ids += 1;
        let (id, value) = (self.ids, self.ids);
        let slots = staged.then(|| self.rig.stage(first * 512, count * 512, value)).flatten();
        self.oracle.pending.push(Pending { id, first, count, value, is_retried: slots.is_none() });
        let outcome = match slots {
            None => self.rig.write(id, first * 512, count * 512, value),
            Some(slots) => {
                let (offset, len) = (first * 512, count * 512);
                let outcome = self.rig.write_staged(id, offset, len, &slots, attempt_after(None));
                if matches!(outcome, WriteOutcome::Waiting | WriteOutcome::Held { .. }) {
                    // As if the client had disconnected: the write is dropped without effect.
                    self.rig.unstage(&slots);
                    let at = self.oracle.pending.iter().position(|p| p.id == id).unwrap();
                    self.oracle.pending.remove(at);
                }
                outcome
            }
        };
        // During the call itself, the write is still pending.
        self.check_snapshots();
        self.record_outcome(id, outcome);
    }

    /// Records the outcome of a write. A held write may never be tried again.
    fn record_outcome(&mut self, id: u64, outcome: WriteOutcome) {
        match outcome {
            WriteOutcome::Done => self.oracle.end(id, true),
            WriteOutcome::Held { .. } => self.oracle.pending.retain(|p| p.id != id),
            _ => {}
        }
    }

    /// Flushes, or in an ordered shard destages an epoch.
    fn flush(&mut self) {
        if self.rig.epoch == 0 {
            self.rig.flush(1 << 41);
        } else if let Some(oldest) = self.rig.shard.oldest_epoch(VOLUME, self.rig.epoch) {
            self.rig.epoch += 1;
            self.rig.destage_epoch(1 << 41, oldest);
        }
    }

    fn zero(&mut self, first: u64, count: u64) {
        self.ids += 1;
        let id = self.ids;
        if self.rig.zero(id, first * 512, count * 512) {
            self.oracle.pending.push(Pending { id, first, count, value: 0, is_retried: false });
        }
    }

    fn handle_answers(&mut self) {
        for answer in std::mem::take(&mut self.rig.answers) {
            let id = answer.part.0;
            let Some(at) = self.oracle.pending.iter().position(|p| p.id == id) else { continue };
            match answer.outcome {
                Outcome::Done(result) => self.oracle.end(id, result.is_ok()),
                Outcome::Retry(error) => {
                    let &Pending { first, count, value, is_retried, .. } = &self.oracle.pending[at];
                    assert!(is_retried);
                    let attempt = attempt_after(error);
                    let (offset, len) = (first * 512, count * 512);
                    let outcome = self.rig.write_again(id, offset, len, value, false, attempt);
                    self.check_snapshots();
                    self.record_outcome(id, outcome);
                }
                Outcome::JournalFailed => unreachable!("there is no journal"),
                Outcome::InOrder => unreachable!("there is no dispatcher"),
            }
        }
    }

    fn step(&mut self, (kind, first, count): (u8, u64, u64)) {
        let count = count.min(SECTORS - first);
        match kind {
            0..8 => self.write(first, count, false),
            8..10 => self.write(first, count, true),
            10 => {
                let (outcome, segments) = self.rig.read(1 << 40, first * 512, count * 512);
                if outcome == ReadOutcome::Ready {
                    self.held.push(segments);
                }
            }
            11 if !self.held.is_empty() => {
                let segments = self.held.swap_remove(first as usize % self.held.len());
                self.rig.release(&segments);
            }
            12 => self.flush(),
            13 => self.zero(first, count),
            14 => {
                let mode = Mode::ALL[first as usize % 3];
                self.rig.shard.volume_mut(VOLUME).set_mode(mode);
            }
            24..30 => {
                if let ResizeStep::Empty(slab) = self.rig.step_resize() {
                    self.empty.push(slab);
                }
            }
            30 => self.rig.shard.resize(first as usize % (self.rig.pool.len() / 8 + 1)),
            31.. if !self.empty.is_empty() => {
                let slab = self.empty.swap_remove(first as usize % self.empty.len());
                self.rig.give_back(slab);
            }
            _ if !self.rig.ios.is_empty() => {
                let at = first as usize % self.rig.ios.len();
                let fails = kind == 15 && count > 6;
                self.rig.complete(at, if fails { Err(IoError::Io) } else { Ok(()) });
            }
            _ => {}
        }
        self.check_snapshots();
        self.handle_answers();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn killed_at_any_moment_a_shard_keeps_what_was_acknowledged(
        slots in 3usize..12,
        slab_lines in 1usize..6,
        ordered in any::<bool>(),
        steps in prop::collection::vec((0u8..33, 0..SECTORS, 1u64..20), 1..60),
    ) {
        let mut killed = Killed::new(slots, slab_lines, ordered);
        for step in steps {
            killed.step(step);
        }
    }
}

#[test]
fn recovered_lines_keep_their_slots_and_the_others_are_free() {
    let mut rig = Rig::new(8, 6, Mode::WriteBack);
    rig.read_to_end(0, 2 * LINE);
    assert_eq!(rig.write(1, 3 * LINE, LINE, 7), WriteOutcome::Done);
    let (policy, config) = (Box::new(Weir::new(8)), ShardConfig::for_slots(8));
    let table = Table::new(rig.shard.slots().table().to_vec());
    let mut steps = Vec::new();
    let (mut shard, found) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut steps).unwrap();
    assert_eq!((found.lines, found.dirty_lines, steps.len()), (3, 1, 0));
    shard.self_check();
    // The volume is not served: its dirty line stays, whatever else needs slots.
    let other = VolumeId(3);
    shard.add_volume(other, 64 * LINE, Mode::WriteBack);
    let mut slots = Vec::new();
    let range = forebay_types::ByteRange::new(0, 7 * LINE);
    assert!(shard.stage(other, range, &mut slots), "five slots are free and two clean");
    assert!(!shard.stage(other, forebay_types::ByteRange::new(0, 512), &mut slots));
    assert_eq!((shard.unclaimed(VOLUME), shard.usage().dirty_lines), (1, 1));
    slots.iter().for_each(|&slot| shard.release(slot));
    shard.add_volume(VOLUME, 6 * LINE, Mode::WriteThrough);
    assert_eq!((shard.unclaimed(VOLUME), shard.volume(VOLUME).dirty_lines()), (0, 1));
    shard.self_check();
}

#[test]
fn clean_lines_of_an_unserved_volume_can_be_dropped() {
    let mut rig = Rig::new(8, 6, Mode::WriteBack);
    rig.read_to_end(0, 2 * LINE);
    assert_eq!(rig.write(1, 3 * LINE, LINE, 7), WriteOutcome::Done);
    let (policy, config) = (Box::new(Weir::new(8)), ShardConfig::for_slots(8));
    let table = Table::new(rig.shard.slots().table().to_vec());
    let (mut shard, _) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    assert_eq!(shard.slots().resident_lines(VOLUME), 3);
    assert_eq!(shard.drop_clean(VOLUME, 0, 64), None);
    assert_eq!(shard.slots().resident_lines(VOLUME), 1, "the dirty line stays");
    shard.self_check();
}

/// I/O of the dead process may continue until the disk is locked again.
#[test]
fn all_lines_of_an_unserved_volume_can_be_abandoned() {
    let mut rig = Rig::new(8, 6, Mode::WriteBack);
    rig.read_to_end(0, 2 * LINE);
    assert_eq!(rig.write(1, 3 * LINE, LINE, 7), WriteOutcome::Done);
    let (policy, config) = (Box::new(Weir::new(8)), ShardConfig::for_slots(8));
    let table = Table::new(rig.shard.slots().table().to_vec());
    let (mut shard, _) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    assert_eq!(abandon_unclaimed(&mut shard, VolumeId(3)), 0);
    assert_eq!(shard.slots().resident_lines(VOLUME), 3);
    assert_eq!(abandon_unclaimed(&mut shard, VOLUME), 1);
    let counts = (shard.slots().resident_lines(VOLUME), shard.unclaimed(VOLUME));
    assert_eq!((counts, shard.usage().dirty_lines), ((0, 0), 0));
    shard.self_check();
    shard.add_volume(VOLUME, 6 * LINE, Mode::WriteBack);
    assert_eq!(shard.volume(VOLUME).dirty_lines(), 0);
    shard.self_check();
}

#[test]
fn slots_with_io_of_a_dead_process_are_not_reused() {
    let mut rig = Rig::new(4, 4, Mode::WriteBack);
    assert_eq!(rig.write(1, 512, 512, 7), WriteOutcome::Done);
    let (outcome, _) = rig.read(2, 0, 2 * LINE);
    assert_eq!((outcome, rig.ios.len()), (ReadOutcome::Waiting, 1), "one I/O fills two lines");
    let (policy, config) = (Box::new(Lru::new(4)), ShardConfig::for_slots(4));
    let table = Table::new(rig.shard.slots().table().to_vec());
    let mut steps = Vec::new();
    let (mut shard, found) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut steps).unwrap();
    shard.self_check();
    assert_eq!((found.lines, shard.pins()), (1, 2));
    let (other, mut slots) = (VolumeId(3), Vec::new());
    shard.add_volume(other, 64 * LINE, Mode::WriteBack);
    let range = forebay_types::ByteRange::new(0, 2 * LINE);
    assert!(shard.stage(other, range, &mut slots), "two slots were never used");
    assert!(!shard.stage(other, forebay_types::ByteRange::new(0, 512), &mut slots));
    shard.add_volume(VOLUME, 4 * LINE, Mode::WriteBack);
    assert!(shard.stage(other, forebay_types::ByteRange::new(0, 512), &mut slots));
    slots.iter().for_each(|&slot| shard.release(slot));
    assert_eq!(shard.pins(), 0);
    shard.self_check();
}

#[test]
fn a_damaged_table_is_refused() {
    let mut rig = Rig::new(4, 4, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 7), WriteOutcome::Done);
    let lines = rig.shard.slots().table().to_vec();
    let recover = |lines: Vec<_>, fate: Fate| {
        let (policy, config) = (Box::new(Lru::new(4)), ShardConfig::for_slots(4));
        let table = Table::new(lines);
        Shard::recover(table, policy, config, &|_| fate, &mut Vec::new()).err()
    };
    assert_eq!(recover(lines.clone(), Fate::Kept), None);
    assert_eq!(recover(lines.clone(), Fate::Gone), None);
    let key = LineKey::new(VOLUME, 0);
    assert_eq!(recover(lines.clone(), Fate::Unknown), Some(TableDamage::Stray(key)));
    let twice = vec![lines[0], lines[0], lines[1], lines[2]];
    assert_eq!(recover(twice, Fate::Kept), Some(TableDamage::Twice(key)));
}

/// The tests above fail with each of these planted bugs.
#[cfg(feature = "sabotage")]
#[test]
fn every_planted_recovery_bug_is_found() {
    use forebay_engine::PlantedBug;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    std::panic::set_hook(Box::new(|_| {}));
    for bug in [
        PlantedBug::OverwriteDirty,
        PlantedBug::TrustFilling,
        PlantedBug::ForgetDetached,
        PlantedBug::KeepValidInErase,
        PlantedBug::GiveBackDirty,
    ] {
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            proptest::test_runner::TestRng::deterministic_rng(
                proptest::test_runner::RngAlgorithm::ChaCha,
            ),
        );
        let steps = prop::collection::vec((0u8..33, 0..SECTORS, 1u64..20), 1..60);
        let plan = (3usize..12, 1usize..6, steps);
        let found = (0..500).any(|_| {
            let (slots, slab_lines, steps) = plan.new_tree(&mut runner).unwrap().current();
            let mut killed = Killed::new(slots, slab_lines, false);
            killed.rig.shard.plant(bug);
            let run = || steps.into_iter().for_each(|step| killed.step(step));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        });
        assert!(found, "{bug:?} is not found");
    }
}
