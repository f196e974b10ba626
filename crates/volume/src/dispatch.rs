//! The dispatcher: owns a worker's requests from submission to reply.
//!
//! A request in one region that can be answered at once needs no job. Every other one is a job with
//! parts; parts are retried when the shard says so, and the last part to finish answers the
//! request. The outbox is drained after each call to a shard.

mod flush;
mod in_order;
mod long_erase;
mod parts;
mod prefetch;
mod stable;
mod write_back;

use crate::erase::erase_kind;
use crate::host::{Host, Payload, Reply, ReplySegment};
use crate::job::{FlushStage, Jobs, PARTS_MAX, PartName, PartState, RequestJob};
use crate::{JobId, Request, RequestKind, Wait, WaitBreakdown, shard_of, staged_pieces};
use forebay_engine::{Answer, Attempt, IoId, LineHits, Outbox, Outcome, Place, Segment, Slot};
use forebay_types::{ByteRange, Few, IoResult, LINE_BYTES, VolumeId};
use parts::{PartData, PartRun, PartStep, staged_part};

/// The requests of one worker.
pub struct Dispatcher<H: Host> {
    worker: u8,
    jobs: Jobs<H>,
    out: Outbox,
    answers: Vec<Answer>,
    segments: Vec<Segment>,
    reply: Vec<ReplySegment>,
    /// Ordered volumes that need a run.
    runs: Vec<VolumeId>,
    /// Shards in which the elevator of a volume continues.
    wakes: Vec<(usize, VolumeId)>,
    /// First uses of prefetched lines that are not yet reported to the streams of the volume.
    prefetch_uses: (VolumeId, u32),
}

impl<H: Host> Dispatcher<H> {
    /// An idle dispatcher for the worker with this number, which must be unique.
    pub fn new(worker: u8) -> Self {
        Self {
            worker,
            jobs: Jobs::default(),
            out: Outbox::default(),
            answers: Vec::new(),
            segments: Vec::new(),
            reply: Vec::new(),
            runs: Vec::new(),
            wakes: Vec::new(),
            prefetch_uses: (VolumeId(0), 0),
        }
    }

    /// Unanswered requests.
    pub const fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    /// Unanswered requests of one volume. Scans all requests.
    pub fn in_flight_of(&self, volume: VolumeId) -> usize {
        self.jobs.iter().filter(|job| job.request.volume == volume).count()
    }

    /// Reserves slots for the payload of a later write. The caller fills them, and then submits
    /// them as [`Payload::Staged`] or releases them with [`Dispatcher::unstage`]. `None` if too few
    /// slots can be freed.
    pub fn stage(&mut self, host: &mut H, volume: VolumeId, range: ByteRange) -> Option<Vec<Slot>> {
        let mut slots = Vec::with_capacity((range.len / LINE_BYTES) as usize + 2);
        let (shards, stripes) = (host.shards(), host.stripes(volume));
        for piece in stripes.split(range) {
            let shard = shard_of(volume, stripes, piece.offset, shards);
            let has_slots = host
                .call(shard, &[], &mut self.out, |shard, _| shard.stage(volume, piece, &mut slots));
            if !has_slots {
                self.unstage(host, volume, range, &slots);
                return None;
            }
        }
        let lines = range.end().div_ceil(LINE_BYTES) - range.offset / LINE_BYTES;
        assert_eq!(slots.len() as u64, lines, "a line of {range} has no slot of its own");
        Some(slots)
    }

    /// Releases the slots of a payload that is not written.
    pub fn unstage(&mut self, host: &mut H, volume: VolumeId, range: ByteRange, slots: &[Slot]) {
        let striped = (volume, host.stripes(volume));
        for (shard, _, slots) in staged_pieces(striped, range, host.shards(), slots) {
            host.call(shard, &[], &mut self.out, |shard, _| {
                slots.iter().rev().for_each(|&slot| shard.release(slot));
            });
        }
    }

