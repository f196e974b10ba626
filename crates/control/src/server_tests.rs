//! Tests of the server over a real socket: with the client, and with raw requests that the client
//! never sends.

use super::*;
use crate::{LONG_OPERATIONS_MAX, REQUEST_BODY_BYTES_MAX, fake::FakeManager};
use forebay_api::{
    AddVolume, BlockingClient, ClientError, ErrorBody, ErrorKind, JournalState, Mode, Problem,
    Progress, ServerSettings, VolumeSettings, VolumeStatus,
};
use forebay_types::Fault;
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    thread,
};

/// A server with a fake manager on a thread, and a directory for its socket.
struct Daemon {
    fake: Arc<FakeManager>,
    client: BlockingClient,
    socket: std::path::PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn start(volumes: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::take(directory.path()).unwrap();
        let server = ControlServer::bind(&state).unwrap();
        let socket = state.control_socket();
        let fake = Arc::new(FakeManager::new(volumes));
        let manager = fake.clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(server.run(manager, async { ended.await.unwrap() })).unwrap();
            drop(state);
        });
        let client = BlockingClient::new(&socket).unwrap();
        let (end, thread) = (Some(end), Some(thread));
        Self { fake, client, socket, end, thread, _directory: directory }
    }

    /// Sends a raw request and returns the status and body of the answer.
    fn raw(&self, request: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Sends JSON and returns the problem in the answer, after checking its status.
    fn refusal(&self, method: &str, path: &str, body: &str) -> Problem {
        let len = body.len();
        let (status, body) = self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
        ));
        let problem = serde_json::from_str::<ErrorBody>(&body).unwrap().error;
        assert_eq!(problem.kind.http_status(), status, "{problem}");
        assert!(!problem.message.is_empty() && !problem.remedy.is_empty());
        problem
    }

    fn end(&mut self) {
        self.fake.resume();
        if let (Some(end), Some(thread)) = (self.end.take(), self.thread.take()) {
            end.send(()).unwrap();
            thread.join().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

fn problem(error: ClientError) -> Problem {
    match error {
        ClientError::Refused(problem) => problem,
        error => panic!("{error:?}"),
    }
}

#[test]
fn volumes_are_added_shown_changed_and_removed() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    let client = &daemon.client;
    assert_eq!(client.status().unwrap().pid, crate::fake::PID);
    let request = AddVolume {
        name: "a/b ü".into(),
        backing: "memory:1GiB".into(),
        settings: VolumeSettings::from([("prefetch", "no")]),
    };
    let added = client.add_volume(&request).unwrap();
    assert_eq!((added.mode, added.prefetch), (Mode::WriteThrough, false));
    let names: Vec<_> =
        client.volume_list().unwrap().into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["disk", "a/b ü"]);
    let change = VolumeSettings::from([("mode", "bypass")]);
    assert_eq!(client.set_volume("a/b ü", &change).unwrap().mode, Mode::Bypass);
    assert_eq!(client.volume("a/b ü").unwrap().mode, Mode::Bypass);
    client.remove_volume("a/b ü", false, |_| ()).unwrap();
    assert_eq!(problem(client.volume("a/b ü").unwrap_err()).kind, ErrorKind::UnknownVolume);
}

#[test]
fn the_memory_is_set_within_its_bounds() {
    let daemon = Daemon::start(&[]);
    let set = |memory: Option<&str>| {
        let memory = memory.map(str::to_owned);
        daemon.client.set_server(&ServerSettings { memory, ..ServerSettings::default() })
    };
    assert_eq!(daemon.client.status().unwrap().memory.limit_bytes, 1 << 30);
    assert_eq!(set(Some("256MiB")).unwrap().limit_bytes, 256 << 20);
    assert_eq!(daemon.client.status().unwrap().memory.limit_bytes, 256 << 20);
    assert_eq!(problem(set(Some("2GiB")).unwrap_err()).kind, ErrorKind::Invalid);
    assert_eq!(problem(set(Some("much")).unwrap_err()).kind, ErrorKind::Invalid);
    assert_eq!(problem(set(None).unwrap_err()).kind, ErrorKind::BadRequest);
    let unknown = daemon.refusal("PATCH", "/v1/settings", r#"{"workers": 2}"#);
    assert_eq!(unknown.kind, ErrorKind::BadRequest);
    assert_eq!(daemon.client.status().unwrap().memory.limit_bytes, 256 << 20);
}

#[test]
fn progress_arrives_during_the_operation() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.set_dirty("disk", 4000);
    daemon.fake.pause();
    let mut seen = Vec::new();
    let fake = daemon.fake.clone();
    daemon
        .client
        .flush_volume("disk", |progress| {
            // The first report arrives while the operation is paused, so before its end.
            fake.resume();
            seen.push(progress);
        })
        .unwrap();
    let report = |left| Progress { dirty_bytes_left: left, dirty_bytes_total: 4000 };
    assert_eq!((seen.first(), seen.last()), (Some(&report(4000)), Some(&report(0))));
    assert_eq!(daemon.client.volume("disk").unwrap().dirty_bytes, 0);
}

