//! Constants of the NBD protocol.
//!
//! All fields are big-endian. Names follow the protocol document without the `NBD_` prefix, and are
//! grouped by the field they appear in.

/// First eight bytes a server sends: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and the start of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second eight bytes of an oldstyle server, which has no options; detected to report it.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of a server's greeting: two magics and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Bytes of the client's answer to the greeting.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an option reply's header.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Zero bytes after the answer to `EXPORT_NAME`, unless both sides agreed to omit them.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Bytes of a compact request header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply header.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured reply chunk header.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// Bytes of an extended reply chunk header.
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Longest string of the protocol (a name, description, query or error text), in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Recommended maximum length of a sent string, in bytes.
pub const STRING_BYTES_PREFERRED_MAX: usize = 256;

/// The metadata context that reports allocation.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags: 16 bits from the server, 32 bits from the client, with the same meanings.
pub mod handshake_flag {
    /// Unknown options are answered rather than ending the session.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The zero bytes after the answer to `EXPORT_NAME` are omitted.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: properties and capabilities of an export.
pub mod export_flag {
    /// Set in every valid set of flags.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are rejected.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The `FUA` flag is honoured on every command.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are expensive, as on a hard disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served, with and without `NO_HOLE`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The `DF` flag is honoured on reads.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all connections to the export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The `FAST_ZERO` flag is honoured on `WRITE_ZEROES`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options: requests of the handshake phase.
pub mod option {
    /// Enter an export; the server can report an error only by closing.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe and enter an export.
    pub const GO: u32 = 7;
    /// Use chunked replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit headers in both directions (extension).
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options. Errors have the top bit set.
pub mod option_reply {
    /// Success; the last reply to the option.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set on errors only.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The server's configuration forbids this option.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is not allowed at this point, or its data is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The server's platform does not support this.
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    /// Available over TLS only.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// The export is not known.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers are needed (extension).
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A human-readable description.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum block, preferred block and maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard the range.
    pub const TRIM: u16 = 4;
    /// Prefetch the range.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flag {
    /// Reply only once the data is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer the read in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeroes slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length counts payload bytes that follow (extension).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of structured and extended replies.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No payload; ends a reply.
    pub const NONE: u16 = 0;
    /// An offset, and the data at that offset.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and the length of a run of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context, 32 bits each.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of one metadata context, 64 bits each (extension).
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set on errors only.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error of the whole request.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// Bits of an extent of [`BASE_ALLOCATION`].
pub mod allocation {
    /// The range is unallocated.
    pub const HOLE: u32 = 1 << 0;
    /// The range reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}
