//! Restores a volume's data from its journal into the pool, before the volume is served.
//!
//! Each piece is a write that is not recorded again: it becomes dirty lines, or goes to the disk if
//! the dirty limit is reached. The records stay in the journal until a checkpoint, so a crash
//! during the restore loses nothing.

use crate::platform::locks::{LazyCondvar, Lock, assert_may_wait};
use crate::shared::{Message, Shared, Tasks};
use forebay_journal::Piece;
use forebay_types::{ByteRange, IoError, IoResult, VolumeId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A batch is submitted when it has this many bytes or pieces.
const BATCH_BYTES: u64 = 2 << 20;
const BATCH_PIECES: usize = 4096;
/// Attempts for a batch that the disk does not take, and the pause between two.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Batches in flight.
const IN_FLIGHT_MAX: usize = 3;

/// A range of the volume, and the offset of its bytes in the batch; `None` for zeroes.
type BatchPiece = (ByteRange, Option<usize>);

/// Pieces that are submitted together.
#[derive(Default)]
struct Batch {
    pieces: Vec<BatchPiece>,
    bytes: Vec<u8>,
}

impl Batch {
    fn content(&self, piece: &BatchPiece) -> Option<&[u8]> {
        let (range, at) = piece;
        at.map(|at| &self.bytes[at..at + range.len as usize])
    }
}

/// Counts the pieces in flight.
#[derive(Default)]
struct Latch {
    /// The count, and the first error.
    state: Lock<(usize, Option<IoError>)>,
    done: LazyCondvar,
}

impl Latch {
    fn end(&self, count: usize, result: IoResult) {
        let mut state = self.state.lock();
        state.0 = state.0.checked_sub(count).expect("a piece of a batch ends once");
        state.1 = state.1.or(result.err());
        if state.0 == 0 {
            self.done.notify_all();
        }
    }

    fn wait(&self) -> IoResult {
        let mut state = self.state.lock();
        while state.0 > 0 {
            state = self.done.wait(state);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

/// A batch that no worker has started. If the worker stops before, the batch is dropped, which
/// fails its pieces.
struct Unstarted(Arc<Latch>, usize);

impl Unstarted {
    fn start(mut self) -> Arc<Latch> {
        self.1 = 0;
        Arc::clone(&self.0)
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.end(self.1, Err(IoError::Shutdown));
        }
    }
}

/// Writes data into a volume that is not served yet. The ranges must be disjoint. They are
/// submitted in batches, and the workers write some batches while the next one is filled.
pub(crate) struct Restorer<'a> {
    shared: &'a Shared,
    volume: VolumeId,
    /// Whether the writes are recorded in the volume's journal.
    records: bool,
    current: Batch,
    in_flight: VecDeque<(Arc<Batch>, Arc<Latch>)>,
    /// The number of batches submitted so far. The workers take turns.
    submitted: usize,
    /// Batches to reuse.
    spare: Vec<Batch>,
}

impl<'a> Restorer<'a> {
    pub(crate) fn new(shared: &'a Shared, volume: VolumeId, records: bool) -> Self {
        let (current, in_flight, spare) = Default::default();
        Self { shared, volume, records, current, in_flight, submitted: 0, spare }
    }

    /// Writes a range with the bytes that `fill` provides.
    ///
    /// # Errors
    /// When `fill` fails, or an earlier write has failed.
    pub(crate) fn write(
        &mut self,
        range: ByteRange,
        fill: impl FnOnce(&mut [u8]) -> IoResult,
    ) -> IoResult {
        let Batch { pieces, bytes } = &mut self.current;
        let at = bytes.len();
        bytes.resize(at + range.len as usize, 0);
        fill(&mut bytes[at..])?;
        pieces.push((range, Some(at)));
        self.submit_if_full()
    }

    /// Restores a piece. `read` reads bytes from a position of the log.
    ///
    /// # Errors
    /// As [`Restorer::write`].
    pub(crate) fn restore(
        &mut self,
        piece: Piece,
        read: impl FnOnce(u64, &mut [u8]) -> IoResult,
    ) -> IoResult {
        match piece.position {
            Some(position) => self.write(piece.range, |into| read(position, into)),
            None => {
                self.current.pieces.push((piece.range, None));
                self.submit_if_full()
            }
        }
    }

    fn submit_if_full(&mut self) -> IoResult {
        let Batch { pieces, bytes } = &self.current;
        let is_full = bytes.len() as u64 >= BATCH_BYTES || pieces.len() >= BATCH_PIECES;
        if !is_full {
            return Ok(());
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            self.complete_oldest()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let batch = Arc::new(std::mem::replace(&mut self.current, next));
        let latch = self.submit(&batch);
        self.in_flight.push_back((batch, latch));
        assert!(self.in_flight.len() <= IN_FLIGHT_MAX, "the memory for batches is bounded");
        Ok(())
    }

    /// Has a worker write the pieces of a batch.
    fn submit(&mut self, batch: &Arc<Batch>) -> Arc<Latch> {
        let latch = Arc::new(Latch::default());
        latch.state.lock().0 = batch.pieces.len();
        let unstarted = Unstarted(Arc::clone(&latch), batch.pieces.len());
        let (batch, volume, records) = (Arc::clone(batch), self.volume, self.records);
        let inboxes = &self.shared.inboxes;
        let inbox = &inboxes[self.submitted % inboxes.len()];
        self.submitted += 1;
        inbox.post(Message::Task(Box::new(move |tasks: &mut dyn Tasks| {
            let latch = unstarted.start();
            for piece in &batch.pieces {
                let latch = Arc::clone(&latch);
                let on_done = Box::new(move |result| latch.end(1, result));
                tasks.restore(volume, piece.0, batch.content(piece), records, on_done);
            }
        })));
        latch
    }

    /// Waits for the oldest batch in flight, and retries it if it has failed.
    fn complete_oldest(&mut self) -> IoResult {
        let Some((batch, latch)) = self.in_flight.pop_front() else { return Ok(()) };
        assert_may_wait();
        let mut result = latch.wait();
        for _ in 1..TRIES_MAX {
            if matches!(result, Ok(()) | Err(IoError::Shutdown)) {
                break;
            }
            std::thread::sleep(PAUSE);
            result = self.submit(&batch).wait();
        }
        if let Some(mut batch) = Arc::into_inner(batch) {
            batch.pieces.clear();
            batch.bytes.clear();
            self.spare.push(batch);
        }
        result
    }

    /// Waits until everything is in the pool or on the disk.
    pub(crate) fn finish(mut self) -> IoResult {
        let batch = Arc::new(std::mem::take(&mut self.current));
        let latch = self.submit(&batch);
        self.in_flight.push_back((batch, latch));
        while !self.in_flight.is_empty() {
            self.complete_oldest()?;
        }
        Ok(())
    }
}

impl Drop for Restorer<'_> {
    fn drop(&mut self) {
        // After a failure, wait for the writes in flight: none may arrive after the caller has
        // handled the failure.
        for (_, latch) in &self.in_flight {
            let _ = latch.wait();
        }
    }
}
