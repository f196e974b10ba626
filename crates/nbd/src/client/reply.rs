//! Replies as a client receives them, taken apart without copying the data.
//!
//! [`ReplyParser`] owns the list of requests in flight and where in the stream it is. It holds
//! the server to the protocol: a reply must name a request in flight, keep inside its range, and
//! answer every byte of a read exactly once. The first breach ends the connection, since what
//! follows can't be trusted; results already given stay valid.
//!
//! The data of reads never passes through: [`Event::Data`] says how many bytes follow in the
//! stream, and the caller takes them to where they belong.

use super::{
    Breach, Event, Opened, Request,
    pending::{Content, ERROR_BYTES_MAX, Pending, error_from_wire},
};
use crate::{
    Command,
    proto::{
        EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
        STRUCTURED_REPLY_BYTES, STRUCTURED_REPLY_MAGIC, chunk,
    },
    wire::Reader,
};
use forebay_types::ByteRange;
use std::collections::HashMap;

/// Bytes the buffer in front of [`ReplyParser::advance`] must be able to hold: a chunk header and
/// the longest error.
pub const CLIENT_INPUT_BYTES_MAX: usize = EXTENDED_REPLY_BYTES + ERROR_BYTES_MAX as usize;

/// Most extents of one chunk that the protocol allows.
const CHUNK_EXTENTS_MAX: u64 = 1 << 20;

/// Where in the stream the parser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A header comes next.
    Header,
    /// So many extents of a chunk come next; `last` if it is the last chunk.
    Extents { cookie: u64, left: u64, last: bool },
    /// Nothing more comes for this request, and the caller is to be told.
    Finished { cookie: u64 },
    /// The connection is given up.
    Over,
}

/// A chunk's header.
struct Chunk {
    flags: u16,
    kind: u16,
    cookie: u64,
    len: u64,
    header_len: usize,
}

/// Takes a server's replies apart. See the module's description.
#[derive(Debug)]
pub struct ReplyParser {
    structured: bool,
    extended: bool,
    base_allocation: Option<u32>,
    state: State,
    pending: HashMap<u64, Pending>,
}

type Turn = Content;

const NEED_MORE: Turn = Ok((0, Some(Event::NeedMore)));

impl ReplyParser {
    /// A parser for the connection that `opened` describes.
    pub fn new(opened: &Opened) -> Self {
        Self {
            structured: opened.structured,
            extended: opened.extended,
            base_allocation: opened.base_allocation,
            state: State::Header,
            pending: HashMap::new(),
        }
    }

    /// Expects the reply to a request that is about to be sent.
    ///
    /// # Panics
    /// Where the cookie is in flight already, or the command has no reply.
    pub fn begin(&mut self, request: &Request) {
        assert!(request.command != Command::Disconnect, "a disconnect has no reply");
        let before = self.pending.insert(request.cookie, Pending::new(request));
        assert!(before.is_none(), "cookie {} is in flight already", request.cookie);
    }

    /// Requests in flight.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Takes what it can from the start of `input`, and says how many bytes it took and what
    /// they were.
    pub fn advance(&mut self, input: &[u8]) -> (usize, Event) {
        let mut consumed = 0;
        loop {
            match self.turn(&input[consumed..]) {
                Ok((taken, event)) => {
                    consumed += taken;
                    if let Some(event) = event {
                        return (consumed, event);
                    }
                }
                Err(breach) => {
                    self.state = State::Over;
                    return (consumed, Event::Broken(breach));
                }
            }
        }
    }

    fn turn(&mut self, input: &[u8]) -> Turn {
        match self.state {
            State::Header => self.on_header(input),
            State::Extents { cookie, left, last } => self.on_extents(input, cookie, left, last),
            State::Finished { cookie } => self.finish(cookie),
            State::Over => Err(Breach::Over),
        }
    }

    fn on_header(&mut self, input: &[u8]) -> Turn {
        let Some(magic) = Reader::new(input).u32() else { return NEED_MORE };
        match magic {
            SIMPLE_REPLY_MAGIC if !self.extended => self.on_simple(input),
            STRUCTURED_REPLY_MAGIC if self.structured && !self.extended => self.on_chunk(input),
            EXTENDED_REPLY_MAGIC if self.extended => self.on_chunk(input),
            _ => Err(Breach::Magic(magic)),
        }
    }

    fn on_simple(&mut self, input: &[u8]) -> Turn {
        let mut reader = Reader::new(input);
        let (Some(_), Some(errno), Some(cookie)) = (reader.u32(), reader.u32(), reader.u64())
        else {
            return NEED_MORE;
        };
        let structured = self.structured;
        let pending = self.pending(cookie)?;
        // With structured replies a read is never answered simply, not even with an error (B-02).
        let is_read = pending.command == Command::Read;
        if (is_read && structured) || (errno == 0 && pending.command == Command::BlockStatus) {
            return Err(Breach::Form(cookie));
        }
        let ByteRange { offset, len } = pending.range;
        let event = if errno != 0 {
            pending.error = Some(error_from_wire(errno));
            None
        } else if is_read && len > 0 {
            // A read longer than 32 bits hold can't have been sent with a compact header.
            let len = u32::try_from(len).map_err(|_| Breach::Form(cookie))?;
            _ = pending.coverage.add(pending.range);
            Some(Event::Data { cookie, offset, len })
        } else {
            None
        };
        self.state = State::Finished { cookie };
        Ok((SIMPLE_REPLY_BYTES, event))
    }

