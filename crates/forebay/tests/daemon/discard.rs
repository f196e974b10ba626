//! `forebay volume discard`: a volume whose disk refuses its data is removed, and the data is in a
//! file that `forebay rescue` applies.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::power::FileUps;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, run_forebay};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const SIZE_BYTES: u64 = 8 * MIB;

/// Writes single sectors, lines and several lines, and returns what the volume holds.
fn write(daemon: &Daemon, volume: &str, seed: u64) -> Vec<u8> {
    let (mut client, mut random) = (daemon.client(volume), Random::new(seed));
    let mut expected = vec![0; SIZE_BYTES as usize];
    for at in 0..300 {
        let sectors = [1, 3, 8, 40][random.below(4) as usize];
        let offset = random.below(SIZE_BYTES / 512 - sectors) * 512;
        let bytes = vec![(at % 255 + 1) as u8; sectors as usize * 512];
        assert_eq!(client.write(offset, &bytes), Ok(()));
        expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    expected
}

/// The disk refuses each write. It is a file, which is compared from outside.
fn what_a_disk_refuses_is_in_the_file(blocks: &str, settings: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (there, at) = (directory.path(), |name: &str| directory.path().join(name));
    for disk in ["disk.img", "other.img"] {
        make_file(at(disk), SIZE_BYTES);
    }
    make_file(at("journal"), 40 * MIB);
    let journal = at("journal").display().to_string();
    let settings = settings.replace("JOURNAL", &journal);
    let disk = at("disk.img").display().to_string();
    let volumes = [
        format!("a={blocks}error(kind=write):{disk},{settings}"),
        format!("b={},{UNPROTECTED}", at("other.img").display()),
    ];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let (expected, other) = (write(&daemon, "a", 1), write(&daemon, "b", 2));
    let kept = daemon.client("a");
    let fails = |arguments: &[&str], expected: &[&str]| {
        let (code, text) = daemon.run(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    };
    let discard = ["volume", "discard", "a"];
    fails(
        &["stop", "--force"],
        &["of volume 'a' to its backing store", "forebay volume discard a"],
    );
    fails(&discard, &["may not be on its disk", "--save FILE", "--yes"]);
    fails(&[&discard[..], &["--yes"]].concat(), &["volume 'a' has clients", "--force"]);
    let unsaved = [&discard[..], &["--force", "--save", &disk]].concat();
    fails(&unsaved, &["nothing is given up", "name a file that does not exist"]);
    drop(kept);
    let file = at("a.saved").display().to_string();
    let (code, text) = daemon.run(&[&discard[..], &["--save", &file]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("that its disk lacks are in"), "{text}");
    daemon.wait_for_log("dirty data given up volume=\"a\"");
    assert_eq!(daemon.run(&["volume", "add", &format!("a={disk}")]).0, Some(0), "it has left");
    daemon.stop();
    assert!(read(&at("disk.img")) == vec![0; SIZE_BYTES as usize], "the disk took nothing");
    assert!(read(&at("other.img")) == other, "the other volume is on its disk");

    let rescue = |arguments: &[&str]| run_forebay(there, &[&["rescue"][..], arguments].concat());
    assert_eq!(rescue(&["verify", &file]).0, Some(0));
    // The disk is not served under the name that it had.
    let apply = ["apply", &file, "--volume", "a", "--to", &disk, "--accept-older", "--force"];
    let (code, text) = rescue(&apply);
    assert_eq!(code, Some(0), "{text}");
    assert!(read(&at("disk.img")) == expected, "each acknowledged write is there");
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn what_a_disk_of_512_bytes_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("", UNPROTECTED);
}

#[test]
fn what_a_disk_of_4096_bytes_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("blocks(size=4096):", UNPROTECTED);
}

#[test]
fn what_the_disk_of_a_journalled_volume_refuses_is_in_the_file() {
    let settings = "mode=write-back,protection=journal,journal=JOURNAL";
    what_a_disk_refuses_is_in_the_file("", settings);
}

#[test]
fn what_the_disk_of_an_ordered_volume_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("", &format!("{UNPROTECTED},ordered=yes"));
}

#[test]
fn a_volume_is_given_up_without_a_file_and_its_disk_takes_all_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, SIZE_BYTES);
    let volume = format!("a=error(kind=write,range=1MiB-2MiB):{},{UNPROTECTED}", disk.display());
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[volume]);
    let mut client = daemon.client("a");
    for offset in [0, MIB, 3 * MIB] {
        assert_eq!(client.write(offset, &[7; 4096]), Ok(()));
    }
    drop(client);
    let (code, text) = daemon.run(&["volume", "discard", "a", "--yes"]);
    assert_eq!((code, &*text), (Some(0), "volume 'a' is removed; 4.0 KiB given up\n"));
    daemon.stop();
    let bytes = read(&disk);
    let taken = [0, MIB, 3 * MIB].map(|offset| bytes[offset as usize] == 7);
    assert_eq!(taken, [true, false, true]);
}

