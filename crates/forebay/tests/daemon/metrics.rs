//! The metrics of the built program: over the control socket, and on a TCP port.

use crate::process::{Daemon, MIB, UNPROTECTED, failed_start, make_file, output_of};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn start(directory: &Path, arguments: &[&str]) -> Daemon {
    make_file(directory.join("a.img"), 16 * MIB);
    let name = "b \"\\ü";
    let volumes = [
        format!("a={},{UNPROTECTED},gather-below=off", directory.join("a.img").display()),
        format!("{name}=memory:16MiB"),
    ];
    Daemon::start_with(directory, "auto", "64MiB", &volumes, arguments)
}

fn answer(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// The metrics over the control socket.
pub fn over_control(directory: &Path) -> String {
    let stream = UnixStream::connect(directory.join("state/control.sock")).unwrap();
    let (head, body) = answer(stream, GET);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    body
}

/// The port that the log names.
fn address(daemon: &Daemon) -> String {
    daemon.wait_for_log("serving metrics");
    let log = daemon.log_so_far();
    let (_, after) = log.split_once("serving metrics").unwrap();
    let address = after.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    address.trim_matches('"').to_owned()
}

/// The value of a series.
pub fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

/// Asks `promtool` what is wrong, where it is installed.
fn check_by_promtool(text: &str) {
    let arguments = ["check", "metrics"];
    let Ok(mut tool) = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        println!("promtool is not installed: not checked");
        return;
    };
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}

#[test]
fn metrics_count_what_clients_did_and_forget_a_volume_that_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path(), &["--metrics", "127.0.0.1:0"]);
    let mut client = daemon.client("a");
    for n in 0..5 {
        assert_eq!(client.write(n * 4096, &[1; 4096]), Ok(()));
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    let text = over_control(directory.path());
    check_by_promtool(&text);
    for (series, expected) in [
        (r#"forebay_volume_requests_total{volume="a",op="write"}"#, 5.0),
        (r#"forebay_volume_request_bytes_total{volume="a",op="write"}"#, 20480.0),
        (r#"forebay_volume_lookups_total{volume="a",op="read",result="hit"}"#, 1.0),
        (r#"forebay_volume_deferred_writes_total{volume="a"}"#, 5.0),
        (r#"forebay_volume_size_bytes{volume="a"}"#, 16.0 * 1_048_576.0),
        (r#"forebay_volume_size_bytes{volume="b \"\\ü"}"#, 16.0 * 1_048_576.0),
        (r#"forebay_volume_state{volume="a",state="serving"}"#, 1.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
    let latency = "forebay_volume_request_duration_seconds";
    let count = format!("{latency}_count{{volume=\"a\",kind=\"write_memory\"}}");
    let all = format!("{latency}_bucket{{volume=\"a\",kind=\"write_memory\",le=\"+Inf\"}}");
    assert_eq!([value(&text, &count), value(&text, &all)], [5.0, 5.0]);
    // The same on the TCP port. Some are there only from the sizer's first decision on.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut text = text;
    while !text.contains("forebay_memory_available_bytes") {
        assert!(Instant::now() < deadline, "no decision on memory");
        std::thread::sleep(Duration::from_millis(10));
        text = over_control(directory.path());
    }
    let (head, of_tcp) = answer(TcpStream::connect(address(&daemon)).unwrap(), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let names = |text: &str| -> BTreeSet<String> {
        text.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
    };
    assert_eq!(names(&of_tcp), names(&text));
    check_by_promtool(&of_tcp);
    drop(client);
    assert_eq!(daemon.run(&["volume", "remove", "a"]).0, Some(0));
    let text = over_control(directory.path());
    assert!(!text.contains("volume=\"a\""), "{text}");
    assert!(text.contains("volume=\"b \\\"\\\\ü\""), "{text}");
    daemon.stop();
}

#[test]
fn the_port_has_metrics_alone_and_an_upgrade_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    // A port that is free now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    make_file(directory.path().join("a.img"), 16 * MIB);
    let volume = format!("a={}", directory.path().join("a.img").display());
    let arguments = ["--metrics", &address];
    let daemon = Daemon::start_kept_given(directory.path(), &[volume], &arguments);
    let ask = |request: &str| answer(TcpStream::connect(&address).unwrap(), request).0;
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\n\r\n", "200 OK"),
        ("GET /v1/status HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /v1/stop HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
    ] {
        let head = ask(request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
    }
    let (code, text) = daemon.run(&["upgrade"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(ask(GET).starts_with("HTTP/1.1 200 OK"));
    daemon.stop();
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn an_address_that_cannot_be_used_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    make_file(directory.path().join("a.img"), 16 * MIB);
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = used.local_addr().unwrap().to_string();
    let state = directory.path().join("state");
    let state = state.to_str().unwrap();
    let disk = directory.path().join("a.img");
    let text = failed_start(
        directory.path(),
        &["--state", state, "--metrics", &used, disk.to_str().unwrap()],
    );
    assert!(text.contains("cannot serve metrics at") && text.contains(&used), "{text}");
    let output = output_of(Command::new(env!("CARGO_BIN_EXE_forebay")).args([
        "serve",
        "--metrics",
        "0.0.0.0:9101",
        "x",
    ]));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("can be reached from other machines"), "{text}");
}

#[test]
fn promtool_accepts_the_alert_rules() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus");
    for arguments in
        [["check", "rules", "forebay.rules.yml"], ["test", "rules", "forebay.rules.test.yml"]]
    {
        match Command::new("promtool").args(arguments).current_dir(&rules).output() {
            Err(error) => println!("promtool is not installed: not checked ({error})"),
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
            }
        }
    }
}
