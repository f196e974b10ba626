//! Clients that are slow on purpose: their timeouts, and that they do not delay others.

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::raw::{client_flags, connect_to, greeting, is_closed, request};
use crate::common::wait_until;
use crate::server::Server;
use forebay_nbd::proto::command;
use forebay_runtime::{Engine, RuntimeConfig, Timeouts};
use forebay_types::Mode;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

on_both_engines! {
    a_handshake_has_a_deadline,
    a_stalled_payload_has_a_deadline,
    a_trickling_payload_has_a_deadline,
    a_slow_writer_does_not_delay_other_clients,
    huge_requests_of_many_clients_are_all_served,
    a_client_that_does_not_fetch_is_dropped_when_others_wait_for_its_memory,
    a_dirty_line_is_destaged_at_its_maximum_age,
}

const MIB: u64 = 1 << 20;

const HANDSHAKE: Duration = Duration::from_secs(1);
const PAYLOAD_PAUSE: Duration = Duration::from_secs(2);

/// A server with these timeouts. A test shortens only the one under test: the others would end
/// clients that a loaded machine makes slow.
fn server(engine: Engine, timeouts: Timeouts) -> Server {
    let server = Server::start_over(Server::config(engine), timeouts);
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    server
}

/// A client of the disk. It retries if its handshake times out on a loaded machine.
fn entered(server: &Server) -> Client {
    let mut client = None;
    wait_until("a client enters", PATIENCE, || {
        let stream = connect(&server.socket);
        let entered = catch_unwind(AssertUnwindSafe(|| Client::enter(stream, &config("disk"))));
        client = entered.ok().and_then(Result::ok);
        client.is_some()
    });
    client.unwrap()
}

fn a_handshake_has_a_deadline(engine: Engine) {
    let server = server(engine, Timeouts { handshake: HANDSHAKE, ..Timeouts::default() });
    let mut entered = entered(&server);
    let begin = Instant::now();
    let mut silent = [(); 3].map(|()| connect(&server.socket));
    for (number, stream) in silent.iter_mut().enumerate() {
        greeting(stream);
        // On a slow machine the deadline may have passed, and the write fails.
        let _ = stream.write_all(&client_flags()[..number * 2]);
    }
    // Sending byte by byte does not extend the deadline.
    let mut talker = connect(&server.socket);
    greeting(&mut talker);
    let _ = talker.write_all(&client_flags());
    let mut chatter = crate::common::raw::option(999, &[0; 200_000]).into_iter();
    wait_until("the talker is disconnected", PATIENCE, || {
        talker.write_all(&[chatter.next().expect("the timeout ends the handshake first")]).is_err()
    });
    for stream in &mut silent {
        assert!(is_closed(stream));
    }
    let took = begin.elapsed();
    assert!(took >= HANDSHAKE, "too early: {took:?}");
    assert_eq!(entered.read(0, 512), Ok(vec![0; 512]), "an idle client was disconnected");
}

fn a_stalled_payload_has_a_deadline(engine: Engine) {
    let server = server(engine, Timeouts { payload_pause: PAYLOAD_PAUSE, ..Timeouts::default() });
    let mut stream = connect_to(&server.socket, "disk");
    let begin = Instant::now();
    stream.write_all(&request(command::WRITE, 0, 1, 0, 65536)).unwrap();
    // On a slow machine, the deadline may pass before the bytes are sent.
    let _ = stream.write_all(&[9; 65535]);
    assert!(is_closed(&mut stream));
    let took = begin.elapsed();
    assert!(took >= PAYLOAD_PAUSE, "too early: {took:?}");
    assert_eq!(
        server.client("disk").read(0, 65536),
        Ok(vec![0; 65536]),
        "the incomplete write has no effect"
    );
}

