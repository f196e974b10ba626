//! Escapes untrusted text for terminals and logs.

use std::fmt::{self, Write};

/// Untrusted text, such as a command-line argument, for a terminal or a log. Characters that move
/// the cursor, change colours, break the line or change the writing direction are shown as escapes,
/// such as `\u{1b}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown<'a> {
    text: &'a str,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Line,
    Lines,
    Json,
}

impl<'a> Shown<'a> {
    /// Shows the text on one line: line breaks are escaped.
    pub const fn line(text: &'a str) -> Self {
        Self { text, form: Form::Line }
    }

    /// Keeps the line breaks of the text.
    pub const fn lines(text: &'a str) -> Self {
        Self { text, form: Form::Lines }
    }

    /// Shows a JSON document: keeps its line breaks, and uses escapes such as `\u001b`, with which
    /// it stays the same document. Outside its strings, it has no other such characters.
    pub const fn json(text: &'a str) -> Self {
        Self { text, form: Form::Json }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.text.chars() {
            match self.form {
                _ if is_plain(c) => f.write_char(c)?,
                Form::Lines | Form::Json if c == '\n' => f.write_char(c)?,
                // None of these characters needs two units of UTF-16.
                Form::Json => write!(f, "\\u{:04x}", u32::from(c))?,
                Form::Line | Form::Lines => write!(f, "{}", c.escape_default())?,
            }
        }
        Ok(())
    }
}

/// Whether a character only prints a glyph.
fn is_plain(c: char) -> bool {
    let changes_direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}');
    let breaks_line = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || changes_direction || breaks_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_escaped() {
        for (text, shown) in [
            ("plain 'ü' \\ \u{1f600}", "plain 'ü' \\ \u{1f600}"),
            ("\x1b[31mred", "\\u{1b}[31mred"),
            ("a\nb\tc\r\0", "a\\nb\\tc\\r\\u{0}"),
            ("\u{9b}2J\x7f", "\\u{9b}2J\\u{7f}"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
            ("a\u{2028}b", "a\\u{2028}b"),
        ] {
            assert_eq!(Shown::line(text).to_string(), shown);
        }
        assert_eq!(Shown::lines("a\n\x07b\n").to_string(), "a\n\\u{7}b\n");
        assert_eq!(Shown::json("\"\u{9b}\u{202e}ü\"\n").to_string(), "\"\\u009b\\u202eü\"\n");
    }
}
