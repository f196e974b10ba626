//! Volumes with `nofail=yes` whose disks are missing when the server starts.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED, failed_start, make_file};
use std::path::Path;
use std::time::{Duration, Instant};

/// The names of the missing volumes, and why they are.
fn missing(daemon: &Daemon) -> Vec<(String, String)> {
    let status = daemon.status();
    let list = status["missing"].as_array().cloned().unwrap_or_default();
    let text = |missing: &serde_json::Value, field: &str| {
        missing[field].as_str().unwrap_or_default().to_owned()
    };
    list.iter().map(|it| (text(it, "name"), text(it, "reason"))).collect()
}

fn served(daemon: &Daemon) -> Vec<String> {
    let status = daemon.status();
    let volumes = status["volumes"].as_array().unwrap().iter();
    volumes.map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
}

fn volume(place: &Path, name: &str, settings: &str) -> String {
    format!("{name}={}{settings}", place.join(name).display())
}

#[test]
fn a_server_starts_without_a_missing_disk_and_serves_it_once_it_is_there() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    make_file(at.join("here"), MIB);
    let volumes = [volume(at, "here", ""), volume(at, "away", ",nofail=yes")];
    let daemon = Daemon::start(at, "auto", "64MiB", &volumes);
    assert_eq!(served(&daemon), ["here"]);
    let [(name, reason)] = &missing(&daemon)[..] else { panic!("{:?}", missing(&daemon)) };
    assert!(name == "away" && reason.contains("does not exist"), "{reason}");
    let (code, text) = daemon.run(&["status", "--check"]);
    assert!(code == Some(4) && text.contains("away") && text.contains("not served"), "{text}");
    make_file(at.join("away"), MIB);
    wait_until("the disk is served", PATIENCE, || served(&daemon) == ["here", "away"]);
    assert_eq!(missing(&daemon), []);
    Client::new(&daemon.socket, "away").write(0, &[7; 4096]).unwrap();
    daemon.stop();
    assert_eq!(std::fs::read(at.join("away")).unwrap()[..4096], [7; 4096]);
    // A disk that is required is required as before.
    let gone = volume(at, "gone", "");
    let state = at.join("other");
    std::fs::create_dir(&state).unwrap();
    let error = failed_start(&state, &["--volume", &gone]);
    assert!(error.contains("gone") && error.contains("does not exist"), "{error}");
}

#[test]
fn a_disk_that_does_not_answer_holds_nothing_up() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    make_file(at.join("here"), MIB);
    // Connections are accepted by the kernel, and nobody answers.
    let silent = at.join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let hanging = format!("hanging=nbd+unix:///x?socket={},nofail=yes", silent.display());
    let begun = Instant::now();
    let daemon = Daemon::start(at, "auto", "64MiB", &[volume(at, "here", ""), hanging]);
    wait_until("the server answers", PATIENCE, || daemon.run(&["status"]).0 == Some(0));
    // As long as a start waits for such disks.
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(served(&daemon), ["here"]);
    let [(name, reason)] = &missing(&daemon)[..] else { panic!("{:?}", missing(&daemon)) };
    assert_eq!((&**name, &**reason), ("hanging", ""));
    assert!(daemon.run(&["status"]).1.contains("its disk does not answer"));
    daemon.stop();
}

#[test]
fn a_missing_volume_is_removed_by_a_command_or_changed_by_a_reload() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    let configure = |volumes: &[(&str, &str)]| {
        let volumes = volumes.iter().map(|(name, disk)| {
            let disk = at.join(disk);
            let disk = disk.display();
            format!("[[volume]]\nname = '{name}'\nbacking = '{disk}'\nnofail = true\n")
        });
        std::fs::write(at.join("forebay.toml"), volumes.collect::<String>()).unwrap();
    };
    make_file(at.join("here"), MIB);
    configure(&[("a", "here"), ("b", "away-b"), ("c", "away-c"), ("d", "away-d")]);
    let file = at.join("forebay.toml").display().to_string();
    let daemon = Daemon::start_with(at, "auto", "64MiB", &[], &["--config", &file]);
    let names = || {
        let mut names: Vec<String> = missing(&daemon).into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    assert_eq!(
        (served(&daemon), names()),
        (vec!["a".to_owned()], ["b", "c", "d"].map(String::from).to_vec())
    );
    let (code, text) = daemon.run(&["volume", "remove", "b"]);
    assert_eq!((code, &*text), (Some(0), "volume 'b' is removed\n"));
    make_file(at.join("there"), MIB);
    configure(&[("a", "here"), ("b", "away-b"), ("c", "there"), ("e", "away-e")]);
    let (code, text) = daemon.run(&["reload"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        (served(&daemon).len(), names()),
        (2, vec!["e".to_owned()]),
        "{:?}",
        served(&daemon)
    );
    for disk in ["away-b", "away-c", "away-d"] {
        make_file(at.join(disk), MIB);
    }
    make_file(at.join("away-e"), MIB);
    wait_until("the last one is served", PATIENCE, || served(&daemon) == ["a", "c", "e"]);
    daemon.stop();
}

#[test]
fn what_the_pool_has_for_a_disk_that_is_missing_is_written_when_it_is_back() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    make_file(at.join("disk"), 4 * MIB);
    // A file under another path does not keep its place.
    make_file(at.join("here"), MIB);
    let volumes =
        [volume(at, "here", ""), volume(at, "disk", &format!(",nofail=yes,{UNPROTECTED}"))];
    let daemon = Daemon::start_kept(at, "auto", "64MiB", &volumes);
    Client::new(&daemon.socket, "disk").write(MIB, &[9; 65_536]).unwrap();
    let away = at.join("away");
    std::fs::rename(at.join("disk"), &away).unwrap();
    daemon.kill_server();
    wait_until("another server serves", PATIENCE, || daemon.run(&["status"]).0 == Some(0));
    assert_eq!(served(&daemon), ["here"]);
    // What is not written yet is not lost by a stop.
    let (code, text) = daemon.run(&["stop"]);
    assert!(code == Some(1) && text.contains("64 KiB"), "{text}");
    std::fs::rename(&away, at.join("disk")).unwrap();
    wait_until("the disk is served", PATIENCE, || served(&daemon).len() == 2);
    assert_eq!(Client::new(&daemon.socket, "disk").read(MIB, 65_536).unwrap(), [9; 65_536]);
    daemon.stop();
    assert_eq!(std::fs::read(at.join("disk")).unwrap()[MIB as usize..][..65_536], [9; 65_536]);
}
