//! Volumes whose disk and journal another client of the cluster has taken over.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{
    JOURNAL_BYTES, MIB, add, block, check, journal_settings, memory, open, start, write_some,
};
use crate::server::read_backend;
use forebay_backend::{Backend, Description, Io, MemoryBackend};
use forebay_runtime::{Engine, JournalSettings, surrender, taken_over};
use forebay_types::IoError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

on_both_engines! {
    a_volume_that_was_taken_over_ends_and_its_records_count,
    a_volume_on_another_disk_continues_without_the_journal,
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
