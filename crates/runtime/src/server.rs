//! The runtime: its start, its volumes, journals and vault.
//!
//! A [`Runtime`] owns the workers and the state that they share. Management operations run on the
//! calling thread, and change that state through tasks of worker 0. Operations that wait for disks
//! are in `drain.rs`.

use crate::calibrate::{Calibrator, Gather};
use crate::clients::{Budget, ExtentQueries, info_of};
use crate::descriptors::Descriptors;
use crate::error::{StartError, VolumeError};
use crate::govern::Govern;
use crate::locks::{Lock, SharedLock, order};
use crate::memory_plan::MemoryPlan;
use crate::pool::Pool;
use crate::protect::adopt::RecoveryPlan;
use crate::protect::journal::Attachment;
use crate::protect::journal::{
    Journal, JournalError, JournalRecord, JournalSettings, NoJournalRecord, VolumeJournal,
};
use crate::protect::patrol::{Ecc, no_walks};
use crate::protect::power::PowerState;
use crate::protect::vault::{
    NoRecord, Vault, VaultError, VaultRecord, VaultSettings, VolumeVault, vault_bytes_for,
};
use crate::reactor::{EpollReactor, Reactor, UringReactor};
use crate::shared::{FlushGate, Inbox, JournalUse, Message, Reads, Shared, Volume};
use crate::stats::WorkerStats;
use crate::timeouts::Timeouts;
use crate::volume_table::VolumeTable;
use crate::warm::Warmer;
use crate::worker::{Tasks, Worker};
use forebay_backend::Backend;
use forebay_ecc::Code;
use forebay_engine::{Protection, ShardConfig};
use forebay_frontend::{FrontEnd, Mailer, Service};
use forebay_journal::decision::{PoolState, VaultState};
use forebay_policy::Limits;
use forebay_types::limits::VOLUME_NAME_BYTES_MAX;
use forebay_types::{DiskGeometry, Mode, Stripes, VolumeId};
use forebay_volume::{PowerGate, Streams};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// The I/O engine of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring if the kernel allows it, otherwise epoll.
    #[default]
    Auto,
    /// io_uring.
    IoUring,
    /// epoll for sockets; the backends' threads do file I/O.
    Epoll,
}

/// The configuration of a runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeConfig {
    /// The memory of the process in bytes: pool, metadata, buffers, the program itself.
    pub memory_bytes: u64,
    /// Threads that serve clients, from 1 to 64.
    pub workers: usize,
    /// The I/O engine.
    pub engine: Engine,
    /// Journals and vaults that will be opened. Memory is reserved for their batches.
    pub journals: usize,
    /// How damage in the pool's memory is detected and corrected.
    pub ecc: Ecc,
}

/// The settings of a volume that is added. [`VolumeSettings::new`] gives the defaults.
pub struct VolumeSettings {
    /// The name under which clients find it.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// The disk.
    pub backend: Arc<dyn Backend>,
    /// The cache mode.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
    /// The geometry to assume for the disk.
    pub geometry: DiskGeometry,
    /// The gather threshold in bytes, zero to gather nothing; `None` to measure it.
    pub gather_below: Option<u64>,
    /// The limits of writeback.
    pub write_back: Limits,
    /// Whether dirty data is destaged in order, so that the disk alone is always consistent.
    pub ordered: bool,
    /// Whether it is served over TLS only.
    pub tls_only: bool,
    /// The journal that records its writes.
    pub journal: Option<VolumeJournal>,
    /// Whether a UPS protects its writes: alone, or once its journal has failed.
    pub ups: bool,
    /// The vault that takes its dirty data when the battery runs low.
    pub vault: Option<VolumeVault>,
    /// Accept the disk although it differs from the one that pool or vault hold data for.
    pub accept_disk: bool,
}

