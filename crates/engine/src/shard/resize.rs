//! The shard's calls that give memory back and take it again.

use super::Shard;
use crate::index::retained::ShardParts;
use crate::index::slabs::slabs_mut;
use crate::line::meta::LineTable;
use crate::resize::{ResizeStep, ShardResizer};
use crate::{Outbox, ShardConfig, Slab};
use forebay_types::WriteShare;

impl<M: LineTable> Shard<M> {
    /// Sets the number of lines that the shard may hold: whole slabs, rounded down, but at least
    /// one. [`Shard::step_resize`] carries it out. A call while a resize is in progress changes its
    /// target. The dirty limit and the policy's parameters are scaled to the size.
    pub fn resize(&mut self, lines: usize) {
        resizer(self).set_target(lines);
    }

    /// Does some bounded work of a resize. The only requests in the outbox are memory steps. The
    /// driver carries them out and calls [`Shard::finish_call`] before any other call.
    pub fn step_resize(&mut self, out: &mut Outbox) -> ResizeStep {
        assert!(self.index.is_call_finished(), "the last call was not finished");
        resizer(self).step(out)
    }

    /// Records that the memory of an empty slab has been given back; see [`ResizeStep::Empty`].
    ///
    /// # Panics
    /// If the slab was not reported as empty.
    pub fn gave_back(&mut self, slab: Slab) {
        slabs_mut(&mut self.index).gave_back(slab);
    }
}

/// The limits that would apply in a shard of `lines` lines with this share for dirty lines.
pub fn limits_of_size<M: LineTable>(
    shard: &Shard<M>,
    share: Option<WriteShare>,
    lines: usize,
) -> ShardConfig {
    let parts = ShardParts::of(&shard.index, lines).beside_pins(&shard.index);
    shard.quota.limits_at(share, lines - parts.retained)
}

pub(super) const fn resizer<M>(shard: &mut Shard<M>) -> ShardResizer<'_, M> {
    let Shard { volumes, quota, index, ops, integrity, planted, .. } = shard;
    ShardResizer { volumes, quota, index, ops, integrity, planted: *planted }
}
