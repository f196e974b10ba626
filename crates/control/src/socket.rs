//! Listening Unix sockets: the control socket and the NBD sockets.
//!
//! A socket file outlives the process that bound it. At its start, a daemon replaces the stale
//! socket file of a killed process. It removes nothing else: no other file, link or directory, and
//! no socket that a process still uses.
//!
//! The file is checked and removed through one handle, which keeps its inode number from being
//! reused. A stale socket file stays stale, because each bind creates a new inode. So after the
//! check only the path can change. Therefore the file is first moved to a private name, and moved
//! back if it is a different file. Races remain. A file that another program has just bound
//! looks stale until the kernel lists the socket in `/proc`; if that program is in another network
//! namespace, until it listens.
//!
//! A socket whose mode, owner or group is asked for appears without any permissions, whatever the
//! umask is, and listens only when it has them: no user can connect whom they would exclude. The
//! umask itself is not changed, because it applies to files that other threads create as well.

use forebay_types::{Fault, Remedy};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, chmod, chownat, fchmod,
        fstat, lstat, renameat_with,
    },
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
    process::{getegid, geteuid},
};
use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Connections that may wait to be accepted; the kernel's own limit (`net.core.somaxconn`, 4096)
/// applies too.
const BACKLOG: i32 = 4096;

/// The bound sockets of this network namespace.
const BOUND_SOCKETS: &str = "/proc/self/net/unix";

