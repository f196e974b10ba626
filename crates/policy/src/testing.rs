//! Helpers of the tests: keys, and lines of which some may not go.

use crate::{Lines, Slot};
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
