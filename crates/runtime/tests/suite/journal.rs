//! Volumes that a journal protects.
//!
//! A power loss is simulated by a copy of disk and journal, and a second runtime over the copies:
//! data that only the first runtime's memory held is gone.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::server::{Server, read_backend, settings};
use forebay_backend::layers::{Blocks, ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{AlignedBuffer, Backend, Blocking, MemoryBackend};
use forebay_runtime::{
    Engine, Journal, JournalError, JournalSettings, MemberRecord, RuntimeConfig, VoidRecords,
    VolumeJournal, VolumeSettings,
};
use forebay_types::{ByteRange, Durability, Fault, IoError, Mode};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const JOURNAL_BYTES: u64 = 40 * MIB;

pub(crate) fn memory(bytes: u64) -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(bytes).unwrap())
}

pub(crate) fn copy(of: &dyn Backend) -> Arc<MemoryBackend> {
    let size = of.description().size_bytes();
    let twin = memory(size);
    for offset in (0..size).step_by(MIB as usize) {
        let len = MIB.min(size - offset);
        let mut buffer = AlignedBuffer::new(len as usize);
        Blocking::new(of).read(offset, &mut buffer).unwrap();
        Blocking::new(&*twin).write(offset, &buffer, false).unwrap();
    }
    twin
}

/// Copies disks and their journals as a power loss would leave them at one moment. During a copy,
/// data may be destaged and its record reclaimed. So the disks are copied between two equal copies
/// of the journals.
pub(crate) fn power_loss<const D: usize, const J: usize>(
    disks: [&dyn Backend; D],
    journals: [&dyn Backend; J],
) -> ([Arc<MemoryBackend>; D], [Arc<MemoryBackend>; J]) {
    let bytes = |of: &dyn Backend| read_backend(of, 0, of.description().size_bytes());
    for _ in 0..1000 {
        let journals_then = journals.map(copy);
        let disks_then = disks.map(copy);
        let mut pairs = journals.iter().zip(&journals_then);
        if pairs.all(|(&now, then)| bytes(now) == bytes(&**then)) {
            return (disks_then, journals_then);
        }
    }
    panic!("the journal never rests");
}

pub(crate) fn start(engine: Engine) -> Server {
    Server::patient(RuntimeConfig { journals: 1, ..Server::config(engine) })
}

/// A record of the members in memory, in place of the one in a state directory.
#[derive(Default, Clone)]
pub(crate) struct OnRecord(Arc<Mutex<Vec<u64>>>);

impl OnRecord {
    pub(crate) fn now(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}

impl MemberRecord for OnRecord {
    fn members(&self, _: forebay_runtime::JournalId) -> Vec<u64> {
        self.now()
    }

