//! One run, from the first request to the last check.

use super::SimOptions;
use super::clients::{Client, Payloads};
use super::plan::{self, Plan};
use super::power::ups_volumes;
use super::recovery::Recovery;
use super::run::{Event, Run};
use super::sizing::sizes_itself;
use super::volume::Volume;
use super::world::World;
use crate::harness::WHOLE;
use crate::harness::dice::Dice;
use crate::harness::oracle::{Crash, Oracle};
use forebay_engine::Slot;
use forebay_types::{ByteRange, Mode, SECTOR_BYTES, VolumeId};
use forebay_volume::{Dispatcher, Request, RequestKind};

/// The time limit for the answer to a request after all faults are healed, in microseconds. A
/// failed destage is retried within ten seconds.
const CONVERGE_US_MAX: u64 = 60_000_000;
/// The time without an answer after which the faults are healed early, in microseconds: a few of
/// the longest stalls.
pub(super) const SILENCE_US_MAX: u64 = 400_000_000;
/// Events between two checks of all invariants.
const EVENTS_PER_CHECK: u64 = 257;
/// The client of the requests for the final checks.
pub(crate) const VERIFIER: u16 = u16::MAX;
/// The client of the requests of journal and recovery.
pub(crate) const INTERNAL: u16 = u16::MAX - 1;
/// The client of the reads for pinned ranges and warm-ups.
const LOADER: u16 = u16::MAX - 2;
/// The client of the requests that follow from the state of the UPS.
pub(crate) const POWER: u16 = u16::MAX - 3;
/// How many times lost data is rewritten at the end.
const HEALINGS_MAX: u32 = 4;
/// The length of the verifier's reads, in bytes. It is short, so that reads use even small pools.
const VERIFY_BYTES: u64 = 32 << 10;

pub(crate) struct Simulation {
    pub world: World,
    dispatchers: Vec<Dispatcher<World>>,
    clients: Vec<Client>,
    payloads: Payloads,
    operations: u64,
    crashes: Vec<(u64, bool)>,
    kills: Vec<u64>,
    recovery: Recovery,
}

impl Simulation {
    pub(crate) fn new(options: &SimOptions) -> Self {
        let mut dice = Dice::new(options.seed);
        let mut plan = Plan::draw(&mut dice, options.operations);
        plan.adapt_to_bug(options.sabotage, options.operations);
        // Separate generators: blocks and resizes do not change the other draws of a seed.
        plan.draw_blocks(&mut Dice::new(options.seed.rotate_left(48) ^ 0xb10c));
        if options.sabotage.is_none() {
            plan.draw_both(&mut Dice::new(options.seed.rotate_left(56) ^ 0xb074));
        }
        let mut resize_dice = Dice::new(options.seed.rotate_left(40) ^ 0x51ab);
        plan.draw_resizes(&mut resize_dice, sizes_itself(options.seed));
        let clients = Client::all(&plan, &mut dice);
        let mut crashes = plan.crashes.clone();
        crashes.reverse();
        let mut kills = plan.kills.clone();
        kills.reverse();
        let world = World::new(plan, dice, options);
        let mut simulation = Self {
            world,
            dispatchers: Vec::new(),
            clients,
            payloads: Payloads::default(),
            operations: options.operations,
            crashes,
            kills,
            recovery: Recovery::default(),
        };
        simulation.start_process();
        simulation
    }

    fn start_process(&mut self) {
        self.make_dispatchers();
        self.start_clients();
    }

    pub(crate) fn make_dispatchers(&mut self) {
        let workers = self.world.run.plan.workers;
        self.dispatchers = (0..workers).map(Dispatcher::new).collect();
    }

    pub(crate) fn start_clients(&mut self) {
        self.recovery = Recovery::default();
        let keeps_each = self.world.journal.keeps_each_write();
        self.world.volumes.iter_mut().for_each(|volume| volume.begin_service(keeps_each));
        self.world.integrity.end_recovery();
        for client in 0..self.clients.len() {
            self.world.run.schedule(0, Event::Client(client as u16));
        }
        self.world.run.schedule_tick();
    }

