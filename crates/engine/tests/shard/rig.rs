//! One shard with a pool and a disk, driven by hand: each I/O completes when the test says so.
//!
//! One number stands for the content of a sector. The disk initially holds [`Rig::on_disk`].

use crate::lru::Lru;
use forebay_engine::{
    Answer, Attempt, EraseKind, EraseOutcome, IoAction, IoId, IoVerb, LineKey, LineMeta,
    MemoryStep, Outbox, Outcome, Part, PartId, Place, PreloadKind, PreloadOutcome, ReadOutcome,
    ResizeStep, Seal, Segment, Shard, ShardConfig, Slab, Slot, WriteOutcome, WriteTerms,
    erasable_until, erase_long,
};
use forebay_policy::{Eviction, Weir};
use forebay_types::{ByteRange, IoError, IoResult, Mode, SECTOR_BYTES, VolumeId};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

pub const VOLUME: VolumeId = VolumeId(0);
pub const LINE: u64 = 4096;

/// A line table that can record its state before each change.
#[derive(Default)]
pub struct Table {
    lines: Vec<LineMeta>,
    pub trace: Arc<Mutex<Option<Vec<Vec<LineMeta>>>>>,
}

impl Table {
    pub fn new(lines: Vec<LineMeta>) -> Self {
        Self { lines, trace: Arc::default() }
    }
}

impl Deref for Table {
    type Target = [LineMeta];

    fn deref(&self) -> &[LineMeta] {
        &self.lines
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut [LineMeta] {
        if let Some(trace) = &mut *self.trace.lock().unwrap() {
            trace.push(self.lines.clone());
        }
        &mut self.lines
    }
}

/// The memory that a killed process leaves behind.
#[derive(Clone)]
pub struct Snapshot {
    pub lines: Vec<LineMeta>,
    pub pool: Vec<u64>,
}

/// The content of a sector that was half copied.
pub const TORN: u64 = 0xdead_0000_dead;

/// Carries out memory steps, and calls `stop` in the middle of each sector and after it.
pub fn run_steps(
    steps: impl IntoIterator<Item = MemoryStep>,
    pool: &mut [u64],
    value: u64,
    mut stop: impl FnMut(&[u64]),
) {
    for step in steps {
        let (slot, offset, len) = match step {
            MemoryStep::Fill { slot, offset, len, .. } => (slot, offset, len),
            MemoryStep::Copy { to, offset, len, .. } => (to, offset, len),
            MemoryStep::Verify { .. } => continue,
        };
        for sector in 0..len / 512 {
            let at = index(slot, offset + sector * 512);
            let content = match step {
                MemoryStep::Fill { .. } => value,
                MemoryStep::Copy { from, .. } => pool[index(from, offset + sector * 512)],
                MemoryStep::Verify { .. } => unreachable!("a verify step copies nothing"),
            };
            pool[at] = TORN;
            stop(pool);
            pool[at] = content;
            stop(pool);
        }
    }
}

pub struct Rig {
    /// The volume of the next calls. All volumes have the same disk, so a test that uses several
    /// gives each other lines.
    pub volume: VolumeId,
    pub shard: Shard<Table>,
    trace: Arc<Mutex<Option<Vec<Vec<LineMeta>>>>>,
    /// Snapshots since the list was last emptied, if they are recorded.
    pub snapshots: Option<Vec<Snapshot>>,
    /// The values of writes, by part.
    values: HashMap<u64, u64>,
    pub pool: Vec<u64>,
    pub disk: Vec<u64>,
    /// I/Os in flight, oldest first.
    pub ios: Vec<IoAction>,
    pub answers: Vec<Answer>,
    /// Shards to wake, starting with the last one.
    pub wakes: Vec<usize>,
    /// Sealed lines to verify before a change, with the sectors that the change keeps.
    pub verify: Vec<(Seal, u8)>,
    /// The number of copies between slots in the last step of a resize.
    pub copies: usize,
    /// Prefetched lines that were reported as read for the first time.
    pub prefetch_uses: u32,
    /// Marked lines that were used.
    pub marks: usize,
    /// The current epoch.
    pub epoch: u64,
    /// The current time.
    pub now_ms: u64,
    out: Outbox,
}

impl Rig {
    pub fn new(slots: usize, lines: u64, mode: Mode) -> Self {
        Self::with(slots, lines, mode, ShardConfig::for_slots(slots))
    }