#[test]
fn an_operation_without_progress_reports_none_while_it_runs() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.pause();
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.write_all(b"POST /v1/upgrade HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    let first = lines.find(|line| line.starts_with('{'));
    assert_eq!(first.as_deref(), Some(r#"{"running":{}}"#));
    daemon.fake.resume();
    assert!(lines.any(|line| line == r#"{"done":{}}"#));
}

#[test]
fn an_operation_continues_after_its_client_has_disconnected() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.set_dirty("disk", 4000);
    daemon.fake.pause();
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.write_all(b"POST /v1/stop HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"progress\"")));
    drop(lines);
    daemon.fake.resume();
    daemon.fake.wait_stopped();
    assert_eq!(daemon.client.volume("disk").unwrap().dirty_bytes, 0);
}

#[test]
fn the_answer_to_stop_arrives_although_the_server_ends() {
    let mut daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.set_dirty("disk", 4000);
    daemon.fake.pause();
    let client = BlockingClient::new(&daemon.socket).unwrap();
    let (sender, progress) = std::sync::mpsc::channel();
    let stopping = thread::spawn(move || client.stop(false, |_| sender.send(()).unwrap()));
    progress.recv().unwrap();
    daemon.end();
    stopping.join().unwrap().unwrap();
    assert!(!daemon.socket.exists(), "the socket is removed");
    assert!(matches!(daemon.client.status(), Err(ClientError::NotRunning { .. })));
}

#[test]
fn an_incomplete_request_does_not_delay_the_end_of_the_server() {
    let mut daemon = Daemon::start(&[]);
    daemon.fake.pause();
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n").unwrap();
    daemon.client.status().unwrap();
    daemon.end();
}

#[test]
fn problems_keep_their_kind_and_message() {
    let daemon = Daemon::start(&["disk=/dev/sdb", "broken=/x", "faulty=/y"]);
    let client = &daemon.client;
    for (error, kind, sentence) in [
        (client.flush_volume("nix", |_| ()), ErrorKind::UnknownVolume, "no volume 'nix': list "),
        (
            client.remove_volume("nix", false, |_| ()),
            ErrorKind::UnknownVolume,
            "no volume 'nix': list ",
        ),
        (
            client.flush_volume("broken", |_| ()),
            ErrorKind::Failed,
            "volume 'broken': its disk cannot be written: replace it",
        ),
        (client.stop(false, |_| ()), ErrorKind::Failed, "volume 'broken'"),
        (client.flush_volume("faulty", |_| ()), ErrorKind::Internal, "internal error"),
    ] {
        let problem = problem(error.unwrap_err());
        assert_eq!(problem.kind, kind);
        assert!(problem.explained().starts_with(sentence), "{problem}");
    }
    assert!(!daemon.fake.is_stopped());
    let request = AddVolume {
        name: "disk".into(),
        backing: "/x".into(),
        settings: VolumeSettings::default(),
    };
    assert_eq!(problem(client.add_volume(&request).unwrap_err()).kind, ErrorKind::VolumeExists);
    let write_back = VolumeSettings::from([("mode", "write-back")]);
    let problem = problem(client.set_volume("disk", &write_back).unwrap_err());
    assert_eq!(problem.kind, ErrorKind::Invalid);
    assert!(problem.remedy.starts_with("write protection=journal,journal=PATH"), "{problem}");
}

#[test]
fn volumes_share_a_journal_and_move_to_another_one() {
    const JOURNALED: &str = "mode=write-back,protection=journal,journal=/j";
    let (a, b) = (format!("a=/a,{JOURNALED}"), format!("b=/b,{JOURNALED},durability=flush"));
    let daemon = Daemon::start(&[&a, &b, "c=/c", "d=/d,protection=journal,journal=broken"]);
    let status = daemon.client.status().unwrap();
    let shown = |volume: &VolumeStatus| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        [volume.protection.clone(), text(&volume.journal), text(&volume.durability)].join(" ")
    };
    let volumes: Vec<_> = status.volumes.iter().map(shown).collect();
    assert_eq!(volumes, ["journal /j ack", "journal /j flush", "unstated  ", "journal broken ack"]);
    let [working, failed] = &status.journals[..] else { panic!("{:?}", status.journals) };
    assert_eq!((working.name.as_str(), working.state), ("/j", JournalState::Working));
    assert_eq!((failed.name.as_str(), failed.state), ("broken", JournalState::Failed));
    assert_eq!((working.unserved.len(), failed.state_reason.is_some()), (1, true));
    for (name, settings) in [
        ("b", VolumeSettings::from([("durability", "ack")])),
        ("c", VolumeSettings::from([("protection", "ups"), ("mode", "write-back")])),
    ] {
        let problem = problem(daemon.client.set_volume(name, &settings).unwrap_err());
        assert_eq!(problem.kind, ErrorKind::Invalid);
        assert!(problem.message.ends_with("while the volume is served"), "{problem}");
        assert!(problem.remedy.starts_with("remove the volume, and add it again"), "{problem}");
    }
    let through = VolumeSettings::from([("mode", "write-through")]);
    assert_eq!(daemon.client.set_volume("a", &through).unwrap().journal.as_deref(), Some("/j"));
    let moved = VolumeSettings::from([("journal", "/k")]);
    assert_eq!(daemon.client.set_volume("a", &moved).unwrap().journal.as_deref(), Some("/k"));
}

