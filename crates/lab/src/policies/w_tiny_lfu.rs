//! W-TinyLFU: a frequency sketch decides on admission to the main part.
//!
//! New lines enter a small LRU window. A line that leaves the window competes with the line that
//! the main part would evict; the one used more often, according to a sketch of 4-bit counters that
//! decay by halving, stays. The main part is a segmented LRU, 80 % of it protected (Einziger,
//! Friedman and Manes, TOS 2017). The share of the window starts at 1 % and follows the hit ratio
//! by hill climbing (Einziger et al., Middleware 2018).

use super::queues::Queues;
use super::sketch::Sketch;
use forebay_policy::{Eviction, Hint, Lines, Slot};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

pub struct WTinyLfu {
    capacity: usize,
    queues: Queues<3>,
    /// Keys by slot: the sketch counts keys, but a hit names only the slot.
    keys: Box<[u64]>,
    sketch: Sketch,
    window_len_max: usize,
    climber: Climber,
}

/// Hill climbing: moves the window's size in one direction while the hit ratio rises.
struct Climber {
    hits: u32,
    accesses: u32,
    accesses_per_step: u32,
    hit_ratio_before: f32,
    /// Lines by which the window changes next, with the direction as the sign.
    step: f32,
    step_max: f32,
}

impl Climber {
    fn new(capacity: usize) -> Self {
        let step_max = capacity as f32 / 16.0;
        Self {
            hits: 0,
            accesses: 0,
            accesses_per_step: (10 * capacity).min(1 << 30) as u32,
            hit_ratio_before: 0.0,
            step: step_max,
            step_max,
        }
    }

    /// Counts an access; at the end of a period, returns the lines by which the window grows.
    fn on_access(&mut self, hit: bool) -> Option<isize> {
        self.accesses += 1;
        self.hits += u32::from(hit);
        if self.accesses < self.accesses_per_step {
            return None;
        }
        let hit_ratio = self.hits as f32 / self.accesses as f32;
        let change = hit_ratio - self.hit_ratio_before;
        if change < 0.0 {
            self.step = -self.step;
        }
        // A jump of the hit ratio indicates another workload: restart with large steps.
        let size = if change.abs() >= 0.05 { self.step_max } else { self.step.abs() * 0.98 };
        self.step = size.copysign(self.step);
        (self.hits, self.accesses, self.hit_ratio_before) = (0, 0, hit_ratio);
        Some(self.step as isize)
    }
}

impl WTinyLfu {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            queues: Queues::new(capacity),
            keys: vec![0; capacity].into_boxed_slice(),
            sketch: Sketch::new(capacity),
            window_len_max: (capacity / 100).max(1),
            climber: Climber::new(capacity),
        }
    }

    fn on_access(&mut self, key: u64, hit: bool) {
        self.sketch.count(key);
        if let Some(growth) = self.climber.on_access(hit) {
            let most = (self.capacity * 4 / 5).max(1);
            self.window_len_max = self.window_len_max.saturating_add_signed(growth).clamp(1, most);
        }
    }

    fn protected_len_max(&self) -> usize {
        (self.capacity - self.window_len_max) * 4 / 5
    }

    fn demote_protected(&mut self) {
        while self.queues.len(PROTECTED) > self.protected_len_max() {
            self.queues.move_to(PROBATION, self.queues.back(PROTECTED));
        }
    }

    /// Compares the last line of the window with the last one of probation and evicts one.
    fn evict_loser(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let candidate = self.queues.last_evictable(WINDOW, lines)?;
        let Some(victim) = self.queues.last_evictable(PROBATION, lines) else {
            self.queues.remove(candidate);
            return Some(candidate);
        };
        let frequency = |slot: Slot| self.sketch.estimate(self.keys[slot as usize]);
        let loser = if frequency(candidate) > frequency(victim) {
            self.queues.move_to(PROBATION, candidate);
            victim
        } else {
            candidate
        };
        self.queues.remove(loser);
        Some(loser)
    }
}

impl Eviction for WTinyLfu {
    fn name(&self) -> &'static str {
        "w-tinylfu"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        self.keys[slot as usize] = key;
        self.queues.push(WINDOW, slot);
        self.on_access(key, false);
        // The window is too long while the cache fills and after it was made smaller. Two moves per
        // insertion catch up with any change.
        for _ in 0..2 {
            if self.queues.len(WINDOW) > self.window_len_max {
                self.queues.move_to(PROBATION, self.queues.back(WINDOW));
            }
        }
    }

    fn on_hit(&mut self, slot: Slot) {
        if self.queues.queue_of(slot) == PROBATION {
            self.queues.move_to(PROTECTED, slot);
            self.demote_protected();
        } else {
            self.queues.move_to_front(slot);
        }
        self.on_access(self.keys[slot as usize], true);
    }

    fn on_remove(&mut self, slot: Slot) {
        self.queues.remove(slot);
    }

    fn evict(&mut self, _incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let contest = self.queues.len(WINDOW) >= self.window_len_max;
        let found = if contest { self.evict_loser(lines) } else { None };
        found
            .or_else(|| self.queues.evict(PROBATION, lines))
            .or_else(|| self.queues.evict(PROTECTED, lines))
            .or_else(|| self.queues.evict(WINDOW, lines))
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.queues.heap_bytes()
            + size_of_val(&*self.keys)
            + self.sketch.heap_bytes()
    }

    fn self_check(&self) {
        self.queues.self_check();
        assert!((1..=self.capacity).contains(&self.window_len_max));
    }
}
