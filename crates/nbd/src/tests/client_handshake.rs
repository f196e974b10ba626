//! The client's handshake with old, broken or hostile servers.

use super::{Session, info_data, option, option_header};
use crate::{
    Tls,
    client::{ClientHandshake, ClientStep, ExportConfig, OpenFailure},
    proto::{GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, option, option_reply},
    wire::{put_u16, put_u32, put_u64},
};

fn greeting(flags: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u64(&mut bytes, GREETING_MAGIC);
    put_u64(&mut bytes, OPTION_MAGIC);
    put_u16(&mut bytes, flags);
    bytes
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u64(&mut bytes, OPTION_REPLY_MAGIC);
    put_u32(&mut bytes, option);
    put_u32(&mut bytes, kind);
    put_u32(&mut bytes, data.len() as u32);
    bytes.extend_from_slice(data);
    bytes
}

fn export_info(size_bytes: u64, flags: u16) -> Vec<u8> {
    let mut data = Vec::new();
    put_u16(&mut data, info::EXPORT);
    put_u64(&mut data, size_bytes);
    put_u16(&mut data, flags);
    reply(option::GO, option_reply::INFO, &data)
}

fn block_sizes(min: u32, preferred: u32, payload: u32) -> Vec<u8> {
    let mut data = Vec::new();
    put_u16(&mut data, info::BLOCK_SIZE);
    [min, preferred, payload].iter().for_each(|&size| put_u32(&mut data, size));
    reply(option::GO, option_reply::INFO, &data)
}

fn config() -> ExportConfig {
    ExportConfig { export: "x".into(), ..ExportConfig::default() }
}

/// Runs a client against a server that sends these bytes; returns the client's output and its last
/// step.
fn run(config: ExportConfig, server: &[Vec<u8>]) -> (Vec<u8>, ClientStep) {
    let mut out = Vec::new();
    let (_, step) = ClientHandshake::new(config).advance(&server.concat(), &mut out);
    (out, step)
}

/// As `run`, with a server that rejects structured replies.
fn run_go(server: &[Vec<u8>]) -> ClientStep {
    let mut all = vec![greeting(3), reply(option::STRUCTURED_REPLY, option_reply::ERR_UNSUP, b"")];
    all.extend_from_slice(server);
    run(config(), &all).1
}

fn failure(step: ClientStep) -> OpenFailure {
    match step {
        ClientStep::Fail(failure) => failure,
        step => panic!("{step:?}"),
    }
}

#[test]
fn rejects_peers_that_are_not_nbd_servers() {
    let (_, step) = run(config(), &[b"SSH-2.0-OpenSSH_9.9p1".to_vec()]);
    assert!(matches!(failure(step), OpenFailure::Greeting(..)));
    let mut oldstyle = GREETING_MAGIC.to_be_bytes().to_vec();
    put_u64(&mut oldstyle, 0x0000_4202_8186_1253);
    let (_, step) = run(config(), &[oldstyle, vec![0; 136]]);
    assert_eq!(failure(step), OpenFailure::Oldstyle);
}

#[test]
fn falls_back_to_export_name_without_go() {
    let size_and_flags = [&(1u64 << 20).to_be_bytes()[..], &[0, 1]].concat();
    for (server_flags, zeroes) in [(1, 124), (3, 0)] {
        let answers = [
            greeting(server_flags),
            reply(option::STRUCTURED_REPLY, option_reply::ERR_UNSUP, b""),
            reply(option::GO, option_reply::ERR_UNSUP, b""),
            size_and_flags.clone(),
            vec![0; zeroes],
        ];
        let (said, step) = run(config(), &answers);
        let ClientStep::Enter(opened) = step else { panic!("{step:?}") };
        assert_eq!((opened.size_bytes, opened.flags, opened.structured), (1 << 20, 1, false));
        assert_eq!((opened.block_min, opened.payload_max), (1, 32 << 20), "L-01");
        let mut expected = u32::from(server_flags).to_be_bytes().to_vec();
        expected.extend(option(option::STRUCTURED_REPLY, b""));
        expected.extend(option(option::GO, &info_data("x", &[info::BLOCK_SIZE])));
        expected.extend(option(option::EXPORT_NAME, b"x"));
        assert_eq!(said, expected);
    }
}

#[test]
fn uses_export_name_without_fixed_newstyle() {
    let (said, step) = run(config(), &[greeting(0), vec![0; 8 + 2 + 124]]);
    assert!(
        matches!(step, ClientStep::Enter(opened) if opened.size_bytes == 0 && opened.flags == 0)
    );
    assert_eq!(said, [&[0; 4][..], &option(option::EXPORT_NAME, b"x")].concat());
}

#[test]
fn falls_back_to_structured_replies() {
    let answers = [
        greeting(3),
        reply(option::EXTENDED_HEADERS, option_reply::ERR_UNSUP, b"what?"),
        reply(option::STRUCTURED_REPLY, option_reply::ACK, b""),
        export_info(1 << 20, 1),
        reply(option::GO, option_reply::ACK, b""),
    ];
    let (_, step) = run(ExportConfig { extended: true, ..config() }, &answers);
    assert!(matches!(step, ClientStep::Enter(opened) if opened.structured && !opened.extended));
}

#[test]
fn p_06_never_falls_back_from_tls_to_plain_text() {
    let wanted = ExportConfig { tls: true, ..config() };
    assert_eq!(failure(run(wanted.clone(), &[greeting(0)]).1), OpenFailure::NoTls);
    for kind in [option_reply::ERR_UNSUP, option_reply::ERR_POLICY, option_reply::ERR_INVALID] {
        let refused = reply(option::STARTTLS, kind, b"no");
        let (said, step) = run(wanted.clone(), &[greeting(3), refused]);
        assert!(matches!(failure(step), OpenFailure::Refused { .. }));
        assert_eq!(said[4..], option(option::STARTTLS, b""), "nothing else sent in plain text");
    }
}

