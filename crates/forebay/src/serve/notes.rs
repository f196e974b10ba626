//! What an operator should know about the disks of volumes: a line in the log when a volume is
//! added, and a part of its status as long as it is served.

use forebay_backend::Medium;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The notes on each served volume.
#[derive(Default)]
pub(super) struct Notes(Mutex<HashMap<String, Vec<String>>>);

impl Notes {
    /// Replaces the notes on a volume by those on its disk.
    pub(super) fn set(&self, volume: &str, disk: &Medium) {
        let found = notes(disk);
        found.iter().for_each(|note| tracing::warn!(volume, note, "note on a volume"));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(volume.to_owned(), found);
    }

    /// The notes on a volume.
    pub(super) fn of(&self, volume: &str) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(volume).cloned().unwrap_or_default()
    }
}

fn notes(disk: &Medium) -> Vec<String> {
    let mut notes = Vec::new();
    if disk.hidden_bytes > 0 {
        notes.push(format!(
            "the last {} bytes of its disk are less than a block, and not part of the volume",
            disk.hidden_bytes
        ));
    }
    notes
}
