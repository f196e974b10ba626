//! The OpenAPI description of the control API. The attributes of each function here describe one
//! request; the function is never called.
#![expect(dead_code, reason = "only the attributes of the functions are used")]

use crate::{
    AddVolume, Analysis, AnalysisRequest, AnalysisStatus, DiscardRequest, Discarded, DrillReport,
    ErrorBody, Event, History, Memory, PinRequest, ServerSettings, SlowRequests, Statistics,
    StatisticsOfVolume, Status, TraceRequest, VolumeList, VolumeSettings, VolumeStatus, paths,
};
use utoipa::{OpenApi, openapi};

const FINE: &str = "Whether the intervals of five seconds are wanted, too";
const PROBLEM: &str = "A problem and its remedy";
const FORCE: &str = "Whether connected clients are disconnected; false by default";
const EVENTS: &str = "Progress, and as the last line the result";
const EVENT_LINES: &str = "application/x-ndjson";

/// The description of the control API.
pub fn openapi() -> openapi::OpenApi {
    Description::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay control API",
        version = "1",
        description = "Status and control of a running Forebay, over its Unix socket control.sock. \
                       Long operations answer with one JSON event a line; the last line is done \
                       or error.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        status,
        statistics,
        volume_statistics,
        history,
        volume_history,
        metrics,
        set_server,
        list_volumes,
        add_volume,
        show_volume,
        set_volume,
        remove_volume,
        flush_volume,
        save_volume,
        discard_volume,
        trust_volume,
        calibrate_volume,
        pin_volume,
        unpin_volume,
        stop,
        reload,
        reload_remove,
        upgrade,
        drill,
        analysis,
        analysis_result,
        start_analysis,
        stop_analysis,
        trace,
        slow,
        volume_slow,
        description
    )
)]
struct Description;

