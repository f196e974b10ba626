//! What the statistics count: requests, hits, the reasons for misses, patterns of access, the I/Os
//! of the disk by cause, and latencies.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::Server;
use forebay_backend::layers::Kinds;
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, IoCause, LatencyClass, RequestCounters, Uncached};
use forebay_types::{IoError, Mode};

on_both_engines! {
    writes_are_counted_as_requests_by_what_was_in_memory,
    each_read_that_is_no_hit_has_one_reason,
    each_write_that_is_not_deferred_has_one_reason,
    the_pattern_tells_sequential_unaligned_and_small_requests,
    a_refused_request_is_an_error_and_nothing_else,
    latencies_are_counted_once_for_each_request_and_io,
    the_disk_is_busy_while_an_io_hangs,
    statistics_are_those_of_the_status_without_its_curves,
    a_stop_reports_its_end_when_everything_is_counted,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn requests(server: &Server) -> RequestCounters {
    server.status("disk").statistics.requests
}

fn reasons(counts: &[u64]) -> Vec<(Uncached, u64)> {
    let all = Uncached::ALL.into_iter().zip(counts.iter().copied());
    all.filter(|(_, count)| *count > 0).collect()
}

fn writes_are_counted_as_requests_by_what_was_in_memory(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    let classes = |server: &Server| {
        let requests = requests(server);
        (requests.write_hits, requests.write_partial_hits, requests.write_misses)
    };
    // Long payloads are received into slots, short ones are copied.
    for (from, bytes) in [(0, 64 * KIB), (4 * MIB, 8 * KIB)] {
        let before = classes(&server);
        assert_eq!(client.write(from, &vec![1; bytes as usize]), Ok(()));
        assert_eq!(client.write(from, &vec![2; bytes as usize]), Ok(()));
        assert_eq!(client.write(from + bytes / 2, &vec![3; bytes as usize]), Ok(()));
        let after = classes(&server);
        assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (1, 1, 1));
    }
    // Spans regions: one request.
    assert_eq!(client.write(8 * MIB - 32 * KIB, &[4; 64 << 10]), Ok(()));
    let requests = requests(&server);
    assert_eq!((requests.writes(), requests.write_misses), (7, 3));
    assert_eq!(requests.write_bytes, 3 * 64 * KIB + 3 * 8 * KIB + 64 * KIB);
    assert_eq!(reasons(&requests.uncached_writes), []);
    let status = server.status("disk");
    assert_eq!((status.admitted_lines, status.evicted_lines), (24 + 3 + 16, 0));
}

fn each_read_that_is_no_hit_has_one_reason(engine: Engine) {
    let server = Server::start(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let (mut client, mut other) = (server.client("disk"), server.client("disk"));
    assert_eq!(client.write(0, &[1; 8192]), Ok(()));
    assert!(client.read(4096, 8192).is_ok(), "a partial hit");
    assert!(client.read(4096, 8192).is_ok(), "a hit");
    gate.close(Kinds::READ);
    let first = client.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    wait_until("the read is at the disk", PATIENCE, || gate.held().len() == 1);
    let second = other.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    wait_until("the other read waits for it", PATIENCE, || server.status("disk").engine.waits >= 3);
    gate.open();
    assert_eq!((client.wait(first).result, other.wait(second).result), (Ok(()), Ok(())));
    let counted = requests(&server);
    let classes = (counted.read_hits, counted.read_partial_hits, counted.read_misses);
    assert_eq!(classes, (1, 1, 2));
    let expected = [(Uncached::Miss, 2), (Uncached::IoInFlight, 1)];
    assert_eq!(reasons(&counted.uncached_reads), expected);
    server.set_mode("disk", Mode::Bypass);
    assert!(client.read(2 * MIB, 4096).is_ok());
    let counted = requests(&server);
    let expected = [(Uncached::Miss, 2), (Uncached::IoInFlight, 1), (Uncached::Bypass, 1)];
    assert_eq!(reasons(&counted.uncached_reads), expected);
    assert_eq!(counted.reads(), 5);
}

fn each_write_that_is_not_deferred_has_one_reason(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    assert_eq!(client.write_fua(MIB, &[2; 4096]), Ok(()));
    server.set_mode("disk", Mode::WriteThrough);
    assert_eq!(client.write(2 * MIB, &[3; 2 << 20]), Ok(()));
    server.set_mode("disk", Mode::Bypass);
    assert_eq!(client.write(0, &[4; 4096]), Ok(()));
    let counted = requests(&server);
    let expected = [(Uncached::WriteThrough, 1), (Uncached::Fua, 1), (Uncached::Bypass, 1)];
    assert_eq!((counted.writes(), reasons(&counted.uncached_writes)), (4, expected.to_vec()));
    let demand = counted.backend_writes_by_cause[IoCause::Demand as usize];
    let bytes = counted.backend_write_bytes_by_cause[IoCause::Demand as usize];
    assert!(demand >= 3, "{demand}");
    assert_eq!(bytes, 4096 + 2 * MIB + 4096);
    // The change of mode has written the deferred data.
    let destaged = counted.backend_write_bytes() - bytes;
    assert_eq!(destaged, 4096);
}

fn the_pattern_tells_sequential_unaligned_and_small_requests(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let (mut client, mut other) = (server.client("disk"), server.client("disk"));
    for (offset, len) in [(4096, 4096), (8192, 512), (8704, 512), (MIB, 8192)] {
        assert_eq!(client.write(offset, &vec![1; len]), Ok(()));
        // Another connection, and reads between writes, do not interrupt a sequence.
        assert!(other.read(offset, len as u64).is_ok());
        assert!(client.read(15 * MIB, 4096).is_ok());
    }
    let counted = requests(&server);
    assert_eq!((counted.sequential_writes, counted.sequential_reads), (2, 2));
    assert_eq!(counted.unaligned, 4);
    let sizes = |counts: &[u64]| counts[..6].to_vec();
    assert_eq!(sizes(&counted.write_sizes), [2, 0, 0, 1, 1, 0]);
    assert_eq!(sizes(&counted.read_sizes), [2, 0, 0, 5, 1, 0]);
    assert_eq!((counted.writes(), counted.reads()), (4, 8));
}

fn a_refused_request_is_an_error_and_nothing_else(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(MIB, &[1; 4096]), Err(IoError::NoSpace));
    let counted = requests(&server);
    assert_eq!((counted.errors, counted.refused), (1, 1));
    assert_eq!(RequestCounters { errors: 0, refused: 0, ..counted }, RequestCounters::default());
}

