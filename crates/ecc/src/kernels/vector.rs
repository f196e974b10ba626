//! Parity with vector instructions, generic over the vector type.
//!
//! Each lane holds one group: a vector holds the same byte of 16, 32 or 64 groups, so that one
//! instruction performs a division step for all of them. Products of a vector and a constant use
//! table lookups in registers (J. S. Plank, K. M. Greenan, E. L. Miller, "Screaming Fast Galois
//! Field Arithmetic Using Intel SIMD Instructions", FAST 2013). Groups are contiguous in memory, so
//! the data is first transposed, in squares of 16 by 16 bytes, with four rounds of interleaving.
//!
//! The generator is palindromic and its leading coefficient is 1, so a step needs six products, not
//! twelve: each but one is used twice, in mirrored places, and the product with 1 is the factor
//! itself. Two of the six coefficients are equal, which leaves five products.
//!
//! Everything here is `unsafe` for one reason: it may only be inlined into functions that are
//! compiled for the vector's instructions and called on processors that have them.

use crate::field::{GENERATOR, multiply_slowly};
use crate::{GROUP_BYTES, GROUP_PARITY_BYTES, GROUPS_PER_SECTOR, SECTOR_PARITY_BYTES};

/// The powers of x whose coefficients in the generator a step multiplies with.
pub const POWERS: [usize; 5] = [1, 2, 3, 4, 6];
const PRODUCTS: usize = POWERS.len();
// The others are 1, equal to one of these, or their mirror images.
const _: () = assert!(GENERATOR[0] == 1 && GENERATOR[5] == GENERATOR[2]);
/// Side of the transposed squares, and length of a vector's blocks in bytes.
const SQUARE: usize = 16;
/// Maximum number of bytes in a vector.
const LANES_MAX: usize = 64;

/// A vector of bytes in blocks of 16.
pub trait Vector: Copy {
    /// Number of bytes.
    const LANES: usize;

    /// A zero vector.
    ///
    /// # Safety
    /// The processor must have the vector's instructions, as for all functions here.
    unsafe fn zero() -> Self;

    /// Loads the 16 bytes of each block from its address.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn gather(places: impl VectorPlaces) -> Self;

    /// Interleaves the lower eight bytes of each block of both vectors.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn interleave_low(self, other: Self) -> Self;

    /// Interleaves the upper eight bytes of each block of both vectors.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn interleave_high(self, other: Self) -> Self;

    /// The sum in the field, which is XOR.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn add(self, other: Self) -> Self;

    /// Writes the bytes.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn store(self, bytes: &mut [u8; LANES_MAX]);
}

/// The addresses from which the blocks of a vector are loaded.
pub trait VectorPlaces: Copy {
    /// The address of block `block`.
    ///
    /// # Safety
    /// The block must belong to the vector that these places are for.
    unsafe fn of_block(self, block: usize) -> *const u8;
}

/// A way to multiply vectors with constants.
pub trait Multiplier<V: Vector> {
    /// A vector, prepared for several products.
    type Factor: Copy;
    /// A constant, prepared for several products.
    type Constant: Copy;
    /// A product, in the form in which it is added.
    type Product: Copy;

    /// The constant of [`POWERS`] with this index.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn constant(index: usize) -> Self::Constant;

    /// Prepares `vector`.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn factor(vector: V) -> Self::Factor;

    /// The product.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product;

    /// The sum of `vector` and the product.
    ///
    /// # Safety
    /// The instructions must exist.
    unsafe fn add(vector: V, product: Self::Product) -> V;
}

/// Products of each coefficient with all low and all high nibbles.
pub static HALVES: [[[u8; 16]; 2]; PRODUCTS] = halves();
/// For each coefficient, the matrix over GF(2) that multiplies by it, in the bit order of the
/// affine instruction of GFNI: the row of the highest bit is the lowest byte.
#[cfg(any(test, target_arch = "x86_64"))]
pub static MATRICES: [u64; PRODUCTS] = matrices();

/// Unrolls a loop over the given numbers.
macro_rules! for_each {
    ($name:ident in $($number:literal)* $body:block) => {
        $({
            let $name: usize = $number;
            $body
        })*
    };
}

/// Computes the parity of `GROUPS` groups at `data`, and writes it to `parity`. `GROUPS` is a
/// multiple of eight and at most the vector's lanes; surplus lanes repeat groups and are ignored.
///
/// # Safety
/// The instructions must exist. The groups must be readable and their parity writable.
#[inline(always)]
pub unsafe fn encode<V: Vector, M: Multiplier<V>, const GROUPS: usize>(
    data: *const u8,
    parity: *mut u8,
) {
    // SAFETY: the caller guarantees the instructions and the readable groups.
    let remainder = unsafe { divide::<V, M, GROUPS>(data) };
    let mut bytes = [0; LANES_MAX];
    let mut row = 0;
    while row < GROUP_PARITY_BYTES {
        // SAFETY: the instructions exist.
        unsafe { remainder[GROUP_PARITY_BYTES - 1 - row].store(&mut bytes) };
        let mut sector = 0;
        while sector < GROUPS / GROUPS_PER_SECTOR {
            // SAFETY: the eight bytes lie within the parity of this sector, which is writable;
            // there are at least as many lanes as groups.
            unsafe {
                let to = parity.add(sector * SECTOR_PARITY_BYTES + row * GROUPS_PER_SECTOR);
                let from = bytes.as_ptr().add(sector * GROUPS_PER_SECTOR);
                to.copy_from_nonoverlapping(from, GROUPS_PER_SECTOR);
            }
            sector += 1;
        }
        row += 1;
    }
}

