//! Disks that hang: which operations wait for them, and which do not.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{JOURNAL_BYTES, add, journal_settings, memory, open, volume};
use crate::server::{Server, in_mode, read_backend, settings, while_held};
use forebay_backend::layers::{Gate, Kinds};
use forebay_backend::{Backend, OpenOptions};
use forebay_nbd::{Extent, NbdCommand};
use forebay_runtime::{Engine, JournalSettings, RuntimeConfig, Stall, Timeouts, VolumeError};
use forebay_types::{IoError, Mode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

on_both_engines! {
    a_hanging_block_status_delays_no_other_client,
    excess_block_status_requests_are_answered_as_allocated,
    a_client_that_disconnects_during_a_block_status_is_forgotten,
    requests_of_a_client_that_was_disconnected_are_known_until_they_end,
    a_volume_whose_disk_hangs_is_not_removed_and_nothing_is_lost,
    other_volumes_are_administered_while_a_disk_hangs,
    a_server_whose_disk_hangs_does_not_stop,
    requests_in_flight_are_answered_at_a_stop_however_long_the_disk_takes,
    a_stop_fails_no_request,
    more_flushes_than_may_be_in_flight_wait_for_their_turn,
    a_hanging_journal_is_named_in_the_error,
    a_failure_that_cannot_be_recorded_is_named_and_prevents_no_end,
    an_addition_that_waits_for_its_disk_delays_no_other_operation,
    a_removal_that_waits_for_its_journal_delays_no_other_operation,
}

const MIB: u64 = 1 << 20;

/// One worker, so that all clients share it.
fn server(engine: Engine) -> Server {
    server_with(engine, Timeouts::default())
}

/// A server with a short timeout for disks, for tests in which a disk never responds.
fn impatient_server(engine: Engine) -> Server {
    let (disk, farewell) = (Duration::from_secs(1), Duration::from_millis(100));
    server_with(engine, Timeouts { disk, farewell, ..Timeouts::default() })
}

fn server_with(engine: Engine, timeouts: Timeouts) -> Server {
    let timeouts = Timeouts { handshake: PATIENCE, dirty_age: PATIENCE, ..timeouts };
    let config = RuntimeConfig { workers: 1, journals: 1, ..Server::config(engine) };
    Server::start_over(config, timeouts)
}

fn a_hanging_block_status_delays_no_other_client(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let (mut querier, mut reader) = (server.client("disk"), server.client("disk"));
    assert_eq!(reader.write(0, &[7; 4096]), Ok(()));
    let wanted = querier.block_status(0, 8 * MIB).unwrap();
    assert!(wanted.len() > 1, "a disk in memory knows its holes");
    gate.close_extents();
    let cookie = querier.send(NbdCommand::BlockStatus, 0, 0, 8 * MIB, &[]);
    assert!(gate.wait_extents_held(1, PATIENCE));
    let hits = || server.status("disk").requests.read_hits;
    let before = hits();
    for _ in 0..50 {
        assert_eq!(reader.read(0, 4096), Ok(vec![7; 4096]), "other clients are served");
        assert_eq!(querier.read(0, 4096), Ok(vec![7; 4096]), "the waiting client is served");
    }
    assert_eq!(hits(), before + 100);
    assert!(!querier.has_answer(cookie));
    gate.open();
    assert_eq!(querier.wait(cookie).extents, wanted);
}

fn excess_block_status_requests_are_answered_as_allocated(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    let wanted = client.block_status(0, MIB).unwrap();
    gate.close_extents();
    let ask = |_| client.send(NbdCommand::BlockStatus, 0, 0, MIB, &[]);
    let cookies: Vec<u64> = (0..80).map(ask).collect();
    // One query is in progress and 64 wait; the last is answered at once.
    let unknown = [Extent { len: MIB, hole: false, zero: false }];
    assert_eq!(client.wait(cookies[79]).extents, unknown);
    assert!(!client.has_answer(cookies[0]));
    gate.open();
    assert_eq!(client.wait(cookies[0]).extents, wanted);
    for &cookie in &cookies[1..79] {
        let extents = client.wait(cookie).extents;
        assert!(extents == wanted || extents == unknown);
    }
    assert_eq!(client.block_status(0, MIB), Ok(wanted), "later queries go to the backend");
}

fn a_client_that_disconnects_during_a_block_status_is_forgotten(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    gate.close_extents();
    let mut client = server.client("disk");
    client.send(NbdCommand::BlockStatus, 0, 0, MIB, &[]);
    assert!(gate.wait_extents_held(1, PATIENCE));
    drop(client);
    server.runtime.volumes().remove("disk", |_| {}).unwrap();
    wait_until("the client is removed", PATIENCE, || {
        server.runtime.status().unwrap().connections == 0
    });
    // Another client has its number when the answer arrives.
    server.add_memory("other", MIB, Mode::WriteThrough);
    let mut other = server.client("other");
    gate.open();
    assert_eq!(other.read(0, 4096), Ok(vec![0; 4096]));
    server.stop();
}

fn requests_of_a_client_that_was_disconnected_are_known_until_they_end(engine: Engine) {
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    server.add_gated("other", 16 * MIB, Mode::WriteThrough);
    let has_left = |name| forebay_runtime::has_left_requests(&server.runtime, name).unwrap();
    let mut client = server.client("disk");
    gate.close(Kinds::WRITE);
    client.send(NbdCommand::Write, 0, 0, 4096, &[7; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    assert!(!has_left("disk"), "its client is there");
    let id = forebay_runtime::clients(&server.runtime).unwrap()[0].id;
    forebay_runtime::disconnect(&server.runtime, id).unwrap().unwrap();
    wait_until("the client has left", PATIENCE, || {
        forebay_runtime::clients(&server.runtime).unwrap().is_empty()
    });
    assert!(has_left("disk"));
    assert!(!has_left("other"), "it has no requests");
    gate.open();
    wait_until("the write has ended", PATIENCE, || !has_left("disk"));
}

fn a_volume_whose_disk_hangs_is_not_removed_and_nothing_is_lost(engine: Engine) {
    let server = impatient_server(engine);
    let (gate, disk) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(4096, &[5; 8192]), Ok(()));
    gate.close(Kinds::ALL);
    for _ in 0..2 {
        match server.runtime.volumes().remove("disk", |_| {}) {
            Err(VolumeError::Hanging { name, seconds: 1, dirty_bytes: 8192 }) => {
                assert_eq!(name, "disk");
            }
            result => panic!("{result:?}"),
        }
    }
    assert_eq!(client.read(4096, 8192), Ok(vec![5; 8192]), "its clients are still served");
    assert!(!server.status("disk").is_closed);
    gate.open();
    // On a loaded machine the disk may again take longer than this server's timeout.
    let is_removed = || server.runtime.volumes().remove("disk", |_| {}).is_ok();
    wait_until("the volume is removed", PATIENCE, is_removed);
    assert_eq!(read_backend(&*disk, 4096, 8192), [5; 8192]);
}

fn other_volumes_are_administered_while_a_disk_hangs(engine: Engine) {
    let server = Server::patient(RuntimeConfig { workers: 1, ..Server::config(engine) });
    let (gate, _) = server.add_gated("hangs", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("hangs").write(0, &[5; 4096]), Ok(()));
    gate.close(Kinds::ALL);
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| server.runtime.volumes().remove("hangs", |_| {}));
        assert!(gate.wait_held(1, PATIENCE), "the removal waits for the disk");
        server.add_memory("other", MIB, Mode::WriteBack);
        assert_eq!(server.client("other").write(0, &[1; 4096]), Ok(()));
        server.set_mode("other", Mode::WriteThrough);
        server.set_mode("hangs", Mode::WriteThrough);
        server.runtime.volumes().flush("other", |_| {}).unwrap();
        server.runtime.volumes().remove("other", |_| {}).unwrap();
        assert!(!removing.is_finished());
        gate.open();
        removing.join().unwrap().unwrap();
    });
}

