//! Single questions to one place, over a connection that is kept.

use crate::{Place, Roots, connect};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use std::io;
use std::time::Duration;

/// An answer: its status and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}

/// Why a place has not answered.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It cannot be reached.
    #[error("cannot be reached")]
    Connect(#[source] io::Error),
    /// The answer did not come in time.
    #[error("no answer within {} s", limit.as_secs())]
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
    /// The connection ended, or what came is no HTTP.
    #[error("the answer is incomplete")]
    Cut(#[source] hyper::Error),
    /// The answer is too large, or the request cannot be sent.
    #[error("{0}")]
    Unusable(String),
}

/// Asks one place.
#[derive(Debug)]
pub struct Asker {
    roots: Roots,
    place: Place,
    token: Option<String>,
    /// The time limit of a question, with its connection.
    limit: Duration,
    /// Largest answer, in bytes.
    bytes_max: usize,
    kept: Option<SendRequest<Full<Bytes>>>,
}

impl Asker {
    /// For questions to `place`, with the token that it is to get.
    pub const fn new(
        roots: Roots,
        place: Place,
        token: Option<String>,
        limit: Duration,
        bytes_max: usize,
    ) -> Self {
        Self { roots, place, token, limit, bytes_max, kept: None }
    }

    /// Asks: `GET`, or `POST` with a body of JSON. A question may arrive twice.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(&mut self, path: &str, body: Option<Vec<u8>>) -> Result<HttpAnswer, AskError> {
        let limit = self.limit;
        let asked = tokio::time::timeout(limit, self.ask_now(path, body.map(Bytes::from))).await;
        asked.unwrap_or_else(|_| {
            self.kept = None;
            Err(AskError::TimedOut { limit })
        })
    }

    async fn ask_now(&mut self, path: &str, body: Option<Bytes>) -> Result<HttpAnswer, AskError> {
        loop {
            let kept = self.kept.take().filter(|kept| kept.is_ready());
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => connect(&self.roots, &self.place).await.map_err(AskError::Connect)?,
            };
            let request = self.request(path, body.clone())?;
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                // It was closed while it was idle.
                Err(_) if is_kept => continue,
                Err(error) => return Err(AskError::Cut(error)),
            };
            let status = response.status();
            let body = Limited::new(response.into_body(), self.bytes_max).collect().await;
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => AskError::Cut(*error),
                Err(_) => AskError::Unusable("the answer is too large".into()),
            })?;
            self.kept = Some(sender);
            return Ok(HttpAnswer { status, body: body.to_bytes() });
        }
    }

    fn request(&self, path: &str, body: Option<Bytes>) -> Result<Request<Full<Bytes>>, AskError> {
        let mut request = Request::builder().uri(path).header(HOST, self.place.1.as_str());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.method("POST").header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        request.map_err(|error| AskError::Unusable(error.to_string()))
    }
}
