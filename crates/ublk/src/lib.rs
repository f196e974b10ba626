//! The binary interface of the kernel's ublk driver, which makes a block device of a process.
//!
//! The driver passes each request of a device to a *tag* of a queue. The process fetches a tag's
//! request with a command in an io_uring, finds its [`RequestDescriptor`] in mapped memory, moves
//! its data with reads and writes of the character device at [`data_position`], and answers with
//! the next command of the same tag. Another process, which needs CAP_SYS_ADMIN, makes, starts,
//! recovers and removes devices with control commands ([`control`]).
//!
//! Source: the kernel's header `include/uapi/linux/ublk_cmd.h`, as of Linux 6.16.

pub mod control;
mod io;

pub use io::{
    DESCRIPTOR_BYTES, IoCommand, Operation, RequestDescriptor, data_position, descriptors_at,
};

/// Queues that this program uses of one device at most.
pub const QUEUES_MAX: u16 = 64;

/// Requests in flight of a queue at most, by the driver.
pub const DEPTH_MAX: u16 = 4096;

/// The number of an ioctl: direction, size of its argument, `u`, and the command.
const fn ioctl(direction: u32, command: u32, argument_bytes: usize) -> u32 {
    direction << 30 | (argument_bytes as u32) << 16 | (b'u' as u32) << 8 | command
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;
