//! The TCP listener, its connections, and the checks that each request passes.

use super::{
    CONNECTIONS_KEPT_MAX, CONNECTIONS_MAX, ConnLimits, HEAD_BYTES_MAX, TokenError, Tokens, access,
    assets, cache::AnswerCache, pace::RequestRate, paced::Paced, tokens::TokenRole,
};
use crate::{Manager, REQUEST_BODY_BYTES_MAX, answer::ErrorResponse, routes};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, Method, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use forebay_api::{ErrorKind, Problem};
use forebay_types::{Action, Fault, Remedy};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::process::{Resource, getrlimit};
use rustls::ServerConfig;
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsRawFd, RawFd},
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Time limit for answers still being sent when the dashboard ends.
const DRAIN_SECONDS_MAX: u64 = 2;
/// Wait after a failed accept, such as for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// File descriptors that connections leave free for the rest of the daemon; if the limit of
/// descriptors is low, an eighth of it.
const DESCRIPTORS_RESERVED: u64 = 32;
/// Wait after a refused connection. It limits the cost of clients that keep connecting.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);
/// The header with the role that a request has.
const ROLE: &str = "forebay-role";
/// The answer to a connection beyond the limit, if it is not encrypted.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\n\
    content-type: text/plain\r\ncontent-length: 39\r\nconnection: close\r\n\r\n\
    too many connections, retry in seconds\n";

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Other machines could reach the address, without encryption.
    #[error("the dashboard at {address} can be reached from other machines, without encryption")]
    NotEncrypted { address: SocketAddr },
    /// Other machines could reach the address, without a token.
    #[error("the dashboard at {address} can be reached from other machines, without a token")]
    NoTokens { address: SocketAddr },
    /// There is a token file that cannot be used.
    #[error("the dashboard's tokens cannot be read")]
    Tokens(#[source] TokenError),
    /// The operating system reports an error.
    #[error("the dashboard cannot be started")]
    System(#[source] io::Error),
}

impl Fault for DashboardError {
    fn remedy(&self) -> Remedy {
        let local = Action::set("dashboard", "127.0.0.1:PORT");
        match self {
            Self::NotEncrypted { .. } => {
                Remedy::from("set tls-cert and tls-key, and a mode of tls").or(local)
            }
            Self::NoTokens { .. } => {
                Remedy::from(Action::set("dashboard-tokens", "FILE")).or(local)
            }
            Self::Tokens(error) => error.remedy(),
            Self::System(_) => {
                "resolve the system's error, or leave out the setting dashboard".into()
            }
        }
    }
}

/// Certificate and tokens of a dashboard, which can be replaced while it serves. A replacement is
/// valid for connections and requests from then on.
#[derive(Clone)]
pub struct DashboardKeys(Arc<RwLock<Keys>>);

#[derive(Clone)]
struct Keys {
    tls: Option<Arc<ServerConfig>>,
    tokens: Arc<Tokens>,
}

/// Shows no key.
impl fmt::Debug for DashboardKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.get();
        let tls = if keys.tls.is_some() { "TLS" } else { "no TLS" };
        write!(f, "{tls}, {:?}", keys.tokens)
    }
}

impl DashboardKeys {
    fn get(&self) -> Keys {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// As [`Dashboard::link`], of the dashboard with this [`Dashboard::url`].
    pub fn link(&self, url: &str) -> String {
        match self.get().tokens.generated() {
            Some(token) => format!("{url}#token={token}"),
            None => url.to_owned(),
        }
    }

    /// Replaces the tokens, also those that were generated, and by generated ones with `None`: if
    /// only this machine can reach the dashboard.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn set_tokens(&self, tokens: Option<Tokens>) -> io::Result<()> {
        let tokens = Arc::new(tokens.map_or_else(Tokens::generate, Ok)?);
        self.0.write().unwrap_or_else(PoisonError::into_inner).tokens = tokens;
        Ok(())
    }

    /// Replaces the certificate of an encrypted dashboard, and tokens that were read from a file.
    /// With `None`, the present one is kept: a reload does not remove the encryption.
    pub fn replace(&self, tls: Option<ServerConfig>, tokens: Option<Tokens>) {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let (Some(tls), Some(current)) = (tls, keys.tls.as_mut()) {
            *current = Arc::new(tls);
        }
        if let Some(tokens) = tokens.filter(|_| !keys.tokens.is_reading_free()) {
            keys.tokens = Arc::new(tokens);
        }
    }
}

/// A listening dashboard. Connections wait until [`Dashboard::run`] accepts them.
#[derive(Debug)]
pub struct Dashboard {
    listener: TcpListener,
    address: SocketAddr,
    host: String,
    keys: DashboardKeys,
    limits: ConnLimits,
}

