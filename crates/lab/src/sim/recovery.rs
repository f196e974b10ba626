//! What follows a crash: the next process starts on what it left, restores, and may crash again.

use super::device::disk::sectors_of;
use super::driver::{INTERNAL, SILENCE_US_MAX, Simulation};
use super::world::World;
use crate::harness::dice::Ppm;
use crate::harness::journal::{Restored, request_of};
use crate::harness::memory::{Memory, payload_of};
use crate::harness::oracle::Crash;
use crate::harness::{Sabotage, WHOLE};
use forebay_journal::Found;
use forebay_types::{ByteRange, IoError, SECTOR_BYTES, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};

/// The maximum number of crashes during one recovery; each restarts it.
const RECOVERY_DEATHS_MAX: u32 = 3;
/// Attempts of one restore before all faults are healed for it.
const RESTORES_MAX: u32 = 20;
/// Events in one attempt before all faults are healed for it.
const RESTORE_EVENTS_MAX: u64 = 30_000;

/// A recovery in progress.
#[derive(Default)]
pub(super) struct Recovery {
    deaths: u32,
    has_only_copy: bool,
}

impl Recovery {
    /// Keeps the pool from being lost: the journal is a new one, and until it has the data of the
    /// pool, the loss of the pool would be a second fault.
    pub(super) const fn spare_pool(&mut self) {
        self.has_only_copy = true;
    }

    /// Whether the process may die with its pool.
    pub(super) const fn may_lose_pool(&self) -> bool {
        !self.has_only_copy
    }

    pub(super) const fn count_death(&mut self) {
        self.deaths += 1;
    }
}

impl Simulation {
    /// The process crashes, possibly with the power, and the next one starts on the same disks.
    pub(super) fn crash(&mut self, crash: Crash) {
        let world = &mut self.world;
        let volumes = world.run.plan.volume_ids();
        for volume in &volumes {
            world.run.log_event(volume.0, WHOLE, || format!("crash: {crash:?}"));
        }
        world.expected.check_write_order(&mut world.run, &world.device);
        world.run.report.crashes += 1;
        drop(world.end_process());
        let World { run, device, expected, .. } = world;
        for &volume in &volumes {
            let disk = device.disk_mut(volume);
            match crash {
                Crash::Power | Crash::Saved => {
                    disk.lose_power(run.plan.device.survive, &mut run.dice);
                }
                // The disk writes its cache before the next crash.
                Crash::Process | Crash::Kill => disk.flush(),
            }
        }
        let found = world.journal.crash(run, expected);
        let image = |volume: VolumeId| match &found {
            _ if world.power.holds(volume) => world.power.vault_image(volume),
            Some(found) => world.journal.image(found, volume),
            None => Vec::new(),
        };
        let to_restore: Vec<Vec<Restored>> = volumes.into_iter().map(image).collect();
        let mut contents = device.contents();
        for (content, to_restore) in contents.iter_mut().zip(&to_restore) {
            for (piece, stamps) in to_restore {
                let sectors = sectors_of(piece.range);
                content[sectors.start as usize..sectors.end as usize].copy_from_slice(stamps);
            }
        }
        expected.accept_losses(&run.plan, &contents);
        expected.check_contents(run, "after a crash", &contents, |oracle, sector, found| {
            oracle.check_crash(sector, found, crash)
        });
        expected.restart(&contents);
        self.restart(found, to_restore);
    }

    /// Starts the next process after a crash, on the disks, the journal and the vault.
    fn restart(&mut self, found: Option<Found>, mut to_restore: Vec<Vec<Restored>>) {
        let world = &mut self.world;
        world.power.restart(&world.run);
        world.integrity.begin_recovery();
        world.start_process();
        let mut resumed = false;
        if let Some(mut found) = found {
            resumed = world.journal.resume(&world.run, &found);
            if !resumed {
                world.journal.drain_to(&found, &mut world.device);
                found.drop_records();
                assert!(world.journal.resume(&world.run, &found), "an empty log can be resumed");
                let volumes = to_restore.iter_mut().zip(world.run.plan.volume_ids());
                let drained = volumes.filter(|(_, volume)| !world.power.holds(*volume));
                drained.for_each(|(image, _)| image.clear());
            }
        }
        if to_restore.iter().any(|extents| !extents.is_empty()) || resumed {
            world.run.schedule_tick();
        }
        self.make_dispatchers();
        if !self.restore(&to_restore) || !self.empty_vaults() {
            return;
        }
        if self.is_ok() && self.fails_to_start() {
            return;
        }
        self.world.journal.restored();
        if self.is_ok() {
            self.start_clients();
        }
    }

    /// Destages the content of the vault, then empties it. Returns false if the process crashed
    /// meanwhile; then the next one has done it.
    fn empty_vaults(&mut self) -> bool {
        for volume in self.world.run.plan.volume_ids() {
            if !self.world.power.holds(volume) || !self.is_ok() {
                continue;
            }
            if self.world.run.strikes_always(Sabotage::EmptyVaultEarly) {
                self.world.power.empty_vault(volume);
            }
            let chance = self.world.run.plan.power.death_at_emptying;
            if self.dies_in_recovery(chance) {
                return false;
            }
            self.restore_piece(volume, RequestKind::Destage, WHOLE, &[]);
            if self.is_ok() && self.dies_in_recovery(chance) {
                return false;
            }
            self.world.power.empty_vault(volume);
        }
        true
    }

