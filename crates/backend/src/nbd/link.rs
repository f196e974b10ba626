//! State shared by the two threads of a connection: the requests in flight.
//!
//! A request is tracked from [`NbdLink::submit`] until it is answered, across reconnects.
//! Invariants:
//! - A request that is answered or expires while the sending thread is sending it is completed by
//!   that thread. All other requests are completed by the receiving thread while there is a
//!   connection. Without a connection no thread accesses their buffers, and either may complete
//!   them. So no buffer is returned while the other thread may access it.
//! - A request waits in `to_send`, is being sent, or is known to the parser of the current
//!   connection. When the connection ends, unanswered requests return to `to_send`, in order of
//!   submission.
//! - No answer is delivered under the lock, because its receiver may submit the next request.
//! - A flush fails if writes that it covers may have been lost with a connection: see
//!   [`VolatileWrites`].

use super::socket::NbdSocket;
use super::volatile::{Cover, VolatileWrites};
use crate::{Extent, Io, IoKind};
use forebay_nbd::client::{ExportRequest, OpenExport, ReplyParser};
use forebay_nbd::proto::{command_flag, export_flag};
use forebay_nbd::{NbdCommand, client::ClientEvent};
use forebay_types::{ByteRange, IoError, IoResult};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A request to the server.
pub(super) enum LinkWork {
    /// An I/O.
    Io(Io),
    /// A block status query; answered with the extents, or by dropping the sender.
    Status(ByteRange, mpsc::Sender<Vec<Extent>>),
}

/// A request in flight.
pub(super) struct SentRequest {
    pub(super) work: LinkWork,
    /// The time at which the request fails if there is no connection then. Set while there is no
    /// connection, and kept after a reconnect.
    deadline: Option<Instant>,
    /// The writes that it covers if it is a flush.
    cover: Cover,
    /// The answer, if it came while the request was still being sent.
    early: Option<IoResult>,
    /// Whether the write has completed, but not the flush that emulates its FUA flag.
    is_flushing: bool,
}

/// An open connection.
pub(super) struct ServerConn {
    pub(super) socket: Arc<NbdSocket>,
    pub(super) parser: ReplyParser,
    pub(super) opened: OpenExport,
    /// When it was opened.
    pub(super) since: Instant,
}

/// The state of a connection, behind a lock.
pub(super) struct NbdLink {
    pub(super) connection: Option<ServerConn>,
    pub(super) is_stopping: bool,
    pub(super) in_flight: BTreeMap<u64, SentRequest>,
    to_send: VecDeque<u64>,
    sending: Option<u64>,
    next_cookie: u64,
    /// When the connection was lost.
    down_since: Option<Instant>,
    reconnect_time: Duration,
    /// Whether FUA is emulated by a flush, because the server lacks it.
    emulates_fua: bool,
    volatile: VolatileWrites,
    keeps_writes: bool,
    /// Requests answered on the current connection.
    pub(super) served: u64,
}

/// Answers to deliver after the lock is released.
#[must_use]
#[derive(Default)]
pub(super) struct DueAnswers(Vec<(Io, IoResult)>);

impl DueAnswers {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Delivers the answers.
    pub(super) fn deliver(self) {
        for (io, result) in self.0 {
            io.done.complete(result);
        }
    }
}

impl NbdLink {
    /// A link that has a connection. With `keeps_writes`, the loss of one loses no writes.
    pub(super) fn new(
        connection: ServerConn,
        reconnect_time: Duration,
        keeps_writes: bool,
    ) -> Self {
        let can = |flag| connection.opened.can(flag);
        let emulates_fua = !can(export_flag::SEND_FUA) && can(export_flag::SEND_FLUSH);
        Self {
            emulates_fua,
            connection: Some(connection),
            is_stopping: false,
            in_flight: BTreeMap::new(),
            to_send: VecDeque::new(),
            sending: None,
            next_cookie: 1,
            down_since: None,
            reconnect_time,
            volatile: VolatileWrites::default(),
            keeps_writes,
            served: 0,
        }
    }

