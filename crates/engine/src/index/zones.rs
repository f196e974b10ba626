//! Where in the volumes the lines of a shard are, coarsely: how many lie in each MiB.
//!
//! An erase of a long range looks for the resident lines in it. Most ranges have none, and looking
//! up each of their lines would take longer than the erase itself. Zones share counters, so a zone
//! may seem to have more lines than it has, but never fewer.
//!
//! The price: a counter of four bytes for 16 slots, and an addition when a line comes or goes.

use crate::LineKey;

/// The binary logarithm of the lines of a zone: it is as long as a region without stripes.
const LINES_LOG2: u32 = 8;
/// Slots of the shard for each counter. Data is mostly denser than this many lines in a zone, so
/// most counters stay zero.
const SLOTS_PER_COUNTER: usize = 16;

/// The number of lines in each zone of all volumes.
#[derive(Debug)]
pub(crate) struct Zones {
    /// A power of two of them. A zone has the counter that its number's hash selects.
    counts: Box<[u32]>,
}

impl Zones {
    pub(crate) fn new(slots: usize) -> Self {
        let counters = (slots / SLOTS_PER_COUNTER).next_power_of_two().max(16);
        Self { counts: vec![0; counters].into_boxed_slice() }
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.counts)
    }

    pub(crate) fn add(&mut self, key: LineKey) {
        self.counts[self.counter_of(key)] += 1;
    }

    pub(crate) fn remove(&mut self, key: LineKey) {
        self.counts[self.counter_of(key)] -= 1;
    }

    /// The number of lines in the zone of a line, or more.
    pub(crate) fn lines_max(&self, key: LineKey) -> usize {
        self.counts[self.counter_of(key)] as usize
    }

    /// Divides the lines from `first` up to `end` at the borders of zones.
    pub(crate) fn split(first: LineKey, end: LineKey) -> impl Iterator<Item = (LineKey, LineKey)> {
        let mut from = first.0;
        std::iter::from_fn(move || {
            let to = ((from >> LINES_LOG2) + 1) << LINES_LOG2;
            let zone = (from < end.0).then(|| (LineKey(from), LineKey(to.min(end.0))));
            from = to;
            zone
        })
    }

    /// Panics unless the counters are those of these lines.
    pub(crate) fn self_check(&self, lines: impl Iterator<Item = LineKey>) {
        let mut expected = vec![0; self.counts.len()];
        lines.for_each(|key| expected[self.counter_of(key)] += 1);
        assert!(*expected == *self.counts, "the counters of zones differ from the lines");
    }

    /// Adjacent zones have different counters: the multiplier is 2^64 divided by the golden ratio.
    fn counter_of(&self, key: LineKey) -> usize {
        let hash = (key.0 >> LINES_LOG2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.counts.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VolumeId;

    const fn key(line: u64) -> LineKey {
        LineKey::new(VolumeId(3), line)
    }

    #[test]
    fn a_zone_is_empty_once_its_last_line_has_left() {
        let mut zones = Zones::new(1 << 20);
        zones.add(key(255));
        zones.add(key(0));
        zones.remove(key(255));
        assert_eq!([17, 256].map(|line| zones.lines_max(key(line))), [1, 0]);
        assert_eq!(zones.lines_max(LineKey::new(VolumeId(4), 0)), 0);
        zones.remove(key(0));
        assert_eq!(zones.lines_max(key(17)), 0);
    }

    #[test]
    fn a_range_is_divided_at_the_borders_of_zones() {
        let zones: Vec<_> = Zones::split(key(250), key(600)).collect();
        assert_eq!(zones, [(key(250), key(256)), (key(256), key(512)), (key(512), key(600))]);
        assert_eq!(Zones::split(key(7), key(7)).count(), 0);
    }
}
