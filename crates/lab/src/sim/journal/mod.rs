//! The journal of the simulated machine.
//!
//! The log is the shipped one, in its shipped format, on a device that tears the write in flight
//! when power fails. When the journal fails, the machine behaves like the runtime: it writes a
//! failure mark, which survives everything, so that the records are never used again, and destages
//! the dirty data.

mod media;
mod stuck;

use super::device::Device;
use super::device::disk::sectors_of;
use super::expected::Expected;
use super::faults::{FaultKind, Faults};
use super::plan::{Plan, VolumePlan};
use super::requests::PendingRequest;
use super::run::{Event, Run};
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::journal::{Restored, read_piece, record};
use crate::harness::shard::PooledShard;
use forebay_engine::{Answer, JournalRequest, Outcome, Part, PartId};
use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET};
use forebay_journal::{Found, Log, LogAdmission, LogWrite, pieces_to_restore};
use forebay_protect::{JournalState, Retention};
use forebay_types::{Durability, IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::worker_of;
use media::Media;

/// The maximum time to record that a device is lost, or that the journal has failed.
const RECORD_US_MAX: u64 = 20_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalPlan {
    pub segment_bytes: u64,
    pub segments: u64,
    pub buffer_bytes: usize,
    pub buffers: usize,
    /// Whether each write waits for its record; otherwise only flushes do.
    pub ack: bool,
    pub latency_us_max: u64,
    /// The probability that a write fails, and the journal with it.
    pub error: Ppm,
    /// Whether it has two devices; the probabilities that a write fails on one of them, and that
    /// one is missing at a start.
    pub mirrored: bool,
    pub device_error: Ppm,
    pub missing: Ppm,
    /// Whether a failed journal is replaced by a new one.
    pub replaced: bool,
    /// The probability per tick of a checkpoint that is not necessary.
    pub checkpoint: Ppm,
}

impl JournalPlan {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let buffer_bytes = dice.pick(&[16 << 10, 64 << 10, 256 << 10]);
        let segment_bytes = buffer_bytes as u64 * dice.pick(&[1, 2, 8]);
        Self {
            segment_bytes,
            segments: dice.pick(&[8, 16, 64]),
            buffer_bytes,
            buffers: dice.pick(&[2, 3, 6]),
            ack: dice.chance(700_000),
            latency_us_max: dice.pick(&[0, 100, 5_000]),
            error: dice.pick(&[0, 0, 500, 10_000]),
            mirrored: dice.chance(400_000),
            device_error: dice.pick(&[0, 1_000, 20_000]),
            missing: dice.pick(&[0, 400_000]),
            replaced: dice.chance(500_000),
            checkpoint: dice.pick(&[0, 20_000, 300_000]),
        }
    }

    /// The log of a new journal; `numbers` are those of its devices if it is mirrored.
    fn format(&self, id: u8, numbers: [u64; 2]) -> JournalState<Vec<u8>> {
        let geometry = Geometry { segment_bytes: self.segment_bytes, segments: self.segments };
        let log = Log::format(JournalId([id; 16]), self.size_bytes(), geometry, self.buffers());
        JournalState::new(if self.mirrored { log.mirrored(numbers) } else { log })
    }

    const fn size_bytes(&self) -> u64 {
        LOG_OFFSET + self.segment_bytes * self.segments
    }

    fn buffers(&self) -> Vec<Vec<u8>> {
        vec![vec![0; self.buffer_bytes]; self.buffers]
    }
}

/// A write in progress, during which power may fail.
enum Writing {
    /// To the devices, with a result for each.
    Log(LogWrite<Vec<u8>>, [IoResult; 2]),
    /// The record of the remaining members, after the loss of a device.
    Members(Vec<u64>),
    /// The failure mark.
    Mark,
}

/// A journal, shared by the volumes that have one.
pub(crate) struct Journal {
    plan: JournalPlan,
    /// The sizes of the volumes that it keeps, in bytes.
    sizes: Vec<Option<u64>>,
    state: JournalState<Vec<u8>>,
    media: Media,
    writing: Option<Writing>,
    /// The journal's numbers of the volumes.
    numbers: Vec<Option<u16>>,
    /// The failure mark: the records must not be used. It survives the process.
    is_marked: bool,
    journals_made: u8,
    /// Volumes with a checkpoint in progress, by their numbers in the journal.
    checkpoints: Vec<u16>,
    /// Data that failed checkpoints left dirty, until the journal has retained it.
    stuck: Vec<(VolumeId, Retention)>,
    /// Volumes whose dirty data has not been destaged since the journal failed.
    undrained: Vec<VolumeId>,
    failed_at: u32,
    /// Power is failing: a failure of the journal would be a second fault.
    is_spared: bool,
    /// The next write fails.
    fails_next: bool,
}