/// A machine that is shutting down, as far as the server can see: its `systemctl` says so once a
/// file exists.
fn start_on_a_machine(there: &Path, volumes: &[String], arguments: &[&str]) -> Daemon {
    let script = format!(
        "#!/bin/sh\ntest -e {} && echo stopping || echo running\n",
        there.join("stopping").display()
    );
    let systemctl = there.join("systemctl");
    std::fs::write(&systemctl, script).unwrap();
    std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", there.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--memory", "96MiB", "--workers", "2", "--keeper", "no"]);
    command.args(arguments).env("PATH", path);
    command.arg("--state").arg(there.join("state"));
    command.arg("--nbd").arg(format!("unix:{}", there.join("nbd.sock").display()));
    for volume in volumes {
        command.args(["--volume", volume]);
    }
    Daemon::spawn(command, there.join("nbd.sock"))
}

/// The disk of volume `a` refuses everything, that of `b` works.
fn a_shutdown_of_the_machine_leaves(settings: &str, arguments: &[&str], kept_in: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    let (there, at) = (directory.path(), |name: &str| directory.path().join(name));
    for disk in ["disk.img", "other.img"] {
        make_file(at(disk), SIZE_BYTES);
    }
    make_file(at("journal"), 40 * MIB);
    let ups = FileUps::start(at("ups"));
    let placed = |text: &str| {
        let journal = text.replace("JOURNAL", &at("journal").display().to_string());
        journal
            .replace("UPS", &at("ups").display().to_string())
            .replace("VAULT", &at("vault").display().to_string())
    };
    let disk = at("disk.img").display().to_string();
    let volumes = [
        format!("a=error(kind=write):{disk},{}", placed(settings)),
        format!("b={},{UNPROTECTED}", at("other.img").display()),
    ];
    let arguments: Vec<String> = arguments.iter().map(|argument| placed(argument)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let daemon = start_on_a_machine(there, &volumes, &arguments);
    if arguments.contains(&"--ups") {
        wait_until("write-back begins", PATIENCE, || {
            daemon.status()["power"]["write_back_allowed"] == true
        });
    }
    let (expected, other) = (write(&daemon, "a", 1), write(&daemon, "b", 2));
    daemon.terminate();
    daemon.wait_for_log("shutdown failed, continuing to serve");
    std::fs::write(at("stopping"), "").unwrap();
    daemon.wait();
    drop(ups);
    let log = std::fs::read_to_string(at("log")).unwrap();
    assert!(read(&at("other.img")) == other, "the other volume is on its disk");
    let Some(kept_in) = kept_in else {
        assert!(log.contains("dirty data is lost volume=\"a\""), "{log}");
        return;
    };
    assert!(log.contains("dirty data is kept volume=\"a\""), "{log}");
    let log_device = at(kept_in).display().to_string();
    let state = at("state").display().to_string();
    let apply = ["rescue", "apply", &log_device, "--volume", "a", "--to", &disk, "--state", &state];
    let (code, text) = run_forebay(there, &[&apply[..], &["--force"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(read(&at("disk.img")) == expected, "each acknowledged write is there");
}

#[test]
fn a_shutdown_of_the_machine_leaves_data_in_the_journal() {
    let settings = "mode=write-back,protection=journal,journal=JOURNAL";
    a_shutdown_of_the_machine_leaves(settings, &[], Some("journal"));
}

#[test]
fn a_shutdown_of_the_machine_leaves_data_in_the_vault() {
    let arguments = ["--ups", "lab=file:UPS", "--ups-settle-seconds", "1", "--vault", "VAULT"];
    a_shutdown_of_the_machine_leaves("mode=write-back,protection=ups", &arguments, Some("vault"));
}

#[test]
fn a_shutdown_of_the_machine_does_not_wait_for_a_dead_disk() {
    a_shutdown_of_the_machine_leaves(UNPROTECTED, &[], None);
}
