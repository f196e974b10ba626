//! The journal of the simulated machine.
//!
//! The log is the shipped one, in its shipped format, on a device that tears the write in flight
//! when power fails. When the journal fails, the machine behaves like the runtime: it writes a
//! failure mark, which survives everything, so that the records are never used again, and destages
//! the dirty data. A mirrored journal has two devices that tear, fail and are missing
//! independently.

use super::device::{Fault, FaultKind};
use super::disk::sectors_of;
use super::plan::{Plan, VolumePlan};
use super::run::Event;
use super::stuck::Stuck;
use super::world::World;
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::journal::{LabLog, admit, answer_to_notification, answer_to_record, record};
use crate::harness::memory::read_stamp;
use crate::harness::oracle::ZERO;
use forebay_engine::{Answer, Note, Part, PartId};
use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET};
use forebay_journal::{
    Extent, Found, Image, Log, LogWrite, MirrorDevice, Notification, ReadAt, RecordOutcome,
    RecoverError, Source, Step, recover, recover_mirrored,
};
use forebay_types::{IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::{Admission, worker_of};

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
            error: dice.pick(&[0, 0, 0, 500]),
            mirrored: dice.chance(400_000),
            device_error: dice.pick(&[0, 1_000, 20_000]),
            missing: dice.pick(&[0, 400_000]),
            replaced: dice.chance(500_000),
            checkpoint: dice.pick(&[0, 20_000, 300_000]),
        }
    }

    /// The log of a new journal; `numbers` are those of its devices if it is mirrored.
    fn format(&self, id: u8, numbers: [u64; 2]) -> LabLog {
        let geometry = Geometry { segment_bytes: self.segment_bytes, segments: self.segments };
        let log = Log::format(JournalId([id; 16]), self.size_bytes(), geometry, self.buffers());
        if self.mirrored { log.mirrored(numbers) } else { log }
    }

    const fn size_bytes(&self) -> u64 {
        LOG_OFFSET + self.segment_bytes * self.segments
    }

    fn buffers(&self) -> Vec<Vec<u8>> {
        vec![vec![0; self.buffer_bytes]; self.buffers]
    }
}

struct Device(Vec<u8>);

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> IoResult {
        let at = position as usize;
        buffer.copy_from_slice(self.0.get(at..at + buffer.len()).ok_or(IoError::Io)?);
        Ok(())
    }
}

/// A journal, shared by the volumes that have one.
pub(crate) struct Journal {
    plan: JournalPlan,
    /// The sizes of the volumes that it keeps, in bytes.
    sizes: Vec<Option<u64>>,
    pub(super) log: LabLog,
    devices: [Device; 2],
    /// The device that is read after a start.
    reads: usize,
    /// The recorded members of a mirrored journal; they survive the process.
    recorded_members: Vec<u64>,
    numbers_used: u64,
    writing: Option<(LogWrite<Vec<u8>>, [IoResult; 2])>,
    /// The journal's numbers of the volumes.
    pub numbers: Vec<Option<u16>>,
    /// The failure mark: the records must not be used. It survives the process.
    is_marked: bool,
    journals_made: u8,
    /// Volumes with a checkpoint in progress, by their numbers in the journal.
    checkpoints: Vec<u16>,
    /// Data that failed checkpoints left dirty, until the journal has retained it.
    pub(super) stuck: Vec<Stuck>,
    /// Volumes whose dirty data has not been destaged since the journal failed.
    pub undrained: Vec<u16>,
    failed_at: u32,
}

fn identity(volume: usize) -> [u8; 32] {
    [volume as u8; 32]
}

