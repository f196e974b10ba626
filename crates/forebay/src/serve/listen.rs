//! Listening sockets.

use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_config::{Listen, SocketAccess, TlsMode, TlsSettings};
use forebay_control::{SocketError, SocketFile, SocketRights, listen_at};
use forebay_frontend_nbd::{Listener, TlsSetup, group_id, user_id};
use rustix::fs::{Gid, Mode, Uid};
use rustix::net::sockopt::{self, socket_acceptconn};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, getsockname, listen};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Clients that may wait until the server has time for them.
const BACKLOG: i32 = 4096;
/// Time between two attempts to bind an address that is in use.
const IN_USE_POLL: Duration = Duration::from_millis(20);

/// A listening socket and its address in the syntax of `--nbd`.
pub(super) struct BoundListener {
    pub listener: Listener,
    pub configured: Listen,
    /// With the port that the system has chosen.
    pub address: String,
    /// The file of a Unix socket, removed at shutdown.
    pub file: Option<SocketFile>,
    pub port: Option<TakenPort>,
    /// What the next server continues; `None` if it gets the socket from the service manager.
    pub kept: Option<KeptListener>,
}

/// A listening socket that one server hands over to the next.
#[derive(Debug)]
pub(super) struct KeptListener {
    pub socket: OwnedFd,
    /// The address as it was configured.
    pub configured: String,
    /// The device and the number of the socket's file.
    pub file: Option<(u64, u64)>,
}

/// A second descriptor of a listening TCP socket. With it, a socket that is to replace this one can
/// listen at the same port while this one still does, as with `tcp:[::]:10809` after
/// `tcp:127.0.0.1:10809`.
pub(super) struct TakenPort {
    socket: OwnedFd,
    number: u16,
}

impl TakenPort {
    /// # Errors
    /// The process has too many descriptors.
    pub(super) fn of(socket: impl AsFd, address: SocketAddr) -> io::Result<Self> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        Ok(Self { socket, number: address.port() })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, number: self.number })
    }

    /// Lets other sockets of this user listen at the port, which no other program may do later.
    fn share(&self, shares: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseport(&self.socket, shares)?)
    }
}

/// Listens at the first possible one of `addresses`, all with this port, at which sockets listen
/// that are to be replaced. `None` if there are none.
fn bind_beside(
    addresses: &[SocketAddr],
    port: u16,
    replaced: &[TakenPort],
) -> Option<io::Result<TcpListener>> {
    let beside: Vec<_> = replaced.iter().filter(|it| it.number == port).collect();
    if beside.is_empty() {
        return None;
    }
    let shared = beside.iter().try_for_each(|it| it.share(true));
    let bound = addresses.iter().map(|address| bind_shared(*address));
    let bound = shared.and_then(|()| {
        bound.reduce(Result::or).unwrap_or_else(|| Err(ErrorKind::AddrNotAvailable.into()))
    });
    // Only this program may listen there, and only now.
    let unshared = beside.iter().try_for_each(|it| it.share(false));
    Some(unshared.and(bound))
}

fn bind_shared(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    sockopt::set_socket_reuseport(&socket, false)?;
    Ok(socket.into())
}

/// Listens at an address, with the socket of the previous server if that has handed it over.
/// Retries an address that is in use for up to `wait`. Sockets that are to be `replaced` do not
/// count.
///
/// # Errors
/// Fails if the address cannot be bound, if its user or group is unknown, or if other machines
/// could reach it without encryption and the operator has not turned TLS off explicitly.
pub(super) fn bind(
    address: &Listen,
    settings: &TlsSettings,
    tls: &TlsSetup,
    wait: Duration,
    handed: &mut Vec<KeptListener>,
    replaced: &[TakenPort],
) -> anyhow::Result<BoundListener> {
    let configured = address.to_string();
    let at = handed.iter().position(|kept| kept.configured == configured);
    let kept = at.map(|at| handed.swap_remove(at));
    let kept = kept.and_then(|kept| continued(address, kept).transpose()).transpose()?;
    match address {
        Listen::Unix { .. } => {
            let (socket, file) = match kept {
                Some((socket, file)) if file.is_some() => (socket, file),
                // Without its file, clients could not find it.
                _ => {
                    let (socket, file) = bind_unix(address, wait)?;
                    (socket.into(), Some(file))
                }
            };
            let file_id = file.as_ref().map(SocketFile::identity);
            let kept = KeptListener { socket: socket.try_clone()?, configured, file: file_id };
            let kept = Some(kept);
            let listener = Listener::new(socket, false, tls.clone());
            let (configured, address) = (address.clone(), address.to_string());
            Ok(BoundListener { listener, configured, address, file, port: None, kept })
        }
        Listen::Tcp { host, port } => {
            let (socket, bound) = match kept {
                Some((socket, _)) => {
                    let socket = TcpListener::from(socket);
                    let bound = socket.local_addr().with_context(|| cannot_listen(host, *port))?;
                    (socket, bound)
                }
                None => bind_tcp(host, *port, wait, "--nbd tcp:HOST:PORT", replaced)?,
            };
            check_encryption(address, bound.ip(), settings)?;
            socket.set_nonblocking(true)?;
            let socket = OwnedFd::from(socket);
            let kept = KeptListener { socket: socket.try_clone()?, configured, file: None };
            let kept = Some(kept);
            let port = Some(TakenPort::of(&socket, bound)?);
            let listener = Listener::new(socket, true, tls.clone());
            let configured = address.clone();
            let address = Listen::Tcp { host: host.clone(), port: bound.port() }.to_string();
            Ok(BoundListener { listener, configured, address, file: None, port, kept })
        }
    }
}

