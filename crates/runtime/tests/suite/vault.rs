//! Volumes that a vault protects from a power loss.
//!
//! A power loss is simulated by a copy of disk and vault after a dump, and a second runtime over
//! the copies: data that only the first runtime's memory held is gone.

use crate::common::client::PATIENCE;
use crate::common::{before_lines_are_old, wait_until};
use crate::journal::{
    MIB, block, check, check_disk, copy, journal_settings, memory, start, write_some,
};
use crate::server::{Server, in_mode, read_backend, settings, while_held};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{AlignedBuffer, Backend, Blocking, MemoryBackend};
use forebay_runtime::{
    Engine, ShareError, Vault, VaultError, VaultPhase, VaultSettings, VolumeError, VolumeSettings,
    VolumeVault, vault_bytes_for,
};
use forebay_types::{Fault, IoError, Mode, Protection, VolumeId, WriteShare};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The ids of the volumes of a server: they are assigned in order.
const ALL: [VolumeId; 2] = [VolumeId(0), VolumeId(1)];
const VAULT_BYTES: u64 = 96 * MIB;

fn vault_settings(backend: Arc<dyn Backend>) -> VaultSettings {
    VaultSettings { backend, is_void: Box::new(|_| Ok(false)), on_void: Box::new(|_, _| Ok(())) }
}

fn open(server: &Server, backend: Arc<dyn Backend>) -> Arc<Vault> {
    server.runtime.open_vault(vault_settings(backend)).unwrap()
}

fn add(server: &Server, name: &str, disk: Arc<dyn Backend>, vault: &Arc<Vault>) {
    try_add(server, name, disk, vault, false).unwrap();
}

/// A server of the volume "v" with a vault.
fn serve(
    engine: Engine,
    disk: &Arc<impl Backend + 'static>,
    device: &Arc<impl Backend + 'static>,
) -> (Server, Arc<Vault>) {
    let server = start(engine);
    let vault = open(&server, Arc::clone(device) as _);
    add(&server, "v", Arc::clone(disk) as _, &vault);
    (server, vault)
}

fn try_add(
    server: &Server,
    name: &str,
    disk: Arc<dyn Backend>,
    vault: &Arc<Vault>,
    accept_loss: bool,
) -> Result<(), VolumeError> {
    let (vault, identity) = (Arc::clone(vault), [name.as_bytes()[0]; 32]);
    let vault = Some(VolumeVault { vault, identity, accept_loss });
    let settings = VolumeSettings { vault, ..settings(name, disk, Mode::WriteBack) };
    server.runtime.volumes().add(settings).map(drop)
}

on_both_engines! {
    every_acknowledged_write_survives_a_power_loss_after_a_dump,
    parts_of_lines_and_long_writes_are_dumped,
    a_cancelled_dump_is_never_loaded,
    a_volume_that_is_not_served_stays_in_the_vault,
    a_load_that_fails_is_undone_and_can_be_repeated,
    a_load_that_a_disk_refuses_is_undone_by_a_removal,
    a_volume_with_the_number_of_a_dumped_one_is_dumped,
    a_drill_saves_everything_and_changes_nothing,
}

fn every_acknowledged_write_survives_a_power_loss_after_a_dump(engine: Engine) {
    before_lines_are_old(|| dump_and_load_every_acknowledged_write(engine));
}

