//! Checks that every eviction policy must pass, and what they need: keys, and lines of which some
//! may not go.

use crate::{Eviction, Hint, Lines, Slot};
use proptest::prelude::*;
use std::cell::Cell;

/// A well-mixed key for line `n`.
pub fn key(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The lines of a shard: for each slot the line's number, and whether it may go.
pub struct Shard {
    /// Number of the line in each slot, `None` where the slot is free.
    pub residents: Vec<Option<u64>>,
    /// Whether the line is held back, as if dirty.
    pub held: Vec<bool>,
    /// How often a policy asked whether a line may go.
    pub asked: Cell<usize>,
}

impl Shard {
    /// A shard with nothing in it.
    pub fn new(capacity: usize) -> Self {
        Self { residents: vec![None; capacity], held: vec![false; capacity], asked: Cell::new(0) }
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

impl Lines for Shard {
    fn may_go(&self, slot: Slot) -> bool {
        self.asked.set(self.asked.get() + 1);
        assert!(self.residents[slot as usize].is_some(), "asked for the free slot {slot}");
        !self.held[slot as usize]
    }

    fn key(&self, slot: Slot) -> u64 {
        key(self.residents[slot as usize].expect("a policy asks for keys of residents only"))
    }
}

/// What happens to a shard.
#[derive(Clone, Debug)]
pub enum Step {
    /// The line is read or written.
    Access(u64, Hint),
    /// The line leaves for a reason that is not the policy's.
    Remove(u64),
    /// The line may not go from now on, or may again.
    Hold(u64, bool),
    /// An eviction that no insertion follows.
    Shrink(u64),
    /// The line goes to another slot, where one is free.
    Move(u64),
}

/// Steps in which lines are skewed, so that there are hits at every capacity.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let line = (0u64..120, 0u64..120).prop_map(|(a, b)| a.min(b));
    let hint = prop_oneof![4 => Just(Hint::Normal), 1 => Just(Hint::Stream)];
    let step = prop_oneof![
        20 => (line.clone(), hint).prop_map(|(line, hint)| Step::Access(line, hint)),
        1 => line.clone().prop_map(Step::Remove),
        2 => (line.clone(), any::<bool>()).prop_map(|(line, held)| Step::Hold(line, held)),
        1 => line.clone().prop_map(Step::Move),
        1 => line.prop_map(Step::Shrink),
    ];
    prop::collection::vec(step, 1..600)
}

/// Drives a policy as the engine does and checks its side of the contract.
pub struct Driver {
    policy: Box<dyn Eviction>,
    /// The lines it decides on.
    pub shard: Shard,
}

impl Driver {
    /// A policy for `capacity` lines, with none yet.
    pub fn new(policy: Box<dyn Eviction>, capacity: usize) -> Self {
        Self { policy, shard: Shard::new(capacity) }
    }

    /// Evicts for `line`; the slot that became free.
    fn evict(&mut self, line: u64) -> Option<Slot> {
        let slot = self.policy.evict(key(line), Hint::Normal, &self.shard)?;
        let resident = self.shard.residents[slot as usize].take();
        assert!(resident.is_some(), "slot {slot} is not resident");
        assert!(!self.shard.held[slot as usize], "slot {slot} may not go");
        Some(slot)
    }

    /// Reads or writes a line.
    pub fn access(&mut self, line: u64, hint: Hint) {
        if let Some(slot) = self.shard.slot_of(line) {
            self.policy.on_hit(slot);
            return;
        }
        let Some(slot) = self.shard.free_slot().or_else(|| self.evict(line)) else { return };
        self.shard.residents[slot as usize] = Some(line);
        self.policy.on_insert(slot, key(line), hint);
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Access(line, hint) => self.access(line, hint),
            Step::Remove(line) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.policy.on_remove(slot);
                    self.shard.residents[slot as usize] = None;
                    self.shard.held[slot as usize] = false;
                }
            }
            Step::Hold(line, held) => {
                if let Some(slot) = self.shard.slot_of(line) {
                    self.shard.held[slot as usize] = held;
                }
            }
            Step::Move(line) => {
                if let (Some(old), Some(new)) = (self.shard.slot_of(line), self.shard.free_slot()) {
                    self.policy.on_move(old, new, key(line));
                    self.shard.residents.swap(old as usize, new as usize);
                    self.shard.held.swap(old as usize, new as usize);
                }
            }
            Step::Shrink(line) => {
                if self.shard.slot_of(line).is_none() {
                    self.evict(line);
                }
            }
        }
    }
}

/// Lets the steps happen to a policy for `capacity` lines.
///
/// # Panics
/// When it breaks its contract.
pub fn check_contract(policy: Box<dyn Eviction>, capacity: usize, steps: &[Step]) {
    let mut driver = Driver::new(policy, capacity);
    for (i, step) in steps.iter().enumerate() {
        driver.apply(step);
        if i % 32 == 0 {
            driver.policy.self_check();
        }
    }
    driver.policy.self_check();
    // Whatever was held before, an empty shard can be reached.
    driver.shard.held.fill(false);
    let resident = driver.shard.residents.iter().flatten().count();
    for _ in 0..resident {
        assert!(driver.evict(7777).is_some(), "{} keeps a line back", driver.policy.name());
    }
    assert_eq!(driver.evict(7777), None);
    driver.policy.self_check();
}

/// Evicts where hardly any line may go, and where none may.
///
/// # Panics
/// When a line that may go is not found in the end, or one eviction asks about more than a few
/// batches of lines.
pub fn check_bounded_work(build: impl Fn(usize) -> Box<dyn Eviction>) {
    const CAPACITY: usize = 1024;
    for free in [0, 1, CAPACITY / 2, CAPACITY - 1] {
        let mut driver = Driver::new(build(CAPACITY), CAPACITY);
        for line in 0..CAPACITY as u64 {
            driver.access(line, Hint::Normal);
            driver.access(line / 2, Hint::Normal);
        }
        driver.shard.held.fill(true);
        driver.shard.held[free] = false;
        let found = (0..CAPACITY)
            .find_map(|_| driver.policy.evict(key(99_999), Hint::Normal, &driver.shard));
        assert_eq!(found, Some(free as u32), "{}", driver.policy.name());
    }
    let mut driver = Driver::new(build(CAPACITY), CAPACITY);
    (0..CAPACITY as u64).for_each(|line| driver.access(line, Hint::Normal));
    driver.shard.held.fill(true);
    for incoming in 0..50 {
        driver.shard.asked.set(0);
        assert_eq!(driver.evict(100_000 + incoming), None, "{}", driver.policy.name());
        let asked = driver.shard.asked.get();
        assert!(asked <= 4 * 64, "{} asked about {asked} lines", driver.policy.name());
    }
}
