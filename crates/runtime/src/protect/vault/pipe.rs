//! Concurrent I/O of batches to or from the vault's device.

use super::batch::Batch;
use crate::platform::locks::assert_may_wait;
use forebay_backend::{Backend, Buffer, CompletionSink, Io, IoKind, IoToken};
use forebay_types::{Few, IoError, IoResult};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// After this time without any completion, the device counts as failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The error of a device that has stalled.
pub(super) const STALLED: IoError = IoError::Io;

struct Sink(mpsc::Sender<(u64, IoResult)>);

impl CompletionSink for Sink {
    fn complete(&self, tag: u64, result: IoResult) {
        let _ = self.0.send((tag, result));
    }
}

/// A set of buffers, each free or in use by an I/O.
pub(super) struct Pipe<'a> {
    backend: &'a dyn Backend,
    batches: Vec<Batch>,
    free: Vec<usize>,
    sink: Arc<Sink>,
    completions: mpsc::Receiver<(u64, IoResult)>,
}

impl<'a> Pipe<'a> {
    /// Takes at least one buffer. [`Pipe::into_batches`] returns them.
    pub(super) fn new(backend: &'a dyn Backend, batches: Vec<Batch>) -> Self {
        // Without any, a dump would end at once, with nothing saved.
        assert!(!batches.is_empty(), "the batches were returned after the last use");
        let (sender, completions) = mpsc::channel();
        let free = (0..batches.len()).collect();
        Self { backend, batches, free, sink: Arc::new(Sink(sender)), completions }
    }

    /// Waits for all I/O and returns the buffers. If the device has stalled, returns new ones.
    pub(super) fn into_batches(mut self) -> Vec<Batch> {
        let count = self.batches.len();
        let is_drained = self.drain();
        let batches = std::mem::take(&mut self.batches);
        self.free.clear();
        if is_drained {
            return batches;
        }
        // A stalled device may still access the old ones.
        std::mem::forget(batches);
        (0..count).map(|_| Batch::new()).collect()
    }

    /// The number of buffers.
    pub(super) const fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn batch(&self, buffer: usize) -> &Batch {
        &self.batches[buffer]
    }

    pub(super) fn batch_mut(&mut self, buffer: usize) -> &mut Batch {
        &mut self.batches[buffer]
    }

    /// Takes a free buffer.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, buffer: usize) {
        assert!(!self.free.contains(&buffer), "a buffer is given back once");
        self.free.push(buffer);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.batches.len()
    }

    /// Starts to write the first `len` bytes of a buffer, or to read into them.
    pub(super) fn start(&mut self, buffer: usize, position: u64, len: u64, write: bool) {
        assert!(!self.free.contains(&buffer), "the buffer of an I/O was taken");
        let bytes = &mut self.batches[buffer].bytes[..len as usize];
        // SAFETY: the buffer is not free, so nothing accesses it before its I/O completes, and
        // `drain` and `drop` keep its memory until then.
        let memory = unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) };
        let kind = if write { IoKind::Write { fua: false } } else { IoKind::Read };
        let done = IoToken::new(Arc::clone(&self.sink) as _, buffer as u64);
        self.backend.submit(Io {
            kind,
            offset: position,
            len,
            buffers: Few::from_buf([memory]),
            done,
        });
    }

    /// Waits for the next completion. Returns the buffer, which the caller owns again, and the
    /// result; `None` if the device has stalled.
    pub(super) fn wait(&mut self) -> Option<(usize, IoResult)> {
        assert_may_wait();
        let (tag, result) = self.completions.recv_timeout(STALL_TIMEOUT).ok()?;
        Some((tag as usize, result))
    }

    /// Waits for all I/O. Returns false if the device has stalled.
    fn drain(&mut self) -> bool {
        while !self.is_idle() {
            let Some((buffer, _)) = self.wait() else { return false };
            self.give_back(buffer);
        }
        true
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        if !self.drain() {
            // A stalled device may still access the buffers.
            std::mem::forget(std::mem::take(&mut self.batches));
        }
    }
}
