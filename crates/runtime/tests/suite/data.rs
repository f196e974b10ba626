//! Reads return the data written last, in all modes, for all sizes, on all connections.

use crate::common::before_lines_are_old;
use crate::common::client::{Client, PATIENCE};
use crate::common::random::Random;
use crate::oracle::Oracle;
use crate::server::{Server, read_backend, settings};
use forebay_backend::layers::Blocks;
use forebay_backend::{Backend, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_nbd::proto::command_flag::{FUA, NO_HOLE};
use forebay_runtime::Engine;
use forebay_types::{ByteRange, Mode};
use std::sync::Arc;

on_both_engines! {
    random_requests_match_the_oracle_in_write_back,
    random_requests_match_the_oracle_in_write_through,
    random_requests_match_the_oracle_in_bypass,
    random_requests_match_the_oracle_in_order,
    modes_change_under_requests_in_flight,
    random_requests_match_the_oracle_with_several_shards,
    the_largest_requests_cross_regions_unharmed,
    requests_reach_the_last_sectors,
    a_flush_covers_the_writes_of_other_connections,
    two_writes_in_one_block_are_both_kept,
    random_requests_match_the_oracle_on_larger_blocks,
    trims_and_zeroes_below_a_block_are_honoured,
}

const MIB: u64 = 1 << 20;
/// Memory that leaves a pool of one slab of 2 MiB.
const TINY_BYTES: u64 = 16 * MIB;
/// Not a multiple of a line: the last line has three sectors.
const SIZE_BYTES: u64 = 24 * MIB + 3 * 512;
/// Bytes that each client may always have in flight.
const SHARE_BYTES: u64 = 256 << 10;
/// Requests that one run has in flight at the same time.
const IN_FLIGHT: usize = 24;

/// A request in flight.
struct Sent {
    client: usize,
    cookie: u64,
    command: NbdCommand,
    fua: bool,
    range: ByteRange,
    data: Vec<u8>,
}

/// Clients that send random requests to one volume, and the oracle that checks the answers.
struct Session<'a> {
    server: &'a Server,
    disk: Arc<MemoryBackend>,
    clients: Vec<Client>,
    oracle: Oracle,
    random: Random,
    in_flight: Vec<Sent>,
    mode: Mode,
}

impl<'a> Session<'a> {
    fn new(server: &'a Server, size_bytes: u64, mode: Mode, seed: u64) -> Self {
        let disk = server.add_memory("disk", size_bytes, mode);
        Self::over(server, disk, mode, seed)
    }

    fn in_order(server: &'a Server, size_bytes: u64, seed: u64) -> Self {
        let disk = Arc::new(MemoryBackend::new(size_bytes).unwrap());
        let settings = settings("disk", Arc::clone(&disk) as _, Mode::WriteBack);
        let mut settings = settings;
        settings.config.ordered = true;
        server.runtime.volumes().add(settings).unwrap();
        Self::over(server, disk, Mode::WriteBack, seed)
    }

    fn over(server: &'a Server, disk: Arc<MemoryBackend>, mode: Mode, seed: u64) -> Self {
        let size_bytes = disk.description().size_bytes();
        let clients = (0..4).map(|_| server.client("disk")).collect();
        let (oracle, random) = (Oracle::new(size_bytes), Random::new(seed));
        Self { server, disk, clients, oracle, random, in_flight: Vec::new(), mode }
    }

    /// A random range of a few lines, sometimes of several regions.
    fn range(&mut self) -> ByteRange {
        let sectors_max = if self.random.one_in(16) { 3 * 2048 } else { 64 };
        let mut offset = self.random.below(self.oracle.size() / 512);
        if self.random.one_in(2) {
            // Half of the requests overlap in a few places.
            offset = offset % 40 * 97 % (self.oracle.size() / 512);
        }
        let len = 1 + self.random.below(sectors_max);
        let len = len.min(self.oracle.size() / 512 - offset);
        ByteRange::new(offset * 512, len * 512)
    }

    fn step(&mut self) {
        let range = self.range();
        let command = match self.random.below(20) {
            0..9 => NbdCommand::Read,
            9..17 => NbdCommand::Write,
            17 => NbdCommand::WriteZeroes,
            18 => NbdCommand::Trim,
            _ => NbdCommand::Cache,
        };
        // Overlapping requests have no order if one is a write, so the earlier one is completed
        // first.
        while let Some(at) = self.in_flight.iter().position(|sent| {
            let either = command != NbdCommand::Read || sent.command != NbdCommand::Read;
            either && sent.range.overlaps(range)
        }) {
            self.finish(at);
        }
        while self.in_flight.len() >= IN_FLIGHT {
            let at = self.random.below(IN_FLIGHT as u64) as usize;
            self.finish(at);
        }
        let fua = self.random.one_in(8);
        let mut flags = if fua { FUA } else { 0 };
        if command == NbdCommand::WriteZeroes && self.random.one_in(2) {
            flags |= NO_HOLE;
        }
        let len = if command == NbdCommand::Write { range.len as usize } else { 0 };
        let data = self.random.bytes(len);
        let client = self.random.below(self.clients.len() as u64) as usize;
        self.make_room(client, range.len);
        let cookie = self.clients[client].send(command, flags, range.offset, range.len, &data);
        self.in_flight.push(Sent { client, cookie, command, fua, range, data });
    }

