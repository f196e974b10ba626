//! The state that a UPS reports at one moment.
//!
//! An invalid value is recorded as an [`InvalidValue`], and the variable counts as missing: a UPS
//! that reports an invalid charge counts as one that reports none.

use crate::UpsFlags;
use std::fmt;

/// Longest valid runtime in seconds: 30 days. Some UPSes report 65,535 minutes for "unknown".
pub const RUNTIME_SECONDS_MAX: u32 = 30 * 24 * 3600;
/// Largest valid load in percent. A UPS can carry more than its rating for a while.
pub const LOAD_PERCENT_MAX: f64 = 200.0;
/// Maximum length of a value in messages, in characters.
const SHOWN_CHARS_MAX: usize = 40;
/// Maximum number of lines in a text with variables.
const LINES_MAX: usize = 2048;

/// A reading of a UPS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpsReading {
    /// The flags of `ups.status`; `None` if the variable is missing.
    pub status: Option<UpsFlags>,
    /// `battery.charge`, 0 to 100 percent.
    pub charge_percent: Option<f64>,
    /// `battery.runtime` in whole seconds, rounded down, at most [`RUNTIME_SECONDS_MAX`].
    pub runtime_seconds: Option<u32>,
    /// `ups.load`, 0 to 200 percent of the rated load.
    pub load_percent: Option<f64>,
    /// `battery.charge.low`: the charge at which the UPS sets `LB`, in percent.
    pub charge_low_percent: Option<f64>,
    /// `battery.runtime.low`: the runtime at which the UPS sets `LB`, in seconds.
    pub runtime_low_seconds: Option<u32>,
    /// `ups.mfr` and `ups.model`, for display.
    pub model: Option<String>,
    /// `ups.alarm`, for display.
    pub alarm: Option<String>,
    /// `ups.test.result`: the result of the last battery test, for display.
    pub test_result: Option<String>,
    /// `battery.mfr.date`, or `battery.date`: when the battery was made or installed, as reported.
    pub battery_date: Option<String>,
    /// Variables with invalid values.
    pub invalid: Vec<InvalidValue>,
    /// Age at delivery in milliseconds; 0 for a value just read from the UPS.
    pub age_ms: u64,
}

/// An invalid value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// The variable.
    pub name: &'static str,
    /// Its value, truncated.
    pub value: String,
    /// What was expected.
    pub expected: &'static str,
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {} '{}': expected a {}", self.name, self.value, self.expected)
    }
}

/// A text that does not consist of `key: value` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A line has no colon.
    #[error("line {line} is not of the form 'key: value'")]
    Line {
        /// The line number, from 1.
        line: usize,
    },
    /// Too many lines.
    #[error("more than {LINES_MAX} lines")]
    Long,
    /// No lines.
    #[error("no 'key: value' lines")]
    Empty,
}

impl UpsReading {
    /// Builds a reading from variables and their values; ignores unknown variables. A variable with
    /// two different values is invalid.
    pub fn from_variables<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut collector = Collector::default();
        for (name, value) in variables {
            collector.take(name, value);
        }
        collector.finish()
    }

    /// Parses lines of `key: value`, as printed by `upsc`. Ignores blank lines and lines that begin
    /// with `#`.
    ///
    /// # Errors
    /// If a line has no colon, or there are no lines or too many.
    pub fn from_lines(text: &str) -> Result<Self, TextError> {
        let mut collector = Collector::default();
        let mut count = 0;
        for (index, line) in text.lines().enumerate() {
            if index >= LINES_MAX {
                return Err(TextError::Long);
            }
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once(':').ok_or(TextError::Line { line: index + 1 })?;
            collector.take(name.trim(), value.trim());
            count += 1;
        }
        if count == 0 { Err(TextError::Empty) } else { Ok(collector.finish()) }
    }
}

/// The variables used.
const NAMES: [&str; 12] = [
    "ups.status",
    "battery.charge",
    "battery.runtime",
    "ups.load",
    "battery.charge.low",
    "battery.runtime.low",
    "ups.mfr",
    "ups.model",
    "ups.alarm",
    "ups.test.result",
    "battery.mfr.date",
    "battery.date",
];

#[derive(Default)]
struct Collector {
    values: [Option<String>; NAMES.len()],
    invalid: Vec<InvalidValue>,
}

impl Collector {
    fn take(&mut self, name: &str, value: &str) {
        let Some(at) = NAMES.iter().position(|known| *known == name) else { return };
        match &self.values[at] {
            Some(first) if first != value => {
                let value = format!("{} and {}", shown(first), shown(value));
                if !self.is_invalid(at) {
                    self.add_invalid(at, value, "single value");
                }
            }
            Some(_) => {}
            None => self.values[at] = Some(value.to_owned()),
        }
    }

    fn is_invalid(&self, at: usize) -> bool {
        self.invalid.iter().any(|value| value.name == NAMES[at])
    }

    fn add_invalid(&mut self, at: usize, value: String, expected: &'static str) {
        self.invalid.push(InvalidValue { name: NAMES[at], value, expected });
    }

