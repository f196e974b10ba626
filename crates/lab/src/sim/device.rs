//! The way to the disks and back: delays, reordering, stalls, faults, and what is checked there.
//!
//! Checked of each I/O: it is inside its volume; its memory covers it exactly; no other I/O under
//! way changes the same sectors; what it writes was written to that very sector by a client; and
//! its memory does not change while it is under way.

use super::Sabotage;
use super::disk::sectors_of;
use super::memory::Memory;
use super::oracle::{POISON, ZERO, show, stamp};
use super::queue::Event;
use super::slab::Slab;
use super::world::{World, pool_index};
use forebay_engine::{IoAction, IoId, IoVerb, Place, Segment, Slot};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::{JobId, Mergeable, merge};

/// What kind of I/O failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Read,
    Write,
    Erase,
    Flush,
    /// Sectors were lost in the pool until then.
    Lost,
    /// A full journal could not be told that the disk has a change.
    NoRoom,
}

/// An I/O that was made to fail: a request may fail for this reason and for no other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub moment: u32,
    pub volume: u16,
    pub kind: FaultKind,
    pub range: ByteRange,
}

/// An I/O under way.
pub(crate) struct Io {
    shard: usize,
    action: IoAction,
    memory: Option<(Memory, u64)>,
    /// What a write found in its memory when it was started, or an early read on the disk.
    stamps: Vec<u64>,
    /// Whether the disk does its part at the beginning rather than at the end.
    early: bool,
    /// What it would write is lost, so it is not done at all.
    refused: bool,
    result: IoResult,
}

/// A flush of a disk under way.
pub(crate) struct FlushJob {
    pub worker: u8,
    pub volume: u16,
    pub job: JobId,
    early: bool,
    result: IoResult,
}

/// The I/Os between the shards and the disks.
#[derive(Default)]
pub(crate) struct Device {
    under_way: Slab<Io>,
    /// Started during the call at hand, and not yet sent.
    started: Vec<Io>,
    pub faults: Vec<Fault>,
    /// Faults of operations that have other I/Os under way, and end with the last of them.
    latched: Vec<(usize, IoId, Fault)>,
    /// From now on nothing fails.
    pub healed: bool,
}

impl Mergeable for Io {
    fn verb(&self) -> IoVerb {
        self.action.verb
    }

    fn volume(&self) -> VolumeId {
        self.action.volume
    }

    fn range(&self) -> ByteRange {
        self.action.range
    }
}

impl Io {
    pub(crate) const fn new(shard: usize, action: IoAction, memory: Option<(Memory, u64)>) -> Self {
        let stamps = Vec::new();
        Self { shard, action, memory, stamps, early: false, refused: false, result: Ok(()) }
    }

    const fn kind(&self) -> FaultKind {
        match self.action.verb {
            IoVerb::Read => FaultKind::Read,
            IoVerb::Write { .. } => FaultKind::Write,
            IoVerb::Discard | IoVerb::Zero { .. } => FaultKind::Erase,
        }
    }

    /// The slots that it is about.
    fn slots(&self) -> Vec<Slot> {
        let slot = |segment: &Segment| match segment.place {
            Place::Slot { slot, .. } => Some(slot),
            _ => None,
        };
        let mut slots: Vec<Slot> = self.action.segments.iter().filter_map(slot).collect();
        slots.dedup();
        slots
    }

    /// Where its memory is, for people.
    fn places(&self) -> String {
        let place = |segment: &Segment| match segment.place {
            Place::Slot { slot, .. } => format!("slot {slot}"),
            Place::Private { .. } => "private".into(),
            Place::Discard => "nowhere".into(),
        };
        let mut places: Vec<String> = self.action.segments.iter().map(place).collect();
        places.dedup();
        if places.len() > 12 {
            places.truncate(11);
            places.push("and so on".into());
        }
        places.join(", ")
    }

    fn changes(&self, other: &Self) -> bool {
        self.action.volume == other.action.volume
            && self.action.verb != IoVerb::Read
            && other.action.verb != IoVerb::Read
            && self.action.range.overlaps(other.action.range)
    }
}

