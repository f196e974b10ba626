//! Volumes whose disk and journal another client of the cluster has taken over.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::journal::{
    JOURNAL_BYTES, MIB, add, block, check, journal_settings, memory, open, start, volume,
    write_some,
};
use crate::server::read_backend;
use forebay_backend::{Backend, Description, Displaced, Io, IoKind, MemoryBackend};
use forebay_nbd::NbdCommand;
use forebay_runtime::{
    Engine, JournalSettings, VolumeError, surrender, taken_over, without_journal,
};
use forebay_types::{IoError, IoResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

on_both_engines! {
    a_volume_that_was_taken_over_ends_and_its_records_count,
    no_client_gets_an_error_that_the_next_owner_would_spare_it,
    a_volume_on_another_disk_continues_without_the_journal,
    records_count_while_the_journal_is_still_here,
    a_volume_ends_although_a_checkpoint_waits_for_its_disk,
    a_volume_on_a_shared_disk_ends_with_its_journal,
    a_volume_that_is_taken_over_while_it_is_added_is_not_served,
}

/// A store that can be taken over.
struct Image {
    store: Arc<MemoryBackend>,
    fence: Arc<AtomicBool>,
}

impl Image {
    fn new(store: &Arc<MemoryBackend>, fence: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self { store: Arc::clone(store), fence: Arc::clone(fence) })
    }
}

impl Backend for Image {
    fn description(&self) -> &Description {
        self.store.description()
    }

    fn submit(&self, io: Io) {
        match self.is_taken_over() {
            true => io.done.complete(Err(IoError::Io)),
            false => self.store.submit(io),
        }
    }

    fn is_taken_over(&self) -> bool {
        self.fence.load(Ordering::SeqCst)
    }
}

/// A store that can be taken over, with a flag that fails its I/O without that.
struct Shared(Arc<MemoryBackend>, Arc<AtomicBool>);

impl Backend for Shared {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn submit(&self, io: Io) {
        match self.1.load(Ordering::SeqCst) {
            true => io.done.complete(Err(IoError::Io)),
            false => self.0.submit(io),
        }
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// The volumes for which the failure of a journal is recorded.
type Recorded = Arc<Mutex<Vec<String>>>;

fn recording(backend: Arc<dyn Backend>) -> (JournalSettings, Recorded) {
    let recorded = Recorded::default();
    let record = Arc::clone(&recorded);
    let settings = JournalSettings {
        on_failure: Box::new(move |_, _, volumes| {
            record.lock().unwrap().extend_from_slice(volumes);
            Ok(())
        }),
        ..journal_settings(backend)
    };
    (settings, recorded)
}

/// Whether a request fails, also with its connection.
fn has_ended(fails: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(fails)).unwrap_or(true)
}

fn a_volume_that_was_taken_over_ends_and_its_records_count(engine: Engine) {
    let fence = Arc::<AtomicBool>::default();
    let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let (settings, recorded) = recording(Image::new(&log, &fence));
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Image::new(&disk, &fence), &journal);
    let written = write_some(&server, "v", 0..200);
    let (mut client, mut reader) = (server.client("v"), server.client("v"));
    assert_eq!(reader.read(0, 4096).unwrap(), written[&0]);
    fence.store(true, Ordering::SeqCst);
    assert!(has_ended(|| client.write(0, &block(1000)).is_err()), "nothing takes it");
    assert!(has_ended(|| reader.read(0, 4096).is_err()), "nobody sees what will not be there");
    wait_until("the journal has failed", PATIENCE, || journal.status().failed.is_some());
    let before = read_backend(&*disk, 0, 16 * MIB);
    assert_eq!(taken_over(server.runtime.volumes()), ["v"]);
    surrender(server.runtime.volumes(), "v").unwrap();
    assert_eq!(server.runtime.status().unwrap().connections, 0, "its clients are disconnected");
    assert!(recorded.lock().unwrap().is_empty(), "the records are not void");
    // A stop needs nothing of the disk.
    server.stop();
    assert!(read_backend(&*disk, 0, 16 * MIB) == before, "nothing was written afterwards");
    let server = start(engine);
    let journal = open(&server, log);
    add(&server, "v", disk, &journal);
    check(&server, "v", &written);
    server.stop();
}

