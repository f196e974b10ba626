//! The backend against a correct server, a misbehaving one, and, in a separate tier, third-party
//! servers.

mod link;
mod server;

use super::*;
use crate::{Blocking, IoToken, IoWait, conformance};
use forebay_types::{Fault, Few, IoError, IoResult};
use server::{ALL_FLAGS, Act, DISCONNECT, FLUSH, READ, Server, WRITE};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Timeout after which a connection counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(300);

fn options(reconnect_seconds: u32) -> OpenOptions {
    OpenOptions { reconnect_seconds, ..OpenOptions::default() }
}

fn open(server: &Server) -> NbdBackend {
    NbdBackend::open(&server.url(), &options(30)).unwrap()
}

/// Starts a write of zeroes. Returns its waiter.
fn start_write(backend: &dyn Backend, offset: u64) -> Arc<IoWait> {
    let wait = IoWait::new(1);
    let done = IoToken::new(wait.clone(), 0);
    let io =
        Io { kind: IoKind::Zero { unmap: true }, offset, len: 4096, buffers: Few::new(), done };
    backend.submit(io);
    wait
}

fn answer(wait: &IoWait) -> IoResult {
    wait.all()[0]
}

#[test]
fn a_complete_server_passes_the_suite() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let backend: Arc<dyn Backend> = Arc::new(open(&server));
    conformance::check(&backend);
    drop(backend);
    // The server may take a moment to read the disconnect request.
    let started = Instant::now();
    let last = || server.shared().seen.lock().unwrap().last().map(|seen| seen.command);
    while last() != Some(DISCONNECT) {
        assert!(started.elapsed() < TIMEOUT, "no disconnect request");
        std::thread::yield_now();
    }
    let seen = server.shared().seen.lock().unwrap();
    assert!(seen.iter().any(|seen| seen.command == WRITE && seen.flags == 1));
}

#[test]
fn a_server_with_few_capabilities_passes_the_suite() {
    // Only flushes: FUA becomes a write and a flush, zeroes are written.
    let flags = export_flag::HAS_FLAGS | export_flag::SEND_FLUSH;
    let server = Server::new(flags, |_, _| Act::Serve);
    let backend = open(&server);
    Blocking::new(&backend).write(0, &[1; 512], true).unwrap();
    let commands = |server: &Server| -> Vec<u16> {
        server.shared().seen.lock().unwrap().iter().map(|seen| seen.command).collect()
    };
    assert_eq!(commands(&server), [WRITE, FLUSH]);
    conformance::check(&(Arc::new(backend) as Arc<dyn Backend>));
    let server = Server::new(export_flag::HAS_FLAGS, |_, _| Act::Serve);
    conformance::check(&(Arc::new(open(&server)) as Arc<dyn Backend>));
    assert!(!commands(&server).contains(&FLUSH));
}

#[test]
fn the_preferred_block_size_and_the_rotational_flag_are_used() {
    let opened = |flags, block_preferred| OpenExport {
        size_bytes: 1 << 20,
        flags,
        structured: true,
        extended: false,
        base_allocation: None,
        tls: false,
        block_min: 512,
        block_preferred,
        payload_max: 32 << 20,
    };
    let turning = geometry(&opened(export_flag::HAS_FLAGS | export_flag::ROTATIONAL, 65_536));
    assert_eq!((turning.optimal_bytes, turning.rotational), (65_536, Some(true)));
    let silent = geometry(&opened(export_flag::HAS_FLAGS, 4096));
    assert_eq!((silent.optimal_bytes, silent.rotational), (4096, None));
    assert!(!turning.has_stripes());
}

#[test]
fn extents_of_whole_blocks_are_cut_to_the_requested_sectors() {
    let extent = |len, zero| Extent { len, hole: zero, zero };
    let found = [extent(4096, true), extent(4096, false), extent(8192, true)];
    let cut = |skip, len| cut_extents(&found, skip, len);
    assert_eq!(cut(0, 16384), found);
    assert_eq!(cut(512, 512), [extent(512, true)]);
    assert_eq!(cut(3584, 1024), [extent(512, true), extent(512, false)]);
    assert_eq!(cut(8192, 1024), [extent(1024, true)]);
    assert_eq!(cut(12288, 8192), [extent(4096, true), extent(4096, false)]);
    assert_eq!(cut_extents(&[], 512, 1024), [extent(1024, false)]);
}

