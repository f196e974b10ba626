//! The greeting, option framing, and the options that name exports.

use super::{Session, exports, info_data, option, option_header, option_replies};
use crate::{
    CloseReason, ExportInfo, ExportRefusal, HANDSHAKE_OPTIONS_MAX, HANDSHAKE_SKIP_BYTES_MAX,
    Handshake, HandshakeConfig, HandshakeStep, Tls,
    proto::{export_flag, info, option, option_reply},
};
use forebay_types::{VolumeId, limits::OPTION_BYTES_MAX};

#[test]
fn g_01_name_of_maximum_length_is_unknown_not_fatal() {
    let mut session = Session::new(Tls::Off);
    for name_len in [256, 257, 4095, 4096] {
        let data = info_data(&"n".repeat(name_len), &[]);
        assert_eq!(session.kind_of_reply(option::GO, &data), option_reply::ERR_UNKNOWN);
    }
    let data = info_data(&"n".repeat(4097), &[]);
    assert_eq!(session.kind_of_reply(option::GO, &data), option_reply::ERR_INVALID);
    let data = info_data("x\0", &[]);
    assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_INVALID);
    let mut data = info_data("xyz", &[]);
    data[4..7].fill(0xff);
    assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_INVALID);
    session.assert_in_step();
}

#[test]
fn h_01_greeting_has_both_magics_and_two_flags() {
    let mut out = Vec::new();
    Handshake::new(HandshakeConfig::default()).greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn h_03_unknown_client_flags_close() {
    for flags in [4u32, 7, 1 << 31, u32::MAX] {
        let mut handshake = Handshake::new(HandshakeConfig::default());
        let (_, step) = handshake.advance(&flags.to_be_bytes(), &exports(), &mut Vec::new());
        assert_eq!(step, HandshakeStep::Close(CloseReason::ClientFlags(flags)));
        let (_, step) = handshake.advance(&[0; 64], &exports(), &mut Vec::new());
        assert_eq!(
            step,
            HandshakeStep::Close(CloseReason::Ended),
            "an ended handshake stays ended"
        );
    }
}

#[test]
fn h_04_client_without_fixed_newstyle_enters_by_export_name() {
    let mut session = Session::with_client_flags(Tls::Selective, 0);
    assert_eq!(session.kind_of_reply(option::STARTTLS, b""), option_reply::ERR_POLICY);
    let (out, step) = session.send_raw(&option(option::EXPORT_NAME, b"x"));
    assert_eq!(out.len(), 8 + 2 + 124);
    assert!(matches!(step, HandshakeStep::Enter(terms) if terms.export == VolumeId(7)));
}

#[test]
fn n_01_wrong_option_magic_closes() {
    let mut session = Session::new(Tls::Off);
    let (out, step) = session.send_raw(&[0x11; 16]);
    assert!(out.is_empty());
    assert_eq!(step, HandshakeStep::Close(CloseReason::OptionMagic(0x1111_1111_1111_1111)));
}

#[test]
fn n_03_unknown_option_keeps_framing() {
    let mut session = Session::new(Tls::Off);
    for (number, len) in [(0, 0), (4, 9), (12, 4096), (u32::MAX, 1 << 20)] {
        let data = vec![0xa5; len];
        assert_eq!(session.kind_of_reply(number, &data), option_reply::ERR_UNSUP);
    }
    session.assert_in_step();
}

#[test]
fn n_04_pipelined_options_get_one_final_reply_each() {
    let mut session = Session::new(Tls::Off);
    let mut bytes = option(99, b"what");
    bytes.extend(option(option::LIST, b""));
    bytes.extend(option(option::INFO, &info_data("x", &[info::NAME])));
    bytes.extend(option(option::STRUCTURED_REPLY, b""));
    let (out, step) = session.send_raw(&bytes);
    assert_eq!(step, HandshakeStep::NeedMore);
    let kinds: Vec<_> = option_replies(&out).iter().map(|reply| (reply.0, reply.1)).collect();
    assert_eq!(
        kinds,
        [
            (99, option_reply::ERR_UNSUP),
            (option::LIST, option_reply::SERVER),
            (option::LIST, option_reply::ACK),
            (option::INFO, option_reply::INFO),
            (option::INFO, option_reply::INFO),
            (option::INFO, option_reply::ACK),
            (option::STRUCTURED_REPLY, option_reply::ACK),
        ]
    );
}

#[test]
fn n_07_bounds_skipped_bytes() {
    let mut session = Session::new(Tls::Off);
    let data = vec![0; OPTION_BYTES_MAX as usize + 1];
    assert_eq!(session.kind_of_reply(option::GO, &data), option_reply::ERR_TOO_BIG);
    // The limit applies to all bytes that a handshake skips, not to one option.
    let left = HANDSHAKE_SKIP_BYTES_MAX - data.len() as u32;
    let (out, step) = session.send_raw(&option_header(77, left + 1));
    assert!(out.is_empty());
    assert_eq!(step, HandshakeStep::Close(CloseReason::OptionLength(left + 1)));
    for number in [option::GO, option::SET_META_CONTEXT, option::ABORT, 77] {
        let mut session = Session::new(Tls::Off);
        let (_, step) = session.send_raw(&option_header(number, u32::MAX));
        assert_eq!(step, HandshakeStep::Close(CloseReason::OptionLength(u32::MAX)));
    }
}

#[test]
fn n_07_skipping_buffers_nothing() {
    let mut session = Session::new(Tls::Off);
    assert_eq!(session.send_raw(&option_header(77, 10 << 20)).1, HandshakeStep::NeedMore);
    for _ in 0..10 {
        let (out, step) = session.send_raw(&vec![1; 1 << 20]);
        assert!(session.untaken().is_empty());
        assert_eq!(step, HandshakeStep::NeedMore);
        if !out.is_empty() {
            assert_eq!(option_replies(&out)[0].1, option_reply::ERR_UNSUP);
            return session.assert_in_step();
        }
    }
    panic!("no reply to the skipped option");
}

#[test]
fn n_08_shutdown_rejects_all_options_but_abort() {
    let mut session = Session::new(Tls::Off);
    session.handshake.shut_down();
    for number in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 99] {
        assert_eq!(session.kind_of_reply(number, b"?"), option_reply::ERR_SHUTDOWN);
    }
    let (replies, step) = session.send(option::ABORT, b"");
    assert_eq!(replies, [(option::ABORT, option_reply::ACK, vec![])]);
    assert_eq!(step, HandshakeStep::Close(CloseReason::Aborted));

    let mut session = Session::new(Tls::Off);
    session.handshake.shut_down();
    let (_, step) = session.send(option::EXPORT_NAME, b"x");
    assert_eq!(step, HandshakeStep::Close(CloseReason::ExportRefused(ExportRefusal::ShuttingDown)));
}