#[test]
fn p_06_rejects_plain_text_after_starttls() {
    let wanted = ExportConfig { tls: true, ..config() };
    let ack = reply(option::STARTTLS, option_reply::ACK, b"");
    let (_, step) = run(wanted.clone(), &[greeting(3), ack.clone()]);
    assert_eq!(step, ClientStep::StartTls);
    let injected = reply(option::STRUCTURED_REPLY, option_reply::ACK, b"");
    let (_, step) = run(wanted, &[greeting(3), ack, injected]);
    assert_eq!(failure(step), OpenFailure::PlainText);
}

#[test]
fn rejects_unexpected_replies() {
    let go_ack = reply(option::GO, option_reply::ACK, b"");
    assert!(matches!(failure(run_go(&[go_ack])), OpenFailure::Reply { .. }), "no INFO_EXPORT");
    let other = reply(option::LIST, option_reply::ACK, b"");
    assert_eq!(failure(run_go(&[other])), OpenFailure::ReplyToOther { sent: 7, echoed: 3 });
    let server = reply(option::GO, option_reply::SERVER, b"");
    assert!(matches!(failure(run_go(&[server])), OpenFailure::Reply { .. }));
    assert!(matches!(failure(run_go(&[vec![0xaa; 20]])), OpenFailure::ReplyMagic(_)));
    for data in [&b""[..], b"\0", b"\0\0", b"\0\x03\0\0\0\0", &[0; 13]] {
        let info = reply(option::GO, option_reply::INFO, data);
        assert!(matches!(failure(run_go(&[info])), OpenFailure::Reply { .. }), "{data:?}");
    }
}

#[test]
fn bounds_length_and_count_of_replies() {
    let mut long = reply(option::GO, option_reply::INFO, b"");
    long[16..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(failure(run_go(&[long])), OpenFailure::ReplyLength(u32::MAX));
    let endless = vec![reply(option::GO, option_reply::INFO, b"\0\x01name"); 2000];
    assert_eq!(failure(run_go(&endless)), OpenFailure::ReplyCount);
}

#[test]
fn rejects_invalid_sizes() {
    let ack = reply(option::GO, option_reply::ACK, b"");
    // Sizes must fit a signed 64-bit integer.
    for size in [1 << 63, u64::MAX] {
        assert_eq!(failure(run_go(&[export_info(size, 1)])), OpenFailure::Size(size));
    }
    let info = export_info((1 << 63) - 1, 1);
    assert!(matches!(run_go(&[info.clone(), ack.clone()]), ClientStep::Enter(_)));
    for (min, preferred, payload) in [
        (0, 4096, 1 << 20),
        (3, 4096, 1 << 20),
        (1 << 17, 1 << 17, 1 << 20),
        (1, 256, 1 << 20),
        (1, 0, 1 << 20),
        (4096, 512, 1 << 20),
        (1, 4097, 1 << 20),
        (1, 4096, 2048),
        (1, 1 << 31, u32::MAX),
    ] {
        let step = run_go(&[block_sizes(min, preferred, payload)]);
        assert_eq!(failure(step), OpenFailure::BlockSizes { min, preferred, payload });
    }
    let step = run_go(&[info, block_sizes(512, 65536, u32::MAX), ack]);
    let ClientStep::Enter(opened) = step else { panic!("{step:?}") };
    assert_eq!((opened.block_min, opened.block_preferred), (512, 65536));
    assert_eq!(opened.payload_max, 32 << 20);
}

#[test]
fn sanitizes_server_text() {
    let text = [b"evil\x1b[2J\r\n\xff", &[b'x'; 5000][..]].concat();
    let OpenFailure::Refused { text, .. } =
        failure(run_go(&[reply(option::GO, option_reply::ERR_UNKNOWN, &text)]))
    else {
        panic!()
    };
    assert!(text.starts_with("evil [2J") && text.len() <= 256);
    assert!(text.chars().all(|c| !c.is_control()));
}

#[test]
fn failed_selection_leaves_no_context() {
    let mut context = vec![0, 0, 0, 9];
    context.extend_from_slice(b"base:allocation");
    let set = option::SET_META_CONTEXT;
    for (last, expected) in [(option_reply::ACK, Some(9)), (option_reply::ERR_TOO_BIG, None)] {
        let answers = [
            greeting(3),
            reply(option::STRUCTURED_REPLY, option_reply::ACK, b""),
            reply(set, option_reply::META_CONTEXT, b"\0\0\0\x04other:thing"),
            reply(set, option_reply::META_CONTEXT, &context),
            reply(set, last, b""),
            export_info(1 << 20, 1),
            reply(option::GO, option_reply::ACK, b""),
        ];
        let (_, step) = run(ExportConfig { base_allocation: true, ..config() }, &answers);
        assert!(matches!(step, ClientStep::Enter(opened) if opened.base_allocation == expected));
    }
}

#[test]
fn server_accepts_client_options() {
    let (said, _) = run(config(), &[greeting(3)]);
    let mut session = Session::new(Tls::Off);
    assert_eq!(said[..4], [0, 0, 0, 3]);
    assert_eq!(said[4..], option_header(option::STRUCTURED_REPLY, 0));
    session.send_raw(&said[4..]);
    session.assert_in_step();
}
