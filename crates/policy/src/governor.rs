//! The governor of write-back: how much of it reads of the same disk can bear.
//!
//! Reads that clients wait for are timed. Those that met no write-back say what the disk does by
//! itself; from that comes the target, unless the operator has set one. While there is write-back,
//! reads that took longer than the target are counted, and the pace of write-back beside reads is
//! set so that they are one in a hundred: their p99 is the target then.
//!
//! The pace rises by a share and falls by a larger one, and between too few slow reads and too many
//! of them there is a band in which it stays: it does not swing. It rises only where it was used,
//! so that it says something about the disk. A few reads say nothing about one in a hundred of
//! them; where there are hardly any the pace stays too, and write-back takes the time between them.
//!
//! What is dirty for long goes in any case: there is a pace that brings all of it to the disk in
//! [`Limits::age_s`], and below it the governor never goes. And near the dirty limit the engine
//! hurries by itself.

use crate::Pace;

/// Reads that tell one in a hundred of them from two, and those that tell it from many.
const READS_ENOUGH: u64 = 1_000;
const READS_FEW: u64 = 200;
/// Reads that met no write-back that a target is made of.
const IDLE_ENOUGH: u64 = 100;
/// More of them are forgotten by and by, so that the target follows the disk.
const IDLE_MAX: u64 = 4_000;
/// How long write-back holds still for them at the beginning, in milliseconds.
const SILENCE_MS: u64 = 2_000;
/// How long after the end of write-back reads may still have waited for it, in milliseconds.
const WAKE_MS: u64 = 100;
/// Longest time between two looks at the pace, in milliseconds. Where a few reads have not come by
/// then, it stays.
const LOOK_MS: u64 = 60_000;
/// The slowest pace: a burst in ten seconds.
const PACE_MIN_MILLI: u64 = 100;
/// The fastest that is told from none at all.
const PACE_MAX_MILLI: u64 = 100_000_000;

/// Buckets for each doubling, and for all times up to an hour.
const BUCKETS_PER_DOUBLING: u32 = 16;
const BUCKETS: usize = 33 * BUCKETS_PER_DOUBLING as usize;

/// Latencies in microseconds, told apart to a sixteenth. Times under 16 µs count as that.
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
    /// Buckets of such a distribution.
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

    /// How many there are.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The latency that one in a hundred exceeds, in microseconds; `None` where there is none.
    pub fn p99_us(&self) -> Option<u64> {
        let mut above = self.total / 100;
        let last = self.counts.iter().rposition(|&count| {
            let found = count > above;
            above = above.saturating_sub(count);
            found
        });
        last.map(|bucket| Self::least_us(bucket + 1))
    }

    /// How many took longer, to a bucket.
    fn above(&self, us: u64) -> u64 {
        let first = Self::bucket_of(us) + 1;
        self.counts[first.min(BUCKETS)..].iter().sum()
    }

    fn take_in(&mut self, other: &Self) {
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

/// Which latency of reads write-back is to leave alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadTarget {
    /// A quarter more than the p99 of reads that meet no write-back.
    #[default]
    Idle,
    /// This p99, in microseconds.
    Micros(u64),
    /// None: write-back goes beside reads as if there were none.
    Off,
}

/// What the operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The latency that reads are to keep.
    pub target: ReadTarget,
    /// Bytes in a second that write-back takes at most; [`u64::MAX`] for any.
    pub bytes: u64,
    /// I/Os in a second that it takes at most; [`u64::MAX`] for any.
    pub ios: u64,
    /// What is dirty goes to the disk in this time, in seconds, whatever reads say; [`u64::MAX`]
    /// for any time.
    pub age_s: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { target: ReadTarget::Idle, bytes: u64::MAX, ios: u64::MAX, age_s: 86_400 }
    }
}

/// What has happened since the last time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The time, in milliseconds.
    pub now_ms: u64,
    /// How long reads took that ended since.
    pub reads: ReadTimes,
    /// Bursts of write-back so far, in thousandths; see [`Pace::bursts_milli`].
    pub written_milli: u64,
    /// Whether any is in flight.
    pub writing: bool,
    /// Bursts it takes to bring to the disk what is dirty, at least, in thousandths.
    pub dirty_milli: u64,
}

/// How it stands, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GovernorStatus {
    /// The p99 of reads that met no write-back, in microseconds, if there were enough.
    pub idle_us: Option<u64>,
    /// The p99 that reads are to keep, in microseconds, if there is one.
    pub target_us: Option<u64>,
    /// The p99 of reads beside write-back when it was looked at last, in microseconds.
    pub beside_us: Option<u64>,
    /// Bursts in a second beside reads, in thousandths, unless there is no limit.
    pub pace_milli: Option<u64>,
    /// How often the pace was raised.
    pub raised: u64,
    /// How often it was lowered.
    pub lowered: u64,
}

/// The governor of one volume. See the module's description.
#[derive(Clone, Debug)]
pub struct Governor {
    limits: Limits,
    idle: ReadTimes,
    /// Reads since the last look, and when that was.
    beside: ReadTimes,
    looked_ms: u64,
    looked_written_milli: u64,
    /// When there was write-back last.
    written_milli: u64,
    wrote_ms: Option<u64>,
    /// Until when write-back holds still for the first target.
    silent_until_ms: Option<u64>,
    pace_milli: u64,
    /// The pace was never too fast yet: it doubles.
    searching: bool,
    status: GovernorStatus,
}

