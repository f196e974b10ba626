//! Results do not depend on fragmentation, and random bytes cause no panic.

use super::{exports, info_data, meta_data, option, server::opened, terms};
use crate::{
    CloseReason, Handshake, HandshakeConfig, HandshakeStep, Negotiated, Parse, Tls,
    client::{self, ClientEvent, ReplyParser},
    proto::option as opt,
};
use proptest::prelude::*;

/// Splits input into pieces, cycling through the given lengths.
pub(super) fn pieces<'a>(input: &'a [u8], lens: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = input;
    lens.iter().cycle().map_while(move |&len| {
        let (piece, behind) = rest.split_at(len.clamp(1, rest.len().max(1)).min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Runs a server's handshake on pieces; returns its output and its last step.
pub(super) fn serve(tls: Tls, input: &[u8], lens: &[usize]) -> (Vec<u8>, HandshakeStep) {
    let (mut handshake, exports) = (Handshake::new(HandshakeConfig { tls }), exports());
    let (mut buffer, mut out, mut last) = (Vec::new(), Vec::new(), HandshakeStep::NeedMore);
    for piece in pieces(input, lens) {
        buffer.extend_from_slice(piece);
        loop {
            let (taken, step) = handshake.advance(&buffer, &exports, &mut out);
            buffer.drain(..taken);
            last = step;
            match step {
                HandshakeStep::Flush => {}
                HandshakeStep::NeedMore | HandshakeStep::StartTls => break,
                HandshakeStep::Enter(_) | HandshakeStep::Close(_) => return (out, step),
            }
        }
    }
    (out, last)
}

/// Parses requests and skips payloads, up to the first incomplete or broken request.
pub(super) fn read_requests(terms: &Negotiated, input: &[u8], lens: &[usize]) -> Vec<Parse> {
    let (mut buffer, mut skip, mut parsed) = (Vec::new(), 0usize, Vec::new());
    for piece in pieces(input, lens) {
        buffer.extend_from_slice(piece);
        loop {
            let skipped = skip.min(buffer.len());
            buffer.drain(..skipped);
            skip -= skipped;
            if skip > 0 {
                break;
            }
            match terms.parse(&buffer) {
                Parse::NeedMore => break,
                broken @ Parse::Broken(_) => {
                    parsed.push(broken);
                    return parsed;
                }
                Parse::Request { request, header_len } => {
                    parsed.push(Parse::Request { request, header_len });
                    skip = header_len + request.payload_len as usize;
                }
            }
        }
    }
    parsed
}

/// Runs a client's handshake on pieces; returns its output and its last step.
fn open(
    config: &client::ExportConfig,
    input: &[u8],
    lens: &[usize],
) -> (Vec<u8>, client::ClientStep) {
    let mut handshake = client::ClientHandshake::new(config.clone());
    let (mut buffer, mut out, mut last) = (Vec::new(), Vec::new(), client::ClientStep::NeedMore);
    for piece in pieces(input, lens) {
        buffer.extend_from_slice(piece);
        let (taken, step) = handshake.advance(&buffer, &mut out);
        buffer.drain(..taken);
        let over = matches!(step, client::ClientStep::Enter(_) | client::ClientStep::Fail(_));
        last = step;
        if over {
            break;
        }
    }
    (out, last)
}

/// The events of a reply stream in pieces; skips data.
fn read_replies(mut parser: ReplyParser, input: &[u8], lens: &[usize]) -> Vec<ClientEvent> {
    let (mut buffer, mut skip, mut events) = (Vec::new(), 0usize, Vec::new());
    for piece in pieces(input, lens) {
        buffer.extend_from_slice(piece);
        loop {
            let skipped = skip.min(buffer.len());
            buffer.drain(..skipped);
            skip -= skipped;
            if skip > 0 {
                break;
            }
            let (taken, event) = parser.advance(&buffer);
            buffer.drain(..taken);
            match event {
                ClientEvent::NeedMore => break,
                ClientEvent::Broken(_) => {
                    events.push(event);
                    return events;
                }
                ClientEvent::Data { len, .. } => skip = len as usize,
                _ => {}
            }
            events.push(event);
        }
    }
    events
}

/// A mostly well-formed option, to reach deeper code paths.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec!["x", "", "secret", "nope"]);
    let queries = prop::sample::subsequence(vec!["base:", "base:allocation", "q:x", ""], 0..4);
    let kinds = prop::collection::vec(0u16..5, 0..4);
    prop_oneof![
        (6u32..8, name.clone(), kinds)
            .prop_map(|(number, name, kinds)| { option(number, &info_data(name, &kinds)) }),
        (9u32..11, name.clone(), queries)
            .prop_map(|(number, name, queries)| { option(number, &meta_data(name, &queries)) }),
        name.prop_map(|name| option(opt::EXPORT_NAME, name.as_bytes())),
        prop::sample::select(vec![opt::ABORT, opt::LIST, opt::STRUCTURED_REPLY, 11, 99])
            .prop_map(|number| option(number, b"")),
        (0u32..13, prop::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(number, data)| option(number, &data)),
        prop::collection::vec(any::<u8>(), 0..20),
    ]
}

fn client_stream() -> impl Strategy<Value = Vec<u8>> {
    (0u32..5, prop::collection::vec(any_option(), 0..8))
        .prop_map(|(flags, options)| [&flags.to_be_bytes()[..], &options.concat()].concat())
}

fn lens() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..50, 1..8)
}

