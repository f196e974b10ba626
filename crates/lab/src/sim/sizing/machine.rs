//! The memory of a simulated machine: other programs that take and free it, and the limit of a
//! control group.
//!
//! Programs get what they want as far as it is free, at their own rate; a hog wants everything at
//! once. While they get less, they wait, and the machine counts that as stalls. The limit of the
//! control group of the cache is lowered, raised and removed, or flaps between two values; it may
//! be far below what the cache has.

use crate::harness::dice::{Dice, Ppm};

/// The memory of the machine beside the cache. All sizes are in bytes.
pub(crate) struct SharedMachine {
    /// The clock of the figures, in milliseconds.
    pub now_ms: u64,
    /// When the last sample was taken.
    pub sampled_ms: u64,
    total_bytes: u64,
    /// What other programs have, and what they want.
    others_bytes: u64,
    wanted_bytes: u64,
    /// What they want in quiet times.
    quiet_bytes: u64,
    /// How fast they take memory, in bytes per millisecond.
    rate: u64,
    group: Option<Group>,
    /// The probability per step of a change.
    change: Ppm,
}

/// The control group of the cache.
#[derive(Clone, Copy)]
struct Group {
    /// The limit now, and the other one between which it flaps.
    limit_bytes: u64,
    other_bytes: u64,
    /// How long each of the two holds, in milliseconds; `u64::MAX` if the limit stays.
    period_ms: u64,
    flaps_ms: u64,
    /// What other programs in the group have.
    used_bytes: u64,
}

/// What the kernel counts in a step.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pressure {
    pub stalled_us: u64,
    pub limit_events: u64,
}

impl Pressure {
    /// Adds what was counted later.
    pub(crate) const fn add(&mut self, later: Self) {
        self.stalled_us += later.stalled_us;
        self.limit_events += later.limit_events;
    }
}

impl SharedMachine {
    /// A machine for a cache of at most `cache_bytes` beside a reserve.
    pub(crate) fn draw(dice: &mut Dice, cache_bytes: u64, reserve_bytes: u64) -> Self {
        let (times, of) = dice.pick(&[(5, 4), (2, 1), (4, 1)]);
        let total_bytes = cache_bytes / of * times + reserve_bytes;
        let quiet_bytes = total_bytes / 64 * dice.pick(&[0, 1, 16]);
        let now_ms = dice.below(1 << 32);
        Self {
            now_ms,
            sampled_ms: now_ms,
            total_bytes,
            others_bytes: quiet_bytes,
            wanted_bytes: quiet_bytes,
            quiet_bytes,
            rate: total_bytes,
            group: None,
            change: dice.pick(&[1_000, 5_000, 50_000]),
        }
    }

    /// The memory that the cache could have beside the other programs, without any reserve.
    pub(crate) fn room_bytes(&self) -> u64 {
        let machine = self.total_bytes - self.others_bytes;
        let in_group = |group: &Group| group.limit_bytes.saturating_sub(group.used_bytes);
        self.group.as_ref().map_or(machine, |group| in_group(group).min(machine))
    }

    /// The memory that is available while the cache has `cache_bytes`.
    pub(crate) fn available_bytes(&self, cache_bytes: u64) -> u64 {
        self.room_bytes().saturating_sub(cache_bytes)
    }

    /// By how much the control group exceeds its limit while the cache has `cache_bytes`.
    pub(crate) fn excess_bytes(&self, cache_bytes: u64) -> u64 {
        let excess =
            |group: &Group| (group.used_bytes + cache_bytes).saturating_sub(group.limit_bytes);
        self.group.as_ref().map_or(0, excess)
    }

    /// Ends all changes: few other programs, no limit. Room for `cache_bytes` twice.
    pub(crate) fn calm(&mut self, cache_bytes: u64, reserve_bytes: u64) {
        (self.change, self.group) = (0, None);
        self.total_bytes = self.total_bytes.max(2 * cache_bytes + 4 * reserve_bytes);
        (self.others_bytes, self.wanted_bytes) = (0, 0);
    }

    /// A program that takes everything at once, and keeps it.
    pub(crate) fn hog(&mut self) {
        (self.wanted_bytes, self.rate) = (self.total_bytes, self.total_bytes);
    }

    /// Passes some time, in which the cache has `cache_bytes`.
    pub(crate) fn step(&mut self, dice: &mut Dice, elapsed_ms: u64, cache_bytes: u64) -> Pressure {
        self.now_ms += elapsed_ms;
        if dice.chance(self.change) {
            self.change_programs(dice);
        }
        if dice.chance(self.change / 4) {
            self.change_group(dice, cache_bytes);
        }
        let mut pressure = Pressure::default();
        // Memory that the cache has taken meanwhile leaves less to the others.
        let free_bytes = self.total_bytes.saturating_sub(cache_bytes);
        self.others_bytes = self.others_bytes.min(free_bytes);
        if self.others_bytes < self.wanted_bytes {
            let most_bytes = self.rate.saturating_mul(elapsed_ms);
            let taken_bytes = (self.wanted_bytes - self.others_bytes).min(most_bytes);
            self.others_bytes = (self.others_bytes + taken_bytes).min(free_bytes);
            if self.others_bytes == free_bytes {
                pressure.stalled_us = elapsed_ms * dice.below(1_001);
            }
        } else {
            self.others_bytes = self.wanted_bytes;
        }
        if let Some(group) = &mut self.group {
            if self.now_ms >= group.flaps_ms {
                std::mem::swap(&mut group.limit_bytes, &mut group.other_bytes);
                group.flaps_ms = self.now_ms.saturating_add(group.period_ms);
            }
            if group.used_bytes + cache_bytes > group.limit_bytes || dice.chance(10_000) {
                pressure.limit_events = dice.below(100);
            }
        }
        if dice.chance(10_000) {
            // Programs also wait for memory for other reasons.
            pressure.stalled_us = elapsed_ms * dice.below(1_001);
        }
        pressure
    }

    fn change_programs(&mut self, dice: &mut Dice) {
        let total = self.total_bytes;
        self.wanted_bytes = match dice.below(8) {
            0..4 => self.quiet_bytes,
            4 => total,
            _ => total / 64 * dice.below(65),
        };
        // Everything within a millisecond, a tenth of a second, a second, a minute.
        self.rate = (total / dice.pick(&[1, 100, 1_000, 60_000])).max(1);
    }

    fn change_group(&mut self, dice: &mut Dice, cache_bytes: u64) {
        let part = |dice: &mut Dice| match dice.chance(300_000) {
            true => cache_bytes / 8 * dice.below(9),
            false => self.total_bytes / 64 * dice.range(1, 64),
        };
        let (limit_bytes, other_bytes) = (part(dice), part(dice));
        let period_ms = dice.pick(&[u64::MAX, 200, 5_000, 40_000, 70_000, 1_000_000]);
        self.group = dice.chance(500_000).then_some(Group {
            limit_bytes,
            other_bytes,
            period_ms,
            flaps_ms: self.now_ms.saturating_add(period_ms),
            used_bytes: limit_bytes / 64 * dice.pick(&[0, 0, 8]),
        });
    }
}