    /// Executes the run. A broken guarantee is recorded in the world.
    pub(crate) fn run(&mut self) {
        while self.world.run.report.operations < self.operations && self.is_ok() {
            self.step();
            if self.is_killed() {
                self.restart_on_pool();
                if self.world.run.report.failed_starts > 0 {
                    return;
                }
                continue;
            }
            // Clients without answers submit nothing more. Healing the faults shows whether a fault
            // is the reason.
            if self.world.requests.silence_us(&self.world.run) > SILENCE_US_MAX {
                break;
            }
            // No guarantee covers two faults at once, of the journal and of the process.
            if self.is_draining() {
                continue;
            }
            self.crash_before_mark();
            if self.crashes.last().is_some_and(|&(at, _)| at <= self.world.run.report.operations) {
                let (_, power) = self.crashes.pop().expect("there is one");
                let has_ups = !ups_volumes(&self.world).is_empty();
                let run = &mut self.world.run;
                let is_bridged = has_ups || run.plan.has_both() && run.dice.chance(500_000);
                if is_bridged && !self.world.power.fails_unbridged(&self.world.run) {
                    self.lose_mains();
                } else {
                    self.crash(if power || has_ups { Crash::Power } else { Crash::Process });
                }
            }
            if self.kills.last().is_some_and(|&at| at <= self.world.run.report.operations) {
                self.kills.pop();
                self.world.kill.schedule(&mut self.world.run);
            }
        }
        // After a long silence, operations are left; they are not submitted.
        self.operations = self.world.run.report.operations;
        self.world.kill.cancel();
        self.world.run.healed = true;
        self.world.device.heal();
        self.world.run.cap_delays(10_000);
        // A full journal may lack the space for a record until checkpoints free some.
        for _ in 0..HEALINGS_MAX {
            self.rewrite_lost();
            self.converge("requests are not answered after the last fault");
            let soon = self.world.run.now_us() + 4 * self.world.run.plan.tick_us;
            while self.is_ok() && self.world.expected.losses.any() && self.world.run.now_us() < soon
            {
                self.step();
            }
        }
        self.world.expected.check_none_lost(&mut self.world.run, &self.world.shards);
        self.verify();
        self.world.run.report.virtual_us = self.world.run.now_us();
    }

    /// While the failure of a journal is being recorded, its records count: the process may crash.
    fn crash_before_mark(&mut self) {
        if !self.world.journal.is_recording_failure() {
            return;
        }
        let has_ups = !ups_volumes(&self.world).is_empty();
        match self.world.run.dice.below(300) {
            0 if !has_ups => self.crash(Crash::Power),
            1 if !has_ups => self.crash(Crash::Process),
            2 => self.world.kill.schedule(&mut self.world.run),
            _ => {}
        }
    }

    /// Kills the process if a kill between two events is due. Returns whether it has been killed,
    /// here or within a call.
    fn is_killed(&mut self) -> bool {
        if !self.is_draining() && self.world.kill.is_due_after_event() {
            self.world.kill.kill(&self.world.shards);
        }
        self.world.kill.is_dead()
    }

    /// The recovery in progress.
    pub(super) const fn recovery(&mut self) -> &mut Recovery {
        &mut self.recovery
    }

    /// Whether only memory has data that a failed journal held, and no UPS protects it.
    pub(super) fn is_draining(&self) -> bool {
        let plan = &self.world.run.plan;
        self.world.journal.undrained().iter().any(|&volume| !plan.volume(volume).ups)
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.world.run.is_ok()
    }

    pub(super) fn step(&mut self) {
        match self.world.run.next_event() {
            Event::Client(client) => self.client(client),
            Event::Payload(at) => {
                let staging = self.world.requests.end_payload(at);
                self.world.worker = staging.worker;
                let dispatcher = &mut self.dispatchers[usize::from(staging.worker)];
                staging.end(&mut self.world, dispatcher);
                self.world.send_ios();
            }
            Event::Complete(io) => {
                self.world.requests.check_progress(&mut self.world.run);
                for (shard, id, result) in self.world.end_step(io) {
                    let worker = self.any_worker();
                    self.on_worker(worker, |dispatcher, world| {
                        dispatcher.complete(world, shard, id, result);
                    });
                }
            }
            Event::Flushed(flush) => {
                let World { run, device, expected, .. } = &mut self.world;
                let (worker, job, result) = device.end_flush(run, &mut expected.faults, flush);
                self.on_worker(worker, |dispatcher, world| dispatcher.flushed(world, job, result));
            }
            Event::Journal => self.world.journal.end_write(&mut self.world.run),
            Event::Release(held) => {
                let World { run, shards, requests, .. } = &mut self.world;
                requests.end_reply(run, shards, held);
            }
            Event::Answer(worker, answer) => {
                self.on_worker(worker, |dispatcher, world| dispatcher.answer(world, answer));
            }
            Event::Tick => self.tick(),
        }
        if self.world.run.report.events.is_multiple_of(EVENTS_PER_CHECK) {
            self.world.self_check();
        }
    }

    pub(super) fn any_worker(&mut self) -> u8 {
        self.world.run.dice.below(self.dispatchers.len() as u64) as u8
    }

