//! Connections that the next server continues.
//!
//! When a server is replaced, its connections in the transmission phase leave: each reads no
//! further request, answers what is in flight, and is given up at the boundary of a request, as a
//! socket and the record of its session. The next server builds a connection of them as it does
//! after a handshake. A connection that was accepted and not yet greeted goes over as it is. All
//! others end with their server: those with TLS, whose keys stay in this process, and those in the
//! handshake.

use crate::conn::{Conn, ConnPhase};
use crate::exports::export_of;
use crate::server::ConnectionOrigin;
use crate::{NbdServer, Serving};
use forebay_frontend::{ClientHistory, Sockets, WorkerContext};
use forebay_nbd::{ExportInfo, Negotiated, SESSION_INPUT_BYTES_MAX, SessionError, SessionRecord};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A connection on its way to the next server.
#[derive(Debug)]
pub struct HandedOver {
    /// The client's socket.
    pub socket: OwnedFd,
    /// The encoded record of its session; `None` if nothing has been sent to the client yet.
    pub session: Option<Vec<u8>>,
}

/// The connections that a server has given up.
#[derive(Default)]
pub(crate) struct GivenUp {
    connections: Vec<HandedOver>,
    /// Connections that were asked to leave.
    asked: usize,
}

impl NbdServer {
    /// From now on, connections leave instead of being closed when their worker stops serving them.
    pub fn begin_handover(&self) {
        self.is_handing_over.store(true, Ordering::Relaxed);
    }

    /// Takes the connections that have left, and the number of those that had to and have not.
    /// Whatever leaves from now on is closed.
    pub fn end_handover(&self) -> (Vec<HandedOver>, usize) {
        self.is_handing_over.store(false, Ordering::Relaxed);
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        let GivenUp { connections, asked } = std::mem::take(&mut *given_up);
        let sessions = connections.iter().filter(|it| it.session.is_some()).count();
        let closed = asked.saturating_sub(sessions);
        (connections, closed)
    }

    /// Serves a connection that another server has handed over, `since` ago. It counts as any other
    /// client.
    ///
    /// # Errors
    /// The record of its session is not usable. The connection is closed.
    pub fn take_over(&self, handed: HandedOver, since: Duration) -> Result<(), SessionError> {
        let HandedOver { socket, session } = handed;
        let origin = match session {
            Some(bytes) => {
                let mut record = SessionRecord::decode(&bytes)?;
                let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                record.age_ms = record.age_ms.saturating_add(since_ms);
                ConnectionOrigin::Session(Box::new(record))
            }
            None => match self.listener_of(&socket) {
                Some(listener) => ConnectionOrigin::Listener(listener),
                None => return Ok(()),
            },
        };
        self.assign(socket, origin);
        Ok(())
    }

    pub(crate) fn is_handing_over(&self) -> bool {
        self.is_handing_over.load(Ordering::Relaxed)
    }

    /// Counts a connection that has to leave.
    fn ask(&self) {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).asked += 1;
    }

    fn give_up(&self, connection: HandedOver) {
        if self.is_handing_over() {
            let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
            given_up.connections.push(connection);
        }
    }

    /// Passes a connection on that is not being served yet.
    pub(crate) fn give_up_unserved(&self, socket: OwnedFd, origin: ConnectionOrigin) {
        let session = match origin {
            ConnectionOrigin::Listener(_) => None,
            ConnectionOrigin::Session(record) => {
                self.ask();
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                Some(bytes)
            }
        };
        self.give_up(HandedOver { socket, session });
    }
}

impl<C: WorkerContext> Serving<'_, C> {
    /// Has a connection leave, if the next server can continue it. Returns whether it leaves.
    pub(crate) fn hand_over(&mut self, index: u32) -> bool {
        let server = &self.nbd.server;
        let is_handing_over = server.is_handing_over();
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        match conn.phase {
            ConnPhase::Draining => return false,
            ConnPhase::Transmission if conn.tls.is_none() && is_handing_over => {}
            _ => {
                server.ask();
                return false;
            }
        }
        server.ask();
        conn.phase = ConnPhase::Leaving;
        self.update_receiving(index);
        self.nbd.conns.mark_pending(index);
        true
    }

    /// Gives a connection that leaves up, if it is at the boundary of a request and nothing of it
    /// is in flight. Returns whether it has.
    pub(crate) fn give_up(&mut self, index: u32) -> bool {
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        if !conn.is_at_boundary() || self.cx.in_flight(conn.client) > 0 {
            return false;
        }
        if conn.input.len() > SESSION_INPUT_BYTES_MAX {
            self.disconnect(index, "too many requests sent while the server is replaced");
            return false;
        }
        let Some(terms) = conn.terms else { return false };
        let history = self.cx.history(conn.client);
        let mut found = None;
        self.each_export(|export, identity| {
            if export.id == terms.export {
                found = Some((export.name, *identity));
            }
        });
        let Some((export, identity)) = found else {
            // Its volume is being removed.
            self.disconnect(index, "");
            return false;
        };
        let Some(mut conn) = self.nbd.conns.remove(index) else { return false };
        let record = SessionRecord {
            export,
            identity,
            terms,
            client: history.id,
            age_ms: u64::try_from(history.age.as_millis()).unwrap_or(u64::MAX),
            done_bytes: history.done_bytes,
            input: std::mem::take(&mut conn.input),
        };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.cx.leave(conn.client, true);
        self.cx.sockets().forget(conn.socket.as_raw_fd());
        let Conn { socket, .. } = *conn;
        self.nbd.server.give_up(HandedOver { socket, session: Some(bytes) });
        true
    }

    /// Continues a session on its volume. A session that cannot be continued is closed, as it would
    /// have been without a hand-over.
    pub(crate) fn continue_session(&mut self, index: u32, record: &SessionRecord) {
        let mut terms = None;
        self.each_export(|export, identity| {
            if export.name == record.export {
                terms = Some(record.terms_on(&export, identity));
            }
        });
        match terms {
            Some(Ok(terms)) => self.begin_again(index, terms, record),
            refused => {
                let Some(conn) = self.nbd.conns.get(index) else { return };
                let reason = match refused {
                    Some(Err(error)) => error.to_string(),
                    _ => "the volume is not served".to_owned(),
                };
                let (client, volume) = (&conn.peer, &record.export);
                tracing::warn!(%client, %volume, reason, "a connection is not taken over");
                self.disconnect(index, "");
            }
        }
    }

    fn begin_again(&mut self, index: u32, terms: Negotiated, record: &SessionRecord) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (id, age) = (record.client, Duration::from_millis(record.age_ms));
        let history = ClientHistory { id, age, done_bytes: record.done_bytes };
        self.cx.continue_history(conn.client, history);
        self.enter(index, terms);
        self.nbd.conns.mark_pending(index);
        self.feed(index, &record.input);
        self.update_receiving(index);
    }

    fn each_export(&self, mut each: impl FnMut(ExportInfo, &[u8; 32])) {
        self.cx.each_volume(&mut |volume| each(export_of(volume), &volume.identity));
    }
}

impl Conn {
    /// Whether it is between two requests, and the kernel has nothing to do for it.
    fn is_at_boundary(&self) -> bool {
        matches!(self.phase, ConnPhase::Leaving)
            && !self.is_inside_request()
            && !self.receiving
            && !self.filling
            && self.has_sent()
            && self.status_requests.is_empty()
    }
}
