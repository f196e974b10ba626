//! Text for a terminal: lines of pieces with a style, none wider than the page.
//!
//! Every piece is escaped when it is added, so that names and messages cannot control the terminal,
//! and so that their width is that of what is shown.

use forebay_types::Shown;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The width that every page fits in, in columns.
pub const WIDTH: usize = 80;
/// The column where the values of fields begin.
const VALUES_AT: usize = 20;
/// The indentation of the fields below a heading, in columns.
const INDENT: usize = 2;

/// How a piece of text looks in a terminal with colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Text.
    #[default]
    Plain,
    /// Headings.
    Strong,
    /// A good state.
    Good,
    /// A state to look at.
    Warning,
    /// A state to mend.
    Error,
    /// Labels and further remarks.
    Faint,
}

impl Style {
    /// The parameters of the control sequence SGR; empty for plain text.
    const fn parameters(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "1",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Error => "1;31",
            Self::Faint => "2",
        }
    }
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    style: Style,
    text: String,
}

impl Piece {
    /// A piece with a style; the text is escaped.
    pub fn new(style: Style, text: impl AsRef<str>) -> Self {
        Self { style, text: Shown::line(text.as_ref()).to_string() }
    }

    /// A piece without a style.
    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(Style::Plain, text)
    }

    /// Its style.
    pub const fn style(&self) -> Style {
        self.style
    }

    /// Its text, escaped.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Lines of text.
#[derive(Clone, Debug)]
pub struct Page {
    width: usize,
    /// The columns before the label of a field.
    indent: usize,
    lines: Vec<Vec<Piece>>,
}

impl Default for Page {
    fn default() -> Self {
        Self::new(WIDTH)
    }
}

impl Page {
    /// An empty page of this width, in columns; at least [`WIDTH`].
    pub fn new(width: usize) -> Self {
        Self { width: width.max(WIDTH), indent: 0, lines: Vec::new() }
    }

    /// The columns of each line.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// The number of lines.
    pub const fn height(&self) -> usize {
        self.lines.len()
    }

    /// Adds a line, which must fit.
    pub fn line(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        let mut pieces: Vec<_> = pieces.into_iter().collect();
        // No blanks at the end of a line.
        while let Some(last) = pieces.last_mut() {
            last.text.truncate(last.text.trim_end().len());
            if !last.text.is_empty() {
                break;
            }
            pieces.pop();
        }
        self.lines.push(pieces);
    }

    /// Adds an empty line, unless the page is empty or ends with one.
    pub fn blank(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(Vec::new());
        }
    }

    /// Adds a heading after an empty line. Fields after it are indented.
    pub fn heading(&mut self, text: &str) {
        self.blank();
        self.wrapped(Style::Strong, text);
        self.indent = INDENT;
    }

    /// Adds text in as many lines as it needs.
    pub fn wrapped(&mut self, style: Style, text: &str) {
        self.hanging(Piece::plain(""), 0, style, text);
    }

    /// Adds a label and its value, in as many lines as they need.
    pub fn field(&mut self, label: &str, value: impl AsRef<str>) {
        self.styled_field(label, Style::Plain, value);
    }

    /// Like [`field`](Self::field), with a style for the value.
    pub fn styled_field(&mut self, label: &str, style: Style, value: impl AsRef<str>) {
        let label = Piece::new(Style::Faint, format!("{:1$}{label}", "", self.indent));
        self.hanging(label, VALUES_AT + self.indent, style, value.as_ref());
    }

    /// Adds a label and text beside it from this column on.
    pub fn hanging(&mut self, mut label: Piece, column: usize, style: Style, text: &str) {
        let used = width(&label.text);
        if column > 0 {
            label.text.push_str(&" ".repeat(column.saturating_sub(used).max(1)));
        }
        let text = Shown::line(text).to_string();
        let first = self.width.saturating_sub(width(&label.text));
        for (at, line) in wrap(&text, first, self.width - column).into_iter().enumerate() {
            let piece = Piece { style, text: line };
            match at {
                0 => self.line([label.clone(), piece]),
                _ => self.line([Piece::plain(" ".repeat(column)), piece]),
            }
        }
    }

    /// Adds the lines of another page.
    pub fn append(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    /// Keeps at most this many lines, the last of which says how many are missing.
    pub fn limit(&mut self, height: usize) {
        let missing = self.height().saturating_sub(height.saturating_sub(1));
        if self.height() > height {
            self.lines.truncate(height.saturating_sub(1));
            self.lines.push(vec![Piece::new(Style::Faint, format!("... {missing} more lines"))]);
        }
    }

    /// The pieces of each line.
    pub fn pieces(&self) -> impl Iterator<Item = &[Piece]> {
        self.lines.iter().map(Vec::as_slice)
    }

    /// The lines as text, with control sequences for colors if `color`.
    pub fn lines(&self, color: bool) -> impl Iterator<Item = String> {
        self.lines.iter().map(move |line| line.iter().map(|piece| piece.render(color)).collect())
    }

    /// The whole text.
    pub fn text(&self, color: bool) -> String {
        self.lines(color).map(|line| line + "\n").collect()
    }
}

