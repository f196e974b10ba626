//! What clients are sent, and how connections end.

use super::Worker;
use crate::budget::Queue;
use crate::conn::{Conn, Phase};
use crate::reactor::Reactor;
use crate::shared::Shared;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

impl<R: Reactor> Worker<R> {
    /// At the end of a turn: sends what is queued, or ends what is over, and gives back the room of
    /// huge requests that are, and the places in queues of clients that will ask no more.
    pub(super) fn look_after(&mut self, index: u32) {
        self.send_or_end(index);
        self.leave_lane(index);
    }

    fn leave_lane(&mut self, index: u32) {
        let Some(conn) = self.host.connections.get(index) else { return };
        if matches!(conn.phase, Phase::Draining) {
            self.leave_queue(index);
        }
        let shared = &self.host.shared;
        let Some(conn) = self.host.connections.get(index) else { return };
        let over = conn.lane_bytes.saturating_sub(conn.bytes_under_way());
        if over > 0 {
            conn.lane_bytes -= over;
            shared.call_next(shared.budget.room(Queue::Lane).leave(over));
        }
    }

    /// Gives up a place in a queue, if the connection has one.
    pub(super) fn leave_queue(&mut self, index: u32) {
        let super::WorkerHost { shared, connections, worker, .. } = &mut self.host;
        let Some(conn) = connections.get(index) else { return };
        if let Some(queue) = conn.waits_in.take() {
            let ticket = (*worker, index, conn.generation);
            shared.call_next(shared.budget.room(queue).give_up(ticket));
        }
    }

    fn send_or_end(&mut self, index: u32) {
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.listed = false;
        if conn.broken {
            if !conn.sending && !conn.receiving && !conn.filling {
                self.close(index);
            }
            return;
        }
        if conn.sending {
            return;
        }
        let nothing_left = if conn.tls.is_some() {
            self.send_encrypted(index)
        } else if conn.active.is_empty() && conn.queued.is_empty() {
            true
        } else {
            self.send_plain(index)
        };
        let Some(conn) = self.host.connections.get(index).filter(|_| nothing_left) else { return };
        if conn.tls_next {
            self.start_tls(index);
        } else if matches!(conn.phase, Phase::Draining) && conn.is_done() {
            self.break_off(index, "");
        }
    }

    /// Returns whether everything has gone.
    fn send_plain(&mut self, index: u32) -> bool {
        let super::WorkerHost { shared, connections, reactor, now, .. } = &mut self.host;
        let Some(conn) = connections.get(index) else { return false };
        if conn.active.is_empty() {
            std::mem::swap(&mut conn.active, &mut conn.queued);
        }
        match send_now(shared, conn) {
            Ok(true) if conn.queued.is_empty() => {
                self.resume(index);
                true
            }
            Ok(true) => {
                connections.touch(index);
                false
            }
            Ok(false) => {
                let message = conn.active.message();
                conn.sending = true;
                conn.fetch_by = Some(*now + shared.patience.fetch);
                reactor.send(index, conn.socket.as_raw_fd(), message);
                false
            }
            Err(_) => {
                self.break_off(index, "");
                false
            }
        }
    }

    /// The same through TLS.
    fn send_encrypted(&mut self, index: u32) -> bool {
        let super::WorkerHost { shared, connections, reactor, now, .. } = &mut self.host;
        let Some(conn) = connections.get(index) else { return false };
        let Some(tls) = &mut conn.tls else { return false };
        let mut failed = false;
        if !conn.queued.is_empty() {
            conn.queued.drain_to(shared, |bytes| failed |= tls.send(bytes).is_err());
        }
        let draining = matches!(conn.phase, Phase::Draining);
        let done = draining && conn.requests_in_flight == 0;
        if done && !conn.tls_closed && !tls.is_handshaking() {
            conn.tls_closed = true;
            tls.close();
        }
        if !failed && !tls.wants_write() {
            return true;
        }
        match tls.message() {
            Ok(message) if !failed => {
                conn.sending = true;
                conn.fetch_by = Some(*now + shared.patience.fetch);
                reactor.send(index, conn.socket.as_raw_fd(), message);
            }
            _ => self.break_off(index, ""),
        }
        false
    }

