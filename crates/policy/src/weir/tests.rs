use super::*;
use crate::testing::{TestShard, check_bounded_work, check_contract, key, steps};
use proptest::prelude::*;

/// A policy with its shard, driven like the engine.
struct Cache {
    policy: Weir,
    shard: TestShard,
}

impl Cache {
    fn new(capacity: usize) -> Self {
        Self { policy: Weir::new(capacity), shard: TestShard::new(capacity) }
    }

    /// Accesses a line; returns true for a hit.
    fn access(&mut self, line: u64, hint: Hint) -> bool {
        if let Some(slot) = self.shard.slot_of(line) {
            match hint {
                Hint::Write => self.policy.on_write(slot),
                _ => self.policy.on_hit(slot),
            }
            return true;
        }
        let slot = self.shard.free_slot().unwrap_or_else(|| {
            let slot = self.policy.evict(key(line), hint, &self.shard).unwrap();
            self.shard.residents[slot as usize] = None;
            slot
        });
        self.shard.residents[slot as usize] = Some(line);
        self.policy.on_insert(slot, key(line), hint);
        false
    }

    /// Preloads a line for a forecast; returns false if no other line is worth less.
    fn preload(&mut self, line: u64) -> bool {
        let slot = self.shard.free_slot().or_else(|| {
            let slot = self.policy.evict(key(line), Hint::Forecast, &self.shard)?;
            self.shard.residents[slot as usize] = None;
            Some(slot)
        });
        let Some(slot) = slot else { return false };
        self.shard.residents[slot as usize] = Some(line);
        self.policy.on_insert(slot, key(line), Hint::Forecast);
        true
    }

    /// The first read of a preloaded line; returns true for a hit.
    fn use_first(&mut self, line: u64) -> bool {
        let found = self.shard.slot_of(line);
        found.map(|slot| self.policy.on_first_use(slot)).is_some()
    }

    /// The lines in main, with their hits left.
    fn main_lines(&self) -> Vec<(u64, u8)> {
        let residents = self.shard.residents.iter().zip(&self.policy.states);
        let in_main = residents.filter(|(_, state)| state.queue() == LineQueue::Main);
        in_main.filter_map(|(line, state)| Some(((*line)?, state.hits()))).collect()
    }

    fn queue_of(&self, line: u64) -> Option<LineQueue> {
        let slot = self.shard.slot_of(line)?;
        Some(self.policy.states[slot as usize].queue())
    }
}

#[test]
fn only_a_hit_after_the_window_promotes_a_line() {
    let mut cache = Cache::new(100);
    for line in 0..100 {
        cache.access(line, Hint::Normal);
        cache.access(line, Hint::Normal);
    }
    assert_eq!(cache.queue_of(92), Some(LineQueue::Small));
    cache.access(92, Hint::Normal);
    for line in 1000..1200 {
        cache.access(line, Hint::Normal);
    }
    assert_eq!(cache.queue_of(92), Some(LineQueue::Main));
    for line in [91, 93] {
        assert_eq!(cache.queue_of(line), None, "hits in the window do not count");
    }
}

#[test]
fn lines_without_a_hit_enter_main_only_while_it_is_below_its_share() {
    let mut cache = Cache::new(100);
    for line in 0..90 {
        cache.access(line, Hint::Normal);
    }
    let lens = |cache: &Cache| {
        let policy = &cache.policy;
        [policy.window.len(), policy.small.len(), policy.main.len()]
    };
    assert_eq!(lens(&cache), [5, 5, 80], "while the cache fills, main does");
    for line in 90..300 {
        cache.access(line, Hint::Normal);
    }
    assert_eq!(lens(&cache), [5, 5, 90]);
    let kept = (0..90).filter(|&line| cache.queue_of(line) == Some(LineQueue::Main)).count();
    assert!((85..90).contains(&kept), "main keeps {kept} of 90 lines; few are renewed");
    // A removal brings main below its share again.
    let slot = cache.shard.slot_of(40).unwrap();
    cache.policy.on_remove(slot);
    cache.shard.residents[slot as usize] = None;
    cache.access(300, Hint::Normal);
    assert_eq!(lens(&cache), [5, 5, 90]);
    assert_eq!(cache.queue_of(290), Some(LineQueue::Main), "the oldest line of the small queue");
    cache.policy.self_check();
}

