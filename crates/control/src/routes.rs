//! The routes of the control API, their handlers and their description. The attribute of a handler
//! describes its request.

mod volumes;

use crate::{
    METRICS_TYPE, Manager,
    answer::{ClientNumber, ErrorResponse, Fine, Force, JsonBody},
    convert::server_change,
    recording, stream,
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderName, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, patch, post},
};
use forebay_api::{
    Analysis, AnalysisRequest, AnalysisStatus, ConnectedClient, ConnectedClients, DrillReport,
    ErrorBody, ErrorKind, Event, History, HostStatus, Memory, Problem, ServerSettings, SiteStatus,
    SlowRequests, Statistics, Status, TraceRequest, paths,
};
use std::sync::Arc;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use utoipa::OpenApi;

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
struct ControlState {
    manager: Arc<dyn Manager>,
    /// Permits for operations that are answered with a stream of events, or with a trace.
    operations: Arc<Semaphore>,
    /// Permits for other calls that may wait for disks.
    slow_calls: Arc<Semaphore>,
}

type HandlerResult<T> = Result<T, ErrorResponse>;

/// The routes of the control socket: all of the API.
pub(crate) fn router(manager: Arc<dyn Manager>) -> Router {
    finish(routes(true).merge(volumes::routes(true)), manager)
}

/// The routes of the dashboard. Requests that open another file, give up data, end the server, or
/// record the requests of clients are refused.
pub(crate) fn remote_router(manager: Arc<dyn Manager>) -> Router {
    finish(routes(false).merge(volumes::routes(false)), manager)
}

/// The requests about the server. Unless `is_local`, those are refused that only the control socket
/// accepts.
fn routes(is_local: bool) -> Router<ControlState> {
    Router::new()
        .route(paths::STATUS, get(status))
        .route(paths::HOST, get(host))
        .route(paths::SITE, get(site))
        .route(paths::STATISTICS, get(statistics))
        .route(paths::HISTORY, get(history))
        .route(paths::SLOW, get(slow))
        .route(paths::CLIENTS, get(clients))
        .route(paths::CLIENT, delete(disconnect_client))
        .route(paths::METRICS, get(metrics))
        .route(paths::SETTINGS, patch(set_server))
        .route(paths::DRILL, post(drill))
        .route(paths::ANALYSIS, get(analysis).post(start_analysis).delete(stop_analysis))
        .route(paths::ANALYSIS_RESULT, get(analysis_result))
        .route(paths::OPENAPI, get(description))
        .route(paths::TRACE, local_post(is_local, post(trace)))
        .route(paths::STOP, local_post(is_local, post(stop)))
        .route(paths::RELOAD, local_post(is_local, post(reload)))
        .route(paths::RELOAD_REMOVE, local_post(is_local, post(reload_remove)))
        .route(paths::UPGRADE, local_post(is_local, post(upgrade)))
}

/// A `POST` request that only the control socket accepts.
fn local_post(is_local: bool, served: MethodRouter<ControlState>) -> MethodRouter<ControlState> {
    if is_local { served } else { post(local_only) }
}

fn finish(routes: Router<ControlState>, manager: Arc<dyn Manager>) -> Router {
    let permits = || Arc::new(Semaphore::new(LONG_OPERATIONS_MAX));
    let app = ControlState { manager, operations: permits(), slow_calls: permits() };
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(REQUEST_BODY_BYTES_MAX))
        .with_state(app)
}

impl ControlState {
    /// Calls the manager on a thread that may block. For calls that are quick even if disks hang.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Manager) -> T + Send + 'static,
    ) -> HandlerResult<T> {
        let manager = self.manager.clone();
        spawn_blocking(move || call(&*manager))
            .await
            .map_err(|error| ErrorResponse(stream::fault(&error)))
    }

    /// Calls the manager on a thread that may block, for a call that may wait for disks.
    async fn call_slowly<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Manager) -> T + Send + 'static,
    ) -> HandlerResult<T> {
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
fn permit(permits: &Arc<Semaphore>) -> HandlerResult<OwnedSemaphorePermit> {
    permits.clone().try_acquire_owned().map_err(|_| {
        ErrorResponse(Problem::new(
            ErrorKind::Busy,
            format!("{LONG_OPERATIONS_MAX} operations are already in progress"),
            "retry when one of them is done",
        ))
    })
}

const FINE: &str = "Whether the intervals of five seconds are wanted, too";
const PROBLEM: &str = "A problem and its remedy";
const FORCE: &str = "Whether connected clients are disconnected; false by default";
const EVENTS: &str = "Progress, and as the last line the result";
const EVENT_LINES: &str = "application/x-ndjson";

/// The description of the control API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    ApiDescription::openapi().merge_from(volumes::VolumesDescription::openapi())
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
        host,
        site,
        statistics,
        history,
        metrics,
        set_server,
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
        clients,
        disconnect_client,
        description
    )
)]
struct ApiDescription;

