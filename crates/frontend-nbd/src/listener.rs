//! Listening sockets and their TLS configuration.

use forebay_nbd::Tls;
use rustls::ServerConfig;
use socket2::{SockAddr, SockRef};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};

/// A replaceable TLS configuration. A renewed certificate applies to new connections; existing
/// sessions continue unchanged.
#[derive(Clone)]
pub struct TlsSetup(Arc<RwLock<Arc<ServerConfig>>>);

impl TlsSetup {
    /// A setup with this configuration.
    pub fn new(config: ServerConfig) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// Replaces the configuration for new connections.
    pub fn replace(&self, config: ServerConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A listening socket.
pub struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) tcp: bool,
    pub(crate) tls_policy: Tls,
    pub(crate) tls: Option<TlsSetup>,
}

impl Listener {
    /// Takes over a listening socket.
    pub const fn new(socket: OwnedFd, tcp: bool, tls_policy: Tls, tls: Option<TlsSetup>) -> Self {
        Self { socket, tcp, tls_policy, tls }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Its address, or its path: for the log.
    pub(crate) fn address(&self) -> String {
        let address = SockRef::from(&self.socket).local_addr();
        address.map_or_else(|error| error.to_string(), |address| shown(&address))
    }

    /// Sets options of a client's socket. The connection works without them, so failures are
    /// ignored.
    pub(crate) fn prepare(&self, client: &OwnedFd) {
        let socket = SockRef::from(client);
        if self.tcp {
            let _ = socket.set_tcp_nodelay(true);
            let _ = socket.set_keepalive(true);
        } else {
            // A buffer large enough for a batch of replies, so that one call sends them all.
            let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
        }
    }
}

const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The address of a client for the log: `address:port`, or `unix` for a client of a Unix socket.
pub(crate) fn peer_of(socket: &OwnedFd) -> Box<str> {
    let address = SockRef::from(socket).peer_addr();
    address.map_or_else(|error| error.to_string(), |address| shown(&address)).into()
}

fn shown(address: &SockAddr) -> String {
    match (address.as_socket(), address.as_pathname()) {
        (Some(address), _) => address.to_string(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "unix".to_owned(),
    }
}
