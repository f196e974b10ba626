//! Reads what a journal holds of volumes that are not served yet, to restore them.

use super::{Journal, JournalError, Reader};
use forebay_journal::{Image, Piece, pieces_to_restore};

impl Journal {
    /// Volumes that are not served and that the journal holds writes of, with the bytes of each.
    pub fn unserved(&self) -> Vec<(String, u64)> {
        let found = self.found.lock();
        let served: Vec<u16> = self.lock().volumes.iter().map(|(number, _)| *number).collect();
        let others = found.superblock.volumes.iter();
        let others = others.filter(|volume| !served.contains(&volume.number));
        let held = others.map(|volume| {
            let image = Image::of_volume(&found.records, volume.number);
            (volume.name.clone(), image.write_bytes())
        });
        held.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The data to restore for a volume.
    pub(crate) fn pieces_to_restore(&self, number: u16) -> Vec<Piece> {
        pieces_to_restore(&self.found.lock().records, number)
    }

    /// A reader of the log, for a restore.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.devices)
    }

    /// Ends the restore of a volume: all of its data is in the pool or on the disk, and it is about
    /// to be served.
    pub(crate) fn restored(&self, number: u16) -> Result<(), JournalError> {
        // Refuse the volume if the log has failed. While no volume is served, the failure is not
        // recorded, so the journal's records still count at the next start. Once it is recorded,
        // this volume has to be added to the record before it may continue.
        let failed = |error| JournalError::Io { name: self.name.clone(), error };
        self.lock_to_serve(number).map_err(failed)?.core.serve(number);
        let mut found = self.found.lock();
        found.records.retain(|record| record.record.volume != number);
        found.records.shrink_to_fit();
        Ok(())
    }
}