    /// A start fails if the journal does before any volume is served: its records still count, at
    /// the next start. Returns true if it has failed; then the next process has recovered.
    fn fails_to_start(&mut self) -> bool {
        let fails = self.world.journal.fails_start();
        if fails {
            self.world.run.report.repeated_starts += 1;
            self.crash(Crash::Process);
        }
        fails
    }

    /// The process may crash during recovery. Returns true if it did; then the next one has
    /// recovered.
    pub(crate) fn dies_in_recovery(&mut self, chance: Ppm) -> bool {
        let dies = self.world.run.dice.chance(chance);
        if !dies || !self.may_die_again() {
            return false;
        }
        self.recovery().count_death();
        let power = self.world.run.dice.chance(500_000);
        self.crash(if power { Crash::Power } else { Crash::Process });
        true
    }

    /// Whether the process may crash during this recovery.
    pub(super) fn may_die_again(&mut self) -> bool {
        // No guarantee covers two faults at once, of the journal and of the process.
        !self.is_draining() && self.recovery().deaths < RECOVERY_DEATHS_MAX
    }

    /// Restores the journal's or the vault's content to the pool. Returns false if the process
    /// crashed meanwhile; then the next one has recovered.
    fn restore(&mut self, to_restore: &[Vec<Restored>]) -> bool {
        for (volume, pieces) in self.world.run.plan.volume_ids().into_iter().zip(to_restore) {
            for (piece, stamps) in pieces {
                self.world.run.report.restored_extents += 1;
                self.restore_piece(volume, request_of(piece), piece.range, stamps);
                if !self.is_ok() {
                    return true;
                }
                if self.fails_to_start()
                    || self.dies_in_recovery(self.world.run.plan.crash_in_recovery)
                {
                    return false;
                }
            }
        }
        true
    }

    fn run_for(&mut self, us: u64) {
        let until = self.world.run.now_us() + us;
        while self.is_ok() && self.world.run.now_us() < until {
            self.step();
        }
    }

    pub(crate) fn restore_piece(
        &mut self,
        volume: VolumeId,
        kind: RequestKind,
        range: ByteRange,
        stamps: &[u64],
    ) {
        if kind != RequestKind::Destage && self.world.run.strikes(Sabotage::SkipRestore) {
            return;
        }
        let bytes = payload_of(stamps.iter().copied());
        for count in 0.. {
            let healed = self.world.run.healed;
            self.world.run.healed |= count > RESTORES_MAX;
            if count == 100 * RESTORES_MAX {
                let place = Some((volume.0, range.offset / SECTOR_BYTES));
                self.world.run.violate(place, format!("{kind:?} {range} never succeeds"));
            }
            // A journal that is full of records of lost data cannot record that the disk has the
            // rest. The start fails and keeps everything, and the operator has to rescue the data.
            let is_full = self.world.requests.restored() == Some(Err(IoError::NoSpace));
            if is_full && count > 2 * RESTORES_MAX && self.world.expected.losses.any() {
                self.world.run.report.failed_starts = 1;
                return;
            }
            if is_full {
                // Leave time for a checkpoint before the next attempt.
                self.run_for(self.world.run.plan.tick_us);
            }
            let request = Request { volume, kind, range };
            self.world.requests.begin_restore();
            let worker = self.any_worker();
            self.world.worker = worker;
            let (token, _) = self.world.register(INTERNAL, request);
            let payload = match kind {
                RequestKind::Restore | RequestKind::Record => {
                    Payload::Owned(Memory::payload(&bytes))
                }
                _ => Payload::None,
            };
            self.on_worker(worker, |dispatcher, world| {
                dispatcher.submit(world, token, request, payload);
            });
            let last_event = self.world.run.report.events + RESTORE_EVENTS_MAX;
            let mut too_late_us = u64::MAX;
            let is_dead = |world: &World| world.kill.is_dead();
            while self.is_ok() && !is_dead(&self.world) && self.world.requests.restored().is_none()
            {
                // The journal may be full while the disk refuses the dirty data whose writeback
                // would free space.
                if self.world.run.report.events == last_event {
                    self.world.run.healed = true;
                    self.world.device.heal();
                    // A stall that began before the faults were healed may continue.
                    too_late_us = self.world.run.now_us() + SILENCE_US_MAX;
                }
                if self.world.run.now_us() > too_late_us {
                    let place = Some((volume.0, range.offset / SECTOR_BYTES));
                    self.world.run.violate(place, format!("{kind:?} {range} never completes"));
                }
                self.step();
            }
            self.world.run.healed = healed;
            let is_done = self.world.requests.restored() == Some(Ok(()));
            if !self.is_ok() || is_done || is_dead(&self.world) {
                return;
            }
        }
    }
}