impl VolumeSettings {
    /// The defaults of the configuration: a writable volume with prefetch and a measured gather
    /// threshold, of unknown geometry, without journal, UPS and vault.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>, mode: Mode) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            backend,
            mode,
            read_only: false,
            prefetch: true,
            geometry: DiskGeometry::default(),
            gather_below: None,
            write_back: Limits::default(),
            ordered: false,
            tls_only: false,
            journal: None,
            ups: false,
            vault: None,
            accept_disk: false,
        }
    }
}

/// The settings of a volume that can change while it is served. [`VolumeChange::new`] gives the
/// defaults.
pub struct VolumeChange {
    /// A description for people; may be empty.
    pub description: String,
    /// The cache mode.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
    /// The gather threshold in bytes, zero to gather nothing; `None` to measure it.
    pub gather_below: Option<u64>,
    /// The limits of writeback.
    pub write_back: Limits,
    /// Whether it is served over TLS only.
    pub tls_only: bool,
}

impl VolumeChange {
    /// The defaults of [`VolumeSettings::new`].
    pub fn new(mode: Mode) -> Self {
        Self {
            description: String::new(),
            mode,
            read_only: false,
            prefetch: true,
            gather_below: None,
            write_back: Limits::default(),
            tls_only: false,
        }
    }
}

