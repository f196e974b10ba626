//! What an operator should know about the disks of volumes: a line in the log when a volume is
//! added, and a part of its status as long as it is served.

use forebay_backend::StoreMedium;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The notes on each served volume.
#[derive(Default)]
pub(super) struct Notes(Mutex<HashMap<String, Vec<String>>>);

impl Notes {
    /// Replaces the notes on a volume by those on its disk and on the devices of its journal.
    pub(super) fn set(&self, volume: &str, disk: &StoreMedium, journal: &[StoreMedium]) {
        let found = notes(disk, journal);
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

fn notes(disk: &StoreMedium, journal: &[StoreMedium]) -> Vec<String> {
    let mut notes = Vec::new();
    if disk.hidden_bytes > 0 {
        notes.push(format!(
            "the last {} bytes of its disk are less than a block, and not part of the volume",
            disk.hidden_bytes
        ));
    }
    // One device of a mirrored journal elsewhere suffices.
    let shared = |device: &StoreMedium| device.disks.intersection(&disk.disks).next().cloned();
    let shared: Option<Vec<_>> = journal.iter().map(shared).collect();
    if let Some(name) = shared.and_then(|shared| shared.into_iter().next()) {
        notes.push(format!(
            "its journal is on the volume's own disk {name}: a failure of that disk loses both, \
             and each write goes to it twice"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(disks: &[&str]) -> StoreMedium {
        let disks = disks.iter().map(|&disk| disk.to_owned()).collect();
        StoreMedium { disks, ..StoreMedium::default() }
    }

    #[test]
    fn a_journal_on_the_volumes_own_disk_is_noted() {
        let found = |disk: &[&str], journal: &[&[&str]]| {
            let journal: Vec<_> = journal.iter().map(|disks| on(disks)).collect();
            let notes = notes(&on(disk), &journal);
            notes.first().and_then(|note| Some(note.split_once("own disk ")?.1[..8].to_owned()))
        };
        assert_eq!(found(&["/dev/sda"], &[&["/dev/sda"]]).as_deref(), Some("/dev/sda"));
        assert_eq!(found(&["/dev/sda", "/dev/sdb"], &[&["/dev/sdb"]]).as_deref(), Some("/dev/sdb"));
        assert_eq!(found(&["/dev/sda"], &[&["/dev/sdb"]]), None);
        assert_eq!(found(&["/dev/sda"], &[&["/dev/sda"], &["/dev/sdb"]]), None, "a mirror");
        assert_eq!(found(&[], &[&[]]), None, "nothing is known");
        assert_eq!(found(&["/dev/sda"], &[]), None, "no journal");
    }
}
