//! The vault: where what is dirty goes when the battery runs low, and comes back from.
//!
//! A vault belongs to the whole server. While all is well it is *ready*: empty, measured, and big
//! enough for all that can be dirty. [`Vault::dump`] writes what is dirty, makes it stable, seals
//! it, flushes the disks and reads everything back. What a later start finds is held until each
//! volume of it has been served again: its data goes to its disk before any client is let in, so
//! that nothing newer than the vault can be on that disk.
//!
//! Contracts:
//! - no write is acknowledged from before a dump for real begins until [`Vault::empty`] has gone
//!   well: a sealed vault is the newest there is, and what was acknowledged beside it would be
//!   undone by it. [`Vault::dump`] halts the volumes itself where that has not been done;
//! - a vault that holds something takes no dump, no measurement and no drill: `is_ready` says so,
//!   and there is no speed to reckon with;
//! - measurements and drills use the vault's space and not its superblock, so for everybody who
//!   looks it stays empty; a dump for real ends them within one batch.
//!
//! The price: memory for some batches from the start, as a journal has, and for each dirty line
//! eight bytes while a dump lists them.

mod batch;
mod dirty;
mod drill;
mod error;
mod load;
mod measure;
mod pipe;
mod probe;
mod record;
mod report;
mod save;

pub use drill::DrillReport;
pub use error::VaultError;
pub(crate) use record::NoRecord;
pub use record::{Missing, VaultRecord};
pub use report::{DumpReport, Measured, VaultPhase, VaultStatus};

use crate::guard::KeptSamples;
use crate::journal::journal_buffers;
use crate::locks::{LazyCondvar, Lock, Locked, order};
use crate::shared::{FlushNeed, Shared, Volume};
use batch::Batch;
use dirty::DirtyLines;
use forebay_backend::{AlignedBuffer, Backend, Blocking, Description, Displaced};
use forebay_format::journal::{
    BLOCK_BYTES, Geometry, Guard, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET, Members,
    SUPERBLOCK_BYTES, SuperblockInvalid, VOLUMES_MAX, VolumeEntry,
};
use forebay_journal::identity::vault_places;
use forebay_journal::{Dump, Found, ReadAt, RecoverError, recover_vault};
use forebay_types::{Fault, IoError, IoResult, LINE_BYTES, Mode, VolumeId};
use save::{Saver, Stop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// What of a vault is not clients' data, at most: a part of 32 for records and what does not fit
/// at the end of a segment, and three segments to write elsewhere what failed.
const OVERHEAD_PART: u64 = 32;
const SPARE_BYTES_MIN: u64 = 16 << 20;
const SPARE_BYTES_MAX: u64 = 192 << 20;
/// How long a dump waits for the disks' own caches when nobody gave it a deadline.
const DISKS_WAIT: Duration = Duration::from_secs(10);

/// Bytes that a vault needs to take so many dirty ones.
pub const fn vault_bytes_for(dirty_bytes: u64) -> u64 {
    let spare_bytes = SPARE_BYTES_MIN + dirty_bytes / 16;
    let spare_bytes = if spare_bytes < SPARE_BYTES_MAX { spare_bytes } else { SPARE_BYTES_MAX };
    let bytes = dirty_bytes + dirty_bytes / OVERHEAD_PART + spare_bytes;
    let bytes = LOG_OFFSET + bytes.next_multiple_of(1 << 20);
    if bytes < JOURNAL_BYTES_MIN { JOURNAL_BYTES_MIN } else { bytes }
}

/// Where the end of a dump's worth is put on record, when the vault itself can't be written.
pub type OnVoid = Box<dyn Fn(JournalId, IoError) -> std::io::Result<()> + Send + Sync>;

/// How a vault is opened.
pub struct VaultSettings {
    /// Its device.
    pub backend: Arc<dyn Backend>,
    /// Whether a dump is on record as void.
    pub is_void: Box<dyn Fn(JournalId) -> bool>,
    /// See [`OnVoid`].
    pub on_void: OnVoid,
}

/// The vault as a volume is to use it.
pub struct VolumeVault {
    /// The vault.
    pub vault: Arc<Vault>,
    /// What identifies the volume's disk in the vault.
    pub identity: [u8; 32],
    /// Whether what has been lost of it is accepted.
    pub accept_loss: bool,
}

/// A volume that is dumped with the others.
struct Attached {
    id: VolumeId,
    /// A supply is part of its protection; so the vault may come to hold its newest data.
    relies: bool,
    /// It has a journal, which keeps it until that has failed.
    has_journal: bool,
    name: String,
    size_bytes: u64,
    identity: [u8; 32],
}

struct State {
    phase: VaultPhase,
    volumes: Vec<Attached>,
    /// What an earlier process has dumped and is not on its disks yet.
    found: Option<Found>,
    measured: Option<Measured>,
    measure_at: Instant,
    probe: probe::Probe,
    last_dump: Option<DumpReport>,
    /// The volumes of which the vault holds all that is dirty, from a dump of this process.
    dumped: Option<Vec<VolumeId>>,
    on_battery: bool,
    stopping: bool,
}

/// What only one of dump, drill and measurement has at a time.
struct Work {
    batches: Vec<Batch>,
    /// The sequence and identity of the newest superblock.
    sequence: u64,
    id: JournalId,
}

impl Work {
    fn new(batches: usize, sequence: u64, id: JournalId) -> Self {
        Self { batches: (0..batches).map(|_| Batch::new()).collect(), sequence, id }
    }
}

/// An open vault.
pub struct Vault {
    name: String,
    /// Of the vault itself, whatever is dumped to it.
    number: u64,
    backend: Arc<dyn Backend>,
    geometry: Geometry,
    size_bytes: u64,
    shared: Arc<Shared>,
    state: Lock<State>,
    work: Lock<Work, { order::VAULT_WORK }>,
    /// A dump for real wants the device.
    is_wanted: AtomicBool,
    bell: LazyCondvar,
    on_void: OnVoid,
    record: Arc<dyn VaultRecord>,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

struct Device<'a>(Blocking<'a>);

impl ReadAt for Device<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let mut aligned = AlignedBuffer::new(buffer.len());
        self.0.read(position, &mut aligned)?;
        buffer.copy_from_slice(&aligned);
        Ok(())
    }
}

