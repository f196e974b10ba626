//! The journal loses power at any moment, between writes and in the middle of one.
//!
//! A model keeps every record in the order it was made. After a crash the disk and the journal
//! together must show, for all sectors at once, the state after some prefix of these records, and
//! at least after everything that was told to be durable. Where the disk may get data before its
//! record is durable, that holds for each sector by itself, as it does for a disk's own cache.
//!
//! With two devices each tears by itself, fails by itself, is missing at a start, is replaced by a
//! blank one, or has a damaged batch; and the power fails between any two steps of a start. No
//! device that is older than what was acknowledged may ever be believed.

#![allow(clippy::unwrap_used)]

use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind, Superblock};
use forebay_journal::{
    Admission, Checkpoint, Entry, Found, Half, Image, Log, LogError, LogWrite, Noted, ReadAt,
    RecoverError, Recovered, Source, Step, Told, recover, recover_mirrored,
};
use forebay_types::{ByteRange, IoError};

const GEOMETRY: Geometry = Geometry { segment_bytes: 32 << 10, segments: 8 };
const SIZE: u64 = LOG_OFFSET + 8 * (32 << 10);
const JOURNAL: JournalId = JournalId([7; 16]);
const BUFFER: usize = 16 << 10;
const SECTORS: u64 = 40;
const DISK: [u8; 32] = [1; 32];

/// A sequence of numbers from a seed (xorshift64*; Vigna 2016).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

struct Device {
    bytes: Vec<u8>,
    /// Takes no more writes until the next start.
    is_dead: bool,
}

impl Device {
    fn blank() -> Self {
        Self { bytes: vec![0; SIZE as usize], is_dead: false }
    }

    /// One that a journal is being made on.
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
    dice: Dice,
    devices: [Device; 2],
    is_mirrored: bool,
    /// The members on record outside of the journal.
    on_record: Vec<u64>,
    /// Numbers drawn so far.
    drawn: u64,
    log: Log<Vec<u8>, u64>,
    volume: u16,
    writing: Option<Write>,
    /// Every record: what each of its sectors became.
    history: Vec<(Entry, u64)>,
    acknowledged: usize,
    /// What the disk has, and how much of the history is in it for certain.
    disk: Vec<u64>,
    checkpoint: Option<(Checkpoint, usize)>,
    destages_early: bool,
    /// Somebody has a permit.
    is_promised: bool,
    crashes: usize,
    drains: usize,
    refused: usize,
    /// Checkpoints that ended with what the disk did not take fenced, or recorded forward.
    fences: usize,
    forwards: usize,
    /// Logs that have failed.
    replaced: usize,
    /// For each sector how much of the history was acknowledged of it without a record.
    alone_acknowledged: Vec<usize>,
    losses: usize,
    /// The device that is damaged and not healed yet: the other one stays well meanwhile.
    ill: Option<usize>,
    /// Starts with one device, starts that were refused, devices written anew, batches healed.
    alone: usize,
    stale: usize,
    rewritten: usize,
    healed: usize,
}

fn buffers() -> Vec<Vec<u8>> {
    (0..3).map(|_| vec![0xcc; BUFFER]).collect()
}