/// Why a process cannot listen at a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A socket that another process uses is there.
    #[error("another program listens at {}", path.display())]
    InUse { path: PathBuf },
    /// Another kind of file is there.
    #[error("{} is a {found}, not a socket, and is not replaced", path.display())]
    NotASocket {
        path: PathBuf,
        /// The kind of file.
        found: &'static str,
    },
    /// The file at the path was replaced during the check.
    #[error("{} was replaced by another program just now{}", path.display(), moved(.left_at))]
    Replaced {
        path: PathBuf,
        /// The new path of the file, if it could not be moved back.
        left_at: Option<PathBuf>,
    },
    /// The directory does not exist.
    #[error("there is no directory {} for the socket {}", directory.display(), path.display())]
    NoDirectory {
        /// The socket.
        path: PathBuf,
        directory: PathBuf,
    },
    /// This process may not give the file to the owner or group.
    #[error("this server may not give the socket {} to its {whom}", path.display())]
    MayNotGive {
        path: PathBuf,
        /// `owner` or `group`.
        whom: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file was given to another user, so this process may not change its mode.
    #[error("this server may not change the mode of {}, another user's file", path.display())]
    MayNotChange { path: PathBuf },
    /// A system call failed.
    #[error("cannot listen at {} ({call})", path.display())]
    System {
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

fn moved(left_at: &Option<PathBuf>) -> String {
    left_at.as_ref().map(|path| format!(", and is now at {}", path.display())).unwrap_or_default()
}

impl Fault for SocketError {
    fn remedy(&self) -> Remedy {
        const OTHER: &str = "choose another path";
        match self {
            Self::InUse { .. } => Remedy::from("stop that program").or(OTHER),
            Self::NotASocket { .. } => {
                Remedy::from(OTHER).or("move the file there away if no program needs it")
            }
            Self::Replaced { .. } => "find the program that uses this path, and retry".into(),
            Self::NoDirectory { directory, .. } => {
                Remedy::from(format!("create it with mkdir -p {}", directory.display())).or(OTHER)
            }
            Self::MayNotGive { whom: "group", .. } => {
                Remedy::from("make the user of the server a member of that group")
                    .or("give the server the capability CAP_CHOWN")
            }
            Self::MayNotGive { .. } => Remedy::from("give the server the capability CAP_CHOWN")
                .or("name a group of the server's user instead of the owner"),
            Self::MayNotChange { .. } => {
                Remedy::from("restart the server").or("give it the capability CAP_FOWNER")
            }
            Self::System { .. } => {
                Remedy::from("check that this user may write in the directory").or(OTHER)
            }
        }
    }
}

/// The file of a listening socket of this process.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    handle: Handle,
}

impl SocketFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device and the number of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.handle.identity()
    }

    /// The file at a path, if it is the one with this identity: that of a socket which another
    /// process has made, and which is used on.
    ///
    /// # Errors
    /// A system call fails.
    pub fn continued(path: &Path, identity: (u64, u64)) -> Result<Option<Self>, SocketError> {
        let found = Handle::open(path)?.filter(|handle| handle.identity() == identity);
        Ok(found.map(|handle| Self { path: path.into(), handle }))
    }

    /// Removes the file, unless another file is at its path.
    ///
    /// # Errors
    /// Another file is at the path, or a system call fails.
    pub fn remove(&self) -> Result<(), SocketError> {
        match Handle::open(&self.path)? {
            None => Ok(()),
            Some(found) if found.is_same(&self.handle.stat) => self.handle.remove_at(&self.path),
            Some(_) => Err(SocketError::Replaced { path: self.path.clone(), left_at: None }),
        }
    }

    /// Its present rights, all of them.
    ///
    /// # Errors
    /// A system call fails.
    pub fn rights(&self) -> Result<SocketRights, SocketError> {
        let found = fstat(&self.handle.fd).map_err(|source| system(&self.path, "fstat", source))?;
        Ok(SocketRights {
            mode: Some(Mode::from_raw_mode(found.st_mode)),
            owner: Some(Uid::from_raw(found.st_uid)),
            group: Some(Gid::from_raw(found.st_gid)),
        })
    }

    /// Changes its rights while it listens; `None` stands for the rights of a new file. Meanwhile,
    /// only users may connect who may do so by both the old and the new mode.
    ///
    /// # Errors
    /// This process may not give the file those rights. It has its former ones then, as far as
    /// they can be restored.
    pub fn change_rights(&self, rights: SocketRights) -> Result<(), SocketError> {
        let former = self.rights()?;
        let new = SocketRights { mode: rights.mode.or_else(default_mode), ..rights };
        let new = SocketRights {
            owner: new.owner.or_else(|| Some(geteuid())),
            group: new.group.or_else(|| Some(default_group(&self.path))),
            mode: new.mode.or(former.mode),
        };
        self.set_all(former, new).inspect_err(|_| {
            // The first error says more.
            let _ = self.set_all(SocketRights { mode: Some(Mode::empty()), ..new }, former);
        })
    }

    /// Changes rights that are all known. The owner is last, as in [`Handle::set_rights`].
    fn set_all(&self, old: SocketRights, new: SocketRights) -> Result<(), SocketError> {
        let (path, handle) = (&self.path, &self.handle);
        let (old_mode, mode) =
            (old.mode.unwrap_or(Mode::empty()), new.mode.unwrap_or(Mode::empty()));
        if old_mode & mode != old_mode {
            handle.set_mode(path, old_mode & mode)?;
        }
        if old.group != new.group {
            handle.give(path, "group", None, new.group)?;
        }
        if old_mode & mode != mode {
            handle.set_mode(path, mode)?;
        }
        if old.owner == new.owner { Ok(()) } else { handle.give(path, "owner", new.owner, None) }
    }
}

/// The mode of a new socket, by the umask of this process.
fn default_mode() -> Option<Mode> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    let umask = u32::from_str_radix(umask.trim(), 8).ok()?;
    Some(Mode::from_raw_mode(0o777 & !umask))
}

/// The group of a new file at `path`: that of this process, or of a directory that passes on its
/// group.
fn default_group(path: &Path) -> Gid {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let found = rustix::fs::stat(directory.unwrap_or(Path::new(".")));
    let passed_on = found.ok().filter(|it| Mode::from_raw_mode(it.st_mode).contains(Mode::SGID));
    passed_on.map_or_else(getegid, |it| Gid::from_raw(it.st_gid))
}

/// The permissions of a socket file. What is `None` is as for every new file of the process: by its
/// umask, its user and its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketRights {
    pub mode: Option<Mode>,
    pub owner: Option<Uid>,
    pub group: Option<Gid>,
}

impl SocketRights {
    const fn is_default(&self) -> bool {
        self.mode.is_none() && self.owner.is_none() && self.group.is_none()
    }
}

