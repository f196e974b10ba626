//! Parsing and validation of requests.

use super::terms;
use crate::{
    BrokenStream, ExportInfo, NbdCommand, NbdRequest, Negotiated, PAYLOAD_DRAIN_BYTES_MAX, Parse,
    client,
    proto::{command, command_flag, export_flag},
};
use forebay_types::{IoError, VolumeId};
use proptest::prelude::*;

/// A header on the wire, in the form of the terms.
fn header(terms: &Negotiated, kind: u16, flags: u16, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let magic: u32 = if terms.extended { 0x21e4_1c71 } else { 0x2560_9513 };
    bytes.extend_from_slice(&magic.to_be_bytes());
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(b"a cookie");
    bytes.extend_from_slice(&offset.to_be_bytes());
    if terms.extended {
        bytes.extend_from_slice(&len.to_be_bytes());
    } else {
        bytes.extend_from_slice(&(len as u32).to_be_bytes());
    }
    bytes
}

fn parse(terms: &Negotiated, kind: u16, flags: u16, offset: u64, len: u64) -> NbdRequest {
    let bytes = header(terms, kind, flags, offset, len);
    match terms.parse(&bytes) {
        Parse::Request { request, header_len } => {
            assert_eq!(header_len, bytes.len());
            request
        }
        other => panic!("{other:?}"),
    }
}

fn error(terms: &Negotiated, kind: u16, flags: u16, offset: u64, len: u64) -> Option<IoError> {
    parse(terms, kind, flags, offset, len).error
}

const ALL_TERMS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];
const INVALID: Option<IoError> = Some(IoError::Invalid);
const PAYLOAD: u16 = command_flag::PAYLOAD_LEN;

#[test]
fn x_01_a_header_is_read_field_by_field() {
    for (structured, extended) in ALL_TERMS {
        let terms = terms(structured, extended);
        let bytes = header(&terms, command::READ, command_flag::FUA, 4096, 8192);
        for cut in 0..bytes.len() {
            assert_eq!(terms.parse(&bytes[..cut]), Parse::NeedMore);
        }
        let request = parse(&terms, command::READ, command_flag::FUA, 4096, 8192);
        assert_eq!(request.cookie, u64::from_be_bytes(*b"a cookie"));
        assert_eq!((request.offset, request.len, request.payload_len), (4096, 8192, 0));
        assert_eq!((request.command, request.fua, request.df), (NbdCommand::Read, true, false));
        assert_eq!(request.error, None);
    }
}

#[test]
fn x_01_wrong_magic_breaks_the_stream() {
    for (structured, extended) in ALL_TERMS {
        let mut bytes = header(&terms(structured, extended), 0, 0, 0, 512);
        // The magic of the other header form is wrong too.
        let other = terms(structured, !extended);
        bytes.resize(32, 0);
        assert!(matches!(other.parse(&bytes), Parse::Broken(BrokenStream::Magic(_))));
        bytes[0] = 0;
        let terms = terms(structured, extended);
        assert!(matches!(terms.parse(&bytes), Parse::Broken(BrokenStream::Magic(_))));
    }
}

#[test]
fn x_05_fua_is_accepted_on_every_command() {
    for (structured, extended) in ALL_TERMS {
        let terms = terms(structured, extended);
        for kind in 0..=7 {
            let is_flush = kind == command::FLUSH;
            let is_status = kind == command::BLOCK_STATUS;
            let payload = if extended && kind == command::WRITE { PAYLOAD } else { 0 };
            let len = if is_flush { 0 } else { 512 };
            let expected = if is_status && !structured { INVALID } else { None };
            let flags = command_flag::FUA | payload;
            assert_eq!(error(&terms, kind, flags, 0, len), expected, "command {kind}");
        }
    }
}

