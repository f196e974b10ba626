//! An open journal. A thread of its own writes the log; a journal whose device fails is abandoned.
//!
//! Workers append records while they hold the lock of their shard. The journal's thread writes the
//! pending records as one batch, makes it durable, and posts the answers to the waiting workers
//! (group commit). It also begins checkpoints, which the workers carry out.
//!
//! After a failed write, no request is answered before the failure is recorded outside of the
//! journal. Otherwise a journal that is readable again at the next start would undo writes that
//! were acknowledged without it. Until then writes and flushes wait; afterwards they go to the
//! disks.

mod ahead;
mod attach;
mod checkpoint;
mod devices;
mod error;
mod patrol;
mod recovery;
mod regain;
mod reliance;
mod sampling;
mod stuck;

pub(crate) use ahead::ReadAhead;
pub(crate) use attach::Attachment;
pub(crate) use devices::Reader;
pub use devices::{MemberRecord, MissingDevice};
pub use error::JournalError;
pub use patrol::JournalPatrol;
pub use recovery::VoidRecords;
pub use reliance::JournalRecord;
pub(crate) use reliance::NoJournalRecord;
pub use stuck::KeptStatus;

use crate::locks::{LazyCondvar, Lock, Locked, order};
use crate::protect::presence::{Change, Presence};
use crate::shared::{Inbox, Message, Shared};
use forebay_backend::{AlignedBuffer, Backend, Displaced};
use forebay_engine::{Answer, Note, NoteKind, Outcome, Part, PartId};
use forebay_format::journal::{BATCH_BYTES_MAX, Geometry, JournalId, RecordKind};
use forebay_journal::{
    Admission as LogAdmission, Entry, Extent, Found, Image, Log, LogUsage, Mark, Notification,
    RecordOutcome, Source,
};
use forebay_types::{ByteRange, Durability, IoError, IoResult, REGION_BYTES, Stripes, VolumeId};
use forebay_volume::{Admission, worker_of};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devices::Devices;

/// Batches beside one for each worker: one being filled, and one being written.
const BUFFERS_SPARE: usize = 2;
/// The longest sleep of the journal's thread.
const TICK: Duration = Duration::from_millis(100);
/// The pause before an update outside of the journal is tried again.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

/// Records the failure of a journal durably, with the names of the volumes that continue without
/// it. Called before any of them does.
pub type OnFailure =
    Box<dyn Fn(JournalId, IoError, &[String]) -> std::io::Result<()> + Send + Sync>;

/// The settings that a journal is opened with.
pub struct JournalSettings {
    /// Its device, or the device of a mirrored journal that could be opened.
    pub backend: Arc<dyn Backend>,
    /// The second device of a mirrored journal.
    pub mirror: Option<Result<Arc<dyn Backend>, MissingDevice>>,
    /// Records the members of a mirrored journal.
    pub members: Box<dyn MemberRecord>,
    /// Open the journal although records in it are damaged.
    pub accept_loss: bool,
    /// Looks up which records of the journal are void because it failed.
    pub is_abandoned: Box<dyn Fn(JournalId) -> VoidRecords>,
    /// See [`OnFailure`].
    pub on_failure: OnFailure,
}

/// A snapshot of a journal's state and counters.
#[derive(Clone, Debug)]
pub struct JournalStatus {
    /// The names of its devices.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// The error that it failed with.
    pub failed: Option<IoError>,
    /// Why one of its devices is not where it was opened.
    pub displaced: Option<Displaced>,
    /// Why a mirrored journal has only one device.
    pub degraded: Option<String>,
    /// Space in use, and counters of the log.
    pub usage: LogUsage,
    /// Data that checkpoints left in the journal because a disk did not take it.
    pub kept: KeptStatus,
    /// Counters of the patrol over the log.
    pub patrol: JournalPatrol,
}

/// How a volume uses its journal.
pub struct VolumeJournal {
    /// The journal.
    pub journal: Arc<Journal>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// Identifies the volume's disk in the journal.
    pub identity: [u8; 32],
    /// Accept the disk although it differs from the recorded one.
    pub accept_disk: bool,
}

/// The number of batch buffers of a journal or vault.
pub(crate) const fn journal_buffers(workers: usize) -> usize {
    workers + BUFFERS_SPARE
}

/// The memory of a journal's or vault's batch buffers, in bytes.
pub(crate) const fn journal_bytes(workers: usize) -> u64 {
    journal_buffers(workers) as u64 * BATCH_BYTES_MAX
}

