//! What a run, or many of them, tell.

use crate::harness::Sabotage;
use forebay_engine::VolumeCounters;
use std::fmt;

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Decides everything else.
    pub seed: u64,
    /// Requests that clients submit, at least 1. Those of the final checks come on top.
    pub operations: u64,
    /// A bug to plant in the driver or the disk.
    pub sabotage: Option<Sabotage>,
    /// A bug to plant in the engine.
    #[cfg(feature = "sabotage")]
    pub planted: Option<forebay_engine::PlantedBug>,
}

impl SimOptions {
    /// A run without planted bugs.
    pub const fn new(seed: u64, operations: u64) -> Self {
        Self {
            seed,
            operations,
            sabotage: None,
            #[cfg(feature = "sabotage")]
            planted: None,
        }
    }
}

/// What happened in a run that broke no promise, or in several of them together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimReport {
    /// The seed; of the first run, where there are several.
    pub seed: u64,
    /// Requests answered or lost in a crash, those of the checks included.
    pub operations: u64,
    /// Requests that failed, each for a fault that it met.
    pub errors: u64,
    /// I/Os that shards asked for.
    pub ios: u64,
    /// Things that happened.
    pub events: u64,
    /// Times that the process was killed or the power went.
    pub crashes: u64,
    /// Times that it was killed and left its pool to the next one.
    pub kills: u64,
    /// Lines that were found then, lines that were on their way to another slot, and sectors that
    /// were dropped because they were being filled.
    pub kept_lines: u64,
    /// See above.
    pub moving_lines: u64,
    /// See above.
    pub torn_sectors: u64,
    /// Looks at what disks that are written in order would hold alone.
    pub order_checks: u64,
    /// Changes of a volume's mode.
    pub mode_changes: u64,
    /// Batches and superblocks that the journals wrote, their checkpoints, and how many failed.
    pub journal_writes: u64,
    /// See above.
    pub checkpoints: u64,
    /// Sectors that disks did not take and that were recorded once more.
    pub forward_sectors: u64,
    /// Sectors that were lost in the pool and came back from the journal.
    pub regained_sectors: u64,
    /// Checkpoints that fenced them instead.
    pub fences: u64,
    /// Changes that needed no record.
    pub journal_needless: u64,
    /// Changes that were refused one.
    pub journal_refused: u64,
    /// Starts that failed, and ended the run: a full journal was held by what was lost in memory.
    pub held_up: u64,
    /// Changes that failed as nothing could be said of them in a full journal.
    pub journal_unsaid: u64,
    /// See above.
    pub journal_failures: u64,
    /// Requests that were answered with an error, done or not, because power was failing.
    pub halted: u64,
    /// Devices of mirrored journals that were left behind, starts with one of two, and devices
    /// that were written anew.
    pub journal_losses: u64,
    /// See above.
    pub journal_alone: u64,
    /// See above.
    pub journal_rewritten: u64,
    /// Extents that journals and vaults gave back after a crash.
    pub restored_extents: u64,
    /// Lines damaged before somebody looked at them.
    pub damaged_lines: u64,
    /// Dirty sectors that were given up for it.
    pub lost_sectors: u64,
    /// Lines evicted.
    pub evicted_lines: u64,
    /// Simulated time, in microseconds.
    pub virtual_us: u64,
    /// What the shards counted, all volumes and processes together.
    pub counters: VolumeCounters,
}

impl SimReport {
    /// Adds another run.
    pub const fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.ios += other.ios;
        self.events += other.events;
        self.crashes += other.crashes;
        self.kills += other.kills;
        self.kept_lines += other.kept_lines;
        self.moving_lines += other.moving_lines;
        self.torn_sectors += other.torn_sectors;
        self.order_checks += other.order_checks;
        self.mode_changes += other.mode_changes;
        self.journal_writes += other.journal_writes;
        self.checkpoints += other.checkpoints;
        self.forward_sectors += other.forward_sectors;
        self.fences += other.fences;
        self.regained_sectors += other.regained_sectors;
        self.journal_needless += other.journal_needless;
        self.journal_refused += other.journal_refused;
        self.journal_unsaid += other.journal_unsaid;
        self.held_up += other.held_up;
        self.journal_failures += other.journal_failures;
        self.halted += other.halted;
        self.journal_losses += other.journal_losses;
        self.journal_alone += other.journal_alone;
        self.journal_rewritten += other.journal_rewritten;
        self.restored_extents += other.restored_extents;
        self.damaged_lines += other.damaged_lines;
        self.lost_sectors += other.lost_sectors;
        self.evicted_lines += other.evicted_lines;
        self.virtual_us += other.virtual_us;
        self.counters.add(&other.counters);
    }
}