/// Checks that a socket of the previous server listens at an address, and makes it one of this
/// process. Clients have queued for it meanwhile. `None` if it does not: then it is closed.
fn continued(
    address: &Listen,
    kept: KeptListener,
) -> anyhow::Result<Option<(OwnedFd, Option<SocketFile>)>> {
    let KeptListener { socket, file, .. } = kept;
    let is_listening = socket_acceptconn(&socket).unwrap_or(false);
    let local = getsockname(&socket).ok().filter(|_| is_listening);
    let Some(local) = local else { return Ok(None) };
    let file = match address {
        Listen::Unix { path, .. } => {
            let bound = SocketAddrUnix::try_from(local).ok();
            let is_at_path =
                bound.and_then(|bound| Some(bound.path_bytes()? == path.as_os_str().as_bytes()));
            let file = file.filter(|_| is_at_path == Some(true));
            let Some(identity) = file else { return Ok(None) };
            let Some(file) = SocketFile::continued(path, identity)? else { return Ok(None) };
            Some(file)
        }
        Listen::Tcp { host, port } => {
            let Ok(bound) = SocketAddr::try_from(local) else { return Ok(None) };
            let addresses = resolve(host, *port)?;
            if !addresses.iter().any(|at| is_bound_to(at, bound)) {
                return Ok(None);
            }
            None
        }
    };
    // Clients that ask who listens get an answer about this process from now on.
    if listen(&socket, BACKLOG).is_err() {
        return Ok(None);
    }
    Ok(Some((socket, file)))
}

/// Listens at a Unix socket. Retries one that is in use for up to `wait`.
///
/// # Errors
/// As [`bind`].
pub(super) fn bind_unix(
    address: &Listen,
    wait: Duration,
) -> anyhow::Result<(UnixListener, SocketFile)> {
    let Listen::Unix { path, access } = address else {
        return Err(anyhow!("{address} is no Unix socket"));
    };
    let rights = rights(address, access)?;
    let bound = retry_while_in_use(
        wait,
        |error| matches!(error, SocketError::InUse { .. }),
        || listen_at(path, rights),
    );
    Ok(bound?)
}

/// Checks an address without binding it: the directory, user and group of a Unix socket, the host
/// name, and whether other machines could reach it without encryption. The directory may be missing
/// if the start creates it, as it does `state`.
///
/// # Errors
/// As [`bind`].
pub(super) fn check(address: &Listen, settings: &TlsSettings, state: &Path) -> anyhow::Result<()> {
    match address {
        Listen::Unix { path, .. } if path.parent() != Some(state) && !has_directory(path) => {
            Err(with_remedy(
                anyhow!("the directory of the socket {} does not exist", path.display()),
                "create it, or choose another path",
            ))
        }
        Listen::Unix { .. } => check_rights(address),
        Listen::Tcp { host, port } => {
            let first = resolve(host, *port)?.first().map(SocketAddr::ip);
            first.map_or(Ok(()), |ip| check_encryption(address, ip, settings))
        }
    }
}

/// Checks the user and group of a Unix socket.
///
/// # Errors
/// There is none of that name.
pub(super) fn check_rights(address: &Listen) -> anyhow::Result<()> {
    match address {
        Listen::Unix { access, .. } => rights(address, access).map(drop),
        Listen::Tcp { .. } => Ok(()),
    }
}

