//! A set of line numbers in ascending order.

use crate::line::bits::ones;
use std::collections::BTreeMap;

/// Lines per word.
const CHUNK: u64 = 64;

/// A set of a volume's line numbers, as words in a tree: adjacent lines take a bit each, an
/// isolated line some thirty bytes.
#[derive(Debug, Default)]
pub(crate) struct LineSet {
    chunks: BTreeMap<u64, u64>,
}

impl LineSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
    }

    pub(crate) fn insert(&mut self, line: u64) {
        *self.chunks.entry(line / CHUNK).or_default() |= 1 << (line % CHUNK);
    }

    pub(crate) fn remove(&mut self, line: u64) {
        if let Some(bits) = self.chunks.get_mut(&(line / CHUNK)) {
            *bits &= !(1 << (line % CHUNK));
            if *bits == 0 {
                self.chunks.remove(&(line / CHUNK));
            }
        }
    }

    /// Whether all of `count` lines from `first` on are in the set.
    pub(crate) fn contains_range(&self, first: u64, count: u64) -> bool {
        let mut end = first + count;
        // From the end, because a sequential writer fills the end last.
        while end > first {
            let start = first.max((end - 1) / CHUNK * CHUNK);
            let bits = self.chunks.get(&(start / CHUNK)).copied().unwrap_or(0);
            let mask = (u64::MAX >> (CHUNK - (end - start))) << (start % CHUNK);
            if bits & mask != mask {
                return false;
            }
            end = start;
        }
        true
    }

    /// The lines from `line` on, in ascending order.
    pub(crate) fn from(&self, line: u64) -> impl Iterator<Item = u64> {
        let (chunk, bit) = (line / CHUNK, line % CHUNK);
        self.chunks.range(chunk..).flat_map(move |(&at, &bits)| {
            let bits = if at == chunk { bits & (u64::MAX << bit) } else { bits };
            ones(bits).map(move |offset| at * CHUNK + offset as u64)
        })
    }

    /// An estimate in bytes: tree nodes filled in random order are two thirds full.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.chunks.len() * 2 * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..300), 0..400),
            first in 0_u64..300,
            count in 1_u64..200,
        ) {
            let (mut set, mut oracle) = (LineSet::default(), BTreeSet::new());
            for (adds, line) in steps {
                if adds {
                    set.insert(line);
                    oracle.insert(line);
                } else {
                    set.remove(line);
                    oracle.remove(&line);
                }
                prop_assert_eq!(set.contains_range(line, 1), adds);
            }
            prop_assert!(set.from(first).eq(oracle.range(first..).copied()));
            let all = (first..first + count).all(|line| oracle.contains(&line));
            prop_assert_eq!(set.contains_range(first, count), all);
            (first..first + count).for_each(|line| set.insert(line));
            prop_assert!(set.contains_range(first, count));
            oracle.into_iter().chain(first..first + count).for_each(|line| set.remove(line));
            prop_assert!(set.is_empty());
        }
    }
}