    pub(super) fn on_worker(
        &mut self,
        worker: u8,
        call: impl FnOnce(&mut Dispatcher<World>, &mut World),
    ) {
        self.world.worker = worker;
        call(&mut self.dispatchers[usize::from(worker)], &mut self.world);
        self.world.send_ios();
    }

    fn tick(&mut self) {
        for shard in 0..self.world.shards.len() {
            if self.world.shards[shard].shard.needs_tick() {
                // Read state, pace and log distance only influence writeback: any values must work.
                let reading = self.world.run.dice.chance(500_000);
                let pace = plan::draw_pace(&mut self.world.run.dice);
                for volume in self.world.run.plan.volume_ids() {
                    let World { run, shards, journal, .. } = &mut self.world;
                    let shard = &mut shards[shard].shard;
                    if shard.has_volume(volume) {
                        let (left, all) = journal.distance(run, volume);
                        let volume = shard.volume_mut(volume);
                        volume.set_reading(reading);
                        volume.set_pace(pace);
                        volume.set_log_distance(left, all);
                    }
                }
                let worker = self.any_worker();
                self.on_worker(worker, |dispatcher, world| dispatcher.tick(world, shard));
            }
        }
        self.world.size_sometimes();
        self.world.step_resizes();
        if self.world.kill.is_dead() {
            // The next process gets a copy of the pool from the moment of the kill.
            return;
        }
        let World { run, shards, integrity, expected, .. } = &mut self.world;
        integrity.patrol(run, shards, expected);
        self.world.restore_lost();
        self.maintain_journal();
        self.maintain_power();
        self.world.run.schedule_tick();
    }

    /// Submits requests for checkpoints, and for the writeback that follows the failure of a
    /// journal.
    fn maintain_journal(&mut self) {
        let World { run, requests, journal, .. } = &mut self.world;
        let mut volumes = journal.begin_checkpoint(run);
        if journal.has_failed() {
            let undrained = journal.undrained().iter();
            volumes.extend(undrained.filter(|volume| !requests.has_internal_request(**volume)));
        }
        for volume in volumes {
            let urgent = self.world.journal.has_failed() || self.world.run.dice.chance(300_000);
            let kind = RequestKind::Checkpoint { urgent };
            self.submit_anywhere(INTERNAL, volume, kind, WHOLE);
        }
        let World { run, shards, journal, .. } = &mut self.world;
        for (volume, kind) in journal.advance_retentions(run, shards) {
            self.submit_anywhere(INTERNAL, volume, kind, WHOLE);
        }
        if self.world.journal.replace_failed(&self.world.run, &mut self.world.expected) {
            self.world.volumes.iter_mut().for_each(Volume::forget_records);
        }
    }

    fn client(&mut self, client: u16) {
        if client >= POWER || self.world.run.report.operations >= self.operations {
            return;
        }
        self.administer();
        self.world.size_sometimes();
        self.world.resize_sometimes();
        self.world.change_share_sometimes();
        self.world.change_hold_out_sometimes();
        let World { run, shards, pins, freezes, .. } = &mut self.world;
        freezes.change(run, shards, pins);
        let World { run, shards, pool_shares, .. } = &mut self.world;
        pool_shares.change(run, shards);
        self.change_pins();
        let Run { plan, dice, .. } = &mut self.world.run;
        let state = &mut self.clients[usize::from(client)];
        let request = state.draw(plan, dice);
        let worker = state.worker;
        self.submit(worker, client, request);
    }

    fn submit(&mut self, worker: u8, client: u16, request: Request) {
        self.world.worker = worker;
        let dispatcher = &mut self.dispatchers[usize::from(worker)];
        self.payloads.submit(&mut self.world, dispatcher, client, request);
        self.world.send_ios();
    }

    pub(super) fn submit_anywhere(
        &mut self,
        client: u16,
        volume: VolumeId,
        kind: RequestKind,
        range: ByteRange,
    ) {
        let worker = self.any_worker();
        self.submit(worker, client, Request { volume, kind, range });
    }

    /// Changes settings occasionally, like an administrator.
    fn administer(&mut self) {
        let Run { plan, dice, .. } = &mut self.world.run;
        let volume = dice.below(plan.volumes.len() as u64) as u16;
        if dice.chance(plan.mode_change) {
            let mode = dice.pick(&Mode::ALL);
            self.set_mode(volume, mode);
        } else if dice.chance(plan.drop_clean) {
            // Drops only some lines, like a server that unlocks the shard between two steps.
            let (first, count) = (dice.below(64) as u32, dice.below(128) as u32);
            for shard in &mut self.world.shards {
                shard.shard.drop_clean(VolumeId(volume), first, count);
            }
        }
    }

