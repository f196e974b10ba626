//! Clients over an upgrade: those of the kind that can go on see a pause, and no error.

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::random::Random;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, run_forebay};
use forebay_nbd::NbdCommand;
use forebay_nbd::client::ExportConfig;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZE_BYTES: u64 = 32 * MIB;
/// The most requests of a client in flight.
const DEPTH: usize = 24;

fn disk(directory: &Path) -> PathBuf {
    let path = directory.join("disk.img");
    make_file(&path, SIZE_BYTES);
    path
}

fn volume(directory: &Path, layer: &str) -> String {
    format!("disk={layer}{},{UNPROTECTED}", disk(directory).display())
}

fn upgrade(daemon: &Daemon) {
    let before = daemon.server();
    let (code, text) = daemon.run(&["upgrade"]);
    assert!(code == Some(0) && text.contains("has taken over"), "{text}");
    assert_ne!(daemon.server(), before);
}

/// A TCP connection to the daemon.
fn connect_tcp(daemon: &Daemon) -> TcpStream {
    let listeners = daemon.status()["listeners"].clone();
    let address =
        listeners.as_array().unwrap().iter().find_map(|it| it.as_str()?.strip_prefix("tcp:"));
    let stream = TcpStream::connect(address.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sets a flag when it is dropped.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A write or read in flight.
struct InFlight {
    cookie: u64,
    at: u64,
    len: u64,
    is_read: bool,
}

/// Reads and writes in a part of the disk until `ends`, with many requests in flight, and compares
/// what it reads. Returns the part as it has to be now.
fn load<S: Read + Write>(
    client: &mut Client<S>,
    (base, bytes): (u64, u64),
    seed: u64,
    ends: &AtomicBool,
    longest_us: &AtomicU64,
) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut model = vec![0u8; bytes as usize];
    let mut in_flight: Vec<InFlight> = Vec::new();
    let mut answered = Instant::now();
    let mut wait = |client: &mut Client<S>, model: &[u8], done: InFlight| {
        let answer = client.wait(done.cookie);
        longest_us.fetch_max(answered.elapsed().as_micros() as u64, Ordering::Relaxed);
        answered = Instant::now();
        answer.result.unwrap();
        let expected = &model[done.at as usize..(done.at + done.len) as usize];
        assert!(!done.is_read || answer.data == expected, "wrong data at {}", base + done.at);
    };
    while !ends.load(Ordering::Relaxed) {
        let len = [512, 1024, 4096, 4096, 40 << 10, 256 << 10][random.below(6) as usize];
        let at = random.below((bytes - len) / 512) * 512;
        let is_read = random.below(3) == 0;
        while let Some(other) =
            in_flight.iter().position(|it| it.at < at + len && at < it.at + it.len)
        {
            wait(client, &model, in_flight.swap_remove(other));
        }
        if in_flight.len() >= DEPTH {
            wait(client, &model, in_flight.remove(0));
        }
        let cookie = if is_read {
            client.send(NbdCommand::Read, 0, base + at, len, &[])
        } else {
            let data = random.bytes(len as usize);
            let flags = u16::from(random.below(50) == 0);
            model[at as usize..(at + len) as usize].copy_from_slice(&data);
            client.send(NbdCommand::Write, flags, base + at, len, &data)
        };
        in_flight.push(InFlight { cookie, at, len, is_read });
    }
    for done in in_flight {
        wait(client, &model, done);
    }
    client.flush().unwrap();
    model
}

/// Clients over both kinds of sockets and with each kind of replies, under load over upgrades.
fn no_client_sees_an_error(io: &str, layer: &str, upgrades: usize) {
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), layer);
    let daemon = Daemon::start_kept_on_tcp(directory.path(), io, &[volume]);
    let simple = ExportConfig { simple: true, ..config("disk") };
    let simple = ExportConfig { base_allocation: false, ..simple };
    let configs = [config("disk"), simple, config("disk"), config("disk")];
    let part = SIZE_BYTES / configs.len() as u64;
    let (ends, longest_us) = (AtomicBool::new(false), AtomicU64::new(0));
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        // If the test fails, the clients end, too.
        let _end = EndOnDrop(&ends);
        let clients: Vec<_> = configs
            .into_iter()
            .enumerate()
            .map(|(number, config)| {
                let (daemon, ends, longest_us) = (&daemon, &ends, &longest_us);
                let place = (number as u64 * part, part);
                scope.spawn(move || {
                    let seed = number as u64;
                    if number % 2 == 0 {
                        let mut client = Client::enter(connect(&daemon.socket), &config).unwrap();
                        load(&mut client, place, seed, ends, longest_us)
                    } else {
                        let mut client = Client::enter(connect_tcp(daemon), &config).unwrap();
                        load(&mut client, place, seed, ends, longest_us)
                    }
                })
            })
            .collect();
        wait_until("the clients are connected", PATIENCE, || daemon.connections() == 4);
        for round in 0..upgrades {
            // Long enough for requests of all kinds to be in flight.
            std::thread::sleep(Duration::from_millis(150));
            upgrade(&daemon);
            // The control port answers a moment before the workers have their clients.
            let what = format!("all clients are taken over in round {round}");
            wait_until(&what, PATIENCE, || daemon.connections() == 4);
        }
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    println!("longest pause: {} ms", longest_us.load(Ordering::Relaxed) / 1000);
    // All go over each time.
    daemon.wait_for_log_times("handed=4 closed=0", upgrades);
    daemon.stop();
    let found = std::fs::read(directory.path().join("disk.img")).unwrap();
    assert!(found == parts.concat(), "the disk has what the clients have written");
}

