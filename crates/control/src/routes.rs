//! The routes of the control API and their handlers.

use crate::{
    METRICS_TYPE, Manager,
    answer::{Body, Fine, Force, Name, Refusal},
    convert::{pinned_ranges, server_change, volume_change, volume_spec},
    metrics, recording, stream,
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{delete, get, patch, post},
};
use forebay_api::{
    AddVolume, Analysis, AnalysisRequest, AnalysisStatus, DiscardRequest, Discarded, DrillReport,
    ErrorKind, History, Memory, PinRequest, Problem, ServerSettings, SlowRequests, Statistics,
    StatisticsOfVolume, Status, TraceRequest, VolumeList, VolumeSettings, VolumeStatus, openapi,
    paths,
};
use forebay_config::pinned_ranges_shown;
use forebay_types::PinnedRanges;
use std::sync::Arc;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

/// Largest request body, in bytes: the longest backing, journal and description, escaped.
pub const REQUEST_BODY_BYTES_MAX: usize = 128 << 10;
/// Limit of concurrent long operations that are answered with a stream, and separately of other
/// calls that may wait for disks, for the socket and again for the dashboard: with one limit for
/// both, additions of volumes whose disks hang would keep other volumes from being flushed. Each
/// operation occupies a thread while it waits for disks, even if its client has given up.
pub const LONG_OPERATIONS_MAX: usize = 64;
/// The default limit of blocking threads of a tokio runtime.
const BLOCKING_THREADS: usize = 512;
const _: () = assert!(4 * LONG_OPERATIONS_MAX <= BLOCKING_THREADS / 2, "the status needs threads");

/// The state shared by all handlers.
#[derive(Clone)]
struct App {
    manager: Arc<dyn Manager>,
    /// Permits for operations that are answered with a stream of events, or with a trace.
    operations: Arc<Semaphore>,
    /// Permits for other calls that may wait for disks.
    slow_calls: Arc<Semaphore>,
}

type Answer<T> = Result<T, Refusal>;

/// The routes of the control socket: all of the API.
pub(crate) fn router(manager: Arc<dyn Manager>) -> Router {
    let routes = remote_routes()
        .route(paths::TRACE, post(record_trace))
        .route(paths::STOP, post(stop))
        .route(paths::RELOAD, post(reload))
        .route(paths::RELOAD_REMOVE, post(reload_and_remove))
        .route(paths::UPGRADE, post(upgrade))
        .route(paths::VOLUMES, post(add_volume))
        .route(paths::VOLUME, delete(remove_volume))
        .route(paths::VOLUME_DISCARD, post(discard_volume))
        .route(paths::VOLUME_TRUST, post(trust_volume));
    finish(routes, manager)
}

/// The routes of the dashboard. Requests that open another file, give up data, end the server, or
/// record the requests of clients are refused.
pub(crate) fn remote_router(manager: Arc<dyn Manager>) -> Router {
    let routes = remote_routes()
        .route(paths::TRACE, post(local_only))
        .route(paths::STOP, post(local_only))
        .route(paths::RELOAD, post(local_only))
        .route(paths::RELOAD_REMOVE, post(local_only))
        .route(paths::UPGRADE, post(local_only))
        .route(paths::VOLUMES, post(local_only))
        .route(paths::VOLUME, delete(local_only))
        .route(paths::VOLUME_DISCARD, post(local_only))
        .route(paths::VOLUME_TRUST, post(local_only));
    finish(routes, manager)
}

