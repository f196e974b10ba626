//! The startup decision for a volume, from the state of everything that may hold its data.
//!
//! Besides the disk, three sources may hold acknowledged data that the disk lacks:
//!
//! - **pool**: the memory of a previous server, adopted by this one. It is always the newest: a
//!   server changes its pool before it writes to the journal or acknowledges.
//! - **vault**: the data that was dirty when the vault was written, on battery, after writes had
//!   been stopped.
//! - **journal**: every write in order, up to the last record.
//!
//! The rules. Rules 1 and 2 come first; then an adopted pool decides (rule 3); otherwise a refusal
//! by any of rules 3 to 6 takes precedence over loading a source:
//!
//! 1. Refuse a journal of another format version: it may hold anything.
//! 2. Never write recovered data to a disk that is not known to be the right one. Keep the data,
//!    and do not serve the volume (quarantine).
//! 3. Load the source that has data. An adopted pool needs no other source. Otherwise, if vault and
//!    journal both have data, refuse the volume: which of them is newer is not recorded.
//! 4. If the state directory records a vault or a journal as the only place of the newest data, and
//!    that device is missing, then only the pool can replace it: the disk and the other source may
//!    be older.
//! 5. Report loss as an error that names the lost source, unless the operator accepts the loss.
//!    Then load what is left.
//! 6. Refuse an abandoned journal, unless an adopted pool or the vault has the data: what is in the
//!    vault was dirty after the journal had failed, and writes had been stopped.
//!
//! A clean mark states that the last server had flushed everything when it stopped. It voids a
//! vault that the server had not cleared yet, and the state directory's record of a vault. It does
//! not void the journal's records: any that are left belong to volumes that the server did not
//! serve. It does not void the record of a missing journal either: a server that stops cleanly
//! removes its own volumes from that record.
//!
//! The price: an adopted pool takes precedence over a journal, although every record of the journal
//! has a checksum.

pub use crate::identity::DiskIdentity;

/// What the journal holds for the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalState {
    /// The volume has no journal.
    None,
    /// The journal has no records of the volume.
    Empty,
    /// The journal was closed cleanly: the disks have everything.
    Clean,
    /// The journal has records of the volume, all readable.
    Records,
    /// Part of the journal that may concern the volume is unreadable.
    Damaged,
    /// The journal failed while the volume was served, and the volume continued without it: its
    /// records are void.
    Abandoned,
    /// The journal has an unsupported format version.
    OtherVersion,
    /// The state directory records that a journal may hold the newest data, but that journal is not
    /// configured, or has been emptied.
    Missing,
}

/// The state of the pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// New and empty.
    New,
    /// Adopted from a previous server, and verified.
    Adopted,
}

/// What the vault holds for the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VaultState {
    /// There is no vault.
    None,
    /// The vault holds nothing.
    Empty,
    /// The vault holds everything that was dirty when it was written.
    Whole,
    /// The dump was not completed.
    Incomplete,
    /// Part of the vault is unreadable.
    Damaged,
    /// The state directory records that a vault may hold the newest data, but that vault is
    /// missing.
    Missing,
}

/// The inputs of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServeInputs {
    /// The journal.
    pub journal: JournalState,
    /// The pool.
    pub pool: PoolState,
    /// The vault.
    pub vault: VaultState,
    /// The disk.
    pub disk: DiskIdentity,
    /// Whether the last server recorded that it had flushed everything when it stopped.
    pub has_clean_mark: bool,
    /// Whether the operator accepts the loss.
    pub accept_loss: bool,
    /// Whether the operator confirms that this is the right disk.
    pub accept_disk: bool,
}

/// A source to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadSource {
    /// The dirty lines of the adopted pool.
    Pool,
    /// The content of the vault.
    Vault,
    /// All records of the journal.
    Journal,
}

/// Why a volume is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServeRefusal {
    /// The journal has an unsupported format version.
    OtherVersion,
    /// The journal was abandoned.
    Abandoned,
    /// Part of the journal is lost, and no other source has the data.
    JournalLost,
    /// The journal that may hold the newest data is missing.
    JournalMissing,
    /// Part of the vault is lost, and no other source has the data.
    VaultLost,
    /// The vault that may hold the newest data is missing.
    VaultMissing,
    /// Vault and journal both hold data of the volume, and which of them is newer is not recorded.
    VaultAndJournal,
}

/// The startup decision for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Serve the volume after loading this source, if any.
    Serve(Option<LoadSource>),
    /// Do not serve the volume. Keep all its data.
    Refuse(ServeRefusal),
    /// Do not serve the volume, because its data may belong to another disk. Keep all its data.
    Quarantine,
}

impl ServeInputs {
    /// The state of the vault, unless a clean mark voids it.
    fn effective_vault(self) -> VaultState {
        if self.has_clean_mark { VaultState::None } else { self.vault }
    }

    /// Whether any source holds data that the disk may lack.
    fn holds_data(self) -> bool {
        let has_records = matches!(self.journal, JournalState::Records | JournalState::Damaged);
        let has_dump = matches!(
            self.effective_vault(),
            VaultState::Whole | VaultState::Incomplete | VaultState::Damaged
        );
        let has_dirty_pool = self.pool == PoolState::Adopted && !self.has_clean_mark;
        has_records || has_dump || has_dirty_pool
    }
}

/// Decides whether to serve a volume, and what to load, by the rules at the top of this module.
pub fn decide(inputs: ServeInputs) -> Decision {
    use Decision::{Quarantine, Refuse, Serve};
    if inputs.journal == JournalState::OtherVersion {
        return Refuse(ServeRefusal::OtherVersion);
    }
    let is_known = matches!(inputs.disk, DiskIdentity::Same | DiskIdentity::Renamed);
    if inputs.holds_data() && !is_known && !inputs.accept_disk {
        return Quarantine;
    }
    // After a clean stop the pool holds nothing that the disk lacks, but the journal may have
    // records.
    if inputs.pool == PoolState::Adopted && !inputs.has_clean_mark {
        return Serve(Some(LoadSource::Pool));
    }
    let source = match from_storage(inputs) {
        Err(refusal) => return Refuse(refusal),
        Ok(source) => source,
    };
    assert!(source.is_none() || inputs.holds_data(), "{source:?} holds data: {inputs:?}");
    let is_abandoned = inputs.journal == JournalState::Abandoned;
    if is_abandoned && source != Some(LoadSource::Vault) {
        Refuse(ServeRefusal::Abandoned)
    } else {
        Serve(source)
    }
}

/// The source to load other than the pool: vault, journal, or none.
fn from_storage(inputs: ServeInputs) -> Result<Option<LoadSource>, ServeRefusal> {
    use JournalState::{Damaged, Missing, Records};
    let is_accepted = inputs.accept_loss;
    match (inputs.effective_vault(), inputs.journal) {
        (VaultState::Missing, _) if !is_accepted => Err(ServeRefusal::VaultMissing),
        (_, Missing) if !is_accepted => Err(ServeRefusal::JournalMissing),
        (VaultState::None | VaultState::Empty | VaultState::Missing, journal) => match journal {
            Damaged if !is_accepted => Err(ServeRefusal::JournalLost),
            Records | Damaged => Ok(Some(LoadSource::Journal)),
            _ => Ok(None),
        },
        (_, Records | Damaged) => Err(ServeRefusal::VaultAndJournal),
        (VaultState::Incomplete | VaultState::Damaged, _) if !is_accepted => {
            Err(ServeRefusal::VaultLost)
        }
        (VaultState::Whole | VaultState::Incomplete | VaultState::Damaged, _) => {
            Ok(Some(LoadSource::Vault))
        }
    }
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
