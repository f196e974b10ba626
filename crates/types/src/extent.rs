//! The allocation of a volume or a disk.

/// A run of bytes with the same allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes.
    pub len: u64,
    /// Whether it is unallocated.
    pub hole: bool,
    /// Whether it reads as zeroes.
    pub zero: bool,
}