impl Device {
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.len() == 0 && self.started.is_empty()
    }

    /// An I/O has ended: what has failed, or has failed before in the same operation, counts now.
    fn record(&mut self, io: &Io, moment: u32) {
        let (shard, id) = (io.shard, io.action.id);
        if io.result.is_err() {
            let (volume, range) = (io.action.volume.0, io.action.range);
            let fault = Fault { moment, volume, kind: io.kind(), range };
            self.faults.push(fault);
            self.latched.push((shard, id, fault));
        }
        if self.latched.is_empty() {
            return;
        }
        let last = !self.under_way.iter().any(|io| io.shard == shard && io.action.id == id);
        if last {
            let faults = &mut self.faults;
            self.latched.retain(|&(its_shard, its_id, fault)| {
                let ours = its_shard == shard && its_id == id;
                if ours {
                    faults.push(Fault { moment, ..fault });
                }
                !ours
            });
        }
    }
}

impl World {
    /// An I/O comes from a shard. It is sent with the others of the same call.
    pub(crate) fn take_io(&mut self, mut io: Io) {
        let (volume, range) = (io.action.volume.0, io.action.range);
        let size = self.volumes[usize::from(volume)].sectors * SECTOR_BYTES;
        let bytes: u64 = io.action.segments.iter().map(|s| u64::from(s.len)).sum();
        let has_memory = matches!(io.action.verb, IoVerb::Read | IoVerb::Write { .. });
        if !range.fits(size)
            || !range.is_sector_aligned()
            || bytes != if has_memory { range.len } else { 0 }
        {
            let action = &io.action;
            self.violate(None, format!("an I/O must lie in its volume and memory: {action:?}"));
            return;
        }
        if matches!(io.action.verb, IoVerb::Write { .. }) {
            let slots = io.slots();
            io.refused = !self.verify_destage(io.shard, &slots, &io.action.seals);
            io.stamps = self.memory_of(&io);
            if !io.refused {
                self.check_written(&io);
            }
        }
        self.note(volume, range, || {
            format!("shard {}: {:?} {range} {}", io.shard, io.action.verb, io.places())
        });
        self.report.ios += 1;
        self.device.started.push(io);
    }

    fn memory_of(&self, io: &Io) -> Vec<u64> {
        let mut stamps = Vec::with_capacity((io.action.range.len / SECTOR_BYTES) as usize);
        let memory = io.memory.as_ref().map(|(memory, base)| (memory, *base));
        for segment in &io.action.segments {
            self.stamps_at(io.shard, segment.place, segment.len, memory, &mut stamps);
        }
        stamps
    }

    /// Nothing goes to the disk but what a client has written to that place.
    fn check_written(&mut self, io: &Io) {
        let volume = io.action.volume.0;
        let oracle = &self.volumes[usize::from(volume)].oracle;
        let mut sectors = sectors_of(io.action.range).zip(&io.stamps);
        let wrong = sectors.find(|&(sector, &stamp)| !oracle.was_written(sector, stamp));
        if let Some((sector, &found)) = wrong {
            let message = format!(
                "only what a client wrote to this sector may go to the disk, not {}",
                show(found)
            );
            self.violate(Some((volume, sector)), message);
        }
    }

    /// Sends what the last call has started.
    pub(crate) fn send_ios(&mut self) {
        self.pump_journal();
        self.turn += 1;
        if self.device.started.is_empty() {
            return;
        }
        let mut started = std::mem::take(&mut self.device.started);
        let mut runs: Vec<(usize, u64)> = Vec::new();
        if self.plan.merge {
            merge(&mut started, |run| runs.push((run.len(), 0)));
        } else {
            runs.resize(started.len(), (1, 0));
        }
        for (_, time_us) in &mut runs {
            *time_us = self.now_us + self.draw_latency();
        }
        let mut ios = started.into_iter();
        for (count, time_us) in runs {
            // The disk does a joined I/O in one go; each part of it fails or not by itself, as
            // if whoever joined them had tried them one by one.
            for io in ios.by_ref().take(count) {
                self.send_io(io, time_us);
            }
        }
    }

    fn draw_latency(&mut self) -> u64 {
        let plan = &self.plan.device;
        if !self.device.healed && self.dice.chance(plan.stall) {
            return self.dice.range(1_000_000, 100_000_000);
        }
        self.dice.range(plan.latency_us_min, plan.latency_us_max)
    }

