//! What a dispatcher needs of the world, which is the runtime or the lab.

use crate::{JobId, Streams};
use forebay_engine::{Answer, IoAction, LineTable, Outbox, Segment, Shard, Slot, Touched};
use forebay_types::{IoResult, VolumeId};

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

    /// The time in milliseconds from any fixed start.
    fn now_ms(&self) -> u64;

    /// Calls a shard while nobody else does, and carries out the memory steps that the call leaves
    /// in the outbox, with `payload` to fill from, before anybody else can.
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

    /// Answers a request.
    fn reply(&mut self, token: Self::Token, reply: Reply<'_, Self::Memory>);

    /// Takes an answer to the dispatcher of another worker.
    fn forward(&mut self, worker: u8, answer: Answer);

    /// The streams of a volume; `None` when it does not read ahead.
    fn streams<R>(&mut self, volume: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R>;
}
