//! Volumes that are added, changed and removed while clients are connected.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::{Server, read_backend, settings};
use forebay_backend::{Backend, MemoryBackend, OpenOptions, open};
use forebay_runtime::{Engine, VolumeError};
use forebay_types::Mode;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

on_both_engines! {
    one_disk_is_not_served_twice,
    names_are_unique_and_validated,
    volumes_are_added_and_removed_while_clients_are_connected,
    a_stop_flushes_everything_to_the_file,
    a_removed_volume_releases_its_memory,
    a_volume_with_the_number_of_a_removed_one_uses_its_own_disk,
}

const MIB: u64 = 1 << 20;

fn open_file(path: &Path) -> Option<Arc<dyn Backend>> {
    open(&path.display().to_string(), &OpenOptions::default()).ok()
}

/// Whether a disk under this path is refused as in use, by the file's lock or by the runtime.
fn is_refused(server: &Server, path: &Path) -> bool {
    let Some(backend) = open_file(path) else { return true };
    let added = server.runtime.volumes().add(settings("again", backend, Mode::WriteBack));
    matches!(added, Err(VolumeError::BackingInUse { volume, .. }) if volume == "disk")
}

fn one_disk_is_not_served_twice(engine: Engine) {
    let server = Server::start(engine);
    let path = server.directory.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(MIB).unwrap();
    let [hard, soft] = ["hard", "soft"].map(|name| server.directory.path().join(name));
    std::fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    server.add("disk", open_file(&path).unwrap(), Mode::WriteBack);
    for path in [&path, &hard, &soft, &server.directory.path().join("./disk.img")] {
        assert!(is_refused(&server, path), "{}", path.display());
    }
    // Without a lock, as for a remote disk, the identity decides.
    let disk = server.runtime.status().unwrap().volumes.remove(0).backing;
    assert!(disk.identity.is_some());
    server.runtime.volumes().remove("disk", |_| {}).unwrap();
    server.add("other", open_file(&hard).unwrap(), Mode::WriteBack);
}

fn names_are_unique_and_validated(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", MIB, Mode::WriteBack);
    let backend = || Arc::new(MemoryBackend::new(MIB).unwrap());
    let add = |name: &str| server.runtime.volumes().add(settings(name, backend(), Mode::Bypass));
    assert!(matches!(add("disk"), Err(VolumeError::NameInUse(_))));
    for name in ["", "a\nb", "\0", &"x".repeat(257)] {
        assert!(matches!(add(name), Err(VolumeError::Name(_))), "{name:?}");
    }
    assert!(add(&"x".repeat(256)).is_ok());
    assert!(add("Disk").is_ok(), "names are case-sensitive");
    for unknown in ["nix", "disk "] {
        let removed = server.runtime.volumes().remove(unknown, |_| {});
        assert!(matches!(removed, Err(VolumeError::Unknown(_))));
    }
}

fn volumes_are_added_and_removed_while_clients_are_connected(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("stays", 4 * MIB, Mode::WriteBack);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, stop) = (&server, &stop);
        scope.spawn(move || {
            let mut client = server.client("stays");
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let (offset, data) = (n % 64 * 65536, vec![n as u8; 4096]);
                assert_eq!(client.write(offset, &data), Ok(()));
                assert_eq!(client.read(offset, 4096), Ok(data));
                n += 1;
            }
        });
        for round in 0..20u8 {
            let disk = server.add_memory("comes", 4 * MIB, Mode::ALL[usize::from(round % 3)]);
            let mut clients = [server.client("comes"), server.client("comes")];
            assert_eq!(clients[0].read(0, 8192), Ok(vec![0; 8192]), "another volume's data");
            assert_eq!(clients[0].write(4096, &[round + 1; 65536]), Ok(()));
            assert_eq!(clients[1].read(4096, 4096), Ok(vec![round + 1; 4096]));
            server.runtime.volumes().remove("comes", |_| {}).unwrap();
            assert_eq!(read_backend(&*disk, 4096, 65536), vec![round + 1; 65536]);
            for client in &mut clients {
                assert!(client.try_wait(4711).is_none(), "its clients are disconnected");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.runtime.status().unwrap().volumes.len(), 1);
}

fn a_stop_flushes_everything_to_the_file(engine: Engine) {
    let server = Server::start(engine);
    let path = server.directory.path().join("disk.img");
    std::fs::write(&path, vec![1; 8 << 20]).unwrap();
    server.add("disk", open_file(&path).unwrap(), Mode::WriteBack);
    let mut client = server.client("disk");
    let mut random = crate::common::random::Random::new(3);
    let mut wanted = vec![1; 8 << 20];
    for _ in 0..500 {
        let offset = random.below(8 * MIB / 512 - 16) * 512;
        let len = 512 * (1 + random.below(16));
        let data = random.bytes(len as usize);
        assert_eq!(client.write(offset, &data), Ok(()));
        wanted[offset as usize..][..data.len()].copy_from_slice(&data);
    }
    let mut left_bytes = Vec::new();
    server.runtime.stop(|left| left_bytes.push(left)).unwrap();
    // Exactly the written bytes.
    assert!(std::fs::read(&path).unwrap() == wanted);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 << 20);
}

fn a_removed_volume_releases_its_memory(engine: Engine) {
    let server = Server::start(engine);
    let before = server.runtime.status().unwrap();
    for _ in 0..3 {
        server.add_memory("disk", 64 * MIB, Mode::WriteBack);
        let mut client = server.client("disk");
        for n in 0..16 {
            assert_eq!(client.write(n * MIB, &[7; 65536]), Ok(()));
        }
        server.runtime.volumes().remove("disk", |_| {}).unwrap();
        drop(client);
    }
    wait_until("the clients are removed", PATIENCE, || {
        server.runtime.status().unwrap().connections == 0
    });
    let after = server.runtime.status().unwrap();
    assert_eq!(after.memory.used_bytes, before.memory.used_bytes);
    assert_eq!(after.memory.dirty_bytes, 0);
    assert!(after.volumes.is_empty());
}

/// Workers remember the volume of their last I/O by its number.
fn a_volume_with_the_number_of_a_removed_one_uses_its_own_disk(engine: Engine) {
    let server = Server::start(engine);
    let disks = [1, 2].map(|content| {
        let disk = server.add_memory("disk", MIB, Mode::WriteThrough);
        let mut client = server.client("disk");
        for offset in (0..MIB).step_by(64 << 10) {
            assert_eq!(client.write(offset, &[content; 4096]), Ok(()));
        }
        drop(client);
        server.runtime.volumes().remove("disk", |_| ()).unwrap();
        disk
    });
    for (disk, content) in disks.iter().zip([1, 2]) {
        for offset in (0..MIB).step_by(64 << 10) {
            assert_eq!(read_backend(&**disk, offset, 4096), [content; 4096], "at {offset}");
        }
    }
}
