//! Every policy under random operations, and those with an exact definition against an oracle
//! that keeps plain vectors of line numbers.

use crate::testing::{Shard, key};
use crate::{Eviction, Hint, PolicyKind};
use proptest::prelude::*;

mod oracles;

use oracles::{NaiveArc, NaiveLru, NaiveSieve, NaiveTwoQ, Oracle};

#[derive(Clone, Debug)]
enum Step {
    Access(u64, Hint),
    Remove(u64),
    Hold(u64, bool),
    /// An eviction that no insertion follows.
    Shrink(u64),
    /// The line goes to another slot, where one is free.
    Move(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Skewed, so that there are hits at every capacity.
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
struct Driver {
    policy: Box<dyn Eviction>,
    shard: Shard,
}

impl Driver {
    fn new(kind: PolicyKind, capacity: usize) -> Self {
        Self { policy: kind.build(capacity), shard: Shard::new(capacity) }
    }

    /// Evicts for `line`; the slot that became free.
    fn evict(&mut self, line: u64) -> Option<u32> {
        let slot = self.policy.evict(key(line), Hint::Normal, &self.shard)?;
        let resident = self.shard.residents[slot as usize].take();
        assert!(resident.is_some(), "slot {slot} is not resident");
        assert!(!self.shard.held[slot as usize], "slot {slot} may not go");
        Some(slot)
    }

    fn access(&mut self, line: u64, hint: Hint) {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_policy_keeps_its_contract(steps in steps(), capacity in 1usize..80) {
        for kind in PolicyKind::ALL {
            let mut driver = Driver::new(kind, capacity);
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
                prop_assert!(driver.evict(7777).is_some(), "{} keeps a line back", kind);
            }
            prop_assert_eq!(driver.evict(7777), None);
            driver.policy.self_check();
        }
    }

    #[test]
    fn exact_policies_hold_the_same_lines_as_their_oracles(
        lines in prop::collection::vec((0u64..120, 0u64..120), 1..1500),
        capacity in 4usize..60,
    ) {
        let oracles: [(PolicyKind, Box<dyn Oracle>); 4] = [
            (PolicyKind::Lru, Box::new(NaiveLru::new(capacity))),
            (PolicyKind::Sieve, Box::new(NaiveSieve::new(capacity))),
            (PolicyKind::TwoQ, Box::new(NaiveTwoQ::new(capacity))),
            (PolicyKind::Arc, Box::new(NaiveArc::new(capacity))),
        ];
        for (kind, mut oracle) in oracles {
            let mut driver = Driver::new(kind, capacity);
            for (i, &(a, b)) in lines.iter().enumerate() {
                let line = a.min(b);
                driver.access(line, Hint::Normal);
                oracle.access(line);
                let mut held: Vec<u64> = driver.shard.residents.iter().flatten().copied().collect();
                let mut expected = oracle.residents();
                held.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(held, expected, "{} after access {} to {}", kind, i, line);
            }
        }
    }
}

#[test]
fn a_line_that_may_go_is_found_in_the_end_among_many_that_may_not() {
    const CAPACITY: usize = 1024;
    for kind in PolicyKind::ALL {
        for free in [0, 1, CAPACITY / 2, CAPACITY - 1] {
            let mut driver = Driver::new(kind, CAPACITY);
            for line in 0..CAPACITY as u64 {
                driver.access(line, Hint::Normal);
                driver.access(line / 2, Hint::Normal);
            }
            driver.shard.held.fill(true);
            driver.shard.held[free] = false;
            let found = (0..CAPACITY)
                .find_map(|_| driver.policy.evict(key(99_999), Hint::Normal, &driver.shard));
            assert_eq!(found, Some(free as u32), "{kind}");
        }
    }
}

#[test]
fn no_eviction_asks_about_more_than_a_few_batches() {
    const CAPACITY: usize = 1024;
    for kind in PolicyKind::ALL {
        let mut driver = Driver::new(kind, CAPACITY);
        for line in 0..CAPACITY as u64 {
            driver.access(line, Hint::Normal);
        }
        driver.shard.held.fill(true);
        for incoming in 0..50 {
            driver.shard.asked.set(0);
            assert_eq!(driver.evict(100_000 + incoming), None, "{kind}");
            let asked = driver.shard.asked.get();
            assert!(asked <= 4 * 64, "{kind} asked about {asked} lines");
        }
    }
}
