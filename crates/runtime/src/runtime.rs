//! The runtime: its start, its stop, and the operations that it offers.
//!
//! A [`Runtime`] owns the workers and the state that they share. [`VolumeService`] manages the
//! volumes.

mod open;
mod stop;

pub use stop::{LeftBehind, leave};

use crate::background::BackgroundShares;
use crate::collapser::Collapser;
use crate::error::{StartError, VolumeError};
use crate::learn::Histories;
use crate::memory_plan::MemoryPlan;
use crate::platform::clock::LocalClock;
use crate::pool::MemoryWords;
use crate::protect::power::UpsVolumes;
use crate::protect::vault::{Vault, VaultError, VaultSettings, vault_bytes_for};
use crate::resize::{self, ResizeError, Resizer};
use crate::service::{
    Curves, MemoryStatus, RecordError, Recording, RuntimeStatus, SlowLog, VolumeService,
};
use crate::shared::Timeouts;
use crate::shared::{ConnectedClient, Ecc, Message, Shared};
use crate::warm_up::WarmLists;
use crate::worker::{Crew, Engine};
use crate::write_share::WriteShares;
use forebay_frontend::{Mailer, Service};
use forebay_policy::{MemoryBounds, MemoryUse};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time in which the counts of miss-ratio curves fall by half.
const CURVE_HALF_LIFE: Duration = Duration::from_secs(3600);

/// The configuration of a runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeConfig {
    /// The memory of the process in bytes: pool, metadata, buffers, the program itself.
    pub memory_bytes: u64,
    /// The part of it with which the process begins, in bytes. [`Runtime::set_memory`] gives it
    /// more.
    pub start_bytes: u64,
    /// Threads that serve clients, from 1 to 64.
    pub workers: usize,
    /// The I/O engine.
    pub engine: Engine,
    /// Journals and vaults that will be opened. Memory is reserved for their batches.
    pub journals: usize,
    /// How damage in the pool's memory is detected and corrected.
    pub ecc: Ecc,
}

/// A running cache.
pub struct Runtime {
    shared: Arc<Shared>,
    crew: Crew,
    collapser: Collapser,
    resizer: Resizer,
    plan: MemoryPlan,
    volumes: VolumeService,
}

/// The clients, the longest connected first.
///
/// # Errors
/// When the runtime has stopped.
pub fn clients(runtime: &Runtime) -> Result<Vec<ConnectedClient>, VolumeError> {
    let listed = runtime.shared.run_on_all(|tasks| tasks.clients())?;
    let mut clients: Vec<_> = listed.into_iter().flatten().collect();
    clients.sort_unstable_by_key(|client| client.id);
    Ok(clients)
}

/// Disconnects a client without waiting for its requests, which may complete. Returns what it was;
/// `None` if there is no such client.
///
/// # Errors
/// When the runtime has stopped.
pub fn disconnect(runtime: &Runtime, id: u64) -> Result<Option<ConnectedClient>, VolumeError> {
    let found = runtime.shared.run_on_all(move |tasks| tasks.disconnect(id))?;
    Ok(found.into_iter().flatten().next())
}

/// The number of clients that have connected so far: the largest number of one in lists.
pub fn clients_joined(runtime: &Runtime) -> u64 {
    runtime.shared.clients_joined.load(Ordering::Relaxed)
}

/// Continues the numbers of clients after those of a process whose clients are taken over. Called
/// before the first client.
pub fn continue_clients(runtime: &Runtime, joined: u64) {
    runtime.shared.clients_joined.fetch_max(joined, Ordering::Relaxed);
}

/// Whether requests of a volume are in flight whose client has been disconnected. Those of another
/// volume may count as well, while this one has requests at all.
///
/// # Errors
/// When there is no such volume, or the runtime has stopped.
pub fn has_left_requests(runtime: &Runtime, name: &str) -> Result<bool, VolumeError> {
    let volume = runtime.shared.volumes.named(name)?.id;
    let found = runtime.shared.run_on_all(move |tasks| tasks.has_left_requests(volume))?;
    Ok(found.contains(&true))
}

/// The use of the memory. It takes the shards' locks, and a moment for each volume.
pub fn memory_status(runtime: &Runtime) -> MemoryStatus {
    runtime.volumes.memory(&runtime.memory_bounds())
}

impl Runtime {
    /// Creates the pool and starts the workers, each with a front end of this service.
    ///
    /// # Errors
    /// When the system lacks memory or threads, or forbids the requested I/O engine.
    pub fn start<S: Service>(config: RuntimeConfig, service: &Arc<S>) -> Result<Self, StartError> {
        Self::start_with(config, Timeouts::default(), service)
    }