    fn record(&self, _: forebay_runtime::JournalId, members: &[u64]) -> std::io::Result<()> {
        *self.0.lock().unwrap() = members.to_vec();
        Ok(())
    }
}

pub(crate) fn journal_settings(backend: Arc<dyn Backend>) -> JournalSettings {
    JournalSettings {
        backend,
        mirror: None,
        members: Box::new(OnRecord::default()),
        accept_loss: false,
        beat_every: None,
        is_abandoned: Box::new(|_| VoidRecords::None),
        on_failure: Box::new(|_, _, _| Ok(())),
    }
}

pub(crate) fn open(server: &Server, backend: Arc<dyn Backend>) -> Arc<Journal> {
    server.runtime.volumes().protectors().open_journal(journal_settings(backend)).unwrap()
}

/// A volume whose writes wait for their records.
pub(crate) fn volume(name: &str, disk: Arc<dyn Backend>, journal: &Arc<Journal>) -> VolumeSettings {
    let journal = VolumeJournal {
        journal: Arc::clone(journal),
        durability: Durability::Ack,
        identity: [name.as_bytes()[0]; 32],
        accept_disk: false,
    };
    VolumeSettings { journal: Some(journal), ..settings(name, disk, Mode::WriteBack) }
}

pub(crate) fn add(server: &Server, name: &str, disk: Arc<dyn Backend>, journal: &Arc<Journal>) {
    server.runtime.volumes().add(volume(name, disk, journal)).unwrap();
}

/// A server of the volume "v" with a journal.
fn serve(
    engine: Engine,
    disk: &Arc<impl Backend + 'static>,
    journal: &Arc<impl Backend + 'static>,
) -> (Server, Arc<Journal>) {
    let server = start(engine);
    let opened = open(&server, Arc::clone(journal) as _);
    add(&server, "v", Arc::clone(disk) as _, &opened);
    (server, opened)
}

pub(crate) fn block(value: u64) -> Vec<u8> {
    (0..512).flat_map(|at: u64| (value * 1000 + at).to_le_bytes()).collect()
}

/// Writes each of these blocks to another offset. Returns the content by offset.
pub(crate) fn write_some(
    server: &Server,
    name: &str,
    blocks: std::ops::Range<u64>,
) -> BTreeMap<u64, Vec<u8>> {
    let mut client = server.client(name);
    let mut written = BTreeMap::new();
    for value in blocks {
        let offset = value * 7919 % 4096 * 4096;
        client.write(offset, &block(value)).unwrap();
        written.insert(offset, block(value));
    }
    written
}

pub(crate) fn check(server: &Server, name: &str, written: &BTreeMap<u64, Vec<u8>>) {
    let mut client = server.client(name);
    for (&offset, bytes) in written {
        assert_eq!(&client.read(offset, 4096).unwrap(), bytes, "at {offset}");
    }
}

pub(crate) fn check_disk(disk: &MemoryBackend, written: &BTreeMap<u64, Vec<u8>>) {
    for (&offset, bytes) in written {
        assert_eq!(&read_backend(disk, offset, 4096), bytes, "at {offset}");
    }
}

on_both_engines! {
    every_acknowledged_write_survives_a_power_loss,
    a_flush_survives_a_power_loss_where_writes_do_not_wait,
    long_writes_zeroes_and_trims_survive_a_power_loss,
    a_full_journal_writes_through_and_is_reclaimed,
    a_journal_failure_is_recorded_before_anything_is_acknowledged,
    a_stop_leaves_a_clean_journal,
    a_removed_volume_leaves_no_record_behind,
    a_volume_is_removed_although_its_journal_fails_meanwhile,
    two_volumes_share_a_journal,
    a_full_log_waits_for_its_checkpoint,
    a_journal_that_fails_before_a_volume_is_served_keeps_its_records,
    a_bad_sector_neither_stops_writers_nor_fills_the_journal,
    a_disk_that_hangs_stops_no_writer_of_another_volume,
    a_journal_full_of_undestageable_data_writes_through,
    damage_on_every_device_of_a_journal_flushes_the_volumes_at_once,
    damage_on_one_device_of_a_journal_is_repaired_from_the_other,
    sectors_survive_a_power_loss_on_disks_of_every_block_size,
    a_journal_needs_blocks_no_larger_than_those_of_its_log,
}

fn every_acknowledged_write_survives_a_power_loss(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let (first, _opened) = serve(engine, &disk, &journal);
    let mut written = write_some(&first, "v", 0..300);
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    assert!(read_backend(&*disk_then, 0, 4096) != block(0), "the disk lacks the write");
    first.stop();

    // The second runtime loses power, too, after it has overwritten data of the first.
    let (second, _opened) = serve(engine, &disk_then, &journal_then);
    check(&second, "v", &written);
    written.append(&mut write_some(&second, "v", 4096..4196));
    let ([disk_later], [journal_later]) = power_loss([&*disk_then], [&*journal_then]);
    second.stop();

    let (third, _opened) = serve(engine, &disk_later, &journal_later);
    check(&third, "v", &written);
    third.stop();
    check_disk(&disk_later, &written);
}

/// Adds the volume "v", where only a flush waits for records.
fn add_with_flush(server: &Server, disk: Arc<dyn Backend>, journal: &Arc<Journal>) {
    let mut settings = volume("v", disk, journal);
    settings.journal.as_mut().unwrap().durability = Durability::Flush;
    server.runtime.volumes().add(settings).unwrap();
}

fn a_flush_survives_a_power_loss_where_writes_do_not_wait(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let first = start(engine);
    let opened = open(&first, Arc::clone(&journal) as _);
    add_with_flush(&first, Arc::clone(&disk) as _, &opened);
    let mut written = write_some(&first, "v", 0..100);
    let mut client = first.client("v");
    client.flush().unwrap();
    client.write_fua(0, &block(77)).unwrap();
    written.insert(0, block(77));
    let status = first.status("v");
    assert!(status.dirty_bytes > 0, "nothing was destaged: {status:?}");
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    first.stop();
    let second = start(engine);
    let opened = open(&second, journal_then);
    add_with_flush(&second, disk_then, &opened);
    check(&second, "v", &written);
    second.stop();
}

fn long_writes_zeroes_and_trims_survive_a_power_loss(engine: Engine) {
    use forebay_nbd::NbdCommand;
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    Blocking::new(&*disk).write(8 * MIB, &AlignedBuffer::from(&[9; 8192][..]), true).unwrap();
    let (first, _opened) = serve(engine, &disk, &journal);
    let mut client = first.client("v");
    // Received into the pool, across regions, with partial lines at both ends.
    let long: Vec<u8> = (0..(2 * MIB as usize + 1024)).map(|at| (at / 512 % 251) as u8).collect();
    client.write(MIB - 512, &long).unwrap();
    assert!(matches!(client.call(NbdCommand::WriteZeroes, 0, 8 * MIB, 4096).result, Ok(())));
    client.write(8 * MIB + 512, &[7; 512]).unwrap();
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    first.stop();
    let (second, _opened) = serve(engine, &disk_then, &journal_then);
    let mut client = second.client("v");
    assert!(client.read(MIB - 512, long.len() as u64).unwrap() == long);
    let mut expected = vec![0; 4096];
    expected[512..1024].fill(7);
    expected.extend([9; 4096]);
    assert_eq!(client.read(8 * MIB, 8192).unwrap(), expected);
    drop(client);
    second.stop();
}

/// `disk`, with this block size.
pub(crate) fn in_blocks(disk: &Arc<MemoryBackend>, block_bytes: u32) -> Arc<dyn Backend> {
    Arc::new(Blocks::new(Arc::clone(disk) as _, block_bytes).unwrap())
}

fn sectors_survive_a_power_loss_on_disks_of_every_block_size(engine: Engine) {
    for (disk_block, journal_block) in [(512, 4096), (4096, 512), (4096, 4096), (65_536, 4096)] {
        let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
        let first = start(engine);
        let opened = open(&first, in_blocks(&journal, journal_block));
        add(&first, "v", in_blocks(&disk, disk_block), &opened);
        let mut client = first.client("v");
        // Two sectors in each of many blocks, some of which have data on the disk already.
        let mut written = BTreeMap::new();
        for round in 0..2 {
            for value in 0..200 {
                let offset = (value * 7919 % 256) * 65_536 + (value % 3) * 1024;
                for (offset, byte) in [(offset, value as u8), (offset + 2560, !value as u8)] {
                    let sector = vec![byte.wrapping_add(round); 512];
                    client.write(offset, &sector).unwrap();
                    written.insert(offset, sector);
                }
            }
            if round == 0 {
                client.flush().unwrap();
            }
        }
        let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
        first.stop();
        let as_written = |disk: &MemoryBackend| {
            let mut sectors = written.iter();
            sectors.all(|(&offset, bytes)| read_backend(disk, offset, 512) == *bytes)
        };
        assert!(as_written(&disk), "blocks of {disk_block}: after a stop");
        let second = start(engine);
        let opened = open(&second, in_blocks(&journal_then, journal_block));
        add(&second, "v", in_blocks(&disk_then, disk_block), &opened);
        let mut client = second.client("v");
        for (&offset, bytes) in &written {
            assert_eq!(&client.read(offset, 512).unwrap(), bytes, "at {offset}");
        }
        drop(client);
        second.stop();
        assert!(as_written(&disk_then), "blocks of {disk_block}: after a loss of power");
    }
}

fn a_journal_needs_blocks_no_larger_than_those_of_its_log(engine: Engine) {
    let server = start(engine);
    let large = in_blocks(&memory(JOURNAL_BYTES), 65_536);
    let refused = server.runtime.volumes().protectors().open_journal(journal_settings(large));
    let error = refused.err().expect("it is refused").explained();
    assert!(error.contains("blocks of 64 KiB"), "{error}");
}

fn a_full_journal_writes_through_and_is_reclaimed(engine: Engine) {
    let (disk, journal) = (memory(64 * MIB), memory(34 * MIB));
    let (server, opened) = serve(engine, &disk, &journal);
    let mut client = server.client("v");
    let mut content = vec![0_u8; 64 * MIB as usize];
    for round in 0..3_u8 {
        for at in (0..64 * MIB).step_by(256 << 10) {
            let bytes = vec![round ^ (at >> 18) as u8; 256 << 10];
            client.write(at, &bytes).unwrap();
            content[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
    }
    let usage = opened.status().usage;
    assert!(usage.checkpoints > 0, "{usage:?}");
    assert!(usage.payload_bytes > usage.capacity_bytes, "it was used again and again: {usage:?}");
    drop(client);
    server.stop();
    assert!(read_backend(&*disk, 0, 64 * MIB) == content);
}

fn a_journal_failure_is_recorded_before_anything_is_acknowledged(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let gate = Gate::new(Arc::clone(&journal) as _);
    let server = start(engine);
    let recorded = Arc::new(AtomicBool::new(false));
    let tries = Arc::new(Mutex::new(0));
    let (is_recorded, counted) = (Arc::clone(&recorded), Arc::clone(&tries));
    let settings = JournalSettings {
        on_failure: Box::new(move |_, error, volumes| {
            assert_eq!((error, volumes), (IoError::Io, &["v".to_owned()][..]));
            let mut tries = counted.lock().unwrap();
            *tries += 1;
            if *tries == 1 {
                return Err(std::io::Error::other("the state directory is full"));
            }
            is_recorded.store(true, Ordering::SeqCst);
            Ok(())
        }),
        ..journal_settings(Arc::clone(&gate) as _)
    };
    let opened = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    let mut written = write_some(&server, "v", 0..50);
    gate.close(Kinds::ALL);
    let mut client = server.client("v");
    let path = server.socket.clone();
    let flag = Arc::clone(&recorded);
    let waiting = std::thread::spawn(move || {
        let mut client = Client::new(&path, "v");
        client.write(0, &block(500)).unwrap();
        assert!(flag.load(Ordering::SeqCst), "acknowledged before the record");
    });
    assert!(gate.wait_held(1, PATIENCE));
    gate.fail_all(IoError::Io);
    gate.open();
    waiting.join().unwrap();
    written.insert(0, block(500));
    assert_eq!(*tries.lock().unwrap(), 2, "the record was not retried");
    assert_eq!(opened.status().failed, Some(IoError::Io));
    // The volume continues without the journal.
    client.write(4096, &block(501)).unwrap();
    written.insert(4096, block(501));
    client.flush().unwrap();
    assert_eq!(read_backend(&*disk, 4096, 4096), block(501));
    assert_eq!(read_backend(&*disk, 0, 4096), block(500));
    drop(client);
    check(&server, "v", &written);
    server.stop();
    check_disk(&disk, &written);
}

fn a_stop_leaves_a_clean_journal(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let (server, _opened) = serve(engine, &disk, &journal);
    let written = write_some(&server, "v", 0..100);
    server.stop();
    check_disk(&disk, &written);
    // After a clean stop, another program may change the disk.
    Blocking::new(&*disk).write(0, &AlignedBuffer::from(&[3; 4096][..]), true).unwrap();
    let again = start(engine);
    let opened = open(&again, Arc::clone(&journal) as _);
    assert_eq!(opened.unserved(), []);
    add(&again, "v", Arc::clone(&disk) as _, &opened);
    assert_eq!(again.client("v").read(0, 4096).unwrap(), [3; 4096]);
    again.stop();
}

fn a_removed_volume_leaves_no_record_behind(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let (server, _opened) = serve(engine, &disk, &journal);
    write_some(&server, "v", 0..100);
    server.runtime.volumes().remove("v", |_| {}).unwrap();
    Blocking::new(&*disk).write(0, &AlignedBuffer::from(&[3; 4096][..]), true).unwrap();
    // Power is lost, and the volume is attached to its journal again.
    let again = start(engine);
    let twin = open(&again, copy(&*journal));
    add(&again, "v", Arc::clone(&disk) as _, &twin);
    assert_eq!(again.client("v").read(0, 4096).unwrap(), [3; 4096]);
    again.stop();
    server.stop();
}

fn a_volume_is_removed_although_its_journal_fails_meanwhile(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let gate = Gate::new(journal as _);
    let server = start(engine);
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let names = Arc::clone(&recorded);
    let settings = JournalSettings {
        on_failure: Box::new(move |_, _, volumes| {
            names.lock().unwrap().extend_from_slice(volumes);
            Ok(())
        }),
        ..journal_settings(Arc::clone(&gate) as _)
    };
    let opened = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    // Nothing was written: the first write to the journal is the volume's removal from it.
    gate.close(Kinds::WRITE);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| server.runtime.volumes().remove("v", |_| {}));
        assert!(gate.wait_held(1, PATIENCE));
        gate.fail_all(IoError::Io);
        gate.open();
        removal.join().unwrap().unwrap();
    });
    assert_eq!(opened.status().failed, Some(IoError::Io));
    assert!(recorded.lock().unwrap().contains(&"v".to_owned()), "its records still count");
    // Its name and its disk are free.
    server.add("v", disk, Mode::WriteThrough);
    server.stop();
}

