//! The thread that reads from one disk for its calibration.

use crate::shared::{CalibrationFailure, Volume};
use forebay_backend::Blocking;
use forebay_frontend::Memory;
use forebay_policy::READ_BYTES_MAX;
use forebay_threads::Thread;
use forebay_types::{ByteRange, IoError, IoResult};
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The timeout of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread that reads from a disk.
pub(super) struct Reader {
    requests: mpsc::Sender<ByteRange>,
    results: mpsc::Receiver<(Duration, IoResult)>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Starts the thread. It keeps the disk open, and calls `on_end` after it has closed it.
    pub(super) fn start(
        volume: Arc<Volume>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, ranges) = mpsc::channel::<ByteRange>();
        let (sender, results) = mpsc::channel();
        let work = move || {
            // Large enough to be mapped, so it is unmapped at the latest when the thread ends.
            let mut memory = Memory::new(READ_BYTES_MAX as usize);
            // Page faults must not count as part of a read.
            memory.bytes_mut().fill(1);
            for range in ranges {
                let begun = Instant::now();
                volume.disk.internal_reads.add(1, range.len);
                let bytes = &mut memory.bytes_mut()[..range.len as usize];
                let result = Blocking::new(&*volume.backend).read(range.offset, bytes);
                if sender.send((begun.elapsed(), result)).is_err() {
                    break;
                }
            }
            drop((memory, volume));
            on_end();
        };
        let thread = Thread::named("calibrate-read").spawn(work)?;
        Ok(Self { requests, results, thread })
    }

    /// Reads a range and returns the duration.
    pub(super) fn read(&self, range: ByteRange) -> Result<Duration, CalibrationFailure> {
        let offset = range.offset;
        let _ = self.requests.send(range);
        match self.results.recv_timeout(READ_TIMEOUT) {
            Ok((took, Ok(()))) => Ok(took),
            Ok((_, Err(error))) => Err(CalibrationFailure::Io { offset, error }),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(CalibrationFailure::Slow { offset }),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(CalibrationFailure::Io { offset, error: IoError::Io })
            }
        }
    }

    /// Ends the thread, which must have no read in progress.
    pub(super) fn join(self) {
        drop(self.requests);
        let _ = self.thread.join();
    }
}
