//! Long operations: progress line by line, then how it ended.
//!
//! Only the newest progress is kept, so a client that reads slowly costs nothing and sees jumps,
//! and a client that has gone away holds nothing up: the operation goes on without it.

use crate::{ProgressFn, answer::Refusal};
use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use forebay_api::{Done, ErrorKind, Event, Problem, Progress};
use http_body_util::channel::{Channel, Sender};
use std::{convert::Infallible, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};

/// The least time between two lines of progress. Ten a second look smooth.
const PROGRESS_MILLISECONDS_MIN: u64 = 100;
/// The longest time between them: a client knows from it that the server is there.
const PROGRESS_MILLISECONDS_MAX: u64 = 1000;

/// Runs `operation` on a thread of its own and answers with its events. What fails before there
/// is any progress is answered with a status instead.
pub(crate) async fn answer<F>(operation: F) -> Response
where
    F: FnOnce(ProgressFn<'_>) -> Result<(), Problem> + Send + 'static,
{
    let mut follower = Follower::start(operation);
    let first = match follower.next().await {
        Event::Error(problem) => return Refusal(problem).into_response(),
        event => event,
    };
    let (sender, body) = Channel::new(1);
    tokio::spawn(follower.send_all(first, sender));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response()
}

/// Follows one operation.
struct Follower {
    progress: watch::Receiver<Progress>,
    task: JoinHandle<Result<(), Problem>>,
    /// How it ended, once it has and until that is told.
    end: Option<Event>,
    /// When the next progress may be told.
    next_progress: Instant,
}

impl Follower {
    fn start<F>(operation: F) -> Self
    where
        F: FnOnce(ProgressFn<'_>) -> Result<(), Problem> + Send + 'static,
    {
        let (sender, progress) = watch::channel(Progress::default());
        let task = spawn_blocking(move || {
            operation(&|report| {
                sender.send_replace(report);
            })
        });
        Self { progress, task, end: None, next_progress: Instant::now() }
    }

    /// The next event. The last progress is told before the end, and nothing after it.
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
            // An error is left without the progress before it, so that one that comes at once is
            // the first event whatever the timing.
            let failed = matches!(self.end, Some(Event::Error(_)));
            // The operation has let go of its end by now, so this answers at once.
            if !failed && self.progress.changed().await.is_ok() {
                return Event::Progress(*self.progress.borrow_and_update());
            }
        }
        self.end.take().unwrap_or(Event::Done(Done {}))
    }

    /// The next progress, not before its time; the last one again when none has come for long.
    async fn progress(receiver: &mut watch::Receiver<Progress>, not_before: Instant) -> Event {
        sleep_until(not_before).await;
        let news = async {
            if receiver.changed().await.is_err() {
                // The operation is over, and its end comes at once.
                std::future::pending::<()>().await;
            }
        };
        // That it took too long is no error.
        let _ = timeout(Duration::from_millis(PROGRESS_MILLISECONDS_MAX), news).await;
        Event::Progress(*receiver.borrow_and_update())
    }

    /// Sends the events, beginning with `event`, until the last or until nobody listens.
    async fn send_all(mut self, mut event: Event, mut sender: Sender<Bytes, Infallible>) {
        loop {
            let is_last = !matches!(event, Event::Progress(_));
            let mut line = serde_json::to_vec(&event).expect("events have nothing JSON can't say");
            line.push(b'\n');
            if sender.send_data(line.into()).await.is_err() || is_last {
                return;
            }
            event = self.next().await;
        }
    }
}

fn end_event(result: Result<Result<(), Problem>, JoinError>) -> Event {
    match result {
        Ok(Ok(())) => Event::Done(Done {}),
        Ok(Err(problem)) => Event::Error(problem),
        Err(error) => Event::Error(fault(&error)),
    }
}

/// The problem for a manager that panicked.
pub(crate) fn fault(error: &JoinError) -> Problem {
    tracing::error!(%error, "a control request ended in a panic");
    Problem::new(
        ErrorKind::Internal,
        "forebay has a fault, and the request was not carried out",
        "look into its log, and report what stands there",
    )
}
