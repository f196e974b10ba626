//! What a finished handshake leaves behind: all that the transmission phase needs to know.

use crate::{ExportInfo, proto::export_flag};
use forebay_types::VolumeId;

/// The terms of one connection in the transmission phase, fixed until it ends. Small and without
/// heap memory: reading a request and encoding its reply look at nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The volume the client entered.
    pub export: VolumeId,
    /// Size of the export in bytes when the client entered it; requests are held to it.
    pub size_bytes: u64,
    /// The transmission flags as the client was told them.
    pub flags: u16,
    /// Whether replies come in chunks. Also set where `extended` is.
    pub structured: bool,
    /// Whether headers are the extended ones in both directions.
    pub extended: bool,
    /// The number of the `base:allocation` context, where the client selected it.
    pub base_allocation: Option<u32>,
    /// Whether the client agreed to leave out the zeroes behind `EXPORT_NAME`.
    pub no_zeroes: bool,
    /// Whether the session is inside TLS.
    pub tls: bool,
    /// Alignment demanded of requests in bytes, a power of two.
    pub block_min: u32,
    /// Longest payload of one read or write in bytes.
    pub payload_max: u32,
}

impl Negotiated {
    /// Terms for `export` with simple replies, as a client gets that asks for nothing.
    pub fn new(export: &ExportInfo) -> Self {
        Self {
            export: export.id,
            size_bytes: export.size_bytes,
            flags: export.flags(false),
            structured: false,
            extended: false,
            base_allocation: None,
            no_zeroes: false,
            tls: false,
            block_min: export.block_min,
            payload_max: export.payload_max,
        }
    }

    /// Whether writes are refused.
    pub const fn is_read_only(&self) -> bool {
        self.has(export_flag::READ_ONLY)
    }

    /// Whether the client was told of this transmission flag.
    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
