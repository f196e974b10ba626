//! The two threads of a connection: one sends requests, one receives replies and reconnects. While
//! there is no connection, the sending thread fails expired requests, because name resolution may
//! block the receiving thread past their deadlines.

use super::connect::{ConnectedExport, ExportTarget};
use super::link::{LinkWork, NbdLink, ServerConn};
use super::socket::NbdSocket;
use crate::io::window;
use crate::log::LogLimiter;
use crate::sync::lock;
use crate::{Buffer, Extent, Io};
use forebay_nbd::NbdCommand;
use forebay_nbd::client::{
    CLIENT_INPUT_BYTES_MAX, ClientEvent, ExportRequest, OpenExport, ReplyParser,
};
use forebay_types::{ByteRange, Few, IoError};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes received at a time, headers and small reads together.
const INPUT_BYTES: usize = 64 << 10;
const _: () = assert!(INPUT_BYTES >= CLIENT_INPUT_BYTES_MAX);
/// The first pause before a reconnect; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The shortest wait for a deadline, so that rounding does not cause a busy loop.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Timeout for connecting and the handshake; resolving a name may take longer.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// State shared by the threads and the backend.
pub(super) struct NbdShared {
    pub(super) target: ExportTarget,
    /// The export as first opened.
    pub(super) first: OpenExport,
    pub(super) link: Mutex<NbdLink>,
    /// Signalled when there is a request to send, and at the end.
    pub(super) wake: Condvar,
    error_limiter: LogLimiter,
}

impl ConnectedExport {
    /// Splits off the part that the link keeps.
    pub(super) fn into_connection(self) -> (ServerConn, Vec<u8>) {
        let parser = ReplyParser::new(&self.opened);
        let socket = Arc::new(self.socket);
        let since = Instant::now();
        (ServerConn { socket, parser, opened: self.opened, since }, self.input)
    }
}

impl NbdShared {
    pub(super) fn new(target: ExportTarget, first: OpenExport, link: NbdLink) -> Self {
        let (link, wake) = (Mutex::new(link), Condvar::new());
        Self { target, first, link, wake, error_limiter: LogLimiter::default() }
    }

    /// The main loop of the sending thread.
    pub(super) fn send(&self) {
        let mut header = Vec::new();
        let mut link = lock(&self.link);
        loop {
            header.clear();
            if let Some((cookie, socket)) = link.next_to_send(&mut header) {
                let payload = link.in_flight.get(&cookie).and_then(|request| request.payload());
                let buffers = payload.map(|io| io.buffers.clone()).unwrap_or_default();
                drop(link);
                let mut slices = vec![IoSlice::new(&header)];
                // SAFETY: the request is not answered while `sending` names it, see `Link::end`.
                slices.extend(buffers.iter().map(|b| IoSlice::new(unsafe { b.as_slice() })));
                if socket.send_all(&mut slices).is_err() {
                    // The receiver finds the end of the stream, and reconnects.
                    socket.shutdown();
                }
                let answers = lock(&self.link).on_sent(cookie);
                answers.deliver();
                link = lock(&self.link);
            } else if link.is_stopping {
                let connection = link.connection.as_ref();
                let ends = connection.map(|c| (c.socket.clone(), c.opened));
                drop(link);
                if let Some((socket, opened)) = ends {
                    send_disconnect(&socket, &opened, &mut header);
                }
                return;
            } else {
                link = self.wait_and_expire(link);
            }
        }
    }

