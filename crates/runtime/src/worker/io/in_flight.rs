//! One I/O on its way: what is left of it, and how it is given to the reactor or to the backend.

use super::push_iovec;
use crate::memory::Memory;
use crate::reactor::{FileOp, Reactor};
use crate::shared::{Inbox, Volume};
use forebay_backend::{Buffer, Completion, CompletionSink, Io, IoKind};
use forebay_engine::{IoId, IoVerb};
use forebay_types::ByteRange;
use forebay_volume::JobId;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Vectors of one system call.
const IOVECS_MAX: usize = 1024;

/// Whom an I/O is for.
pub(super) struct Member {
    pub shard: usize,
    pub id: IoId,
    pub range: ByteRange,
    /// How many of the I/O's vectors are its own.
    pub iovecs: usize,
}

/// What is to be told when an I/O has ended.
pub(super) enum Purpose {
    Shards(Vec<Member>),
    Flush(JobId),
}

/// An I/O on its way.
pub(super) struct InFlight {
    pub volume: Arc<Volume>,
    /// `None` for a flush.
    pub verb: Option<IoVerb>,
    pub range: ByteRange,
    pub purpose: Purpose,
    /// When it was given to the backend.
    pub began: Instant,
    /// The memory, in order.
    pub iovecs: Vec<libc::iovec>,
    /// What is left of it after a transfer that ended early; empty before that.
    rest: Vec<libc::iovec>,
    bytes_done: u64,
    /// Where bytes go that join two pieces of a read.
    pub discard: Option<Arc<Memory>>,
    bounce: Option<Bounce>,
}

/// An I/O through aligned memory, for a store with blocks larger than a sector. That two of them
/// on one block do not mix is the engine's doing: a line takes part in one operation at a time, and
/// no block is larger than a line.
struct Bounce {
    memory: Memory,
    range: ByteRange,
    /// A write whose surroundings are being read first.
    reading: bool,
}

/// How far a transfer has come.
pub(super) enum Progress {
    Done,
    More,
    /// It does not move any more: the store has ended.
    Stuck,
}

impl InFlight {
    pub(super) fn new(
        volume: Arc<Volume>,
        verb: Option<IoVerb>,
        range: ByteRange,
        purpose: Purpose,
        iovecs: Vec<libc::iovec>,
        discard: Option<Arc<Memory>>,
    ) -> Self {
        Self {
            volume,
            verb,
            range,
            purpose,
            began: Instant::now(),
            iovecs,
            rest: Vec::new(),
            bytes_done: 0,
            discard,
            bounce: None,
        }
    }

    /// Counts the I/O for its volume.
    pub(super) fn count(&self, worker: usize) {
        let counts = &self.volume.stats[worker].counts;
        match self.verb {
            None => counts.backend_flushes.add(1),
            Some(IoVerb::Read) => {
                counts.backend_reads.add(1);
                counts.backend_read_bytes.add(self.range.len);
            }
            Some(IoVerb::Write { .. }) => {
                counts.backend_writes.add(1);
                counts.backend_write_bytes.add(self.range.len);
            }
            Some(IoVerb::Discard | IoVerb::Zero { .. }) => counts.backend_erases.add(1),
        }
    }

    /// Takes aligned memory where the store needs it.
    pub(super) fn prepare_bounce(&mut self) {
        let alignment = u64::from(self.volume.backend.description().alignment_bytes);
        let aligned = |value: u64| value.is_multiple_of(alignment);
        let moves_data = matches!(self.verb, Some(IoVerb::Read | IoVerb::Write { .. }));
        if !moves_data || (aligned(self.range.offset) && aligned(self.range.len)) {
            return;
        }
        let start = self.range.offset / alignment * alignment;
        let range = ByteRange::new(start, self.range.end().next_multiple_of(alignment) - start);
        let memory = Memory::new(range.len as usize);
        let reading = self.verb != Some(IoVerb::Read);
        self.bounce = Some(Bounce { memory, range, reading });
    }

