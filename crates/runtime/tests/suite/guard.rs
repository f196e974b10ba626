//! A journal's records are restored only to the disk that they belong to.

use crate::common::client::PATIENCE;
use crate::journal::{
    JOURNAL_BYTES, MIB, add, block, copy, journal_settings, memory, open, power_loss, start, volume,
};
use crate::server::{Server, read_backend, while_held};
use forebay_backend::layers::{Gate, Kinds};
use forebay_backend::{AlignedBuffer, Backend, Blocking, MemoryBackend};
use forebay_format::journal::{SUPERBLOCK_BYTES, Superblock, sample_places};
use forebay_runtime::{
    Engine, JournalError, JournalSettings, VoidRecords, VolumeError, VolumeSettings,
};
use forebay_types::{Fault, IoError};
use std::sync::Arc;

#[test]
fn an_abandoned_journal_still_restores_volumes_not_named_in_its_failure_record() {
    let (a, b, journal) = (memory(8 * MIB), memory(8 * MIB), memory(JOURNAL_BYTES));
    let first = start(Engine::Epoll);
    let opened = open(&first, Arc::clone(&journal) as _);
    add(&first, "a", Arc::clone(&a) as _, &opened);
    add(&first, "b", Arc::clone(&b) as _, &opened);
    first.client("a").write(0, &block(1)).unwrap();
    first.client("b").write(0, &block(2)).unwrap();
    let ([a_then, b_then], [journal_then]) = power_loss([&*a, &*b], [&*journal]);
    first.stop();
    let given_up = |names: &[&str], of: &dyn Backend| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        JournalSettings {
            is_abandoned: Box::new(move |_| VoidRecords::Volumes(names.clone())),
            ..journal_settings(copy(of))
        }
    };
    // The journal failed while only "a" was served.
    let second = start(Engine::Epoll);
    let opened = second
        .runtime
        .volumes()
        .protectors()
        .open_journal(given_up(&["a"], &*journal_then))
        .unwrap();
    let error = second.runtime.volumes().add(volume("a", a_then, &opened)).err().unwrap();
    let is_given_up = matches!(error, VolumeError::Journal(JournalError::AbandonedFor { .. }));
    assert!(is_given_up && error.explained().contains("its data of b is on disk"), "{error}");
    add(&second, "b", b_then, &opened);
    assert_eq!(second.client("b").read(0, 4096).unwrap(), block(2));
    second.stop();
    // It failed while both were served: all of its records are void.
    let third = start(Engine::Epoll);
    let error = third
        .runtime
        .volumes()
        .protectors()
        .open_journal(given_up(&["a", "b"], &*journal_then))
        .err()
        .unwrap();
    assert!(matches!(error, JournalError::Abandoned { .. }), "{error}");
    third.stop();
}

const DISK: u64 = 16 * MIB;

/// A disk with data in every block.
fn disk(seed: u64) -> Arc<MemoryBackend> {
    let disk = memory(DISK);
    fill(&*disk, seed);
    disk
}

fn fill(disk: &dyn Backend, seed: u64) {
    for at in 0..disk.description().size_bytes() / 4096 {
        put(disk, at * 4096, &block(seed << 32 | at));
    }
}

fn put(disk: &dyn Backend, offset: u64, bytes: &[u8]) {
    Blocking::new(disk).write(offset, &AlignedBuffer::from(bytes), true).unwrap();
}

/// Writes one block to a volume `v`, then simulates a power loss. Returns the journal.
fn write_and_die(disk: &Arc<MemoryBackend>) -> Arc<MemoryBackend> {
    let journal = memory(JOURNAL_BYTES);
    let server = start(Engine::Epoll);
    let opened = open(&server, Arc::clone(&journal) as _);
    // The disk accepts no writes, so it stays unchanged.
    let gate = Gate::new(Arc::clone(disk) as _);
    gate.close(Kinds::WRITE);
    add(&server, "v", gate.clone(), &opened);
    server.client("v").write(4096, &block(1)).unwrap();
    let journal_then = copy(&*journal);
    gate.open();
    let disk_then = copy(&**disk);
    server.stop();
    put(&**disk, 0, &content(&*disk_then));
    journal_then
}

fn content(of: &dyn Backend) -> Vec<u8> {
    read_backend(of, 0, of.description().size_bytes())
}

