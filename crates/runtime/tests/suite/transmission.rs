//! Invalid requests, disconnects, and clients that never read.

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::random::Random;
use crate::common::raw::{
    client_flags, connect_to, enter, go_data, greeting, is_closed, option, request, simple_reply,
};
use crate::common::wait_until;
use crate::server::{Server, in_mode, read_backend, settings};
use forebay_backend::MemoryBackend;
use forebay_backend::layers::Kinds;
use forebay_nbd::NbdCommand;
use forebay_nbd::client::ExportConfig;
use forebay_nbd::proto::{self, command, command_flag};
use forebay_runtime::Engine;
use forebay_types::{IoError, IoResult, Mode, VolumeConfig};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    invalid_requests_get_their_errors_and_keep_the_stream_in_sync,
    an_out_of_range_request_may_follow_at_once,
    a_read_only_export_refuses_every_write,
    block_status_reports_allocation,
    extended_headers_carry_everything,
    a_disconnect_waits_for_requests_in_flight,
    a_client_that_vanishes_within_a_payload_changes_nothing,
    long_payloads_cut_anywhere_arrive_whole_between_short_requests,
    payloads_that_wait_for_memory_all_arrive,
    a_connection_over_its_share_does_not_block_later_ones,
    a_client_that_never_reads_does_not_delay_other_clients,
    a_broken_stream_ends_its_connection_only,
    garbage_ends_only_its_own_session,
}

const MIB: u64 = 1 << 20;

fn invalid_requests_get_their_errors_and_keep_the_stream_in_sync(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 80 * MIB, Mode::WriteThrough);
    for extended in [false, true] {
        let options = ExportConfig { extended, ..config("disk") };
        let mut client = Client::enter(connect(&server.socket), &options).unwrap();
        let size = client.opened.size_bytes;
        let largest = 32 * MIB;
        let wrong: [(NbdCommand, u16, u64, u64, IoError); 16] = [
            (NbdCommand::Read, 0, 1, 512, IoError::Invalid),
            (NbdCommand::Read, 0, 0, 513, IoError::Invalid),
            (NbdCommand::Read, 0, size, 512, IoError::Invalid),
            (NbdCommand::Read, 0, u64::MAX - 511, 512, IoError::Invalid),
            (NbdCommand::Read, 0, 0, largest + 512, IoError::Overflow),
            (NbdCommand::Read, command_flag::NO_HOLE, 0, 512, IoError::Invalid),
            (NbdCommand::Read, 1 << 9, 0, 512, IoError::Invalid),
            (NbdCommand::Write, 0, 1, 512, IoError::Invalid),
            (NbdCommand::Write, 0, size - 512, 1024, IoError::NoSpace),
            (NbdCommand::Write, 0, 0, largest + 512, IoError::Invalid),
            (NbdCommand::Write, command_flag::DF, 0, 512, IoError::Invalid),
            (NbdCommand::WriteZeroes, 0, size, 512, IoError::NoSpace),
            (NbdCommand::Trim, 0, size - 512, 1024, IoError::Invalid),
            (NbdCommand::Trim, 0, 3, 512, IoError::Invalid),
            (NbdCommand::Flush, 0, 512, 512, IoError::Invalid),
            (NbdCommand::BlockStatus, 0, size, 512, IoError::Invalid),
        ];
        for (command, flags, offset, len, error) in wrong {
            let data = if command == NbdCommand::Write { vec![1; len as usize] } else { vec![] };
            let cookie = client.send(command, flags, offset, len, &data);
            let answer = client.wait(cookie);
            assert_eq!(answer.result, Err(error), "{command:?} {flags} {offset}+{len}");
            assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "the stream is in sync");
        }
    }
    // Commands that do not exist.
    let mut stream = connect_to(&server.socket, "disk");
    for (number, cookie) in [(8, 1), (9, 2), (4711, 3), (u16::MAX, 4)] {
        stream.write_all(&request(number, 0, cookie, 0, 512)).unwrap();
        assert_eq!(simple_reply(&mut stream), (22, cookie));
    }
    // requests of length zero are unspecified, but the connection stays.
    for number in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        stream.write_all(&request(number, 0, 9, 0, 0)).unwrap();
        assert_eq!(simple_reply(&mut stream).1, 9);
    }
    assert!(server.status("disk").requests.errors >= 40);
}

