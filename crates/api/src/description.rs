//! The description of the interface, in the OpenAPI form. The functions here do nothing; they
//! carry the description of one request each.
#![expect(dead_code, reason = "only what is written over the functions is used")]

use crate::{
    AddVolume, DrillReport, ErrorBody, Event, Status, VolumeList, VolumeSettings, VolumeStatus,
    paths,
};
use utoipa::{OpenApi, openapi};

const PROBLEM: &str = "A problem and its remedy";
const EVENTS: &str = "Progress, and as the last line how it ended";
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
        list_volumes,
        add_volume,
        show_volume,
        set_volume,
        remove_volume,
        flush_volume,
        trust_volume,
        calibrate_volume,
        stop,
        upgrade,
        drill,
        description
    )
)]
struct Description;

/// Shows the state of everything
#[utoipa::path(get, path = paths::STATUS, tag = "server",
    responses(
        (status = 200, description = "The state", body = Status),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn status() {}

/// Writes all dirty data to the disks and leaves
#[utoipa::path(post, path = paths::STOP, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn stop() {}

/// Hands the pool over to the program now at its path, and leaves
#[utoipa::path(post, path = paths::UPGRADE, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn upgrade() {}

/// Rehearses a power failure on the running server
///
/// What is dirty under supplies is written to the vault's space, made stable, read back and
/// compared, while clients are served. The vault stays empty for whoever looks. Takes as long as a
/// power failure would.
#[utoipa::path(post, path = paths::DRILL, tag = "server",
    responses(
        (status = 200, description = "What came of it", body = DrillReport),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn drill() {}

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

/// Writes a volume's dirty data to its disk and takes the volume away
#[utoipa::path(delete, path = paths::VOLUME, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn remove_volume() {}

/// Writes a volume's dirty data to its disk
#[utoipa::path(post, path = paths::VOLUME_FLUSH, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn flush_volume() {}

/// Trusts a volume's disk again after it failed a flush, and flushes it
///
/// Until then FLUSH and FUA fail: after a failed flush the kernel may have forgotten data that a
/// later, successful one says nothing of. What is on the disk should be checked first.
#[utoipa::path(post, path = paths::VOLUME_TRUST, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn trust_volume() {}

/// Measures below which size writes of a volume are worth gathering
///
/// Some reads of its disk, for a second at most, at a moment when no request is under way; that
/// is waited for, up to ten seconds. Volumes are measured by themselves when they are added.
#[utoipa::path(post, path = paths::VOLUME_CALIBRATE, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
fn calibrate_volume() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set `UPDATE_GOLDEN=1` to write the file anew, and look at what the change does to clients.
    #[test]
    fn the_golden_description_is_what_the_types_say() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let text = openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == text, "openapi.json has drifted: run this test with UPDATE_GOLDEN=1");
    }

    #[test]
    fn the_requests_are_the_ones_there_are() {
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
                "delete /v1/volumes/{name}",
                "get /v1/openapi.json",
                "get /v1/status",
                "get /v1/volumes",
                "get /v1/volumes/{name}",
                "patch /v1/volumes/{name}",
                "post /v1/drill",
                "post /v1/stop",
                "post /v1/upgrade",
                "post /v1/volumes",
                "post /v1/volumes/{name}/calibrate",
                "post /v1/volumes/{name}/flush",
                "post /v1/volumes/{name}/trust",
            ]
        );
    }
}
