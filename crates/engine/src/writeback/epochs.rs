//! Ordered destaging: at every moment, the disk alone holds a consistent, older image.
//!
//! An *epoch* is the time between two flushes; the driver numbers epochs. A write belongs to the
//! epoch in which it was made, and is destaged only when all earlier epochs are on the disk's
//! stable storage. Within an epoch there is no order, as between two flushes of any disk. So the
//! disk without pool and journal has what a disk with a volatile cache could have after a power
//! failure, only older.
//!
//! A dirty line of an epoch that is over is not changed any more. A write to it moves the line to
//! another slot, and the old one is *frozen*: detached, under a pin of its own, with its dirty
//! bits, until it is on the disk. The new slot is dirty wherever the old one is, too. So all that
//! is dirty is found without the frozen slots, which are nothing but older versions, and no
//! recovery or dump has to know of them; some sectors are written twice.
//!
//! Whatever goes to the disk past the pool (a write through the cache, an erase) waits until all
//! earlier epochs are there and nothing under it is dirty: it is *held*.
//!
//! Sectors that are lost (`integrity`) hold up no epoch: they are counted among the newest.

use super::line_set::LineSet;
use crate::index::Slots;
use crate::index::key::LineKey;
use crate::index::meta::{DETACHED, FROZEN, LineTable};
use crate::writeback::dirty_lines::DirtyLines;
use crate::{Answer, Outbox, Outcome, PartId, Slot};
use forebay_types::{IoError, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An epoch that is over, and its lines that are not on the disk.
#[derive(Debug)]
struct Epoch {
    number: u64,
    slots: BTreeMap<LineKey, Slot>,
}

/// The destaging of some epochs for a part.
#[derive(Debug)]
struct Run {
    part: PartId,
    /// Slots that have not had their try.
    remaining: BTreeSet<Slot>,
    error: Option<IoError>,
}

/// The dirty lines of a volume by epoch.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The epoch of new writes, or an earlier one.
    current: u64,
    /// Dirty lines of it.
    open: LineSet,
    /// When a tick found something dirty of it first, in milliseconds.
    open_since_ms: Option<u64>,
    /// Earlier epochs of which something is dirty, oldest first.
    closed: VecDeque<Epoch>,
    /// Frozen slots.
    frozen: usize,
    /// What is to be destaged next, last one first.
    queue: Vec<(LineKey, Slot)>,
    /// The parts that wait for that.
    runs: Vec<Run>,
}

impl Epochs {
    /// All lines that are dirty count as written now.
    pub(crate) fn of(dirty: &DirtyLines) -> Self {
        let mut epochs = Self::default();
        dirty.iter().for_each(|line| epochs.touch(line));
        epochs
    }

    /// Another epoch has begun, if this one is newer.
    pub(crate) fn advance<M: LineTable>(&mut self, volume: VolumeId, epoch: u64, index: &Slots<M>) {
        if epoch <= self.current {
            return;
        }
        // What is lost of a line can't be destaged, and stays among the newest.
        let keys = self.open.from(0).map(|line| LineKey::new(volume, line));
        let found = keys.map(|key| (key, index.find(key).expect("a dirty line is in the pool")));
        let due: BTreeMap<_, _> =
            found.filter(|&(_, slot)| index.get(slot).destageable() != 0).collect();
        if !due.is_empty() {
            due.keys().for_each(|key| self.open.remove(key.line()));
            let last = self.closed.back();
            assert!(last.is_none_or(|last| last.number < self.current), "epochs end in order");
            self.closed.push_back(Epoch { number: self.current, slots: due });
        }
        self.current = epoch;
        self.open_since_ms = None;
    }

    /// Adds a dirty line to the current epoch.
    pub(crate) fn touch(&mut self, line: u64) {
        self.open.insert(line);
    }

    /// Whether a dirty line is of an epoch that is over.
    pub(crate) fn is_closed(&self, line: u64) -> bool {
        !self.open.holds(line, 1)
    }

    /// A line, which is in a slot, is clean.
    pub(crate) fn cleaned(&mut self, key: LineKey, slot: Slot) {
        if self.open.holds(key.line(), 1) {
            self.open.remove(key.line());
        } else {
            self.leave(key, slot);
        }
    }

    /// A slot has nothing to destage any more of an epoch that is over.
    fn leave(&mut self, key: LineKey, slot: Slot) {
        let holds = |epoch: &Epoch| epoch.slots.get(&key) == Some(&slot);
        if let Some(at) = self.closed.iter().position(holds) {
            self.closed[at].slots.remove(&key);
            if self.closed[at].slots.is_empty() {
                self.closed.remove(at);
            }
        }
    }

    /// Slots with an older version of a line.
    pub(crate) const fn frozen(&self) -> usize {
        self.frozen
    }

    /// A line of an epoch that is over was written: its old slot stays behind, frozen, and the
    /// line is of the epoch at hand.
    pub(crate) fn froze(&mut self, line: u64) {
        assert!(self.is_closed(line), "only lines of epochs that are over are kept");
        self.frozen += 1;
        self.open.insert(line);
    }

    /// A frozen slot has nothing to destage any more.
    pub(crate) fn thawed(&mut self, key: LineKey, slot: Slot) {
        assert!(self.frozen > 0, "a slot that is thawed was frozen");
        self.leave(key, slot);
        self.frozen -= 1;
    }

