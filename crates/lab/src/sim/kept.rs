//! The next process adopts the pool of a killed one.
//!
//! Everything acknowledged must be there, whatever the protection, and clean lines must match the
//! disk.

use super::device::disk::sectors_of;
use super::driver::Simulation;
use super::resize::{check_given_back, given_back_in};
use super::world::World;
use crate::harness::oracle::describe_stamp;
use crate::harness::shard::{PoolSnapshot, PooledShard, pooled_stamp};
use crate::harness::{Sabotage, WHOLE};
use forebay_journal::Found;
use forebay_types::{ByteRange, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};

impl World {
    /// Creates the shards of a process that adopts a pool.
    fn recover_shards(&mut self, killed_pool: PoolSnapshot) {
        let run = &mut self.run;
        self.shards.clear();
        for (mut table, pool) in killed_pool {
            if run.plan.volumes.len() > 1 && run.strikes_always(Sabotage::MixUpVolumes) {
                // The first two volumes exchange their numbers.
                for line in &mut table {
                    if let Some(volume) = line.volume().filter(|volume| volume.0 < 2) {
                        *line = line.of_volume(VolumeId(1 - volume.0));
                    }
                }
            }
            let policy = run.plan.policy.build(table.len());
            let given_back = given_back_in(&table);
            let (mut shard, found) = PooledShard::recover((table, pool), policy, run.plan.config);
            shard.shard.self_check();
            run.report.kept_lines += found.lines;
            run.report.moving_lines += found.moving_lines;
            run.report.torn_sectors += found.torn_sectors;
            check_given_back(run, &mut shard, given_back);
            self.shards.push(shard);
        }
        self.add_volumes();
        self.shards.iter().for_each(|shard| shard.shard.self_check());
    }

    /// The content of a sector as readers see it, and whether it is in the pool.
    fn visible_content(&self, volume: VolumeId, sector: u64) -> (u64, bool) {
        match pooled_stamp(&self.shards, (volume, self.stripes_of(volume)), sector) {
            Some(stamp) => (stamp, true),
            None => (self.device.disk(volume).content()[sector as usize], false),
        }
    }

    /// Checks the content that the next process would read.
    fn check_adopted(&mut self) {
        self.expected.reload_losses(&mut self.run, &self.shards);
        self.expected.begin_adoption(self.run.next_moment());
        for volume in self.run.plan.volume_ids() {
            let sectors = self.run.plan.volume(volume).sectors;
            let mut dirty = vec![0u8; sectors.div_ceil(8) as usize];
            for shard in &self.shards {
                for (key, mask) in shard.shard.dirty_sectors(volume) {
                    if let Some(line) = dirty.get_mut(key.line() as usize) {
                        *line = mask;
                    }
                }
            }
            for sector in 0..sectors {
                let is_dirty = dirty[sector as usize / 8] >> (sector % 8) & 1 != 0;
                self.check_adopted_sector(volume, sector, is_dirty);
                if !self.run.is_ok() {
                    return;
                }
            }
        }
    }

    fn check_adopted_sector(&mut self, volume: VolumeId, sector: u64, is_dirty: bool) {
        if self.expected.losses.contains(volume, sector) {
            return;
        }
        let (found, in_pool) = self.visible_content(volume, sector);
        let on_disk = self.device.disk(volume).content()[sector as usize];
        if in_pool && !is_dirty && found != on_disk {
            let message = format!(
                "after a kill, sector {sector} of volume {} is clean and {}, but {} on the disk",
                volume.0,
                describe_stamp(found),
                describe_stamp(on_disk)
            );
            return self.run.violate(Some((volume.0, sector)), message);
        }
        let (when, place) = ("after a kill that left the pool", (volume, sector));
        self.expected.check_sector(&mut self.run, when, place, found);
    }

    /// The volumes with a journal.
    pub(super) fn journaled(&self) -> Vec<VolumeId> {
        let volumes = self.run.plan.volume_ids().into_iter();
        volumes.filter(|&volume| self.journal.has(volume)).collect()
    }

    /// Writes all dirty data of volumes with a journal to their disks.
    fn write_dirty_to_disks(&mut self) {
        for (volume, range, stamps) in self.dirty_of_journal() {
            for (sector, stamp) in sectors_of(range).zip(stamps) {
                self.device.disk_mut(volume).write(sector, stamp);
            }
        }
        self.journaled().into_iter().for_each(|volume| self.device.disk_mut(volume).flush());
    }

    /// Writes data that is lost in the pool from the journal to the disks, as the operator does
    /// with a journal that cannot be resumed. Data that was acknowledged before its record was
    /// durable may be older there.
    fn rescue_lost(&mut self, found: &Found) {
        let keeps_each = self.journal.keeps_each_write();
        for volume in self.journaled() {
            let lost = self.expected.losses.take(volume);
            if lost.is_empty() {
                continue;
            }
            let disk = self.device.disk_mut(volume);
            let image = self.journal.image(found, volume);
            for (sector, stamp) in image.iter().flat_map(|(it, s)| sectors_of(it.range).zip(s)) {
                if lost.contains_key(&sector) {
                    disk.write(sector, *stamp);
                }
            }
            disk.flush();
            for sector in lost.into_keys().filter(|_| !keeps_each) {
                self.expected.restart_sector(volume, sector, disk.content()[sector as usize]);
            }
            self.shards.iter_mut().for_each(|one| one.shard.abandon_lost(volume));
        }
    }

    /// The dirty data of volumes with a journal.
    fn dirty_of_journal(&self) -> Vec<(VolumeId, ByteRange, Vec<u64>)> {
        let mut dirty = Vec::new();
        for volume in self.journaled() {
            for one in &self.shards {
                for (key, mask) in one.shard.dirty_sectors(volume) {
                    let found = one.shard.slots().find_valid(key, mask);
                    let slot = found.expect("dirty sectors are valid");
                    for sector in (0..SECTORS_PER_LINE).filter(|at| mask >> at & 1 != 0) {
                        let offset = sector * SECTOR_BYTES as u32;
                        let range = ByteRange::new(key.offset() + u64::from(offset), SECTOR_BYTES);
                        dirty.push((volume, range, vec![one.stamp(slot, offset)]));
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
        let killed_pool = world.kill.take_pool();
        for volume in world.run.plan.volume_ids() {
            world.run.log_event(volume.0, WHOLE, || "killed; the pool is kept".into());
        }
        world.run.report.kills += 1;
        let unanswered = world.end_process();
        let World { run, expected, .. } = world;
        run.next_moment();
        unanswered.iter().for_each(|pending| expected.abandon(run, pending));
        let found = world.journal.crash(run, expected);
        world.power.restart(run);
        world.recover_shards(killed_pool);
        world.check_adopted();
        if !self.is_ok() {
            return;
        }
        let world = &mut self.world;
        let was_reset = found.is_none();
        for volume in world.run.plan.volume_ids() {
            let adopts = world.journal.has(volume);
            world.volumes[usize::from(volume.0)].adopt(adopts, was_reset);
        }
        world.make_streams();
        if let Some(mut found) = found
            && !world.journal.resume(&world.run, &found)
        {
            world.write_dirty_to_disks();
            world.rescue_lost(&found);
            found.drop_records();
            assert!(world.journal.resume(&world.run, &found), "an empty log can be resumed");
        }
        world.journal.restored();
        world.run.schedule_tick();
        self.make_dispatchers();
        if was_reset {
            self.recovery().spare_pool();
        }
        if !self.record_dirty_again() || self.world.run.report.failed_starts > 0 {
            return;
        }
        if self.is_ok() {
            self.start_clients();
        }
    }
}
