//! Power-fail tests of the journal, between writes and in the middle of a write.
//!
//! A model keeps every record in order. After a crash, the disk and the journal together must show,
//! for all sectors at once, the state after some prefix of the records, which includes every record
//! reported as durable. If the disk may get data before its record is durable, this holds for each
//! sector separately, as for a disk with a volatile cache.
//!
//! With two devices, writes tear independently; a device fails, is missing at startup, is replaced
//! by a blank one, or has a damaged batch; and power fails between any two recovery steps. A device
//! that is older than the acknowledged state must never be accepted.

#![allow(clippy::unwrap_used)]

use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind, Superblock};
use forebay_journal::{
    Checkpoint, Found, Image, Log, LogAdmission, LogEntry, LogError, LogWrite, MirrorDevice,
    MirrorStep, Notification, ReadAt, RecordOutcome, RecoverError, RecoveredLog, Source, beat,
    recover, recover_mirrored,
};
use forebay_types::{ByteRange, IoError};

const GEOMETRY: Geometry = Geometry { segment_bytes: 32 << 10, segments: 8 };
const SIZE: u64 = LOG_OFFSET + 8 * (32 << 10);
const JOURNAL: JournalId = JournalId([7; 16]);
const BUFFER: usize = 16 << 10;
const SECTORS: u64 = 40;
const DISK: [u8; 32] = [1; 32];

/// A pseudo-random number generator (xorshift64*; Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

struct Device {
    bytes: Vec<u8>,
    /// Whether all writes fail until the next start.
    is_dead: bool,
}

impl Device {
    fn blank() -> Self {
        Self { bytes: vec![0; SIZE as usize], is_dead: false }
    }

    /// A device with an unfinished journal.
    fn claimed() -> Self {
        let mut device = Self::blank();
        for at in [0, 65536] {
            device.bytes[at..at + 4096].copy_from_slice(&Superblock::unfinished());
        }
        device
    }
}

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let at = position as usize;
        buffer.copy_from_slice(self.bytes.get(at..at + buffer.len()).ok_or(IoError::Io)?);
        Ok(())
    }
}

type Write = LogWrite<Vec<u8>>;

struct Machine {
    random: Random,
    devices: [Device; 2],
    is_mirrored: bool,
    /// The members recorded in the state directory.
    on_record: Vec<u64>,
    /// Member numbers used so far.
    drawn: u64,
    log: Log<Vec<u8>, u64>,
    volume: u16,
    writing: Option<Write>,
    /// Every record, with the new value of its sectors.
    history: Vec<(LogEntry, u64)>,
    acknowledged: usize,
    /// The content of the disk.
    disk: Vec<u64>,
    checkpoint: Option<(Checkpoint, usize)>,
    destages_early: bool,
    /// Whether a permit is in use.
    has_permit: bool,
    crashes: usize,
    drains: usize,
    refused: usize,
    /// Checkpoints that ended with a fence, or with data forwarded.
    fences: usize,
    forwards: usize,
    /// Logs that have failed.
    replaced: usize,
    /// For each sector, the length of the history at its last change acknowledged without a record.
    alone_acknowledged: Vec<usize>,
    /// Waiters of write-throughs that are not acknowledged yet.
    through: Vec<u64>,
    losses: usize,
    /// The damaged device, if any. The other device stays intact until this one is repaired.
    damaged: Option<usize>,
    /// Counts of starts with one device, refused starts, rebuilt devices and repaired batches.
    alone: usize,
    stale: usize,
    rebuilt: usize,
    repaired: usize,
}

fn buffers() -> Vec<Vec<u8>> {
    (0..3).map(|_| vec![0xcc; BUFFER]).collect()
}

fn apply(disk: &mut [u64], (entry, value): &(LogEntry, u64)) {
    for sector in entry.range.offset / 512..entry.range.end() / 512 {
        match entry.kind {
            RecordKind::Write => disk[sector as usize] = *value,
            RecordKind::Zero { .. } => disk[sector as usize] = 0,
            // As for a write-through, the disk had the data before the record was made.
            RecordKind::Forget => disk[sector as usize] = *value,
            RecordKind::Discard => {}
        }
    }
}

