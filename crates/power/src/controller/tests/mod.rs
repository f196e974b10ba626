//! Tests of the power controller.

mod oracle;
mod walk;

use super::*;
use crate::{NotReady, ReadError, ReadErrorKind, Unknown};

pub(super) const MIB: u64 = 1 << 20;
/// Dirty data, and a vault that takes it in 7 seconds.
pub(super) const EXPOSED: Exposure =
    Exposure { dirty_bytes: 700 * MIB, vault_bytes_per_second: Some(100 * MIB) };

pub(super) fn reading(status: &str, charge: u32, runtime: u32) -> UpsObservation {
    let text =
        format!("ups.status: {status}\nbattery.charge: {charge}\nbattery.runtime: {runtime}");
    Ok(UpsReading::from_lines(&text).unwrap())
}

pub(super) fn trouble() -> UpsObservation {
    let message = "the server does not answer";
    Err(ReadError::new(ReadErrorKind::TimedOut, message, "check the network"))
}

pub(super) fn controller_of(text: &str) -> PowerController {
    PowerController::new(Expression::parse(text).unwrap(), Rules::default())
}

/// A controller and its time. Each step is a second and an observation of each UPS.
pub(super) struct Bench {
    pub(super) controller: PowerController,
    pub(super) now_ms: u64,
}

impl Bench {
    fn new(text: &str) -> Self {
        Self { controller: controller_of(text), now_ms: 1_000_000 }
    }

    /// The UPS "a", under which write-back has just been allowed.
    fn safe() -> Self {
        let mut bench = Self::new("a");
        assert!(bench.observe_for(61, &[good()]).write_back_allowed);
        bench
    }

    /// Advances the time by a second, then delivers an observation for each UPS.
    fn observe(&mut self, observations: &[UpsObservation]) -> PowerDecision {
        self.now_ms += 1000;
        for (index, observation) in observations.iter().enumerate() {
            self.controller.observe(index, self.now_ms, observation.clone());
        }
        self.controller.decide(self.now_ms, &EXPOSED)
    }

    fn observe_for(&mut self, seconds: u64, observations: &[UpsObservation]) -> PowerDecision {
        (0..seconds).map(|_| self.observe(observations)).last().unwrap()
    }
}

fn good() -> UpsObservation {
    reading("OL", 100, 1800)
}

fn battery() -> UpsObservation {
    reading("OB DISCHRG", 95, 600)
}

#[test]
fn write_back_begins_after_the_settle_time() {
    let mut bench = Bench::new("a");
    let first = bench.controller.decide(0, &EXPOSED);
    assert_eq!(first.state, PowerState::Unknown(Unknown::NoReading));
    assert!(!first.write_back_allowed && first.drain_now && !first.dump_now);
    let early = bench.observe_for(60, &[good()]);
    assert_eq!(early.state, PowerState::NotReady(NotReady::Settling { left_ms: 1000 }));
    assert!(!early.write_back_allowed && early.dirty_bytes_max == 0);
    let decision = bench.observe(&[good()]);
    assert!(decision.write_back_allowed && !decision.drain_now && !decision.dump_now);
    assert_eq!(decision.dirty_bytes_max, 720 * 100 * MIB, "half of 80 % of 1,800 s");
    let sentence = "if mains failed now: dump 7 s, battery 1800 s";
    assert_eq!(decision.forecast.to_string(), sentence);
    assert!(decision.reason.contains("protected"), "{}", decision.reason);
}

#[test]
fn write_back_ends_at_once_and_settles_again() {
    for bad in [
        battery(),
        trouble(),
        reading("OL RB", 100, 1800),
        reading("OL", 78, 1800),
        reading("OL", 100, 60),
        reading("", 100, 1800),
    ] {
        let mut bench = Bench::safe();
        let decision = bench.observe(std::slice::from_ref(&bad));
        assert!(!decision.write_back_allowed && decision.drain_now, "{bad:?}");
        assert!(!bench.observe_for(60, &[good()]).write_back_allowed, "{bad:?}");
        assert!(bench.observe(&[good()]).write_back_allowed);
    }
}

