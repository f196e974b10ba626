//! What a disk does not take: a checkpoint that ends with it gives room back all the same.
//!
//! A bad sector, or memory that was damaged beyond repair, leaves lines dirty for ever. The records
//! that hold them would keep everything recorded since. So when a checkpoint has failed, the disk
//! is flushed: it has everything then but what is still dirty. That is recorded once more, at the
//! end of the log, and the checkpoint counts. Where there is no room for it, a fence is recorded
//! instead (`journal/src/log/space.rs`).
//!
//! It is the work of a thread that lives as long as that takes: it waits for the disk, and for the
//! journal.

use crate::journal::Journal;
use crate::patrol::verify_locked;
use crate::pool::MappedLines;
use crate::shared::{Message, Shared};
use forebay_backend::AlignedBuffer;
use forebay_engine::{LineKey, Shard, Verdict};
use forebay_format::journal::RecordKind;
use forebay_journal::{Admission, Entry};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long it waits at most before it looks whether there is room.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a start tries to put a fence on record: for about five seconds.
const FENCE_TRIES_MAX: u32 = 250;

/// Counters of what was kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    forward_bytes: AtomicU64,
    fences: AtomicU64,
    /// Somebody is at it to bring back what was lost in memory.
    pub(crate) is_regaining: AtomicBool,
    /// How often something had been lost of the volume that was looked after last.
    pub(crate) looked_for: AtomicU64,
}

/// What checkpoints have kept in the journal because a disk did not take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptStatus {
    /// Bytes recorded once more.
    pub forward_bytes: u64,
    /// Checkpoints for which there was no room to record them, so that they stay where they are.
    pub fences: u64,
}

impl Kept {
    pub(crate) fn status(&self) -> KeptStatus {
        KeptStatus {
            forward_bytes: self.forward_bytes.load(Ordering::Relaxed),
            fences: self.fences.load(Ordering::Relaxed),
        }
    }
}

/// Dirty sectors of a line, and which of them are lost.
#[derive(Clone, Copy)]
pub(crate) struct Stuck {
    pub(crate) shard: usize,
    pub(crate) key: LineKey,
    dirty: u8,
    pub(crate) lost: u8,
}

impl Stuck {
    /// Its ranges, in order.
    fn ranges(self) -> impl Iterator<Item = ByteRange> {
        runs_of(self.key, self.dirty | self.lost)
    }
}

/// The runs of some sectors of a line.
fn runs_of(key: LineKey, mask: u8) -> impl Iterator<Item = ByteRange> {
    let is_set = move |sector: u64| mask >> sector & 1 != 0;
    let starts = (0..8).filter(move |&at| is_set(at) && (at == 0 || !is_set(at - 1)));
    starts.map(move |start| {
        let end = (start..8).find(|&at| !is_set(at)).unwrap_or(8);
        ByteRange::new(key.offset() + start * SECTOR_BYTES, (end - start) * SECTOR_BYTES)
    })
}

impl Journal {
    /// A checkpoint of a volume has failed: its disk did not take everything.
    pub(crate) fn keep_stuck(self: &Arc<Self>, number: u16, volume: VolumeId, error: IoError) {
        let journal = Arc::clone(self);
        let work = move || {
            let result = journal.try_to_keep(number, volume).unwrap_or(Err(error));
            journal.destaged(number, result);
        };
        if std::thread::Builder::new().name("stuck".into()).spawn(work).is_err() {
            self.destaged(number, Err(error));
        }
    }

    /// `None` where the checkpoint has failed for good.
    fn try_to_keep(self: &Arc<Self>, number: u16, volume: VolumeId) -> Option<IoResult> {
        let since = self.lock().log.next_record();
        let stuck = self.stuck_lines(volume)?;
        if stuck.iter().any(|line| line.lost != 0) {
            self.regain_again(number, volume);
        }
        // From here on the disk has everything else.
        self.sync_disk(volume).ok()?;
        if stuck.is_empty() {
            // It has everything by now. A full log must not wait here for its own records.
            return Some(Ok(()));
        }
        let bytes: u64 = stuck.iter().flat_map(|line| line.ranges()).map(|range| range.len).sum();
        let pieces = stuck.iter().flat_map(|line| line.ranges()).count() as u64;
        let is_whole = stuck.iter().all(|line| line.lost == 0);
        if is_whole && self.lock().log.can_forward(bytes, pieces) {
            match self.record_forward(number, volume, &stuck) {
                Some(true) => return Some(Ok(())),
                // Some of it has got to the disk meanwhile, maybe into its cache only.
                Some(false) => return Some(self.sync_disk(volume)),
                None => {}
            }
        }
        let kept = joined(stuck.iter().flat_map(|line| line.ranges()));
        let mut state = self.lock();
        let is_last = stuck.iter().all(|line| line.dirty == 0);
        if state.log.fence(number, since, &kept, is_last) {
            self.kept.fences.fetch_add(1, Ordering::Relaxed);
        }
        self.rouse(&mut state);
        None
    }

