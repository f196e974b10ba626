//! Encodes a client's requests.

use super::OpenExport;
use crate::{
    NbdCommand,
    proto::{
        EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, command_flag,
    },
};

/// A request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// The caller's id for the request, unique among the requests in flight.
    pub cookie: u64,
    /// The command.
    pub command: NbdCommand,
    /// Flags of [`command_flag`], without `PAYLOAD_LEN`, which the encoder adds.
    pub flags: u16,
    /// First byte of the range in the export; zero for a flush.
    pub offset: u64,
    /// Length of the range in bytes; zero for a flush. Without extended headers at most 2^32 - 1.
    pub len: u64,
}

impl OpenExport {
    /// Appends the header of a request. For a write, the caller sends `len` bytes of data after it.
    ///
    /// # Panics
    /// On [`NbdCommand::Unknown`], and if the length does not fit the header.
    pub fn put_request(&self, request: &ExportRequest, out: &mut Vec<u8>) {
        let command = request.command.to_wire().expect("the command is known");
        let has_payload = self.extended && request.command == NbdCommand::Write;
        let payload_flag = if has_payload { command_flag::PAYLOAD_LEN } else { 0 };
        let magic = if self.extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut header = [0; EXTENDED_REQUEST_BYTES];
        header[..4].copy_from_slice(&magic.to_be_bytes());
        header[4..6].copy_from_slice(&(request.flags | payload_flag).to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&request.cookie.to_be_bytes());
        header[16..24].copy_from_slice(&request.offset.to_be_bytes());
        if self.extended {
            header[24..].copy_from_slice(&request.len.to_be_bytes());
            out.extend_from_slice(&header);
        } else {
            let len = u32::try_from(request.len).expect("the length fits a compact header");
            header[24..28].copy_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&header[..REQUEST_BYTES]);
        }
    }
}
