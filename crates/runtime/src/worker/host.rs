//! The environment of a worker's dispatcher: shards, memory, I/O, journals and replies.

use super::clients::{ClientClock, ClientCompletion, ClientTable, Completions, InFlight};
use super::io::{Ended, Ios};
use super::needs::PendingNeeds;
use crate::platform::reactor::Reactor;
use crate::pool::{MappedLines, Pool};
use crate::protect::patrol;
use crate::shared::{FlushNeed, Message, OnDone, Recorder, Shared, Volume};
use forebay_engine::{
    Answer, IoAction, JournalOp, JournalRequest, MemoryStep, Outbox, Part, PartId, Protection,
    Shard,
};
use forebay_frontend::Memory;
use forebay_protect::{admission, protection};
use forebay_types::{ByteRange, IoError, LINE_BYTES, SECTOR_BYTES, Stripes, VolumeId};
use forebay_volume::{Admission, Barrier, EpochOrder, Host, JobId, Reply, Streams};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The recipient of the answer to a request.
pub(crate) enum Token {
    /// A client of a front end.
    Client(ClientCompletion),
    /// The runtime itself.
    Internal(OnDone),
}

/// The environment of a worker's dispatcher.
pub(crate) struct WorkerHost<R> {
    pub shared: Arc<Shared>,
    pub worker: usize,
    pub reactor: R,
    pub clients: ClientTable,
    /// Requests of clients.
    pub in_flight: InFlight,
    /// Answers to requests of clients, until they are delivered.
    pub completions: Completions,
    pub ios: Ios,
    /// I/Os that have ended and are not yet reported to the dispatcher.
    pub ended: Vec<Ended>,
    /// The volume of the last lookup. The next lookup is usually of the same volume.
    pub volume: Option<Arc<Volume>>,
    /// The needs of clients that are not reported to the volumes yet.
    pub needs: PendingNeeds,
    /// Records the requests of clients, while a recording is on.
    pub recorder: Option<Box<Recorder>>,
    /// The time at the start of the turn.
    pub now: Instant,
    /// The time for the timeouts of clients.
    pub client_clock: ClientClock,
}

impl<R: Reactor> WorkerHost<R> {
    /// Reports to the volumes what clients needed since the last report.
    pub(crate) fn report_needs(&mut self) {
        let mut needs = std::mem::take(&mut self.needs);
        for of_volume in needs.by_volume() {
            if let Some(volume) = self.find_volume(of_volume[0].volume) {
                volume.learn.record(of_volume);
            }
        }
        needs.clear();
        self.needs = needs;
    }

    /// Looks up a volume by its number.
    pub(crate) fn find_volume(&mut self, id: VolumeId) -> Option<&Arc<Volume>> {
        self.shared.volume_after(&mut self.volume, id)
    }
}

impl<R: Reactor> Host for WorkerHost<R> {
    type Token = Token;
    type Memory = Memory;
    type Table = MappedLines;

    fn shards(&self) -> usize {
        self.shared.shards.len()
    }

    fn stripes(&mut self, volume: VolumeId) -> Stripes {
        self.find_volume(volume).map_or(Stripes::NONE, |volume| volume.stripes)
    }

    fn block_bytes(&mut self, volume: VolumeId) -> u64 {
        self.find_volume(volume).map_or(SECTOR_BYTES, |volume| volume.block_bytes())
    }

    fn now_ms(&self) -> u64 {
        self.now.saturating_duration_since(self.shared.started).as_millis() as u64
    }

    fn now_us(&self) -> u64 {
        self.now.saturating_duration_since(self.shared.started).as_micros() as u64
    }

    fn should_trace(&mut self, volume: VolumeId, begun_us: u64) -> bool {
        let latency = Duration::from_micros(self.now_us().saturating_sub(begun_us));
        self.find_volume(volume).is_some_and(|volume| volume.slow.may_be_passed_by(latency))
    }

    fn batch(&self) -> u64 {
        self.ios.batch()
    }