fn request_stream() -> impl Strategy<Value = Vec<u8>> {
    let request = (0u16..10, 0u16..64, 0u64..3000, 0u32..3000, any::<bool>()).prop_map(
        |(kind, flags, sector, sectors, extended)| {
            let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
            let mut bytes = magic.to_be_bytes().to_vec();
            bytes.extend_from_slice(&flags.to_be_bytes());
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&[7; 8]);
            bytes.extend_from_slice(&(sector * 512).to_be_bytes());
            if extended {
                bytes.extend_from_slice(&[0; 4]);
            }
            // Payloads are short, so that the stream continues after them.
            let len = if kind == 1 || flags & 32 != 0 { sectors % 64 } else { sectors * 512 };
            bytes.extend_from_slice(&len.to_be_bytes());
            if kind == 1 || (extended && flags & 32 != 0) {
                bytes.extend(std::iter::repeat_n(0x25, len as usize));
            }
            bytes
        },
    );
    prop::collection::vec(request, 0..12).prop_map(|requests| requests.concat())
}

/// Replies of a server, intact or with one corrupt byte.
fn reply_stream(extended: bool) -> impl Strategy<Value = Vec<u8>> {
    let terms = terms(true, extended);
    let reply = (0u64..5, 0u8..5, 0u64..9, 0u32..9).prop_map(move |(cookie, kind, at, len)| {
        let to = crate::ReplyTo { cookie, offset: 4096 };
        let mut out = Vec::new();
        match kind {
            0 => terms.reply_ok(to, &mut out),
            1 => terms.reply_error(to, forebay_types::IoError::Io, "an error", &mut out),
            2 => {
                terms.put_hole_chunk(to, 4096 + 512 * at, 512 * (len + 1), at == 0, &mut out);
            }
            3 => {
                terms.reply_read_header(to, 4096, &mut out);
                out.extend_from_slice(&[9; 4096]);
            }
            _ => {
                let len = 512 * (len + 1);
                terms.put_data_chunk_header(to, 4096 + 512 * at, len, at == 0, &mut out);
                out.extend(std::iter::repeat_n(9, len as usize));
            }
        }
        out
    });
    let damage = prop::option::of((any::<prop::sample::Index>(), any::<u8>()));
    (prop::collection::vec(reply, 0..6), damage).prop_map(|(replies, damage)| {
        let mut bytes = replies.concat();
        if let (Some((index, value)), false) = (damage, bytes.is_empty()) {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes
    })
}

fn parser_in_use(extended: bool) -> ReplyParser {
    let mut parser = ReplyParser::new(&opened(&terms(true, extended)));
    use crate::NbdCommand::*;
    for (cookie, command) in [Read, Read, Write, BlockStatus].into_iter().enumerate() {
        let cookie = cookie as u64;
        parser.begin(&client::ExportRequest { cookie, command, flags: 0, offset: 4096, len: 4096 });
    }
    parser
}

proptest! {
    #[test]
    fn server_handshake_is_independent_of_fragmentation(input in client_stream(), lens in lens()) {
        for tls in [Tls::Off, Tls::Selective, Tls::Forced] {
            let whole = serve(tls, &input, &[usize::MAX]);
            // The server withholds the ACK only if the injected bytes arrive together with
            // STARTTLS; otherwise it closes afterwards.
            if whole.1 == HandshakeStep::Close(CloseReason::PlainText) {
                prop_assert_eq!(serve(tls, &input, &lens).1, whole.1);
            } else {
                prop_assert_eq!(serve(tls, &input, &lens), whole);
            }
        }
    }

    #[test]
    fn request_parsing_is_independent_of_fragmentation(
        input in request_stream(), lens in lens(), extended: bool,
    ) {
        let terms = terms(true, extended);
        let whole = read_requests(&terms, &input, &[usize::MAX]);
        prop_assert_eq!(read_requests(&terms, &input, &lens), whole);
    }

    #[test]
    fn reply_parsing_is_independent_of_fragmentation(
        (extended, input) in any::<bool>().prop_flat_map(|e| (Just(e), reply_stream(e))),
        lens in lens(),
    ) {
        let whole = read_replies(parser_in_use(extended), &input, &[usize::MAX]);
        prop_assert_eq!(read_replies(parser_in_use(extended), &input, &lens), whole);
    }

    #[test]
    fn client_handshake_is_independent_of_fragmentation(input in client_stream(), lens in lens()) {
        // The server's output for the generated client is a plausible stream.
        let (said, _) = serve(Tls::Off, &input, &[usize::MAX]);
        let stream = [&b"NBDMAGICIHAVEOPT\0\x03"[..], &said].concat();
        let config = client::ExportConfig { export: "x".into(), ..Default::default() };
        prop_assert_eq!(open(&config, &stream, &lens), open(&config, &stream, &[usize::MAX]));
    }

    #[test]
    fn random_bytes_never_panic(
        input in prop::collection::vec(any::<u8>(), 0..400), lens in lens(),
    ) {
        serve(Tls::Selective, &input, &lens);
        serve(Tls::Off, &[&[0, 0, 0, 3][..], &input].concat(), &lens);
        for extended in [false, true] {
            read_requests(&terms(true, extended), &input, &lens);
            read_replies(parser_in_use(extended), &input, &lens);
        }
        let config =
        client::ExportConfig { extended: true, base_allocation: true, ..Default::default() };
        open(&config, &input, &lens);
        open(&config, &[&b"NBDMAGICIHAVEOPT\0\x03"[..], &input].concat(), &lens);
    }
}
