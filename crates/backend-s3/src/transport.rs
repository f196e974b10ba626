//! HTTP to the store: a pool of connections, with TLS where the address asks for it.
//!
//! A connection is given back when its response has begun, and is used again once the body was read
//! to its end. The store closes idle connections; a request that finds its connection closed is
//! sent over a new one.

use http_body_util::BodyExt;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept. Stores close theirs after some seconds or minutes.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// Where distributions keep the certificates of authorities, after `SSL_CERT_FILE`.
const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Makes clients of the store.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    tls: Option<Arc<ClientConfig>>,
}

/// Why certificates of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read certificates from {}", path.display())]
pub(crate) struct RootsError {
    pub(crate) path: PathBuf,
    pub(crate) source: std::io::Error,
}

impl RootsError {
    fn new(path: &Path, text: String) -> Self {
        Self { path: path.to_owned(), source: std::io::Error::other(text) }
    }
}

impl Transport {
    /// With the certificates of `ca`, or those of the system.
    ///
    /// # Errors
    /// If they cannot be read. Without any, only plain HTTP is possible.
    pub(crate) fn new(ca: Option<&Path>) -> Result<Self, RootsError> {
        let path = match ca {
            Some(path) => Some(path.to_owned()),
            None => std::env::var_os("SSL_CERT_FILE")
                .map(PathBuf::from)
                .or_else(|| ROOT_FILES.iter().map(PathBuf::from).find(|path| path.exists())),
        };
        let Some(path) = path else { return Ok(Self { tls: None }) };
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_file_iter(&path)
            .map_err(|e| RootsError::new(&path, e.to_string()))?;
        roots.add_parsable_certificates(found.flatten());
        if roots.is_empty() {
            return Err(RootsError::new(&path, "it has no certificate".into()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| RootsError::new(&path, error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: Some(Arc::new(config)) })
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let (tls, idle) = (self.tls.clone(), Mutex::default());
        Ok(HttpClient::new(ConnectionPool { tls, idle }))
    }
}

type Sender = SendRequest<HttpRequestBody>;

struct IdleConnection {
    sender: Sender,
    since: Instant,
}

/// Connections, by scheme and address.
struct ConnectionPool {
    tls: Option<Arc<ClientConfig>>,
    idle: Mutex<HashMap<(Scheme, Authority), Vec<IdleConnection>>>,
}

impl std::fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionPool")
    }
}

impl HttpService for ConnectionPool {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.send(request))
    }
}

fn unusable(what: &str) -> HttpError {
    HttpError::new(HttpErrorKind::Request, std::io::Error::other(what.to_owned()))
}

impl ConnectionPool {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let scheme = parts.uri.scheme().cloned().ok_or_else(|| unusable("no scheme"))?;
        let authority = parts.uri.authority().cloned().ok_or_else(|| unusable("no host"))?;
        let path = parts.uri.path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let place = (scheme, authority);
        loop {
            let reused = self.take(&place);
            let is_reused = reused.is_some();
            let mut sender = match reused {
                Some(sender) => sender,
                None => self.connect(&place).await?,
            };
            let mut request = Request::new(body.clone());
            *request.method_mut() = parts.method.clone();
            *request.uri_mut() = Uri::from(path.clone());
            *request.headers_mut() = parts.headers.clone();
            if !parts.headers.contains_key(HOST)
                && let Ok(host) = place.1.as_str().parse()
            {
                request.headers_mut().insert(HOST, host);
            }
            match sender.send_request(request).await {
                Ok(response) => {
                    self.give_back(place, sender);
                    let (parts, body) = response.into_parts();
                    let body = body.map_err(|e| HttpError::new(HttpErrorKind::Interrupted, e));
                    return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
                }
                // It was closed while it was idle.
                Err(_) if is_reused => {}
                Err(error) => return Err(HttpError::new(HttpErrorKind::Interrupted, error)),
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<(Scheme, Authority), Vec<IdleConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, place: &(Scheme, Authority)) -> Option<Sender> {
        let mut idle = self.idle();
        let list = idle.get_mut(place)?;
        list.retain(|it| !it.sender.is_closed() && it.since.elapsed() < IDLE_LIMIT);
        let ready = list.iter().rposition(|it| it.sender.is_ready())?;
        Some(list.remove(ready).sender)
    }

    fn give_back(&self, place: (Scheme, Authority), sender: Sender) {
        let since = Instant::now();
        self.idle().entry(place).or_default().push(IdleConnection { sender, since });
    }

    async fn connect(&self, place: &(Scheme, Authority)) -> Result<Sender, HttpError> {
        let connecting = tokio::time::timeout(CONNECT_LIMIT, self.open(place));
        match connecting.await {
            Ok(Ok(sender)) => Ok(sender),
            Ok(Err(error)) => Err(HttpError::new(HttpErrorKind::Connect, error)),
            Err(_) => {
                let text = format!("no connection to {} within 5 s", place.1);
                let error = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
                Err(HttpError::new(HttpErrorKind::Timeout, error))
            }
        }
    }

    async fn open(&self, (scheme, authority): &(Scheme, Authority)) -> std::io::Result<Sender> {
        let is_tls = *scheme == Scheme::HTTPS;
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = authority.host().trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if !is_tls {
            return serve(stream).await;
        }
        let Some(tls) = &self.tls else {
            return Err(std::io::Error::other("there are no certificates of authorities"));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        serve(TlsConnector::from(tls.clone()).connect(name, stream).await?).await
    }
}

/// Begins HTTP on a stream.
async fn serve<S>(stream: S) -> std::io::Result<Sender>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    // Its errors are those of the requests on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
