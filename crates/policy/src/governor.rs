//! The writeback governor: limits writeback so that concurrent reads keep their latency.
//!
//! The governor measures the latency of client reads. Reads without concurrent writeback give the
//! idle baseline, from which the target follows unless the operator sets one. In intervals with
//! writeback, the governor counts reads slower than the target, and sets the writeback rate so that
//! one read in a hundred is slow: the reads' p99 is then the target.
//!
//! The rate rises by a small factor and falls by a larger one, with a dead band in between, so that
//! it does not oscillate. It rises only if writeback used at least half of it, as an unused rate
//! says nothing about the disk. With too few reads to estimate a p99, the rate stays, and writeback
//! runs between the reads.
//!
//! A destage costs a sequential stream more than one slow read: the head has to return, and the
//! disk's own read-ahead ends. So while most reads are prefetches for streams, they are not
//! measured, and writeback runs at the lowest rate, unless the operator has set a target.
//!
//! Old dirty data is always destaged: the rate never falls below the one that empties the volume in
//! [`WritebackLimits::age_s`]. Near the dirty limit the engine raises the rate by itself.

use crate::Pace;

/// Reads needed to tell 1 % of slow reads from 2 %, and to tell 1 % from far more.
const READS_ENOUGH: u64 = 1_000;
const READS_FEW: u64 = 200;
/// Idle reads needed for a baseline.
const IDLE_ENOUGH: u64 = 100;
/// Above this number of idle reads, all counts are halved, so that the baseline follows the disk.
const IDLE_MAX: u64 = 4_000;
/// How long writeback pauses at first to measure the baseline, in milliseconds.
const BASELINE_PAUSE_MS: u64 = 2_000;
/// How long after a destage reads may still be delayed by it, in milliseconds.
const DESTAGE_EFFECT_MS: u64 = 100;
/// Longest interval between two evaluations, in milliseconds. With too few reads in the interval,
/// the rate stays.
const INTERVAL_MS: u64 = 60_000;
/// How long after a read another one is likely, in milliseconds. It would wait for all destages in
/// flight, so only one is allowed meanwhile.
const NEXT_READ_MS: u64 = 1_000;
/// How long a stream is assumed to continue after its last prefetch, in milliseconds.
const STREAM_MS: u64 = 500;
/// The lowest rate: a burst in ten seconds.
const PACE_MIN_MILLI: u64 = 100;
/// A rate of this or more counts as unlimited.
const PACE_MAX_MILLI: u64 = 100_000_000;

/// Histogram buckets per doubling, and in total: up to 38 hours.
const BUCKETS_PER_DOUBLING: u32 = 16;
const BUCKETS: usize = 33 * BUCKETS_PER_DOUBLING as usize;

/// A histogram of latencies in microseconds, with a resolution of 1/16. The minimum is 16 µs.
#[derive(Clone, Debug)]
pub struct ReadTimes {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

impl Default for ReadTimes {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl ReadTimes {
    /// The number of buckets.
    pub const BUCKETS: usize = BUCKETS;

    /// The bucket that a latency falls into.
    pub const fn bucket_of(us: u64) -> usize {
        let us = if us < BUCKETS_PER_DOUBLING as u64 { BUCKETS_PER_DOUBLING as u64 } else { us };
        let doubling = us.ilog2() - BUCKETS_PER_DOUBLING.ilog2();
        let step = (us >> doubling) as usize - BUCKETS_PER_DOUBLING as usize;
        let bucket = (doubling * BUCKETS_PER_DOUBLING) as usize + step;
        if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
    }

    /// The shortest latency of a bucket, in microseconds.
    const fn least_us(bucket: usize) -> u64 {
        let per = BUCKETS_PER_DOUBLING as usize;
        ((per + bucket % per) as u64) << (bucket / per)
    }

    /// Counts `times` latencies of a bucket.
    pub fn add(&mut self, bucket: usize, times: u64) {
        self.counts[bucket] += times;
        self.total += times;
    }

    /// The number of latencies.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The 99th percentile in microseconds, rounded up to the end of its bucket; `None` for an
    /// empty histogram.
    pub fn p99_us(&self) -> Option<u64> {
        let mut above = self.total / 100;
        let last = self.counts.iter().rposition(|&count| {
            let found = count > above;
            above = above.saturating_sub(count);
            found
        });
        last.map(|bucket| Self::least_us(bucket + 1))
    }

    /// The number of latencies in buckets above that of `us`.
    fn above(&self, us: u64) -> u64 {
        let first = Self::bucket_of(us) + 1;
        self.counts[first.min(BUCKETS)..].iter().sum()
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&*other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    fn halve(&mut self) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.total = self.counts.iter().sum();
    }
}

/// The target p99 latency of reads during writeback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadTarget {
    /// 125 % of the idle p99.
    #[default]
    Idle,
    /// A fixed p99, in microseconds.
    Micros(u64),
    /// No target: reads do not limit writeback.
    Off,
}

/// The operator's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritebackLimits {
    /// The target read latency.
    pub target: ReadTarget,
    /// Maximum bytes per second; [`u64::MAX`] for no limit.
    pub bytes: u64,
    /// Maximum I/Os per second; [`u64::MAX`] for no limit.
    pub ios: u64,
    /// Maximum age of dirty data in seconds, which takes precedence over the target; [`u64::MAX`]
    /// for no limit.
    pub age_s: u64,
}

