//! Huge requests of a server with little memory, which carries them out in pieces.

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::raw::{connect_to, is_closed, request, simple_reply};
use crate::common::wait_until;
use crate::server::{Server, read_backend};
use forebay_backend::MemoryBackend;
use forebay_backend::layers::{ErrorLayer, ErrorRule, Kinds};
use forebay_nbd::NbdCommand;
use forebay_nbd::client::ExportConfig;
use forebay_nbd::proto::{command, command_flag};
use forebay_runtime::{Engine, Timeouts};
use forebay_types::{ByteRange, IoError, Mode};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    huge_requests_in_pieces_transfer_all_data,
    requests_around_a_huge_one_are_answered,
    a_huge_read_of_a_bad_sector_fails_and_keeps_the_stream_in_sync,
    a_huge_write_to_a_bad_sector_fails_and_keeps_the_stream_in_sync,
    a_read_that_fails_after_its_reply_has_begun_ends_the_connection,
    a_client_that_leaves_within_a_huge_payload_has_written_whole_pieces,
    a_client_that_has_stopped_sending_gets_its_huge_read,
    clients_that_do_not_read_and_occupy_the_lane_are_dropped,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;
/// Not aligned to pieces, and not a multiple of them.
const RANGE: ByteRange = ByteRange::new(MIB / 2 + 512, 31 * MIB + 1024);

/// Bytes that differ in every sector.
fn content(range: ByteRange, seed: u64) -> Vec<u8> {
    let word = |at: u64| (at / 512).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
    let words = (range.offset..range.end()).step_by(8).map(|at| word(at) ^ at);
    words.flat_map(u64::to_le_bytes).collect()
}

fn bad_disk(kinds: Kinds, at: u64) -> (Arc<MemoryBackend>, Arc<ErrorLayer>) {
    let disk = Arc::new(MemoryBackend::new(SIZE).unwrap());
    let range = Some(ByteRange::new(at, 512));
    let rule = ErrorRule { kinds, range, ..ErrorRule::default() };
    let bad = Arc::new(ErrorLayer::new(Arc::clone(&disk) as _, rule));
    (disk, bad)
}

/// Reads with a simple reply.
fn read_simple(stream: &mut (impl Read + Write), range: ByteRange) -> Result<Vec<u8>, u32> {
    let len = range.len as usize;
    stream.write_all(&request(command::READ, 0, 7, range.offset, len as u32)).unwrap();
    let (error, cookie) = simple_reply(stream);
    assert_eq!(cookie, 7);
    if error != 0 {
        return Err(error);
    }
    let mut data = vec![0; len];
    stream.read_exact(&mut data).unwrap();
    Ok(data)
}

fn huge_requests_in_pieces_transfer_all_data(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start(engine);
        let disk = server.add_memory("disk", SIZE, mode);
        let extended = ExportConfig { extended: true, ..config("disk") };
        let mut clients =
            [server.client("disk"), Client::enter(connect(&server.socket), &extended).unwrap()];
        for (seed, client) in (1..).zip(&mut clients) {
            let data = content(RANGE, seed);
            assert_eq!(client.write(RANGE.offset, &data), Ok(()), "{mode}");
            assert!(client.read(RANGE.offset, RANGE.len) == Ok(data.clone()), "{mode}");
            let answer = client.call(NbdCommand::Read, command_flag::DF, RANGE.offset, RANGE.len);
            assert!(answer.result == Ok(()) && answer.data == data, "in one chunk, {mode}");
            let mut stream = connect_to(&server.socket, "disk");
            assert!(read_simple(&mut stream, RANGE) == Ok(data.clone()), "{mode}");
            assert_eq!(client.flush(), Ok(()));
            assert!(read_backend(&*disk, RANGE.offset, RANGE.len) == data, "{mode}");
        }
        let whole = clients[0].read(0, 2 * MIB).unwrap();
        assert!(whole[..RANGE.offset as usize].iter().all(|&byte| byte == 0), "{mode}");
        // With a request for each piece.
        assert!(server.status("disk").requests.writes() >= 2 * 31, "{mode}");
    }
}

fn requests_around_a_huge_one_are_answered(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", SIZE, Mode::WriteBack);
    let mut client = server.client("disk");
    let data = content(RANGE, 5);
    let before = client.send(NbdCommand::Write, 0, SIZE - MIB, 4096, &[3; 4096]);
    let status = client.send(NbdCommand::BlockStatus, 0, 0, MIB, &[]);
    let huge = client.send(NbdCommand::Write, command_flag::FUA, RANGE.offset, RANGE.len, &data);
    let read = client.send(NbdCommand::Read, 0, RANGE.offset, RANGE.len, &[]);
    let after = client.send(NbdCommand::Read, 0, SIZE - MIB, 4096, &[]);
    for cookie in [before, status, huge] {
        assert_eq!(client.wait(cookie).result, Ok(()));
    }
    assert!(client.wait(read).data == data);
    assert_eq!(client.wait(after).data, [3; 4096]);
    // A payload of 2 MiB is not huge.
    assert_eq!(client.write(0, &vec![1; 2 << 20]), Ok(()));
    server.stop();
}

