//! What is done with a volume at a start: one function over everything that may hold its data.
//!
//! Three things besides the disk may hold what was acknowledged and is not on it. How new each is:
//!
//! - **pool**: the memory of a server that is gone, taken over by this one. It is the newest there
//!   is: a server changes its pool before it tells anybody, the journal included.
//! - **vault**: what was dirty when it was written, on battery, after writes had been stopped. It
//!   is newer than what the journal recorded until then, and older than what it recorded after: a
//!   server that loaded the vault may have served before it died in its turn.
//! - **journal**: every write in order, as far as it was recorded. With `durability=flush` that may
//!   end before what was acknowledged, and then the vault has more.
//!
//! The rules, in the order in which they decide:
//!
//! 1. What can't be used as the operator wants it used (a journal of another version, a journal
//!    that was given up and is asked to go on) is refused, as long as nothing newer makes it
//!    irrelevant.
//! 2. Data that nobody but the disk lacks is never written to a disk that is not known to be the
//!    one: it is kept, and the volume is not served (quarantine).
//! 3. The newest whole source is loaded, and with it what an older one has that it may lack: the
//!    journal's records after the vault go over the vault; an incomplete vault goes over the
//!    journal's records before it. A pool that was taken over needs nothing else.
//! 4. A vault or a journal that is on record as the only place of the newest data, and is not at
//!    hand, can't be made up for by anything but the pool: what the disk and others have may be
//!    older.
//! 5. Loss is an error that names it, unless the operator has accepted it: then what is left is
//!    loaded, by the same order.
//!
//! A clean mark says that the last server had everything on the disks when it ended. It makes a
//! vault void, which it did not live to remove; it does not make the journal's records void, as
//! those that are there then are of volumes which that server did not have. So with a journal that
//! is missing: a server that ends in order strikes the volumes that it had off that record.
//!
//! **Contract** of who writes vaults: a vault says with which batch of the journal it was written,
//! so that records before and after it can be told apart; and while a vault that was loaded is
//! there, no checkpoint of its volumes ends, or it would be newer than what is left of the journal
//! without being newer than the disk.
//!
//! The price: the pool, if it was taken over, is trusted more than a journal with checksums.

pub use crate::identity::DiskIdentity;

/// What the journal holds of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalState {
    /// The volume has no journal.
    None,
    /// It holds nothing of the volume.
    Empty,
    /// It was closed in order: the disks have everything.
    Clean,
    /// It holds records of the volume, all of them readable.
    Records,
    /// Something in it that may have been the volume's can't be read any more.
    Damaged,
    /// It failed while the volume was served, which went on without it: its records are void.
    Abandoned,
    /// Another version of this program wrote it.
    OtherVersion,
    /// It is on record that the newest data may be in it alone, and it is not there: none is named,
    /// or another one, or it has been emptied.
    Missing,
}

/// The memory of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// It is new and empty.
    New,
    /// It was taken over from a server that is gone, and checked.
    Adopted,
}

/// What the vault holds of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VaultState {
    /// There is no vault.
    None,
    /// It holds nothing.
    Empty,
    /// It holds everything that was dirty when it was written.
    Whole,
    /// The dump did not come to its end.
    Incomplete,
    /// Something in it can't be read any more.
    Damaged,
    /// It is on record that the newest data may be in it alone, and it is not there.
    Missing,
}

/// Everything that the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inputs {
    /// The journal.
    pub journal: JournalState,
    /// The journal has each write that was acknowledged (`durability=ack`), and not only those that
    /// were flushed.
    pub each_write: bool,
    /// The pool.
    pub pool: PoolState,
    /// The vault.
    pub vault: VaultState,
    /// The disk.
    pub disk: DiskIdentity,
    /// The last server ended with everything on the disks, and wrote that down.
    pub clean_mark: bool,
    /// The operator accepts what has been lost.
    pub accept_loss: bool,
    /// The operator says that this disk is the one.
    pub accept_disk: bool,
}

/// Something that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The dirty lines of the pool that was taken over.
    Pool,
    /// What the vault holds.
    Vault,
    /// All records of the journal, or, beside a vault, those that were made before it.
    Journal,
    /// The records of the journal that were made after the vault was written.
    JournalAfterVault,
}