fn a_trickling_payload_has_a_deadline(engine: Engine) {
    let server = server(engine, Timeouts { payload_pause: PAYLOAD_PAUSE, ..Timeouts::default() });
    let mut stream = connect_to(&server.socket, "disk");
    let begin = Instant::now();
    stream.write_all(&request(command::WRITE, 0, 1, 0, 200 << 10)).unwrap();
    let (mut last, mut longest_pause) = (Instant::now(), Duration::ZERO);
    wait_until("the trickle ends", PATIENCE, || {
        let is_ended = stream.write_all(&[9]).is_err();
        let now = Instant::now();
        longest_pause = longest_pause.max(now - std::mem::replace(&mut last, now));
        is_ended
    });
    // A second per 64 KiB in addition to the pause, unless the machine itself has stalled the
    // client.
    if longest_pause < PAYLOAD_PAUSE / 2 {
        assert!(begin.elapsed() >= 2 * PAYLOAD_PAUSE, "too early");
    }
}

fn a_slow_writer_does_not_delay_other_clients(engine: Engine) {
    let config = RuntimeConfig { workers: 1, ..Server::config(engine) };
    // Longer than the timeouts of the other client: if that client waits for the slow one, the test
    // fails.
    let timeouts = Timeouts { payload_pause: 2 * PATIENCE, ..Timeouts::default() };
    let server = Server::start_over(config, timeouts);
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    let mut slow = connect_to(&server.socket, "disk");
    slow.write_all(&request(command::WRITE, 0, 1, 0, 32 << 20)).unwrap();
    slow.write_all(&vec![9; 3 << 20]).unwrap();
    let mut client = server.client("disk");
    for n in 0..20u64 {
        assert_eq!(client.write((32 + n) * MIB, &vec![n as u8; MIB as usize]), Ok(()));
    }
    slow.write_all(&vec![9; 29 << 20]).unwrap();
    let mut reply = [0; 16];
    slow.read_exact(&mut reply).unwrap();
    assert_eq!(client.read(31 * MIB, MIB), Ok(vec![9; MIB as usize]));
}

fn huge_requests_of_many_clients_are_all_served(engine: Engine) {
    let server = server(engine, Timeouts::default());
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client("disk");
                let len = [32, 3, 8, 17][number as usize % 4] * MIB;
                let data = vec![number as u8 + 1; len as usize];
                for _ in 0..3 {
                    assert_eq!(client.write(0, &data), Ok(()));
                    assert_eq!(client.read(0, len).map(|data| data.len() as u64), Ok(len));
                }
            });
        }
    });
    // If a client disconnects while it waits or is served, the next one is served.
    for _ in 0..4 {
        let mut stream = connect_to(&server.socket, "disk");
        stream.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
        stream.write_all(&request(command::WRITE, 0, 1, 0, 32 << 20)).unwrap();
    }
    assert_eq!(server.client("disk").read(0, 32 * MIB).map(|data| data.len()), Ok(32 << 20));
}

fn a_client_that_does_not_fetch_is_dropped_when_others_wait_for_its_memory(engine: Engine) {
    let timeouts = Timeouts { fetch: Duration::from_secs(1), ..Timeouts::default() };
    // With less memory, the reply would not occupy the whole lane, see `pieces`.
    let config =
        RuntimeConfig { memory_bytes: 512 * MIB, start_bytes: 512 * MIB, ..Server::config(engine) };
    let server = Server::start_over(config, timeouts);
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    let mut deaf = connect_to(&server.socket, "disk");
    deaf.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
    // The first bytes were sent; the rest of the reply occupies the whole lane until it is fetched.
    deaf.read_exact(&mut [0; 16]).unwrap();
    let mut client = server.client("disk");
    assert_eq!(client.read(0, 32 * MIB).map(|data| data.len()), Ok(32 << 20));
    let mut rest = Vec::new();
    // The connection ends, maybe by a reset, before the whole reply was sent.
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.len() < 32 << 20, "{}", rest.len());
}

fn a_dirty_line_is_destaged_at_its_maximum_age(engine: Engine) {
    let server = server(engine, Timeouts { dirty_age: HANDSHAKE, ..Timeouts::default() });
    let mut client = server.client("disk");
    client.write(4096, &[7; 4096]).unwrap();
    wait_until("it is on the disk", PATIENCE, || {
        let status = server.status("disk");
        (status.dirty_bytes, status.requests.backend_writes()) == (0, 1)
    });
}