fn apply(disk: &mut [u64], (entry, value): &(Entry, u64)) {
    for sector in entry.range.offset / 512..entry.range.end() / 512 {
        match entry.kind {
            RecordKind::Write => disk[sector as usize] = *value,
            RecordKind::Zero { .. } => disk[sector as usize] = 0,
            // The disk had it before the record was made, as a write through the cache does.
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
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
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
            is_promised: false,
            crashes: 0,
            drains: 0,
            refused: 0,
            fences: 0,
            forwards: 0,
            replaced: 0,
            alone_acknowledged: vec![0; SECTORS as usize],
            losses: 0,
            ill: None,
            alone: 0,
            stale: 0,
            rewritten: 0,
            healed: 0,
        };
        // A journal is made before anything relies on it.
        machine.start_write();
        machine.end_write();
        machine
    }

    fn step(&mut self) {
        match self.dice.below(100) {
            0..50 => self.record(),
            50..70 => self.start_write(),
            70..90 => self.end_write(),
            90..95 => self.checkpoint(),
            95..98 => self.end_checkpoint(),
            _ if self.dice.below(4) == 0 => self.crash(),
            _ => {}
        }
        self.log.self_check();
    }

    fn record(&mut self) {
        let sector = self.dice.below(SECTORS - 8);
        let range = ByteRange::new(sector * 512, (1 + self.dice.below(8)) * 512);
        let value = self.history.len() as u64 + 1;
        let kind = match self.dice.below(10) {
            0 => RecordKind::Zero { unmap: false },
            1 => RecordKind::Forget,
            _ => RecordKind::Write,
        };
        let entry = Entry { kind, volume: self.volume, range };
        let waiter = value;
        if kind == RecordKind::Write {
            match self.log.admit(self.volume, range.len, waiter) {
                // Whoever has it takes a while to use it or to give it back.
                Admission::Granted if self.dice.below(20) == 0 => {
                    if std::mem::replace(&mut self.is_promised, true) {
                        self.log.withdraw();
                    }
                    return;
                }
                Admission::Granted => {}
                Admission::Wait => return,
                Admission::Full => {
                    self.refused += 1;
                    return;
                }
                Admission::Failed => panic!("no write has failed"),
            }
            let payload: Vec<u8> = (0..range.len / 8).flat_map(|_| value.to_le_bytes()).collect();
            assert!(self.log.append(entry, payload.chunks(700), Some(waiter)));
            if std::mem::take(&mut self.is_promised) {
                self.log.withdraw();
            }
        } else {
            let noted = self.log.note(entry, Some(waiter));
            if kind == RecordKind::Forget && noted != Noted::NoRoom {
                apply(&mut self.disk, &(entry, value));
            }
            match noted {
                Noted::Recorded => {}
                Noted::NoRoom => return,
                Noted::Needless => self.acknowledge_alone(range, waiter as usize),
                Noted::Refused => {
                    apply(&mut self.disk, &(entry, value));
                    self.acknowledge_alone(range, waiter as usize);
                }
            }
        }
        self.history.push((entry, value));
    }

    /// A change is on the disk's stable storage, and nothing older is in the log.
    fn acknowledge_alone(&mut self, range: ByteRange, upto: usize) {
        for sector in range.offset / 512..range.end() / 512 {
            self.alone_acknowledged[sector as usize] = upto;
        }
    }

    fn start_write(&mut self) {
        if let Some(members) = self.log.unrecorded_loss() {
            self.on_record = members;
            self.log.loss_recorded();
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
            self.devices[at].is_dead |= both && self.dice.below(400) == 0;
            if self.devices[at].is_dead {
                *result = Err(IoError::Io);
            }
            let keep = if result.is_ok() { 101 } else { self.dice.below(101) };
            self.put(&write, at, keep);
        }
        let before = self.log.devices();
        let mut told = Vec::new();
        self.log.complete_on(write, results, &mut told);
        if self.log.failed().is_some() {
            return self.replace(told);
        }
        self.losses += usize::from(before != self.log.devices());
        for (waiter, told) in told {
            match told {
                Told::Durable => self.acknowledged = self.acknowledged.max(waiter as usize),
                Told::Room => {}
                Told::Lost(error) => panic!("one device is left: {error}"),
            }
        }
    }

    fn put(&mut self, write: &Write, device: usize, keep: u64) {
        for (index, sector) in write.bytes_for(device).chunks(512).enumerate() {
            if self.dice.below(100) < keep {
                let at = write.position as usize + index * 512;
                self.devices[device].bytes[at..at + 512].copy_from_slice(sector);
            }
        }
    }

    /// Both devices have failed, in one write: everything is brought to the disk, and another
    /// journal takes their place.
    fn replace(&mut self, told: Vec<(u64, Told)>) {
        assert!(told.iter().all(|(_, told)| *told != Told::Durable));
        self.replaced += 1;
        self.disk = self.state_after(self.history.len());
        self.acknowledged = self.history.len();
        self.checkpoint = None;
        self.is_promised = false;
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
        let too_early = upto > self.acknowledged && !self.destages_early;
        if self.destages_early && self.dice.below(4) == 0 {
            return self.end_stuck();
        }
        if too_early || self.dice.below(5) == 0 {
            return self.log.checkpointed(self.volume, Err(IoError::Io));
        }
        // The disk may get newer data along with what it has to get.
        let newest = if self.destages_early { self.history.len() } else { self.acknowledged };
        let upto = upto + self.dice.below((newest.max(upto) - upto) as u64 + 1) as usize;
        self.disk = self.state_after(upto);
        // Writes through the cache went to the disk at once.
        for said in &self.history[upto..] {
            if said.0.kind == RecordKind::Forget {
                apply(&mut self.disk, said);
            }
        }
        for sector in 0..SECTORS as usize {
            let least = self.alone_acknowledged[sector];
            if least > upto {
                self.disk[sector] = self.state_after(least)[sector];
            }
        }
        self.log.checkpointed(self.volume, Ok(()));
    }

    /// The disk has taken everything but some sectors, and has flushed.
    fn end_stuck(&mut self) {
        let since = self.log.next_record();
        let state = self.state_after(self.history.len());
        let from = self.dice.below(SECTORS - 1);
        let stuck = from..from + 1 + self.dice.below(3.min(SECTORS - from));
        for sector in (0..SECTORS).filter(|sector| !stuck.contains(sector)) {
            self.disk[sector as usize] = state[sector as usize];
        }
        let len = (stuck.end - stuck.start) * 512;
        if self.dice.below(2) == 0 || !self.log.has_room_forward(len, stuck.end - stuck.start) {
            let kept = ByteRange::new(stuck.start * 512, len);
            self.fences += usize::from(self.log.fence(self.volume, since, &[kept], false));
            return self.log.checkpointed(self.volume, Err(IoError::Io));
        }
        for sector in stuck {
            if self.log.admit_forward() != Admission::Granted {
                return self.log.checkpointed(self.volume, Err(IoError::Io));
            }
            let range = ByteRange::new(sector * 512, 512);
            let entry = Entry { kind: RecordKind::Write, volume: self.volume, range };
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
            self.log.checkpointed(self.volume, Ok(()));
        }
    }

    fn state_after(&self, records: usize) -> Vec<u64> {
        let mut state = vec![0; SECTORS as usize];
        self.history[..records].iter().for_each(|said| apply(&mut state, said));
        state
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.is_promised = false;
        self.checkpoint = None;
        if let Some(write) = self.writing.take() {
            for at in (0..2).filter(|&at| write.goes_to(at)) {
                let keep = self.dice.below(101);
                self.put(&write, at, keep);
            }
        }
        let mut found = if self.is_mirrored {
            match self.start() {
                Some(found) => found,
                // The power failed again.
                None => return self.crash(),
            }
        } else {
            let found = recover(&mut self.devices[0], SIZE).expect("there is a journal");
            assert_eq!(found.damage, [], "a torn write is no damage");
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
                found.drained();
                Log::resume(&found, buffers()).expect("an empty log always goes on")
            }
        };
        self.log.restored(self.volume);
        assert_eq!(self.log.add_volume("disk", SECTORS * 512, DISK), Ok(self.volume));
        // Nothing is recorded before the superblock of the new generation is durable, and that
        // may be cut short, too.
        self.start_write();
        if self.dice.below(3) == 0 {
            return self.crash();
        }
        self.end_write();
        while self.log.failed().is_none() && !self.log.superblock_is_durable() {
            self.start_write();
            self.end_write();
        }
        if self.is_mirrored && self.dice.below(5) == 0 {
            return self.crash();
        }
        self.on_record = self.log.superblock().members.numbers();
    }

    /// Opens two devices, of which something may be wrong with one. `None` when the power fails
    /// before all steps are done.
    fn start(&mut self) -> Option<Found> {
        let mut is_there = [true; 2];
        let hit = self.ill.unwrap_or(self.dice.below(2) as usize);
        match self.dice.below(10) {
            0 | 1 => is_there[hit] = false,
            // Only who is not needed is thrown away.
            2 if self.on_record.iter().any(|&number| number == self.own(1 - hit)) => {
                self.devices[hit] = Device::blank();
            }
            3 => self.damage(hit),
            _ => {}
        }
        for at in 0..2 {
            // Whoever failed is well again after a restart, more often than not.
            self.devices[at].is_dead &= self.dice.below(3) == 0;
        }
        let drawn = self.draw();
        let on_record = self.on_record.clone();
        let is_on_record = move |_, number| on_record.contains(&number);
        let [a, b] = &mut self.devices;
        let half = |device| Half { device, size_bytes: SIZE };
        let halves = [is_there[0].then(|| half(a)), is_there[1].then(|| half(b))];
        let mut recovered = match recover_mirrored(halves, drawn, &is_on_record, false) {
            Ok(recovered) => recovered.expect("one device is not blank"),
            Err(RecoverError::MayBeStale { device, .. }) => {
                self.stale += 1;
                assert!(!self.on_record.contains(&self.own(device)));
                return None;
            }
            Err(error) => {
                // What is there is half written, or blank: the missing one has everything.
                let own = self.own(usize::from(!is_there[1]));
                assert!(is_there != [true; 2] && self.on_record.contains(&own), "{error}");
                self.stale += 1;
                return None;
            }
        };
        assert_eq!(recovered.found.damage, [], "what one device lacks the other has");
        self.take_steps(&mut recovered)?;
        recovered.joined(drawn);
        self.alone += usize::from(recovered.counts() != [true; 2]);
        for at in (0..2).filter(|&at| recovered.counts()[at]) {
            self.check(&recovered.found, at);
        }
        self.ill = None;
        Some(recovered.found)
    }

    fn take_steps(&mut self, recovered: &mut Recovered) -> Option<()> {
        let steps = recovered.steps();
        self.healed += recovered.healed();
        self.rewritten += usize::from(recovered.joins().is_some());
        for step in steps {
            if self.dice.below(30) == 0 {
                return None;
            }
            let (to, at, bytes) = match step {
                Step::Record(members) => {
                    self.on_record = members;
                    continue;
                }
                Step::Write { to, position, bytes } => (to, position as usize, bytes),
                Step::Copy(copy) => {
                    let at = copy.position as usize;
                    let bytes = &self.devices[copy.from].bytes[at..at + copy.len as usize];
                    (copy.to, at, bytes.to_vec())
                }
            };
            let is_alone = recovered.counts()[to] && !recovered.counts()[1 - to];
            let is_needed = is_alone || self.ill == Some(1 - to);
            let fails = !is_needed && (self.devices[to].is_dead || self.dice.below(40) == 0);
            let whole = if fails { self.dice.below(bytes.len() as u64 / 512) * 512 } else { 0 };
            let len = if fails { whole as usize } else { bytes.len() };
            self.devices[to].bytes[at..at + len].copy_from_slice(&bytes[..len]);
            if fails {
                assert!(recovered.without(to), "the other one is there");
                return self.take_steps(recovered);
            }
        }
        Some(())
    }

    /// The number of a device that has one.
    fn own(&self, device: usize) -> u64 {
        let bytes = &self.devices[device].bytes;
        let copies = [&bytes[..65536], &bytes[65536..131_072]];
        Superblock::newest(copies).map_or(0, |superblock| superblock.members.own)
    }

    /// Spoils some of the log on one device, where both are known to have everything.
    fn damage(&mut self, device: usize) {
        let are_whole = [0, 1].iter().all(|&at| self.on_record.contains(&self.own(at)));
        if are_whole && self.on_record.len() == 2 {
            self.ill = Some(device);
            for _ in 0..1 + self.dice.below(4) {
                let at = LOG_OFFSET + self.dice.below(SIZE - LOG_OFFSET);
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
                        let same = |word: &[u8]| word == value.to_le_bytes();
                        assert!(bytes.chunks(8).all(same), "a sector is whole");
                        value
                    }
                };
            }
        }
        state
    }

    /// The disk with the journal's word shows a prefix of the history that holds everything
    /// acknowledged; what came after it never happened.
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
        // From here on the history is what is there.
        let early = (0..SECTORS as usize).map(|sector| {
            let range = ByteRange::new(sector as u64 * 512, 512);
            let entry = Entry { kind: RecordKind::Forget, volume: self.volume, range };
            (entry, state[sector])
        });
        let early: Vec<_> = early.collect();
        self.history.truncate(upto);
        // What showed early stays, and so becomes a part of the history.
        self.history.extend(early);
        self.acknowledged = self.history.len();
        self.alone_acknowledged.fill(0);
    }
}