    /// As [`Runtime::start`], with these timeouts.
    pub fn start_with<S: Service>(
        config: RuntimeConfig,
        timeouts: Timeouts,
        service: &Arc<S>,
    ) -> Result<Self, StartError> {
        Self::start_over(config, timeouts, None, service)
    }

    /// As [`Runtime::start_with`], over the memory file of a keeper, from [`crate::new_pool_file`]:
    /// an empty one, or one with the pool of a process that has ended. In the latter case, the
    /// caller then adds the volumes of that process with [`VolumeService::add`], and calls
    /// [`VolumeService::close_adoption`].
    ///
    /// # Errors
    /// As [`Runtime::start`], and when the file cannot be used.
    pub fn start_over<S: Service>(
        config: RuntimeConfig,
        timeouts: Timeouts,
        kept: Option<OwnedFd>,
        service: &Arc<S>,
    ) -> Result<Self, StartError> {
        Self::start_by(config, timeouts, kept, service, |shared, engine| {
            Crew::start(shared, engine, service)
        })
    }

    /// As [`Runtime::start_over`]. `start_workers` starts the workers.
    pub(crate) fn start_by<S: Service>(
        config: RuntimeConfig,
        timeouts: Timeouts,
        kept: Option<OwnedFd>,
        service: &Arc<S>,
        start_workers: impl FnOnce(&Arc<Shared>, Engine) -> Result<Crew, StartError>,
    ) -> Result<Self, StartError> {
        let workers = config.workers.clamp(1, 64);
        let config = RuntimeConfig { workers, ..config };
        let plan =
            MemoryPlan::new(config.memory_bytes, config.start_bytes, workers, config.journals);
        forebay_frontend::set_kept_bytes_max(plan.kept_bytes / workers as u64);
        let shared = open::shared(&config, &plan, timeouts, kept)?;
        let crew = start_workers(&shared, config.engine)?;
        let inboxes = shared.inboxes.clone();
        service.connect(Mailer::new(move |worker: usize, message| {
            inboxes[worker].post(Message::FrontEnd(message));
        }));
        let (collapser, volumes) = (Collapser::start(&shared), VolumeService::new(&shared));
        let resizer = Resizer::default();
        if shared.pool.is_adopted() {
            resizer.continue_adopted(&shared)?;
        }
        let runtime = Self { shared, crew, collapser, resizer, plan, volumes };
        runtime.begin_small()?;
        Ok(runtime)
    }

    /// The I/O engine in use: `io_uring` or `epoll`.
    pub const fn engine(&self) -> &'static str {
        self.crew.engine()
    }

    /// Whether each worker gets to a task within `timeout`. A worker that has ended does not count.
    pub fn answers_within(&self, timeout: Duration) -> bool {
        self.shared.answers_within(timeout)
    }

    /// Takes a snapshot, shard by shard, on the calling thread. No worker is interrupted, and a
    /// shard's lock is held only while the counters of a few volumes are copied.
    pub fn status(&self) -> Result<RuntimeStatus, VolumeError> {
        self.volumes.status(self.engine(), &self.memory_bounds(), Curves::Copied, None)
    }

    /// As [`Self::status`], with one volume only.
    ///
    /// # Errors
    /// When there is no such volume, or the runtime has stopped.
    pub fn status_of(&self, name: &str) -> Result<RuntimeStatus, VolumeError> {
        self.volumes.status(self.engine(), &self.memory_bounds(), Curves::Copied, Some(name))
    }

    /// As [`Self::status`], without the miss-ratio curves: in constant time for each volume.
    pub fn status_without_curves(&self) -> Result<RuntimeStatus, VolumeError> {
        self.volumes.status(self.engine(), &self.memory_bounds(), Curves::LeftOut, None)
    }

    /// The dirty limit of all shards at the full size of the pool, in bytes.
    pub fn dirty_bytes_max(&self) -> u64 {
        let shares = self.write_share();
        shares.dirty_bytes_max(shares.get())
    }

    /// The dirty limit of one shard in bytes. A wider stripe cannot be gathered, because a stripe
    /// lies in one shard.
    pub fn stripe_bytes_max(&self) -> u64 {
        let shares = self.write_share();
        shares.shard_bytes_max(shares.get())
    }

    /// The share of the pool for writes.
    pub fn write_share(&self) -> WriteShares<'_> {
        WriteShares { shared: &self.shared, vault: self.volumes.protectors().vault(), lines: None }
    }

    /// The share of the pool for writes, to be checked for another size of the memory, which is not
    /// set yet. A size out of bounds counts as the present one: setting it is refused.
    pub fn write_share_at(&self, memory_bytes: u64) -> WriteShares<'_> {
        let bounds = self.bounds_without_pins();
        let lines = resize::shard_lines(&bounds, &self.shared.pool, memory_bytes).ok();
        WriteShares { lines, ..self.write_share() }
    }
}

