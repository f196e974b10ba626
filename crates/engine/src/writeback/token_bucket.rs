//! Rate limits of a volume's writeback: its [`Pace`] as three token buckets.
//!
//! A bucket fills with time up to a small capacity, so that rate unused while idle does not become
//! a large burst. An operation may start if the bucket is not empty, and takes all the tokens it
//! needs; the bucket may become negative.

use forebay_policy::Pace;

/// The capacity of a bucket as a time at its rate, in milliseconds; at least one I/O or burst. It
/// covers two ticks, so that a late tick loses no tokens.
const HOLDS_MS: u64 = 100;
/// The most negative level of a bucket as a time at its rate, in milliseconds: operations that
/// ignore the limits must not stop background writeback for long.
const OWES_MS: u64 = 2_000;
/// One burst, in thousandths.
const BURST_MILLI: u64 = 1_000;

/// Tokens in thousandths. Negative after an operation that took more than there were.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(i64);

impl Bucket {
    /// Fills at `rate` thousandths per second. `least` is the minimum capacity.
    fn fill(&mut self, rate: u64, passed_ms: u64, least: u64) {
        if rate == u64::MAX {
            self.0 = i64::MAX;
            return;
        }
        let in_ms = |ms: u64| i64::try_from(u128::from(rate) * u128::from(ms) / 1_000);
        let (come, holds, owes) = (in_ms(passed_ms), in_ms(HOLDS_MS), in_ms(OWES_MS));
        let max = i64::MAX / 4;
        let holds = holds.unwrap_or(max).clamp(least as i64, max);
        let filled = self.0.max(-owes.unwrap_or(max).min(max)).saturating_add(come.unwrap_or(max));
        self.0 = filled.min(holds);
    }

    fn take(&mut self, thousandths: u64) {
        self.0 = self.0.saturating_sub_unsigned(thousandths);
    }

    const fn has_some(self) -> bool {
        self.0 > 0
    }
}

/// The rate limits of a volume in one shard.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    pace: Pace,
    filled_ms: u64,
    /// A burst has begun; further operations may start until its tokens are used up.
    bursts: bool,
    beside_reads: Bucket,
    ios: Bucket,
    bytes: Bucket,
}

impl Default for TokenBucket {
    fn default() -> Self {
        let full = Bucket(1_000);
        Self {
            pace: Pace::DEFAULT,
            filled_ms: 0,
            bursts: false,
            beside_reads: full,
            ios: full,
            bytes: full,
        }
    }
}

impl TokenBucket {
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Operations of this shard in flight at once without urgency. While bursts are limited, those
    /// of one burst.
    pub(crate) const fn in_flight(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => self.pace.in_flight,
        }
    }

    /// Operations of all shards in flight at once without urgency.
    pub(crate) const fn burst(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => Pace::DEFAULT.in_flight,
        }
    }

    /// Adds the tokens for the time passed. `room` is the distance to the dirty limit and its
    /// maximum, in lines; see [`super::quota::Quota::distance`]. The shorter the distance, the
    /// faster writeback goes beside reads, without bound, and without a step that would let reads
    /// and writes oscillate.
    pub(crate) fn fill(&mut self, now_ms: u64, room: (u64, u64)) {
        let passed_ms = now_ms.saturating_sub(self.filled_ms).min(OWES_MS);
        self.filled_ms = self.filled_ms.max(now_ms);
        let (left, all) = room;
        let beside_reads = match left * 16 <= all {
            true => u64::MAX,
            // The rate rises with the third power of the nearness: 8 times at half the distance,
            // 1,000 times at a tenth of it.
            false => {
                let boost = (u128::from(all) * 1_000 / u128::from(left)).pow(3);
                let rate = u128::from(self.pace.beside_reads_milli) * boost / 1_000_000_000;
                u64::try_from(rate).unwrap_or(u64::MAX)
            }
        };
        self.beside_reads.fill(beside_reads, passed_ms, BURST_MILLI);
        // A whole burst at once, so that it delays one read instead of one per I/O.
        self.bursts |= self.beside_reads.0 >= BURST_MILLI as i64;
        self.ios.fill(self.pace.ios_milli, passed_ms, 1_000);
        self.bytes.fill(self.pace.bytes.saturating_mul(1_000), passed_ms, 1_000);
    }

    /// Whether a background operation may start.
    pub(crate) const fn may_start(&self, beside_reads: bool) -> bool {
        let reads = !beside_reads || self.bursts;
        reads && self.ios.has_some() && self.bytes.has_some()
    }

    /// Takes the tokens for an operation.
    pub(crate) fn take(&mut self, ios: u64, bytes: u64, beside_reads: bool) {
        if beside_reads {
            self.beside_reads.take(Pace::bursts_milli(ios, bytes));
            self.bursts = self.beside_reads.has_some();
        }
        self.ios.take(ios * 1_000);
        self.bytes.take(bytes * 1_000);
    }
}
