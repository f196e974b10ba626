//! Volumes as one argument of the command line: `NAME=BACKING[,KEY=VALUE...]`, or only a disk.
//!
//! A backing is a path or a URL, and both may contain commas and equals signs. So the settings
//! begin at the first comma outside parentheses that is followed by a possible key and `=`. The key
//! need not exist: a mistyped key is then reported as unknown, and not silently taken as part of
//! the backing. The few backings that this excludes (a path with `,size=` in it, or with an
//! unclosed parenthesis) can be written in the configuration file, which needs no splitting.
//!
//! A journal and its mirror are backings too, and end by the same rule: at the next such comma, or
//! with the text. So their layers and URL options need no quoting.

use crate::{
    ConfigError, ConfigResult, Mistake,
    volume::{VolumeChange, VolumeSpec, check_volume_name},
};
use forebay_types::{Action, Remedy, backing};
use std::{fmt, path::Path, str::FromStr};

/// Parses `NAME=BACKING[,KEY=VALUE...]`.
///
/// # Errors
/// The text has another form, or the volume is invalid.
pub fn parse_volume_spec(text: &str) -> ConfigResult<VolumeSpec> {
    let Some((name, rest)) = text.split_once('=') else {
        return Err(ConfigError::new(
            Mistake::Syntax,
            format!("volume {text:?} has no backing"),
            "write NAME=BACKING, as in disk=/dev/sdb",
        ));
    };
    check_volume_name(name)?;
    let about = |error: ConfigError| error.about(format_args!("volume '{name}'"));
    let (backing, settings) = split_at_settings(rest).map_err(about)?;
    let mut change = VolumeChange::default();
    for (key, value) in settings {
        change.set(key, value).map_err(about)?;
    }
    VolumeSpec::new(name, backing)?.configured(&change)
}

impl FromStr for VolumeSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_volume_spec(text)
    }
}

impl fmt::Display for VolumeSpec {
    /// The form of the command line, with the settings that differ from their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.backing)?;
        for (key, value) in self.settings().pairs() {
            write!(f, ",{key}={value}")?;
        }
        Ok(())
    }
}

impl VolumeSpec {
    /// A volume given only by the path of its disk. Its name is the file's name, without the
    /// extension.
    ///
    /// # Errors
    /// The text is a URL or `NAME=BACKING`, or the file's name is not a valid volume name.
    pub fn from_disk(path: &str) -> ConfigResult<Self> {
        let first = path.split('/').next().unwrap_or_default();
        let fail = |message, remedy| Err(ConfigError::new(Mistake::Syntax, message, remedy));
        let scheme = backing::scheme_of(path).filter(|_| has_scheme(path));
        if let Some(scheme) = scheme.filter(|scheme| !backing::SCHEMES.contains(scheme)) {
            let message = format!("'{path}' is not a path, and there is no backend '{scheme}:'");
            let remedy = backing::remedy_for_scheme(scheme);
            let file = format!("write ./{path} for a file");
            return fail(message, Remedy::from(remedy).or(file));
        }
        // This check comes before the next, because the options of a model contain equals signs.
        if has_scheme(path) {
            let message = format!("'{path}' has no name to serve it under");
            let volume = Action::set("volume", format!("NAME={path}"));
            return fail(message, Remedy::from(volume).or(format!("write ./{path} for a file")));
        }
        if let Some(spec) = with_settings(path) {
            // An error of the settings comes first: the advice below is to repeat them.
            parse_volume_spec(&spec)?;
            let message = format!("'{path}' is the path of a disk with settings");
            return fail(message, Action::set("volume", spec).into());
        }
        if first.contains('=') {
            let message = format!("'{path}' is not the path of a disk");
            let volume = Action::set("volume", path.to_owned());
            return fail(message, Remedy::from(volume).or(format!("write ./{path} for a file")));
        }
        let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        Self::new(name, path).map_err(|error| error.about(format_args!("disk '{path}'")))
    }

    /// The volume with relative paths of its backing and journal resolved against `base`, for a
    /// process with another working directory. This covers paths after layers and `file:`. Other
    /// URLs stay unchanged.
    #[must_use]
    pub fn from_directory(mut self, base: &Path) -> Self {
        self.backing = from_directory(&self.backing, base);
        self.config.journal = self.config.journal.map(|journal| from_directory(&journal, base));
        self.config.journal_mirror =
            self.config.journal_mirror.map(|mirror| from_directory(&mirror, base));
        self
    }
}

/// `DISK,KEY=VALUE` as the specification of a volume, if the text has that form.
fn with_settings(text: &str) -> Option<String> {
    let (disk, settings) = split_at_settings(text).ok()?;
    let is_disk = !settings.is_empty() && !disk.contains('=');
    let name = Path::new(disk).file_stem().and_then(|stem| stem.to_str())?;
    is_disk.then(|| format!("{name}={text}"))
}

/// Resolves the relative path of a backing against `base`.
fn from_directory(backing: &str, base: &Path) -> String {
    let layers_end = layers_len(backing);
    let scheme = if backing[layers_end..].starts_with("file:") { "file:" } else { "" };
    let (before, path) = backing.split_at(layers_end + scheme.len());
    let is_path = !scheme.is_empty() || !has_scheme(path);
    if is_path && !path.is_empty() && !path.starts_with('/') {
        return format!("{before}{}", base.join(path).display());
    }
    backing.to_owned()
}

/// Whether the text begins like a URL or a layer: a lower-case word and `:` or `(`.
fn has_scheme(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-".contains(c);
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text[end..].starts_with([':', '('])
}

/// The length of the layers, `name(...):`, at the start of the backing.
fn layers_len(backing: &str) -> usize {
    let mut start = 0;
    while has_scheme(&backing[start..]) {
        let rest = &backing[start..];
        let name_end = rest.find([':', '(']).unwrap_or(0);
        if rest[name_end..].starts_with(':') {
            break;
        }
        let mut depth = 0;
        let close = rest.char_indices().skip(name_end).find(|&(_, c)| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        match close {
            Some((index, _)) if rest[index + 1..].starts_with(':') => start += index + 2,
            _ => break,
        }
    }
    start
}

/// The backing, and the key and value of each setting.
type Parts<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// Splits at each comma outside parentheses that is followed by a key and `=`.
fn split_at_settings(text: &str) -> ConfigResult<Parts<'_>> {
    let mut commas = Vec::new();
    let mut depth = 0usize;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            // An unmatched `)` is an ordinary character of a path.
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                commas.extend(key_len(&text[index + 1..]).map(|len| (index, len)))
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(ConfigError::new(
            Mistake::Syntax,
            "a parenthesis is never closed",
            "close it, or put the volume into the configuration file if it belongs to a name",
        ));
    }
    let backing_end = commas.first().map_or(text.len(), |&(index, _)| index);
    let ends = commas.iter().skip(1).map(|&(index, _)| index).chain([text.len()]);
    let settings = commas.iter().zip(ends).map(|(&(comma, key_len), end)| {
        let key_end = comma + 1 + key_len;
        (&text[comma + 1..key_end], &text[key_end + 1..end])
    });
    Ok((&text[..backing_end], settings.collect()))
}

/// The length of a key at the start of the text: a lower-case word, with hyphens inside, before
/// `=`.
fn key_len(text: &str) -> Option<usize> {
    let len = text.bytes().position(|byte| !byte.is_ascii_lowercase() && byte != b'-')?;
    (len > 0 && !text.starts_with('-') && text.as_bytes()[len] == b'=').then_some(len)
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
