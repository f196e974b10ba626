//! Divides the memory limit among the pool and the other users of memory.

use crate::pool::SLAB_BYTES;
use crate::protect::journal::journal_bytes;
use crate::reactor::{RECEIVE_BUFFERS_MAX, RECEIVE_BYTES};
use forebay_types::limits::REQUEST_BYTES_MAX;

/// Memory of an idle process: code, heap, stacks.
const PROCESS_BYTES: u64 = 13 << 20;
/// Receive buffers and stack of one worker, with either reactor.
const WORKER_BYTES: u64 = (RECEIVE_BUFFERS_MAX as usize * RECEIVE_BYTES) as u64 + (1 << 19);
/// The maximum metadata per line, in addition to its data. The worst case is that two of three
/// lines are dirty, and none has a dirty neighbour: 64 bytes. Up to four more are for the
/// miss-ratio curves of the volumes.
const METADATA_BYTES_PER_LINE: u64 = 68;
/// More shards than this do not reduce lock contention further; a set of them fits one word.
const SHARDS_MAX: usize = 64;
/// Below this size, the worse eviction of a small shard outweighs the lower contention.
const SHARD_BYTES_MIN: u64 = 16 << 20;

/// The parts of the memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The limit of the process.
    pub limit_bytes: u64,
    /// Lines.
    pub pool_bytes: u64,
    /// Payloads of writes that are being received.
    pub payload_bytes: u64,
    /// Requests of all clients, without huge ones.
    pub request_bytes: u64,
    /// Huge requests: one of the largest, or several smaller ones.
    pub lane_bytes: u64,
    /// Free buffers kept for reuse.
    pub kept_bytes: u64,
    /// Shards of the pool, a power of two.
    pub shards: usize,
}

impl MemoryPlan {
    pub(crate) fn new(limit_bytes: u64, workers: usize, journals: usize) -> Self {
        let payload_bytes = (limit_bytes / 32).max(1 << 20);
        let kept_bytes = payload_bytes;
        let request_bytes = (limit_bytes / 32).max(2 << 20);
        let lane_bytes = REQUEST_BYTES_MAX;
        // While huge requests are served, few free buffers are kept, so the lane uses the memory
        // for these first. Only the rest of the lane reduces the pool, which matters only if the
        // pool is small.
        let huge_bytes = lane_bytes.saturating_sub(kept_bytes);
        let around = PROCESS_BYTES + WORKER_BYTES * workers as u64 + payload_bytes + kept_bytes;
        let around = around + request_bytes + huge_bytes + journals as u64 * journal_bytes(workers);
        let lines = limit_bytes.saturating_sub(around) / (4096 + METADATA_BYTES_PER_LINE);
        let pool_bytes = (lines * 4096 / SLAB_BYTES * SLAB_BYTES).max(SLAB_BYTES);
        let shards_max = (4 * workers).next_power_of_two().min(SHARDS_MAX) as u64;
        let shards = (pool_bytes / SHARD_BYTES_MIN).clamp(1, shards_max);
        // Rounded down to a power of two.
        let shards = 1 << shards.ilog2();
        Self {
            limit_bytes,
            pool_bytes,
            payload_bytes,
            request_bytes,
            lane_bytes,
            kept_bytes,
            shards,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_fit_the_limit() {
        for mib in [32u64, 64, 100, 512, 4096, 65536] {
            for workers in [1usize, 2, 16] {
                let limit = mib << 20;
                let plan = MemoryPlan::new(limit, workers, 0);
                let around = PROCESS_BYTES
                    + WORKER_BYTES * workers as u64
                    + plan.payload_bytes
                    + plan.request_bytes
                    + plan.lane_bytes.max(plan.kept_bytes);
                let metadata = plan.pool_bytes / 4096 * METADATA_BYTES_PER_LINE;
                let floor = plan.pool_bytes == SLAB_BYTES;
                assert!(floor || plan.pool_bytes + metadata + around <= limit, "{mib} {workers}");
                assert!(plan.shards.is_power_of_two());
                assert!(plan.pool_bytes / plan.shards as u64 >= SLAB_BYTES);
            }
        }
    }
}
