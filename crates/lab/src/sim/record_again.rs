//! Records the dirty data of an adopted pool in the journal again, like
//! `runtime/src/protect/record_again.rs`. Meanwhile lines are damaged, and the process is killed,
//! with and without its pool.

use super::driver::Simulation;
use super::power::ups_volumes;
use super::world::World;
use crate::harness::Sabotage;
use forebay_engine::LineKey;
use forebay_journal::Mark;
use forebay_types::{ByteRange, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};
use forebay_volume::RequestKind;
use std::collections::BTreeSet;

/// The number of events for which a start waits for space in the journal.
const VOID_EVENTS_MAX: u64 = 10_000;

/// A line with data to record: its shard, and its dirty sectors that were not lost at first.
struct DirtyLine {
    shard: usize,
    key: LineKey,
    dirty: u8,
}

/// The content of a line: sectors with their stamps, and whether others are lost.
struct Content {
    sectors: Vec<(ByteRange, u64)>,
    has_lost: bool,
}

impl World {
    /// The lines with dirty data of volumes with a journal, and the volumes with lost data.
    fn lines_to_record(&self) -> (Vec<DirtyLine>, BTreeSet<VolumeId>) {
        let (mut lines, mut incomplete) = (Vec::new(), BTreeSet::new());
        for volume in self.journaled() {
            for (shard, one) in self.shards.iter().enumerate() {
                for (key, dirty, lost) in one.shard.dirty_lines_of(volume) {
                    lines.extend((dirty != 0).then_some(DirtyLine { shard, key, dirty }));
                    incomplete.extend((lost != 0).then_some(volume));
                }
            }
        }
        (lines, incomplete)
    }

    /// Verifies a line, and copies the sectors to be recorded: from the pool or, where they were
    /// destaged and left the pool meanwhile, from the disk.
    fn content_of(&mut self, line: &DirtyLine) -> Content {
        let Self { run, shards, integrity, expected, device, .. } = self;
        let (key, one) = (line.key, &mut shards[line.shard]);
        // Damage to the memory of a write in flight would go to the disk unnoticed.
        let is_idle = !one.shard.slots().line(key).is_pinned();
        if let Some(slot) = one.shard.slots().find_valid(key, 0).filter(|_| is_idle) {
            integrity.verify_idle(run, expected, line.shard, one, slot);
        }
        let slots = one.shard.slots();
        let (found, slot) = (slots.line(key), slots.find_valid(key, 0));
        let records_lost = run.strikes_always(Sabotage::RecordLost);
        let lost = if records_lost { 0 } else { line.dirty & found.lost() };
        let first = key.offset() / SECTOR_BYTES;
        let wanted = |mask: u8, at: u32| mask >> at & 1 != 0;
        let sectors = (0..SECTORS_PER_LINE).filter(|&at| wanted(line.dirty & !lost, at));
        let content = |at: u32| {
            let sector = first + u64::from(at);
            let stamp = match slot.filter(|_| wanted(found.valid(), at)) {
                Some(slot) => one.stamp(slot, at * SECTOR_BYTES as u32),
                None => device.disk(key.volume()).content()[sector as usize],
            };
            (ByteRange::new(sector * SECTOR_BYTES, SECTOR_BYTES), stamp)
        };
        Content { sectors: sectors.map(content).collect(), has_lost: lost != 0 }
    }

    /// Damages some lines and finds the damage, as the patrol does.
    fn damage_adopted(&mut self) {
        let Self { run, shards, integrity, expected, .. } = self;
        integrity.patrol_adopted(run, shards, expected);
    }
}

