//! The client, fed with a server's stream.
//!
//! The first byte chooses the client's options, or, with its top bit, skips the handshake.
//! Properties: an opened export has valid properties; data and holes stay within their request; a
//! successful read received every byte exactly once; a protocol violation is final.

#![no_main]

use forebay_fuzz::nbd::{opened, terms};
use forebay_nbd::{
    NbdCommand,
    client::{self, ClientEvent, ExportRequest, OpenExport, ReplyParser},
};
use libfuzzer_sys::fuzz_target;

/// Offset and length of every request in flight.
const PLACE: (u64, u64) = (4096, 4096);

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    if choice & 128 != 0 {
        return read_replies(&opened(&terms(*choice & 3)), input);
    }
    let config = client::ExportConfig {
        export: "x".into(),
        tls: choice & 1 != 0,
        simple: choice & 16 != 0,
        extended: choice & 2 != 0,
        base_allocation: choice & 4 != 0,
    };
    let mut handshake = client::ClientHandshake::new(config);
    let (mut taken, mut received, mut said) = (0, 0, Vec::new());
    let piece_len = if choice & 8 != 0 { 7 } else { usize::MAX };
    while received < input.len() {
        received = received.saturating_add(piece_len).min(input.len());
        let (more, step) = handshake.advance(&input[taken..received], &mut said);
        taken += more;
        assert!(taken <= received && said.len() < 1024);
        match step {
            client::ClientStep::NeedMore => {}
            client::ClientStep::StartTls => handshake.tls_established(&mut said),
            client::ClientStep::Fail(failure) => return drop(failure.to_string()),
            client::ClientStep::Enter(opened) => {
                assert_is_sound(&opened);
                return read_replies(&opened, &input[taken..]);
            }
        }
    }
});

fn assert_is_sound(opened: &OpenExport) {
    assert!(opened.size_bytes < 1 << 63);
    assert!(opened.block_min.is_power_of_two() && opened.block_min <= 1 << 16);
    assert!(opened.block_preferred >= opened.block_min.max(512));
    assert!((opened.block_preferred..=32 << 20).contains(&opened.payload_max));
    assert!(opened.structured || opened.base_allocation.is_none());
}

fn read_replies(opened: &OpenExport, mut input: &[u8]) {
    let mut parser = ReplyParser::new(opened);
    let commands = [NbdCommand::Read, NbdCommand::Read, NbdCommand::Write, NbdCommand::BlockStatus];
    for (cookie, command) in commands.into_iter().enumerate() {
        let (offset, len) = PLACE;
        parser.begin(&ExportRequest { cookie: cookie as u64, command, flags: 0, offset, len });
    }
    let mut seen = [[false; PLACE.1 as usize]; 2];
    let mut done: Vec<u64> = Vec::new();
    loop {
        let (taken, event) = parser.advance(input);
        input = &input[taken..];
        match event {
            ClientEvent::NeedMore => break,
            ClientEvent::Data { cookie, offset, len } => {
                see(&mut seen[cookie as usize], offset, len);
                let Some(rest) = input.get(len as usize..) else { break };
                input = rest;
            }
            ClientEvent::Hole { cookie, offset, len } => {
                see(&mut seen[cookie as usize], offset, len)
            }
            ClientEvent::Extents { cookie, extents } => {
                assert!(cookie == 3 && extents.iter().all(|extent| extent.len > 0));
                assert!(extents.iter().map(|extent| extent.len).sum::<u64>() <= PLACE.1);
            }
            ClientEvent::Error { text, .. } => assert!(text.len() <= 256),
            ClientEvent::Done { cookie, result } => {
                assert!(!done.contains(&cookie));
                done.push(cookie);
                if result.is_ok() && cookie < 2 {
                    assert!(seen[cookie as usize].iter().all(|&seen| seen));
                }
            }
            ClientEvent::Broken(_) => {
                assert!(matches!(parser.advance(input), (0, ClientEvent::Broken(_))));
                break;
            }
        }
    }
}

/// Records bytes of a read as sent.
fn see(seen: &mut [bool], offset: u64, len: u32) {
    let start = (offset - PLACE.0) as usize;
    for byte in &mut seen[start..start + len as usize] {
        assert!(!std::mem::replace(byte, true), "a byte was sent twice");
    }
}
