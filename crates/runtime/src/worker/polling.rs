//! Whether a worker looks for events for a moment before it sleeps (busy polling).
//!
//! A thread that sleeps runs again some microseconds after its event, on a virtual machine after
//! tens of them. One that looks for events instead starts at once, and takes the processor
//! meanwhile. Only clients that wait for their answers before they go on gain from that, and only
//! while the processor has nothing else to do. So the worker tries it: for 64 ms, it looks in some
//! slices of time and sleeps in the others, and compares how many requests it has answered. If
//! looking has gained enough, it looks for a second, and tries again. Otherwise it sleeps for a
//! while, longer after each trial without a gain. It never looks while other programs wait for
//! processors, on a machine with one processor, or after a wait that has taken long: an idle worker
//! costs nothing.
//!
//! Known as halt polling in hypervisors, which compare the waits alone.

use std::time::{Duration, Instant};

/// How long a worker looks for events at most. Also the longest wait after which it looks: the next
/// one is probably as long.
const LOOK_MAX: Duration = Duration::from_micros(50);
/// The duration of a slice of a trial. A trial with a slice twice as long has no steady load, and
/// ends.
const SLICE: Duration = Duration::from_millis(4);
/// Whether the worker looks in each slice of a trial. In this order (Thue and Morse), a load that
/// rises or falls steadily, even if it does so ever faster, is the same with and without looking.
const SLICES: [bool; 16] = [
    false, true, true, false, true, false, false, true, //
    true, false, false, true, false, true, true, false,
];
/// How much the rate of answers must gain, in percent.
const GAIN_PERCENT: f64 = 10.0;
/// The time between two trials while looking gains enough, and the shortest without it.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest time between two trials.
const PERIOD_MAX: Duration = Duration::from_secs(16);
/// Short waits per [`PERIOD`] that justify a trial.
const SHORT_WAITS_MIN: u32 = 1000;

/// What a worker knows about its waits. Times and counts come from the caller.
#[derive(Debug)]
pub(super) struct Polling {
    state: PollState,
    /// The time to the next trial, if the last one had no gain.
    pause: Duration,
    /// Short waits since the state began.
    short_waits: u32,
    /// Whether the last wait was short.
    is_brisk: bool,
}

#[derive(Debug)]
enum PollState {
    Sleeping { until: Instant },
    Trying(PollTrial),
    Looking { until: Instant },
}

