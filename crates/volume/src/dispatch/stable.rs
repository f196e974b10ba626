//! Flushes of the disk that precede an acknowledgement although the client did not request them.

use super::Dispatcher;
use crate::job::FlushStage;
use crate::{Host, JobId, Request, RequestKind};
use forebay_engine::Protection;

impl<H: Host> Dispatcher<H> {
    /// Requests a flush of the disk before zeroes are acknowledged while the UPS is not safe.
    /// Zeroes bypass the pool, and stay in the disk's volatile cache until it is flushed. Writes
    /// need no such flush, because they have FUA in this state.
    pub(super) fn flush_unsafe_zeroes(&mut self, host: &mut H, id: JobId) {
        let job = self.jobs.get_mut(id);
        let Request { kind, volume, .. } = job.request;
        let is_zeroed = matches!(kind, RequestKind::Zero { .. }) && job.error.is_none();
        if !is_zeroed
            || job.flush != FlushStage::NotNeeded
            || host.protection(volume) != Protection::None
        {
            return;
        }
        // All shards have the same setting.
        let is_promised =
            host.call(0, &[], &mut self.out, |shard, _| shard.promises_stable(volume));
        if is_promised {
            self.jobs.get_mut(id).flush = FlushStage::Due;
        }
    }
}
