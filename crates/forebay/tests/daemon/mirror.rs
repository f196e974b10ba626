//! Killed with a journal on two devices, of which one is gone, blank or back at each start.

use crate::common::random::Random;
use crate::crash::{LINES, Line, MIB, SIZE_BYTES, check, write_and_kill};
use crate::process::Daemon;
use std::path::Path;
use std::process::{Command, Stdio};

fn make(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// Starts, looks at everything, writes, and is killed.
fn life(directory: &Path, volume: &str, lines: &mut [Line], random: &mut Random) {
    // The kernel answers at the old socket for a moment after its owner is gone.
    let _ = std::fs::remove_file(directory.join("nbd.sock"));
    let daemon = Daemon::start(directory, "io_uring", "64MiB", &[volume.to_owned()]);
    let mut client = daemon.client("disk");
    check(&client.read(0, SIZE_BYTES).unwrap(), lines);
    drop(client);
    write_and_kill(daemon, lines, random, true);
}

/// What a start that is refused says.
fn refused(directory: &Path, volume: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--memory", "64MiB", "--log", "warn", "--volume", volume, "--state"])
        .arg(directory.join("state"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
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
    let _ = std::fs::remove_file(path("nbd.sock"));
    let daemon = Daemon::start(directory.path(), "io_uring", "64MiB", &[volume]);
    check(&daemon.client("disk").read(0, SIZE_BYTES).unwrap(), &mut lines);
    daemon.stop();
    check(&std::fs::read(path("disk.img")).unwrap(), &mut lines);
}
