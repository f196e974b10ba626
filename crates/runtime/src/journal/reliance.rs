//! The record, outside of a journal, of the volumes that rely on it.
//!
//! If memory is lost, the journal alone holds acknowledged writes that are not on the disk yet.
//! Before the first such write, the volume is therefore recorded as relying on the journal, and it
//! is released when its disk has everything. A start without the journal, or with an emptied one,
//! then knows that the disk may lack acknowledged writes.

use super::{Journal, JournalError};
use crate::platform::locks::assert_may_wait;
use forebay_format::journal::JournalId;
use std::io;

/// The durable record of which volumes rely on which journals.
pub trait JournalRecord: Send + Sync {
    /// Looks up a journal other than `named` that may hold the newest data of a volume.
    fn elsewhere(&self, volume: &str, named: Option<JournalId>) -> Option<Missing>;

    /// Records that the newest data of a volume may be in this journal alone. `name` is the name of
    /// the journal's device.
    fn rely(&self, journal: JournalId, name: &str, volume: &str) -> io::Result<()>;

    /// Removes the record: the volume's disk has everything.
    ///
    /// # Errors
    /// When that cannot be made durable; the record stays.
    fn release(&self, journal: JournalId, volume: &str) -> io::Result<()>;

    /// Reserves what the record of the journal's failure needs, so that a full file system does not
    /// prevent it: all writes would wait for that record.
    ///
    /// # Errors
    /// When there is no space for it.
    fn reserve(&self, _journal: JournalId) -> io::Result<()> {
        Ok(())
    }

    /// Releases what was reserved: the journal is closed, and the disks have everything.
    fn unreserve(&self, _journal: JournalId) {}

    /// Records that a failed journal is no longer needed: the disks of all its volumes have
    /// everything.
    fn settled(&self, _journal: JournalId) -> io::Result<()> {
        Ok(())
    }

    /// Voids the records of a volume in journals other than `named`, because the volume is about to
    /// be served without them.
    fn supersede(&self, volume: &str, named: Option<JournalId>) -> io::Result<()>;
}

/// A vault or journal that a volume relies on, and that is not the configured one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name when it was recorded.
    pub name: String,
    /// The operator accepts that its data is lost.
    pub is_given_up: bool,
}

/// A record that is always empty.
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
    /// Its identity.
    pub fn id(&self) -> JournalId {
        self.lock().core.log.superblock().journal
    }

    /// Whether it holds data of a volume that is neither in the pool nor on the disk yet.
    pub(crate) fn holds(&self, number: u16) -> bool {
        let found = self.found.lock();
        found.records.iter().any(|found| found.record.volume == number)
    }

    /// Records that the newest data of a volume may be in this journal alone. An abandoned journal
    /// holds none.
    pub(crate) fn rely(&self, volume: &str) -> Result<(), JournalError> {
        if self.is_abandoned() {
            return Ok(());
        }
        assert_may_wait();
        let recorded = self.record.rely(self.id(), &self.name, volume);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Records that this failed journal is no longer needed: the disks have everything.
    pub(super) fn record_settled(&self) {
        assert_may_wait();
        if let Err(error) = self.record.settled(self.id()) {
            tracing::error!(
                journal = %self.name,
                %error,
                "cannot record that the disks have everything; the next start refuses the failed \
                 journal until its first 128 KiB are overwritten with zeroes"
            );
        }
    }

    /// Removes the records of reliance of volumes whose disks have everything.
    pub(super) fn release(&self, names: &[String]) {
        let id = self.id();
        assert_may_wait();
        for volume in names {
            if let Err(error) = self.record.release(id, volume) {
                tracing::error!(
                    journal = %self.name,
                    %volume,
                    %error,
                    "cannot record that the volume no longer relies on the journal; a start \
                     without the journal refuses the volume"
                );
            }
        }
    }
}
