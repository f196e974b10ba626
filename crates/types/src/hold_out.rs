//! The hold-out: a share of the regions of a volume that is served as if there were no cache.
//!
//! The share and a salt determine which regions are held out, so shards need no coordination.
//! Another salt selects other regions.

/// The regions of a volume that are held out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOut {
    /// A region is held out if its hash is at most this value. At zero, no region is held out.
    most: u32,
    salt: u32,
}

impl HoldOut {
    /// No region is held out.
    pub const NONE: Self = Self { most: 0, salt: 0 };
    /// All regions are held out.
    pub const ALL: Self = Self { most: u32::MAX, salt: 0 };
    /// All regions, in parts per million.
    pub const WHOLE_PPM: u32 = 1_000_000;

    /// Holds out about `ppm` parts per million of the regions, chosen by `salt`. More than a
    /// million count as a million.
    pub const fn new(ppm: u32, salt: u32) -> Self {
        let ppm = if ppm < Self::WHOLE_PPM { ppm } else { Self::WHOLE_PPM };
        Self { most: (ppm as u64 * u32::MAX as u64 / Self::WHOLE_PPM as u64) as u32, salt }
    }

    /// Whether no region is held out.
    pub const fn is_none(self) -> bool {
        self.most == 0
    }

    /// Whether a region is held out.
    #[inline]
    pub const fn holds(self, region: u64) -> bool {
        // The common case needs no hash.
        self.most != 0 && (hash(region ^ ((self.salt as u64) << 32)) >> 32) as u32 <= self.most
    }
}

/// The finalizer of SplitMix64, which changes half of the bits for each changed bit.
const fn hash(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn a_share_is_near_and_evenly_spread() {
        for salt in 0..50 {
            let all = held(HoldOut::new(10_000, salt), 100_000);
            assert!((850..1150).contains(&all), "{all} of 100,000 with salt {salt}");
        }
    }

    #[test]
    fn another_salt_holds_out_other_regions() {
        let (first, second) = (HoldOut::new(10_000, 1), HoldOut::new(10_000, 2));
        let both = (0..1_000_000).filter(|&r| first.holds(r) && second.holds(r)).count();
        assert!(both < 200, "{both} of a million in both, 100 expected");
    }
}
