//! The commands of `/dev/ublk-control`, which need CAP_SYS_ADMIN, and their arguments.

use crate::{READ, READ_WRITE, ioctl};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Features of the driver, and flags of a device.
pub mod flags {
    /// A device outlives the process that serves it.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that were in flight are given to the next process.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands have the numbers of ioctls.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// The process moves data with reads and writes of the character device.
    pub const USER_COPY: u64 = 1 << 7;
    /// A device that was started can become larger; Linux 6.16 or later.
    pub const UPDATE_SIZE: u64 = 1 << 10;

    /// What a device of this program needs; Linux 6.5 has all of it.
    pub const NEEDED: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE | USER_COPY;
    /// What a device has as well if the driver has it.
    pub const WANTED: u64 = UPDATE_SIZE;
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It has not been started, or was stopped.
    Dead,
    /// It takes requests.
    Live,
    /// Its process has ended; requests wait for the next one.
    Quiesced,
    /// One that this program does not know.
    Other(u16),
}

/// A control command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Reads the driver's features, a `u64`.
    GetFeatures,
    /// Makes a device from a [`DeviceInfo`], and completes that.
    AddDevice,
    /// Reads the [`DeviceInfo`] of a device.
    GetDeviceInfo,
    /// Removes a stopped device, once nobody has it open.
    DeleteDevice,
    /// Starts a device: waits until each tag has fetched. The data is the process that serves it.
    StartDevice,
    /// Stops a device: it is gone for its users.
    StopDevice,
    /// Sets the [`Parameters`] of a device that has not been started.
    SetParameters,
    /// Begins to hand a quiesced device to the next process.
    StartRecovery,
    /// Ends it: waits until each tag has fetched. The data is the process that serves it.
    EndRecovery,
    /// Sets the size of a device. The data is its sectors. Linux 6.17 crashes if the device has not
    /// been started, or was stopped.
    UpdateSize,
}

impl ControlCommand {
    /// The number of the command.
    pub const fn op(self) -> u32 {
        let (direction, command) = match self {
            Self::GetDeviceInfo => (READ, 0x02),
            Self::AddDevice => (READ_WRITE, 0x04),
            Self::DeleteDevice => (READ_WRITE, 0x05),
            Self::StartDevice => (READ_WRITE, 0x06),
            Self::StopDevice => (READ_WRITE, 0x07),
            Self::SetParameters => (READ_WRITE, 0x08),
            Self::StartRecovery => (READ_WRITE, 0x10),
            Self::EndRecovery => (READ_WRITE, 0x11),
            Self::GetFeatures => (READ, 0x13),
            Self::UpdateSize => (READ_WRITE, 0x15),
        };
        ioctl(direction, command, size_of::<ControlArgument>())
    }

    /// The command's argument for an io_uring entry of 128 bytes: the device, the memory that the
    /// command reads or writes, and its data.
    pub fn argument(self, device: u32, memory: (u64, u16), data: u64) -> [u8; 80] {
        let (address, len) = memory;
        let (queue, path_len, pad, reserved) = (u16::MAX, 0, 0, 0);
        let argument =
            ControlArgument { device, queue, len, address, data, path_len, pad, reserved };
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlArgument>()].copy_from_slice(argument.as_bytes());
        bytes
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ControlArgument {
    device: u32,
    /// All of them.
    queue: u16,
    len: u16,
    address: u64,
    data: u64,
    path_len: u16,
    pad: u16,
    reserved: u32,
}

const _: () = assert!(size_of::<ControlArgument>() == 32);

/// A device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    /// Hardware queues.
    pub queues: u16,
    /// Tags of each queue.
    pub depth: u16,
    state: u16,
    pad: u16,
    /// Bytes of the longest request.
    pub request_bytes_max: u32,
    /// Its number; `u32::MAX` in [`ControlCommand::AddDevice`] for any that is free.
    pub device: u32,
    /// The process that serves it; -1 if none does.
    pub process: i32,
    pad_process: u32,
    /// See [`flags`].
    pub flags: u64,
    /// Kept by the driver for the program.
    pub own_flags: u64,
    owner: [u32; 2],
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<DeviceInfo>() == 64);

impl DeviceInfo {
    /// A device to be made, with any free number, by a driver with these features.
    pub fn new(queues: u16, depth: u16, request_bytes_max: u32, features: u64) -> Self {
        let (device, process) = (u32::MAX, -1);
        let flags = flags::NEEDED | features & flags::WANTED;
        Self { queues, depth, request_bytes_max, device, process, flags, ..Self::default() }
    }

    /// Whether [`ControlCommand::UpdateSize`] is for it.
    pub const fn can_grow(&self) -> bool {
        self.flags & flags::UPDATE_SIZE != 0
    }

    /// The state of the device.
    pub const fn state(&self) -> DeviceState {
        match self.state {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Quiesced,
            other => DeviceState::Other(other),
        }
    }
}

/// What the kernel knows of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskProperties {
    /// Its size in bytes, whole sectors.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it turns.
    pub rotational: bool,
    /// The smallest unit of requests in bytes, a power of two from 512 on.
    pub logical_block_bytes: u32,
    /// The smallest unit that costs no more than itself, in bytes, a power of two.
    pub physical_block_bytes: u32,
    /// The best unit of large requests in bytes, as a stripe, a power of two; zero if unknown.
    pub optimal_bytes: u32,
    /// The longest request in bytes.
    pub request_bytes_max: u32,
    /// Whether discards reach the disk.
    pub can_discard: bool,
}

