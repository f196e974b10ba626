//! The requests about one volume or all of them.

use super::{
    ControlState, EVENT_LINES, EVENTS, FINE, FORCE, HandlerResult, PROBLEM, local_only, local_post,
    unchanged,
};
use crate::{
    Manager,
    answer::{ErrorResponse, Fine, Force, JsonBody, VolumeName},
    convert::{pinned_ranges, volume_change, volume_spec},
};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::Response,
    routing::{get, patch, post},
};
use forebay_api::{
    AddVolume, ConnectDevice, ConnectedDevice, DiscardRequest, Discarded, ErrorBody, Event,
    History, MissingVolume, PinRequest, Problem, ServeDevice, ServedDevice, SlowRequests,
    StatisticsOfVolume, VolumeList, VolumeSettings, VolumeSize, VolumeStatus, paths,
};
use forebay_config::pinned_ranges_shown;
use forebay_types::PinnedRanges;
use std::time::Duration;
use utoipa::OpenApi;

/// How long a takeover waits for the end of a connection that its client has closed.
const CLIENT_PAUSE: Duration = Duration::from_millis(10);

/// The requests about volumes. Unless `is_local`, those are refused that only the control socket
/// accepts.
pub(super) fn routes(is_local: bool) -> Router<ControlState> {
    let change = match is_local {
        true => patch(set_volume).delete(remove_volume),
        false => patch(set_volume_remotely).delete(local_only),
    };
    Router::new()
        .route(paths::VOLUMES, get(list_volumes).merge(local_post(is_local, post(add_volume))))
        .route(paths::VOLUME, get(show_volume).merge(change))
        .route(paths::VOLUME_STATISTICS, get(volume_statistics))
        .route(paths::VOLUME_HISTORY, get(volume_history))
        .route(paths::VOLUME_SLOW, get(volume_slow))
        .route(paths::VOLUME_FLUSH, post(flush_volume))
        .route(paths::VOLUME_SAVE, post(save_volume))
        .route(paths::VOLUME_CALIBRATE, post(calibrate_volume))
        .route(paths::VOLUME_RESIZE, post(resize_volume))
        .route(paths::VOLUME_TAKEOVER, local_post(is_local, post(take_over_volume)))
        .route(paths::VOLUME_STANDBY, local_post(is_local, post(stand_by_volume)))
        .route(paths::VOLUME_PIN, post(pin_volume))
        .route(paths::VOLUME_UNPIN, post(unpin_volume))
        .route(paths::VOLUME_DISCARD, local_post(is_local, post(discard_volume)))
        .route(paths::VOLUME_DEVICE, local_post(is_local, post(serve_device)))
        .route(paths::VOLUME_NBD_DEVICE, local_post(is_local, post(connect_device)))
        .route(paths::VOLUME_TRUST, local_post(is_local, post(trust_volume)))
}

/// The description of these requests.
#[derive(OpenApi)]
#[openapi(paths(
    list_volumes,
    add_volume,
    show_volume,
    set_volume,
    remove_volume,
    volume_statistics,
    volume_history,
    volume_slow,
    flush_volume,
    save_volume,
    calibrate_volume,
    resize_volume,
    take_over_volume,
    stand_by_volume,
    pin_volume,
    unpin_volume,
    discard_volume,
    serve_device,
    connect_device,
    trust_volume
))]
pub(super) struct VolumesDescription;

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
async fn volume_history(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    Fine(fine): Fine,
) -> HandlerResult<Json<History>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.statistics().history(Some(&wanted), fine)).await?;
    found.map(Json).ok_or_else(|| ErrorResponse(Problem::unknown_volume(&name)))
}

/// Shows the last slow requests of the clients of a volume
#[utoipa::path(get, path = paths::VOLUME_SLOW, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The slow requests", body = SlowRequests),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn volume_slow(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<SlowRequests>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.clients().slow_requests(Some(&wanted))).await?;
    found.map(Json).ok_or_else(|| ErrorResponse(Problem::unknown_volume(&name)))
}

/// Shows the statistics of one volume over time, with latency histograms
#[utoipa::path(get, path = paths::VOLUME_STATISTICS, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The statistics", body = StatisticsOfVolume),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn volume_statistics(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<StatisticsOfVolume>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.statistics().of_volume(&wanted)).await?;
    found.map(Json).ok_or_else(|| ErrorResponse(Problem::unknown_volume(&name)))
}

