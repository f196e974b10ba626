//! Compact ghosts: four bytes per ghost instead of about 24, at the price of small errors.
//!
//! A table of buckets of eight entries. An entry holds 15 bits of its key, one bit for the queue
//! that evicted the line, and a timestamp, counted in evictions from that queue. Entries are not
//! ordered: one older than the limit of its queue counts as empty, and a full bucket overwrites the
//! entry nearest to its limit.
//!
//! The errors: about one in 4,000 lookups in a full table is a false positive (eight entries with
//! 15 bits each), and unevenly filled buckets drop some of the oldest ghosts early. Timestamps
//! count units of 1/4096 of the capacity in 16 bits, so they wrap after sixteen capacities of
//! evictions. In that span each bucket gets about a hundred new entries, which replace the expired
//! ones first, so no entry survives until it would seem young again.

/// Entries in one bucket; 32 bytes, so that a look-up touches at most two cache lines.
const BUCKET_LEN: usize = 8;
/// Units of age per capacity of evictions.
const UNITS_PER_CAPACITY: usize = 4096;
const ORIGIN_BIT: u32 = 1 << 16;
const EMPTY: u32 = 0;

/// The queue from which a line was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvictedFrom {
    /// The queue of new lines.
    Small,
    /// The queue of reused lines.
    Main,
}

/// The ghosts of two queues.
pub struct Fingerprints {
    entries: Box<[u32]>,
    clocks: [Clock; 2],
    evictions_per_unit: u32,
}

/// Counts evictions from one queue, in units.
struct Clock {
    now: u16,
    /// Evictions since the last full unit.
    fraction: u32,
    /// Entries older than this count as empty, in units.
    age_max: u16,
    /// `1 / age_max`.
    share_per_unit: f32,
}

impl Fingerprints {
    /// Ghosts for a cache of `capacity` lines: of the last `small_len` evictions from the small
    /// queue and the last `main_len` from the main queue, together at most the capacity.
    pub fn new(capacity: usize, small_len: usize, main_len: usize) -> Self {
        assert!(small_len + main_len <= capacity.max(2), "the table has no space for all ghosts");
        let evictions_per_unit = capacity.div_ceil(UNITS_PER_CAPACITY);
        let clock = |len: usize| Clock::new(age_max(len, evictions_per_unit));
        // 10 % spare entries, as buckets fill unevenly.
        let bucket_count = (capacity + capacity / 10).div_ceil(BUCKET_LEN);
        Self {
            entries: vec![EMPTY; bucket_count * BUCKET_LEN].into_boxed_slice(),
            clocks: [clock(small_len), clock(main_len)],
            evictions_per_unit: evictions_per_unit as u32,
        }
    }

    /// Changes the numbers of evictions that are remembered, together at most the capacity.
    pub fn set_lens(&mut self, small_len: usize, main_len: usize) {
        for (clock, len) in self.clocks.iter_mut().zip([small_len, main_len]) {
            clock.set_age_max(age_max(len, self.evictions_per_unit as usize));
        }
    }

    /// Records an eviction from a queue.
    pub fn push(&mut self, key: u64, origin: EvictedFrom) {
        let per_unit = self.evictions_per_unit;
        let clock = &mut self.clocks[origin as usize];
        clock.fraction += 1;
        if clock.fraction == per_unit {
            (clock.fraction, clock.now) = (0, clock.now.wrapping_add(1));
        }
        let entry = fingerprint(key) | origin_bit(origin) | u32::from(clock.now);
        let start = self.bucket_start(key);
        let (mut oldest, mut age_share_max) = (start, 0.0);
        for at in start..start + BUCKET_LEN {
            if has_same_fingerprint(self.entries[at], entry) {
                oldest = at;
                break;
            }
            let age_share = self.age_share(self.entries[at]);
            if age_share > age_share_max {
                (oldest, age_share_max) = (at, age_share);
            }
        }
        self.entries[oldest] = entry;
    }

