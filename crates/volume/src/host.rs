//! What a dispatcher needs of the world, which is the runtime or the lab.

use crate::{JobId, Order, Streams};
use forebay_engine::{
    Answer, IoAction, LineTable, Outbox, Part, PartId, Protection, Segment, Shard, Slot, Touched,
};
use forebay_types::{IoError, IoResult, Stripes, VolumeId};
use std::sync::Arc;

/// The bytes that come with a write.
pub enum Payload<'a, M> {
    /// No bytes: not a write.
    None,
    /// Bytes that are only there for the time of the call.
    Borrowed(&'a [u8]),
    /// Bytes that the dispatcher may keep.
    Owned(M),
    /// Bytes that lie in the pool already, in slots from [`crate::Dispatcher::stage`] for the range
    /// of the request.
    Staged(Vec<Slot>),
}

impl<M: AsRef<[u8]>> Payload<'_, M> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::Staged(_) => &[],
            Self::Borrowed(bytes) => bytes,
            Self::Owned(memory) => memory.as_ref(),
        }
    }

    /// The slots that the bytes are in, if they are in slots.
    pub fn staged(&self) -> &[Slot] {
        match self {
            Self::Staged(slots) => slots,
            _ => &[],
        }
    }
}

/// Consecutive bytes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySegment {
    /// The shard whose slot the segment names, if it names one.
    pub shard: u16,
    /// The bytes. Private offsets count from the start of the request.
    pub segment: Segment,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply<'a, M> {
    /// How it ended.
    pub result: IoResult,
    /// For a read that ended well, its bytes in order. Each slot is under a pin, which the host
    /// gives back with [`Shard::release`] once the bytes are on their way. Otherwise empty.
    pub segments: &'a [ReplySegment],
    /// The memory that private segments mean.
    pub memory: Option<M>,
    /// Lines found and not found.
    pub touched: Touched,
}

/// Whether a write may be acknowledged from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As far as its mode says so: the volume has no journal.
    Free,
    /// The journal takes it. The permit is used up by the note that follows, or withdrawn.
    Logged {
        /// Whether it is acknowledged only when its record is durable.
        wait: bool,
    },
    /// The journal has no memory for it now; the part is told when to try again.
    Wait,
    /// The journal can't take it: it goes to the disk.
    Through,
}

/// The world around a dispatcher.
pub trait Host {
    /// Names a client's request to the host.
    type Token;
    /// Memory of one request: a payload that is kept, or the buffer of a read past the cache.
    type Memory: AsRef<[u8]>;
    /// Where the shards' tables of lines lie.
    type Table: LineTable;

    /// The number of shards.
    fn shards(&self) -> usize;

    /// How the volume is divided. It stays so for as long as the volume is served.
    fn stripes(&mut self, volume: VolumeId) -> Stripes;

    /// The block size of the volume's disk in bytes: a power of two, a sector at least. Nothing
    /// smaller is discarded there.
    fn block_bytes(&mut self, volume: VolumeId) -> u64;

    /// The time in milliseconds from any fixed start.
    fn now_ms(&self) -> u64;

    /// The turn at hand: I/Os that are started in the same one are given to the disks together,
    /// neighbours joined, when it is over. No two hosts have the same. Zero where there are none.
    fn turn(&self) -> u64 {
        0
    }

    /// Calls a shard while nobody else does, and carries out the memory steps that the call leaves
    /// in the outbox, with `payload` to fill from, before anybody else can. Then, still before
    /// anybody else can, tells the journals what is in the notes. A journal that has failed takes
    /// none: their parts are answered with [`forebay_engine::Outcome::Unlogged`].
    fn call<R>(
        &mut self,
        shard: usize,
        payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R;

    /// Memory of `len` bytes with this content, or any if there is none. The bytes in flight are
    /// limited where requests come in, so there is always some.
    fn allocate(&mut self, len: u64, content: Option<&[u8]>) -> Self::Memory;

    /// Starts an I/O of a shard, to be reported with [`crate::Dispatcher::complete`] by this or any
    /// other dispatcher. Private segments mean `memory`, from the given offset on; it stays where
    /// it is until then.
    fn start_io(&mut self, shard: usize, io: IoAction, memory: Option<(&Self::Memory, u64)>);

    /// Brings everything that the volume's backend has answered to stable storage, to be reported
    /// with [`crate::Dispatcher::flushed`] to this dispatcher, not within this call.
    fn flush_backend(&mut self, volume: VolumeId, job: JobId);

    /// What keeps the volume's dirty data besides the pool.
    fn protection(&mut self, volume: VolumeId) -> Protection;

    /// Asks the volume's journal to take a write of this part, if it has a journal.
    fn admit(&mut self, part: &Part, fua: bool) -> Admission;

    /// Whether the part may erase on the disk what it is about to; if not, it is told when to try
    /// again. A journal that remembers what a disk held forgets it first, durably.
    fn touch(&mut self, _part: &Part) -> bool {
        true
    }

    /// Gives a permit back that is not needed after all.
    fn withdraw(&mut self, volume: VolumeId);

    /// The epochs of a volume whose dirty data goes to the disk in order; `None` for others.
    fn order(&mut self, _volume: VolumeId) -> Option<Arc<Order>> {
        None
    }

    /// A token for a request that nobody waits for.
    fn nobody(&mut self) -> Self::Token;

    /// Waits until everything that the volume's journal has been told is durable: true if it is,
    /// false when `part` will be told.
    ///
    /// # Errors
    /// When the journal has failed, so that the disk must do it.
    fn barrier(&mut self, volume: VolumeId, part: PartId) -> Result<bool, IoError>;

    /// Answers a request.
    fn reply(&mut self, token: Self::Token, reply: Reply<'_, Self::Memory>);

    /// Takes an answer to the dispatcher of another worker.
    fn forward(&mut self, worker: u8, answer: Answer);

    /// The streams of a volume; `None` when it does not read ahead.
    fn streams<R>(&mut self, volume: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R>;
}
