//! Records the dirty data of an adopted pool in the journal again. Meanwhile lines are damaged, and
//! the process is killed, with and without its pool.

use super::driver::Simulation;
use super::power::ups_volumes;
use super::world::World;
use crate::harness::Sabotage;
use forebay_protect::{RecordAgainStep, StuckLine};
use forebay_types::{ByteRange, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};
use forebay_volume::RequestKind;

/// The number of events for which a start waits for space in the journal.
const VOID_EVENTS_MAX: u64 = 10_000;

/// The content of a line: sectors with their stamps, and those that are lost.
struct Content {
    sectors: Vec<(ByteRange, u64)>,
    lost: u8,
}

impl World {
    /// Verifies a line, and copies the sectors to be recorded: from the pool or, where they were
    /// destaged and left the pool meanwhile, from the disk.
    fn content_of(&mut self, line: &StuckLine) -> Content {
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
        Content { sectors: sectors.map(content).collect(), lost }
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
        self.world.integrity.begin_adoption();
        self.world.damage_adopted();
        for volume in self.world.journaled() {
            if !self.record_volume_again(volume) {
                return false;
            }
        }
        self.world.kill.cancel();
        self.world.expected.end_adoption();
        true
    }

    fn record_volume_again(&mut self, volume: VolumeId) -> bool {
        let World { shards, journal, .. } = &self.world;
        let mut recording = journal.record_again(shards, volume);
        let mut waits = 0;
        while self.is_ok() && self.world.run.report.failed_starts == 0 {
            match recording.poll(self.world.journal.state()) {
                RecordAgainStep::RecordLine(line) => {
                    let Some(lost) = self.record_line(&line) else { return false };
                    recording.handle_line(lost);
                }
                RecordAgainStep::FlushDisk => {
                    self.world.kill.cancel();
                    if self.dies_with_pool() {
                        return false;
                    }
                    if self.world.run.strikes_always(Sabotage::KeepOldRecords) {
                        self.end_recording(volume, true);
                        return true;
                    }
                    let World { run, shards, device, journal, .. } = &mut self.world;
                    journal.void_older(run, shards, device, volume, &mut recording);
                }
                RecordAgainStep::Wait if waits == VOID_EVENTS_MAX => {
                    self.world.run.report.failed_starts = 1;
                }
                RecordAgainStep::Wait => {
                    waits += 1;
                    self.step();
                }
                RecordAgainStep::End { is_whole, .. } => {
                    if self.dies_with_pool() {
                        return false;
                    }
                    self.end_recording(volume, is_whole);
                    return true;
                }
            }
        }
        true
    }

    /// Records the dirty sectors of a line. Returns those that are lost; `None` if the process died
    /// meanwhile.
    fn record_line(&mut self, line: &StuckLine) -> Option<u8> {
        if self.world.run.strikes_always(Sabotage::SkipRecord) {
            return Some(0);
        }
        self.world.damage_adopted();
        let content = self.world.content_of(line);
        for (range, stamp) in content.sectors {
            if self.kills_recording() {
                self.world.kill.schedule(&mut self.world.run);
            }
            self.restore_piece(line.key.volume(), RequestKind::Record, range, &[stamp]);
            if self.world.kill.is_dead() {
                self.restart_recording();
                return None;
            }
            if !self.is_ok() || self.world.run.report.failed_starts > 0 {
                break;
            }
            // With a UPS, power is not lost before the dump.
            if self.recovery().may_lose_pool()
                && ups_volumes(&self.world).is_empty()
                && self.dies_in_recovery(self.world.run.plan.crash_in_recovery)
            {
                return None;
            }
        }
        Some(content.lost)
    }

    /// Ends the recording of a volume: from now on, lost data is restored from the journal if that
    /// has it.
    fn end_recording(&mut self, volume: VolumeId, is_whole: bool) {
        let state = &mut self.world.volumes[usize::from(volume.0)];
        let is_newest = is_whole || state.has_all_recorded();
        state.freshness.end_recording(is_newest);
        if !is_newest {
            self.world.expected.losses.mark_unrecoverable(volume);
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
        self.recovery().count_death();
        self.world.run.report.adopters_killed += 1;
        self.restart_on_pool();
    }
}
