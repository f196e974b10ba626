//! The shard's calls for pinned ranges.

use super::{Shard, resize::resizer};
use crate::Slot;
use crate::index::retained::{follow_pins, set_pinned};
use crate::line::key::LineKey;
use crate::line::meta::{DETACHED, LineTable};
use forebay_types::{PinnedRanges, VolumeId};
use std::sync::Arc;

/// Changes which lines are pinned. Borrowed from [`Shard::pinned`].
pub struct Pinned<'a, M>(&'a mut Shard<M>);

impl<M: LineTable> Shard<M> {
    /// The pinned ranges, to be changed.
    pub const fn pinned(&mut self) -> Pinned<'_, M> {
        Pinned(self)
    }
}

impl<M: LineTable> Pinned<'_, M> {
    /// Sets the pinned ranges of a volume, of which this shard owns `owned_lines` lines. Lines that
    /// enter the pool from now on follow them; call [`Pinned::follow`] for those that are in it.
    /// The dirty limits and the policy's parameters are scaled to the rest of the shard, so that
    /// there are always clean lines that can be evicted.
    pub fn set(&mut self, volume: VolumeId, ranges: &Arc<PinnedRanges>, owned_lines: u64) {
        set_pinned(&mut self.0.index, volume, ranges, owned_lines);
        resizer(self.0).apply_size();
    }

    /// Makes the resident lines of a volume in `count` slots from `first` on follow its pinned
    /// ranges. Returns the next slot, or `None` at the end. The driver unlocks the shard between
    /// calls, because a large pool takes long to scan.
    pub fn follow(&mut self, volume: VolumeId, first: Slot, count: Slot) -> Option<Slot> {
        let index = &mut self.0.index;
        let end = index.used();
        let next = first.saturating_add(count).min(end);
        for slot in first..next {
            let line = index.get(slot);
            if line.key != LineKey::NONE && !line.has(DETACHED) && line.key.volume() == volume {
                follow_pins(index, slot);
            }
        }
        (next < end).then_some(next)
    }
}
