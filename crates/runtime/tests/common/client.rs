//! A client with full control over its requests: any number in flight, any flags.
//!
//! It uses the client side of `forebay_nbd`, which checks the server's protocol: a violation fails
//! the test. All calls block; a server that does not reply in time fails the test, too.

use forebay_nbd::client::{
    ClientEvent, ClientHandshake, ClientStep, ExportConfig, ExportRequest, OpenExport, OpenFailure,
    ReplyParser,
};
use forebay_nbd::proto::command_flag::FUA;
use forebay_nbd::{Extent, NbdCommand};
use forebay_types::{IoError, IoResult};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The timeout of all waits. It only ends a test whose server hangs, so it is far longer than the
/// slowest loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Bytes per read of the socket.
const RECEIVE_BYTES: usize = 256 << 10;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's result.
    pub result: IoResult,
    /// The bytes of a read.
    pub data: Vec<u8>,
    /// The extents of a block status.
    pub extents: Vec<Extent>,
}

/// One connection in the transmission phase.
pub struct Client<S = UnixStream> {
    /// The socket, or TLS around it.
    pub stream: S,
    /// The server's description of the export.
    pub opened: OpenExport,
    parser: ReplyParser,
    input: Vec<u8>,
    /// What one read takes in, before it is added to `input`.
    received: Vec<u8>,
    cookie: u64,
    /// Reads in flight: their offset, and the bytes received.
    reads: HashMap<u64, (u64, Vec<u8>)>,
    extents: HashMap<u64, Vec<Extent>>,
    answers: HashMap<u64, Answer>,
}

pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl Client<UnixStream> {
    /// Enters an export with structured replies and block status. The server ends a handshake after
    /// 10 s, which a loaded machine may exceed; then another connection is tried.
    pub fn new(socket: &Path, export: &str) -> Self {
        let begun = Instant::now();
        loop {
            match Self::try_enter(connect(socket), &config(export)) {
                Some(entered) => return entered.unwrap(),
                None => assert!(begun.elapsed() < PATIENCE, "the server ends every handshake"),
            }
        }
    }
}

/// A configuration with structured replies and block status.
pub fn config(export: &str) -> ExportConfig {
    ExportConfig { export: export.to_owned(), base_allocation: true, ..ExportConfig::default() }
}

/// Reads what has arrived. Linux interrupts a read with a timeout when the process is stopped and
/// continued, or frozen and thawed, even without a signal handler.
fn read_some(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Advances the handshake to its next step other than [`ClientStep::NeedMore`].
pub fn advance<S: Read + Write>(
    stream: &mut S,
    handshake: &mut ClientHandshake,
    input: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> ClientStep {
    let step = try_advance(stream, handshake, input, out);
    step.expect("the server ended the connection within the handshake")
}

/// Writes and empties the bytes. `None` if the server has ended the connection.
fn write_unless_ended(stream: &mut impl Write, out: &mut Vec<u8>) -> Option<()> {
    let written = unless_ended(stream.write_all(out));
    out.clear();
    written
}

/// `None` if the other end of the socket is closed. Any other error fails the test.
fn unless_ended<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            None
        }
        result => Some(result.unwrap()),
    }
}

