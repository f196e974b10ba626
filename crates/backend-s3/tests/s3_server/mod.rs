//! A small S3 server on loopback for tests, with one bucket, `bucket`, and faults on command.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The key that is accepted at first.
pub const KEY: &str = "TESTKEY";

/// What goes wrong.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Every request is answered with this status and code.
    pub answers: Option<(u16, &'static str)>,
    /// So many of the next requests that change something are carried out without an answer.
    pub lost_answers: u32,
    pub ignores_create_condition: bool,
    pub ignores_replace_condition: bool,
    /// Conditions match only tags without quotes, as with Ceph's gateway.
    pub wants_plain_tags: bool,
    /// Objects whose name contains this text are stored only to their half.
    pub halves: Option<&'static str>,
    /// Objects whose name contains this text are not stored until it is changed.
    pub holds: Option<&'static str>,
    /// The bucket is in the name of the host, below `localhost`, and nowhere else.
    pub wants_bucket_in_host: bool,
    pub delay: Duration,
    /// The key that is accepted.
    pub key: String,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            answers: None,
            lost_answers: 0,
            ignores_create_condition: false,
            ignores_replace_condition: false,
            wants_plain_tags: false,
            halves: None,
            holds: None,
            wants_bucket_in_host: false,
            delay: Duration::ZERO,
            key: KEY.to_owned(),
        }
    }
}

/// Requests so far, and bytes of objects that were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub puts: u64,
    pub put_bytes: u64,
    pub gets: u64,
    pub get_bytes: u64,
    pub deletes: u64,
    pub lists: u64,
}

impl Counts {
    pub fn requests(self) -> u64 {
        self.puts + self.gets + self.deletes + self.lists
    }
}

#[derive(Default)]
struct ServerData {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    faults: Faults,
    counts: Counts,
}

/// A running server. It ends with the value.
pub struct S3Server {
    address: SocketAddr,
    data: Arc<Mutex<ServerData>>,
    is_stopping: Arc<AtomicBool>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl S3Server {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// With TLS, if there is a configuration.
    pub fn start_with(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let data = Arc::new(Mutex::new(ServerData::default()));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (shared, stopping) = (data.clone(), is_stopping.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let (shared, stopping) = (shared.clone(), stopping.clone());
                let Ok(stream) = stream else { continue };
                let tls = tls.clone();
                std::thread::spawn(move || {
                    stream.set_nodelay(true).unwrap();
                    let Some(tls) = tls else { return drop(serve(stream, &shared, &stopping)) };
                    let session = rustls::ServerConnection::new(tls).unwrap();
                    let stream = rustls::StreamOwned::new(session, stream);
                    drop(serve(stream, &shared, &stopping));
                });
            }
        });
        Self { address, data, is_stopping }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A file with a key, in a directory.
    pub fn credentials(directory: &Path, key: &str) -> PathBuf {
        let path = directory.join("s3-credentials");
        let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n");
        // In one step, as an operator should: a server may read it at any time.
        let new = directory.join("s3-credentials.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    /// The name of a volume, with more options.
    pub fn volume(&self, directory: &Path, prefix: &str, options: &str) -> String {
        let credentials = Self::credentials(directory, KEY);
        let (endpoint, credentials) = (self.endpoint(), credentials.display());
        format!("s3://bucket/{prefix}?endpoint={endpoint}&credentials={credentials}{options}")
    }

    fn data(&self) -> MutexGuard<'_, ServerData> {
        self.data.lock().unwrap()
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.data().faults);
    }

    pub fn counts(&self) -> Counts {
        self.data().counts
    }

