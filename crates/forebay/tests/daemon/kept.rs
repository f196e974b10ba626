//! Servers with a keeper or a systemd descriptor store: acknowledged writes and cached data survive
//! the death of the server, without any other protection.

use crate::common::client::{Client, PATIENCE, config};
use crate::common::random::Random;
use crate::common::wait_until;
use crate::crash::{LINES, Line, SIZE_BYTES, check, content, write_until};
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, output_of, run_forebay, status};
use std::fmt::Display;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn disk(directory: &Path) -> PathBuf {
    let path = directory.join("disk.img");
    make_file(&path, SIZE_BYTES);
    path
}

/// An unprotected volume in a configuration file.
fn section(name: &str, backing: impl Display) -> String {
    format!(
        "[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\nmode = \"write-back\"\n\
         protection = \"none\"\naccept-loss = true\n"
    )
}

/// A daemon with a keeper, whose pool has a line that the disk lacks, and the disk's path.
fn kept_with_dirty_line(directory: &Path) -> (PathBuf, Daemon) {
    let path = disk(directory);
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept(directory, "auto", "64MiB", &[volume]);
    daemon.client("disk").write(4096, &content(1, 1)).unwrap();
    (path, daemon)
}

fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Connects to the next server. Retries, as the previous one may still be exiting.
pub fn reconnect(daemon: &Daemon) -> Client {
    let mut client = None;
    wait_until("the next server accepts clients", PATIENCE, || {
        let Ok(stream) = UnixStream::connect(&daemon.socket) else { return false };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let entered = catch_unwind(AssertUnwindSafe(|| Client::enter(stream, &config("disk"))));
        client = entered.ok().and_then(Result::ok);
        client.is_some()
    });
    client.unwrap()
}

/// Kills the server repeatedly while a client writes. Returns the longest outage.
fn kill_and_adopt(io: &str, protection: &str, waits: bool, kills: usize) -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let journal = directory.path().join("journal.img");
    make_file(&journal, 40 * MIB);
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
        // The keeper counts shorter runs as early exits and would give up.
        std::thread::sleep(Duration::from_millis(600));
        write_until(client, &mut lines, &mut random, waits, || {
            killed = Instant::now();
            daemon.kill_server();
        });
        client = reconnect(&daemon);
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
    kill_and_adopt("io_uring", UNPROTECTED, true, 6);
}

#[test]
fn killed_with_a_keeper_keeps_every_acknowledged_write_on_epoll() {
    kill_and_adopt("epoll", UNPROTECTED, true, 6);
}

#[test]
fn killed_with_a_keeper_and_a_journal_keeps_every_acknowledged_write() {
    let journal = "mode=write-back,protection=journal,journal=JOURNAL,durability=";
    kill_and_adopt("io_uring", &format!("{journal}ack"), true, 5);
    // The pool keeps acknowledged writes that the journal has not made durable.
    kill_and_adopt("io_uring", &format!("{journal}flush"), true, 5);
}

/// `FOREBAY_KILLS` sets the number of kills.
#[test]
#[ignore = "takes ten minutes"]
fn slow_killed_a_thousand_times_with_a_keeper() {
    let kills = std::env::var("FOREBAY_KILLS").ok().and_then(|text| text.parse().ok());
    let longest = kill_and_adopt("io_uring", UNPROTECTED, true, kills.unwrap_or(1000));
    println!("longest outage: {} ms", longest.as_millis());
}

#[test]
fn the_next_server_serves_cached_reads_from_the_adopted_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept(directory.path(), "auto", "96MiB", &[volume]);
    let mut client = daemon.client("disk");
    for line in 0..LINES / 2 {
        client.write(line * 8192, &content(line, 7)).unwrap();
    }
    client.flush().unwrap();
    let before = client.read(0, SIZE_BYTES).unwrap();
    let pid = status(directory.path())["pid"].clone();
    daemon.kill_server();
    let mut client = reconnect(&daemon);
    client.read(0, 4096).unwrap();
    assert_ne!(status(directory.path())["pid"], pid);
    assert_eq!(client.read(0, SIZE_BYTES).unwrap(), before);
    let cache = &status(directory.path())["volumes"][0]["counters"];
    assert!(cache["read_hits"].as_u64().unwrap() >= 2, "{cache}");
    assert_eq!((&cache["read_misses"], &cache["read_partial_hits"]), (&0.into(), &0.into()));
    drop(client);
    daemon.stop();
}