fn two_volumes_share_a_journal(engine: Engine) {
    let (a, b, journal) = (memory(8 * MIB), memory(8 * MIB), memory(JOURNAL_BYTES));
    let first = start(engine);
    let opened = open(&first, Arc::clone(&journal) as _);
    add(&first, "a", Arc::clone(&a) as _, &opened);
    add(&first, "b", Arc::clone(&b) as _, &opened);
    first.client("a").write(0, &block(1)).unwrap();
    first.client("b").write(0, &block(2)).unwrap();
    let ([a_then, b_then], [journal_then]) = power_loss([&*a, &*b], [&*journal]);
    first.stop();
    // Only "a" is served at first; the journal keeps the writes of "b".
    let second = start(engine);
    let opened = open(&second, Arc::clone(&journal_then) as _);
    add(&second, "a", Arc::clone(&a_then) as _, &opened);
    assert_eq!(opened.unserved(), [("b".to_owned(), 4096)]);
    assert_eq!(second.client("a").read(0, 4096).unwrap(), block(1));
    second.stop();
    let third = start(engine);
    let opened = open(&third, journal_then);
    assert_eq!(opened.unserved(), [("b".to_owned(), 4096)]);
    add(&third, "b", b_then, &opened);
    assert_eq!(third.client("b").read(0, 4096).unwrap(), block(2));
    third.stop();
}

