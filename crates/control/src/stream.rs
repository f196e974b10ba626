//! Long operations: a stream with lines of progress, then the result.
//!
//! Only the latest progress is kept, so a slow client takes no memory and misses some lines. If the
//! client disconnects, the operation continues without it.

use crate::{ProgressFn, answer::ErrorResponse};
use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use forebay_api::{Done, ErrorKind, Event, Problem, Progress, Running};
use http_body_util::channel::{Channel, Sender};
use std::{convert::Infallible, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};

/// The shortest interval between lines of progress. Ten lines per second look smooth.
const PROGRESS_MILLISECONDS_MIN: u64 = 100;
/// How long to wait for progress before the last line is repeated, to show the client that the
/// server is alive.
const PROGRESS_MILLISECONDS_MAX: u64 = 1000;

/// Runs `operation` on its own thread and answers with its events. If it fails before any progress
/// and within the longest interval, answers with an error status instead.
pub(crate) async fn answer<F>(operation: F) -> Response
where
    F: FnOnce(ProgressFn<'_>) -> Result<(), Problem> + Send + 'static,
{
    let mut follower = ProgressFollower::start(operation);
    let first = match follower.next().await {
        Event::Error(problem) => return ErrorResponse(problem).into_response(),
        event => event,
    };
    let (sender, body) = Channel::new(1);
    tokio::spawn(follower.send_all(first, sender));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response()
}

/// Converts the progress and the result of one operation into events.
struct ProgressFollower {
    /// The latest progress; `None` before any was reported.
    progress: watch::Receiver<Option<Progress>>,
    task: JoinHandle<Result<(), Problem>>,
    /// The result, after the operation has ended and before the event is sent.
    end: Option<Event>,
    /// The earliest time of the next progress.
    next_progress: Instant,
}

impl ProgressFollower {
    fn start<F>(operation: F) -> Self
    where
        F: FnOnce(ProgressFn<'_>) -> Result<(), Problem> + Send + 'static,
    {
        let (sender, progress) = watch::channel(None);
        let task = spawn_blocking(move || {
            operation(&|report| {
                sender.send_replace(Some(report));
            })
        });
        Self { progress, task, end: None, next_progress: Instant::now() }
    }

    /// The next event. The last progress precedes the end, which is the last event.
    async fn next(&mut self) -> Event {
        if self.end.is_none() {
            tokio::select! {
                biased;
                event = Self::progress(&mut self.progress, self.next_progress) => {
                    self.next_progress =
                        Instant::now() + Duration::from_millis(PROGRESS_MILLISECONDS_MIN);
                    return event;
                }
                result = &mut self.task => self.end = Some(end_event(result)),
            }
            // An error skips the progress before it, so that an immediate error is always the first
            // event.
            let failed = matches!(self.end, Some(Event::Error(_)));
            // The operation has dropped the sender, so `changed` returns at once.
            if !failed && self.progress.changed().await.is_ok() {
                return latest(&mut self.progress);
            }
        }
        self.end.take().unwrap_or(Event::Done(Done {}))
    }

    /// The next progress, not before `not_before`. Repeats the last one after the longest interval.
    async fn progress(
        receiver: &mut watch::Receiver<Option<Progress>>,
        not_before: Instant,
    ) -> Event {
        sleep_until(not_before).await;
        let change = async {
            if receiver.changed().await.is_err() {
                // The operation has ended, and its result follows at once.
                std::future::pending::<()>().await;
            }
        };
        let _ = timeout(Duration::from_millis(PROGRESS_MILLISECONDS_MAX), change).await;
        latest(receiver)
    }

    /// Sends the events, beginning with `event`, until the last or until the client disconnects.
    async fn send_all(mut self, mut event: Event, mut sender: Sender<Bytes, Infallible>) {
        loop {
            let is_last = matches!(event, Event::Done(_) | Event::Error(_));
            let mut line = serde_json::to_vec(&event).expect("every event is valid JSON");
            line.push(b'\n');
            if sender.send_data(line.into()).await.is_err() || is_last {
                return;
            }
            event = self.next().await;
        }
    }
}

/// The event for the latest progress.
fn latest(receiver: &mut watch::Receiver<Option<Progress>>) -> Event {
    let latest = *receiver.borrow_and_update();
    latest.map_or(Event::Running(Running {}), Event::Progress)
}

fn end_event(result: Result<Result<(), Problem>, JoinError>) -> Event {
    match result {
        Ok(Ok(())) => Event::Done(Done {}),
        Ok(Err(problem)) => Event::Error(problem),
        Err(error) => Event::Error(fault(&error)),
    }
}

/// The problem reported after a panic of the manager.
pub(crate) fn fault(error: &JoinError) -> Problem {
    tracing::error!(%error, "control request panicked");
    Problem::new(
        ErrorKind::Internal,
        "internal error: the request was not completed",
        "report this with forebay's log",
    )
}
