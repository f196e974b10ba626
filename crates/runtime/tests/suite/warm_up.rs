//! Warm-ups on a disk that answers when the test says so.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::{Server, in_mode};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{Backend, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, WarmLists, WarmUpState, WarmUpStatus};
use forebay_types::{ByteRange, IoError, Mode, VolumeConfig};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const LINE: u64 = 4096;
const SIZE: u64 = 16 * MIB;

on_both_engines! {
    a_warm_up_reads_the_list_into_the_pool,
    a_warm_up_ends_with_its_volume,
    a_warm_up_ends_when_the_setting_or_the_mode_changes,
    a_warm_up_passes_over_lines_that_clients_use,
    a_disk_that_fails_ends_the_warm_up_and_no_request,
    lists_that_cannot_be_written_stop_nothing,
    lists_that_hang_do_not_prevent_a_stop,
}

/// Warm lists in memory.
#[derive(Default)]
struct Lists {
    lists: Mutex<HashMap<String, Vec<u8>>>,
    writes: Mutex<u64>,
    fails: bool,
}

impl WarmLists for Lists {
    fn read(&self, volume: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let list = self.lists.lock().unwrap().get(volume).cloned();
        assert!(list.as_ref().is_none_or(|list| list.len() as u64 <= bytes_max));
        if self.fails { Err(io::Error::other("no disk")) } else { Ok(list) }
    }

    fn write(&self, volume: &str, list: &[u8]) -> io::Result<()> {
        *self.writes.lock().unwrap() += 1;
        self.lists.lock().unwrap().insert(volume.to_owned(), list.to_owned());
        if self.fails { Err(io::Error::other("no disk")) } else { Ok(()) }
    }

    fn remove(&self, volume: &str) -> io::Result<()> {
        self.lists.lock().unwrap().remove(volume);
        Ok(())
    }
}

/// A disk, and the list of a server that has read every fourth line of it.
fn stopped(engine: Engine) -> (Arc<MemoryBackend>, Arc<Lists>) {
    let disk = Arc::new(MemoryBackend::new(SIZE).unwrap());
    let lists = Arc::new(Lists::default());
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::clone(&lists) as _);
    server.add("disk", Arc::clone(&disk) as _, Mode::WriteThrough);
    let mut client = server.client("disk");
    for line in (0..SIZE / LINE).step_by(4) {
        client.read(line * LINE, LINE).unwrap();
    }
    // Twice, but nothing changes in between.
    server.runtime.save_warm_lists();
    server.runtime.save_warm_lists();
    assert_eq!(*lists.writes.lock().unwrap(), 1);
    assert_eq!(server.status("disk").warm_up.state, WarmUpState::None, "there was none");
    drop(client);
    server.stop();
    (disk, lists)
}

/// A server with these lists, and a volume on this disk behind a gate that is closed for reads.
fn started(engine: Engine, disk: &Arc<MemoryBackend>, lists: &Arc<Lists>) -> (Server, Arc<Gate>) {
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::clone(lists) as _);
    let gate = Gate::new(Arc::clone(disk) as _);
    gate.close(Kinds::READ);
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    (server, gate)
}

fn wait_for_held(gate: &Gate) -> usize {
    wait_until("reads of the warm-up are in flight", PATIENCE, || !gate.held().is_empty());
    gate.held().len()
}

fn wait_for(server: &Server, state: WarmUpState) -> WarmUpStatus {
    wait_until(&format!("{state:?}"), PATIENCE, || server.status("disk").warm_up.state == state);
    server.status("disk").warm_up
}

fn a_warm_up_reads_the_list_into_the_pool(engine: Engine) {
    let (disk, lists) = stopped(engine);
    let (server, gate) = started(engine, &disk, &lists);
    wait_for_held(&gate);
    // A list that is written meanwhile has what is not read yet.
    let list = lists.lists.lock().unwrap()["disk"].clone();
    server.runtime.save_warm_lists();
    assert_eq!(lists.lists.lock().unwrap()["disk"], list);
    gate.open();
    let status = wait_for(&server, WarmUpState::Loaded);
    let lines = SIZE / LINE / 4;
    assert_eq!((status.planned_lines, status.done_lines), (lines, lines));
    let reads = disk.io_count().unwrap().reads;
    let mut client = server.client("disk");
    for line in (0..SIZE / LINE).step_by(4) {
        client.read(line * LINE, LINE).unwrap();
    }
    assert_eq!(disk.io_count().unwrap().reads, reads);
    let engine = server.status("disk").engine;
    assert_eq!((engine.preloaded_lines, engine.preload_used_lines), (lines, lines));
    drop(client);
    server.stop();
}