#[test]
fn x_08_unknown_commands_and_flags_keep_framing() {
    let plain = terms(false, false);
    for kind in [8, 9, 255, u16::MAX] {
        let request = parse(&plain, kind, 0, 0, 512);
        assert_eq!((request.command, request.error), (NbdCommand::Unknown, INVALID));
        assert_eq!(request.payload_len, 0);
    }
    let chunked = terms(true, false);
    for kind in [0, 1, 3, 4, 5, 6, 7] {
        let len = if kind == command::FLUSH { 0 } else { 512 };
        let known = match kind {
            command::READ => command_flag::FUA | command_flag::DF,
            command::WRITE_ZEROES => {
                command_flag::FUA | command_flag::NO_HOLE | command_flag::FAST_ZERO
            }
            command::BLOCK_STATUS => command_flag::FUA | command_flag::REQ_ONE,
            _ => command_flag::FUA,
        };
        for bit in 0..16 {
            let flag = 1 << bit;
            let expected = if known & flag != 0 { None } else { INVALID };
            assert_eq!(error(&chunked, kind, flag, 0, len), expected, "{kind} with bit {bit}");
        }
    }
    let refused = parse(&chunked, command::WRITE, 1 << 9, 0, 4096);
    assert_eq!((refused.payload_len, refused.error), (4096, INVALID));
    assert_eq!(error(&plain, command::READ, command_flag::DF, 0, 512), INVALID, "B-10");
}

#[test]
fn x_09_empty_range_keeps_framing() {
    for (structured, extended) in ALL_TERMS {
        let terms = terms(structured, extended);
        for kind in [0, 1, 4, 5, 6, 7] {
            let flags = if extended && kind == command::WRITE { PAYLOAD } else { 0 };
            assert_eq!(error(&terms, kind, flags, 0, 0), INVALID);
        }
    }
}

#[test]
fn x_10_read_only_export_rejects_changes() {
    let mut export = ExportInfo::new(VolumeId(1), "x", 1 << 20);
    (export.read_only, export.can_trim) = (true, true);
    let terms = Negotiated::new(&export);
    assert!(terms.is_read_only());
    for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        // Permission is checked before the range.
        for (offset, len) in [(0, 512), (1 << 20, 512), (1, 3)] {
            let request = parse(&terms, kind, 0, offset, len);
            assert_eq!(request.error, Some(IoError::NotPermitted));
            let payload_len = if kind == command::WRITE { len as u32 } else { 0 };
            assert_eq!(request.payload_len, payload_len);
        }
    }
    for kind in [command::READ, command::CACHE] {
        assert_eq!(error(&terms, kind, 0, 0, 512), None);
    }
    assert_eq!(error(&terms, command::FLUSH, 0, 0, 0), None);
}

#[test]
fn c_03_disconnect_is_never_rejected() {
    for (structured, extended) in ALL_TERMS {
        let terms = terms(structured, extended);
        let request = parse(&terms, command::DISC, 0xff & !PAYLOAD, 77, 13);
        assert_eq!((request.command, request.error), (NbdCommand::Disconnect, None));
        assert_eq!(request.payload_len, 0);
    }
}

#[test]
fn c_04_flush_rejects_a_range() {
    let terms = terms(false, false);
    assert_eq!(error(&terms, command::FLUSH, 0, 0, 0), None);
    assert_eq!(error(&terms, command::FLUSH, 0, 512, 0), INVALID);
    assert_eq!(error(&terms, command::FLUSH, 0, 0, 512), INVALID);
}

#[test]
fn c_05_c_08_rejects_commands_not_offered() {
    let terms = Negotiated::new(&ExportInfo::new(VolumeId(1), "x", 1 << 20));
    assert_eq!(error(&terms, command::TRIM, 0, 0, 512), INVALID);
    let zeroes = command::WRITE_ZEROES;
    assert_eq!(error(&terms, zeroes, command_flag::FAST_ZERO, 0, 512), INVALID);
    assert_eq!(error(&terms, zeroes, command_flag::NO_HOLE, 0, 512), None, "C-07");
    assert_eq!(terms.flags & (export_flag::SEND_TRIM | export_flag::SEND_FAST_ZERO), 0);
}

