//! Background writeback: the ticks of the shards, and how shards wake each other.

use super::Dispatcher;
use crate::Host;

/// Limit of shards woken after one call.
const WAKES_MAX: usize = 256;

impl<H: Host> Dispatcher<H> {
    /// Starts the background destages of a shard that are due.
    pub fn tick(&mut self, host: &mut H, shard: usize) {
        let now_ms = host.now_ms();
        host.call(shard, &[], &mut self.out, |shard, out| shard.tick(now_ms, out));
        self.drain_outbox(host, shard);
        self.process_answers(host);
    }

    /// Wakes the shards in which an elevator continues. Shards may wake each other endlessly, so
    /// the number of wakes is limited; the shards beyond the limit continue at their next tick.
    pub(super) fn wake_shards(&mut self, host: &mut H) {
        for _ in 0..WAKES_MAX {
            let Some((shard, volume)) = self.wakes.pop() else { return };
            let now_ms = host.now_ms();
            host.call(shard, &[], &mut self.out, |shard, out| shard.wake(volume, now_ms, out));
            self.drain_outbox(host, shard);
        }
        self.wakes.clear();
    }
}