    fn on_chunk(&mut self, input: &[u8]) -> Turn {
        let Some((chunk, echoed_offset)) = self.chunk_header(input) else { return NEED_MORE };
        let Chunk { flags, kind, cookie, len, header_len } = chunk;
        let pending = self.pending(cookie)?;
        if echoed_offset.is_some_and(|offset| offset != pending.range.offset) {
            return Err(Breach::Form(cookie));
        }
        if flags & !chunk::FLAG_DONE != 0 {
            return Err(Breach::Chunk { kind, flags });
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
            chunk::NONE => return Err(Breach::Length { kind, len }),
            _ => return Err(Breach::Chunk { kind, flags }),
        };
        if event == Some(Event::NeedMore) {
            return NEED_MORE;
        }
        if last {
            self.state = State::Finished { cookie };
        }
        Ok((header_len + taken, event))
    }

    /// The header of a chunk, and the offset it repeats if it is an extended one.
    fn chunk_header(&self, input: &[u8]) -> Option<(Chunk, Option<u64>)> {
        let mut reader = Reader::new(input);
        _ = reader.u32()?;
        let (flags, kind, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
        let (offset, len, header_len) = if self.extended {
            (Some(reader.u64()?), reader.u64()?, EXTENDED_REPLY_BYTES)
        } else {
            (None, u64::from(reader.u32()?), STRUCTURED_REPLY_BYTES)
        };
        Some((Chunk { flags, kind, cookie, len, header_len }, offset))
    }

    fn pending(&mut self, cookie: u64) -> Result<&mut Pending, Breach> {
        self.pending.get_mut(&cookie).ok_or(Breach::Cookie(cookie))
    }

    /// Reads what stands in front of the extents: the context, and in the extended form a count,
    /// which must agree with the length.
    fn on_block_status(&mut self, chunk: &Chunk, body: &[u8]) -> Turn {
        let Chunk { kind, cookie, len, header_len, .. } = *chunk;
        let is_ext = kind == chunk::BLOCK_STATUS_EXT;
        let (prefix_len, extent_len) = if is_ext { (8, 16) } else { (4, 8) };
        let count = len.saturating_sub(prefix_len) / extent_len;
        let adds_up = len == prefix_len + count * extent_len;
        if is_ext != self.extended || !adds_up || count == 0 || count > CHUNK_EXTENTS_MAX {
            return Err(Breach::Length { kind, len });
        }
        let mut reader = Reader::new(body);
        let (Some(context), Some(counted)) =
            (reader.u32(), if is_ext { reader.u32().map(u64::from) } else { Some(count) })
        else {
            return NEED_MORE;
        };
        let expected = self.base_allocation;
        let pending = self.pending(cookie)?;
        let is_first = pending.command == Command::BlockStatus && pending.extents.is_none();
        if !is_first || expected != Some(context) || counted != count {
            return Err(Breach::Extents(cookie));
        }
        pending.extents = Some(Vec::new());
        let last = chunk.flags & chunk::FLAG_DONE != 0;
        self.state = State::Extents { cookie, left: count, last };
        Ok((header_len + prefix_len as usize, None))
    }

    /// Takes the extents that have come, one by one, so that no buffer need hold them all.
    fn on_extents(&mut self, input: &[u8], cookie: u64, left: u64, last: bool) -> Turn {
        let extended = self.extended;
        let pending = self.pending(cookie)?;
        let mut reader = Reader::new(input);
        let (mut left, mut taken) = (left, 0);
        while left > 0 {
            let extent = if extended {
                reader.u64().zip(reader.u64()).map(|(len, bits)| (len, bits as u32))
            } else {
                reader.u32().map(u64::from).zip(reader.u32())
            };
            let Some((len, bits)) = extent else {
                self.state = State::Extents { cookie, left, last };
                return Ok((taken, Some(Event::NeedMore)));
            };
            pending.add_extent(cookie, len, bits)?;
            taken += if extended { 16 } else { 8 };
            left -= 1;
        }
        let extents = pending.extents.as_mut().map(std::mem::take).unwrap_or_default();
        self.state = if last { State::Finished { cookie } } else { State::Header };
        Ok((taken, Some(Event::Extents { cookie, extents })))
    }

    /// Ends a request, if its reply was complete.
    fn finish(&mut self, cookie: u64) -> Turn {
        let pending = self.pending.remove(&cookie).ok_or(Breach::Cookie(cookie))?;
        self.state = State::Header;
        let result = match pending.error {
            Some(error) => Err(error),
            None if pending.is_complete() => Ok(()),
            None => return Err(Breach::Incomplete(cookie)),
        };
        Ok((0, Some(Event::Done { cookie, result })))
    }
}