#[test]
fn an_upgrade_under_load_loses_no_write_and_a_failing_program_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let program = directory.path().join("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept_from(&program, directory.path(), "64MiB", &[volume]);
    let mut lines = vec![Line::default(); LINES as usize];
    let mut random = Random::new(45);
    let mut client = daemon.client("disk");
    for round in 0..4 {
        // Replaced by a rename, as a package manager does.
        let staged = directory.path().join("staged");
        if round % 2 == 1 {
            let script = "#!/bin/sh\ncase \"$*\" in *--version*|*--check*) exit 0;; esac\nexit 3\n";
            write_script(&staged, script);
        } else {
            std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &staged).unwrap();
        }
        std::fs::rename(&staged, &program).unwrap();
        let before = daemon.server();
        let (expected, said) = match round % 2 {
            0 => (Some(0), "has taken over"),
            _ => (Some(1), "the new program exited before it served, and the former forebay"),
        };
        write_until(client, &mut lines, &mut random, true, || {
            let (code, text) = run_forebay(directory.path(), &["upgrade"]);
            assert!(code == expected && text.contains(said), "{text}");
        });
        assert_eq!(daemon.status()["rolled_back"], round % 2 == 1);
        assert_ne!(daemon.server(), before);
        client = reconnect(&daemon);
        check(&client.read(0, SIZE_BYTES).unwrap(), &mut lines);
    }
    drop(client);
    std::fs::write(directory.path().join("staged"), "no program").unwrap();
    std::fs::rename(directory.path().join("staged"), &program).unwrap();
    let before = daemon.server();
    let (code, text) = run_forebay(directory.path(), &["upgrade"]);
    assert!(code == Some(1) && text.contains("does not start"), "{text}");
    assert_eq!(daemon.server(), before, "the server keeps running");
    daemon.stop();
    check(&std::fs::read(&path).unwrap(), &mut lines);
}

#[test]
fn an_upgrade_is_refused_while_the_configuration_is_invalid() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = disk(directory.path());
    let good = section("disk", path.display());
    std::fs::write(at("forebay.toml"), &good).unwrap();
    let daemon = Daemon::start_kept_with(directory.path(), &at("forebay.toml"));
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
            "cannot read certificate /none.pem",
        ),
    ] {
        std::fs::write(at("forebay.toml"), &bad).unwrap();
        let (code, text) = run_forebay(directory.path(), &["upgrade"]);
        assert!(code == Some(1) && text.contains("refuses the configuration"), "{bad}: {text}");
        assert!(text.contains(said), "{bad}: {text}");
        assert!(text.contains("running server is unchanged"), "{bad}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(daemon.server(), before, "the server keeps running");
    assert_eq!(client.read(4096, 4096).unwrap(), content(1, 1), "and keeps its clients");
    drop(client);
    std::fs::write(at("forebay.toml"), &good).unwrap();
    let (code, text) = run_forebay(directory.path(), &["upgrade"]);
    assert!(code == Some(0), "{text}");
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), content(1, 1));
    assert_ne!(daemon.server(), before);
    daemon.stop();
}

#[test]
fn the_check_before_an_upgrade_counts_the_memory_of_the_running_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let total = forebay_config::MemInfo::read().unwrap().total.bytes;
    let socket = format!("unix:{}", directory.path().join("nbd.sock").display());
    let check = |of_server: u64| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["serve", "--check", "--memory", &total.to_string(), "--nbd", &socket]);
        let output =
            output_of(command.arg(&path).env("FOREBAY_SERVER_MEMORY", of_server.to_string()));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = check(0);
    assert!(code == Some(1) && error.contains("exceeds the"), "{error}");
    assert_eq!(check(total), (Some(0), String::new()));

    let program = directory.path().join("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept_from(&program, directory.path(), "64MiB", &[volume]);
    daemon.client("disk").read(0, SIZE_BYTES).unwrap();
    let (staged, seen) = (directory.path().join("staged"), directory.path().join("seen"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version*) exit 0;; esac\n\
         echo \"$FOREBAY_SERVER_MEMORY\" > {}\nexit 3\n",
        seen.display()
    );
    write_script(&staged, &script);
    std::fs::rename(&staged, &program).unwrap();
    assert_eq!(run_forebay(directory.path(), &["upgrade"]).0, Some(1));
    let seen: u64 = std::fs::read_to_string(&seen).unwrap().trim().parse().unwrap();
    assert!((MIB..256 * MIB).contains(&seen), "{seen}");
    daemon.stop();
}