#[test]
fn a_main_full_of_unused_lines_is_renewed() {
    let mut cache = Cache::new(500);
    for _ in 0..5 {
        for line in 0..450 {
            cache.access(line, Hint::Normal);
        }
    }
    // A loop over so many lines that no ghost of them is found when they return.
    let mut round = || (1_000..3_000).filter(|&line| cache.access(line, Hint::Normal)).count();
    let hits: Vec<usize> = (0..20).map(|_| round()).collect();
    assert!(hits[1] < 100 && hits[19] > 350, "hits by round: {hits:?}");
}

/// A cache of 1,000 lines under clients that read 700 lines and write to 100,000 others. They read
/// `read_percent` of 100 written lines soon after. Returns the share of the reads of the 700 that
/// hit.
fn hits_beside_writes(read_percent: u64) -> f64 {
    let mut cache = Cache::new(1_000);
    let (mut dice, mut hits, mut reads) = (1u64, 0, 0);
    let mut roll = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % sides
    };
    for at in 0..200_000u64 {
        if roll(8) == 0 {
            let hit = cache.access(roll(700), Hint::Normal);
            if at > 100_000 {
                (hits, reads) = (hits + u32::from(hit), reads + 1);
            }
            continue;
        }
        cache.access(1_000 + at % 100_000, Hint::Write);
        if at > 80 && at % 100 < read_percent {
            cache.access(1_000 + (at - 80) % 100_000, Hint::Normal);
        }
    }
    cache.policy.self_check();
    f64::from(hits) / f64::from(reads)
}

#[test]
fn lines_that_are_only_written_do_not_displace_lines_that_are_read() {
    let hits = hits_beside_writes(0);
    assert!(hits > 0.9, "{hits}");
}

#[test]
fn writes_count_only_where_written_lines_are_read() {
    for is_read in [false, true] {
        let mut cache = Cache::new(1_000);
        let (read, written) = (1_000_000, 2_000_000);
        for at in 40..10_000 {
            cache.access(read + at, Hint::Normal);
            cache.access(written + at, Hint::Write);
            // A line of forty steps ago has left the window. Every fourth of a kind is read.
            if at % 4 == 0 {
                cache.access(read + at - 40, Hint::Normal);
            }
            if is_read && at % 4 == 2 {
                cache.access(written + at - 40, Hint::Normal);
            }
        }
        assert_eq!(cache.policy.writes.pay(), is_read);
        for line in 0..3_000 {
            cache.access(77_777, Hint::Write);
            cache.access(line, Hint::Normal);
        }
        let is_in_main = cache.queue_of(77_777) == Some(LineQueue::Main);
        assert_eq!(is_in_main, is_read, "a line that is written again and again");
    }
}

/// A cache of 1,000 lines with a small queue at its least, and its main full of lines with hits.
fn full_of_hit_lines() -> Cache {
    let mut cache = Cache::new(1_000);
    for _ in 0..3 {
        for line in 0..900 {
            cache.access(line, Hint::Normal);
        }
    }
    for line in 1_000..1_300 {
        cache.access(line, Hint::Normal);
    }
    cache.policy.small_len_target = cache.policy.small_len_min;
    for line in 1_300..2_000 {
        cache.access(line, Hint::Normal);
    }
    cache
}

/// The lines of the first 900 that are still there.
fn kept(cache: &Cache) -> usize {
    (0..900).filter(|&line| cache.queue_of(line).is_some()).count()
}

#[test]
fn slots_reserved_for_long_writes_come_from_the_small_queue() {
    let mut cache = full_of_hit_lines();
    let before = kept(&cache);
    for request in 0..50 {
        let slots: Vec<Slot> = (0..128)
            .map(|_| {
                let slot = cache.policy.vacate(&cache.shard).unwrap();
                cache.shard.residents[slot as usize] = None;
                slot
            })
            .collect();
        for (slot, line) in slots.into_iter().zip(10_000 + request * 128..) {
            cache.shard.residents[slot as usize] = Some(line);
            cache.policy.on_insert(slot, key(line), Hint::Write);
        }
    }
    cache.policy.self_check();
    let lost = before - kept(&cache);
    assert!(lost < 128 + 6_400 / 30, "50 writes of 128 lines evicted {lost} of {before} hit lines");
}

