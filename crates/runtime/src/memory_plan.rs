//! Divides the memory limit among the pool and the other users of memory.

use crate::budget::PIECE_BYTES;
use crate::journal::journal_bytes;
use crate::platform::reactor::{RECEIVE_BUFFERS_MAX, RECEIVE_BYTES};
use crate::pool::SLAB_BYTES;
use forebay_policy::Miniatures;
use forebay_types::LINE_BYTES;
use forebay_types::limits::REQUEST_BYTES_MAX;

/// Memory of an idle process: code, heap, stacks.
const PROCESS_BYTES: u64 = 13 << 20;
/// Receive buffers and stack of one worker, with either reactor.
const WORKER_BYTES: u64 = (RECEIVE_BUFFERS_MAX as usize * RECEIVE_BYTES) as u64 + (1 << 19);
/// The maximum metadata per line, in addition to its data. The worst case is that two of three
/// lines are dirty, and none has a dirty neighbour: 64 bytes. Up to four more are for the
/// miss-ratio curves of the volumes. The miniatures of the eviction policy are not included: their
/// size depends on that of the shards.
const METADATA_BYTES_PER_LINE: u64 = 68;
/// More shards than this do not reduce lock contention further; a set of shards fits one word.
const SHARDS_MAX: usize = 64;
/// Below this size, the worse eviction of a small shard outweighs the lower contention.
const SHARD_BYTES_MIN: u64 = 16 << 20;

/// From this memory on, huge requests are served whole: beyond the kept buffers, memory for the
/// largest one takes about 3 % of it. With less, they are served in pieces: a single huge request
/// would take half of a memory of 64 MiB.
const WHOLE_REQUESTS_BYTES_MIN: u64 = 512 << 20;
/// The smallest lane for pieces of huge requests: two pieces, so that one can be sent to a slow
/// client while another client is served.
const LANE_BYTES_MIN: u64 = 2 * PIECE_BYTES;
/// The share of the memory for pieces of huge requests.
const LANE_SHARE: u64 = 64;

/// The parts of the memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The limit of the process.
    pub limit_bytes: u64,
    /// The memory with which the process begins.
    pub start_bytes: u64,
    /// Lines.
    pub pool_bytes: u64,
    /// Payloads of writes that are being received.
    pub payload_bytes: u64,
    /// Requests of all clients, without huge ones.
    pub request_bytes: u64,
    /// Huge requests: one of the largest or several smaller ones, or pieces of them if there is
    /// little memory.
    pub lane_bytes: u64,
    /// Free buffers kept for reuse.
    pub kept_bytes: u64,
    /// Shards of the pool, a power of two.
    pub shards: usize,
}

impl MemoryPlan {
    /// Divides `limit_bytes`. The process begins with `start_bytes`, from which the memory for
    /// requests follows; the rest is for lines that it may have later.
    pub(crate) fn new(limit_bytes: u64, start_bytes: u64, workers: usize, journals: usize) -> Self {
        let start_bytes = start_bytes.min(limit_bytes);
        let payload_bytes = (start_bytes / 32).max(1 << 20);
        let kept_bytes = payload_bytes;
        let request_bytes = (start_bytes / 32).max(2 << 20);
        // While huge requests are served whole, few free buffers are kept, so the lane may use the
        // memory reserved for them. The buffers of pieces are kept and used again.
        let (lane_bytes, huge_bytes) = if start_bytes >= WHOLE_REQUESTS_BYTES_MIN {
            (REQUEST_BYTES_MAX, REQUEST_BYTES_MAX.saturating_sub(kept_bytes))
        } else {
            let lane_bytes = (start_bytes / LANE_SHARE).max(LANE_BYTES_MIN);
            (lane_bytes, lane_bytes)
        };
        let around = PROCESS_BYTES + WORKER_BYTES * workers as u64 + payload_bytes + kept_bytes;
        let around = around + request_bytes + huge_bytes + journals as u64 * journal_bytes(workers);
        let for_lines = limit_bytes.saturating_sub(around);
        let most_bytes = pool_within(for_lines);
        let miniatures_bytes = miniatures_bytes(most_bytes, shards_of(most_bytes, workers));
        let pool_bytes = pool_within(for_lines.saturating_sub(miniatures_bytes));
        let shards = shards_of(pool_bytes, workers);
        assert!(shards <= SHARDS_MAX && pool_bytes / shards as u64 >= SLAB_BYTES);
        Self {
            limit_bytes,
            start_bytes,
            pool_bytes,
            payload_bytes,
            request_bytes,
            lane_bytes,
            kept_bytes,
            shards,
        }
    }
}

/// The largest pool of whole slabs whose lines and metadata take at most `bytes`.
fn pool_within(bytes: u64) -> u64 {
    let lines = bytes / (LINE_BYTES + METADATA_BYTES_PER_LINE);
    (lines * LINE_BYTES / SLAB_BYTES * SLAB_BYTES).max(SLAB_BYTES)
}

