//! One reply to an option, as a client receives it.

use super::Failure;
use crate::{
    proto::{
        OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, STRING_BYTES_PREFERRED_MAX, option_reply,
    },
    wire::{Reader, clipped},
};
use forebay_types::limits::OPTION_BYTES_MAX;

/// A reply whose data is complete.
pub(super) struct OptionReply<'a> {
    /// What it is, one of [`option_reply`].
    pub(super) kind: u32,
    pub(super) data: &'a [u8],
    /// Bytes of the input it took.
    pub(super) taken: usize,
}

impl<'a> OptionReply<'a> {
    /// Reads a reply to `option` from the start of `input`; `None` if it is not complete.
    pub(super) fn parse(input: &'a [u8], option: u32) -> Result<Option<Self>, Failure> {
        let mut reader = Reader::new(input);
        let (Some(magic), Some(echoed), Some(kind), Some(len)) =
            (reader.u64(), reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok(None);
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(Failure::ReplyMagic(magic));
        }
        if echoed != option {
            return Err(Failure::ReplyToOther { sent: option, echoed });
        }
        if len > OPTION_BYTES_MAX {
            return Err(Failure::ReplyLength(len));
        }
        let taken = OPTION_REPLY_HEADER_BYTES + len as usize;
        Ok(reader.bytes(len).map(|data| Self { kind, data, taken }))
    }

    pub(super) const fn is_error(&self) -> bool {
        self.kind & option_reply::ERROR_BIT != 0
    }

    /// The failure an error reply stands for.
    pub(super) fn to_failure(&self, option: u32) -> Failure {
        Failure::Refused { option, reply: self.kind, text: printable(self.data) }
    }
}

/// A text of the server's, made safe to print: cut short, and without control characters.
pub(super) fn printable(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(STRING_BYTES_PREFERRED_MAX)];
    let text = String::from_utf8_lossy(head);
    clipped(&text, STRING_BYTES_PREFERRED_MAX)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