#[test]
fn clients_under_load_see_a_pause_at_upgrades_and_no_error_on_io_uring() {
    no_client_sees_an_error("io_uring", "", 10);
}

#[test]
fn clients_under_load_see_a_pause_at_upgrades_and_no_error_on_epoll() {
    no_client_sees_an_error("epoll", "", 10);
}

#[test]
fn clients_of_a_disk_with_large_blocks_see_a_pause_at_upgrades_and_no_error() {
    no_client_sees_an_error("auto", "blocks(size=4096):", 10);
}

/// The clients as the daemon lists them.
fn clients(daemon: &Daemon) -> Vec<serde_json::Value> {
    let (code, text) = daemon.run(&["clients", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    listed["clients"].as_array().unwrap().clone()
}

/// The second of the day at which a listed client has connected.
fn connected_second(client: &serde_json::Value) -> i64 {
    let at = client["connected_at"].as_str().unwrap();
    let time = at.split_once('T').unwrap().1.trim_end_matches('Z');
    time.split(':').fold(0, |sum, part| sum * 60 + part.parse::<i64>().unwrap())
}

#[test]
fn a_client_is_listed_after_an_upgrade_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_on_tcp(directory.path(), "auto", &[volume]);
    let mut first = daemon.client("disk");
    first.write(4096, &[7; 8192]).unwrap();
    let mut second = Client::enter(connect_tcp(&daemon), &config("disk")).unwrap();
    second.read(0, 4096).unwrap();
    let before = clients(&daemon);
    assert_eq!(before.len(), 2);
    std::thread::sleep(Duration::from_millis(2100));
    upgrade(&daemon);
    wait_until("both are taken over", PATIENCE, || clients(&daemon).len() == 2);
    let after = clients(&daemon);
    for (before, after) in before.iter().zip(&after) {
        for field in ["id", "volume", "client", "address", "process", "read_bytes", "written_bytes"]
        {
            assert_eq!(before[field], after[field], "{field}");
        }
        // The servers pass on the time since then, to the millisecond; these are whole seconds.
        let moved = connected_second(after) - connected_second(before);
        assert!(matches!(moved.rem_euclid(24 * 60 * 60), 0 | 1 | 86_399), "{before} {after}");
    }
    assert_eq!(first.read(4096, 8192).unwrap(), [7; 8192]);
    // The numbers of new clients follow.
    let mut third = daemon.client("disk");
    third.read(0, 512).unwrap();
    let last = clients(&daemon)[2]["id"].as_u64();
    assert!(last > before[1]["id"].as_u64(), "{last:?}");
    let id = before[0]["id"].to_string();
    assert_eq!(daemon.run(&["clients", "disconnect", &id]).0, Some(0));
    assert!(
        first
            .try_send(NbdCommand::Read, 0, 0, 512, &[])
            .is_none_or(|it| first.try_wait(it).is_none())
    );
    second.write(0, &[1; 512]).unwrap();
    daemon.stop();
}

/// Whether a connection has been closed; waits a while for it.
fn is_closed(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The header of a write, and a part of its payload.
fn begin_write(client: &mut Client, at: u64, len: u64, sent: usize) -> u64 {
    let mut header = Vec::new();
    let cookie = client.put(NbdCommand::Write, 0, at, len, &mut header);
    header.resize(header.len() + sent, 5);
    client.stream.write_all(&header).unwrap();
    cookie
}

#[test]
fn a_payload_that_comes_soon_is_written_and_one_that_does_not_ends_its_connection() {
    for io in ["io_uring", "epoll"] {
        let directory = tempfile::tempdir().unwrap();
        let volume = volume(directory.path(), "");
        let daemon = Daemon::start_kept_on_tcp(directory.path(), io, &[volume]);
        let mut other = daemon.client("disk");
        for len in [8192, MIB] {
            let (mut soon, mut never) = (daemon.client("disk"), daemon.client("disk"));
            // The second payload of a client is received directly into the pool.
            for client in [&mut soon, &mut never] {
                client.write(0, &vec![5; len as usize]).unwrap();
            }
            let cookie = begin_write(&mut soon, 0, len, 4096);
            begin_write(&mut never, 2 * MIB, len, 4096);
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // While the connection leaves, or before: both have to work.
                    std::thread::sleep(Duration::from_millis(200));
                    let rest = vec![5; len as usize - 4096];
                    soon.stream.write_all(&rest).unwrap();
                    // A request that follows at once.
                    let read = soon.send(NbdCommand::Read, 0, 0, len, &[]);
                    soon.wait(cookie).result.unwrap();
                    assert_eq!(soon.wait(read).data, vec![5; len as usize]);
                });
                upgrade(&daemon);
            });
            assert!(begun.elapsed() < Duration::from_secs(20));
            assert!(is_closed(&mut never.stream));
            other.write(4 * MIB, &[6; 4096]).unwrap();
            assert_eq!(other.read(2 * MIB, 4096).unwrap(), [0; 4096]);
            soon.read(0, 512).unwrap();
        }
        daemon.wait_for_log_times("handed=2 closed=1", 2);
        daemon.stop();
    }
}

