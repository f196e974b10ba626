//! Flushes of the disks during a dump or drill: one thread per disk, so that a disk that hangs
//! delays no other.

use crate::shared::{FlushNeed, Volume};
use forebay_backend::Blocking;
use forebay_types::IoResult;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Flushes in progress.
pub(super) struct DiskFlushes {
    /// The volumes whose flush has not completed.
    pending: Vec<String>,
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
            let spawned = std::thread::Builder::new().name("vault-flush".into()).spawn(work);
            if let Err(error) = spawned {
                tracing::error!(volume = %volume.name, %error, "cannot start to flush the disk");
            }
        }
        Self { pending, results }
    }

    /// Waits until `deadline`. Returns the volumes whose flush has failed or not completed.
    pub(super) fn wait(mut self, deadline: Instant) -> Vec<String> {
        let mut failed = Vec::new();
        while !self.pending.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((volume, result)) = self.results.recv_timeout(left) else { break };
            self.pending.retain(|other| *other != volume);
            if let Err(error) = result {
                tracing::error!(%volume, %error, "disk flush failed");
                failed.push(volume);
            }
        }
        failed.append(&mut self.pending);
        failed
    }
}

fn flush(volume: &Volume) -> IoResult {
    match volume.flush.begin() {
        FlushNeed::Known(result) => result,
        FlushNeed::Flush => volume.flush.end(Blocking::new(&*volume.backend).flush()).0,
    }
}
