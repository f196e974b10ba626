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

use crate::reserve;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The line in a mark which says that the volumes' disks have all acknowledged data.
const SETTLED: &str = "settled";

/// A failure mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The time and cause of the failure, as text.
    pub(crate) reason: String,
    /// The volumes whose records are void; `None` for all volumes.
    pub(crate) volumes: Option<Vec<String>>,
    /// The disks of these volumes have all acknowledged data.
    pub(crate) is_settled: bool,
}

impl Mark {
    /// Returns true if the journal's records of this volume are void.
    pub(crate) fn voids(&self, volume: &str) -> bool {
        self.volumes.as_ref().is_none_or(|names| names.iter().any(|name| name == volume))
    }
}

/// The path of the failure mark of a journal.
pub(crate) fn path_of(state_dir: &Path, journal: &str) -> PathBuf {
    state_dir.join(format!("journal-{journal}.failed"))
}

/// The path of the mark that voids a dump whose vault could not be emptied.
pub(crate) fn void_path_of(state_dir: &Path, dump: &str) -> PathBuf {
    state_dir.join(format!("vault-{dump}.void"))
}

/// Reads a mark; returns `None` if there is none.
///
/// # Errors
/// Fails if the mark exists but cannot be read.
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

/// Held while a mark is read and replaced: the threads of several volumes may add to one mark.
static CHANGING: Mutex<()> = Mutex::new(());

/// Durably writes a failure mark. Volumes of an existing mark are kept.
///
/// # Errors
/// Fails if an existing mark cannot be read or the directory cannot be written.
pub(crate) fn put(path: &Path, reason: &str, volumes: &[String]) -> io::Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut text = format!("failed at {} (seconds since 1970): {reason}\n", now.as_secs());
    let mut names = volumes.to_vec();
    let is_about_all = match read(path)? {
        None => false,
        Some(Mark { volumes: None, .. }) => true,
        // A write that nothing needs would fail on a full file system.
        Some(Mark { volumes: Some(earlier), is_settled: false, .. })
            if volumes.iter().all(|name| earlier.contains(name)) =>
        {
            return Ok(());
        }
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
    reserve::replace(path, &text)
}

/// Adds the `settled` line to a mark: the disks of its volumes have all acknowledged data. A mark
/// that applies to all volumes is left unchanged.
///
/// # Errors
/// Fails if the mark cannot be read or the directory cannot be written.
pub(crate) fn settle(path: &Path) -> io::Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Mark { reason, volumes: Some(names), is_settled: false }) = read(path)? else {
        return Ok(());
    };
    let mut text = format!("{reason}\n");
    names.iter().for_each(|name| text += &format!("volume {name}\n"));
    text += &format!("{SETTLED}\nvolumes {}\n", names.len());
    reserve::replace(path, &text)
}

/// Settles the marks of all journals whose volumes are all among `names`.
///
/// # Errors
/// Fails if the directory or a mark cannot be read or written.
pub(crate) fn settle_all_of(state_dir: &Path, names: &[&str]) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    for entry in std::fs::read_dir(state_dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("journal-") || !name.ends_with(".failed") {
            continue;
        }
        let volumes = read(&path)?.and_then(|mark| mark.volumes);
        if volumes.is_some_and(|all| all.iter().all(|volume| names.contains(&&**volume))) {
            settle(&path)?;
        }
    }
    Ok(())
}

/// Atomically and durably replaces a file. A record that a failure needs is written with
/// [`reserve::replace`], which works on a full file system too.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(crate) fn replace(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    file.write_all(content.as_ref())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_directory(path)
}

/// Durably removes a file if it exists.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => sync_directory(path),
    }
}

/// Makes the creation or removal of a file durable.
///
/// # Errors
/// Fails if its directory cannot be opened or synced.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
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
        let path = path_of(directory.path(), "abcd");
        assert_eq!(read(&path).unwrap(), None);
        put(&path, "input/output error", &names(&["b", "a volume"])).unwrap();
        let mark = read(&path).unwrap().unwrap();
        assert!(mark.reason.contains("input/output error"), "{mark:?}");
        assert!(mark.voids("a volume") && mark.voids("b") && !mark.voids("volume"));
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
        assert_eq!(read(&path).unwrap(), None, "settling creates no mark");
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
        assert!(!read(&path).unwrap().unwrap().is_settled, "a mark about all volumes stays");
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
        let path = path_of(directory.path(), "abcd");
        std::fs::write(&path, "failed\n").unwrap();
        put(&path, "again", &names(&["a"])).unwrap();
        assert_eq!(
            read(&path).unwrap().unwrap().volumes,
            None,
            "the first mark applied to all volumes"
        );
    }
}
