//! Writing dirty lines back: what goes together, and when.
//!
//! Lines go out in ascending order of place, whole stripes first and neighbours in one write. A
//! flush or a mode that has no place for dirty data takes all; otherwise a line goes when it has
//! been dirty for a while, or when so much is dirty that the limit is near. What fails stays dirty
//! and is tried again.
//!
//! What nobody waits for steps aside while clients wait for reads of the same disk: a hard disk
//! that writes back between them seeks twice for each. It goes at the pace it was given, the faster
//! the nearer the dirty limit is, so reads put it off and never stop it.

pub(crate) mod dirty;
pub(crate) mod elevator;
pub(crate) mod epochs;
mod flush;
pub(crate) mod line_set;
pub(crate) mod span;
pub(crate) mod token_bucket;

use crate::index::key::mask_runs;
use crate::index::meta::LineTable;
use crate::modes::read::{Run, push_run};
use crate::ops::{Op, OpKind};
use crate::sabotage::PlantedBug;
use crate::shard::{emit, operation};
use crate::writeback::elevator::Stop;
use crate::writeback::line_set::LineSet;
use crate::writeback::span::Span;
use crate::{Answer, IoVerb, LineKey, Outbox, Outcome, Part, Place, Segment, Shard, Slot};
use forebay_types::{LINE_BYTES, Mode, SECTOR_BYTES, VolumeId};
use std::iter;
use std::sync::Arc;

/// Time between two ticks that counts at most, in milliseconds: without dirty lines there are none.
const TICK_MS_MAX: u64 = 1_000;
/// Waits after the first failed destage and at most, in milliseconds.
const BACKOFF_FIRST_MS: u64 = 250;
const BACKOFF_MAX_MS: u64 = 10_000;
/// Where nothing became dirty for so long, in milliseconds, the dirty limit hurries nobody.
const WRITERS_GONE_MS: u64 = 500;
/// How long who waits for room waits for the elevator, in milliseconds.
const ROOM_PATIENCE_MS: u64 = 250;

