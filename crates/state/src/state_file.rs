//! The files of the state directory: read whole, replaced whole, and removed, durably.
//!
//! After a crash there is the old content or the new one: a replacement is written beside the file,
//! to `NAME.new`, and renamed. An error names the file, because it may be all that a status shows.
//!
//! A **record** can also be written when the file system is full. Its `NAME.new` is a spare whose
//! blocks are reserved in advance. A write goes to the spare; then the two exchange their names, so
//! that the former record is the next spare. A record that exists can therefore be replaced any
//! number of times without free space, and one that does not exist yet can be created once.
//!
//! The price: [`RESERVED_BYTES`] for each record. A file system that writes in new places, such as
//! btrfs, may need space for an exchange nevertheless, and one without `fallocate` reserves
//! nothing.

use crate::identity;
use forebay_types::Bytes;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The size of a spare: more than a record of 128 volumes with the longest names.
const RESERVED_BYTES: u64 = 64 << 10;

/// The permissions of a file that no other user may read.
const PRIVATE: u32 = 0o600;

/// Held while a file is read and replaced: several threads may add to one record.
static CHANGING: Mutex<()> = Mutex::new(());

/// A file of the state directory, which need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
    /// It can be replaced on a full file system too.
    is_record: bool,
    /// The permissions that it is created with, less those that the umask takes away.
    mode: u32,
}

impl StateFile {
    /// A file at this path.
    pub fn new(path: PathBuf) -> Self {
        Self { path, is_record: false, mode: 0o666 }
    }

    /// A file that no other user may read.
    pub fn private(path: PathBuf) -> Self {
        Self { mode: PRIVATE, ..Self::new(path) }
    }

    /// A record, which can be written when the file system is full.
    pub fn record(path: PathBuf) -> Self {
        Self { is_record: true, ..Self::new(path) }
    }

    /// A file about a volume. Its name has a checksum, because the name of a volume need not be a
    /// valid file name. If two volumes have the same checksum, each ignores the other's file.
    pub fn of_volume(directory: &Path, (kind, extension): (&str, &str), name: &str) -> Self {
        let sum: String = identity(name, "")[..8].iter().map(|it| format!("{it:02x}")).collect();
        Self::new(directory.join(format!("{kind}-{sum}.{extension}")))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or with [`ErrorKind::FileTooLarge`].
    pub fn read(&self, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let file = File::open(&self.path);
        match file.and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes)) {
            Ok(_) if bytes.len() as u64 <= bytes_max => Ok(Some(bytes)),
            Ok(_) => {
                let message = format!("it is longer than {}", Bytes(bytes_max));
                Err(self.named(io::Error::new(ErrorKind::FileTooLarge, message)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.named(error)),
        }
    }

    /// Reads a text; what is not UTF-8 in it is replaced. `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_text(&self) -> io::Result<Option<String>> {
        let bytes = self.read(u64::from(u32::MAX))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Reads what [`replace_entries`](Self::replace_entries) wrote. A missing or damaged file
    /// counts as empty, and a damaged entry as missing: they can be measured again.
    pub fn read_entries<T: DeserializeOwned>(&self) -> impl Iterator<Item = (String, T)> {
        let text = self.read_text().ok().flatten().unwrap_or_default();
        let entries: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        entries.into_iter().filter_map(|(name, entry)| Some((name, T::deserialize(entry).ok()?)))
    }

    /// Replaces the file by a JSON object.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn replace_entries<T: Serialize>(&self, entries: &BTreeMap<String, T>) -> io::Result<()> {
        // A `Value` has its keys in alphabetical order.
        let entries = serde_json::to_value(entries)?;
        self.replace(format!("{entries:#}\n"))
    }

    /// Atomically and durably replaces the file.
    ///
    /// # Errors
    /// Fails if the directory cannot be written.
    pub fn replace(&self, content: impl AsRef<[u8]>) -> io::Result<()> {
        self.write(content.as_ref()).map_err(|error| self.named(error))?;
        if self.is_record
            && let Err(error) = self.reserve()
        {
            tracing::warn!(%error, "cannot reserve space for the next write of a record");
        }
        Ok(())
    }

    fn write(&self, content: &[u8]) -> io::Result<()> {
        let new = self.new_path();
        if self.mode == PRIVATE {
            // One that another user has opened must not get the content.
            remove_one(&new)?;
        }
        let mut file = OpenOptions::new().write(true).create(true).mode(self.mode).open(&new)?;
        file.write_all(content)?;
        // Also where nothing is cut off, this would give back what is reserved beyond the end.
        if file.metadata()?.len() > content.len() as u64 {
            file.set_len(content.len() as u64)?;
        }
        file.sync_all()?;
        let flags = if self.is_record { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        match renameat_with(CWD, &new, CWD, &self.path, flags) {
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => fs::rename(&new, &self.path)?,
            renamed => renamed?,
        }
        sync_directory(&self.path)
    }

    /// Replaces the file by what `change` makes of its text. `None` leaves it unchanged, and an
    /// empty text removes it. One change of a file is made at a time.
    ///
    /// # Errors
    /// Fails with `change`, or if the file cannot be read, replaced or removed.
    pub fn change(
        &self,
        change: impl FnOnce(Option<String>) -> io::Result<Option<String>>,
    ) -> io::Result<()> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        match change(self.read_text()?)? {
            None => Ok(()),
            Some(text) if text.is_empty() => self.remove(),
            Some(text) => self.replace(text),
        }
    }