/// Whether a dump can be written there at all.
fn check_device(description: &Description) -> Result<(), VaultError> {
    let (name, block_bytes) = (description.name.clone(), description.alignment_bytes);
    if description.read_only {
        return Err(VaultError::ReadOnly(name));
    }
    if u64::from(block_bytes) > BLOCK_BYTES {
        return Err(VaultError::Blocks { name, block_bytes });
    }
    Ok(())
}

impl Vault {
    /// Opens a vault, or makes one where there are only zeroes.
    pub(crate) fn open(
        settings: VaultSettings,
        shared: &Arc<Shared>,
        record: Arc<dyn VaultRecord>,
        needed_bytes: u64,
    ) -> Result<Arc<Self>, VaultError> {
        let VaultSettings { backend, is_void, on_void } = settings;
        let description = backend.description();
        let (name, size_bytes) = (description.name.clone(), description.size_bytes);
        check_device(description)?;
        let small = || VaultError::Small { name: name.clone(), bytes: size_bytes, needed_bytes };
        let geometry = Geometry::for_size(size_bytes).filter(|_| size_bytes >= needed_bytes);
        let geometry = geometry.ok_or_else(small)?;
        let mut found = find(&name, &backend, size_bytes, &is_void)?;
        let batches = journal_buffers(shared.inboxes.len());
        let is_new = found.is_none();
        let known = found.as_ref().map_or(0, |found| found.superblock.members.own);
        let number = if known == 0 { fresh_number(&name)? } else { known };
        if let Some(found) = &mut found {
            // What was brought to a disk or given up by hand is not held any more.
            found.superblock.volumes.retain(VolumeEntry::counts);
        }
        let (sequence, id) = match &found {
            Some(found) => (found.superblock.sequence, found.superblock.journal),
            None => (0, fresh_id().map_err(|error| VaultError::io(&name, error))?),
        };
        // A dump of nothing holds nothing.
        let is_empty = |found: &Found| found.superblock.volumes.is_empty();
        let has_leftover = found.as_ref().is_some_and(|f| is_empty(f) && !f.superblock.clean);
        let held = found.filter(|found| !found.superblock.clean && !is_empty(found));
        let phase = if held.is_some() { VaultPhase::Holding } else { VaultPhase::Ready };
        let vault = Arc::new(Self {
            name,
            number,
            backend,
            geometry,
            size_bytes,
            shared: Arc::clone(shared),
            state: Lock::new(State {
                phase,
                volumes: Vec::new(),
                found: held,
                measured: None,
                measure_at: Instant::now(),
                probe: probe::Probe::default(),
                last_dump: None,
                dumped: None,
                on_battery: false,
                stopping: false,
            }),
            work: Lock::new(Work::new(batches, sequence, id)),
            record,
            is_wanted: AtomicBool::new(false),
            bell: LazyCondvar::default(),
            on_void,
            thread: Lock::default(),
        });
        if is_new || has_leftover {
            vault.write_empty(&mut vault.work())?;
        } else if known == 0 {
            vault.write_number()?;
        }
        if is_new {
            tracing::info!("vault {}: a new one", vault.name);
        }
        vault.start_measuring()?;
        Ok(vault)
    }