#[test]
fn a_client_that_reads_no_replies_delays_an_upgrade_only_briefly() {
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_on_tcp(directory.path(), "auto", &[volume]);
    let (mut deaf, mut other) = (daemon.client("disk"), daemon.client("disk"));
    // More than the socket's buffers.
    for number in 0..16 {
        deaf.send(NbdCommand::Read, 0, number * MIB, MIB, &[]);
    }
    other.write(0, &[3; 4096]).unwrap();
    let begun = Instant::now();
    upgrade(&daemon);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(other.read(0, 4096).unwrap(), [3; 4096]);
    daemon.wait_for_log("handed=1 closed=1");
    assert!(is_closed(&mut deaf.stream));
    daemon.stop();
}

/// A daemon of a configuration file with these volumes.
fn configured(directory: &Path, sections: &str) -> Daemon {
    let file = directory.join("forebay.toml");
    std::fs::write(&file, sections).unwrap();
    Daemon::start_kept_with(directory, &file)
}

fn section(directory: &Path, name: &str, settings: &str) -> String {
    let path = directory.join(format!("{name}.img"));
    if !path.exists() {
        make_file(&path, SIZE_BYTES);
    }
    format!("[[volume]]\nname = \"{name}\"\nbacking = \"{}\"\n{settings}\n", path.display())
}

#[test]
fn a_volume_that_the_next_server_lacks_or_offers_less_of_ends_its_connections() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let through = "mode = \"write-through\"";
    let names = ["kept", "removed", "protected", "exchanged"];
    let before = names.map(|name| section(at, name, through)).concat();
    let daemon = configured(at, &before);
    let mut clients = names.map(|name| daemon.client(name));
    clients.iter_mut().for_each(|client| client.write(0, &[1; 512]).unwrap());
    make_file(at.join("another.img"), SIZE_BYTES);
    let exchanged = section(at, "exchanged", through).replace("exchanged.img", "another.img");
    let read_only = format!("{through}\nread-only = true");
    let after =
        [section(at, "kept", through), section(at, "protected", &read_only), exchanged].concat();
    std::fs::write(at.join("forebay.toml"), after).unwrap();
    upgrade(&daemon);
    let [mut kept, removed, protected, exchanged] = clients;
    assert_eq!(kept.read(0, 512).unwrap(), [1; 512]);
    for mut gone in [removed, protected, exchanged] {
        assert!(is_closed(&mut gone.stream));
    }
    for reason in [
        "the volume is not served",
        "the volume lacks what the client was offered",
        "the volume has another disk",
    ] {
        // The log is written by a thread of its own.
        daemon.wait_for_log(reason);
    }
    assert_eq!(daemon.connections(), 1);
    daemon.stop();
}