impl Machine {
    fn new(seed: u64) -> Self {
        let is_mirrored = !seed.is_multiple_of(3);
        let mut log = Log::format(JOURNAL, SIZE, GEOMETRY, buffers());
        if is_mirrored {
            log = log.mirrored([1, 2]);
        }
        let volume = log.add_volume("disk", SECTORS * 512, DISK).expect("it is the first");
        let mut machine = Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            devices: [Device::claimed(), Device::claimed()],
            is_mirrored,
            on_record: if is_mirrored { vec![1, 2] } else { Vec::new() },
            drawn: 2,
            log,
            volume,
            writing: None,
            history: Vec::new(),
            acknowledged: 0,
            disk: vec![0; SECTORS as usize],
            checkpoint: None,
            destages_early: seed.is_multiple_of(2),
            has_permit: false,
            crashes: 0,
            drains: 0,
            refused: 0,
            fences: 0,
            forwards: 0,
            replaced: 0,
            alone_acknowledged: vec![0; SECTORS as usize],
            through: Vec::new(),
            losses: 0,
            damaged: None,
            alone: 0,
            stale: 0,
            rebuilt: 0,
            repaired: 0,
        };
        // The superblock is durable before anything depends on it.
        machine.start_write();
        machine.end_write();
        machine
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..46 => self.record(),
            46..50 => self.barrier(),
            50..70 => self.start_write(),
            70..90 => self.end_write(),
            90..95 => self.checkpoint(),
            95..97 => self.end_checkpoint(),
            97 => beat(&mut self.log),
            _ if self.random.below(4) == 0 => self.crash(),
            _ => {}
        }
        self.log.self_check();
    }

    fn record(&mut self) {
        let sector = self.random.below(SECTORS - 8);
        let range = ByteRange::new(sector * 512, (1 + self.random.below(8)) * 512);
        let value = self.history.len() as u64 + 1;
        let kind = match self.random.below(10) {
            0 => RecordKind::Zero { unmap: false },
            1 => RecordKind::Forget,
            _ => RecordKind::Write,
        };
        let entry = LogEntry { kind, volume: self.volume, range };
        let waiter = value;
        if kind == RecordKind::Write {
            match self.log.admit(self.volume, range.len, waiter) {
                // Use the permit later, or return it.
                LogAdmission::Granted if self.random.below(20) == 0 => {
                    if std::mem::replace(&mut self.has_permit, true) {
                        self.log.withdraw();
                    }
                    return;
                }
                LogAdmission::Granted => {}
                LogAdmission::Wait => return,
                LogAdmission::Full => {
                    self.refused += 1;
                    return;
                }
                LogAdmission::Failed => panic!("no write has failed"),
            }
            let payload: Vec<u8> = (0..range.len / 8).flat_map(|_| value.to_le_bytes()).collect();
            // Without a waiter, only a barrier acknowledges the record.
            let waiter = (self.random.below(2) == 0).then_some(waiter);
            assert!(self.log.append(entry, payload.chunks(700), waiter));
            if std::mem::take(&mut self.has_permit) {
                self.log.withdraw();
            }
        } else {
            let outcome = self.log.record(entry, Some(waiter));
            if kind == RecordKind::Forget && outcome != RecordOutcome::NoSpace {
                apply(&mut self.disk, &(entry, value));
            }
            match outcome {
                RecordOutcome::Recorded if kind == RecordKind::Forget => self.through.push(waiter),
                RecordOutcome::Recorded => {}
                RecordOutcome::NoSpace => return,
                RecordOutcome::Unneeded => self.acknowledge_alone(range, waiter as usize),
                RecordOutcome::Refused => {
                    apply(&mut self.disk, &(entry, value));
                    self.acknowledge_alone(range, waiter as usize);
                }
            }
        }
        self.history.push((entry, value));
    }

    /// Requests that everything recorded is durable. A barrier does not cover requests that are not
    /// acknowledged, such as write-throughs that wait for the superblock.
    fn barrier(&mut self) {
        let upto = self.history.len();
        if self.through.is_empty() && self.log.barrier(upto as u64).expect("the log has not failed")
        {
            self.acknowledged = self.acknowledged.max(upto);
        }
    }

    /// Records that a change is on the disk's stable storage, with no older record in the log.
    fn acknowledge_alone(&mut self, range: ByteRange, upto: usize) {
        for sector in range.offset / 512..range.end() / 512 {
            self.alone_acknowledged[sector as usize] = upto;
        }
    }

    fn start_write(&mut self) {
        if let Some(members) = self.log.unrecorded_loss() {
            self.on_record = members;
            self.log.confirm_loss_recorded();
        } else if self.writing.is_none() {
            self.writing = self.log.poll_write();
        }
    }

    fn end_write(&mut self) {
        let Some(write) = self.writing.take() else { return };
        let mut results = [Ok(()); 2];
        for (at, result) in results.iter_mut().enumerate() {
            if !write.goes_to(at) {
                continue;
            }
            let both = self.log.devices() == [true; 2];
            self.devices[at].is_dead |= both && self.random.below(400) == 0;
            if self.devices[at].is_dead {
                *result = Err(IoError::Io);
            }
            let keep = if result.is_ok() { 101 } else { self.random.below(101) };
            self.put(&write, at, keep);
        }
        let before = self.log.devices();
        let mut notifications = Vec::new();
        self.log.complete_on(write, results, &mut notifications);
        if self.log.failed().is_some() {
            return self.replace(notifications);
        }
        self.losses += usize::from(before != self.log.devices());
        for (waiter, notification) in notifications {
            self.through.retain(|&other| other != waiter);
            match notification {
                Notification::Durable => self.acknowledged = self.acknowledged.max(waiter as usize),
                Notification::Retry => {}
                Notification::Lost(error) => panic!("one device is left: {error}"),
            }
        }
    }

    fn put(&mut self, write: &Write, device: usize, keep: u64) {
        for (index, sector) in write.bytes_for(device).chunks(512).enumerate() {
            if self.random.below(100) < keep {
                let at = write.position as usize + index * 512;
                self.devices[device].bytes[at..at + 512].copy_from_slice(sector);
            }
        }
    }

    /// Replaces the journal after both devices failed in one write; the disk then has everything.
    fn replace(&mut self, notifications: Vec<(u64, Notification)>) {
        let is_durable =
            |&(_, notification): &(u64, Notification)| notification == Notification::Durable;
        assert!(!notifications.iter().any(is_durable), "a failed write is not durable");
        self.replaced += 1;
        self.disk = self.state_after(self.history.len());
        self.acknowledged = self.history.len();
        self.checkpoint = None;
        self.through.clear();
        self.has_permit = false;
        self.devices = [Device::claimed(), Device::claimed()];
        let numbers = self.draw();
        self.on_record = numbers.to_vec();
        self.log = Log::format(JOURNAL, SIZE, GEOMETRY, buffers()).mirrored(numbers);
        assert_eq!(self.log.add_volume("disk", SECTORS * 512, DISK), Ok(self.volume));
        self.start_write();
        self.end_write();
    }

    fn draw(&mut self) -> [u64; 2] {
        self.drawn += 2;
        [self.drawn - 1, self.drawn]
    }

    fn checkpoint(&mut self) {
        if self.checkpoint.is_none()
            && let Some(checkpoint) = self.log.begin_checkpoint()
        {
            self.checkpoint = Some((checkpoint, self.history.len()));
        }
    }

    fn end_checkpoint(&mut self) {
        let Some((_, upto)) = self.checkpoint.take() else { return };
        let is_too_early = upto > self.acknowledged && !self.destages_early;
        if self.destages_early && self.random.below(4) == 0 {
            return self.end_stuck();
        }
        if is_too_early || self.random.below(5) == 0 {
            return self.log.end_checkpoint(self.volume, Err(IoError::Io));
        }
        // The disk may also get newer data than the checkpoint requires.
        let newest = if self.destages_early { self.history.len() } else { self.acknowledged };
        let upto = upto + self.random.below((newest.max(upto) - upto) as u64 + 1) as usize;
        self.disk = self.state_after(upto);
        for sector in 0..SECTORS as usize {
            let least = self.alone_acknowledged[sector];
            if least > upto {
                self.disk[sector] = self.state_after(least)[sector];
            }
        }
        // Write-throughs went to the disk at once.
        for (at, (entry, value)) in self.history.iter().enumerate().skip(upto) {
            let sectors = entry.range.offset / 512..entry.range.end() / 512;
            let is_newer = |&sector: &u64| at >= self.alone_acknowledged[sector as usize];
            if entry.kind == RecordKind::Forget {
                sectors.filter(is_newer).for_each(|sector| self.disk[sector as usize] = *value);
            }
        }
        self.log.end_checkpoint(self.volume, Ok(()));
    }

    /// Ends a checkpoint in which everything was destaged and flushed except some sectors.
    fn end_stuck(&mut self) {
        let since = self.log.next_record();
        let state = self.state_after(self.history.len());
        let from = self.random.below(SECTORS - 1);
        let stuck = from..from + 1 + self.random.below(3.min(SECTORS - from));
        for sector in (0..SECTORS).filter(|sector| !stuck.contains(sector)) {
            self.disk[sector as usize] = state[sector as usize];
        }
        let len = (stuck.end - stuck.start) * 512;
        if self.random.below(2) == 0
            || !self.log.can_forward(self.volume, len, stuck.end - stuck.start)
        {
            let kept = ByteRange::new(stuck.start * 512, len);
            self.fences += usize::from(self.log.fence(self.volume, since, &[kept], false));
            return self.log.end_checkpoint(self.volume, Err(IoError::Io));
        }
        for sector in stuck {
            if self.log.admit_forward(self.volume, 512) != LogAdmission::Granted {
                return self.log.end_checkpoint(self.volume, Err(IoError::Io));
            }
            let range = ByteRange::new(sector * 512, 512);
            let entry = LogEntry { kind: RecordKind::Write, volume: self.volume, range };
            let value = state[sector as usize];
            let payload = value.to_le_bytes().repeat(64);
            self.history.push((entry, value));
            let waiter = Some(self.history.len() as u64);
            assert!(self.log.append(entry, [&payload[..]].into_iter(), waiter));
        }
        let end = self.history.len();
        let replaced = self.replaced;
        while self.acknowledged < end {
            self.start_write();
            self.end_write();
        }
        self.forwards += 1;
        if self.replaced == replaced {
            self.log.end_checkpoint(self.volume, Ok(()));
        }
    }

    fn state_after(&self, records: usize) -> Vec<u64> {
        let mut state = vec![0; SECTORS as usize];
        self.history[..records].iter().for_each(|change| apply(&mut state, change));
        state
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.has_permit = false;
        self.checkpoint = None;
        self.through.clear();
        if let Some(write) = self.writing.take() {
            for at in (0..2).filter(|&at| write.goes_to(at)) {
                let keep = self.random.below(101);
                self.put(&write, at, keep);
            }
        }
        let mut found = if self.is_mirrored {
            match self.start() {
                Some(found) => found,
                // Power failed during recovery.
                None => return self.crash(),
            }
        } else {
            let found = recover(&mut self.devices[0], SIZE).expect("there is a journal");
            assert_eq!(found.damage, [], "a torn write is not damage");
            self.check(&found, 0);
            found
        };
        self.log = match Log::resume(&found, buffers()) {
            Ok(log) => log,
            Err(error) => {
                assert_eq!(error, LogError::DrainFirst);
                self.drains += 1;
                let from = usize::from(found.superblock.members.current[0] == 0);
                self.disk = self.replay(&found, if self.is_mirrored { from } else { 0 });
                found.drop_records();
                Log::resume(&found, buffers()).expect("an empty log can always be resumed")
            }
        };
        self.log.end_restore(self.volume);
        assert_eq!(self.log.add_volume("disk", SECTORS * 512, DISK), Ok(self.volume));
        // Power may also fail before the superblock of the new generation is durable.
        self.start_write();
        if self.random.below(3) == 0 {
            return self.crash();
        }
        self.end_write();
        while self.log.failed().is_none() && !self.log.is_superblock_durable() {
            self.start_write();
            self.end_write();
        }
        if self.is_mirrored && self.random.below(5) == 0 {
            return self.crash();
        }
        self.on_record = self.log.superblock().members.numbers();
    }

    /// Opens two devices, one of which may be missing, blank or damaged. `None` if the start is
    /// refused, or power fails before all steps are done.
    fn start(&mut self) -> Option<Found> {
        let mut is_present = [true; 2];
        let victim = self.damaged.unwrap_or(self.random.below(2) as usize);
        match self.random.below(10) {
            0 | 1 => is_present[victim] = false,
            // Replace a device only if the other one is sufficient.
            2 if self.on_record.iter().any(|&number| number == self.own(1 - victim)) => {
                self.devices[victim] = Device::blank();
            }
            3 => self.damage(victim),
            _ => {}
        }
        for at in 0..2 {
            // A failed device usually works again after a restart.
            self.devices[at].is_dead &= self.random.below(3) == 0;
        }
        let drawn = self.draw();
        let on_record = self.on_record.clone();
        let is_on_record = move |_, number| on_record.contains(&number);
        let [a, b] = &mut self.devices;
        let half = |device| MirrorDevice { device, size_bytes: SIZE };
        let halves = [is_present[0].then(|| half(a)), is_present[1].then(|| half(b))];
        let mut recovered = match recover_mirrored(halves, drawn, &is_on_record, false) {
            Ok(recovered) => recovered.expect("a device holds a journal"),
            Err(RecoverError::MayBeStale { device, .. }) => {
                self.stale += 1;
                assert!(!self.on_record.contains(&self.own(device)));
                return None;
            }
            Err(error) => {
                // The present device is unfinished or blank; the missing one has everything.
                let own = self.own(usize::from(!is_present[1]));
                assert!(is_present != [true; 2] && self.on_record.contains(&own), "{error}");
                self.stale += 1;
                return None;
            }
        };
        assert_eq!(recovered.found.damage, [], "each batch is intact on one device");
        self.take_steps(&mut recovered)?;
        recovered.complete_rebuild(drawn);
        self.alone += usize::from(recovered.in_sync() != [true; 2]);
        for at in (0..2).filter(|&at| recovered.in_sync()[at]) {
            self.check(&recovered.found, at);
        }
        self.damaged = None;
        Some(recovered.found)
    }

    fn take_steps(&mut self, recovered: &mut RecoveredLog) -> Option<()> {
        let steps = recovered.steps();
        self.repaired += recovered.lag_count();
        self.rebuilt += usize::from(recovered.rebuild_target().is_some());
        for step in steps {
            if self.random.below(30) == 0 {
                return None;
            }
            let (to, at, bytes) = match step {
                MirrorStep::Record(members) => {
                    self.on_record = members;
                    continue;
                }
                MirrorStep::Write { to, position, bytes } => (to, position as usize, bytes),
                MirrorStep::Copy(copy) => {
                    let at = copy.position as usize;
                    let bytes = &self.devices[copy.from].bytes[at..at + copy.len as usize];
                    (copy.to, at, bytes.to_vec())
                }
            };
            let is_alone = recovered.in_sync()[to] && !recovered.in_sync()[1 - to];
            let is_needed = is_alone || self.damaged == Some(1 - to);
            let fails = !is_needed && (self.devices[to].is_dead || self.random.below(40) == 0);
            let written = if fails { self.random.below(bytes.len() as u64 / 512) * 512 } else { 0 };
            let len = if fails { written as usize } else { bytes.len() };
            self.devices[to].bytes[at..at + len].copy_from_slice(&bytes[..len]);
            if fails {
                assert!(recovered.remove_device(to), "the other device is in sync");
                return self.take_steps(recovered);
            }
        }
        Some(())
    }

    /// The member number of a device; zero if it has none.
    fn own(&self, device: usize) -> u64 {
        let bytes = &self.devices[device].bytes;
        let copies = [&bytes[..65536], &bytes[65536..131_072]];
        Superblock::newest(copies).map_or(0, |superblock| superblock.members.own)
    }

    /// Damages the log on one device, if both are in sync.
    fn damage(&mut self, device: usize) {
        let are_members = [0, 1].iter().all(|&at| self.on_record.contains(&self.own(at)));
        if are_members && self.on_record.len() == 2 {
            self.damaged = Some(device);
            for _ in 0..1 + self.random.below(4) {
                let at = LOG_OFFSET + self.random.below(SIZE - LOG_OFFSET);
                self.devices[device].bytes[at as usize] ^= 0x40;
            }
        }
    }

    fn replay(&self, found: &Found, device: usize) -> Vec<u64> {
        let mut state = self.disk.clone();
        for extent in Image::of_volume(&found.records, self.volume).extents() {
            for sector in extent.range.offset / 512..extent.range.end() / 512 {
                let inner = sector * 512 - extent.range.offset;
                state[sector as usize] = match extent.source {
                    Source::Zero { .. } => 0,
                    Source::Discard => panic!("no range was discarded"),
                    Source::Write { record, offset } => {
                        let at = (found.records[record].position + offset + inner) as usize;
                        let bytes = &self.devices[device].bytes[at..at + 512];
                        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                        let is_same = |word: &[u8]| word == value.to_le_bytes();
                        assert!(bytes.chunks(8).all(is_same), "the sector mixes two writes");
                        value
                    }
                };
            }
        }
        state
    }

    /// Checks that disk and journal show a prefix of the history which includes everything
    /// acknowledged, and truncates the history to it.
    fn check(&mut self, found: &Found, device: usize) {
        let state = self.replay(found, device);
        let prefixes = self.acknowledged..=self.history.len();
        let upto = if self.destages_early {
            for sector in 0..SECTORS as usize {
                let least = self.acknowledged.max(self.alone_acknowledged[sector]);
                let mut prefixes = least..=self.history.len();
                assert!(prefixes.any(|upto| self.shows(&state, upto, sector)), "sector {sector}");
            }
            self.history.len()
        } else {
            let all = |&upto: &usize| {
                (0..SECTORS as usize).all(|sector| self.shows(&state, upto, sector))
            };
            prefixes.rev().find(all).expect("all sectors show the same prefix")
        };
        // Later checks start from the present state.
        let early = (0..SECTORS as usize).map(|sector| {
            let range = ByteRange::new(sector as u64 * 512, 512);
            let entry = LogEntry { kind: RecordKind::Forget, volume: self.volume, range };
            (entry, state[sector])
        });
        let early: Vec<_> = early.collect();
        self.history.truncate(upto);
        // Data that reached the disk early stays there, so it becomes part of the history.
        self.history.extend(early);
        self.acknowledged = self.history.len();
        self.alone_acknowledged.fill(0);
    }
}

