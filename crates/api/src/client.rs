//! The client: one connection per request over the control socket.
//!
//! Requests are rare, so the client keeps no connection open between them. It stores only the
//! socket's path, so it also reaches a restarted server.

use crate::{ErrorBody, Event, Problem, Progress, TraceRequest, TraceSummary, paths};
use forebay_types::{Action, Blame, Fault, Remedy};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    HeaderMap, Method, Request, Response,
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

/// Largest answer, in bytes: 1024 volumes with the longest names and descriptions.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Longest line of a stream, in bytes: a problem with its remedy.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Time limit of a drill: longer than the runtime of any usual UPS.
pub(crate) const DRILL_TIME_MAX: Duration = Duration::from_secs(4 * 60 * 60);
/// Time limit of a takeover, which may read 64 GiB of journal at 110 MiB/s. Another host is to try
/// if a store does not answer at all.
pub(crate) const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Time limits for answers of the server.
#[derive(Clone, Copy, Debug)]
struct AnswerTimeouts {
    /// For the answer to a query, which waits for no disk.
    query: Duration,
    /// For the answer to a short request. Adding a volume opens a disk, which may have to spin up.
    request: Duration,
    /// Between two lines of a stream. The server sends one per second; older versions sent none
    /// while the disk did not answer.
    line: Duration,
}

impl Default for AnswerTimeouts {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { query: Duration::from_secs(10), request: minute, line: minute }
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens at the socket.
    #[error("no forebay answers at {}", socket.display())]
    NotRunning {
        /// The control socket.
        socket: PathBuf,
    },
    /// This user has no permission to open the socket.
    #[error("no permission to open {}", socket.display())]
    NotAllowed {
        /// The control socket.
        socket: PathBuf,
    },
    /// The socket cannot be opened for another reason.
    #[error("cannot open {}", socket.display())]
    Connect {
        /// The control socket.
        socket: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server answered with an error.
    #[error(transparent)]
    Refused(#[from] Problem),
    /// The connection ended before the answer was complete.
    #[error("the server closed the connection before its answer was complete")]
    Cut {
        /// The error of the connection, if there was one.
        source: Option<hyper::Error>,
    },
    /// The server did not answer in time.
    #[error("the forebay at {} has not answered for {} s", socket.display(), waited.as_secs())]
    TimedOut {
        /// The control socket.
        socket: PathBuf,
        /// The time limit.
        waited: Duration,
    },
    /// The backlog of the control socket is full.
    #[error("the forebay at {} accepts no more requests: too many are waiting", socket.display())]
    Busy {
        /// The control socket.
        socket: PathBuf,
    },
    /// This version cannot parse the answer.
    #[error("invalid answer ({what})")]
    Answer {
        /// The error.
        what: String,
    },
}

impl Fault for ClientError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NotRunning { .. } => Remedy::from(Action::Start).or(Action::NameState),
            Self::NotAllowed { .. } => "run this as the user who runs forebay".into(),
            Self::Connect { .. } => "check that it is forebay's control socket".into(),
            Self::Refused(problem) => problem.remedy(),
            Self::Cut { .. } => "see the server's log".into(),
            Self::TimedOut { .. } => {
                "see the server's log, and whether its process is stopped or the machine overloaded"
                    .into()
            }
            Self::Busy { .. } => "see the server's log, and whether its process is stopped".into(),
            Self::Answer { .. } => "use a forebay of the server's version".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Refused(problem) => problem.blame(),
            _ => Blame::Environment,
        }
    }
}

pub(crate) type ClientResult<T> = Result<T, ClientError>;

/// Sends requests to the server at one control socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    timeouts: AnswerTimeouts,
}

