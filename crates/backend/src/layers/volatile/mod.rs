//! `volatile(keep=0.5,limit=64MiB,seed=S):BACKEND`: what was not flushed is lost with the process.
//!
//! A disk with a volatile cache, whose power fails when the process ends, however it ends. Writes
//! are answered from memory of the process. A flush brings everything that was answered before it
//! to what is below and flushes that; a write with FUA does so for its own range. So `kill -9` is
//! a power cut that loses all that the contract of a disk lets it lose, which a file in the page
//! cache of a living kernel never does.
//!
//! `keep` is the share of unflushed blocks that are there after all, each by a throw of its own, so
//! that writes are torn and arrive out of order. More than `limit` is not held back: who writes
//! on waits until the cache has been written down, unflushed, as in a real disk. Discards, and
//! zeroes over more than a few MiB, go down at once, in their order.
//!
//! Invariants: one thread writes below, so two writes of a block never change places there. A
//! block leaves the cache when it has been written below as it is in the cache, never earlier,
//! and a read takes what it finds there before it asks below.
//!
//! Price: 512 or 4096 bytes are an allocation and an entry of a tree. It is a layer for tests.

mod cache;
#[cfg(test)]
mod tests;
mod writer;

use self::cache::Cache;
use self::writer::{Job, Shared};
use super::describe;
use crate::pool::join_unless_self;
use crate::spec::{Fields, SpecError, number, size_bytes};
use crate::sync::lock;
use crate::{Backend, Description, Displaced, Extent, Io, IoCount, IoKind};
use forebay_types::{ByteRange, Fault, IoError, Remedy};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Longer zeroes go down at once: they would be nothing but entries in the cache.
const ZERO_BYTES_MAX: u64 = 4 << 20;

/// What a disk with a volatile cache loses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volatility {
    /// The share of unflushed blocks that go below at once all the same, 0 to 1.
    pub keep: f64,
    /// Bytes that are held back, above zero.
    pub limit_bytes: u64,
    /// Where the choice of what is kept starts.
    pub seed: u64,
}

impl Default for Volatility {
    /// Everything that was not flushed is lost, up to 64 MiB of it.
    fn default() -> Self {
        Self { keep: 0.0, limit_bytes: 64 << 20, seed: 0 }
    }
}

impl Volatility {
    /// Reads the options of the layer.
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

/// Why a volatile cache can't be laid over a backend.
#[derive(Debug, thiserror::Error)]
#[error("layer volatile gets no thread")]
pub struct VolatileError(#[from] std::io::Error);

impl Fault for VolatileError {
    fn remedy(&self) -> Remedy {
        Remedy::from("end other programs").or("raise the limit of processes")
    }
}

/// A backend that loses what was not flushed.
pub struct Volatile {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    pub(super) description: Description,
}

impl Volatile {
    /// Holds back what goes to `inner` until it is flushed.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(inner: Arc<dyn Backend>, volatility: Volatility) -> Result<Self, VolatileError> {
        let description = describe("volatile", &*inner);
        let cache = Cache::new(description.alignment_bytes, volatility);
        let shared = Arc::new(Shared::new(inner, cache));
        let serve = shared.clone();
        let writer = thread::Builder::new().name("volatile".into()).spawn(move || serve.serve())?;
        Ok(Self { shared, writer: Some(writer), description })
    }

    /// Takes new content of a range; answers, or has the thread do so.
    fn change(&self, mut io: Io) {
        let range = io.range();
        let mut state = lock(&self.shared.state);
        match io.kind {
            // SAFETY: the buffers are those of `io`, which is not answered yet.
            IoKind::Write { .. } => unsafe { state.cache.write(range.offset, &io.buffers) },
            _ => state.cache.zero(range),
        }
        // The bytes are copied; they are the caller's again when it hears of it.
        io.buffers = Vec::new();
        if io.kind == (IoKind::Write { fua: true }) {
            state.jobs.push(Job::Stable(range, io.done));
        } else if state.cache.is_full() {
            state.jobs.push(Job::Room(io.done));
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

    /// Reads what is below, with what the cache has laid over it.
    fn read(&self, mut io: Io) {
        let blocks = lock(&self.shared.state).cache.blocks(io.range());
        if blocks.is_empty() {
            return self.shared.inner.submit(io);
        }
        let (offset, buffers) = (io.offset, io.buffers.clone());
        io.done = io.done.then(move |result, done| {
            if result.is_ok() {
                // SAFETY: the store below has answered and no longer touches the buffers of this
                // read; its caller has not been answered and keeps them valid.
                unsafe { cache::lay_over(offset, &buffers, &blocks) };
            }
            done.complete(result);
        });
        self.shared.inner.submit(io);
    }

    fn queue(&self, job: impl FnOnce(u64) -> Job) {
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
            IoKind::Flush => self.queue(|_| Job::Flush(io.done)),
            IoKind::Zero { .. } if io.len > ZERO_BYTES_MAX => self.queue(|v| Job::Pass(io, v)),
            IoKind::Discard => self.queue(|version| Job::Pass(io, version)),
            IoKind::Write { .. } | IoKind::Zero { .. } => self.change(io),
        }
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        if lock(&self.shared.state).cache.has(range) {
            // Nothing of it is a hole for sure.
            return vec![Extent { len: range.len, hole: false, zero: false }];
        }
        self.shared.inner.extents(range)
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        self.shared.inner.check_presence()
    }

    fn io_count(&self) -> Option<IoCount> {
        self.shared.inner.io_count()
    }
}

impl Drop for Volatile {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stopping = true;
        let jobs: Vec<Job> = std::mem::take(&mut state.jobs);
        let lost_bytes = state.cache.bytes();
        drop(state);
        self.shared.wake.notify_one();
        drop(jobs);
        if let Some(writer) = self.writer.take() {
            join_unless_self(writer);
        }
        if lost_bytes > 0 {
            let disk = &self.description.name;
            tracing::warn!(disk, lost_bytes, "a volatile cache is gone with what was not flushed");
        }
    }
}