    /// Fails the requests that have expired, or waits until there may be something to do.
    fn wait_and_expire<'a>(&'a self, mut link: MutexGuard<'a, NbdLink>) -> MutexGuard<'a, NbdLink> {
        let now = Instant::now();
        let answers = link.expire(now);
        if !answers.is_empty() {
            drop(link);
            answers.deliver();
            return lock(&self.link);
        }
        match link.next_deadline() {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(now).max(WAIT_MIN);
                self.wake.wait_timeout(link, left).unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.wake.wait(link).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// The main loop of the receiving thread.
    pub(super) fn receive(&self, mut input: Vec<u8>) {
        let mut pause = PAUSE_MIN;
        loop {
            let socket = lock(&self.link).connection.as_ref().map(|c| c.socket.clone());
            let Some(socket) = socket else { return };
            let error = self.receive_replies(&socket, input).err();
            socket.shutdown();
            let mut link = lock(&self.link);
            link.on_disconnect(Instant::now());
            if link.is_stopping {
                return;
            }
            // Back off from a server that disconnects before it serves anything.
            if link.served > 0 {
                pause = PAUSE_MIN;
            }
            drop(link);
            // The requests in flight have deadlines now.
            self.wake.notify_all();
            let url = self.target.name.as_str();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            tracing::warn!(url, error, "NBD connection lost, reconnecting");
            match self.reconnect(&mut pause) {
                Some(rest) => input = rest,
                None => return,
            }
        }
    }

    /// Retries until connected. `None` if the backend is closed.
    fn reconnect(&self, pause: &mut Duration) -> Option<Vec<u8>> {
        loop {
            self.pause(*pause)?;
            *pause = (*pause * 2).min(PAUSE_MAX);
            let connected = self.target.connect(CONNECT_TIME_MAX).and_then(|connected| {
                self.target.check_same(&self.first, &connected.opened)?;
                Ok(connected)
            });
            match connected {
                Ok(connected) => {
                    let (connection, input) = connected.into_connection();
                    let mut link = lock(&self.link);
                    if link.is_stopping {
                        return None;
                    }
                    // Requests that have expired by now are not resent.
                    let answers = link.expire(Instant::now());
                    let in_doubt = link.on_connect(connection);
                    drop(link);
                    answers.deliver();
                    self.wake.notify_all();
                    let url = self.target.name.as_str();
                    tracing::info!(url, in_doubt, "NBD connection restored");
                    return Some(input);
                }
                Err(error) => {
                    if let Some(count) = self.error_limiter.admit() {
                        let url = self.target.name.as_str();
                        tracing::warn!(url, %error, count, "NBD reconnect failed");
                    }
                }
            }
        }
    }

    /// Waits for `time`. `None` if the backend is closed.
    fn pause(&self, time: Duration) -> Option<()> {
        let link = lock(&self.link);
        let waited = self.wake.wait_timeout_while(link, time, |link| !link.is_stopping);
        let (link, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!link.is_stopping).then_some(())
    }

    fn log_error(&self, range: Option<ByteRange>, error: IoError, text: &str) {
        if let Some(count) = self.error_limiter.admit() {
            let url = self.target.name.as_str();
            tracing::warn!(url, ?range, %error, text, count, "NBD request failed");
        }
    }

    /// Receives replies until the connection ends.
    fn receive_replies(&self, socket: &NbdSocket, rest: Vec<u8>) -> io::Result<()> {
        let mut input = Input::new(socket, rest);
        loop {
            let mut link = lock(&self.link);
            let Some((taken, event)) = link.advance(input.bytes()) else { return Ok(()) };
            input.take(taken);
            match event {
                ClientEvent::NeedMore => {
                    drop(link);
                    input.receive()?;
                }
                ClientEvent::Data { cookie, offset, len } => {
                    let buffers = place(&link, cookie, offset, len);
                    drop(link);
                    // SAFETY: the request is a read in flight, and only this thread completes
                    // those.
                    let slices = buffers.iter().map(|b| unsafe { b.as_mut_slice() });
                    input.fill(slices.map(IoSliceMut::new).collect())?;
                }
                ClientEvent::Hole { cookie, offset, len } => {
                    let buffers = place(&link, cookie, offset, len);
                    drop(link);
                    // SAFETY: as for data.
                    buffers.iter().for_each(|b| unsafe { b.as_mut_slice() }.fill(0));
                }
                ClientEvent::Extents { cookie, extents } => {
                    let request = link.in_flight.get(&cookie).map(|request| &request.work);
                    if let Some(LinkWork::Status(_, reply)) = request {
                        let extent = |e: forebay_nbd::Extent| Extent {
                            len: e.len,
                            hole: e.hole,
                            zero: e.zero,
                        };
                        // The caller may have gone.
                        let _ = reply.send(extents.into_iter().map(extent).collect());
                    }
                }
                ClientEvent::Error { cookie, error, text } => {
                    let range = link.io(cookie).map(Io::range);
                    drop(link);
                    self.log_error(range, error, &text);
                }
                ClientEvent::Done { cookie, result } => {
                    let answers = link.on_reply(cookie, result);
                    drop(link);
                    answers.deliver();
                    self.wake.notify_one();
                }
                ClientEvent::Broken(breach) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, breach));
                }
            }
        }
    }
}

/// The buffers for a part of a read. The parser only reports data within reads in flight.
fn place(link: &NbdLink, cookie: u64, offset: u64, len: u32) -> Few<Buffer> {
    let io = link.io(cookie);
    io.map(|io| window(&io.buffers, offset - io.offset, u64::from(len))).unwrap_or_default()
}

fn send_disconnect(socket: &NbdSocket, opened: &OpenExport, header: &mut Vec<u8>) {
    let command = NbdCommand::Disconnect;
    opened.put_request(&ExportRequest { cookie: 0, command, flags: 0, offset: 0, len: 0 }, header);
    // The server sees the end of the stream in any case.
    let _ = socket.send_all(&mut [IoSlice::new(header)]).and_then(|()| socket.close());
    socket.shutdown();
}

/// Received, unparsed bytes.
struct Input<'a> {
    socket: &'a NbdSocket,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<'a> Input<'a> {
    fn new(socket: &'a NbdSocket, rest: Vec<u8>) -> Self {
        let end = rest.len();
        let mut buffer = rest;
        buffer.resize(INPUT_BYTES.max(end), 0);
        Self { socket, buffer, start: 0, end }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "consumed more than received");
    }

    /// Receives more bytes.
    fn receive(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.socket.receive(&mut self.buffer[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// Fills `slices` from the buffered bytes, then directly from the socket.
    fn fill(&mut self, mut slices: Vec<IoSliceMut<'_>>) -> io::Result<()> {
        let mut rest = slices.as_mut_slice();
        while let Some(slice) = rest.first_mut().filter(|_| self.start < self.end) {
            let count = slice.len().min(self.end - self.start);
            slice[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            IoSliceMut::advance_slices(&mut rest, count);
        }
        self.socket.receive_all(rest)
    }
}
