//! I/O to the backends. The I/Os of the shards in a turn are collected, adjacent ones are
//! coalesced, and all are started together at the end of the turn.

use crate::disk::{UnansweredIo, operation};
use crate::platform::reactor::Reactor;
use crate::shared::{Inbox, Message, Shared, TransferId, Volume};
use forebay_engine::{IoAction, IoId, IoVerb, Place};
use forebay_frontend::Memory;
use forebay_types::{ByteRange, Few, IoError, IoResult, VolumeId};
use forebay_volume::{JobId, Mergeable, merge};
use std::sync::Arc;
use std::time::Instant;

mod in_flight;

use in_flight::{InFlight, Member, Progress, Purpose, submit};

/// An I/O to be started at the end of the turn.
pub(crate) struct Pending {
    shard: usize,
    action: IoAction,
    /// The address of the request's private memory; null if it has none.
    private: *mut u8,
    /// The block size of the disk, in bytes.
    block_bytes: u64,
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
        self.block_bytes
    }
}

/// An I/O of a shard, or a flush, that has ended.
pub(crate) enum Ended {
    Shard { shard: usize, id: IoId, result: IoResult },
    Flush { job: JobId, result: IoResult },
}

/// The I/Os of one worker.
pub(crate) struct Ios {
    pending: Vec<Pending>,
    /// Boxed, because the reactor uses the addresses of the vectors in an I/O until it completes.
    in_flight: Vec<Option<Box<InFlight>>>,
    free: Vec<u32>,
    inbox: Arc<Inbox>,
    worker: usize,
    /// Counts the calls of [`Ios::start`] that started an I/O.
    starts: u64,
    /// The start of the runtime.
    started: Instant,
}

impl Ios {
    pub(super) fn new(inbox: Arc<Inbox>, worker: usize, started: Instant) -> Self {
        let (pending, in_flight, free) = (Vec::new(), Vec::new(), Vec::new());
        Self { pending, in_flight, free, inbox, worker, starts: 0, started }
    }

    /// Identifies the I/Os that will start together, among those of all workers.
    pub(super) const fn batch(&self) -> u64 {
        (self.worker as u64 + 1) << 48 | self.starts
    }

    /// Adds an I/O of a shard. [`Ios::start`] starts it.
    pub(super) fn push(
        &mut self,
        shard: usize,
        action: IoAction,
        memory: Option<(&Memory, u64)>,
        block_bytes: u64,
    ) {
        let private = memory.map_or(std::ptr::null_mut(), |(memory, base)| {
            memory.as_ptr().wrapping_add(base as usize)
        });
        self.pending.push(Pending { shard, action, private, block_bytes });
    }

