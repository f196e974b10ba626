//! The thread that writes to the backend below, in job order.

use super::cache::{BlockCache, BlockRun};
use crate::sync::lock;
use crate::{Backend, Buffer, Io, IoKind, IoToken, IoWait};
use forebay_types::{ByteRange, Few, IoResult};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Concurrent writes to the backend below.
const RUNS_AT_ONCE: usize = 32;

/// A job of the thread.
pub(super) enum WriterJob {
    /// Make everything durable.
    Flush(IoToken),
    /// Make a range durable.
    Stable(ByteRange, IoToken),
    /// Write everything below, to empty the cache.
    WriteBack(IoToken),
    /// Pass on a discard or zeroes, and drop blocks of the range written up to a version.
    Pass(Io, u64),
}

pub(super) struct WriterState {
    pub(super) cache: BlockCache,
    pub(super) jobs: Vec<WriterJob>,
    pub(super) is_stopping: bool,
}

/// State shared by the layer and its thread.
pub(super) struct WriterShared {
    pub(super) state: Mutex<WriterState>,
    pub(super) wake: Condvar,
    pub(super) inner: Arc<dyn Backend>,
}

impl WriterShared {
    pub(super) fn new(inner: Arc<dyn Backend>, cache: BlockCache) -> Self {
        let state = Mutex::new(WriterState { cache, jobs: Vec::new(), is_stopping: false });
        Self { state, wake: Condvar::new(), inner }
    }

    /// The main loop of the thread.
    pub(super) fn serve(&self) {
        let mut state = lock(&self.state);
        while !state.is_stopping {
            if state.jobs.is_empty() && !state.cache.has_early() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let jobs = std::mem::take(&mut state.jobs);
            let early = state.cache.take_early();
            drop(state);
            // No request waits for these; failed blocks stay in the cache.
            let _ = self.write(&early, false);
            drop(early);
            self.run(jobs);
            state = lock(&self.state);
        }
    }

    /// Executes a batch of jobs. One flush answers all waiting flushes.
    fn run(&self, jobs: Vec<WriterJob>) {
        let (mut flushes, mut stable, mut drained) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            match job {
                WriterJob::Flush(done) => flushes.push(done),
                WriterJob::Stable(range, done) => stable.push((range, done)),
                WriterJob::WriteBack(done) => drained.push(done),
                WriterJob::Pass(io, version) => self.pass(io, version),
            }
        }
        for (range, done) in stable {
            done.complete(self.make_stable(range));
        }
        if flushes.is_empty() && drained.is_empty() {
            return;
        }
        let runs = lock(&self.state).cache.all_runs();
        let written = self.write_and_release(&runs, false);
        drop(runs);
        drained.into_iter().for_each(|done| done.complete(written));
        if !flushes.is_empty() {
            let flushed = written.and_then(|()| self.flush());
            flushes.into_iter().for_each(|done| done.complete(flushed));
        }
    }

    fn make_stable(&self, range: ByteRange) -> IoResult {
        let runs = lock(&self.state).cache.runs(range);
        self.write_and_release(&runs, true)?;
        let written_bytes: u64 = runs.iter().map(|run| run.bytes.len() as u64).sum();
        // Blocks no longer in the cache were written below, but not flushed.
        if written_bytes < range.len { self.flush() } else { Ok(()) }
    }

    fn pass(&self, io: Io, version: u64) {
        let (kind, offset, len) = (io.kind, io.offset, io.len);
        let result = self.call(kind, offset, len);
        if result.is_ok() {
            lock(&self.state).cache.release_until(io.range(), version);
        }
        io.done.complete(result);
    }

    fn flush(&self) -> IoResult {
        self.call(IoKind::Flush, 0, 0)
    }

    /// Executes an I/O without buffers below, and waits for it.
    fn call(&self, kind: IoKind, offset: u64, len: u64) -> IoResult {
        let wait = IoWait::new(1);
        let done = IoToken::new(wait.clone(), 0);
        self.inner.submit(Io { kind, offset, len, buffers: Few::new(), done });
        wait.all()[0]
    }

    fn write_and_release(&self, runs: &[BlockRun], fua: bool) -> IoResult {
        let result = self.write(runs, fua);
        if result.is_ok() {
            let mut state = lock(&self.state);
            runs.iter().for_each(|run| state.cache.release(run));
        }
        result
    }

    /// Writes runs below, some at a time. Returns the first error.
    fn write(&self, runs: &[BlockRun], fua: bool) -> IoResult {
        for runs in runs.chunks(RUNS_AT_ONCE) {
            let wait = IoWait::new(runs.len());
            for (tag, run) in runs.iter().enumerate() {
                let len = run.bytes.len();
                // SAFETY: `runs` is borrowed until `all` returns, which is after the last answer,
                // and a write does not store into its buffers.
                let buffer = unsafe { Buffer::new(run.bytes.as_ptr().cast_mut(), len) };
                let done = IoToken::new(wait.clone(), tag as u64);
                let (kind, offset, len) = (IoKind::Write { fua }, run.offset, len as u64);
                self.inner.submit(Io { kind, offset, len, buffers: Few::from_buf([buffer]), done });
            }
            wait.all().into_iter().collect::<IoResult>()?;
        }
        Ok(())
    }
}
