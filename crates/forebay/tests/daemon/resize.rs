//! The memory of a running daemon is set with `forebay set memory=SIZE`: what it gives back leaves
//! the process, clients lose nothing, and the next server continues with it.

use crate::common::client::{Client, PATIENCE};
use crate::common::random::Random;
use crate::common::wait_until;
use crate::crash::content;
use crate::kept::reconnect;
use crate::memory_limits::{container, machine, set_memory};
use crate::process::{Daemon, MIB, UNPROTECTED, make_file};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The memory of the daemons.
const MEMORY_MIB: u64 = 192;
/// The size of the volumes: more than fits into the pool at its smallest size.
const SIZE_BYTES: u64 = 128 * MIB;
const LINES: u64 = SIZE_BYTES / 4096;

/// A figure of the daemon's memory.
pub fn memory(daemon: &Daemon, field: &str) -> u64 {
    daemon.status()["memory"][field].as_u64().unwrap()
}

/// Sets the memory, and waits until the pool has the size that follows. Returns by how many bytes
/// it has changed.
pub fn set(daemon: &Daemon, bytes: u64) -> u64 {
    let before = daemon.status()["memory"].clone();
    let (code, text) = daemon.run(&["set", &format!("memory={bytes}")]);
    assert!(code == Some(0) && text.starts_with("memory is set: limit "), "{text}");
    let field = |status: &serde_json::Value, name: &str| status[name].as_u64().unwrap();
    let limit = memory(daemon, "limit_bytes");
    assert!(limit <= bytes && limit + 8 * 2 * MIB > bytes, "{limit} for {bytes}");
    let difference = limit.abs_diff(field(&before, "limit_bytes"));
    wait_until("the pool has its size", PATIENCE, || {
        memory(daemon, "pool_bytes").abs_diff(field(&before, "pool_bytes")) == difference
    });
    difference
}

/// Writes lines of a part of a volume and reads them back until told to stop. Returns the version
/// of each line.
fn work(mut client: Client, seed: u64, stops: &AtomicBool) -> Vec<u64> {
    let mut random = Random::new(seed);
    let mut versions = vec![0; LINES as usize];
    while !stops.load(Ordering::Relaxed) {
        let first = random.below(LINES - 16);
        let count = 1 + random.below(16);
        if random.below(3) > 0 {
            let mut data = Vec::new();
            for line in first..first + count {
                versions[line as usize] += 1;
                data.extend(content(line, versions[line as usize]));
            }
            client.write(first * 4096, &data).unwrap();
        } else {
            let found = client.read(first * 4096, count * 4096).unwrap();
            check(first, &found, &versions);
        }
    }
    client.flush().unwrap();
    versions
}

fn check(first: u64, found: &[u8], versions: &[u64]) {
    for (line, found) in (first..).zip(found.chunks(4096)) {
        assert!(content(line, versions[line as usize]) == found, "line {line} is wrong");
    }
}

fn volumes(directory: &Path) -> Vec<String> {
    let volume = |(name, settings): (&str, &str)| {
        let path = directory.join(format!("{name}.img"));
        make_file(&path, SIZE_BYTES);
        format!("{name}={},{settings}", path.display())
    };
    [("back", UNPROTECTED), ("through", "mode=write-through")].map(volume).to_vec()
}

fn resize_under_load(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let volumes = volumes(directory.path());
    let daemon = Daemon::start(directory.path(), io, &format!("{MEMORY_MIB}MiB"), &volumes);
    let least = memory(&daemon, "limit_bytes_min");
    assert_eq!(memory(&daemon, "limit_bytes_max"), MEMORY_MIB * MIB);
    let stops = AtomicBool::new(false);
    let names = ["back", "through"];
    let found = std::thread::scope(|scope| {
        let workers = names.map(|name| {
            let (client, stops) = (daemon.client(name), &stops);
            scope.spawn(move || work(client, name.len() as u64, stops))
        });
        let mut returned = 0;
        for bytes in [least, MEMORY_MIB * MIB, (least + MEMORY_MIB * MIB) / 2, least] {
            returned += set(&daemon, bytes);
        }
        assert!(returned > 0);
        stops.store(true, Ordering::Relaxed);
        workers.map(|worker| worker.join().unwrap())
    });
    for (name, versions) in names.iter().zip(&found) {
        let mut client = daemon.client(name);
        for first in (0..LINES).step_by(1024) {
            check(first, &client.read(first * 4096, 1024 * 4096).unwrap(), versions);
        }
    }
    // Fill the whole pool again.
    set(&daemon, MEMORY_MIB * MIB);
    let mut client = daemon.client("through");
    for mib in (0..SIZE_BYTES / MIB).chain(0..SIZE_BYTES / MIB) {
        client.read(mib * MIB, MIB).unwrap();
    }
    drop(client);
    let (used, rss) = (memory(&daemon, "used_bytes"), daemon.rss_bytes().0);
    let returned = set(&daemon, least);
    let left = memory(&daemon, "pool_bytes");
    assert!(used > left + 32 * MIB, "{used} bytes were used, {left} are left, of {returned}");
    let expected = used - left;
    let freed = rss.saturating_sub(daemon.rss_bytes().0);
    // Meanwhile, the heap may have grown a little, and the runtime's collapser may have made a
    // huge page.
    assert!(freed + 4 * MIB >= expected, "{freed} bytes have left the process, of {expected}");
    daemon.stop();
    for (name, versions) in names.iter().zip(&found) {
        let disk = std::fs::read(directory.path().join(format!("{name}.img"))).unwrap();
        check(0, &disk, versions);
    }
}

