//! The control socket: only for the user who runs the daemon, and never in two hands.

use crate::{ControlError, StateDir};
use rustix::{
    fs::{Mode, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use std::{
    fs, io,
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
};

/// Connections that wait to be accepted. More than the clients there ever are.
const BACKLOG: i32 = 64;

/// Listens at the control socket of `state`, without blocking.
///
/// # Errors
/// Something answers there, something that is no socket is there, or it can't be made.
pub(crate) fn listen_at(state: &StateDir) -> Result<UnixListener, ControlError> {
    let path = state.control_socket();
    clear(&path)?;
    open(&path).map_err(|source| ControlError::Files { what: "control socket", path, source })
}

/// Makes way for a new socket. The directory is locked, so a socket that is there was left by a
/// daemon that was killed; all the same nothing is taken away that someone answers at.
fn clear(path: &Path) -> Result<(), ControlError> {
    let files = |source| ControlError::Files { what: "control socket", path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(files(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ControlError::NoSocket { path: path.into() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(files)
        }
        Ok(_) => Err(ControlError::Answered { path: path.into() }),
        Err(error) => Err(files(error)),
    }
}

/// A listening socket that only its owner may open, from the moment it appears: Linux gives the
/// file the permissions that the socket has when it is bound.
fn open(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_may_open_it() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::take(root.path()).unwrap();
        let _listener = listen_at(&state).unwrap();
        let mode = fs::metadata(state.control_socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_socket_is_replaced_only_when_nobody_answers() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::take(root.path()).unwrap();
        let first = listen_at(&state).unwrap();
        let error = listen_at(&state).unwrap_err();
        assert!(matches!(error, ControlError::Answered { .. }), "{error}");
        drop(first);
        listen_at(&state).unwrap();
    }

    #[test]
    fn a_file_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::take(root.path()).unwrap();
        fs::write(state.control_socket(), "precious").unwrap();
        let error = listen_at(&state).unwrap_err();
        assert!(matches!(error, ControlError::NoSocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(state.control_socket()).unwrap(), "precious");
    }
}
