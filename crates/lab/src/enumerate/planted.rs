//! A search for each bug that can be planted.

use super::{Bug, Limits, Workloads};
use crate::sim::{self, Sabotage, SimOptions};
use std::fmt;
use std::time::{Duration, Instant};

/// Requests per simulated run.
const OPERATIONS: u64 = 1000;

/// The first detections of a planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// By enumeration of at most two operations: the workload, and the time.
    pub enumerated: Option<(String, Duration)>,
    /// By the simulator: the seed, and the time.
    pub simulated: Option<(u64, Duration)>,
}

impl Bug {
    /// All bugs that can be planted in this build; those of the engine need the feature `sabotage`.
    pub fn all() -> Vec<Self> {
        #[cfg_attr(not(feature = "sabotage"), allow(unused_mut))]
        let mut all = Sabotage::ALL.map(Self::Driver).to_vec();
        #[cfg(feature = "sabotage")]
        all.extend(forebay_engine::PlantedBug::ALL.map(Self::Engine));
        all
    }

    /// Searches for the bug by enumeration, then by simulation for at most `limit`.
    pub fn find(self, limit: Duration) -> Found {
        Found { enumerated: self.enumerate(), simulated: self.simulate(limit) }
    }

    fn enumerate(self) -> Option<(String, Duration)> {
        let begun = Instant::now();
        let limits = Limits { orders: 200, random_orders: 1, images: 16 };
        let found = [1, 2].into_iter().find_map(|length| {
            let summary = super::run(&Workloads::Length(length), &limits, Some(self), 1);
            summary.failures.into_iter().next()
        });
        found.map(|(_, failure)| (failure.workload.to_string(), begun.elapsed()))
    }

    fn simulate(self, limit: Duration) -> Option<(u64, Duration)> {
        let begun = Instant::now();
        let mut seeds = (0..).take_while(|_| begun.elapsed() < limit);
        let seed = seeds.find(|&seed| {
            let mut options = SimOptions::new(seed, OPERATIONS);
            match self {
                Self::Driver(bug) => options.sabotage = Some(bug),
                #[cfg(feature = "sabotage")]
                Self::Engine(bug) => options.planted = Some(bug),
            }
            sim::run(options).is_err()
        });
        seed.map(|seed| (seed, begun.elapsed()))
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(bug) => f.write_str(bug.name()),
            #[cfg(feature = "sabotage")]
            Self::Engine(bug) => write!(f, "{bug:?}"),
        }
    }
}