#[test]
fn charge_has_hysteresis() {
    let mut bench = Bench::new("a");
    let charged = |percent| [reading("OL CHRG", percent, 1800)];
    let waiting = bench.observe_for(100, &charged(84));
    assert!(waiting.reason.contains("charged to 84 %, needs 85 %"), "{}", waiting.reason);
    assert!(bench.observe_for(61, &charged(85)).write_back_allowed);
    assert!(bench.observe_for(100, &charged(79)).write_back_allowed, "high enough to continue");
    assert!(!bench.observe(&charged(78)).write_back_allowed);
    assert!(!bench.observe_for(100, &charged(84)).write_back_allowed, "not high enough to begin");
    // Any interruption requires the upper threshold again.
    assert!(bench.observe_for(61, &charged(85)).write_back_allowed);
    bench.observe(&[trouble()]);
    assert!(!bench.observe_for(100, &charged(84)).write_back_allowed);
}

#[test]
fn write_back_ends_when_the_reading_expires() {
    let mut bench = Bench::safe();
    assert!(bench.controller.decide(bench.now_ms + 3000, &EXPOSED).write_back_allowed);
    let decision = bench.controller.decide(bench.now_ms + 3001, &EXPOSED);
    assert_eq!(decision.state, PowerState::Unknown(Unknown::Stale(3001)));
    assert!(!decision.write_back_allowed && !decision.dump_now);
    let old = UpsReading { age_ms: u64::MAX, ..good().unwrap() };
    bench.controller.observe(0, bench.now_ms + 3001, Ok(old));
    assert_eq!(bench.controller.decide(bench.now_ms + 3001, &EXPOSED).state.as_str(), "unknown");
}

#[test]
fn reading_has_the_age_it_reports() {
    let mut bench = Bench::safe();
    let aged = |age_ms| good().map(|reading| UpsReading { age_ms, ..reading });
    assert!(bench.observe(&[aged(3000)]).write_back_allowed);
    let decision = bench.controller.decide(bench.now_ms + 1, &EXPOSED);
    assert_eq!(decision.state, PowerState::Unknown(Unknown::Stale(3001)));
    assert_eq!(decision.forecast.battery_seconds, None, "the runtime is unknown");
    let decision = bench.observe(&[aged(4000)]);
    assert_eq!(decision.state, PowerState::Unknown(Unknown::Stale(4000)));
}

#[test]
fn expired_reading_orders_no_dump() {
    for word in ["OL", "OB DISCHRG", "OB LB"] {
        let mut controller = controller_of("a");
        let old = reading(word, 50, 600).map(|old| UpsReading { age_ms: 86_400_000, ..old });
        controller.observe(0, 0, old);
        let decision = controller.decide(0, &EXPOSED);
        assert_eq!(decision.state, PowerState::Unknown(Unknown::Stale(86_400_000)));
        assert!(!decision.write_back_allowed && !decision.dump_now, "{word}: {decision:?}");
    }
}

#[test]
fn flapping_does_not_enable_write_back() {
    let mut bench = Bench::safe();
    for _ in 0..1000 {
        assert!(!bench.observe(&[battery()]).write_back_allowed);
        assert!(!bench.observe(&[good()]).write_back_allowed);
    }
}

#[test]
fn clock_jump_expires_readings_and_backward_clock_stands_still() {
    let mut bench = Bench::new("a");
    bench.observe_for(30, &[good()]);
    bench.now_ms += 3_600_000;
    assert!(!bench.observe(&[good()]).write_back_allowed, "the jump does not count as safe time");
    assert!(!bench.observe_for(59, &[good()]).write_back_allowed);
    assert!(bench.observe(&[good()]).write_back_allowed);
    bench.now_ms -= 500_000;
    assert!(bench.observe(&[good()]).write_back_allowed);
    assert!(bench.controller.decide(bench.now_ms + 3000, &EXPOSED).write_back_allowed);
    assert!(!bench.controller.decide(bench.now_ms + 3001, &EXPOSED).write_back_allowed);
    bench.controller.observe(0, u64::MAX, good());
    bench.controller.observe(0, 0, good());
    bench.controller.observe(9, 0, good());
    assert!(!bench.controller.decide(0, &EXPOSED).write_back_allowed);
}

