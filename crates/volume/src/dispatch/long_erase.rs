//! Trims and writes of zeroes: how their ranges become parts.
//!
//! Where it can, an erase proceeds by *long erases*: parts of many regions, each with one I/O. What
//! keeps the lines of such a part from other operations is an operation in every shard that owns
//! some of its regions. The one of the first region leads: it has the I/O, the record and the
//! answer. The dispatcher begins the others before it, and ends them with its answer, so no line is
//! free before the change is recorded.
//!
//! A long erase may wait for the journal or the epochs of an ordered volume, but only before it has
//! begun. It never waits for a line: where a shard cannot begin, the next region becomes a part of
//! its own, which waits as other parts do.
//!
//! A request has one long erase. Its length is a compromise: each costs a few calls to
//! every shard, and other requests for its range wait until the disk has done all of it.

use super::{Dispatcher, PartName, PartState, PartStep};
use crate::blocks::whole_blocks;
use crate::erase::erase_kind;
use crate::host::Host;
use crate::job::{LongErase, PARTS_MAX};
use crate::order::AfterEpochs;
use crate::split::rows_of;
use crate::{JobId, RequestKind, Wait, shard_of};
use forebay_engine::{EraseKind, IoId, Part, erasable_until, erase_long};
use forebay_types::{ByteRange, IoError, IoResult, Stripes, VolumeId};

/// Limit of a long discard, in bytes. Disks and stores do little more for one than change a map.
const DISCARD_BYTES_MAX: u64 = 1 << 30;
/// Limit of a long write of zeroes, in bytes. A disk that has to write the zeroes takes about half
/// a second for so many, and had as many in flight if each region were a part.
const ZERO_BYTES_MAX: u64 = 64 << 20;

/// How an attempt at a long erase ends.
enum LongStep {
    /// It has begun, with these operations in the shards that do not lead it.
    Started(Vec<(usize, IoId)>),
    /// Its first region has to be tried alone.
    Refused,
    /// It is retried after this.
    Waits(Wait),
}

const fn bytes_max(kind: EraseKind) -> u64 {
    match kind {
        EraseKind::Discard => DISCARD_BYTES_MAX,
        EraseKind::Zero { .. } => ZERO_BYTES_MAX,
    }
}

/// The range of a long erase, and what divides it.
#[derive(Clone, Copy)]
struct LongRange {
    volume: VolumeId,
    stripes: Stripes,
    shards: usize,
    range: ByteRange,
}

impl LongRange {
    fn leader(&self) -> usize {
        shard_of(self.volume, self.stripes, self.range.offset, self.shards)
    }

    /// All shards but the leader.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let leader = self.leader();
        (0..self.shards).filter(move |&shard| shard != leader)
    }

    /// What a shard owns of it.
    fn rows(&self, shard: usize) -> Vec<ByteRange> {
        rows_of((self.volume, self.stripes), self.range, shard, self.shards).collect()
    }

    /// Shortens it to the regions that end before `until`.
    const fn shorten(&mut self, until: u64) {
        let bytes = until - self.range.offset;
        self.range = self.stripes.whole_regions(self.range, bytes);
    }

    /// Whether one I/O for it saves any.
    const fn is_long(&self) -> bool {
        let range = self.range;
        range.len > 0
            && self.stripes.region_of(range.offset) < self.stripes.region_of(range.end() - 1)
    }
}

impl<H: Host> Dispatcher<H> {
    /// Starts parts of an erase, up to the limit of parts in flight.
    pub(super) fn continue_erase(&mut self, host: &mut H, id: JobId) {
        loop {
            let job = self.jobs.get_mut(id);
            let running = job.pending as usize - 1;
            let is_held = job.long.is_some() || job.error.is_some() || running >= PARTS_MAX;
            let rest = job.rest.expect("the job starts parts");
            if rest.len == 0 || is_held {
                break;
            }
            self.start_part(host, id, rest);
        }
        let job = self.jobs.get_mut(id);
        // A long erase that has not begun may leave some of its range.
        let is_settled = job.long.as_ref().is_none_or(|long| long.has_begun);
        if job.error.is_some() || is_settled && job.rest.is_some_and(|rest| rest.len == 0) {
            // End the caller's own pending "part": no further parts will start.
            job.rest = None;
            self.part_done(host, id, Ok(()));
        }
    }

    /// Makes the next regions of an erase, or the next one, a part.
    fn start_part(&mut self, host: &mut H, id: JobId, rest: ByteRange) {
        let request = self.jobs.get_mut(id).request;
        let volume = request.volume;
        let (stripes, block_bytes) = (host.stripes(volume), host.block_bytes(volume));
        let kind = erase_kind(request.kind).expect("the request erases");
        let range = stripes.whole_regions(rest, bytes_max(kind));
        let long = LongRange { volume, stripes, shards: host.shards(), range };
        let is_long = long.is_long() && stripes.is_aligned_to(block_bytes);
        let range =
            if is_long { range } else { stripes.split(rest).next().expect("a rest is left") };
        let job = self.jobs.get_mut(id);
        job.rest = Some(ByteRange::new(range.end(), rest.end() - range.end()));
        let shard = shard_of(volume, stripes, range.offset, long.shards);
        let range = match kind {
            // A block trimmed only in part keeps its data.
            EraseKind::Discard => whole_blocks(range, block_bytes),
            EraseKind::Zero { .. } => range,
        };
        if range.len == 0 {
            return;
        }
        let state = PartState::new(range, shard);
        // Reuse the entry of a finished part, whose range is empty.
        let free = job.parts.iter().position(|part| part.range.len == 0);
        let at = free.unwrap_or(job.parts.len());
        assert!(at < PARTS_MAX, "a request of {at} parts at once");
        match free {
            Some(at) => job.parts[at] = state,
            None => job.parts.push(state),
        }
        job.pending += 1;
        let part = at as u8;
        job.long = is_long.then(|| LongErase { part, has_begun: false, others: Vec::new() });
        self.run_part(host, id, part);
    }