    /// Submits a request. The answer goes to [`Host::reply`], within this call if possible.
    pub fn submit(
        &mut self,
        host: &mut H,
        token: H::Token,
        request: Request,
        mut payload: Payload<'_, H::Memory>,
    ) {
        match request.kind {
            RequestKind::Flush
            | RequestKind::Destage
            | RequestKind::Checkpoint { .. }
            | RequestKind::Sync => {
                self.submit_flush(host, token, request);
            }
            RequestKind::Order => unreachable!("only the dispatcher makes runs"),
            RequestKind::Prefetch => self.submit_prefetch(host, token, request),
            RequestKind::Preload { .. } => self.submit_many(host, token, request, Payload::None),
            _ if request.range.len == 0 => reply_done(host, token),
            RequestKind::Trim { .. }
            | RequestKind::Zero { .. }
            | RequestKind::RestoreZero { .. } => {
                let id = self.begin(host, token, request, Payload::None);
                self.continue_erase(host, id);
            }
            _ => {
                let is_whole = matches!(payload, Payload::None | Payload::Staged(_))
                    || payload.bytes().len() as u64 == request.range.len;
                debug_assert!(is_whole, "a payload of another length for {request:?}");
                let mut pieces = host.stripes(request.volume).split(request.range);
                let first = pieces.next().expect("the range is not empty");
                if first == request.range {
                    self.submit_one(host, token, request, &mut payload);
                } else {
                    self.submit_many(host, token, request, payload);
                }
            }
        }
        self.process_answers(host);
    }

    /// Submits a read or write in one region. It becomes a job only if it has to wait.
    // The payload is not copied: see `Completion::answer`.
    fn submit_one(
        &mut self,
        host: &mut H,
        token: H::Token,
        request: Request,
        payload: &mut Payload<'_, H::Memory>,
    ) {
        let id = self.jobs.next_id();
        let stripes = host.stripes(request.volume);
        let shard = shard_of(request.volume, stripes, request.range.offset, host.shards());
        let mut segments = std::mem::take(&mut self.segments);
        let (step, line_hits) = self.try_part(
            host,
            PartName { worker: self.worker, part: 0, job: id },
            request,
            &PartRun {
                range: request.range,
                shard,
                attempt: Attempt::default(),
                is_applied: false,
            },
            PartData { payload: payload.bytes(), staged: payload.staged() },
            &mut segments,
        );
        if let PartStep::Done(result) = step {
            self.reply.clear();
            let tag = |&segment| ReplySegment { shard: shard as u16, segment };
            self.reply.extend(segments.iter().map(tag));
            segments.clear();
            self.segments = segments;
            let segments = &self.reply;
            let reply = Reply { result, segments, memory: None, line_hits, trail: None };
            host.reply(token, reply);
        } else {
            let payload = std::mem::replace(payload, Payload::None);
            let (memory, staged) = self.keep_payload(host, &step, payload);
            let is_waiting = matches!(step, PartStep::Waiting(_));
            let (mut trail, now_us) = (WaitBreakdown::default(), host.now_us());
            step.record(&mut trail, &self.out, now_us);
            let part = PartState::new(request.range, shard);
            let parts = Few::from_buf([PartState { segments, is_waiting, trail, ..part }]);
            let job = RequestJob::new(token, request, now_us);
            let inserted = self.jobs.insert(RequestJob { memory, staged, parts, line_hits, ..job });
            assert_eq!(inserted, id, "the shard knows the part under another name");
        }
        self.drain_outbox(host, shard);
        if request.kind == RequestKind::Read && line_hits.misses > 0 {
            self.on_miss(host, request.volume, request.range, line_hits);
        }
    }

    /// Keeps a payload beyond the call if the part will be retried, or if an I/O writes from it.
    fn keep_payload(
        &self,
        host: &mut H,
        step: &PartStep,
        payload: Payload<'_, H::Memory>,
    ) -> (Option<H::Memory>, Vec<Slot>) {
        let is_needed = match step {
            PartStep::Done(_) | PartStep::Logged => false,
            PartStep::Waiting(_) | PartStep::Held { .. } => true,
            PartStep::Started => self.out.ios.iter().any(|io| io.segments.iter().any(is_private)),
        };
        match payload {
            Payload::Owned(memory) if is_needed => (Some(memory), Vec::new()),
            Payload::Borrowed(bytes) if is_needed => {
                (Some(host.allocate(bytes.len() as u64, Some(bytes))), Vec::new())
            }
            Payload::Staged(slots) => (None, slots),
            _ => (None, Vec::new()),
        }
    }

    /// Submits a read or write that spans regions, or a preload.
    fn submit_many(
        &mut self,
        host: &mut H,
        token: H::Token,
        request: Request,
        payload: Payload<'_, H::Memory>,
    ) {
        let id = self.begin(host, token, request, payload);
        let (volume, shards) = (request.volume, host.shards());
        let stripes = host.stripes(volume);
        let shard = |range: ByteRange| shard_of(volume, stripes, range.offset, shards);
        let parts = stripes.split(request.range).map(|range| PartState::new(range, shard(range)));
        let parts: Few<PartState> = parts.collect();
        assert!(parts.len() <= PARTS_MAX, "a request of {} parts", parts.len());
        let count = parts.len();
        let job = self.jobs.get_mut(id);
        job.pending += count as u32;
        job.parts = parts;
        for part in 0..count {
            self.run_part(host, id, part as u8);
        }
        let line_hits = self.jobs.get_mut(id).line_hits;
        self.part_done(host, id, Ok(()));
        if request.kind == RequestKind::Read && line_hits.misses > 0 {
            self.on_miss(host, request.volume, request.range, line_hits);
        }
    }

