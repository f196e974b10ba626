//! One server: the shipped dispatcher and shards, with the volumes that it has now.
//!
//! It has no clock, store or client. The driver submits requests, ends I/Os, and carries out what
//! the calls have left in [`ServerMachine`]: I/Os that have started, answers to deliver, and
//! requests that have ended.

use super::plan::SitePlan;
use crate::harness::io::Io;
use crate::harness::journal::record;
use crate::harness::memory::Memory;
use crate::harness::places::{STRIPES, VOLUME_BYTES};
use crate::harness::shard::{PoolSnapshot, PooledShard, VolumeSetup, release_pins, reply_stamps};
use crate::harness::slab::Slab;
use crate::policies::PolicyKind;
use forebay_engine::{
    Answer, IoAction, LineMeta, Outbox, Part, PartId, Protection, Shard, ShardConfig, Slot,
};
use forebay_journal::{Found, Piece};
use forebay_policy::Pace;
use forebay_protect::{JournalState, admission, protection};
use forebay_types::{Durability, IoError, IoResult, SECTOR_BYTES, Stripes, VolumeId};
use forebay_volume::{
    Admission, Barrier, Dispatcher, Host, JobId, Payload, Reply, Request, RequestKind, Streams,
};
use std::collections::VecDeque;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    Client,
    /// A checkpoint of the journal, or the writeback that follows its failure.
    Checkpoint,
    /// The journal's content, restored by a takeover.
    Restore,
    /// The destage with which a volume ends.
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SiteRequest {
    pub origin: RequestOrigin,
    pub request: Request,
    /// The moment of its submission.
    pub submitted: u32,
    /// Its client was disconnected, and gets no answer.
    pub is_abandoned: bool,
}

/// A request that the dispatcher has answered.
pub(super) struct EndedRequest {
    pub pending: SiteRequest,
    pub result: IoResult,
    /// What a read has returned.
    pub stamps: Vec<u64>,
}

/// How far a server is with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountPhase {
    /// The stores are being acquired; the next step of that.
    Opening {
        step: usize,
        takes_over: bool,
    },
    /// The content of the journal is being restored: pieces left, and failures of the first one.
    Restoring {
        pieces: VecDeque<Piece>,
        tries: u32,
    },
    Serving,
    /// It is being removed in order, to be served elsewhere.
    Stopping,
    /// It is to end: its clients submit nothing more.
    Draining,
    /// It ends without its stores.
    Ending,
}

/// The journal of a volume, open.
pub(super) struct MountedJournal {
    pub state: JournalState<Vec<u8>>,
    /// The journal's number of the volume.
    pub number: u16,
    pub is_writing: bool,
    pub has_checkpoint: bool,
    /// The moment at which its failure was recorded.
    pub failed_at: u32,
    /// The disk may lack data that was dirty at the failure.
    pub is_undrained: bool,
}

/// A volume on a server.
pub(super) struct Mount {
    /// Its number in the site.
    pub number: u16,
    /// The number of its registration with the stores.
    pub registration: u32,
    pub phase: MountPhase,
    pub journal: Option<MountedJournal>,
    /// The log as it was before the stores were acquired, by a planted bug.
    pub early: Option<Found>,
    /// What the journal holds, once it has been read.
    pub pieces: VecDeque<Piece>,
    /// The server knows that another one has the disk.
    pub is_taken_over: bool,
    /// The journal has failed.
    pub has_lost_journal: bool,
    pub is_given_up: bool,
}

impl Mount {
    /// Whether clients may use it.
    pub(super) fn is_open(&self) -> bool {
        self.phase == MountPhase::Serving
    }

    /// Whether the volume is to end.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_taken_over || self.has_lost_journal
    }
}

/// The environment of a server's dispatcher.
#[derive(Default)]
pub(super) struct ServerMachine {
    pub shards: Vec<PooledShard>,
    /// The volumes, by their numbers on this server.
    pub mounts: Vec<Option<Mount>>,
    requests: Slab<SiteRequest>,
    pub started: Vec<Io>,
    pub flushes: Vec<(VolumeId, JobId)>,
    pub answers: VecDeque<Answer>,
    pub ended: Vec<EndedRequest>,
    /// The clock of its host.
    pub now_ms: u64,
}

pub(super) struct SiteServer {
    /// The number of its process in the site.
    pub process: u32,
    pub machine: ServerMachine,
    dispatcher: Dispatcher<ServerMachine>,
}

fn config_of(plan: &SitePlan) -> ShardConfig {
    let mut config = ShardConfig::for_slots(plan.lines_per_shard);
    config.dirty_age_ms = 1;
    if plan.is_tight {
        config.dirty_lines_max = 1;
    }
    config
}

