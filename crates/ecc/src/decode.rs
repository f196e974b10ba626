//! Decoding: finds the wrong bytes of a damaged group from its remainder.
//!
//! The classical algorithm, as in R. E. Blahut, "Algebraic Codes for Data Transmission" (2003),
//! chapter 7: syndromes; the Berlekamp-Massey algorithm for the error locator polynomial; a Chien
//! search for its roots, which give the positions; Forney's formula for the values. This is
//! bounded-distance decoding: a result differs from the input in at most six of the group's 76
//! bytes, and has zero syndromes; otherwise decoding fails. More than six wrong bytes may be
//! miscorrected, for random data in about 8 of ten million cases, so the caller needs a checksum.
//!
//! Decoding takes a microsecond or two per group, which is fast enough because damage is rare.

use crate::field::{ROOT_FIRST, divide, evaluate, multiply, power};
use crate::{CORRECTABLE_BYTES, GROUP_BYTES, GROUP_PARITY_BYTES};

/// Length of a codeword: a group and its parity.
const CODEWORD_BYTES: usize = GROUP_BYTES + GROUP_PARITY_BYTES;

/// The errors of one group.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct GroupErrors {
    count: usize,
    /// For each error, the index of the byte (parity after data) and the value to XOR.
    bytes: [(usize, u8); CORRECTABLE_BYTES],
}

impl GroupErrors {
    /// For each error, the index of the byte (parity after data) and the value to XOR.
    pub fn bytes(&self) -> &[(usize, u8)] {
        &self.bytes[..self.count]
    }
}

/// Finds the errors in a group whose stored and computed parity differ by `remainder`. `None` if
/// the group is not correctable: more than six bytes are wrong.
pub fn decode(remainder: &[u8; GROUP_PARITY_BYTES]) -> Option<GroupErrors> {
    let syndromes = syndromes(remainder);
    let (locator, count) = locator(&syndromes)?;
    let evaluator = evaluator(&syndromes, &locator);
    let mut errors = GroupErrors::default();
    for byte in 0..CODEWORD_BYTES {
        let exponent = CODEWORD_BYTES - 1 - byte;
        let inverse = divide(1, power(exponent));
        if evaluate(&locator[..=count], inverse) != 0 {
            continue;
        }
        errors.bytes[errors.count] = (byte, value(&locator, &evaluator, exponent));
        errors.count += 1;
    }
    // Roots outside the 76 positions, or multiple roots, mean that the group is not correctable.
    (errors.count == count).then_some(errors)
}

/// The values of the remainder at the generator's roots. The damaged codeword has the same values,
/// because it differs from the remainder by a multiple of the generator.
fn syndromes(remainder: &[u8; GROUP_PARITY_BYTES]) -> [u8; GROUP_PARITY_BYTES] {
    let mut polynomial = *remainder;
    polynomial.reverse();
    let mut syndromes = [0; GROUP_PARITY_BYTES];
    for (j, syndrome) in syndromes.iter_mut().enumerate() {
        *syndrome = evaluate(&polynomial, power(ROOT_FIRST + j));
    }
    syndromes
}

/// Berlekamp-Massey: the error locator, lowest coefficient first, and its degree. `None` if the
/// degree exceeds the number of correctable errors.
fn locator(syndromes: &[u8; GROUP_PARITY_BYTES]) -> Option<([u8; GROUP_PARITY_BYTES + 1], usize)> {
    let mut current = [0; GROUP_PARITY_BYTES + 1];
    current[0] = 1;
    // The recurrence before the last change of length, its discrepancy, and the steps since then.
    let (mut before, mut before_discrepancy, mut age) = (current, 1, 1);
    let mut length = 0;
    for n in 0..GROUP_PARITY_BYTES {
        let discrepancy =
            (0..=length).fold(0, |sum, i| sum ^ multiply(current[i], syndromes[n - i]));
        if discrepancy == 0 {
            age += 1;
            continue;
        }
        let scale = divide(discrepancy, before_discrepancy);
        let unchanged = current;
        for i in age..current.len() {
            current[i] ^= multiply(scale, before[i - age]);
        }
        if 2 * length <= n {
            length = n + 1 - length;
            (before, before_discrepancy, age) = (unchanged, discrepancy, 1);
        } else {
            age += 1;
        }
    }
    (length <= CORRECTABLE_BYTES).then_some((current, length))
}

/// The product of syndromes and locator, modulo x^12.
fn evaluator(
    syndromes: &[u8; GROUP_PARITY_BYTES],
    locator: &[u8; GROUP_PARITY_BYTES + 1],
) -> [u8; GROUP_PARITY_BYTES] {
    let mut product = [0; GROUP_PARITY_BYTES];
    for (i, coefficient) in product.iter_mut().enumerate() {
        *coefficient = (0..=i).fold(0, |sum, j| sum ^ multiply(syndromes[j], locator[i - j]));
    }
    product
}

/// Forney's formula: the value of the error at x^`exponent`, whose inverse is a root of the
/// locator.
fn value(
    locator: &[u8; GROUP_PARITY_BYTES + 1],
    evaluator: &[u8; GROUP_PARITY_BYTES],
    exponent: usize,
) -> u8 {
    let place = power(exponent);
    let inverse = divide(1, place);
    // The formal derivative: in characteristic 2, only odd powers contribute.
    let mut derivative = [0; GROUP_PARITY_BYTES];
    for i in (1..locator.len()).step_by(2) {
        derivative[i - 1] = locator[i];
    }
    let slope = evaluate(&derivative, inverse);
    if slope == 0 {
        // A multiple root; the number of errors will not match.
        return 0;
    }
    let scaled = divide(evaluate(evaluator, inverse), slope);
    // The first root is 2^122, not 2^0.
    divide(multiply(scaled, place), power(exponent * ROOT_FIRST))
}
