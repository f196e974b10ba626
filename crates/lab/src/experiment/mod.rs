//! Experiments in virtual time: what the cache is worth to those who use it.
//!
//! Each repeats what was once measured of an older cache, on modelled disks, and shows its figures
//! beside the ones that are known of that. The cache is the shipped one. Hours of its life take
//! seconds, and the same seed gives the same figures.
//!
//! `machine.rs` is the machine: clients, link, cache, disk. One file for each experiment has its
//! users and its table.

mod cache_effect;
mod call_center;
mod disk;
mod disk_time;
mod host;
mod logon;
mod machine;
mod overrun;
mod plot;
mod read_latency;
mod report;
mod trouble;
mod users;

#[cfg(test)]
mod gathering;
#[cfg(test)]
mod tests;

pub use plot::{Axis, Plot, Scale, Series};
pub use report::{Report, Table};

use forebay_backend::OpenError;
use std::fmt;
use std::str::FromStr;

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Transfers of all sizes, without and with the cache.
    CacheEffect,
    /// How busy users of a terminal server keep its disk.
    DiskTime,
    /// One more logon while others log on.
    Logon,
    /// Users of a database within a limit.
    CallCenterUsers,
    /// Reads while dirty data goes to the disk.
    ReadLatency,
    /// Writers that are faster than the disk.
    Overrun,
    /// A disk that slows down, stops, or loses a drive.
    DiskTrouble,
}

impl Experiment {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 7] = [
        Self::CacheEffect,
        Self::DiskTime,
        Self::Logon,
        Self::CallCenterUsers,
        Self::ReadLatency,
        Self::Overrun,
        Self::DiskTrouble,
    ];

    /// The word for it in commands and names of files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheEffect => "cache-effect",
            Self::DiskTime => "disk-time",
            Self::Logon => "logon",
            Self::CallCenterUsers => "call-center-users",
            Self::ReadLatency => "read-latency",
            Self::Overrun => "overrun",
            Self::DiskTrouble => "disk-trouble",
        }
    }

    /// What it measures, in one line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::CacheEffect => "rates of writes and reads of 0.5 KiB to 8 MiB on RAID 5",
            Self::DiskTime => "how busy terminal-server users keep a disk, ten more at a time",
            Self::Logon => "the time of one more logon while others log on",
            Self::CallCenterUsers => "users one server carries, by size of its cache",
            Self::ReadLatency => "how long reads take while 4 GiB are written back",
            Self::Overrun => "ten minutes of writers that are faster than the disk",
            Self::DiskTrouble => "a disk that slows down, stops for a minute or loses a drive",
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When there is no such disk as it is to run on.
    pub fn run(self, seed: u64) -> Result<Report, OpenError> {
        match self {
            Self::CacheEffect => cache_effect::run(&cache_effect::Plan::FULL),
            Self::DiskTime => disk_time::run(&disk_time::Plan::FULL, seed),
            Self::Logon => logon::run(&logon::Plan::FULL, seed),
            Self::CallCenterUsers => call_center::run(&call_center::Plan::FULL, seed),
            Self::ReadLatency => read_latency::run(&read_latency::Plan::FULL, seed),
            Self::Overrun => overrun::run(&overrun::Plan::FULL, seed),
            Self::DiskTrouble => trouble::run(&trouble::Plan::FULL, seed),
        }
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no experiment '{text}': choose one of {}", names())]
pub struct ParseExperimentError {
    text: String,
}

fn names() -> String {
    Experiment::ALL.map(Experiment::name).join(", ")
}

impl FromStr for Experiment {
    type Err = ParseExperimentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|experiment| experiment.name() == text);
        found.ok_or_else(|| ParseExperimentError { text: text.to_owned() })
    }
}
