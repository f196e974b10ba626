//! Retained lines: the resident lines of pinned ranges.
//!
//! A retained line is not in the queues of the eviction policy, so the policy neither evicts it nor
//! spends time on it. It enters the policy, as a new line, when its range is unpinned. In all other
//! respects it is like any line: writes, trims, a change of mode and memory damage may change or
//! drop it, and it is retained again when it is next filled.
//!
//! A shard retains up to five eighths of the lines that it may hold, so that others can always be
//! cached; pinned lines beyond that stay in the policy. The same proportion applies to the lines of
//! each guaranteed share, which retained lines of its volume fill first, to those that no volume is
//! guaranteed, and to a volume's largest share. If a limit falls below the number of retained
//! lines, also because the shard shrinks, some return to the policy ([`trim`]); the others move to
//! slabs that stay (`resize`).

use crate::index::shares::ShareLines;
use crate::index::{Slots, shares};
use crate::line::meta::{DETACHED, LineTable, RETAINED};
use crate::{LineKey, LineMeta, Slot};
use forebay_policy::Hint;
use forebay_types::{PinnedRanges, PoolShare, VolumeId};
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
    /// Lines that may be retained within its guaranteed share, and in all.
    own_lines_max: u64,
    lines_max: u64,
}

impl PinnedVolume {
    /// Retained lines beyond those in its guaranteed share.
    const fn common_lines(&self) -> u64 {
        self.retained_lines.saturating_sub(self.own_lines_max)
    }
}

/// The pinned ranges of all volumes, and how many of their lines are retained.
#[derive(Debug)]
pub(crate) struct Retained {
    /// Indexed by the number of the volume; nothing is pinned beyond the end.
    volumes: Vec<PinnedVolume>,
    lines: usize,
    /// Retained lines beyond those in guaranteed shares, and their maximum.
    common_lines: u64,
    common_lines_max: u64,
    /// Whether more lines may be retained than the limits allow, because these became lower.
    is_trimming: bool,
    /// The slot at which [`trim`] continues.
    hand: Slot,
}

impl Retained {
    pub(crate) const fn new(slots: usize) -> Self {
        Self {
            volumes: Vec::new(),
            lines: 0,
            common_lines: 0,
            common_lines_max: retained_lines_max(slots) as u64,
            is_trimming: false,
            hand: 0,
        }
    }

    /// Whether a line is of a pinned range.
    fn is_pinned(&self, key: LineKey) -> bool {
        let volume = self.volumes.get(usize::from(key.volume().0));
        volume.is_some_and(|volume| volume.ranges.contains(key.line()))
    }

    /// Counts a line as retained if it is of a pinned range and fewer lines than the maximum are
    /// retained. Returns whether it is counted.
    pub(crate) fn admit(&mut self, key: LineKey) -> bool {
        if !self.is_pinned(key) {
            return false;
        }
        let volume = &mut self.volumes[usize::from(key.volume().0)];
        let is_own = volume.retained_lines < volume.own_lines_max;
        let has_room = is_own || self.common_lines < self.common_lines_max;
        let is_admitted = has_room && volume.retained_lines < volume.lines_max;
        if is_admitted {
            volume.retained_lines += 1;
            self.lines += 1;
            self.common_lines += u64::from(!is_own);
        }
        is_admitted
    }

    /// Whether a line of a volume must return to the policy.
    fn is_too_many(&self, volume: VolumeId) -> bool {
        let of = &self.volumes[usize::from(volume.0)];
        let is_over = self.common_lines > self.common_lines_max;
        of.retained_lines > of.lines_max || is_over && of.common_lines() > 0
    }

    /// Whether no line must return to the policy.
    fn is_trimmed(&self) -> bool {
        self.common_lines <= self.common_lines_max
            && self.volumes.iter().all(|of| of.retained_lines <= of.lines_max)
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
        self.common_lines -= u64::from(volume.common_lines() > 0);
        volume.retained_lines -= 1;
        self.lines -= 1;
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.volumes.capacity() * size_of::<PinnedVolume>()
    }
}

/// Sets the pinned ranges of a volume, of which this shard owns `owned_lines` lines. Applies to
/// lines that enter the pool from now on. The caller then calls [`set_lines`].
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

