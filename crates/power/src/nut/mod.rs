//! The protocol of Network UPS Tools (NUT), sans I/O.
//!
//! The protocol consists of text lines over TCP, with one reply to each command, in order.
//! [`NutCommand`] encodes commands; [`NutParser`] parses received bytes into replies.
//!
//! The parser never panics, buffers at most [`LINE_BYTES_MAX`] of a line and [`LIST_ROWS_MAX`] rows
//! of a list, and stays broken after a [`ProtocolError`]: framing is lost. Invalid UTF-8 and
//! control characters become U+FFFD, because some UPSes report such names.
//!
//! Source of the protocol: "Network protocol information" in the developer guide of NUT.

mod command;
mod line;
mod reply;

pub use command::{EncodeError, NutCommand, WORD_BYTES_MAX};
pub use line::{LINE_BYTES_MAX, ProtocolError, WORDS_MAX, split_words};
pub use reply::{ErrorCode, LIST_ROWS_MAX, NutEvent, NutParser, NutReply};

/// The port of a NUT server, registered with IANA.
pub const PORT: u16 = 3493;

#[cfg(test)]
mod tests;