impl Machine {
    /// Whether a sector has its value after this number of records, or the value of a later
    /// write-through, which is on the disk before its record is made.
    fn shows(&self, state: &[u64], records: usize, sector: usize) -> bool {
        let inside = |entry: &LogEntry| {
            let range = entry.range;
            (range.offset..range.end()).contains(&(sector as u64 * 512))
        };
        let (before, after) = self.history.split_at(records);
        let kind_counts = |entry: &LogEntry| entry.kind != RecordKind::Discard && inside(entry);
        let last = before.iter().rev().find(|(entry, _)| kind_counts(entry));
        let value =
            last.map_or(
                0,
                |(entry, value)| {
                    if matches!(entry.kind, RecordKind::Zero { .. }) { 0 } else { *value }
                },
            );
        let through = |(entry, value): &(LogEntry, u64)| {
            entry.kind == RecordKind::Forget && inside(entry) && *value == state[sector]
        };
        state[sector] == value || after.iter().any(through)
    }
}

fn run(seeds: std::ops::Range<u64>, steps: usize) {
    let (mut crashes, mut drains, mut refused) = (0, 0, 0);
    let mut stuck = [0; 2];
    let mut mirror = [0; 5];
    for seed in seeds {
        // Shown if the test fails.
        println!("seed {seed}");
        let mut machine = Machine::new(seed);
        (0..steps).for_each(|_| machine.step());
        machine.crash();
        crashes += machine.crashes;
        drains += machine.drains;
        refused += machine.refused;
        stuck[0] += machine.fences;
        stuck[1] += machine.forwards;
        let Machine { losses, alone, stale, rebuilt, repaired, .. } = machine;
        for (sum, count) in mirror.iter_mut().zip([losses, alone, stale, rebuilt, repaired]) {
            *sum += count;
        }
    }
    println!("{crashes} crashes, {drains} drained logs, {refused} writes refused by a full log");
    println!("fences, forwards: {stuck:?}");
    println!("lost devices, single starts, refused starts, rebuilds, repairs: {mirror:?}");
    assert!(crashes > 0 && refused > 0, "no crash, or the log was never full");
    assert!(stuck.iter().all(|&count| count > 0), "no fence, or nothing forwarded");
    assert!(mirror.iter().all(|&count| count > 0), "a mirror event never happened");
}

#[test]
fn acknowledged_writes_survive_power_failures() {
    run(0..300, 3000);
}

#[test]
#[ignore = "takes minutes"]
fn slow_acknowledged_writes_survive_power_failures() {
    run(1000..6000, 5000);
}
