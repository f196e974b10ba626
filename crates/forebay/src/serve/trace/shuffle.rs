//! Shuffles the regions of volumes, by a random key that is not kept.
//!
//! A region of 1 GiB moves as a whole, so sequences and reuse inside it stay as they are. The
//! permutation of a volume's regions is a Feistel network over a keyed hash: it needs no memory,
//! however large the volume is. A place beyond the last region is permuted again until it is inside
//! (cycle walking): a few times on average, as the network has fewer than four times as many places
//! as there are regions.

use std::hash::{BuildHasher, RandomState};

/// The size of a region as a power of two: 1 GiB.
const REGION_BITS: u32 = 30;
/// Rounds of the network. Four make a pseudo-random permutation (Luby and Rackoff, 1988).
const ROUNDS: u32 = 4;

/// The permutations of the volumes of a recording.
pub(super) struct Shuffle {
    /// The key, which the system's random numbers determine.
    key: RandomState,
    /// The regions of each volume.
    regions: Vec<u64>,
}

impl Shuffle {
    /// New permutations for volumes of these sizes in bytes.
    pub(super) fn new(sizes: Vec<u64>) -> Self {
        let regions = sizes.into_iter().map(|bytes| bytes.div_ceil(1 << REGION_BITS).max(1));
        Self { key: RandomState::new(), regions: regions.collect() }
    }

    /// The bytes from an offset to the end of its region.
    #[expect(clippy::unused_self, reason = "the size of a region belongs to the shuffle")]
    pub(super) const fn until_border(&self, offset: u64) -> u64 {
        (1 << REGION_BITS) - offset % (1 << REGION_BITS)
    }

    /// The offset that stands for an offset of a volume.
    pub(super) fn place(&self, volume: usize, offset: u64) -> u64 {
        let (region, rest) = (offset >> REGION_BITS, offset % (1 << REGION_BITS));
        let count = self.regions[volume];
        if region >= count {
            return offset;
        }
        let mut place = region;
        loop {
            place = self.permute(volume, place, half_bits(count));
            if place < count {
                return place << REGION_BITS | rest;
            }
        }
    }

    /// Permutes the numbers of twice `half_bits` bits.
    fn permute(&self, volume: usize, number: u64, half_bits: u32) -> u64 {
        let mask = (1u64 << half_bits) - 1;
        let (mut left, mut right) = (number >> half_bits, number & mask);
        for round in 0..ROUNDS {
            let mixed = left ^ self.key.hash_one((volume, round, right)) & mask;
            (left, right) = (right, mixed);
        }
        left << half_bits | right
    }
}

/// Half the bits of a number below `count`, rounded up.
const fn half_bits(count: u64) -> u32 {
    (u64::BITS - (count - 1).leading_zeros()).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const GIB: u64 = 1 << REGION_BITS;

    #[test]
    fn regions_are_permuted_and_stay_whole() {
        let counts = [1, 2, 3, 5, 64, 1000];
        // The last region of a volume may be short.
        let shuffle = Shuffle::new(counts.map(|count| count * GIB - 512).to_vec());
        for (volume, count) in counts.into_iter().enumerate() {
            let places: BTreeSet<u64> = (0..count)
                .map(|region| {
                    let place = shuffle.place(volume, region * GIB);
                    assert_eq!(shuffle.place(volume, region * GIB + 777), place + 777);
                    assert_eq!(place % GIB, 0);
                    place / GIB
                })
                .collect();
            assert!(places.iter().copied().eq(0..count), "{count}");
        }
    }

    #[test]
    fn each_recording_and_each_volume_has_another_order() {
        let order = |shuffle: &Shuffle, volume| {
            (0..1000).map(|region| shuffle.place(volume, region * GIB)).collect::<Vec<_>>()
        };
        let sizes = || vec![1000 * GIB; 2];
        let (one, other) = (Shuffle::new(sizes()), Shuffle::new(sizes()));
        assert!(order(&one, 0) != order(&other, 0) && order(&one, 0) != order(&one, 1));
        assert!(!order(&one, 0).is_sorted());
    }
}
