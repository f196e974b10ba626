//! The supplies that bridge a power failure, as the operator names them.
//!
//! What a supply says is read and judged elsewhere; here are only its name, where it is asked, and
//! what is demanded of it before anything depends on it.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{Action, Remedy};
use std::{collections::HashSet, fmt, path::PathBuf, str::FromStr};

/// Longest text that names a supply, in bytes.
const SUPPLY_BYTES_MAX: usize = 4096;
/// Most supplies of one machine.
const SUPPLIES_MAX: usize = 16;
/// How much more charge is demanded before write-back begins than it ends with, in percent, so
/// that a battery at the threshold does not switch it to and fro.
const HYSTERESIS_PERCENT: u32 = 6;

/// Where a supply is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SupplyPlace {
    /// A server of Network UPS Tools, in its own notation: `NAME`, `NAME@HOST` or
    /// `NAME@HOST:PORT`.
    Nut(String),
    /// A program and its arguments, which prints `key: value` lines.
    Command(Vec<String>),
    /// A file of such lines that somebody keeps fresh.
    File(PathBuf),
}

/// A supply: what it is called here, and where it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Supply {
    /// What it is called in the status and in [`UpsSettings::needed`].
    pub name: String,
    /// Where it is asked.
    pub place: SupplyPlace,
    /// As it was written.
    text: String,
}

impl fmt::Display for Supply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

impl FromStr for Supply {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem: &str| {
            let shown: String = text.chars().take(256).collect();
            Err(ConfigError::new(
                Mistake::Value,
                format!("supply {shown:?} {problem}"),
                "write NAME@HOST:PORT as for Network UPS Tools, NAME=command:PROGRAM or \
                 NAME=file:PATH",
            ))
        };
        if text.len() > SUPPLY_BYTES_MAX {
            return fail("is too long");
        }
        if text.chars().any(char::is_control) {
            return fail("holds a control character");
        }
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, rest) = named.map_or((None, text), |(name, rest)| (Some(name), rest));
        let place = if let Some(command) = rest.strip_prefix("command:") {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return fail("names no program");
            }
            SupplyPlace::Command(words)
        } else if let Some(path) = rest.strip_prefix("file:") {
            if path.is_empty() {
                return fail("names no file");
            }
            SupplyPlace::File(path.into())
        } else {
            SupplyPlace::Nut(rest.to_owned())
        };
        let name = match (name, &place) {
            (Some(name), _) => name,
            (None, SupplyPlace::Nut(address)) => address.split('@').next().unwrap_or_default(),
            (None, _) => return fail("has no name of its own"),
        };
        if !is_name(name) {
            return fail("has no name of letters, digits, '-', '_' and '.'");
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
                format!("no percentage '{text}'"),
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
                format!("no number of seconds '{text}'"),
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

/// A password: shown to nobody, not even in a message about a fault.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// What one source of settings says of supplies; what it leaves out is `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UpsWords {
    /// The supplies.
    pub supplies: Vec<Supply>,
    /// Which of them are enough.
    pub needed: Option<String>,
    /// The user at the NUT servers.
    pub user: Option<String>,
    /// That user's password.
    pub password: Option<Secret>,
    /// The authority of the NUT servers' certificates, PEM.
    pub ca: Option<PathBuf>,
    /// The charge below which write-back ends.
    pub threshold: Option<Percent>,
    /// How long all must have been well.
    pub settle: Option<Seconds>,
    /// The part of the runtime never reckoned with.
    pub margin: Option<Seconds>,
}

impl UpsWords {
    /// These words where they say something, those of `below` where not.
    pub(crate) fn over(self, below: Self) -> Self {
        let supplies = if self.supplies.is_empty() { below.supplies } else { self.supplies };
        Self {
            supplies,
            needed: self.needed.or(below.needed),
            user: self.user.or(below.user),
            password: self.password.or(below.password),
            ca: self.ca.or(below.ca),
            threshold: self.threshold.or(below.threshold),
            settle: self.settle.or(below.settle),
            margin: self.margin.or(below.margin),
        }
    }

    /// The settings of one value as key and text; the password is not shown.
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

/// The supplies and what is demanded of them, checked as far as words go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsSettings {
    /// The supplies; none where power is not watched.
    pub supplies: Vec<Supply>,
    /// Which of them are enough, as in `any 1 of (a, b)`: by their names. All, if nobody said.
    pub needed: String,
    /// User and password at the NUT servers, where they are to wait for us.
    pub login: Option<(String, Secret)>,
    /// The authority of the NUT servers' certificates, PEM. Without it nothing is encrypted.
    pub ca: Option<PathBuf>,
    /// The charge below which write-back ends, in percent.
    pub charge_off_percent: u32,
    /// The charge from which on it may begin, in percent.
    pub charge_on_percent: u32,
    /// How long all must have been well before it begins, in seconds.
    pub settle_seconds: u32,
    /// The part of the runtime that is never reckoned with, in seconds.
    pub margin_seconds: u32,
}