#[test]
fn a_device_that_is_no_journal_is_refused_and_not_changed() {
    let server = start(Engine::Epoll);
    let refuse = |backend: Arc<dyn Backend>| {
        server.runtime.volumes().protectors().open_journal(journal_settings(backend)).err().unwrap()
    };
    assert!(matches!(refuse(memory(MIB)), JournalError::Small { .. }));
    let data = memory(JOURNAL_BYTES);
    Blocking::new(&*data).write(65536, &AlignedBuffer::from(&[1; 4096][..]), true).unwrap();
    let error = refuse(Arc::clone(&data) as _);
    assert!(matches!(error, JournalError::Foreign(_)), "{error}");
    assert_eq!(read_backend(&*data, 65536, 4096), [1; 4096]);
    let journal = memory(JOURNAL_BYTES);
    let id = open(&server, Arc::clone(&journal) as _).status().id;
    let abandoned = JournalSettings {
        is_abandoned: Box::new(move |journal| {
            if journal.to_string() == id { VoidRecords::All } else { VoidRecords::None }
        }),
        ..journal_settings(copy(&*journal))
    };
    let error = server.runtime.volumes().protectors().open_journal(abandoned).err().unwrap();
    assert!(matches!(error, JournalError::Abandoned { .. }), "{error}");
    server.stop();
}

