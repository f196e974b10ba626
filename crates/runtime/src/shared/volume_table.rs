//! The volumes by number. The table's lock is a leaf of the lock order, so it may be taken under
//! any lock that is not a leaf, and no lock may be taken under it. Otherwise three threads could
//! deadlock: one that holds the table's lock and waits for a shard, one that holds that shard and
//! waits to read the table, and one that waits to write the table.

use super::{UnknownVolume, Volume};
use crate::platform::locks::SharedLock;
use forebay_types::VolumeId;
use std::sync::Arc;

/// The served volumes.
#[derive(Default)]
pub(crate) struct VolumeTable {
    places: SharedLock<Vec<Option<Arc<Volume>>>>,
}

impl VolumeTable {
    pub(crate) fn get(&self, id: VolumeId) -> Option<Arc<Volume>> {
        let places = self.places.read();
        places.get(usize::from(id.0)).cloned().flatten()
    }

    /// A snapshot of all volumes, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        let places = self.places.read();
        places.iter().flatten().cloned().collect()
    }

    pub(crate) fn named(&self, name: &str) -> Result<Arc<Volume>, UnknownVolume> {
        let places = self.places.read();
        let found = places.iter().flatten().find(|volume| volume.name == name);
        found.cloned().ok_or_else(|| UnknownVolume(name.to_owned()))
    }

    pub(crate) fn insert(&self, volume: Arc<Volume>) {
        let before = self.replace(usize::from(volume.id.0), Some(Arc::clone(&volume)));
        let is_free = before.is_none_or(|before| Arc::ptr_eq(&before, &volume));
        assert!(is_free, "a number is of one volume");
    }

    pub(crate) fn remove(&self, id: VolumeId) {
        assert!(self.replace(usize::from(id.0), None).is_some(), "a volume is removed once");
    }

    /// Removes all volumes.
    pub(crate) fn clear(&self) {
        let mut places = self.places.write();
        let all = std::mem::take(&mut *places);
        drop(places);
        // Dropping the last reference to a volume closes its disk, which takes other locks.
        drop(all);
    }

    /// Returns the former volume, to be dropped without the lock.
    fn replace(&self, at: usize, volume: Option<Arc<Volume>>) -> Option<Arc<Volume>> {
        let mut places = self.places.write();
        if places.len() <= at {
            places.resize(at + 1, None);
        }
        std::mem::replace(&mut places[at], volume)
    }
}