#[cfg(test)]
impl Runtime {
    /// Ends the collapser, so that a test can make its passes.
    pub(crate) fn stop_collapser(&self) {
        self.collapser.stop();
    }
}

/// The memory.
impl Runtime {
    /// Sets the memory of the start, unless the pool was adopted: then it keeps its size.
    fn begin_small(&self) -> io::Result<()> {
        let (bounds, start_bytes) = (self.memory_bounds(), self.plan.start_bytes);
        if self.shared.pool.is_adopted() || start_bytes >= bounds.most_bytes {
            return Ok(());
        }
        let start_bytes = start_bytes.max(bounds.least_bytes);
        match self.resizer.resize(&self.shared, &bounds, start_bytes) {
            Ok(()) => Ok(()),
            Err(ResizeError::Thread(error)) => Err(error),
            Err(error) => unreachable!("within the bounds: {error}"),
        }
    }

    /// Sets the memory of the process: shrinks or grows the pool in the background, by whole slabs
    /// of each shard, rounded down. Clean lines are dropped, the least valuable ones first; dirty
    /// ones and those of pinned ranges are kept. A process that adopts the pool continues with this
    /// size. Returns the bounds, with the memory that results.
    ///
    /// # Errors
    /// When the size is out of bounds or too small for what is pinned, the runtime was stopped or
    /// paused, or the system refuses a thread.
    pub fn set_memory(&self, memory_bytes: u64) -> Result<MemoryBounds, ResizeError> {
        self.volumes.without_changes(|| {
            self.check_memory(memory_bytes)?;
            self.resizer.resize(&self.shared, &self.memory_bounds(), memory_bytes)
        })?;
        Ok(self.memory_bounds())
    }

    /// Checks whether the memory may be set to this size now.
    ///
    /// # Errors
    /// When the size is out of bounds or too small for what is pinned.
    pub fn check_memory(&self, memory_bytes: u64) -> Result<(), ResizeError> {
        resize::check(&self.bounds_without_pins(), memory_bytes)?;
        self.volumes.check_pins_fit(memory_bytes, self.memory_bounds().least_bytes)
    }

    /// The sizes between which the memory can be set without unpinning anything.
    pub fn memory_bounds(&self) -> MemoryBounds {
        let shard_lines = self.volumes.pinned_shard_lines();
        resize::with_shard_lines(self.bounds_without_pins(), &self.shared.pool, shard_lines)
    }

    fn bounds_without_pins(&self) -> MemoryBounds {
        resize::bounds_of(&self.shared.pool, &self.plan)
    }

    /// The bounds, and how far the pool has taken the memory that it may have.
    pub fn memory_use(&self) -> MemoryUse {
        resize::memory_use(self.memory_bounds(), &self.shared.pool)
    }

    /// Records settings of the memory for the process that adopts the pool, in an encoding of the
    /// caller's.
    pub fn record_memory_settings(&self, words: MemoryWords) {
        self.shared.pool.record_memory_settings(words);
    }

    /// The recorded settings, possibly of the process whose pool was adopted; zeroes if none were
    /// recorded.
    pub fn memory_settings(&self) -> MemoryWords {
        self.shared.pool.memory_settings()
    }

    /// The memory that the pool occupies, with its tables, in bytes. It is less than the pool's
    /// size if some lines were never used, or their memory is given back.
    pub fn pool_used_bytes(&self) -> u64 {
        self.shared.pool.used_bytes()
    }
}

/// Volumes.
impl Runtime {
    /// The management of the volumes.
    pub const fn volumes(&self) -> &VolumeService {
        &self.volumes
    }