#[test]
fn reserved_slots_leave_the_small_queue_half_of_its_lines() {
    let mut cache = Cache::new(1_000);
    for line in 0..2_000 {
        cache.access(line, Hint::Normal);
    }
    for _ in 0..300 {
        let slot = cache.policy.vacate(&cache.shard).unwrap();
        cache.shard.residents[slot as usize] = None;
    }
    assert_eq!(cache.policy.small_len(), cache.policy.small_len_target / 2);
    cache.policy.self_check();
}

#[test]
fn lines_of_a_stream_enter_main_only_when_hit() {
    let mut cache = Cache::new(100);
    for line in 0..100 {
        cache.access(line, Hint::Stream);
        cache.access(line, Hint::Normal);
    }
    for line in 1000..1050 {
        cache.access(line, Hint::Normal);
    }
    assert!((0..100).all(|line| cache.queue_of(line) != Some(LineQueue::Main)));
}

#[test]
fn a_loop_over_twice_the_capacity_keeps_hitting() {
    let mut cache = Cache::new(500);
    let mut round = || (0..1_000).filter(|&line| cache.access(line, Hint::Normal)).count();
    let hits: Vec<usize> = (0..8).map(|_| round()).collect();
    // 500 would be optimal. A FIFO never hits.
    assert!(hits[1..].iter().all(|&hits| hits >= 440), "hits by round: {hits:?}");
}

#[test]
fn lines_that_an_eviction_promotes_into_an_empty_main_can_be_evicted() {
    let mut cache = Cache::new(30);
    for line in [1, 2] {
        for _ in 0..3 {
            cache.access(line, Hint::Stream);
        }
    }
    let lens = [&cache.policy.window, &cache.policy.small, &cache.policy.main].map(List::len);
    assert_eq!(lens, [0, 2, 0], "only the older part has lines, all of which were hit");
    assert!(cache.policy.evict(key(3), Hint::Normal, &cache.shard).is_some());
}

#[test]
fn a_line_that_returns_with_a_ghost_enters_main() {
    let mut cache = Cache::new(100);
    for line in 0..150 {
        cache.access(line, Hint::Normal);
    }
    assert_eq!(cache.queue_of(120), None);
    cache.access(120, Hint::Normal);
    assert_eq!(cache.queue_of(120), Some(LineQueue::Main));
}

#[test]
fn lines_of_an_age_that_does_not_pay_are_kept_out_of_main() {
    let mut cache = Cache::new(500);
    let mut entered = 0;
    for step in 0..16_000 {
        // Lines that are used forever, and lines that are used twice, at equal intervals.
        cache.access(step % 100, Hint::Normal);
        cache.access(10_000 + step, Hint::Normal);
        if step >= 190 {
            cache.access(9_810 + step, Hint::Normal);
            let is_in_main = cache.queue_of(9_810 + step) == Some(LineQueue::Main);
            entered += u32::from(is_in_main && step >= 8_000);
        }
    }
    // One in 16 enters on trial.
    assert!((300..=1_000).contains(&entered), "{entered} of 8,000");
    assert!((0..100).all(|line| cache.queue_of(line) == Some(LineQueue::Main)));
    cache.policy.self_check();
}

#[test]
fn the_boundary_moves_in_favour_of_the_queue_that_loses_hits() {
    let mut cache = Cache::new(1000);
    let start = cache.policy.small_len_target;
    // Lines return just after they left the small queue.
    for line in 0..20_000 {
        cache.access(line, Hint::Normal);
        if line >= 110 {
            cache.access(line - 110, Hint::Normal);
        }
    }
    let grown = cache.policy.small_len_target;
    assert!(grown > start, "the small queue shrank from {start} to {grown}");
    cache.policy.self_check();

    // Now lines return soon after they left main.
    let mut cache = Cache::new(1000);
    for round in 0..40 {
        for line in 0..930 {
            cache.access(line, Hint::Normal);
        }
        for line in 0..500 {
            cache.access(1_000_000 + round * 1_000 + line, Hint::Normal);
        }
    }
    let shrunk = cache.policy.small_len_target;
    assert!(shrunk < start, "the small queue grew from {start} to {shrunk}");
    cache.policy.self_check();
}

