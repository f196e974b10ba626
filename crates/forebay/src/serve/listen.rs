//! Listening sockets.

use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_config::{Listen, TlsMode, TlsSettings};
use forebay_control::{SocketError, SocketFile, listen_at};
use forebay_frontend_nbd::{Listener, Tls, TlsSetup};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time between two tries of an address that is in use.
const IN_USE_POLL: Duration = Duration::from_millis(20);

/// A socket that listens, and its address as people write it.
pub(super) struct Bound {
    pub listener: Listener,
    pub address: String,
    /// The file of a Unix socket, to be removed in the end.
    pub file: Option<SocketFile>,
}

/// Listens at an address. One that is in use is tried for as long as `wait`.
///
/// # Errors
/// The address is taken or can't be had, or others could listen in on it.
pub(super) fn bind(
    address: &Listen,
    settings: &TlsSettings,
    tls: Option<&TlsSetup>,
    wait: Duration,
) -> anyhow::Result<Bound> {
    let policy = match settings.mode {
        TlsMode::Off => Tls::Off,
        TlsMode::Selective => Tls::Selective,
        TlsMode::Forced => Tls::Forced,
    };
    match address {
        Listen::Unix(path) => {
            let is_in_use = |error: &SocketError| matches!(error, SocketError::InUse { .. });
            let listening = while_in_use(wait, is_in_use, || listen_at(path, None));
            let (socket, file) = listening?;
            let listener = Listener::new(socket.into(), false, policy, tls.cloned());
            Ok(Bound { listener, address: address.to_string(), file: Some(file) })
        }
        Listen::Tcp { host, port } => {
            let (socket, bound) = bind_tcp(host, *port, wait)?;
            if !bound.ip().is_loopback() && settings.mode == TlsMode::Off && !settings.off_stated {
                return Err(with_remedy(
                    anyhow!(
                        "{address} can be reached from other machines, and nothing would be \
                         encrypted"
                    ),
                    "give --tls-cert and --tls-key with --tls forced, or say --tls off",
                ));
            }
            socket.set_nonblocking(true)?;
            let listener = Listener::new(socket.into(), true, policy, tls.cloned());
            let address = Listen::Tcp { host: host.clone(), port: bound.port() }.to_string();
            Ok(Bound { listener, address, file: None })
        }
    }
}

/// Tries to bind until it works, fails for another reason than that the address is in use, or has
/// been tried for as long as `wait`.
fn while_in_use<T, E>(
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

fn bind_tcp(host: &str, port: u16, wait: Duration) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let what = || format!("can't listen at port {port} of {host}");
    let addresses = (host, port).to_socket_addrs().with_context(what);
    let addresses: Vec<SocketAddr> =
        addresses.map_err(|error| with_remedy(error, "check the name of the host"))?.collect();
    let is_in_use = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let bound = while_in_use(wait, is_in_use, || TcpListener::bind(addresses.as_slice()));
    let socket = bound.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => {
                "stop the program that listens there (`ss -ltnp` names it), or choose another port \
                 with --nbd tcp:HOST:PORT"
            }
            ErrorKind::AddrNotAvailable => "name an address of this machine (`ip address`)",
            ErrorKind::PermissionDenied => {
                "choose a port above 1023, or run with the right to use this one"
            }
            _ => "choose another address with --nbd tcp:HOST:PORT",
        };
        with_remedy(anyhow::Error::new(error).context(what()), remedy)
    })?;
    let bound = socket.local_addr().with_context(what)?;
    Ok((socket, bound))
}
