//! Compares every kernel with the scalar one, and tests the vector algorithm on plain bytes.

use super::vector::{HALVES, MATRICES, Multiplier, POWERS, Vector, VectorPlaces, encode};
use super::{SCALAR, available};
use crate::field::{GENERATOR, multiply};
use crate::{LINE_PARITY_BYTES, Line, LineParity, SECTOR_PARITY_BYTES, Sector};
use proptest::prelude::*;

/// A vector of two blocks of plain bytes. Nothing is inlined, because the unrolled code would take
/// a minute to compile.
type Plain = [u8; 32];

impl Vector for Plain {
    const LANES: usize = 32;

    #[inline(never)]
    unsafe fn zero() -> Self {
        [0; 32]
    }

    #[inline(never)]
    unsafe fn gather(places: impl VectorPlaces) -> Self {
        let mut vector = [0; 32];
        for (block, bytes) in vector.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that both places are readable.
            *bytes = unsafe { places.of_block(block).cast::<[u8; 16]>().read() };
        }
        vector
    }

    #[inline(never)]
    unsafe fn interleave_low(self, other: Self) -> Self {
        std::array::from_fn(|at| {
            let from = at / 16 * 16 + at % 16 / 2;
            if at.is_multiple_of(2) { self[from] } else { other[from] }
        })
    }

    #[inline(never)]
    unsafe fn interleave_high(self, other: Self) -> Self {
        std::array::from_fn(|at| {
            let from = at / 16 * 16 + 8 + at % 16 / 2;
            if at.is_multiple_of(2) { self[from] } else { other[from] }
        })
    }

    #[inline(never)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|at| self[at] ^ other[at])
    }

    #[inline(never)]
    unsafe fn store(self, bytes: &mut [u8; 64]) {
        bytes[..32].copy_from_slice(&self);
    }
}

struct PlainTables;

impl Multiplier<Plain> for PlainTables {
    type Factor = Plain;
    type Constant = [[u8; 16]; 2];
    type Product = Plain;

    #[inline(never)]
    unsafe fn constant(index: usize) -> Self::Constant {
        HALVES[index]
    }

    #[inline(never)]
    unsafe fn factor(vector: Plain) -> Plain {
        vector
    }

    #[inline(never)]
    unsafe fn multiply(factor: Plain, [low, high]: Self::Constant) -> Plain {
        factor.map(|byte| low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)])
    }

    #[inline(never)]
    unsafe fn add(vector: Plain, product: Plain) -> Plain {
        // SAFETY: plain bytes need no processor features.
        unsafe { Vector::add(vector, product) }
    }
}

/// The affine instruction, as defined in Intel's manual: bit `i` of the result is the parity of the
/// factor masked with byte `7 - i` of the matrix.
fn affine(matrix: u64, byte: u8) -> u8 {
    let rows = matrix.to_le_bytes();
    (0..8).fold(0, |sum, i| sum | (((rows[7 - i] & byte).count_ones() as u8 & 1) << i))
}

struct PlainMatrices;

impl Multiplier<Plain> for PlainMatrices {
    type Factor = Plain;
    type Constant = u64;
    type Product = Plain;

    #[inline(never)]
    unsafe fn constant(index: usize) -> u64 {
        MATRICES[index]
    }

    #[inline(never)]
    unsafe fn factor(vector: Plain) -> Plain {
        vector
    }

    #[inline(never)]
    unsafe fn multiply(factor: Plain, matrix: u64) -> Plain {
        factor.map(|byte| affine(matrix, byte))
    }

    #[inline(never)]
    unsafe fn add(vector: Plain, product: Plain) -> Plain {
        // SAFETY: plain bytes need no processor features.
        unsafe { Vector::add(vector, product) }
    }
}

fn encode_plain<M: Multiplier<Plain>>(line: &Line) -> LineParity {
    let mut parity = [0; LINE_PARITY_BYTES];
    for half in 0..2 {
        // SAFETY: the halves are within line and parity, and plain bytes need no processor
        // features.
        unsafe {
            let from = line.as_ptr().add(half * line.len() / 2);
            let to = parity.as_mut_ptr().add(half * LINE_PARITY_BYTES / 2);
            encode::<Plain, M, 32>(from, to);
        }
    }
    parity
}

#[test]
fn tables_and_matrices_multiply_with_the_generator() {
    for (index, power) in POWERS.into_iter().enumerate() {
        for byte in 0..=255u8 {
            let product = multiply(byte, GENERATOR[power]);
            assert_eq!(affine(MATRICES[index], byte), product);
            let [low, high] = &HALVES[index];
            assert_eq!(low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)], product);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_kernels_are_equal(bytes in prop::collection::vec(any::<u8>(), 4096)) {
        let line: &Line = bytes.as_array().unwrap();
        let mut expected = [0; LINE_PARITY_BYTES];
        SCALAR.encode_line(line, &mut expected);
        prop_assert_eq!(encode_plain::<PlainTables>(line), expected);
        prop_assert_eq!(encode_plain::<PlainMatrices>(line), expected);
        for kernel in available() {
            let mut parity = [1; LINE_PARITY_BYTES];
            kernel.encode_line(line, &mut parity);
            prop_assert_eq!(parity, expected, "line by {}", kernel.name());
            let sectors = line.as_chunks().0.iter().zip(expected.as_chunks().0);
            for (sector, expected) in sectors {
                let sector: &Sector = sector;
                let mut parity = [1; SECTOR_PARITY_BYTES];
                kernel.encode_sector(sector, &mut parity);
                prop_assert_eq!(&parity, expected, "sector by {}", kernel.name());
            }
        }
    }
}
