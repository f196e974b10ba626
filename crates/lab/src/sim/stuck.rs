//! Keeps data that a disk has refused in the journal, like `runtime/src/protect/journal/stuck.rs`.

use super::disk::sectors_of;
use super::journal::Journal;
use super::world::World;
use crate::harness::Sabotage;
use forebay_engine::LineKey;
use forebay_format::journal::RecordKind;
use forebay_journal::{Admission, Entry, Source};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};
use forebay_volume::{RequestKind, shard_of};

/// Shard, line, dirty sectors and lost sectors.
type StuckLine = (usize, LineKey, u8, u8);

/// The progress of a retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The disk must flush; true if it has been asked.
    Flush { asked: bool },
    /// The lines from this one on must be recorded.
    Record { next: usize },
    /// All records before this one must become durable.
    Wait { end: u64 },
    /// Some of the data has been destaged meanwhile, and the disk must flush again.
    FlushAgain { asked: bool },
}

/// The data of a volume that a failed checkpoint left dirty.
pub(crate) struct Stuck {
    volume: VolumeId,
    number: u16,
    since: u64,
    lines: Vec<StuckLine>,
    /// All of it is still dirty.
    is_all: bool,
    stage: Stage,
}

fn runs_of(key: LineKey, mask: u8) -> impl Iterator<Item = ByteRange> {
    let is_set = move |sector: u64| mask >> sector & 1 != 0;
    (0..8)
        .filter(move |&sector| is_set(sector))
        .map(move |sector| ByteRange::new(key.offset() + sector * SECTOR_BYTES, SECTOR_BYTES))
}

impl World {
    /// Starts the retention after a failed checkpoint of a volume.
    pub(super) fn begin_retention(&mut self, volume: VolumeId, number: u16) {
        let lines = self.stuck_lines(volume);
        let journal = &mut self.journal;
        let since = journal.log.next_record();
        let (is_all, stage) = (true, Stage::Flush { asked: false });
        journal.stuck.push(Stuck { volume, number, since, lines, is_all, stage });
    }

