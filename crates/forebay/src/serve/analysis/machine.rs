//! What an analysis needs of the daemon, as a trait, so that its tests need no daemon.

use forebay_runtime::{NamedStatistics, Runtime};
use forebay_types::{HoldOut, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The kernel counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// The machine and its volumes, as an analysis sees them.
pub(super) trait Machine {
    /// The time since any fixed moment, which does not jump.
    fn elapsed(&self) -> Duration;
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;
    /// The processor time of the process, in seconds.
    fn cpu_seconds(&self) -> f64;
    /// A number that differs from call to call.
    fn random(&self) -> u32;
    /// The names of the volumes, and whether they use the cache.
    fn volumes(&self) -> Vec<(String, bool)>;
    /// The counters of all volumes.
    fn statistics(&self) -> Vec<NamedStatistics>;
    /// Holds out regions of a volume, if it is served.
    fn set_hold_out(&self, volume: &str, hold_out: HoldOut);
}

/// The daemon.
#[derive(Clone)]
pub(super) struct Server {
    runtime: Arc<Runtime>,
    begun: Instant,
}

impl Server {
    pub(super) fn new(runtime: &Arc<Runtime>) -> Self {
        Self { runtime: Arc::clone(runtime), begun: Instant::now() }
    }
}

impl Machine for Server {
    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    }

    fn cpu_seconds(&self) -> f64 {
        std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse(&stat)).unwrap_or(0.0)
    }

    fn random(&self) -> u32 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        now.subsec_nanos().wrapping_mul(2_654_435_761).wrapping_add(now.as_secs() as u32)
    }

    fn volumes(&self) -> Vec<(String, bool)> {
        let status = self.runtime.status();
        let volumes = status.map(|status| status.volumes).unwrap_or_default();
        let served = volumes.into_iter().filter(|volume| !volume.half_added && !volume.is_closed);
        served.map(|volume| (volume.name, volume.mode != Mode::Bypass)).collect()
    }

    fn statistics(&self) -> Vec<NamedStatistics> {
        self.runtime.volumes().statistics()
    }

    fn set_hold_out(&self, volume: &str, hold_out: HoldOut) {
        // It fails if the volume was removed meanwhile. Then there is nothing to hold out.
        let _ = self.runtime.volumes().set_hold_out(volume, hold_out);
    }
}

/// The processor time in `/proc/self/stat`, in seconds.
fn parse(stat: &str) -> Option<f64> {
    // The name of the program, in parentheses, may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_is_user_and_system_time() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 20 0 8";
        assert_eq!(parse(stat), Some(3.0));
        assert_eq!(parse("12 (a) S 1 2"), None);
        assert!(
            std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| parse(&stat).is_some())
        );
    }
}
