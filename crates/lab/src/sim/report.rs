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

macro_rules! report {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        /// What happened in a run that broke no promise, or in several of them together.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SimReport {
            /// The seed; of the first run, where there are several.
            pub seed: u64,
            /// What the shards counted, all volumes and processes together.
            pub counters: VolumeCounters,
            $($(#[$doc])* pub $count: u64,)*
        }

        impl SimReport {
            /// Adds another run.
            pub const fn add(&mut self, other: &Self) {
                $(self.$count += other.$count;)*
                self.counters.add(&other.counters);
            }
        }
    };
}

report! {
    /// Requests answered or lost in a crash, those of the checks included.
    operations,
    /// Requests that failed, each for a fault that it met.
    errors,
    /// I/Os that shards asked for.
    ios,
    /// Things that happened.
    events,
    /// Times that the process was killed or the power went.
    crashes,
    /// Times that it was killed and left its pool to the next one.
    kills,
    /// Lines that were found then, lines that were on their way to another slot, and sectors that
    /// were dropped because they were being filled.
    kept_lines,
    /// See above.
    moving_lines,
    /// See above.
    torn_sectors,
    /// Looks at what disks that are written in order would hold alone.
    order_checks,
    /// Changes of a volume's mode.
    mode_changes,
    /// Batches and superblocks that the journals wrote, their checkpoints, and how many failed.
    journal_writes,
    /// See above.
    checkpoints,
    /// Sectors that disks did not take and that were recorded once more.
    forward_sectors,
    /// Sectors that were lost in the pool and came back from the journal.
    regained_sectors,
    /// Checkpoints that fenced them instead.
    fences,
    /// Changes that needed no record.
    journal_needless,
    /// Changes that were refused one.
    journal_refused,
    /// Starts that failed, and ended the run: a full journal was held by what was lost in memory.
    held_up,
    /// Changes that failed as nothing could be said of them in a full journal.
    journal_unsaid,
    /// See above.
    journal_failures,
    /// Requests that were answered with an error, done or not, because power was failing.
    halted,
    /// Devices of mirrored journals that were left behind, starts with one of two, and devices
    /// that were written anew.
    journal_losses,
    /// See above.
    journal_alone,
    /// See above.
    journal_rewritten,
    /// Extents that journals and vaults gave back after a crash.
    restored_extents,
    /// Lines damaged before somebody looked at them.
    damaged_lines,
    /// Dirty sectors that were given up for it.
    lost_sectors,
    /// Lines evicted.
    evicted_lines,
    /// Simulated time, in microseconds.
    virtual_us,
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
