//! The configuration file: TOML with the settings of the command line.
//!
//! ```toml
//! memory = "2GiB"
//! nbd = ["unix:/run/forebay/nbd.sock", "tcp:[::1]:10809"]
//!
//! [[volume]]
//! name = "disk"
//! backing = "/dev/sdb"
//! mode = "write-through"
//! ```
//!
//! Each value is converted to its form on the command line and parsed by the same parser, so file
//! and options accept the same values. The document is not deserialized with `derive`, because
//! errors need the position of each key and value.

use crate::{
    ConfigError, ConfigResult, Mistake, Position, Settings, VolumeChange, VolumeSpec,
    layer::{duplicate_name, unknown_setting},
    words::{instead_of, yes_no},
};
use forebay_types::{PROGRAM_SETTINGS, Remedy, Setting, VOLUME_KEYS};
use std::{collections::HashSet, ops::Range};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Parses the text of a configuration file; `file_name` is for messages only.
///
/// # Errors
/// The text is not TOML, a key is unknown, a value is invalid, or two volumes have one name.
pub fn parse_toml(text: &str, file_name: &str) -> ConfigResult<Settings> {
    Document { file: file_name, text }.settings()
}

/// The keys of a volume that are not settings.
const REQUIRED_KEYS: [&str; 2] = ["name", "backing"];

type Value<'a> = Spanned<DeValue<'a>>;

struct Document<'a> {
    file: &'a str,
    text: &'a str,
}

impl Document<'_> {
    fn position(&self, span: Range<usize>) -> Position {
        Position::of(self.file, self.text, span.start)
    }

    fn error(
        &self,
        span: Range<usize>,
        mistake: Mistake,
        message: &str,
        help: impl Into<Remedy>,
    ) -> ConfigError {
        ConfigError::new(mistake, message, help).at(|| self.position(span))
    }

    fn settings(&self) -> ConfigResult<Settings> {
        let document = DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let help = "write KEY = VALUE lines and [[volume]] sections";
            self.error(span, Mistake::Syntax, error.message().trim(), help)
        })?;
        let mut settings = Settings::default();
        for (key, value) in document.get_ref() {
            let word = key.get_ref().as_ref();
            if word == "volume" {
                settings.volumes = self.volumes(value)?;
                continue;
            }
            let items = match (Setting::find(word, &PROGRAM_SETTINGS), value.get_ref()) {
                (None, _) => return Err(unknown_setting(word).at(|| self.position(key.span()))),
                (Some(setting), DeValue::Array(items)) if setting.is_list() => {
                    items.iter().collect()
                }
                (Some(_), _) => vec![value],
            };
            for item in items {
                let text = self.text(word, item)?;
                settings.set(word, &text).map_err(|e| e.at(|| self.position(item.span())))?;
            }
        }
        Ok(settings)
    }

    /// A value in the form that it has on the command line.
    fn text(&self, key: &str, value: &Value<'_>) -> ConfigResult<String> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Boolean(value) => Ok(yes_no(*value).to_owned()),
            other => {
                let message = format!("{key} cannot be of the type {}", other.type_str());
                let help = format!("write it as text, {key} = \"...\"");
                Err(self.error(value.span(), Mistake::Value, &message, help))
            }
        }
    }

    fn volumes(&self, value: &Value<'_>) -> ConfigResult<Vec<VolumeSpec>> {
        let form = "write a section [[volume]] for each volume";
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.error(value.span(), Mistake::Syntax, "volume is not a list", form));
        };
        let mut names = HashSet::new();
        let mut volumes = Vec::new();
        for item in items.iter() {
            let DeValue::Table(table) = item.get_ref() else {
                return Err(self.error(item.span(), Mistake::Syntax, "not a volume section", form));
            };
            let (spec, span) = self.volume(table, item.span())?;
            if !names.insert(spec.name.clone()) {
                return Err(duplicate_name(&spec.name).at(|| self.position(span)));
            }
            volumes.push(spec);
        }
        Ok(volumes)
    }

    /// Refuses unknown keys, before a missing required key is reported: it may be the same one,
    /// mistyped.
    fn check_keys(&self, table: &DeTable<'_>) -> ConfigResult<()> {
        let known = [&REQUIRED_KEYS[..], &VOLUME_KEYS[..]].concat();
        let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(&&**key.get_ref()))
        else {
            return Ok(());
        };
        let message = format!("unknown volume setting '{}'", key.get_ref());
        let help = match Setting::find(key.get_ref(), &PROGRAM_SETTINGS) {
            Some(_) => "it is a setting of the server: write it above the first [[volume]]".into(),
            None => instead_of(key.get_ref(), known),
        };
        let error = self.error(key.span(), Mistake::UnknownKey, &message, help);
        Err(match table.get("name").map(Spanned::get_ref) {
            Some(DeValue::String(name)) => error.about(format_args!("volume '{name}'")),
            _ => error,
        })
    }

    /// One volume, and the span of its name.
    fn volume(
        &self,
        table: &DeTable<'_>,
        section: Range<usize>,
    ) -> ConfigResult<(VolumeSpec, Range<usize>)> {
        self.check_keys(table)?;
        let required = |key: &str| match table.get(key) {
            Some(value) => Ok((self.text(key, value)?, value.span())),
            None => {
                let message = format!("the volume has no {key}");
                let help = format!("add {key} = \"...\" to this section");
                Err(self.error(section.clone(), Mistake::Value, &message, help))
            }
        };
        let (name, name_span) = required("name")?;
        let (backing, backing_span) = required("backing")?;
        let mut change = VolumeChange::default();
        for (key, value) in table {
            let word = key.get_ref().as_ref();
            if REQUIRED_KEYS.contains(&word) {
                continue;
            }
            let text = self.text(word, value)?;
            change
                .set(word, &text)
                .map_err(|error| error.about(format_args!("volume '{name}'")))
                .map_err(|error| error.at(|| self.position(value.span())))?;
        }
        let at_name = |error: ConfigError| error.at(|| self.position(name_span.clone()));
        let default = VolumeSpec::new(name, backing).map_err(|error| match error.mistake() {
            Mistake::Name => at_name(error),
            _ => error.at(|| self.position(backing_span)),
        })?;
        let spec = default.configured(&change).map_err(at_name)?;
        Ok((spec, name_span))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
