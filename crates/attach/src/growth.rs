//! Whether a device follows its volume, which has grown.

use crate::record::{self, AttachedVolume};
use crate::watch::SIZE_INTERVAL;
use crate::{canonical, driver};
use forebay_types::SECTOR_BYTES;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a watcher may take, which asks for the size of the volume now and then.
const FOLLOW_TIME: Duration = SIZE_INTERVAL.saturating_mul(2);

/// The kernel's NBD client has whole blocks only, of up to this many bytes.
const BLOCK_BYTES_MAX: u64 = 4096;

const POLL: Duration = Duration::from_millis(20);

/// The block device of a volume that has grown.
pub struct FollowedDevice {
    /// Its path.
    pub device: String,
    /// Why it is still smaller than its volume, and what to do; none if it has grown.
    pub obstacle: Option<String>,
}

/// Waits until the block device of a volume, which has grown, has grown as well. `None` if the
/// server at this control socket has attached no device to it.
pub fn follow_growth(volume: &str, socket: &Path, size_bytes: u64) -> Option<FollowedDevice> {
    let attached = record::find(volume).ok()??;
    if attached.socket != canonical(socket) {
        return None;
    }
    let obstacle = wait_for_size(&attached, size_bytes).err();
    Some(FollowedDevice { device: attached.link().display().to_string(), obstacle })
}

/// # Errors
/// Why the device is smaller.
fn wait_for_size(attached: &AttachedVolume, size_bytes: u64) -> Result<(), String> {
    const AGAIN: &str = "detach the volume and attach it again";
    let end = Instant::now() + FOLLOW_TIME;
    // Without the right to open the driver, the time tells.
    let fixed = driver::open(attached, None).and_then(|mut device| device.fixed_size());
    while size_of(attached).is_some_and(|bytes| bytes.saturating_add(BLOCK_BYTES_MAX) <= size_bytes)
    {
        if let Ok(Some(reason)) = &fixed {
            return Err(format!("{reason}: {AGAIN}"));
        }
        if !record::is_kept(&attached.volume) {
            let again = format!("continue with `forebay attach {}`", attached.volume);
            return Err(format!("no process watches it: {again}"));
        }
        if Instant::now() >= end {
            let log = record::log_of(&attached.volume);
            return Err(format!("see {}, or {AGAIN}", log.display()));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The size that the kernel says its device has. `None` without a device.
fn size_of(attached: &AttachedVolume) -> Option<u64> {
    let path = Path::new("/sys/block").join(attached.device_name()).join("size");
    let sectors: u64 = std::fs::read_to_string(path).ok()?.trim_end().parse().ok()?;
    Some(sectors * SECTOR_BYTES)
}
