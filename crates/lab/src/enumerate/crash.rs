//! The possible images of the devices after a crash, and the check of a start from each.
//!
//! An image is one choice for each uncertain sector: for a sector of the disk, one of the contents
//! that its cache or an I/O in flight may have given it; for a sector of the journal's write in
//! flight, whether it has been written. The shipped code recovers each image: it reads and resumes
//! the log, restores its content to empty shards through the dispatcher, and reads everything back.
//!
//! If there are more images than the limit, only as many as the limit are checked, in this order:
//! nothing written, everything, each uncertain sector alone and all but each, random images.
//! Reading the log does not depend on the disk; therefore every content of every disk sector is
//! checked for each image of the journal, too. Combinations of disk sectors outside the sample
//! cannot break a guarantee either, as long as a restore treats all sectors of the disk alike.
//!
//! Most orders of a workload pass through the same few crashes, and so do workloads with the same
//! beginning. The result depends only on the possible contents of the devices and the permitted
//! contents of the sectors; repetitions are skipped ([`Seen`]).

use super::journal::{Recovered, Refused};
use super::machine::Writing;
use super::rig::Rig;
use super::store::Disk;
use super::ups::Left;
use super::{Limits, Tally};
use crate::harness::dice::Dice;
use crate::harness::log_device::LogDevice;
use crate::harness::oracle::Crash;
use crate::harness::places::SECTORS;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The maximum number of uncertain sectors of one journal write.
const UNITS_MAX: usize = 64;

/// The uncertain sectors at one moment.
struct Uncertain<'a> {
    device: Option<&'a LogDevice>,
    /// Position and bytes of the journal's write in flight, and those of its sectors that differ
    /// from the device.
    write: Option<(u64, &'a [u8])>,
    units: Vec<usize>,
    /// The possible contents of each sector of the disk.
    disk: [Vec<u64>; SECTORS],
    left: Left,
}

/// One image: the sectors of the journal's write that have been written, and the index of each disk
/// sector's content.
#[derive(Clone, Copy)]
struct Image {
    landed: u64,
    disk: [u8; SECTORS],
}

/// Fingerprints of the crashes checked so far. Among ten million different ones, two have the same
/// fingerprint with a probability below one in 300,000.
pub(super) type Seen = HashSet<u64>;

type Walks = HashMap<u64, Result<Recovered, Refused>>;

/// Checks all images that a crash at this moment can leave.
///
/// # Errors
/// The guarantee that a start from one of the images breaks.
pub(super) fn check(
    rig: &Rig,
    limits: &Limits,
    dice: &mut Dice,
    seen: &mut Seen,
    tally: &mut Tally,
) -> Result<(), String> {
    // Reading the log gives the same result for both kinds of crash: the journal's device has no
    // volatile cache.
    let mut walks = Walks::new();
    for crash in rig.machine.crashes() {
        let uncertain = Uncertain::new(rig, crash);
        let images = uncertain.count();
        tally.crash_points += 1;
        if !seen.insert(uncertain.fingerprint(rig, crash)) {
            tally.repeated += 1;
            continue;
        }
        tally.possible_images = tally.possible_images.saturating_add(images);
        if images <= limits.images {
            tally.complete += 1;
            for number in 0..images {
                uncertain.check(rig, crash, &uncertain.numbered(number), &mut walks, tally)?;
            }
        } else {
            for image in uncertain.sample(limits.images, dice) {
                uncertain.check(rig, crash, &image, &mut walks, tally)?;
            }
        }
        for recovered in walks.values().flatten() {
            uncertain.check_each_sector(rig, crash, recovered)?;
        }
    }
    Ok(())
}

impl<'a> Uncertain<'a> {
    fn new(rig: &'a Rig, crash: Crash) -> Self {
        let machine = &rig.machine;
        let mut disk = machine.disk_after(crash);
        for (place, stamp) in machine.changes_under_way() {
            if !disk[place].contains(&stamp) {
                disk[place].push(stamp);
            }
        }
        let journal = machine.journal.as_ref().filter(|journal| !journal.is_marked);
        // While the failure mark is not durable, the records count.
        let write = match journal.and_then(|journal| journal.writing.as_ref()) {
            Some(Writing::Log(write, _)) => Some((write.position, write.bytes_for(0))),
            Some(Writing::Mark) | None => None,
        };
        let device = journal.map(|journal| &journal.device);
        let units = match (device, write) {
            (Some(device), Some((position, bytes))) => device.changes(position, bytes),
            _ => Vec::new(),
        };
        assert!(units.len() < UNITS_MAX, "a batch has fewer sectors");
        Self { device, write, units, disk, left: machine.left_by(crash) }
    }

    /// A hash of everything that the results of [`Uncertain::check`] depend on: the machine's kind,
    /// the possible contents of its devices, and the oracle's answer for each content that a sector
    /// ever had.
    fn fingerprint(&self, rig: &Rig, crash: Crash) -> u64 {
        let machine = &rig.machine;
        let mut hasher = DefaultHasher::new();
        (crash, machine.protected_by, machine.tight).hash(&mut hasher);
        self.left.hash(&mut hasher);
        self.disk.hash(&mut hasher);
        (self.write, &self.units).hash(&mut hasher);
        if let Some(device) = self.device {
            device.hash(&mut hasher);
        }
        machine.oracle.hash_crash(crash, &mut hasher);
        hasher.finish()
    }

