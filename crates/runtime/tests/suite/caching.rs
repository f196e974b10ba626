//! The cache saves disk I/O: hits, coalesced misses, overwrites, read-ahead.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::journal::memory;
use crate::server::{Server, read_backend, settings};
use forebay_backend::layers::Kinds;
use forebay_backend::{Backend, IoCount, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::Engine;
use forebay_types::Mode;
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    sixteen_readers_of_a_cold_block_cost_one_read,
    overwrites_reach_the_disk_once_in_write_back,
    sequential_reads_trigger_read_ahead,
    random_reads_trigger_no_read_ahead,
    hits_need_no_disk_io,
    bypass_keeps_nothing,
    a_curve_counts_the_accesses_of_all_shards_and_decays,
}

const MIB: u64 = 1 << 20;

fn count(disk: &Arc<MemoryBackend>) -> IoCount {
    disk.io_count().unwrap()
}

fn sixteen_readers_of_a_cold_block_cost_one_read(engine: Engine) {
    let server = Server::start(engine);
    let (gate, disk) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    gate.close(Kinds::READ);
    let mut clients: Vec<Client> = (0..16).map(|_| server.client("disk")).collect();
    let cookies: Vec<u64> = clients
        .iter_mut()
        .map(|client| client.send(NbdCommand::Read, 0, 65536, 4096, &[]))
        .collect();
    wait_until("all requests wait for one read", PATIENCE, || {
        server.status("disk").engine.waits >= 16
    });
    assert_eq!(gate.held().len(), 1);
    gate.open();
    for (client, cookie) in clients.iter_mut().zip(cookies) {
        assert_eq!(client.wait(cookie).result, Ok(()));
    }
    assert_eq!(count(&disk).reads, 1);
}

fn overwrites_reach_the_disk_once_in_write_back(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    for round in 0..50 {
        for offset in (0..MIB).step_by(64 << 10) {
            assert_eq!(client.write(offset, &[round; 64 << 10]), Ok(()));
        }
    }
    assert_eq!(client.flush(), Ok(()));
    let written = count(&disk).write_bytes;
    // On a slow machine, data may have been destaged by age before the flush.
    assert!((MIB..=2 * MIB).contains(&written), "50 MiB in, {written} bytes out");
    assert!(count(&disk).writes <= 8, "{} writes for 1 MiB", count(&disk).writes);
    assert_eq!(read_backend(&*disk, 0, MIB), vec![49; MIB as usize]);
}

fn sequential_reads_trigger_read_ahead(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let mut volume = settings("disk", Arc::clone(&disk) as _, Mode::WriteThrough);
    volume.config.prefetch = true;
    server.runtime.volumes().add(volume).unwrap();
    let mut client = server.client("disk");
    for offset in (0..4 * MIB).step_by(4096) {
        assert_eq!(client.read(offset, 4096), Ok(vec![0; 4096]));
    }
    let (reads, status) = (count(&disk).reads, server.status("disk"));
    assert!(reads < 130, "{reads} reads at the disk for 1024 of the client");
    assert!(status.engine.prefetch_used_lines > 900, "{:?}", status.engine);
}

fn random_reads_trigger_no_read_ahead(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(64 * MIB);
    let mut volume = settings("disk", Arc::clone(&disk) as _, Mode::WriteThrough);
    volume.config.prefetch = true;
    server.runtime.volumes().add(volume).unwrap();
    let mut client = server.client("disk");
    for n in 0..200 {
        assert_eq!(client.read(n * n * 7919 % 8191 * 8192, 4096), Ok(vec![0; 4096]));
    }
    assert_eq!(count(&disk).read_bytes, 200 * 4096);
    assert_eq!(server.status("disk").engine.prefetched_lines, 0);
}

fn hits_need_no_disk_io(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 16 * MIB, Mode::WriteThrough);
    let mut clients = [server.client("disk"), server.client("disk")];
    assert_eq!(clients[0].write(4096, &[1; 16384]), Ok(()));
    let before = count(&disk);
    for n in 0..100 {
        assert_eq!(clients[n % 2].read(4096 + n as u64 % 8 * 512, 4096), Ok(vec![1; 4096]));
    }
    assert_eq!(count(&disk), before);
    let requests = server.status("disk").statistics.requests;
    assert_eq!((requests.reads(), requests.read_hits), (100, 100));
}

fn bypass_keeps_nothing(engine: Engine) {
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 16 * MIB, Mode::Bypass);
    let mut client = server.client("disk");
    for _ in 0..10 {
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
        assert_eq!(client.write(4096, &[1; 4096]), Ok(()));
    }
    assert_eq!((count(&disk).reads, count(&disk).writes), (10, 10));
    assert_eq!(server.status("disk").cached_bytes, 0);
}

fn a_curve_counts_the_accesses_of_all_shards_and_decays(engine: Engine) {
    let server = Server::start_with(engine, 256 * MIB, 2);
    assert!(server.runtime.status().unwrap().shards > 1);
    server.add_memory("disk", 64 * MIB, Mode::WriteThrough);
    server.add_memory("other", 64 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    for mib in 0..64 {
        assert_eq!(client.write(mib * MIB, &[1; MIB as usize]), Ok(()));
        assert_eq!(client.read(mib * MIB, 8192), Ok(vec![1; 8192]));
    }
    let accesses = |name| server.status(name).curve.unwrap().accesses();
    assert_eq!((accesses("disk"), accesses("other")), (64.0 * 258.0, 0.0));
    server.runtime.decay_curves(Duration::from_secs(3600));
    // Each shard rounds down.
    assert!((32.0 * 258.0 - 64.0..=32.0 * 258.0).contains(&accesses("disk")));
}
