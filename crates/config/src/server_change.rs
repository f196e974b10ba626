//! Changes of the program's settings while it runs.

use crate::{
    BackgroundMode, CacheRatio, ConfigError, ConfigResult, MemoryReserve, MemorySetting, Mistake,
};
use forebay_types::{PROGRAM_SETTINGS, Setting};
use std::fmt;

/// A change of settings of the running program. A setting that is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ServerChange {
    /// Memory for the cache.
    pub memory: Option<MemorySetting>,
    /// Memory that the cache keeps while memory is short.
    pub memory_min: Option<MemorySetting>,
    /// The most that [`MemorySetting::Auto`] takes.
    pub memory_max: Option<MemorySetting>,
    /// Memory that is left to the system.
    pub memory_reserve: Option<MemoryReserve>,
    /// How the pool is divided between reads and writes.
    pub cache_ratio: Option<CacheRatio>,
    /// How background work uses processors and disks.
    pub background: Option<BackgroundMode>,
}

impl ServerChange {
    /// The settings that a command can change, in the order of [`PROGRAM_SETTINGS`].
    pub const KEYS: [&'static str; 6] =
        ["memory", "memory-min", "memory-max", "memory-reserve", "cache-ratio", "background"];

    /// Parses `KEY=VALUE` arguments, as in `forebay set`.
    ///
    /// # Errors
    /// An argument is not `KEY=VALUE`, a key is unknown, fixed or repeated, or a value is invalid.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> ConfigResult<Self> {
        let mut change = Self::default();
        for text in words {
            let Some((key, value)) = text.split_once('=') else {
                let message = format!("'{text}' is not KEY=VALUE");
                return Err(ConfigError::new(Mistake::Syntax, message, EXAMPLE));
            };
            change.set(key, value)?;
        }
        Ok(change)
    }

    /// Sets one key.
    ///
    /// # Errors
    /// As [`ServerChange::parse`].
    pub fn set(&mut self, key: &str, value: &str) -> ConfigResult<()> {
        let is_repeated = match key {
            "memory" => self.memory.replace(value.parse()?).is_some(),
            "memory-min" => self.memory_min.replace(value.parse()?).is_some(),
            "memory-max" => self.memory_max.replace(value.parse()?).is_some(),
            "memory-reserve" => self.memory_reserve.replace(value.parse()?).is_some(),
            "cache-ratio" => self.cache_ratio.replace(value.parse()?).is_some(),
            "background" => self.background.replace(value.parse()?).is_some(),
            _ => return Err(refused(key)),
        };
        if is_repeated {
            let message = format!("setting '{key}' is given twice");
            return Err(ConfigError::new(Mistake::Duplicate, message, "keep one of them"));
        }
        Ok(())
    }

    /// The settings and their values, in the order of [`ServerChange::KEYS`].
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        let values = [
            self.memory.map(|it| it.to_string()),
            self.memory_min.map(|it| it.to_string()),
            self.memory_max.map(|it| it.to_string()),
            self.memory_reserve.map(|it| it.to_string()),
            self.cache_ratio.map(|it| it.to_string()),
            self.background.map(|it| it.to_string()),
        ];
        Self::KEYS.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)))
    }

    /// Whether a setting of the memory changes.
    pub fn has_memory(&self) -> bool {
        let Self { cache_ratio, background, .. } = *self;
        *self != Self { cache_ratio, background, ..Self::default() }
    }

    /// Whether no setting changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ServerChange {
    /// `memory=1GiB,memory-min=64MiB`; empty for no change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> = self.pairs().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&pairs.join(","))
    }
}

const EXAMPLE: &str = "write it like memory=512MiB";

/// The error for a setting that cannot change.
fn refused(key: &str) -> ConfigError {
    match Setting::find(key, &PROGRAM_SETTINGS) {
        Some(setting) if setting.is_live => {
            let message = format!("{key} cannot be changed by a command");
            ConfigError::new(Mistake::Served, message, "edit the configuration file, and reload it")
        }
        Some(_) => {
            let message = format!("{key} cannot change while forebay runs");
            ConfigError::new(Mistake::Served, message, "restart forebay with another value")
        }
        None => ConfigError::new(Mistake::UnknownKey, format!("unknown setting '{key}'"), EXAMPLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn settings_are_parsed_as_they_are_displayed() {
        let change = ServerChange::parse(["memory-min=64MiB", "memory=1.5GiB"]).unwrap();
        assert_eq!(change.memory, Some(MemorySetting::Bytes(3 << 29)));
        assert_eq!(change.to_string(), "memory=1536MiB,memory-min=64MiB");
        let change = ServerChange::parse(["memory=auto", "memory-reserve=0"]).unwrap();
        assert_eq!(change.to_string(), "memory=auto,memory-reserve=0B");
        assert!(ServerChange::parse([]).unwrap().is_empty());
        for key in ServerChange::KEYS {
            let text = match key {
                "cache-ratio" => "cache-ratio=40:60".to_owned(),
                "background" => "background=full".to_owned(),
                key => format!("{key}=128MiB"),
            };
            let change = ServerChange::parse([&*text]).unwrap();
            assert_eq!(change.to_string(), text);
            assert_eq!(change.has_memory(), key.starts_with("memory"));
        }
    }

    #[test]
    fn mistakes_are_refused_with_a_remedy() {
        for (words, sentence) in [
            (&["memory"][..], "'memory' is not KEY=VALUE: write it like memory=512MiB"),
            (
                &["memory=much"],
                "invalid memory size 'much': write auto, or a size like 512MiB or 1.5GiB",
            ),
            (&["memory=1GiB", "memory=2GiB"], "setting 'memory' is given twice: keep one of them"),
            (
                &["workers=2"],
                "workers cannot change while forebay runs: restart forebay with another value",
            ),
            (
                &["log=debug"],
                "log cannot be changed by a command: edit the configuration file, and reload it",
            ),
            (&["memroy=1GiB"], "unknown setting 'memroy': write it like memory=512MiB"),
        ] {
            let error = ServerChange::parse(words.iter().copied()).unwrap_err();
            assert_eq!(error.explained(), sentence);
        }
    }
}
