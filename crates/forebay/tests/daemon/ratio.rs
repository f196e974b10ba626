//! The cache ratio of a running daemon: `forebay set cache-ratio`, a reload, the next server, and
//! dirty data that exceeds a smaller share.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::crash::content;
use crate::kept::reconnect;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, on_one_line};
use crate::resize::memory;
use rustix::process::Signal;

const SIZE_BYTES: u64 = 256 * MIB;
/// Lines of one write.
const WIDTH: u64 = 16;

fn ratio(daemon: &Daemon, field: &str) -> serde_json::Value {
    daemon.status()["memory"]["cache_ratio"][field].clone()
}

fn write_bytes(daemon: &Daemon) -> u64 {
    ratio(daemon, "write_bytes").as_u64().unwrap()
}

fn set(daemon: &Daemon, value: &str) -> String {
    let (code, text) = daemon.run(&["set", &format!("cache-ratio={value}")]);
    assert_eq!(code, Some(0), "{text}");
    text
}

/// Runs `forebay set`, and returns the message of the refusal. The exit code is 2 if the value
/// itself is invalid.
fn refused(daemon: &Daemon, value: &str, code: i32) -> String {
    let (found, text) = daemon.run(&["set", &format!("cache-ratio={value}")]);
    assert_eq!(found, Some(code), "{text}");
    text.trim_end().to_owned()
}

/// The content of a write: that of its lines.
fn data(first: u64, version: u64) -> Vec<u8> {
    (first..first + WIDTH).flat_map(|line| content(line, version)).collect()
}

fn lowered_below_what_is_dirty(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, SIZE_BYTES);
    // The disk is slow, so that much stays dirty.
    let volume = format!("disk=delay(write=20ms):{},{UNPROTECTED}", path.display());
    let daemon = Daemon::start(directory.path(), io, "192MiB", &[volume]);
    assert_eq!(ratio(&daemon, "setting"), "auto");
    assert_eq!(ratio(&daemon, "write_percent"), 67);
    let mut client = daemon.client("disk");
    let mut lines = 0;
    // Every other write, so that few are joined.
    while memory(&daemon, "dirty_bytes") < 48 * MIB {
        // Many for each question, or the disk keeps up on a busy machine.
        for _ in 0..64 {
            client.write(2 * lines * 4096, &data(lines, 1)).unwrap();
            lines += WIDTH;
        }
    }
    let text = set(&daemon, "90:10");
    assert!(text.starts_with("cache ratio is set: 90 % for reads, 10 % ("), "{text}");
    let limit = write_bytes(&daemon);
    assert!(limit < 24 * MIB, "{limit}");
    // Clients write and read on meanwhile.
    for first in (0..lines).step_by(4 * WIDTH as usize) {
        client.write(2 * first * 4096, &data(first, 2)).unwrap();
    }
    wait_until("the dirty data is within its share", PATIENCE, || {
        memory(&daemon, "dirty_bytes") <= limit
    });
    let version = |first: u64| if first.is_multiple_of(4 * WIDTH) { 2 } else { 1 };
    for first in (0..lines).step_by(WIDTH as usize) {
        let found = client.read(2 * first * 4096, WIDTH * 4096).unwrap();
        assert!(found == data(first, version(first)), "the write at line {first} is wrong");
    }
    daemon.wait_for_log("cache ratio setting=\"90:10\" read_percent=90 write_percent=10");
    drop(client);
    daemon.stop();
    let disk = std::fs::read(&path).unwrap();
    for first in (0..lines).step_by(WIDTH as usize) {
        let (at, expected) = ((2 * first * 4096) as usize, data(first, version(first)));
        assert!(disk[at..at + expected.len()] == expected, "line {first} on the disk");
    }
}

#[test]
fn a_ratio_lowered_below_what_is_dirty_loses_nothing_on_io_uring() {
    lowered_below_what_is_dirty("io_uring");
}

#[test]
fn a_ratio_lowered_below_what_is_dirty_loses_nothing_on_epoll() {
    lowered_below_what_is_dirty("epoll");
}

