//! Contracts of both reactors.

use super::{EpollReactor, Event, Reactor, UringReactor};
use crate::rig::allocations;
use crate::rig::common::client::PATIENCE;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Makes two tests of each function, one for each reactor.
macro_rules! on_both_reactors {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn io_uring() {
                super::$name::<super::UringReactor>();
            }

            #[test]
            fn epoll() {
                super::$name::<super::EpollReactor>();
            }
        })*
    };
}

on_both_reactors! {
    every_end_is_reported_although_buffers_run_out,
    many_listeners_do_not_disturb_the_connections,
    an_end_that_races_with_a_receive_is_reported,
    a_renewed_receive_reports_nothing_and_loses_no_bytes,
    a_turn_allocates_nothing,
    a_counter_is_reported_until_its_watch_ends,
    a_look_ends_with_the_first_event,
    input_that_is_stopped_ends_and_leaves_later_bytes_in_the_socket,
}

/// Many more than the receive buffers.
const CONNECTIONS: u32 = 64;
/// Connections whose peer sends a byte before it disconnects: enough to use all buffers.
const SENDING: u32 = 16;

/// Two connected sockets.
fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A connection whose peer has disconnected, after it has sent a byte if `sends`.
fn disconnected(sends: bool) -> OwnedFd {
    let (ours, theirs) = pair();
    if sends {
        send(&theirs, &[1], SendFlags::empty()).unwrap();
    }
    ours
}

/// A reactor, and the eventfd that it watches.
fn reactor<R: Reactor>() -> (R, OwnedFd) {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    (R::new(wake.as_raw_fd()).unwrap(), wake)
}

/// Fails if a reactor repeats starved receives only when a buffer is returned: the end of a stream
/// takes no buffer, so none is returned for the next receive.
fn every_end_is_reported_although_buffers_run_out<R: Reactor>() {
    every_end_is_reported::<R>(&[]);
}