    /// Accepts a request. It fails at once if the server has been unreachable for too long.
    pub(super) fn submit(&mut self, work: LinkWork) -> DueAnswers {
        let mut answers = DueAnswers::default();
        let deadline = self.down_since.map(|since| since + self.reconnect_time);
        if self.is_stopping || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            // Dropping a status query answers it.
            if let LinkWork::Io(io) = work {
                answers.0.push((io, Err(IoError::Io)));
            }
            return answers;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = SentRequest {
            work,
            deadline,
            cover: self.volatile.cover(),
            early: None,
            is_flushing: false,
        };
        self.in_flight.insert(cookie, request);
        self.to_send.push_back(cookie);
        answers
    }

    /// Takes the next request to send: registers it with the parser, writes its header, and returns
    /// its socket. [`NbdLink::on_sent`] must follow.
    pub(super) fn next_to_send(&mut self, header: &mut Vec<u8>) -> Option<(u64, Arc<NbdSocket>)> {
        let connection = self.connection.as_mut()?;
        loop {
            let cookie = self.to_send.pop_front()?;
            let Some(in_flight) = self.in_flight.get(&cookie) else { continue };
            let request = in_flight.request(cookie, &connection.opened);
            connection.parser.begin(&request);
            connection.opened.put_request(&request, header);
            self.sending = Some(cookie);
            return Some((cookie, connection.socket.clone()));
        }
    }

    /// Handles a request that was sent, or failed to be sent: its buffers are no longer being read.
    pub(super) fn on_sent(&mut self, cookie: u64) -> DueAnswers {
        self.sending = None;
        match self.in_flight.get(&cookie).and_then(|request| request.early) {
            Some(result) => self.end(cookie, result),
            None => DueAnswers::default(),
        }
    }

    /// Handles the server's answer to a request.
    pub(super) fn on_reply(&mut self, cookie: u64, result: IoResult) -> DueAnswers {
        self.served += 1;
        self.end(cookie, result)
    }

    /// Completes a request, or stores its answer until it has been sent.
    fn end(&mut self, cookie: u64, result: IoResult) -> DueAnswers {
        let mut answers = DueAnswers::default();
        let Some(request) = self.in_flight.get_mut(&cookie) else { return answers };
        if self.sending == Some(cookie) {
            request.early = Some(result);
            return answers;
        }
        if result.is_ok() && !request.is_flushing && self.start_fua_flush(cookie) {
            return answers;
        }
        let Some(request) = self.in_flight.remove(&cookie) else { return answers };
        let result = result.and_then(|()| self.account(&request));
        if let LinkWork::Io(io) = request.work {
            answers.0.push((io, result));
        }
        answers
    }

    /// Turns a completed FUA write into a flush, if FUA is emulated.
    fn start_fua_flush(&mut self, cookie: u64) -> bool {
        let Some(request) = self.in_flight.get_mut(&cookie) else { return false };
        let is_fua_write =
            matches!(&request.work, LinkWork::Io(io) if io.kind == IoKind::Write { fua: true });
        if !self.emulates_fua || !is_fua_write {
            return false;
        }
        request.is_flushing = true;
        request.early = None;
        self.to_send.push_back(cookie);
        true
    }

