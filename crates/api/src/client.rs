//! The client: one connection per request over the control socket.
//!
//! A request is rare and short beside what it asks for, so nothing is kept open between two of
//! them: a client holds a path and nothing else, and a restarted server is found again.

use crate::{
    AddVolume, DrillReport, ErrorBody, Event, Problem, Progress, Status, VolumeList,
    VolumeSettings, VolumeStatus, paths,
};
use forebay_types::{Action, Blame, Fault, Remedy};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::UnixStream;

/// Largest answer that is read, in bytes: 1024 volumes with the longest names and descriptions.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Longest line of a stream, in bytes: a problem with its remedy.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How long a rehearsal may take: longer than any battery lasts that is bought for this.
const DRILL_TIME_MAX: Duration = Duration::from_secs(4 * 60 * 60);

/// How long a server may be silent.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Until the answer to a question, which waits for no disk.
    question: Duration,
    /// Until the answer to a short request. Adding a volume opens a disk, which may have to spin
    /// up.
    request: Duration,
    /// Between two lines of a stream. The server says something every second; versions that did
    /// not were silent for as long as a disk may be.
    line: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { question: Duration::from_secs(10), request: minute, line: minute }
    }
}

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at the socket.
    #[error("no forebay answers at {}", socket.display())]
    NotRunning {
        /// The control socket.
        socket: PathBuf,
    },
    /// The socket belongs to someone else.
    #[error("{} may not be opened", socket.display())]
    NotAllowed {
        /// The control socket.
        socket: PathBuf,
    },
    /// The socket can't be opened for another reason.
    #[error("{} can't be opened", socket.display())]
    Connect {
        /// The control socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server said no.
    #[error(transparent)]
    Refused(#[from] Problem),
    /// The connection ended or broke before the answer was complete.
    #[error("the server went away before it had answered")]
    Cut {
        /// What the connection said, if it broke.
        source: Option<hyper::Error>,
    },
    /// The server did not answer in time.
    #[error("the forebay at {} has not answered for {} s", socket.display(), waited.as_secs())]
    TimedOut {
        /// The control socket.
        socket: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// So many requests wait for the server that it takes no more.
    #[error(
        "the forebay at {} takes no more requests, as too many wait already", socket.display()
    )]
    Busy {
        /// The control socket.
        socket: PathBuf,
    },
    /// The answer is not what this version understands.
    #[error("the answer can't be read ({what})")]
    Answer {
        /// What is wrong with it.
        what: String,
    },
}

impl Fault for ClientError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NotRunning { .. } => Remedy::from(Action::Start).or(Action::NameState),
            Self::NotAllowed { .. } => "run this as the user who runs forebay".into(),
            Self::Connect { .. } => "see that it is forebay's control socket".into(),
            Self::Refused(problem) => problem.remedy(),
            Self::Cut { .. } => "look into its log".into(),
            Self::TimedOut { .. } => {
                "see its log, and whether its process is stopped or the machine overloaded".into()
            }
            Self::Busy { .. } => "see its log, and whether its process is stopped".into(),
            Self::Answer { .. } => "use the forebay of the server's version".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Refused(problem) => problem.blame(),
            _ => Blame::Environment,
        }
    }
}

type Result<T> = std::result::Result<T, ClientError>;

/// Speaks to the server behind one control socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    limits: Limits,
}

impl Client {
    /// A client for the control socket at this path. Nothing is opened yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), limits: Limits::default() }
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The state of everything.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all requests.
    pub async fn status(&self) -> Result<Status> {
        self.question(paths::STATUS).await
    }

