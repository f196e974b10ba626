//! Seals: checksums of lines that may have invalid sectors.
//!
//! The seal of a line covers its valid sectors. If all are valid, it is the checksum of the line.
//! Otherwise it is the checksum of the eight sector checksums, with zero for invalid sectors, and a
//! seed that includes the mask of valid sectors: so the seal also covers their set.
//!
//! **What proves a line correct.** Only its seal. Parity knows no place and no time: a line and its
//! parity that are both zeroed, both misplaced, or both stale match each other. Nothing protects
//! the four bytes of a seal, and a flipped bit in one must not cost a correct line. So a seal also
//! counts as right if all parity matches and only one bit of the seal is wrong. The price: wrong
//! content that matches its parity is detected except for one case in 2^27, instead of 2^32.

use crate::checksum::{checksum, checksum_sectors};
use crate::{CheckOutcome, Code, LINE_PARITY_BYTES, Line, LineParity, Sector};
use forebay_types::{SECTOR_BYTES, SECTORS_PER_LINE};

/// Wrong bits in a stored seal that count as damage to the seal alone.
const SEAL_DAMAGE_BITS_MAX: u32 = 1;

/// The result of checking a sealed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Repair {
    /// The seal matches. The parity was not checked.
    Intact,
    /// The line or its seal was damaged; the line is correct now.
    Corrected,
    /// Sectors are lost. The line is unchanged, and its other valid sectors match their parity.
    Lost {
        /// Bit mask of the lost valid sectors; all valid sectors if there is no parity, or if all
        /// parity matches and the seal does not.
        sectors: u8,
    },
}

/// The seal of a line; `valid` is the bit mask of its valid sectors, `seed` the seed of the first
/// sector.
pub fn seal(seed: u64, line: &Line, valid: u8) -> u32 {
    if valid == 0xff {
        return checksum(seed, line);
    }
    let mut bytes = [0; 4 * SECTORS_PER_LINE as usize];
    let sums = checksum_sectors(seed, line);
    for (at, (bytes, sum)) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(sums).enumerate() {
        if valid & 1 << at != 0 {
            *bytes = sum.to_le_bytes();
        }
    }
    checksum(seed ^ u64::from(valid) << 56, &bytes)
}

