//! How far to go, and what came of it.

use super::Workload;
use std::fmt;

/// How far each workload is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Orders followed of a workload, at least 1. One that has more is sampled.
    pub orders: u64,
    /// Random orders followed of one that has more.
    pub random_orders: u64,
    /// Images looked at of one crash, at least 1. One that can leave more is sampled.
    pub images: u64,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads gone through.
    pub workloads: u64,
    /// Those of which all orders were followed.
    pub all_orders: u64,
    /// Orders followed.
    pub orders: u64,
    /// Things that happened.
    pub steps: u64,
    /// Moments at which the process was killed, and moments at which the power went.
    pub crash_points: u64,
    /// Those that were like one that had been looked at before.
    pub repeated: u64,
    /// Of the others, those of which every image was looked at.
    pub complete: u64,
    /// Images recovered and read back.
    pub images: u64,
    /// Images that there were.
    pub possible_images: u64,
    /// Journals walked for them.
    pub walks: u64,
}

impl Tally {
    /// Crash points that were looked at.
    pub const fn different(&self) -> u64 {
        self.crash_points - self.repeated
    }

    /// Adds another workload.
    pub const fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.all_orders += other.all_orders;
        self.orders += other.orders;
        self.steps += other.steps;
        self.crash_points += other.crash_points;
        self.repeated += other.repeated;
        self.complete += other.complete;
        self.images += other.images;
        self.possible_images = self.possible_images.saturating_add(other.possible_images);
        self.walks += other.walks;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} workloads, of {} of them all orders; {} orders, {} steps",
            self.workloads, self.all_orders, self.orders, self.steps
        )?;
        write!(
            f,
            "{} crash points, {} of them different: {} with every image, {} sampled; {} images \
             recovered and read back, {} journals walked",
            self.crash_points,
            self.different(),
            self.complete,
            self.different() - self.complete,
            self.images,
            self.walks
        )
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// By which machine, doing what.
    pub workload: Workload,
    /// Which promise, and how.
    pub message: String,
    /// What happened before.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.workload)?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for Failure {}

/// What came of many workloads.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// What was looked at.
    pub tally: Tally,
    /// The workloads that broke a promise, by their number or seed.
    pub failures: Vec<(u64, Failure)>,
}

impl Summary {
    /// Failures after which no further workload is begun.
    pub const FAILURES_MAX: usize = 4;
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, failure) in &self.failures {
            writeln!(f, "workload {number}: {failure}\n")?;
        }
        write!(f, "{}\n{} violations", self.tally, self.failures.len())
    }
}
