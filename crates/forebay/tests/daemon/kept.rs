//! The pool outlives the server: what was acknowledged is there after any death of it, with no
//! protection but the memory, and so is what was cached.

use crate::common::client::{Client, PATIENCE, config};
use crate::common::random::Random;
use crate::common::wait_until;
use crate::crash::{LINES, Line, MIB, SIZE_BYTES, check, content, write_until};
use crate::process::{Daemon, output_of};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const BARE: &str = "mode=write-back,protection=none,accept-loss=yes";

fn disk(directory: &Path, bytes: u64) -> PathBuf {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// A client as soon as somebody serves; the one before may be on its way out.
fn client_again(daemon: &Daemon) -> Client {
    let mut client = None;
    wait_until("the next server answers", PATIENCE, || {
        let Ok(stream) = UnixStream::connect(&daemon.socket) else { return false };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let entered = catch_unwind(AssertUnwindSafe(|| Client::enter(stream, &config("disk"))));
        client = entered.ok().and_then(Result::ok);
        client.is_some()
    });
    client.unwrap()
}

/// Kills the server, waits for the next one's first answer, and says how long that took.
fn outlive(daemon: &Daemon) -> (Client, Duration) {
    let killed = Instant::now();
    daemon.kill_server();
    let mut client = client_again(daemon);
    client.read(0, 4096).unwrap();
    (client, killed.elapsed())
}

/// What the daemon says of everything.
pub fn status(directory: &Path) -> Value {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["status", "--json", "--state"])
            .arg(directory.join("state")),
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A command to the daemon: whether it went well, and what it said.
pub fn ran(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(arguments)
            .arg("--state")
            .arg(directory.join("state")),
    );
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Killed again and again while a client writes. Returns the longest time without an answer.
fn killed_and_kept(io: &str, protection: &str, waits: bool, kills: usize) -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path(), SIZE_BYTES);
    let journal = directory.path().join("journal.img");
    std::fs::File::create(&journal).unwrap().set_len(40 * MIB).unwrap();
    let protection = protection.replace("JOURNAL", &journal.display().to_string());
    let volume = format!("disk={},{protection}", path.display());
    let daemon = Daemon::start_kept(directory.path(), io, "64MiB", &[volume]);
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(44);
    let mut longest = Duration::ZERO;
    let mut client = daemon.client("disk");
    for _ in 0..kills {
        let _ = std::fs::remove_file(&daemon.socket);
        let mut killed = Instant::now();
        // The keeper gives up on servers that die sooner.
        std::thread::sleep(Duration::from_millis(600));
        write_until(client, &mut lines, &mut random, waits, || {
            killed = Instant::now();
            daemon.kill_server();
        });
        client = client_again(&daemon);
        client.read(0, 4096).unwrap();
        longest = longest.max(killed.elapsed());
        check(&client.read(0, SIZE_BYTES).unwrap(), &mut lines);
    }
    drop(client);
    daemon.stop();
    check(&std::fs::read(&path).unwrap(), &mut lines);
    longest
}

#[test]
fn killed_with_a_keeper_keeps_every_acknowledged_write_on_io_uring() {
    killed_and_kept("io_uring", BARE, true, 6);
}

#[test]
fn killed_with_a_keeper_keeps_every_acknowledged_write_on_epoll() {
    killed_and_kept("epoll", BARE, true, 6);
}

#[test]
fn killed_with_a_keeper_and_a_journal_keeps_every_acknowledged_write() {
    let journal = "mode=write-back,protection=journal,journal=JOURNAL,durability=";
    killed_and_kept("io_uring", &format!("{journal}ack"), true, 5);
    // What the journal alone would not have kept, the pool keeps.
    killed_and_kept("io_uring", &format!("{journal}flush"), true, 5);
}

/// How often, `FOREBAY_KILLS` says.
#[test]
#[ignore = "takes ten minutes"]
fn slow_killed_a_thousand_times_with_a_keeper() {
    let kills = std::env::var("FOREBAY_KILLS").ok().and_then(|text| text.parse().ok());
    let longest = killed_and_kept("io_uring", BARE, true, kills.unwrap_or(1000));
    println!("longest outage: {} ms", longest.as_millis());
}

#[test]
fn what_was_cached_is_cached_by_the_next_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path(), SIZE_BYTES);
    let volume = format!("disk={},{BARE}", path.display());
    let daemon = Daemon::start_kept(directory.path(), "auto", "96MiB", &[volume]);
    let mut client = daemon.client("disk");
    for line in 0..LINES / 2 {
        client.write(line * 8192, &content(line, 7)).unwrap();
    }
    client.flush().unwrap();
    let before = client.read(0, SIZE_BYTES).unwrap();
    let pid = status(directory.path())["pid"].clone();
    let (mut client, _) = outlive(&daemon);
    assert_ne!(status(directory.path())["pid"], pid);
    assert_eq!(client.read(0, SIZE_BYTES).unwrap(), before);
    let cache = &status(directory.path())["volumes"][0]["counters"];
    assert!(cache["read_hits"].as_u64().unwrap() >= 2, "{cache}");
    assert_eq!((&cache["read_misses"], &cache["read_partial_hits"]), (&0.into(), &0.into()));
    drop(client);
    daemon.stop();
}

