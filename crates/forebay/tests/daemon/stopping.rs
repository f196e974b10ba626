//! Stopping a daemon: failing disks prevent it, clients do not; and mass disconnects.

use crate::common::client::{PATIENCE, connect};
use crate::common::raw::{enter, request};
use crate::common::wait_until;
use crate::process::{Daemon, UNPROTECTED, make_file};
use forebay_nbd::proto::command;
use forebay_types::IoError;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

/// Clients that disconnect at once: far more than there are receive buffers.
const CROWD: usize = 200;
/// Clients in the crowd with unread data: enough to use up all receive buffers.
const SENDING: usize = 20;

/// The daemon is frozen while the clients disconnect, so that it finds all disconnects in one turn,
/// as a busy daemon may.
fn a_mass_disconnect_releases_every_client(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut stays = daemon.client("disk");
    let mut crowd: Vec<UnixStream> = (0..CROWD).map(|_| connect(&daemon.socket)).collect();
    crowd.iter_mut().for_each(|stream| enter(stream, "disk"));
    assert_eq!(daemon.connections(), CROWD as u64 + 1);
    daemon.freeze();
    crowd[..SENDING].iter_mut().for_each(|stream| stream.write_all(&[0]).unwrap());
    drop(crowd);
    daemon.thaw();
    wait_until("the crowd is disconnected", PATIENCE, || daemon.connections() == 1);
    assert_eq!(stays.write(0, &[1; 512]), Ok(()));
    daemon.stop();
}

#[test]
fn a_mass_disconnect_releases_every_client_on_io_uring() {
    a_mass_disconnect_releases_every_client("io_uring");
}

#[test]
fn a_mass_disconnect_releases_every_client_on_epoll() {
    a_mass_disconnect_releases_every_client("epoll");
}

#[test]
fn a_command_times_out_on_an_unresponsive_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:1MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    assert_eq!(daemon.run(&["status"]).0, Some(0));
    daemon.freeze();
    std::thread::scope(|scope| {
        let commands: [&[&str]; 3] = [&["status"], &["volume", "list"], &["stop"]];
        let asked = commands.map(|command| scope.spawn(|| daemon.run(command)));
        for (command, asked) in commands.iter().zip(asked) {
            let (code, said) = asked.join().unwrap();
            assert_eq!(code, Some(1), "{command:?}: {said}");
            assert!(said.contains("control.sock has not answered for 10 s"), "{command:?}: {said}");
        }
    });
    daemon.thaw();
    daemon.stop();
}

#[test]
fn sigterm_does_not_stop_a_daemon_with_dirty_data_that_its_disk_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    make_file(at("disk.img"), 1 << 20);
    let disk = at("disk.img");
    let volume = |name: &str, kind: &str, mode: &str| {
        format!("{name}=error(kind={kind}):{},{mode}", disk.with_file_name(name).display())
    };
    for name in ["writes", "flushes"] {
        std::fs::copy(&disk, at(name)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .args(["serve", "--memory", "64MiB", "--workers", "1", "--log", "info", "--keeper", "no"])
        .args(["--volume", &volume("writes", "write", UNPROTECTED)])
        .args(["--volume", &volume("flushes", "flush", "mode=write-through")])
        .arg("--state")
        .arg(at("state"))
        .arg("--nbd")
        .arg(format!("unix:{}", at("nbd.sock").display()));
    let daemon = Daemon::spawn(command, at("nbd.sock"));
    let (mut back, mut through) = (daemon.client("writes"), daemon.client("flushes"));
    assert_eq!(back.write(0, &[7; 4096]), Ok(()));
    assert_eq!(through.write(0, &[8; 4096]), Ok(()));
    for times in 1..3 {
        daemon.terminate();
        let failed = "shutdown failed, continuing to serve \
                      error=\"cannot write 4.0 KiB of dirty data of volume 'writes'";
        daemon.wait_for_log_times(failed, times);
        assert_eq!(back.read(0, 4096), Ok(vec![7; 4096]), "the daemon keeps serving");
        assert_eq!(daemon.client("writes").read(0, 4096), Ok(vec![7; 4096]), "a new client");
    }
    assert_eq!(through.flush(), Err(IoError::Io));
    let (code, text) = daemon.run(&["volume", "list", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\"failing\"") && text.contains("volume trust flushes"), "{text}");
    let (code, text) = daemon.run(&["volume", "remove", "flushes", "--force"]);
    assert!(code == Some(1) && text.contains("forebay volume trust flushes"), "{text}");
    let (code, text) = daemon.run(&["volume", "trust", "flushes"]);
    assert!(code == Some(1) && text.contains("a flush of the backing store"), "{text}");
}

#[test]
fn connected_clients_are_named_and_cut_off_only_by_force() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk", "other"].map(|name| format!("{name}=memory:1MiB"));
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    let mut client = daemon.client("disk");
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let this = format!("process {} ({})", std::process::id(), name.trim_end());
    let (remove, stop) = (["volume", "remove", "disk"], ["stop"]);
    for (command, subject, forced) in [
        (&remove[..], "volume 'disk' has clients", "forebay volume remove disk --force"),
        (&stop[..], "clients are connected", "forebay stop --force"),
    ] {
        let (code, text) = daemon.run(command);
        let expected = format!("{subject}: {this}");
        assert!(code == Some(1) && text.contains(&expected) && text.contains(forced), "{text}");
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]), "it is still served");
    }
    assert_eq!(daemon.run(&["volume", "remove", "other"]).0, Some(0), "it has no client");
    let (code, text) = daemon.run(&[&remove[..], &["--force"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(daemon.run(&["volume", "add", "disk=memory:1MiB"]).0, Some(0));
    let _client = daemon.client("disk");
    daemon.terminate();
    let log = directory.path().join("log");
    daemon.wait();
    let log = std::fs::read_to_string(log).unwrap();
    let logged = format!("disconnecting a client volume=disk client={this} connections=1");
    assert_eq!(log.matches(&logged).count(), 2, "{log}");
}

/// Longer than a client may pause within a payload.
const STALL: Duration = Duration::from_secs(35);

/// The time for which the daemon itself did not run does not count against its clients.
fn a_client_is_not_dropped_for_a_stall_of_the_daemon(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut client = connect(&daemon.socket);
    enter(&mut client, "disk");
    client.write_all(&request(command::WRITE, 0, 1, 0, 4096)).unwrap();
    client.write_all(&[1; 2048]).unwrap();
    // The answer to another client shows that the payload has begun.
    assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]));
    daemon.freeze();
    std::thread::sleep(STALL);
    daemon.thaw();
    assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]));
    std::thread::sleep(Duration::from_secs(1));
    client.write_all(&[1; 2048]).unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(daemon.client("disk").read(0, 4096), Ok(vec![1; 4096]));
    daemon.stop();
}

#[test]
#[ignore = "takes long"]
fn slow_a_client_is_not_dropped_for_a_stall_of_the_daemon_on_io_uring() {
    a_client_is_not_dropped_for_a_stall_of_the_daemon("io_uring");
}

#[test]
#[ignore = "takes long"]
fn slow_a_client_is_not_dropped_for_a_stall_of_the_daemon_on_epoll() {
    a_client_is_not_dropped_for_a_stall_of_the_daemon("epoll");
}
