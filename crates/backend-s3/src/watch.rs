//! Notices that another server has the volume although nothing is written: after a pause of the
//! process or the machine, and while the store is read. Otherwise it makes no request.

use crate::volume::S3Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval of the clock that shows that the process was stopped.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// A pause of the process after which another server may have the volume.
const SUSPICIOUS_PAUSE: Duration = Duration::from_secs(10);
/// How often the owner is checked while the store is read.
const VERIFY_INTERVAL: Duration = Duration::from_secs(10);

/// Watches a volume until it ends.
pub(crate) async fn run(volume: Arc<S3Volume>) {
    let (mut before, mut verified) = (since_boot(), since_boot());
    let mut reads = 0;
    while volume.is_active() {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = since_boot();
        let was_stopped = now.saturating_sub(before) > SUSPICIOUS_PAUSE;
        before = now;
        let present = volume.activity.load(Ordering::Relaxed);
        let has_read = present != reads && now.saturating_sub(verified) > VERIFY_INTERVAL;
        if was_stopped || has_read {
            volume.verify_owner().await;
            (reads, verified) = (present, since_boot());
        }
    }
}

/// The time since the boot, in which a suspended machine does not stand still.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
