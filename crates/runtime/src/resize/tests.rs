//! Resizes of a running pool: its bounds, the memory that leaves, and the process that adopts it.

use super::*;
use crate::rig::common::client::{Client, PATIENCE};
use crate::rig::common::{GATHERS_ALL, wait_until};
use crate::rig::{MIB, config, listen, volume};
use crate::{Engine, PoolLimits, Runtime, RuntimeConfig, Timeouts, VolumeSettings};
use forebay_backend::OpenOptions;
use forebay_frontend_nbd::NbdServer;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

/// The number of lines of the test's volume: 64 MiB.
const LINES: u64 = 16 << 10;

fn pool_bytes(runtime: &Runtime) -> u64 {
    runtime.status().unwrap().memory.pool_bytes
}

/// Waits until no shard of a runtime is being resized.
fn wait_resized(runtime: &Runtime) {
    wait_until("the pool is resized", PATIENCE, || {
        runtime.shared().shards.each().all(|shard| !shard.slots().slabs().is_resizing())
    });
}

/// The bounds of a process with memory of `limit_mib`, of which `lines_mib` are planned for lines
/// in four shards.
fn planned_bounds(pool: &Pool, limit_mib: u64, lines_mib: u64) -> MemoryBounds {
    let plan = MemoryPlan::new(limit_mib * MIB, limit_mib * MIB, 1, 0);
    bounds_of(pool, &MemoryPlan { pool_bytes: lines_mib * MIB, shards: 4, ..plan })
}

#[test]
fn the_bounds_leave_a_slab_for_each_shard() {
    let pool = Pool::open(64 * MIB, 4, None).unwrap();
    let bounds = planned_bounds(&pool, 100, 65);
    let expected = MemoryBounds {
        least_bytes: 44 * MIB,
        now_bytes: 100 * MIB,
        most_bytes: 100 * MIB,
        step_bytes: 8 * MIB,
    };
    assert_eq!(bounds, expected);
    let slabs = |mib: u64| shard_lines(&bounds, &pool, mib * MIB).map(|lines| lines / 512).ok();
    assert_eq!([44, 51, 52, 99, 100].map(slabs), [1, 1, 2, 7, 8].map(Some));
    assert_eq!([43, 101].map(slabs), [None, None]);
    for mib in 44..=100 {
        let lines = shard_lines(&bounds, &pool, mib * MIB).unwrap();
        pool.record_lines(lines);
        let now_bytes = planned_bounds(&pool, 100, 65).now_bytes;
        assert_eq!(bounds.rounded(mib * MIB), now_bytes, "{mib}");
    }
    pool.record_lines(3 * 512);
    assert_eq!(planned_bounds(&pool, 100, 65).now_bytes, 60 * MIB);
    // The minimum of a start applies here, too.
    assert_eq!(planned_bounds(&pool, 66, 65).least_bytes, 32 * MIB);
}

#[test]
fn the_bounds_of_an_adopted_pool_follow_from_its_own_size() {
    let pool = Pool::open(64 * MIB, 4, None).unwrap();
    let bounds = planned_bounds(&pool, 40, 30);
    assert_eq!((bounds.most_bytes, bounds.least_bytes), (74 * MIB, 32 * MIB), "it is larger");
    let bounds = planned_bounds(&pool, 200, 130);
    let expected = MemoryBounds {
        least_bytes: 78 * MIB,
        now_bytes: 134 * MIB,
        most_bytes: 134 * MIB,
        step_bytes: 8 * MIB,
    };
    assert_eq!(bounds, expected, "it is smaller");
    assert_eq!(shard_lines(&bounds, &pool, 78 * MIB).map(|lines| lines / 512).ok(), Some(1));
}

