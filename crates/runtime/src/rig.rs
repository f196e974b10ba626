//! Helpers for unit tests: a configuration, a volume, a journal, a listener.

#[path = "../tests/common/mod.rs"]
pub(crate) mod common;

use crate::{
    Ecc, Engine, JournalId, JournalSettings, MemberRecord, Runtime, RuntimeConfig, VoidRecords,
    VolumeJournal, VolumeSettings,
};
use common::client::PATIENCE;
use common::wait_until;
use forebay_backend::Backend;
use forebay_engine::{LineKey, SealVerdict};
use forebay_frontend_nbd::{Listener, NbdServer, TlsSetup};
use forebay_types::{Auto, ByteRange, Durability, IoResult, LINE_BYTES, Mode, VolumeId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, mpsc};

pub(crate) const MIB: u64 = 1 << 20;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards all calls to the system allocator; the counter has no destructor, so it
// allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees what the system allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// A configuration with one worker and no journal.
pub(crate) fn config(memory_bytes: u64) -> RuntimeConfig {
    let (engine, ecc) = (Engine::Auto, Ecc::default());
    RuntimeConfig { memory_bytes, start_bytes: memory_bytes, workers: 1, engine, journals: 0, ecc }
}

/// As [`config`], over epoll and without a patrol, which takes the locks of the shards.
pub(crate) fn quiet_config(memory_bytes: u64) -> RuntimeConfig {
    RuntimeConfig { engine: Engine::Epoll, ecc: Ecc::Off, ..config(memory_bytes) }
}

/// A volume in write-back mode that neither prefetches nor gathers.
pub(crate) fn volume(name: &str, disk: Arc<dyn Backend>) -> VolumeSettings {
    let mut volume = VolumeSettings::new(name, disk, Mode::WriteBack);
    (volume.config.prefetch, volume.config.gather_below) = (false, Auto::Set(0));
    volume
}

/// The member record of a journal on one device, which has no members to record.
struct NoMembers;

impl MemberRecord for NoMembers {
    fn members(&self, _: JournalId) -> Vec<u64> {
        Vec::new()
    }

    fn record(&self, _: JournalId, _: &[u64]) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens a journal for a volume whose writes wait for their records.
pub(crate) fn open_journal(runtime: &Runtime, device: Arc<dyn Backend>) -> VolumeJournal {
    let settings = JournalSettings {
        backend: device,
        mirror: None,
        members: Box::new(NoMembers),
        accept_loss: false,
        beat_every: None,
        is_abandoned: Box::new(|_| VoidRecords::None),
        on_failure: Box::new(|_, _, _| Ok(())),
    };
    let journal = runtime.volumes().protectors().open_journal(settings).unwrap();
    let (durability, identity) = (Durability::Ack, [7; 32]);
    VolumeJournal { journal, durability, identity, accept_disk: false }
}

/// Writes a line, which is recorded in the journal if `records`, and waits for the record.
pub(crate) fn write(runtime: &Runtime, id: VolumeId, line: u64, byte: u8, records: bool) {
    begin_write(runtime, id, line, byte, records).recv().unwrap().unwrap();
}

/// As [`write`], without waiting; the result will be in the channel.
pub(crate) fn begin_write(
    runtime: &Runtime,
    id: VolumeId,
    line: u64,
    byte: u8,
    records: bool,
) -> mpsc::Receiver<IoResult> {
    let (sender, result) = mpsc::channel();
    let asked = runtime.run_on(0, move |tasks| {
        let range = ByteRange::new(line * LINE_BYTES, LINE_BYTES);
        let on_done = Box::new(move |result: IoResult| {
            let _ = sender.send(result);
        });
        tasks.restore(id, range, Some(&[byte; LINE_BYTES as usize]), records, on_done);
    });
    asked.unwrap();
    result
}

/// Waits until a line is sealed, and reports it to its shard as damaged beyond repair. Returns the
/// volume's lost sectors in that shard.
pub(crate) fn lose(runtime: &Runtime, id: VolumeId, line: u64) -> u64 {
    lose_sectors(runtime, id, line, 0xff)
}

/// As [`lose`], for these sectors only.
pub(crate) fn lose_sectors(runtime: &Runtime, id: VolumeId, line: u64, sectors: u8) -> u64 {
    let key = LineKey::new(id, line);
    let mut lost = 0;
    wait_until("the line is sealed", PATIENCE, || {
        (0..runtime.shared().shards.len()).any(|number| {
            let mut shard = runtime.shared().shard(number);
            let seal = shard.slots().find_valid(key, 0).and_then(|slot| shard.seal_of(slot));
            let Some(seal) = seal else { return false };
            shard.damaged(&seal, SealVerdict::Lost { sectors });
            lost = shard.volume(id).lost_sectors();
            true
        })
    });
    lost
}

/// Waits until a line is sealed, and flips all of its bits.
pub(crate) fn damage(runtime: &Runtime, id: VolumeId, line: u64) {
    let (shared, key) = (runtime.shared(), LineKey::new(id, line));
    wait_until("the line is sealed", PATIENCE, || {
        (0..shared.shards.len()).any(|number| {
            let shard = shared.shard(number);
            let seal = shard.slots().find_valid(key, 0).and_then(|slot| shard.seal_of(slot));
            let Some(seal) = seal else { return false };
            let at = shared.pool.line(number, seal.slot);
            for byte in 0..LINE_BYTES as usize {
                // SAFETY: inside the line; the shard is locked, and no client accesses the line.
                unsafe { *at.add(byte) ^= 0xff };
            }
            true
        })
    });
}

/// Accepts NBD clients at a Unix socket.
pub(crate) fn listen(server: &NbdServer, socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    server.listen(Listener::new(listener.into(), false, TlsSetup::new(None)));
}