#[test]
fn dump_begins_in_time_on_battery() {
    let mut bench = Bench::safe();
    // 80 % of 600 s, less 60 s of margin and 7 s of dump.
    assert_eq!(bench.observe(&[battery()]).dump_in_ms, Some(413_000));
    assert_eq!(bench.controller.decide(bench.now_ms + 1500, &EXPOSED).dump_in_ms, Some(411_500));
    let clean = Exposure { dirty_bytes: 0, ..EXPOSED };
    assert_eq!(bench.controller.decide(bench.now_ms + 1500, &clean).dump_in_ms, None);
    let decision = bench.observe(&[reading("OB DISCHRG", 50, 84)]);
    assert_eq!((decision.dump_in_ms, decision.dump_now), (Some(200), false));
    let decision = bench.controller.decide(bench.now_ms + 200, &EXPOSED);
    assert_eq!(decision.state, PowerState::Critical(Critical::Deadline));
    assert!(decision.dump_now);
    let slow = Exposure { vault_bytes_per_second: None, ..EXPOSED };
    let mut bench = Bench::new("a");
    bench.observe(&[battery()]);
    assert!(
        bench.controller.decide(bench.now_ms, &slow).dump_now,
        "the duration of the dump is unknown"
    );
}

#[test]
fn calibration_halts_no_writes_unless_the_runtime_or_a_shutdown_says_so() {
    let clean = Exposure { dirty_bytes: 0, ..EXPOSED };
    let calibrating = |runtime| reading("OB CAL LB", 10, runtime);
    let mut bench = Bench::safe();
    let decide = |bench: &mut Bench, observation: UpsObservation| {
        bench.now_ms += 1000;
        bench.controller.observe(0, bench.now_ms, observation);
        bench.controller.decide(bench.now_ms, &clean)
    };
    for runtime in (1..300).rev() {
        let decision = decide(&mut bench, calibrating(runtime * 10));
        assert!(!decision.write_back_allowed && !decision.dump_now, "{decision:?}");
        assert!(decision.drain_now);
    }
    // With dirty data, the dump begins in time as on battery.
    let mut late = Bench::safe();
    assert_eq!(late.observe(&[calibrating(600)]).dump_in_ms, Some(413_000));
    assert!(late.observe(&[calibrating(60)]).dump_now);
    // Power may fail during a calibration.
    for last in [calibrating(0), reading("FSD OB CAL LB", 10, 600), reading("OB LB", 10, 600)] {
        let mut bench = bench_after(&bench);
        assert!(decide(&mut bench, last.clone()).dump_now, "{last:?}");
    }
    // It ends on mains.
    let decision = decide(&mut bench, reading("OL CHRG", 10, 60));
    assert!(!decision.dump_now, "{decision:?}");
}

fn bench_after(bench: &Bench) -> Bench {
    Bench { controller: bench.controller.clone(), now_ms: bench.now_ms }
}

#[test]
fn dump_stays_ordered_until_mains_is_stable() {
    for word in ["OB LB", "FSD OL", "OL OB LB"] {
        let mut bench = Bench::safe();
        let critical = [reading(word, 30, 200)];
        assert!(bench.observe(&critical).dump_now, "{word}");
        // Mains power flaps, and the server is unreachable for a while.
        for _ in 0..9 {
            assert!(bench.observe(&[good()]).dump_now);
            assert!(bench.observe(&critical).dump_now);
        }
        assert!(bench.observe_for(100, &[trouble()]).dump_now);
        assert!(bench.observe_for(10, &[good()]).dump_now);
        let decision = bench.observe(&[good()]);
        assert!(!decision.dump_now && decision.drain_now);
    }
}

#[test]
fn unreachable_ups_on_battery_is_lost() {
    let mut bench = Bench::safe();
    bench.observe(&[battery()]);
    let decision = bench.observe_for(5, &[trouble()]);
    assert!(!decision.dump_now && decision.dump_in_ms == Some(408_000), "{decision:?}");
    let decision = bench.observe(&[trouble()]);
    assert_eq!(decision.state, PowerState::Critical(Critical::LostOnBattery));
    assert!(decision.dump_now);
}

