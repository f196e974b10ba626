//! The shard's calls for shares of volumes.

use super::{Shard, resize::resizer};
use crate::Slot;
use crate::index::{retained, shares};
use crate::line::meta::LineTable;
use crate::resize::lines_of;
use forebay_types::{PoolShare, VolumeId};

/// Slots that a tick examines to return retained lines to the policy.
const SLOTS_TRIMMED_MAX: Slot = 4096;

/// Sets the guaranteed and the largest share of a volume in a shard's lines, from the next request
/// on. The volume need not be served. If it has more lines than its largest share, ticks evict some
/// until it has not; dirty lines leave when they have been destaged. The dirty limits and the
/// numbers of retained lines follow.
pub fn set_pool_share<M: LineTable>(shard: &mut Shard<M>, volume: VolumeId, share: PoolShare) {
    let lines = lines_of(&shard.index);
    shares::set(&mut shard.index, volume, share, lines);
    resizer(shard).apply_size();
}

/// Sets the most lines of a volume that may be dirty in a shard, from the next request on; `None`
/// is the limit of the shard. Writers beyond it are throttled. A longer write goes through to the
/// disk.
pub fn set_dirty_lines_max<M: LineTable>(
    shard: &mut Shard<M>,
    volume: VolumeId,
    lines_max: Option<usize>,
) {
    shard.quota.set_lines_max(volume, lines_max);
}

/// The guaranteed lines of a volume in a shard at its present size, and the most that it may have;
/// `None` without a largest share.
pub fn pool_share_lines<M: LineTable>(shard: &Shard<M>, volume: VolumeId) -> (u64, Option<u64>) {
    shares::lines_of(&shard.index, volume)
}

/// Whether a volume has more lines than its share, or too many retained ones.
pub(super) fn needs_trim<M: LineTable>(shard: &Shard<M>) -> bool {
    shares::is_any_over(&shard.index) || retained::is_trimming(&shard.index)
}

/// Does some bounded work for such volumes.
pub(super) fn trim<M: LineTable>(shard: &mut Shard<M>) {
    retained::trim(&mut shard.index, SLOTS_TRIMMED_MAX);
    shares::trim(&mut shard.index);
}