    fn finish(mut self) -> UpsReading {
        let status = self.text(0).map(|text| UpsFlags::parse(&text));
        let charge_percent = self.number(1, 100.0, "percentage");
        let runtime_seconds = self.seconds(2);
        let load_percent = self.number(3, LOAD_PERCENT_MAX, "load in percent");
        let charge_low_percent = self.number(4, 100.0, "percentage");
        let runtime_low_seconds = self.seconds(5);
        let names = [self.text(6), self.text(7)];
        let names: Vec<String> = names.into_iter().flatten().map(|name| shown(&name)).collect();
        let model = (!names.is_empty()).then(|| names.join(" "));
        let alarm = self.text(8).map(|alarm| shown(&alarm));
        let test_result = self.text(9).map(|result| shown(&result));
        let dates = [self.text(10), self.text(11)];
        let battery_date = dates.into_iter().flatten().next().map(|date| shown(&date));
        UpsReading {
            status,
            charge_percent,
            runtime_seconds,
            load_percent,
            charge_low_percent,
            runtime_low_seconds,
            model,
            alarm,
            test_result,
            battery_date,
            invalid: self.invalid,
            age_ms: 0,
        }
    }

    fn text(&mut self, at: usize) -> Option<String> {
        self.values[at].take()
    }

    /// A number from 0 to `max`. `None` if the variable had two different values.
    fn number(&mut self, at: usize, max: f64, expected: &'static str) -> Option<f64> {
        let text = self.text(at)?;
        if self.is_invalid(at) {
            return None;
        }
        // Digits and a decimal point only: no sign, no exponent, no "inf".
        let plain = text.len() <= 16
            && text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = text.parse::<f64>().ok().filter(|number| plain && *number <= max);
        if number.is_none() {
            self.add_invalid(at, shown(&text), expected);
        }
        number
    }

    fn seconds(&mut self, at: usize) -> Option<u32> {
        let max = f64::from(RUNTIME_SECONDS_MAX);
        self.number(at, max, "time in seconds").map(|seconds| seconds as u32)
    }
}

/// A value as shown in messages: truncated, control characters replaced.
fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(SHOWN_CHARS_MAX).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StatusFlag;
    use proptest::prelude::*;

    fn charge(value: &str) -> UpsReading {
        UpsReading::from_variables([("ups.status", "OL"), ("battery.charge", value)])
    }

    #[test]
    fn parses_the_output_of_upsc() {
        let text = "# a comment\nbattery.charge: 98.5\nbattery.runtime: 1800.75\n\
                    ups.load: 120\nups.mfr: Lab\nups.model: Dummy: two\nups.status: OL CHRG\n\n\
                    battery.charge.low: 20\nbattery.runtime.low: 120\ndriver.name: dummy-ups\n\
                    ups.test.result: Done and passed\nbattery.date: 2020/01\n\
                    battery.mfr.date: 2024/05\n";
        let reading = UpsReading::from_lines(text).unwrap();
        assert!(reading.status.as_ref().unwrap().has(StatusFlag::Chrg));
        assert_eq!(reading.charge_percent, Some(98.5));
        assert_eq!(reading.runtime_seconds, Some(1800));
        assert_eq!(reading.load_percent, Some(120.0));
        assert_eq!(reading.charge_low_percent, Some(20.0));
        assert_eq!(reading.runtime_low_seconds, Some(120));
        assert_eq!(reading.model.as_deref(), Some("Lab Dummy: two"));
        assert_eq!(reading.test_result.as_deref(), Some("Done and passed"));
        assert_eq!(reading.battery_date.as_deref(), Some("2024/05"));
        assert_eq!((reading.invalid.len(), reading.age_ms), (0, 0));
    }

    #[test]
    fn rejects_text_of_another_form() {
        assert_eq!(UpsReading::from_lines("a: b\n\nwhat"), Err(TextError::Line { line: 3 }));
        assert_eq!(UpsReading::from_lines(" \n# x\n"), Err(TextError::Empty));
        assert_eq!(UpsReading::from_lines(&"a: b\n".repeat(3000)), Err(TextError::Long));
    }

    #[test]
    fn invalid_values_are_reported_and_count_as_missing() {
        for value in ["-1", "101", "100.01", "NaN", "inf", "abc", "1e1", "", "+5", "1.2.3", ".5"] {
            let reading = charge(value);
            assert_eq!(reading.charge_percent, None, "{value}");
            assert_eq!(reading.invalid.len(), 1, "{value}");
        }
        let reading = charge("abc");
        let text = "invalid battery.charge 'abc': expected a percentage";
        assert_eq!(reading.invalid[0].to_string(), text);
        for value in ["3932100", "99999999999999999999999999", "-1"] {
            let reading = UpsReading::from_variables([("battery.runtime", value)]);
            assert_eq!((reading.runtime_seconds, reading.invalid.len()), (None, 1), "{value}");
        }
    }

    #[test]
    fn repeated_variable_must_have_the_same_value() {
        let twice =
            |a, b| UpsReading::from_variables([("battery.charge", a), ("battery.charge", b)]);
        assert_eq!(twice("90", "90").charge_percent, Some(90.0));
        let reading = twice("90", "10");
        assert_eq!((reading.charge_percent, reading.invalid.len()), (None, 1));
    }

    proptest! {
        #[test]
        fn values_are_in_range_for_any_text(
            text in "((battery\\.(charge|runtime)|ups\\.load|x): ?[-+0-9.eNaInf]{0,12}\n){0,9}"
        ) {
            if let Ok(reading) = UpsReading::from_lines(&text) {
                prop_assert!(reading.charge_percent.is_none_or(|c| (0.0..=100.0).contains(&c)));
                prop_assert!(reading.runtime_seconds.is_none_or(|s| s <= RUNTIME_SECONDS_MAX));
                prop_assert!(reading.load_percent.is_none_or(|l| (0.0..=200.0).contains(&l)));
            }
        }
    }
}