    /// Changes pinned ranges occasionally, and reads some of their data into the pool.
    fn change_pins(&mut self) {
        let World { run, shards, pins, freezes, .. } = &mut self.world;
        pins.change(run, shards);
        freezes.record_pins(pins);
        if let Some(Request { volume, kind, range }) = pins.draw_preload(&run.plan) {
            self.submit_anywhere(LOADER, volume, kind, range);
        }
    }

    fn set_mode(&mut self, volume: u16, mode: Mode) {
        let run = &self.world.run;
        let state = &mut self.world.volumes[usize::from(volume)];
        // Only some machines drop the lines. Otherwise a bypassed volume with clean lines would be
        // rare.
        let empties = run.plan.drop_clean != 0;
        state.set_mode(mode, run.moment(), empties);
        let is_emptied = state.is_emptied();
        for shard in &mut self.world.shards {
            shard.shard.volume_mut(VolumeId(volume)).set_mode(mode);
            if is_emptied {
                shard.shard.drop_clean(VolumeId(volume), 0, Slot::MAX);
            }
        }
        self.world.run.report.mode_changes += 1;
        self.world.run.log_event(volume, WHOLE, || format!("mode {mode}"));
    }

    /// Processes events until nothing is in flight.
    fn converge(&mut self, message: &str) {
        let until = self.world.run.now_us() + CONVERGE_US_MAX;
        while self.is_ok() && self.is_busy() {
            if self.world.run.now_us() > until {
                let waiting = self.world.requests.any_waiting();
                let place = waiting.map(|r| (r.volume.0, r.range.offset / SECTOR_BYTES));
                let count = self.world.requests.waiting();
                self.world.run.violate(
                    place,
                    format!("{message}: {count} in flight, the first is {waiting:?}"),
                );
                return;
            }
            self.step();
        }
    }

    fn is_busy(&self) -> bool {
        !self.world.requests.is_idle()
            || !self.world.device.is_idle()
            || !self.world.journal.is_idle()
            || self.dispatchers.iter().any(|dispatcher| dispatcher.in_flight() > 0)
    }

    /// Rewrites lost data. After that it must no longer be lost.
    fn rewrite_lost(&mut self) {
        for volume in self.world.run.plan.volume_ids() {
            let size = self.world.run.plan.volume(volume).bytes();
            for range in self.world.expected.losses.lines(volume, size) {
                let kind = RequestKind::Write { fua: false };
                self.submit_anywhere(VERIFIER, volume, kind, range);
            }
        }
    }

    /// The final checks: all reads are right, a flush brings everything to the disks, and no
    /// resources are left in use.
    fn verify(&mut self) {
        let errors = self.world.run.report.errors;
        for volume in self.world.run.plan.volume_ids() {
            let size = self.world.run.plan.volume(volume).bytes();
            for offset in (0..size).step_by(VERIFY_BYTES as usize) {
                let range = ByteRange::new(offset, VERIFY_BYTES.min(size - offset));
                self.submit_anywhere(VERIFIER, volume, RequestKind::Read, range);
                self.converge("a read of the final check is not answered");
            }
            self.submit_anywhere(VERIFIER, volume, RequestKind::Flush, WHOLE);
            self.converge("a flush of the final check is not answered");
            self.submit_anywhere(VERIFIER, volume, RequestKind::Destage, WHOLE);
            self.converge("the final destage is not answered");
        }
        if !self.is_ok() {
            return;
        }
        if self.world.run.report.errors > errors {
            self.world.run.violate(None, "a request failed after all faults were healed".into());
        }
        let World { run, device, expected, .. } = &mut self.world;
        let moment = run.moment() + 1;
        let is_right =
            |oracle: &mut Oracle, sector, found| oracle.check_read(sector, found, moment);
        expected.check_contents(run, "after the last flush", &device.contents(), is_right);
        for volume in run.plan.volume_ids() {
            let disk = device.disk(volume);
            let mut both = disk.content().iter().zip(disk.stable());
            if let Some(sector) = both.position(|(now, stable)| now != stable) {
                let place = Some((volume.0, sector as u64));
                run.violate(place, "after a flush, the disk has unstable data".into());
            }
        }
        self.world.collect_counters();
        self.finish_pool_shares();
        self.finish_sizing();
        self.finish_resizes();
        self.check_leaks();
    }

    fn check_leaks(&mut self) {
        for at in 0..self.world.shards.len() {
            if let Some(left) = self.world.shards[at].leaks() {
                return self.world.run.violate(None, format!("shard {at}: {left}"));
            }
            let shard = &mut self.world.shards[at].shard;
            for volume in self.world.run.plan.volume_ids() {
                shard.remove_volume(volume);
            }
            if shard.usage().resident_lines != 0 {
                let message = format!("shard {at} holds lines of removed volumes");
                self.world.run.violate(None, message);
                return;
            }
        }
    }
}
