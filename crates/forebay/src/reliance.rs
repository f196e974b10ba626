//! Which volumes rely on which vaults, on record in the state directory.
//!
//! A dump is written on battery. What it will hold has to be known before, so that a start without
//! the vault notices that something is missing: a volume is on record from before its first write
//! that only a dump would keep, until its disk has everything. A file is named after the vault's
//! number, which stays whatever is dumped to it:
//!
//! ```text
//! vault /fast/vault
//! relies vm
//! void database
//! lines 2
//! ```
//!
//! What the vault holds of a volume that is `void` is older than the volume's disk: the volume was
//! served without it. A file without the last line, or with another number there, is about every
//! volume. Nothing changes it but somebody's hand.

use crate::marks;
use forebay_runtime::{MissingVault, VaultRecord};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What is on record of one vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reliance {
    /// What it was called.
    vault: String,
    relies: Vec<String>,
    void: Vec<String>,
}

/// Where it is on record who relies on the vault with this number.
fn path_of(state_dir: &Path, vault: u64) -> PathBuf {
    state_dir.join(format!("vault-{vault:016x}.relied"))
}

fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix("vault-")?.strip_suffix(".relied")?;
    u64::from_str_radix(name, 16).ok()
}

impl Reliance {
    /// Reads what is on record; nothing where there is no file.
    fn read(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        Self::parse(&text).ok_or_else(|| {
            let message = format!(
                "{} is damaged; move it away if no vault of this server is needed any more",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.lines();
        let vault = lines.next()?.strip_prefix("vault ")?.to_owned();
        let count: usize = lines.next_back()?.strip_prefix("lines ")?.parse().ok()?;
        let mut reliance = Self { vault, ..Self::default() };
        for line in lines {
            match line.split_once(' ')? {
                ("relies", name) => reliance.relies.push(name.to_owned()),
                ("void", name) => reliance.void.push(name.to_owned()),
                _ => return None,
            }
        }
        (reliance.relies.len() + reliance.void.len() == count).then_some(reliance)
    }

    /// Makes it durable; a record of nobody is taken away.
    fn write(&self, path: &Path) -> io::Result<()> {
        let count = self.relies.len() + self.void.len();
        if count == 0 {
            return marks::take_away(path);
        }
        let mut text = format!("vault {}\n", self.vault);
        self.relies.iter().for_each(|name| text += &format!("relies {name}\n"));
        self.void.iter().for_each(|name| text += &format!("void {name}\n"));
        text += &format!("lines {count}\n");
        marks::replace(path, &text)
    }

    /// The volumes whose disks are newer than what the vault with this number holds of them.
    ///
    /// # Errors
    /// When the record is there and can't be read.
    pub(crate) fn void_in(state_dir: &Path, vault: u64) -> io::Result<Vec<String>> {
        Ok(Self::read(&path_of(state_dir, vault))?.void)
    }

    /// The name of the vault, other than one with this number, in which the newest of a volume may
    /// be. A record that can't be read is about every volume.
    pub(crate) fn elsewhere(state_dir: &Path, volume: &str, open: Option<u64>) -> Option<String> {
        let others = Self::all(state_dir).into_iter().filter(|(path, _)| number_of(path) != open);
        let mut names = others.filter_map(|(path, record)| match record {
            Ok(record) => record.relies.iter().any(|name| name == volume).then_some(record.vault),
            Err(error) => {
                tracing::error!("{error}");
                Some(format!("unknown, as {} can't be read", path.display()))
            }
        });
        names.next()
    }

    /// A volume does not rely on a vault any more.
    ///
    /// # Errors
    /// When that can't be made durable.
    pub(crate) fn release(state_dir: &Path, vault: u64, volume: &str) -> io::Result<()> {
        Self::change(state_dir, vault, |record| {
            without(&mut record.relies, volume);
        })
    }

    fn all(state_dir: &Path) -> Vec<(PathBuf, io::Result<Self>)> {
        let Ok(entries) = std::fs::read_dir(state_dir) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut paths: Vec<_> = paths.filter(|path| number_of(path).is_some()).collect();
        paths.sort();
        paths.into_iter().map(|path| (path.clone(), Self::read(&path))).collect()
    }

    fn change(state_dir: &Path, vault: u64, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        let path = path_of(state_dir, vault);
        let before = Self::read(&path)?;
        let mut after = before.clone();
        change(&mut after);
        if after == before { Ok(()) } else { after.write(&path) }
    }
}

/// The records of a daemon.
pub(crate) struct Reliances {
    state_dir: PathBuf,
    /// What the vault that is open is called.
    vault: String,
    /// The volumes of which the operator says that what is missing in a vault is lost.
    given_up: Vec<String>,
    /// Those that rely on a vault once their journal fails.
    waiting: Mutex<Vec<(u64, String)>>,
}

impl Reliances {
    pub(crate) fn new(state_dir: &Path, vault: Option<&str>, given_up: Vec<String>) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            vault: vault.unwrap_or_default().to_owned(),
            given_up,
            waiting: Mutex::default(),
        }
    }

    /// The journal of these volumes has failed: those of them that have a supply as well rely on
    /// the vault now.
    ///
    /// # Errors
    /// When that can't be made durable.
    pub(crate) fn journal_failed(&self, volumes: &[String]) -> io::Result<()> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let meant = waiting.iter().filter(|(_, name)| volumes.contains(name));
        meant.into_iter().try_for_each(|(vault, name)| self.rely(*vault, name, false))
    }

