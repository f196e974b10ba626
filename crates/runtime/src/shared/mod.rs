//! The state that all workers share: the shards, the pool, the volumes, and the inboxes.

mod flush_gate;
mod inbox;
mod reads;
mod shards;
mod volume;
mod volume_table;

pub(crate) use flush_gate::{FLUSH_FAILED, FlushGate, FlushNeed};
pub(crate) use inbox::{Inbox, Message};
pub(crate) use reads::Reads;
pub(crate) use shards::Shards;
pub(crate) use volume::{JournalUse, TransferId, Volume};
pub(crate) use volume_table::VolumeTable;

use crate::background::Background;
use crate::clients::{Acquired, Budget, Queue, Waiter};
use crate::descriptors::Descriptors;
use crate::disks::UnansweredIos;
use crate::error::{StartError, VolumeError};
use crate::huge_pages::HugePages;
use crate::locks::Locked;
use crate::memory_plan::MemoryPlan;
use crate::pool::{MappedLines, Pool};
use crate::protect::patrol::{Ecc, no_walks};
use crate::runtime::RuntimeConfig;
use crate::timeouts::Timeouts;
use crate::worker::Tasks;
use forebay_ecc::Code;
use forebay_engine::{Protection, Shard, Slot};
use forebay_frontend::{ClientId, PoolAccess};
use forebay_protect::PowerGate;
use forebay_types::{Stripes, VolumeId};
use forebay_volume::ReplySegment;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

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
    /// Makes the shared state, over an empty pool or an adopted one.
    pub(crate) fn open(
        config: &RuntimeConfig,
        plan: &MemoryPlan,
        timeouts: Timeouts,
        kept: Option<OwnedFd>,
    ) -> Result<Arc<Self>, StartError> {
        let pool = Pool::open(plan.pool_bytes, plan.shards, kept)?;
        pool.record_limit(plan.limit_bytes, plan.start_bytes);
        let mut shards = crate::protect::adopt::shards(&pool, timeouts.dirty_age)?;
        let ecc = config.ecc;
        shards.iter_mut().for_each(|shard| shard.set_parity(ecc == Ecc::Parity));
        let workers = 0..config.workers;
        let inboxes: Result<Vec<_>, _> =
            workers.clone().map(|_| Inbox::new().map(Arc::new)).collect();
        Ok(Arc::new(Self {
            shards: Shards::new(shards),
            inboxes: inboxes.map_err(io::Error::from)?,
            volumes: VolumeTable::default(),
            unanswered: UnansweredIos::new(config.workers),
            started: Instant::now(),
            timeouts,
            budget: Budget::new(plan.request_bytes, plan.lane_bytes, plan.payload_bytes),
            connections: AtomicU64::new(0),
            descriptors: Descriptors::read(),
            worker_connections: workers.map(|_| AtomicU64::new(0)).collect(),
            stopping: AtomicBool::new(false),
            power: PowerGate::default(),
            background: Background::default(),
            is_recording: AtomicBool::new(false),
            huge_pages: HugePages::new(pool.shards()),
            pool,
            ecc,
            code: Code::detect(),
            walk_ms: no_walks(plan.shards),
        }))
    }

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
    ) -> Result<T, VolumeError> {
        let (sender, result) = mpsc::channel();
        let task = Box::new(move |tasks: &mut dyn Tasks| {
            let _ = sender.send(task(tasks));
        });
        self.inboxes[worker].post(Message::Task(task));
        // A worker that has ended drops the task, and with it the sender.
        result.recv().map_err(|_| VolumeError::Stopping)
    }

    /// Runs a task on one worker after the other, and returns the results.
    pub(crate) fn run_on_all<T: Send + 'static>(
        &self,
        task: impl Fn(&mut dyn Tasks) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, VolumeError> {
        (0..self.inboxes.len()).map(|worker| self.run_on(worker, task.clone())).collect()
    }

    /// Runs a task on all workers, and returns the results that arrive within `timeout`.
    pub(crate) fn run_on_each_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        task: impl Fn(&mut dyn Tasks) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
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

    /// Whether writeback of a volume slows down unless it is urgent: clients read from its disk, or
    /// other programs wait for disks.
    pub(crate) fn slows_writeback(&self, volume: &Volume, now_ms: u64) -> bool {
        volume.reads.is_reading(now_ms) || !self.background.disks().is_full()
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