#[test]
fn unreachable_ups_on_mains_is_assumed_on_battery() {
    let mut bench = Bench::safe();
    let decision = bench.observe(&[trouble()]);
    assert!(!decision.dump_now && decision.drain_now);
    // 80 % of 1,800 s, less 67 s, and the second that has passed.
    assert_eq!(decision.dump_in_ms, Some(1_372_000));
    assert!(bench.observe_for(1372, &[trouble()]).dump_now);
}

#[test]
fn no_write_back_without_a_measured_vault() {
    let mut bench = Bench::safe();
    for speed in [None, Some(0)] {
        let unmeasured = Exposure { dirty_bytes: 0, vault_bytes_per_second: speed };
        let decision = bench.controller.decide(bench.now_ms, &unmeasured);
        assert!(!decision.write_back_allowed);
        assert!(decision.reason.contains("not measured"), "{}", decision.reason);
    }
    let too_much = Exposure { dirty_bytes: u64::MAX, ..EXPOSED };
    let decision = bench.controller.decide(bench.now_ms, &too_much);
    assert!(decision.write_back_allowed && decision.drain_now, "more than can be dumped");
}

#[test]
fn or_needs_one_ups_and_needs_both() {
    let words = |a: &str, b: &str| {
        let observation =
            |status: &str| if status == "-" { trouble() } else { reading(status, 95, 1800) };
        [observation(a), observation(b)]
    };
    for (text, a, b, word, dump) in [
        ("a or b", "OL", "OB", "safe", false),
        ("a or b", "OB LB", "OL", "safe", false),
        ("a or b", "OL", "-", "safe", false),
        ("a or b", "OB LB", "OB", "on-battery", false),
        ("a or b", "OB LB", "OB LB", "critical", true),
        ("a or b", "OB LB", "OFF", "critical", true),
        ("a or b", "OB", "OFF", "on-battery", false),
        ("a or b", "OB LB", "-", "critical", true),
        ("a or b", "OB", "-", "on-battery", false),
        ("a or b", "-", "-", "unknown", false),
        ("a or b", "OB LB", "OL RB", "not-ready", false),
        ("a and b", "OL", "OB", "on-battery", false),
        ("a and b", "OL", "OL RB", "not-ready", false),
        ("a and b", "OL", "OFF", "not-ready", false),
        ("a and b", "OL", "-", "unknown", false),
        ("a and b", "OB", "-", "unknown", false),
        ("a and b", "OL", "OB LB", "critical", true),
        ("a and b", "OB LB", "-", "critical", true),
    ] {
        let mut bench = Bench::new(text);
        assert!(bench.observe_for(61, &[good(), good()]).write_back_allowed);
        let decision = bench.observe(&words(a, b));
        assert_eq!(decision.state.as_str(), word, "{text}: {a}, {b}: {decision:?}");
        assert_eq!(decision.dump_now, dump, "{text}: {a}, {b}");
        assert_eq!(decision.write_back_allowed, word == "safe", "{text}: {a}, {b}");
    }
}

#[test]
fn two_alternating_upses_are_not_safe() {
    let mut bench = Bench::new("a or b");
    for _ in 0..200 {
        assert!(!bench.observe(&[good(), battery()]).write_back_allowed);
        assert!(!bench.observe(&[battery(), good()]).write_back_allowed);
    }
}

#[test]
fn ups_without_reading_stops_no_writes_if_nothing_is_dirty() {
    let mut controller = controller_of("a and b");
    controller.observe(0, 0, battery());
    let clean = Exposure { dirty_bytes: 0, ..EXPOSED };
    assert!(!controller.decide(0, &clean).dump_now);
    assert!(controller.decide(0, &EXPOSED).dump_now);
}

#[test]
fn reason_names_the_ups() {
    let mut bench = Bench::new("rack-a and rack-b");
    let decision = bench.observe(&[good(), reading("OL RB", 100, 1800)]);
    let expected = "no write-back: not protected against power failure (rack-a: safe, settling for \
                    another 60 s; rack-b: the battery must be replaced)";
    assert_eq!(decision.reason, expected);
    let words: Vec<_> = bench
        .controller
        .upses()
        .map(|(name, verdict, reading)| {
            format!("{name} {} {}", verdict.as_str(), reading.is_some())
        })
        .collect();
    assert_eq!(words, ["rack-a not-ready true", "rack-b not-ready true"]);
}