/// The rights of a Unix socket, with the numbers of its user and group.
pub(super) fn rights(address: &Listen, access: &SocketAccess) -> anyhow::Result<SocketRights> {
    Ok(SocketRights {
        mode: access.effective_mode().map(Mode::from_raw_mode),
        owner: account(address, "user", access.owner.as_deref(), user_id)?.map(Uid::from_raw),
        group: account(address, "group", access.group.as_deref(), group_id)?.map(Gid::from_raw),
    })
}

/// The number of a user or group of a socket's address.
fn account(
    address: &Listen,
    kind: &str,
    name: Option<&str>,
    find: fn(&str) -> io::Result<Option<u32>>,
) -> anyhow::Result<Option<u32>> {
    let Some(name) = name else { return Ok(None) };
    match find(name).with_context(|| format!("{address}: cannot look up the {kind} '{name}'"))? {
        None => Err(with_remedy(
            anyhow!("{address}: there is no {kind} '{name}'"),
            format!("create the {kind}, or name another one"),
        )),
        number => Ok(number),
    }
}

/// Whether a socket of this address is one of a configured address, whose port may be of the
/// system's choice.
fn is_bound_to(configured: &SocketAddr, bound: SocketAddr) -> bool {
    let is_port = configured.port() == bound.port() || configured.port() == 0;
    configured.ip() == bound.ip() && is_port
}

/// Refuses an address that other machines can reach without encryption, unless TLS is off
/// explicitly.
///
/// # Errors
/// It is one.
pub(super) fn check_encryption(
    address: &Listen,
    ip: IpAddr,
    settings: &TlsSettings,
) -> anyhow::Result<()> {
    if ip.is_loopback() || settings.mode != TlsMode::Off || settings.off_stated {
        return Ok(());
    }
    Err(with_remedy(
        anyhow!("{address} can be reached from other machines, and nothing would be encrypted"),
        "add --tls-cert, --tls-key and --tls forced, or --tls off to accept that",
    ))
}

/// Returns true if the directory of a path exists.
pub(super) fn has_directory(path: &Path) -> bool {
    directory_of(path).is_dir()
}

/// The directory of a file, also of one without a directory in its name.
pub(super) fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

pub(super) fn resolve(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let addresses = (host, port).to_socket_addrs().with_context(|| cannot_listen(host, port));
    Ok(addresses.map_err(|error| with_remedy(error, "check the host name"))?.collect())
}

fn cannot_listen(host: &str, port: u16) -> String {
    format!("cannot listen on port {port} of {host}")
}

/// Repeats `bind` while the address is in use, for up to `wait`.
pub(super) fn retry_while_in_use<T, E>(
    wait: Duration,
    is_in_use: impl Fn(&E) -> bool,
    bind: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        let bound = bind();
        if !bound.as_ref().is_err_and(&is_in_use) || begun.elapsed() >= wait {
            return bound;
        }
        std::thread::sleep(IN_USE_POLL);
    }
}

/// What to do if a TCP port cannot be bound. `option` sets another one.
pub(super) fn bind_remedy(error: ErrorKind, option: &str) -> String {
    match error {
        ErrorKind::AddrInUse => format!(
            "stop the program that listens there (`ss -ltnp` names it), or choose another port \
             with {option}"
        ),
        ErrorKind::AddrNotAvailable => "name an address of this machine (`ip address`)".to_owned(),
        ErrorKind::PermissionDenied => {
            "choose a port above 1023, or run with the capability CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => format!("choose another address with {option}"),
    }
}

/// Listens at a TCP address. Retries an address that is in use for up to `wait`. `option` is the
/// option of the command line that chooses another one. Sockets that are to be `replaced` do not
/// count.
///
/// # Errors
/// Fails if the host is unknown, or the address cannot be bound.
pub(super) fn bind_tcp(
    host: &str,
    port: u16,
    wait: Duration,
    option: &str,
    replaced: &[TakenPort],
) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let what = || cannot_listen(host, port);
    let addresses = resolve(host, port)?;
    let is_in_use = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let bound = retry_while_in_use(wait, is_in_use, || TcpListener::bind(addresses.as_slice()));
    let bound = bound.or_else(|error| match is_in_use(&error) {
        true => bind_beside(&addresses, port, replaced).unwrap_or(Err(error)),
        false => Err(error),
    });
    let socket = bound.map_err(|error| {
        let remedy = bind_remedy(error.kind(), option);
        with_remedy(anyhow::Error::new(error).context(what()), remedy)
    })?;
    let bound = socket.local_addr().with_context(what)?;
    Ok((socket, bound))
}
