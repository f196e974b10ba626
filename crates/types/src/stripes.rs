//! The division of a volume into regions, and of regions into stripes. A region lies in one shard.

use crate::{ByteRange, DiskGeometry, LINE_BYTES, REGION_BYTES};

/// The maximum stripe width for regions of whole stripes, in bytes. With wider stripes, a volume
/// would have too few regions to distribute over the shards.
const WIDTH_MAX: u64 = 64 << 20;

/// The regions of a volume. A region is about [`REGION_BYTES`] long; if the disk has stripes, it
/// consists of whole stripes, so that one shard gathers the writes to a stripe. The division
/// depends only on the width and the offset of the stripes, so a pool that outlives its process
/// stores these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    width: u64,
    offset: u64,
    /// The size of a region.
    region: u64,
    /// The bytes by which the first region is shorter than the others.
    lead: u64,
}

impl Default for Stripes {
    fn default() -> Self {
        Self::NONE
    }
}

impl Stripes {
    /// No stripes.
    pub const NONE: Self = Self { width: 0, offset: 0, region: REGION_BYTES, lead: 0 };

    /// Stripes of `width` bytes, the first whole one at `offset`. Returns [`Self::NONE`] if `width`
    /// is zero or exceeds 64 MiB, or if the stripes are not aligned to lines.
    pub const fn new(width: u64, offset: u64) -> Self {
        let is_line_aligned = width.is_multiple_of(LINE_BYTES) && offset.is_multiple_of(LINE_BYTES);
        if width == 0 || width > WIDTH_MAX || !is_line_aligned {
            return Self::NONE;
        }
        let region = if width < REGION_BYTES { REGION_BYTES / width * width } else { width };
        let offset = offset % width;
        Self { width, offset, region, lead: (region - offset) % region }
    }

    /// The width of a stripe in bytes; zero without stripes.
    pub const fn width(self) -> u64 {
        self.width
    }

    /// The offset of the first whole stripe in bytes.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// The size of the pieces that a region is split into, in bytes: at most [`REGION_BYTES`], and
    /// more than half of that. The last piece of a region can be shorter, and so can the first and
    /// the last piece of a range.
    const fn piece_bytes(self) -> u64 {
        let pieces = self.region.div_ceil(REGION_BYTES);
        self.region.div_ceil(pieces).next_multiple_of(LINE_BYTES)
    }

    /// The number of the region of a byte.
    pub const fn region_of(self, byte: u64) -> u64 {
        // Every hit takes this path; division by this constant is a shift.
        if self.width == 0 { byte / REGION_BYTES } else { (byte + self.lead) / self.region }
    }

    /// The region of a byte. The first region may be shorter than the others.
    pub const fn region_at(self, byte: u64) -> ByteRange {
        let first = self.region_of(byte) * self.region;
        let end = first + self.region - self.lead;
        let start = first.saturating_sub(self.lead);
        ByteRange::new(start, end - start)
    }

    /// The first byte of a region, by its number.
    pub const fn border(self, region: u64) -> u64 {
        (region * self.region).saturating_sub(self.lead)
    }

    /// Whether the borders of all regions, and of the pieces that [`Stripes::split`] makes of them,
    /// are borders of blocks of `block_bytes`.
    pub const fn is_aligned_to(self, block_bytes: u64) -> bool {
        self.region.is_multiple_of(block_bytes)
            && self.lead.is_multiple_of(block_bytes)
            && self.piece_bytes().is_multiple_of(block_bytes)
    }

    /// The longest range of whole regions at the start of `range`, of at most `bytes_max` bytes;
    /// empty if there is none.
    pub const fn whole_regions(self, range: ByteRange, bytes_max: u64) -> ByteRange {
        let len = if range.len < bytes_max { range.len } else { bytes_max };
        let end = self.border(self.region_of(range.offset + len));
        let starts_one = self.border(self.region_of(range.offset)) == range.offset;
        let len = if starts_one { end.saturating_sub(range.offset) } else { 0 };
        ByteRange::new(range.offset, len)
    }

    /// The whole stripe of a byte, if there is one.
    pub const fn stripe_at(self, byte: u64) -> Option<ByteRange> {
        if self.width == 0 || byte < self.offset {
            return None;
        }
        let into = (byte - self.offset) % self.width;
        Some(ByteRange::new(byte - into, self.width))
    }

