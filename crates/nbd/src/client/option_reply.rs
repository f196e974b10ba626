//! Parses a server's reply to an option.

use super::OpenFailure;
use crate::{
    proto::{
        OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, STRING_BYTES_PREFERRED_MAX, option_reply,
    },
    wire::{WireReader, clipped},
};
use forebay_types::limits::OPTION_BYTES_MAX;

/// A complete reply.
pub(super) struct OptionReply<'a> {
    /// One of [`option_reply`].
    pub(super) kind: u32,
    pub(super) data: &'a [u8],
    /// Bytes consumed.
    pub(super) taken: usize,
}

impl<'a> OptionReply<'a> {
    /// Parses a reply to `option` at the start of `input`; `None` if it is incomplete.
    pub(super) fn parse(input: &'a [u8], option: u32) -> Result<Option<Self>, OpenFailure> {
        let mut reader = WireReader::new(input);
        let (Some(magic), Some(echoed), Some(kind), Some(len)) =
            (reader.u64(), reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok(None);
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(OpenFailure::ReplyMagic(magic));
        }
        if echoed != option {
            return Err(OpenFailure::ReplyToOther { sent: option, echoed });
        }
        if len > OPTION_BYTES_MAX {
            return Err(OpenFailure::ReplyLength(len));
        }
        let taken = OPTION_REPLY_HEADER_BYTES + len as usize;
        Ok(reader.bytes(len).map(|data| Self { kind, data, taken }))
    }

    pub(super) const fn is_error(&self) -> bool {
        self.kind & option_reply::ERROR_BIT != 0
    }

    pub(super) fn to_failure(&self, option: u32) -> OpenFailure {
        OpenFailure::Refused { option, reply: self.kind, text: printable(self.data) }
    }
}

/// A text from the server, made safe to print: truncated, control characters replaced.
pub(super) fn printable(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(STRING_BYTES_PREFERRED_MAX)];
    let text = String::from_utf8_lossy(head);
    clipped(&text, STRING_BYTES_PREFERRED_MAX)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