fn dump_and_load_every_acknowledged_write(engine: Engine) {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let (first, vault) = serve(engine, &disk, &device);
    let mut written = write_some(&first, "v", 0..300);
    assert_eq!(vault.dirty_bytes(&ALL), 300 * 4096);
    let report = vault.dump(&ALL, None).unwrap();
    assert_eq!((report.bytes, report.verified), (300 * 4096, true), "{report}");
    assert!(report.unflushed.is_empty());
    assert!(!vault.is_ready() && vault.measured_bytes_per_second().is_none());
    assert_eq!(vault.dump(&ALL, None).unwrap(), report, "the dump is not repeated");
    let refused = vault.measure().unwrap_err();
    assert!(matches!(refused, VaultError::Dumping(_)), "{refused}");
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    first.stop();

    let second = start(engine);
    let vault = open(&second, Arc::clone(&device_then) as _);
    let status = vault.status();
    assert_eq!((status.phase, status.is_whole), (VaultPhase::Holding, true));
    assert_eq!(status.held, [("v".to_owned(), 300 * 4096)]);
    let refused = vault.dump(&ALL, None).unwrap_err();
    assert!(matches!(refused, VaultError::Occupied(_)), "{refused}");
    add(&second, "v", Arc::clone(&disk_then) as _, &vault);
    // Before a client can connect, the disk has everything, and the vault is empty.
    check_disk(&disk_then, &written);
    assert!(vault.is_ready());
    check(&second, "v", &written);
    written.append(&mut write_some(&second, "v", 5000..5200));
    vault.dump(&ALL, None).unwrap();
    let (disk_later, device_later) = (copy(&*disk_then), copy(&*device_then));
    second.stop();

    let (third, vault) = serve(engine, &disk_later, &device_later);
    check(&third, "v", &written);
    third.stop();
    assert_eq!(Arc::strong_count(&vault), 1, "a stopped runtime releases the device");
}

fn parts_of_lines_and_long_writes_are_dumped(engine: Engine) {
    before_lines_are_old(|| dump_and_load_parts_of_lines_and_long_writes(engine));
}

fn dump_and_load_parts_of_lines_and_long_writes(engine: Engine) {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    Blocking::new(&*disk).write(8 * MIB, &AlignedBuffer::from(&[9; 8192][..]), true).unwrap();
    let (first, vault) = serve(engine, &disk, &device);
    let mut client = first.client("v");
    let long: Vec<u8> = (0..(2 * MIB as usize + 1024)).map(|at| (at / 512 % 251) as u8).collect();
    client.write(MIB - 512, &long).unwrap();
    for sector in [1, 3, 4, 9] {
        client.write(8 * MIB + sector * 512, &[sector as u8; 512]).unwrap();
    }
    let report = vault.dump(&ALL, None).unwrap();
    assert_eq!(report.bytes, long.len() as u64 + 4 * 512, "only dirty sectors");
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    first.stop();
    let (second, _vault) = serve(engine, &disk_then, &device_then);
    let mut client = second.client("v");
    assert!(client.read(MIB - 512, long.len() as u64).unwrap() == long);
    let mut expected = vec![9; 8192];
    for sector in [1, 3, 4, 9] {
        expected[sector * 512..][..512].fill(sector as u8);
    }
    assert_eq!(client.read(8 * MIB, 8192).unwrap(), expected);
    drop(client);
    second.stop();
}

fn a_cancelled_dump_is_never_loaded(engine: Engine) {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let (server, vault) = serve(engine, &disk, &device);
    write_some(&server, "v", 0..100);
    vault.dump(&ALL, None).unwrap();
    vault.empty().unwrap();
    assert!(vault.is_ready());
    server.client("v").write_fua(0, &block(777)).unwrap();
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    server.stop();
    let again = start(engine);
    let vault = open(&again, device_then);
    assert!(vault.status().held.is_empty() && vault.is_ready());
    add(&again, "v", disk_then, &vault);
    assert_eq!(again.client("v").read(0, 4096).unwrap(), block(777));
    again.stop();
}

