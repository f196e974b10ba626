//! The state that all workers share: the shards, the pool, the volumes, and the inboxes.

use crate::calibrate::Gather;
use crate::clients::{Acquired, Budget, ExtentQueries, Queue, Waiter};
use crate::descriptors::Descriptors;
use crate::govern::Govern;
use crate::locks::{Lock, Locked, SharedLock, order};
use crate::pool::{MappedLines, Pool};
use crate::protect::guard::KeptSamples;
use crate::protect::journal::Journal;
use crate::protect::patrol::Ecc;
use crate::protect::power::PowerState;
use crate::protect::presence::Presence;
use crate::protect::vault::Vault;
use crate::stats::WorkerStats;
use crate::timeouts::Timeouts;
use crate::volume_table::VolumeTable;
use forebay_backend::{Backend, CompletionSink};
use forebay_ecc::Code;
use forebay_engine::{Answer, Elevator, Hints, Protection, Shard, Slot};
use forebay_frontend::{ClientId, ExtentQuery, PoolAccess, VolumeInfo};
use forebay_policy::ReadTimes;
use forebay_types::{
    ByteRange, DiskGeometry, Durability, Extent, IoError, IoResult, Mode, Stripes, VolumeId,
};
use forebay_volume::{BlockOwners, Order, PowerGate, ReplySegment, Streams};
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A volume, as the workers share it.
pub(crate) struct Volume {
    pub id: VolumeId,
    pub name: String,
    /// Its description for clients.
    pub info: SharedLock<VolumeInfo>,
    pub backend: Arc<dyn Backend>,
    pub streams: Lock<Streams>,
    /// Whether streams are read ahead.
    pub prefetch: AtomicBool,
    /// The assumed geometry of the disk.
    pub geometry: DiskGeometry,
    /// The division into regions: of the geometry, or of the adopted pool if it has the volume.
    pub stripes: Stripes,
    /// The gather threshold.
    pub gather: Gather,
    /// The governor of its writeback.
    pub govern: Govern,
    /// Whether writes are refused. Clients that entered earlier may have seen it as writable.
    pub read_only: AtomicBool,
    pub flush: FlushGate,
    /// The blocks of its disk that transfers own.
    pub blocks: Lock<BlockOwners<TransferId>>,
    /// Its epochs, if it is destaged in order.
    pub order: Option<Arc<Order>>,
    /// Sectors were lost in the adopted pool, and the journal may hold older data of them or none.
    /// While sectors are lost, flushes fail and nothing is restored from the journal.
    pub journal_is_stale: AtomicBool,
    /// The journal that records its writes.
    pub journal: Option<JournalUse>,
    /// Its state with regard to the UPS.
    pub power: PowerState,
    /// The vault that takes its dirty data when the battery runs low.
    pub vault: Option<Arc<Vault>>,
    /// Samples of its disk, for the vault.
    pub samples: OnceLock<KeptSamples>,
    pub reads: Reads,
    /// Whether its disk is where it was opened.
    pub presence: Presence,
    /// Internal flushes in flight, including flushes that are not waited for any more.
    pub internal_flushes: AtomicU64,
    pub extent_queries: ExtentQueries,
    /// One per worker.
    pub stats: Vec<WorkerStats>,
    /// Clients that have entered the volume.
    pub connections: AtomicU64,
    /// The volume is being added or removed: new requests are refused.
    pub leaving: AtomicBool,
}

/// The use of a journal by a volume.
pub(crate) struct JournalUse {
    pub journal: Arc<Journal>,
    /// The volume's number in the journal.
    pub number: u16,
    pub durability: Durability,
}

/// Identifies a transfer to a disk among the transfers of all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferId {
    pub worker: usize,
    pub tag: u32,
}

impl Volume {
    /// The block size of its disk, in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.backend.description().alignment_bytes)
    }

    /// Invalidates the vault's samples of a range that is about to be changed on the disk.
    pub(crate) fn invalidate_samples(&self, range: ByteRange) {
        if let Some(samples) = self.samples.get() {
            samples.invalidate(range);
        }
    }
}

/// The error message for clients once a flush of the backing store has failed.
pub(crate) const FLUSH_FAILED: &str =
    "a flush of the backing store failed, and the operator has not trusted it again";

/// Decides whether a flush has to go to the backend, and latches a failed flush.
///
/// The kernel reports a failed writeback once, and drops the data. A later flush succeeds although
/// that data is missing. So once a flush has failed, every flush fails until the operator trusts
/// the disk again.
#[derive(Debug, Default)]
pub(crate) struct FlushGate(Lock<FlushState>);

#[derive(Debug, Default)]
struct FlushState {
    /// Data was written since the last flush began, or that flush failed.
    unflushed: bool,
    in_flight: u32,
    /// The error of the first failed flush.
    failure: Option<IoError>,
}

/// The action for a flush request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushNeed {
    /// Flush the backend.
    Flush,
    /// Answer without a flush.
    Known(IoResult),
}

impl FlushGate {
    /// Records that data was written.
    pub(crate) fn record_write(&self) {
        self.0.lock().unflushed = true;
    }

