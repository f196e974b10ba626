//! The three TLS modes, and the plain-text state that must not survive STARTTLS.

use super::{OptionReply, Session, info_data, meta_data, option};
use crate::{
    CloseReason, ExportRefusal, HandshakeStep, Tls,
    proto::{option, option_reply},
};
use forebay_types::VolumeId;

fn start_tls(session: &mut Session) {
    let (replies, step) = session.send(option::STARTTLS, b"");
    assert_eq!(replies, [(option::STARTTLS, option_reply::ACK, vec![])]);
    assert_eq!(step, HandshakeStep::StartTls);
    session.handshake.tls_established();
    assert!(session.handshake.is_tls());
}

fn names(replies: &[OptionReply]) -> Vec<&str> {
    let servers = replies.iter().filter(|reply| reply.1 == option_reply::SERVER);
    servers
        .map(|reply| {
            let len = u32::from_be_bytes(reply.2[..4].try_into().unwrap()) as usize;
            std::str::from_utf8(&reply.2[4..4 + len]).unwrap()
        })
        .collect()
}

#[test]
fn t_02_tls_off_never_answers_tls_required() {
    let mut session = Session::new(Tls::Off);
    assert_eq!(session.kind_of_reply(option::STARTTLS, b""), option_reply::ERR_POLICY);
    let data = info_data("secret", &[]);
    assert_eq!(session.kind_of_reply(option::GO, &data), option_reply::ERR_UNKNOWN);
    let data = meta_data("secret", &[]);
    assert_eq!(session.kind_of_reply(option::LIST_META_CONTEXT, &data), option_reply::ERR_UNKNOWN);
}

#[test]
fn t_03_forced_tls_rejects_options_in_plain_text() {
    let mut session = Session::new(Tls::Forced);
    let plain = [
        option::LIST,
        option::INFO,
        option::GO,
        option::STRUCTURED_REPLY,
        option::LIST_META_CONTEXT,
        option::SET_META_CONTEXT,
        option::EXTENDED_HEADERS,
        4711,
    ];
    for number in plain {
        for data in [&b""[..], &info_data("x", &[]), &[0xff; 70_000]] {
            assert_eq!(session.kind_of_reply(number, data), option_reply::ERR_TLS_REQD);
        }
    }
    start_tls(&mut session);
    let (_, step) = session.send(option::GO, &info_data("secret", &[]));
    assert!(
        matches!(step, HandshakeStep::Enter(terms) if terms.export == VolumeId(8) && terms.tls)
    );
}

#[test]
fn t_03_forced_tls_serves_abort_and_closes_on_export_name() {
    let mut session = Session::new(Tls::Forced);
    let (replies, step) = session.send(option::ABORT, b"");
    assert_eq!(replies[0].1, option_reply::ACK);
    assert_eq!(step, HandshakeStep::Close(CloseReason::Aborted));
    let mut session = Session::new(Tls::Forced);
    let (_, step) = session.send(option::EXPORT_NAME, b"x");
    assert_eq!(step, HandshakeStep::Close(CloseReason::ExportRefused(ExportRefusal::TlsRequired)));
}

#[test]
fn t_03_forced_tls_rejects_clients_without_fixed_newstyle() {
    let mut session = Session::with_client_flags(Tls::Forced, 0);
    for number in [option::STARTTLS, option::LIST, option::GO] {
        assert_eq!(session.kind_of_reply(number, b""), option_reply::ERR_POLICY);
    }
    let (_, step) = session.send(option::EXPORT_NAME, b"x");
    assert_eq!(step, HandshakeStep::Close(CloseReason::ExportRefused(ExportRefusal::TlsRequired)));
}

#[test]
fn t_05_starttls_with_data_or_twice_is_invalid() {
    let mut session = Session::new(Tls::Selective);
    assert_eq!(session.kind_of_reply(option::STARTTLS, b"now"), option_reply::ERR_INVALID);
    start_tls(&mut session);
    assert_eq!(session.kind_of_reply(option::STARTTLS, b""), option_reply::ERR_INVALID);
    assert!(session.handshake.is_tls());
}

