//! Devices of the ublk driver.

use super::ublk_control::UblkControl;
use crate::device::{AttachPlan, WatchedDevice, WatchedState};
use crate::record::{AttachRecord, AttachedVolume, KernelDevice};
use anyhow::{Context, Error};
use forebay_api::{BlockingClient, ServeDevice, ServedDevice};
use forebay_ublk::control::{DeviceInfo, DiskProperties, Parameters, flags};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of the longest request of a device.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// The most queues of a device by default.
const QUEUES_AUTO_MAX: usize = 8;
/// Requests in flight of each queue by default.
const DEPTH: u16 = 128;

/// A device, which is made with a number, then started by the server that serves it.
pub(super) struct UblkDevice {
    control: UblkControl,
    number: u32,
    volume: String,
}

impl UblkDevice {
    /// Checks that the kernel has what is needed.
    pub(super) fn check() -> anyhow::Result<()> {
        UblkControl::open().map(drop)
    }

    pub(super) fn open(number: u32, volume: &str) -> anyhow::Result<Self> {
        Ok(Self { control: UblkControl::open()?, number, volume: volume.to_owned() })
    }

    pub(super) fn make(
        client: &BlockingClient,
        plan: &AttachPlan,
        record: &mut AttachRecord,
    ) -> anyhow::Result<(Self, AttachedVolume)> {
        let mut control = UblkControl::open()?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = plan.queues.unwrap_or(processors.min(QUEUES_AUTO_MAX) as u16);
        let info = control
            .add(DeviceInfo::new(
                queues,
                plan.depth.unwrap_or(DEPTH),
                REQUEST_BYTES_MAX,
                control.features(),
            ))
            .context("the ublk driver makes no device")?;
        let mut device = Self { control, number: info.device, volume: plan.volume.clone() };
        let attached = plan.attached(KernelDevice::Ublk(info.device));
        let started = record.write(&attached).map_err(Error::new);
        if let Err(error) = started.and_then(|()| device.start(client)) {
            // Nothing has used the device.
            let _ = device.remove();
            let _ = record.clear();
            return Err(error);
        }
        Ok((device, attached))
    }

    /// Has the server serve a new device, tells the kernel about the volume, and starts the device.
    fn start(&mut self, client: &BlockingClient) -> anyhow::Result<()> {
        let served = self.serve(client)?;
        let parameters = Parameters::new(&DiskProperties {
            size_bytes: served.size_bytes,
            read_only: served.read_only,
            rotational: served.rotational,
            logical_block_bytes: served.logical_block_bytes,
            physical_block_bytes: served.physical_block_bytes,
            optimal_bytes: served.optimal_bytes,
            request_bytes_max: REQUEST_BYTES_MAX,
            can_discard: served.can_discard,
        });
        self.control
            .set_parameters(self.number, parameters)
            .context("the ublk driver refuses the volume's geometry")?;
        let started = self.control.start(self.number, served.pid);
        started.context("the ublk driver does not start the device")
    }

    /// Lets the server open the device, and has it fetch from the queues.
    fn serve(&mut self, client: &BlockingClient) -> anyhow::Result<ServedDevice> {
        let info = self.control.info(self.number);
        let info = info.context("the ublk driver does not know the device")?;
        let pid = client.status()?.pid;
        let character = PathBuf::from(format!("/dev/ublkc{}", self.number));
        // The server may run as a user of its own.
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        let given = owner.and_then(|owner| {
            chown(&character, Some(owner), None)?;
            std::fs::set_permissions(&character, PermissionsExt::from_mode(0o600))
        });
        given.with_context(|| format!("cannot give {} to the server", character.display()))?;
        let request = ServeDevice { ublk: self.number, queues: info.queues, depth: info.depth };
        Ok(client.serve_device(&self.volume, &request)?)
    }
}

impl WatchedDevice for UblkDevice {
    fn state(&mut self) -> anyhow::Result<WatchedState> {
        use forebay_ublk::control::DeviceState as UblkState;
        let info = match self.control.info(self.number) {
            Err(error) if is_gone(&error) => return Ok(WatchedState::Gone),
            info => info.context("the ublk driver does not answer")?,
        };
        Ok(match info.state() {
            UblkState::Dead => WatchedState::Stopped,
            UblkState::Live => WatchedState::Live(info.process.cast_unsigned()),
            UblkState::Quiesced => WatchedState::Waiting,
            UblkState::Other(_) => WatchedState::Changing,
        })
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// The driver needs nothing: what follows is decided by the state of the device.
    fn adopt(&mut self, _client: &BlockingClient) -> anyhow::Result<()> {
        Ok(())
    }

    fn give(&mut self, client: &BlockingClient) -> anyhow::Result<u32> {
        self.control
            .start_recovery(self.number)
            .context("the ublk driver does not begin to recover the device")?;
        let served = self.serve(client)?;
        self.control
            .end_recovery(self.number, served.pid)
            .context("the ublk driver does not recover the device")?;
        Ok(served.pid)
    }

    fn fixed_size(&mut self) -> anyhow::Result<Option<String>> {
        let info = self.control.info(self.number);
        let can_grow = info.context("the ublk driver does not know the device")?.can_grow();
        Ok((!can_grow).then(|| why_fixed(self.control.features(), &kernel_release())))
    }

    fn grow(&mut self, size_bytes: u64) -> anyhow::Result<()> {
        let grown = self.control.set_size(self.number, size_bytes);
        grown.context("the ublk driver does not change the size")
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        self.control.remove(self.number).context("the ublk driver does not remove the device")
    }
}

/// Why a device that was made as one of fixed size is one, for a driver with these features.
fn why_fixed(features: u64, release: &str) -> String {
    if features & flags::UPDATE_SIZE != 0 {
        return "a former version of forebay has made it, as one of fixed size".into();
    }
    format!("devices of ublk grow on Linux 6.16 or later, and this is Linux {release}")
}

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT | libc::ENXIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_fixed_size_names_its_kernel_or_the_version_that_has_made_it() {
        let old = why_fixed(flags::NEEDED, "6.12.117");
        assert!(old.contains("Linux 6.16 or later") && old.contains("Linux 6.12.117"), "{old}");
        let new = why_fixed(flags::NEEDED | flags::UPDATE_SIZE, "6.17.13");
        assert!(new.contains("former version") && !new.contains("6.17"), "{new}");
    }
}