/// Shows all volumes
#[utoipa::path(get, path = paths::VOLUMES, tag = "volumes",
    responses(
        (status = 200, description = "All volumes", body = VolumeList),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn list_volumes(State(app): State<ControlState>) -> HandlerResult<Json<VolumeList>> {
    let volumes = app.call(|manager| manager.volume_list()).await?;
    Ok(Json(VolumeList { volumes }))
}

/// Shows one volume
#[utoipa::path(get, path = paths::VOLUME, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn show_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<VolumeStatus>> {
    let wanted = name.clone();
    let volume = app.call(move |manager| manager.volume(&wanted)).await?;
    volume.map(Json).ok_or_else(|| ErrorResponse(Problem::unknown_volume(&name)))
}

/// Adds a volume and serves it
#[utoipa::path(post, path = paths::VOLUMES, tag = "volumes", request_body = AddVolume,
    responses(
        (status = 201, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn add_volume(
    State(app): State<ControlState>,
    JsonBody(request): JsonBody<AddVolume>,
) -> HandlerResult<(StatusCode, Json<VolumeStatus>)> {
    let spec = volume_spec(&request)?;
    tracing::info!(volume = %spec.name, backing = %spec.backing, "request to add a volume");
    let volume = app.call_slowly(|manager| manager.add_volume(spec)).await??;
    Ok((StatusCode::CREATED, Json(volume)))
}

/// Changes settings of a volume while it is served
#[utoipa::path(patch, path = paths::VOLUME, tag = "volumes", request_body = VolumeSettings,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn set_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    JsonBody(settings): JsonBody<VolumeSettings>,
) -> HandlerResult<Json<VolumeStatus>> {
    let change = volume_change(&settings)?;
    if change.is_empty() {
        return Err(unchanged("mode=bypass"));
    }
    tracing::info!(volume = %name, %change, "request to change a volume");
    Ok(Json(app.call_slowly(move |manager| manager.set_volume(&name, change)).await??))
}

/// As [`set_volume`], but refuses a journal: its devices would be opened.
async fn set_volume_remotely(
    app: State<ControlState>,
    name: VolumeName,
    JsonBody(settings): JsonBody<VolumeSettings>,
) -> HandlerResult<Json<VolumeStatus>> {
    let change = volume_change(&settings)?;
    if change.has("journal") || change.has("journal-mirror") {
        return Err(local_only().await);
    }
    set_volume(app, name, JsonBody(settings)).await
}

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
async fn remove_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    Force(force): Force,
) -> Response {
    tracing::info!(volume = %name, force, "request to remove a volume");
    app.operate(move |manager, progress| manager.remove_volume(&name, force, progress)).await
}

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
async fn discard_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    JsonBody(request): JsonBody<DiscardRequest>,
) -> HandlerResult<Json<Discarded>> {
    let DiscardRequest { force, ref save_to } = request;
    tracing::warn!(volume = %name, force, ?save_to, "request to give up dirty data");
    let discard = move |manager: &dyn Manager| manager.discard_volume(&name, &request);
    Ok(Json(app.call_slowly(discard).await??))
}

/// Flushes a volume: destages all dirty data and flushes its disk
#[utoipa::path(post, path = paths::VOLUME_FLUSH, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn flush_volume(State(app): State<ControlState>, VolumeName(name): VolumeName) -> Response {
    tracing::info!(volume = %name, "request to flush a volume");
    app.operate(move |manager, progress| manager.flush_volume(&name, progress)).await
}

/// Saves a volume in memory to its image, as it is now
///
/// Clients are served meanwhile. The former image stays until the new one is complete and stable.
#[utoipa::path(post, path = paths::VOLUME_SAVE, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn save_volume(State(app): State<ControlState>, VolumeName(name): VolumeName) -> Response {
    tracing::info!(volume = %name, "request to save a volume");
    app.operate(move |manager, _| manager.save_volume(&name)).await
}

/// Serves a volume on a block device that the kernel has made for it
///
/// For `forebay attach`, which makes the device, starts it after this, and gives it to the next
/// server when this one ends.
#[utoipa::path(post, path = paths::VOLUME_DEVICE, tag = "volumes", request_body = ServeDevice,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "What the kernel has to know", body = ServedDevice),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn serve_device(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    JsonBody(request): JsonBody<ServeDevice>,
) -> HandlerResult<Json<ServedDevice>> {
    tracing::info!(volume = %name, ublk = request.ublk, "request to serve a block device");
    let served = app.call_slowly(move |manager| manager.devices().serve(&name, &request));
    Ok(Json(served.await??))
}

