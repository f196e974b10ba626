//! The control device of the ublk driver.

use crate::device::load_module;
use forebay_terminal::with_remedy;
use forebay_types::SECTOR_BYTES;
use forebay_ublk::control::{ControlCommand, DeviceInfo, Parameters, flags};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use zerocopy::IntoBytes;

const CONTROL: &str = "/dev/ublk-control";

/// The kernel's ublk driver. Each call waits for its command.
pub(super) struct UblkControl {
    control: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    features: u64,
}

impl UblkControl {
    /// Opens the control device. Loads the driver if it is a module.
    pub(super) fn open() -> anyhow::Result<Self> {
        if !Path::new(CONTROL).exists() {
            load_module("ublk_drv");
        }
        let control = OpenOptions::new().read(true).write(true).open(CONTROL);
        let control = control.map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => "run the command as root",
                _ => "use a kernel with ublk (CONFIG_BLK_DEV_UBLK), Linux 6.5 or later",
            };
            let message = format!("the kernel's ublk driver cannot be used: {CONTROL}: {error}");
            with_remedy(anyhow::Error::msg(message), remedy)
        })?;
        let ring = IoUring::builder().build(4).map_err(|error| {
            let message = format!("cannot set up an io_uring: {error}");
            with_remedy(anyhow::Error::msg(message), "allow it: kernel.io_uring_disabled=0")
        })?;
        let mut driver = Self { control, ring, features: 0 };
        let found = driver.read_features().unwrap_or(0);
        if found & flags::NEEDED != flags::NEEDED {
            let message = format!(
                "the kernel's ublk driver lacks what devices need that outlive their server: it \
                 has {found:#x} of {:#x}",
                flags::NEEDED
            );
            return Err(with_remedy(anyhow::Error::msg(message), "use Linux 6.5 or later"));
        }
        driver.features = found;
        Ok(driver)
    }

    /// See [`flags`].
    pub(super) const fn features(&self) -> u64 {
        self.features
    }

    fn read_features(&mut self) -> io::Result<u64> {
        let mut features = 0u64;
        self.command(ControlCommand::GetFeatures, 0, features.as_mut_bytes(), 0)?;
        Ok(features)
    }

    /// Makes a device.
    pub(super) fn add(&mut self, mut info: DeviceInfo) -> io::Result<DeviceInfo> {
        self.command(ControlCommand::AddDevice, info.device, info.as_mut_bytes(), 0)?;
        Ok(info)
    }

    pub(super) fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.command(ControlCommand::GetDeviceInfo, device, info.as_mut_bytes(), 0)?;
        Ok(info)
    }

    pub(super) fn set_parameters(
        &mut self,
        device: u32,
        mut parameters: Parameters,
    ) -> io::Result<()> {
        self.command(ControlCommand::SetParameters, device, parameters.as_mut_bytes(), 0)
    }

    pub(super) fn start(&mut self, device: u32, process: u32) -> io::Result<()> {
        self.command(ControlCommand::StartDevice, device, &mut [], process.into())
    }

    pub(super) fn start_recovery(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlCommand::StartRecovery, device, &mut [], 0)
    }

    pub(super) fn end_recovery(&mut self, device: u32, process: u32) -> io::Result<()> {
        self.command(ControlCommand::EndRecovery, device, &mut [], process.into())
    }

    /// Sets the size of a device. It must have been started, and must not be stopped meanwhile: see
    /// [`ControlCommand::UpdateSize`].
    pub(super) fn set_size(&mut self, device: u32, bytes: u64) -> io::Result<()> {
        self.command(ControlCommand::UpdateSize, device, &mut [], bytes / SECTOR_BYTES)
    }

    /// Stops and removes a device.
    pub(super) fn remove(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlCommand::StopDevice, device, &mut [], 0)?;
        self.command(ControlCommand::DeleteDevice, device, &mut [], 0)
    }

    fn command(
        &mut self,
        command: ControlCommand,
        device: u32,
        memory: &mut [u8],
        data: u64,
    ) -> io::Result<()> {
        let address = match memory.len() {
            0 => 0,
            _ => memory.as_mut_ptr() as u64,
        };
        let argument = command.argument(device, (address, memory.len() as u16), data);
        let control = Fd(self.control.as_raw_fd());
        let entry = opcode::UringCmd80::new(control, command.op()).cmd(argument).build();
        // SAFETY: the memory outlives the command, for whose end this call waits.
        unsafe { self.ring.submission().push(&entry) }.expect("an empty ring has room");
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if let Some(entry) = self.ring.completion().next() {
                return match entry.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }
}
