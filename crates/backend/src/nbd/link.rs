//! What the two threads of a connection share: which requests are in flight, and how they end.
//!
//! A request is here from [`Link::submit`] until it is answered, through as many connections as
//! that takes. Invariants:
//! - Only the receiving thread, and the sending thread for what it is just sending, end requests:
//!   a buffer is not given back while the other thread may still read from or write to it.
//! - A request waits in `to_send`, or is being sent, or is known to the parser of the present
//!   connection. When the connection ends, what was not answered goes back to `to_send`, in the
//!   order in which it came.
//! - No answer is given under the lock, since who gets it may submit the next request.
//!
//! **What a lost connection may have lost.** A server may keep writes in a volatile cache until a
//! flush, and may have been restarted. If writes were answered and not flushed when the connection
//! was lost, the flushes up to the next one that is answered fail: the layers above then know
//! that these writes have to be made again.

use super::socket::Socket;
use crate::{Extent, Io, IoKind};
use forebay_nbd::client::{Opened, ReplyParser, Request};
use forebay_nbd::proto::{command_flag, export_flag};
use forebay_nbd::{Command, client::Event};
use forebay_types::{ByteRange, IoError, IoResult};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What is asked of the server.
pub(super) enum Work {
    /// An I/O.
    Io(Io),
    /// What is allocated; answered with the extents, or by being dropped.
    Status(ByteRange, mpsc::Sender<Vec<Extent>>),
}

/// A request, from its submission to its answer.
pub(super) struct InFlight {
    pub(super) work: Work,
    /// When it fails, if the connection that it waits for is not back by then.
    deadline: Option<Instant>,
    /// Writes that had been answered when it came; what a flush is about.
    answered_writes: u64,
    /// The answer, where it came while the request was still being sent.
    early: Option<IoResult>,
    /// The write itself is done; the flush that stands for its force-unit-access flag is not.
    is_flushing: bool,
}

/// An open connection.
pub(super) struct Connection {
    pub(super) socket: Arc<Socket>,
    pub(super) parser: ReplyParser,
    pub(super) opened: Opened,
}

/// The state of a backend on a server; behind a lock.
pub(super) struct Link {
    pub(super) connection: Option<Connection>,
    pub(super) stopping: bool,
    pub(super) in_flight: BTreeMap<u64, InFlight>,
    to_send: VecDeque<u64>,
    sending: Option<u64>,
    next_cookie: u64,
    /// Since when there is no connection.
    down_since: Option<Instant>,
    reconnect_time: Duration,
    /// Whether a forced write is a write and a flush, as the server knows no forced writes.
    forces_by_flush: bool,
    /// Writes answered that a server may still hold in a volatile cache, counted from the start.
    answered_writes: u64,
    /// How many of them a flush has covered.
    flushed_writes: u64,
    /// Flushes with cookies below this fail; all do until the first of them is answered.
    doubt_below: u64,
    /// Requests answered by the server since the last connection was made.
    pub(super) served: u64,
}

/// Answers to be given when the lock is no longer held.
#[must_use]
#[derive(Default)]
pub(super) struct Answers(Vec<(Io, IoResult)>);

impl Answers {
    /// Gives them.
    pub(super) fn give(self) {
        for (io, result) in self.0 {
            io.done.complete(result);
        }
    }
}

impl Link {
    pub(super) fn new(connection: Connection, reconnect_time: Duration) -> Self {
        let can = |flag| connection.opened.can(flag);
        let forces_by_flush = !can(export_flag::SEND_FUA) && can(export_flag::SEND_FLUSH);
        Self {
            forces_by_flush,
            connection: Some(connection),
            stopping: false,
            in_flight: BTreeMap::new(),
            to_send: VecDeque::new(),
            sending: None,
            next_cookie: 1,
            down_since: None,
            reconnect_time,
            answered_writes: 0,
            flushed_writes: 0,
            doubt_below: 0,
            served: 0,
        }
    }

    /// Takes a request. It fails at once where the server has been away for too long.
    pub(super) fn submit(&mut self, work: Work) -> Answers {
        let mut answers = Answers::default();
        let deadline = self.down_since.map(|since| since + self.reconnect_time);
        if self.stopping || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            // A status query is answered by being dropped.
            if let Work::Io(io) = work {
                answers.0.push((io, Err(IoError::Io)));
            }
            return answers;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = InFlight {
            work,
            deadline,
            answered_writes: self.answered_writes,
            early: None,
            is_flushing: false,
        };
        self.in_flight.insert(cookie, request);
        self.to_send.push_back(cookie);
        answers
    }

