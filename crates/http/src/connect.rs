//! Connections.

use crate::Roots;
use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::http::uri::{Authority, Scheme};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long a connection may take, with its TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What a connection leads to: `http` or `https`, and the host with its port.
pub type Place = (Scheme, Authority);

/// Connects to a place within five seconds. Requires a tokio runtime with I/O and time.
///
/// # Errors
/// The host cannot be reached in time, or its certificate is not one of `roots`.
pub async fn connect<B>(roots: &Roots, place: &Place) -> io::Result<SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    tokio::time::timeout(CONNECT_LIMIT, open(roots, place)).await.unwrap_or_else(|_| {
        let text = format!("no connection to {} within 5 s", place.1);
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

async fn open<B>(roots: &Roots, (scheme, authority): &Place) -> io::Result<SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let is_tls = *scheme == Scheme::HTTPS;
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let host = authority.host().trim_matches(['[', ']']);
    // Names below it are those of this machine too (RFC 6761), and not every resolver knows that.
    let found = if host.ends_with(".localhost") { "localhost" } else { host };
    let stream = TcpStream::connect((found, port)).await?;
    stream.set_nodelay(true)?;
    if !is_tls {
        return begin(stream).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    begin(TlsConnector::from(roots.tls()?).connect(name, stream).await?).await
}

/// Begins HTTP on a stream.
async fn begin<S, B>(stream: S) -> io::Result<SendRequest<B>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Its errors are those of the requests on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