#[test]
#[ignore = "needs nbdkit"]
fn tool_status_queries_are_aligned_to_large_blocks() {
    let arguments = |socket: &str| {
        let policy = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=1M"];
        let server = ["-f", "--exit-with-parent", "-U", socket, "--filter=blocksize-policy"];
        let disk = ["memory", "64M", "blocksize-error-policy=error"];
        [&server[..], &disk[..], &policy[..]].concat().into_iter().map(String::from).collect()
    };
    let (_server, backend) = open_third_party("nbdkit", arguments);
    let found = backend.extents(ByteRange::new(512, 1536));
    assert_eq!(found, [Extent { len: 1536, hole: true, zero: true }]);
}

#[test]
fn open_errors_name_cause_and_remedy() {
    let error = |url: &str| NbdBackend::open(url, &options(1)).err().unwrap();
    let text = error("nbd+unix:///x?socket=/nowhere").explained();
    assert!(text.starts_with("cannot reach the server of 'nbd+unix:///x?socket=/nowhere'"));
    let read_only = Server::new(ALL_FLAGS | export_flag::READ_ONLY, |_, _| Act::Serve);
    assert!(matches!(error(&read_only.url()), NbdError::ReadOnly { .. }));
    let reader = OpenOptions { read_only: true, ..options(1) };
    let backend = NbdBackend::open(&read_only.url(), &reader).unwrap();
    let blocking = Blocking::new(&backend);
    assert_eq!(blocking.write(0, &[0; 512], false), Err(IoError::NotPermitted));
    assert_eq!(blocking.read(0, &mut [0; 512]), Ok(()));
    *read_only.shared().size_bytes.lock().unwrap() = 1000;
    let text = NbdBackend::open(&read_only.url(), &reader).err().unwrap().explained();
    assert!(text.contains("is 1000 bytes, not a multiple of 512 above zero"), "{text}");
}

#[test]
fn server_errors_are_passed_on() {
    let server = Server::new(ALL_FLAGS, |_, seen| match seen.offset {
        4096 => Act::Fail(28),
        8192 => Act::Fail(9999),
        _ => Act::Serve,
    });
    let backend = open(&server);
    let blocking = Blocking::new(&backend);
    assert_eq!(blocking.write(4096, &[0; 512], false), Err(IoError::NoSpace));
    assert_eq!(blocking.read(8192, &mut [0; 512]), Err(IoError::Io));
    assert_eq!(blocking.read(0, &mut [0; 512]), Ok(()));
}

#[test]
fn a_lost_connection_is_restored_and_nothing_is_lost() {
    // Each of the first connections ends at its tenth, unanswered request.
    let counts: [AtomicUsize; 5] = Default::default();
    let server = Server::new(ALL_FLAGS, move |connection, _| match counts.get(connection) {
        Some(count) if count.fetch_add(1, Ordering::SeqCst) == 9 => Act::Close,
        _ => Act::Serve,
    });
    let backend = open(&server);
    let blocking = Blocking::new(&backend);
    for number in 0..100u64 {
        blocking.write(number * 512, &[number as u8 + 1; 512], true).unwrap();
    }
    let mut bytes = vec![0; 100 * 512];
    blocking.read(0, &mut bytes).unwrap();
    for (number, sector) in bytes.chunks(512).enumerate() {
        assert!(sector.iter().all(|&byte| byte == number as u8 + 1), "sector {number}");
    }
}

#[test]
fn io_waits_for_an_unreachable_server() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let backend = open(&server);
    server.stop();
    let writes: Vec<_> = (0..64).map(|n| start_write(&backend, n * 4096)).collect();
    server.listen();
    assert!(writes.iter().all(|wait| answer(wait) == Ok(())));
}

