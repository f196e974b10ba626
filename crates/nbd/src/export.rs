//! What the handshake is told about the exports it may offer.

use crate::proto::{STRING_BYTES_MAX, export_flag};
use forebay_types::{
    LINE_BYTES, SECTOR_BYTES, VolumeId,
    limits::{REQUEST_BYTES_MAX, VOLUME_NAME_BYTES_MAX},
};

/// One export, as a client is told about it. It stands for the volume for as long as a client
/// that entered it stays connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The volume behind it.
    pub id: VolumeId,
    /// The canonical name: UTF-8 without NUL, at most [`VOLUME_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// A line for people; may be empty. At most 4096 bytes, no NUL.
    pub description: String,
    /// Its size in bytes, a multiple of `block_min` (I-10) and below 2^63.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether seeks cost, as on a hard disk.
    pub rotational: bool,
    /// Whether `TRIM` does something.
    pub can_trim: bool,
    /// Whether `WRITE_ZEROES` is faster than writing zeroes, so that `FAST_ZERO` can be honoured.
    pub can_fast_zero: bool,
    /// Whether it is offered over TLS only.
    pub tls_only: bool,
    /// Alignment demanded of requests in bytes: a power of two from 1 to 65536.
    pub block_min: u32,
    /// Alignment that is served best in bytes: a power of two, at least 512 and `block_min`.
    pub block_preferred: u32,
    /// Longest payload of one read or write in bytes: at least 1 MiB, at least `block_preferred`,
    /// at most [`REQUEST_BYTES_MAX`].
    pub payload_max: u32,
}

/// Least `payload_max`: below it clients split what they should not (I-09), and a `DF` read of
/// 64 KiB must always be served whole (B-09).
const PAYLOAD_BYTES_MIN: u32 = 1 << 20;

/// Largest size of an export in bytes. Clients keep sizes as signed numbers.
pub(crate) const EXPORT_BYTES_MAX: u64 = i64::MAX as u64;

impl ExportInfo {
    /// A writable export with the block sizes of the cache: sectors are demanded, lines
    /// preferred, and payloads of up to 32 MiB taken.
    pub fn new(id: VolumeId, name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            id,
            name: name.into(),
            description: String::new(),
            size_bytes,
            read_only: false,
            rotational: false,
            can_trim: false,
            can_fast_zero: false,
            tls_only: false,
            block_min: SECTOR_BYTES as u32,
            block_preferred: LINE_BYTES as u32,
            payload_max: REQUEST_BYTES_MAX as u32,
        }
    }

    /// Whether every field is in its range. An export that is not is refused to clients with
    /// `ERR_PLATFORM` rather than described to them wrongly (I-09).
    pub fn is_valid(&self) -> bool {
        let string = |text: &str, len_max| text.len() <= len_max && !text.contains('\0');
        string(&self.name, VOLUME_NAME_BYTES_MAX)
            && string(&self.description, STRING_BYTES_MAX)
            && self.block_min.is_power_of_two()
            && self.block_min <= 1 << 16
            && self.block_preferred.is_power_of_two()
            && self.block_preferred >= self.block_min.max(SECTOR_BYTES as u32)
            && self.payload_max >= self.block_preferred.max(PAYLOAD_BYTES_MIN)
            && u64::from(self.payload_max) <= REQUEST_BYTES_MAX
            && self.size_bytes <= EXPORT_BYTES_MAX
            && self.size_bytes.is_multiple_of(u64::from(self.block_min))
    }

    /// The transmission flags. `chunked` says whether replies come in chunks, without
    /// which `DF` means nothing (B-10). What changes data is not offered on a read-only export.
    pub(crate) fn flags(&self, chunked: bool) -> u16 {
        let when = |condition: bool, flag: u16| if condition { flag } else { 0 };
        let writable = !self.read_only;
        export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_CACHE
            | export_flag::CAN_MULTI_CONN
            | when(chunked, export_flag::SEND_DF)
            | when(self.read_only, export_flag::READ_ONLY)
            | when(self.rotational, export_flag::ROTATIONAL)
            | when(writable, export_flag::SEND_WRITE_ZEROES)
            | when(writable && self.can_trim, export_flag::SEND_TRIM)
            | when(writable && self.can_fast_zero, export_flag::SEND_FAST_ZERO)
    }
}

/// The exports of a listener, as they are at the moment of asking.
pub trait Exports {
    /// Calls `each` once for every export, in the order they are shown to people.
    fn list(&self, each: &mut dyn FnMut(&ExportInfo));

    /// The export of this name, or for the empty name the default export: the only one
    /// there is, if there is exactly one. Cheap: nothing is opened for it (P-04).
    fn find(&self, name: &str) -> Option<ExportInfo>;
}
