//! Connections to a server's NBD listener: made and negotiated here, then used by the kernel.

use anyhow::{Context, Error, bail};
use forebay_api::ConnectedDevice;
use forebay_nbd::client::{ClientHandshake, ClientStep, ExportConfig, OpenExport};
use forebay_terminal::with_remedy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect,
    socket_with,
};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long a server may take for the handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A connection in the transmission phase, before its first request. The kernel has its own
/// reference to the socket, so this one must not be read from.
pub(super) struct NbdConnection {
    socket: OwnedFd,
    /// The local address, if it is a TCP connection.
    address: Option<String>,
}

impl NbdConnection {
    /// Connects, and opens the export of a volume.
    pub(super) fn open(
        device: &ConnectedDevice,
        volume: &str,
    ) -> anyhow::Result<(Self, OpenExport)> {
        let deadline = Instant::now() + HANDSHAKE_TIME;
        let at = device.unix.as_deref().or(device.tcp.as_deref()).unwrap_or_default().to_owned();
        let connection = match (&device.unix, &device.tcp) {
            (Some(path), _) => Self::unix(path),
            (None, Some(address)) => Self::tcp(address),
            (None, None) => bail!("the server does not say where it listens for NBD clients"),
        };
        let connection = connection.map_err(|error| {
            let message = format!("cannot connect to the server's NBD listener at {at}: {error}");
            let remedy = "check that the path is the same here as for the server";
            with_remedy(Error::msg(message), remedy)
        })?;
        let opened = connection.negotiate(volume, deadline);
        let opened = opened.with_context(|| format!("the NBD listener at {at}"))?;
        // The kernel's requests may take as long as they need.
        connection.set_timeout(None)?;
        Ok((connection, opened))
    }

    fn unix(path: &str) -> io::Result<Self> {
        let (domain, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let socket = socket_with(domain, SocketType::STREAM, flags, None)?;
        let connection = Self { socket, address: None };
        // It limits the wait for a place in the server's backlog, too.
        connection.set_timeout(Some(HANDSHAKE_TIME))?;
        let address = SocketAddrUnix::new(path)?;
        rustix::io::retry_on_intr(|| connect(&connection.socket, &address))?;
        Ok(connection)
    }

    fn tcp(address: &str) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, HANDSHAKE_TIME) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let address = Some(stream.local_addr()?.to_string());
                    return Ok(Self { socket: stream.into(), address });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn set_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, time)?;
        Ok(sockopt::set_socket_timeout(&self.socket, Timeout::Send, time)?)
    }

    fn negotiate(&self, volume: &str, deadline: Instant) -> anyhow::Result<OpenExport> {
        let config = ExportConfig { export: volume.to_owned(), simple: true, ..Default::default() };
        let mut handshake = ClientHandshake::new(config);
        let (mut input, mut output) = (Vec::new(), Vec::new());
        loop {
            let (taken, step) = handshake.advance(&input, &mut output);
            input.drain(..taken);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.set_timeout(Some(left))?;
            self.send_all(&output)?;
            output.clear();
            match step {
                ClientStep::NeedMore => self.receive_more(&mut input)?,
                ClientStep::Enter(opened) if input.is_empty() => return Ok(opened),
                ClientStep::Enter(_) => bail!("the server has sent more than was asked for"),
                ClientStep::StartTls => bail!("the server requires TLS"),
                ClientStep::Fail(failure) => return Err(failure.into()),
            }
        }
    }

    fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = rustix::io::retry_on_intr(|| {
                rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)
            })?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn receive_more(&self, input: &mut Vec<u8>) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty())
        });
        match received? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (len, _) => {
                input.extend_from_slice(&bytes[..len]);
                Ok(())
            }
        }
    }

    /// The descriptor, for the kernel.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The local address of a TCP connection.
    pub(super) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Waits up to `time` for the end of the connection. Returns whether it has ended.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        let time =
            Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        // After a signal, the caller comes again.
        matches!(poll(&mut polled, Some(&time)), Ok(1..))
    }

    /// Whether the kernel has not read all that has arrived.
    pub(super) fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|len| len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn the_end_of_a_connection_is_seen_without_reading() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let connection = NbdConnection { socket: ours.into(), address: None };
        theirs.write_all(b"reply").unwrap();
        assert!(!connection.wait_for_end(Duration::ZERO));
        assert!(connection.has_unread());
        drop(theirs);
        assert!(connection.wait_for_end(Duration::from_secs(60)));
        assert!(connection.has_unread(), "what has arrived is left to the kernel");
    }

    #[test]
    fn a_server_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let unix = Some(path.display().to_string());
        let device = ConnectedDevice { unix, ..ConnectedDevice::default() };
        let error = NbdConnection::open(&device, "disk").err().unwrap();
        assert!(format!("{error:#}").contains("not an NBD server"), "{error:#}");
        server.join().unwrap();
        let nowhere = ConnectedDevice { unix: Some("/nowhere/x".into()), ..device };
        let error = NbdConnection::open(&nowhere, "disk").err().unwrap();
        assert!(format!("{error:#}").contains("cannot connect"), "{error:#}");
    }
}
