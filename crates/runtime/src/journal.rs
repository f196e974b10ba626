//! A journal at work: opened, written by a thread of its own, and given up when its device fails.
//!
//! Workers record writes under the lock of their shard, and then go on; the journal's thread
//! writes whatever has come together, makes it durable, and posts the answers to the workers that
//! wait. The same thread begins checkpoints, which the workers carry out.
//!
//! When a write fails, nobody is told anything before the failure itself is on record outside of
//! the journal: a journal that is readable again tomorrow would undo what was acknowledged
//! without it. Until then writes and flushes wait; then they go to the disks.

mod ahead;
mod checkpoint;
mod devices;
mod error;
mod look;
mod record;

pub(crate) use ahead::Ahead;
pub(crate) use devices::Reader;
pub use devices::{MemberRecord, MissingDevice};
pub use error::JournalError;
pub use look::JournalPatrol;
pub use record::JournalRecord;
pub(crate) use record::NoJournalRecord;

use crate::locks::{LazyCondvar, Lock, Locked, order};
use crate::presence::Sightings;
use crate::recovery::Void;
use crate::shared::{Inbox, Message, Shared};
use crate::stuck::{Kept, KeptStatus};
use forebay_backend::{AlignedBuffer, Backend, Displaced};
use forebay_engine::{Answer, Note, NoteKind, Outcome, Part, PartId};
use forebay_format::journal::{BATCH_BYTES_MAX, Geometry, JournalId, RecordKind};
use forebay_journal::{
    Admission as LogAdmission, Entry, Extent, Found, Image, Log, LogUsage, Mark, Noted, Source,
    Told,
};
use forebay_types::{ByteRange, Durability, IoError, REGION_BYTES, Stripes, VolumeId};
use forebay_volume::{Admission, worker_of};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devices::Devices;

/// Batches that may grow or be written at once. Each worker may need one of its own for a moment.
const BUFFERS_SPARE: usize = 2;
/// How long the thread sleeps at most.
const TICK: Duration = Duration::from_millis(100);

/// Where the failure of a journal is put on record, with the names of the volumes that go on
/// without it, before anything does.
pub type OnFailure =
    Box<dyn Fn(JournalId, IoError, &[String]) -> std::io::Result<()> + Send + Sync>;

/// How a journal is opened.
pub struct JournalSettings {
    /// Its device, or that one of its two that is there.
    pub backend: Arc<dyn Backend>,
    /// The other one, of a journal that is mirrored.
    pub mirror: Option<Result<Arc<dyn Backend>, MissingDevice>>,
    /// Who holds all of a mirrored journal.
    pub members: Box<dyn MemberRecord>,
    /// Whether what has been lost of it is accepted.
    pub accept_loss: bool,
    /// Whether the failure of this one is on record, and for whom.
    pub is_abandoned: Box<dyn Fn(JournalId) -> Void>,
    /// See [`OnFailure`].
    pub on_failure: OnFailure,
}

/// How a journal is doing.
#[derive(Clone, Debug)]
pub struct JournalStatus {
    /// Its device.
    pub name: String,
    /// Which journal it is.
    pub id: String,
    /// Why it takes nothing more, if so.
    pub failed: Option<IoError>,
    /// What has become of the device that it failed for, if it is not where it was.
    pub displaced: Option<Displaced>,
    /// Why it has one device where it should have two, if so.
    pub degraded: Option<String>,
    /// How full it is, and what it has done.
    pub usage: LogUsage,
    /// What it was told by checkpoints of disks that do not take everything.
    pub kept: KeptStatus,
    /// What was seen of the log when it was read back.
    pub patrol: JournalPatrol,
}

/// A journal as a volume is to use it.
pub struct VolumeJournal {
    /// The journal.
    pub journal: Arc<Journal>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// What names the volume's disk in the journal.
    pub identity: [u8; 32],
    /// The operator says that the disk is the one, whatever it looks like.
    pub accept_disk: bool,
}

/// Batches of a journal or vault that may be in memory at once.
pub(crate) const fn journal_buffers(workers: usize) -> usize {
    workers + BUFFERS_SPARE
}

/// Memory of a journal or vault, in bytes.
pub(crate) const fn journal_bytes(workers: usize) -> u64 {
    journal_buffers(workers) as u64 * BATCH_BYTES_MAX
}

