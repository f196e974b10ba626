//! The state that all workers share: the shards, the pool, the volumes, and the inboxes.

mod inbox;
mod recorder;
mod shards;
mod standstill;
mod tasks;
mod timeouts;
mod volume;
mod volume_table;

pub(crate) use inbox::{Inbox, Message};
pub use recorder::{Recorded, Served};
pub(crate) use recorder::{Recorder, Ring};
pub(crate) use shards::Shards;
pub use tasks::ConnectedClient;
pub(crate) use tasks::{OnDone, Outstanding, Tasks};
pub use timeouts::Timeouts;
pub use volume::{
    CalibrateError, Calibration, CalibrationFailure, ForecastScore, ForecastStatus, GatherStatus,
    LearnState, LearnStatus, OnMeasured, PinError, PinStatus, SlowRequest, SlowWait, VolumeSlow,
    WaitingRequest, WaitingRequests, WarmUpState, WarmUpStatus,
};
pub(crate) use volume::{
    DirtyRanges, ExtentQueries, FLUSH_FAILED, FlushGate, FlushNeed, Gather, Govern, JournalSlot,
    JournalUse, Learn, Need, PendingQuery, Pins, SlowVolume, TransferId, Volume, VolumeLimits,
    VolumePins, Warm, limits_of,
};
pub(crate) use volume_table::VolumeTable;

use crate::background::Background;
use crate::budget::{Acquired, Budget, Queue, Waiter};
use crate::disk::UnansweredIos;
use crate::platform::descriptors::Descriptors;
use crate::platform::locks::{Locked, assert_may_wait};
use crate::pool::{HugePages, MappedLines, Pool};
use forebay_ecc::Code;
use forebay_engine::{Place, Protection, Shard, Slot};
use forebay_frontend::{ClientId, PoolAccess};
use forebay_protect::PowerGate;
use forebay_types::{Stripes, VolumeId};
use forebay_volume::ReplySegment;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How damage in the pool's memory is detected and corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecc {
    /// Not at all.
    Off,
    /// Damage is detected. A damaged clean line is read again, and a damaged dirty one fails.
    Checksum,
    /// Dirty lines are also corrected, up to six wrong bytes in each 64. Their parity takes up to a
    /// fifth of their size from the pool.
    #[default]
    Parity,
}

/// A worker has ended, as the process is about to.
#[derive(Debug)]
pub(crate) struct WorkerEnded;

/// No volume has this name.
#[derive(Debug)]
pub(crate) struct UnknownVolume(pub String);

/// The shared state. See the module.
pub(crate) struct Shared {
    pub pool: Arc<Pool>,
    pub huge_pages: HugePages,
    pub ecc: Ecc,
    pub code: Code,
    /// The duration of the patrol's last walk over each shard in milliseconds; zero before the
    /// first.
    pub walk_ms: Vec<AtomicU64>,
    pub shards: Shards,
    pub inboxes: Vec<Arc<Inbox>>,
    pub volumes: VolumeTable,
    /// The I/Os that disks have not answered.
    pub unanswered: UnansweredIos,
    pub started: Instant,
    pub timeouts: Timeouts,
    /// The memory limit of requests.
    pub budget: Budget,
    pub connections: AtomicU64,
    /// Clients that have connected so far, which gives each its number in lists.
    pub clients_joined: AtomicU64,
    /// Connections by worker.
    pub worker_connections: Vec<AtomicU64>,
    /// The file descriptors that clients may use.
    pub descriptors: Descriptors,
    pub stopping: AtomicBool,
    /// Keeps dirty data within what the UPS covers.
    pub power: PowerGate,
    pub background: Background,
    /// Whether the requests of clients are recorded.
    pub is_recording: AtomicBool,
}

impl Shared {
    pub(crate) fn shard(&self, shard: usize) -> Locked<'_, Shard<MappedLines>> {
        self.shards.lock(shard)
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Option<Arc<Volume>> {
        self.volumes.get(volume)
    }