fn a_volume_that_is_not_served_stays_in_the_vault(engine: Engine) {
    let (a, b, device) = (memory(16 * MIB), memory(16 * MIB), memory(VAULT_BYTES));
    let first = start(engine);
    let vault = open(&first, Arc::clone(&device) as _);
    add(&first, "a", Arc::clone(&a) as _, &vault);
    add(&first, "b", Arc::clone(&b) as _, &vault);
    let in_a = write_some(&first, "a", 0..50);
    let in_b = write_some(&first, "b", 50..90);
    assert_eq!(vault.dump(&ALL, None).unwrap().bytes, 90 * 4096);
    let (a_then, b_then, device_then) = (copy(&*a), copy(&*b), copy(&*device));
    first.stop();
    let second = start(engine);
    let vault = open(&second, Arc::clone(&device_then) as _);
    add(&second, "a", Arc::clone(&a_then) as _, &vault);
    check(&second, "a", &in_a);
    let status = vault.status();
    assert_eq!(status.held, [("b".to_owned(), 40 * 4096)]);
    assert_eq!((status.phase, vault.measured_bytes_per_second()), (VaultPhase::Holding, None));
    // Writes to "a" from now on are not undone when "b" is loaded.
    second.client("a").write(0, &block(888)).unwrap();
    second.stop();
    let third = start(engine);
    let vault = open(&third, device_then);
    let error = try_add(&third, "b", memory(8 * MIB), &vault, false).unwrap_err();
    assert!(matches!(error, VolumeError::Vault(VaultError::OtherDisk { .. })), "{error}");
    add(&third, "a", a_then, &vault);
    assert_eq!(third.client("a").read(0, 4096).unwrap(), block(888));
    add(&third, "b", b_then, &vault);
    check(&third, "b", &in_b);
    assert!(vault.is_ready());
    third.stop();
}

/// A dump of "v": the disk and the vault as a power loss leaves them, and the data that was written
/// to "v".
fn dumped(engine: Engine) -> (Arc<MemoryBackend>, Arc<MemoryBackend>, BTreeMap<u64, Vec<u8>>) {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let (server, vault) = serve(engine, &disk, &device);
    let written = write_some(&server, "v", 0..100);
    vault.dump(&ALL, None).unwrap();
    let then = (copy(&*disk), copy(&*device));
    server.stop();
    (then.0, then.1, written)
}

/// Adds "v" while its disk or its vault fails all I/O of these kinds.
fn add_while_failing(
    server: &Server,
    disk: &Arc<dyn Backend>,
    vault: &Arc<Vault>,
    (gate, kinds): (&Gate, Kinds),
) -> VolumeError {
    gate.close(kinds);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| try_add(server, "v", Arc::clone(disk), vault, false));
        while !adding.is_finished() {
            gate.fail_all(IoError::Io);
            std::thread::yield_now();
        }
        gate.open();
        adding.join().unwrap().unwrap_err()
    })
}

fn a_load_that_fails_is_undone_and_can_be_repeated(engine: Engine) {
    let (disk, device, written) = dumped(engine);
    let server = start(engine);
    let gate = Gate::new(device as _);
    let vault = open(&server, Arc::clone(&gate) as _);
    let disk: Arc<dyn Backend> = disk;
    let error = add_while_failing(&server, &disk, &vault, (&*gate, Kinds::READ));
    assert!(matches!(error, VolumeError::Load { .. }), "{error}");
    assert!(server.runtime.status().unwrap().volumes.is_empty());
    assert_eq!(vault.status().held.len(), 1, "the dump is gone");
    add(&server, "v", disk, &vault);
    check(&server, "v", &written);
    server.stop();
}

fn a_load_that_a_disk_refuses_is_undone_by_a_removal(engine: Engine) {
    let (disk, device, written) = dumped(engine);
    let server = start(engine);
    let vault = open(&server, device);
    let gate = Gate::new(disk as _);
    let disk: Arc<dyn Backend> = Arc::clone(&gate) as _;
    let error = add_while_failing(&server, &disk, &vault, (&*gate, Kinds::WRITE));
    assert!(matches!(error, VolumeError::Dirty { .. }), "{error}");
    // Its data is in the pool, so it stays.
    let again = try_add(&server, "v", Arc::clone(&disk), &vault, false).unwrap_err();
    assert!(matches!(again, VolumeError::HalfAdded(_)), "{again}");
    assert!(server.status("v").half_added);
    server.runtime.volumes().remove("v", |_| {}).unwrap();
    assert_eq!(vault.status().held.len(), 1, "the dump is gone");
    add(&server, "v", disk, &vault);
    check(&server, "v", &written);
    server.stop();
}

/// Numbers of removed volumes are given to new ones.
fn a_volume_with_the_number_of_a_dumped_one_is_dumped(engine: Engine) {
    before_lines_are_old(|| dump_twice_under_one_number(engine));
}