#[test]
fn a_daemon_resized_under_load_loses_nothing_on_io_uring() {
    resize_under_load("io_uring");
}

#[test]
fn a_daemon_resized_under_load_loses_nothing_on_epoll() {
    resize_under_load("epoll");
}

#[test]
fn the_next_server_continues_with_the_memory_that_was_set() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, SIZE_BYTES);
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let memory_mib = format!("{MEMORY_MIB}MiB");
    let daemon = Daemon::start_kept(directory.path(), "auto", &memory_mib, &[volume]);
    let mut client = daemon.client("disk");
    for line in 0..LINES / 4 {
        client.write(line * 4096, &content(line, 1)).unwrap();
    }
    set(&daemon, memory(&daemon, "limit_bytes_min"));
    client.write(0, &content(0, 2)).unwrap();
    let sizes = |daemon: &Daemon| {
        ["limit_bytes", "limit_bytes_min", "limit_bytes_max", "pool_bytes"]
            .map(|field| memory(daemon, field))
    };
    let before = sizes(&daemon);
    daemon.kill_server();
    let mut client = reconnect(&daemon);
    // The kill may have come while the last slab was marked: the next server completes the resize.
    wait_until("the next server has the same sizes", PATIENCE, || sizes(&daemon) == before);
    set(&daemon, MEMORY_MIB * MIB);
    let mut versions = vec![1; LINES as usize / 4];
    versions[0] = 2;
    check(0, &client.read(0, SIZE_BYTES / 4).unwrap(), &versions);
    drop(client);
    daemon.stop();
    check(0, &std::fs::read(&path).unwrap()[..(SIZE_BYTES / 4) as usize], &versions);
}

#[test]
fn memory_that_contradicts_the_server_or_the_machine_is_refused() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", &[]);
    let refused = |setting: &str| {
        let (code, text) = daemon.run(&["set", setting]);
        assert_eq!(code, Some(1), "{text}");
        text.trim_end().to_owned()
    };
    assert_eq!(
        refused("memory=300MiB"),
        "forebay: memory 300MiB exceeds the maximum of 256MiB, which is fixed at the start: set \
         memory to 256MiB or less, or restart the server with more"
    );
    let least = memory(&daemon, "limit_bytes_min");
    let text = refused(&format!("memory={}", least - MIB));
    let expected = "that a server with a maximum of 256MiB needs: set memory to ";
    assert!(text.contains(expected), "{text}");
    assert_eq!(memory(&daemon, "limit_bytes"), 256 * MIB);
    set(&daemon, least);

    // Other programs have taken the memory meanwhile.
    set_memory(machine.path(), 8192, 500);
    let text = refused("memory=250MiB");
    assert!(text.starts_with("forebay: memory 250MiB leaves "), "{text}");
    assert!(text.contains("less than the 500MiB that are reserved for the system"), "{text}");
    assert_eq!(memory(&daemon, "limit_bytes"), least);
    // A smaller size is never refused because of other programs.
    set_memory(machine.path(), 8192, 10);
    set(&daemon, least);
    set_memory(machine.path(), 8192, 6144);
    set(&daemon, 256 * MIB);
    daemon.stop();
}

#[test]
fn memory_beyond_the_limit_of_the_control_group_is_refused() {
    let (container, directory) = (container(4096, 100), tempfile::tempdir().unwrap());
    let daemon = Daemon::start_on(container.path(), directory.path(), "256MiB", &[]);
    let least = memory(&daemon, "limit_bytes_min");
    set(&daemon, least);
    let limit = container.path().join("sys/fs/cgroup/user.slice/x/memory.max");
    std::fs::write(limit, format!("{}\n", 200 * MIB)).unwrap();
    let (code, text) = daemon.run(&["set", "memory=256MiB"]);
    assert_eq!(code, Some(1), "{text}");
    let expected = "(the control group /user.slice/x allows 200MiB)";
    assert!(text.contains("memory 256MiB exceeds the ") && text.contains(expected), "{text}");
    daemon.stop();
}
