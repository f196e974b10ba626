//! Write-back in the background: the shards' clocks, and the turns that they pass on.

use super::Dispatcher;
use crate::Host;

/// Turns that follow from one call, at most.
const TURNS_MAX: usize = 256;

impl<H: Host> Dispatcher<H> {
    /// A shard's clock has moved on.
    pub fn tick(&mut self, host: &mut H, shard: usize) {
        let now_ms = host.now_ms();
        host.call(shard, &[], &mut self.out, |shard, out| shard.tick(now_ms, out));
        self.settle(host, shard);
        self.settle_answers(host);
    }

    /// Tells shards whose turn it is to write back. They pass it on among themselves, while others
    /// may do the same; what is left is done with the next tick.
    pub(super) fn give_turns(&mut self, host: &mut H) {
        for _ in 0..TURNS_MAX {
            let Some((shard, volume)) = self.turns.pop() else { return };
            let now_ms = host.now_ms();
            host.call(shard, &[], &mut self.out, |shard, out| shard.take_turn(volume, now_ms, out));
            self.settle(host, shard);
        }
        self.turns.clear();
    }
}
