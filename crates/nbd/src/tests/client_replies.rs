//! The client's reply parser with servers that violate the protocol.

use super::{server::opened, terms};
use crate::{
    EXTENTS_PER_REPLY_MAX, NbdCommand, ReplyTo,
    client::{ClientEvent, ExportRequest, ReplyParser, ServerViolation},
    proto::{chunk, command_flag},
    wire::{put_u16, put_u32, put_u64},
};
use forebay_types::IoError;

/// A parser with one request in flight: cookie 1, 4096 bytes at offset 8192.
fn parser(structured: bool, extended: bool, command: NbdCommand, flags: u16) -> ReplyParser {
    let mut parser = ReplyParser::new(&opened(&terms(structured, extended)));
    parser.begin(&ExportRequest { cookie: 1, command, flags, offset: 8192, len: 4096 });
    parser
}

/// A structured chunk to cookie 1.
fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = chunk_header(flags, kind, 1, payload.len() as u32);
    bytes.extend_from_slice(payload);
    bytes
}

fn chunk_header(flags: u16, kind: u16, cookie: u64, len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u32(&mut bytes, 0x668e_33ef);
    put_u16(&mut bytes, flags);
    put_u16(&mut bytes, kind);
    put_u64(&mut bytes, cookie);
    put_u32(&mut bytes, len);
    bytes
}

fn data(flags: u16, offset: u64, len: usize) -> Vec<u8> {
    chunk(flags, chunk::OFFSET_DATA, &[&offset.to_be_bytes()[..], &vec![1; len]].concat())
}

fn hole(flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    chunk(flags, chunk::OFFSET_HOLE, &payload)
}

fn error(flags: u16, errno: u32, text_len: u16, text: &[u8]) -> Vec<u8> {
    let payload = [&errno.to_be_bytes()[..], &text_len.to_be_bytes(), text].concat();
    chunk(flags, chunk::ERROR, &payload)
}

fn status(context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for &(len, bits) in extents {
        put_u32(&mut payload, len);
        put_u32(&mut payload, bits);
    }
    chunk(1, chunk::BLOCK_STATUS, &payload)
}

/// All events of the input, up to `NeedMore` or a violation; skips data.
fn events(parser: &mut ReplyParser, input: &[u8]) -> Vec<ClientEvent> {
    let (mut at, mut events) = (0, Vec::new());
    loop {
        let (taken, event) = parser.advance(&input[at..]);
        at += taken;
        match event {
            ClientEvent::NeedMore => return events,
            ClientEvent::Data { len, .. } => at += len as usize,
            ClientEvent::Broken(_) => {
                events.push(event);
                return events;
            }
            _ => {}
        }
        events.push(event);
    }
}

/// The violation in a reply to a structured read.
fn violation_of_read(input: &[u8]) -> ServerViolation {
    let mut parser = parser(true, false, NbdCommand::Read, 0);
    match events(&mut parser, input).last() {
        Some(ClientEvent::Broken(violation)) => {
            assert_eq!(parser.advance(b"").1, ClientEvent::Broken(ServerViolation::Ended));
            *violation
        }
        event => panic!("{event:?}"),
    }
}

#[test]
fn chunked_read_completes_with_its_last_byte() {
    let mut parser = parser(true, false, NbdCommand::Read, 0);
    let input = [data(0, 8192 + 1024, 3072), hole(0, 8192, 512), data(1, 8192 + 512, 512)].concat();
    let got = events(&mut parser, &input);
    assert_eq!(got.len(), 4);
    assert_eq!(got[1], ClientEvent::Hole { cookie: 1, offset: 8192, len: 512 });
    assert_eq!(got[3], ClientEvent::Done { cookie: 1, result: Ok(()) });
    assert_eq!(parser.pending_count(), 0);
}

#[test]
fn a_success_without_all_bytes_violates_the_protocol() {
    for input in [
        chunk(1, chunk::NONE, b""),
        data(1, 8192, 4095),
        hole(1, 8193, 4095),
        [data(0, 8192, 512), data(1, 8192 + 1024, 3072)].concat(),
    ] {
        assert_eq!(violation_of_read(&input), ServerViolation::Incomplete(1));
    }
}

