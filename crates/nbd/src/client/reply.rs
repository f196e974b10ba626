//! Parses a server's replies without copying the data.
//!
//! [`ReplyParser`] owns the list of requests in flight and the position in the stream. It enforces
//! the protocol: a reply must belong to a request in flight, stay inside its range, and contain
//! every byte of a read exactly once. The first violation ends the connection, because the rest of
//! the stream cannot be trusted; results already returned stay valid.
//!
//! The data of reads bypasses the parser: [`ClientEvent::Data`] gives the number of bytes that
//! follow in the stream, and the caller receives them into their destination.

use super::{
    ClientEvent, ExportRequest, OpenExport, ServerViolation,
    pending::{ERROR_BYTES_MAX, PendingReply, ReplyContent, error_from_wire},
};
use crate::{
    NbdCommand,
    proto::{
        EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
        STRUCTURED_REPLY_BYTES, STRUCTURED_REPLY_MAGIC, chunk,
    },
    wire::WireReader,
};
use forebay_types::ByteRange;
use std::collections::HashMap;

/// Minimum capacity of the input buffer for [`ReplyParser::advance`]: a chunk header and the
/// longest error.
pub const CLIENT_INPUT_BYTES_MAX: usize = EXTENDED_REPLY_BYTES + ERROR_BYTES_MAX as usize;

/// The protocol's limit on extents in one chunk.
const CHUNK_EXTENTS_MAX: u64 = 1 << 20;

/// What the parser expects next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyState {
    /// A header.
    Header,
    /// The remaining `left` extents of a chunk; `last` if it is the last chunk of the reply.
    Extents { cookie: u64, left: u64, last: bool },
    /// Nothing more for this request; [`ClientEvent::Done`] is due.
    Finished { cookie: u64 },
    /// Nothing: a violation ended the connection.
    Ended,
}

struct ReplyChunk {
    flags: u16,
    kind: u16,
    cookie: u64,
    len: u64,
    header_len: usize,
}

/// Parses a server's replies. See the module's description.
#[derive(Debug)]
pub struct ReplyParser {
    structured: bool,
    extended: bool,
    base_allocation: Option<u32>,
    state: ReplyState,
    pending: HashMap<u64, PendingReply>,
}

type ReplyTurn = ReplyContent;

const NEED_MORE: ReplyTurn = Ok((0, Some(ClientEvent::NeedMore)));

impl ReplyParser {
    /// A parser for the connection of `opened`.
    pub fn new(opened: &OpenExport) -> Self {
        Self {
            structured: opened.structured,
            extended: opened.extended,
            base_allocation: opened.base_allocation,
            state: ReplyState::Header,
            pending: HashMap::new(),
        }
    }

    /// Registers a request that is about to be sent.
    ///
    /// # Panics
    /// If the cookie is already in flight, or the command has no reply.
    pub fn begin(&mut self, request: &ExportRequest) {
        assert!(request.command != NbdCommand::Disconnect, "a disconnect has no reply");
        let before = self.pending.insert(request.cookie, PendingReply::new(request));
        assert!(before.is_none(), "cookie {} is already in flight", request.cookie);
    }

    /// The number of requests in flight.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Consumes input up to the next event, and returns the number of bytes consumed and the event.
    pub fn advance(&mut self, input: &[u8]) -> (usize, ClientEvent) {
        let mut consumed = 0;
        loop {
            match self.turn(&input[consumed..]) {
                Ok((taken, event)) => {
                    consumed += taken;
                    debug_assert!(consumed <= input.len(), "data is not parsed");
                    if let Some(event) = event {
                        return (consumed, event);
                    }
                }
                Err(violation) => {
                    self.state = ReplyState::Ended;
                    return (consumed, ClientEvent::Broken(violation));
                }
            }
        }
    }

    fn turn(&mut self, input: &[u8]) -> ReplyTurn {
        match self.state {
            ReplyState::Header => self.on_header(input),
            ReplyState::Extents { cookie, left, last } => {
                self.on_extents(input, cookie, left, last)
            }
            ReplyState::Finished { cookie } => self.finish(cookie),
            ReplyState::Ended => Err(ServerViolation::Ended),
        }
    }

    fn on_header(&mut self, input: &[u8]) -> ReplyTurn {
        let Some(magic) = WireReader::new(input).u32() else { return NEED_MORE };
        match magic {
            SIMPLE_REPLY_MAGIC if !self.extended => self.on_simple(input),
            STRUCTURED_REPLY_MAGIC if self.structured && !self.extended => self.on_chunk(input),
            EXTENDED_REPLY_MAGIC if self.extended => self.on_chunk(input),
            _ => Err(ServerViolation::Magic(magic)),
        }
    }

    fn on_simple(&mut self, input: &[u8]) -> ReplyTurn {
        let mut reader = WireReader::new(input);
        let (Some(_), Some(errno), Some(cookie)) = (reader.u32(), reader.u32(), reader.u64())
        else {
            return NEED_MORE;
        };
        let structured = self.structured;
        let pending = self.pending(cookie)?;
        // With structured replies, a simple reply to a read is invalid, even for an error (B-02).
        let is_read = pending.command == NbdCommand::Read;
        if (is_read && structured) || (errno == 0 && pending.command == NbdCommand::BlockStatus) {
            return Err(ServerViolation::Form(cookie));
        }
        let ByteRange { offset, len } = pending.range;
        let event = if errno != 0 {
            pending.error = Some(error_from_wire(errno));
            None
        } else if is_read && len > 0 {
            // Compact headers cannot request more than 32 bits of length.
            let len = u32::try_from(len).map_err(|_| ServerViolation::Form(cookie))?;
            _ = pending.coverage.add(pending.range);
            Some(ClientEvent::Data { cookie, offset, len })
        } else {
            None
        };
        self.state = ReplyState::Finished { cookie };
        Ok((SIMPLE_REPLY_BYTES, event))
    }

