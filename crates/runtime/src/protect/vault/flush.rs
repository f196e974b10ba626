//! Flushes of the disks during a dump or drill: one thread per disk, so that a disk that hangs
//! delays no other.

use crate::shared::{FlushNeed, Volume};
use forebay_backend::Blocking;
use forebay_threads::Thread;
use forebay_types::IoResult;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How often a wait checks for cancellation.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Flushes in progress.
pub(super) struct DiskFlushes {
    /// The volumes whose flush has not completed.
    pending: Vec<String>,
    /// The volumes whose flush has failed.
    failed: Vec<String>,
    results: mpsc::Receiver<(String, IoResult)>,
}

impl DiskFlushes {
    pub(super) fn start(volumes: impl Iterator<Item = Arc<Volume>>) -> Self {
        let (sender, results) = mpsc::channel();
        let mut pending = Vec::new();
        for volume in volumes {
            let (owned, sender) = (Arc::clone(&volume), sender.clone());
            pending.push(volume.name.clone());
            let work = move || {
                let _ = sender.send((owned.name.clone(), flush(&owned)));
            };
            let spawned = Thread::named("vault-flush").spawn(work);
            if let Err(error) = spawned {
                tracing::error!(volume = %volume.name, %error, "cannot start to flush the disk");
            }
        }
        Self { pending, failed: Vec::new(), results }
    }

    /// Waits until `deadline`. Returns the volumes whose flush has failed or not completed.
    pub(super) fn wait(mut self, deadline: Instant) -> Vec<String> {
        self.collect(deadline);
        self.unflushed()
    }

    /// As [`DiskFlushes::wait`], but returns `None` soon after it is cancelled.
    pub(super) fn wait_unless(
        mut self,
        cancelled: &AtomicBool,
        deadline: Instant,
    ) -> Option<Vec<String>> {
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return None;
            }
            let now = Instant::now();
            if self.collect(deadline.min(now + CANCEL_INTERVAL)) || now >= deadline {
                return Some(self.unflushed());
            }
        }
    }

    /// Receives results until `deadline`. Returns whether no further one will come.
    fn collect(&mut self, deadline: Instant) -> bool {
        while !self.pending.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let (volume, result) = match self.results.recv_timeout(left) {
                Ok(received) => received,
                Err(error) => return error == mpsc::RecvTimeoutError::Disconnected,
            };
            self.pending.retain(|other| *other != volume);
            if let Err(error) = result {
                tracing::error!(%volume, %error, "disk flush failed");
                self.failed.push(volume);
            }
        }
        true
    }

    fn unflushed(mut self) -> Vec<String> {
        self.failed.append(&mut self.pending);
        self.failed
    }
}

fn flush(volume: &Volume) -> IoResult {
    match volume.flush.begin() {
        FlushNeed::Known(result) => result,
        FlushNeed::Flush => volume.flush.end(Blocking::new(&*volume.backend).flush()).0,
    }
}
