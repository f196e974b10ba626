//! The reliance records of a running daemon, behind the runtime's interfaces.

use forebay_runtime::{JournalId, JournalRecord, MemberRecord, Missing, VaultRecord};
use forebay_state::{Holder, Kind, Members, Reliance, StateFile, marks, remove_name};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The reliance records of a daemon.
pub(crate) struct Reliances {
    state_dir: PathBuf,
    /// The configured name of the open vault.
    vault: String,
    given_up: GivenUp,
    /// The volumes with a journal, each with the number of the vault that it relies on if its
    /// journal fails.
    journaled: Mutex<Vec<(u64, String)>>,
}

impl Reliances {
    pub(crate) fn new(state_dir: &Path, vault: Option<&str>, given_up: GivenUp) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            vault: vault.unwrap_or_default().to_owned(),
            given_up,
            journaled: Mutex::default(),
        }
    }

    /// Updates the records after a journal failed and its failure mark voided its data of these
    /// volumes. They no longer rely on it; volumes that also have a UPS now rely on the vault.
    ///
    /// # Errors
    /// Fails if a record cannot be durably written.
    pub(crate) fn journal_failed(&self, journal: JournalId, volumes: &[String]) -> io::Result<()> {
        for volume in volumes {
            Reliance::release(&self.state_dir, Holder::Journal(journal), volume)?;
        }
        let mut journaled = self.journaled.lock().unwrap_or_else(PoisonError::into_inner);
        let affected = journaled.iter().filter(|(_, name)| volumes.contains(name));
        let mut by_vault = BTreeMap::<u64, Vec<&str>>::new();
        affected.for_each(|(vault, name)| by_vault.entry(*vault).or_default().push(name));
        // One write for each vault: there may be no space but what is reserved for it.
        for (vault, names) in &by_vault {
            Reliance::rely(&self.state_dir, Holder::Vault(*vault), &self.vault, names)?;
        }
        journaled.retain(|(_, name)| !volumes.contains(name));
        Ok(())
    }

    /// The volumes that rely on any vault configured under this name and are not given up. While
    /// there are any, a missing vault must not be created under that name.
    ///
    /// # Errors
    /// Fails if the state directory cannot be read.
    pub(crate) fn relying_on_vault(&self, vault: &str) -> io::Result<Vec<String>> {
        let mut names = Reliance::relying_on(&self.state_dir, Kind::Vault, vault)?;
        names.retain(|name| !self.given_up.vaults.contains(name));
        Ok(names)
    }

    /// Like [`relying_on_vault`](Self::relying_on_vault), for a journal.
    ///
    /// # Errors
    /// Fails if the state directory cannot be read.
    pub(crate) fn relying_on_journal(&self, journal: &str) -> io::Result<Vec<String>> {
        let mut names = Reliance::relying_on(&self.state_dir, Kind::Journal, journal)?;
        names.retain(|name| !self.given_up.journals.contains(name));
        Ok(names)
    }

    /// A journal other than `named` that may hold the volume's newest data, unless given up.
    pub(crate) fn elsewhere_than(&self, volume: &str, named: Option<JournalId>) -> Option<String> {
        let missing = JournalRecord::elsewhere(self, volume, named)?;
        (!missing.is_given_up).then_some(missing.name)
    }

    fn mark_of(&self, journal: JournalId) -> StateFile {
        marks::of_journal(&self.state_dir, &journal.to_string())
    }

    fn missing(
        &self,
        kind: Kind,
        volume: &str,
        open: Option<Holder>,
        given_up: &[String],
    ) -> Option<Missing> {
        let name = Reliance::elsewhere(&self.state_dir, kind, volume, open)?;
        let is_given_up = given_up.iter().any(|name| name == volume);
        Some(Missing { name, is_given_up })
    }
}

/// The volumes whose data in a missing journal or vault the operator has given up.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp {
    /// Volumes whose data in a missing journal is given up.
    pub(crate) journals: Vec<String>,
    /// Volumes whose data in a missing vault is given up.
    pub(crate) vaults: Vec<String>,
}

