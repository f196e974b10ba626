//! Requests in flight.

use crate::{Request, RequestKind, host::Host};
use forebay_engine::{Attempt, PartId, Segment, Slot, Touched};
use forebay_types::{ByteRange, IoError};

/// Parts of one request that are under way at once. The largest read or write has 33, or, where
/// stripes make regions of little more than half the usual length, 65.
pub(crate) const PARTS_MAX: usize = 66;

/// Names a request in flight within its dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

/// What a part's number is made of.
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

/// The worker whose dispatcher made this name.
pub const fn worker_of(part: PartId) -> u8 {
    PartName::unpack(part).worker
}

/// A part under way.
#[derive(Debug)]
pub(crate) struct PartState {
    pub range: ByteRange,
    pub shard: usize,
    pub attempt: Attempt,
    /// It is to be tried again.
    pub waiting: bool,
    /// The change has been made, and only has to reach the disk.
    pub settle: bool,
    /// Where the bytes of a read are, once it is ready or started.
    pub segments: Vec<Segment>,
}

impl PartState {
    /// A part that has not been tried.
    pub(crate) fn new(range: ByteRange, shard: usize) -> Self {
        let (attempt, segments) = (Attempt::default(), Vec::new());
        Self { range, shard, attempt, waiting: false, settle: false, segments }
    }
}

/// The backend's own flush, which comes last.
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
            | RequestKind::Checkpoint
            | RequestKind::Sync
            | RequestKind::Trim { fua: true }
            | RequestKind::Zero { fua: true, .. } => Self::Due,
            _ => Self::NotNeeded,
        }
    }
}

/// A request under way.
pub(crate) struct Job<H: Host> {
    pub token: H::Token,
    pub request: Request,
    pub memory: Option<H::Memory>,
    /// The slots that the payload is in, if it was staged. Those of a part are the shard's once the
    /// part no longer has to wait.
    pub staged: Vec<Slot>,
    pub parts: Vec<PartState>,
    /// Parts not yet done, and one more while the dispatcher is still starting parts.
    pub pending: u32,
    /// What of the range has not been made a part yet: only ever something for erases.
    pub rest: ByteRange,
    pub error: Option<IoError>,
    pub touched: Touched,
    /// What is to be on stable storage in the end.
    pub flush: FlushStage,
    /// The epoch that a run is about, and the one at hand when its last flush began.
    pub epoch: u64,
    pub horizon: u64,
    /// What was lost of an ordered volume when its flush came.
    pub losses: (u64, u64),
}

/// The requests of one dispatcher.
pub(crate) struct Jobs<H: Host> {
    entries: Vec<(u16, Option<Job<H>>)>,
    free: Vec<u32>,
    len: usize,
}

impl<H: Host> Default for Jobs<H> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<H: Host> Jobs<H> {
    /// The name that the next job will get.
    pub(crate) fn next_id(&self) -> JobId {
        match self.free.last() {
            Some(&index) => JobId { index, generation: self.entries[index as usize].0 },
            None => JobId { index: self.entries.len() as u32, generation: 0 },
        }
    }

    pub(crate) fn insert(&mut self, job: Job<H>) -> JobId {
        let id = self.next_id();
        match self.free.pop() {
            Some(index) => self.entries[index as usize].1 = Some(job),
            None => self.entries.push((0, Some(job))),
        }
        self.len += 1;
        id
    }

    pub(crate) fn get_mut(&mut self, id: JobId) -> &mut Job<H> {
        let (generation, job) = &mut self.entries[id.index as usize];
        assert_eq!(*generation, id.generation, "an answer came for a request that is over");
        job.as_mut().expect("an entry of this generation holds a job")
    }

    pub(crate) fn remove(&mut self, id: JobId) -> Job<H> {
        let (generation, job) = &mut self.entries[id.index as usize];
        assert_eq!(*generation, id.generation, "a request ended twice");
        let job = job.take().expect("an entry of this generation holds a job");
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        self.len -= 1;
        job
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job<H>> {
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
    fn part_names_survive_packing() {
        let name = PartName {
            worker: 200,
            part: 63,
            job: JobId { index: 0xdead_beef, generation: 0xabcd },
        };
        assert_eq!(PartName::unpack(name.pack()), name);
    }
}
