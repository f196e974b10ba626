//! The socket to a server, TCP or Unix, in plain text or with TLS.

use super::tls::TlsSession;
use super::url::NbdAddress;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, connect, socket_with,
};
use rustls::ClientConnection;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
#[cfg(test)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Silence before keepalive probes, the least that the system knows. When an address has moved to
/// another host, an answer may have been lost with the former one, and the new one refuses the next
/// probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(1);
/// Interval of keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Failed probes before the connection is dropped, where there is no limit as below.
const KEEPALIVE_COUNT: u32 = 12;
/// Maximum time for unacknowledged data and probes, in milliseconds.
const USER_TIMEOUT_MS: u32 = 12_000;
/// Maximum slices per system call (`IOV_MAX`).
const SLICES_PER_CALL_MAX: usize = 1024;

/// A connected socket. One thread may send while another one receives.
pub(super) struct NbdSocket {
    socket: OwnedFd,
    /// Once TLS is established.
    tls: Option<Box<TlsSession>>,
}

#[cfg(test)]
impl From<UnixStream> for NbdSocket {
    fn from(stream: UnixStream) -> Self {
        Self::plain(stream.into())
    }
}

impl NbdSocket {
    const fn plain(socket: OwnedFd) -> Self {
        Self { socket, tls: None }
    }

    /// Connects before `deadline`.
    pub(super) fn connect(address: &NbdAddress, deadline: Instant) -> io::Result<Self> {
        match address {
            NbdAddress::Tcp { host, port } => {
                let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                let stream = connect_any(&addresses, deadline, TcpStream::connect_timeout)?;
                Ok(Self::tuned(stream))
            }
            NbdAddress::Unix { path } => {
                let (domain, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
                let socket = Self::plain(socket_with(domain, SocketType::STREAM, flags, None)?);
                // The send timeout also limits the wait for a place in the server's backlog.
                socket.set_deadline(Some(deadline))?;
                let address = SocketAddrUnix::new(path)?;
                let connected = rustix::io::retry_on_intr(|| connect(&socket.socket, &address));
                connected.map_err(|error| as_timeout(error.into()))?;
                Ok(socket)
            }
        }
    }

    /// Disables Nagle's algorithm, and detects a dead host within seconds. Unsupported options are
    /// ignored.
    fn tuned(stream: TcpStream) -> Self {
        let socket = Self::plain(stream.into());
        let _ = sockopt::set_tcp_nodelay(&socket.socket, true);
        let _ = sockopt::set_socket_keepalive(&socket.socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket.socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket.socket, KEEPALIVE_INTERVAL);
        let _ = sockopt::set_tcp_keepcnt(&socket.socket, KEEPALIVE_COUNT);
        let _ = sockopt::set_tcp_user_timeout(&socket.socket, USER_TIMEOUT_MS);
        socket
    }

    /// Sets the timeout of each later system call to the time that is left now until `deadline`;
    /// `None` removes the timeout.
    ///
    /// # Errors
    /// If the deadline has passed.
    pub(super) fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, left)?;
        Ok(sockopt::set_socket_timeout(&self.socket, Timeout::Send, left)?)
    }

    /// Receives some bytes; none at the end of the stream.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn receive_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            let Some(first) = slices.iter_mut().find(|slice| !slice.is_empty()) else {
                return Ok(0);
            };
            return tls.receive(first, |bytes| self.receive_raw(&mut [IoSliceMut::new(bytes)]));
        }
        self.receive_raw(slices)
    }

    fn receive_raw(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let batch = slices.len().min(SLICES_PER_CALL_MAX);
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(&self.socket, &mut slices[..batch]))?)
    }

    /// Fills all slices.
    pub(super) fn receive_all(&self, mut slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        IoSliceMut::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            match self.receive_vectored(slices)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => IoSliceMut::advance_slices(&mut slices, count),
            }
        }
        Ok(())
    }

    /// Sends all slices.
    pub(super) fn send_all(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        match &self.tls {
            Some(tls) => tls.send_all(slices, |bytes| self.send_raw(&mut [IoSlice::new(bytes)])),
            None => self.send_raw(slices),
        }
    }

    fn send_raw(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let batch = slices.len().min(SLICES_PER_CALL_MAX);
            let mut no_control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, &slices[..batch], &mut no_control, flags) {
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Establishes TLS before `deadline`.
    ///
    /// # Panics
    /// If it is established already.
    pub(super) fn start_tls(
        &mut self,
        session: ClientConnection,
        deadline: Instant,
    ) -> io::Result<()> {
        assert!(self.tls.is_none(), "TLS is established once");
        let session = TlsSession::establish(
            session,
            |bytes| {
                self.set_deadline(Some(deadline))?;
                self.send_raw(&mut [IoSlice::new(bytes)])
            },
            |bytes| {
                self.set_deadline(Some(deadline))?;
                self.receive_raw(&mut [IoSliceMut::new(bytes)])
            },
        );
        self.tls = Some(Box::new(session?));
        Ok(())
    }

    /// Sends the notice that nothing follows, if the connection has one.
    pub(super) fn close(&self) -> io::Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        tls.close(|bytes| self.send_raw(&mut [IoSlice::new(bytes)]))
    }

    /// Ends the connection, and wakes blocked senders and receivers.
    pub(super) fn shutdown(&self) {
        // The socket may be closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Names the timeout of a socket, which the system reports as an operation that would block.
pub(super) fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return io::ErrorKind::TimedOut.into();
    }
    error
}

/// Connects to the first address that answers before `deadline`. Each address has an equal share of
/// the time left, so that one that never answers leaves time for the others.
fn connect_any<T>(
    addresses: &[SocketAddr],
    deadline: Instant,
    mut connect: impl FnMut(&SocketAddr, Duration) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (address, remaining) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let share = deadline.saturating_duration_since(Instant::now()) / remaining;
        if share.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match connect(address, share) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_never_answers_leaves_time_for_the_next_one_and_the_handshake() {
        let time = Duration::from_secs(1000);
        let addresses: [SocketAddr; 2] = [([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 2).into()];
        let mut shares = Vec::new();
        let connected = connect_any(&addresses, Instant::now() + time, |address, share| {
            shares.push(share);
            if address.port() == 1 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
        });
        connected.unwrap();
        assert!(shares[0] <= time / 2, "{shares:?}");
        assert!(shares[1] > shares[0] && shares[1] <= time, "{shares:?}");
    }

    #[test]
    fn a_server_that_has_lost_its_address_is_noticed_within_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = NbdAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        let NbdSocket { socket, .. } = NbdSocket::connect(&address, deadline).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(1));
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(1));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 12_000);
    }

    #[test]
    fn no_address_is_tried_after_the_deadline() {
        let addresses: [SocketAddr; 1] = [([192, 0, 2, 1], 1).into()];
        let connected = connect_any(&addresses, Instant::now(), |_, _| -> io::Result<()> {
            panic!("too late")
        });
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
