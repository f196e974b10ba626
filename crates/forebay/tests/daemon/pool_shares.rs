//! The guaranteed and the largest share of the pool for a volume: `share-min`, `share-max`.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::kept::reconnect;
use crate::metrics::over_control;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, on_one_line, run_forebay};
use crate::resize::{memory, set};
use std::path::Path;

/// No I/O but that of clients.
const QUIET: &str = "prefetch=no,gather-below=off,warm=no,learn=no";
/// The lines that the tests expect to stay: one of 16, so that each shard has its part of them.
const STRIDE: u64 = 16 * 4096;
const SMALL_BYTES: u64 = 64 * MIB;
const LINES: u64 = SMALL_BYTES / STRIDE;
const LARGE_BYTES: u64 = 512 * MIB;

fn volume(directory: &Path, name: &str, bytes: u64, settings: &str) -> String {
    let path = directory.join(format!("{name}.img"));
    make_file(&path, bytes);
    format!("{name}={},{QUIET}{settings}", path.display())
}

fn of_volume(daemon: &Daemon, name: &str) -> serde_json::Value {
    let status = daemon.status();
    let volumes = status["volumes"].as_array().unwrap().clone();
    volumes.into_iter().find(|volume| volume["name"] == name).unwrap()
}

fn figure(daemon: &Daemon, name: &str, field: &str) -> u64 {
    of_volume(daemon, name)[field].as_u64().unwrap_or_else(|| panic!("{field} of {name}"))
}

/// Reads the lines of a small volume. Returns how many were in memory.
fn read_lines(daemon: &Daemon, client: &mut Client, name: &str) -> u64 {
    let hits = || of_volume(daemon, name)["counters"]["read_hits"].as_u64().unwrap();
    let before = hits();
    for at in 0..LINES {
        assert!(client.read(at * STRIDE, 4096).unwrap().iter().all(|&byte| byte == 0));
    }
    hits() - before
}

/// Reads a large volume once.
fn scan(client: &mut Client) {
    for offset in (0..LARGE_BYTES).step_by(MIB as usize) {
        client.read(offset, MIB).unwrap();
    }
}

/// Runs a command that is refused, and returns the message.
fn refused(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = daemon.run(arguments);
    assert_eq!(code, Some(1), "{arguments:?}: {text}");
    on_one_line(&text)
}

fn shares_are_kept(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [
        volume(there, "db", SMALL_BYTES, ",share-min=30%"),
        volume(there, "other", SMALL_BYTES, ""),
        volume(there, "scan", LARGE_BYTES, ""),
    ];
    let daemon = Daemon::start(there, io, "64MiB", &volumes);
    let [mut db, mut other, mut scanner] = ["db", "other", "scan"].map(|name| daemon.client(name));
    assert_eq!(read_lines(&daemon, &mut db, "db"), 0);
    read_lines(&daemon, &mut other, "other");
    scan(&mut scanner);
    assert_eq!(read_lines(&daemon, &mut db, "db"), LINES, "the guaranteed lines stay");
    let kept = read_lines(&daemon, &mut other, "other");
    // A volume that is read once takes less from others, but not nothing.
    assert!(kept < LINES * 4 / 5, "{kept} of {LINES} lines without a share have survived the scan");

    // A largest share applies to lines that are in memory already.
    let pool = memory(&daemon, "pool_bytes");
    assert!(figure(&daemon, "scan", "cached_bytes") > pool / 2);
    assert_eq!(daemon.run(&["volume", "set", "scan", "share-max=20%"]).0, Some(0));
    let max = figure(&daemon, "scan", "share_max_bytes");
    assert!(max <= pool / 5 && max > pool / 6, "{max} of {pool}");
    wait_until("the lines above the largest share leave", PATIENCE, || {
        figure(&daemon, "scan", "cached_bytes") <= max
    });
    scan(&mut scanner);
    let cached = figure(&daemon, "scan", "cached_bytes");
    assert!(cached <= max && cached > max / 2, "{cached} of {max}");

    let (_, page) = daemon.run(&["status", "--all"]);
    let page = on_one_line(&page);
    assert!(page.contains("share-min 30%") && page.contains("share-max 20%"), "{page}");
    assert!(page.contains("shares of the pool at most "), "{page}");
    assert!(page.contains(" guaranteed"), "{page}");
    assert_eq!(of_volume(&daemon, "db")["settings"]["share_min"], "30%");
    let metrics = over_control(there);
    let expected = format!("forebay_volume_share_max_bytes{{volume=\"scan\"}} {max}");
    assert!(metrics.contains(&expected), "{metrics}");
    daemon.stop();
}

#[test]
fn a_scan_takes_no_guaranteed_lines_and_keeps_to_its_largest_share() {
    shares_are_kept("auto");
}