#[test]
fn an_upgrade_under_load_loses_nothing_and_a_program_that_fails_is_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path(), SIZE_BYTES);
    let program = directory.path().join("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    let volume = format!("disk={},{BARE}", path.display());
    let daemon = Daemon::start_kept_from(&program, directory.path(), "64MiB", &[volume]);
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(45);
    let mut client = daemon.client("disk");
    for round in 0..4 {
        // Put in place as a package manager does: the running program keeps its file.
        let staged = directory.path().join("staged");
        if round % 2 == 1 {
            let script = "#!/bin/sh\ncase \"$*\" in *--version*|*--check*) exit 0;; esac\nexit 3\n";
            std::fs::write(&staged, script).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&staged, mode).unwrap();
        } else {
            std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &staged).unwrap();
        }
        std::fs::rename(&staged, &program).unwrap();
        let before = daemon.server();
        write_until(client, &mut lines, &mut random, true, || {
            let (done, text) = ran(directory.path(), &["upgrade"]);
            assert!(done && text.contains("goes on"), "{text}");
        });
        assert_ne!(daemon.server(), before);
        client = client_again(&daemon);
        check(&client.read(0, SIZE_BYTES).unwrap(), &mut lines);
    }
    drop(client);
    std::fs::write(directory.path().join("staged"), "no program").unwrap();
    std::fs::rename(directory.path().join("staged"), &program).unwrap();
    let before = daemon.server();
    let (done, text) = ran(directory.path(), &["upgrade"]);
    assert!(!done && text.contains("does not start"), "{text}");
    assert_eq!(daemon.server(), before, "it serves on");
    daemon.stop();
    check(&std::fs::read(&path).unwrap(), &mut lines);
}

#[test]
fn an_upgrade_is_refused_as_long_as_the_configuration_can_not_be_served() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = disk(directory.path(), SIZE_BYTES);
    let good = format!(
        "[[volume]]\nname = \"disk\"\nbacking = \"{}\"\nmode = \"write-back\"\n\
         protection = \"none\"\naccept-loss = true\n",
        path.display()
    );
    std::fs::write(at("forebay.toml"), &good).unwrap();
    let log = std::fs::File::create(at("log")).unwrap();
    let daemon = Daemon::start_kept_with(directory.path(), log, &at("forebay.toml"));
    let mut client = daemon.client("disk");
    client.write(4096, &content(1, 1)).unwrap();
    let before = daemon.server();
    for (bad, said) in [
        (good.replace("backing", "bakcing"), "forebay.toml:"),
        (good.replace("write-back", "write-bakc"), "write-bakc"),
        (good.replace("disk.img", "dsik.img"), "dsik.img"),
        (format!("tls = \"forced\"\n{good}"), "no certificate"),
        (
            format!("tls = \"forced\"\ntls-cert = \"/none.pem\"\ntls-key = \"/none.pem\"\n{good}"),
            "/none.pem can't be read",
        ),
    ] {
        std::fs::write(at("forebay.toml"), &bad).unwrap();
        let (done, text) = ran(directory.path(), &["upgrade"]);
        assert!(!done && text.contains("refuses the configuration"), "{bad}: {text}");
        assert!(text.contains(said) && text.contains("goes on as it was"), "{bad}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(daemon.server(), before, "it serves on");
    assert_eq!(client.read(4096, 4096).unwrap(), content(1, 1), "also the client of before");
    drop(client);
    std::fs::write(at("forebay.toml"), &good).unwrap();
    let (done, text) = ran(directory.path(), &["upgrade"]);
    assert!(done, "{text}");
    assert_eq!(client_again(&daemon).read(4096, 4096).unwrap(), content(1, 1));
    assert_ne!(daemon.server(), before);
    daemon.stop();
}

#[test]
fn a_server_whose_keeper_is_gone_stops_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path(), SIZE_BYTES);
    let volume = format!("disk={},{BARE}", path.display());
    let daemon = Daemon::start_kept(directory.path(), "auto", "64MiB", &[volume]);
    daemon.client("disk").write(4096, &content(1, 1)).unwrap();
    let server = daemon.server();
    daemon.kill_keeper();
    wait_until("the server is gone", PATIENCE, || {
        rustix::process::test_kill_process(server).is_err()
    });
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 1));
}

