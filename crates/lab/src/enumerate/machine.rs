//! The environment of the dispatcher of an enumerated machine.
//!
//! It has one volume, one worker and two shards, and uses no randomness. The rig decides when an
//! I/O in flight ends; until then it changes nothing.

use super::faults::{FaultKind, Faults};
use super::store::Disk;
use super::ups::Ups;
use super::work::ProtectedBy;
use crate::harness::Sabotage;
use crate::harness::io::Io;
use crate::harness::log_device::LogDevice;
use crate::harness::memory::Memory;
use crate::harness::oracle::{Oracle, POISON, Promise, ZERO};
use crate::harness::places::{FIRST, SECTORS, STRIPES, VOLUME_BYTES, places};
use crate::harness::shard::{PoolSnapshot, PooledShard, VolumeSetup, release_pins, reply_stamps};
use crate::harness::slab::Slab;
use crate::harness::vault::VaultContent;
use crate::policies::PolicyKind;
use forebay_engine::{
    Answer, IoAction, IoVerb, LineMeta, MemoryStep, Outbox, Outcome, Part, PartId, Protection,
    Shard, ShardConfig,
};
use forebay_journal::LogWrite;
use forebay_policy::Pace;
use forebay_protect::{JournalState, admission, protection};
use forebay_types::{Durability, IoError, IoResult, SECTOR_BYTES, Stripes, VolumeId};
use forebay_volume::{Admission, Barrier, Host, JobId, Reply, Request, RequestKind, Streams};
use std::collections::VecDeque;

pub(super) const VOLUME: VolumeId = VolumeId(0);
pub(super) const SHARDS: usize = 2;
const LINES_PER_SHARD: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Client,
    /// The machine itself: checks, checkpoints, restores.
    Machine,
}

struct PendingRequest {
    origin: Origin,
    request: Request,
    submitted: u32,
}

pub(super) struct FlushJob {
    job: JobId,
    mark: u32,
    result: IoResult,
}

/// A write in flight for the journal.
pub(super) enum Writing {
    /// To its device, with the result.
    Log(LogWrite<Vec<u8>>, IoResult),
    /// The failure mark.
    Mark,
}

pub(super) struct Journal {
    pub state: JournalState<Vec<u8>>,
    pub device: LogDevice,
    pub writing: Option<Writing>,
    /// The journal's number of the volume.
    pub number: u16,
    pub durability: forebay_types::Durability,
    /// Whether a checkpoint is in progress.
    pub checkpoint: bool,
    /// The failure mark: the records must not be used. It survives the process.
    pub is_marked: bool,
    /// The moment of the failure.
    pub failed_at: u32,
    /// Whether the disk lacks data that was dirty at the failure.
    pub undrained: bool,
}

pub(super) struct EnumeratedMachine {
    pub protected_by: ProtectedBy,
    pub tight: bool,
    pub bug: Option<super::Bug>,
    pub shards: Vec<PooledShard>,
    pub disk: Disk,
    pub journal: Option<Journal>,
    pub ups: Option<Ups>,
    pub oracle: Oracle,
    /// The oracle's time: advances with each submission and each answer.
    pub moment: u32,
    pub now_ms: u64,
    requests: Slab<PendingRequest>,
    pub ios: Vec<Io>,
    pub flushes: Vec<FlushJob>,
    /// Answers to be delivered to the dispatcher.
    pub answers: VecDeque<Answer>,
    /// The result of the machine's own last request, if it has been answered.
    pub ended: Option<IoResult>,
    pub violation: Option<String>,
    pub event_log: Option<Vec<String>>,
    pub faults: Faults,
    /// Requests of clients that failed.
    pub errors: u64,
}

impl EnumeratedMachine {
    /// A machine without a process.
    pub(super) fn new(protected_by: ProtectedBy, tight: bool, bug: Option<super::Bug>) -> Self {
        Self {
            protected_by,
            tight,
            bug,
            shards: Vec::new(),
            disk: Disk::new(),
            journal: None,
            ups: protected_by.has_ups().then(|| Ups::new(VaultContent::default())),
            oracle: Oracle::new(0, SECTORS as u64, protected_by == ProtectedBy::Nothing),
            moment: 1,
            now_ms: 0,
            requests: Slab::default(),
            ios: Vec::new(),
            flushes: Vec::new(),
            answers: VecDeque::new(),
            ended: None,
            violation: None,
            event_log: None,
            faults: Faults::default(),
            errors: 0,
        }
    }

