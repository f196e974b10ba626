//! Line keys: volume and line number in one word.

use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};

const LINE_BITS: u32 = 48;

/// A line of a volume: 16 bits of volume, 48 bits of line number (2^60 bytes a volume).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineKey(pub(crate) u64);

impl LineKey {
    /// The key of a slot without a line.
    pub const NONE: Self = Self(u64::MAX);

    /// The key of a slot that holds parity.
    pub const PARITY: Self = Self(u64::MAX - 1);

    /// The key of a slot whose memory has been given back.
    pub const AWAY: Self = Self(u64::MAX - 2);

    /// The line `line` of `volume`.
    pub const fn new(volume: VolumeId, line: u64) -> Self {
        Self((volume.0 as u64) << LINE_BITS | (line & ((1 << LINE_BITS) - 1)))
    }

    pub const fn volume(self) -> VolumeId {
        VolumeId((self.0 >> LINE_BITS) as u16)
    }

    /// The number of the line in its volume.
    pub const fn line(self) -> u64 {
        self.0 & ((1 << LINE_BITS) - 1)
    }

    /// The first byte of the line.
    pub const fn offset(self) -> u64 {
        self.line() * LINE_BYTES
    }

    /// The line `count` lines further on.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }

    /// A hash of the key (the finalizer of SplitMix64, Steele et al., OOPSLA 2014).
    pub const fn hash(self) -> u64 {
        let x = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// The part of a byte range that lies in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinePart {
    pub key: LineKey,
    /// First byte within the line.
    pub offset: u32,
    pub len: u32,
    /// The sectors touched.
    pub mask: u8,
}

/// The lines that a sector-aligned range touches, in order.
pub(crate) fn line_parts(
    volume: VolumeId,
    range: ByteRange,
) -> impl DoubleEndedIterator<Item = LinePart> {
    let first = range.offset / LINE_BYTES;
    let lines = range.end().div_ceil(LINE_BYTES).saturating_sub(first);
    (0..lines).map(move |i| {
        let start = (first + i) * LINE_BYTES;
        let from = range.offset.max(start) - start;
        let to = range.end().min(start + LINE_BYTES) - start;
        LinePart {
            key: LineKey::new(volume, first + i),
            offset: from as u32,
            len: (to - from) as u32,
            mask: sector_mask(from / SECTOR_BYTES, to / SECTOR_BYTES),
        }
    })
}

/// The line that holds a whole sector-aligned range, if one line does.
pub(crate) const fn only_line(volume: VolumeId, range: ByteRange) -> Option<LinePart> {
    let (line, from) = (range.offset / LINE_BYTES, range.offset % LINE_BYTES);
    let to = from + range.len;
    if to > LINE_BYTES {
        return None;
    }
    let mask = sector_mask(from / SECTOR_BYTES, to / SECTOR_BYTES);
    let (offset, len) = (from as u32, range.len as u32);
    Some(LinePart { key: LineKey::new(volume, line), offset, len, mask })
}

/// The sectors `from..to` of a line as a mask.
pub(crate) const fn sector_mask(from: u64, to: u64) -> u8 {
    debug_assert!(from <= to && to <= SECTORS_PER_LINE as u64);
    ((1u16 << to) - (1u16 << from)) as u8
}

/// The runs of consecutive ones in a mask, as `(first sector, sectors)`.
pub(crate) fn mask_runs(mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = u32::from(mask);
    let mut at = 0;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let skip = rest.trailing_zeros();
        let len = (rest >> skip).trailing_ones();
        let run = (at + skip, len);
        at += skip + len;
        rest = if skip + len >= 32 { 0 } else { rest >> (skip + len) };
        Some(run)
    })
}

/// The runs of `mask` in order, cut where `valid` changes: `(first sector, sectors, valid)`.
pub(crate) fn pieces(mask: u8, valid: u8) -> Vec<(u32, u32, bool)> {
    let there = mask_runs(mask & valid).map(|(first, count)| (first, count, true));
    let missing = mask_runs(mask & !valid).map(|(first, count)| (first, count, false));
    let mut pieces: Vec<_> = there.chain(missing).collect();
    pieces.sort_unstable();
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_at_lines() {
        let parts: Vec<LinePart> = line_parts(VolumeId(3), ByteRange::new(3584, 5120)).collect();
        assert_eq!(parts.len(), 3);
        assert_eq!((parts[0].offset, parts[0].len, parts[0].mask), (3584, 512, 0x80));
        assert_eq!((parts[1].offset, parts[1].len, parts[1].mask), (0, 4096, 0xff));
        assert_eq!((parts[2].offset, parts[2].len, parts[2].mask), (0, 512, 0x01));
        assert_eq!(parts[2].key, LineKey::new(VolumeId(3), 2));
    }

    #[test]
    fn runs_of_every_mask_add_up_to_it() {
        for mask in 0..=255u8 {
            let mut sum = 0;
            let mut last_end = 0;
            for (first, len) in mask_runs(mask) {
                assert!(len > 0 && (first > last_end || last_end == 0));
                last_end = first + len;
                sum |= sector_mask(u64::from(first), u64::from(first + len));
            }
            assert_eq!(sum, mask);
        }
    }
}
