//! Serves the metrics on a TCP port of this machine, where a Prometheus can read them without
//! access to the control socket. It answers `GET /metrics` and refuses everything else.
//!
//! One answer per connection. The number of connections, the size of a request and the time for
//! it are bounded, so clients cannot exhaust the server. The generated text is reused for a moment,
//! so many clients cost the daemon as much as one.

use super::{METRICS_TYPE, metrics};
use crate::Manager;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Limit of concurrent connections. Further ones are closed immediately.
const CONNECTIONS_MAX: usize = 16;
/// The longest request, in bytes, headers included.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The time for a request and its answer.
const TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a generated text is reused for further requests.
const KEPT_FOR: Duration = Duration::from_millis(500);

/// The text of the metrics, generated at most once in [`KEPT_FOR`].
#[derive(Default)]
struct KeptText(Mutex<Option<(Instant, Arc<str>)>>);

impl KeptText {
    /// The metrics of `now`, or of up to [`KEPT_FOR`] before. Concurrent callers wait while the
    /// text is generated.
    fn at(&self, now: Instant, manager: &dyn Manager) -> Arc<str> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((made, text)) if now.saturating_duration_since(*made) < KEPT_FOR => text.clone(),
            _ => {
                let text: Arc<str> = metrics(&manager.measurements()).into();
                *kept = Some((now, Arc::clone(&text)));
                text
            }
        }
    }
}

/// A listening server of metrics. Connections wait until [`MetricsServer::run`] accepts them.
#[derive(Debug)]
pub struct MetricsServer(TcpListener);

impl MetricsServer {
    /// Serves at a bound socket.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The address, with the port that the system chose.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until it is dropped. Requires a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// The runtime cannot poll the socket.
    pub async fn run(self, manager: Arc<dyn Manager>) -> io::Result<Infallible> {
        let listener = tokio::net::TcpListener::from_std(self.0)?;
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let text = Arc::new(KeptText::default());
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
            let (manager, text) = (Arc::clone(&manager), Arc::clone(&text));
            tokio::spawn(async move {
                // A client that disconnects or exceeds the time is not an error of the server.
                let _ = timeout(TIME_MAX, serve(stream, manager, text)).await;
                drop(permit);
            });
        }
    }
}

/// Reads one request and answers it.
async fn serve(
    mut stream: TcpStream,
    manager: Arc<dyn Manager>,
    text: Arc<KeptText>,
) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    let (status, more, body) = match head.as_deref().map_or(MetricsRequest::TooLong, asked) {
        MetricsRequest::Metrics => {
            let make = move || text.at(Instant::now(), &*manager);
            let made = tokio::task::spawn_blocking(make).await;
            match made {
                Ok(text) => ("200 OK", format!("content-type: {METRICS_TYPE}\r\n"), text),
                Err(_) => plain("500 Internal Server Error", "the log says why"),
            }
        }
        MetricsRequest::OtherPath => plain("404 Not Found", "only /metrics is served here"),
        MetricsRequest::OtherMethod => {
            let (status, more, body) = plain("405 Method Not Allowed", "only GET is supported");
            (status, more + "allow: GET\r\n", body)
        }
        MetricsRequest::Nonsense => plain("400 Bad Request", "not an HTTP request"),
        MetricsRequest::TooLong => {
            plain("431 Request Header Fields Too Large", "the request is too long")
        }
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn plain(status: &'static str, body: &str) -> (&'static str, String, Arc<str>) {
    (status, "content-type: text/plain\r\n".to_owned(), format!("{body}\n").into())
}

/// Reads a request up to the empty line after its headers; `None` if it is too long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut stream = stream.take(REQUEST_BYTES_MAX as u64);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= REQUEST_BYTES_MAX {
            return Ok(None);
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some(head))
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricsRequest {
    Metrics,
    OtherPath,
    OtherMethod,
    Nonsense,
    TooLong,
}

/// Reads the first line of a request.
fn asked(head: &[u8]) -> MetricsRequest {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.0" | b"HTTP/1.1"] = words[..] else {
        return MetricsRequest::Nonsense;
    };
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (path, method) {
        (b"/metrics", b"GET") => MetricsRequest::Metrics,
        (b"/metrics", _) => MetricsRequest::OtherMethod,
        _ => MetricsRequest::OtherPath,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeManager;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use tokio::sync::oneshot;

    /// A server on a thread.
    struct Served {
        address: SocketAddr,
        end: Option<oneshot::Sender<()>>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Served {
        fn start() -> Self {
            let server = MetricsServer::new(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
            let address = server.address().unwrap();
            let (end, ended) = oneshot::channel::<()>();
            let thread = std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let manager = Arc::new(FakeManager::new(&["disk=/dev/sdb"]));
                runtime.block_on(async {
                    tokio::select! {
                        ended = ended => ended.unwrap(),
                        failed = server.run(manager) => panic!("{failed:?}"),
                    }
                });
            });
            Self { address, end: Some(end), thread: Some(thread) }
        }

        fn answer(&self, request: &[u8]) -> String {
            let mut stream = TcpStream::connect(self.address).unwrap();
            stream.write_all(request).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.end.take().unwrap().send(()).unwrap();
            self.thread.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn only_get_of_metrics_is_answered() {
        let server = Served::start();
        for path in ["/metrics", "/metrics?name=x"] {
            let answer =
                server.answer(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("content-type: {METRICS_TYPE}\r\n")), "{head}");
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            assert!(body.contains("forebay_volume_size_bytes{volume=\"disk\"}"), "{body}");
        }
        for (request, status) in [
            ("POST /metrics HTTP/1.1\r\ncontent-length: 0\r\n\r\n", "405 Method Not Allowed"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /v1/status HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /v1/stop HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"),
            ("\r\n\r\n", "400 Bad Request"),
        ] {
            let answer = server.answer(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
        }
    }

    #[test]
    fn the_metrics_are_made_once_in_a_moment() {
        let (text, manager) = (KeptText::default(), FakeManager::new(&["disk=/dev/sdb"]));
        let now = Instant::now();
        let first = text.at(now, &manager);
        manager.set_dirty("disk", 4096);
        assert_eq!(text.at(now + KEPT_FOR - Duration::from_millis(1), &manager), first);
        assert_ne!(text.at(now + KEPT_FOR, &manager), first);
    }

    #[test]
    fn a_request_has_a_limit() {
        let server = Served::start();
        let long = [b'x'; REQUEST_BYTES_MAX];
        assert!(server.answer(&long).starts_with("HTTP/1.1 431 "));
        // A client that disconnects in the middle of its request.
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(b"GET /met").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        assert_eq!(stream.read_to_end(&mut answer).unwrap(), 0);
    }

    #[test]
    fn connections_beyond_the_limit_are_closed_and_the_others_served() {
        let server = Served::start();
        let idle = || TcpStream::connect(server.address).unwrap();
        let mut idle: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| idle()).collect();
        // Accepted in order, so all permits are taken.
        let mut one_more = TcpStream::connect(server.address).unwrap();
        let mut answer = Vec::new();
        assert_eq!(one_more.read_to_end(&mut answer).unwrap(), 0);
        for stream in &mut idle {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
            answer.clear();
        }
    }
}
