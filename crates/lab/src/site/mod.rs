//! A site: many hosts with shared stores, in virtual time, determined by one seed.
//!
//! Each host has a server of the shipped code (dispatcher, shards, journal, protection). The disk
//! and the journal of each volume are on shared stores, which enforce who owns them (`store.rs`).
//! Servers are killed, frozen and cut off, takeovers hit healthy owners, each other and themselves,
//! clocks differ. The driver (`driver.rs`) chooses what happens next: each I/O in flight may reach
//! the store, and its end the server, at any later step.
//!
//! Checked: each sector is a linearizable register over all clients of all hosts, with the two
//! exceptions that `expected.rs` counts; a store never accepts changes of two owners; in the end,
//! after all faults, each volume has an owner, answers everything, and the disk has its content.
//!
//! Limitations: a sector is represented by a stamp, as in the simulator; the driver takes the place
//! of the runtime and of the daemon, and follows their order of steps.

mod driver;
mod events;
mod expected;
mod plan;
mod report;
mod server;
mod store;
mod takeover;
mod upkeep;

pub use report::{SiteFailure, SiteReport, SiteSummary};

use crate::harness::parallel::{Runs, panic_text};
use crate::named::named;
use driver::Site;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

named! {
    /// A bug that can be planted, to check that it is found.
    "planted bug" enum SiteBug {
        /// A fence ends while the former owner is frozen.
        FenceExpires = "fence-expires",
        /// A takeover shuts the former owner out of the disk, and not out of the journal.
        FenceDiskOnly = "fence-disk-only",
        /// A takeover reads the journal before it shuts the former owner out.
        ReadBeforeFence = "read-before-fence",
        /// A takeover serves before it has restored what the journal holds.
        ServeEarly = "serve-early",
        /// A takeover does not look at its stores again before it serves.
        SkipLook = "skip-look",
        /// A server that starts adopts the pool of a killed one on its host.
        AdoptStalePool = "adopt-stale-pool",
        /// The failure of the journal of a volume that was taken over is recorded.
        MarkTakenOver = "mark-taken-over",
        /// A volume on a shared disk continues without its failed journal.
        ContinueWithoutJournal = "continue-without-journal",
        /// A volume that ends because its disk was taken over still voids its records, if the
        /// journal is still here.
        RecordAtEnd = "record-at-end",
    }
}

/// The planted bug of a run, if there is one.
#[derive(Clone, Copy, Debug)]
struct Planted(Option<SiteBug>);

impl Planted {
    fn is(self, bug: SiteBug) -> bool {
        self.0 == Some(bug)
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteOptions {
    /// Determines everything random in the run.
    pub seed: u64,
    /// The most steps until all faults are repaired, of a site with up to four hosts and volumes;
    /// larger ones have more in proportion.
    pub steps: u64,
    /// The number of hosts; drawn if it is not given.
    pub hosts: Option<usize>,
    /// The number of volumes; drawn if it is not given.
    pub volumes: Option<u16>,
    /// A bug to plant.
    pub planted: Option<SiteBug>,
}

impl SiteOptions {
    /// A small site without a planted bug.
    pub const fn new(seed: u64) -> Self {
        Self { seed, steps: 2000, hosts: None, volumes: None, planted: None }
    }
}

const FAILURE_EVENTS: usize = 90;

/// Runs one seed. A failed seed is run again to log its events.
///
/// # Errors
/// Fails if a guarantee is broken, or the shipped code panics.
pub fn run(options: SiteOptions) -> Result<SiteReport, SiteFailure> {
    let mut site = Site::new(&options);
    if catch_unwind(AssertUnwindSafe(|| site.run())).is_ok() && site.violation.is_none() {
        return Ok(site.report);
    }
    let mut site = Site::new(&options);
    site.log = Some(Vec::new());
    let ended = catch_unwind(AssertUnwindSafe(|| site.run()));
    let message = match (site.violation.take(), ended) {
        (Some(violation), _) => violation,
        (None, Err(panic)) => panic_text(&*panic),
        (None, Ok(())) => "the failure did not repeat with the same seed".into(),
    };
    let mut events = site.log.take().unwrap_or_default();
    if let Some(number) = site.failed_volume {
        // Events of other volumes say nothing.
        let ours = format!("volume {number}");
        events.retain(|event| !event.contains("volume") || event.contains(&ours));
    }
    let first = events.len().saturating_sub(FAILURE_EVENTS);
    Err(SiteFailure {
        options,
        message,
        site: site.plan.describe(),
        events: events[first..].to_vec(),
    })
}

/// Runs all seeds of a range, with the other `options` unchanged, on `threads` threads (at least
/// one). Stops early after [`SiteSummary::FAILURES_MAX`] failures.
pub fn run_many(seeds: Range<u64>, options: SiteOptions, threads: usize) -> SiteSummary {
    let summary = SiteSummary::default();
    let mut summary = Runs::execute(seeds.start, threads, summary, |seed, runs| {
        if seed >= seeds.end {
            return false;
        }
        let result = run(SiteOptions { seed, ..options });
        runs.add(|summary: &mut SiteSummary| {
            summary.schedules += 1;
            match result {
                Ok(report) => summary.report.add(&report),
                Err(failure) => summary.failures.push(failure),
            }
            summary.failures.len() >= SiteSummary::FAILURES_MAX
        });
        true
    });
    summary.failures.sort_by_key(|failure| failure.options.seed);
    summary
}
