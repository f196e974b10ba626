//! Requests of the transmission phase: parsing and validation.
//!
//! [`Negotiated::parse`] owns every check that needs only the header and the terms of the
//! connection: flags, alignment, bounds, permission, lengths. It returns either a valid request or
//! one that carries the error to answer after its payload has been consumed. A rejected request
//! does not lose framing. Only a wrong magic or an excessive payload length breaks the
//! connection (D-03).
//!
//! This is on the hit path: one bounds check for the whole header, no allocation.

use crate::{
    Negotiated,
    proto::{
        EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, command,
        command_flag, export_flag,
    },
};
use forebay_types::{ByteRange, IoError};

/// Longest payload, in bytes, that the server drains in order to answer a rejected write. Clients
/// may always send 32 MiB (C-10). Up to twice that is treated as a client bug, more as an attack.
pub const PAYLOAD_DRAIN_BYTES_MAX: u64 = 64 << 20;

/// A command of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Read `len` bytes from `offset`.
    Read,
    /// Write the payload at `offset`.
    Write,
    /// Finish what is in flight, then close; there is no reply (C-03).
    Disconnect,
    /// Make all completed writes durable.
    Flush,
    /// Discard the range.
    Trim,
    /// Prefetch the range.
    Cache,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Report what is allocated in the range.
    BlockStatus,
    /// A number the protocol does not define; the request always carries an error.
    Unknown,
}

impl NbdCommand {
    const fn from_wire(number: u16) -> Self {
        match number {
            command::READ => Self::Read,
            command::WRITE => Self::Write,
            command::DISC => Self::Disconnect,
            command::FLUSH => Self::Flush,
            command::TRIM => Self::Trim,
            command::CACHE => Self::Cache,
            command::WRITE_ZEROES => Self::WriteZeroes,
            command::BLOCK_STATUS => Self::BlockStatus,
            _ => Self::Unknown,
        }
    }

    /// The number on the wire; `None` for [`NbdCommand::Unknown`].
    pub const fn to_wire(self) -> Option<u16> {
        Some(match self {
            Self::Read => command::READ,
            Self::Write => command::WRITE,
            Self::Disconnect => command::DISC,
            Self::Flush => command::FLUSH,
            Self::Trim => command::TRIM,
            Self::Cache => command::CACHE,
            Self::WriteZeroes => command::WRITE_ZEROES,
            Self::BlockStatus => command::BLOCK_STATUS,
            Self::Unknown => return None,
        })
    }

    /// Whether the command changes data.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// One request. If `error` is `None`, the request is valid: the flags fit the command, and the
/// range is aligned, not empty, and inside the export. Exceptions: the range of a flush is empty,
/// and a disconnect is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// The client's id for the request, echoed in the reply.
    pub cookie: u64,
    /// First byte of the range in the export.
    pub offset: u64,
    /// Length of the range in bytes; zero for a flush.
    pub len: u64,
    /// Bytes that follow the header on the wire, at most [`PAYLOAD_DRAIN_BYTES_MAX`]. The caller
    /// must consume them even if `error` is set.
    pub payload_len: u32,
    /// The command.
    pub command: NbdCommand,
    /// Reply only once the data is on stable storage.
    pub fua: bool,
    /// Zeroes must be allocated.
    pub no_hole: bool,
    /// Answer the read in one chunk.
    pub df: bool,
    /// Answer the block status with one extent.
    pub req_one: bool,
    /// Fail with [`IoError::NotSupported`] rather than write zeroes slowly.
    pub fast_zero: bool,
    /// Set if the request was rejected: consume the payload, then answer with this error.
    pub error: Option<IoError>,
}

impl NbdRequest {
    /// The fields that the reply repeats.
    pub const fn reply_to(&self) -> ReplyTo {
        ReplyTo { cookie: self.cookie, offset: self.offset }
    }

    /// The byte range in the export. Valid only if `error` is `None`: the range of a rejected
    /// request may exceed the address space.
    pub const fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.len)
    }
}

/// The fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The client's id for the request.
    pub cookie: u64,
    /// The offset of the request, which extended replies repeat.
    pub offset: u64,
}

/// The result of parsing the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse {
    /// The header is not complete.
    NeedMore,
    /// A request; its payload, if any, follows the header.
    Request {
        /// The request.
        request: NbdRequest,
        /// Length of the header in bytes.
        header_len: usize,
    },
    /// Framing is lost: drop the connection.
    Broken(BrokenStream),
}

/// Why a client's request stream lost framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenStream {
    /// The header starts with a wrong magic.
    #[error("invalid request magic {0:#010x}")]
    Magic(u32),
    /// The payload is too long to be drained.
    #[error("payload of {0} bytes exceeds the limit of {PAYLOAD_DRAIN_BYTES_MAX} bytes")]
    PayloadLength(u64),
}

/// The fields of a header, unchecked.
struct RequestHeader {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u64,
}

/// The `N` bytes of `header` from `at`. Both are constants at every call, so inlining removes the
/// bounds check.
fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

