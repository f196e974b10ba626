//! Slabs: the unit in which a shard gives memory back and takes it again.
//!
//! A slab is a range of consecutive slots, with the size of a huge page in the runtime. The line
//! table and all other metadata keep their full size; only the data of a slab is given back.
//!
//! | state | its slots | leaves by |
//! | --- | --- | --- |
//! | in use | hold lines, or are free | a shrink, which chooses the least valuable slabs |
//! | emptying | take no new line; `resize` drops and moves the lines in them | being empty |
//! | empty | hold nothing; the driver is giving their memory back | [`Slabs::gave_back`] |
//! | given back | hold nothing and have no memory | a growth |
//!
//! The line table outlives the process and shows which slabs are given back: each of their slots
//! has the key [`crate::LineKey::AWAY`], which is set before the shard reports the slab as empty.
//! If only some slots of a slab have this key, the slab is in use. So a process that adopts the
//! table continues with the same size, at whatever point its predecessor was killed. It gives the
//! memory of these slabs back once more, because the predecessor may have died before doing so.
//!
//! The free slots of each slab form a list of their own, linked through `pins` in the table.
//! A single list of all free slots would have to be searched for those of an emptying slab.
//! The price: five bytes for each slab, and eight more during a shrink.

use crate::Slot;
use crate::line::bits::SlotSet;
use crate::line::meta::NO_SLOT;
use std::cmp::{Ordering, Reverse};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlabState {
    InUse,
    Emptying,
    Empty,
    GivenBack,
}

/// A range of slots whose memory is given back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The number of the slab in its shard.
    pub number: usize,
    /// Its first slot.
    pub first: Slot,
    /// The number of its slots. Only the last slab may have fewer than the others.
    pub count: Slot,
}

impl Slab {
    pub(crate) const fn slots(self) -> Range<Slot> {
        self.first..self.first + self.count
    }
}

/// The slabs of a shard. Borrowed from [`crate::Slots::slabs`], for queries only.
#[derive(Debug)]
pub struct Slabs {
    /// All slots of the shard.
    slots: Slot,
    /// Slots of a slab.
    slab_slots: Slot,
    states: Box<[SlabState]>,
    /// The first free slot of each slab; [`NO_SLOT`] if there is none.
    free: Box<[Slot]>,
    /// Slabs in use that have a free slot.
    open: SlotSet,
    /// Slots of the slabs in use.
    usable: Slot,
    /// Slabs in each state except given back.
    in_use: usize,
    emptying: usize,
    empty: usize,
    /// The number of slabs that should be in use.
    target: usize,
    /// While a shrink compares slabs: the values of those compared so far, from the first one on.
    values: Vec<u64>,
    search: Search,
}

/// The progress of the search for lines in emptying slabs.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// The slab to examine next.
    pub slab: usize,
    /// The first slot in it that was not examined in this round.
    pub slot: Slot,
    /// The next entry of the parity places to examine.
    pub parity: Slot,
    /// Whether parity was found in an emptying slab.
    pub sees_parity: bool,
    /// Steps since the last one that dropped or moved something.
    pub quiet: usize,
}

impl Slabs {
    pub(crate) fn new(slots: usize, slab_slots: usize) -> Self {
        assert!(slab_slots > 0, "a slab has at least one slot");
        let slab_slots = slab_slots.min(slots).max(1);
        let slabs = slots.div_ceil(slab_slots);
        Self {
            slots: slots as Slot,
            slab_slots: slab_slots as Slot,
            states: vec![SlabState::InUse; slabs].into_boxed_slice(),
            free: vec![NO_SLOT; slabs].into_boxed_slice(),
            open: SlotSet::new(slabs),
            usable: slots as Slot,
            in_use: slabs,
            emptying: 0,
            empty: 0,
            target: slabs,
            values: Vec::new(),
            search: Search::default(),
        }
    }

    /// Slots that may hold lines: those of the slabs in use.
    pub const fn usable(&self) -> Slot {
        self.usable
    }

