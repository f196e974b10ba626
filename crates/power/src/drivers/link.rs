//! One connection to a NUT server: commands out, replies in, each exchange within its time.

use super::Authority;
use crate::nut::{Command, Event, Reply, ReplyParser};
use crate::{Trouble, TroubleKind};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A socket whose reads and writes are over at a time that is set for them together, so that a
/// server that drips single bytes gains nothing.
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

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    fn socket(&mut self) -> &mut Timed {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

/// A connection.
pub(super) struct Link {
    stream: Stream,
    parser: ReplyParser,
    /// Who is at the other end, for sentences.
    server: String,
    timeout: Duration,
}

impl Link {
    /// Connects within `timeout`, which then holds for each exchange as well.
    pub(super) fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, Trouble> {
        let server = format!("{host}:{port}");
        let until = Instant::now() + timeout;
        let fail = |error: io::Error| {
            let kind =
                if is_timeout(&error) { TroubleKind::TimedOut } else { TroubleKind::Unreachable };
            let remedy = "check that upsd runs and listens there";
            Trouble::new(kind, format!("no NUT server answers at {server} ({error}): {remedy}"))
        };
        let mut last = ErrorKind::AddrNotAvailable.into();
        for address in (host, port).to_socket_addrs().map_err(fail)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(fail(ErrorKind::TimedOut.into()));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => {
                    socket.set_nodelay(true).map_err(fail)?;
                    let stream = Stream::Plain(Timed { socket, until });
                    return Ok(Self { stream, parser: ReplyParser::new(), server, timeout });
                }
                Err(error) => last = error,
            }
        }
        Err(fail(last))
    }

    /// Encrypts the connection, and checks who the other end is.
    pub(super) fn start_tls(mut self, host: &str, whom: &Authority) -> Result<Self, Trouble> {
        let Self { server, timeout, .. } = &self;
        let fail = |what: String| {
            let remedy = "check its certificate and the authority's file";
            Trouble::new(TroubleKind::Tls, format!("no TLS with the NUT server {what}: {remedy}"))
        };
        let server = server.clone();
        let timeout = *timeout;
        match self.ask(&Command::StartTls)? {
            Reply::Ok(_) => {}
            Reply::Err(code) => return Err(fail(format!("{server} ({code})"))),
            _ => return Err(self.garbled("a reply does not fit its question")),
        }
        let Stream::Plain(socket) = self.stream else {
            return Err(fail(format!("{server} (it is there already)")));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| fail(format!("{server} ({error})")))?;
        let session = ClientConnection::new(Arc::clone(&whom.0), name)
            .map_err(|error| fail(format!("{server} ({error})")))?;
        let mut stream = StreamOwned::new(session, socket);
        stream.sock.until = Instant::now() + timeout;
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .map_err(|error| fail(format!("{server} ({error})")))?;
        }
        let stream = Stream::Tls(Box::new(stream));
        Ok(Self { stream, parser: ReplyParser::new(), server, timeout })
    }

    /// Says a command and waits for its reply. After trouble the connection is of no use.
    pub(super) fn ask(&mut self, command: &Command) -> Result<Reply, Trouble> {
        let mut line = Vec::new();
        command
            .encode(&mut line)
            .map_err(|error| Trouble::new(TroubleKind::Garbled, error.to_string()))?;
        self.stream.socket().until = Instant::now() + self.timeout;
        let sent = match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(&line),
            Stream::Tls(stream) => stream.write_all(&line).and_then(|()| stream.flush()),
        };
        sent.map_err(|error| self.broke(&error))?;
        let reply = self.receive()?;
        // A reply too many would answer the next question; behind STARTTLS it could be anybody's.
        if self.parser.is_idle() { Ok(reply) } else { Err(self.garbled("a reply too many")) }
    }

    fn receive(&mut self) -> Result<Reply, Trouble> {
        let mut bytes = [0; 4096];
        loop {
            match self.parser.next() {
                Event::Reply(reply) => return Ok(reply),
                Event::Broken(breach) => return Err(self.garbled(&breach.to_string())),
                Event::NeedMore => {}
            }
            let received = match &mut self.stream {
                Stream::Plain(stream) => stream.read(&mut bytes),
                Stream::Tls(stream) => stream.read(&mut bytes),
            };
            match received {
                Ok(0) => return Err(self.broke(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.parser.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broke(&error)),
            }
        }
    }

    fn broke(&self, error: &io::Error) -> Trouble {
        let server = &self.server;
        if is_timeout(error) {
            let ms = self.timeout.as_millis();
            let sentence = format!("the NUT server {server} did not answer within {ms} ms");
            return Trouble::new(TroubleKind::TimedOut, sentence);
        }
        let sentence = format!("the NUT server {server} ended the connection ({error})");
        Trouble::new(TroubleKind::Closed, sentence)
    }

    fn garbled(&self, what: &str) -> Trouble {
        let sentence = format!("what answers at {} is no NUT server: {what}", self.server);
        Trouble::new(TroubleKind::Garbled, sentence)
    }
}

/// What reads and writes of a socket say whose time is over.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
