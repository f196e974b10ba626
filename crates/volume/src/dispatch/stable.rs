//! What is on stable storage before it is acknowledged, although its client did not ask for that.

use super::Dispatcher;
use crate::job::FlushStage;
use crate::{Host, JobId, Request, RequestKind};
use forebay_engine::Protection;

impl<H: Host> Dispatcher<H> {
    /// Zeroes go past the pool, so a UPS covers them only until the disk's cache is flushed. While
    /// it is not safe, they are flushed before they are acknowledged, as a write has FUA then.
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
        // Each shard knows what the volume promises.
        let promised = host.call(0, &[], &mut self.out, |shard, _| shard.promises_stable(volume));
        if promised {
            self.jobs.get_mut(id).flush = FlushStage::Due;
        }
    }
}