#[test]
fn a_volume_of_the_same_name_on_another_disk_is_refused() {
    let (disk, journal) = (memory(8 * MIB), memory(JOURNAL_BYTES));
    let (first, _opened) = serve(Engine::Epoll, &disk, &journal);
    first.client("v").write(0, &block(1)).unwrap();
    let journal_then = copy(&*journal);
    first.stop();
    let second = start(Engine::Epoll);
    let opened = open(&second, journal_then);
    let mut settings = volume("v", Arc::clone(&disk) as _, &opened);
    settings.journal.as_mut().unwrap().identity = [0; 32];
    let error = second.runtime.volumes().add(settings).err().unwrap().explained();
    assert!(error.contains("holds 4.0 KiB of volume 'v', but"), "{error}");
    add(&second, "v", disk, &opened);
    assert_eq!(second.client("v").read(0, 4096).unwrap(), block(1));
    second.stop();
}

/// Fails if the journal's thread holds its lock while it waits for space: the end of the checkpoint
/// needs the lock.
fn a_full_log_waits_for_its_checkpoint(engine: Engine) {
    let (disk, journal) = (memory(64 * MIB), memory(34 * MIB));
    let gate = Gate::new(Arc::clone(&disk) as _);
    let (server, opened) = serve(engine, &gate, &journal);
    // No checkpoint ends, so the log runs out of space for writes. Writes then bypass it, and wait
    // for space for their records before the last segment is used.
    gate.close(Kinds::FLUSH);
    let path = server.socket.clone();
    let writer = std::thread::spawn(move || {
        let mut client = Client::new(&path, "v");
        for at in 0..12_000_u64 {
            client.write(at % 1000 * 65536, &block(at)).unwrap();
        }
    });
    let full = || opened.status().usage.used_bytes >= 24 * MIB;
    wait_until("the log is full", PATIENCE, full);
    gate.open();
    writer.join().unwrap();
    let mut client = server.client("v");
    for at in 11_000..12_000 {
        assert_eq!(client.read(at % 1000 * 65536, 4096).unwrap(), block(at));
    }
    drop(client);
    server.stop();
}