/// Says where the kernel's NBD client connects a block device to a volume
///
/// For `forebay attach --as nbd`, which connects, and hands the connection to the kernel. The
/// server refuses it while requests of the connection that is replaced are in flight.
#[utoipa::path(post, path = paths::VOLUME_NBD_DEVICE, tag = "volumes",
    request_body = ConnectDevice,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "Where, and what the kernel has to know",
            body = ConnectedDevice),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn connect_device(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    JsonBody(request): JsonBody<ConnectDevice>,
) -> HandlerResult<Json<ConnectedDevice>> {
    tracing::info!(volume = %name, "request to connect a block device over NBD");
    let offered = app.call_slowly(move |manager| manager.devices().connect(&name, &request));
    Ok(Json(offered.await??))
}

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
async fn trust_volume(State(app): State<ControlState>, VolumeName(name): VolumeName) -> Response {
    tracing::info!(volume = %name, "request to trust the disk of a volume again");
    app.operate(move |manager, progress| manager.disks().trust(&name, progress)).await
}

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
async fn calibrate_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<VolumeStatus>> {
    tracing::info!(volume = %name, "request to measure the disk of a volume");
    Ok(Json(app.call_slowly(move |manager| manager.disks().calibrate(&name)).await??))
}

/// Makes a volume as large as its disk, which has grown
///
/// Reads the size of the disk again. Clients that can be told while they are connected are told;
/// others see the new size when they connect again. A volume never shrinks.
#[utoipa::path(post, path = paths::VOLUME_RESIZE, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The sizes of the volume", body = VolumeSize),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn resize_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<VolumeSize>> {
    tracing::info!(volume = %name, "request to measure the size of a volume");
    Ok(Json(app.call_slowly(move |manager| manager.disks().resize(&name)).await??))
}

/// Serves a volume that another host has, and shuts that host out
///
/// The volume is one that is not served: with `standby`, or with `nofail` if its disk could not be
/// opened. The disk, and the devices of the journal, refuse whatever the other host still writes:
/// its reservation ends. Clients connect again, to this host.
#[utoipa::path(post, path = paths::VOLUME_TAKEOVER, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn take_over_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<VolumeStatus>> {
    // The server may have slept until the client gave up. A connection that its client has closed
    // ends at the first wait, and this request with it.
    tokio::time::sleep(CLIENT_PAUSE).await;
    tracing::info!(volume = %name, "request to take over a volume");
    Ok(Json(app.call_slowly(move |manager| manager.disks().take_over(&name)).await??))
}

/// Ends the service of a volume, so that another host can take it over
///
/// Its clients are disconnected, its dirty data is written to its disk, and it is listed as missing
/// until it is taken over here.
#[utoipa::path(post, path = paths::VOLUME_STANDBY, tag = "volumes",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = MissingVolume),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn stand_by_volume(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
) -> HandlerResult<Json<MissingVolume>> {
    tracing::info!(volume = %name, "request to have a volume stand by");
    let missing = app.call_slowly(move |manager| manager.disks().stand_by(&name, &|_| {}));
    Ok(Json(missing.await??))
}

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
async fn pin_volume(
    app: State<ControlState>,
    name: VolumeName,
    request: JsonBody<PinRequest>,
) -> HandlerResult<Json<VolumeStatus>> {
    let pin: ChangePins = |manager, name, ranges| manager.pin_volume(name, ranges);
    change_pins(app, name, request, "pin", pin).await
}

/// Unpins ranges of a volume, whether or not they are pinned
#[utoipa::path(post, path = paths::VOLUME_UNPIN, tag = "volumes", request_body = PinRequest,
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = VolumeStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn unpin_volume(
    app: State<ControlState>,
    name: VolumeName,
    request: JsonBody<PinRequest>,
) -> HandlerResult<Json<VolumeStatus>> {
    let unpin: ChangePins = |manager, name, ranges| manager.unpin_volume(name, ranges);
    change_pins(app, name, request, "unpin", unpin).await
}

type ChangePins = fn(&dyn Manager, &str, PinnedRanges) -> Result<VolumeStatus, Problem>;

/// Pins or unpins ranges, with the method `change` of the manager.
async fn change_pins(
    State(app): State<ControlState>,
    VolumeName(name): VolumeName,
    JsonBody(request): JsonBody<PinRequest>,
    verb: &str,
    change: ChangePins,
) -> HandlerResult<Json<VolumeStatus>> {
    let ranges = pinned_ranges(&request)?;
    let shown = pinned_ranges_shown(&ranges);
    tracing::info!(volume = %name, ranges = shown, "request to {verb} ranges");
    Ok(Json(app.call_slowly(move |manager| change(manager, &name, ranges)).await??))
}