#[test]
fn content_outside_the_request_or_twice_violates_the_protocol() {
    for input in [
        data(1, 8191, 4096),
        data(1, 8193, 4096),
        data(1, 0, 512),
        data(1, u64::MAX - 100, 512),
        hole(1, 8192, 4097),
        hole(1, 8192, 0),
        hole(1, u64::MAX, u32::MAX),
        [data(0, 8192, 1024), data(0, 8192 + 512, 1024)].concat(),
        [hole(0, 8192, 4096), hole(1, 8192, 4096)].concat(),
    ] {
        assert!(matches!(violation_of_read(&input), ServerViolation::Content { .. }));
    }
}

#[test]
fn lengths_that_contradict_the_type_violate_the_protocol() {
    for input in [
        data(1, 8192, 0),
        data(1, 8192, 4097),
        chunk_header(1, chunk::OFFSET_DATA, 1, 7),
        chunk_header(1, chunk::OFFSET_DATA, 1, u32::MAX),
        chunk_header(1, chunk::OFFSET_HOLE, 1, 13),
        chunk_header(1, chunk::OFFSET_HOLE, 1, u32::MAX),
        chunk_header(0, chunk::NONE, 1, 0),
        chunk_header(1, chunk::NONE, 1, 1),
        chunk_header(1, chunk::ERROR, 1, 5),
        chunk_header(1, chunk::ERROR, 1, u32::MAX),
        chunk_header(1, chunk::ERROR_OFFSET, 1, 13),
        chunk_header(1, chunk::BLOCK_STATUS, 1, 4),
        chunk_header(1, chunk::BLOCK_STATUS, 1, 11),
        chunk_header(1, chunk::BLOCK_STATUS, 1, u32::MAX - 3),
        chunk_header(1, chunk::BLOCK_STATUS_EXT, 1, 24),
        error(1, 5, 3, b"ab"),
    ] {
        assert!(matches!(violation_of_read(&input), ServerViolation::Length { .. }), "{input:?}");
    }
}