#[test]
fn invalid_requests_are_answered_with_a_problem() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    let (volumes, disk) = ("/v1/volumes", "/v1/volumes/disk");
    for (method, path, body, kind, part) in [
        ("GET", "/", "", ErrorKind::NotFound, "unknown path"),
        ("GET", "/v2/status", "", ErrorKind::NotFound, "unknown path"),
        ("DELETE", "/v1/status", "", ErrorKind::MethodNotAllowed, "does not support this method"),
        ("PUT", disk, "{}", ErrorKind::MethodNotAllowed, "does not support this method"),
        ("GET", "/v1/stop", "", ErrorKind::MethodNotAllowed, "does not support this method"),
        ("GET", "/v1/volumes/nix", "", ErrorKind::UnknownVolume, "no volume 'nix'"),
        ("GET", "/v1/volumes/nix/history", "", ErrorKind::UnknownVolume, "no volume 'nix'"),
        ("GET", "/v1/volumes/nix/slow", "", ErrorKind::UnknownVolume, "no volume 'nix'"),
        ("PATCH", "/v1/volumes/nix", r#"{"tls":"optional"}"#, ErrorKind::UnknownVolume, "'nix'"),
        ("GET", "/v1/volumes/%ff", "", ErrorKind::BadRequest, "no valid volume name"),
        ("POST", volumes, "", ErrorKind::BadRequest, "EOF"),
        ("POST", volumes, "{", ErrorKind::BadRequest, "EOF"),
        ("POST", volumes, "[]", ErrorKind::BadRequest, "invalid length"),
        ("POST", volumes, r#"{"name":"a"}"#, ErrorKind::BadRequest, "missing field `backing`"),
        (
            "POST",
            volumes,
            r#"{"name":"a","backing":"/a","mode":"bypass"}"#,
            ErrorKind::BadRequest,
            "unknown field `mode`, expected one of `name`, `backing`, `settings`",
        ),
        (
            "POST",
            volumes,
            r#"{"name":"a=b","backing":"/a"}"#,
            ErrorKind::Invalid,
            "volume name \"a=b\" contains '=' or ','",
        ),
        ("PATCH", disk, "{}", ErrorKind::BadRequest, "changes nothing"),
        ("PATCH", disk, r#"{"mode":3}"#, ErrorKind::BadRequest, "expected a string"),
        ("PATCH", disk, r#"{"mode":"fast"}"#, ErrorKind::Invalid, "unknown mode 'fast'"),
        ("PATCH", disk, r#"{"mood":"fast"}"#, ErrorKind::BadRequest, "unknown field `mood`"),
    ] {
        let problem = daemon.refusal(method, path, body);
        assert_eq!(problem.kind, kind, "{method} {path} {body}: {problem}");
        assert!(problem.message.contains(part), "{method} {path} {body}: {problem}");
    }
    assert_eq!(daemon.client.volume_list().unwrap().len(), 1, "nothing was added");
}

#[test]
fn oversized_and_non_json_bodies_are_answered_with_an_error() {
    let daemon = Daemon::start(&[]);
    let padding = "x".repeat(REQUEST_BODY_BYTES_MAX);
    let body = format!(r#"{{"name":"a","backing":"{padding}"}}"#);
    assert_eq!(daemon.refusal("POST", "/v1/volumes", &body).kind, ErrorKind::TooLarge);
    let (status, body) = daemon.raw(
        "POST /v1/volumes HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    );
    assert_eq!(status, 400);
    assert!(body.contains("content-type: application/json"), "{body}");
    let (status, _) = daemon.raw("nonsense\r\n\r\n");
    assert_eq!(status, 400);
}

#[test]
fn too_many_concurrent_operations_are_refused_as_busy() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.set_dirty("disk", 1);
    daemon.fake.pause();
    let paused: Vec<_> = (0..LONG_OPERATIONS_MAX)
        .map(|_| {
            let mut stream = UnixStream::connect(&daemon.socket).unwrap();
            stream.write_all(b"POST /v1/volumes/disk/flush HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut lines = BufReader::new(stream).lines();
            assert!(lines.any(|line| line.unwrap().contains("\"progress\"")));
            lines
        })
        .collect();
    let busy = problem(daemon.client.flush_volume("disk", |_| ()).unwrap_err());
    assert_eq!(busy.kind, ErrorKind::Busy);
    assert_eq!(daemon.client.volume_list().unwrap().len(), 1, "other requests are still served");
    daemon.fake.resume();
    for mut lines in paused {
        assert!(lines.any(|line| line.unwrap().contains("\"done\"")));
    }
    daemon.client.flush_volume("disk", |_| ()).unwrap();
}

#[test]
fn calls_that_hang_are_limited_after_their_clients_have_gone() {
    let daemon = Daemon::start(&["disk=/dev/sdb"]);
    daemon.fake.pause();
    let start = |path: &str, body: &str| {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        let len = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: {len}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let requests = [
        ("/v1/volumes", r#"{"name":"a","backing":"/dev/sdc"}"#),
        ("/v1/volumes/disk/calibrate", ""),
        ("/v1/drill", ""),
    ];
    let hanging = requests.iter().cycle().take(LONG_OPERATIONS_MAX);
    let clients: Vec<_> = hanging.map(|(path, body)| start(path, body)).collect();
    daemon.fake.wait_paused(LONG_OPERATIONS_MAX);
    drop(clients);
    for (path, body) in requests {
        assert_eq!(daemon.refusal("POST", path, body).kind, ErrorKind::Busy, "{path}");
    }
    let change = r#"{"mode":"bypass"}"#;
    assert_eq!(daemon.refusal("PATCH", "/v1/volumes/disk", change).kind, ErrorKind::Busy);
    // The status is shown, and a volume can be flushed.
    assert_eq!(daemon.client.status().unwrap().volumes.len(), 1);
    let mut lines = BufReader::new(start("/v1/volumes/disk/flush", "")).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"progress\"")));
    daemon.fake.resume();
    assert!(lines.any(|line| line.unwrap().contains("\"done\"")));
    while daemon.client.calibrate_volume("disk").is_err() {
        thread::yield_now();
    }
}

#[test]
fn every_described_request_is_served() {
    let daemon = Daemon::start(&[]);
    let description = serde_json::to_value(crate::openapi()).unwrap();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{name}", "nix");
            let (status, body) = daemon.raw(&format!(
                "{} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
                method.to_uppercase()
            ));
            let is_missing = status == 404 && body.contains("\"not-found\"");
            assert!(!is_missing && status != 405, "{method} {path}");
        }
    }
}
