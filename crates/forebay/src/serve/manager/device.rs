//! Serves volumes on block devices that the kernel has made for them.

use super::Daemon;
use forebay_api::{ErrorKind, Problem, ServeDevice, ServedDevice};
use forebay_frontend_ublk::{Device, DeviceError};
use forebay_types::SECTOR_BYTES;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Serves a volume on a device, and returns what the device's maker has to tell the kernel.
pub(in crate::serve) fn serve(
    daemon: &Daemon,
    name: &str,
    request: &ServeDevice,
) -> Result<ServedDevice, Problem> {
    let served = describe(daemon, name)?;
    let path = PathBuf::from(format!("/dev/ublkc{}", request.ublk));
    let shape = (request.queues, request.depth);
    let device = Device::open((path, request.ublk), shape, name).map_err(|error| {
        let remedy = match &error {
            DeviceError::Open { .. } => "attach the volume with `forebay attach`, as root",
            DeviceError::Map { .. } => "check that the device has as many queues and requests",
            DeviceError::Shape { .. } => "use up to 64 queues with up to 4096 requests each",
        };
        Problem::new(ErrorKind::Invalid, error.to_string(), remedy)
    })?;
    daemon.ublk.serve(device).map_err(|error| {
        let message = format!("volume '{name}' cannot be served on a block device: {error}");
        Problem::new(ErrorKind::Busy, message, "try again, or start the server with io=io_uring")
    })?;
    tracing::info!(volume = %name, ublk = request.ublk, "volume served on a block device");
    Ok(served)
}

/// What the kernel has to know of a volume.
pub(super) fn describe(daemon: &Daemon, name: &str) -> Result<ServedDevice, Problem> {
    daemon.spec_of(name)?;
    let figures = daemon.runtime.status_of(name).map_err(super::problem)?;
    let volume = &figures.volumes[0];
    let disk = &volume.backing;
    let block_bytes = disk.alignment_bytes.next_power_of_two().max(SECTOR_BYTES as u32);
    // What is on an image counts in sectors, whatever its file system needs.
    let logical_block_bytes = if is_block_device(&disk.name) { block_bytes } else { 512 };
    let stripe = u32::try_from(volume.geometry.stripe_bytes).unwrap_or(0);
    Ok(ServedDevice {
        pid: std::process::id(),
        size_bytes: disk.size_bytes(),
        read_only: volume.read_only,
        rotational: volume.geometry.rotational == Some(true),
        logical_block_bytes,
        physical_block_bytes: block_bytes.max(4096),
        optimal_bytes: if stripe.is_power_of_two() { stripe } else { 0 },
        can_discard: disk.can_discard,
    })
}

fn is_block_device(path: &str) -> bool {
    std::fs::metadata(Path::new(path)).is_ok_and(|file| file.file_type().is_block_device())
}
