//! Failure marks: records of failed journals in the state directory.
//!
//! After a journal fails, its volumes continue without it. Its records of them are then older than
//! their disks, even if the device becomes readable again. The mark is a file that is named after
//! the journal and lists these volumes. The journal's records of other volumes, which were not
//! served at the time, are still current.
//!
//! ```text
//! failed at 1795329000 (seconds since 1970): input/output error
//! volume vm
//! volume database
//! volumes 2
//! ```
//!
//! If the last line is missing or its count is wrong, the mark applies to all volumes.
//!
//! After a clean shutdown, a line `settled` precedes the last one: the disks have all acknowledged
//! data, so the journal holds nothing that a rescue could need.

use crate::StateFile;
use crate::state_file;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// The line in a mark which says that the volumes' disks have all acknowledged data.
const SETTLED: &str = "settled";

/// A failure mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The time and cause of the failure, as text.
    pub reason: String,
    /// The volumes whose records are void; `None` for all volumes.
    pub volumes: Option<Vec<String>>,
    /// The disks of these volumes have all acknowledged data.
    pub is_settled: bool,
}

impl Mark {
    /// Returns true if the journal's records of this volume are void.
    pub fn voids(&self, volume: &str) -> bool {
        self.volumes.as_ref().is_none_or(|names| names.iter().any(|name| name == volume))
    }
}

/// The failure mark of a journal.
pub fn of_journal(state_dir: &Path, journal: &str) -> StateFile {
    StateFile::record(state_dir.join(format!("journal-{journal}.failed")))
}

/// The mark that voids a dump whose vault could not be emptied.
pub fn of_dump(state_dir: &Path, dump: &str) -> StateFile {
    StateFile::record(state_dir.join(format!("vault-{dump}.void")))
}

/// Reads a mark; returns `None` if there is none.
///
/// # Errors
/// Fails if the mark exists but cannot be read.
pub fn read(file: &StateFile) -> io::Result<Option<Mark>> {
    Ok(file.read_text()?.as_deref().map(parse))
}

fn parse(text: &str) -> Mark {
    let reason = text.lines().next().unwrap_or_default().to_owned();
    let lines = || text.lines().skip(1);
    let names: Vec<String> =
        lines().filter_map(|line| line.strip_prefix("volume ")).map(str::to_owned).collect();
    let count = lines().last().and_then(|line| line.strip_prefix("volumes ")?.parse().ok());
    let is_whole = text.ends_with('\n') && count == Some(names.len());
    let is_settled = is_whole && lines().any(|line| line == SETTLED);
    Mark { reason, volumes: is_whole.then_some(names), is_settled }
}

fn text_of(Mark { reason, volumes, is_settled }: &Mark) -> String {
    let mut text = format!("{reason}\n");
    if let Some(names) = volumes {
        names.iter().for_each(|name| text += &format!("volume {name}\n"));
        if *is_settled {
            text += &format!("{SETTLED}\n");
        }
        text += &format!("volumes {}\n", names.len());
    }
    text
}

/// Durably writes a failure mark. Volumes of an existing mark are kept.
///
/// # Errors
/// Fails if an existing mark cannot be read or the directory cannot be written.
pub fn put(file: &StateFile, reason: &str, volumes: &[String]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let reason = format!("failed at {} (seconds since 1970): {reason}", now.as_secs());
    file.change(|text| {
        let mut names = volumes.to_vec();
        let is_about_all = match text.as_deref().map(parse) {
            None => false,
            Some(Mark { volumes: None, .. }) => true,
            // A write that nothing needs would fail on a full file system.
            Some(Mark { volumes: Some(earlier), is_settled: false, .. })
                if volumes.iter().all(|name| earlier.contains(name)) =>
            {
                return Ok(None);
            }
            Some(Mark { volumes: Some(earlier), .. }) => {
                names.extend(earlier);
                false
            }
        };
        names.sort();
        names.dedup();
        let volumes = (!is_about_all).then_some(names);
        Ok(Some(text_of(&Mark { reason, volumes, is_settled: false })))
    })
}