    /// Fetches answers until the server is sure to read further requests. A client that only sends
    /// while the server waits for it to receive would deadlock.
    fn make_room(&mut self, client: usize, len: u64) {
        loop {
            let is_of_client = |sent: &&Sent| sent.client == client;
            let bytes: u64 =
                self.in_flight.iter().filter(is_of_client).map(|sent| sent.range.len).sum();
            if bytes == 0 || bytes + len <= SHARE_BYTES {
                return;
            }
            let at = self.in_flight.iter().position(|sent| sent.client == client);
            self.finish(at.expect("a request of the client is in flight"));
        }
    }

    fn finish(&mut self, at: usize) {
        let sent = self.in_flight.swap_remove(at);
        let answer = self.clients[sent.client].wait(sent.cookie);
        assert_eq!(answer.result, Ok(()), "{:?} of {}", sent.command, sent.range);
        let ByteRange { offset, len } = sent.range;
        match sent.command {
            NbdCommand::Read => self.oracle.check(offset, &answer.data, "a client"),
            NbdCommand::Write => self.oracle.write(offset, &sent.data),
            NbdCommand::WriteZeroes => self.oracle.zero(offset, len),
            NbdCommand::Trim => self.oracle.trim(offset, len),
            _ => {}
        }
        if sent.fua && matches!(sent.command, NbdCommand::Write | NbdCommand::WriteZeroes) {
            self.check_disk(sent.range, "the disk after FUA");
        }
    }

    fn finish_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.finish(0);
        }
    }

    fn check_disk(&self, range: ByteRange, source: &str) {
        let bytes = read_backend(&*self.disk, range.offset, range.len);
        self.oracle.check(range.offset, &bytes, source);
    }

    /// Flushes on a random connection, and checks that the disk has all answered writes.
    fn flush(&mut self) {
        self.finish_all();
        let client = self.random.below(self.clients.len() as u64) as usize;
        assert_eq!(self.clients[client].flush(), Ok(()));
        self.check_disk(ByteRange::new(0, self.oracle.size()), "the disk after FLUSH");
    }

    fn change_mode(&mut self) {
        let others = Mode::ALL.into_iter().filter(|&mode| mode != self.mode);
        self.mode = others.collect::<Vec<_>>()[self.random.below(2) as usize];
        self.server.set_mode("disk", self.mode);
    }

    /// Sends a number of requests, then checks everything.
    fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            if self.random.one_in(300) {
                self.flush();
            }
        }
        self.check_all();
        self.flush();
    }

    /// Reads and checks the whole volume.
    fn check_all(&mut self) {
        self.finish_all();
        let mut offset = 0;
        while offset < self.oracle.size() {
            let len = MIB.min(self.oracle.size() - offset);
            let client = self.random.below(self.clients.len() as u64) as usize;
            let data = self.clients[client].read(offset, len).unwrap();
            self.oracle.check(offset, &data, "a client at the end");
            offset += len;
        }
    }
}

fn random_session(engine: Engine, memory_bytes: u64, size_bytes: u64, mode: Mode, steps: usize) {
    let server = Server::start_with(engine, memory_bytes, 2);
    let seed = mode as u64 + 1;
    let mut session = Session::new(&server, size_bytes, mode, seed);
    session.steps(steps);
    let (disk, oracle) = (Arc::clone(&session.disk), session.oracle);
    drop(session.clients);
    server.stop();
    oracle.check(0, &read_backend(&*disk, 0, size_bytes), "the disk after the end");
}

fn random_requests_match_the_oracle_in_write_back(engine: Engine) {
    random_session(engine, TINY_BYTES, SIZE_BYTES, Mode::WriteBack, 3000);
}

fn random_requests_match_the_oracle_in_write_through(engine: Engine) {
    random_session(engine, TINY_BYTES, SIZE_BYTES, Mode::WriteThrough, 3000);
}

