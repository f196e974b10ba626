//! What is wrong with what the operator wrote, where it stands, and what to write instead.

use forebay_types::{Blame, Fault, Remedy, Shown};
use std::{error::Error, fmt, io, sync::Arc};

/// The outcome of reading a part of the configuration.
pub type ConfigResult<T> = Result<T, ConfigError>;

/// What sort of mistake it is, for programs; people read the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The file can't be opened or is no text.
    Unreadable,
    /// The text has not the form that was expected: TOML, `NAME=BACKING`, `tcp:HOST:PORT`.
    Syntax,
    /// No setting is called that.
    UnknownKey,
    /// The setting exists and can't have this value.
    Value,
    /// A volume can't be called that.
    Name,
    /// Two things that must differ are the same.
    Duplicate,
    /// It is not said, or not in full, what an acknowledgement is worth.
    Protection,
    /// A setting that a volume keeps while it is served.
    Served,
    /// The settings for TLS don't fit together.
    Tls,
    /// More or less than the program can work with.
    Limit,
}

/// A place in a configuration file. Lines and columns count from one, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Place {
    /// The place of the byte at `offset` of `text`. An offset behind the end, or inside a
    /// character, counts as the character or the end it belongs to.
    pub(crate) fn of(file: &str, text: &str, offset: usize) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            file: file.to_owned(),
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", Shown::line(&self.file), self.line, self.column)
    }
}

/// A mistake in the configuration: `FILE:LINE:COLUMN: message`, the place only where the text came
/// from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    mistake: Mistake,
    place: Option<Place>,
    message: String,
    cause: Option<Cause>,
    remedy: Remedy,
}

/// What the system said. Two are equal if they say the same.
#[derive(Clone, Debug)]
struct Cause(Arc<io::Error>);

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

impl ConfigError {
    /// A mistake that is not tied to a place (yet).
    pub(crate) fn new(
        mistake: Mistake,
        message: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) -> Self {
        // It quotes what the operator wrote.
        let message = Shown::line(&message.into()).to_string();
        Self { mistake, place: None, message, cause: None, remedy: remedy.into() }
    }

    /// The same mistake, because of what the system said.
    pub(crate) fn because(mut self, cause: io::Error) -> Self {
        self.cause = Some(Cause(Arc::new(cause)));
        self
    }

    /// The same mistake, said of `thing`: `volume 'disk': no mode 'x'`.
    pub(crate) fn about(mut self, thing: impl fmt::Display) -> Self {
        self.message = format!("{}: {}", Shown::line(&thing.to_string()), self.message);
        self
    }

    /// The same mistake, at a place. A place that is already known is the more exact one.
    pub(crate) fn at(mut self, place: impl FnOnce() -> Place) -> Self {
        self.place.get_or_insert_with(place);
        self
    }

    /// What sort of mistake it is.
    pub const fn mistake(&self) -> Mistake {
        self.mistake
    }

    /// Where it stands, if it came from a file.
    pub const fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| &*cause.0 as _)
    }
}

impl Fault for ConfigError {
    fn remedy(&self) -> Remedy {
        self.remedy.clone()
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let text = "a\nüb\n";
        let place = |offset| {
            let place = Place::of("f", text, offset);
            (place.line, place.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(1), (1, 2));
        assert_eq!(place(2), (2, 1));
        assert_eq!(place(3), (2, 1), "inside the umlaut");
        assert_eq!(place(4), (2, 2));
        assert_eq!(place(99), (3, 1));
    }

    #[test]
    fn what_the_operator_wrote_is_shown_and_not_obeyed() {
        let error = ConfigError::new(Mistake::Value, "no mode '\x1b[2J\n'", "not '\u{7}'")
            .about("volume '\r'")
            .at(|| Place::of("f\u{9b}", "", 0));
        let shown = "f\\u{9b}:1:1: volume '\\r': no mode '\\u{1b}[2J\\n': not '\\u{7}'";
        assert_eq!(error.explained(), shown);
    }

    #[test]
    fn the_first_place_stays() {
        let error = ConfigError::new(Mistake::Value, "no mode 'x'", "use bypass")
            .about("volume 'a'")
            .at(|| Place::of("f", "", 0))
            .at(|| Place::of("g", "", 0));
        assert_eq!(error.explained(), "f:1:1: volume 'a': no mode 'x': use bypass");
    }
}
