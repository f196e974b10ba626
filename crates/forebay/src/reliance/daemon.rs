//! The records of a running daemon, as the runtime asks for them.

use super::{Holder, Kind, Reliance, without};
use crate::marks;
use forebay_runtime::{JournalId, JournalRecord, Missing, VaultRecord};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The records of a daemon.
pub(crate) struct Reliances {
    state_dir: PathBuf,
    /// What the vault that is open is called.
    vault: String,
    given_up: GivenUp,
    /// Those that rely on a vault once their journal fails.
    waiting: Mutex<Vec<(u64, String)>>,
}

impl Reliances {
    pub(crate) fn new(state_dir: &Path, vault: Option<&str>, given_up: GivenUp) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            vault: vault.unwrap_or_default().to_owned(),
            given_up,
            waiting: Mutex::default(),
        }
    }

    /// A journal has failed, and it is on record that what it holds of these volumes is void: they
    /// rely on it no more, and those that have a supply as well rely on the vault now.
    ///
    /// # Errors
    /// When that can't be made durable.
    pub(crate) fn journal_failed(&self, journal: JournalId, volumes: &[String]) -> io::Result<()> {
        for volume in volumes {
            Reliance::release(&self.state_dir, Holder::Journal(journal), volume)?;
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let meant = waiting.iter().filter(|(_, name)| volumes.contains(name));
        meant.into_iter().try_for_each(|(vault, name)| VaultRecord::rely(self, *vault, name, false))
    }

    /// The volumes that rely on a vault of this name, whichever it is, and are not given up: where
    /// nothing is there by that name, none may be made.
    pub(crate) fn relying_on_vault(&self, vault: &str) -> Vec<String> {
        let mut names = Reliance::relying_on(&self.state_dir, Kind::Vault, vault);
        names.retain(|name| !self.given_up.vaults.contains(name));
        names
    }

    /// The same of a journal.
    pub(crate) fn relying_on_journal(&self, journal: &str) -> Vec<String> {
        let mut names = Reliance::relying_on(&self.state_dir, Kind::Journal, journal);
        names.retain(|name| !self.given_up.journals.contains(name));
        names
    }

    /// The journal, other than this one, in which the newest of a volume may be, unless it is given
    /// up.
    pub(crate) fn elsewhere_than(&self, volume: &str, named: Option<JournalId>) -> Option<String> {
        let missing = JournalRecord::elsewhere(self, volume, named)?;
        (!missing.is_given_up).then_some(missing.name)
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

/// The volumes of which the operator says that what is missing of them is lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp {
    /// What is in a journal.
    pub(crate) journals: Vec<String>,
    /// What is in a vault.
    pub(crate) vaults: Vec<String>,
}

impl VaultRecord for Reliances {
    fn elsewhere(&self, volume: &str, open: Option<u64>) -> Option<Missing> {
        self.missing(Kind::Vault, volume, open.map(Holder::Vault), &self.given_up.vaults)
    }

    fn rely(&self, vault: u64, volume: &str, has_journal: bool) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, name)| name != volume);
        if has_journal {
            waiting.push((vault, volume.to_owned()));
        }
        drop(waiting);
        let holder = Holder::Vault(vault);
        if !has_journal {
            return Reliance::rely(&self.state_dir, holder, &self.vault, volume);
        }
        Reliance::change(&self.state_dir, holder, |record| {
            record.name.clone_from(&self.vault);
            without(&mut record.void, volume);
        })
    }

    fn release(&self, vault: u64, volume: &str) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, name)| name != volume);
        drop(waiting);
        Reliance::release(&self.state_dir, Holder::Vault(vault), volume)
    }

    fn supersede(&self, volume: &str, open: Option<u64>) -> io::Result<()> {
        let records = Reliance::all(&self.state_dir, Kind::Vault).into_iter();
        let others = records.filter(|(holder, _)| Some(*holder) != open.map(Holder::Vault));
        others.into_iter().try_for_each(|(holder, _)| {
            Reliance::change(&self.state_dir, holder, |record| {
                if without(&mut record.relies, volume) {
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
        Reliance::rely(&self.state_dir, Holder::Journal(journal), name, volume)
    }

    fn release(&self, journal: JournalId, volume: &str) -> io::Result<()> {
        Reliance::release(&self.state_dir, Holder::Journal(journal), volume)
    }

    fn settled(&self, journal: JournalId) -> io::Result<()> {
        marks::settle(&marks::path_of(&self.state_dir, &journal.to_string()))
    }

    /// As if the journal had failed while the volume was served: a start that finds it again
    /// knows that the disk has gone on without it.
    fn supersede(&self, volume: &str, named: Option<JournalId>) -> io::Result<()> {
        for (holder, record) in Reliance::all(&self.state_dir, Kind::Journal) {
            let Holder::Journal(id) = holder else { continue };
            if Some(id) == named || !record?.relies.iter().any(|name| name == volume) {
                continue;
            }
            let mark = marks::path_of(&self.state_dir, &id.to_string());
            let reason = format!("volume '{volume}' was served without it");
            marks::put(&mark, &reason, &[volume.to_owned()])?;
            Reliance::release(&self.state_dir, holder, volume)?;
        }
        Ok(())
    }
}
