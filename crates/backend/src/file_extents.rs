//! Where a file system has placed the data of a file on its device, by the kernel's FIEMAP.

use rustix::fd::AsFd;
use rustix::ioctl::{Getter, Updater, ioctl};
use std::io;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Where it begins in the file, in bytes.
    pub file_offset: u64,
    /// Where its data begins on the device of the file system, in bytes. Meaningless unless
    /// the data is [`Placement::OnDevice`] or [`Placement::Unwritten`].
    pub device_offset: u64,
    /// Bytes. The last extent may end after the file.
    pub len: u64,
    /// What is there.
    pub placement: Placement,
}

/// How a file system keeps a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The data is on the device as it is in the file.
    OnDevice,
    /// Space on the device is allocated, but never written: it reads as zeroes, without I/O.
    Unwritten,
    /// The file system has not chosen a place yet, or does not report it.
    Pending,
    /// The data shares a block with other data, as in an inode.
    Inline,
    /// The data on the device is compressed or encrypted.
    Encoded,
}

/// Extents that one request can return.
const BATCH: usize = 128;

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

/// `struct fiemap` of `linux/fiemap.h`, with room for extents.
#[repr(C)]
struct FiemapRequest {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
struct Attributes {
    flags: u32,
    rest: [u32; 6],
}

const HEADER_BYTES: usize = 32;
const _: () = assert!(size_of::<RawExtent>() == 56);
const _: () = assert!(size_of::<FiemapRequest>() == HEADER_BYTES + BATCH * 56);
const _: () = assert!(size_of::<Attributes>() == 28);

/// `FS_IOC_FIEMAP`, whose number contains the size of the header.
const FS_IOC_FIEMAP: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::read_write::<[u8; HEADER_BYTES]>(b'f', 11);
/// `FS_IOC_FSGETXATTR`.
const FS_IOC_FSGETXATTR: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::read::<Attributes>(b'X', 31);

/// Write the file's dirty data first, so that it has a place.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// Flags of extents.
const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const DATA_ENCRYPTED: u32 = 0x80;
const NOT_ALIGNED: u32 = 0x100;
const DATA_INLINE: u32 = 0x200;
const DATA_TAIL: u32 = 0x400;
const UNWRITTEN: u32 = 0x800;
/// A flag of a file: its data is on the realtime device of an XFS.
const XFLAG_REALTIME: u32 = 1;

impl Placement {
    fn of(flags: u32) -> Self {
        let has = |any: u32| flags & any != 0;
        if has(ENCODED | DATA_ENCRYPTED) {
            Self::Encoded
        } else if has(UNKNOWN | DELALLOC) {
            Self::Pending
        } else if has(NOT_ALIGNED | DATA_INLINE | DATA_TAIL) {
            Self::Inline
        } else if has(UNWRITTEN) {
            Self::Unwritten
        } else {
            Self::OnDevice
        }
    }
}

/// The extents of a file in ascending order, without its holes. With `sync`, data that is only in
/// memory is written to the device first; otherwise it is [`Placement::Pending`].
///
/// # Errors
/// `EOPNOTSUPP` if the file system does not report extents, or its I/O error.
pub fn file_extents(file: impl AsFd, sync: bool) -> io::Result<Vec<FileExtent>> {
    let empty = RawExtent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved: [0; 2],
        flags: 0,
        more_reserved: [0; 3],
    };
    let mut extents = Vec::new();
    let mut start = 0;
    loop {
        let mut request = FiemapRequest {
            start,
            length: u64::MAX - start,
            flags: if sync && start == 0 { FIEMAP_FLAG_SYNC } else { 0 },
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [empty; BATCH],
        };
        // SAFETY: the kernel reads and writes a `struct fiemap` with `extent_count` extents behind
        // it, which is what `Request` is.
        unsafe { ioctl(&file, Updater::<FS_IOC_FIEMAP, FiemapRequest>::new(&mut request))? };
        let count = (request.mapped_extents as usize).min(BATCH);
        let found = &request.extents[..count];
        extents.extend(found.iter().map(|raw| FileExtent {
            file_offset: raw.logical,
            device_offset: raw.physical,
            len: raw.length,
            placement: Placement::of(raw.flags),
        }));
        let Some(last) = found.last() else { return Ok(extents) };
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || end <= start {
            return Ok(extents);
        }
        start = end;
    }
}

/// Whether the data of a file is on the realtime device of an XFS; the offsets of [`file_extents`]
/// are then those on that device. False if the file system has no such devices.
pub fn is_on_realtime_device(file: impl AsFd) -> bool {
    // SAFETY: the kernel writes a `struct fsxattr` of plain numbers, which `Attributes` is.
    let found = unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, Attributes>::new()) };
    found.is_ok_and(|attributes| attributes.flags & XFLAG_REALTIME != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_kernel_numbers_are_those_of_its_headers() {
        assert_eq!(FS_IOC_FIEMAP, 0xc020_660b);
        assert_eq!(FS_IOC_FSGETXATTR, 0x801c_581f);
    }

    #[test]
    fn flags_are_classified_by_what_prevents_a_read_of_the_device_first() {
        for (flags, placement) in [
            (0, Placement::OnDevice),
            // Merged, shared, last.
            (0x1000 | 0x2000 | LAST, Placement::OnDevice),
            (UNWRITTEN, Placement::Unwritten),
            (UNWRITTEN | DELALLOC | UNKNOWN, Placement::Pending),
            (DATA_INLINE | NOT_ALIGNED, Placement::Inline),
            (ENCODED | NOT_ALIGNED, Placement::Encoded),
            (DATA_ENCRYPTED | ENCODED | UNKNOWN, Placement::Encoded),
        ] {
            assert_eq!(Placement::of(flags), placement, "{flags:#x}");
        }
    }

    /// Only file systems on a device report extents; others return an error.
    #[test]
    fn the_extents_of_a_sparse_file_cover_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create_new(directory.path().join("sparse")).unwrap();
        let unsupported = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        // More pieces than one request returns, and holes between them.
        let pieces = 3 * BATCH as u64;
        let distance = 256 << 10;
        for piece in 0..pieces {
            file.write_all_at(&[piece as u8 | 1; 8192], piece * distance).unwrap();
        }
        let extents = match file_extents(&file, true) {
            Ok(extents) => extents,
            Err(error) => return assert_eq!(error.raw_os_error(), Some(unsupported)),
        };
        assert!(!is_on_realtime_device(&file));
        let covers = |offset: u64| {
            extents.iter().any(|extent| {
                let end = extent.file_offset + extent.len;
                extent.file_offset <= offset && offset < end
            })
        };
        for piece in 0..pieces {
            assert!(covers(piece * distance) && covers(piece * distance + 8191), "piece {piece}");
            assert!(!covers(piece * distance + distance / 2), "the hole after piece {piece}");
        }
        let in_order =
            |pair: &[FileExtent]| pair[0].file_offset + pair[0].len <= pair[1].file_offset;
        assert!(extents.windows(2).all(in_order), "{extents:?}");
        let is_placed = |extent: &FileExtent| extent.placement == Placement::OnDevice;
        assert!(extents.iter().all(is_placed), "synced: {extents:?}");
    }

    #[test]
    fn a_file_without_data_has_no_extents_and_a_socket_reports_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create_new(directory.path().join("empty")).unwrap();
        file.set_len(1 << 20).unwrap();
        if let Ok(extents) = file_extents(&file, true) {
            assert_eq!(extents, []);
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(file_extents(&socket, true).is_err());
        assert!(!is_on_realtime_device(&socket));
    }
}