#[test]
fn an_upgrade_that_cannot_save_a_volume_in_memory_leaves_the_clients_where_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let image = at.join("ram.img");
    let in_memory = format!("ram=memory:4MiB?save={},mode=bypass", image.display());
    make_file(&image, 0);
    let daemon = Daemon::start_kept_on_tcp(at, "auto", &[in_memory, volume(at, "")]);
    let mut clients = ["ram", "disk"].map(|name| daemon.client(name));
    clients.iter_mut().for_each(|client| client.write(0, &[9; 4096]).unwrap());
    // In the way of the new image.
    std::fs::create_dir(at.join("ram.img.new")).unwrap();
    let before = daemon.server();
    let (code, text) = daemon.run(&["upgrade"]);
    assert!(code == Some(1) && text.contains("cannot save volume 'ram'"), "{text}");
    assert_eq!(daemon.server(), before);
    for client in &mut clients {
        assert_eq!(client.read(0, 4096).unwrap(), [9; 4096]);
        client.write(8192, &[1; 512]).unwrap();
    }
    std::fs::remove_dir(at.join("ram.img.new")).unwrap();
    upgrade(&daemon);
    for client in &mut clients {
        assert_eq!(client.read(8192, 512).unwrap(), [1; 512]);
    }
    daemon.stop();
}

/// A program that passes its check as one that continues connections, and does this as a server.
fn write_program(path: &Path, as_server: &str) {
    let staged = path.with_extension("staged");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version*) exit 0;; *--check*) \
         echo 'continues connections, version 1'; exit 0;; esac\n{as_server}\n"
    );
    std::fs::write(&staged, script).unwrap();
    std::fs::set_permissions(&staged, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&staged, path).unwrap();
}

fn own_program(directory: &Path) -> PathBuf {
    let program = directory.join("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    program
}

#[test]
fn a_program_that_ends_before_it_serves_leaves_the_clients_to_the_former_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = own_program(directory.path());
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_from(&program, directory.path(), "64MiB", &[volume]);
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    for as_server in ["exit 3", "kill -9 $$"] {
        write_program(&program, as_server);
        let (code, text) = daemon.run(&["upgrade"]);
        assert!(code == Some(1) && text.contains("exited before it served"), "{text}");
        assert_eq!(client.read(4096, 4096).unwrap(), [4; 4096]);
        client.write(8192, &[8; 512]).unwrap();
    }
    daemon.stop();
}

#[test]
fn a_program_that_does_not_continue_connections_gets_none() {
    let directory = tempfile::tempdir().unwrap();
    let program = own_program(directory.path());
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_from(&program, directory.path(), "64MiB", &[volume]);
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    write_program(&program, "exit 3");
    let script = std::fs::read_to_string(&program).unwrap().replace("version 1", "version 0");
    std::fs::write(&program, script).unwrap();
    assert_eq!(daemon.run(&["upgrade"]).0, Some(1));
    assert!(is_closed(&mut client.stream));
    daemon.wait_for_log("a version that does not continue them");
    assert!(!daemon.log_so_far().contains("handed over"));
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), [4; 4096]);
    daemon.stop();
}

#[test]
fn a_server_that_is_killed_ends_the_connections_that_it_has_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_on_tcp(directory.path(), "auto", &[volume]);
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    upgrade(&daemon);
    client.read(4096, 4096).unwrap();
    daemon.kill_server();
    assert!(is_closed(&mut client.stream));
    wait_until("the next server answers", PATIENCE, || daemon.run(&["status"]).0 == Some(0));
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), [4; 4096]);
    daemon.stop();
}

#[test]
fn connections_that_no_server_takes_in_time_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let program = own_program(directory.path());
    let volume = volume(directory.path(), "");
    let limit = [("FOREBAY_HANDOVER_SECONDS", "1")];
    let daemon = Daemon::start_kept_from_among(&program, directory.path(), &[volume], &limit);
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    write_program(&program, "exec sleep 1000");
    let before = daemon.server();
    let mut upgrade = background(directory.path(), &["upgrade"]);
    let begun = Instant::now();
    assert!(is_closed(&mut client.stream), "although the next server hangs");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    daemon.wait_for_log("no server has served in time");
    assert_ne!(daemon.server(), before);
    upgrade.kill().unwrap();
    upgrade.wait().unwrap();
    // The keeper goes back to the former program.
    daemon.kill_server();
    wait_until("the former program answers", PATIENCE, || daemon.run(&["status"]).0 == Some(0));
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), [4; 4096]);
    daemon.stop();
}

