//! Listening sockets.

use anyhow::{Context, bail};
use forebay_config::{Listen, TlsMode, TlsSettings};
use forebay_nbd::Tls;
use forebay_runtime::{Listener, TlsSetup};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// A socket that listens, and its address as people write it.
pub(super) struct Bound {
    pub listener: Listener,
    pub address: String,
}

/// Listens at an address.
///
/// # Errors
/// The address is taken or can't be had, or others could listen in on it.
pub(super) fn bind(
    address: &Listen,
    settings: &TlsSettings,
    tls: Option<&TlsSetup>,
) -> anyhow::Result<Bound> {
    let policy = match settings.mode {
        TlsMode::Off => Tls::Off,
        TlsMode::Selective => Tls::Selective,
        TlsMode::Forced => Tls::Forced,
    };
    match address {
        Listen::Unix(path) => {
            let socket = bind_unix(path)?;
            socket.set_nonblocking(true)?;
            let listener = Listener::new(socket.into(), false, policy, tls.cloned());
            Ok(Bound { listener, address: address.to_string() })
        }
        Listen::Tcp { host, port } => {
            let (socket, bound) = bind_tcp(host, *port)?;
            if !bound.ip().is_loopback() && settings.mode == TlsMode::Off && !settings.off_stated {
                bail!(
                    "{address} can be reached from other machines, and nothing would be \
                     encrypted: give --tls-cert and --tls-key with --tls forced, or say --tls off"
                );
            }
            socket.set_nonblocking(true)?;
            let listener = Listener::new(socket.into(), true, policy, tls.cloned());
            let address = Listen::Tcp { host: host.clone(), port: bound.port() }.to_string();
            Ok(Bound { listener, address })
        }
    }
}

fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            // A socket that nobody answers at was left behind by a process that was killed.
            if UnixStream::connect(path).is_ok() {
                bail!("{} is in use by another server: choose another path", path.display());
            }
            std::fs::remove_file(path)
                .with_context(|| format!("{} is in the way", path.display()))?;
            UnixListener::bind(path)
        }
        result => result,
    }
    .with_context(|| format!("can't listen at unix:{}", path.display()))
}

fn bind_tcp(host: &str, port: u16) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let what = || format!("can't listen at port {port} of {host}");
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().with_context(what)?.collect();
    let socket = TcpListener::bind(addresses.as_slice()).with_context(what)?;
    let bound = socket.local_addr().with_context(what)?;
    Ok((socket, bound))
}