    /// A message has gone, or does not go.
    pub(super) fn sent(&mut self, index: u32, result: io::Result<usize>) {
        let shared = std::sync::Arc::clone(&self.host.shared);
        let Some(conn) = self.host.connections.get(index) else {
            return self.release_abandoned(index, true);
        };
        conn.sending = false;
        if conn.broken {
            self.host.connections.touch(index);
            return;
        }
        let Ok(bytes) = result else {
            self.break_off(index, "");
            return;
        };
        match &mut conn.tls {
            None => {
                conn.active.advance(&shared, bytes);
            }
            Some(tls) => tls.sent(),
        }
        conn.fetch_by = None;
        self.resume(index);
        self.host.connections.touch(index);
    }

    /// Lets input go on that waited for output to go.
    fn resume(&mut self, index: u32) {
        let share = self.host.shared.share();
        if let Some(conn) = self.host.connections.get(index)
            && conn.paused
            && !conn.is_full(share)
        {
            conn.paused = false;
            self.host.connections.resumed.push(index);
        }
    }

    /// Ends a connection whatever is in flight. With a reason it is worth a line in the log.
    pub(super) fn break_off(&mut self, index: u32, reason: &str) {
        let Some(conn) = self.host.connections.get(index) else { return };
        if !conn.broken {
            if !reason.is_empty() {
                tracing::info!("a client was dropped: {reason}");
            }
            conn.broken = true;
            conn.drain();
            // Makes what is under way on the socket end.
            let _ = rustix::net::shutdown(&conn.socket, rustix::net::Shutdown::Both);
        }
        self.host.connections.touch(index);
    }

    /// Nothing is under way on the socket any more.
    fn close(&mut self, index: u32) {
        self.leave_queue(index);
        if let Some(conn) = self.host.connections.remove(index) {
            self.count_out(&conn);
            self.release(conn);
        }
    }

    /// Closes a connection that was broken off, although the reactor has not reported the end of
    /// what is under way on its socket. Memory that the kernel may still read or write stays until
    /// that is reported.
    pub(super) fn abandon(&mut self, index: u32) {
        self.leave_queue(index);
        let Some(conn) = self.host.connections.retire(index) else { return };
        let (sending, receiving, filling) = (conn.sending, conn.receiving, conn.filling);
        tracing::warn!(sending, receiving, filling, "a connection was closed by force");
        self.count_out(&conn);
        if sending || filling {
            self.abandoned.push((index, conn));
        } else {
            self.release(conn);
        }
    }

    /// What was under way on an abandoned connection has ended.
    pub(super) fn release_abandoned(&mut self, index: u32, sent: bool) {
        let Some(at) = self.abandoned.iter().position(|(other, _)| *other == index) else { return };
        let conn = &mut self.abandoned[at].1;
        if sent {
            conn.sending = false;
        } else {
            conn.filling = false;
        }
        if !conn.sending && !conn.filling {
            let (_, conn) = self.abandoned.swap_remove(at);
            self.release(conn);
        }
    }

    /// The connection no longer counts as one.
    fn count_out(&self, conn: &Conn) {
        let shared = &self.host.shared;
        if conn.lane_bytes > 0 {
            shared.call_next(shared.budget.room(Queue::Lane).leave(conn.lane_bytes));
        }
        if let Some(volume) = &conn.volume {
            volume.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.forget_connection();
    }

    /// Gives back what the connection holds, and closes its socket.
    fn release(&mut self, mut conn: Box<Conn>) {
        conn.queued.clear(&self.host.shared);
        conn.active.clear(&self.host.shared);
        self.host.reactor.forget(conn.socket.as_raw_fd());
    }
}

/// Sends what the socket takes at once; mostly that is all, and then nothing has to be waited for.
/// Returns whether it was all.
fn send_now(shared: &Shared, conn: &mut Conn) -> io::Result<bool> {
    loop {
        let message = conn.active.message();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points to headers and pinned lines of the output, which stay.
        let sent = unsafe { libc::sendmsg(conn.socket.as_raw_fd(), message, flags) };
        if sent >= 0 {
            if conn.active.advance(shared, sent as usize) {
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