/// Makes a non-blocking listening socket at `path`. A stale socket file there is replaced. The new
/// file admits no connection before it has all of `rights`.
///
/// # Errors
/// Anything else is at the path, the socket cannot be created, or this process may not give it
/// those rights. No socket file is left then.
pub fn listen_at(
    path: &Path,
    rights: SocketRights,
) -> Result<(UnixListener, SocketFile), SocketError> {
    if let Some(found) = Handle::open(path)? {
        found.check_stale(path)?;
        found.remove_at(path)?;
    }
    let socket = bind_at(path, rights)?;
    let Some(handle) = Handle::open(path)? else {
        return Err(SocketError::Replaced { path: path.into(), left_at: None });
    };
    let file = SocketFile { path: path.into(), handle };
    let listening = file
        .handle
        .set_rights(path, rights)
        .and_then(|()| listen(&socket, BACKLOG).map_err(|source| system(path, "listen", source)));
    match listening {
        Ok(()) => Ok((socket.into(), file)),
        Err(error) => {
            // The first error says more.
            let _ = file.remove();
            Err(error)
        }
    }
}

fn system(path: &Path, call: &'static str, source: impl Into<io::Error>) -> SocketError {
    SocketError::System { path: path.into(), call, source: source.into() }
}

/// An `O_PATH` handle of a file. While it exists, the file's inode number is not reused.
#[derive(Debug)]
struct Handle {
    fd: OwnedFd,
    stat: Stat,
}

impl Handle {
    /// Opens the file at the path; a link is not followed.
    fn open(path: &Path) -> Result<Option<Self>, SocketError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => {
                let stat = fstat(&fd).map_err(|source| system(path, "fstat", source))?;
                Ok(Some(Self { fd, stat }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(system(path, "open", source)),
        }
    }

    /// Gives this new socket file of this process its rights. The owner is last, because only an
    /// owner or a process with a further capability may change a mode.
    fn set_rights(&self, path: &Path, rights: SocketRights) -> Result<(), SocketError> {
        if rights.is_default() {
            return Ok(());
        }
        let SocketRights { mode, owner, group } = rights;
        // Not another file, which a program that may write in the directory has put there.
        if FileType::from_raw_mode(self.stat.st_mode) != FileType::Socket
            || !Mode::from_raw_mode(self.stat.st_mode).is_empty()
        {
            return Err(SocketError::Replaced { path: path.into(), left_at: None });
        }
        if group.is_some() {
            self.give(path, "group", None, group)?;
        }
        if let Some(mode) = mode {
            self.set_mode(path, mode)?;
        }
        if owner.is_some() { self.give(path, "owner", owner, None) } else { Ok(()) }
    }

    fn set_mode(&self, path: &Path, mode: Mode) -> Result<(), SocketError> {
        let at = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        chmod(at, mode).map_err(|source| match source {
            Errno::PERM => SocketError::MayNotChange { path: path.into() },
            source => system(path, "chmod", source),
        })
    }

    fn give(
        &self,
        path: &Path,
        whom: &'static str,
        owner: Option<Uid>,
        group: Option<Gid>,
    ) -> Result<(), SocketError> {
        chownat(&self.fd, "", owner, group, AtFlags::EMPTY_PATH).map_err(|source| match source {
            Errno::PERM => {
                SocketError::MayNotGive { path: path.into(), whom, source: source.into() }
            }
            source => system(path, "chown", source),
        })
    }

    #[allow(clippy::useless_conversion, reason = "the types differ between C libraries")]
    fn identity(&self) -> (u64, u64) {
        (u64::from(self.stat.st_dev), u64::from(self.stat.st_ino))
    }

    fn is_same(&self, stat: &Stat) -> bool {
        (self.stat.st_dev, self.stat.st_ino) == (stat.st_dev, stat.st_ino)
    }

    /// Checks that this is a stale socket, which no process uses.
    fn check_stale(&self, path: &Path) -> Result<(), SocketError> {
        let found = match FileType::from_raw_mode(self.stat.st_mode) {
            // A socket that is bound but does not listen yet refuses connections like a stale one.
            FileType::Socket if self.refuses(path)? && !self.is_bound(path) => return Ok(()),
            FileType::Socket => return Err(SocketError::InUse { path: path.into() }),
            FileType::RegularFile => "regular file",
            FileType::Directory => "directory",
            FileType::Symlink => "symbolic link",
            FileType::Fifo => "pipe",
            FileType::BlockDevice => "block device",
            FileType::CharacterDevice => "character device",
            FileType::Unknown => "special file",
        };
        Err(SocketError::NotASocket { path: path.into(), found })
    }

    /// Whether it refuses a connection. The attempt must not block, because the backlog may be
    /// full.
    fn refuses(&self, path: &Path) -> Result<bool, SocketError> {
        let call = |source: Errno| system(path, "connect", source);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // This path leads to exactly this file, and fits an address however long `path` is.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        match rustix::net::connect(&socket.map_err(call)?, &address.map_err(call)?) {
            Err(Errno::CONNREFUSED) => Ok(true),
            // A full backlog, or a socket of another type: it is in use.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(false),
            Err(source) => Err(call(source)),
        }
    }

