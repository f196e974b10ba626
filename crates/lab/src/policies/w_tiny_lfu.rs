//! W-TinyLFU: a frequency sketch decides on admission to the main part.
//!
//! New lines enter a small LRU window. A line that leaves the window competes with the line that
//! the main part would evict; the one used more often, according to a sketch of 4-bit counters that
//! decay by halving, stays. The main part is a segmented LRU, 80 % of it protected (Einziger,
//! Friedman and Manes, TOS 2017). The share of the window starts at 1 % and follows the hit ratio
//! by hill climbing (Einziger et al., Middleware 2018).

use super::sketch::Sketch;
use forebay_policy::list::{Links, List};
use forebay_policy::{Eviction, Hint, Lines, Slot};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Window,
    Probation,
    Protected,
}

/// See the module.
pub struct WTinyLfu {
    capacity: usize,
    links: Links,
    window: List,
    probation: List,
    protected: List,
    places: Box<[Place]>,
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
    /// A policy for `capacity` lines.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            links: Links::new(capacity),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            places: vec![Place::Window; capacity].into_boxed_slice(),
            keys: vec![0; capacity].into_boxed_slice(),
            sketch: Sketch::new(capacity),
            window_len_max: (capacity / 100).max(1),
            climber: Climber::new(capacity),
        }
    }

    fn list(&mut self, place: Place) -> (&mut Links, &mut List) {
        let list = match place {
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
        };
        (&mut self.links, list)
    }

    fn put(&mut self, slot: Slot, place: Place) {
        self.places[slot as usize] = place;
        let (links, list) = self.list(place);
        links.push_front(list, slot);
    }

    fn take(&mut self, slot: Slot) {
        let (links, list) = self.list(self.places[slot as usize]);
        links.remove(list, slot);
    }

    fn evict_from(&mut self, place: Place, lines: &dyn Lines) -> Option<Slot> {
        let (links, list) = self.list(place);
        let slot = links.last_that_may_go(list, lines)?;
        links.remove(list, slot);
        Some(slot)
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
        while self.protected.len() > self.protected_len_max() {
            let slot = self.protected.back();
            self.take(slot);
            self.put(slot, Place::Probation);
        }
    }

    /// Compares the last line of the window with the last one of probation and evicts one.
    fn evict_loser(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let (links, list) = self.list(Place::Window);
        let candidate = links.last_that_may_go(list, lines)?;
        let (links, list) = self.list(Place::Probation);
        let Some(victim) = links.last_that_may_go(list, lines) else {
            self.take(candidate);
            return Some(candidate);
        };
        let (candidate_key, victim_key) =
            (self.keys[candidate as usize], self.keys[victim as usize]);
        self.take(candidate);
        if self.sketch.estimate(candidate_key) > self.sketch.estimate(victim_key) {
            self.put(candidate, Place::Probation);
            self.take(victim);
            Some(victim)
        } else {
            Some(candidate)
        }
    }
}

impl Eviction for WTinyLfu {
    fn name(&self) -> &'static str {
        "w-tinylfu"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        self.keys[slot as usize] = key;
        self.put(slot, Place::Window);
        self.on_access(key, false);
        // The window is too long while the cache fills and after it was made smaller. Two moves per
        // insertion catch up with any change.
        for _ in 0..2 {
            if self.window.len() > self.window_len_max {
                let slot = self.window.back();
                self.take(slot);
                self.put(slot, Place::Probation);
            }
        }
    }

    fn on_hit(&mut self, slot: Slot) {
        match self.places[slot as usize] {
            Place::Window => self.links.move_to_front(&mut self.window, slot),
            Place::Protected => self.links.move_to_front(&mut self.protected, slot),
            Place::Probation => {
                self.take(slot);
                self.put(slot, Place::Protected);
                self.demote_protected();
            }
        }
        self.on_access(self.keys[slot as usize], true);
    }

    fn on_remove(&mut self, slot: Slot) {
        self.take(slot);
    }

    fn evict(&mut self, _incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        let contest = self.window.len() >= self.window_len_max;
        let found = if contest { self.evict_loser(lines) } else { None };
        found
            .or_else(|| self.evict_from(Place::Probation, lines))
            .or_else(|| self.evict_from(Place::Protected, lines))
            .or_else(|| self.evict_from(Place::Window, lines))
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.heap_bytes()
            + size_of_val(&*self.places)
            + size_of_val(&*self.keys)
            + self.sketch.heap_bytes()
    }

    fn self_check(&self) {
        for (list, place) in [
            (&self.window, Place::Window),
            (&self.probation, Place::Probation),
            (&self.protected, Place::Protected),
        ] {
            self.links.check(list, |slot| assert_eq!(self.places[slot as usize], place));
        }
        let resident = self.window.len() + self.probation.len() + self.protected.len();
        assert_eq!(self.links.listed_count(), resident);
        assert!((1..=self.capacity).contains(&self.window_len_max));
    }
}