/// Why a volume is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The journal can't be read by this version.
    OtherVersion,
    /// The journal was given up, and is asked to go on.
    Abandoned,
    /// Something of the journal is lost, and nothing else holds it.
    JournalLost,
    /// The journal that may hold it is not there.
    JournalMissing,
    /// Something of the vault is lost, and nothing else holds it.
    VaultLost,
    /// The vault that may hold it is not there.
    VaultMissing,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The volume is served, after these have been loaded in this order, each over the one before.
    Serve(Vec<Source>),
    /// It is not served. What is held of it is kept.
    Refuse(Refusal),
    /// It is not served: what is held of it is not known to be for this disk. It is kept.
    Quarantine,
}

impl Inputs {
    /// Whether the vault counts.
    fn vault_in_force(self) -> VaultState {
        if self.clean_mark { VaultState::None } else { self.vault }
    }

    /// Whether the journal alone says what the disk lacks.
    fn journal_is_complete(self) -> bool {
        let is_whole = matches!(self.journal, JournalState::Empty | JournalState::Records);
        self.each_write && is_whole
    }

    /// Whether anything holds data that the disk may lack.
    fn holds_data(self) -> bool {
        let journal = matches!(self.journal, JournalState::Records | JournalState::Damaged);
        let vault = matches!(
            self.vault_in_force(),
            VaultState::Whole | VaultState::Incomplete | VaultState::Damaged
        );
        let pool = self.pool == PoolState::Adopted && !self.clean_mark;
        journal || vault || pool
    }
}

/// Decides. See the module's description.
pub fn decide(inputs: Inputs) -> Decision {
    use Decision::{Quarantine, Refuse, Serve};
    if inputs.journal == JournalState::OtherVersion {
        return Refuse(Refusal::OtherVersion);
    }
    let is_known = matches!(inputs.disk, DiskIdentity::Same | DiskIdentity::Renamed);
    if inputs.holds_data() && !is_known && !inputs.accept_disk {
        return Quarantine;
    }
    // A clean pool holds nothing that the disk lacks, so what the journal has is newer.
    if inputs.pool == PoolState::Adopted && !inputs.clean_mark {
        return Serve(vec![Source::Pool]);
    }
    let sources = match from_storage(inputs) {
        Err(refusal) => return Refuse(refusal),
        Ok(sources) => sources,
    };
    let is_given_up = inputs.journal == JournalState::Abandoned;
    if is_given_up { Refuse(Refusal::Abandoned) } else { Serve(sources) }
}

/// What is loaded from vault and journal.
fn from_storage(inputs: Inputs) -> Result<Vec<Source>, Refusal> {
    use JournalState::{Damaged, Missing, Records};
    let journal = inputs.journal;
    let vault = match inputs.vault_in_force() {
        // Nothing was acknowledged that a journal like this one lacks.
        VaultState::Incomplete | VaultState::Damaged if inputs.journal_is_complete() => {
            VaultState::None
        }
        VaultState::Missing if inputs.accept_loss => VaultState::None,
        vault => vault,
    };
    let is_accepted = inputs.accept_loss;
    match (vault, journal) {
        (VaultState::Missing, _) => Err(Refusal::VaultMissing),
        // A vault lacks what was recorded after it.
        (_, Missing) if !is_accepted => Err(Refusal::JournalMissing),
        (VaultState::None | VaultState::Empty, Records) => Ok(vec![Source::Journal]),
        (VaultState::None | VaultState::Empty, Damaged) if is_accepted => Ok(vec![Source::Journal]),
        (VaultState::None | VaultState::Empty, Damaged) => Err(Refusal::JournalLost),
        (VaultState::None | VaultState::Empty, _) => Ok(Vec::new()),
        // What the journal recorded before it is in it, or was on the disk by then.
        (VaultState::Whole, Records) => Ok(vec![Source::Vault, Source::JournalAfterVault]),
        (VaultState::Whole, Damaged) if is_accepted => {
            Ok(vec![Source::Vault, Source::JournalAfterVault])
        }
        // What is damaged may have come after the vault.
        (VaultState::Whole, Damaged) => Err(Refusal::JournalLost),
        (VaultState::Whole, _) => Ok(vec![Source::Vault]),
        // With both, what the vault lacks is in the journal, as far as it was recorded.
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
