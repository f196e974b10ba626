//! Ordered destaging: at every moment, the disk alone holds a consistent, older image.
//!
//! An *epoch* is the time between two cuts, at flushes or when it is old; the driver numbers
//! epochs. A write belongs to the epoch in which it was made, and is destaged only when all earlier
//! epochs are on the disk's stable storage. Within an epoch there is no order, as between two
//! flushes of any disk. So the disk without pool and journal has a state that a disk with a
//! volatile cache could have after a power failure, only older.
//!
//! A dirty line of a closed epoch must not change. A write to it relocates the line, and the old
//! slot becomes *frozen*: detached, with a pin of its own and its dirty bits, until it is on the
//! disk. The new slot is dirty in at least the same sectors. So frozen slots hold only older
//! versions; recovery and dumps ignore them. The price: some sectors are written twice.
//!
//! A write or an erase past the pool waits until all earlier epochs are on the disk and no sector
//! under it is dirty: it is *held*.
//!
//! Lost sectors (`integrity`) delay no epoch: they count as part of the current one.

use super::line_set::LineSet;
use crate::index::Slots;
use crate::line::key::LineKey;
use crate::line::meta::{DETACHED, FROZEN, LineTable};
use crate::writeback::dirty_lines::DirtySet;
use crate::{Answer, Outbox, Outcome, PartId, Slot};
use forebay_types::{IoError, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A closed epoch with dirty lines.
#[derive(Debug)]
struct Epoch {
    number: u64,
    /// See [`Epochs::open_since_ms`].
    since_ms: Option<u64>,
    slots: BTreeMap<LineKey, Slot>,
}

/// The destaging of some epochs on behalf of a part.
#[derive(Debug)]
struct EpochRun {
    part: PartId,
    /// The last epoch that it destages.
    last: u64,
    /// Slots that have not been tried yet.
    remaining: BTreeSet<Slot>,
    error: Option<IoError>,
}

/// The dirty lines of a volume by epoch.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The epoch of new writes. The driver's current epoch may be newer.
    current: u64,
    /// The dirty lines of the current epoch.
    open: LineSet,
    /// The time of the first tick that found a dirty line in the current epoch, in milliseconds.
    open_since_ms: Option<u64>,
    /// Closed epochs with dirty lines, oldest first.
    closed: VecDeque<Epoch>,
    /// The number of frozen slots.
    frozen: usize,
    /// The slots to destage, in descending order: the next one is the last element.
    queue: Vec<(LineKey, Slot)>,
    /// The runs in progress.
    runs: Vec<EpochRun>,
    /// Parts wait for all epochs below this number.
    urgent_below: u64,
}

impl Epochs {
    /// Epochs that count all dirty lines as part of the current one.
    pub(crate) fn of(dirty: &DirtySet) -> Self {
        let mut epochs = Self::default();
        dirty.iter().for_each(|line| epochs.insert(line));
        epochs
    }

    /// Closes the current epoch and starts `epoch`, if it is newer.
    pub(crate) fn advance<M: LineTable>(&mut self, volume: VolumeId, epoch: u64, index: &Slots<M>) {
        if epoch <= self.current {
            return;
        }
        // Lines with only lost dirty sectors cannot be destaged, and stay in the current epoch.
        let keys = self.open.from(0).map(|line| LineKey::new(volume, line));
        let found = keys.map(|key| (key, index.find(key).expect("a dirty line is in the pool")));
        let due: BTreeMap<_, _> =
            found.filter(|&(_, slot)| index.get(slot).destageable() != 0).collect();
        if !due.is_empty() {
            due.keys().for_each(|key| self.open.remove(key.line()));
            let last = self.closed.back();
            assert!(last.is_none_or(|last| last.number < self.current), "epochs are out of order");
            let (number, since_ms) = (self.current, self.open_since_ms);
            self.closed.push_back(Epoch { number, since_ms, slots: due });
        }
        self.current = epoch;
        self.open_since_ms = None;
    }

    /// Adds a dirty line to the current epoch.
    pub(crate) fn insert(&mut self, line: u64) {
        self.open.insert(line);
    }

    /// Whether a dirty line belongs to a closed epoch.
    pub(crate) fn is_closed(&self, line: u64) -> bool {
        !self.open.contains_range(line, 1)
    }

