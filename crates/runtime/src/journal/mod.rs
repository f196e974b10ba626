//! An open journal. A thread of its own writes the log; a journal without a working device is
//! abandoned.
//!
//! Workers append records while they hold the lock of their shard. The journal's thread writes the
//! pending records as one batch, makes it durable, and posts the answers to the waiting workers
//! (group commit). It also begins checkpoints, which the workers carry out.
//!
//! What is recorded and answered, and what a failure means, is decided by
//! [`forebay_protect::JournalState`].

mod ahead;
mod attach;
mod beats;
mod checkpoint;
mod devices;
mod error;
mod failure;
mod host;
mod losses;
mod moving;
mod patrol;
mod recording;
mod recovery;
mod reliance;
mod restoring;
mod sampling;
mod settings;
mod status;
mod writer;

pub(crate) use ahead::ReadAhead;
pub(crate) use attach::{Attachment, leave};
pub use beats::beat_every;
pub(crate) use checkpoint::distance;
pub use devices::MemberRecord;
pub(crate) use devices::Reader;
pub(crate) use error::{ERASE_FOR_NEW, ERASE_UNNEEDED, NAME_ANOTHER, remedy_for_recovery};
pub use error::{JournalError, MissingDevice};
pub use failure::is_shared as journal_is_shared;
pub(crate) use failure::{devices_of, end_records, release_unserved};
pub use forebay_protect::KeptStatus;
pub(crate) use host::JournalHost;
pub(crate) use losses::{LossSearches, LostContent, lost_content};
pub(crate) use moving::{enter, holds_nothing, let_go, sample_from_now_on};
pub use patrol::JournalPatrol;
pub use recovery::VoidRecords;
pub(crate) use reliance::NoJournalRecord;
pub use reliance::{JournalRecord, Missing};
pub use settings::{JournalSettings, OnFailure, VolumeJournal};
pub use status::JournalStatus;

use crate::disk::Presence;
use crate::platform::locks::{LazyCondvar, Lock, Locked, order};
use crate::stats::{Histogram, InternalReads};
use forebay_backend::{AlignedBuffer, Backend};
use forebay_format::journal::{BATCH_BYTES_MAX, Geometry};
use forebay_journal::{Found, Log, is_durable_before};
use forebay_protect::JournalState;
use forebay_threads::Thread;
use forebay_types::{IoError, VolumeId};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devices::Devices;

/// Batches in addition to one for each worker: one being filled, and one being written.
const BUFFERS_SPARE: usize = 2;
/// The pause between two looks at what the log has done.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest sleep of the journal's thread.
const TICK: Duration = Duration::from_millis(100);

/// The number of batch buffers of a journal or vault.
pub(crate) const fn journal_buffers(workers: usize) -> usize {
    workers + BUFFERS_SPARE
}

/// The memory of a journal's or vault's batch buffers, in bytes.
pub(crate) const fn journal_bytes(workers: usize) -> u64 {
    journal_buffers(workers) as u64 * BATCH_BYTES_MAX
}

pub(crate) struct State {
    pub core: JournalState<AlignedBuffer>,
    /// The error of the record, outside of the journal, that writes wait for.
    waits_for: Option<String>,
    /// The thread waits for `wakeup`.
    is_asleep: bool,
    /// The attached volumes, by their numbers in the journal.
    volumes: Vec<(u16, VolumeId)>,
    /// The disks of the attached volumes, and what counts the internal reads of them.
    disks: Vec<(u16, Arc<dyn Backend>, Arc<InternalReads>)>,
    /// Numbers of the volumes whose disks are being sampled.
    sampling: Vec<u16>,
    /// When the last beat was due.
    beat_at: Instant,
    /// When the last checkpoint began.
    checkpoint_at: Instant,
    urgent: checkpoint::Urgent,
    /// Volumes whose dirty data is being flushed because the log has failed.
    flushing: Vec<VolumeId>,
    /// Displaced devices that the thread is to mark as failed.
    gone: [bool; 2],
    stopping: bool,
}

impl State {
    /// Whether the volume is attached, with this number.
    pub(crate) fn has_volume(&self, number: u16, volume: VolumeId) -> bool {
        self.volumes.contains(&(number, volume))
    }
}

