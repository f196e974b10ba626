//! The thread that polls a UPS.

use super::ObservationSink;
use crate::UpsObservation;
use forebay_threads::Thread;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Minimum poll interval, to limit the load on the server.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
/// How long a drop waits for a read in progress: name resolution and file systems may hang.
const END_WAIT: Duration = Duration::from_secs(2);

/// A source of readings of one UPS.
pub trait ReadingSource: Send + 'static {
    /// Reads the UPS once. May block; the source limits the time, except in uninterruptible calls.
    fn read(&mut self) -> UpsObservation;

    /// Notifies the server, if any, that the data is safe and power may be cut.
    fn release(&mut self) {}
}

enum PollOrder {
    Release(Sender<()>),
    Stop,
}

/// A thread that polls a UPS until it is dropped. Dropping waits up to two seconds for a read in
/// progress.
///
/// Dropping also closes a connection on which the server waits for this machine, so keep the poller
/// until the data is safe.
pub struct Poller {
    orders: Sender<PollOrder>,
    /// Disconnected once the thread has ended.
    running: Receiver<()>,
}

impl Poller {
    /// Starts a thread that reads `source` at once and then every `interval`, and passes each
    /// observation to `sink`. A slow read delays the next one.
    pub fn start(
        mut source: impl ReadingSource,
        interval: Duration,
        mut sink: ObservationSink,
    ) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let (runs, running) = mpsc::channel();
        let interval = interval.max(INTERVAL_MIN);
        let body = move || {
            let _runs: Sender<()> = runs;
            loop {
                let next = Instant::now() + interval;
                sink(source.read());
                loop {
                    let left = next.saturating_duration_since(Instant::now());
                    match inbox.recv_timeout(left) {
                        Ok(PollOrder::Release(done)) => {
                            source.release();
                            // The caller may have timed out.
                            let _ = done.send(());
                        }
                        Ok(PollOrder::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                        Err(RecvTimeoutError::Timeout) => break,
                    }
                }
            }
        };
        Thread::named("power").spawn(body)?;
        Ok(Self { orders, running })
    }

    /// Notifies the server that the data is safe and power may be cut. Waits at most `timeout`, and
    /// returns whether the attempt has ended.
    #[must_use]
    pub fn release(&self, timeout: Duration) -> bool {
        let (done, answer) = mpsc::channel();
        self.orders.send(PollOrder::Release(done)).is_ok() && answer.recv_timeout(timeout).is_ok()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // Fails only if the thread has already ended.
        let _ = self.orders.send(PollOrder::Stop);
        if self.running.recv_timeout(END_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a read of a UPS hangs, ending without it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hanging {
        begun: Sender<()>,
        released: Receiver<()>,
    }

    impl ReadingSource for Hanging {
        fn read(&mut self) -> UpsObservation {
            self.begun.send(()).unwrap();
            // Like a name server or file system that does not answer.
            let _ = self.released.recv();
            Ok(crate::UpsReading::default())
        }
    }

    #[test]
    fn a_read_that_hangs_does_not_prevent_the_end() {
        let ((begun, begins), (release, released)) = (mpsc::channel(), mpsc::channel());
        let sink: ObservationSink = Box::new(|_| {});
        let poller = Poller::start(Hanging { begun, released }, Duration::ZERO, sink).unwrap();
        begins.recv().unwrap();
        drop(poller);
        drop(release);
    }
}