impl Negotiated {
    /// Parses and validates one request header at the start of `input`.
    #[inline(always)]
    pub fn parse(&self, input: &[u8]) -> Parse {
        let (magic_wanted, header_len) = if self.extended {
            (EXTENDED_REQUEST_MAGIC, EXTENDED_REQUEST_BYTES)
        } else {
            (REQUEST_MAGIC, REQUEST_BYTES)
        };
        let Some(header) = input.get(..header_len) else { return Parse::NeedMore };
        let magic = u32::from_be_bytes(field(header, 0));
        if magic != magic_wanted {
            return Parse::Broken(BrokenStream::Magic(magic));
        }
        let header = RequestHeader {
            flags: u16::from_be_bytes(field(header, 4)),
            kind: u16::from_be_bytes(field(header, 6)),
            cookie: u64::from_be_bytes(field(header, 8)),
            offset: u64::from_be_bytes(field(header, 16)),
            len: if self.extended {
                u64::from_be_bytes(field(header, 24))
            } else {
                u64::from(u32::from_be_bytes(field(header, 24)))
            },
        };
        let command = NbdCommand::from_wire(header.kind);
        let payload_len = match self.payload_len(command, &header) {
            Ok(payload_len) => payload_len,
            Err(reason) => return Parse::Broken(reason),
        };
        let flag = |bit: u16| header.flags & bit != 0;
        // Created where it stays: copying the flags right after they were written byte by byte
        // stalls the processor.
        let request = NbdRequest {
            cookie: header.cookie,
            offset: header.offset,
            len: header.len,
            payload_len,
            command,
            fua: flag(command_flag::FUA),
            no_hole: flag(command_flag::NO_HOLE),
            df: flag(command_flag::DF),
            req_one: flag(command_flag::REQ_ONE),
            fast_zero: flag(command_flag::FAST_ZERO),
            error: self.check(command, &header).err(),
        };
        debug_assert!(
            request.error.is_some()
                || matches!(command, NbdCommand::Disconnect | NbdCommand::Flush)
                || request.range().fits(self.size_bytes),
            "a request without an error ends past the volume: {request:?}"
        );
        Parse::Request { request, header_len }
    }

    /// The number of payload bytes after the header. With compact headers only a write has a
    /// payload; with extended headers the flag decides, for any other command (XH-03). A write has
    /// to have the flag, but QEMU 10.0 sends its data without it, and QEMU's own
    /// server accepts that. No client sends a write without data.
    fn payload_len(
        &self,
        command: NbdCommand,
        header: &RequestHeader,
    ) -> Result<u32, BrokenStream> {
        let is_write = matches!(command, NbdCommand::Write);
        let has_flag = self.extended && header.flags & command_flag::PAYLOAD_LEN != 0;
        if !is_write && !has_flag {
            return Ok(0);
        }
        let len_max = if is_write { PAYLOAD_DRAIN_BYTES_MAX } else { u64::from(self.payload_max) };
        match u32::try_from(header.len) {
            Ok(len) if header.len <= len_max => Ok(len),
            _ => Err(BrokenStream::PayloadLength(header.len)),
        }
    }

    /// Checks the flags, then permission, whether the command was offered, and the range, so that
    /// the client gets the most fundamental error.
    fn check(&self, command: NbdCommand, header: &RequestHeader) -> Result<(), IoError> {
        if matches!(command, NbdCommand::Disconnect) {
            return Ok(());
        }
        let allowed = self.allowed_flags(command).ok_or(IoError::Invalid)?;
        if header.flags & !allowed != 0 {
            return Err(IoError::Invalid);
        }
        if matches!(command, NbdCommand::Flush) {
            let is_bare = header.offset == 0 && header.len == 0;
            return if is_bare { Ok(()) } else { Err(IoError::Invalid) };
        }
        if command.is_write() && self.is_read_only() {
            return Err(IoError::NotPermitted);
        }
        self.check_offered(command)?;
        self.check_range(command, ByteRange::new(header.offset, header.len))
    }

    /// The flags that a command may carry, or `None` for an unknown command. `FUA` is
    /// accepted on every command, and has no effect on commands that write nothing.
    const fn allowed_flags(&self, command: NbdCommand) -> Option<u16> {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};
        Some(match command {
            NbdCommand::Read if self.structured => FUA | DF,
            NbdCommand::Write if self.extended => FUA | PAYLOAD_LEN,
            NbdCommand::WriteZeroes if self.has(export_flag::SEND_FAST_ZERO) => {
                FUA | NO_HOLE | FAST_ZERO
            }
            NbdCommand::WriteZeroes => FUA | NO_HOLE,
            NbdCommand::BlockStatus => FUA | REQ_ONE,
            NbdCommand::Unknown => return None,
            _ => FUA,
        })
    }

    /// Rejects commands that the handshake did not offer to this client.
    fn check_offered(&self, command: NbdCommand) -> Result<(), IoError> {
        let offered = match command {
            NbdCommand::Trim => self.has(export_flag::SEND_TRIM),
            NbdCommand::BlockStatus => self.base_allocation.is_some(),
            _ => true,
        };
        if offered { Ok(()) } else { Err(IoError::Invalid) }
    }

    /// Rejects ranges that are too long, unaligned or past the end (C-10, L-03). The protocol does
    /// not specify the result of an empty range; rejecting it here spares the layers below.
    fn check_range(&self, command: NbdCommand, range: ByteRange) -> Result<(), IoError> {
        let carries_data = matches!(command, NbdCommand::Read | NbdCommand::Write);
        if carries_data && range.len > u64::from(self.payload_max) {
            // EOVERFLOW is defined for reads with chunked replies only (L-04, E-02).
            let is_read = matches!(command, NbdCommand::Read);
            return Err(if is_read && self.structured {
                IoError::Overflow
            } else {
                IoError::Invalid
            });
        }
        let unaligned = (range.offset | range.len) & (u64::from(self.block_min) - 1) != 0;
        if range.len == 0 || unaligned {
            return Err(IoError::Invalid);
        }
        if range.fits(self.size_bytes) {
            return Ok(());
        }
        let is_filling = matches!(command, NbdCommand::Write | NbdCommand::WriteZeroes);
        Err(if is_filling { IoError::NoSpace } else { IoError::Invalid })
    }
}
