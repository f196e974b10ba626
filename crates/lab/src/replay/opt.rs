//! OPT: evicts the block whose next access is farthest away (Belady, 1966).
//!
//! It knows the future, so it is a bound, not a policy. Like the policies, it admits every block
//! that misses. Time and memory are those of a heap over all accesses.

use super::{Outcome, Workload};
use std::collections::BinaryHeap;

const NEVER: u32 = u32::MAX;

/// The misses of OPT with `capacity` lines.
///
/// # Panics
/// Panics if the workload has 2^32 - 1 accesses or more.
pub fn misses_of_opt(workload: &Workload, capacity: usize) -> Outcome {
    let next_uses = next_uses(workload);
    // The next use of each resident block; a heap entry with another value is outdated.
    let mut due: Vec<Option<u32>> = vec![None; workload.block_count()];
    let mut farthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let (mut resident_count, mut miss_count) = (0, 0);
    for (i, (&block, &next_use)) in workload.accesses.iter().zip(&next_uses).enumerate() {
        if due[block as usize].is_none() {
            miss_count += u64::from(i >= workload.warm_up_len);
            if resident_count == capacity {
                evict_farthest(&mut farthest, &mut due);
            } else {
                resident_count += 1;
            }
        }
        due[block as usize] = Some(next_use);
        farthest.push((next_use, block));
    }
    Outcome { access_count: workload.counted_len(), miss_count }
}

fn evict_farthest(farthest: &mut BinaryHeap<(u32, u32)>, due: &mut [Option<u32>]) {
    while let Some((next_use, block)) = farthest.pop() {
        if due[block as usize] == Some(next_use) {
            due[block as usize] = None;
            return;
        }
    }
    panic!("a full cache has a resident block");
}

/// For each access the index of the next one to the same block.
fn next_uses(workload: &Workload) -> Vec<u32> {
    assert!(workload.accesses.len() < NEVER as usize, "too many accesses for OPT");
    let mut next_of_block = vec![NEVER; workload.block_count()];
    let mut next_uses = vec![NEVER; workload.accesses.len()];
    for (i, &block) in workload.accesses.iter().enumerate().rev() {
        next_uses[i] = next_of_block[block as usize];
        next_of_block[block as usize] = i as u32;
    }
    next_uses
}
