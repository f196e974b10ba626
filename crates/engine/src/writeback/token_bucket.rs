//! Rate limits of a volume's writeback: its [`Pace`] as three token buckets.
//!
//! A bucket fills with time up to a small capacity, so that an idle time does not permit a large
//! burst. When the rate falls, the tokens fall in proportion: otherwise a burst saved up at the
//! high rate would follow. An operation may start if the bucket is not empty, and takes all the
//! tokens it needs; the bucket may become negative.

use forebay_policy::Pace;

/// The capacity of a bucket as a time at its rate, in milliseconds; at least one I/O or burst. It
/// covers two ticks, so that a late tick loses no tokens.
const CAPACITY_MS: u64 = 100;
/// The most negative level of a bucket as a time at its rate, in milliseconds: operations that
/// ignore the limits must not stop background writeback for long.
const DEBT_MAX_MS: u64 = 2_000;
/// One burst, in thousandths.
const BURST_MILLI: u64 = 1_000;

/// A bucket, with its tokens in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Negative after an operation that took more than there were.
    tokens: i64,
    /// The rate of the last fill.
    rate: u64,
    /// The remainder of the last fill, in millionths. A bucket may be filled every millisecond, so
    /// that rounding would lose a low rate.
    rest: u64,
}

impl Bucket {
    /// Fills at `rate` thousandths per second. `capacity_min` is the minimum capacity.
    fn fill(&mut self, rate: u64, passed_ms: u64, capacity_min: u64) {
        let former = std::mem::replace(&mut self.rate, rate);
        if rate == u64::MAX {
            (self.tokens, self.rest) = (i64::MAX, 0);
            return;
        }
        if former == u64::MAX {
            self.tokens = self.tokens.min(0);
        } else if rate < former && self.tokens > 0 {
            let kept = i128::from(self.tokens) * i128::from(rate) / i128::from(former);
            self.tokens = i64::try_from(kept).expect("less than before");
        }
        let due = u128::from(rate) * u128::from(passed_ms) + u128::from(self.rest);
        self.rest = (due % 1_000) as u64;
        let in_ms = |ms: u64| i64::try_from(u128::from(rate) * u128::from(ms) / 1_000);
        let (capacity, debt_max) = (in_ms(CAPACITY_MS), in_ms(DEBT_MAX_MS));
        let max = i64::MAX / 4;
        let added = i64::try_from(due / 1_000).unwrap_or(max);
        let capacity = capacity.unwrap_or(max).clamp(capacity_min as i64, max);
        let filled = self.tokens.max(-debt_max.unwrap_or(max).min(max)).saturating_add(added);
        self.tokens = filled.min(capacity);
    }

    fn take(&mut self, thousandths: u64) {
        self.tokens = self.tokens.saturating_sub_unsigned(thousandths);
    }

    /// Takes at most the tokens there are.
    fn use_up(&mut self, thousandths: u64) {
        if self.tokens > 0 {
            self.tokens = self.tokens.saturating_sub_unsigned(thousandths).max(0);
        }
    }

    const fn has_tokens(self) -> bool {
        self.tokens > 0
    }
}

/// The rate limits of a volume in one shard.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    pace: Pace,
    filled_ms: u64,
    /// The distance of the last fill at this pace. At the same time and distance, a fill is
    /// omitted: while lines are destaged, every completed operation fills.
    last_distance: Option<(u64, u64)>,
    /// A burst has begun; further operations may start until its tokens are used up.
    in_burst: bool,
    beside_reads: Bucket,
    ios: Bucket,
    bytes: Bucket,
}

impl Default for TokenBucket {
    fn default() -> Self {
        let full = Bucket { tokens: 1_000, rate: 0, rest: 0 };
        Self {
            pace: Pace::DEFAULT,
            filled_ms: 0,
            last_distance: None,
            in_burst: false,
            beside_reads: full,
            ios: full,
            bytes: full,
        }
    }
}

