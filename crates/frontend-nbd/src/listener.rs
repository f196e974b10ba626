//! Listening sockets and their TLS configuration.

use forebay_frontend::Peer;
use forebay_nbd::Tls;
use rustls::ServerConfig;
use socket2::{SockAddr, SockRef};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What clients have to do about TLS, and the certificate for it. Both can be replaced, for new
/// connections; existing sessions continue unchanged.
#[derive(Clone)]
pub struct TlsSetup(Arc<RwLock<Option<CurrentTls>>>);

#[derive(Clone)]
struct CurrentTls {
    policy: Tls,
    config: Arc<ServerConfig>,
}

impl TlsSetup {
    /// A setup with this policy and configuration; with `None`, TLS is off.
    pub fn new(setup: Option<(Tls, ServerConfig)>) -> Self {
        let this = Self(Arc::default());
        this.replace(setup);
        this
    }

    /// Replaces the policy and the configuration for new connections.
    pub fn replace(&self, setup: Option<(Tls, ServerConfig)>) {
        let setup = setup.map(|(policy, config)| CurrentTls { policy, config: Arc::new(config) });
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    /// Whether clients can use TLS.
    pub fn is_on(&self) -> bool {
        self.config().is_some()
    }

    pub(crate) fn policy(&self) -> Tls {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map_or(Tls::Off, |current| current.policy)
    }

    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|current| Arc::clone(&current.config))
    }
}

/// A listening socket. It outlives its socket while clients that it has accepted are connected.
pub struct Listener {
    /// `None` once it is closed.
    socket: Mutex<Option<OwnedFd>>,
    /// Its address, or its path: for the log.
    pub(crate) address: String,
    is_closing: AtomicBool,
    clients: AtomicU64,
    pub(crate) tcp: bool,
    pub(crate) tls: TlsSetup,
}

impl Listener {
    /// Takes over a listening socket.
    pub fn new(socket: OwnedFd, tcp: bool, tls: TlsSetup) -> Self {
        let address = SockRef::from(&socket).local_addr();
        Self {
            address: address.map_or_else(|error| error.to_string(), |address| shown(&address)),
            socket: Mutex::new(Some(socket)),
            is_closing: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            tcp,
            tls,
        }
    }

    fn socket(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket's descriptor, unless clients are not accepted any more.
    pub(crate) fn open_fd(&self) -> Option<RawFd> {
        if self.is_closing() { None } else { self.fd() }
    }

    /// The socket's descriptor until [`Self::close`].
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.socket().as_ref().map(AsRawFd::as_raw_fd)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// No client is accepted from now on but those that wait already. Returns how many are
    /// connected.
    pub(crate) fn begin_closing(&self) -> u64 {
        self.is_closing.store(true, Ordering::Release);
        self.clients.load(Ordering::Relaxed)
    }

    /// A client that has connected and is not accepted yet.
    pub(crate) fn next_waiting(&self) -> Option<OwnedFd> {
        let socket = self.socket();
        SockRef::from(socket.as_ref()?).accept().ok().map(|(client, _)| client.into())
    }

    /// Refuses clients from now on. The descriptor stays open until [`Self::close`].
    pub(crate) fn refuse(&self) {
        if let Some(socket) = &*self.socket() {
            // A listening socket that it fails for is closed soon.
            let _ = SockRef::from(socket).shutdown(Shutdown::Both);
        }
    }

    /// Closes the socket. No operation of the kernel may still use its descriptor.
    pub(crate) fn close(&self) {
        drop(self.socket().take());
    }

    /// Whether a connection was accepted at its address.
    pub(crate) fn has_accepted(&self, connection: &OwnedFd) -> bool {
        let socket = self.socket();
        let Some(own) = &*socket else { return false };
        let addresses = [own, connection].map(|socket| SockRef::from(socket).local_addr());
        let [Ok(own), Ok(other)] = addresses else { return false };
        match (own.as_socket(), other.as_socket()) {
            (Some(own), Some(other)) => {
                let is_at_ip = own.ip().is_unspecified()
                    || own.ip().to_canonical() == other.ip().to_canonical();
                own.port() == other.port() && is_at_ip
            }
            (None, None) => own.as_pathname().is_some() && own.as_pathname() == other.as_pathname(),
            _ => false,
        }
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

/// A connected client, as its listener counts it; dropped at the end of the connection.
pub(crate) struct Admission(Arc<Listener>);

impl Admission {
    pub(crate) fn by(listener: &Arc<Listener>) -> Self {
        listener.clients.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(listener))
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The process that has connected a Unix socket; unknown in another namespace of processes.
fn peer_process(socket: &OwnedFd) -> Peer {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `found`, which any bytes are valid for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    match result == 0 && found.pid > 0 {
        true => Peer::Process { id: found.pid.cast_unsigned(), user: found.uid },
        false => Peer::Unknown,
    }
}

/// The other end of a client's socket: the process of a client of a Unix socket, or the address.
pub(crate) fn peer_of(socket: &OwnedFd) -> Peer {
    match SockRef::from(socket).peer_addr() {
        Ok(address) if address.is_unix() => peer_process(socket),
        Ok(address) => Peer::Address(shown(&address).into()),
        Err(_) => Peer::Unknown,
    }
}

/// Whether a peer may be a client in the kernel of this machine.
pub(crate) fn is_local(peer: &Peer) -> bool {
    match peer {
        Peer::Process { .. } => true,
        Peer::Address(address) => {
            let address = address.parse::<SocketAddr>();
            address.is_ok_and(|address| address.ip().to_canonical().is_loopback())
        }
        Peer::Ublk(_) | Peer::Unknown => false,
    }
}

fn shown(address: &SockAddr) -> String {
    match (address.as_socket(), address.as_pathname()) {
        (Some(address), _) => address.to_string(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "unix".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_this_machine_are_known() {
        let address = |text: &str| is_local(&Peer::Address(text.into()));
        assert!(is_local(&Peer::Process { id: 1, user: 0 }));
        assert!(address("127.0.0.1:5") && address("[::1]:5") && address("[::ffff:127.0.0.1]:5"));
        assert!(!address("192.0.2.1:5") && !address("[2001:db8::1]:5"));
    }
}
