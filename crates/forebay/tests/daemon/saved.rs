//! Volumes in memory: loaded from an image, and saved to it.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::kept::reconnect;
use crate::process::{Daemon, MIB, failed_start, run_forebay};
use std::fs;
use std::path::{Path, PathBuf};

const SIZE: u64 = 32 * MIB;
const CHUNK: u64 = 64 << 10;

fn image(directory: &Path) -> PathBuf {
    let path = directory.join("ram.img");
    fs::write(&path, "").unwrap();
    path
}

fn volume(path: &Path, settings: &str) -> String {
    format!("disk=memory:32MiB?save={}{settings}", path.display())
}

fn start(directory: &Path, volume: &str) -> Daemon {
    Daemon::start(directory, "auto", "64MiB", &[volume.to_owned()])
}

/// Writes random blocks of a size through a client, and to a model.
fn write(daemon: &Daemon, model: &mut [u8], seed: u64, block: u64) {
    let mut random = Random::new(seed);
    let mut client = daemon.client("disk");
    for _ in 0..300 {
        let len = block * (1 + random.below(24));
        let offset = random.below((SIZE - len) / block) * block;
        let bytes = random.bytes(len as usize);
        client.write(offset, &bytes).unwrap();
        model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
    }
    // The ends, and a part that is zeroed again.
    for offset in [0, SIZE - block] {
        let bytes = random.bytes(block as usize);
        client.write(offset, &bytes).unwrap();
        model[offset as usize..(offset + block) as usize].copy_from_slice(&bytes);
    }
    let zeroes = vec![0; 3 * CHUNK as usize];
    client.write(5 * MIB, &zeroes).unwrap();
    model[5 * MIB as usize..][..zeroes.len()].copy_from_slice(&zeroes);
}

fn content(daemon: &Daemon) -> Vec<u8> {
    let mut client = daemon.client("disk");
    (0..SIZE / MIB).flat_map(|at| client.read(at * MIB, MIB).unwrap()).collect()
}

/// The content in an image, as other programs see it.
fn content_of(image: &Path) -> Vec<u8> {
    let mut bytes = fs::read(image).unwrap();
    assert!(bytes.len() as u64 > SIZE);
    bytes.truncate(SIZE as usize);
    bytes
}

fn saved(daemon: &Daemon) -> serde_json::Value {
    daemon.status()["volumes"][0]["saved"].clone()
}