#[test]
fn a_scan_takes_no_guaranteed_lines_and_keeps_to_its_largest_share_on_epoll() {
    shares_are_kept("epoll");
}

#[test]
fn shares_that_leave_no_room_are_refused_with_their_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [
        volume(there, "db", SMALL_BYTES, ",share-min=30%"),
        volume(there, "other", SMALL_BYTES, ""),
    ];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let sum = "the guaranteed shares of all volumes are 55% of the pool, more than 50%: 25% for \
               'other', 30% for 'db'";
    let text = refused(&daemon, &["volume", "set", "other", "share-min=25%"]);
    assert!(text.contains(sum) && text.contains("by 5% in all"), "{text}");
    let text = refused(&daemon, &["volume", "set", "db", "share-max=20%"]);
    assert!(text.contains("share-min=30% is more than share-max=20%"), "{text}");
    let third = volume(there, "third", SMALL_BYTES, ",share-min=25%");
    let text = refused(&daemon, &["volume", "add", &third]);
    assert!(text.contains("25% for 'third', 30% for 'db'"), "{text}");
    // What is lowered first makes room.
    assert_eq!(daemon.run(&["volume", "set", "db", "share-min=25%"]).0, Some(0));
    assert_eq!(daemon.run(&["volume", "add", &third]).0, Some(0));
    daemon.stop();
    let elsewhere = tempfile::tempdir().unwrap();
    let both = [volumes[0].clone(), third];
    let volumes = ["--volume", &both[0], "--volume", &both[1]];
    let check = [&["serve", "--check", "--memory", "64MiB"][..], &volumes].concat();
    let (code, text) = run_forebay(elsewhere.path(), &check);
    assert_eq!(code, Some(2), "{text}");
    assert!(on_one_line(&text).contains("30% for 'db', 25% for 'third'"), "{text}");
}

/// Dirty data keeps to the largest share, and the volume's writers wait for its own disk.
#[test]
fn a_writer_keeps_to_its_largest_share() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let settings = format!(",{UNPROTECTED},share-max=25%");
    let volumes = [volume(there, "w", LARGE_BYTES, &settings)];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let mut client = daemon.client("w");
    let data = vec![7; MIB as usize];
    for offset in (0..128 * MIB).step_by(MIB as usize) {
        client.write(offset, &data).unwrap();
        let max = figure(&daemon, "w", "share_max_bytes");
        let status = of_volume(&daemon, "w");
        let [cached, dirty] =
            ["cached_bytes", "dirty_bytes"].map(|it| status[it].as_u64().unwrap());
        assert!(cached <= max && dirty <= max * 2 / 3, "{cached} and {dirty} of {max}");
    }
    client.flush().unwrap();
    for offset in (0..128 * MIB).step_by(MIB as usize) {
        assert!(client.read(offset, MIB).unwrap() == data, "at {offset}");
    }
    daemon.stop();
}

#[test]
fn shares_follow_the_size_of_the_pool_and_apply_to_an_adopted_one() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    // The name is that of `reconnect`.
    let volumes = [
        volume(there, "disk", SMALL_BYTES, ",share-min=30%"),
        volume(there, "scan", LARGE_BYTES, ",share-max=25%"),
    ];
    let daemon = Daemon::start_kept(there, "auto", "128MiB", &volumes);
    let mut scanner = daemon.client("scan");
    scan(&mut scanner);
    let before = figure(&daemon, "scan", "share_max_bytes");
    assert!(figure(&daemon, "scan", "cached_bytes") <= before);
    set(&daemon, 80 * MIB);
    let max = figure(&daemon, "scan", "share_max_bytes");
    assert!(max < before, "{max} of the smaller pool, {before} of the larger one");
    wait_until("the volume has its share of the smaller pool", PATIENCE, || {
        figure(&daemon, "scan", "cached_bytes") <= max
    });
    let mut disk = daemon.client("disk");
    read_lines(&daemon, &mut disk, "disk");
    drop((disk, scanner));
    std::fs::remove_file(&daemon.socket).unwrap();
    // The keeper counts shorter runs as early exits and would give up.
    std::thread::sleep(std::time::Duration::from_millis(600));
    daemon.kill_server();
    let mut disk = reconnect(&daemon);
    let mut scanner = daemon.client("scan");
    assert!(figure(&daemon, "scan", "cached_bytes") <= figure(&daemon, "scan", "share_max_bytes"));
    scan(&mut scanner);
    assert!(figure(&daemon, "scan", "cached_bytes") <= figure(&daemon, "scan", "share_max_bytes"));
    assert_eq!(read_lines(&daemon, &mut disk, "disk"), LINES, "the lines of the adopted pool stay");
    daemon.stop();
}