/// The longest discard or write of zeroes, in sectors: 1 GiB.
const ERASE_SECTORS_MAX: u32 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct BasicParameters {
    attributes: u32,
    logical_block_shift: u8,
    physical_block_shift: u8,
    optimal_shift: u8,
    minimum_shift: u8,
    sectors_max: u32,
    chunk_sectors: u32,
    device_sectors: u64,
    virtual_boundary: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct DiscardParameters {
    alignment: u32,
    granularity: u32,
    discard_sectors_max: u32,
    zero_sectors_max: u32,
    discard_segments_max: u16,
    reserved: u16,
    pad: u32,
}

/// The parameters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Parameters {
    len: u32,
    types: u32,
    basic: BasicParameters,
    discard: DiscardParameters,
}

const _: () = assert!(size_of::<Parameters>() == 64);

impl Parameters {
    /// The parameters of a device for a disk with a volatile cache that honours FUA.
    ///
    /// # Panics
    /// If a block size is no power of two, or the size is no whole number of sectors.
    pub fn new(disk: &DiskProperties) -> Self {
        const READ_ONLY: u32 = 1;
        const ROTATIONAL: u32 = 1 << 1;
        const VOLATILE_CACHE_AND_FUA: u32 = 1 << 2 | 1 << 3;
        assert!(disk.size_bytes.is_multiple_of(512), "a disk has whole sectors");
        let mut attributes = VOLATILE_CACHE_AND_FUA;
        attributes |= if disk.read_only { READ_ONLY } else { 0 };
        attributes |= if disk.rotational { ROTATIONAL } else { 0 };
        let logical = shift(disk.logical_block_bytes);
        let physical = shift(disk.physical_block_bytes).max(logical);
        let optimal = if disk.optimal_bytes == 0 { 0 } else { shift(disk.optimal_bytes) };
        let basic = BasicParameters {
            attributes,
            logical_block_shift: logical,
            physical_block_shift: physical,
            optimal_shift: optimal,
            minimum_shift: physical,
            sectors_max: disk.request_bytes_max / 512,
            chunk_sectors: 0,
            device_sectors: disk.size_bytes / 512,
            virtual_boundary: 0,
        };
        let discard = DiscardParameters {
            alignment: 0,
            granularity: 1 << physical,
            discard_sectors_max: if disk.can_discard { ERASE_SECTORS_MAX } else { 0 },
            zero_sectors_max: ERASE_SECTORS_MAX,
            discard_segments_max: 1,
            reserved: 0,
            pad: 0,
        };
        const BASIC: u32 = 1;
        const DISCARD: u32 = 1 << 1;
        Self { len: size_of::<Self>() as u32, types: BASIC | DISCARD, basic, discard }
    }
}

fn shift(bytes: u32) -> u8 {
    assert!(bytes.is_power_of_two(), "a block of {bytes} bytes");
    bytes.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernel() {
        let numbers = [
            (ControlCommand::GetFeatures, 0x8020_7513),
            (ControlCommand::AddDevice, 0xc020_7504),
            (ControlCommand::GetDeviceInfo, 0x8020_7502),
            (ControlCommand::StartRecovery, 0xc020_7510),
            (ControlCommand::UpdateSize, 0xc020_7515),
        ];
        for (command, number) in numbers {
            assert_eq!(command.op(), number, "{command:?}");
        }
        let argument = ControlCommand::StartDevice.argument(7, (0x1122, 64), 99);
        assert_eq!(argument[..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!((argument[8], argument[9], argument[16]), (0x22, 0x11, 99));
        assert_eq!(argument[24..], [0; 56]);
    }

    #[test]
    fn a_device_can_grow_if_the_driver_knows_how_and_asks_for_nothing_else_that_is_new() {
        // Linux 6.12 and 6.17.
        let before = DeviceInfo::new(2, 128, 1 << 20, 0x3ff);
        let since = DeviceInfo::new(2, 128, 1 << 20, 0x7fff);
        assert!(!before.can_grow() && since.can_grow());
        assert_eq!((before.flags, since.flags), (flags::NEEDED, flags::NEEDED | 1 << 10));
    }

    #[test]
    fn a_disk_is_described() {
        let disk = DiskProperties {
            size_bytes: 1 << 30,
            read_only: true,
            rotational: false,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            optimal_bytes: 64 << 10,
            request_bytes_max: 1 << 20,
            can_discard: false,
        };
        let Parameters { len, types, basic, discard } = Parameters::new(&disk);
        assert_eq!((len, types), (64, 3));
        assert_eq!(basic.attributes, 0b1101);
        assert_eq!((basic.logical_block_shift, basic.physical_block_shift), (9, 12));
        assert_eq!((basic.optimal_shift, basic.sectors_max), (16, 2048));
        assert_eq!(basic.device_sectors, 2 << 20);
        assert_eq!((discard.discard_sectors_max, discard.granularity), (0, 4096));
    }
}
