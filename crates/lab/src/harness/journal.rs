//! What the journals of the simulated machines share.

use super::oracle::ZERO;
use super::shard::PooledShard;
use forebay_engine::{Answer, JournalOp, JournalRequest};
use forebay_format::journal::{Geometry, LOG_OFFSET};
use forebay_journal::Piece;
use forebay_protect::JournalState;
use forebay_types::SECTOR_BYTES;
use forebay_volume::RequestKind;

/// The log of the smallest machines.
pub(crate) const GEOMETRY: Geometry = Geometry { segment_bytes: 16 << 10, segments: 8 };
/// The size of its device.
pub(crate) const SIZE_BYTES: u64 = LOG_OFFSET + GEOMETRY.log_bytes();
const BUFFER_BYTES: usize = 16 << 10;
const BUFFERS: usize = 3;

/// The buffers of that log.
pub(crate) fn buffers() -> Vec<Vec<u8>> {
    vec![vec![0; BUFFER_BYTES]; BUFFERS]
}

/// Carries out a request about volume `number`, with the bytes of its slots.
pub(crate) fn record(
    journal: &mut JournalState<Vec<u8>>,
    number: u16,
    request: &JournalRequest,
    payload: &[u8],
    shard: &PooledShard,
) -> Option<Answer> {
    let in_slots;
    let bytes = match &request.kind {
        JournalOp::Write { slots, .. } if !slots.is_empty() => {
            in_slots = shard.bytes_of(slots, request.range);
            &in_slots
        }
        _ => payload,
    };
    journal.record(number, request, std::iter::once(bytes))
}

/// A piece that a start restores, with the stamps of its sectors.
pub(crate) type Restored = (Piece, Vec<u64>);

/// Reads a piece from a log, of which `stamp_at` reads the sector at a position.
pub(crate) fn read_piece(piece: Piece, stamp_at: impl Fn(u64) -> u64) -> Restored {
    let offsets = (0..piece.range.len).step_by(SECTOR_BYTES as usize);
    let stamp = |offset| piece.position.map_or(ZERO, |position| stamp_at(position + offset));
    (piece, offsets.map(stamp).collect())
}

/// The request that restores a piece.
pub(crate) const fn request_of(piece: &Piece) -> RequestKind {
    match piece.position {
        Some(_) => RequestKind::Restore,
        None => RequestKind::RestoreZero { unmap: true },
    }
}
