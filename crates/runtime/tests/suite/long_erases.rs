//! Trims and writes of zeroes of long ranges.

use crate::journal::{JOURNAL_BYTES, add, memory, open, start};
use crate::server::Server;
use forebay_backend::{Backend, Description, Io, IoKind, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::Engine;
use forebay_types::Mode;
use std::sync::{Arc, Mutex};

on_both_engines! {
    a_tebibyte_is_trimmed_with_few_ios_and_records,
    zeroes_take_an_io_for_64_mib,
    data_in_the_pool_adds_no_io,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The longest request of a client in whole MiB.
const REQUEST_BYTES: u64 = 4 * GIB - MIB;

/// A large disk, which erases nothing and notes what it was to erase.
struct Large {
    store: MemoryBackend,
    erases: Mutex<Vec<(u64, u64)>>,
}

impl Large {
    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { store: MemoryBackend::new(bytes).unwrap(), erases: Mutex::default() })
    }

    /// The number of erases so far. Panics unless they cover the disk up to `end`, and no byte of
    /// it twice.
    fn check(&self, end: u64) -> u64 {
        let mut erases = self.erases.lock().unwrap();
        erases.sort_unstable();
        let covered = erases.iter().fold(0, |at, &(offset, len)| {
            assert_eq!(offset, at, "a gap, or an overlap");
            at + len
        });
        assert_eq!(covered, end);
        erases.len() as u64
    }
}

impl Backend for Large {
    fn description(&self) -> &Description {
        self.store.description()
    }

    fn submit(&self, io: Io) {
        match io.kind {
            IoKind::Discard | IoKind::Zero { .. } => {
                self.erases.lock().unwrap().push((io.offset, io.len));
                io.done.complete(Ok(()));
            }
            _ => self.store.submit(io),
        }
    }
}

fn a_tebibyte_is_trimmed_with_few_ios_and_records(engine: Engine) {
    let (server, journal_disk) = (start(engine), memory(JOURNAL_BYTES));
    let disk = Large::new(1024 * GIB);
    let journal = open(&server, journal_disk);
    add(&server, "disk", Arc::clone(&disk) as _, &journal);
    let mut client = server.client("disk");
    let mut requests = 0;
    for offset in (0..1024 * GIB).step_by(REQUEST_BYTES as usize) {
        let len = REQUEST_BYTES.min(1024 * GIB - offset);
        assert_eq!(client.call(NbdCommand::Trim, 0, offset, len).result, Ok(()));
        requests += 1;
    }
    let ios = disk.check(1024 * GIB);
    assert!(ios <= 5 * requests, "{ios} I/Os for {requests} requests");
    let counted = server.status("disk").requests.backend_erases;
    assert_eq!(counted, ios);
    let records = journal.status().usage.records;
    assert!(records <= ios, "{records} records for {ios} I/Os");
    server.stop();
}

fn zeroes_take_an_io_for_64_mib(engine: Engine) {
    let server = Server::start(engine);
    let disk = Large::new(16 * GIB);
    server.add("disk", disk.clone(), Mode::WriteThrough);
    let mut client = server.client("disk");
    for offset in (0..16 * GIB).step_by(2 << 30) {
        assert_eq!(client.call(NbdCommand::WriteZeroes, 0, offset, 2 * GIB).result, Ok(()));
    }
    assert_eq!(disk.check(16 * GIB), 16 * GIB / (64 * MIB));
    server.stop();
}

fn data_in_the_pool_adds_no_io(engine: Engine) {
    let server = Server::start(engine);
    let disk = Large::new(4 * GIB);
    server.add("disk", disk.clone(), Mode::WriteBack);
    let mut client = server.client("disk");
    let places = || (0..1000).map(|at| at * 4 * MIB);
    for offset in places() {
        assert_eq!(client.write(offset, &[7; 4096]), Ok(()));
    }
    for offset in (0..4 * GIB).step_by(2 << 30) {
        assert_eq!(client.call(NbdCommand::Trim, 0, offset, 2 * GIB).result, Ok(()));
    }
    assert!(disk.check(4 * GIB) <= 16, "{} I/Os", disk.check(4 * GIB));
    let status = server.status("disk");
    assert_eq!(status.dirty_bytes, 0, "the pool has nothing that was erased");
    let misses = status.requests.backend_reads();
    for offset in places() {
        assert!(client.read(offset, 4096).is_ok());
    }
    let read = server.status("disk").requests.backend_reads() - misses;
    assert!(read >= 1000, "only {read} reads of the disk");
    server.stop();
}
