//! Vectors of x86-64: AVX2 and AVX-512, each with table lookups or with GFNI.

use std::arch::x86_64::*;

use super::Kernel;
use super::vector::{HALVES, MATRICES, Multiplier, Vector, VectorPlaces, encode};
use crate::{GROUPS_PER_LINE, GROUPS_PER_SECTOR, LINE_PARITY_BYTES};
use crate::{Line, LineParity, Sector, SectorParity};

/// Defines a kernel by its name, the processor features it is compiled for, its vector and its
/// multiplier.
macro_rules! kernel {
    ($kernel:ident, $name:literal, $features:literal, $vector:ty, $multiplier:ty) => {
        pub static $kernel: Kernel = {
            #[target_feature(enable = $features)]
            unsafe fn line(line: &Line, parity: &mut LineParity) {
                const LANES: usize = <$vector as Vector>::LANES;
                let mut group = 0;
                while group < GROUPS_PER_LINE {
                    // SAFETY: the features of this function are those of the vector, and the
                    // groups and their share of the parity are within the line's.
                    unsafe {
                        encode::<$vector, $multiplier, LANES>(
                            line.as_ptr().add(group * (line.len() / GROUPS_PER_LINE)),
                            parity.as_mut_ptr().add(group * (LINE_PARITY_BYTES / GROUPS_PER_LINE)),
                        );
                    }
                    group += LANES;
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn sector(sector: &Sector, parity: &mut SectorParity) {
                // SAFETY: as above; the groups are those of one sector.
                unsafe {
                    encode::<$vector, $multiplier, GROUPS_PER_SECTOR>(
                        sector.as_ptr(),
                        parity.as_mut_ptr(),
                    );
                }
            }

            Kernel { name: $name, line, sector }
        };
    };
}

kernel!(AVX2, "avx2", "avx2", __m256i, NibbleTables);
kernel!(GFNI_AVX2, "gfni-avx2", "avx2,gfni", __m256i, Matrices);
kernel!(AVX512, "avx512", "avx512f,avx512bw", __m512i, NibbleTables);
kernel!(GFNI_AVX512, "gfni-avx512", "avx512f,avx512bw,gfni", __m512i, Matrices);

/// Products as the sum of two lookups, one for each nibble of a byte.
pub struct NibbleTables;
/// Products by the affine instruction of GFNI, which multiplies by a matrix over GF(2).
pub struct Matrices;

// "SAFETY: see above" refers to this: the caller guarantees that the processor has the
// instructions, and register operations need nothing else. The memory of loads and stores is valid
// by its type, or because the caller guarantees it.

impl Vector for __m256i {
    const LANES: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn gather(places: impl VectorPlaces) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(places.of_block(0).cast()));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(places.of_block(1).cast()))
        }
    }

    #[inline(always)]
    unsafe fn interleave_low(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_unpacklo_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn interleave_high(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_unpackhi_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn store(self, bytes: &mut [u8; 64]) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), self) }
    }
}

impl Multiplier<__m256i> for NibbleTables {
    type Factor = (__m256i, __m256i);
    type Constant = (__m256i, __m256i);
    // The sum of both lookups, because each product is used twice.
    type Product = __m256i;

    #[inline(always)]
    unsafe fn constant(index: usize) -> Self::Constant {
        // SAFETY: see above; a table has 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(HALVES[index][0].as_ptr().cast());
            let high = _mm_loadu_si128(HALVES[index][1].as_ptr().cast());
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn factor(vector: __m256i) -> Self::Factor {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi8(0x0f);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(vector), mask);
            (_mm256_and_si256(vector, mask), high)
        }
    }

    #[inline(always)]
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product {
        // SAFETY: see above.
        unsafe {
            _mm256_xor_si256(
                _mm256_shuffle_epi8(constant.0, factor.0),
                _mm256_shuffle_epi8(constant.1, factor.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(vector: __m256i, product: Self::Product) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(vector, product) }
    }
}

impl Multiplier<__m256i> for Matrices {
    type Factor = __m256i;
    type Constant = __m256i;
    type Product = __m256i;

    #[inline(always)]
    unsafe fn constant(index: usize) -> Self::Constant {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi64x(MATRICES[index] as i64) }
    }

    #[inline(always)]
    unsafe fn factor(vector: __m256i) -> Self::Factor {
        vector
    }

    #[inline(always)]
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product {
        // SAFETY: see above.
        unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(factor, constant) }
    }

    #[inline(always)]
    unsafe fn add(vector: __m256i, product: Self::Product) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(vector, product) }
    }
}

impl Vector for __m512i {
    const LANES: usize = 64;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn gather(places: impl VectorPlaces) -> Self {
        // SAFETY: see above.
        unsafe {
            let zero = _mm512_castsi128_si512(_mm_loadu_si128(places.of_block(0).cast()));
            let one = _mm_loadu_si128(places.of_block(1).cast());
            let two = _mm_loadu_si128(places.of_block(2).cast());
            let three = _mm_loadu_si128(places.of_block(3).cast());
            let vector = _mm512_inserti32x4::<1>(zero, one);
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(vector, two), three)
        }
    }

    #[inline(always)]
    unsafe fn interleave_low(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_unpacklo_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn interleave_high(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_unpackhi_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn store(self, bytes: &mut [u8; 64]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), self) }
    }
}

impl Multiplier<__m512i> for NibbleTables {
    type Factor = (__m512i, __m512i);
    type Constant = (__m512i, __m512i);
    // Both lookups, because one instruction adds three operands.
    type Product = (__m512i, __m512i);

    #[inline(always)]
    unsafe fn constant(index: usize) -> Self::Constant {
        // SAFETY: see above; a table has 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(HALVES[index][0].as_ptr().cast());
            let high = _mm_loadu_si128(HALVES[index][1].as_ptr().cast());
            (_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high))
        }
    }

    #[inline(always)]
    unsafe fn factor(vector: __m512i) -> Self::Factor {
        // SAFETY: see above.
        unsafe {
            let mask = _mm512_set1_epi8(0x0f);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(vector), mask);
            (_mm512_and_si512(vector, mask), high)
        }
    }

    #[inline(always)]
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product {
        // SAFETY: see above.
        unsafe {
            (_mm512_shuffle_epi8(constant.0, factor.0), _mm512_shuffle_epi8(constant.1, factor.1))
        }
    }

    #[inline(always)]
    unsafe fn add(vector: __m512i, product: Self::Product) -> __m512i {
        // SAFETY: see above. The constant is the truth table of the XOR of three bits.
        unsafe { _mm512_ternarylogic_epi64::<0x96>(vector, product.0, product.1) }
    }
}

impl Multiplier<__m512i> for Matrices {
    type Factor = __m512i;
    type Constant = __m512i;
    type Product = __m512i;

    #[inline(always)]
    unsafe fn constant(index: usize) -> Self::Constant {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi64(MATRICES[index] as i64) }
    }

    #[inline(always)]
    unsafe fn factor(vector: __m512i) -> Self::Factor {
        vector
    }

    #[inline(always)]
    unsafe fn multiply(factor: Self::Factor, constant: Self::Constant) -> Self::Product {
        // SAFETY: see above.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(factor, constant) }
    }

    #[inline(always)]
    unsafe fn add(vector: __m512i, product: Self::Product) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(vector, product) }
    }
}
