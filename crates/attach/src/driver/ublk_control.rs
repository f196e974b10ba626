//! The control device of the ublk driver.

use crate::device::load_module;
use forebay_terminal::with_remedy;
use forebay_types::SECTOR_BYTES;
use forebay_ublk::control::{ControlCommand, DeviceInfo, Parameters, flags};
use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use zerocopy::IntoBytes;

const CONTROL: &str = "/dev/ublk-control";

/// How long the kernel waits for a server to fetch from each tag of a device, at a time.
const RECOVERY_TIME: Duration = Duration::from_secs(2);

/// What the timer of a command is known by.
const TIMER: u64 = 1;

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

    /// Waits until the process has fetched from each tag of the device.
    ///
    /// # Errors
    /// The driver's, and [`io::ErrorKind::TimedOut`] if the process has ended before that: the
    /// kernel would wait for ever.
    pub(super) fn end_recovery(&mut self, device: u32, process: u32) -> io::Result<()> {
        loop {
            let entry = self.entry(ControlCommand::EndRecovery, device, (0, 0), process.into());
            let time = Timespec::from(RECOVERY_TIME);
            let limit = opcode::LinkTimeout::new(&raw const time).build().user_data(TIMER);
            // SAFETY: the time outlives both commands, for whose end this call waits.
            let ended = unsafe { self.run(&[entry.flags(squeue::Flags::IO_LINK), limit.into()]) };
            let is_late = matches!(&ended, Err(error) if error.kind() == io::ErrorKind::TimedOut);
            if !is_late || !Path::new(&format!("/proc/{process}")).exists() {
                return ended;
            }
        }
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
        let entry = self.entry(command, device, (address, memory.len() as u16), data);
        // SAFETY: the memory outlives the command, for whose end this call waits.
        unsafe { self.run(&[entry]) }
    }

    fn entry(
        &self,
        command: ControlCommand,
        device: u32,
        memory: (u64, u16),
        data: u64,
    ) -> squeue::Entry128 {
        let argument = command.argument(device, memory, data);
        let control = Fd(self.control.as_raw_fd());
        opcode::UringCmd80::new(control, command.op()).cmd(argument).build()
    }

    /// Carries out a command, with or without a timer, and waits for the end of both.
    ///
    /// # Errors
    /// The command's, or [`io::ErrorKind::TimedOut`] if the timer has ended it.
    ///
    /// # Safety
    /// What the entries refer to must outlive this call.
    unsafe fn run(&mut self, entries: &[squeue::Entry128]) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submission().push_multiple(entries) }.expect("an empty ring has room");
        let mut pending = entries.len();
        let (mut of_command, mut is_late) = (0, false);
        while pending > 0 {
            match self.ring.submit_and_wait(pending) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            for entry in self.ring.completion() {
                pending -= 1;
                match entry.user_data() {
                    TIMER => is_late = entry.result() == -libc::ETIME,
                    _ => of_command = entry.result(),
                }
            }
        }
        match of_command {
            // It may have succeeded at the last moment.
            result if result < 0 && is_late => Err(io::ErrorKind::TimedOut.into()),
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }
}
