//! What all workers share: the shards, the pool, the volumes, and each other's inboxes.

use crate::calibrate::Gather;
use crate::clients::{Budget, Entry, Inquiries, Queue, Waiter};
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

/// A volume as workers know it.
pub(crate) struct Volume {
    pub id: VolumeId,
    pub name: String,
    /// What clients are told of it.
    pub info: SharedLock<VolumeInfo>,
    pub backend: Arc<dyn Backend>,
    pub streams: Lock<Streams>,
    /// Whether streams are read ahead.
    pub prefetch: AtomicBool,
    /// What the geometry of the disk is taken to be.
    pub geometry: DiskGeometry,
    /// How it is divided: as its geometry has it, or as it was when the lines in the pool found
    /// their places.
    pub stripes: Stripes,
    /// Which writes are worth gathering.
    pub gather: Gather,
    /// How fast write-back may go.
    pub govern: Govern,
    /// Whether writes are refused, also to clients that were told otherwise.
    pub read_only: AtomicBool,
    pub flush: FlushGate,
    /// Which transfers to its disk own which blocks.
    pub blocks: Lock<BlockOwners<TransferName>>,
    /// Its epochs, if what is dirty of it goes to the disk in order.
    pub order: Option<Arc<Order>>,
    /// What was lost of it in the pool when that was taken over is older in its journal, or not
    /// there: no flush succeeds, and nothing comes back from there, while anything is lost.
    pub journal_is_stale: AtomicBool,
    /// What keeps its writes, if anything does.
    pub journal: Option<JournalUse>,
    /// Whether a supply keeps them, and how that stands.
    pub power: PowerState,
    /// Where what is dirty of it goes when the battery runs low, if anywhere.
    pub vault: Option<Arc<Vault>>,
    /// What its disk looked like, for the vault.
    pub samples: OnceLock<KeptSamples>,
    pub reads: Reads,
    /// Whether its disk is where it was opened.
    pub presence: Presence,
    /// Flushes that somebody inside waits, or waited, for.
    pub inside_flushes: AtomicU64,
    pub inquiries: Inquiries,
    /// One for each worker.
    pub stats: Vec<WorkerStats>,
    /// Clients that entered the volume.
    pub connections: AtomicU64,
    /// Set when the volume is being removed: new requests are refused.
    pub leaving: AtomicBool,
}

/// A journal as a volume uses it.
pub(crate) struct JournalUse {
    pub journal: Arc<Journal>,
    /// The volume's number there.
    pub number: u16,
    pub durability: Durability,
}

/// Names a transfer to a disk among those of all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferName {
    pub worker: usize,
    pub tag: u32,
}

impl Volume {
    /// The block size of its disk, in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.backend.description().alignment_bytes)
    }

    /// Something is about to be let at a range of the disk.
    pub(crate) fn will_change(&self, range: ByteRange) {
        if let Some(samples) = self.samples.get() {
            samples.invalidate(range);
        }
    }
}

/// What clients are told once a flush of the backing store has failed.
pub(crate) const FLUSH_FAILED: &str =
    "a flush of the backing store failed, and the operator has not trusted it again";

/// Whether the backend has anything to flush, and whether what it says to that is worth anything.
///
/// The kernel tells of data that it could not write once, and forgets the data: a flush that
/// succeeds after one that failed speaks only of what was written between them. So a failure
/// stays, and every flush fails, until the operator says that the disk is to be trusted again.
#[derive(Debug, Default)]
pub(crate) struct FlushGate(Lock<FlushState>);

#[derive(Debug, Default)]
struct FlushState {
    /// Something was written since the last flush began, or that flush failed.
    unflushed: bool,
    in_flight: u32,
    /// How a flush has failed.
    failure: Option<IoError>,
}

/// What a flush asks of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushNeed {
    /// To flush.
    Flush,
    /// Nothing: the answer is known.
    Known(IoResult),
}

