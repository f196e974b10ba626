//! Determines the current slot by a clock that may be wrong, jump, or change its time zone.

use forebay_types::TimeSlot;

/// The clock counts as right up to this difference from the elapsed time, in seconds: clocks are
/// adjusted, and polls are late.
const TOLERANCE_SECONDS: u64 = 60;

/// Follows the slots of the clock. The host polls it every few seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotTracker {
    last: Option<Moment>,
    /// The current slot is observed from its beginning.
    is_whole: bool,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    local_seconds: u64,
    elapsed_ms: u64,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPoll {
    /// The current slot.
    pub slot: TimeSlot,
    /// Seconds until the next one.
    pub seconds_left: u64,
    /// The slot that has ended since the last poll, if it was observed as a whole.
    pub ended: Option<TimeSlot>,
    /// What was observed since the last poll belongs to no slot, or to one that was not observed as
    /// a whole.
    pub discards: bool,
    /// By how many seconds the clock has jumped since the last poll.
    pub jumped_seconds: Option<i64>,
}

impl SlotTracker {
    /// Records the time: seconds of local time since 1970-01-01 00:00, and a clock in milliseconds
    /// that does not jump.
    pub fn poll(&mut self, local_seconds: u64, elapsed_ms: u64) -> SlotPoll {
        let slot = TimeSlot::of_seconds(local_seconds);
        let seconds_left = slot.next().first_second().saturating_sub(local_seconds);
        let since_first = local_seconds.saturating_sub(slot.first_second());
        let is_at_beginning = since_first <= TOLERANCE_SECONDS;
        let last = self.last.replace(Moment { local_seconds, elapsed_ms });
        let mut poll =
            SlotPoll { slot, seconds_left, ended: None, discards: false, jumped_seconds: None };
        let Some(last) = last else {
            self.is_whole = is_at_beginning;
            return poll;
        };
        let elapsed_seconds = elapsed_ms.saturating_sub(last.elapsed_ms) / 1_000;
        let expected = last.local_seconds.saturating_add(elapsed_seconds);
        if local_seconds.abs_diff(expected) > TOLERANCE_SECONDS {
            let jumped = i128::from(local_seconds) - i128::from(expected);
            let limits = (i128::from(i64::MIN), i128::from(i64::MAX));
            poll.jumped_seconds = Some(jumped.clamp(limits.0, limits.1) as i64);
            poll.discards = true;
            // Even at the beginning of a slot: observations that arrive next may be from before the
            // jump.
            self.is_whole = false;
            return poll;
        }
        let before = TimeSlot::of_seconds(last.local_seconds);
        if before != slot {
            let is_next = before.next() == slot;
            let is_observed = self.is_whole && is_next && is_at_beginning;
            poll.ended = is_observed.then_some(before);
            poll.discards = !is_observed;
            self.is_whole = is_at_beginning;
        }
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::SLOT_SECONDS;

    /// A Thursday, 09:00.
    const NINE: u64 = 1_795_651_200 + 9 * 3_600;

    struct Clock {
        tracker: SlotTracker,
        local: u64,
        elapsed: u64,
    }

    impl Clock {
        fn at(local: u64) -> Self {
            let mut clock = Self { tracker: SlotTracker::default(), local, elapsed: 77 };
            let first = clock.pass(0);
            assert_eq!((first.ended, first.discards, first.jumped_seconds), (None, false, None));
            clock
        }

        fn pass(&mut self, seconds: u64) -> SlotPoll {
            self.local += seconds;
            self.elapsed += seconds;
            self.tracker.poll(self.local, self.elapsed * 1_000 + 999)
        }
    }

    #[test]
    fn a_slot_that_was_observed_as_a_whole_ends() {
        let mut clock = Clock::at(NINE + 60);
        assert_eq!(clock.pass(0).seconds_left, SLOT_SECONDS - 60);
        for _ in 0..83 {
            assert_eq!(clock.pass(10).ended, None);
        }
        let end = clock.pass(10);
        assert_eq!(end.ended.unwrap().to_string(), "Thu 09:00");
        assert_eq!((end.slot.to_string().as_str(), end.discards), ("Thu 09:15", false));
        assert_eq!(end.seconds_left, SLOT_SECONDS);
        assert_eq!(clock.pass(SLOT_SECONDS + 59).ended.unwrap().to_string(), "Thu 09:15");
    }

    #[test]
    fn the_slot_of_the_start_is_discarded() {
        let mut clock = Clock::at(NINE + 61);
        let end = clock.pass(SLOT_SECONDS - 61);
        assert_eq!((end.ended, end.discards), (None, true));
        assert!(clock.pass(SLOT_SECONDS).ended.is_some());
    }

    #[test]
    fn slots_without_polls_are_discarded() {
        let mut clock = Clock::at(NINE);
        // Late: some of it belongs to the next slot.
        let late = clock.pass(SLOT_SECONDS + 61);
        assert_eq!((late.ended, late.discards), (None, true));
        let missed = clock.pass(5 * SLOT_SECONDS);
        assert_eq!((missed.ended, missed.discards, missed.jumped_seconds), (None, true, None));
    }

    #[test]
    fn a_jump_of_the_clock_discards_the_slots_that_it_touches() {
        for jump in [3_600i64, -3_600, 61, -61, 86_400 * 4_000, -86_400 * 4_000] {
            let mut clock = Clock::at(NINE);
            clock.pass(300);
            clock.local = clock.local.checked_add_signed(jump).unwrap();
            let jumped = clock.pass(10);
            assert_eq!((jumped.jumped_seconds, jumped.discards), (Some(jump), true));
            assert_eq!(jumped.ended, None);
            let end = clock.pass(jumped.seconds_left);
            assert_eq!((end.ended, end.discards, end.jumped_seconds), (None, true, None), "{jump}");
            assert!(clock.pass(SLOT_SECONDS).ended.is_some(), "the next one is whole");
        }
        // Within the tolerance, and to the limits.
        let mut clock = Clock::at(NINE);
        clock.local += 60;
        assert_eq!(clock.pass(10).jumped_seconds, None);
        clock.local = u64::MAX;
        assert!(clock.pass(0).jumped_seconds.is_some());
        clock.local = 0;
        assert_eq!(clock.pass(0).jumped_seconds, Some(i64::MIN));
    }
}