    /// Begins a flush. It has to go to the backend even if another flush is in flight, because that
    /// one may have begun before the data was written, or may still fail.
    pub(crate) fn begin(&self) -> FlushNeed {
        let mut state = self.0.lock();
        if let Some(error) = state.failure {
            return FlushNeed::Known(Err(error));
        }
        if !state.unflushed && state.in_flight == 0 {
            return FlushNeed::Known(Ok(()));
        }
        state.unflushed = false;
        state.in_flight += 1;
        FlushNeed::Flush
    }

    /// Ends a flush of the backend. Returns the result for the request, and whether this is the
    /// first failure.
    pub(crate) fn end(&self, result: IoResult) -> (IoResult, bool) {
        let mut state = self.0.lock();
        state.in_flight -= 1;
        state.unflushed |= result.is_err();
        let is_first = state.failure.is_none() && result.is_err();
        // The kernel may have reported the failure to a concurrent flush instead of this one.
        state.failure = state.failure.or(result.err());
        (state.failure.map_or(Ok(()), Err), is_first)
    }

    /// The error of a failed flush, until the disk is trusted again.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.0.lock().failure
    }

    /// Clears the failure. The next flush goes to the backend.
    pub(crate) fn trust(&self) {
        let mut state = self.0.lock();
        state.unflushed |= state.failure.take().is_some();
    }
}

/// How long a disk counts as being read after the last read, in milliseconds. A busy client sends
/// its next read sooner.
const READING_MS: u64 = 100;

