//! How much memory the cache may have while other programs take memory and free it.
//!
//! A shortage of memory develops within moments, so the cache shrinks at once by the missing
//! amount, if necessary to its minimum. Memory that is free again may soon be wanted by the same
//! program, so the cache grows only after it has been free for a while, in steps of at most half of
//! the memory that can be spared. Each growth that turns out to be premature doubles the wait.
//!
//! Signs of a shortage are, in this order: less memory is available than the reserve; the limit of
//! a control group was reached; programs wait for memory (PSI). The latter two count only while
//! less than twice the reserve is available: otherwise they are caused by something that less cache
//! would not change, such as a program that reads files within the limit of its own group.

use forebay_types::Size;

/// The reserve divided by this is a margin: the cache shrinks only when more than a margin of the
/// reserve is in use, and grows only when two margins are free beside the reserve. Otherwise it
/// would follow each page of another program.
const MARGIN_SHARE: u64 = 8;
/// Below this many bytes, the memory to spare is not worth a growth, except for the last step.
const STEP_BYTES_MIN: u64 = 16 << 20;
/// How long memory must have been free before the first growth after a shrink, in milliseconds: the
/// initial value, and the maximum.
const WAIT_MS_MIN: u64 = 30_000;
const WAIT_MS_MAX: u64 = 16 * 60_000;
/// The pause between two steps of a growth, in which the memory of the first one is used.
const STEP_MS: u64 = 5_000;
/// How long after a shrink the memory that is still to be given back counts as available. Later it
/// is probably dirty data that waits for a slow disk.
const PENDING_MS: u64 = 2_000;
/// Programs count as stalled if one of them waits for memory for at least a tenth of the time.
const STALL_SHARE: u64 = 10;
/// The most memory that a program can take in a millisecond, in bytes.
const TAKEN_BYTES_PER_MS_MAX: u64 = 4 << 20;
/// The reserve divided by this, but at most so many bytes, may be taken between two samples. The
/// rest of the reserve is for the time until memory has been given back.
const UNSEEN_SHARE: u64 = 4;
const UNSEEN_BYTES_MAX: u64 = 100 * TAKEN_BYTES_PER_MS_MAX;
/// How long programs are expected to go on taking memory, in milliseconds, but no longer than they
/// were seen to take it.
const AHEAD_MS: u64 = 50;
/// How long after a shrink programs may still wait for memory before that counts again.
const SETTLE_MS: u64 = 100;
/// The least and the most time between two samples, in milliseconds.
const INTERVAL_MS_MIN: u64 = 25;
const INTERVAL_MS_MAX: u64 = 1_000;

/// The figures of one moment. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Any clock, in milliseconds.
    pub now_ms: u64,
    /// The memory that programs can have, within the limits of all control groups.
    pub available_bytes: u64,
    /// By how much a control group exceeds its limit: memory that is missing although
    /// `available_bytes` cannot be less than zero.
    pub excess_bytes: u64,
    /// The memory that is left to the system. At zero, the cache never shrinks.
    pub reserve_bytes: u64,
    /// How long a program waited for memory since the last sample, in microseconds.
    pub stalled_us: u64,
    /// How often a control group reached a limit since the last sample.
    pub limit_events: u64,
    /// The memory that the cache may have now.
    pub size_bytes: u64,
    /// The part of `size_bytes` that the cache has not taken yet.
    pub unused_bytes: u64,
    /// The memory that it still has to give back after earlier shrinks.
    pub pending_bytes: u64,
    /// The minimum of the cache.
    pub least_bytes: u64,
    /// The size of the cache while there is enough memory. It differs from the size by a multiple
    /// of the step.
    pub wanted_bytes: u64,
    /// The cache can grow only by multiples of this; at least 1.
    pub step_bytes: u64,
}

/// Why the cache has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeReason {
    /// There is enough memory for the size that is wanted.
    Wanted,
    /// Less than the reserve is available.
    Short,
    /// The limit of a control group was reached.
    GroupLimit,
    /// Programs wait for memory.
    Stalled,
    /// Memory is short, and the cache has its minimum.
    Minimum,
    /// The wanted size is larger, but there is no memory to spare.
    NoneToSpare,
    /// The wanted size is larger. The cache grows if memory stays free for this long.
    Waiting {
        /// The remaining wait, in milliseconds.
        left_ms: u64,
    },
    /// Memory is free: the cache grows.
    Growing,
}

impl SizeReason {
    /// Whether memory is short.
    pub const fn is_short(self) -> bool {
        matches!(self, Self::Short | Self::GroupLimit | Self::Stalled | Self::Minimum)
    }

