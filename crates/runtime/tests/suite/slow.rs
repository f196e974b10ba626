//! Slow requests: what each waited for.

use crate::common::client::{Client, PATIENCE};
use crate::common::raw::{connect_to, request};
use crate::common::wait_until;
use crate::journal::{open, start, volume};
use crate::server::{Server, in_mode, settings};
use forebay_backend::MemoryBackend;
use forebay_backend::layers::{Gate, Kinds};
use forebay_nbd::NbdCommand;
use forebay_nbd::proto::command;
use forebay_runtime::{
    Engine, RuntimeConfig, Served, SlowLog, SlowRequest, Timeouts, Uncached, VolumeSlow,
};
use forebay_types::{Mode, VolumeConfig, WriteShare};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

on_both_engines! {
    a_read_waits_for_its_own_io_and_for_those_of_others,
    a_flush_waits_for_destages_and_for_the_disk,
    a_write_at_the_dirty_limit_waits_for_a_destage,
    a_write_waits_for_the_journal,
    a_huge_read_waits_for_memory,
    a_fast_request_is_not_recorded,
}

const MIB: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);

/// Serves a volume whose requests all count as slow.
fn add(server: &Server, mode: Mode) -> Arc<Gate> {
    let gate = Gate::new(Arc::new(MemoryBackend::new(64 * MIB).unwrap()) as _);
    let mut volume = settings("disk", Arc::clone(&gate) as _, mode);
    volume.config.slow_us = Some(0);
    server.runtime.volumes().add(volume).unwrap();
    gate
}

/// The slow requests of the only volume.
fn slow_of(server: &Server) -> VolumeSlow {
    let mut volumes = SlowLog::of(&server.runtime).volumes();
    assert_eq!(volumes.len(), 1);
    volumes.remove(0)
}

/// The last slow request of an operation at an offset.
fn last(server: &Server, operation: &str, offset: Option<u64>) -> SlowRequest {
    let VolumeSlow { total, requests, .. } = slow_of(server);
    let is_selected = |it: &&SlowRequest| {
        it.operation == operation && it.range.map(|range| range.offset) == offset
    };
    let found = requests.iter().rev().find(is_selected);
    let found = found.unwrap_or_else(|| panic!("of {total}: {requests:?}")).clone();
    let sum: Duration = found.waits().iter().map(|wait| wait.took).sum();
    assert_eq!(sum, found.took, "{found:?}");
    found
}

fn waited(slow: &SlowRequest, what: &str) -> Duration {
    slow.waits().iter().filter(|wait| wait.what == what).map(|wait| wait.took).sum()
}

/// Answers a request whose I/O is held for some time.
fn release(gate: &Gate, client: &mut Client, request: u64) {
    assert!(gate.wait_held(1, PATIENCE));
    // Far longer than a turn, whose start and end measure it.
    std::thread::sleep(20 * MS);
    gate.open();
    assert_eq!(client.wait(request).result, Ok(()));
}

fn a_read_waits_for_its_own_io_and_for_those_of_others(engine: Engine) {
    let server = Server::start(engine);
    let gate = add(&server, Mode::WriteThrough);
    let (mut client, mut other) = (server.client("disk"), server.client("disk"));
    gate.close(Kinds::READ);
    let first = client.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    assert!(gate.wait_held(1, PATIENCE));
    let second = other.send(NbdCommand::Read, 0, MIB + 512, 512, &[]);
    wait_until("the other read waits for it", PATIENCE, || server.status("disk").engine.waits >= 2);
    release(&gate, &mut client, first);
    assert_eq!(other.wait(second).result, Ok(()));
    let own = last(&server, "read", Some(MIB));
    assert!(waited(&own, "disk") >= MS, "{own:?}");
    let served = |reason| Some(Served::Uncached(reason));
    assert_eq!((own.ios(), own.requests, own.served), (1, 1, served(Uncached::Miss)));
    let shared = last(&server, "read", Some(MIB + 512));
    assert!(waited(&shared, "read") >= MS && waited(&shared, "disk").is_zero(), "{shared:?}");
    assert_eq!((shared.ios(), shared.served), (0, served(Uncached::IoInFlight)));
    // A hit waits for nothing but its turn.
    let before = slow_of(&server).total;
    assert!(client.read(MIB, 4096).is_ok());
    wait_until("the turn ends", PATIENCE, || slow_of(&server).total > before);
    let hit = last(&server, "read", None);
    assert_eq!((waited(&hit, "worker"), hit.served), (hit.took, None));
    // The log gets the slowest, and the number of the others.
    let logged = SlowLog::of(&server.runtime).take_unlogged(Instant::now());
    let VolumeSlow { total, requests, .. } = slow_of(&server);
    let slowest = requests.iter().max_by_key(|it| it.took).unwrap();
    assert_eq!(logged.len(), 1);
    assert_eq!((&logged[0].slowest, &*logged[0].name), (slowest, "disk"));
    assert_eq!(logged[0].others, total - slowest.requests);
    assert!(SlowLog::of(&server.runtime).volume("nix").is_err());
}

