//! Reports of one run or of many.

use crate::harness::Sabotage;
use forebay_engine::VolumeCounters;
use std::fmt;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Determines everything random in the run.
    pub seed: u64,
    /// The number of requests after which no client submits another, at least 1. Checkpoints and
    /// the requests of recoveries count; those of the final checks are added.
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
        /// The counts of a successful run, or of several.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SimReport {
            /// The seed; that of the first run if there are several.
            pub seed: u64,
            /// Counters of the shards, summed over volumes and processes.
            pub counters: VolumeCounters,
            $($(#[$doc])* pub $count: u64,)*
        }

        impl SimReport {
            /// Adds the counts of another run.
            pub const fn add(&mut self, other: &Self) {
                $(self.$count += other.$count;)*
                self.counters.add(&other.counters);
            }
        }
    };
}

report! {
    /// Requests answered or lost in a crash, including those of checkpoints, recoveries and checks.
    operations,
    /// Requests that failed because of a fault.
    errors,
    /// I/Os that shards requested.
    ios,
    /// Events processed.
    events,
    /// Crashes of the process, with or without the power.
    crashes,
    /// Kills that left the pool behind.
    kills,
    /// Lines found after kills that left the pool.
    kept_lines,
    /// Lines in relocation at kills that left the pool.
    moving_lines,
    /// Sectors dropped after kills that left the pool, because they were being filled.
    torn_sectors,
    /// Shards whose memory had been given back in part at kills that left the pool.
    kept_smaller,
    /// Changes of the size of the pool.
    resizes,
    /// Slabs given back.
    given_back_slabs,
    /// Samples on which the size of a pool was decided.
    size_samples,
    /// Shrinks because memory was short.
    size_shrinks,
    /// Samples with a shortage that found the pool at its minimum.
    size_minimums,
    /// Growths because memory was free.
    size_growths,
    /// Those directly after a shrink.
    size_regrowths,
    /// Samples with wrong figures.
    wrong_figures,
    /// Samples without figures.
    missing_figures,
    /// Changes of the settings of the size.
    size_settings,
    /// Changes of the share of the pool for writes.
    share_changes,
    /// Shards in which more was dirty than a new share allows.
    lowered_shares,
    /// Changes of the shares of a volume.
    pool_share_changes,
    /// Shards in which a volume had more lines than its new largest share.
    lowered_pool_shares,
    /// Changes of a volume's hold-out.
    hold_out_changes,
    /// Freezes and thaws of volumes.
    freeze_changes,
    /// Inspections of the disks of ordered volumes.
    order_checks,
    /// Changes of a volume's mode.
    mode_changes,
    /// Changes of a volume's pinned ranges.
    pin_changes,
    /// Lines of pinned ranges that a resize has moved.
    moved_pins,
    /// Batches and superblocks that the journals wrote.
    journal_writes,
    /// Checkpoints of the journals.
    checkpoints,
    /// Sectors that disks refused and that were recorded again.
    forward_sectors,
    /// Sectors lost in the pool and restored from the journal.
    regained_sectors,
    /// Checkpoints that fenced refused data instead.
    fences,
    /// Changes that needed no record.
    journal_unneeded,
    /// Changes that the journal refused to record.
    journal_refused,
    /// Starts that failed because the journal failed before a volume was served, and were repeated.
    repeated_starts,
    /// Starts that failed and ended the run: lost data occupied the whole journal.
    failed_starts,
    /// Changes that failed because the journal had no space for their records.
    journal_no_space,
    /// Journals that failed.
    journal_failures,
    /// Dumps of volumes whose journal had failed.
    dumps_without_journal,
    /// Dumps made again, because a journal failed after the first.
    dumps_again,
    /// Power failures that ended after a dump.
    mains_back,
    /// Requests that failed because power was failing.
    halted,
    /// Devices of mirrored journals that failed.
    journal_losses,
    /// Starts with one device of a mirrored journal.
    degraded_starts,
    /// Devices of mirrored journals that were rewritten.
    journal_rewritten,
    /// Extents restored from journals and vaults after a crash.
    restored_extents,
    /// Lines damaged before an inspection.
    damaged_lines,
    /// Dirty sectors given up because of damage.
    lost_sectors,
    /// Lost sectors that the patrol found while a process adopted a pool.
    adopted_lost_sectors,
    /// Processes killed while they adopted a pool, which they left.
    adopters_killed,
    /// Evicted lines.
    evicted_lines,
    /// Simulated time, in microseconds.
    virtual_us,
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, errors, ios, events, crashes, mode_changes, .. } = self;
        let seconds = self.virtual_us / 1_000_000;
        writeln!(
            f,
            "{operations} operations ({errors} failed because of faults), {ios} I/Os, {events} \
             events, {crashes} crashes, {mode_changes} changes of mode, {seconds} s simulated"
        )?;
        let Self { kills, kept_lines, moving_lines, torn_sectors, order_checks, .. } = self;
        writeln!(
            f,
            "kills that left the pool: {kills}; {kept_lines} lines kept, {moving_lines} moving, \
             {torn_sectors} sectors torn; checks of ordered disks: {order_checks}"
        )?;
        let Self { resizes, given_back_slabs, kept_smaller, counters, .. } = self;
        let Self { pin_changes, moved_pins, share_changes, lowered_shares, .. } = self;
        let Self { hold_out_changes, freeze_changes, .. } = self;
        let Self { pool_share_changes, lowered_pool_shares, .. } = self;
        let VolumeCounters { moved_lines, direct_reads_hold_out, .. } = counters;
        let VolumeCounters { writes_through_hold_out, direct_reads_frozen, .. } = counters;
        writeln!(
            f,
            "resizes: {resizes}; {given_back_slabs} slabs given back, {moved_lines} lines moved, \
             {moved_pins} of them pinned; {kept_smaller} shrunken shards adopted; {pin_changes} \
             changes of pins; {share_changes} changes of the share for writes, {lowered_shares} \
             times below the dirty data of a shard; {pool_share_changes} changes of the shares of \
             volumes, {lowered_pool_shares} times below the lines of one in a shard; \
             {hold_out_changes} changes of the hold-out, {direct_reads_hold_out} reads and \
             {writes_through_hold_out} writes in it; \
             {freeze_changes} freezes and thaws, {direct_reads_frozen} reads past the frozen cache"
        )?;
        self.fmt_sizing(f)?;
        self.fmt_cache(f)?;
        self.fmt_journal(f)?;
        let Self { damaged_lines, lost_sectors, regained_sectors, .. } = self;
        let Self { adopted_lost_sectors, adopters_killed, .. } = self;
        let VolumeCounters { corrected_lines, refetched_lines, lost_lines, .. } = self.counters;
        writeln!(
            f,
            "damage: {damaged_lines} lines, {corrected_lines} corrected, {refetched_lines} fetched \
             again; {lost_sectors} sectors lost in {lost_lines} lines, {regained_sectors} of them \
             restored from a journal; while a pool was adopted: {adopted_lost_sectors} sectors \
             lost, {adopters_killed} kills"
        )?;
        let c = &self.counters;
        let (bypass, no_room) = (c.direct_reads_bypass, c.direct_reads_no_room);
        let VolumeCounters { direct_reads_after_error, waits, .. } = c;
        let VolumeCounters { fill_errors, write_errors, destage_errors, .. } = c;
        write!(
            f,
            "direct reads: {bypass} bypass, {no_room} no free slot, {direct_reads_after_error} \
             after an error; {waits} waits; errors: {fill_errors} fill, {write_errors} write, \
             {destage_errors} destage"
        )
    }
}