    fn send_io(&mut self, mut io: Io, time_us: u64) {
        let (volume, range) = (io.action.volume.0, io.action.range);
        if self.device.under_way.iter().any(|other| io.changes(other)) {
            let place = Some((volume, range.offset / SECTOR_BYTES));
            self.violate(place, format!("two I/Os under way change the same sectors: {range}"));
        }
        io.early = self.dice.chance(500_000);
        io.result = self.draw_result(&io);
        if io.refused {
            (io.early, io.result) = (true, Err(IoError::Io));
        } else if io.early {
            self.do_io(&mut io);
        }
        let at = self.device.under_way.insert(io);
        self.queue.push(time_us, Event::Complete(at));
    }

    fn draw_result(&mut self, io: &Io) -> IoResult {
        if self.device.healed {
            return Ok(());
        }
        let plan = &self.plan.device;
        let ppm = match io.kind() {
            FaultKind::Read => plan.read_error,
            FaultKind::Write => plan.write_error,
            _ => plan.erase_error,
        };
        let disk = &self.volumes[usize::from(io.action.volume.0)].disk;
        let is_bad = match io.kind() {
            FaultKind::Read => disk.is_bad(io.action.range, false),
            FaultKind::Write => disk.is_bad(io.action.range, true),
            _ => false,
        };
        if is_bad || self.dice.chance(ppm) { Err(IoError::Io) } else { Ok(()) }
    }

    /// The disk does its part of an I/O.
    fn do_io(&mut self, io: &mut Io) {
        if io.action.verb == IoVerb::Read {
            self.do_read(io);
            return;
        }
        let lost = matches!(io.action.verb, IoVerb::Write { .. })
            && self.strikes(Sabotage::LoseWrite)
            || matches!(io.action.verb, IoVerb::Zero { .. }) && self.strikes(Sabotage::IgnoreZero);
        if !lost {
            // What fails may have been done in part.
            let done = if io.result.is_ok() { 1_000_000 } else { self.dice.pick(&PARTIAL) };
            self.do_change(io, done);
        }
    }

    fn do_read(&mut self, io: &mut Io) {
        let volume = usize::from(io.action.volume.0);
        let mut range = io.action.range;
        if self.strikes(Sabotage::SwapReads) {
            let other = self.device.under_way.iter().find(|other| {
                other.action.verb == IoVerb::Read
                    && usize::from(other.action.volume.0) == volume
                    && other.action.range.len >= range.len
            });
            range =
                other.map_or(range, |other| ByteRange::new(other.action.range.offset, range.len));
        }
        let sectors = sectors_of(range);
        let content = self.volumes[volume].disk.content();
        io.stamps.clear();
        io.stamps.extend_from_slice(&content[sectors.start as usize..sectors.end as usize]);
        if io.result.is_err() {
            io.stamps.fill(POISON);
        }
    }

    /// Changes each of the I/O's sectors on the disk with the probability `done`.
    fn do_change(&mut self, io: &Io, done: u32) {
        let volume = io.action.volume.0;
        let is_write = matches!(io.action.verb, IoVerb::Write { .. });
        let shift = u64::from(is_write && self.strikes(Sabotage::MisdirectWrite));
        let torn = is_write && self.strikes(Sabotage::TearWrite);
        let sectors = sectors_of(io.action.range);
        let half = sectors.start + (sectors.end - sectors.start).div_ceil(2);
        for (at, sector) in sectors.enumerate() {
            if done < 1_000_000 && !self.dice.chance(done) || torn && sector >= half {
                continue;
            }
            let content = match io.action.verb {
                IoVerb::Zero { .. } => ZERO,
                IoVerb::Discard => match self.dice.below(4) {
                    0 => stamp(volume, sector, 0),
                    1 => continue,
                    _ => ZERO,
                },
                _ => io.stamps[at],
            };
            let world = &mut self.volumes[usize::from(volume)];
            if sector + shift < world.sectors {
                world.disk.write(sector + shift, content, &mut self.dice);
            }
        }
    }

