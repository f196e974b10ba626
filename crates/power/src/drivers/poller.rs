//! The thread that polls a UPS.

use super::Sink;
use crate::Observation;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Minimum poll interval, to limit the load on the server.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// A source of readings of one UPS.
pub trait Source: Send + 'static {
    /// Reads the UPS once. May block; the source limits the time, except in uninterruptible calls.
    fn read(&mut self) -> Observation;

    /// Notifies the server, if any, that the data is safe and power may be cut.
    fn release(&mut self) {}
}

enum Order {
    Release(Sender<()>),
    Stop,
}

/// A thread that polls a UPS until it is dropped. Dropping waits for a read in progress.
///
/// Dropping also closes a connection on which the server waits for this machine, so keep the poller
/// until the data is safe.
pub struct Poller {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts a thread that reads `source` at once and then every `interval`, and passes each
    /// observation to `sink`. A slow read delays the next one.
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
                            // The caller may have timed out.
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

    /// Notifies the server that the data is safe and power may be cut. Waits at most `timeout`, and
    /// returns whether the attempt has ended.
    #[must_use]
    pub fn release(&self, timeout: Duration) -> bool {
        let (done, answer) = mpsc::channel();
        self.orders.send(Order::Release(done)).is_ok() && answer.recv_timeout(timeout).is_ok()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // Fails only if the thread has already ended.
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
