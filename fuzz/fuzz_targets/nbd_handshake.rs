//! The server's handshake, fed with a client's stream from its flags on.
//!
//! Promises: it does not matter in which pieces the stream comes; the output is bounded by the
//! input; all that is sent consists of well-formed replies to options, or of the answer to
//! `EXPORT_NAME` at the very end; and a forced listener lets nobody in.

#![no_main]

use forebay_fuzz::nbd::serve;
use forebay_nbd::{CloseReason, Step, Tls, proto};
use libfuzzer_sys::fuzz_target;

/// Longest answer to one option here, with room to spare: a list of two exports.
const ANSWER_BYTES_MAX: usize = 1024;

fuzz_target!(|input: &[u8]| {
    let piece_len = input.last().map_or(1, |&byte| usize::from(byte % 40) + 1);
    for tls in [Tls::Off, Tls::Selective, Tls::Forced] {
        let whole = serve(tls, input, usize::MAX);
        let pieced = serve(tls, input, piece_len);
        // Only in one piece can it be seen in time that something came behind STARTTLS.
        if whole.step == Step::Close(CloseReason::PlainText) {
            assert_eq!(pieced.step, whole.step);
        } else {
            assert_eq!(pieced, whole);
        }
        let options = input.len() / proto::OPTION_HEADER_BYTES;
        assert!(whole.out.len() <= (options + 1) * ANSWER_BYTES_MAX);
        if let Step::Enter(terms) = whole.step {
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
