//! From the extents of a file to ranges of the volume. Pure.

use super::device::{MountedDevice, PIN_RANGES};
use crate::report::with_remedy;
use anyhow::anyhow;
use forebay_backend::{FileExtent, Placement};
use forebay_terminal::units::bytes;
use forebay_types::{ByteRange, PinnedRanges, limits::PINNED_RANGES_MAX};

/// A part of a file and its place in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file_offset: u64,
    pub(super) volume_offset: u64,
    pub(super) len: u64,
}

/// Where a file is in the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileMap {
    /// The parts with data.
    pub(super) pieces: Vec<Piece>,
    /// The lines that contain these parts.
    pub(super) ranges: PinnedRanges,
    /// Bytes that are allocated, but not written.
    pub(super) unwritten_bytes: u64,
    /// Bytes that have no place on the device yet.
    pub(super) pending_bytes: u64,
    /// Bytes in the file's inode.
    pub(super) inline_bytes: u64,
}

impl FileMap {
    /// The map of a file with these extents, in a file system on this device.
    ///
    /// # Errors
    /// The data is encoded, or an extent is not on the device.
    pub(super) fn new(extents: &[FileExtent], device: &MountedDevice) -> anyhow::Result<Self> {
        let mut map = Self::default();
        for extent in extents {
            match extent.placement {
                Placement::Encoded => {
                    let what = "its file system compresses or encrypts it";
                    return Err(with_remedy(anyhow!("{what}"), PIN_RANGES));
                }
                Placement::Unwritten => map.unwritten_bytes += extent.len,
                Placement::Pending => map.pending_bytes += extent.len,
                Placement::Inline => map.inline_bytes += extent.len,
                Placement::OnDevice => map.add(extent, device)?,
            }
        }
        if map.ranges.len() > PINNED_RANGES_MAX {
            let error = anyhow!(
                "it is in {} pieces, and a volume can have {PINNED_RANGES_MAX} pinned ranges",
                map.ranges.len()
            );
            let remedy = "defragment it (`e4defrag`, `xfs_fsr`), or pin larger ranges that include \
                          several";
            return Err(with_remedy(error, remedy));
        }
        Ok(map)
    }

    fn add(&mut self, extent: &FileExtent, device: &MountedDevice) -> anyhow::Result<()> {
        let end = extent.device_offset.checked_add(extent.len);
        if end.is_none_or(|end| end > device.part_bytes) {
            let error = anyhow!(
                "its file system says that data is at {}, beyond the {} bytes of the device it is \
                 on",
                extent.device_offset,
                device.part_bytes
            );
            return Err(with_remedy(error, PIN_RANGES));
        }
        let volume_offset = device.start_bytes + extent.device_offset;
        let (file_offset, len) = (extent.file_offset, extent.len);
        self.ranges.add(ByteRange::new(volume_offset, len));
        self.pieces.push(Piece { file_offset, volume_offset, len });
        Ok(())
    }

    /// What is not pinned, and why: `1.0 MiB allocated but not written`; empty if nothing.
    pub(super) fn left_out(&self) -> String {
        let parts = [
            (self.unwritten_bytes, "allocated but not written"),
            (self.pending_bytes, "without a place on the disk yet"),
            (self.inline_bytes, "in its inode"),
        ];
        let shown = parts.into_iter().filter(|(len, _)| *len > 0);
        shown.map(|(len, why)| format!("{} {why}", bytes(len))).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 4096;

    fn extent(file_offset: u64, device_offset: u64, len: u64, placement: Placement) -> FileExtent {
        FileExtent { file_offset, device_offset, len, placement }
    }

    fn device(start_bytes: u64) -> MountedDevice {
        MountedDevice { name: "nbd0".into(), size_bytes: 1 << 30, start_bytes, part_bytes: 1 << 24 }
    }

    fn shown(ranges: &PinnedRanges) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.offset, range.len)).collect()
    }

    #[test]
    fn extents_become_whole_lines_of_the_volume() {
        let there = |file, device, len| extent(file, device, len, Placement::OnDevice);
        for (start, extents, ranges) in [
            (0, vec![], vec![]),
            (0, vec![there(0, 8192, 4096)], vec![(8192, 4096)]),
            // A file system with blocks of 1 KiB: two pieces in one line.
            (0, vec![there(0, 1024, 1024), there(1024, 3072, 1024)], vec![(0, LINE)]),
            // A partition that does not begin at a line.
            (512, vec![there(0, 8192, 4096)], vec![(8192, 2 * LINE)]),
            (1 << 20, vec![there(0, 0, 512)], vec![(1 << 20, LINE)]),
            // In another order than in the file; shared and adjacent pieces count once.
            (
                0,
                vec![there(0, 65536, 8192), there(8192, 0, 4096), there(16384, 69632, 8192)],
                vec![(0, LINE), (65536, 3 * LINE)],
            ),
            // The last block of the device.
            (0, vec![there(0, (1 << 24) - 512, 512)], vec![((1 << 24) - LINE, LINE)]),
        ] {
            let map = FileMap::new(&extents, &device(start)).unwrap();
            assert_eq!(shown(&map.ranges), ranges, "{start} {extents:?}");
            assert_eq!(map.pieces.len(), extents.len());
            assert_eq!(map.left_out(), "");
            for (piece, extent) in map.pieces.iter().zip(&extents) {
                assert_eq!(piece.volume_offset, start + extent.device_offset);
                assert_eq!((piece.file_offset, piece.len), (extent.file_offset, extent.len));
            }
        }
    }

    #[test]
    fn what_cannot_be_read_from_the_device_is_left_out_and_named() {
        let extents = [
            extent(0, 0, 4096, Placement::OnDevice),
            extent(4096, 4096, 1 << 20, Placement::Unwritten),
            // An extent without a place may have any offset.
            extent(1 << 21, u64::MAX, 8192, Placement::Pending),
            extent(1 << 22, 77, 60, Placement::Inline),
        ];
        let map = FileMap::new(&extents, &device(0)).unwrap();
        assert_eq!(shown(&map.ranges), [(0, LINE)]);
        assert_eq!(
            map.left_out(),
            "1.0 MiB allocated but not written, 8.0 KiB without a place on the disk yet, 60 B in \
             its inode"
        );
    }

    #[test]
    fn maps_that_would_pin_wrong_ranges_are_refused() {
        let refused = |extents: &[FileExtent]| {
            crate::report::sentence(&FileMap::new(extents, &device(0)).unwrap_err())
        };
        let encoded = [extent(0, 0, 4096, Placement::Encoded)];
        assert_eq!(
            refused(&encoded),
            "its file system compresses or encrypts it: pin ranges of the volume instead, as \
             OFFSET+LENGTH"
        );
        for (offset, len) in [((1 << 24) - 512, 1024), (u64::MAX, 1), (u64::MAX - 511, 512)] {
            let beyond = [extent(0, offset, len, Placement::OnDevice)];
            assert!(refused(&beyond).contains("beyond the 16777216 bytes"), "{offset}+{len}");
        }
        let many: Vec<_> = (0..1025)
            .map(|at| extent(at * LINE, at * 2 * LINE, LINE, Placement::OnDevice))
            .collect();
        assert!(FileMap::new(&many[..1024], &device(0)).is_ok());
        assert!(refused(&many).starts_with("it is in 1025 pieces, and a volume can have 1024"));
    }
}