    /// Makes the shards of a new process, empty or over the pool that a killed one has left.
    pub(super) fn make_shards(&mut self, killed_pool: Option<PoolSnapshot>) {
        let mut config = ShardConfig::for_slots(LINES_PER_SHARD);
        config.dirty_age_ms = 1;
        if self.tight {
            config.dirty_lines_max = 1;
        }
        let mut killed = killed_pool.into_iter().flatten();
        let policies = (0..SHARDS).map(|_| PolicyKind::Lru.build(LINES_PER_SHARD));
        let shards = policies.map(|policy| match killed.next() {
            None => PooledShard::new(LINES_PER_SHARD, policy, config),
            Some(part) => PooledShard::recover(part, policy, config).0,
        });
        self.shards = shards.collect();
        let setup = VolumeSetup {
            protection: match self.protected_by {
                ProtectedBy::Nothing => Protection::None,
                ProtectedBy::Ups => Protection::Power,
                _ => Protection::Journal,
            },
            ..VolumeSetup::write_back(VOLUME, VOLUME_BYTES, STRIPES)
        };
        for (number, world) in self.shards.iter_mut().enumerate() {
            setup.add_to(&mut world.shard, number);
            let pace = Pace { beside_reads_milli: u64::MAX, ..Pace::DEFAULT };
            world.shard.volume_mut(VOLUME).set_pace(pace);
            #[cfg(feature = "sabotage")]
            if let Some(super::Bug::Engine(bug)) = self.bug {
                world.shard.plant(bug);
            }
        }
    }

    /// Drops everything that dies with the process.
    pub(super) fn die(&mut self) {
        self.requests.drain().for_each(drop);
        self.ios.clear();
        self.flushes.clear();
        self.answers.clear();
        self.ended = None;
    }

    /// Whether the planted bug takes effect here.
    pub(super) fn strikes(&self, bug: Sabotage) -> bool {
        self.bug == Some(super::Bug::Driver(bug))
    }

    pub(super) fn violate(&mut self, message: String) {
        if self.violation.is_none() {
            self.violation = Some(message);
        }
    }

    pub(super) fn log_event(&mut self, text: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.event_log {
            notes.push(text());
        }
    }

    /// Requests in flight.
    pub(super) fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Records the submission of a request in the oracle. Returns its token and the version of its
    /// content.
    pub(super) fn register(&mut self, origin: Origin, request: Request) -> (u32, u32) {
        self.moment += 1;
        let reads =
            self.requests.iter().filter(|pending| pending.request.kind == RequestKind::Read);
        let oldest = reads.map(|pending| pending.submitted).min().unwrap_or(self.moment);
        let sectors = if request.range.len > 0 { places(request.range) } else { 0..0 };
        let sectors = sectors.map(|place| place as u64);
        let version = self.oracle.submit(request.kind, sectors, self.moment, oldest);
        let token =
            self.requests.insert(PendingRequest { origin, request, submitted: self.moment });
        self.log_event(|| {
            format!("{origin:?}: {:?} {} version {version}", request.kind, request.range)
        });
        (token, version)
    }

    fn end_change(&mut self, pending: &PendingRequest, result: IoResult) {
        let durability = self.protected_by.journal();
        let (journaled, each) = (durability.is_some(), durability == Some(Durability::Ack));
        let promise = result.is_ok().then(|| match self.is_ups_only() {
            true => Promise::Stable,
            false => Promise::of(pending.request.kind, journaled, each),
        });
        let sectors = places(pending.request.range).map(|place| place as u64);
        self.oracle.end(sectors, pending.submitted, self.moment, promise);
    }

    fn check_bytes(&mut self, pending: &PendingRequest, reply: &Reply<'_, Memory>) {
        let stamps = reply_stamps(&self.shards, reply.segments, reply.memory.as_ref());
        let range = pending.request.range;
        if stamps.len() != places(range).len() {
            self.violate(format!("the answer to a read of {range} has {} sectors", stamps.len()));
            return;
        }
        let contents = (places(range).start as u64..).zip(stamps);
        let is_right = |it: &mut Oracle, at, found| it.check_read(at, found, pending.submitted);
        if let Some((place, text)) = self.oracle.first_mismatch(contents, is_right) {
            self.violate(format!("a read: sector {place} {text}"));
        }
    }

