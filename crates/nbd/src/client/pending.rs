//! One request in flight, and the progress of its reply.

use super::{
    ClientEvent, ExportRequest, ServerViolation, coverage::Coverage, option_reply::printable,
};
use crate::{
    EXTENTS_PER_REPLY_MAX, Extent, NbdCommand,
    block_status::extent_of,
    proto::{STRING_BYTES_MAX, chunk, command_flag},
    wire::WireReader,
};
use forebay_types::{ByteRange, IoError};

/// Longest error chunk: offset, error number, text length, text.
pub(super) const ERROR_BYTES_MAX: u64 = 8 + 6 + STRING_BYTES_MAX as u64;
/// Maximum number of error chunks in one reply. A server sends one, or a few with offsets.
const ERRORS_MAX: u32 = 64;

/// The number of payload bytes consumed, and the resulting event.
pub(super) type ReplyContent = Result<(usize, Option<ClientEvent>), ServerViolation>;

const NEED_MORE: ReplyContent = Ok((0, Some(ClientEvent::NeedMore)));

/// A request in flight.
#[derive(Debug)]
pub(super) struct PendingReply {
    pub(super) command: NbdCommand,
    req_one: bool,
    pub(super) range: ByteRange,
    pub(super) coverage: Coverage,
    /// The extents received, once the block status chunk has begun.
    pub(super) extents: Option<Vec<Extent>>,
    /// Bytes of the export described by all extents received, including those over the limit.
    extents_bytes: u64,
    errors: u32,
    pub(super) error: Option<IoError>,
}

impl PendingReply {
    pub(super) fn new(request: &ExportRequest) -> Self {
        Self {
            command: request.command,
            req_one: request.flags & command_flag::REQ_ONE != 0,
            range: ByteRange::new(request.offset, request.len),
            coverage: Coverage::default(),
            extents: None,
            extents_bytes: 0,
            errors: 0,
            error: None,
        }
    }

    /// Whether everything that a success requires was received.
    pub(super) fn is_complete(&self) -> bool {
        match self.command {
            NbdCommand::Read => self.coverage.covered_bytes() == self.range.len,
            NbdCommand::BlockStatus => self.extents.is_some(),
            _ => true,
        }
    }

    pub(super) fn on_data(&mut self, cookie: u64, len: u64, body: &[u8]) -> ReplyContent {
        let kind = chunk::OFFSET_DATA;
        let data_len = len.checked_sub(8).filter(|&data_len| data_len > 0);
        let data_len = data_len.and_then(|data_len| u32::try_from(data_len).ok());
        let Some(data_len) = data_len.filter(|&data_len| u64::from(data_len) <= self.range.len)
        else {
            return Err(ServerViolation::Length { kind, len });
        };
        let Some(offset) = WireReader::new(body).u64() else {
            return NEED_MORE;
        };
        self.cover(offset, data_len)?;
        Ok((8, Some(ClientEvent::Data { cookie, offset, len: data_len })))
    }

    pub(super) fn on_hole(&mut self, cookie: u64, len: u64, body: &[u8]) -> ReplyContent {
        if len != 12 {
            return Err(ServerViolation::Length { kind: chunk::OFFSET_HOLE, len });
        }
        let mut reader = WireReader::new(body);
        let (Some(offset), Some(hole_len)) = (reader.u64(), reader.u32()) else {
            return NEED_MORE;
        };
        self.cover(offset, hole_len)?;
        Ok((12, Some(ClientEvent::Hole { cookie, offset, len: hole_len })))
    }

    /// Records that a part of a read was received. Each byte must be sent once (B-06).
    fn cover(&mut self, offset: u64, len: u32) -> Result<(), ServerViolation> {
        let range = ByteRange::new(offset, u64::from(len));
        let inside = offset >= self.range.offset
            && len > 0
            && self.command == NbdCommand::Read
            && ByteRange::new(offset - self.range.offset, range.len).fits(self.range.len);
        if inside && self.coverage.add(range) {
            let covered = self.coverage.covered_bytes();
            assert!(covered <= self.range.len, "{covered} bytes of {} are covered", self.range);
            Ok(())
        } else {
            Err(ServerViolation::Content { offset, len: range.len })
        }
    }

    /// Parses any chunk whose type has the error bit. All of them start with an error number and a
    /// text (B-07); further fields of unknown types are ignored.
    pub(super) fn on_error(
        &mut self,
        cookie: u64,
        kind: u16,
        len: u64,
        body: &[u8],
    ) -> ReplyContent {
        let offset_len = if kind == chunk::ERROR_OFFSET { 8 } else { 0 };
        if !(6 + offset_len..=ERROR_BYTES_MAX).contains(&len) {
            return Err(ServerViolation::Length { kind, len });
        }
        let mut reader = WireReader::new(body);
        let Some(payload) = reader.bytes(len as u32) else { return NEED_MORE };
        let mut reader = WireReader::new(payload);
        let (errno, text_len) = (reader.u32().unwrap_or(0), reader.u16().unwrap_or(0));
        let Some(text) = reader.bytes(u32::from(text_len)) else {
            return Err(ServerViolation::Length { kind, len });
        };
        if kind == chunk::ERROR_OFFSET {
            let offset = reader.u64().ok_or(ServerViolation::Length { kind, len })?;
            let inside =
                offset >= self.range.offset && offset - self.range.offset <= self.range.len;
            if !inside {
                return Err(ServerViolation::Content { offset, len: 0 });
            }
        }
        self.errors += 1;
        if errno == 0 || self.errors > ERRORS_MAX || text.len() > STRING_BYTES_MAX {
            return Err(ServerViolation::Error(cookie));
        }
        let error = error_from_wire(errno);
        self.error.get_or_insert(error);
        Ok((payload.len(), Some(ClientEvent::Error { cookie, error, text: printable(text) })))
    }

    /// Adds an extent, truncated at the end of the request (M-08). Extents over the limit are
    /// validated but dropped: block status may always describe less than was requested.
    pub(super) fn add_extent(
        &mut self,
        cookie: u64,
        len: u64,
        bits: u32,
    ) -> Result<(), ServerViolation> {
        let left = self.range.len.saturating_sub(self.extents_bytes);
        if len == 0 || left == 0 || (self.req_one && len > left) {
            return Err(ServerViolation::Extents(cookie));
        }
        let len = len.min(left);
        // With REQ_ONE a second extent is a violation even if it fits.
        if self.req_one && self.extents_bytes > 0 {
            return Err(ServerViolation::Extents(cookie));
        }
        self.extents_bytes += len;
        assert!(self.extents_bytes <= self.range.len, "extents end after {}", self.range);
        let kept = self.extents.get_or_insert_default();
        if kept.len() < EXTENTS_PER_REPLY_MAX as usize {
            kept.push(extent_of(len, bits));
        }
        Ok(())
    }
}

/// Converts a non-zero error number from the wire.
pub(super) fn error_from_wire(errno: u32) -> IoError {
    i32::try_from(errno).map_or(IoError::Io, IoError::from_errno)
}