fn dump_twice_under_one_number(engine: Engine) {
    let device = memory(VAULT_BYTES);
    let (server, vault) = serve(engine, &memory(16 * MIB), &device);
    drop(write_some(&server, "v", 0..50));
    assert_eq!(vault.dump(&ALL, None).unwrap().bytes, 50 * 4096);
    server.runtime.volumes().remove("v", |_| {}).unwrap();
    add(&server, "w", memory(16 * MIB), &vault);
    assert_eq!(server.status("w").id, VolumeId(0));
    drop(write_some(&server, "w", 0..70));
    assert_eq!(vault.dump(&ALL, None).unwrap().bytes, 70 * 4096);
    server.stop();
}

fn a_drill_saves_everything_and_changes_nothing(engine: Engine) {
    before_lines_are_old(|| drill_and_compare(engine));
}

fn drill_and_compare(engine: Engine) {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let (server, vault) = serve(engine, &disk, &device);
    let written = write_some(&server, "v", 0..200);
    let report = vault.drill(&ALL, MIB).unwrap();
    assert!(!report.is_test && report.verified && report.unflushed.is_empty(), "{report:?}");
    assert_eq!(report.bytes, report.same_bytes + report.changed_bytes);
    assert_eq!((report.dirty_bytes, report.bytes), (200 * 4096, 200 * 4096));
    assert!(vault.is_ready());
    check(&server, "v", &written);
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    server.stop();
    let again = start(engine);
    let vault = open(&again, device_then);
    assert!(vault.status().held.is_empty(), "a drill leaves the vault empty");
    add(&again, "v", disk_then, &vault);
    again.stop();
}

#[test]
fn a_drill_without_dirty_data_writes_test_data() {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let (server, vault) = serve(Engine::Epoll, &disk, &device);
    let most = vault.dirty_bytes_max();
    assert!(vault_bytes_for(most) <= VAULT_BYTES && vault_bytes_for(most + 1) > VAULT_BYTES);
    let report = vault.drill(&ALL, most).unwrap();
    assert!(report.is_test && report.verified, "{report:?}");
    assert_eq!((report.dirty_bytes, report.bytes), (0, most / 4096 * 4096));
    assert_eq!((report.same_bytes, report.changed_bytes), (0, 0));
    assert!(vault.is_ready());
    let device_then = copy(&*device);
    server.stop();
    let again = start(Engine::Epoll);
    assert!(open(&again, device_then).status().held.is_empty(), "the vault stays empty");
    again.stop();
}

#[test]
fn a_drill_does_not_keep_the_battery_waiting_for_a_disk() {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let gate = Gate::new(Arc::clone(&disk) as _);
    let (server, vault) = serve(Engine::Epoll, &gate, &device);
    wait_until_measured(&vault);
    // Nothing is dirty, but the disk has a write to flush.
    server.runtime.volumes().change("v", in_mode(Mode::WriteThrough), false).unwrap();
    write_some(&server, "v", 0..1);
    gate.close(Kinds::FLUSH);
    let drilled = Arc::clone(&vault);
    let drill = std::thread::spawn(move || drilled.drill(&ALL[..1], 0));
    assert!(gate.wait_held(1, PATIENCE));
    vault.set_on_battery(true);
    assert!(gate.wait_held(1, PATIENCE), "the disk still hangs");
    let error = drill.join().unwrap().unwrap_err();
    assert!(matches!(error, VaultError::CalledOff(_)), "{error}");
    gate.open();
    server.stop();
}

