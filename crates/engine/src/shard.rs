//! The shard itself: its volumes, its slots, what is in flight, and the calls that manage them.

use crate::index::Slots;
use crate::index::key::LinePart;
use crate::index::meta::LineTable;
use crate::integrity::Patrol;
use crate::integrity::parity::Parity;
use crate::ops::gather::Gates;
use crate::ops::{Flight, Op, OpKind, WaitFor};
use crate::sabotage::PlantedBug;
use crate::volume::VolumeState;
use crate::writeback::elevator::Elevator;
use crate::{
    Attempt, IoId, LineKey, LineMeta, NoteKind, Outbox, Part, PartId, Protection, SLOTS_MAX, Slot,
    VolumeCounters,
};
use forebay_policy::{Eviction, Pace};
use forebay_types::{ByteRange, Mode, REGION_BYTES, Stripes, UnsafeSupply, VolumeId};
use std::sync::Arc;

/// As many destage operations as an array of some disks can do at once. More of them would only
/// have each other, and reads, wait.
const OPERATIONS_MAX: u32 = 32;

/// How much may be dirty, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Lines that may be dirty at once; beyond it, writes wait for the disk.
    pub dirty_lines_max: usize,
    /// Lines above which dirty ones are written back without waiting for their age.
    pub dirty_lines_background: usize,
    /// Dirty lines are written back between one and two times this age, in milliseconds, and up to
    /// 40 s later while the elevator runs and does not come by.
    pub dirty_age_ms: u64,
    /// Destage operations in flight per volume while a flush or a change of mode waits for them.
    pub destage_operations_max: u32,
    /// Destage operations in flight per volume, from all shards, while a writer waits for them.
    /// Otherwise there are the more of them, the nearer the limit is.
    pub destage_operations_all: u32,
}

impl ShardConfig {
    /// The default of [`ShardConfig::dirty_age_ms`].
    pub const DIRTY_AGE_MS: u64 = 5_000;

    /// Destage operations in flight that nobody waits for, from all shards, where so many lines are
    /// dirty in this one, and so many operations are due while there are few. As they rise and fall
    /// with what is dirty, that settles where the disk takes as much as is written.
    pub(crate) fn operations_for(&self, dirty_lines: usize, at_leisure: u32) -> u32 {
        let range = self.dirty_lines_max.saturating_sub(self.dirty_lines_background).max(1) as u64;
        let over = dirty_lines.saturating_sub(self.dirty_lines_background) as u64;
        let most = self.destage_operations_all.max(1);
        let more = u64::from(most.saturating_sub(at_leisure)) * over.min(range) / range;
        at_leisure.min(most) + more as u32
    }

    /// Lines that may still get dirty where so many are, of those above where the background
    /// begins.
    pub(crate) fn room(&self, dirty_lines: usize) -> (u64, u64) {
        let all = self.dirty_lines_max.saturating_sub(self.dirty_lines_background);
        let left = self.dirty_lines_max.saturating_sub(dirty_lines).min(all);
        (left as u64, all as u64)
    }

    /// Dirty lines below which nobody has to wait for room any more: some less than may be dirty,
    /// so that the disk is given more than one thing to do.
    pub(crate) const fn dirty_lines_enough(&self) -> usize {
        self.dirty_lines_max.saturating_sub(self.dirty_lines_max / 16 + 1)
    }

    /// The defaults for a shard of `slots` lines.
    pub const fn for_slots(slots: usize) -> Self {
        Self {
            // A third of the pool stays clean, so that reads are served and a write always finds
            // a line to take the place of.
            dirty_lines_max: slots - slots / 3,
            dirty_lines_background: slots / 2,
            dirty_age_ms: Self::DIRTY_AGE_MS,
            destage_operations_max: OPERATIONS_MAX / 2,
            destage_operations_all: OPERATIONS_MAX,
        }
    }

    /// The same for one of `shards` such shards of one cache, as it is one disk that is written.
    #[must_use]
    pub fn among(self, shards: usize) -> Self {
        let each = OPERATIONS_MAX / u32::try_from(shards).unwrap_or(u32::MAX).max(1);
        let most = self.destage_operations_max;
        Self { destage_operations_max: each.clamp(2, most), ..self }
    }
}

