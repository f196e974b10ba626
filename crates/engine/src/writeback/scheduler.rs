//! When the next destage of a volume may start, and how many may be in flight.
//!
//! There are two ways for a line to go. The *sweep* takes what is owed: to a flush, to a mode that
//! has no place for dirty data, or to age. The *elevator* takes whatever is next on its way
//! through the volume, while too much is dirty in any of the volume's shards. [`Inputs`] names all
//! that a decision depends on beside what this module keeps:
//!
//! | input | sweep | elevator |
//! | --- | --- | --- |
//! | a flush, or draining | operations of the configuration, whatever the limits | as without |
//! | the last destage failed | waits, unless a flush runs | waits |
//! | clients read from the disk | waits for tokens of a burst | the same, if nothing is throttled |
//! | the operator's rates | wait for tokens, unless urgent | wait for tokens |
//! | the backlog | - | more operations, the nearer the dirty limit |
//! | throttled writers | - | all operations |

use super::elevator::{Elevator, Stop};
use super::quota::Quota;
use super::token_bucket::TokenBucket;
use crate::PartId;
use forebay_policy::Pace;
use std::collections::VecDeque;
use std::sync::Arc;

/// Waits after the first failed destage and at most, in milliseconds.
const BACKOFF_FIRST_MS: u64 = 250;
const BACKOFF_MAX_MS: u64 = 10_000;
/// How long throttled writers wait for the elevator, in milliseconds.
const THROTTLE_PATIENCE_MS: u64 = 250;
/// Aging is put off by so much, in milliseconds, while the elevator runs.
const ELEVATOR_AGE_MS: u64 = 20_000;

/// What a decision depends on, from outside of the scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// A flush waits for what is owed.
    pub flushing: bool,
    /// The mode has no place for dirty data.
    pub draining: bool,
    /// The time, in milliseconds.
    pub now_ms: u64,
}

impl Inputs {
    const fn is_urgent(self) -> bool {
        self.flushing || self.draining
    }
}

/// The scheduler of a volume's destages in one shard.
#[derive(Debug)]
pub(crate) struct Scheduler {
    bucket: TokenBucket,
    /// Clients wait for reads of the disk.
    reading: bool,
    /// The order that all shards of the volume share, and which of them this one is.
    elevator: Arc<Elevator>,
    shard: usize,
    /// Destages in flight.
    destaging: u32,
    /// When lines get old next, in milliseconds.
    next_aging_ms: u64,
    /// No destage before this time but for a flush, as the last one failed, in milliseconds.
    backoff_until_ms: u64,
    backoff_ms: u64,
    /// A destage with clean sectors, or of several runs, failed: the next goes without.
    is_narrow: bool,
    /// Writers are throttled until less is dirty.
    is_throttling: bool,
    /// Throttled parts, in the order in which they came, and the lines that each needs.
    throttled: VecDeque<(PartId, usize)>,
    /// Since when the first of them waits, in milliseconds.
    throttled_since_ms: u64,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        Self {
            bucket: TokenBucket::default(),
            reading: false,
            elevator: Elevator::new(1, 0),
            shard: 0,
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

    /// # Panics
    /// If a destage is in flight: the old elevator would miss its end.
    pub(crate) fn set_elevator(&mut self, elevator: Arc<Elevator>, shard: usize) {
        assert_eq!(self.destaging, 0, "the elevator of a volume changes while it writes back");
        assert!(shard < elevator.shards(), "shard {shard} has no place in the elevator");
        (self.elevator, self.shard) = (elevator, shard);
    }

    pub(crate) const fn set_reading(&mut self, reading: bool) {
        self.reading = reading;
    }

    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.bucket.set_pace(pace);
    }

