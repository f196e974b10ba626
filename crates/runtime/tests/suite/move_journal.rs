//! Volumes that leave their journal for another one while they are served.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{
    JOURNAL_BYTES, MIB, add, block, check, check_disk, copy, memory, open, power_loss, start,
    write_some,
};
use crate::server::{Server, in_mode, read_backend};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{Backend, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::{
    Engine, Journal, JournalId, JournalRecord, Missing, RuntimeConfig, Timeouts, VolumeError,
    VolumeJournal, move_journal,
};
use forebay_types::{Durability, Fault, Mode};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

on_both_engines! {
    clients_see_no_error_and_lose_no_write_while_a_volume_moves,
    each_step_of_a_move_survives_a_power_loss,
    a_volume_leaves_its_journal_and_gets_one,
}

/// How the volume "v" uses a journal.
fn used(journal: &Arc<Journal>) -> Option<VolumeJournal> {
    let (journal, durability) = (Arc::clone(journal), Durability::Ack);
    Some(VolumeJournal { journal, durability, identity: [b'v'; 32], accept_disk: false })
}

fn move_to(server: &Server, journal: Option<&Arc<Journal>>) -> Result<(), VolumeError> {
    let used = journal.and_then(used);
    move_journal(server.runtime.volumes(), "v", used, in_mode(Mode::WriteBack), false)
}

fn two_journals(engine: Engine) -> Server {
    Server::patient(RuntimeConfig { journals: 2, ..Server::config(engine) })
}

/// Erases a device, as if it were lost.
fn erase(device: &MemoryBackend) {
    let zeroes = forebay_backend::AlignedBuffer::new(MIB as usize);
    for offset in (0..device.description().size_bytes()).step_by(MIB as usize) {
        forebay_backend::Blocking::new(device).write(offset, &zeroes, false).unwrap();
    }
}

fn clients_see_no_error_and_lose_no_write_while_a_volume_moves(engine: Engine) {
    let (disk, a, b) = (memory(16 * MIB), memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let server = two_journals(engine);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    let (has_ended, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            let (server, has_ended, count, written) = (&server, &has_ended, &count, &written);
            scope.spawn(move || {
                let mut connection = server.client("v");
                let mut value = client;
                while !has_ended.load(Ordering::Relaxed) {
                    let offset = (value * 7919 % 1000 * 4 + client) * 4096;
                    connection.write(offset, &block(value)).unwrap();
                    written.lock().unwrap().insert(offset, block(value));
                    assert_eq!(connection.read(offset, 4096).unwrap(), block(value));
                    match value % 16 {
                        3 => connection.flush().unwrap(),
                        5 => {
                            connection.call(NbdCommand::Trim, 0, offset, 4096).result.unwrap();
                            written.lock().unwrap().remove(&offset);
                        }
                        7 => connection.write_fua(offset, &block(value)).unwrap(),
                        _ => {}
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    value += 4;
                }
            });
        }
        for to in [1, 0, 1, 0, 1] {
            let before = count.load(Ordering::Relaxed);
            wait_until("clients write", PATIENCE, || count.load(Ordering::Relaxed) > before + 100);
            move_to(&server, Some(&journals[to])).unwrap();
            assert!(server.runtime.volumes().protectors().is_used(&journals[to]));
            assert!(!server.runtime.volumes().protectors().is_used(&journals[1 - to]));
        }
        let before = count.load(Ordering::Relaxed);
        wait_until("clients write", PATIENCE, || count.load(Ordering::Relaxed) > before + 100);
        has_ended.store(true, Ordering::Relaxed);
    });
    let written = written.into_inner().unwrap();
    // The former journal is of no use any more.
    erase(&a);
    let dirty = server.status("v").dirty_bytes;
    assert!(dirty > 0, "writes are acknowledged from memory again");
    let ([disk_then], [b_then]) = power_loss([&*disk], [&*b]);
    server.stop();
    check_disk(&disk, &written);
    let server = start(engine);
    let journal = open(&server, Arc::clone(&b_then) as _);
    add(&server, "v", Arc::clone(&disk_then) as _, &journal);
    check(&server, "v", &written);
    server.stop();
    check_disk(&disk_then, &written);
}

/// A disk and two journals as a power loss would leave them, and the journal that the volume
/// relied on then.
struct Lost {
    disk: Arc<MemoryBackend>,
    journals: [Arc<MemoryBackend>; 2],
    relies: Option<usize>,
    /// The later writes are acknowledged.
    is_later: bool,
}

/// The record of reliance, which loses power before and after each change.
struct Record {
    disk: Arc<MemoryBackend>,
    journals: [Arc<MemoryBackend>; 2],
    ids: Mutex<Vec<String>>,
    relies: Mutex<Vec<JournalId>>,
    lost: Mutex<Vec<Lost>>,
    fails: AtomicBool,
    is_later: AtomicBool,
}

impl Record {
    fn lose_power(&self) {
        // Nothing is being written: the volume's requests are held, or there are none.
        let [a, b] = &self.journals;
        let (disk, journals) = (copy(&*self.disk), [copy(&**a), copy(&**b)]);
        let relies = self.relies.lock().unwrap().clone();
        assert!(relies.len() <= 1, "a volume never relies on two journals");
        let ids = self.ids.lock().unwrap();
        let relies =
            relies.first().map(|id| ids.iter().position(|it| *it == id.to_string()).unwrap());
        let is_later = self.is_later.load(Ordering::Relaxed);
        self.lost.lock().unwrap().push(Lost { disk, journals, relies, is_later });
    }
}

impl JournalRecord for Record {
    fn elsewhere(&self, _: &str, _: Option<JournalId>) -> Option<Missing> {
        None
    }

    fn rely(&self, journal: JournalId, _: &str, _: &str) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.lose_power();
        let mut relies = self.relies.lock().unwrap();
        relies.retain(|id| *id != journal);
        relies.push(journal);
        drop(relies);
        self.lose_power();
        Ok(())
    }

    fn release(&self, journal: JournalId, _: &str) -> io::Result<()> {
        self.lose_power();
        self.relies.lock().unwrap().retain(|id| *id != journal);
        self.lose_power();
        Ok(())
    }

    fn supersede(&self, _: &str, _: Option<JournalId>) -> io::Result<()> {
        Ok(())
    }
}