impl VaultRecord for Reliances {
    fn elsewhere(&self, volume: &str, open: Option<u64>) -> Option<Missing> {
        self.missing(Kind::Vault, volume, open.map(Holder::Vault), &self.given_up.vaults)
    }

    fn rely(&self, vault: u64, volume: &str, has_journal: bool) -> io::Result<()> {
        let mut journaled = self.journaled.lock().unwrap_or_else(PoisonError::into_inner);
        journaled.retain(|(_, name)| name != volume);
        if has_journal {
            journaled.push((vault, volume.to_owned()));
        }
        drop(journaled);
        let holder = Holder::Vault(vault);
        if !has_journal {
            return Reliance::rely(&self.state_dir, holder, &self.vault, &[volume]);
        }
        // Written when the journal fails.
        holder.record(&self.state_dir).reserve()?;
        Reliance::change(&self.state_dir, holder, |record| {
            record.name.clone_from(&self.vault);
            remove_name(&mut record.void, volume);
        })
    }

    fn release(&self, vault: u64, volume: &str) -> io::Result<()> {
        let mut journaled = self.journaled.lock().unwrap_or_else(PoisonError::into_inner);
        journaled.retain(|(_, name)| name != volume);
        drop(journaled);
        Reliance::release(&self.state_dir, Holder::Vault(vault), volume)
    }

    fn supersede(&self, volume: &str, open: Option<u64>) -> io::Result<()> {
        let records = Reliance::all(&self.state_dir, Kind::Vault)?.into_iter();
        let others = records.filter(|(holder, _)| Some(*holder) != open.map(Holder::Vault));
        others.into_iter().try_for_each(|(holder, _)| {
            Reliance::change(&self.state_dir, holder, |record| {
                if remove_name(&mut record.relies, volume) {
                    record.void.push(volume.to_owned());
                }
            })
        })
    }

    fn is_superseded(&self, vault: u64, volume: &str) -> io::Result<bool> {
        Ok(Reliance::void_in(&self.state_dir, vault)?.iter().any(|name| name == volume))
    }
}

impl JournalRecord for Reliances {
    fn elsewhere(&self, volume: &str, named: Option<JournalId>) -> Option<Missing> {
        self.missing(Kind::Journal, volume, named.map(Holder::Journal), &self.given_up.journals)
    }

    fn rely(&self, journal: JournalId, name: &str, volume: &str) -> io::Result<()> {
        Reliance::rely(&self.state_dir, Holder::Journal(journal), name, &[volume])
    }

    fn release(&self, journal: JournalId, volume: &str) -> io::Result<()> {
        Reliance::release(&self.state_dir, Holder::Journal(journal), volume)
    }

    fn reserve(&self, journal: JournalId) -> io::Result<()> {
        self.mark_of(journal).reserve()
    }

    fn unreserve(&self, journal: JournalId) {
        self.mark_of(journal).unreserve();
    }

    fn settled(&self, journal: JournalId) -> io::Result<()> {
        marks::settle(&self.mark_of(journal))
    }

    /// Writes a failure mark, as if the journal had failed while the volume was served. A later
    /// start that finds the journal then knows that the disk is newer.
    fn supersede(&self, volume: &str, named: Option<JournalId>) -> io::Result<()> {
        for (holder, record) in Reliance::all(&self.state_dir, Kind::Journal)? {
            let Holder::Journal(id) = holder else { continue };
            if Some(id) == named || !record?.relies.iter().any(|name| name == volume) {
                continue;
            }
            let reason = format!("volume '{volume}' was served without it");
            marks::put(&self.mark_of(id), &reason, &[volume.to_owned()])?;
            Reliance::release(&self.state_dir, holder, volume)?;
        }
        Ok(())
    }
}

/// The records of members, behind the runtime's interface.
pub(crate) struct KeptMembers(pub(crate) Members);

impl MemberRecord for KeptMembers {
    fn members(&self, journal: JournalId) -> Vec<u64> {
        self.0.members(journal)
    }

    fn record(&self, journal: JournalId, members: &[u64]) -> io::Result<()> {
        self.0.record(journal, members)
    }
}

#[cfg(test)]
mod tests;
