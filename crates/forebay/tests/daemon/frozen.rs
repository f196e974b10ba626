//! Frozen volumes: a scan displaces nothing, writes do not become slow, and nothing is read in the
//! background.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::kept::reconnect;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, run_forebay};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const LINE: u64 = 4096;
const DISK_BYTES: u64 = 256 * MIB;
/// What is in memory before a freeze: the lines of these bytes.
const HOT_BYTES: u64 = 4 * MIB;
/// No measurement of the disk, and no I/O but that of clients.
const QUIET: &str = "gather-below=off,learn=no";

/// The content of a line: every 16th has some, the others are zeroes.
fn content(line: u64, seed: u64) -> Vec<u8> {
    match line % 16 {
        0 => (0..LINE / 8).flat_map(|word| (line << 20 | word << 8 | seed).to_le_bytes()).collect(),
        _ => vec![0; LINE as usize],
    }
}

fn volume(directory: &Path, name: &str, seed: u64, settings: &str) -> String {
    let path = directory.join(format!("{name}.img"));
    make_file(&path, DISK_BYTES);
    let disk = File::options().write(true).open(&path).unwrap();
    let lines = (0..DISK_BYTES / LINE).step_by(16);
    lines.for_each(|line| disk.write_all_at(&content(line, seed), line * LINE).unwrap());
    format!("{name}={},{QUIET}{settings}", path.display())
}