#[test]
fn io_fails_when_the_server_stays_unreachable() {
    let server = Server::new(ALL_FLAGS, |_, seen| match seen.command {
        READ => Act::Serve,
        _ => Act::Ignore,
    });
    let backend = NbdBackend::open(&server.url(), &options(1)).unwrap();
    Blocking::new(&backend).read(0, &mut [0; 512]).unwrap();
    // One in flight, one submitted while the server is down.
    let in_flight = start_write(&backend, 0);
    let started = Instant::now();
    server.stop();
    let waiting = start_write(&backend, 4096);
    assert_eq!((answer(&in_flight), answer(&waiting)), (Err(IoError::Io), Err(IoError::Io)));
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(1), "too early: {took:?}");
    // From now on nothing waits.
    assert_eq!(Blocking::new(&backend).flush(), Err(IoError::Io));
    // I/O works again after the server returns.
    server.listen();
    while Blocking::new(&backend).read(0, &mut [0; 512]).is_err() {
        assert!(started.elapsed() < TIMEOUT, "no reconnect");
        std::thread::yield_now();
    }
}

#[test]
fn requests_expire_and_the_backend_closes_while_a_connect_hangs() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Ignore);
    let backend = NbdBackend::open(&server.url(), &options(1)).unwrap();
    let in_flight = start_write(&backend, 0);
    let started = Instant::now();
    let _hanging = server.hang();
    assert_eq!(answer(&in_flight), Err(IoError::Io));
    drop(backend);
    let took = started.elapsed();
    assert!(
        took < Duration::from_secs(9),
        "the answers or the drop waited for the connect: {took:?}"
    );
}

#[test]
fn a_full_backlog_delays_a_connect_until_its_deadline() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let _hanging = server.hang();
    let url = NbdUrl::parse(&server.url()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = socket::NbdSocket::connect(&url.address, deadline).err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(Instant::now() >= deadline);
}

#[test]
fn a_flush_fails_once_if_writes_may_have_been_lost() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let backend = open(&server);
    let blocking = Blocking::new(&backend);
    // Nothing is volatile: a disconnect loses nothing.
    blocking.write(0, &[1; 512], true).unwrap();
    server.cut();
    assert_eq!(blocking.flush(), Ok(()));
    blocking.write(0, &[2; 512], false).unwrap();
    blocking.flush().unwrap();
    server.cut();
    blocking.read(0, &mut [0; 512]).unwrap();
    assert_eq!(blocking.flush(), Ok(()));
    // Written and unflushed: the next flush must fail.
    blocking.write(0, &[3; 512], false).unwrap();
    server.cut();
    blocking.read(0, &mut [0; 512]).unwrap();
    assert_eq!(blocking.flush(), Err(IoError::Io));
    assert_eq!(blocking.flush(), Ok(()));
}

#[test]
fn a_flush_succeeds_after_a_reconnect_if_the_server_keeps_writes() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let url = format!("{}&keeps-writes=yes", server.url());
    let backend = NbdBackend::open(&url, &options(60)).unwrap();
    let blocking = Blocking::new(&backend);
    blocking.write(0, &[3; 512], false).unwrap();
    server.cut();
    blocking.read(0, &mut [0; 512]).unwrap();
    assert_eq!(blocking.flush(), Ok(()));
}

#[test]
fn invalid_replies_are_not_accepted() {
    let garbage: [&[u8]; 3] = [
        &[0xA5; 64],
        // A reply to an unknown request, and a structured one that was not negotiated.
        &[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9],
        &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
    ];
    for bytes in garbage {
        // The first two connections return garbage, the third works.
        let server = Server::new(ALL_FLAGS, move |connection, _| match connection {
            0 | 1 => Act::Reply(bytes.to_vec()),
            _ => Act::Serve,
        });
        let backend = open(&server);
        let mut read = [9; 512];
        assert_eq!(Blocking::new(&backend).read(0, &mut read), Ok(()));
        assert_eq!(read, [0; 512]);
    }
}

