//! The unit of time and the unit of space of a volume's access history.

use crate::{LINE_BYTES, REGION_BYTES};

/// Seconds of a time slot: a quarter of an hour.
pub const SLOT_SECONDS: u64 = 900;
/// Slots of a day.
pub const SLOTS_PER_DAY: u64 = 24 * 3_600 / SLOT_SECONDS;
/// Slots of a week.
pub const SLOTS_PER_WEEK: u64 = 7 * SLOTS_PER_DAY;

/// Bytes of a part of a region. Each part has one bit in [`HistoryRegion::parts`].
pub const PART_BYTES: u64 = REGION_BYTES / 64;
/// Lines of a part.
pub const PART_LINES: u64 = PART_BYTES / LINE_BYTES;

const _: () = assert!(PART_BYTES.is_multiple_of(LINE_BYTES) && SLOTS_PER_WEEK == 672);

/// Seconds of local time from the Monday before the epoch to the epoch, a Thursday.
const MONDAY_SECONDS: u64 = 3 * 24 * 3_600;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A quarter of an hour of local time, numbered from Monday, 29 December 1969.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeSlot(pub u64);

impl TimeSlot {
    /// The slot of a moment, given in seconds of local time since 1970-01-01 00:00.
    pub const fn of_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_add(MONDAY_SECONDS) / SLOT_SECONDS)
    }

    /// Its first second of local time since 1970-01-01 00:00; zero for slots before that.
    pub const fn first_second(self) -> u64 {
        self.0.saturating_mul(SLOT_SECONDS).saturating_sub(MONDAY_SECONDS)
    }

    /// Its number in the week, below [`SLOTS_PER_WEEK`]. The week begins on Monday.
    pub const fn of_week(self) -> u16 {
        (self.0 % SLOTS_PER_WEEK) as u16
    }

    /// The next slot.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for TimeSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minutes = u64::from(self.of_week()) * SLOT_SECONDS / 60;
        let (day, minutes) = (minutes / (24 * 60), minutes % (24 * 60));
        write!(f, "{} {:02}:{:02}", DAYS[day as usize], minutes / 60, minutes % 60)
    }
}

/// The entry of one region in the history of a slot of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRegion {
    /// The number of the region: the first byte divided by [`REGION_BYTES`].
    pub index: u64,
    /// The parts of the region that were needed when it was needed last, one bit for each, the
    /// lowest for the first. Not zero.
    pub parts: u64,
    /// The weeks in which it was needed, one bit for each: the lowest for the one in which the slot
    /// was observed last, the next for the week before. Not zero.
    pub weeks: u8,
    /// Lines needed each time: an average in which the last time weighs half. Not zero.
    pub lines: u16,
}

/// The history of a slot of the week.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistorySlot {
    /// When it was observed last.
    pub last: TimeSlot,
    /// The weeks in which it was observed, one bit for each, like [`HistoryRegion::weeks`]. Zero if
    /// never.
    pub weeks: u8,
    /// The regions that were needed, in ascending order of their numbers.
    pub regions: Vec<HistoryRegion>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_quarters_of_an_hour_and_weeks_begin_on_monday() {
        // 2026-11-26 was a Thursday; 09:14:59 and 09:15:00.
        let seconds = 1_795_651_200 + 9 * 3_600 + 14 * 60 + 59;
        let slot = TimeSlot::of_seconds(seconds);
        assert_eq!(slot.to_string(), "Thu 09:00");
        assert_eq!(TimeSlot::of_seconds(seconds + 1), slot.next());
        assert_eq!(slot.next().to_string(), "Thu 09:15");
        assert_eq!(u64::from(slot.of_week()), 3 * SLOTS_PER_DAY + 36);
        assert_eq!(slot.next().first_second(), seconds + 1);
        let monday = TimeSlot(0);
        assert_eq!((monday.to_string().as_str(), monday.of_week()), ("Mon 00:00", 0));
        assert_eq!(TimeSlot(SLOTS_PER_WEEK - 1).to_string(), "Sun 23:45");
        // An absurd time must not panic.
        assert_eq!(TimeSlot::of_seconds(u64::MAX), TimeSlot(u64::MAX / SLOT_SECONDS));
        assert!(TimeSlot(u64::MAX).next().first_second() > 0);
        assert_eq!(TimeSlot::of_seconds(0).to_string(), "Thu 00:00");
    }
}
