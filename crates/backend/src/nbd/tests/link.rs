//! The list of requests in flight, step by step, without threads.

use super::super::connect::Connected;
use super::super::link::{Connection, Link, Work};
use super::super::socket::Socket;
use crate::{Completion, Io, IoKind, Wait};
use forebay_nbd::client::Opened;
use forebay_types::IoError;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WRITE: IoKind = IoKind::Write { fua: false };
const FORCED: IoKind = IoKind::Write { fua: true };

fn connection(flags: u16) -> Connection {
    let (stream, _) = UnixStream::pair().unwrap();
    let opened = Opened {
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
    Connected { socket: Socket::from(stream), opened, input: Vec::new() }.into_connection().0
}

fn link(flags: u16) -> Link {
    Link::new(connection(flags), Duration::from_secs(10))
}

/// Submits an I/O of no bytes, the kind being all that matters here.
fn submit(link: &mut Link, kind: IoKind) -> Arc<Wait> {
    let wait = Wait::new(1);
    let done = Completion::new(wait.clone(), 0);
    link.submit(Work::Io(Io { kind, offset: 0, len: 0, buffers: Vec::new(), done })).give();
    wait
}

/// Sends the next request; gives its cookie.
fn send(link: &mut Link) -> u64 {
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.sent(cookie).give();
    cookie
}

fn assert_nothing_to_send(link: &mut Link) {
    assert!(link.next_to_send(&mut Vec::new()).is_none());
}

#[test]
fn no_answer_is_given_while_a_request_is_being_sent() {
    let mut link = link(super::ALL_FLAGS);
    let wait = submit(&mut link, WRITE);
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.done(cookie, Ok(())).give();
    assert_eq!(wait.answer(0), None);
    // Not even when the connection is lost, the time is over and another one is there.
    link.lost(Instant::now());
    link.expire(Instant::now() + Duration::from_secs(60)).give();
    let _ = link.reconnected(connection(super::ALL_FLAGS));
    assert_eq!(wait.answer(0), None);
    link.sent(cookie).give();
    assert!(wait.answer(0).is_some());
    assert_nothing_to_send(&mut link);
}

#[test]
fn what_was_not_answered_is_sent_again_in_its_order() {
    let mut link = link(super::ALL_FLAGS);
    let waits: Vec<_> = (0..5).map(|_| submit(&mut link, FORCED)).collect();
    let cookies: Vec<u64> = (0..4).map(|_| send(&mut link)).collect();
    link.done(cookies[1], Ok(())).give();
    link.lost(Instant::now());
    assert_nothing_to_send(&mut link);
    // Forced writes are not volatile: nothing is in doubt.
    assert!(!link.reconnected(connection(super::ALL_FLAGS)));
    let again: Vec<u64> = (0..4).map(|_| send(&mut link)).collect();
    assert_eq!(again[..3], [cookies[0], cookies[2], cookies[3]]);
    again.into_iter().for_each(|cookie| link.done(cookie, Ok(())).give());
    assert!(waits.iter().all(|wait| wait.answer(0) == Some(Ok(()))));
}

#[test]
fn what_waits_too_long_fails_and_what_comes_then_fails_at_once() {
    let mut link = link(super::ALL_FLAGS);
    let first = submit(&mut link, WRITE);
    let start = Instant::now();
    link.lost(start);
    link.expire(start + Duration::from_secs(9)).give();
    assert_eq!(
        (first.answer(0), link.next_deadline()),
        (None, Some(start + Duration::from_secs(10)))
    );
    link.expire(start + Duration::from_secs(10)).give();
    assert_eq!(first.answer(0), Some(Err(IoError::Io)));
    let Some(long_ago) = start.checked_sub(Duration::from_secs(11)) else { return };
    let mut link = self::link(super::ALL_FLAGS);
    link.lost(long_ago);
    assert_eq!(submit(&mut link, WRITE).answer(0), Some(Err(IoError::Io)));
    let _ = link.reconnected(connection(super::ALL_FLAGS));
    assert_eq!(submit(&mut link, WRITE).answer(0), None);
}

#[test]
fn all_flushes_that_may_speak_of_lost_writes_fail() {
    let mut link = link(super::ALL_FLAGS);
    let write = submit(&mut link, WRITE);
    let cookie = send(&mut link);
    link.done(cookie, Ok(())).give();
    assert_eq!(write.answer(0), Some(Ok(())));
    let before = submit(&mut link, IoKind::Flush);
    link.lost(Instant::now());
    assert!(link.reconnected(connection(super::ALL_FLAGS)));
    let between = submit(&mut link, IoKind::Flush);
    for _ in 0..2 {
        let cookie = send(&mut link);
        link.done(cookie, Ok(())).give();
    }
    assert_eq!(before.answer(0), Some(Err(IoError::Io)));
    assert_eq!(between.answer(0), Some(Err(IoError::Io)));
    let after = submit(&mut link, IoKind::Flush);
    let cookie = send(&mut link);
    link.done(cookie, Ok(())).give();
    assert_eq!(after.answer(0), Some(Ok(())));
    // Told once: the next loss of the connection puts nothing in doubt.
    link.lost(Instant::now());
    assert!(!link.reconnected(connection(super::ALL_FLAGS)));
}

#[test]
fn a_forced_write_is_flushed_where_it_can_not_be_forced() {
    let flags = super::export_flag::HAS_FLAGS | super::export_flag::SEND_FLUSH;
    let mut link = link(flags);
    let wait = submit(&mut link, FORCED);
    // The answer comes early, and the connection is lost before the flush is sent.
    let (cookie, _) = link.next_to_send(&mut Vec::new()).unwrap();
    link.done(cookie, Ok(())).give();
    link.lost(Instant::now());
    link.sent(cookie).give();
    assert_eq!(wait.answer(0), None);
    // The written data may be gone: the flush must not make it a success.
    assert!(link.reconnected(connection(flags)));
    assert_eq!(send(&mut link), cookie);
    link.done(cookie, Ok(())).give();
    assert_eq!(wait.answer(0), Some(Err(IoError::Io)));
    assert_nothing_to_send(&mut link);
}
