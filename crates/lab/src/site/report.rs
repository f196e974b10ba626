//! Reports of one schedule or of many.

use super::SiteOptions;
use std::fmt;

macro_rules! report {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        /// The counts of a successful schedule, or of several.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct SiteReport {
            $($(#[$doc])* pub $count: u64,)*
        }

        impl SiteReport {
            /// Adds the counts of another schedule.
            pub const fn add(&mut self, other: &Self) {
                $(self.$count += other.$count;)*
            }
        }
    };
}

report! {
    /// Steps.
    steps,
    /// Requests of clients.
    requests,
    /// Writes and erases that were acknowledged.
    acknowledged,
    /// Requests that failed.
    errors,
    /// I/Os that reached a store.
    ios,
    /// I/Os that a store refused.
    refused,
    /// I/Os in flight at a fence, and those of them that reached the store partly.
    in_flight,
    /// See above.
    torn,
    /// Takeovers that began.
    takeovers,
    /// Those of volumes whose owner was served by a running server.
    wrong,
    /// Those that began while another takeover of the volume was under way.
    raced,
    /// Takeovers that did not succeed.
    failed_takeovers,
    /// Owners that began to serve.
    owners,
    /// Pieces of journals restored by them.
    restored,
    /// Journals without space for another start, whose content went to the disk first.
    drained,
    /// Volumes that ended because they were taken over.
    ended,
    /// Volumes that ended because their journal failed.
    ended_without_journal,
    /// Volumes removed in order, to be served elsewhere.
    handed_over,
    /// Servers killed.
    kills,
    /// Servers started.
    starts,
    /// Servers frozen.
    pauses,
    /// Hosts cut off from the stores, or from their clients.
    cuts,
    /// Volumes that a server which starts may not have.
    refused_starts,
    /// Reads answered by servers that were shut out and had not noticed it.
    unnoticed_reads,
    /// Those of them that returned older data than an acknowledged write.
    late_reads,
    /// Sectors that a read saw before their write was acknowledged, and that vanished with their
    /// server.
    vanished_reads,
}

impl fmt::Display for SiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, requests, acknowledged, errors, ios, refused, .. } = self;
        writeln!(
            f,
            "{steps} steps, {requests} requests ({acknowledged} changes acknowledged, {errors} \
             requests failed), {ios} I/Os, {refused} refused by a store"
        )?;
        let Self { kills, starts, pauses, cuts, refused_starts, in_flight, torn, .. } = self;
        writeln!(
            f,
            "{kills} servers killed, {pauses} frozen, {cuts} times cut off, {starts} started, \
             {refused_starts} times without a volume; {in_flight} changes in flight at a fence, \
             {torn} of them done in part"
        )?;
        let Self { takeovers, wrong, raced, failed_takeovers, owners, restored, .. } = self;
        let Self { drained, ended, ended_without_journal, handed_over, .. } = self;
        writeln!(
            f,
            "{takeovers} takeovers: {wrong} of healthy owners, {raced} during others, \
             {failed_takeovers} failed; {owners} owners, {restored} pieces of journals restored, \
             {drained} journals written to the disk first; \
             volumes that ended: {ended} taken over, {ended_without_journal} without a journal, \
             {handed_over} handed over"
        )?;
        let Self { unnoticed_reads, late_reads, vanished_reads, .. } = self;
        write!(
            f,
            "reads answered after a fence, before it was noticed: {unnoticed_reads}, {late_reads} \
             of them older than an acknowledged write; sectors seen before their write was \
             acknowledged, and vanished: {vanished_reads}"
        )
    }
}

/// A schedule that broke a guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFailure {
    /// What repeats it.
    pub options: SiteOptions,
    /// The broken guarantee.
    pub message: String,
    /// The site.
    pub site: String,
    /// The last events.
    pub events: Vec<String>,
}

impl SiteFailure {
    /// The command that repeats the schedule.
    pub fn command(&self) -> String {
        let SiteOptions { seed, steps, hosts, volumes, planted } = self.options;
        let mut command = format!("forebay-lab site --seed {seed} --steps {steps}");
        command += &hosts.map(|count| format!(" --hosts {count}")).unwrap_or_default();
        command += &volumes.map(|count| format!(" --volumes {count}")).unwrap_or_default();
        command + &planted.map(|bug| format!(" --sabotage {bug}")).unwrap_or_default()
    }
}

impl fmt::Display for SiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.options.seed, self.message)?;
        writeln!(f, "site: {}", self.site)?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        write!(f, "again: {}", self.command())
    }
}

impl std::error::Error for SiteFailure {}

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct SiteSummary {
    /// Completed schedules.
    pub schedules: u64,
    /// The sum of the successful ones.
    pub report: SiteReport,
    /// The failed ones in the order of their seeds.
    pub failures: Vec<SiteFailure>,
}

impl SiteSummary {
    /// The number of failures after which no further seed is run.
    pub const FAILURES_MAX: usize = 8;
}

impl fmt::Display for SiteSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}\n")?;
        }
        write!(f, "{} schedules, {} failed\n{}", self.schedules, self.failures.len(), self.report)
    }
}