/// Serves a disk as `v` with a copy of a journal. Returns the content that clients read, or the
/// error.
fn serve(
    journal: &MemoryBackend,
    change: impl FnOnce(VolumeSettings) -> VolumeSettings,
    disk: Arc<dyn Backend>,
) -> Result<Vec<u8>, String> {
    let server = start(Engine::Epoll);
    let opened = open(&server, copy(journal));
    let len = disk.description().size_bytes();
    let added = server.runtime.volumes().add(change(volume("v", disk, &opened)));
    let outcome = match added {
        Ok(_) => Ok(server.client("v").read(0, len).unwrap()),
        Err(error) => Err(error.explained()),
    };
    server.stop();
    outcome
}

fn as_it_is(settings: VolumeSettings) -> VolumeSettings {
    settings
}

fn accepted(mut settings: VolumeSettings) -> VolumeSettings {
    settings.journal.as_mut().unwrap().accept_disk = true;
    settings
}

fn renamed(mut settings: VolumeSettings) -> VolumeSettings {
    settings.journal.as_mut().unwrap().identity = [0xee; 32];
    settings
}

/// The content of the disk after the journal's one write was restored.
fn with_the_write(disk: &dyn Backend) -> Vec<u8> {
    let mut bytes = content(disk);
    bytes[4096..8192].copy_from_slice(&block(1));
    bytes
}

fn assert_quarantined(journal: &MemoryBackend, other: &Arc<MemoryBackend>, why: &str) {
    let before = content(&**other);
    let error = serve(journal, as_it_is, Arc::clone(other) as _).unwrap_err();
    assert!(error.contains("holds 4.0 KiB of volume 'v'"), "{error}");
    assert!(error.contains(why), "{error}");
    for remedy in
        ["write its contents to the disk", "discard its contents", "accept the changed disk"]
    {
        assert!(error.contains(remedy), "{error}");
    }
    assert!(content(&**other) == before, "the disk was written");
}

#[test]
fn an_unchanged_disk_is_served_again() {
    let disk = disk(1);
    let journal = write_and_die(&disk);
    let expected = with_the_write(&*disk);
    assert!(serve(&journal, as_it_is, disk).unwrap() == expected);
}

#[test]
fn a_blank_disk_is_refused_and_the_journal_keeps_its_records() {
    let disk = disk(1);
    let journal = write_and_die(&disk);
    assert_quarantined(&journal, &memory(DISK), "samples differ");
    // The journal kept its records: the right disk is served.
    let server = start(Engine::Epoll);
    let opened = open(&server, Arc::clone(&journal) as _);
    assert!(server.runtime.volumes().add(volume("v", memory(DISK), &opened)).is_err());
    server.stop();
    let expected = with_the_write(&*disk);
    assert!(serve(&journal, as_it_is, disk).unwrap() == expected);
}

/// How many samples of the disk count in a journal made by [`write_and_die`]: one for each place,
/// except that of the block that was written. Where the places are depends on the journal's random
/// identity; two of them can be the same block, which then counts once.
fn counting_samples(journal: &MemoryBackend) -> usize {
    let len = SUPERBLOCK_BYTES as u64;
    let copies = [0, len].map(|at| Superblock::decode(&read_backend(journal, at, len)));
    let newest = copies.into_iter().flatten().max_by_key(|copy| copy.sequence);
    let superblock = newest.unwrap();
    let number = superblock.volumes[0].number;
    sample_places(superblock.journal, number, DISK).iter().filter(|&&place| place != 4096).count()
}

#[test]
fn a_restored_backup_is_refused_unless_the_operator_accepts_it() {
    let (disk, backup) = (disk(1), disk(2));
    let journal = write_and_die(&disk);
    let samples = counting_samples(&journal);
    assert!((60..=63).contains(&samples), "{samples}");
    assert_quarantined(&journal, &backup, &format!("of {samples} samples differ"));
    let expected = with_the_write(&*backup);
    // The disk must be accepted only once: from then on it is the recorded disk, even after a
    // crash.
    let server = start(Engine::Epoll);
    let journal = copy(&*journal);
    let opened = open(&server, Arc::clone(&journal) as _);
    let gate = Gate::new(Arc::clone(&backup) as _);
    gate.close(Kinds::WRITE);
    server.runtime.volumes().add(accepted(volume("v", gate.clone(), &opened))).unwrap();
    let (journal_then, backup_then) = (copy(&*journal), copy(&*backup));
    gate.open();
    server.stop();
    assert!(content(&*backup) == expected);
    assert_quarantined(&journal_then, &disk, "samples differ");
    assert!(serve(&journal_then, as_it_is, backup_then).unwrap() == expected);
}

