//! Lines of which only some sectors count.
//!
//! A line in a pool may hold some sectors and lack others. Its seal is the checksum of those that
//! count: of the whole line if all do, and otherwise of the eight checksums of its sectors, zero
//! for those that do not count. The seal of a line says so which sectors it is of.

use crate::checksum::{checksum, checksum_sectors};
use crate::{Code, LINE_PARITY_BYTES, Line, LineParity, Outcome, Sector};
use forebay_types::{SECTOR_BYTES, SECTORS_PER_LINE};

/// What came of looking at a sealed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Repair {
    /// Nothing was wrong.
    Intact,
    /// Something was wrong, with the line or with its checksum, and the line is right now.
    Corrected,
    /// There is no telling what was in these sectors, one bit each. The line is as it was found;
    /// sectors that count and are not among these are right.
    Lost {
        /// Only sectors that count; all of them if there is no parity.
        sectors: u8,
    },
}

/// The checksum of the sectors `valid` of a line, one bit each. `seed` is that of the first sector.
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
    /// Makes sure that the sectors `valid` of `line` are what they were when their [`seal`] was
    /// `expected`, with the help of their parity if there is any. Parity of other sectors is of no
    /// interest. A line that agrees with all of its parity is right although its checksum says
    /// otherwise: then it is the checksum that was damaged.
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
        let (mut touched, mut lost) = (0, 0);
        let (sectors, _) = corrected.as_chunks_mut::<{ SECTOR_BYTES as usize }>();
        let (parities, _) = parity.as_chunks_mut();
        for (at, (sector, parity)) in sectors.iter_mut().zip(parities).enumerate() {
            let bit = 1 << at;
            if valid & bit == 0 {
                continue;
            }
            match self.correct_sector(sector as &mut Sector, parity) {
                Outcome::Clean => {}
                Outcome::Corrected { .. } => touched |= bit,
                Outcome::Uncorrectable { .. } => lost |= bit,
            }
        }
        // Parity that disagrees anywhere vouches for nothing without the checksum.
        let vouched = touched | lost == 0 || lost == 0 && seal(seed, &corrected, valid) == expected;
        if vouched {
            *line = corrected;
            return Repair::Corrected;
        }
        Repair::Lost { sectors: touched | lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
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
        fn sectors_that_do_not_count_may_change(
            bytes in prop::collection::vec(any::<u8>(), 4096), valid: u8, sector in 0usize..8,
        ) {
            let mut line = line_of(&bytes);
            let before = seal(9, &line, valid);
            line[sector * 512 + 17] ^= 4;
            prop_assert_eq!(seal(9, &line, valid) == before, valid & 1 << sector == 0);
        }

        #[test]
        fn up_to_six_wrong_bytes_of_a_group_are_put_right(
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
        fn more_of_them_are_lost_in_their_sector_alone(
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

    #[test]
    fn a_damaged_checksum_costs_nothing_where_there_is_parity() {
        let line: Line = std::array::from_fn(|at| at as u8);
        let (expected, parity) = sealed(&line, 0x0f);
        let code = Code::detect();
        let look = |line: &mut Line, parity| {
            code.repair_sealed(line, parity, 0x0f, seed(3, 80), expected ^ 8)
        };
        let mut found = line;
        assert_eq!(look(&mut found, Some(&parity)), Repair::Corrected);
        assert_eq!(look(&mut found, None), Repair::Lost { sectors: 0x0f });
        assert_eq!(found, line);
    }

    /// Damages `count` distinct bytes, in a group of a sealed line and its parity, at random.
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
    fn slow_millions_of_patterns_in_every_group_are_corrected_or_told() {
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
                        assert!(bad == line, "whatever is called corrected is right");
                    }
                    Repair::Lost { sectors } => {
                        lost += 1;
                        assert!(count > 6 && bad == before && sectors == 1 << (round % 64 / 8));
                    }
                }
            }
            let found = format!("{intact} in parity alone, {corrected} corrected, {lost} told");
            println!("{count:>2} wrong bytes: {found}");
        }
    }
}
