//! CRC-32C, seeded with the place of the content.

use crc_fast::{CrcAlgorithm, Digest};

/// A checksum over several pieces: CRC-32C (Castagnoli; RFC 3720, section 12.1). Processors have
/// instructions for it. It detects every error burst of up to 32 bits, and any two wrong bits
/// within 256 MiB.
#[derive(Debug)]
pub struct Checksum(Digest);

impl Checksum {
    /// Begins a checksum. The seed is derived from the place of the bytes, so that the same bytes
    /// have a different checksum in another place.
    pub fn new(seed: u64) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&seed.to_le_bytes());
        Self(digest)
    }

    /// Adds bytes to the checksum.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes added so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The checksum of `bytes`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u32 {
    let mut sum = Checksum::new(seed);
    sum.add(bytes);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bit-by-bit reference implementation.
    fn reference(bytes: impl Iterator<Item = u8>) -> u32 {
        let mut sum = !0_u32;
        for byte in bytes {
            sum ^= u32::from(byte);
            for _ in 0..8 {
                sum = if sum & 1 != 0 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
            }
        }
        !sum
    }

    #[test]
    fn matches_the_published_check_value() {
        assert_eq!(reference(b"123456789".iter().copied()), 0xe306_9283);
        // Eight bytes of seed and one of content.
        assert_eq!(checksum(u64::from_le_bytes(*b"12345678"), b"9"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn checksum_of_pieces_equals_that_of_the_whole(
            seed: u64, bytes in proptest::collection::vec(any::<u8>(), 0..700), cut in 0_usize..700,
        ) {
            let cut = cut.min(bytes.len());
            let mut sum = Checksum::new(seed);
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            prop_assert_eq!(sum.finish(), checksum(seed, &bytes));
            let all = seed.to_le_bytes().into_iter().chain(bytes.iter().copied());
            prop_assert_eq!(sum.finish(), reference(all));
        }
    }
}
