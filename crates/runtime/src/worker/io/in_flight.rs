//! An I/O in flight: its remaining part, and its submission to the reactor or to the backend.
//!
//! An I/O that covers blocks of the disk in part, or whose memory is not aligned for direct I/O, is
//! transferred through a bounce buffer of whole blocks, in the steps of a [`BlockPlan`]. A write is
//! then a read-modify-write.

use super::push_iovec;
use crate::platform::reactor::{FileOp, Reactor};
use crate::shared::{Inbox, Volume};
use crate::stats::LatencyClass;
use forebay_backend::{Buffer, CompletionSink, Io, IoKind, IoToken};
use forebay_engine::{IoCause, IoId, IoVerb};
use forebay_frontend::Memory;
use forebay_types::{ByteRange, Few, IoError};
use forebay_volume::{BlockClaim, BlockPlan, BlockStep, JobId};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of vectors in one system call.
const IOVECS_MAX: usize = 1024;

/// An I/O of a shard that is part of a coalesced one.
pub(super) struct Member {
    pub shard: usize,
    pub id: IoId,
    pub range: ByteRange,
    /// The number of its vectors.
    pub iovecs: usize,
}

/// The recipients of the result.
pub(super) enum Purpose {
    Shards(Few<Member>),
    Flush(JobId),
}

/// An I/O in flight, or one that waits for a block.
pub(super) struct InFlight {
    pub volume: Arc<Volume>,
    /// `None` for a flush.
    pub verb: Option<IoVerb>,
    /// From the first byte of the first member to the last byte of the last member.
    pub range: ByteRange,
    pub purpose: Purpose,
    /// When it was started.
    pub began: Instant,
    /// The memory, in order.
    pub iovecs: Few<libc::iovec>,
    /// The vectors of the current transfer, if they are not `iovecs`: the rest after a short
    /// transfer, or a step through the bounce buffer.
    rest: Few<libc::iovec>,
    bytes_done: u64,
    /// The target of bytes between two pieces of a read.
    pub discard: Option<Arc<Memory>>,
    /// The blocks that it changes; `None` for a read and a flush.
    pub claim: Option<BlockClaim>,
    /// The transfer through a bounce buffer, if it needs one.
    bounce: Option<Bounce>,
    /// Why it was issued.
    pub cause: IoCause,
    /// Why it failed, in the operating system's words, if the reactor reported that.
    pub cause_of_failure: Option<String>,
}

/// A transfer through a buffer of whole blocks.
struct Bounce {
    memory: Memory,
    plan: BlockPlan,
    /// The index of the current step.
    step: usize,
}

impl Bounce {
    /// The I/O of the current step.
    fn kind(&self) -> (IoKind, ByteRange) {
        match self.plan.steps[self.step] {
            BlockStep::Read(range) => (IoKind::Read, range),
            BlockStep::Write { range, fua } => (IoKind::Write { fua }, range),
            BlockStep::Zero { range, unmap } => (IoKind::Zero { unmap }, range),
            BlockStep::Apply => unreachable!("`begin_step` carries it out"),
        }
    }

    /// The memory of the current step; `None` if it transfers no data.
    fn vector(&self) -> Option<libc::iovec> {
        let (kind, range) = self.kind();
        let from = (range.offset - self.plan.memory.offset) as usize;
        let moves_data = matches!(kind, IoKind::Read | IoKind::Write { .. });
        moves_data.then(|| libc::iovec {
            iov_base: self.memory.as_ptr().wrapping_add(from).cast(),
            iov_len: range.len as usize,
        })
    }
}

/// The largest alignment of memory that direct I/O requires, in bytes.
const MEMORY_ALIGNMENT_MAX: usize = 4096;

/// Whether a disk with this block size can use these vectors: direct I/O requires each to be
/// aligned to blocks, or to 4 KiB if they are larger.
fn memory_fits(iovecs: &[libc::iovec], block_bytes: u64) -> bool {
    let alignment = (block_bytes as usize).min(MEMORY_ALIGNMENT_MAX);
    let is_aligned =
        |iovec: &libc::iovec| (iovec.iov_base as usize | iovec.iov_len).is_multiple_of(alignment);
    iovecs.iter().all(is_aligned)
}

/// The state of a transfer after a completion.
pub(super) enum Progress {
    Done,
    /// The transfer was short; the rest has to be submitted.
    More,
    /// No byte was transferred: the file ends here.
    EndOfFile,
}