fn identity(volume: usize) -> [u8; 32] {
    [volume as u8; 32]
}

impl Journal {
    /// A new journal, durable on its devices.
    pub(crate) fn new(machine: &Plan) -> Self {
        let plan = machine.journal;
        let size = |volume: &VolumePlan| volume.journal.then_some(volume.bytes());
        let mut media = Media::new(plan.size_bytes(), plan.mirrored);
        let mut journal = Self {
            plan,
            sizes: machine.volumes.iter().map(size).collect(),
            state: plan.format(0, media.new_numbers()),
            media,
            writing: None,
            numbers: Vec::new(),
            is_marked: false,
            journals_made: 0,
            checkpoints: Vec::new(),
            stuck: Vec::new(),
            undrained: Vec::new(),
            failed_at: 0,
            is_spared: false,
            fails_next: false,
        };
        journal.attach(true);
        journal.restored();
        journal
    }

    fn attach(&mut self, writes: bool) {
        let log = &mut self.state.log;
        let numbers = self.sizes.iter().enumerate().map(|(volume, size)| {
            size.map(|size| {
                let number = log.add_volume("volume", size, identity(volume));
                number.expect("there are few volumes")
            })
        });
        self.numbers = numbers.collect();
        while let Some(write) = self.state.log.poll_write() {
            (0..2).for_each(|device| self.media.put(&write, device, &mut |_| writes));
            self.state.handle_written(write, [Ok(()); 2]);
        }
        self.media.record_members(self.state.log.superblock().members.numbers());
    }

