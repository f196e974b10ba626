//! What the server answers when it can't do what was asked.

use forebay_types::{Action, Blame, Fault, Remedy, Shown};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What sort of problem it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is no valid JSON, has unknown fields or misses some.
    BadRequest,
    /// There is nothing at this path.
    NotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The body is larger than the server reads.
    TooLarge,
    /// No volume is called that.
    UnknownVolume,
    /// A volume of that name, or another one with the same disk, is served already.
    VolumeExists,
    /// The settings can't be: an unknown mode, write-back without a protection.
    Invalid,
    /// It can't be done now, because something else is going on; later it can.
    Busy,
    /// It was tried and failed, as when a disk can't be opened or written.
    Failed,
    /// The server is stopping.
    Stopping,
    /// The server has a fault.
    Internal,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::UnknownVolume,
        Self::VolumeExists,
        Self::Invalid,
        Self::Busy,
        Self::Failed,
        Self::Stopping,
        Self::Internal,
    ];

    /// Where the fault of such a problem lies.
    pub const fn blame(self) -> Blame {
        match self {
            Self::BadRequest
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::TooLarge
            | Self::UnknownVolume
            | Self::VolumeExists
            | Self::Invalid => Blame::Operator,
            Self::Busy | Self::Failed | Self::Stopping => Blame::Environment,
            Self::Internal => Blame::Bug,
        }
    }

    /// The HTTP status it is sent with.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::NotFound | Self::UnknownVolume => 404,
            Self::MethodNotAllowed => 405,
            Self::VolumeExists => 409,
            Self::TooLarge => 413,
            Self::Invalid => 422,
            Self::Busy => 429,
            Self::Failed | Self::Internal => 500,
            Self::Stopping => 503,
        }
    }
}

/// One problem: what is wrong, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What sort of problem it is.
    pub kind: ErrorKind,
    /// What is wrong, naming the thing: `no volume 'disk'`.
    pub message: String,
    /// What to do: `forebay volume list shows those there are`.
    pub remedy: String,
}

impl Problem {
    /// A problem with its remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        // Both quote what was asked for.
        let shown = |text: String| Shown::line(&text).to_string();
        Self { kind, message: shown(message.into()), remedy: shown(remedy.into()) }
    }

    /// A fault, its remedy in the words of a program.
    pub fn of(kind: ErrorKind, fault: &dyn Fault, word: &dyn Fn(&Action) -> String) -> Self {
        Self::new(kind, fault.with_causes(), fault.remedy().worded(word))
    }

    /// No volume is called `name`.
    pub fn unknown_volume(name: &str) -> Self {
        let message = format!("no volume '{name}'");
        Self::new(ErrorKind::UnknownVolume, message, "list the volumes to see those there are")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Fault for Problem {
    fn remedy(&self) -> Remedy {
        self.remedy.clone().into()
    }

    fn blame(&self) -> Blame {
        self.kind.blame()
    }
}

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The problem.
    pub error: Problem,
}