    /// Whether another step of an I/O through aligned memory is to follow.
    pub(super) fn bounce_goes_on(&mut self) -> bool {
        let Some(bounce) = &mut self.bounce else { return false };
        let from = (self.range.offset - bounce.range.offset) as usize;
        let middle = bounce.memory.bytes_mut();
        let mut at = from;
        for iovec in &self.iovecs {
            let memory = iovec.iov_base.cast::<u8>();
            let piece = &mut middle[at..at + iovec.iov_len];
            // SAFETY: the vectors are memory that belongs to this I/O until it is answered, and
            // the bounce buffer is our own, so they do not overlap.
            unsafe {
                if bounce.reading {
                    piece.copy_from_slice(std::slice::from_raw_parts(memory, iovec.iov_len));
                } else if self.verb == Some(IoVerb::Read) {
                    std::slice::from_raw_parts_mut(memory, iovec.iov_len).copy_from_slice(piece);
                }
            }
            at += iovec.iov_len;
        }
        self.rest.clear();
        self.bytes_done = 0;
        std::mem::take(&mut bounce.reading)
    }

    /// Notes that so many bytes more have been moved.
    pub(super) fn advance(&mut self, bytes: u64) -> Progress {
        let Some(IoVerb::Read | IoVerb::Write { .. }) = self.verb else { return Progress::Done };
        self.bytes_done += bytes;
        let wanted = self.bounce.as_ref().map_or(self.range, |bounce| bounce.range).len;
        if self.bytes_done >= wanted {
            return Progress::Done;
        }
        if bytes == 0 {
            return Progress::Stuck;
        }
        let mut skip = self.bytes_done as usize;
        self.rest.clear();
        for iovec in self.vectors() {
            let skipped = skip.min(iovec.iov_len);
            skip -= skipped;
            if skipped < iovec.iov_len {
                let base = iovec.iov_base.cast::<u8>().wrapping_add(skipped);
                push_iovec(&mut self.rest, 0, base, iovec.iov_len - skipped);
            }
        }
        Progress::More
    }

    /// The memory of the whole transfer at hand.
    fn vectors(&self) -> Vec<libc::iovec> {
        match &self.bounce {
            None => self.iovecs.clone(),
            Some(bounce) => vec![libc::iovec {
                iov_base: bounce.memory.as_ptr().cast(),
                iov_len: bounce.range.len as usize,
            }],
        }
    }

    /// What to do now: a write through aligned memory starts by reading.
    fn kind(&self) -> IoKind {
        match self.verb {
            None => IoKind::Flush,
            Some(IoVerb::Write { .. }) if self.bounce.as_ref().is_some_and(|b| b.reading) => {
                IoKind::Read
            }
            Some(IoVerb::Read) => IoKind::Read,
            Some(IoVerb::Write { fua }) => IoKind::Write { fua },
            Some(IoVerb::Discard) => IoKind::Discard,
            Some(IoVerb::Zero { unmap }) => IoKind::Zero { unmap },
        }
    }
}

/// Gives an I/O, or what is left of it, to the reactor if it takes it, else to the backend.
pub(super) fn submit<R: Reactor>(reactor: &mut R, inbox: &Arc<Inbox>, tag: u32, io: &mut InFlight) {
    let range = io.bounce.as_ref().map_or(io.range, |bounce| bounce.range);
    let kind = io.kind();
    if io.rest.is_empty() && io.bounce.is_some() {
        io.rest = io.vectors();
    }
    let file = if R::FILES { io.volume.backend.native_file() } else { None };
    if let Some(file) = file {
        let fd = file.as_raw_fd();
        let vectors = if io.rest.is_empty() { &io.iovecs } else { &io.rest };
        let iovecs = vectors.as_ptr();
        let count = vectors.len().min(IOVECS_MAX) as u32;
        let offset = range.offset + io.bytes_done;
        let op = match kind {
            IoKind::Read => Some(FileOp::Read { fd, iovecs, count, offset }),
            IoKind::Write { fua } => {
                Some(FileOp::Write { fd, iovecs, count, offset, durable: fua })
            }
            IoKind::Flush => Some(FileOp::Sync { fd }),
            IoKind::Discard | IoKind::Zero { .. } => None,
        };
        if op.is_some_and(|op| reactor.file(tag, op)) {
            return;
        }
    }
    let vectors = if io.rest.is_empty() { &io.iovecs } else { &io.rest };
    let buffers = vectors.iter().map(|iovec| {
        // SAFETY: the memory is pinned in the pool, or owned by the request or by this I/O, and
        // stays so until the answer.
        unsafe { Buffer::new(iovec.iov_base.cast(), iovec.iov_len) }
    });
    let sink: Arc<dyn CompletionSink> = Arc::clone(inbox) as _;
    io.volume.backend.submit(Io {
        kind,
        offset: range.offset,
        len: range.len,
        buffers: buffers.collect(),
        done: Completion::new(sink, u64::from(tag)),
    });
}
