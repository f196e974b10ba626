//! Requests of the transmission phase: the header from the wire, judged.
//!
//! [`Negotiated::parse`] owns every check that needs no more than the header and the terms of the
//! connection: flags, alignment, bounds, permission, lengths. Its caller gets a request that can
//! be served as it stands, or one that carries the error to answer once its payload has been
//! consumed. The stream never loses step over a refused request; only what can't be
//! followed at all, a wrong magic or an abusive payload length, breaks the connection (D-03).
//!
//! Every hit passes through here: one bounds check for the whole header, no allocation.

use crate::{
    Negotiated,
    proto::{
        EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, command,
        command_flag, export_flag,
    },
};
use forebay_types::{ByteRange, IoError};

/// Longest payload that is consumed to answer a refused write, in bytes. A client may always ask
/// for 32 MiB (C-10); twice that is taken for a mistake, more for an attack.
pub const PAYLOAD_BYTES_ABUSIVE: u64 = 64 << 20;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `len` bytes from `offset`.
    Read,
    /// Write the payload at `offset`.
    Write,
    /// Finish what is in flight, then close; there is no reply (C-03).
    Disconnect,
    /// Bring all that was answered before to stable storage.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// The range will be read soon.
    Cache,
    /// The range shall read as zeroes.
    WriteZeroes,
    /// What is allocated in the range.
    BlockStatus,
    /// No command of the protocol; always carries an error.
    Unknown,
}

impl Command {
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

    /// The number on the wire; `None` for [`Command::Unknown`].
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

    /// Whether it changes data.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// One request. Where `error` is `None` everything in it holds: the range is inside the export
/// and aligned, the length is not zero (but for a flush), the flags fit the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it, to be repeated in the reply.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// Bytes of the export it works on; zero for a flush.
    pub len: u64,
    /// Bytes that follow the header on the wire, at most [`PAYLOAD_BYTES_ABUSIVE`]. They are
    /// there, and must be consumed, also where `error` is set.
    pub payload_len: u32,
    /// What is to be done.
    pub command: Command,
    /// Answer only when the data is on stable storage.
    pub fua: bool,
    /// Zeroes must be allocated.
    pub no_hole: bool,
    /// Answer the read in one piece.
    pub df: bool,
    /// Answer the block status with one extent.
    pub req_one: bool,
    /// Fail with [`IoError::NotSupported`] rather than write zeroes slowly.
    pub fast_zero: bool,
    /// Set where the request is refused: consume the payload, then answer this.
    pub error: Option<IoError>,
}

impl Request {
    /// What the reply must repeat of the request.
    pub const fn reply_to(&self) -> ReplyTo {
        ReplyTo { cookie: self.cookie, offset: self.offset }
    }

    /// The bytes of the export it works on. Only of a request without error: a refused one may
    /// run past the end of the address space.
    pub const fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.len)
    }
}

/// What every reply must repeat of its request: keep it while the request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The client's name for the request.
    pub cookie: u64,
    /// The offset of the request; extended replies repeat it.
    pub offset: u64,
}

/// What the start of the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse {
    /// Not yet a whole header.
    NeedMore,
    /// A request, whose header was `header_len` bytes; its payload, if any, follows.
    Request {
        /// The request.
        request: Request,
        /// Bytes of the input it took, without payload.
        header_len: usize,
    },
    /// The stream can't be followed: drop the connection.
    Broken(BrokenStream),
}

/// Why a client's stream can't be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenStream {
    /// The header does not start like one.
    #[error("request magic is {0:#010x}: the client sends something other than requests")]
    Magic(u32),
    /// The payload is too long to be consumed.
    #[error("payload of {0} bytes is abusive: {PAYLOAD_BYTES_ABUSIVE} bytes are the limit")]
    PayloadLength(u64),
}

/// A header's fields as they were on the wire.
struct Header {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u64,
}

/// The `N` bytes of `header` from `at`. Both are constants at every call, so the check is gone
/// after inlining.
fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

impl Negotiated {
    /// Reads one request header from the start of `input`, and judges it.
    #[inline]
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
        let header = Header {
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
        match self.judge(&header) {
            Ok(request) => Parse::Request { request, header_len },
            Err(reason) => Parse::Broken(reason),
        }
    }

