//! Listening sockets.

use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_config::{Listen, TlsMode, TlsSettings};
use forebay_control::{SocketError, SocketFile, listen_at};
use forebay_frontend_nbd::{Listener, Tls, TlsSetup};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two attempts to bind an address that is in use.
const IN_USE_POLL: Duration = Duration::from_millis(20);

/// A listening socket and its address in the syntax of `--nbd`.
pub(super) struct BoundListener {
    pub listener: Listener,
    pub address: String,
    /// The file of a Unix socket, removed at shutdown.
    pub file: Option<SocketFile>,
}

/// Listens at an address. Retries an address that is in use for up to `wait`.
///
/// # Errors
/// Fails if the address cannot be bound, or if other machines could reach it without encryption and
/// the operator has not turned TLS off explicitly.
pub(super) fn bind(
    address: &Listen,
    settings: &TlsSettings,
    tls: Option<&TlsSetup>,
    wait: Duration,
) -> anyhow::Result<BoundListener> {
    let policy = match settings.mode {
        TlsMode::Off => Tls::Off,
        TlsMode::Selective => Tls::Selective,
        TlsMode::Forced => Tls::Forced,
    };
    match address {
        Listen::Unix(path) => {
            let is_in_use = |error: &SocketError| matches!(error, SocketError::InUse { .. });
            let listening = retry_while_in_use(wait, is_in_use, || listen_at(path, None));
            let (socket, file) = listening?;
            let listener = Listener::new(socket.into(), false, policy, tls.cloned());
            Ok(BoundListener { listener, address: address.to_string(), file: Some(file) })
        }
        Listen::Tcp { host, port } => {
            let (socket, bound) = bind_tcp(host, *port, wait, "--nbd tcp:HOST:PORT")?;
            check_encryption(address, bound.ip(), settings)?;
            socket.set_nonblocking(true)?;
            let listener = Listener::new(socket.into(), true, policy, tls.cloned());
            let address = Listen::Tcp { host: host.clone(), port: bound.port() }.to_string();
            Ok(BoundListener { listener, address, file: None })
        }
    }
}

/// Checks an address without binding it: the directory of a Unix socket, the host name, and whether
/// other machines could reach it without encryption.
///
/// # Errors
/// As [`bind`].
pub(super) fn check(address: &Listen, settings: &TlsSettings) -> anyhow::Result<()> {
    match address {
        Listen::Unix(path) if !has_directory(path) => Err(with_remedy(
            anyhow!("the directory of the socket {} does not exist", path.display()),
            "create it, or choose another path",
        )),
        Listen::Unix(_) => Ok(()),
        Listen::Tcp { host, port } => {
            let first = resolve(host, *port)?.first().map(SocketAddr::ip);
            first.map_or(Ok(()), |ip| check_encryption(address, ip, settings))
        }
    }
}

fn check_encryption(address: &Listen, ip: IpAddr, settings: &TlsSettings) -> anyhow::Result<()> {
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
/// option of the command line that chooses another one.
///
/// # Errors
/// Fails if the host is unknown, or the address cannot be bound.
pub(super) fn bind_tcp(
    host: &str,
    port: u16,
    wait: Duration,
    option: &str,
) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let what = || cannot_listen(host, port);
    let addresses = resolve(host, port)?;
    let is_in_use = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let bound = retry_while_in_use(wait, is_in_use, || TcpListener::bind(addresses.as_slice()));
    let socket = bound.map_err(|error| {
        let remedy = bind_remedy(error.kind(), option);
        with_remedy(anyhow::Error::new(error).context(what()), remedy)
    })?;
    let bound = socket.local_addr().with_context(what)?;
    Ok((socket, bound))
}