impl InFlight {
    pub(super) fn new(
        volume: Arc<Volume>,
        verb: Option<IoVerb>,
        purpose: Purpose,
        iovecs: Few<libc::iovec>,
        discard: Option<Arc<Memory>>,
    ) -> Self {
        let members = match &purpose {
            Purpose::Shards(members) => &members[..],
            Purpose::Flush(_) => &[],
        };
        let mut pairs = members.windows(2);
        assert!(pairs.all(|pair| pair[0].range.end() <= pair[1].range.offset), "sorted");
        let start = members.first().map_or(0, |member| member.range.offset);
        let end = members.last().map_or(0, |member| member.range.end());
        let range = ByteRange::new(start, end - start);
        let block_bytes = volume.block_bytes();
        let changes = verb.filter(|&verb| verb != IoVerb::Read);
        let ranges = members.iter().map(|member| member.range);
        let claim = changes.map(|_| BlockClaim::new(ranges, block_bytes));
        let fits = memory_fits(&iovecs, block_bytes);
        let plan = match (verb, &claim) {
            (Some(verb), Some(claim)) => BlockPlan::of_change(claim, verb, block_bytes, fits),
            (Some(_), None) => BlockPlan::of_read(range, block_bytes, fits),
            (None, _) => None,
        };
        let bytes: u64 = members.iter().map(|member| member.range.len).sum();
        assert!(bytes == range.len || plan.is_some(), "only a read-modify-write fills gaps");
        let bounce = plan.map(|plan| {
            let memory = Memory::new(plan.memory.len as usize);
            Bounce { memory, plan, step: 0 }
        });
        let mut io = Self {
            volume,
            verb,
            range,
            purpose,
            began: Instant::now(),
            iovecs,
            rest: Few::new(),
            bytes_done: 0,
            discard,
            claim,
            bounce: None,
            cause: IoCause::Demand,
            cause_of_failure: None,
        };
        if let Some(bounce) = bounce {
            io.begin_step(bounce);
        }
        io
    }

    /// Sets why this was issued.
    pub(super) fn with_cause(self, cause: IoCause) -> Self {
        Self { cause, ..self }
    }

    /// Whether this is a read that no client waits for.
    pub(super) const fn is_background(&self) -> bool {
        self.cause.is_background()
    }

    /// The class of its latency.
    pub(super) const fn latency_class(&self) -> LatencyClass {
        match self.verb {
            None => LatencyClass::DiskFlush,
            Some(IoVerb::Read) => LatencyClass::DiskRead,
            Some(IoVerb::Write { .. }) => LatencyClass::DiskWrite,
            Some(IoVerb::Discard | IoVerb::Zero { .. }) => LatencyClass::DiskErase,
        }
    }

    /// Adds the I/O to the counters of its volume.
    pub(super) fn count(&self, worker: usize) {
        let counts = &self.volume.stats[worker].counts;
        let cause = self.cause as usize;
        match self.verb {
            None => counts.backend_flushes.add(1),
            Some(IoVerb::Read) => {
                counts.backend_reads_by_cause[cause].add(1);
                counts.backend_read_bytes_by_cause[cause].add(self.range.len);
            }
            Some(IoVerb::Write { .. }) => {
                counts.backend_writes_by_cause[cause].add(1);
                counts.backend_write_bytes_by_cause[cause].add(self.range.len);
            }
            Some(IoVerb::Discard | IoVerb::Zero { .. }) => counts.backend_erases.add(1),
        }
    }

    /// Prepares the current step of a transfer through a bounce buffer.
    fn begin_step(&mut self, mut bounce: Bounce) {
        if bounce.plan.steps[bounce.step] == BlockStep::Apply {
            self.apply(&mut bounce);
            bounce.step += 1;
        }
        self.bytes_done = 0;
        self.rest = bounce.vector().into_iter().collect();
        self.bounce = Some(bounce);
    }

    /// Ends a step that has succeeded, and prepares the next one. Returns false if there is none.
    pub(super) fn next_step(&mut self) -> bool {
        let Some(mut bounce) = self.bounce.take() else { return false };
        bounce.step += 1;
        if bounce.step < bounce.plan.steps.len() {
            self.begin_step(bounce);
            return true;
        }
        if self.verb == Some(IoVerb::Read) {
            self.each_piece(&mut bounce, |piece, bounced| piece.copy_from_slice(bounced));
        }
        false
    }

    /// Applies the write, or zeroes, to the blocks that were read.
    fn apply(&self, bounce: &mut Bounce) {
        if matches!(self.verb, Some(IoVerb::Zero { .. })) {
            let from = (self.range.offset - bounce.plan.memory.offset) as usize;
            bounce.memory.bytes_mut()[from..from + self.range.len as usize].fill(0);
        } else {
            self.each_piece(bounce, |piece, bounced| bounced.copy_from_slice(piece));
        }
    }