/// While a request is answered, the lines of the next ones are prefetched before they are
/// validated.
fn an_out_of_range_request_may_follow_at_once(engine: Engine) {
    // Enough memory for several shards, so that the invalid offsets are mapped to shards.
    let server = Server::start_with(engine, 256 * MIB, 2);
    let disk = Arc::new(MemoryBackend::new(8 * MIB).unwrap());
    let mut volume = settings("disk", disk, Mode::WriteThrough);
    volume.geometry.stripe_bytes = 768 << 10;
    volume.geometry.offset_bytes = 64 << 10;
    server.runtime.volumes().add(volume).unwrap();
    let mut stream = connect_to(&server.socket, "disk");
    let offsets = [0, u64::MAX - 511, u64::MAX, 0];
    let requests = offsets.iter().zip(0..);
    let bytes = requests.flat_map(|(&at, cookie)| request(command::READ, 0, cookie, at, 512));
    stream.write_all(&bytes.collect::<Vec<u8>>()).unwrap();
    let mut errors = [u32::MAX; 4];
    for _ in offsets {
        let (error, cookie) = simple_reply(&mut stream);
        errors[cookie as usize] = error;
        if error == 0 {
            stream.read_exact(&mut [0; 512]).unwrap();
        }
    }
    assert_eq!(errors.map(|error| error != 0), [false, true, true, false], "{errors:?}");
}

fn a_read_only_export_refuses_every_write(engine: Engine) {
    let server = Server::start(engine);
    let disk = Arc::new(MemoryBackend::new(MIB).unwrap());
    let mut volume = settings("disk", Arc::clone(&disk) as _, Mode::WriteBack);
    volume.config.read_only = true;
    server.runtime.volumes().add(volume).unwrap();
    let refused = |client: &mut Client| -> Vec<IoResult> {
        let write = client.write(0, &[1; 4096]);
        let zero = client.call(NbdCommand::WriteZeroes, 0, 0, 4096).result;
        vec![write, zero, client.call(NbdCommand::Trim, 0, 0, 4096).result]
    };
    let mut client = server.client("disk");
    assert!(client.opened.is_read_only());
    assert_eq!(refused(&mut client), vec![Err(IoError::NotPermitted); 3]);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    assert_eq!(client.flush(), Ok(()));
    // Made read-only after a client has entered the export as writable.
    server.add_memory("late", MIB, Mode::WriteBack);
    let mut client = server.client("late");
    assert_eq!(client.write(0, &[2; 4096]), Ok(()));
    let change = VolumeConfig { read_only: true, ..in_mode(Mode::WriteBack) };
    server.runtime.volumes().change("late", change, false).unwrap();
    assert_eq!(refused(&mut client), vec![Err(IoError::NotPermitted); 3]);
    assert_eq!(client.read(0, 4096), Ok(vec![2; 4096]));
    assert!(server.client("late").opened.is_read_only());
}

fn block_status_reports_allocation(engine: Engine) {
    let server = Server::start(engine);
    let path = server.directory.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let options = forebay_backend::OpenOptions::default();
    let disk = forebay_backend::open(&path.display().to_string(), &options).unwrap();
    server.add("disk", disk, Mode::WriteBack);
    let mut client = server.client("disk");
    let hole = |len| forebay_nbd::Extent { len, hole: true, zero: true };
    let data = |len| forebay_nbd::Extent { len, hole: false, zero: false };
    assert_eq!(client.block_status(0, 4 * MIB), Ok(vec![hole(4 * MIB)]));
    assert_eq!(client.write(MIB, &[1; 65536]), Ok(()));
    // The file still has a hole there, but dirty data in the pool must not be reported as a hole.
    let said = client.block_status(MIB, 65536).unwrap();
    assert!(said.iter().all(|extent| !extent.hole && !extent.zero), "{said:?}");
    // The rest is as the file says.
    let said = client.block_status(0, 4 * MIB).unwrap();
    assert_eq!(said, [hole(MIB), data(65536), hole(3 * MIB - 65536)]);
    assert_eq!(client.flush(), Ok(()));
    let said = client.block_status(0, 4 * MIB).unwrap();
    assert_eq!(said, [hole(MIB), data(65536), hole(3 * MIB - 65536)]);
    let one = client.call(NbdCommand::BlockStatus, command_flag::REQ_ONE, 0, 4 * MIB);
    assert_eq!(one.extents, [hole(MIB)]);
    assert_eq!(client.call(NbdCommand::WriteZeroes, 0, MIB, MIB).result, Ok(()));
    assert_eq!(client.read(MIB, 65536), Ok(vec![0; 65536]));
    let total: u64 = client.block_status(0, 4 * MIB).unwrap().iter().map(|e| e.len).sum();
    assert_eq!(total, 4 * MIB);
}

