//! Pinned ranges: their data is read into memory and stays there, and no data depends on it.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::kept::reconnect;
use crate::memory_limits::{machine, set_memory};
use crate::process::{Daemon, MIB, make_file, on_one_line, run_forebay};
use forebay_nbd::NbdCommand;
use forebay_types::{Bytes, Size};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const LINE: u64 = 4096;
const DISK_BYTES: u64 = 512 * MIB;
/// No measurement of the disk, and no I/O but that of clients and pins.
const QUIET: &str = "prefetch=no,gather-below=off,warm=no";
/// What is pinned: two ranges, one of them of a single line.
const PINNED: [(u64, u64); 2] = [(3 * MIB, 2 * MIB), (40 * MIB, LINE)];

/// The content of a line of the pinned ranges.
fn content(line: u64) -> Vec<u8> {
    (0..LINE / 8).flat_map(|word| (line << 12 | word).to_le_bytes()).collect()
}

fn pinned_lines() -> impl Iterator<Item = u64> {
    PINNED.into_iter().flat_map(|(offset, len)| offset / LINE..(offset + len) / LINE)
}

/// A disk with content in the ranges to be pinned, and zeroes elsewhere.
fn make_disk(directory: &Path) -> PathBuf {
    let path = directory.join("disk.img");
    make_file(&path, DISK_BYTES);
    let disk = File::options().write(true).open(&path).unwrap();
    pinned_lines().for_each(|line| disk.write_all_at(&content(line), line * LINE).unwrap());
    path
}

fn volume(directory: &Path, settings: &str) -> String {
    format!("disk={},{QUIET}{settings}", make_disk(directory).display())
}

fn start(directory: &Path, io: &str, settings: &str) -> Daemon {
    Daemon::start(directory, io, "64MiB", &[volume(directory, settings)])
}

fn status_of(daemon: &Daemon, volume: usize) -> serde_json::Value {
    daemon.status()["volumes"][volume].clone()
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    status_of(daemon, 0)["counters"][name].as_u64().unwrap()
}

fn pool_bytes(daemon: &Daemon) -> u64 {
    daemon.status()["memory"]["pool_bytes"].as_u64().unwrap()
}

/// The pinned bytes, and those of them in memory.
fn bytes(daemon: &Daemon) -> (u64, u64) {
    let pins = status_of(daemon, 0)["pins"].clone();
    (pins["pinned_bytes"].as_u64().unwrap(), pins["loaded_bytes"].as_u64().unwrap())
}

fn wait_for_state(daemon: &Daemon, wanted: &str) {
    wait_until(wanted, PATIENCE, || status_of(daemon, 0)["pins"]["state"] == wanted);
}

/// Runs a command that succeeds. Returns its output.
fn succeed(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = daemon.run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

/// Runs a command that is refused for this reason.
fn refuse(daemon: &Daemon, arguments: &[&str], reason: &str) {
    let (code, text) = daemon.run(arguments);
    assert_ne!(code, Some(0), "{arguments:?}: {text}");
    assert!(text.contains(reason), "{arguments:?}: {text}");
}

/// Reads all pinned lines and checks them.
fn read_pinned(client: &mut crate::common::client::Client) -> u64 {
    let mut reads = 0;
    for line in pinned_lines() {
        assert!(client.read(line * LINE, LINE).unwrap() == content(line), "line {line}");
        reads += 1;
    }
    reads
}

/// Reads ten times the pool, and the pinned lines meanwhile. Returns the number of reads of each.
fn scan(daemon: &Daemon) -> (u64, u64) {
    let mut client = daemon.client("disk");
    let (mut scanned, mut pinned) = (0, 0);
    let scan_bytes = 10 * pool_bytes(daemon);
    assert!(64 * MIB + scan_bytes <= DISK_BYTES, "the disk is too small for the scan");
    for offset in (64 * MIB..64 * MIB + scan_bytes).step_by(MIB as usize) {
        client.read(offset, MIB).unwrap();
        scanned += 1;
        if scanned % 16 == 0 {
            pinned += read_pinned(&mut client);
        }
    }
    (scanned, pinned + read_pinned(&mut client))
}

fn a_pinned_range_is_read_from_memory_during_a_scan(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path(), io, "");
    let text = succeed(&daemon, &["pin", "disk", "3MiB+2MiB", "40MiB+1"]);
    assert!(text.starts_with("2.0 MiB of volume 'disk' are pinned, "), "{text}");
    assert!(text.ends_with(": 3MiB+2MiB,40MiB+4KiB\n"), "{text}");
    wait_for_state(&daemon, "loaded");
    assert_eq!(bytes(&daemon), (2 * MIB + LINE, 2 * MIB + LINE));
    assert_eq!(counter(&daemon, "pin_loaded_bytes"), 2 * MIB + LINE);
    let status = daemon.status();
    assert_eq!(status["memory"]["pinned_bytes"], 2 * MIB + LINE, "{status}");
    assert_eq!(status["memory"]["pinned_bytes_max"], pool_bytes(&daemon) / 2, "{status}");
    let text = succeed(&daemon, &["status", "disk"]);
    assert!(text.contains("in memory: loaded\n"), "{text}");
    assert!(text.contains("3MiB+2MiB,40MiB+4KiB"), "{text}");

    let (scanned, pinned) = scan(&daemon);
    let counters = ["read_hits", "read_misses", "read_partial_hits", "errors"];
    let found = counters.map(|name| counter(&daemon, name));
    assert_eq!(found, [pinned, scanned, 0, 0], "every read of a pinned line is a hit");

    let text = succeed(&daemon, &["unpin", "disk", "all"]);
    assert_eq!(text, "volume 'disk' has no pinned ranges\n");
    assert_eq!(bytes(&daemon), (0, 0));
    read_pinned(&mut daemon.client("disk"));
    daemon.stop();
}

