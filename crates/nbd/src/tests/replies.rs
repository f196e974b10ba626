//! Replies, compared byte by byte.

use super::terms;
use crate::{READ_HEADER_BYTES_MAX, ReplyTo, simple_reply};
use forebay_types::IoError;

const TO: ReplyTo = ReplyTo { cookie: 0x0102_0304_0506_0708, offset: 0x1000 };
const COOKIE: &[u8] = b"\x01\x02\x03\x04\x05\x06\x07\x08";
const OFFSET: &[u8] = b"\0\0\0\0\0\0\x10\0";

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn x_02_simple_replies() {
    let ok = [b"\x67\x44\x66\x98\0\0\0\0", COOKIE].concat();
    assert_eq!(simple_reply(TO.cookie, None), ok[..]);
    let terms = terms(false, false);
    assert_eq!(written(|out| terms.reply_ok(TO, out)), ok);
    assert_eq!(written(|out| terms.reply_read_header(TO, 512, out)), ok);
    let failed = [b"\x67\x44\x66\x98\0\0\0\x1c", COOKIE].concat();
    assert_eq!(written(|out| terms.reply_error(TO, IoError::NoSpace, "full", out)), failed);
}

#[test]
fn b_03_b_05_structured_success_is_an_empty_last_chunk() {
    let reply = written(|out| terms(true, false).reply_ok(TO, out));
    assert_eq!(reply, [b"\x66\x8e\x33\xef\0\x01\0\0", COOKIE, b"\0\0\0\0"].concat());
}

#[test]
fn b_04_b_06_b_12_a_read_is_one_last_chunk() {
    let reply = written(|out| terms(true, false).reply_read_header(TO, 512, out));
    let expected = [b"\x66\x8e\x33\xef\0\x01\0\x01", COOKIE, b"\0\0\x02\x08", OFFSET].concat();
    assert_eq!(reply, expected);
}

#[test]
fn b_04_only_the_last_chunk_has_the_done_flag() {
    let terms = terms(true, false);
    let reply = written(|out| {
        terms.put_data_chunk_header(TO, 0x1000, 512, false, out);
        terms.put_hole_chunk(TO, 0x1200, 512, true, out);
    });
    assert_eq!(reply[4..8], *b"\0\0\0\x01");
    let hole =
        [b"\x66\x8e\x33\xef\0\x01\0\x02", COOKIE, b"\0\0\0\x0c", b"\0\0\0\0\0\0\x12\0\0\0\x02\0"]
            .concat();
    assert_eq!(reply[28..], hole);
}

#[test]
fn b_07_error_chunk_has_number_and_text() {
    let reply = written(|out| terms(true, false).reply_error(TO, IoError::Io, "disk", out));
    let expected =
        [b"\x66\x8e\x33\xef\0\x01\x80\x01", COOKIE, b"\0\0\0\x0a\0\0\0\x05\0\x04disk"].concat();
    assert_eq!(reply, expected);
}

#[test]
fn b_07_p_05_truncates_text_at_a_character_boundary() {
    let terms = terms(true, false);
    for text in ["x".repeat(255), "x".repeat(256), "x".repeat(5000), "ä".repeat(300)] {
        let reply = written(|out| terms.reply_error(TO, IoError::Io, &text, out));
        let sent = std::str::from_utf8(&reply[26..]).unwrap();
        assert_eq!(sent.len(), text.len().min(256));
        assert_eq!(reply[24..26], (sent.len() as u16).to_be_bytes());
        assert_eq!(reply[16..20], (6 + sent.len() as u32).to_be_bytes());
    }
    let reply = written(|out| terms.reply_error(TO, IoError::Io, "no\0more", out));
    assert_eq!(reply[26..], *b"no", "G-01: no NUL in a string");
}

#[test]
fn xh_01_extended_replies_repeat_the_offset() {
    let terms = terms(true, true);
    let reply = written(|out| terms.reply_ok(TO, out));
    let zero = [0; 8];
    let expected = [b"\x6e\x8a\x27\x8c\0\x01\0\0", COOKIE, OFFSET, &zero].concat();
    assert_eq!(reply, expected);
    let reply = written(|out| terms.reply_read_header(TO, 512, out));
    let len: &[u8] = b"\0\0\0\0\0\0\x02\x08";
    let expected = [b"\x6e\x8a\x27\x8c\0\x01\0\x01", COOKIE, OFFSET, len, OFFSET].concat();
    assert_eq!(reply, expected);
    let reply = written(|out| terms.reply_error(TO, IoError::Shutdown, "", out));
    let len: &[u8] = b"\0\0\0\0\0\0\0\x06\0\0\0\x6c\0\0";
    assert_eq!(reply, [b"\x6e\x8a\x27\x8c\0\x01\x80\x01", COOKIE, OFFSET, len].concat());
}

#[test]
fn read_header_fits_its_promised_maximum() {
    for (structured, extended) in [(false, false), (true, false), (true, true)] {
        let terms = terms(structured, extended);
        let mut out = Vec::with_capacity(READ_HEADER_BYTES_MAX);
        let place = out.as_ptr();
        terms.reply_read_header(TO, 1 << 25, &mut out);
        assert_eq!(out.as_ptr(), place);
        assert!(out.len() <= READ_HEADER_BYTES_MAX);
    }
}

#[test]
fn e_01_every_error_number_is_defined_by_the_protocol() {
    let known = [1, 5, 12, 22, 28, 75, 95, 108];
    for errno in 0..200 {
        let error = IoError::from_errno(errno);
        let reply = simple_reply(0, Some(error));
        assert!(known.contains(&u32::from_be_bytes(reply[4..8].try_into().unwrap())));
    }
}

#[test]
#[should_panic(expected = "chunk of")]
fn chunk_on_a_simple_connection_panics() {
    terms(false, false).put_hole_chunk(TO, 0, 512, true, &mut Vec::new());
}