/// A running cache.
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) calibrator: Arc<Calibrator>,
    pub(crate) workers: Lock<Vec<JoinHandle<()>>, { order::THREADS }>,
    pub(crate) warmer: Warmer,
    engine: &'static str,
    /// Held while volumes are added, changed or removed, but not during a wait for a disk.
    pub(crate) changes: Lock<(), { order::CHANGES }>,
    pub(crate) plan: MemoryPlan,
    pub(crate) journals: Lock<Vec<Arc<Journal>>>,
    vault: Lock<Option<Arc<Vault>>>,
    vault_record: Lock<Arc<dyn VaultRecord>>,
    journal_record: Lock<Arc<dyn JournalRecord>>,
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
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub fn start_with<S: Service>(
        config: RuntimeConfig,
        timeouts: Timeouts,
        service: &Arc<S>,
    ) -> Result<Self, StartError> {
        Self::start_over(config, timeouts, None, service)
    }

    /// As [`Runtime::start_with`], over the memory file of a keeper, from [`crate::new_pool_file`]:
    /// an empty one, or one with the pool of a process that has ended. In the latter case, the
    /// caller then adds the volumes of that process with [`Runtime::add_volume`], and calls
    /// [`Runtime::close_adoption`].
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
            start_workers(shared, engine, service)
        })
    }

    /// As [`Runtime::start_over`]. `start_workers` starts the workers.
    pub(crate) fn start_by<S: Service>(
        config: RuntimeConfig,
        timeouts: Timeouts,
        kept: Option<OwnedFd>,
        service: &Arc<S>,
        start_workers: impl FnOnce(&Arc<Shared>, Engine) -> Result<Started, StartError>,
    ) -> Result<Self, StartError> {
        let workers = config.workers.clamp(1, 64);
        let ecc = config.ecc;
        let plan = MemoryPlan::new(config.memory_bytes, workers, config.journals);
        forebay_frontend::keep_at_most(plan.kept_bytes / workers as u64);
        let pool = Pool::open(plan.pool_bytes, plan.shards, kept)?;
        let shards = crate::protect::adopt::shards(&pool, timeouts.dirty_age)?;
        let shards = shards.into_iter().map(|mut shard| {
            shard.set_parity(ecc == Ecc::Parity);
            (shard.slots().hints(), Lock::new(shard))
        });
        let (hints, shards) = shards.unzip();
        let inboxes: Result<Vec<_>, _> = (0..workers).map(|_| Inbox::new().map(Arc::new)).collect();
        let shared = Arc::new(Shared {
            shards,
            hints,
            inboxes: inboxes.map_err(io::Error::from)?,
            volumes: VolumeTable::default(),
            started: Instant::now(),
            timeouts,
            budget: Budget::new(plan.request_bytes, plan.lane_bytes, plan.payload_bytes),
            connections: AtomicU64::new(0),
            descriptors: Descriptors::read(),
            worker_connections: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            stopping: AtomicBool::new(false),
            power: PowerGate::default(),
            warned: AtomicBool::new(false),
            pool,
            ecc,
            code: Code::detect(),
            walk_ms: no_walks(plan.shards),
        });
        let (engine, handles) = start_workers(&shared, config.engine)?;
        let inboxes = shared.inboxes.clone();
        service.connect(Mailer::new(move |worker: usize, message| {
            inboxes[worker].post(Message::FrontEnd(message));
        }));
        Ok(Self {
            warmer: Warmer::start(&shared),
            calibrator: Calibrator::new(&shared),
            shared,
            workers: Lock::new(handles),
            engine,
            changes: Lock::default(),
            plan,
            journals: Lock::default(),
            vault: Lock::default(),
            vault_record: Lock::new(Arc::new(NoRecord)),
            journal_record: Lock::new(Arc::new(NoJournalRecord)),
        })
    }

    /// The I/O engine in use: `io_uring` or `epoll`.
    pub const fn engine(&self) -> &'static str {
        self.engine
    }

    /// Runs a task on a worker between two turns, and waits for the result.
    pub(crate) fn run_on<T: Send + 'static>(
        &self,
        worker: usize,
        task: impl FnOnce(&mut dyn Tasks) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        let (sender, result) = mpsc::channel();
        let task = Box::new(move |tasks: &mut dyn Tasks| {
            let _ = sender.send(task(tasks));
        });
        self.shared.inboxes[worker].post(Message::Task(task));
        // A worker that has ended drops the task, and with it the sender.
        result.recv().map_err(|_| VolumeError::Stopping)
    }

    /// Runs a task on each worker in turn, and returns the results.
    pub(crate) fn run_on_all<T: Send + 'static>(
        &self,
        task: impl Fn(&mut dyn Tasks) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, VolumeError> {
        (0..self.shared.inboxes.len()).map(|worker| self.run_on(worker, task.clone())).collect()
    }

    /// Opens a journal, or formats one on a device that begins with zeroes.
    ///
    /// # Errors
    /// When the journal cannot be used, or its use could lose acknowledged writes.
    pub fn open_journal(&self, settings: JournalSettings) -> Result<Arc<Journal>, JournalError> {
        let journal = Journal::open(settings, &self.shared, self.journal_record())?;
        self.journals.lock().push(Arc::clone(&journal));
        Ok(journal)
    }

    /// The open journals.
    pub fn journals(&self) -> Vec<Arc<Journal>> {
        self.journals.lock().clone()
    }

    /// The dirty limit of all shards, in bytes.
    pub fn dirty_bytes_max(&self) -> u64 {
        self.stripe_bytes_max() * self.shared.shards.len() as u64
    }

    /// The dirty limit of one shard in bytes. A wider stripe cannot be gathered, because a stripe
    /// lies in one shard.
    pub fn stripe_bytes_max(&self) -> u64 {
        let lines = ShardConfig::for_slots(self.shared.pool.shard_slots()).dirty_lines_max;
        lines as u64 * forebay_types::LINE_BYTES
    }

    /// Opens the vault, or formats one on a device that begins with zeroes. A runtime has at most
    /// one vault.
    ///
    /// # Errors
    /// When the vault cannot be used, or is too small for all dirty data.
    pub fn open_vault(&self, settings: VaultSettings) -> Result<Arc<Vault>, VaultError> {
        let needed_bytes = vault_bytes_for(self.dirty_bytes_max());
        let vault = Vault::open(settings, &self.shared, self.vault_record(), needed_bytes)?;
        *self.vault.lock() = Some(Arc::clone(&vault));
        Ok(vault)
    }

    /// Sets the record of the volumes that rely on a vault. By default nothing is recorded.
    ///
    /// # Panics
    /// If a vault is open already: its volumes would be missing in the record.
    pub fn keep_vault_record(&self, record: Arc<dyn VaultRecord>) {
        assert!(self.vault().is_none(), "the record is set before a vault is opened");
        *self.vault_record.lock() = record;
    }

    /// Sets the record of the volumes that rely on a journal. By default nothing is recorded.
    ///
    /// # Panics
    /// If a journal is open already.
    pub fn keep_journal_record(&self, record: Arc<dyn JournalRecord>) {
        assert!(self.journals.lock().is_empty(), "the record is set before a journal is opened");
        *self.journal_record.lock() = record;
    }

    pub(crate) fn journal_record(&self) -> Arc<dyn JournalRecord> {
        Arc::clone(&self.journal_record.lock())
    }

    pub(crate) fn vault_record(&self) -> Arc<dyn VaultRecord> {
        Arc::clone(&self.vault_record.lock())
    }

    /// The open vault.
    pub fn vault(&self) -> Option<Arc<Vault>> {
        self.vault.lock().clone()
    }

    /// Adds a volume. It is served when this returns: all data that pool, journal and vault hold of
    /// it is in the pool or on its disk.
    ///
    /// # Errors
    /// When its name or its disk is in use, there are too many volumes, or its data cannot be
    /// recovered safely.
    pub fn add_volume(&self, settings: VolumeSettings) -> Result<VolumeId, VolumeError> {
        self.compare_pool(&settings)?;
        self.check_missing_journal(&settings)?;
        let journal = settings.journal.as_ref().map(|used| used.journal.id());
        if self.recovery_plan(&settings) == RecoveryPlan::Flush {
            self.flush_first(&settings)?;
        }
        let volume = self.add_hidden(settings)?;
        // Before the first write of a client: data in other journals is void.
        self.supersede_journals(&volume.name, journal)?;
        volume.leaving.store(false, Ordering::Relaxed);
        self.calibrator.schedule(&volume);
        Ok(volume.id)
    }

    /// Adds a volume that clients cannot enter yet.
    pub(crate) fn add_hidden(&self, settings: VolumeSettings) -> Result<Arc<Volume>, VolumeError> {
        let _changing = self.changes.lock();
        let plan = self.recovery_plan(&settings);
        self.check_missing_vault(&settings, plan)?;
        let (id, stripes) = self.assign_id(&settings)?;
        let elsewhere = self.elsewhere(&settings, plan)?;
        let info = info_of(id, &settings);
        let (size, mode) = (info.size_bytes, settings.mode);
        let streams = Streams::new(size, self.shared.pool.data_bytes());
        let named = (id, &info.name[..]);
        let relies = mode == Mode::WriteBack || plan == RecoveryPlan::Record;
        let journal = attach(named, &settings.backend, settings.journal, elsewhere, relies)?;
        let protection = protection_of(journal.is_some(), settings.ups);
        let volume = Arc::new(Volume {
            id,
            name: info.name.clone(),
            read_only: AtomicBool::new(info.read_only),
            info: SharedLock::new(info),
            backend: settings.backend,
            streams: Lock::new(streams),
            prefetch: AtomicBool::new(settings.prefetch),
            geometry: settings.geometry,
            stripes,
            gather: Gather::new(settings.gather_below),
            govern: Govern::new(settings.write_back, self.shared.shards.len()),
            flush: FlushGate::default(),
            blocks: Lock::default(),
            journal_is_stale: AtomicBool::new(false),
            order: settings.ordered.then(Arc::default),
            journal,
            power: PowerState::new(settings.ups),
            vault: settings.vault.as_ref().map(|used| Arc::clone(&used.vault)),
            samples: OnceLock::new(),
            reads: Reads::default(),
            presence: Default::default(),
            internal_flushes: AtomicU64::new(0),
            extent_queries: ExtentQueries::default(),
            stats: self.shared.inboxes.iter().map(|_| WorkerStats::default()).collect(),
            connections: AtomicU64::new(0),
            // Clients must not enter before the volume's data is recovered.
            leaving: AtomicBool::new(true),
        });
        let registered = Arc::clone(&volume);
        self.run_on(0, move |tasks| tasks.shared().register(registered, mode, protection))?;
        if mode == Mode::Bypass {
            // Drops clean lines of an adopted pool.
            self.drop_clean(id);
        }
        self.recover(&volume, plan)?;
        if let Some(used) = &settings.vault {
            self.load(&volume, used)?;
            used.vault.attach(&volume, size, used.identity, mode)?;
        }
        // Before the first write of a client: data in other vaults is void.
        self.supersede_vaults(&volume.name)?;
        Ok(volume)
    }

    /// Recovers a volume's data from the adopted pool and the journal.
    fn recover(&self, volume: &Volume, plan: RecoveryPlan) -> Result<(), VolumeError> {
        if self.shared.pool.is_adopted() {
            // The previous process may have written to the disk without a flush.
            volume.flush.record_write();
        }
        match plan {
            RecoveryPlan::Fresh | RecoveryPlan::Keep => {}
            RecoveryPlan::Restore => self.restore(volume)?,
            RecoveryPlan::Record | RecoveryPlan::Flush => self.record_again(volume)?,
        }
        if volume.journal.is_some() {
            self.mark_whole(volume.id);
        }
        Ok(())
    }

    /// Checks a volume's name and disk, and assigns its number and its stripes.
    fn assign_id(&self, settings: &VolumeSettings) -> Result<(VolumeId, Stripes), VolumeError> {
        let name = &settings.name;
        let is_text = !name.chars().any(char::is_control);
        if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX || !is_text {
            return Err(VolumeError::Name(name.clone()));
        }
        for volume in self.shared.volumes.all() {
            if volume.name == *name {
                return Err(VolumeError::NameInUse(name.clone()));
            }
            let (new, served) = (settings.backend.description(), volume.backend.description());
            if new.identity.is_some() && new.identity == served.identity {
                return Err(VolumeError::BackingInUse {
                    backing: new.name.clone(),
                    volume: volume.name.clone(),
                });
            }
        }
        self.enter_pool(settings)
    }

    /// Finds the volume with this name.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Volume>, VolumeError> {
        let found = self.shared.volumes.all().into_iter().find(|volume| volume.name == name);
        found.ok_or_else(|| VolumeError::Unknown(name.to_owned()))
    }

    /// Changes settings of a volume, from the next request on. Clients that have entered the volume
    /// are not notified, but read-only and the cache mode apply to them, too.
    ///
    /// # Errors
    /// When there is no such volume, its disk is read-only and the volume shall not be, or a
    /// journal or vault cannot record that the volume relies on it.
    pub fn change_volume(&self, name: &str, change: VolumeChange) -> Result<(), VolumeError> {
        let _changing = self.changes.lock();
        let volume = self.named(name)?;
        if !change.read_only && volume.backend.description().read_only {
            return Err(VolumeError::BackingReadOnly(name.to_owned()));
        }
        if let Some(vault) = &volume.vault {
            vault.rely(volume.id, change.mode)?;
        }
        if let (Some(used), Mode::WriteBack) = (&volume.journal, change.mode) {
            used.journal.rely(&volume.name)?;
        }
        volume.prefetch.store(change.prefetch, Ordering::Relaxed);
        volume.govern.set(change.write_back);
        if volume.gather.set(change.gather_below) {
            self.calibrator.schedule(&volume);
        }
        volume.read_only.store(change.read_only, Ordering::Relaxed);
        let mut info = volume.info.write();
        info.read_only = change.read_only;
        info.tls_only = change.tls_only;
        info.description = change.description;
        drop(info);
        let (id, mode) = (volume.id, change.mode);
        self.run_on(0, move |tasks| {
            for shard in 0..tasks.shared().shards.len() {
                tasks.shared().shard(shard).volume_mut(id).set_mode(mode);
            }
        })?;
        if mode == Mode::Bypass {
            self.drop_clean(id);
        }
        Ok(())
    }

    /// Operations of the volume in progress.
    pub(crate) fn operations(&self, id: VolumeId) -> u64 {
        let shards = (0..self.shared.shards.len()).map(|shard| self.shared.shard(shard));
        let with_volume = shards.filter(|shard| shard.has_volume(id));
        with_volume.map(|shard| u64::from(shard.volume(id).operations())).sum()
    }

    /// Bytes of the volume in dirty lines.
    pub(crate) fn dirty_bytes(&self, id: VolumeId) -> u64 {
        // A volume that is being added or removed is in some shards only.
        let shards = (0..self.shared.shards.len()).map(|shard| self.shared.shard(shard));
        let with_volume = shards.filter(|shard| shard.has_volume(id));
        let lines: usize = with_volume.map(|shard| shard.volume(id).dirty_lines()).sum();
        lines as u64 * forebay_types::LINE_BYTES
    }
}

