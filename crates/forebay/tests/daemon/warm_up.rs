//! Warm-ups: after an orderly stop, the next start reads what was valuable in memory again.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const LINE: u64 = 4096;
const DISK_BYTES: u64 = 32 * MIB;
/// No measurement of the disk, and no I/O but that of clients and warm-ups.
const QUIET: &str = "prefetch=no,gather-below=off";

/// The content of a line of the disk: its number and `seed`, which differs between disks.
fn content(line: u64, seed: u64) -> Vec<u8> {
    let words = (0..LINE / 8).map(|word| (line << 20 | word << 8 | seed).to_le_bytes());
    words.flatten().collect()
}

/// Creates a disk whose lines have this content.
fn make_disk(directory: &Path, bytes: u64, seed: u64) -> PathBuf {
    let path = directory.join("disk.img");
    let mut lines = Vec::with_capacity(bytes as usize);
    (0..bytes / LINE).for_each(|line| lines.extend_from_slice(&content(line, seed)));
    fs::write(&path, lines).unwrap();
    path
}

/// Some lines all over the disk, and some adjacent ones.
fn hot_lines() -> Vec<u64> {
    (0..DISK_BYTES / LINE).filter(|line| line % 67 == 5 || (3_000..3_100).contains(line)).collect()
}

/// Reads lines and checks their content.
fn read_lines(daemon: &Daemon, lines: &[u64], seed: u64) {
    let mut client = daemon.client("disk");
    for &line in lines {
        assert_eq!(client.read(line * LINE, LINE).unwrap(), content(line, seed), "line {line}");
    }
}

fn start(directory: &Path, volume: &str) -> Daemon {
    Daemon::start_with(directory, "auto", "64MiB", &[volume.to_owned()], &[])
}

fn volume_status(daemon: &Daemon) -> serde_json::Value {
    daemon.status()["volumes"][0].clone()
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    volume_status(daemon)["counters"][name].as_u64().unwrap()
}

fn state(daemon: &Daemon) -> String {
    volume_status(daemon)["warm_up"]["state"].as_str().unwrap().to_owned()
}

fn wait_for_state(daemon: &Daemon, wanted: &str) {
    wait_until(wanted, PATIENCE, || {
        let state = state(daemon);
        assert!(state == "loading" || state == wanted, "{state}");
        state == wanted
    });
}

/// The files of warm lists in the state directory.
fn list_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("state")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "list")).collect()
}

/// The list of the only volume.
fn list_file(directory: &Path) -> PathBuf {
    let [path] = &list_files(directory)[..] else { panic!("one list") };
    path.clone()
}

/// A directory with a disk and with the list of a daemon that has read the hot lines.
fn stopped(volume_of: impl Fn(&Path) -> String) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = make_disk(directory.path(), DISK_BYTES, 1);
    let daemon = start(directory.path(), &volume_of(&path));
    // There is no list yet.
    wait_for_state(&daemon, "none");
    read_lines(&daemon, &hot_lines(), 1);
    daemon.stop();
    directory
}

fn volume(path: &Path) -> String {
    format!("disk={},{QUIET}", path.display())
}