#[test]
fn a_long_stream_evicts_few_lines() {
    let mut cache = Cache::new(1000);
    for _ in 0..4 {
        for line in 0..880 {
            cache.access(line, Hint::Normal);
        }
        for line in 0..200 {
            cache.access(10_000 + line, Hint::Normal);
        }
    }
    let resident = |cache: &Cache| (0..880).filter(|&n| cache.shard.slot_of(n).is_some()).count();
    let before = resident(&cache);
    for line in 0..8_000 {
        // The read of the line, as predicted, is not reported.
        cache.access(1_000_000 + line, Hint::Stream);
    }
    let after = resident(&cache);
    assert!(before - after <= 100, "{before} working lines became {after}");
    for line in 7_000..8_000 {
        let queue = cache.queue_of(1_000_000 + line);
        assert!(queue.is_none_or(|queue| queue == LineQueue::Small), "{line} is in {queue:?}");
    }
    cache.policy.self_check();
}

#[test]
fn a_stream_that_is_read_once_leaves_no_ghosts() {
    let mut cache = Cache::new(1000);
    for line in 0..3_000 {
        cache.access(line, Hint::Stream);
    }
    let has_ghost = |line: &u64| {
        assert!(!cache.access(*line, Hint::Normal));
        cache.queue_of(*line) == Some(LineQueue::Main)
    };
    // One look-up in 4,000 finds a ghost that is not there.
    assert!((0..2_000).filter(has_ghost).count() <= 4);
}

#[test]
fn a_line_of_a_stream_that_was_hit_needs_one_hit_when_it_is_read_ahead_again() {
    let mut cache = Cache::new(1000);
    // Lines that are hit once between their evictions, and lines that are not.
    for line in 0..400 {
        cache.access(line, Hint::Stream);
        if line % 2 == 0 {
            cache.access(line, Hint::Normal);
        }
    }
    for line in 10_000..10_990 {
        cache.access(line, Hint::Stream);
    }
    for line in 300..400 {
        assert!(!cache.access(line, Hint::Stream), "{line} was evicted");
        assert_eq!(cache.queue_of(line), Some(LineQueue::Small));
        cache.access(line, Hint::Normal);
    }
    for line in 20_000..20_990 {
        cache.access(line, Hint::Stream);
    }
    for line in 300..400 {
        let is_in_main = cache.queue_of(line) == Some(LineQueue::Main);
        assert_eq!(is_in_main, line % 2 == 0, "{line}");
    }
    cache.policy.self_check();
}

#[test]
fn a_small_queue_that_is_too_short_for_all_returns_grows_by_later_ones() {
    let capacity = 2_000u64;
    let mut cache = Cache::new(capacity as usize);
    cache.policy.small_len_target = cache.policy.small_len_min;
    // Each sixth access is to a line that was new a sixth of the capacity before. No line is used
    // a third time, so main has no hits, and no return is as early as the boundary watches.
    let (mut hits, mut new) = (0, 0);
    for access in 0..60 * capacity {
        if access % 6 == 5 && new > capacity {
            hits +=
                u64::from(cache.access(new - capacity / 6, Hint::Normal) && access > 30 * capacity);
        } else {
            cache.access(new, Hint::Normal);
            new += 1;
        }
    }
    assert!(hits > 4 * capacity, "{hits} of {} later returns hit", 5 * capacity);
}

#[test]
fn one_eviction_does_bounded_work_when_every_line_was_hit_or_is_pinned() {
    let mut cache = Cache::new(2_000);
    // The second round hits the ghosts of the first. From the third round on all lines are in main
    // or hit; the fourth saturates the hit counts.
    for _ in 0..5 {
        for line in 0..1_900 {
            cache.access(line, Hint::Normal);
        }
        for line in 0..300 {
            cache.access(10_000 + line, Hint::Normal);
        }
    }
    let main_slots: Vec<Slot> = (0..2_000)
        .filter(|&slot| cache.policy.states[slot as usize].queue() == LineQueue::Main)
        .collect();
    assert!(main_slots.len() > 2 * STEPS_MAX, "only {} lines are in main", main_slots.len());
    for &slot in &main_slots {
        (0..HITS_MAX).for_each(|_| cache.policy.on_hit(slot));
    }
    assert!(cache.policy.evict_from_main(&cache.shard).is_some());
    let spared = main_slots.iter().filter(|&&slot| cache.policy.states[slot as usize].hits() < 3);
    assert!(spared.count() <= STEPS_MAX);
    cache.shard.pinned.fill(true);
    cache.shard.asked.set(0);
    for incoming in 0..100 {
        assert_eq!(cache.policy.evict(key(50_000 + incoming), Hint::Normal, &cache.shard), None);
        let asked = cache.shard.asked.replace(0);
        assert!(asked <= 4 * PASS_OVER_MAX, "asked about {asked} lines");
    }
}

