//! Configuration errors: kind, position, message and remedy.

use forebay_types::{Blame, Fault, Remedy, Shown};
use std::{error::Error, fmt, io, sync::Arc};

/// The result of parsing or checking a part of the configuration.
pub type ConfigResult<T> = Result<T, ConfigError>;

/// The kind of a configuration error, for programs; people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The file cannot be opened or is not text.
    Unreadable,
    /// The text does not have the required form: TOML, `NAME=BACKING`, `KEY=VALUE`, `unix:` or
    /// `tcp:`.
    Syntax,
    /// There is no setting of this name.
    UnknownKey,
    /// The value of a setting is invalid.
    Value,
    /// The name of a volume is invalid.
    Name,
    /// Two values are equal that must differ.
    Duplicate,
    /// The protection of acknowledged writes is missing or incomplete.
    Protection,
    /// The setting cannot change while the volume is served.
    Served,
    /// The TLS settings contradict each other.
    Tls,
    /// A limit is exceeded.
    Limit,
}

/// A position in a configuration file. Lines and columns count from one, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, by the name that the operator gave.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// The position of the byte at `offset` of `text`. An offset inside a character is rounded
    /// down, and one past the end is the end.
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

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", Shown::line(&self.file), self.line, self.column)
    }
}

/// An error in the configuration: `FILE:LINE:COLUMN: message`, with the position if the text came
/// from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    mistake: Mistake,
    position: Option<Position>,
    message: String,
    cause: Option<Cause>,
    remedy: Remedy,
}

/// The operating system's error. Equality compares the texts.
#[derive(Clone, Debug)]
struct Cause(Arc<io::Error>);

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

impl ConfigError {
    /// An error without a position.
    pub(crate) fn new(
        mistake: Mistake,
        message: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) -> Self {
        // The message quotes the operator's text, which may contain control characters.
        let message = Shown::line(&message.into()).to_string();
        Self { mistake, position: None, message, cause: None, remedy: remedy.into() }
    }

    /// Adds the operating system's error as the cause.
    pub(crate) fn because(mut self, cause: io::Error) -> Self {
        self.cause = Some(Cause(Arc::new(cause)));
        self
    }

    /// Prefixes the message with its subject: `volume 'disk': unknown mode 'x'`.
    pub(crate) fn about(mut self, thing: impl fmt::Display) -> Self {
        self.message = format!("{}: {}", Shown::line(&thing.to_string()), self.message);
        self
    }

    /// Adds the position, unless the error already has one, which is more exact.
    pub(crate) fn at(mut self, position: impl FnOnce() -> Position) -> Self {
        self.position.get_or_insert_with(position);
        self
    }

    /// The kind of the error.
    pub const fn mistake(&self) -> Mistake {
        self.mistake
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.position {
            write!(f, "{position}: ")?;
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
    fn positions_count_lines_and_characters_from_one() {
        let text = "a\nüb\n";
        let position = |offset| {
            let position = Position::of("f", text, offset);
            (position.line, position.column)
        };
        assert_eq!(position(0), (1, 1));
        assert_eq!(position(1), (1, 2));
        assert_eq!(position(2), (2, 1));
        assert_eq!(position(3), (2, 1), "inside the umlaut");
        assert_eq!(position(4), (2, 2));
        assert_eq!(position(99), (3, 1));
    }

    #[test]
    fn control_characters_in_messages_are_escaped() {
        let error = ConfigError::new(Mistake::Value, "unknown mode '\x1b[2J\n'", "not '\u{7}'")
            .about("volume '\r'")
            .at(|| Position::of("f\u{9b}", "", 0));
        let shown = "f\\u{9b}:1:1: volume '\\r': unknown mode '\\u{1b}[2J\\n': not '\\u{7}'";
        assert_eq!(error.explained(), shown);
    }

    #[test]
    fn the_first_position_is_kept() {
        let error = ConfigError::new(Mistake::Value, "unknown mode 'x'", "use bypass")
            .about("volume 'a'")
            .at(|| Position::of("f", "", 0))
            .at(|| Position::of("g", "", 0));
        assert_eq!(error.explained(), "f:1:1: volume 'a': unknown mode 'x': use bypass");
    }
}