fn a_huge_read_of_a_bad_sector_fails_and_keeps_the_stream_in_sync(engine: Engine) {
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        for at in [RANGE.offset, 20 * MIB, RANGE.end() - 512] {
            let server = Server::start(engine);
            let (_, bad) = bad_disk(Kinds::READ, at);
            server.add("disk", bad, mode);
            let mut client = server.client("disk");
            assert_eq!(client.read(RANGE.offset, RANGE.len), Err(IoError::Io), "{mode} {at}");
            let answer = client.call(NbdCommand::Read, command_flag::DF, RANGE.offset, RANGE.len);
            assert_eq!(answer.result, Err(IoError::Io), "{mode} {at}");
            assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
            let mut stream = connect_to(&server.socket, "disk");
            assert_eq!(read_simple(&mut stream, RANGE), Err(5), "{mode} {at}");
            assert_eq!(read_simple(&mut stream, ByteRange::new(0, 512)), Ok(vec![0; 512]));
        }
    }
}

fn a_huge_write_to_a_bad_sector_fails_and_keeps_the_stream_in_sync(engine: Engine) {
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        for at in [RANGE.offset, 20 * MIB, RANGE.end() - 512] {
            let server = Server::start(engine);
            let (_, bad) = bad_disk(Kinds::WRITE, at);
            server.add("disk", bad, mode);
            let mut client = server.client("disk");
            let data = content(RANGE, 9);
            assert_eq!(client.write(RANGE.offset, &data), Err(IoError::Io), "{mode} {at}");
            let counters = server.status("disk").statistics.requests;
            assert_eq!((counters.errors, counters.refused), (1, 0), "{mode} {at}");
            assert_eq!(client.write(40 * MIB, &[7; 512]), Ok(()), "{mode} {at}");
            assert_eq!(client.read(40 * MIB, 512), Ok(vec![7; 512]), "{mode} {at}");
        }
    }
}

fn a_read_that_fails_after_its_reply_has_begun_ends_the_connection(engine: Engine) {
    let server = Server::start(engine);
    let (_, bad) = bad_disk(Kinds::READ, 20 * MIB);
    bad.set_enabled(false);
    server.add("disk", Arc::clone(&bad) as _, Mode::Bypass);
    let mut stream = connect_to(&server.socket, "disk");
    stream.write_all(&request(command::READ, 0, 7, 0, 32 << 20)).unwrap();
    assert_eq!(simple_reply(&mut stream), (0, 7), "all of it could be read before");
    // The server is at most a few pieces ahead of what was fetched.
    bad.set_enabled(true);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() <= 20 << 20, "{}", rest.len());
    assert!(rest.iter().all(|&byte| byte == 0));
}

fn a_client_that_leaves_within_a_huge_payload_has_written_whole_pieces(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start(engine);
        server.add_memory("disk", SIZE, mode);
        let mut other = server.client("disk");
        let mut stream = connect_to(&server.socket, "disk");
        stream.write_all(&request(command::WRITE, 0, 1, 0, 32 << 20)).unwrap();
        stream.write_all(&vec![9; (3 << 20) + 4096]).unwrap();
        wait_until("the pieces are written", PATIENCE, || {
            server.status("disk").requests.writes() == 3
        });
        drop(stream);
        wait_until("the client is removed", PATIENCE, || server.status("disk").connections == 1);
        assert!(other.read(0, 3 * MIB) == Ok(vec![9; 3 << 20]), "{mode}");
        assert!(other.read(3 * MIB, MIB) == Ok(vec![0; 1 << 20]), "not the incomplete one, {mode}");
        server.stop();
    }
}

fn a_client_that_has_stopped_sending_gets_its_huge_read(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", SIZE, Mode::Bypass);
    let mut other = server.client("disk");
    let data = content(RANGE, 3);
    assert_eq!(other.write(RANGE.offset, &data), Ok(()));
    let mut stream = connect_to(&server.socket, "disk");
    let len = RANGE.len as u32;
    stream.write_all(&request(command::READ, 0, 1, RANGE.offset, len)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(simple_reply(&mut stream), (0, 1));
    let mut read = vec![0; RANGE.len as usize];
    stream.read_exact(&mut read).unwrap();
    assert!(read == data && is_closed(&mut stream));
}

fn clients_that_do_not_read_and_occupy_the_lane_are_dropped(engine: Engine) {
    let timeouts = Timeouts { fetch: Duration::from_secs(1), ..Timeouts::default() };
    let server = Server::start_over(Server::config(engine), timeouts);
    server.add_memory("disk", SIZE, Mode::WriteBack);
    let mut deaf: Vec<_> = (0..4).map(|_| connect_to(&server.socket, "disk")).collect();
    for stream in &mut deaf {
        stream.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
    }
    let mut client = server.client("disk");
    assert_eq!(client.read(0, 32 * MIB).map(|data| data.len()), Ok(32 << 20));
    assert_eq!(client.write(0, &vec![1; 32 << 20]), Ok(()));
}
