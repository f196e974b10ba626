//! The hold-out: a share of the regions of a volume that is served as if there were no cache.
//!
//! The share and a salt determine which regions are held out, so shards need no coordination.
//! Another salt selects other regions.
//!
//! Regions are not drawn one by one: the number of them in a small volume would then vary widely
//! from its share. They lie in a sequence that spreads any number of consecutive regions
//! evenly (Weyl's, with the golden ratio), and the salt chooses the part of it that is held out, so
//! that each region is as likely as any other: a systematic sample with a random start.

/// The fractional part of the golden ratio, times 2^64: its multiples divide the circle most
/// evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The regions of a volume that are held out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOut {
    /// A region is held out if its place is at most this value. At zero, no region is held out.
    most: u32,
    /// The place of region 0.
    start: u32,
}

impl HoldOut {
    /// No region is held out.
    pub const NONE: Self = Self { most: 0, start: 0 };
    /// All regions are held out.
    pub const ALL: Self = Self { most: u32::MAX, start: 0 };
    /// All regions, in parts per million.
    pub const WHOLE_PPM: u32 = 1_000_000;

    /// Holds out about `ppm` parts per million of the regions, chosen by `salt`. More than a
    /// million count as a million.
    pub const fn new(ppm: u32, salt: u32) -> Self {
        let ppm = if ppm < Self::WHOLE_PPM { ppm } else { Self::WHOLE_PPM };
        let most = (ppm as u64 * u32::MAX as u64 / Self::WHOLE_PPM as u64) as u32;
        Self { most, start: (hash(salt as u64) >> 32) as u32 }
    }

    /// Whether no region is held out.
    pub const fn is_none(self) -> bool {
        self.most == 0
    }

    /// Whether all regions are held out.
    pub const fn is_all(self) -> bool {
        self.most == u32::MAX
    }

    /// Whether a region is held out.
    #[inline]
    pub const fn holds(self, region: u64) -> bool {
        let place = (region.wrapping_mul(STEP) >> 32) as u32;
        self.most != 0 && place.wrapping_add(self.start) <= self.most
    }
}

/// The finalizer of SplitMix64, which changes half of the bits for each changed bit.
const fn hash(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_PERCENT: u32 = 10_000;

    fn held(hold_out: HoldOut, regions: u64) -> u64 {
        (0..regions).filter(|&region| hold_out.holds(region)).count() as u64
    }

    #[test]
    fn none_and_all_are_exact() {
        for salt in [0, 1, u32::MAX] {
            assert_eq!(held(HoldOut::new(0, salt), 100_000), 0);
            assert_eq!(held(HoldOut::new(1_000_000, salt), 100_000), 100_000);
        }
        assert_eq!((held(HoldOut::NONE, 9), held(HoldOut::ALL, 9)), (0, 9));
        assert!(HoldOut::default().is_none() && !HoldOut::ALL.is_none());
        assert!(HoldOut::new(1_000_000, 7).is_all() && !HoldOut::new(999_999, 7).is_all());
    }

    #[test]
    fn the_share_holds_for_volumes_of_every_size() {
        for regions in [50, 64, 100, 1_000, 5_000, 100_000] {
            let expected = regions as i64 / 100;
            for salt in 0..50 {
                let found = held(HoldOut::new(ONE_PERCENT, salt), regions) as i64;
                assert!((found - expected).abs() <= 2, "{found} of {regions} with salt {salt}");
            }
        }
    }

    #[test]
    fn regions_at_any_distance_are_held_out_as_often_as_others() {
        // Two, the sizes of block groups, numbers that come near to a period of the sequence.
        for distance in [2, 55, 89, 128, 144, 233, 1_024, 1_597] {
            let found: usize = (0..2_000)
                .map(|salt| HoldOut::new(ONE_PERCENT, salt))
                .map(|held| (0..100).filter(|at| held.holds(at * distance)).count())
                .sum();
            assert!((1_500..2_500).contains(&found), "{found} of 200,000 at distance {distance}");
        }
    }

    #[test]
    fn another_salt_holds_out_other_regions() {
        let mut both = 0;
        for salt in 0..200 {
            let hold_outs = [salt, salt + 1].map(|salt| HoldOut::new(ONE_PERCENT, salt));
            let is_in_both = |region: &u64| hold_outs.iter().all(|held| held.holds(*region));
            both += (0..10_000).filter(is_in_both).count();
        }
        assert!(both < 1_000, "{both} of 2,000,000 in both, 200 expected");
    }
}
