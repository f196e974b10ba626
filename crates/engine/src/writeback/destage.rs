//! Starting destages: what the scheduler allows, in the order of sweep, elevator or epochs.

use super::Writeback;
use super::dirty_lines::DirtyLines;
use super::elevator::Stop;
use super::epochs::Epochs;
use super::scheduler::{Inputs, Scheduler};
use super::span::{Planner, Span};
use crate::index::key::LineKey;
use crate::index::meta::LineTable;
use crate::lines::VolumeLines;
use crate::modes::read::Run;
use crate::ops::emit;
use crate::ops::{Op, OpKind, OpLine};
use crate::sabotage::PlantedBug;
use crate::{Answer, IoVerb, Outbox, Outcome, PartId, Slot};
use forebay_types::{IoError, IoResult, LINES_PER_REGION, Mode};
use std::iter;

/// Destages lines of one volume.
pub(crate) struct Destager<'a, M> {
    lines: VolumeLines<'a, M>,
}

impl<'a, M> Destager<'a, M> {
    pub(crate) const fn new(lines: VolumeLines<'a, M>) -> Self {
        Self { lines }
    }
}

impl<M: LineTable> Destager<'_, M> {
    fn inputs(&self, now_ms: u64) -> Inputs {
        self.lines.volume.writeback().inputs(self.lines.volume.mode(), now_ms)
    }

    fn scheduler(&self) -> &Scheduler {
        &self.lines.volume.writeback().scheduler
    }

    fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.lines.volume.writeback_mut().scheduler
    }

    fn dirty(&self) -> &DirtyLines {
        &self.lines.volume.writeback().dirty
    }

    /// See [`crate::Shard::tick`].
    pub(crate) fn tick(&mut self, now_ms: u64, passed_ms: u64, out: &mut Outbox) {
        let (lines, frozen) = (self.dirty().len(), self.lines.volume.writeback().frozen_lines());
        if lines + frozen + self.scheduler().throttled() == 0 {
            return;
        }
        self.lines.volume.counters_mut().dirty_line_ms += lines as u64 * passed_ms;
        if self.lines.volume.writeback().epochs.is_some() {
            return self.tick_epochs(now_ms, out);
        }
        let inputs = self.inputs(now_ms);
        let may_age = !self.lines.quota.is_over_background();
        let has_lost = self.lines.volume.lost_sectors() > 0;
        let writeback = self.lines.volume.writeback_mut();
        if writeback.begin_sweep(self.lines.id, inputs, may_age, has_lost, self.lines.index) {
            writeback.scheduler.aged(now_ms, self.lines.quota);
        }
        self.pump(now_ms, out);
        self.bypass_elevator(now_ms, out);
    }

    fn tick_epochs(&mut self, now_ms: u64, out: &mut Outbox) {
        self.lines.volume.writeback_mut().epochs.iter_mut().for_each(|epochs| epochs.tick(now_ms));
        if self.is_order_due(now_ms) {
            out.orders.push(self.lines.id);
        }
        self.pump(now_ms, out);
    }

    /// See [`crate::Shard::is_order_due`].
    pub(crate) fn is_order_due(&self, now_ms: u64) -> bool {
        let Writeback { epochs: Some(epochs), scheduler, .. } = self.lines.volume.writeback()
        else {
            return false;
        };
        let open =
            self.lines.quota.is_over_background() || self.lines.volume.mode() != Mode::WriteBack;
        let age_ms = self.lines.quota.config().dirty_age_ms;
        epochs.is_due(now_ms, age_ms, open) && !scheduler.is_backing_off(now_ms)
    }

    /// See [`crate::Shard::destage_epoch`].
    pub(crate) fn destage_epoch(
        &mut self,
        last: u64,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        let last = last + u64::from(self.lines.planted.is(PlantedBug::MergeEpochs));
        self.lines.advance(last + 1);
        self.give_up_lost(last);
        if !self.lines.volume.writeback_mut().epochs.as_mut()?.start_run(last, part) {
            return Some(Ok(()));
        }
        self.pump(now_ms, out);
        None
    }

    /// What is lost of the epochs up to `last` can't be destaged: lines of which nothing else is
    /// dirty count as written now.
    fn give_up_lost(&mut self, last: u64) {
        let Some(epochs) = &self.lines.volume.writeback().epochs else { return };
        let slots = epochs.slots_up_to(last);
        let lost = slots.filter(|&(_, slot)| self.lines.index.get(slot).destageable() == 0);
        for (key, slot) in lost.collect::<Vec<_>>() {
            self.lines.leave_epoch(key, slot);
        }
    }

    /// Starts destages, as many as may be in flight, and answers the flushes that have nothing
    /// left to wait for.
    pub(crate) fn pump(&mut self, now_ms: u64, out: &mut Outbox) {
        self.answer_flushes(out);
        if self.lines.volume.writeback().epochs.is_some() {
            return self.pump_epochs(out);
        }
        let VolumeLines { volume, quota, .. } = &mut self.lines;
        volume.writeback_mut().scheduler.refill(now_ms, quota);
        self.pump_sweep(now_ms, out);
        self.dispatch_next(now_ms, out);
    }

    fn answer_flushes(&mut self, out: &mut Outbox) {
        let has_lost = self.lines.volume.lost_sectors() > 0;
        let hides = self.lines.planted.is(PlantedBug::FlushDespiteLoss);
        let error = (has_lost && !hides).then_some(IoError::Io);
        self.lines.volume.writeback_mut().answer_flushes(
            self.lines.id,
            error,
            has_lost,
            self.lines.index,
            out,
        );
    }

    /// Starts destages of what is owed.
    fn pump_sweep(&mut self, now_ms: u64, out: &mut Outbox) {
        let inputs = self.inputs(now_ms);
        let urgent = inputs.flushing || inputs.draining;
        while self.scheduler().may_sweep(inputs, self.lines.quota) {
            let Some(line) = self.lines.volume.writeback_mut().dirty.next_owed() else { return };
            let key = LineKey::new(self.lines.id, line);
            if self.may_destage(key) {
                self.start_destage(key, urgent, out);
            }
        }
    }

    /// Whether a line has something to destage, and no operation has it.
    fn may_destage(&self, key: LineKey) -> bool {
        let found = self.lines.index.find(key);
        found.is_some_and(|slot| self.lines.index.get(slot).destageable() != 0)
            && self.lines.ops.busy(key).is_none()
    }

    /// Destages from here while the next stop of the elevator is this shard's, and wakes the shard
    /// whose it is then.
    fn dispatch_next(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.scheduler().wants_elevator(self.lines.quota) {
            return;
        }
        let (elevator, shard) = self.scheduler().elevator();
        let dirty_lines_max = self.lines.quota.config().dirty_lines_max;
        loop {
            let stop = self.next_stop(now_ms);
            if elevator.call(shard, stop) && elevator.shards() > 1 {
                // The last one is told first: this one goes on when all have said where they stop.
                let others = (0..elevator.shards()).filter(|&other| other != shard);
                let all = iter::once(shard).chain(others);
                return out.wakes.extend(all.map(|shard| (shard, self.lines.id)));
            }
            let next = elevator.next().filter(|_| elevator.has_room(dirty_lines_max));
            match (next, stop) {
                (Some(next), Some(stop)) if next == shard => {
                    elevator.stopped(&stop);
                    self.start_destage(stop.key, self.scheduler().is_throttling(), out);
                }
                (Some(next), _) if next != shard => return out.wakes.push((next, self.lines.id)),
                _ => return,
            }
        }
    }

    /// Where the elevator is to stop here next, if anything may go now.
    fn next_stop(&self, now_ms: u64) -> Option<Stop> {
        let (scheduler, dirty) = (self.scheduler(), self.dirty());
        if !scheduler.may_use_elevator(self.inputs(now_ms)) {
            return None;
        }
        let operations = scheduler.elevator_operations(self.lines.quota);
        let key = |line| LineKey::new(self.lines.id, line);
        let may_go = |&key: &LineKey| self.may_destage(key);
        let line = scheduler.elevator_line(true);
        let behind = dirty.whole_from(0).take_while(|&before| before < line);
        if let Some(key) = dirty.whole_from(line).chain(behind).map(key).find(may_go) {
            return Some(Stop { key, whole: true, operations });
        }
        let line = scheduler.elevator_line(false);
        let behind = dirty.waiting_from(0).take_while(|&before| before < line);
        let key = dirty.waiting_from(line).chain(behind).map(key).find(may_go)?;
        Some(Stop { key, whole: false, operations })
    }

    /// Throttled writers do not wait for long where the elevator is far away: something goes from
    /// here out of order, or they go through to the disk.
    fn bypass_elevator(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.scheduler().is_starving(now_ms) {
            return;
        }
        self.scheduler_mut().restart_patience(now_ms);
        match self.next_stop(now_ms) {
            Some(stop) => {
                self.start_destage(stop.key, true, out);
                self.scheduler().hold_elevator();
            }
            None => self.admit(now_ms, out),
        }
    }

    /// See [`crate::Shard::flush`].
    pub(crate) fn flush(
        &mut self,
        part: PartId,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        if self.dirty().is_empty() {
            return Some(Ok(()));
        }
        self.lines.volume.writeback_mut().push_flush(part);
        self.pump(now_ms, out);
        None
    }

    /// A part has become dirty: if the elevator, which runs, is not known to come by here, the
    /// driver wakes the shard, once what was written is in the pool.
    pub(crate) fn notify_elevator(&self, line: u64, now_ms: u64, out: &mut Outbox) {
        let (scheduler, inputs) = (self.scheduler(), self.inputs(now_ms));
        if !scheduler.is_elevator_running() || !scheduler.may_use_elevator(inputs) {
            return;
        }
        let whole = self.dirty().whole_stripe_of(line);
        let missed = scheduler.elevator_misses(whole.unwrap_or(line), whole.is_some());
        out.wakes.extend(missed.map(|shard| (shard, self.lines.id)));
    }

    /// Throttles a part that finds too much dirty, or in use, until destages of its volume end. So
    /// writers come down to what the disk takes gathered and in order: no less than what it takes
    /// one by one. Returns false if no destage can make progress.
    pub(crate) fn throttle(
        &mut self,
        part: PartId,
        lines: usize,
        now_ms: u64,
        out: &mut Outbox,
    ) -> bool {
        if self.lines.volume.writeback().epochs.is_some() {
            return false;
        }
        self.scheduler_mut().start_throttling();
        self.pump(now_ms, out);
        if !self.scheduler().has_progress() {
            return false;
        }
        self.scheduler_mut().throttle(part, lines, now_ms);
        self.lines.quota.throttle();
        let counters = self.lines.volume.counters_mut();
        counters.waits += 1;
        counters.room_waits += 1;
        true
    }

    /// Admits throttled parts after a destage has ended: the longest waiting first, as many as
    /// there are free lines. A part does not wait for one particular destage, which may take long,
    /// as a disk serves nearby requests first.
    pub(crate) fn admit(&mut self, now_ms: u64, out: &mut Outbox) {
        let free = self.lines.quota.free_lines();
        let scheduler = self.scheduler_mut();
        scheduler.restart_patience(now_ms);
        let before = out.answers.len();
        let outcome = Outcome::Retry(None);
        out.answers.extend(scheduler.admit(free).map(|part| Answer { part, outcome }));
        self.lines.quota.admitted(out.answers.len() - before);
    }

    /// After an operation has ended: lines that a flush found busy can be destaged now.
    pub(crate) fn resume(&mut self, now_ms: u64, out: &mut Outbox) {
        let writeback = self.lines.volume.writeback_mut();
        if writeback.is_stalled() {
            match &mut writeback.epochs {
                Some(epochs) => epochs.refill(self.lines.index),
                None if !writeback.dirty.is_sweeping() => writeback.dirty.begin_sweep(),
                None => {}
            }
        }
        if out.memory.is_empty() {
            self.pump(now_ms, out);
        } else {
            // A seal was broken just now and is looked at after this call. What comes of that must
            // be known before the line is destaged: with the next tick.
            self.answer_flushes(out);
        }
    }

    /// A destage is over; what came of its lines is handled after that.
    pub(crate) fn ended(&mut self, op: &Op, now_ms: u64) {
        let failed = op.error.is_some();
        self.lines.quota.destage_ended(op.lines.len());
        let has_recovered = self.lines.quota.has_recovered();
        let scheduler = self.scheduler_mut();
        scheduler.ended(op.lines.len(), failed, op.is_wide, now_ms);
        scheduler.end_throttling(has_recovered);
        self.lines.volume.counters_mut().destage_errors += u64::from(failed);
    }

    pub(crate) fn planner(&self) -> Planner<'_, M> {
        let unverified = self.lines.planted.is(PlantedBug::DestageUnverified);
        Planner::new(
            self.lines.volume,
            self.lines.index,
            self.lines.ops,
            self.lines.integrity,
            unverified,
        )
    }

    /// Starts to destage a dirty line that is not busy, together with what goes with it. Every
    /// dirty line in the operation is destaged wholly.
    pub(crate) fn start_destage(&mut self, key: LineKey, urgent: bool, out: &mut Outbox) -> u32 {
        let span = self.planner().span_of(key);
        let (ios, bytes) = (span.runs.len() as u64, span.bytes());
        let writeback = self.lines.volume.writeback_mut();
        if writeback.epochs.is_none() {
            let dirty = span.lines.iter().filter(|line| line.mask != 0);
            dirty.for_each(|line| writeback.dirty.depart(line.key.line()));
        }
        writeback.scheduler.began(ios, bytes, urgent);
        let counters = self.lines.volume.counters_mut();
        counters.scattered_destages += u64::from(span.is_scattered);
        counters.destaged_stripes += span.stripes;
        self.start(span, urgent, out)
    }

    /// Starts the operation of a span.
    fn start(&mut self, span: Span, urgent: bool, out: &mut Outbox) -> u32 {
        let bytes = span.bytes();
        let Span { lines, runs, is_wide, .. } = span;
        let counters = self.lines.volume.counters_mut();
        counters.destaged_lines += lines.iter().filter(|line| line.mask != 0).count() as u64;
        counters.destage_writes += runs.len() as u64;
        counters.destaged_bytes += bytes;
        if urgent {
            counters.destages_urgent += 1;
        } else {
            counters.destages_background += 1;
        }
        for line in &lines {
            let there = self.lines.index.get(line.slot);
            assert!(there.key == line.key && line.mask & !there.dirty == 0, "{line:?}: {there:?}");
            self.lines.index.pin(line.slot);
        }
        let op = Op { is_wide, ..Op::new(OpKind::Destage, self.lines.id, lines, None, runs.len()) };
        let id = self.lines.start(op);
        emit(out, id, IoVerb::Write { fua: false }, self.lines.id, None, runs);
        id.op
    }

    /// Starts destages of the epochs that a part waits for, as many as may be in flight.
    fn pump_epochs(&mut self, out: &mut Outbox) {
        let operations_max = self.lines.quota.config().destage_operations_max;
        while self.scheduler().destaging() < operations_max {
            let epochs = self.lines.volume.writeback_mut().epochs.as_mut();
            let Some((key, slot)) = epochs.and_then(|epochs| epochs.next()) else { return };
            let waits =
                self.lines.volume.writeback().epochs.as_ref().is_some_and(|e| e.waits(slot));
            if waits && self.may_go(key, slot) {
                self.start_ordered(key, slot, out);
            }
        }
    }

    /// Whether a slot has something to destage, and no operation has its line.
    fn may_go(&self, key: LineKey, slot: Slot) -> bool {
        self.lines.index.get(slot).destageable() != 0 && self.lines.ops.busy(key).is_none()
    }

    /// Destages a line together with those that follow it in the queue, as far as they join up.
    fn start_ordered(&mut self, key: LineKey, slot: Slot, out: &mut Outbox) {
        let mut lines = Vec::new();
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        let mut next = Some((key, slot));
        while let Some((key, slot)) = next {
            let mask = self.lines.index.get(slot).destageable();
            self.planner().push_sectors(key, slot, mask, &mut runs);
            lines.push(OpLine::new(key, slot, mask));
            let joins = |after: LineKey, slot: Slot| {
                let next_mask = self.lines.index.get(slot).destageable();
                mask & 0x80 != 0
                    && after == key.plus(1)
                    && !after.line().is_multiple_of(LINES_PER_REGION)
                    && self.may_go(after, slot)
                    && next_mask & 1 != 0
                    && crate::index::key::mask_runs(next_mask).count() == 1
            };
            let joined = self.lines.volume.writeback().epochs.as_ref();
            let joined = joined.is_some_and(|epochs| epochs.joins_next(joins));
            let epochs = self.lines.volume.writeback_mut().epochs.as_mut();
            next = epochs.filter(|_| joined).and_then(Epochs::next);
        }
        self.start(Span::of_runs(lines, runs), false, out);
    }
}
