//! The ublk front end over a driver that is a file: its descriptors and data are at the positions
//! of the kernel's, and a reactor records the commands.

use crate::Runtime;
use crate::platform::reactor::{BufferId, EpollReactor, Event, FileOp, Reactor};
use crate::rig::{MIB, quiet_config, volume};
use crate::worker::Worker;
use forebay_backend::MemoryBackend;
use forebay_frontend::{
    Clients, DriverCommand, EventCounters, FrontEnd, FrontEndEvent, Quota, Service, Sockets,
};
use forebay_frontend_nbd::NbdServer;
use forebay_frontend_ublk::{Device, UblkFrontEnd, UblkMessage, UblkServer};
use forebay_types::Mode;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTH: u16 = 4;
const READ: u32 = 0;
const WRITE: u32 = 1;
const DISK_BYTES: u64 = 64 * MIB;

/// A reactor whose driver takes all commands, and ends them when the test says so.
struct Recording {
    sockets: EpollReactor,
    commands: Vec<DriverCommand>,
}

impl Sockets for Recording {
    fn accept(&mut self, listener: u32, fd: RawFd) {
        self.sockets.accept(listener, fd);
    }

    fn stop_accepting(&mut self, listener: u32, fd: RawFd) {
        self.sockets.stop_accepting(listener, fd);
    }

    fn receive(&mut self, conn: u32, fd: RawFd) {
        self.sockets.receive(conn, fd);
    }

    fn pause(&mut self, conn: u32) {
        self.sockets.pause(conn);
    }

    fn fill(&mut self, conn: u32, fd: RawFd, message: *mut libc::msghdr) {
        self.sockets.fill(conn, fd, message);
    }

    fn stop_input(&mut self, conn: u32, fd: RawFd) {
        self.sockets.stop_input(conn, fd);
    }

    fn send(&mut self, conn: u32, fd: RawFd, message: *const libc::msghdr) {
        self.sockets.send(conn, fd, message);
    }

    fn forget(&mut self, fd: RawFd) {
        self.sockets.forget(fd);
    }
}

impl EventCounters for Recording {
    fn watch_counter(&mut self, key: u32, fd: RawFd) {
        self.sockets.watch_counter(key, fd);
    }

    fn unwatch_counter(&mut self, key: u32) {
        self.sockets.unwatch_counter(key);
    }
}

impl Reactor for Recording {
    const NAME: &'static str = "recording";
    const FILES: bool = false;

    fn new(wake: RawFd) -> io::Result<Self> {
        Ok(Self { sockets: EpollReactor::new(wake)?, commands: Vec::new() })
    }

    fn file(&mut self, tag: u32, op: FileOp) -> bool {
        self.sockets.file(tag, op)
    }

    fn command(&mut self, command: DriverCommand) -> bool {
        self.commands.push(command);
        true
    }

    fn counts_as_io_pressure(&self) -> bool {
        self.sockets.counts_as_io_pressure()
    }

    fn wake_by(&mut self, at: Instant) {
        self.sockets.wake_by(at);
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.sockets.wait(timeout)
    }

    fn event(&mut self) -> Option<Event> {
        self.sockets.event()
    }

    fn buffer(&self, buffer: BufferId, len: usize) -> &[u8] {
        self.sockets.buffer(buffer, len)
    }

    fn recycle(&mut self, buffer: BufferId) {
        self.sockets.recycle(buffer);
    }
}

/// A worker with one queue of a device.
struct Rig {
    runtime: Runtime,
    worker: Worker<Recording, UblkFrontEnd>,
    driver: File,
    _file: tempfile::NamedTempFile,
}

impl Rig {
    fn new(mode: Mode) -> Self {
        let runtime = Runtime::start(quiet_config(64 * MIB), &NbdServer::new()).unwrap();
        let disk = Arc::new(MemoryBackend::new(DISK_BYTES).unwrap());
        let mut settings = volume("disk", disk);
        settings.config.mode = mode;
        settings.config.accept_loss = true;
        runtime.volumes().add(settings).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let driver = file.reopen().unwrap();
        driver.set_len(1 << 20).unwrap();
        let device = Device::open((file.path().to_owned(), 7), (1, DEPTH), "disk").unwrap();
        let shared = Arc::clone(runtime.shared());
        let front = UblkServer::new().front_end();
        let worker = Worker::<Recording, UblkFrontEnd>::new(shared, 0, front).unwrap();
        let mut rig = Self { runtime, worker, driver, _file: file };
        let (front, mut cx) = rig.worker.parts();
        assert_eq!(cx.accept(None), Some(0), "there is one worker");
        let device = Arc::new(device);
        front.message(&mut cx, UblkMessage::Serve { device, queue: 0 });
        rig
    }