    /// Voids what the journal has of a volume but of what is dirty or lost: the disk has that. Of a
    /// volume that nobody is served of yet, and some of which is lost, so that its older records
    /// stay. Fails when the journal does, or where it has no room to say so.
    pub(crate) fn void_clean(&self, number: u16, volume: VolumeId) -> IoResult {
        for _ in 0..FENCE_TRIES_MAX {
            let since = self.lock().log.next_record();
            let stuck = self.stuck_lines(volume).ok_or(IoError::Shutdown)?;
            self.sync_disk(volume)?;
            let kept = joined(stuck.iter().flat_map(|line| line.ranges()));
            let is_last = stuck.iter().all(|line| line.dirty == 0);
            let mut state = self.lock();
            let is_fenced = state.log.fence(number, since, &kept, is_last);
            self.rouse(&mut state);
            drop(state);
            if is_fenced {
                return self.wait_until_recorded().ok_or(IoError::Io);
            }
            // A checkpoint may be about to give room, or have recorded something meanwhile.
            std::thread::sleep(PAUSE);
        }
        Err(IoError::NoSpace)
    }

    /// Waits until all that the journal was told is durable; `None` when it fails.
    fn wait_until_recorded(&self) -> Option<()> {
        let mut state = self.lock();
        let end = state.log.next_record();
        while state.log.first_pending_record() < end || !state.log.is_membership_recorded() {
            if state.log.failed().is_some() {
                return None;
            }
            self.rouse(&mut state);
            state = self.written.wait_timeout(state, PAUSE);
        }
        Some(())
    }

    /// Everything of the volume that is dirty.
    pub(crate) fn stuck_lines(&self, volume: VolumeId) -> Option<Vec<Stuck>> {
        let shared = self.shared.upgrade()?;
        let mut stuck = Vec::new();
        for number in 0..shared.shards.len() {
            let shard = shared.shard(number);
            if !shard.has_volume(volume) {
                return None;
            }
            let lines = shard.dirty_lines_of(volume).into_iter();
            stuck.extend(lines.map(|(key, dirty, lost)| Stuck { shard: number, key, dirty, lost }));
        }
        stuck.sort_unstable_by_key(|line| line.key);
        Some(stuck)
    }

    /// Brings what the volume's disk was given to stable storage there.
    fn sync_disk(&self, volume: VolumeId) -> IoResult {
        let (tell, told) = mpsc::channel();
        self.inboxes[0].post(Message::Task(Box::new(move |tasks| {
            tasks.sync(volume, Box::new(move |result| _ = tell.send(result)));
        })));
        // A worker that ends drops what it was to do.
        told.recv().unwrap_or(Err(IoError::Shutdown))
    }

    /// Records what is still dirty of these lines once more, and waits until that is durable. Says
    /// whether all of it was; `None` where it could not be recorded.
    fn record_forward(&self, number: u16, volume: VolumeId, stuck: &[Stuck]) -> Option<bool> {
        let shared = self.shared.upgrade()?;
        let mut is_all = true;
        for line in stuck {
            is_all &= self.record_line(&shared, (number, volume), line)?;
        }
        self.wait_until_recorded().map(|()| is_all)
    }

    fn record_line(
        &self,
        shared: &Shared,
        (number, volume): (u16, VolumeId),
        line: &Stuck,
    ) -> Option<bool> {
        let mut copy = AlignedBuffer::new(LINE_BYTES as usize);
        'again: loop {
            // In this order, as everywhere: what is recorded is what the line has at that moment.
            let mut shard = shared.shard(line.shard);
            let dirty = copy_dirty(shared, &mut shard, line, &mut copy)?;
            let mut state = self.lock();
            if !state.volumes.contains(&(number, volume)) {
                return None;
            }
            for range in runs_of(line.key, dirty) {
                match state.log.admit_forward() {
                    Admission::Granted => {}
                    Admission::Wait => {
                        drop(shard);
                        self.rouse(&mut state);
                        drop(self.written.wait_timeout(state, PAUSE));
                        continue 'again;
                    }
                    Admission::Full | Admission::Failed => return None,
                }
                let from = (range.offset - line.key.offset()) as usize;
                let piece = &copy[from..from + range.len as usize];
                let entry = Entry { kind: RecordKind::Write, volume: number, range };
                if !state.log.append(entry, [piece].into_iter(), None) {
                    return None;
                }
                self.kept.forward_bytes.fetch_add(range.len, Ordering::Relaxed);
            }
            self.rouse(&mut state);
            return Some(dirty & line.dirty == line.dirty);
        }
    }
}

/// Copies a line out and says which of its sectors are dirty; `None` where some are lost by now.
fn copy_dirty(
    shared: &Shared,
    shard: &mut Shard<MappedLines>,
    line: &Stuck,
    copy: &mut [u8],
) -> Option<u8> {
    let Some(slot) = shard.slot_of(line.key, 0) else { return Some(0) };
    if let Some(sealed) = shard.seal_of(slot) {
        let _: Verdict = verify_locked(shared, line.shard, shard, &sealed);
    }
    if shard.lost_of(line.key) != 0 {
        // It is not on the disk either, also where nothing else of the line is dirty any more.
        return None;
    }
    let dirty = shard.dirty_of(line.key);
    if dirty != 0 {
        shared.pool.copy_line(line.shard, slot, copy);
    }
    Some(dirty)
}

/// Ranges in order, those that touch each other as one.
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
