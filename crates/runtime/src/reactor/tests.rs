//! Contracts of both reactors.

use super::{EpollReactor, Event, Reactor, UringReactor};
use crate::rig::common::client::PATIENCE;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Many more than the receive buffers.
const CONNECTIONS: u32 = 64;
/// Connections whose peer sends a byte before it disconnects: enough to use all buffers.
const SENDING: u32 = 16;

/// A connection whose peer has disconnected, after it has sent a byte if `sends`.
fn disconnected(sends: bool) -> OwnedFd {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    if sends {
        send(&theirs, &[1], SendFlags::empty()).unwrap();
    }
    ours
}

/// Fails if a reactor repeats starved receives only when a buffer is returned: the end of a stream
/// takes no buffer.
fn every_end_is_reported_although_buffers_run_out<R: Reactor>() {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut reactor = R::new(wake.as_raw_fd()).unwrap();
    let sockets: Vec<OwnedFd> = (0..CONNECTIONS).map(|at| disconnected(at < SENDING)).collect();
    let fd = |conn: u32| sockets[conn as usize].as_raw_fd();
    (0..CONNECTIONS).for_each(|conn| reactor.receive(conn, fd(conn)));
    let (mut ended, until) = (0, Instant::now() + PATIENCE);
    while ended < CONNECTIONS {
        assert!(Instant::now() < until, "only {ended} of {CONNECTIONS} ends were reported");
        reactor.wait(Duration::from_millis(10)).unwrap();
        while let Some(event) = reactor.event() {
            let Event::Received { conn, buffer, result, more } = event else { continue };
            match result.unwrap() {
                0 => ended += 1,
                _ if !more => reactor.receive(conn, fd(conn)),
                _ => {}
            }
            if let Some(buffer) = buffer {
                reactor.recycle(buffer);
            }
        }
    }
}

#[test]
fn every_end_is_reported_although_buffers_run_out_by_io_uring() {
    every_end_is_reported_although_buffers_run_out::<UringReactor>();
}

#[test]
fn every_end_is_reported_although_buffers_run_out_by_epoll() {
    every_end_is_reported_although_buffers_run_out::<EpollReactor>();
}
