//! Changes of the program's settings while it runs.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{PROGRAM_SETTINGS, Setting, Size};
use std::fmt;

/// A change of settings of the running program. A setting that is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ServerChange {
    /// Memory for the cache, in bytes.
    pub memory: Option<u64>,
}

impl ServerChange {
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
        if key != "memory" {
            return Err(match Setting::find(key, &PROGRAM_SETTINGS) {
                Some(_) => {
                    let message = format!("{key} cannot change while forebay runs");
                    let remedy = "restart forebay with another value";
                    ConfigError::new(Mistake::Served, message, remedy)
                }
                None => {
                    let message = format!("unknown setting '{key}'");
                    ConfigError::new(Mistake::UnknownKey, message, EXAMPLE)
                }
            });
        }
        let size: Size = value.parse().map_err(|_| {
            let message = format!("invalid memory size '{value}'");
            ConfigError::new(Mistake::Value, message, "write a size like 512MiB or 1.5GiB")
        })?;
        if self.memory.replace(size.bytes()).is_some() {
            let message = "setting 'memory' is given twice";
            return Err(ConfigError::new(Mistake::Duplicate, message, "keep one of them"));
        }
        Ok(())
    }

    /// Whether no setting changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ServerChange {
    /// `memory=1GiB`; empty for no change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory {
            Some(bytes) => write!(f, "memory={}", Size(bytes)),
            None => Ok(()),
        }
    }
}

const EXAMPLE: &str = "write it like memory=512MiB";

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn the_memory_is_a_size() {
        let change = ServerChange::parse(["memory=1.5GiB"]).unwrap();
        assert_eq!((change.memory, change.to_string()), (Some(3 << 29), "memory=1536MiB".into()));
        assert!(ServerChange::parse([]).unwrap().is_empty());
        for (words, sentence) in [
            (&["memory"][..], "'memory' is not KEY=VALUE: write it like memory=512MiB"),
            (&["memory=auto"], "invalid memory size 'auto': write a size like 512MiB or 1.5GiB"),
            (&["memory=1GiB", "memory=2GiB"], "setting 'memory' is given twice: keep one of them"),
            (
                &["workers=2"],
                "workers cannot change while forebay runs: restart forebay with another value",
            ),
            (&["memroy=1GiB"], "unknown setting 'memroy': write it like memory=512MiB"),
        ] {
            let error = ServerChange::parse(words.iter().copied()).unwrap_err();
            assert_eq!(error.explained(), sentence);
        }
    }
}
