//! Granules: the entries of warm lists, which say what was valuable in the pool.

use crate::{ByteRange, LINE_BYTES};

/// Lines of a granule: one bit of [`Granule::lines`] each.
pub const GRANULE_LINES: u64 = 32;
/// Bytes of a granule: 128 KiB. A hard disk reads them in less time than it seeks to them.
pub const GRANULE_BYTES: u64 = GRANULE_LINES * LINE_BYTES;

/// The largest value that the eviction policy gives a line.
pub const LINE_VALUE_MAX: u8 = 7;
/// The minimum value of a line that counts as hot: it was used repeatedly.
pub const LINE_VALUE_HOT: u8 = 4;

const _: () = assert!(GRANULE_LINES * LINE_VALUE_MAX as u64 <= u8::MAX as u64);

/// Some of the lines in an aligned range of 128 KiB of a volume, and their value to the eviction
/// policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granule {
    /// The number of the granule in its volume: the first byte divided by [`GRANULE_BYTES`].
    pub index: u64,
    /// One bit for each line, the lowest for the first. Not zero.
    pub lines: u32,
    /// The sum of the values of these lines, each at most [`LINE_VALUE_MAX`].
    pub value: u8,
}

impl Granule {
    /// The bytes of the volume in which its lines lie. The volume may end within the granule.
    pub const fn range(&self) -> ByteRange {
        ByteRange::new(self.index * GRANULE_BYTES, GRANULE_BYTES)
    }

    /// The number of its lines, from 1 to [`GRANULE_LINES`].
    pub const fn line_count(&self) -> u32 {
        self.lines.count_ones()
    }

    /// Whether its lines are hot on average.
    pub const fn is_hot(&self) -> bool {
        self.value as u32 >= LINE_VALUE_HOT as u32 * self.line_count()
    }

    /// Orders granules by the mean value of their lines, then by the number of lines, both
    /// descending, then by index.
    pub fn by_value(&self, other: &Self) -> std::cmp::Ordering {
        // The quotients are compared by their cross products.
        let (mine, theirs) = (
            u32::from(self.value) * other.line_count(),
            u32::from(other.value) * self.line_count(),
        );
        theirs
            .cmp(&mine)
            .then(other.line_count().cmp(&self.line_count()))
            .then(self.index.cmp(&other.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_are_ordered_by_the_mean_value_of_their_lines() {
        let granule = |index, lines, value| Granule { index, lines, value };
        let mut all = [
            granule(0, 0b11, 2),
            granule(1, 0b1, 7),
            granule(2, u32::MAX, 32 * 7),
            granule(3, 0b1, 3),
            granule(4, 0b11, 6),
        ];
        all.sort_by(Granule::by_value);
        assert_eq!(all.map(|granule| granule.index), [2, 1, 4, 3, 0]);
        assert_eq!(all.map(|granule| granule.is_hot()), [true, true, false, false, false]);
    }
}
