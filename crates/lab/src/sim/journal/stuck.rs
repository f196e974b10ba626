//! Drives the retentions of data that a disk has refused, and the recording of adopted pools.

use super::Journal;
use crate::harness::Sabotage;
use crate::harness::shard::PooledShard;
use crate::sim::device::Device;
use crate::sim::run::Run;
use forebay_protect::{RecordAgain, Retention, RetentionStep, StuckLine};
use forebay_types::{ByteRange, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use forebay_volume::RequestKind;

impl Journal {
    /// Starts the retention after a failed checkpoint of a volume.
    pub(super) fn begin_retention(
        &mut self,
        shards: &[PooledShard],
        volume: VolumeId,
        number: u16,
    ) {
        let since = self.state.log.next_record();
        self.stuck.push((volume, Retention::new(number, since, stuck_lines(shards, volume))));
    }

    /// Begins to record the dirty data of a volume in an adopted pool again.
    pub(crate) fn record_again(&self, shards: &[PooledShard], volume: VolumeId) -> RecordAgain {
        let number = self.number(volume).expect("the journal keeps the volume");
        RecordAgain::new(&self.state, number, stuck_lines(shards, volume))
    }

    /// Flushes the disk of a volume, and has the older records voided.
    pub(crate) fn void_older(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        device: &mut Device,
        volume: VolumeId,
        recording: &mut RecordAgain,
    ) {
        let since = self.state.log.next_record();
        let stuck = stuck_lines(shards, volume);
        device.disk_mut(volume).flush();
        recording.handle_flush(&mut self.state, since, &stuck);
        self.pump(run);
    }

    /// Advances all retentions. Returns the volumes whose disks must flush.
    pub(crate) fn advance_retentions(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
    ) -> Vec<(VolumeId, RequestKind)> {
        let mut flushes = Vec::new();
        for (volume, mut retention) in std::mem::take(&mut self.stuck) {
            let is_over = loop {
                match retention.poll(&self.state) {
                    RetentionStep::FlushDisk => flushes.push((volume, RequestKind::Sync)),
                    RetentionStep::CopyLine(line) => {
                        self.copy_line(run, shards, &mut retention, &line);
                    }
                    RetentionStep::Wait => break false,
                    RetentionStep::End(result) => {
                        self.end_checkpoint(run, retention.number(), result);
                        break true;
                    }
                }
            };
            if !is_over {
                self.stuck.push((volume, retention));
            }
        }
        self.pump(run);
        flushes
    }

    fn copy_line(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        retention: &mut Retention,
        line: &StuckLine,
    ) {
        let one = &shards[line.shard];
        let found = one.shard.slots().line(line.key);
        // A driver that takes the line for a clean one does not record it.
        let is_skipped = run.strikes_always(Sabotage::SkipForward);
        let dirty = if is_skipped { 0 } else { found.destageable() };
        let bytes = match one.shard.slots().find_valid(line.key, dirty) {
            Some(slot) => one.bytes_of(&[slot], ByteRange::new(line.key.offset(), LINE_BYTES)),
            None => Vec::new(),
        };
        let before = self.state.kept();
        retention.handle_line(&mut self.state, dirty, found.lost(), &bytes);
        let forward_bytes = self.state.kept().forward_bytes - before.forward_bytes;
        run.report.forward_sectors += forward_bytes / SECTOR_BYTES;
        run.report.fences += self.state.kept().fences - before.fences;
    }

    /// Handles the end of a disk's flush.
    pub(crate) fn disk_flushed(&mut self, run: &mut Run, volume: VolumeId, result: IoResult) {
        let Some(at) = self.stuck.iter().position(|(stuck, _)| *stuck == volume) else {
            return;
        };
        let (_, retention) = &mut self.stuck[at];
        let number = retention.number();
        let before = self.state.kept().fences;
        retention.handle_flush(&mut self.state, result);
        let is_fenced = self.state.kept().fences > before;
        run.report.fences += u64::from(is_fenced);
        if is_fenced && run.strikes_always(Sabotage::FenceAll) {
            self.state.log.fence(number, self.state.log.next_record(), &[], true);
        }
        if let RetentionStep::End(result) = self.stuck[at].1.poll(&self.state) {
            self.stuck.remove(at);
            self.end_checkpoint(run, number, result);
        }
    }
}

/// The dirty or lost data of a volume.
fn stuck_lines(shards: &[PooledShard], volume: VolumeId) -> Vec<StuckLine> {
    let mut lines = Vec::new();
    for (at, one) in shards.iter().enumerate() {
        let is_served = StuckLine::collect(&mut lines, at, &one.shard, volume);
        assert!(is_served, "each shard has all volumes");
    }
    lines.sort_unstable_by_key(|line| line.key);
    lines
}
