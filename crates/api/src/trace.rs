//! Recordings of the requests of clients: block traces.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest time of a recording, in seconds: a week.
pub const TRACE_SECONDS_MAX: u64 = 7 * 86_400;
/// The smallest limit of a trace, in bytes.
pub const TRACE_BYTES_MIN: u64 = 4096;

/// The requests to record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The names of the volumes. Each is known in the trace by its position in this list, from 0.
    /// Not empty, none twice.
    #[schema(example = json!(["db"]))]
    pub volumes: Vec<String>,
    /// Ends after this many seconds, at least 1.
    #[serde(default = "default_seconds")]
    pub seconds: u64,
    /// Ends before the trace has more than this many bytes, at least 4096.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: u64,
    /// Shuffles the regions of 1 GiB of each volume, by a random key that is not kept.
    #[serde(default)]
    pub anonymize: bool,
}

const fn default_seconds() -> u64 {
    60
}

const fn default_max_bytes() -> u64 {
    1 << 30
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceEnd {
    /// Its time was over.
    Time,
    /// The trace has reached its size limit.
    Size,
    /// The server stops.
    Stop,
}

impl TraceEnd {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Time, Self::Size, Self::Stop];

    /// The name in the trailer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Size => "size",
            Self::Stop => "stop",
        }
    }
}

/// The summary of a recording that has ended. It is sent in the HTTP trailers
/// [`TraceSummary::TRAILERS`], in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSummary {
    /// Requests in the trace.
    pub requests: u64,
    /// Requests that are missing, because they came faster than the trace was written.
    pub dropped: u64,
    /// Why it ended.
    pub end: TraceEnd,
}

impl TraceSummary {
    /// The names of the trailers.
    pub const TRAILERS: [&'static str; 3] = ["forebay-requests", "forebay-dropped", "forebay-end"];

    /// The values of the trailers.
    pub fn values(&self) -> [String; 3] {
        [self.requests.to_string(), self.dropped.to_string(), self.end.name().to_owned()]
    }

    /// Parses the values of the trailers.
    pub fn parse([requests, dropped, end]: [&str; 3]) -> Option<Self> {
        Some(Self {
            requests: requests.parse().ok()?,
            dropped: dropped.parse().ok()?,
            end: TraceEnd::ALL.into_iter().find(|candidate| candidate.name() == end)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_survives_its_trailers() {
        for end in TraceEnd::ALL {
            let summary = TraceSummary { requests: 7, dropped: 1 << 40, end };
            let values = summary.values();
            let values = std::array::from_fn(|at| &*values[at]);
            assert_eq!(TraceSummary::parse(values), Some(summary));
        }
        assert_eq!(TraceSummary::parse(["1", "0", "bored"]), None);
    }
}