/// Regression: the thread that monitors the UPS waited for the measurement to end.
#[test]
fn a_vault_that_hangs_does_not_keep_the_battery_waiting() {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let gate = Gate::new(Arc::clone(&device) as _);
    let (server, vault) = serve(Engine::Epoll, &disk, &gate);
    wait_until_measured(&vault);
    gate.close(Kinds::WRITE);
    let measured = Arc::clone(&vault);
    let measurement = std::thread::spawn(move || measured.measure());
    assert!(gate.wait_held(1, PATIENCE));
    let (told, tells) = std::sync::mpsc::channel();
    let battery = Arc::clone(&vault);
    std::thread::spawn(move || {
        battery.set_on_battery(true);
        told.send(())
    });
    // The held write ends by itself after 30 seconds.
    let is_told = tells.recv_timeout(std::time::Duration::from_secs(20)).is_ok();
    gate.open();
    assert!(is_told, "it waited for the vault");
    let error = measurement.join().unwrap().unwrap_err();
    assert!(matches!(error, VaultError::CalledOff(_)), "{error}");
    // Back on mains, it is measured as before.
    vault.set_on_battery(false);
    vault.measure().unwrap();
    server.stop();
}

#[test]
fn an_unfinished_dump_is_refused_and_loaded_on_request() {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let first = start(Engine::Epoll);
    let gate = Gate::new(Arc::clone(&device) as _);
    let vault = open(&first, Arc::clone(&gate) as _);
    add(&first, "v", Arc::clone(&disk) as _, &vault);
    let written = write_some(&first, "v", 0..600);
    wait_until_measured(&vault);
    let dumped = Arc::clone(&vault);
    gate.close(Kinds::FLUSH);
    let dumping = std::thread::spawn(move || dumped.dump(&ALL, None));
    assert!(gate.wait_held(1, PATIENCE));
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    gate.open();
    dumping.join().unwrap().unwrap();
    first.stop();

    let second = start(Engine::Epoll);
    let vault = open(&second, device_then);
    assert!(!vault.status().is_whole);
    let error = try_add(&second, "v", Arc::clone(&disk_then) as _, &vault, false).unwrap_err();
    let refused = matches!(error, VolumeError::Vault(VaultError::Incomplete { .. }));
    assert!(refused && error.explained().contains("accept-loss=yes"), "{error}");
    try_add(&second, "v", disk_then, &vault, true).unwrap();
    check(&second, "v", &written);
    second.stop();
}

/// A disk on which each block differs from the others.
fn filled(bytes: u64) -> Arc<MemoryBackend> {
    let disk = memory(bytes);
    for offset in (0..bytes).step_by(4096) {
        let bytes = AlignedBuffer::from(&block(offset + 1)[..]);
        Blocking::new(&*disk).write(offset, &bytes, false).unwrap();
    }
    disk
}

/// Adds the volume "v" under a UPS.
fn add_under_ups(
    server: &Server,
    disk: Arc<dyn Backend>,
    vault: &Arc<Vault>,
    identity: u8,
    accept_disk: bool,
) -> Result<(), VolumeError> {
    let (vault, identity) = (Arc::clone(vault), [identity; 32]);
    let vault = Some(VolumeVault { vault, identity, accept_loss: false });
    let mut fixed = settings("v", disk, Mode::WriteBack);
    fixed.config.protection = Protection::Ups;
    let settings = VolumeSettings { vault, accept_disk, ..fixed };
    server.runtime.volumes().add(settings).map(drop)
}

#[test]
fn a_dump_is_loaded_only_to_the_disk_it_belongs_to() {
    before_lines_are_old(load_only_to_the_same_disk);
}

