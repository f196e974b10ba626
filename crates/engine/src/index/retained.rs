//! Retained lines: the resident lines of pinned ranges.
//!
//! A retained line is not in the queues of the eviction policy, so the policy neither evicts it nor
//! spends time on it. It enters the policy, as a new line, when its range is unpinned. In all other
//! respects it is like any line: writes, trims, a change of mode and memory damage may change or
//! drop it, and it is retained again when it is next filled.
//!
//! A shard retains up to five eighths of the lines that it may hold, so that others can always be
//! cached; pinned lines beyond that stay in the policy. If a shard shrinks so far that it retains
//! too many lines, it returns some to the policy first ([`trim`]); the others move to slabs that
//! stay (`resize`).

use crate::index::Slots;
use crate::line::meta::{DETACHED, LineTable, RETAINED};
use crate::{LineKey, LineMeta, Slot};
use forebay_policy::Hint;
use forebay_types::{PinnedRanges, VolumeId};
use std::sync::Arc;

/// The maximum number of retained lines in a shard that may hold `lines` lines.
pub const fn retained_lines_max(lines: usize) -> usize {
    lines / 8 * 5 + lines % 8 / 2
}

/// The pinned ranges of a volume.
#[derive(Debug, Default)]
struct PinnedVolume {
    ranges: Arc<PinnedRanges>,
    /// Lines of the ranges that this shard owns.
    owned_lines: u64,
    retained_lines: u64,
}

/// The pinned ranges of all volumes, and how many of their lines are retained.
#[derive(Debug)]
pub(crate) struct Retained {
    /// Indexed by the number of the volume; nothing is pinned beyond the end.
    volumes: Vec<PinnedVolume>,
    lines: usize,
    lines_max: usize,
    /// The slot at which [`trim`] continues.
    hand: Slot,
}

impl Retained {
    pub(crate) const fn new(slots: usize) -> Self {
        Self { volumes: Vec::new(), lines: 0, lines_max: retained_lines_max(slots), hand: 0 }
    }

    /// Whether a line is of a pinned range.
    fn is_pinned(&self, key: LineKey) -> bool {
        let volume = self.volumes.get(usize::from(key.volume().0));
        volume.is_some_and(|volume| volume.ranges.contains(key.line()))
    }

    /// Counts a line as retained if it is of a pinned range and fewer lines than the maximum are
    /// retained. Returns whether it is counted.
    pub(crate) fn admit(&mut self, key: LineKey) -> bool {
        let is_admitted = self.lines < self.lines_max && self.is_pinned(key);
        if is_admitted {
            self.lines += 1;
            self.volumes[usize::from(key.volume().0)].retained_lines += 1;
        }
        is_admitted
    }

    /// Retained lines of a volume.
    pub(crate) fn lines_of(&self, volume: VolumeId) -> u64 {
        let volume = self.volumes.get(usize::from(volume.0));
        volume.map_or(0, |volume| volume.retained_lines)
    }

    /// Counts a line that is no longer retained.
    pub(crate) fn remove(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[usize::from(volume.0)];
        assert!(volume.retained_lines > 0, "more lines were removed than retained");
        volume.retained_lines -= 1;
        self.lines -= 1;
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.volumes.capacity() * size_of::<PinnedVolume>()
    }
}

/// Sets the pinned ranges of a volume, of which this shard owns `owned_lines` lines. Applies to
/// lines that enter the pool from now on.
pub(crate) fn set_pinned<M>(
    slots: &mut Slots<M>,
    volume: VolumeId,
    ranges: &Arc<PinnedRanges>,
    owned_lines: u64,
) {
    let volumes = &mut slots.retained.volumes;
    let at = usize::from(volume.0);
    if volumes.len() <= at {
        volumes.resize_with(at + 1, PinnedVolume::default);
    }
    volumes[at].ranges = Arc::clone(ranges);
    volumes[at].owned_lines = owned_lines;
}