fn latencies_are_counted_once_for_each_request_and_io(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    for n in 0..10 {
        assert_eq!(client.write(n * 4096, &[1; 4096]), Ok(()));
        assert!(client.read(n * 4096, 4096).is_ok());
    }
    assert!(client.read(8 * MIB, 4096).is_ok());
    assert_eq!(client.flush(), Ok(()));
    let trim = client.send(NbdCommand::Trim, 0, 0, 4096, &[]);
    assert_eq!(client.wait(trim).result, Ok(()));
    server.set_mode("disk", Mode::WriteThrough);
    assert_eq!(client.write(MIB, &[1; 4096]), Ok(()));
    let is_complete = || {
        let status = server.status("disk");
        let count = |class| status.latencies.of(class).count();
        let requests = [
            (LatencyClass::ReadHit, 10),
            (LatencyClass::ReadMiss, 1),
            (LatencyClass::WriteMemory, 10),
            (LatencyClass::WriteDisk, 1),
            (LatencyClass::Flush, 1),
            (LatencyClass::Trim, 1),
        ];
        let ios = [
            (LatencyClass::DiskRead, status.requests.backend_reads()),
            (LatencyClass::DiskWrite, status.requests.backend_writes()),
            (LatencyClass::DiskFlush, status.requests.backend_flushes),
            (LatencyClass::DiskErase, status.requests.backend_erases),
        ];
        requests.iter().chain(&ios).all(|&(class, expected)| count(class) == expected)
    };
    // A worker records the latencies of a turn after it has answered.
    wait_until("each request and I/O has one latency", PATIENCE, is_complete);
    let mean_us = server.status("disk").latencies.of(LatencyClass::ReadHit).mean_us();
    assert!(mean_us > 0.0 && mean_us < PATIENCE.as_micros() as f64, "{mean_us}");
}

fn the_disk_is_busy_while_an_io_hangs(engine: Engine) {
    let server = Server::start(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    assert_eq!(server.status("disk").disk.in_flight, 0);
    gate.close(Kinds::READ);
    let read = client.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    wait_until("the read is at the disk", PATIENCE, || gate.held().len() == 1);
    let begun = server.status("disk").disk;
    assert_eq!(begun.in_flight, 1);
    wait_until("time passes", PATIENCE, || server.status("disk").disk.busy > begun.busy);
    gate.open();
    assert_eq!(client.wait(read).result, Ok(()));
    let ended = server.status("disk").disk;
    assert_eq!(ended.in_flight, 0);
    wait_until("time passes", PATIENCE, || server.status("disk").disk.at > ended.at);
    assert_eq!(server.status("disk").disk.busy, ended.busy);
}

fn statistics_are_those_of_the_status_without_its_curves(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    server.add_memory("other", 16 * MIB, Mode::WriteThrough);
    for name in ["disk", "other"] {
        let mut client = server.client(name);
        assert_eq!(client.write(0, &[1; 8192]), Ok(()));
        assert!(client.read(4096, 8192).is_ok());
    }
    // Writes that are not deferred have ended, and so has the destage.
    server.runtime.volumes().flush("disk", |_| {}).unwrap();
    let (status, short) = (server.runtime.status(), server.runtime.status_without_curves());
    let (status, short) = (status.unwrap().volumes, short.unwrap().volumes);
    let statistics = server.runtime.volumes().statistics();
    assert_eq!((status.len(), short.len(), statistics.len()), (2, 2, 2));
    for ((full, short), counted) in status.iter().zip(&short).zip(&statistics) {
        assert!(full.curve.is_some() && short.curve.is_none(), "{}", full.name);
        assert_eq!((full.id, &full.name), (counted.id, &counted.name));
        assert_eq!(full.statistics, counted.statistics);
        assert_eq!(short.statistics, counted.statistics);
        assert!(counted.statistics.requests.reads() == 1 && counted.disk_in_flight == 0);
    }
}

fn a_stop_reports_its_end_when_everything_is_counted(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    server.add_memory("gone", 16 * MIB, Mode::WriteBack);
    let written = |name: &str| {
        let all = server.runtime.volumes().statistics();
        let found = all.into_iter().find(|volume| volume.name == name);
        found.map(|volume| volume.statistics.requests.backend_write_bytes())
    };
    for name in ["disk", "gone"] {
        assert_eq!(server.client(name).write(0, &[1; 8192]), Ok(()));
    }
    let mut last = None;
    server.runtime.volumes().remove("gone", |left| last = Some((left, written("gone")))).unwrap();
    assert_eq!(last, Some((0, Some(8192))));
    server.runtime.stop(|left| last = Some((left, written("disk")))).unwrap();
    assert_eq!(last, Some((0, Some(8192))));
    assert_eq!(written("disk"), None);
}