/// How full a shard is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardUsage {
    /// Lines it can hold.
    pub capacity_lines: u64,
    /// Lines it holds.
    pub resident_lines: u64,
    /// Lines with dirty sectors.
    pub dirty_lines: u64,
    /// Lines evicted so far.
    pub evicted_lines: u64,
    /// Operations in flight.
    pub operations: u64,
    /// Memory for everything but the data, in bytes.
    pub metadata_bytes: u64,
    /// Dirty lines that have parity.
    pub parity_lines: u64,
    /// Slots that hold it instead of lines.
    pub parity_slots: u64,
    /// Slots without a seal that the patrol has yet to look at. Some hold no line by now.
    pub unsealed_slots: u64,
    /// What the patrol has done.
    pub patrol: crate::PatrolCounters,
}

/// One shard of the cache.
pub struct Shard<M> {
    pub(crate) config: ShardConfig,
    pub(crate) slots: Slots<M>,
    pub(crate) flight: Flight,
    pub(crate) volumes: Vec<Option<VolumeState>>,
    pub(crate) parity: Parity,
    pub(crate) patrol: Patrol,
    pub(crate) gates: Gates,
    /// Dirty lines of all volumes.
    pub(crate) dirty_lines: usize,
    /// Lines of destage operations in flight, clean ones that go along among them.
    pub(crate) destaging_lines: usize,
    /// When a line became dirty last, in milliseconds.
    pub(crate) dirtied_ms: u64,
    /// Parts that wait for room, of all volumes.
    pub(crate) room_waiters: usize,
    /// When the last tick was, in milliseconds.
    pub(crate) ticked_ms: u64,
    /// Those of them that were found in the table, by volume, until the volume is added.
    pub(crate) unclaimed: Vec<u64>,
    /// Lines of the part at hand and their slots; kept for its capacity only.
    pub(crate) scratch: Vec<(LinePart, Option<Slot>)>,
    /// Slots for the lines of the part at hand that need one; empty between calls.
    pub(crate) reserved: Vec<Slot>,
    #[cfg(feature = "sabotage")]
    pub(crate) planted: Option<crate::PlantedBug>,
}

impl<M: LineTable> Shard<M> {
    /// An empty shard over a table of free lines, one for each slot of data.
    ///
    /// # Panics
    /// If the table is longer than [`SLOTS_MAX`] or a line in it is not free.
    pub fn new(lines: M, policy: Box<dyn Eviction>, config: ShardConfig) -> Self {
        assert!(lines.len() <= SLOTS_MAX, "a shard indexes at most {SLOTS_MAX} lines");
        debug_assert!(lines.iter().all(|line| *line == LineMeta::FREE));
        Self::over(lines, policy, config)
    }

    pub(crate) fn over(lines: M, policy: Box<dyn Eviction>, config: ShardConfig) -> Self {
        Self {
            config,
            slots: Slots::new(lines, policy),
            flight: Flight::default(),
            volumes: Vec::new(),
            parity: Parity::default(),
            patrol: Patrol::default(),
            gates: Gates::default(),
            dirty_lines: 0,
            destaging_lines: 0,
            dirtied_ms: 0,
            room_waiters: 0,
            ticked_ms: 0,
            unclaimed: Vec::new(),
            scratch: Vec::new(),
            reserved: Vec::new(),
            #[cfg(feature = "sabotage")]
            planted: None,
        }
    }