pub(crate) struct State {
    pub(crate) log: Log<AlignedBuffer, PartId>,
    /// The volumes that are served, by their numbers: something of theirs may be acknowledged
    /// without the log once it fails.
    serving: Vec<u16>,
    /// The failure of the log is on record.
    failure_recorded: bool,
    /// The thread sleeps until the bell rings.
    is_asleep: bool,
    /// Parts that wait for that, and what they are told then.
    held: Vec<Answer>,
    /// The volumes being served, by their numbers.
    pub(crate) volumes: Vec<(u16, VolumeId)>,
    /// Their disks.
    pub(crate) disks: Vec<(u16, Arc<dyn Backend>)>,
    /// Those whose disks are being sampled.
    pub(crate) sampling: Vec<u16>,
    checkpoint_at: Instant,
    /// A checkpoint is to begin at once, and to leave the segment at hand behind.
    checkpoint_now: bool,
    /// Devices that are not where they were opened: they count no more.
    gone: [bool; 2],
    stopping: bool,
}

/// An open journal.
pub struct Journal {
    pub(crate) name: String,
    pub(crate) devices: Devices,
    members: Box<dyn MemberRecord>,
    record: Arc<dyn JournalRecord>,
    state: Lock<State, { order::JOURNAL }>,
    pub(crate) bell: LazyCondvar,
    /// Told when a write of the log has ended, or a disk was sampled.
    pub(crate) written: LazyCondvar,
    pub(crate) found: Lock<Found, { order::FOUND }>,
    /// Who must not use it, although it still holds data of others.
    pub(crate) given_up: Void,
    on_failure: OnFailure,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    /// Where dirty data is, as long as anybody serves it.
    pub(crate) shared: Weak<Shared>,
    pub(crate) kept: Kept,
    pub(crate) look: look::Look,
    /// Whether each device is where it was opened.
    pub(crate) sightings: [Sightings; 2],
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Journal {
    /// Opens a journal, or makes one where there are only zeroes.
    pub(crate) fn open(
        settings: JournalSettings,
        shared: &Arc<Shared>,
        record: Arc<dyn JournalRecord>,
    ) -> Result<Arc<Self>, JournalError> {
        let inboxes = shared.inboxes.clone();
        let mut devices = Devices::new(&settings);
        let (name, size_bytes) = (devices.name(), devices.size_bytes);
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
        let given_up = (settings.is_abandoned)(found.superblock.journal);
        let JournalSettings { members, on_failure, .. } = settings;
        let state = State {
            log,
            serving: Vec::new(),
            failure_recorded: false,
            is_asleep: false,
            held: Vec::new(),
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
            bell: LazyCondvar::default(),
            written: LazyCondvar::default(),
            found: Lock::new(found),
            given_up,
            on_failure,
            inboxes,
            shared: Arc::downgrade(shared),
            kept: Kept::default(),
            look: look::Look::default(),
            sightings: Default::default(),
            thread: Lock::new(None),
        });
        let theirs = Arc::clone(&journal);
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || theirs.run());
        let thread = thread.map_err(|_| JournalError::Io {
            name: journal.name.clone(),
            error: IoError::NoMemory,
        })?;
        *journal.thread.lock() = Some(thread);
        journal.wait_for_superblock()?;
        journal.record_members()?;
        journal.begin_to_look();
        Ok(journal)
    }

    /// Puts on record who holds everything from now on.
    fn record_members(&self) -> Result<(), JournalError> {
        let state = self.lock();
        let superblock = state.log.superblock();
        let members = superblock.members.numbers();
        // Who has just been lost is being taken off the record by the thread.
        if members.is_empty() || state.log.unrecorded_loss().is_some() {
            return Ok(());
        }
        // Nobody is served yet who would wait for the lock.
        let recorded = self.members.record(superblock.journal, &members);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Puts on record again what is on record outside of the journal of its devices, and of its
    /// failure.
    pub(crate) fn renew_records(&self) -> Result<(), JournalError> {
        self.record_members()?;
        let (id, error, names) = {
            let state = self.lock();
            let error = state.log.failed().filter(|_| state.failure_recorded);
            (state.log.superblock().journal, error, names_of(&state.log, &state.serving))
        };
        let recorded = error.map_or(Ok(()), |error| (self.on_failure)(id, error, &names));
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// How it is doing.
    pub fn status(&self) -> JournalStatus {
        let state = self.lock();
        JournalStatus {
            name: self.name.clone(),
            id: state.log.superblock().journal.to_string(),
            failed: state.log.failed(),
            displaced: self.sightings.iter().find_map(Sightings::displaced),
            degraded: self.degraded(&state.log),
            usage: state.log.usage(),
            kept: self.kept.status(),
            patrol: self.look.status(),
        }
    }

    /// Whether it has failed, and that is on record: nobody will use its records again.
    pub(crate) fn is_given_up(&self) -> bool {
        self.lock().failure_recorded
    }

    fn degraded(&self, log: &Log<AlignedBuffer, PartId>) -> Option<String> {
        let lost = (0..2).find_map(|device| Some((device, log.lost(device)?)));
        match lost {
            Some((device, error)) => {
                let name = self.devices.name_of(device);
                Some(match self.sightings[device].displaced() {
                    Some(displaced) => format!("{name}: {displaced}"),
                    None => format!("{name} has failed: {error}"),
                })
            }
            None => self.devices.missing().map(str::to_owned),
        }
    }

    /// Volumes that the journal holds writes of and that are not being served, with the bytes.
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
        // A log that failed an assertion can't be trusted, nor what it has acknowledged.
        self.state.lock_unbroken("the journal")
    }

    pub(crate) fn wait_for_superblock(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.log.failed() {
                return Err(JournalError::Io { name: self.name.clone(), error });
            }
            if state.log.superblock_is_durable() {
                return Ok(());
            }
            self.bell.notify_all();
            state = self.written.wait(state);
        }
    }

    /// The error for a volume that has gone on without this journal: it has failed once.
    pub(crate) fn abandoned_for(&self, volume: &str) -> JournalError {
        let others: Vec<String> = self.unserved().into_iter().map(|(name, _)| name).collect();
        let (name, volume, others) = (self.name.clone(), volume.to_owned(), others.join(", "));
        JournalError::AbandonedFor { name, volume, others }
    }

    /// What is to come back of a volume, in pieces of 1 MiB at most that do not overlap:
    /// where they belong, and where their bytes begin on the device; zeroes without that. In the
    /// order of the log, so that it is read from its beginning to its end.
    pub(crate) fn to_restore(&self, number: u16) -> Vec<(ByteRange, Option<u64>)> {
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
            // Its loss was said to be accepted when the journal was opened.
            if found.records[record].is_damaged {
                continue;
            }
            let position = found.records[record].position + offset;
            let from = |piece: ByteRange| Some(position + piece.offset - range.offset);
            pieces.extend(Stripes::NONE.split(range).map(|piece| (piece, from(piece))));
        }
        pieces.sort_unstable_by_key(|(range, position)| (*position, range.offset));
        // What was written in order is one piece again.
        pieces.dedup_by(|(next, from), (last, to)| {
            let ends = to.map(|to| to + last.len);
            let follows = ends.is_some() && ends == *from && last.end() == next.offset;
            let joins = follows && !next.offset.is_multiple_of(REGION_BYTES);
            last.len += if joins { next.len } else { 0 };
            joins
        });
        pieces
    }

    /// What reads the log for a restore.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.devices)
    }

    /// Everything the journal held of a volume is in the pool or on the disk, and the volume is
    /// about to be served.
    pub(crate) fn restored(&self, number: u16) -> Result<(), JournalError> {
        {
            let mut state = self.lock();
            let failed = state.log.failed();
            // Before anybody is served, a failure is put on record nowhere: the journal's word
            // still counts at the next start. And whoever begins without it must be on that record.
            if let Some(error) =
                failed.filter(|_| !state.failure_recorded || !self.adds_to_record(&state, number))
            {
                return Err(JournalError::Io { name: self.name.clone(), error });
            }
            state.serving.retain(|other| *other != number);
            state.serving.push(number);
            state.log.restored(number);
        }
        let mut found = self.found.lock();
        found.records.retain(|record| record.record.volume != number);
        found.records.shrink_to_fit();
        Ok(())
    }

    /// Where what is recorded from now on begins.
    pub(crate) fn mark(&self) -> Mark {
        self.lock().log.mark()
    }

    /// As [`Log::recorded_again`], and the superblock that says so is durable.
    pub(crate) fn recorded_again(&self, number: u16, mark: Mark) -> Result<(), JournalError> {
        self.lock().log.recorded_again(number, mark);
        self.wait_for_superblock()
    }

    /// A volume's disk has everything, and the volume is served no more.
    pub(crate) fn detach(&self, number: u16) -> Result<(), JournalError> {
        self.let_disks_go(Some(number));
        let names = {
            let mut state = self.lock();
            let names = names_of(&state.log, &[number]);
            state.volumes.retain(|(other, _)| *other != number);
            state.serving.retain(|other| *other != number);
            if state.log.failed().is_some() {
                return Ok(());
            }
            state.log.settled(number);
            let removed = state.log.remove_volume(number);
            removed.map_err(|error| JournalError::Log { name: self.name.clone(), error })?;
            names
        };
        self.wait_for_superblock()?;
        self.release(&names);
        Ok(())
    }

    /// A volume that is not served has everything on its disk: what is recorded of it is void.
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

    /// Asks to record a write.
    pub(crate) fn admit(
        &self,
        number: u16,
        part: &Part,
        fua: bool,
        durability: Durability,
    ) -> Admission {
        let mut state = self.lock();
        if !state.log.touch(number, part.range, part.id) {
            self.ring(state);
            return Admission::Wait;
        }
        match state.log.admit(number, part.range.len, part.id) {
            LogAdmission::Granted => {
                Admission::Logged { wait: fua || durability == Durability::Ack }
            }
            LogAdmission::Wait => Admission::Wait,
            LogAdmission::Failed if !state.failure_recorded => {
                state.held.push(Answer { part: part.id, outcome: Outcome::Retry(None) });
                Admission::Wait
            }
            LogAdmission::Full | LogAdmission::Failed => Admission::Through,
        }
    }

    /// Gives a permit back.
    pub(crate) fn withdraw(&self) {
        let mut state = self.lock();
        state.log.withdraw();
        self.ring(state);
    }

    /// Lets the lock go and wakes the thread, if it sleeps: in this order, or it would wake only
    /// to wait for the lock, and once.
    pub(crate) fn ring(&self, mut state: Locked<'_, State>) {
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.bell.notify_all();
        }
    }

    /// Wakes the thread, if it sleeps, for somebody who keeps the lock.
    pub(crate) fn rouse(&self, state: &mut State) {
        if std::mem::take(&mut state.is_asleep) {
            self.bell.notify_all();
        }
    }

    /// See [`forebay_volume::Host::barrier`].
    pub(crate) fn barrier(&self, part: PartId) -> Result<bool, IoError> {
        let mut state = self.lock();
        let waits = state.log.barrier(part);
        if waits.is_err() && !state.failure_recorded {
            state.held.push(Answer { part, outcome: Outcome::Unlogged });
            return Ok(false);
        }
        waits
    }

    /// Records a note, with the bytes of a write in pieces. Returns what its part is told at once.
    pub(crate) fn take<'a>(
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
                    // Who does not wait has been answered: what is not recorded is what a FLUSH is
                    // for.
                    false if wait => Noted::Refused,
                    _ => Noted::Recorded,
                }
            }
            _ => state.log.note(entry(kind), Some(part)),
        };
        let mut answer = match noted {
            Noted::Recorded => None,
            Noted::Needless => Some(Answer { part, outcome: Outcome::Done(Ok(())) }),
            Noted::Refused => Some(Answer { part, outcome: Outcome::Unlogged }),
            Noted::NoRoom => {
                let result = Err(IoError::NoSpace);
                Some(Answer { part, outcome: Outcome::Done(result) })
            }
        };
        let is_known = state.failure_recorded || state.log.failed().is_none();
        if noted == Noted::Refused && !is_known {
            state.held.extend(answer.take());
        }
        self.ring(state);
        answer
    }

    /// Ends the thread. With `clean`, all disks have everything, and the journal says so.
    pub(crate) fn close(&self, clean: bool) {
        self.let_disks_go(None);
        self.look.end();
        let mut state = self.lock();
        let mut names = Vec::new();
        if clean {
            let numbers: Vec<u16> = state.volumes.iter().map(|(number, _)| *number).collect();
            names = names_of(&state.log, &numbers);
            for number in numbers {
                state.log.settled(number);
                // What is held of volumes that nobody serves keeps the journal from being clean;
                // records of the others must not undo what is done to their disks meanwhile.
                let removed = state.log.remove_volume(number);
                debug_assert!(removed.is_ok(), "it was settled just now");
            }
            state.log.close();
        }
        state.stopping = true;
        drop(state);
        self.bell.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        // Only now: until the journal says so itself, it would bring back what it holds.
        self.release(&names);
        if clean && self.is_given_up() {
            self.settle();
        }
    }

    /// The thread: writes what there is to write, until the end.
    fn run(self: &Arc<Self>) {
        let mut told = Vec::new();
        let mut state = self.lock();
        loop {
            state.log.poll_told(&mut told);
            self.answer(told.drain(..).map(|(part, told)| told_answer(part, told)));
            if let Some(members) = state.log.unrecorded_loss() {
                drop(state);
                self.record_loss(&members);
                state = self.lock();
                state.log.loss_recorded();
                continue;
            }
            let gone = std::mem::take(&mut state.gone);
            if gone != [false; 2] {
                for device in (0..2).filter(|&device| gone[device]) {
                    state.log.give_up(device, IoError::Io, &mut told);
                }
                state = self.record_if_failed(state);
                self.written.notify_all();
                continue;
            }
            if !self.look.lags.lock().is_empty() {
                drop(state);
                self.heal();
                state = self.lock();
            }
            if let Some(write) = state.log.poll_write() {
                drop(state);
                let results = self.devices.write(&write);
                state = self.lock();
                state.log.complete_on(write, results, &mut told);
                state = self.record_if_failed(state);
                self.checkpoint_if_due(&mut state);
                // Without the lock: who is told comes back with the next write.
                drop(state);
                self.answer(told.drain(..).map(|(part, told)| told_answer(part, told)));
                self.written.notify_all();
                state = self.lock();
                continue;
            }
            if state.stopping {
                return;
            }
            self.checkpoint_if_due(&mut state);
            // Nothing to write, or no room for it before a checkpoint ends, which needs the lock.
            state.is_asleep = true;
            state = self.bell.wait_timeout(state, TICK);
            state.is_asleep = false;
        }
    }

    /// A device is not where it was opened: it counts no more.
    pub(crate) fn give_up(&self, device: usize) {
        let mut state = self.lock();
        state.gone[device] = true;
        self.ring(state);
    }

    /// Puts a failure of the log on record, and then goes on without it.
    fn record_if_failed<'a>(&'a self, state: Locked<'a, State>) -> Locked<'a, State> {
        let Some(error) = state.log.failed() else { return state };
        if state.serving.is_empty() || state.failure_recorded {
            return state;
        }
        let names = names_of(&state.log, &state.serving);
        drop(state);
        self.record_failure(error, &names);
        let mut state = self.lock();
        state.failure_recorded = true;
        self.answer(std::mem::take(&mut state.held).into_iter());
        state
    }

    fn answer(&self, answers: impl Iterator<Item = Answer>) {
        for answer in answers {
            let worker = usize::from(worker_of(answer.part));
            self.inboxes[worker].post(Message::Answer(answer));
        }
    }

    /// Puts the failure on record, however long that takes: nothing goes on before it is.
    fn record_failure(&self, error: IoError, names: &[String]) {
        let id = self.lock().log.superblock().journal;
        let name = &self.name;
        tracing::error!(
            "journal {name} has failed ({error}); its volumes write through from now on, and what \
             is dirty is brought to their disks"
        );
        while let Err(error) = (self.on_failure)(id, error, names) {
            tracing::error!(
                "the failure of journal {name} can't be put on record: {error}; writes wait"
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Puts on record that a device does not count any more, however long that takes: nothing goes
    /// on with the other one before it is.
    fn record_loss(&self, members: &[u64]) {
        let (id, reason) = {
            let state = self.lock();
            (state.log.superblock().journal, self.degraded(&state.log).unwrap_or_default())
        };
        let name = &self.name;
        tracing::error!("journal {name} is degraded: {reason}; it goes on with the other device");
        while let Err(error) = self.members.record(id, members) {
            tracing::error!("that journal {name} is degraded can't be put on record: {error}");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Adds a volume that begins without the log to those that are on record for it.
    fn adds_to_record(&self, state: &State, number: u16) -> bool {
        let (id, names) = (state.log.superblock().journal, names_of(&state.log, &[number]));
        let error = state.log.failed().unwrap_or(IoError::Io);
        (self.on_failure)(id, error, &names).is_ok()
    }
}

/// The names of volumes that a log knows.
fn names_of<B: AsRef<[u8]> + AsMut<[u8]>, W>(log: &Log<B, W>, numbers: &[u16]) -> Vec<String> {
    let known = |number: &u16| log.superblock().volume(*number).map(|volume| volume.name.clone());
    numbers.iter().filter_map(known).collect()
}

fn told_answer(part: PartId, told: Told) -> Answer {
    let outcome = match told {
        Told::Durable => Outcome::Done(Ok(())),
        Told::Lost(_) => Outcome::Unlogged,
        Told::Room => Outcome::Retry(None),
    };
    Answer { part, outcome }
}
