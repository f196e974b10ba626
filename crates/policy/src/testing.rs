//! The checks that every eviction policy must pass, and their helpers: keys, and a shard with
//! unevictable lines. It also computes exact reuse distances, with which estimated curves are
//! compared.

use crate::{Eviction, Hint, Lines, Slot};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;

/// A well-mixed key for line `n`.
pub fn key(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A shard's lines: the line in each slot, and whether it is evictable.
pub struct TestShard {
    /// The number of the line in each slot; `None` if the slot is free.
    pub residents: Vec<Option<u64>>,
    /// Whether the line in each slot is pinned, and so unevictable.
    pub pinned: Vec<bool>,
    /// How often the policy asked whether a line is evictable.
    pub asked: Cell<usize>,
}

impl TestShard {
    /// An empty shard.
    pub fn new(capacity: usize) -> Self {
        Self { residents: vec![None; capacity], pinned: vec![false; capacity], asked: Cell::new(0) }
    }

    /// The slot of a line.
    pub fn slot_of(&self, line: u64) -> Option<Slot> {
        self.residents.iter().position(|&resident| resident == Some(line)).map(|slot| slot as Slot)
    }

    /// A slot without a line.
    pub fn free_slot(&self) -> Option<Slot> {
        self.residents.iter().position(Option::is_none).map(|slot| slot as Slot)
    }
}

impl Lines for TestShard {
    fn is_evictable(&self, slot: Slot) -> bool {
        self.asked.set(self.asked.get() + 1);
        assert!(self.residents[slot as usize].is_some(), "asked for the free slot {slot}");
        !self.pinned[slot as usize]
    }

    fn key(&self, slot: Slot) -> u64 {
        key(self.residents[slot as usize].expect("a policy asks for keys of residents only"))
    }
}

/// An event in a shard.
#[derive(Clone, Debug)]
pub enum ShardEvent {
    /// The line is read or written.
    Access(u64, Hint),
    /// The line is read for the first time since it was preloaded.
    FirstUse(u64),
    /// A forecast begins.
    BeginForecast,
    /// Adds a line to the current forecast.
    ForecastAgain(u64),
    /// Former forecasts end for at most so many lines.
    EndForecasts(usize),
    /// The line is removed for an external reason.
    Remove(u64),
    /// The line is pinned or unpinned.
    Pin(u64, bool),
    /// An eviction without a subsequent insertion.
    Evict(u64),
    /// The line moves to another slot, if one is free.
    Move(u64),
}

/// Random steps with skewed lines, so that every capacity has hits.
pub fn steps() -> impl Strategy<Value = Vec<ShardEvent>> {
    let line = (0u64..120, 0u64..120).prop_map(|(a, b)| a.min(b));
    let hint = prop_oneof![
        6 => Just(Hint::Normal),
        3 => Just(Hint::Write),
        2 => Just(Hint::Stream),
        2 => Just(Hint::Forecast),
    ];
    let step = prop_oneof![
        20 => (line.clone(), hint).prop_map(|(line, hint)| ShardEvent::Access(line, hint)),
        3 => line.clone().prop_map(ShardEvent::FirstUse),
        1 => Just(ShardEvent::BeginForecast),
        1 => line.clone().prop_map(ShardEvent::ForecastAgain),
        1 => (0usize..40).prop_map(ShardEvent::EndForecasts),
        1 => line.clone().prop_map(ShardEvent::Remove),
        2 => (line.clone(), any::<bool>())
            .prop_map(|(line, is_pinned)| ShardEvent::Pin(line, is_pinned)),
        1 => line.clone().prop_map(ShardEvent::Move),
        1 => line.prop_map(ShardEvent::Evict),
    ];
    prop::collection::vec(step, 1..600)
}

/// Drives a policy like the engine, and checks its side of the contract.
pub struct PolicyDriver {
    policy: Box<dyn Eviction>,
    /// The shard.
    pub shard: TestShard,
}

impl PolicyDriver {
    /// A policy for `capacity` lines over an empty shard.
    pub fn new(policy: Box<dyn Eviction>, capacity: usize) -> Self {
        Self { policy, shard: TestShard::new(capacity) }
    }

    /// Evicts a line in favour of `line`; returns the freed slot.
    fn evict(&mut self, line: u64, hint: Hint) -> Option<Slot> {
        let slot = self.policy.evict(key(line), hint, &self.shard)?;
        let resident = self.shard.residents[slot as usize].take();
        assert!(resident.is_some(), "slot {slot} is not resident");
        assert!(!self.shard.pinned[slot as usize], "slot {slot} is not evictable");
        Some(slot)
    }

    /// Reads or writes a line.
    pub fn access(&mut self, line: u64, hint: Hint) {
        if let Some(slot) = self.shard.slot_of(line) {
            match hint {
                Hint::Write => self.policy.on_write(slot),
                _ => self.policy.on_hit(slot),
            }
            return;
        }
        let Some(slot) = self.shard.free_slot().or_else(|| self.evict(line, hint)) else {
            return;
        };
        self.shard.residents[slot as usize] = Some(line);
        self.policy.on_insert(slot, key(line), hint);
    }

    fn apply(&mut self, step: &ShardEvent) {
        match *step {
            ShardEvent::Access(line, hint) => self.access(line, hint),
            ShardEvent::FirstUse(line) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.policy.on_first_use(slot);
                }
            }
            ShardEvent::BeginForecast => self.policy.begin_forecast(),
            ShardEvent::ForecastAgain(line) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.policy.forecast_again(slot);
                }
            }
            ShardEvent::EndForecasts(lines_max) => {
                self.policy.end_former_forecasts(lines_max);
            }
            ShardEvent::Remove(line) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.policy.on_remove(slot);
                    self.shard.residents[slot as usize] = None;
                    self.shard.pinned[slot as usize] = false;
                }
            }
            ShardEvent::Pin(line, is_pinned) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.shard.pinned[slot as usize] = is_pinned;
                }
            }
            ShardEvent::Move(line) => {
                if let (Some(old), Some(new)) = (self.shard.slot_of(line), self.shard.free_slot()) {
                    self.policy.on_move(old, new, key(line));
                    self.shard.residents.swap(old as usize, new as usize);
                    self.shard.pinned.swap(old as usize, new as usize);
                }
            }
            ShardEvent::Evict(line) => {
                if self.shard.slot_of(line).is_none() {
                    self.evict(line, Hint::Normal);
                }
            }
        }
    }
}

