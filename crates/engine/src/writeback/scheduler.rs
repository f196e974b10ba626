//! Decides when the next destage of a volume may start, and how many may be in flight.
//!
//! A line is destaged in one of two ways. The *sweep* takes owed lines: for a flush, a checkpoint,
//! a mode without dirty data, or age. The *elevator* takes the next line in ascending order, while
//! any of the volume's shards has a backlog or throttled writers. A decision depends on the state
//! of this module, on [`SchedulerInputs`], and on the quota with its backlog:
//!
//! | input | sweep | elevator |
//! | --- | --- | --- |
//! | a flush, or draining | operations as configured, one per flush, no rate limits | no effect |
//! | the last destage failed | backs off, unless a flush runs | backs off |
//! | clients read from the disk | waits for burst tokens | the same, unless writers are throttled |
//! | the operator's rates | waits for tokens, unless urgent | waits for tokens |
//! | a checkpoint | waits while the shard is over its background limit | no effect |
//! | the journal's log fills up | more burst tokens; a checkpoint does not wait | the same |
//! | the log is short of space | a checkpoint counts as a flush | no effect |
//! | the backlog | - | more operations as the dirty limit nears |
//! | throttled writers | - | all operations |
//! | clients read near the dirty limit | the same, unless urgent | a [`FlightWindow`] |
//!
//! An ordered volume uses neither of them, but *runs* (`epochs.rs`). They have operations as
//! configured, and wait only for tokens of the operator's rates, unless a part waits for them or
//! the mode keeps no dirty data.

use super::elevator::{Elevator, ElevatorStop, FlightWindow};
use super::flush_share::WRITES_MAX;
use super::quota::DirtyQuota;
use super::token_bucket::TokenBucket;
use crate::PartId;
use forebay_policy::Pace;
use forebay_types::VolumeId;
use std::collections::VecDeque;
use std::sync::Arc;

/// The delay after the first failed destage, and the longest, in milliseconds.
const BACKOFF_FIRST_MS: u64 = 250;
const BACKOFF_MAX_MS: u64 = 10_000;
/// How long throttled writers wait for the elevator, in milliseconds.
const THROTTLE_WAIT_MAX_MS: u64 = 250;
/// How long aging is deferred while the elevator runs, in milliseconds.
const ELEVATOR_AGE_MS: u64 = 20_000;
/// A log is short of space below this fraction of the distance: where the rate of bursts has become
/// unlimited.
const LOG_SHORT: u64 = 16;

/// External inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerInputs {
    /// A flush waits for owed lines, or a checkpoint of a log that is short of space.
    pub flushing: bool,
    /// Only checkpoints wait for owed lines, and the log has space left.
    pub reclaiming: bool,
    /// The number of flushes that wait.
    pub flushes: u32,
    /// The mode keeps no dirty data.
    pub draining: bool,
    /// The current time, in milliseconds.
    pub now_ms: u64,
}

impl SchedulerInputs {
    const fn is_urgent(self) -> bool {
        self.flushing || self.draining
    }
}

/// The destage scheduler of a volume in one shard.
#[derive(Debug)]
pub(crate) struct DestageScheduler {
    /// The volume, whose shares limit its dirty lines.
    volume: VolumeId,
    bucket: TokenBucket,
    /// The distance to the point where the volume's journal is full because of this volume, and its
    /// maximum; see [`crate::ShardVolume::set_log_distance`].
    log_distance: (u64, u64),
    /// Whether clients were reading at the last [`DestageScheduler::set_reading`], and the reads
    /// that the elevator had counted by then.
    was_reading: bool,
    reads: u64,
    /// The elevator that the volume's shards share, and the number of this shard in it.
    elevator: Arc<Elevator>,
    shard: usize,
    /// Writes of this shard since the last flush.
    writes: u32,
    /// Whether lines wait for a destage that flushes wait for.
    is_flushing: bool,
    /// Destages in flight.
    destaging: u32,
    /// The time of the next pass by age, in milliseconds.
    next_aging_ms: u64,
    /// After a failed destage: no destage before this time except for a flush, in milliseconds.
    backoff_until_ms: u64,
    backoff_ms: u64,
    /// A wide destage failed: the next one takes a single run without clean sectors.
    is_narrow: bool,
    /// Writers are throttled until enough dirty lines are clean.
    is_throttling: bool,
    /// Throttled parts in order of arrival, each with the number of lines it needs.
    throttled: VecDeque<(PartId, usize)>,
    /// The start of their current wait, in milliseconds; see [`DestageScheduler::restart_wait`].
    throttled_since_ms: u64,
}

