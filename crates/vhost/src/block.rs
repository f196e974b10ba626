//! The block device of virtio: its features, its properties, and the heads of requests.

use crate::RING_ENTRIES_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a sector, in which the device counts.
pub const SECTOR: u64 = 512;

/// Pieces of data of a request at most: a chain without an indirect table has two more.
const SEGMENTS_MAX: u32 = 254;
const _: () = assert!(SEGMENTS_MAX < RING_ENTRIES_MAX as u32);

/// The longest discard or write of zeroes, in sectors: 1 GiB.
const ERASE_SECTORS_MAX: u32 = 1 << 21;

/// Features of the device.
pub mod feature {
    /// The maximum of segments is stated.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device is read-only.
    pub const RO: u64 = 1 << 5;
    /// The size of a block is stated.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// It can flush.
    pub const FLUSH: u64 = 1 << 9;
    /// Physical blocks and the optimal size are stated.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The guest may ask for write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// It may have more than one ring.
    pub const MQ: u64 = 1 << 12;
    /// It can discard.
    pub const DISCARD: u64 = 1 << 13;
    /// It can write zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Chains may have an indirect table.
    pub const INDIRECT: u64 = 1 << 28;
    /// Each side says from which index on it wants to be notified.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device is one of version 1 of the specification.
    pub const VERSION_1: u64 = 1 << 32;
}

/// A disk as a guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestDisk {
    /// Its size in bytes, whole sectors.
    pub bytes: u64,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// The smallest piece that is read or written, in bytes: a power of two from 512.
    pub logical_block_bytes: u32,
    /// The smallest piece that is written without reading first, in bytes.
    pub physical_block_bytes: u32,
    /// Bytes of a request that suits the disk best; 0 if none does.
    pub optimal_bytes: u32,
    /// Whether discards reach the disk.
    pub can_discard: bool,
    /// Rings at most.
    pub rings: u16,
}

/// Bytes of [`Properties`].
pub const PROPERTIES_BYTES: usize = size_of::<Properties>();
/// Where the guest's choice of write-back is among the properties.
pub const WRITE_BACK_AT: u32 = 32;

/// The configuration space of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Properties {
    sectors: u64,
    segment_bytes_max: u32,
    segments_max: u32,
    cylinders: u16,
    heads: u8,
    track_sectors: u8,
    block_bytes: u32,
    physical_block_exponent: u8,
    alignment_offset: u8,
    minimal_blocks: u16,
    optimal_blocks: u32,
    /// Whether the guest wants a volatile cache: 0 or 1.
    pub is_write_back: u8,
    unused: u8,
    rings: u16,
    discard_sectors_max: u32,
    discard_segments_max: u32,
    discard_alignment: u32,
    zero_sectors_max: u32,
    zero_segments_max: u32,
    zero_may_unmap: u8,
    /// Also what follows in later versions, for features that are not offered.
    unused_end: [u8; 7],
}

const _: () = assert!(std::mem::offset_of!(Properties, is_write_back) == WRITE_BACK_AT as usize);
const _: () = assert!(PROPERTIES_BYTES == 64);

impl GuestDisk {
    /// The features that it offers.
    pub const fn features(&self) -> u64 {
        use feature as f;
        let mut features = f::SEG_MAX
            | f::BLK_SIZE
            | f::FLUSH
            | f::TOPOLOGY
            | f::CONFIG_WCE
            | f::MQ
            | f::WRITE_ZEROES
            | f::INDIRECT
            | f::EVENT_INDEX
            | f::VERSION_1
            | crate::message::PROTOCOL_FEATURES;
        if self.is_read_only {
            features |= f::RO;
        }
        if self.can_discard {
            features |= f::DISCARD;
        }
        features
    }

