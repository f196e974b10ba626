//! Clock2Q+: S3-FIFO with a correlation window.
//!
//! An operation often uses a new block several times at once and then never again. Therefore hits
//! on the newer half of the small queue (the *window*) do not count; one hit on the older half
//! does, and promotes the line to main. Main is a clock with one bit per line. Half as many ghosts
//! as lines; a line whose ghost is found goes to main (Zhai et al., VLDB 2026). The small queue is
//! a tenth of the lines.

use super::ghost::Ghosts;
use forebay_policy::list::{Links, List, NIL, PASS_OVER_MAX};
use forebay_policy::{Eviction, Hint, Lines, Slot};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Window,
    Small,
    Main,
}

/// See the module.
pub struct Clock2QPlus {
    links: Links,
    /// The newer half of the small queue.
    window: List,
    /// The older half.
    small: List,
    main: List,
    ghosts: Ghosts,
    places: Box<[Place]>,
    referenced: Box<[bool]>,
    small_len_target: usize,
    window_len_max: usize,
    /// The last incoming key that was found among the ghosts.
    recalled: Option<u64>,
}

impl Clock2QPlus {
    /// A policy for `capacity` lines.
    pub fn new(capacity: usize) -> Self {
        let small_len_target = (capacity / 10).max(1);
        Self {
            links: Links::new(capacity),
            window: List::new(),
            small: List::new(),
            main: List::new(),
            ghosts: Ghosts::new((capacity / 2).max(1)),
            places: vec![Place::Window; capacity].into_boxed_slice(),
            referenced: vec![false; capacity].into_boxed_slice(),
            small_len_target,
            window_len_max: small_len_target.div_ceil(2),
            recalled: None,
        }
    }

    fn put(&mut self, slot: Slot, place: Place) {
        self.places[slot as usize] = place;
        self.referenced[slot as usize] = false;
        self.links.push_front(list(place, &mut self.window, &mut self.small, &mut self.main), slot);
    }

    fn take(&mut self, slot: Slot) {
        let place = self.places[slot as usize];
        self.links.remove(list(place, &mut self.window, &mut self.small, &mut self.main), slot);
    }

    fn evict_from_small(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = self.small.back();
        let mut passed = 0;
        while slot != NIL && passed < PASS_OVER_MAX {
            let next = self.links.fore(slot);
            if self.referenced[slot as usize] {
                self.take(slot);
                self.put(slot, Place::Main);
            } else if lines.may_go(slot) {
                self.take(slot);
                self.ghosts.push(lines.key(slot));
                return Some(slot);
            } else {
                passed += 1;
            }
            slot = next;
        }
        self.links.rotate_behind(&mut self.small, slot);
        None
    }

    /// The fallback if the older half has nothing to evict; at the smallest capacities, it never
    /// has.
    fn evict_from_window(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_that_may_go(&mut self.window, lines)?;
        self.take(slot);
        self.ghosts.push(lines.key(slot));
        Some(slot)
    }

    fn evict_from_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut passed = 0;
        while passed < PASS_OVER_MAX.min(self.main.len()) {
            let slot = self.main.back();
            let referenced = &mut self.referenced[slot as usize];
            if !*referenced && lines.may_go(slot) {
                self.take(slot);
                return Some(slot);
            }
            passed += usize::from(!*referenced);
            *referenced = false;
            self.links.move_to_front(&mut self.main, slot);
        }
        None
    }
}

/// The list of a place; apart from `self` so that the links can be borrowed beside it.
fn list<'a>(
    place: Place,
    window: &'a mut List,
    small: &'a mut List,
    main: &'a mut List,
) -> &'a mut List {
    match place {
        Place::Window => window,
        Place::Small => small,
        Place::Main => main,
    }
}

impl Eviction for Clock2QPlus {
    fn name(&self) -> &'static str {
        "clock2q+"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, _hint: Hint) {
        if self.recalled.take() == Some(key) || self.ghosts.remove(key) {
            self.put(slot, Place::Main);
            return;
        }
        self.put(slot, Place::Window);
        if self.window.len() > self.window_len_max {
            let aged = self.window.back();
            self.take(aged);
            self.put(aged, Place::Small);
        }
    }

    fn on_hit(&mut self, slot: Slot) {
        self.referenced[slot as usize] = self.places[slot as usize] != Place::Window;
    }

    fn on_remove(&mut self, slot: Slot) {
        self.take(slot);
    }

    fn evict(&mut self, incoming: u64, _hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        if self.recalled != Some(incoming) {
            self.recalled = self.ghosts.remove(incoming).then_some(incoming);
        }
        let small_first = self.window.len() + self.small.len() >= self.small_len_target;
        let first = if small_first || self.main.is_empty() {
            self.evict_from_small(lines).or_else(|| self.evict_from_main(lines))
        } else {
            self.evict_from_main(lines).or_else(|| self.evict_from_small(lines))
        };
        first.or_else(|| self.evict_from_window(lines))
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.heap_bytes()
            + self.ghosts.heap_bytes()
            + size_of_val(&*self.places)
            + size_of_val(&*self.referenced)
    }

    fn self_check(&self) {
        for (list, place) in
            [(&self.window, Place::Window), (&self.small, Place::Small), (&self.main, Place::Main)]
        {
            self.links.check(list, |slot| assert_eq!(self.places[slot as usize], place));
        }
        let resident = self.window.len() + self.small.len() + self.main.len();
        assert_eq!(self.links.listed_count(), resident);
        assert!(self.window.len() <= self.window_len_max, "the window is too long");
        self.ghosts.self_check();
    }
}
