//! When the regions of a volume are held out, within an interval.
//!
//! Intervals are the unit of the statistics. Once an interval has enough held-out requests, more
//! of them hardly narrow the result, but each costs a client as much as one of the disk. So in a
//! busy volume, regions are held out for a part of the interval only, in a few windows at equal
//! distances. The part is the same in all windows of an interval: requests at any time of it are
//! equally likely to be compared.

use super::machine::Machine;
use forebay_api::AnalysisVolume;
use forebay_types::HoldOut;
use std::time::Duration;

/// Held-out requests in an interval that are enough. If the mean response times of regions differ
/// by a tenth, more of them narrow the result by 1 % (`client/analyze/comparison_tests.rs`).
pub(super) const HELD_ENOUGH: f64 = 4_000.0;
/// The windows of an interval.
const WINDOWS: f64 = 4.0;
/// The shortest window. None passes unnoticed, because it is longer than [`super::POLL`].
const WINDOW_MIN: Duration = Duration::from_millis(300);
/// The smallest part of an interval, so that one that is less busy than the last one still has
/// some held-out requests.
const PART_MIN: f64 = 0.02;

/// A volume in an interval.
pub(super) struct Pace {
    name: String,
    hold_out: HoldOut,
    /// The length of the interval.
    length: Duration,
    /// The part of the interval in which regions are held out, up to 1.
    part: f64,
    /// The position in a window at which the interval begins, from 0 to 1. It varies, so that no
    /// load at regular times is always or never compared.
    offset: f64,
    /// Since when regions are held out, from the beginning of the interval; `None` if not now.
    since: Option<Duration>,
    /// How long they were held out before.
    before: Duration,
}

impl Pace {
    /// Begins an interval of a volume.
    pub(super) fn begin(
        name: &str,
        hold_out: HoldOut,
        (length, part): (Duration, f64),
        random: u32,
        machine: &impl Machine,
    ) -> Self {
        let offset = f64::from(random) / f64::from(u32::MAX);
        let name = name.to_owned();
        let before = Duration::ZERO;
        let mut pace = Self { name, hold_out, length, part, offset, since: None, before };
        // The regions of the last interval may still be held out.
        let is_due = pace.is_due(before);
        machine.set_hold_out(&pace.name, if is_due { hold_out } else { HoldOut::NONE });
        pace.since = is_due.then_some(before);
        pace
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Begins or ends a window if it is time to.
    pub(super) fn advance(&mut self, elapsed: Duration, machine: &impl Machine) {
        match (self.since, self.is_due(elapsed)) {
            (None, true) => {
                machine.set_hold_out(&self.name, self.hold_out);
                self.since = Some(elapsed);
            }
            (Some(_), false) => {
                machine.set_hold_out(&self.name, HoldOut::NONE);
                self.before = self.held_out_for(elapsed);
                self.since = None;
            }
            _ => {}
        }
    }

    /// How long regions were held out in this interval.
    pub(super) fn held_out_for(&self, elapsed: Duration) -> Duration {
        let now = self.since.map_or(Duration::ZERO, |since| elapsed.saturating_sub(since));
        self.before + now
    }

    /// Whether regions are held out at this time.
    fn is_due(&self, elapsed: Duration) -> bool {
        let windows = elapsed.div_duration_f64(self.length) * WINDOWS + self.offset;
        self.part >= 1.0 || windows.fract() < self.part
    }
}

/// The part of an interval of `length` that is enough if `share` of the regions are held out, and
/// the load is that of an interval before, which has taken `seconds`.
pub(super) fn part_of_time(
    before: &AnalysisVolume,
    seconds: f64,
    share: f64,
    length: Duration,
) -> f64 {
    let requests = requests(before);
    let compared_seconds = before.compared_seconds.unwrap_or(seconds);
    if requests == 0 || compared_seconds <= 0.0 {
        return 1.0;
    }
    let held_per_second = requests as f64 / compared_seconds * share;
    let seconds_enough = (HELD_ENOUGH / held_per_second)
        .max(length.as_secs_f64() * PART_MIN)
        .max(WINDOW_MIN.as_secs_f64() * WINDOWS);
    (seconds_enough / length.as_secs_f64()).min(1.0)
}

/// The requests of an interval that were compared, held out or not.
pub(super) fn requests(volume: &AnalysisVolume) -> u64 {
    let AnalysisVolume { served_reads, held_reads, served_writes, held_writes, .. } = volume;
    let lists = [served_reads, held_reads, served_writes, held_writes];
    lists.into_iter().flatten().map(|class| class.requests).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::SizeTimes;

    const HALF_AN_HOUR: Duration = Duration::from_secs(1800);
    const ONE_PERCENT: f64 = 0.01;

    /// An interval of ten seconds in which requests were compared for five.
    fn interval(requests: u64) -> AnalysisVolume {
        let times = |requests| vec![SizeTimes { up_to_bytes: 4096, requests, seconds: 1.0 }];
        AnalysisVolume {
            served_reads: times(requests / 2),
            held_writes: times(requests / 2),
            compared_seconds: Some(5.0),
            ..AnalysisVolume::default()
        }
    }

    fn part(requests: u64, length: Duration) -> f64 {
        part_of_time(&interval(requests), 10.0, ONE_PERCENT, length)
    }

    #[test]
    fn the_busier_a_volume_the_shorter_its_regions_are_held_out() {
        assert_eq!(part(0, HALF_AN_HOUR), 1.0);
        // 100 requests per second, one of which is held out: 1800 in half an hour.
        assert_eq!(part(500, HALF_AN_HOUR), 1.0);
        // 1,000 per second: 18,000 in half an hour, of which 4,000 are enough.
        assert!((part(5_000, HALF_AN_HOUR) - 4.0 / 18.0).abs() < 1e-9);
        assert_eq!(part(50_000_000, HALF_AN_HOUR), PART_MIN);
        // Four windows of 0.3 s.
        assert!((part(50_000_000, Duration::from_secs(12)) - 0.1).abs() < 1e-9);
        assert_eq!(part(50_000_000, Duration::from_secs(1)), 1.0);
    }

    #[test]
    fn an_interval_of_an_earlier_version_was_compared_throughout() {
        let before = AnalysisVolume { compared_seconds: None, ..interval(10_000) };
        let part = part_of_time(&before, 10.0, ONE_PERCENT, HALF_AN_HOUR);
        assert!((part - 4.0 / 18.0).abs() < 1e-9);
    }

    #[test]
    fn windows_take_their_part_wherever_the_interval_begins() {
        for (part, length_s) in [(0.02, 1800), (0.05, 24), (0.3, 24), (0.9, 100), (1.0, 1)] {
            for offset in [0.0, 0.01, 0.5, 0.99] {
                let length = Duration::from_secs(length_s);
                let pace = Pace {
                    name: "v".into(),
                    hold_out: HoldOut::ALL,
                    length,
                    part,
                    offset,
                    since: None,
                    before: Duration::ZERO,
                };
                let steps = 100_000;
                let due = (0..steps).filter(|&at| pace.is_due(length * at / steps)).count();
                let found = due as f64 / f64::from(steps);
                assert!((found - part).abs() < 1e-3, "{found} of {part} from {offset}");
            }
        }
    }
}
