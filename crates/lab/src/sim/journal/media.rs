//! The devices of the journal.
//!
//! A mirrored journal has two devices that tear, fail and are missing independently. As in the
//! runtime, its members are recorded elsewhere, and that record survives the process.

use crate::harness::dice::Ppm;
use crate::harness::memory::read_stamp;
use crate::sim::run::Run;
use forebay_journal::{
    Found, LogWrite, MirrorDevice, MirrorStep, ReadAt, RecoverError, recover, recover_mirrored,
};
use forebay_types::{IoError, IoResult, SECTOR_BYTES};

struct Medium(Vec<u8>);

impl ReadAt for Medium {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> IoResult {
        let at = position as usize;
        buffer.copy_from_slice(self.0.get(at..at + buffer.len()).ok_or(IoError::Io)?);
        Ok(())
    }
}

/// One device, or the two of a mirrored journal.
pub(super) struct Media {
    devices: [Medium; 2],
    size_bytes: u64,
    is_mirrored: bool,
    /// The device that is read.
    reads: usize,
    /// The recorded members of a mirrored journal.
    recorded_members: Vec<u64>,
    /// The numbers given to devices so far.
    numbers_used: u64,
}

impl Media {
    pub(super) fn new(size_bytes: u64, is_mirrored: bool) -> Self {
        let blank = |is_there: bool| Medium(vec![0; size_bytes as usize * usize::from(is_there)]);
        Self {
            devices: [blank(true), blank(is_mirrored)],
            size_bytes,
            is_mirrored,
            reads: 0,
            recorded_members: Vec::new(),
            numbers_used: 0,
        }
    }

    /// New numbers for both devices.
    pub(super) const fn new_numbers(&mut self) -> [u64; 2] {
        self.numbers_used += 2;
        [self.numbers_used - 1, self.numbers_used]
    }

    pub(super) fn record_members(&mut self, members: Vec<u64>) {
        self.recorded_members = members;
    }

    pub(super) fn erase(&mut self) {
        self.devices.iter_mut().for_each(|device| device.0.fill(0));
        self.reads = 0;
    }

    /// Writes the sectors for which `survives` is true to one device.
    pub(super) fn put(
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

    /// The stamp at a position of the device that is read.
    pub(super) fn stamp(&self, position: u64) -> u64 {
        read_stamp(&self.devices[self.reads].0, position)
    }

    /// Reads the log from the first device for which `counts` is true, if it is readable without
    /// damage.
    pub(super) fn read(&mut self, counts: [bool; 2]) -> Option<Found> {
        self.reads = counts.iter().position(|&counts| counts)?;
        let found = recover(&mut self.devices[self.reads], self.size_bytes).ok();
        found.filter(|found| found.damage.is_empty())
    }

    /// Recovers the log at a start. One device of a mirrored journal is missing with the
    /// probability `missing`.
    pub(super) fn start(&mut self, run: &mut Run, missing: Ppm) -> Found {
        if self.is_mirrored {
            return self.start_mirrored(run, missing);
        }
        recover(&mut self.devices[0], self.size_bytes).expect("the superblock is valid")
    }

    fn start_mirrored(&mut self, run: &mut Run, missing: Ppm) -> Found {
        let dice = &mut run.dice;
        let size_bytes = self.size_bytes;
        let mut missing = dice.chance(missing).then(|| dice.below(2) as usize);
        let numbers = self.new_numbers();
        let recorded_members = self.recorded_members.clone();
        let is_on_record = |_, number| recorded_members.contains(&number);
        let mut recovered = loop {
            let [a, b] = &mut self.devices;
            let half = |device, at| {
                (missing != Some(at)).then_some(MirrorDevice { device: device as _, size_bytes })
            };
            let halves = [half(a, 0), half(b, 1)];
            match recover_mirrored(halves, numbers, &is_on_record, false) {
                Ok(recovered) => break recovered.expect("there is a journal"),
                Err(RecoverError::MayBeStale { .. }) if missing.is_some() => missing = None,
                Err(error) => panic!("{error}"),
            }
        };
        for step in recovered.steps() {
            match step {
                MirrorStep::Record(members) => self.recorded_members = members,
                MirrorStep::Write { to, position, bytes } => {
                    let at = position as usize;
                    self.devices[to].0[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                MirrorStep::Copy(copy) => {
                    let range = copy.position as usize..(copy.position + copy.len) as usize;
                    let bytes = self.devices[copy.from].0[range.clone()].to_vec();
                    self.devices[copy.to].0[range].copy_from_slice(&bytes);
                }
            }
        }
        run.report.degraded_starts += u64::from(recovered.in_sync() != [true; 2]);
        run.report.journal_rewritten += u64::from(recovered.rebuild_target().is_some());
        recovered.complete_rebuild(numbers);
        self.reads = usize::from(!recovered.in_sync()[0]);
        recovered.found
    }
}
