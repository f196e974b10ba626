//! Reliance records: which volumes rely on which journals and vaults, kept in the state directory.
//!
//! They let a start detect that a journal or vault is missing, was replaced or was wiped. A volume
//! is recorded before its first write that only the journal or a future dump would preserve, and
//! removed once its disk has all acknowledged data. Each journal or vault has one file, named after
//! the journal's identity or the vault's number, which no dump changes:
//!
//! ```text
//! vault /fast/vault
//! relies vm
//! void database
//! lines 2
//! ```
//!
//! For a `void` volume, the vault's data is older than the disk, because the volume was served
//! without the vault. For a journal, the failure mark records that instead ([`marks`]). If
//! the last line is missing or its count is wrong, the record is damaged: it then applies to every
//! volume, and only an operator may change or remove the file.

use crate::StateFile;
use crate::marks;
use crate::state_file;
use forebay_format::journal::JournalId;
use std::fmt;
use std::io;
use std::path::Path;

/// A journal or vault that may hold the newest data of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The journal with this identity.
    Journal(JournalId),
    /// The vault with this number.
    Vault(u64),
}

/// The kind of a [`Holder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A journal.
    Journal,
    /// A vault.
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

    /// Its reliance record.
    pub fn record(self, state_dir: &Path) -> StateFile {
        StateFile::record(state_dir.join(match self {
            Self::Journal(id) => format!("journal-{id}.relied"),
            Self::Vault(number) => format!("vault-{number:016x}.relied"),
        }))
    }

    /// Parses the holder from the name of a record file.
    fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".relied")?;
        if let Some(id) = name.strip_prefix("journal-") {
            let bytes = u128::from_str_radix(id, 16).ok()?.to_be_bytes();
            return Some(Self::Journal(JournalId(bytes)));
        }
        u64::from_str_radix(name.strip_prefix("vault-")?, 16).ok().map(Self::Vault)
    }
}

/// The reliance record of one journal or vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reliance {
    /// The name under which the journal or vault was last configured.
    pub name: String,
    /// The volumes that rely on it.
    pub relies: Vec<String>,
    /// The volumes whose data in it is older than their disks.
    pub void: Vec<String>,
}

impl Reliance {
    /// Reads the record of a holder; returns an empty one if the file does not exist.
    fn read(state_dir: &Path, holder: Holder) -> io::Result<Self> {
        let record = holder.record(state_dir);
        Self::from_text(record.read_text()?, holder.kind(), record.path())
    }