impl Default for WritebackLimits {
    fn default() -> Self {
        Self { target: ReadTarget::Idle, bytes: u64::MAX, ios: u64::MAX, age_s: 86_400 }
    }
}

/// The disk's activity since the last sample.
#[derive(Clone, Debug, Default)]
pub struct DiskSample {
    /// The time, in milliseconds.
    pub now_ms: u64,
    /// The latencies of reads that completed since the last sample.
    pub reads: ReadTimes,
    /// Total lines prefetched so far.
    pub prefetched_lines: u64,
    /// Total lines so far that reads requested and did not find.
    pub missed_lines: u64,
    /// Total writeback so far, in thousandths of a burst; see [`Pace::bursts_milli`].
    pub written_milli: u64,
    /// Whether a destage is in flight.
    pub is_writing: bool,
    /// Lower bound of the work to destage all dirty data, in thousandths of a burst.
    pub dirty_milli: u64,
}

/// The governor's state, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GovernorState {
    /// The p99 of reads without concurrent writeback, in microseconds, once measured.
    pub idle_us: Option<u64>,
    /// The target p99 in microseconds, if there is one.
    pub target_us: Option<u64>,
    /// The p99 of all reads in the last evaluated interval that had writeback, in microseconds.
    pub beside_us: Option<u64>,
    /// The rate during reads, in thousandths of a burst per second; `None` if unlimited.
    pub pace_milli: Option<u64>,
    /// Number of times the rate was raised.
    pub raised: u64,
    /// Number of times the rate was lowered.
    pub lowered: u64,
}

/// The governor of one volume. See the module documentation.
#[derive(Clone, Debug)]
pub struct Governor {
    limits: WritebackLimits,
    idle: ReadTimes,
    /// Reads since the last evaluation; the time of that evaluation, and the writeback total then.
    beside: ReadTimes,
    evaluated_ms: u64,
    evaluated_written_milli: u64,
    /// The writeback total in the last sample, and the time of the last sample with a destage.
    written_milli: u64,
    last_destage_ms: Option<u64>,
    /// The time of the last sample with reads.
    last_read_ms: Option<u64>,
    /// The totals of prefetched and missed lines at the last sample, and the last time when most
    /// reads were prefetches.
    prefetched_lines: u64,
    missed_lines: u64,
    last_stream_ms: Option<u64>,
    /// The end of the initial pause for the baseline.
    paused_until_ms: Option<u64>,
    pace_milli: u64,
    /// True until the rate has been too high for the first time. Until then, each increase doubles
    /// it.
    is_searching: bool,
    status: GovernorState,
}

impl Governor {
    /// A governor without measurements.
    pub fn new(limits: WritebackLimits) -> Self {
        Self {
            limits,
            idle: ReadTimes::default(),
            beside: ReadTimes::default(),
            evaluated_ms: 0,
            evaluated_written_milli: 0,
            written_milli: 0,
            last_destage_ms: None,
            last_read_ms: None,
            prefetched_lines: 0,
            missed_lines: 0,
            last_stream_ms: None,
            paused_until_ms: None,
            pace_milli: Pace::DEFAULT.beside_reads_milli,
            is_searching: true,
            status: GovernorState::default(),
        }
    }

    /// Changes the operator's settings. Measurements are kept.
    pub fn set_limits(&mut self, limits: WritebackLimits) {
        if limits.target != self.limits.target {
            self.is_searching = true;
            self.beside = ReadTimes::default();
        }
        self.limits = limits;
    }

    /// The current state.
    pub fn status(&self) -> GovernorState {
        GovernorState {
            idle_us: self.idle_us(),
            target_us: self.target_us(),
            pace_milli: (self.limits.target != ReadTarget::Off && self.pace_milli < PACE_MAX_MILLI)
                .then_some(self.pace_milli),
            ..self.status
        }
    }

    /// Takes a sample and returns the new writeback limits.
    pub fn update(&mut self, sample: &DiskSample) -> Pace {
        let DiskSample { now_ms, .. } = *sample;
        if sample.is_writing || sample.written_milli != self.written_milli {
            self.last_destage_ms = Some(now_ms);
        }
        self.written_milli = sample.written_milli;
        if sample.reads.total() > 0 || sample.prefetched_lines > self.prefetched_lines {
            self.last_read_ms = Some(now_ms);
        }
        if self.is_streaming(sample) {
            return self.pace(sample, true);
        }
        if self.last_destage_ms.is_none_or(|at_ms| now_ms > at_ms + DESTAGE_EFFECT_MS) {
            self.idle.merge(&sample.reads);
            if self.idle.total() > IDLE_MAX {
                self.idle.halve();
            }
        }
        self.beside.merge(&sample.reads);
        let is_due =
            self.beside.total() >= READS_ENOUGH || now_ms >= self.evaluated_ms + INTERVAL_MS;
        // Fewer reads suffice while the rate still doubles, or to recognise a far too high rate.
        let is_due_early =
            self.beside.total() >= READS_FEW && (self.is_searching || self.is_far_too_fast());
        if is_due || is_due_early {
            self.evaluate(now_ms);
        }
        self.pace(sample, false)
    }

