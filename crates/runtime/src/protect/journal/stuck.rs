//! Data of a checkpoint that a disk rejects, or that is lost in memory.
//!
//! A bad sector, or memory damaged beyond repair, leaves lines dirty permanently, and the records
//! that hold them would keep every later record from being reclaimed. So when a checkpoint has
//! failed, the disk is flushed; it then has everything that is not still dirty. The rest is
//! recorded once more at the end of the log (copied forward), and the checkpoint succeeds. Where
//! the log has no space for that, a fence records which of the older records are still live
//! (`journal/src/log/space.rs`).

use super::{Journal, regain};
use crate::pool::MappedLines;
use crate::protect::patrol::verify_locked;
use crate::shared::{Message, Shared};
use forebay_backend::AlignedBuffer;
use forebay_engine::{LineKey, Shard, Verdict};
use forebay_format::journal::RecordKind;
use forebay_journal::{Admission, Entry, RecordOutcome, is_durable_before};
use forebay_threads::Thread;
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The pause between two checks for free space in the log.
const PAUSE: Duration = Duration::from_millis(20);
/// Attempts of a start to record a fence: about five seconds.
const FENCE_TRIES_MAX: u32 = 250;

/// Counts the data that checkpoints left in the journal.
#[derive(Debug, Default)]
pub(super) struct Kept {
    forward_bytes: AtomicU64,
    fences: AtomicU64,
}

/// Data that checkpoints left in the journal because a disk did not take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptStatus {
    /// Bytes copied forward: recorded once more, at the end of the log.
    pub forward_bytes: u64,
    /// Checkpoints that found no space to copy forward, and kept the old records instead.
    pub fences: u64,
}

impl Kept {
    pub(super) fn status(&self) -> KeptStatus {
        KeptStatus {
            forward_bytes: self.forward_bytes.load(Ordering::Relaxed),
            fences: self.fences.load(Ordering::Relaxed),
        }
    }
}

/// A line whose data is not on the disk.
#[derive(Clone, Copy)]
pub(super) struct StuckLine {
    pub shard: usize,
    pub key: LineKey,
    /// The sectors that can be written to the disk, a bit for each.
    pub dirty: u8,
    /// The other ones, which are damaged beyond repair.
    pub lost: u8,
}

impl StuckLine {
    /// The dirty and lost ranges, in order.
    fn ranges(self) -> impl Iterator<Item = ByteRange> {
        runs_of(self.key, self.dirty | self.lost)
    }
}

/// The runs of the sectors in `mask`, in order.
pub(crate) fn runs_of(key: LineKey, mask: u8) -> impl Iterator<Item = ByteRange> {
    let is_set = move |sector: u64| mask >> sector & 1 != 0;
    let starts = (0..8).filter(move |&at| is_set(at) && (at == 0 || !is_set(at - 1)));
    starts.map(move |start| {
        let end = (start..8).find(|&at| !is_set(at)).unwrap_or(8);
        ByteRange::new(key.offset() + start * SECTOR_BYTES, (end - start) * SECTOR_BYTES)
    })
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
pub(super) fn stuck_lines(shared: &Shared, volume: VolumeId) -> Option<Vec<StuckLine>> {
    let mut stuck = Vec::new();
    for number in 0..shared.shards.len() {
        let shard = shared.shard(number);
        if !shard.has_volume(volume) {
            return None;
        }
        let lines = shard.dirty_lines_of(volume).into_iter();
        stuck.extend(lines.map(|(key, dirty, lost)| StuckLine { shard: number, key, dirty, lost }));
    }
    stuck.sort_unstable_by_key(|line| line.key);
    Some(stuck)
}

/// A checkpoint of a volume whose disk does not take everything.
pub(super) struct Checkpoint<'a> {
    pub journal: &'a Arc<Journal>,
    /// The volume's number in the journal.
    pub number: u16,
    pub volume: VolumeId,
}

