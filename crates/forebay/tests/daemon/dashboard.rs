//! The dashboard of the program: its link, its token, and a reload of both.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, failed_start, make_file};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Starts a daemon with a volume and a dashboard.
fn start(directory: &Path, more: &[&str]) -> Daemon {
    let disk = directory.join("disk.img");
    make_file(&disk, MIB);
    let volumes = [format!("disk={}", disk.display())];
    let arguments = [&["--dashboard", "127.0.0.1:0"], more].concat();
    Daemon::start_with(directory, "epoll", "64MiB", &volumes, &arguments)
}

/// The status and the body of the answer to a request at the dashboard of a link.
fn ask(link: &str, token: Option<&str>, method: &str, path: &str, body: &str) -> (u16, String) {
    let address = link.split('/').nth(2).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let token = token.map(|it| format!("authorization: Bearer {it}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{token}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn the_link_in_the_state_directory_changes_settings_and_ends_with_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path(), &[]);
    let path = directory.path().join("state/dashboard.url");
    let link = std::fs::read_to_string(&path).unwrap().trim().to_owned();
    let (url, token) = link.split_once("#token=").unwrap();
    daemon.wait_for_log(url);
    assert!(!daemon.log_so_far().contains(token), "the log has the token");
    assert_eq!(ask(&link, None, "GET", "/", "").0, 200);
    let (_, status) = ask(&link, None, "GET", "/v1/status", "");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["pid"], daemon.status()["pid"]);
    let change = r#"{"mode":"bypass"}"#;
    let volume = "/v1/volumes/disk";
    assert_eq!(ask(&link, None, "PATCH", volume, change).0, 401);
    assert_eq!(daemon.status()["volumes"][0]["mode"], "write-through");
    assert_eq!(ask(&link, Some(token), "PATCH", volume, change).0, 200);
    assert_eq!(daemon.status()["volumes"][0]["mode"], "bypass");
    assert_eq!(ask(&link, Some(token), "POST", "/v1/stop", "").0, 403);
    daemon.stop();
    assert!(!path.exists(), "the link remains");
}

#[test]
fn a_reload_replaces_the_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    let write = |token: &str| {
        std::fs::write(&tokens, format!("operate {token}\n")).unwrap();
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let [old, new] = ["0123456789-the-old-token", "0123456789-the-new-token"];
    write(old);
    let daemon = start(directory.path(), &["--dashboard-tokens", tokens.to_str().unwrap()]);
    let link = std::fs::read_to_string(directory.path().join("state/dashboard.url")).unwrap();
    assert!(!link.contains(old), "{link}");
    let status = |token| ask(&link, token, "GET", "/v1/status", "").0;
    assert_eq!([status(None), status(Some(old)), status(Some(new))], [401, 200, 401]);
    write(new);
    daemon.signal(Signal::HUP);
    wait_until("the new token", PATIENCE, || status(Some(new)) == 200);
    assert_eq!(status(Some(old)), 401);
    // A file that cannot be used leaves the tokens as they are.
    std::fs::write(&tokens, "nonsense\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("dashboard unchanged");
    assert_eq!(status(Some(new)), 200);
    daemon.stop();
}

#[test]
fn an_address_for_other_machines_is_refused_before_anything_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, MIB);
    let arguments = [disk.to_str().unwrap(), "--dashboard", "0.0.0.0:0"];
    let text = failed_start(directory.path(), &arguments);
    assert!(text.contains("can be reached from other machines, without encryption"), "{text}");
    assert!(text.contains("tls-cert"), "{text}");
}
