//! Many idle clients, silent clients, and clients beyond the limit on descriptors.

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::raw::{client_flags, enter, greeting, option, request};
use crate::common::wait_until;
use crate::process::{Daemon, make_file, run_forebay};
use forebay_nbd::proto::{GREETING_BYTES, command, option::EXPORT_NAME};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Idle clients that must be connected at once.
const IDLE: usize = 10_000;
/// Memory that an idle client may take in the daemon, in bytes.
const IDLE_BYTES_MAX: u64 = 20_000;

/// Held by a test that needs many descriptors: two at a time may exceed the limit of this process.
static DESCRIPTORS: Mutex<()> = Mutex::new(());

/// Raises this process's limit on descriptors to the maximum. Returns it, and the right to use
/// most of them.
fn raise_descriptors() -> (u64, MutexGuard<'static, ()>) {
    let guard = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    (maximum.unwrap_or(u64::MAX), guard)
}

/// The connected clients, as JSON.
fn listed(directory: &Path) -> Vec<serde_json::Value> {
    let (code, text) = run_forebay(directory, &["clients", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    list["clients"].as_array().unwrap().clone()
}

#[test]
fn clients_are_listed_and_one_that_hangs_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:64MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &volumes);
    let mut busy = daemon.client("disk");
    busy.write(0, &[1; 4096]).unwrap();
    busy.read(0, 8192).unwrap();
    // One that does not fetch its replies, and one that never chooses a volume.
    let mut hung = connect(&daemon.socket);
    enter(&mut hung, "disk");
    for cookie in 0..64 {
        hung.write_all(&request(command::READ, 0, cookie, 0, 1 << 20)).unwrap();
    }
    let mut silent = connect(&daemon.socket);
    greeting(&mut silent);
    let find =
        |of: &dyn Fn(&serde_json::Value) -> bool| listed(directory.path()).into_iter().find(of);
    wait_until("the hung client has been answered in part", PATIENCE, || {
        find(&|client| client["read_bytes"].as_u64() >= Some(1 << 20)).is_some()
    });
    let first = find(&|client| client["written_bytes"] == 4096).unwrap();
    assert_eq!((&first["volume"], &first["read_bytes"]), (&"disk".into(), &8192.into()));
    assert_eq!((&first["process"], &first["tls"]), (&std::process::id().into(), &false.into()));
    let connected_at = first["connected_at"].as_str().unwrap();
    assert!(connected_at.starts_with("20") && connected_at.ends_with('Z'), "{connected_at}");
    wait_until("the silent client is listed", PATIENCE, || {
        find(&|client| client["volume"].is_null()).is_some()
    });
    let (_, table) = run_forebay(directory.path(), &["clients"]);
    assert_eq!(table.lines().count(), 4, "{table}");
    let stalled = find(&|client| client["read_bytes"].as_u64() >= Some(1 << 20)).unwrap();
    let number = stalled["id"].as_u64();
    let id = number.unwrap().to_string();
    let (code, text) = run_forebay(directory.path(), &["clients", "disconnect", &id]);
    let said = format!("client {id} of 'disk' is disconnected: process {}", std::process::id());
    assert!(code == Some(0) && text.starts_with(&said), "{text}");
    wait_until("it is gone", PATIENCE, || {
        find(&|client| client["id"].as_u64() == number).is_none()
    });
    // The other end has what was sent before, and then nothing more.
    let _ = hung.read_to_end(&mut Vec::new());
    assert_eq!(busy.read(0, 512), Ok(vec![1; 512]), "the others continue");
    let (code, text) = run_forebay(directory.path(), &["clients", "disconnect", &id]);
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("no client {id} is connected")), "{text}");
    daemon.stop();
}