    /// The volumes that a UPS protects.
    pub fn ups(&self) -> UpsVolumes<'_> {
        UpsVolumes::of(&self.shared)
    }

    /// Lets the miss-ratio curves of all volumes decay: their counts fall by half in an hour, so
    /// that the curves follow the load of the day. Call this at intervals of some minutes, with the
    /// time since the last call.
    pub fn decay_curves(&self, elapsed: Duration) {
        let keep = 0.5f64.powf(elapsed.as_secs_f64() / CURVE_HALF_LIFE.as_secs_f64());
        for volume in self.shared.volumes.all() {
            self.shared.shards.decay_curve(volume.id, keep);
        }
    }

    /// Tells the predictions for other sizes of the pool that time has passed: what was counted
    /// before weighs less. Call this every few seconds, with the time since the last call.
    pub fn pass_time(&self, elapsed: Duration) {
        for volume in self.shared.volumes.all() {
            self.shared.shards.pass_time(volume.id, elapsed);
        }
    }

    /// Whether the pool has all data of a volume with this name. Does not compare the disk.
    pub fn is_in_pool(&self, name: &str) -> bool {
        self.volumes.pool_volumes().has_all_of(name)
    }

    /// Volumes that have dirty lines in the adopted pool and are not served, with the bytes.
    pub fn unserved(&self) -> Vec<(String, u64)> {
        self.volumes.pool_volumes().unserved()
    }
}

/// Warm lists and access histories.
impl Runtime {
    /// Sets where the warm lists are kept, and begins to write them every few minutes. Volumes that
    /// are added from now on are warmed up, unless the adopted pool has lines of them. By default,
    /// there are no warm lists.
    pub fn keep_warm_lists(&self, lists: Arc<dyn WarmLists>) {
        self.volumes.warm_ups().keep(lists);
    }

    /// Sets where the access histories are kept, and begins to learn the time of the day by this
    /// clock. By default, nothing is learned. Forecasts are preloaded only if warm lists are kept.
    pub fn keep_histories(&self, histories: Arc<dyn Histories>, clock: Arc<dyn LocalClock>) {
        self.volumes.learner().keep(histories, clock, self.volumes.warm_ups());
    }

    /// Writes the warm lists now.
    pub fn save_warm_lists(&self) {
        self.volumes.warm_ups().save();
    }
}

/// Recordings.
impl Runtime {
    /// Begins to record the reads and writes of clients to these volumes. There is one recording
    /// at a time; it takes up to 8 MiB of memory.
    ///
    /// # Errors
    /// When another recording is on, there is no such volume, or the runtime is stopping.
    pub fn record(&self, volumes: &[String]) -> Result<Recording, RecordError> {
        Recording::start(&self.shared, volumes)
    }
}

impl<'a> SlowLog<'a> {
    /// The slow requests of the clients of a runtime.
    pub fn of(runtime: &'a Runtime) -> Self {
        Self(&runtime.shared)
    }
}

/// Background work.
impl Runtime {
    /// Sets the shares of the processors and of the disks that background work may use, which are
    /// full initially. Writeback that a client waits for, that a limit of dirty data demands, or
    /// that drains a volume does not heed them.
    pub fn set_background(&self, shares: BackgroundShares) {
        self.shared.background.set(shares);
    }

    /// Sets whether processors are free. If so, workers may look for events for moments before they
    /// sleep, where that serves clients faster. Initially they may not.
    pub fn set_spare_processors(&self, has_spare: bool) {
        self.shared.background.set_spare_processors(has_spare);
    }

    /// The requests of all clients that were answered so far, and the sum of their latencies in
    /// microseconds. Both fall when a volume is removed.
    pub fn client_waits(&self) -> (u64, u64) {
        let volumes = self.shared.volumes.all();
        volumes.iter().fold((0, 0), |(requests, us), volume| {
            let counters = volume.request_counters();
            (requests + counters.answered(), us + counters.latency_us)
        })
    }

    /// Whether the kernel counts waits of the workers and their I/O threads as pressure on the
    /// disks, even if they wait for clients.
    pub const fn counts_as_io_pressure(&self) -> bool {
        self.crew.counts_as_io_pressure()
    }
}

/// Journals and the vault.
impl Runtime {
    /// Opens the vault, or formats one on a device that begins with zeroes. A runtime has at most
    /// one vault.
    ///
    /// # Errors
    /// When the vault cannot be used, or is too small for all dirty data.
    pub fn open_vault(&self, settings: VaultSettings) -> Result<Arc<Vault>, VaultError> {
        let needed_bytes = vault_bytes_for(self.dirty_bytes_max());
        self.volumes.protectors().open_vault(settings, needed_bytes)
    }
}

#[cfg(test)]
impl Runtime {
    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn named(&self, name: &str) -> Result<Arc<crate::shared::Volume>, VolumeError> {
        Ok(self.shared.volumes.named(name)?)
    }

    pub(crate) fn run_on<T: Send + 'static>(
        &self,
        worker: usize,
        task: impl FnOnce(&mut dyn crate::shared::Tasks) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        Ok(self.shared.run_on(worker, task)?)
    }
}
