//! Replies of a NUT server, and UPS readings.
//!
//! The first byte chooses the fragmentation of the stream. Properties: fragmentation does not
//! matter; a list is within its limits; a protocol violation is final; a reading has values in
//! range or names the problem; and a safe state requires a status.

#![no_main]

use forebay_power::nut::{LINE_BYTES_MAX, LIST_ROWS_MAX, NutEvent, NutParser, NutReply};
use forebay_power::{PowerState, RUNTIME_SECONDS_MAX, Rules, StatusFlag, UpsReading, evaluate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let whole = events(input, usize::MAX);
    assert_eq!(whole, events(input, usize::from(*choice) + 1));
    for event in &whole {
        let NutEvent::Reply(reply) = event else { continue };
        if let NutReply::List { rows, .. } = reply {
            assert!(rows.len() <= LIST_ROWS_MAX);
            assert!(rows.iter().flatten().all(|word| word.len() <= 3 * LINE_BYTES_MAX));
        }
        if let Ok(variables) = reply.variables("lab") {
            assert_is_sound(&UpsReading::from_variables(variables));
        }
    }
    if let Ok(reading) = UpsReading::from_lines(&String::from_utf8_lossy(input)) {
        assert_is_sound(&reading);
    }
});

/// All events of the fragmented stream, up to a violation.
fn events(input: &[u8], piece_len: usize) -> Vec<NutEvent> {
    let mut parser = NutParser::new();
    let mut events = Vec::new();
    for piece in input.chunks(piece_len) {
        parser.push(piece);
        loop {
            match parser.next() {
                NutEvent::NeedMore => break,
                event @ NutEvent::Broken(_) => {
                    parser.push(b"OK\n");
                    assert_eq!(parser.next(), event);
                    events.push(event);
                    return events;
                }
                event => events.push(event),
            }
        }
    }
    events
}

fn assert_is_sound(reading: &UpsReading) {
    assert!(reading.charge_percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)));
    assert!(reading.runtime_seconds.is_none_or(|seconds| seconds <= RUNTIME_SECONDS_MAX));
    assert!(reading.invalid.iter().all(|problem| !problem.to_string().contains('\n')));
    let rules = Rules::default();
    let verdict = evaluate(reading, &rules);
    assert!(!verdict.to_string().is_empty());
    if verdict == PowerState::Safe {
        let status = reading.status.as_ref().expect("safe without a status");
        assert!(status.has(StatusFlag::Ol) && reading.invalid.is_empty());
        use StatusFlag::{Bypass, Cal, Fsd, Lb, Ob, Off, Rb};
        let bad = [Ob, Lb, Rb, Fsd, Bypass, Cal, Off];
        assert!(bad.iter().all(|flag| !status.has(*flag)));
        assert!(reading.charge_percent.is_some_and(|it| it >= rules.charge_off_percent));
        assert!(reading.runtime_seconds.is_some());
    }
}