fn load_only_to_the_same_disk() {
    let (disk, device) = (filled(16 * MIB), memory(VAULT_BYTES));
    let first = start(Engine::Epoll);
    let vault = open(&first, Arc::clone(&device) as _);
    add_under_ups(&first, Arc::clone(&disk) as _, &vault, 1, false).unwrap();
    // Samples of blocks that were written since do not count.
    let mut client = first.client("v");
    let early: Vec<u64> = (0..4096).step_by(3).map(|line| line * 4096).collect();
    early.iter().for_each(|&offset| client.write(offset, &block(offset + 7)).unwrap());
    client.call(forebay_nbd::NbdCommand::Trim, 0, 1 << 20, 256 << 10).result.unwrap();
    drop(client);
    first.runtime.ups().set_limit(64 * MIB);
    first.runtime.volumes().flush("v", |_| ()).unwrap();
    let written = write_some(&first, "v", 0..200);
    assert_eq!(vault.dump(&ALL, None).unwrap().bytes, 200 * 4096);
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    first.stop();

    let load = |disk: &Arc<MemoryBackend>, identity: u8, accept_disk: bool| {
        let (server, device) = (start(Engine::Epoll), copy(&*device_then));
        let vault = open(&server, Arc::clone(&device) as _);
        let before = copy(&**disk);
        let added = add_under_ups(&server, Arc::clone(disk) as _, &vault, identity, accept_disk);
        match &added {
            Ok(()) => check(&server, "v", &written),
            Err(_) => {
                let whole = |of: &MemoryBackend| read_backend(of, 0, of.description().size_bytes());
                assert!(whole(disk) == whole(&before), "the disk was written");
                assert_eq!(vault.status().held.len(), 1, "the dump is gone");
            }
        }
        server.stop();
        added.map_err(|error| error.explained())
    };
    load(&copy(&*disk_then), 1, false).unwrap();
    // Under another name, the disk is recognised by its content.
    load(&copy(&*disk_then), 2, false).unwrap();
    let backup = memory(16 * MIB);
    let other_size = memory(32 * MIB);
    for (wrong, part) in [(&backup, "samples differ"), (&other_size, "larger, ")] {
        let refused = load(wrong, 1, false).unwrap_err();
        for part in [part, "volume 'v'", "accept the changed disk", "write its contents"] {
            assert!(refused.contains(part), "{refused}");
        }
    }
    load(&backup, 1, true).unwrap();
}

#[test]
fn a_load_that_waits_for_a_device_delays_no_other_operation() {
    before_lines_are_old(load_from_devices_that_hang);
}

fn load_from_devices_that_hang() {
    let (disk, device) = (filled(16 * MIB), memory(VAULT_BYTES));
    let first = start(Engine::Epoll);
    let vault = open(&first, Arc::clone(&device) as _);
    add_under_ups(&first, Arc::clone(&disk) as _, &vault, 1, false).unwrap();
    first.runtime.ups().set_limit(64 * MIB);
    let written = write_some(&first, "v", 0..50);
    assert_eq!(vault.dump(&ALL, None).unwrap().bytes, 50 * 4096);
    let (disk_then, device_then) = (copy(&*disk), copy(&*device));
    first.stop();
    // The comparison of the disk, its flush, and the removal from the dump.
    for (of_vault, kinds) in [(false, Kinds::READ), (false, Kinds::FLUSH), (true, Kinds::WRITE)] {
        let server = start(Engine::Epoll);
        let (disk, device) = (Gate::new(copy(&*disk_then)), Gate::new(copy(&*device_then)));
        let vault = open(&server, Arc::clone(&device) as _);
        let gate = if of_vault { &device } else { &disk };
        gate.close(kinds);
        std::thread::scope(|scope| {
            let add = || add_under_ups(&server, Arc::clone(&disk) as _, &vault, 1, false);
            let adding = scope.spawn(add);
            while_held(gate, || {
                server.administer_another();
                assert_eq!(vault.status().phase, VaultPhase::Holding, "{of_vault} {kinds:?}");
            });
            adding.join().unwrap().unwrap();
        });
        check(&server, "v", &written);
        server.stop();
    }
}