#[test]
fn dirty_lines_of_a_volume_that_is_not_served_are_kept_until_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = disk(directory.path(), SIZE_BYTES);
    std::fs::copy(&path, at("other.img")).unwrap();
    let section = |backing: &str| {
        format!(
            "[[volume]]\nname = \"disk\"\nbacking = \"{}\"\nmode = \"write-back\"\n\
             protection = \"none\"\naccept-loss = true\n",
            at(backing).display()
        )
    };
    std::fs::write(at("forebay.toml"), section("disk.img")).unwrap();
    let log = std::fs::File::create(at("log")).unwrap();
    let said = |text: &str| std::fs::read_to_string(at("log")).unwrap().contains(text);
    let daemon = Daemon::start_kept_with(directory.path(), log, &at("forebay.toml"));
    daemon.client("disk").write(8192, &content(2, 1)).unwrap();
    // The next server is not told of the volume.
    std::fs::write(at("forebay.toml"), "").unwrap();
    let before = daemon.server();
    daemon.kill_server();
    wait_until("the next one says so", PATIENCE, || {
        said("the pool holds 4096 bytes of volume disk=")
    });
    assert_ne!(daemon.server(), before);
    wait_until("it answers", PATIENCE, || ran(directory.path(), &["status"]).0);
    let (done, text) = ran(directory.path(), &["stop"]);
    assert!(!done && text.contains("4096 bytes of volume 'disk'"), "{text}");
    // Another disk does not get them.
    let spec = |backing: &str| format!("disk={},{BARE}", at(backing).display());
    let (done, text) = ran(directory.path(), &["volume", "add", &spec("other.img")]);
    assert!(!done && text.contains("the pool holds 4096 bytes"), "{text}");
    let (done, text) = ran(directory.path(), &["volume", "add", &spec("disk.img")]);
    assert!(done, "{text}");
    assert_eq!(client_again(&daemon).read(8192, 4096).unwrap(), content(2, 1));
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[8192..12288], content(2, 1));
    assert!(std::fs::read(at("other.img")).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn a_server_that_can_not_start_is_not_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--keeper", "yes", "--memory", "64MiB", "--volume"])
            .arg(format!("disk={}", directory.path().join("none").display()))
            .arg("--state")
            .arg(directory.path().join("state")),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(begun.elapsed() < PATIENCE);
}

/// A service manager that stores the pool of the servers it starts.
struct Manager {
    directory: tempfile::TempDir,
    socket: std::os::unix::net::UnixDatagram,
    volume: String,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = disk(directory.path(), SIZE_BYTES);
        let socket = std::os::unix::net::UnixDatagram::bind(directory.path().join("notify"));
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { volume: format!("disk={},{BARE}", path.display()), directory, socket }
    }

    fn start(&self, stored: Option<std::os::fd::OwnedFd>) -> Daemon {
        let notify = self.directory.path().join("notify");
        let store = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("FDSTORE", "1")];
        Daemon::start_under(self.directory.path(), &self.volume, &store, stored)
    }

    /// What the first server has given to be stored.
    fn stored(&self) -> Option<std::os::fd::OwnedFd> {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 256];
        let mut bytes = [std::io::IoSliceMut::new(&mut text)];
        let flags = RecvFlags::empty();
        let received = recvmsg(&self.socket, &mut bytes, &mut control, flags).unwrap();
        let mut stored = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                stored = descriptors.next();
            }
        }
        assert_eq!(&text[..received.bytes], b"FDSTORE=1\nFDNAME=forebay-pool");
        let mut ready = [0; 64];
        let len = self.socket.recv(&mut ready).unwrap();
        assert_eq!(&ready[..len], b"READY=1");
        stored
    }
}

/// As systemd does it: the pool comes over a socket, and is there when the next one starts.
#[test]
fn the_service_manager_keeps_the_pool() {
    let manager = Manager::new();
    let daemon = manager.start(None);
    let stored = manager.stored();
    daemon.client("disk").write(4096, &content(1, 3)).unwrap();
    daemon.kill();
    let daemon = manager.start(stored);
    assert_eq!(client_again(&daemon).read(4096, 4096).unwrap(), content(1, 3));
    daemon.stop();
    let path = manager.directory.path().join("disk.img");
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 3));
}

#[test]
fn a_disk_that_was_changed_behind_the_pool_is_not_written() {
    let manager = Manager::new();
    let path = manager.directory.path().join("disk.img");
    let daemon = manager.start(None);
    let stored = manager.stored().unwrap();
    let mut client = daemon.client("disk");
    client.write(4096, &content(1, 3)).unwrap();
    client.flush().unwrap();
    wait_until("it is sealed", PATIENCE, || {
        status(manager.directory.path())["patrol"]["unsealed_bytes"] == 0
    });
    client.write(8192, &content(2, 3)).unwrap();
    drop(client);
    daemon.kill();
    let before = std::fs::read(&path).unwrap();
    let mut changed = before.clone();
    changed[4096] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let again = || stored.try_clone().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| manager.start(Some(again())))).is_err());
    assert!(std::fs::read(&path).unwrap() == changed);
    // As it was, it gets what the pool has.
    std::fs::write(&path, &before).unwrap();
    let daemon = manager.start(Some(again()));
    assert_eq!(client_again(&daemon).read(8192, 4096).unwrap(), content(2, 3));
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 3));
}