impl UpsSettings {
    /// Joins the words and checks that they fit together.
    ///
    /// # Errors
    /// Two supplies of one name, too many of them, half a login, or settings for no supply.
    pub(crate) fn checked(words: UpsWords) -> ConfigResult<Self> {
        let fail = |mistake, message: String, remedy: Remedy| {
            Err(ConfigError::new(mistake, format!("ups: {message}"), remedy))
        };
        let supplies = &words.supplies;
        if supplies.is_empty() && words != UpsWords::default() {
            let message = "there are settings, but no supply".to_owned();
            return fail(Mistake::Value, message, Action::set("ups", "NAME@HOST:PORT").into());
        }
        if supplies.len() > SUPPLIES_MAX {
            let message = format!("{} supplies are more than {SUPPLIES_MAX}", supplies.len());
            return fail(Mistake::Limit, message, "leave some out".into());
        }
        let mut names = HashSet::new();
        if let Some(twice) = supplies.iter().find(|supply| !names.insert(&supply.name)) {
            let message = format!("two supplies are called '{}'", twice.name);
            return fail(
                Mistake::Duplicate,
                message,
                "write NAME=UPS@HOST to give one another".into(),
            );
        }
        let login = match (words.user, words.password) {
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
            let names: Vec<&str> = supplies.iter().map(|supply| supply.name.as_str()).collect();
            names.join(" and ")
        };
        let off = words.threshold.unwrap_or(Percent(79)).0;
        Ok(Self {
            needed: words.needed.unwrap_or_else(all),
            login,
            ca: words.ca,
            charge_off_percent: off,
            charge_on_percent: (off + HYSTERESIS_PERCENT).min(100),
            settle_seconds: words.settle.unwrap_or(Seconds(60)).0,
            margin_seconds: words.margin.unwrap_or(Seconds(60)).0,
            supplies: words.supplies,
        })
    }
}

impl fmt::Display for UpsSettings {
    /// What is said of them where they change; the password is not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.supplies.is_empty() {
            return f.write_str("unset");
        }
        for supply in &self.supplies {
            write!(f, "{supply}, ")?;
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

    fn supply(text: &str) -> Supply {
        text.parse().unwrap()
    }

    #[test]
    fn supplies_as_people_write_them() {
        for (text, name, place) in [
            ("rack-a@192.0.2.7", "rack-a", SupplyPlace::Nut("rack-a@192.0.2.7".into())),
            ("lab", "lab", SupplyPlace::Nut("lab".into())),
            ("left=ups@nas:99", "left", SupplyPlace::Nut("ups@nas:99".into())),
            (
                "shed=command:/bin/read --unit=1 x",
                "shed",
                SupplyPlace::Command(vec!["/bin/read".into(), "--unit=1".into(), "x".into()]),
            ),
            ("shed=file:/run/a b", "shed", SupplyPlace::File("/run/a b".into())),
        ] {
            let supply = supply(text);
            assert_eq!((supply.name.as_str(), &supply.place), (name, &place));
            assert_eq!(supply.to_string(), text);
        }
    }

    #[test]
    fn what_names_no_supply_is_refused() {
        let long = format!("a@{}", "h".repeat(5000));
        let bad =
            ["", "@host", "a b@host", "command:/x", "file:/x", "a=command: ", "a=file:", "a\n"];
        for text in bad.into_iter().chain([long.as_str()]) {
            let error = text.parse::<Supply>().unwrap_err();
            assert!(error.explained().contains("NAME@HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn settings_must_fit_together() {
        let two =
            || UpsWords { supplies: vec![supply("a@x"), supply("b@y")], ..Default::default() };
        let checked = UpsSettings::checked(two()).unwrap();
        assert_eq!(checked.needed, "a and b");
        assert_eq!((checked.charge_off_percent, checked.charge_on_percent), (79, 85));
        let high = UpsWords { threshold: Some(Percent(97)), ..two() };
        assert_eq!(UpsSettings::checked(high).unwrap().charge_on_percent, 100);
        for (words, part) in [
            (UpsWords { user: Some("u".into()), ..two() }, "both user and password"),
            (UpsWords { supplies: vec![supply("a@x"), supply("a@y")], ..two() }, "called 'a'"),
            (UpsWords { supplies: Vec::new(), needed: Some("a".into()), ..two() }, "no supply"),
            (UpsWords { supplies: vec![supply("a"); 17], ..two() }, "more than 16"),
        ] {
            let error = UpsSettings::checked(words).unwrap_err().explained();
            assert!(error.contains(part), "{error}");
        }
        assert!(UpsSettings::checked(UpsWords::default()).unwrap().supplies.is_empty());
    }

    #[test]
    fn numbers_have_their_limits() {
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