    /// A line in a slot of an epoch that is over has nothing to destage. What is lost of it is
    /// dirty still, and counts as written now.
    pub(crate) fn reopen(&mut self, key: LineKey, slot: Slot) {
        if !self.open.holds(key.line(), 1) {
            self.leave(key, slot);
            self.open.insert(key.line());
        }
    }

    /// A line of an epoch that is over has moved, which it must not: only a planted bug does it.
    pub(crate) fn moved_closed(&mut self, key: LineKey, old: Slot, new: Slot) {
        let mut places = self.closed.iter_mut().filter_map(|epoch| epoch.slots.get_mut(&key));
        places.find(|slot| **slot == old).into_iter().for_each(|slot| *slot = new);
        for run in self.runs.iter_mut() {
            if run.remaining.remove(&old) {
                run.remaining.insert(new);
            }
        }
    }

    /// The oldest epoch of which anything is dirty.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let open = (!self.open.is_empty()).then_some(self.current);
        self.closed.front().map(|epoch| epoch.number).or(open)
    }

    /// The time of a tick.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if !self.open.is_empty() {
            self.open_since_ms.get_or_insert(now_ms);
        }
    }

    /// Whether something should be on its way to the disk: epochs that are over, or the one at
    /// hand because of its age or of `open`.
    pub(crate) fn is_due(&self, now_ms: u64, age_ms: u64, open: bool) -> bool {
        let is_old = self.open_since_ms.is_some_and(|since_ms| now_ms >= since_ms + age_ms);
        !self.closed.is_empty() || (!self.open.is_empty() && (open || is_old))
    }

    /// Slots of the epochs up to `last`, which are over.
    pub(crate) fn slots_up_to(&self, last: u64) -> impl Iterator<Item = (LineKey, Slot)> {
        let due = self.closed.iter().take_while(move |epoch| epoch.number <= last);
        due.flat_map(|epoch| epoch.slots.iter().map(|(&key, &slot)| (key, slot)))
    }

    /// Starts a run over the epochs up to `last`, which are over. Whether it has anything to do.
    pub(crate) fn start_run(&mut self, last: u64, part: PartId) -> bool {
        let mut queue: Vec<_> = self.slots_up_to(last).collect();
        if queue.is_empty() {
            return false;
        }
        let remaining = queue.iter().map(|&(_, slot)| slot).collect();
        queue.sort_unstable_by(|a, b| b.cmp(a));
        self.queue = queue;
        self.runs.push(Run { part, remaining, error: None });
        true
    }

    /// Whether a run is under way.
    pub(crate) const fn is_running(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The next slot in the queue of the runs.
    pub(crate) fn next(&mut self) -> Option<(LineKey, Slot)> {
        if self.runs.is_empty() { None } else { self.queue.pop() }
    }

    /// Whether the next slot in the queue goes along with the one before it.
    pub(crate) fn joins_next(&self, joins: impl FnOnce(LineKey, Slot) -> bool) -> bool {
        self.queue.last().is_some_and(|&(key, slot)| joins(key, slot) && self.waits(slot))
    }

    /// Whether a run waits for a slot.
    pub(crate) fn waits(&self, slot: Slot) -> bool {
        self.runs.iter().any(|run| run.remaining.contains(&slot))
    }

    /// A slot had its try.
    pub(crate) fn tried(&mut self, slot: Slot, error: Option<IoError>) {
        for run in &mut self.runs {
            if run.remaining.remove(&slot) {
                run.error = run.error.or(error);
            }
        }
    }

    /// Something of a slot was lost. It may still be on its way.
    pub(crate) fn lost(&mut self, slot: Slot, gives_up: bool) {
        for run in &mut self.runs {
            if run.remaining.contains(&slot) {
                run.error = run.error.or(Some(IoError::Io));
                if gives_up {
                    run.remaining.remove(&slot);
                }
            }
        }
    }

    /// Puts what the runs still wait for into the queue.
    pub(crate) fn refill<M: LineTable>(&mut self, index: &Slots<M>) {
        let slots = self.runs.iter().flat_map(|run| run.remaining.iter().copied());
        let mut queue: Vec<_> = slots.map(|slot| (index.get(slot).key, slot)).collect();
        queue.sort_unstable_by(|a, b| b.cmp(a));
        self.queue = queue;
    }

    /// Answers the runs that have nothing left to wait for.
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

    /// Older versions of a line.
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

    /// Panics unless every dirty line is in one epoch, and every frozen slot in one that is over.
    pub(crate) fn self_check<M: LineTable>(&self, dirty: &DirtyLines, index: &Slots<M>) {
        let mut resident = self.open.from(0).count();
        assert!(self.open.from(0).all(|line| dirty.contains(line)), "what is open is dirty");
        let mut frozen = 0;
        let mut before = 0;
        for epoch in &self.closed {
            assert!(before <= epoch.number && epoch.number < self.current, "epochs are in order");
            assert!(!epoch.slots.is_empty(), "an epoch that is on the disk is forgotten");
            before = epoch.number + 1;
            for (&key, &slot) in &epoch.slots {
                let line = index.get(slot);
                assert_eq!(line.key, key, "an epoch knows its lines");
                if line.has(FROZEN) {
                    assert!(line.has(DETACHED) && line.dirty != 0 && line.pins > 0, "{line:?}");
                    frozen += 1;
                } else {
                    assert!(dirty.contains(key.line()) && self.is_closed(key.line()), "{line:?}");
                    resident += 1;
                }
            }
        }
        assert_eq!((resident, frozen), (dirty.len(), self.frozen), "no dirty line is forgotten");
    }
}