fn random_requests_match_the_oracle_in_order(engine: Engine) {
    let server = Server::start_with(engine, TINY_BYTES, 2);
    let mut session = Session::in_order(&server, SIZE_BYTES, 7);
    session.steps(2000);
    // Modes without dirty data keep the order, too.
    for _ in 0..40 {
        session.change_mode();
        session.steps(25);
    }
    let (disk, oracle) = (Arc::clone(&session.disk), session.oracle);
    drop(session.clients);
    server.stop();
    oracle.check(0, &read_backend(&*disk, 0, SIZE_BYTES), "the disk after the end");
}

/// Fails if two writes to one block of a disk with large blocks run concurrently: each is a
/// read-modify-write, so the later one would undo the earlier one.
fn two_writes_in_one_block_are_both_kept(engine: Engine) {
    for block_bytes in [4096, 65_536] {
        for mode in Mode::ALL {
            let server = Server::start_with(engine, TINY_BYTES, 2);
            let disk = Arc::new(MemoryBackend::new(8 * MIB).unwrap());
            let blocks = Blocks::new(Arc::clone(&disk) as _, block_bytes).unwrap();
            server.add("disk", Arc::new(blocks), mode);
            let mut clients = [server.client("disk"), server.client("disk")];
            for block in 0..64 {
                let start = block * 65_536;
                let writes = [(start, 1), (start + 2560, 2)];
                let cookies = writes.map(|(offset, byte)| {
                    let client = &mut clients[byte as usize - 1];
                    client.send(NbdCommand::Write, 0, offset, 512, &[byte; 512])
                });
                for (client, cookie) in clients.iter_mut().zip(cookies) {
                    assert_eq!(client.wait(cookie).result, Ok(()));
                }
                assert_eq!(clients[0].flush(), Ok(()));
                let there = read_backend(&*disk, start, 4096);
                assert!(there[..512] == [1; 512], "{mode}, block {block}");
                assert!(there[2560..3072] == [2; 512], "{mode}, block {block}");
            }
        }
    }
}

/// Fails if trims and zeroes below a block are refused, for a disk with blocks larger than the
/// advertised 512 bytes.
fn trims_and_zeroes_below_a_block_are_honoured(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start_with(engine, TINY_BYTES, 2);
        let disk = Arc::new(MemoryBackend::new(8 * MIB).unwrap());
        let blocks = Blocks::new(Arc::clone(&disk) as _, 4096).unwrap();
        server.add("disk", Arc::new(blocks), mode);
        let mut client = server.client("disk");
        assert_eq!(client.write(0, &[7; 64 << 10]), Ok(()));
        let zeroes = ByteRange::new(512, 1024);
        assert_eq!(client.call(NbdCommand::WriteZeroes, 0, 512, 1024).result, Ok(()));
        let across = ByteRange::new(11 * 1024, 10 * 1024);
        let answer = client.call(NbdCommand::WriteZeroes, NO_HOLE, across.offset, across.len);
        assert_eq!(answer.result, Ok(()));
        // A trim covers only the blocks that lie entirely within it.
        assert_eq!(client.call(NbdCommand::Trim, 0, 32_256, 512).result, Ok(()));
        assert_eq!(client.call(NbdCommand::Trim, 0, 40_448, 9 * 1024).result, Ok(()));
        let trimmed = ByteRange::new(40_960, 8192);
        assert_eq!(client.flush(), Ok(()));
        let read = client.read(0, 64 << 10).unwrap();
        for (source, bytes) in [("a client", read), ("the disk", read_backend(&*disk, 0, 64 << 10))]
        {
            for (at, sector) in bytes.chunks(512).enumerate() {
                let place = ByteRange::new(at as u64 * 512, 512);
                let is_zero = zeroes.overlaps(place) || across.overlaps(place);
                let expected = if is_zero { 0 } else { 7 };
                let is_right = trimmed.overlaps(place) || *sector == [expected; 512];
                assert!(is_right, "{mode}, {place}: {} from {source}", sector[0]);
            }
        }
    }
}

fn random_requests_match_the_oracle_on_larger_blocks(engine: Engine) {
    for (block_bytes, mode) in [
        (4096, Mode::WriteBack),
        (4096, Mode::WriteThrough),
        (4096, Mode::Bypass),
        (65_536, Mode::WriteBack),
        (65_536, Mode::WriteThrough),
    ] {
        let server = Server::start_with(engine, TINY_BYTES, 2);
        let size_bytes = 24 * MIB;
        let disk = Arc::new(MemoryBackend::new(size_bytes).unwrap());
        let blocks = Blocks::new(Arc::clone(&disk) as _, block_bytes).unwrap();
        server.add("disk", Arc::new(blocks), mode);
        let seed = u64::from(block_bytes) + mode as u64;
        let mut session = Session::over(&server, Arc::clone(&disk), mode, seed);
        session.steps(1500);
        let oracle = session.oracle;
        drop(session.clients);
        server.stop();
        oracle.check(0, &read_backend(&*disk, 0, size_bytes), "the disk after the end");
    }
}