#[test]
fn a_device_that_is_no_vault_is_refused_and_not_changed() {
    let server = start(Engine::Epoll);
    let refuse = |backend: Arc<dyn Backend>| {
        server.runtime.open_vault(vault_settings(backend)).err().unwrap().explained()
    };
    assert!(refuse(memory(MIB)).contains("it needs"));
    let data = memory(VAULT_BYTES);
    Blocking::new(&*data).write(65536, &AlignedBuffer::from(&[1; 4096][..]), true).unwrap();
    assert!(refuse(Arc::clone(&data) as _).contains("does not hold a vault"));
    assert_eq!(read_backend(&*data, 65536, 4096), [1; 4096]);
    // A journal is no vault, and a vault is no journal.
    let log = memory(VAULT_BYTES);
    let journal = |backend: Arc<dyn Backend>| {
        server.runtime.volumes().protectors().open_journal(journal_settings(backend))
    };
    journal(Arc::clone(&log) as _).unwrap();
    assert!(refuse(copy(&*log)).contains("holds a journal, not a vault"));
    let device = memory(VAULT_BYTES);
    let vault = open(&server, Arc::clone(&device) as _);
    wait_until_measured(&vault);
    let error = journal(copy(&*device)).err().unwrap().explained();
    assert!(error.contains("holds a vault, not a journal"), "{error}");
    // Another version, and damage.
    for (byte, part) in [(8, "format 9"), (40, "damaged superblock")] {
        let twin = copy(&*device);
        for at in [0, 65536] {
            let mut head = AlignedBuffer::from(&*read_backend(&*twin, at, 4096));
            if head[0] != 0 {
                head[byte] = 9;
                Blocking::new(&*twin).write(at, &head, true).unwrap();
            }
        }
        assert!(refuse(twin).contains(part), "{part}");
    }
    server.stop();
}

#[test]
fn a_vault_that_cannot_be_emptied_is_recorded_as_void_and_never_loaded() {
    let (disk, device) = (memory(16 * MIB), memory(VAULT_BYTES));
    let server = start(Engine::Epoll);
    let gate = Gate::new(Arc::clone(&device) as _);
    let recorded = Arc::new(AtomicBool::new(false));
    let is_recorded = Arc::clone(&recorded);
    let settings = VaultSettings {
        on_void: Box::new(move |_, error| {
            assert_eq!(error, IoError::Io);
            if is_recorded.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            Err(std::io::Error::other("the state directory is full"))
        }),
        ..vault_settings(Arc::clone(&gate) as _)
    };
    let vault = server.runtime.open_vault(settings).unwrap();
    add(&server, "v", Arc::clone(&disk) as _, &vault);
    write_some(&server, "v", 0..10);
    vault.dump(&ALL, None).unwrap();
    gate.close(Kinds::WRITE);
    for is_recorded in [false, true] {
        let emptied = Arc::clone(&vault);
        let emptying = std::thread::spawn(move || emptied.empty());
        // Both copies of the superblock are tried.
        for _ in 0..2 {
            assert!(gate.wait_held(1, PATIENCE));
            gate.fail_all(IoError::Io);
        }
        assert_eq!(emptying.join().unwrap().is_ok(), is_recorded);
    }
    assert_eq!(vault.status().phase, VaultPhase::Failed(IoError::Io));
    let void = VaultSettings { is_void: Box::new(|_| Ok(true)), ..vault_settings(copy(&*device)) };
    let error = start(Engine::Epoll).runtime.open_vault(void).err().unwrap();
    assert!(matches!(error, VaultError::Void { .. }), "{error}");
    // Whether its dump is void cannot be read.
    let unknown = VaultSettings {
        is_void: Box::new(|_| Err(std::io::Error::other("input/output error"))),
        ..vault_settings(copy(&*device))
    };
    let error = start(Engine::Epoll).runtime.open_vault(unknown).err().unwrap();
    assert!(matches!(error, VaultError::Mark { .. }), "{error}");
    gate.open();
    server.stop();
}

#[test]
fn the_required_size_holds_all_dirty_data() {
    let server = start(Engine::Epoll);
    let needed = vault_bytes_for(server.runtime.dirty_bytes_max());
    let vault = open(&server, memory(needed));
    let gate = Gate::new(memory(64 * MIB));
    add(&server, "v", Arc::clone(&gate) as _, &vault);
    // The disk completes no write, so all data stays dirty.
    gate.close(Kinds::WRITE);
    let mut client = server.client("v");
    let enough = server.runtime.dirty_bytes_max() / 4 * 3;
    for at in (0..64 * MIB).step_by(256 << 10).take_while(|_| vault.dirty_bytes(&ALL) < enough) {
        client.write(at, &vec![(at >> 18) as u8; 256 << 10]).unwrap();
    }
    assert!(vault.dirty_bytes(&ALL) >= enough);
    assert!(vault.dump(&ALL, None).unwrap().verified);
    gate.open();
    drop(client);
    server.stop();
}

