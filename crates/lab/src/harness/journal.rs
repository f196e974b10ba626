//! What the journals of the simulated machines share.

use super::shard::PooledShard;
use forebay_engine::{Answer, JournalOp, JournalRequest};
use forebay_journal::{Extent, Source};
use forebay_protect::JournalState;
use forebay_types::{ByteRange, SECTOR_BYTES, Stripes};
use forebay_volume::RequestKind;

/// Records a note about volume `number`, with the bytes of its slots.
pub(crate) fn record(
    journal: &mut JournalState<Vec<u8>>,
    number: u16,
    note: &JournalRequest,
    payload: &[u8],
    shard: &PooledShard,
) -> Option<Answer> {
    let in_slots;
    let bytes = match &note.kind {
        JournalOp::Write { slots, .. } if !slots.is_empty() => {
            in_slots = shard.bytes_of(slots, note.range);
            &in_slots
        }
        _ => payload,
    };
    journal.record(number, note, std::iter::once(bytes))
}

/// A part of an extent that one request restores.
pub(crate) struct Piece {
    pub kind: RequestKind,
    pub range: ByteRange,
    pub stamps: Vec<u64>,
}

/// The pieces of an extent with this content, split at stripes.
pub(crate) fn pieces(extent: &Extent, mut stamps: &[u64], stripes: Stripes) -> Vec<Piece> {
    let kind = match extent.source {
        Source::Write { .. } => RequestKind::Restore,
        Source::Zero { unmap } => RequestKind::RestoreZero { unmap },
        // A trim guarantees nothing that would have to be restored.
        Source::Discard => return Vec::new(),
    };
    let piece = |range: ByteRange| {
        let (now, later) = stamps.split_at((range.len / SECTOR_BYTES) as usize);
        stamps = later;
        Piece { kind, range, stamps: now.to_vec() }
    };
    stripes.split(extent.range).map(piece).collect()
}