/// An open journal.
pub struct Journal {
    name: String,
    devices: Devices,
    /// Locked while the members are written, so that no newer ones are replaced by older ones.
    members: Lock<Box<dyn MemberRecord>, { order::MEMBERS }>,
    record: Arc<dyn JournalRecord>,
    state: Lock<State, { order::JOURNAL }>,
    /// Wakes the journal's thread.
    wakeup: LazyCondvar,
    /// Notified when a write of the log has completed, or a disk was sampled.
    written: LazyCondvar,
    /// The records found when the log was opened or read again, except those already restored.
    found: Lock<Found, { order::FOUND }>,
    /// Volumes that must not use the journal: it failed while they were served.
    abandoned: VoidRecords,
    on_failure: OnFailure,
    host: Weak<dyn JournalHost>,
    searches: LossSearches,
    patrol: patrol::Patrol,
    /// The interval of its beats in milliseconds; zero for none.
    beat_every_ms: AtomicU32,
    /// Latencies of the writes to the log, recorded by the journal's thread.
    commits: Histogram,
    /// Whether each device is where it was opened.
    presence: [Presence; 2],
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Journal {
    /// Opens a journal, or formats one on a device that begins with zeroes.
    pub(crate) fn open(
        settings: JournalSettings,
        host: Weak<dyn JournalHost>,
        workers: usize,
        record: Arc<dyn JournalRecord>,
    ) -> Result<Arc<Self>, JournalError> {
        let mut devices = Devices::new(&settings);
        let (name, size_bytes) = (devices.name(), devices.size_bytes());
        if let Some(name) = devices.read_only() {
            return Err(JournalError::ReadOnly(name.to_owned()));
        }
        if let Some((name, block_bytes)) = devices.with_large_blocks() {
            return Err(JournalError::Blocks { name: name.to_owned(), block_bytes });
        }
        let Some(geometry) = Geometry::for_size(size_bytes) else {
            return Err(JournalError::Small { name, bytes: size_bytes });
        };
        let buffers = || {
            let count = journal_buffers(workers);
            (0..count).map(|_| AlignedBuffer::new(BATCH_BYTES_MAX as usize)).collect::<Vec<_>>()
        };
        let (log, found) = devices.open(&settings, geometry, buffers)?;
        let id = found.superblock.journal;
        let abandoned = (settings.is_abandoned)(id);
        let reserved = record.reserve(id);
        reserved.map_err(|error| JournalError::Record { name: name.clone(), error })?;
        let JournalSettings { members, on_failure, beat_every, .. } = settings;
        let state = State {
            core: JournalState::new(log),
            waits_for: None,
            is_asleep: false,
            volumes: Vec::new(),
            disks: Vec::new(),
            sampling: Vec::new(),
            beat_at: Instant::now(),
            checkpoint_at: Instant::now(),
            urgent: checkpoint::Urgent::default(),
            flushing: Vec::new(),
            gone: [false; 2],
            stopping: false,
        };
        let journal = Arc::new(Self {
            name,
            devices,
            members: Lock::new(members),
            record,
            state: Lock::new(state),
            wakeup: LazyCondvar::default(),
            written: LazyCondvar::default(),
            found: Lock::new(found),
            abandoned,
            on_failure,
            host,
            searches: LossSearches::default(),
            patrol: patrol::Patrol::default(),
            beat_every_ms: AtomicU32::new(beats::millis(beat_every)),
            commits: Histogram::default(),
            presence: Default::default(),
            thread: Lock::new(None),
        });
        start_thread(&journal)?;
        journal.wait_for_superblock()?;
        journal.record_members()?;
        patrol::Patrol::start(&journal);
        Ok(journal)
    }

    /// Starts the next walk of the patrol over the log at once.
    pub fn patrol_now(&self) {
        self.patrol.wake();
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn searches(&self) -> &LossSearches {
        &self.searches
    }

    pub(crate) fn lock(&self) -> Locked<'_, State> {
        // A log that failed an assertion cannot be trusted, and neither can its acknowledgements.
        self.state.lock_unbroken("the journal")
    }

    pub(crate) fn wait_for_superblock(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.core.log.failed() {
                return Err(JournalError::Io { name: self.name.clone(), error });
            }
            if state.core.log.is_superblock_durable() {
                return Ok(());
            }
            self.wakeup.notify_all();
            state = self.written.wait(state);
        }
    }

    /// Wakes the journal's thread, and waits until the log has made progress, or for a while.
    pub(crate) fn wait_for_progress(&self) {
        let mut state = self.lock();
        self.wake(&mut state);
        drop(self.written.wait_timeout(state, PAUSE));
    }

    /// Waits until everything recorded so far is durable; `None` if the journal fails.
    pub(crate) fn wait_until_recorded(&self) -> Option<()> {
        let mut state = self.lock();
        let end = state.core.log.next_record();
        while !is_durable_before(&state.core.log, end).ok()?
            || !state.core.log.is_membership_recorded()
        {
            self.wake(&mut state);
            state = self.written.wait_timeout(state, PAUSE);
        }
        Some(())
    }

    /// Stops the thread. With `clean`, all disks have all data, and the journal is marked clean.
    pub(crate) fn close(&self, clean: bool) {
        self.release_disks(None);
        self.patrol.stop();
        let mut state = self.lock();
        let mut names = Vec::new();
        if clean {
            let numbers: Vec<u16> = state.volumes.iter().map(|(number, _)| *number).collect();
            names = volume_names(&state.core.log, &numbers);
            for number in numbers {
                state.core.log.mark_clean(number);
                // Volumes that are not served keep the journal from being clean. The records of the
                // others are removed, because they would undo later changes to their disks.
                let removed = state.core.log.remove_volume(number);
                debug_assert!(removed.is_ok(), "it was marked clean just now");
            }
            state.core.log.close();
        }
        state.stopping = true;
        drop(state);
        self.wakeup.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && !forebay_threads::join_within_limit(thread)
        {
            tracing::error!(journal = %self.name, "device does not answer, stopping without it");
        }
        // Released only after the log is closed: until then, a start would restore from it.
        self.release(&names);
        if clean {
            if self.is_abandoned() {
                self.record_settled();
            }
            self.record.unreserve(self.id());
        }
    }

    /// Restores the sectors of a volume that were lost in memory and that the log holds.
    pub(crate) fn regain(self: &Arc<Self>, number: u16, volume: VolumeId) {
        if let Some(host) = self.host.upgrade() {
            host.regain(self, number, volume);
        }
    }
}

fn start_thread(journal: &Arc<Journal>) -> Result<(), JournalError> {
    let owned = Arc::clone(journal);
    let thread = Thread::named("journal").spawn(move || owned.run());
    let (name, error) = (&journal.name, IoError::NoMemory);
    let thread = thread.map_err(|_| JournalError::Io { name: name.clone(), error })?;
    *journal.thread.lock() = Some(thread);
    Ok(())
}

/// The names of the volumes with these numbers.
fn volume_names<B: AsRef<[u8]> + AsMut<[u8]>, W>(log: &Log<B, W>, numbers: &[u16]) -> Vec<String> {
    let known = |number: &u16| log.superblock().volume(*number).map(|volume| volume.name.clone());
    numbers.iter().filter_map(known).collect()
}
