//! The implementations of the one thing that must be fast: the parity of intact data.
//!
//! Checking is done with the same: parity is computed anew and compared. What differs is the
//! remainder of the group as it was read, from which `decode` goes on.
//!
//! Which ones there are depends on the processor and is asked for here alone, so that a kernel
//! can not be called where its instructions do not exist.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::{Line, LineParity, Sector, SectorParity};

/// One implementation.
pub struct Kernel {
    name: &'static str,
    line: unsafe fn(&Line, &mut LineParity),
    sector: unsafe fn(&Sector, &mut SectorParity),
}

impl Kernel {
    /// What it is called in benchmarks and the log.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the parity of `line`.
    pub fn encode_line(&self, line: &Line, parity: &mut LineParity) {
        // SAFETY: kernels are handed out by `available`, which has asked the processor.
        unsafe { (self.line)(line, parity) }
    }

    /// Writes the parity of `sector`.
    pub fn encode_sector(&self, sector: &Sector, parity: &mut SectorParity) {
        // SAFETY: kernels are handed out by `available`, which has asked the processor.
        unsafe { (self.sector)(sector, parity) }
    }
}

/// The one that every processor can do, and that the others are compared with.
pub static SCALAR: Kernel =
    Kernel { name: "scalar", line: scalar::encode_line, sector: scalar::encode_sector };

/// The implementations that this processor can do, best first. The scalar one is the last.
pub fn available() -> impl Iterator<Item = &'static Kernel> {
    native().into_iter().flatten().chain([&SCALAR])
}

#[cfg(target_arch = "x86_64")]
fn native() -> [Option<&'static Kernel>; 4] {
    let avx2 = is_x86_feature_detected!("avx2");
    let gfni = is_x86_feature_detected!("gfni");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    [
        (avx512 && gfni).then_some(&x86::GFNI_AVX512),
        (avx2 && gfni).then_some(&x86::GFNI_AVX2),
        avx512.then_some(&x86::AVX512),
        avx2.then_some(&x86::AVX2),
    ]
}

#[cfg(target_arch = "aarch64")]
fn native() -> [Option<&'static Kernel>; 1] {
    [std::arch::is_aarch64_feature_detected!("neon").then_some(&neon::NEON)]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn native() -> [Option<&'static Kernel>; 0] {
    []
}