/// Sets how many lines the shard may hold. If more are retained than may be, the caller must call
/// [`trim`] until it returns true.
pub(crate) fn set_lines<M>(slots: &mut Slots<M>, lines: usize) {
    let parts = ShardParts::of(slots, lines);
    let retained = &mut slots.retained;
    for of in &mut retained.volumes {
        (of.own_lines_max, of.lines_max) = (0, u64::MAX);
    }
    for &(volume, share) in &parts.shares {
        let Some(of) = retained.volumes.get_mut(usize::from(volume.0)) else { continue };
        of.own_lines_max = retained_lines_max(share.lines_min(lines)) as u64;
        let max = share.lines_max(lines).map(|max| retained_lines_max(max) as u64);
        of.lines_max = max.unwrap_or(u64::MAX);
    }
    retained.common_lines_max = retained_lines_max(parts.common) as u64;
    retained.common_lines = retained.volumes.iter().map(PinnedVolume::common_lines).sum();
    retained.is_trimming = !retained.is_trimmed();
}

/// Whether lines must return to the policy.
pub(crate) const fn is_trimming<M>(slots: &Slots<M>) -> bool {
    slots.retained.is_trimming
}

/// The parts of a shard that may hold some lines: the guaranteed shares, and the common part.
pub(crate) struct ShardParts {
    /// Lines of the shard.
    lines: usize,
    /// Lines that no volume is guaranteed.
    common: usize,
    shares: Vec<(VolumeId, PoolShare)>,
}

/// The lines of the parts of a shard that pinned ranges leave.
pub(crate) struct FreeParts {
    /// The lines that pinned ranges may take in the whole shard.
    pub retained: usize,
    /// The lines of each volume that has shares.
    pub shares: Vec<(VolumeId, ShareLines)>,
}

impl ShardParts {
    pub(crate) fn of<M>(slots: &Slots<M>, lines: usize) -> Self {
        let shares: Vec<_> = shares::all(slots).collect();
        let guaranteed: usize = shares.iter().map(|(_, share)| share.lines_min(lines)).sum();
        Self { lines, common: lines.saturating_sub(guaranteed), shares }
    }

    /// What the pinned ranges of all volumes leave of the parts. They fill the guaranteed share of
    /// their volume first.
    pub(crate) fn beside_pins<M>(&self, slots: &Slots<M>) -> FreeParts {
        let mut owned: Vec<usize> = slots
            .retained
            .volumes
            .iter()
            .map(|of| usize::try_from(of.owned_lines).unwrap_or(usize::MAX))
            .collect();
        let (mut shares, mut retained) = (Vec::new(), 0);
        for &(volume, share) in &self.shares {
            let owned = owned.get_mut(usize::from(volume.0));
            let (min, max) = (share.lines_min(self.lines), share.lines_max(self.lines));
            let pinned = owned.as_ref().map_or(0, |owned| **owned);
            let pinned = max.map_or(pinned, |max| pinned.min(retained_lines_max(max)));
            let own = pinned.min(retained_lines_max(min));
            if let Some(owned) = owned {
                *owned = pinned - own;
            }
            retained += own;
            let max = max.map(|max| max - pinned);
            shares.push((volume, ShareLines { min: min - own, max }));
        }
        let owned = owned.iter().fold(0usize, |sum, &owned| sum.saturating_add(owned));
        let common = retained_lines_max(self.common).min(owned);
        FreeParts { retained: retained + common, shares }
    }
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
        slots.retained.is_trimming &= !slots.retained.is_trimmed();
        if !slots.retained.is_trimming {
            return true;
        }
        let slot = slots.retained.hand;
        slots.retained.hand = (slot + 1) % slots.used();
        let line = slots.get(slot);
        if line.has(RETAINED) && slots.retained.is_too_many(line.key.volume()) {
            release(slots, slot);
        }
    }
    slots.retained.is_trimming &= !slots.retained.is_trimmed();
    !slots.retained.is_trimming
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
    let common: u64 = retained.volumes.iter().map(PinnedVolume::common_lines).sum();
    assert_eq!(common, retained.common_lines, "retained lines beyond guaranteed shares");
    assert!(retained.is_trimmed() || retained.is_trimming, "too many lines are retained");
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
