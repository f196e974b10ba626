//! Clients that are slow on purpose, and what they can't do to others.

use crate::common::client::connect;
use crate::common::raw::{client_flags, enter, greeting, is_closed, request};
use crate::server::Server;
use forebay_nbd::proto::command;
use forebay_policy::PolicyKind;
use forebay_runtime::{Ecc, Engine, Patience, Runtime, RuntimeConfig};
use forebay_types::Mode;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

on_both_engines! {
    a_handshake_has_a_deadline,
    a_payload_that_stops_coming_has_a_deadline,
    a_payload_that_trickles_has_an_end,
    a_slow_writer_does_not_hold_up_the_others,
    huge_requests_of_many_clients_are_all_served,
    who_does_not_fetch_is_dropped_where_others_wait_for_the_room,
}

const MIB: u64 = 1 << 20;

/// A server that is not patient.
fn server(engine: Engine, memory_bytes: u64) -> Server {
    let (handshake, payload_pause) = (Duration::from_secs(1), Duration::from_secs(2));
    let policy = PolicyKind::default();
    let config = RuntimeConfig {
        memory_bytes,
        workers: 2,
        engine,
        policy,
        journals: 0,
        ecc: Ecc::default(),
    };
    let patience = Patience { handshake, payload_pause, ..Patience::default() };
    let server = Server::over(Runtime::start_with(config, patience).unwrap());
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    server
}

fn a_handshake_has_a_deadline(engine: Engine) {
    let server = server(engine, 64 * MIB);
    let mut entered = server.client("disk");
    let begin = Instant::now();
    let mut silent = [(); 3].map(|()| connect(&server.socket));
    for (number, stream) in silent.iter_mut().enumerate() {
        greeting(stream);
        stream.write_all(&client_flags()[..number * 2]).unwrap();
    }
    // One that keeps talking, byte by byte, is not spared.
    let mut talker = connect(&server.socket);
    greeting(&mut talker);
    talker.write_all(&client_flags()).unwrap();
    let chatter = crate::common::raw::option(999, &[0; 60_000]);
    for byte in chatter.chunks(1) {
        if talker.write_all(byte).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for stream in &mut silent {
        assert!(is_closed(stream));
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(entered.read(0, 512), Ok(vec![0; 512]), "who has entered may be silent");
}

fn a_payload_that_stops_coming_has_a_deadline(engine: Engine) {
    let server = server(engine, 64 * MIB);
    let mut stream = connect(&server.socket);
    enter(&mut stream, "disk");
    let begin = Instant::now();
    stream.write_all(&request(command::WRITE, 0, 1, 0, 65536)).unwrap();
    stream.write_all(&[9; 65535]).unwrap();
    assert!(is_closed(&mut stream));
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(server.client("disk").read(0, 65536), Ok(vec![0; 65536]), "it has no effect");
}

fn a_payload_that_trickles_has_an_end(engine: Engine) {
    let server = server(engine, 64 * MIB);
    let mut stream = connect(&server.socket);
    enter(&mut stream, "disk");
    let begin = Instant::now();
    stream.write_all(&request(command::WRITE, 0, 1, 0, 200 << 10)).unwrap();
    while stream.write_all(&[9]).is_ok() {
        std::thread::sleep(Duration::from_millis(100));
        assert!(begin.elapsed() < Duration::from_secs(30), "it goes on for ever");
    }
    assert!(begin.elapsed() >= Duration::from_secs(4), "it may be slow, but not too slow");
}

fn a_slow_writer_does_not_hold_up_the_others(engine: Engine) {
    let policy = PolicyKind::default();
    let config = RuntimeConfig {
        memory_bytes: 64 * MIB,
        workers: 1,
        engine,
        policy,
        journals: 0,
        ecc: Ecc::default(),
    };
    let server = Server::over(Runtime::start(config).unwrap());
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    let mut slow = connect(&server.socket);
    enter(&mut slow, "disk");
    slow.write_all(&request(command::WRITE, 0, 1, 0, 32 << 20)).unwrap();
    slow.write_all(&vec![9; 3 << 20]).unwrap();
    let mut client = server.client("disk");
    let begin = Instant::now();
    for n in 0..20u64 {
        assert_eq!(client.write((32 + n) * MIB, &vec![n as u8; MIB as usize]), Ok(()));
    }
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    slow.write_all(&vec![9; 29 << 20]).unwrap();
    let mut reply = [0; 16];
    slow.read_exact(&mut reply).unwrap();
    assert_eq!(client.read(31 * MIB, MIB), Ok(vec![9; MIB as usize]));
}

fn huge_requests_of_many_clients_are_all_served(engine: Engine) {
    let server = server(engine, 64 * MIB);
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
    // One that leaves while it waits or is served lets the next one in.
    for _ in 0..4 {
        let mut stream = connect(&server.socket);
        enter(&mut stream, "disk");
        stream.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
        stream.write_all(&request(command::WRITE, 0, 1, 0, 32 << 20)).unwrap();
    }
    assert_eq!(server.client("disk").read(0, 32 * MIB).map(|data| data.len()), Ok(32 << 20));
}

fn who_does_not_fetch_is_dropped_where_others_wait_for_the_room(engine: Engine) {
    let policy = PolicyKind::default();
    let config = RuntimeConfig {
        memory_bytes: 64 * MIB,
        workers: 2,
        engine,
        policy,
        journals: 0,
        ecc: Ecc::default(),
    };
    let patience = Patience { fetch: Duration::from_secs(1), ..Patience::default() };
    let server = Server::over(Runtime::start_with(config, patience).unwrap());
    server.add_memory("disk", 64 * MIB, Mode::WriteBack);
    let mut deaf = connect(&server.socket);
    enter(&mut deaf, "disk");
    deaf.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
    // The first bytes are there: the rest of them waits for us, and takes all the room there is.
    deaf.read_exact(&mut [0; 16]).unwrap();
    let begin = Instant::now();
    let mut client = server.client("disk");
    assert_eq!(client.read(0, 32 * MIB).map(|data| data.len()), Ok(32 << 20));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let mut rest = Vec::new();
    // It ends, by a reset perhaps, before all has come.
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.len() < 32 << 20, "{}", rest.len());
}