/// Runs `forebay` without waiting for it.
pub fn background(directory: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env("FOREBAY_STATE", directory.join("state"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_client_that_connects_during_an_upgrade_waits_and_is_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_on_tcp(directory.path(), "auto", &[volume]);
    let port = connect_tcp(&daemon).peer_addr().unwrap();
    let ends = AtomicBool::new(false);
    let served: u64 = std::thread::scope(|scope| {
        let unix = scope.spawn(|| {
            let mut served = 0;
            while !ends.load(Ordering::Relaxed) {
                let stream = UnixStream::connect(&daemon.socket).expect("never refused");
                served += enters(stream);
            }
            served
        });
        let tcp = scope.spawn(|| {
            let mut served = 0;
            while !ends.load(Ordering::Relaxed) {
                let stream = TcpStream::connect(port).expect("never refused");
                served += enters(stream);
            }
            served
        });
        let _end = EndOnDrop(&ends);
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(100));
            upgrade(&daemon);
        }
        ends.store(true, Ordering::Relaxed);
        unix.join().unwrap() + tcp.join().unwrap()
    });
    assert!(served > 10, "{served}");
    daemon.stop();
}

/// Enters the volume, and returns how often that succeeded: a server that is replaced may end the
/// handshake.
fn enters<S: Read + Write>(stream: S) -> u64 {
    match Client::try_enter(stream, &config("disk")) {
        Some(Ok(mut client)) => {
            let cookie = client.try_send(NbdCommand::Read, 0, 0, 512, &[]);
            let answer = cookie.and_then(|cookie| client.try_wait(cookie));
            u64::from(answer.is_some_and(|answer| answer.result.is_ok()))
        }
        _ => 0,
    }
}

/// A service manager that stores descriptors.
pub struct Store {
    pub directory: tempfile::TempDir,
    socket: UnixDatagram,
    pub volume: String,
}

impl Store {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let volume = volume(directory.path(), "");
        Self { directory, socket, volume }
    }

    /// Starts a server with what is stored: the pool, and the queue of connections.
    fn start(&self, pool: Option<&OwnedFd>, queue: Option<&OwnedFd>, slots: &str) -> Daemon {
        let notify = self.directory.path().join("notify");
        let variables = [("NOTIFY_SOCKET", notify.to_str().unwrap()), ("FDSTORE", slots)];
        let stored = pool.map(|pool| (pool, queue));
        Daemon::start_with_store(self.directory.path(), &self.volume, &variables, stored)
    }

    /// Receives notifications until one begins with `text`. Returns its descriptor.
    pub fn receive(&self, text: &str) -> Option<OwnedFd> {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut bytes = [0; 256];
            let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let len = recvmsg(&self.socket, &mut slices, &mut control, flags).unwrap().bytes;
            if bytes[..len].starts_with(text.as_bytes()) {
                return control.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
                    _ => None,
                });
            }
        }
    }
}

pub const STORED_QUEUE: &str = "FDSTORE=1\nFDNAME=forebay-connections\nFDPOLL=0";

#[test]
fn clients_go_on_through_the_service_managers_descriptor_store() {
    let store = Store::new();
    let daemon = store.start(None, None, "2");
    let pool = store.receive("FDSTORE=1\nFDNAME=forebay-pool").unwrap();
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    let mut upgrade = background(store.directory.path(), &["upgrade"]);
    let queue = store.receive(STORED_QUEUE).unwrap();
    daemon.wait_for_code(83);
    // A client connects meanwhile, and another one sends a request.
    let waiting = connect(&store.directory.path().join("nbd.sock"));
    let cookie = client.send(NbdCommand::Read, 0, 4096, 4096, &[]);
    let daemon = store.start(Some(&pool), Some(&queue), "2");
    store.receive("FDSTOREREMOVE=1\nFDNAME=forebay-connections");
    assert_eq!(client.wait(cookie).data, [4; 4096]);
    let mut second = Client::enter(waiting, &config("disk")).unwrap();
    assert_eq!(second.read(4096, 512).unwrap(), [4; 512]);
    assert!(upgrade.wait().unwrap().success());
    daemon.stop();
}

