//! `forebay takeover --hold`: the command lives as long as the server serves the volume. Two hosts
//! reach the disk as an export of a third server, and both remember in one file who owns it.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::crash::content;
use crate::etcd::Etcd;
use crate::hosts::Exports;
use crate::process::{Daemon, UNPROTECTED};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const THROUGH: &str = "mode=write-through";

fn disk() -> Exports {
    Exports::new(&[("disk", 16)])
}

/// The volume, on standby.
fn volume(hosts: &Exports, settings: &str) -> String {
    format!("disk={},standby=yes,{settings}", hosts.owned_export("disk"))
}

fn start(hosts: &Exports, host: &TempDir, settings: &str) -> Daemon {
    Daemon::start(host.path(), "auto", "64MiB", &[volume(hosts, settings)])
}

/// A block of the disk.
fn block(hosts: &Exports, number: u64) -> Vec<u8> {
    let mut client = hosts.server.client("disk");
    client.read(number * 4096, 4096).unwrap()
}

/// A command that is to serve the volume, with its output in a file.
struct Holder {
    child: Child,
    output: PathBuf,
}

impl Holder {
    fn spawn(mut command: Command, directory: &Path) -> Self {
        let output = directory.join("holder.log");
        let file = File::create(&output).unwrap();
        command.env("FOREBAY_STATE", directory.join("state")).stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        Self { child: command.spawn().unwrap(), output }
    }

    fn start(host: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["takeover", "disk", "--hold"]);
        Self::spawn(command, host)
    }

    /// Starts it, and waits until the volume is served.
    fn holding(daemon: &Daemon) -> Self {
        let mut holder = Self::start(daemon.socket.parent().unwrap());
        holder.wait_until_served();
        holder
    }

    fn wait_until_served(&mut self) {
        wait_until("the volume is served", PATIENCE, || {
            self.assert_runs();
            self.said().contains("volume 'disk' is served here now")
        });
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn assert_runs(&mut self) {
        let status = self.child.try_wait().unwrap();
        assert!(status.is_none(), "{status:?}: {}", self.said());
    }

    /// Waits until it exits. Returns the code and the output.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("the command exits", PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap().code(), self.said())
    }

    /// Waits until it exits with an error that says this.
    fn assert_fails(mut self, part: &str) {
        let (code, said) = self.end();
        assert!(code == Some(1) && said.contains(part), "{code:?}: {said}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn a_volume_is_held_until_a_signal_and_then_another_host_can_hold_it() {
    let hosts = disk();
    let [here, there] = [&hosts.here, &hosts.there].map(|host| start(&hosts, host, UNPROTECTED));
    for (version, signal) in [(1, Signal::TERM), (2, Signal::INT)] {
        let mut holder = Holder::holding(&here);
        here.client("disk").write(4096, &content(1, version)).unwrap();
        holder.signal(signal);
        let (code, said) = holder.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("volume 'disk' is on standby"), "{said}");
        assert_eq!(here.status()["missing"][0]["standby"], true);
        assert!(block(&hosts, 1) == content(1, version), "the disk was to be written first");
        let mut holder = Holder::holding(&there);
        assert!(there.client("disk").read(4096, 4096).unwrap() == content(1, version));
        holder.signal(signal);
        assert_eq!(holder.end().0, Some(0));
    }
    here.stop();
    there.stop();
}

#[test]
fn a_host_that_is_shut_out_holds_no_longer() {
    let hosts = disk();
    let [here, there] = [&hosts.here, &hosts.there].map(|host| start(&hosts, host, THROUGH));
    let mut first = Holder::holding(&here);
    here.client("disk").write(4096, &content(1, 1)).unwrap();
    first.assert_runs();
    let mut second = Holder::holding(&there);
    assert!(there.client("disk").read(4096, 4096).unwrap() == content(1, 1));
    first.assert_fails("volume 'disk' is not served here any more: another host has taken it over");
    second.assert_runs();
    // The place is taken again the same way.
    let mut first = Holder::holding(&here);
    second.assert_fails("another host has taken it over");
    first.signal(Signal::TERM);
    assert_eq!(first.end().0, Some(0));
    here.stop();
    there.stop();
}

#[test]
fn a_volume_that_is_put_on_standby_or_removed_is_held_no_longer() {
    let hosts = disk();
    let here = start(&hosts, &hosts.here, THROUGH);
    let holder = Holder::holding(&here);
    assert_eq!(here.run(&["standby", "disk"]).0, Some(0));
    holder.assert_fails("volume 'disk' is not served here any more: it is on standby");
    let holder = Holder::holding(&here);
    assert_eq!(here.run(&["volume", "remove", "disk"]).0, Some(0));
    holder.assert_fails("volume 'disk' is not served here any more: the server has no such volume");
    Holder::start(hosts.here.path()).assert_fails("no volume 'disk'");
    here.stop();
    Holder::start(hosts.here.path()).assert_fails("no forebay answers");
}