    /// The tags and results of the commands since the last call.
    fn commands(&mut self) -> Vec<(u16, i32)> {
        let commands = std::mem::take(&mut self.worker.parts().1.host.reactor.commands);
        let fields = commands.into_iter().map(|command| {
            let DriverCommand { key, argument, .. } = command;
            let tag = u16::from_ne_bytes([argument[2], argument[3]]);
            assert_eq!(u32::from(tag), key & 0xffff, "a command is named after its tag");
            (tag, i32::from_ne_bytes(argument[4..8].try_into().unwrap()))
        });
        fields.collect()
    }

    /// The driver has a request for a tag.
    fn request(&mut self, tag: u16, operation: u32, first_sector: u64, sectors: u32) {
        let mut descriptor = [0; 24];
        descriptor[..4].copy_from_slice(&operation.to_ne_bytes());
        descriptor[4..8].copy_from_slice(&sectors.to_ne_bytes());
        descriptor[8..16].copy_from_slice(&first_sector.to_ne_bytes());
        self.driver.write_all_at(&descriptor, u64::from(tag) * 24).unwrap();
        self.end(tag, Ok(0));
    }

    /// A tag's command has ended.
    fn end(&mut self, tag: u16, result: io::Result<usize>) {
        let (front, mut cx) = self.worker.parts();
        front.event(&mut cx, FrontEndEvent::Command { key: u32::from(tag), result });
        self.worker.deliver();
    }

    fn drop_client(&mut self) {
        let (front, mut cx) = self.worker.parts();
        let client = cx.host.clients.of(None)[0];
        front.drop_client(&mut cx, client);
    }

    fn set_stopping(&self, is_stopping: bool) {
        self.runtime.shared().stopping.store(is_stopping, std::sync::atomic::Ordering::Relaxed);
    }

    fn connections(&self) -> u64 {
        self.runtime.status().unwrap().connections
    }

    fn stop(self) {
        drop(self.worker);
        self.runtime.stop(|_| {}).unwrap();
    }
}

const fn data_at(tag: u16) -> u64 {
    0x8000_0000 + ((tag as u64) << 25)
}

#[test]
fn writes_and_reads_of_a_device_are_served_from_the_pool() {
    let mut rig = Rig::new(Mode::WriteBack);
    assert_eq!(rig.commands(), (0..DEPTH).map(|tag| (tag, 0)).collect::<Vec<_>>(), "each fetches");
    // A short write, a long one, and one that is not aligned to lines.
    for (tag, sector, sectors) in [(1u16, 8u64, 8u32), (2, 64, 256), (3, 1001, 99)] {
        let bytes: Vec<u8> = (0..sectors * 512).map(|at| (at / 7) as u8 ^ tag as u8).collect();
        rig.driver.write_all_at(&bytes, data_at(tag)).unwrap();
        rig.request(tag, WRITE, sector, sectors);
        assert_eq!(rig.commands(), [(tag, bytes.len() as i32)]);
        rig.request(0, READ, sector, sectors);
        assert_eq!(rig.commands(), [(0, bytes.len() as i32)]);
        let mut read = vec![0; bytes.len()];
        rig.driver.read_exact_at(&mut read, data_at(0)).unwrap();
        assert!(read == bytes, "sectors {sector} to {}", sector + u64::from(sectors));
    }
    let status = rig.runtime.status().unwrap();
    let requests = &status.volumes[0].requests;
    assert_eq!((requests.reads(), requests.writes(), requests.errors), (3, 3, 0));
    rig.stop();
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let mut rig = Rig::new(Mode::WriteBack);
    rig.commands();
    let sectors = DISK_BYTES / 512;
    let (invalid, not_supported) = (-libc::EINVAL, -libc::EOPNOTSUPP);
    for (operation, first, count, result) in [
        (READ, sectors - 1, 2, invalid),
        (READ, u64::MAX, 1, invalid),
        (WRITE, 0, 0, invalid),
        (4, 0, 8, not_supported),
        (0xff, 0, 8, not_supported),
    ] {
        rig.request(0, operation, first, count);
        assert_eq!(rig.commands(), [(0, result)], "operation {operation} at {first}");
    }
    // The driver has withdrawn a request: there is no data.
    rig.request(1, WRITE, 0, 2048);
    assert_eq!(rig.commands(), [(1, -libc::EIO)]);
    rig.stop();
}

