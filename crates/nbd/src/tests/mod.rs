//! Protocol tests, named after the requirement that they check, and their helpers.

mod block_status;
mod client_handshake;
mod client_replies;
mod fragments;
mod handshake;
mod meta;
mod replies;
mod requests;
mod round_trip;
mod seeds;
mod server;
mod session;
mod tls;

use crate::{
    ExportInfo, Exports, Handshake, HandshakeConfig, HandshakeStep, Negotiated, Tls,
    proto::{OPTION_MAGIC, OPTION_REPLY_MAGIC},
    wire::{WireReader, put_u16, put_u32, put_u64},
};
use forebay_types::VolumeId;

/// A list of exports; a single export is the default.
pub(crate) struct ExportList(pub(crate) Vec<ExportInfo>);

impl Exports for ExportList {
    fn list(&self, each: &mut dyn FnMut(&ExportInfo)) {
        self.0.iter().for_each(each);
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        match (name, &self.0[..]) {
            ("", [only]) => Some(only.clone()),
            _ => self.0.iter().find(|export| export.name == name).cloned(),
        }
    }
}

/// An export `x` of 1 MiB, and a TLS-only export `secret`.
pub(crate) fn exports() -> ExportList {
    let mut x = ExportInfo::new(VolumeId(7), "x", 1 << 20);
    (x.description, x.can_trim) = ("an export".into(), true);
    let mut secret = ExportInfo::new(VolumeId(8), "secret", 1 << 16);
    secret.tls_only = true;
    ExportList(vec![x, secret])
}

/// Terms for a writable export of 1 MiB with all capabilities.
pub(crate) fn terms(structured: bool, extended: bool) -> Negotiated {
    let mut export = ExportInfo::new(VolumeId(7), "x", 1 << 20);
    (export.can_trim, export.can_fast_zero) = (true, true);
    let chunked = structured || extended;
    Negotiated {
        flags: export.flags(chunked),
        structured: chunked,
        extended,
        base_allocation: chunked.then_some(1),
        ..Negotiated::new(&export)
    }
}

/// An option on the wire.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = option_header(number, data.len() as u32);
    bytes.extend_from_slice(data);
    bytes
}

/// The header of an option on the wire.
pub(crate) fn option_header(number: u32, len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u64(&mut bytes, OPTION_MAGIC);
    put_u32(&mut bytes, number);
    put_u32(&mut bytes, len);
    bytes
}

/// The data of `INFO` and `GO`.
pub(crate) fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    put_u32(&mut data, name.len() as u32);
    data.extend_from_slice(name.as_bytes());
    put_u16(&mut data, kinds.len() as u16);
    kinds.iter().for_each(|&kind| put_u16(&mut data, kind));
    data
}

/// The data of the options about metadata contexts.
pub(crate) fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    put_u32(&mut data, name.len() as u32);
    data.extend_from_slice(name.as_bytes());
    put_u32(&mut data, queries.len() as u32);
    for query in queries {
        put_u32(&mut data, query.len() as u32);
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// An option reply: option, kind, data.
pub(crate) type OptionReply = (u32, u32, Vec<u8>);

/// Parses complete option replies.
pub(crate) fn option_replies(mut bytes: &[u8]) -> Vec<OptionReply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let mut reader = WireReader::new(bytes);
        assert_eq!(reader.u64(), Some(OPTION_REPLY_MAGIC));
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        let len = reader.u32().unwrap();
        replies.push((option, kind, reader.bytes(len).unwrap().to_vec()));
        bytes = &bytes[20 + len as usize..];
    }
    replies
}

/// A server's handshake with a scripted client.
pub(crate) struct Session {
    pub(crate) handshake: Handshake,
    pub(crate) exports: ExportList,
    input: Vec<u8>,
}

impl Session {
    /// A session after the greeting, with all client flags set.
    pub(crate) fn new(tls: Tls) -> Self {
        Self::with_client_flags(tls, 3)
    }

    pub(crate) fn with_client_flags(tls: Tls, flags: u32) -> Self {
        let handshake = Handshake::new(HandshakeConfig { tls });
        let mut session = Self { handshake, exports: exports(), input: Vec::new() };
        session.handshake.greeting(&mut Vec::new());
        assert_eq!(session.send_raw(&flags.to_be_bytes()), (vec![], HandshakeStep::NeedMore));
        session
    }

    /// Feeds bytes until the server needs more or ends; returns its output and last step.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> (Vec<u8>, HandshakeStep) {
        self.input.extend_from_slice(bytes);
        let mut out = Vec::new();
        loop {
            let (taken, step) = self.handshake.advance(&self.input, &self.exports, &mut out);
            self.input.drain(..taken);
            if step != HandshakeStep::Flush {
                return (out, step);
            }
        }
    }

    /// Bytes sent but not consumed.
    pub(crate) fn untaken(&self) -> &[u8] {
        &self.input
    }

    /// Sends an option; returns the replies and the step.
    pub(crate) fn send(&mut self, number: u32, data: &[u8]) -> (Vec<OptionReply>, HandshakeStep) {
        let (out, step) = self.send_raw(&option(number, data));
        (option_replies(&out), step)
    }

    /// Sends an option that has a single reply; returns the reply's kind.
    pub(crate) fn kind_of_reply(&mut self, number: u32, data: &[u8]) -> u32 {
        let (replies, step) = self.send(number, data);
        assert_eq!((replies.len(), step), (1, HandshakeStep::NeedMore), "{replies:?}");
        assert_eq!(replies[0].0, number);
        replies[0].1
    }

    /// Asserts that framing is intact: the server answers the next option normally.
    pub(crate) fn assert_in_step(&mut self) {
        let (replies, step) = self.send(0x1234, b"");
        assert_eq!(step, HandshakeStep::NeedMore);
        assert_eq!((replies.len(), replies[0].0), (1, 0x1234));
    }
}
