//! A set of slots as bits with a summary, so that a sparse set is walked quickly.

use crate::Slot;

/// One bit per slot, and one bit per 64 of them. An eighth of a byte per line.
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

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the set has room for slots at all; a default one has none.
    pub(crate) const fn is_allocated(&self) -> bool {
        !self.words.is_empty()
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.words[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    /// Adds a slot; says whether it was absent.
    pub(crate) fn insert(&mut self, slot: Slot) -> bool {
        let word = slot as usize / 64;
        let bit = 1 << (slot % 64);
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += usize::from(absent);
        absent
    }

    /// Removes a slot; says whether it was there.
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

    pub(crate) const fn metadata_bytes(&self) -> usize {
        (self.words.len() + self.summary.len()) * size_of::<u64>()
    }
}

fn ones(mut word: u64) -> impl Iterator<Item = usize> {
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
    }
}