    /// Begins to serve a volume. Lines that were found of it are its own.
    ///
    /// # Panics
    /// If the number is in use.
    pub fn add_volume(&mut self, volume: VolumeId, size_bytes: u64, mode: Mode) {
        let at = usize::from(volume.0);
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, || None);
        }
        assert!(self.volumes[at].is_none(), "{volume} is served already");
        self.volumes[at] = Some(VolumeState::new(size_bytes, mode, self.slots.capacity()));
        self.claim(volume);
    }

    /// Says how a volume is divided. To be said when it has been added.
    pub fn set_stripes(&mut self, volume: VolumeId, stripes: Stripes) {
        self.volume_mut(volume).set_stripes(stripes);
    }

    /// Has the volume written back in one order with the other shards that it is in, of which this
    /// is number `shard`, from 0 on. To be said when it has been added, before anything of it is on
    /// its way.
    pub fn set_elevator(&mut self, volume: VolumeId, elevator: Arc<Elevator>, shard: usize) {
        let state = self.volume_mut(volume);
        (state.elevator, state.elevator_shard) = (elevator, shard);
    }

    /// Forgets a volume and its lines.
    ///
    /// # Panics
    /// If a line of it is dirty or an operation in flight: flush it and wait first.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        assert!(state.dirty.is_empty(), "{volume} is removed with dirty lines");
        assert_eq!(state.operations, 0, "{volume} is removed with operations in flight");
        state.elevator.call(state.elevator_shard, None);
        state.elevator.release(state.elevator_shard);
        self.room_waiters -= state.room_queue.len();
        self.drop_all_clean(volume);
        self.volumes[usize::from(volume.0)] = None;
    }

    /// Changes how a volume is cached, from the next request on. What is dirty is destaged in the
    /// background when the new mode has no place for it. What is clean stays until it is dropped,
    /// by [`Shard::drop_clean`] or for another line; in bypass, what is dirty or in use goes when
    /// it no longer is.
    pub fn set_mode(&mut self, volume: VolumeId, mode: Mode) {
        let slots = self.slots.capacity();
        self.volume_mut(volume).set_mode(mode, slots);
    }

    /// Notes whether somebody waits for reads of a volume's disk just now. Background write-back
    /// then steps aside; see [`Shard::set_pace`].
    pub fn set_reading(&mut self, volume: VolumeId, reading: bool) {
        self.volume_mut(volume).reading = reading;
    }

    /// Says how fast what is dirty of a volume may be written back from here. Beside reads it goes
    /// faster than that the nearer the dirty limit is. A flush and a change of mode wait for none
    /// of it; who waits for room waits for the limits that hold at any time.
    pub fn set_pace(&mut self, volume: VolumeId, pace: Pace) {
        self.volume_mut(volume).allowance.set_pace(pace);
    }

    /// Says from which size on, in bytes, writes of a volume are not held back, as gathering them
    /// with others brings next to nothing. A part that is as long as parts can be is never held.
    pub fn set_gather_below(&mut self, volume: VolumeId, bytes: u64) {
        self.volume_mut(volume).gather_below = bytes.min(REGION_BYTES);
    }

    /// What [`Shard::set_gather_below`] has set, in bytes.
    pub fn gather_below(&self, volume: VolumeId) -> u64 {
        self.volume(volume).gather_below
    }

    /// Sets what keeps the volume's dirty data besides the pool, from the next request on.
    ///
    /// # Panics
    /// When dirty data would lose the protection under which it was acknowledged.
    pub fn set_protection(&mut self, volume: VolumeId, protection: Protection) {
        let state = self.volume_mut(volume);
        let is_kept = protection != Protection::None || state.protection == Protection::None;
        assert!(is_kept || state.dirty.is_empty(), "dirty data would lose its protection");
        state.protection = protection;
    }

    /// Chooses what a write that a UPS does not cover is acknowledged from, from the next one on.
    pub fn set_unsafe_supply(&mut self, volume: VolumeId, choice: UnsafeSupply) {
        self.volume_mut(volume).unsafe_supply = choice;
    }

    /// Whether a UPS alone protects the volume's writes, and those that it does not cover are to be
    /// on the disk's stable storage before they are acknowledged. A volume that is not write-back
    /// promises no more than its disk does.
    pub fn promises_stable(&self, volume: VolumeId) -> bool {
        let state = self.volume(volume);
        state.mode == Mode::WriteBack
            && state.protection == Protection::Power
            && state.unsafe_supply == UnsafeSupply::Stable
            && !self.is_planted(PlantedBug::AcknowledgeFromDiskCache)
    }

    /// The mode of a volume.
    pub fn mode(&self, volume: VolumeId) -> Mode {
        self.volume(volume).mode
    }

    /// Takes the lines of a volume that are clean and idle out of the pool, among `count` slots
    /// from `first` on. Returns the slot to go on from, or `None` when it has seen all. Large pools
    /// take long to look through, so others are let at the shard in between.
    pub fn drop_clean(&mut self, volume: VolumeId, first: Slot, count: Slot) -> Option<Slot> {
        let end = self.slots.used();
        let next = first.saturating_add(count).min(end);
        for slot in first..next {
            if self.slots.residents(volume) == 0 {
                return None;
            }
            let line = *self.slots.get(slot);
            let ours = line.key != crate::LineKey::NONE && line.key.volume() == volume;
            if ours && self.slots.find(line.key) == Some(slot) {
                self.drop_if_idle(slot);
            }
        }
        (next < end).then_some(next)
    }

    /// Takes a line out of the pool unless it is dirty or an operation has it.
    pub(crate) fn drop_if_idle(&mut self, slot: Slot) {
        let line = self.slots.get(slot);
        if line.dirty == 0 && self.flight.busy(line.key).is_none() {
            self.slots.drop_line(slot);
        }
    }

    pub(crate) fn drop_all_clean(&mut self, volume: VolumeId) {
        let done = self.drop_clean(volume, 0, Slot::MAX);
        assert!(done.is_none(), "no slot is behind the last one");
    }

    /// Lines of the volume with dirty sectors.
    pub fn dirty_lines(&self, volume: VolumeId) -> usize {
        self.volume(volume).dirty.len()
    }

    /// Operations of the volume in flight.
    pub fn operations(&self, volume: VolumeId) -> u32 {
        self.volume(volume).operations
    }

    /// Operations of the volume in flight that write back.
    pub fn destaging(&self, volume: VolumeId) -> u32 {
        self.volume(volume).destaging
    }

    /// What happened to the volume here.
    pub fn counters(&self, volume: VolumeId) -> &VolumeCounters {
        &self.volume(volume).counters
    }

    /// Whether the volume is served.
    pub fn has_volume(&self, volume: VolumeId) -> bool {
        self.volumes.get(usize::from(volume.0)).is_some_and(Option::is_some)
    }

    /// Resident lines of the volume.
    pub fn resident_lines(&self, volume: VolumeId) -> u64 {
        self.slots.residents(volume).into()
    }

    /// Pins held by operations and replies, all lines together. Looks at every line.
    pub fn pins(&self) -> u64 {
        let held = self.slots.lines.iter().filter(|line| line.key != crate::LineKey::NONE);
        held.map(|line| u64::from(line.pins)).sum()
    }

    /// Slots that were ever used. They are used in ascending order, so the data of the others has
    /// never been touched.
    pub const fn used_slots(&self) -> Slot {
        self.slots.used()
    }

    /// Looks into its index that need no lock.
    pub fn hints(&self) -> crate::Hints {
        self.slots.hints()
    }

    /// How full the shard is.
    pub fn usage(&self) -> ShardUsage {
        let volumes: usize = self.volumes.iter().flatten().map(VolumeState::metadata_bytes).sum();
        ShardUsage {
            capacity_lines: self.slots.capacity() as u64,
            resident_lines: self.slots.resident() as u64,
            dirty_lines: self.dirty_lines as u64,
            evicted_lines: self.slots.evictions,
            operations: self.flight.in_flight() as u64,
            metadata_bytes: (self.slots.metadata_bytes()
                + self.flight.metadata_bytes()
                + self.gates.metadata_bytes()
                + self.parity.metadata_bytes()
                + volumes) as u64,
            parity_lines: self.parity.lines() as u64,
            parity_slots: self.parity.slots() as u64,
            unsealed_slots: self.slots.unsealed.len() as u64,
            patrol: self.patrol.counters,
        }
    }

    /// Lets go of a slot that a segment handed out by [`Shard::read`] named.
    pub fn release(&mut self, slot: Slot) {
        self.slots.unpin(slot);
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> &VolumeState {
        self.volumes[usize::from(volume.0)].as_ref().expect("the driver names served volumes only")
    }

    pub(crate) fn volume_mut(&mut self, volume: VolumeId) -> &mut VolumeState {
        self.volumes[usize::from(volume.0)].as_mut().expect("the driver names served volumes only")
    }

    /// Starts an operation of `ios` I/Os.
    pub(crate) fn start(&mut self, op: Op) -> IoId {
        let volume = op.volume;
        let (kind, lines) = (op.kind, op.lines.len());
        let (op, generation) = self.flight.start(op);
        let state = self.volume_mut(volume);
        state.operations += 1;
        if kind == OpKind::Destage {
            state.destaging += 1;
            state.elevator.began(lines);
            self.destaging_lines += lines;
        }
        IoId { op, generation }
    }

    /// Makes a part wait for an operation.
    pub(crate) fn wait(&mut self, op: u32, part: &Part, wait_for: WaitFor) {
        self.flight.wait(op, part.id, wait_for);
        self.volume_mut(part.volume).counters.waits += 1;
    }

    /// Whether a journal is to be told of what a part changes.
    pub(crate) fn tells_journal(&self, part: &Part) -> bool {
        self.volume(part.volume).protection == Protection::Journal && !part.restores
    }

    /// What the journal is to be told of a part that goes to the disk.
    pub(crate) fn note_for(&self, part: &Part, kind: NoteKind) -> Option<(NoteKind, ByteRange)> {
        self.tells_journal(part).then_some((kind, part.range))
    }

    pub(crate) fn assert_part(&self, part: &Part) {
        let range = part.range;
        assert!(range.len > 0 && range.is_sector_aligned(), "a part of {range}");
        assert!(range.fits(self.volume(part.volume).size_bytes), "{range} outside of the volume");
        assert!(self.slots.is_settled(), "the memory steps of the last call were not settled");
    }

    fn check_waiting(&self, state: &VolumeState) {
        let mut waiting: Vec<_> = state.waiting.from(0).collect();
        let dirty = state.dirty.iter().map(|slot| self.slots.get(slot).key);
        // A line that was clean when it went along with its stripe may be dirty again.
        let on_its_way = |key| self.flight.busy(key).is_some_and(|(_, k)| k == OpKind::Destage);
        let due = |key: &LineKey| !on_its_way(*key) || state.waiting.holds(key.line(), 1);
        let mut due: Vec<_> = dirty.filter(due).map(LineKey::line).collect();
        due.sort_unstable();
        waiting.sort_unstable();
        assert_eq!(waiting, due, "what is dirty waits, or is on its way");
    }

    /// Panics where the shard contradicts itself. For tests and the lab: it looks at every line.
    pub fn self_check(&self) {
        self.slots.self_check();
        let mut dirty = 0;
        for (at, state) in self.volumes.iter().enumerate() {
            let Some(state) = state else { continue };
            for slot in state.dirty.iter() {
                let line = self.slots.get(slot);
                assert!(line.dirty != 0, "the dirty set holds dirty lines only");
                assert_eq!(usize::from(line.key.volume().0), at);
            }
            if let Some(order) = &state.order {
                order.self_check(&state.dirty, &self.slots);
            } else {
                self.check_waiting(state);
            }
            dirty += state.dirty.len();
        }
        dirty += self.volumes.iter().flatten().map(VolumeState::frozen_lines).sum::<usize>();
        dirty += self.unclaimed.iter().sum::<u64>() as usize;
        let dirty_in_table = self.slots.lines.iter().filter(|line| line.dirty != 0).count();
        assert_eq!(dirty, dirty_in_table, "every dirty line is in its volume's dirty set");
        assert_eq!(dirty, self.dirty_lines);
        let waiters = self.volumes.iter().flatten().map(|state| state.room_queue.len());
        assert_eq!(waiters.sum::<usize>(), self.room_waiters);
        self.check_patrol();
        self.check_gates();
        for op in self.flight.iter() {
            for line in &op.lines {
                let pinned =
                    line.slot == crate::index::meta::NO_SLOT || self.slots.get(line.slot).pins > 0;
                assert!(pinned, "an operation pins its slots");
            }
        }
    }
}

impl Attempt {
    /// The attempt that follows when this one's wait has ended like that.
    #[must_use]
    pub const fn after(self, error: Option<forebay_types::IoError>) -> Self {
        Self { count: self.count.saturating_add(1), error, ..self }
    }
}

/// An operation over some lines that answers `part`.
pub(crate) const fn operation(
    kind: OpKind,
    volume: VolumeId,
    lines: Vec<crate::ops::OpLine>,
    part: Option<PartId>,
    ios: usize,
) -> Op {
    let ios_pending = ios as u32;
    Op {
        kind,
        volume,
        lines,
        part,
        waiters: Vec::new(),
        ios_pending,
        error: None,
        note: None,
        is_wide: false,
        gated: None,
    }
}

/// Adds an I/O for each of an operation's prepared ranges to the outbox.
pub(crate) fn emit(
    out: &mut Outbox,
    id: IoId,
    verb: crate::IoVerb,
    volume: VolumeId,
    part: Option<PartId>,
    runs: impl IntoIterator<Item = crate::modes::read::Run>,
) {
    out.ios.extend(runs.into_iter().map(|run| crate::IoAction {
        id,
        verb,
        volume,
        range: run.range,
        segments: run.segments,
        part,
        seals: run.seals,
    }));
}