impl DestageScheduler {
    pub(crate) fn new(volume: VolumeId) -> Self {
        Self {
            volume,
            bucket: TokenBucket::default(),
            log_distance: (1, 1),
            was_reading: false,
            reads: 0,
            elevator: Elevator::new(1, 0, false),
            shard: 0,
            writes: 0,
            is_flushing: false,
            destaging: 0,
            next_aging_ms: 0,
            backoff_until_ms: 0,
            backoff_ms: 0,
            is_narrow: false,
            is_throttling: false,
            throttled: VecDeque::new(),
            throttled_since_ms: 0,
        }
    }

    /// Replaces the elevator, in which this shard has number `shard`.
    ///
    /// # Panics
    /// If a destage is in flight: its completion would be counted in the new elevator.
    pub(crate) fn set_elevator(&mut self, elevator: Arc<Elevator>, shard: usize) {
        assert_eq!(self.destaging, 0, "the elevator changes with destages in flight");
        assert!(!self.is_flushing, "the elevator changes while a flush waits");
        assert!(shard < elevator.shards(), "the elevator has no shard {shard}");
        self.reads = elevator.reads();
        (self.elevator, self.shard) = (elevator, shard);
    }

    /// Sets whether clients wait for reads of the disk. Reads that start later are counted by
    /// [`DestageScheduler::count_read`].
    pub(crate) fn set_reading(&mut self, reading: bool) {
        // A read that was counted since the last call may not have been started by the driver yet,
        // and so is missing from `reading`.
        self.was_reading = reading || self.elevator.reads() != self.reads;
        self.reads = self.elevator.reads();
    }

    /// Counts a read of the disk for a client or a prefetch. It slows the destages of all shards.
    pub(crate) fn count_read(&self) {
        self.elevator.count_read();
    }

    /// Counts a write of a client.
    pub(crate) fn count_write(&mut self, now_ms: u64) {
        self.writes += 1;
        if self.writes >= WRITES_MAX {
            let share = self.elevator.flush_share();
            share.clear();
            share.count_writes(std::mem::take(&mut self.writes));
            // There is no tick if all writes go to the disk.
            share.pass(now_ms);
        }
    }

    /// Counts a flush, which all shards get.
    pub(crate) fn count_flush(&mut self) {
        self.elevator.flush_share().count_writes(std::mem::take(&mut self.writes));
        if self.shard == 0 {
            self.elevator.flush_share().count_flush();
        }
    }

    /// Records whether lines of this shard wait for a destage that flushes wait for.
    pub(crate) fn set_flushing(&mut self, flushing: bool, now_ms: u64) {
        let share = self.elevator.flush_share();
        if flushing != std::mem::replace(&mut self.is_flushing, flushing) {
            share.count_waiting(flushing, now_ms);
        } else if self.shard == 0 {
            share.pass(now_ms);
        }
    }

    /// What [`DestageScheduler::set_flushing`] recorded.
    pub(crate) const fn is_flushing(&self) -> bool {
        self.is_flushing
    }

    /// Whether writes gain nothing from write-back, because flushes wait for them.
    pub(crate) fn favours_disk(&self) -> bool {
        self.elevator.flush_share().favours_disk(self.elevator.has_one_arm())
    }

    /// Counts such a read as completed.
    pub(crate) fn count_read_end(&self, now_ms: u64) {
        self.elevator.count_read_end(now_ms);
    }