#[test]
fn a_server_flushes_and_exits_when_its_keeper_dies() {
    let directory = tempfile::tempdir().unwrap();
    let (path, daemon) = kept_with_dirty_line(directory.path());
    let server = daemon.server();
    daemon.kill_keeper();
    wait_until("the server is gone", PATIENCE, || {
        rustix::process::test_kill_process(server).is_err()
    });
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 1));
}

#[test]
fn dirty_lines_of_an_unserved_volume_are_kept_until_it_is_added() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = disk(directory.path());
    std::fs::copy(&path, at("other.img")).unwrap();
    std::fs::write(at("forebay.toml"), section("disk", path.display())).unwrap();
    let daemon = Daemon::start_kept_with(directory.path(), &at("forebay.toml"));
    daemon.client("disk").write(8192, &content(2, 1)).unwrap();
    // The next server's configuration lacks the volume.
    std::fs::write(at("forebay.toml"), "").unwrap();
    let before = daemon.server();
    daemon.kill_server();
    daemon.wait_for_log("a volume that is not served, keeping it bytes=4096 volume=disk=");
    assert_ne!(daemon.server(), before);
    wait_until("the control socket answers", PATIENCE, || {
        run_forebay(directory.path(), &["status"]).0 == Some(0)
    });
    let (code, text) = run_forebay(directory.path(), &["stop"]);
    assert!(code == Some(1) && text.contains("4.0 KiB of dirty data of volume 'disk'"), "{text}");
    // The lines must not be written to another disk.
    let spec = |backing: &str| format!("disk={},{UNPROTECTED}", at(backing).display());
    let (code, text) = run_forebay(directory.path(), &["volume", "add", &spec("other.img")]);
    assert!(code == Some(1) && text.contains("the pool holds 4.0 KiB of dirty data"), "{text}");
    let (code, text) = run_forebay(directory.path(), &["volume", "add", &spec("disk.img")]);
    assert!(code == Some(0), "{text}");
    assert_eq!(reconnect(&daemon).read(8192, 4096).unwrap(), content(2, 1));
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[8192..12288], content(2, 1));
    assert!(std::fs::read(at("other.img")).unwrap().iter().all(|&byte| byte == 0));
}

/// Sets how many descriptors a process may have open. Those that are open stay so.
fn limit_descriptors(pid: u32, current: u64) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    // The keeper has the limits of this process.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(current), maximum };
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
}

#[test]
fn a_keeper_that_cannot_start_the_next_server_keeps_the_pool_and_tries_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, daemon) = kept_with_dirty_line(directory.path());
    limit_descriptors(daemon.id(), 3);
    daemon.kill_server();
    daemon.wait_for_log("cannot start the server");
    limit_descriptors(daemon.id(), 1024);
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), content(1, 1));
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 1));
}

/// Kills the server, and waits for the next one.
fn kill_and_wait(daemon: &Daemon) {
    let before = daemon.status()["pid"].clone();
    daemon.kill_server();
    wait_until("the next server answers", PATIENCE, || {
        let (code, text) = daemon.run(&["status", "--json"]);
        let status = serde_json::from_str::<serde_json::Value>(&text);
        code == Some(0) && status.is_ok_and(|status| status["pid"] != before)
    });
}

/// A keeper's server that serves no volume, and whose pool has a dirty line of each of these. Their
/// disks refuse writes, so that the lines stay dirty.
fn kept_with_unserved(directory: &Path, names: &[&str]) -> Daemon {
    let file = directory.join("forebay.toml");
    let make = |name: &&str| {
        make_file(directory.join(name), SIZE_BYTES);
        section(name, format_args!("error(kind=write):{}", directory.join(name).display()))
    };
    std::fs::write(&file, names.iter().map(make).collect::<String>()).unwrap();
    let daemon = Daemon::start_kept_with(directory, &file);
    for name in names {
        daemon.client(name).write(8192, &content(2, 1)).unwrap();
    }
    std::fs::write(&file, "").unwrap();
    kill_and_wait(&daemon);
    daemon
}

#[test]
fn a_stop_that_a_server_refused_is_not_repeated_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = kept_with_unserved(directory.path(), &["disk"]);
    daemon.terminate();
    daemon.wait_for_log("continuing to serve");
    kill_and_wait(&daemon);
    let (code, text) = daemon.run(&["stop"]);
    assert!(code == Some(1) && text.contains("4.0 KiB of dirty data of volume 'disk'"), "{text}");
}

