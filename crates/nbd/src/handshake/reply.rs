//! Replies to options.

use crate::{
    proto::{OPTION_REPLY_MAGIC, option, option_reply},
    wire::{put_u16, put_u32, put_u64},
};

/// Appends the header of a reply with `len` bytes of data.
pub(super) fn put_header(out: &mut Vec<u8>, option: u32, kind: u32, len: u32) {
    put_u64(out, OPTION_REPLY_MAGIC);
    put_u32(out, option);
    put_u32(out, kind);
    put_u32(out, len);
}

/// Appends the reply that ends an option: a bare ACK (N-09), or an error with a text (N-05).
pub(super) fn put_final(out: &mut Vec<u8>, option: u32, kind: u32) {
    let text = error_text(option, kind);
    put_header(out, option, kind, text.len() as u32);
    out.extend_from_slice(text.as_bytes());
}

/// Appends an information reply that consists of text.
pub(super) fn put_info_text(out: &mut Vec<u8>, option: u32, info: u16, text: &str) {
    put_header(out, option, option_reply::INFO, 2 + text.len() as u32);
    put_u16(out, info);
    out.extend_from_slice(text.as_bytes());
}

/// The text that clients show in their error message.
fn error_text(option: u32, kind: u32) -> &'static str {
    match kind {
        option_reply::ERR_UNSUP => "option not supported by this server",
        option_reply::ERR_POLICY if option == option::STARTTLS => {
            "TLS is not offered by this listener; connect without TLS, or to a TLS listener"
        }
        option_reply::ERR_POLICY => "forbidden by the configuration of this listener",
        option_reply::ERR_INVALID => "option malformed, or not allowed at this point",
        option_reply::ERR_PLATFORM => "export cannot be served; see the server's log",
        option_reply::ERR_TLS_REQD => "TLS required; send STARTTLS first",
        option_reply::ERR_UNKNOWN => "no export of this name; LIST shows the available exports",
        option_reply::ERR_SHUTDOWN => "the server is shutting down",
        option_reply::ERR_TOO_BIG => "option exceeds the limit of 65536 bytes",
        option_reply::ERR_EXT_HEADER_REQD => "extended headers already include chunked replies",
        _ => "",
    }
}