    /// Durably removes the file, if it exists, and its spare.
    ///
    /// # Errors
    /// Fails if the directory cannot be written.
    pub fn remove(&self) -> io::Result<()> {
        let removed = remove_one(&self.path)
            .and_then(|removed| Ok(removed | remove_one(&self.new_path())?))
            // A repetition makes the removal of a record durable too.
            .and_then(|removed| match self.is_record || removed {
                true => sync_directory(&self.path),
                false => Ok(()),
            });
        removed.map_err(|error| self.named(error))
    }

    /// Renames an unusable file, which a later version of the program may be able to read. Replaces
    /// one that was put aside earlier. Returns the new path.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn put_aside(&self) -> io::Result<PathBuf> {
        let Self { path: aside, .. } = self.aside();
        let moved = fs::rename(&self.path, &aside).and_then(|()| sync_directory(&aside));
        moved.map_err(|error| self.named(error))?;
        Ok(aside)
    }

    /// Where the file is put aside.
    pub fn aside(&self) -> Self {
        Self::new(self.path.with_extension("unusable"))
    }

    /// Durably reserves the blocks of the next write of a record.
    ///
    /// # Errors
    /// Fails if there is no space, or the directory cannot be written.
    pub fn reserve(&self) -> io::Result<()> {
        self.reserve_blocks().map_err(|error| self.named(error))
    }

    fn reserve_blocks(&self) -> io::Result<()> {
        let new = self.new_path();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(new)?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED_BYTES) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        file.sync_all()?;
        sync_directory(&self.path)
    }

    /// Removes the spare of a record that is not needed any more.
    pub fn unreserve(&self) {
        if let Err(error) = remove_one(&self.new_path()) {
            tracing::warn!(record = %self.path.display(), %error, "cannot remove a reserved file");
        }
    }

    fn new_path(&self) -> PathBuf {
        let mut new = self.path.as_os_str().to_owned();
        new.push(".new");
        new.into()
    }

    fn named(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

/// Removes a file; returns whether it existed.
fn remove_one(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// The paths in a state directory, in order; none if it does not exist.
///
/// # Errors
/// Fails if it cannot be read.
pub fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Makes the creation or removal of a file durable.
///
/// # Errors
/// Fails if its directory cannot be opened or synced.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn inode(path: &Path) -> u64 {
        path.metadata().unwrap().ino()
    }

    #[test]
    fn a_record_is_written_to_blocks_that_were_reserved_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let record = StateFile::record(path.clone());
        let spare = record.new_path();
        record.reserve().unwrap();
        let reserved = inode(&spare);
        assert!(spare.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES);
        record.replace("first, and longer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first, and longer");
        assert_eq!(inode(&path), reserved, "the reserved file was used");
        assert!(path.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES, "and kept its blocks");
        // From now on, two files take turns.
        let pair = [reserved, inode(&spare)];
        for turn in 1..5 {
            let content = "x".repeat(5 - turn);
            record.replace(&content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content.as_bytes());
            assert_eq!([inode(&path), inode(&spare)], [pair[turn % 2], pair[1 - turn % 2]]);
            assert!(spare.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES);
        }
        record.remove().unwrap();
        assert!(!path.exists() && !spare.exists());
        record.remove().unwrap();
    }

    #[test]
    fn an_error_names_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let record = StateFile::record(directory.path().join("no/such"));
        for error in [record.reserve(), record.replace(""), record.remove()] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("no/such: "), "{error}");
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        let directory = StateFile::new(directory.path().to_owned());
        for error in [directory.read(9).map(|_| ()), directory.replace(""), directory.remove()] {
            let path = directory.path().display().to_string();
            assert!(error.unwrap_err().to_string().starts_with(&path));
        }
    }

    #[test]
    fn files_are_kept_by_volume_replaced_as_a_whole_and_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let of = |volume| StateFile::of_volume(directory.path(), ("warm", "list"), volume);
        let (a, b) = (of("a"), of("a/../b"));
        let count = || list(directory.path()).unwrap().len();
        assert_eq!(a.read(9).unwrap(), None);
        assert!(a.put_aside().is_err());
        a.replace(b"a, and longer").unwrap();
        b.replace(b"of b").unwrap();
        a.replace(b"a again").unwrap();
        assert_eq!(a.read(7).unwrap().unwrap(), b"a again");
        assert_eq!(b.read(9).unwrap().unwrap(), b"of b");
        let error = a.read(6).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().ends_with(".list: it is longer than 6 B"), "{error}");
        assert_eq!(count(), 2, "no temporary file");
        for _ in 0..2 {
            a.replace(b"of a").unwrap();
            assert_eq!(fs::read(a.put_aside().unwrap()).unwrap(), b"of a");
            assert_eq!((a.read(9).unwrap(), count()), (None, 2));
        }
        for _ in 0..2 {
            a.aside().remove().unwrap();
            b.remove().unwrap();
            assert_eq!(count(), 0);
        }
        let gone = StateFile::new(directory.path().join("gone/file"));
        assert_eq!(gone.read(9).unwrap(), None);
        assert!(gone.remove().is_ok() && gone.replace(b"list").is_err());
        assert!(list(&directory.path().join("gone")).unwrap().is_empty());
    }

    #[test]
    fn a_private_file_is_for_the_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::private(directory.path().join("link"));
        fs::write(file.new_path(), "opened by another user").unwrap();
        let mut opened = File::open(file.new_path()).unwrap();
        file.replace("secret").unwrap();
        assert_eq!(file.path().metadata().unwrap().mode() & 0o777, 0o600);
        let mut text = String::new();
        opened.read_to_string(&mut text).unwrap();
        assert_eq!(text, "opened by another user");
    }
}