    fn number(&self, volume: VolumeId) -> Option<u16> {
        self.numbers[usize::from(volume.0)]
    }

    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.number(volume).is_some()
    }

    /// The volumes that it keeps, with their numbers.
    fn volumes(&self) -> impl Iterator<Item = (VolumeId, u16)> {
        let numbers = self.numbers.iter().enumerate();
        numbers.filter_map(|(at, number)| number.map(|number| (VolumeId(at as u16), number)))
    }

    /// Whether each write of a volume waits for its record.
    pub(crate) const fn keeps_each_write(&self) -> bool {
        self.plan.ack
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.writing.is_none()
            && (self.state.log.is_idle() || self.has_failed())
            && self.checkpoints.is_empty()
            && self.stuck.is_empty()
            && self.undrained.is_empty()
    }

    /// The answer of the journal to a request for a permit, if it keeps the volume.
    pub(crate) fn admit(&mut self, part: &Part) -> Option<(LogAdmission, Durability)> {
        let number = self.number(part.volume)?;
        let durability = if self.plan.ack { Durability::Ack } else { Durability::Flush };
        Some((self.state.admit(number, part), durability))
    }

    /// Whether the journal has failed, and its records are void.
    pub(crate) const fn is_abandoned(&self) -> bool {
        self.state.is_abandoned()
    }

    /// Whether an erase may begin.
    pub(crate) fn admit_erase(&mut self, part: &Part) -> bool {
        let Some(number) = self.number(part.volume) else { return true };
        self.state.admit_erase(number, part)
    }

    /// Gives back a permit that will not be used.
    pub(crate) fn withdraw(&mut self) {
        self.state.log.withdraw();
    }

    /// Whether everything recorded so far is durable; otherwise the part is answered later.
    pub(crate) fn barrier(&mut self, part: PartId) -> Result<bool, IoError> {
        self.state.barrier(part)
    }

    /// Carries out a request, as the runtime does under the shard's lock.
    pub(crate) fn take_request(
        &mut self,
        run: &mut Run,
        faults: &mut Faults,
        one: &PooledShard,
        request: &JournalRequest,
        payload: &[u8],
    ) -> Option<Answer> {
        let JournalRequest { part, volume, range, ref kind } = *request;
        if Sabotage::skipping_record(kind).is_some_and(|bug| run.strikes_always(bug)) {
            return Some(Answer { part, outcome: Outcome::Done(Ok(())) });
        }
        run.log_event(volume.0, range, || format!("journal: {kind:?} {range}"));
        let number = self.number(volume).expect("the volume has a number");
        let answer = record(&mut self.state, number, request, payload, one);
        match answer.map(|answer| answer.outcome) {
            Some(Outcome::Done(Ok(()))) => run.report.journal_unneeded += 1,
            Some(Outcome::JournalFailed) => run.report.journal_refused += 1,
            Some(Outcome::Done(Err(IoError::NoSpace))) => {
                run.report.journal_no_space += 1;
                faults.add(run.moment(), volume, FaultKind::NoRoom, range);
            }
            _ => {}
        }
        answer
    }

    /// Starts the next write of the journal.
    pub(crate) fn pump(&mut self, run: &mut Run) {
        if self.writing.is_some() {
            return;
        }
        // Power is lost before a failure is recorded.
        if self.state.poll_failure().is_some() && !self.is_spared {
            self.writing = Some(Writing::Mark);
            let latency_us = run.dice.range(0, RECORD_US_MAX);
            run.schedule(latency_us, Event::Journal);
            return;
        }
        if let Some(members) = self.state.log.unrecorded_loss() {
            self.writing = Some(Writing::Members(members));
            let latency_us = run.dice.range(0, RECORD_US_MAX);
            run.schedule(latency_us, Event::Journal);
            return;
        }
        let Some(write) = self.state.log.poll_write() else { return };
        let plan = self.plan;
        let spared = run.healed || self.is_spared;
        let fails = !spared && run.dice.chance(plan.error) || std::mem::take(&mut self.fails_next);
        let mut results = [if fails { Err(IoError::Io) } else { Ok(()) }; 2];
        let is_one = !run.healed && self.state.log.devices() == [true; 2];
        if is_one && run.dice.chance(plan.device_error) {
            results[run.dice.below(2) as usize] = Err(IoError::Io);
        }
        self.writing = Some(Writing::Log(write, results));
        run.report.journal_writes += 1;
        let latency_us = run.dice.range(0, plan.latency_us_max);
        run.schedule(latency_us, Event::Journal);
    }

    /// Power is failing: the write in flight succeeds, and the journal does not fail before the
    /// crash. One device of a mirrored journal may.
    pub(crate) fn spare(&mut self) {
        self.is_spared = true;
        if let Some(Writing::Log(_, results)) = &mut self.writing {
            *results = [Ok(()); 2];
        }
    }

    /// Mains is back, or the journal may fail after a dump.
    pub(crate) fn unspare(&mut self, run: &mut Run) {
        self.is_spared = false;
        self.pump(run);
    }

    /// The write in flight, or the next one, fails.
    pub(crate) fn fail_next_write(&mut self) {
        self.fails_next = true;
    }

    pub(crate) fn end_write(&mut self, run: &mut Run) {
        match self.writing.take().expect("a write is in flight") {
            Writing::Log(write, results) => self.end_log_write(run, write, results),
            Writing::Members(members) => {
                self.record_members(run, members);
                self.state.log.confirm_loss_recorded();
            }
            Writing::Mark => self.end_mark(run),
        }
        self.pump(run);
    }

    /// Records durably that a device is lost.
    fn record_members(&mut self, run: &Run, members: Vec<u64>) {
        if !run.strikes_always(Sabotage::SkipMemberRecord) {
            self.media.record_members(members);
        }
    }

    fn end_log_write(&mut self, run: &mut Run, write: LogWrite<Vec<u8>>, results: [IoResult; 2]) {
        let lose_batch = run.strikes(Sabotage::LoseBatch);
        let tear_batch = run.strikes(Sabotage::TearBatch);
        let lose_superblock = run.strikes_always(Sabotage::LoseSuperblock);
        let dice = &mut run.dice;
        let is_batch = write.batch().is_some();
        let half = write.len / SECTOR_BYTES as usize / 2;
        for (device, result) in results.into_iter().enumerate() {
            let keep = if result.is_ok() { 1_000_000 } else { dice.pick(&[0, 500_000, 1_000_000]) };
            self.media.put(&write, device, &mut |sector| {
                let lost = match is_batch {
                    true => lose_batch || tear_batch && sector >= half,
                    false => lose_superblock,
                };
                !lost && dice.chance(keep)
            });
        }
        let before = self.state.log.devices();
        self.state.handle_written(write, results);
        run.report.journal_losses += u64::from(before != self.state.log.devices());
        self.deliver(run);
    }

    /// The failure mark is durable: the volumes continue without the journal.
    fn end_mark(&mut self, run: &mut Run) {
        if self.is_spared {
            return;
        }
        self.is_marked = !run.strikes_always(Sabotage::SkipMark);
        self.failed_at = run.moment();
        self.checkpoints.clear();
        self.stuck.clear();
        self.undrained = self.volumes().map(|(volume, _)| volume).collect();
        run.report.journal_failures += 1;
        self.state.handle_failure_recorded();
        self.deliver(run);
    }

    /// Schedules the answers that are due.
    fn deliver(&mut self, run: &mut Run) {
        let mut answers = Vec::new();
        self.state.poll_answers(&mut answers);
        for answer in answers {
            run.schedule(0, Event::Answer(worker_of(answer.part), answer));
        }
    }

    /// The space that the log has left for a volume, and its maximum; sometimes none, as if another
    /// checkpoint had to begin at once.
    pub(crate) fn distance(&self, run: &mut Run, volume: VolumeId) -> (u64, u64) {
        let Some(number) = self.number(volume) else { return (1, 1) };
        let (left, all) = forebay_journal::distance(&self.state.log, number);
        if run.dice.chance(50_000) { (0, all) } else { (left, all) }
    }

    /// Begins a checkpoint if one is due; returns the volumes to destage.
    pub(crate) fn begin_checkpoint(&mut self, run: &mut Run) -> Vec<VolumeId> {
        let wanted = self.state.log.wants_checkpoint() || run.dice.chance(self.plan.checkpoint);
        let Some(checkpoint) = wanted.then(|| self.state.log.begin_checkpoint()).flatten() else {
            return Vec::new();
        };
        if run.strikes_always(Sabotage::CheckpointEarly) {
            checkpoint
                .volumes
                .iter()
                .for_each(|&number| self.state.log.end_checkpoint(number, Ok(())));
            return Vec::new();
        }
        run.report.checkpoints += 1;
        let volumes = self.volumes().filter(|(_, number)| checkpoint.volumes.contains(number));
        let volumes = volumes.map(|(volume, _)| volume).collect();
        self.checkpoints.extend(checkpoint.volumes);
        volumes
    }

    /// Handles the end of a checkpoint's destage.
    pub(crate) fn destaged(
        &mut self,
        run: &mut Run,
        shards: &[PooledShard],
        pending: &PendingRequest,
        result: IoResult,
    ) {
        let (volume, submitted) = (pending.request.volume, pending.submitted);
        if self.state.log.failed().is_some() {
            // A destage that began before the failure does not cover everything that the journal
            // held.
            if result.is_ok() && submitted > self.failed_at {
                self.undrained.retain(|&undrained| undrained != volume);
            }
            return;
        }
        let Some(number) = self.number(volume) else { return };
        if !self.checkpoints.contains(&number) {
            return;
        }
        match result {
            Ok(()) => self.end_checkpoint(run, number, Ok(())),
            Err(_) => self.begin_retention(shards, volume, number),
        }
    }

    fn end_checkpoint(&mut self, run: &mut Run, number: u16, result: IoResult) {
        self.checkpoints.retain(|&other| other != number);
        if self.has_failed() {
            return;
        }
        self.state.log.end_checkpoint(number, result);
        self.deliver(run);
        self.pump(run);
    }

    /// Replaces a failed journal after everything that only the journal held has been destaged.
    /// Returns whether it was replaced. A process that adopts a pool does not do that before it
    /// serves: what it records again belongs to the journal that it has found.
    pub(crate) fn replace_failed(&mut self, run: &Run, expected: &mut Expected) -> bool {
        let failed = self.is_abandoned();
        // A new journal would have no records of the writes made under the UPS.
        let may_replace = self.plan.replaced && !expected.is_adopting() && !run.plan.has_both();
        let replaces = failed && self.undrained.is_empty() && may_replace;
        if replaces {
            self.reset();
            expected.mark_unrecoverable(&run.plan);
        }
        replaces
    }

    /// The log as a crash leaves it; `None` if the failure mark forbids its use.
    pub(crate) fn crash(&mut self, run: &mut Run, expected: &mut Expected) -> Option<Found> {
        (self.is_spared, self.fails_next) = (false, false);
        let dice = &mut run.dice;
        match self.writing.take() {
            Some(Writing::Log(write, _)) => {
                for device in 0..2 {
                    let keep = dice.pick(&[0, 300_000, 900_000, 1_000_000]);
                    self.media.put(&write, device, &mut |_| dice.chance(keep));
                }
            }
            Some(Writing::Members(members)) if dice.chance(500_000) => {
                self.record_members(run, members);
            }
            Some(Writing::Members(_) | Writing::Mark) | None => {}
        }
        self.checkpoints.clear();
        self.stuck.clear();
        self.undrained.clear();
        if self.is_marked {
            self.reset();
            expected.mark_unrecoverable(&run.plan);
            return None;
        }
        let found = self.media.start(run, self.plan.missing);
        if !found.damage.is_empty() {
            let message = format!("a torn write is reported as damage: {:?}", found.damage);
            run.violate(None, message);
            return None;
        }
        Some(found)
    }

    /// Resumes the log. Returns false if it must be drained to the disks first.
    pub(crate) fn resume(&mut self, run: &Run, found: &Found) -> bool {
        let loses = run.strikes_always(Sabotage::LoseGeneration);
        let Ok(log) = Log::resume(found, self.plan.buffers()) else { return false };
        self.state = JournalState::new(log);
        self.attach(!loses);
        true
    }

    /// The data that the disk of a volume may lack, according to the journal.
    pub(crate) fn image(&self, found: &Found, volume: VolumeId) -> Vec<Restored> {
        let Some(number) = self.number(volume) else { return Vec::new() };
        let pieces = pieces_to_restore(&found.records, number).into_iter();
        pieces.map(|piece| read_piece(piece, |at| self.media.stamp(at))).collect()
    }

    /// Writes the journal's data to the disks directly.
    pub(crate) fn drain_to(&self, found: &Found, device: &mut Device) {
        for volume in (0..self.numbers.len()).map(|at| VolumeId(at as u16)) {
            let disk = device.disk_mut(volume);
            for (piece, stamps) in self.image(found, volume) {
                for (sector, stamp) in sectors_of(piece.range).zip(stamps) {
                    disk.write(sector, stamp);
                }
            }
            disk.flush();
        }
    }

    /// Starts a new journal on new devices.
    fn reset(&mut self) {
        self.journals_made = self.journals_made.wrapping_add(1);
        self.state = self.plan.format(self.journals_made, self.media.new_numbers());
        self.media.erase();
        self.is_marked = false;
        self.writing = None;
        self.attach(true);
        self.restored();
    }

    pub(crate) fn self_check(&self) {
        self.state.log.self_check();
    }

    /// Reads the current content of the log, if it is readable without damage.
    pub(crate) fn read_log(&mut self) -> Option<Found> {
        self.media.read(self.state.log.devices())
    }

    /// Serves all volumes from now on: everything found has been restored.
    pub(crate) fn restored(&mut self) {
        self.numbers.iter().flatten().for_each(|&number| self.state.serve(number));
    }

    /// Whether the failure of the journal is being recorded.
    pub(crate) const fn is_recording_failure(&self) -> bool {
        matches!(self.writing, Some(Writing::Mark))
    }

    /// Whether the journal has failed before any volume was served: the start fails.
    pub(crate) fn fails_start(&self) -> bool {
        self.state.unrecorded_failure().is_some()
    }

    pub(crate) const fn has_failed(&self) -> bool {
        self.state.log.failed().is_some()
    }

    /// The volumes whose dirty data has not been destaged since the journal failed.
    pub(crate) fn undrained(&self) -> &[VolumeId] {
        &self.undrained
    }

    /// Whether everything is recorded durably.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_written() && self.state.log.is_membership_recorded()
    }

    /// Whether everything is recorded on the devices in use. Until the loss of a device is recorded
    /// as well, the next start may find only that device and accept it.
    pub(crate) fn is_written(&self) -> bool {
        !self.has_failed() && self.state.log.first_pending_record() == self.state.log.next_record()
    }

    /// The shipped state of the journal.
    pub(crate) const fn state(&self) -> &JournalState<Vec<u8>> {
        &self.state
    }
}
