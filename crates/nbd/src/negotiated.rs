//! The result of a handshake: the terms of the transmission phase.

use crate::{ExportInfo, proto::export_flag};
use forebay_types::VolumeId;

/// The terms of one connection in the transmission phase, fixed until the connection ends.
/// Parsing a request and encoding its reply need no other state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The volume the client entered.
    pub export: VolumeId,
    /// Size of the export in bytes when the client entered it; the bound for its requests.
    pub size_bytes: u64,
    /// The transmission flags sent to the client.
    pub flags: u16,
    /// Whether replies are chunked. Always set if `extended` is.
    pub structured: bool,
    /// Whether both directions use extended headers.
    pub extended: bool,
    /// The id of the `base:allocation` context, if the client selected it.
    pub base_allocation: Option<u32>,
    /// Whether the client agreed to omit the padding after the `EXPORT_NAME` answer.
    pub no_zeroes: bool,
    /// Whether the session runs over TLS.
    pub tls: bool,
    /// Required request alignment in bytes, a power of two.
    pub block_min: u32,
    /// Longest payload of one read or write in bytes.
    pub payload_max: u32,
}

impl Negotiated {
    /// Terms for `export` with simple replies, for a client that negotiates no extension.
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

    /// Whether writes are rejected.
    pub const fn is_read_only(&self) -> bool {
        self.has(export_flag::READ_ONLY)
    }

    /// Whether this transmission flag was sent to the client.
    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