fn each_step_of_a_move_survives_a_power_loss(engine: Engine) {
    let (disk, a, b) = (memory(16 * MIB), memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let record = Arc::new(Record {
        disk: Arc::clone(&disk),
        journals: [Arc::clone(&a), Arc::clone(&b)],
        ids: Mutex::default(),
        relies: Mutex::default(),
        lost: Mutex::default(),
        fails: AtomicBool::new(false),
        is_later: AtomicBool::new(false),
    });
    let server = two_journals(engine);
    server.runtime.volumes().protectors().keep_journal_record(Arc::clone(&record) as _);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    let ids = journals.iter().map(|journal| journal.status().id).collect();
    *record.ids.lock().unwrap() = ids;
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    record.lost.lock().unwrap().clear();
    let written = write_some(&server, "v", 0..300);
    server.client("v").call(NbdCommand::WriteZeroes, 0, 4000 * 4096, 4096).result.unwrap();
    // The copies of the devices take long, on a busy machine too long for a hold.
    wait_until("the volume moves", PATIENCE, || move_to(&server, Some(&journals[1])).is_ok());
    record.lose_power();
    let mut later = written.clone();
    later.append(&mut write_some(&server, "v", 4096..4196));
    record.is_later.store(true, Ordering::Relaxed);
    record.lose_power();
    server.stop();
    check_disk(&disk, &later);
    let lost = std::mem::take(&mut *record.lost.lock().unwrap());
    assert!(lost.len() >= 6, "before and after each record");
    for Lost { disk, journals, relies, is_later } in lost {
        let expected = if is_later { &later } else { &written };
        // Without reliance, the volume may be served with either journal.
        for with in (0..2).filter(|with| relies.is_none_or(|relies| relies == *with)) {
            let [a, b] = &journals;
            let ([disk], journals) = power_loss([&*disk], [&**a, &**b]);
            let server = start(engine);
            let journal = open(&server, Arc::clone(&journals[with]) as _);
            add(&server, "v", Arc::clone(&disk) as _, &journal);
            check(&server, "v", expected);
            server.stop();
            check_disk(&disk, expected);
        }
    }
}

fn a_volume_leaves_its_journal_and_gets_one(engine: Engine) {
    let (disk, a) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let journal = open(&server, Arc::clone(&a) as _);
    add(&server, "v", Arc::clone(&disk) as _, &journal);
    let mut written = write_some(&server, "v", 0..100);
    let through = in_mode(Mode::WriteThrough);
    move_journal(server.runtime.volumes(), "v", None, through, false).unwrap();
    assert!(!server.runtime.volumes().protectors().is_used(&journal));
    written.append(&mut write_some(&server, "v", 100..200));
    check_disk(&disk, &written);
    // Its flushes go to the disk.
    server.client("v").flush().unwrap();
    move_to(&server, Some(&journal)).unwrap();
    written.append(&mut write_some(&server, "v", 200..300));
    assert!(server.status("v").dirty_bytes > 0);
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*a]);
    server.stop();
    let server = start(engine);
    let journal = open(&server, Arc::clone(&journal_then) as _);
    add(&server, "v", Arc::clone(&disk_then) as _, &journal);
    check(&server, "v", &written);
    server.stop();
}