fn extended_headers_carry_everything(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 8 * MIB, Mode::WriteBack);
    let options = ExportConfig { extended: true, ..config("disk") };
    let mut client = Client::enter(connect(&server.socket), &options).unwrap();
    assert!(client.opened.extended);
    assert_eq!(client.write(512, &[7; 70_144]), Ok(()));
    assert_eq!(client.read(1024, 4096), Ok(vec![7; 4096]));
    assert_eq!(client.call(NbdCommand::WriteZeroes, 0, 0, 1024).result, Ok(()));
    assert_eq!(client.flush(), Ok(()));
    assert_eq!(read_backend(&*disk, 512, 1024)[..512], [0; 512]);
    assert_eq!(
        client.block_status(0, 8 * MIB).unwrap().iter().map(|e| e.len).sum::<u64>(),
        8 * MIB
    );
    client.disconnect();
}

fn a_disconnect_waits_for_requests_in_flight(engine: Engine) {
    let server = Server::start(engine);
    let (gate, disk) = server.add_gated("disk", MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    gate.close(Kinds::ALL);
    let cookies: Vec<u64> = (0..8u8)
        .map(|n| client.send(NbdCommand::Write, 0, u64::from(n) * 65536, 4096, &[n + 1; 4096]))
        .collect();
    let read = client.send(NbdCommand::Read, 0, 32768, 4096, &[]);
    client.send(NbdCommand::Disconnect, 0, 0, 0, &[]);
    assert!(gate.wait_held(2, PATIENCE));
    gate.open();
    // C-03: all requests are carried out; this server also answers them.
    for cookie in cookies {
        assert_eq!(client.wait(cookie).result, Ok(()));
    }
    assert_eq!(client.wait(read).data, [0; 4096]);
    assert!(client.try_wait(4711).is_none(), "the connection ends after the answers");
    assert_eq!(read_backend(&*disk, 7 * 65536, 4096), [8; 4096]);
}

fn a_client_that_vanishes_within_a_payload_changes_nothing(engine: Engine) {
    for mode in Mode::ALL {
        // With less memory, the pieces of a huge payload are written one by one, see `pieces`.
        let server = Server::start_with(engine, 512 * MIB, 2);
        let disk = server.add_memory("disk", 40 * MIB, mode);
        let mut other = server.client("disk");
        assert_eq!(other.write(0, &[5; 8192]), Ok(()));
        for (len, sent) in [(4096, 0), (4096, 100), (4096, 4095), (32 << 20, 3 << 20)] {
            let mut stream = connect_to(&server.socket, "disk");
            stream.write_all(&request(command::WRITE, 0, 1, 0, len)).unwrap();
            stream.write_all(&vec![9; sent]).unwrap();
        }
        wait_until("the clients are removed", PATIENCE, || server.status("disk").connections == 1);
        assert_eq!(other.read(0, 8192), Ok(vec![5; 8192]), "{mode}");
        assert_eq!(other.flush(), Ok(()));
        assert_eq!(read_backend(&*disk, 0, 8192), [5; 8192]);
    }
}

fn long_payloads_cut_anywhere_arrive_whole_between_short_requests(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let mut random = Random::new(5);
    let mut expected = vec![0; 16 << 20];
    for extended in [false, true] {
        let options = ExportConfig { extended, ..config("disk") };
        let mut client = Client::enter(connect(&server.socket), &options).unwrap();
        let flags = if extended { command_flag::PAYLOAD_LEN } else { 0 };
        for _ in 0..20 {
            let (mut bytes, mut cookies) = (Vec::new(), Vec::new());
            for part in 0..6 {
                let sectors = [1, 8, 64, 65, 128, 333, 2048, 5000][random.below(8) as usize];
                let len = sectors * 512;
                // Each in its own part of the disk, as overlapping writes have no order.
                let offset = (part * 5400 + random.below(5400 - sectors)) * 512;
                let payload = random.bytes(len as usize);
                cookies.push(client.put(NbdCommand::Write, flags, offset, len, &mut bytes));
                bytes.extend_from_slice(&payload);
                expected[offset as usize..][..len as usize].copy_from_slice(&payload);
                if random.one_in(3) {
                    cookies.push(client.put(NbdCommand::Read, 0, offset, 512, &mut bytes));
                }
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let longest = [64, 40_000, 400_000][random.below(3) as usize];
                let len = 1 + random.below(longest);
                let (piece, after) = rest.split_at(rest.len().min(len as usize));
                client.stream.write_all(piece).unwrap();
                rest = after;
                if random.one_in(8) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            for cookie in cookies {
                assert_eq!(client.wait(cookie).result, Ok(()));
            }
        }
        assert!(client.read(0, 16 * MIB).unwrap() == expected, "extended: {extended}");
    }
}

/// Fails if the connection of a payload that waited for memory is not resumed once the memory is
/// granted.
fn payloads_that_wait_for_memory_all_arrive(engine: Engine) {
    let server = Server::start_with(engine, 16 * MIB, 2);
    server.add_memory("disk", 64 * MIB, Mode::Bypass);
    std::thread::scope(|scope| {
        for number in 0..6u64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client("disk");
                let data = vec![number as u8; 2_000_000 / 512 * 512];
                for _ in 0..60 {
                    assert_eq!(client.write(number * 4 * MIB, &data), Ok(()));
                }
            });
        }
    });
}