    /// Removes a resident line that has become clean.
    pub(crate) fn remove(&mut self, key: LineKey, slot: Slot) {
        if self.open.contains_range(key.line(), 1) {
            self.open.remove(key.line());
        } else {
            self.remove_closed(key, slot);
        }
    }

    fn remove_closed(&mut self, key: LineKey, slot: Slot) {
        let has_slot = |epoch: &Epoch| epoch.slots.get(&key) == Some(&slot);
        if let Some(at) = self.closed.iter().position(has_slot) {
            self.closed[at].slots.remove(&key);
            if self.closed[at].slots.is_empty() {
                self.closed.remove(at);
            }
        }
    }

    /// When the oldest epoch with dirty lines had its first one, to a tick; `None` if that is
    /// unknown.
    pub(crate) fn since_ms(&self) -> Option<u64> {
        self.closed.front().map_or(self.open_since_ms, |epoch| epoch.since_ms)
    }

    /// The number of frozen slots.
    pub(crate) const fn frozen(&self) -> usize {
        self.frozen
    }

    /// Records that a write has relocated a line of a closed epoch: the old slot is frozen, and the
    /// line now belongs to the current epoch.
    pub(crate) fn freeze(&mut self, line: u64) {
        assert!(self.is_closed(line), "only lines of closed epochs are frozen");
        self.frozen += 1;
        self.open.insert(line);
    }

    /// Removes a frozen slot that has nothing left to destage.
    pub(crate) fn thaw(&mut self, key: LineKey, slot: Slot) {
        assert!(self.frozen > 0, "more slots were thawed than frozen");
        self.remove_closed(key, slot);
        self.frozen -= 1;
    }

    /// Moves a resident line of a closed epoch with only lost dirty sectors to the current epoch.
    pub(crate) fn reopen(&mut self, key: LineKey, slot: Slot) {
        if !self.open.contains_range(key.line(), 1) {
            self.remove_closed(key, slot);
            self.open.insert(key.line());
        }
    }

    /// Follows a line of a closed epoch to its new slot. For a planted bug only.
    pub(crate) fn move_closed(&mut self, key: LineKey, old: Slot, new: Slot) {
        let mut places = self.closed.iter_mut().filter_map(|epoch| epoch.slots.get_mut(&key));
        places.find(|slot| **slot == old).into_iter().for_each(|slot| *slot = new);
        for run in self.runs.iter_mut() {
            if run.remaining.remove(&old) {
                run.remaining.insert(new);
            }
        }
    }