fn ten_thousand_idle_clients(io: &str) {
    let (descriptors, _guard) = raise_descriptors();
    assert!(descriptors > IDLE as u64 + 1000, "the system allows too few descriptors");
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut session = daemon.client("disk");
    session.write(0, &[1; 4096]).unwrap();
    let (before, _) = daemon.rss_bytes();
    let begin = Instant::now();
    // The clients finish negotiation, so its deadline does not disconnect them.
    let idle: Vec<Client> = (0..IDLE).map(|_| daemon.client("disk")).collect();
    let (after, _) = daemon.rss_bytes();
    let each = after.saturating_sub(before) / IDLE as u64;
    println!("{io}: {IDLE} idle clients in {:?}, {each} bytes each", begin.elapsed());
    assert!(each < IDLE_BYTES_MAX, "{each} bytes for each idle client");
    for _ in 0..100 {
        assert_eq!(session.read(0, 4096), Ok(vec![1; 4096]));
    }
    drop(idle);
    for _ in 0..100 {
        assert_eq!(session.read(0, 4096), Ok(vec![1; 4096]));
    }
    let mut late = connect(&daemon.socket);
    enter(&mut late, "disk");
}

/// Clients that never negotiate are disconnected at the deadline; other clients are not.
fn silent_clients_are_disconnected(io: &str) {
    let (_, _guard) = raise_descriptors();
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut session = daemon.client("disk");
    let begin = Instant::now();
    let mut silent: Vec<UnixStream> = (0..1000).map(|_| connect(&daemon.socket)).collect();
    for (number, stream) in silent.iter_mut().enumerate() {
        greeting(stream);
        if number % 2 == 0 {
            // Fails on a machine so slow that the deadline has already passed.
            let _ = stream.write_all(&client_flags());
        }
    }
    for stream in &mut silent {
        assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)), "the server sends no more");
    }
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(9), "too early: {took:?}");
    assert!(took < PATIENCE, "too late: {took:?}");
    session.write(0, &[1; 4096]).unwrap();
}

/// With more clients than descriptors, connected clients are served, the daemon does not spin, and
/// a waiting client is accepted once another one disconnects.
fn a_daemon_out_of_descriptors_does_not_spin(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), io, "64MiB", &["disk=memory:1MiB".to_owned()]);
    let mut session = daemon.client("disk");
    let pid = rustix::process::Pid::from_raw(daemon.id() as i32);
    let few = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(pid, Resource::Nofile, few).unwrap();
    let mut crowd: Vec<UnixStream> = (0..100).map(|_| connect(&daemon.socket)).collect();
    for _ in 0..100 {
        session.write(0, &[1; 4096]).unwrap();
    }
    let before = daemon.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let ticks = daemon.cpu_ticks() - before;
    println!("{io}: {ticks} ticks of the processor in 2 s without descriptors");
    assert!(ticks < 40, "the daemon spins: {ticks} ticks in 2 s");
    session.write(0, &[2; 4096]).unwrap();
    // Connected clients leave, and waiting ones are accepted.
    let mut last = crowd.pop().unwrap();
    drop(crowd);
    greeting(&mut last);
    wait_until("new clients are accepted again", PATIENCE, || {
        let mut stream = connect(&daemon.socket);
        stream.read(&mut [0; 18]).is_ok_and(|len| len == 18)
    });
}

/// A socket that fails every second read as Linux does after the process was stopped and continued.
struct Interrupted {
    socket: UnixStream,
    is_due: bool,
}

impl Read for Interrupted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.is_due = !self.is_due;
        if self.is_due { Err(ErrorKind::Interrupted.into()) } else { self.socket.read(bytes) }
    }
}

impl Write for Interrupted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[test]
fn the_tests_client_repeats_an_interrupted_read() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:1MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &volumes);
    let socket = Interrupted { socket: connect(&daemon.socket), is_due: false };
    let mut client = Client::enter(socket, &config("disk")).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(client.read(0, 4096), Ok(vec![1; 4096]));
}

/// A small limit on descriptors.
const FEW: u32 = 64;