    /// The volumes that rely on a vault of this name, whichever it is, and are not given up: where
    /// nothing is there by that name, none may be made.
    pub(crate) fn relying_on(&self, vault: &str) -> Vec<String> {
        let records =
            Reliance::all(&self.state_dir).into_iter().filter_map(|(_, record)| record.ok());
        let mut names: Vec<String> =
            records.filter(|record| record.vault == vault).flat_map(|r| r.relies).collect();
        names.retain(|name| !self.given_up.contains(name));
        names
    }
}

fn without(names: &mut Vec<String>, name: &str) -> bool {
    let count = names.len();
    names.retain(|other| other != name);
    names.len() < count
}

impl VaultRecord for Reliances {
    fn elsewhere(&self, volume: &str, open: Option<u64>) -> Option<MissingVault> {
        let name = Reliance::elsewhere(&self.state_dir, volume, open)?;
        let is_given_up = self.given_up.iter().any(|name| name == volume);
        Some(MissingVault { name, is_given_up })
    }

    fn rely(&self, vault: u64, volume: &str, has_journal: bool) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, name)| name != volume);
        if has_journal {
            waiting.push((vault, volume.to_owned()));
        }
        drop(waiting);
        Reliance::change(&self.state_dir, vault, |record| {
            record.vault.clone_from(&self.vault);
            without(&mut record.void, volume);
            if !has_journal && !record.relies.iter().any(|name| name == volume) {
                record.relies.push(volume.to_owned());
            }
        })
    }

    fn release(&self, vault: u64, volume: &str) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, name)| name != volume);
        drop(waiting);
        Reliance::release(&self.state_dir, vault, volume)
    }

    fn supersede(&self, volume: &str, open: Option<u64>) -> io::Result<()> {
        let records = Reliance::all(&self.state_dir).into_iter();
        let others = records.filter_map(|(path, _)| number_of(&path));
        others.filter(|&vault| Some(vault) != open).try_for_each(|vault| {
            Reliance::change(&self.state_dir, vault, |record| {
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

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = 7;
    const OTHER: u64 = u64::MAX;

    #[test]
    fn who_relies_on_a_vault_is_on_record_until_the_disk_has_everything() {
        let directory = tempfile::tempdir().unwrap();
        let records = Reliances::new(directory.path(), Some("/v"), vec!["b".to_owned()]);
        for name in ["a", "b", "a volume"] {
            assert_eq!(records.elsewhere(name, None), None);
            records.rely(ONE, name, false).unwrap();
            assert_eq!(records.elsewhere(name, Some(ONE)), None, "it is open");
        }
        let missing = |name: &str, open| records.elsewhere(name, open).map(|m| m.is_given_up);
        for open in [None, Some(OTHER)] {
            assert_eq!(missing("a volume", open), Some(false));
            assert_eq!(missing("b", open), Some(true));
            assert_eq!(missing("volume", open), None);
        }
        assert_eq!(records.elsewhere("a", None).unwrap().name, "/v");
        assert_eq!(records.relying_on("/v"), ["a", "a volume"]);
        records.release(ONE, "a volume").unwrap();
        assert_eq!(missing("a volume", None), None);
        // Served without it: what it holds is void, until it is relied upon again.
        records.supersede("b", Some(OTHER)).unwrap();
        assert_eq!(missing("b", None), None);
        let is_void = |name| records.is_superseded(ONE, name).unwrap();
        assert!(is_void("b") && !is_void("a"));
        records.rely(ONE, "b", false).unwrap();
        assert!(!is_void("b"));
        records.supersede("b", Some(ONE)).unwrap();
        assert!(!is_void("b"), "it is the one that is open");
        records.release(ONE, "b").unwrap();
        records.release(ONE, "a").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nobody is left");
    }

    #[test]
    fn with_a_journal_a_vault_counts_once_that_has_failed() {
        let directory = tempfile::tempdir().unwrap();
        let records = Reliances::new(directory.path(), Some("/v"), Vec::new());
        records.rely(ONE, "a", true).unwrap();
        records.rely(ONE, "b", true).unwrap();
        assert_eq!(records.elsewhere("a", None), None);
        records.journal_failed(&["a".to_owned(), "c".to_owned()]).unwrap();
        assert!(records.elsewhere("a", None).is_some());
        assert!(records.elsewhere("b", None).is_none() && records.elsewhere("c", None).is_none());
        records.release(ONE, "b").unwrap();
        records.journal_failed(&["b".to_owned()]).unwrap();
        assert_eq!(records.elsewhere("b", None), None, "it is not served any more");
    }

    #[test]
    fn a_record_that_is_not_whole_is_about_every_volume_and_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let records = Reliances::new(directory.path(), Some("/v"), Vec::new());
        let path = path_of(directory.path(), ONE);
        for text in ["", "vault /v\n", "vault /v\nrelies a\nlines 2\n", "vault /v\nlines 0", "x\n"]
        {
            std::fs::write(&path, text).unwrap();
            assert!(records.elsewhere("z", None).is_some(), "{text:?}");
            let read = records.is_superseded(ONE, "z").map(drop);
            for error in [read, records.rely(ONE, "z", false), records.supersede("z", None)] {
                assert!(error.unwrap_err().to_string().contains("move it away"), "{text:?}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