/// The reads of a disk: whether there are any, and their latencies.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: AtomicU64,
    last_end_ms: AtomicU64,
    /// A histogram of latencies since the last [`Reads::take_times`], by [`ReadTimes::bucket_of`].
    times: Box<[AtomicU32]>,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            in_flight: AtomicU64::new(0),
            last_end_ms: AtomicU64::new(0),
            times: (0..ReadTimes::BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Reads {
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a read, at `now_ms` milliseconds since the start of the runtime.
    pub(crate) fn end(&self, now_ms: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.times[ReadTimes::bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        self.last_end_ms.store(now_ms, Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the latencies of the reads that have ended since the last call.
    pub(crate) fn take_times(&self) -> ReadTimes {
        let mut times = ReadTimes::default();
        for (bucket, count) in self.times.iter().enumerate() {
            if count.load(Ordering::Relaxed) > 0 {
                times.add(bucket, u64::from(count.swap(0, Ordering::Relaxed)));
            }
        }
        times
    }

    /// Whether the disk is being read.
    pub(crate) fn is_reading(&self, now_ms: u64) -> bool {
        let last = self.last_end_ms.load(Ordering::Relaxed);
        let is_recent = last > 0 && now_ms < last + READING_MS;
        is_recent || self.in_flight.load(Ordering::Relaxed) > 0
    }
}

/// A closure to run on a worker's thread.
pub(crate) type Task = Box<dyn FnOnce(&mut dyn crate::worker::Tasks) + Send>;

/// A message from another thread to a worker.
pub(crate) enum Message {
    /// A backend has completed an I/O of the worker.
    IoDone { tag: u64, result: IoResult },
    /// A transfer of the worker owns its blocks now, and may start.
    BlockFree { tag: u32 },
    /// A part of one of the worker's requests is answered.
    Answer(Answer),
    /// Memory for which the client is queued may be free now.
    MemoryFree { client: ClientId },
    /// The answer to an extent query; without extents if they are unknown.
    Extents { query: ExtentQuery, extents: Vec<Extent> },
    /// A message of the front end's own type.
    FrontEnd(Box<dyn Any + Send>),
    /// Run this between two turns.
    Task(Task),
}

/// The messages to a worker, and an eventfd that wakes it.
pub(crate) struct Inbox {
    /// `None` once the worker has ended.
    messages: Lock<Option<Vec<Message>>>,
    is_signalled: AtomicBool,
    eventfd: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::EventfdFlags;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (messages, is_signalled) = (Lock::new(Some(Vec::new())), AtomicBool::new(false));
        Ok(Self { messages, is_signalled, eventfd })
    }

    pub(crate) fn post(&self, message: Message) {
        match &mut *self.messages.lock() {
            Some(messages) => messages.push(message),
            // Dropping the message notifies the sender if it waits for an answer.
            None => return,
        }
        // One signal suffices until the worker drains the list.
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Swaps all messages into an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        // Cleared first, so that a message posted from now on signals again.
        self.is_signalled.store(false, Ordering::Release);
        if let Some(messages) = &mut *self.messages.lock() {
            std::mem::swap(messages, into);
        }
    }

    /// Drops all messages, and all that are posted from now on, as the worker ends.
    pub(crate) fn close(&self) {
        let unread = self.messages.lock().take();
        drop(unread);
    }

    /// Whether the worker has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.lock().is_none()
    }

    pub(crate) fn eventfd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

impl CompletionSink for Inbox {
    fn complete(&self, tag: u64, result: IoResult) {
        self.post(Message::IoDone { tag, result });
    }
}

/// The shared state. See the module.
pub(crate) struct Shared {
    pub pool: Arc<Pool>,
    pub ecc: Ecc,
    pub code: Code,
    /// The duration of the patrol's last walk over each shard in milliseconds; zero before the
    /// first.
    pub walk_ms: Vec<AtomicU64>,
    pub shards: Vec<Lock<Shard<MappedLines>, { order::SHARD }>>,
    /// Lock-free lookups in the shards' indexes, for prefetching.
    pub hints: Vec<Hints>,
    pub inboxes: Vec<Arc<Inbox>>,
    pub volumes: VolumeTable,
    pub started: Instant,
    pub timeouts: Timeouts,
    /// The memory limit of requests.
    pub budget: Budget,
    pub connections: AtomicU64,
    /// Connections by worker.
    pub worker_connections: Vec<AtomicU64>,
    /// The file descriptors that clients may use.
    pub descriptors: Descriptors,
    pub stopping: AtomicBool,
    /// The dirty limit under the UPS.
    pub power: PowerGate,
    /// A stop was refused because it would lose data; the next one proceeds.
    pub warned: AtomicBool,
}

impl Shared {
    pub(crate) fn shard(&self, shard: usize) -> Locked<'_, Shard<MappedLines>> {
        // After a panic in the engine, the shard cannot be trusted. Every thread that needs it
        // panics, too, and the process ends.
        self.shards[shard].lock_unbroken("a shard")
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Option<Arc<Volume>> {
        self.volumes.get(volume)
    }

    /// Adds a volume to the table and to the shards.
    pub(crate) fn register(&self, volume: Arc<Volume>, mode: Mode, protection: Protection) {
        // To the table first: a shard of an adopted pool may destage the volume at once.
        self.volumes.insert(Arc::clone(&volume));
        let size_bytes = volume.backend.description().size_bytes;
        let elevator = Elevator::new(self.shards.len(), volume.geometry.held_bytes);
        for number in 0..self.shards.len() {
            let mut shard = self.shard(number);
            shard.add_volume(volume.id, size_bytes, mode);
            let in_shard = shard.volume_mut(volume.id);
            in_shard.set_stripes(volume.stripes);
            in_shard.set_elevator(Arc::clone(&elevator), number);
            in_shard.set_protection(protection);
            if volume.order.is_some() {
                in_shard.set_ordered();
            }
        }
    }

    /// The division of a volume into regions.
    pub(crate) fn stripes(&self, volume: VolumeId) -> Stripes {
        self.volume(volume).map_or(Stripes::NONE, |volume| volume.stripes)
    }

    /// Has a queued client try again to acquire memory.
    pub(crate) fn wake_waiter(&self, next: Option<Waiter>) {
        if let Some((worker, number, generation)) = next {
            let client = ClientId { number, generation };
            self.inboxes[worker].post(Message::MemoryFree { client });
        }
    }

    /// Acquires memory of a quota, or queues the client. Returns whether the memory is granted.
    pub(crate) fn acquire(&self, queue: Queue, bytes: u64, waiter: Waiter) -> bool {
        match self.budget.quota(queue).acquire(bytes, waiter) {
            Acquired::Granted { next } => {
                self.wake_waiter(next);
                true
            }
            Acquired::Queued => false,
        }
    }
}

impl PoolAccess for Shared {
    fn line(&self, shard: usize, slot: Slot) -> *mut u8 {
        self.pool.line(shard, slot)
    }

    fn release(&self, segments: &[ReplySegment]) {
        crate::worker::release(self, segments);
    }

    fn unstage(&self, shard: usize, slots: &[Slot]) {
        let mut shard = self.shard(shard);
        slots.iter().rev().for_each(|&slot| shard.release(slot));
    }

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn end_reservation(&self, bytes: u64) {
        self.wake_waiter(self.budget.quota(Queue::Payloads).release(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_skipped_only_when_nothing_can_be_unflushed() {
        let gate = FlushGate::default();
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())), "nothing was written");
        gate.record_write();
        assert_eq!(gate.begin(), FlushNeed::Flush);
        assert_eq!(gate.begin(), FlushNeed::Flush, "the first one is in flight");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        gate.record_write();
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Flush, "written while the others were in flight");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())));
    }

    #[test]
    fn a_failed_flush_stays_until_the_disk_is_trusted_again() {
        let failed = FlushNeed::Known(Err(IoError::Io));
        let gate = FlushGate::default();
        gate.record_write();
        assert_eq!((gate.begin(), gate.begin()), (FlushNeed::Flush, FlushNeed::Flush));
        assert_eq!(gate.end(Err(IoError::Io)), (Err(IoError::Io), true));
        assert_eq!(gate.end(Ok(())), (Err(IoError::Io), false), "it proves nothing any more");
        assert_eq!((gate.begin(), gate.failure()), (failed, Some(IoError::Io)));
        gate.trust();
        assert_eq!(gate.failure(), None);
        assert_eq!(gate.begin(), FlushNeed::Flush, "although nothing was written since");
        assert_eq!(gate.end(Ok(())), (Ok(()), false));
        gate.trust();
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())), "trust alone is nothing to flush");
    }
}
