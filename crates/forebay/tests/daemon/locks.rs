//! Locks that outlive their process for a moment, as after a SIGKILL.

use crate::process::Daemon;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that has a file locked until its standard input ends, at the latest after `seconds`.
fn hold(path: &Path, seconds: &str) -> Child {
    let mut child = Command::new("flock")
        .arg(path)
        .args(["sh", "-c", &format!("echo locked; exec timeout {seconds} cat")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child
}

fn disk(directory: &Path) -> String {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    format!("disk={}", path.display())
}

#[test]
fn a_start_waits_for_locks_that_are_given_back_a_moment_later() {
    for locked in ["disk.img", "state/lock"] {
        let directory = tempfile::tempdir().unwrap();
        let volume = disk(directory.path());
        std::fs::create_dir(directory.path().join("state")).unwrap();
        let path = directory.path().join(locked);
        std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut holder = hold(&path, "1");
        let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[volume]);
        assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]), "{locked}");
        daemon.stop();
        holder.wait().unwrap();
    }
}

#[test]
fn a_start_does_not_wait_for_ever_and_says_that_it_waits() {
    let directory = tempfile::tempdir().unwrap();
    let volume = disk(directory.path());
    let mut holder = hold(&directory.path().join("disk.img"), "60");
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--keeper", "no", "--memory", "64MiB", "--volume", &volume, "--state"])
        .arg(directory.path().join("state"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is in use by another process or volume"), "{text}");
    assert!(text.contains("tried for 5 s"), "{text}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}
