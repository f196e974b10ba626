//! What a crash at one moment can leave, and whether the machine that starts from it keeps its
//! word.
//!
//! An image is one choice for each sector that is not certain: for those of the disk, one of the
//! contents that its cache or an I/O under way may have given it; for those of the journal's write
//! under way, whether it has landed. Each image is recovered by the shipped code: the log is walked
//! and resumed, what it holds is loaded into fresh shards through the dispatcher, and everything is
//! read back.
//!
//! Where there are more images than asked for, a sample is taken: nothing landed, everything, each
//! uncertain sector alone and all but each, and random ones. As the walk of the log reads nothing
//! of the disk, every content of every sector of the disk is judged beside that for each image of
//! the journal, so that combinations of the disk's sectors that are not in the sample can break no
//! promise either, as long as a restore treats sectors of the disk alike.
//!
//! Most orders of a workload pass through the same few crashes, and so do workloads that begin
//! alike. What a crash is worth follows from what may be on the devices and from what each sector
//! may hold; where both have been looked at before, they are not looked at again ([`Seen`]).

use super::journal::{Recovered, Refused};
use super::rig::{Rig, brought_back};
use super::store::{Disk, Tape};
use super::work::SECTORS;
use super::{Limits, Tally};
use crate::harness::dice::Dice;
use crate::harness::oracle::Crash;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Sectors of one write of the journal that can be told apart.
const UNITS_MAX: usize = 64;

/// What is uncertain at one moment.
struct Uncertain<'a> {
    tape: Option<&'a Tape>,
    /// Position and bytes of the journal's write under way, and its sectors that change anything.
    write: Option<(u64, &'a [u8])>,
    units: Vec<usize>,
    /// What each sector of the disk may hold.
    disk: [Vec<u64>; SECTORS],
}

/// One image: which sectors of the journal's write have landed, and which content each sector of
/// the disk has.
#[derive(Clone, Copy)]
struct Image {
    landed: u64,
    disk: [u8; SECTORS],
}

/// Crashes that have been looked at, by their fingerprints. That two of ten million that differ
/// have the same has a chance of one to three hundred thousand.
pub(super) type Seen = HashSet<u64>;

type Walks = HashMap<u64, Result<Recovered, Refused>>;

/// Looks at everything that a crash at this moment can leave.
///
/// # Errors
/// The promise that a start from one of the images breaks.
pub(super) fn check(
    rig: &Rig,
    limits: &Limits,
    dice: &mut Dice,
    seen: &mut Seen,
    tally: &mut Tally,
) -> Result<(), String> {
    // A walk is the same for both kinds of crash: the journal's device does not know them apart.
    let mut walks = Walks::new();
    for crash in [Crash::Process, Crash::Power] {
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
        let mut disk = match crash {
            Crash::Power | Crash::Saved => machine.disk.possible(),
            Crash::Process => machine.disk.content().map(|stamp| vec![stamp]),
        };
        for (place, stamp) in machine.changes_under_way() {
            if !disk[place].contains(&stamp) {
                disk[place].push(stamp);
            }
        }
        let journal = machine.journal.as_ref().filter(|journal| !journal.is_marked);
        let write = journal.and_then(|journal| journal.writing.as_ref());
        let write = write.map(|(write, _)| (write.position, write.bytes_for(0)));
        let tape = journal.map(|journal| &journal.tape);
        let units = match (tape, write) {
            (Some(tape), Some((position, bytes))) => tape.changes(position, bytes),
            _ => Vec::new(),
        };
        assert!(units.len() < UNITS_MAX, "a batch is shorter than that");
        Self { tape, write, units, disk }
    }

    /// What the outcome of [`Uncertain::check`] depends on, for all images: the machine's kind,
    /// what its devices may hold, and what the oracle says of each content that a sector ever had.
    fn fingerprint(&self, rig: &Rig, crash: Crash) -> u64 {
        let machine = &rig.machine;
        let mut hasher = DefaultHasher::new();
        (crash == Crash::Power, machine.kept as u8, machine.tight).hash(&mut hasher);
        self.disk.hash(&mut hasher);
        (self.write, &self.units).hash(&mut hasher);
        if let Some(tape) = self.tape {
            tape.hash(&mut hasher);
        }
        machine.oracle.hash_crash(crash, &mut hasher);
        hasher.finish()
    }

    /// How many images there are.
    fn count(&self) -> u64 {
        let contents = self.disk.iter().map(|contents| contents.len() as u64);
        contents.fold(1 << self.units.len(), u64::saturating_mul)
    }

    /// Image `number` of all.
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

    /// Some of the images: the corners, then random ones.
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
        let recovered = match self.tape {
            None => None,
            Some(tape) => {
                let walk = walks.entry(image.landed).or_insert_with(|| {
                    tally.walks += 1;
                    self.walk(tape, image.landed)
                });
                let walk = walk.as_ref();
                Some(walk.map_err(|refused| format!("a torn write is no damage: {refused:?}"))?)
            }
        };
        let expected = brought_back(&content, recovered);
        judge(rig, crash, &expected)?;
        let machine = &rig.machine;
        let disk = Disk::with(content);
        let mut next = Rig::after(machine.kept, machine.tight, machine.bug, disk, recovered);
        let oracle = &mut next.machine.oracle;
        (0..SECTORS).for_each(|at| oracle.restart(at as u64, expected[at]));
        // What was written before is nobody's invention.
        oracle.reissue(&machine.oracle);
        next.run_dry();
        next.read_all();
        next.machine.violation.map_or(Ok(()), |violation| {
            Err(format!("after a crash ({crash:?}) and a start: {violation}"))
        })
    }

    fn walk(&self, tape: &Tape, landed: u64) -> Result<Recovered, Refused> {
        let mut tape = tape.clone();
        if let Some((position, bytes)) = self.write {
            for (at, &unit) in self.units.iter().enumerate() {
                if landed >> at & 1 == 1 {
                    tape.write(position, bytes, unit);
                }
            }
        }
        Recovered::read(tape, &mut Default::default(), false)
    }

    /// Judges every content that a sector of the disk may have, one by one.
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
    if oracle.crash(at as u64, found, crash) {
        return Ok(());
    }
    let text = oracle.explain(at as u64, found);
    Err(format!("after a crash ({crash:?}), sector {at} {text}"))
}