impl Journal {
    /// A new journal, durable on its devices.
    pub(crate) fn new(machine: &Plan) -> Self {
        let plan = machine.journal;
        let size = |volume: &VolumePlan| volume.journal.then_some(volume.bytes());
        let blank =
            |is_there: bool| Device(vec![0; plan.size_bytes() as usize * usize::from(is_there)]);
        let mut journal = Self {
            plan,
            sizes: machine.volumes.iter().map(size).collect(),
            log: plan.format(0, [1, 2]),
            devices: [blank(true), blank(plan.mirrored)],
            reads: 0,
            recorded_members: Vec::new(),
            numbers_used: 2,
            writing: None,
            numbers: Vec::new(),
            is_marked: false,
            journals_made: 0,
            checkpoints: Vec::new(),
            stuck: Vec::new(),
            undrained: Vec::new(),
            failed_at: 0,
        };
        journal.attach(true);
        journal
    }

    fn attach(&mut self, writes: bool) {
        let log = &mut self.log;
        let numbers = self.sizes.iter().enumerate().map(|(volume, size)| {
            size.map(|size| {
                let number = log.add_volume("volume", size, identity(volume));
                number.expect("there are few volumes")
            })
        });
        self.numbers = numbers.collect();
        let mut notifications = Vec::new();
        while let Some(write) = self.log.poll_write() {
            (0..2).for_each(|device| self.put(&write, device, &mut |_| writes));
            self.log.complete(write, Ok(()), &mut notifications);
        }
        self.recorded_members = self.log.superblock().members.numbers();
        assert!(notifications.is_empty());
    }

