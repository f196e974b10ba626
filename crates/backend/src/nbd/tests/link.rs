//! The requests in flight, step by step, without threads.

use super::super::connect::ConnectedExport;
use super::super::link::{LinkWork, NbdLink, ServerConn};
use super::super::socket::NbdSocket;
use crate::{Io, IoKind, IoToken, IoWait};
use forebay_nbd::client::OpenExport;
use forebay_nbd::proto;
use forebay_types::{Few, IoError};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WRITE: IoKind = IoKind::Write { fua: false };
const FUA_WRITE: IoKind = IoKind::Write { fua: true };

fn connection(flags: u16) -> ServerConn {
    let (stream, _) = UnixStream::pair().unwrap();
    let opened = OpenExport {
        size_bytes: 1 << 20,
        flags,
        structured: false,
        extended: false,
        base_allocation: None,
        tls: false,
        block_min: 1,
        block_preferred: 4096,
        payload_max: 32 << 20,
    };
    ConnectedExport { socket: NbdSocket::from(stream), opened, input: Vec::new() }
        .into_connection()
        .0
}

fn link(flags: u16) -> NbdLink {
    NbdLink::new(connection(flags), Duration::from_secs(10), false)
}

/// Submits an I/O of zero bytes; only the kind matters here.
fn submit(link: &mut NbdLink, kind: IoKind) -> Arc<IoWait> {
    let wait = IoWait::new(1);
    let done = IoToken::new(wait.clone(), 0);
    link.submit(LinkWork::Io(Io { kind, offset: 0, len: 0, buffers: Few::new(), done })).deliver();
    wait
}

/// Sends the next request. Returns its cookie.
fn send(link: &mut NbdLink) -> u64 {
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.on_sent(cookie).deliver();
    cookie
}

/// Receives the answer to a request without an error, through the parser, which then accepts the
/// cookie again.
fn receive(link: &mut NbdLink, cookie: u64) {
    let mut reply = proto::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend([0; 4]);
    reply.extend(cookie.to_be_bytes());
    let (taken, event) = link.connection.as_mut().unwrap().parser.advance(&reply);
    assert_eq!(taken, reply.len(), "{event:?}");
    link.on_reply(cookie, Ok(())).deliver();
}

fn assert_nothing_to_send(link: &mut NbdLink) {
    assert!(link.next_to_send(&mut Vec::new()).is_none());
}

#[test]
fn no_answer_is_given_while_a_request_is_being_sent() {
    let mut link = link(super::ALL_FLAGS);
    let wait = submit(&mut link, WRITE);
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(wait.answer(0), None);
    // Not even after a disconnect, a timeout and a reconnect.
    link.on_disconnect(Instant::now());
    link.expire(Instant::now() + Duration::from_secs(60)).deliver();
    let _ = link.on_connect(connection(super::ALL_FLAGS));
    assert_eq!(wait.answer(0), None);
    link.on_sent(cookie).deliver();
    assert!(wait.answer(0).is_some());
    assert_nothing_to_send(&mut link);
}

#[test]
fn unanswered_requests_are_resent_in_order() {
    let mut link = link(super::ALL_FLAGS);
    let waits: Vec<_> = (0..5).map(|_| submit(&mut link, FUA_WRITE)).collect();
    let cookies: Vec<u64> = (0..4).map(|_| send(&mut link)).collect();
    link.on_reply(cookies[1], Ok(())).deliver();
    link.on_disconnect(Instant::now());
    assert_nothing_to_send(&mut link);
    // FUA writes are not volatile: nothing is in doubt.
    assert!(!link.on_connect(connection(super::ALL_FLAGS)));
    let again: Vec<u64> = (0..4).map(|_| send(&mut link)).collect();
    assert_eq!(again[..3], [cookies[0], cookies[2], cookies[3]]);
    again.into_iter().for_each(|cookie| link.on_reply(cookie, Ok(())).deliver());
    assert!(waits.iter().all(|wait| wait.answer(0) == Some(Ok(()))));
}

#[test]
fn expired_requests_fail_and_later_ones_fail_at_once() {
    let mut link = link(super::ALL_FLAGS);
    let first = submit(&mut link, WRITE);
    let start = Instant::now();
    link.on_disconnect(start);
    link.expire(start + Duration::from_secs(9)).deliver();
    assert_eq!(
        (first.answer(0), link.next_deadline()),
        (None, Some(start + Duration::from_secs(10)))
    );
    link.expire(start + Duration::from_secs(10)).deliver();
    assert_eq!(first.answer(0), Some(Err(IoError::Io)));
    let Some(long_ago) = start.checked_sub(Duration::from_secs(11)) else { return };
    let mut link = self::link(super::ALL_FLAGS);
    link.on_disconnect(long_ago);
    assert_eq!(submit(&mut link, WRITE).answer(0), Some(Err(IoError::Io)));
    let _ = link.on_connect(connection(super::ALL_FLAGS));
    assert_eq!(submit(&mut link, WRITE).answer(0), None);
}

#[test]
fn an_unanswered_request_has_its_full_time_in_a_later_outage() {
    let mut link = link(super::ALL_FLAGS);
    let wait = submit(&mut link, WRITE);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    link.on_disconnect(at(0));
    let _ = link.on_connect(ServerConn { since: at(9), ..connection(super::ALL_FLAGS) });
    link.on_disconnect(at(60));
    link.expire(at(69)).deliver();
    assert_eq!((wait.answer(0), link.next_deadline()), (None, Some(at(70))));
    link.expire(at(70)).deliver();
    assert_eq!(wait.answer(0), Some(Err(IoError::Io)));
}

