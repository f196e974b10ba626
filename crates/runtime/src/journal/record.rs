//! What is outside of a journal of who relies on it.
//!
//! A write that is acknowledged is for a while in the journal alone, should memory be lost. So it
//! is on record beside the journal from before the first such write until the disk has everything:
//! a start that is not given the journal, or finds it emptied, knows that its disk may be older
//! than what was acknowledged.

use super::{Journal, JournalError};
use crate::vault::Missing;
use forebay_format::journal::JournalId;
use std::io;

/// Which volumes rely on which journals, as far as is on record.
pub trait JournalRecord: Send + Sync {
    /// The journal, other than the one that the volume is to have, in which its newest may be.
    fn elsewhere(&self, volume: &str, named: Option<JournalId>) -> Option<Missing>;

    /// From now on the newest of a volume may be in this journal, which is called so.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn rely(&self, journal: JournalId, name: &str, volume: &str) -> io::Result<()>;

    /// A volume's disk has everything.
    ///
    /// # Errors
    /// When that can't be made durable; the volume stays on record.
    fn release(&self, journal: JournalId, volume: &str) -> io::Result<()>;

    /// A journal has failed, and the disks of all its volumes have everything now: nothing in it is
    /// of use any more.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn settled(&self, _journal: JournalId) -> io::Result<()> {
        Ok(())
    }

    /// A volume is about to be served without what other journals than this one may hold of it:
    /// that is void from now on.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn supersede(&self, volume: &str, named: Option<JournalId>) -> io::Result<()>;
}

/// Nothing is on record, and nothing is put there.
pub(crate) struct NoJournalRecord;

impl JournalRecord for NoJournalRecord {
    fn elsewhere(&self, _: &str, _: Option<JournalId>) -> Option<Missing> {
        None
    }

    fn rely(&self, _: JournalId, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _: JournalId, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn supersede(&self, _: &str, _: Option<JournalId>) -> io::Result<()> {
        Ok(())
    }
}

impl Journal {
    /// Which journal it is.
    pub(crate) fn id(&self) -> JournalId {
        self.lock().log.superblock().journal
    }

    /// Whether it holds anything of a volume that is not in the pool or on the disk yet.
    pub(crate) fn holds(&self, number: u16) -> bool {
        let found = self.found.lock();
        found.records.iter().any(|found| found.record.volume == number)
    }

    /// From now on the newest of a volume may be in this journal alone; so that is on record. One
    /// that was given up keeps nothing.
    pub(crate) fn rely(&self, volume: &str) -> Result<(), JournalError> {
        if self.is_given_up() {
            return Ok(());
        }
        let recorded = self.record.rely(self.id(), &self.name, volume);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// It has failed, and the disks have everything that was acknowledged.
    pub(super) fn settle(&self) {
        if let Err(error) = self.record.settled(self.id()) {
            tracing::error!(
                journal = %self.name,
                %error,
                "cannot record that the disks have everything: the next start refuses the failed \
                 journal until its first 128 KiB are zeroes"
            );
        }
    }

    /// Volumes have everything on their disks.
    pub(super) fn release(&self, names: &[String]) {
        let id = self.id();
        for volume in names {
            if let Err(error) = self.record.release(id, volume) {
                tracing::error!(
                    "journal {}: that volume '{volume}' does not need it can't be put on record \
                     ({error}); a start without it will refuse the volume",
                    self.name
                );
            }
        }
    }
}