    fn put(
        &mut self,
        write: &LogWrite<Vec<u8>>,
        device: usize,
        survives: &mut impl FnMut(usize) -> bool,
    ) {
        if !write.goes_to(device) {
            return;
        }
        for (index, sector) in write.bytes_for(device).chunks(SECTOR_BYTES as usize).enumerate() {
            if survives(index) {
                let at = write.position as usize + index * SECTOR_BYTES as usize;
                self.devices[device].0[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }

    pub(super) fn number(&self, volume: VolumeId) -> Option<u16> {
        self.numbers[usize::from(volume.0)]
    }

    /// Whether each write of a volume waits for its record.
    pub(crate) const fn keeps_each_write(&self) -> bool {
        self.plan.ack
    }

    pub(crate) fn is_idle(&self) -> bool {
        (self.writing.is_none() && self.log.is_idle() || self.log.failed().is_some())
            && self.checkpoints.is_empty()
            && self.stuck.is_empty()
            && self.undrained.is_empty()
    }
}

impl World {
    pub(crate) fn has_journal(&self, volume: VolumeId) -> bool {
        self.journal.number(volume).is_some()
    }

    pub(crate) fn admit_to_journal(&mut self, part: &Part, fua: bool) -> Admission {
        let journal = &mut self.journal;
        let Some(number) = journal.number(part.volume) else { return Admission::Free };
        admit(&mut journal.log, number, part, journal.plan.ack || fua)
    }

    /// Records a note, as the runtime does under the shard's lock.
    pub(crate) fn take_note(&mut self, shard: usize, note: Note, payload: &[u8]) -> Option<Answer> {
        let Note { part, volume, range, ref kind } = note;
        if Sabotage::skipping_note(kind).is_some_and(|bug| self.run.strikes_always(bug)) {
            return answer_to_record(part, RecordOutcome::Unneeded);
        }
        let text = format!("journal: note {kind:?} {range}");
        self.run.log_event(volume.0, range, || text);
        let journal = &mut self.journal;
        let number = journal.number(volume).expect("the volume has a number");
        let noted = record(&mut journal.log, number, &note, payload, &self.shards[shard]);
        self.run.report.journal_needless += u64::from(noted == RecordOutcome::Unneeded);
        self.run.report.journal_refused += u64::from(noted == RecordOutcome::Refused);
        if noted == RecordOutcome::NoSpace {
            self.run.report.journal_unsaid += 1;
            let (kind, moment) = (FaultKind::NoRoom, self.run.moment());
            self.device.faults.push(Fault { moment, volume: volume.0, kind, range });
        }
        answer_to_record(part, noted)
    }

    /// Starts the next write of the journal.
    pub(crate) fn pump_journal(&mut self) {
        let skips_record = self.run.strikes_always(Sabotage::SkipMemberRecord);
        let journal = &mut self.journal;
        if journal.writing.is_some() {
            return;
        }
        if let Some(members) = journal.log.unrecorded_loss() {
            if !skips_record {
                journal.recorded_members = members;
            }
            journal.log.loss_recorded();
        }
        let Some(write) = journal.log.poll_write() else { return };
        let plan = journal.plan;
        let spared = self.run.healed || self.power.failing;
        let fails = !spared && self.run.dice.chance(plan.error);
        let mut results = [if fails { Err(IoError::Io) } else { Ok(()) }; 2];
        let is_one = !self.run.healed && journal.log.devices() == [true; 2];
        if is_one && self.run.dice.chance(plan.device_error) {
            results[self.run.dice.below(2) as usize] = Err(IoError::Io);
        }
        journal.writing = Some((write, results));
        self.run.report.journal_writes += 1;
        let latency_us = self.run.dice.range(0, plan.latency_us_max);
        self.run.schedule(latency_us, Event::Journal);
    }

    /// Makes the journal's write in flight succeed.
    pub(crate) fn spare_journal(&mut self) {
        if let Some((_, results)) = &mut self.journal.writing {
            *results = [Ok(()); 2];
        }
    }

    pub(crate) fn end_journal_write(&mut self) {
        let lose_batch = self.run.strikes(Sabotage::LoseBatch);
        let tear_batch = self.run.strikes(Sabotage::TearBatch);
        let lose_superblock = self.run.strikes_always(Sabotage::LoseSuperblock);
        let marks = !self.run.strikes_always(Sabotage::SkipMark);
        let dice = &mut self.run.dice;
        let journal = &mut self.journal;
        let (write, results) = journal.writing.take().expect("a write is in flight");
        let is_batch = write.batch().is_some();
        let half = write.len / SECTOR_BYTES as usize / 2;
        for (device, result) in results.into_iter().enumerate() {
            let keep = if result.is_ok() { 1_000_000 } else { dice.pick(&[0, 500_000, 1_000_000]) };
            journal.put(&write, device, &mut |sector| {
                let lost = match is_batch {
                    true => lose_batch || tear_batch && sector >= half,
                    false => lose_superblock,
                };
                !lost && dice.chance(keep)
            });
        }
        let before = journal.log.devices();
        let mut notifications = Vec::new();
        journal.log.complete_on(write, results, &mut notifications);
        self.run.report.journal_losses += u64::from(before != journal.log.devices());
        if journal.log.failed().is_some() {
            // The mark is durable before any part continues without the journal.
            journal.is_marked = marks;
            journal.failed_at = self.run.moment();
            journal.checkpoints.clear();
            journal.stuck.clear();
            let numbers = journal.numbers.iter().enumerate();
            let journaled = numbers.filter(|(_, number)| number.is_some());
            journal.undrained = journaled.map(|(volume, _)| volume as u16).collect();
            self.run.report.journal_failures += 1;
        }
        self.deliver(notifications);
        self.pump_journal();
    }

    /// Begins a checkpoint if one is due; returns the volumes to destage.
    pub(crate) fn begin_checkpoint(&mut self) -> Vec<u16> {
        let journal = &mut self.journal;
        let wanted =
            journal.log.wants_checkpoint() || self.run.dice.chance(journal.plan.checkpoint);
        let Some(checkpoint) = wanted.then(|| journal.log.begin_checkpoint()).flatten() else {
            return Vec::new();
        };
        if self.run.strikes_always(Sabotage::CheckpointEarly) {
            let journal = &mut self.journal;
            checkpoint.volumes.iter().for_each(|&number| journal.log.checkpointed(number, Ok(())));
            return Vec::new();
        }
        let journal = &mut self.journal;
        self.run.report.checkpoints += 1;
        let numbers = journal.numbers.iter().enumerate();
        let volumes = numbers
            .filter(|(_, number)| number.is_some_and(|n| checkpoint.volumes.contains(&n)))
            .map(|(volume, _)| volume as u16)
            .collect();
        journal.checkpoints.extend(checkpoint.volumes);
        volumes
    }

    /// Handles the end of a checkpoint's destage.
    pub(crate) fn destaged(&mut self, volume: VolumeId, submitted: u32, result: IoResult) {
        let journal = &mut self.journal;
        if journal.log.failed().is_some() {
            // A destage that began before the failure does not cover everything that the journal
            // held.
            if result.is_ok() && submitted > journal.failed_at {
                journal.undrained.retain(|&undrained| undrained != volume.0);
            }
            return;
        }
        let Some(number) = journal.number(volume) else { return };
        if !journal.checkpoints.contains(&number) {
            return;
        }
        match result {
            Ok(()) => self.end_checkpoint(number, Ok(())),
            Err(_) => self.begin_retention(volume, number),
        }
    }

    pub(super) fn end_checkpoint(&mut self, number: u16, result: IoResult) {
        let journal = &mut self.journal;
        journal.checkpoints.retain(|&other| other != number);
        journal.log.checkpointed(number, result);
        let mut notifications = Vec::new();
        journal.log.poll_notifications(&mut notifications);
        self.deliver(notifications);
        self.pump_journal();
    }

    fn deliver(&mut self, notifications: Vec<(PartId, Notification)>) {
        for answer in notifications.into_iter().map(answer_to_notification) {
            self.run.schedule(0, Event::Answer(worker_of(answer.part), answer));
        }
    }

    /// Replaces a failed journal after everything that only the journal held has been destaged.
    pub(crate) fn replace_journal(&mut self) {
        let journal = &mut self.journal;
        let failed = journal.log.failed().is_some();
        if failed && journal.undrained.is_empty() && journal.plan.replaced {
            journal.reset();
            self.mark_lost_unrecoverable();
        }
    }

    /// Marks lost data as unrecoverable: only the journal that was replaced had it.
    pub(crate) fn mark_lost_unrecoverable(&mut self) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.journal) {
            volume.unrecoverable.extend(volume.lost.keys());
        }
    }

    /// The log as a crash leaves it; `None` if the failure mark forbids its use.
    pub(crate) fn crash_journal(&mut self) -> Option<Found> {
        let dice = &mut self.run.dice;
        let journal = &mut self.journal;
        if let Some((write, _)) = journal.writing.take() {
            for device in 0..2 {
                let keep = dice.pick(&[0, 300_000, 900_000, 1_000_000]);
                journal.put(&write, device, &mut |_| dice.chance(keep));
            }
        }
        journal.checkpoints.clear();
        journal.stuck.clear();
        journal.undrained.clear();
        if journal.is_marked {
            journal.reset();
            self.mark_lost_unrecoverable();
            return None;
        }
        let found = if journal.plan.mirrored {
            self.start_mirrored()
        } else {
            let size = journal.plan.size_bytes();
            recover(&mut journal.devices[0], size).expect("the superblock is valid")
        };
        if !found.damage.is_empty() {
            let message = format!("a torn write is reported as damage: {:?}", found.damage);
            self.run.violate(None, message);
            return None;
        }
        Some(found)
    }

    /// Opens the devices of a mirrored journal, one of which may be missing.
    fn start_mirrored(&mut self) -> Found {
        let dice = &mut self.run.dice;
        let journal = &mut self.journal;
        let size_bytes = journal.plan.size_bytes();
        let mut missing = dice.chance(journal.plan.missing).then(|| dice.below(2) as usize);
        let numbers_used = [journal.numbers_used + 1, journal.numbers_used + 2];
        journal.numbers_used += 2;
        let recorded_members = journal.recorded_members.clone();
        let is_on_record = |_, number| recorded_members.contains(&number);
        let mut recovered = loop {
            let [a, b] = &mut journal.devices;
            let half = |device, at| {
                (missing != Some(at)).then_some(MirrorDevice { device: device as _, size_bytes })
            };
            let halves = [half(a, 0), half(b, 1)];
            match recover_mirrored(halves, numbers_used, &is_on_record, false) {
                Ok(recovered) => break recovered.expect("there is a journal"),
                Err(RecoverError::MayBeStale { .. }) if missing.is_some() => missing = None,
                Err(error) => panic!("{error}"),
            }
        };
        for step in recovered.steps() {
            match step {
                Step::Record(members) => journal.recorded_members = members,
                Step::Write { to, position, bytes } => {
                    let at = position as usize;
                    journal.devices[to].0[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Copy(copy) => {
                    let range = copy.position as usize..(copy.position + copy.len) as usize;
                    let bytes = journal.devices[copy.from].0[range.clone()].to_vec();
                    journal.devices[copy.to].0[range].copy_from_slice(&bytes);
                }
            }
        }
        self.run.report.journal_alone += u64::from(recovered.in_sync() != [true; 2]);
        self.run.report.journal_rewritten += u64::from(recovered.joins().is_some());
        recovered.joined(numbers_used);
        journal.reads = usize::from(!recovered.in_sync()[0]);
        recovered.found
    }

    /// Resumes the log. Returns false if it must be drained to the disks first.
    pub(crate) fn resume_journal(&mut self, found: &Found) -> bool {
        let loses = self.run.strikes_always(Sabotage::LoseGeneration);
        let journal = &mut self.journal;
        let Ok(log) = Log::resume(found, journal.plan.buffers()) else { return false };
        journal.log = log;
        journal.attach(!loses);
        true
    }

    /// The data that the disk of a volume may lack, according to the journal.
    pub(crate) fn journal_image(&self, found: &Found, volume: usize) -> Vec<(Extent, Vec<u64>)> {
        let journal = &self.journal;
        let Some(number) = journal.numbers[volume] else { return Vec::new() };
        let image = Image::of_volume(&found.records, number);
        let stamps = |extent: &Extent| {
            let count = extent.range.len / SECTOR_BYTES;
            let of = |sector: u64| match extent.source {
                Source::Write { record, offset } => {
                    let at = found.records[record].position + offset + sector * SECTOR_BYTES;
                    read_stamp(&journal.devices[journal.reads].0, at)
                }
                Source::Zero { .. } | Source::Discard => ZERO,
            };
            (0..count).map(of).collect()
        };
        image.extents().map(|extent| (extent, stamps(&extent))).collect()
    }

    /// Writes the journal's data to the disks directly.
    pub(crate) fn drain_to_disk(&mut self, found: &Found) {
        for volume in 0..self.volumes.len() {
            for (extent, stamps) in self.journal_image(found, volume) {
                if extent.source == Source::Discard {
                    continue;
                }
                for (sector, stamp) in sectors_of(extent.range).zip(stamps) {
                    self.volumes[volume].disk.write(sector, stamp);
                }
            }
            self.volumes[volume].disk.flush();
        }
    }
}

impl Journal {
    /// Starts a new journal on new devices.
    fn reset(&mut self) {
        self.journals_made = self.journals_made.wrapping_add(1);
        self.numbers_used += 2;
        let numbers = [self.numbers_used - 1, self.numbers_used];
        self.log = self.plan.format(self.journals_made, numbers);
        self.devices.iter_mut().for_each(|device| device.0.fill(0));
        self.reads = 0;
        self.is_marked = false;
        self.writing = None;
        self.attach(true);
    }

    pub(crate) fn self_check(&self) {
        self.log.self_check();
    }

    /// Reads the current content of the log, if it is readable without damage.
    pub(crate) fn read_log(&mut self) -> Option<Found> {
        self.reads = self.log.devices().iter().position(|&counts| counts)?;
        let size = self.plan.size_bytes();
        recover(&mut self.devices[self.reads], size).ok().filter(|found| found.damage.is_empty())
    }

    /// Records that everything found has been restored.
    pub(crate) fn restored(&mut self) {
        self.numbers.iter().flatten().for_each(|&number| self.log.restored(number));
    }

    pub(crate) const fn has_failed(&self) -> bool {
        self.log.failed().is_some()
    }
}
