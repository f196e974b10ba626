//! Volumes under a UPS: the dirty limit, FLUSH and FUA, and halted writes.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{JOURNAL_BYTES, MIB, memory, open, start, volume};
use crate::server::{Server, in_mode, read_backend, settings};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds, Volatile, Volatility};
use forebay_backend::{Backend, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::Engine;
use forebay_types::{IoError, Mode, Protection, UnsafeUps, VolumeConfig};
use std::sync::Arc;
use std::time::Duration;

fn add(server: &Server, disk: Arc<dyn Backend>) {
    let mut settings = settings("v", disk, Mode::WriteBack);
    settings.config.protection = Protection::Ups;
    server.runtime.volumes().add(settings).unwrap();
}

fn accept_the_disk_cache(server: &Server) {
    let unsafe_supply = UnsafeUps::DiskCache;
    let change = VolumeConfig { unsafe_supply, ..in_mode(Mode::WriteBack) };
    server.runtime.volumes().change("v", change, false).unwrap();
}

fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(512)
}

fn has(disk: &dyn Backend, value: u64) -> bool {
    read_backend(disk, value * 4096, 4096) == block(value)
}

on_both_engines! {
    without_a_safe_ups_writes_go_through,
    under_a_safe_ups_writes_are_acknowledged_from_the_pool,
    the_dirty_limit_of_the_ups_is_kept,
    dirty_data_is_drained_when_mains_fails,
    a_halt_fails_new_writes_and_writes_in_flight,
    a_volume_with_a_failed_journal_relies_on_its_ups,
    a_disk_that_does_not_flush_is_reported,
    writes_not_covered_by_the_ups_are_stable_when_acknowledged,
    the_disk_cache_is_enough_if_the_operator_accepts_it,
    a_requested_flush_follows_a_flush_in_progress,
}

fn without_a_safe_ups_writes_go_through(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    add(&server, Arc::clone(&disk) as _);
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    assert!(has(&*disk, 1), "acknowledged from memory");
    assert_eq!(server.status("v").engine.writes_through_protection, 1);
    assert_eq!(server.runtime.ups().set_limit(MIB), 0);
    drop(client);
    server.stop();
}

fn under_a_safe_ups_writes_are_acknowledged_from_the_pool(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let gate = Gate::new(Arc::clone(&disk) as _);
    add(&server, Arc::clone(&gate) as _);
    server.runtime.ups().set_limit(MIB);
    // The disk accepts no writes, so every acknowledged write is in the pool only.
    gate.close(Kinds::WRITE.union(Kinds::FLUSH));
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    client.write_fua(2 * 4096, &block(2)).unwrap();
    client.flush().unwrap();
    assert!(!has(&*disk, 1) && !has(&*disk, 2));
    assert_eq!(server.runtime.ups().set_limit(MIB), 2 * 4096);
    assert_eq!(server.runtime.ups().ids().len(), 1);
    gate.open();
    drop(client);
    server.stop();
    assert!(has(&*disk, 1) && has(&*disk, 2));
}

fn the_dirty_limit_of_the_ups_is_kept(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    add(&server, Arc::clone(&disk) as _);
    server.runtime.ups().set_limit(40 * 4096);
    let mut client = server.client("v");
    for value in 0..100 {
        client.write(value * 4096, &block(value)).unwrap();
    }
    assert!(server.runtime.ups().set_limit(40 * 4096) <= 40 * 4096);
    assert_eq!(server.status("v").engine.writes_through_protection, 60);
    assert!(has(&*disk, 99), "writes above the limit go to the disk");
    drop(client);
    server.stop();
}

fn dirty_data_is_drained_when_mains_fails(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    add(&server, Arc::clone(&disk) as _);
    server.runtime.ups().set_limit(MIB);
    let mut client = server.client("v");
    for value in 0..100 {
        client.write(value * 4096, &block(value)).unwrap();
    }
    assert_eq!(server.runtime.ups().set_limit(0), 100 * 4096);
    client.write(100 * 4096, &block(100)).unwrap();
    assert!(has(&*disk, 100), "from now on writes go through");
    server.runtime.ups().drain();
    wait_until("nothing is dirty", PATIENCE, || server.runtime.ups().set_limit(0) == 0);
    assert!((0..100).all(|value| has(&*disk, value)));
    drop(client);
    server.stop();
}

fn a_halt_fails_new_writes_and_writes_in_flight(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let gate = Gate::new(Arc::clone(&disk) as _);
    add(&server, Arc::clone(&gate) as _);
    server.runtime.ups().set_limit(MIB);
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    server.runtime.ups().set_limit(0);
    gate.close(Kinds::WRITE);
    let through = client.send(NbdCommand::Write, 0, 2 * 4096, 4096, &block(2));
    wait_until("it is at the disk", PATIENCE, || gate.held().len() == 1);
    assert_eq!(server.runtime.ups().halt(true).len(), 1);
    assert_eq!(server.runtime.ups().halt(true).len(), 0, "they are halted already");
    gate.open();
    assert_eq!(client.wait(through).result, Err(IoError::Shutdown));
    assert_eq!(client.write(3 * 4096, &block(3)), Err(IoError::Shutdown));
    assert_eq!(client.call(NbdCommand::Trim, 0, 0, 4096).result, Err(IoError::Shutdown));
    assert_eq!(client.read(4096, 4096).unwrap(), block(1));
    assert!(server.status("v").halted);
    assert_eq!(server.runtime.ups().halt(false).len(), 1);
    client.write(3 * 4096, &block(3)).unwrap();
    assert_eq!(client.read(2 * 4096, 4096).unwrap(), block(2));
    drop(client);
    server.stop();
    assert!((1..4).all(|value| has(&*disk, value)));
}