/// The answer to a request; `None` if the server ends the connection instead.
fn answer(client: &mut Client, command: NbdCommand, at: u64, data: &[u8]) -> Option<IoResult> {
    let cookie = client.try_send(command, 0, at, 4096, data)?;
    client.try_wait(cookie).map(|answer| answer.result)
}

/// Clients that connect again send the request to the next owner.
fn no_client_gets_an_error_that_the_next_owner_would_spare_it(engine: Engine) {
    // This server is shut out of the journal first, or of the disk.
    for without_journal in [true, false] {
        let (fence, broken) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
        let server = start(engine);
        let (settings, _) = recording(Arc::new(Shared(log, Arc::clone(&broken))));
        let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
        add(&server, "v", Image::new(&disk, &fence), &journal);
        let mut client = server.client("v");
        client.write(0, &block(0)).unwrap();
        if without_journal {
            broken.store(true, Ordering::SeqCst);
            assert_eq!(answer(&mut client, NbdCommand::Write, 4096, &block(1)), None);
        } else {
            fence.store(true, Ordering::SeqCst);
            assert_eq!(answer(&mut client, NbdCommand::Read, 4 * MIB, &[]), None);
        }
        surrender(server.runtime.volumes(), "v").unwrap();
        server.stop();
    }
}

/// An image that cannot be reached for a while: its I/O waits.
struct CutOff {
    image: Arc<Image>,
    is_cut: AtomicBool,
    waiting: Mutex<Vec<Io>>,
    /// Where writes began that have reached the image, one for each.
    written: Mutex<Vec<u64>>,
}

impl CutOff {
    fn heal(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
        let waiting: Vec<Io> = self.waiting.lock().unwrap().drain(..).collect();
        waiting.into_iter().for_each(|io| self.submit(io));
    }
}

impl Backend for CutOff {
    fn description(&self) -> &Description {
        self.image.description()
    }

    fn submit(&self, io: Io) {
        match self.is_cut.load(Ordering::SeqCst) {
            true => self.waiting.lock().unwrap().push(io),
            false => {
                if matches!(io.kind, IoKind::Write { .. }) {
                    self.written.lock().unwrap().push(io.offset);
                }
                self.image.submit(io);
            }
        }
    }

    fn is_taken_over(&self) -> bool {
        !self.is_cut.load(Ordering::SeqCst) && self.image.is_taken_over()
    }
}

/// A store that another host has taken over in this moment.
struct Lost(Arc<MemoryBackend>);

impl Backend for Lost {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn submit(&self, io: Io) {
        self.0.submit(io);
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        Err(Displaced::TakenOver)
    }