/// Connects a client to the volume; returns `None` if the server closes the connection.
fn try_enter(socket: &Path) -> Option<UnixStream> {
    let mut stream = connect(socket);
    stream.read_exact(&mut [0; GREETING_BYTES]).ok()?;
    stream.write_all(&client_flags()).unwrap();
    stream.write_all(&option(EXPORT_NAME, b"disk")).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    Some(stream)
}

/// Clients cannot use up the descriptors reserved for the control API and for disks.
fn a_daemon_full_of_clients_can_be_controlled(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_limited(directory.path(), io, "disk=memory:1MiB", FEW);
    let mut session = daemon.client("disk");
    let crowd: Vec<UnixStream> = (0..100).filter_map(|_| try_enter(&daemon.socket)).collect();
    let served = crowd.len();
    assert!(served > 10 && served < 48, "{served} of 100 clients are served");
    assert_eq!(daemon.connections(), served as u64 + 1);
    let disk = directory.path().join("other.img");
    make_file(&disk, 1 << 20);
    let (code, said) = daemon.run(&["volume", "add", &format!("other={}", disk.display())]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = daemon.run(&["volume", "remove", "other"]);
    assert_eq!(code, Some(0), "{said}");
    session.write(0, &[1; 4096]).unwrap();
    daemon.wait_for_log("connections refused");
    daemon.wait_for_log("ulimit -n");
    drop(crowd);
    wait_until("new clients are accepted again", PATIENCE, || try_enter(&daemon.socket).is_some());
    let _crowd: Vec<UnixStream> = (0..100).filter_map(|_| try_enter(&daemon.socket)).collect();
    let (code, said) = daemon.run(&["stop", "--force"]);
    assert_eq!(code, Some(0), "{said}");
}

/// With no free descriptor at all, clients wait, and are accepted once one is free.
fn a_daemon_without_any_descriptor_accepts_clients_again(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_limited(directory.path(), io, "disk=memory:1MiB", FEW);
    let control = directory.path().join("state/control.sock");
    // The control server runs out too, and leaves the last of these waiting.
    let others: Vec<UnixStream> = (0..FEW).map(|_| connect(&control)).collect();
    wait_until("no descriptor is free", PATIENCE, || daemon.has_descriptors_below(FEW));
    let mut waiting = connect(&daemon.socket);
    daemon.wait_for_log("accept failed");
    drop(others);
    greeting(&mut waiting);
    daemon.stop();
}

#[test]
fn a_daemon_full_of_clients_can_be_controlled_on_io_uring() {
    a_daemon_full_of_clients_can_be_controlled("io_uring");
}

#[test]
fn a_daemon_full_of_clients_can_be_controlled_on_epoll() {
    a_daemon_full_of_clients_can_be_controlled("epoll");
}

#[test]
fn a_daemon_without_any_descriptor_accepts_clients_again_on_io_uring() {
    a_daemon_without_any_descriptor_accepts_clients_again("io_uring");
}

#[test]
fn a_daemon_without_any_descriptor_accepts_clients_again_on_epoll() {
    a_daemon_without_any_descriptor_accepts_clients_again("epoll");
}

#[test]
fn ten_thousand_idle_clients_on_io_uring() {
    ten_thousand_idle_clients("io_uring");
}

#[test]
fn ten_thousand_idle_clients_on_epoll() {
    ten_thousand_idle_clients("epoll");
}

#[test]
fn silent_clients_are_disconnected_on_io_uring() {
    silent_clients_are_disconnected("io_uring");
}

#[test]
fn silent_clients_are_disconnected_on_epoll() {
    silent_clients_are_disconnected("epoll");
}

#[test]
fn a_daemon_out_of_descriptors_does_not_spin_on_io_uring() {
    a_daemon_out_of_descriptors_does_not_spin("io_uring");
}

#[test]
fn a_daemon_out_of_descriptors_does_not_spin_on_epoll() {
    a_daemon_out_of_descriptors_does_not_spin("epoll");
}
