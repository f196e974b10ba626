//! The exports that a handshake can offer.

use crate::proto::{STRING_BYTES_MAX, export_flag};
use forebay_types::{
    LINE_BYTES, SECTOR_BYTES, VolumeId,
    limits::{REQUEST_BYTES_MAX, VOLUME_NAME_BYTES_MAX},
};

/// One export as the handshake describes it to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The exported volume.
    pub id: VolumeId,
    /// The canonical name: UTF-8 without NUL, at most [`VOLUME_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// A human-readable description, possibly empty. At most 4096 bytes, no NUL.
    pub description: String,
    /// Size in bytes: a multiple of `block_min` (I-10), below 2^63.
    pub size_bytes: u64,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Whether seeks are expensive, as on a hard disk.
    pub rotational: bool,
    /// Whether `TRIM` has an effect.
    pub can_trim: bool,
    /// Whether `WRITE_ZEROES` is faster than writing zeroes, so that `FAST_ZERO` can be honoured.
    pub can_fast_zero: bool,
    /// Whether the export is available over TLS only.
    pub tls_only: bool,
    /// Required request alignment in bytes: a power of two from 1 to 65536.
    pub block_min: u32,
    /// Preferred request alignment in bytes: a power of two, at least 512 and `block_min`.
    pub block_preferred: u32,
    /// Longest payload of one read or write in bytes: at least 1 MiB, at least `block_preferred`,
    /// at most [`REQUEST_BYTES_MAX`].
    pub payload_max: u32,
}

/// Lower limit of `payload_max`. With less, clients split requests needlessly (I-09). A `DF` read
/// of 64 KiB must fit one reply (B-09).
const PAYLOAD_BYTES_MIN: u32 = 1 << 20;

/// Largest size of an export in bytes. Clients store sizes as signed 64-bit integers.
pub(crate) const EXPORT_BYTES_MAX: u64 = i64::MAX as u64;

impl ExportInfo {
    /// A writable export with the cache's block sizes: sector alignment required, line alignment
    /// preferred, payloads up to 32 MiB.
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

    /// Whether every field is in range. The handshake answers `ERR_PLATFORM` for an invalid export
    /// (I-09).
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

    /// The transmission flags. `DF` requires chunked replies (B-10). A read-only export
    /// offers no command that changes data.
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

/// The current exports of a listener.
pub trait Exports {
    /// Calls `each` once for every export, in display order.
    fn list(&self, each: &mut dyn FnMut(&ExportInfo));

    /// The export of this name. The empty name selects the default export: the only export
    /// if exactly one exists. Implementations must be cheap and open no device (P-04).
    fn find(&self, name: &str) -> Option<ExportInfo>;
}
