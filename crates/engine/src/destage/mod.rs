//! Starts the destages that the scheduler allows, in the order of the sweep, the elevator or the
//! epochs.

pub(crate) mod span;

use crate::line::key::LineKey;
use crate::line::meta::LineTable;
use crate::lines::VolumeLines;
use crate::ops::io_run::IoRun;
use crate::ops::{LineOp, OpKind, OpLine, Serves, emit};
use crate::sabotage::PlantedBug;
use crate::writeback::dirty_lines::DirtySet;
use crate::writeback::elevator::{ElevatorStop, FlightWindow};
use crate::writeback::epochs::Epochs;
use crate::writeback::scheduler::{DestageScheduler, SchedulerInputs};
use crate::{Answer, IoCause, IoVerb, Outbox, Outcome, PartId, Slot};
use forebay_types::{Few, IoError, IoResult, LINE_BYTES, LINES_PER_REGION, Mode, REGION_BYTES};
use span::{Planner, Span};
use std::iter;

/// Destages lines of one volume.
pub(crate) struct Destager<'a, M> {
    lines: VolumeLines<'a, M>,
}

impl<M: LineTable> VolumeLines<'_, M> {
    pub(crate) const fn destager(&mut self) -> Destager<'_, M> {
        Destager { lines: self.reborrow() }
    }
}

