//! The tenures in which this host has owned the disks of volumes: a file for each in the state
//! directory, with the number that the disk remembers as well.
//!
//! It is written once the volume has all data that this host, or an owner before it, has left, and
//! before a client can write. So what this host has of the volume elsewhere is at least as new as
//! the disk if the disk says that nobody has followed.

use crate::{StateFile, identity};
use std::io;
use std::path::PathBuf;

/// The tenure records in a state directory.
pub struct Tenures {
    /// The state directory.
    pub state_dir: PathBuf,
}

impl Tenures {
    /// The number of the tenure in which this host has last served a volume.
    ///
    /// # Errors
    /// The record cannot be read, or says something else.
    pub fn last(&self, name: &str, backing: &str) -> io::Result<Option<u64>> {
        let file = self.file(name, backing);
        let Some(text) = file.read_text()? else { return Ok(None) };
        u64::from_str_radix(text.trim(), 16).map(Some).map_err(|_| {
            let message = format!("'{}' is not the record of a tenure", file.path().display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    /// Records the tenure in which this host serves a volume from now on, durably.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn record(&self, name: &str, backing: &str, tenure: u64) -> io::Result<()> {
        self.file(name, backing).replace(format!("{tenure:x}\n"))
    }

    fn file(&self, name: &str, backing: &str) -> StateFile {
        let id: String = identity(name, backing).iter().map(|it| format!("{it:02x}")).collect();
        StateFile::record(self.state_dir.join(format!("{id}.tenure")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tenure_of_each_disk_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let tenures = Tenures { state_dir: directory.path().to_owned() };
        assert_eq!(tenures.last("v", "/dev/sdb").unwrap(), None);
        tenures.record("v", "/dev/sdb", 7).unwrap();
        tenures.record("v", "/dev/sdb", u64::MAX).unwrap();
        assert_eq!(tenures.last("v", "/dev/sdb").unwrap(), Some(u64::MAX));
        assert_eq!(tenures.last("v", "/dev/sdc").unwrap(), None);
        std::fs::write(tenures.file("v", "/dev/sdb").path(), "later").unwrap();
        let error = tenures.last("v", "/dev/sdb").unwrap_err().to_string();
        assert!(error.ends_with(".tenure' is not the record of a tenure"), "{error}");
    }
}