pub(crate) struct State {
    log: Log<AlignedBuffer, PartId>,
    /// Numbers of the volumes that were restored. Once the log has failed, their writes may be
    /// acknowledged without it.
    serving: Vec<u16>,
    /// The failure of the log is recorded outside of the journal.
    failure_recorded: bool,
    /// The thread waits for `wakeup`.
    is_asleep: bool,
    /// Answers to be posted once the failure of the log is recorded.
    deferred: Vec<Answer>,
    /// The attached volumes, by their numbers in the journal.
    volumes: Vec<(u16, VolumeId)>,
    /// The disks of the attached volumes.
    disks: Vec<(u16, Arc<dyn Backend>)>,
    /// Numbers of the volumes whose disks are being sampled.
    sampling: Vec<u16>,
    /// When the last checkpoint began.
    checkpoint_at: Instant,
    /// Begin a checkpoint at once, and close the current segment of the log.
    checkpoint_now: bool,
    /// Displaced devices that the thread is to mark as failed.
    gone: [bool; 2],
    stopping: bool,
}

/// An open journal.
pub struct Journal {
    name: String,
    devices: Devices,
    members: Box<dyn MemberRecord>,
    record: Arc<dyn JournalRecord>,
    state: Lock<State, { order::JOURNAL }>,
    /// Wakes the journal's thread.
    wakeup: LazyCondvar,
    /// Notified when a write of the log has completed, or a disk was sampled.
    written: LazyCondvar,
    /// The records found when the log was opened, except those already restored.
    found: Lock<Found, { order::FOUND }>,
    /// Volumes that must not use the journal: it failed while they were served.
    abandoned: VoidRecords,
    on_failure: OnFailure,
    inboxes: Vec<Arc<Inbox>>,
    shared: Weak<Shared>,
    kept: stuck::Kept,
    regain: regain::Regain,
    patrol: patrol::Patrol,
    /// Whether each device is where it was opened.
    presence: [Presence; 2],
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Journal {
    /// Opens a journal, or formats one on a device that begins with zeroes.
    pub(crate) fn open(
        settings: JournalSettings,
        shared: &Arc<Shared>,
        record: Arc<dyn JournalRecord>,
    ) -> Result<Arc<Self>, JournalError> {
        let inboxes = shared.inboxes.clone();
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
            let count = journal_buffers(inboxes.len());
            (0..count).map(|_| AlignedBuffer::new(BATCH_BYTES_MAX as usize)).collect::<Vec<_>>()
        };
        let (log, found) = devices.open(&settings, geometry, buffers)?;
        let abandoned = (settings.is_abandoned)(found.superblock.journal);
        let JournalSettings { members, on_failure, .. } = settings;
        let state = State {
            log,
            serving: Vec::new(),
            failure_recorded: false,
            is_asleep: false,
            deferred: Vec::new(),
            volumes: Vec::new(),
            disks: Vec::new(),
            sampling: Vec::new(),
            checkpoint_at: Instant::now(),
            checkpoint_now: false,
            gone: [false; 2],
            stopping: false,
        };
        let journal = Arc::new(Self {
            name,
            devices,
            members,
            record,
            state: Lock::new(state),
            wakeup: LazyCondvar::default(),
            written: LazyCondvar::default(),
            found: Lock::new(found),
            abandoned,
            on_failure,
            inboxes,
            shared: Arc::downgrade(shared),
            kept: stuck::Kept::default(),
            regain: regain::Regain::default(),
            patrol: patrol::Patrol::default(),
            presence: Default::default(),
            thread: Lock::new(None),
        });
        let owned = Arc::clone(&journal);
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || owned.run());
        let thread = thread.map_err(|_| JournalError::Io {
            name: journal.name.clone(),
            error: IoError::NoMemory,
        })?;
        *journal.thread.lock() = Some(thread);
        journal.wait_for_superblock()?;
        journal.record_members()?;
        patrol::Patrol::start(&journal);
        Ok(journal)
    }

    /// Records the members of a mirrored journal.
    fn record_members(&self) -> Result<(), JournalError> {
        let state = self.lock();
        let superblock = state.log.superblock();
        let members = superblock.members.numbers();
        // The thread records the loss of a member itself.
        if members.is_empty() || state.log.unrecorded_loss().is_some() {
            return Ok(());
        }
        // The lock may be held during this I/O: at a start, no volume is served yet.
        let recorded = self.members.record(superblock.journal, &members);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Rewrites the records outside of the journal: its members, and its failure.
    pub(crate) fn renew_records(&self) -> Result<(), JournalError> {
        self.record_members()?;
        let (id, error, names) = {
            let state = self.lock();
            let error = state.log.failed().filter(|_| state.failure_recorded);
            (state.log.superblock().journal, error, volume_names(&state.log, &state.serving))
        };
        let recorded = error.map_or(Ok(()), |error| (self.on_failure)(id, error, &names));
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Starts the next walk of the patrol over the log at once.
    pub fn patrol_now(&self) {
        self.patrol.wake();
    }

    /// A snapshot of its state and counters.
    pub fn status(&self) -> JournalStatus {
        let state = self.lock();
        JournalStatus {
            name: self.name.clone(),
            id: state.log.superblock().journal.to_string(),
            failed: state.log.failed(),
            displaced: self.presence.iter().find_map(Presence::displaced),
            degraded: self.degraded(&state.log),
            usage: state.log.usage(),
            kept: self.kept.status(),
            patrol: self.patrol.status(),
        }
    }

    /// Whether the journal has failed and that is recorded: its records are void.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().failure_recorded
    }

    fn degraded(&self, log: &Log<AlignedBuffer, PartId>) -> Option<String> {
        let lost = (0..2).find_map(|device| Some((device, log.lost(device)?)));
        match lost {
            Some((device, error)) => {
                let name = self.devices.name_of(device);
                Some(match self.presence[device].displaced() {
                    Some(displaced) => format!("{name}: {displaced}"),
                    None => format!("{name} has failed: {error}"),
                })
            }
            None => self.devices.missing().map(str::to_owned),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Volumes that the journal holds writes of and that are not served, with the bytes of each.
    pub fn unserved(&self) -> Vec<(String, u64)> {
        let found = self.found.lock();
        let served: Vec<u16> = self.lock().volumes.iter().map(|(number, _)| *number).collect();
        let others = found.superblock.volumes.iter();
        let others = others.filter(|volume| !served.contains(&volume.number));
        let held = others.map(|volume| {
            let image = Image::of_volume(&found.records, volume.number);
            (volume.name.clone(), image.write_bytes())
        });
        held.filter(|(_, bytes)| *bytes > 0).collect()
    }

    pub(crate) fn lock(&self) -> Locked<'_, State> {
        // A log that failed an assertion cannot be trusted, and neither can its acknowledgements.
        self.state.lock_unbroken("the journal")
    }

    pub(crate) fn wait_for_superblock(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.log.failed() {
                return Err(JournalError::Io { name: self.name.clone(), error });
            }
            if state.log.is_superblock_durable() {
                return Ok(());
            }
            self.wakeup.notify_all();
            state = self.written.wait(state);
        }
    }

    /// The error for a volume that continued without this journal after the journal had failed.
    pub(crate) fn abandoned_for(&self, volume: &str) -> JournalError {
        let others: Vec<String> = self.unserved().into_iter().map(|(name, _)| name).collect();
        let (name, volume, others) = (self.name.clone(), volume.to_owned(), others.join(", "));
        JournalError::AbandonedFor { name, volume, others }
    }

    /// The data to restore of a volume, in disjoint pieces of at most 1 MiB: the range in the
    /// volume, and the position of its bytes on the device; `None` for zeroes. Sorted by position,
    /// so that the log is read sequentially.
    pub(crate) fn pieces_to_restore(&self, number: u16) -> Vec<(ByteRange, Option<u64>)> {
        let found = self.found.lock();
        let image = Image::of_volume(&found.records, number);
        let mut pieces = Vec::with_capacity(image.extents().len());
        for Extent { range, source } in image.extents() {
            let Source::Write { record, offset } = source else {
                if let Source::Zero { .. } = source {
                    pieces.push((range, None));
                }
                continue;
            };
            // The loss was accepted when the journal was opened.
            if found.records[record].is_damaged {
                continue;
            }
            let position = found.records[record].position + offset;
            let from = |piece: ByteRange| Some(position + piece.offset - range.offset);
            pieces.extend(Stripes::NONE.split(range).map(|piece| (piece, from(piece))));
        }
        pieces.sort_unstable_by_key(|(range, position)| (*position, range.offset));
        // Join pieces that are adjacent in the volume and in the log.
        pieces.dedup_by(|(next, from), (last, to)| {
            let ends = to.map(|to| to + last.len);
            let follows = ends.is_some() && ends == *from && last.end() == next.offset;
            let joins = follows && !next.offset.is_multiple_of(REGION_BYTES);
            last.len += if joins { next.len } else { 0 };
            joins
        });
        pieces
    }

    /// A reader of the log, for a restore.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.devices)
    }

    /// Ends the restore of a volume: all of its data is in the pool or on the disk, and it is
    /// served next.
    pub(crate) fn restored(&self, number: u16) -> Result<(), JournalError> {
        {
            let mut state = self.lock();
            let failed = state.log.failed();
            // Refuse the volume if the log has failed. While no volume is served, the failure is
            // not recorded, so the journal's records still count at the next start. Once it is
            // recorded, this volume has to be added to the record before it may continue.
            if let Some(error) = failed
                .filter(|_| !state.failure_recorded || !self.record_failure_for(&state, number))
            {
                return Err(JournalError::Io { name: self.name.clone(), error });
            }
            state.serving.retain(|other| *other != number);
            state.serving.push(number);
            state.log.end_restore(number);
        }
        let mut found = self.found.lock();
        found.records.retain(|record| record.record.volume != number);
        found.records.shrink_to_fit();
        Ok(())
    }

    /// The position in the log that the next record will have.
    pub(crate) fn mark(&self) -> Mark {
        self.lock().log.mark()
    }

    /// Calls [`Log::void_records_before`], and waits until its superblock is durable.
    pub(crate) fn recorded_again(&self, number: u16, mark: Mark) -> Result<(), JournalError> {
        self.lock().log.void_records_before(number, mark);
        self.wait_for_superblock()
    }

    /// Removes a volume that is no longer served and whose disk has all of its data.
    pub(crate) fn detach(&self, number: u16) -> Result<(), JournalError> {
        self.release_disks(Some(number));
        let names = {
            let mut state = self.lock();
            let names = volume_names(&state.log, &[number]);
            state.volumes.retain(|(other, _)| *other != number);
            state.serving.retain(|other| *other != number);
            if state.log.failed().is_some() {
                return Ok(());
            }
            state.log.mark_clean(number);
            let removed = state.log.remove_volume(number);
            removed.map_err(|error| JournalError::Log { name: self.name.clone(), error })?;
            names
        };
        self.wait_for_superblock()?;
        self.release(&names);
        Ok(())
    }

    /// Voids the records of a volume that is not served: its disk has all of its data.
    pub(crate) fn void(
        &self,
        name: &str,
        size_bytes: u64,
        identity: [u8; 32],
    ) -> Result<(), JournalError> {
        let number = {
            let mut state = self.lock();
            let number = state.log.add_volume(name, size_bytes, identity);
            number.map_err(|error| JournalError::Log { name: self.name.clone(), error })?
        };
        self.detach(number)?;
        self.found.lock().records.retain(|record| record.record.volume != number);
        Ok(())
    }

    /// Requests a permit to record a write.
    pub(crate) fn admit(
        &self,
        number: u16,
        part: &Part,
        fua: bool,
        durability: Durability,
    ) -> Admission {
        let mut state = self.lock();
        if !state.log.invalidate_samples(number, part.range, part.id) {
            self.unlock_and_wake(state);
            return Admission::Wait;
        }
        match state.log.admit(number, part.range.len, part.id) {
            LogAdmission::Granted => {
                Admission::Logged { is_awaited: fua || durability == Durability::Ack }
            }
            LogAdmission::Wait => Admission::Wait,
            LogAdmission::Failed if !state.failure_recorded => {
                state.deferred.push(Answer { part: part.id, outcome: Outcome::Retry(None) });
                Admission::Wait
            }
            LogAdmission::Full | LogAdmission::Failed => Admission::Through,
        }
    }

    /// Returns an unused permit.
    pub(crate) fn withdraw(&self) {
        let mut state = self.lock();
        state.log.withdraw();
        self.unlock_and_wake(state);
    }

    /// Releases the lock, then wakes the thread if it sleeps. In the other order the thread would
    /// block on the lock at once.
    pub(crate) fn unlock_and_wake(&self, mut state: Locked<'_, State>) {
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.wakeup.notify_all();
        }
    }

    /// Wakes the thread if it sleeps, for a caller that keeps the lock.
    pub(crate) fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.is_asleep) {
            self.wakeup.notify_all();
        }
    }

    /// See [`forebay_volume::Host::barrier`].
    pub(crate) fn barrier(&self, part: PartId) -> Result<bool, IoError> {
        let mut state = self.lock();
        let waits = state.log.barrier(part);
        if waits.is_err() && !state.failure_recorded {
            state.deferred.push(Answer { part, outcome: Outcome::Unlogged });
            return Ok(false);
        }
        waits
    }

    /// Records a note, with the bytes of a write in pieces. Returns the answer to its part, if it
    /// does not wait.
    pub(crate) fn record<'a>(
        &self,
        number: u16,
        note: &Note,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Answer> {
        let mut state = self.lock();
        let part = note.part;
        let entry = |kind| Entry { kind, volume: number, range: note.range };
        let kind = match note.kind {
            NoteKind::Write { .. } => RecordKind::Write,
            NoteKind::Zero { unmap } => RecordKind::Zero { unmap },
            NoteKind::Discard => RecordKind::Discard,
            NoteKind::Forget => RecordKind::Forget,
        };
        let noted = match note.kind {
            NoteKind::Write { wait, .. } => {
                match state.log.append(entry(kind), pieces, wait.then_some(part)) {
                    // A write that does not wait was acknowledged already; only a FLUSH promises
                    // that it is recorded.
                    false if wait => RecordOutcome::Refused,
                    _ => RecordOutcome::Recorded,
                }
            }
            _ => state.log.record(entry(kind), Some(part)),
        };
        let mut answer = match noted {
            RecordOutcome::Recorded => None,
            RecordOutcome::Unneeded => Some(Answer { part, outcome: Outcome::Done(Ok(())) }),
            RecordOutcome::Refused => Some(Answer { part, outcome: Outcome::Unlogged }),
            RecordOutcome::NoSpace => {
                let result = Err(IoError::NoSpace);
                Some(Answer { part, outcome: Outcome::Done(result) })
            }
        };
        let is_known = state.failure_recorded || state.log.failed().is_none();
        if noted == RecordOutcome::Refused && !is_known {
            state.deferred.extend(answer.take());
        }
        self.unlock_and_wake(state);
        answer
    }

    /// Stops the thread. With `clean`, all disks have all data, and the journal is marked clean.
    pub(crate) fn close(&self, clean: bool) {
        self.release_disks(None);
        self.patrol.stop();
        let mut state = self.lock();
        let mut names = Vec::new();
        if clean {
            let numbers: Vec<u16> = state.volumes.iter().map(|(number, _)| *number).collect();
            names = volume_names(&state.log, &numbers);
            for number in numbers {
                state.log.mark_clean(number);
                // Volumes that are not served keep the journal from being clean. The records of
                // the others are removed, as they would undo later changes to their disks.
                let removed = state.log.remove_volume(number);
                debug_assert!(removed.is_ok(), "it was settled just now");
            }
            state.log.close();
        }
        state.stopping = true;
        drop(state);
        self.wakeup.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        // Only after the log is closed: until then a start would restore from it.
        self.release(&names);
        if clean && self.is_abandoned() {
            self.record_settled();
        }
    }

    /// The journal's thread.
    fn run(self: &Arc<Self>) {
        let mut notices = Vec::new();
        let mut state = self.lock();
        loop {
            state.log.poll_notifications(&mut notices);
            self.answer(notices.drain(..).map(|(part, notice)| answer_of(part, notice)));
            if let Some(members) = state.log.unrecorded_loss() {
                drop(state);
                self.record_loss(&members);
                state = self.lock();
                state.log.confirm_loss_recorded();
                continue;
            }
            let gone = std::mem::take(&mut state.gone);
            if gone != [false; 2] {
                for device in (0..2).filter(|&device| gone[device]) {
                    state.log.fail_device(device, IoError::Io, &mut notices);
                }
                state = self.record_if_failed(state);
                self.written.notify_all();
                continue;
            }
            if self.patrol.wants_repair() {
                drop(state);
                patrol::Patrol::repair(self);
                state = self.lock();
            }
            if let Some(write) = state.log.poll_write() {
                drop(state);
                let results = self.devices.write(&write);
                state = self.lock();
                state.log.complete_on(write, results, &mut notices);
                state = self.record_if_failed(state);
                self.checkpoint_if_due(&mut state);
                // Without the lock: the workers that are answered take it for their next write.
                drop(state);
                self.answer(notices.drain(..).map(|(part, notice)| answer_of(part, notice)));
                self.written.notify_all();
                state = self.lock();
                continue;
            }
            if state.stopping {
                return;
            }
            self.checkpoint_if_due(&mut state);
            // There is nothing to write, or no space until a checkpoint ends.
            state.is_asleep = true;
            state = self.wakeup.wait_timeout(state, TICK);
            state.is_asleep = false;
        }
    }

    /// Checks that the devices are where they were opened, and fails those that are not.
    pub(crate) fn check_presence(&self) {
        for device in 0..2 {
            let Some(backend) = self.devices.backend(device) else { continue };
            let Change::Gone(displaced) = self.presence[device].check(backend) else { continue };
            let name = self.devices.name_of(device);
            tracing::error!(
                journal = %self.name,
                device = %name,
                %displaced,
                "journal device displaced, counted as failed"
            );
            self.fail_device(device);
        }
    }

    /// Has the thread mark a device as failed.
    fn fail_device(&self, device: usize) {
        let mut state = self.lock();
        state.gone[device] = true;
        self.unlock_and_wake(state);
    }

    /// Records a failure of the log, then posts the answers that waited for that.
    fn record_if_failed<'a>(&'a self, state: Locked<'a, State>) -> Locked<'a, State> {
        let Some(error) = state.log.failed() else { return state };
        if state.serving.is_empty() || state.failure_recorded {
            return state;
        }
        let names = volume_names(&state.log, &state.serving);
        drop(state);
        self.record_failure(error, &names);
        let mut state = self.lock();
        state.failure_recorded = true;
        self.answer(std::mem::take(&mut state.deferred).into_iter());
        state
    }

    fn answer(&self, answers: impl Iterator<Item = Answer>) {
        for answer in answers {
            let worker = usize::from(worker_of(answer.part));
            self.inboxes[worker].post(Message::Answer(answer));
        }
    }

    /// Records the failure, and retries until that has succeeded: writes wait for it.
    fn record_failure(&self, error: IoError, names: &[String]) {
        let id = self.lock().log.superblock().journal;
        tracing::error!(
            journal = %self.name,
            %error,
            "journal failed, its volumes write through and dirty data is flushed to their disks"
        );
        while let Err(error) = (self.on_failure)(id, error, names) {
            tracing::error!(
                journal = %self.name,
                %error,
                "cannot record the journal's failure, writes wait"
            );
            std::thread::sleep(RECORD_PAUSE);
        }
    }

    /// Records that a device is no member any more, and retries until that has succeeded: the
    /// journal continues on the other device only then.
    fn record_loss(&self, members: &[u64]) {
        let (id, reason) = {
            let state = self.lock();
            (state.log.superblock().journal, self.degraded(&state.log).unwrap_or_default())
        };
        let name = &self.name;
        tracing::error!(journal = %name, %reason, "journal degraded, continuing on one device");
        while let Err(error) = self.members.record(id, members) {
            tracing::error!(
                journal = %name,
                %error,
                "cannot record that the journal is degraded, writes wait"
            );
            std::thread::sleep(RECORD_PAUSE);
        }
    }

    /// Restores sectors of a volume that were lost in memory, as far as the log holds them.
    pub(crate) fn regain(self: &Arc<Self>, number: u16, volume: VolumeId) {
        regain::start(self, number, volume);
    }

    /// Voids the records of a volume that is not served yet, except those of dirty or lost sectors.
    ///
    /// # Errors
    /// When the journal fails, or its log has no space to record that.
    pub(crate) fn void_clean(self: &Arc<Self>, number: u16, volume: VolumeId) -> IoResult {
        stuck::Checkpoint { journal: self, number, volume }.void_clean()
    }

    /// Adds a volume to the record of the journal's failure. Returns whether that has succeeded.
    fn record_failure_for(&self, state: &State, number: u16) -> bool {
        let (id, names) = (state.log.superblock().journal, volume_names(&state.log, &[number]));
        let error = state.log.failed().unwrap_or(IoError::Io);
        (self.on_failure)(id, error, &names).is_ok()
    }
}

/// The names of the volumes with these numbers.
fn volume_names<B: AsRef<[u8]> + AsMut<[u8]>, W>(log: &Log<B, W>, numbers: &[u16]) -> Vec<String> {
    let known = |number: &u16| log.superblock().volume(*number).map(|volume| volume.name.clone());
    numbers.iter().filter_map(known).collect()
}

fn answer_of(part: PartId, notice: Notification) -> Answer {
    let outcome = match notice {
        Notification::Durable => Outcome::Done(Ok(())),
        Notification::Lost(_) => Outcome::Unlogged,
        Notification::Retry => Outcome::Retry(None),
    };
    Answer { part, outcome }
}