#[test]
fn c_09_commands_without_payload_may_be_long() {
    let mut export = ExportInfo::new(VolumeId(1), "x", 1 << 40);
    export.can_trim = true;
    let compact = Negotiated::new(&export);
    let extended = Negotiated { extended: true, structured: true, ..compact };
    for kind in [command::TRIM, command::WRITE_ZEROES, command::CACHE] {
        assert_eq!(error(&compact, kind, 0, 0, 0xffff_fe00), None);
        assert_eq!(error(&extended, kind, 0, 0, 1 << 40), None);
    }
}

#[test]
fn c_10_l_04_long_reads_and_writes_keep_framing() {
    let big = Negotiated::new(&ExportInfo::new(VolumeId(1), "x", 1 << 30));
    let chunked = Negotiated { structured: true, ..big };
    assert_eq!(error(&big, command::READ, 0, 0, 32 << 20), None);
    assert_eq!(error(&big, command::WRITE, 0, 0, 32 << 20), None);
    let over = (32 << 20) + 512;
    assert_eq!(error(&big, command::READ, 0, 0, over), INVALID);
    assert_eq!(error(&chunked, command::READ, 0, 0, over), Some(IoError::Overflow));
    assert_eq!(error(&chunked, command::READ, 0, 0, 0xffff_fe00), Some(IoError::Overflow));
    let write = parse(&big, command::WRITE, 0, 0, PAYLOAD_DRAIN_BYTES_MAX);
    assert_eq!((write.error, u64::from(write.payload_len)), (INVALID, PAYLOAD_DRAIN_BYTES_MAX));
}

#[test]
fn p_03_excessive_payload_breaks_the_stream() {
    let over = PAYLOAD_DRAIN_BYTES_MAX + 1;
    for (structured, extended) in ALL_TERMS {
        let terms = terms(structured, extended);
        for len in [over, u64::from(u32::MAX)] {
            let bytes = header(&terms, command::WRITE, PAYLOAD, 0, len);
            assert_eq!(terms.parse(&bytes), Parse::Broken(BrokenStream::PayloadLength(len)));
        }
    }
    let terms = terms(true, true);
    let bytes = header(&terms, command::WRITE, PAYLOAD, 0, u64::MAX);
    assert_eq!(terms.parse(&bytes), Parse::Broken(BrokenStream::PayloadLength(u64::MAX)));
}

#[test]
fn m_06_block_status_needs_a_selected_context() {
    let selected = terms(true, false);
    let unselected = Negotiated { base_allocation: None, ..selected };
    let status = command::BLOCK_STATUS;
    assert_eq!(error(&selected, status, command_flag::REQ_ONE, 0, 512), None);
    assert_eq!(error(&unselected, status, 0, 0, 512), INVALID);
    assert_eq!(error(&selected, status, 0, (1 << 20) - 512, 1024), INVALID);
}

#[test]
fn l_02_l_03_misaligned_requests_are_invalid() {
    let terms = terms(true, false);
    for kind in [0, 1, 4, 5, 6, 7] {
        for (offset, len) in [(1, 512), (0, 511), (0, 513), (511, 1), (256, 256)] {
            assert_eq!(error(&terms, kind, 0, offset, len), INVALID, "{kind} {offset}+{len}");
        }
    }
    let fine = Negotiated { block_min: 1, ..terms };
    assert_eq!(error(&fine, command::READ, 0, 3, 7), None, "L-01");
    let coarse = Negotiated { block_min: 4096, ..terms };
    assert_eq!(error(&coarse, command::READ, 0, 512, 512), INVALID);
}

#[test]
fn l_03_bounds_check_does_not_wrap() {
    let extended = terms(true, true);
    let end = 1u64 << 20;
    for (kind, flags, expected) in [
        (command::READ, 0, IoError::Invalid),
        (command::TRIM, 0, IoError::Invalid),
        (command::CACHE, 0, IoError::Invalid),
        (command::WRITE_ZEROES, 0, IoError::NoSpace),
        (command::WRITE, PAYLOAD, IoError::NoSpace),
    ] {
        assert_eq!(error(&extended, kind, flags, end - 512, 512), None);
        for offset in [end - 512, end, u64::MAX - 1023, u64::MAX - 511] {
            assert_eq!(error(&extended, kind, flags, offset, 1024), Some(expected), "{offset:#x}");
        }
    }
    let last = !511;
    assert_eq!(error(&extended, command::TRIM, 0, 512, last), INVALID);
}

