//! The requests in flight that have waited long.

use super::{ClientTable, InFlight, Submitted};
use crate::shared::{WaitingRequest, WaitingRequests};
use std::time::{Duration, Instant};

/// The requests of a worker's clients that have waited for as long as makes a request of their
/// volume slow, or for `limit`; with a name, only those of that volume.
pub(crate) fn waiting(
    (clients, in_flight): (&ClientTable, &InFlight),
    name: Option<&str>,
    (now, limit): (Instant, Duration),
) -> WaitingRequests {
    let waiting = in_flight.all().filter_map(|submitted| {
        let Submitted { request, arrived, waited_ms, .. } = submitted;
        let volume = clients.get(request.client)?.volume.as_ref()?;
        if name.is_some_and(|name| volume.name != name) {
            return None;
        }
        let memory = Duration::from_millis(u64::from(*waited_ms));
        let waited = now.saturating_duration_since(*arrived) + memory;
        let is_long = waited >= limit || volume.slow.is_passed_by(waited);
        is_long.then(|| WaitingRequest::new(&volume.name, (request.kind, request.range), waited))
    });
    WaitingRequests::default().plus(waiting)
}

/// Whether a client has left although a request of its is in flight.
pub(crate) fn has_left(clients: &ClientTable, in_flight: &InFlight) -> bool {
    in_flight.all().any(|submitted| clients.get(submitted.request.client).is_none())
}
