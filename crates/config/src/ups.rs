//! The settings of UPSes: names, sources of readings, and the conditions for write-back.
//!
//! The crate `power` reads and judges UPSes.

use crate::{ConfigError, ConfigResult, Mistake, Settings, layer::HAS_DEFAULT};
use forebay_types::{Action, PROGRAM_SETTINGS, Remedy, Setting};
use std::{collections::HashSet, fmt, path::PathBuf, str::FromStr};

/// Longest specification of a UPS, in bytes.
const UPS_BYTES_MAX: usize = 4096;
/// Maximum number of UPSes.
const UPSES_MAX: usize = 16;
/// The difference between the charge at which write-back may begin and the charge at which it ends,
/// in percent. Otherwise a battery at the threshold would switch write-back on and off.
const HYSTERESIS_PERCENT: u32 = 6;

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
    /// The name in the status and in [`UpsSettings::needed`].
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

/// The checked UPS settings. The expression is parsed later, by the crate `power`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsSettings {
    /// The UPSes; empty if power is not monitored.
    pub upses: Vec<Ups>,
    /// The expression of the UPSes that must be safe, as in `any 1 of (a, b)`. By default it names
    /// all.
    pub needed: String,
    /// User and password at the NUT servers. With a login, a server waits for Forebay before it
    /// cuts the power.
    pub login: Option<(String, Secret)>,
    /// The authority of the NUT servers' certificates, PEM. Without it nothing is encrypted.
    pub ca: Option<PathBuf>,
    /// The charge below which write-back ends, in percent.
    pub charge_off_percent: u32,
    /// The charge at which write-back may begin, in percent.
    pub charge_on_percent: u32,
    /// How long the needed UPSes must have been safe before write-back begins, in seconds.
    pub settle_seconds: u32,
    /// The runtime kept in reserve, in seconds.
    pub margin_seconds: u32,
}

impl UpsSettings {
    /// Combines the settings, whose defaults are filled in, and checks that they are consistent.
    ///
    /// # Errors
    /// Two UPSes have one name, there are too many, or the login is incomplete.
    pub(crate) fn checked(settings: &Settings) -> ConfigResult<Self> {
        let upses = &settings.ups;
        if upses.len() > UPSES_MAX {
            let message = format!("{} UPSes exceed the limit of {UPSES_MAX}", upses.len());
            return fail(Mistake::Limit, message, "leave some out".into());
        }
        let mut names = HashSet::new();
        if let Some(twice) = upses.iter().find(|ups| !names.insert(&ups.name)) {
            let message = format!("two UPSes are called '{}'", twice.name);
            return fail(
                Mistake::Duplicate,
                message,
                "write NAME=UPS@HOST to give one another".into(),
            );
        }
        let login = match (settings.ups_user.clone(), settings.ups_password.clone()) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => {
                let message = "a login needs both user and password".to_owned();
                return fail(
                    Mistake::Value,
                    message,
                    "set ups-user and ups-password, or neither".into(),
                );
            }
        };
        let all = || {
            let names: Vec<&str> = upses.iter().map(|ups| ups.name.as_str()).collect();
            names.join(" and ")
        };
        let off = settings.ups_threshold.expect(HAS_DEFAULT).0;
        Ok(Self {
            needed: settings.ups_needed.clone().unwrap_or_else(all),
            login,
            ca: settings.ups_ca.clone(),
            charge_off_percent: off,
            charge_on_percent: (off + HYSTERESIS_PERCENT).min(100),
            settle_seconds: settings.ups_settle_seconds.expect(HAS_DEFAULT).0,
            margin_seconds: settings.ups_margin_seconds.expect(HAS_DEFAULT).0,
            upses: upses.clone(),
        })
    }
}

/// Refuses settings for UPSes without a UPS, even if their values are the defaults.
pub(crate) fn check_ups_named(given: &Settings) -> ConfigResult<()> {
    let is_given = |it: &Setting| it.key.starts_with("ups-") && !given.texts(it.key).is_empty();
    if given.ups.is_empty() && PROGRAM_SETTINGS.iter().any(is_given) {
        let message = "there are settings, but no UPS".to_owned();
        return fail(Mistake::Value, message, Action::set("ups", "NAME@HOST:PORT").into());
    }
    Ok(())
}

fn fail<T>(mistake: Mistake, message: String, remedy: Remedy) -> ConfigResult<T> {
    Err(ConfigError::new(mistake, format!("ups: {message}"), remedy))
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
    fn settings_must_be_consistent() {
        let upses = || vec![ups("a@x"), ups("b@y")];
        let two = || Settings { ups: upses(), ..Settings::defaults() };
        let checked = UpsSettings::checked(&two()).unwrap();
        assert_eq!(checked.needed, "a and b");
        assert_eq!((checked.charge_off_percent, checked.charge_on_percent), (79, 85));
        let high = Settings { ups_threshold: Some(Percent(97)), ..two() };
        assert_eq!(UpsSettings::checked(&high).unwrap().charge_on_percent, 100);
        for (settings, part) in [
            (Settings { ups_user: Some("u".into()), ..two() }, "both user and password"),
            (Settings { ups: vec![ups("a@x"), ups("a@y")], ..two() }, "called 'a'"),
            (Settings { ups: vec![ups("a"); 17], ..two() }, "exceed the limit of 16"),
        ] {
            let error = UpsSettings::checked(&settings).unwrap_err().explained();
            assert!(error.contains(part), "{error}");
        }
        assert!(UpsSettings::checked(&Settings::defaults()).unwrap().upses.is_empty());
        let alone = Settings { ups_needed: Some("a".into()), ..Settings::default() };
        let error = check_ups_named(&alone).unwrap_err().explained();
        assert!(error.contains("but no UPS"), "{error}");
        let used = Settings { ups: upses(), ..alone };
        for settings in [used, Settings::default()] {
            assert_eq!(check_ups_named(&settings), Ok(()));
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
