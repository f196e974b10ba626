//! Slow requests of clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The slow requests of one volume, or of all.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SlowRequests {
    /// Slow requests since the volume was added to this server.
    pub total: u64,
    /// The last of them, at most 64 of each volume, oldest first.
    pub requests: Vec<SlowRequest>,
    /// Requests that have waited for as long as makes a request slow, or for seconds, and are not
    /// answered yet.
    #[serde(default)]
    pub waiting_total: u64,
    /// Those of them that have waited longest, at most 64, the oldest first.
    #[serde(default)]
    pub waiting: Vec<WaitingRequest>,
}

/// A request that is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct WaitingRequest {
    /// The volume.
    pub volume: String,
    /// `read`, `write`, `flush`, `trim`, `zero` or `prefetch`.
    pub operation: String,
    /// Whether it must be on stable storage before it is answered (FUA).
    pub fua: bool,
    /// The first byte; none for a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Bytes; none for a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The time since its arrival, in microseconds.
    pub waited_us: u64,
}

/// A slow request, or several that were slow only because a turn of their worker took long: the
/// requests that it takes at once.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SlowRequest {
    /// When it was answered, in UTC.
    #[schema(example = "2026-02-28T13:05:09Z")]
    pub at: String,
    /// The volume.
    pub volume: String,
    /// `read`, `write`, `flush`, `trim`, `zero` or `prefetch`.
    pub operation: String,
    /// Whether it had to be on stable storage before it was answered (FUA).
    pub fua: bool,
    /// The requests: 1 unless the turn was slow.
    pub requests: u64,
    /// The first byte; none for a flush, and if the turn was slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Bytes; none for a flush, and if the turn was slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The time from its arrival to its answer, in microseconds.
    pub took_us: u64,
    /// `pool`, or why memory did not serve it alone, or `error`; none if the turn was slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
    /// What it waited for, in the order in which it first did. The times add up to `took_us`.
    pub waits: Vec<SlowWait>,
    /// I/Os that it has started.
    pub ios: u64,
    /// Attempts that have failed, because of the disk or the journal, and were repeated in another
    /// way.
    pub errors: u64,
}

/// A part of the latency of a slow request.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SlowWait {
    /// `memory`, `disk`, `read`, `read-ahead`, `write`, `erase`, `destage`, `throttle`, `journal`,
    /// `journal-admission`, `order`, `disk-flush` or `worker`.
    pub what: String,
    /// Microseconds, all waits of this kind together.
    pub us: u64,
    /// Waits of this kind.
    pub times: u64,
    /// The longest of them, in microseconds.
    pub longest_us: u64,
}