fn a_journal_that_fails_before_a_volume_is_served_keeps_its_records(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let (first, _opened) = serve(engine, &disk, &journal);
    let written = write_some(&first, "v", 0..50);
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    first.stop();
    let second = start(engine);
    let rule = ErrorRule { kinds: Kinds::WRITE, ..ErrorRule::default() };
    let readable = ErrorLayer::new(Arc::clone(&journal_then) as _, rule);
    let settings = JournalSettings {
        on_failure: Box::new(|_, _, _| panic!("its records are all there is of some writes")),
        ..journal_settings(Arc::new(readable))
    };
    let error = second.runtime.volumes().protectors().open_journal(settings).err().unwrap();
    assert!(matches!(error, JournalError::Io { .. }), "{error}");
    second.stop();
    let (third, _opened) = serve(engine, &disk_then, &journal_then);
    check(&third, "v", &written);
    third.stop();
}

/// Writes that bypass a full journal need a record, too. Fails if a bad sector keeps the log from
/// being reclaimed, so that writers wait forever.
fn a_bad_sector_neither_stops_writers_nor_fills_the_journal(engine: Engine) {
    let (disk, journal) = (memory(64 * MIB), memory(34 * MIB));
    let bad = ByteRange::new(8 * MIB, 4096);
    let errors = ErrorRule { kinds: Kinds::WRITE, range: Some(bad), ..ErrorRule::default() };
    let errors = Arc::new(ErrorLayer::new(Arc::clone(&disk) as _, errors));
    let (server, opened) = serve(engine, &errors, &journal);
    let mut client = server.client("v");
    client.write(8 * MIB, &block(7)).unwrap();
    // Overwrites of few lines stay below the dirty limit, so all of them go to the journal.
    let mut round = 0_u8;
    wait_until("the journal wraps and forwards the block", PATIENCE, || {
        round = round.wrapping_add(1);
        for at in (16 * MIB..18 * MIB).step_by(64 << 10) {
            client.write(at, &vec![round; 64 << 10]).unwrap();
        }
        let status = opened.status();
        let has_wrapped = status.usage.payload_bytes > status.usage.capacity_bytes;
        has_wrapped && status.kept.forward_bytes > 0
    });
    // Power fails: the data that the disk does not take is still in the journal.
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    drop(client);
    errors.set_enabled(false);
    server.stop();
    let (second, _opened) = serve(engine, &disk_then, &journal_then);
    let mut client = second.client("v");
    assert_eq!(client.read(8 * MIB, 4096).unwrap(), block(7));
    assert!(client.read(16 * MIB, 2 * MIB).unwrap() == vec![round; 2 * MIB as usize]);
    drop(client);
    second.stop();
}