impl Code {
    /// Repairs the valid sectors of `line` so that their [`seal`] is `expected`, using their parity
    /// if there is any; ignores the parity of invalid sectors.
    ///
    /// - If parity cannot correct some sectors, these are lost, and so are those that it would
    ///   correct: the seal covers both, so it cannot confirm the correction.
    /// - Otherwise all parity matches after the correction, and the seal decides. If it is right,
    ///   or wrong in one bit, the line is correct. If not, the line is zeroed, misplaced or stale
    ///   together with its parity, or miscorrected: all its sectors are lost.
    pub fn repair_sealed(
        self,
        line: &mut Line,
        parity: Option<&LineParity>,
        valid: u8,
        seed: u64,
        expected: u32,
    ) -> Repair {
        if seal(seed, line, valid) == expected {
            return Repair::Intact;
        }
        let Some(parity) = parity else { return Repair::Lost { sectors: valid } };
        let mut corrected = *line;
        let mut parity: [u8; LINE_PARITY_BYTES] = *parity;
        let (mut changed, mut lost) = (0, 0);
        let (sectors, _) = corrected.as_chunks_mut::<{ SECTOR_BYTES as usize }>();
        let (parities, _) = parity.as_chunks_mut();
        for (at, (sector, parity)) in sectors.iter_mut().zip(parities).enumerate() {
            let bit = 1 << at;
            if valid & bit == 0 {
                continue;
            }
            match self.correct_sector(sector as &mut Sector, parity) {
                CheckOutcome::Clean => {}
                CheckOutcome::Corrected { .. } => changed |= bit,
                CheckOutcome::Uncorrectable { .. } => lost |= bit,
            }
        }
        if lost != 0 {
            return Repair::Lost { sectors: changed | lost };
        }
        let wrong_bits = (seal(seed, &corrected, valid) ^ expected).count_ones();
        if wrong_bits > SEAL_DAMAGE_BITS_MAX {
            return Repair::Lost { sectors: valid };
        }
        *line = corrected;
        Repair::Corrected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use forebay_types::LINE_BYTES;
    use proptest::prelude::*;

    fn line_of(bytes: &[u8]) -> Line {
        bytes.try_into().expect("a line")
    }

    fn sealed(line: &Line, valid: u8) -> (u32, LineParity) {
        let mut parity = [0; LINE_PARITY_BYTES];
        Code::detect().encode(line, &mut parity);
        (seal(seed(3, 80), line, valid), parity)
    }

    proptest! {
        #[test]
        fn seal_ignores_invalid_sectors(
            bytes in prop::collection::vec(any::<u8>(), 4096), valid: u8, sector in 0usize..8,
        ) {
            let mut line = line_of(&bytes);
            let before = seal(9, &line, valid);
            line[sector * 512 + 17] ^= 4;
            prop_assert_eq!(seal(9, &line, valid) == before, valid & 1 << sector == 0);
        }

        #[test]
        fn corrects_up_to_six_wrong_bytes_of_a_group(
            bytes in prop::collection::vec(any::<u8>(), 4096), valid in 1u8..,
            at in prop::collection::btree_set(0usize..64, 1..7), group in 0usize..64, by in 1u8..,
        ) {
            let line = line_of(&bytes);
            let (expected, parity) = sealed(&line, valid);
            let mut damaged = line;
            at.iter().for_each(|&byte| damaged[group * 64 + byte] ^= by);
            let found = Code::detect()
                .repair_sealed(&mut damaged, Some(&parity), valid, seed(3, 80), expected);
            if valid & 1 << (group / 8) == 0 {
                prop_assert_eq!(found, Repair::Intact);
            } else {
                prop_assert_eq!(found, Repair::Corrected);
                prop_assert_eq!(damaged, line);
            }
        }

        #[test]
        fn more_than_six_wrong_bytes_lose_only_their_sector(
            bytes in prop::collection::vec(any::<u8>(), 4096),
            at in prop::collection::btree_set(0usize..64, 7..30), group in 0usize..64, by in 1u8..,
        ) {
            let line = line_of(&bytes);
            let (expected, parity) = sealed(&line, 0xff);
            let mut damaged = line;
            at.iter().for_each(|&byte| damaged[group * 64 + byte] ^= by);
            let before = damaged;
            let found = Code::detect()
                .repair_sealed(&mut damaged, Some(&parity), 0xff, seed(3, 80), expected);
            prop_assert_eq!(found, Repair::Lost { sectors: 1 << (group / 8) });
            prop_assert_eq!(damaged, before);
        }
    }

    /// Repairs a line that has the content and the parity of `found`.
    fn repair_as(found: &Line, valid: u8, expected: u32) -> Repair {
        let (_, parity) = sealed(found, valid);
        let mut line = *found;
        let repair =
            Code::detect().repair_sealed(&mut line, Some(&parity), valid, seed(3, 80), expected);
        assert_eq!(line, *found, "nothing is changed");
        repair
    }

    proptest! {
        #[test]
        fn line_zeroed_with_its_parity_is_lost(
            bytes in prop::collection::vec(1u8.., 4096), valid in 1u8..,
        ) {
            let (expected, _) = sealed(&line_of(&bytes), valid);
            let zeroed = [0; LINE_BYTES as usize];
            prop_assert_eq!(sealed(&zeroed, valid).1, [0; LINE_PARITY_BYTES]);
            prop_assert_eq!(repair_as(&zeroed, valid, expected), Repair::Lost { sectors: valid });
        }

        #[test]
        fn lines_swapped_with_their_parity_are_lost(
            one in prop::collection::vec(any::<u8>(), 4096),
            other in prop::collection::vec(any::<u8>(), 4096), valid in 1u8..,
        ) {
            let (one, other) = (line_of(&one), line_of(&other));
            let (expected, _) = sealed(&one, valid);
            prop_assert_eq!(repair_as(&other, valid, expected), Repair::Lost { sectors: valid });
        }

        #[test]
        fn equal_line_of_another_place_is_lost(
            bytes in prop::collection::vec(any::<u8>(), 4096), valid in 1u8..,
            volume in 0u64..100, line_number in 0u64..1 << 30,
        ) {
            let line = line_of(&bytes);
            let place = seed(volume, 8 * line_number);
            prop_assume!(place != seed(3, 80));
            let expected = seal(place, &line, valid);
            prop_assert_eq!(repair_as(&line, valid, expected), Repair::Lost { sectors: valid });
        }

        #[test]
        fn misplaced_line_is_lost_although_parity_corrects_it(
            bytes in prop::collection::vec(any::<u8>(), 4096), valid in 1u8..,
            at in 0usize..4096, by in 1u8..,
        ) {
            let line = line_of(&bytes);
            let (_, parity) = sealed(&line, valid);
            let expected = seal(seed(3, 88), &line, valid);
            let mut damaged = line;
            damaged[at] ^= by;
            let found = Code::detect()
                .repair_sealed(&mut damaged, Some(&parity), valid, seed(3, 80), expected);
            prop_assert_eq!(found, Repair::Lost { sectors: valid });
        }
    }

    #[test]
    fn flipped_bit_of_a_seal_loses_nothing_if_parity_matches() {
        let line: Line = std::array::from_fn(|at| at as u8);
        for valid in [0x0f, 0xff] {
            let (expected, parity) = sealed(&line, valid);
            for bit in 0..32 {
                let stored = expected ^ 1 << bit;
                let repair = |line: &mut Line, parity| {
                    Code::detect().repair_sealed(line, parity, valid, seed(3, 80), stored)
                };
                assert_eq!(repair_as(&line, valid, stored), Repair::Corrected);
                let mut found = line;
                assert_eq!(repair(&mut found, None), Repair::Lost { sectors: valid });
                // A wrong byte is corrected nevertheless.
                found[70] ^= 0x55;
                assert_eq!(repair(&mut found, Some(&parity)), Repair::Corrected);
                assert_eq!(found, line);
            }
            // Two wrong bits prove nothing about the seal.
            assert_eq!(repair_as(&line, valid, expected ^ 0b11), Repair::Lost { sectors: valid });
        }
    }

    /// Damages `count` random distinct bytes in a group of a sealed line and its parity.
    fn damage(numbers: &mut u64, found: (&mut Line, &mut LineParity), group: usize, count: usize) {
        let mut below = |limit: u64| {
            // SplitMix64.
            *numbers = numbers.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (*numbers ^ (*numbers >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((u128::from(x ^ (x >> 31)) * u128::from(limit)) >> 64) as usize
        };
        let mut places: [usize; 76] = std::array::from_fn(|at| at);
        for at in 0..count {
            places.swap(at, at + below(76 - at as u64));
            let change = 1 + below(255) as u8;
            match places[at].checked_sub(64) {
                None => found.0[group * 64 + places[at]] ^= change,
                Some(byte) => found.1[group / 8 * 96 + 8 * byte + group % 8] ^= change,
            }
        }
    }

    #[test]
    #[ignore = "takes minutes in a debug build"]
    fn slow_millions_of_patterns_are_corrected_or_reported() {
        let line: Line = std::array::from_fn(|at| ((at * at) >> 3) as u8);
        let (expected, parity) = sealed(&line, 0xff);
        let code = Code::detect();
        let mut numbers = 42;
        for count in 1..=20 {
            let (mut intact, mut corrected, mut lost) = (0u64, 0u64, 0u64);
            for round in 0..500_000 {
                let (mut bad, mut bad_parity) = (line, parity);
                damage(&mut numbers, (&mut bad, &mut bad_parity), round % 64, count);
                let before = bad;
                let seed = seed(3, 80);
                match code.repair_sealed(&mut bad, Some(&bad_parity), 0xff, seed, expected) {
                    Repair::Intact => {
                        intact += 1;
                        assert!(before == line, "only the parity was damaged");
                    }
                    Repair::Corrected => {
                        corrected += 1;
                        assert!(bad == line, "a corrected line is correct");
                    }
                    Repair::Lost { sectors } => {
                        lost += 1;
                        assert!(count > 6 && bad == before);
                        // All sectors if the damage was miscorrected.
                        assert!(sectors == 1 << (round % 64 / 8) || sectors == 0xff);
                    }
                }
            }
            let found = format!("{intact} in parity alone, {corrected} corrected, {lost} reported");
            println!("{count:>2} wrong bytes: {found}");
        }
    }
}
