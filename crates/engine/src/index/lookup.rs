//! The index: maps a line's key to its slot, by open addressing over four-byte entries.
//!
//! An entry holds the slot (24 bits) and eight bits of the hash, so a probe for an absent line
//! reads the line table only for one in 256 entries. Four buckets for three slots keep the probes
//! short and take 5.3 bytes per line. A deletion shifts later entries back, so there are no
//! tombstones.

use super::zones::Zones;
use crate::{LineKey, LineMeta, Slot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const EMPTY: u32 = u32::MAX;
const SLOT_BITS: u32 = 24;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

#[derive(Debug)]
pub(crate) struct Index {
    /// Atomic because [`Hints`] reads them without the shard's lock.
    buckets: Arc<[AtomicU32]>,
    len: usize,
    /// Lines of each volume, indexed by its number; zero beyond the end.
    residents: Vec<u32>,
    zones: Zones,
}

/// A view of a shard's index for prefetching into the processor cache without the shard's lock. Its
/// answers may be outdated.
#[derive(Clone, Debug)]
pub struct Hints {
    buckets: Arc<[AtomicU32]>,
}

impl Hints {
    /// The address at which the lookup of a line starts.
    pub fn bucket_address(&self, key: LineKey) -> *const u8 {
        (&raw const self.buckets[home(key.hash(), self.buckets.len())]).cast()
    }

    /// The slot that probably holds a line.
    pub fn slot(&self, key: LineKey) -> Option<Slot> {
        let hash = key.hash();
        let first = home(hash, self.buckets.len());
        let entries = self.buckets[first..].iter().take(GUESSES_MAX);
        entries
            .map(|entry| entry.load(Ordering::Relaxed))
            .take_while(|&entry| entry != EMPTY)
            .find(|entry| entry >> SLOT_BITS == tag(hash))
            .map(|entry| entry & SLOT_MASK)
    }
}

/// Entries that [`Hints::slot`] examines; they usually share one line of the processor cache.
const GUESSES_MAX: usize = 8;

impl Index {
    pub(crate) fn new(slots: usize) -> Self {
        let buckets = (0..slots * 4 / 3 + 4).map(|_| AtomicU32::new(EMPTY)).collect();
        Self { buckets, len: 0, residents: Vec::new(), zones: Zones::new(slots) }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The number of lines of each volume.
    pub(crate) fn residents(&self) -> &[u32] {
        &self.residents
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.buckets.len() * size_of::<u32>()
            + self.residents.capacity() * size_of::<u32>()
            + self.zones.metadata_bytes()
    }

    /// Where the lines are.
    pub(crate) const fn zones(&self) -> &Zones {
        &self.zones
    }

    pub(crate) fn hints(&self) -> Hints {
        Hints { buckets: Arc::clone(&self.buckets) }
    }

    fn entry(&self, at: usize) -> u32 {
        self.buckets[at].load(Ordering::Relaxed)
    }

    fn set(&self, at: usize, entry: u32) {
        self.buckets[at].store(entry, Ordering::Relaxed);
    }

    /// Loads the first entry of each of `lines` lines from `first` on into the processor's cache.
    ///
    /// The processor fetches these entries side by side. The lookups that follow would fetch one
    /// after the other: how many entries a lookup reads depends on their content, so the processor
    /// often guesses wrong and begins the next lookup too late.
    pub(crate) fn load_entries(&self, first: LineKey, lines: u64) {
        let entries = (0..lines).map(|at| self.entry(self.home(first.plus(at).hash())));
        std::hint::black_box(entries.fold(0, |all, entry| all | entry));
    }

    /// The slot that holds `key`.
    pub(crate) fn find(&self, key: LineKey, lines: &[LineMeta]) -> Option<Slot> {
        let hash = key.hash();
        let tag = tag(hash);
        let mut at = self.home(hash);
        loop {
            let entry = self.entry(at);
            if entry == EMPTY {
                return None;
            }
            let slot = entry & SLOT_MASK;
            if entry >> SLOT_BITS == tag && lines[slot as usize].key == key {
                return Some(slot);
            }
            at = self.next(at);
        }
    }

    /// Adds `key`, which must be absent.
    pub(crate) fn insert(&mut self, key: LineKey, slot: Slot) {
        assert!(slot < SLOT_MASK, "slot {slot} cannot be indexed");
        let hash = key.hash();
        let mut at = self.home(hash);
        while self.entry(at) != EMPTY {
            at = self.next(at);
        }
        self.set(at, tag(hash) << SLOT_BITS | slot);
        self.len += 1;
        let volume = usize::from(key.volume().0);
        if self.residents.len() <= volume {
            self.residents.resize(volume + 1, 0);
        }
        self.residents[volume] += 1;
        self.zones.add(key);
    }

    /// Changes the entry of `key` from slot `old`, which it must have, to `new`.
    pub(crate) fn replace(&mut self, key: LineKey, old: Slot, new: Slot) {
        let at = self.position(key, old);
        self.set(at, tag(key.hash()) << SLOT_BITS | new);
    }

    /// Removes the entry of `key`, which must have slot `slot`. `lines` must still hold the keys of
    /// all entries.
    pub(crate) fn remove(&mut self, key: LineKey, slot: Slot, lines: &[LineMeta]) {
        let mut hole = self.position(key, slot);
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.entry(at);
            if entry == EMPTY {
                break;
            }
            // An entry may move back into the hole unless its home lies after the hole.
            let home = self.home(lines[(entry & SLOT_MASK) as usize].key.hash());
            if self.distance(home, at) >= self.distance(hole, at) {
                self.set(hole, entry);
                hole = at;
            }
        }
        self.set(hole, EMPTY);
        self.len -= 1;
        self.residents[usize::from(key.volume().0)] -= 1;
        self.zones.remove(key);
    }

    fn position(&self, key: LineKey, slot: Slot) -> usize {
        let hash = key.hash();
        let wanted = tag(hash) << SLOT_BITS | slot;
        let mut at = self.home(hash);
        while self.entry(at) != wanted {
            assert!(self.entry(at) != EMPTY, "line {key:?} is not indexed at slot {slot}");
            at = self.next(at);
        }
        at
    }

    fn home(&self, hash: u64) -> usize {
        home(hash, self.buckets.len())
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets.len() - from }
    }
}