impl<M: LineTable> Shard<M> {
    /// Starts what background write-back is due. Call it every 50 ms or so.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        if !self.needs_tick() {
            return;
        }
        let many = self.dirty_lines > self.config.dirty_lines_background;
        let passed_ms = now_ms.saturating_sub(self.ticked_ms).min(TICK_MS_MAX);
        self.ticked_ms = now_ms;
        for at in 0..self.volumes.len() {
            let Some(state) = &mut self.volumes[at] else { continue };
            let is_clean = state.dirty.is_empty() && state.frozen_lines() == 0;
            if is_clean && state.room_queue.is_empty() {
                continue;
            }
            state.counters.dirty_line_ms += state.dirty.len() as u64 * passed_ms;
            let volume = VolumeId(at as u16);
            let waits_idle = !state.flushes.is_empty() && state.destaging == 0;
            if state.order.is_some() {
                self.tick_order(volume, now_ms, out);
                continue;
            }
            if state.sweep.is_empty() && waits_idle {
                self.sweep_flushes(volume);
            } else if state.sweep.is_empty() && now_ms >= state.backoff_until_ms {
                if state.mode != Mode::WriteBack {
                    self.sweep_all(volume);
                } else if !many && now_ms >= state.aging_due_ms() {
                    state.next_aging_ms = now_ms + self.config.dirty_age_ms;
                    self.sweep_aged(volume);
                }
            }
            self.pump(volume, now_ms, out);
            self.relieve(volume, now_ms, out);
        }
    }

    /// Whether a tick has anything to look after. What was dirty may have gone another way, erased
    /// or written through, and then nothing else lets in who waits for room.
    pub const fn needs_tick(&self) -> bool {
        self.dirty_lines > 0 || self.room_waiters > 0
    }

    /// Puts all dirty lines of a volume on its list.
    pub(crate) fn sweep_all(&mut self, volume: VolumeId) {
        // Lost sectors are among them; who takes a line from the list looks at it again.
        let mut sweep = std::mem::take(&mut self.volume_mut(volume).sweep);
        sweep.clear();
        sweep.extend(self.volume(volume).dirty.iter().map(|slot| self.slots.get(slot).key));
        self.sort_sweep(volume, &mut sweep);
        let state = self.volume_mut(volume);
        state.sweep = sweep;
    }

    /// Puts the lines on the list that were dirty the last time as well.
    fn sweep_aged(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        let due = state.aged.iter().filter(|&slot| state.dirty.contains(slot));
        let mut sweep: Vec<LineKey> = due.map(|slot| self.slots.get(slot).key).collect();
        self.sort_sweep(volume, &mut sweep);
        let state = self.volume_mut(volume);
        state.aged.clone_from(&state.dirty);
        state.sweep = sweep;
    }

    /// Starts destage operations of the volume, as many as may be in flight, and answers the
    /// flushes that have nothing left to wait for.
    pub(crate) fn pump(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        self.answer_flushes(volume, out);
        if self.volume(volume).order.is_some() {
            return self.pump_order(volume, out);
        }
        // The limit is far from those who do not come nearer.
        let rests = now_ms > self.dirtied_ms + WRITERS_GONE_MS;
        let distance = self.config.room(if rests { 0 } else { self.dirty_lines });
        self.volume_mut(volume).allowance.fill(now_ms, distance);
        self.pump_sweep(volume, now_ms, out);
        self.ride(volume, now_ms, out);
    }

    /// Starts operations from the volume's list.
    fn pump_sweep(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        loop {
            let state = self.volume(volume);
            let urgent = !state.flushes.is_empty() || state.mode != Mode::WriteBack;
            let beside_reads = !urgent && state.reading;
            let waits = !urgent && !state.allowance.may_start(beside_reads);
            let operations_max = match urgent {
                true => self.config.destage_operations_max,
                false => state.allowance.in_flight(beside_reads),
            };
            if state.holds_back(now_ms) || waits || state.destaging >= operations_max {
                return;
            }
            let Some(key) = self.volume_mut(volume).sweep.pop() else { return };
            if self.may_destage(key) {
                self.start_destage(key, urgent, out);
            }
        }
    }

    /// Whether more is dirty than is to be, but for what is on its way to the disk.
    const fn has_too_much(&self) -> bool {
        self.dirty_lines.saturating_sub(self.destaging_lines) > self.config.dirty_lines_background
    }

    /// Whether a line has something to destage, and nobody uses it.
    fn may_destage(&self, key: LineKey) -> bool {
        let found = self.slots.find(key);
        found.is_some_and(|slot| self.slots.get(slot).destageable() != 0)
            && self.flight.busy(key).is_none()
    }

    /// Has the elevator stop here while the next stop is this shard's, and wakes the shard whose it
    /// is then.
    pub(crate) fn ride(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        let state = self.volume(volume);
        if !state.wants_room && !self.has_too_much() && !state.elevator.is_called() {
            return;
        }
        let (elevator, shard) = (Arc::clone(&state.elevator), state.elevator_shard);
        let dirty_lines_max = self.config.dirty_lines_max;
        loop {
            let stop = self.next_stop(volume, now_ms);
            if elevator.call(shard, stop) && elevator.shards() > 1 {
                // The last one is told first: this one goes on when all have said where they stop.
                let others = (0..elevator.shards()).filter(|&other| other != shard);
                let all = iter::once(shard).chain(others);
                return out.wakes.extend(all.map(|shard| (shard, volume)));
            }
            let next = elevator.next().filter(|_| elevator.has_room(dirty_lines_max));
            match (next, stop) {
                (Some(next), Some(stop)) if next == shard => {
                    elevator.stopped(&stop);
                    let urgent = self.volume(volume).wants_room;
                    self.start_destage(stop.key, urgent, out);
                }
                (Some(next), _) if next != shard => return out.wakes.push((next, volume)),
                _ => return,
            }
        }
    }

    /// The next stop of the elevator is said to be here, by another shard.
    pub fn wake(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        if self.has_volume(volume) {
            self.pump(volume, now_ms, out);
        }
    }

    /// Whether anything may go with the elevator now.
    fn may_ride(&self, volume: VolumeId, now_ms: u64) -> bool {
        let state = self.volume(volume);
        let beside_reads = !state.wants_room && state.reading;
        // What fails here is not tried again at once, as no flush ends by it.
        let has_failed = now_ms < state.backoff_until_ms;
        let is_tried_again = state.is_narrow && !state.flushes.is_empty();
        !has_failed && !is_tried_again && state.allowance.may_start(beside_reads)
    }

    /// A part has become dirty: if the elevator, which runs, is not known to come by here, it is
    /// told, once what was written is in the pool.
    pub(crate) fn tell_elevator(&self, part: &Part, out: &mut Outbox) {
        let state = self.volume(part.volume);
        if !state.elevator.is_called() || !self.may_ride(part.volume, self.gates.now_ms) {
            return;
        }
        let line = part.range.offset / LINE_BYTES;
        let (line, whole) = state.waiting_stripe(line).map_or((line, false), |first| (first, true));
        if state.elevator.is_news(state.elevator_shard, line, whole) {
            out.wakes.push((state.elevator_shard, part.volume));
        }
    }

    /// Where the elevator is to stop here next, if anything may go now.
    fn next_stop(&self, volume: VolumeId, now_ms: u64) -> Option<Stop> {
        if !self.may_ride(volume, now_ms) {
            return None;
        }
        let state = self.volume(volume);
        let beside_reads = !state.wants_room && state.reading;
        let operations = match state.wants_room {
            true => self.config.destage_operations_all,
            false if !self.has_too_much() => 0,
            false => {
                let at_leisure = state.allowance.burst(beside_reads);
                self.config.operations_for(self.dirty_lines, at_leisure)
            }
        };
        let next = |lines: &LineSet, whole: bool| {
            let line = state.elevator.line(whole);
            let keys = lines.from(line).chain(lines.from(0).take_while(|&before| before < line));
            keys.map(|line| LineKey::new(volume, line)).find(|&key| self.may_destage(key))
        };
        let whole = next(&state.whole, true).map(|key| (key, true));
        let (key, whole) = whole.or_else(|| Some((next(&state.waiting, false)?, false)))?;
        Some(Stop { key, whole, operations })
    }

    /// Nobody waits for room for long where the elevator is far away: something goes from here out
    /// of order, or those who wait go through to the disk.
    fn relieve(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        let state = self.volume(volume);
        let since_ms = state.room_since_ms;
        let patient = state.room_queue.is_empty() || now_ms < since_ms + ROOM_PATIENCE_MS;
        if patient || state.destaging > 0 {
            return;
        }
        self.volume_mut(volume).room_since_ms = now_ms;
        match self.next_stop(volume, now_ms) {
            Some(stop) => {
                self.start_destage(stop.key, true, out);
                let state = self.volume(volume);
                state.elevator.hold(state.elevator_shard);
            }
            None => self.give_room(volume, now_ms, out),
        }
    }

    fn answer_flushes(&mut self, volume: VolumeId, out: &mut Outbox) {
        let state = self.volume_mut(volume);
        state.flushes.retain(|flush| {
            let done = flush.remaining.is_empty();
            if done {
                let outcome = Outcome::Done(flush.error.map_or(Ok(()), Err));
                out.answers.push(Answer { part: flush.part, outcome });
            }
            !done
        });
    }

    /// Puts the lines on the list that flushes still wait for.
    fn sweep_flushes(&mut self, volume: VolumeId) {
        let mut sweep: Vec<LineKey> = Vec::new();
        for flush in &self.volume(volume).flushes {
            sweep.extend(flush.remaining.iter().map(|slot| self.slots.get(slot).key));
        }
        self.sort_sweep(volume, &mut sweep);
        self.volume_mut(volume).sweep = sweep;
    }

    /// After an operation has ended: lines that a flush found busy can be destaged now.
    pub(crate) fn resume_flushes(&mut self, volume: VolumeId, now_ms: u64, out: &mut Outbox) {
        let state = self.volume(volume);
        let is_idle = !state.flushes.is_empty() && state.destaging == 0;
        if is_idle && state.order.is_some() {
            self.refill_queue(volume);
        } else if is_idle && state.sweep.is_empty() {
            self.sweep_flushes(volume);
        }
        if out.memory.is_empty() {
            self.pump(volume, now_ms, out);
        } else {
            // A seal was broken just now and is looked at after this call. What comes of that must
            // be known before the line is destaged: with the next tick.
            self.answer_flushes(volume, out);
        }
    }

    /// Starts to destage a dirty line that is not busy, together with what goes with it. Every
    /// dirty line in the operation is destaged wholly.
    pub(crate) fn start_destage(&mut self, key: LineKey, urgent: bool, out: &mut Outbox) -> u32 {
        let volume = key.volume();
        let Span { lines, runs, stripes, is_wide } = self.span_of(key);
        let (ios, bytes) = (runs.len() as u64, runs.iter().map(|run| run.range.len).sum());
        let state = self.volume_mut(volume);
        lines
            .iter()
            .filter(|line| line.mask != 0)
            .for_each(|line| state.leave_line(line.key.line()));
        state.allowance.take(ios, bytes, state.reading && !urgent);
        let counters = &mut state.counters;
        counters.destage_writes += ios;
        counters.destaged_bytes += bytes;
        counters.destaged_stripes += stripes;
        if urgent {
            counters.destages_urgent += 1;
        } else {
            counters.destages_background += 1;
        }
        let op = operation(OpKind::Destage, volume, lines, None, runs.len());
        let id = self.start(Op { is_wide, ..op });
        emit(out, id, IoVerb::Write { fua: false }, volume, None, runs);
        id.op
    }

    /// Appends sectors of a line to what is to be written.
    pub(crate) fn push_sectors(&self, key: LineKey, slot: Slot, mask: u8, runs: &mut Vec<Run>) {
        let unverified = self.is_planted(PlantedBug::DestageUnverified);
        let seal = self.seal_of(slot).filter(|_| !unverified);
        for (sector, sectors) in mask_runs(mask) {
            let offset = sector * SECTOR_BYTES as u32;
            let place = Place::Slot { slot, offset };
            let len = sectors * SECTOR_BYTES as u32;
            push_run(runs, key.offset() + u64::from(offset), Segment { place, len }, 0);
            let run = runs.last_mut().expect("pushed just now");
            if run.seals.last().is_none_or(|last| last.slot != slot) {
                run.seals.extend(seal);
            }
        }
    }

    /// Notes how a destage ended for the volume's later ones.
    pub(crate) fn note_destage(&mut self, op: &Op, now_ms: u64) {
        let is_enough = self.dirty_lines <= self.config.dirty_lines_enough();
        let state = self.volume_mut(op.volume);
        let failed = op.error.is_some();
        state.wants_room &= !is_enough || !state.room_queue.is_empty();
        state.counters.destage_errors += u64::from(failed);
        // The next one goes by itself, to find out whether it was for the clean sectors.
        state.is_narrow = failed && op.is_wide;
        if state.is_narrow {
            return;
        }
        if failed {
            state.backoff_ms = (state.backoff_ms * 2).clamp(BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
            state.backoff_until_ms = now_ms + state.backoff_ms;
        } else {
            state.backoff_ms = 0;
            state.backoff_until_ms = 0;
        }
    }
}
