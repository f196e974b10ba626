//! The state directory: one daemon each.

use crate::SocketError;
use forebay_config::CONTROL_SOCKET;
use forebay_types::{Action, Fault, Remedy};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const LOCK_FILE: &str = "lock";
/// How often a lock is tried that another daemon has.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Why control can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another daemon has the state directory.
    #[error(
        "state directory {} is in use by {}",
        path.display(),
        pid.map_or("another forebay".into(), |pid| format!("forebay process {pid}"))
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other daemon's process, if it wrote that down.
        pid: Option<u32>,
    },
    /// The control socket can't be had, although the directory's lock is free.
    #[error("the control socket can't be had")]
    Socket(#[source] SocketError),
    /// Any user may change what is in the directory.
    #[error(
        "state directory {} may be written by every user, who could make the next start forget or \
         invent the failure of a journal",
        path.display()
    )]
    WorldWritable {
        /// The directory.
        path: PathBuf,
    },
    /// The file system says no.
    #[error("{what} {} can't be made", path.display())]
    Files {
        /// What was to be made.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Fault for ControlError {
    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::InUse { .. } => "stop that one",
            Self::Socket(_) => "move away what is there if nothing needs it",
            Self::WorldWritable { .. } => "take that right away with chmod o-w",
            Self::Files { .. } => "see that this user may write there",
        };
        Remedy::from(remedy).or(Action::set("state", "DIR"))
    }
}

/// A state directory that belongs to this process for as long as this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The kernel gives the lock back when the file is closed, however this process ends, so a
    /// lock never outlives its daemon.
    lock: File,
}

impl StateDir {
    /// Makes the directory if it is not there, and takes it.
    ///
    /// # Errors
    /// Another daemon has it, or it can't be made or written.
    pub fn take(path: impl Into<PathBuf>) -> Result<Self, ControlError> {
        Self::take_within(path, Duration::ZERO)
    }

    /// The same, but waits for another daemon to end: the kernel may give back the lock of one
    /// that was killed a moment after it is gone.
    ///
    /// # Errors
    /// As [`StateDir::take`], once `wait` is over.
    pub fn take_within(path: impl Into<PathBuf>, wait: Duration) -> Result<Self, ControlError> {
        let path = path.into();
        // Others may enter: NBD clients of other users find their socket here. The control socket
        // has permissions of its own.
        DirBuilder::new().recursive(true).mode(0o755).create(&path).map_err(|source| {
            ControlError::Files { what: "state directory", path: path.clone(), source }
        })?;
        let is_world_writable = fs::metadata(&path).is_ok_and(|found| found.mode() & 0o002 != 0);
        if is_world_writable {
            return Err(ControlError::WorldWritable { path });
        }
        let lock_path = path.join(LOCK_FILE);
        let files =
            |source| ControlError::Files { what: "lock file", path: lock_path.clone(), source };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(files)?;
        match lock_within(&lock, &path, wait) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid =
                    fs::read_to_string(&lock_path).ok().and_then(|text| text.trim().parse().ok());
                return Err(ControlError::InUse { path, pid });
            }
            Err(TryLockError::Error(source)) => return Err(files(source)),
        }
        // The number is for people and for the message above; the lock is what counts.
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(files)?;
        Ok(Self { path, lock })
    }

    /// Whether the directory that was taken is still the one at its path: its lock is. Where that
    /// can't be found out, it is taken to be.
    pub fn is_in_place(&self) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        match (fs::metadata(self.path.join(LOCK_FILE)), self.lock.metadata()) {
            (Ok(there), Ok(ours)) => identity(there) == identity(ours),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            _ => true,
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the control socket is.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join(CONTROL_SOCKET)
    }
}

/// Locks a file as soon as nobody else has it, within the time there is.
fn lock_within(lock: &File, path: &Path, wait: Duration) -> Result<(), TryLockError> {
    let begin = Instant::now();
    let mut said = false;
    loop {
        let locked = lock.try_lock();
        let is_held = matches!(&locked, Err(TryLockError::WouldBlock));
        if !is_held || begin.elapsed() >= wait {
            return locked;
        }
        if !said {
            let seconds = wait.as_secs();
            tracing::info!(
                path = %path.display(),
                "the state directory is in use, by a daemon that is ending maybe: tried for \
                 {seconds} s"
            );
            said = true;
        }
        std::thread::sleep(LOCK_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_made_and_taken_once() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run/forebay");
        let first = StateDir::take(&path).unwrap();
        let error = StateDir::take(&path).unwrap_err();
        let pid = std::process::id();
        assert_eq!(
            error.to_string(),
            format!("state directory {} is in use by forebay process {pid}", path.display())
        );
        assert!(StateDir::take(root.path().join("other")).is_ok());
        drop(first);
        assert!(StateDir::take(&path).is_ok(), "free again when the daemon is gone");
    }

    #[test]
    fn a_longer_number_of_an_earlier_daemon_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LOCK_FILE), "99999999999999\n").unwrap();
        let _state = StateDir::take(root.path()).unwrap();
        let text = fs::read_to_string(root.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_directory_that_every_user_may_write_is_refused_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o1777, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = StateDir::take(&path).unwrap_err();
            assert!(matches!(error, ControlError::WorldWritable { .. }), "{error}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is made in it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(StateDir::take(&path).is_ok());
    }

    #[test]
    fn a_directory_that_is_deleted_or_replaced_is_noticed_and_can_be_taken_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        let first = StateDir::take(&path).unwrap();
        assert!(first.is_in_place());
        fs::rename(&path, root.path().join("elsewhere")).unwrap();
        assert!(!first.is_in_place());
        let second = StateDir::take(&path).unwrap();
        assert!(second.is_in_place() && !first.is_in_place());
        fs::remove_dir_all(&path).unwrap();
        assert!(!second.is_in_place());
    }

    #[test]
    fn a_file_in_the_way_is_an_error_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "").unwrap();
        let error = StateDir::take(&path).unwrap_err().to_string();
        assert_eq!(error, format!("state directory {} can't be made", path.display()));
    }
}