const fn home(hash: u64, buckets: usize) -> usize {
    (((hash >> 32) * buckets as u64) >> 32) as usize
}

const fn tag(hash: u64) -> u32 {
    // `Index::insert` rejects the last slot number, so no entry equals EMPTY, whatever its tag.
    (hash & 0xff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VolumeId;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(
            steps in prop::collection::vec((0u64..40, any::<bool>()), 1..400),
        ) {
            let slots = 48;
            let mut lines = vec![LineMeta::FREE; slots];
            let mut index = Index::new(slots);
            let mut oracle: HashMap<u64, Slot> = HashMap::new();
            let mut free: Vec<Slot> = (0..slots as Slot).collect();
            for (line, add) in steps {
                let key = LineKey::new(VolumeId(1), line);
                if add && !oracle.contains_key(&line) {
                    let slot = free.pop().unwrap();
                    lines[slot as usize].key = key;
                    index.insert(key, slot);
                    oracle.insert(line, slot);
                } else if let Some(&slot) = oracle.get(&line) {
                    if add {
                        let new = free.pop().unwrap();
                        lines[new as usize].key = key;
                        index.replace(key, slot, new);
                        oracle.insert(line, new);
                    } else {
                        index.remove(key, slot, &lines);
                        oracle.remove(&line);
                    }
                    lines[slot as usize].key = LineKey::NONE;
                    free.push(slot);
                }
                prop_assert_eq!(index.len(), oracle.len());
                for line in 0..40 {
                    let found = index.find(LineKey::new(VolumeId(1), line), &lines);
                    prop_assert_eq!(found, oracle.get(&line).copied());
                    // The hint may be the slot of another line with the same tag.
                    if let Some(slot) = index.hints().slot(LineKey::new(VolumeId(1), line)) {
                        prop_assert!((slot as usize) < slots);
                    }
                }
            }
        }
    }
}