fn a_volume_with_a_failed_journal_relies_on_its_ups(engine: Engine) {
    let server = start(engine);
    let disk = memory(16 * MIB);
    let gate = Gate::new(Arc::clone(&disk) as _);
    // The superblocks and the first batch can be written, then all writes fail.
    let rule = ErrorRule { kinds: Kinds::WRITE, after: 8, ..ErrorRule::default() };
    let journal = open(&server, Arc::new(ErrorLayer::new(memory(JOURNAL_BYTES), rule)));
    let mut protected = volume("v", Arc::clone(&gate) as _, &journal);
    protected.config.protection = Protection::JournalUps;
    server.runtime.volumes().add(protected).unwrap();
    server.runtime.ups().set_limit(MIB);
    let mut client = server.client("v");
    let mut written = 0;
    while journal.status().failed.is_none() {
        client.write(written * 4096, &block(written)).unwrap();
        written += 1;
        assert!(written < 100, "the journal fails");
    }
    gate.close(Kinds::WRITE.union(Kinds::FLUSH));
    assert_eq!(server.runtime.ups().ids().len(), 1);
    client.write(200 * 4096, &block(200)).unwrap();
    client.flush().unwrap();
    assert!(!has(&*disk, 200), "the data is in the pool only, under the UPS");
    server.runtime.ups().set_limit(0);
    gate.open();
    client.write(201 * 4096, &block(201)).unwrap();
    assert!(has(&*disk, 201));
    drop(client);
    server.stop();
    assert!(has(&*disk, 200) && (0..written).all(|value| has(&*disk, value)));
}

fn a_disk_that_does_not_flush_is_reported(engine: Engine) {
    let server = Server::start(engine);
    let gate = Gate::new(memory(16 * MIB) as _);
    add(&server, Arc::clone(&gate) as _);
    // With FUA there would be nothing left to flush.
    accept_the_disk_cache(&server);
    let mut client = server.client("v");
    client.write(0, &block(0)).unwrap();
    gate.close(Kinds::FLUSH);
    assert_eq!(server.runtime.ups().sync(Duration::from_millis(100)), ["v"]);
    gate.open();
    assert!(server.runtime.ups().sync(PATIENCE).is_empty());
    drop(client);
    server.stop();
}

/// A disk of 16 MiB, and the same disk behind a volatile cache. The first holds what survives a
/// power loss.
fn disk_with_cache() -> (Arc<MemoryBackend>, Arc<dyn Backend>) {
    let disk = memory(16 * MIB);
    let cache = Volatile::new(Arc::clone(&disk) as _, Volatility::default()).unwrap();
    (disk, Arc::new(cache))
}

fn writes_not_covered_by_the_ups_are_stable_when_acknowledged(engine: Engine) {
    let server = Server::start(engine);
    let (disk, cache) = disk_with_cache();
    add(&server, cache);
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    assert!(has(&*disk, 1), "acknowledged from stable storage");
    client.write(8 * 4096, &block(8).repeat(64)).unwrap();
    assert!(has(&*disk, 8), "also for a payload that is received into the pool");
    client.call(NbdCommand::WriteZeroes, 0, 4096, 4096).result.unwrap();
    assert!(!has(&*disk, 1), "also for zeroes");
    server.runtime.ups().set_limit(40 * 4096);
    for value in 100..200 {
        client.write(value * 4096, &block(value)).unwrap();
    }
    assert!(!has(&*disk, 100), "the UPS covers it");
    assert!(has(&*disk, 199), "the UPS allows no more to be dirty");
    server.runtime.ups().set_limit(0);
    client.write(4096, &block(1)).unwrap();
    assert!(has(&*disk, 1), "stable storage again");
    let flushes = server.status("v").requests.backend_flushes;
    server.runtime.ups().drain();
    wait_until("nothing is dirty", PATIENCE, || server.runtime.ups().set_limit(0) == 0);
    wait_until("the drain is over", PATIENCE, || has(&*disk, 100));
    assert!(server.status("v").requests.backend_flushes > flushes);
    drop(client);
    server.stop();
}

fn the_disk_cache_is_enough_if_the_operator_accepts_it(engine: Engine) {
    let server = Server::start(engine);
    let (disk, cache) = disk_with_cache();
    add(&server, Arc::clone(&cache));
    accept_the_disk_cache(&server);
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    assert!(has(&*cache, 1) && !has(&*disk, 1));
    client.flush().unwrap();
    assert!(has(&*disk, 1), "FLUSH means the disk's own");
    drop(client);
    server.stop();
}

fn a_requested_flush_follows_a_flush_in_progress(engine: Engine) {
    let server = Server::start(engine);
    let (disk, cache) = disk_with_cache();
    let gate = Gate::new(cache);
    add(&server, Arc::clone(&gate) as _);
    accept_the_disk_cache(&server);
    let mut client = server.client("v");
    client.write(4096, &block(1)).unwrap();
    gate.close(Kinds::FLUSH);
    server.runtime.ups().request_sync();
    server.runtime.ups().start_syncs();
    wait_until("the disk is flushed", PATIENCE, || gate.held().len() == 1);
    client.write(2 * 4096, &block(2)).unwrap();
    server.runtime.ups().request_sync();
    gate.open();
    wait_until("it is flushed again", PATIENCE, || {
        server.runtime.ups().start_syncs();
        has(&*disk, 2)
    });
    drop(client);
    server.stop();
}
