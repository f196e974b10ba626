//! A stop that a disk does not let happen, and stops that clients may not hold up.

use crate::common::client::{PATIENCE, connect};
use crate::common::raw::enter;
use crate::common::wait_until;
use crate::process::{Daemon, output_of};
use forebay_types::IoError;
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Clients that leave at once: more than there are receive buffers, many times over.
const CROWD: usize = 200;
/// Those of them that have sent something last: enough to use all buffers up.
const SENDING: usize = 20;

/// A frozen daemon finds all of it at once, as a busy one may.
fn clients_that_leave_at_once_are_all_let_go(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut stays = daemon.client("disk");
    let mut crowd: Vec<UnixStream> = (0..CROWD).map(|_| connect(&daemon.socket)).collect();
    crowd.iter_mut().for_each(|stream| enter(stream, "disk"));
    assert_eq!(daemon.connections(), CROWD as u64 + 1);
    daemon.signal(Signal::STOP);
    crowd[..SENDING].iter_mut().for_each(|stream| stream.write_all(&[0]).unwrap());
    drop(crowd);
    daemon.signal(Signal::CONT);
    wait_until("those that left are let go", PATIENCE, || daemon.connections() == 1);
    assert_eq!(stays.write(0, &[1; 512]), Ok(()));
    daemon.stop();
}

#[test]
fn clients_that_leave_at_once_are_all_let_go_on_io_uring() {
    clients_that_leave_at_once_are_all_let_go("io_uring");
}

#[test]
fn clients_that_leave_at_once_are_all_let_go_on_epoll() {
    clients_that_leave_at_once_are_all_let_go("epoll");
}

#[test]
fn a_command_gives_up_on_a_daemon_that_does_not_answer_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:1MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    assert_eq!(daemon.ask(&["status"]).0, Some(0));
    daemon.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let commands: [&[&str]; 3] = [&["status"], &["volume", "list"], &["stop"]];
        let asked = commands.map(|command| scope.spawn(|| daemon.ask(command)));
        for (command, asked) in commands.iter().zip(asked) {
            let (code, said) = asked.join().unwrap();
            assert_eq!(code, Some(1), "{command:?}: {said}");
            assert!(said.contains("control.sock has not answered for 10 s"), "{command:?}: {said}");
        }
    });
    daemon.signal(Signal::CONT);
    daemon.stop();
}

#[test]
fn a_signal_does_not_end_a_daemon_whose_disk_fails() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::File::create(at("disk.img")).unwrap().set_len(1 << 20).unwrap();
    let disk = at("disk.img");
    let volume = |name: &str, kind: &str, mode: &str| {
        format!("{name}=error(kind={kind}):{},{mode}", disk.with_file_name(name).display())
    };
    for name in ["writes", "flushes"] {
        std::fs::copy(&disk, at(name)).unwrap();
    }
    let log = std::fs::File::create(at("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let back = "mode=write-back,protection=none,accept-loss=yes";
    command
        .args(["serve", "--memory", "64MiB", "--workers", "1", "--log", "info", "--keeper", "no"])
        .args(["--volume", &volume("writes", "write", back)])
        .args(["--volume", &volume("flushes", "flush", "mode=write-through")])
        .arg("--state")
        .arg(at("state"))
        .arg("--nbd")
        .arg(format!("unix:{}", at("nbd.sock").display()))
        .stderr(log);
    let daemon = Daemon::spawn(command, at("nbd.sock"));
    let log = || std::fs::read_to_string(at("log")).unwrap();
    let (mut back, mut through) = (daemon.client("writes"), daemon.client("flushes"));
    assert_eq!(back.write(0, &[7; 4096]), Ok(()));
    assert_eq!(through.write(0, &[8; 4096]), Ok(()));
    for times in 1..3 {
        daemon.terminate();
        wait_until("the signal was heeded", PATIENCE, || {
            log().matches("not stopped: volume 'writes' still has 4096 bytes").count() == times
        });
        assert_eq!(back.read(0, 4096), Ok(vec![7; 4096]), "it serves on");
        assert_eq!(daemon.client("writes").read(0, 4096), Ok(vec![7; 4096]), "also new clients");
    }
    assert_eq!(through.flush(), Err(IoError::Io));
    let ran = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let output = output_of(command.args(arguments).arg("--state").arg(at("state")));
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, text) = ran(&["volume", "list", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\"failing\"") && text.contains("volume trust flushes"), "{text}");
    let (code, text) = ran(&["volume", "remove", "flushes"]);
    assert!(code == Some(1) && text.contains("forebay volume trust flushes"), "{text}");
    let (code, text) = ran(&["volume", "trust", "flushes"]);
    assert!(code == Some(1) && text.contains("a flush of the backing store"), "it fails: {text}");
}