/// Fails if writers of one volume wait for the disk of another one that shares their journal.
fn a_disk_that_hangs_stops_no_writer_of_another_volume(engine: Engine) {
    let (a, b, journal) = (memory(16 * MIB), memory(32 * MIB), memory(34 * MIB));
    let gate = Gate::new(Arc::clone(&a) as _);
    let server = start(engine);
    let opened = open(&server, Arc::clone(&journal) as _);
    add(&server, "a", Arc::clone(&gate) as _, &opened);
    add(&server, "b", Arc::clone(&b) as _, &opened);
    server.client("a").write(0, &block(1)).unwrap();
    gate.close(Kinds::ALL);
    let mut client = server.client("b");
    for round in 0..4_u8 {
        for at in (0..32 * MIB).step_by(64 << 10) {
            client.write(at, &vec![round + 1; 64 << 10]).unwrap();
        }
    }
    // Also in single blocks: each needs its own record.
    for at in (0..32 * MIB).step_by(4096) {
        client.write(at, &[9; 4096]).unwrap();
    }
    client.flush().unwrap();
    let ([a_then, b_then], [journal_then]) = power_loss([&*a, &*b], [&*journal]);
    drop(client);
    gate.open();
    server.stop();
    let second = start(engine);
    let opened = open(&second, journal_then);
    add(&second, "a", a_then, &opened);
    add(&second, "b", b_then, &opened);
    assert_eq!(second.client("a").read(0, 4096).unwrap(), block(1));
    assert!(second.client("b").read(0, 16 * MIB).unwrap() == vec![9; 16 * MIB as usize]);
    second.stop();
}

