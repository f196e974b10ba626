//! Arithmetic in GF(256), and the generator polynomial of the code.
//!
//! Bytes are polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1, for which x (the byte 2) is
//! primitive: its powers are all non-zero bytes. The tables are computed at compile time and take
//! 0.8 KiB.

use crate::GROUP_PARITY_BYTES;

/// The modulus, one bit per coefficient.
const MODULUS: u16 = 0x11d;
/// The order of the multiplicative group.
pub const ORDER: usize = 255;
/// The logarithm of the generator's first root. With this choice the twelve roots are closed under
/// inversion (122 + 133 = 255), which makes the generator palindromic.
pub const ROOT_FIRST: usize = (ORDER - (GROUP_PARITY_BYTES - 1)) / 2;

const TABLES: ([u8; 2 * ORDER], [u8; 256]) = tables();
/// Powers of 2, two periods, so that the sum of two logarithms is a valid index.
static POWERS: [u8; 2 * ORDER] = TABLES.0;
/// Logarithms; the entry for zero is unused.
static LOGARITHMS: [u8; 256] = TABLES.1;

/// The generator, the product of (x + 2^(122 + j)) for j from 0 to 11, lowest power first. The
/// first and the last coefficient are 1.
pub const GENERATOR: [u8; GROUP_PARITY_BYTES + 1] = generator();

/// `a` times `b`.
pub fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { POWERS[logarithm(a) + logarithm(b)] }
}

/// `a` divided by `b`, which is not zero.
pub fn divide(a: u8, b: u8) -> u8 {
    if a == 0 { 0 } else { POWERS[logarithm(a) + ORDER - logarithm(b)] }
}

/// 2 to the power of `exponent`.
pub fn power(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// The value of a polynomial at `x`; coefficients are ordered lowest first.
pub fn evaluate(polynomial: &[u8], x: u8) -> u8 {
    polynomial.iter().rev().fold(0, |value, &coefficient| multiply(value, x) ^ coefficient)
}

fn logarithm(a: u8) -> usize {
    usize::from(LOGARITHMS[usize::from(a)])
}

/// `a` times `b`, bit by bit, to compute the tables.
pub const fn multiply_slowly(a: u8, b: u8) -> u8 {
    let mut sum = 0;
    let mut shifted = a as u16;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            sum ^= shifted;
        }
        shifted <<= 1;
        if shifted > 0xff {
            shifted ^= MODULUS;
        }
        bit += 1;
    }
    sum as u8
}

const fn tables() -> ([u8; 2 * ORDER], [u8; 256]) {
    let mut powers = [0; 2 * ORDER];
    let mut logarithms = [0; 256];
    let mut value = 1;
    let mut exponent = 0;
    while exponent < ORDER {
        powers[exponent] = value;
        powers[exponent + ORDER] = value;
        logarithms[value as usize] = exponent as u8;
        value = multiply_slowly(value, 2);
        exponent += 1;
    }
    (powers, logarithms)
}

const fn generator() -> [u8; GROUP_PARITY_BYTES + 1] {
    let mut product = [0; GROUP_PARITY_BYTES + 1];
    product[0] = 1;
    let mut degree = 0;
    while degree < GROUP_PARITY_BYTES {
        let root = TABLES.0[ROOT_FIRST + degree];
        let mut power = degree + 1;
        while power > 0 {
            product[power] = product[power - 1] ^ multiply_slowly(product[power], root);
            power -= 1;
        }
        product[0] = multiply_slowly(product[0], root);
        degree += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_multiplication_agrees_with_bitwise() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply_slowly(a, b));
                if b != 0 {
                    assert_eq!(divide(multiply(a, b), b), a);
                }
            }
        }
    }

    #[test]
    fn generator_has_its_roots_and_is_palindromic() {
        for exponent in 0..ORDER {
            let root = (ROOT_FIRST..ROOT_FIRST + GROUP_PARITY_BYTES).contains(&exponent);
            assert_eq!(evaluate(&GENERATOR, power(exponent)) == 0, root);
        }
        for at in 0..GENERATOR.len() {
            assert_eq!(GENERATOR[at], GENERATOR[GENERATOR.len() - 1 - at]);
        }
        assert_eq!(GENERATOR[0], 1);
    }
}