/// Receives until the end of all connections, while clients are accepted by these listeners.
fn every_end_is_reported<R: Reactor>(listeners: &[(u32, UnixListener)]) {
    let (mut reactor, _wake) = reactor::<R>();
    let sockets: Vec<OwnedFd> = (0..CONNECTIONS).map(|at| disconnected(at < SENDING)).collect();
    let fd = |conn: u32| sockets[conn as usize].as_raw_fd();
    (0..CONNECTIONS).for_each(|conn| reactor.receive(conn, fd(conn)));
    for (number, listener) in listeners {
        reactor.accept(*number, listener.as_raw_fd());
    }
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

/// Fails if a reactor keeps the descriptors of listeners and of connections in one list: with many
/// listeners, a starved receive is repeated on the socket of a listener.
fn many_listeners_do_not_disturb_the_connections<R: Reactor>() {
    let directory = tempfile::tempdir().unwrap();
    let listener = |number: u32| {
        let listener = UnixListener::bind(directory.path().join(number.to_string())).unwrap();
        listener.set_nonblocking(true).unwrap();
        (number, listener)
    };
    let listeners: Vec<_> = (0..2 * CONNECTIONS).map(listener).collect();
    every_end_is_reported::<R>(&listeners);
}

/// How often a peer sends and disconnects while a receive begins. Without renewals, about
/// one end in 30,000 is not reported, so that every other run of the test fails.
const RACES: u32 = 20_000;

/// Receives from peers that send a byte and disconnect at the same moment.
fn an_end_that_races_with_a_receive_is_reported<R: Reactor>() {
    let (mut reactor, _wake) = reactor::<R>();
    let (to_peer, streams) = std::sync::mpsc::sync_channel::<OwnedFd>(1);
    let peer = std::thread::spawn(move || {
        streams.iter().for_each(|stream| {
            send(&stream, &[1], SendFlags::empty()).unwrap();
        });
    });
    for race in 0..RACES {
        let (ours, theirs) = pair();
        reactor.receive(0, ours.as_raw_fd());
        to_peer.send(theirs).unwrap();
        let until = Instant::now() + PATIENCE;
        while received(&mut reactor, &ours).is_none_or(|len| len > 0) {
            assert!(Instant::now() < until, "the end of race {race} was not reported");
        }
        reactor.forget(ours.as_raw_fd());
    }
    drop(to_peer);
    peer.join().unwrap();
}

/// Waits a little, and returns how many bytes of connection 0 were received.
fn received<R: Reactor>(reactor: &mut R, ours: &OwnedFd) -> Option<usize> {
    if let Some(len) = next_received(reactor, ours) {
        return Some(len);
    }
    reactor.wait(Duration::from_millis(20)).unwrap();
    next_received(reactor, ours)
}

fn next_received<R: Reactor>(reactor: &mut R, ours: &OwnedFd) -> Option<usize> {
    while let Some(event) = reactor.event() {
        if let Event::Received { buffer, result, more, .. } = event {
            let len = result.unwrap();
            buffer.into_iter().for_each(|buffer| reactor.recycle(buffer));
            if len > 0 && !more {
                reactor.receive(0, ours.as_raw_fd());
            }
            return Some(len);
        }
    }
    None
}

/// The renewal of a receive reports nothing, loses no bytes, and does not disturb a pause.
fn a_renewed_receive_reports_nothing_and_loses_no_bytes<R: Reactor>() {
    let (mut reactor, _wake) = reactor::<R>();
    let (ours, theirs) = pair();
    reactor.receive(0, ours.as_raw_fd());
    for _ in 0..2 {
        send(&theirs, &[1], SendFlags::empty()).unwrap();
        let until = Instant::now() + PATIENCE;
        while received(&mut reactor, &ours).is_none() {
            assert!(Instant::now() < until);
        }
        // Long enough for a renewal.
        let silent_until = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < silent_until {
            assert_eq!(received(&mut reactor, &ours), None);
        }
    }
    reactor.pause(0);
    let mut ends = 0;
    for _ in 0..20 {
        reactor.wait(Duration::from_millis(5)).unwrap();
        while let Some(event) = reactor.event() {
            let Event::Received { result, more, .. } = event else { continue };
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert!(!more);
            ends += 1;
        }
    }
    let reports_cancellation = R::NAME == UringReactor::NAME;
    assert_eq!(ends, u32::from(reports_cancellation));
}

/// Fails if a look misses an event: it would last for an hour.
fn a_look_ends_with_the_first_event<R: Reactor>() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (mut reactor, wake) = reactor::<R>();
    let (ours, theirs) = pair();
    // Armed, or at least requested, before the first look.
    reactor.receive(0, ours.as_raw_fd());
    reactor.wait(Duration::ZERO).unwrap();
    let started = Instant::now();
    reactor.look(Duration::from_millis(1));
    assert!(reactor.event().is_none(), "nothing has happened");
    if R::NAME == UringReactor::NAME {
        assert!(started.elapsed() >= Duration::from_millis(1), "it has looked");
    }
    let peer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        send(&theirs, &[1], SendFlags::empty()).unwrap();
        theirs
    });
    reactor.look(HOUR);
    let until = Instant::now() + PATIENCE;
    while received(&mut reactor, &ours) != Some(1) {
        assert!(Instant::now() < until, "the byte was not received");
    }
    let _theirs = peer.join().unwrap();
    // A message of another thread ends it, too.
    let messenger = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
        wake
    });
    reactor.look(HOUR);
    let mut is_woken = false;
    while !is_woken {
        assert!(Instant::now() < until, "the message was not reported");
        reactor.wait(Duration::from_millis(10)).unwrap();
        while let Some(event) = reactor.event() {
            is_woken |= matches!(event, Event::Woken);
        }
    }
    drop(messenger.join().unwrap());
}