    fn is_reading(&self) -> bool {
        self.was_reading || self.elevator.reads() != self.reads
    }

    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.bucket.set_pace(pace);
    }

    pub(crate) fn set_log_distance(&mut self, left: u64, all: u64) {
        assert!(left <= all && all > 0, "{left} left of {all}");
        self.log_distance = (left, all);
    }

    /// Whether the log fills up because of this volume.
    const fn is_log_filling(&self) -> bool {
        self.log_distance.0 < self.log_distance.1
    }

    /// Whether the log is about to admit no more writes because of this volume.
    pub(crate) const fn is_log_short(&self) -> bool {
        self.log_distance.0 * LOG_SHORT <= self.log_distance.1
    }

    /// Adds the rate limit's tokens for the time passed. The rate rises as the dirty limit or the
    /// end of the log nears. A log that nothing is written to does not fill up.
    pub(crate) fn refill(&mut self, now_ms: u64, quota: &DirtyQuota) {
        let (dirty, log) = (quota.distance(self.volume, now_ms), self.log_distance);
        let is_log_nearer =
            u128::from(log.0) * u128::from(dirty.1) < u128::from(dirty.0) * u128::from(log.1);
        let is_nearest = is_log_nearer && !quota.are_writers_idle(now_ms);
        self.bucket.fill(now_ms, if is_nearest { log } else { dirty });
    }

    pub(crate) const fn destaging(&self) -> u32 {
        self.destaging
    }

    pub(crate) const fn is_narrow(&self) -> bool {
        self.is_narrow
    }

    pub(crate) const fn is_throttling(&self) -> bool {
        self.is_throttling
    }

    pub(crate) const fn is_backing_off(&self, now_ms: u64) -> bool {
        now_ms < self.backoff_until_ms
    }

    /// Whether the sweep may start a destage.
    pub(crate) fn may_sweep(&self, inputs: SchedulerInputs, quota: &DirtyQuota) -> bool {
        if inputs.is_urgent() {
            let waits = !inputs.flushing && self.is_backing_off(inputs.now_ms);
            // Without a cache, each client that flushes would have a write of its own in flight.
            let most = quota.config().destage_operations_max.max(inputs.flushes);
            return !waits && self.destaging < most;
        }
        let operations_max = match inputs.reclaiming && self.is_log_filling() {
            // Otherwise the operations of an elevator that does not reach a checkpoint's lines,
            // because it follows a sequential writer, would keep the sweep from them.
            true => quota.config().destage_operations_max,
            false => self.bucket.operations_max(self.is_reading()),
        };
        let is_left_to_elevator =
            inputs.reclaiming && quota.is_over_background(self.volume) && !self.is_log_filling();
        !self.is_backing_off(inputs.now_ms)
            && !is_left_to_elevator
            && self.bucket.may_start(self.is_reading())
            && self.destaging < operations_max
    }

    /// The lines that the sweep's next destage may have; zero if it must wait. Unless urgent, it
    /// keeps to the elevator's window. Beside reads, a flush does not fill the queue of a slow disk
    /// for seconds, but has `lines_min` lines at least if none of this shard is in flight. A disk
    /// with one arm is not limited: interrupting a sweep costs it more than reads gain.
    pub(crate) fn sweep_lines_max(
        &self,
        inputs: SchedulerInputs,
        window: Option<FlightWindow>,
        lines_min: usize,
    ) -> usize {
        if !inputs.is_urgent() {
            return self.lines_left(window, inputs.now_ms);
        }
        let is_limited = self.bucket.is_limited_by_reads() && self.is_reading();
        if !inputs.flushing || !is_limited || self.elevator.has_one_arm() {
            return usize::MAX;
        }
        let least = if self.destaging == 0 { lines_min } else { 0 };
        self.elevator.sweep_lines_left(lines_min.max(inputs.flushes as usize)).max(least)
    }

    /// The lines that the next operation in a window may have; zero if it is full.
    pub(crate) fn lines_left(&self, window: Option<FlightWindow>, now_ms: u64) -> usize {
        window.map_or(usize::MAX, |window| self.elevator.lines_left(window, now_ms))
    }

    /// Whether the run of an ordered volume may start a destage. Reads do not slow it down.
    pub(crate) const fn may_run(&self, urgent: bool, quota: &DirtyQuota) -> bool {
        (urgent || self.bucket.may_start(false))
            && self.destaging < quota.config().destage_operations_max
    }

    /// Whether the elevator may start a destage. During a flush, the retry of a failed wide destage
    /// is left to the sweep.
    pub(crate) fn may_use_elevator(&self, inputs: SchedulerInputs) -> bool {
        let is_retried = self.is_narrow && inputs.flushing;
        let may_start = self.bucket.may_start(self.is_elevator_limited_by_reads());
        !self.is_backing_off(inputs.now_ms) && !is_retried && may_start
    }

    fn is_elevator_limited_by_reads(&self) -> bool {
        self.is_reading() && !self.is_throttling
    }

    /// Whether the elevator runs or should start.
    pub(crate) fn wants_elevator(&self, quota: &DirtyQuota) -> bool {
        self.is_throttling || quota.has_backlog(self.volume) || self.elevator.is_running()
    }

    /// The limit of what is in flight while clients read, if the dirty limit is so near that the
    /// rate is no limit. `lines_min` lines may always be in flight.
    pub(crate) fn window(
        &self,
        quota: &DirtyQuota,
        lines_min: usize,
        now_ms: u64,
    ) -> Option<FlightWindow> {
        let (left, all) = quota.distance(self.volume, now_ms);
        let is_near = self.is_throttling || left * 2 <= all;
        (self.bucket.is_limited_by_reads() && self.is_reading() && is_near)
            .then(|| self.elevator.window(lines_min))
    }

    /// The number of operations, over all shards, that this shard wants in flight.
    pub(crate) fn elevator_operations(&self, quota: &DirtyQuota) -> u32 {
        if self.is_throttling {
            quota.config().destage_operations_all
        } else if quota.has_backlog(self.volume) {
            let beside_reads = self.is_elevator_limited_by_reads();
            quota.operations_for(self.volume, self.bucket.operations_max_all(beside_reads))
        } else {
            0
        }
    }

    /// The elevator's position, for whole stripes or for other lines.
    pub(crate) fn elevator_line(&self, whole: bool) -> u64 {
        self.elevator.line(whole)
    }

    #[inline]
    pub(crate) fn is_elevator_running(&self) -> bool {
        self.elevator.is_running()
    }

    /// The elevator and the number of this shard in it.
    pub(crate) fn elevator(&self) -> (Arc<Elevator>, usize) {
        (Arc::clone(&self.elevator), self.shard)
    }

    /// This shard, if a newly dirty line changes its next stop: the line, or the first line of its
    /// whole stripe, precedes the published stop.
    pub(crate) fn shard_to_wake(&self, line: u64, whole: bool) -> Option<usize> {
        self.elevator.precedes_stop(self.shard, line, whole).then_some(self.shard)
    }

    /// Pauses the elevator until the current out-of-order destage completes.
    pub(crate) fn pause_elevator(&self) {
        self.elevator.pause(self.shard);
    }

    /// Withdraws this shard from the elevator, before the volume is removed.
    pub(crate) fn leave_elevator(&self) {
        self.elevator.publish(self.shard, None::<ElevatorStop>);
        self.throttled.iter().for_each(|&(_, lines)| self.elevator.count_admitted(lines));
        self.elevator.unpause(self.shard);
    }

    /// Takes the tokens for a destage. With `ignores_reads`, reads did not limit it.
    pub(crate) fn take_tokens(&mut self, ios: u64, bytes: u64, ignores_reads: bool) {
        self.bucket.take(ios, bytes, self.is_reading() && !ignores_reads);
    }

    /// Counts an operation over `lines` lines as started.
    pub(crate) fn count_start(&mut self, lines: usize) {
        self.destaging += 1;
        self.elevator.count_start(lines);
    }

    /// Counts a destage as completed, and sets the back-off after a failure.
    pub(crate) fn count_end(&mut self, lines: usize, failed: bool, is_wide: bool, now_ms: u64) {
        assert!(self.destaging > 0, "more destages completed than started");
        self.destaging -= 1;
        self.elevator.count_end(lines, now_ms);
        self.elevator.unpause(self.shard);
        // The next one takes a single run, to find out whether a clean sector or another run was at
        // fault.
        self.is_narrow = failed && is_wide;
        if self.is_narrow {
            return;
        }
        if failed {
            self.back_off(now_ms);
        } else {
            self.backoff_ms = 0;
            self.backoff_until_ms = 0;
        }
    }

    /// Delays the next background destages, longer each time until one succeeds.
    pub(crate) fn back_off(&mut self, now_ms: u64) {
        self.backoff_ms = (self.backoff_ms * 2).clamp(BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
        self.backoff_until_ms = now_ms + self.backoff_ms;
    }

    /// Whether a pass by age is due. The elevator destages most old lines, and a sweep would
    /// disturb its order; but while it follows a sequential writer, it does not reach some lines.
    pub(crate) fn is_aging_due(&self, now_ms: u64) -> bool {
        let deferral_ms = if self.elevator.is_running() { ELEVATOR_AGE_MS } else { 0 };
        now_ms >= self.next_aging_ms + deferral_ms
    }

    /// How long after a pass by age it is certain that something keeps the next one from running: a
    /// backlog, or one flush after the other.
    pub(crate) const fn aging_overdue_ms(quota: &DirtyQuota) -> u64 {
        2 * quota.config().dirty_age_ms + ELEVATOR_AGE_MS
    }

    /// Schedules the next pass by age.
    pub(crate) fn schedule_aging(&mut self, now_ms: u64, quota: &DirtyQuota) {
        self.next_aging_ms = now_ms + quota.config().dirty_age_ms;
    }

    /// Starts to throttle writers.
    pub(crate) const fn start_throttling(&mut self) {
        self.is_throttling = true;
    }

    /// Stops throttling, unless a part is throttled.
    pub(crate) fn abandon_throttling(&mut self) {
        self.is_throttling &= !self.throttled.is_empty();
    }

    /// Stops throttling if enough lines are clean and no part is throttled.
    pub(crate) fn end_throttling(&mut self, has_recovered: bool) {
        self.is_throttling &= !has_recovered || !self.throttled.is_empty();
    }

    /// Whether throttled parts can wait for a destage of this shard: one is in flight, or the shard
    /// has a stop.
    pub(crate) fn has_progress(&self) -> bool {
        self.destaging > 0 || self.elevator.has_stop(self.shard)
    }

    /// Throttles a part that needs `lines` free lines.
    pub(crate) fn throttle(&mut self, part: PartId, lines: usize, now_ms: u64) {
        if self.throttled.is_empty() {
            self.throttled_since_ms = now_ms;
        }
        self.throttled.push_back((part, lines));
        self.elevator.count_throttled(lines);
    }

    pub(crate) fn throttled(&self) -> usize {
        self.throttled.len()
    }

    /// Whether throttled parts have waited too long without a destage of this shard.
    pub(crate) fn is_starving(&self, now_ms: u64) -> bool {
        let until_ms = self.throttled_since_ms + THROTTLE_WAIT_MAX_MS;
        !self.throttled.is_empty() && now_ms >= until_ms && self.destaging == 0
    }

    /// Restarts the waiting time of throttled parts, after a destage of this shard or a bypass of
    /// the elevator.
    pub(crate) const fn restart_wait(&mut self, now_ms: u64) {
        self.throttled_since_ms = now_ms;
    }

    /// Takes the throttled parts that fit into `free` lines, in order of arrival; all of them if no
    /// destage will complete. A part that exceeds the dirty limit of `max` lines, because the limit
    /// was lowered, would wait in vain, so it is taken too.
    pub(crate) fn admit(
        &mut self,
        mut free: usize,
        max: usize,
    ) -> impl Iterator<Item = PartId> + '_ {
        let all = !self.has_progress();
        std::iter::from_fn(move || {
            let &(part, lines) = self.throttled.front()?;
            if !all && lines > free && lines <= max {
                return None;
            }
            free = free.saturating_sub(lines);
            self.throttled.pop_front();
            self.elevator.count_admitted(lines);
            Some(part)
        })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.throttled.capacity() * size_of::<(PartId, usize)>()
    }
}