#[test]
fn a_share_for_writes_that_the_vault_could_not_take_is_refused() {
    let server = start(Engine::Epoll);
    let shares = server.runtime.write_share();
    let share = |percent| WriteShare::of_percent(percent);
    let two_thirds = server.runtime.dirty_bytes_max();
    shares.set(share(50));
    let half = server.runtime.dirty_bytes_max();
    assert!(shares.get() == share(50) && half < two_thirds, "{half} of {two_thirds}");
    open(&server, memory(vault_bytes_for(half)));
    let shares = server.runtime.write_share();
    for fits in [share(0), share(20), share(50)] {
        assert_eq!(shares.check(fits), Ok(()));
    }
    for exceeds in [share(75), None] {
        let error = shares.check(exceeds).unwrap_err();
        // The size of a vault is rounded up to whole MiB.
        let ShareError::VaultTooSmall { most, .. } = &error else { panic!("{error}") };
        assert!((50..55).contains(&most.percent()), "{error}");
    }
    // The share of an adopted pool may exceed what a smaller vault takes, and may stay or be
    // reduced.
    shares.set(share(60));
    assert_eq!(shares.check(share(55)), Ok(()));
    assert!(shares.check(share(70)).is_err());
    server.stop();
}

fn wait_until_measured(vault: &Vault) {
    wait_until("the vault is measured", PATIENCE, || vault.measured_bytes_per_second().is_some());
}

/// A probe detects a failing vault before a dump is needed.
#[test]
fn a_vault_that_fails_or_hangs_is_not_relied_on_until_it_recovers() {
    let server = start(Engine::Auto);
    let errors = Arc::new(ErrorLayer::new(memory(VAULT_BYTES), ErrorRule::default()));
    errors.set_enabled(false);
    let gate = Gate::new(Arc::clone(&errors) as _);
    let vault = open(&server, Arc::clone(&gate) as _);
    wait_until_measured(&vault);
    let counts = || vault.measured_bytes_per_second().is_some();
    let wait = |what: &str, is_so: &dyn Fn() -> bool| wait_until(what, PATIENCE, is_so);
    let probes = vault.status().probes;
    vault.probe_now();
    wait("a probe succeeds", &|| vault.status().probes > probes);
    assert!(counts() && vault.status().trouble.is_none());
    errors.set_enabled(true);
    vault.probe_now();
    wait("the failure is detected", &|| !counts());
    wait("the status has the reason", &|| vault.status().trouble.is_some());
    errors.set_enabled(false);
    wait("the vault is relied on again", &counts);
    assert_eq!(vault.status().trouble, None);
    gate.close(Kinds::ALL);
    vault.probe_now();
    wait("the hanging device is detected", &|| !counts());
    assert_eq!(vault.status().trouble.as_deref(), Some("it does not respond"));
    gate.open();
    wait("the vault is relied on again", &counts);
    server.stop();
}

#[test]
fn an_overwritten_vault_is_not_relied_on() {
    let server = start(Engine::Auto);
    let device = memory(VAULT_BYTES);
    let vault = open(&server, Arc::clone(&device) as _);
    wait_until_measured(&vault);
    Blocking::new(&*device).write(0, &AlignedBuffer::from(&[7; 128 << 10][..]), true).unwrap();
    vault.probe_now();
    let is_distrusted = || vault.measured_bytes_per_second().is_none();
    wait_until("the vault is not relied on", PATIENCE, is_distrusted);
    let trouble = vault.status().trouble.unwrap();
    assert!(trouble.contains("overwritten"), "{trouble}");
    server.stop();
    // The remedy: a start formats the device only if it begins with zeroes.
    let again = start(Engine::Epoll);
    let refused = again.runtime.open_vault(vault_settings(Arc::clone(&device) as _));
    let refused = refused.err().unwrap().explained();
    assert!(refused.contains("overwrite its first 128 KiB with zeroes"), "{refused}");
    Blocking::new(&*device).write(0, &AlignedBuffer::new(128 << 10), true).unwrap();
    open(&again, device);
    again.stop();
}