fn a_server_whose_disk_hangs_does_not_stop(engine: Engine) {
    let server = impatient_server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    gate.close(Kinds::READ);
    client.send(NbdCommand::Read, 0, 0, 4096, &[]);
    assert!(gate.wait_held(1, PATIENCE));
    let stopped = server.runtime.stop(|_| {});
    assert!(matches!(stopped, Err(VolumeError::Hanging { .. })), "{stopped:?}");
    gate.open();
    assert_eq!(server.client("disk").read(0, 4096), Ok(vec![0; 4096]), "new clients are accepted");
    wait_until("the server stops", PATIENCE, || server.runtime.stop(|_| {}).is_ok());
}

fn requests_in_flight_are_answered_at_a_stop_however_long_the_disk_takes(engine: Engine) {
    let farewell = Duration::from_millis(50);
    let server = server_with(engine, Timeouts { disk: PATIENCE, farewell, ..Timeouts::default() });
    let (gate, disk) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    gate.close(Kinds::ALL);
    let write = client.send(NbdCommand::Write, 0, 0, 4096, &[1; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.runtime.stop(|_| {}));
        // E-03: a later request is not answered, unless it arrives before the server refuses
        // requests.
        let late = client.send(NbdCommand::Write, 0, 8192, 4096, &[2; 4096]);
        wait_until("no client is accepted any more", PATIENCE, || !server.accepts());
        // Clients are dropped after the farewell, and their sockets closed two seconds later.
        std::thread::sleep(Duration::from_millis(2_500));
        gate.open();
        assert_eq!(client.wait(write).result, Ok(()));
        if let Some(answer) = client.try_wait(late) {
            assert_eq!(answer.result, Ok(()));
        }
        drop(client);
        assert_eq!(stopping.join().unwrap().map_err(|error| error.to_string()), Ok(()));
    });
    assert_eq!(read_backend(&*disk, 0, 4096), [1; 4096]);
}

