//! The warm lists of volumes, as files of the state directory.

use crate::identity::identity;
use crate::marks;
use forebay_runtime::WarmLists;
use forebay_types::Bytes;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The warm lists in a state directory.
pub(super) struct StateWarmLists {
    state_dir: PathBuf,
}

impl StateWarmLists {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned() }
    }

    fn path_of(&self, volume: &str) -> PathBuf {
        self.state_dir.join(format!("warm-{}.list", file_name(volume)))
    }
}

/// The part of a file name that stands for a volume. It is a checksum, because the name of a volume
/// need not be a valid file name. If two volumes have the same checksum, each ignores the other's
/// file.
pub(super) fn file_name(volume: &str) -> String {
    identity(volume, "")[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file of at most `bytes_max` bytes. `None` if there is none.
///
/// # Errors
/// When it cannot be read, or with [`ErrorKind::FileTooLarge`].
pub(super) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!("it is longer than {}", Bytes(bytes_max));
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(Some(bytes))
}

/// Removes a file, if there is one.
///
/// # Errors
/// When it cannot be removed.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() { marks::remove(path) } else { Ok(()) }
}

impl WarmLists for StateWarmLists {
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        read_file(&self.path_of(volume), bytes_max)
    }

    fn write(&self, volume: &str, list: &[u8]) -> io::Result<()> {
        marks::replace(&self.path_of(volume), list)
    }

    fn remove(&self, volume: &str) -> io::Result<()> {
        remove_file(&self.path_of(volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_kept_by_volume_and_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let lists = StateWarmLists::new(directory.path());
        assert_eq!(lists.read("a", 9).unwrap(), None);
        lists.write("a", b"of a").unwrap();
        lists.write("a/../b", b"of b").unwrap();
        lists.write("a", b"a again").unwrap();
        assert_eq!(lists.read("a", 7).unwrap().unwrap(), b"a again");
        assert_eq!(lists.read("a/../b", 9).unwrap().unwrap(), b"of b");
        assert_eq!(lists.read("a", 6).unwrap_err().to_string(), "it is longer than 6 B");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file");
        lists.remove("a").unwrap();
        lists.remove("a").unwrap();
        assert_eq!(lists.read("a", 9).unwrap(), None);
        let gone = StateWarmLists::new(&directory.path().join("gone"));
        assert_eq!(gone.read("a", 9).unwrap(), None);
        assert!(gone.write("a", b"list").is_err());
    }
}
