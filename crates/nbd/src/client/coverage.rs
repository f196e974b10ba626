//! Tracks which bytes of a read have been received.

use forebay_types::ByteRange;

/// Maximum number of disjoint pieces of one read. In-order replies form a single piece; the limit
/// bounds memory if a server sends its chunks out of order.
const PIECES_MAX: usize = 4096;

/// The received bytes of one read: sorted pieces that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    pieces: Vec<ByteRange>,
    covered_bytes: u64,
}

impl Coverage {
    /// Adds a range, which is not empty and does not wrap. Returns `false` and changes nothing if
    /// the range overlaps a piece (B-06) or if there are too many pieces.
    #[must_use]
    pub(super) fn add(&mut self, range: ByteRange) -> bool {
        let at = self.pieces.partition_point(|piece| piece.offset < range.offset);
        let touches_before = at > 0 && self.pieces[at - 1].end() >= range.offset;
        let touches_after = self.pieces.get(at).is_some_and(|after| after.offset <= range.end());
        let overlaps_before = touches_before && self.pieces[at - 1].end() > range.offset;
        let overlaps_after = touches_after && self.pieces[at].offset < range.end();
        if overlaps_before || overlaps_after {
            return false;
        }
        match (touches_before, touches_after) {
            (true, true) => {
                let after = self.pieces.remove(at);
                self.pieces[at - 1].len += range.len + after.len;
            }
            (true, false) => self.pieces[at - 1].len += range.len,
            (false, true) => {
                let len = self.pieces[at].len + range.len;
                self.pieces[at] = ByteRange::new(range.offset, len);
            }
            (false, false) if self.pieces.len() == PIECES_MAX => return false,
            (false, false) => self.pieces.insert(at, range),
        }
        self.covered_bytes += range.len;
        true
    }

    pub(super) const fn covered_bytes(&self) -> u64 {
        self.covered_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn matches_a_set_of_bytes(
            ranges in prop::collection::vec((0u64..64, 1u64..16), 0..40),
        ) {
            let mut coverage = Coverage::default();
            let mut bytes = [false; 96];
            for (offset, len) in ranges {
                let slots = &mut bytes[offset as usize..(offset + len) as usize];
                let free = slots.iter().all(|&covered| !covered);
                prop_assert_eq!(coverage.add(ByteRange::new(offset, len)), free);
                if free {
                    slots.fill(true);
                }
                let count = bytes.iter().filter(|&&covered| covered).count();
                prop_assert_eq!(coverage.covered_bytes(), count as u64);
                let apart = |pair: &[ByteRange]| pair[0].end() < pair[1].offset;
                prop_assert!(coverage.pieces.windows(2).all(apart));
            }
        }
    }

    #[test]
    fn number_of_pieces_is_bounded() {
        let mut coverage = Coverage::default();
        for i in 0..PIECES_MAX as u64 {
            assert!(coverage.add(ByteRange::new(2 * i, 1)));
        }
        assert!(!coverage.add(ByteRange::new(1 << 20, 1)));
        assert!(coverage.add(ByteRange::new(1, 1)), "a range that joins two pieces is accepted");
    }
}