    fn apply_step(&mut self, shard: usize, step: MemoryStep, payload: &[u8]) {
        if !Sabotage::skipping_step(&step).is_some_and(|bug| self.strikes(bug)) {
            self.shards[shard].apply_step(step, payload);
        }
    }

    fn take_io(&mut self, mut io: Io) {
        let range = io.action.range;
        if range.offset < FIRST * SECTOR_BYTES || !io.is_valid(VOLUME_BYTES) {
            self.violate(format!(
                "an I/O exceeds the workload's sectors or its memory: {:?}",
                io.action
            ));
            return;
        }
        if self.ios.iter().any(|other| other.conflicts_with(&io)) {
            self.violate(format!("two I/Os in flight change the same sectors: {range}"));
        }
        if io.is_write() {
            io.stamps = io.current_stamps(&self.shards);
            if let Some((at, found)) = io.first_foreign(places(range).start as u64, &self.oracle) {
                self.violate(format!("no client wrote what goes to sector {at}: {found}"));
            }
        } else if !io.is_read() {
            io.stamps = vec![ZERO; places(range).len()];
        }
        io.result = self.faults.next_result(match io.action.verb {
            IoVerb::Read => FaultKind::Read,
            IoVerb::Write { .. } => FaultKind::Write,
            IoVerb::Discard | IoVerb::Zero { .. } => FaultKind::Erase,
        });
        self.log_event(|| format!("disk: {:?} {range} begins", io.action.verb));
        self.ios.push(io);
    }

    pub(super) fn end_io(&mut self, at: usize) -> (usize, forebay_engine::IoId, IoResult) {
        let mut io = self.ios.remove(at);
        let range = io.action.range;
        let mut result = io.result;
        self.log_event(|| format!("disk: {:?} {range} ends: {result:?}", io.action.verb));
        if io.is_read() {
            self.end_read(&mut io);
        } else {
            self.end_change_on_disk(&io);
        }
        if Sabotage::hiding_error(io.action.verb).is_some_and(|bug| self.strikes(bug)) {
            result = Ok(());
        }
        (io.shard, io.action.id, result)
    }

    fn end_change_on_disk(&mut self, io: &Io) {
        let (range, result) = (io.action.range, io.result);
        if io.is_write() && io.current_stamps(&self.shards) != io.stamps {
            self.violate(format!("the memory of a write in flight changed: {range}"));
        }
        let is_write = io.is_write();
        let fua = io.action.verb == IoVerb::Write { fua: true } && !self.strikes(Sabotage::LoseFua);
        let lost = Sabotage::losing(io.action.verb).is_some_and(|bug| self.strikes(bug));
        let torn = is_write && self.strikes(Sabotage::TearWrite) || result.is_err();
        let shift = usize::from(is_write && self.strikes(Sabotage::MisdirectWrite));
        let half = places(range).start + places(range).len().div_ceil(2);
        for (place, &stamp) in places(range).zip(&io.stamps) {
            let to = place + shift;
            if lost || torn && place >= half || to >= SECTORS {
                continue;
            }
            if fua && result.is_ok() {
                self.disk.write_through(to, stamp);
            } else {
                self.disk.write(to, stamp);
            }
        }
    }

    fn end_read(&mut self, io: &mut Io) {
        io.stamps = self.disk.content()[places(io.action.range)].to_vec();
        if io.result.is_err() {
            io.stamps.fill(POISON);
        }
        let misplaced = self.strikes(Sabotage::WrongBase);
        if !io.fill_memory(&mut self.shards, misplaced) {
            self.violate(format!("a read exceeds its memory: {:?}", io.action));
        }
    }

    pub(super) fn end_flush(&mut self, at: usize) -> (JobId, IoResult) {
        let flush = self.flushes.remove(at);
        if flush.result.is_ok() && !self.strikes(Sabotage::FlushEarly) {
            self.disk.flush(flush.mark);
        }
        self.log_event(|| format!("disk: flush ends: {:?}", flush.result));
        (flush.job, flush.result)
    }

    /// The changes of I/Os in flight: places and new contents.
    pub(super) fn changes_under_way(&self) -> Vec<(usize, u64)> {
        let changes = self.ios.iter().filter(|io| !io.is_read());
        let sectors = changes.flat_map(|io| places(io.action.range).zip(io.stamps.iter().copied()));
        sectors.collect()
    }

    /// Checks that no resources are in use after everything is answered and destaged.
    pub(super) fn check_leaks(&mut self) {
        for at in 0..self.shards.len() {
            if let Some(left) = self.shards[at].leaks() {
                self.violate(format!("shard {at}: {left}"));
            }
        }
    }
}