fn status_of(daemon: &Daemon, name: &str) -> serde_json::Value {
    let status = daemon.status();
    let volumes = status["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
}

fn counter(daemon: &Daemon, volume: &str, name: &str) -> u64 {
    status_of(daemon, volume)["counters"][name].as_u64().unwrap()
}

/// Runs a command that succeeds. Returns its output.
fn succeed(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = daemon.run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

/// Reads bytes from the start of a volume line by line, and checks them.
fn read_hot(client: &mut Client, seed: u64) {
    for line in 0..HOT_BYTES / LINE {
        let found = client.read(line * LINE, LINE).unwrap();
        assert!(found == content(line, seed), "line {line}");
    }
}

/// Reads the hot lines of a volume, all of which must come from memory.
fn hit_hot(daemon: &Daemon, volume: &str, seed: u64) {
    let counts = || ["read_hits", "backend_reads"].map(|name| counter(daemon, volume, name));
    let before = counts();
    read_hot(&mut daemon.client(volume), seed);
    assert_eq!(counts(), [before[0] + HOT_BYTES / LINE, before[1]], "all reads are hits");
}

/// Reads several times the size of the pool in sequence, and checks it.
fn scan(daemon: &Daemon, volume: &str, seed: u64) -> u64 {
    let mut client = daemon.client(volume);
    let pool_bytes = daemon.status()["memory"]["pool_bytes"].as_u64().unwrap();
    let end = HOT_BYTES + 4 * pool_bytes;
    assert!(end <= DISK_BYTES, "the disk is too small for the scan");
    for offset in (HOT_BYTES..end).step_by(MIB as usize) {
        let lines = offset / LINE..(offset + MIB) / LINE;
        let expected: Vec<u8> = lines.flat_map(|line| content(line, seed)).collect();
        assert!(client.read(offset, MIB).unwrap() == expected, "MiB at {offset}");
    }
    4 * pool_bytes
}

#[test]
fn a_scan_of_a_frozen_volume_displaces_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [volume(there, "disk", 1, ""), volume(there, "other", 2, ",prefetch=no")];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    read_hot(&mut daemon.client("disk"), 1);
    read_hot(&mut daemon.client("other"), 2);
    let text = succeed(&daemon, &["volume", "freeze", "disk"]);
    assert_eq!(text, "volume 'disk' is frozen: it admits nothing into memory\n");
    let before = status_of(&daemon, "disk");
    assert_eq!((&before["frozen"], &before["settings"]["frozen"]), (&true.into(), &true.into()));
    let scanned = scan(&daemon, "disk", 1);
    let after = status_of(&daemon, "disk");
    assert_eq!(after["cached_bytes"], before["cached_bytes"], "nothing was admitted");
    for name in ["prefetched_bytes", "admitted_bytes", "evicted_bytes"] {
        assert_eq!(after["counters"][name], before["counters"][name], "{name}");
    }
    let past = after["counters"]["uncached_reads"]["frozen"].as_u64().unwrap();
    assert!(past > scanned / MIB / 2 && past <= scanned / MIB, "{past} reads past the cache");
    hit_hot(&daemon, "disk", 1);
    hit_hot(&daemon, "other", 2);
    // It is seen at a glance.
    assert!(succeed(&daemon, &["status"]).contains(" frozen "));
    let text = succeed(&daemon, &["status", "disk"]);
    assert!(text.contains("volume disk: frozen, write-through"), "{text}");
    assert!(text.contains("nothing is admitted until `forebay volume thaw`"), "{text}");
    assert!(succeed(&daemon, &["stats", "disk"]).contains("frozen"));
    // Once it is thawed, a scan is read ahead and displaces what is used less.
    let text = succeed(&daemon, &["volume", "thaw", "disk"]);
    assert_eq!(text, "volume 'disk' is thawed: 256 MiB, write-through\n");
    assert!(!succeed(&daemon, &["status"]).contains("frozen"));
    scan(&daemon, "disk", 1);
    let thawed = status_of(&daemon, "disk");
    assert!(thawed["counters"]["evicted_bytes"].as_u64().unwrap() > 0, "{thawed}");
    daemon.wait_for_log("volume frozen, it admits nothing into memory");
    daemon.wait_for_log("volume thawed");
    daemon.stop();
}

#[test]
fn writes_to_a_frozen_write_back_volume_are_acknowledged_from_memory_and_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let settings = format!(",{UNPROTECTED},frozen=yes");
    let daemon = Daemon::start(there, "auto", "64MiB", &[volume(there, "disk", 1, &settings)]);
    succeed(&daemon, &["volume", "thaw", "disk"]);
    let mut client = daemon.client("disk");
    read_hot(&mut client, 1);
    succeed(&daemon, &["volume", "set", "disk", "frozen=yes"]);
    let cached = status_of(&daemon, "disk")["cached_bytes"].clone();
    // Short writes beside what is cached, a long one, which is received into the pool, and one to
    // a line that is in memory.
    let payload = content(16, 7);
    for line in 0..64 {
        client.write(128 * MIB + line * 2 * LINE, &payload).unwrap();
    }
    client.write(160 * MIB, &payload.repeat(256)).unwrap();
    client.write(0, &content(0, 1)).unwrap();
    assert_eq!(counter(&daemon, "disk", "deferred_writes"), 66, "no write waits for the disk");
    succeed(&daemon, &["volume", "flush", "disk"]);
    let status = status_of(&daemon, "disk");
    assert_eq!((&status["dirty_bytes"], &status["cached_bytes"]), (&0.into(), &cached));
    hit_hot(&daemon, "disk", 1);
    let disk = File::open(there.join("disk.img")).unwrap();
    let mut found = vec![0; LINE as usize];
    for offset in [128 * MIB, 128 * MIB + 126 * LINE, 160 * MIB, 161 * MIB - LINE] {
        disk.read_exact_at(&mut found, offset).unwrap();
        assert!(found == payload, "the disk at {offset}");
        assert!(client.read(offset, LINE).unwrap() == payload, "the volume at {offset}");
    }
    daemon.stop();
}