impl SiteServer {
    /// A new process, with an empty pool or with that of a former one.
    pub(super) fn new(plan: &SitePlan, process: u32, pool: Option<PoolSnapshot>) -> Self {
        let (lines, config) = (plan.lines_per_shard, config_of(plan));
        let mut parts = pool.into_iter().flatten();
        let shards = (0..plan.shards).map(|_| match parts.next() {
            None => PooledShard::new(lines, PolicyKind::Lru.build(lines), config),
            Some(part) => PooledShard::recover(part, PolicyKind::Lru.build(lines), config).0,
        });
        let machine = ServerMachine { shards: shards.collect(), ..ServerMachine::default() };
        Self { process, machine, dispatcher: Dispatcher::new(0) }
    }

    /// A volume that is being opened. Returns its number on this server.
    pub(super) fn mount(&mut self, number: u16, registration: u32, takes_over: bool) -> usize {
        let mount = Mount {
            number,
            registration,
            phase: MountPhase::Opening { step: 0, takes_over },
            journal: None,
            early: None,
            pieces: VecDeque::new(),
            is_taken_over: false,
            has_lost_journal: false,
            is_given_up: false,
        };
        let mounts = &mut self.machine.mounts;
        let free = mounts.iter().position(Option::is_none).unwrap_or(mounts.len());
        mounts.resize_with(mounts.len().max(free + 1), || None);
        mounts[free] = Some(mount);
        free
    }

    /// Adds a volume to the shards.
    pub(super) fn add(&mut self, local: usize, journal: MountedJournal) {
        let id = VolumeId(local as u16);
        let setup = VolumeSetup {
            protection: Protection::Journal,
            ..VolumeSetup::write_back(id, VOLUME_BYTES, STRIPES)
        };
        for (number, one) in self.machine.shards.iter_mut().enumerate() {
            setup.add_to(&mut one.shard, number);
            let pace = Pace { beside_reads_milli: u64::MAX, ..Pace::DEFAULT };
            one.shard.volume_mut(id).set_pace(pace);
        }
        self.machine.mount_mut(local).journal = Some(journal);
    }

    pub(super) fn submit(&mut self, pending: SiteRequest, payload: Payload<'_, Memory>) {
        let token = self.machine.requests.insert(pending);
        self.dispatcher.submit(&mut self.machine, token, pending.request, payload);
    }

    pub(super) fn complete(&mut self, io: &Io, result: IoResult) {
        if io.is_read() && result.is_ok() {
            assert!(io.fill_memory(&mut self.machine.shards, false), "a read has its memory");
        }
        self.dispatcher.complete(&mut self.machine, io.shard, io.action.id, result);
    }

    pub(super) fn flushed(&mut self, job: JobId, result: IoResult) {
        self.dispatcher.flushed(&mut self.machine, job, result);
    }

    pub(super) fn tick(&mut self) {
        for shard in 0..self.machine.shards.len() {
            self.dispatcher.tick(&mut self.machine, shard);
        }
    }

    /// Delivers an answer that is due. Returns whether there was one.
    pub(super) fn deliver_answer(&mut self) -> bool {
        let answer = self.machine.answers.pop_front();
        answer.into_iter().for_each(|it| self.dispatcher.answer(&mut self.machine, it));
        answer.is_some()
    }

    /// Whether nothing of a volume is in use or dirty, so that it can be removed.
    pub(super) fn is_settled(&self, local: usize) -> bool {
        let id = VolumeId(local as u16);
        let mut volumes = self.machine.shards.iter().map(|one| one.shard.volume(id));
        self.dispatcher.in_flight_of(id) == 0
            && volumes.all(|volume| volume.operations() == 0 && volume.dirty_lines() == 0)
    }

    /// Removes a volume that is settled, or whose opening has failed before it was added.
    pub(super) fn unmount(&mut self, local: usize) -> Mount {
        let mount = self.machine.mounts[local].take().expect("the volume is here");
        if mount.journal.is_some() {
            for one in &mut self.machine.shards {
                one.shard.drop_clean(VolumeId(local as u16), 0, Slot::MAX);
                one.shard.remove_volume(VolumeId(local as u16));
            }
        }
        mount
    }

    /// Whether requests are in flight.
    pub(super) fn is_waiting(&self) -> bool {
        self.machine.requests.len() > 0
    }

    /// What is in use after everything has ended, if anything is.
    pub(super) fn leaks(&self) -> Option<String> {
        self.machine.shards.iter().find_map(PooledShard::leaks)
    }
}

impl ServerMachine {
    pub(super) fn mount_of(&self, local: usize) -> Option<&Mount> {
        self.mounts.get(local)?.as_ref()
    }

    pub(super) fn mount_mut(&mut self, local: usize) -> &mut Mount {
        self.mounts[local].as_mut().expect("the volume is here")
    }

