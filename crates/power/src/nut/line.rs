//! Splits a stream into lines, and lines into words.

/// Maximum length of a line in bytes, without its LF. Servers send less than 1 KiB.
pub const LINE_BYTES_MAX: usize = 4096;
/// Maximum number of words in a line. `VAR` rows have four.
pub const WORDS_MAX: usize = 64;

/// A protocol violation by the server. The rest of the stream cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProtocolError {
    /// A line is too long.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    LongLine,
    /// A line has too many words.
    #[error("a line has more than {WORDS_MAX} words")]
    ManyWords,
    /// A quote is not closed, or is inside a word.
    #[error("a line has an unmatched quote")]
    Quote,
    /// A list is too long.
    #[error("a list has more than {} rows", super::LIST_ROWS_MAX)]
    LongList,
    /// A list ends without a beginning, begins inside another list, or ends with another list's
    /// name.
    #[error("unexpected BEGIN LIST or END LIST")]
    ListOrder,
    /// A row that belongs to another list.
    #[error("a row does not belong to its list")]
    ForeignRow,
    /// A reply that does not match the command.
    #[error("unexpected reply")]
    Unexpected,
    /// An empty line.
    #[error("a line is empty")]
    Empty,
}

/// Splits received bytes into lines.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were returned as lines.
    taken: usize,
    /// Bytes at the front of `buffer` that were searched for an LF.
    searched: usize,
}

impl LineSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line, without its LF or CR LF.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, ProtocolError> {
        let end = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
        let end_or_all = end.map_or(self.buffer.len(), |at| self.searched + at);
        if end_or_all - self.taken > LINE_BYTES_MAX {
            return Err(ProtocolError::LongLine);
        }
        if end.is_none() {
            self.searched = self.buffer.len();
            return Ok(None);
        }
        let line = &self.buffer[self.taken..end_or_all];
        self.taken = end_or_all + 1;
        self.searched = self.taken;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Whether no unread bytes are buffered.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Splits a line into words, separated by blanks. A word may be in double quotes, where `\` escapes
/// a quote or another `\`; a quoted word may be empty.
///
/// # Errors
/// On too many words, or an unmatched quote.
pub fn split_words(line: &[u8]) -> Result<Vec<String>, ProtocolError> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(words);
        }
        if words.len() == WORDS_MAX {
            return Err(ProtocolError::ManyWords);
        }
        let mut word = Vec::new();
        rest = match rest.strip_prefix(b"\"") {
            Some(quoted) => take_quoted(quoted, &mut word)?,
            None => take_plain(rest, &mut word)?,
        };
        words.push(readable(&word));
    }
}

fn take_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] | [b'\\'] => return Err(ProtocolError::Quote),
            [b'\\', byte, more @ ..] => {
                word.push(*byte);
                rest = more;
            }
            [b'"', more @ ..] if more.first().is_none_or(u8::is_ascii_whitespace) => {
                return Ok(more);
            }
            [b'"', ..] => return Err(ProtocolError::Quote),
            [byte, more @ ..] => {
                word.push(*byte);
                rest = more;
            }
        }
    }
}

fn take_plain<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (plain, rest) = rest.split_at(end);
    if plain.contains(&b'"') {
        return Err(ProtocolError::Quote);
    }
    word.extend_from_slice(plain);
    Ok(rest)
}

/// Converts bytes to printable text.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
