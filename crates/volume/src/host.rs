//! The environment of a dispatcher, implemented by the runtime and by the lab.

use crate::{EpochOrder, JobId, Streams, WaitBreakdown};
use forebay_engine::{
    Answer, IoAction, LineHits, LineTable, Outbox, Part, PartId, Protection, Segment, Shard, Slot,
};
use forebay_types::{ByteRange, IoError, IoResult, Stripes, VolumeId};
use std::sync::Arc;

/// The data of a write.
pub enum Payload<'a, M> {
    /// None: the request is not a write.
    None,
    /// Data that is valid only during the call.
    Borrowed(&'a [u8]),
    /// Data that the dispatcher may keep.
    Owned(M),
    /// Data already in the pool, in slots from [`crate::Dispatcher::stage`] for the range of the
    /// request.
    Staged(Vec<Slot>),
}

impl<M: AsRef<[u8]>> Payload<'_, M> {
    /// The data outside the pool; empty for staged data.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::Staged(_) => &[],
            Self::Borrowed(bytes) => bytes,
            Self::Owned(memory) => memory.as_ref(),
        }
    }

    /// The slots of staged data; otherwise empty.
    pub fn staged(&self) -> &[Slot] {
        match self {
            Self::Staged(slots) => slots,
            _ => &[],
        }
    }
}

/// Consecutive bytes of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySegment {
    /// The shard of the segment's slot, if the segment is in a slot.
    pub shard: u16,
    /// The location of the bytes. Offsets into private memory count from the start of the request.
    pub segment: Segment,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply<'a, M> {
    /// Success, or the first error.
    pub result: IoResult,
    /// The data of a successful read, in order; otherwise empty. Each slot is pinned. The host
    /// releases the pin with [`Shard::release`] once the data has been sent.
    pub segments: &'a [ReplySegment],
    /// The private memory that segments refer to.
    pub memory: Option<M>,
    /// Lines hit and missed by a read or write, and why the pool did not serve the request alone.
    pub line_hits: LineHits,
    /// What it waited for, if [`Host::should_trace`].
    pub trail: Option<Box<WaitBreakdown>>,
}

/// Whether a write may be acknowledged from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The mode of the volume decides. No journal records the write.
    Free,
    /// The journal records the write. The write's request in [`Outbox::journal_requests`] consumes
    /// this permit; without one, the dispatcher calls [`Host::withdraw`].
    Logged {
        /// Whether the write is acknowledged only when its record is durable.
        is_awaited: bool,
    },
    /// The journal has no memory for the write now. The host sends the part a retry later.
    Wait,
    /// The write goes through to the disk: the journal cannot record it, or the UPS does not cover
    /// it.
    Through,
}

/// How far the journal of a volume protects the data acknowledged so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Whether everything recorded so far is durable.
    pub is_durable: bool,
    /// Whether a replay of the records would restore everything. If not, because the journal may
    /// lack data of an adopted pool, a flush also needs the disk.
    pub is_complete: bool,
}

/// The environment of a dispatcher: shards, disks, journals, memory and time.
pub trait Host {
    /// Identifies a request to the host.
    type Token;
    /// Memory of one request: its payload, or the buffer of a direct read.
    type Memory: AsRef<[u8]>;
    /// The storage of the shards' line tables.
    type Table: LineTable;

    /// The number of shards.
    fn shards(&self) -> usize;

    /// The volume's stripes, constant while the volume is served.
    fn stripes(&mut self, volume: VolumeId) -> Stripes;

    /// The block size of the volume's disk in bytes: a power of two, at least a sector. Discards
    /// cover whole blocks.
    fn block_bytes(&mut self, volume: VolumeId) -> u64;

    /// Monotonic time in milliseconds; the origin is arbitrary.
    fn now_ms(&self) -> u64;

    /// The same clock in microseconds.
    fn now_us(&self) -> u64 {
        self.now_ms() * 1_000
    }

    /// Whether the answer to a request that began at this time, and ends now, should say what the
    /// request waited for. Not called for requests that are answered at once.
    fn should_trace(&mut self, _volume: VolumeId, _begun_us: u64) -> bool {
        false
    }

    /// Identifies the I/Os that will be submitted together, adjacent ones coalesced; unique across
    /// hosts. Zero if the host submits each I/O by itself.
    fn batch(&self) -> u64 {
        0
    }

    /// Calls a shard under its lock. Before releasing the lock, carries out the memory steps in the
    /// outbox, which fill from `payload`, and then passes the records to the journals. If a journal
    /// has failed, it records nothing, and the parts of its records are answered with
    /// [`forebay_engine::Outcome::JournalFailed`].
    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R;

    /// Allocates `len` bytes that hold `content`, or arbitrary bytes if `content` is `None`.
    /// Cannot fail: front ends limit the bytes in flight.
    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Self::Memory;

    /// Starts an I/O of a shard. Its end is reported to [`crate::Dispatcher::complete`] of any
    /// dispatcher. Private segments refer to `memory`, from the given offset on. The memory must
    /// not move until the I/O has ended.
    fn start_io(&mut self, shard: usize, io: IoAction, memory: Option<(&Self::Memory, u64)>);

    /// Flushes the volume's disk. The end is reported to [`crate::Dispatcher::flushed`] of this
    /// dispatcher, after this call has returned.
    fn flush_backend(&mut self, volume: VolumeId, job: JobId);

    /// What preserves the volume's dirty data now.
    fn protection(&mut self, volume: VolumeId) -> Protection;

    /// Returns whether a write of this part may be acknowledged from the pool: the volume's journal
    /// and the budget of dirty data decide.
    fn admit(&mut self, part: &Part, fua: bool) -> Admission;

    /// Returns whether the part may erase its range on the disk now; if not, the host sends it a
    /// retry later. Before an erase, the volume's journal durably invalidates its samples of the
    /// range.
    fn admit_erase(&mut self, _part: &Part) -> bool {
        true
    }

    /// Returns the permit of [`Admission::Logged`] unused.
    fn withdraw(&mut self, volume: VolumeId);

    /// The epochs of an ordered volume; `None` for others.
    fn order(&mut self, _volume: VolumeId) -> Option<Arc<EpochOrder>> {
        None
    }

    /// A token for an internal request, whose reply is ignored.
    fn internal_token(&mut self) -> Self::Token;

    /// Returns how far the volume's journal protects what was acknowledged so far. If not
    /// everything recorded is durable, `part` gets an answer once it is.
    ///
    /// # Errors
    /// The journal has failed; the disk must be flushed instead.
    fn barrier(&mut self, volume: VolumeId, part: PartId) -> Result<Barrier, IoError>;

    /// Answers a request.
    fn reply(&mut self, token: Self::Token, reply: Reply<'_, Self::Memory>);

    /// Sends an answer to the dispatcher of another worker.
    fn forward(&mut self, worker: u8, answer: Answer);

    /// Calls `call` with the volume's stream table; `None` if the volume does not read ahead.
    fn streams<R>(&mut self, volume: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R>;

    /// Records a range that a client has read, of which `lines` lines were not in the pool, or were
    /// there only because of a preload: they are worth preloading at this time of another day.
    /// Reads of streams are not recorded, because streams are read ahead anyway.
    fn record_need(&mut self, _volume: VolumeId, _range: ByteRange, _lines: u32) {}
}
