//! The vault: the device that takes the dirty data when the UPS battery runs low.
//!
//! A server has one vault. In normal operation it is *ready*: empty, measured, and large enough
//! for all dirty data. [`Vault::dump`] writes the dirty data, makes it durable, seals it, flushes
//! the disks and reads everything back. The next start holds the dump until each of its volumes is
//! served again. The data goes to the volume's disk before a client can connect, so no disk ever
//! has newer data than the vault.
//!
//! Contracts:
//! - from the beginning of a dump until [`Vault::empty`] has succeeded, no write is acknowledged.
//!   Loading a sealed dump would undo it. [`Vault::dump`] halts the volumes if the caller has not;
//! - a vault that holds data accepts no dump, measurement or drill: [`Vault::is_ready`] is false,
//!   and there is no measured speed;
//! - measurements and drills write to the vault's space but not to its superblock, so the vault
//!   stays empty on the device. A dump cancels them within one batch.
//!
//! The price: the memory of a few batches from the start, as for a journal, and eight bytes per
//! dirty line during a dump.

mod batch;
mod dirty;
mod drill;
mod error;
mod flush;
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

use crate::locks::{LazyCondvar, Lock, Locked, order};
use crate::protect::guard::KeptSamples;
use crate::protect::journal::journal_buffers;
use crate::shared::{Shared, Volume};
use batch::Batch;
use dirty::DirtyLines;
use flush::DiskFlushes;
use forebay_backend::{AlignedBuffer, Backend, Blocking, Description, Displaced};
use forebay_format::journal::{
    BLOCK_BYTES, DiskInfo, Geometry, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET, Members,
    SUPERBLOCK_BYTES, SuperblockInvalid, VOLUMES_MAX, VolumeEntry,
};
use forebay_journal::identity::vault_places;
use forebay_journal::{Dump, Found, ReadAt, RecoverError, recover_vault};
use forebay_types::{Fault, IoError, LINE_BYTES, Mode, VolumeId};
use save::{Saver, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The overhead of a dump, at most: one part in 32 for records and unused ends of segments, and
/// three segments for batches that have to be relocated.
const OVERHEAD_PART: u64 = 32;
const SPARE_BYTES_MIN: u64 = 16 << 20;
const SPARE_BYTES_MAX: u64 = 192 << 20;
/// How long a dump without a deadline waits for the flushes of the disks.
const DISKS_WAIT: Duration = Duration::from_secs(10);

/// The size that a vault needs for this much dirty data.
pub const fn vault_bytes_for(dirty_bytes: u64) -> u64 {
    let spare_bytes = SPARE_BYTES_MIN + dirty_bytes / 16;
    let spare_bytes = if spare_bytes < SPARE_BYTES_MAX { spare_bytes } else { SPARE_BYTES_MAX };
    let bytes = dirty_bytes + dirty_bytes / OVERHEAD_PART + spare_bytes;
    let bytes = LOG_OFFSET + bytes.next_multiple_of(1 << 20);
    if bytes < JOURNAL_BYTES_MIN { JOURNAL_BYTES_MIN } else { bytes }
}

/// Records durably that a dump is void, when the vault itself cannot be written.
pub type OnVoid = Box<dyn Fn(JournalId, IoError) -> std::io::Result<()> + Send + Sync>;

/// The settings that a vault is opened with.
pub struct VaultSettings {
    /// Its device.
    pub backend: Arc<dyn Backend>,
    /// Whether a dump is recorded as void.
    pub is_void: Box<dyn Fn(JournalId) -> bool>,
    /// See [`OnVoid`].
    pub on_void: OnVoid,
}

/// How a volume uses the vault.
pub struct VolumeVault {
    /// The vault.
    pub vault: Arc<Vault>,
    /// Identifies the volume's disk in the vault.
    pub identity: [u8; 32],
    /// Serve the volume although the dump lacks some of its data.
    pub accept_loss: bool,
}

/// A volume that takes part in dumps.
struct Attached {
    id: VolumeId,
    /// A UPS is part of its protection, so the vault may come to hold its newest data.
    relies: bool,
    /// It has a journal, and relies on the vault only after that has failed.
    has_journal: bool,
    name: String,
    size_bytes: u64,
    identity: [u8; 32],
}

struct State {
    phase: VaultPhase,
    volumes: Vec<Attached>,
    /// The dump of an earlier process, as far as it is not on the disks yet.
    found: Option<Found>,
    measured: Option<Measured>,
    measure_at: Instant,
    probe: probe::Probe,
    last_dump: Option<DumpReport>,
    /// The volumes of a complete dump by this process.
    dumped: Option<Vec<VolumeId>>,
    on_battery: bool,
    stopping: bool,
}

/// The state that a dump, drill, measurement or probe uses exclusively.
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
    /// Identifies the vault; unlike the identity of a dump, it never changes.
    number: u64,
    backend: Arc<dyn Backend>,
    geometry: Geometry,
    size_bytes: u64,
    shared: Arc<Shared>,
    state: Lock<State>,
    work: Lock<Work, { order::VAULT_WORK }>,
    /// Cancels measurements, drills and probes, as a dump needs the device.
    cancelled: AtomicBool,
    /// Wakes the vault's thread.
    wakeup: LazyCondvar,
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
    /// Opens a vault, or formats one on a device that begins with zeroes.
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
            // Volumes that were released, by a load or by hand, are not held any more.
            found.superblock.volumes.retain(VolumeEntry::has_valid_records);
        }
        let (sequence, id) = match &found {
            Some(found) => (found.superblock.sequence, found.superblock.journal),
            None => (0, fresh_id().map_err(|error| VaultError::io(&name, error))?),
        };
        // A dump without volumes holds nothing.
        let is_empty = |found: &Found| found.superblock.volumes.is_empty();
        let has_leftover = found.as_ref().is_some_and(|f| is_empty(f) && !f.superblock.is_clean);
        let held = found.filter(|found| !found.superblock.is_clean && !is_empty(found));
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
            cancelled: AtomicBool::new(false),
            wakeup: LazyCondvar::default(),
            on_void,
            thread: Lock::default(),
        });
        if is_new || has_leftover {
            vault.write_empty(&mut vault.work())?;
        } else if known == 0 {
            vault.write_number()?;
        }
        if is_new {
            tracing::info!(vault = %vault.name, "formatted vault");
        }
        vault.start_thread()?;
        Ok(vault)
    }

    /// A snapshot of its state.
    pub fn status(&self) -> VaultStatus {
        let state = self.state();
        VaultStatus {
            name: self.name.clone(),
            phase: state.phase,
            capacity_bytes: self.geometry.log_bytes(),
            measured: state.measured,
            trouble: state.probe.trouble(),
            probes: state.probe.succeeded,
            last_dump: state.last_dump.clone(),
            held: state.found.as_ref().map(load::held_bytes).unwrap_or_default(),
            is_whole: state.found.as_ref().is_none_or(load::is_whole),
        }
    }

    /// Whether it accepts a dump: it holds no data and has not failed.
    pub fn is_ready(&self) -> bool {
        self.state().phase == VaultPhase::Ready
    }

    /// Bytes per second that a dump makes durable, as measured last; `None` while the vault is not
    /// ready or was not measured. The time to read the dump back is not included.
    pub fn measured_bytes_per_second(&self) -> Option<u64> {
        let state = self.state();
        let is_ready = state.phase == VaultPhase::Ready && state.probe.trouble().is_none();
        state.measured.filter(|_| is_ready).map(|measured| measured.write_bytes_per_second)
    }

    /// Bytes in dirty lines of these volumes.
    pub fn dirty_bytes(&self, ids: &[VolumeId]) -> u64 {
        let lines = |id| {
            let shards = (0..self.shared.shards.len()).map(|shard| self.shared.shard(shard));
            let lines = shards.filter(|shard| shard.has_volume(id)).map(|s| s.dirty_lines(id));
            lines.sum::<usize>()
        };
        ids.iter().map(|&id| lines(id)).sum::<usize>() as u64 * LINE_BYTES
    }

    /// Sets whether the machine is on battery. Measurements, drills and probes do not write then.
    pub fn set_on_battery(&self, on_battery: bool) {
        self.state().on_battery = on_battery;
        if on_battery {
            // Cancel one in progress, and wait for its end.
            self.cancelled.store(true, Ordering::Relaxed);
            let _work = self.work();
            self.cancelled.store(false, Ordering::Relaxed);
        }
    }

    /// Dumps all dirty data of some attached volumes: writes it, makes it durable, seals it,
    /// flushes the disks of the volumes, and reads the dump back until the deadline. The report
    /// says whether the dump was verified and which disks were not flushed. Writes to the volumes
    /// are halted, here at the latest, and stay so: see the module's contracts. If there is already
    /// a complete dump of these volumes, its report is returned.
    ///
    /// # Errors
    /// When some data could not be saved. It stays dirty in the pool, so the dump can be repeated
    /// and the data destaged. The next start loads what was written.
    pub fn dump(
        &self,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
    ) -> Result<DumpReport, VaultError> {
        self.cancelled.store(true, Ordering::Relaxed);
        let mut work = self.work();
        self.cancelled.store(false, Ordering::Relaxed);
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
            if volume.power.has_ups() && volume.power.set_halted(true) {
                tracing::error!(volume = volume.name, "writes were not halted before the dump");
            }
        }
        let begun = Instant::now();
        let dumped = self.dump_with(&mut work, volumes, deadline, begun);
        let mut state = self.state();
        state.phase = VaultPhase::Dumped;
        state.dumped = if dumped.is_ok() { Some(volumes.to_vec()) } else { None };
        match dumped {
            Ok(report) => {
                tracing::warn!(
                    vault = %self.name,
                    bytes = report.bytes,
                    sealed_ms = report.sealed_ms,
                    total_ms = report.total_ms,
                    verified = report.verified,
                    failures = report.failures,
                    unflushed = ?report.unflushed,
                    "dump complete"
                );
                state.last_dump = Some(report.clone());
                Ok(report)
            }
            Err(error) => {
                tracing::error!(error = error.with_causes(), "dump failed");
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
        // Lines destaged before they were copied are not in the dump, so the disks are flushed.
        let disks = self.flush_disks(volumes);
        let sealed = written.and_then(|()| {
            // Writes were halted before the dump, so the valid samples do not change any more.
            saver.seal(self.fingerprints(&ids))
        });
        report.sealed_ms = begun.elapsed().as_millis() as u64;
        let verified = sealed.and_then(|()| saver.verify(true, deadline, None));
        report.failures = saver.failures();
        report.bytes = saver.saved_bytes();
        report.written_bytes = saver.written_bytes();
        report.batches = saver.dump().placed().len() as u64;
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

    /// Empties the vault: the dumped data is on the disks, or still in the pool and served on. No
    /// write may be acknowledged until this has succeeded.
    ///
    /// # Errors
    /// When neither the vault nor the record that its dump is void can be written. To be called
    /// again.
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
            tracing::error!(
                vault = %self.name,
                error = %reason,
                "cannot record vault invalidation"
            );
            return Err(VaultError::io(&self.name, error));
        }
        tracing::error!(vault = %self.name, %error, "vault failed, no further dump is possible");
        let names: Vec<_> = self.state().volumes.iter().map(|v| v.name.clone()).collect();
        self.release(&names);
        self.state().phase = VaultPhase::Failed(error);
        Ok(())
    }

    /// Writes the superblock of an empty vault.
    fn write_empty(&self, work: &mut Work) -> Result<(), VaultError> {
        let mut written = Ok(());
        // The second copy is the fallback if the first cannot be written.
        for _ in 0..2 {
            let (id, sequence) = (work.id, work.sequence);
            let dump = Dump::new(id, self.size_bytes, self.geometry, sequence, Vec::new());
            let mut superblock = dump.in_vault(self.number).superblock().clone();
            superblock.is_clean = true;
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

    /// Attaches a volume, which takes part in dumps from now on. If it is served in write-back, it
    /// is recorded as relying on the vault.
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
        let (relies, has_journal) = (volume.power.has_ups(), volume.journal.is_some());
        state.volumes.push(Attached { id, relies, has_journal, name, size_bytes, identity });
        drop(state);
        if relies {
            self.sample(volume, size_bytes);
        }
        self.rely(id, mode)
    }

    /// Records that a volume about to be served in `mode` relies on the vault: in write-back under
    /// a UPS, its newest data may come to be in this vault alone.
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

    /// Identifies the vault; it stays the same from dump to dump.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Removes the records of volumes whose disks have everything.
    fn release(&self, names: &[String]) {
        for name in names {
            if let Err(error) = self.record.release(self.number, name) {
                tracing::error!(
                    vault = %self.name,
                    volume = %name,
                    %error,
                    "cannot record that the volume no longer relies on the vault; a start without \
                     the vault refuses the volume"
                );
            }
        }
    }

    /// Removes a volume that is no longer served and whose disk has all of its data.
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

    /// Stops the thread. With `clean`, all disks have everything, and the vault is emptied.
    pub(crate) fn close(&self, clean: bool) {
        if clean {
            match self.empty() {
                Ok(()) => {
                    let names: Vec<_> =
                        self.state().volumes.iter().map(|v| v.name.clone()).collect();
                    self.release(&names);
                }
                Err(error) => {
                    tracing::error!(error = error.with_causes(), "cannot empty the vault")
                }
            }
        }
        self.state().stopping = true;
        self.cancelled.store(true, Ordering::Relaxed);
        self.wakeup.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Writes the number of a vault that holds a dump and has no number yet.
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

    /// Lists the dirty lines of some volumes, which are numbered from one in the dump.
    fn list(&self, volumes: &[VolumeId]) -> (Vec<VolumeEntry>, DirtyLines, Vec<(VolumeId, u16)>) {
        let mut entries: Vec<(VolumeId, VolumeEntry)> = {
            let state = self.state();
            let meant = state.volumes.iter().filter(|volume| volumes.contains(&volume.id));
            let entry = |(volume, number): (&Attached, u16)| VolumeEntry {
                number,
                name: volume.name.clone(),
                size_bytes: volume.size_bytes,
                identity: volume.identity,
                disk: DiskInfo::default(),
                void_before: 0,
            };
            meant.zip(1..).map(|numbered| (numbered.0.id, entry(numbered))).collect()
        };
        let ids: Vec<_> = entries.iter().map(|(id, entry)| (*id, entry.number)).collect();
        let lines = DirtyLines::of(&self.shared, &ids);
        entries.retain(|(id, _)| lines.has(*id));
        (entries.into_iter().map(|(_, entry)| entry).collect(), lines, ids)
    }

    /// The fingerprints of the disks of these volumes, which are given with their numbers in the
    /// dump.
    fn fingerprints(&self, volumes: &[(VolumeId, u16)]) -> Vec<(u16, DiskInfo)> {
        let fingerprint = |volume: &Volume| DiskInfo {
            hardware: crate::protect::guard::hardware(&*volume.backend),
            samples: volume.samples.get().map(KeptSamples::samples).unwrap_or_default(),
            ..DiskInfo::default()
        };
        let known = volumes.iter().filter_map(|&(id, number)| {
            self.shared.volume(id).map(|volume| (number, fingerprint(&volume)))
        });
        known.collect()
    }

    /// Samples a volume's disk before the volume is served, except where it has dirty lines.
    fn sample(&self, volume: &Volume, size_bytes: u64) {
        let mut dirty = Vec::new();
        for shard in 0..self.shared.shards.len() {
            self.shared.shard(shard).dirty_keys(volume.id, &mut dirty);
        }
        let mut places = vault_places(self.number, size_bytes);
        places.retain(|place| !dirty.iter().any(|key| key.offset() == place.offset));
        let _ = volume.samples.set(KeptSamples::of(&*volume.backend, places));
    }

    /// Starts to flush the disks of volumes: data that was destaged and is still in a disk's cache
    /// is not in the vault.
    fn flush_disks(&self, ids: &[VolumeId]) -> DiskFlushes {
        DiskFlushes::start(ids.iter().filter_map(|&id| self.shared.volume(id)))
    }

    /// Claims the vault for a dump. If there is already a complete dump of these volumes, returns
    /// its report.
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
        Stop::Full => "the vault is full".to_owned(),
        Stop::Cancelled => "cancelled".to_owned(),
    }
}

/// Reads the vault on a device; `None` where the device begins with zeroes.
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
            if !found.superblock.is_clean && is_void(id) {
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
