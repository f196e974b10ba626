//! The socket to a server, TCP or Unix.

use super::url::NbdAddress;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Idle time before keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Interval of keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Failed probes before the connection is dropped.
const KEEPALIVE_COUNT: u32 = 3;
/// Maximum time for unacknowledged data, in milliseconds.
const USER_TIMEOUT_MS: u32 = 12_000;
/// Maximum slices per system call (`IOV_MAX`).
const SLICES_PER_CALL_MAX: usize = 1024;

/// A connected socket. One thread may send while another one receives.
pub(super) struct Socket(OwnedFd);

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self(stream.into())
    }
}

impl Socket {
    /// Connects. Each address of a host gets up to `time`; name resolution and a Unix socket have
    /// no limit.
    pub(super) fn connect(address: &NbdAddress, time: Duration) -> io::Result<Self> {
        match address {
            NbdAddress::Tcp { host, port } => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, time) {
                        Ok(stream) => return Ok(Self::tuned(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            NbdAddress::Unix { path } => Ok(UnixStream::connect(path)?.into()),
        }
    }

    /// Disables Nagle's algorithm, and detects a dead host within seconds. Unsupported options are
    /// ignored.
    fn tuned(stream: TcpStream) -> Self {
        let socket = Self(stream.into());
        let _ = sockopt::set_tcp_nodelay(&socket.0, true);
        let _ = sockopt::set_socket_keepalive(&socket.0, true);
        let _ = sockopt::set_tcp_keepidle(&socket.0, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket.0, KEEPALIVE_INTERVAL);
        let _ = sockopt::set_tcp_keepcnt(&socket.0, KEEPALIVE_COUNT);
        let _ = sockopt::set_tcp_user_timeout(&socket.0, USER_TIMEOUT_MS);
        socket
    }

    /// Sets the receive timeout; `None` waits forever.
    pub(super) fn set_receive_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, Timeout::Recv, time)?)
    }

    /// Receives some bytes; none at the end of the stream.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn receive_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let batch = slices.len().min(SLICES_PER_CALL_MAX);
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(&self.0, &mut slices[..batch]))?)
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
    pub(super) fn send_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let batch = slices.len().min(SLICES_PER_CALL_MAX);
            let mut no_control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.0, &slices[..batch], &mut no_control, flags) {
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends the connection, and wakes blocked senders and receivers.
    pub(super) fn shutdown(&self) {
        // The socket may be closed already.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}