    fn on_chunk(&mut self, input: &[u8]) -> ReplyTurn {
        let Some((chunk, echoed_offset)) = self.chunk_header(input) else { return NEED_MORE };
        let ReplyChunk { flags, kind, cookie, len, header_len } = chunk;
        let pending = self.pending(cookie)?;
        if echoed_offset.is_some_and(|offset| offset != pending.range.offset) {
            return Err(ServerViolation::Form(cookie));
        }
        if flags & !chunk::FLAG_DONE != 0 {
            return Err(ServerViolation::Chunk { kind, flags });
        }
        let body = &input[header_len..];
        let last = flags & chunk::FLAG_DONE != 0;
        let (taken, event) = match kind {
            chunk::NONE if len == 0 && last => (0, None),
            chunk::OFFSET_DATA => pending.on_data(cookie, len, body)?,
            chunk::OFFSET_HOLE => pending.on_hole(cookie, len, body)?,
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => {
                return self.on_block_status(&chunk, body);
            }
            _ if kind & chunk::ERROR_BIT != 0 => pending.on_error(cookie, kind, len, body)?,
            chunk::NONE => return Err(ServerViolation::Length { kind, len }),
            _ => return Err(ServerViolation::Chunk { kind, flags }),
        };
        if event == Some(ClientEvent::NeedMore) {
            return NEED_MORE;
        }
        if last {
            self.state = ReplyState::Finished { cookie };
        }
        Ok((header_len + taken, event))
    }

    /// The header of a chunk, and the offset that an extended header repeats.
    fn chunk_header(&self, input: &[u8]) -> Option<(ReplyChunk, Option<u64>)> {
        let mut reader = WireReader::new(input);
        _ = reader.u32()?;
        let (flags, kind, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
        let (offset, len, header_len) = if self.extended {
            (Some(reader.u64()?), reader.u64()?, EXTENDED_REPLY_BYTES)
        } else {
            (None, u64::from(reader.u32()?), STRUCTURED_REPLY_BYTES)
        };
        Some((ReplyChunk { flags, kind, cookie, len, header_len }, offset))
    }

    fn pending(&mut self, cookie: u64) -> Result<&mut PendingReply, ServerViolation> {
        self.pending.get_mut(&cookie).ok_or(ServerViolation::Cookie(cookie))
    }

    /// Parses the fields before the extents: the context id, and in the extended form the extent
    /// count, which must match the chunk's length.
    fn on_block_status(&mut self, chunk: &ReplyChunk, body: &[u8]) -> ReplyTurn {
        let ReplyChunk { kind, cookie, len, header_len, .. } = *chunk;
        let is_ext = kind == chunk::BLOCK_STATUS_EXT;
        let (prefix_len, extent_len) = if is_ext { (8, 16) } else { (4, 8) };
        let count = len.saturating_sub(prefix_len) / extent_len;
        let adds_up = len == prefix_len + count * extent_len;
        if is_ext != self.extended || !adds_up || count == 0 || count > CHUNK_EXTENTS_MAX {
            return Err(ServerViolation::Length { kind, len });
        }
        let mut reader = WireReader::new(body);
        let (Some(context), Some(counted)) =
            (reader.u32(), if is_ext { reader.u32().map(u64::from) } else { Some(count) })
        else {
            return NEED_MORE;
        };
        let expected = self.base_allocation;
        let pending = self.pending(cookie)?;
        let is_first = pending.command == NbdCommand::BlockStatus && pending.extents.is_none();
        if !is_first || expected != Some(context) || counted != count {
            return Err(ServerViolation::Extents(cookie));
        }
        pending.extents = Some(Vec::new());
        let last = chunk.flags & chunk::FLAG_DONE != 0;
        self.state = ReplyState::Extents { cookie, left: count, last };
        Ok((header_len + prefix_len as usize, None))
    }

    /// Parses the extents received so far one by one, so that no buffer has to hold them all.
    fn on_extents(&mut self, input: &[u8], cookie: u64, left: u64, last: bool) -> ReplyTurn {
        let extended = self.extended;
        let pending = self.pending(cookie)?;
        let mut reader = WireReader::new(input);
        let (mut left, mut taken) = (left, 0);
        while left > 0 {
            let extent = if extended {
                reader.u64().zip(reader.u64()).map(|(len, bits)| (len, bits as u32))
            } else {
                reader.u32().map(u64::from).zip(reader.u32())
            };
            let Some((len, bits)) = extent else {
                self.state = ReplyState::Extents { cookie, left, last };
                return Ok((taken, Some(ClientEvent::NeedMore)));
            };
            pending.add_extent(cookie, len, bits)?;
            taken += if extended { 16 } else { 8 };
            left -= 1;
        }
        let extents = pending.extents.as_mut().map(std::mem::take).unwrap_or_default();
        self.state = if last { ReplyState::Finished { cookie } } else { ReplyState::Header };
        Ok((taken, Some(ClientEvent::Extents { cookie, extents })))
    }

    /// Completes a request, if its reply was complete.
    fn finish(&mut self, cookie: u64) -> ReplyTurn {
        let pending = self.pending.remove(&cookie).ok_or(ServerViolation::Cookie(cookie))?;
        self.state = ReplyState::Header;
        let result = match pending.error {
            Some(error) => Err(error),
            None if pending.is_complete() => Ok(()),
            None => return Err(ServerViolation::Incomplete(cookie)),
        };
        Ok((0, Some(ClientEvent::Done { cookie, result })))
    }
}
