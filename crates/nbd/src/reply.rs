//! Replies of the transmission phase, encoded for the terms of the connection.
//!
//! Each outcome of a request has one function, which appends a whole reply, or the header that
//! precedes the data, to the caller's buffer. Encoding allocates nothing if the buffer has enough
//! capacity ([`READ_HEADER_BYTES_MAX`] for a success). A read is answered in one chunk (B-12),
//! which is marked as the last, or in several by [`Negotiated::put_data_chunk_header`]. Send its
//! header only once all data is available (B-04): after the header of a simple reply, an error can
//! be reported only by dropping the connection (C-01).

use crate::{
    Negotiated, ReplyTo,
    proto::{
        EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRING_BYTES_PREFERRED_MAX,
        STRUCTURED_REPLY_MAGIC, chunk,
    },
    wire::{clipped, put_u16, put_u32, put_u64},
};
use forebay_types::IoError;

/// Longest header that precedes the data of a read: an extended chunk header and an offset.
pub const READ_HEADER_BYTES_MAX: usize = crate::proto::EXTENDED_REPLY_BYTES + 8;

/// A simple reply, for connections without structured replies only (B-02, XH-01). The `reply_*`
/// functions of [`Negotiated`] choose the form themselves.
pub fn simple_reply(cookie: u64, error: Option<IoError>) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.map_or(0, IoError::errno).to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    reply
}

impl Negotiated {
    /// Appends the reply to a request that succeeded and returns no data.
    pub fn reply_ok(&self, to: ReplyTo, out: &mut Vec<u8>) {
        if self.structured {
            self.put_chunk_header(to, chunk::NONE, true, 0, out);
        } else {
            out.extend_from_slice(&simple_reply(to.cookie, None));
        }
    }

    /// Appends the header that precedes the `len` bytes of a read. The caller sends exactly that
    /// many bytes after it.
    #[inline]
    pub fn reply_read_header(&self, to: ReplyTo, len: u32, out: &mut Vec<u8>) {
        if self.structured {
            self.put_data_chunk_header(to, to.offset, len, true, out);
        } else {
            out.extend_from_slice(&simple_reply(to.cookie, None));
        }
    }

    /// Appends the reply to a request that failed. `text` is a human-readable reason; it is
    /// truncated to 256 bytes, and omitted if replies are simple.
    pub fn reply_error(&self, to: ReplyTo, error: IoError, text: &str, out: &mut Vec<u8>) {
        if !self.structured {
            out.extend_from_slice(&simple_reply(to.cookie, Some(error)));
            return;
        }
        let text = clipped(text, STRING_BYTES_PREFERRED_MAX);
        self.put_chunk_header(to, chunk::ERROR, true, 6 + text.len() as u64, out);
        put_u32(out, error.errno());
        put_u16(out, text.len() as u16);
        out.extend_from_slice(text.as_bytes());
    }

    /// Appends the header of a chunk with `len` bytes of data from `offset` of the export, for a
    /// read that is answered in several chunks. `last` marks the final chunk of the reply.
    ///
    /// # Panics
    /// If replies are simple or `len` is zero: the client would lose framing.
    pub fn put_data_chunk_header(
        &self,
        to: ReplyTo,
        offset: u64,
        len: u32,
        last: bool,
        out: &mut Vec<u8>,
    ) {
        assert!(self.structured && len > 0, "data chunk of {len} bytes on this connection");
        self.put_chunk_header(to, chunk::OFFSET_DATA, last, 8 + u64::from(len), out);
        put_u64(out, offset);
    }

    /// Appends a chunk that reports `len` bytes from `offset` of the export as zeroes. Do not use
    /// it for a read with `DF` that also returns data (B-09).
    ///
    /// # Panics
    /// If replies are simple or `len` is zero: the client would lose framing.
    pub fn put_hole_chunk(
        &self,
        to: ReplyTo,
        offset: u64,
        len: u32,
        last: bool,
        out: &mut Vec<u8>,
    ) {
        assert!(self.structured && len > 0, "hole chunk of {len} bytes on this connection");
        self.put_chunk_header(to, chunk::OFFSET_HOLE, last, 12, out);
        put_u64(out, offset);
        put_u32(out, len);
    }

    /// Appends the header of a chunk with `len` bytes of payload. Without extended headers `len`
    /// must fit 32 bits.
    pub(crate) fn put_chunk_header(
        &self,
        to: ReplyTo,
        kind: u16,
        last: bool,
        len: u64,
        out: &mut Vec<u8>,
    ) {
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        // Building the header in an array costs one capacity check instead of six.
        let mut header = [0; crate::proto::EXTENDED_REPLY_BYTES];
        header[4..6].copy_from_slice(&flags.to_be_bytes());
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[8..16].copy_from_slice(&to.cookie.to_be_bytes());
        if self.extended {
            header[..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
            header[16..24].copy_from_slice(&to.offset.to_be_bytes());
            header[24..].copy_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&header);
        } else {
            assert!(len <= u64::from(u32::MAX), "structured chunk of {len} bytes");
            header[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
            header[16..20].copy_from_slice(&(len as u32).to_be_bytes());
            out.extend_from_slice(&header[..crate::proto::STRUCTURED_REPLY_BYTES]);
        }
    }
}
