//! Makes a volume larger whose disk has grown.
//!
//! What the volume relies on learns the new size first: after a crash, a journal, a vault or a pool
//! with the former size would take the disk for another one. Clients can reach the new part last.

use super::{VolumeError, VolumeService};
use std::sync::atomic::Ordering;

impl VolumeService {
    /// Reads the size of a volume's disk again, and makes the volume larger if the disk has grown,
    /// without a pause for its clients. Returns the size before and the size now, in bytes. Pinned
    /// ranges that are the whole volume grow with it, if the pool has space. May block on the disk
    /// and on the journal's device.
    ///
    /// # Errors
    /// When there is no such volume, its disk has shrunk or cannot be measured, or its journal
    /// fails. Clients see the former size then.
    pub fn grow(&self, name: &str) -> Result<(u64, u64), VolumeError> {
        let volume = self.shared.volumes.named(name)?;
        let measured = volume.backend.measure(0);
        let size_bytes =
            measured.map_err(|source| VolumeError::Measure { name: name.to_owned(), source })?;
        if let Some(used) = volume.journal.get() {
            used.journal.grow(used.number, size_bytes)?;
        }
        let changing = self.changes.lock();
        if volume.is_closed.load(Ordering::Relaxed) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        let before = volume.size_bytes();
        if size_bytes <= before {
            return Ok((before, before));
        }
        if let Some(vault) = self.protectors.vault() {
            vault.grow(&volume, size_bytes);
        }
        self.pool_volumes().grow(volume.id, size_bytes);
        volume.warm.grow(size_bytes);
        volume.backend.description().size.grow(size_bytes);
        self.shared.shards.grow(volume.id, size_bytes);
        volume.streams.lock().grow(size_bytes);
        volume.info.write().size_bytes = size_bytes;
        let pins = volume.config.read().pin.clone();
        drop(changing);
        tracing::info!(volume = name, size_bytes, before_bytes = before, "volume has grown");
        if pins.is_all() {
            self.pin_added(&volume, &pins);
        }
        Ok((before, size_bytes))
    }
}
