//! Answers of the API, kept for a moment, so that many readers of the same answer cost the daemon
//! as much as one.

use super::{CACHED_FOR, CACHED_MAX};
use crate::answer::ErrorResponse;
use axum::{
    body::{Body, Bytes, to_bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use forebay_api::{ErrorKind, Problem};
use std::{collections::HashMap, sync::Arc, sync::Mutex, sync::PoisonError};
use tokio::time::Instant;

/// The header with the time at which an answer was made, in milliseconds since the start of the
/// dashboard. The page divides the growth of counters by the difference of these times.
pub(super) const TAKEN_AT: &str = "forebay-taken-ms";

/// An answer that was made.
#[derive(Clone)]
struct KeptAnswer {
    at: Instant,
    status: StatusCode,
    content_type: HeaderValue,
    body: Bytes,
}

/// The answer to one request. The lock is held while the answer is made, so that concurrent readers
/// wait for it instead of making it again.
type AnswerSlot = Arc<tokio::sync::Mutex<Option<KeptAnswer>>>;

/// The kept answers, by path and query.
pub(super) struct AnswerCache {
    slots: Mutex<HashMap<String, AnswerSlot>>,
    begin: Instant,
}

impl AnswerCache {
    pub(super) fn new() -> Self {
        Self { slots: Mutex::default(), begin: Instant::now() }
    }

    /// Forgets the answers, after a change. An answer that is being made now is not kept either.
    pub(super) fn clear(&self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The kept answer to a request, or a new one.
    pub(super) async fn answer(
        &self,
        question: &str,
        make: impl Future<Output = Response>,
    ) -> Response {
        let Some(slot) = self.slot(question) else {
            let message = "too many different requests at once";
            return ErrorResponse(Problem::new(ErrorKind::Busy, message, "retry in a second"))
                .into_response();
        };
        let mut kept = slot.lock().await;
        let fresh = kept.as_ref().filter(|kept| kept.at.elapsed() < CACHED_FOR).cloned();
        let fresh = match fresh {
            Some(fresh) => fresh,
            None => {
                let at = Instant::now();
                let (parts, body) = make.await.into_parts();
                let Ok(body) = to_bytes(body, usize::MAX).await else {
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                };
                let content_type = parts.headers.get(header::CONTENT_TYPE).cloned();
                let content_type =
                    content_type.unwrap_or(HeaderValue::from_static("application/octet-stream"));
                let made = KeptAnswer { at, status: parts.status, content_type, body };
                kept.insert(made).clone()
            }
        };
        let taken_ms = fresh.at.duration_since(self.begin).as_millis() as u64;
        let headers = [
            (header::CONTENT_TYPE.as_str(), fresh.content_type),
            (TAKEN_AT, HeaderValue::from(taken_ms)),
        ];
        (fresh.status, headers, Body::from(fresh.body)).into_response()
    }

    /// The slot of a request; `None` if there are too many different requests.
    fn slot(&self, question: &str) -> Option<AnswerSlot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(question) {
            return Some(Arc::clone(slot));
        }
        if slots.len() >= CACHED_MAX {
            // The answer in a locked slot is being made.
            slots.retain(|_, slot| match slot.try_lock() {
                Ok(kept) => {
                    kept.as_ref().is_some_and(|kept: &KeptAnswer| kept.at.elapsed() < CACHED_FOR)
                }
                Err(_) => true,
            });
        }
        if slots.len() >= CACHED_MAX {
            return None;
        }
        Some(Arc::clone(slots.entry(question.to_owned()).or_default()))
    }
}
