//! The server's handshake, fed with a client's stream from its flags on.
//!
//! Properties: fragmentation of the stream does not matter; the output is bounded by the input; the
//! output consists of well-formed option replies, or the answer to `EXPORT_NAME` at the end; and
//! with forced TLS no client is admitted.

#![no_main]

use forebay_fuzz::nbd::serve;
use forebay_nbd::{CloseReason, HandshakeStep, Tls, proto};
use libfuzzer_sys::fuzz_target;

/// Upper bound of the answer to one option: a list of two exports.
const ANSWER_BYTES_MAX: usize = 1024;

fuzz_target!(|input: &[u8]| {
    let piece_len = input.last().map_or(1, |&byte| usize::from(byte % 40) + 1);
    for tls in [Tls::Off, Tls::Selective, Tls::Forced] {
        let whole = serve(tls, input, usize::MAX);
        let pieced = serve(tls, input, piece_len);
        // Data behind STARTTLS is detected reliably only if it arrives in one piece.
        if whole.step == HandshakeStep::Close(CloseReason::PlainText) {
            assert_eq!(pieced.step, whole.step);
        } else {
            assert_eq!(pieced, whole);
        }
        let options = input.len() / proto::OPTION_HEADER_BYTES;
        assert!(whole.out.len() <= (options + 1) * ANSWER_BYTES_MAX);
        if let HandshakeStep::Enter(terms) = whole.step {
            assert!(tls != Tls::Forced && terms.export.0 == 1 && !terms.tls);
            assert!(terms.structured || terms.base_allocation.is_none());
        }
        assert_replies_are_framed(&whole.out);
    }
});

fn assert_replies_are_framed(mut out: &[u8]) {
    while out.len() >= 8 && out[..8] == proto::OPTION_REPLY_MAGIC.to_be_bytes() {
        let len = u32::from_be_bytes([out[16], out[17], out[18], out[19]]) as usize;
        out = &out[proto::OPTION_REPLY_HEADER_BYTES + len..];
    }
    assert!([0, 10, 134].contains(&out.len()), "{} bytes are no reply", out.len());
}
