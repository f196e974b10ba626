//! A set of slots as a bitmap with a summary, so that sparse sets are scanned quickly.

use crate::Slot;

/// One bit per slot, and a summary bit per 64 slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotSet {
    words: Box<[u64]>,
    summary: Box<[u64]>,
    len: usize,
}

impl SlotSet {
    pub(crate) fn new(slots: usize) -> Self {
        let words = slots.div_ceil(64);
        Self {
            words: vec![0; words].into_boxed_slice(),
            summary: vec![0; words.div_ceil(64)].into_boxed_slice(),
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.words[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    /// Adds a slot. Returns whether it was absent.
    pub(crate) fn insert(&mut self, slot: Slot) -> bool {
        let word = slot as usize / 64;
        let bit = 1 << (slot % 64);
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += usize::from(absent);
        absent
    }

    /// Removes a slot. Returns whether it was present.
    pub(crate) fn remove(&mut self, slot: Slot) -> bool {
        let word = slot as usize / 64;
        let bit = 1 << (slot % 64);
        let present = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.len -= usize::from(present);
        present
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.summary.iter().enumerate().flat_map(move |(i, &summary)| {
            ones(summary).flat_map(move |j| {
                let word = i * 64 + j;
                ones(self.words[word]).map(move |k| (word * 64 + k) as Slot)
            })
        })
    }

    /// The first slot from `from` on that is in both sets.
    pub(crate) fn next_common(&self, other: &Self, from: Slot) -> Option<Slot> {
        let (first, start) = (from as usize / 64, from as usize / 64 / 64);
        let common = |word: usize| self.words[word] & other.words[word];
        let behind = |word: usize| if word == first { !0 << (from % 64) } else { !0 };
        for at in start..self.summary.len().min(other.summary.len()) {
            for bit in ones(self.summary[at] & other.summary[at]) {
                let word = at * 64 + bit;
                if word < first {
                    continue;
                }
                let found = common(word) & behind(word);
                if found != 0 {
                    return Some((word * 64) as Slot + found.trailing_zeros());
                }
            }
        }
        None
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        (self.words.len() + self.summary.len()) * size_of::<u64>()
    }
}

/// The positions of the bits that are set, in ascending order.
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let at = word.trailing_zeros() as usize;
            word &= word - 1;
            at
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0u32..9000, any::<bool>()), 0..300)) {
            let mut set = SlotSet::new(9000);
            let mut oracle = BTreeSet::new();
            for (slot, add) in steps {
                if add {
                    prop_assert_eq!(set.insert(slot), oracle.insert(slot));
                } else {
                    prop_assert_eq!(set.remove(slot), oracle.remove(&slot));
                }
                prop_assert_eq!(set.contains(slot), oracle.contains(&slot));
                prop_assert_eq!(set.len(), oracle.len());
            }
            prop_assert!(set.iter().eq(oracle.iter().copied()));
        }

        #[test]
        fn next_common_agrees_with_two_sets(
            ours in prop::collection::btree_set(0u32..9000, 0..300),
            theirs in prop::collection::btree_set(0u32..9000, 0..300), from in 0u32..9000,
        ) {
            let fill = |of: &BTreeSet<u32>| {
                let mut set = SlotSet::new(9000);
                of.iter().for_each(|&slot| { set.insert(slot); });
                set
            };
            let found = fill(&ours).next_common(&fill(&theirs), from);
            prop_assert_eq!(found, ours.intersection(&theirs).copied().find(|&slot| slot >= from));
            prop_assert_eq!(fill(&ours).next_common(&fill(&ours), from),
                ours.range(from..).next().copied());
        }
    }
}