impl Host for EnumeratedMachine {
    type Token = u32;
    type Memory = Memory;
    type Table = Vec<LineMeta>;

    fn shards(&self) -> usize {
        SHARDS
    }

    fn stripes(&mut self, _: VolumeId) -> Stripes {
        STRIPES
    }

    fn internal_token(&mut self) -> u32 {
        unreachable!("no volume here is ordered")
    }

    fn block_bytes(&mut self, _: VolumeId) -> u64 {
        SECTOR_BYTES
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R {
        let result = call(&mut self.shards[shard].shard, out);
        for at in 0..out.memory.len() {
            self.apply_step(shard, out.memory[at], payload);
        }
        out.memory.clear();
        self.shards[shard].shard.finish_call();
        for request in std::mem::take(&mut out.journal_requests) {
            out.answers.extend(self.take_request(shard, &request, payload));
        }
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        content.map_or_else(|| Memory::buffer(len), Memory::payload)
    }

    fn start_io(&mut self, shard: usize, action: IoAction, memory: Option<(&Memory, u64)>) {
        let memory = memory.map(|(memory, base)| (memory.clone(), base));
        self.take_io(Io::new(shard, action, memory, SECTOR_BYTES));
    }

    fn flush_backend(&mut self, _: VolumeId, job: JobId) {
        let result = self.faults.next_result(FaultKind::Flush);
        self.log_event(|| "disk: flush begins".into());
        self.flushes.push(FlushJob { job, mark: self.disk.mark(), result });
    }

    fn protection(&mut self, _: VolumeId) -> Protection {
        let journal = self.journal.as_ref();
        protection(self.gate(), journal.map(|journal| || journal.state.is_abandoned()))
    }

    fn admit_erase(&mut self, part: &Part) -> bool {
        let Some(journal) = &mut self.journal else { return true };
        journal.state.admit_erase(journal.number, part)
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        let journal = self
            .journal
            .as_mut()
            .map(|journal| (journal.state.admit(journal.number, part), journal.durability));
        admission(part.range, fua, self.gate(), journal)
    }

    fn withdraw(&mut self, _: VolumeId) {
        self.journal.as_mut().expect("the journal gave a permit").state.log.withdraw();
    }

    fn barrier(&mut self, _: VolumeId, part: PartId) -> Result<Barrier, IoError> {
        let is_ignored = self.strikes(Sabotage::IgnoreBarrier);
        let journal = self.journal.as_mut().expect("the volume has one");
        let is_durable = is_ignored || journal.state.barrier(part)?;
        Ok(Barrier { is_durable, is_complete: true })
    }

    fn reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        let Some(pending) = self.requests.remove(token) else {
            self.violate("a request was answered twice".into());
            return;
        };
        self.moment += 1;
        let (kind, result) = (pending.request.kind, reply.result);
        self.log_event(|| format!("{:?}: {kind:?} answered: {result:?}", pending.origin));
        if result.is_err() {
            self.errors += u64::from(pending.origin == Origin::Client);
            if !self.faults.explains(kind) {
                self.violate(format!("{kind:?} failed without a fault: {result:?}"));
            }
            if !reply.segments.is_empty() {
                self.violate(format!("{kind:?} failed, but its answer has bytes"));
            }
        }
        if pending.origin == Origin::Machine {
            self.ended = Some(result);
        }
        match kind {
            RequestKind::Read if result.is_ok() => {
                self.check_bytes(&pending, &reply);
                if !self.strikes(Sabotage::LeakPin) {
                    release_pins(reply.segments, |at, slot| self.shards[at].shard.release(slot));
                }
            }
            RequestKind::Flush | RequestKind::Destage if result.is_ok() => {
                self.oracle.flush(pending.submitted);
            }
            RequestKind::Checkpoint { .. } => self.checkpoint_ended(pending.submitted, result),
            RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. } => {
                self.end_change(&pending, result);
            }
            _ => {}
        }
    }

    fn forward(&mut self, _: u8, answer: Answer) {
        if self.strikes(Sabotage::DropRetry) && matches!(answer.outcome, Outcome::Retry(_)) {
            return;
        }
        self.answers.push_back(answer);
        if self.strikes(Sabotage::AnswerTwice) {
            self.answers.push_back(answer);
        }
    }

    fn streams<R>(&mut self, _: VolumeId, _: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        None
    }
}
