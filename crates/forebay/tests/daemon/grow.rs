//! A volume grows with its disk, and its size outlives the server.

use crate::common::client::Client;
use crate::process::{Daemon, MIB, make_file};
use std::fs::File;

fn block(value: u64) -> Vec<u8> {
    (0..512).flat_map(|at: u64| (value * 1000 + at).to_le_bytes()).collect()
}

fn resize(daemon: &Daemon) -> (Option<i32>, String) {
    daemon.run(&["volume", "resize", "disk"])
}

/// Grows a volume step by step, with a write in each new part, while the server is killed, stopped
/// and started again. In the end, the disk has everything.
fn grows(volume: impl Fn(&std::path::Path) -> String) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("disk.img");
    make_file(&path, 16 * MIB);
    make_file(place.path().join("journal"), 40 * MIB);
    let start = || Daemon::start(place.path(), "auto", "64MiB", &[volume(place.path())]);
    let mut daemon = start();
    for step in 1..=6_u64 {
        let (before, now) = ((15 + step) * MIB, (16 + step) * MIB);
        File::options().write(true).open(&path).unwrap().set_len(now).unwrap();
        let mut client = Client::new(&daemon.socket, "disk");
        assert!(client.write(before, &block(0)).is_err(), "beyond the end");
        let (code, text) = resize(&daemon);
        let expected =
            format!("volume 'disk' has grown from {}MiB to {}MiB\n", 15 + step, 16 + step);
        assert_eq!((code, text), (Some(0), expected));
        // One that is connected may know by other means.
        client.write(now - 8192, &block(200 + step)).unwrap();
        assert!(client.write(now, &block(0)).is_err(), "beyond the new end");
        drop(client);
        let mut client = Client::new(&daemon.socket, "disk");
        assert_eq!(client.opened.size_bytes, now);
        client.write(before, &block(step)).unwrap();
        client.write(now - 4096, &block(100 + step)).unwrap();
        client.flush().unwrap();
        drop(client);
        match step % 3 {
            0 => daemon.stop(),
            1 => daemon.kill(),
            _ => continue,
        }
        daemon = start();
    }
    let (code, text) = resize(&daemon);
    assert_eq!((code, &*text), (Some(0), "volume 'disk' has 22MiB, as before\n"));
    let mut client = Client::new(&daemon.socket, "disk");
    for step in 1..=6 {
        let at = (15 + step) * MIB;
        assert_eq!(client.read(at, 4096).unwrap(), block(step));
        assert_eq!(client.read(at + MIB - 4096, 4096).unwrap(), block(100 + step));
    }
    drop(client);
    daemon.stop();
    let disk = std::fs::read(&path).unwrap();
    for step in 1..=6 {
        let at = ((15 + step) * MIB) as usize;
        assert_eq!(disk[at..at + 4096], block(step), "step {step}");
    }
}

#[test]
fn a_volume_with_a_journal_grows_over_kills_and_stops() {
    grows(|place| {
        let (disk, journal) = (place.join("disk.img"), place.join("journal"));
        let (disk, journal) = (disk.display(), journal.display());
        format!("disk={disk},mode=write-back,protection=journal,journal={journal}")
    });
}

#[test]
fn a_volume_of_larger_blocks_grows_over_kills_and_stops() {
    grows(|place| format!("disk=blocks(size=4096):{}", place.join("disk.img").display()));
}

#[test]
fn a_disk_that_does_not_fit_keeps_its_volume_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("disk.img");
    make_file(&path, 16 * MIB);
    let volume = format!("disk=blocks(size=4096):{}", path.display());
    let daemon = Daemon::start(place.path(), "auto", "64MiB", &[volume]);
    let set = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    set(17 * MIB + 512);
    let (code, text) = resize(&daemon);
    assert!(code == Some(1) && text.contains("not whole blocks of 4096"), "{text}");
    set(8 * MIB);
    let (code, text) = resize(&daemon);
    assert!(code == Some(1) && text.contains("has shrunk from 16MiB to 8MiB"), "{text}");
    set(16 * MIB);
    assert_eq!(Client::new(&daemon.socket, "disk").opened.size_bytes, 16 * MIB);
    let (code, text) = daemon.run(&["volume", "resize", "other"]);
    assert!(code == Some(1) && text.contains("no volume 'other'"), "{text}");
}
