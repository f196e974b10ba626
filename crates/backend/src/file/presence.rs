//! Checks that the path of an open file still leads to it.
//!
//! An open file stays usable after its name is removed: writes succeed, but no later process finds
//! them. So the name is regularly compared with the file.

use super::ability;
use super::open::{FileError, check_size};
use crate::file::store::FileStore;
use crate::{Description, Displaced};
use rustix::fs::{Access, AtFlags, CWD, Mode, SeekFrom};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The state of the file when it was opened.
pub(super) struct FilePresence {
    /// Absolute, as the working directory may change.
    path: PathBuf,
    is_writable: bool,
    /// Whether its mode has any write permission.
    has_write_permission: bool,
}

/// All write permissions of a file's mode.
const WRITE_MODE: Mode = Mode::WUSR.union(Mode::WGRP).union(Mode::WOTH);

impl FilePresence {
    /// Records the state of the file opened at `path`.
    pub(super) fn new(path: &Path, store: &FileStore, is_writable: bool) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mode = rustix::fs::fstat(&store.file).map(|stat| Mode::from_raw_mode(stat.st_mode));
        let has_write_permission = mode.is_ok_and(|mode| mode.intersects(WRITE_MODE));
        Self { path, is_writable, has_write_permission }
    }

    /// Compares the file with the current target of its path. If the path cannot be examined, the
    /// file counts as present: such a file system also fails reads and writes.
    pub(super) fn check(&self, store: &FileStore) -> Result<(), Displaced> {
        let current = match rustix::fs::stat(&self.path) {
            Ok(current) => current,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(lost(store)),
            Err(_) => return Ok(()),
        };
        let Ok(ours) = rustix::fs::fstat(&store.file) else { return Ok(()) };
        let is_same = match store.is_block {
            true => current.st_rdev == ours.st_rdev,
            false => (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino),
        };
        let of_type = |mode| rustix::fs::FileType::from_raw_mode(mode);
        if !is_same || of_type(current.st_mode) != of_type(ours.st_mode) {
            return Err(Displaced::Replaced);
        }
        if store.is_block && is_unplugged(ours.st_rdev) {
            return Err(Displaced::Deleted);
        }
        match rustix::fs::seek(&store.file, SeekFrom::End(0)) {
            Ok(bytes) if bytes < store.size.bytes() => return Err(Displaced::Shrunk { bytes }),
            _ => {}
        }
        let mode = Mode::from_raw_mode(ours.st_mode);
        let has_lost_permission = self.has_write_permission && !mode.intersects(WRITE_MODE);
        if self.is_writable && (has_lost_permission || self.is_read_only(store)) {
            return Err(Displaced::ReadOnly);
        }
        Ok(())
    }

    /// The present size of the file in bytes, as an open would find it.
    pub(super) fn measure(
        &self,
        store: &FileStore,
        description: &Description,
    ) -> Result<u64, FileError> {
        let file = &store.file;
        let asked = rustix::fs::fstat(file)
            .and_then(|stat| Ok((stat, rustix::fs::seek(file, SeekFrom::End(0))?)));
        let (stat, bytes) = asked.map_err(|source| {
            let path = self.path.clone();
            FileError::System { path, call: "fstat or lseek", source }
        })?;
        check_size(&self.path, &stat, bytes)?;
        ability::check(&self.path, file, &stat, bytes, description.read_only)?;
        let is_block = store.is_block;
        Ok(bytes - ability::bytes_beyond_blocks(&self.path, file, is_block, bytes))
    }

    /// Whether the system would refuse to open it for writing.
    fn is_read_only(&self, store: &FileStore) -> bool {
        let access = rustix::fs::accessat(CWD, &self.path, Access::WRITE_OK, AtFlags::EACCESS);
        let is_refused = matches!(access, Err(Errno::ROFS | Errno::PERM | Errno::ACCESS));
        is_refused || store.is_block && is_read_only_device(store)
    }
}

/// How a store without its name is displaced.
fn lost(store: &FileStore) -> Displaced {
    let still_there = rustix::fs::fstat(&store.file).is_ok_and(|ours| match store.is_block {
        true => !is_unplugged(ours.st_rdev),
        false => ours.st_nlink > 0,
    });
    if still_there { Displaced::Moved } else { Displaced::Deleted }
}

/// Whether the kernel no longer has the device, although its node exists.
fn is_unplugged(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let devices = Path::new("/sys/dev/block");
    devices.is_dir() && !devices.join(format!("{major}:{minor}")).exists()
}

fn is_read_only_device(store: &FileStore) -> bool {
    let Ok(stat) = rustix::fs::fstat(&store.file) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let setting = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    setting.is_ok_and(|text| text.trim() == "1")
}
