//! The requests of the clients: those in flight, replies being sent, payloads being received.
//!
//! A read is checked when it is answered and, if its pins are held for a slow client, again when
//! its bytes have been sent.

use super::clients::Staging;
use super::driver::INTERNAL;
use super::expected::Expected;
use super::run::{Event, Run};
use crate::harness::Sabotage;
use crate::harness::memory::Memory;
use crate::harness::shard::{PooledShard, release_pins, reply_stamps};
use crate::harness::slab::Slab;
use forebay_engine::Place;
use forebay_types::{IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::{Reply, ReplySegment, Request, RequestKind};

/// The limit of completed I/Os without an answer to a request. The largest request needs far fewer:
/// at the limit, requests only wake each other, without end.
const EVENTS_WITHOUT_ANSWER_MAX: u64 = 100_000;

pub(crate) struct PendingRequest {
    pub client: u16,
    pub request: Request,
    pub submitted: u32,
    /// The version of its content.
    pub version: u32,
}

/// A read whose bytes are still being sent.
struct HeldReply {
    pending: PendingRequest,
    segments: Vec<ReplySegment>,
    memory: Option<Memory>,
    /// The answered content.
    stamps: Vec<u64>,
    /// Whether a planted bug has already released the pins.
    released: bool,
}

#[derive(Default)]
pub(crate) struct Requests {
    pending: Slab<PendingRequest>,
    held: Slab<HeldReply>,
    staging: Slab<Staging>,
    /// The time of the last answer.
    answered_us: u64,
    /// I/Os ended since the last answer.
    events_since_answer: u64,
    /// The result of the last restore request.
    restored: Option<IoResult>,
}

impl HeldReply {
    fn current_stamps(&self, shards: &[PooledShard]) -> Vec<u64> {
        reply_stamps(shards, &self.segments, self.memory.as_ref())
    }

    fn release_pins(&self, shards: &mut [PooledShard]) {
        release_pins(&self.segments, |at, slot| shards[at].shard.release(slot));
    }
}

impl Requests {
    /// Records the submission of a request. Returns its token and the version of its content.
    pub(crate) fn submit(
        &mut self,
        run: &mut Run,
        expected: &mut Expected,
        client: u16,
        request: Request,
    ) -> (u32, u32) {
        let moment = run.next_moment();
        run.report.operations += 1;
        let version = expected.submit(run, request, self.oldest_read().unwrap_or(moment));
        let pending = PendingRequest { client, request, submitted: moment, version };
        let token = self.pending.insert(pending);
        let Request { volume, kind, range } = request;
        run.log_event(volume.0, range, || {
            format!("{moment}: client {client}: {kind:?} {range} version {version}")
        });
        (token, version)
    }

    /// The submission of the oldest read in flight.
    fn oldest_read(&self) -> Option<u32> {
        let is_read = |pending: &&PendingRequest| pending.request.kind == RequestKind::Read;
        let pending = self.pending.iter().filter(is_read).map(|pending| pending.submitted);
        let held = self.held.iter().map(|held| held.pending.submitted);
        pending.chain(held).min()
    }

    /// The submission of the oldest request that is not answered.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.pending.iter().map(|pending| pending.submitted).min()
    }

    /// A request that is not answered.
    pub(crate) fn any_waiting(&self) -> Option<Request> {
        self.pending.iter().next().map(|pending| pending.request)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn has_internal_request(&self, volume: VolumeId) -> bool {
        self.pending.iter().any(|it| it.client == INTERNAL && it.request.volume == volume)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.len() == 0 && self.held.len() == 0 && self.staging.len() == 0
    }

    /// The time since the last answer.
    pub(crate) const fn silence_us(&self, run: &Run) -> u64 {
        run.now_us() - self.answered_us
    }

    /// Detects that I/Os keep completing without ever answering a request.
    pub(crate) fn check_progress(&mut self, run: &mut Run) {
        self.events_since_answer += 1;
        if self.events_since_answer == EVENTS_WITHOUT_ANSWER_MAX {
            let waiting = self.any_waiting();
            let place = waiting.map(|r| (r.volume.0, r.range.offset / SECTOR_BYTES));
            let message = "I/Os complete, but no request is answered";
            run.violate(place, format!("{message}; one in flight is {waiting:?}"));
        }
    }

    /// Records the answer to a request. `None` if it has been answered before.
    pub(crate) fn answer(&mut self, run: &mut Run, token: u32) -> Option<PendingRequest> {
        let pending = self.pending.remove(token)?;
        run.next_moment();
        self.events_since_answer = 0;
        self.answered_us = run.now_us();
        Some(pending)
    }

    /// Begins to wait for the answer to a restore request.
    pub(crate) const fn begin_restore(&mut self) {
        self.restored = None;
    }

    pub(crate) fn end_restore(&mut self, pending: &PendingRequest, result: IoResult) {
        let is_restore = matches!(
            pending.request.kind,
            RequestKind::Restore
                | RequestKind::RestoreZero { .. }
                | RequestKind::Record
                | RequestKind::Destage
        );
        if is_restore && pending.client == INTERNAL {
            self.restored = Some(result);
        }
    }

    /// The answer to the last restore request.
    pub(crate) const fn restored(&self) -> Option<IoResult> {
        self.restored
    }

    /// Checks the bytes of a read, and releases its pins now or later.
    pub(crate) fn take_bytes(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        expected: &mut Expected,
        pending: PendingRequest,
        reply: Reply<'_, Memory>,
    ) {
        let mut held = HeldReply {
            pending,
            segments: reply.segments.to_vec(),
            memory: reply.memory,
            stamps: Vec::new(),
            released: run.strikes(Sabotage::ReleaseEarly),
        };
        held.stamps = held.current_stamps(shards);
        expected.check_read(run, &held.pending, &held.stamps);
        let in_pool = held.segments.iter().any(|s| matches!(s.segment.place, Place::Slot { .. }));
        if in_pool && run.strikes(Sabotage::LeakPin) {
            return;
        }
        if in_pool && run.dice.chance(run.plan.slow_reply) {
            let delay_us = run.dice.range(0, run.plan.slow_reply_us_max);
            if held.released {
                held.release_pins(shards);
            }
            let at = self.held.insert(held);
            run.schedule(delay_us, Event::Release(at));
        } else {
            held.release_pins(shards);
        }
    }

    /// Handles the end of a reply: all its bytes have been sent.
    pub(crate) fn end_reply(&mut self, run: &mut Run, shards: &mut [PooledShard], at: u32) {
        let held = self.held.remove(at).expect("a reply is sent once");
        if held.current_stamps(shards) != held.stamps {
            let Request { volume, range, .. } = held.pending.request;
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            run.violate(place, format!("the bytes of an answer changed under its pins: {range}"));
        }
        if !held.released {
            held.release_pins(shards);
        }
    }

    /// Begins to receive a payload into the pool.
    pub(crate) fn begin_payload(&mut self, run: &mut Run, staging: Staging) {
        let delay_us = run.dice.range(0, run.plan.staged_payload_us_max);
        let at = self.staging.insert(staging);
        run.schedule(delay_us, Event::Payload(at));
    }

    pub(crate) fn end_payload(&mut self, at: u32) -> Staging {
        self.staging.remove(at).expect("a payload completes once")
    }

    /// Handles the end of the process. Returns the requests that will not be answered.
    pub(crate) fn end_process(&mut self) -> Vec<PendingRequest> {
        self.held.drain().for_each(drop);
        self.staging.drain().for_each(drop);
        self.pending.drain().collect()
    }
}