#[test]
fn the_samples_of_a_disk_are_internal_reads() {
    let server = start(Engine::Epoll);
    let opened = open(&server, memory(JOURNAL_BYTES));
    add(&server, "v", disk(1) as _, &opened);
    let status = server.status("v");
    assert!((60..=64).contains(&status.internal.reads), "{:?}", status.internal);
    assert_eq!(status.internal.read_bytes, status.internal.reads * 4096);
    assert_eq!(status.requests.backend_reads(), 0, "no client has caused one");
    server.stop();
}

#[test]
fn a_snapshot_that_was_rolled_back_is_refused() {
    let disk = disk(1);
    let snapshot = copy(&*disk);
    let server = start(Engine::Epoll);
    let opened = open(&server, memory(JOURNAL_BYTES));
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    let mut client = server.client("v");
    for at in 0..DISK / 4096 {
        // A tenth of the disk.
        if at % 10 == 0 {
            client.write(at * 4096, &block(at + 7)).unwrap();
        }
    }
    drop(client);
    server.stop();
    let journal = write_and_die(&disk);
    assert_quarantined(&journal, &snapshot, "samples differ");
}

#[test]
fn a_disk_of_another_size_is_refused() {
    let first = disk(1);
    let journal = write_and_die(&first);
    let larger = memory(2 * DISK);
    put(&*larger, 0, &content(&*disk(2)));
    assert_quarantined(&journal, &larger, "larger, ");
    let expected = with_the_write(&*larger);
    assert!(serve(&journal, accepted, larger).unwrap() == expected);
    let smaller = memory(DISK / 2);
    put(&*smaller, 0, &content(&*first)[..DISK as usize / 2]);
    assert_quarantined(&journal, &smaller, "smaller, ");
    // A disk that is too small for the records cannot be accepted either.
    let error = serve(&journal, accepted, memory(4096)).unwrap_err();
    assert!(error.contains("smaller, "), "{error}");
}

#[test]
fn a_disk_that_has_grown_is_recognised_by_its_content() {
    let disk = disk(1);
    let journal = write_and_die(&disk);
    let larger = memory(2 * DISK);
    put(&*larger, 0, &content(&*disk));
    let expected = with_the_write(&*larger);
    assert!(serve(&journal, as_it_is, Arc::clone(&larger) as _).unwrap() == expected);
    assert!(serve(&journal, renamed, larger).unwrap() == expected);
}

#[test]
fn a_pair_of_disks_that_was_swapped_is_refused() {
    let (a, b, journal) = (disk(1), disk(2), memory(JOURNAL_BYTES));
    let first = start(Engine::Epoll);
    let opened = open(&first, Arc::clone(&journal) as _);
    for (name, disk) in [("a", &a), ("b", &b)] {
        add(&first, name, Arc::clone(disk) as _, &opened);
        first.client(name).write(4096, &block(9)).unwrap();
    }
    let ([a_then, b_then], [journal_then]) = power_loss([&*a, &*b], [&*journal]);
    first.stop();
    let second = start(Engine::Epoll);
    let opened = open(&second, Arc::clone(&journal_then) as _);
    for (name, disk) in [("a", &b_then), ("b", &a_then)] {
        let added = second.runtime.volumes().add(volume(name, Arc::clone(disk) as _, &opened));
        let error = added.err().unwrap().explained();
        assert!(error.contains("samples differ"), "{error}");
    }
    for (name, disk) in [("a", &a_then), ("b", &b_then)] {
        add(&second, name, Arc::clone(disk) as _, &opened);
        assert_eq!(second.client(name).read(4096, 4096).unwrap(), block(9));
    }
    second.stop();
}

