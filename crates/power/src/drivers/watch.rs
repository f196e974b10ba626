//! The thread that reads a supply again and again.

use super::Sink;
use crate::Observation;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shortest time between two readings: a server should not be asked faster than that.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// A way to read a supply.
pub trait Source: Send + 'static {
    /// Reads it once. May block, for a time that the source limits.
    fn read(&mut self) -> Observation;

    /// Says that our data are safe and the power may go, where there is somebody to tell.
    fn release(&mut self) {}
}

enum Order {
    Release(Sender<()>),
    Stop,
}

/// A supply under watch, until this is dropped. Dropping waits for a reading under way.
///
/// Dropping is no [`release`](Self::release), though a server that waits for us notices that the
/// connection is gone: keep the watch until the data are safe.
pub struct Watch {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts a thread that reads `source` every `interval`, the first time at once, and hands
    /// each observation to `sink`. A reading that takes longer delays the next one.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(mut source: impl Source, interval: Duration, mut sink: Sink) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let interval = interval.max(INTERVAL_MIN);
        let body = move || {
            loop {
                let next = Instant::now() + interval;
                sink(source.read());
                loop {
                    let left = next.saturating_duration_since(Instant::now());
                    match inbox.recv_timeout(left) {
                        Ok(Order::Release(done)) => {
                            source.release();
                            // Whoever asked may not wait for the answer.
                            let _ = done.send(());
                        }
                        Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                        Err(RecvTimeoutError::Timeout) => break,
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("power".into()).spawn(body)?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Tells whoever waits for us that our data are safe and the power may go. Waits until that
    /// is said, or has failed, for at most `timeout`; gives whether it is over.
    #[must_use]
    pub fn release(&self, timeout: Duration) -> bool {
        let (done, answer) = mpsc::channel();
        self.orders.send(Order::Release(done)).is_ok() && answer.recv_timeout(timeout).is_ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A thread that has ended takes no orders.
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
