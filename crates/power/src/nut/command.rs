//! Commands to a NUT server.

use forebay_types::{Blame, Fault, Remedy};

/// Maximum length of a command's argument in bytes, the size of the server's buffers.
pub const WORD_BYTES_MAX: usize = 512;

/// A command. Administrative commands are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NutCommand<'a> {
    StartTls,
    /// Set the user name. The server checks it only when a later command requires it.
    Username(&'a str),
    /// Set the password.
    Password(&'a str),
    /// Register this machine as powered by the UPS: the primary waits for it before cutting power.
    Login(&'a str),
    /// Deregister: power may be cut. The server closes the connection.
    Logout,
    /// List all variables of a UPS.
    ListVar(&'a str),
}

/// An invalid argument of a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The argument contains a control character.
    #[error("the {what} contains a control character")]
    Control {
        /// The name of the argument.
        what: &'static str,
    },
    /// The argument is too long for the server.
    #[error("the {what} has {bytes} bytes, more than {WORD_BYTES_MAX}")]
    Long {
        /// The name of the argument.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// The argument is empty.
    #[error("the {what} is empty")]
    Empty {
        /// The name of the argument.
        what: &'static str,
    },
}

impl Fault for EncodeError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Control { .. } => "choose one without".into(),
            Self::Long { .. } => "choose a shorter one".into(),
            Self::Empty { .. } => "specify one".into(),
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl NutCommand<'_> {
    /// Appends the command's line with its LF to `output`.
    ///
    /// # Errors
    /// If the argument is empty, too long or contains a control character; `output` is unchanged.
    pub fn encode(&self, output: &mut Vec<u8>) -> Result<(), EncodeError> {
        let (verb, what, argument) = match *self {
            Self::StartTls => ("STARTTLS", "", None),
            Self::Username(name) => ("USERNAME", "user name", Some(name)),
            Self::Password(password) => ("PASSWORD", "password", Some(password)),
            Self::Login(ups) => ("LOGIN", "UPS name", Some(ups)),
            Self::Logout => ("LOGOUT", "", None),
            Self::ListVar(ups) => ("LIST VAR", "UPS name", Some(ups)),
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

/// Quotes an argument unless it is a plain word; old servers expect plain words unquoted.
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