impl TokenBucket {
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.in_burst &= pace.beside_reads_milli >= self.pace.beside_reads_milli;
        self.pace = pace;
        self.last_distance = None;
    }

    /// Whether reads limit the rate.
    pub(crate) const fn is_limited_by_reads(&self) -> bool {
        self.pace.beside_reads_milli < u64::MAX
    }

    /// Maximum operations of this shard in flight that are not urgent: those of one burst while the
    /// rate of bursts is limited.
    pub(crate) const fn operations_max(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => self.pace.in_flight,
        }
    }

    /// As [`TokenBucket::operations_max`], for all shards together.
    pub(crate) const fn operations_max_all(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => Pace::DEFAULT.in_flight,
        }
    }

    /// Adds the tokens for the time passed. `distance` is the distance to the dirty limit and its
    /// maximum, in lines; see [`super::quota::DirtyQuota::distance`]. The shorter the distance, the
    /// faster writeback goes beside reads, without bound, and without a step that would let reads
    /// and writes oscillate.
    pub(crate) fn fill(&mut self, now_ms: u64, distance: (u64, u64)) {
        if now_ms == self.filled_ms && self.last_distance == Some(distance) {
            return;
        }
        self.last_distance = Some(distance);
        let passed_ms = now_ms.saturating_sub(self.filled_ms).min(DEBT_MAX_MS);
        self.filled_ms = self.filled_ms.max(now_ms);
        let (left, all) = distance;
        assert!(left <= all, "{left} lines left of {all}");
        let beside_reads = match left * 16 <= all {
            true => u64::MAX,
            // The rate rises as the distance falls, with its third power: 8 times at half the
            // distance, 1,000 times at a tenth of it.
            false => {
                let boost = (u128::from(all) * 1_000 / u128::from(left)).pow(3);
                let rate = u128::from(self.pace.beside_reads_milli) * boost / 1_000_000_000;
                u64::try_from(rate).unwrap_or(u64::MAX)
            }
        };
        self.beside_reads.fill(beside_reads, passed_ms, BURST_MILLI);
        // A whole burst at once, so that it delays one read instead of one per I/O.
        self.in_burst |= self.beside_reads.tokens >= BURST_MILLI as i64;
        self.ios.fill(self.pace.ios_milli, passed_ms, 1_000);
        self.bytes.fill(self.pace.bytes.saturating_mul(1_000), passed_ms, 1_000);
    }

    /// Whether a background operation may start.
    pub(crate) const fn may_start(&self, beside_reads: bool) -> bool {
        let reads = !beside_reads || self.in_burst;
        reads && self.ios.has_tokens() && self.bytes.has_tokens()
    }

    /// Takes the tokens for an operation.
    pub(crate) fn take(&mut self, ios: u64, bytes: u64, beside_reads: bool) {
        if beside_reads {
            self.beside_reads.take(Pace::bursts_milli(ios, bytes));
            self.in_burst = self.beside_reads.has_tokens();
        } else {
            // Otherwise a burst saved up while there were no reads would delay the first read that
            // follows.
            self.beside_reads.use_up(Pace::bursts_milli(ios, bytes));
            self.in_burst &= self.beside_reads.has_tokens();
        }
        self.ios.take(ios * 1_000);
        self.bytes.take(bytes * 1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowered_rate_begins_without_the_burst_saved_before() {
        for former_milli in [64_000, u64::MAX] {
            let mut bucket = TokenBucket::default();
            bucket.set_pace(Pace { beside_reads_milli: former_milli, ..Pace::DEFAULT });
            bucket.fill(1_000, (16, 16));
            assert!(bucket.may_start(true));
            bucket.set_pace(Pace { beside_reads_milli: 100, ..Pace::DEFAULT });
            let next_ms = (1_000..30_000).step_by(50).find(|&now_ms| {
                bucket.fill(now_ms, (16, 16));
                bucket.may_start(true)
            });
            assert!(next_ms.is_some_and(|ms| (10_000..11_100).contains(&ms)), "{next_ms:?}");
        }
    }

    #[test]
    fn no_burst_is_saved_up_while_destages_run_without_reads() {
        let mut bucket = TokenBucket::default();
        bucket.set_pace(Pace { beside_reads_milli: 500, ..Pace::DEFAULT });
        for now_ms in (0..10_000).step_by(50) {
            bucket.fill(now_ms, (16, 16));
            bucket.take(1, 4096, false);
        }
        assert!(!bucket.may_start(true), "the reads that come now wait for a burst");
        let next_ms = (10_000..20_000).step_by(50).find(|&now_ms| {
            bucket.fill(now_ms, (16, 16));
            bucket.may_start(true)
        });
        assert!(next_ms.is_some_and(|ms| (11_800..12_100).contains(&ms)), "{next_ms:?}");
    }

    #[test]
    fn frequent_fills_lose_no_tokens() {
        for (beside_reads_milli, due) in [(500, 50), (125, 12), (32, 3)] {
            for step_ms in [1, 7, 50] {
                let mut bucket = TokenBucket::default();
                bucket.set_pace(Pace { beside_reads_milli, ..Pace::DEFAULT });
                let mut bursts = 0;
                for now_ms in (0..=100_000).step_by(step_ms) {
                    bucket.fill(now_ms, (16, 16));
                    if bucket.may_start(true) {
                        bucket.take(Pace::BURST_IOS, 0, true);
                        bursts += 1;
                    }
                }
                assert!((due..=due + 1).contains(&bursts), "{bursts} at {step_ms} ms");
            }
        }
    }
}
