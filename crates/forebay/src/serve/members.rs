//! The record of who holds all of a mirrored journal: a file in the state directory, named after
//! the journal's identity.
//!
//! It is replaced as a whole, durably, before anything is acknowledged without a device. A start
//! that finds one device alone believes it only if it is listed here, so a device that was left
//! behind is never taken for the journal.

use forebay_runtime::{JournalId, MemberRecord};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The records in a state directory.
pub(crate) struct Members {
    pub(crate) state_dir: PathBuf,
}

impl Members {
    fn path(&self, journal: JournalId) -> PathBuf {
        self.state_dir.join(format!("journal-{journal}.members"))
    }
}

impl MemberRecord for Members {
    fn members(&self, journal: JournalId) -> Vec<u64> {
        let text = std::fs::read_to_string(self.path(journal)).unwrap_or_default();
        // A record that can't be read lists nobody, and nobody alone is believed then.
        text.lines().filter_map(|line| u64::from_str_radix(line, 16).ok()).collect()
    }

    fn record(&self, journal: JournalId, members: &[u64]) -> io::Result<()> {
        let path = self.path(journal);
        let fresh = path.with_extension("members.new");
        let mut file = File::create(&fresh)?;
        for member in members {
            writeln!(file, "{member:016x}")?;
        }
        file.sync_all()?;
        std::fs::rename(&fresh, &path)?;
        let directory = path.parent().unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_what_was_recorded_last() {
        let directory = tempfile::tempdir().unwrap();
        let members = Members { state_dir: directory.path().to_owned() };
        let (one, other) = (JournalId([1; 16]), JournalId([2; 16]));
        assert!(members.members(one).is_empty());
        members.record(one, &[7, u64::MAX]).unwrap();
        assert_eq!(members.members(one), [7, u64::MAX]);
        assert!(members.members(other).is_empty());
        members.record(one, &[7]).unwrap();
        assert_eq!(members.members(one), [7]);
        std::fs::remove_dir_all(directory.path()).unwrap();
        assert!(members.record(one, &[7]).is_err());
    }
}
