//! The controller, compared with a naive oracle that keeps the whole history and scans it for each
//! decision.

use super::*;
use proptest::prelude::*;

/// An observation of a UPS.
#[derive(Clone, Debug)]
struct Observed {
    at_ms: u64,
    /// The charge in percent; `None` for an error.
    safe_percent: Option<u32>,
}

#[derive(Clone, Debug)]
enum Step {
    Observe { ups: usize, safe_percent: Option<u32> },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let percent = prop_oneof![
        6 => (85u32..=100).prop_map(Some),
        2 => (79u32..85).prop_map(Some),
        1 => (0u32..79).prop_map(Some),
        1 => Just(None),
    ];
    let step = prop_oneof![
        6 => (0usize..3, percent)
            .prop_map(|(ups, safe_percent)| Step::Observe { ups, safe_percent }),
        5 => (0u64..900).prop_map(Step::Wait),
        1 => (2000u64..5000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Whether the UPS is safe at `now_ms`: some reading at least the settle time ago reached the upper
/// charge threshold, and since then each reading was safe and arrived before the previous one
/// expired.
fn is_safe(history: &[Observed], now_ms: u64, rules: &Rules) -> bool {
    (0..history.len()).any(|first| {
        let run = &history[first..];
        let ends = run.iter().skip(1).map(|observed| observed.at_ms).chain([now_ms]);
        let whole = run.iter().zip(ends).all(|(observed, end)| {
            observed
                .safe_percent
                .is_some_and(|percent| f64::from(percent) >= rules.charge_off_percent)
                && end - observed.at_ms <= rules.reading_valid_ms
        });
        let charged = run[0].safe_percent.map_or(0.0, f64::from) >= rules.charge_on_percent;
        whole && charged && now_ms - run[0].at_ms >= rules.settle_ms
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn controller_agrees_with_a_scan_of_the_history(steps in steps()) {
        let rules = Rules { settle_ms: 5000, ..Rules::default() };
        for (text, needed) in [("a and b and c", 3), ("2 of (a, b, c)", 2), ("a or b or c", 1)] {
            let mut controller = PowerController::new(Expression::parse(text).unwrap(), rules);
            let mut history: [Vec<Observed>; 3] = Default::default();
            let mut now_ms = 500;
            for step in &steps {
                match *step {
                    Step::Wait(ms) => now_ms += ms,
                    Step::Observe { ups, safe_percent } => {
                        let observation = safe_percent.map_or_else(trouble, |percent| {
                            reading("OL", percent, 1800)
                        });
                        controller.observe(ups, now_ms, observation);
                        history[ups].push(Observed { at_ms: now_ms, safe_percent });
                    }
                }
                let safe = history.iter().filter(|all| is_safe(all, now_ms, &rules)).count();
                let clean = Exposure { dirty_bytes: 0, ..EXPOSED };
                let decision = controller.decide(now_ms, &clean);
                prop_assert_eq!(decision.write_back_allowed, safe >= needed, "{:?}", decision);
            }
        }
    }

    #[test]
    fn never_panics_for_any_time_or_status(
        steps in proptest::collection::vec(
            (any::<u64>(), 0usize..4, ".{0,12}", any::<u64>(), any::<u64>(), any::<u64>()), 0..40)
    ) {
        let mut controller = controller_of("2 of (a, b, c)");
        for (now_ms, ups, status, age_ms, dirty_bytes, speed) in steps {
            let mut reading = UpsReading::from_variables([("ups.status", &*status)]);
            reading.age_ms = age_ms;
            controller.observe(ups, now_ms, Ok(reading));
            let exposure = Exposure { dirty_bytes, vault_bytes_per_second: Some(speed) };
            prop_assert!(!controller.decide(now_ms, &exposure).write_back_allowed);
        }
    }
}
