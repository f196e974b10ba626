//! Which volumes rely on which journals and vaults, on record in the state directory.
//!
//! A start that is not given a journal or vault, or another one, or an emptied one, has to notice
//! that something is missing. So a volume is on record from before its first write that only the
//! journal, or a dump that is yet to be made, would keep, until its disk has everything. A file is
//! named after the journal's identity, or after the vault's number, which stays whatever is dumped
//! to it:
//!
//! ```text
//! vault /fast/vault
//! relies vm
//! void database
//! lines 2
//! ```
//!
//! What the vault holds of a volume that is `void` is older than the volume's disk: the volume was
//! served without it. For a journal its failure says that ([`crate::marks`]). A file without the
//! last line, or with another number there, is about every volume. Nothing changes it but
//! somebody's hand.

mod daemon;

pub(crate) use daemon::{GivenUp, Reliances};

use crate::marks;
use forebay_runtime::JournalId;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Files are read, changed and replaced one at a time.
static CHANGING: Mutex<()> = Mutex::new(());

/// What may come to hold the newest of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The journal with this identity.
    Journal(JournalId),
    /// The vault with this number.
    Vault(u64),
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Journal,
    Vault,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "journal",
            Self::Vault => "vault",
        })
    }
}

impl Holder {
    const fn kind(self) -> Kind {
        match self {
            Self::Journal(_) => Kind::Journal,
            Self::Vault(_) => Kind::Vault,
        }
    }

    /// Where it is on record who relies on it.
    fn path(self, state_dir: &Path) -> PathBuf {
        state_dir.join(match self {
            Self::Journal(id) => format!("journal-{id}.relied"),
            Self::Vault(number) => format!("vault-{number:016x}.relied"),
        })
    }

    /// The one that a file is named after.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".relied")?;
        if let Some(id) = name.strip_prefix("journal-") {
            let bytes = u128::from_str_radix(id, 16).ok()?.to_be_bytes();
            return Some(Self::Journal(JournalId(bytes)));
        }
        u64::from_str_radix(name.strip_prefix("vault-")?, 16).ok().map(Self::Vault)
    }
}

/// What is on record of one journal or vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reliance {
    /// What it was called.
    name: String,
    relies: Vec<String>,
    void: Vec<String>,
}

impl Reliance {
    /// Reads what is on record; nothing where there is no file.
    fn read(path: &Path, kind: Kind) -> io::Result<Self> {
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        Self::parse(&text, kind).ok_or_else(|| {
            let message = format!(
                "{} is damaged; move it away if no {kind} of this server is needed any more",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    fn parse(text: &str, kind: Kind) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.lines();
        let (word, name) = lines.next()?.split_once(' ')?;
        if word != kind.to_string() {
            return None;
        }
        let count: usize = lines.next_back()?.strip_prefix("lines ")?.parse().ok()?;
        let mut reliance = Self { name: name.to_owned(), ..Self::default() };
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
    fn write(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let count = self.relies.len() + self.void.len();
        if count == 0 {
            return marks::take_away(path);
        }
        let mut text = format!("{kind} {}\n", self.name);
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
        Ok(Self::read(&Holder::Vault(vault).path(state_dir), Kind::Vault)?.void)
    }

    /// The name of the journal or vault, other than this one, in which the newest of a volume may
    /// be. A record that can't be read is about every volume.
    pub(crate) fn elsewhere(
        state_dir: &Path,
        kind: Kind,
        volume: &str,
        open: Option<Holder>,
    ) -> Option<String> {
        let others =
            Self::all(state_dir, kind).into_iter().filter(|(other, _)| Some(*other) != open);
        let mut names = others.filter_map(|(holder, record)| match record {
            Ok(record) => {
                let relies = record.relies.iter().any(|name| name == volume);
                (relies && !is_given_up(state_dir, holder, volume)).then_some(record.name)
            }
            Err(error) => {
                tracing::error!("{error}");
                let path = holder.path(state_dir);
                Some(format!("unknown, as {} can't be read", path.display()))
            }
        });
        names.next()
    }

    /// The volumes that rely on what has this name, whichever it is.
    fn relying_on(state_dir: &Path, kind: Kind, name: &str) -> Vec<String> {
        let records = Self::all(state_dir, kind).into_iter();
        let records = records.filter_map(|(holder, record)| Some((holder, record.ok()?)));
        let named = records.filter(|(_, record)| record.name == name);
        let relying = named.flat_map(|(holder, record)| {
            record.relies.into_iter().filter(move |volume| !is_given_up(state_dir, holder, volume))
        });
        relying.collect()
    }

    /// A volume relies on this from now on.
    fn rely(state_dir: &Path, holder: Holder, name: &str, volume: &str) -> io::Result<()> {
        Self::change(state_dir, holder, |record| {
            name.clone_into(&mut record.name);
            without(&mut record.void, volume);
            if !record.relies.iter().any(|name| name == volume) {
                record.relies.push(volume.to_owned());
            }
        })
    }

    /// A volume does not rely on this any more.
    ///
    /// # Errors
    /// When that can't be made durable.
    pub(crate) fn release(state_dir: &Path, holder: Holder, volume: &str) -> io::Result<()> {
        Self::change(state_dir, holder, |record| {
            without(&mut record.relies, volume);
        })
    }

    fn all(state_dir: &Path, kind: Kind) -> Vec<(Holder, io::Result<Self>)> {
        let Ok(entries) = std::fs::read_dir(state_dir) else { return Vec::new() };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let holders = paths.iter().filter_map(|path| Holder::of(path));
        let holders = holders.filter(|holder| holder.kind() == kind);
        holders.map(|holder| (holder, Self::read(&holder.path(state_dir), kind))).collect()
    }

    fn change(state_dir: &Path, holder: Holder, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, kind) = (holder.path(state_dir), holder.kind());
        let before = Self::read(&path, kind)?;
        let mut after = before.clone();
        change(&mut after);
        if after == before { Ok(()) } else { after.write(&path, kind) }
    }
}

/// Whether a journal has failed while the volume was served, so that its records are void. A mark
/// that can't be read gives nothing up.
fn is_given_up(state_dir: &Path, holder: Holder, volume: &str) -> bool {
    let Holder::Journal(id) = holder else { return false };
    let mark = marks::read(&marks::path_of(state_dir, &id.to_string()));
    mark.is_ok_and(|mark| mark.is_some_and(|mark| mark.voids(volume)))
}

fn without(names: &mut Vec<String>, name: &str) -> bool {
    let count = names.len();
    names.retain(|other| other != name);
    names.len() < count
}

#[cfg(test)]
mod tests;
