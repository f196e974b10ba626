//! Content that can be checked without a copy of it, and the random numbers behind the offsets.
//!
//! Every eight bytes of a volume are a function of their offset and of a seed. A block from another
//! place, or from an earlier pass with another seed, therefore differs in its first word.

/// Fills `block`, which belongs at `offset`, with its content. Both are multiples of eight.
pub fn fill(block: &mut [u8], offset: u64, seed: u64) {
    for (index, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(offset + 8 * index as u64, seed).to_le_bytes());
    }
}

/// The place in the volume of the first word of `block` that is not what [`fill`] puts there.
pub fn first_difference(block: &[u8], offset: u64, seed: u64) -> Option<u64> {
    block
        .chunks_exact(8)
        .zip((offset..).step_by(8))
        .find(|(word, at)| *word != word_at(*at, seed).to_le_bytes())
        .map(|(_, at)| at)
}

fn word_at(offset: u64, seed: u64) -> u64 {
    (offset ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

/// A random number generator (SplitMix64): a seed determines the load.
#[derive(Clone, Debug)]
pub struct LoadRandom(u64);

impl LoadRandom {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_from_another_place_or_pass_is_noticed() {
        let mut block = [0; 512];
        fill(&mut block, 8192, 1);
        assert_eq!(first_difference(&block, 8192, 1), None);
        assert_eq!(first_difference(&block, 4096, 1), Some(4096));
        assert_eq!(first_difference(&block, 8192, 2), Some(8192));
        block[504] ^= 1;
        assert_eq!(first_difference(&block, 8192, 1), Some(8192 + 504));
    }

    #[test]
    fn random_numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = LoadRandom::new(3);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[random.below(7) as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
