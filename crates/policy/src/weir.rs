//! Weir, the default policy: a Clock2Q+ with an adaptive split between its queues.
//!
//! New lines enter a small queue; reused lines are in the main queue, a clock. As in Clock2Q+, hits
//! in the newer part of the small queue (the *window*) are ignored, because a new line is often
//! used again at once and then never. A line hit in the older part is promoted to main. A line that
//! returns while its ghost is remembered enters main directly, if such lines are worth their place
//! there: see `promotion.rs`.
//!
//! While main is below its share of the capacity, lines that leave the small queue without a hit
//! enter main too, instead of being evicted. Otherwise, without early hits, the whole cache would
//! be one FIFO, in which a loop over slightly more lines than it holds never hits. In main, most
//! lines of such a loop stay and are hit in each pass. Once main has its share, one in
//! `RENEWAL_PERIOD` of these lines replaces one of main. Otherwise, if no lines return, main would
//! stay full of lines that are no longer used.
//!
//! No fixed size of the small queue suits all workloads, so it is adaptive. A line may return soon
//! after its eviction, before its queue has evicted another `WATCH_SHARE` of the capacity. It would
//! have hit if the queue were longer by that many lines. Each such return moves the boundary by
//! `BOUNDARY_STEP` lines in favour of its queue. The boundary converges where one more line is
//! worth the same on either side. It does not converge if all lines that return do so a little
//! later; then main fills with lines that are never hit. So later returns count, too, once they are
//! far more frequent than hits in main: see `later.rs`.
//!
//! In a shard, not every line can be evicted. Slots for a long write are reserved before its lines
//! are known, and lines of a long read, or dirty ones, stay until the disk is done. All of these
//! are new lines, so the small queue provides their slots: vacated slots count as part of it, and
//! while it has no line to evict, its target rises above the boundary. Otherwise main would provide
//! them, and be filled with lines without hits in return: each long request would flush it.
//!
//! Lines of recognised streams skip the window and need two hits for promotion. The read that the
//! prefetch predicted is none of them; the engine does not report it. Without a hit, they leave no
//! ghost: a stream of any length passes through the older part of the small queue. A line that was
//! hit leaves one, and when it is read ahead again, one hit promotes it. Otherwise data that is
//! worth a place would be read ahead again in each pass.
//!
//! A write to an absent line costs no disk read, so a line that clients only write is not worth its
//! place, however often they write it. On some loads, written lines are read soon; on others, they
//! are not. `writes.rs` learns which. If written lines are not read, writes are ignored: they
//! neither promote lines nor spare them, and a line that was only written neither fills main nor
//! leaves a ghost. So it passes through the small queue, unless a client reads it there.
//!
//! Lines that were in main before a restart, by the volume's warm list, enter main again.
//!
//! Lines preloaded for a forecast wait in a list of their own. When a client reads one, it is
//! treated like a line of a stream that was read as predicted: it enters the small queue, and needs
//! one more hit for promotion. If no client reads it in time, the driver ends the wait, and the
//! line is evicted next. Lines of two forecasts can wait at once: of the current one and of the one
//! before. They replace only lines without hits: in the small queue, down to half of its target,
//! and in the older half of main. Slots taken from the small queue are only borrowed: the queue
//! gets them back when the waiting lines leave the list.
//!
//! The work of one eviction is bounded even when every line was hit: see [`STEPS_MAX`].
//!
//! Per line: 8 bytes of links, 1 of state, 4.4 of ghosts.

use self::later::LaterReturns;
use self::promotion::{NO_CLASS, Promotion, PromotionClass};
use self::state::{AFTER_HIT, AFTER_WRITE, HITS_MAX, LineQueue, LineState};
use self::writes::WriteValue;
use crate::fingerprints::{EvictedFrom, Fingerprints};
use crate::list::{Links, List, NIL, PASS_OVER_MAX};
use crate::{Eviction, Hint, Lines, Slot};
use forebay_types::{LINE_VALUE_HOT, LINE_VALUE_MAX};

