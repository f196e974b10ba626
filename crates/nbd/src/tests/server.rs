//! A minimal in-memory server, for tests of the client.

use super::{ExportList, exports};
use crate::{
    Extent, Handshake, HandshakeConfig, HandshakeStep, NbdCommand, NbdRequest, Negotiated, Parse,
    ReplyTo, Tls, client,
};
use forebay_types::IoError;

/// The client's view of these terms.
pub(crate) fn opened(terms: &Negotiated) -> client::OpenExport {
    client::OpenExport {
        size_bytes: terms.size_bytes,
        flags: terms.flags,
        structured: terms.structured,
        extended: terms.extended,
        base_allocation: terms.base_allocation,
        tls: terms.tls,
        block_min: terms.block_min,
        block_preferred: 4096,
        payload_max: terms.payload_max,
    }
}

/// The form of replies to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStyle {
    /// One chunk, as the real server replies.
    Whole,
    /// One chunk per sector, in reverse order, with zeroes as holes.
    Pieces,
}

/// A server with its disk.
pub(crate) struct Server {
    handshake: Handshake,
    exports: ExportList,
    pub(crate) terms: Option<Negotiated>,
    input: Vec<u8>,
    pub(crate) disk: Vec<u8>,
    pub(crate) style: ReadStyle,
    /// Reads of this byte fail.
    pub(crate) bad_byte: Option<u64>,
    pub(crate) closed: bool,
}

impl Server {
    pub(crate) fn new(tls: Tls, greeting: &mut Vec<u8>) -> Self {
        let mut handshake = Handshake::new(HandshakeConfig { tls });
        handshake.greeting(greeting);
        let mut exports = exports();
        exports.0[0].can_fast_zero = true;
        Self {
            handshake,
            exports,
            terms: None,
            input: Vec::new(),
            disk: vec![0; 1 << 20],
            style: ReadStyle::Whole,
            bad_byte: None,
            closed: false,
        }
    }

    /// Handles bytes from a client, and appends the replies.
    pub(crate) fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.input.extend_from_slice(bytes);
        while self.terms.is_none() && !self.closed {
            let (taken, step) = self.handshake.advance(&self.input, &self.exports, out);
            self.input.drain(..taken);
            match step {
                HandshakeStep::NeedMore => return,
                HandshakeStep::Flush => {}
                // Simulates the transition only; nothing is encrypted.
                HandshakeStep::StartTls => self.handshake.tls_established(),
                HandshakeStep::Enter(terms) => self.terms = Some(terms),
                HandshakeStep::Close(_) => self.closed = true,
            }
        }
        while let (Some(terms), false) = (self.terms, self.closed) {
            let (request, header_len) = match terms.parse(&self.input) {
                Parse::Request { request, header_len } => (request, header_len),
                Parse::NeedMore => return,
                Parse::Broken(_) => {
                    self.closed = true;
                    return;
                }
            };
            let len = header_len + request.payload_len as usize;
            if self.input.len() < len {
                return;
            }
            let payload: Vec<u8> = self.input.drain(..len).skip(header_len).collect();
            self.serve(&terms, &request, &payload, out);
        }
    }

    fn serve(
        &mut self,
        terms: &Negotiated,
        request: &NbdRequest,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        let to = request.reply_to();
        if let Some(error) = request.error {
            return terms.reply_error(to, error, "refused", out);
        }
        let range = request.offset as usize..(request.offset + request.len) as usize;
        match request.command {
            NbdCommand::Disconnect => self.closed = true,
            NbdCommand::Read if self.bad_byte.is_some_and(|at| range.contains(&(at as usize))) => {
                terms.reply_error(to, IoError::Io, "bad sector", out);
            }
            NbdCommand::Read => self.read(terms, to, request.len as u32, request.df, out),
            NbdCommand::BlockStatus => {
                let extents = self.disk[range].chunks(512).map(|sector| {
                    let zero = sector.iter().all(|&byte| byte == 0);
                    Extent { len: 512, hole: zero, zero }
                });
                terms.reply_block_status(request, extents, out);
            }
            command => {
                match command {
                    NbdCommand::Write => self.disk[range].copy_from_slice(payload),
                    NbdCommand::WriteZeroes | NbdCommand::Trim => self.disk[range].fill(0),
                    _ => {}
                }
                terms.reply_ok(to, out);
            }
        }
    }

    fn read(&self, terms: &Negotiated, to: ReplyTo, len: u32, df: bool, out: &mut Vec<u8>) {
        let start = to.offset as usize;
        let data = &self.disk[start..start + len as usize];
        if self.style == ReadStyle::Whole || df || !terms.structured {
            terms.reply_read_header(to, len, out);
            out.extend_from_slice(data);
            return;
        }
        for (index, sector) in data.chunks(512).enumerate().rev() {
            let offset = to.offset + 512 * index as u64;
            if sector.iter().all(|&byte| byte == 0) {
                terms.put_hole_chunk(to, offset, 512, false, out);
            } else {
                terms.put_data_chunk_header(to, offset, 512, false, out);
                out.extend_from_slice(sector);
            }
        }
        terms.reply_ok(to, out);
    }
}