impl Client {
    /// A client for the control socket at this path. Each request opens the socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), timeouts: AnswerTimeouts::default() }
    }

    /// Records the requests of clients. `write` gets the lines of the trace in pieces. An error of
    /// `write` ends the recording and is returned as the inner result.
    pub async fn record_trace<E>(
        &self,
        request: &TraceRequest,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> ClientResult<Result<TraceSummary, E>> {
        let sent = self.send(Method::POST, paths::TRACE, Some(request));
        let mut body = self.within(self.timeouts.request, sent).await??.into_body();
        // Without requests of clients, nothing arrives before the end.
        let limit = Duration::from_secs(request.seconds) + self.timeouts.line;
        let mut summary = None;
        while let Some(frame) = self.within(limit, body.frame()).await? {
            let frame = frame.map_err(|source| ClientError::Cut { source: Some(source) })?;
            match frame.into_data() {
                Ok(data) => {
                    if let Err(error) = write(&data) {
                        return Ok(Err(error));
                    }
                }
                Err(frame) => summary = frame.into_trailers().ok().and_then(|it| summary_in(&it)),
            }
        }
        summary.map(Ok).ok_or(ClientError::Cut { source: None })
    }

    /// Sends a request that changes nothing.
    pub(crate) async fn query<T: DeserializeOwned>(&self, path: &str) -> ClientResult<T> {
        self.request_within(self.timeouts.query, Method::GET, path, None::<&()>).await
    }

    /// Sends a request with a single answer.
    pub(crate) async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> ClientResult<T> {
        self.request_within(self.timeouts.request, method, path, body).await
    }

    pub(crate) async fn request_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> ClientResult<T> {
        let answer = async {
            let response = self.send(method, path, body).await?;
            let bytes = read_body(response).await?;
            serde_json::from_slice(&bytes)
                .map_err(|error| ClientError::Answer { what: error.to_string() })
        };
        self.within(limit, answer).await?
    }

    /// Waits for a future, up to the time limit `waited`.
    async fn within<T>(
        &self,
        waited: Duration,
        future: impl Future<Output = T>,
    ) -> ClientResult<T> {
        let timed_out = |_| ClientError::TimedOut { socket: self.socket.clone(), waited };
        tokio::time::timeout(waited, future).await.map_err(timed_out)
    }

    /// Sends a request that is answered with a stream of events.
    pub(crate) async fn operate(
        &self,
        method: Method,
        path: &str,
        mut progress: impl FnMut(Progress) + Send,
    ) -> ClientResult<()> {
        let sent = self.send(method, path, None::<&()>);
        let mut body = self.within(self.timeouts.line, sent).await??.into_body();
        let mut line = Vec::new();
        while let Some(frame) = self.within(self.timeouts.line, body.frame()).await? {
            let frame = frame.map_err(|source| ClientError::Cut { source: Some(source) })?;
            let Ok(data) = frame.into_data() else { continue };
            for piece in data.split_inclusive(|&byte| byte == b'\n') {
                line.extend_from_slice(piece);
                if line.len() > LINE_BYTES_MAX {
                    return Err(ClientError::Answer { what: "a line is too long".into() });
                }
                if line.last() != Some(&b'\n') {
                    continue;
                }
                match serde_json::from_slice(&line) {
                    Ok(Event::Progress(report)) => progress(report),
                    Ok(Event::Running(_)) => {}
                    Ok(Event::Done(_)) => return Ok(()),
                    Ok(Event::Error(problem)) => return Err(problem.into()),
                    Err(error) => return Err(ClientError::Answer { what: error.to_string() }),
                }
                line.clear();
            }
        }
        Err(ClientError::Cut { source: None })
    }

    /// Sends a request. An error response becomes a [`ClientError`].
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> ClientResult<Response<Incoming>> {
        let cut = |source| ClientError::Cut { source: Some(source) };
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| connect_error(&self.socket, error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
        // The task ends when the answer is read or dropped, and reports its errors through the
        // request or the body.
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(method).uri(path).header(header::HOST, "forebay");
        if path == paths::TRACE {
            request = request.header(header::TE, "trailers");
        }
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

/// The summary of a recording in the trailers of its answer.
fn summary_in(trailers: &HeaderMap) -> Option<TraceSummary> {
    let [requests, dropped, end] =
        TraceSummary::TRAILERS.map(|name| trailers.get(name)?.to_str().ok());
    TraceSummary::parse([requests?, dropped?, end?])
}

async fn read_body(response: Response<Incoming>) -> ClientResult<Bytes> {
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