/// The remainder of the groups' division by the generator, lowest power first.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn divide<V: Vector, M: Multiplier<V>, const GROUPS: usize>(
    data: *const u8,
) -> [V; GROUP_PARITY_BYTES] {
    const { assert!(GROUPS <= V::LANES && V::LANES <= LANES_MAX && GROUPS.is_multiple_of(8)) }
    // SAFETY: the caller guarantees the instructions and the readable groups; columns lie within
    // the groups.
    unsafe {
        let constants: [M::Constant; PRODUCTS] =
            [M::constant(0), M::constant(1), M::constant(2), M::constant(3), M::constant(4)];
        let mut remainder = [V::zero(); GROUP_PARITY_BYTES];
        let mut column = 0;
        while column < GROUP_BYTES {
            let bytes = columns::<V, GROUPS>(data.add(column));
            // Unrolled, as below, because a loop would keep the vectors in memory.
            for_each!(at in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
                remainder = step::<V, M>(remainder, bytes[at], &constants);
            });
            column += SQUARE;
        }
        remainder
    }
}

/// Performs one step of the division.
///
/// # Safety
/// The instructions must exist.
#[inline(always)]
unsafe fn step<V: Vector, M: Multiplier<V>>(
    s: [V; GROUP_PARITY_BYTES],
    byte: V,
    constants: &[M::Constant; PRODUCTS],
) -> [V; GROUP_PARITY_BYTES] {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let leaving = byte.add(s[11]);
        let factor = M::factor(leaving);
        let one = M::multiply(factor, constants[0]);
        let two = M::multiply(factor, constants[1]);
        let three = M::multiply(factor, constants[2]);
        let four = M::multiply(factor, constants[3]);
        let six = M::multiply(factor, constants[4]);
        let five = two;
        [
            leaving,
            M::add(s[0], one),
            M::add(s[1], two),
            M::add(s[2], three),
            M::add(s[3], four),
            M::add(s[4], five),
            M::add(s[5], six),
            M::add(s[6], five),
            M::add(s[7], four),
            M::add(s[8], three),
            M::add(s[9], two),
            M::add(s[10], one),
        ]
    }
}

/// Transposes 16 bytes of each group into 16 vectors with one byte of each group.
///
/// # Safety
/// The instructions must exist, and the groups must be readable.
#[inline(always)]
unsafe fn columns<V: Vector, const GROUPS: usize>(data: *const u8) -> [V; SQUARE] {
    // SAFETY: the caller guarantees the instructions and the readable groups.
    unsafe {
        let mut rows = [V::zero(); SQUARE];
        for_each!(row in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {
            rows[row] = V::gather(Rows::<GROUPS> { data, row });
        });
        // Each round rotates a byte's index (row and column, eight bits) left by one bit. Four
        // rounds exchange rows and columns.
        for_each!(_round in 0 1 2 3 {
            let before = rows;
            for_each!(row in 0 1 2 3 4 5 6 7 {
                rows[2 * row] = before[row].interleave_low(before[row + SQUARE / 2]);
                rows[2 * row + 1] = before[row].interleave_high(before[row + SQUARE / 2]);
            });
        });
        rows
    }
}

/// A row of the squares: group `row` in the first block, group `row + 16` in the next, and so on.
#[derive(Clone, Copy)]
struct Rows<const GROUPS: usize> {
    data: *const u8,
    row: usize,
}

impl<const GROUPS: usize> VectorPlaces for Rows<GROUPS> {
    #[inline(always)]
    unsafe fn of_block(self, block: usize) -> *const u8 {
        let group = (block * SQUARE + self.row) % GROUPS;
        // SAFETY: the caller guarantees this number of groups.
        unsafe { self.data.add(group * GROUP_BYTES) }
    }
}

const fn halves() -> [[[u8; 16]; 2]; PRODUCTS] {
    let mut tables = [[[0; 16]; 2]; PRODUCTS];
    let mut index = 0;
    while index < PRODUCTS {
        let mut half = 0;
        while half < 16 {
            tables[index][0][half] = multiply_slowly(half as u8, GENERATOR[POWERS[index]]);
            tables[index][1][half] = multiply_slowly((half << 4) as u8, GENERATOR[POWERS[index]]);
            half += 1;
        }
        index += 1;
    }
    tables
}

#[cfg(any(test, target_arch = "x86_64"))]
const fn matrices() -> [u64; PRODUCTS] {
    let mut matrices = [0; PRODUCTS];
    let mut index = 0;
    while index < PRODUCTS {
        let mut bit = 0;
        while bit < 8 {
            // The contribution of this bit of the factor is a column of the matrix.
            let column = multiply_slowly(1 << bit, GENERATOR[POWERS[index]]);
            let mut row = 0;
            while row < 8 {
                let entry = (column >> row & 1) as u64;
                matrices[index] |= entry << (8 * (7 - row) + bit);
                row += 1;
            }
            bit += 1;
        }
        index += 1;
    }
    matrices
}
