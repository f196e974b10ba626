//! What a decision on the size of the pool may be.
//!
//! The limits are computed here from the machine itself, not from the figures of the sample.

use forebay_policy::{MemoryBounds, MemorySample, SizeDecision, SizeReason, SizeSettings};

/// The least time between a shrink and the next growth, in milliseconds.
const GROWTH_AFTER_MS_MIN: u64 = 30_000;
/// The least time between two growths that each follow a shrink, and the least mean time between
/// several of them, in milliseconds. So there are at most 41 in an hour, whatever the machine does.
const REGROWTH_MS_MIN: u64 = 60_000;
const REGROWTH_MS_MEAN_MIN: u64 = 90_000;
/// The most time in which a pool has its size again when memory is free, in milliseconds: the
/// longest wait, and a step.
pub(crate) const RECOVERY_MS_MAX: u64 = 16 * 60_000 + 5_000;
/// How long after a shrink programs may still wait for memory, in milliseconds.
const SETTLE_MS: u64 = 100;
/// The bounds of the time between two samples, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 25..=1_000;

/// A decision, and the moment at which it was made.
pub(crate) struct Decided<'a> {
    pub settings: &'a SizeSettings,
    pub bounds: MemoryBounds,
    pub sample: &'a MemorySample,
    pub decision: &'a SizeDecision,
    /// The size after it was carried out.
    pub after_bytes: u64,
    /// The reserve that was set.
    pub reserve_bytes: u64,
    /// The memory that the cache could have beside the other programs; `None` if the figures of
    /// the sample are wrong.
    pub room_bytes: Option<u64>,
    /// Whether programs wait for memory, or a control group has reached its limit.
    pub is_pressed: bool,
    /// The machine's clock.
    pub now_ms: u64,
}

/// The shrinks and growths of a process so far.
#[derive(Default)]
pub(crate) struct Swings {
    shrunk_ms: Option<u64>,
    /// Whether the size was not raised since then.
    is_shrunk: bool,
    /// The first growths after a shrink.
    regrown_ms: Vec<u64>,
}

impl Decided<'_> {
    const fn is_growth(&self) -> bool {
        self.after_bytes > self.sample.size_bytes
    }

    /// The pool's memory that it had taken and may keep.
    const fn kept_bytes(&self) -> u64 {
        let taken = self.sample.size_bytes - self.sample.unused_bytes;
        if taken < self.after_bytes { taken } else { self.after_bytes }
    }

    /// The size that the cache keeps in any case.
    fn floor_bytes(&self) -> u64 {
        let MemoryBounds { least_bytes, step_bytes, .. } = self.bounds;
        // The pool cannot have every size: a step more or less is within the minimum.
        let set_bytes = self.settings.min.unwrap_or(0).min(self.ceiling_bytes());
        least_bytes.max(set_bytes).saturating_add(step_bytes - 1)
    }

    /// The most that the operator allows.
    fn ceiling_bytes(&self) -> u64 {
        let most_bytes = self.bounds.most_bytes;
        let set_bytes = self.settings.memory.or(self.settings.max).unwrap_or(most_bytes);
        // A size below the least that the pool can have is rounded up to that.
        set_bytes.min(most_bytes).max(self.bounds.least_bytes + self.bounds.step_bytes - 1)
    }

    /// Checks the decision. Returns what is wrong.
    pub(crate) fn check(&self, swings: &mut Swings) -> Option<String> {
        let Self { decision, after_bytes, bounds, .. } = self;
        let after_bytes = *after_bytes;
        if after_bytes < bounds.least_bytes || after_bytes > bounds.most_bytes {
            return Some(format!("the size becomes {after_bytes}, out of {bounds:?}"));
        }
        if after_bytes > self.ceiling_bytes() {
            return Some(format!("the size becomes {after_bytes}, above the maximum"));
        }
        let min_bytes = self.settings.min.unwrap_or(0).min(self.ceiling_bytes());
        if after_bytes + bounds.step_bytes <= min_bytes {
            return Some(format!("the size becomes {after_bytes}, and the minimum is {min_bytes}"));
        }
        if !INTERVAL_MS.contains(&decision.next_ms) {
            return Some(format!("the next sample is due in {} ms", decision.next_ms));
        }
        self.check_room(swings.shrunk_ms).or_else(|| swings.check(self))
    }

    /// The reserve is left to the system, except for the minimum; and more, if programs wait for
    /// memory a while after the last shrink.
    fn check_room(&self, shrunk_ms: Option<u64>) -> Option<String> {
        let (room_bytes, reserve_bytes) = (self.room_bytes?, self.reserve_bytes);
        if reserve_bytes == 0 {
            return None;
        }
        let floor_bytes = self.floor_bytes();
        let (kept_bytes, margin_bytes) = (self.kept_bytes(), reserve_bytes / 8);
        let fair_bytes = room_bytes.saturating_sub(reserve_bytes - margin_bytes);
        if kept_bytes > fair_bytes.max(floor_bytes) {
            let message = "bytes are kept, and the machine has";
            return Some(format!("{kept_bytes} {message} {room_bytes} for them and the reserve"));
        }
        if self.decision.reason == SizeReason::Growing
            && self.after_bytes > room_bytes.saturating_sub(reserve_bytes)
        {
            return Some(format!("the cache grows to {} into the reserve", self.after_bytes));
        }
        let taken_bytes = self.sample.size_bytes - self.sample.unused_bytes;
        let is_near = room_bytes.saturating_sub(taken_bytes) < 2 * reserve_bytes;
        let is_settled = shrunk_ms.is_none_or(|shrunk_ms| self.now_ms - shrunk_ms >= SETTLE_MS);
        if self.is_pressed
            && is_near
            && is_settled
            && kept_bytes > taken_bytes.saturating_sub(margin_bytes).max(floor_bytes)
        {
            return Some(format!("{kept_bytes} bytes are kept although programs wait"));
        }
        None
    }
}

impl Swings {
    /// Whether the size grows too soon or too often.
    fn check(&mut self, decided: &Decided<'_>) -> Option<String> {
        let now_ms = decided.now_ms;
        if decided.decision.reason.is_short() && decided.decision.bytes < decided.sample.size_bytes
        {
            (self.shrunk_ms, self.is_shrunk) = (Some(now_ms), true);
            return None;
        }
        if decided.decision.reason != SizeReason::Growing || !decided.is_growth() {
            return None;
        }
        let after_ms = self.shrunk_ms.map_or(u64::MAX, |shrunk_ms| now_ms - shrunk_ms);
        if after_ms < GROWTH_AFTER_MS_MIN {
            return Some(format!("the cache grows {after_ms} ms after a shrink"));
        }
        if !std::mem::take(&mut self.is_shrunk) {
            return None;
        }
        self.regrown_ms.push(now_ms);
        let earlier = self.regrown_ms.iter().rev().zip(0u64..).skip(1);
        let too_often = |&(&then_ms, count): &(&u64, u64)| {
            now_ms - then_ms < REGROWTH_MS_MIN + (count - 1) * REGROWTH_MS_MEAN_MIN
        };
        let (then_ms, count) = earlier.clone().find(too_often)?;
        Some(format!("the cache grows again {count} times within {} ms", now_ms - then_ms))
    }

    /// How often the cache has grown again after a shrink.
    pub(crate) const fn regrowths(&self) -> u64 {
        self.regrown_ms.len() as u64
    }
}
