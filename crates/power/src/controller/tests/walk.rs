//! Exhaustive test: all sequences of six events.
//!
//! The times are shortened so that a sequence can reach every state: settling takes two polls, and
//! a reading is valid for two and a half polls.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Online,
    Charging(u32),
    Battery,
    Low,
    /// The battery is low because of a test.
    Calibration,
    Replace,
    Shutdown,
    Nonsense,
    ReadError,
    /// No observation until the reading expires.
    Silence,
    /// No observation for one poll.
    Pause,
}

const EVENTS: [Event; 12] = [
    Event::Online,
    Event::Charging(70),
    Event::Charging(82),
    Event::Battery,
    Event::Low,
    Event::Calibration,
    Event::Replace,
    Event::Shutdown,
    Event::Nonsense,
    Event::ReadError,
    Event::Silence,
    Event::Pause,
];

/// The expected state: when the current safe and charged period began, and the time of the last
/// reading.
#[derive(Clone, Default)]
struct Ledger {
    charged_since_ms: Option<u64>,
    reading_ms: u64,
    is_safe: bool,
    critical: bool,
}

fn observation(event: Event) -> Option<UpsObservation> {
    match event {
        Event::Online => Some(reading("OL", 100, 1800)),
        Event::Charging(percent) => Some(reading("OL CHRG", percent, 1800)),
        Event::Battery => Some(reading("OB DISCHRG", 95, 600)),
        Event::Low => Some(reading("OB DISCHRG LB", 10, 60)),
        Event::Calibration => Some(reading("OB CAL LB", 10, 600)),
        Event::Replace => Some(reading("OL RB", 100, 1800)),
        Event::Shutdown => Some(reading("FSD OL", 100, 1800)),
        Event::Nonsense => {
            Some(Ok(UpsReading::from_lines("ups.status: OL\nbattery.charge: abc").unwrap()))
        }
        Event::ReadError => Some(trouble()),
        Event::Silence | Event::Pause => None,
    }
}

struct Walk {
    rules: Rules,
    steps: u64,
    allowed: u64,
}

impl Walk {
    fn step(
        &mut self,
        mut controller: PowerController,
        mut ledger: Ledger,
        now_ms: u64,
        depth: u32,
    ) {
        if depth == 0 {
            return;
        }
        let first = (controller.clone(), ledger.clone());
        for event in EVENTS {
            let now_ms = now_ms + if event == Event::Silence { 2501 } else { 1000 };
            (controller, ledger) = first.clone();
            if event == Event::Silence {
                // A reading is valid up to and including its last millisecond.
                self.check(&mut controller, &ledger, now_ms - 1, event);
            }
            if let Some(observation) = observation(event) {
                controller.observe(0, now_ms, observation);
            }
            ledger.apply(event, now_ms, &self.rules);
            self.check(&mut controller, &ledger, now_ms, event);
            self.step(controller.clone(), ledger.clone(), now_ms, depth - 1);
        }
    }

    fn check(
        &mut self,
        controller: &mut PowerController,
        ledger: &Ledger,
        now_ms: u64,
        event: Event,
    ) {
        let decision = controller.decide(now_ms, &EXPOSED);
        let settled =
            ledger.charged_since_ms.is_some_and(|since| now_ms - since >= self.rules.settle_ms);
        let fresh = now_ms - ledger.reading_ms <= self.rules.reading_valid_ms;
        let may = ledger.is_safe && settled && fresh && !decision.dump_now;
        assert_eq!(decision.write_back_allowed, may, "{event:?} at {now_ms}: {decision:?}");
        assert!(decision.drain_now || may);
        assert!(!ledger.critical || decision.dump_now, "{event:?}: {decision:?}");
        assert!(may || decision.dirty_bytes_max == 0);
        self.steps += 1;
        self.allowed += u64::from(may);
    }
}

impl Ledger {
    fn apply(&mut self, event: Event, now_ms: u64, rules: &Rules) {
        let stale = now_ms - self.reading_ms > rules.reading_valid_ms;
        let percent = match event {
            Event::Online => 100,
            Event::Charging(percent) => percent,
            Event::Pause if !stale => return,
            _ => 0,
        };
        if !matches!(event, Event::Pause | Event::Silence) {
            self.reading_ms = now_ms;
        }
        self.critical = matches!(event, Event::Low | Event::Shutdown);
        self.is_safe = percent >= 79;
        if !self.is_safe || stale {
            self.charged_since_ms = None;
        }
        if percent >= 85 {
            self.charged_since_ms.get_or_insert(now_ms);
        }
    }
}

#[test]
fn write_back_is_never_allowed_when_unsafe_in_any_six_events() {
    let rules =
        Rules { settle_ms: 1900, reading_valid_ms: 2500, mains_stable_ms: 900, ..Rules::default() };
    let controller = PowerController::new(Expression::parse("a").unwrap(), rules);
    let mut walk = Walk { rules, steps: 0, allowed: 0 };
    walk.step(controller, Ledger::default(), 1_000_000, 6);
    println!("{} steps, write-back allowed in {}", walk.steps, walk.allowed);
    assert!(walk.steps > 1_900_000 && walk.allowed > 10_000);
}