#[test]
fn a_server_that_dies_is_waited_for_only_a_while() {
    let hosts = disk();
    let kept = Daemon::start_kept(hosts.here.path(), "auto", "64MiB", &[volume(&hosts, THROUGH)]);
    let mut holder = Holder::holding(&kept);
    // A keeper starts another one, and an upgrade does too.
    let server = kept.server();
    kept.kill_server();
    wait_until("the next server serves", PATIENCE, || {
        kept.server() != server && kept.run(&["volume", "list"]).1.contains("disk")
    });
    let (code, text) = kept.run(&["upgrade"]);
    assert_eq!(code, Some(0), "{text}");
    std::thread::sleep(Duration::from_secs(2));
    holder.assert_runs();
    kept.freeze();
    kept.kill_server();
    let killed_at = Instant::now();
    holder.assert_fails("volume 'disk' is lost: no forebay answers");
    assert!(killed_at.elapsed() >= Duration::from_secs(9), "{:?}", killed_at.elapsed());
    kept.thaw();
}

#[test]
fn a_server_that_hangs_is_waited_for_only_a_while() {
    let hosts = disk();
    let here = start(&hosts, &hosts.here, THROUGH);
    let holder = Holder::holding(&here);
    let ending = Holder::holding(&here);
    here.freeze();
    ending.signal(Signal::TERM);
    // It hangs while it holds, is to give up, or is to take over.
    let starting = Holder::start(hosts.here.path());
    holder.assert_fails("has not answered for");
    ending.assert_fails("has not answered for");
    starting.assert_fails("has not answered for");
    let (code, text) = here.run(&["standby", "disk"]);
    assert!(code == Some(1) && text.contains("has not answered for"), "{text}");
    here.thaw();
    here.stop();
}

#[test]
fn a_service_manager_is_notified_once_the_volume_is_served() {
    let hosts = disk();
    let here = start(&hosts, &hosts.here, THROUGH);
    let path = hosts.here.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["takeover", "disk", "--hold"]).env("NOTIFY_SOCKET", &path);
    let holder = Holder::spawn(command, hosts.here.path());
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = [0; 64];
    let len = manager.recv(&mut text).unwrap();
    assert_eq!(&text[..len], b"READY=1");
    assert!(holder.said().contains("is served here now"), "{}", holder.said());
    drop(holder);
    here.stop();
}

/// `etcdctl lock` with a command that holds the volume.
fn lock(etcd: &Etcd, daemon: &Daemon, ttl: &str) -> Holder {
    let mut command = etcd.command();
    command.args(["lock", "--ttl", ttl, "disk", "--", env!("CARGO_BIN_EXE_forebay")]);
    command.args(["takeover", "disk", "--hold"]);
    Holder::spawn(command, daemon.socket.parent().unwrap())
}

#[test]
fn with_etcd_the_next_host_serves_the_volume_of_a_dead_one() {
    let Some(etcd) = Etcd::start() else { return };
    let hosts = disk();
    let [here, there] = [&hosts.here, &hosts.there].map(|host| start(&hosts, host, THROUGH));
    let mut first = lock(&etcd, &here, "4");
    first.wait_until_served();
    let mut second = lock(&etcd, &there, "4");
    here.client("disk").write(4096, &content(1, 1)).unwrap();
    assert_eq!(there.status()["missing"][0]["standby"], true);
    // The host dies: the server, and what holds the volume.
    here.kill();
    kill_process_group(Pid::from_child(&first.child), Signal::KILL).unwrap();
    let killed_at = Instant::now();
    first.end();
    second.wait_until_served();
    println!("served {:?} after the kill, with a TTL of 4 s", killed_at.elapsed());
    let mut client = there.client("disk");
    assert!(client.read(4096, 4096).unwrap() == content(1, 1));
    client.write(4096, &content(1, 2)).unwrap();
    drop(client);
    // After an orderly end, the lock is free at once. etcdctl ignores the signal.
    let here = start(&hosts, &hosts.here, THROUGH);
    let mut first = lock(&etcd, &here, "4");
    kill_process_group(Pid::from_child(&second.child), Signal::TERM).unwrap();
    assert_eq!(second.end().0, Some(0), "{}", second.said());
    first.wait_until_served();
    assert!(here.client("disk").read(4096, 4096).unwrap() == content(1, 2));
    // A host loses the lock without noticing, and nothing ends its command but the takeover.
    let mut second = lock(&etcd, &there, "4");
    first.signal(Signal::STOP);
    second.wait_until_served();
    wait_until("the first host's command has ended", PATIENCE, || {
        first.said().contains("another host has taken it over")
    });
    first.signal(Signal::CONT);
    first.assert_fails("another host has taken it over");
    second.assert_runs();
    drop(second);
    here.stop();
    there.stop();
}