#[test]
fn the_metadata_stays_within_fourteen_bytes_per_line() {
    for capacity in [4096, 10_000, 1 << 20] {
        let bytes = Weir::new(capacity).metadata_bytes();
        assert!(bytes <= 14 * capacity, "{bytes} bytes for {capacity} lines");
    }
}

#[test]
fn a_relocated_line_keeps_its_queue_and_its_hits() {
    let mut cache = Cache::new(100);
    for line in 0..99 {
        cache.access(line, Hint::Normal);
    }
    let (old, new) = (cache.shard.slot_of(5).unwrap(), cache.shard.free_slot().unwrap());
    cache.access(5, Hint::Normal);
    let queue = cache.queue_of(5);
    let hits = cache.policy.states[old as usize].hits();
    cache.policy.on_move(old, new, key(5));
    cache.shard.residents.swap(old as usize, new as usize);
    assert_eq!(cache.queue_of(5), queue);
    assert_eq!(cache.policy.states[new as usize].hits(), hits);
    assert!(hits > 0);
    cache.policy.self_check();
}

#[test]
fn the_shares_follow_the_capacity_and_the_boundary_keeps_its_own() {
    let shares =
        |policy: &Weir| (policy.small_len_min, policy.small_len_target, policy.small_len_max);
    let mut policy = Weir::new(1000);
    assert_eq!(shares(&policy), (10, 100, 600));
    policy.small_len_target = 300;
    policy.set_capacity(100);
    assert_eq!(shares(&policy), (1, 30, 60));
    policy.set_capacity(0);
    assert_eq!(shares(&policy), (1, 1, 1), "a single line may stay");
    policy.set_capacity(5000);
    assert_eq!(shares(&policy), (10, 600, 600), "no more than at the creation");
    policy.self_check();
}