#[test]
fn a_pinned_range_is_read_from_memory_during_a_scan_on_io_uring() {
    a_pinned_range_is_read_from_memory_during_a_scan("io_uring");
}

#[test]
fn a_pinned_range_is_read_from_memory_during_a_scan_on_epoll() {
    a_pinned_range_is_read_from_memory_during_a_scan("epoll");
}

#[test]
fn ranges_that_cannot_be_pinned_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [volume(there, ",pin=3MiB+1MiB"), "other=memory:32MiB,prefetch=no".to_owned()];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    wait_for_state(&daemon, "loaded");
    let half = pool_bytes(&daemon) / 2;
    let form = "is not OFFSET+LENGTH: write it like 1GiB+256MiB";
    refuse(&daemon, &["pin", "disk", "0+0"], "range '0+0' is empty: write a length above zero");
    refuse(&daemon, &["pin", "disk", "x"], form);
    refuse(&daemon, &["pin", "disk", "4096"], form);
    refuse(&daemon, &["pin", "disk"], "required");
    refuse(&daemon, &["pin", "nosuch", "0+4096"], "no volume 'nosuch'");
    refuse(&daemon, &["unpin", "nosuch", "all"], "no volume 'nosuch'");
    let beyond = "a range to be pinned ends beyond the end of volume 'disk' (512 MiB)";
    refuse(&daemon, &["pin", "disk", "512MiB+1"], beyond);
    refuse(&daemon, &["pin", "disk", "511MiB+2MiB"], beyond);
    refuse(&daemon, &["unpin", "disk", "1TiB+1MiB"], beyond);
    refuse(&daemon, &["volume", "set", "disk", "pin=600MiB+1MiB"], beyond);
    let shown = Bytes(half);
    let quota = format!("all volumes together may pin {shown:#}, half of the memory for data");
    refuse(&daemon, &["pin", "disk", "all"], &quota);
    refuse(&daemon, &["pin", "disk", &format!("16MiB+{half}")], &quota);
    refuse(&daemon, &["pin", "other", "all"], &format!("others have pinned {:#}", Bytes(MIB)));
    let pins = status_of(&daemon, 0)["settings"]["pin"].clone();
    assert_eq!((pins, bytes(&daemon)), ("3MiB+1MiB".into(), (MIB, MIB)));

    // Overlapping ranges are one.
    succeed(&daemon, &["pin", "disk", "3MiB+2MiB", "4MiB+512KiB", "5MiB+4KiB"]);
    succeed(&daemon, &["unpin", "disk", "4MiB+4KiB"]);
    let pins = status_of(&daemon, 0)["settings"]["pin"].clone();
    assert_eq!(pins, "3MiB+1MiB,4100KiB+1MiB");
    assert_eq!(bytes(&daemon).0, 2 * MIB);

    // Other settings change although the ranges stay as they are.
    succeed(&daemon, &["volume", "set", "disk", "read-only=yes"]);
    succeed(&daemon, &["volume", "set", "disk", "mode=bypass"]);
    assert_eq!(status_of(&daemon, 0)["pins"]["state"], "suspended");
    wait_until("nothing is cached", PATIENCE, || bytes(&daemon) == (2 * MIB, 0));
    let bypass = "no range can be pinned in the mode bypass, which caches nothing: choose another \
                  mode first";
    refuse(&daemon, &["pin", "disk", "0+4096"], bypass);
    succeed(&daemon, &["volume", "set", "disk", "mode=write-through"]);
    wait_for_state(&daemon, "loaded");
    succeed(&daemon, &["volume", "remove", "disk"]);
    assert_eq!(daemon.status()["memory"]["pinned_bytes"], 0);
    daemon.stop();
}