    pub fn with(slots: usize, lines: u64, mode: Mode, config: ShardConfig) -> Self {
        Self::with_policy(Box::new(Lru::new(slots)), slots, lines, mode, config)
    }

    /// A rig with the policy of the server.
    pub fn with_weir(slots: usize, lines: u64, mode: Mode) -> Self {
        let config = ShardConfig::for_slots(slots);
        Self::with_policy(Box::new(Weir::new(slots)), slots, lines, mode, config)
    }

    fn with_policy(
        policy: Box<dyn Eviction>,
        slots: usize,
        lines: u64,
        mode: Mode,
        config: ShardConfig,
    ) -> Self {
        let table = Table::new(vec![LineMeta::FREE; slots]);
        let trace = Arc::clone(&table.trace);
        let mut shard = Shard::new(table, policy, config);
        shard.add_volume(VOLUME, lines * LINE, mode);
        Self {
            volume: VOLUME,
            shard,
            trace,
            snapshots: None,
            values: HashMap::new(),
            pool: vec![u64::MAX; slots * 8],
            disk: (0..lines * 8).map(Self::on_disk).collect(),
            ios: Vec::new(),
            answers: Vec::new(),
            wakes: Vec::new(),
            verify: Vec::new(),
            copies: 0,
            prefetch_uses: 0,
            marks: 0,
            epoch: 0,
            now_ms: 0,
            out: Outbox::default(),
        }
    }

    /// The initial content of a sector on the disk.
    pub const fn on_disk(sector: u64) -> u64 {
        1_000_000 + sector
    }

    fn part(&self, id: u64, offset: u64, len: u64) -> Part {
        Part {
            id: PartId(id),
            volume: self.volume,
            range: ByteRange::new(offset, len),
            restores: false,
        }
    }

    /// Starts to record a snapshot at each change of the table or the pool.
    pub fn record_snapshots(&mut self) {
        *self.trace.lock().unwrap() = Some(Vec::new());
        self.snapshots = Some(Vec::new());
    }

    fn take_trace(&mut self) {
        let lines = self.trace.lock().unwrap().as_mut().map(std::mem::take);
        if let Some(snapshots) = &mut self.snapshots {
            let pool = &self.pool;
            let snapshot = |lines| Snapshot { lines, pool: pool.clone() };
            snapshots.extend(lines.unwrap_or_default().into_iter().map(snapshot));
        }
    }

    fn finish_call(&mut self, value: u64) {
        self.take_trace();
        let steps: Vec<MemoryStep> = self.out.memory.drain(..).collect();
        self.verify.extend(steps.iter().filter_map(|step| match step {
            MemoryStep::Verify { seal, kept } => Some((*seal, *kept)),
            _ => None,
        }));
        let Self { shard, snapshots, pool, .. } = self;
        let lines = snapshots.is_some().then(|| shard.slots().table().to_vec());
        run_steps(steps, pool, value, |pool| {
            if let (Some(snapshots), Some(lines)) = (snapshots.as_mut(), &lines) {
                snapshots.push(Snapshot { lines: lines.clone(), pool: pool.to_vec() });
            }
        });
        self.shard.finish_call();
        self.take_trace();
        if let Some(snapshots) = &mut self.snapshots {
            let lines = self.shard.slots().table().to_vec();
            snapshots.push(Snapshot { lines, pool: self.pool.clone() });
        }
        self.ios.append(&mut self.out.ios);
        self.answers.append(&mut self.out.answers);
        self.wakes.extend(self.out.wakes.drain(..).map(|(shard, _)| shard));
        self.marks += std::mem::take(&mut self.out.marks).len();
        self.prefetch_uses += self.out.prefetch_uses.take().map_or(0, |(_, lines)| lines);
        self.shard.self_check();
    }