    /// One word: `steady`, `short`, `recovering` or `growing`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wanted => "steady",
            Self::Short | Self::GroupLimit | Self::Stalled | Self::Minimum => "short",
            Self::NoneToSpare | Self::Waiting { .. } => "recovering",
            Self::Growing => "growing",
        }
    }
}

/// The size of the cache, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeDecision {
    /// The size; that of the sample if it is not to change.
    pub bytes: u64,
    /// Why.
    pub reason: SizeReason,
    /// When to take the next sample at the latest, in milliseconds from this one.
    pub next_ms: u64,
}

impl SizeDecision {
    /// The decision as a sentence without a full stop.
    pub fn sentence(&self, sample: &MemorySample) -> String {
        let size = |bytes: u64| Size(bytes >> 20 << 20);
        let available = size(sample.available_bytes);
        let reserve = size(sample.reserve_bytes);
        match self.reason {
            SizeReason::Wanted => "there is enough memory for this size".into(),
            SizeReason::Short => {
                format!("memory is short: {available} available, {reserve} reserved for the system")
            }
            SizeReason::GroupLimit => {
                format!("memory is short: a control group is at its limit, {available} available")
            }
            SizeReason::Stalled => {
                format!("memory is short: programs wait for it, {available} available")
            }
            SizeReason::Minimum => format!(
                "memory is short, and this is the minimum: {available} available, {reserve} \
                 reserved for the system"
            ),
            SizeReason::NoneToSpare => format!(
                "too little memory can be spared for more: {available} available, {reserve} \
                 reserved for the system"
            ),
            SizeReason::Waiting { left_ms } => {
                format!("the cache grows if memory stays free for {} s", left_ms.div_ceil(1_000))
            }
            SizeReason::Growing => format!("memory is free: {available} available"),
        }
    }
}

/// Decides the size of the cache. See the module.
#[derive(Clone, Debug)]
pub struct Sizer {
    /// How long memory must be free before the cache grows, in milliseconds.
    wait_ms: u64,
    /// Since when there has been memory to spare.
    spare_since_ms: Option<u64>,
    /// The last growth since the last shrink.
    grown_ms: Option<u64>,
    /// The last shrink.
    shrunk_ms: Option<u64>,
    /// Time and available memory of the last sample.
    last: Option<(u64, u64)>,
}

impl Default for Sizer {
    fn default() -> Self {
        let wait_ms = WAIT_MS_MIN;
        Self { wait_ms, spare_since_ms: None, grown_ms: None, shrunk_ms: None, last: None }
    }
}

impl Sizer {
    /// Decides on a sample. The caller carries the decision out before the next call. The clock of
    /// the samples must not go back; if it does, waits are longer.
    ///
    /// # Panics
    /// If the step of the sample is zero.
    pub fn decide(&mut self, sample: &MemorySample) -> SizeDecision {
        assert!(sample.step_bytes > 0, "the cache has no step");
        let (last_ms, last_bytes) =
            self.last.replace((sample.now_ms, sample.available_bytes)).unwrap_or_default();
        let elapsed_ms = sample.now_ms.saturating_sub(last_ms);
        // What other programs will take soon, at the rate since the last sample.
        let taken_bytes = last_bytes.saturating_sub(sample.available_bytes);
        let taken_bytes = taken_bytes / elapsed_ms.max(1) * elapsed_ms.min(AHEAD_MS);
        let (bytes, reason) = match self.shortage(sample, elapsed_ms, taken_bytes) {
            Some((missing_bytes, reason)) => self.shrink(sample, missing_bytes, reason),
            None => self.grow(sample),
        };
        // A lower maximum and a higher minimum apply at once.
        let bytes = bytes.min(sample.wanted_bytes).max(sample.least_bytes);
        SizeDecision { bytes, reason, next_ms: next_ms(sample, reason) }
    }

    /// The available memory, with the memory that the cache is still giving back; see
    /// [`PENDING_MS`].
    fn free_bytes(&self, sample: &MemorySample) -> u64 {
        let is_recent = |shrunk_ms: u64| sample.now_ms.saturating_sub(shrunk_ms) < PENDING_MS;
        match self.shrunk_ms.is_some_and(is_recent) {
            true => sample.available_bytes.saturating_add(sample.pending_bytes),
            false => sample.available_bytes,
        }
    }

