//! Background work while other programs need processors and disks.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::{Server, in_mode};
use forebay_backend::layers::{Gate, Kinds};
use forebay_backend::{Backend, MemoryBackend};
use forebay_runtime::{BackgroundShares, Engine};
use forebay_types::BackgroundShare::{Full, Least, Reduced};
use forebay_types::{BackgroundShare, ByteRange, Mode, PinnedRanges};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const LINE: u64 = 4096;
const SIZE: u64 = 16 * MIB;

on_both_engines! {
    reads_into_the_pool_go_one_at_a_time_while_others_wait,
    writeback_that_is_urgent_does_not_slow_down,
    what_clients_wait_for_is_counted,
}

fn shares(processors: BackgroundShare, disks: BackgroundShare) -> BackgroundShares {
    BackgroundShares { processors, disks }
}

fn reads_into_the_pool_go_one_at_a_time_while_others_wait(engine: Engine) {
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::new(crate::pins::NoLists));
    let disk = Arc::new(MemoryBackend::new(SIZE).unwrap());
    let gate = Gate::new(disk as Arc<dyn Backend>);
    gate.close(Kinds::READ);
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    let mut ranges = PinnedRanges::default();
    ranges.add(ByteRange::new(0, SIZE));
    server.runtime.volumes().set_pins("disk", &ranges).unwrap();
    // One read after the other ends, and the next ones begin.
    let release_one = || assert!(gate.release(0));
    assert!(gate.wait_held(4, PATIENCE), "four while nothing else waits");
    for held in [shares(Least, Full), shares(Full, Reduced), shares(Full, Least)] {
        server.runtime.set_background(held);
        // Those in flight end first.
        (0..4).for_each(|_| release_one());
        for _ in 0..3 {
            wait_until("the next read", PATIENCE, || !gate.held().is_empty());
            assert_eq!(gate.held().len(), 1, "{held:?}");
            release_one();
        }
        wait_until("the next read", PATIENCE, || !gate.held().is_empty());
        server.runtime.set_background(BackgroundShares::default());
        assert!(gate.wait_held(4, PATIENCE), "four again");
    }
    server.runtime.set_background(shares(Least, Least));
    gate.open();
    // However long the others wait, it ends.
    let lines = SIZE / LINE;
    wait_until("all is read", PATIENCE, || server.status("disk").pins.loaded_lines == lines);
    server.stop();
}

fn writeback_that_is_urgent_does_not_slow_down(engine: Engine) {
    let server = Server::start(engine);
    server.runtime.set_background(shares(Least, Least));
    let disk = server.add_memory("disk", SIZE, Mode::WriteBack);
    let mut client = server.client("disk");
    let write_all = |client: &mut crate::common::client::Client, byte: u8| {
        for at in (0..SIZE).step_by(2 * 65_536) {
            client.write(at, &[byte; 65_536]).unwrap();
        }
    };
    write_all(&mut client, 1);
    client.flush().unwrap();
    assert_eq!(server.status("disk").dirty_bytes, 0, "a client waits for a flush");
    write_all(&mut client, 2);
    server.runtime.volumes().flush("disk", |_| {}).unwrap();
    assert_eq!(server.status("disk").dirty_bytes, 0, "so does a command");
    write_all(&mut client, 3);
    server.runtime.volumes().change("disk", in_mode(Mode::WriteThrough), false).unwrap();
    wait_until("the mode keeps no dirty data", PATIENCE, || server.status("disk").dirty_bytes == 0);
    assert!(disk.io_count().unwrap().writes > 0);
    drop(client);
    server.stop();
}

/// With io_uring, workers try what looking for requests gains, and only if they may.
#[test]
fn workers_look_for_requests_while_processors_are_free() {
    let server = Server::start(Engine::IoUring);
    server.add_memory("disk", SIZE, Mode::WriteThrough);
    let polled_us = || server.runtime.status().unwrap().polled_us;
    let (ends, server) = (AtomicBool::new(false), &server);
    std::thread::scope(|scope| {
        // Several, so that the waits of the worker are short on a busy machine, too.
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client("disk");
                while !ends.load(Ordering::Relaxed) {
                    client.read(0, 512).unwrap();
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_secs(2));
        let before = polled_us();
        server.runtime.set_spare_processors(true);
        let is_tried = || polled_us() > 0;
        let begun = std::time::Instant::now();
        while !is_tried() && begun.elapsed() < PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ends.store(true, Ordering::Relaxed);
        assert_eq!(before, 0, "it may not yet");
        assert!(is_tried(), "it is not tried");
    });
}

fn what_clients_wait_for_is_counted(engine: Engine) {
    let server = Server::start(engine);
    let (gate, _) = server.add_gated("disk", SIZE, Mode::WriteThrough);
    let before = server.runtime.client_waits();
    gate.close(Kinds::READ);
    let mut client = server.client("disk");
    let begun = std::time::Instant::now();
    let read = client.send(forebay_nbd::NbdCommand::Read, 0, 0, LINE, &[]);
    assert!(gate.wait_held(1, PATIENCE));
    std::thread::sleep(std::time::Duration::from_millis(20));
    gate.open();
    assert_eq!(client.wait(read).result, Ok(()));
    // The server may count it after the answer.
    wait_until("it is counted", PATIENCE, || server.runtime.client_waits().1 > before.1);
    let most_us = begun.elapsed().as_micros() as u64;
    let after = server.runtime.client_waits();
    assert!((20_000..=most_us + 1).contains(&(after.1 - before.1)), "{before:?}, {after:?}");
    assert_eq!(after.0 - before.0, 1);
    drop(client);
    let counts = server.runtime.counts_as_io_pressure();
    assert!(counts || engine != Engine::Epoll, "threads wait for the disk");
    server.stop();
}
