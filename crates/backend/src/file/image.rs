//! Disk images in the formats of virtual machines, recognised by their headers.
//!
//! The content of such an image is not that of the disk in it. Served as raw, its guest would see
//! the header, and a write would destroy the image.

use std::os::fd::OwnedFd;

/// Bytes at a place that identify a format.
struct Magic {
    /// From the start of the file.
    offset: usize,
    bytes: &'static [u8],
    format: &'static str,
}

const fn magic(offset: usize, bytes: &'static [u8], format: &'static str) -> Magic {
    Magic { offset, bytes, format }
}

/// Headers with their version, where the name alone is short.
const MAGICS: [Magic; 15] = [
    magic(0, b"QFI\xFB\0\0\0\x01", "qcow"),
    magic(0, b"QFI\xFB\0\0\0\x02", "qcow2"),
    magic(0, b"QFI\xFB\0\0\0\x03", "qcow2"),
    magic(0, b"QED\0", "QED"),
    magic(0, b"KDMV\x01\0\0\0", "VMDK"),
    magic(0, b"KDMV\x02\0\0\0", "VMDK"),
    magic(0, b"KDMV\x03\0\0\0", "VMDK"),
    magic(0, b"COWD\x01\0\0\0", "VMDK"),
    magic(0, b"# Disk DescriptorFile", "VMDK"),
    magic(0, b"vhdxfile", "VHDX"),
    magic(0, VHD, "VHD"),
    magic(64, b"\x7F\x10\xDA\xBE", "VDI"),
    magic(0, b"WithoutFreeSpace", "Parallels"),
    magic(0, b"WithouFreSpacExt", "Parallels"),
    magic(0, b"SESparse", "VMDK"),
];

/// The start of the last sector of a VHD; the header of one that grows is a copy of it.
const VHD: &[u8] = b"conectix";
const SECTOR: u64 = forebay_types::SECTOR_BYTES;

/// The format of the image in a file that is not opened for direct I/O; `None` for anything else,
/// also if it cannot be read.
pub(super) fn format_of(file: &OwnedFd, size_bytes: u64) -> Option<&'static str> {
    let read = |offset| {
        let mut sector = [0; SECTOR as usize];
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut sector, offset));
        count.is_ok_and(|count| count > 0).then_some(sector)
    };
    let first = read(0)?;
    let found = MAGICS.iter().find(|magic| first[magic.offset..].starts_with(magic.bytes));
    let last = || read(size_bytes.checked_sub(SECTOR)?);
    let is_fixed_vhd = || last().is_some_and(|last| last.starts_with(VHD));
    found.map(|magic| magic.format).or_else(|| is_fixed_vhd().then_some("VHD"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn images_are_recognised_by_their_headers() {
        let format = |offset: u64, bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(bytes, offset).unwrap();
            format_of(&file.into(), 1 << 20)
        };
        for magic in &MAGICS {
            assert_eq!(format(magic.offset as u64, magic.bytes), Some(magic.format));
        }
        assert_eq!(format((1 << 20) - 512, VHD), Some("VHD"));
        // An empty disk, a boot sector, a partition table, and an image in a guest's file.
        for (offset, bytes) in
            [(0, &b""[..]), (0, b"\xEB\x63\x90"), (512, b"EFI PART"), (4096, b"QFI\xFB\0\0\0\x03")]
        {
            assert_eq!(format(offset, bytes), None, "{bytes:?}");
        }
    }
}
