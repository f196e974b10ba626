//! The end of a volume in order.

use crate::checkpoint;
use crate::volume::{S3Volume, VolumeCore};
use forebay_objects::Manifest;
use std::sync::Arc;
use std::time::Duration;

/// The largest map that is stored at a close, in bytes: then the next open has little to read.
const CLOSE_MAP_BYTES_MAX: u64 = 4 << 20;
/// How often a close looks whether everything is stored.
const CLOSE_POLL: Duration = Duration::from_millis(20);

/// Stores what is in memory, and leaves the volume without an owner.
pub(crate) async fn run(volume: &Arc<S3Volume>) {
    if volume.read_only || !volume.is_active() {
        return volume.end();
    }
    volume.core().log.seal();
    wait_until(volume, VolumeCore::is_clean).await;
    let is_small = {
        let mut core = volume.core();
        let map_bytes = core.log.map().bytes();
        core.wants_checkpoint = core.log.has_changed() && map_bytes <= CLOSE_MAP_BYTES_MAX;
        core.wants_checkpoint
    };
    if is_small {
        wait_until(volume, |core| !core.wants_checkpoint && core.snapshot.is_none()).await;
    }
    wait_until(volume, |core| !core.is_checkpointing).await;
    let mut manifest = volume.manifest.lock().await;
    let next =
        Manifest { owner: String::new(), serial: manifest.0.serial + 1, ..manifest.0.clone() };
    checkpoint::replace(volume, &mut manifest, next).await;
    drop(manifest);
    volume.end();
}

async fn wait_until(volume: &Arc<S3Volume>, is_done: impl Fn(&VolumeCore) -> bool) {
    while volume.is_active() && !is_done(&volume.core()) {
        volume.advance();
        let _ = tokio::time::timeout(CLOSE_POLL, volume.progress.notified()).await;
    }
}