#[test]
fn n_09_nothing_follows_the_ack_of_go() {
    for flags in [1, 3] {
        let mut session = Session::with_client_flags(Tls::Off, flags);
        let (replies, step) = session.send(option::GO, &info_data("x", &[]));
        assert!(matches!(step, HandshakeStep::Enter(_)));
        assert_eq!(replies.last(), Some(&(option::GO, option_reply::ACK, vec![])));
    }
}

#[test]
fn a_01_export_name_answers_size_flags_and_zeroes() {
    for (client_flags, len) in [(1, 134), (3, 10)] {
        let mut session = Session::with_client_flags(Tls::Off, client_flags);
        let (out, step) = session.send_raw(&option(option::EXPORT_NAME, b"x"));
        let HandshakeStep::Enter(terms) = step else { panic!("{step:?}") };
        assert_eq!(out.len(), len);
        assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
        assert_eq!(out[8..10], terms.flags.to_be_bytes());
        assert!(out[10..].iter().all(|&byte| byte == 0));
        assert_eq!((terms.structured, terms.no_zeroes), (false, client_flags == 3));
    }
}

#[test]
fn a_02_rejected_export_name_closes() {
    let cases: [(&[u8], ExportRefusal); 4] = [
        (b"nope", ExportRefusal::Unknown),
        (b"secret", ExportRefusal::TlsRequired),
        (b"\xff\xfe", ExportRefusal::Name),
        (&[b'n'; 4097], ExportRefusal::Name),
    ];
    for (name, refusal) in cases {
        let mut session = Session::new(Tls::Selective);
        let (out, step) = session.send_raw(&option(option::EXPORT_NAME, name));
        assert!(out.is_empty());
        assert_eq!(step, HandshakeStep::Close(CloseReason::ExportRefused(refusal)));
    }
}