    /// Writes `value` to every sector of a range.
    pub fn write(&mut self, id: u64, offset: u64, len: u64, value: u64) -> WriteOutcome {
        self.write_again(id, offset, len, value, false, Attempt::default())
    }

    /// Writes again after a wait.
    pub fn retry(&mut self, id: u64, offset: u64, len: u64, value: u64) -> WriteOutcome {
        self.write_again(id, offset, len, value, false, attempt_after(None))
    }

    /// As [`Rig::retry`], with FUA.
    pub fn retry_fua(&mut self, id: u64, offset: u64, len: u64, value: u64) -> WriteOutcome {
        self.write_again(id, offset, len, value, true, attempt_after(None))
    }

    pub fn write_again(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        value: u64,
        fua: bool,
        attempt: Attempt,
    ) -> WriteOutcome {
        let part = self.part(id, offset, len);
        self.values.insert(id, value);
        let terms =
            WriteTerms { fua, epoch: self.epoch, now_ms: self.now_ms, ..WriteTerms::default() };
        let outcome = self.shard.write(&part, terms, attempt, &mut self.out);
        self.finish_call(value);
        outcome
    }

    /// Begins a turn, whose I/Os start together later.
    pub fn turn(&mut self, turn: u64) {
        self.out.turn = turn;
    }

    /// Stages slots for a payload and fills them with `value`.
    pub fn stage(&mut self, offset: u64, len: u64, value: u64) -> Option<Vec<Slot>> {
        let mut slots = Vec::new();
        let range = ByteRange::new(offset, len);
        let has_room = self.shard.stage(self.volume, range, &mut slots);
        self.take_trace();
        self.shard.self_check();
        for sector in 0..len / SECTOR_BYTES {
            let at = offset % LINE + sector * SECTOR_BYTES;
            let slot = *slots.get((at / LINE) as usize)?;
            self.pool[index(slot, (at % LINE) as u32)] = value;
        }
        has_room.then_some(slots)
    }

    pub fn write_staged(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        slots: &[Slot],
        attempt: Attempt,
    ) -> WriteOutcome {
        let part = self.part(id, offset, len);
        let outcome =
            self.shard.write_staged(&part, WriteTerms::default(), attempt, slots, &mut self.out);
        self.finish_call(0);
        outcome
    }

    pub fn unstage(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|&slot| self.shard.release(slot));
        self.shard.self_check();
    }

    pub fn read(&mut self, id: u64, offset: u64, len: u64) -> (ReadOutcome, Vec<Segment>) {
        self.read_again(id, offset, len, Attempt::default())
    }

    pub fn read_again(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        attempt: Attempt,
    ) -> (ReadOutcome, Vec<Segment>) {
        let part = self.part(id, offset, len);
        let mut segments = Vec::new();
        let (outcome, _) = self.shard.read(&part, attempt, &mut segments, &mut self.out);
        self.finish_call(0);
        (outcome, segments)
    }

    pub fn prefetch(&mut self, offset: u64, len: u64) -> u64 {
        self.prefetch_marked(offset, len, None)
    }

    /// As [`Rig::prefetch`], with a mark on a line.
    pub fn prefetch_marked(&mut self, offset: u64, len: u64, mark: Option<u64>) -> u64 {
        let range = ByteRange::new(offset, len);
        let lines = self.shard.prefetch(self.volume, range, mark, &mut self.out);
        self.finish_call(0);
        lines
    }

    pub fn preload(&mut self, id: u64, offset: u64, len: u64, mask: u32) -> PreloadOutcome {
        self.preload_as(id, offset, len, mask, PreloadKind::Warm)
    }

    /// The preloaded lines that were read.
    pub fn preloads_used(&self) -> &[LineKey] {
        &self.out.preloads_used
    }

    pub fn preload_as(
        &mut self,
        id: u64,
        offset: u64,
        len: u64,
        mask: u32,
        kind: PreloadKind,
    ) -> PreloadOutcome {
        let part = self.part(id, offset, len);
        let outcome = self.shard.preload(&part, mask, kind, &mut self.out);
        self.finish_call(0);
        outcome
    }