    /// Splits `range` at region borders into pieces of at most [`REGION_BYTES`], in order.
    pub fn split(self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.len == 0 {
                return None;
            }
            let into = (rest.offset + self.lead) % self.region;
            let to_border = self.region - into;
            let to_piece = self.piece_bytes() - into % self.piece_bytes();
            let piece = ByteRange::new(rest.offset, rest.len.min(to_border).min(to_piece));
            rest = ByteRange::new(piece.end(), rest.len - piece.len);
            Some(piece)
        })
    }
}

impl DiskGeometry {
    /// The stripes into which writes are gathered.
    pub const fn stripes(&self) -> Stripes {
        Stripes::new(self.stripe_bytes, self.offset_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const SHAPES: [(u64, u64); 7] = [
        (0, 0),
        (112 << 10, 0),
        (112 << 10, 60 << 10),
        (4096, 0),
        (1 << 20, 4096),
        (7 << 19, 0),
        (7 << 19, 3 << 19),
    ];

    #[test]
    fn regions_are_made_of_whole_stripes() {
        for (width, offset) in SHAPES {
            let stripes = Stripes::new(width, offset);
            let mut at = 0;
            for number in 0..40 {
                let region = stripes.region_at(at);
                assert_eq!((region.offset, stripes.region_of(at)), (at, number));
                assert_eq!(stripes.region_of(region.end() - 1), number);
                assert_eq!(stripes.region_at(region.end() - 1), region);
                if let Some(stripe) = stripes.stripe_at(at) {
                    assert_eq!(stripe.len, width);
                    assert_eq!(stripe.offset, at, "a region begins with a stripe");
                    let last = stripes.stripe_at(region.end() - 1).unwrap();
                    assert_eq!(last.end(), region.end(), "and ends with one");
                }
                at = region.end();
            }
        }
    }

    #[test]
    fn whole_regions_begin_and_end_at_borders() {
        for (width, offset) in SHAPES {
            let stripes = Stripes::new(width, offset);
            let [first, second, third] = [1, 2, 3].map(|number| stripes.border(number));
            let whole = |from: u64, to: u64, max| {
                stripes.whole_regions(ByteRange::new(from, to - from), max)
            };
            assert_eq!(stripes.region_at(first), ByteRange::new(first, second - first));
            let two = ByteRange::new(first, third - first);
            assert_eq!(whole(first, third, u64::MAX), two);
            assert_eq!(whole(first, third + 512, u64::MAX), two);
            assert_eq!(whole(first, third - 512, u64::MAX).end(), second);
            assert_eq!(whole(first, third, two.len - 512).end(), second);
            assert_eq!(whole(0, first, u64::MAX), ByteRange::new(0, first));
            assert_eq!(whole(first + 512, third, u64::MAX).len, 0);
            assert_eq!(whole(first, second - 512, u64::MAX).len, 0);
            assert!(stripes.is_aligned_to(512));
        }
        assert!(Stripes::NONE.is_aligned_to(64 << 10));
        assert!(!Stripes::new(12 << 10, 0).is_aligned_to(64 << 10));
    }

    #[test]
    fn pieces_cover_a_range_and_do_not_cross_regions() {
        for (width, offset) in SHAPES {
            let stripes = Stripes::new(width, offset);
            for range in [ByteRange::new(512, 9 << 20), ByteRange::new((5 << 20) + 4096, 1024)] {
                let mut at = range.offset;
                for piece in stripes.split(range) {
                    assert_eq!(piece.offset, at);
                    assert!(piece.len > 0 && piece.len <= REGION_BYTES);
                    let region = stripes.region_at(at);
                    assert!(region.offset <= at && piece.end() <= region.end());
                    assert!(stripes.piece_bytes() > REGION_BYTES / 2);
                    at = piece.end();
                }
                assert_eq!(at, range.end());
            }
        }
    }

    #[test]
    fn unusable_stripes_are_none() {
        assert_eq!(Stripes::new(112 << 10, 31 * 512), Stripes::NONE);
        assert_eq!(Stripes::new(6 << 9, 0), Stripes::NONE);
        assert_eq!(Stripes::new(1 << 30, 0), Stripes::NONE);
        assert_eq!(Stripes::NONE.stripe_at(5 << 20), None);
        assert_eq!(Stripes::new(112 << 10, 4096).stripe_at(0), None);
    }
}
