//! What is said to a NUT server.

/// Longest argument of a command, in bytes. The server's own buffers are this long at most.
pub const WORD_BYTES_MAX: usize = 512;

/// A command, without what only an administrator's tool would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Encrypt this connection from here on.
    StartTls,
    /// Who we are. Checked by the server only when a command needs it.
    Username(&'a str),
    /// And the proof.
    Password(&'a str),
    /// This machine is fed by the supply: its primary waits for us before it cuts the power.
    Login(&'a str),
    /// Our data are safe and the power may go. The server closes the connection.
    Logout,
    /// All variables of a supply.
    ListVar(&'a str),
}

/// An argument that can not be put on a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// It would end the line, or upset the server.
    #[error("the {what} holds a control character: choose one without")]
    Control {
        /// What the argument is.
        what: &'static str,
    },
    /// Longer than a server takes.
    #[error("the {what} has {bytes} bytes, more than {WORD_BYTES_MAX}: choose a shorter one")]
    Long {
        /// What the argument is.
        what: &'static str,
        /// Its length, in bytes.
        bytes: usize,
    },
    /// Nothing at all.
    #[error("the {what} is empty: give one")]
    Empty {
        /// What the argument is.
        what: &'static str,
    },
}

impl Command<'_> {
    /// Appends the command's line, with its LF, to `output`.
    ///
    /// # Errors
    /// An argument is empty, too long or holds a control character; `output` is as it was.
    pub fn encode(&self, output: &mut Vec<u8>) -> Result<(), EncodeError> {
        let (verb, what, argument) = match *self {
            Self::StartTls => ("STARTTLS", "", None),
            Self::Username(name) => ("USERNAME", "user name", Some(name)),
            Self::Password(password) => ("PASSWORD", "password", Some(password)),
            Self::Login(supply) => ("LOGIN", "supply's name", Some(supply)),
            Self::Logout => ("LOGOUT", "", None),
            Self::ListVar(supply) => ("LIST VAR", "supply's name", Some(supply)),
        };
        if let Some(argument) = argument {
            check(what, argument)?;
        }
        output.extend_from_slice(verb.as_bytes());
        if let Some(argument) = argument {
            output.push(b' ');
            quote(argument, output);
        }
        output.push(b'\n');
        Ok(())
    }
}

fn check(what: &'static str, argument: &str) -> Result<(), EncodeError> {
    if argument.is_empty() {
        return Err(EncodeError::Empty { what });
    }
    if argument.len() > WORD_BYTES_MAX {
        return Err(EncodeError::Long { what, bytes: argument.len() });
    }
    if argument.chars().any(char::is_control) {
        return Err(EncodeError::Control { what });
    }
    Ok(())
}

/// Plain words go as they are, which is what old servers expect; all others in quotes.
fn quote(argument: &str, output: &mut Vec<u8>) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@:/+".contains(&byte);
    if argument.bytes().all(plain) {
        return output.extend_from_slice(argument.as_bytes());
    }
    output.push(b'"');
    for byte in argument.bytes() {
        if matches!(byte, b'"' | b'\\') {
            output.push(b'\\');
        }
        output.push(byte);
    }
    output.push(b'"');
}