impl Dashboard {
    /// A dashboard on a listening socket, which was bound for `host`. Without tokens, one is
    /// generated.
    ///
    /// # Errors
    /// Other machines can reach the socket, and TLS or tokens are missing.
    pub fn new(
        listener: TcpListener,
        host: &str,
        tls: Option<ServerConfig>,
        tokens: Option<Tokens>,
    ) -> Result<Self, DashboardError> {
        let address = listener.local_addr().map_err(DashboardError::System)?;
        Self::check(address, tls.is_some(), tokens.is_some())?;
        let tokens = match tokens {
            Some(tokens) => tokens,
            None => Tokens::generate().map_err(DashboardError::System)?,
        };
        listener.set_nonblocking(true).map_err(DashboardError::System)?;
        let keys = Keys { tls: tls.map(Arc::new), tokens: Arc::new(tokens) };
        let keys = DashboardKeys(Arc::new(RwLock::new(keys)));
        Ok(Self { listener, address, host: host.to_owned(), keys, limits: ConnLimits::default() })
    }

    /// Checks whether a dashboard at this address would be safe.
    ///
    /// # Errors
    /// Other machines can reach the address, and TLS or tokens are missing.
    pub fn check(
        address: SocketAddr,
        has_tls: bool,
        has_tokens: bool,
    ) -> Result<(), DashboardError> {
        match address.ip().is_loopback() {
            true => Ok(()),
            false if !has_tls => Err(DashboardError::NotEncrypted { address }),
            false if !has_tokens => Err(DashboardError::NoTokens { address }),
            false => Ok(()),
        }
    }

    #[cfg(test)]
    pub(super) fn with_limits(self, limits: ConnLimits) -> Self {
        Self { limits, ..self }
    }

    /// The certificate and tokens.
    pub fn keys(&self) -> DashboardKeys {
        self.keys.clone()
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for a browser, without a token: `http://127.0.0.1:8080/`.
    pub fn url(&self) -> String {
        let scheme = if self.keys.get().tls.is_some() { "https" } else { "http" };
        let port = self.address.port();
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{port}/", self.host),
            false => format!("{scheme}://{}:{port}/", self.host),
        }
    }

    /// The same with the generated token, if there is one, in the fragment, which browsers do not
    /// send. This link permits changes of settings.
    pub fn link(&self) -> String {
        self.keys.link(&self.url())
    }

    /// Serves until `end`, then completes the answers being sent, within two seconds. Requires a
    /// tokio runtime with I/O and time.
    pub async fn run(
        self,
        manager: Arc<dyn Manager>,
        end: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let gate = Arc::new(DashboardGate {
            keys: self.keys,
            only_local: self.address.ip().is_loopback(),
            host: self.host,
            cache: AnswerCache::new(),
            pace: RequestRate::new(),
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            limits: self.limits,
        });
        let router = router(manager, &gate);
        let (ending, has_ended) = watch::channel(false);
        let mut end = pin!(end);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut end => break,
                accepted = listener.accept() => accepted,
            };
            let pause = match accepted {
                Ok((stream, _)) => {
                    if gate.accept(stream, &router, &has_ended) {
                        continue;
                    }
                    REFUSED_PAUSE
                }
                Err(error) => {
                    tracing::warn!(%error, "dashboard: accept failed");
                    ACCEPT_RETRY
                }
            };
            tokio::select! {
                () = &mut end => break,
                () = sleep(pause) => {}
            }
        }
        // Another dashboard may listen at the same address from now on.
        drop(listener);
        ending.send_replace(true);
        let drained = gate.permits.acquire_many(CONNECTIONS_MAX as u32);
        // Connections that take longer end with the runtime.
        let _ = timeout(Duration::from_secs(DRAIN_SECONDS_MAX), drained).await;
        Ok(())
    }
}

/// Whether enough descriptors are free above `fd` for the control socket and for disks: the system
/// assigns the lowest free number. Clients of volumes leave twice as many free.
fn has_descriptors_beside(fd: RawFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let reserved = DESCRIPTORS_RESERVED.min(limit / 8);
    u64::try_from(fd).is_ok_and(|fd| fd < limit - reserved)
}

/// What all connections share.
struct DashboardGate {
    keys: DashboardKeys,
    /// Whether only this machine can reach the dashboard.
    only_local: bool,
    /// The host that the operator has named.
    host: String,
    cache: AnswerCache,
    pace: RequestRate,
    /// Permits for connections.
    permits: Arc<Semaphore>,
    limits: ConnLimits,
}