impl Machine {
    /// Whether a sector shows what it was after so many records, or what a later write through the
    /// cache has made of it: that is on the disk before its record is made.
    fn shows(&self, state: &[u64], records: usize, sector: usize) -> bool {
        let inside = |entry: &Entry| {
            let range = entry.range;
            (range.offset..range.end()).contains(&(sector as u64 * 512))
        };
        let (before, after) = self.history.split_at(records);
        let kind_counts = |entry: &Entry| entry.kind != RecordKind::Discard && inside(entry);
        let last = before.iter().rev().find(|(entry, _)| kind_counts(entry));
        let value =
            last.map_or(
                0,
                |(entry, value)| {
                    if matches!(entry.kind, RecordKind::Zero { .. }) { 0 } else { *value }
                },
            );
        let through = |(entry, value): &(Entry, u64)| {
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
        // Printed where a test fails.
        println!("seed {seed}");
        let mut machine = Machine::new(seed);
        (0..steps).for_each(|_| machine.step());
        machine.crash();
        crashes += machine.crashes;
        drains += machine.drains;
        refused += machine.refused;
        stuck[0] += machine.fences;
        stuck[1] += machine.forwards;
        let Machine { losses, alone, stale, rewritten, healed, .. } = machine;
        for (sum, count) in mirror.iter_mut().zip([losses, alone, stale, rewritten, healed]) {
            *sum += count;
        }
    }
    println!("{crashes} crashes, {drains} drained logs, {refused} writes refused by a full log");
    println!("fences, records forward: {stuck:?}");
    println!("devices lost, starts alone, refused, devices rewritten, batches healed: {mirror:?}");
    assert!(crashes > 0 && refused > 0, "the log is filled and lost");
    assert!(stuck.iter().all(|&count| count > 0), "disks take everything but some sectors");
    assert!(mirror.iter().all(|&count| count > 0), "everything happens to a mirror");
}

#[test]
fn power_fails_at_any_moment() {
    run(0..300, 3000);
}

#[test]
#[ignore = "takes minutes"]
fn slow_power_fails_at_any_moment() {
    run(1000..6000, 5000);
}