/// Fails if the first connection in the queue for memory blocks all later ones, when new clients
/// have reduced its share so that its request cannot be granted.
fn a_connection_over_its_share_does_not_block_later_ones(engine: Engine) {
    let server = Server::start_with(engine, 16 * MIB, 1);
    let (gate, _) = server.add_gated("disk", 64 * MIB, Mode::Bypass);
    let payload = vec![7; 900 << 10];
    let begun = |offset: u64| {
        let header = request(command::WRITE, 0, 1, offset, payload.len() as u32);
        [&header[..], &payload[..100 << 10]].concat()
    };
    // Takes the memory, and keeps it until its payload is complete.
    let mut holder = connect_to(&server.socket, "disk");
    holder.write_all(&begun(0)).unwrap();
    // Waits for memory, with a read in flight that the disk does not complete.
    gate.close(Kinds::READ);
    let mut first = connect_to(&server.socket, "disk");
    first.write_all(&request(command::READ, 0, 2, 0, 1 << 20)).unwrap();
    assert!(gate.wait_held(1, PATIENCE));
    first.write_all(&begun(8 * MIB)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let many: Vec<_> = (0..16).map(|_| server.client("disk")).collect();
    let mut second = server.client("disk");
    std::thread::scope(|scope| {
        let data = &payload;
        let writer = scope.spawn(move || second.write(16 * MIB, data));
        std::thread::sleep(Duration::from_millis(100));
        holder.write_all(&payload[100 << 10..]).unwrap();
        assert_eq!(writer.join().unwrap(), Ok(()));
    });
    gate.open();
    drop((many, first));
}

fn a_client_that_never_reads_does_not_delay_other_clients(engine: Engine) {
    // All clients share one worker and a pool of one slab.
    let server = Server::start_with(engine, 16 * MIB, 1);
    server.add_memory("disk", 64 * MIB, Mode::WriteThrough);
    let mut deaf: Vec<_> = (0..4).map(|_| connect(&server.socket)).collect();
    for stream in &mut deaf {
        enter(stream, "disk");
        let mut bytes = Vec::new();
        for n in 0..2000 {
            bytes.extend_from_slice(&request(command::READ, 0, n, n % 60 * MIB, 1 << 20));
        }
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        // The server stops reading from it at some point.
        let _ = stream.write_all(&bytes);
    }
    let mut client = server.client("disk");
    for n in 0..200u64 {
        let data = vec![n as u8; 65536];
        assert_eq!(client.write(n * 65536, &data), Ok(()));
        assert_eq!(client.read(n * 65536, 65536), Ok(data));
    }
    assert_eq!(client.flush(), Ok(()));
    drop(deaf);
    wait_until("the clients are removed", PATIENCE, || server.status("disk").connections == 1);
    assert_eq!(client.read(0, MIB).map(|data| data.len() as u64), Ok(MIB));
}

fn a_broken_stream_ends_its_connection_only(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", MIB, Mode::WriteBack);
    let mut other = server.client("disk");
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n".to_vec(),
        // the server does not wait for a payload that is too long.
        request(command::WRITE, 0, 1, 0, u32::MAX),
        [request(command::FLUSH, 0, 1, 0, 0), vec![0xff; 28]].concat(),
    ] {
        let mut stream = connect_to(&server.socket, "disk");
        stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() <= 16, "at most the answer to the valid request");
        assert_eq!(other.write(0, &[1; 512]), Ok(()));
    }
    let mut stream = connect(&server.socket);
    greeting(&mut stream);
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
    assert!(is_closed(&mut stream), "a TLS hello on a plain socket");
}