/// The routes that the control socket and the dashboard have in common.
fn remote_routes() -> Router<App> {
    Router::new()
        .route(paths::STATUS, get(status))
        .route(paths::STATISTICS, get(statistics))
        .route(paths::HISTORY, get(history))
        .route(paths::SLOW, get(slow_requests))
        .route(paths::METRICS, get(show_metrics))
        .route(paths::SETTINGS, patch(set_server))
        .route(paths::DRILL, post(drill))
        .route(paths::ANALYSIS, get(analysis).post(start_analysis).delete(stop_analysis))
        .route(paths::ANALYSIS_RESULT, get(analysis_result))
        .route(paths::OPENAPI, get(|| async { Json(openapi()) }))
        .route(paths::VOLUMES, get(list_volumes))
        .route(paths::VOLUME, get(show_volume).patch(set_volume))
        .route(paths::VOLUME_STATISTICS, get(volume_statistics))
        .route(paths::VOLUME_HISTORY, get(volume_history))
        .route(paths::VOLUME_SLOW, get(volume_slow_requests))
        .route(paths::VOLUME_FLUSH, post(flush_volume))
        .route(paths::VOLUME_SAVE, post(save_volume))
        .route(paths::VOLUME_CALIBRATE, post(calibrate_volume))
        .route(paths::VOLUME_PIN, post(pin_volume))
        .route(paths::VOLUME_UNPIN, post(unpin_volume))
}

fn finish(routes: Router<App>, manager: Arc<dyn Manager>) -> Router {
    let permits = || Arc::new(Semaphore::new(LONG_OPERATIONS_MAX));
    let app = App { manager, operations: permits(), slow_calls: permits() };
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(REQUEST_BODY_BYTES_MAX))
        .with_state(app)
}

impl App {
    /// Calls the manager on a thread that may block. For calls that are quick even if disks hang.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Manager) -> T + Send + 'static,
    ) -> Answer<T> {
        let manager = self.manager.clone();
        spawn_blocking(move || call(&*manager))
            .await
            .map_err(|error| Refusal(stream::fault(&error)))
    }

    /// Calls the manager on a thread that may block, for a call that may wait for disks.
    async fn call_slowly<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Manager) -> T + Send + 'static,
    ) -> Answer<T> {
        let permit = permit(&self.slow_calls)?;
        self.call(move |manager| {
            // Held until the call ends, which occupies its thread even without a client.
            let _permit = permit;
            call(manager)
        })
        .await
    }

    /// Starts a long operation, and answers with its events.
    async fn operate<F>(&self, operation: F) -> Response
    where
        F: FnOnce(&dyn Manager, crate::ProgressFn<'_>) -> Result<(), Problem> + Send + 'static,
    {
        let permit = match permit(&self.operations) {
            Ok(permit) => permit,
            Err(refusal) => return refusal.into_response(),
        };
        let manager = self.manager.clone();
        stream::answer(move |progress| {
            let _permit = permit;
            operation(&*manager, progress)
        })
        .await
    }
}

/// A permit for one more long operation.
fn permit(permits: &Arc<Semaphore>) -> Answer<OwnedSemaphorePermit> {
    permits.clone().try_acquire_owned().map_err(|_| {
        Refusal(Problem::new(
            ErrorKind::Busy,
            format!("{LONG_OPERATIONS_MAX} operations are already in progress"),
            "retry when one of them is done",
        ))
    })
}

async fn status(State(app): State<App>) -> Answer<Json<Status>> {
    app.call(|manager| manager.status()).await.map(Json)
}

async fn statistics(State(app): State<App>) -> Answer<Json<Statistics>> {
    app.call(|manager| manager.statistics().all()).await.map(Json)
}

async fn history(State(app): State<App>, Fine(fine): Fine) -> Answer<Json<History>> {
    let found = app.call(move |manager| manager.statistics().history(None, fine)).await?;
    Ok(Json(found.unwrap_or_default()))
}

async fn volume_history(
    State(app): State<App>,
    Name(name): Name,
    Fine(fine): Fine,
) -> Answer<Json<History>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.statistics().history(Some(&wanted), fine)).await?;
    found.map(Json).ok_or_else(|| Refusal(Problem::unknown_volume(&name)))
}

async fn slow_requests(State(app): State<App>) -> Answer<Json<SlowRequests>> {
    let slow = app.call(|manager| manager.slow_requests(None)).await?;
    Ok(Json(slow.unwrap_or_default()))
}

async fn volume_slow_requests(
    State(app): State<App>,
    Name(name): Name,
) -> Answer<Json<SlowRequests>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.slow_requests(Some(&wanted))).await?;
    found.map(Json).ok_or_else(|| Refusal(Problem::unknown_volume(&name)))
}

async fn show_metrics(State(app): State<App>) -> Answer<([(HeaderName, &'static str); 1], String)> {
    let text = app.call(|manager| metrics(&manager.measurements())).await?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], text))
}

