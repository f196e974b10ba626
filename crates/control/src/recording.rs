//! The answer to a recording: a trace that arrives while it is recorded.
//!
//! The recording runs on a thread that may block. Its pieces pass through a channel of one piece to
//! the client; a client that takes none for a while, or that has gone, ends it. The summary follows
//! in trailers.

use crate::{Manager, answer::ErrorResponse, stream::fault};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use forebay_api::{ErrorKind, Problem, TRACE_BYTES_MIN, TRACE_SECONDS_MAX};
use forebay_api::{TraceRequest, TraceSummary};
use http_body_util::channel::{Channel, Sender};
use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, oneshot},
    task::spawn_blocking,
    time::timeout,
};

/// How long a piece waits for a client that does not read.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);

/// Checks a request.
///
/// # Errors
/// A value is out of range.
pub(crate) fn check(request: &TraceRequest) -> Result<(), Problem> {
    let refuse =
        |message: String, remedy: String| Err(Problem::new(ErrorKind::Invalid, message, remedy));
    if request.volumes.is_empty() {
        return refuse("no volume is named".into(), "name at least one".into());
    }
    let mut seen = HashSet::new();
    if let Some(twice) = request.volumes.iter().find(|name| !seen.insert(*name)) {
        return refuse(format!("volume '{twice}' is named twice"), "name each once".into());
    }
    if !(1..=TRACE_SECONDS_MAX).contains(&request.seconds) {
        let message = format!("a recording cannot take {} s", request.seconds);
        return refuse(message, format!("choose 1 to {TRACE_SECONDS_MAX} s"));
    }
    if request.max_bytes < TRACE_BYTES_MIN {
        let message = format!("a trace of at most {} bytes is too small", request.max_bytes);
        return refuse(message, format!("choose {TRACE_BYTES_MIN} or more"));
    }
    Ok(())
}

/// Records, and answers with the trace. If the recording fails before it begins, answers with an
/// error status instead.
pub(crate) async fn answer(
    manager: Arc<dyn Manager>,
    request: TraceRequest,
    permit: OwnedSemaphorePermit,
) -> Response {
    let (sender, body) = Channel::new(1);
    let (started, start) = oneshot::channel();
    let handle = Handle::current();
    let task = spawn_blocking(move || {
        let _permit = permit;
        let mut pipe = ClientPipe { handle, sender, started: Some(started) };
        let summary = manager.record_trace(&request, &mut |piece| pipe.send(piece))?;
        pipe.end(&summary);
        Ok(())
    });
    if start.await.is_ok() {
        let headers = [
            (header::CONTENT_TYPE, "text/csv".to_owned()),
            (header::TRAILER, TraceSummary::TRAILERS.join(", ")),
        ];
        return (headers, Body::new(body)).into_response();
    }
    // The recording ended before its first piece.
    match task.await {
        Ok(Err(problem)) => ErrorResponse(problem).into_response(),
        Ok(Ok(())) => ErrorResponse(Problem::new(
            ErrorKind::Failed,
            "the recording ended before it began",
            "see the server's log",
        ))
        .into_response(),
        Err(error) => ErrorResponse(fault(&error)).into_response(),
    }
}

/// The connection to the client.
struct ClientPipe {
    handle: Handle,
    sender: Sender<Bytes, Infallible>,
    /// Notifies [`answer`] of the first piece; `None` after that.
    started: Option<oneshot::Sender<()>>,
}

impl ClientPipe {
    /// Sends a piece, which may be empty. Returns false if the client has gone or does not read.
    fn send(&mut self, piece: Vec<u8>) -> bool {
        if let Some(started) = self.started.take()
            && started.send(()).is_err()
        {
            return false;
        }
        let sent = timeout(SEND_TIME_MAX, self.sender.send_data(piece.into()));
        matches!(self.handle.block_on(sent), Ok(Ok(())))
    }

    fn end(mut self, summary: &TraceSummary) {
        let mut trailers = HeaderMap::new();
        for (name, value) in TraceSummary::TRAILERS.into_iter().zip(summary.values()) {
            if let Ok(value) = HeaderValue::try_from(value) {
                trailers.insert(HeaderName::from_static(name), value);
            }
        }
        // A client that has gone does not need them.
        let _ = self.handle.block_on(timeout(SEND_TIME_MAX, self.sender.send_trailers(trailers)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_out_of_range_is_refused_with_a_remedy() {
        let good = TraceRequest {
            volumes: vec!["a".into(), "b".into()],
            seconds: 1,
            max_bytes: TRACE_BYTES_MIN,
            anonymize: false,
        };
        assert_eq!(check(&good), Ok(()));
        let bad = [
            TraceRequest { volumes: Vec::new(), ..good.clone() },
            TraceRequest { volumes: vec!["a".into(), "b".into(), "a".into()], ..good.clone() },
            TraceRequest { seconds: 0, ..good.clone() },
            TraceRequest { seconds: TRACE_SECONDS_MAX + 1, ..good.clone() },
            TraceRequest { max_bytes: TRACE_BYTES_MIN - 1, ..good },
        ];
        for request in bad {
            let problem = check(&request).unwrap_err();
            assert!(
                problem.kind == ErrorKind::Invalid && !problem.remedy.is_empty(),
                "{problem:?}"
            );
        }
    }
}
