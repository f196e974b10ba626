//! Volumes in memory: loaded from an image, and saved to it: at a stop, by a command, at intervals,
//! and when power fails.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::kept::reconnect;
use crate::power::UpsMachine;
use crate::process::{Daemon, MIB, failed_start, on_one_line, run_forebay};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

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
    let (code, text) = daemon.run(&["status", "--all"]);
    assert_eq!(code, Some(0));
    assert!(on_one_line(&text).contains("and a crash loses later writes"), "{text}");
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
    assert!(text.contains("holds a volume of 32 MiB, not 64 MiB"), "{text}");
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

#[test]
fn a_save_by_command_has_the_content_of_one_moment_while_clients_write() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = image(there);
    let daemon = start(there, &volume(&path, ",mode=bypass"));
    let mut model = vec![0; SIZE as usize];
    write(&daemon, &mut model, 1, 512);
    // The number at the end of the volume equals the one at its beginning, or is one smaller.
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let sector = |number: u64| [&number.to_le_bytes()[..], &[0; 504]].concat();
    let mut client = daemon.client("disk");
    for offset in [0, SIZE - 512] {
        client.write(offset, &sector(0)).unwrap();
    }
    drop(client);
    let is_done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut last) = (daemon.client("disk"), 0);
            while !is_done.load(Ordering::Relaxed) {
                last += 1;
                client.write(0, &sector(last)).unwrap();
                // A write between these two places, at a different one each time.
                client.write(SIZE / 2 + last % 1000 * 512, &sector(last)).unwrap();
                client.write(SIZE - 512, &sector(last)).unwrap();
            }
            last
        });
        let mut before = 0;
        for _ in 0..5 {
            let (code, text) = daemon.run(&["save", "disk"]);
            assert_eq!((code, &*text), (Some(0), "volume 'disk' is saved\n"));
            let found = content_of(&path);
            let (first, last) = (number(&found), number(&found[SIZE as usize - 512..]));
            assert!(first == last || first == last + 1, "{first} and {last}");
            assert!(last >= before, "it was saved before");
            before = last;
        }
        is_done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let (code, text) = daemon.run(&["save", "disk"]);
    assert_eq!(code, Some(0), "{text}");
    let now = content(&daemon);
    assert_eq!((number(&now), number(&now[SIZE as usize - 512..])), (written, written));
    assert!(content_of(&path) == now, "everything that was acknowledged");
    let state = saved(&daemon);
    assert_eq!((&state["changed"], &state["saving"]), (&false.into(), &false.into()), "{state}");
    assert!(state["took_ms"].is_u64(), "{state}");
    // Without a change there is nothing to save.
    let file = fs::metadata(&path).unwrap().ino();
    assert_eq!(daemon.run(&["save", "disk"]).0, Some(0));
    assert_eq!(fs::metadata(&path).unwrap().ino(), file);
    daemon.kill();

    let daemon = start(there, &volume(&path, ",mode=bypass"));
    assert!(content(&daemon) == now, "the server was killed");
    daemon.stop();
}

#[test]
fn only_volumes_with_an_image_are_saved() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path(), "disk=memory:1MiB");
    let (code, text) = daemon.run(&["save", "disk"]);
    assert_eq!(code, Some(1));
    let sentence = "forebay: volume 'disk' has no image file to save to: save volumes with the \
                    backing memory:SIZE?save=PATH only\n";
    assert_eq!(text, sentence);
    let (code, text) = daemon.run(&["save", "risk"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no volume 'risk'"), "{text}");
    daemon.stop();
    let (code, text) = run_forebay(directory.path(), &["serve", "--help"]);
    assert!(code == Some(0) && text.contains("memory:SIZE?save=PATH"), "{text}");
}

#[test]
fn a_volume_in_memory_is_saved_at_intervals_and_again_after_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("images");
    fs::create_dir(&there).unwrap();
    let path = image(&there);
    let volume = volume(&path, "&every=1s,mode=write-through,warm=no,learn=no");
    let daemon = start(directory.path(), &volume);
    assert_eq!(saved(&daemon)["every_seconds"], 1);
    let mut model = vec![0; SIZE as usize];
    let is_saved = |model: &[u8]| {
        wait_until("it is saved", PATIENCE, || saved(&daemon)["changed"] == false);
        assert!(content_of(&path) == model);
    };
    for round in 1..=2 {
        write(&daemon, &mut model, round, 512);
        is_saved(&model);
    }
    let (_, text) = daemon.run(&["status", "disk"]);
    assert!(on_one_line(&text).contains("written every 1 s and at a stop"), "{text}");
    // The name of the new image is taken, and then its directory is gone.
    let obstacle = there.join("ram.img.new");
    fs::create_dir(&obstacle).unwrap();
    let kept = model.clone();
    write(&daemon, &mut model, 3, 512);
    let fails_with = |remedy: &str| {
        wait_until(remedy, PATIENCE, || saved(&daemon)["remedy"] == remedy);
        let state = saved(&daemon);
        assert_eq!(state["changed"], true, "{state}");
        let error = state["error"].as_str().unwrap().to_owned();
        let (_, text) = daemon.run(&["status"]);
        let text = on_one_line(&text);
        assert!(text.contains(&format!("within a minute: {error} -> {remedy}")), "{text}");
        wait_until("the log has it", PATIENCE, || {
            let log = daemon.log_so_far();
            log.contains("cannot save volume in memory, trying again within a minute")
                && log.contains(&format!("remedy=\"{remedy}\""))
        });
    };
    fails_with("make room for a second image in its directory");
    assert!(content_of(&path) == kept, "the former image");
    let away = directory.path().join("away");
    fs::rename(&there, &away).unwrap();
    fails_with("restore the directory of the image, or mount its file system");
    assert!(content_of(&away.join("ram.img")) == kept, "the former image");
    assert!(content(&daemon) == model, "clients are served");
    fs::rename(&away, &there).unwrap();
    fs::remove_dir(&obstacle).unwrap();
    is_saved(&model);
    assert_eq!(saved(&daemon)["error"], serde_json::Value::Null);
    daemon.kill();
    let daemon = start(directory.path(), &volume);
    assert!(content(&daemon) == model, "the last image");
    daemon.stop();
}

#[test]
fn a_volume_in_memory_is_saved_when_mains_fails_and_when_the_battery_runs_low() {
    let mut machine = UpsMachine::new("");
    let path = image(machine.directory());
    machine.volume = volume(&path, ",mode=bypass");
    let ups = machine.start_ups();
    let daemon = machine.start();
    let mut model = vec![0; SIZE as usize];
    for (round, status) in [(1, "OB"), (2, "OB LB")] {
        write(&daemon, &mut model, round, 512);
        assert_eq!(saved(&daemon)["changed"], true);
        ups.set_status(status);
        wait_until(status, PATIENCE, || saved(&daemon)["changed"] == false);
        assert!(content_of(&path) == model, "{status}");
    }
    // It is saved before the notice that power may be cut.
    daemon.wait_for_log("power may be cut");
    let log = daemon.log_so_far();
    let [saved, notice] = ["volume saved", "power may be cut"].map(|text| log.rfind(text));
    assert!(saved.is_some() && saved < notice, "{log}");
    ups.set_status("OL");
    daemon.stop();
    assert!(content_of(&path) == model);
}
