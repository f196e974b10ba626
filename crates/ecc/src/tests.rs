//! The code, compared with reference arithmetic and tested with injected damage.

use crate::*;
use proptest::prelude::*;

/// Reference implementations of the field and the code, independent of this crate.
mod oracle {
    /// The product by long multiplication, then reduction by long division.
    pub fn multiply(a: u8, b: u8) -> u8 {
        let mut product = 0u32;
        for bit in 0..8 {
            if b & (1 << bit) != 0 {
                product ^= u32::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product & (1 << bit) != 0 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    fn root(j: u32) -> u8 {
        (0..122 + j).fold(1, |power, _| multiply(power, 2))
    }

    /// The value at `x`, highest coefficient first.
    pub fn evaluate(polynomial: &[u8], x: u8) -> u8 {
        polynomial.iter().fold(0, |value, &next| multiply(value, x) ^ next)
    }

    /// Whether a group with its parity is a codeword.
    pub fn is_codeword(group: &[u8], parity: &[u8]) -> bool {
        let word = [group, parity].concat();
        (0..12).all(|j| evaluate(&word, root(j)) == 0)
    }

    /// The parity of a group by long division.
    pub fn parity(group: &[u8]) -> Vec<u8> {
        // Highest first: the product of all (x + root).
        let mut generator = vec![1];
        for j in 0..12 {
            let mut next = generator.clone();
            next.push(0);
            for (at, &coefficient) in generator.iter().enumerate() {
                next[at + 1] ^= multiply(coefficient, root(j));
            }
            generator = next;
        }
        let mut rest = [group, &[0; 12]].concat();
        for at in 0..group.len() {
            let scale = rest[at];
            for (i, &coefficient) in generator.iter().enumerate() {
                rest[at + i] ^= multiply(scale, coefficient);
            }
        }
        rest.split_off(group.len())
    }
}

/// SplitMix64, seeded for reproducible runs.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn line(&mut self) -> Line {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// Damages `count` different bytes of a group: anywhere in data and parity, consecutive ones,
    /// or only in the parity.
    fn damage(&mut self, line: &mut Line, parity: &mut LineParity, group: usize, count: usize) {
        let mut places: Vec<usize> = (0..76).collect();
        match self.below(4) {
            0 => places = (0..count).map(|at| at + group % (77 - count)).collect(),
            1 if count <= 12 => places.drain(..64).for_each(drop),
            _ => {}
        }
        for at in 0..count {
            let other = at + self.below(places.len() - at);
            places.swap(at, other);
            let change = 1 + self.below(255) as u8;
            match places[at].checked_sub(64) {
                None => line[group * 64 + places[at]] ^= change,
                Some(byte) => parity[parity_at(group, byte)] ^= change,
            }
        }
    }
}

fn parity_of(line: &Line) -> LineParity {
    let mut parity = [0; LINE_PARITY_BYTES];
    Code::detect().encode(line, &mut parity);
    parity
}

fn group_parity(parity: &LineParity, group: usize) -> Vec<u8> {
    (0..12).map(|byte| parity[group / 8 * 96 + byte * 8 + group % 8]).collect()
}

#[test]
fn parity_agrees_with_reference_arithmetic() {
    let mut numbers = Numbers(1);
    for _ in 0..4 {
        let line = numbers.line();
        for code in Code::available() {
            let mut parity = [0; LINE_PARITY_BYTES];
            code.encode(&line, &mut parity);
            for group in 0..64 {
                let data = &line[group * 64..][..64];
                let ours = group_parity(&parity, group);
                assert_eq!(ours, oracle::parity(data), "{} group {group}", code.name());
                assert!(oracle::is_codeword(data, &ours));
            }
        }
    }
}

#[test]
fn parity_of_known_data() {
    // The parity of the bytes 0 to 63. It must never change: stored parity depends on it.
    let expected = [69, 170, 204, 226, 143, 5, 65, 68, 90, 21, 55, 134];
    let group: Vec<u8> = (0..64).collect();
    assert_eq!(oracle::parity(&group), expected);
    let mut line = [0; 4096];
    line[37 * 64..][..64].copy_from_slice(&group);
    let parity = parity_of(&line);
    assert_eq!(group_parity(&parity, 37), expected);
    // The parity of zeroes is zero.
    assert_eq!(parity.iter().filter(|byte| **byte != 0).count(), 12);
}

#[test]
fn detect_chooses_the_fastest_correct_kernel() {
    assert!(Code::available().all(Code::passes_self_test));
    let first = Code::available().next().map(Code::name);
    assert_eq!(Some(Code::detect().name()), first);
    assert_eq!(Code::available().last().map(Code::name), Some("scalar"));
}

#[test]
fn corrects_every_single_wrong_byte() {
    let line = Numbers(2).line();
    let parity = parity_of(&line);
    let code = Code::detect();
    for change in [1, 0x80, 0xff] {
        for at in 0..4096usize + 768 {
            let (mut bad_line, mut bad_parity) = (line, parity);
            match at.checked_sub(4096) {
                None => bad_line[at] ^= change,
                Some(at) => bad_parity[at] ^= change,
            }
            assert_eq!(code.damaged(&bad_line, &bad_parity).count_ones(), 1);
            let outcome = code.correct(&mut bad_line, &mut bad_parity);
            assert_eq!(outcome, CheckOutcome::Corrected { bytes: 1 });
            assert!(bad_line == line && bad_parity == parity);
        }
    }
}

/// Damages up to six bytes in some groups of a line, `rounds` times, and corrects them.
fn up_to_six_wrong_bytes(rounds: usize, seed: u64) {
    let mut numbers = Numbers(seed);
    let codes: Vec<Code> = Code::available().collect();
    let line = numbers.line();
    let parity = parity_of(&line);
    for round in 0..rounds {
        let (mut bad_line, mut bad_parity) = (line, parity);
        let (mut bytes, mut groups) = (0, 0);
        // Usually one or two groups, rarely all.
        let many = if round % 100 == 0 { 64 } else { 1 + numbers.below(2) };
        for at in 0..many {
            let group = if many == 64 { at } else { numbers.below(64) };
            if groups & (1 << group) == 0 {
                let count = 1 + numbers.below(6);
                numbers.damage(&mut bad_line, &mut bad_parity, group, count);
                bytes += count as u32;
                groups |= 1 << group;
            }
        }
        let code = codes[round % codes.len()];
        assert_eq!(code.damaged(&bad_line, &bad_parity), groups);
        let outcome = code.correct(&mut bad_line, &mut bad_parity);
        assert_eq!(outcome, CheckOutcome::Corrected { bytes }, "round {round}");
        assert!(bad_line == line && bad_parity == parity, "round {round}");
        assert_eq!(code.correct(&mut bad_line, &mut bad_parity), CheckOutcome::Clean);
    }
}

#[test]
fn corrects_up_to_six_wrong_bytes_in_each_group() {
    up_to_six_wrong_bytes(3_000, 3);
}

#[test]
#[ignore = "takes minutes in a debug build"]
fn slow_a_million_injections_are_corrected() {
    up_to_six_wrong_bytes(1_000_000, 4);
}

/// Damages more than six bytes of a group, `rounds` times. Returns the number of miscorrections.
fn more_than_six_wrong_bytes(rounds: usize, seed: u64) -> usize {
    let mut numbers = Numbers(seed);
    let code = Code::detect();
    let line = numbers.line();
    let parity = parity_of(&line);
    let sum = checksum(9, &line);
    let mut miscorrected = 0;
    for round in 0..rounds {
        let (mut bad_line, mut bad_parity) = (line, parity);
        let group = numbers.below(64);
        let count = 7 + numbers.below(if round % 2 == 0 { 1 } else { 70 });
        numbers.damage(&mut bad_line, &mut bad_parity, group, count);
        let (damaged_line, damaged_parity) = (bad_line, bad_parity);
        match code.correct(&mut bad_line, &mut bad_parity) {
            // Thirteen wrong bytes can form another codeword; fewer cannot.
            CheckOutcome::Clean => assert!(count > 12),
            CheckOutcome::Uncorrectable { groups } => {
                assert_eq!(groups, 1 << group);
                assert!(bad_line == damaged_line && bad_parity == damaged_parity);
            }
            CheckOutcome::Corrected { bytes } => {
                // Miscorrected to another codeword, at least 13 bytes from the right one.
                miscorrected += 1;
                assert!(bytes <= 6 && bytes as usize + count >= 13);
                let data = &bad_line[group * 64..][..64];
                assert!(oracle::is_codeword(data, &group_parity(&bad_parity, group)));
            }
        }
        let (mut bad_line, mut bad_parity) = (damaged_line, damaged_parity);
        match code.repair(&mut bad_line, &mut bad_parity, 9, sum) {
            CheckOutcome::Uncorrectable { .. } => {
                assert!(bad_line == damaged_line && bad_parity == damaged_parity);
            }
            // Only parity was damaged.
            _ => assert!(damaged_line == line && bad_line == line && bad_parity == parity),
        }
    }
    miscorrected
}

#[test]
fn never_repairs_more_than_six_wrong_bytes() {
    // About eight in ten million are miscorrected, so none of these 5,000.
    assert_eq!(more_than_six_wrong_bytes(5_000, 5), 0);
}

#[test]
#[ignore = "takes minutes in a debug build"]
fn slow_a_million_heavy_injections() {
    let miscorrected = more_than_six_wrong_bytes(1_000_000, 6);
    println!("{miscorrected} of a million miscorrected; 0.8 are expected");
    assert!(miscorrected < 8);
}

/// The fraction of random words within six bytes of a codeword: the volume of the spheres around
/// the codewords over the volume of the space.
fn miscorrection_rate() -> f64 {
    let mut spheres = 0.0;
    let mut ways = 1.0;
    for wrong in 0..=6 {
        spheres += ways;
        ways *= f64::from(76 - wrong) / f64::from(wrong + 1) * 255.0;
    }
    spheres / 256f64.powi(12)
}

#[test]
fn miscorrection_rate_is_eight_in_ten_million() {
    assert!((7.5e-7..8.5e-7).contains(&miscorrection_rate()), "{}", miscorrection_rate());
}

#[test]
#[ignore = "takes minutes in a debug build"]
fn slow_random_garbage_is_miscorrected_as_often_as_theory_says() {
    let mut numbers = Numbers(7);
    let rounds = 30_000_000;
    let mut miscorrected = 0;
    for _ in 0..rounds {
        let mut remainder = [0; 12];
        remainder[..8].copy_from_slice(&numbers.next().to_le_bytes());
        remainder[8..].copy_from_slice(&numbers.next().to_le_bytes()[..4]);
        miscorrected += usize::from(decode::decode(&remainder).is_some());
    }
    let expected = miscorrection_rate() * f64::from(rounds);
    println!("{miscorrected} of {rounds} miscorrected; {expected:.1} are expected");
    // Four standard deviations.
    assert!((miscorrected as f64 - expected).abs() < 4.0 * expected.sqrt());
}

#[test]
fn repair_trusts_the_checksum() {
    let mut numbers = Numbers(8);
    let code = Code::detect();
    let line = numbers.line();
    let parity = parity_of(&line);
    let sum = checksum(5, &line);
    let (mut line2, mut parity2) = (line, parity);
    assert_eq!(code.repair(&mut line2, &mut parity2, 5, sum), CheckOutcome::Clean);
    // With intact data, even uncorrectable parity is repaired.
    parity2.fill(0x55);
    let wrong = parity.iter().filter(|byte| **byte != 0x55).count() as u32;
    let outcome = code.repair(&mut line2, &mut parity2, 5, sum);
    assert_eq!(outcome, CheckOutcome::Corrected { bytes: wrong });
    assert!(line2 == line && parity2 == parity);
    // Damaged data in one group, uncorrectable parity in another.
    numbers.damage(&mut line2, &mut parity2, 3, 6);
    (0..12).for_each(|byte| parity2[parity_at(9, byte)] ^= 0xff);
    let outcome = code.repair(&mut line2, &mut parity2, 5, sum);
    assert_eq!(outcome, CheckOutcome::Corrected { bytes: 18 });
    assert!(line2 == line && parity2 == parity);
    // Intact, but misplaced data: the right content is unknown.
    let outcome = code.repair(&mut line2, &mut parity2, 6, sum);
    assert_eq!(outcome, CheckOutcome::Uncorrectable { groups: 0 });
    assert!(line2 == line && parity2 == parity);
}

#[test]
fn partly_repairable_line_is_left_unchanged() {
    let mut numbers = Numbers(9);
    let code = Code::detect();
    let line = numbers.line();
    let parity = parity_of(&line);
    let (mut bad_line, mut bad_parity) = (line, parity);
    bad_line[0] ^= 1;
    for byte in &mut bad_line[128..136] {
        *byte ^= 0x77;
    }
    let found = bad_line;
    let outcome = code.repair(&mut bad_line, &mut bad_parity, 5, checksum(5, &line));
    assert_eq!(outcome, CheckOutcome::Uncorrectable { groups: 0b101 });
    assert!(bad_line == found && bad_parity == parity);
    // `correct` uses no checksum, and corrects the other group.
    let outcome = code.correct(&mut bad_line, &mut bad_parity);
    assert_eq!(outcome, CheckOutcome::Uncorrectable { groups: 0b100 });
    assert_eq!(bad_line[0], line[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn corrects_sectors_independently(
        bytes in prop::collection::vec(any::<u8>(), 512),
        places in prop::collection::vec(
            (0usize..8, prop::collection::btree_map(0usize..76, 1u8.., 0..=9)), 0..4),
    ) {
        let sector: &Sector = bytes.as_array().unwrap();
        let sum = checksum(1, sector);
        for code in Code::available() {
            let mut parity = [0; SECTOR_PARITY_BYTES];
            code.encode_sector(sector, &mut parity);
            let (mut bad_sector, mut bad_parity) = (*sector, parity);
            // If two entries name one group, the last one counts.
            let groups: std::collections::BTreeMap<_, _> = places.iter().cloned().collect();
            for (&group, wrong) in &groups {
                for (&place, change) in wrong {
                    match place.checked_sub(64) {
                        None => bad_sector[group * 64 + place] ^= change,
                        Some(byte) => bad_parity[byte * 8 + group] ^= change,
                    }
                }
            }
            let groups_with = |is_counted: fn(usize) -> bool| {
                let counted = groups.iter().filter(|(_, wrong)| is_counted(wrong.len()));
                counted.fold(0u64, |mask, (group, _)| mask | 1 << group)
            };
            let damaged = groups_with(|wrong| wrong > 0);
            prop_assert_eq!(code.damaged_sector(&bad_sector, &bad_parity), damaged);
            let (mut line2, mut parity2) = (bad_sector, bad_parity);
            let repaired = code.repair_sector(&mut line2, &mut parity2, 1, sum);
            let outcome = code.correct_sector(&mut bad_sector, &mut bad_parity);
            let lost = groups_with(|wrong| wrong > 6);
            let bytes = groups.values().map(|wrong| wrong.len() as u32).sum();
            if damaged == 0 {
                prop_assert_eq!(outcome, CheckOutcome::Clean);
            } else if lost != 0 {
                prop_assert_eq!(outcome, CheckOutcome::Uncorrectable { groups: lost });
                continue;
            } else {
                prop_assert_eq!(outcome, CheckOutcome::Corrected { bytes });
            }
            prop_assert_eq!(repaired, outcome);
            prop_assert!(bad_sector == *sector && bad_parity == parity);
            prop_assert!(line2 == *sector && parity2 == parity);
        }
    }
}
