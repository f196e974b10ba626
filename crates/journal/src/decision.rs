//! The startup decision for a volume, from the state of everything that may hold its data.
//!
//! Besides the disk, three sources may hold acknowledged data that the disk lacks:
//!
//! - **pool**: the memory of a previous server, adopted by this one. It is always the newest: a
//!   server changes its pool before it writes to the journal or acknowledges.
//! - **vault**: the data that was dirty when the vault was written, on battery, after writes had
//!   been stopped. It is newer than the journal's records up to that point, and older than the
//!   records after it: a server that loaded the vault may have served writes before it died.
//! - **journal**: every write in order, up to the last record. With `durability=flush` the journal
//!   may lack acknowledged writes that the vault has.
//!
//! The rules, in order of precedence:
//!
//! 1. Refuse a journal of another format version: it may hold anything.
//! 2. Never write recovered data to a disk that is not known to be the right one. Keep the data,
//!    and do not serve the volume (quarantine).
//! 3. Load the newest complete source, together with what it may lack: the journal's records after
//!    the vault go on top of the vault; an incomplete vault goes on top of the journal's records
//!    before it. An adopted pool needs no other source.
//! 4. If the state directory records a vault or a journal as the only place of the newest data, and
//!    that device is missing, then only the pool can replace it: the disk and the other source may
//!    be older.
//! 5. Report loss as an error that names the lost source, unless the operator accepts the loss.
//!    Then load what is left, in the same order.
//! 6. Refuse an abandoned journal, unless an adopted pool has the data.
//!
//! A clean mark states that the last server had flushed everything when it stopped. It voids a
//! vault that the server had not cleared yet, and the state directory's record of a vault. It does
//! not void the journal's records: any records left then belong to volumes which that server did
//! not have. It does not void the record of a missing journal either: a server that stops cleanly
//! removes its own volumes from that record.
//!
//! **Contract** of a caller that loads a vault and a journal: it knows which records were made
//! before the vault was written, and no checkpoint of a volume completes while the vault holds data
//! of the volume. Otherwise the disk could have newer data than the vault, which a second load
//! would overwrite. The format does not store which records were made before a vault, so the
//! runtime refuses a volume that has data in both.
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
pub struct Inputs {
    /// The journal.
    pub journal: JournalState,
    /// Whether the journal has every acknowledged write (`durability=ack`), not only the flushed
    /// ones.
    pub has_each_write: bool,
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
pub enum Source {
    /// The dirty lines of the adopted pool.
    Pool,
    /// The content of the vault.
    Vault,
    /// All records of the journal; together with a vault, only the records made before it.
    Journal,
    /// The records of the journal made after the vault was written.
    JournalAfterVault,
}

/// Why a volume is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
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
}

/// The startup decision for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Serve the volume after loading these sources in order, each on top of the previous one.
    Serve(Vec<Source>),
    /// Do not serve the volume. Keep all its data.
    Refuse(Refusal),
    /// Do not serve the volume, because its data may belong to another disk. Keep all its data.
    Quarantine,
}

impl Inputs {
    /// The state of the vault, unless a clean mark voids it.
    fn effective_vault(self) -> VaultState {
        if self.has_clean_mark { VaultState::None } else { self.vault }
    }

    /// Whether the journal alone has everything that the disk lacks.
    fn is_journal_complete(self) -> bool {
        let is_whole = matches!(self.journal, JournalState::Empty | JournalState::Records);
        self.has_each_write && is_whole
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
pub fn decide(inputs: Inputs) -> Decision {
    use Decision::{Quarantine, Refuse, Serve};
    if inputs.journal == JournalState::OtherVersion {
        return Refuse(Refusal::OtherVersion);
    }
    let is_known = matches!(inputs.disk, DiskIdentity::Same | DiskIdentity::Renamed);
    if inputs.holds_data() && !is_known && !inputs.accept_disk {
        return Quarantine;
    }
    // After a clean stop the pool holds nothing that the disk lacks, but the journal may have
    // records.
    if inputs.pool == PoolState::Adopted && !inputs.has_clean_mark {
        return Serve(vec![Source::Pool]);
    }
    let sources = match from_storage(inputs) {
        Err(refusal) => return Refuse(refusal),
        Ok(sources) => sources,
    };
    assert!(sources.is_empty() || inputs.holds_data(), "{sources:?} hold data: {inputs:?}");
    let is_abandoned = inputs.journal == JournalState::Abandoned;
    if is_abandoned { Refuse(Refusal::Abandoned) } else { Serve(sources) }
}

/// The sources to load from vault and journal.
fn from_storage(inputs: Inputs) -> Result<Vec<Source>, Refusal> {
    use JournalState::{Damaged, Missing, Records};
    let journal = inputs.journal;
    let vault = match inputs.effective_vault() {
        // A complete journal has every acknowledged write, so the vault is not needed.
        VaultState::Incomplete | VaultState::Damaged if inputs.is_journal_complete() => {
            VaultState::None
        }
        VaultState::Missing if inputs.accept_loss => VaultState::None,
        vault => vault,
    };
    let is_accepted = inputs.accept_loss;
    match (vault, journal) {
        (VaultState::Missing, _) => Err(Refusal::VaultMissing),
        // A vault lacks the records made after it.
        (_, Missing) if !is_accepted => Err(Refusal::JournalMissing),
        (VaultState::None | VaultState::Empty, Records) => Ok(vec![Source::Journal]),
        (VaultState::None | VaultState::Empty, Damaged) if is_accepted => Ok(vec![Source::Journal]),
        (VaultState::None | VaultState::Empty, Damaged) => Err(Refusal::JournalLost),
        (VaultState::None | VaultState::Empty, _) => Ok(Vec::new()),
        // Everything recorded before the vault is in the vault, or was on the disk by then.
        (VaultState::Whole, Records) => Ok(vec![Source::Vault, Source::JournalAfterVault]),
        (VaultState::Whole, Damaged) if is_accepted => {
            Ok(vec![Source::Vault, Source::JournalAfterVault])
        }
        // The damaged records may be newer than the vault.
        (VaultState::Whole, Damaged) => Err(Refusal::JournalLost),
        (VaultState::Whole, _) => Ok(vec![Source::Vault]),
        // The journal has what the vault lacks, if it was recorded.
        (VaultState::Incomplete | VaultState::Damaged, Records) if is_accepted => {
            Ok(vec![Source::Journal, Source::Vault, Source::JournalAfterVault])
        }
        (VaultState::Incomplete | VaultState::Damaged, Damaged) if is_accepted => {
            Ok(vec![Source::Journal, Source::Vault, Source::JournalAfterVault])
        }
        (VaultState::Incomplete | VaultState::Damaged, _) if is_accepted => Ok(vec![Source::Vault]),
        (VaultState::Incomplete | VaultState::Damaged, _) => Err(Refusal::VaultLost),
    }
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
