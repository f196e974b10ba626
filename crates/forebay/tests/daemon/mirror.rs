//! Killed with a journal on two devices, of which one is gone, blank or back at each start.

use crate::common::random::Random;
use crate::crash::{LINES, Line, MIB, SIZE_BYTES, check, write_and_kill};
use crate::process::{Daemon, output_of};
use std::path::Path;
use std::process::{Command, Stdio};

fn make(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// Starts, looks at everything, writes, and is killed.
fn life(directory: &Path, volume: &str, lines: &mut [Line], random: &mut Random) {
    let daemon = Daemon::start(directory, "io_uring", "64MiB", &[volume.to_owned()]);
    let mut client = daemon.client("disk");
    check(&client.read(0, SIZE_BYTES).unwrap(), lines);
    drop(client);
    write_and_kill(daemon, lines, random, true);
}

/// What a start that is refused says.
fn refused(directory: &Path, volume: &str) -> String {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--memory", "64MiB", "--log", "warn", "--volume", volume, "--state"])
            .arg(directory.join("state"))
            .stdin(Stdio::null()),
    );
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn killed_with_either_device_gone_keeps_every_acknowledged_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    make(&path("disk.img"), SIZE_BYTES);
    for device in ["a", "b"] {
        make(&path(device), 40 * MIB);
    }
    let volume = format!(
        "disk={},mode=write-back,protection=journal,journal={},journal-mirror={}",
        path("disk.img").display(),
        path("a").display(),
        path("b").display()
    );
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(44);
    let mut live = || life(directory.path(), &volume, &mut lines, &mut random);
    live();
    for (lost, left) in [("a", "b"), ("b", "a"), ("a", "b")] {
        std::fs::rename(path(lost), path("away")).unwrap();
        live();
        live();
        // The one that was away is back, and the other one is not: it is older.
        std::fs::rename(path(left), path("newer")).unwrap();
        std::fs::rename(path("away"), path(lost)).unwrap();
        let said = refused(directory.path(), &volume);
        assert!(said.contains("nothing in the state directory says"), "{said}");
        // Both are back, or the one that was left behind is replaced.
        std::fs::rename(path("newer"), path(left)).unwrap();
        if lost == "b" {
            make(&path(lost), 40 * MIB);
        }
        live();
    }
    let daemon = Daemon::start(directory.path(), "io_uring", "64MiB", &[volume]);
    check(&daemon.client("disk").read(0, SIZE_BYTES).unwrap(), &mut lines);
    daemon.stop();
    check(&std::fs::read(path("disk.img")).unwrap(), &mut lines);
}

#[test]
fn a_rescue_of_one_device_says_what_it_can_not_know_and_of_both_does_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    make(&directory.path().join("disk.img"), SIZE_BYTES);
    for device in ["a", "b"] {
        make(&directory.path().join(device), 40 * MIB);
    }
    let (disk, a, b) = (path("disk.img"), path("a"), path("b"));
    let volume =
        format!("disk={disk},mode=write-back,protection=journal,journal={a},journal-mirror={b}");
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(45);
    life(directory.path(), &volume, &mut lines, &mut random);
    let rescue = |state: &str, arguments: &[&str]| {
        let output = output_of(
            Command::new(env!("CARGO_BIN_EXE_forebay"))
                .arg("rescue")
                .args(arguments)
                .args(["--state", &path(state)]),
        );
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = rescue("state", &["verify", &a]);
    assert!(code == Some(0) && said.contains("records that it has all data"), "{said}");
    let (code, said) = rescue("nowhere", &["verify", &b]);
    assert!(code == Some(1) && said.contains("may be newer") && said.contains("--mirror"), "{said}");
    let (_, said) = rescue("nowhere", &["list", &b, "--json"]);
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&list["kind"], &list["state"]), (&"journal".into(), &"may be older".into()));
    let apply = ["apply", &b, "--volume", "disk", "--to", &disk];
    let (code, said) = rescue("nowhere", &apply);
    assert!(code == Some(1) && said.contains("--mirror"), "{said}");
    let (code, said) = rescue("nowhere", &["discard", &b, "--volume", "disk", "--yes"]);
    assert!(code == Some(1) && said.contains("--mirror"), "{said}");
    let other = path("disk.img");
    let (code, said) = rescue("nowhere", &["list", &b, "--mirror", &other]);
    assert_eq!(code, Some(2), "{said}");

    // What one has lost the other has.
    let mut damaged = std::fs::read(&a).unwrap();
    damaged[(128 << 10) + 300] ^= 1;
    std::fs::write(&a, &damaged).unwrap();
    let before = std::fs::read(&b).unwrap();
    let (code, said) = rescue("nowhere", &["verify", &a, "--mirror", &b]);
    assert_eq!(code, Some(0), "{said}");
    assert!(std::fs::read(&a).unwrap() == damaged && std::fs::read(&b).unwrap() == before);
    let (code, said) = rescue("nowhere", &[&apply[..], &["--mirror", &a]].concat());
    assert_eq!(code, Some(0), "{said}");
    check(&std::fs::read(&disk).unwrap(), &mut lines);
    // Neither brings anything back.
    for alone in [&a, &b] {
        let (code, said) = rescue("state", &["list", alone, "--json"]);
        assert_eq!(code, Some(0), "{said}");
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list["volumes"][0]["released"], "applied", "{list}");
    }
    life(directory.path(), &volume, &mut lines, &mut random);

    // One alone, which is on record: from then on the other one is not believed.
    std::fs::rename(&b, path("away")).unwrap();
    let (code, said) =
        rescue("nowhere", &["apply", &a, "--volume", "disk", "--to", &disk, "--accept-loss"]);
    assert!(code == Some(1) && said.contains("--state"), "{said}");
    let (code, said) = rescue("state", &["apply", &a, "--volume", "disk", "--to", &disk]);
    assert_eq!(code, Some(0), "{said}");
    check(&std::fs::read(&disk).unwrap(), &mut lines);
    std::fs::rename(&a, path("gone")).unwrap();
    std::fs::rename(path("away"), &b).unwrap();
    let (code, said) = rescue("state", &["verify", &b]);
    assert!(code == Some(1) && said.contains("MAY BE OLDER"), "{said}");
}