    fn is_taken_over(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn a_volume_that_is_taken_over_while_it_is_added_is_not_served(engine: Engine) {
    let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let journal = open(&server, Arc::clone(&log) as _);
    add(&server, "v", Arc::clone(&disk) as _, &journal);
    write_some(&server, "v", 0..100);
    drop(server);
    let before = read_backend(&*disk, 0, 16 * MIB);
    for (disk_is_lost, log_is_lost) in [(true, false), (false, true), (true, true)] {
        let store = |store: &Arc<MemoryBackend>, is_lost: bool| -> Arc<dyn Backend> {
            if is_lost { Arc::new(Lost(Arc::clone(store))) } else { Arc::clone(store) as _ }
        };
        let server = start(engine);
        let protectors = server.runtime.volumes().protectors();
        let journal = protectors.open_journal(journal_settings(store(&log, log_is_lost))).unwrap();
        let added = server.runtime.volumes().add(volume("v", store(&disk, disk_is_lost), &journal));
        assert!(
            matches!(added, Err(VolumeError::TakenOver(_))),
            "{disk_is_lost} {log_is_lost}: {added:?}"
        );
        assert!(server.runtime.status().unwrap().volumes.is_empty(), "nothing is left of it");
        server.stop();
        assert!(read_backend(&*disk, 0, 16 * MIB) == before, "nothing was written");
    }
}

/// Another host would not know that this one has continued without the journal.
fn a_volume_on_a_shared_disk_ends_with_its_journal(engine: Engine) {
    let broken = Arc::<AtomicBool>::default();
    let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let journal_device = Arc::new(Shared(Arc::clone(&log), Arc::clone(&broken)));
    let (settings, recorded) = recording(journal_device);
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    let shared_disk = Arc::new(Shared(Arc::clone(&disk), Arc::default()));
    add(&server, "v", shared_disk, &journal);
    let written = write_some(&server, "v", 0..200);
    let mut client = server.client("v");
    broken.store(true, Ordering::SeqCst);
    assert!(has_ended(|| client.write(0, &block(1000)).is_err()), "nothing is acknowledged");
    assert_eq!(without_journal(server.runtime.volumes()), ["v"]);
    assert!(taken_over(server.runtime.volumes()).is_empty());
    surrender(server.runtime.volumes(), "v").unwrap();
    assert!(recorded.lock().unwrap().is_empty(), "the records are not void");
    server.stop();
    let server = start(engine);
    let journal = open(&server, log);
    add(&server, "v", disk, &journal);
    check(&server, "v", &written);
    server.stop();
}

/// Another host has the disk, and not yet the journal.
fn records_count_while_the_journal_is_still_here(engine: Engine) {
    let fence = Arc::<AtomicBool>::default();
    let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let (settings, _) = recording(Arc::clone(&log) as _);
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Image::new(&disk, &fence), &journal);
    fence.store(true, Ordering::SeqCst);
    // So many that the journal wants a checkpoint, which the disk refuses.
    let written = write_some(&server, "v", 0..450);
    let mut client = server.client("v");
    let rewrites = written.iter().cycle();
    let taken = rewrites.take_while(|(at, bytes)| {
        answer(&mut client, NbdCommand::Write, **at, bytes) == Some(Ok(()))
    });
    let count = taken.count();
    assert!(count > 2000, "{count} rewrites fill half of the journal");
    surrender(server.runtime.volumes(), "v").unwrap();
    server.stop();
    let server = start(engine);
    let journal = open(&server, log);
    add(&server, "v", disk, &journal);
    check(&server, "v", &written);
    server.stop();
}

fn a_volume_on_another_disk_continues_without_the_journal(engine: Engine) {
    let fence = Arc::<AtomicBool>::default();
    let (disk, log, other) = (memory(16 * MIB), memory(JOURNAL_BYTES), memory(16 * MIB));
    let server = start(engine);
    let (settings, recorded) = recording(Image::new(&log, &fence));
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", Image::new(&disk, &fence), &journal);
    add(&server, "w", Arc::clone(&other) as _, &journal);
    let written = write_some(&server, "w", 0..50);
    fence.store(true, Ordering::SeqCst);
    server.client("w").write(0, &block(1000)).unwrap();
    assert_eq!(read_backend(&*other, 0, 4096), block(1000), "it writes through");
    assert_eq!(*recorded.lock().unwrap(), ["w"]);
    surrender(server.runtime.volumes(), "v").unwrap();
    wait_until("the pool is drained", PATIENCE, || server.status("w").dirty_bytes == 0);
    for (offset, bytes) in written.iter().filter(|(offset, _)| **offset != 0) {
        assert_eq!(&read_backend(&*other, *offset, 4096), bytes);
    }
    server.stop();
}

/// A host was cut off for so long that its journal has begun a checkpoint, as every 30 seconds.
fn a_volume_ends_although_a_checkpoint_waits_for_its_disk(engine: Engine) {
    let fence = Arc::<AtomicBool>::default();
    let (disk, log) = (memory(16 * MIB), memory(JOURNAL_BYTES));
    let server = start(engine);
    let (settings, _) = recording(Image::new(&log, &fence));
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    let image = Image::new(&disk, &fence);
    let (is_cut, waiting, written) = (false.into(), Mutex::default(), Mutex::default());
    let image = Arc::new(CutOff { image, is_cut, waiting, written });
    add(&server, "v", Arc::clone(&image) as _, &journal);
    image.is_cut.store(true, Ordering::SeqCst);
    write_some(&server, "v", 0..450);
    std::thread::sleep(Duration::from_secs(32));
    fence.store(true, Ordering::SeqCst);
    image.heal();
    surrender(server.runtime.volumes(), "v").unwrap();
    // What has failed is tried again after 10 seconds, which must not be waited for.
    let mut written = image.written.lock().unwrap();
    written.sort_unstable();
    let again = written.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(!written.is_empty() && !again, "a refused write was tried again: {written:?}");
    drop(written);
    server.stop();
}
