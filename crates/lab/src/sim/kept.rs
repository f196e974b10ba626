//! The process is killed at any moment, and the next process adopts its pool.
//!
//! The kill may occur between any two memory steps of a call, or within a sector. Nothing that the
//! killed process does afterwards counts. Everything acknowledged must be there, whatever the
//! protection, and clean lines must match the disk.

use super::damage::Lost;
use super::disk::sectors_of;
use super::driver::Simulation;
use super::world::{VolumeState, World};
use crate::harness::oracle::{POISON, describe_stamp};
use crate::harness::shard::PooledShard;
use crate::harness::{Sabotage, WHOLE};
use forebay_engine::{LineKey, LineMeta, MemoryStep};
use forebay_journal::{Found, Mark, Source};
use forebay_types::{ByteRange, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};
use forebay_volume::{RequestKind, shard_of};

/// The maximum number of sectors that are copied before a scheduled kill.
pub(crate) const KILL_SECTORS_MAX: u64 = 40;
/// Events after which a kill occurs between two events if no memory step came before.
pub(crate) const KILL_EVENTS_MAX: u64 = 100;

/// Events that a start waits for space in the journal.
const VOID_EVENTS_MAX: u64 = 10_000;

/// The tables and the data of the shards of a killed process.
pub(crate) type PoolSnapshot = Vec<(Vec<LineMeta>, Vec<u64>)>;

impl World {
    /// Whether the process has been killed, although the current call continues.
    pub(crate) const fn is_dead(&self) -> bool {
        self.killed_pool.is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.killed_pool = Some(self.shards.iter().map(PooledShard::snapshot).collect());
        self.kill_in = None;
    }

    /// Counts down the sectors of a memory step. If the kill occurs in this step, executes the part
    /// before it, possibly tears a sector, kills the process and returns true.
    pub(crate) fn is_killed_in(
        &mut self,
        shard: usize,
        mut step: MemoryStep,
        payload: &[u8],
    ) -> bool {
        let Some(left) = self.kill_in else { return false };
        let (slot, offset, len) = match &mut step {
            MemoryStep::Fill { slot: to, offset, len, .. }
            | MemoryStep::Copy { to, offset, len, .. } => (*to, *offset, len),
            MemoryStep::Verify { .. } => return false,
        };
        let sectors = u64::from(*len) / SECTOR_BYTES;
        if left >= sectors {
            self.kill_in = Some(left - sectors);
            return false;
        }
        let done = left as u32 * SECTOR_BYTES as u32;
        self.kill_in = None;
        *len = done;
        self.apply_step(shard, step, payload);
        if self.run.dice.chance(500_000) {
            self.shards[shard].set_stamp(slot, offset + done, POISON);
        }
        self.kill();
        true
    }

    /// Creates the shards of a process that adopts a pool.
    fn recover_shards(&mut self, killed_pool: PoolSnapshot) {
        self.shards.clear();
        for (mut table, pool) in killed_pool {
            if self.volumes.len() > 1 && self.run.strikes_always(Sabotage::MixUpVolumes) {
                // The first two volumes exchange their numbers.
                for line in &mut table {
                    if let Some(volume) = line.volume().filter(|volume| volume.0 < 2) {
                        *line = line.of_volume(VolumeId(1 - volume.0));
                    }
                }
            }
            let policy = self.run.plan.policy.build(table.len());
            let (shard, found) = PooledShard::recover((table, pool), policy, self.run.plan.config);
            shard.shard.self_check();
            self.run.report.kept_lines += found.lines;
            self.run.report.moving_lines += found.moving_lines;
            self.run.report.torn_sectors += found.torn_sectors;
            self.shards.push(shard);
        }
        self.add_volumes();
        self.shards.iter().for_each(|shard| shard.shard.self_check());
    }

    /// The content of a sector as readers see it, and whether it is in the pool.
    fn visible_content(&self, volume: u16, sector: u64) -> (u64, bool) {
        let id = VolumeId(volume);
        let number = shard_of(id, self.stripes_of(id), sector * SECTOR_BYTES, self.shards.len());
        let one = &self.shards[number];
        let (line, at) = (sector / u64::from(SECTORS_PER_LINE), sector as u32 % SECTORS_PER_LINE);
        match one.shard.slots().find_valid(LineKey::new(id, line), 1 << at) {
            Some(slot) => (one.stamp(slot, at * SECTOR_BYTES as u32), true),
            None => (self.volumes[usize::from(volume)].disk.content()[sector as usize], false),
        }
    }