    /// Inserts a job with one pending "part", which keeps it open until the caller ends this part
    /// with `part_done`.
    fn begin(
        &mut self,
        host: &mut H,
        token: H::Token,
        request: Request,
        payload: Payload<'_, H::Memory>,
    ) -> JobId {
        let mut job = RequestJob::<H>::new(token, request, host.now_us());
        match payload {
            Payload::None => {}
            Payload::Owned(memory) => job.memory = Some(memory),
            Payload::Borrowed(bytes) => {
                job.memory = Some(host.allocate(bytes.len() as u64, Some(bytes)));
            }
            Payload::Staged(slots) => job.staged = slots,
        }
        self.jobs.insert(job)
    }

    /// Starts the I/Os and queues the answers that a call to a shard has requested.
    fn drain_outbox(&mut self, host: &mut H, shard: usize) {
        if self.out.is_empty() {
            return;
        }
        let mut ios = std::mem::take(&mut self.out.ios);
        for io in ios.drain(..) {
            let private = io.part.filter(|_| io.segments.iter().any(is_private));
            match private.map(PartName::unpack) {
                None => host.start_io(shard, io, None),
                Some(name) => {
                    let job = self.jobs.get_mut(name.job);
                    let range = job.request.range;
                    let base = job.parts[usize::from(name.part)].range.offset - range.offset;
                    let memory = job.memory.get_or_insert_with(|| host.allocate(range.len, None));
                    host.start_io(shard, io, Some((memory, base)));
                }
            }
        }
        self.out.ios = ios;
        self.answers.append(&mut self.out.answers);
        self.runs.append(&mut self.out.orders);
        self.wakes.append(&mut self.out.wakes);
        if let Some((volume, lines)) = self.out.prefetch_uses.take() {
            self.add_prefetch_uses(host, volume, lines);
        }
        for key in self.out.preloads_used.drain(..) {
            host.record_need(key.volume(), ByteRange::new(key.offset(), LINE_BYTES), 1);
        }
        if !self.out.marks.is_empty() {
            for key in std::mem::take(&mut self.out.marks) {
                let plan = host.streams(key.volume(), |streams| streams.on_mark(key.line()));
                self.read_ahead(host, key.volume(), plan.flatten());
            }
        }
    }

    /// Handles the end of an I/O started through [`Host::start_io`].
    pub fn complete(&mut self, host: &mut H, shard: usize, id: IoId, result: IoResult) {
        let now_ms = host.now_ms();
        self.out.turn = host.batch();
        host.call(shard, &[], &mut self.out, |shard, out| shard.complete(id, result, now_ms, out));
        self.drain_outbox(host, shard);
        self.process_answers(host);
    }

    /// Handles the end of a flush started through [`Host::flush_backend`].
    pub fn flushed(&mut self, host: &mut H, job: JobId, result: IoResult) {
        let flush = self.jobs.get_mut(job).flush;
        assert_eq!(flush, FlushStage::UnderWay, "a flush of the disk ends once");
        self.part_done(host, job, result);
        self.process_answers(host);
    }

    /// Handles an answer forwarded by another worker.
    pub fn answer(&mut self, host: &mut H, answer: Answer) {
        self.answers.push(answer);
        self.process_answers(host);
    }

    fn process_answers(&mut self, host: &mut H) {
        // An answer may append further answers; all are processed in order.
        let mut at = 0;
        loop {
            if at == self.answers.len() {
                self.wake_shards(host);
                self.start_runs(host);
                if at == self.answers.len() {
                    break;
                }
            }
            let answer = self.answers[at];
            at += 1;
            let name = PartName::unpack(answer.part);
            if name.worker != self.worker {
                host.forward(name.worker, answer);
                continue;
            }
            match answer.outcome {
                Outcome::Done(result) => {
                    self.unstage_part(host, name);
                    self.finish_part(host, name, result);
                }
                Outcome::Retry(error) => {
                    let job = self.jobs.get_mut(name.job);
                    let part = &mut job.parts[usize::from(name.part)];
                    part.attempt = part.attempt.after(error);
                    if error.is_some() {
                        part.trail.add_error();
                    }
                    self.run_part(host, name.job, name.part);
                }
                Outcome::InOrder => {
                    let job = self.jobs.get_mut(name.job);
                    job.parts[usize::from(name.part)].attempt.in_order = true;
                    self.run_part(host, name.job, name.part);
                }
                Outcome::JournalFailed => self.destage_unrecorded(host, name),
            }
        }
        self.answers.clear();
    }

