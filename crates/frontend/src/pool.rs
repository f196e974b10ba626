//! Access to the pool's memory for front ends: pinned replies, staged payloads, reservations.

use forebay_engine::Slot;
use forebay_types::{ByteRange, LINE_BYTES, Stripes, VolumeId};
use forebay_volume::{ReplySegment, staged_pieces};
use std::sync::Arc;

/// Access to the pool's memory, from any thread.
pub trait PoolAccess: Send + Sync + 'static {
    /// The address of a slot, constant while the pool exists.
    fn line(&self, shard: usize, slot: Slot) -> *mut u8;

    /// Releases the pins of replies, taking each shard's lock once.
    fn release(&self, segments: &[ReplySegment]);

    /// Releases staged slots of one shard.
    fn unstage(&self, shard: usize, slots: &[Slot]);

    /// The number of shards.
    fn shards(&self) -> usize;

    /// Releases memory that was reserved for incomplete payloads.
    fn end_reservation(&self, bytes: u64);
}

/// Slots that a payload is received into; released when dropped.
pub struct Staged {
    pool: Arc<dyn PoolAccess>,
    volume: (VolumeId, Stripes),
    range: ByteRange,
    slots: Vec<Slot>,
}

impl Staged {
    /// Takes over the slots that were staged for `range` of a volume with these stripes.
    pub const fn new(
        pool: Arc<dyn PoolAccess>,
        volume: (VolumeId, Stripes),
        range: ByteRange,
        slots: Vec<Slot>,
    ) -> Self {
        Self { pool, volume, range, slots }
    }

    /// Calls `each` with consecutive pieces of memory, from byte `from` of the payload on, until
    /// `each` returns false.
    pub fn each_piece(&self, from: usize, mut each: impl FnMut(*mut u8, usize) -> bool) {
        let shards = self.pool.shards();
        let mut skip = from;
        for (shard, piece, slots) in staged_pieces(self.volume, self.range, shards, &self.slots) {
            let mut at = piece.offset;
            for &slot in slots {
                let offset = (at % LINE_BYTES) as usize;
                let end = piece.end().min(at - at % LINE_BYTES + LINE_BYTES);
                let len = (end - at) as usize;
                at = end;
                if skip >= len {
                    skip -= len;
                    continue;
                }
                let start = self.pool.line(shard, slot).wrapping_add(offset + skip);
                if !each(start, len - skip) {
                    return;
                }
                skip = 0;
            }
        }
        debug_assert_eq!(skip, 0, "byte {from} is after the staged slots of {}", self.range);
    }

    /// Hands over the slots for the write.
    pub fn take(mut self) -> Vec<Slot> {
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let shards = self.pool.shards();
        for (shard, _, slots) in staged_pieces(self.volume, self.range, shards, &self.slots) {
            if !slots.is_empty() {
                self.pool.unstage(shard, slots);
            }
        }
    }
}

/// A share of the memory for incomplete payloads; released when dropped.
pub struct PayloadReservation {
    pool: Arc<dyn PoolAccess>,
    bytes: u64,
}

impl PayloadReservation {
    /// Takes over `bytes` that have been reserved.
    pub const fn new(pool: Arc<dyn PoolAccess>, bytes: u64) -> Self {
        Self { pool, bytes }
    }
}

impl Drop for PayloadReservation {
    fn drop(&mut self) {
        self.pool.end_reservation(self.bytes);
    }
}
