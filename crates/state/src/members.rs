//! The members of a mirrored journal: a file in the state directory, named after the journal's
//! identity, that lists the devices with every acknowledged record.
//!
//! The file is atomically and durably replaced before the acknowledgement of a write that one
//! device lacks. A start with only one device uses it only if the file lists it, so a stale device
//! is never used alone.

use crate::StateFile;
use forebay_format::journal::JournalId;
use std::io;
use std::path::PathBuf;

/// The member records in a state directory.
pub struct Members {
    /// The state directory.
    pub state_dir: PathBuf,
}

impl Members {
    /// The recorded members of a journal.
    pub fn members(&self, journal: JournalId) -> Vec<u64> {
        // An unreadable record lists no member, so no device is used alone.
        let text = self.file(journal).read_text().ok().flatten().unwrap_or_default();
        text.lines().filter_map(|line| u64::from_str_radix(line, 16).ok()).collect()
    }

    /// Replaces the recorded members durably.
    ///
    /// # Errors
    /// Fails if the directory cannot be written.
    pub fn record(&self, journal: JournalId, members: &[u64]) -> io::Result<()> {
        let text: String = members.iter().map(|member| format!("{member:016x}\n")).collect();
        let file = self.file(journal);
        let is_new = !file.path().try_exists()?;
        file.replace(&text)?;
        // The loss of a member is recorded on a full file system too.
        if is_new { file.reserve() } else { Ok(()) }
    }

    fn file(&self, journal: JournalId) -> StateFile {
        StateFile::record(self.state_dir.join(format!("journal-{journal}.members")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_replaces_the_previous_one() {
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
