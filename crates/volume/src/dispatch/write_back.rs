//! Write-back in the background: the shards' clocks, and how they wake each other.

use super::Dispatcher;
use crate::Host;

/// Shards that are woken after one call, at most.
const WAKES_MAX: usize = 256;

impl<H: Host> Dispatcher<H> {
    /// A shard's clock has moved on.
    pub fn tick(&mut self, host: &mut H, shard: usize) {
        let now_ms = host.now_ms();
        host.call(shard, &[], &mut self.out, |shard, out| shard.tick(now_ms, out));
        self.settle(host, shard);
        self.settle_answers(host);
    }

    /// Wakes the shards that are to go on with writing back. They wake each other, while others may
    /// do the same; what is left is done with the next tick.
    pub(super) fn wake_shards(&mut self, host: &mut H) {
        for _ in 0..WAKES_MAX {
            let Some((shard, volume)) = self.wakes.pop() else { return };
            let now_ms = host.now_ms();
            host.call(shard, &[], &mut self.out, |shard, out| shard.wake(volume, now_ms, out));
            self.settle(host, shard);
        }
        self.wakes.clear();
    }
}