#[test]
fn pins_of_the_configuration_that_are_refused_do_not_prevent_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, "auto", ",pin=600MiB+1MiB");
    let pins = status_of(&daemon, 0)["pins"].clone();
    assert_eq!((&pins["state"], &pins["pinned_bytes"]), (&"refused".into(), &0.into()));
    daemon.wait_for_log("serving without pinned ranges");
    let text = on_one_line(&succeed(&daemon, &["status"]));
    let alert = "warning volume disk: not pinned: a range to be pinned ends beyond the end of \
                 volume 'disk' (512 MiB)";
    assert!(text.contains(alert), "{text}");
    read_pinned(&mut daemon.client("disk"));
    // Other settings can be changed, and other ranges pinned.
    succeed(&daemon, &["volume", "set", "disk", "read-only=yes"]);
    succeed(&daemon, &["volume", "set", "disk", "pin=3MiB+1MiB"]);
    wait_for_state(&daemon, "loaded");
    daemon.stop();
    let bypass = volume(there, ",mode=bypass,pin=all");
    let (code, text) = run_forebay(there, &["serve", "--volume", &bypass]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no range can be pinned in the mode bypass"), "{text}");
}

#[test]
fn pinned_lines_that_leave_memory_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path(), "auto", ",pin=3MiB+2MiB");
    wait_for_state(&daemon, "loaded");
    let mut client = daemon.client("disk");
    client.call(NbdCommand::WriteZeroes, 0, 3 * MIB, MIB).result.unwrap();
    wait_until("the erased lines are read again", PATIENCE, || {
        counter(&daemon, "pin_loaded_bytes") == 3 * MIB && bytes(&daemon) == (2 * MIB, 2 * MIB)
    });
    let before = counter(&daemon, "read_hits");
    assert!(client.read(3 * MIB, MIB).unwrap().iter().all(|&byte| byte == 0));
    client.write(3 * MIB, &[7; 512]).unwrap();
    assert_eq!(client.read(3 * MIB, 512).unwrap(), [7; 512]);
    assert_eq!(counter(&daemon, "read_hits") - before, 2);
    drop(client);
    daemon.stop();
}

#[test]
fn pins_of_the_configuration_outlive_a_kill_with_the_pool_and_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [volume(there, ",pin=3MiB+2MiB,40MiB+4KiB")];
    let daemon = Daemon::start_kept(there, "auto", "64MiB", &volumes);
    wait_for_state(&daemon, "loaded");
    assert_eq!(counter(&daemon, "pin_loaded_bytes"), 2 * MIB + LINE);
    std::fs::remove_file(&daemon.socket).unwrap();
    // The keeper counts shorter runs as early exits and would give up.
    std::thread::sleep(std::time::Duration::from_millis(600));
    daemon.kill_server();
    drop(reconnect(&daemon));
    wait_for_state(&daemon, "loaded");
    assert_eq!(counter(&daemon, "pin_loaded_bytes"), 0, "the adopted pool has them");
    let (scanned, pinned) = scan(&daemon);
    let found = ["read_hits", "read_misses"].map(|name| counter(&daemon, name));
    assert_eq!(found, [pinned, scanned]);
    daemon.stop();
    let daemon = Daemon::start_kept(there, "auto", "64MiB", &volumes);
    wait_for_state(&daemon, "loaded");
    assert_eq!(read_pinned(&mut daemon.client("disk")), counter(&daemon, "read_hits"));
    daemon.stop();
}

/// Sets the memory of a daemon, and waits until the pool has the size that follows.
fn resize(daemon: &Daemon, memory_bytes: u64) {
    let before = daemon.status()["memory"].clone();
    let field = |status: &serde_json::Value, name: &str| status[name].as_u64().unwrap();
    succeed(daemon, &["set", &format!("memory={memory_bytes}")]);
    let limit = field(&daemon.status()["memory"], "limit_bytes");
    let difference = limit.abs_diff(field(&before, "limit_bytes"));
    wait_until("the pool has its size", PATIENCE, || {
        pool_bytes(daemon).abs_diff(field(&before, "pool_bytes")) == difference
    });
}

