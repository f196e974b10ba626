//! The order in which a stream reads a volume.

use super::PrefetchPlan;
use forebay_types::{ByteRange, LINE_BYTES};

/// The maximum number of ranges in one window of a stream that leaves gaps.
const PIECES_MAX: u64 = 32;

/// The order in which a stream reads. It translates offsets to positions: bytes of an imaginary
/// volume that the stream reads from the start to the end without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Ascending, without gaps. The positions are the offsets.
    Forward,
    /// Descending, without gaps. Position 0 is at the offset `from`, a line border.
    Backward { from: u64 },
    /// Ranges of `len` bytes whose starts are `step` bytes apart.
    Strided { first: u64, step: i64, len: u64 },
}

impl Course {
    /// Descending reads of a volume.
    pub(super) const fn backward(volume_bytes: u64) -> Self {
        Self::Backward { from: volume_bytes.next_multiple_of(LINE_BYTES) }
    }

    /// The position of a read; `None` if no read of this stream can be there.
    pub(super) fn position(self, range: ByteRange) -> Option<u64> {
        match self {
            Self::Forward => Some(range.offset),
            Self::Backward { from } => from.checked_sub(range.end()),
            Self::Strided { first, step, len } => {
                let distance = range.offset.wrapping_sub(first).cast_signed();
                let index = u64::try_from(distance / step).ok()?;
                (distance % step == 0 && range.len <= len).then(|| index.checked_mul(len))?
            }
        }
    }

    /// How far a read advances the stream, in bytes.
    pub(super) const fn length(self, range: ByteRange) -> u64 {
        match self {
            Self::Forward | Self::Backward { .. } => range.len,
            Self::Strided { len, .. } => len,
        }
    }

    /// Windows begin and end at multiples of this many bytes.
    pub(super) const fn unit(self) -> u64 {
        match self {
            Self::Forward | Self::Backward { .. } => LINE_BYTES,
            Self::Strided { len, .. } => len,
        }
    }

    /// The maximum number of units in one window.
    pub(super) const fn units_max(self) -> u64 {
        match self {
            Self::Forward | Self::Backward { .. } => u64::MAX,
            Self::Strided { .. } => PIECES_MAX,
        }
    }

    /// The position at which the volume ends.
    pub(super) const fn end(self, volume_bytes: u64) -> u64 {
        match self {
            Self::Forward => volume_bytes,
            Self::Backward { from } => from,
            Self::Strided { first, step, len } => {
                let Some(last) = volume_bytes.checked_sub(len) else { return 0 };
                let room = match step {
                    1.. if first <= last => last - first,
                    1.. => return 0,
                    _ => first,
                };
                (room / step.unsigned_abs() + 1) * len
            }
        }
    }

    /// The window between two positions, which are multiples of the unit; `end` may also be the end
    /// of the volume.
    pub(super) fn plan(self, start: u64, end: u64, read_bytes: u64) -> PrefetchPlan {
        let one =
            |first: ByteRange, mark| PrefetchPlan { first, step: 0, count: 1, mark, read_bytes };
        match self {
            Self::Forward => one(ByteRange::new(start, end - start), start / LINE_BYTES),
            Self::Backward { from } => {
                let above = from - start;
                one(ByteRange::new(from - end, end - start), (above - 1) / LINE_BYTES)
            }
            Self::Strided { first, step, len } => {
                let index = (start / len).cast_signed();
                let first = ByteRange::new(first.wrapping_add_signed(index * step), len);
                let count = ((end - start) / len) as u32;
                PrefetchPlan { first, step, count, mark: first.offset / LINE_BYTES, read_bytes }
            }
        }
    }
}