    /// Checks the content that the next process would read.
    fn check_adopted(&mut self, lost: Vec<Lost>) {
        self.reload_lost(lost);
        self.run.next_moment();
        for volume in 0..self.volumes.len() as u16 {
            let mut dirty =
                vec![0u8; self.volumes[usize::from(volume)].sectors.div_ceil(8) as usize];
            for shard in &self.shards {
                for (key, mask) in shard.shard.dirty_sectors(VolumeId(volume)) {
                    if let Some(line) = dirty.get_mut(key.line() as usize) {
                        *line = mask;
                    }
                }
            }
            for sector in 0..self.volumes[usize::from(volume)].sectors {
                let (found, in_pool) = self.visible_content(volume, sector);
                let is_dirty = dirty[sector as usize / 8] >> (sector % 8) & 1 != 0;
                let state = &mut self.volumes[usize::from(volume)];
                if state.lost.contains_key(&sector) {
                    continue;
                }
                let on_disk = state.disk.content()[sector as usize];
                let place = Some((volume, sector));
                if in_pool && !is_dirty && found != on_disk {
                    let message = format!(
                        "after a kill, sector {sector} of volume {volume} is clean and {}, but {} \
                         on the disk",
                        describe_stamp(found),
                        describe_stamp(on_disk)
                    );
                    return self.run.violate(place, message);
                }
                if !state.oracle.check_read(sector, found, self.run.moment()) {
                    let message = format!(
                        "after a kill that left the pool, sector {sector} of volume {volume} {}",
                        state.oracle.explain(sector, found)
                    );
                    return self.run.violate(place, message);
                }
            }
        }
    }

    /// Writes all dirty data of volumes with a journal to their disks.
    fn write_dirty_to_disks(&mut self) {
        for (volume, range, stamps) in self.dirty_of_journal() {
            for (sector, stamp) in sectors_of(range).zip(stamps) {
                self.volumes[usize::from(volume)].disk.write(sector, stamp);
            }
        }
        self.volumes.iter_mut().filter(|v| v.journal).for_each(|volume| volume.disk.flush());
    }

    /// Writes data that is lost in the pool from the journal to the disks, as the operator does
    /// with a journal that cannot be resumed. Data that was acknowledged before its record was
    /// durable may be older there.
    fn rescue_lost(&mut self, found: &Found) {
        let keeps_each = self.journal.keeps_each_write();
        for at in 0..self.volumes.len() {
            if self.volumes[at].lost.is_empty() || !self.volumes[at].journal {
                continue;
            }
            let image = self.journal_image(found, at);
            let Self { volumes, shards, .. } = self;
            let VolumeState { disk, oracle, lost, .. } = &mut volumes[at];
            let held = image.iter().filter(|(extent, _)| extent.source != Source::Discard);
            for (sector, stamp) in held.flat_map(|(e, s)| sectors_of(e.range).zip(s)) {
                if lost.contains_key(&sector) {
                    disk.write(sector, *stamp);
                }
            }
            disk.flush();
            for sector in std::mem::take(lost).into_keys().filter(|_| !keeps_each) {
                oracle.restart(sector, disk.content()[sector as usize]);
            }
            shards.iter_mut().for_each(|one| one.shard.abandon_lost(VolumeId(at as u16)));
        }
    }

    /// The dirty data of volumes with a journal.
    fn dirty_of_journal(&self) -> Vec<(u16, ByteRange, Vec<u64>)> {
        let mut dirty = Vec::new();
        let volumes = (0..self.volumes.len() as u16).map(VolumeId);
        for volume in volumes.filter(|&volume| self.has_journal(volume)) {
            for one in &self.shards {
                for (key, mask) in one.shard.dirty_sectors(volume) {
                    let found = one.shard.slots().find_valid(key, mask);
                    let slot = found.expect("dirty sectors are valid");
                    for sector in (0..SECTORS_PER_LINE).filter(|at| mask >> at & 1 != 0) {
                        let offset = sector * SECTOR_BYTES as u32;
                        let range = ByteRange::new(key.offset() + u64::from(offset), SECTOR_BYTES);
                        dirty.push((volume.0, range, vec![one.stamp(slot, offset)]));
                    }
                }
            }
        }
        dirty
    }
}

