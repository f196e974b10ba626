//! Exports for the NBD targets, and drivers that feed bytes in pieces.

use forebay_nbd::{
    ExportInfo, Exports, Handshake, HandshakeConfig, HandshakeStep, Negotiated, Tls, client,
};
use forebay_types::VolumeId;

/// Exports, the first of which is the default.
pub struct Shelf(pub Vec<ExportInfo>);

impl Exports for Shelf {
    fn list(&self, each: &mut dyn FnMut(&ExportInfo)) {
        self.0.iter().for_each(each);
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let found = self.0.iter().find(|export| export.name == name || name.is_empty());
        found.cloned()
    }
}

/// A writable export `x` of 64 KiB, and one for TLS only.
pub fn shelf() -> Shelf {
    let mut x = ExportInfo::new(VolumeId(1), "x", 64 << 10);
    (x.can_trim, x.can_fast_zero) = (true, true);
    x.description = "an export".into();
    let mut secret = ExportInfo::new(VolumeId(2), "secret", 64 << 10);
    secret.tls_only = true;
    Shelf(vec![x, secret])
}

/// Negotiated terms chosen by one byte.
pub fn terms(choice: u8) -> Negotiated {
    let mut export = shelf().0.remove(0);
    export.read_only = choice & 4 != 0;
    export.block_min = if choice & 8 != 0 { 1 } else { 512 };
    let extended = choice & 2 != 0;
    let structured = extended || choice & 1 != 0;
    let base_allocation = structured.then_some(1);
    Negotiated { structured, extended, base_allocation, ..Negotiated::new(&export) }
}

/// The export as a client with these terms sees it.
pub fn opened(terms: &Negotiated) -> client::OpenExport {
    client::OpenExport {
        size_bytes: terms.size_bytes,
        flags: terms.flags,
        structured: terms.structured,
        extended: terms.extended,
        base_allocation: terms.base_allocation,
        tls: terms.tls,
        block_min: terms.block_min,
        block_preferred: 4096,
        payload_max: terms.payload_max,
    }
}

/// The result of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub struct Course {
    /// Consumed input bytes.
    pub taken: usize,
    /// Sent bytes.
    pub out: Vec<u8>,
    /// The last step.
    pub step: HandshakeStep,
}

/// Runs a server's handshake on pieces of `piece_len` bytes.
pub fn serve(tls: Tls, input: &[u8], piece_len: usize) -> Course {
    let (mut handshake, exports) = (Handshake::new(HandshakeConfig { tls }), shelf());
    let (mut taken, mut out, mut step) = (0, Vec::new(), HandshakeStep::NeedMore);
    let mut received = 0;
    while received < input.len() {
        received = received.saturating_add(piece_len).min(input.len());
        loop {
            let (more, next) = handshake.advance(&input[taken..received], &exports, &mut out);
            taken += more;
            assert!(taken <= received);
            step = next;
            match next {
                HandshakeStep::Flush => {}
                HandshakeStep::NeedMore | HandshakeStep::StartTls => break,
                HandshakeStep::Enter(_) | HandshakeStep::Close(_) => {
                    return Course { taken, out, step };
                }
            }
        }
    }
    Course { taken, out, step }
}