#[test]
fn sizes_out_of_bounds_are_refused_with_the_bounds() {
    let runtime = Runtime::start(config(64 * MIB), &NbdServer::new()).unwrap();
    let MemoryBounds { least_bytes, most_bytes, .. } = runtime.memory_bounds();
    assert_eq!(most_bytes, 64 * MIB);
    let refused = |bytes| runtime.set_memory(bytes).unwrap_err().explained();
    let least = Size(least_bytes);
    assert_eq!(
        refused(least_bytes - MIB),
        format!(
            "memory {} is less than the {least} that a server with a maximum of 64MiB needs: set \
             memory to {least} or more, or restart the server with less",
            Size(least_bytes - MIB)
        )
    );
    assert_eq!(
        refused(65 * MIB),
        "memory 65MiB exceeds the maximum of 64MiB, which is fixed at the start: set memory to \
         64MiB or less, or restart the server with more"
    );
    assert_eq!(runtime.memory_bounds().now_bytes, most_bytes);
    runtime.stop(|_| ()).unwrap();
}

#[test]
fn a_size_below_what_is_pinned_is_refused_with_the_volumes() {
    let refused = |volumes: u64| {
        let pinned = (1..=volumes).map(|at| (format!("v{at}"), at * MIB)).collect();
        let (memory_bytes, least_bytes) = (44 * MIB, 60 * MIB);
        ResizeError::Pinned { memory_bytes, pinned, least_bytes }.explained()
    };
    assert_eq!(
        refused(2),
        "memory 44MiB is too small for the pinned ranges: 2MiB of volume 'v2', 1MiB of volume \
         'v1': set memory to 60MiB or more, or unpin ranges first"
    );
    assert!(refused(6).contains("6MiB of volume 'v6', 5MiB of volume 'v5', 4MiB of volume 'v4', "));
    assert!(refused(6).contains(", 3MiB of volume 'v3' and 3MiB of others: "));
}

#[test]
fn pins_raise_the_minimum_to_what_their_shards_need() {
    let pool = Pool::open(64 * MIB, 4, None).unwrap();
    let bounds = planned_bounds(&pool, 100, 65);
    let least = |slabs: usize| with_shard_lines(bounds, &pool, slabs * 512).least_bytes / MIB;
    assert_eq!([0, 1, 2, 7, 8].map(least), [44, 44, 52, 92, 100]);
    for slabs in 1..=8 {
        let memory_bytes = with_shard_lines(bounds, &pool, slabs * 512).least_bytes;
        assert_eq!(shard_lines(&bounds, &pool, memory_bytes).unwrap(), slabs * 512);
    }
}

/// A pool's file, and a folder with the disk of the volume "v", which has [`LINES`] lines.
struct Rig {
    engine: Engine,
    pool: OwnedFd,
    directory: tempfile::TempDir,
}

