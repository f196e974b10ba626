//! Long payloads, received where they will stay.

use crate::Serving;
use crate::conn::Phase;
use crate::intake::Intake;
use forebay_frontend::{Sockets, WorkerContext, receive_into};
use std::io;
use std::os::fd::AsRawFd;

/// Bytes that one client's payloads may bring in one go before others have a turn.
const TURN_BYTES: usize = 2 << 20;

impl<C: WorkerContext> Serving<'_, C> {
    /// Receives payloads and the headers behind them for as long as they are there, and asks for
    /// the rest.
    pub(crate) fn fill(&mut self, index: u32) {
        let mut came = 0;
        loop {
            let Some(conn) = self.nbd.conns.get(index) else { return };
            // What is received otherwise is told to end first; then this is called again.
            if conn.receiving || conn.filling || !conn.wants_input() || !conn.wants_direct() {
                return;
            }
            let Some(terms) = conn.terms else { return };
            let fd = conn.socket.as_raw_fd();
            let intake = conn.intake.get_or_insert_with(Intake::new);
            let message = intake.message(conn.partial.as_mut(), &terms);
            let received = match came {
                TURN_BYTES.. => Err(io::ErrorKind::WouldBlock.into()),
                // SAFETY: the message points into the intake and to memory of the payload, which
                // stay where they are and are used by this call alone.
                _ => unsafe { receive_into(fd, message) },
            };
            match received {
                Ok(bytes) => {
                    came += bytes;
                    self.take_filled(index, bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    conn.filling = true;
                    self.cx.sockets().fill(index, fd, message);
                    return;
                }
                Err(_) => return self.break_off(index, ""),
            }
        }
    }

    /// Bytes have come into a payload, or the end, or an error.
    pub(crate) fn filled(&mut self, index: u32, result: io::Result<usize>) {
        let Some(conn) = self.nbd.conns.get(index) else {
            return self.release_abandoned(index, false);
        };
        conn.filling = false;
        if conn.broken || matches!(conn.phase, Phase::Draining) {
            conn.partial = None;
            self.nbd.conns.touch(index);
            return;
        }
        match result {
            Ok(bytes) => self.take_filled(index, bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return self.break_off(index, ""),
        }
        self.receive_on(index);
    }

    fn take_filled(&mut self, index: u32, bytes: usize) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if bytes == 0 {
            return self.client_left(index);
        }
        let mut header_bytes = bytes;
        if let Some(partial) = &mut conn.partial {
            let taken = bytes.min(partial.left());
            partial.filled += taken;
            header_bytes -= taken;
            self.payload_came(index);
        }
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if header_bytes > 0
            && let Some(header) = conn.intake.as_ref().map(|intake| intake.header())
        {
            self.feed(index, &header[..header_bytes]);
        }
    }
}
