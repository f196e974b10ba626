//! The protocol of Network UPS Tools, as bytes in and bytes out.
//!
//! Text lines over TCP, one reply for each command, in order. [`Command`] is what we say;
//! [`ReplyParser`] takes whatever bytes come and gives whole replies. Nothing here knows a socket.
//!
//! The parser never panics, holds at most [`LINE_BYTES_MAX`] of a line and [`LIST_ROWS_MAX`] rows
//! of a list, and is broken for good after a [`Breach`]: what follows it can not be trusted to
//! be in step. Bytes that are no UTF-8 and control characters become U+FFFD, because supplies
//! do report such names.
//!
//! Source of the protocol: "Network protocol information" in the developer guide of NUT.

mod command;
mod line;
mod reply;

pub use command::{Command, EncodeError, WORD_BYTES_MAX};
pub use line::{Breach, LINE_BYTES_MAX, WORDS_MAX, split_words};
pub use reply::{ErrorCode, Event, LIST_ROWS_MAX, Reply, ReplyParser};

/// The port of a NUT server, registered with IANA.
pub const PORT: u16 = 3493;

#[cfg(test)]
mod tests;
