//! Data of a checkpoint that a disk rejects, or that is lost in memory: the thread that carries out
//! the steps of a [`Retention`].

use super::{Journal, regain};
use crate::pool::MappedLines;
use crate::protect::patrol::verify_locked;
use crate::shared::{Message, Shared};
use forebay_backend::AlignedBuffer;
use forebay_engine::{SealVerdict, Shard};
use forebay_format::journal::RecordKind;
use forebay_journal::{LogEntry, RecordOutcome, is_durable_before};
use forebay_protect::{Retention, RetentionStep, StuckLine, runs_of};
use forebay_threads::Thread;
use forebay_types::{IoError, IoResult, LINE_BYTES, VolumeId};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The pause between two checks for free space in the log.
const PAUSE: Duration = Duration::from_millis(20);
/// Attempts of a start to record a fence: about five seconds.
pub(crate) const FENCE_TRIES_MAX: u32 = 250;

impl Journal {
    /// Wakes the journal's thread, and waits until the log has made progress, or for a while.
    pub(crate) fn wait_for_progress(&self) {
        let mut state = self.lock();
        self.wake(&mut state);
        drop(self.written.wait_timeout(state, PAUSE));
    }
}

/// Keeps in the journal the data that a volume's disk did not take, after a checkpoint that failed
/// with `error`. Runs on a thread of its own, because it waits for the disk and for space in the
/// log.
pub(super) fn keep(journal: &Arc<Journal>, number: u16, volume: VolumeId, error: IoError) {
    let owned = Arc::clone(journal);
    let work = move || {
        let kept = Checkpoint { journal: &owned, number, volume }.keep();
        owned.destaged(number, kept.unwrap_or(Err(error)));
    };
    if Thread::named("stuck").spawn(work).is_err() {
        journal.destaged(number, Err(error));
    }
}

/// The dirty lines of a volume, in ascending order; `None` if the volume is not served.
pub(crate) fn stuck_lines(shared: &Shared, volume: VolumeId) -> Option<Vec<StuckLine>> {
    let mut stuck = Vec::new();
    let mut shards = 0..shared.shards.len();
    let is_served = shards.all(|at| StuckLine::collect(&mut stuck, at, &shared.shard(at), volume));
    stuck.sort_unstable_by_key(|line| line.key);
    is_served.then_some(stuck)
}

/// A checkpoint of a volume whose disk does not take everything.
pub(super) struct Checkpoint<'a> {
    pub journal: &'a Arc<Journal>,
    /// The volume's number in the journal.
    pub number: u16,
    pub volume: VolumeId,
}

impl Checkpoint<'_> {
    /// Carries out a retention. Returns the result of the checkpoint; `None` if the volume is no
    /// longer served.
    fn keep(&self) -> Option<IoResult> {
        let Self { journal, number, volume } = *self;
        let since = journal.lock().core.log.next_record();
        let stuck = self.stuck_lines()?;
        if stuck.iter().any(|line| line.lost != 0) {
            regain::retry(journal, number, volume);
        }
        let mut retention = Retention::new(number, since, stuck);
        loop {
            let step = retention.poll(&journal.lock().core);
            match step {
                RetentionStep::FlushDisk => {
                    let result = self.sync_disk();
                    let mut state = journal.lock();
                    retention.handle_flush(&mut state.core, result);
                    journal.wake(&mut state);
                }
                RetentionStep::CopyLine(line) => self.copy_line(&mut retention, &line)?,
                RetentionStep::Wait => journal.wait_for_progress(),
                RetentionStep::End(result) => return Some(result),
            }
        }
    }

    fn copy_line(&self, retention: &mut Retention, line: &StuckLine) -> Option<()> {
        let Self { journal, number, volume } = *self;
        let shared = journal.shared.upgrade()?;
        let mut copy = AlignedBuffer::new(LINE_BYTES as usize);
        {
            // The shard's lock is taken before the journal's, as in every write.
            let mut shard = shared.shard(line.shard);
            let (dirty, lost) = copy_dirty(&shared, &mut shard, line, &mut copy);
            let mut state = journal.lock();
            if !state.volumes.contains(&(number, volume)) {
                return None;
            }
            retention.handle_line(&mut state.core, dirty, lost, &copy);
            journal.wake(&mut state);
        }
        shared.shards.give_way(line.shard);
        Some(())
    }

    /// Gives up the lost sectors of the volume: from now on, the content of the disk is the
    /// newest, and no older record may undo it. Fails if the journal fails, or has no space to
    /// record this; some sectors may have been given up by then.
    pub(super) fn abandon_lost(&self) -> IoResult {
        let shared = self.journal.shared.upgrade().ok_or(IoError::Shutdown)?;
        for number in 0..shared.shards.len() {
            let mut shard = shared.shard(number);
            if !shard.has_volume(self.volume) {
                continue;
            }
            // The shard's lock is taken before the journal's, as in every write. So a write to one
            // of these sectors, with its record, comes either before or after both steps here.
            let lines = shard.dirty_lines_of(self.volume);
            let mut state = self.journal.lock();
            for range in lines.into_iter().flat_map(|(key, _, lost)| runs_of(key, lost)) {
                let entry = LogEntry { kind: RecordKind::Forget, volume: self.number, range };
                if state.core.log.record(entry, None) == RecordOutcome::NoSpace {
                    self.journal.wake(&mut state);
                    return Err(IoError::NoSpace);
                }
            }
            self.journal.wake(&mut state);
            drop(state);
            shard.abandon_lost(self.volume);
        }
        let has_failed = self.journal.lock().core.log.failed().is_some();
        // The records of a failed journal are void.
        if has_failed { Ok(()) } else { self.wait_until_recorded().ok_or(IoError::Io) }
    }

    fn stuck_lines(&self) -> Option<Vec<StuckLine>> {
        stuck_lines(&*self.journal.shared.upgrade()?, self.volume)
    }

    /// Waits until everything recorded so far is durable; `None` if the journal fails.
    fn wait_until_recorded(&self) -> Option<()> {
        let mut state = self.journal.lock();
        let end = state.core.log.next_record();
        while !is_durable_before(&state.core.log, end).ok()?
            || !state.core.log.is_membership_recorded()
        {
            self.journal.wake(&mut state);
            state = self.journal.written.wait_timeout(state, PAUSE);
        }
        Some(())
    }

    /// Flushes the cache of the volume's disk.
    fn sync_disk(&self) -> IoResult {
        let (sender, result) = mpsc::channel();
        let volume = self.volume;
        self.journal.inboxes[0].post(Message::Task(Box::new(move |tasks| {
            tasks.sync(volume, Box::new(move |result| _ = sender.send(result)));
        })));
        // A worker that ends drops its tasks.
        result.recv().unwrap_or(Err(IoError::Shutdown))
    }
}

/// Copies a line, and returns which of its sectors are dirty, and which are lost by now.
fn copy_dirty(
    shared: &Shared,
    shard: &mut Shard<MappedLines>,
    line: &StuckLine,
    copy: &mut [u8],
) -> (u8, u8) {
    let Some(slot) = shard.slots().find_valid(line.key, 0) else { return (0, 0) };
    if let Some(sealed) = shard.seal_of(slot) {
        let _: SealVerdict = verify_locked(shared, line.shard, shard, &sealed);
    }
    let found = shard.slots().line(line.key);
    if found.destageable() != 0 {
        shared.pool.copy_line(line.shard, slot, copy);
    }
    (found.destageable(), found.lost())
}