#[test]
fn dirty_lines_of_unserved_volumes_are_discarded_neither_by_signals_nor_unnamed() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["one", "two"];
    let daemon = kept_with_unserved(directory.path(), &names);
    // A service manager, and a keeper beside it, may repeat the signal.
    for times in 1..=2 {
        daemon.terminate();
        daemon.wait_for_log_times("continuing to serve", times);
    }
    let mut refused = names.map(|_| {
        let (code, text) = daemon.run(&["stop"]);
        assert!(
            code == Some(1) && text.contains("repeat `forebay stop` to discard the dirty data"),
            "{text}"
        );
        names.into_iter().find(|name| text.contains(&format!("volume '{name}'"))).unwrap()
    });
    refused.sort_unstable();
    assert_eq!(refused, names, "each volume is named before its lines are discarded");
    assert_eq!(daemon.run(&["stop"]).0, Some(0));
    daemon.wait();
}

#[test]
fn what_the_operator_accepts_for_one_start_does_not_hold_for_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let accept = ["--accept-changed-disk", "disk", "--accept-lost-journal=disk"];
    let daemon = Daemon::start_kept_given(directory.path(), &[volume], &accept);
    let options = || {
        let server = daemon.server().as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{server}/cmdline")).unwrap()
    };
    assert!(options().contains("--accept-changed-disk"), "{}", options());
    // Once a server has served, the keeper starts the next one without these options.
    drop(reconnect(&daemon));
    daemon.kill_server();
    drop(reconnect(&daemon));
    assert!(options().contains("--volume") && !options().contains("--accept"), "{}", options());
    daemon.stop();
}

#[test]
#[ignore = "takes half a minute"]
fn slow_a_stop_requested_while_no_server_runs_does_not_discard_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (path, daemon) = kept_with_dirty_line(directory.path());
    limit_descriptors(daemon.id(), 3);
    daemon.kill_server();
    daemon.wait_for_log("cannot start the server");
    daemon.terminate();
    daemon.wait_for_log("SIGTERM to discard");
    limit_descriptors(daemon.id(), 1024);
    daemon.signal(rustix::process::Signal::HUP);
    // The next server carries the stop out.
    daemon.wait();
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 1));
}

#[test]
fn an_empty_variable_of_a_keeper_counts_as_unset() {
    let directory = tempfile::tempdir().unwrap();
    let path = disk(directory.path());
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let variables = [("FOREBAY_KEEPER", "")];
    let daemon = Daemon::start_kept_among(directory.path(), &[volume], &variables);
    daemon.client("disk").write(4096, &content(1, 1)).unwrap();
    daemon.kill_server();
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), content(1, 1));
}

#[test]
fn the_keeper_does_not_restart_a_server_that_cannot_start() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--keeper", "yes", "--memory", "64MiB", "--volume", "disk=none.img"];
    assert_eq!(run_forebay(directory.path(), &arguments).0, Some(1));
}

/// A service manager with a descriptor store.
struct ServiceManager {
    directory: tempfile::TempDir,
    socket: std::os::unix::net::UnixDatagram,
    volume: String,
}

impl ServiceManager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = disk(directory.path());
        let socket = std::os::unix::net::UnixDatagram::bind(directory.path().join("notify"));
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { volume: format!("disk={},{UNPROTECTED}", path.display()), directory, socket }
    }

    fn start(&self, stored: Option<std::os::fd::OwnedFd>) -> Daemon {
        let notify = self.directory.path().join("notify");
        let store = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("FDSTORE", "1")];
        Daemon::start_under(self.directory.path(), &self.volume, &store, stored)
    }

    /// Receives the pool's descriptor and the ready notification of the first server.
    fn receive_pool(&self) -> Option<std::os::fd::OwnedFd> {
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
        assert_eq!(self.receive(), "READY=1");
        stored
    }

    /// Receives a message without a descriptor.
    fn receive(&self) -> String {
        let mut text = [0; 256];
        let len = self.socket.recv(&mut text).unwrap();
        String::from_utf8(text[..len].to_vec()).unwrap()
    }
}

/// systemd ignores notifications of other processes than the main one, which is the keeper.
#[test]
fn a_keeper_notifies_the_service_manager_when_its_server_serves() {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
    let manager = ServiceManager::new();
    sockopt::set_socket_passcred(&manager.socket, true).unwrap();
    let notify = manager.directory.path().join("notify");
    let variables = [("NOTIFY_SOCKET", notify.to_str().unwrap())];
    let volumes = std::slice::from_ref(&manager.volume);
    let daemon = Daemon::start_kept_among(manager.directory.path(), volumes, &variables);
    let receive = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 256];
        let mut bytes = [std::io::IoSliceMut::new(&mut text)];
        let received =
            recvmsg(&manager.socket, &mut bytes, &mut control, RecvFlags::empty()).unwrap();
        let sender = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        });
        let sender = sender.unwrap().as_raw_nonzero().get().cast_unsigned();
        (String::from_utf8(text[..received.bytes].to_vec()).unwrap(), sender)
    };
    let ready = ("READY=1".to_owned(), daemon.id());
    assert_eq!(receive(), ready);
    daemon.kill_server();
    drop(reconnect(&daemon));
    assert_eq!(receive(), ready, "the next server");
    daemon.stop();
}