impl FlushGate {
    /// Something has been written.
    pub(crate) fn wrote(&self) {
        self.0.lock().unflushed = true;
    }

    /// Whether a flush has to go to the backend. One that is on its way there may have started
    /// before what this one is about was written, or may yet fail: it saves nothing.
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

    /// The backend has answered. Returns what that is worth, and whether it is the first failure.
    pub(crate) fn end(&self, result: IoResult) -> (IoResult, bool) {
        let mut state = self.0.lock();
        state.in_flight -= 1;
        state.unflushed |= result.is_err();
        let first = state.failure.is_none() && result.is_err();
        // The news may have gone to another flush that was on its way at the same time.
        state.failure = state.failure.or(result.err());
        (state.failure.map_or(Ok(()), Err), first)
    }

    /// How a flush has failed since the disk was trusted last.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.0.lock().failure
    }

    /// The operator trusts the disk again; the next flush goes there.
    pub(crate) fn trust(&self) {
        let mut state = self.0.lock();
        state.unflushed |= state.failure.take().is_some();
    }
}

/// How long a disk counts as being read after the last read has ended, in milliseconds: one that
/// reads on has the next in flight by then.
const READING_MS: u64 = 100;

/// Reads of a disk that clients wait for, or will.
#[derive(Debug)]
pub(crate) struct Reads {
    in_flight: AtomicU64,
    last_end_ms: AtomicU64,
    /// How long they took since that was asked for, by [`ReadTimes::bucket_of`].
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

    /// One has ended, so many milliseconds after the start of everything.
    pub(crate) fn end(&self, now_ms: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.times[ReadTimes::bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        self.last_end_ms.store(now_ms, Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// How long those took that have ended since this was asked for the last time.
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
    pub(crate) fn are_on(&self, now_ms: u64) -> bool {
        let last = self.last_end_ms.load(Ordering::Relaxed);
        let lately = last > 0 && now_ms < last + READING_MS;
        lately || self.in_flight.load(Ordering::Relaxed) > 0
    }
}

/// Something to do on a worker's thread.
pub(crate) type Task = Box<dyn FnOnce(&mut dyn crate::worker::Tasks) + Send>;

/// What a worker is told by others.
pub(crate) enum Message {
    /// An I/O that was given to a backend has ended.
    IoDone { tag: u64, result: IoResult },
    /// A transfer of the worker's may start: it has got the blocks that it waited for.
    BlockFree { tag: u32 },
    /// A part of one of the worker's requests is answered.
    Answer(Answer),
    /// The request that this client waits with may find room now.
    RoomFree { client: ClientId },
    /// What the backend said to a client's question; nothing where it is not known.
    Extents { query: ExtentQuery, extents: Vec<Extent> },
    /// What the front end of the worker is told, in a box of its own kind of message.
    FrontEnd(Box<dyn Any + Send>),
    /// Do this between two turns.
    Task(Task),
}

/// A worker's inbox, and its bell.
pub(crate) struct Inbox {
    /// None once nobody reads them any more.
    messages: Lock<Option<Vec<Message>>>,
    rung: AtomicBool,
    bell: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::EventfdFlags;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Lock::new(Some(Vec::new())), rung: AtomicBool::new(false), bell })
    }

    pub(crate) fn post(&self, message: Message) {
        match &mut *self.messages.lock() {
            Some(messages) => messages.push(message),
            // Dropping it tells whoever waits for an answer.
            None => return,
        }
        // One ring is enough until the worker has come to look.
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Takes all messages into an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        // Cleared first: a message posted from now on rings again.
        self.rung.store(false, Ordering::Release);
        if let Some(messages) = &mut *self.messages.lock() {
            std::mem::swap(messages, into);
        }
    }

    /// The worker ends. What is posted is dropped from now on, and so is what nobody has read.
    pub(crate) fn close(&self) {
        let unread = self.messages.lock().take();
        drop(unread);
    }

    /// Whether the worker has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.lock().is_none()
    }

    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