impl Checkpoint<'_> {
    /// Copies the stuck sectors forward, or fences the records that hold them. `None` if the
    /// checkpoint has failed nevertheless.
    fn keep(&self) -> Option<IoResult> {
        let Self { journal, number, volume } = *self;
        let since = journal.lock().core.log.next_record();
        let stuck = self.stuck_lines()?;
        if stuck.iter().any(|line| line.lost != 0) {
            regain::retry(journal, number, volume);
        }
        // After this flush, the disk has everything else.
        self.sync_disk().ok()?;
        if stuck.is_empty() {
            // The disk has taken everything meanwhile. Do not wait for pending records: a full log
            // may be unable to write them before this checkpoint ends.
            return Some(Ok(()));
        }
        let bytes: u64 = stuck.iter().flat_map(|line| line.ranges()).map(|range| range.len).sum();
        let pieces = stuck.iter().flat_map(|line| line.ranges()).count() as u64;
        let is_whole = stuck.iter().all(|line| line.lost == 0);
        if is_whole && journal.lock().core.log.can_forward(number, bytes, pieces) {
            match self.copy_forward(&stuck) {
                Some(true) => return Some(Ok(())),
                // Some of the data has been destaged meanwhile, possibly only to the disk's cache.
                Some(false) => return Some(self.sync_disk()),
                None => {}
            }
        }
        if self.fence(since, &stuck) {
            journal.kept.fences.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Voids the records of the volume except those of dirty or lost sectors: the disk has the
    /// rest. Used for a volume that is not served yet and has lost sectors. Fails if the journal
    /// fails, or has no space to record the change.
    pub(super) fn void_clean(&self) -> IoResult {
        for _ in 0..FENCE_TRIES_MAX {
            let since = self.journal.lock().core.log.next_record();
            let stuck = self.stuck_lines().ok_or(IoError::Shutdown)?;
            self.sync_disk()?;
            if self.fence(since, &stuck) {
                return self.wait_until_recorded().ok_or(IoError::Io);
            }
            // A checkpoint may be about to free space, or have recorded something meanwhile.
            std::thread::sleep(PAUSE);
        }
        Err(IoError::NoSpace)
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
                let entry = Entry { kind: RecordKind::Forget, volume: self.number, range };
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

    /// Records that, of all records before `since`, only those of the stuck sectors are still live.
    fn fence(&self, since: u64, stuck: &[StuckLine]) -> bool {
        let live = joined(stuck.iter().flat_map(|line| line.ranges()));
        let is_last = stuck.iter().all(|line| line.dirty == 0);
        let mut state = self.journal.lock();
        let is_fenced = state.core.log.fence(self.number, since, &live, is_last);
        self.journal.wake(&mut state);
        is_fenced
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

    /// Records once more the stuck sectors that are still dirty, and waits until the records are
    /// durable. Returns whether all of them are still dirty; `None` if they could not be recorded.
    fn copy_forward(&self, stuck: &[StuckLine]) -> Option<bool> {
        let shared = self.journal.shared.upgrade()?;
        let mut is_all = true;
        for line in stuck {
            is_all &= self.copy_line_forward(&shared, line)?;
            shared.shards.give_way(line.shard);
        }
        self.wait_until_recorded().map(|()| is_all)
    }

    fn copy_line_forward(&self, shared: &Shared, line: &StuckLine) -> Option<bool> {
        let Self { journal, number, volume } = *self;
        let mut copy = AlignedBuffer::new(LINE_BYTES as usize);
        'again: loop {
            // The shard's lock is taken before the journal's, as in every write, so the record has
            // the line's content at that moment.
            let mut shard = shared.shard(line.shard);
            let dirty = copy_dirty(shared, &mut shard, line, &mut copy)?;
            let mut state = journal.lock();
            if !state.volumes.contains(&(number, volume)) {
                return None;
            }
            for range in runs_of(line.key, dirty) {
                match state.core.log.admit_forward(number, range.len) {
                    Admission::Granted => {}
                    Admission::Wait => {
                        drop(shard);
                        journal.wake(&mut state);
                        drop(journal.written.wait_timeout(state, PAUSE));
                        continue 'again;
                    }
                    Admission::Full | Admission::Failed => return None,
                }
                let from = (range.offset - line.key.offset()) as usize;
                let piece = &copy[from..from + range.len as usize];
                let entry = Entry { kind: RecordKind::Write, volume: number, range };
                if !state.core.log.append(entry, [piece].into_iter(), None) {
                    return None;
                }
                journal.kept.forward_bytes.fetch_add(range.len, Ordering::Relaxed);
            }
            journal.wake(&mut state);
            return Some(dirty & line.dirty == line.dirty);
        }
    }
}

/// Copies a line, and returns which of its sectors are dirty; `None` if some are lost by now.
fn copy_dirty(
    shared: &Shared,
    shard: &mut Shard<MappedLines>,
    line: &StuckLine,
    copy: &mut [u8],
) -> Option<u8> {
    let Some(slot) = shard.slots().find_valid(line.key, 0) else { return Some(0) };
    if let Some(sealed) = shard.seal_of(slot) {
        let _: Verdict = verify_locked(shared, line.shard, shard, &sealed);
    }
    let found = shard.slots().line(line.key);
    if found.lost() != 0 {
        // A lost sector is not on the disk either, even if nothing else of the line is dirty.
        return None;
    }
    let dirty = found.destageable();
    if dirty != 0 {
        shared.pool.copy_line(line.shard, slot, copy);
    }
    Some(dirty)
}

/// Joins adjacent ranges of an ascending sequence.
fn joined(ranges: impl Iterator<Item = ByteRange>) -> Vec<ByteRange> {
    let mut joined: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end() == range.offset => last.len += range.len,
            _ => joined.push(range),
        }
    }
    joined
}
