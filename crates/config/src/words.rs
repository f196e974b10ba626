//! Settings with a few possible words as values, and `yes` and `no`.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::Size;
use std::fmt;

/// Parses one of a few words. The error lists all of them.
pub(crate) fn word<T: Copy + fmt::Display>(what: &str, text: &str, all: &[T]) -> ConfigResult<T> {
    all.iter().copied().find(|candidate| candidate.to_string() == text).ok_or_else(|| {
        ConfigError::new(
            Mistake::Value,
            format!("unknown {what} '{text}'"),
            format!("use {}", listed(all, "or")),
        )
    })
}

/// Parses a size. The error has this message, and says how to write the size that was meant, or
/// else `remedy`.
pub(crate) fn size(
    text: &str,
    message: impl FnOnce() -> String,
    remedy: impl FnOnce() -> String,
) -> ConfigResult<Size> {
    text.parse().map_err(|error: forebay_types::ParseSizeError| {
        let meant = error.meant();
        let meant =
            meant.map(|meant| format!("units are powers of 1024, so write it like {meant}"));
        ConfigError::new(Mistake::Value, message(), meant.unwrap_or_else(remedy))
    })
}

/// The candidate whose spelling is nearest to `word`, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |candidate: &str| strsim::damerau_levenshtein(word, candidate);
    let near = |candidate: &&str| distance(candidate) <= candidate.len().max(3) / 3;
    candidates.into_iter().filter(near).min_by_key(|candidate| distance(candidate))
}

/// What to write instead of an unknown name of a setting: the nearest one, or where all of them
/// are listed.
pub(crate) fn instead_of<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // The API and other programs write underscores.
    match nearest(&name.to_lowercase().replace('_', "-"), known) {
        Some(nearest) => format!("did you mean '{nearest}'?"),
        None => "the manual and the help of the command line list the settings".to_owned(),
    }
}

/// `a, b or c`.
pub(crate) fn listed<T: fmt::Display>(all: &[T], last: &str) -> String {
    let mut text = String::new();
    for (index, item) in all.iter().enumerate() {
        match index {
            0 => {}
            _ if index + 1 == all.len() => text += &format!(" {last} "),
            _ => text += ", ",
        }
        text += &item.to_string();
    }
    text
}

/// Parses `yes` or `no`.
pub(crate) fn yes_or_no(key: &str, text: &str) -> ConfigResult<bool> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(ConfigError::new(
            Mistake::Value,
            format!("{key}='{text}' is neither yes nor no"),
            format!("write {key}=yes or {key}=no"),
        )),
    }
}

/// Formats a boolean as `yes` or `no`.
pub(crate) const fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Defines an enumeration whose values are words: `ALL`, `as_str`, `Display` and `FromStr`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($what:literal) {
            $($(#[$value_meta:meta])* $value:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $name {
            /// All values, in the order in which they are listed.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The word on the command line, in the configuration file and in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ConfigError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::words::word($what, text, Self::ALL)
            }
        }
    };
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn the_error_of_an_unknown_word_lists_the_known_ones() {
        let error = word("colour", "blue", &["red", "green", "grey"]).unwrap_err();
        assert_eq!(error.explained(), "unknown colour 'blue': use red, green or grey");
        assert_eq!(listed(&["red"], "or"), "red");
    }

    #[test]
    fn only_a_similar_word_is_the_nearest() {
        let known = ["mode", "memory", "memory-min", "read-only", "pin", "io"];
        for (word, found) in [
            ("mdoe", Some("mode")),
            ("memroy", Some("memory")),
            ("readonly", Some("read-only")),
            ("pins", Some("pin")),
            ("colour", None),
            ("listen", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), found, "{word}");
        }
        assert_eq!(instead_of("READ_ONLY", known), "did you mean 'read-only'?");
    }

    #[test]
    fn yes_and_no_are_the_only_booleans() {
        assert_eq!(yes_or_no("read-only", yes_no(true)), Ok(true));
        assert_eq!(yes_or_no("read-only", yes_no(false)), Ok(false));
        let error = yes_or_no("read-only", "true").unwrap_err();
        assert_eq!(
            error.explained(),
            "read-only='true' is neither yes nor no: write read-only=yes or read-only=no"
        );
    }
}