#[test]
fn a_03_empty_name_selects_the_default_export() {
    let mut session = Session::new(Tls::Off);
    let data = info_data("", &[]);
    assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_UNKNOWN);
    session.exports.0.truncate(1);
    let (replies, step) = session.send(option::GO, &info_data("", &[info::NAME]));
    assert!(matches!(step, HandshakeStep::Enter(terms) if terms.export == VolumeId(7)));
    assert_eq!(replies[1].2, b"\x00\x01x", "the reply has the canonical name");
}

#[test]
fn a_04_abort_is_acknowledged_and_its_data_skipped() {
    let mut session = Session::new(Tls::Off);
    let (replies, step) = session.send(option::ABORT, b"so long");
    assert_eq!(replies, [(option::ABORT, option_reply::ACK, vec![])]);
    assert_eq!(step, HandshakeStep::Close(CloseReason::Aborted));
}

#[test]
fn a_05_list_shows_visible_exports_only() {
    let mut session = Session::new(Tls::Off);
    let (replies, _) = session.send(option::LIST, b"");
    assert_eq!(
        replies,
        [
            (option::LIST, option_reply::SERVER, b"\0\0\0\x01xan export".to_vec()),
            (option::LIST, option_reply::ACK, vec![]),
        ]
    );
}

#[test]
fn a_06_list_with_data_is_invalid() {
    let mut session = Session::new(Tls::Off);
    assert_eq!(session.kind_of_reply(option::LIST, b"*"), option_reply::ERR_INVALID);
    session.assert_in_step();
}

#[test]
fn d_02_flush_bounds_the_output_of_one_call() {
    let mut session = Session::new(Tls::Off);
    let mut bytes = Vec::new();
    (0..1000).for_each(|_| bytes.extend(option(option::LIST, b"")));
    session.exports.0[0].description = "d".repeat(4000);
    let (mut out, mut flushes, mut taken_all) = (Vec::new(), 0, 0);
    loop {
        let before = out.len();
        let exports = &session.exports;
        let (taken, step) = session.handshake.advance(&bytes[taken_all..], exports, &mut out);
        taken_all += taken;
        assert!(out.len() - before < 80 << 10, "one call produced {}", out.len() - before);
        if step == HandshakeStep::NeedMore {
            break;
        }
        assert_eq!(step, HandshakeStep::Flush);
        flushes += 1;
    }
    // A reply has 4045 bytes, so 17 replies exceed 64 KiB: 58 full calls and a remainder.
    assert_eq!((taken_all, flushes), (bytes.len(), 58));
}

#[test]
fn g_03_bounds_the_number_of_options() {
    let mut session = Session::new(Tls::Off);
    for _ in 0..HANDSHAKE_OPTIONS_MAX {
        assert_eq!(session.kind_of_reply(77, b""), option_reply::ERR_UNSUP);
    }
    let (_, step) = session.send(77, b"");
    assert_eq!(step, HandshakeStep::Close(CloseReason::OptionCount));
}

#[test]
fn i_01_rejects_inconsistent_lengths() {
    let mut session = Session::new(Tls::Off);
    let good = info_data("x", &[info::NAME, info::BLOCK_SIZE]);
    for cut in 0..good.len() {
        let kind = session.kind_of_reply(option::GO, &good[..cut]);
        assert_eq!(kind, option_reply::ERR_INVALID, "cut at {cut}");
    }
    let mut long = good.clone();
    long.push(0);
    assert_eq!(session.kind_of_reply(option::GO, &long), option_reply::ERR_INVALID);
    for name_len in [2u32, 10, 0x7fff_ffff, 0xffff_fffa, u32::MAX] {
        let mut data = good.clone();
        data[..4].copy_from_slice(&name_len.to_be_bytes());
        assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_INVALID);
    }
    let mut data = good;
    data[5..7].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_INVALID);
    session.assert_in_step();
}