    /// Looks up a volume by its number, unless it is `last`, which it replaces.
    pub(crate) fn volume_after<'a>(
        &self,
        last: &'a mut Option<Arc<Volume>>,
        id: VolumeId,
    ) -> Option<&'a Arc<Volume>> {
        if last.as_ref().is_none_or(|volume| volume.id != id) {
            *last = self.volume(id);
        }
        last.as_ref()
    }

    /// Adds a volume to the table and to the shards.
    pub(crate) fn register(&self, volume: Arc<Volume>, protection: Protection) {
        // To the table first: a shard of an adopted pool may destage the volume at once.
        self.volumes.insert(Arc::clone(&volume));
        self.shards.add_volume(&volume, protection);
    }

    /// Runs a task on the thread of a worker when that reads its inbox, and waits for the result.
    pub(crate) fn run_on<T: Send + 'static>(
        &self,
        worker: usize,
        task: impl FnOnce(&mut dyn Tasks) -> T + Send + 'static,
    ) -> Result<T, WorkerEnded> {
        let (sender, result) = mpsc::channel();
        let task = Box::new(move |tasks: &mut dyn Tasks| {
            let _ = sender.send(task(tasks));
        });
        assert_may_wait();
        self.inboxes[worker].post(Message::Task(task));
        // A worker that has ended drops the task, and with it the sender.
        result.recv().map_err(|_| WorkerEnded)
    }

    /// Runs a task on one worker after the other, and returns the results.
    pub(crate) fn run_on_all<T: Send + 'static>(
        &self,
        task: impl Fn(&mut dyn Tasks) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, WorkerEnded> {
        (0..self.inboxes.len()).map(|worker| self.run_on(worker, task.clone())).collect()
    }

    /// Runs a task on all workers, and returns the results that arrive within `timeout`.
    pub(crate) fn run_on_each_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        task: impl Fn(&mut dyn Tasks) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        assert_may_wait();
        let deadline = Instant::now() + timeout;
        let (sender, results) = mpsc::channel();
        for inbox in &self.inboxes {
            let (sender, task) = (sender.clone(), task.clone());
            inbox.post(Message::Task(Box::new(move |tasks: &mut dyn Tasks| {
                let _ = sender.send(task(tasks));
            })));
        }
        drop(sender);
        let next = || results.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }

    /// Whether each worker gets to a task within `timeout`, or has ended.
    pub(crate) fn answers_within(&self, timeout: Duration) -> bool {
        assert_may_wait();
        let deadline = Instant::now() + timeout;
        let (sender, results) = mpsc::channel::<()>();
        for inbox in &self.inboxes {
            let sender = sender.clone();
            inbox.post(Message::Task(Box::new(move |_: &mut dyn Tasks| drop(sender))));
        }
        drop(sender);
        // Disconnected once no task is left.
        let left = deadline.saturating_duration_since(Instant::now());
        results.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Whether writeback of a volume slows down unless it is urgent: clients read from its disk, or
    /// other programs wait for disks.
    pub(crate) fn slows_writeback(&self, volume: &Volume, now_ms: u64) -> bool {
        volume.disk.reads.is_reading(now_ms) || !self.background.disks().is_full()
    }

    /// The division of a volume into regions.
    pub(crate) fn stripes(&self, volume: VolumeId) -> Stripes {
        self.volume(volume).map_or(Stripes::NONE, |volume| volume.stripes)
    }

    /// Makes a queued client retry to acquire memory.
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

    /// Takes the lock of each shard once.
    fn release(&self, segments: &[ReplySegment]) {
        let mut shards = segments.iter().fold(0u64, |shards, segment| shards | 1 << segment.shard);
        debug_assert!(shards.checked_ilog2().unwrap_or(0) < self.shards.len() as u32);
        while shards != 0 {
            let number = shards.trailing_zeros();
            shards &= shards - 1;
            let mut shard = self.shard(number as usize);
            for segment in segments {
                if u32::from(segment.shard) == number
                    && let Place::Slot { slot, .. } = segment.segment.place
                {
                    shard.release(slot);
                }
            }
        }
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
