//! What write-back of a volume may do just now: its [`Pace`] as three buckets.
//!
//! A bucket fills with time and holds little, so that what was not used while there was nothing to
//! do is not made up for at once. An operation may start while there is anything in it, and takes
//! all it needs: the bucket then owes the rest.

use forebay_policy::Pace;

/// What a bucket holds is what comes in this time, in milliseconds, and one I/O or burst in any
/// case: two ticks, so that a tick that comes late costs nothing.
const HOLDS_MS: u64 = 100;
/// The longest a bucket owes, in milliseconds: what went because somebody waited for it does not
/// stop the rest for good.
const OWES_MS: u64 = 2_000;
/// A whole burst, in thousandths.
const BURST_MILLI: u64 = 1_000;

/// Thousandths of what it is a rate of, or less than nothing where it is owed.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(i64);

impl Bucket {
    /// `rate` in thousandths a second; `least` is what it holds in any case.
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

/// See the module's description.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    pace: Pace,
    filled_ms: u64,
    /// A burst has begun, and goes on while there is anything left for it.
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

    /// Operations in flight at a time without urgency: those of one burst where bursts are
    /// limited.
    pub(crate) const fn in_flight(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => self.pace.in_flight,
        }
    }

    /// The same for all shards together.
    pub(crate) const fn burst(&self, beside_reads: bool) -> u32 {
        match beside_reads && self.pace.beside_reads_milli < u64::MAX {
            true => Pace::BURST_IOS as u32,
            false => Pace::DEFAULT.in_flight,
        }
    }

    /// Time has passed. `room` is how far the dirty limit is: lines that may get dirty until then,
    /// of so many between the background limit and the dirty limit. The nearer it is, the faster
    /// write-back goes beside reads, without bound, and without a step in which reads and writes
    /// would swing.
    pub(crate) fn fill(&mut self, now_ms: u64, room: (u64, u64)) {
        let passed_ms = now_ms.saturating_sub(self.filled_ms).min(OWES_MS);
        self.filled_ms = self.filled_ms.max(now_ms);
        let (left, all) = room;
        let beside_reads = match left * 16 <= all {
            true => u64::MAX,
            // With the third power of how near it is: 8 times halfway, 1,000 times at nine tenths.
            false => {
                let boost = (u128::from(all) * 1_000 / u128::from(left)).pow(3);
                let rate = u128::from(self.pace.beside_reads_milli) * boost / 1_000_000_000;
                u64::try_from(rate).unwrap_or(u64::MAX)
            }
        };
        self.beside_reads.fill(beside_reads, passed_ms, BURST_MILLI);
        // All of it at once: one read waits for it then, and not one for each I/O.
        self.bursts |= self.beside_reads.0 >= BURST_MILLI as i64;
        self.ios.fill(self.pace.ios_milli, passed_ms, 1_000);
        self.bytes.fill(self.pace.bytes.saturating_mul(1_000), passed_ms, 1_000);
    }

    /// Whether an operation that no flush waits for may start, beside reads or while there are
    /// none.
    pub(crate) const fn may_start(&self, beside_reads: bool) -> bool {
        let reads = !beside_reads || self.bursts;
        reads && self.ios.has_some() && self.bytes.has_some()
    }

    /// One has started.
    pub(crate) fn take(&mut self, ios: u64, bytes: u64, beside_reads: bool) {
        if beside_reads {
            self.beside_reads.take(Pace::bursts_milli(ios, bytes));
            self.bursts = self.beside_reads.has_some();
        }
        self.ios.take(ios * 1_000);
        self.bytes.take(bytes * 1_000);
    }
}