impl SimReport {
    fn fmt_gathering(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counters;
        writeln!(
            f,
            "gathered: {} writes held back, {} went together in {} I/Os; destaged: {} whole \
             stripes, {} scattered",
            c.writes_held,
            c.gathered_writes,
            c.gathered_ios,
            c.destaged_stripes,
            c.scattered_destages
        )
    }

    fn fmt_journal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "journal: {} checkpoints, {} sectors recorded again and {} fences; {} changes needed \
             no record, {} found no room, {} failed for that; {} starts held up",
            self.checkpoints,
            self.forward_sectors,
            self.fences,
            self.journal_needless,
            self.journal_refused,
            self.journal_unsaid,
            self.held_up
        )
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counters;
        writeln!(
            f,
            "{} operations ({} failed for a fault), {} I/Os, {} events, {} crashes, {} changes of \
             mode, {} s simulated",
            self.operations,
            self.errors,
            self.ios,
            self.events,
            self.crashes,
            self.mode_changes,
            self.virtual_us / 1_000_000
        )?;
        writeln!(
            f,
            "kills that left the pool: {}; {} lines kept, {} moving, {} sectors cut short; looks \
             at disks written in order: {}",
            self.kills, self.kept_lines, self.moving_lines, self.torn_sectors, self.order_checks
        )?;
        writeln!(
            f,
            "lines: {} hit, {} missed, {} fetched ahead, {} relocated, {} evicted, {} destaged",
            c.read_hit_lines,
            c.read_miss_lines,
            c.prefetched_lines,
            c.relocated_lines,
            self.evicted_lines,
            c.destaged_lines
        )?;
        writeln!(
            f,
            "writes: {} back, {} refused as power failed; through: {} mode, {} protection, {} fua, \
             {} dirty limit, {} no room",
            c.writes_back,
            self.halted,
            c.writes_through_mode,
            c.writes_through_protection,
            c.writes_through_fua,
            c.writes_through_dirty_limit,
            c.writes_through_no_room
        )?;
        self.fmt_gathering(f)?;
        self.fmt_journal(f)?;
        writeln!(
            f,
            "damage: {} lines, {} corrected, {} fetched again; {} sectors lost in {} lines, {} of \
             them back from a journal",
            self.damaged_lines,
            c.corrected_lines,
            c.refetched_lines,
            self.lost_sectors,
            c.lost_lines,
            self.regained_sectors
        )?;
        write!(
            f,
            "direct reads: {} bypass, {} no room, {} after an error; {} waits; errors: {} fill, \
             {} write, {} destage",
            c.direct_reads_bypass,
            c.direct_reads_no_room,
            c.direct_reads_after_error,
            c.waits,
            c.fill_errors,
            c.write_errors,
            c.destage_errors
        )
    }
}

/// A run that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that brings it back.
    pub seed: u64,
    /// With this many operations.
    pub operations: u64,
    /// Which promise, and how.
    pub message: String,
    /// What the seed made of the machine.
    pub machine: String,
    /// The last things that happened to the line concerned, or at all where it is about none.
    pub events: Vec<String>,
}

impl Failure {
    /// The command that runs it again.
    pub fn command(&self) -> String {
        format!("forebay-lab sim --seed {} --operations {}", self.seed, self.operations)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.message)?;
        writeln!(f, "machine: {}", self.machine)?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        write!(f, "again: {}", self.command())
    }
}

impl std::error::Error for Failure {}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs that were made.
    pub runs: u64,
    /// Runs that broke no promise, added up.
    pub report: SimReport,
    /// Those that did, in the order of their seeds; no more than [`Summary::FAILURES_MAX`].
    pub failures: Vec<Failure>,
}

impl Summary {
    /// Failures after which no further seed is tried.
    pub const FAILURES_MAX: usize = 8;
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}\n")?;
        }
        write!(f, "{} runs, {} failed\n{}", self.runs, self.failures.len(), self.report)
    }
}