#[test]
fn xh_03_payload_flag_decides_the_payload_length() {
    let terms = terms(true, true);
    let write = parse(&terms, command::WRITE, PAYLOAD, 0, 512);
    assert_eq!((write.payload_len, write.error), (512, None));
    // QEMU 10.0 leaves the flag out, and sends the data.
    let write = parse(&terms, command::WRITE, 0, 0, 512);
    assert_eq!((write.payload_len, write.error), (512, None));
    let refused = parse(&terms, command::WRITE, 0, 1, 512);
    assert_eq!((refused.payload_len, refused.error), (512, INVALID), "the stream stays in step");
    for kind in [0, 3, 4, 5, 6, 7, 99] {
        let request = parse(&terms, kind, PAYLOAD, 0, 512);
        assert_eq!((request.payload_len, request.error), (512, INVALID), "command {kind}");
        let over = u64::from(terms.payload_max) + 1;
        let bytes = header(&terms, kind, PAYLOAD, 0, over);
        assert_eq!(terms.parse(&bytes), Parse::Broken(BrokenStream::PayloadLength(over)));
    }
}

proptest! {
    /// Checks the invariants documented on `Request`.
    #[test]
    fn requests_without_error_are_valid(
        form in 0usize..3,
        kind in 0u16..9,
        flags in prop_oneof![Just(0u16), Just(PAYLOAD), Just(PAYLOAD | 1), any::<u16>()],
        offset in prop_oneof![(0u64..4096).prop_map(|s| s * 512), any::<u64>()],
        len in prop_oneof![(0u64..4096).prop_map(|s| s * 512), any::<u64>()],
    ) {
        let (structured, extended) = ALL_TERMS[form];
        let terms = terms(structured, extended);
        let bytes = header(&terms, kind, flags, offset, len);
        if let Parse::Request { request, .. } = terms.parse(&bytes) {
            prop_assert!(u64::from(request.payload_len) <= PAYLOAD_DRAIN_BYTES_MAX);
            let place_free = matches!(request.command, NbdCommand::Disconnect | NbdCommand::Flush);
            if request.error.is_none() && !place_free {
                prop_assert!(request.len > 0 && request.range().is_sector_aligned());
                prop_assert!(request.range().fits(terms.size_bytes));
                prop_assert!(request.command != NbdCommand::Unknown);
                let is_write = request.command == NbdCommand::Write;
                let payload_len = if is_write { request.len } else { 0 };
                prop_assert_eq!(u64::from(request.payload_len), payload_len);
            }
        }
    }

    /// The server parses what the client encodes.
    #[test]
    fn requests_round_trip(form in 0usize..3, cookie: u64, kind in 0u16..8, offset: u64, len: u32) {
        let (structured, extended) = ALL_TERMS[form];
        let terms = terms(structured, extended);
        let opened = super::server::opened(&terms);
        let command = [
            NbdCommand::Read, NbdCommand::Write, NbdCommand::Disconnect, NbdCommand::Flush,
            NbdCommand::Trim, NbdCommand::Cache, NbdCommand::WriteZeroes, NbdCommand::BlockStatus,
        ][kind as usize];
        let len = u64::from(len % (64 << 20));
        let sent = client::ExportRequest { cookie, command, flags: 0, offset, len };
        let mut bytes = Vec::new();
        opened.put_request(&sent, &mut bytes);
        let Parse::Request { request, .. } = terms.parse(&bytes) else { panic!() };
        prop_assert_eq!((request.cookie, request.command), (cookie, command));
        prop_assert_eq!((request.offset, request.len), (offset, len));
    }
}