/// Attaches a volume to its journal, if it has one. Records that the volume relies on the journal
/// if the journal holds its data or will (`relies`).
fn attach(
    (id, name): (VolumeId, &str),
    disk: &Arc<dyn Backend>,
    journal: Option<VolumeJournal>,
    (pool, vault): (PoolState, VaultState),
    relies: bool,
) -> Result<Option<JournalUse>, JournalError> {
    let Some(VolumeJournal { journal, durability, identity, accept_disk }) = journal else {
        return Ok(None);
    };
    let attachment = Attachment { name, id, identity, durability, disk, accept_disk, pool, vault };
    let number = journal.attach(&attachment)?;
    if relies || journal.holds(number) {
        journal.rely(name)?;
    }
    Ok(Some(JournalUse { journal, number, durability }))
}

/// The I/O engine in use, and the threads of the workers.
pub(crate) type Started = (&'static str, Vec<JoinHandle<()>>);

/// Starts a thread for each worker; all of them use the same kind of reactor.
fn start_workers<S: Service>(
    shared: &Arc<Shared>,
    engine: Engine,
    service: &Arc<S>,
) -> Result<Started, StartError> {
    let ring = match engine {
        Engine::Epoll => Err(None),
        Engine::IoUring | Engine::Auto => {
            spawn_workers::<UringReactor, S>(shared, service).map_err(Some)
        }
    };
    match (ring, engine) {
        (Ok(handles), _) => Ok((UringReactor::NAME, handles)),
        (Err(Some(error)), Engine::IoUring) => Err(StartError::Ring(error)),
        (Err(reason), _) => {
            if let Some(error) = reason {
                tracing::warn!("io_uring can't be used here ({error}); epoll is at work instead");
            }
            Ok((EpollReactor::NAME, spawn_workers::<EpollReactor, S>(shared, service)?))
        }
    }
}

pub(crate) fn spawn_workers<R: Reactor, S: Service>(
    shared: &Arc<Shared>,
    service: &Arc<S>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut handles = Vec::new();
    for worker in 0..shared.inboxes.len() {
        let (sender, started) = mpsc::channel();
        let (shared, service) = (Arc::clone(shared), Arc::clone(service));
        let handle = std::thread::Builder::new().name(format!("worker-{worker}")).spawn(
            move || match Worker::<R, S::FrontEnd>::new(shared, worker, service.front_end()) {
                Err(error) => {
                    let _ = sender.send(Err(error));
                }
                Ok(worker) => {
                    let _ = sender.send(Ok(()));
                    run_or_abort(worker);
                }
            },
        )?;
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the worker ended at once")))?;
        handles.push(handle);
    }
    Ok(handles)
}

/// Runs a worker, and aborts the process if the worker fails: after a failed assertion, its data
/// cannot be trusted.
fn run_or_abort<R: Reactor, F: FrontEnd>(worker: Worker<R, F>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run())) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "worker cannot wait for events, aborting");
            std::process::abort();
        }
        Err(_) => {
            tracing::error!("a worker failed an assertion; the process ends, see the lines above");
            std::process::abort();
        }
    }
}

/// The protection of a volume's dirty data, for the shards.
const fn protection_of(has_journal: bool, has_ups: bool) -> Protection {
    match (has_journal, has_ups) {
        (true, _) => Protection::Journal,
        (false, true) => Protection::Power,
        (false, false) => Protection::None,
    }
}