impl CompletionSink for Inbox {
    fn complete(&self, tag: u64, result: IoResult) {
        self.post(Message::IoDone { tag, result });
    }
}

/// See the module's description.
pub(crate) struct Shared {
    pub pool: Arc<Pool>,
    pub ecc: Ecc,
    pub code: Code,
    /// Milliseconds that the last walk of the patrol over each shard took; zero before the first.
    pub walk_ms: Vec<AtomicU64>,
    pub shards: Vec<Lock<Shard<MappedLines>, { order::SHARD }>>,
    /// Looks into the shards' indexes.
    pub hints: Vec<Hints>,
    pub inboxes: Vec<Arc<Inbox>>,
    pub volumes: VolumeTable,
    pub started: Instant,
    pub patience: Timeouts,
    /// What requests may take.
    pub budget: Budget,
    pub connections: AtomicU64,
    /// The same by worker.
    pub worker_connections: Vec<AtomicU64>,
    /// Which file descriptors clients may have.
    pub descriptors: Descriptors,
    pub stopping: AtomicBool,
    /// What may be dirty under the protection of supplies.
    pub power: PowerGate,
    /// It was said that a stop loses something.
    pub warned: AtomicBool,
}

impl Shared {
    pub(crate) fn shard(&self, shard: usize) -> Locked<'_, Shard<MappedLines>> {
        // A panic in the engine poisons the shard: what it holds can't be trusted any more, so
        // everybody who needs it stops too, and with them the process.
        self.shards[shard].lock_unbroken("a shard")
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Option<Arc<Volume>> {
        self.volumes.get(volume)
    }

    /// Makes a volume known to the workers and the shards.
    pub(crate) fn introduce(&self, volume: Arc<Volume>, mode: Mode, protection: Protection) {
        // First, as a shard of an adopted pool may destage it as soon as it knows it.
        self.volumes.insert(Arc::clone(&volume));
        let size_bytes = volume.backend.description().size_bytes;
        let elevator = Elevator::new(self.shards.len(), volume.geometry.held_bytes);
        for number in 0..self.shards.len() {
            let mut shard = self.shard(number);
            shard.add_volume(volume.id, size_bytes, mode);
            shard.set_stripes(volume.id, volume.stripes);
            shard.set_elevator(volume.id, Arc::clone(&elevator), number);
            shard.set_protection(volume.id, protection);
            if volume.order.is_some() {
                shard.set_ordered(volume.id);
            }
        }
    }

    /// How a volume is divided.
    pub(crate) fn stripes(&self, volume: VolumeId) -> Stripes {
        self.volume(volume).map_or(Stripes::NONE, |volume| volume.stripes)
    }

    /// Tells who waits for room that it is worth a try.
    pub(crate) fn call_next(&self, next: Option<Waiter>) {
        if let Some((worker, number, generation)) = next {
            let client = ClientId { number, generation };
            self.inboxes[worker].post(Message::RoomFree { client });
        }
    }

    /// Takes memory in a room, or a place in its queue. Returns whether it was granted.
    pub(crate) fn enter(&self, queue: Queue, bytes: u64, waiter: Waiter) -> bool {
        match self.budget.room(queue).enter(bytes, waiter) {
            Entry::Granted { next } => {
                self.call_next(next);
                true
            }
            Entry::Queued => false,
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
        self.call_next(self.budget.room(Queue::Payloads).leave(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_skipped_only_when_nothing_can_be_unflushed() {
        let gate = FlushGate::default();
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())), "nothing was written");
        gate.wrote();
        assert_eq!(gate.begin(), FlushNeed::Flush);
        assert_eq!(gate.begin(), FlushNeed::Flush, "the first one is not done yet");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        gate.wrote();
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Flush, "written while the others were on their way");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())));
    }

    #[test]
    fn a_failed_flush_stays_until_the_disk_is_trusted_again() {
        let failed = FlushNeed::Known(Err(IoError::Io));
        let gate = FlushGate::default();
        gate.wrote();
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
