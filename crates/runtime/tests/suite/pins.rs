//! Pinned ranges on a disk that answers when the test says so.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::Server;
use forebay_backend::MemoryBackend;
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, PinError, PinStatus, ResizeError, VolumeError, WarmLists};
use forebay_types::{ByteRange, IoError, Mode, PinnedRanges};
use std::io;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LINE: u64 = 4096;
const SIZE: u64 = 16 * MIB;

on_both_engines! {
    ranges_are_read_while_clients_use_them,
    pins_end_with_their_volume,
    a_disk_that_fails_fails_no_request_because_of_pins,
    a_resize_keeps_what_is_pinned,
}

/// No warm lists.
pub struct NoLists;

impl WarmLists for NoLists {
    fn read(&self, _: &str, _: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn write(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

fn start(engine: Engine) -> Server {
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::new(NoLists));
    server
}

/// A server with a volume behind a gate that is closed for reads, and the first MiB pinned.
fn started(engine: Engine) -> (Server, Arc<Gate>) {
    let server = start(engine);
    let (gate, _) = server.add_gated("disk", SIZE, Mode::WriteThrough);
    gate.close(Kinds::READ);
    server.runtime.volumes().set_pins("disk", &pins(&[(0, MIB)])).unwrap();
    wait_until("reads of pinned ranges are in flight", PATIENCE, || !gate.held().is_empty());
    (server, gate)
}

fn pins(ranges: &[(u64, u64)]) -> PinnedRanges {
    let mut pins = PinnedRanges::default();
    ranges.iter().for_each(|&(offset, len)| pins.add(ByteRange::new(offset, len)));
    pins
}

fn status(server: &Server) -> PinStatus {
    server.status("disk").pins
}

fn wait_until_loaded(server: &Server) {
    wait_until("everything is loaded", PATIENCE, || {
        let PinStatus { pinned_lines, loaded_lines, .. } = status(server);
        loaded_lines == pinned_lines
    });
}

fn ranges_are_read_while_clients_use_them(engine: Engine) {
    let (server, gate) = started(engine);
    let mut client = server.client("disk");
    // A client reads and writes lines that are being read, and others of the range.
    let read = client.send(NbdCommand::Read, 0, 0, 8 * LINE, &[]);
    let last = MIB - 4 * LINE;
    assert_eq!(client.write(last, &[7; 4 * LINE as usize]), Ok(()));
    let first = client.send(NbdCommand::Write, 0, 0, 512, &[9; 512]);
    // The ranges change before they are read.
    server
        .runtime
        .volumes()
        .set_pins("disk", &pins(&[(0, MIB / 2), (MIB / 2, MIB / 2), (4 * MIB, 1)]))
        .unwrap();
    gate.open();
    assert_eq!(client.wait(read).result, Ok(()));
    assert_eq!(client.wait(first).result, Ok(()));
    wait_until_loaded(&server);
    assert_eq!(status(&server).pinned_lines, MIB / LINE + 1);
    let mut expected = vec![0; LINE as usize];
    expected[..512].fill(9);
    assert_eq!(client.read(0, LINE).unwrap(), expected);
    assert_eq!(client.read(last, 4 * LINE).unwrap(), [7; 4 * LINE as usize]);
    assert_eq!(server.status("disk").engine.preloaded_lines, 0);
    drop(client);
    server.stop();
}

fn pins_end_with_their_volume(engine: Engine) {
    let (server, gate) = started(engine);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| server.runtime.volumes().remove("disk", |_| {}));
        wait_until("the volume is being removed", PATIENCE, || {
            removal.is_finished() || server.status("disk").is_closed
        });
        gate.open();
        removal.join().unwrap().unwrap();
    });
    assert!(gate.held().is_empty());
    assert_eq!(server.runtime.status().unwrap().memory.pinned_bytes, 0);
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    server.client("disk").read(0, LINE).unwrap();
    assert_eq!(status(&server), PinStatus::default());
    // A stop waits for reads in flight and for nothing else.
    gate.close(Kinds::READ);
    server.runtime.volumes().set_pins("disk", &pins(&[(0, 8 * MIB)])).unwrap();
    wait_until("reads of pinned ranges are in flight", PATIENCE, || !gate.held().is_empty());
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| server.runtime.stop(|_| {}));
        wait_until("the server is stopping", PATIENCE, || stop.is_finished() || !server.accepts());
        gate.open();
        stop.join().unwrap().unwrap();
    });
}

