//! Experiments in virtual time: the benefit of the cache for its users.
//!
//! The first seven experiments repeat published measurements of older caches on modelled disks and
//! print both figures. The cache is the shipped one. Hours of virtual time take seconds, and the
//! same seed gives the same figures.
//!
//! `machine.rs` has the machine: clients, link, cache, disk. Each experiment has a file with its
//! clients and its tables.

mod cache_effect;
mod call_center;
mod checkpoints;
mod disk;
mod disk_time;
pub(crate) mod host;
mod iometer;
mod journal;
mod logon;
pub(crate) mod machine;
mod mail_server;
mod no_cache;
mod oltp;
mod overrun;
mod plot;
mod pool_sizes;
mod preloader;
mod read_latency;
mod report;
mod takeover;
mod time_of_day;
mod trouble;
mod users;

#[cfg(test)]
mod gathering;
#[cfg(test)]
mod tests;

pub use plot::{Axis, Plot, Scale, Series};
pub use report::{Report, Table};

use crate::named::named;
use forebay_backend::OpenError;

named! {
    /// An experiment.
    "experiment" enum Experiment {
        /// Transfers of all sizes, without and with the cache.
        CacheEffect = "cache-effect",
        /// The utilization of a terminal server's disk.
        DiskTime = "disk-time",
        /// One more logon while others log on.
        Logon = "logon",
        /// The number of users of a database within a limit.
        CallCenterUsers = "call-center-users",
        /// The response of a mail server, by cache size and time.
        MailServer = "mail-server",
        /// A database with more and more users.
        Oltp = "oltp",
        /// Small reads, one at a time.
        Iometer = "iometer",
        /// Reads beside writeback.
        ReadLatency = "read-latency",
        /// Reads beside the checkpoints of a journal.
        Checkpoints = "checkpoints",
        /// Writers that are faster than the disk.
        Overrun = "overrun",
        /// Loads on which a cache must not be slower than none.
        NoCache = "no-cache",
        /// A disk that slows down, stops, or loses a drive.
        DiskTrouble = "disk-trouble",
        /// Daily and weekly jobs, learned and preloaded.
        TimeOfDay = "time-of-day",
        /// Less or more memory, predicted and measured.
        PoolSizes = "pool-sizes",
        /// Hosts that die, and the others that take their volumes over.
        Takeover = "takeover",
    }
}

impl Experiment {
    /// Its purpose, in one line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::CacheEffect => "rates of writes and reads of 0.5 KiB to 8 MiB on RAID 5",
            Self::DiskTime => "disk utilization by terminal-server users, ten more at a time",
            Self::Logon => "duration of one more logon while others log on",
            Self::CallCenterUsers => {
                "database users that one server supports, by size of its cache"
            }
            Self::MailServer => {
                "response of a mail server by cache size, and while the cache warms"
            }
            Self::Oltp => "response, disk and processor of a database, fifty more users at a time",
            Self::Iometer => "reads of 4 KiB, one at a time, sequential and half random",
            Self::ReadLatency => "latency of reads while 4 GiB are written back",
            Self::Checkpoints => "latency of reads beside steady writes, with a journal",
            Self::Overrun => "rates of writers that are faster than the disk, for ten minutes",
            Self::NoCache => "durable writes, and reads beside writers, to compare with no cache",
            Self::DiskTrouble => "a disk that slows down, stops for a minute or loses a drive",
            Self::PoolSizes => "misses with half and twice the pool, predicted and measured",
            Self::Takeover => "time until the volumes of dead hosts are served by others",
            Self::TimeOfDay => "hits of daily and weekly jobs, once their times are learned",
        }
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// Fails if the model of a disk is invalid.
    pub fn run(self, seed: u64) -> Result<Report, OpenError> {
        match self {
            Self::CacheEffect => cache_effect::run(&cache_effect::CacheEffectPlan::FULL),
            Self::DiskTime => disk_time::run(&disk_time::DiskTimePlan::FULL, seed),
            Self::Logon => logon::run(&logon::LogonPlan::FULL, seed),
            Self::CallCenterUsers => call_center::run(&call_center::CallCenterPlan::FULL, seed),
            Self::MailServer => mail_server::run(&mail_server::MailServerPlan::FULL, seed),
            Self::Oltp => oltp::run(&oltp::OltpPlan::FULL, seed),
            Self::Iometer => iometer::run(&iometer::IometerPlan::FULL, seed),
            Self::ReadLatency => read_latency::run(&read_latency::ReadLatencyPlan::FULL, seed),
            Self::Checkpoints => checkpoints::run(&checkpoints::CheckpointsPlan::FULL, seed),
            Self::Overrun => overrun::run(&overrun::OverrunPlan::FULL, seed),
            Self::NoCache => no_cache::run(&no_cache::NoCachePlan::FULL, seed),
            Self::DiskTrouble => trouble::run(&trouble::TroublePlan::FULL, seed),
            Self::PoolSizes => pool_sizes::run(&pool_sizes::PoolSizesPlan::FULL, seed),
            Self::Takeover => takeover::run(&takeover::TakeoverPlan::FULL),
            Self::TimeOfDay => time_of_day::run(&time_of_day::TimeOfDayPlan::FULL, seed),
        }
    }
}
