//! The settings of UPSes: names, sources of readings, and the conditions for write-back.
//!
//! The crate `power` reads and judges UPSes.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{Action, Remedy};
use std::{collections::HashSet, fmt, path::PathBuf, str::FromStr};

/// Longest specification of a UPS, in bytes.
const UPS_BYTES_MAX: usize = 4096;
/// Limit of UPSes.
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
    pub place: UpsSource,
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
        let place = if let Some(command) = rest.strip_prefix("command:") {
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
        let name = match (name, &place) {
            (Some(name), _) => name,
            (None, UpsSource::Nut(address)) => address.split('@').next().unwrap_or_default(),
            (None, _) => return fail("needs a name"),
        };
        if !is_name(name) {
            return fail("needs a name of letters, digits, '-', '_' and '.'");
        }
        Ok(Self { name: name.to_owned(), place, text: text.to_owned() })
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

/// The UPS settings of one source. A setting that the source does not set is `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UpsOptions {
    /// The UPSes.
    pub upses: Vec<Ups>,
    /// The expression of the UPSes that must be safe.
    pub needed: Option<String>,
    /// The user at the NUT servers.
    pub user: Option<String>,
    /// That user's password.
    pub password: Option<Secret>,
    /// The authority of the NUT servers' certificates, PEM.
    pub ca: Option<PathBuf>,
    /// The charge below which write-back ends.
    pub threshold: Option<Percent>,
    /// The settle time.
    pub settle: Option<Seconds>,
    /// The runtime kept in reserve.
    pub margin: Option<Seconds>,
}

impl UpsOptions {
    /// Overrides the settings of `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        let upses = if self.upses.is_empty() { below.upses } else { self.upses };
        Self {
            upses,
            needed: self.needed.or(below.needed),
            user: self.user.or(below.user),
            password: self.password.or(below.password),
            ca: self.ca.or(below.ca),
            threshold: self.threshold.or(below.threshold),
            settle: self.settle.or(below.settle),
            margin: self.margin.or(below.margin),
        }
    }

    /// The settings with a single value, as key and text, without the password.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, Option<String>)> {
        fn text<T: fmt::Display>(value: Option<&T>) -> Option<String> {
            value.map(ToString::to_string)
        }
        vec![
            ("ups-needed", self.needed.clone()),
            ("ups-user", self.user.clone()),
            ("ups-ca", self.ca.as_ref().map(|path| path.display().to_string())),
            ("ups-threshold", text(self.threshold.as_ref())),
            ("ups-settle-seconds", text(self.settle.as_ref())),
            ("ups-margin-seconds", text(self.margin.as_ref())),
        ]
    }
}

/// The checked UPS settings. The expression is parsed later, by the crate `power`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsSettings {
    /// The UPSes; empty if power is not monitored.
    pub upses: Vec<Ups>,
    /// The expression of the UPSes that must be safe, as in `any 1 of (a, b)`. By default all.
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
    /// The settle time, in seconds: how long all must have been safe before write-back begins.
    pub settle_seconds: u32,
    /// The runtime kept in reserve, in seconds.
    pub margin_seconds: u32,
}

impl UpsSettings {
    /// Combines the settings and checks that they are consistent.
    ///
    /// # Errors
    /// Two UPSes have one name, there are too many, the login is incomplete, or settings are given
    /// without a UPS.
    pub(crate) fn checked(options: UpsOptions) -> ConfigResult<Self> {
        let fail = |mistake, message: String, remedy: Remedy| {
            Err(ConfigError::new(mistake, format!("ups: {message}"), remedy))
        };
        let upses = &options.upses;
        if upses.is_empty() && options != UpsOptions::default() {
            let message = "there are settings, but no UPS".to_owned();
            return fail(Mistake::Value, message, Action::set("ups", "NAME@HOST:PORT").into());
        }
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
        let login = match (options.user, options.password) {
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
        let off = options.threshold.unwrap_or(Percent(79)).0;
        Ok(Self {
            needed: options.needed.unwrap_or_else(all),
            login,
            ca: options.ca,
            charge_off_percent: off,
            charge_on_percent: (off + HYSTERESIS_PERCENT).min(100),
            settle_seconds: options.settle.unwrap_or(Seconds(60)).0,
            margin_seconds: options.margin.unwrap_or(Seconds(60)).0,
            upses: options.upses,
        })
    }
}

impl fmt::Display for UpsSettings {
    /// The settings without the password, for the report of a change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.upses.is_empty() {
            return f.write_str("unset");
        }
        for ups in &self.upses {
            write!(f, "{ups}, ")?;
        }
        let (off, settle, margin) =
            (self.charge_off_percent, self.settle_seconds, self.margin_seconds);
        write!(f, "{} with {off} %, settled for {settle} s, margin {margin} s", self.needed)?;
        match &self.login {
            Some((user, _)) => write!(f, ", as {user}"),
            None => Ok(()),
        }
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
        for (text, name, place) in [
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
            assert_eq!((ups.name.as_str(), &ups.place), (name, &place));
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
        let two = || UpsOptions { upses: vec![ups("a@x"), ups("b@y")], ..Default::default() };
        let checked = UpsSettings::checked(two()).unwrap();
        assert_eq!(checked.needed, "a and b");
        assert_eq!((checked.charge_off_percent, checked.charge_on_percent), (79, 85));
        let high = UpsOptions { threshold: Some(Percent(97)), ..two() };
        assert_eq!(UpsSettings::checked(high).unwrap().charge_on_percent, 100);
        for (options, part) in [
            (UpsOptions { user: Some("u".into()), ..two() }, "both user and password"),
            (UpsOptions { upses: vec![ups("a@x"), ups("a@y")], ..two() }, "called 'a'"),
            (UpsOptions { upses: Vec::new(), needed: Some("a".into()), ..two() }, "but no UPS"),
            (UpsOptions { upses: vec![ups("a"); 17], ..two() }, "exceed the limit of 16"),
        ] {
            let error = UpsSettings::checked(options).unwrap_err().explained();
            assert!(error.contains(part), "{error}");
        }
        assert!(UpsSettings::checked(UpsOptions::default()).unwrap().upses.is_empty());
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
