//! Requests as a client sends them.

use super::Opened;
use crate::{
    Command,
    proto::{
        EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, command_flag,
    },
};

/// One request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it; no two requests in flight may share one.
    pub cookie: u64,
    /// What is to be done.
    pub command: Command,
    /// Flags of [`command_flag`], without `PAYLOAD_LEN`, which follows from the command.
    pub flags: u16,
    /// First byte of the export; zero for a flush.
    pub offset: u64,
    /// Bytes of the export; zero for a flush. Without extended headers at most 2^32 - 1.
    pub len: u64,
}

impl Opened {
    /// Appends the header of a request. The data of a write, `len` bytes, is to be sent behind it.
    ///
    /// # Panics
    /// On [`Command::Unknown`], and on a length that the header does not hold.
    pub fn put_request(&self, request: &Request, out: &mut Vec<u8>) {
        let command = request.command.to_wire().expect("an unknown command is never sent");
        let has_payload = self.extended && request.command == Command::Write;
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
            let len = u32::try_from(request.len).expect("compact headers hold 32 bits of length");
            header[24..28].copy_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&header[..REQUEST_BYTES]);
        }
    }
}