    /// The slots that may hold lines when the resize in progress is complete. They may be fewer if
    /// the last slab is short.
    pub fn target(&self) -> Slot {
        if self.in_use == self.target {
            return self.usable;
        }
        (self.target as Slot).saturating_mul(self.slab_slots).min(self.slots)
    }

    /// Whether a resize is in progress.
    pub const fn is_resizing(&self) -> bool {
        self.in_use != self.target || self.emptying + self.empty > 0
    }

    /// How the number of slabs in use compares with the target.
    pub(crate) fn compare_with_target(&self) -> Ordering {
        self.in_use.cmp(&self.target)
    }

    pub(crate) const fn is_emptying(&self) -> bool {
        self.emptying > 0
    }

    /// The slabs that are given back or empty, in ascending order. The data of their slots is void.
    pub fn given_back(&self) -> impl Iterator<Item = Slab> + '_ {
        let numbers = 0..self.states.len();
        numbers.filter(move |&slab| self.is_given_back(slab)).map(move |slab| self.slab(slab))
    }

    pub(crate) fn slab(&self, number: usize) -> Slab {
        let first = number as Slot * self.slab_slots;
        Slab { number, first, count: self.slab_slots.min(self.slots - first) }
    }

    const fn number_of(&self, slot: Slot) -> usize {
        (slot / self.slab_slots) as usize
    }

    /// Whether a slab is given back or empty.
    pub fn is_given_back(&self, slab: usize) -> bool {
        matches!(self.states[slab], SlabState::Empty | SlabState::GivenBack)
    }

    /// Whether a resident line may stay in a slot. Lines are only in slabs in use or emptying.
    #[inline]
    pub(crate) fn keeps(&self, slot: Slot) -> bool {
        self.emptying == 0 || self.is_usable(slot)
    }

    /// Whether a slot may take a line.
    pub(crate) fn is_usable(&self, slot: Slot) -> bool {
        self.states[self.number_of(slot)] == SlabState::InUse
    }

    /// Whether any slot in the slab of `slot`, or in a later slab, may take a line.
    pub(crate) fn is_any_usable_from(&self, slot: Slot) -> bool {
        slot < self.slots && self.states[self.number_of(slot)..].contains(&SlabState::InUse)
    }

    /// The end of the slab that contains a slot, if the slab is empty or given back.
    pub(crate) fn end_if_away(&self, slot: Slot) -> Option<Slot> {
        let number = self.number_of(slot);
        self.is_given_back(number).then(|| self.slab(number).slots().end)
    }

    /// A free slot that may take a line.
    #[inline]
    pub(crate) fn first_free(&self) -> Option<Slot> {
        if self.open.len() == 0 {
            return None;
        }
        self.open.iter().next().map(|slab| self.free[slab as usize])
    }

    /// Removes the first free slot of a slab from its list. `next` is the slot after it there.
    pub(crate) fn pop_free(&mut self, slot: Slot, next: Slot) {
        let slab = self.number_of(slot);
        assert!(self.free[slab] == slot, "slot {slot} is not the first free one of its slab");
        self.free[slab] = next;
        if next == NO_SLOT {
            self.open.remove(slab as Slot);
        }
    }

    /// Adds a slot to the front of its slab's list of free slots. Returns the slot after it, to
    /// which the caller links it.
    pub(crate) fn push_free(&mut self, slot: Slot) -> Slot {
        let slab = self.number_of(slot);
        assert!(!self.is_given_back(slab), "slot {slot} of a slab that is given back is freed");
        if self.states[slab] == SlabState::InUse {
            self.open.insert(slab as Slot);
        }
        std::mem::replace(&mut self.free[slab], slot)
    }

    /// Sets the number of slots that may hold lines, rounded down to whole slabs, but at least one.
    pub(crate) fn set_target(&mut self, slots: usize) {
        let slabs = slots / self.slab_slots as usize;
        let all = slots >= self.slots as usize;
        self.target = if all { self.states.len() } else { slabs.max(1) };
        if self.in_use <= self.target {
            self.values = Vec::new();
        }
    }

    /// Records the values of the slabs from the first unknown one on, until `slots_max` slots have
    /// been examined. Returns whether all values are known.
    pub(crate) fn rank(&mut self, slots_max: Slot, value: impl Fn(Slot) -> u64) -> bool {
        let mut examined = 0;
        while self.values.len() < self.states.len() && examined < slots_max {
            let slab = self.values.len();
            let value = match self.states[slab] {
                SlabState::InUse => self.slab(slab).slots().map(&value).sum(),
                _ => u64::MAX,
            };
            self.values.push(value);
            examined += self.slab_slots;
        }
        self.values.len() == self.states.len()
    }

    /// Begins to empty the least valuable slabs, as many as are in use beyond the target. Of
    /// equally valuable slabs, those with higher numbers go first, because lower slots are used
    /// first.
    pub(crate) fn choose(&mut self) -> Vec<Slab> {
        let values = std::mem::take(&mut self.values);
        let count = self.in_use.saturating_sub(self.target);
        let in_use = |slab: &usize| self.states[*slab] == SlabState::InUse;
        let mut slabs: Vec<usize> = (0..self.states.len()).filter(in_use).collect();
        if (1..slabs.len()).contains(&count) {
            slabs.select_nth_unstable_by_key(count - 1, |&slab| (values[slab], Reverse(slab)));
        }
        slabs.truncate(count);
        for &slab in &slabs {
            self.states[slab] = SlabState::Emptying;
            self.open.remove(slab as Slot);
            self.usable -= self.slab(slab).count;
        }
        self.in_use -= slabs.len();
        self.emptying += slabs.len();
        self.search = Search::default();
        slabs.into_iter().map(|slab| self.slab(slab)).collect()
    }

    /// Takes an emptying slab into use again.
    pub(crate) fn cancel_emptying(&mut self) -> Option<Slab> {
        if self.emptying == 0 {
            return None;
        }
        let found = self.states.iter().position(|&state| state == SlabState::Emptying)?;
        self.emptying -= 1;
        self.begin_use(found);
        Some(self.slab(found))
    }

    pub(crate) const fn search(&self) -> &Search {
        &self.search
    }

    pub(crate) const fn search_mut(&mut self) -> &mut Search {
        &mut self.search
    }

    /// The emptying slab at which the search continues.
    pub(crate) fn next_emptying(&mut self) -> Slab {
        let (count, from) = (self.states.len(), self.search.slab);
        let mut numbers = (from..count).chain(0..from.min(count));
        let found = numbers.find(|&slab| self.states[slab] == SlabState::Emptying);
        let number = found.expect("a slab is being emptied");
        if number != from {
            (self.search.slab, self.search.slot) = (number, 0);
        }
        self.slab(number)
    }

    /// Counts a step of the search. Returns whether the last steps have examined everything without
    /// progress. The parity places take `parity_steps` steps.
    pub(crate) fn is_search_over(&mut self, progress: bool, parity_steps: usize) -> bool {
        self.search.quiet = if progress { 0 } else { self.search.quiet + 1 };
        let round = self.emptying.max(if self.search.sees_parity { parity_steps } else { 0 });
        let is_over = !progress && self.search.quiet >= round;
        if is_over {
            (self.search.quiet, self.search.sees_parity) = (0, false);
        }
        is_over
    }

    /// A slab that is given back, to be taken into use again.
    pub(crate) fn next_given_back(&self) -> Option<Slab> {
        let found = self.states.iter().position(|&state| state == SlabState::GivenBack)?;
        Some(self.slab(found))
    }

    /// Takes a slab that was given back into use again. Its slots are not free yet.
    pub(crate) fn take_back(&mut self, slab: Slab) {
        assert!(self.states[slab.number] == SlabState::GivenBack, "{slab:?} is not given back");
        assert!(self.free[slab.number] == NO_SLOT, "{slab:?} has free slots");
        self.begin_use(slab.number);
    }

    fn begin_use(&mut self, slab: usize) {
        self.states[slab] = SlabState::InUse;
        self.in_use += 1;
        self.usable += self.slab(slab).count;
        if self.free[slab] != NO_SLOT {
            self.open.insert(slab as Slot);
        }
    }

    /// Marks an emptying slab as empty: its free slots are forgotten.
    pub(crate) fn set_empty(&mut self, slab: Slab) {
        assert!(self.states[slab.number] == SlabState::Emptying, "{slab:?} was not being emptied");
        self.states[slab.number] = SlabState::Empty;
        self.free[slab.number] = NO_SLOT;
        self.emptying -= 1;
        self.empty += 1;
    }

    /// Records that the driver has given the memory of an empty slab back.
    ///
    /// # Panics
    /// If the slab was not reported as empty.
    pub(crate) fn gave_back(&mut self, slab: Slab) {
        assert!(self.states[slab.number] == SlabState::Empty, "{slab:?} is not empty");
        self.states[slab.number] = SlabState::GivenBack;
        self.empty -= 1;
    }

    /// Marks a slab as given back, because all of its slots in an adopted table are marked. The
    /// target becomes the number of slabs in use.
    pub(crate) fn adopt_given_back(&mut self, slab: usize) {
        assert!(self.states[slab] == SlabState::InUse && self.free[slab] == NO_SLOT);
        self.states[slab] = SlabState::GivenBack;
        self.in_use -= 1;
        self.usable -= self.slab(slab).count;
        self.target = self.in_use;
    }

    /// All slabs.
    pub(crate) fn all(&self) -> impl Iterator<Item = Slab> + use<> {
        let (slots, slab_slots) = (self.slots, self.slab_slots);
        (0..self.states.len()).map(move |number| {
            let first = number as Slot * slab_slots;
            Slab { number, first, count: slab_slots.min(slots - first) }
        })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.states)
            + size_of_val(&*self.free)
            + self.open.metadata_bytes()
            + self.values.capacity() * size_of::<u64>()
    }

    /// Panics if the states are inconsistent. `next_of` is the link of a free slot; `is_empty` is
    /// whether a slot holds nothing, and `is_away` whether the table shows it as given back.
    /// Returns the number of free slots.
    pub(crate) fn self_check(
        &self,
        next_of: impl Fn(Slot) -> Slot,
        is_empty: impl Fn(Slot) -> bool,
        is_away: impl Fn(Slot) -> bool,
    ) -> usize {
        let count = |state| self.states.iter().filter(|&&found| found == state).count();
        let counts = [SlabState::InUse, SlabState::Emptying, SlabState::Empty].map(count);
        assert_eq!(counts, [self.in_use, self.emptying, self.empty], "slabs in each state");
        assert!((1..=self.states.len()).contains(&self.target), "a target of {}", self.target);
        let (mut usable, mut free) = (0, 0);
        for slab in self.all() {
            let state = self.states[slab.number];
            usable += if state == SlabState::InUse { slab.count } else { 0 };
            let is_away_now = matches!(state, SlabState::Empty | SlabState::GivenBack);
            for slot in slab.slots() {
                assert_eq!(is_away(slot), is_away_now, "slot {slot} of a slab that is {state:?}");
            }
            let mut slot = self.free[slab.number];
            let is_open = state == SlabState::InUse && slot != NO_SLOT;
            assert_eq!(self.open.contains(slab.number as Slot), is_open, "{slab:?} is {state:?}");
            while slot != NO_SLOT {
                assert!(slab.slots().contains(&slot) && is_empty(slot), "free slot {slot}");
                free += 1;
                assert!(free <= self.slots as usize, "a list of free slots is a ring");
                slot = next_of(slot);
            }
        }
        assert_eq!(usable, self.usable, "slots of the slabs in use");
        free
    }
}

#[cfg(test)]
#[path = "slabs_tests.rs"]
mod tests;