    pub fn zero(&mut self, id: u64, offset: u64, len: u64) -> bool {
        self.zero_again(id, offset, len, Attempt::default()) == EraseOutcome::Started
    }

    pub fn zero_again(&mut self, id: u64, offset: u64, len: u64, attempt: Attempt) -> EraseOutcome {
        let kind = EraseKind::Zero { unmap: false };
        let part = self.part(id, offset, len);
        let outcome = self.shard.erase(&part, kind, attempt, &mut self.out);
        self.finish_call(0);
        outcome
    }

    /// The end of what a long erase could erase of a range from its start.
    pub fn erasable_until(&mut self, offset: u64, len: u64) -> u64 {
        let part = self.part(0, offset, len);
        erasable_until(&mut self.shard, &part, &[part.range])
    }

    /// Begins a long erase, in which this shard or another one leads.
    pub fn zero_long(&mut self, id: u64, offset: u64, len: u64, leads: bool) -> Option<IoId> {
        let part = self.part(id, offset, len);
        let kind = leads.then_some(EraseKind::Zero { unmap: false });
        let io = erase_long(&mut self.shard, &part, &[part.range], kind, &mut self.out);
        self.finish_call(0);
        io
    }

    /// Ends a long erase that another shard leads.
    pub fn end_long(&mut self, io: IoId, result: IoResult) {
        self.shard.complete(io, result, self.now_ms, &mut self.out);
        self.finish_call(0);
    }

    /// Destages the epochs up to `last`.
    pub fn destage_epoch(&mut self, id: u64, last: u64) -> Option<IoResult> {
        let result =
            self.shard.destage_epoch(self.volume, last, PartId(id), self.now_ms, &mut self.out);
        self.finish_call(0);
        result
    }

    /// Declares that a part waits for all epochs below `epoch`.
    pub fn expedite_epochs(&mut self, epoch: u64) {
        self.shard.expedite_epochs(self.volume, epoch, self.now_ms, &mut self.out);
        self.finish_call(0);
    }

    pub fn flush(&mut self, id: u64) -> Option<IoResult> {
        let result = self.shard.flush(self.volume, PartId(id), 0, &mut self.out);
        self.finish_call(0);
        result
    }

    /// Flushes, and completes all I/Os with success.
    pub fn checkpoint(&mut self, id: u64) -> Option<IoResult> {
        let done = forebay_engine::checkpoint(
            &mut self.shard,
            self.volume,
            PartId(id),
            self.now_ms,
            &mut self.out,
        );
        self.finish_call(0);
        done
    }

    pub fn flush_to_end(&mut self, id: u64) -> IoResult {
        assert_eq!(self.flush(id), None);
        self.complete_all();
        match self.take_outcome(id) {
            Some(Outcome::Done(result)) => result,
            outcome => panic!("the flush ends with {outcome:?}"),
        }
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.shard.tick(now_ms, &mut self.out);
        self.finish_call(0);
    }

    /// Wakes the shard to resume the elevator.
    pub fn wake(&mut self) {
        self.shard.wake(self.volume, self.now_ms, &mut self.out);
        self.finish_call(0);
    }

    /// Completes the I/O at index `at` of [`Rig::ios`].
    pub fn complete(&mut self, at: usize, result: IoResult) {
        let io = self.ios.remove(at);
        self.take_trace();
        self.apply_io(&io, result);
        self.shard.complete(io.id, result, self.now_ms, &mut self.out);
        self.finish_call(0);
    }

