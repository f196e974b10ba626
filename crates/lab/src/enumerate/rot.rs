//! The journal's device forgets: one bit is wrong, or one sector can't be read, while the log holds
//! what the disk lacks.
//!
//! Each byte of the device that means anything is tried in turn, and each sector. A start must
//! either find everything all the same, or say that something is damaged; it must never go on with
//! old data as if it were the newest, let alone with wrong data. And when the operator accepts the
//! loss, it must be one batch that is lost, and no more.
//!
//! One case can't be told from a crash by the device alone: the last batch of the log, when a bit
//! of it is wrong, looks like a batch that power cut short before anybody was told of it. These are
//! counted by themselves, and it is checked that they are no more than that batch.

use super::faults::Faults;
use super::journal::{Recovered, Refused};
use super::machine::Journal;
use super::rig::{Rig, brought_back};
use super::store::Tape;
use super::work::{Kept, SECTORS, Workload};
use crate::harness::oracle::{Crash, ZERO, show, stamp};
use crate::harness::parallel::panic_text;
use forebay_journal::FoundRecord;
use forebay_types::SECTOR_BYTES;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE_BYTES: u64 = 4096;
/// Messages kept of what was broken.
const FAILURES_MAX: usize = 20;

/// What was tried, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotSummary {
    /// Journals that were damaged, each in every place.
    pub journals: u64,
    /// Bits that were flipped.
    pub flips: u64,
    /// Sectors that could not be read.
    pub latent: u64,
    /// Starts that said so.
    pub reported: u64,
    /// Starts that found everything all the same.
    pub harmless: u64,
    /// Starts that took the last batch for one that was not finished.
    pub taken_for_torn: u64,
    /// What was broken: how often, and the first of them.
    pub broken: u64,
    /// See above.
    pub failures: Vec<String>,
}

impl RotSummary {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        self.journals += other.journals;
        self.flips += other.flips;
        self.latent += other.latent;
        self.reported += other.reported;
        self.harmless += other.harmless;
        self.taken_for_torn += other.taken_for_torn;
        self.broken += other.broken;
        self.failures.extend(other.failures);
        self.failures.truncate(FAILURES_MAX);
    }
}

impl fmt::Display for RotSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}\n")?;
        }
        write!(
            f,
            "{} journals: {} bits flipped, {} sectors unreadable; {} reported, {} found all the \
             same, {} of the last batch taken for torn; {} violations",
            self.journals,
            self.flips,
            self.latent,
            self.reported,
            self.harmless,
            self.taken_for_torn,
            self.broken
        )
    }
}

#[derive(Clone, Copy, Debug)]
enum Rot {
    Bit { position: u64, bits: u8 },
    Sector(u64),
}

/// Damages the journal that a workload leaves: one bit of every byte, `bits_each` of them (1 to 8),
/// and every sector.
pub fn rot(workload: &Workload, bits_each: u8) -> RotSummary {
    let mut summary = RotSummary::default();
    let mut rig = Rig::new(workload, None);
    rig.run_dry();
    let Some(journal) = rig.machine.journal.as_ref().filter(|_| workload.kept != Kept::None) else {
        return summary;
    };
    let tape = journal.tape.clone();
    let Ok(whole) = Recovered::read(tape.clone(), &mut Faults::default(), false) else {
        summary.broken += 1;
        summary.failures.push(format!("{workload}: a kill is no damage"));
        return summary;
    };
    summary.journals = 1;
    for page in tape.written() {
        for position in page..page + PAGE_BYTES {
            for bit in 0..bits_each {
                let bits = 1 << ((position + u64::from(bit)) % 8);
                summary.flips += 1;
                try_one(&rig, workload, &whole, Rot::Bit { position, bits }, &mut summary);
            }
        }
        for sector in page / SECTOR_BYTES..(page + PAGE_BYTES) / SECTOR_BYTES {
            summary.latent += 1;
            try_one(&rig, workload, &whole, Rot::Sector(sector), &mut summary);
        }
    }
    summary
}

