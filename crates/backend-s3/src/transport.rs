//! HTTP to the store: a pool of connections, with TLS where the address asks for it.
//!
//! A connection is given back when its response has begun, and is used again once the body was read
//! to its end. The store closes idle connections; a request that finds its connection closed is
//! sent over a new one.

use forebay_http::{Place, Roots, connect};
use http_body_util::BodyExt;
use hyper::client::conn::http1::SendRequest;
use hyper::header::HOST;
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an idle connection is kept. Stores close theirs after some seconds or minutes.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

/// Makes clients of the store.
#[derive(Clone, Debug)]
pub(crate) struct Transport(pub(crate) Roots);

impl HttpConnector for Transport {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let (roots, idle) = (self.0.clone(), Mutex::default());
        Ok(HttpClient::new(ConnectionPool { roots, idle }))
    }
}

type Sender = SendRequest<HttpRequestBody>;

struct IdleConnection {
    sender: Sender,
    since: Instant,
}

/// Connections, by scheme and address.
struct ConnectionPool {
    roots: Roots,
    idle: Mutex<HashMap<Place, Vec<IdleConnection>>>,
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
    HttpError::new(HttpErrorKind::Request, io::Error::other(what.to_owned()))
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

    fn idle(&self) -> MutexGuard<'_, HashMap<Place, Vec<IdleConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, place: &Place) -> Option<Sender> {
        let mut idle = self.idle();
        let list = idle.get_mut(place)?;
        list.retain(|it| !it.sender.is_closed() && it.since.elapsed() < IDLE_LIMIT);
        let ready = list.iter().rposition(|it| it.sender.is_ready())?;
        Some(list.remove(ready).sender)
    }

    fn give_back(&self, place: Place, sender: Sender) {
        let since = Instant::now();
        self.idle().entry(place).or_default().push(IdleConnection { sender, since });
    }

    async fn connect(&self, place: &Place) -> Result<Sender, HttpError> {
        connect(&self.roots, place).await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
                _ => HttpErrorKind::Connect,
            };
            HttpError::new(kind, error)
        })
    }
}
