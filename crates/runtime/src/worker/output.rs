//! What clients are sent, and how connections end.

use super::Worker;
use crate::conn::Phase;
use crate::reactor::Reactor;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

impl<R: Reactor> Worker<R> {
    /// At the end of a turn: sends what is queued, or ends what is over.
    pub(super) fn look_after(&mut self, index: u32) {
        let shared = std::sync::Arc::clone(&self.host.shared);
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.listed = false;
        if conn.broken {
            if !conn.sending && !conn.receiving {
                self.close(index);
            }
            return;
        }
        if conn.sending {
            return;
        }
        let draining = matches!(conn.phase, Phase::Draining);
        let fd = conn.socket.as_raw_fd();
        if let Some(tls) = &mut conn.tls {
            if !conn.queued.is_empty() {
                let mut failed = false;
                conn.queued.drain_to(&shared, |bytes| failed |= tls.send(bytes).is_err());
                if failed {
                    self.break_off(index, "");
                    return;
                }
            }
            let done = conn.requests_in_flight == 0;
            if draining && done && !conn.tls_closed && !tls.is_handshaking() {
                conn.tls_closed = true;
                tls.close();
            }
            if tls.wants_write() {
                match tls.message() {
                    Ok(message) => {
                        conn.sending = true;
                        self.host.reactor.send(index, fd, message);
                    }
                    Err(_) => self.break_off(index, ""),
                }
                return;
            }
        } else if !conn.active.is_empty() || !conn.queued.is_empty() {
            if conn.active.is_empty() {
                std::mem::swap(&mut conn.active, &mut conn.queued);
            }
            let message = conn.active.message();
            conn.sending = true;
            self.host.reactor.send(index, fd, message);
            return;
        }
        if conn.tls_next {
            self.start_tls(index);
        } else if draining && conn.is_done() {
            self.break_off(index, "");
        }
    }

    /// A message has gone, or does not go.
    pub(super) fn sent(&mut self, index: u32, result: io::Result<usize>) {
        let shared = std::sync::Arc::clone(&self.host.shared);
        let Some(conn) = self.host.connections.get(index) else { return };
        conn.sending = false;
        if conn.broken {
            self.host.connections.touch(index);
            return;
        }
        if result.is_err() {
            self.break_off(index, "");
            return;
        }
        if conn.tls.is_none() {
            conn.active.advance(&shared);
        }
        if conn.paused && !conn.is_full() {
            conn.paused = false;
            self.host.connections.resumed.push(index);
        }
        self.host.connections.touch(index);
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
        let Some(mut conn) = self.host.connections.remove(index) else { return };
        let shared = &self.host.shared;
        conn.queued.clear(shared);
        conn.active.clear(shared);
        if let Some(volume) = &conn.volume {
            volume.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.host.reactor.forget(conn.socket.as_raw_fd());
        self.forget_connection();
    }
}