    fn pace(&mut self, sample: &DiskSample, is_streaming: bool) -> Pace {
        let may_read = self.last_read_ms.is_some_and(|at_ms| sample.now_ms < at_ms + NEXT_READ_MS);
        let is_limited = self.limits.target != ReadTarget::Off;
        Pace {
            beside_reads_milli: self.beside_reads(sample, is_streaming),
            ios_milli: self.limits.ios.saturating_mul(1_000),
            bytes: self.limits.bytes,
            in_flight: if may_read && is_limited { 1 } else { Pace::DEFAULT.in_flight },
        }
    }

    /// Whether most reads are prefetches for sequential streams. A target set by the operator
    /// applies to streams too.
    fn is_streaming(&mut self, sample: &DiskSample) -> bool {
        let prefetched = sample.prefetched_lines.saturating_sub(self.prefetched_lines);
        let missed = sample.missed_lines.saturating_sub(self.missed_lines);
        (self.prefetched_lines, self.missed_lines) = (sample.prefetched_lines, sample.missed_lines);
        // A client that waits for a prefetch in flight misses its lines, too.
        if prefetched > 0 && prefetched * 2 >= missed {
            self.last_stream_ms = Some(sample.now_ms);
        }
        let lately = self.last_stream_ms.is_some_and(|at_ms| sample.now_ms <= at_ms + STREAM_MS);
        lately && self.limits.target == ReadTarget::Idle
    }

    fn idle_us(&self) -> Option<u64> {
        self.idle.p99_us().filter(|_| self.idle.total() >= IDLE_ENOUGH)
    }

    fn target_us(&self) -> Option<u64> {
        match self.limits.target {
            ReadTarget::Idle => self.idle_us().map(|us| us + us / 4),
            ReadTarget::Micros(us) => Some(us),
            ReadTarget::Off => None,
        }
    }

    /// Whether more than 2 % of [`READS_ENOUGH`] reads were slow, even if there were fewer so far.
    fn is_far_too_fast(&self) -> bool {
        let slow = self.target_us().map_or(0, |target_us| self.beside.above(target_us));
        slow > READS_ENOUGH / 50
    }

    /// Evaluates the reads since the last evaluation and adjusts the rate.
    fn evaluate(&mut self, now_ms: u64) {
        let reads = std::mem::take(&mut self.beside);
        let passed_ms = now_ms.saturating_sub(self.evaluated_ms).max(1);
        let used_milli = self.written_milli.saturating_sub(self.evaluated_written_milli);
        (self.evaluated_ms, self.evaluated_written_milli) = (now_ms, self.written_milli);
        let Some(target_us) = self.target_us() else { return };
        if used_milli == 0 || reads.total() < READS_FEW {
            return;
        }
        self.status.beside_us = reads.p99_us();
        let slow = reads.above(target_us);
        // One read in a hundred may be slow. The rate rises below 60 % of that.
        let slow_max = reads.total() / 100;
        if slow > slow_max {
            // Lower in proportion, down to a quarter at once, so that a far too high rate does not
            // need ten steps.
            self.pace_milli = (self.pace_milli * slow_max / slow).max(self.pace_milli / 4);
            self.pace_milli = self.pace_milli.max(PACE_MIN_MILLI);
            self.is_searching = false;
            self.status.lowered += 1;
        } else if slow * 10 <= slow_max * 6 {
            let is_used = used_milli * 1_000 / passed_ms >= self.pace_milli / 2;
            if is_used && self.pace_milli < PACE_MAX_MILLI {
                let more = if self.is_searching { self.pace_milli } else { self.pace_milli / 10 };
                self.pace_milli += more.max(PACE_MIN_MILLI);
                self.status.raised += 1;
            }
        }
    }

    /// The rate during reads, in thousandths of a burst per second.
    fn beside_reads(&mut self, sample: &DiskSample, is_streaming: bool) -> u64 {
        let by_age = sample.dirty_milli / self.limits.age_s.max(1);
        let target = self.limits.target;
        let is_pausing = target == ReadTarget::Idle && self.is_pausing(sample);
        match target {
            ReadTarget::Off => u64::MAX,
            _ if is_pausing => by_age,
            _ if is_streaming => PACE_MIN_MILLI.max(by_age),
            _ if self.pace_milli >= PACE_MAX_MILLI => u64::MAX,
            _ => self.pace_milli.max(by_age),
        }
    }

    /// Returns true while writeback pauses until an idle baseline has been measured.
    fn is_pausing(&mut self, sample: &DiskSample) -> bool {
        if self.idle.total() >= IDLE_ENOUGH || sample.dirty_milli == 0 {
            return false;
        }
        let until_ms = *self.paused_until_ms.get_or_insert(sample.now_ms + BASELINE_PAUSE_MS);
        sample.now_ms < until_ms
    }
}

#[cfg(test)]
mod tests;