    /// How it is doing.
    pub fn status(&self) -> VaultStatus {
        let state = self.state();
        VaultStatus {
            name: self.name.clone(),
            phase: state.phase,
            capacity_bytes: self.geometry.log_bytes(),
            measured: state.measured,
            trouble: state.probe.trouble(),
            looks: state.probe.good,
            last_dump: state.last_dump.clone(),
            held: state.found.as_ref().map(load::held_bytes).unwrap_or_default(),
            is_whole: state.found.as_ref().is_none_or(load::is_whole),
        }
    }

    /// Whether it could take a dump now: it holds nothing, and has not failed.
    pub fn is_ready(&self) -> bool {
        self.state().phase == VaultPhase::Ready
    }

    /// What a dump makes stable in a second, as measured last; `None` while it is not ready or was
    /// not measured. Reading back comes on top, and is as fast on any device worth the name.
    pub fn measured_bytes_per_second(&self) -> Option<u64> {
        let state = self.state();
        let is_ready = state.phase == VaultPhase::Ready && state.probe.trouble().is_none();
        state.measured.filter(|_| is_ready).map(|measured| measured.write_bytes_per_second)
    }

    /// Bytes in dirty lines of volumes.
    pub fn dirty_bytes(&self, ids: &[VolumeId]) -> u64 {
        let lines = |id| {
            let shards = (0..self.shared.shards.len()).map(|shard| self.shared.shard(shard));
            let lines = shards.filter(|shard| shard.has_volume(id)).map(|s| s.dirty_lines(id));
            lines.sum::<usize>()
        };
        ids.iter().map(|&id| lines(id)).sum::<usize>() as u64 * LINE_BYTES
    }