    /// Applies an I/O to disk and pool.
    pub fn apply_io(&mut self, io: &IoAction, result: IoResult) {
        let value = io.part.and_then(|part| self.values.get(&part.0)).copied().unwrap_or(0);
        let mut sector = (io.range.offset / SECTOR_BYTES) as usize;
        let last = (io.range.end() / SECTOR_BYTES) as usize;
        if matches!(io.verb, IoVerb::Zero { .. } | IoVerb::Discard) && result.is_ok() {
            self.disk[sector..last].fill(0);
        }
        for segment in &io.segments {
            let count = (u64::from(segment.len) / SECTOR_BYTES) as usize;
            let on_disk = &mut self.disk[sector..sector + count];
            sector += count;
            match (segment.place, io.verb) {
                _ if result.is_err() => {}
                (Place::Slot { slot, offset }, IoVerb::Read) => {
                    let at = index(slot, offset);
                    self.pool[at..at + count].copy_from_slice(on_disk);
                }
                (Place::Slot { slot, offset }, _) => {
                    let at = index(slot, offset);
                    on_disk.copy_from_slice(&self.pool[at..at + count]);
                }
                (_, IoVerb::Write { .. }) => on_disk.fill(value),
                _ => {}
            }
        }
    }

    /// Completes all I/Os with success, including those that start meanwhile.
    pub fn complete_all(&mut self) {
        while !self.ios.is_empty() {
            self.complete(0, Ok(()));
        }
    }

    /// The values in the slots of the segments.
    pub fn values(&self, segments: &[Segment]) -> Vec<u64> {
        let mut values = Vec::new();
        for segment in segments {
            let Place::Slot { slot, offset } = segment.place else { continue };
            let at = index(slot, offset);
            values.extend_from_slice(&self.pool[at..at + (segment.len / 512) as usize]);
        }
        values
    }

    pub fn release(&mut self, segments: &[Segment]) {
        for segment in segments {
            if let Place::Slot { slot, .. } = segment.place {
                self.shard.release(slot);
            }
        }
        self.shard.self_check();
    }

    /// Reads a range until it is answered, and releases its pins.
    pub fn read_to_end(&mut self, offset: u64, len: u64) -> Vec<u64> {
        for count in 0..3 {
            let attempt = Attempt { count, ..Attempt::default() };
            let (outcome, segments) = self.read_again(900, offset, len, attempt);
            if outcome == ReadOutcome::Ready {
                let values = self.values(&segments);
                self.release(&segments);
                return values;
            }
            self.complete_all();
        }
        panic!("the pool is too small for this read");
    }

    /// Does one step of a resize.
    pub fn step_resize(&mut self) -> ResizeStep {
        let step = self.shard.step_resize(&mut self.out);
        let copies = self.out.memory.iter().filter(|step| matches!(step, MemoryStep::Copy { .. }));
        self.copies = copies.count();
        let steps = std::mem::take(&mut self.out.memory);
        assert!(self.out.is_empty(), "a resize requests only memory steps");
        self.out.memory = steps;
        self.finish_call(0);
        step
    }

    /// Gives the memory of an empty slab back: its content is lost.
    pub fn give_back(&mut self, slab: Slab) {
        self.pool[index(slab.first, 0)..index(slab.first + slab.count, 0)].fill(TORN);
        self.take_trace();
        self.shard.gave_back(slab);
        self.shard.self_check();
    }

    /// Resizes until it is done or waits. Returns whether it is done, and the slabs given back.
    pub fn resize(&mut self, lines: usize) -> (bool, Vec<usize>) {
        self.shard.resize(lines);
        self.continue_resize()
    }

    pub fn continue_resize(&mut self) -> (bool, Vec<usize>) {
        let mut given_back = Vec::new();
        for _ in 0..10_000 {
            match self.step_resize() {
                ResizeStep::Done => return (true, given_back),
                ResizeStep::Waiting => return (false, given_back),
                ResizeStep::More | ResizeStep::TakenBack(_) => {}
                ResizeStep::Empty(slab) => {
                    self.give_back(slab);
                    given_back.push(slab.number);
                }
            }
        }
        panic!("a resize neither ends nor waits");
    }

    /// Takes the answer of a part, if there is one.
    pub fn take_outcome(&mut self, id: u64) -> Option<Outcome> {
        let at = self.answers.iter().position(|answer| answer.part == PartId(id))?;
        Some(self.answers.remove(at).outcome)
    }
}

/// The next attempt, after a wait that ended with `error`.
pub fn attempt_after(error: Option<IoError>) -> Attempt {
    Attempt::default().after(error)
}

pub fn index(slot: u32, offset: u32) -> usize {
    (slot * 8 + offset / 512) as usize
}