#[test]
fn a_request_that_ends_each_connection_fails() {
    let mut link = link(super::ALL_FLAGS);
    let wait = submit(&mut link, WRITE);
    let mut now = Instant::now();
    let start = now;
    while wait.answer(0).is_none() {
        link.on_disconnect(now);
        now += Duration::from_secs(2);
        link.expire(now).deliver();
        let _ = link.on_connect(ServerConn { since: now, ..connection(super::ALL_FLAGS) });
        now += Duration::from_millis(10);
        assert!(now < start + Duration::from_secs(60), "retried without end");
    }
}

#[test]
fn all_flushes_that_may_cover_lost_writes_fail() {
    let mut link = link(super::ALL_FLAGS);
    let write = submit(&mut link, WRITE);
    let cookie = send(&mut link);
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(write.answer(0), Some(Ok(())));
    let before = submit(&mut link, IoKind::Flush);
    link.on_disconnect(Instant::now());
    assert!(link.on_connect(connection(super::ALL_FLAGS)));
    let between = submit(&mut link, IoKind::Flush);
    for _ in 0..2 {
        let cookie = send(&mut link);
        link.on_reply(cookie, Ok(())).deliver();
    }
    assert_eq!(before.answer(0), Some(Err(IoError::Io)));
    assert_eq!(between.answer(0), Some(Err(IoError::Io)));
    let after = submit(&mut link, IoKind::Flush);
    let cookie = send(&mut link);
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(after.answer(0), Some(Ok(())));
    // Reported once: the next disconnect puts nothing in doubt.
    link.on_disconnect(Instant::now());
    assert!(!link.on_connect(connection(super::ALL_FLAGS)));
}

#[test]
fn a_flush_submitted_before_a_write_was_answered_does_not_report_its_loss() {
    let mut link = link(super::ALL_FLAGS);
    let before = submit(&mut link, IoKind::Flush);
    let early = send(&mut link);
    let write = submit(&mut link, WRITE);
    let cookie = send(&mut link);
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(write.answer(0), Some(Ok(())));
    link.on_disconnect(Instant::now());
    assert!(link.on_connect(connection(super::ALL_FLAGS)));
    assert_eq!(send(&mut link), early);
    link.on_reply(early, Ok(())).deliver();
    assert!(before.answer(0).is_some());
    let after = submit(&mut link, IoKind::Flush);
    let cookie = send(&mut link);
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(after.answer(0), Some(Err(IoError::Io)));
}

const FLUSH_ONLY: u16 = super::export_flag::HAS_FLAGS | super::export_flag::SEND_FLUSH;

#[test]
fn fua_is_emulated_by_a_flush() {
    let mut link = link(FLUSH_ONLY);
    let wait = submit(&mut link, FUA_WRITE);
    let cookie = send(&mut link);
    receive(&mut link, cookie);
    assert_eq!(wait.answer(0), None);
    // The connection is lost before the flush: the write may be lost, too, and is repeated.
    link.on_disconnect(Instant::now());
    assert!(!link.on_connect(connection(FLUSH_ONLY)));
    for is_write in [true, false] {
        assert_eq!(wait.answer(0), None);
        assert_eq!(link.in_flight[&cookie].payload().is_some(), is_write);
        assert_eq!(send(&mut link), cookie);
        receive(&mut link, cookie);
    }
    assert_eq!(wait.answer(0), Some(Ok(())));
    assert_nothing_to_send(&mut link);
}

#[test]
fn an_emulated_fua_write_does_not_hide_the_loss_of_other_writes() {
    let mut link = link(FLUSH_ONLY);
    let write = submit(&mut link, WRITE);
    let cookie = send(&mut link);
    receive(&mut link, cookie);
    assert_eq!(write.answer(0), Some(Ok(())));
    let fua_write = submit(&mut link, FUA_WRITE);
    let cookie = send(&mut link);
    receive(&mut link, cookie);
    link.on_disconnect(Instant::now());
    assert!(link.on_connect(connection(FLUSH_ONLY)));
    for _ in 0..2 {
        assert_eq!(send(&mut link), cookie);
        receive(&mut link, cookie);
    }
    assert_eq!(fua_write.answer(0), Some(Ok(())));
    let flush = submit(&mut link, IoKind::Flush);
    let cookie = send(&mut link);
    receive(&mut link, cookie);
    assert_eq!(flush.answer(0), Some(Err(IoError::Io)));
}

#[test]
fn a_write_answered_early_on_a_lost_connection_is_resent() {
    let mut link = link(super::ALL_FLAGS);
    let wait = submit(&mut link, WRITE);
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.on_reply(cookie, Ok(())).deliver();
    // The answer has not reached the client, so nothing is in doubt.
    link.on_disconnect(Instant::now());
    assert!(!link.on_connect(connection(super::ALL_FLAGS)));
    link.on_sent(cookie).deliver();
    assert_eq!(wait.answer(0), None);
    assert_eq!(send(&mut link), cookie);
    link.on_reply(cookie, Ok(())).deliver();
    assert_eq!(wait.answer(0), Some(Ok(())));
    assert_nothing_to_send(&mut link);
}
