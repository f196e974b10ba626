//! The TLS session of a connection: converts between ciphertext and plaintext.

use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Plaintext read from the session per call, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Ciphertext buffer that a session keeps between messages, in bytes.
const OUTGOING_BYTES_KEPT: usize = 32 << 10;

/// The server side of a TLS session.
pub(crate) struct TlsSession {
    session: ServerConnection,
    /// Ciphertext being sent to the client.
    pub outgoing: Vec<u8>,
    pub iovec: libc::iovec,
    pub message: libc::msghdr,
}

// SAFETY: the raw pointers in the message point into the session's own buffers.
unsafe impl Send for TlsSession {}

impl TlsSession {
    pub(crate) fn new(config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut session = ServerConnection::new(Arc::clone(config))?;
        // The limit of requests in flight bounds the buffer.
        session.set_buffer_limit(None);
        // SAFETY: all-zero headers are empty ones.
        let (iovec, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Ok(Self { session, outgoing: Vec::new(), iovec, message })
    }

    /// Decrypts `bytes` and appends the plaintext to `plain`. Returns false once the peer has
    /// closed the session; bytes after the close notification are discarded.
    ///
    /// # Errors
    /// The peer violates the protocol, or presents no accepted certificate.
    pub(crate) fn receive(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        while !bytes.is_empty() {
            if self.session.read_tls(&mut bytes)? == 0 {
                return Ok(false);
            }
            let state = self
                .session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let from = plain.len();
                plain.resize(from + left.min(READ_BYTES), 0);
                let read = self.session.reader().read(&mut plain[from..])?;
                plain.truncate(from + read);
                left -= read;
            }
            if state.peer_has_closed() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Encrypts bytes to send.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.session.writer().write_all(bytes)
    }

    /// Queues the close notification.
    pub(crate) fn close(&mut self) {
        self.session.send_close_notify();
    }

    /// Whether the handshake is in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Whether there is ciphertext to send.
    pub(crate) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Clears the message after it has been sent, and frees the memory of a large one.
    pub(crate) fn sent(&mut self) {
        self.outgoing.clear();
        self.outgoing.shrink_to(OUTGOING_BYTES_KEPT);
    }

    /// The next message; valid until the next call of any method.
    pub(crate) fn message(&mut self) -> io::Result<*const libc::msghdr> {
        self.outgoing.clear();
        while self.session.wants_write() {
            self.session.write_tls(&mut self.outgoing)?;
        }
        self.iovec = libc::iovec {
            iov_base: self.outgoing.as_mut_ptr().cast(),
            iov_len: self.outgoing.len(),
        };
        self.message.msg_iov = &raw mut self.iovec;
        self.message.msg_iovlen = 1;
        Ok(&raw const self.message)
    }
}
