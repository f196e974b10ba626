//! Kernels: implementations of parity computation, the only performance-critical part.
//!
//! Checking uses the same code: it computes the parity again and compares. The XOR of both is the
//! remainder of the damaged codeword, which is the input of `decode`.
//!
//! This module alone detects the processor's features, so that a kernel cannot be called without
//! its instructions.

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
    /// The name in benchmarks and the log.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the parity of `line`.
    pub fn encode_line(&self, line: &Line, parity: &mut LineParity) {
        // SAFETY: `available` returns only kernels that the processor supports.
        unsafe { (self.line)(line, parity) }
    }

    /// Writes the parity of `sector`.
    pub fn encode_sector(&self, sector: &Sector, parity: &mut SectorParity) {
        // SAFETY: `available` returns only kernels that the processor supports.
        unsafe { (self.sector)(sector, parity) }
    }
}

/// The portable kernel, and the reference for the others.
pub static SCALAR: Kernel =
    Kernel { name: "scalar", line: scalar::encode_line, sector: scalar::encode_sector };

/// The kernels that this processor supports, fastest first. The last is the scalar one.
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
