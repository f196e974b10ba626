//! The volumes by number. No other lock is taken while this table's is held, so the table may be
//! used while holding any other lock.
//!
//! `RwLock` makes new readers wait behind a waiting writer. If one thread could hold the table and
//! wait for a shard while another holds that shard and reads the table, a third that changes the
//! table would deadlock all three.

use crate::shared::Volume;
use forebay_types::VolumeId;
use std::sync::{Arc, PoisonError, RwLock};

/// The volumes that are served.
#[derive(Default)]
pub(crate) struct VolumeTable {
    places: RwLock<Vec<Option<Arc<Volume>>>>,
}

impl VolumeTable {
    /// The volume of this number.
    pub(crate) fn get(&self, id: VolumeId) -> Option<Arc<Volume>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(usize::from(id.0)).cloned().flatten()
    }

    /// All volumes as they are now, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.iter().flatten().cloned().collect()
    }

    /// Puts a volume at its number.
    pub(crate) fn insert(&self, volume: Arc<Volume>) {
        let at = usize::from(volume.id.0);
        self.replace(at, Some(volume));
    }

    /// Takes the volume of this number out.
    pub(crate) fn remove(&self, id: VolumeId) {
        self.replace(usize::from(id.0), None);
    }

    /// Takes all volumes out.
    pub(crate) fn clear(&self) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *places);
        drop(places);
        // Dropping the last reference to a volume closes its disk, which takes other locks.
        drop(all);
    }

    fn replace(&self, at: usize, volume: Option<Arc<Volume>>) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        if places.len() <= at {
            places.resize(at + 1, None);
        }
        let before = std::mem::replace(&mut places[at], volume);
        drop(places);
        drop(before);
    }
}