/// Maximum capacity of one policy value: 64 GiB of 4 KiB lines in a single shard.
pub const CAPACITY_LINES_MAX: usize = 1 << 24;
/// Maximum lines that one eviction promotes or recirculates in one queue before it evicts the next
/// line regardless. Without it, a single eviction could walk a whole cache in which every line was
/// hit. Rarely reached: a typical eviction moves one or two lines.
pub const STEPS_MAX: usize = 256;

/// The initial, minimum and maximum share of the small queue. The minimum keeps enough evictions to
/// learn from; above the maximum, ghosts carry little information.
const SMALL_SHARE: f64 = 0.10;
const SMALL_SHARE_MIN: f64 = 0.01;
const SMALL_SHARE_MAX: f64 = 0.60;
/// The window's share of the small queue.
const WINDOW_SHARE: f64 = 0.5;
/// Ghosts of the small queue per line of capacity. More would promote lines that return too seldom.
const GHOST_SHARE: f64 = 0.90;
/// The evictions from a queue, per line of capacity, within which a return moves the boundary. Main
/// keeps no older ghosts.
const WATCH_SHARE: f64 = 0.05;
/// Lines by which such a return moves the boundary.
const BOUNDARY_STEP: usize = 2;
/// One in this many lines that would be evicted from the small queue replaces a line of main.
const RENEWAL_PERIOD: u32 = 64;
/// A forecast may evict lines without hits from the back of main: from as many lines as main's
/// length divided by this.
const WALK_SHARE: usize = 2;
/// See the module documentation.
pub struct Weir {
    links: Links,
    /// The newer part of the small queue.
    window: List,
    /// The older part.
    small: List,
    main: List,
    /// Lines of forecasts that no client has used yet.
    waiting: List,
    /// The parity of the current forecast.
    forecast: u8,
    /// Slots taken from the small queue for lines that still wait.
    borrowed: usize,
    /// The next line of main that a forecast may evict, and the lines left until the end of the
    /// older half.
    walk: u32,
    walk_left: usize,
    states: Box<[LineState]>,
    ghosts: Fingerprints,
    /// The number of lines that may be resident. The lengths below are shares of it.
    capacity: usize,
    /// The target length of window and small together: the boundary, unless the floor is higher.
    small_len_target: usize,
    /// The length that the small queue needs because few of its lines can be evicted. Zero if it
    /// needs no more than the boundary.
    small_len_floor: usize,
    /// The sum of the floor's heights above the boundary, over the evictions from the small queue
    /// since the floor fell.
    floor_debt: usize,
    /// Slots of evicted lines that have no line yet.
    vacated: usize,
    small_len_min: usize,
    small_len_max: usize,
    promotion: Promotion,
    writes: WriteValue,
    /// Later returns to the small queue and hits of main, both decayed.
    later: LaterReturns,
    /// Lines evicted from the small queue since one replaced a line of main.
    renewal_age: u32,
    /// The last incoming key that was looked up, and the class with which it goes to main.
    recalled: Option<(u64, Option<PromotionClass>)>,
}