fn try_one(rig: &Rig, workload: &Workload, whole: &Recovered, rot: Rot, summary: &mut RotSummary) {
    let tried = catch_unwind(AssertUnwindSafe(|| start(rig, whole, rot)));
    let tried = tried.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    match tried {
        Ok(End::Reported) => summary.reported += 1,
        Ok(End::Whole) => summary.harmless += 1,
        Ok(End::TakenForTorn) => summary.taken_for_torn += 1,
        Err(message) => {
            summary.broken += 1;
            if summary.failures.len() < FAILURES_MAX {
                summary.failures.push(format!("{workload}; {rot:?}: {message}"));
            }
        }
    }
}

/// How a start over a damaged journal ends well.
enum End {
    Reported,
    Whole,
    TakenForTorn,
}

fn start(rig: &Rig, whole: &Recovered, rot: Rot) -> Result<End, String> {
    let mut tape: Tape = whole.tape.clone();
    match rot {
        Rot::Bit { position, bits } => tape.flip(position, bits),
        Rot::Sector(sector) => tape.unreadable.push(sector),
    }
    let content = rig.machine.disk.content();
    match Recovered::read(tape.clone(), &mut Faults::default(), false) {
        Ok(recovered) => {
            let lost = (0..SECTORS).find_map(|at| {
                let found = brought_back(&content, Some(&recovered))[at];
                (!rig.machine.oracle.crash(at as u64, found, Crash::Process)).then_some((at, found))
            });
            let Some((at, found)) = lost else { return Ok(End::Whole) };
            if matches!(rot, Rot::Bit { .. }) && lacks_the_last_batch(whole, &recovered) {
                return Ok(End::TakenForTorn);
            }
            let allowed = rig.machine.oracle.describe(at as u64);
            let found = show(found);
            Err(format!("nothing is said, and sector {at} is {found}; it may be\n    {allowed}"))
        }
        Err(Refused::Unusable(_)) => Ok(End::Reported),
        Err(Refused::Damaged(said)) => {
            let accepted = Recovered::read(tape, &mut Faults::default(), true);
            let Ok(mut accepted) = accepted else { return Ok(End::Reported) };
            let said = |what| format!("{said}: {what}");
            check_accepted(rig, whole, &accepted).map_err(said)?;
            goes_on(rig, &accepted).map_err(said)?;
            // What could not be read may be read the next time.
            accepted.tape.unreadable.clear();
            goes_on(rig, &accepted).map_err(said)?;
            Ok(End::Reported)
        }
    }
}

/// Whether what was found is all but the last batch.
fn lacks_the_last_batch(whole: &Recovered, recovered: &Recovered) -> bool {
    whole.found.next_batch == recovered.found.next_batch + 1
        && whole.found.records.starts_with(&recovered.found.records)
}

/// With the loss accepted, what is written after that is kept.
fn goes_on(rig: &Rig, accepted: &Recovered) -> Result<(), String> {
    const NEW: u64 = stamp(0, 0, u32::MAX);
    let machine = &rig.machine;
    let Some(mut journal) = Journal::resume(accepted, machine.kept) else { return Ok(()) };
    journal.write_at_once(0, NEW);
    let again = Recovered::read(journal.tape, &mut Faults::default(), true);
    match again.map(|again| again.overlay()[0]) {
        Ok(Some(NEW)) => Ok(()),
        other => Err(format!("what is written after that comes back as {other:?}")),
    }
}

/// With the loss accepted: the records of one batch are gone, no others, and nothing is brought
/// back that nobody wrote.
fn check_accepted(rig: &Rig, whole: &Recovered, accepted: &Recovered) -> Result<(), String> {
    for (at, stamp) in accepted.overlay().into_iter().enumerate() {
        let Some(stamp) = stamp else { continue };
        if stamp != ZERO && !rig.machine.oracle.was_written(at as u64, stamp) {
            return Err(format!("sector {at} comes back as {}", show(stamp)));
        }
    }
    let has = |found: &&FoundRecord| {
        let same = |other: &&FoundRecord| other.position == found.position;
        let other = accepted.found.records.iter().find(same);
        other.is_some_and(|other| !other.is_damaged)
    };
    let mut batches: Vec<u64> = whole
        .found
        .records
        .iter()
        .filter(|found| !has(found))
        .map(|found| found.position - u64::from(found.record.payload_offset))
        .collect();
    batches.dedup();
    match batches.len() {
        0 | 1 => Ok(()),
        count => Err(format!("{count} batches are lost with it")),
    }
}
