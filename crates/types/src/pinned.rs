//! Pinned ranges: the parts of a volume that stay in the pool.

use crate::{ByteRange, LINE_BYTES};

/// The number of whole lines that byte offsets can address.
const LINES_END: u64 = u64::MAX / LINE_BYTES;

/// The pinned ranges of a volume, in whole lines: a line that a range covers in part is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PinnedRanges {
    /// The first line and the end of each range: in ascending order, not empty, and with a gap
    /// between any two.
    ranges: Vec<(u64, u64)>,
}

impl PinnedRanges {
    /// The whole volume, whatever its size.
    pub fn all() -> Self {
        Self { ranges: vec![(0, LINES_END)] }
    }

    /// Whether this is [`PinnedRanges::all`].
    pub fn is_all(&self) -> bool {
        self.ranges == [(0, LINES_END)]
    }

    /// Whether nothing is pinned.
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of ranges, where adjacent ones count as one.
    pub const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The number of lines.
    pub fn lines(&self) -> u64 {
        self.ranges.iter().map(|(first, end)| end - first).sum()
    }

    /// Whether a line is pinned.
    pub fn contains(&self, line: u64) -> bool {
        let after = self.ranges.partition_point(|&(first, _)| first <= line);
        after > 0 && line < self.ranges[after - 1].1
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> {
        let range = |&(first, end): &(u64, u64)| {
            ByteRange::new(first * LINE_BYTES, (end - first) * LINE_BYTES)
        };
        self.ranges.iter().map(range)
    }

    /// Adds the lines of a range, which may overlap others.
    pub fn add(&mut self, range: ByteRange) {
        let (mut first, mut end) = lines_of(range);
        if first >= end {
            return;
        }
        let at = self.ranges.partition_point(|other| other.1 < first);
        let until = self.ranges.partition_point(|other| other.0 <= end);
        if let [lowest, ..] = self.ranges[at..until] {
            first = first.min(lowest.0);
            end = end.max(self.ranges[until - 1].1);
        }
        self.ranges.splice(at..until, [(first, end)]);
    }

    /// Removes the lines of a range.
    pub fn remove(&mut self, range: ByteRange) {
        let (first, end) = lines_of(range);
        let left = |&(from, to): &(u64, u64)| [(from, to.min(first)), (from.max(end), to)];
        let is_some = |(from, to): &(u64, u64)| from < to;
        if first < end {
            self.ranges = self.ranges.iter().flat_map(left).filter(is_some).collect();
        }
    }

    /// These ranges and others. The union with [`PinnedRanges::all`] is the whole volume, whatever
    /// its size.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        let mut all = self.clone();
        others.iter().for_each(|range| all.add(range));
        all
    }

    /// These ranges without `others`, in a volume of this size. If `others` is empty, they are
    /// unchanged and not clipped to the size.
    #[must_use]
    pub fn without(&self, others: &Self, size_bytes: u64) -> Self {
        let mut left = self.clone();
        if others.is_empty() {
            return left;
        }
        left.clip(size_bytes);
        others.iter().for_each(|range| left.remove(range));
        left
    }

    /// Removes the lines beyond the end of a volume of this size.
    pub fn clip(&mut self, size_bytes: u64) {
        let end = size_bytes.div_ceil(LINE_BYTES);
        self.ranges.iter_mut().for_each(|range| range.1 = range.1.min(end));
        self.ranges.retain(|range| range.0 < range.1);
    }

    /// Whether no line lies beyond the end of a volume of this size.
    pub fn fits(&self, size_bytes: u64) -> bool {
        self.ranges.last().is_none_or(|last| last.1 <= size_bytes.div_ceil(LINE_BYTES))
    }
}

/// The first line of a range, and the end of its lines.
fn lines_of(range: ByteRange) -> (u64, u64) {
    if range.len == 0 {
        return (0, 0);
    }
    let end = range.offset.saturating_add(range.len).div_ceil(LINE_BYTES);
    (range.offset / LINE_BYTES, end.min(LINES_END))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn range(first: u64, lines: u64) -> ByteRange {
        ByteRange::new(first * LINE_BYTES, lines * LINE_BYTES)
    }

    #[test]
    fn a_line_that_is_covered_in_part_is_pinned() {
        let mut pins = PinnedRanges::default();
        pins.add(ByteRange::new(LINE_BYTES - 1, 2));
        assert_eq!(pins.iter().collect::<Vec<_>>(), [range(0, 2)]);
        pins.add(ByteRange::new(7, 0));
        assert_eq!(pins.lines(), 2);
    }

    #[test]
    fn all_is_clipped_to_the_size_of_the_volume() {
        let mut pins = PinnedRanges::all();
        assert!(pins.is_all() && pins.contains(LINES_END - 1) && !pins.fits(1 << 40));
        pins.clip(3 * LINE_BYTES + 512);
        assert!(!pins.is_all() && pins.fits(3 * LINE_BYTES + 512) && !pins.fits(3 * LINE_BYTES));
        assert_eq!(pins.iter().collect::<Vec<_>>(), [range(0, 4)]);
        pins.clip(0);
        assert!(pins.is_empty() && pins.fits(0));
    }

    #[test]
    fn ranges_are_joined_and_taken_away() {
        let pins = |ranges: &[(u64, u64)]| {
            let mut pins = PinnedRanges::default();
            ranges.iter().for_each(|&(first, lines)| pins.add(range(first, lines)));
            pins
        };
        let (some, others) = (pins(&[(0, 2), (8, 4)]), pins(&[(1, 8)]));
        assert_eq!(some.with(&others), pins(&[(0, 12)]));
        assert!(
            some.with(&PinnedRanges::all()).is_all() && PinnedRanges::all().with(&some).is_all()
        );
        let size = 20 * LINE_BYTES;
        assert_eq!(some.without(&others, size), pins(&[(0, 1), (9, 3)]));
        assert_eq!(PinnedRanges::all().without(&some, size), pins(&[(2, 6), (12, 8)]));
        assert!(some.without(&PinnedRanges::all(), size).is_empty());
        assert!(PinnedRanges::all().without(&PinnedRanges::default(), size).is_all());
    }

    #[test]
    fn a_range_at_the_end_of_the_address_space_does_not_overflow() {
        let mut pins = PinnedRanges::default();
        pins.add(ByteRange::new(u64::MAX - 1, u64::MAX));
        pins.add(ByteRange::new(0, u64::MAX));
        assert!(pins.is_all());
        pins.remove(ByteRange::new(0, u64::MAX));
        assert!(pins.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_are_a_set_of_lines(
            changes in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..40),
            size in 0u64..60,
        ) {
            let (mut pins, mut lines) = (PinnedRanges::default(), BTreeSet::new());
            for (adds, first, count) in changes {
                let changed = first..first + count;
                if adds {
                    pins.add(range(first, count));
                    lines.extend(changed);
                } else {
                    pins.remove(range(first, count));
                    lines.retain(|line| !changed.contains(line));
                }
                let found: BTreeSet<u64> = (0..64).filter(|&line| pins.contains(line)).collect();
                prop_assert_eq!(&found, &lines);
                prop_assert_eq!(pins.lines(), lines.len() as u64);
                let gaps = pins.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
                prop_assert!(gaps, "{:?}", pins);
            }
            prop_assert_eq!(pins.fits(size * LINE_BYTES), lines.iter().all(|line| *line < size));
            pins.clip(size * LINE_BYTES);
            prop_assert!(pins.fits(size * LINE_BYTES));
            prop_assert_eq!(pins.lines(), lines.range(..size).count() as u64);
        }
    }
}