/// Sets how many lines the shard may hold. Returns how many lines may be retained in it, as by
/// [`retained_of`]. If more are retained, the caller must call [`trim`].
pub(crate) fn set_lines<M>(slots: &mut Slots<M>, lines: usize) -> usize {
    slots.retained.lines_max = retained_lines_max(lines);
    retained_of(slots, lines)
}

/// The number of lines that the pinned ranges of all volumes may take in a shard that may hold
/// `lines` lines.
pub(crate) fn retained_of<M>(slots: &Slots<M>, lines: usize) -> usize {
    let owned_lines = slots.retained.volumes.iter().map(|volume| volume.owned_lines).sum::<u64>();
    retained_lines_max(lines).min(usize::try_from(owned_lines).unwrap_or(usize::MAX))
}

/// Whether a line is of a pinned range.
pub(crate) fn is_pinned<M>(slots: &Slots<M>, key: LineKey) -> bool {
    slots.retained.is_pinned(key)
}

/// Whether the line in a slot is retained, and still of a pinned range.
pub(crate) fn is_retained<M: LineTable>(slots: &Slots<M>, slot: Slot) -> bool {
    let line = slots.get(slot);
    line.has(RETAINED) && slots.retained.is_pinned(line.key)
}

/// Retains a resident line if it is of a pinned range, and returns it to the policy if not.
pub(crate) fn follow_pins<M: LineTable>(slots: &mut Slots<M>, slot: Slot) {
    let line = *slots.get(slot);
    match (line.has(RETAINED), slots.retained.is_pinned(line.key)) {
        (false, true) if slots.retained.admit(line.key) => {
            slots.policy.on_remove(slot);
            slots.get_mut(slot).flags |= RETAINED;
        }
        (true, false) => release(slots, slot),
        _ => {}
    }
}

/// Returns a retained line to the policy.
fn release<M: LineTable>(slots: &mut Slots<M>, slot: Slot) {
    let key = slots.get(slot).key;
    slots.retained.remove(key.volume());
    slots.get_mut(slot).flags &= !RETAINED;
    slots.policy.on_insert(slot, key.hash(), Hint::Normal);
}

/// Returns lines to the policy if more are retained than may be. Examines up to `slots_max` slots.
/// Returns false if there are still too many.
pub(crate) fn trim<M: LineTable>(slots: &mut Slots<M>, slots_max: Slot) -> bool {
    for _ in 0..slots_max {
        if slots.retained.lines <= slots.retained.lines_max {
            return true;
        }
        let slot = slots.retained.hand;
        slots.retained.hand = (slot + 1) % slots.used();
        if slots.get(slot).has(RETAINED) {
            release(slots, slot);
        }
    }
    slots.retained.lines <= slots.retained.lines_max
}

/// Panics if the numbers of retained lines are wrong.
pub(super) fn check<M: LineTable>(slots: &Slots<M>) {
    let is_retained = |line: &&LineMeta| line.volume().is_some() && line.has(RETAINED);
    let retained = &slots.retained;
    let mut found = vec![0; retained.volumes.len()];
    for line in slots.table().iter().filter(is_retained) {
        assert!(!line.has(DETACHED), "a slot without a line is retained: {line:?}");
        found[usize::from(line.key.volume().0)] += 1;
    }
    let counted = retained.volumes.iter().map(|volume| volume.retained_lines);
    assert!(counted.eq(found.iter().copied()), "retained lines of each volume: {found:?}");
    assert_eq!(found.iter().sum::<u64>(), retained.lines as u64, "all retained lines");
    let is_trimmed = retained.lines <= retained.lines_max || slots.slabs.is_resizing();
    assert!(is_trimmed, "too many lines are retained");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_retains_up_to_five_eighths_of_its_lines() {
        let max = [1, 2, 4, 7, 8, 9, 16, 4096].map(retained_lines_max);
        assert_eq!(max, [0, 1, 2, 3, 5, 5, 10, 2560]);
        let largest = retained_lines_max(crate::SLOTS_MAX);
        assert!(largest * 8 <= crate::SLOTS_MAX * 5);
    }
}
