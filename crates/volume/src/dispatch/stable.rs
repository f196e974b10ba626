//! Flushes before an acknowledgement that the client did not request.

use super::Dispatcher;
use crate::job::FlushStage;
use crate::{Host, JobId, Request, RequestKind};
use forebay_engine::Protection;

impl<H: Host> Dispatcher<H> {
    /// Has the disk flushed before zeroes are acknowledged, while the UPS is not safe. Zeroes
    /// bypass the pool and stay in the disk's volatile cache until it is flushed. Writes have FUA
    /// then.
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
