//! Connections whose end is never reported delay no removal and no stop.

use crate::platform::reactor::{BufferId, EpollReactor, Event, FileOp, Reactor};
use crate::rig::{MIB, listen, quiet_config, volume};
use crate::worker::Crew;
use crate::{Runtime, Timeouts};
use forebay_backend::MemoryBackend;
use forebay_frontend::{DriverCommand, EventCounters, Sockets};
use forebay_frontend_nbd::NbdServer;
use forebay_nbd::proto;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Long enough to be received into the pool.
const PAYLOAD: u32 = 1 << 20;
/// Too long for a socket's buffers.
const REPLY: u32 = 4 << 20;

/// A reactor that never reports the end of an operation on a connection, as a bug of a reactor or
/// of the kernel could.
struct Deaf(EpollReactor);

impl Deaf {
    const fn is_end(event: &Event) -> bool {
        matches!(
            event,
            Event::Received { result: Ok(0) | Err(_), .. }
                | Event::Filled { result: Ok(0) | Err(_), .. }
                | Event::Sent { .. }
        )
    }
}

impl Sockets for Deaf {
    fn accept(&mut self, listener: u32, fd: RawFd) {
        self.0.accept(listener, fd);
    }

    fn stop_accepting(&mut self, listener: u32, fd: RawFd) {
        self.0.stop_accepting(listener, fd);
    }

    fn receive(&mut self, conn: u32, fd: RawFd) {
        self.0.receive(conn, fd);
    }

    fn pause(&mut self, conn: u32) {
        self.0.pause(conn);
    }

    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr) {
        self.0.fill(conn, fd, message);
    }

    fn stop_input(&mut self, conn: u32, fd: RawFd) {
        self.0.stop_input(conn, fd);
    }

    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr) {
        self.0.send(conn, fd, message);
    }

    fn forget(&mut self, fd: RawFd) {
        self.0.forget(fd);
    }
}

impl EventCounters for Deaf {
    fn watch_counter(&mut self, key: u32, fd: RawFd) {
        self.0.watch_counter(key, fd);
    }

    fn unwatch_counter(&mut self, key: u32) {
        self.0.unwatch_counter(key);
    }
}

impl Reactor for Deaf {
    const NAME: &'static str = "deaf";
    const FILES: bool = false;

    fn new(wake: RawFd) -> io::Result<Self> {
        EpollReactor::new(wake).map(Self)
    }

    fn file(&mut self, tag: u32, op: FileOp) -> bool {
        self.0.file(tag, op)
    }

    fn command(&mut self, command: DriverCommand) -> bool {
        self.0.command(command)
    }

    fn counts_as_io_pressure(&self) -> bool {
        self.0.counts_as_io_pressure()
    }

    fn wake_by(&mut self, at: Instant) {
        self.0.wake_by(at);
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn event(&mut self) -> Option<Event> {
        loop {
            let event = self.0.event()?;
            if !Self::is_end(&event) {
                return Some(event);
            }
            if let Event::Received { buffer: Some(buffer), .. } = event {
                self.0.recycle(buffer);
            }
        }
    }

    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8] {
        self.0.buffer(buffer, len)
    }

    fn recycle(&mut self, buffer: BufferId) {
        self.0.recycle(buffer);
    }
}

fn serve(socket: &Path) -> Runtime {
    let timeouts = Timeouts { farewell: Duration::from_millis(50), ..Timeouts::default() };
    let server = NbdServer::new();
    let config = quiet_config(64 * MIB);
    let started = Runtime::start_by(config, timeouts, None, &server, |shared, _| {
        Ok(Crew::start_with::<Deaf, _>(shared, &server)?)
    });
    let runtime = started.unwrap();
    let disk = Arc::new(MemoryBackend::new(u64::from(REPLY)).unwrap());
    runtime.volumes().add(volume("disk", disk)).unwrap();
    listen(&server, socket);
    runtime
}

fn enter(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(proto::OPTION_MAGIC.to_be_bytes());
    hello.extend(proto::option::EXPORT_NAME.to_be_bytes());
    hello.extend(4u32.to_be_bytes());
    hello.extend(b"disk");
    stream.write_all(&hello).unwrap();
    // The greeting, and the size and flags of the export.
    stream.read_exact(&mut [0; proto::GREETING_BYTES + 10]).unwrap();
    stream
}

fn request(command: u16, len: u32) -> Vec<u8> {
    let mut bytes = proto::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Clients in every state: idle, sending a payload into the pool, not fetching a reply,
/// disconnecting, in the handshake. All but the last have entered.
fn clients(socket: &Path) -> Vec<UnixStream> {
    let mut idle = enter(socket);
    let mut writer = enter(socket);
    writer.write_all(&request(proto::command::WRITE, PAYLOAD)).unwrap();
    writer.write_all(&[7; PAYLOAD as usize / 2]).unwrap();
    let mut reader = enter(socket);
    reader.write_all(&request(proto::command::READ, REPLY)).unwrap();
    reader.read_exact(&mut [0; 16]).unwrap();
    drop(enter(socket));
    let silent = UnixStream::connect(socket).unwrap();
    // The only worker has processed everything when it answers this.
    idle.write_all(&request(proto::command::READ, 512)).unwrap();
    idle.read_exact(&mut [0; 16 + 512]).unwrap();
    vec![idle, writer, reader, silent]
}

#[test]
fn a_connection_that_never_ends_delays_neither_a_removal_nor_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let runtime = serve(&socket);
    let _clients = clients(&socket);
    assert_eq!(runtime.status().unwrap().connections, 5);
    runtime.volumes().remove("disk", |_| {}).unwrap();
    assert_eq!(runtime.status().unwrap().connections, 1, "one has not entered it");
    runtime.stop(|_| {}).unwrap();
}

/// Fails if reading the volume table under a shard's lock, as the journal path does, deadlocks with
/// a worker's tick that waits for the shard and a thread that waits to change the table.
#[test]
fn a_volume_is_found_under_the_lock_of_a_shard() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = Arc::new(serve(&directory.path().join("socket")));
    let volume = runtime.named("disk").unwrap();
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..2 {
            let shard = runtime.shared().shard(0);
            // The worker's tick waits for the shard.
            std::thread::sleep(Duration::from_millis(700));
            let (changed, same) = (Arc::clone(&runtime), Arc::clone(&volume));
            let changing = std::thread::spawn(move || changed.shared().volumes.insert(same));
            std::thread::sleep(Duration::from_millis(50));
            assert!(runtime.shared().volume(volume.id).is_some());
            drop(shard);
            changing.join().unwrap();
        }
        sender.send(()).unwrap();
    });
    done.recv_timeout(Duration::from_secs(20)).expect("no deadlock");
}
