//! The state directory, which belongs to one daemon at a time.

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
/// The interval between attempts to take a lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Why the state directory or the control socket is not available.
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
        /// The other daemon's process id, if the lock file has it.
        pid: Option<u32>,
    },
    /// The control socket cannot be created.
    #[error("cannot create the control socket")]
    Socket(#[source] SocketError),
    /// The directory is world-writable.
    #[error(
        "state directory {} may be written by every user, so its records of failed journals cannot \
         be trusted",
        path.display()
    )]
    WorldWritable {
        /// The directory.
        path: PathBuf,
    },
    /// A file or directory cannot be created.
    #[error("cannot create {what} {}", path.display())]
    Files {
        /// The kind of file.
        what: &'static str,
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl Fault for ControlError {
    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Socket(error) => return error.remedy(),
            Self::InUse { .. } => "stop that process",
            Self::WorldWritable { .. } => "restrict access with chmod o-w",
            Self::Files { .. } => "check that this user may write there",
        };
        Remedy::from(remedy).or(Action::set("state", "DIR"))
    }
}

/// A state directory, locked while this value exists.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The kernel releases the lock soon after the process ends for any reason, so no stale lock
    /// has to be removed. The file contains the daemon's process id, and is emptied at an orderly
    /// end.
    lock: File,
    was_killed: bool,
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // On failure, the next daemon concludes that this one was killed, and waits longer than it
        // must for addresses that are in use.
        let _ = self.lock.set_len(0);
    }
}

impl StateDir {
    /// Locks the directory, which is created if missing.
    ///
    /// # Errors
    /// Another daemon has locked it, or it cannot be created or written.
    pub fn take(path: impl Into<PathBuf>) -> Result<Self, ControlError> {
        Self::take_within(path, Duration::ZERO)
    }

    /// As [`StateDir::take`], but waits up to `wait` for another daemon to end: the kernel may
    /// release the lock of a killed process a moment after its end.
    pub fn take_within(path: impl Into<PathBuf>, wait: Duration) -> Result<Self, ControlError> {
        let path = path.into();
        // Other users may enter, because the NBD socket is in this directory by default. The
        // control socket has its own permissions.
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
        let was_killed = lock.metadata().map_err(files)?.len() > 0;
        // The process id is for messages, and the file's length for `was_killed`. Only the lock
        // excludes other daemons.
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(files)?;
        Ok(Self { path, lock, was_killed })
    }

    /// Whether the directory's former daemon was killed, so that the kernel may still hold its
    /// files and sockets for a while.
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Whether the lock file is still at its path, so that the directory was not deleted or
    /// replaced. True if that cannot be determined.
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

    /// The path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join(CONTROL_SOCKET)
    }
}

/// Locks a file, and waits up to `wait` until no other process has it locked.
fn lock_within(lock: &File, path: &Path, wait: Duration) -> Result<(), TryLockError> {
    let begin = Instant::now();
    let mut is_logged = false;
    loop {
        let locked = lock.try_lock();
        let is_held = matches!(&locked, Err(TryLockError::WouldBlock));
        if !is_held || begin.elapsed() >= wait {
            return locked;
        }
        if !is_logged {
            let (path, seconds) = (path.display(), wait.as_secs());
            tracing::info!(%path, seconds, "state directory in use, waiting for its daemon to end");
            is_logged = true;
        }
        std::thread::sleep(LOCK_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_created_and_locked_once() {
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
        assert!(StateDir::take(&path).is_ok(), "the lock is released with the value");
    }

    #[test]
    fn a_shorter_process_id_replaces_a_longer_one() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LOCK_FILE), "99999999999999\n").unwrap();
        let _state = StateDir::take(root.path()).unwrap();
        let text = fs::read_to_string(root.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_killed_daemon_is_distinguished_from_one_that_ended() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        assert!(!StateDir::take(path).unwrap().was_killed(), "there was no daemon");
        assert!(!StateDir::take(path).unwrap().was_killed(), "the daemon ended");
        // What a killed process leaves.
        fs::write(path.join(LOCK_FILE), "1234\n").unwrap();
        assert!(StateDir::take(path).unwrap().was_killed());
        assert!(!StateDir::take(path).unwrap().was_killed(), "that daemon has ended");
    }

    #[test]
    fn a_world_writable_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o1777, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = StateDir::take(&path).unwrap_err();
            assert!(matches!(error, ControlError::WorldWritable { .. }), "{error}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "no file is created in it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(StateDir::take(&path).is_ok());
    }

    #[test]
    fn a_deleted_or_replaced_directory_is_detected_and_can_be_locked_again() {
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
        assert_eq!(error, format!("cannot create state directory {}", path.display()));
    }
}