#[test]
fn an_upgrade_keeps_the_dirty_data_of_a_frozen_volume() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let settings = format!(",{UNPROTECTED},frozen=yes");
    let daemon = Daemon::start_kept(there, "auto", "64MiB", &[volume(there, "disk", 1, &settings)]);
    let mut client = daemon.client("disk");
    let at = |index: u64| 128 * MIB + index * 2 * LINE;
    (0..64).for_each(|index| client.write(at(index), &content(16 * index, 7)).unwrap());
    drop(client);
    let dirty = status_of(&daemon, "disk")["dirty_bytes"].as_u64().unwrap();
    assert!(dirty > 0, "the disk lacks some of it");
    let (code, text) = run_forebay(there, &["upgrade"]);
    assert!(code == Some(0) && text.contains("has taken over"), "{text}");
    let mut client = reconnect(&daemon);
    assert_eq!(status_of(&daemon, "disk")["frozen"], true);
    for index in 0..64 {
        assert!(client.read(at(index), LINE).unwrap() == content(16 * index, 7), "line {index}");
    }
    succeed(&daemon, &["volume", "flush", "disk"]);
    wait_until("nothing is kept", PATIENCE, || status_of(&daemon, "disk")["cached_bytes"] == 0);
    daemon.stop();
    let disk = std::fs::read(there.join("disk.img")).unwrap();
    for index in 0..64 {
        let found = &disk[at(index) as usize..][..LINE as usize];
        assert!(found == content(16 * index, 7), "line {index} of the disk");
    }
}

#[test]
fn a_warm_up_waits_for_the_thaw() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let plain = volume(there, "disk", 1, ",prefetch=no");
    let frozen = format!("{plain},frozen=yes");
    let daemon = Daemon::start(there, "auto", "64MiB", &[plain]);
    read_hot(&mut daemon.client("disk"), 1);
    daemon.stop();
    let warm_up = |daemon: &Daemon| status_of(daemon, "disk")["warm_up"].clone();
    // The list survives a run in which nothing is read into memory.
    for extra in [0, MIB] {
        let daemon = Daemon::start(there, "auto", "64MiB", std::slice::from_ref(&frozen));
        wait_until("the list is read", PATIENCE, || {
            warm_up(&daemon)["planned_bytes"] == HOT_BYTES + extra
        });
        assert_eq!(
            (&warm_up(&daemon)["state"], counter(&daemon, "disk", "preloaded_bytes")),
            (&"loading".into(), 0)
        );
        assert!(succeed(&daemon, &["volume", "list"]).contains(" frozen "));
        // Pinned data is in memory nevertheless.
        succeed(&daemon, &["pin", "disk", "64MiB+1MiB"]);
        wait_until("pinned", PATIENCE, || {
            status_of(&daemon, "disk")["pins"]["loaded_bytes"] == MIB
        });
        assert_eq!(status_of(&daemon, "disk")["cached_bytes"], MIB);
        succeed(&daemon, &["unpin", "disk", "all"]);
        daemon.stop();
    }
    let daemon = Daemon::start(there, "auto", "64MiB", std::slice::from_ref(&frozen));
    succeed(&daemon, &["volume", "thaw", "disk"]);
    wait_until("warm", PATIENCE, || warm_up(&daemon)["state"] == "loaded");
    hit_hot(&daemon, "disk", 1);
    daemon.stop();
}

#[test]
fn a_mistake_is_refused_with_what_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (code, text) = run_forebay(there, &["volume", "freeze", "disk"]);
    assert_eq!(code, Some(1), "{text}");
    let daemon = Daemon::start(there, "auto", "64MiB", &["disk=memory:16MiB".into()]);
    for (arguments, expected) in [
        (&["volume", "freeze", "dsik"][..], "no volume 'dsik'"),
        (&["volume", "thaw", "dsik"], "no volume 'dsik'"),
        (&["volume", "freeze"], "NAME"),
        (&["volume", "freeze", "disk", "now"], "now"),
        (&["volume", "set", "disk", "frozen=maybe"], "frozen"),
        (&["volume", "set", "disk", "frozen="], "frozen"),
    ] {
        let (code, text) = daemon.run(arguments);
        assert!(code != Some(0) && text.contains(expected), "{arguments:?}: {text}");
    }
    assert_eq!(status_of(&daemon, "disk")["frozen"], false);
    // Both may be repeated.
    for verb in ["thaw", "freeze", "freeze", "thaw", "thaw"] {
        succeed(&daemon, &["volume", verb, "disk"]);
    }
    daemon.wait_for_log_times("volume frozen", 1);
    daemon.stop();
}