fn random_requests_match_the_oracle_in_bypass(engine: Engine) {
    random_session(engine, TINY_BYTES, SIZE_BYTES, Mode::Bypass, 3000);
}

fn random_requests_match_the_oracle_with_several_shards(engine: Engine) {
    random_session(engine, 128 * MIB, 96 * MIB + 512, Mode::WriteBack, 1500);
}

fn modes_change_under_requests_in_flight(engine: Engine) {
    let server = Server::start_with(engine, TINY_BYTES, 2);
    let mut session = Session::new(&server, SIZE_BYTES, Mode::WriteBack, 99);
    for step in 0..3000 {
        session.step();
        if step % 25 == 24 {
            session.change_mode();
        }
    }
    session.check_all();
    session.flush();
}

fn the_largest_requests_cross_regions_unharmed(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start_with(engine, TINY_BYTES, 2);
        let size_bytes = 70 * MIB;
        let mut session = Session::new(&server, size_bytes, mode, 5);
        let largest = 32 * MIB;
        for (client, offset) in [(0, 0), (1, 512), (2, 7 * MIB + 1536), (3, size_bytes - largest)] {
            let data = session.random.bytes(largest as usize);
            assert_eq!(session.clients[client].write(offset, &data), Ok(()));
            session.oracle.write(offset, &data);
            let back = session.clients[(client + 1) % 4].read(offset, largest).unwrap();
            session.oracle.check(offset, &back, "a read of 32 MiB");
        }
        let answer = session.clients[0].call(NbdCommand::WriteZeroes, 0, MIB / 2, 60 * MIB);
        assert_eq!(answer.result, Ok(()), "zeroes carry no payload and may be longer");
        session.oracle.zero(MIB / 2, 60 * MIB);
        let answer = session.clients[1].call(NbdCommand::Trim, 0, 0, size_bytes);
        assert_eq!(answer.result, Ok(()));
        session.oracle.trim(0, size_bytes);
        let data = session.random.bytes(largest as usize);
        assert_eq!(session.clients[2].write_fua(3 * 512, &data), Ok(()));
        session.oracle.write(3 * 512, &data);
        session.check_disk(ByteRange::new(0, size_bytes), "the disk after FUA");
        session.check_all();
    }
}

fn requests_reach_the_last_sectors(engine: Engine) {
    for mode in Mode::ALL {
        for size_bytes in [512, 1536, 4096, 4608, MIB - 512, MIB + 512, SIZE_BYTES] {
            let server = Server::start_with(engine, TINY_BYTES, 1);
            let disk = server.add_memory("disk", size_bytes, mode);
            let (mut a, mut b) = (server.client("disk"), server.client("disk"));
            let last = size_bytes - 512;
            assert_eq!(a.read(last, 512), Ok(vec![0; 512]));
            assert_eq!(a.write(last, &[7; 512]), Ok(()));
            assert_eq!(b.read(last, 512), Ok(vec![7; 512]));
            let from = size_bytes.saturating_sub(8192);
            assert_eq!(
                b.read(from, size_bytes - from).unwrap()[(last - from) as usize..],
                [7; 512]
            );
            assert_eq!(b.flush(), Ok(()));
            assert_eq!(read_backend(&*disk, last, 512), [7; 512]);
        }
    }
}

fn a_flush_covers_the_writes_of_other_connections(engine: Engine) {
    before_lines_are_old(|| write_and_flush_on_different_connections(engine));
}

fn write_and_flush_on_different_connections(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 8 * MIB, Mode::WriteBack);
    let mut clients: Vec<Client> = (0..8).map(|_| server.client("disk")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.write(number as u64 * 4096, &[number as u8 + 1; 4096]), Ok(()));
    }
    // a write answered on one connection is visible on all.
    for client in &mut clients {
        let data = client.read(0, 8 * 4096).unwrap();
        assert!(data.chunks(4096).enumerate().all(|(n, line)| line == [n as u8 + 1; 4096]));
    }
    assert_eq!(server.status("disk").dirty_bytes, 8 * 4096, "nothing has gone to the disk yet");
    assert_eq!(clients[3].flush(), Ok(()));
    let data = read_backend(&*disk, 0, 8 * 4096);
    assert!(data.chunks(4096).enumerate().all(|(n, line)| line == [n as u8 + 1; 4096]));
    assert_eq!(server.status("disk").dirty_bytes, 0);
    crate::common::wait_until("clients are counted", PATIENCE, || {
        server.status("disk").connections == 8
    });
}