    /// An I/O ends. Returns what its dispatcher is to be told.
    pub(crate) fn end_io(&mut self, at: u32) -> (usize, IoId, IoResult) {
        let mut io = self.device.under_way.remove(at).expect("an I/O ends once");
        let (volume, range) = (io.action.volume.0, io.action.range);
        if let IoVerb::Write { fua } = io.action.verb {
            if self.memory_of(&io) != io.stamps {
                let place = Some((volume, range.offset / SECTOR_BYTES));
                let message = format!("the memory of a write changed under way: {range}");
                self.violate(place, message);
            }
            if !io.early {
                self.do_io(&mut io);
            }
            let fua = fua && !self.strikes(Sabotage::LoseFua);
            if fua && io.result.is_ok() {
                self.volumes[usize::from(volume)].disk.stabilize(sectors_of(range));
            }
        } else if !io.early {
            self.do_io(&mut io);
        }
        if io.action.verb == IoVerb::Read {
            self.fill_memory(&io);
        }
        self.device.record(&io, self.moment);
        let mut result = io.result;
        self.note(volume, range, || format!("{:?} {range} ends: {result:?}", io.action.verb));
        let hide = match io.kind() {
            FaultKind::Read => self.strikes(Sabotage::HideReadError),
            FaultKind::Write => self.strikes(Sabotage::HideWriteError),
            _ => false,
        };
        if hide {
            result = Ok(());
        }
        (io.shard, io.action.id, result)
    }

    fn fill_memory(&mut self, io: &Io) {
        let mut at = 0;
        for segment in &io.action.segments {
            let count = (u64::from(segment.len) / SECTOR_BYTES) as usize;
            let stamps = &io.stamps[at..at + count];
            at += count;
            match (segment.place, &io.memory) {
                (Place::Slot { slot, offset }, _) => {
                    let to = pool_index(slot, offset);
                    self.shards[io.shard].pool[to..to + count].copy_from_slice(stamps);
                }
                (Place::Private { offset }, Some((memory, base))) => {
                    let wrong = *base > 0 && self.strikes(Sabotage::WrongBase);
                    let base = if wrong { base - SECTOR_BYTES } else { *base };
                    let places = (base + u64::from(offset)..).step_by(SECTOR_BYTES as usize);
                    let fits = stamps.iter().zip(places).all(|(&s, to)| memory.set(to, s));
                    if !fits {
                        self.violate(
                            None,
                            format!("a read ends outside its memory: {:?}", io.action),
                        );
                    }
                }
                (Place::Private { .. }, None) => {
                    self.violate(None, format!("a read has no memory to go to: {:?}", io.action));
                }
                (Place::Discard, _) => {}
            }
        }
    }

    /// A disk is to flush its volatile cache.
    pub(crate) fn start_flush(&mut self, volume: VolumeId, job: JobId) {
        let early = self.dice.chance(500_000);
        let failed = !self.device.healed && self.dice.chance(self.plan.device.flush_error);
        let result = if failed { Err(IoError::Io) } else { Ok(()) };
        let lost = self.strikes(Sabotage::FlushEarly);
        let flush = FlushJob { worker: self.worker, volume: volume.0, job, early, result };
        if early && !lost {
            self.do_flush(&flush);
        }
        let early = early || lost;
        let at = self.flushes.insert(FlushJob { early, ..flush });
        let time_us = self.now_us + self.draw_latency();
        self.queue.push(time_us, Event::Flushed(at));
    }

    fn do_flush(&mut self, flush: &FlushJob) {
        // A flush that fails may have done its work or not.
        if flush.result.is_ok() || self.dice.chance(500_000) {
            self.volumes[usize::from(flush.volume)].disk.flush();
        }
    }

    /// A disk's flush ends.
    pub(crate) fn end_flush(&mut self, at: u32) -> (u8, JobId, IoResult) {
        let flush = self.flushes.remove(at).expect("a flush ends once");
        if !flush.early {
            self.do_flush(&flush);
        }
        let range = ByteRange::new(0, 0);
        if flush.result.is_err() {
            let (moment, volume, kind) = (self.moment, flush.volume, FaultKind::Flush);
            self.device.faults.push(Fault { moment, volume, kind, range });
        }
        self.note(flush.volume, range, || format!("the disk has flushed: {:?}", flush.result));
        (flush.worker, flush.job, flush.result)
    }

    /// The process dies: each I/O under way is done wholly, partly or not at all.
    pub(crate) fn cut_ios(&mut self) {
        let ios: Vec<Io> = self.device.under_way.drain().collect();
        for io in ios.iter().filter(|io| !io.early && io.action.verb != IoVerb::Read) {
            let done = self.dice.pick(&[0, 300_000, 700_000, 1_000_000]);
            self.do_change(io, done);
        }
        self.device.started.clear();
        self.device.latched.clear();
        self.flushes.drain().for_each(drop);
    }
}

/// Probabilities of each sector of a failed I/O to have been changed.
const PARTIAL: [u32; 3] = [0, 500_000, 1_000_000];
