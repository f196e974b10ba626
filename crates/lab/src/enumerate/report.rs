//! Limits and results of an enumeration.

use super::Workload;
use std::fmt;

/// Limits per workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of orders to follow, at least 1. A workload with more is sampled.
    pub orders: u64,
    /// The number of random orders for a workload with more.
    pub random_orders: u64,
    /// The maximum number of images to check per crash, at least 1. A crash with more is sampled.
    pub images: u64,
}

/// Counts of an enumeration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads run.
    pub workloads: u64,
    /// Workloads with all orders followed.
    pub all_orders: u64,
    /// Orders followed.
    pub orders: u64,
    /// Steps executed.
    pub steps: u64,
    /// Crash points: kills and power failures.
    pub crash_points: u64,
    /// Crash points equal to earlier ones.
    pub repeated: u64,
    /// Other crash points with every image checked.
    pub complete: u64,
    /// Images recovered and read back.
    pub images: u64,
    /// The number of images that the checked crash points can leave.
    pub possible_images: u64,
    /// Logs read for the images.
    pub walks: u64,
}

impl Tally {
    /// Crash points that were checked.
    pub const fn different(&self) -> u64 {
        self.crash_points - self.repeated
    }

    /// Adds the counts of another workload.
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
        let Self { workloads, all_orders, orders, steps, .. } = self;
        writeln!(
            f,
            "{workloads} workloads, {all_orders} of them in all orders; {orders} orders, {steps} \
             steps"
        )?;
        let Self { crash_points, complete, images, walks, .. } = self;
        let (different, sampled) = (self.different(), self.different() - complete);
        write!(
            f,
            "{crash_points} crash points, {different} of them different: {complete} with every \
             image, {sampled} sampled; {images} images recovered and read back, {walks} journals \
             read"
        )
    }
}

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The machine and its operations.
    pub workload: Workload,
    /// The broken guarantee.
    pub message: String,
    /// The events before it.
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

/// The results of many workloads.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The counts.
    pub tally: Tally,
    /// The failed workloads, by their number or seed.
    pub failures: Vec<(u64, Failure)>,
}

impl Summary {
    /// The number of failures after which no further workload begins.
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