#[test]
fn volumes_of_one_journal_move_alone() {
    let (one, two) = (memory(16 * MIB), memory(16 * MIB));
    let (a, b) = (memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let server = two_journals(Engine::Epoll);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", Arc::clone(&one) as _, &journals[0]);
    add(&server, "w", Arc::clone(&two) as _, &journals[0]);
    let of_v = write_some(&server, "v", 0..100);
    let of_w = write_some(&server, "w", 100..200);
    move_to(&server, Some(&journals[1])).unwrap();
    assert!(server.runtime.volumes().protectors().is_used(&journals[0]), "by the other volume");
    let ([one, two], [a, b]) = power_loss([&*one, &*two], [&*a, &*b]);
    server.stop();
    let server = two_journals(Engine::Epoll);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", one as _, &journals[1]);
    add(&server, "w", two as _, &journals[0]);
    check(&server, "v", &of_v);
    check(&server, "w", &of_w);
    server.stop();
}

/// A server that waits for a disk or a journal for two seconds.
fn impatient() -> Server {
    let timeouts = Timeouts {
        disk: Duration::from_secs(2),
        dirty_age: PATIENCE,
        handshake: PATIENCE,
        payload_pause: PATIENCE,
        ..Timeouts::default()
    };
    let config = RuntimeConfig { journals: 2, ..Server::config(Engine::Epoll) };
    Server::start_over(config, timeouts)
}

/// Checks that the volume has kept its first journal and its mode, after a move was refused.
fn check_refused(server: &Server, error: &VolumeError, said: &str, first: &Arc<Journal>) {
    let text = error.explained();
    assert!(text.contains(said), "{text}");
    assert!(server.runtime.volumes().protectors().is_used(first));
    server.client("v").write(8 * MIB, &block(1)).unwrap();
    assert!(server.status("v").dirty_bytes > 0, "writes are acknowledged from memory");
}

#[test]
fn a_disk_or_journal_that_hangs_refuses_a_move() {
    let (a, b) = (memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let (disk, b) = (Gate::new(memory(16 * MIB) as _), Gate::new(b as _));
    let server = impatient();
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    server.client("v").write(0, &block(7)).unwrap();
    disk.close(Kinds::WRITE);
    let begun = Instant::now();
    let error = move_to(&server, Some(&journals[1])).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    check_refused(&server, &error, "has not answered for 2 s", &journals[0]);
    disk.open();
    b.close(Kinds::WRITE);
    let error = move_to(&server, Some(&journals[1])).unwrap_err();
    check_refused(&server, &error, "has not answered for 2 s", &journals[0]);
    b.open();
    wait_until("the new journal has answered", PATIENCE, || {
        move_to(&server, Some(&journals[1])).is_ok()
    });
    assert_eq!(server.client("v").read(0, 4096).unwrap(), block(7));
    server.stop();
}

#[test]
fn a_failed_journal_is_exchanged_for_a_working_one() {
    let (disk, b) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let rule = ErrorRule { kinds: Kinds::WRITE, ..ErrorRule::default() };
    let a = Arc::new(ErrorLayer::new(memory(JOURNAL_BYTES) as _, rule));
    a.set_enabled(false);
    let server = two_journals(Engine::Epoll);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    let mut written = write_some(&server, "v", 0..50);
    a.set_enabled(true);
    written.append(&mut write_some(&server, "v", 50..100));
    wait_until("the journal has failed", PATIENCE, || journals[0].status().failed.is_some());
    move_to(&server, Some(&journals[1])).unwrap();
    written.append(&mut write_some(&server, "v", 100..200));
    assert!(server.status("v").dirty_bytes > 0);
    let ([disk_then], [b_then]) = power_loss([&*disk], [&*b]);
    server.stop();
    let server = start(Engine::Epoll);
    let journal = open(&server, Arc::clone(&b_then) as _);
    add(&server, "v", Arc::clone(&disk_then) as _, &journal);
    check(&server, "v", &written);
    server.stop();
}

#[test]
fn a_journal_with_writes_of_the_volume_is_refused() {
    // The journal b has writes of another "v", which was not served since.
    let (other, b) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(Engine::Epoll);
    let journal = open(&server, Arc::clone(&b) as _);
    add(&server, "v", Arc::clone(&other) as _, &journal);
    write_some(&server, "v", 0..50);
    let ([_], [b]) = power_loss([&*other], [&*b]);
    server.stop();
    let (disk, a) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = two_journals(Engine::Epoll);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    let error = move_to(&server, Some(&journals[1])).unwrap_err();
    check_refused(&server, &error, "from an earlier use", &journals[0]);
    server.stop();
}

#[test]
fn a_move_that_cannot_be_recorded_is_refused() {
    let (disk, a, b) = (memory(16 * MIB), memory(JOURNAL_BYTES), memory(JOURNAL_BYTES));
    let record = Arc::new(Record {
        disk: Arc::clone(&disk),
        journals: [Arc::clone(&a), Arc::clone(&b)],
        ids: Mutex::default(),
        relies: Mutex::default(),
        lost: Mutex::default(),
        fails: AtomicBool::new(false),
        is_later: AtomicBool::new(false),
    });
    let server = two_journals(Engine::Epoll);
    server.runtime.volumes().protectors().keep_journal_record(Arc::clone(&record) as _);
    let journals = [open(&server, Arc::clone(&a) as _), open(&server, Arc::clone(&b) as _)];
    let ids = journals.iter().map(|journal| journal.status().id).collect();
    *record.ids.lock().unwrap() = ids;
    add(&server, "v", Arc::clone(&disk) as _, &journals[0]);
    server.client("v").write(0, &block(7)).unwrap();
    record.fails.store(true, Ordering::Relaxed);
    let error = move_to(&server, Some(&journals[1])).unwrap_err().explained();
    assert!(error.contains("state directory"), "{error}");
    // Nothing is acknowledged from memory before the journal is relied on again.
    server.client("v").write(4096, &block(8)).unwrap();
    assert_eq!(read_backend(&*disk, 4096, 4096), block(8));
    record.fails.store(false, Ordering::Relaxed);
    move_to(&server, Some(&journals[0])).unwrap();
    server.client("v").write(8192, &block(9)).unwrap();
    assert!(server.status("v").dirty_bytes > 0);
    assert_eq!(record.relies.lock().unwrap().len(), 1);
    server.stop();
}