#[test]
fn i_02_i_07_info_returns_each_requested_kind_once() {
    let mut session = Session::new(Tls::Off);
    let kinds = [info::BLOCK_SIZE, info::NAME, info::DESCRIPTION, info::NAME, info::EXPORT, 4711];
    let (replies, step) = session.send(option::INFO, &info_data("x", &kinds));
    assert_eq!(step, HandshakeStep::NeedMore);
    let data: Vec<&[u8]> = replies.iter().map(|reply| &reply.2[..]).collect();
    assert_eq!(data.len(), 5, "I-03: each once, unknown ones not at all");
    assert_eq!(data[0][..10], *b"\0\0\0\0\0\0\0\x10\0\0");
    assert_eq!(data[0].len(), 12);
    assert_eq!(data[1], b"\0\x01x");
    assert_eq!(data[2], b"\0\x02an export");
    assert_eq!(data[3], b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
    assert_eq!(data[4], b"");
}

#[test]
fn i_04_i_05_session_survives_an_unknown_export() {
    let mut session = Session::new(Tls::Off);
    let data = info_data("nope", &[info::NAME]);
    assert_eq!(session.kind_of_reply(option::GO, &data), option_reply::ERR_UNKNOWN);
    let (_, step) = session.send(option::GO, &info_data("x", &[]));
    assert!(matches!(step, HandshakeStep::Enter(_)));
}

#[test]
fn i_05_input_after_go_is_not_consumed() {
    let mut session = Session::new(Tls::Off);
    let mut bytes = option(option::GO, &info_data("x", &[]));
    bytes.extend_from_slice(b"request");
    assert!(matches!(session.send_raw(&bytes).1, HandshakeStep::Enter(_)));
    assert_eq!(session.untaken(), b"request");
}

#[test]
fn i_06_go_and_info_agree() {
    let mut session = Session::new(Tls::Off);
    let data = info_data("x", &[info::BLOCK_SIZE, info::NAME]);
    let told = |replies: Vec<super::OptionReply>| -> Vec<Vec<u8>> {
        replies.into_iter().map(|reply| reply.2).collect()
    };
    let (info_replies, _) = session.send(option::INFO, &data);
    let (go_replies, _) = session.send(option::GO, &data);
    assert_eq!(told(info_replies), told(go_replies));
}

#[test]
fn i_09_i_10_rejects_exports_with_invalid_sizes() {
    let good = ExportInfo::new(VolumeId(1), "bad", 1 << 20);
    assert!(good.is_valid());
    let bad = |change: fn(&mut ExportInfo)| {
        let mut export = good.clone();
        change(&mut export);
        assert!(!export.is_valid(), "{export:?}");
        export
    };
    let exports = [
        bad(|e| e.block_min = 0),
        bad(|e| e.block_min = 513),
        bad(|e| e.block_min = 1 << 17),
        bad(|e| e.block_preferred = 256),
        bad(|e| e.block_preferred = 4097),
        bad(|e| (e.block_min, e.size_bytes) = (8192, 8192)),
        bad(|e| e.payload_max = 65536),
        bad(|e| e.payload_max = (32 << 20) + 1),
        bad(|e| e.size_bytes = 1000),
        bad(|e| e.size_bytes = 1 << 63),
        bad(|e| e.name = "n".repeat(257)),
        bad(|e| e.name = "\0".into()),
        bad(|e| e.description = "d".repeat(4097)),
    ];
    for mut export in exports {
        export.name = "bad".into();
        if export.is_valid() {
            continue;
        }
        let mut session = Session::new(Tls::Off);
        session.exports.0.push(export);
        let kind = session.kind_of_reply(option::GO, &info_data("bad", &[]));
        assert_eq!(kind, option_reply::ERR_PLATFORM);
        let (_, step) = session.send(option::EXPORT_NAME, b"bad");
        assert_eq!(
            step,
            HandshakeStep::Close(CloseReason::ExportRefused(ExportRefusal::NotServable))
        );
    }
}

#[test]
fn x_07_flags_match_the_capabilities() {
    use export_flag::*;
    let flags_of = |change: fn(&mut ExportInfo), structured: bool| {
        let mut session = Session::new(Tls::Off);
        change(&mut session.exports.0[0]);
        if structured {
            session.send(option::STRUCTURED_REPLY, b"");
        }
        match session.send(option::GO, &info_data("x", &[])).1 {
            HandshakeStep::Enter(terms) => terms.flags,
            step => panic!("{step:?}"),
        }
    };
    let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
    let writable = always | SEND_WRITE_ZEROES;
    assert_eq!(flags_of(|_| {}, false), writable | SEND_TRIM);
    assert_eq!(flags_of(|_| {}, true), writable | SEND_TRIM | SEND_DF, "B-10");
    assert_eq!(flags_of(|e| e.can_trim = false, false), writable);
    let all = |e: &mut ExportInfo| (e.can_fast_zero, e.rotational) = (true, true);
    assert_eq!(flags_of(all, false), writable | SEND_TRIM | SEND_FAST_ZERO | ROTATIONAL);
    let read_only = |e: &mut ExportInfo| (e.can_fast_zero, e.read_only) = (true, true);
    assert_eq!(flags_of(read_only, false), always | READ_ONLY);
}