#[derive(Debug)]
struct PollTrial {
    slice: usize,
    began: Instant,
    /// The worker's answers before this slice.
    answered: u64,
    /// Time and answers of all ended slices without looking, and with it.
    without: SliceSum,
    with: SliceSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct SliceSum {
    seconds: f64,
    answers: u64,
}

impl SliceSum {
    fn rate(self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

impl Polling {
    pub(super) const fn new(now: Instant) -> Self {
        let state = PollState::Sleeping { until: now };
        Self { state, pause: PERIOD, short_waits: 0, is_brisk: false }
    }

    /// How long to look for events before the wait that begins now; zero to sleep at once.
    /// `answered` counts the worker's answers; `has_spare` says whether processors are free.
    pub(super) fn look_for(&mut self, now: Instant, answered: u64, has_spare: bool) -> Duration {
        if !has_spare {
            self.pause = PERIOD;
            self.sleep(now);
            return Duration::ZERO;
        }
        match &mut self.state {
            PollState::Sleeping { until } => {
                if now < *until {
                    return Duration::ZERO;
                }
                if self.short_waits < SHORT_WAITS_MIN {
                    self.pause = PERIOD;
                    self.sleep(now);
                    return Duration::ZERO;
                }
                self.try_again(now, answered);
            }
            PollState::Looking { until } if now >= *until => self.try_again(now, answered),
            PollState::Looking { .. } => {}
            PollState::Trying(trial) => {
                if let Some(has_gained) = trial.advance(now, answered) {
                    self.judge(now, has_gained);
                }
            }
        }
        if self.is_brisk && self.looks() { LOOK_MAX } else { Duration::ZERO }
    }

    /// Reports the time from the start of the wait to its event.
    pub(super) fn waited(&mut self, time: Duration) {
        self.is_brisk = time <= LOOK_MAX;
        self.short_waits = self.short_waits.saturating_add(u32::from(self.is_brisk));
    }

    fn looks(&self) -> bool {
        match &self.state {
            PollState::Sleeping { .. } => false,
            PollState::Trying(trial) => SLICES[trial.slice],
            PollState::Looking { .. } => true,
        }
    }

    fn sleep(&mut self, now: Instant) {
        self.state = PollState::Sleeping { until: now + self.pause };
        self.short_waits = 0;
    }

    fn try_again(&mut self, now: Instant, answered: u64) {
        let (without, with) = Default::default();
        let trial = PollTrial { slice: 0, began: now, answered, without, with };
        self.state = PollState::Trying(trial);
    }

    fn judge(&mut self, now: Instant, has_gained: bool) {
        if has_gained {
            self.pause = PERIOD;
            self.state = PollState::Looking { until: now + PERIOD };
        } else {
            self.sleep(now);
            self.pause = (self.pause * 2).min(PERIOD_MAX);
        }
    }
}

impl PollTrial {
    /// Ends the slice if its time is over. After the last one, returns whether looking gains
    /// enough.
    fn advance(&mut self, now: Instant, answered: u64) -> Option<bool> {
        let took = now.saturating_duration_since(self.began);
        if took < SLICE {
            return None;
        }
        if took > 2 * SLICE {
            return Some(false);
        }
        let sum = if SLICES[self.slice] { &mut self.with } else { &mut self.without };
        sum.seconds += took.as_secs_f64();
        sum.answers += answered - self.answered;
        if self.slice + 1 == SLICES.len() {
            let limit = self.without.rate() * (1.0 + GAIN_PERCENT / 100.0);
            return Some(self.with.rate() >= limit);
        }
        (self.slice, self.began, self.answered) = (self.slice + 1, now, answered);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker with a simulated load, which has a rate of answers with and without looking.
    struct PollRig {
        polling: Polling,
        now: Instant,
        answered: u64,
        /// Time spent looking.
        looked: Duration,
        has_spare: bool,
    }

    impl PollRig {
        fn new() -> Self {
            let now = Instant::now();
            let (answered, looked) = (0, Duration::ZERO);
            Self { polling: Polling::new(now), now, answered, looked, has_spare: true }
        }

        /// Serves one request per wait for a time. Waits take `sleeping` if the worker sleeps, and
        /// `looking` if it looks.
        fn serve(&mut self, time: Duration, sleeping: Duration, looking: Duration) {
            let end = self.now + time;
            while self.now < end {
                let look = self.polling.look_for(self.now, self.answered, self.has_spare);
                let waited = if look.is_zero() { sleeping } else { looking };
                self.looked += look.min(waited);
                self.polling.waited(waited);
                self.now += waited;
                self.answered += 1;
            }
        }

        fn share_looked(&mut self, time: Duration, sleeping: Duration, looking: Duration) -> f64 {
            self.looked = Duration::ZERO;
            self.serve(time, sleeping, looking);
            self.looked.as_secs_f64() / time.as_secs_f64()
        }
    }

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_worker_looks_while_that_gains_answers() {
        let mut rig = PollRig::new();
        rig.serve(Duration::from_secs(3), us(20), us(10));
        let share = rig.share_looked(MINUTE, us(20), us(10));
        assert!(share > 0.9, "it looked {share} of the time");
    }

    #[test]
    fn a_worker_that_gains_nothing_sleeps() {
        let mut rig = PollRig::new();
        rig.serve(MINUTE, us(20), us(20));
        let share = rig.share_looked(MINUTE, us(20), us(20));
        assert!(share < 0.005, "it looked {share} of the time");
        // A gain that is too small.
        let share = rig.share_looked(MINUTE, us(21), us(20));
        assert!(share < 0.005, "it looked {share} of the time");
        // A change of the load is noticed at the latest after the longest pause.
        rig.serve(PERIOD_MAX + PERIOD, us(20), us(10));
        let share = rig.share_looked(MINUTE, us(20), us(10));
        assert!(share > 0.9, "it looked {share} of the time");
    }

    #[test]
    fn an_idle_worker_never_looks() {
        let mut rig = PollRig::new();
        assert_eq!(rig.share_looked(MINUTE, us(100), us(90)), 0.0);
        assert_eq!(rig.share_looked(MINUTE, Duration::from_millis(500), us(50)), 0.0);
        // It has looked with gain, and the clients leave.
        rig.serve(Duration::from_secs(3), us(20), us(10));
        let share = rig.share_looked(MINUTE, Duration::from_millis(50), Duration::from_millis(50));
        assert!(share < 0.0001, "it looked {share} of the time");
    }

    #[test]
    fn a_worker_never_looks_while_others_wait_for_processors() {
        let mut rig = PollRig::new();
        rig.serve(Duration::from_secs(3), us(20), us(10));
        rig.has_spare = false;
        assert_eq!(rig.share_looked(MINUTE, us(20), us(10)), 0.0);
        rig.has_spare = true;
        rig.serve(Duration::from_secs(3), us(20), us(10));
        assert!(rig.share_looked(MINUTE, us(20), us(10)) > 0.9);
    }

    #[test]
    fn a_load_that_changes_steadily_is_no_gain() {
        for (first, factor) in [(20.0, 0.999_9), (8.0, 1.000_1)] {
            let mut rig = PollRig::new();
            rig.serve(Duration::from_secs(1), us(20), us(20));
            let mut wait: f64 = first;
            while (6.0..40.0).contains(&wait) {
                rig.serve(us(1), us(wait as u64), us(wait as u64));
                wait *= factor;
            }
            assert!(!matches!(rig.polling.state, PollState::Looking { .. }));
        }
    }
}