    /// Time has passed.
    pub(crate) fn refill(&mut self, now_ms: u64, quota: &Quota) {
        self.bucket.fill(now_ms, quota.distance(now_ms));
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
    pub(crate) const fn may_sweep(&self, inputs: Inputs, quota: &Quota) -> bool {
        if inputs.is_urgent() {
            let waits = !inputs.flushing && self.is_backing_off(inputs.now_ms);
            return !waits && self.destaging < quota.config().destage_operations_max;
        }
        !self.is_backing_off(inputs.now_ms)
            && self.bucket.may_start(self.reading)
            && self.destaging < self.bucket.in_flight(self.reading)
    }

    /// Whether anything may go with the elevator. What fails there is not tried again at once, as
    /// no flush ends by it.
    pub(crate) const fn may_use_elevator(&self, inputs: Inputs) -> bool {
        let is_retried = self.is_narrow && inputs.flushing;
        let may_start = self.bucket.may_start(self.elevator_heeds_reads());
        !self.is_backing_off(inputs.now_ms) && !is_retried && may_start
    }

    const fn elevator_heeds_reads(&self) -> bool {
        self.reading && !self.is_throttling
    }

    /// Whether the elevator is to run, or runs.
    pub(crate) fn wants_elevator(&self, quota: &Quota) -> bool {
        self.is_throttling || quota.has_backlog() || self.elevator.is_called()
    }

    /// Operations of all shards that may be in flight because of what is dirty here.
    pub(crate) fn elevator_operations(&self, quota: &Quota) -> u32 {
        if self.is_throttling {
            quota.config().destage_operations_all
        } else if quota.has_backlog() {
            quota.operations_for(self.bucket.burst(self.elevator_heeds_reads()))
        } else {
            0
        }
    }

    /// Where the elevator is: the line from which on it takes whole stripes, or the rest.
    pub(crate) fn elevator_line(&self, whole: bool) -> u64 {
        self.elevator.line(whole)
    }

    #[inline]
    pub(crate) fn is_elevator_running(&self) -> bool {
        self.elevator.is_called()
    }

    /// The elevator that the volume's shards share, and which of them this one is.
    pub(crate) fn elevator(&self) -> (Arc<Elevator>, usize) {
        (Arc::clone(&self.elevator), self.shard)
    }

    /// The shard that has to hear that a line is dirty, or the first line of a stripe all of which
    /// is: if the elevator runs and does not know that it has something to take there.
    pub(crate) fn elevator_misses(&self, line: u64, whole: bool) -> Option<usize> {
        self.elevator.is_news(self.shard, line, whole).then_some(self.shard)
    }

    /// The elevator took a line that was not next on its way, and stands still until that is done.
    pub(crate) fn hold_elevator(&self) {
        self.elevator.hold(self.shard);
    }

    /// Nothing of the volume is dirty here, and it goes.
    pub(crate) fn leave_elevator(&self) {
        self.elevator.call(self.shard, None::<Stop>);
        self.elevator.release(self.shard);
    }

    /// A destage of so many lines has begun, in I/Os of so many bytes together.
    pub(crate) fn began(&mut self, ios: u64, bytes: u64, urgent: bool) {
        self.bucket.take(ios, bytes, self.reading && !urgent);
    }

    /// An operation that writes back so many lines is in flight.
    pub(crate) fn count_start(&mut self, lines: usize) {
        self.destaging += 1;
        self.elevator.began(lines);
    }

    /// A destage of so many lines is over. A wide one held what need not go together.
    pub(crate) fn ended(&mut self, lines: usize, failed: bool, is_wide: bool, now_ms: u64) {
        assert!(self.destaging > 0, "more destages ended than began");
        self.destaging -= 1;
        self.elevator.ended(lines);
        self.elevator.release(self.shard);
        // The next one goes by itself, to find out whether it was for the clean sectors.
        self.is_narrow = failed && is_wide;
        if self.is_narrow {
            return;
        }
        if failed {
            self.backoff_ms = (self.backoff_ms * 2).clamp(BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
            self.backoff_until_ms = now_ms + self.backoff_ms;
        } else {
            self.backoff_ms = 0;
            self.backoff_until_ms = 0;
        }
    }

    /// Whether lines are to get old. The elevator comes by most of what is old, and a sweep would
    /// only disturb its order; where it follows a sequential writer, it never comes by some.
    pub(crate) fn is_aging_due(&self, now_ms: u64) -> bool {
        let put_off_ms = if self.elevator.is_called() { ELEVATOR_AGE_MS } else { 0 };
        now_ms >= self.next_aging_ms + put_off_ms
    }

    /// Lines have got old.
    pub(crate) fn aged(&mut self, now_ms: u64, quota: &Quota) {
        self.next_aging_ms = now_ms + quota.config().dirty_age_ms;
    }

    /// Writers are to be throttled.
    pub(crate) const fn start_throttling(&mut self) {
        self.is_throttling = true;
    }

    /// Less is dirty: writers need not be throttled any more, but for those that are.
    pub(crate) fn end_throttling(&mut self, has_recovered: bool) {
        self.is_throttling &= !has_recovered || !self.throttled.is_empty();
    }

    /// Whether a destage of the volume will end that throttled parts could wait for.
    pub(crate) fn has_progress(&self) -> bool {
        self.destaging > 0 || self.elevator.has_stop(self.shard)
    }

    /// A part waits until there is room for so many lines.
    pub(crate) fn throttle(&mut self, part: PartId, lines: usize, now_ms: u64) {
        if self.throttled.is_empty() {
            self.throttled_since_ms = now_ms;
        }
        self.throttled.push_back((part, lines));
    }

    pub(crate) fn throttled(&self) -> usize {
        self.throttled.len()
    }

    /// Whether throttled parts have waited for the elevator for too long: then a line goes from
    /// here out of order, or they go through to the disk.
    pub(crate) fn is_starving(&self, now_ms: u64) -> bool {
        let until_ms = self.throttled_since_ms + THROTTLE_PATIENCE_MS;
        !self.throttled.is_empty() && now_ms >= until_ms && self.destaging == 0
    }

    /// Throttled parts wait from now on.
    pub(crate) const fn restart_patience(&mut self, now_ms: u64) {
        self.throttled_since_ms = now_ms;
    }

    /// The parts that go on where `free` lines may get dirty: first those that came first. All of
    /// them where no destage will end.
    pub(crate) fn admit(&mut self, mut free: usize) -> impl Iterator<Item = PartId> + '_ {
        let all = !self.has_progress();
        std::iter::from_fn(move || {
            let &(part, lines) = self.throttled.front()?;
            if !all && lines > free {
                return None;
            }
            free = free.saturating_sub(lines);
            self.throttled.pop_front();
            Some(part)
        })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.throttled.capacity() * size_of::<(PartId, usize)>()
    }
}
