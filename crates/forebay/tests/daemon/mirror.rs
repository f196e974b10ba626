//! Kills with a mirrored journal that has a device missing, blank or returned at each start.

use crate::common::random::Random;
use crate::crash::{LINES, Line, SIZE_BYTES, check, write_and_kill};
use crate::process::{Daemon, MIB, failed_start, make_file, run_forebay};
use std::path::Path;

/// Starts a daemon, checks the whole volume, writes, and kills the daemon.
fn start_check_write_kill(directory: &Path, volume: &str, lines: &mut [Line], random: &mut Random) {
    let daemon = Daemon::start(directory, "io_uring", "64MiB", &[volume.to_owned()]);
    let mut client = daemon.client("disk");
    check(&client.read(0, SIZE_BYTES).unwrap(), lines);
    drop(client);
    write_and_kill(daemon, lines, random, true);
}

#[test]
fn killed_with_either_device_gone_keeps_every_acknowledged_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    make_file(path("disk.img"), SIZE_BYTES);
    for device in ["a", "b"] {
        make_file(path(device), 40 * MIB);
    }
    let volume = format!(
        "disk={},mode=write-back,protection=journal,journal={},journal-mirror={}",
        path("disk.img").display(),
        path("a").display(),
        path("b").display()
    );
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(44);
    let mut cycle = || start_check_write_kill(directory.path(), &volume, &mut lines, &mut random);
    cycle();
    for (lost, left) in [("a", "b"), ("b", "a"), ("a", "b")] {
        std::fs::rename(path(lost), path("away")).unwrap();
        cycle();
        cycle();
        // Only the stale device is present.
        std::fs::rename(path(left), path("newer")).unwrap();
        std::fs::rename(path("away"), path(lost)).unwrap();
        let text = failed_start(directory.path(), &["--volume", &volume]);
        assert!(text.contains("the missing one may be newer"), "{text}");
        // Both devices are present, or the stale one was replaced by a blank one.
        std::fs::rename(path("newer"), path(left)).unwrap();
        if lost == "b" {
            make_file(path(lost), 40 * MIB);
        }
        cycle();
    }
    let daemon = Daemon::start(directory.path(), "io_uring", "64MiB", &[volume]);
    check(&daemon.client("disk").read(0, SIZE_BYTES).unwrap(), &mut lines);
    daemon.stop();
    check(&std::fs::read(path("disk.img")).unwrap(), &mut lines);
}

#[test]
fn a_rescue_from_one_device_of_a_mirror_warns_that_the_other_may_be_newer() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    make_file(directory.path().join("disk.img"), SIZE_BYTES);
    for device in ["a", "b"] {
        make_file(directory.path().join(device), 40 * MIB);
    }
    let (disk, a, b) = (path("disk.img"), path("a"), path("b"));
    let volume =
        format!("disk={disk},mode=write-back,protection=journal,journal={a},journal-mirror={b}");
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(45);
    start_check_write_kill(directory.path(), &volume, &mut lines, &mut random);
    let rescue = |state: &str, arguments: &[&str]| {
        let state = ["--state", &path(state)];
        run_forebay(directory.path(), &[&["rescue"], arguments, &state].concat())
    };
    let (code, said) = rescue("state", &["verify", &a]);
    assert!(code == Some(0) && said.contains("records that it has all data"), "{said}");
    let (code, said) = rescue("nowhere", &["verify", &b]);
    assert!(
        code == Some(1) && said.contains("may be newer") && said.contains("--mirror"),
        "{said}"
    );
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

    // Damage on one device is read from the other.
    let mut damaged = std::fs::read(&a).unwrap();
    damaged[(128 << 10) + 300] ^= 1;
    std::fs::write(&a, &damaged).unwrap();
    let before = std::fs::read(&b).unwrap();
    let (code, said) = rescue("nowhere", &["verify", &a, "--mirror", &b]);
    assert_eq!(code, Some(0), "{said}");
    assert!(std::fs::read(&a).unwrap() == damaged && std::fs::read(&b).unwrap() == before);
    let (code, said) =
        rescue("nowhere", &[&apply[..], &["--mirror", &a, "--accept-older"]].concat());
    assert_eq!(code, Some(0), "{said}");
    check(&std::fs::read(&disk).unwrap(), &mut lines);
    // The records are released on both devices.
    for alone in [&a, &b] {
        let (code, said) = rescue("state", &["list", alone, "--json"]);
        assert_eq!(code, Some(0), "{said}");
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list["volumes"][0]["released"], "applied", "{list}");
    }
    start_check_write_kill(directory.path(), &volume, &mut lines, &mut random);

    // Applying from one device alone records it as the only member; the other one is then stale.
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