#[test]
fn a_disk_under_another_path_is_recognised_by_its_content() {
    let disk = disk(1);
    let journal = write_and_die(&disk);
    let expected = with_the_write(&*disk);
    assert!(serve(&journal, renamed, disk).unwrap() == expected);
    // A blank disk cannot be recognised.
    let blank = memory(DISK);
    let journal = write_and_die(&blank);
    let error = serve(&journal, renamed, Arc::clone(&blank) as _).unwrap_err();
    assert!(error.contains("another name") && error.contains("samples match"), "{error}");
    let expected = with_the_write(&*blank);
    assert!(serve(&journal, as_it_is, blank).unwrap() == expected);
}

#[test]
fn a_disk_is_recognised_after_checkpoints() {
    let (disk, journal) = (memory(32 * MIB), memory(34 * MIB));
    fill(&*disk, 3);
    let server = start(Engine::Epoll);
    let opened = open(&server, Arc::clone(&journal) as _);
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    let mut client = server.client("v");
    // Always the same fifth of the disk: samples elsewhere stay valid.
    for at in 0..20_000_u64 {
        client.write(at * 7919 % 1600 * 4096, &block(at)).unwrap();
    }
    let checkpoints = opened.status().usage.checkpoints;
    assert!(checkpoints > 1, "{checkpoints}");
    client.write(4096, &block(1)).unwrap();
    // The journal is copied first: a checkpoint that ends in between is in neither copy, or only on
    // the disk.
    let (journal_then, disk_then) = (copy(&*journal), copy(&*disk));
    let expected = client.read(0, 32 * MIB).unwrap();
    drop(client);
    server.stop();
    let other = memory(32 * MIB);
    let error = serve(&journal_then, as_it_is, other).unwrap_err();
    assert!(error.contains("samples differ"), "{error}");
    assert!(serve(&journal_then, as_it_is, disk_then).unwrap() == expected);
}

/// Flushes "v" while its disk fails the flush.
fn fail_flush(server: &Server, gate: &Gate) {
    gate.close(Kinds::FLUSH);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| server.runtime.volumes().flush("v", |_| {}));
        assert!(gate.wait_held(1, PATIENCE));
        gate.fail_all(IoError::Io);
        gate.open();
        let error = flushing.join().unwrap().unwrap_err();
        assert!(matches!(error, VolumeError::FlushFailed { .. }), "{error}");
    });
}

#[test]
fn data_lost_by_a_failed_flush_is_written_again_from_the_journal() {
    let (disk, journal) = (disk(1), memory(JOURNAL_BYTES));
    let gate = Gate::new(Arc::clone(&disk) as _);
    let server = start(Engine::Epoll);
    let opened = open(&server, Arc::clone(&journal) as _);
    add(&server, "v", gate.clone(), &opened);
    let before = content(&*disk);
    let mut client = server.client("v");
    for at in [1, 100, 2000] {
        client.write(at * 4096, &block(at)).unwrap();
    }
    fail_flush(&server, &gate);
    assert_eq!(
        content(&*disk)[4096..8192],
        block(1),
        "the data was written before the failed flush"
    );
    // The data is lost with the disk's cache, while its lines in the pool are clean.
    put(&*disk, 0, &before);
    drop(client);
    server.runtime.volumes().trust("v", |_| {}).unwrap();
    for at in [1, 100, 2000] {
        assert_eq!(read_backend(&*disk, at * 4096, 4096), block(at), "{at}");
    }
    let mut client = server.client("v");
    assert_eq!(client.read(100 * 4096, 4096).unwrap(), block(100));
    client.write(4096, &block(7)).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop();
    assert_eq!(read_backend(&*disk, 4096, 4096), block(7));
}

#[test]
fn a_restore_that_waits_for_the_journal_delays_no_other_operation() {
    let (disk, journal) = (Gate::new(disk(1)), Gate::new(memory(JOURNAL_BYTES)));
    let server = start(Engine::Epoll);
    let opened = open(&server, Arc::clone(&journal) as _);
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    server.client("v").write(4096, &block(1)).unwrap();
    fail_flush(&server, &disk);
    journal.close(Kinds::READ);
    std::thread::scope(|scope| {
        let trusting = scope.spawn(|| server.runtime.volumes().trust("v", |_| {}));
        while_held(&journal, || server.administer_another());
        trusting.join().unwrap().unwrap();
    });
    assert_eq!(server.client("v").read(4096, 4096).unwrap(), block(1));
    server.stop();
}