/// Adds the `settled` line to a mark: the disks of its volumes have all acknowledged data. A mark
/// that applies to all volumes is left unchanged.
///
/// # Errors
/// Fails if the mark cannot be read or the directory cannot be written.
pub fn settle(file: &StateFile) -> io::Result<()> {
    file.change(|text| {
        let mark = text.as_deref().map(parse);
        let mark = mark.filter(|mark| mark.volumes.is_some() && !mark.is_settled);
        Ok(mark.map(|mark| text_of(&Mark { is_settled: true, ..mark })))
    })
}

/// Settles the marks of all journals whose volumes are all among `names`.
///
/// # Errors
/// Fails if the directory or a mark cannot be read or written.
pub fn settle_all_of(state_dir: &Path, names: &[&str]) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    for path in state_file::list(state_dir)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("journal-") || !name.ends_with(".failed") {
            continue;
        }
        let file = StateFile::record(path);
        let volumes = read(&file)?.and_then(|mark| mark.volumes);
        if volumes.is_some_and(|all| all.iter().all(|volume| names.contains(&&**volume))) {
            settle(&file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_second_failure_adds_volumes_to_the_mark() {
        let directory = tempfile::tempdir().unwrap();
        let file = of_journal(directory.path(), "abcd");
        assert_eq!(read(&file).unwrap(), None);
        put(&file, "input/output error", &names(&["b", "a volume"])).unwrap();
        let mark = read(&file).unwrap().unwrap();
        assert!(mark.reason.contains("input/output error"), "{mark:?}");
        assert!(mark.voids("a volume") && mark.voids("b") && !mark.voids("volume"));
        put(&file, "no space", &names(&["c", "b"])).unwrap();
        let mark = read(&file).unwrap().unwrap();
        assert_eq!(mark.volumes, Some(names(&["a volume", "b", "c"])));
        assert!(put(&StateFile::record(directory.path().join("no/such")), "", &[]).is_err());
    }

    #[test]
    fn a_mark_is_settled_until_the_next_failure() {
        let directory = tempfile::tempdir().unwrap();
        let file = of_journal(directory.path(), "abcd");
        settle(&file).unwrap();
        assert_eq!(read(&file).unwrap(), None, "settling creates no mark");
        put(&file, "input/output error", &names(&["a", "settled"])).unwrap();
        assert!(!read(&file).unwrap().unwrap().is_settled);
        settle(&file).unwrap();
        let mark = read(&file).unwrap().unwrap();
        assert!(mark.is_settled && mark.voids("a") && mark.reason.contains("output error"));
        put(&file, "no space", &names(&["b"])).unwrap();
        let mark = read(&file).unwrap().unwrap();
        assert!(!mark.is_settled && mark.voids("a") && mark.voids("b"));
        std::fs::write(file.path(), "failed\n").unwrap();
        settle(&file).unwrap();
        assert!(!read(&file).unwrap().unwrap().is_settled, "a mark about all volumes stays");
    }

    #[test]
    fn an_incomplete_mark_applies_to_all_volumes() {
        for text in [
            "failed at 1 (seconds since 1970): input/output error\n",
            "",
            "failed\nvolume a\nvolumes 2\n",
            "failed\nvolume a\nvolumes 1",
            "failed\nvolume a\n",
        ] {
            assert_eq!(parse(text).volumes, None, "{text:?}");
            assert!(parse(text).voids("any"));
        }
        assert_eq!(parse("failed\nvolumes 0\n").volumes, Some(Vec::new()));
        let directory = tempfile::tempdir().unwrap();
        let file = of_journal(directory.path(), "abcd");
        std::fs::write(file.path(), "failed\n").unwrap();
        put(&file, "again", &names(&["a"])).unwrap();
        assert_eq!(
            read(&file).unwrap().unwrap().volumes,
            None,
            "the first mark applied to all volumes"
        );
    }
}
