//! The slow requests of all volumes, and what is to be logged of them.

use crate::error::VolumeError;
use crate::shared::{Shared, SlowRequest, VolumeSlow, WaitingRequests};
use std::time::{Duration, Instant};

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowUnlogged {
    /// The volume.
    pub name: String,
    /// Its slowest request since the last line.
    pub slowest: SlowRequest,
    /// The number of the others since then.
    pub others: u64,
}

/// The slow requests of all volumes.
pub struct SlowLog<'a>(pub(crate) &'a Shared);

impl SlowLog<'_> {
    /// The slow requests of one volume.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn volume(&self, name: &str) -> Result<VolumeSlow, VolumeError> {
        let volume = self.0.volumes.named(name)?;
        Ok(volume.slow.kept(&volume.name))
    }

    /// Those of all volumes.
    pub fn volumes(&self) -> Vec<VolumeSlow> {
        let volumes = self.0.volumes.all();
        volumes.iter().map(|volume| volume.slow.kept(&volume.name)).collect()
    }

    /// The requests of one volume, or of all, that have waited for as long as makes a request slow
    /// and are not answered yet. Those of a worker that does not answer within a second are
    /// missing.
    pub fn waiting(&self, name: Option<&str>) -> WaitingRequests {
        let (now, limit) = (Instant::now(), self.0.timeouts.stall);
        let name = name.map(str::to_owned);
        let parts = self.0.run_on_each_within(Duration::from_secs(1), move |tasks| {
            tasks.waiting(name.as_deref(), now, limit)
        });
        parts.into_iter().fold(WaitingRequests::default(), |all, part| {
            let unlisted = part.total.checked_sub(part.oldest.len() as u64);
            let unlisted = unlisted.expect("a worker lists some of those that it counts");
            let all = all.plus(part.oldest);
            WaitingRequests { total: all.total + unlisted, ..all }
        })
    }

    /// Takes what is to be logged at `now`: at most one line in ten seconds for each volume.
    pub fn take_unlogged(&self, now: Instant) -> Vec<SlowUnlogged> {
        let volumes = self.0.volumes.all();
        let taken = volumes.iter().filter_map(|volume| {
            let (slowest, count) = volume.slow.take_unlogged(now)?;
            let others = count.checked_sub(slowest.requests).expect("the slowest is counted");
            Some(SlowUnlogged { name: volume.name.clone(), slowest, others })
        });
        taken.collect()
    }
}