    fn journal_of(&mut self, volume: VolumeId) -> &mut MountedJournal {
        let mount = self.mount_mut(usize::from(volume.0));
        mount.journal.as_mut().expect("a volume in the shards has its journal")
    }

    /// The volumes, by their numbers here.
    pub(super) fn locals(&self) -> impl Iterator<Item = (usize, &Mount)> {
        self.mounts.iter().enumerate().filter_map(|(at, mount)| Some((at, mount.as_ref()?)))
    }

    /// The number here of a volume of the site.
    pub(super) fn find(&self, number: u16) -> Option<usize> {
        self.locals().find(|(_, mount)| mount.number == number).map(|(local, _)| local)
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = &SiteRequest> {
        self.requests.iter()
    }

    /// Whether a request for this purpose is in flight.
    pub(super) fn has_pending(&self, local: usize, origin: RequestOrigin) -> bool {
        let volume = VolumeId(local as u16);
        self.pending().any(|it| it.origin == origin && it.request.volume == volume)
    }

    /// Disconnects the clients of a volume. Returns their requests in flight.
    pub(super) fn abandon(&mut self, local: usize) -> Vec<SiteRequest> {
        let mut abandoned = Vec::new();
        for pending in self.requests.iter_mut() {
            let is_ours = usize::from(pending.request.volume.0) == local;
            if is_ours && pending.origin == RequestOrigin::Client && !pending.is_abandoned {
                abandoned.push(*pending);
                pending.is_abandoned = true;
            }
        }
        abandoned
    }
}

impl Host for ServerMachine {
    type Token = u32;
    type Memory = Memory;
    type Table = Vec<LineMeta>;

    fn shards(&self) -> usize {
        self.shards.len()
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
        let one = &mut self.shards[shard];
        let result = call(&mut one.shard, out);
        out.memory.drain(..).for_each(|step| one.apply_step(step, payload));
        one.shard.finish_call();
        for request in std::mem::take(&mut out.journal_requests) {
            let mount = self.mounts[usize::from(request.volume.0)].as_mut();
            let journal = mount.and_then(|mount| mount.journal.as_mut());
            let journal = journal.expect("a volume in the shards has its journal");
            let one = &self.shards[shard];
            let answer = record(&mut journal.state, journal.number, &request, payload, one);
            out.answers.extend(answer);
        }
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        content.map_or_else(|| Memory::buffer(len), Memory::payload)
    }

    fn start_io(&mut self, shard: usize, action: IoAction, memory: Option<(&Memory, u64)>) {
        let memory = memory.map(|(memory, base)| (memory.clone(), base));
        let mut io = Io::new(shard, action, memory, SECTOR_BYTES);
        assert!(io.is_valid(VOLUME_BYTES), "an I/O exceeds its volume or memory: {:?}", io.action);
        if io.is_write() {
            io.stamps = io.current_stamps(&self.shards);
        }
        self.started.push(io);
    }

    fn flush_backend(&mut self, volume: VolumeId, job: JobId) {
        self.flushes.push((volume, job));
    }

    fn protection(&mut self, volume: VolumeId) -> Protection {
        let journal = &self.journal_of(volume).state;
        protection(None, Some(|| journal.is_abandoned()))
    }

    fn admit_erase(&mut self, part: &Part) -> bool {
        let journal = self.journal_of(part.volume);
        journal.state.admit_erase(journal.number, part)
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        let journal = self.journal_of(part.volume);
        let answer = journal.state.admit(journal.number, part);
        admission(part.range, fua, None, Some((answer, Durability::Ack)))
    }

    fn withdraw(&mut self, volume: VolumeId) {
        self.journal_of(volume).state.log.withdraw();
    }

    fn barrier(&mut self, volume: VolumeId, part: PartId) -> Result<Barrier, IoError> {
        let is_durable = self.journal_of(volume).state.barrier(part)?;
        Ok(Barrier { is_durable, is_complete: true })
    }

    fn reply(&mut self, token: u32, reply: Reply<'_, Memory>) {
        let pending = self.requests.remove(token).expect("a request is answered once");
        let mut stamps = Vec::new();
        if pending.request.kind == RequestKind::Read && reply.result.is_ok() {
            stamps = reply_stamps(&self.shards, reply.segments, reply.memory.as_ref());
            release_pins(reply.segments, |at, slot| self.shards[at].shard.release(slot));
        } else {
            assert!(reply.segments.is_empty(), "only the answer to a read has bytes");
        }
        self.ended.push(EndedRequest { pending, result: reply.result, stamps });
    }

    fn forward(&mut self, _: u8, answer: Answer) {
        self.answers.push_back(answer);
    }

    fn streams<R>(&mut self, _: VolumeId, _: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        None
    }
}