/// As [`advance`]; `None` if the server ends the connection.
fn try_advance<S: Read + Write>(
    stream: &mut S,
    handshake: &mut ClientHandshake,
    input: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Option<ClientStep> {
    loop {
        write_unless_ended(stream, out)?;
        let (taken, step) = handshake.advance(input, out);
        input.drain(..taken);
        write_unless_ended(stream, out)?;
        if step != ClientStep::NeedMore {
            return Some(step);
        }
        let mut bytes = [0; 4096];
        let len = unless_ended(read_some(stream, &mut bytes)).filter(|&len| len > 0)?;
        input.extend_from_slice(&bytes[..len]);
    }
}

impl<S: Read + Write> Client<S> {
    /// Enters an export.
    pub fn enter(stream: S, config: &ExportConfig) -> Result<Self, OpenFailure> {
        let entered = Self::try_enter(stream, config);
        entered.expect("the server ended the connection within the handshake")
    }

    /// As [`Client::enter`]; `None` if the server ends the connection.
    pub fn try_enter(mut stream: S, config: &ExportConfig) -> Option<Result<Self, OpenFailure>> {
        let mut handshake = ClientHandshake::new(config.clone());
        let (mut input, mut out) = (Vec::new(), Vec::new());
        match try_advance(&mut stream, &mut handshake, &mut input, &mut out)? {
            ClientStep::Enter(opened) => Some(Ok(Self::opened(stream, opened, input))),
            ClientStep::Fail(failure) => Some(Err(failure)),
            step => panic!("an unexpected step: {step:?}"),
        }
    }

    /// A client after its handshake; `input` was received after that.
    pub fn opened(stream: S, opened: OpenExport, input: Vec<u8>) -> Self {
        Self {
            stream,
            opened,
            parser: ReplyParser::new(&opened),
            input,
            received: vec![0; RECEIVE_BYTES],
            cookie: 0,
            reads: HashMap::new(),
            extents: HashMap::new(),
            answers: HashMap::new(),
        }
    }

    /// Sends a request and returns its cookie, without waiting for the reply.
    pub fn send(
        &mut self,
        command: NbdCommand,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> u64 {
        self.try_send(command, flags, offset, len, data).expect("the server ended the connection")
    }

    /// As [`Self::send`]; `None` when the connection has ended.
    pub fn try_send(
        &mut self,
        command: NbdCommand,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Option<u64> {
        let mut bytes = Vec::with_capacity(64 + data.len());
        let cookie = self.put(command, flags, offset, len, &mut bytes);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).ok().map(|()| cookie)
    }

    /// Appends a request's header to `out`, and expects its reply.
    pub fn put(
        &mut self,
        command: NbdCommand,
        flags: u16,
        offset: u64,
        len: u64,
        out: &mut Vec<u8>,
    ) -> u64 {
        self.cookie += 1;
        let request = ExportRequest { cookie: self.cookie, command, flags, offset, len };
        self.opened.put_request(&request, out);
        if command != NbdCommand::Disconnect {
            self.parser.begin(&request);
        }
        if command == NbdCommand::Read {
            self.reads.insert(self.cookie, (offset, vec![0; len.min(64 << 20) as usize]));
        }
        self.cookie
    }

    /// Waits for the answer to a request.
    pub fn wait(&mut self, cookie: u64) -> Answer {
        self.try_wait(cookie).expect("the server ended the connection")
    }

    /// Waits for the answer to a request; `None` when the connection ends first.
    pub fn try_wait(&mut self, cookie: u64) -> Option<Answer> {
        loop {
            if let Some(answer) = self.answers.remove(&cookie) {
                return Some(answer);
            }
            self.pump()?;
        }
    }

    /// Whether the answer to a request was received; does not block.
    pub fn has_answer(&self, cookie: u64) -> bool {
        self.answers.contains_key(&cookie)
    }

    /// Processes replies until a request completes; `None` when the connection ends.
    fn pump(&mut self) -> Option<()> {
        loop {
            let (taken, event) = self.parser.advance(&self.input);
            self.input.drain(..taken);
            match event {
                ClientEvent::NeedMore => {
                    self.receive()?;
                }
                ClientEvent::Data { cookie, offset, len } => self.take_data(cookie, offset, len)?,
                ClientEvent::Hole { .. } | ClientEvent::Error { .. } => {}
                ClientEvent::Extents { cookie, extents } => {
                    self.extents.insert(cookie, extents);
                }
                ClientEvent::Done { cookie, result } => {
                    let data = self.reads.remove(&cookie).map(|(_, data)| data);
                    let data = data.filter(|_| result.is_ok()).unwrap_or_default();
                    let extents = self.extents.remove(&cookie).unwrap_or_default();
                    self.answers.insert(cookie, Answer { result, data, extents });
                    return Some(());
                }
                ClientEvent::Broken(breach) => panic!("the server broke the protocol: {breach}"),
            }
        }
    }

    fn take_data(&mut self, cookie: u64, offset: u64, len: u32) -> Option<()> {
        let (start, mut data) = self.reads.remove(&cookie).expect("data comes for reads only");
        let at = (offset - start) as usize;
        let target = &mut data[at..at + len as usize];
        let ready = target.len().min(self.input.len());
        target[..ready].copy_from_slice(&self.input[..ready]);
        self.input.drain(..ready);
        let rest = self.stream.read_exact(&mut target[ready..]);
        self.reads.insert(cookie, (start, data));
        rest.ok()
    }

    fn receive(&mut self) -> Option<()> {
        let received = read_some(&mut self.stream, &mut self.received);
        let len = match received {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer in time"),
            Err(error) => {
                eprintln!("the client's connection failed: {error}");
                0
            }
        };
        self.input.extend_from_slice(&self.received[..len]);
        (len > 0).then_some(())
    }

    /// Sends a request and waits for its answer.
    pub fn call(&mut self, command: NbdCommand, flags: u16, offset: u64, len: u64) -> Answer {
        let cookie = self.send(command, flags, offset, len, &[]);
        self.wait(cookie)
    }

    pub fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, IoError> {
        let answer = self.call(NbdCommand::Read, 0, offset, len);
        answer.result.map(|()| answer.data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> IoResult {
        self.write_with(0, offset, data)
    }

    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> IoResult {
        self.write_with(FUA, offset, data)
    }

    fn write_with(&mut self, flags: u16, offset: u64, data: &[u8]) -> IoResult {
        let cookie = self.send(NbdCommand::Write, flags, offset, data.len() as u64, data);
        self.wait(cookie).result
    }

    pub fn flush(&mut self) -> IoResult {
        self.call(NbdCommand::Flush, 0, 0, 0).result
    }

    /// Queries the allocation (block status).
    pub fn block_status(&mut self, offset: u64, len: u64) -> Result<Vec<Extent>, IoError> {
        let answer = self.call(NbdCommand::BlockStatus, 0, offset, len);
        answer.result.map(|()| answer.extents)
    }

    /// Disconnects and waits for the end of the connection.
    pub fn disconnect(mut self) {
        self.send(NbdCommand::Disconnect, 0, 0, 0, &[]);
        assert!(self.receive().is_none(), "nothing comes after a disconnect");
    }
}
