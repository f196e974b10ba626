//! Requests parsed by the server, and its replies parsed by the client.
//!
//! The input is a client's stream from its flags on; if it fails the handshake, its first byte
//! chooses the terms and the rest are requests. Properties: a request without error is within the
//! export and aligned; no excessive payload is to be consumed; and the client accepts every reply
//! without a violation and ends with nothing in flight.

#![no_main]

use forebay_fuzz::nbd::{opened, serve, terms};
use forebay_nbd::{
    Extent, HandshakeStep, NbdCommand, NbdRequest, Negotiated, PAYLOAD_DRAIN_BYTES_MAX, Parse, Tls,
    client::{self, ClientEvent, ReplyParser},
    proto::command_flag,
};
use forebay_types::IoError;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let course = serve(Tls::Off, input, usize::MAX);
    let (terms, mut rest) = match (course.step, input) {
        (HandshakeStep::Enter(terms), _) => (terms, &input[course.taken..]),
        (_, [choice, rest @ ..]) => (terms(*choice), rest),
        (_, []) => return,
    };
    let mut parser = ReplyParser::new(&opened(&terms));
    while let Parse::Request { request, header_len } = terms.parse(rest) {
        assert!(u64::from(request.payload_len) <= PAYLOAD_DRAIN_BYTES_MAX);
        let Some(behind) = rest.get(header_len + request.payload_len as usize..) else { return };
        rest = behind;
        if request.command == NbdCommand::Disconnect {
            return;
        }
        if request.error.is_none() && request.command != NbdCommand::Flush {
            assert!(request.range().fits(terms.size_bytes) && request.len > 0);
            let block = u64::from(terms.block_min);
            assert!(request.offset % block == 0 && request.len % block == 0);
            assert!(!(terms.is_read_only() && request.command.is_write()));
        }
        exchange(&terms, &request, &mut parser);
    }
});

/// Answers a request, and has the client parse the answer.
fn exchange(terms: &Negotiated, request: &NbdRequest, parser: &mut ReplyParser) {
    let flags = if request.req_one { command_flag::REQ_ONE } else { 0 };
    // Unknown commands are answered with an error, as a flush may be.
    let command = match request.command {
        NbdCommand::Unknown => NbdCommand::Flush,
        command => command,
    };
    let NbdRequest { cookie, offset, len, .. } = *request;
    parser.begin(&client::ExportRequest { cookie, command, flags, offset, len });
    let (mut reply, to) = (Vec::new(), request.reply_to());
    match (request.error, request.command) {
        (Some(error), _) => terms.reply_error(to, error, "refused", &mut reply),
        (None, NbdCommand::Read) => {
            terms.reply_read_header(to, len as u32, &mut reply);
            reply.resize(reply.len() + len as usize, 0);
        }
        (None, NbdCommand::BlockStatus) => {
            let sizes = [cookie % 5000, cookie >> 40, 512, cookie];
            let extents = sizes.into_iter().enumerate().map(|(index, len)| Extent {
                len,
                hole: index % 2 == 0,
                zero: index % 3 == 0,
            });
            terms.reply_block_status(request, extents, &mut reply);
        }
        _ if cookie % 7 == 0 => terms.reply_error(to, IoError::Io, "", &mut reply),
        _ => terms.reply_ok(to, &mut reply),
    }
    let (mut at, mut seen_bytes) = (0, 0);
    loop {
        let (taken, event) = parser.advance(&reply[at..]);
        at += taken;
        match event {
            ClientEvent::Data { len, .. } => {
                at += len as usize;
                seen_bytes += u64::from(len);
            }
            ClientEvent::Extents { extents, .. } => {
                seen_bytes = extents.iter().map(|e| e.len).sum()
            }
            ClientEvent::Error { .. } => {}
            ClientEvent::Done { result, .. } => {
                assert!(at == reply.len() && parser.pending_count() == 0);
                let is_read = request.command == NbdCommand::Read;
                assert!(!(is_read && result.is_ok()) || seen_bytes == request.len);
                assert!(result.is_err() || seen_bytes <= request.len);
                assert!(request.error.is_none() || result == request.error.map_or(Ok(()), Err));
                return;
            }
            event => panic!("{event:?} of {reply:?}"),
        }
    }
}
