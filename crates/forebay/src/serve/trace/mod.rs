//! Recordings of the requests of clients, as block traces for the lab.
//!
//! The thread of the request to the control server reads what the workers record, and sends it as
//! text. It ends after its time, at its largest size, when the client has gone, or when the server
//! stops.

mod lines;
mod shuffle;

use crate::report::problem_of_kind;
use forebay_api::{ErrorKind, Problem, TraceEnd, TraceRequest, TraceSummary};
use forebay_control::TraceSink;
use forebay_runtime::{RecordError, Recording, Runtime, VolumeError};
use forebay_types::{Size, limits::VOLUMES_MAX};
use lines::Lines;
use shuffle::Shuffle;
use std::time::{Duration, Instant};

/// The interval at which recorded requests are read, so short that they do not leave the cache of
/// the worker's processor. The ring of a busy worker has room for a much longer time; requests for
/// which it has no room are dropped and counted.
const POLL: Duration = Duration::from_millis(5);
/// A piece of a trace is sent when it has this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// How a recording ends.
enum End {
    Orderly(TraceEnd),
    ClientGone,
}

/// Records the requests to volumes, whose sizes are given by `size_bytes`, until the end.
///
/// # Errors
/// There is no such volume, or another recording is in progress.
pub(super) fn record(
    runtime: &Runtime,
    request: &TraceRequest,
    size_bytes: impl Fn(&str) -> u64,
    sink: TraceSink<'_>,
) -> Result<TraceSummary, Problem> {
    debug_assert!(request.volumes.len() <= VOLUMES_MAX, "each is served once");
    let mut recording = runtime.record(&request.volumes).map_err(problem)?;
    let until = Instant::now() + Duration::from_secs(request.seconds);
    let shuffle = request
        .anonymize
        .then(|| Shuffle::new(request.volumes.iter().map(|name| size_bytes(name)).collect()));
    let is_anonymized = request.anonymize;
    let max_size = Size(request.max_bytes);
    tracing::info!(
        volumes = ?request.volumes, seconds = request.seconds, %max_size, is_anonymized,
        "trace recording started"
    );
    let mut lines = Lines::new(request.max_bytes, shuffle);
    let end = run(&mut recording, &mut lines, until, sink);
    let (requests, dropped, bytes) = (lines.requests(), recording.dropped(), lines.bytes());
    drop(recording);
    let (end, reason) = match end {
        End::Orderly(end) => (end, end.name()),
        End::ClientGone => (TraceEnd::Stop, "client gone"),
    };
    tracing::info!(requests, dropped, bytes, reason, "trace recording ended");
    Ok(TraceSummary { requests, dropped, end })
}

/// Sends the requests as lines until the end.
fn run(recording: &mut Recording, lines: &mut Lines, until: Instant, sink: TraceSink<'_>) -> End {
    let mut end = None;
    loop {
        let mut is_full = false;
        while lines.piece_len() < PIECE_BYTES
            && !is_full
            && let Some(request) = recording.next_request()
        {
            is_full = !lines.add(&request);
        }
        let is_busy = lines.piece_len() >= PIECE_BYTES;
        if !sink(lines.take_piece()) {
            return End::ClientGone;
        }
        if is_full {
            return End::Orderly(TraceEnd::Size);
        }
        if let Some(end) = end
            && recording.is_drained()
        {
            return End::Orderly(end);
        }
        if end.is_none() {
            if recording.is_stopping() {
                end = Some(TraceEnd::Stop);
            } else if Instant::now() >= until {
                end = Some(TraceEnd::Time);
            }
            if end.is_some() {
                recording.close();
            }
        }
        if !is_busy {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(if end.is_some() { POLL } else { POLL.min(left) });
        }
    }
}

/// The API's error for a recording that cannot begin.
fn problem(error: RecordError) -> Problem {
    let kind = match &error {
        RecordError::Busy => ErrorKind::Busy,
        RecordError::Volume(VolumeError::Unknown(_)) => ErrorKind::UnknownVolume,
        _ => ErrorKind::Stopping,
    };
    problem_of_kind(kind, &error)
}