fn pinned_ranges_stay_in_memory_while_the_pool_is_resized(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let volumes = [volume(directory.path(), ",pin=3MiB+2MiB,40MiB+4KiB")];
    let daemon = Daemon::start_kept(directory.path(), io, "128MiB", &volumes);
    wait_for_state(&daemon, "loaded");
    let limits = |name: &str| daemon.status()["memory"][name].as_u64().unwrap();
    let (least, most) = (limits("limit_bytes_min"), limits("limit_bytes_max"));
    let mut client = daemon.client("disk");
    let loaded = counter(&daemon, "pin_loaded_bytes");
    for memory in [least, (least + most) / 2, least, most, least] {
        resize(&daemon, memory);
        for offset in (64 * MIB..64 * MIB + 2 * pool_bytes(&daemon)).step_by(MIB as usize) {
            client.read(offset, MIB).unwrap();
        }
        let hits = counter(&daemon, "read_hits");
        let reads = read_pinned(&mut client);
        assert_eq!(counter(&daemon, "read_hits") - hits, reads, "with {memory} bytes");
        assert_eq!(
            counter(&daemon, "pin_loaded_bytes"),
            loaded,
            "lines move, and are not read again"
        );
        assert_eq!(bytes(&daemon), (2 * MIB + LINE, 2 * MIB + LINE));
        assert_eq!(limits("pinned_bytes_max"), pool_bytes(&daemon) / 2);
    }
    drop(client);
    // The next server has the small pool, and everything pinned in it.
    std::fs::remove_file(&daemon.socket).unwrap();
    // The keeper counts shorter runs as early exits and would give up.
    std::thread::sleep(std::time::Duration::from_millis(600));
    daemon.kill_server();
    drop(reconnect(&daemon));
    wait_for_state(&daemon, "loaded");
    assert_eq!((limits("limit_bytes"), limits("limit_bytes_min")), (least, least));
    let reads = read_pinned(&mut daemon.client("disk"));
    let found = ["read_hits", "read_misses", "pin_loaded_bytes"].map(|name| counter(&daemon, name));
    assert_eq!(found, [reads, 0, 0], "the adopted pool has them");
    daemon.stop();
}

#[test]
fn pinned_ranges_stay_in_memory_while_the_pool_is_resized_on_io_uring() {
    pinned_ranges_stay_in_memory_while_the_pool_is_resized("io_uring");
}

#[test]
fn pinned_ranges_stay_in_memory_while_the_pool_is_resized_on_epoll() {
    pinned_ranges_stay_in_memory_while_the_pool_is_resized("epoll");
}

#[test]
fn memory_that_is_too_little_for_what_is_pinned_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = [volume(directory.path(), ""), "other=memory:32MiB,prefetch=no".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "128MiB", &volumes);
    let limits = |name: &str| daemon.status()["memory"][name].as_u64().unwrap();
    let free = limits("limit_bytes_min");
    succeed(&daemon, &["pin", "disk", "0+16MiB"]);
    succeed(&daemon, &["pin", "other", "0+1MiB"]);
    let least = limits("limit_bytes_min");
    assert!(least > free, "pins raise the minimum: {least}, {free} without them");
    let (code, text) = daemon.run(&["set", &format!("memory={free}")]);
    let [free_shown, least_shown] = [free, least].map(|bytes| Size(bytes).to_string());
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(
        text.trim_end(),
        format!(
            "forebay: memory {free_shown} is too small for the pinned ranges: 16MiB of volume \
             'disk', 1MiB of volume 'other': set memory to {least_shown} or more, or unpin ranges \
             first"
        )
    );
    assert_eq!(limits("limit_bytes"), 128 * MIB);
    resize(&daemon, least);
    // The quota is that of the smaller pool.
    let quota = format!("all volumes together may pin {:#}", Bytes(pool_bytes(&daemon) / 2));
    refuse(&daemon, &["pin", "disk", &format!("0+{}", pool_bytes(&daemon) / 2)], &quota);
    succeed(&daemon, &["unpin", "disk", "all"]);
    succeed(&daemon, &["unpin", "other", "all"]);
    assert_eq!(limits("limit_bytes_min"), free);
    resize(&daemon, free);
    daemon.stop();
}

#[test]
fn a_shortage_of_memory_shrinks_the_cache_to_what_its_pins_need() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let disk = volume(directory.path(), ",pin=0+24MiB");
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", &["--volume", &disk]);
    wait_for_state(&daemon, "loaded");
    let memory = |field: &str| daemon.status()["memory"][field].as_u64().unwrap();
    let loaded = counter(&daemon, "pin_loaded_bytes");
    let least = memory("limit_bytes_min");
    set_memory(machine.path(), 8192, 400);
    wait_until("the cache is small", PATIENCE, || memory("limit_bytes") == least);
    let is_small = || memory("pool_bytes") == 2 * memory("pinned_bytes_max");
    wait_until("the pool is small", PATIENCE, is_small);
    assert!(memory("pinned_bytes_max") >= 24 * MIB, "{least}");
    assert_eq!(bytes(&daemon), (24 * MIB, 24 * MIB));
    assert_eq!(counter(&daemon, "pin_loaded_bytes"), loaded, "nothing is read again");
    // Unpinned memory is given back, too.
    succeed(&daemon, &["unpin", "disk", "all"]);
    wait_until("the rest is given back", PATIENCE, || memory("limit_bytes") < least);
    assert!(!daemon.log_so_far().contains("cannot change the size"), "{}", daemon.log_so_far());
    daemon.stop();
}