    /// Whether the kernel lists an unconnected socket that is bound to this file.
    fn is_bound(&self, path: &Path) -> bool {
        let Ok(listed) = fs::read(BOUND_SOCKETS) else { return false };
        listed.split(|&byte| byte == b'\n').filter_map(unconnected_name).any(|name| {
            let name = Path::new(OsStr::from_bytes(name));
            // The socket may have been bound under another spelling of its path.
            name == path
                || (name.file_name() == path.file_name()
                    && lstat(name).is_ok_and(|found| self.is_same(&found)))
        })
    }

    /// Removes this file from `path`, unless another file is there now.
    fn remove_at(&self, path: &Path) -> Result<(), SocketError> {
        let aside = private_name(path);
        match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // On a file system without this call (NFS), a race between two calls remains.
            Err(Errno::INVAL | Errno::NOSYS) => {
                let found = lstat(path).map_err(|source| system(path, "lstat", source))?;
                if !self.is_same(&found) {
                    return Err(SocketError::Replaced { path: path.into(), left_at: None });
                }
                return fs::remove_file(path).map_err(|source| system(path, "unlink", source));
            }
            Err(source) => return Err(system(path, "rename", source)),
        }
        if lstat(&aside).is_ok_and(|found| self.is_same(&found)) {
            return fs::remove_file(&aside).map_err(|source| system(&aside, "unlink", source));
        }
        let moved_back = renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE);
        let left_at = moved_back.is_err().then_some(aside);
        Err(SocketError::Replaced { path: path.into(), left_at })
    }
}

/// The name in a line of the list of bound sockets, if the socket is not connected. A line is `Num:
/// RefCount Protocol Flags Type St Inode Path`.
fn unconnected_name(line: &[u8]) -> Option<&[u8]> {
    const UNCONNECTED: &[u8] = b"01";
    let mut rest = line;
    for field in 0..7 {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let len = rest[start..].iter().position(|byte| *byte == b' ')?;
        if field == 5 && &rest[start..start + len] != UNCONNECTED {
            return None;
        }
        rest = &rest[start + len..];
    }
    rest.get(1..)
}

/// A name in the directory of `path` that no other process uses.
fn private_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".forebay-{}-{count}", std::process::id()))
}

/// Binds a socket that does not listen yet. Its file has no permissions if it is to get `rights`:
/// on Linux, the file inherits the permissions of the socket, less the umask.
fn bind_at(path: &Path, rights: SocketRights) -> Result<OwnedFd, SocketError> {
    let call = |call| move |source: Errno| system(path, call, source);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(call("socket"))?;
    if !rights.is_default() {
        fchmod(&socket, Mode::empty()).map_err(call("fchmod"))?;
    }
    let address = SocketAddrUnix::new(path).map_err(call("bind"))?;
    bind(&socket, &address).map_err(|source| match (source, path.parent()) {
        (Errno::ADDRINUSE, _) => SocketError::InUse { path: path.into() },
        (Errno::NOENT, Some(parent)) => {
            SocketError::NoDirectory { path: path.into(), directory: parent.into() }
        }
        (source, _) => system(path, "bind", source),
    })?;
    Ok(socket)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