/// Fails if a request that arrives during the stop is answered with an error, which a client that
/// connects to the next server would take for one of the disk.
fn a_stop_fails_no_request(engine: Engine) {
    for _ in 0..10 {
        let server = Server::start(engine);
        server.add_memory("disk", MIB, Mode::WriteBack);
        let mut client = server.client("disk");
        let mut read = || client.send(NbdCommand::Read, 0, 0, 4096, &[]);
        let mut sent: VecDeque<u64> = (0..64).map(|_| read()).collect();
        let reading = std::thread::spawn(move || {
            while let Some(answer) = client.try_wait(sent.pop_front().unwrap()) {
                assert_eq!(answer.result, Ok(()));
                match client.try_send(NbdCommand::Read, 0, 0, 4096, &[]) {
                    Some(cookie) => sent.push_back(cookie),
                    None => return,
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        server.runtime.stop(|_| {}).unwrap();
        reading.join().unwrap();
    }
}

/// Fails if a flush beyond the limit is answered as if the disk had hung.
fn more_flushes_than_may_be_in_flight_wait_for_their_turn(engine: Engine) {
    const FLUSHES: usize = 40;
    let server = Server::patient(RuntimeConfig { workers: 1, ..Server::config(engine) });
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("disk").write(0, &[5; 4096]), Ok(()));
    gate.close(Kinds::ALL);
    let waiting = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let flush = || {
            let mut is_first = true;
            server.runtime.volumes().flush("disk", |_| {
                waiting.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
            })
        };
        let flushes: Vec<_> = (0..FLUSHES).map(|_| scope.spawn(flush)).collect();
        wait_until("all flushes wait", PATIENCE, || {
            let is_over = flushes.iter().any(|flush| flush.is_finished());
            is_over || waiting.load(Ordering::Relaxed) == FLUSHES
        });
        gate.open();
        flushes.into_iter().for_each(|flush| flush.join().unwrap().unwrap());
    });
    server.stop();
}

fn a_hanging_journal_is_named_in_the_error(engine: Engine) {
    let server = impatient_server(engine);
    let (disk, gate) = (memory(16 * MIB), Gate::new(memory(JOURNAL_BYTES)));
    let journal = open(&server, Arc::clone(&gate) as _);
    add(&server, "v", Arc::clone(&disk) as _, &journal);
    let mut client = server.client("v");
    gate.close(Kinds::ALL);
    client.send(NbdCommand::Write, 0, 4096, 4096, &[2; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    let held = gate.held();
    assert!(held[0].range.len > 4096, "the write is the record: {held:?}");
    let removed = server.runtime.volumes().remove("v", |_| {});
    for refused in [removed, server.runtime.stop(|_| {})] {
        match refused {
            Err(VolumeError::Stalled(Stall::Journal { name, seconds: 1, .. })) => {
                assert_eq!(name, "v");
            }
            result => panic!("{result:?}"),
        }
    }
    gate.open();
    let written = [[0; 4096], [2; 4096]].concat();
    // The write was never answered, but it completes once the journal does.
    let mut reader = server.client("v");
    wait_until("the volume is still served", PATIENCE, || reader.read(0, 8192).unwrap() == written);
    drop(reader);
    server.stop();
    assert_eq!(read_backend(&*disk, 0, 8192), written);
}

fn a_failure_that_cannot_be_recorded_is_named_and_prevents_no_end(engine: Engine) {
    let server = impatient_server(engine);
    let (disk, gate) = (memory(16 * MIB), Gate::new(memory(JOURNAL_BYTES)));
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let settings = JournalSettings {
        on_failure: Box::new(move |_, _, _| match full.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other("/state/x.failed: no space left")),
            false => Ok(()),
        }),
        ..journal_settings(Arc::clone(&gate) as _)
    };
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Arc::clone(&disk) as _, &journal);
    let mut client = server.client("v");
    gate.close(Kinds::ALL);
    client.send(NbdCommand::Write, 0, 4096, 4096, &[2; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    gate.fail_all(IoError::Io);
    gate.open();
    wait_until("the journal waits", PATIENCE, || journal.status().waits_for.is_some());
    let removed = server.runtime.volumes().remove("v", |_| {});
    for refused in [removed, server.runtime.stop(|_| {})] {
        match refused {
            Err(VolumeError::Stalled(Stall::Record { name, reason, .. })) => {
                assert_eq!((&*name, &*reason), ("v", "/state/x.failed: no space left"));
            }
            result => panic!("{result:?}"),
        }
    }
    is_full.store(false, Ordering::SeqCst);
    let written = [[0; 4096], [2; 4096]].concat();
    let mut reader = server.client("v");
    wait_until("the volume is still served", PATIENCE, || reader.read(0, 8192).unwrap() == written);
    wait_until("nothing is waited for", PATIENCE, || journal.status().waits_for.is_none());
    drop(reader);
    server.stop();
    assert_eq!(read_backend(&*disk, 0, 8192), written);
}

/// A server that waits for a disk as long as the test does.
fn patient_server(engine: Engine) -> Server {
    Server::patient(RuntimeConfig { workers: 1, journals: 1, ..Server::config(engine) })
}

/// Fails if an addition holds a lock while it waits for its disk, or if another volume gets the
/// name or the disk meanwhile.
fn an_addition_that_waits_for_its_disk_delays_no_other_operation(engine: Engine) {
    let server = patient_server(engine);
    let journal = open(&server, memory(JOURNAL_BYTES));
    let path = server.directory.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(MIB).unwrap();
    let disk = forebay_backend::open(&path.display().to_string(), &OpenOptions::default()).unwrap();
    let gate = Gate::new(disk);
    gate.close(Kinds::READ);
    std::thread::scope(|scope| {
        // The disk is sampled for the journal.
        let settings_of_v = volume("v", Arc::clone(&gate) as _, &journal);
        let adding = scope.spawn(|| server.runtime.volumes().add(settings_of_v));
        while_held(&gate, || {
            server.administer_another();
            // With the same journal.
            add(&server, "third", memory(MIB), &journal);
            server.runtime.volumes().remove("third", |_| {}).unwrap();
            let try_add = |name: &str, disk: Arc<dyn Backend>| {
                server.runtime.volumes().add(settings(name, disk, Mode::WriteBack))
            };
            let same_name = try_add("v", memory(MIB));
            assert!(matches!(same_name, Err(VolumeError::NameInUse(_))), "{same_name:?}");
            let same_disk = try_add("fourth", Arc::clone(&gate) as _);
            let is_refused = matches!(
                &same_disk,
                Err(VolumeError::BackingInUse { volume, .. }) if volume == "v"
            );
            assert!(is_refused, "{same_disk:?}");
        });
        adding.join().unwrap().unwrap();
    });
    assert_eq!(server.client("v").write(0, &[1; 4096]), Ok(()));
    server.stop();
}

fn a_removal_that_waits_for_its_journal_delays_no_other_operation(engine: Engine) {
    let server = patient_server(engine);
    let gate = Gate::new(memory(JOURNAL_BYTES));
    let journal = open(&server, Arc::clone(&gate) as _);
    add(&server, "v", memory(MIB), &journal);
    gate.close(Kinds::WRITE);
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| server.runtime.volumes().remove("v", |_| {}));
        while_held(&gate, || {
            server.administer_another();
            let changed = server.runtime.volumes().change("v", in_mode(Mode::WriteThrough), false);
            assert!(matches!(changed, Err(VolumeError::Leaving(_))), "{changed:?}");
        });
        removing.join().unwrap().unwrap();
    });
    server.stop();
}
