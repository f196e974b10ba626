//! Replies of a NUT server.

use super::line::{LineSplitter, ProtocolError, split_words};
use forebay_types::{Action, Remedy};
use std::fmt;

/// Maximum number of rows in a list. A UPS has tens of variables, rarely two hundred.
pub const LIST_ROWS_MAX: usize = 2048;

/// An error code from the server. Every code makes the state unknown; only the message differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(String);

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NutReply {
    /// `OK`, with the words after it.
    Ok(Vec<String>),
    /// `ERR`, with its code.
    Err(ErrorCode),
    /// One line of data.
    Data(Vec<String>),
    /// A list: the words after `BEGIN LIST`, and the rest of each row after the same words.
    List {
        /// The subject of the list: `["VAR", "lab"]`.
        what: Vec<String>,
        /// The rows: `["ups.status", "OL"]`.
        rows: Vec<Vec<String>>,
    },
}

/// The result of parsing the input so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NutEvent {
    /// No complete reply yet.
    NeedMore,
    Reply(NutReply),
    /// The server violated the protocol. Every further call returns this again.
    Broken(ProtocolError),
}

/// Parses a server's stream into replies.
#[derive(Debug, Default)]
pub struct NutParser {
    lines: LineSplitter,
    list: Option<(Vec<String>, Vec<Vec<String>>)>,
    broken: Option<ProtocolError>,
}

impl NutParser {
    /// A parser for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes. Call [`next`](Self::next) until it returns [`NutEvent::NeedMore`]
    /// before adding more, so that the buffer stays bounded.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            self.lines.push(bytes);
        }
    }

    /// The next reply in the input.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is not an iterator")]
    pub fn next(&mut self) -> NutEvent {
        if let Some(error) = self.broken {
            return NutEvent::Broken(error);
        }
        match self.advance() {
            Ok(Some(reply)) => NutEvent::Reply(reply),
            Ok(None) => NutEvent::NeedMore,
            Err(error) => {
                self.lines.clear();
                self.list = None;
                self.broken = Some(error);
                NutEvent::Broken(error)
            }
        }
    }

    /// Whether no input is buffered. This must hold when TLS starts; otherwise plain text injected
    /// by an attacker would be taken for the server's reply.
    pub fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.list.is_none() && self.broken.is_none()
    }

    fn advance(&mut self) -> Result<Option<NutReply>, ProtocolError> {
        while let Some(line) = self.lines.next()? {
            let mut words = split_words(line)?;
            let first = words.first().map(String::as_str).ok_or(ProtocolError::Empty)?;
            let second = words.get(1).map(String::as_str);
            match (first, second) {
                // An error inside a list replaces the list.
                ("ERR", _) => {
                    self.list = None;
                    return Ok(Some(NutReply::Err(ErrorCode(words.split_off(1).join(" ")))));
                }
                ("BEGIN", Some("LIST")) if self.list.is_none() => {
                    self.list = Some((words.split_off(2), Vec::new()));
                }
                ("END", Some("LIST")) => {
                    let (what, rows) = self.list.take().ok_or(ProtocolError::ListOrder)?;
                    if what != words[2..] {
                        return Err(ProtocolError::ListOrder);
                    }
                    return Ok(Some(NutReply::List { what, rows }));
                }
                ("BEGIN" | "END", _) => return Err(ProtocolError::ListOrder),
                _ => match &mut self.list {
                    Some((what, rows)) => take_row(what, rows, words)?,
                    None if first == "OK" => return Ok(Some(NutReply::Ok(words.split_off(1)))),
                    None => return Ok(Some(NutReply::Data(words))),
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
) -> Result<(), ProtocolError> {
    if !words.starts_with(what) {
        return Err(ProtocolError::ForeignRow);
    }
    if rows.len() == LIST_ROWS_MAX {
        return Err(ProtocolError::LongList);
    }
    rows.push(words.split_off(what.len()));
    Ok(())
}

impl NutReply {
    /// The variables of `ups`, if this is the reply to `LIST VAR`.
    ///
    /// # Errors
    /// If it is another reply, or a row is not a pair of name and value.
    pub fn variables(&self, ups: &str) -> Result<Vec<(&str, &str)>, ProtocolError> {
        let Self::List { what, rows } = self else { return Err(ProtocolError::Unexpected) };
        if !matches!(&what[..], [kind, of] if kind == "VAR" && of == ups) {
            return Err(ProtocolError::Unexpected);
        }
        rows.iter()
            .map(|row| match &row[..] {
                [name, value] => Ok((name.as_str(), value.as_str())),
                _ => Err(ProtocolError::ForeignRow),
            })
            .collect()
    }
}

impl ErrorCode {
    /// The code with its arguments.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The meaning of common codes.
    pub fn meaning(&self) -> &'static str {
        match self.name() {
            "DATA-STALE" => "the UPS driver has no current data",
            "DRIVER-NOT-CONNECTED" => "the UPS driver is not running",
            "UNKNOWN-UPS" => "no UPS of that name",
            "ACCESS-DENIED" => "user, password or permissions are wrong",
            "USERNAME-REQUIRED" | "PASSWORD-REQUIRED" => "login required",
            "FEATURE-NOT-CONFIGURED" => "the server has no TLS certificate",
            "ALREADY-LOGGED-IN" => "this connection is already logged in",
            _ => "the state of the UPS is unknown",
        }
    }

    /// The remedy for common codes.
    pub fn remedy(&self) -> Remedy {
        match self.name() {
            "DATA-STALE" => "check the driver and the cable".into(),
            "DRIVER-NOT-CONNECTED" => "start it".into(),
            "UNKNOWN-UPS" => "list the names with `upsc -l HOST`".into(),
            "ACCESS-DENIED" => "check upsd.users".into(),
            "USERNAME-REQUIRED" | "PASSWORD-REQUIRED" => "set user and password".into(),
            "FEATURE-NOT-CONFIGURED" => "configure or disable TLS".into(),
            "ALREADY-LOGGED-IN" => Action::Report.into(),
            _ => "see the log of upsd".into(),
        }
    }

    /// The code without its arguments.
    fn name(&self) -> &str {
        self.0.split(' ').next().unwrap_or("")
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERR {}: {}", self.0, self.meaning())
    }
}