impl SimReport {
    fn fmt_journal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checkpoints, forward_sectors, fences, failed_starts, repeated_starts, .. } =
            self;
        let Self { journal_unneeded, journal_refused, journal_no_space, .. } = self;
        writeln!(
            f,
            "journal: {checkpoints} checkpoints, {forward_sectors} sectors recorded again and \
             {fences} fences; {journal_unneeded} changes needed no record, {journal_refused} got \
             none for lack of space, {journal_no_space} failed for lack of space; {failed_starts} \
             starts failed on a full journal, and {repeated_starts} when it failed"
        )?;
        let Self {
            journal_writes,
            journal_failures,
            journal_losses,
            dumps_without_journal,
            dumps_again,
            mains_back,
            ..
        } = self;
        let Self { degraded_starts, journal_rewritten, restored_extents, .. } = self;
        writeln!(
            f,
            "journal devices: {journal_writes} writes, {journal_failures} journals failed, \
             {dumps_without_journal} dumps without them, {dumps_again} again; {mains_back} \
             times mains back; mirrors: {journal_losses} devices lost, \
             {degraded_starts} starts with one, {journal_rewritten} rewritten; {restored_extents} \
             extents restored"
        )
    }

    fn fmt_sizing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size_samples, size_shrinks, size_minimums, size_growths, .. } = self;
        let Self { size_regrowths, wrong_figures, missing_figures, size_settings, .. } = self;
        writeln!(
            f,
            "pools that size themselves: {size_samples} samples, {wrong_figures} of them wrong, \
             {missing_figures} missing; {size_shrinks} shrinks, {size_minimums} times at the \
             minimum, {size_growths} growths, {size_regrowths} of them the first after a shrink; \
             {size_settings} changes of settings"
        )
    }

    fn fmt_cache(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counters: c, evicted_lines, halted, .. } = self;
        let VolumeCounters { read_hit_lines, read_miss_lines, prefetched_lines, .. } = c;
        let VolumeCounters { relocated_lines, destaged_lines, writes_back, .. } = c;
        writeln!(
            f,
            "lines: {read_hit_lines} hit, {read_miss_lines} missed, {prefetched_lines} read \
             ahead, {relocated_lines} relocated, {evicted_lines} evicted, {destaged_lines} destaged"
        )?;
        let (mode, protection) = (c.writes_through_mode, c.writes_through_protection);
        let (fua, limit) = (c.writes_through_fua, c.writes_through_dirty_limit);
        let no_room = c.writes_through_no_room;
        writeln!(
            f,
            "writes: {writes_back} back, {halted} refused in power failures; through: {mode} mode, \
             {protection} protection, {fua} fua, {limit} dirty limit, {no_room} no free slot"
        )?;
        let VolumeCounters { writes_held, gathered_writes, gathered_ios, .. } = c;
        let VolumeCounters { destaged_stripes, scattered_destages, .. } = c;
        writeln!(
            f,
            "gathered: {writes_held} writes held back, {gathered_writes} of them written in \
             {gathered_ios} I/Os; destaged: {destaged_stripes} whole stripes, {scattered_destages} \
             scattered"
        )
    }
}

/// A run that broke a guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that repeats it.
    pub seed: u64,
    /// The number of operations that repeats it.
    pub operations: u64,
    /// The broken guarantee.
    pub message: String,
    /// The machine.
    pub machine: String,
    /// The last events of the line concerned, or of all lines if the failure concerns none.
    pub events: Vec<String>,
}

impl Failure {
    /// The command that repeats the run, except for a planted bug.
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

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Completed runs.
    pub runs: u64,
    /// The sum of the successful runs.
    pub report: SimReport,
    /// The failed runs in the order of their seeds, at most [`Summary::FAILURES_MAX`].
    pub failures: Vec<Failure>,
}

impl Summary {
    /// The number of failures after which no further seed is run.
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