    /// Takes the next request to be sent on the present connection: announces it to the parser,
    /// and gives its header and where to send it. [`Link::sent`] must follow.
    pub(super) fn next_to_send(&mut self, header: &mut Vec<u8>) -> Option<(u64, Arc<Socket>)> {
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

    /// A request has been sent, or could not be: its buffers are no longer being read.
    pub(super) fn sent(&mut self, cookie: u64) -> Answers {
        self.sending = None;
        match self.in_flight.get(&cookie).and_then(|request| request.early) {
            Some(result) => self.end(cookie, result),
            None => Answers::default(),
        }
    }

    /// The server has answered a request.
    pub(super) fn done(&mut self, cookie: u64, result: IoResult) -> Answers {
        self.served += 1;
        self.end(cookie, result)
    }

    /// Ends a request, or notes its answer for when it has been sent.
    fn end(&mut self, cookie: u64, result: IoResult) -> Answers {
        let mut answers = Answers::default();
        let Some(request) = self.in_flight.get_mut(&cookie) else { return answers };
        if self.sending == Some(cookie) {
            request.early = Some(result);
            return answers;
        }
        if result.is_ok() && !request.is_flushing && self.must_flush(cookie) {
            return answers;
        }
        let Some(request) = self.in_flight.remove(&cookie) else { return answers };
        let result = self.settle(cookie, &request, result);
        if let Work::Io(io) = request.work {
            answers.0.push((io, result));
        }
        answers
    }

    /// Turns a forced write that is done into a flush, where the server knows no forced writes.
    fn must_flush(&mut self, cookie: u64) -> bool {
        let Some(request) = self.in_flight.get_mut(&cookie) else { return false };
        let is_forced =
            matches!(&request.work, Work::Io(io) if io.kind == IoKind::Write { fua: true });
        if !self.forces_by_flush || !is_forced {
            return false;
        }
        self.answered_writes += 1;
        request.answered_writes = self.answered_writes;
        request.is_flushing = true;
        request.early = None;
        self.to_send.push_back(cookie);
        true
    }

    /// Keeps the account of what may be volatile; gives the answer that is true in its light.
    fn settle(&mut self, cookie: u64, request: &InFlight, result: IoResult) -> IoResult {
        let Work::Io(io) = &request.work else { return result };
        let is_flush = request.is_flushing || io.kind == IoKind::Flush;
        result?;
        if is_flush && cookie < self.doubt_below {
            if self.doubt_below == u64::MAX {
                // Told once; flushes that come from now on speak of what came from now on.
                self.doubt_below = self.next_cookie;
                self.flushed_writes = self.flushed_writes.max(request.answered_writes);
            }
            return Err(IoError::Io);
        }
        if is_flush {
            self.flushed_writes = self.flushed_writes.max(request.answered_writes);
        } else if io.kind.changes_data() && io.kind != (IoKind::Write { fua: true }) {
            self.answered_writes += 1;
        }
        Ok(())
    }

    /// The connection is lost: everything that was not answered is to be sent again.
    pub(super) fn lost(&mut self, now: Instant) {
        self.connection = None;
        self.down_since.get_or_insert(now);
        let deadline = now + self.reconnect_time;
        for request in self.in_flight.values_mut() {
            request.deadline.get_or_insert(deadline);
        }
        let is_open =
            |(&cookie, request): (&u64, &InFlight)| request.early.is_none().then_some(cookie);
        self.to_send = self.in_flight.iter().filter_map(is_open).collect();
    }

    /// Fails what has waited for a connection for too long.
    pub(super) fn expire(&mut self, now: Instant) -> Answers {
        let is_late = |request: &InFlight| request.deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> =
            self.in_flight.iter().filter(|(_, r)| is_late(r)).map(|(&cookie, _)| cookie).collect();
        let mut answers = Answers::default();
        for cookie in late {
            answers.0.append(&mut self.end(cookie, Err(IoError::Io)).0);
        }
        answers
    }

    /// When [`Link::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.in_flight.values().filter_map(|request| request.deadline).min()
    }

    /// A connection is there again. Says whether writes may have been lost with the old one.
    #[must_use]
    pub(super) fn reconnected(&mut self, connection: Connection) -> bool {
        self.connection = Some(connection);
        self.down_since = None;
        self.served = 0;
        let in_doubt = self.answered_writes > self.flushed_writes;
        if in_doubt {
            self.doubt_below = u64::MAX;
        }
        in_doubt
    }

    /// The I/O in flight under this name. The parser speaks only of requests that are.
    pub(super) fn io(&self, cookie: u64) -> Option<&Io> {
        match &self.in_flight.get(&cookie)?.work {
            Work::Io(io) => Some(io),
            Work::Status(..) => None,
        }
    }

    /// Takes apart what was received.
    pub(super) fn advance(&mut self, input: &[u8]) -> Option<(usize, Event)> {
        Some(self.connection.as_mut()?.parser.advance(input))
    }
}

impl InFlight {
    /// The request as it goes to a server with these abilities.
    fn request(&self, cookie: u64, opened: &Opened) -> Request {
        let io = match &self.work {
            Work::Io(_) if self.is_flushing => {
                let (command, flags) = (Command::Flush, 0);
                return Request { cookie, command, flags, offset: 0, len: 0 };
            }
            Work::Io(io) => io,
            Work::Status(range, _) => {
                let (command, flags) = (Command::BlockStatus, 0);
                return Request { cookie, command, flags, offset: range.offset, len: range.len };
            }
        };
        let fua_flag = if opened.can(export_flag::SEND_FUA) { command_flag::FUA } else { 0 };
        let (command, flags) = match io.kind {
            IoKind::Read => (Command::Read, 0),
            IoKind::Write { fua } => (Command::Write, if fua { fua_flag } else { 0 }),
            IoKind::Flush => (Command::Flush, 0),
            IoKind::Discard => (Command::Trim, 0),
            IoKind::Zero { unmap: true } => (Command::WriteZeroes, 0),
            IoKind::Zero { unmap: false } => (Command::WriteZeroes, command_flag::NO_HOLE),
        };
        Request { cookie, command, flags, offset: io.offset, len: io.len }
    }

    /// The I/O whose buffers go out behind the header.
    pub(super) fn payload(&self) -> Option<&Io> {
        match &self.work {
            Work::Io(io) if matches!(io.kind, IoKind::Write { .. }) && !self.is_flushing => {
                Some(io)
            }
            _ => None,
        }
    }
}
