//! Disks that do not answer: each kind of I/O, over each kind of backing, makes its volume stalled
//! until the disk answers.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::{Server, settings};
use forebay_backend::layers::{Gate, Kinds};
use forebay_backend::{Backend, Description, Io, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::{DiskStall, Engine, IoCause, RuntimeConfig, SlowLog, Timeouts};
use forebay_types::{ByteRange, Mode};
use std::io::{PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    a_read_or_write_that_is_not_answered_stalls_its_volume_alone,
    a_flush_that_is_not_answered_stalls_its_volume,
    a_destage_that_is_not_answered_stalls_its_volume,
    a_prefetch_that_is_not_answered_stalls_its_volume,
}

const MIB: u64 = 1 << 20;

/// A server that counts an I/O as unanswered at once.
fn server(engine: Engine) -> Server {
    let [handshake, payload_pause, disk, dirty_age] = [PATIENCE; 4];
    let stall = Duration::from_millis(1);
    let timeouts =
        Timeouts { handshake, payload_pause, disk, dirty_age, stall, ..Timeouts::default() };
    Server::start_over(RuntimeConfig { workers: 2, ..Server::config(engine) }, timeouts)
}

fn stall(server: &Server, volume: &str) -> Option<DiskStall> {
    let conditions = server.runtime.volumes().conditions();
    let condition = conditions.into_iter().find(|condition| condition.name == volume).unwrap();
    condition.stall
}

/// Waits until the volume is stalled, and returns why.
fn wait_for_stall(server: &Server, volume: &str) -> (&'static str, IoCause, Option<ByteRange>) {
    let mut found = None;
    wait_until("the volume is stalled", PATIENCE, || {
        found = stall(server, volume);
        found.is_some()
    });
    let DiskStall { operation, cause, range, .. } = found.unwrap();
    (operation, cause, range)
}

fn wait_for_answer(server: &Server, volume: &str) {
    wait_until("the disk answers", PATIENCE, || stall(server, volume).is_none());
}

fn a_read_or_write_that_is_not_answered_stalls_its_volume_alone(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    server.add_memory("other", MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    for (command, kinds, offset, operation) in [
        (NbdCommand::Read, Kinds::READ, 0, "read"),
        (NbdCommand::Write, Kinds::WRITE, MIB, "write"),
    ] {
        gate.close(kinds);
        let payload = if operation == "write" { &[1; 4096][..] } else { &[] };
        let cookie = client.send(command, 0, offset, 4096, payload);
        let range = Some(ByteRange::new(offset, 4096));
        assert_eq!(wait_for_stall(&server, "disk"), (operation, IoCause::Demand, range));
        assert_eq!(stall(&server, "other"), None);
        // The request of the client waits as well, and only its own volume shows it.
        let waiting = SlowLog::of(&server.runtime).waiting(Some("disk"));
        let request = &waiting.oldest[0];
        assert_eq!((waiting.total, request.operation, request.range), (1, operation, range));
        assert_eq!(SlowLog::of(&server.runtime).waiting(Some("other")).total, 0);
        gate.open();
        assert_eq!(client.wait(cookie).result, Ok(()));
        wait_for_answer(&server, "disk");
        assert_eq!(SlowLog::of(&server.runtime).waiting(None).total, 0);
    }
    server.stop();
}

fn a_flush_that_is_not_answered_stalls_its_volume(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    gate.close(Kinds::FLUSH);
    let cookie = client.send(NbdCommand::Flush, 0, 0, 0, &[]);
    assert_eq!(wait_for_stall(&server, "disk"), ("flush", IoCause::Demand, None));
    gate.open();
    assert_eq!(client.wait(cookie).result, Ok(()));
    wait_for_answer(&server, "disk");
    server.stop();
}

fn a_destage_that_is_not_answered_stalls_its_volume(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("disk").write(0, &[1; 4096]), Ok(()));
    gate.close(Kinds::WRITE);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| server.runtime.volumes().flush("disk", |_| {}));
        let range = Some(ByteRange::new(0, 4096));
        assert_eq!(wait_for_stall(&server, "disk"), ("write", IoCause::DestageUrgent, range));
        gate.open();
        flushing.join().unwrap().unwrap();
    });
    wait_for_answer(&server, "disk");
    server.stop();
}

fn a_prefetch_that_is_not_answered_stalls_its_volume(engine: Engine) {
    let server = server(engine);
    let gate = Gate::new(Arc::new(MemoryBackend::new(64 * MIB).unwrap()));
    let mut settings = settings("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    settings.config.prefetch = true;
    server.runtime.volumes().add(settings).unwrap();
    let mut client = server.client("disk");
    let mut offsets = (0..64 * MIB).step_by(65536);
    while server.status("disk").engine.prefetched_lines == 0 {
        let offset = offsets.next().expect("a sequential reader is read ahead of");
        assert!(client.read(offset, 65536).is_ok());
    }
    // Some reads find what was read ahead, and one of them has more read ahead.
    wait_until("all reads have ended", PATIENCE, || server.status("disk").disk.in_flight == 0);
    gate.close(Kinds::READ);
    while gate.held().is_empty() {
        let offset = offsets.next().expect("the stream is read ahead of");
        client.send(NbdCommand::Read, 0, offset, 65536, &[]);
        wait_until("the request is begun", PATIENCE, || {
            let status = server.status("disk");
            status.requests.reads() > offset / 65536 || !gate.held().is_empty()
        });
    }
    let (operation, cause, _) = wait_for_stall(&server, "disk");
    assert_eq!((operation, cause), ("read", IoCause::Prefetch));
    gate.open();
    wait_for_answer(&server, "disk");
    server.stop();
}

/// A disk whose file is a pipe: the ring of a worker reads it, and gets nothing until it is filled.
struct Pipe {
    description: Description,
    reader: PipeReader,
}

impl Backend for Pipe {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        io.done.complete(Ok(()));
    }

    fn native_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reader.as_fd())
    }
}

#[test]
fn a_file_that_the_ring_cannot_read_stalls_its_volume() {
    let server = server(Engine::IoUring);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let description = MemoryBackend::new(MIB).unwrap().description().clone();
    server.add("disk", Arc::new(Pipe { description, reader }), Mode::WriteThrough);
    let mut client = server.client("disk");
    let cookie = client.send(NbdCommand::Read, 0, 0, 4096, &[]);
    let range = Some(ByteRange::new(0, 4096));
    assert_eq!(wait_for_stall(&server, "disk"), ("read", IoCause::Demand, range));
    writer.write_all(&[7; 4096]).unwrap();
    assert_eq!(client.wait(cookie).data, [7; 4096]);
    wait_for_answer(&server, "disk");
    server.stop();
}
