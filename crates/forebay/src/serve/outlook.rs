//! A thread that lets what was counted for other sizes of the pool, and the miss-ratio curves of
//! all volumes, decay, and logs the effect of less or more memory on a volume, and of another
//! division of the pool, when it has changed much.

use super::division::{DivisionLog, division};
use super::manager::Daemon;
use super::periodic::Periodic;
use super::report;
use forebay_runtime::{OutlookLog, RuntimeStatus};
use forebay_threads::Thread;
use forebay_types::Size;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two decays: a twelfth of the curves' half-life, so that they change evenly.
const INTERVAL: Duration = Duration::from_secs(300);
/// The time after which the counts of other sizes of the pool decay. Young ones decay fast.
const SIZES_INTERVAL: Duration = Duration::from_secs(2);

/// Starts the thread.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(daemon: Arc<Daemon>) -> std::io::Result<Periodic> {
    let started = Instant::now();
    let (mut passed, mut decayed, mut logs) = (started, started, OutlookLogs::default());
    let mut division_log = DivisionLog::default();
    Periodic::start(Thread::named("outlook"), SIZES_INTERVAL, move || {
        let now = Instant::now();
        daemon.runtime().pass_time(now.duration_since(passed));
        passed = now;
        if now < decayed + INTERVAL {
            return;
        }
        daemon.runtime().decay_curves(now.duration_since(decayed));
        decayed = now;
        if let Ok(status) = daemon.runtime().status() {
            logs.log(now.duration_since(started).as_millis() as u64, &status);
            if let Some(division) = division(&status).filter(|it| division_log.is_due(it)) {
                tracing::info!(gain = division.gain, reason = division.reason, "pool division");
            }
        }
    })
}

/// The outlook last logged for each volume, by name.
#[derive(Default)]
struct OutlookLogs(HashMap<String, OutlookLog>);

impl OutlookLogs {
    fn log(&mut self, now_ms: u64, status: &RuntimeStatus) {
        self.0.retain(|name, _| status.volumes.iter().any(|volume| volume.name == *name));
        for volume in &status.volumes {
            let Some(outlook) = report::memory_outlook(volume, &status.memory) else { continue };
            if self.0.entry(volume.name.clone()).or_default().is_due(now_ms, &outlook) {
                tracing::info!(
                    volume = %volume.name,
                    advice = outlook.advice.name(),
                    share = %Size(outlook.share_bytes),
                    reason = %outlook,
                    "memory outlook"
                );
            }
        }
    }
}
