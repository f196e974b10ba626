//! How batteries age: the runtime at full charge, when it was first seen and now.
//!
//! A battery that holds less than it did is reckoned with as it is, since a supply says how long
//! it would last; here it is remembered what it was, in a file of the state directory, so that
//! somebody is told in time to replace it. Only readings at full charge on mains count, and only at
//! about the load of the first one, because a runtime means nothing without the load.

use forebay_power::{Reading, StatusFlag};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A charge that counts as full, in percent.
const FULL_PERCENT: f64 = 99.0;
/// Loads that count as the same, in percent of what the supply can carry.
const SAME_LOAD_PERCENT: f64 = 10.0;
/// Below this share of the first runtime a battery is said to age.
const AGED: f64 = 0.9;
/// Above this share it is another one.
const RENEWED: f64 = 1.1;
/// A runtime is written down when it differs from the one that was by this share.
const NEWS: f64 = 0.03;

/// What is known of one battery.
#[derive(Clone, Debug, PartialEq)]
struct Age {
    first_seconds: u32,
    seconds: u32,
    load_percent: Option<f64>,
    /// When it was made, as the supply says.
    made: Option<String>,
}

/// What is known of all, and where it is kept.
pub(super) struct Batteries {
    path: PathBuf,
    ages: BTreeMap<String, Age>,
}

impl Batteries {
    /// With what earlier processes have seen, if that can be read.
    pub(super) fn open(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let known: Value = serde_json::from_str(&text).unwrap_or_default();
        let ages = known.as_object().into_iter().flatten();
        let ages = ages.filter_map(|(name, age)| Some((name.clone(), Age::from_json(age)?)));
        Self { path, ages: ages.collect() }
    }

    /// A supply has said something.
    pub(super) fn observe(&mut self, name: &str, reading: &Reading) {
        let is_full = reading.charge_percent.is_some_and(|charge| charge >= FULL_PERCENT);
        let words = reading.status.as_ref();
        let on_mains =
            words.is_some_and(|words| words.has(StatusFlag::Ol) && !words.has(StatusFlag::Ob));
        let Some(seconds) = reading.runtime_seconds.filter(|_| is_full && on_mains) else { return };
        let new = Age {
            first_seconds: seconds,
            seconds,
            load_percent: reading.load_percent,
            made: reading.battery_date.clone(),
        };
        let Some(known) = self.ages.get(name) else { return self.keep(name, new) };
        let share = |other: u32| f64::from(seconds) / f64::from(other.max(1));
        let loads = known.load_percent.zip(reading.load_percent);
        if loads.is_some_and(|(first, now)| (first - now).abs() > SAME_LOAD_PERCENT) {
            return;
        }
        if known.made != new.made || share(known.first_seconds) > RENEWED {
            return self.keep(name, new);
        }
        if (share(known.seconds) - 1.0).abs() > NEWS {
            let age = Age { seconds, ..known.clone() };
            self.keep(name, age);
        }
    }

    /// What there is to say of a supply's battery.
    pub(super) fn ages(&self, name: &str) -> Option<String> {
        let Age { first_seconds, seconds, .. } = *self.ages.get(name)?;
        (f64::from(seconds) < AGED * f64::from(first_seconds))
            .then(|| format!("battery ages: {seconds} s now, {first_seconds} s when first seen"))
    }

    fn keep(&mut self, name: &str, age: Age) {
        self.ages.insert(name.to_owned(), age);
        let ages: serde_json::Map<String, Value> =
            self.ages.iter().map(|(name, age)| (name.clone(), age.to_json())).collect();
        let text = format!("{:#}\n", Value::Object(ages));
        // It is put beside and then in its place, so that one of both is always whole.
        let beside = self.path.with_extension("new");
        let written =
            std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &self.path));
        if let Err(error) = written {
            tracing::warn!("{} can't be written: {error}", self.path.display());
        }
    }
}

impl Age {
    fn to_json(&self) -> Value {
        json!({
            "first_seconds": self.first_seconds,
            "seconds": self.seconds,
            "load_percent": self.load_percent,
            "made": self.made,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let seconds = |key: &str| u32::try_from(value.get(key)?.as_u64()?).ok();
        Some(Self {
            first_seconds: seconds("first_seconds")?,
            seconds: seconds("seconds")?,
            load_percent: value.get("load_percent").and_then(Value::as_f64),
            made: value.get("made").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(charge: u32, runtime: u32, more: &str) -> Reading {
        let text =
            format!("ups.status: OL\nbattery.charge: {charge}\nbattery.runtime: {runtime}\n{more}");
        Reading::from_lines(&text).unwrap()
    }

    #[test]
    fn a_battery_that_lasts_less_than_it_did_is_said_to_age() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("batteries.json");
        let mut batteries = Batteries::open(path.clone());
        batteries.observe("a", &reading(100, 900, ""));
        batteries.observe("a", &reading(50, 400, ""));
        assert_eq!(batteries.ages("a"), None, "a battery that is not full says nothing");
        // Another process goes on.
        let mut batteries = Batteries::open(path.clone());
        batteries.observe("a", &reading(100, 640, ""));
        let told = "battery ages: 640 s now, 900 s when first seen";
        assert_eq!(batteries.ages("a").as_deref(), Some(told));
        assert_eq!(Batteries::open(path.clone()).ages("a").as_deref(), Some(told));
        batteries.observe("a", &reading(100, 1200, ""));
        assert_eq!(batteries.ages("a"), None, "it was replaced");
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(Batteries::open(path).ages("a"), None);
    }

    #[test]
    fn runtimes_are_compared_at_the_same_load_and_of_the_same_battery() {
        let directory = tempfile::tempdir().unwrap();
        let mut batteries = Batteries::open(directory.path().join("batteries.json"));
        batteries.observe("a", &reading(100, 900, "ups.load: 20\n"));
        batteries.observe("a", &reading(100, 400, "ups.load: 60\n"));
        assert_eq!(batteries.ages("a"), None);
        batteries.observe("a", &reading(100, 700, "ups.load: 25\n"));
        assert!(batteries.ages("a").is_some());
        batteries.observe("a", &reading(100, 700, "ups.load: 25\nbattery.mfr.date: 2026/10\n"));
        assert_eq!(batteries.ages("a"), None, "another battery begins anew");
    }
}