fn a_flush_waits_for_destages_and_for_the_disk(engine: Engine) {
    let server = Server::start(engine);
    let gate = add(&server, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    gate.close(Kinds::WRITE);
    let flush = client.send(NbdCommand::Flush, 0, 0, 0, &[]);
    release(&gate, &mut client, flush);
    let slow = last(&server, "flush", None);
    assert!(waited(&slow, "destage") >= MS, "{slow:?}");
    assert_eq!(client.write(0, &[2; 4096]), Ok(()));
    gate.close(Kinds::FLUSH);
    let flush = client.send(NbdCommand::Flush, 0, 0, 0, &[]);
    release(&gate, &mut client, flush);
    let slow = last(&server, "flush", None);
    assert!(waited(&slow, "disk-flush") >= MS, "{slow:?}");
}

fn a_write_at_the_dirty_limit_waits_for_a_destage(engine: Engine) {
    let server = Server::start(engine);
    let gate = add(&server, Mode::WriteBack);
    gate.close(Kinds::WRITE);
    let memory = || server.runtime.status().unwrap().memory;
    let half = memory().dirty_bytes_max / 4 * 3;
    let (mut client, mut at) = (server.client("disk"), 0);
    while memory().dirty_bytes < half {
        client.write(at, &[1; 64 << 10]).unwrap();
        at += 64 << 10;
    }
    server.runtime.write_share().set(Some(WriteShare::of_percent(15).unwrap()));
    let write = client.send(NbdCommand::Write, 0, at, 4096, &[2; 4096]);
    let is_throttled = || server.status("disk").engine.throttled_writes > 0;
    wait_until("the write waits", PATIENCE, is_throttled);
    release(&gate, &mut client, write);
    let slow = last(&server, "write", Some(at));
    assert!(waited(&slow, "throttle") >= MS, "{slow:?}");
    drop(client);
    server.stop();
}

fn a_write_waits_for_the_journal(engine: Engine) {
    let server = start(engine);
    let disk = Arc::new(MemoryBackend::new(16 * MIB).unwrap());
    let gate = Gate::new(Arc::new(MemoryBackend::new(64 * MIB).unwrap()) as _);
    let journal = open(&server, Arc::clone(&gate) as _);
    let mut settings = volume("v", disk, &journal);
    settings.config.slow_us = Some(0);
    server.runtime.volumes().add(settings).unwrap();
    let mut client = server.client("v");
    // The first write of a range may wait until the journal's samples of the disk are void.
    assert_eq!(client.write(4096, &[1; 4096]), Ok(()));
    gate.close(Kinds::WRITE);
    let write = client.send(NbdCommand::Write, 0, 4096, 4096, &[2; 4096]);
    release(&gate, &mut client, write);
    let slow = last(&server, "write", Some(4096));
    assert!(waited(&slow, "journal") >= MS && slow.ios() == 0, "{slow:?}");
    assert_eq!(slow.served, Some(Served::Pool));
}

fn a_huge_read_waits_for_memory(engine: Engine) {
    let timeouts = Timeouts { fetch: Duration::from_secs(1), ..Timeouts::default() };
    // With less memory, the reply would not occupy the whole lane.
    let memory = 512 * MIB;
    let config =
        RuntimeConfig { memory_bytes: memory, start_bytes: memory, ..Server::config(engine) };
    let server = Server::start_over(config, timeouts);
    add(&server, Mode::WriteBack);
    let mut deaf = connect_to(&server.socket, "disk");
    deaf.write_all(&request(command::READ, 0, 1, 0, 32 << 20)).unwrap();
    deaf.read_exact(&mut [0; 16]).unwrap();
    // The rest of the reply occupies the lane until its client is dropped.
    let mut client = server.client("disk");
    assert!(client.read(MIB, 32 * MIB).is_ok());
    let slow = last(&server, "read", Some(MIB));
    assert!(waited(&slow, "memory") >= 100 * MS, "{slow:?}");
}

fn a_fast_request_is_not_recorded(engine: Engine) {
    let server = Server::start(engine);
    let gate = add(&server, Mode::WriteThrough);
    let set = |slow: Option<Duration>| {
        let slow_us = slow.map(|slow| slow.as_micros() as u64);
        let change = VolumeConfig { slow_us, ..in_mode(Mode::WriteThrough) };
        server.runtime.volumes().change("disk", change, false).unwrap();
    };
    let mut client = server.client("disk");
    for slow in [None, Some(PATIENCE)] {
        set(slow);
        let before = slow_of(&server).total;
        gate.close(Kinds::READ);
        let offset = if slow.is_some() { 0 } else { MIB };
        let read = client.send(NbdCommand::Read, 0, offset, 4096, &[]);
        release(&gate, &mut client, read);
        assert!(client.read(offset, 4096).is_ok());
        assert_eq!(slow_of(&server).total, before);
    }
    set(Some(Duration::ZERO));
    assert!(client.read(0, 4096).is_ok());
    wait_until("a hit is slow, too", PATIENCE, || slow_of(&server).total > 0);
}