impl Governor {
    /// One that knows nothing of its disk.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            idle: ReadTimes::default(),
            beside: ReadTimes::default(),
            looked_ms: 0,
            looked_written_milli: 0,
            written_milli: 0,
            wrote_ms: None,
            silent_until_ms: None,
            pace_milli: Pace::DEFAULT.beside_reads_milli,
            searching: true,
            status: GovernorStatus::default(),
        }
    }

    /// Changes what the operator says. What is known of the disk stays.
    pub fn set_limits(&mut self, limits: Limits) {
        if limits.target != self.limits.target {
            self.searching = true;
            self.beside = ReadTimes::default();
        }
        self.limits = limits;
    }

    /// How it stands.
    pub fn status(&self) -> GovernorStatus {
        GovernorStatus {
            idle_us: self.idle_us(),
            target_us: self.target_us(),
            pace_milli: (self.limits.target != ReadTarget::Off && self.pace_milli < PACE_MAX_MILLI)
                .then_some(self.pace_milli),
            ..self.status
        }
    }

    /// Takes note of what has happened, and says how fast write-back may go from now on.
    pub fn look(&mut self, seen: &Seen) -> Pace {
        let Seen { now_ms, .. } = *seen;
        if seen.writing || seen.written_milli != self.written_milli {
            self.wrote_ms = Some(now_ms);
        }
        self.written_milli = seen.written_milli;
        if self.wrote_ms.is_none_or(|wrote_ms| now_ms > wrote_ms + WAKE_MS) {
            self.idle.take_in(&seen.reads);
            if self.idle.total() > IDLE_MAX {
                self.idle.halve();
            }
        }
        self.beside.take_in(&seen.reads);
        let enough = self.beside.total() >= READS_ENOUGH || now_ms >= self.looked_ms + LOOK_MS;
        // What is known to say much sooner: far too fast, or never too fast yet.
        let early = self.beside.total() >= READS_FEW && (self.searching || self.is_far_too_fast());
        if enough || early {
            self.weigh(now_ms);
        }
        Pace {
            beside_reads_milli: self.beside_reads(seen),
            ios_milli: self.limits.ios.saturating_mul(1_000),
            bytes: self.limits.bytes,
            in_flight: Pace::DEFAULT.in_flight,
        }
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

    /// Whether so many reads are slow that it needs no more of them to see it.
    fn is_far_too_fast(&self) -> bool {
        let slow = self.target_us().map_or(0, |target_us| self.beside.above(target_us));
        slow > READS_ENOUGH / 50
    }

    /// Raises or lowers the pace, or leaves it.
    fn weigh(&mut self, now_ms: u64) {
        let reads = std::mem::take(&mut self.beside);
        let passed_ms = now_ms.saturating_sub(self.looked_ms).max(1);
        let went_milli = self.written_milli.saturating_sub(self.looked_written_milli);
        (self.looked_ms, self.looked_written_milli) = (now_ms, self.written_milli);
        let Some(target_us) = self.target_us() else { return };
        if went_milli == 0 || reads.total() < READS_FEW {
            return;
        }
        self.status.beside_us = reads.p99_us();
        let slow = reads.above(target_us);
        // One in a hundred may be. A bit more than half of that leaves room.
        let due = reads.total() / 100;
        if slow > due {
            // In proportion: what is far too fast is not corrected in ten steps.
            self.pace_milli = (self.pace_milli * due / slow).max(self.pace_milli / 4);
            self.pace_milli = self.pace_milli.max(PACE_MIN_MILLI);
            self.searching = false;
            self.status.lowered += 1;
        } else if slow * 10 <= due * 6 {
            let used = went_milli * 1_000 / passed_ms >= self.pace_milli / 2;
            if used && self.pace_milli < PACE_MAX_MILLI {
                let more = if self.searching { self.pace_milli } else { self.pace_milli / 10 };
                self.pace_milli += more.max(PACE_MIN_MILLI);
                self.status.raised += 1;
            }
        }
    }

    /// Bursts in a second beside reads, in thousandths.
    fn beside_reads(&mut self, seen: &Seen) -> u64 {
        let by_age = seen.dirty_milli / self.limits.age_s.max(1);
        let target = self.limits.target;
        let holds_still = target == ReadTarget::Idle && self.holds_still(seen);
        match target {
            ReadTarget::Off => u64::MAX,
            _ if holds_still => by_age,
            _ if self.pace_milli >= PACE_MAX_MILLI => u64::MAX,
            _ => self.pace_milli.max(by_age),
        }
    }

    /// At the beginning: nobody can be no worse than idle who does not know what that is.
    fn holds_still(&mut self, seen: &Seen) -> bool {
        if self.idle.total() >= IDLE_ENOUGH || seen.dirty_milli == 0 {
            return false;
        }
        let until_ms = *self.silent_until_ms.get_or_insert(seen.now_ms + SILENCE_MS);
        seen.now_ms < until_ms
    }
}

#[cfg(test)]
mod tests;
