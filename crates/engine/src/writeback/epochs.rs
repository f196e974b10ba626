//! Destaging in order: the disk alone is at every moment as some moment in the past has left it.
//!
//! The driver numbers the times between two flushes: *epochs*. What is written belongs to the epoch
//! of its time, and goes to the disk when everything of all earlier epochs is on stable storage
//! there. Within an epoch there is no order, as between two flushes of any disk. So whoever finds
//! the disk without pool and journal finds what a disk with a cache of its own would have kept over
//! a loss of power, only older.
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
//! Sectors that are lost (`patrol.rs`) hold up no epoch: they are counted among the newest.

use crate::index::Slots;
use crate::index::bits::SlotSet;
use crate::index::key::{line_parts, mask_runs};
use crate::index::meta::{DETACHED, FROZEN, LineTable};
use crate::ops::{OpKind, OpLine};
use crate::sabotage::PlantedBug;
use crate::shard::{emit, operation};
use crate::volume::FlushJob;
use crate::{Attempt, IoVerb, LineKey, LineMeta, Outbox, Part, PartId, Shard, Slot};
use forebay_types::{IoResult, LINES_PER_REGION, Mode, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// An epoch that is over, and what of it is not on the disk.
#[derive(Debug)]
struct Epoch {
    number: u64,
    slots: BTreeMap<LineKey, Slot>,
}

/// The dirty lines of a volume by epoch.
#[derive(Debug)]
pub(crate) struct Order {
    /// What is written now belongs to this epoch, or to a later one.
    current: u64,
    /// Dirty lines of it.
    open: SlotSet,
    /// When a tick found something dirty of it first, in milliseconds.
    open_since_ms: Option<u64>,
    /// Earlier epochs of which something is dirty, oldest first.
    closed: VecDeque<Epoch>,
    /// Frozen slots.
    frozen: usize,
    /// What is to be destaged next, last one first.
    queue: Vec<(LineKey, Slot)>,
}

impl Order {
    pub(crate) fn new(slots: usize) -> Self {
        let (closed, queue) = (VecDeque::new(), Vec::new());
        Self {
            current: 0,
            open: SlotSet::new(slots),
            open_since_ms: None,
            closed,
            frozen: 0,
            queue,
        }
    }

    /// Another epoch has begun, if this one is newer.
    fn advance<M: LineTable>(&mut self, epoch: u64, slots: &Slots<M>) {
        if epoch <= self.current {
            return;
        }
        // What is lost of a line can't be destaged, and stays among the newest.
        let due = self.open.iter().filter(|&slot| slots.get(slot).destageable() != 0);
        let due: BTreeMap<_, _> = due.map(|slot| (slots.get(slot).key, slot)).collect();
        if !due.is_empty() {
            due.values().for_each(|&slot| {
                self.open.remove(slot);
            });
            self.closed.push_back(Epoch { number: self.current, slots: due });
        }
        self.current = epoch;
        self.open_since_ms = None;
    }

    /// A dirty line is of the epoch at hand.
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.open.insert(slot);
    }

    /// A slot holds nothing dirty any more.
    pub(crate) fn forget(&mut self, key: LineKey, slot: Slot) {
        if self.open.remove(slot) {
            return;
        }
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

    pub(crate) fn metadata_bytes(&self) -> usize {
        let entry = size_of::<(LineKey, Slot)>();
        let closed: usize = self.closed.iter().map(|epoch| epoch.slots.len()).sum();
        self.open.metadata_bytes() + (closed + self.queue.capacity()) * entry
    }

    /// Panics unless every dirty line is in one epoch, and every frozen slot in one that is over.
    pub(crate) fn self_check<M: LineTable>(&self, dirty: &SlotSet, slots: &Slots<M>) {
        let mut resident = self.open.len();
        assert!(self.open.iter().all(|slot| dirty.contains(slot)), "what is open is dirty");
        let mut frozen = 0;
        let mut before = 0;
        for epoch in &self.closed {
            assert!(before <= epoch.number && epoch.number < self.current, "epochs are in order");
            assert!(!epoch.slots.is_empty(), "an epoch that is on the disk is forgotten");
            before = epoch.number + 1;
            for (&key, &slot) in &epoch.slots {
                let line = slots.get(slot);
                assert_eq!(line.key, key, "an epoch knows its lines");
                if line.has(FROZEN) {
                    assert!(line.has(DETACHED) && line.dirty != 0 && line.pins > 0, "{line:?}");
                    frozen += 1;
                } else {
                    assert!(dirty.contains(slot) && !self.open.contains(slot), "{line:?}");
                    resident += 1;
                }
            }
        }
        assert_eq!((resident, frozen), (dirty.len(), self.frozen), "no dirty line is forgotten");
    }
}

impl<M: LineTable> Shard<M> {
    /// From now on what is dirty of a volume is brought to its disk in order, by
    /// [`Shard::destage_epoch`] alone. What is dirty already counts as written now. To be said when
    /// the volume has been added.
    pub fn set_ordered(&mut self, volume: VolumeId) {
        let slots = self.slots.capacity();
        let state = self.volume_mut(volume);
        let mut order = Order::new(slots);
        state.dirty.iter().for_each(|slot| order.touch(slot));
        state.order = Some(order);
        state.waiting.clear();
        state.whole.clear();
    }

    /// The oldest epoch of which anything is dirty, where `current` is the driver's epoch: what is
    /// written from here on belongs to no earlier one.
    pub fn oldest_epoch(&mut self, volume: VolumeId, current: u64) -> Option<u64> {
        self.advance(volume, current);
        let order = self.volume(volume).order.as_ref()?;
        let open = (!order.open.is_empty()).then_some(order.current);
        order.closed.front().map(|epoch| epoch.number).or(open)
    }

    /// Whether something of the volume should be on its way to the disk: epochs that are over, or
    /// the one at hand because of its age, its amount or the mode.
    pub fn is_order_due(&self, volume: VolumeId, now_ms: u64) -> bool {
        let state = self.volume(volume);
        let Some(order) = &state.order else { return false };
        let many = self.dirty_lines > self.config.dirty_lines_background;
        let age = self.config.dirty_age_ms;
        let is_old = order.open_since_ms.is_some_and(|since| now_ms >= since + age);
        let open = many || state.mode != Mode::WriteBack || is_old;
        let due = !order.closed.is_empty() || (!order.open.is_empty() && open);
        due && now_ms >= state.backoff_until_ms
    }

    /// Looks after an ordered volume: see [`Shard::tick`].
    pub(crate) fn tick_order(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        if let Some(order) = &mut self.volume_mut(volume).order
            && !order.open.is_empty()
        {
            order.open_since_ms.get_or_insert(now_ms);
        }
        if self.is_order_due(volume, now_ms) {
            out.orders.push(volume);
        }
        self.pump(volume, now_ms, out);
    }

    /// Destages everything of the epochs up to `last`, which are over. `None` means that the part
    /// is told when that is done. What fails stays dirty, and is destaged by a later call.
    pub fn destage_epoch(
        &mut self,
        volume: VolumeId,
        last: u64,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        let last = last + u64::from(self.is_planted(PlantedBug::MergeEpochs));
        self.advance(volume, last + 1);
        self.give_up_lost(volume, last);
        let capacity = self.slots.capacity();
        let state = self.volume_mut(volume);
        let order = state.order.as_mut()?;
        let due = order.closed.iter().take_while(|epoch| epoch.number <= last);
        let mut queue: Vec<_> =
            due.flat_map(|epoch| epoch.slots.iter().map(|(k, s)| (*k, *s))).collect();
        if queue.is_empty() {
            return Some(Ok(()));
        }
        let mut remaining = SlotSet::new(capacity);
        queue.iter().for_each(|&(_, slot)| {
            remaining.insert(slot);
        });
        queue.sort_unstable_by(|a, b| b.cmp(a));
        order.queue = queue;
        state.flushes.push(FlushJob { part, remaining, error: None });
        self.pump(volume, now_ms, out);
        None
    }

    /// Starts destage operations of the epoch that is under way, as many as may be in flight.
    pub(crate) fn pump_order(&mut self, volume: VolumeId, out: &mut Outbox) {
        loop {
            let max = self.config.destage_operations_max;
            let state = self.volume_mut(volume);
            if state.destaging >= max || state.flushes.is_empty() {
                return;
            }
            let Some((key, slot)) = state.order.as_mut().and_then(|order| order.queue.pop()) else {
                return;
            };
            if self.may_go(key, slot) {
                self.start_ordered(key, slot, out);
            }
        }
    }

    /// Whether a slot of the queue still waits, and nobody uses its line.
    fn may_go(&self, key: LineKey, slot: Slot) -> bool {
        let waits = self.volume(key.volume()).flushes.iter().any(|f| f.remaining.contains(slot));
        waits && self.slots.get(slot).destageable() != 0 && self.flight.busy(key).is_none()
    }

    /// Destages a line together with those that follow it in the queue, as far as they join up.
    fn start_ordered(&mut self, key: LineKey, slot: Slot, out: &mut Outbox) {
        let volume = key.volume();
        let (mut lines, mut runs) = (Vec::new(), Vec::with_capacity(1));
        let mut next = Some((key, slot));
        while let Some((key, slot)) = next {
            let mask = self.slots.get(slot).destageable();
            self.push_sectors(key, slot, mask, &mut runs);
            self.slots.pin(slot);
            lines.push(OpLine { key, slot, mask, regained: 0 });
            next = None;
            let queue = &self.volume(volume).order.as_ref().expect("it has a queue").queue;
            if let Some(&(after, slot)) = queue.last()
                && mask & 0x80 != 0
                && after == key.plus(1)
                && !after.line().is_multiple_of(LINES_PER_REGION)
                && self.may_go(after, slot)
                && self.slots.get(slot).destageable() & 1 != 0
                && mask_runs(self.slots.get(slot).destageable()).count() == 1
            {
                next = Some((after, slot));
                let state = self.volume_mut(volume);
                state.order.as_mut().expect("it has a queue").queue.pop();
            }
        }
        let counters = &mut self.volume_mut(volume).counters;
        counters.destaged_lines += lines.len() as u64;
        counters.destage_writes += runs.len() as u64;
        counters.destaged_bytes += runs.iter().map(|run| run.range.len).sum::<u64>();
        counters.destages_background += 1;
        let id = self.start(operation(OpKind::Destage, volume, lines, None, runs.len()));
        emit(out, id, IoVerb::Write { fua: false }, volume, None, runs);
    }

    /// Puts what the epoch under way still waits for into the queue.
    pub(crate) fn refill_queue(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        let waiting = state.flushes.iter().flat_map(|flush| flush.remaining.iter());
        let mut queue: Vec<_> = waiting.map(|slot| (self.slots.get(slot).key, slot)).collect();
        queue.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(order) = &mut self.volume_mut(volume).order {
            order.queue = queue;
        }
    }

    /// What is lost of the epochs up to `last` can't be destaged: lines of which nothing else is
    /// dirty count as written now.
    fn give_up_lost(&mut self, volume: VolumeId, last: u64) {
        let Some(order) = &self.volume(volume).order else { return };
        let due = order.closed.iter().take_while(|epoch| epoch.number <= last);
        let slots = due.flat_map(|epoch| epoch.slots.iter().map(|(&key, &slot)| (key, slot)));
        let lost = slots.filter(|&(_, slot)| self.slots.get(slot).destageable() == 0);
        for (key, slot) in lost.collect::<Vec<_>>() {
            self.leave_epoch(key, slot);
        }
    }

    /// A slot of an epoch that is over has nothing left to destage.
    pub(crate) fn leave_epoch(&mut self, key: LineKey, slot: Slot) {
        let line = *self.slots.get(slot);
        let Some(order) = &mut self.volume_mut(key.volume()).order else { return };
        order.forget(key, slot);
        if line.has(FROZEN) {
            order.frozen -= 1;
            self.dirty_lines -= 1;
            self.slots.get_mut(slot).dirty = 0;
            self.parity.give_back(slot, &mut self.slots);
            self.slots.unpin(slot);
        } else if line.dirty != 0 {
            order.touch(slot);
        }
    }

    /// Sectors of a line in an epoch that is over have been brought to the disk, or not.
    pub(crate) fn destaged_in_order(&mut self, line: &OpLine, ok: bool) {
        let meta = self.slots.get_mut(line.slot);
        if meta.has(DETACHED) && !meta.has(FROZEN) {
            return;
        }
        if ok {
            meta.dirty &= !line.mask;
        }
        if meta.destageable() == 0 {
            self.leave_epoch(line.key, line.slot);
        }
    }

    /// An older version of a line was found damaged. The line has the sectors, as they were or
    /// newer.
    pub(crate) fn lose_frozen(&mut self, key: LineKey, slot: Slot, sectors: u8) {
        let line = *self.slots.get(slot);
        self.slots.change(slot, line.valid & !sectors);
        self.slots.unsealed.remove(slot);
        let busy = self.flight.is_destaging(key, slot);
        if self.slots.get(slot).destageable() == 0 && !busy {
            self.volume_mut(key.volume()).flushed(slot, None);
            self.leave_epoch(key, slot);
        }
    }

    /// Whether a slot is a line's or an older version's that the driver was given to destage.
    pub(crate) fn is_frozen(&self, key: LineKey, slot: Slot) -> bool {
        let line = self.slots.get(slot);
        line.key == key && line.has(FROZEN)
    }

    /// Whether a line is dirty and of an epoch that is over: then it is not to be changed.
    pub(crate) fn is_closed(&self, slot: Slot, line: &LineMeta) -> bool {
        if line.dirty == 0 {
            return false;
        }
        let order = self.volume(line.key.volume()).order.as_ref();
        let closed = order.is_some_and(|order| !order.open.contains(slot));
        closed && !self.is_planted(PlantedBug::ChangeClosedEpoch)
    }

    /// A dirty line that is closed stays behind, frozen, and its copy is of the epoch at hand. The
    /// pin that the caller has on it stays.
    pub(crate) fn froze(&mut self, volume: VolumeId, old: Slot, new: Slot) {
        self.dirty_lines += 1;
        let state = self.volume_mut(volume);
        state.dirty.remove(old);
        state.dirty.insert(new);
        let order = state.order.as_mut().expect("only an ordered volume has epochs");
        order.frozen += 1;
        order.open.insert(new);
    }

    /// A dirty line of the epoch at hand has moved.
    pub(crate) fn moved_in_order(&mut self, key: LineKey, old: Slot, new: Slot) {
        let mixes = self.is_planted(PlantedBug::ChangeClosedEpoch);
        let Some(order) = &mut self.volume_mut(key.volume()).order else { return };
        if order.open.remove(old) {
            order.open.insert(new);
        } else if mixes {
            let mut places = order.closed.iter_mut().filter_map(|e| e.slots.get_mut(&key));
            places.find(|slot| **slot == old).into_iter().for_each(|slot| *slot = new);
        }
    }

    /// Notes the driver's epoch.
    pub(crate) fn advance(&mut self, volume: VolumeId, epoch: u64) {
        let Self { volumes, slots, .. } = self;
        let state = volumes[usize::from(volume.0)].as_mut();
        if let Some(order) = state.and_then(|state| state.order.as_mut()) {
            order.advance(epoch, slots);
        }
    }

    /// Whether a part that goes to the disk has to wait for its turn, and if so, whether something
    /// under it is dirty.
    pub(crate) fn is_held(&self, part: &Part, attempt: Attempt) -> Option<bool> {
        let order = self.volume(part.volume).order.as_ref()?;
        if self.is_planted(PlantedBug::PassEpochs) {
            return None;
        }
        // An older version goes to the disk also where the newest one is lost.
        let older =
            |key| order.closed.iter().filter_map(move |epoch| epoch.slots.get(&key).copied());
        let is_dirty = line_parts(part.volume, part.range).any(|line| {
            let mut slots = self.slots.find(line.key).into_iter().chain(older(line.key));
            slots.any(|slot| self.slots.get(slot).destageable() & line.mask != 0)
        });
        (is_dirty || !attempt.in_order).then_some(is_dirty)
    }
}
