//! The seal of a line, and the place of its parity.

use super::key::LineKey;
use super::meta::Slot;

/// The seal of a line, as it was when the driver computed the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The slot that holds the line and its checksum.
    pub slot: Slot,
    /// The line, to which the checksum is bound.
    pub key: LineKey,
    /// The sectors that the checksum covers.
    pub valid: u8,
    /// The place of its parity, if it has any.
    pub parity: Option<ParityPlace>,
}

/// Lines whose parity fits in one slot.
pub const PARITIES_PER_SLOT: u8 = 5;

/// The place of a line's parity: part `index` of a slot that holds only parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParityPlace {
    /// The slot, in the same shard as the line.
    pub slot: Slot,
    /// The part of the slot, below [`PARITIES_PER_SLOT`].
    pub index: u8,
}
