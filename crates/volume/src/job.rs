//! Requests in flight.

use crate::{Request, RequestKind, WaitBreakdown, host::Host};
use forebay_engine::{Attempt, IoId, LineHits, PartId, Segment, Slot};
use forebay_types::{ByteRange, Few, IoError};

/// Limit of parts of one request in flight. The largest read or write has 33, or 65 if the stripes
/// make regions that are barely longer than 512 KiB.
pub(crate) const PARTS_MAX: usize = 66;

/// Identifies a request in flight within its dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

/// The fields packed into a [`PartId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartName {
    pub worker: u8,
    pub part: u8,
    pub job: JobId,
}

impl PartName {
    pub(crate) const fn pack(self) -> PartId {
        PartId(
            (self.worker as u64) << 56
                | (self.part as u64) << 48
                | (self.job.generation as u64) << 32
                | self.job.index as u64,
        )
    }

    pub(crate) const fn unpack(id: PartId) -> Self {
        Self {
            worker: (id.0 >> 56) as u8,
            part: (id.0 >> 48) as u8,
            job: JobId { index: id.0 as u32, generation: (id.0 >> 32) as u16 },
        }
    }
}

/// The worker whose dispatcher owns the part.
pub const fn worker_of(part: PartId) -> u8 {
    PartName::unpack(part).worker
}

/// A part in flight.
#[derive(Debug)]
pub(crate) struct PartState {
    pub range: ByteRange,
    pub shard: usize,
    pub attempt: Attempt,
    /// Whether the part waits for a retry.
    pub is_waiting: bool,
    /// Whether the change is in the pool already, and only has to reach the disk.
    pub is_applied: bool,
    /// The data of a read that is ready or started.
    pub segments: Vec<Segment>,
    /// What it waited for.
    pub trail: WaitBreakdown,
}

impl PartState {
    pub(crate) fn new(range: ByteRange, shard: usize) -> Self {
        let (attempt, segments) = (Attempt::default(), Vec::new());
        let trail = WaitBreakdown::default();
        Self { range, shard, attempt, is_waiting: false, is_applied: false, segments, trail }
    }
}

/// A long erase that has begun or waits. See `dispatch/long_erase.rs`.
pub(crate) struct LongErase {
    pub part: u8,
    pub has_begun: bool,
    /// The operations in the shards that do not lead it.
    pub others: Vec<(usize, IoId)>,
}

/// The flush of the disk's cache, which follows all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushStage {
    NotNeeded,
    Due,
    UnderWay,
}

impl FlushStage {
    pub(crate) const fn of(kind: RequestKind) -> Self {
        match kind {
            RequestKind::Flush
            | RequestKind::Destage
            | RequestKind::Checkpoint { .. }
            | RequestKind::Sync
            | RequestKind::Trim { fua: true }
            | RequestKind::Zero { fua: true, .. } => Self::Due,
            _ => Self::NotNeeded,
        }
    }
}

/// A request in flight.
pub(crate) struct RequestJob<H: Host> {
    pub token: H::Token,
    pub request: Request,
    pub memory: Option<H::Memory>,
    /// The slots of a staged payload. A part that no longer waits has passed its slots to the
    /// shard.
    pub staged: Vec<Slot>,
    pub parts: Few<PartState>,
    /// Parts not yet done, and one more while the dispatcher is still starting parts.
    pub pending: u32,
    /// The part of an erase's range that is not yet submitted. `None` once no further part will
    /// start.
    pub rest: Option<ByteRange>,
    /// Its long erase.
    pub long: Option<LongErase>,
    pub error: Option<IoError>,
    pub line_hits: LineHits,
    pub flush: FlushStage,
    /// The epoch that a run destages.
    pub epoch: u64,
    /// The epoch that was open when the run's last flush of the disk began.
    pub horizon: u64,
    /// The losses of an ordered volume when its flush arrived: see `Dispatcher::losses`.
    pub losses: (u64, u64),
    /// The host's time at its begin, in microseconds.
    pub begun_us: u64,
    /// What it waited for: the waits of the part that ended last, and then of the flush.
    pub trail: WaitBreakdown,
}

impl<H: Host> RequestJob<H> {
    /// A job with one pending "part", which the caller ends with `part_done`.
    pub(crate) fn new(token: H::Token, request: Request, begun_us: u64) -> Self {
        Self {
            token,
            request,
            memory: None,
            staged: Vec::new(),
            parts: Few::new(),
            pending: 1,
            rest: Some(request.range),
            long: None,
            error: None,
            line_hits: LineHits::default(),
            flush: FlushStage::of(request.kind),
            epoch: 0,
            horizon: 0,
            losses: (0, 0),
            begun_us,
            trail: WaitBreakdown::default(),
        }
    }
}

/// The requests of one dispatcher.
pub(crate) struct Jobs<H: Host> {
    entries: Vec<(u16, Option<RequestJob<H>>)>,
    free: Vec<u32>,
    len: usize,
}

impl<H: Host> Default for Jobs<H> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<H: Host> Jobs<H> {
    /// The identifier of the next job to be inserted.
    pub(crate) fn next_id(&self) -> JobId {
        match self.free.last() {
            Some(&index) => JobId { index, generation: self.entries[index as usize].0 },
            None => JobId { index: self.entries.len() as u32, generation: 0 },
        }
    }

    pub(crate) fn insert(&mut self, job: RequestJob<H>) -> JobId {
        let id = self.next_id();
        match self.free.pop() {
            Some(index) => {
                let before = self.entries[index as usize].1.replace(job);
                assert!(before.is_none(), "the entry of a job in flight is not free");
            }
            None => self.entries.push((0, Some(job))),
        }
        self.len += 1;
        id
    }

    pub(crate) fn get_mut(&mut self, id: JobId) -> &mut RequestJob<H> {
        let (generation, job) = &mut self.entries[id.index as usize];
        assert_eq!(*generation, id.generation, "an answer arrived for a finished request");
        job.as_mut().expect("an entry of this generation holds a job")
    }

    pub(crate) fn remove(&mut self, id: JobId) -> RequestJob<H> {
        let (generation, job) = &mut self.entries[id.index as usize];
        assert_eq!(*generation, id.generation, "a request ended twice");
        let job = job.take().expect("an entry of this generation holds a job");
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        self.len -= 1;
        job
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RequestJob<H>> {
        self.entries.iter().filter_map(|(_, job)| job.as_ref())
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_name_is_unpacked_as_it_was_packed() {
        let name = PartName {
            worker: 200,
            part: 63,
            job: JobId { index: 0xdead_beef, generation: 0xabcd },
        };
        assert_eq!(PartName::unpack(name.pack()), name);
    }
}