    /// Tracks volatile writes. Returns the result of a request that the server has answered with
    /// success.
    fn account(&mut self, request: &SentRequest) -> IoResult {
        match &request.work {
            LinkWork::Io(io) if io.kind == IoKind::Flush => self.volatile.end_flush(request.cover),
            LinkWork::Io(io)
                if io.kind.changes_data() && io.kind != (IoKind::Write { fua: true }) =>
            {
                self.volatile.record_answer();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles the loss of the connection: all requests in flight are to be resent. Answers to them
    /// that have come meanwhile do not count: the data may have been lost with the server's cache.
    pub(super) fn on_disconnect(&mut self, now: Instant) {
        let before = self.connection.take();
        self.down_since.get_or_insert(now);
        let latest = now + self.reconnect_time;
        // The deadline moves by twice the time with a connection: that time does not count, and a
        // long connection restores the whole limit. Brief connections hardly move it, so a request
        // that ends each of them fails.
        let up =
            before.map_or(Duration::ZERO, |before| now.saturating_duration_since(before.since));
        for request in self.in_flight.values_mut() {
            let deadline = request.deadline.map_or(latest, |deadline| deadline + 2 * up);
            request.deadline = Some(deadline.min(latest));
            (request.early, request.is_flushing) = (None, false);
        }
        self.to_send = self.in_flight.keys().copied().collect();
    }

    /// Fails requests that have waited too long for a connection. Does nothing with a connection.
    pub(super) fn expire(&mut self, now: Instant) -> DueAnswers {
        if self.connection.is_some() {
            return DueAnswers::default();
        }
        let is_late =
            |request: &SentRequest| request.deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> =
            self.in_flight.iter().filter(|(_, r)| is_late(r)).map(|(&cookie, _)| cookie).collect();
        let mut answers = DueAnswers::default();
        for cookie in late {
            answers.0.append(&mut self.end(cookie, Err(IoError::Io)).0);
        }
        answers
    }

    /// The next deadline for [`NbdLink::expire`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.connection.is_some() {
            return None;
        }
        self.in_flight.values().filter_map(|request| request.deadline).min()
    }

    /// A new connection is open. Returns whether writes may have been lost with the old one.
    ///
    /// # Panics
    /// If there is a connection.
    #[must_use]
    pub(super) fn on_connect(&mut self, connection: ServerConn) -> bool {
        assert!(self.connection.is_none(), "a link has one connection at a time");
        self.connection = Some(connection);
        self.down_since = None;
        self.served = 0;
        !self.keeps_writes && self.volatile.on_restart()
    }

    /// The I/O in flight with this cookie. The parser only reports requests in flight.
    pub(super) fn io(&self, cookie: u64) -> Option<&Io> {
        match &self.in_flight.get(&cookie)?.work {
            LinkWork::Io(io) => Some(io),
            LinkWork::Status(..) => None,
        }
    }

    /// Parses received bytes.
    pub(super) fn advance(&mut self, input: &[u8]) -> Option<(usize, ClientEvent)> {
        Some(self.connection.as_mut()?.parser.advance(input))
    }
}

impl SentRequest {
    /// The request for a server with these capabilities.
    fn request(&self, cookie: u64, opened: &OpenExport) -> ExportRequest {
        let io = match &self.work {
            LinkWork::Io(_) if self.is_flushing => {
                let (command, flags) = (NbdCommand::Flush, 0);
                return ExportRequest { cookie, command, flags, offset: 0, len: 0 };
            }
            LinkWork::Io(io) => io,
            LinkWork::Status(range, _) => {
                let (command, flags) = (NbdCommand::BlockStatus, 0);
                return ExportRequest {
                    cookie,
                    command,
                    flags,
                    offset: range.offset,
                    len: range.len,
                };
            }
        };
        let fua_flag = if opened.can(export_flag::SEND_FUA) { command_flag::FUA } else { 0 };
        let (command, flags) = match io.kind {
            IoKind::Read => (NbdCommand::Read, 0),
            IoKind::Write { fua } => (NbdCommand::Write, if fua { fua_flag } else { 0 }),
            IoKind::Flush => (NbdCommand::Flush, 0),
            IoKind::Discard => (NbdCommand::Trim, 0),
            IoKind::Zero { unmap: true } => (NbdCommand::WriteZeroes, 0),
            IoKind::Zero { unmap: false } => (NbdCommand::WriteZeroes, command_flag::NO_HOLE),
        };
        ExportRequest { cookie, command, flags, offset: io.offset, len: io.len }
    }

    /// The I/O whose buffers follow the header.
    pub(super) fn payload(&self) -> Option<&Io> {
        match &self.work {
            LinkWork::Io(io) if matches!(io.kind, IoKind::Write { .. }) && !self.is_flushing => {
                Some(io)
            }
            _ => None,
        }
    }
}
