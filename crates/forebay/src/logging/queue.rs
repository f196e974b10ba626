//! The queue between the threads of the program and the one that writes the log.
//!
//! A thread that logs never waits for the log's reader, which may hang: a terminal that is stopped,
//! a full pipe, a journal that does not answer. A record that finds the queue full is dropped and
//! counted. Then all others are dropped too until the queue is half empty, so that the report of
//! their number stands at their place.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Memory for a record besides its text, in bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Lines for standard error.
    Lines(Vec<u8>),
    /// An entry for the system's journal, and its message.
    Entry { bytes: Vec<u8>, message: String },
}

impl Record {
    fn memory_bytes(&self) -> usize {
        RECORD_OVERHEAD_BYTES
            + match self {
                Self::Lines(text) => text.len(),
                Self::Entry { bytes, message } => bytes.len() + message.len(),
            }
    }
}

/// Records that are not written yet. See the module.
pub(super) struct LogQueue {
    bytes_max: usize,
    state: Mutex<QueueState>,
    /// Notified when a record is queued, and when all are written.
    changed: Condvar,
    /// Records that were dropped, or that could not be written.
    dropped: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    records: VecDeque<Record>,
    bytes: usize,
    /// When the writer took the record that it writes.
    writing_since: Option<Instant>,
    /// A record was dropped, and the queue is not half empty yet.
    is_dropping: bool,
}

impl LogQueue {
    /// A queue for records of `bytes_max` in all.
    pub(super) fn new(bytes_max: usize) -> Self {
        let (state, changed, dropped) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Self { bytes_max, state, changed, dropped }
    }

    /// Queues a record, or drops it.
    pub(super) fn push(&self, record: Record) {
        let bytes = record.memory_bytes();
        let mut state = self.lock();
        state.is_dropping |= state.bytes + bytes > self.bytes_max;
        if state.is_dropping {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.bytes += bytes;
        state.records.push_back(record);
        drop(state);
        self.changed.notify_all();
    }

    /// Records that were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// How long the record that is being written has been waiting for the reader.
    pub(super) fn waits_for(&self) -> Duration {
        self.lock().writing_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until everything is written, at most `time`.
    pub(super) fn flush(&self, time: Duration) {
        let is_busy =
            |state: &mut QueueState| state.writing_since.is_some() || !state.records.is_empty();
        // A timeout leaves nothing to do.
        let _ = self.changed.wait_timeout_while(self.lock(), time, is_busy);
    }

    /// Writes records until the end of the process. `report` logs that records were dropped, given
    /// their number.
    pub(super) fn run(
        &self,
        mut write: impl FnMut(&Record) -> io::Result<()>,
        report: impl Fn(u64),
    ) -> ! {
        let mut reported = 0;
        loop {
            let record = self.next();
            let is_written = write(&record).is_ok();
            if !is_written {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            let mut state = self.lock();
            if state.bytes <= self.bytes_max / 2 {
                state.is_dropping = false;
            }
            let (dropped, has_room) = (self.dropped(), !state.is_dropping);
            drop(state);
            if is_written && has_room && dropped > reported {
                report(dropped - reported);
                reported = dropped;
            }
            // Only now, so that a flush waits for the report too.
            self.lock().writing_since = None;
            self.changed.notify_all();
        }
    }

    /// Waits for the next record.
    fn next(&self) -> Record {
        let mut state = self.lock();
        loop {
            if let Some(record) = state.records.pop_front() {
                state.bytes -= record.memory_bytes();
                state.writing_since = Some(Instant::now());
                return record;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    const PATIENCE: Duration = Duration::from_secs(300);

    fn line(number: usize) -> Record {
        Record::Lines(format!("{number}\n").into_bytes())
    }

    /// A queue for ten records, and what its writer gets. The reader hangs until it receives.
    fn queue() -> (Arc<LogQueue>, mpsc::Receiver<Record>) {
        let queue = Arc::new(LogQueue::new(10 * line(0).memory_bytes()));
        let (sender, written) = mpsc::sync_channel(0);
        let (own, other) = (Arc::clone(&queue), Arc::clone(&queue));
        std::thread::spawn(move || {
            own.run(
                |record| sender.send(record.clone()).map_err(io::Error::other),
                |dropped| other.push(Record::Lines(format!("{dropped} dropped").into_bytes())),
            )
        });
        (queue, written)
    }

    #[test]
    fn a_log_that_is_not_read_holds_up_no_thread_and_reports_what_it_dropped() {
        let (queue, written) = queue();
        (0..1000).for_each(|number| queue.push(line(number)));
        let dropped = queue.dropped() as usize;
        // The writer may have taken one already.
        assert!((989..=990).contains(&dropped), "{dropped}");
        let kept = 1000 - dropped;
        for number in 0..kept {
            assert_eq!(written.recv_timeout(PATIENCE), Ok(line(number)));
        }
        let report = Record::Lines(format!("{dropped} dropped").into_bytes());
        assert_eq!(written.recv_timeout(PATIENCE), Ok(report));
        queue.push(line(7));
        assert_eq!(written.recv_timeout(PATIENCE), Ok(line(7)));
    }

    #[test]
    fn a_flush_waits_for_a_reader_and_not_for_one_that_hangs() {
        let (queue, written) = queue();
        queue.push(line(0));
        queue.flush(Duration::from_millis(1));
        let reader = std::thread::spawn(move || (0..2).all(|_| written.recv().is_ok()));
        queue.push(line(1));
        queue.flush(PATIENCE);
        assert!(reader.join().unwrap());
    }
}
