//! Lines, and the words in them.

/// Longest line that is taken, in bytes without its LF. Servers send below 1 KiB.
pub const LINE_BYTES_MAX: usize = 4096;
/// Most words of a line. `VAR` rows have four.
pub const WORDS_MAX: usize = 64;

/// The server broke the protocol; nothing it says afterwards can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Breach {
    /// A line without an end in sight.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    LongLine,
    /// A line of very many words.
    #[error("a line has more than {WORDS_MAX} words")]
    ManyWords,
    /// A quote is opened and not closed, or stands inside of a word.
    #[error("a line has a quote without its partner")]
    Quote,
    /// A list without an end in sight.
    #[error("a list has more than {} rows", super::LIST_ROWS_MAX)]
    LongList,
    /// A list ends that has not begun, begins inside another, or ends as a different one.
    #[error("a list begins or ends where it can not")]
    ListOrder,
    /// A row of a list that belongs to another list.
    #[error("a row does not belong to its list")]
    ForeignRow,
    /// A reply that answers something else, or one too many.
    #[error("a reply does not fit its question")]
    Unasked,
    /// A line that says nothing.
    #[error("a line is empty")]
    Empty,
}

/// The bytes that have come, cut into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
    /// Bytes at the front of `held` that were handed out, or looked at without finding an end.
    taken: usize,
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next whole line, without its LF or CR LF.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Breach> {
        let end = self.held[self.searched..].iter().position(|&byte| byte == b'\n');
        let end_or_all = end.map_or(self.held.len(), |at| self.searched + at);
        if end_or_all - self.taken > LINE_BYTES_MAX {
            return Err(Breach::LongLine);
        }
        if end.is_none() {
            self.searched = self.held.len();
            return Ok(None);
        }
        let line = &self.held[self.taken..end_or_all];
        self.taken = end_or_all + 1;
        self.searched = self.taken;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Whether bytes are held that nobody has asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.held.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The words of a line: separated by blanks, or in double quotes, with `\` before a quote or
/// another `\`. A word in quotes may be empty.
///
/// # Errors
/// Too many words, or a quote without its partner.
pub fn split_words(line: &[u8]) -> Result<Vec<String>, Breach> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(words);
        }
        if words.len() == WORDS_MAX {
            return Err(Breach::ManyWords);
        }
        let mut word = Vec::new();
        rest = match rest.strip_prefix(b"\"") {
            Some(quoted) => take_quoted(quoted, &mut word)?,
            None => take_plain(rest, &mut word)?,
        };
        words.push(readable(&word));
    }
}

fn take_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], Breach> {
    loop {
        match rest {
            [] | [b'\\'] => return Err(Breach::Quote),
            [b'\\', byte, more @ ..] => {
                word.push(*byte);
                rest = more;
            }
            [b'"', more @ ..] if more.first().is_none_or(u8::is_ascii_whitespace) => {
                return Ok(more);
            }
            [b'"', ..] => return Err(Breach::Quote),
            [byte, more @ ..] => {
                word.push(*byte);
                rest = more;
            }
        }
    }
}

fn take_plain<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], Breach> {
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (plain, rest) = rest.split_at(end);
    if plain.contains(&b'"') {
        return Err(Breach::Quote);
    }
    word.extend_from_slice(plain);
    Ok(rest)
}

/// Text for people and logs, whatever the bytes were.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
