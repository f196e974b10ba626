//! What the miniatures of the eviction policy are told: the accesses and arrivals of lines, but not
//! those of pinned ranges, which are in the pool at any size.

use super::Slots;
use super::retained::is_pinned;
use crate::LineKey;
use crate::line::meta::LineTable;
use forebay_policy::{Hint, LineAccess, Miniatures, ReadKind, SizeCounts};

/// The miniatures of a shard.
pub(crate) const fn miniatures<M>(slots: &Slots<M>) -> &Miniatures {
    &slots.miniatures
}

/// A client accesses a line, which may be sampled. Returns how it was read, if it is.
pub(crate) fn sample_access<M: LineTable>(
    slots: &mut Slots<M>,
    key: LineKey,
    (hint, admits, is_deferred): (Hint, bool, bool),
    counts: &mut SizeCounts,
) -> Option<ReadKind> {
    if !slots.miniatures.samples(key.hash()) || is_pinned(slots, key) {
        return None;
    }
    // A line that is being filled has no valid sectors yet.
    let is_hit = slots.line(key).valid != 0;
    let was_ahead = slots.first_uses.take(key);
    let dirty_share = (hint == Hint::Write && is_deferred)
        .then(|| slots.dirty.len() as f64 / f64::from(slots.slabs.usable().max(1)));
    let access = LineAccess { hint, is_hit, was_ahead, admits, dirty_share };
    slots.miniatures.access(key.hash(), access, counts)
}

/// A client reads a line, which may be sampled, for the first time after it was read ahead. The
/// call that records this records the access, too.
pub(crate) fn sample_first_use<M>(slots: &mut Slots<M>, key: LineKey) {
    if slots.miniatures.samples(key.hash()) {
        slots.first_uses.0[place_of(key)] = key;
    }
}

/// The first uses of sampled lines in the current call: each at the place that its hash selects,
/// so that in the longest read, some of the same place are forgotten.
pub(crate) struct FirstUses([LineKey; 32]);

impl FirstUses {
    pub(super) const NONE: Self = Self([LineKey::NONE; 32]);

    fn take(&mut self, key: LineKey) -> bool {
        let place = &mut self.0[place_of(key)];
        let is_first = *place == key;
        if is_first {
            *place = LineKey::NONE;
        }
        is_first
    }
}

const fn place_of(key: LineKey) -> usize {
    key.hash() as usize % 32
}

/// A line was read in sequence with others, or not.
pub(crate) fn set_in_sequence<M>(slots: &mut Slots<M>, hash: u64, is_in_sequence: bool) {
    slots.miniatures.set_in_sequence(hash, is_in_sequence);
}

/// A stream reads a line ahead, or passes over it.
pub(crate) fn sample_prefetch<M>(slots: &mut Slots<M>, key: LineKey) {
    if slots.miniatures.samples(key.hash()) && !is_pinned(slots, key) {
        slots.miniatures.prefetch(key.hash());
    }
}

/// A line is preloaded.
pub(crate) fn sample_preload<M>(slots: &mut Slots<M>, key: LineKey, hint: Hint) {
    if slots.miniatures.samples(key.hash()) && !is_pinned(slots, key) {
        slots.miniatures.preload(key.hash(), hint);
    }
}

/// A line is erased, or written past the pool.
pub(crate) fn sample_removal<M>(slots: &mut Slots<M>, key: LineKey) {
    slots.miniatures.remove(key.hash());
}

/// The shard may hold `lines` lines, of which the policy does not evict `retained`. Returns how
/// many times the former number that is.
pub(crate) fn resize_miniatures<M>(slots: &mut Slots<M>, lines: usize, retained: usize) -> f64 {
    slots.miniatures.set_lines(lines, retained)
}
