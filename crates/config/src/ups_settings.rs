//! The settings of UPSes, checked: which UPSes there are, and the conditions for write-back.

use crate::{ConfigError, ConfigResult, Mistake, Secret, Settings, Ups, layer::HAS_DEFAULT};
use forebay_types::{Action, PROGRAM_SETTINGS, Remedy, Setting};
use std::{collections::HashSet, path::PathBuf};

/// Maximum number of UPSes.
const UPSES_MAX: usize = 16;
/// The difference between the charge at which write-back may begin and the charge at which it ends,
/// in percent. Otherwise a battery at the threshold would switch write-back on and off.
const HYSTERESIS_PERCENT: u32 = 6;

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
    use crate::Percent;
    use forebay_types::Fault;

    fn named(text: &str) -> Ups {
        text.parse().unwrap()
    }

    #[test]
    fn settings_must_be_consistent() {
        let upses = || vec![named("a@x"), named("b@y")];
        let two = || Settings { ups: upses(), ..Settings::defaults() };
        let checked = UpsSettings::checked(&two()).unwrap();
        assert_eq!(checked.needed, "a and b");
        assert_eq!((checked.charge_off_percent, checked.charge_on_percent), (79, 85));
        let high = Settings { ups_threshold: Some(Percent(97)), ..two() };
        assert_eq!(UpsSettings::checked(&high).unwrap().charge_on_percent, 100);
        for (settings, part) in [
            (Settings { ups_user: Some("u".into()), ..two() }, "both user and password"),
            (Settings { ups: vec![named("a@x"), named("a@y")], ..two() }, "called 'a'"),
            (Settings { ups: vec![named("a"); 17], ..two() }, "exceed the limit of 16"),
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
}