    fn from_text(text: Option<String>, kind: Kind, path: &Path) -> io::Result<Self> {
        let Some(text) = text else { return Ok(Self::default()) };
        Self::parse(&text, kind).ok_or_else(|| {
            let message = format!(
                "reliance record {} is damaged: move it away if the data in this server's \
                 {kind}s is no longer needed",
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

    /// The content of the file; nothing if the record is empty.
    fn to_text(&self, kind: Kind) -> String {
        let count = self.relies.len() + self.void.len();
        if count == 0 {
            return String::new();
        }
        let mut text = format!("{kind} {}\n", self.name);
        self.relies.iter().for_each(|name| text += &format!("relies {name}\n"));
        self.void.iter().for_each(|name| text += &format!("void {name}\n"));
        text + &format!("lines {count}\n")
    }

    /// The volumes whose data in this vault is older than their disks.
    ///
    /// # Errors
    /// Fails if the record exists but cannot be read.
    pub fn void_in(state_dir: &Path, vault: u64) -> io::Result<Vec<String>> {
        Ok(Self::read(state_dir, Holder::Vault(vault))?.void)
    }

    /// Returns true if the record says that the volume relies on this holder.
    ///
    /// # Errors
    /// Fails if the record exists but cannot be read.
    pub fn includes(state_dir: &Path, holder: Holder, volume: &str) -> io::Result<bool> {
        let record = Self::read(state_dir, holder)?;
        Ok(record.relies.iter().any(|name| name == volume))
    }

    /// The name of a journal or vault other than `open` that may hold the volume's newest data. An
    /// unreadable record or directory applies to every volume.
    pub fn elsewhere(
        state_dir: &Path,
        kind: Kind,
        volume: &str,
        open: Option<Holder>,
    ) -> Option<String> {
        let records = match Self::all(state_dir, kind) {
            Ok(records) => records,
            Err(error) => {
                let path = state_dir.display();
                tracing::error!(%path, %error, "cannot read the state directory");
                return Some(format!("unknown (cannot read {path})"));
            }
        };
        let others = records.into_iter().filter(|(other, _)| Some(*other) != open);
        let mut names = others.filter_map(|(holder, record)| match record {
            Ok(record) => {
                let relies = record.relies.iter().any(|name| name == volume);
                (relies && !is_given_up(state_dir, holder, volume)).then_some(record.name)
            }
            Err(error) => {
                tracing::error!(%error, "cannot read reliance record");
                Some(format!("unknown (cannot read {})", holder.record(state_dir).path().display()))
            }
        });
        names.next()
    }

    /// The volumes that rely on any journal or vault configured under this name.
    pub fn relying_on(state_dir: &Path, kind: Kind, name: &str) -> io::Result<Vec<String>> {
        let records = Self::all(state_dir, kind)?.into_iter();
        let records = records.filter_map(|(holder, record)| Some((holder, record.ok()?)));
        let named = records.filter(|(_, record)| record.name == name);
        let relying = named.flat_map(|(holder, record)| {
            record.relies.into_iter().filter(move |volume| !is_given_up(state_dir, holder, volume))
        });
        Ok(relying.collect())
    }

    /// Records that volumes rely on this holder, in one write.
    pub fn rely(state_dir: &Path, holder: Holder, name: &str, volumes: &[&str]) -> io::Result<()> {
        Self::change(state_dir, holder, |record| {
            name.clone_into(&mut record.name);
            for &volume in volumes {
                remove_name(&mut record.void, volume);
                if !record.relies.iter().any(|name| name == volume) {
                    record.relies.push(volume.to_owned());
                }
            }
        })
    }

    /// Records that a volume no longer relies on this holder.
    ///
    /// # Errors
    /// Fails if the record cannot be read or durably written.
    pub fn release(state_dir: &Path, holder: Holder, volume: &str) -> io::Result<()> {
        Self::change(state_dir, holder, |record| {
            remove_name(&mut record.relies, volume);
        })
    }

    /// The records of a state directory; none if it does not exist.
    pub fn all(state_dir: &Path, kind: Kind) -> io::Result<Vec<(Holder, io::Result<Self>)>> {
        let paths = state_file::list(state_dir)?;
        let holders = paths.iter().filter_map(|path| Holder::from_path(path));
        let holders = holders.filter(|holder| holder.kind() == kind);
        Ok(holders.map(|holder| (holder, Self::read(state_dir, holder))).collect())
    }

    /// Changes the record of a holder durably. An empty record is removed.
    ///
    /// # Errors
    /// Fails if the record cannot be read or durably written.
    pub fn change(
        state_dir: &Path,
        holder: Holder,
        change: impl FnOnce(&mut Self),
    ) -> io::Result<()> {
        let (record, kind) = (holder.record(state_dir), holder.kind());
        record.change(|text| {
            let before = Self::from_text(text, kind, record.path())?;
            let mut after = before.clone();
            change(&mut after);
            Ok((after != before).then(|| after.to_text(kind)))
        })
    }
}

/// Returns true if the holder is a journal that failed while the volume was served, which voids its
/// records. An unreadable failure mark voids nothing.
fn is_given_up(state_dir: &Path, holder: Holder, volume: &str) -> bool {
    let Holder::Journal(id) = holder else { return false };
    let mark = marks::read(&marks::of_journal(state_dir, &id.to_string()));
    mark.is_ok_and(|mark| mark.is_some_and(|mark| mark.voids(volume)))
}

/// Removes a name; returns true if it was there.
pub fn remove_name(names: &mut Vec<String>, name: &str) -> bool {
    let count = names.len();
    names.retain(|other| other != name);
    names.len() < count
}
