//! The failure of a journal, on record in the state directory.
//!
//! Once a journal has failed its volumes go on without it, so what it holds of them is older than
//! their disks from then on, even if it reads well tomorrow. A file named after the journal says
//! so, and names these volumes: what the journal holds of others, which nobody served then, is
//! still the newest there is.
//!
//! ```text
//! failed at 1795329000 (seconds since 1970): input/output error
//! volume vm
//! volume database
//! volumes 2
//! ```
//!
//! A file without the last line, or with another number there, is about everything.
//!
//! After an orderly stop a line `settled` stands before the last: the disks have everything that
//! was acknowledged, so nothing in the journal is of use any more, not even to a rescue.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The line of a mark whose volumes' disks have everything.
const SETTLED: &str = "settled";

/// The failure of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// When and why, for people.
    pub(crate) reason: String,
    /// Whose records are void; `None` for everybody's.
    pub(crate) volumes: Option<Vec<String>>,
    /// The disks of these volumes have everything that was acknowledged.
    pub(crate) is_settled: bool,
}

impl Mark {
    /// Whether what the journal holds of this volume is void.
    pub(crate) fn voids(&self, volume: &str) -> bool {
        self.volumes.as_ref().is_none_or(|names| names.iter().any(|name| name == volume))
    }
}

/// Where the failure of the journal with this identity is on record.
pub(crate) fn path_of(state_dir: &Path, journal: &str) -> PathBuf {
    state_dir.join(format!("journal-{journal}.failed"))
}

/// Where the end of the dump with this identity is on record, as its vault could not be emptied.
pub(crate) fn void_path_of(state_dir: &Path, dump: &str) -> PathBuf {
    state_dir.join(format!("vault-{dump}.void"))
}

/// Reads a mark; `None` where there is none.
///
/// # Errors
/// When it is there and can't be read.
pub(crate) fn read(path: &Path) -> io::Result<Option<Mark>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(parse(&String::from_utf8_lossy(&bytes)))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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

/// Puts a failure on record, beside what is on record already, and makes it durable together with
/// its name.
///
/// # Errors
/// When the directory can't be written.
pub(crate) fn put(path: &Path, reason: &str, volumes: &[String]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut text = format!("failed at {} (seconds since 1970): {reason}\n", now.as_secs());
    let mut names = volumes.to_vec();
    let is_about_all = match read(path)? {
        None => false,
        Some(Mark { volumes: None, .. }) => true,
        Some(Mark { volumes: Some(earlier), .. }) => {
            names.extend(earlier);
            false
        }
    };
    names.sort();
    names.dedup();
    if !is_about_all {
        names.iter().for_each(|name| text += &format!("volume {name}\n"));
        text += &format!("volumes {}\n", names.len());
    }
    replace(path, &text)
}

/// Puts on record that the disks of all volumes that a mark names have everything. A mark about
/// everybody stays as it is.
///
/// # Errors
/// When the mark can't be read, or the directory can't be written.
pub(crate) fn settle(path: &Path) -> io::Result<()> {
    let Some(Mark { reason, volumes: Some(names), is_settled: false }) = read(path)? else {
        return Ok(());
    };
    let mut text = format!("{reason}\n");
    names.iter().for_each(|name| text += &format!("volume {name}\n"));
    text += &format!("{SETTLED}\nvolumes {}\n", names.len());
    replace(path, &text)
}

/// Writes a file whole, and makes it durable together with its name: beside, and then in its
/// place, as half a record would be about volumes that it is not about.
///
/// # Errors
/// When the directory can't be written.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    sync_directory(path)
}

/// Takes a file away, durably, if it is there.
///
/// # Errors
/// When the directory can't be written.
pub(crate) fn take_away(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => sync_directory(path),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_failure_is_on_record_until_somebody_removes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_of(directory.path(), "abcd");
        assert_eq!(read(&path).unwrap(), None);
        put(&path, "input/output error", &names(&["b", "a volume"])).unwrap();
        let mark = read(&path).unwrap().unwrap();
        assert!(mark.reason.contains("input/output error"), "{mark:?}");
        assert!(mark.voids("a volume") && mark.voids("b") && !mark.voids("volume"));
        // A second failure forgets nothing of the first one.
        put(&path, "no space", &names(&["c", "b"])).unwrap();
        let mark = read(&path).unwrap().unwrap();
        assert_eq!(mark.volumes, Some(names(&["a volume", "b", "c"])));
        assert!(put(&directory.path().join("no/such"), "", &[]).is_err());
    }

    #[test]
    fn a_mark_is_settled_until_the_next_failure() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_of(directory.path(), "abcd");
        settle(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None, "there is nothing to settle");
        put(&path, "input/output error", &names(&["a", "settled"])).unwrap();
        assert!(!read(&path).unwrap().unwrap().is_settled);
        settle(&path).unwrap();
        let mark = read(&path).unwrap().unwrap();
        assert!(mark.is_settled && mark.voids("a") && mark.reason.contains("output error"));
        put(&path, "no space", &names(&["b"])).unwrap();
        let mark = read(&path).unwrap().unwrap();
        assert!(!mark.is_settled && mark.voids("a") && mark.voids("b"));
        std::fs::write(&path, "failed\n").unwrap();
        settle(&path).unwrap();
        assert!(!read(&path).unwrap().unwrap().is_settled, "it is about everybody");
    }

    #[test]
    fn a_mark_that_does_not_say_whom_it_is_about_is_about_everybody() {
        for text in [
            "failed at 1 (seconds since 1970): input/output error\n",
            "",
            "failed\nvolume a\nvolumes 2\n",
            "failed\nvolume a\nvolumes 1",
            "failed\nvolume a\n",
        ] {
            assert_eq!(parse(text).volumes, None, "{text:?}");
            assert!(parse(text).voids("whoever"));
        }
        assert_eq!(parse("failed\nvolumes 0\n").volumes, Some(Vec::new()));
        let directory = tempfile::tempdir().unwrap();
        let path = path_of(directory.path(), "abcd");
        std::fs::write(&path, "failed\n").unwrap();
        put(&path, "again", &names(&["a"])).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().volumes, None, "the first one was");
    }
}
