//! The controller, compared with a naive oracle that keeps the whole history and scans it for each
//! question.

use super::*;
use proptest::prelude::*;

/// What a supply said, and when.
#[derive(Clone, Debug)]
struct Said {
    at_ms: u64,
    /// The charge in percent, if all else was safe.
    safe_percent: Option<u32>,
}

#[derive(Clone, Debug)]
enum Step {
    Say { supply: usize, safe_percent: Option<u32> },
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
            .prop_map(|(supply, safe_percent)| Step::Say { supply, safe_percent }),
        5 => (0u64..900).prop_map(Step::Wait),
        1 => (2000u64..5000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Whether the supply is safe at `now_ms`: there is a reading from which on all were safe and
/// none late, it was charged enough, and it is long enough ago.
fn is_safe(history: &[Said], now_ms: u64, rules: &Rules) -> bool {
    (0..history.len()).any(|first| {
        let run = &history[first..];
        let ends = run.iter().skip(1).map(|said| said.at_ms).chain([now_ms]);
        let whole = run.iter().zip(ends).all(|(said, end)| {
            said.safe_percent.is_some_and(|percent| f64::from(percent) >= rules.charge_off_percent)
                && end - said.at_ms <= rules.reading_valid_ms
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
            let mut guard = PowerController::new(Expression::parse(text).unwrap(), rules);
            let mut history: [Vec<Said>; 3] = Default::default();
            let mut now_ms = 500;
            for step in &steps {
                match *step {
                    Step::Wait(ms) => now_ms += ms,
                    Step::Say { supply, safe_percent } => {
                        let word = safe_percent.map_or_else(trouble, |percent| {
                            reading("OL", percent, 1800)
                        });
                        guard.observe(supply, now_ms, word);
                        history[supply].push(Said { at_ms: now_ms, safe_percent });
                    }
                }
                let safe = history.iter().filter(|said| is_safe(said, now_ms, &rules)).count();
                let clean = Exposure { dirty_bytes: 0, ..EXPOSED };
                let decision = guard.decide(now_ms, &clean);
                prop_assert_eq!(decision.write_back_allowed, safe >= needed, "{:?}", decision);
            }
        }
    }

    #[test]
    fn never_panics_for_any_time_or_status(
        steps in proptest::collection::vec(
            (any::<u64>(), 0usize..4, ".{0,12}", any::<u64>(), any::<u64>(), any::<u64>()), 0..40)
    ) {
        let mut guard = guard_of("2 of (a, b, c)");
        for (now_ms, supply, status, age_ms, dirty_bytes, speed) in steps {
            let mut word = Reading::from_variables([("ups.status", &*status)]);
            word.age_ms = age_ms;
            guard.observe(supply, now_ms, Ok(word));
            let exposure = Exposure { dirty_bytes, vault_bytes_per_second: Some(speed) };
            prop_assert!(!guard.decide(now_ms, &exposure).write_back_allowed);
        }
    }
}