impl Weir {
    /// A policy for `capacity` lines, with all the memory that it will ever need.
    ///
    /// # Panics
    /// When `capacity` is zero or more than [`CAPACITY_LINES_MAX`].
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a policy needs at least one line");
        assert!(
            capacity <= CAPACITY_LINES_MAX,
            "{capacity} lines in one shard: use more shards of at most {CAPACITY_LINES_MAX} lines"
        );
        let share = |share: f64| share_of(capacity, share);
        Self {
            links: Links::new(capacity),
            window: List::new(),
            small: List::new(),
            main: List::new(),
            waiting: List::new(),
            forecast: 0,
            borrowed: 0,
            walk: NIL,
            walk_left: 0,
            states: vec![LineState::new(LineQueue::Window); capacity].into_boxed_slice(),
            ghosts: Fingerprints::new(capacity, share(GHOST_SHARE), share(WATCH_SHARE)),
            capacity,
            small_len_target: share(SMALL_SHARE),
            small_len_floor: 0,
            floor_debt: 0,
            vacated: 0,
            small_len_min: share(SMALL_SHARE_MIN),
            small_len_max: share(SMALL_SHARE_MAX),
            promotion: Promotion::new(share(WATCH_SHARE)),
            writes: WriteValue::default(),
            later: LaterReturns::default(),
            renewal_age: 0,
            recalled: None,
        }
    }

    /// Returns the class with which `key` goes to main, if it has a ghost that is worth it. Removes
    /// the ghost and moves the boundary.
    fn recall(&mut self, key: u64) -> Option<PromotionClass> {
        let (origin, age_share) = self.ghosts.take(key)?;
        let class = Promotion::class_of(origin, age_share);
        match origin {
            EvictedFrom::Small => {
                let age = f64::from(age_share) * GHOST_SHARE;
                if age < WATCH_SHARE || self.later.count_return(age, self.main.len(), self.capacity)
                {
                    let target = self.small_len_target + BOUNDARY_STEP;
                    self.small_len_target = target.min(self.small_len_max);
                }
            }
            EvictedFrom::Main => {
                let target = self.small_len_target.saturating_sub(BOUNDARY_STEP);
                self.small_len_target = target.max(self.small_len_min);
                self.promotion.on_return(age_share, self.main.len());
            }
        }
        // Below its share, main displaces no line.
        let has_space = self.main.len() + self.small_len_wanted() < self.capacity;
        (has_space || self.promotion.admit(class, self.main.len())).then_some(class)
    }

    /// Whether a line with this hint may return from its ghost.
    fn may_recall(&self, hint: Hint) -> bool {
        match hint {
            Hint::Normal | Hint::Stream => true,
            Hint::Write => self.writes.pay(),
            Hint::Hot | Hint::Forecast => false,
        }
    }

    /// Moves excess lines of the window to the older part, and excess lines of the older part to
    /// main. An insertion adds one and moves the boundary by [`BOUNDARY_STEP`] lines at most.
    fn age_lines(&mut self) {
        let window_len_max = (self.small_len_target as f64 * WINDOW_SHARE).ceil() as usize;
        let len_max = self.small_len_wanted().saturating_sub(self.vacated);
        let len_max = len_max.max(self.small_len_target / 2);
        for _ in 0..=BOUNDARY_STEP {
            if self.window.len() > window_len_max {
                let slot = self.window.back();
                let state = self.states[slot as usize];
                self.take(slot);
                self.put(slot, state.in_small());
            }
            // The small queue exceeds its target while main is below its share, and after the
            // capacity was reduced. Otherwise an eviction precedes each insertion.
            let slot = self.small.back();
            if self.small_len() > len_max && self.may_fill_main(slot) {
                self.count_exit(slot);
                self.take(slot);
                self.put(slot, LineState::main(NO_CLASS));
            }
        }
    }

    /// Whether a line of the small queue, if there is one, may enter main without a hit: a stream
    /// must not fill main.
    fn may_fill_main(&self, slot: Slot) -> bool {
        if slot == NIL {
            return false;
        }
        let state = self.states[slot as usize];
        !state.is_stream() && (self.writes.pay() || !state.is_unread())
    }

    /// Counts a line that has passed through the older part of the small queue.
    fn count_exit(&mut self, slot: Slot) {
        let state = self.states[slot as usize];
        if !state.is_stream() {
            let was_used = if state.is_written() { state.was_read() } else { state.hits() > 0 };
            self.writes.count(state.is_written(), was_used);
        }
    }

    /// Lines in the small queue, the window included.
    fn small_len(&self) -> usize {
        self.window.len() + self.small.len()
    }

    /// The length of the small queue from which on it provides the slots of new lines.
    fn small_len_wanted(&self) -> usize {
        self.small_len_target.max(self.small_len_floor)
    }

    /// Evicts a line for one that is not of a forecast.
    fn evict_for_line(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let found = self.evict_by_length(lines).or_else(|| self.evict_from_waiting(lines));
        self.vacated += usize::from(found.is_some());
        found
    }

    /// Evicts a line of the small queue, if that has its length, otherwise of main.
    fn evict_by_length(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let resident = self.small_len() + self.borrowed;
        let len = resident + self.vacated;
        let is_short = len < self.small_len_wanted();
        // Vacated slots leave the queue half of its lines, or no hit could promote a new one.
        let is_halved = self.vacated > 0 && resident <= self.small_len_target / 2;
        if is_halved && !is_short {
            self.raise_floor(len);
        }
        if is_halved || is_short {
            return self.evict_from_main(lines).or_else(|| self.evict_after_main(lines));
        }
        let found = self.evict_from_small(lines).or_else(|| self.evict_from_window(lines));
        match found {
            Some(_) => self.lower_floor(),
            None => self.raise_floor(len),
        }
        found.or_else(|| self.evict_from_main(lines))
    }

    /// Evicts a line although main, which should provide it, has no evictable one.
    fn evict_after_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let found = self.evict_from_small(lines).or_else(|| self.evict_from_window(lines));
        // The older part may have promoted all its lines.
        found.or_else(|| self.evict_from_main(lines))
    }

    /// Lets the small queue, which takes `len` slots, take one of main's.
    fn raise_floor(&mut self, len: usize) {
        self.small_len_floor = (len + 1).min(self.capacity);
    }

    /// Lets the floor fall towards the boundary: to a third of its height above it while the small
    /// queue evicts as many lines as the cache has.
    fn lower_floor(&mut self) {
        let height = self.small_len_floor.saturating_sub(self.small_len_target);
        if height == 0 {
            (self.small_len_floor, self.floor_debt) = (0, 0);
            return;
        }
        self.floor_debt += height;
        if self.floor_debt >= self.capacity {
            self.floor_debt = 0;
            self.small_len_floor -= 1;
        }
    }

    /// Promotes hit lines of the older part to main until it finds a line to evict.
    fn evict_from_small(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = self.small.back();
        let (mut skipped, mut steps) = (0, 0);
        while slot != NIL && skipped < PASS_OVER_MAX && steps < STEPS_MAX {
            let next = self.links.fore(slot);
            if self.states[slot as usize].hits() > 0 {
                self.count_exit(slot);
                self.take(slot);
                self.put(slot, LineState::main(NO_CLASS));
                steps += 1;
            } else if lines.is_evictable(slot) {
                self.count_exit(slot);
                if self.promotes_to_main(slot) {
                    return self.evict_from_main(lines);
                }
                return Some(self.remove_evicted(slot, lines));
            } else {
                skipped += 1;
            }
            slot = next;
        }
        if skipped == PASS_OVER_MAX {
            self.links.rotate_behind(&mut self.small, slot);
        }
        None
    }

    /// Moves an unhit line of the small queue to main, if it is its turn. The caller then evicts
    /// from main.
    fn promotes_to_main(&mut self, slot: Slot) -> bool {
        let has_space = self.main.len() + self.small_len_wanted() < self.capacity;
        if has_space || !self.may_fill_main(slot) {
            return false;
        }
        self.renewal_age = (self.renewal_age + 1) % RENEWAL_PERIOD;
        if self.renewal_age > 0 {
            return false;
        }
        self.take(slot);
        self.put(slot, LineState::main(NO_CLASS));
        true
    }

    /// Advances the clock of main to an evictable line without hits left. After [`STEPS_MAX`] lines
    /// with hits, spares no more.
    fn evict_from_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let (mut skipped, mut steps) = (0, 0);
        while skipped < PASS_OVER_MAX.min(self.main.len()) {
            let slot = self.main.back();
            let state = &mut self.states[slot as usize];
            let is_spared = state.hits() > 0 && steps < STEPS_MAX;
            if is_spared {
                self.promotion.on_pass(state.class(), true);
                state.spend_hit();
                steps += 1;
            } else if lines.is_evictable(slot) {
                self.promotion.on_pass(state.class(), false);
                return Some(self.remove_evicted(slot, lines));
            } else {
                skipped += 1;
            }
            self.walk_past(slot);
            self.links.move_to_front(&mut self.main, slot);
        }
        None
    }

    /// Evicts from the window if the older part has no evictable line. At the smallest capacities,
    /// it never has one.
    fn evict_from_window(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_evictable(&mut self.window, lines)?;
        Some(self.remove_evicted(slot, lines))
    }

    /// Evicts a line that waits for its use. Only if no other line is evictable.
    fn evict_from_waiting(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let slot = self.links.last_evictable(&mut self.waiting, lines)?;
        Some(self.remove_evicted(slot, lines))
    }

    fn resident(&self) -> usize {
        self.small_len() + self.main.len() + self.waiting.len()
    }

    /// Evicts a line for one that a forecast needs: the next one without hits, of the small queue
    /// if that is long enough, or of the older half of main. No line is promoted or loses a hit,
    /// and no order changes.
    fn evict_for_forecast(&mut self, lines: &dyn Lines) -> Option<Slot> {
        if self.small_len() > self.small_len_target / 2
            && let Some(slot) = self.last_unhit_of_small(lines)
        {
            let evicted = self.remove_evicted(slot, lines);
            self.borrowed += 1;
            return Some(evicted);
        }
        let slot = self.next_unhit_of_main(lines)?;
        self.promotion.on_pass(self.states[slot as usize].class(), false);
        Some(self.remove_evicted(slot, lines))
    }

    /// The evictable line without hits nearest to the back of the older part of the small queue,
    /// among the last [`PASS_OVER_MAX`]. A prefetched line that its stream has not reached yet does
    /// not count.
    fn last_unhit_of_small(&self, lines: &dyn Lines) -> Option<Slot> {
        let mut slot = self.small.back();
        for _ in 0..PASS_OVER_MAX {
            if slot == NIL {
                return None;
            }
            if self.states[slot as usize].is_unhit() && lines.is_evictable(slot) {
                return Some(slot);
            }
            slot = self.links.fore(slot);
        }
        None
    }

    /// The next evictable line without hits in the older half of main. There is one walk for each
    /// forecast, and one call examines [`STEPS_MAX`] lines at most.
    fn next_unhit_of_main(&mut self, lines: &dyn Lines) -> Option<Slot> {
        for _ in 0..STEPS_MAX {
            let slot = self.walk;
            if slot == NIL || self.walk_left == 0 {
                return None;
            }
            (self.walk, self.walk_left) = (self.links.fore(slot), self.walk_left - 1);
            if self.states[slot as usize].hits() == 0 && lines.is_evictable(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Keeps the walk in main when a line leaves its place there.
    fn walk_past(&mut self, slot: Slot) {
        if self.walk == slot {
            self.walk = self.links.fore(slot);
        }
    }

    fn remove_evicted(&mut self, slot: Slot, lines: &dyn Lines) -> Slot {
        let state = self.states[slot as usize];
        self.take(slot);
        self.later.count_eviction(self.capacity);
        if !state.is_predicted() && (self.writes.pay() || !state.is_unread()) {
            let origin = if state.queue() == LineQueue::Main {
                EvictedFrom::Main
            } else {
                EvictedFrom::Small
            };
            self.ghosts.push(lines.key(slot), origin);
        }
        slot
    }

    fn put(&mut self, slot: Slot, state: LineState) {
        self.states[slot as usize] = state;
        let list = match state.queue() {
            LineQueue::Window => &mut self.window,
            LineQueue::Small => &mut self.small,
            LineQueue::Main => &mut self.main,
            LineQueue::Waiting => &mut self.waiting,
        };
        self.links.push_front(list, slot);
    }

    fn take(&mut self, slot: Slot) {
        self.walk_past(slot);
        let list = match self.states[slot as usize].queue() {
            LineQueue::Window => &mut self.window,
            LineQueue::Small => &mut self.small,
            LineQueue::Main => &mut self.main,
            LineQueue::Waiting => &mut self.waiting,
        };
        self.links.remove(list, slot);
        if self.states[slot as usize].queue() == LineQueue::Waiting {
            self.borrowed = self.borrowed.min(self.waiting.len());
        }
    }
}

impl Eviction for Weir {
    fn name(&self) -> &'static str {
        "weir"
    }

    fn on_insert(&mut self, slot: Slot, key: u64, hint: Hint) {
        let recalled = self.recalled.take();
        // Some slots never get a line of the policy.
        let free = self.capacity.saturating_sub(self.resident() + 1);
        self.vacated = self.vacated.saturating_sub(1).min(free);
        if hint == Hint::Hot {
            self.put(slot, LineState::main(NO_CLASS));
            return;
        }
        if hint == Hint::Forecast {
            self.put(slot, LineState::waiting(self.forecast));
            return;
        }
        let class = match recalled {
            Some((recalled_key, class)) if recalled_key == key => class,
            _ if self.may_recall(hint) => self.recall(key),
            _ => None,
        };
        if hint == Hint::Stream {
            let known = class.map(|_| LineState::used_stream());
            self.put(slot, known.unwrap_or(LineState::stream()));
            return;
        }
        let new = LineState::new(LineQueue::Window);
        let new = if hint == Hint::Write { new.written() } else { new };
        let state = class.map_or(new, LineState::main);
        self.put(slot, state);
        self.age_lines();
    }

    fn on_hit(&mut self, slot: Slot) {
        let state = &mut self.states[slot as usize];
        self.later.main_hits += u64::from(state.queue() == LineQueue::Main);
        *state = AFTER_HIT[state.0 as usize];
    }

    fn on_write(&mut self, slot: Slot) {
        if self.writes.pay() {
            let state = &mut self.states[slot as usize];
            *state = AFTER_WRITE[state.0 as usize];
        }
    }

    fn on_first_use(&mut self, slot: Slot) -> bool {
        let state = self.states[slot as usize];
        if state.queue() != LineQueue::Waiting {
            self.on_hit(slot);
            return false;
        }
        self.borrowed = self.borrowed.saturating_sub(1);
        self.take(slot);
        self.put(slot, LineState::used_stream());
        self.age_lines();
        state.forecast() == self.forecast
    }

    fn forecast_again(&mut self, slot: Slot) -> bool {
        let state = self.states[slot as usize];
        let is_known = match state.queue() {
            // There it stays longer than in the list, at the end of which it would be evicted next.
            LineQueue::Main => true,
            LineQueue::Waiting => state.forecast() == self.forecast,
            LineQueue::Window | LineQueue::Small => false,
        };
        if !is_known {
            self.take(slot);
            self.put(slot, LineState::waiting(self.forecast));
        }
        !is_known
    }

    fn begin_forecast(&mut self) {
        self.forecast ^= 1;
        (self.walk, self.walk_left) = (self.main.back(), self.main.len() / WALK_SHARE);
        self.borrowed = self.borrowed.min(self.waiting.len());
    }

    fn end_former_forecasts(&mut self, lines_max: usize) -> bool {
        // The list is in the order of insertion.
        for _ in 0..lines_max {
            let slot = self.waiting.back();
            if slot == NIL || self.states[slot as usize].forecast() == self.forecast {
                return false;
            }
            self.borrowed = self.borrowed.saturating_sub(1);
            self.take(slot);
            self.put(slot, LineState::new(LineQueue::Small));
            self.links.rotate_behind(&mut self.small, slot);
        }
        true
    }

    fn on_remove(&mut self, slot: Slot) {
        self.take(slot);
    }

    fn on_move(&mut self, old: Slot, new: Slot, _key: u64) {
        if self.walk == old {
            self.walk = new;
        }
        let state = self.states[old as usize];
        self.states[new as usize] = state;
        let list = match state.queue() {
            LineQueue::Window => &mut self.window,
            LineQueue::Small => &mut self.small,
            LineQueue::Main => &mut self.main,
            LineQueue::Waiting => &mut self.waiting,
        };
        self.links.replace(list, old, new);
    }

    fn spare(&mut self, slot: Slot) -> bool {
        self.states[slot as usize].take_hit()
    }

    fn value(&self, slot: Slot) -> u8 {
        let state = self.states[slot as usize];
        let base = match state.queue() {
            LineQueue::Main => LINE_VALUE_HOT,
            _ if state.is_stream() => 0,
            LineQueue::Window | LineQueue::Small | LineQueue::Waiting => 1,
        };
        (base + state.hits()).min(LINE_VALUE_MAX)
    }

    fn evict(&mut self, incoming: u64, hint: Hint, lines: &dyn Lines) -> Option<Slot> {
        // Look up first: the ghost of the evicted line could overwrite that of `incoming`.
        if self.may_recall(hint) && self.recalled.is_none_or(|(key, _)| key != incoming) {
            self.recalled = Some((incoming, self.recall(incoming)));
        }
        if hint == Hint::Forecast {
            let found = self.evict_for_forecast(lines);
            self.vacated += usize::from(found.is_some());
            return found;
        }
        self.evict_for_line(lines)
    }

    fn vacate(&mut self, lines: &dyn Lines) -> Option<Slot> {
        let found = self.evict_for_line(lines);
        // The next insertion may come after many evictions.
        self.age_lines();
        found
    }

    fn set_capacity(&mut self, lines: usize) {
        let lines = lines.clamp(1, self.states.len());
        if lines == self.capacity {
            return;
        }
        // The boundary keeps its share, which it has learned.
        let learned = self.small_len_target as f64 / self.capacity as f64;
        self.small_len_min = share_of(lines, SMALL_SHARE_MIN);
        self.small_len_max = share_of(lines, SMALL_SHARE_MAX);
        self.small_len_target =
            share_of(lines, learned).clamp(self.small_len_min, self.small_len_max);
        self.ghosts.set_lens(share_of(lines, GHOST_SHARE), share_of(lines, WATCH_SHARE));
        self.promotion.set_watch_len(share_of(lines, WATCH_SHARE));
        self.small_len_floor = self.small_len_floor.min(lines);
        self.capacity = lines;
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.links.heap_bytes()
            + self.ghosts.heap_bytes()
            + size_of_val(&*self.states)
    }

    fn self_check(&self) {
        let lists = [
            (&self.window, LineQueue::Window),
            (&self.small, LineQueue::Small),
            (&self.main, LineQueue::Main),
            (&self.waiting, LineQueue::Waiting),
        ];
        for (list, queue) in lists {
            self.links.check(list, |slot| {
                let state = self.states[slot as usize];
                assert_eq!(state.queue(), queue, "slot {slot} is in the wrong list");
                assert!(state.hits() <= HITS_MAX, "slot {slot} has too many hits");
                let is_allowed = queue == LineQueue::Small || !state.is_stream();
                assert!(is_allowed, "stream line in slot {slot} is outside the small queue");
            });
        }
        assert_eq!(self.links.listed_count(), self.resident());
        let range = self.small_len_min..=self.small_len_max;
        assert!(range.contains(&self.small_len_target), "the boundary is out of its range");
        assert!(self.small_len_floor <= self.states.len(), "the floor is above the capacity");
        let is_in_main = self.walk == NIL
            || self.links.is_listed(self.walk)
                && self.states[self.walk as usize].queue() == LineQueue::Main;
        assert!(is_in_main, "the walk of the forecast has left main");
        self.ghosts.self_check();
    }
}

/// A share of `capacity`, in lines, at least one.
fn share_of(capacity: usize, share: f64) -> usize {
    ((capacity as f64 * share) as usize).max(1)
}

mod later;
mod promotion;
mod state;
mod writes;

#[cfg(test)]
mod tests;
