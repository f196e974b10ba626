//! `volatile(keep=0.5,limit=64MiB,seed=S):BACKING`: unflushed data is lost with the process.
//!
//! Models a disk with a volatile cache, whose power fails when the process ends for any reason.
//! Writes are answered from process memory. A flush writes all earlier answered data to the backend
//! below and flushes it; a write with FUA does so for its own range. So `kill -9` is a power cut
//! that loses everything that a disk may lose. Without this layer it would lose nothing, because
//! the kernel keeps running and writes its page cache to the file.
//!
//! `keep` is the share of unflushed blocks that survive, chosen independently, so that writes are
//! torn and reordered. Above `limit`, writers wait until the cache has been written below,
//! unflushed, as on a real disk. Discards, and zeroes over more than a few MiB, are not cached but
//! passed on, in order.
//!
//! Invariants: one thread writes below, so two writes of a block are never reordered. A block
//! leaves the cache only after its cached content has been written below, and a read overlays the
//! cached blocks on the data from below.
//!
//! Price: an allocation and a tree entry per block. The layer is for tests.

mod cache;
#[cfg(test)]
mod tests;
mod writer;

use self::cache::BlockCache;
use self::writer::{WriterJob, WriterShared};
use super::describe;
use crate::spec::{Fields, SpecError, number, size_bytes};
use crate::sync::lock;
use crate::thread_pool::join_unless_self;
use crate::{Backend, Description, Extent, Io, IoKind};
use forebay_threads::Thread;
use forebay_types::{ByteRange, Fault, Few, IoError, Remedy};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Longer ranges of zeroes are passed on instead of cached, to keep the cache small, in bytes.
const ZERO_BYTES_MAX: u64 = 4 << 20;

/// Parameters of the volatile cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volatility {
    /// The share of unflushed blocks that are written below at once, 0 to 1.
    pub keep: f64,
    /// Capacity in bytes, above zero.
    pub limit_bytes: u64,
    /// Seed of the choice of kept blocks.
    pub seed: u64,
}

impl Default for Volatility {
    /// Loses all unflushed data, up to 64 MiB.
    fn default() -> Self {
        Self { keep: 0.0, limit_bytes: 64 << 20, seed: 0 }
    }
}

impl Volatility {
    /// Parses the options of the layer.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        let fields = Fields::parse("volatile", text, ',', &["keep", "limit", "seed"])?;
        let share = |text: &str| number(text).filter(|keep| (0.0..=1.0).contains(keep));
        let positive = |text: &str| size_bytes(text).filter(|&bytes| bytes > 0);
        let default = Self::default();
        Ok(Self {
            keep: fields.get("keep", "0.5 (0 to 1)", share)?.unwrap_or(default.keep),
            limit_bytes: fields.get("limit", "64MiB", positive)?.unwrap_or(default.limit_bytes),
            seed: fields.get("seed", "1", number)?.unwrap_or(default.seed),
        })
    }
}

/// The thread of the layer cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("layer volatile cannot start its thread")]
pub struct VolatileError(#[from] std::io::Error);

impl Fault for VolatileError {
    fn remedy(&self) -> Remedy {
        Remedy::from("stop other programs").or("raise the limit of processes")
    }
}

/// A backend that loses unflushed data.
pub struct Volatile {
    shared: Arc<WriterShared>,
    writer: Option<JoinHandle<()>>,
    pub(super) description: Description,
}

impl Volatile {
    /// Caches writes to `inner` until they are flushed.
    pub fn new(inner: Arc<dyn Backend>, volatility: Volatility) -> Result<Self, VolatileError> {
        let description = describe("volatile", &*inner);
        let cache = BlockCache::new(description.alignment_bytes, volatility);
        let shared = Arc::new(WriterShared::new(inner, cache));
        let serve = shared.clone();
        let writer = Thread::named("volatile").spawn(move || serve.serve())?;
        Ok(Self { shared, writer: Some(writer), description })
    }

    /// Caches new content of a range; answers, or leaves that to the thread.
    fn change(&self, mut io: Io) {
        let range = io.range();
        let mut state = lock(&self.shared.state);
        match io.kind {
            // SAFETY: the buffers are those of `io`, which is not answered yet.
            IoKind::Write { .. } => unsafe { state.cache.write(range.offset, &io.buffers) },
            _ => state.cache.zero(range),
        }
        // The bytes are copied, so the buffers return to the caller with the answer.
        io.buffers = Few::new();
        if io.kind == (IoKind::Write { fua: true }) {
            state.jobs.push(WriterJob::Stable(range, io.done));
        } else if state.cache.is_full() {
            state.jobs.push(WriterJob::WriteBack(io.done));
        } else {
            let wakes = state.cache.has_early();
            drop(state);
            if wakes {
                self.shared.wake.notify_one();
            }
            return io.done.complete(Ok(()));
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Reads from below, and overlays the cached blocks.
    fn read(&self, mut io: Io) {
        let blocks = lock(&self.shared.state).cache.blocks(io.range());
        if blocks.is_empty() {
            return self.shared.inner.submit(io);
        }
        let (offset, buffers) = (io.offset, io.buffers.clone());
        io.done = io.done.then(move |result, done| {
            if result.is_ok() {
                // SAFETY: the backend below has answered and no longer accesses the buffers of this
                // read; the caller has no answer yet and keeps them valid.
                unsafe { cache::overlay(offset, &buffers, &blocks) };
            }
            done.complete(result);
        });
        self.shared.inner.submit(io);
    }

    fn queue(&self, job: impl FnOnce(u64) -> WriterJob) {
        let mut state = lock(&self.shared.state);
        let version = state.cache.version();
        state.jobs.push(job(version));
        drop(state);
        self.shared.wake.notify_one();
    }
}

impl Backend for Volatile {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.description) else { return };
        let range = io.range();
        let unit = u64::from(self.description.alignment_bytes);
        if !range.offset.is_multiple_of(unit) || !range.len.is_multiple_of(unit) {
            return io.done.complete(Err(IoError::Invalid));
        }
        match io.kind {
            IoKind::Read => self.read(io),
            IoKind::Flush => self.queue(|_| WriterJob::Flush(io.done)),
            IoKind::Zero { .. } if io.len > ZERO_BYTES_MAX => {
                self.queue(|v| WriterJob::Pass(io, v))
            }
            IoKind::Discard => self.queue(|version| WriterJob::Pass(io, version)),
            IoKind::Write { .. } | IoKind::Zero { .. } => self.change(io),
        }
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.shared.inner)
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        if lock(&self.shared.state).cache.has(range) {
            // The range may contain cached data.
            return vec![Extent { len: range.len, hole: false, zero: false }];
        }
        self.shared.inner.extents(range)
    }
}

impl Drop for Volatile {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.is_stopping = true;
        let jobs: Vec<WriterJob> = std::mem::take(&mut state.jobs);
        let lost_bytes = state.cache.bytes();
        drop(state);
        self.shared.wake.notify_one();
        drop(jobs);
        if let Some(writer) = self.writer.take() {
            join_unless_self(writer);
        }
        if lost_bytes > 0 {
            let disk = &self.description.name;
            tracing::warn!(disk, lost_bytes, "volatile cache closed, unflushed data lost");
        }
    }
}
