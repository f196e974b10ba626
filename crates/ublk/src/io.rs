//! The commands of a queue, and the requests that they fetch.

use crate::{DEPTH_MAX, READ_WRITE, ioctl};
use forebay_types::ByteRange;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a [`RequestDescriptor`] in the mapped memory.
pub const DESCRIPTOR_BYTES: usize = size_of::<RequestDescriptor>();

/// Bytes of a sector, in which the driver counts.
const SECTOR: u64 = 512;
/// Where the data of requests begins on the character device.
const DATA_POSITION: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = TAG_SHIFT + 16;

/// Flags of a request.
const FUA: u32 = 1 << 13;
const NO_UNMAP: u32 = 1 << 15;

/// A request of the driver, as it describes it in mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable)]
#[repr(C)]
pub struct RequestDescriptor {
    /// The operation in the lowest byte, and flags.
    operation: u32,
    sectors: u32,
    first_sector: u64,
    /// Of a mode without user copy.
    address: u64,
}

const _: () = assert!(size_of::<RequestDescriptor>() == 24);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the range.
    Read,
    /// Write the range; with `fua`, to stable storage.
    Write {
        /// Answer only when the data is on stable storage.
        fua: bool,
    },
    /// Make everything answered before durable.
    Flush,
    /// Discard the range.
    Discard,
    /// Zero the range.
    WriteZeroes {
        /// Answer only when the zeroes are on stable storage.
        fua: bool,
        /// Whether the range may be deallocated.
        unmap: bool,
    },
}

impl RequestDescriptor {
    /// The operation. `None` if it is unknown.
    pub const fn operation(&self) -> Option<Operation> {
        let fua = self.operation & FUA != 0;
        match self.operation & 0xff {
            0 => Some(Operation::Read),
            1 => Some(Operation::Write { fua }),
            2 => Some(Operation::Flush),
            3 => Some(Operation::Discard),
            5 => Some(Operation::WriteZeroes { fua, unmap: self.operation & NO_UNMAP == 0 }),
            _ => None,
        }
    }

    /// The bytes of the device that it is about. `None` if they are beyond what numbers can
    /// express.
    pub fn range(&self) -> Option<ByteRange> {
        let offset = self.first_sector.checked_mul(SECTOR)?;
        let len = u64::from(self.sectors) * SECTOR;
        offset.checked_add(len)?;
        Some(ByteRange::new(offset, len))
    }
}

/// A command of a tag. The driver takes the tag's commands from one thread only, the one that has
/// fetched first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// The number of the command.
    pub op: u32,
    /// Its argument.
    pub argument: [u8; 16],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct IoArgument {
    queue: u16,
    tag: u16,
    result: i32,
    /// Not used with user copy.
    address: u64,
}

impl IoCommand {
    /// Fetches the tag's first request.
    pub fn fetch(queue: u16, tag: u16) -> Self {
        Self::new(0x20, queue, tag, 0)
    }

    /// Answers the tag's request, and fetches the next one. The result is the number of bytes of a
    /// read or write, all of them, zero for other requests, or a negative error number. Kernels
    /// differ on what they make of anything else.
    pub fn commit_and_fetch(queue: u16, tag: u16, result: i32) -> Self {
        Self::new(0x21, queue, tag, result)
    }

    fn new(command: u32, queue: u16, tag: u16, result: i32) -> Self {
        let argument = IoArgument { queue, tag, result, address: 0 };
        let mut bytes = [0; 16];
        bytes.copy_from_slice(argument.as_bytes());
        Self { op: ioctl(READ_WRITE, command, size_of::<IoArgument>()), argument: bytes }
    }
}

/// The position of the data of a tag's request on the character device. Writing there provides the
/// data of a read, and reading takes that of a write.
pub const fn data_position(queue: u16, tag: u16) -> u64 {
    DATA_POSITION + ((queue as u64) << QUEUE_SHIFT | (tag as u64) << TAG_SHIFT)
}

/// The position of a queue's descriptors on the character device, which are mapped there.
pub const fn descriptors_at(queue: u16) -> u64 {
    queue as u64 * DEPTH_MAX as u64 * DESCRIPTOR_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    fn descriptor(operation: u32, first_sector: u64, sectors: u32) -> RequestDescriptor {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&operation.to_ne_bytes());
        bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
        bytes[8..16].copy_from_slice(&first_sector.to_ne_bytes());
        RequestDescriptor::read_from_bytes(&bytes).expect("as many bytes")
    }

    #[test]
    fn commands_have_the_numbers_and_the_layout_of_the_kernel() {
        // _IOWR('u', 0x20, struct ublksrv_io_cmd) and 0x21.
        let fetch = IoCommand::fetch(3, 0x102);
        assert_eq!(fetch.op, 0xc010_7520);
        assert_eq!(fetch.argument, [3, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let commit = IoCommand::commit_and_fetch(0, 1, -5);
        assert_eq!(commit.op, 0xc010_7521);
        assert_eq!(commit.argument[..8], [0, 0, 1, 0, 0xfb, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn data_and_descriptors_of_a_queue_have_their_positions() {
        assert_eq!(data_position(0, 0), 0x8000_0000);
        assert_eq!(data_position(0, 1), 0x8200_0000);
        assert_eq!(data_position(1, 0), 0x8000_0000 + (1 << 41));
        assert_eq!(descriptors_at(2), 2 * 4096 * 24);
    }

    #[test]
    fn requests_are_parsed() {
        let write = descriptor(1 | FUA, 8, 2);
        assert_eq!(write.operation(), Some(Operation::Write { fua: true }));
        assert_eq!(write.range(), Some(ByteRange::new(4096, 1024)));
        let zeroes = |flags| descriptor(5 | flags, 0, 1).operation();
        assert_eq!(zeroes(0), Some(Operation::WriteZeroes { fua: false, unmap: true }));
        assert_eq!(zeroes(NO_UNMAP), Some(Operation::WriteZeroes { fua: false, unmap: false }));
        assert_eq!(descriptor(2, 0, 0).operation(), Some(Operation::Flush));
        assert_eq!(descriptor(3, 1, 1).operation(), Some(Operation::Discard));
        assert_eq!(descriptor(4, 0, 1).operation(), None, "a write of the same block, never sent");
        assert_eq!(descriptor(0, u64::MAX / 2, 1).range(), None);
        assert_eq!(descriptor(0, u64::MAX / 512, u32::MAX).range(), None);
    }
}
