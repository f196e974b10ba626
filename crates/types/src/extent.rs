//! What of a volume or a disk is allocated.

/// A run of bytes that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Whether nothing is allocated there.
    pub hole: bool,
    /// Whether it reads as zeroes.
    pub zero: bool,
}
