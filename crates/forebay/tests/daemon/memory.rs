//! The daemon stays within its memory limit under any load.

use crate::common::client::{Client, PATIENCE, connect};
use crate::common::raw::{enter, request};
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file};
use forebay_nbd::NbdCommand;
use forebay_nbd::proto::command;
use std::io::Write;
use std::time::Duration;

/// Allowed excess over the limit, in percent.
const TOLERANCE_PERCENT: u64 = 5;

/// Starts a daemon with one sparse volume for each mode, named after it.
fn daemon(directory: &std::path::Path, io: &str, memory_mib: u64) -> Daemon {
    let volume = |mode: &str| {
        let path = directory.join(format!("{mode}.img"));
        make_file(&path, 1024 * MIB);
        let loss = if mode == "write-back" { ",protection=none,accept-loss=yes" } else { "" };
        format!("{mode}={},mode={mode}{loss}", path.display())
    };
    let volumes = ["write-back", "write-through", "bypass"].map(volume);
    Daemon::start(directory, io, &format!("{memory_mib}MiB"), &volumes)
}

fn report(daemon: &Daemon, memory_mib: u64, what: &str) -> u64 {
    let (now, peak) = daemon.rss_bytes();
    let percent = peak * 100 / (memory_mib * MIB);
    println!(
        "{memory_mib} MiB given, {what}: {:.1} MiB now, {:.1} MiB at most, {percent} %",
        now as f64 / MIB as f64,
        peak as f64 / MIB as f64,
    );
    peak
}

fn fill(client: &mut Client, mib: u64) {
    for n in 0..mib {
        client.write(n * MIB, &[n as u8; MIB as usize]).unwrap();
    }
    for n in 0..mib {
        client.read(n * MIB, MIB).unwrap();
    }
}

/// Runs six clients, each with two requests of the largest size in flight.
fn largest_requests(daemon: &Daemon) {
    std::thread::scope(|scope| {
        for number in 0..6u64 {
            scope.spawn(move || {
                let name = ["write-back", "write-through", "bypass"][number as usize % 3];
                let mut client = daemon.client(name);
                let data = vec![number as u8; 32 << 20];
                for round in 0..3 {
                    let at = (number * 64 + round * 32) * MIB % (900 * MIB);
                    let write = client.send(NbdCommand::Write, 0, at, 32 * MIB, &data);
                    let read = client.send(NbdCommand::Read, 0, at + 32 * MIB, 32 * MIB, &[]);
                    client.wait(write).result.unwrap();
                    client.wait(read).result.unwrap();
                }
            });
        }
    });
}

/// Connects clients that send many large reads and never receive a reply.
fn stalled_clients(daemon: &Daemon) -> Vec<std::os::unix::net::UnixStream> {
    let mut stalled: Vec<_> = (0..8).map(|_| connect(&daemon.socket)).collect();
    for (number, stream) in stalled.iter_mut().enumerate() {
        enter(stream, ["write-back", "write-through", "bypass"][number % 3]);
        let mut bytes = Vec::new();
        for n in 0..100 {
            bytes.extend_from_slice(&request(command::READ, 0, n, n % 900 * MIB, 1 << 20));
        }
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let _ = stream.write_all(&bytes);
    }
    stalled
}

fn memory_stays_within(io: &str, memory_mib: u64) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), io, memory_mib);
    report(&daemon, memory_mib, "idle");
    fill(&mut daemon.client("write-back"), 400);
    fill(&mut daemon.client("write-through"), 400);
    report(&daemon, memory_mib, "filled");
    let stalled = stalled_clients(&daemon);
    // This client finishes after the server has received all requests of the stalled clients.
    fill(&mut daemon.client("write-through"), 20);
    report(&daemon, memory_mib, "with 8 stalled clients");
    drop(stalled);
    largest_requests(&daemon);
    let peak = report(&daemon, memory_mib, "after requests of 32 MiB");
    let limit = memory_mib * MIB;
    assert!(peak <= limit + limit * TOLERANCE_PERCENT / 100, "{peak} bytes of {limit}");
}

#[test]
fn memory_stays_within_64_mib_on_io_uring() {
    memory_stays_within("io_uring", 64);
}

#[test]
fn memory_stays_within_64_mib_on_epoll() {
    memory_stays_within("epoll", 64);
}

#[test]
#[ignore = "takes long"]
fn slow_memory_stays_within_256_mib_on_io_uring() {
    memory_stays_within("io_uring", 256);
}

#[test]
#[ignore = "takes long"]
fn slow_memory_stays_within_256_mib_on_epoll() {
    memory_stays_within("epoll", 256);
}

#[test]
fn a_volume_set_to_bypass_frees_its_memory() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), "io_uring", 256);
    let volume = |name: &str| {
        let status = daemon.status();
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
    };
    let cached = |name: &str| volume(name)["cached_bytes"].as_u64().unwrap();
    for name in ["write-back", "write-through"] {
        let mut client = daemon.client(name);
        for n in 0..64 {
            client.write(n * MIB, &[n as u8 + 1; MIB as usize]).unwrap();
        }
    }
    assert_eq!((cached("write-back"), cached("write-through")), (64 * MIB, 64 * MIB));

    let (code, text) = daemon.run(&["volume", "set", "write-back", "mode=bypass"]);
    assert_eq!(code, Some(0), "{text}");
    // Dirty data must be on the disk before the effective mode changes.
    wait_until("the effective mode is bypass", PATIENCE, || {
        volume("write-back")["effective_mode"] == "bypass"
    });
    let bypassed = volume("write-back");
    let usage = (&bypassed["cached_bytes"], &bypassed["dirty_bytes"]);
    assert_eq!(usage, (&0.into(), &0.into()), "{bypassed}");
    assert_eq!(cached("write-through"), 64 * MIB);
    let disk = std::fs::read(directory.path().join("write-back.img")).unwrap();
    let mut client = daemon.client("write-back");
    for n in 0..64 {
        let [from, to] = [n, n + 1].map(|n| (n * MIB) as usize);
        assert!(disk[from..to].iter().all(|&byte| byte == n as u8 + 1), "MiB {n} on the disk");
        assert!(client.read(n * MIB, MIB).unwrap() == disk[from..to], "MiB {n} through the cache");
    }
    assert_eq!(cached("write-back"), 0, "reads do not fill the cache");
    daemon.stop();
}
