//! What a NUT server answers.

use super::line::{Breach, Lines, split_words};
use std::fmt;

/// Most rows of a list. A supply has some tens of variables, few have two hundred.
pub const LIST_ROWS_MAX: usize = 2048;

/// A refusal, as the server worded it. Whatever it is, the state is unknown; only the sentence
/// for people differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(String);

/// One whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `OK`, with the words behind it.
    Ok(Vec<String>),
    /// `ERR`, with its code.
    Err(ErrorCode),
    /// One line of data.
    Data(Vec<String>),
    /// A list: the words behind `BEGIN LIST`, and of each row the words behind those.
    List {
        /// What is listed: `["VAR", "lab"]`.
        what: Vec<String>,
        /// Its rows: `["ups.status", "OL"]`.
        rows: Vec<Vec<String>>,
    },
}

/// What the bytes so far amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// No whole answer is here.
    NeedMore,
    /// An answer.
    Reply(Reply),
    /// The server broke the protocol. From here on there is nothing else.
    Broken(Breach),
}

/// Cuts a server's stream into replies.
#[derive(Debug, Default)]
pub struct ReplyParser {
    lines: Lines,
    list: Option<(Vec<String>, Vec<Vec<String>>)>,
    broken: Option<Breach>,
}

impl ReplyParser {
    /// A parser at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they came. Call [`next`](Self::next) until it needs more before the next
    /// bytes, or what is held grows.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            self.lines.push(bytes);
        }
    }

    /// The next answer in what was pushed.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> Event {
        if let Some(breach) = self.broken {
            return Event::Broken(breach);
        }
        match self.advance() {
            Ok(Some(reply)) => Event::Reply(reply),
            Ok(None) => Event::NeedMore,
            Err(breach) => {
                self.lines.clear();
                self.list = None;
                self.broken = Some(breach);
                Event::Broken(breach)
            }
        }
    }

    /// Whether nothing is held: no byte of an answer that nobody has asked for. Where encryption
    /// begins this must be so, or somebody in between could put words into the server's mouth.
    pub fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.list.is_none() && self.broken.is_none()
    }

    fn advance(&mut self) -> Result<Option<Reply>, Breach> {
        while let Some(line) = self.lines.next()? {
            let mut words = split_words(line)?;
            let first = words.first().map(String::as_str).ok_or(Breach::Empty)?;
            let second = words.get(1).map(String::as_str);
            match (first, second) {
                // A list that is cut short by a refusal is that refusal.
                ("ERR", _) => {
                    self.list = None;
                    return Ok(Some(Reply::Err(ErrorCode(words.split_off(1).join(" ")))));
                }
                ("BEGIN", Some("LIST")) if self.list.is_none() => {
                    self.list = Some((words.split_off(2), Vec::new()));
                }
                ("END", Some("LIST")) => {
                    let (what, rows) = self.list.take().ok_or(Breach::ListOrder)?;
                    if what != words[2..] {
                        return Err(Breach::ListOrder);
                    }
                    return Ok(Some(Reply::List { what, rows }));
                }
                ("BEGIN" | "END", _) => return Err(Breach::ListOrder),
                _ => match &mut self.list {
                    Some((what, rows)) => take_row(what, rows, words)?,
                    None if first == "OK" => return Ok(Some(Reply::Ok(words.split_off(1)))),
                    None => return Ok(Some(Reply::Data(words))),
                },
            }
        }
        Ok(None)
    }
}

fn take_row(
    what: &[String],
    rows: &mut Vec<Vec<String>>,
    mut words: Vec<String>,
) -> Result<(), Breach> {
    if !words.starts_with(what) {
        return Err(Breach::ForeignRow);
    }
    if rows.len() == LIST_ROWS_MAX {
        return Err(Breach::LongList);
    }
    rows.push(words.split_off(what.len()));
    Ok(())
}

impl Reply {
    /// The variables of `supply`, if this is the answer to `LIST VAR`.
    ///
    /// # Errors
    /// It is the answer to something else, or a row is no pair of name and value.
    pub fn variables(&self, supply: &str) -> Result<Vec<(&str, &str)>, Breach> {
        let Self::List { what, rows } = self else { return Err(Breach::Unasked) };
        if !matches!(&what[..], [kind, of] if kind == "VAR" && of == supply) {
            return Err(Breach::Unasked);
        }
        rows.iter()
            .map(|row| match &row[..] {
                [name, value] => Ok((name.as_str(), value.as_str())),
                _ => Err(Breach::ForeignRow),
            })
            .collect()
    }
}

impl ErrorCode {
    /// The code and whatever stood behind it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the code means and what to do, for those that are met in practice.
    pub fn meaning(&self) -> &'static str {
        match self.0.split(' ').next().unwrap_or("") {
            "DATA-STALE" => "its driver has no fresh data: look at the driver and the cable",
            "DRIVER-NOT-CONNECTED" => "the supply's driver does not run: start it",
            "UNKNOWN-UPS" => "it has no supply of that name: `upsc -l HOST` lists them",
            "ACCESS-DENIED" => "user, password or rights are refused: look at its upsd.users",
            "USERNAME-REQUIRED" | "PASSWORD-REQUIRED" => "it asks for user and password: give both",
            "FEATURE-NOT-CONFIGURED" => "it has no certificate: set up TLS there or leave it out",
            "ALREADY-LOGGED-IN" => "this connection has logged in before",
            _ => "the state of the supply is not known",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERR {}: {}", self.0, self.meaning())
    }
}
