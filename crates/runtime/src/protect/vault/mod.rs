//! The vault: the device that takes the dirty data when the UPS battery runs low.
//!
//! A server has one vault. In normal operation it is *ready*: empty, measured, and large enough
//! for all dirty data. [`Vault::dump`] writes the dirty data, makes it durable, seals it, flushes
//! the disks and reads everything back. After the next start, the vault keeps the data of each
//! volume until the volume is served again. The data goes to the volume's disk before a client can
//! connect, so no disk ever has newer data than the vault.
//!
//! Contracts:
//! - from the beginning of a dump until [`Vault::empty`] has succeeded, no write is acknowledged.
//!   Loading the dump would undo such a write. [`Vault::dump`] halts the volumes if the caller has
//!   not;
//! - a vault that holds data accepts no dump, measurement or drill: [`Vault::is_ready`] is false,
//!   and there is no measured speed;
//! - measurements and drills write to the vault's space but not to its superblock, so the vault
//!   stays empty on the device. A dump cancels them within one batch.
//!
//! The price: the memory of a few batches from the start, as for a journal, and eight bytes per
//! dirty line during a dump.

mod batch;
mod copy;
mod dirty;
mod drill;
mod dump;
mod error;
mod flush;
mod load;
mod measure;
mod members;
mod pipe;
mod probe;
mod record;
mod report;
mod save;

pub(crate) use copy::copy_dirty;
pub use drill::DrillReport;
pub use error::VaultError;
pub(crate) use record::NoRecord;
pub use record::VaultRecord;
pub use report::{DumpReport, Measured, VaultPhase, VaultStatus};

use crate::journal::journal_buffers;
use crate::platform::locks::{LazyCondvar, Lock, Locked, order};
use crate::shared::Shared;
use batch::Batch;
use forebay_backend::{AlignedBuffer, Backend, Blocking, Description};
use forebay_format::journal::{
    BLOCK_BYTES, Geometry, JOURNAL_BYTES_MIN, JournalId, LOG_OFFSET, Members, SUPERBLOCK_BYTES,
    SuperblockInvalid, VolumeEntry,
};
use forebay_journal::{Found, ReadAt, RecoverError, recover_vault};
use forebay_types::{Fault, IoError, LINE_BYTES, VolumeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// The maximum overhead of a dump: one part in 32 for records and unused ends of segments, and
/// three segments for batches that have to be relocated.
const OVERHEAD_PART: u64 = 32;
const SPARE_BYTES_MIN: u64 = 16 << 20;
const SPARE_BYTES_MAX: u64 = 192 << 20;

/// The size that a vault needs for this much dirty data.
pub const fn vault_bytes_for(dirty_bytes: u64) -> u64 {
    let spare_bytes = SPARE_BYTES_MIN + dirty_bytes / 16;
    let spare_bytes = if spare_bytes < SPARE_BYTES_MAX { spare_bytes } else { SPARE_BYTES_MAX };
    let bytes = dirty_bytes + dirty_bytes / OVERHEAD_PART + spare_bytes;
    let bytes = LOG_OFFSET + bytes.next_multiple_of(1 << 20);
    if bytes < JOURNAL_BYTES_MIN { JOURNAL_BYTES_MIN } else { bytes }
}

/// The most dirty data for which a vault of this size suffices.
pub const fn dirty_bytes_for(vault_bytes: u64) -> u64 {
    let (mut fits, mut exceeds) = (0, vault_bytes);
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        if vault_bytes_for(middle) <= vault_bytes {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    fits
}

/// Records durably that a dump is void, when the vault itself cannot be written.
pub type OnVoid = Box<dyn Fn(JournalId, IoError) -> std::io::Result<()> + Send + Sync>;

/// The settings that a vault is opened with.
pub struct VaultSettings {
    /// Its device.
    pub backend: Arc<dyn Backend>,
    /// Whether a dump is recorded as void. After an error, the vault is not opened.
    pub is_void: Box<dyn Fn(JournalId) -> std::io::Result<bool>>,
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
    /// A UPS is part of its protection, so the vault may later hold its newest data.
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
    /// The part of an earlier process's dump that is not on the disks yet.
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
impl State {
    fn change_phase(&mut self, from: VaultPhase, to: VaultPhase) {
        assert_eq!(self.phase, from, "no other thread has changed the phase to {to:?}");
        self.phase = to;
    }
}

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
    /// Cancels measurements, drills and probes: a dump needs the device, the machine is on battery,
    /// or the server stops.
    cancelled: AtomicBool,
    /// The process is about to exit, and the next one needs the dump.
    is_left: AtomicBool,
    /// Wakes the vault's thread.
    wakeup: LazyCondvar,
    on_void: OnVoid,
    record: Arc<dyn VaultRecord>,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

/// A device with a log, read without the read-ahead that a journal's start has.
pub struct LogReader<'a>(pub Blocking<'a>);

impl ReadAt for LogReader<'_> {
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
        let (name, size_bytes) = (description.name.clone(), description.size_bytes());
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
            // Volumes that were released, by a load or by the operator, are no longer held.
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
            is_left: AtomicBool::new(false),
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

    /// The name of its device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The size of its device.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
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

    /// The most dirty data that it can take.
    pub fn dirty_bytes_max(&self) -> u64 {
        dirty_bytes_for(self.size_bytes)
    }

    /// Bytes in dirty lines of these volumes.
    pub fn dirty_bytes(&self, ids: &[VolumeId]) -> u64 {
        let lines = |id| {
            let shards = (0..self.shared.shards.len()).map(|shard| self.shared.shard(shard));
            let with_volume = shards.filter(|shard| shard.has_volume(id));
            with_volume.map(|shard| shard.volume(id).dirty_lines()).sum::<usize>()
        };
        ids.iter().map(|&id| lines(id)).sum::<usize>() as u64 * LINE_BYTES
    }

    /// Sets whether the machine is on battery. Measurements, drills and probes do not begin then,
    /// and one in progress ends soon. Does not wait for its end: the caller monitors the power, and
    /// the vault may hang.
    pub fn set_on_battery(&self, on_battery: bool) {
        let mut state = self.state();
        state.on_battery = on_battery;
        if !state.stopping {
            self.cancelled.store(on_battery, Ordering::Relaxed);
        }
    }

    /// Identifies the vault; it stays the same from dump to dump.
    pub(crate) const fn number(&self) -> u64 {
        self.number
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
        if let Some(thread) = self.thread.lock().take()
            && !forebay_threads::join_within_limit(thread)
        {
            tracing::error!(vault = %self.name, "device does not answer, stopping without it");
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

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn work(&self) -> Locked<'_, Work> {
        self.work.lock()
    }
}

/// Reads the vault on a device; `None` where the device begins with zeroes.
fn find(
    name: &str,
    backend: &Arc<dyn Backend>,
    size_bytes: u64,
    is_void: &dyn Fn(JournalId) -> std::io::Result<bool>,
) -> Result<Option<Found>, VaultError> {
    let mut device = LogReader(Blocking::new(&**backend));
    match recover_vault(&mut device, size_bytes) {
        Ok(found) => {
            let id = found.superblock.journal;
            let unknown = |error| VaultError::Mark { name: name.to_owned(), error };
            if !found.superblock.is_clean && is_void(id).map_err(unknown)? {
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
