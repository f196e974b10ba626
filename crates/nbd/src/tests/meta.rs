//! Selecting metadata contexts, and the forms of replies.

use super::{OptionReply, Session, info_data, meta_data};
use crate::{
    CloseReason, ExportRefusal, HandshakeStep, Negotiated, Tls,
    proto::{option, option_reply},
};

const ALLOCATION: &str = "base:allocation";

fn structured() -> Session {
    let mut session = Session::new(Tls::Off);
    assert_eq!(session.kind_of_reply(option::STRUCTURED_REPLY, b""), option_reply::ACK);
    session
}

fn context(option: u32, id: u8) -> OptionReply {
    let mut data = vec![0, 0, 0, id];
    data.extend_from_slice(ALLOCATION.as_bytes());
    (option, option_reply::META_CONTEXT, data)
}

fn go(session: &mut Session, name: &str) -> Negotiated {
    match session.send(option::GO, &info_data(name, &[])).1 {
        HandshakeStep::Enter(terms) => terms,
        step => panic!("{step:?}"),
    }
}

#[test]
fn m_01_p_02_rejects_inconsistent_lengths() {
    let mut session = structured();
    let good = meta_data("x", &["base:", ALLOCATION]);
    for number in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        for cut in 0..good.len() {
            let kind = session.kind_of_reply(number, &good[..cut]);
            assert_eq!(kind, option_reply::ERR_INVALID, "cut at {cut}");
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(session.kind_of_reply(number, &long), option_reply::ERR_INVALID);
        // The name's length, the count, and the first query's length, each hostile.
        for at in [0, 5, 9] {
            for value in [0x7fff_ffffu32, 0xffff_fffc, u32::MAX] {
                let mut data = good.clone();
                data[at..at + 4].copy_from_slice(&value.to_be_bytes());
                assert_eq!(session.kind_of_reply(number, &data), option_reply::ERR_INVALID);
            }
        }
        let data = meta_data("x", &[&"q".repeat(4097)]);
        assert_eq!(session.kind_of_reply(number, &data), option_reply::ERR_INVALID);
    }
    session.assert_in_step();
}

#[test]
fn m_02_set_needs_structured_replies() {
    let mut session = Session::new(Tls::Off);
    let data = meta_data("x", &[ALLOCATION]);
    assert_eq!(session.kind_of_reply(option::SET_META_CONTEXT, &data), option_reply::ERR_INVALID);
    let (replies, _) = session.send(option::LIST_META_CONTEXT, &data);
    assert_eq!(replies[0], context(option::LIST_META_CONTEXT, 0));
}

#[test]
fn m_03_ignores_unknown_queries() {
    let mut session = structured();
    let list = option::LIST_META_CONTEXT;
    let (yes, no) = (vec![context(list, 0), (list, option_reply::ACK, vec![])], vec![]);
    for (queries, expected) in [
        (&[][..], &yes),
        (&["base:"], &yes),
        (&[ALLOCATION], &yes),
        (&["qemu:dirty", ALLOCATION, ALLOCATION], &yes),
        (&["base:other"], &no),
        (&["", ":", "base", "BASE:allocation", "base:allocation "], &no),
    ] {
        let (replies, _) = session.send(list, &meta_data("x", queries));
        let ack = vec![(list, option_reply::ACK, vec![])];
        assert_eq!(&replies, if expected.is_empty() { &ack } else { expected }, "{queries:?}");
    }
    let set = option::SET_META_CONTEXT;
    for queries in [&[][..], &["base:"], &["base:other", "x:y"]] {
        assert_eq!(session.kind_of_reply(set, &meta_data("x", queries)), option_reply::ACK);
    }
}

#[test]
fn m_04_failed_set_clears_the_selection() {
    let set = option::SET_META_CONTEXT;
    let mut session = structured();
    let (replies, _) = session.send(set, &meta_data("x", &[ALLOCATION]));
    assert_eq!(replies, [context(set, 1), (set, option_reply::ACK, vec![])]);
    assert_eq!(go(&mut session, "x").base_allocation, Some(1));

    let too_long = vec![0; 70_000];
    let failing = [
        meta_data("x", &[]),
        meta_data("nope", &[ALLOCATION]),
        meta_data("x", &["base:"]),
        b"short".to_vec(),
        too_long,
    ];
    for data in failing {
        let mut session = structured();
        session.send(set, &meta_data("x", &[ALLOCATION]));
        session.send(set, &data);
        assert_eq!(go(&mut session, "x").base_allocation, None);
    }
}

#[test]
fn m_05_selection_applies_to_its_export_only() {
    let set = option::SET_META_CONTEXT;
    let mut session = structured();
    session.exports.0[1].tls_only = false;
    session.send(set, &meta_data("secret", &[ALLOCATION]));
    assert_eq!(go(&mut session, "x").base_allocation, None);

    let mut session = structured();
    session.exports.0.truncate(1);
    session.send(set, &meta_data("", &[ALLOCATION]));
    assert_eq!(go(&mut session, "x").base_allocation, Some(1), "two names of one export");

    let mut session = structured();
    session.send(set, &meta_data("x", &[ALLOCATION]));
    let (_, step) = session.send_raw(&super::option(option::EXPORT_NAME, b"x"));
    assert!(matches!(step, HandshakeStep::Enter(terms) if terms.base_allocation == Some(1)));
}

#[test]
fn b_01_structured_reply_takes_no_data() {
    let mut session = Session::new(Tls::Off);
    let kind = session.kind_of_reply(option::STRUCTURED_REPLY, b"please");
    assert_eq!(kind, option_reply::ERR_INVALID);
    assert!(!go(&mut session, "x").structured);
    assert!(go(&mut structured(), "x").structured);
}

#[test]
fn xh_01_xh_02_extended_headers_override_structured_replies() {
    let mut session = Session::new(Tls::Off);
    let extended = option::EXTENDED_HEADERS;
    assert_eq!(session.kind_of_reply(extended, b"?"), option_reply::ERR_INVALID);
    assert_eq!(session.kind_of_reply(extended, b""), option_reply::ACK);
    let kind = session.kind_of_reply(option::STRUCTURED_REPLY, b"");
    assert_eq!(kind, option_reply::ERR_EXT_HEADER_REQD);
    let (replies, _) = session.send(option::SET_META_CONTEXT, &meta_data("x", &[ALLOCATION]));
    assert_eq!(replies.len(), 2);
    let terms = go(&mut session, "x");
    assert!(terms.extended && terms.structured && terms.base_allocation.is_some());

    let mut session = Session::new(Tls::Off);
    session.send(extended, b"");
    let (_, step) = session.send(option::EXPORT_NAME, b"x");
    assert_eq!(
        step,
        HandshakeStep::Close(CloseReason::ExportRefused(ExportRefusal::ExtendedHeaders))
    );
}
