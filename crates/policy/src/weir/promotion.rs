//! Learns which returning lines are worth a place in main.
//!
//! A line that enters main displaces another. The line is worth it if it is more likely to be hit
//! before the clock reaches it, within one *lap*, than the displaced line is to return within that
//! time. How likely a hit is depends on the age of the line's ghost: on some loads, lines that
//! return soon are used again and lines that return late are not; on others, both are or neither
//! is. So ghosts are divided into classes by age, and the hits of each class are counted.
//!
//! The counters decay: recent lines count more. One in [`TRIAL_PERIOD`] lines of a class that is
//! not worth a place gets one regardless, so that a class can recover.

use crate::fingerprints::EvictedFrom;

/// Classes of ghosts of the small queue, by equal ranges of age.
const AGE_CLASSES: u8 = 8;
/// Classes, with that of the ghosts of main. They are numbered from 1; 0 is no class.
const CLASSES: usize = AGE_CLASSES as usize + 1;
/// One in this many lines of a class that is not worth a place enters main nevertheless.
const TRIAL_PERIOD: u8 = 16;

/// The class of a line that entered main by its ghost, from 1; 0 for another line.
pub(super) type PromotionClass = u8;
/// A line that did not enter main by its ghost, or whose outcome is known.
pub(super) const NO_CLASS: PromotionClass = 0;

/// See the module documentation.
pub(super) struct Promotion {
    /// Hits of each class within a lap.
    classes: [Odds; CLASSES],
    /// Lines of each class that were denied since its last trial.
    denied: [u8; CLASSES],
    /// Returns of displaced lines whose ghosts main still keeps.
    returns: Odds,
    /// Evictions among the lines that the clock's hand passes.
    evictions: Odds,
    /// Evictions from main within which a return is seen.
    watch_len: u64,
}

/// Successes among recent trials.
#[derive(Clone, Copy)]
struct Odds {
    successes: u32,
    trials: u32,
    /// At this number of trials, both counters are halved.
    trials_max: u32,
}

impl Promotion {
    pub(super) fn new(watch_len: usize) -> Self {
        Self {
            // Until a class has its own record, it is worth a place.
            classes: [Odds { successes: 4, trials: 4, trials_max: 256 }; CLASSES],
            denied: [0; CLASSES],
            returns: Odds { successes: 0, trials: 4, trials_max: 1024 },
            evictions: Odds { successes: 1, trials: 1, trials_max: 2048 },
            watch_len: watch_len as u64,
        }
    }

    /// Changes the number of evictions within which a return is seen.
    pub(super) fn set_watch_len(&mut self, watch_len: usize) {
        self.watch_len = watch_len as u64;
    }

    /// The class of a ghost. `age_share` is its age as a share of the limit of its queue.
    pub(super) fn class_of(origin: EvictedFrom, age_share: f32) -> PromotionClass {
        match origin {
            EvictedFrom::Small => {
                1 + ((age_share * f32::from(AGE_CLASSES)) as u8).min(AGE_CLASSES - 1)
            }
            EvictedFrom::Main => 1 + AGE_CLASSES,
        }
    }

    /// Decides whether a line of a class should enter a main queue of `main_len` lines.
    pub(super) fn admit(&mut self, class: PromotionClass, main_len: usize) -> bool {
        let odds = self.classes[class as usize - 1];
        // hits / lines > returns / evictions * max(1, lap / watched part of the lap), in integers
        // below 2^60.
        let lap = self.evictions.successes as u64 * main_len as u64;
        let watched = self.evictions.trials as u64 * self.watch_len;
        let gain = odds.successes as u64 * self.returns.trials as u64 * watched;
        let loss = self.returns.successes as u64 * odds.trials as u64 * lap.max(watched);
        if gain > loss {
            return true;
        }
        let denied = &mut self.denied[class as usize - 1];
        *denied = (*denied + 1) % TRIAL_PERIOD;
        *denied == 0
    }

    /// Records that the hand passed a line of `class`: one that was hit since it passed last, or
    /// one that is evicted now.
    pub(super) fn on_pass(&mut self, class: PromotionClass, was_hit: bool) {
        self.evictions.count(!was_hit);
        if !was_hit {
            self.returns.count(false);
        }
        if class != NO_CLASS {
            self.classes[class as usize - 1].count(was_hit);
        }
    }

    /// Records the return of a line that main evicted. `age_share` is the age of its ghost, as a
    /// share of the evictions within which a return is seen.
    pub(super) fn on_return(&mut self, age_share: f32, main_len: usize) {
        let lap = self.evictions.successes as u64 * main_len as u64;
        let age = (f64::from(age_share) * self.watch_len as f64) as u64;
        if age * u64::from(self.evictions.trials) <= lap {
            self.returns.successes = (self.returns.successes + 1).min(self.returns.trials);
        }
    }
}

impl Odds {
    fn count(&mut self, is_success: bool) {
        self.trials += 1;
        self.successes += u32::from(is_success);
        if self.trials >= self.trials_max {
            self.trials /= 2;
            self.successes /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN_LEN: usize = 900;

    /// Lets the hand pass `count` lines of a class.
    fn pass(promotion: &mut Promotion, class: PromotionClass, count: usize, was_hit: bool) {
        (0..count).for_each(|_| promotion.on_pass(class, was_hit));
    }

    fn admitted_of_160(promotion: &mut Promotion, class: PromotionClass) -> usize {
        (0..160).filter(|_| promotion.admit(class, MAIN_LEN)).count()
    }

    #[test]
    fn a_class_that_is_never_hit_is_admitted_on_trial_only_until_it_is_hit_again() {
        let mut promotion = Promotion::new(50);
        assert_eq!(admitted_of_160(&mut promotion, 3), 160);
        pass(&mut promotion, 3, 1_000, false);
        assert_eq!(admitted_of_160(&mut promotion, 3), 10);
        assert_eq!(admitted_of_160(&mut promotion, 4), 160, "classes are independent");
        pass(&mut promotion, 3, 100, true);
        assert_eq!(admitted_of_160(&mut promotion, 3), 160);
    }

    #[test]
    fn a_class_is_admitted_if_it_is_hit_more_often_than_displaced_lines_return() {
        // Each lap passes all 900 lines and evicts half of them. Returns are seen within 50
        // evictions, a ninth of a lap, so each counts nine times: 2 of 100 are 18 %.
        for (hits_of_20, is_admitted) in [(1, false), (2, false), (7, true), (15, true)] {
            let mut promotion = Promotion::new(50);
            for _ in 0..40 {
                pass(&mut promotion, NO_CLASS, 100, true);
                pass(&mut promotion, NO_CLASS, 80, false);
                pass(&mut promotion, 1, 20 - hits_of_20, false);
                pass(&mut promotion, 1, hits_of_20, true);
                (0..2).for_each(|_| promotion.on_return(0.5, MAIN_LEN));
            }
            let admitted = admitted_of_160(&mut promotion, 1);
            assert_eq!(admitted, if is_admitted { 160 } else { 10 }, "{hits_of_20} of 20");
        }
    }

    #[test]
    fn only_returns_within_a_lap_count() {
        let mut promotion = Promotion::new(50);
        pass(&mut promotion, NO_CLASS, 2_000, true);
        pass(&mut promotion, NO_CLASS, 20, false);
        let before = promotion.returns.successes;
        // About a hundredth of 900 lines is evicted in a lap: 9.
        promotion.on_return(0.9, MAIN_LEN);
        assert_eq!(promotion.returns.successes, before);
        promotion.on_return(0.1, MAIN_LEN);
        assert_eq!(promotion.returns.successes, before + 1);
    }
}