impl Simulation {
    /// Records the dirty data of the pool in the journal, because some records were in the memory
    /// of the process. Returns false if the process died meanwhile; then the next one has
    /// recovered.
    pub(super) fn record_dirty_again(&mut self) -> bool {
        let mark = self.world.journal.mark();
        self.world.integrity.begin_adoption();
        self.world.damage_adopted();
        let (lines, mut incomplete) = self.world.lines_to_record();
        for line in lines {
            if self.world.run.strikes_always(Sabotage::SkipRecord) {
                continue;
            }
            self.world.damage_adopted();
            let content = self.world.content_of(&line);
            let volume = line.key.volume();
            incomplete.extend(content.has_lost.then_some(volume));
            for (range, stamp) in content.sectors {
                if self.kills_recording() {
                    self.world.kill.schedule(&mut self.world.run);
                }
                self.restore_piece(volume, RequestKind::Record, range, &[stamp]);
                if self.world.kill.is_dead() {
                    self.restart_recording();
                    return false;
                }
                if !self.is_ok() || self.world.run.report.failed_starts > 0 {
                    return true;
                }
                // With a UPS, power is not lost before the dump.
                if self.may_lose_pool()
                    && ups_volumes(&self.world).is_empty()
                    && self.dies_in_recovery(self.world.run.plan.crash_in_recovery)
                {
                    return false;
                }
            }
        }
        self.world.kill.cancel();
        if self.dies_with_pool() {
            return false;
        }
        self.void_older_records(mark, &incomplete);
        if self.dies_with_pool() {
            return false;
        }
        self.end_recording(&incomplete);
        true
    }

    /// Ends the recording: from now on, lost data is restored from the journal if that has it.
    fn end_recording(&mut self, incomplete: &BTreeSet<VolumeId>) {
        self.world.expected.end_adoption();
        for volume in self.world.journaled() {
            let state = &mut self.world.volumes[usize::from(volume.0)];
            let is_newest = !incomplete.contains(&volume) || state.has_all_recorded();
            state.freshness.end_recording(is_newest);
            if !is_newest {
                self.world.expected.losses.mark_unrecoverable(volume);
            }
        }
    }

    /// Whether the process is killed in the middle of the next record, and leaves its pool.
    fn kills_recording(&mut self) -> bool {
        self.may_die_again() && self.world.integrity.kills_adopter()
    }

    /// The process may die between two records, and leave its pool. Returns true if it did; then
    /// the next one has recovered.
    fn dies_with_pool(&mut self) -> bool {
        let can_die = self.is_ok() && self.world.run.report.failed_starts == 0;
        if !can_die || !self.kills_recording() {
            return false;
        }
        self.world.kill.kill(&self.world.shards);
        self.restart_recording();
        true
    }

    fn restart_recording(&mut self) {
        self.count_death_in_recovery();
        self.world.run.report.adopters_killed += 1;
        self.restart_on_pool();
    }

    /// Voids the records of the previous process: the disk and the new records have everything, and
    /// an old record may be older than a record that was lost with the process. The records of lost
    /// and dirty data of the `incomplete` volumes, whose lost data was not recorded, are kept.
    fn void_older_records(&mut self, mark: Mark, incomplete: &BTreeSet<VolumeId>) {
        if self.world.run.strikes_always(Sabotage::KeepOldRecords) {
            return;
        }
        for volume in self.world.journaled() {
            let World { device, journal, .. } = &mut self.world;
            if !incomplete.contains(&volume) {
                device.disk_mut(volume).flush();
                journal.void_records_before(volume, mark);
            } else if !self.void_clean(volume) {
                self.world.run.report.failed_starts = 1;
                return;
            }
        }
        self.world.journal.pump(&mut self.world.run);
        while self.is_ok() && self.world.journal.is_pending() {
            self.step();
        }
    }

    /// Voids the records of a volume except those of dirty or lost data. If the journal has no
    /// space for the fence, waits for checkpoints; returns false if they do not free any. Then the
    /// start fails and keeps everything.
    fn void_clean(&mut self, volume: VolumeId) -> bool {
        for _ in 0..VOID_EVENTS_MAX {
            if !self.is_ok() {
                return true;
            }
            let World { shards, device, journal, .. } = &mut self.world;
            if journal.void_clean(shards, device, volume) {
                return true;
            }
            self.step();
        }
        false
    }
}
