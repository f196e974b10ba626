//! Volumes whose disks become larger while clients use them.

use crate::journal::{JOURNAL_BYTES, MIB, block, copy, memory, open, power_loss, start};
use crate::server::{Server, read_backend, settings};
use forebay_backend::{AlignedBuffer, Backend, Blocking, MeasureError, OpenOptions};
use forebay_runtime::{Engine, VaultSettings, VolumeError, VolumeSettings, VolumeVault};
use forebay_types::{Fault, Mode, PinnedRanges, Protection, VolumeConfig, VolumeId};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

on_both_engines! {
    a_volume_grows_with_its_disk_while_it_is_written,
    a_disk_that_has_shrunk_or_has_half_a_block_keeps_its_size,
    what_is_written_beyond_the_former_end_survives_a_power_loss,
    a_disk_that_has_grown_while_it_was_not_served_is_recognised,
    a_dump_after_the_growth_belongs_to_the_disk,
    a_pin_of_the_whole_volume_grows_with_it,
}

/// A file of this size, and the disk in it.
fn disk(path: &Path, bytes: u64) -> (File, Arc<dyn Backend>) {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
    let disk = forebay_backend::open(&path.display().to_string(), &OpenOptions::default());
    (file, disk.unwrap())
}

fn grow(server: &Server) -> Result<(u64, u64), VolumeError> {
    server.runtime.volumes().grow("v")
}

/// The size that a client sees that enters now.
fn seen(server: &Server) -> u64 {
    server.client("v").opened.size_bytes
}

/// Blocks of a disk that are all different, so that its samples tell it from others.
fn fill(disk: &dyn Backend, bytes: u64) {
    for at in 0..bytes / 4096 {
        let block = AlignedBuffer::from(&block(at + 1_000_000)[..]);
        Blocking::new(disk).write(at * 4096, &block, false).unwrap();
    }
}