    /// The dirty or lost data of a volume.
    fn stuck_lines(&self, volume: VolumeId) -> Vec<StuckLine> {
        let mut lines: Vec<StuckLine> = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            let dirty = shard.shard.dirty_lines_of(volume).into_iter();
            lines.extend(dirty.map(|(key, dirty, lost)| (at, key, dirty, lost)));
        }
        lines.sort_unstable_by_key(|line| line.1);
        lines
    }

    /// Voids the records of a volume except those of dirty or lost data; the disk has the rest.
    /// Returns false if the journal has no space for the fence.
    pub(crate) fn void_clean(&mut self, volume: VolumeId, number: u16) -> bool {
        let lines = self.stuck_lines(volume);
        let is_last = lines.iter().all(|&(_, _, dirty, _)| dirty == 0);
        self.volumes[usize::from(volume.0)].disk.flush();
        let log = &mut self.journal.log;
        let since = log.next_record();
        log.failed().is_some() || log.fence(number, since, &retained_ranges(&lines), is_last)
    }

    /// Advances all retentions. Returns the volumes whose disks must flush.
    pub(crate) fn advance_retentions(&mut self) -> Vec<(VolumeId, RequestKind)> {
        let journal = &mut self.journal;
        let mut flushes = Vec::new();
        for mut stuck in std::mem::take(&mut journal.stuck) {
            match &mut stuck.stage {
                Stage::Flush { asked } | Stage::FlushAgain { asked } => {
                    if !std::mem::replace(asked, true) {
                        flushes.push((stuck.volume, RequestKind::Sync));
                    }
                }
                Stage::Record { .. } => {
                    if !self.record_stuck(&mut stuck) {
                        continue;
                    }
                }
                Stage::Wait { end } => {
                    let end = *end;
                    let log = &self.journal.log;
                    if log.first_pending_record() >= end && log.is_membership_recorded() {
                        if stuck.is_all {
                            self.end_checkpoint(stuck.number, Ok(()));
                            continue;
                        }
                        stuck.stage = Stage::FlushAgain { asked: false };
                    }
                }
            }
            let journal = &mut self.journal;
            // A journal that failed meanwhile has dropped all retentions.
            if journal.log.failed().is_none() {
                journal.stuck.push(stuck);
            }
        }
        flushes
    }

    /// Restores data that is lost in the pool from the journal, when everything is recorded.
    pub(crate) fn restore_lost(&mut self) {
        let is_idle = |journal: &Journal| {
            let is_recorded = journal.log.first_pending_record() == journal.log.next_record();
            journal.log.failed().is_none() && journal.log.is_membership_recorded() && is_recorded
        };
        let any = self.volumes.iter().any(|volume| volume.journal && !volume.lost.is_empty());
        if !any || !is_idle(&self.journal) || !self.run.dice.chance(200_000) {
            return;
        }
        let Some(found) = self.journal.read_log() else { return };
        for at in 0..self.volumes.len() {
            for (extent, stamps) in self.journal_image(&found, at) {
                if extent.source == Source::Discard || self.volumes[at].lost.is_empty() {
                    continue;
                }
                for (sector, stamp) in sectors_of(extent.range).zip(stamps) {
                    self.restore_sector(at as u16, sector, stamp);
                }
            }
        }
    }

    fn restore_sector(&mut self, volume: u16, sector: u64, stamp: u64) {
        if self.volumes[usize::from(volume)].unrecoverable.contains(&sector) {
            return;
        }
        let id = VolumeId(volume);
        let range = ByteRange::new(sector * SECTOR_BYTES, SECTOR_BYTES);
        let key = LineKey::new(id, sector / u64::from(SECTORS_PER_LINE));
        let shard = shard_of(id, self.stripes_of(id), range.offset, self.shards.len());
        let bit = 1 << (sector % u64::from(SECTORS_PER_LINE));
        let one = &mut self.shards[shard];
        if one.shard.slots().line(key).lost() & bit == 0 {
            return;
        }
        let Some(slot) = one.shard.idle_slot_of(key) else { return };
        one.set_stamp(slot, (range.offset - key.offset()) as u32, stamp);
        one.shard.regained(key, bit);
        self.run.log_event(volume, range, || "restored from the journal".into());
        self.run.report.regained_sectors += 1;
        self.run.next_moment();
        self.end_loss(id, range, self.run.moment());
    }

    /// Handles the end of a disk's flush.
    pub(crate) fn stuck_flushed(&mut self, volume: VolumeId, result: IoResult) {
        let journal = &mut self.journal;
        let Some(at) = journal.stuck.iter().position(|stuck| stuck.volume == volume) else {
            return;
        };
        let mut stuck = journal.stuck.remove(at);
        match (stuck.stage, result) {
            (Stage::Flush { .. }, Ok(())) if stuck.lines.is_empty() => {
                self.end_checkpoint(stuck.number, Ok(()));
            }
            (Stage::FlushAgain { .. }, Ok(())) => self.end_checkpoint(stuck.number, Ok(())),
            (Stage::Flush { .. }, Ok(())) => {
                let lines = stuck.lines.iter();
                let sectors: u64 = lines.map(|line| u64::from(line.2.count_ones())).sum();
                let is_whole = stuck.lines.iter().all(|line| line.3 == 0);
                let has_room = journal.log.can_forward(sectors * SECTOR_BYTES, sectors);
                if is_whole && has_room {
                    stuck.stage = Stage::Record { next: 0 };
                    journal.stuck.push(stuck);
                } else {
                    self.fence(&stuck);
                }
            }
            _ => self.end_checkpoint(stuck.number, Err(IoError::Io)),
        }
    }

    /// Fences, because some data is lost or the journal has no space to record the data again.
    fn fence(&mut self, stuck: &Stuck) {
        let all = self.run.strikes_always(Sabotage::FenceAll);
        let kept = if all { Vec::new() } else { retained_ranges(&stuck.lines) };
        let journal = &mut self.journal;
        let is_last = stuck.lines.iter().all(|&(_, _, dirty, _)| dirty == 0);
        let is_fenced = journal.log.fence(stuck.number, stuck.since, &kept, is_last);
        self.run.report.fences += u64::from(is_fenced);
        self.end_checkpoint(stuck.number, Err(IoError::Io));
    }

    /// Records lines that are still dirty. Returns whether the retention continues.
    fn record_stuck(&mut self, stuck: &mut Stuck) -> bool {
        let skips = self.run.strikes_always(Sabotage::SkipForward);
        let Stage::Record { next } = stuck.stage else { unreachable!("the stage is Record") };
        for (at, &(shard, key, before, _)) in stuck.lines.iter().enumerate().skip(next) {
            let one = &self.shards[shard];
            let line = one.shard.slots().line(key);
            let dirty = line.destageable();
            if line.lost() != 0 {
                // Lost data is neither recorded again nor on the disk.
                self.fence(stuck);
                return false;
            }
            stuck.is_all &= dirty & before == before;
            for range in runs_of(key, dirty) {
                let journal = &mut self.journal;
                match journal.log.admit_forward() {
                    Admission::Granted => {}
                    Admission::Wait => {
                        stuck.stage = Stage::Record { next: at };
                        self.pump_journal();
                        return true;
                    }
                    Admission::Full | Admission::Failed => {
                        self.fence(stuck);
                        return false;
                    }
                }
                if skips {
                    journal.log.withdraw();
                    continue;
                }
                let found = one.shard.slots().find_valid(key, dirty);
                let slot = found.expect("dirty sectors are valid");
                let bytes = one.bytes_of(&[slot], range);
                let entry = Entry { kind: RecordKind::Write, volume: stuck.number, range };
                let taken = journal.log.append(entry, [&bytes[..]].into_iter(), None);
                assert!(taken, "the record was admitted");
                self.run.report.forward_sectors += 1;
            }
        }
        let journal = &self.journal;
        stuck.stage = Stage::Wait { end: journal.log.next_record() };
        self.pump_journal();
        true
    }
}

/// The ranges of dirty or lost data in ascending order, adjacent ones joined.
fn retained_ranges(lines: &[StuckLine]) -> Vec<ByteRange> {
    let mut kept: Vec<ByteRange> = Vec::new();
    for range in lines.iter().flat_map(|&(_, key, dirty, lost)| runs_of(key, dirty | lost)) {
        match kept.last_mut() {
            Some(last) if last.end() == range.offset => last.len += range.len,
            _ => kept.push(range),
        }
    }
    kept
}