    fn count(&self) -> u64 {
        let contents = self.disk.iter().map(|contents| contents.len() as u64);
        contents.fold(1 << self.units.len(), u64::saturating_mul)
    }

    /// The image with this number; the numbers run from 0 to [`Uncertain::count`].
    fn numbered(&self, mut number: u64) -> Image {
        let landed = number & ((1 << self.units.len()) - 1);
        number >>= self.units.len();
        let disk = std::array::from_fn(|at| {
            let base = self.disk[at].len() as u64;
            let digit = (number % base) as u8;
            number /= base;
            digit
        });
        Image { landed, disk }
    }

    /// A sample of `count` images: those with nothing, everything, one sector or all but one
    /// written, then random ones.
    fn sample(&self, count: u64, dice: &mut Dice) -> Vec<Image> {
        let all = (1 << self.units.len()) - 1;
        let newest: [u8; SECTORS] = std::array::from_fn(|at| (self.disk[at].len() - 1) as u8);
        let oldest = [0; SECTORS];
        let mut images = vec![
            Image { landed: 0, disk: oldest },
            Image { landed: all, disk: newest },
            Image { landed: 0, disk: newest },
            Image { landed: all, disk: oldest },
        ];
        for unit in 0..self.units.len() {
            images.push(Image { landed: 1 << unit, disk: oldest });
            images.push(Image { landed: all & !(1 << unit), disk: newest });
        }
        for at in (0..SECTORS).filter(|&at| newest[at] > 0) {
            for (from, to) in [(oldest, newest[at]), (newest, 0)] {
                let mut disk = from;
                disk[at] = to;
                images.push(Image { landed: if to == 0 { 0 } else { all }, disk });
            }
        }
        while (images.len() as u64) < count {
            let landed = (dice.below(1 << 32) | dice.below(1 << 32) << 32) & all;
            let pick = |contents: &Vec<u64>| dice.below(contents.len() as u64) as u8;
            let picked: Vec<u8> = self.disk.iter().map(pick).collect();
            images.push(Image { landed, disk: std::array::from_fn(|at| picked[at]) });
        }
        images.truncate(count as usize);
        images
    }

    fn check(
        &self,
        rig: &Rig,
        crash: Crash,
        image: &Image,
        walks: &mut Walks,
        tally: &mut Tally,
    ) -> Result<(), String> {
        tally.images += 1;
        let content = std::array::from_fn(|at| self.disk[at][usize::from(image.disk[at])]);
        let recovered = match self.device {
            None => None,
            Some(device) => {
                let walk = walks.entry(image.landed).or_insert_with(|| {
                    tally.walks += 1;
                    self.walk(device, image.landed)
                });
                let walk = walk.as_ref();
                Some(walk.map_err(|refused| {
                    format!("a torn write is reported as damage: {refused:?}")
                })?)
            }
        };
        let machine = &rig.machine;
        let mut next = Rig::after(machine, Disk::with(content), recovered, self.left.clone());
        let expected = next.found_content();
        judge(rig, crash, &expected)?;
        let oracle = &mut next.machine.oracle;
        (0..SECTORS).for_each(|at| oracle.restart(at as u64, expected[at]));
        // The restarted machine may also write content from before the crash.
        oracle.continue_from(&machine.oracle);
        next.run_to_completion();
        next.read_all();
        next.machine.violation.map_or(Ok(()), |violation| {
            Err(format!("after a crash ({crash:?}) and a start: {violation}"))
        })
    }

    fn walk(&self, device: &LogDevice, landed: u64) -> Result<Recovered, Refused> {
        let mut device = device.clone();
        if let Some((position, bytes)) = self.write {
            for (at, &unit) in self.units.iter().enumerate() {
                if landed >> at & 1 == 1 {
                    device.write(position, bytes, unit);
                }
            }
        }
        Recovered::read(device, &mut Default::default(), false)
    }

    /// Checks every content of every disk sector, one sector at a time.
    fn check_each_sector(
        &self,
        rig: &Rig,
        crash: Crash,
        recovered: &Recovered,
    ) -> Result<(), String> {
        let overlay = recovered.overlay();
        for at in (0..SECTORS).filter(|&at| overlay[at].is_none()) {
            for &stamp in &self.disk[at] {
                judge_sector(rig, crash, at, stamp)?;
            }
        }
        Ok(())
    }
}

fn judge(rig: &Rig, crash: Crash, content: &[u64; SECTORS]) -> Result<(), String> {
    (0..SECTORS).try_for_each(|at| judge_sector(rig, crash, at, content[at]))
}

fn judge_sector(rig: &Rig, crash: Crash, at: usize, found: u64) -> Result<(), String> {
    let oracle = &rig.machine.oracle;
    if oracle.check_crash(at as u64, found, crash) {
        return Ok(());
    }
    let text = oracle.explain(at as u64, found);
    Err(format!("after a crash ({crash:?}), sector {at} {text}"))
}
