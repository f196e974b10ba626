//! What is outside of a vault of who relies on it.
//!
//! A dump is written on battery, and nothing else is then. So who depends on a vault is on record
//! before anything is acknowledged that only a dump would keep, and until the disk has everything
//! or another vault is named. A start that finds a volume on record with a vault that is not there
//! knows that its disk may be older than what was acknowledged.

use std::io;

/// Which volumes rely on which vaults, as far as is on record. A vault is known by its number.
pub trait VaultRecord: Send + Sync {
    /// The vault, other than the one that is open, in which the newest of a volume may be.
    fn elsewhere(&self, volume: &str, open: Option<u64>) -> Option<Missing>;

    /// From now on the newest of a volume may be in this vault: at once, or, if it has a journal,
    /// from the failure of that on. What was superseded of it in this vault is no more.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn rely(&self, vault: u64, volume: &str, has_journal: bool) -> io::Result<()>;

    /// A volume's disk has everything.
    ///
    /// # Errors
    /// When that can't be made durable; the volume stays on record.
    fn release(&self, vault: u64, volume: &str) -> io::Result<()>;

    /// A volume is about to be served without what other vaults than the open one may hold of it:
    /// that is void from now on.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn supersede(&self, volume: &str, open: Option<u64>) -> io::Result<()>;

    /// Whether what this vault holds of a volume is void.
    ///
    /// # Errors
    /// When the record can't be read.
    fn is_superseded(&self, vault: u64, volume: &str) -> io::Result<bool>;
}

/// A vault or a journal on which a volume relies, and which is not the one that it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it was called.
    pub name: String,
    /// The operator says that what it holds of the volume is lost.
    pub is_given_up: bool,
}

/// Nothing is on record, and nothing is put there: nobody depends on a vault.
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
