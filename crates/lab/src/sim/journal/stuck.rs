//! Keeps data that a disk has refused in the journal, like `runtime/src/protect/journal/stuck.rs`.

use super::Journal;
use crate::harness::Sabotage;
use crate::harness::shard::PooledShard;
use crate::sim::device::Device;
use crate::sim::run::Run;
use forebay_engine::LineKey;
use forebay_format::journal::RecordKind;
use forebay_journal::{Admission, Entry};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::RequestKind;

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
    /// Some of the data has been destaged meanwhile, and the disk must flush again; true if it has
    /// been asked.
    FlushAgain { asked: bool },
}

/// The data of a volume that a failed checkpoint left dirty.
pub(super) struct Stuck {
    volume: VolumeId,
    number: u16,
    since: u64,
    lines: Vec<StuckLine>,
    /// Whether all of it is still dirty.
    is_all: bool,
    stage: Stage,
}

fn runs_of(key: LineKey, mask: u8) -> impl Iterator<Item = ByteRange> {
    let is_set = move |sector: u64| mask >> sector & 1 != 0;
    (0..8)
        .filter(move |&sector| is_set(sector))
        .map(move |sector| ByteRange::new(key.offset() + sector * SECTOR_BYTES, SECTOR_BYTES))
}

impl Journal {
    /// Starts the retention after a failed checkpoint of a volume.
    pub(super) fn begin_retention(
        &mut self,
        shards: &[PooledShard],
        volume: VolumeId,
        number: u16,
    ) {
        let lines = stuck_lines(shards, volume);
        let since = self.state.log.next_record();
        let (is_all, stage) = (true, Stage::Flush { asked: false });
        self.stuck.push(Stuck { volume, number, since, lines, is_all, stage });
    }

    /// Voids the records of a volume except those of dirty or lost data; the disk has the rest.
    /// Returns false if the journal has no space for the fence.
    pub(crate) fn void_clean(
        &mut self,
        shards: &[PooledShard],
        device: &mut Device,
        volume: VolumeId,
    ) -> bool {
        let number = self.number(volume).expect("the journal keeps the volume");
        let lines = stuck_lines(shards, volume);
        let is_last = lines.iter().all(|&(_, _, dirty, _)| dirty == 0);
        device.disk_mut(volume).flush();
        let log = &mut self.state.log;
        let since = log.next_record();
        log.failed().is_some() || log.fence(number, since, &retained_ranges(&lines), is_last)
    }

    /// Advances all retentions. Returns the volumes whose disks must flush.
    pub(crate) fn advance_retentions(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
    ) -> Vec<(VolumeId, RequestKind)> {
        let mut flushes = Vec::new();
        for mut stuck in std::mem::take(&mut self.stuck) {
            match &mut stuck.stage {
                Stage::Flush { asked } | Stage::FlushAgain { asked } => {
                    if !std::mem::replace(asked, true) {
                        flushes.push((stuck.volume, RequestKind::Sync));
                    }
                }
                Stage::Record { .. } => {
                    if !self.record_stuck(run, shards, &mut stuck) {
                        continue;
                    }
                }
                Stage::Wait { end } => {
                    let end = *end;
                    let log = &self.state.log;
                    if log.first_pending_record() >= end && log.is_membership_recorded() {
                        if stuck.is_all {
                            self.end_checkpoint(run, stuck.number, Ok(()));
                            continue;
                        }
                        stuck.stage = Stage::FlushAgain { asked: false };
                    }
                }
            }
            // A journal that failed meanwhile has dropped all retentions.
            if self.state.log.failed().is_none() {
                self.stuck.push(stuck);
            }
        }
        flushes
    }