fn a_disk_that_fails_fails_no_request_because_of_pins(engine: Engine) {
    let server = start(engine);
    let rule = ErrorRule {
        kinds: Kinds::READ,
        range: Some(ByteRange::new(0, SIZE / 2)),
        after: 0,
        rate: 1.0,
        error: IoError::Io,
        seed: 0,
    };
    let disk = ErrorLayer::new(Arc::new(MemoryBackend::new(SIZE).unwrap()), rule);
    server.add("disk", Arc::new(disk), Mode::WriteThrough);
    server.runtime.volumes().set_pins("disk", &pins(&[(0, 2 * MIB), (SIZE / 2, MIB)])).unwrap();
    wait_until("the reads fail", PATIENCE, || status(&server).is_failing);
    let mut client = server.client("disk");
    assert!(client.read(0, LINE).is_err());
    assert_eq!(client.read(SIZE / 2, LINE).unwrap(), [0; LINE as usize]);
    assert_eq!(client.write(0, &[3; LINE as usize]), Ok(()));
    assert_eq!(client.read(0, LINE).unwrap(), [3; LINE as usize]);
    server.runtime.volumes().set_pins("disk", &pins(&[(SIZE / 2, MIB)])).unwrap();
    wait_until_loaded(&server);
    wait_until("the reads succeed", PATIENCE, || !status(&server).is_failing);
    drop(client);
    server.stop();
}

/// Reads a whole volume in requests of a MiB.
fn read_all(server: &Server, name: &str, size_bytes: u64) {
    let mut client = server.client(name);
    for offset in (0..size_bytes).step_by(MIB as usize) {
        client.read(offset, MIB).unwrap();
    }
}

fn a_resize_keeps_what_is_pinned(engine: Engine) {
    const DISK_BYTES: u64 = 160 * MIB;
    const PINNED_BYTES: u64 = 8 * MIB;
    let server = Server::start_with(engine, 128 * MIB, 2);
    server.runtime.keep_warm_lists(Arc::new(NoLists));
    server.add_memory("disk", DISK_BYTES, Mode::WriteBack);
    server.add_memory("other", SIZE, Mode::WriteThrough);
    let free = server.runtime.memory_bounds();
    read_all(&server, "disk", DISK_BYTES);
    server.runtime.volumes().set_pins("disk", &pins(&[(0, PINNED_BYTES)])).unwrap();
    server.runtime.volumes().set_pins("other", &pins(&[(0, LINE)])).unwrap();
    wait_until_loaded(&server);
    read_all(&server, "disk", DISK_BYTES);
    // A part of the pinned data is newer than the disk.
    let mut client = server.client("disk");
    assert_eq!(client.write(MIB, &[5; 64 * LINE as usize]), Ok(()));
    let loaded = server.status("disk").engine.pin_loaded_lines;
    let max = || server.runtime.status().unwrap().memory.pinned_bytes_max;
    let max_before = max();

    let bounds = server.runtime.memory_bounds();
    assert!(bounds.least_bytes > free.least_bytes && bounds.most_bytes == free.most_bytes);
    let refused = server.runtime.set_memory(bounds.least_bytes - 1);
    let Err(ResizeError::Pinned { pinned, least_bytes, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(least_bytes, bounds.least_bytes);
    assert_eq!(pinned, [("disk".to_owned(), PINNED_BYTES), ("other".to_owned(), LINE)]);
    assert_eq!(server.runtime.memory_bounds(), bounds);
    let too_small = server.runtime.set_memory(free.least_bytes - 1);
    assert!(matches!(too_small, Err(ResizeError::TooSmall { .. })), "{too_small:?}");

    server.runtime.set_memory(bounds.least_bytes).unwrap();
    let given_back = bounds.most_bytes - bounds.least_bytes;
    let pool_bytes = || server.runtime.status().unwrap().memory.pool_bytes;
    let pool_bytes_before = max_before * 2;
    wait_until("the pool is smaller", PATIENCE, || pool_bytes() == pool_bytes_before - given_back);
    read_all(&server, "disk", DISK_BYTES);
    let status = server.status("disk");
    assert_eq!(status.pins.loaded_lines, PINNED_BYTES / LINE);
    assert_eq!(status.engine.pin_loaded_lines, loaded, "lines move, and are not read again");
    assert_eq!(max(), (pool_bytes_before - given_back) / 2, "the quota follows the size");
    let more = pins(&[(0, max() + LINE)]);
    let refused = server.runtime.volumes().set_pins("disk", &more);
    assert!(matches!(refused, Err(VolumeError::Pin(PinError::Quota { .. }))), "{refused:?}");
    assert_eq!(client.read(MIB, 64 * LINE).unwrap(), [5; 64 * LINE as usize]);

    server.runtime.set_memory(bounds.most_bytes).unwrap();
    server.runtime.volumes().set_pins("disk", &more).unwrap();
    wait_until_loaded(&server);
    assert_eq!(max(), max_before);
    for name in ["disk", "other"] {
        server.runtime.volumes().set_pins(name, &PinnedRanges::default()).unwrap();
    }
    assert_eq!(server.runtime.memory_bounds(), free);
    server.runtime.set_memory(free.least_bytes).unwrap();
    assert_eq!(client.read(MIB, 64 * LINE).unwrap(), [5; 64 * LINE as usize]);
    drop(client);
    server.stop();
}