#[test]
fn the_ratio_is_shown_with_its_reason_and_follows_the_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, 16 * MIB);
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[]);
    let line = |expected: &str| {
        let text = on_one_line(&daemon.run(&["status", "--all"]).1);
        assert!(text.contains(expected), "{text}");
    };
    line(
        "cache ratio auto, 100 % for reads, 0 % (0 B) for writes; no volume is in write-back mode",
    );
    assert!(set(&daemon, "100:0").starts_with("cache ratio is set: 100 % for reads, 0 %"));
    let backing = format!("disk={}", path.display());
    let (code, text) = daemon.run(&["volume", "add", &format!("{backing},{UNPROTECTED}")]);
    assert_eq!(code, Some(0), "{text}");
    // The share for writes is zero, so writes go through to the disk.
    let volume = daemon.status()["volumes"][0].clone();
    assert_eq!(volume["effective_mode"], "write-through");
    assert_eq!(volume["effective_mode_reason"], "the cache ratio leaves no memory for writes");
    line("cache ratio 100:0, 100 % for reads, 0 % (0 B) for writes; set so that nothing");
    let mut client = daemon.client("disk");
    client.write(0, &content(0, 1)).unwrap();
    assert_eq!(memory(&daemon, "dirty_bytes"), 0);
    assert_eq!(&std::fs::read(&path).unwrap()[..4096], content(0, 1));
    set(&daemon, "25:75");
    line("cache ratio 25:75, 25 % for reads, 75 % (");
    client.write(0, &content(0, 2)).unwrap();
    assert_eq!(daemon.status()["volumes"][0]["effective_mode"], "write-back");
    assert_eq!(daemon.status()["volumes"][0]["counters"]["uncached_writes"]["dirty-limit"], 1);
    drop(client);
    daemon.stop();
    assert_eq!(&std::fs::read(&path).unwrap()[..4096], content(0, 2));
}

#[test]
fn a_ratio_that_is_none_or_too_small_for_a_volume_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, 16 * MIB);
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[volume]);
    assert_eq!(
        refused(&daemon, "60:50", 2),
        "forebay: the parts of cache ratio 60:50 add up to 110, not to 100: write percentages \
         that add up to 100, as in 25:75"
    );
    assert_eq!(
        refused(&daemon, "10:90", 2),
        "forebay: cache ratio 10:90 leaves less than 25% for reads: write 25:75 or less for writes"
    );
    let text = refused(&daemon, "100:0", 1);
    let expected = "forebay: a write share of 0% is 0B per shard, less than the 1MiB that volume \
                    'disk' needs: give writes at least ";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("%, or set volume 'disk' to mode=write-through first"), "{text}");
    let least: u64 = text[expected.len()..].split('%').next().unwrap().parse().unwrap();
    refused(&daemon, &format!("{}:{}", 101 - least, least - 1), 1);
    assert_eq!(ratio(&daemon, "setting"), "auto");
    // If the ratio is refused, the memory is not changed either.
    let before = memory(&daemon, "limit_bytes");
    let (code, text) = daemon.run(&["set", "memory=40MiB", "cache-ratio=100:0"]);
    assert_eq!((code, memory(&daemon, "limit_bytes")), (Some(1), before), "{text}");
    // The ratio is checked against the memory that is set together with it.
    let both = [
        &*format!("memory={}", memory(&daemon, "limit_bytes_min")),
        &*format!("cache-ratio={}:{least}", 100 - least),
    ];
    let (code, text) = daemon.run(&["set", both[0], both[1]]);
    assert_eq!((code, memory(&daemon, "limit_bytes")), (Some(1), before), "{text}");
    assert!(text.contains(&format!("a write share of {least}% is ")), "{text}");
    assert_eq!(ratio(&daemon, "setting"), "auto");
    set(&daemon, &format!("{}:{least}", 100 - least));
    let (code, text) = daemon.run(&["volume", "set", "disk", "mode=write-through"]);
    assert_eq!(code, Some(0), "{text}");
    set(&daemon, "100:0");
    daemon.stop();
}

#[test]
fn a_reload_and_the_next_server_have_the_ratio_that_was_set() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file) = (directory.path().join("disk.img"), directory.path().join("forebay.toml"));
    make_file(&path, 16 * MIB);
    let configure = |ratio: &str| {
        let text = format!(
            "memory = '64MiB'\ncache-ratio = '{ratio}'\n[[volume]]\nname = 'disk'\nbacking = \
             '{}'\nmode = 'write-back'\nprotection = 'none'\naccept-loss = 'yes'\n",
            path.display()
        );
        std::fs::write(&file, text).unwrap();
    };
    configure("40:60");
    let daemon = Daemon::start_kept_with(directory.path(), &file);
    let is = |value: &str| ratio(&daemon, "setting") == value;
    assert!(is("40:60") && ratio(&daemon, "write_percent") == 60);
    daemon.client("disk").write(0, &content(0, 1)).unwrap();
    set(&daemon, "70:30");
    let limit = write_bytes(&daemon);
    daemon.kill_server();
    let mut client = reconnect(&daemon);
    assert!(is("70:30") && write_bytes(&daemon) == limit);
    assert_eq!(client.read(0, 4096).unwrap(), content(0, 1));
    configure("50:50");
    daemon.signal(Signal::HUP);
    wait_until("the configured ratio", PATIENCE, || is("50:50"));
    // A refused ratio changes nothing; the next reload tries it again.
    configure("100:0");
    for times in 1..=2 {
        daemon.signal(Signal::HUP);
        daemon.wait_for_log_times("a write share of 0% is 0B", times);
    }
    assert!(is("50:50"));
    drop(client);
    daemon.stop();
}