    /// Handles the end of a disk's flush.
    pub(crate) fn disk_flushed(&mut self, run: &mut Run, volume: VolumeId, result: IoResult) {
        let Some(at) = self.stuck.iter().position(|stuck| stuck.volume == volume) else {
            return;
        };
        let mut stuck = self.stuck.remove(at);
        match (stuck.stage, result) {
            (Stage::Flush { .. }, Ok(())) if stuck.lines.is_empty() => {
                self.end_checkpoint(run, stuck.number, Ok(()));
            }
            (Stage::FlushAgain { .. }, Ok(())) => self.end_checkpoint(run, stuck.number, Ok(())),
            (Stage::Flush { .. }, Ok(())) => {
                let lines = stuck.lines.iter();
                let sectors: u64 = lines.map(|line| u64::from(line.2.count_ones())).sum();
                let is_whole = stuck.lines.iter().all(|line| line.3 == 0);
                let has_room =
                    self.state.log.can_forward(stuck.number, sectors * SECTOR_BYTES, sectors);
                if is_whole && has_room {
                    stuck.stage = Stage::Record { next: 0 };
                    self.stuck.push(stuck);
                } else {
                    self.fence(run, &stuck);
                }
            }
            _ => self.end_checkpoint(run, stuck.number, Err(IoError::Io)),
        }
    }

    /// Records a fence, because some data is lost or the journal has no space to record the data
    /// again.
    fn fence(&mut self, run: &mut Run, stuck: &Stuck) {
        let all = run.strikes_always(Sabotage::FenceAll);
        let kept = if all { Vec::new() } else { retained_ranges(&stuck.lines) };
        let is_last = stuck.lines.iter().all(|&(_, _, dirty, _)| dirty == 0);
        let is_fenced = self.state.log.fence(stuck.number, stuck.since, &kept, is_last);
        run.report.fences += u64::from(is_fenced);
        self.end_checkpoint(run, stuck.number, Err(IoError::Io));
    }

    /// Records lines that are still dirty. Returns whether the retention continues.
    fn record_stuck(&mut self, run: &mut Run, shards: &[PooledShard], stuck: &mut Stuck) -> bool {
        let skips = run.strikes_always(Sabotage::SkipForward);
        let Stage::Record { next } = stuck.stage else { unreachable!("the stage is Record") };
        for (at, &(shard, key, before, _)) in stuck.lines.iter().enumerate().skip(next) {
            let one = &shards[shard];
            let line = one.shard.slots().line(key);
            let dirty = line.destageable();
            if line.lost() != 0 {
                // Lost data is neither recorded again nor on the disk.
                self.fence(run, stuck);
                return false;
            }
            stuck.is_all &= dirty & before == before;
            for range in runs_of(key, dirty) {
                match self.state.log.admit_forward(stuck.number, range.len) {
                    Admission::Granted => {}
                    Admission::Wait => {
                        stuck.stage = Stage::Record { next: at };
                        self.pump(run);
                        return true;
                    }
                    Admission::Full | Admission::Failed => {
                        self.fence(run, stuck);
                        return false;
                    }
                }
                if skips {
                    self.state.log.withdraw();
                    continue;
                }
                let found = one.shard.slots().find_valid(key, dirty);
                let slot = found.expect("dirty sectors are valid");
                let bytes = one.bytes_of(&[slot], range);
                let entry = Entry { kind: RecordKind::Write, volume: stuck.number, range };
                let taken = self.state.log.append(entry, [&bytes[..]].into_iter(), None);
                assert!(taken, "the record was admitted");
                run.report.forward_sectors += 1;
            }
        }
        stuck.stage = Stage::Wait { end: self.state.log.next_record() };
        self.pump(run);
        true
    }
}

/// The dirty or lost data of a volume.
fn stuck_lines(shards: &[PooledShard], volume: VolumeId) -> Vec<StuckLine> {
    let mut lines: Vec<StuckLine> = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        let dirty = shard.shard.dirty_lines_of(volume).into_iter();
        lines.extend(dirty.map(|(key, dirty, lost)| (at, key, dirty, lost)));
    }
    lines.sort_unstable_by_key(|line| line.1);
    lines
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