    /// Releases the staged slots of a part that is answered while it waits for a retry.
    fn unstage_part(&mut self, host: &mut H, name: PartName) {
        let job = self.jobs.get_mut(name.job);
        let Some(part) = job.parts.get(usize::from(name.part)).filter(|part| part.is_waiting)
        else {
            return;
        };
        let range = part.range;
        let slots = staged_part(&job.staged, job.request.range, range).to_vec();
        let volume = job.request.volume;
        self.unstage(host, volume, range, &slots);
    }

    fn finish_part(&mut self, host: &mut H, name: PartName, result: IoResult) {
        self.end_long_erase(host, name, result);
        let job = self.jobs.get_mut(name.job);
        if let Some(part) = job.parts.get_mut(usize::from(name.part)) {
            part.trail.end(host.now_us());
            job.trail = part.trail;
        }
        let is_erase = erase_kind(job.request.kind).is_some();
        if is_erase {
            let part = &mut job.parts[usize::from(name.part)];
            assert!(part.range.len > 0, "a part ends once");
            part.range.len = 0;
        }
        let has_more = is_erase && job.rest.is_some();
        self.part_done(host, name.job, result);
        if has_more {
            self.continue_erase(host, name.job);
        }
    }

    /// Counts a finished part. After the last one, flushes the disk if needed, and answers.
    fn part_done(&mut self, host: &mut H, id: JobId, result: IoResult) {
        let job = self.jobs.get_mut(id);
        job.error = job.error.or(result.err());
        assert!(job.pending > 0, "a job ends once");
        job.pending -= 1;
        if job.pending > 0 {
            return;
        }
        self.flush_unsafe_zeroes(host, id);
        let job = self.jobs.get_mut(id);
        if job.error.is_none() && job.flush == FlushStage::Due {
            self.fail_for_loss(host, id);
        }
        let job = self.jobs.get_mut(id);
        if job.error.is_none() && job.flush == FlushStage::Due {
            job.flush = FlushStage::UnderWay;
            job.pending = 1;
            job.trail.begin(Wait::DiskFlush, host.now_us());
            let volume = job.request.volume;
            if job.request.kind == RequestKind::Order {
                job.horizon = host.order(volume).map_or(0, |order| order.epoch());
            }
            host.flush_backend(volume, id);
            return;
        }
        if job.request.kind == RequestKind::Order && self.continue_run(host, id) {
            return;
        }
        let job = self.jobs.remove(id);
        self.reply.clear();
        for part in &job.parts {
            let base = part.range.offset.wrapping_sub(job.request.range.offset) as u32;
            for &segment in &part.segments {
                self.reply.push(ReplySegment {
                    shard: part.shard as u16,
                    segment: rebase(segment, base),
                });
            }
        }
        if job.error.is_some() {
            self.release_all(host);
        }
        let result = job.error.map_or(Ok(()), Err);
        let (memory, line_hits) = (job.memory, job.line_hits);
        let mut trail = job.trail;
        trail.end(host.now_us());
        let wants_trail = host.should_trace(job.request.volume, job.begun_us);
        let trail = wants_trail.then(|| Box::new(trail));
        let segments = &self.reply;
        host.reply(job.token, Reply { result, segments, memory, line_hits, trail });
    }

    /// Releases the data of a read that failed in another part.
    fn release_all(&mut self, host: &mut H) {
        for ReplySegment { shard, segment } in std::mem::take(&mut self.reply) {
            if let Place::Slot { slot, .. } = segment.place {
                let shard = usize::from(shard);
                host.call(shard, &[], &mut self.out, |shard, _| shard.release(slot));
            }
        }
    }
}

fn reply_done<H: Host>(host: &mut H, token: H::Token) {
    let line_hits = LineHits::default();
    let reply = Reply { result: Ok(()), segments: &[], memory: None, line_hits, trail: None };
    host.reply(token, reply);
}

const fn is_private(segment: &Segment) -> bool {
    matches!(segment.place, Place::Private { .. })
}

/// Converts the offset of a private segment from its part's start to its request's.
const fn rebase(segment: Segment, base: u32) -> Segment {
    match segment.place {
        Place::Private { offset } => {
            Segment { place: Place::Private { offset: offset + base }, len: segment.len }
        }
        _ => segment,
    }
}
