//! Checksums that bind content to its place.
//!
//! A checksum is the CRC-32C of the content XORed with the CRC-32C of a seed, which encodes the
//! volume and the first sector. So misplaced content is detected as reliably as changed content.
//! For a change of the content or of the place alone, this is as strong as one CRC over both,
//! because CRCs are linear; and the two need not be copied into one buffer. A change within 32
//! consecutive bits is always detected; of other changes, one in 2^32 is missed.

use forebay_types::{LINE_BYTES, SECTOR_BYTES, SECTORS_PER_LINE};

/// The seed of content at `sector` of `volume`. Seeds are unique for volumes below 2^16 and sectors
/// below 2^48 (128 PiB).
pub const fn seed(volume: u64, sector: u64) -> u64 {
    volume.rotate_left(48) ^ sector
}

/// The checksum of `bytes` at the place of `seed`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes) ^ crc_fast::crc32_iscsi(&seed.to_le_bytes())
}

/// The checksums of a line's sectors. `seed` is the seed of the line and of its first sector; the
/// other sectors have the subsequent seeds.
pub fn checksum_sectors(seed: u64, line: &[u8; LINE_BYTES as usize]) -> [u32; 8] {
    let mut checksums = [0; SECTORS_PER_LINE as usize];
    let (sectors, _) = line.as_chunks::<{ SECTOR_BYTES as usize }>();
    for ((checksum, sector), index) in checksums.iter_mut().zip(sectors).zip(0..) {
        *checksum = self::checksum(seed.wrapping_add(index), sector);
    }
    checksums
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bit-by-bit reference implementation of CRC-32C.
    fn reference(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for &byte in bytes {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            }
        }
        !crc
    }

    #[test]
    fn matches_the_published_check_value() {
        // The check value of CRC-32/ISCSI (CRC-32C) in the CRC catalogue.
        assert_eq!(reference(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(0, b"123456789"), 0xe306_9283 ^ reference(&[0; 8]));
    }

    #[test]
    fn agrees_with_the_reference_for_every_length_and_alignment() {
        let bytes: Vec<u8> =
            (0..5000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for from in 0..17 {
            for len in (0..300).chain([511, 512, 1024, 4095, 4096]) {
                let part = &bytes[from..from + len];
                let expected = reference(part) ^ reference(&7u64.to_le_bytes());
                assert_eq!(checksum(7, part), expected);
            }
        }
    }

    proptest! {
        #[test]
        fn detects_misplaced_content(
            content in prop::collection::vec(any::<u8>(), 512),
            volume in 0u64..1 << 16, sector in 0u64..1 << 32, other in 0u64..1 << 32,
        ) {
            let here = checksum(seed(volume, sector), &content);
            prop_assert_eq!(here == checksum(seed(volume, other), &content), sector == other);
            prop_assert_ne!(here, checksum(seed(volume ^ 1, sector), &content));
        }

        #[test]
        fn detects_every_burst_of_up_to_four_bytes(
            mut line in prop::collection::vec(any::<u8>(), 4096), at in 0usize..4093, by in 1u32..,
        ) {
            let before = checksum(1, &line);
            for (byte, change) in line[at..].iter_mut().zip(by.to_le_bytes()) {
                *byte ^= change;
            }
            prop_assert_ne!(before, checksum(1, &line));
        }
    }

    #[test]
    fn sectors_have_consecutive_seeds() {
        let mut line = [0; 4096];
        line[600] = 1;
        let sums = checksum_sectors(seed(3, 80), &line);
        for (index, sum) in sums.into_iter().enumerate() {
            let sector = &line[index * 512..][..512];
            assert_eq!(sum, checksum(seed(3, 80 + index as u64), sector));
        }
    }
}
