//! Configuration errors: kind, position, message and remedy.

use forebay_types::{
    Action, Alternative, Blame, Fault, PROGRAM_SETTINGS, Remedy, Setting, Shown, VOLUME_SETTINGS,
};
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
    pub line: usize,
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
    cause: Option<SourceError>,
    remedy: Remedy,
}

/// The operating system's error. Equality compares the texts.
#[derive(Clone, Debug)]
struct SourceError(Arc<io::Error>);

impl PartialEq for SourceError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for SourceError {}

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
        self.cause = Some(SourceError(Arc::new(cause)));
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
        self.for_file()
    }

    /// Words the remedy as the configuration file is written: `mode = "bypass"` instead of
    /// `mode=bypass`.
    pub(crate) fn for_file(mut self) -> Self {
        let mut reworded = self.remedy.alternatives().map(|alternative| match alternative {
            Alternative::Text(text) => Alternative::from(for_file(text)),
            Alternative::Act(Action::Set { setting, value }) => {
                let setting = Setting::find(setting, &PROGRAM_SETTINGS);
                let key = setting.map_or("volume", |setting| setting.key);
                format!("write {}", assignment(key, setting, value)).into()
            }
            Alternative::Act(other) => other.clone().into(),
        });
        let first = reworded.next().expect("a remedy has at least one alternative");
        self.remedy = reworded.fold(Remedy::from(first), Remedy::or);
        self
    }

    /// The kind of the error.
    pub const fn mistake(&self) -> Mistake {
        self.mistake
    }

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

/// A setting with its value, as in the configuration file.
fn assignment(key: &str, setting: Option<&Setting>, value: &str) -> String {
    match value {
        "yes" | "no" if setting.is_some_and(Setting::is_switch) => {
            format!("{key} = {}", value == "yes")
        }
        _ => format!("{key} = {value:?}"),
    }
}

/// Rewords each word of the form `KEY=VALUE,KEY=VALUE` whose keys are known.
fn for_file(text: &str) -> String {
    let pair = |text: &str| {
        let (key, value) = text.split_once('=')?;
        let of_volume = Setting::find(key, &VOLUME_SETTINGS);
        let setting = of_volume.or_else(|| Setting::find(key, &PROGRAM_SETTINGS))?;
        (!value.is_empty()).then(|| assignment(key, Some(setting), value))
    };
    let words = text.split(' ').map(|word| {
        let (pairs, end) = word.split_at(word.trim_end_matches([',', ':', ';']).len());
        let pairs: Option<Vec<_>> = pairs.split(',').map(pair).collect();
        pairs.map_or_else(|| word.to_owned(), |pairs| pairs.join(" and ") + end)
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_file_is_written_as_in_a_file() {
        for (text, reworded) in [
            ("use bypass", "use bypass"),
            ("write read-only=yes or read-only=no", "write read-only = true or read-only = false"),
            (
                "write protection=journal,journal=PATH or protection=ups to keep them, \
                 protection=none,accept-loss=yes to accept that, or use mode=write-through",
                "write protection = \"journal\" and journal = \"PATH\" or protection = \"ups\" to \
                 keep them, protection = \"none\" and accept-loss = true to accept that, or use \
                 mode = \"write-through\"",
            ),
            ("as in NAME=BACKING", "as in NAME=BACKING"),
            ("xmode=a", "xmode=a"),
        ] {
            assert_eq!(for_file(text), reworded);
            assert_eq!(for_file(reworded), reworded, "a second time");
        }
        let error = ConfigError::new(Mistake::Value, "none", Action::set("ups", "NAME@HOST:PORT"));
        assert_eq!(error.for_file().explained(), "none: write ups = \"NAME@HOST:PORT\"");
    }

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