    /// How much memory is missing, and why; `None` if there is no shortage.
    fn shortage(
        &self,
        sample: &MemorySample,
        elapsed_ms: u64,
        taken_bytes: u64,
    ) -> Option<(u64, SizeReason)> {
        let (free_bytes, reserve_bytes) = (self.free_bytes(sample), sample.reserve_bytes);
        let margin_bytes = reserve_bytes / MARGIN_SHARE;
        if reserve_bytes == 0 {
            return None;
        }
        let needed_bytes = reserve_bytes.saturating_add(sample.excess_bytes);
        let missing_bytes = needed_bytes.saturating_sub(free_bytes);
        if missing_bytes > margin_bytes {
            return Some((missing_bytes.saturating_add(taken_bytes), SizeReason::Short));
        }
        let is_settling = |shrunk_ms: u64| sample.now_ms.saturating_sub(shrunk_ms) < SETTLE_MS;
        if free_bytes >= needed_bytes.saturating_add(reserve_bytes)
            || self.shrunk_ms.is_some_and(is_settling)
        {
            return None;
        }
        let stalled_us = sample.stalled_us.saturating_mul(STALL_SHARE);
        let is_stalled = elapsed_ms > 0 && stalled_us >= elapsed_ms.saturating_mul(1_000);
        match (sample.limit_events > 0, is_stalled) {
            (true, _) => Some((margin_bytes, SizeReason::GroupLimit)),
            (false, true) => Some((margin_bytes, SizeReason::Stalled)),
            (false, false) => None,
        }
    }

    fn shrink(
        &mut self,
        sample: &MemorySample,
        missing_bytes: u64,
        reason: SizeReason,
    ) -> (u64, SizeReason) {
        self.spare_since_ms = None;
        // Only memory that the cache has taken can be given back.
        let taken_bytes = sample.size_bytes.saturating_sub(sample.unused_bytes);
        let bytes = taken_bytes.saturating_sub(missing_bytes).max(sample.least_bytes);
        if bytes >= sample.size_bytes {
            return (sample.size_bytes, SizeReason::Minimum);
        }
        self.shrunk_ms = Some(sample.now_ms);
        // A shrink soon after a growth says that the wait was too short.
        if let Some(grown_ms) = self.grown_ms.take() {
            let is_premature = sample.now_ms.saturating_sub(grown_ms) < 2 * self.wait_ms;
            self.wait_ms = match is_premature {
                true => (2 * self.wait_ms).min(WAIT_MS_MAX),
                false => WAIT_MS_MIN,
            };
        }
        (bytes, reason)
    }

    fn grow(&mut self, sample: &MemorySample) -> (u64, SizeReason) {
        let size_bytes = sample.size_bytes;
        let missing_bytes = sample.wanted_bytes.saturating_sub(size_bytes);
        if missing_bytes == 0 {
            self.spare_since_ms = None;
            return (size_bytes, SizeReason::Wanted);
        }
        let kept_bytes =
            sample.reserve_bytes.saturating_add(2 * (sample.reserve_bytes / MARGIN_SHARE));
        let kept_bytes = kept_bytes.saturating_add(sample.unused_bytes);
        let spare_bytes = sample.available_bytes.saturating_sub(kept_bytes) / 2;
        let step_bytes = spare_bytes.min(missing_bytes) / sample.step_bytes * sample.step_bytes;
        if step_bytes == 0 || step_bytes < STEP_BYTES_MIN.min(missing_bytes) {
            self.spare_since_ms = None;
            return (size_bytes, SizeReason::NoneToSpare);
        }
        // No shortage has followed the last growth: longer waits have served their purpose.
        let is_quiet = |grown_ms| sample.now_ms.saturating_sub(grown_ms) >= 2 * self.wait_ms;
        if self.grown_ms.is_some_and(is_quiet) {
            self.wait_ms = WAIT_MS_MIN;
        }
        let since_ms = *self.spare_since_ms.get_or_insert(sample.now_ms);
        let left_ms = self.wait_ms.saturating_sub(sample.now_ms.saturating_sub(since_ms));
        if left_ms > 0 {
            return (size_bytes, SizeReason::Waiting { left_ms });
        }
        // The next step follows after a pause, if there is memory to spare all the time.
        let next_ms = sample.now_ms.saturating_add(STEP_MS);
        self.spare_since_ms = Some(next_ms.saturating_sub(self.wait_ms));
        self.grown_ms = Some(sample.now_ms);
        (size_bytes + step_bytes, SizeReason::Growing)
    }
}

/// The time until the next sample: that in which a program can take what it may take between two
/// samples.
fn next_ms(sample: &MemorySample, reason: SizeReason) -> u64 {
    let reserve_bytes = sample.reserve_bytes;
    if reserve_bytes == 0 || reason == SizeReason::Minimum {
        return INTERVAL_MS_MAX;
    }
    let unseen_bytes = (reserve_bytes / UNSEEN_SHARE).min(UNSEEN_BYTES_MAX);
    let takable_bytes = sample.available_bytes.saturating_sub(reserve_bytes - unseen_bytes);
    (takable_bytes / TAKEN_BYTES_PER_MS_MAX).clamp(INTERVAL_MS_MIN, INTERVAL_MS_MAX)
}

#[cfg(test)]
mod tests;