    /// Says whether the power comes from a battery: then nothing is written to measure.
    pub fn set_on_battery(&self, on_battery: bool) {
        self.state().on_battery = on_battery;
        if on_battery {
            // One that is under way ends, too.
            self.is_wanted.store(true, Ordering::Relaxed);
            let _work = self.work();
            self.is_wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Dumps everything dirty of some of the volumes that were attached: writes it, makes it
    /// stable, seals it, flushes the disks of these volumes, and reads it back, as far as the
    /// deadline allows. What could not be done besides is said in the report. The volumes' writes
    /// are halted by then, here at the latest, and stay so: see the module's contracts. Asking
    /// again answers with the dump there is, if that is whole and of these volumes.
    ///
    /// # Errors
    /// When not everything could be saved. What is dirty stays in the pool, and what was written
    /// counts at the next start as far as it goes, so trying again, and bringing it to the disks,
    /// remain.
    pub fn dump(
        &self,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
    ) -> Result<DumpReport, VaultError> {
        self.is_wanted.store(true, Ordering::Relaxed);
        let mut work = self.work();
        self.is_wanted.store(false, Ordering::Relaxed);
        if let Err(error) = self.is_in_place()
            && matches!(
                error,
                VaultError::Displaced { displaced: Displaced::Deleted | Displaced::Replaced, .. }
            )
        {
            return Err(error);
        }
        if let Some(report) = self.claim(volumes)? {
            return Ok(report);
        }
        for volume in volumes.iter().filter_map(|&id| self.shared.volume(id)) {
            if volume.power.protects && !volume.power.halted.swap(true, Ordering::SeqCst) {
                tracing::error!(volume = volume.name, "writes are halted by the dump itself");
            }
        }
        let begun = Instant::now();
        let dumped = self.dump_with(&mut work, volumes, deadline, begun);
        let mut state = self.state();
        state.phase = VaultPhase::Dumped;
        state.dumped = if dumped.is_ok() { Some(volumes.to_vec()) } else { None };
        match dumped {
            Ok(report) => {
                tracing::warn!("vault {}: {report}", self.name);
                state.last_dump = Some(report.clone());
                Ok(report)
            }
            Err(error) => {
                tracing::error!("{}", error.with_causes());
                Err(error)
            }
        }
    }

    fn dump_with(
        &self,
        work: &mut Work,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
        begun: Instant,
    ) -> Result<DumpReport, VaultError> {
        let id = fresh_id().map_err(|error| VaultError::io(&self.name, error))?;
        let (entries, lines, ids) = self.list(volumes);
        let dump = Dump::new(id, self.size_bytes, self.geometry, work.sequence, entries)
            .in_vault(self.number);
        let batches = std::mem::take(&mut work.batches);
        let never = AtomicBool::new(false);
        let mut saver = Saver::new(&*self.backend, batches, dump, &lines, &never);
        let mut report = DumpReport { begun_at: SystemTime::now(), ..DumpReport::default() };
        let written = saver.write_superblock().and_then(|()| saver.write(true));
        report.write_ms = begun.elapsed().as_millis() as u64;
        // From here on nothing changes any more that is not in the vault.
        let disks = self.flush_disks(volumes);
        let sealed = written.and_then(|()| {
            // Writes were halted before it began: what was let at the disks is known by now.
            for (number, guard) in self.guards(&ids) {
                saver.dump.set_guard(number, guard);
            }
            saver.dump.seal();
            saver.write_superblock()
        });
        report.sealed_ms = begun.elapsed().as_millis() as u64;
        let verified = sealed.and_then(|()| saver.verify(true, deadline, None));
        report.failures = saver.failures;
        report.bytes = saver.saved_bytes();
        report.written_bytes = saver.written_bytes();
        report.batches = saver.dump.placed().len() as u64;
        let (dump, batches) = saver.into_batches();
        work.batches = batches;
        (work.sequence, work.id) = (dump.superblock().sequence, id);
        report.verified = verified.map_err(|stop| VaultError::Dump {
            name: self.name.clone(),
            saved_bytes: report.bytes,
            reason: stop_reason(stop),
        })?;
        let until = deadline.unwrap_or_else(|| Instant::now() + DISKS_WAIT);
        report.unflushed = disks.wait(until);
        report.total_ms = begun.elapsed().as_millis() as u64;
        Ok(report)
    }

    /// The vault is empty from now on: what was dumped is on the disks, or has been taken back to
    /// go on with. Until this has gone well, no write may be acknowledged.
    ///
    /// # Errors
    /// When neither the vault nor the record of its end can be written; say it again.
    pub fn empty(&self) -> Result<(), VaultError> {
        let mut work = self.work();
        if self.state().phase != VaultPhase::Dumped {
            return Ok(());
        }
        let written = self.write_empty(&mut work);
        let Err(VaultError::Io { error, .. }) = written else {
            self.state().phase = VaultPhase::Ready;
            return written;
        };
        let recorded = (self.on_void)(work.id, error);
        if let Err(reason) = recorded {
            tracing::error!("vault {}: its end can't be put on record: {reason}", self.name);
            return Err(VaultError::io(&self.name, error));
        }
        tracing::error!("vault {} has failed ({error}) and takes nothing more", self.name);
        let names: Vec<_> = self.state().volumes.iter().map(|v| v.name.clone()).collect();
        self.release(&names);
        self.state().phase = VaultPhase::Failed(error);
        Ok(())
    }

    /// Writes that the vault holds nothing.
    fn write_empty(&self, work: &mut Work) -> Result<(), VaultError> {
        let mut written = Ok(());
        // One place after the other: the second must not be lost with the first.
        for _ in 0..2 {
            let (id, sequence) = (work.id, work.sequence);
            let dump = Dump::new(id, self.size_bytes, self.geometry, sequence, Vec::new());
            let mut superblock = dump.in_vault(self.number).superblock().clone();
            superblock.clean = true;
            superblock.sequence += 1;
            work.sequence = superblock.sequence;
            let bytes = AlignedBuffer::from(&*superblock.encode());
            written = Blocking::new(&*self.backend).write(superblock.position(), &bytes, true);
            if written.is_ok() {
                break;
            }
        }
        written.map_err(|error| VaultError::io(&self.name, error))
    }

    /// Attaches a volume: it is dumped with the others from now on. In `mode` that is on record.
    pub(crate) fn attach(
        &self,
        volume: &Volume,
        size_bytes: u64,
        identity: [u8; 32],
        mode: Mode,
    ) -> Result<(), VaultError> {
        let mut state = self.state();
        if state.volumes.len() >= VOLUMES_MAX {
            return Err(VaultError::Volumes(self.name.clone()));
        }
        let (id, name) = (volume.id, volume.name.clone());
        let (relies, has_journal) = (volume.power.protects, volume.journal.is_some());
        state.volumes.push(Attached { id, relies, has_journal, name, size_bytes, identity });
        drop(state);
        if relies {
            self.sample(volume, size_bytes);
        }
        self.rely(id, mode)
    }

    /// A volume is about to be served in a mode: in write-back under a supply its newest data may
    /// come to be in this vault alone. That is on record from now on.
    pub(crate) fn rely(&self, id: VolumeId, mode: Mode) -> Result<(), VaultError> {
        let state = self.state();
        let volume = state.volumes.iter().find(|volume| volume.id == id && volume.relies);
        let Some(Attached { name, has_journal, .. }) = volume.filter(|_| mode == Mode::WriteBack)
        else {
            return Ok(());
        };
        let recorded = self.record.rely(self.number, name, *has_journal);
        recorded.map_err(|error| self.unrecorded(name, error))
    }

    fn unrecorded(&self, volume: &str, error: std::io::Error) -> VaultError {
        let (name, volume) = (self.name.clone(), volume.to_owned());
        VaultError::Record { name, volume, error }
    }

    /// The number of the vault itself, which stays whatever is dumped to it.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Volumes have everything on their disks.
    fn release(&self, names: &[String]) {
        for name in names {
            if let Err(error) = self.record.release(self.number, name) {
                tracing::error!(
                    "vault {}: that volume '{name}' does not need it can't be put on record \
                     ({error}); a start without it will refuse the volume",
                    self.name
                );
            }
        }
    }

    /// A volume is not served any more; its disk has everything.
    pub(crate) fn detach(&self, id: VolumeId) {
        let mut left = Vec::new();
        self.state().volumes.retain(|volume| {
            let stays = volume.id != id;
            if !stays {
                left.push(volume.name.clone());
            }
            stays
        });
        self.release(&left);
    }

    /// Ends its thread. With `clean`, all disks have everything, and what was dumped is void.
    pub(crate) fn close(&self, clean: bool) {
        if clean {
            match self.empty() {
                Ok(()) => {
                    let names: Vec<_> =
                        self.state().volumes.iter().map(|v| v.name.clone()).collect();
                    self.release(&names);
                }
                Err(error) => tracing::error!("{}", error.with_causes()),
            }
        }
        self.state().stopping = true;
        self.is_wanted.store(true, Ordering::Relaxed);
        self.bell.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Gives a vault that holds something a number, as it has none yet.
    fn write_number(&self) -> Result<(), VaultError> {
        let mut work = self.work();
        let mut state = self.state();
        let Some(found) = &mut state.found else { return Ok(()) };
        work.sequence += 1;
        found.superblock.sequence = work.sequence;
        found.superblock.members = Members { own: self.number, current: [self.number, 0] };
        let bytes = AlignedBuffer::from(&*found.superblock.encode());
        let position = found.superblock.position();
        let written = Blocking::new(&*self.backend).write(position, &bytes, true);
        written.map_err(|error| VaultError::io(&self.name, error))
    }

    /// What is dirty of some volumes, and which those are, numbered from one.
    fn list(&self, volumes: &[VolumeId]) -> (Vec<VolumeEntry>, DirtyLines, Vec<(VolumeId, u16)>) {
        let mut entries: Vec<(VolumeId, VolumeEntry)> = {
            let state = self.state();
            let meant = state.volumes.iter().filter(|volume| volumes.contains(&volume.id));
            let entry = |(volume, number): (&Attached, u16)| VolumeEntry {
                number,
                name: volume.name.clone(),
                size_bytes: volume.size_bytes,
                identity: volume.identity,
                guard: Guard::default(),
                void_before: 0,
            };
            meant.zip(1..).map(|numbered| (numbered.0.id, entry(numbered))).collect()
        };
        let ids: Vec<_> = entries.iter().map(|(id, entry)| (*id, entry.number)).collect();
        let lines = DirtyLines::of(&self.shared, &ids);
        entries.retain(|(id, _)| lines.has(*id));
        (entries.into_iter().map(|(_, entry)| entry).collect(), lines, ids)
    }

    /// What is known of the disks of volumes, given with their numbers in the dump.
    fn guards(&self, volumes: &[(VolumeId, u16)]) -> Vec<(u16, Guard)> {
        let guard = |volume: &Volume| Guard {
            hardware: crate::guard::hardware(&*volume.backend),
            samples: volume.samples.get().map(KeptSamples::samples).unwrap_or_default(),
            ..Guard::default()
        };
        let known = volumes.iter().filter_map(|&(id, number)| {
            self.shared.volume(id).map(|volume| (number, guard(&volume)))
        });
        known.collect()
    }

    /// Looks at a volume's disk where nothing is about to be written, before anybody is served.
    fn sample(&self, volume: &Volume, size_bytes: u64) {
        let mut dirty = Vec::new();
        for shard in 0..self.shared.shards.len() {
            self.shared.shard(shard).dirty_keys(volume.id, &mut dirty);
        }
        let mut places = vault_places(self.number, size_bytes);
        places.retain(|place| !dirty.iter().any(|key| key.offset() == place.offset));
        let _ = volume.samples.set(KeptSamples::of(&*volume.backend, places));
    }

    /// Begins to flush the disks of volumes: what was destaged and is still in their caches is not
    /// in the vault.
    fn flush_disks(&self, ids: &[VolumeId]) -> Disks {
        let (tell, told) = mpsc::channel();
        let mut waiting = Vec::new();
        for volume in ids.iter().filter_map(|&id| self.shared.volume(id)) {
            let (theirs, tell) = (Arc::clone(&volume), tell.clone());
            waiting.push(volume.name.clone());
            let flush = move || {
                let _ = tell.send((theirs.name.clone(), flush_disk(&theirs)));
            };
            let spawned = std::thread::Builder::new().name("vault-flush".into()).spawn(flush);
            if let Err(error) = spawned {
                tracing::error!("volume '{}' is not flushed: {error}", volume.name);
            }
        }
        Disks { waiting, told }
    }

    /// Takes the vault for a dump of volumes, unless there is one already, which is returned then.
    fn claim(&self, volumes: &[VolumeId]) -> Result<Option<DumpReport>, VaultError> {
        let mut state = self.state();
        match state.phase {
            VaultPhase::Failed(error) => return Err(VaultError::io(&self.name, error)),
            VaultPhase::Holding | VaultPhase::Dumping => {
                return Err(VaultError::Occupied(self.name.clone()));
            }
            VaultPhase::Dumped => {
                let is_in = |dumped: &Vec<VolumeId>| volumes.iter().all(|id| dumped.contains(id));
                if state.dumped.as_ref().is_some_and(is_in) {
                    return Ok(state.last_dump.clone());
                }
            }
            VaultPhase::Ready => {}
        }
        state.phase = VaultPhase::Dumping;
        Ok(None)
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn work(&self) -> Locked<'_, Work> {
        self.work.lock()
    }
}

fn stop_reason(stop: Stop) -> String {
    match stop {
        Stop::Io(error) => error.to_string(),
        Stop::Full => "it is full".to_owned(),
        Stop::Cancelled => "it was called off".to_owned(),
    }
}

/// Flushes that are under way.
struct Disks {
    waiting: Vec<String>,
    told: mpsc::Receiver<(String, IoResult)>,
}

impl Disks {
    /// The volumes whose disks have not been flushed by then, or could not be.
    fn wait(mut self, until: Instant) -> Vec<String> {
        let mut failed = Vec::new();
        while !self.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((name, result)) = self.told.recv_timeout(left) else { break };
            self.waiting.retain(|other| *other != name);
            if let Err(error) = result {
                tracing::error!("the disk of volume '{name}' was not flushed: {error}");
                failed.push(name);
            }
        }
        failed.append(&mut self.waiting);
        failed
    }
}

fn flush_disk(volume: &Volume) -> IoResult {
    match volume.flush.begin() {
        FlushNeed::Known(result) => result,
        FlushNeed::Flush => volume.flush.end(Blocking::new(&*volume.backend).flush()).0,
    }
}

/// What is on the device: a vault, or `None` for nothing but zeroes.
fn find(
    name: &str,
    backend: &Arc<dyn Backend>,
    size_bytes: u64,
    is_void: &dyn Fn(JournalId) -> bool,
) -> Result<Option<Found>, VaultError> {
    let mut device = Device(Blocking::new(&**backend));
    match recover_vault(&mut device, size_bytes) {
        Ok(found) => {
            let id = found.superblock.journal;
            if !found.superblock.clean && is_void(id) {
                return Err(VaultError::Void { name: name.to_owned(), id });
            }
            Ok(Some(found))
        }
        Err(RecoverError::Superblock(SuperblockInvalid::Foreign)) => {
            let mut head = vec![0; 2 * SUPERBLOCK_BYTES];
            device.read_at(0, &mut head).map_err(|error| VaultError::io(name, error))?;
            if head.iter().any(|&byte| byte != 0) {
                return Err(VaultError::Foreign(name.to_owned()));
            }
            Ok(None)
        }
        Err(error) => Err(VaultError::Unusable { name: name.to_owned(), error }),
    }
}

fn fresh_id() -> Result<JournalId, IoError> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| IoError::NoMemory)?;
    Ok(JournalId(id))
}

fn fresh_number(name: &str) -> Result<u64, VaultError> {
    let id = fresh_id().map_err(|error| VaultError::io(name, error))?;
    let JournalId([a, b, c, d, e, f, g, h, ..]) = id;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1))
}