/// A byte in each direction, turn by turn. The first turns grow the buffers.
fn a_turn_allocates_nothing<R: Reactor>() {
    let (mut reactor, _wake) = reactor::<R>();
    let (ours, theirs) = pair();
    let fd = ours.as_raw_fd();
    let mut byte = [7u8];
    let mut iovec = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: an all-zero message header is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iovec, 1);
    let (mut before, until) = (0, Instant::now() + PATIENCE);
    reactor.receive(0, fd);
    for turn in 0..200 {
        if turn == 100 {
            before = allocations();
        }
        send(&theirs, &[1], SendFlags::empty()).unwrap();
        reactor.send(0, fd, &raw const message);
        let (mut received, mut sent) = (false, false);
        while !(received && sent) {
            assert!(Instant::now() < until, "turn {turn}: received {received}, sent {sent}");
            reactor.wait(Duration::from_millis(100)).unwrap();
            while let Some(event) = reactor.event() {
                match event {
                    Event::Sent { result, .. } => sent = result.unwrap() == 1,
                    Event::Received { buffer, result, more, .. } => {
                        received = result.unwrap() == 1;
                        buffer.into_iter().for_each(|buffer| reactor.recycle(buffer));
                        if !more {
                            reactor.receive(0, fd);
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut fetched = [0u8; 2];
        assert_eq!(recv(&theirs, &mut fetched[..], RecvFlags::empty()).unwrap().0, 1);
    }
    assert_eq!(allocations() - before, 0, "allocations in 100 turns");
}

/// The next event of a counter: its key, and whether it is the last.
fn counter_event<R: Reactor>(reactor: &mut R) -> Option<(u32, bool)> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        while let Some(event) = reactor.event() {
            match event {
                Event::Counted { key } => return Some((key, false)),
                Event::CounterEnded { key } => return Some((key, true)),
                _ => {}
            }
        }
        reactor.wait(Duration::from_millis(10)).unwrap();
    }
    None
}

fn a_counter_is_reported_until_its_watch_ends<R: Reactor>() {
    let (mut reactor, _wake) = reactor::<R>();
    // Neither needs to be non-blocking: the reactor never waits for it.
    let counters = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    for (key, counter) in counters.iter().enumerate() {
        reactor.watch_counter(key as u32, counter.as_raw_fd());
    }
    for round in 0..3 {
        rustix::io::write(&counters[1], &7_u64.to_ne_bytes()).unwrap();
        assert_eq!(counter_event(&mut reactor), Some((1, false)), "round {round}");
    }
    reactor.unwatch_counter(1);
    assert_eq!(counter_event(&mut reactor), Some((1, true)));
    rustix::io::write(&counters[1], &1_u64.to_ne_bytes()).unwrap();
    rustix::io::write(&counters[0], &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(counter_event(&mut reactor), Some((0, false)), "of the other counter");
    reactor.watch_counter(1, counters[1].as_raw_fd());
    assert_eq!(counter_event(&mut reactor), Some((1, false)), "it was not reset before");
}

/// The events of connection 0 until there is none within a few waits.
fn ended_input<R: Reactor>(reactor: &mut R) -> (usize, usize, bool) {
    let (mut received, mut ends, mut is_armed) = (0, 0, false);
    for _ in 0..5 {
        reactor.wait(Duration::from_millis(5)).unwrap();
        while let Some(event) = reactor.event() {
            match event {
                Event::Received { conn: 0, buffer, result, more } => {
                    received += result.unwrap_or(0);
                    is_armed = more;
                    ends += usize::from(!more);
                    if let Some(buffer) = buffer {
                        reactor.recycle(buffer);
                    }
                }
                Event::Filled { conn: 0, result } => {
                    received += result.unwrap_or(0);
                    ends += 1;
                }
                _ => {}
            }
        }
    }
    (received, ends, is_armed)
}

fn input_that_is_stopped_ends_and_leaves_later_bytes_in_the_socket<R: Reactor>() {
    let (mut reactor, _wake) = reactor::<R>();
    let (ours, theirs) = pair();
    let in_socket = || rustix::io::ioctl_fionread(&ours).unwrap();
    for sends_before in [false, true] {
        // A receive that waits for bytes, or has just reported some.
        reactor.receive(0, ours.as_raw_fd());
        reactor.wait(Duration::from_millis(5)).unwrap();
        if sends_before {
            send(&theirs, &[1; 3], SendFlags::empty()).unwrap();
        }
        reactor.stop_input(0, ours.as_raw_fd());
        let (received, ends, is_armed) = ended_input(&mut reactor);
        assert!(ends == 1 && !is_armed, "{ends} ends");
        assert_eq!(received as u64 + in_socket(), if sends_before { 3 } else { 0 });
        send(&theirs, &[2; 5], SendFlags::empty()).unwrap();
        assert_eq!(ended_input(&mut reactor), (0, 0, false), "nothing more is received");
        recv(&ours, &mut [0; 16][..], RecvFlags::empty()).unwrap();
        // A fill of a message.
        let mut bytes = [0u8; 8];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
        // SAFETY: an all-zero message header is an empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        reactor.fill(0, ours.as_raw_fd(), &raw mut message);
        reactor.wait(Duration::from_millis(5)).unwrap();
        reactor.stop_input(0, ours.as_raw_fd());
        assert_eq!(ended_input(&mut reactor), (0, 1, false));
        send(&theirs, &[3; 5], SendFlags::empty()).unwrap();
        assert_eq!(ended_input(&mut reactor), (0, 0, false), "nothing is filled");
        assert_eq!(in_socket(), 5);
        recv(&ours, &mut [0; 16][..], RecvFlags::empty()).unwrap();
    }
    reactor.stop_input(0, ours.as_raw_fd());
    assert_eq!(ended_input(&mut reactor), (0, 0, false), "there was no input to stop");
}