    fn judge(&self, header: &Header) -> Result<Request, BrokenStream> {
        let command = Command::from_wire(header.kind);
        let payload_len = self.payload_len(command, header)?;
        let flag = |bit: u16| header.flags & bit != 0;
        let mut request = Request {
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
            error: None,
        };
        request.error = self.refuse(&request, header.flags).err();
        Ok(request)
    }

    /// How many bytes follow the header. In compact headers only a write has a payload; in
    /// extended ones the flag says so, whatever the command (XH-03).
    fn payload_len(&self, command: Command, header: &Header) -> Result<u32, BrokenStream> {
        let is_write = matches!(command, Command::Write);
        let follows =
            if self.extended { header.flags & command_flag::PAYLOAD_LEN != 0 } else { is_write };
        if !follows {
            return Ok(0);
        }
        let len_max = if is_write { PAYLOAD_BYTES_ABUSIVE } else { u64::from(self.payload_max) };
        match u32::try_from(header.len) {
            Ok(len) if header.len <= len_max => Ok(len),
            _ => Err(BrokenStream::PayloadLength(header.len)),
        }
    }

    /// The reasons to refuse a request, in the order a client wants to hear of them: what it may
    /// not say, what it may not do, and then where.
    fn refuse(&self, request: &Request, flags: u16) -> Result<(), IoError> {
        if matches!(request.command, Command::Disconnect) {
            return Ok(());
        }
        let allowed = self.allowed_flags(request.command).ok_or(IoError::Invalid)?;
        if flags & !allowed != 0 {
            return Err(IoError::Invalid);
        }
        if matches!(request.command, Command::Flush) {
            let is_bare = request.offset == 0 && request.len == 0;
            return if is_bare { Ok(()) } else { Err(IoError::Invalid) };
        }
        if request.command.is_write() && self.is_read_only() {
            return Err(IoError::NotPermitted);
        }
        self.refuse_unoffered(request, flags)?;
        self.refuse_range(request)
    }

    /// The flags a command may carry, or `None` for no command at all. `FUA` is accepted
    /// on every command, and means nothing where nothing is written.
    const fn allowed_flags(&self, command: Command) -> Option<u16> {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};
        Some(match command {
            Command::Read if self.structured => FUA | DF,
            Command::Write if self.extended => FUA | PAYLOAD_LEN,
            Command::WriteZeroes if self.has(export_flag::SEND_FAST_ZERO) => {
                FUA | NO_HOLE | FAST_ZERO
            }
            Command::WriteZeroes => FUA | NO_HOLE,
            Command::BlockStatus => FUA | REQ_ONE,
            Command::Unknown => return None,
            _ => FUA,
        })
    }

    /// Refuses what was not offered to this client.
    fn refuse_unoffered(&self, request: &Request, flags: u16) -> Result<(), IoError> {
        let offered = match request.command {
            Command::Trim => self.has(export_flag::SEND_TRIM),
            Command::BlockStatus => self.base_allocation.is_some(),
            Command::Write => !self.extended || flags & command_flag::PAYLOAD_LEN != 0,
            _ => true,
        };
        if offered { Ok(()) } else { Err(IoError::Invalid) }
    }

    /// Refuses ranges that are too long, unaligned or past the end (C-10, L-03). An empty range
    /// has no specified result; it is refused so that none below has to think of it.
    fn refuse_range(&self, request: &Request) -> Result<(), IoError> {
        let carries_data = matches!(request.command, Command::Read | Command::Write);
        if carries_data && request.len > u64::from(self.payload_max) {
            // Only a client that takes chunks knows this error for a read (L-04, E-02).
            let is_read = matches!(request.command, Command::Read);
            return Err(if is_read && self.structured {
                IoError::Overflow
            } else {
                IoError::Invalid
            });
        }
        let unaligned = (request.offset | request.len) & (u64::from(self.block_min) - 1) != 0;
        if request.len == 0 || unaligned {
            return Err(IoError::Invalid);
        }
        if request.range().fits(self.size_bytes) {
            return Ok(());
        }
        let is_filling = matches!(request.command, Command::Write | Command::WriteZeroes);
        Err(if is_filling { IoError::NoSpace } else { IoError::Invalid })
    }
}
