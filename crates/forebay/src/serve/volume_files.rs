//! The warm lists and access histories of volumes, as files of the state directory.

use forebay_runtime::{Histories, WarmLists};
use forebay_state::StateFile;
use std::io;
use std::path::PathBuf;

/// The files about volumes in a state directory.
pub(super) struct VolumeFiles(pub(super) PathBuf);

impl VolumeFiles {
    fn warm_list(&self, volume: &str) -> StateFile {
        StateFile::of_volume(&self.0, ("warm", "list"), volume)
    }

    fn history(&self, volume: &str) -> StateFile {
        StateFile::of_volume(&self.0, ("access", "history"), volume)
    }
}

impl WarmLists for VolumeFiles {
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        self.warm_list(volume).read(bytes_max)
    }

    fn write(&self, volume: &str, list: &[u8]) -> io::Result<()> {
        self.warm_list(volume).replace(list)
    }

    fn remove(&self, volume: &str) -> io::Result<()> {
        self.warm_list(volume).remove()
    }
}

impl Histories for VolumeFiles {
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        self.history(volume).read(bytes_max)
    }

    fn write(&self, volume: &str, history: &[u8]) -> io::Result<()> {
        self.history(volume).replace(history)
    }

    fn put_aside(&self, volume: &str) -> io::Result<String> {
        Ok(self.history(volume).put_aside()?.display().to_string())
    }

    fn remove(&self, volume: &str) -> io::Result<()> {
        self.history(volume).aside().remove()?;
        self.history(volume).remove()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_are_kept_by_volume_and_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let files = VolumeFiles(directory.path().to_owned());
        let histories: &dyn Histories = &files;
        let count = || std::fs::read_dir(directory.path()).unwrap().count();
        WarmLists::write(&files, "a", b"list of a").unwrap();
        histories.write("a", b"of a").unwrap();
        histories.write("b", b"of b").unwrap();
        let aside = histories.put_aside("a").unwrap();
        assert!(aside.ends_with(".unusable") && std::fs::read(aside).unwrap() == b"of a");
        histories.write("a", b"of a").unwrap();
        assert_eq!(count(), 4);
        for _ in 0..2 {
            histories.remove("a").unwrap();
            assert_eq!(count(), 2);
        }
        assert_eq!(histories.read("b", 9).unwrap().unwrap(), b"of b");
        assert_eq!(WarmLists::read(&files, "a", 9).unwrap().unwrap(), b"list of a");
    }
}
