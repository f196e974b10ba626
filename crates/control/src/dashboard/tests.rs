//! Tests of the dashboard over real sockets. They send raw requests, also such as no browser sends.

use super::{CONNECTIONS_MAX, ConnLimits, Dashboard, DashboardError, Tokens, assets};
use crate::{REQUEST_BODY_BYTES_MAX, fake::FakeManager};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

const LOOK: &str = "0123456789-a-token-to-look";
const OPERATE: &str = "0123456789-a-token-to-operate";

/// A dashboard with a fake manager on a thread.
struct Server {
    fake: Arc<FakeManager>,
    address: SocketAddr,
    token: Option<String>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// An answer: status, head and body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        // A TLS stream may end without a closing message.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Tokens of a file with both roles.
fn tokens() -> Tokens {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    fs::write(&path, format!("look {LOOK}\noperate {OPERATE}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Tokens::read(&path).unwrap()
}

impl Server {
    fn start(tls: Option<ServerConfig>, tokens: Option<Tokens>, limits: ConnLimits) -> Self {
        let dashboard = Dashboard::new(listener(), "127.0.0.1", tls, tokens).unwrap();
        let dashboard = dashboard.with_limits(limits);
        let token = dashboard.link().split_once("#token=").map(|(_, token)| token.to_owned());
        let address = dashboard.url().split('/').nth(2).unwrap().parse().unwrap();
        let fake = Arc::new(FakeManager::new(&["disk=/dev/sdb", "db=/dev/sdc"]));
        let manager = Arc::clone(&fake);
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(dashboard.run(manager, async { ended.await.unwrap() })).unwrap();
            runtime.shutdown_background();
        });
        Self { fake, address, token, end: Some(end), thread: Some(thread) }
    }

    fn local() -> Self {
        Self::start(None, None, ConnLimits::default())
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Sends a request, with more lines of the head, and returns the answer.
    fn ask(&self, method: &str, path: &str, head: &[&str], body: &str) -> Answer {
        let mut stream = self.connect();
        // Fails if the server has closed the connection, as one beyond the limit.
        let _ = stream.write_all(self.request(method, path, head, body).as_bytes());
        Answer::read(&mut stream)
    }

    fn request(&self, method: &str, path: &str, head: &[&str], body: &str) -> String {
        let has = |name: &str| head.iter().any(|line| line.starts_with(name));
        let mut lines: Vec<_> = head.iter().map(|line| (*line).to_owned()).collect();
        if !has("host:") {
            lines.push(format!("host: {}", self.address));
        }
        if !body.is_empty() && !has("content-length:") {
            lines.push("content-type: application/json".into());
            lines.push(format!("content-length: {}", body.len()));
        }
        lines.push("connection: close\r\n\r\n".into());
        format!("{method} {path} HTTP/1.1\r\n{}{body}", lines.join("\r\n"))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// A line of the head with the generated token.
    fn authorization(&self) -> String {
        bearer(self.token.as_deref().unwrap())
    }
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.fake.resume();
        self.end.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn the_page_is_served_with_types_and_a_strict_policy() {
    let server = Server::local();
    for (path, kind, content) in assets::ASSETS {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(answer.body.as_bytes(), content, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let unknown = server.get("/../etc/passwd");
    assert_eq!(unknown.status, 404);
    assert!(unknown.header("content-security-policy").is_some());
}

/// The page must work without the network, and its policy forbids inline code.
#[test]
fn the_page_names_no_other_host_and_has_no_inline_script_or_style() {
    for (path, kind, content) in assets::ASSETS {
        let text = std::str::from_utf8(content).unwrap();
        if !path.starts_with("/vendor/") && !kind.starts_with("image/") {
            for part in ["http://", "https://", "innerHTML", "eval(", "document.write"] {
                assert!(!text.contains(part), "{path} contains {part}");
            }
        }
        if kind.starts_with("text/html") {
            let has_handler = |tag: &str| tag.contains(" on") && tag.contains("=\"");
            assert!(!text.split('<').any(has_handler) && !text.contains("style="), "{path}");
            let scripts = text.matches("<script").count();
            assert_eq!(scripts, text.matches("<script type=\"module\" src=\"/").count(), "{path}");
        }
    }
}

#[test]
fn reading_is_free_on_this_machine_and_changes_need_the_token() {
    let server = Server::local();
    let status = server.get("/v1/status");
    assert_eq!((status.status, status.header("forebay-role")), (200, Some("look")));
    assert!(status.body.contains("\"volumes\""));
    let change = r#"{"mode":"bypass"}"#;
    let without = server.ask("PATCH", "/v1/volumes/disk", &[], change);
    assert_eq!((without.status, without.header("www-authenticate")), (401, Some("bearer")));
    let wrong = bearer("0123456789-a-wrong-token");
    assert_eq!(server.ask("PATCH", "/v1/volumes/disk", &[&wrong], change).status, 401);
    assert_eq!(server.ask("GET", "/v1/status", &[&wrong], "").status, 401);
    assert!(!server.get("/v1/status").body.contains("\"bypass\""), "nothing has changed");
    let done = server.ask("PATCH", "/v1/volumes/disk", &[&server.authorization()], change);
    assert_eq!((done.status, done.header("forebay-role")), (200, Some("operate")), "{done:?}");
    // A change clears the cache, so this is a new answer.
    assert!(server.get("/v1/status").body.contains("\"mode\":\"bypass\""));
}

#[test]
fn the_tokens_of_a_file_have_their_roles_and_nothing_is_free() {
    let server = Server::start(None, Some(tokens()), ConnLimits::default());
    assert_eq!(server.token, None, "the link has no token of a file");
    assert_eq!(server.get("/v1/status").status, 401);
    assert_eq!(server.get("/v1/no-such-path").status, 401);
    assert_eq!(server.get("/").status, 200, "the page asks for the token");
    let change = r#"{"mode":"bypass"}"#;
    for (token, role, changed) in [(LOOK, "look", 403), (OPERATE, "operate", 200)] {
        let token = bearer(token);
        let status = server.ask("GET", "/v1/status", &[&token], "");
        assert_eq!((status.status, status.header("forebay-role")), (200, Some(role)));
        assert_eq!(server.ask("PATCH", "/v1/volumes/db", &[&token], change).status, changed);
        let drill = server.ask("POST", "/v1/drill", &[&token], "");
        assert_eq!(drill.status, changed, "{drill:?}");
        assert_eq!(server.ask("GET", "/v1/clients", &[&token], "").status, 200);
        let ended = server.ask("DELETE", "/v1/clients/1", &[&token], "");
        assert_eq!(ended.status, changed, "{ended:?}");
    }
}

#[test]
fn what_opens_files_or_ends_the_server_is_refused_for_every_token() {
    let server = Server::local();
    let token = server.authorization();
    let volume = r#"{"name":"x","backing":"/etc/shadow"}"#;
    for (method, path, body) in [
        ("POST", "/v1/volumes", volume),
        ("DELETE", "/v1/volumes/disk", ""),
        ("POST", "/v1/volumes/disk/trust", ""),
        ("PATCH", "/v1/volumes/disk", r#"{"protection":"journal","journal":"/etc/shadow"}"#),
        ("PATCH", "/v1/volumes/disk", r#"{"journal_mirror":"/etc/shadow"}"#),
        ("POST", "/v1/stop", ""),
        ("POST", "/v1/upgrade", ""),
        ("POST", "/v1/reload", ""),
        ("POST", "/v1/reload/remove", ""),
        ("POST", "/v1/trace", r#"{"volumes":["disk"]}"#),
    ] {
        let answer = server.ask(method, path, &[&token], body);
        assert_eq!(answer.status, 403, "{method} {path}: {answer:?}");
        assert!(answer.body.contains("control socket only"), "{answer:?}");
    }
    assert!(!server.fake.is_stopped());
    assert!(server.get("/v1/volumes/disk").body.contains("/dev/sdb"));
}

#[test]
fn other_hosts_and_other_pages_are_refused() {
    let server = Server::local();
    let port = server.address.port();
    for host in ["evil.example", "127.0.0.1.evil.example", "10.1.2.3"] {
        for path in ["/", "/v1/status"] {
            let host = format!("host: {host}:{port}");
            let answer = server.ask("GET", path, &[&host], "");
            assert_eq!(answer.status, 403, "{host}{path}");
            assert!(!answer.body.contains("volumes"), "{answer:?}");
        }
    }
    // As through a tunnel with another port.
    assert_eq!(server.ask("GET", "/v1/status", &["host: localhost:9000"], "").status, 200);
    let token = server.authorization();
    for foreign in ["origin: http://evil.example", "origin: null", "sec-fetch-site: cross-site"] {
        assert_eq!(server.ask("GET", "/v1/status", &[foreign], "").status, 403, "{foreign}");
        let drill = server.ask("POST", "/v1/drill", &[foreign, &token], "");
        assert_eq!(drill.status, 403, "{foreign}");
    }
    let own = format!("origin: http://{}", server.address);
    assert_eq!(
        server.ask("GET", "/v1/status", &[&own, "sec-fetch-site: same-origin"], "").status,
        200
    );
}

#[test]
fn oversized_and_malformed_requests_are_refused() {
    let server = Server::local();
    let token = server.authorization();
    let length = format!("content-length: {}", REQUEST_BODY_BYTES_MAX + 1);
    let json = "content-type: application/json";
    let body = "x".repeat(REQUEST_BODY_BYTES_MAX + 1);
    let large = server.ask("PATCH", "/v1/settings", &[&token, &length, json], &body);
    assert_eq!(large.status, 413, "{large:?}");
    let head = format!("x-filler: {}", "x".repeat(64 << 10));
    let mut stream = server.connect();
    let request = server.request("GET", "/v1/status", &[&head], "");
    // The server closes the connection before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let answer = Answer::read(&mut stream);
    assert!([431, 0].contains(&answer.status), "{answer:?}");
    for (body, status) in
        [("{", 400), (r#"{"memory":1}"#, 400), ("[]", 400), (r#"{"memory":"much"}"#, 422)]
    {
        assert_eq!(server.ask("PATCH", "/v1/settings", &[&token], body).status, status, "{body}");
    }
    let mut stream = server.connect();
    stream.write_all(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n").unwrap();
    assert!([400, 0].contains(&Answer::read(&mut stream).status));
    assert_eq!(server.get("/v1/status").status, 200);
}

#[test]
fn slow_and_idle_clients_are_disconnected() {
    let limits = ConnLimits { request: Duration::from_millis(200), stall: Duration::from_secs(20) };
    let server = Server::start(None, None, limits);
    let token = server.authorization();
    let slow_body = ["content-length: 9", "content-type: application/json", token.as_str()];
    for sent in [
        String::new(),
        "GET /v1/st".into(),
        format!("GET / HTTP/1.1\r\nhost: {}\r\n", server.address),
        // Answered, and then idle.
        format!("GET /icon.svg HTTP/1.1\r\nhost: {}\r\n\r\n", server.address),
        server.request("PATCH", "/v1/settings", &slow_body, ""),
    ] {
        let mut stream = server.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        // Ends only if the server closes the connection.
        let answer = Answer::read(&mut stream);
        assert!(answer.status != 200 || sent.contains("icon.svg"), "{sent}: {answer:?}");
    }
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let limits = ConnLimits { request: Duration::from_secs(60), stall: Duration::from_millis(200) };
    let server = Server::start(None, None, limits);
    let mut stream = server.connect();
    let request = format!("GET /vendor/uPlot.esm.js HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    // Each answer has 140 KB, so the buffers of the sockets are full at some time; then the server
    // reads no more either, and only its time limit ends the connection.
    let is_ended = (0..100_000).any(|_| stream.write_all(request.as_bytes()).is_err());
    assert!(is_ended);
}

#[test]
fn connections_beyond_the_limit_are_refused_and_the_others_served() {
    let limits = ConnLimits { request: Duration::from_secs(600), ..ConnLimits::default() };
    let server = Server::start(None, None, limits);
    let request = format!("GET /icon.svg HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    let mut kept = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = server.connect();
        // An incomplete request occupies its connection.
        stream.write_all(&request.as_bytes()[..request.len() - 2]).unwrap();
        kept.push(stream);
    }
    let mut refused = server.connect();
    let answer = Answer::read(&mut refused);
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")), "{answer:?}");
    assert_eq!(answer.header("content-length").unwrap(), answer.body.len().to_string());
    // While there are many, the server closes each after its answer, to make room.
    for mut stream in kept.drain(..8) {
        stream.write_all(b"\r\n").unwrap();
        let answer = Answer::read(&mut stream);
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    drop(kept);
    while server.get("/v1/status").status != 200 {}
}

#[test]
fn many_readers_cause_one_status() {
    let server = Server::local();
    let first = server.get("/v1/status");
    let taken = first.header("forebay-taken-ms").unwrap().to_owned();
    // The state changes while the first answer is kept. An answer with the time of the first one is
    // the kept one; any other is new.
    server.fake.set_dirty("disk", 4096);
    for _ in 0..100 {
        let next = server.get("/v1/status");
        let is_same = next.header("forebay-taken-ms") == Some(&*taken);
        assert_eq!(is_same, next.body == first.body);
        if !is_same {
            break;
        }
    }
    // The number of different requests is limited. Further ones are refused.
    let all: Vec<_> = (0..40).map(|n| server.get(&format!("/v1/status?n={n}")).status).collect();
    assert!(all.iter().all(|status| [200, 429].contains(status)), "{all:?}");
}

#[test]
fn the_end_does_not_wait_for_open_connections() {
    let server = Server::local();
    let mut idle = server.connect();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").unwrap();
    drop(server);
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
}

fn certificate() -> (ServerConfig, RootCertStore) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    (config, roots)
}

fn tls_client(server: &Server, roots: RootCertStore) -> StreamOwned<ClientConnection, TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(session, server.connect())
}

#[test]
fn an_encrypted_dashboard_serves_tls_and_nothing_else() {
    let (config, roots) = certificate();
    let limits = ConnLimits { request: Duration::from_secs(2), ..ConnLimits::default() };
    let server = Server::start(Some(config), Some(tokens()), limits);
    let mut stream = tls_client(&server, roots.clone());
    let request = server.request("GET", "/v1/status", &[&bearer(LOOK)], "");
    stream.write_all(request.as_bytes()).unwrap();
    let answer = Answer::read(&mut stream);
    assert_eq!((answer.status, answer.header("forebay-role")), (200, Some("look")), "{answer:?}");
    let plain = server.ask("GET", "/v1/status", &[&bearer(LOOK)], "");
    assert!(plain.status == 0 && !plain.body.contains("volumes"), "{plain:?}");
    // A connection without a handshake ends.
    assert_eq!(Answer::read(&mut server.connect()).status, 0);
    // A second connection is served.
    let mut stream = tls_client(&server, roots);
    stream.write_all(server.request("GET", "/", &[], "").as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 200);
}

#[test]
fn keys_are_replaced_while_it_serves() {
    let server = {
        let (config, _) = certificate();
        let dashboard =
            Dashboard::new(listener(), "localhost", Some(config), Some(tokens())).unwrap();
        let keys = dashboard.keys();
        assert!(dashboard.url().starts_with("https://localhost:"));
        keys.replace(None, None);
        assert!(dashboard.url().starts_with("https:"), "a reload does not take TLS away");
        assert_eq!(format!("{keys:?}"), "TLS, 2 tokens");
        dashboard
    };
    drop(server);
    let local = Dashboard::new(listener(), "::1", None, None).unwrap();
    let link = local.link();
    local.keys().replace(None, Some(tokens()));
    assert_eq!(local.link(), link, "generated tokens stay");
    assert!(link.starts_with("http://[::1]:"), "{link}");
}

#[test]
fn other_machines_need_tls_and_tokens() {
    let anywhere = || TcpListener::bind("0.0.0.0:0").unwrap();
    let error = Dashboard::new(anywhere(), "0.0.0.0", None, Some(tokens())).unwrap_err();
    assert!(matches!(error, DashboardError::NotEncrypted { .. }), "{error}");
    let (config, _) = certificate();
    let error = Dashboard::new(anywhere(), "0.0.0.0", Some(config), None).unwrap_err();
    assert!(matches!(error, DashboardError::NoTokens { .. }), "{error}");
    let (config, _) = certificate();
    assert!(Dashboard::new(anywhere(), "0.0.0.0", Some(config), Some(tokens())).is_ok());
}
