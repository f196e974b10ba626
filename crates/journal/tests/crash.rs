//! The journal loses power at any moment, between writes and in the middle of one.
//!
//! A model keeps every record in the order it was made. After a crash the disk and the journal
//! together must show, for all sectors at once, the state after some prefix of these records, and
//! at least after everything that was told to be durable. Where the disk may get data before its
//! record is durable, that holds for each sector by itself, as it does for a disk's own cache.

#![allow(clippy::unwrap_used)]

use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind};
use forebay_journal::{
    Admission, Checkpoint, Entry, Found, Image, Log, LogError, LogWrite, ReadAt, Source, Told,
    recover,
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

struct Device(Vec<u8>);

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let at = position as usize;
        buffer.copy_from_slice(self.0.get(at..at + buffer.len()).ok_or(IoError::Io)?);
        Ok(())
    }
}

type Write = LogWrite<Vec<u8>>;

struct Machine {
    dice: Dice,
    device: Device,
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
        let mut log = Log::format(JOURNAL, SIZE, GEOMETRY, buffers());
        let volume = log.add_volume("disk", SECTORS * 512, DISK).expect("it is the first");
        let mut machine = Self {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            device: Device(vec![0; SIZE as usize]),
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
            _ if self.dice.below(10) == 0 => self.crash(),
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
            match self.log.admit(range.len, waiter) {
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
            if kind == RecordKind::Forget {
                apply(&mut self.disk, &(entry, value));
            }
            assert!(self.log.note(entry, Some(waiter)));
        }
        self.history.push((entry, value));
    }

    fn start_write(&mut self) {
        if self.writing.is_none() {
            self.writing = self.log.poll_write();
        }
    }

    fn end_write(&mut self) {
        let Some(write) = self.writing.take() else { return };
        let at = write.position as usize;
        self.device.0[at..at + write.len].copy_from_slice(write.bytes());
        let mut told = Vec::new();
        self.log.complete(write, Ok(()), &mut told);
        for (waiter, told) in told {
            match told {
                Told::Durable => self.acknowledged = self.acknowledged.max(waiter as usize),
                Told::Room => {}
                Told::Lost(error) => panic!("no write has failed: {error}"),
            }
        }
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
        self.log.checkpointed(self.volume, Ok(()));
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
            let keep = self.dice.below(101);
            for (index, sector) in write.bytes().chunks(512).enumerate() {
                if self.dice.below(100) < keep {
                    let at = write.position as usize + index * 512;
                    self.device.0[at..at + 512].copy_from_slice(sector);
                }
            }
        }
        let mut found = recover(&mut self.device, SIZE).expect("there is a journal");
        assert_eq!(found.damage, [], "a torn write is no damage");
        self.check(&found);
        self.log = match Log::resume(&found, buffers()) {
            Ok(log) => log,
            Err(error) => {
                assert_eq!(error, LogError::DrainFirst);
                self.drains += 1;
                self.disk = self.replay(&found);
                found.drained();
                Log::resume(&found, buffers()).expect("an empty log always goes on")
            }
        };
        self.log.restored(self.volume);
        assert_eq!(self.log.add_volume("disk", SECTORS * 512, DISK), Ok(self.volume));
        // Nothing is recorded before the superblock of the new generation is durable, and that
        // may be cut short, too.
        self.start_write();
        if self.dice.below(3) > 0 {
            self.end_write();
        } else {
            self.crash();
        }
    }

    fn replay(&mut self, found: &Found) -> Vec<u64> {
        let mut state = self.disk.clone();
        for extent in Image::of_volume(&found.records, self.volume).extents() {
            for sector in extent.range.offset / 512..extent.range.end() / 512 {
                let inner = sector * 512 - extent.range.offset;
                state[sector as usize] = match extent.source {
                    Source::Zero { .. } => 0,
                    Source::Discard => panic!("no range was discarded"),
                    Source::Write { record, offset } => {
                        let at = (found.records[record].position + offset + inner) as usize;
                        let bytes = &self.device.0[at..at + 512];
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
    fn check(&mut self, found: &Found) {
        let state = self.replay(found);
        let prefixes = self.acknowledged..=self.history.len();
        let upto = if self.destages_early {
            for sector in 0..SECTORS as usize {
                let mut prefixes = prefixes.clone();
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
    for seed in seeds {
        let mut machine = Machine::new(seed);
        (0..steps).for_each(|_| machine.step());
        machine.crash();
        crashes += machine.crashes;
        drains += machine.drains;
        refused += machine.refused;
    }
    println!("{crashes} crashes, {drains} drained logs, {refused} writes refused by a full log");
    assert!(crashes > 0 && refused > 0, "the log is filled and lost");
}

#[test]
fn power_fails_at_any_moment() {
    run(0..60, 3000);
}

#[test]
#[ignore = "takes minutes"]
fn slow_power_fails_at_any_moment() {
    run(1000..6000, 5000);
}
