//! Errors of requests.

use forebay_types::{Action, Blame, Fault, Remedy, Shown};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The kind of a problem, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is not valid JSON, or has unknown or missing fields.
    BadRequest,
    /// Unknown path.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The request needs a valid token.
    Unauthorized,
    /// The token does not suffice, or the request comes from another page than the dashboard.
    Forbidden,
    /// The body is too large.
    TooLarge,
    /// There is no volume of this name.
    UnknownVolume,
    /// A volume of this name, or another one on the same disk, is already served.
    VolumeExists,
    /// The settings are invalid, such as an unknown mode, or write-back without protection.
    Invalid,
    /// Clients are connected, and would be disconnected.
    InUse,
    /// Another operation is in progress; retry later.
    Busy,
    /// The operation failed, for example because a disk could not be opened or written.
    Failed,
    /// The server is stopping.
    Stopping,
    /// A bug in the server.
    Internal,
}

impl ErrorKind {
    /// The party at fault.
    pub const fn blame(self) -> Blame {
        match self {
            Self::BadRequest
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Unauthorized
            | Self::Forbidden
            | Self::TooLarge
            | Self::UnknownVolume
            | Self::VolumeExists
            | Self::InUse
            | Self::Invalid => Blame::Operator,
            Self::Busy | Self::Failed | Self::Stopping => Blame::Environment,
            Self::Internal => Blame::Bug,
        }
    }

    /// The HTTP status.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound | Self::UnknownVolume => 404,
            Self::MethodNotAllowed => 405,
            Self::VolumeExists | Self::InUse => 409,
            Self::TooLarge => 413,
            Self::Invalid => 422,
            Self::Busy => 429,
            Self::Failed | Self::Internal => 500,
            Self::Stopping => 503,
        }
    }
}

/// A problem and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ErrorKind,
    /// The problem, with its subject: `no volume 'disk'`.
    pub message: String,
    /// The remedy: `list the volumes to see their names`.
    pub remedy: String,
}

impl Problem {
    /// A problem with its remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        // Both may quote text of the request, which may contain control characters.
        let shown = |text: String| Shown::line(&text).to_string();
        Self { kind, message: shown(message.into()), remedy: shown(remedy.into()) }
    }

    /// Converts a fault. `word` puts the actions of its remedy into words.
    pub fn of(kind: ErrorKind, fault: &dyn Fault, word: &dyn Fn(&Action) -> String) -> Self {
        Self::new(kind, fault.with_causes(), fault.remedy().worded(word))
    }

    /// The problem that there is no client `id`.
    pub fn unknown_client(id: u64) -> Self {
        let message = format!("no client {id} is connected");
        Self::new(ErrorKind::NotFound, message, "list the clients to see their numbers")
    }

    /// The problem that there is no volume `name`.
    pub fn unknown_volume(name: &str) -> Self {
        let message = format!("no volume '{name}'");
        Self::new(ErrorKind::UnknownVolume, message, "list the volumes to see their names")
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

/// The body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The problem.
    pub error: Problem,
}
