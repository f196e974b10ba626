//! Several batches on their way to or from the vault's device at once.

use super::batch::Batch;
use forebay_backend::{Backend, Buffer, Completion, CompletionSink, Io, IoKind};
use forebay_types::{IoError, IoResult};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long the device may answer nothing at all before it counts as gone.
const STALL: Duration = Duration::from_secs(30);

struct Ended(mpsc::Sender<(u64, IoResult)>);

impl CompletionSink for Ended {
    fn complete(&self, tag: u64, result: IoResult) {
        let _ = self.0.send((tag, result));
    }
}

/// Some buffers, each free or under an I/O.
pub(super) struct Pipe<'a> {
    backend: &'a dyn Backend,
    pub(super) batches: Vec<Batch>,
    free: Vec<usize>,
    ended: Arc<Ended>,
    told: mpsc::Receiver<(u64, IoResult)>,
}

impl<'a> Pipe<'a> {
    /// Over buffers, at least one, which [`Pipe::into_batches`] gives back.
    pub(super) fn new(backend: &'a dyn Backend, batches: Vec<Batch>) -> Self {
        let (tell, told) = mpsc::channel();
        let free = (0..batches.len()).collect();
        Self { backend, batches, free, ended: Arc::new(Ended(tell)), told }
    }

    /// Waits for what is on its way, and gives the buffers back: others if the device has still
    /// some of these.
    pub(super) fn into_batches(mut self) -> Vec<Batch> {
        let count = self.batches.len();
        let is_settled = self.settle();
        let batches = std::mem::take(&mut self.batches);
        self.free.clear();
        if is_settled {
            return batches;
        }
        // The device may still write into them one day.
        std::mem::forget(batches);
        (0..count).map(|_| Batch::new()).collect()
    }

    /// A buffer that nobody uses.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, buffer: usize) {
        self.free.push(buffer);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.batches.len()
    }

    /// Writes the first `len` bytes of a buffer, or fills them.
    pub(super) fn start(&mut self, buffer: usize, position: u64, len: u64, write: bool) {
        let bytes = &mut self.batches[buffer].bytes[..len as usize];
        // SAFETY: the buffer is not touched before its I/O is answered, as it is not among the free
        // ones until then; and its memory stays, see `Drop`.
        let memory = unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) };
        let kind = if write { IoKind::Write { fua: false } } else { IoKind::Read };
        let done = Completion::new(Arc::clone(&self.ended) as _, buffer as u64);
        self.backend.submit(Io { kind, offset: position, len, buffers: vec![memory], done });
    }

    /// Waits for the next answer: which buffer is the caller's again, and how it went. `None` when
    /// the device answers nothing any more.
    pub(super) fn wait(&mut self) -> Option<(usize, IoResult)> {
        let (tag, result) = self.told.recv_timeout(STALL).ok()?;
        Some((tag as usize, result))
    }

    /// Waits for all that is on its way. Returns whether all of it was answered.
    fn settle(&mut self) -> bool {
        while !self.is_idle() {
            let Some((buffer, _)) = self.wait() else { return false };
            self.give_back(buffer);
        }
        true
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        if !self.settle() {
            // As above.
            std::mem::forget(std::mem::take(&mut self.batches));
        }
    }
}

/// What a device that answers nothing is taken to have said.
pub(super) const STALLED: IoError = IoError::Io;
