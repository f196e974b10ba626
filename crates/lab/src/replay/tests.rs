use super::*;

fn workload(blocks: &[u32]) -> Workload {
    let count = blocks.iter().max().map_or(0, |&last| last + 1);
    Workload {
        name: "small".to_owned(),
        accesses: blocks.to_vec(),
        is_write: vec![false; blocks.len()],
        keys: (0..count).map(|block| key_of(0, block.into())).collect(),
        warm_up_len: 0,
        counted_blocks: count as usize,
    }
}

fn misses(kind: PolicyKind, blocks: &[u32], capacity: usize) -> u64 {
    replay(&workload(blocks), kind.build(capacity).as_mut(), capacity).miss_count
}

#[test]
fn lru_misses_as_counted_by_hand() {
    assert_eq!(misses(PolicyKind::Lru, &[0, 1, 0, 2, 0, 1], 2), 4);
    assert_eq!(misses(PolicyKind::Lru, &[0, 1, 2, 0, 1, 2], 2), 6, "a loop defeats LRU");
}

#[test]
fn opt_misses_as_counted_by_hand() {
    // The loop keeps one of the three blocks on every turn.
    let outcome = misses_of_opt(&workload(&[0, 1, 2, 0, 1, 2, 0, 1, 2]), 2);
    assert_eq!(outcome, Outcome { access_count: 9, miss_count: 6 });
}

#[test]
fn no_policy_beats_opt_and_all_miss_each_block_once() {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 33
    };
    // Skewed: the smaller of two draws.
    let blocks: Vec<u32> =
        (0..20_000).map(|_| (random() % 800).min(random() % 800) as u32).collect();
    let workload = workload(&blocks);
    for capacity in [1, 2, 16, 100, 400, 800] {
        let bound = misses_of_opt(&workload, capacity).miss_count;
        for kind in PolicyKind::ALL {
            let missed = replay(&workload, kind.build(capacity).as_mut(), capacity).miss_count;
            assert!(missed >= bound, "{kind} with {capacity} lines beats OPT");
            if capacity == 800 {
                // The bound then is one miss per block.
                assert_eq!(missed, bound, "{kind} with room for all");
            }
        }
    }
}

#[test]
fn a_warm_up_fills_the_cache_and_is_not_counted() {
    let (counted, before) = (workload(&[0, 1, 0, 1, 2]), workload(&[2, 3, 0, 1]));
    let warmed = counted.after(&before);
    assert_eq!(warmed.accesses, [5, 6, 3, 4, 0, 1, 0, 1, 2]);
    assert_eq!((warmed.warm_up_len, warmed.block_count(), warmed.counted_blocks), (4, 7, 3));
    let keys: std::collections::HashSet<u64> = warmed.keys.iter().copied().collect();
    assert_eq!(keys.len(), 7, "the blocks of both workloads are distinct lines");
    assert_eq!(Memory::Share(1.0).lines(&warmed), Ok(3));
    for capacity in [1, 2, 3] {
        let outcome = replay(&warmed, PolicyKind::Lru.build(capacity).as_mut(), capacity);
        let cold = replay(&counted, PolicyKind::Lru.build(capacity).as_mut(), capacity);
        assert_eq!(outcome, cold, "LRU with {capacity} lines forgets the warm-up at once");
        assert_eq!(misses_of_opt(&warmed, capacity), misses_of_opt(&counted, capacity));
    }
}

fn plan(memories: Vec<Memory>) -> ReplayPlan {
    ReplayPlan {
        policies: vec![PolicyKind::Lru, PolicyKind::Arc],
        with_opt: true,
        memories,
        lines_min: 1,
    }
}

#[test]
fn the_table_has_a_row_per_size_and_a_mean() {
    let workloads = [workload(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 3])];
    let memories = vec![Memory::Bytes(Size(8192)), Memory::Share(1.0), Memory::Share(0.1)];
    let table = run(&workloads, &plan(memories)).unwrap();
    assert_eq!(table.rows.len(), 2, "a tenth of four blocks is no line");
    assert_eq!(table.rows[0].capacity_lines, 2);
    let ratios: Vec<f64> = table.rows[1].cells.iter().map(|cell| cell.miss_ratio()).collect();
    assert_eq!(ratios, [0.4, 0.4, 0.4]);
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "| trace | memory |    lru |    arc |    opt |");
    assert_eq!(lines[1], "| ----- | ------:| ------:| ------:| ------:|");
    assert_eq!(lines[2], "| small |   8KiB | 1.0000 | 1.0000 | 0.7000 |");
    assert_eq!(lines[4], "| mean  |        | 0.7000 | 0.7000 | 0.5500 |");
}

#[test]
fn invalid_sizes_are_rejected() {
    let workloads = [workload(&[0, 1])];
    for (memory, error) in [
        (Memory::Bytes(Size(4095)), ReplayError::TooSmall(Size(4095))),
        (Memory::Bytes(Size(1 << 40)), ReplayError::TooLarge(Size(1 << 40))),
        (Memory::Share(0.0), ReplayError::Share(0.0)),
        (Memory::Share(1.5), ReplayError::Share(1.5)),
    ] {
        assert_eq!(run(&workloads, &plan(vec![memory])), Err(error));
    }
}

#[test]
fn requests_are_counted_in_blocks() {
    let text =
        "time_us,volume,op,offset_bytes,length_bytes\n0,0,R,4095,2\n0,1,W,0,512\n0,0,R,0,1\n";
    let trace = Trace::parse(std::path::Path::new("t.csv"), text.as_bytes()).unwrap();
    let workload = Workload::new(&trace);
    assert_eq!(workload.accesses, [0, 1, 2, 0]);
    assert_eq!(workload.block_count(), 3);
}