#[test]
fn an_unknown_reply_violates_the_protocol() {
    assert!(matches!(
        violation_of_read(&chunk(2, chunk::NONE, b"")),
        ServerViolation::Chunk { .. }
    ));
    assert!(matches!(violation_of_read(&chunk(1, 77, b"")), ServerViolation::Chunk { .. }));
    assert_eq!(violation_of_read(&chunk_header(1, 0, 2, 0)), ServerViolation::Cookie(2));
    assert_eq!(violation_of_read(&[0; 4]), ServerViolation::Magic(0));
    let simple = [&b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x01"[..]].concat();
    assert_eq!(violation_of_read(&simple), ServerViolation::Form(1), "B-02");
    let unasked_status = status(1, &[(4096, 0)]);
    assert_eq!(violation_of_read(&unasked_status), ServerViolation::Extents(1));
}

#[test]
fn rejects_replies_of_another_form() {
    let simple = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01";
    let extended = b"\x6e\x8a\x27\x8c";
    let magic = |parser: &mut ReplyParser, input: &[u8]| {
        matches!(parser.advance(input).1, ClientEvent::Broken(ServerViolation::Magic(_)))
    };
    assert!(magic(&mut parser(false, false, NbdCommand::Read, 0), &chunk(1, 0, b"")));
    assert!(magic(&mut parser(true, false, NbdCommand::Read, 0), extended));
    assert!(magic(&mut parser(true, true, NbdCommand::Write, 0), simple));
    assert!(magic(&mut parser(true, true, NbdCommand::Write, 0), &chunk(1, 0, b"")));
    let mut writer = parser(true, false, NbdCommand::Write, 0);
    let got = events(&mut writer, simple);
    assert_eq!(
        got,
        [ClientEvent::Done { cookie: 1, result: Ok(()) }],
        "B-02 allows simple replies to writes"
    );
    let mut status = parser(true, false, NbdCommand::BlockStatus, 0);
    assert_eq!(events(&mut status, simple), [ClientEvent::Broken(ServerViolation::Form(1))]);
}

#[test]
fn rejects_extended_replies_with_another_offset() {
    let terms = terms(true, true);
    for (offset, ok) in [(8192, true), (8191, false), (0, false)] {
        let mut out = Vec::new();
        terms.reply_ok(ReplyTo { cookie: 1, offset }, &mut out);
        let got = events(&mut parser(true, true, NbdCommand::Write, 0), &out);
        let expected = if ok {
            ClientEvent::Done { cookie: 1, result: Ok(()) }
        } else {
            ClientEvent::Broken(ServerViolation::Form(1))
        };
        assert_eq!(got, [expected]);
    }
}

#[test]
fn first_error_chunk_is_the_result() {
    let mut parser = parser(true, false, NbdCommand::Read, 0);
    let at = [&28u32.to_be_bytes()[..], b"\0\x02no", &9000u64.to_be_bytes()].concat();
    let input = [
        data(0, 8192, 512),
        chunk(0, chunk::ERROR_OFFSET, &at),
        chunk(0, chunk::ERROR_BIT | 99, b"\0\0\0\x05\0\0later"),
        chunk(1, chunk::NONE, b""),
    ]
    .concat();
    let got = events(&mut parser, &input);
    let text = String::from("no");
    assert_eq!(got[1], ClientEvent::Error { cookie: 1, error: IoError::NoSpace, text });
    assert_eq!(got[2], ClientEvent::Error { cookie: 1, error: IoError::Io, text: String::new() });
    assert_eq!(got[3], ClientEvent::Done { cookie: 1, result: Err(IoError::NoSpace) });
}

#[test]
fn malformed_errors_violate_the_protocol() {
    assert_eq!(violation_of_read(&error(1, 0, 0, b"")), ServerViolation::Error(1));
    assert_eq!(violation_of_read(&error(0, 5, 0, b"").repeat(65)), ServerViolation::Error(1));
    for offset in [0u64, 8191, 8192 + 4097, u64::MAX] {
        let payload = [&b"\0\0\0\x05\0\0"[..], &offset.to_be_bytes()].concat();
        let input = chunk(1, chunk::ERROR_OFFSET, &payload);
        assert!(matches!(violation_of_read(&input), ServerViolation::Content { .. }));
    }
    let longest = error(1, 5, 4096, &[b'x'; 4096]);
    let got = events(&mut parser(true, false, NbdCommand::Read, 0), &longest);
    assert!(matches!(&got[0], ClientEvent::Error { text, .. } if text.len() == 256));
}

#[test]
fn truncates_and_bounds_extents() {
    let ask = |flags| parser(true, false, NbdCommand::BlockStatus, flags);
    let lens = |events: &[ClientEvent]| match &events[0] {
        ClientEvent::Extents { extents, .. } => extents.iter().map(|e| e.len).collect::<Vec<_>>(),
        event => panic!("{event:?}"),
    };
    let got = events(&mut ask(0), &status(1, &[(512, 3), (u32::MAX, 0)]));
    assert_eq!(lens(&got), [512, 3584], "M-08: the last extent may run past the request");
    assert_eq!(got[1], ClientEvent::Done { cookie: 1, result: Ok(()) });

    let mut parser = ReplyParser::new(&opened(&terms(true, false)));
    let (command, len) = (NbdCommand::BlockStatus, 1 << 30);
    parser.begin(&ExportRequest { cookie: 1, command, flags: 0, offset: 0, len });
    let many: Vec<_> = (0..100_000).map(|i| (512, i % 2)).collect();
    let got = events(&mut parser, &status(1, &many));
    assert_eq!(lens(&got).len(), EXTENTS_PER_REPLY_MAX as usize);
}

#[test]
fn malformed_extents_violate_the_protocol() {
    let one = command_flag::REQ_ONE;
    for (flags, input) in [
        (0, status(2, &[(512, 0)])),
        (0, status(1, &[(0, 0)])),
        (0, status(1, &[(4096, 0), (512, 0)])),
        (0, status(1, &[(u32::MAX, 0), (u32::MAX, 0)])),
        (one, status(1, &[(512, 0), (512, 3)])),
        (one, status(1, &[(4608, 0)])),
        (
            0,
            [&status(1, &[(512, 0)])[..4], &[0, 0], &status(1, &[(512, 0)])[6..]]
                .concat()
                .repeat(2),
        ),
    ] {
        let got = events(&mut parser(true, false, NbdCommand::BlockStatus, flags), &input);
        assert_eq!(
            got.last(),
            Some(&ClientEvent::Broken(ServerViolation::Extents(1))),
            "{input:?}"
        );
    }
    let none = chunk(1, chunk::NONE, b"");
    let got = events(&mut parser(true, false, NbdCommand::BlockStatus, 0), &none);
    assert_eq!(got, [ClientEvent::Broken(ServerViolation::Incomplete(1))]);
}

#[test]
#[should_panic(expected = "already in flight")]
fn rejects_cookies_not_in_flight() {
    let request =
        ExportRequest { cookie: 1, command: NbdCommand::Flush, flags: 0, offset: 0, len: 0 };
    parser(true, false, NbdCommand::Read, 0).begin(&request);
}
