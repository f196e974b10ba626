//! The values of the settings of UPSes: names, sources of readings, percentages, times.
//!
//! The crate `power` reads and judges UPSes.

use crate::{ConfigError, Mistake};
use std::{fmt, path::PathBuf, str::FromStr};

/// Longest specification of a UPS, in bytes.
const UPS_BYTES_MAX: usize = 4096;

/// The source of a UPS's readings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpsSource {
    /// A UPS of a NUT server: `NAME`, `NAME@HOST` or `NAME@HOST:PORT`.
    Nut(String),
    /// A program and its arguments, which prints `key: value` lines.
    Command(Vec<String>),
    /// A file of such lines, rewritten regularly.
    File(PathBuf),
}

/// A UPS: its name and the source of its readings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ups {
    /// The name in the status and in [`crate::UpsSettings::needed`].
    pub name: String,
    /// The source of readings.
    pub source: UpsSource,
    /// The specification, as the operator wrote it.
    text: String,
}

impl fmt::Display for Ups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

impl FromStr for Ups {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem: &str| {
            let shown: String = text.chars().take(256).collect();
            Err(ConfigError::new(
                Mistake::Value,
                format!("UPS {shown:?} {problem}"),
                "write NAME@HOST:PORT as for Network UPS Tools, NAME=command:PROGRAM or \
                 NAME=file:PATH",
            ))
        };
        if text.len() > UPS_BYTES_MAX {
            return fail("is too long");
        }
        if text.chars().any(char::is_control) {
            return fail("contains a control character");
        }
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, rest) = named.map_or((None, text), |(name, rest)| (Some(name), rest));
        let source = if let Some(command) = rest.strip_prefix("command:") {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return fail("names no program");
            }
            UpsSource::Command(words)
        } else if let Some(path) = rest.strip_prefix("file:") {
            if path.is_empty() {
                return fail("names no file");
            }
            UpsSource::File(path.into())
        } else {
            UpsSource::Nut(rest.to_owned())
        };
        let name = match (name, &source) {
            (Some(name), _) => name,
            (None, UpsSource::Nut(address)) => address.split('@').next().unwrap_or_default(),
            (None, _) => return fail("needs a name"),
        };
        if !is_name(name) {
            return fail("needs a name of letters, digits, '-', '_' and '.'");
        }
        Ok(Self { name: name.to_owned(), source, text: text.to_owned() })
    }
}

/// A whole number from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Percent(pub u32);

impl FromStr for Percent {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_suffix('%').unwrap_or(text).trim_end().parse() {
            Ok(percent) if (1..=100).contains(&percent) => Ok(Self(percent)),
            _ => Err(ConfigError::new(
                Mistake::Value,
                format!("invalid percentage '{text}'"),
                "write a whole number from 1 to 100",
            )),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of seconds, at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seconds(pub u32);

impl FromStr for Seconds {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(seconds) if seconds <= 86_400 => Ok(Self(seconds)),
            _ => Err(ConfigError::new(
                Mistake::Value,
                format!("invalid number of seconds '{text}'"),
                "write a whole number from 0 to 86400",
            )),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    fn ups(text: &str) -> Ups {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_of_a_ups_is_parsed_and_displayed() {
        for (text, name, source) in [
            ("rack-a@192.0.2.7", "rack-a", UpsSource::Nut("rack-a@192.0.2.7".into())),
            ("lab", "lab", UpsSource::Nut("lab".into())),
            ("left=ups@nas:99", "left", UpsSource::Nut("ups@nas:99".into())),
            (
                "shed=command:/bin/read --unit=1 x",
                "shed",
                UpsSource::Command(vec!["/bin/read".into(), "--unit=1".into(), "x".into()]),
            ),
            ("shed=file:/run/a b", "shed", UpsSource::File("/run/a b".into())),
        ] {
            let ups = ups(text);
            assert_eq!((ups.name.as_str(), &ups.source), (name, &source));
            assert_eq!(ups.to_string(), text);
        }
    }

    #[test]
    fn an_invalid_ups_is_refused() {
        let long = format!("a@{}", "h".repeat(5000));
        let bad =
            ["", "@host", "a b@host", "command:/x", "file:/x", "a=command: ", "a=file:", "a\n"];
        for text in bad.into_iter().chain([long.as_str()]) {
            let error = text.parse::<Ups>().unwrap_err();
            assert!(error.explained().contains("NAME@HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn percentages_and_seconds_are_limited() {
        assert_eq!("79%".parse(), Ok(Percent(79)));
        assert_eq!("100".parse(), Ok(Percent(100)));
        for text in ["0", "101", "-1", "", "many", "7.5"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert_eq!("0".parse(), Ok(Seconds(0)));
        for text in ["86401", "-1", "", "1m"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }
}