fn a_volume_grows_with_its_disk_while_it_is_written(engine: Engine) {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::Bypass] {
        let server = Server::start(engine);
        // The last line has two sectors only, and is whole afterwards.
        let former = 4 * MIB + 1024;
        let path = server.directory.path().join("disk.img");
        let (file, backend) = disk(&path, former);
        server.add("v", Arc::clone(&backend), mode);
        let (done, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut before = server.client("v");
        before.write(former - 512, &[7; 512]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = server.client("v");
                while !done.load(Ordering::Relaxed) {
                    let value = writes.load(Ordering::Relaxed);
                    client.write(value % 1024 * 4096, &block(value)).unwrap();
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
            let wait = |count| {
                while writes.load(Ordering::Relaxed) < count {
                    std::thread::yield_now();
                }
            };
            wait(50);
            assert_eq!(grow(&server).unwrap(), (former, former), "the disk is as it was");
            for step in 1..=8 {
                let bytes = former + step * MIB;
                file.set_len(bytes).unwrap();
                let last = bytes - MIB;
                assert_eq!((seen(&server), grow(&server).unwrap()), (last, (last, bytes)));
                assert_eq!(seen(&server), bytes);
                let mut client = server.client("v");
                let data = block(step);
                client.write(bytes - 4096, &data).unwrap();
                assert_eq!(client.read(bytes - 4096, 4096).unwrap(), data);
                wait(writes.load(Ordering::Relaxed) + 20);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(before.read(former - 1024, 1024).unwrap()[512..], [7; 512]);
        let mut client = server.client("v");
        // Across the former end, in one line.
        client.write(former - 512, &[8; 1024]).unwrap();
        assert_eq!(server.status("v").backing.size_bytes(), former + 8 * MIB);
        server.runtime.volumes().flush("v", |_| {}).unwrap();
        assert_eq!(read_backend(&*backend, former - 512, 1024), [8; 1024]);
        assert_eq!(read_backend(&*backend, former + 8 * MIB - 4096, 4096), block(8));
        drop((client, before));
        server.stop();
    }
}

fn a_disk_that_has_shrunk_or_has_half_a_block_keeps_its_size(engine: Engine) {
    let server = Server::start(engine);
    let (file, backend) = disk(&server.directory.path().join("disk.img"), 4 * MIB);
    server.add("v", backend, Mode::WriteBack);
    let kept = |bytes: u64| {
        file.set_len(bytes).unwrap();
        let error = grow(&server).unwrap_err();
        assert_eq!(seen(&server), 4 * MIB, "{error}");
        match error {
            VolumeError::Measure { source, .. } => source,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(kept(3 * MIB), MeasureError::Shrunk { to, .. } if to == 3 * MIB));
    let halved = kept(5 * MIB + 100);
    assert!(halved.with_causes().contains("not a multiple of 512"), "{halved}");
    file.set_len(5 * MIB).unwrap();
    assert_eq!(grow(&server).unwrap(), (4 * MIB, 5 * MIB));
    let unknown = server.runtime.volumes().grow("other").unwrap_err();
    assert!(matches!(unknown, VolumeError::Unknown(_)));
    server.add_memory("memory", MIB, Mode::WriteBack);
    let fixed = server.runtime.volumes().grow("memory").unwrap_err();
    assert!(fixed.explained().contains("only when it is opened"), "{fixed}");
}

/// A server of the volume "v" with a journal on `device`.
fn with_journal(
    engine: Engine,
    disk: Arc<dyn Backend>,
    device: &Arc<impl Backend + 'static>,
) -> Server {
    let server = start(engine);
    let journal = open(&server, Arc::clone(device) as _);
    crate::journal::add(&server, "v", disk, &journal);
    server
}

/// The disk is empty, so that only its size shows that it is the same one.
fn what_is_written_beyond_the_former_end_survives_a_power_loss(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let (file, backend) = disk(&directory.path().join("disk.img"), 4 * MIB);
    let device = memory(JOURNAL_BYTES);
    let server = with_journal(engine, Arc::clone(&backend), &device);
    let mut client = server.client("v");
    client.write(MIB, &block(1)).unwrap();
    file.set_len(16 * MIB).unwrap();
    grow(&server).unwrap();
    let mut grown = server.client("v");
    for at in 0..50 {
        grown.write(16 * MIB - (at + 1) * 4096, &block(at)).unwrap();
    }
    let ([disk_then], [device_then]) = power_loss([&*backend], [&*device]);
    drop((client, grown));
    server.stop();
    let second = with_journal(engine, Arc::clone(&disk_then) as _, &device_then);
    let mut client = second.client("v");
    assert_eq!(client.read(MIB, 4096).unwrap(), block(1));
    for at in 0..50 {
        assert_eq!(client.read(16 * MIB - (at + 1) * 4096, 4096).unwrap(), block(at));
    }
    drop(client);
    second.stop();
}

fn a_disk_that_has_grown_while_it_was_not_served_is_recognised(engine: Engine) {
    let (former, device) = (memory(4 * MIB), memory(JOURNAL_BYTES));
    fill(&*former, 4 * MIB);
    let server = with_journal(engine, Arc::clone(&former) as _, &device);
    server.client("v").write(MIB, &block(1)).unwrap();
    let ([disk_then], [device_then]) = power_loss([&*former], [&*device]);
    server.stop();
    let larger = memory(8 * MIB);
    for offset in (0..4 * MIB).step_by(MIB as usize) {
        let piece = AlignedBuffer::from(&read_backend(&*disk_then, offset, MIB)[..]);
        Blocking::new(&*larger).write(offset, &piece, false).unwrap();
    }
    // Another disk that is larger is refused.
    let other = memory(8 * MIB);
    fill(&*other, MIB);
    let server = start(engine);
    let journal = open(&server, copy(&*device_then) as _);
    let settings = crate::journal::volume("v", other as _, &journal);
    let refused = server.runtime.volumes().add(settings).unwrap_err();
    assert!(refused.to_string().contains("larger"), "{refused}");
    server.stop();
    let second = with_journal(engine, larger as _, &device_then);
    assert_eq!(second.client("v").read(MIB, 4096).unwrap(), block(1));
    second.stop();
}

fn a_dump_after_the_growth_belongs_to_the_disk(engine: Engine) {
    // Its samples would belong to other places, and an empty disk has only its size.
    for is_filled in [true, false] {
        dump_after_the_growth(engine, is_filled);
    }
}

fn dump_after_the_growth(engine: Engine, is_filled: bool) {
    let directory = tempfile::tempdir().unwrap();
    let (file, backend) = disk(&directory.path().join("disk.img"), 4 * MIB);
    if is_filled {
        fill(&*backend, 4 * MIB);
    }
    let device = memory(96 * MIB);
    let with_vault = |disk: Arc<dyn Backend>, device: Arc<dyn Backend>| {
        let server = start(engine);
        let vault = server
            .runtime
            .open_vault(VaultSettings {
                backend: device,
                is_void: Box::new(|_| Ok(false)),
                on_void: Box::new(|_, _| Ok(())),
            })
            .unwrap();
        let used = VolumeVault { vault: Arc::clone(&vault), identity: [5; 32], accept_loss: false };
        let mut settings = settings("v", disk, Mode::WriteBack);
        settings.config.protection = Protection::Ups;
        server.runtime.volumes().add(VolumeSettings { vault: Some(used), ..settings }).unwrap();
        server.runtime.ups().set_limit(MIB);
        (server, vault)
    };
    let (server, vault) = with_vault(Arc::clone(&backend), Arc::clone(&device) as _);
    file.set_len(16 * MIB).unwrap();
    grow(&server).unwrap();
    let mut client = server.client("v");
    client.write(12 * MIB, &block(12)).unwrap();
    client.write(MIB, &block(1)).unwrap();
    assert_eq!(vault.dump(&[VolumeId(0)], None).unwrap().bytes, 2 * 4096);
    let (disk_then, device_then) = (copy(&*backend), copy(&*device));
    drop((client, vault));
    server.stop();
    let (second, _vault) = with_vault(Arc::clone(&disk_then) as _, device_then);
    assert_eq!(read_backend(&*disk_then, 12 * MIB, 4096), block(12));
    assert_eq!(second.client("v").read(MIB, 4096).unwrap(), block(1));
    second.stop();
}

fn a_pin_of_the_whole_volume_grows_with_it(engine: Engine) {
    let server = Server::start(engine);
    let (file, backend) = disk(&server.directory.path().join("disk.img"), 64 << 10);
    let mut settings = settings("v", backend, Mode::WriteBack);
    let pin = PinnedRanges::all();
    settings.config = VolumeConfig { pin, ..settings.config };
    server.runtime.volumes().add(settings).unwrap();
    let pinned = || server.runtime.status().unwrap().memory.pinned_bytes;
    assert_eq!(pinned(), 64 << 10);
    file.set_len(128 << 10).unwrap();
    grow(&server).unwrap();
    assert_eq!(pinned(), 128 << 10);
    server.stop();
}