    /// Waits until no request has come for a while.
    pub fn wait_until_idle(&self, quiet: Duration) {
        let begin = Instant::now();
        let (mut before, mut since) = (self.counts(), Instant::now());
        while since.elapsed() < quiet {
            assert!(begin.elapsed() < Duration::from_secs(60), "requests never end");
            std::thread::sleep(Duration::from_millis(20));
            let now = self.counts();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }

    /// Names and sizes.
    pub fn objects(&self) -> Vec<(String, u64)> {
        let data = self.data();
        let objects = data.objects.iter();
        objects.map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect()
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        self.data().objects[name].to_vec()
    }

    pub fn clear(&self) {
        self.data().objects.clear();
    }

    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.data().objects.insert(name.to_owned(), Arc::new(bytes));
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(
    stream: impl Read + Write,
    data: &Mutex<ServerData>,
    is_stopping: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        if is_stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some((status, headers, body)) = answer(&request, data) else { return Ok(()) };
        let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        let stream = reader.get_mut();
        stream.write_all(head.as_bytes())?;
        if request.method != "HEAD" {
            stream.write_all(&body)?;
        }
        stream.flush()?;
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    Ok(Some(Request { method, path, query, headers, body }))
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn error(status: u16, code: &str) -> Answer {
    let text = format!("<Error><Code>{code}</Code><Message>as the test wants</Message></Error>");
    (status, vec![("Content-Type", "application/xml".into())], text.into_bytes())
}

fn tag_of(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// `None` to close the connection without an answer.
fn answer(request: &Request, shared: &Mutex<ServerData>) -> Option<Answer> {
    let faults = shared.lock().unwrap().faults.clone();
    std::thread::sleep(faults.delay);
    let is_change = matches!(&*request.method, "PUT" | "DELETE");
    if request.method == "PUT" {
        while shared.lock().unwrap().faults.holds.is_some_and(|it| request.path.contains(it)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut data = shared.lock().unwrap();
    let counts = &mut data.counts;
    match &*request.method {
        "PUT" => counts.puts += 1,
        "DELETE" => counts.deletes += 1,
        _ if request.query.contains("list-type") => counts.lists += 1,
        _ => counts.gets += 1,
    }
    if let Some((status, code)) = data.faults.answers {
        return Some(error(status, code));
    }
    let authorization = request.headers.get("authorization").map(String::as_str);
    let credential = format!("Credential={}/", data.faults.key);
    if !authorization.unwrap_or_default().contains(&credential) {
        return Some(error(403, "InvalidAccessKeyId"));
    }
    let answer = carry_out(request, &mut data);
    if is_change && answer.0 < 300 && data.faults.lost_answers > 0 {
        data.faults.lost_answers -= 1;
        return None;
    }
    Some(answer)
}

fn carry_out(request: &Request, data: &mut ServerData) -> Answer {
    let path = request.path.trim_start_matches('/');
    let (bucket, name) = if data.faults.wants_bucket_in_host {
        let host = request.headers.get("host").map(String::as_str).unwrap_or_default();
        (host.split_once(".localhost:").unwrap_or_default().0, path)
    } else {
        path.split_once('/').unwrap_or((path, ""))
    };
    if bucket != "bucket" {
        return error(404, "NoSuchBucket");
    }
    match &*request.method {
        "PUT" => put(request, name, data),
        "DELETE" => {
            data.objects.remove(name);
            (204, Vec::new(), Vec::new())
        }
        _ if name.is_empty() => list(request, data),
        _ => get(request, name, data),
    }
}

fn put(request: &Request, name: &str, data: &mut ServerData) -> Answer {
    let faults = &data.faults;
    let present = data.objects.get(name);
    if request.headers.contains_key("if-none-match")
        && present.is_some()
        && !faults.ignores_create_condition
    {
        return error(412, "PreconditionFailed");
    }
    if let Some(wanted) = request.headers.get("if-match")
        && !faults.ignores_replace_condition
    {
        let tag = present.map(|bytes| tag_of(bytes)).unwrap_or_default();
        let tag = if faults.wants_plain_tags { tag.trim_matches('"') } else { &tag };
        if wanted != tag {
            return error(412, "PreconditionFailed");
        }
    }
    let mut body = request.body.clone();
    let tag = tag_of(&body);
    if faults.halves.is_some_and(|part| name.contains(part)) {
        body.truncate(body.len() / 2);
    }
    data.counts.put_bytes += request.body.len() as u64;
    data.objects.insert(name.to_owned(), Arc::new(body));
    (200, vec![("ETag", tag)], Vec::new())
}

const MODIFIED: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

fn get(request: &Request, name: &str, data: &mut ServerData) -> Answer {
    let Some(bytes) = data.objects.get(name).cloned() else { return error(404, "NoSuchKey") };
    let mut headers = vec![("ETag", tag_of(&bytes)), ("Last-Modified", MODIFIED.into())];
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
        data.counts.get_bytes += bytes.len() as u64;
        return (200, headers, bytes.to_vec());
    };
    let from: usize = from.parse().unwrap();
    let end = to.parse::<usize>().unwrap_or(usize::MAX - 1).saturating_add(1).min(bytes.len());
    if from >= bytes.len() {
        return error(416, "InvalidRange");
    }
    data.counts.get_bytes += (end - from) as u64;
    headers.push(("Content-Range", format!("bytes {from}-{}/{}", end - 1, bytes.len())));
    (206, headers, bytes[from..end].to_vec())
}

fn list(request: &Request, data: &ServerData) -> Answer {
    let prefix = request.query.split('&').find_map(|it| it.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default().replace("%2F", "/");
    let mut text = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (name, bytes) in data.objects.iter().filter(|(name, _)| name.starts_with(&prefix)) {
        text += &format!(
            "<Contents><Key>{name}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>\
             <ETag>{}</ETag><Size>{}</Size></Contents>",
            tag_of(bytes).replace('"', "&quot;"),
            bytes.len()
        );
    }
    text += "</ListBucketResult>";
    (200, vec![("Content-Type", "application/xml".into())], text.into_bytes())
}