/// Without that, systemd kills it, and starts it again.
#[test]
fn the_service_manager_is_told_that_the_server_lives_until_it_hangs() {
    use rustix::process::{Signal, kill_process};
    let manager = ServiceManager::new();
    let notify = manager.directory.path().join("notify");
    let variables = [
        ("NOTIFY_SOCKET", notify.to_str().unwrap()),
        ("FDSTORE", "1"),
        ("WATCHDOG_USEC", "300000"),
    ];
    let here = manager.directory.path();
    let daemon = Daemon::start_under(here, &manager.volume, &variables, None);
    manager.receive_pool();
    for _ in 0..5 {
        assert_eq!(manager.receive(), "WATCHDOG=1");
    }
    kill_process(daemon.server(), Signal::STOP).unwrap();
    manager.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    // What was sent before it stopped.
    while manager.socket.recv(&mut [0; 64]).is_ok() {}
    kill_process(daemon.server(), Signal::CONT).unwrap();
    manager.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(manager.receive(), "WATCHDOG=1");
    daemon.stop();
}

/// systemd would kill the keeper as well, and with it the pool.
#[test]
fn a_keeper_kills_a_server_that_hangs_and_the_next_one_has_the_pool() {
    let manager = ServiceManager::new();
    let notify = manager.directory.path().join("notify");
    let variables = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("WATCHDOG_USEC", "9000000")];
    let volumes = std::slice::from_ref(&manager.volume);
    let daemon = Daemon::start_kept_among(manager.directory.path(), volumes, &variables);
    daemon.client("disk").write(4096, &content(1, 3)).unwrap();
    let hanging = daemon.server();
    rustix::process::kill_process(hanging, rustix::process::Signal::STOP).unwrap();
    wait_until("another server", PATIENCE, || daemon.server() != hanging);
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), content(1, 3));
    daemon.wait_for_log("the server hangs, and is killed");
    daemon.stop();
    // The keeper has told that it lives, also meanwhile.
    let mut told = 0;
    manager.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut text = [0; 64];
    while let Ok(len) = manager.socket.recv(&mut text) {
        told += usize::from(&text[..len] == b"WATCHDOG=1");
    }
    assert!(told >= 4, "{told}");
}

#[test]
fn acknowledged_writes_survive_in_the_service_managers_descriptor_store() {
    let manager = ServiceManager::new();
    let daemon = manager.start(None);
    let stored = manager.receive_pool();
    daemon.client("disk").write(4096, &content(1, 3)).unwrap();
    daemon.kill();
    let daemon = manager.start(stored);
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), content(1, 3));
    assert_eq!(manager.receive(), "READY=1");
    daemon.stop();
    let path = manager.directory.path().join("disk.img");
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 3));
    assert_eq!(manager.receive(), "FDSTOREREMOVE=1\nFDNAME=forebay-pool");
}

#[test]
fn a_disk_modified_while_no_server_ran_is_refused_and_not_written() {
    let manager = ServiceManager::new();
    let path = manager.directory.path().join("disk.img");
    let daemon = manager.start(None);
    let stored = manager.receive_pool().unwrap();
    let mut client = daemon.client("disk");
    client.write(4096, &content(1, 3)).unwrap();
    client.flush().unwrap();
    wait_until("all lines are sealed", PATIENCE, || {
        status(manager.directory.path())["patrol"]["unsealed_bytes"] == 0
    });
    client.write(8192, &content(2, 3)).unwrap();
    drop(client);
    daemon.kill();
    let before = std::fs::read(&path).unwrap();
    let mut changed = before.clone();
    changed[4096] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let pool = || Some(stored.try_clone().unwrap());
    assert!(catch_unwind(AssertUnwindSafe(|| manager.start(pool()))).is_err());
    assert!(std::fs::read(&path).unwrap() == changed);
    // With its old content back, the disk is accepted and the pool's dirty data written to it.
    std::fs::write(&path, &before).unwrap();
    let daemon = manager.start(pool());
    assert_eq!(reconnect(&daemon).read(8192, 4096).unwrap(), content(2, 3));
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], content(1, 3));
}