    /// The oldest epoch with dirty lines.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let open = (!self.open.is_empty()).then_some(self.current);
        self.closed.front().map(|epoch| epoch.number).or(open)
    }

    /// Records the time of a tick.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if !self.open.is_empty() {
            self.open_since_ms.get_or_insert(now_ms);
        }
    }

    /// Whether a destage is due: a closed epoch has dirty lines, or the current one has, and must
    /// be closed because of its age or because of `close_current`.
    pub(crate) fn is_due(&self, now_ms: u64, age_ms: u64, close_current: bool) -> bool {
        let is_old = self.open_since_ms.is_some_and(|since_ms| now_ms >= since_ms + age_ms);
        !self.closed.is_empty() || (!self.open.is_empty() && (close_current || is_old))
    }

    /// The slots of the closed epochs up to `last`.
    pub(crate) fn slots_up_to(&self, last: u64) -> impl Iterator<Item = (LineKey, Slot)> {
        let due = self.closed.iter().take_while(move |epoch| epoch.number <= last);
        due.flat_map(|epoch| epoch.slots.iter().map(|(&key, &slot)| (key, slot)))
    }

    /// Starts a run over the closed epochs up to `last`. Returns false if they hold no slot.
    pub(crate) fn start_run(&mut self, last: u64, part: PartId) -> bool {
        let mut queue: Vec<_> = self.slots_up_to(last).collect();
        if queue.is_empty() {
            return false;
        }
        let remaining = queue.iter().map(|&(_, slot)| slot).collect();
        queue.sort_unstable_by(|a, b| b.cmp(a));
        self.queue = queue;
        self.runs.push(EpochRun { part, last, remaining, error: None });
        true
    }

    /// Whether a run is in progress.
    pub(crate) const fn is_running(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Records that a part waits for all epochs below `epoch`. Epoch numbers only rise, so the
    /// record is never cleared. It also applies to runs that begin later.
    pub(crate) fn expedite(&mut self, epoch: u64) {
        self.urgent_below = self.urgent_below.max(epoch);
    }

    /// Whether a part waits for an epoch of a run in progress.
    pub(crate) fn is_urgent(&self) -> bool {
        self.runs.iter().any(|run| run.last < self.urgent_below)
    }

    /// Takes the next slot from the queue.
    pub(crate) fn next(&mut self) -> Option<(LineKey, Slot)> {
        if self.runs.is_empty() { None } else { self.queue.pop() }
    }

    /// Whether the next slot in the queue can be destaged together with the previous one.
    pub(crate) fn joins_next(&self, joins: impl FnOnce(LineKey, Slot) -> bool) -> bool {
        self.queue.last().is_some_and(|&(key, slot)| joins(key, slot) && self.is_waiting_for(slot))
    }

    /// Whether a run waits for a slot.
    pub(crate) fn is_waiting_for(&self, slot: Slot) -> bool {
        self.runs.iter().any(|run| run.remaining.contains(&slot))
    }

    pub(crate) fn record_attempt(&mut self, slot: Slot, error: Option<IoError>) {
        for run in &mut self.runs {
            if run.remaining.remove(&slot) {
                run.error = run.error.or(error);
            }
        }
    }

    /// Records that sectors of a slot were lost. Without `gives_up`, the runs still wait for the
    /// rest.
    pub(crate) fn record_loss(&mut self, slot: Slot, gives_up: bool) {
        for run in &mut self.runs {
            if run.remaining.contains(&slot) {
                run.error = run.error.or(Some(IoError::Io));
                if gives_up {
                    run.remaining.remove(&slot);
                }
            }
        }
    }

    /// Puts the remaining slots of all runs into the queue, if that is empty: those that were found
    /// busy may be destaged now.
    pub(crate) fn refill<M: LineTable>(&mut self, index: &Slots<M>) {
        if !self.queue.is_empty() {
            return;
        }
        let slots = self.runs.iter().flat_map(|run| run.remaining.iter().copied());
        let mut queue: Vec<_> = slots.map(|slot| (index.get(slot).key, slot)).collect();
        queue.sort_unstable_by(|a, b| b.cmp(a));
        self.queue = queue;
    }

    /// Answers the runs whose slots have all been tried.
    pub(crate) fn answer(&mut self, out: &mut Outbox) {
        self.runs.retain(|run| {
            let done = run.remaining.is_empty();
            if done {
                let outcome = Outcome::Done(run.error.map_or(Ok(()), Err));
                out.answers.push(Answer { part: run.part, outcome });
            }
            !done
        });
    }

    /// The slots of a line in closed epochs.
    pub(crate) fn versions(&self, key: LineKey) -> impl Iterator<Item = Slot> + '_ {
        self.closed.iter().filter_map(move |epoch| epoch.slots.get(&key).copied())
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        let entry = size_of::<(LineKey, Slot)>();
        let closed: usize = self.closed.iter().map(|epoch| epoch.slots.len()).sum();
        let runs: usize =
            self.runs.iter().map(|run| 2 * run.remaining.len() * size_of::<Slot>()).sum();
        self.open.metadata_bytes() + runs + (2 * closed + self.queue.capacity()) * entry
    }

    /// Panics unless every dirty line is in one epoch, and every frozen slot in a closed one.
    pub(crate) fn self_check<M: LineTable>(&self, dirty: &DirtySet, index: &Slots<M>) {
        let mut resident = self.open.from(0).count();
        assert!(self.open.from(0).all(|line| dirty.contains(line)), "an open line is clean");
        let mut frozen = 0;
        let mut before = 0;
        for epoch in &self.closed {
            assert!(before <= epoch.number && epoch.number < self.current, "epochs out of order");
            assert!(!epoch.slots.is_empty(), "an empty epoch was kept");
            before = epoch.number + 1;
            for (&key, &slot) in &epoch.slots {
                let line = index.get(slot);
                assert_eq!(line.key, key, "slot {slot} of an epoch holds another line");
                if line.has(FROZEN) {
                    assert!(line.has(DETACHED) && line.dirty != 0 && line.pins > 0, "{line:?}");
                    frozen += 1;
                } else {
                    assert!(dirty.contains(key.line()) && self.is_closed(key.line()), "{line:?}");
                    resident += 1;
                }
            }
        }
        assert_eq!((resident, frozen), (dirty.len(), self.frozen), "dirty lines and frozen slots");
    }
}
