//! The one source of chance in a simulation.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A seeded generator with the few questions that the simulator asks. The generator is ChaCha with
/// eight rounds, whose output for a seed is fixed for all time, so that old seeds stay meaningful.
pub(crate) struct Dice(ChaCha8Rng);

/// Parts in a million, the unit of every probability here.
pub(crate) type Ppm = u32;

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Any number below `limit`, which is not zero and below 2^32.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        debug_assert!(limit > 0 && limit <= 1 << 32);
        (u64::from(self.0.next_u32()) * limit) >> 32
    }

    /// Any number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Any number from `low` to `high`, small ones as likely as large ones: even in the logarithm.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let bits = (high - low + 1).ilog2() + 1;
        let span = 1u64 << self.below(u64::from(bits) + 1);
        (low + self.below(span)).min(high)
    }

    /// Yes with the given probability.
    pub(crate) fn chance(&mut self, ppm: Ppm) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One of them, each as likely.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// An index, each with the weight that stands there. The weights are not all zero.
    pub(crate) fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        let mut rest = self.below(u64::from(total)) as u32;
        for (at, &weight) in weights.iter().enumerate() {
            if rest < weight {
                return at;
            }
            rest -= weight;
        }
        unreachable!("the rest is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_inside_their_bounds_and_reach_them() {
        let mut dice = Dice::new(1);
        let mut seen = [0u32; 5];
        let mut skewed = [false; 2];
        for _ in 0..2000 {
            seen[dice.range(3, 7) as usize - 3] += 1;
            let value = dice.skewed(1, 4096);
            assert!((1..=4096).contains(&value));
            skewed[usize::from(value > 1000)] = true;
            assert_eq!(dice.weighted(&[0, 5, 0]), 1);
        }
        assert!(seen.iter().all(|&count| count > 300), "{seen:?}");
        assert_eq!(skewed, [true; 2]);
        assert!(!dice.chance(0) && dice.chance(1_000_000));
    }
}