    fn call<T>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<MappedLines>, &mut Outbox) -> T,
    ) -> T {
        let mut guard = self.shared.shard(shard);
        let result = call(&mut guard, out);
        for step in out.memory.drain(..) {
            if let MemoryStep::Verify { seal, kept } = step {
                patrol::verify_before(&self.shared, shard, &mut guard, &seal, kept);
            } else {
                carry_out(&self.shared.pool, shard, payload, step);
            }
        }
        guard.finish_call();
        for request in out.journal_requests.drain(..) {
            out.answers.extend(record_in_journal(&self.shared, shard, payload, &request));
        }
        result
    }

    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Memory {
        match content {
            Some(content) => Memory::with_content(content),
            None => Memory::new(len as usize),
        }
    }

    fn start_io(&mut self, shard: usize, io: IoAction, memory: Option<(&Memory, u64)>) {
        if !io.seals.is_empty() && !patrol::verify_destage(&self.shared, shard, &io) {
            self.ended.push(Ended::Shard { shard, id: io.id, result: Err(IoError::Io) });
            return;
        }
        let block_bytes = self.block_bytes(io.volume);
        self.ios.push(shard, io, memory, block_bytes);
    }

    fn flush_backend(&mut self, volume: VolumeId, job: JobId) {
        let volume = self.find_volume(volume).expect("a volume with requests is not removed");
        let volume = Arc::clone(volume);
        match volume.flush.begin() {
            FlushNeed::Flush => self.ios.flush(&self.shared, &mut self.reactor, volume, job),
            FlushNeed::Known(result) => self.ended.push(Ended::Flush { job, result }),
        }
    }

    fn protection(&mut self, volume: VolumeId) -> Protection {
        self.find_volume(volume);
        let Some(volume) = &self.volume else { return Protection::None };
        let ups = volume.power.has_ups().then_some(&self.shared.power);
        protection(ups, volume.journal.get().map(|used| move || used.journal.is_abandoned()))
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        self.find_volume(part.volume);
        let Some(volume) = &self.volume else { return Admission::Free };
        volume.invalidate_samples(part.range);
        let ups = volume.power.has_ups().then_some(&self.shared.power);
        let journal = volume.journal.get();
        let journal = journal.map(|used| (used.journal.admit(used.number, part), used.durability));
        admission(part.range, fua, ups, journal)
    }

    fn admit_erase(&mut self, part: &Part) -> bool {
        let volume = self.find_volume(part.volume);
        if let Some(volume) = volume {
            volume.invalidate_samples(part.range);
        }
        let used = volume.and_then(|volume| volume.journal.get());
        used.is_none_or(|used| used.journal.admit_erase(used.number, part))
    }

    fn order(&mut self, volume: VolumeId) -> Option<Arc<EpochOrder>> {
        self.find_volume(volume)?.order.clone()
    }

    fn internal_token(&mut self) -> Token {
        Token::Internal(Box::new(|_| {}))
    }

    fn withdraw(&mut self, volume: VolumeId) {
        let volume = self.find_volume(volume);
        let used = volume.and_then(|volume| volume.journal.get());
        used.expect("the journal has granted a permit").journal.withdraw();
    }

    fn barrier(&mut self, id: VolumeId, part: PartId) -> Result<Barrier, IoError> {
        let volume = Arc::clone(self.find_volume(id).expect("the volume has a request"));
        let used = volume.journal.get().expect("the journal protects the volume");
        let is_durable = used.journal.barrier(part)?;
        let is_complete = !volume.freshness.is_stale(|| self.shared.shards.has_lost(id));
        Ok(Barrier { is_durable, is_complete })
    }

    fn reply(&mut self, token: Token, reply: Reply<'_, Memory>) {
        match token {
            Token::Internal(on_done) => {
                debug_assert!(reply.segments.is_empty(), "internal requests do not read");
                on_done(reply.result);
            }
            Token::Client(completion) => completion.answer(reply),
        }
    }

    fn forward(&mut self, worker: u8, answer: Answer) {
        self.shared.inboxes[usize::from(worker)].post(Message::Answer(answer));
    }

    fn streams<T>(&mut self, volume: VolumeId, call: impl FnOnce(&mut Streams) -> T) -> Option<T> {
        let volume = self.find_volume(volume)?;
        let reads_ahead = volume.config.read().prefetch;
        reads_ahead.then(|| call(&mut volume.streams.lock()))
    }

    fn record_need(&mut self, volume: VolumeId, range: ByteRange, lines: u32) {
        if self.needs.add(volume, range, lines) {
            self.report_needs();
        }
    }
}

/// Carries out a memory step of the engine. The caller holds the shard's lock.
pub(crate) fn carry_out(pool: &Pool, shard: usize, payload: &[u8], step: MemoryStep) {
    let line = LINE_BYTES as usize;
    match step {
        MemoryStep::Verify { .. } => unreachable!("the caller verifies, as that needs the shard"),
        MemoryStep::Fill { slot, offset, payload_offset, len } => {
            let (offset, len) = (offset as usize, len as usize);
            let content = &payload[payload_offset as usize..][..len];
            assert!(offset + len <= line);
            // SAFETY: the range is inside the line. The engine fills only lines without pins,
            // because it relocates pinned ones first, so nothing else reads or writes this one.
            unsafe {
                let to = pool.line(shard, slot).add(offset);
                std::ptr::copy_nonoverlapping(content.as_ptr(), to, len);
            }
        }
        MemoryStep::Copy { from, to, offset, len } => {
            let (offset, len) = (offset as usize, len as usize);
            assert!(from != to && offset + len <= line);
            // SAFETY: the ranges are inside two different lines of the pool. The slot `to` is new,
            // so nothing else reads or writes it.
            unsafe {
                let (from, to) = (pool.line(shard, from), pool.line(shard, to));
                std::ptr::copy_nonoverlapping(from.add(offset), to.add(offset), len);
            }
        }
    }
}

/// Records a change in the volume's journal. The caller holds the shard's lock. Returns the answer
/// to the part, if it does not wait for the journal.
fn record_in_journal(
    shared: &Shared,
    shard: usize,
    payload: &[u8],
    request: &JournalRequest,
) -> Option<Answer> {
    let volume = shared.volume(request.volume).expect("a volume with requests is not removed");
    let used = volume.journal.get().expect("only volumes with a journal have requests to it");
    let slots: &[_] = match &request.kind {
        JournalOp::Write { slots, .. } => slots,
        _ => &[],
    };
    if slots.is_empty() {
        return used.journal.record(used.number, request, std::iter::once(payload));
    }
    let ByteRange { offset, len } = request.range;
    let first = offset / LINE_BYTES;
    let pieces = slots.iter().zip(first..).map(|(&slot, line)| {
        let start = offset.max(line * LINE_BYTES);
        let end = (offset + len).min((line + 1) * LINE_BYTES);
        let address = shared.pool.line(shard, slot);
        // SAFETY: the range is inside the line, which holds the received payload. Nothing writes to
        // the line while the shard is locked.
        unsafe {
            let address = address.add((start - line * LINE_BYTES) as usize);
            std::slice::from_raw_parts(address.cast_const(), (end - start) as usize)
        }
    });
    used.journal.record(used.number, request, pieces)
}