    /// Its properties.
    pub fn properties(&self) -> Properties {
        let physical = (self.physical_block_bytes / self.logical_block_bytes).max(1);
        Properties {
            sectors: self.bytes / SECTOR,
            segment_bytes_max: 0,
            segments_max: SEGMENTS_MAX,
            cylinders: 0,
            heads: 0,
            track_sectors: 0,
            block_bytes: self.logical_block_bytes,
            physical_block_exponent: physical.ilog2() as u8,
            alignment_offset: 0,
            minimal_blocks: physical as u16,
            optimal_blocks: self.optimal_bytes / self.logical_block_bytes,
            is_write_back: 1,
            unused: 0,
            rings: self.rings,
            discard_sectors_max: if self.can_discard { ERASE_SECTORS_MAX } else { 0 },
            discard_segments_max: u32::from(self.can_discard),
            discard_alignment: self.physical_block_bytes / SECTOR as u32,
            zero_sectors_max: ERASE_SECTORS_MAX,
            zero_segments_max: 1,
            zero_may_unmap: u8::from(self.can_discard),
            unused_end: [0; 7],
        }
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RequestHead {
    /// What it asks for; see [`RequestHead::operation`].
    kind: u32,
    reserved: u32,
    sector: u64,
}

/// Bytes of a [`RequestHead`].
pub const HEAD_BYTES: usize = size_of::<RequestHead>();

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOperation {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Make everything answered before durable.
    Flush,
    /// Tell the name of the device.
    Identify,
    /// Discard a range.
    Discard,
    /// Zero a range.
    WriteZeroes,
}

impl RequestHead {
    /// The operation. `None` if it is unknown.
    pub const fn operation(&self) -> Option<BlockOperation> {
        Some(match self.kind {
            0 => BlockOperation::Read,
            1 => BlockOperation::Write,
            4 => BlockOperation::Flush,
            8 => BlockOperation::Identify,
            11 => BlockOperation::Discard,
            13 => BlockOperation::WriteZeroes,
            _ => return None,
        })
    }

    /// The first byte of the device that it is about. `None` if no number expresses it.
    pub const fn offset(&self) -> Option<u64> {
        self.sector.checked_mul(SECTOR)
    }
}

/// The range of a discard or of zeroes, which is the data of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct EraseRange {
    sector: u64,
    sectors: u32,
    flags: u32,
}

/// Bytes of an [`EraseRange`].
pub const ERASE_BYTES: usize = size_of::<EraseRange>();

impl EraseRange {
    /// The first byte and the number of bytes. `None` if no number expresses them.
    pub fn range(&self) -> Option<(u64, u64)> {
        Some((self.sector.checked_mul(SECTOR)?, u64::from(self.sectors) * SECTOR))
    }

    /// Whether a zeroed range may be deallocated; `None` if a flag is unknown.
    pub const fn may_unmap(&self) -> Option<bool> {
        match self.flags {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// The last byte of a request: how it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestStatus {
    /// It was done.
    Ok = 0,
    /// It failed.
    Failed = 1,
    /// The device has no such operation.
    Unsupported = 2,
}

/// Bytes of the name of a device.
pub const NAME_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: GuestDisk = GuestDisk {
        bytes: 1 << 30,
        is_read_only: false,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        optimal_bytes: 1 << 16,
        can_discard: true,
        rings: 4,
    };

    #[test]
    fn the_properties_are_where_the_specification_has_them() {
        let bytes: [u8; PROPERTIES_BYTES] = zerocopy::transmute!(DISK.properties());
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), (1 << 30) / 512);
        assert_eq!((number(12), number(20)), (254, 512));
        assert_eq!((bytes[24], bytes[26], number(28)), (3, 8, 128));
        assert_eq!((bytes[32], bytes[34]), (1, 4));
        assert_eq!([36, 40, 44, 48, 52].map(number), [1 << 21, 1, 8, 1 << 21, 1]);
        assert_eq!(bytes[56], 1);
    }

    #[test]
    fn features_follow_the_disk() {
        let fixed = GuestDisk { is_read_only: true, can_discard: false, ..DISK };
        let differing = fixed.features() ^ DISK.features();
        assert_eq!(differing, feature::RO | feature::DISCARD);
        assert_eq!(fixed.properties().discard_sectors_max, 0);
    }

    #[test]
    fn ranges_that_no_number_expresses_are_none() {
        let head = RequestHead { kind: 1, reserved: 0, sector: u64::MAX / 512 + 1 };
        assert_eq!((head.operation(), head.offset()), (Some(BlockOperation::Write), None));
        let erase = EraseRange { sector: 8, sectors: u32::MAX, flags: 2 };
        assert_eq!(erase.range(), Some((4096, u64::from(u32::MAX) * 512)));
        assert_eq!(erase.may_unmap(), None);
    }
}
