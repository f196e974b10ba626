//! The record, outside of a vault, of the volumes that rely on it.
//!
//! A volume is recorded before the first acknowledgement of a write that only a dump would save,
//! because on battery there is no time to record it. The record stays until the disk has
//! everything, or another vault is configured. A start without the recorded vault then knows that
//! the disk may lack acknowledged writes.

use crate::journal::Missing;
use std::io;

/// The durable record of which volumes rely on which vaults. A vault is identified by its number.
pub trait VaultRecord: Send + Sync {
    /// Looks up a vault other than the open one that may hold the newest data of a volume.
    fn elsewhere(&self, volume: &str, open: Option<u64>) -> Option<Missing>;

    /// Records that the newest data of a volume may be in this vault: from now on or, if the volume
    /// has a journal, once the journal has failed. Removes the record that an older dump in this
    /// vault is superseded.
    fn rely(&self, vault: u64, volume: &str, has_journal: bool) -> io::Result<()>;

    /// Removes the record: the volume's disk has everything.
    ///
    /// # Errors
    /// When that cannot be made durable; the record stays.
    fn release(&self, vault: u64, volume: &str) -> io::Result<()>;

    /// Voids the data of a volume in vaults other than the open one, because the volume is about to
    /// be served without it.
    fn supersede(&self, volume: &str, open: Option<u64>) -> io::Result<()>;

    /// Whether the data of a volume in this vault is void.
    fn is_superseded(&self, vault: u64, volume: &str) -> io::Result<bool>;
}

/// A record that is always empty.
pub(crate) struct NoRecord;

impl VaultRecord for NoRecord {
    fn elsewhere(&self, _: &str, _: Option<u64>) -> Option<Missing> {
        None
    }

    fn rely(&self, _: u64, _: &str, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _: u64, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn supersede(&self, _: &str, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn is_superseded(&self, _: u64, _: &str) -> io::Result<bool> {
        Ok(false)
    }
}