    /// Whether no I/O is pending or in flight, except those of volumes that were given up, whose
    /// disks may never complete them.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.in_flight.iter().flatten().all(|io| io.volume.is_given_up())
    }

    /// Keeps the memory of what is in flight until the process ends, because the disks may still
    /// use it.
    pub(super) fn leave(&mut self) {
        assert!(self.is_idle(), "only I/Os of volumes that were given up are left in flight");
        std::mem::forget(std::mem::take(&mut self.in_flight));
    }

    /// The start of the oldest I/O in flight of a volume, or of all that were not given up.
    pub(super) fn oldest(&self, volume: Option<VolumeId>) -> Option<Instant> {
        let in_flight = self.in_flight.iter().flatten();
        let selected = in_flight.filter(|io| match volume {
            Some(volume) => io.volume.id == volume,
            None => !io.volume.is_given_up(),
        });
        selected.map(|io| io.began).min()
    }

    /// Coalesces and starts the pending I/Os. `last` is the volume of the last lookup.
    pub(super) fn start<R: Reactor>(
        &mut self,
        shared: &Shared,
        reactor: &mut R,
        last: &mut Option<Arc<Volume>>,
    ) {
        if self.pending.is_empty() {
            return;
        }
        self.starts += 1;
        let mut pending = std::mem::take(&mut self.pending);
        merge(&mut pending, |run| {
            let volume = shared.volume_after(last, run[0].action.volume);
            let volume = volume.expect("a volume with operations is not removed");
            let io = coalesce(shared, Arc::clone(volume), run);
            self.launch(shared, reactor, io);
        });
        pending.clear();
        self.pending = pending;
    }

    /// Starts a flush of a backend.
    pub(super) fn flush<R: Reactor>(
        &mut self,
        shared: &Shared,
        reactor: &mut R,
        volume: Arc<Volume>,
        job: JobId,
    ) {
        let io = InFlight::new(volume, None, Purpose::Flush(job), Few::new(), None);
        self.launch(shared, reactor, io);
    }

    fn launch<R: Reactor>(&mut self, shared: &Shared, reactor: &mut R, io: InFlight) {
        io.count(self.worker);
        if io.verb == Some(IoVerb::Read) {
            io.volume.disk.reads.begin(io.is_background());
        }
        io.volume.disk.load.begin(io.began.saturating_duration_since(self.started));
        let tag = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            (self.in_flight.len() - 1) as u32
        });
        let unanswered = UnansweredIo {
            volume: io.volume.id,
            verb: io.verb,
            cause: io.cause,
            range: io.range,
            began: io.began,
        };
        shared.unanswered.begin(self.worker, tag, unanswered);
        assert!(self.in_flight[tag as usize].is_none(), "a free tag has no I/O");
        let io = self.in_flight[tag as usize].insert(Box::new(io));
        if let Some(claim) = &io.claim
            && !io.volume.blocks.lock().start(claim, TransferId { worker: self.worker, tag })
        {
            // The end of the transfer that owns one of its blocks starts this one.
            return;
        }
        submit(reactor, &self.inbox, tag, io);
    }

    /// Starts a transfer that has waited for a block.
    pub(super) fn resume<R: Reactor>(&mut self, reactor: &mut R, tag: u32) {
        let io = self.in_flight[tag as usize].as_ref().expect("a waiting transfer keeps its tag");
        assert!(io.claim.is_some(), "only a transfer with a claim waits for blocks");
        submit(reactor, &self.inbox, tag, io);
    }

    /// Releases the blocks of a transfer that has ended, and starts transfers that wait for them.
    fn release<R: Reactor>(&mut self, shared: &Shared, reactor: &mut R, io: &InFlight) {
        let Some(claim) = &io.claim else { return };
        let mut next = Vec::new();
        io.volume.blocks.lock().end(claim, &mut next);
        for TransferId { worker, tag } in next {
            if worker == self.worker {
                self.resume(reactor, tag);
            } else {
                shared.inboxes[worker].post(Message::BlockFree { tag });
            }
        }
    }

    /// Handles the completion of an I/O by a backend.
    pub(super) fn done<R: Reactor>(
        &mut self,
        shared: &Shared,
        reactor: &mut R,
        tag: u64,
        result: IoResult,
        ended: &mut Vec<Ended>,
    ) {
        let io = self.in_flight[tag as usize].as_mut().expect("an I/O completes once");
        if result.is_ok() && io.next_step() {
            submit(reactor, &self.inbox, tag as u32, io);
            return;
        }
        let io = self.in_flight[tag as usize].take().expect("checked above");
        self.free.push(tag as u32);
        shared.unanswered.end(self.worker, tag as u32);
        self.release(shared, reactor, &io);
        self.end(shared, reactor, *io, result, ended);
    }

    /// Handles the completion of a file operation by the reactor.
    pub(super) fn file_done<R: Reactor>(
        &mut self,
        shared: &Shared,
        reactor: &mut R,
        tag: u32,
        result: std::io::Result<usize>,
        ended: &mut Vec<Ended>,
    ) {
        let io = self.in_flight[tag as usize].as_mut().expect("an I/O completes once");
        match result {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                submit(reactor, &self.inbox, tag, io);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                io.cause_of_failure = Some(error.to_string());
                let error = IoError::from_errno(errno);
                self.done(shared, reactor, u64::from(tag), Err(error), ended);
            }
            Ok(bytes) => match io.advance(bytes as u64) {
                Progress::Done => self.done(shared, reactor, u64::from(tag), Ok(()), ended),
                Progress::More => submit(reactor, &self.inbox, tag, io),
                Progress::EndOfFile => {
                    let text = "the disk is shorter than when it was opened";
                    io.cause_of_failure = Some(text.to_owned());
                    self.done(shared, reactor, u64::from(tag), Err(IoError::Io), ended);
                }
            },
        }
    }

    fn end<R: Reactor>(
        &mut self,
        shared: &Shared,
        reactor: &mut R,
        io: InFlight,
        result: IoResult,
        ended: &mut Vec<Ended>,
    ) {
        let now = Instant::now();
        let since = |earlier: Instant| now.saturating_duration_since(earlier);
        let (ended_at, took) = (since(self.started), since(io.began));
        let stats = &io.volume.stats[self.worker];
        stats.counts.backend_answers.add(1);
        stats.counts.backend_errors.add(u64::from(result.is_err()));
        stats.record(io.latency_class(), took.as_nanos() as u64, 1);
        io.volume.disk.errors.record(result.is_err(), ended_at);
        io.volume.disk.load.end(ended_at);
        if io.verb == Some(IoVerb::Read) {
            io.volume.disk.reads.end(io.is_background(), ended_at, took);
        }
        if let Err(error) = result {
            log_failure(&io, error, now);
        }
        let is_stable = io.verb == Some(IoVerb::Write { fua: true }) && result.is_ok();
        if !is_stable && io.verb.is_some_and(|verb| verb != IoVerb::Read) {
            // Recorded before the answer, so that a flush that follows the answer covers the write.
            io.volume.flush.record_write();
        }
        match io.purpose {
            Purpose::Flush(job) => {
                let (result, first_failure) = io.volume.flush.end(result);
                if first_failure {
                    tracing::error!(
                        volume = io.volume.name,
                        disk = io.volume.backend.description().name,
                        "disk flush failed, data written before it may be lost; flushes fail \
                         until `forebay volume trust`"
                    );
                }
                ended.push(Ended::Flush { job, result });
            }
            Purpose::Shards(members) if result.is_err() && members.len() > 1 => {
                // Retried one by one: a bad sector must not fail the other members.
                let mut at = 0;
                for member in members {
                    let iovecs = io.iovecs[at..at + member.iovecs].iter().copied().collect();
                    at += member.iovecs;
                    let (volume, discard) = (Arc::clone(&io.volume), io.discard.clone());
                    let purpose = Purpose::Shards(Few::from_buf([member]));
                    let retry = InFlight::new(volume, io.verb, purpose, iovecs, discard);
                    self.launch(shared, reactor, retry.with_cause(io.cause));
                }
                assert_eq!(at, io.iovecs.len(), "each vector belongs to one member");
            }
            Purpose::Shards(members) => {
                ended.extend(members.into_iter().map(|member| Ended::Shard {
                    shard: member.shard,
                    id: member.id,
                    result,
                }));
            }
        }
    }
}