#[test]
fn t_06_tls_discards_plain_text_state() {
    let mut session = Session::new(Tls::Selective);
    session.send(option::STRUCTURED_REPLY, b"");
    session.send(option::SET_META_CONTEXT, &meta_data("x", &["base:allocation"]));
    session.send(option::EXTENDED_HEADERS, b"");
    start_tls(&mut session);
    let data = meta_data("x", &["base:allocation"]);
    assert_eq!(session.kind_of_reply(option::SET_META_CONTEXT, &data), option_reply::ERR_INVALID);
    let (_, step) = session.send(option::GO, &info_data("x", &[]));
    let HandshakeStep::Enter(terms) = step else { panic!("{step:?}") };
    assert!(!terms.structured && !terms.extended && terms.base_allocation.is_none() && terms.tls);
}

#[test]
fn t_06_tls_discards_a_plain_text_selection() {
    let mut session = Session::new(Tls::Selective);
    session.send(option::STRUCTURED_REPLY, b"");
    session.send(option::SET_META_CONTEXT, &meta_data("x", &["base:allocation"]));
    start_tls(&mut session);
    session.send(option::STRUCTURED_REPLY, b"");
    let (_, step) = session.send(option::GO, &info_data("x", &[]));
    assert!(matches!(step, HandshakeStep::Enter(terms) if terms.base_allocation.is_none()));
}

#[test]
fn t_06_plain_text_after_starttls_closes() {
    let mut session = Session::new(Tls::Selective);
    let mut bytes = option(option::STARTTLS, b"");
    bytes.extend(option(option::LIST, b""));
    let (out, step) = session.send_raw(&bytes);
    assert!(out.is_empty(), "no ACK, so that the client does not continue");
    assert_eq!(step, HandshakeStep::Close(CloseReason::PlainText));

    let mut session = Session::new(Tls::Selective);
    assert_eq!(session.send(option::STARTTLS, b"").1, HandshakeStep::StartTls);
    assert_eq!(session.send_raw(b"").1, HandshakeStep::NeedMore);
    assert_eq!(session.send_raw(b"I").1, HandshakeStep::Close(CloseReason::PlainText));
}

#[test]
fn t_07_tls_is_not_required_again_inside_tls() {
    let mut session = Session::new(Tls::Forced);
    start_tls(&mut session);
    assert_eq!(session.kind_of_reply(99, b""), option_reply::ERR_UNSUP);
    let data = info_data("nope", &[]);
    assert_eq!(session.kind_of_reply(option::INFO, &data), option_reply::ERR_UNKNOWN);
    assert_eq!(names(&session.send(option::LIST, b"").0), ["x", "secret"]);
}

#[test]
fn t_08_selective_tls_hides_tls_only_exports() {
    let mut session = Session::new(Tls::Selective);
    let secret = info_data("secret", &[]);
    assert_eq!(session.kind_of_reply(option::INFO, &secret), option_reply::ERR_TLS_REQD);
    assert_eq!(session.kind_of_reply(option::GO, &secret), option_reply::ERR_TLS_REQD);
    assert_eq!(names(&session.send(option::LIST, b"").0), ["x"]);
    let data = meta_data("secret", &[]);
    assert_eq!(session.kind_of_reply(option::LIST_META_CONTEXT, &data), option_reply::ERR_UNKNOWN);
    let (_, step) = session.send(option::GO, &info_data("x", &[]));
    assert!(matches!(step, HandshakeStep::Enter(terms) if !terms.tls));
}

#[test]
#[should_panic(expected = "without Step::StartTls")]
fn tls_established_panics_without_start_tls() {
    Session::new(Tls::Selective).handshake.tls_established();
}
