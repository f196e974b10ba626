//! Kills under load: after a restart, every write that the mode and protection promise is present.

use crate::common::client::Client;
use crate::common::random::Random;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file};
use forebay_nbd::NbdCommand;
use std::time::{Duration, Instant};

pub const SIZE_BYTES: u64 = 16 * MIB;
pub const LINES: u64 = SIZE_BYTES / 4096;

/// The versions that a line may hold after a kill: any from `promised` to `sent`.
#[derive(Clone, Default)]
pub struct Line {
    /// The oldest version allowed.
    promised: u64,
    /// The newest version sent.
    sent: u64,
}

pub fn content(line: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; 4096] } else { Random::new(line << 32 | version).bytes(4096) }
}

/// Writes for a while, then kills the daemon with requests in flight. See [`write_until`].
pub fn write_and_kill(daemon: Daemon, lines: &mut [Line], random: &mut Random, keeps_acked: bool) {
    let client = daemon.client("disk");
    write_until(client, lines, random, keeps_acked, || daemon.kill());
}

/// Writes for a while, then calls `end` with requests in flight. With `keeps_acked`, acknowledged
/// writes count as promised, otherwise only flushed ones.
pub fn write_until(
    mut client: Client,
    lines: &mut [Line],
    random: &mut Random,
    keeps_acked: bool,
    end: impl FnOnce(),
) {
    let mut in_flight: Vec<(u64, u64, u64)> = Vec::new();
    // For each line, the newest acknowledged version.
    let mut acknowledged = vec![0; lines.len()];
    let receive = |client: &mut Client, acknowledged: &mut Vec<u64>, (cookie, line, version)| {
        let _: (u64, u64, u64) = (cookie, line, version);
        client.wait(cookie).result.unwrap();
        acknowledged[line as usize] = version;
    };
    for step in 0..600 + random.below(200) {
        let line = random.below(LINES);
        if let Some(at) = in_flight.iter().position(|&(_, other, _)| other == line) {
            receive(&mut client, &mut acknowledged, in_flight.swap_remove(at));
        }
        if in_flight.len() >= 16 {
            receive(&mut client, &mut acknowledged, in_flight.remove(0));
        }
        if step % 100 == 99 {
            for sent in in_flight.drain(..) {
                receive(&mut client, &mut acknowledged, sent);
            }
            client.flush().unwrap();
            for (line, &version) in lines.iter_mut().zip(&acknowledged) {
                line.promised = line.promised.max(version);
            }
        }
        let state = &mut lines[line as usize];
        state.sent += 1;
        let data = content(line, state.sent);
        let cookie = client.send(NbdCommand::Write, 0, line * 4096, 4096, &data);
        in_flight.push((cookie, line, state.sent));
    }
    if keeps_acked {
        for (line, &version) in lines.iter_mut().zip(&acknowledged) {
            line.promised = line.promised.max(version);
        }
    }
    end();
}

/// Asserts that each line holds an allowed version, and allows no older one from now on.
pub fn check(disk: &[u8], lines: &mut [Line]) {
    for (number, (line, found)) in lines.iter_mut().zip(disk.chunks(4096)).enumerate() {
        let versions = line.promised..=line.sent;
        let version = versions.rev().find(|&version| content(number as u64, version) == found);
        let version = version.unwrap_or_else(|| panic!("line {number} lost a promised write"));
        (line.promised, line.sent) = (version, line.sent.max(version));
    }
}

fn kill_and_restart(io: &str, mode: &str, keeps_acked: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, SIZE_BYTES);
    let volume = format!("disk={},{mode}", path.display());
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(42);
    for _ in 0..5 {
        // The killed daemon's socket file still exists; the start must replace it.
        let daemon = Daemon::start(directory.path(), io, "64MiB", std::slice::from_ref(&volume));
        write_and_kill(daemon, &mut lines, &mut random, keeps_acked);
        check(&std::fs::read(&path).unwrap(), &mut lines);
    }
    let daemon = Daemon::start(directory.path(), io, "64MiB", &[volume]);
    let mut client = daemon.client("disk");
    let before = std::fs::read(&path).unwrap();
    assert_eq!(client.read(0, SIZE_BYTES).unwrap(), before);
    client.write(4096, &[9; 8192]).unwrap();
    drop(client);
    daemon.stop();
    let after = std::fs::read(&path).unwrap();
    assert_eq!(after[4096..12288], [9; 8192], "a clean shutdown flushes all dirty data");
    assert!(after[..4096] == before[..4096] && after[12288..] == before[12288..]);
}

#[test]
fn killed_in_write_through_keeps_every_acknowledged_write_on_io_uring() {
    kill_and_restart("io_uring", "mode=write-through", true);
}

#[test]
fn killed_in_write_through_keeps_every_acknowledged_write_on_epoll() {
    kill_and_restart("epoll", "mode=write-through", true);
}

#[test]
fn killed_in_write_back_keeps_every_flushed_write_on_io_uring() {
    kill_and_restart("io_uring", UNPROTECTED, false);
}

#[test]
fn killed_in_write_back_keeps_every_flushed_write_on_epoll() {
    kill_and_restart("epoll", UNPROTECTED, false);
}

/// Kills a daemon with a journal, and checks reads from the next one, as the disk alone may be
/// stale. Returns the longest time from a kill to the first answer of the next server.
fn kill_with_a_journal(io: &str, durability: &str, kills: usize) -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    make_file(path("disk.img"), SIZE_BYTES);
    make_file(path("journal.img"), 40 * MIB);
    let (disk, journal) = (path("disk.img"), path("journal.img"));
    let volume = format!(
        "disk={},mode=write-back,protection=journal,durability={durability},journal={}",
        disk.display(),
        journal.display()
    );
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(43);
    let mut longest = Duration::ZERO;
    for _ in 0..kills {
        let killed = Instant::now();
        let daemon = Daemon::start(directory.path(), io, "64MiB", std::slice::from_ref(&volume));
        let mut client = daemon.client("disk");
        client.read(0, 4096).unwrap();
        longest = longest.max(killed.elapsed());
        check(&client.read(0, SIZE_BYTES).unwrap(), &mut lines);
        drop(client);
        write_and_kill(daemon, &mut lines, &mut random, durability == "ack");
    }
    let daemon = Daemon::start(directory.path(), io, "64MiB", &[volume]);
    check(&daemon.client("disk").read(0, SIZE_BYTES).unwrap(), &mut lines);
    daemon.stop();
    // After a clean shutdown the disk alone has all data.
    check(&std::fs::read(&disk).unwrap(), &mut lines);
    longest
}

#[test]
fn killed_with_a_journal_keeps_every_acknowledged_write_on_io_uring() {
    kill_with_a_journal("io_uring", "ack", 5);
}

#[test]
fn killed_with_a_journal_keeps_every_acknowledged_write_on_epoll() {
    kill_with_a_journal("epoll", "ack", 5);
}

#[test]
fn killed_with_a_journal_keeps_every_flushed_write() {
    kill_with_a_journal("io_uring", "flush", 5);
}

/// `FOREBAY_KILLS` sets the number of kills.
#[test]
#[ignore = "takes ten minutes"]
fn slow_killed_a_thousand_times_with_a_journal() {
    let kills = std::env::var("FOREBAY_KILLS").ok().and_then(|text| text.parse().ok());
    let longest = kill_with_a_journal("io_uring", "ack", kills.unwrap_or(1000));
    println!("longest outage: {} ms", longest.as_millis());
}