    /// Removes a key. If it was present, returns its queue, and its age as a share of the limit.
    pub fn take(&mut self, key: u64) -> Option<(EvictedFrom, f32)> {
        let start = self.bucket_start(key);
        let wanted = fingerprint(key);
        for entry in &mut self.entries[start..start + BUCKET_LEN] {
            if *entry & !(ORIGIN_BIT | 0xffff) != wanted {
                continue;
            }
            let found = std::mem::replace(entry, EMPTY);
            let clock = &self.clocks[origin_of(found) as usize];
            let is_valid = clock.age(found) <= clock.age_max;
            return is_valid.then_some((origin_of(found), self.age_share(found)));
        }
        None
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub fn self_check(&self) {
        for clock in &self.clocks {
            assert!(clock.fraction < self.evictions_per_unit, "a clock exceeds a unit");
        }
    }

    /// An entry's age as a share of its limit; above 1 for one that counts as empty.
    fn age_share(&self, entry: u32) -> f32 {
        if entry == EMPTY {
            return f32::INFINITY;
        }
        let clock = &self.clocks[origin_of(entry) as usize];
        f32::from(clock.age(entry)) * clock.share_per_unit
    }

    fn bucket_start(&self, key: u64) -> usize {
        // The lower half of the key selects the bucket by multiplication; the upper 15 bits are the
        // fingerprint.
        let bucket_count = (self.entries.len() / BUCKET_LEN) as u64;
        (((key & 0xffff_ffff) * bucket_count) >> 32) as usize * BUCKET_LEN
    }
}

impl Clock {
    fn new(age_max: u16) -> Self {
        let mut clock = Self { now: 0, fraction: 0, age_max: 0, share_per_unit: 0.0 };
        clock.set_age_max(age_max);
        clock
    }

    fn set_age_max(&mut self, age_max: u16) {
        (self.age_max, self.share_per_unit) = (age_max, 1.0 / f32::from(age_max));
    }

    /// The age of an entry, in units.
    fn age(&self, entry: u32) -> u16 {
        self.now.wrapping_sub(entry as u16)
    }
}

/// The age limit of a queue, in units.
fn age_max(len: usize, evictions_per_unit: usize) -> u16 {
    len.div_ceil(evictions_per_unit).max(1) as u16
}

/// The upper 15 bits of a key in the upper 15 bits of an entry, never zero.
fn fingerprint(key: u64) -> u32 {
    let bits = (key >> 49) as u32;
    bits.max(1) << 17
}

fn origin_bit(origin: EvictedFrom) -> u32 {
    if origin == EvictedFrom::Main { ORIGIN_BIT } else { 0 }
}

fn origin_of(entry: u32) -> EvictedFrom {
    if entry & ORIGIN_BIT == 0 { EvictedFrom::Small } else { EvictedFrom::Main }
}

/// Returns true if two entries have the same fingerprint, so that lookup finds only one of them.
fn has_same_fingerprint(a: u32, b: u32) -> bool {
    a >> 17 == b >> 17
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    #[test]
    fn a_ghost_is_found_once_with_its_origin_and_age() {
        let mut ghosts = Fingerprints::new(100, 80, 10);
        ghosts.push(key(1), EvictedFrom::Small);
        ghosts.push(key(2), EvictedFrom::Main);
        for n in 10..30 {
            ghosts.push(key(n), EvictedFrom::Small);
        }
        assert_eq!(ghosts.take(key(2)), Some((EvictedFrom::Main, 0.0)));
        assert_eq!(ghosts.take(key(2)), None);
        assert_eq!(ghosts.take(key(1)), Some((EvictedFrom::Small, 0.25)));
        assert_eq!(ghosts.take(key(3)), None);
    }

    #[test]
    fn ghosts_expire_at_the_age_limit_of_their_queue() {
        let mut ghosts = Fingerprints::new(100_000, 90_000, 5_000);
        ghosts.push(key(1), EvictedFrom::Main);
        ghosts.push(key(2), EvictedFrom::Main);
        for n in 10..5_000 {
            ghosts.push(key(n), EvictedFrom::Main);
        }
        assert!(matches!(ghosts.take(key(1)), Some((EvictedFrom::Main, _))));
        for n in 5_000..5_100 {
            ghosts.push(key(n), EvictedFrom::Main);
        }
        assert_eq!(ghosts.take(key(2)), None);
    }

    #[test]
    fn young_ghosts_are_found_with_few_false_positives() {
        for capacity in [64u64, 1_000, 200_000] {
            let mut ghosts = Fingerprints::new(capacity as usize, capacity as usize * 9 / 10, 1);
            let pushed = 20 * capacity;
            for n in 0..pushed {
                ghosts.push(key(n), EvictedFrom::Small);
            }
            let false_positives = (0..capacity).filter(|n| ghosts.take(key(pushed + n)).is_some());
            let false_positives = false_positives.count() as u64;
            assert!(false_positives <= 2 + capacity / 2_000, "{false_positives} in {capacity}");
            let young = pushed - capacity / 2..pushed;
            let found = young.filter(|&n| ghosts.take(key(n)).is_some()).count() as u64;
            assert!(found >= capacity * 48 / 100, "{found} of {} are found", capacity / 2);
        }
    }
}