#[test]
fn a_queue_ends_with_its_last_tag() {
    let mut rig = Rig::new(Mode::WriteThrough);
    assert_eq!(rig.connections(), 1);
    for tag in 0..DEPTH {
        assert_eq!(rig.connections(), 1);
        rig.end(tag, Err(io::Error::from_raw_os_error(libc::ENODEV)));
    }
    assert_eq!(rig.connections(), 0);
    rig.stop();
}

#[test]
fn requests_of_a_volume_that_is_removed_fail() {
    let mut rig = Rig::new(Mode::WriteThrough);
    rig.commands();
    // Missed, so it is in flight.
    rig.request(0, READ, 0, 8);
    rig.drop_client();
    rig.request(1, READ, 0, 8);
    assert_eq!(rig.commands(), [(0, -libc::EIO), (1, -libc::EIO)]);
    assert_eq!(rig.connections(), 0);
    rig.stop();
}

/// Regression: a request that came after a stop had begun, and before its client was drained, was
/// refused, and a file system became read-only.
#[test]
fn requests_of_a_server_that_stops_wait() {
    let mut rig = Rig::new(Mode::WriteBack);
    rig.commands();
    rig.request(0, READ, 0, 8);
    rig.set_stopping(true);
    rig.driver.write_all_at(&[7; 4096], data_at(1)).unwrap();
    rig.request(1, WRITE, 64, 8);
    rig.drop_client();
    rig.request(2, READ, 64, 8);
    assert_eq!((rig.commands(), rig.connections()), (vec![], 0));
    // The stop has failed: the queue is served again. The read of a missed line is still in flight.
    rig.set_stopping(false);
    let (front, mut cx) = rig.worker.parts();
    front.tick(&mut cx);
    rig.worker.deliver();
    let answered = rig.commands();
    assert_eq!(answered, [(1, 4096), (2, 4096)]);
    assert_eq!(rig.connections(), 1);
    let mut read = [0; 4096];
    rig.driver.read_exact_at(&mut read, data_at(2)).unwrap();
    assert_eq!(read, [7; 4096]);
    rig.stop();
}

#[test]
fn a_queue_that_drains_answers_what_is_in_flight() {
    let mut rig = Rig::new(Mode::WriteBack);
    rig.commands();
    let (front, mut cx) = rig.worker.parts();
    let client = cx.host.clients.of(None)[0];
    assert_eq!(cx.in_flight(client), 0);
    front.drain_client(&mut cx, client);
    assert_eq!(rig.connections(), 0, "nothing is in flight");
    rig.stop();
}

/// Regression: after a stop that a hanging disk had made fail, the last answer failed all requests.
#[test]
fn a_queue_goes_on_if_a_stop_fails_while_requests_are_in_flight() {
    let mut rig = Rig::new(Mode::WriteBack);
    rig.commands();
    // Missed, and its disk does not answer.
    rig.request(0, READ, 0, 8);
    rig.set_stopping(true);
    let (front, mut cx) = rig.worker.parts();
    let client = cx.host.clients.of(None)[0];
    front.drain_client(&mut cx, client);
    rig.request(1, READ, 64, 8);
    assert_eq!((rig.commands(), rig.connections()), (vec![], 1));
    rig.set_stopping(false);
    let (front, mut cx) = rig.worker.parts();
    front.tick(&mut cx);
    assert_eq!(cx.in_flight(client), 2, "the request that waited is submitted");
    assert_eq!((rig.commands(), rig.connections()), (vec![], 1));
    rig.stop();
}