async fn volume_statistics(
    State(app): State<App>,
    Name(name): Name,
) -> Answer<Json<StatisticsOfVolume>> {
    let wanted = name.clone();
    let found = app.call(move |manager| manager.statistics().of_volume(&wanted)).await?;
    found.map(Json).ok_or_else(|| Refusal(Problem::unknown_volume(&name)))
}

async fn set_server(
    State(app): State<App>,
    Body(settings): Body<ServerSettings>,
) -> Answer<Json<Memory>> {
    let change = server_change(&settings)?;
    if change.is_empty() {
        return Err(unchanged("memory=1GiB"));
    }
    tracing::info!(%change, "request to change the server");
    Ok(Json(app.call(move |manager| manager.set_server(&change)).await??))
}

/// The refusal of a request that names no setting.
fn unchanged(example: &str) -> Refusal {
    Refusal(Problem::new(
        ErrorKind::BadRequest,
        "the request changes nothing",
        format!("name a setting and its new value, such as {example}"),
    ))
}

async fn list_volumes(State(app): State<App>) -> Answer<Json<VolumeList>> {
    let volumes = app.call(|manager| manager.volume_list()).await?;
    Ok(Json(VolumeList { volumes }))
}

async fn show_volume(State(app): State<App>, Name(name): Name) -> Answer<Json<VolumeStatus>> {
    let wanted = name.clone();
    let volume = app.call(move |manager| manager.volume(&wanted)).await?;
    volume.map(Json).ok_or_else(|| Refusal(Problem::unknown_volume(&name)))
}

async fn add_volume(
    State(app): State<App>,
    Body(request): Body<AddVolume>,
) -> Answer<(StatusCode, Json<VolumeStatus>)> {
    let spec = volume_spec(&request)?;
    tracing::info!(volume = %spec.name, backing = %spec.backing, "request to add a volume");
    let volume = app.call_slowly(|manager| manager.add_volume(spec)).await??;
    Ok((StatusCode::CREATED, Json(volume)))
}

async fn set_volume(
    State(app): State<App>,
    Name(name): Name,
    Body(settings): Body<VolumeSettings>,
) -> Answer<Json<VolumeStatus>> {
    let change = volume_change(&settings)?;
    if change.is_empty() {
        return Err(unchanged("mode=bypass"));
    }
    tracing::info!(volume = %name, %change, "request to change a volume");
    Ok(Json(app.call_slowly(move |manager| manager.set_volume(&name, change)).await??))
}

async fn remove_volume(State(app): State<App>, Name(name): Name, Force(force): Force) -> Response {
    tracing::info!(volume = %name, force, "request to remove a volume");
    app.operate(move |manager, progress| manager.remove_volume(&name, force, progress)).await
}

async fn discard_volume(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<DiscardRequest>,
) -> Answer<Json<Discarded>> {
    let DiscardRequest { force, ref save_to } = request;
    tracing::warn!(volume = %name, force, ?save_to, "request to give up dirty data");
    let discard = move |manager: &dyn Manager| manager.discard_volume(&name, &request);
    Ok(Json(app.call_slowly(discard).await??))
}

async fn flush_volume(State(app): State<App>, Name(name): Name) -> Response {
    tracing::info!(volume = %name, "request to flush a volume");
    app.operate(move |manager, progress| manager.flush_volume(&name, progress)).await
}

async fn save_volume(State(app): State<App>, Name(name): Name) -> Response {
    tracing::info!(volume = %name, "request to save a volume");
    app.operate(move |manager, _| manager.save_volume(&name)).await
}

async fn trust_volume(State(app): State<App>, Name(name): Name) -> Response {
    tracing::info!(volume = %name, "request to trust the disk of a volume again");
    app.operate(move |manager, progress| manager.trust_volume(&name, progress)).await
}

async fn calibrate_volume(State(app): State<App>, Name(name): Name) -> Answer<Json<VolumeStatus>> {
    tracing::info!(volume = %name, "request to measure the disk of a volume");
    Ok(Json(app.call_slowly(move |manager| manager.calibrate_volume(&name)).await??))
}