/// Applies the steps to a policy for `capacity` lines, then evicts every line.
///
/// # Panics
/// Panics if the policy breaks its contract.
pub fn check_contract(policy: Box<dyn Eviction>, capacity: usize, steps: &[ShardEvent]) {
    let mut driver = PolicyDriver::new(policy, capacity);
    for (i, step) in steps.iter().enumerate() {
        driver.apply(step);
        if i % 32 == 0 {
            driver.policy.self_check();
        }
    }
    driver.policy.self_check();
    // Once all lines are evictable, every one can be evicted.
    driver.shard.pinned.fill(false);
    let resident = driver.shard.residents.iter().flatten().count();
    for _ in 0..resident {
        assert!(
            driver.evict(7777, Hint::Normal).is_some(),
            "{} does not evict a line",
            driver.policy.name()
        );
    }
    assert_eq!(driver.evict(7777, Hint::Normal), None);
    driver.policy.self_check();
}

/// Evicts from a shard in which one line, or none, is evictable.
///
/// # Panics
/// Panics if the evictable line is not found, or one eviction asks about more than a few batches of
/// lines.
pub fn check_bounded_work(build: impl Fn(usize) -> Box<dyn Eviction>) {
    const CAPACITY: usize = 1024;
    for free in [0, 1, CAPACITY / 2, CAPACITY - 1] {
        let mut driver = PolicyDriver::new(build(CAPACITY), CAPACITY);
        for line in 0..CAPACITY as u64 {
            driver.access(line, Hint::Normal);
            driver.access(line / 2, Hint::Normal);
        }
        driver.shard.pinned.fill(true);
        driver.shard.pinned[free] = false;
        let found = (0..CAPACITY)
            .find_map(|_| driver.policy.evict(key(99_999), Hint::Normal, &driver.shard));
        assert_eq!(found, Some(free as u32), "{}", driver.policy.name());
    }
    let mut driver = PolicyDriver::new(build(CAPACITY), CAPACITY);
    (0..CAPACITY as u64).for_each(|line| driver.access(line, Hint::Normal));
    driver.shard.pinned.fill(true);
    for incoming in 0..50 {
        driver.shard.asked.set(0);
        let found = driver.evict(100_000 + incoming, Hint::Normal);
        assert_eq!(found, None, "{}", driver.policy.name());
        let asked = driver.shard.asked.get();
        assert!(asked <= 4 * 64, "{} asked about {asked} lines", driver.policy.name());
    }
}

/// The exact miss-ratio curve of an LRU cache over a finite list of accesses.
pub struct ExactCurve {
    accesses: u64,
    /// The number of hits of a cache of `n` lines, for each `n`.
    hits: Vec<u64>,
}

impl ExactCurve {
    /// Counts the distances of all accesses, in `n log n` time: each line's last access is marked
    /// in a Fenwick tree (Olken's implementation of Mattson's stack).
    pub fn new(accesses: &[u64]) -> Self {
        let mut last: HashMap<u64, usize> = HashMap::new();
        let mut marks = vec![0i32; accesses.len() + 1];
        let add = |marks: &mut Vec<i32>, at: usize, mark: i32| {
            let mut node = at + 1;
            while node < marks.len() {
                marks[node] += mark;
                node += node & node.wrapping_neg();
            }
        };
        let sum_before = |marks: &Vec<i32>, at: usize| {
            let (mut node, mut sum) = (at, 0);
            while node > 0 {
                sum += marks[node];
                node &= node - 1;
            }
            sum as u64
        };
        let mut at_distance: Vec<u64> = Vec::new();
        for (now, &line) in accesses.iter().enumerate() {
            if let Some(before) = last.insert(line, now) {
                let distance = sum_before(&marks, now) - sum_before(&marks, before + 1);
                at_distance.resize(at_distance.len().max(distance as usize + 1), 0);
                at_distance[distance as usize] += 1;
                add(&mut marks, before, -1);
            }
            add(&mut marks, now, 1);
        }
        let mut hits = vec![0];
        hits.extend(at_distance.iter().scan(0, |sum, &count| {
            *sum += count;
            Some(*sum)
        }));
        Self { accesses: accesses.len() as u64, hits }
    }

    /// The share of accesses that a cache of `lines` misses. Zero without accesses.
    pub fn miss_ratio(&self, lines: usize) -> f64 {
        let hits = self.hits[lines.min(self.hits.len() - 1)];
        1.0 - hits as f64 / self.accesses.max(1) as f64
    }
}
