//! One miniature cache: the shipped policy over the sampled lines.

use super::lines::{Arrival, MiniatureLines, key_of};
use crate::{Eviction, Hint, Slot, Weir};

/// See the module.
pub(super) struct MiniatureCache {
    policy: Weir,
    lines: MiniatureLines,
    /// Lines that it may hold.
    capacity: usize,
}

impl MiniatureCache {
    /// A cache with memory for `slots` lines.
    pub(super) fn new(slots: usize) -> Self {
        Self { policy: Weir::new(slots), lines: MiniatureLines::new(slots), capacity: slots }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.policy.metadata_bytes() - size_of::<Weir>() + self.lines.heap_bytes()
    }

    /// The most memory on the heap of a cache with `slots` lines.
    pub(super) const fn heap_bytes_max(slots: usize) -> usize {
        // In the policy, 8 bytes of links and one of state; ghosts are 4 and a tenth, in whole
        // buckets.
        slots * 9 + slots * 9 / 2 + 64 + MiniatureLines::heap_bytes_for(slots)
    }

    /// A client reads a line, or writes it (`Hint::Write`), or reads what was read ahead
    /// (`Hint::Stream`). Returns whether the line was absent. This does to the policy what a shard
    /// does.
    pub(super) fn access(&mut self, line: u32, hint: Hint) -> bool {
        if self.touch(line, hint) {
            return false;
        }
        let slot = match self.free_slot() {
            Some(slot) => Some(slot),
            None if hint == Hint::Write => {
                let victim = self.policy.vacate(&self.lines);
                self.take_victim(victim)
            }
            None => self.evict(line, hint),
        };
        self.insert(slot, line, hint, Arrival::Used);
        true
    }

    /// Makes a line dirty, if it is there, in a cache of which this share is dirty, from 0 to 1.
    pub(super) fn set_dirty(&mut self, line: u32, dirty_share: f64) {
        if let Some(slot) = self.lines.find(line) {
            self.lines.set_dirty(slot, (self.capacity as f64 * dirty_share) as usize);
        }
    }

    /// As [`MiniatureCache::access`], without admitting an absent line. Returns whether the line
    /// was there.
    pub(super) fn touch(&mut self, line: u32, hint: Hint) -> bool {
        let Some(slot) = self.lines.find(line) else { return false };
        if hint == Hint::Write {
            self.policy.on_write(slot);
            return true;
        }
        match self.lines.take_arrival(slot) {
            Arrival::Used => self.policy.on_hit(slot),
            Arrival::Prefetched => {}
            Arrival::Preloaded => {
                self.policy.on_first_use(slot);
            }
        }
        true
    }

    /// Whether a line is there and was last read in sequence.
    pub(super) fn is_in_sequence(&self, line: u32) -> bool {
        self.lines.find(line).is_some_and(|slot| self.lines.is_in_sequence(slot))
    }

    pub(super) fn set_in_sequence(&mut self, line: u32, is_in_sequence: bool) {
        if let Some(slot) = self.lines.find(line) {
            self.lines.set_in_sequence(slot, is_in_sequence);
        }
    }

    /// A stream reads a line ahead, or passes over it.
    pub(super) fn prefetch(&mut self, line: u32) {
        if let Some(slot) = self.lines.find(line) {
            if self.lines.arrival(slot) == Arrival::Used {
                self.policy.on_hit(slot);
            }
            return;
        }
        let slot = self.free_slot().or_else(|| self.evict(line, Hint::Stream));
        self.insert(slot, line, Hint::Stream, Arrival::Prefetched);
    }

    /// A line is preloaded with this hint. Only for a forecast, other lines are evicted.
    pub(super) fn preload(&mut self, line: u32, hint: Hint) {
        if let Some(slot) = self.lines.find(line) {
            if hint == Hint::Forecast && self.lines.arrival(slot) == Arrival::Preloaded {
                self.policy.forecast_again(slot);
            }
            return;
        }
        let slot = match self.free_slot() {
            None if hint == Hint::Forecast => self.evict(line, hint),
            slot => slot,
        };
        self.insert(slot, line, hint, Arrival::Preloaded);
    }

    pub(super) fn remove(&mut self, line: u32) {
        if let Some(slot) = self.lines.find(line) {
            self.policy.on_remove(slot);
            self.lines.remove(slot);
            self.lines.release(slot);
        }
    }

    pub(super) fn begin_forecast(&mut self) {
        self.policy.begin_forecast();
    }

    pub(super) fn end_former_forecasts(&mut self, lines_max: usize) {
        self.policy.end_former_forecasts(lines_max);
    }

    /// Changes the number of lines that it may hold, up to its slots. Evicts lines beyond it.
    pub(super) fn set_capacity(&mut self, lines: usize) {
        self.capacity = lines;
        self.policy.set_capacity(lines);
        self.lines.clean_all();
        while self.lines.len() > self.capacity {
            let Some(slot) = self.policy.vacate(&self.lines) else { break };
            self.lines.remove(slot);
            self.lines.release(slot);
        }
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub(super) fn self_check(&self) {
        self.policy.self_check();
        self.lines.self_check();
        assert!(self.lines.len() <= self.capacity, "more lines than the cache may hold");
    }

    /// A slot that needs no eviction.
    fn free_slot(&mut self) -> Option<Slot> {
        if self.lines.len() < self.capacity { self.lines.take_free() } else { None }
    }

    fn evict(&mut self, line: u32, hint: Hint) -> Option<Slot> {
        let victim = self.policy.evict(key_of(line), hint, &self.lines);
        if victim.is_none() && hint == Hint::Forecast {
            return None;
        }
        self.take_victim(victim)
    }

    /// Takes the line that the policy has evicted out of its slot; if none, another clean one.
    fn take_victim(&mut self, victim: Option<Slot>) -> Option<Slot> {
        let slot = victim.or_else(|| {
            let slot = self.lines.next_clean()?;
            self.policy.on_remove(slot);
            Some(slot)
        })?;
        self.lines.remove(slot);
        Some(slot)
    }

    fn insert(&mut self, slot: Option<Slot>, line: u32, hint: Hint, arrival: Arrival) {
        if let Some(slot) = slot {
            self.lines.insert(slot, line, arrival);
            self.policy.on_insert(slot, key_of(line), hint);
        }
    }
}