    /// Calls `each` with each piece of the members' memory and its place in the bounce buffer.
    fn each_piece(&self, bounce: &mut Bounce, mut each: impl FnMut(&mut [u8], &mut [u8])) {
        let Purpose::Shards(members) = &self.purpose else { return };
        let first = bounce.plan.memory.offset;
        let buffer = bounce.memory.bytes_mut();
        let mut iovecs = self.iovecs.iter();
        for member in members {
            let mut at = (member.range.offset - first) as usize;
            for iovec in iovecs.by_ref().take(member.iovecs) {
                // SAFETY: the vectors are memory that belongs to this I/O until it is answered. The
                // bounce buffer is owned by this I/O, so they do not overlap.
                let piece = unsafe {
                    std::slice::from_raw_parts_mut(iovec.iov_base.cast::<u8>(), iovec.iov_len)
                };
                each(piece, &mut buffer[at..at + iovec.iov_len]);
                at += iovec.iov_len;
            }
        }
    }

    /// Records that `bytes` more bytes were transferred.
    pub(super) fn advance(&mut self, bytes: u64) -> Progress {
        let (kind, range) = self.current();
        if !matches!(kind, IoKind::Read | IoKind::Write { .. }) {
            return Progress::Done;
        }
        self.bytes_done += bytes;
        assert!(self.bytes_done <= range.len, "no more is transferred than the range");
        if self.bytes_done >= range.len {
            return Progress::Done;
        }
        if bytes == 0 {
            return Progress::EndOfFile;
        }
        let mut skip = self.bytes_done as usize;
        self.rest = Few::new();
        let bounced = self.bounce.as_ref().and_then(Bounce::vector);
        let vectors = bounced.as_ref().map_or(&self.iovecs[..], std::slice::from_ref);
        for iovec in vectors {
            let skipped = skip.min(iovec.iov_len);
            skip -= skipped;
            if skipped < iovec.iov_len {
                let base = iovec.iov_base.cast::<u8>().wrapping_add(skipped);
                push_iovec(&mut self.rest, 0, base, iovec.iov_len - skipped);
            }
        }
        assert_eq!(skip, 0, "the vectors have all bytes of the range");
        Progress::More
    }

    /// The kind and range of the current transfer.
    fn current(&self) -> (IoKind, ByteRange) {
        if let Some(bounce) = &self.bounce {
            return bounce.kind();
        }
        let kind = match self.verb {
            None => IoKind::Flush,
            Some(IoVerb::Read) => IoKind::Read,
            Some(IoVerb::Write { fua }) => IoKind::Write { fua },
            Some(IoVerb::Discard) => IoKind::Discard,
            Some(IoVerb::Zero { unmap }) => IoKind::Zero { unmap },
        };
        (kind, self.range)
    }
}

/// Submits the rest of an I/O to the reactor if that supports it, otherwise to the backend.
pub(super) fn submit<R: Reactor>(reactor: &mut R, inbox: &Arc<Inbox>, tag: u32, io: &InFlight) {
    let (kind, range) = io.current();
    // A contract of backends: otherwise direct I/O fails, or a file grows.
    let disk = io.volume.backend.description();
    let is_whole = (range.offset | range.len).is_multiple_of(u64::from(disk.alignment_bytes));
    assert!(is_whole && range.fits(disk.size_bytes()), "{kind:?} of {range} on {}", disk.name);
    let done = || IoToken::new(Arc::clone(inbox) as Arc<dyn CompletionSink>, u64::from(tag));
    if io.volume.is_given_up() {
        // The volume has no clients. Reads fail, except those of a read-modify-write, whose result
        // goes nowhere.
        let is_read = io.verb == Some(IoVerb::Read);
        return done().complete(if is_read { Err(IoError::Io) } else { Ok(()) });
    }
    if io.volume.has_lost_journal() {
        return done().complete(Err(IoError::Io));
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
    let moves_data = matches!(kind, IoKind::Read | IoKind::Write { .. });
    let buffers = vectors.iter().filter(|_| moves_data).map(|iovec| {
        // SAFETY: until the answer, the memory is pinned in the pool, or owned by the request or by
        // this I/O.
        unsafe { Buffer::new(iovec.iov_base.cast(), iovec.iov_len) }
    });
    io.volume.backend.submit(Io {
        kind,
        offset: range.offset,
        len: range.len,
        buffers: buffers.collect(),
        done: done(),
    });
}