#[test]
fn a_unit_that_stores_one_descriptor_keeps_the_pool_alone() {
    let store = Store::new();
    let daemon = store.start(None, None, "1");
    let pool = store.receive("FDSTORE=1\nFDNAME=forebay-pool").unwrap();
    let mut client = daemon.client("disk");
    client.write(4096, &[4; 4096]).unwrap();
    let mut upgrade = background(store.directory.path(), &["upgrade"]);
    daemon.wait_for_code(83);
    assert!(is_closed(&mut client.stream));
    let log = std::fs::read_to_string(store.directory.path().join("log")).unwrap();
    assert!(log.contains("or the unit has FileDescriptorStoreMax=1"), "{log}");
    let daemon = store.start(Some(&pool), None, "1");
    assert!(upgrade.wait().unwrap().success());
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), [4; 4096]);
    daemon.stop();
}

/// Sends a message of the queue, with descriptors before which is a file with `content`.
fn send_to_queue(sender: &OwnedFd, header: &[u8], content: &[u8], sockets: &[&UnixStream]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(content).unwrap();
    let passed = sockets.iter().map(|socket| socket.as_fd());
    let passed: Vec<_> = std::iter::once(file.as_fd()).chain(passed).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
    let bytes = [std::io::IoSlice::new(header)];
    sendmsg(sender, &bytes, &mut control, SendFlags::empty()).unwrap();
}

/// The header of a message of this version, sent now.
fn queue_header(version: u32) -> Vec<u8> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_ns = now.tv_sec as u64 * 1_000_000_000;
    [&b"FBSOCKET"[..], &version.to_le_bytes(), &now_ns.to_le_bytes()].concat()
}

/// The description of one socket, with its length.
fn queue_item(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

#[test]
fn records_that_are_damaged_or_foreign_end_their_connections_and_nothing_else() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let store = Store::new();
    let daemon = store.start(None, None, "2");
    let pool = store.receive("FDSTORE=1\nFDNAME=forebay-pool").unwrap();
    daemon.client("disk").write(4096, &[4; 4096]).unwrap();
    daemon.kill();
    let flags = SocketFlags::CLOEXEC;
    let (queue, sender) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let record = [&b"SFBSN\x00\x01\x00\x00\x00\x10"[..], &[9; 16]].concat();
    let listener = [&b"L"[..], &[1; 16], b"unix:/elsewhere"].concat();
    let items =
        [queue_item(b"S"), queue_item(&record), queue_item(b"A"), queue_item(&listener)].concat();
    let content = [&[0; 16][..], &items].concat();
    let pairs: Vec<_> = (0..8).map(|_| UnixStream::pair().unwrap()).collect();
    let ours: Vec<&UnixStream> = pairs.iter().map(|(ours, _)| ours).collect();
    send_to_queue(&sender, &queue_header(1), &content, &ours[..4]);
    send_to_queue(&sender, &queue_header(9), &content, &ours[4..5]);
    send_to_queue(&sender, &queue_header(1), b"short", &ours[5..6]);
    send_to_queue(&sender, b"something else", &content, &ours[6..7]);
    // Fewer descriptions than sockets.
    send_to_queue(&sender, &queue_header(1), &content[..16], &ours[7..]);
    let mut theirs: Vec<UnixStream> = pairs.into_iter().map(|(_, theirs)| theirs).collect();
    let daemon = store.start(Some(&pool), Some(&queue), "2");
    for (number, stream) in theirs.iter_mut().enumerate() {
        assert!(is_closed(stream), "socket {number}");
    }
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), [4; 4096]);
    drop(sender);
    daemon.stop();
}

#[test]
fn qemu_goes_on_without_its_own_reconnection() {
    if Command::new("qemu-io").arg("--version").output().is_err() {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let volume = volume(directory.path(), "");
    let daemon = Daemon::start_kept_on_tcp(directory.path(), "auto", &[volume]);
    let uri = format!("nbd+unix:///disk?socket={}", daemon.socket.display());
    let mut child = Command::new("qemu-io")
        .args(["-f", "raw", "-t", "writeback", &uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"write -P 7 0 1M\n").unwrap();
    wait_until("qemu-io has written", PATIENCE, || {
        daemon.status()["volumes"][0]["counters"]["bytes_written"] == MIB
            || clients(&daemon).iter().any(|it| it["written_bytes"] == MIB)
    });
    upgrade(&daemon);
    input.write_all(b"read -P 7 0 1M\nwrite -P 8 1M 64k\nread -P 8 1M 64k\nflush\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && !text.contains("rror") && !text.contains("ailed"), "{text}");
    assert_eq!(text.matches("read ").count(), 2, "{text}");
    let _ = run_forebay(directory.path(), &["stop"]);
    daemon.wait();
}
