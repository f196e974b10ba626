//! Records that can be written when the file system of the state directory is full.
//!
//! A record has a spare beside it, `NAME.new`, whose blocks are reserved in advance. A write goes
//! to the spare; then the two exchange their names, so that the former record is the next spare. A
//! record that exists can therefore be replaced any number of times without free space, and one
//! that does not exist yet can be created once.
//!
//! The price: [`RESERVED_BYTES`] for each record. A file system that writes in new places, such as
//! btrfs, may need space for an exchange nevertheless, and one without `fallocate` reserves
//! nothing.

use crate::marks::sync_directory;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The size of a spare: more than a record of 128 volumes with the longest names.
const RESERVED_BYTES: u64 = 64 << 10;

fn spare_of(path: &Path) -> PathBuf {
    let mut spare = path.as_os_str().to_owned();
    spare.push(".new");
    spare.into()
}

fn open_spare(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(spare_of(path))
}

/// Durably reserves the blocks of the next write of a record.
///
/// # Errors
/// Fails if there is no space, or the directory cannot be written.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    let reserved = || {
        let file = open_spare(path)?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED_BYTES) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        file.sync_all()?;
        sync_directory(path)
    };
    reserved().map_err(|error| of(path, &error))
}

/// Atomically and durably replaces a record. A torn mark or record would apply to all volumes.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(crate) fn replace(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, content.as_ref()).map_err(|error| of(path, &error))?;
    if let Err(error) = prepare(path) {
        tracing::warn!(%error, "cannot reserve space for the next write of a record");
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = open_spare(path)?;
    file.write_all(content)?;
    // Also where nothing is cut off, this would give back what is reserved beyond the end.
    if file.metadata()?.len() > content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    file.sync_all()?;
    let spare = spare_of(path);
    match renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => std::fs::rename(&spare, path)?,
        exchanged => exchanged?,
    }
    sync_directory(path)
}

/// Durably removes a record, if it exists, and its spare.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed =
        [path, &spare_of(path)].into_iter().try_for_each(|path| match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
    removed.and_then(|()| sync_directory(path)).map_err(|error| of(path, &error))
}

/// Removes the spare of a record that is not needed any more.
pub(crate) fn release(path: &Path) {
    if let Err(error) = std::fs::remove_file(spare_of(path))
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(record = %path.display(), %error, "cannot remove a reserved file");
    }
}

/// An error with the path that it is about: it may be all that a status shows.
fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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
        let spare = spare_of(&path);
        prepare(&path).unwrap();
        let reserved = inode(&spare);
        assert!(spare.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES);
        replace(&path, "first, and longer").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first, and longer");
        assert_eq!(inode(&path), reserved, "the reserved file was used");
        assert!(path.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES, "and kept its blocks");
        // From now on, two files take turns.
        let pair = [reserved, inode(&spare)];
        for turn in 1..5 {
            let content = "x".repeat(5 - turn);
            replace(&path, &content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes());
            assert_eq!([inode(&path), inode(&spare)], [pair[turn % 2], pair[1 - turn % 2]]);
            assert!(spare.metadata().unwrap().blocks() * 512 >= RESERVED_BYTES);
        }
        remove(&path).unwrap();
        assert!(!path.exists() && !spare.exists());
        remove(&path).unwrap();
    }

    #[test]
    fn an_error_names_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("no/such");
        for error in [prepare(&path), replace(&path, ""), remove(&path)] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("no/such: "), "{error}");
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }
}
