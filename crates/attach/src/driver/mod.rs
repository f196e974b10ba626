//! The kernel's two drivers of block devices that a process serves.

mod nbd;
mod nbd_connection;
mod netlink;
mod ublk;
mod ublk_control;

use crate::device::{AttachPlan, WatchedDevice};
use crate::record::{AttachRecord, AttachedVolume, DeviceKind, KernelDevice};
use anyhow::Error;
use forebay_api::BlockingClient;
use forebay_terminal::with_remedy;
use nbd::NbdDevice;
use std::time::Duration;
use ublk::UblkDevice;

/// Makes, starts and records a device.
pub(crate) fn make(
    kind: DeviceKind,
    client: &BlockingClient,
    plan: &AttachPlan,
    record: &mut AttachRecord,
) -> anyhow::Result<(Box<dyn WatchedDevice>, AttachedVolume)> {
    Ok(match kind {
        DeviceKind::Ublk => {
            let (device, attached) = UblkDevice::make(client, plan, record)?;
            (Box::new(device), attached)
        }
        DeviceKind::Nbd => {
            let (device, attached) = NbdDevice::make(client, plan, record)?;
            (Box::new(device), attached)
        }
    })
}

/// The device of an attached volume. `limit` is for the watcher.
pub(crate) fn open(
    attached: &AttachedVolume,
    limit: Option<Duration>,
) -> anyhow::Result<Box<dyn WatchedDevice>> {
    Ok(match attached.device {
        KernelDevice::Ublk(number) => Box::new(UblkDevice::open(number, &attached.volume)?),
        KernelDevice::Nbd(terms) => Box::new(NbdDevice::open(attached, terms, limit)?),
    })
}

/// The driver for a new device: the wanted one, or the best that this kernel has.
///
/// # Errors
/// It has none of them.
pub(crate) fn choose(wanted: Option<DeviceKind>) -> anyhow::Result<DeviceKind> {
    let ublk = match wanted {
        Some(DeviceKind::Nbd) => None,
        _ => match UblkDevice::check() {
            Ok(()) => return Ok(DeviceKind::Ublk),
            Err(error) if wanted.is_some() => return Err(error),
            Err(error) => Some(error),
        },
    };
    match (NbdDevice::check(), ublk) {
        (Ok(()), _) => Ok(DeviceKind::Nbd),
        (Err(error), None) => Err(error),
        (Err(nbd), Some(ublk)) => {
            let message = format!("this kernel can attach no volume: {ublk:#}; {nbd:#}");
            let remedy = match rustix::process::geteuid().is_root() {
                false => "run the command as root",
                true => "use a kernel with ublk, Linux 6.5 or later, or with nbd, 5.14 or later",
            };
            Err(with_remedy(Error::msg(message), remedy))
        }
    }
}