impl Rig {
    fn new(engine: Engine) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = File::create(directory.path().join("disk")).unwrap();
        disk.set_len(LINES * LINE_BYTES).unwrap();
        Self { engine, pool: crate::new_pool_file().unwrap(), directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A process over the pool that serves the volume, and destages no line by age.
    fn start(&self) -> Runtime {
        let timeouts = Timeouts { dirty_age: Duration::from_secs(3600), ..Timeouts::default() };
        let server = NbdServer::new();
        let config = RuntimeConfig { engine: self.engine, ..config(128 * MIB) };
        let pool = Some(self.pool.try_clone().unwrap());
        let runtime = Runtime::start_over(config, timeouts, pool, &server).unwrap();
        let disk = self.path("disk");
        let disk = forebay_backend::open(disk.to_str().unwrap(), &OpenOptions::default()).unwrap();
        let settings = VolumeSettings { gather_below: GATHERS_ALL, ..volume("v", disk) };
        runtime.volumes().add(settings).unwrap();
        let socket = self.path("nbd.sock");
        let _ = std::fs::remove_file(&socket);
        listen(&server, &socket);
        runtime
    }

    fn client(&self) -> Client {
        Client::new(&self.path("nbd.sock"), "v")
    }

    /// Checks that the disk has every line.
    fn check_disk(&self) {
        check(0, &std::fs::read(self.path("disk")).unwrap());
    }
}

fn byte_of(line: u64) -> u8 {
    (line % 251) as u8 + 1
}

/// Writes every line.
fn write_all(client: &mut Client) {
    for first in (0..LINES).step_by(256) {
        let data: Vec<u8> = (first..first + 256).flat_map(|at| [byte_of(at); 4096]).collect();
        client.write(first * LINE_BYTES, &data).unwrap();
    }
}

/// Reads every line.
fn check_all(client: &mut Client) {
    for first in (0..LINES).step_by(256) {
        check(first, &client.read(first * LINE_BYTES, 256 * LINE_BYTES).unwrap());
    }
}

fn check(first: u64, data: &[u8]) {
    for (line, found) in (first..).zip(data.chunks(4096)) {
        assert!(found.iter().all(|&byte| byte == byte_of(line)), "line {line}");
    }
}

/// Shrinks a pool full of lines, some of them dirty, to the minimum and lets it grow again.
fn shrink_and_grow(engine: Engine) {
    let rig = Rig::new(engine);
    let runtime = rig.start();
    let mut client = rig.client();
    write_all(&mut client);
    client.flush().unwrap();
    // A few lines that only the pool has.
    for line in (0..LINES).step_by(1000) {
        client.write(line * LINE_BYTES, &[byte_of(line); 4096]).unwrap();
    }
    let before = runtime.status().unwrap().memory;
    let used_before = runtime.pool_used_bytes();
    assert!(before.used_bytes >= 60 * MIB && before.dirty_bytes == 17 * LINE_BYTES, "{before:?}");

    let bounds = runtime.set_memory(runtime.memory_bounds().least_bytes).unwrap();
    assert_eq!(bounds.now_bytes, bounds.least_bytes);
    wait_resized(&runtime);
    let after = runtime.status().unwrap().memory;
    assert_eq!(before.pool_bytes - after.pool_bytes, bounds.most_bytes - bounds.now_bytes);
    assert!(after.used_bytes <= after.pool_bytes, "{after:?}");
    assert_eq!(after.dirty_bytes, before.dirty_bytes, "dirty lines move");
    let returned = used_before - runtime.pool_used_bytes();
    // The first shrink gives back what was never used.
    let expected = before.used_bytes - after.pool_bytes;
    assert!(returned >= expected, "{returned} bytes of {expected} have left: {before:?} {after:?}");
    check_all(&mut client);
    assert_eq!(pool_bytes(&runtime), after.pool_bytes);

    runtime.set_memory(bounds.most_bytes).unwrap();
    wait_resized(&runtime);
    assert_eq!(pool_bytes(&runtime), before.pool_bytes);
    check_all(&mut client);
    let again = runtime.status().unwrap().memory;
    assert!(again.used_bytes >= 60 * MIB, "all slabs are used again: {again:?}");
    check_all(&mut client);
    drop(client);
    runtime.stop(|_| ()).unwrap();
    rig.check_disk();
}

#[test]
fn a_pool_shrinks_and_grows_while_it_is_served_on_io_uring() {
    shrink_and_grow(Engine::Auto);
}

#[test]
fn a_pool_shrinks_and_grows_while_it_is_served_on_epoll() {
    shrink_and_grow(Engine::Epoll);
}

#[test]
fn the_next_process_continues_with_the_size_and_completes_a_resize() {
    let rig = Rig::new(Engine::Auto);
    let first = rig.start();
    let mut client = rig.client();
    write_all(&mut client);
    let bounds = first.memory_bounds();
    let half = (bounds.least_bytes + bounds.most_bytes) / 2;
    assert_eq!(first.memory_settings(), [0; 4]);
    first.record_memory_settings([half, 0, 1, u64::MAX]);
    first.set_memory(half).unwrap();
    wait_resized(&first);
    let (now, bytes) = (first.memory_bounds().now_bytes, pool_bytes(&first));
    assert!(bounds.least_bytes < now && now <= half, "{now}");
    drop(client);
    first.pause().unwrap();
    // From here on the pool and its header belong to the next process.
    let refused = first.set_memory(bounds.most_bytes);
    assert!(matches!(refused, Err(ResizeError::Stopping)), "{refused:?}");
    drop(first);
    let limit_bytes = bounds.most_bytes;
    let limits = PoolLimits { limit_bytes, now_bytes: now, start_bytes: limit_bytes };
    assert_eq!(crate::limits_in(rig.pool.as_fd()), Some(limits));

    let second = rig.start();
    assert_eq!((second.memory_bounds().now_bytes, pool_bytes(&second)), (now, bytes));
    assert_eq!(second.memory_settings(), [half, 0, 1, u64::MAX]);
    check_all(&mut rig.client());
    // The process dies after it has recorded another size, and before it has carried that out.
    second.shared().pool.record_lines(usize::MAX);
    second.pause().unwrap();
    drop(second);

    let third = rig.start();
    wait_resized(&third);
    assert_eq!(third.memory_bounds().now_bytes, bounds.most_bytes);
    assert_eq!(pool_bytes(&third), third.shared().pool.data_bytes());
    check_all(&mut rig.client());
    third.stop(|_| ()).unwrap();
    rig.check_disk();
}

#[test]
fn the_use_of_memory_follows_its_size() {
    let rig = Rig::new(Engine::Auto);
    let runtime = rig.start();
    let MemoryUse { bounds, pending_bytes, .. } = runtime.memory_use();
    assert_eq!(pending_bytes, 0);
    let data_bytes = runtime.shared().pool.data_bytes();
    let mut client = rig.client();
    write_all(&mut client);
    // While the disk is slow, some writes go past the pool.
    let held_bytes = runtime.status().unwrap().memory.used_bytes;
    let unused_bytes = runtime.memory_use().unused_bytes;
    assert!(held_bytes > data_bytes / 4, "{held_bytes} of {data_bytes}");
    // The tables count as occupied completely, although parts of them were not used yet.
    let tables_bytes =
        runtime.shared().pool.used_bytes() - runtime.shared().pool.lines_used_bytes();
    let unused_max = data_bytes - held_bytes + tables_bytes;
    assert!(unused_bytes <= unused_max, "{unused_bytes}, {held_bytes} of {data_bytes} are held");
    drop(client);
    runtime.set_memory(bounds.least_bytes).unwrap();
    wait_resized(&runtime);
    let found = runtime.memory_use();
    assert_eq!((found.bounds.now_bytes, found.pending_bytes), (bounds.least_bytes, 0));
    runtime.stop(|_| ()).unwrap();
}

#[test]
fn a_process_begins_small_and_the_next_one_continues() {
    let file = crate::new_pool_file().unwrap();
    let start = || {
        let config = RuntimeConfig { start_bytes: 128 * MIB, ..config(512 * MIB) };
        let pool = Some(file.try_clone().unwrap());
        Runtime::start_over(config, Timeouts::default(), pool, &NbdServer::new()).unwrap()
    };
    let first = start();
    let MemoryBounds { now_bytes, most_bytes, step_bytes, .. } = first.memory_bounds();
    assert_eq!(most_bytes, 512 * MIB);
    assert!((128 * MIB - step_bytes..=128 * MIB).contains(&now_bytes), "{now_bytes}");
    let pool_bytes = |runtime: &Runtime| runtime.status().unwrap().memory.pool_bytes;
    assert!(pool_bytes(&first) > 80 * MIB, "the memory for requests is that of a small process");
    let grown = first.set_memory(256 * MIB).unwrap().now_bytes;
    assert!(grown > 256 * MIB - step_bytes, "{grown}");
    first.pause().unwrap();
    drop(first);
    let second = start();
    assert!(second.shared().pool.is_adopted());
    assert_eq!(second.memory_bounds().now_bytes, grown);
    second.stop(|_| ()).unwrap();
}
