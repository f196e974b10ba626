//! Sending of replies, and the end of connections.

use crate::Serving;
use crate::conn::{Conn, ConnPhase};
use forebay_frontend::{PoolAccess, Sockets, WorkerContext};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl<C: WorkerContext> Serving<'_, C> {
    /// Sends a connection's queued replies at the end of a turn, or closes it if it has ended. Then
    /// releases memory that it no longer needs.
    pub(crate) fn finish_turn(&mut self, index: u32) {
        self.send_or_close(index);
        self.release_memory(index);
    }

    fn release_memory(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        let (client, held) = (conn.client, conn.held_bytes());
        if matches!(conn.phase, ConnPhase::Draining) && conn.pieces.is_none() {
            self.cx.stop_waiting(client);
        }
        self.cx.release_unused(client, held);
    }

    fn send_or_close(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        conn.is_pending = false;
        if conn.broken {
            if !conn.sending && !conn.receiving && !conn.filling {
                self.close(index);
            }
            return;
        }
        if conn.sending {
            return;
        }
        let is_sent = if conn.tls.is_some() {
            self.send_encrypted(index)
        } else if conn.active.is_empty() && conn.queued.is_empty() {
            true
        } else {
            self.send_plain(index)
        };
        let Some(conn) = self.nbd.conns.get(index).filter(|_| is_sent) else { return };
        if matches!(conn.phase, ConnPhase::Leaving) {
            self.give_up(index);
        } else if conn.tls_next && !matches!(conn.phase, ConnPhase::Draining) {
            self.start_tls(index);
        } else if matches!(conn.phase, ConnPhase::Draining)
            && conn.has_sent()
            && conn.pieces.is_none()
            && self.cx.in_flight(conn.client) == 0
        {
            self.disconnect(index, "");
        }
    }

    /// Returns whether everything has been sent.
    fn send_plain(&mut self, index: u32) -> bool {
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        if conn.active.is_empty() {
            std::mem::swap(&mut conn.active, &mut conn.queued);
            debug_assert!(conn.queued.holds_nothing(), "pins of sent replies are kept");
        }
        match send_now(&**self.cx.pool(), conn) {
            Ok(true) if conn.queued.is_empty() => {
                self.resume(index);
                true
            }
            Ok(true) => {
                self.nbd.conns.mark_pending(index);
                false
            }
            Ok(false) => {
                let message = conn.active.message();
                conn.begin_send(self.cx.client_time() + self.cx.client_timeouts().fetch);
                self.cx.sockets().send(index, conn.socket.as_raw_fd(), message);
                false
            }
            Err(error) => {
                self.fail(index, &error);
                false
            }
        }
    }

    /// Encrypts the queued replies and starts to send them. Returns whether there was nothing to
    /// send.
    fn send_encrypted(&mut self, index: u32) -> bool {
        let Some(conn) = self.nbd.conns.get(index) else { return false };
        let Some(tls) = &mut conn.tls else { return false };
        let mut failed = false;
        if !conn.queued.is_empty() {
            conn.queued.drain_to(&**self.cx.pool(), |bytes| failed |= tls.send(bytes).is_err());
        }
        let draining = matches!(conn.phase, ConnPhase::Draining);
        let done = draining && conn.pieces.is_none() && self.cx.in_flight(conn.client) == 0;
        if done && !conn.tls_closed && !tls.is_handshaking() {
            conn.tls_closed = true;
            tls.close();
        }
        if !failed && !tls.wants_write() {
            return true;
        }
        match tls.message() {
            Ok(message) if !failed => {
                conn.begin_send(self.cx.client_time() + self.cx.client_timeouts().fetch);
                self.cx.sockets().send(index, conn.socket.as_raw_fd(), message);
            }
            _ => self.disconnect(index, ""),
        }
        false
    }

    /// Handles the end of a send.
    pub(crate) fn on_sent(&mut self, index: u32, result: io::Result<usize>) {
        let Some(conn) = self.nbd.conns.get(index) else {
            return self.release_abandoned(index, true);
        };
        assert!(conn.sending, "a send ends once");
        conn.sending = false;
        if conn.broken {
            self.nbd.conns.mark_pending(index);
            return;
        }
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => {
                self.fail(index, &error);
                return;
            }
        };
        match &mut conn.tls {
            None => {
                conn.active.advance(&**self.cx.pool(), bytes);
            }
            Some(tls) => tls.sent(),
        }
        conn.fetch_by = None;
        self.resume(index);
        self.nbd.conns.mark_pending(index);
    }

    /// Resumes a paused connection that is no longer at its limits.
    pub(crate) fn resume(&mut self, index: u32) {
        if let Some(conn) = self.nbd.conns.get(index)
            && conn.paused
            && !self.cx.is_full(conn.client, conn.held_bytes())
        {
            conn.paused = false;
            self.nbd.conns.resumed.push(index);
        }
    }

    /// Shuts down a connection, even with operations in flight. A reason, if given, is logged.
    pub(crate) fn disconnect(&mut self, index: u32, reason: &str) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if !conn.broken {
            if !reason.is_empty() {
                let volume = conn.volume.as_deref();
                tracing::info!(
                    client = %conn.peer,
                    volume,
                    reason,
                    "client disconnected by the server"
                );
            }
            conn.broken = true;
            conn.drain();
            // The shutdown ends all operations in flight on the socket.
            let _ = rustix::net::shutdown(&conn.socket, rustix::net::Shutdown::Both);
        }
        self.nbd.conns.mark_pending(index);
    }

    /// Shuts down a connection whose socket has failed. Logs the error, unless the client has
    /// disconnected.
    pub(crate) fn fail(&mut self, index: u32, error: &io::Error) {
        let is_gone =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        if let Some(conn) = self.nbd.conns.get(index)
            && !conn.broken
            && !is_gone
        {
            let volume = conn.volume.as_deref();
            tracing::info!(client = %conn.peer, volume, %error, "connection to a client failed");
        }
        self.disconnect(index, "");
    }

    /// Closes a connection that has no operation in flight on its socket.
    fn close(&mut self, index: u32) {
        if let Some(conn) = self.nbd.conns.remove(index) {
            assert!(!conn.receiving, "a receive would be reported under a number that is free");
            self.cx.leave(conn.client, true);
            self.release(conn);
        }
    }

    /// Removes a connection with operations in flight on its socket. Memory that the kernel may
    /// still read or write stays allocated until the reactor reports their end.
    pub(crate) fn abandon(&mut self, index: u32) {
        let Some(conn) = self.nbd.conns.remove(index) else { return };
        let (sending, receiving, filling) = (conn.sending, conn.receiving, conn.filling);
        tracing::warn!(
            client = %conn.peer,
            volume = conn.volume.as_deref(),
            sending,
            receiving,
            filling,
            "connection closed with I/O still in flight"
        );
        self.cx.leave(conn.client, false);
        if sending || filling {
            self.nbd.abandoned.push((index, conn));
        } else {
            self.release(conn);
        }
    }

    /// Releases an abandoned connection once its last operation has ended.
    pub(crate) fn release_abandoned(&mut self, index: u32, sent: bool) {
        let Some(at) = self.nbd.abandoned.iter().position(|(other, _)| *other == index) else {
            return;
        };
        let conn = &mut self.nbd.abandoned[at].1;
        let in_flight = if sent { &mut conn.sending } else { &mut conn.filling };
        assert!(std::mem::take(in_flight), "an operation on a socket ends once");
        if !conn.sending && !conn.filling {
            let (_, conn) = self.nbd.abandoned.swap_remove(at);
            self.release(conn);
        }
    }

    /// Releases the pins of a connection, and closes its socket.
    fn release(&mut self, mut conn: Box<Conn>) {
        assert!(!conn.sending && !conn.filling, "the kernel still uses memory of the connection");
        let pool = Arc::clone(self.cx.pool());
        conn.queued.clear(&*pool);
        conn.active.clear(&*pool);
        self.cx.sockets().forget(conn.socket.as_raw_fd());
    }
}

/// Sends as much as the socket accepts without blocking, which is usually everything. Returns
/// whether everything was sent.
fn send_now(pool: &impl PoolAccess, conn: &mut Conn) -> io::Result<bool> {
    loop {
        let message = conn.active.message();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points to headers and pinned lines, which the output keeps.
        let sent = unsafe { libc::sendmsg(conn.socket.as_raw_fd(), message, flags) };
        if sent >= 0 {
            if conn.active.advance(pool, sent as usize) {
                return Ok(true);
            }
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(false),
            _ => return Err(error),
        }
    }
}