#[test]
fn random_replies_are_survived() {
    // Random bytes instead of replies, some with a valid start.
    let random = std::sync::Mutex::new(crate::random::Random::new(1));
    let server = Server::new(ALL_FLAGS, move |_, seen| {
        let mut random = random.lock().unwrap();
        let mut bytes = Vec::new();
        if random.below(4) > 0 {
            bytes.extend(0x6744_6698u32.to_be_bytes());
            bytes.extend((random.below(3) as u32 * 22).to_be_bytes());
            bytes.extend((seen.cookie + random.below(3)).to_be_bytes());
        }
        bytes.extend((0..random.below(2000)).map(|_| random.next() as u8));
        if random.below(8) == 0 { Act::Close } else { Act::Reply(bytes) }
    });
    for _ in 0..50 {
        let backend = NbdBackend::open(&server.url(), &options(0)).unwrap();
        let waits: Vec<_> = (0..8).map(|n| start_write(&backend, n * 4096)).collect();
        let mut bytes = [0; 1024];
        // Each request gets some answer, and the connection ends at the first invalid reply.
        let _ = Blocking::new(&backend).read(0, &mut bytes);
        drop(backend);
        for wait in waits {
            let _ = answer(&wait);
        }
    }
}

#[test]
fn an_early_answer_does_not_free_buffers_being_sent() {
    // The answer comes while most of the 4 MiB are unsent; then the connection ends.
    let server = Server::new(ALL_FLAGS, |connection, seen| match (connection, seen.command) {
        (0, WRITE) => Act::AnswerEarly,
        _ => Act::Serve,
    });
    let backend = open(&server);
    let bytes = vec![1; 4 << 20];
    // The write is resent: an answer that comes during the sending is void if the connection ends.
    assert_eq!(Blocking::new(&backend).write(0, &bytes, true), Ok(()));
    assert_eq!(Blocking::new(&backend).read(0, &mut [0; 512]), Ok(()));
}

#[test]
fn a_changed_export_is_rejected_on_reconnect() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Serve);
    let backend = NbdBackend::open(&server.url(), &options(1)).unwrap();
    *server.shared().size_bytes.lock().unwrap() /= 2;
    server.cut();
    assert_eq!(Blocking::new(&backend).read(0, &mut [0; 512]), Err(IoError::Io));
}

#[test]
fn closing_answers_requests_of_a_silent_server() {
    let server = Server::new(ALL_FLAGS, |_, _| Act::Ignore);
    let backend = open(&server);
    let wait = start_write(&backend, 0);
    drop(backend);
    assert_eq!(answer(&wait), Err(IoError::Io));
}

/// A third-party server, killed on drop.
struct ThirdParty(Child);

impl Drop for ThirdParty {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a server with these arguments on a socket.
fn open_third_party(
    program: &str,
    arguments: impl Fn(&str) -> Vec<String>,
) -> ((ThirdParty, tempfile::TempDir), NbdBackend) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket").display().to_string();
    let server = ThirdParty(Command::new(program).args(arguments(&socket)).spawn().unwrap());
    let url = format!("nbd+unix:///?socket={socket}");
    let started = Instant::now();
    let backend = loop {
        match NbdBackend::open(&url, &options(1)) {
            Ok(backend) => break backend,
            Err(error) => assert!(started.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::yield_now();
    };
    ((server, directory), backend)
}

/// Runs a server with these arguments, and the suite against it.
fn check_third_party(program: &str, arguments: impl Fn(&str) -> Vec<String>) {
    let (_server, backend) = open_third_party(program, arguments);
    println!("{:?} {:?}", backend.description(), backend.shared.first);
    let hole = backend.extents(ByteRange::new(0, 4 << 20));
    assert!(hole.iter().all(|extent| extent.zero), "{hole:?}");
    conformance::check(&(Arc::new(backend) as Arc<dyn Backend>));
}

#[test]
#[ignore = "needs nbdkit"]
fn tool_nbdkit_passes_the_suite() {
    let arguments = |socket: &str| {
        ["-f", "--exit-with-parent", "-U", socket, "memory", "64M"].map(String::from).into()
    };
    check_third_party("nbdkit", arguments);
}

#[test]
#[ignore = "needs qemu-nbd"]
fn tool_qemu_nbd_passes_the_suite() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let image = image.display().to_string();
    let arguments = |socket: &str| {
        let fixed = ["-f", "raw", "-t", "--discard=unmap", "-k", socket, &image];
        fixed.map(String::from).into()
    };
    check_third_party("qemu-nbd", arguments);
}
