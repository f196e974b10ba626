//! One connection to a NUT server, with a timeout for each exchange.

use super::Authority;
use crate::nut::{NutCommand, NutEvent, NutParser, NutReply};
use crate::{ReadError, ReadErrorKind};
use forebay_types::{Action, Fault, Remedy};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A socket with one deadline for all reads and writes of an exchange, so that a server cannot
/// extend it by sending single bytes.
struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum NutStream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl NutStream {
    fn socket(&mut self) -> &mut Timed {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

pub(super) struct NutConn {
    stream: NutStream,
    parser: NutParser,
    /// The server's address, for messages.
    server: String,
    timeout: Duration,
}

impl NutConn {
    /// Connects within `timeout`, which also applies to each exchange.
    pub(super) fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, ReadError> {
        let server = format!("{host}:{port}");
        let until = Instant::now() + timeout;
        let fail = |error: io::Error| {
            let kind = if is_timeout(&error) {
                ReadErrorKind::TimedOut
            } else {
                ReadErrorKind::Unreachable
            };
            let message = format!("cannot connect to NUT server {server}: {error}");
            ReadError::new(kind, message, "check that upsd runs and listens there")
        };
        let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(fail)?.collect();
        let socket = connect_any(&addresses, until, TcpStream::connect_timeout).map_err(fail)?;
        socket.set_nodelay(true).map_err(fail)?;
        let stream = NutStream::Plain(Timed { socket, until });
        Ok(Self { stream, parser: NutParser::new(), server, timeout })
    }

    /// Starts TLS, and verifies the server's certificate.
    pub(super) fn start_tls(
        mut self,
        host: &str,
        authority: &Authority,
    ) -> Result<Self, ReadError> {
        let (server, timeout) = (self.server.clone(), self.timeout);
        let fail = |reason: &dyn fmt::Display, remedy: Remedy| {
            let message = format!("TLS with NUT server {server} failed: {reason}");
            ReadError::new(ReadErrorKind::Tls, message, remedy)
        };
        let untrusted = |reason: &dyn fmt::Display| {
            fail(reason, "check its certificate and the CA file".into())
        };
        match self.ask(&NutCommand::StartTls)? {
            NutReply::Ok(_) => {}
            NutReply::Err(code) => return Err(fail(&code, code.remedy())),
            _ => return Err(self.malformed("unexpected reply")),
        }
        let NutStream::Plain(socket) = self.stream else {
            return Err(fail(&"TLS is already active", Action::Report.into()));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| untrusted(&error))?;
        let session = ClientConnection::new(Arc::clone(&authority.0), name)
            .map_err(|error| untrusted(&error))?;
        let mut stream = StreamOwned::new(session, socket);
        stream.sock.until = Instant::now() + timeout;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|error| untrusted(&error))?;
        }
        let stream = NutStream::Tls(Box::new(stream));
        Ok(Self { stream, parser: NutParser::new(), server, timeout })
    }

    /// Sends a command and receives its reply. After an error, drop the connection.
    pub(super) fn ask(&mut self, command: &NutCommand) -> Result<NutReply, ReadError> {
        let mut line = Vec::new();
        command.encode(&mut line).map_err(|error| {
            ReadError::new(ReadErrorKind::Argument, error.to_string(), error.remedy())
        })?;
        self.stream.socket().until = Instant::now() + self.timeout;
        let sent = match &mut self.stream {
            NutStream::Plain(stream) => stream.write_all(&line),
            NutStream::Tls(stream) => stream.write_all(&line).and_then(|()| stream.flush()),
        };
        sent.map_err(|error| self.broke(&error))?;
        let reply = self.receive()?;
        // An extra reply would be taken for the reply to the next command. After STARTTLS it may be
        // injected.
        if self.parser.is_idle() { Ok(reply) } else { Err(self.malformed("extra reply")) }
    }

    fn receive(&mut self) -> Result<NutReply, ReadError> {
        let mut bytes = [0; 4096];
        loop {
            match self.parser.next() {
                NutEvent::Reply(reply) => return Ok(reply),
                NutEvent::Broken(error) => return Err(self.malformed(&error.to_string())),
                NutEvent::NeedMore => {}
            }
            let received = match &mut self.stream {
                NutStream::Plain(stream) => stream.read(&mut bytes),
                NutStream::Tls(stream) => stream.read(&mut bytes),
            };
            match received {
                Ok(0) => return Err(self.broke(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.parser.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broke(&error)),
            }
        }
    }

    fn broke(&self, error: &io::Error) -> ReadError {
        let server = &self.server;
        if is_timeout(error) {
            let ms = self.timeout.as_millis();
            let message = format!("NUT server {server} did not answer within {ms} ms");
            let remedy = "check the server and the network";
            return ReadError::new(ReadErrorKind::TimedOut, message, remedy);
        }
        let message = format!("NUT server {server} closed the connection: {error}");
        ReadError::new(ReadErrorKind::Closed, message, "see the log of upsd")
    }

    fn malformed(&self, what: &str) -> ReadError {
        let message = format!("invalid reply from {}: {what}", self.server);
        let remedy = "check the address, and that it is that of a NUT server";
        ReadError::new(ReadErrorKind::Malformed, message, remedy)
    }
}

/// Whether a socket read or write timed out.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Connects to the first address that answers before `until`. Each address has an equal share of
/// the time left, so that one that never answers leaves time for the others.
fn connect_any<T>(
    addresses: &[SocketAddr],
    until: Instant,
    mut connect: impl FnMut(&SocketAddr, Duration) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for (address, remaining) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let share = until.saturating_duration_since(Instant::now()) / remaining;
        if share.is_zero() {
            return Err(ErrorKind::TimedOut.into());
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
    fn an_address_that_never_answers_leaves_time_for_the_next_one() {
        let time = Duration::from_secs(1000);
        let addresses: [SocketAddr; 2] = [([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 2).into()];
        let mut shares = Vec::new();
        let connected = connect_any(&addresses, Instant::now() + time, |address, share| {
            shares.push(share);
            if address.port() == 1 { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
        });
        connected.unwrap();
        assert!(shares[0] <= time / 2, "{shares:?}");
        assert!(shares[1] > shares[0] && shares[1] <= time, "{shares:?}");
    }
}
