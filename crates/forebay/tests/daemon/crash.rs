//! Killed at any moment: what was acknowledged is there after the restart, as far as the mode
//! promises it.

use crate::common::client::Client;
use crate::common::random::Random;
use crate::process::Daemon;
use forebay_nbd::Command;
use std::time::{Duration, Instant};

pub const MIB: u64 = 1 << 20;
pub const SIZE_BYTES: u64 = 16 * MIB;
pub const LINES: u64 = SIZE_BYTES / 4096;

/// What a line was last written with, and may be as long as that is not on the disk.
#[derive(Clone, Default)]
pub struct Line {
    /// The newest version that must be there.
    promised: u64,
    /// The newest version that was sent.
    sent: u64,
}

pub fn content(line: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; 4096] } else { Random::new(line << 32 | version).bytes(4096) }
}

/// Writes for a while, with the daemon killed while requests are in flight.
pub fn write_and_kill(daemon: Daemon, lines: &mut [Line], random: &mut Random, waits: bool) {
    let client = daemon.client("disk");
    write_until(client, lines, random, waits, || daemon.kill());
}

/// Writes for a while, until something happens while requests are in flight.
pub fn write_until(
    mut client: Client,
    lines: &mut [Line],
    random: &mut Random,
    waits: bool,
    end: impl FnOnce(),
) {
    let mut in_flight: Vec<(u64, u64, u64)> = Vec::new();
    // What is acknowledged and not flushed yet.
    let mut acknowledged = vec![0; lines.len()];
    let settle = |client: &mut Client, acknowledged: &mut Vec<u64>, (cookie, line, version)| {
        let _: (u64, u64, u64) = (cookie, line, version);
        client.wait(cookie).result.unwrap();
        acknowledged[line as usize] = version;
    };
    for step in 0..600 + random.below(200) {
        let line = random.below(LINES);
        if let Some(at) = in_flight.iter().position(|&(_, other, _)| other == line) {
            settle(&mut client, &mut acknowledged, in_flight.swap_remove(at));
        }
        if in_flight.len() >= 16 {
            settle(&mut client, &mut acknowledged, in_flight.remove(0));
        }
        if step % 100 == 99 {
            for sent in in_flight.drain(..) {
                settle(&mut client, &mut acknowledged, sent);
            }
            client.flush().unwrap();
            for (line, &version) in lines.iter_mut().zip(&acknowledged) {
                line.promised = line.promised.max(version);
            }
        }
        let state = &mut lines[line as usize];
        state.sent += 1;
        let data = content(line, state.sent);
        let cookie = client.send(Command::Write, 0, line * 4096, 4096, &data);
        in_flight.push((cookie, line, state.sent));
    }
    if waits {
        for (line, &version) in lines.iter_mut().zip(&acknowledged) {
            line.promised = line.promised.max(version);
        }
    }
    end();
}

pub fn check(disk: &[u8], lines: &mut [Line]) {
    for (number, (line, found)) in lines.iter_mut().zip(disk.chunks(4096)).enumerate() {
        let versions = line.promised..=line.sent;
        let version = versions.rev().find(|&version| content(number as u64, version) == found);
        let version = version.unwrap_or_else(|| panic!("line {number} lost what was promised"));
        // From here on this is what there is.
        (line.promised, line.sent) = (version, line.sent.max(version));
    }
}

fn killed_and_restarted(io: &str, mode: &str, waits: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    let volume = format!("disk={},{mode}", path.display());
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(42);
    for _ in 0..5 {
        // The socket of the one before is still lying there, and must not be in the way.
        let daemon = Daemon::start(directory.path(), io, "64MiB", std::slice::from_ref(&volume));
        write_and_kill(daemon, &mut lines, &mut random, waits);
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
    assert_eq!(after[4096..12288], [9; 8192], "an orderly stop writes everything back");
    assert!(after[..4096] == before[..4096] && after[12288..] == before[12288..]);
}

const WRITE_BACK: &str = "mode=write-back,protection=none,accept-loss=yes";

#[test]
fn killed_in_write_through_keeps_every_acknowledged_write_on_io_uring() {
    killed_and_restarted("io_uring", "mode=write-through", true);
}

#[test]
fn killed_in_write_through_keeps_every_acknowledged_write_on_epoll() {
    killed_and_restarted("epoll", "mode=write-through", true);
}

#[test]
fn killed_in_write_back_keeps_every_flushed_write_on_io_uring() {
    killed_and_restarted("io_uring", WRITE_BACK, false);
}

#[test]
fn killed_in_write_back_keeps_every_flushed_write_on_epoll() {
    killed_and_restarted("epoll", WRITE_BACK, false);
}

/// The same where the journal has what the disk lacks: what counts is what the next server says.
/// Returns the longest time from a kill to the first answer of the next server.
fn killed_with_a_journal(io: &str, durability: &str, kills: usize) -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::File::create(path("disk.img")).unwrap().set_len(SIZE_BYTES).unwrap();
    std::fs::File::create(path("journal.img")).unwrap().set_len(40 * MIB).unwrap();
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
    // After an orderly stop the disk alone has everything.
    check(&std::fs::read(&disk).unwrap(), &mut lines);
    longest
}

#[test]
fn killed_with_a_journal_keeps_every_acknowledged_write_on_io_uring() {
    killed_with_a_journal("io_uring", "ack", 5);
}

#[test]
fn killed_with_a_journal_keeps_every_acknowledged_write_on_epoll() {
    killed_with_a_journal("epoll", "ack", 5);
}

#[test]
fn killed_with_a_journal_keeps_every_flushed_write() {
    killed_with_a_journal("io_uring", "flush", 5);
}

/// How often, `FOREBAY_KILLS` says.
#[test]
#[ignore = "takes ten minutes"]
fn slow_killed_a_thousand_times_with_a_journal() {
    let kills = std::env::var("FOREBAY_KILLS").ok().and_then(|text| text.parse().ok());
    let longest = killed_with_a_journal("io_uring", "ack", kills.unwrap_or(1000));
    println!("longest outage: {} ms", longest.as_millis());
}