fn a_warm_up_ends_with_its_volume(engine: Engine) {
    let (disk, lists) = stopped(engine);
    let (server, gate) = started(engine, &disk, &lists);
    assert!(wait_for_held(&gate) <= 64, "few reads at a time");
    let list = lists.lists.lock().unwrap()["disk"].clone();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| server.runtime.volumes().remove("disk", |_| {}));
        wait_until("the volume is being removed", PATIENCE, || {
            removal.is_finished() || server.status("disk").is_closed
        });
        gate.open();
        removal.join().unwrap().unwrap();
    });
    assert!(gate.held().is_empty());
    let is_kept = || lists.lists.lock().unwrap().contains_key("disk");
    wait_until("the list is gone with its volume", PATIENCE, || !is_kept());
    // A stop during a warm-up keeps on the list what was not read yet.
    lists.lists.lock().unwrap().insert("disk".to_owned(), list.clone());
    gate.close(Kinds::READ);
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    wait_for_held(&gate);
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| server.runtime.stop(|_| {}));
        wait_until("the server is stopping", PATIENCE, || stop.is_finished() || !server.accepts());
        gate.open();
        stop.join().unwrap().unwrap();
    });
    assert_eq!(lists.lists.lock().unwrap()["disk"].len(), list.len());
}

fn a_warm_up_ends_when_the_setting_or_the_mode_changes(engine: Engine) {
    for is_bypass in [false, true] {
        let (disk, lists) = stopped(engine);
        let (server, gate) = started(engine, &disk, &lists);
        wait_for_held(&gate);
        let mode = if is_bypass { Mode::Bypass } else { Mode::WriteThrough };
        let new = VolumeConfig { warm: is_bypass, ..in_mode(mode) };
        server.runtime.volumes().change("disk", new, false).unwrap();
        gate.open();
        let status = wait_for(&server, WarmUpState::Cancelled);
        assert!(status.done_lines < status.planned_lines, "{status:?}");
        server.stop();
        // A volume in bypass keeps its list for another start.
        let has_list = lists.lists.lock().unwrap().contains_key("disk");
        assert_eq!(has_list, is_bypass);
    }
}

fn a_warm_up_passes_over_lines_that_clients_use(engine: Engine) {
    let (disk, lists) = stopped(engine);
    let (server, gate) = started(engine, &disk, &lists);
    wait_for_held(&gate);
    // Of the first lines, the warm-up reads one, and clients read and write others.
    let mut client = server.client("disk");
    let read = client.send(NbdCommand::Read, 0, 0, 8 * LINE, &[]);
    let last = SIZE - 4 * LINE;
    assert_eq!(client.write(last, &[7; 4 * LINE as usize]), Ok(()));
    let first = client.send(NbdCommand::Write, 0, 0, 512, &[9; 512]);
    gate.open();
    assert_eq!(client.wait(read).result, Ok(()));
    assert_eq!(client.wait(first).result, Ok(()));
    let status = wait_for(&server, WarmUpState::Loaded);
    assert_eq!(status.done_lines, status.planned_lines);
    assert_eq!(client.read(last, 4 * LINE).unwrap(), [7; 4 * LINE as usize]);
    let mut expected = vec![0; LINE as usize];
    expected[..512].fill(9);
    assert_eq!(client.read(0, LINE).unwrap(), expected);
    let engine = server.status("disk").engine;
    assert!(engine.preloaded_lines < status.planned_lines, "the last line was in the pool");
    drop(client);
    server.stop();
}

fn a_disk_that_fails_ends_the_warm_up_and_no_request(engine: Engine) {
    let (disk, lists) = stopped(engine);
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::clone(&lists) as _);
    let rule = ErrorRule {
        kinds: Kinds::READ,
        range: Some(ByteRange::new(0, SIZE / 2)),
        after: 0,
        rate: 1.0,
        error: IoError::Io,
        seed: 0,
    };
    server.add("disk", Arc::new(ErrorLayer::new(disk, rule)), Mode::WriteThrough);
    wait_for(&server, WarmUpState::Failing);
    let mut client = server.client("disk");
    assert!(client.read(0, LINE).is_err());
    assert_eq!(client.read(SIZE / 2, LINE).unwrap(), [0; LINE as usize]);
    drop(client);
    server.stop();
}

fn lists_that_cannot_be_written_stop_nothing(engine: Engine) {
    let lists = Arc::new(Lists { fails: true, ..Lists::default() });
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::clone(&lists) as _);
    server.add_memory("disk", SIZE, Mode::WriteThrough);
    wait_for(&server, WarmUpState::Unusable);
    server.client("disk").read(0, LINE).unwrap();
    server.runtime.save_warm_lists();
    server.runtime.save_warm_lists();
    assert_eq!(*lists.writes.lock().unwrap(), 2);
    server.stop();
}

fn lists_that_hang_do_not_prevent_a_stop(engine: Engine) {
    let lists = Arc::new(Lists::default());
    let server = Server::start(engine);
    server.runtime.keep_warm_lists(Arc::clone(&lists) as _);
    server.add_memory("disk", SIZE, Mode::WriteThrough);
    wait_for(&server, WarmUpState::None);
    // The list is written while this is held.
    let hanging = lists.lists.lock().unwrap();
    server.stop();
    assert_eq!(*lists.writes.lock().unwrap(), 1);
    drop(hanging);
}