/// A session with every kind of request, as the base of mutations.
fn whole_session(random: &mut Random) -> Vec<u8> {
    let mut session = client_flags();
    if random.one_in(2) {
        session.extend_from_slice(&option(proto::option::STRUCTURED_REPLY, &[]));
    }
    if random.one_in(3) {
        session.extend_from_slice(&option(proto::option::LIST, &[]));
    }
    session.extend_from_slice(&option(proto::option::GO, &go_data("disk", &[3])));
    for cookie in 0..random.below(12) {
        let number = random.below(9) as u16;
        let (offset, len) = (random.below(2000) * 512, 512 * random.below(16) as u32);
        let flags = if random.one_in(4) { 1 } else { 0 };
        session.extend_from_slice(&request(number, flags, cookie, offset, len));
        if number == command::WRITE {
            session.extend_from_slice(&vec![cookie as u8; len as usize]);
        }
    }
    session
}

fn mutate(session: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(4) {
        let at = random.below(session.len() as u64) as usize;
        match random.below(5) {
            0 => session[at] ^= 1 << random.below(8),
            1 => session[at] = random.next() as u8,
            2 => session.truncate(at.max(1)),
            3 => {
                let end = (at + random.below(40) as usize).min(session.len());
                session.drain(at..end);
            }
            _ => {
                let len = random.below(40) as usize;
                let bytes = random.bytes(len);
                session.splice(at..at, bytes);
            }
        }
        if session.is_empty() {
            return;
        }
    }
}

/// Sends `count` mutated sessions, and reads the replies.
fn garbage(server: &Server, count: u64, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..count {
        let mut session = whole_session(&mut random);
        mutate(&mut session, &mut random);
        let mut stream = connect(&server.socket);
        if stream.write_all(&session).is_err() {
            continue;
        }
        if random.one_in(3) {
            continue;
        }
        // After the end of the input, the server closes the connection sooner or later.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut sink = [0; 65536];
        while matches!(stream.read(&mut sink), Ok(1..)) {}
    }
}

fn garbage_ends_only_its_own_session(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", MIB, Mode::WriteBack);
    server.add_memory("other", MIB, Mode::WriteBack);
    let mut other = server.client("other");
    assert_eq!(other.write(0, &[7; 4096]), Ok(()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let server = &server;
            scope.spawn(move || garbage(server, 10_000, thread));
        }
        for _ in 0..200 {
            assert_eq!(other.read(0, 4096), Ok(vec![7; 4096]));
        }
    });
    wait_until("all are gone", PATIENCE, || server.runtime.status().unwrap().connections == 1);
    assert_eq!(other.read(0, 4096), Ok(vec![7; 4096]));
    assert_eq!(other.flush(), Ok(()));
    server.stop();
}