fn is_loaded_as_it_was_saved(layer: &str, mode: &str, block: u64) {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = image(there);
    let volume =
        format!("disk={layer}memory:32MiB?save={},mode={mode},warm=no,learn=no", path.display());
    let mut model = vec![0; SIZE as usize];
    for round in 1..=3 {
        let daemon = start(there, &volume);
        assert!(content(&daemon) == model, "round {round}");
        let state = saved(&daemon);
        assert_eq!(state["changed"], false, "{state}");
        assert_eq!(state["age_seconds"].is_u64(), round > 1, "{state}");
        write(&daemon, &mut model, round, block);
        assert_eq!(saved(&daemon)["changed"], true);
        assert!(content(&daemon) == model);
        daemon.stop();
        assert!(content_of(&path) == model, "round {round}: the image");
        assert!(!there.join("ram.img.new").exists());
    }
    // A removal saves, and an addition loads.
    let daemon = start(there, &volume);
    write(&daemon, &mut model, 9, block);
    let (code, text) = daemon.run(&["volume", "remove", "disk"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(content_of(&path) == model);
    let (code, text) = daemon.run(&["volume", "add", &volume]);
    assert_eq!(code, Some(0), "{text}");
    assert!(content(&daemon) == model);
    daemon.stop();
}

#[test]
fn a_volume_in_memory_is_loaded_as_it_was_saved() {
    is_loaded_as_it_was_saved("", "bypass", 512);
}

#[test]
fn a_volume_in_memory_in_larger_blocks_is_loaded_as_it_was_saved() {
    is_loaded_as_it_was_saved("blocks(size=4096):", "write-through", 4096);
}

#[test]
fn after_a_kill_a_volume_in_memory_is_as_it_was_saved_last() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = image(there);
    let volume = volume(&path, ",mode=write-through,warm=no");
    let mut model = vec![0; SIZE as usize];
    let daemon = start(there, &volume);
    write(&daemon, &mut model, 1, 512);
    daemon.stop();
    // With a keeper, which has the lines that were read and written since.
    let daemon = Daemon::start_kept(there, "auto", "64MiB", &[volume]);
    let mut lost = model.clone();
    write(&daemon, &mut lost, 2, 512);
    assert!(content(&daemon) == lost && lost != model);
    let (code, text) = daemon.run(&["status"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("and a crash loses later writes"), "{text}");
    fs::remove_file(&daemon.socket).unwrap();
    daemon.kill_server();
    wait_until("the next server answers", PATIENCE, || daemon.socket.exists());
    drop(reconnect(&daemon));
    assert!(content(&daemon) == model, "what was saved, and nothing of the pool");
    assert!(content_of(&path) == model);
    // An upgrade saves.
    write(&daemon, &mut model, 3, 512);
    let (code, text) = daemon.run(&["upgrade"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(content(&daemon) == model);
    daemon.stop();
}

#[test]
fn a_save_that_fails_prevents_the_stop() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = image(there);
    let daemon = start(there, &volume(&path, ",mode=bypass"));
    let mut model = vec![0; SIZE as usize];
    write(&daemon, &mut model, 1, 512);
    let obstacle = there.join("ram.img.new");
    fs::create_dir(&obstacle).unwrap();
    for command in [&["stop"][..], &["volume", "remove", "disk"]] {
        let (code, text) = daemon.run(command);
        assert_eq!(code, Some(1), "{text}");
        let sentence = format!("cannot save volume 'disk' to {}; it is still", path.display());
        assert!(text.contains(&sentence), "{text}");
        assert!(text.contains("make room for a second image in its directory"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
    assert!(content(&daemon) == model);
    write(&daemon, &mut model, 2, 512);
    fs::remove_dir(&obstacle).unwrap();
    daemon.stop();
    assert!(content_of(&path) == model);
}

#[test]
fn volumes_in_memory_that_cannot_be_served_are_refused_and_keep_their_images() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = image(there);
    let refused = |volume: &str| failed_start(there, &["--volume", volume]);
    let daemon = start(there, &volume(&path, ",mode=bypass"));
    let mut model = vec![0; SIZE as usize];
    write(&daemon, &mut model, 1, 512);
    let (code, text) =
        daemon.run(&["volume", "add", &volume(&path, ",mode=bypass").replace("disk=", "two=")]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is in use: give each volume an image of its own"), "{text}");
    daemon.stop();
    let whole = fs::read(&path).unwrap();
    let larger = volume(&path, "").replace("32MiB", "64MiB");
    let text = refused(&larger);
    assert!(text.contains("holds a volume of 33554432 bytes, not 67108864"), "{text}");
    let huge = volume(&path, "").replace("32MiB", "64TiB");
    let text = refused(&huge);
    assert!(text.contains("volume 'disk' takes 64TiB of memory beside the cache's"), "{text}");
    assert!(fs::read(&path).unwrap() == whole);
    for (damage, reason) in [(0, "is damaged at byte 0"), (whole.len() - 4096, "is not an image")] {
        let mut bytes = whole.clone();
        bytes[damage] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let text = refused(&volume(&path, ""));
        assert!(text.contains(reason), "{text}");
        assert!(fs::read(&path).unwrap() == bytes, "the file is as it was");
    }
    fs::remove_file(&path).unwrap();
    let text = refused(&volume(&path, ""));
    assert!(text.contains("does not exist: check that its file system is mounted"), "{text}");
    assert!(!path.exists(), "no empty volume replaces it");
    for (volume, reason) in [
        (volume(&path, ",mode=write-back,protection=none,accept-loss=yes"), "gains nothing"),
        ("disk=memory:1MiB?save=x,mode=write-back,accept-loss=yes".into(), "gains nothing"),
    ] {
        let (code, text) = run_forebay(there, &["serve", "--volume", &volume]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let text = refused("disk=memory:1MiB?save=x");
    assert!(text.contains("save='x' is invalid: write it like save=/var/lib"), "{text}");
}