impl<M: LineTable> Destager<'_, M> {
    fn inputs(&self, now_ms: u64) -> SchedulerInputs {
        self.lines.volume.writeback().inputs(self.lines.volume.mode(), now_ms)
    }

    fn scheduler(&self) -> &DestageScheduler {
        self.lines.volume.writeback().scheduler()
    }

    fn scheduler_mut(&mut self) -> &mut DestageScheduler {
        self.lines.volume.writeback_mut().scheduler_mut()
    }

    fn dirty(&self) -> &DirtySet {
        self.lines.volume.writeback().dirty()
    }

    /// See [`crate::Shard::tick`].
    pub(crate) fn tick(&mut self, now_ms: u64, passed_ms: u64, out: &mut Outbox) {
        let (lines, frozen) = (self.dirty().len(), self.lines.volume.writeback().frozen_lines());
        if lines + frozen + self.scheduler().throttled() == 0 {
            // No other call answers a flush whose last line was lost and then abandoned.
            self.answer_flushes(out);
            self.scheduler_mut().set_flushing(false, now_ms);
            return;
        }
        self.lines.volume.counters_mut().dirty_line_ms += lines as u64 * passed_ms;
        self.lines.volume.writeback_mut().dirty_mut().record_time(now_ms.saturating_sub(passed_ms));
        if self.lines.volume.writeback().epochs().is_some() {
            return self.tick_epochs(now_ms, out);
        }
        let inputs = self.inputs(now_ms);
        let may_age = !self.lines.quota.is_over_background(self.lines.id);
        let has_lost = self.lines.volume.lost_sectors() > 0;
        let writeback = self.lines.volume.writeback_mut();
        if writeback.begin_sweep(self.lines.id, inputs, may_age, has_lost, self.lines.index) {
            writeback.scheduler_mut().schedule_aging(now_ms, self.lines.quota);
        } else {
            let overdue_ms = DestageScheduler::aging_overdue_ms(self.lines.quota);
            writeback.dirty_mut().advance_ages(now_ms, overdue_ms);
        }
        self.pump(now_ms, out);
        self.bypass_elevator(now_ms, out);
    }

    fn tick_epochs(&mut self, now_ms: u64, out: &mut Outbox) {
        self.lines
            .volume
            .writeback_mut()
            .epochs_mut()
            .into_iter()
            .for_each(|epochs| epochs.tick(now_ms));
        if self.is_order_due(now_ms) {
            out.orders.push(self.lines.id);
        }
        self.pump(now_ms, out);
    }

    /// See [`crate::Shard::is_order_due`].
    pub(crate) fn is_order_due(&self, now_ms: u64) -> bool {
        let Some(epochs) = self.lines.volume.writeback().epochs() else { return false };
        let close_current = self.lines.quota.is_over_background(self.lines.id)
            || self.lines.volume.mode() != Mode::WriteBack;
        let age_ms = self.lines.quota.config().dirty_age_ms;
        epochs.is_due(now_ms, age_ms, close_current) && !self.scheduler().is_backing_off(now_ms)
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
        self.lines.advance_epoch(last + 1);
        self.exempt_lost(last);
        let has_lost = self.lines.volume.lost_sectors() > 0;
        let writeback = self.lines.volume.writeback_mut();
        if !writeback.epochs_mut()?.start_run(last, part) {
            if has_lost {
                // Lines with only lost sectors stay dirty. Without a delay, the next run would be
                // due at once.
                writeback.scheduler_mut().back_off(now_ms);
            }
            return Some(Ok(()));
        }
        self.pump(now_ms, out);
        None
    }

    /// See [`crate::Shard::expedite_epochs`].
    pub(crate) fn expedite_epochs(&mut self, epoch: u64, now_ms: u64, out: &mut Outbox) {
        let epochs = self.lines.volume.writeback_mut().epochs_mut();
        epochs.expect("only an ordered volume has epochs").expedite(epoch);
        self.pump(now_ms, out);
    }

    /// Moves lines of the epochs up to `last` that have only lost dirty sectors to the current
    /// epoch: they cannot be destaged.
    fn exempt_lost(&mut self, last: u64) {
        let Some(epochs) = self.lines.volume.writeback().epochs() else { return };
        let slots = epochs.slots_up_to(last);
        let lost = slots.filter(|&(_, slot)| self.lines.index.get(slot).destageable() == 0);
        for (key, slot) in lost.collect::<Vec<_>>() {
            self.lines.leave_epoch(key, slot);
        }
    }

    /// Starts as many destages as may be in flight, and answers the flushes whose lines have all
    /// been tried. A flush whose lines are all in flight lets the next one begin.
    pub(crate) fn pump(&mut self, now_ms: u64, out: &mut Outbox) {
        self.answer_flushes(out);
        let VolumeLines { volume, quota, .. } = &mut self.lines;
        volume.writeback_mut().scheduler_mut().refill(now_ms, quota);
        if volume.writeback().epochs().is_some() {
            return self.pump_epochs(out);
        }
        self.pump_sweep(now_ms, out);
        while self.answer_flushes(out) {
            self.pump_sweep(now_ms, out);
        }
        let is_flushing = self.inputs(now_ms).flushing;
        self.scheduler_mut().set_flushing(is_flushing, now_ms);
        self.dispatch_next(now_ms, out);
    }

    /// Returns whether a group of flushes began, whose lines are to be destaged.
    fn answer_flushes(&mut self, out: &mut Outbox) -> bool {
        let has_lost = self.lines.volume.lost_sectors() > 0;
        let hides = self.lines.planted.is(PlantedBug::FlushDespiteLoss);
        let error = (has_lost && !hides).then_some(IoError::Io);
        self.lines.volume.writeback_mut().answer_flushes(
            self.lines.id,
            error,
            has_lost,
            self.lines.index,
            out,
        )
    }

    /// Starts destages of owed lines.
    fn pump_sweep(&mut self, now_ms: u64, out: &mut Outbox) {
        let inputs = self.inputs(now_ms);
        let urgent = inputs.flushing || inputs.draining;
        while self.scheduler().may_sweep(inputs, self.lines.quota) {
            let (window, lines_min) = (self.window(now_ms), self.lines_min());
            let lines_max = self.scheduler().sweep_lines_max(inputs, window, lines_min);
            if lines_max == 0 {
                return;
            }
            let Some(line) = self.lines.volume.writeback_mut().dirty_mut().next_owed() else {
                return;
            };
            let key = LineKey::new(self.lines.id, line);
            if self.may_destage(key) {
                self.start_destage(key, lines_max, urgent, out);
            }
        }
    }

    /// Whether a line has a destageable sector and is not busy.
    fn may_destage(&self, key: LineKey) -> bool {
        let found = self.lines.index.find(key);
        found.is_some_and(|slot| self.lines.index.get(slot).destageable() != 0)
            && self.lines.ops.busy(key).is_none()
    }

    /// Destages from this shard while it has the elevator's next stop, then wakes the shard that
    /// has it.
    fn dispatch_next(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.scheduler().wants_elevator(self.lines.quota) {
            return;
        }
        let (elevator, shard) = self.scheduler().elevator();
        let dirty_lines_max = self.lines.quota.lines_max(self.lines.id);
        loop {
            let stop = self.next_stop(now_ms);
            if elevator.publish(shard, stop) && elevator.shards() > 1 {
                // The driver wakes the last one first: this shard continues when all others have
                // published a stop.
                let others = (0..elevator.shards()).filter(|&other| other != shard);
                let all = iter::once(shard).chain(others);
                return out.wakes.extend(all.map(|shard| (shard, self.lines.id)));
            }
            let lines_max = self.scheduler().lines_left(self.window(now_ms), now_ms);
            let may_add = lines_max > 0 && elevator.may_add_lines(dirty_lines_max);
            let next = elevator.next().filter(|_| may_add);
            match (next, stop) {
                (Some(next), Some(stop)) if next == shard => {
                    elevator.move_to(&stop);
                    let urgent = self.scheduler().is_throttling();
                    self.start_destage(stop.key, lines_max, urgent, out);
                }
                (Some(next), _) if next != shard => {
                    return out.wakes.push((next, self.lines.id));
                }
                _ => return,
            }
        }
    }

    /// See [`DestageScheduler::window`].
    fn window(&self, now_ms: u64) -> Option<FlightWindow> {
        self.scheduler().window(self.lines.quota, self.lines_min(), now_ms)
    }

    /// The lines that delay a read hardly more than one: the fixed cost of an I/O dominates below
    /// the threshold of gathering, and this is an eighth of it.
    fn lines_min(&self) -> usize {
        let bytes_min = self.lines.volume.gather_below().min(REGION_BYTES) / 8;
        (bytes_min / LINE_BYTES).max(1) as usize
    }

    /// The elevator's next stop in this shard, if it may start a destage now.
    fn next_stop(&self, now_ms: u64) -> Option<ElevatorStop> {
        let (scheduler, dirty) = (self.scheduler(), self.dirty());
        if !scheduler.may_use_elevator(self.inputs(now_ms)) {
            return None;
        }
        let operations = scheduler.elevator_operations(self.lines.quota);
        let key = |line| LineKey::new(self.lines.id, line);
        let may_destage = |&key: &LineKey| self.may_destage(key);
        let line = scheduler.elevator_line(true);
        let behind = dirty.whole_from(0).take_while(|&before| before < line);
        if let Some(key) = dirty.whole_from(line).chain(behind).map(key).find(may_destage) {
            return Some(ElevatorStop { key, whole: true, operations });
        }
        let line = scheduler.elevator_line(false);
        let behind = dirty.waiting_from(0).take_while(|&before| before < line);
        let key = dirty.waiting_from(line).chain(behind).map(key).find(may_destage)?;
        Some(ElevatorStop { key, whole: false, operations })
    }

    /// If throttled writers have waited too long for a distant elevator, destages a line of this
    /// shard out of order, or else admits the writers, which then write through to the disk.
    fn bypass_elevator(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.scheduler().is_starving(now_ms) {
            return;
        }
        self.scheduler_mut().restart_wait(now_ms);
        match self.next_stop(now_ms) {
            Some(stop) => {
                let lines_max = self.window(now_ms).map_or(usize::MAX, |window| window.lines);
                self.start_destage(stop.key, lines_max, true, out);
                self.scheduler().pause_elevator();
            }
            None => self.admit(now_ms, out),
        }
    }

    /// See [`crate::Shard::flush`], and if it is not urgent, [`crate::checkpoint`].
    pub(crate) fn flush(
        &mut self,
        part: PartId,
        is_urgent: bool,
        now_ms: u64,
        out: &mut Outbox,
    ) -> Option<IoResult> {
        if is_urgent {
            self.scheduler_mut().count_flush();
        }
        if self.dirty().is_empty() {
            return Some(Ok(()));
        }
        self.lines.volume.writeback_mut().push_flush(part, is_urgent);
        self.pump(now_ms, out);
        None
    }

    /// Makes the driver wake this shard if a newly dirty line precedes its published stop and the
    /// elevator runs. The driver wakes the shard after it has copied the data into the pool.
    pub(crate) fn notify_elevator(&self, line: u64, now_ms: u64, out: &mut Outbox) {
        let (scheduler, inputs) = (self.scheduler(), self.inputs(now_ms));
        if !scheduler.is_elevator_running() || !scheduler.may_use_elevator(inputs) {
            return;
        }
        let whole = self.dirty().whole_stripe_of(line);
        let woken = scheduler.shard_to_wake(whole.unwrap_or(line), whole.is_some());
        out.wakes.extend(woken.map(|shard| (shard, self.lines.id)));
    }

    /// Throttles a part until destages of its volume complete. This slows writers down to the rate
    /// at which the disk takes gathered writes in ascending order, which is never below the rate of
    /// single writes. Returns false if no destage can make progress.
    pub(crate) fn throttle(
        &mut self,
        part: PartId,
        lines: usize,
        now_ms: u64,
        out: &mut Outbox,
    ) -> bool {
        if self.lines.volume.writeback().epochs().is_some() {
            return false;
        }
        self.scheduler_mut().start_throttling();
        self.pump(now_ms, out);
        if !self.scheduler().has_progress() {
            // Without a destage, nothing would end the throttling: the next dirty line would be
            // destaged at once, although no writer waits.
            self.scheduler_mut().abandon_throttling();
            return false;
        }
        self.scheduler_mut().throttle(part, lines, now_ms);
        self.lines.quota.count_throttled();
        let counters = self.lines.volume.counters_mut();
        counters.waits += 1;
        counters.throttled_writes += 1;
        true
    }

    /// Admits throttled parts after a destage has completed: those that have waited longest first,
    /// as many as fit into the free lines. A part does not wait for one particular destage, which
    /// may take long, because a disk serves nearby requests first.
    pub(crate) fn admit(&mut self, now_ms: u64, out: &mut Outbox) {
        let quota = &self.lines.quota;
        let (free, max) = (quota.free_lines(self.lines.id), quota.lines_max(self.lines.id));
        let scheduler = self.scheduler_mut();
        scheduler.restart_wait(now_ms);
        let before = out.answers.len();
        let outcome = Outcome::Retry(None);
        out.answers.extend(scheduler.admit(free, max).map(|part| Answer { part, outcome }));
        self.lines.quota.count_admitted(out.answers.len() - before);
    }

    /// Continues after an operation has completed: lines that a flush found busy may be destaged
    /// now.
    pub(crate) fn resume(&mut self, op: &LineOp, now_ms: u64, out: &mut Outbox) {
        let VolumeLines { volume, quota, .. } = &mut self.lines;
        let writeback = volume.writeback_mut();
        // Most operations complete while nothing is to be destaged.
        if !writeback.has_work(quota) {
            return;
        }
        op.lines.iter().for_each(|line| writeback.dirty_mut().retry(line.key.line()));
        let may_sweep = writeback.epochs().is_none() && !writeback.dirty().is_sweeping();
        if may_sweep && writeback.is_stalled() {
            writeback.dirty_mut().begin_sweep();
        }
        if out.memory.is_empty() {
            self.pump(now_ms, out);
        } else {
            // The driver verifies a seal after this call. The verdict must be known before the line
            // is destaged, so the next tick starts the destages.
            self.answer_flushes(out);
        }
    }

    /// Counts a completed destage. The caller handles its lines afterwards.
    pub(crate) fn count_end(&mut self, op: &LineOp, now_ms: u64) {
        let failed = op.error.is_some();
        self.lines.quota.count_destage_end(self.lines.id, op.lines.len());
        let has_recovered = self.lines.quota.has_recovered(self.lines.id);
        let writeback = self.lines.volume.writeback_mut();
        if writeback.epochs().is_none() {
            writeback.flushes_mut().count_end(op.serves);
        }
        let scheduler = self.scheduler_mut();
        scheduler.count_end(op.lines.len(), failed, op.is_wide, now_ms);
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

    /// Starts to destage a dirty line that is not busy, together with its span. The operation
    /// covers all destageable sectors of each of its dirty lines, up to `lines_max` lines.
    pub(crate) fn start_destage(
        &mut self,
        key: LineKey,
        lines_max: usize,
        urgent: bool,
        out: &mut Outbox,
    ) -> u32 {
        let mut span = self.planner().limited(lines_max as u64).span_of(key);
        let writeback = self.lines.volume.writeback_mut();
        let mut serves = Serves::default();
        if writeback.epochs().is_none() {
            for line in span.lines.iter_mut().filter(|line| line.mask != 0) {
                line.is_owed = writeback.dirty_mut().mark_in_destage(line.key.line());
            }
            let is_owed = span.lines.iter().any(|line| line.is_owed);
            serves = writeback.flushes_mut().count_start(is_owed);
        }
        let counters = self.lines.volume.counters_mut();
        counters.scattered_destages += u64::from(span.is_scattered);
        counters.destaged_stripes += span.stripes;
        self.start(span, serves, urgent, out)
    }

    /// Counts a destage that starts.
    pub(crate) fn count_start(&mut self, span: &Span, urgent: bool) {
        let counters = self.lines.volume.counters_mut();
        counters.destaged_lines += span.lines.iter().filter(|line| line.mask != 0).count() as u64;
        counters.destage_writes += span.runs.len() as u64;
        counters.destaged_bytes += span.bytes();
        if urgent {
            counters.destages_urgent += 1;
        } else {
            counters.destages_background += 1;
        }
    }

    /// Starts the operation for a span.
    fn start(&mut self, span: Span, serves: Serves, urgent: bool, out: &mut Outbox) -> u32 {
        let writeback = self.lines.volume.writeback_mut();
        let ignores_reads = urgent || writeback.epochs().is_some();
        writeback.scheduler_mut().take_tokens(span.runs.len() as u64, span.bytes(), ignores_reads);
        self.count_start(&span, urgent);
        let Span { lines, runs, is_wide, .. } = span;
        for line in &lines {
            let there = self.lines.index.get(line.slot);
            let has_data = line.mask & !there.destageable() == 0;
            assert!(there.key == line.key && has_data, "{line:?} is destaged from {there:?}");
            self.lines.index.pin(line.slot);
        }
        let op = LineOp {
            is_wide,
            serves,
            ..LineOp::new(OpKind::Destage, self.lines.id, lines, None, runs.len())
        };
        let id = self.lines.start(op);
        let cause = if urgent { IoCause::DestageUrgent } else { IoCause::Destage };
        emit(out, id, (IoVerb::Write { fua: false }, cause), self.lines.id, None, runs);
        id.op
    }

    /// Starts as many destages of the runs in progress as may be in flight.
    fn pump_epochs(&mut self, out: &mut Outbox) {
        let draining = self.lines.volume.mode() != Mode::WriteBack;
        let writeback = self.lines.volume.writeback_mut();
        let is_stalled = writeback.is_stalled();
        let is_log_short = writeback.scheduler().is_log_short();
        let Some(epochs) = writeback.epochs_mut() else { return };
        let urgent = draining || epochs.is_urgent() || is_log_short;
        if is_stalled {
            epochs.refill(self.lines.index);
        }
        while self.scheduler().may_run(urgent, self.lines.quota) {
            let Some(epochs) = self.lines.volume.writeback_mut().epochs_mut() else { return };
            let Some((key, slot)) = epochs.next() else { return };
            if epochs.is_waiting_for(slot) && self.may_destage_slot(key, slot) {
                self.start_ordered(key, slot, urgent, out);
            }
        }
    }

    /// Whether a slot has a destageable sector and its line is not busy.
    fn may_destage_slot(&self, key: LineKey, slot: Slot) -> bool {
        self.lines.index.get(slot).destageable() != 0 && self.lines.ops.busy(key).is_none()
    }

    /// Destages a slot together with those that follow it in the queue, as long as their dirty
    /// sectors are contiguous.
    fn start_ordered(&mut self, key: LineKey, slot: Slot, urgent: bool, out: &mut Outbox) {
        let mut lines = Few::new();
        let mut runs: Few<IoRun> = Few::new();
        let mut next = Some((key, slot));
        while let Some((key, slot)) = next {
            let mask = self.lines.index.get(slot).destageable();
            let epochs = self.lines.volume.writeback().epochs();
            let is_due = epochs.is_some_and(|epochs| epochs.is_waiting_for(slot));
            assert!(is_due && mask != 0, "{key:?} in slot {slot} is not due in its epoch");
            self.planner().push_sectors(key, slot, mask, &mut runs);
            lines.push(OpLine::new(key, slot, mask));
            let joins = |after: LineKey, slot: Slot| {
                let next_mask = self.lines.index.get(slot).destageable();
                mask & 0x80 != 0
                    && after == key.plus(1)
                    && !after.line().is_multiple_of(LINES_PER_REGION)
                    && self.may_destage_slot(after, slot)
                    && next_mask & 1 != 0
                    && crate::line::key::mask_runs(next_mask).count() == 1
            };
            let joined = self.lines.volume.writeback().epochs();
            let joined = joined.is_some_and(|epochs| epochs.joins_next(joins));
            let epochs = self.lines.volume.writeback_mut().epochs_mut();
            next = epochs.filter(|_| joined).and_then(Epochs::next);
        }
        self.start(Span::of_runs(lines, runs), Serves::default(), urgent, out);
    }
}