#[test]
fn what_was_valuable_before_a_stop_is_in_memory_after_the_next_start() {
    let directory = stopped(volume);
    let there = directory.path();
    let daemon = start(there, &volume(&there.join("disk.img")));
    wait_for_state(&daemon, "loaded");
    let bytes = hot_lines().len() as u64 * LINE;
    let status = volume_status(&daemon);
    assert_eq!(status["warm_up"]["planned_bytes"], bytes, "{status}");
    assert_eq!(status["warm_up"]["done_bytes"], bytes, "{status}");
    assert_eq!(status["cached_bytes"], bytes, "{status}");
    assert_eq!(counter(&daemon, "preloaded_bytes"), bytes);
    assert_eq!(counter(&daemon, "preload_used_bytes"), 0);
    let backend_reads = counter(&daemon, "backend_reads");
    read_lines(&daemon, &hot_lines(), 1);
    assert_eq!(counter(&daemon, "read_hits"), hot_lines().len() as u64);
    assert_eq!(counter(&daemon, "backend_reads"), backend_reads, "all reads are hits");
    assert_eq!(counter(&daemon, "preload_used_bytes"), bytes);
    assert_eq!(counter(&daemon, "preload_in_vain_bytes"), 0);
    let (code, text) = daemon.run(&["status", "disk"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("  warm-up             loaded, "), "{text}");
    // A line that was not in memory is not there.
    read_lines(&daemon, &[1], 1);
    assert_eq!(counter(&daemon, "read_misses"), 1);
    daemon.stop();
}

#[test]
fn a_volume_with_warm_no_has_no_list_and_no_warm_up() {
    let directory = stopped(volume);
    let there = directory.path();
    let cold = format!("{},warm=no", volume(&there.join("disk.img")));
    let daemon = start(there, &cold);
    read_lines(&daemon, &hot_lines(), 1);
    assert_eq!(counter(&daemon, "read_misses"), hot_lines().len() as u64);
    assert_eq!((state(&daemon).as_str(), counter(&daemon, "preloaded_bytes")), ("none", 0));
    daemon.stop();
    assert!(list_files(there).is_empty());
    // The list is kept again from the next change on.
    let daemon = start(there, &cold);
    let (code, text) = daemon.run(&["volume", "set", "disk", "warm=yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(volume_status(&daemon)["settings"]["warm"], true);
    read_lines(&daemon, &[7, 8], 1);
    daemon.stop();
    let daemon = start(there, &volume(&there.join("disk.img")));
    wait_for_state(&daemon, "loaded");
    assert_eq!(counter(&daemon, "preloaded_bytes"), 2 * LINE);
    daemon.stop();
}

/// Starts after a change of the list or the disk: the list is ignored with one line in the log,
/// reads are right, and the next stop replaces the list.
fn check_ignored(directory: &Path, reason: &str, seed: u64) {
    let volume = volume(&directory.join("disk.img"));
    let _ = fs::remove_file(directory.join("log"));
    let daemon = start(directory, &volume);
    wait_for_state(&daemon, "unusable");
    read_lines(&daemon, &hot_lines()[..200], seed);
    assert_eq!(counter(&daemon, "read_misses"), 200, "{reason}");
    assert_eq!((counter(&daemon, "preloaded_bytes"), counter(&daemon, "errors")), (0, 0));
    daemon.wait_for_log_times("warm list ignored", 1);
    daemon.wait_for_log(reason);
    daemon.stop();
    let daemon = start(directory, &volume);
    wait_for_state(&daemon, "loaded");
    read_lines(&daemon, &hot_lines()[..200], seed);
    assert_eq!(counter(&daemon, "read_hits"), 200, "{reason}");
    daemon.stop();
}

#[test]
fn a_damaged_list_is_ignored_and_replaced() {
    let directory = stopped(volume);
    let there = directory.path();
    let list = fs::read(list_file(there)).unwrap();
    let change = |change: &dyn Fn(&mut Vec<u8>), reason| {
        let mut changed = list.clone();
        change(&mut changed);
        fs::write(list_file(there), changed).unwrap();
        check_ignored(there, reason, 1);
    };
    change(&|list| list[200] ^= 1, "its checksum is wrong");
    change(&|list| list[8] = 9, "its version is 9");
    change(&|list| list.truncate(300), "its length is wrong");
    change(&|list| list.clear(), "it is not a warm list");
    change(&|list| list.fill(0xff), "it is not a warm list");
    // Sparse: more than the daemon may read.
    File::options().write(true).open(list_file(there)).unwrap().set_len(1 << 40).unwrap();
    check_ignored(there, "it is longer than", 1);
}

#[test]
fn the_list_of_another_disk_is_ignored_and_another_content_is_read_from_the_disk() {
    let directory = stopped(volume);
    let there = directory.path();
    make_disk(there, DISK_BYTES / 2 + LINE, 2);
    let lines: Vec<u64> =
        hot_lines().into_iter().filter(|line| line * LINE < DISK_BYTES / 2).collect();
    let daemon = start(there, &volume(&there.join("disk.img")));
    wait_for_state(&daemon, "unusable");
    daemon.wait_for_log("it belongs to a disk of 32 MiB");
    read_lines(&daemon, &lines[..], 2);
    daemon.stop();
    // The same size: the list is used, and the lines are those of the new disk.
    make_disk(there, DISK_BYTES / 2 + LINE, 3);
    let daemon = start(there, &volume(&there.join("disk.img")));
    wait_for_state(&daemon, "loaded");
    read_lines(&daemon, &lines, 3);
    assert_eq!(counter(&daemon, "read_hits"), lines.len() as u64);
    daemon.stop();
    // The same file as the disk of another backing.
    let other = format!("disk=delay(read=0ms):{},{QUIET}", there.join("disk.img").display());
    let daemon = start(there, &other);
    wait_for_state(&daemon, "unusable");
    daemon.wait_for_log("it belongs to another volume or backing");
    daemon.stop();
}

/// Writes to lines while they are preloaded. Each read takes some milliseconds, so that the warm-up
/// does not end before the first write.
fn write_during_the_warm_up(options: &str) {
    let volume_of = |path: &Path| format!("disk=delay(read=20ms):{},{options}", path.display());
    let directory = stopped(volume_of);
    let there = directory.path();
    let path = there.join("disk.img");
    let daemon = start(there, &volume_of(&path));
    let mut expected = fs::read(&path).unwrap();
    let (mut client, mut random) = (daemon.client("disk"), Random::new(5));
    let lines = hot_lines();
    let mut writes = 0;
    while writes < 400 || state(&daemon) == "loading" {
        assert!(writes < 1 << 20, "the warm-up does not end");
        for _ in 0..20 {
            // Some sectors, which may reach into lines that are not preloaded.
            let line = lines[random.below(lines.len() as u64) as usize];
            let first = line * LINE + random.below(8) * 512;
            let len = (1 + random.below(16)) * 512;
            let len = len.min(DISK_BYTES - first);
            writes += 1;
            let bytes = vec![(writes % 251) as u8; len as usize];
            client.write(first, &bytes).unwrap();
            expected[first as usize..][..len as usize].copy_from_slice(&bytes);
        }
    }
    assert_eq!(state(&daemon), "loaded");
    assert!(counter(&daemon, "preloaded_bytes") > 0);
    for offset in (0..DISK_BYTES).step_by(MIB as usize) {
        let read = client.read(offset, MIB).unwrap();
        assert!(read == expected[offset as usize..][..MIB as usize], "at {offset}");
    }
    drop(client);
    assert_eq!(counter(&daemon, "errors"), 0);
    daemon.stop();
    let disk = File::open(&path).unwrap();
    let mut found = vec![0; DISK_BYTES as usize];
    disk.read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected, "the disk has the last writes");
}

#[test]
fn writes_during_a_warm_up_are_not_overwritten() {
    write_during_the_warm_up(&format!("{QUIET},{UNPROTECTED}"));
}

#[test]
fn writes_through_during_a_warm_up_are_not_overwritten() {
    write_during_the_warm_up(QUIET);
}