    /// Attempts a long erase that has not begun. Where it cannot begin, its first region becomes a
    /// part of its own.
    pub(super) fn run_long(&mut self, host: &mut H, id: JobId, part: u8) {
        let job = self.jobs.get_mut(id);
        let volume = job.request.volume;
        let range = job.parts[usize::from(part)].range;
        let name = PartName { worker: self.worker, part, job: id };
        if job.error.is_some() {
            // The request fails anyway.
            return self.finish_part(host, name, Ok(()));
        }
        let (stripes, shards) = (host.stripes(volume), host.shards());
        let mut long = LongRange { volume, stripes, shards, range };
        match self.begin_long(host, name, &mut long) {
            LongStep::Started(others) => {
                self.set_long(id, part, long.range);
                let job = self.jobs.get_mut(id);
                job.long = Some(LongErase { part, has_begun: true, others });
                let state = &mut job.parts[usize::from(part)];
                state.is_waiting = false;
                PartStep::Started.record(&mut state.trail, &self.out, host.now_us());
                self.drain_outbox(host, long.leader());
            }
            LongStep::Waits(wait) => {
                self.set_long(id, part, long.range);
                let state = &mut self.jobs.get_mut(id).parts[usize::from(part)];
                state.is_waiting = true;
                PartStep::Waiting(wait).record(&mut state.trail, &self.out, host.now_us());
            }
            LongStep::Refused => {
                let first = stripes.split(range).next().expect("the range is not empty");
                self.set_long(id, part, first);
                self.jobs.get_mut(id).long = None;
                self.run_part(host, id, part);
            }
        }
    }

    /// Shortens the part of a long erase. The rest of the request follows it.
    fn set_long(&mut self, id: JobId, part: u8, range: ByteRange) {
        let job = self.jobs.get_mut(id);
        job.parts[usize::from(part)].range = range;
        let end = job.rest.expect("the rest stays until a long erase has begun").end();
        job.rest = Some(ByteRange::new(range.end(), end - range.end()));
    }

    /// Begins a long erase, and shortens it to what the shards can erase. The caller drains the
    /// outbox.
    fn begin_long(&mut self, host: &mut H, name: PartName, long: &mut LongRange) -> LongStep {
        let job = self.jobs.get_mut(name.job);
        let (volume, request) = (job.request.volume, job.request.kind);
        let is_in_order = job.parts[usize::from(name.part)].attempt.in_order;
        let restores = matches!(request, RequestKind::RestoreZero { .. });
        let mut part = Part { id: name.pack(), volume, range: long.range, restores };
        let leader = long.leader();
        for shard in std::iter::once(leader).chain(long.others()) {
            let rows = long.rows(shard);
            if rows.is_empty() {
                continue;
            }
            let until = host
                .call(shard, &[], &mut self.out, |shard, _| erasable_until(shard, &part, &rows));
            long.shorten(until);
            part.range = long.range;
            if !long.is_long() {
                return LongStep::Refused;
            }
        }
        if let (Some(order), false) = (host.order(volume), is_in_order) {
            let (epoch, then) = (order.epoch(), AfterEpochs::Retry);
            if !self.wait_in_order((volume, &order), epoch, part.id, then, true) {
                return LongStep::Waits(Wait::Order);
            }
        }
        if !restores && !host.admit_erase(&part) {
            return LongStep::Waits(Wait::JournalAdmission);
        }
        let Some(others) = self.claim_others(host, &part, *long) else {
            return LongStep::Refused;
        };
        let (rows, kind) = (long.rows(leader), erase_kind(request));
        let lead = host.call(leader, &[], &mut self.out, |shard, out| {
            erase_long(shard, &part, &rows, kind, out)
        });
        if lead.is_none() {
            self.end_others(host, others, Err(IoError::Io));
            return LongStep::Refused;
        }
        LongStep::Started(others)
    }

    /// Begins a long erase in the shards that do not lead it: in all of them, or in none.
    fn claim_others(
        &mut self,
        host: &mut H,
        part: &Part,
        long: LongRange,
    ) -> Option<Vec<(usize, IoId)>> {
        let mut others = Vec::new();
        for shard in long.others() {
            let rows = long.rows(shard);
            if rows.is_empty() {
                continue;
            }
            let begun = host.call(shard, &[], &mut self.out, |shard, out| {
                erase_long(shard, part, &rows, None, out)
            });
            self.drain_outbox(host, shard);
            let Some(io) = begun else {
                // Another worker has used the range since the shards were asked.
                self.end_others(host, others, Err(IoError::Io));
                return None;
            };
            others.push((shard, io));
        }
        Some(others)
    }

    /// Ends the operations of a long erase in the shards that do not lead it, if the part is one.
    /// Returns whether it is.
    pub(super) fn end_long_erase(
        &mut self,
        host: &mut H,
        name: PartName,
        result: IoResult,
    ) -> bool {
        let ended = self.jobs.get_mut(name.job).long.take_if(|long| long.part == name.part);
        let Some(long) = ended else { return false };
        self.end_others(host, long.others, result);
        true
    }

    fn end_others(&mut self, host: &mut H, others: Vec<(usize, IoId)>, result: IoResult) {
        for (shard, io) in others {
            let now_ms = host.now_ms();
            self.out.turn = host.batch();
            host.call(shard, &[], &mut self.out, |shard, out| {
                shard.complete(io, result, now_ms, out);
            });
            self.drain_outbox(host, shard);
        }
    }
}
