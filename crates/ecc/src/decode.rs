//! From the remainder of one damaged group to the bytes that are wrong in it.
//!
//! The classical way, as in R. E. Blahut, "Algebraic Codes for Data Transmission" (2003), chapter
//! 7: syndromes; the algorithm of Berlekamp and Massey for the polynomial whose roots tell the
//! places; a search through all places for these roots (Chien); the formula of Forney for the
//! values. Decoding is bounded: an answer differs from what was read in at most six bytes of the
//! group's 76, and the syndromes of the result are zero; otherwise there is none. More than six
//! wrong bytes may look like six others: of random garbage about 8 in ten million do, and a
//! checksum has to tell.
//!
//! Nothing here is fast, a microsecond or two per group, because nearly no group is damaged.

use crate::field::{ROOT_FIRST, divide, evaluate, multiply, power};
use crate::{CORRECTABLE_BYTES, GROUP_BYTES, GROUP_PARITY_BYTES};

/// Bytes of a group together with its parity.
const CODEWORD_BYTES: usize = GROUP_BYTES + GROUP_PARITY_BYTES;

/// What is wrong in one group.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Errors {
    count: usize,
    /// Index of the byte in the group, parity behind data, and what to add to it.
    bytes: [(usize, u8); CORRECTABLE_BYTES],
}

impl Errors {
    /// The wrong bytes: index in the group, parity behind data, and what to add to each.
    pub fn bytes(&self) -> &[(usize, u8)] {
        &self.bytes[..self.count]
    }
}

/// Finds the errors in a group whose parity differs from that of its data by `remainder`; `None`
/// where more than six bytes must be wrong.
pub fn decode(remainder: &[u8; GROUP_PARITY_BYTES]) -> Option<Errors> {
    let syndromes = syndromes(remainder);
    let (locator, count) = locator(&syndromes)?;
    let evaluator = evaluator(&syndromes, &locator);
    let mut errors = Errors::default();
    for byte in 0..CODEWORD_BYTES {
        let exponent = CODEWORD_BYTES - 1 - byte;
        let inverse = divide(1, power(exponent));
        if evaluate(&locator[..=count], inverse) != 0 {
            continue;
        }
        errors.bytes[errors.count] = (byte, value(&locator, &evaluator, exponent));
        errors.count += 1;
    }
    // A root outside of the group's 76 places, or a double one, is no error that could be.
    (errors.count == count).then_some(errors)
}

/// The values of the remainder at the generator's roots. They are those of the whole group, which
/// differs from its remainder by a multiple of the generator.
fn syndromes(remainder: &[u8; GROUP_PARITY_BYTES]) -> [u8; GROUP_PARITY_BYTES] {
    let mut polynomial = *remainder;
    polynomial.reverse();
    let mut syndromes = [0; GROUP_PARITY_BYTES];
    for (j, syndrome) in syndromes.iter_mut().enumerate() {
        *syndrome = evaluate(&polynomial, power(ROOT_FIRST + j));
    }
    syndromes
}

/// Berlekamp and Massey: the shortest recurrence that the syndromes obey, lowest coefficient
/// first, and its length. `None` where it is longer than errors can be corrected.
fn locator(syndromes: &[u8; GROUP_PARITY_BYTES]) -> Option<([u8; GROUP_PARITY_BYTES + 1], usize)> {
    let mut current = [0; GROUP_PARITY_BYTES + 1];
    current[0] = 1;
    // The recurrence before the last change of length, what it was wrong by, and how long ago.
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

/// The product of syndromes and locator, without the powers above the syndromes'.
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

/// Forney: what to add at the place of x^`exponent`, which is a simple root of the locator.
fn value(
    locator: &[u8; GROUP_PARITY_BYTES + 1],
    evaluator: &[u8; GROUP_PARITY_BYTES],
    exponent: usize,
) -> u8 {
    let place = power(exponent);
    let inverse = divide(1, place);
    // The derivative: of a power, the next lower one if it was odd, and nothing if it was even.
    let mut derivative = [0; GROUP_PARITY_BYTES];
    for i in (1..locator.len()).step_by(2) {
        derivative[i - 1] = locator[i];
    }
    let slope = evaluate(&derivative, inverse);
    if slope == 0 {
        // A double root; the count of places will not agree.
        return 0;
    }
    let scaled = divide(evaluate(evaluator, inverse), slope);
    // The roots begin at 2^122 instead of 2^0.
    divide(multiply(scaled, place), power(exponent * ROOT_FIRST))
}