/// Shows the status of the server and its volumes
#[utoipa::path(get, path = paths::STATUS, tag = "server",
    responses(
        (status = 200, description = "The status", body = Status),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn status() {}

/// Shows the statistics of the volumes: in total, and for the last 5 minutes, hour and day
#[utoipa::path(get, path = paths::STATISTICS, tag = "server",
    responses(
        (status = 200, description = "The statistics", body = Statistics),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn statistics() {}

/// Shows the figures of the server as metrics for Prometheus
#[utoipa::path(get, path = paths::METRICS, tag = "server",
    responses(
        (status = 200, description = "Metrics in the text format, version 0.0.4", body = String,
            content_type = "text/plain; version=0.0.4; charset=utf-8"),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn metrics() {}

/// Shows the statistics of one volume over time, with latency histograms
#[utoipa::path(get, path = paths::VOLUME_STATISTICS, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The statistics", body = StatisticsOfVolume),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn volume_statistics() {}

/// Shows the past of all volumes together: intervals of five minutes and of an hour
#[utoipa::path(get, path = paths::HISTORY, tag = "server",
    params(("fine" = Option<bool>, Query, description = FINE)),
    responses(
        (status = 200, description = "The intervals", body = History),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn history() {}

/// Shows the past of one volume: intervals of five minutes and of an hour
#[utoipa::path(get, path = paths::VOLUME_HISTORY, tag = "volumes",
    params(
        ("name" = String, Path, description = "The volume's name"),
        ("fine" = Option<bool>, Query, description = FINE)
    ),
    responses(
        (status = 200, description = "The intervals", body = History),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn volume_history() {}

/// Changes settings of the server while it runs
///
/// A smaller memory takes effect in the background: clean data is dropped, the least valuable
/// first, and dirty data is kept. A smaller share for writes is reached by writeback. The status
/// shows the progress.
#[utoipa::path(patch, path = paths::SETTINGS, tag = "server", request_body = ServerSettings,
    responses(
        (status = 200, description = "The memory", body = Memory),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn set_server() {}

/// Flushes all volumes and stops the server
///
/// Refused while clients are connected, unless `force` is true.
#[utoipa::path(post, path = paths::STOP, tag = "server",
    params(("force" = Option<bool>, Query, description = FORCE)),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn stop() {}

/// Applies the changes of the configuration file
///
/// Refused if they would remove more than half of the volumes.
#[utoipa::path(post, path = paths::RELOAD, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn reload() {}

/// Applies the changes of the configuration file, however many volumes they remove
#[utoipa::path(post, path = paths::RELOAD_REMOVE, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn reload_remove() {}

/// Hands the pool over to a new server, the program now at the server's path, and exits
#[utoipa::path(post, path = paths::UPGRADE, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn upgrade() {}

/// Rehearses a power failure on the running server
///
/// Writes all dirty data under UPS protection to the vault's space, makes it durable, reads it back
/// and compares it, while clients are served. The vault remains marked empty. Takes as long as a
/// dump in a power failure.
#[utoipa::path(post, path = paths::DRILL, tag = "server",
    responses(
        (status = 200, description = "The report", body = DrillReport),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn drill() {}

/// Shows the progress of the analysis of the benefit
#[utoipa::path(get, path = paths::ANALYSIS, tag = "server",
    responses(
        (status = 200, description = "The progress", body = AnalysisStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn analysis() {}

/// Starts an analysis of the benefit
///
/// In its first phase, `measure`, the volumes are served as if there were no cache: their clients
/// wait for the disks, for an hour at most unless the request says otherwise. Then the cache works
/// again, except for the share of the regions that is held out. It replaces a former analysis that
/// has ended. It survives restarts of the server.
#[utoipa::path(post, path = paths::ANALYSIS, tag = "server", request_body = AnalysisRequest,
    responses(
        (status = 201, description = "The progress", body = AnalysisStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn start_analysis() {}

/// Stops the analysis before its end: the cache works fully again, and the result stays
#[utoipa::path(delete, path = paths::ANALYSIS, tag = "server",
    responses(
        (status = 200, description = "The progress", body = AnalysisStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn stop_analysis() {}

/// Shows the analysis with all that it has counted so far
#[utoipa::path(get, path = paths::ANALYSIS_RESULT, tag = "server",
    responses(
        (status = 200, description = "The analysis", body = Analysis),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn analysis_result() {}

/// Shows the last slow requests of clients, and what each waited for
#[utoipa::path(get, path = paths::SLOW, tag = "server",
    responses(
        (status = 200, description = "The slow requests", body = SlowRequests),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn slow() {}

/// Shows the last slow requests of the clients of a volume
#[utoipa::path(get, path = paths::VOLUME_SLOW, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The slow requests", body = SlowRequests),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn volume_slow() {}

/// Records the reads and writes of clients as a block trace
///
/// The answer is the trace: a line `time_us,volume,op,offset_bytes,length_bytes,latency_us,served`,
/// and a line for each request in the order of arrival. It ends after the time, before the largest
/// size is exceeded, or when the client disconnects. A client that sends `te: trailers` gets the
/// requests recorded, the requests dropped and the reason of the end as trailers. There is one
/// recording at a time.
#[utoipa::path(post, path = paths::TRACE, tag = "server", request_body = TraceRequest,
    responses(
        (status = 200, description = "The trace", body = String, content_type = "text/csv"),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn trace() {}

/// Shows this description
#[utoipa::path(get, path = paths::OPENAPI, tag = "server",
    responses((status = 200, description = "This document", content_type = "application/json")))]
fn description() {}

/// Shows all volumes
#[utoipa::path(get, path = paths::VOLUMES, tag = "volumes",
    responses(
        (status = 200, description = "All volumes", body = VolumeList),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn list_volumes() {}

/// Adds a volume and serves it
#[utoipa::path(post, path = paths::VOLUMES, tag = "volumes", request_body = AddVolume,
    responses(
        (status = 201, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn add_volume() {}

/// Shows one volume
#[utoipa::path(get, path = paths::VOLUME, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn show_volume() {}

/// Changes settings of a volume while it is served
#[utoipa::path(patch, path = paths::VOLUME, tag = "volumes", request_body = VolumeSettings,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn set_volume() {}

/// Flushes a volume, then removes it
///
/// Refused while clients are connected to it, unless `force` is true.
#[utoipa::path(delete, path = paths::VOLUME, tag = "volumes",
    params(
        ("name" = String, Path, description = "The volume's name"),
        ("force" = Option<bool>, Query, description = FORCE)
    ),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn remove_volume() {}

/// Flushes a volume: destages all dirty data and flushes its disk
#[utoipa::path(post, path = paths::VOLUME_FLUSH, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn flush_volume() {}

/// Saves a volume in memory to its image, as it is now
///
/// Clients are served meanwhile. The former image stays until the new one is complete and stable.
#[utoipa::path(post, path = paths::VOLUME_SAVE, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn save_volume() {}

/// Removes a volume whose disk does not take its data, and gives up what the disk lacks
///
/// Tries to remove it without a loss first. Refused while clients are connected to it, unless
/// `force` is true. Nothing is given up if the file cannot be written.
#[utoipa::path(post, path = paths::VOLUME_DISCARD, tag = "volumes", request_body = DiscardRequest,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "What was given up", body = Discarded),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn discard_volume() {}

/// Trusts a volume's disk again after it failed a flush, and flushes it
///
/// Until then FLUSH and FUA fail: after a failed flush the kernel may have dropped data, and a
/// later flush may succeed without it. Check the data on the disk first.
#[utoipa::path(post, path = paths::VOLUME_TRUST, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn trust_volume() {}

/// Measures the size below which writes of a volume are worth gathering
///
/// Reads from the volume's disk for up to a second while no request is in flight; waits up to ten
/// seconds for such a moment. A new volume is measured automatically.
#[utoipa::path(post, path = paths::VOLUME_CALIBRATE, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn calibrate_volume() {}

/// Pins ranges of a volume: their data stays in memory, beside those that are pinned already
///
/// What is not in memory yet is read in the background. All volumes together can pin half of the
/// memory for data. The change lasts until the volume is removed or the server ends, like that of a
/// setting. To keep it longer, use the setting `pin` of the configuration.
#[utoipa::path(post, path = paths::VOLUME_PIN, tag = "volumes", request_body = PinRequest,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn pin_volume() {}

/// Unpins ranges of a volume, whether or not they are pinned
#[utoipa::path(post, path = paths::VOLUME_UNPIN, tag = "volumes", request_body = PinRequest,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn unpin_volume() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_GOLDEN=1` rewrites the file. Check the effect of the change on clients.
    #[test]
    fn the_golden_description_matches_the_types() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let text = openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == text, "openapi.json has drifted: run this test with UPDATE_GOLDEN=1");
    }

    #[test]
    fn the_description_has_exactly_these_requests() {
        let json = serde_json::to_value(openapi()).unwrap();
        let mut requests = Vec::new();
        for (path, methods) in json["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                requests.push(format!("{method} {path}"));
            }
        }
        requests.sort();
        assert_eq!(
            requests,
            [
                "delete /v1/analysis",
                "delete /v1/volumes/{name}",
                "get /metrics",
                "get /v1/analysis",
                "get /v1/analysis/result",
                "get /v1/history",
                "get /v1/openapi.json",
                "get /v1/slow",
                "get /v1/statistics",
                "get /v1/status",
                "get /v1/volumes",
                "get /v1/volumes/{name}",
                "get /v1/volumes/{name}/history",
                "get /v1/volumes/{name}/slow",
                "get /v1/volumes/{name}/statistics",
                "patch /v1/settings",
                "patch /v1/volumes/{name}",
                "post /v1/analysis",
                "post /v1/drill",
                "post /v1/reload",
                "post /v1/reload/remove",
                "post /v1/stop",
                "post /v1/trace",
                "post /v1/upgrade",
                "post /v1/volumes",
                "post /v1/volumes/{name}/calibrate",
                "post /v1/volumes/{name}/discard",
                "post /v1/volumes/{name}/flush",
                "post /v1/volumes/{name}/pin",
                "post /v1/volumes/{name}/save",
                "post /v1/volumes/{name}/trust",
                "post /v1/volumes/{name}/unpin",
            ]
        );
    }
}