#[test]
fn a_smaller_cache_forgets_its_ghosts_earlier() {
    for (capacity, is_remembered) in [(1000, true), (100, false)] {
        let mut cache = Cache::new(1000);
        cache.policy.set_capacity(capacity);
        // The line leaves the small queue, and 400 others after it.
        for line in 0..1_401 {
            cache.access(line, Hint::Normal);
        }
        cache.access(0, Hint::Normal);
        let is_in_main = cache.queue_of(0) == Some(LineQueue::Main);
        assert_eq!(is_in_main, is_remembered, "with a capacity of {capacity}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_contract_is_kept_at_every_size(
        steps in steps(), capacity in 1usize..80, lines in 0usize..80,
    ) {
        let mut policy = Weir::new(capacity);
        policy.set_capacity(lines);
        check_contract(Box::new(policy), capacity, &steps);
    }

    #[test]
    fn the_contract_is_kept(steps in steps(), capacity in 1usize..80) {
        check_contract(Box::new(Weir::new(capacity)), capacity, &steps);
    }
}

#[test]
fn evictions_do_bounded_work_and_find_the_evictable_line() {
    check_bounded_work(|capacity| Box::new(Weir::new(capacity)));
}

#[test]
fn lines_that_were_hot_before_a_restart_enter_main() {
    let mut cache = Cache::new(100);
    for line in 0..60 {
        cache.access(line, Hint::Hot);
    }
    let in_main = |cache: &Cache| (0..60).all(|line| cache.queue_of(line) == Some(LineQueue::Main));
    assert!(in_main(&cache));
    // Some of these lines are promoted by ghosts of others with the same fingerprint. They displace
    // lines of main, but none that were hit.
    for line in 0..60 {
        cache.access(line, Hint::Normal);
    }
    // A scan of new lines passes through the small queue.
    for line in 1000..2000 {
        cache.access(line, Hint::Normal);
    }
    assert!(in_main(&cache));
    cache.policy.self_check();
}

#[test]
fn the_value_of_a_line_grows_with_its_use() {
    let mut cache = Cache::new(100);
    let value = |cache: &Cache, line| cache.policy.value(cache.shard.slot_of(line).unwrap());
    cache.access(0, Hint::Stream);
    assert_eq!(value(&cache, 0), 0);
    cache.access(0, Hint::Stream);
    assert_eq!(value(&cache, 0), 0, "the read that the prefetch predicted");
    cache.access(0, Hint::Stream);
    assert_eq!(value(&cache, 0), 1);
    for line in 1..20 {
        cache.access(line, Hint::Normal);
    }
    let values: Vec<_> = (0..5)
        .map(|_| {
            cache.access(1, Hint::Normal);
            value(&cache, 1)
        })
        .collect();
    assert_eq!(values, [2, 3, 4, 4, 4]);
    cache.access(30, Hint::Hot);
    assert_eq!(value(&cache, 30), forebay_types::LINE_VALUE_HOT);
    for _ in 0..5 {
        cache.access(30, Hint::Normal);
    }
    assert_eq!(value(&cache, 30), forebay_types::LINE_VALUE_MAX);
}

/// Lines of pinned ranges leave the policy, and their slots stay in use.
#[test]
fn the_rest_of_a_cache_works_while_most_of_its_lines_are_taken_out() {
    let mut cache = Cache::new(100);
    for line in 0..100 {
        cache.access(line, Hint::Normal);
    }
    let pinned: Vec<Slot> = (0..60).map(|line| cache.shard.slot_of(line).unwrap()).collect();
    pinned.iter().for_each(|&slot| cache.policy.on_remove(slot));
    cache.policy.set_capacity(40);
    // Ten lines are used all the time while others are read once.
    let (mut hits, mut reads) = (0, 0);
    for line in 1_000..3_000 {
        cache.access(line, Hint::Normal);
        reads += 1;
        hits += u32::from(cache.access(200 + line % 10, Hint::Normal));
        cache.policy.self_check();
    }
    assert!(hits > reads * 9 / 10, "{hits} hits in {reads} reads of ten lines");
    assert!((0..60).all(|line| cache.shard.slot_of(line).is_some()), "a line was evicted");
    for (line, &slot) in pinned.iter().enumerate() {
        cache.policy.on_insert(slot, key(line as u64), Hint::Normal);
    }
    cache.policy.set_capacity(100);
    // A main full of lines that are no longer used is renewed slowly.
    for line in 5_000..25_000 {
        cache.access(line, Hint::Normal);
    }
    cache.policy.self_check();
    let left = (0..60).filter(|&line| cache.shard.slot_of(line).is_some()).count();
    assert!(left < 10, "{left} lines that are not used stay");
}

/// A full cache of 200 lines: 180 in main, each with a hit, and 20 in the small queue.
fn full_of_used_lines() -> Cache {
    let mut cache = Cache::new(200);
    (0..180).for_each(|line| assert!(!cache.access(line, Hint::Hot)));
    (0..180).for_each(|line| assert!(cache.access(line, Hint::Normal)));
    (1_000..1_020).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
    assert_eq!(cache.main_lines().len(), 180);
    cache.policy.begin_forecast();
    cache
}

#[test]
fn a_forecast_takes_unused_lines_only_and_leaves_half_of_the_small_queue() {
    let mut cache = full_of_used_lines();
    let main = cache.main_lines();
    let preloaded = (5_000..5_100).filter(|&line| cache.preload(line)).count();
    assert_eq!(preloaded, 10, "half of the small queue");
    assert_eq!(cache.main_lines(), main, "main lost neither lines nor hits");
    // Its lines without hits are worth less.
    let mut cache = Cache::new(200);
    (0..180).for_each(|line| assert!(!cache.access(line, Hint::Hot)));
    (1_000..1_020).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
    (0..30).for_each(|line| assert!(cache.access(line, Hint::Normal)));
    cache.policy.begin_forecast();
    let preloaded = (5_000..5_200).filter(|&line| cache.preload(line)).count();
    assert_eq!(preloaded, 10 + 180 / WALK_SHARE - 30);
    let main: Vec<u64> = cache.main_lines().iter().map(|(line, _)| *line).collect();
    let walked = 180 / WALK_SHARE as u64;
    assert_eq!(main, (0..30).chain(walked..180).collect::<Vec<_>>());
    cache.policy.self_check();
}

#[test]
fn a_line_of_a_forecast_waits_for_its_use_and_then_leaves_like_one_of_a_stream() {
    let run = |is_forecast: bool| {
        let mut cache = full_of_used_lines();
        if is_forecast {
            assert!((5_000..5_010).all(|line| cache.preload(line)));
        }
        // Others pass through the rest of the small queue.
        (2_000..4_000).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
        if is_forecast {
            assert!((5_000..5_010).all(|line| cache.queue_of(line) == Some(LineQueue::Waiting)));
            assert!((5_000..5_010).all(|line| cache.use_first(line)));
        } else {
            (5_000..5_010).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
        }
        assert!((5_000..5_010).all(|line| cache.queue_of(line) != Some(LineQueue::Waiting)));
        (6_000..6_100).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
        // They were used once, and are evicted like others that were.
        assert!((5_000..5_010).filter(|line| cache.queue_of(*line).is_some()).count() <= 1);
        cache.policy.self_check();
        let small_len = cache.policy.small_len();
        (small_len, cache.main_lines().into_iter().filter(|(line, _)| *line < 180).count())
    };
    let ((small_len, left), (small_len_without, left_without)) = (run(true), run(false));
    assert!(small_len <= small_len_without + 1, "{small_len} and {small_len_without}");
    assert!(left_without > 100 && left + 1 >= left_without, "{left} and {left_without}");
}

#[test]
fn lines_of_a_forecast_that_has_ended_are_evicted_next() {
    let mut cache = full_of_used_lines();
    assert!((5_000..5_006).all(|line| cache.preload(line)));
    assert!(!cache.policy.end_former_forecasts(100), "it is the current one");
    cache.policy.begin_forecast();
    assert!((5_006..5_010).all(|line| cache.preload(line)));
    assert!(cache.policy.end_former_forecasts(4), "two are left");
    assert!(!cache.policy.end_former_forecasts(100));
    cache.policy.self_check();
    let others: Vec<u64> = (1_000..1_020).filter(|&line| cache.queue_of(line).is_some()).collect();
    assert_eq!(others.len(), 10);
    (6_000..6_006).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
    assert!((5_000..5_006).all(|line| cache.queue_of(line).is_none()));
    assert!((5_006..5_010).all(|line| cache.queue_of(line) == Some(LineQueue::Waiting)));
    assert!(others.iter().all(|&line| cache.queue_of(line).is_some()));
}

/// Regression: hot lines were moved to the list of the forecast, at the end of which they would
/// have been evicted next.
#[test]
fn hot_lines_that_a_forecast_names_again_stay_in_main() {
    let mut cache = Cache::new(100);
    (0..10).for_each(|line| assert!(!cache.access(line, Hint::Hot)));
    (10..20).for_each(|line| assert!(!cache.access(line, Hint::Normal)));
    cache.policy.begin_forecast();
    let again = |cache: &mut Cache, line| {
        let slot = cache.shard.slot_of(line).unwrap();
        cache.policy.forecast_again(slot)
    };
    assert!((0..20).all(|line| again(&mut cache, line) == (line >= 10)));
    assert!((0..20).all(|line| !again(&mut cache, line)), "each joins once");
    let queue = |line| if line < 10 { LineQueue::Main } else { LineQueue::Waiting };
    assert!((0..20).all(|line| cache.queue_of(line) == Some(queue(line))));
    cache.policy.self_check();
    // Those of the forecast before join the next one.
    cache.policy.begin_forecast();
    assert!((10..15).all(|line| again(&mut cache, line)));
    let mut use_first = |line| {
        let slot = cache.shard.slot_of(line).unwrap();
        cache.policy.on_first_use(slot)
    };
    assert!([10, 14].into_iter().all(&mut use_first), "of the current forecast");
    assert!(![0, 15, 19].into_iter().any(use_first), "of none, or of the one before");
    cache.policy.self_check();
}