/// Shows the status of the server and its volumes
#[utoipa::path(get, path = paths::STATUS, tag = "server",
    responses(
        (status = 200, description = "The status", body = Status),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn status(State(app): State<ControlState>) -> HandlerResult<Json<Status>> {
    app.call(|manager| manager.status()).await.map(Json)
}

/// Shows what the other servers of a site want to know of this one
#[utoipa::path(get, path = paths::HOST, tag = "server",
    responses(
        (status = 200, description = "The server in short", body = HostStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn host(State(app): State<ControlState>) -> HandlerResult<Json<HostStatus>> {
    let status = app.call(|manager| manager.measurements().status).await?;
    let machine = rustix::system::uname();
    Ok(Json(status.for_site(&machine.nodename().to_string_lossy())))
}

/// Shows the site that the server watches: its hosts, who serves which volume, and what is wrong
#[utoipa::path(get, path = paths::SITE, tag = "server",
    responses(
        (status = 200, description = "The site", body = SiteStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn site(State(app): State<ControlState>) -> HandlerResult<Json<SiteStatus>> {
    let site = app.call(|manager| manager.site()).await?;
    site.map(Json).ok_or_else(|| {
        let message = "this server watches no site";
        let remedy = "set site to its hosts, as in site = [\"https://HOST:PORT\"], and reload";
        ErrorResponse(Problem::new(ErrorKind::Invalid, message, remedy))
    })
}

/// Shows the statistics of the volumes: in total, and for the last 5 minutes, hour and day
#[utoipa::path(get, path = paths::STATISTICS, tag = "server",
    responses(
        (status = 200, description = "The statistics", body = Statistics),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn statistics(State(app): State<ControlState>) -> HandlerResult<Json<Statistics>> {
    app.call(|manager| manager.statistics().all()).await.map(Json)
}

/// Shows the past of all volumes together: intervals of five minutes and of an hour
#[utoipa::path(get, path = paths::HISTORY, tag = "server",
    params(("fine" = Option<bool>, Query, description = FINE)),
    responses(
        (status = 200, description = "The intervals", body = History),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn history(
    State(app): State<ControlState>,
    Fine(fine): Fine,
) -> HandlerResult<Json<History>> {
    let found = app.call(move |manager| manager.statistics().history(None, fine)).await?;
    Ok(Json(found.unwrap_or_default()))
}

/// Shows the last slow requests of clients, and what each waited for
#[utoipa::path(get, path = paths::SLOW, tag = "server",
    responses(
        (status = 200, description = "The slow requests", body = SlowRequests),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn slow(State(app): State<ControlState>) -> HandlerResult<Json<SlowRequests>> {
    let slow = app.call(|manager| manager.clients().slow_requests(None)).await?;
    Ok(Json(slow.unwrap_or_default()))
}

/// Shows the connected clients, also those that have not chosen a volume yet
#[utoipa::path(get, path = paths::CLIENTS, tag = "server",
    responses(
        (status = 200, description = "The clients", body = ConnectedClients),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn clients(State(app): State<ControlState>) -> HandlerResult<Json<ConnectedClients>> {
    app.call(|manager| manager.clients().list()).await.map(Json)
}

/// Disconnects a client
///
/// Its requests in flight may still be carried out, but are not answered. The client may connect
/// again at once. The answer says what it was.
#[utoipa::path(delete, path = paths::CLIENT, tag = "server",
    params(("id" = u64, Path, description = "The number of the client")),
    responses(
        (status = 200, description = "The client", body = ConnectedClient),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn disconnect_client(
    State(app): State<ControlState>,
    ClientNumber(id): ClientNumber,
) -> HandlerResult<Json<ConnectedClient>> {
    tracing::info!(id, "request to disconnect a client");
    Ok(Json(app.call(move |manager| manager.clients().disconnect(id)).await??))
}

/// Shows the figures of the server as metrics for Prometheus
#[utoipa::path(get, path = paths::METRICS, tag = "server",
    responses(
        (status = 200, description = "Metrics in the text format, version 0.0.4", body = String,
            content_type = "text/plain; version=0.0.4; charset=utf-8"),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn metrics(
    State(app): State<ControlState>,
) -> HandlerResult<([(HeaderName, &'static str); 1], String)> {
    let text = app.call(|manager| crate::metrics(&manager.measurements())).await?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], text))
}

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
async fn set_server(
    State(app): State<ControlState>,
    JsonBody(settings): JsonBody<ServerSettings>,
) -> HandlerResult<Json<Memory>> {
    let change = server_change(&settings)?;
    if change.is_empty() {
        return Err(unchanged("memory=1GiB"));
    }
    tracing::info!(%change, "request to change the server");
    Ok(Json(app.call(move |manager| manager.set_server(&change)).await??))
}

/// The refusal of a request that names no setting.
fn unchanged(example: &str) -> ErrorResponse {
    ErrorResponse(Problem::new(
        ErrorKind::BadRequest,
        "the request changes nothing",
        format!("name a setting and its new value, such as {example}"),
    ))
}

/// Flushes all volumes and stops the server
///
/// Refused while clients are connected, unless `force` is true.
#[utoipa::path(post, path = paths::STOP, tag = "server",
    params(("force" = Option<bool>, Query, description = FORCE)),
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn stop(State(app): State<ControlState>, Force(force): Force) -> Response {
    tracing::info!(force, "request to stop");
    app.operate(move |manager, progress| manager.stop(force, progress)).await
}

/// Applies the changes of the configuration file
///
/// Refused if they would remove more than half of the volumes.
#[utoipa::path(post, path = paths::RELOAD, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn reload(State(app): State<ControlState>) -> Response {
    tracing::info!("request to reload the configuration");
    app.operate(|manager, _| manager.reload(false)).await
}

/// Applies the changes of the configuration file, however many volumes they remove
#[utoipa::path(post, path = paths::RELOAD_REMOVE, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn reload_remove(State(app): State<ControlState>) -> Response {
    tracing::info!("request to reload the configuration and to remove volumes");
    app.operate(|manager, _| manager.reload(true)).await
}

/// Hands the pool over to a new server, the program now at the server's path, and exits
#[utoipa::path(post, path = paths::UPGRADE, tag = "server",
    responses(
        (status = 200, description = EVENTS, body = Event, content_type = EVENT_LINES),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn upgrade(State(app): State<ControlState>) -> Response {
    tracing::info!("request to upgrade: hand the pool over to a new server");
    app.operate(|manager, _| manager.upgrade()).await
}

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
async fn drill(State(app): State<ControlState>) -> HandlerResult<Json<DrillReport>> {
    tracing::info!("request to rehearse a power failure");
    Ok(Json(app.call_slowly(|manager| manager.drill()).await??))
}

/// Shows the progress of the analysis of the benefit
#[utoipa::path(get, path = paths::ANALYSIS, tag = "server",
    responses(
        (status = 200, description = "The progress", body = AnalysisStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn analysis(State(app): State<ControlState>) -> HandlerResult<Json<AnalysisStatus>> {
    app.call(|manager| manager.analysis().status()).await.map(Json)
}

/// Shows the analysis with all that it has counted so far
#[utoipa::path(get, path = paths::ANALYSIS_RESULT, tag = "server",
    responses(
        (status = 200, description = "The analysis", body = Analysis),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn analysis_result(State(app): State<ControlState>) -> HandlerResult<Json<Analysis>> {
    app.call(|manager| manager.analysis().result()).await.map(Json)
}

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
async fn start_analysis(
    State(app): State<ControlState>,
    JsonBody(request): JsonBody<AnalysisRequest>,
) -> HandlerResult<(StatusCode, Json<AnalysisStatus>)> {
    tracing::info!(?request, "request to analyze the benefit");
    let status = app.call_slowly(move |manager| manager.analysis().start(request)).await??;
    Ok((StatusCode::CREATED, Json(status)))
}

/// Stops the analysis before its end: the cache works fully again, and the result stays
#[utoipa::path(delete, path = paths::ANALYSIS, tag = "server",
    responses(
        (status = 200, description = "The progress", body = AnalysisStatus),
        (status = "default", description = PROBLEM, body = ErrorBody)
    ))]
async fn stop_analysis(State(app): State<ControlState>) -> HandlerResult<Json<AnalysisStatus>> {
    tracing::info!("request to stop the analysis");
    Ok(Json(app.call_slowly(|manager| manager.analysis().stop()).await??))
}

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
async fn trace(
    State(app): State<ControlState>,
    JsonBody(request): JsonBody<TraceRequest>,
) -> Response {
    let permit =
        recording::check(&request).map_err(ErrorResponse).and_then(|()| permit(&app.operations));
    let permit = match permit {
        Ok(permit) => permit,
        Err(refusal) => return refusal.into_response(),
    };
    tracing::info!(volumes = ?request.volumes, "request to record the requests of clients");
    recording::answer(app.manager, request, permit).await
}

/// Shows this description
#[utoipa::path(get, path = paths::OPENAPI, tag = "server",
    responses((status = 200, description = "This document", content_type = "application/json")))]
async fn description() -> Json<utoipa::openapi::OpenApi> {
    Json(openapi())
}

async fn local_only() -> ErrorResponse {
    ErrorResponse(Problem::new(
        ErrorKind::Forbidden,
        "this request is accepted at the control socket only",
        "use the command forebay on that machine",
    ))
}

async fn not_found() -> ErrorResponse {
    ErrorResponse(Problem::new(
        ErrorKind::NotFound,
        "unknown path",
        "see the description at /v1/openapi.json",
    ))
}

async fn method_not_allowed() -> ErrorResponse {
    ErrorResponse(Problem::new(
        ErrorKind::MethodNotAllowed,
        "this path does not support this method",
        "see the description at /v1/openapi.json",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_GOLDEN=1` rewrites the file. Check the effect of the change on clients.
    #[test]
    fn the_golden_description_matches_the_types() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/openapi.json");
        let text = openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == text, "openapi.json has drifted: run this test with UPDATE_GOLDEN=1");
    }
}