/// Logs an I/O that a disk has failed, whatever the disk is.
fn log_failure(io: &InFlight, error: IoError, now: Instant) {
    let Some(others) = io.volume.disk.error_log.admit(now) else { return };
    let (range, cause) = (io.verb.map(|_| io.range), io.cause.name());
    tracing::warn!(
        volume = io.volume.name,
        disk = io.volume.backend.description().name,
        operation = operation(io.verb),
        cause,
        offset = range.map(|range| range.offset),
        length = range.map(|range| range.len),
        error = io.cause_of_failure.clone().unwrap_or_else(|| error.to_string()),
        others,
        "disk I/O failed"
    );
}

/// Joins adjacent I/Os into one.
fn coalesce(shared: &Shared, volume: Arc<Volume>, run: &[Pending]) -> InFlight {
    let verb = run[0].action.verb;
    let mut iovecs = Few::new();
    let mut members = Few::with_capacity(run.len());
    let longest_gap = run
        .iter()
        .flat_map(|io| &io.action.segments)
        .filter(|segment| segment.place == Place::Discard)
        .map(|segment| segment.len)
        .max();
    let discard = longest_gap.map(|len| Arc::new(Memory::new(len as usize)));
    for Pending { shard, action, private, .. } in run {
        let before = iovecs.len();
        for segment in &action.segments {
            let base = match segment.place {
                Place::Slot { slot, offset } => {
                    shared.pool.line(*shard, slot).wrapping_add(offset as usize)
                }
                Place::Private { offset } => {
                    assert!(!private.is_null(), "the I/O was pushed with its memory");
                    private.wrapping_add(offset as usize)
                }
                Place::Discard => discard.as_ref().expect("allocated above").as_ptr(),
            };
            push_iovec(&mut iovecs, before, base, segment.len as usize);
        }
        let bytes: usize = iovecs[before..].iter().map(|iovec: &libc::iovec| iovec.iov_len).sum();
        let moves_data = matches!(verb, IoVerb::Read | IoVerb::Write { .. });
        let whole = if moves_data { action.range.len } else { 0 };
        assert_eq!(bytes as u64, whole, "the memory of an I/O is as long as its range");
        let (id, range, iovecs) = (action.id, action.range, iovecs.len() - before);
        members.push(Member { shard: *shard, id, range, iovecs });
    }
    // The lowest cause, so that demand wins: a client that waits for one member waits for the whole
    // I/O.
    let cause = run.iter().map(|io| io.action.cause).min().expect("a run has an I/O");
    InFlight::new(volume, Some(verb), Purpose::Shards(members), iovecs, discard).with_cause(cause)
}

/// Appends memory. Extends the last of the vectors from `from` on if the memory follows it.
pub(super) fn push_iovec(iovecs: &mut Few<libc::iovec>, from: usize, base: *mut u8, len: usize) {
    if iovecs.len() > from
        && let Some(last) = iovecs.last_mut()
        && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base
    {
        last.iov_len += len;
        return;
    }
    iovecs.push(libc::iovec { iov_base: base.cast(), iov_len: len });
}