    /// All volumes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn volume_list(&self) -> Result<Vec<VolumeStatus>> {
        let list: VolumeList = self.question(paths::VOLUMES).await?;
        Ok(list.volumes)
    }

    /// One volume.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn volume(&self, name: &str) -> Result<VolumeStatus> {
        self.question(&paths::volume(name)).await
    }

    /// Adds a volume.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn add_volume(&self, request: &AddVolume) -> Result<VolumeStatus> {
        self.short(Method::POST, paths::VOLUMES, Some(request)).await
    }

    /// Changes settings of a volume.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_volume(&self, name: &str, change: &VolumeSettings) -> Result<VolumeStatus> {
        self.short(Method::PATCH, &paths::volume(name), Some(change)).await
    }

    /// Writes a volume's dirty data to its disk and takes the volume away.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_volume(
        &self,
        name: &str,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<()> {
        self.long(Method::DELETE, &paths::volume(name), progress).await
    }

    /// Writes a volume's dirty data to its disk.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn flush_volume(
        &self,
        name: &str,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<()> {
        self.long(Method::POST, &paths::volume_flush(name), progress).await
    }

    /// Trusts a volume's disk again after it failed a flush, and flushes it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trust_volume(
        &self,
        name: &str,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<()> {
        self.long(Method::POST, &paths::volume_trust(name), progress).await
    }

    /// Measures below which size writes of a volume are worth gathering.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn calibrate_volume(&self, name: &str) -> Result<VolumeStatus> {
        self.short(Method::POST, &paths::volume_calibrate(name), None::<&()>).await
    }

    /// Rehearses a power failure.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn drill(&self) -> Result<DrillReport> {
        self.answer(Method::POST, paths::DRILL, None::<&()>, DRILL_TIME_MAX).await
    }

    /// Writes all dirty data to the disks and ends the server.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stop(&self, progress: impl FnMut(Progress) + Send) -> Result<()> {
        self.long(Method::POST, paths::STOP, progress).await
    }

    /// Hands the pool over to the program now at the server's path. When it is done, that one is
    /// about to start.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn upgrade(&self) -> Result<()> {
        self.long(Method::POST, paths::UPGRADE, |_| ()).await
    }

    /// A question, which changes nothing.
    async fn question<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.answer(Method::GET, path, None::<&()>, self.limits.question).await
    }

    /// A request with one answer.
    async fn short<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        self.answer(method, path, body, self.limits.request).await
    }

    /// The same, within so long.
    async fn answer<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        limit: Duration,
    ) -> Result<T> {
        let answer = async {
            let response = self.send(method, path, body).await?;
            let bytes = read_body(response).await?;
            serde_json::from_slice(&bytes)
                .map_err(|error| ClientError::Answer { what: error.to_string() })
        };
        self.within(limit, answer).await?
    }

    /// What comes of waiting, unless that takes too long.
    async fn within<T>(&self, waited: Duration, what: impl Future<Output = T>) -> Result<T> {
        let timed_out = |_| ClientError::TimedOut { socket: self.socket.clone(), waited };
        tokio::time::timeout(waited, what).await.map_err(timed_out)
    }

    /// A request that answers with a stream of events.
    async fn long(
        &self,
        method: Method,
        path: &str,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<()> {
        let sent = self.send(method, path, None::<&()>);
        let mut body = self.within(self.limits.line, sent).await??.into_body();
        let mut line = Vec::new();
        while let Some(frame) = self.within(self.limits.line, body.frame()).await? {
            let frame = frame.map_err(|source| ClientError::Cut { source: Some(source) })?;
            let Ok(data) = frame.into_data() else { continue };
            for piece in data.split_inclusive(|&byte| byte == b'\n') {
                line.extend_from_slice(piece);
                if line.len() > LINE_BYTES_MAX {
                    return Err(ClientError::Answer { what: "a line without an end".into() });
                }
                if line.last() != Some(&b'\n') {
                    continue;
                }
                match serde_json::from_slice(&line) {
                    Ok(Event::Progress(report)) => progress(report),
                    Ok(Event::Done(_)) => return Ok(()),
                    Ok(Event::Error(problem)) => return Err(problem.into()),
                    Err(error) => return Err(ClientError::Answer { what: error.to_string() }),
                }
                line.clear();
            }
        }
        Err(ClientError::Cut { source: None })
    }

    /// Sends a request; an answer that is an error becomes one here.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<Response<Incoming>> {
        let cut = |source| ClientError::Cut { source: Some(source) };
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| connect_error(&self.socket, error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
        // It ends by itself when the answer is read or dropped; its errors reach us through both.
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(method).uri(path).header(header::HOST, "forebay");
        let mut bytes = Vec::new();
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json");
            bytes = serde_json::to_vec(body)
                .map_err(|error| ClientError::Answer { what: error.to_string() })?;
        }
        let request = request
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|error| ClientError::Answer { what: error.to_string() })?;
        let response = sender.send_request(request).await.map_err(cut)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = read_body(response).await?;
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(body.error.into()),
            Err(_) => Err(ClientError::Answer { what: format!("status {status}") }),
        }
    }
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(source) => Err(ClientError::Cut { source: Some(*source) }),
            Err(error) => Err(ClientError::Answer { what: error.to_string() }),
        },
    }
}

fn connect_error(socket: &Path, source: io::Error) -> ClientError {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotRunning { socket }
        }
        io::ErrorKind::PermissionDenied => ClientError::NotAllowed { socket },
        io::ErrorKind::WouldBlock => ClientError::Busy { socket },
        _ => ClientError::Connect { socket, source },
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