impl Simulation {
    /// Handles a kill: the next process adopts the pool.
    pub(crate) fn restart_on_pool(&mut self) {
        let world = &mut self.world;
        let killed_pool = world.killed_pool.take().expect("the process was killed");
        for volume in 0..world.volumes.len() as u16 {
            world.run.log_event(volume, WHOLE, || "killed; the pool is kept".into());
            // The clean lines of an aborted operation stay in the adopted pool.
            world.volumes[usize::from(volume)].is_emptied = false;
        }
        world.run.report.kills += 1;
        world.collect_counters();
        world.abort_ios();
        world.run.clear_events();
        world.held.drain().for_each(drop);
        world.staging.drain().for_each(drop);
        world.run.next_moment();
        let lost = world.volumes.iter().map(|volume| volume.lost.clone()).collect();
        for pending in world.requests.drain().collect::<Vec<_>>() {
            world.abandon(&pending);
        }
        let found = world.crash_journal();
        world.restart_power();
        world.recover_shards(killed_pool);
        world.check_adopted(lost);
        if !self.is_ok() {
            return;
        }
        if !self.world.journal.keeps_each_write() {
            // The newest record of lost data may have been in the memory of the process.
            self.world.mark_lost_unrecoverable();
        }
        let was_reset = found.is_none();
        self.world.make_streams();
        self.make_dispatchers();
        if let Some(mut found) = found
            && !self.world.resume_journal(&found)
        {
            self.world.write_dirty_to_disks();
            self.world.rescue_lost(&found);
            found.drained();
            assert!(self.world.resume_journal(&found), "an empty log can be resumed");
        }
        self.world.journal.restored();
        self.world.run.schedule_tick();
        if !self.record_dirty_again(!was_reset) || self.world.run.report.held_up > 0 {
            return;
        }
        if self.is_ok() {
            self.start_clients();
        }
    }

    /// Records the dirty data of the pool in the journal, because some records were in the memory
    /// of the process. The process may die meanwhile, with its pool, unless the journal is a new
    /// one: then the pool has the only copy of what the failed journal held, and its loss would be
    /// a second fault.
    fn record_dirty_again(&mut self, may_die: bool) -> bool {
        let mark = self.world.journal.log.mark();
        // Data that is restored from old records from now on is not in any new record.
        let volumes = self.world.volumes.iter();
        let whole: Vec<bool> = volumes.map(|volume| volume.lost.is_empty()).collect();
        for (volume, range, stamps) in self.world.dirty_of_journal() {
            if self.world.run.strikes_always(Sabotage::SkipRecord) {
                continue;
            }
            self.restore_piece(volume, RequestKind::Record, range, &stamps);
            if !self.is_ok() || self.world.run.report.held_up > 0 {
                return true;
            }
            // With a UPS, power is not lost before the dump.
            if may_die
                && self.world.run.plan.ups_volumes().is_empty()
                && self.dies_in_recovery(self.world.run.plan.crash_in_recovery)
            {
                return false;
            }
        }
        self.void_older_records(mark, &whole);
        true
    }

    /// Voids the records of the process before, because disk and journal have everything again and
    /// a newer record may have been in its memory. If data is lost in the pool, records of lost and
    /// dirty data are kept.
    fn void_older_records(&mut self, mark: Mark, whole: &[bool]) {
        if self.world.run.strikes_always(Sabotage::KeepOldRecords) {
            return;
        }
        let numbers = self.world.journal.numbers.clone();
        for ((at, number), whole) in numbers.into_iter().enumerate().zip(whole) {
            let Some(number) = number else { continue };
            let World { volumes, journal, .. } = &mut self.world;
            if *whole && volumes[at].lost.is_empty() {
                volumes[at].disk.flush();
                journal.log.void_records_before(number, mark);
            } else if !self.void_clean(VolumeId(at as u16), number) {
                self.world.run.report.held_up = 1;
                return;
            }
        }
        self.world.pump_journal();
        let is_pending = |world: &World| {
            let log = &world.journal.log;
            let has_more = log.first_pending_record() < log.next_record();
            log.failed().is_none() && (has_more || !log.superblock_is_durable())
        };
        while self.is_ok() && is_pending(&self.world) {
            self.step();
        }
    }

    /// Voids the records of a volume except those of dirty or lost data. If the journal has no
    /// space for the fence, waits for checkpoints; returns false if they do not free any. Then the
    /// start fails and keeps everything.
    fn void_clean(&mut self, volume: VolumeId, number: u16) -> bool {
        for _ in 0..VOID_EVENTS_MAX {
            if !self.is_ok() || self.world.void_clean(volume, number) {
                return true;
            }
            self.step();
        }
        false
    }
}