/// The number of shards of a pool.
fn shards_of(pool_bytes: u64, workers: usize) -> usize {
    let shards_max = (4 * workers).next_power_of_two().min(SHARDS_MAX) as u64;
    // Rounded down to a power of two.
    1 << (pool_bytes / SHARD_BYTES_MIN).clamp(1, shards_max).ilog2()
}

/// The memory of the miniatures of all shards of a pool.
fn miniatures_bytes(pool_bytes: u64, shards: usize) -> u64 {
    let slots = (pool_bytes / LINE_BYTES) as usize / shards;
    (Miniatures::bytes_max(slots) * shards) as u64
}

/// The memory limit, in whole MiB, with which the pool has at least `pool_bytes` for data: for
/// `workers` workers, without journals.
pub fn limit_for_pool(pool_bytes: u64, workers: usize) -> u64 {
    let pool_of = |mib: u64| MemoryPlan::new(mib << 20, mib << 20, workers, 0).pool_bytes;
    // A larger limit never has a smaller pool, except where huge requests begin to be whole.
    let (mut below, mut enough) = (0, (pool_bytes >> 19).max(1 << 10));
    while below + 1 < enough {
        let middle = below + (enough - below) / 2;
        if pool_of(middle) >= pool_bytes { enough = middle } else { below = middle }
    }
    enough << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_for_each_pool() {
        for mib in [2u64, 16, 63, 400, 500, 1 << 10, 1 << 20] {
            let limit = limit_for_pool(mib << 20, 2);
            let pool = MemoryPlan::new(limit, limit, 2, 0).pool_bytes;
            assert!(pool >= mib << 20, "{mib} MiB in {limit}");
            assert!(limit < (mib << 20) * 12 / 10 + (48 << 20), "{mib} MiB in {limit}");
        }
    }

    #[test]
    fn all_parts_fit_the_limit() {
        for mib in [32u64, 64, 100, 128, 511, 512, 1024, 4096, 65536] {
            for workers in [1usize, 2, 16] {
                let limit = mib << 20;
                let plan = MemoryPlan::new(limit, limit, workers, 0);
                let around = PROCESS_BYTES
                    + WORKER_BYTES * workers as u64
                    + plan.payload_bytes
                    + plan.request_bytes
                    + match plan.lane_bytes {
                        REQUEST_BYTES_MAX => plan.kept_bytes.max(REQUEST_BYTES_MAX),
                        lane_bytes => plan.kept_bytes + lane_bytes,
                    };
                let metadata = plan.pool_bytes / 4096 * METADATA_BYTES_PER_LINE
                    + miniatures_bytes(plan.pool_bytes, plan.shards);
                let floor = plan.pool_bytes == SLAB_BYTES;
                assert!(floor || plan.pool_bytes + metadata + around <= limit, "{mib} {workers}");
                assert!(plan.shards.is_power_of_two());
                assert!(plan.pool_bytes / plan.shards as u64 >= SLAB_BYTES);
            }
        }
    }

    #[test]
    fn most_of_a_small_memory_holds_lines() {
        let lines_mib =
            |mib: u64, workers| MemoryPlan::new(mib << 20, mib << 20, workers, 0).pool_bytes >> 20;
        assert!(lines_mib(64, 2) >= 40, "{}", lines_mib(64, 2));
        assert!(lines_mib(128, 2) >= 96, "{}", lines_mib(128, 2));
        assert!(lines_mib(256, 4) >= 204, "{}", lines_mib(256, 4));
    }

    #[test]
    fn memory_that_a_process_may_get_later_is_for_lines() {
        let plan =
            |most_mib: u64, start_mib: u64| MemoryPlan::new(most_mib << 20, start_mib << 20, 2, 0);
        let (fixed, grows) = (plan(1024, 1024), plan(4096, 1024));
        assert_eq!(
            (grows.request_bytes, grows.lane_bytes),
            (fixed.request_bytes, fixed.lane_bytes)
        );
        assert_eq!(
            (grows.kept_bytes, grows.payload_bytes),
            (fixed.kept_bytes, fixed.payload_bytes)
        );
        let more_mib = (grows.pool_bytes - fixed.pool_bytes) >> 20;
        assert!((3020..3024).contains(&more_mib), "{more_mib} of 3072, the rest are tables");
    }

    #[test]
    fn with_512_mib_the_largest_requests_are_served_whole() {
        for (mib, is_whole) in [(64, false), (511, false), (512, true), (65536, true)] {
            let plan = MemoryPlan::new(mib << 20, mib << 20, 2, 0);
            assert_eq!(plan.lane_bytes >= REQUEST_BYTES_MAX, is_whole, "{mib}");
            assert!(plan.lane_bytes >= 2 * PIECE_BYTES, "{mib}");
        }
    }
}
