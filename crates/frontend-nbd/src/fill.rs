//! Direct receives of long payloads.

use crate::Serving;
use crate::conn::ConnPhase;
use crate::intake::Intake;
use forebay_frontend::{Sockets, WorkerContext, receive_into};
use std::io;
use std::os::fd::AsRawFd;

/// After this many bytes from one client, `fill` leaves the rest to the reactor, so that other
/// clients get their turn.
const TURN_BYTES: usize = 2 << 20;

impl<C: WorkerContext> Serving<'_, C> {
    /// Receives the payloads and headers that have already arrived, then asks the reactor for the
    /// rest.
    pub(crate) fn fill(&mut self, index: u32) {
        let mut total = 0;
        loop {
            let Some(conn) = self.nbd.conns.get(index) else { return };
            // The caller pauses a buffered receive in flight; once that receive has ended, `fill`
            // is called again.
            if conn.receiving || conn.filling || !conn.wants_input() || !conn.wants_direct() {
                return;
            }
            let Some(terms) = conn.terms else { return };
            let fd = conn.socket.as_raw_fd();
            let intake = conn.intake.get_or_insert_with(Intake::new);
            let message = intake.message(conn.partial.as_mut(), &terms);
            let received = match total {
                TURN_BYTES.. => Err(io::ErrorKind::WouldBlock.into()),
                // SAFETY: the message points into the intake and the payload's memory. Neither
                // moves, and only this call uses them.
                _ => unsafe { receive_into(fd, message) },
            };
            match received {
                Ok(bytes) => {
                    total += bytes;
                    self.on_filled_bytes(index, bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    conn.filling = true;
                    self.cx.sockets().fill(index, fd, message);
                    return;
                }
                Err(error) => return self.fail(index, &error),
            }
        }
    }

    /// Handles the end of a direct receive: bytes, the end of the stream, or an error.
    pub(crate) fn on_filled(&mut self, index: u32, result: io::Result<usize>) {
        let Some(conn) = self.nbd.conns.get(index) else {
            return self.release_abandoned(index, false);
        };
        assert!(conn.filling, "a direct receive ends once");
        conn.filling = false;
        if conn.broken || matches!(conn.phase, ConnPhase::Draining) {
            conn.partial = None;
            self.nbd.conns.mark_pending(index);
            return;
        }
        match result {
            Ok(bytes) => self.on_filled_bytes(index, bytes),
            // A connection that leaves has stopped its input.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return self.fail(index, &error),
        }
        self.update_receiving(index);
    }

    fn on_filled_bytes(&mut self, index: u32, bytes: usize) {
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if bytes == 0 {
            return self.on_end_of_stream(index);
        }
        let mut header_bytes = bytes;
        if let Some(partial) = &mut conn.partial {
            let payload_bytes = bytes.min(partial.left());
            partial.filled += payload_bytes;
            header_bytes -= payload_bytes;
            self.on_payload_progress(index);
        }
        let Some(conn) = self.nbd.conns.get(index) else { return };
        if header_bytes > 0
            && let Some(header) = conn.intake.as_ref().map(|intake| intake.header())
        {
            self.feed(index, &header[..header_bytes]);
        }
    }
}
