//! Damage to the journal's device: one wrong bit, or one unreadable sector, while the log holds
//! data that the disk lacks.
//!
//! Each meaningful byte of the device and each sector is damaged in turn. A start must either find
//! everything or report the damage; it must never continue with stale or wrong data. If the
//! operator accepts the loss, at most one batch may be lost.
//!
//! In one case, the device looks the same after damage as after a crash: a wrong bit in the last
//! batch looks like a batch that a power failure tore before its acknowledgement. These cases are
//! counted separately, and at most that batch may be lost.

use super::faults::Faults;
use super::journal::{Recovered, Refused};
use super::machine::Journal;
use super::rig::{Rig, overlaid};
use super::work::Workload;
use crate::harness::log_device::LogDevice;
use crate::harness::oracle::{Crash, ZERO, describe_stamp, stamp};
use crate::harness::parallel::panic_text;
use crate::harness::places::SECTORS;
use forebay_journal::FoundRecord;
use forebay_types::SECTOR_BYTES;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE_BYTES: u64 = 4096;
/// The maximum number of failure messages.
const FAILURES_MAX: usize = 20;

/// The results of damage to journals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotSummary {
    /// Journals damaged in every place.
    pub journals: u64,
    /// Bits flipped.
    pub flips: u64,
    /// Sectors made unreadable.
    pub latent: u64,
    /// Starts that reported the damage.
    pub reported: u64,
    /// Starts that found everything.
    pub harmless: u64,
    /// Starts that took the last batch for a torn one.
    pub taken_for_torn: u64,
    /// The number of broken guarantees.
    pub broken: u64,
    /// The first broken guarantees.
    pub failures: Vec<String>,
}

impl RotSummary {
    /// Adds the results of another workload.
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
        let Self { journals, flips, latent, reported, harmless, taken_for_torn, broken, .. } = self;
        write!(
            f,
            "{journals} journals: {flips} bits flipped, {latent} sectors unreadable; {reported} \
             reported, {harmless} without loss, {taken_for_torn} with the last batch taken for a \
             torn one; {broken} violations"
        )
    }
}

#[derive(Clone, Copy, Debug)]
enum Rot {
    Bit { position: u64, bits: u8 },
    Sector(u64),
}

/// Damages the journal that a workload leaves behind: `bits_each` bits (1 to 8) of every byte, one
/// at a time, and every sector.
pub fn rot(workload: &Workload, bits_each: u8) -> RotSummary {
    let mut summary = RotSummary::default();
    let mut rig = Rig::new(workload, None);
    rig.run_to_completion();
    let Some(journal) = &rig.machine.journal else { return summary };
    let device = journal.device.clone();
    let Ok(whole) = Recovered::read(device.clone(), &mut Faults::default(), false) else {
        summary.broken += 1;
        summary.failures.push(format!("{workload}: a kill is reported as damage"));
        return summary;
    };
    summary.journals = 1;
    for page in device.written() {
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

/// The result of a successful start on a damaged journal.
enum End {
    Reported,
    Whole,
    TakenForTorn,
}

fn start(rig: &Rig, whole: &Recovered, rot: Rot) -> Result<End, String> {
    let mut device: LogDevice = whole.device.clone();
    match rot {
        Rot::Bit { position, bits } => device.flip(position, bits),
        Rot::Sector(sector) => device.unreadable.push(sector),
    }
    let content = rig.machine.disk.content();
    match Recovered::read(device.clone(), &mut Faults::default(), false) {
        Ok(recovered) => {
            let restored = overlaid(content, &recovered.pieces);
            let lost = (0..SECTORS).find_map(|at| {
                let found = restored[at];
                (!rig.machine.oracle.check_crash(at as u64, found, Crash::Process))
                    .then_some((at, found))
            });
            let Some((at, found)) = lost else { return Ok(End::Whole) };
            if matches!(rot, Rot::Bit { .. }) && lacks_the_last_batch(whole, &recovered) {
                return Ok(End::TakenForTorn);
            }
            let allowed = rig.machine.oracle.describe(at as u64);
            let found = describe_stamp(found);
            Err(format!("unreported: sector {at} is {found}; permitted are\n    {allowed}"))
        }
        Err(Refused::Unusable(_)) => Ok(End::Reported),
        Err(Refused::Damaged(said)) => {
            let accepted = Recovered::read(device, &mut Faults::default(), true);
            let Ok(mut accepted) = accepted else { return Ok(End::Reported) };
            let said = |what| format!("{said}: {what}");
            check_accepted(rig, whole, &accepted).map_err(said)?;
            check_resumed(rig, &accepted).map_err(said)?;
            // A sector that was unreadable may be readable at the next start.
            accepted.device.unreadable.clear();
            check_resumed(rig, &accepted).map_err(said)?;
            Ok(End::Reported)
        }
    }
}

/// Whether only the last batch is missing.
fn lacks_the_last_batch(whole: &Recovered, recovered: &Recovered) -> bool {
    whole.found.next_batch == recovered.found.next_batch + 1
        && whole.found.records.starts_with(&recovered.found.records)
}

/// Checks that later writes are kept once the loss has been accepted.
fn check_resumed(rig: &Rig, accepted: &Recovered) -> Result<(), String> {
    const NEW: u64 = stamp(0, 0, u32::MAX);
    let machine = &rig.machine;
    let Some(mut journal) = Journal::resume(accepted, machine.protected_by) else { return Ok(()) };
    journal.write_durably(0, NEW);
    let again = Recovered::read(journal.device, &mut Faults::default(), true);
    match again.map(|again| again.overlay()[0]) {
        Ok(Some(NEW)) => Ok(()),
        other => Err(format!("a later write is restored as {other:?}")),
    }
}

/// Checks that a start that accepts the loss misses the records of at most one batch and restores
/// only data that a client wrote.
fn check_accepted(rig: &Rig, whole: &Recovered, accepted: &Recovered) -> Result<(), String> {
    for (at, stamp) in accepted.overlay().into_iter().enumerate() {
        let Some(stamp) = stamp else { continue };
        if stamp != ZERO && !rig.machine.oracle.was_written(at as u64, stamp) {
            return Err(format!("sector {at} is restored as {}", describe_stamp(stamp)));
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
        count => Err(format!("{count} batches are lost")),
    }
}
