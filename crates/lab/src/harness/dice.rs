//! The only source of randomness in a simulation.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A seeded generator. It is ChaCha with eight rounds, whose output for a seed never changes, so
/// that old seeds keep their meaning.
pub(crate) struct Dice(ChaCha8Rng);

/// Parts per million, the unit of all probabilities here.
pub(crate) type Ppm = u32;

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `limit`, which is not zero and at most 2^32.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        debug_assert!(limit > 0 && limit <= 1 << 32);
        (u64::from(self.0.next_u32()) * limit) >> 32
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`; the logarithm of its distance from `low` is roughly uniform.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let bits = (high - low + 1).ilog2() + 1;
        let span = 1u64 << self.below(u64::from(bits) + 1);
        (low + self.below(span)).min(high)
    }

    /// True with the given probability.
    pub(crate) fn chance(&mut self, ppm: Ppm) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One element, all equally likely.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// An index, drawn by the weights, which are not all zero.
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
    fn draws_cover_their_bounds() {
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