impl DashboardGate {
    /// Starts a connection; returns false if it is refused.
    fn accept(
        self: &Arc<Self>,
        stream: TcpStream,
        router: &Router,
        end: &watch::Receiver<bool>,
    ) -> bool {
        let keys = self.keys.get();
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if keys.tls.is_none() {
                // It fits into the send buffer of a new connection. If it cannot be sent, the
                // client just gets no explanation.
                let _ = stream.try_write(CROWDED);
            }
            return false;
        };
        if !has_descriptors_beside(stream.as_raw_fd()) {
            return false;
        }
        // If it fails, packets are only delayed.
        let _ = stream.set_nodelay(true);
        let connection =
            DashboardConn { router: router.clone(), end: end.clone(), limits: self.limits };
        tokio::spawn(connection.serve(stream, keys.tls, permit));
        true
    }

    /// Whether connections are to be closed after their answers.
    fn is_crowded(&self) -> bool {
        CONNECTIONS_MAX - self.permits.available_permits() > CONNECTIONS_KEPT_MAX
    }

    fn check(&self, request: &Request) -> Result<TokenRole, Problem> {
        let headers = request.headers();
        access::check_page(headers)?;
        access::check_role(headers, request.method(), &self.keys.get().tokens)
    }
}

/// One connection.
struct DashboardConn {
    router: Router,
    end: watch::Receiver<bool>,
    limits: ConnLimits,
}

impl DashboardConn {
    async fn serve(
        self,
        stream: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        permit: OwnedSemaphorePermit,
    ) {
        // Held until the connection ends.
        let _permit = permit;
        let stream = Paced::new(stream, self.limits.stall);
        let Some(config) = tls else { return self.drive(stream).await };
        let handshake = TlsAcceptor::from(config).accept(stream);
        match timeout(self.limits.request, handshake).await {
            Ok(Ok(stream)) => self.drive(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "dashboard: TLS handshake failed"),
            Err(_) => tracing::debug!("dashboard: TLS handshake timed out"),
        }
    }

    async fn drive(mut self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.request)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router));
        let mut connection = pin!(connection);
        let has_ended = async {
            // Fails only if the dashboard is gone, which also ends its connections.
            let _ = self.end.wait_for(|has_ended| *has_ended).await;
        };
        let ended = tokio::select! {
            result = connection.as_mut() => Some(result),
            () = has_ended => None,
        };
        let result = match ended {
            Some(result) => result,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "dashboard: connection ended");
        }
    }
}

fn router(manager: Arc<dyn Manager>, gate: &Arc<DashboardGate>) -> Router {
    let api = routes::remote_router(manager)
        .layer(from_fn_with_state(Arc::clone(gate), answer_from_cache))
        .layer(from_fn_with_state(Arc::clone(gate), check_request));
    // The API answers unknown paths, after the same checks.
    assets::router().fallback_service(api).layer(from_fn_with_state(Arc::clone(gate), finish))
}

/// Checks the host of every request, and adds the headers that every answer has.
async fn finish(State(gate): State<Arc<DashboardGate>>, request: Request, next: Next) -> Response {
    gate.pace.admit().await;
    let mut response = match access::check_host(request.headers(), &gate.host, gate.only_local) {
        Ok(()) => next.run(request).await,
        Err(problem) => ErrorResponse(problem).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in assets::HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if gate.is_crowded() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Checks where a request for the API comes from, and its token; receives its body.
async fn check_request(
    State(gate): State<Arc<DashboardGate>>,
    request: Request,
    next: Next,
) -> Response {
    let role = match gate.check(&request) {
        Ok(role) => role,
        Err(problem) => {
            let mut response = ErrorResponse(problem).into_response();
            if response.status() == axum::http::StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            return response;
        }
    };
    let (parts, body) = request.into_parts();
    // The body is received before the request is carried out, so that a slow client occupies
    // nothing but its connection.
    let body = match timeout(gate.limits.request, to_bytes(body, REQUEST_BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let message = "the request is too large or incomplete";
            return ErrorResponse(Problem::new(ErrorKind::TooLarge, message, "send less"))
                .into_response();
        }
        Err(_) => {
            let message = "the request did not arrive in time";
            let mut response =
                ErrorResponse(Problem::new(ErrorKind::BadRequest, message, "send it at once"))
                    .into_response();
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return response;
        }
    };
    let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
    response.headers_mut().insert(ROLE, HeaderValue::from_static(role.word()));
    response
}

/// Answers reads from the cache, and clears it after changes.
async fn answer_from_cache(
    State(gate): State<Arc<DashboardGate>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() == Method::GET {
        let uri = request.uri();
        let question = uri.path_and_query().map_or(uri.path(), |it| it.as_str()).to_owned();
        return gate.cache.answer(&question, next.run(request)).await;
    }
    let response = next.run(request).await;
    gate.cache.clear();
    response
}