impl Piece {
    fn render(&self, color: bool) -> String {
        match self.style.parameters() {
            "" => self.text.clone(),
            _ if !color || self.text.trim().is_empty() => self.text.clone(),
            parameters => format!("\x1b[{parameters}m{}\x1b[0m", self.text),
        }
    }
}

/// The columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most `most` columns: what does not fit is left out in the middle.
pub fn cut(text: &str, most: usize) -> String {
    let text = Shown::line(text).to_string();
    if width(&text) <= most {
        return text;
    }
    let (end, start) = ((most.saturating_sub(1)) / 2, most.saturating_sub(1).div_ceil(2));
    let head = taken(text.chars(), start);
    let tail: String = taken(text.chars().rev(), end).chars().rev().collect();
    // One column is left for the ellipsis.
    if most == 0 { String::new() } else { format!("{head}\u{2026}{tail}") }
}

/// As many of the characters as fit in these columns.
fn taken(characters: impl Iterator<Item = char>, columns: usize) -> String {
    let mut used = 0;
    characters
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= columns
        })
        .collect()
}

/// The text with blanks after it, up to a width.
pub fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// The text with blanks before it, up to a width.
pub fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

/// The words of a text. A number and its unit are one, so that no line ends between them.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 12] =
        ["%", "us", "ms", "s", "min", "k", "M", "KiB", "MiB", "GiB", "TiB", "B"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        match words.last_mut() {
            Some(last) if is_unit && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Breaks a text into lines: `first` columns for the first one, `rest` for the others. A word that
/// is longer than a line is broken as well.
fn wrap(text: &str, first: usize, rest: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in words(text) {
        let mut word = &*word;
        loop {
            let most = if lines.is_empty() { first } else { rest };
            let before = if line.is_empty() { 0 } else { width(&line) + 1 };
            if before + width(word) <= most {
                line.extend((before > 0).then_some(' '));
                line.push_str(word);
                break;
            }
            if before == 0 {
                line = taken(word.chars(), most);
                word = &word[line.len()..];
            }
            lines.push(std::mem::take(&mut line));
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_in_the_middle_by_columns() {
        for (name, most, shown) in [
            ("short", 5, "short"),
            ("database-0001", 8, "data\u{2026}001"),
            ("database-0001", 7, "dat\u{2026}001"),
            ("ab", 1, "\u{2026}"),
            // Each of these characters takes two columns.
            ("\u{8cc7}\u{6599}\u{5eab}\u{4e00}", 8, "\u{8cc7}\u{6599}\u{5eab}\u{4e00}"),
            ("\u{8cc7}\u{6599}\u{5eab}\u{4e00}", 7, "\u{8cc7}\u{2026}\u{4e00}"),
            ("\u{202e}x", 9, "\\u{202e}x"),
        ] {
            assert_eq!(cut(name, most), shown);
            assert!(width(&cut(name, most)) <= most, "{name}");
        }
        for (text, columns) in [("ab", 4), ("\u{8cc7}", 4)] {
            assert_eq!(width(&padded(text, columns)), columns);
            assert_eq!(width(&right(text, columns)), columns);
        }
    }

    #[test]
    fn text_is_wrapped_at_words_and_long_words_are_broken() {
        assert_eq!(wrap("", 5, 5), [""]);
        assert_eq!(wrap("a bc def", 4, 4), ["a bc", "def"]);
        assert_eq!(wrap("a bc def", 2, 6), ["a", "bc def"]);
        assert_eq!(wrap("ab 20 %, c", 6, 6), ["ab", "20 %,", "c"]);
        assert_eq!(wrap("abcdefgh i", 3, 4), ["abc", "defg", "h i"]);
        assert_eq!(wrap("a bcdefgh", 3, 4), ["a", "bcde", "fgh"]);
    }

    #[test]
    fn fields_are_aligned_and_escaped() {
        let mut page = Page::default();
        page.heading("Disk");
        page.field("name", "x ".repeat(40));
        page.styled_field("a label that is longer than its column", Style::Error, "\x1b[2J");
        let text = page.text(false);
        assert!(text.starts_with("Disk\n  name                x x "), "{text}");
        assert!(text.lines().all(|line| width(line) <= WIDTH && line.trim_end() == line), "{text}");
        assert!(text.ends_with("its column \\u{1b}[2J\n"), "{text}");
        let colored = page.text(true);
        assert!(colored.starts_with("\x1b[1mDisk\x1b[0m\n"), "{colored:?}");
        assert!(colored.ends_with("\x1b[1;31m\\u{1b}[2J\x1b[0m\n"), "{colored:?}");
    }

    #[test]
    fn a_page_that_is_too_high_says_how_much_is_missing() {
        let mut page = Page::default();
        (0..5).for_each(|n| page.line([Piece::plain(n.to_string())]));
        page.limit(5);
        assert_eq!(page.height(), 5);
        page.limit(3);
        assert_eq!(page.text(false), "0\n1\n... 3 more lines\n");
    }
}
