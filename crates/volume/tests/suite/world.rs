//! Two workers over four small shards, and a list of the values that each sector may hold.
//!
//! I/Os are coalesced as in the runtime, and complete in the order that the test chooses. The world
//! checks that each request is answered once; that a read returns, for each sector, the newest
//! value written before it or one written concurrently; and that after a final flush the disk holds
//! the last values written.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

use forebay_engine::{
    Answer, IoAction, IoVerb, LineMeta, MemoryStep, Outbox, Outcome, Part, PartId, Place,
    Protection, Shard, ShardConfig, Slot,
};
use forebay_policy::{Pace, Weir};
use forebay_types::{
    ByteRange, IoError, IoResult, LINE_BYTES, Mode, SECTOR_BYTES, Stripes, VolumeId,
};
use forebay_volume::{
    Admission, Barrier, Dispatcher, EpochOrder, Host, JobId, Mergeable, Payload, Reply, Request,
    RequestKind, Streams, WaitBreakdown, merge, shard_of, staged_pieces,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const VOLUME: VolumeId = VolumeId(0);
/// Nine regions and a half, in three shards.
pub(crate) const SECTORS: u64 = 19 << 10;
const SHARDS: usize = 4;
pub(crate) const WORKERS: usize = 2;
const SLOTS: usize = 48;
/// The token of requests of a dispatcher, whose replies are ignored.
const INTERNAL: usize = usize::MAX;

/// Memory of a request, one value per sector. `bytes` is a payload, `filled` the content read.
#[derive(Clone)]
pub(crate) struct Memory {
    bytes: Rc<[u8]>,
    filled: Rc<[Cell<u8>]>,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Memory {
    fn of(bytes: &[u8]) -> Self {
        let filled = bytes.chunks(SECTOR_BYTES as usize).map(|sector| Cell::new(sector[0]));
        Self { bytes: bytes.into(), filled: filled.collect() }
    }
}

/// An I/O that starts at the end of the turn.
pub(crate) struct Pending {
    shard: usize,
    action: IoAction,
    memory: Option<(Memory, u64)>,
}

impl Mergeable for Pending {
    fn verb(&self) -> IoVerb {
        self.action.verb
    }

    fn volume(&self) -> VolumeId {
        self.action.volume
    }

    fn range(&self) -> ByteRange {
        self.action.range
    }

    fn block_bytes(&self) -> u64 {
        SECTOR_BYTES
    }
}

/// An I/O in flight to the disk.
pub(crate) enum Io {
    Coalesced(Vec<Pending>),
    Flush { worker: usize, job: JobId },
}

/// A write of a sector.
#[derive(Clone, Copy, Debug)]
struct Version {
    value: u8,
    /// When it was submitted and answered, on a clock that counts requests and answers.
    begin: u64,
    end: Option<u64>,
}

/// A request in flight.
struct Submitted {
    kind: RequestKind,
    range: ByteRange,
    begin: u64,
    /// For a read: the values that each sector may have.
    allowed: Vec<Vec<u8>>,
}

pub(crate) struct World {
    worker: usize,
    pub shards: Vec<Shard<Vec<LineMeta>>>,
    pools: Vec<Vec<u8>>,
    pub disk: Vec<u8>,
    /// Writes that overlap this range fail.
    pub bad_range: Option<ByteRange>,
    pending: Vec<Pending>,
    pub ios: Vec<Io>,
    forwarded: Vec<(u8, Answer)>,
    streams: Streams,
    /// The needs that the dispatchers reported: a range, and a number of lines.
    pub needs: Vec<(ByteRange, u32)>,
    /// Set if the volume is ordered.
    order: Option<Arc<EpochOrder>>,
    /// Set if the volume has a journal: its answer to each barrier.
    pub barrier: Option<Barrier>,
    /// The parts that wait for the journal.
    pub barred: Vec<PartId>,
    /// The journal makes the next erase wait that begins here or later.
    pub refuses_erase_from: Option<u64>,
    /// The next erase that is admitted comes after a prefetch of this range.
    pub prefetch_first: Option<ByteRange>,
    now_ms: u64,
    submitted: Vec<Option<Submitted>>,
    pub answered: usize,
    pub failed: usize,
    /// What the answered requests waited for, of those that waited.
    pub trails: Vec<WaitBreakdown>,
    /// The possible values of each sector: those of the writes that no later write is known to have
    /// replaced.
    sectors: Vec<Vec<Version>>,
    clock: u64,
}

const fn slot_index(slot: u32, offset: u32) -> usize {
    slot as usize * 8 + offset as usize / SECTOR_BYTES as usize
}

fn sectors_of(range: ByteRange) -> std::ops::Range<usize> {
    (range.offset / SECTOR_BYTES) as usize..(range.end() / SECTOR_BYTES) as usize
}

impl World {
    fn new(mode: Mode) -> Self {
        let shards = (0..SHARDS).map(|_| {
            let policy = Box::new(Weir::new(SLOTS));
            let config = ShardConfig { dirty_age_ms: 100, ..ShardConfig::for_slots(SLOTS) };
            let mut shard = Shard::new(vec![LineMeta::FREE; SLOTS], policy, config);
            shard.add_volume(VOLUME, SECTORS * SECTOR_BYTES, mode);
            shard
        });
        Self {
            worker: 0,
            shards: shards.collect(),
            pools: vec![vec![0xee; SLOTS * 8]; SHARDS],
            disk: vec![0; SECTORS as usize],
            bad_range: None,
            pending: Vec::new(),
            ios: Vec::new(),
            forwarded: Vec::new(),
            streams: Streams::new(SECTORS * SECTOR_BYTES, (SLOTS * SHARDS) as u64 * LINE_BYTES),
            needs: Vec::new(),
            order: None,
            barrier: None,
            barred: Vec::new(),
            refuses_erase_from: None,
            prefetch_first: None,
            now_ms: 0,
            submitted: Vec::new(),
            answered: 0,
            failed: 0,
            trails: Vec::new(),
            sectors: vec![vec![Version { value: 0, begin: 0, end: Some(0) }]; SECTORS as usize],
            clock: 0,
        }
    }

    /// The value at a place of an I/O or reply, sector by sector.
    fn value(&self, shard: usize, place: Place, memory: Option<&(Memory, u64)>, at: u32) -> u8 {
        let skip = at * SECTOR_BYTES as u32;
        match place {
            Place::Slot { slot, offset } => self.pools[shard][slot_index(slot, offset + skip)],
            Place::Private { offset } => {
                let (memory, base) = memory.unwrap();
                let byte = base + u64::from(offset + skip);
                memory.filled[(byte / SECTOR_BYTES) as usize].get()
            }
            Place::Discard => panic!("a write has no data in a discard buffer"),
        }
    }

    /// Receives the payload of a write into the slots that were staged for it.
    fn receive(&mut self, range: ByteRange, slots: &[Slot], value: u8) {
        for (shard, piece, slots) in staged_pieces((VOLUME, Stripes::NONE), range, SHARDS, slots) {
            for sector in sectors_of(piece) {
                let line = sector / 8 - (piece.offset / LINE_BYTES) as usize;
                self.pools[shard][slots[line] as usize * 8 + sector % 8] = value;
            }
        }
    }

    /// Applies an I/O to the disk or to memory.
    fn carry_out(&mut self, io: &Pending) -> IoResult {
        let range = io.action.range;
        let overlaps = |bad: ByteRange| bad.offset < range.end() && range.offset < bad.end();
        if io.action.verb != IoVerb::Read && self.bad_range.is_some_and(overlaps) {
            return Err(IoError::Io);
        }
        let mut sector = (io.action.range.offset / SECTOR_BYTES) as usize;
        if matches!(io.action.verb, IoVerb::Zero { .. } | IoVerb::Discard) {
            self.disk[sectors_of(io.action.range)].fill(0);
        }
        for segment in &io.action.segments {
            for at in 0..segment.len / SECTOR_BYTES as u32 {
                let skip = at * SECTOR_BYTES as u32;
                match (io.action.verb, segment.place) {
                    (IoVerb::Write { .. }, place) => {
                        self.disk[sector] = self.value(io.shard, place, io.memory.as_ref(), at);
                    }
                    (_, Place::Slot { slot, offset }) => {
                        self.pools[io.shard][slot_index(slot, offset + skip)] = self.disk[sector];
                    }
                    (_, Place::Private { offset }) => {
                        let (memory, base) = io.memory.as_ref().unwrap();
                        let byte = base + u64::from(offset + skip);
                        memory.filled[(byte / SECTOR_BYTES) as usize].set(self.disk[sector]);
                    }
                    (_, Place::Discard) => {}
                }
                sector += 1;
            }
        }
        assert!(
            io.action.segments.is_empty() || sector as u64 * SECTOR_BYTES == io.action.range.end(),
            "the memory of an I/O covers it"
        );
        Ok(())
    }

    /// Records a submitted request. From now on, reads may return its value.
    fn record_request(&mut self, kind: RequestKind, range: ByteRange, value: u8) -> usize {
        let allowed = match kind {
            RequestKind::Read => {
                let versions = self.sectors[sectors_of(range)].iter();
                versions.map(|all| all.iter().map(|version| version.value).collect()).collect()
            }
            _ => Vec::new(),
        };
        self.clock += 1;
        let begin = self.clock;
        if changes(kind) {
            for sector in sectors_of(range) {
                self.sectors[sector].push(Version { value, begin, end: None });
            }
            let reads = self.submitted.iter_mut().flatten();
            for request in reads.filter(|request| !request.allowed.is_empty()) {
                for sector in sectors_of(range) {
                    if sectors_of(request.range).contains(&sector) {
                        let first = sectors_of(request.range).start;
                        request.allowed[sector - first].push(value);
                    }
                }
            }
        }
        self.submitted.push(Some(Submitted { kind, range, begin, allowed }));
        self.submitted.len() - 1
    }

    /// Records an answered write. It replaces every write acknowledged before it was submitted. Of
    /// two concurrent writes, either may be the newer. A failed write may have had an effect or
    /// not.
    fn record_answer(&mut self, request: &Submitted, is_ok: bool) {
        self.clock += 1;
        for sector in sectors_of(request.range) {
            let versions = &mut self.sectors[sector];
            let mine = versions.iter_mut().find(|version| version.begin == request.begin);
            mine.unwrap().end = Some(self.clock);
            versions.retain(|version| !is_ok || version.end.is_none_or(|end| end > request.begin));
        }
    }
}

pub(crate) const fn changes(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Write { .. } | RequestKind::Zero { .. })
}

impl Host for World {
    type Token = usize;
    type Memory = Memory;
    type Table = Vec<LineMeta>;

    fn shards(&self) -> usize {
        SHARDS
    }

    fn stripes(&mut self, _: VolumeId) -> Stripes {
        Stripes::NONE
    }

    fn internal_token(&mut self) -> usize {
        INTERNAL
    }

    fn order(&mut self, _: VolumeId) -> Option<Arc<EpochOrder>> {
        self.order.clone()
    }

    fn block_bytes(&mut self, _: VolumeId) -> u64 {
        SECTOR_BYTES
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn should_trace(&mut self, _: VolumeId, begun_us: u64) -> bool {
        assert!(begun_us <= self.now_us());
        true
    }

    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R {
        let result = call(&mut self.shards[shard], out);
        let pool = &mut self.pools[shard];
        for step in out.memory.drain(..) {
            match step {
                MemoryStep::Fill { slot, offset, payload_offset, len } => {
                    for at in (0..len).step_by(SECTOR_BYTES as usize) {
                        pool[slot_index(slot, offset + at)] =
                            payload[(payload_offset + at) as usize];
                    }
                }
                MemoryStep::Copy { from, to, offset, len } => {
                    let from = slot_index(from, offset);
                    let count = (u64::from(len) / SECTOR_BYTES) as usize;
                    pool.copy_within(from..from + count, slot_index(to, offset));
                }
                MemoryStep::Verify { .. } => unreachable!("no line is sealed"),
            }
        }
        self.shards[shard].finish_call();
        self.barred.extend(out.journal_requests.drain(..).map(|request| request.part));
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        content.map_or_else(|| Memory::of(&vec![0xdd; len as usize]), Memory::of)
    }

    fn start_io(&mut self, shard: usize, action: IoAction, memory: Option<(&Memory, u64)>) {
        let memory = memory.map(|(memory, base)| (memory.clone(), base));
        self.pending.push(Pending { shard, action, memory });
    }

    fn protection(&mut self, _: VolumeId) -> Protection {
        if self.barrier.is_some() { Protection::Journal } else { Protection::None }
    }

    fn admit(&mut self, _: &Part, _: bool) -> Admission {
        Admission::Free
    }

    fn admit_erase(&mut self, part: &Part) -> bool {
        if self.refuses_erase_from.take_if(|from| part.range.offset >= *from).is_some() {
            self.barred.push(part.id);
            return false;
        }
        if let Some(range) = self.prefetch_first.take() {
            let shard = shard_of(VOLUME, Stripes::NONE, range.offset, SHARDS);
            let mut out = Outbox::default();
            let lines = self
                .call(shard, &[], &mut out, |shard, out| shard.prefetch(VOLUME, range, None, out));
            assert!(lines > 0, "{range} is in the pool or busy");
            out.ios.drain(..).for_each(|io| self.start_io(shard, io, None));
        }
        true
    }

    fn withdraw(&mut self, _: VolumeId) {
        unreachable!("no write is admitted to a journal");
    }

    fn barrier(&mut self, _: VolumeId, part: PartId) -> Result<Barrier, IoError> {
        let barrier = self.barrier.expect("the volume has a journal");
        self.barred.extend((!barrier.is_durable).then_some(part));
        Ok(barrier)
    }

    fn flush_backend(&mut self, _: VolumeId, job: JobId) {
        self.ios.push(Io::Flush { worker: self.worker, job });
    }

    fn reply(&mut self, token: usize, reply: Reply<'_, Memory>) {
        if token == INTERNAL {
            return;
        }
        let request = self.submitted[token].take().expect("a request is answered once");
        self.answered += 1;
        self.trails.extend(reply.trail.as_deref());
        let is_ok = reply.result.is_ok();
        assert!(is_ok || self.bad_range.is_some(), "a request fails only if the disk does");
        if changes(request.kind) {
            self.record_answer(&request, is_ok);
        }
        if !is_ok {
            self.failed += 1;
            assert!(reply.segments.is_empty(), "an error carries no data");
            return;
        }
        let memory = reply.memory.map(|memory| (memory, 0));
        let mut allowed = request.allowed.iter();
        for part in reply.segments {
            for at in 0..part.segment.len / SECTOR_BYTES as u32 {
                let shard = usize::from(part.shard);
                let value = self.value(shard, part.segment.place, memory.as_ref(), at);
                let allowed = allowed.next().expect("the reply is not too long");
                assert!(allowed.contains(&value), "{:?}: {value} of {allowed:?}", request.range);
            }
            if let Place::Slot { slot, .. } = part.segment.place {
                self.shards[usize::from(part.shard)].release(slot);
            }
        }
        assert!(allowed.next().is_none(), "the reply is not too short");
    }

    fn forward(&mut self, worker: u8, answer: Answer) {
        self.forwarded.push((worker, answer));
    }

    fn streams<R>(&mut self, _: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        Some(call(&mut self.streams))
    }

    fn record_need(&mut self, _: VolumeId, range: ByteRange, lines: u32) {
        self.needs.push((range, lines));
    }
}

/// The workers and their world.
pub(crate) struct Machine {
    dispatchers: Vec<Dispatcher<World>>,
    pub world: World,
}

impl Machine {
    pub(crate) fn new(mode: Mode) -> Self {
        let dispatchers = (0..WORKERS).map(|worker| Dispatcher::new(worker as u8)).collect();
        Self { dispatchers, world: World::new(mode) }
    }

    /// A write-back volume that is ordered.
    pub(crate) fn ordered(pace: Pace) -> Self {
        let mut machine = Self::new(Mode::WriteBack);
        machine.world.order = Some(Arc::default());
        for shard in &mut machine.world.shards {
            shard.volume_mut(VOLUME).set_ordered();
            shard.volume_mut(VOLUME).set_pace(pace);
        }
        machine
    }

    /// Makes a call to a worker and ends its turn.
    fn run_turn(&mut self, worker: usize, call: impl FnOnce(&mut Dispatcher<World>, &mut World)) {
        self.world.worker = worker;
        call(&mut self.dispatchers[worker], &mut self.world);
        let mut pending = std::mem::take(&mut self.world.pending);
        let mut runs = Vec::new();
        merge(&mut pending, |run| runs.push(run.len()));
        let mut pending = pending.into_iter();
        for len in runs {
            let run: Vec<Pending> = pending.by_ref().take(len).collect();
            let follow = |pair: &[Pending]| pair[0].range().end() == pair[1].range().offset;
            assert!(run.windows(2).all(follow), "only adjacent I/Os are coalesced");
            self.world.ios.push(Io::Coalesced(run));
        }
    }

    pub(crate) fn submit(&mut self, worker: usize, kind: RequestKind, range: ByteRange, value: u8) {
        let token = self.world.record_request(kind, range, value);
        let request = Request { volume: VOLUME, kind, range };
        let bytes = vec![value; range.len as usize];
        self.run_turn(worker, |dispatcher, world| match kind {
            RequestKind::Write { .. } if value.is_multiple_of(2) => {
                dispatcher.submit(world, token, request, Payload::Borrowed(&bytes));
            }
            RequestKind::Write { .. } => {
                // Every other odd value is staged, if there are enough free slots.
                let staged = (value % 4 == 1).then(|| dispatcher.stage(world, VOLUME, range));
                let payload = match staged.flatten() {
                    Some(slots) => {
                        world.receive(range, &slots, value);
                        Payload::Staged(slots)
                    }
                    None => Payload::Owned(Memory::of(&bytes)),
                };
                dispatcher.submit(world, token, request, payload);
            }
            _ => dispatcher.submit(world, token, request, Payload::None),
        });
    }

    /// Completes an I/O or delivers an answer. Returns false if there is none.
    pub(crate) fn step(&mut self, choice: usize) -> bool {
        if choice.is_multiple_of(3) && !self.world.forwarded.is_empty() {
            let (worker, answer) = self.world.forwarded.remove(0);
            self.run_turn(worker.into(), |dispatcher, world| dispatcher.answer(world, answer));
            return true;
        }
        if self.world.ios.is_empty() {
            return !self.world.forwarded.is_empty() && self.step(0);
        }
        let at = choice % self.world.ios.len();
        match self.world.ios.swap_remove(at) {
            Io::Flush { worker, job } => {
                self.run_turn(worker, |dispatcher, world| dispatcher.flushed(world, job, Ok(())));
            }
            Io::Coalesced(run) => {
                let results: Vec<IoResult> =
                    run.iter().map(|io| self.world.carry_out(io)).collect();
                for (io, result) in run.into_iter().zip(results) {
                    let (shard, id) = (io.shard, io.action.id);
                    self.run_turn(choice % WORKERS, |dispatcher, world| {
                        dispatcher.complete(world, shard, id, result);
                    });
                }
            }
        }
        true
    }

    /// Answers the parts that wait for the journal.
    pub(crate) fn answer_barred(&mut self, outcome: Outcome) {
        for part in std::mem::take(&mut self.world.barred) {
            self.run_turn(0, |dispatcher, world| {
                dispatcher.answer(world, Answer { part, outcome })
            });
        }
    }

    pub(crate) fn tick(&mut self, ms: u64) {
        self.world.now_ms += ms;
        for shard in 0..SHARDS {
            self.run_turn(shard % WORKERS, |dispatcher, world| dispatcher.tick(world, shard));
        }
    }

    /// Completes everything, then checks that all requests are answered and no pins are left.
    pub(crate) fn finish(mut self) {
        let range = ByteRange::new(0, 0);
        while self.step(7) {}
        self.submit(1, RequestKind::Flush, range, 0);
        while self.step(4) {}
        assert_eq!(self.world.answered, self.world.submitted.len(), "each request is answered");
        assert!(self.dispatchers.iter().all(|dispatcher| dispatcher.in_flight() == 0));
        for shard in &self.world.shards {
            shard.self_check();
            assert_eq!((shard.pins(), shard.volume(VOLUME).dirty_lines()), (0, 0));
            assert_eq!(shard.volume(VOLUME).operations(), 0);
        }
        for (sector, (found, allowed)) in
            self.world.disk.iter().zip(&self.world.sectors).enumerate()
        {
            let is_found = allowed.iter().any(|version| version.value == *found);
            assert!(is_found, "sector {sector}: {found} of {allowed:?}");
        }
    }
}