async fn pin_volume(
    app: State<App>,
    name: Name,
    request: Body<PinRequest>,
) -> Answer<Json<VolumeStatus>> {
    let pin: ChangePins = |manager, name, ranges| manager.pin_volume(name, ranges);
    change_pins(app, name, request, "pin", pin).await
}

async fn unpin_volume(
    app: State<App>,
    name: Name,
    request: Body<PinRequest>,
) -> Answer<Json<VolumeStatus>> {
    let unpin: ChangePins = |manager, name, ranges| manager.unpin_volume(name, ranges);
    change_pins(app, name, request, "unpin", unpin).await
}

type ChangePins = fn(&dyn Manager, &str, PinnedRanges) -> Result<VolumeStatus, Problem>;

/// Pins or unpins ranges, with the method `change` of the manager.
async fn change_pins(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<PinRequest>,
    verb: &str,
    change: ChangePins,
) -> Answer<Json<VolumeStatus>> {
    let ranges = pinned_ranges(&request)?;
    let shown = pinned_ranges_shown(&ranges);
    tracing::info!(volume = %name, ranges = shown, "request to {verb} ranges");
    Ok(Json(app.call_slowly(move |manager| change(manager, &name, ranges)).await??))
}

async fn stop(State(app): State<App>, Force(force): Force) -> Response {
    tracing::info!(force, "request to stop");
    app.operate(move |manager, progress| manager.stop(force, progress)).await
}

async fn reload(State(app): State<App>) -> Response {
    tracing::info!("request to reload the configuration");
    app.operate(|manager, _| manager.reload(false)).await
}

async fn reload_and_remove(State(app): State<App>) -> Response {
    tracing::info!("request to reload the configuration and to remove volumes");
    app.operate(|manager, _| manager.reload(true)).await
}

async fn upgrade(State(app): State<App>) -> Response {
    tracing::info!("request to upgrade: hand the pool over to a new server");
    app.operate(|manager, _| manager.upgrade()).await
}

async fn drill(State(app): State<App>) -> Answer<Json<DrillReport>> {
    tracing::info!("request to rehearse a power failure");
    Ok(Json(app.call_slowly(|manager| manager.drill()).await??))
}

async fn analysis(State(app): State<App>) -> Answer<Json<AnalysisStatus>> {
    app.call(|manager| manager.analysis().status()).await.map(Json)
}

async fn analysis_result(State(app): State<App>) -> Answer<Json<Analysis>> {
    app.call(|manager| manager.analysis().result()).await.map(Json)
}

async fn start_analysis(
    State(app): State<App>,
    Body(request): Body<AnalysisRequest>,
) -> Answer<(StatusCode, Json<AnalysisStatus>)> {
    tracing::info!(?request, "request to analyze the benefit");
    let status = app.call_slowly(move |manager| manager.analysis().start(request)).await??;
    Ok((StatusCode::CREATED, Json(status)))
}

async fn stop_analysis(State(app): State<App>) -> Answer<Json<AnalysisStatus>> {
    tracing::info!("request to stop the analysis");
    Ok(Json(app.call_slowly(|manager| manager.analysis().stop()).await??))
}

async fn record_trace(State(app): State<App>, Body(request): Body<TraceRequest>) -> Response {
    let permit = recording::check(&request).map_err(Refusal).and_then(|()| permit(&app.operations));
    let permit = match permit {
        Ok(permit) => permit,
        Err(refusal) => return refusal.into_response(),
    };
    tracing::info!(volumes = ?request.volumes, "request to record the requests of clients");
    recording::answer(app.manager, request, permit).await
}

async fn local_only() -> Refusal {
    Refusal(Problem::new(
        ErrorKind::Forbidden,
        "this request is accepted at the control socket only",
        "use the command forebay on that machine",
    ))
}

async fn not_found() -> Refusal {
    Refusal(Problem::new(
        ErrorKind::NotFound,
        "unknown path",
        "see the description at /v1/openapi.json",
    ))
}

async fn method_not_allowed() -> Refusal {
    Refusal(Problem::new(
        ErrorKind::MethodNotAllowed,
        "this path does not support this method",
        "see the description at /v1/openapi.json",
    ))
}
