//! Data of a checkpoint that a disk rejects, or that is lost in memory: the thread that carries out
//! the steps of a [`Retention`].

use super::patrol::verify_locked;
use super::regain;
use crate::journal::Journal;
use crate::platform::locks::assert_may_wait;
use crate::pool::MappedLines;
use crate::shared::{JournalUse, Message, Shared};
use forebay_backend::AlignedBuffer;
use forebay_engine::{SealVerdict, Shard};
use forebay_format::journal::RecordKind;
use forebay_journal::{LogEntry, RecordOutcome};
use forebay_protect::{Retention, RetentionStep, StuckLine, runs_of};
use forebay_threads::Thread;
use forebay_types::{IoError, IoResult, LINE_BYTES, VolumeId};
use std::sync::{Arc, Weak, mpsc};

/// Keeps in the journal the data that a volume's disk did not take, after a checkpoint that failed
/// with `error`. Runs on a thread of its own, because it waits for the disk and for space in the
/// log.
pub(super) fn keep(
    shared: Weak<Shared>,
    journal: &Arc<Journal>,
    number: u16,
    volume: VolumeId,
    error: IoError,
) {
    let owned = Arc::clone(journal);
    let work = move || {
        let kept = FailedCheckpoint { shared: &shared, journal: &owned, number, volume }.keep();
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

/// Gives up the lost sectors of a volume: from now on, the content of the disk is the newest, and
/// no older record may undo it. Fails if the journal fails, or has no space to record this; some
/// sectors may have been given up by then.
pub(crate) fn abandon_lost(shared: &Shared, used: &JournalUse, volume: VolumeId) -> IoResult {
    let journal = &used.journal;
    for number in 0..shared.shards.len() {
        let mut shard = shared.shard(number);
        if !shard.has_volume(volume) {
            continue;
        }
        // The shard's lock is taken before the journal's, as in every write. So a write to one of
        // these sectors, with its record, comes either before or after both steps here.
        let lines = shard.dirty_lines_of(volume);
        let mut state = journal.lock();
        for range in lines.into_iter().flat_map(|(key, _, lost)| runs_of(key, lost)) {
            let entry = LogEntry { kind: RecordKind::Forget, volume: used.number, range };
            if state.core.log.record(entry, None) == RecordOutcome::NoSpace {
                journal.wake(&mut state);
                return Err(IoError::NoSpace);
            }
        }
        journal.wake(&mut state);
        drop(state);
        shard.abandon_lost(volume);
    }
    let has_failed = journal.lock().core.log.failed().is_some();
    // The records of a failed journal are void.
    if has_failed { Ok(()) } else { journal.wait_until_recorded().ok_or(IoError::Io) }
}

/// A checkpoint of a volume whose disk does not take everything.
struct FailedCheckpoint<'a> {
    shared: &'a Weak<Shared>,
    journal: &'a Arc<Journal>,
    /// The volume's number in the journal.
    number: u16,
    volume: VolumeId,
}

impl FailedCheckpoint<'_> {
    /// Carries out a retention. Returns the result of the checkpoint; `None` if the volume is no
    /// longer served.
    fn keep(&self) -> Option<IoResult> {
        let Self { shared, journal, number, volume } = *self;
        let since = journal.lock().core.log.next_record();
        let stuck = stuck_lines(&*shared.upgrade()?, volume)?;
        if stuck.iter().any(|line| line.lost != 0) {
            regain::retry(shared, journal, number, volume);
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
        let Self { shared, journal, number, volume } = *self;
        let shared = shared.upgrade()?;
        let mut copy = AlignedBuffer::new(LINE_BYTES as usize);
        {
            // The shard's lock is taken before the journal's, as in every write.
            let mut shard = shared.shard(line.shard);
            let (dirty, lost) = copy_dirty(&shared, &mut shard, line, &mut copy);
            let mut state = journal.lock();
            if !state.has_volume(number, volume) {
                return None;
            }
            retention.handle_line(&mut state.core, dirty, lost, &copy);
            journal.wake(&mut state);
        }
        shared.shards.give_way(line.shard);
        Some(())
    }

    /// Flushes the cache of the volume's disk.
    fn sync_disk(&self) -> IoResult {
        let (sender, result) = mpsc::channel();
        let volume = self.volume;
        let shared = self.shared.upgrade().ok_or(IoError::Shutdown)?;
        shared.inboxes[0].post(Message::Task(Box::new(move |tasks| {
            tasks.sync(volume, Box::new(move |result| _ = sender.send(result)));
        })));
        drop(shared);
        assert_may_wait();
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