fn a_journal_full_of_undestageable_data_writes_through(engine: Engine) {
    let (disk, journal) = (memory(64 * MIB), memory(34 * MIB));
    let bad = ByteRange::new(0, 32 * MIB);
    let errors = ErrorRule { kinds: Kinds::WRITE, range: Some(bad), ..ErrorRule::default() };
    let errors = Arc::new(ErrorLayer::new(Arc::clone(&disk) as _, errors));
    let (server, opened) = serve(engine, &errors, &journal);
    let mut client = server.client("v");
    let mut taken = 0;
    while client.write(taken, &[7; 64 << 10]).is_ok() {
        taken += 64 << 10;
    }
    assert!(taken >= 5 * MIB, "{taken}");
    // More writes than the log has space for records of.
    for round in 0..2_u8 {
        for at in (32 * MIB..64 * MIB).step_by(4096) {
            client.write(at, &[round + 1; 4096]).unwrap();
        }
    }
    client.flush().unwrap();
    let status = opened.status();
    assert!(status.kept.fences > 0, "{status:?}");
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*journal]);
    drop(client);
    errors.set_enabled(false);
    server.stop();
    assert!(read_backend(&*disk, 0, taken) == vec![7; taken as usize]);
    assert!(read_backend(&*disk, 32 * MIB, 32 * MIB) == vec![2; 32 * MIB as usize]);
    let second = start(engine);
    let opened =
        match second.runtime.volumes().protectors().open_journal(journal_settings(journal_then)) {
            Ok(opened) => opened,
            // If its last segment was in use when it was copied, it has to be drained first.
            Err(error) => {
                let text = error.with_causes();
                return assert!(text.contains("no space to continue"), "{text}");
            }
        };
    add(&second, "v", disk_then, &opened);
    let mut client = second.client("v");
    assert!(client.read(0, taken).unwrap() == vec![7; taken as usize]);
    assert!(client.read(32 * MIB, 32 * MIB).unwrap() == vec![2; 32 * MIB as usize]);
    drop(client);
    second.stop();
}

/// Flips a byte in the first batch.
fn corrupt(journal: &dyn Backend) {
    let mut block = AlignedBuffer::new(4096);
    Blocking::new(journal).read(128 << 10, &mut block).unwrap();
    block[300] ^= 0x10;
    Blocking::new(journal).write(128 << 10, &block, true).unwrap();
}

fn damage_on_every_device_of_a_journal_flushes_the_volumes_at_once(engine: Engine) {
    let (disk, journal) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let (server, opened) = serve(engine, &disk, &journal);
    let written = write_some(&server, "v", 0..50);
    opened.patrol_now();
    wait_until("the log is read", PATIENCE, || opened.status().patrol.walks == 1);
    let patrol = opened.status().patrol;
    assert!(patrol.damaged == 0 && patrol.read_bytes > 50 * 4096, "{patrol:?}");
    corrupt(&*journal);
    opened.patrol_now();
    wait_until("the damage is found", PATIENCE, || opened.status().patrol.damaged == 1);
    wait_until("the disk has everything", PATIENCE, || opened.status().usage.used_bytes == 0);
    check_disk(&disk, &written);
    // The log begins past the damage now: another start finds none.
    write_some(&server, "v", 50..60);
    opened.patrol_now();
    let walks = opened.status().patrol.walks;
    wait_until("it is read again", PATIENCE, || opened.status().patrol.walks > walks);
    assert_eq!(opened.status().patrol.damaged, 1);
    let second = start(engine);
    open(&second, copy(&*journal));
    second.stop();
    server.stop();
}

fn damage_on_one_device_of_a_journal_is_repaired_from_the_other(engine: Engine) {
    let (disk, one, other) = (memory(16 * MIB), memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let server = start(engine);
    let settings = JournalSettings {
        mirror: Some(Ok(Arc::clone(&other) as _)),
        ..journal_settings(Arc::clone(&one) as _)
    };
    let opened = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    write_some(&server, "v", 0..50);
    corrupt(&*other);
    opened.patrol_now();
    wait_until("it is healed", PATIENCE, || opened.status().patrol.healed == 1);
    assert_eq!(opened.status().patrol.damaged, 1);
    assert_eq!(read_backend(&*one, 128 << 10, MIB), read_backend(&*other, 128 << 10, MIB));
    server.stop();
}
