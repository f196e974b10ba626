//! Tests of the drivers with a misbehaving server, commands and files.

mod server;

use super::*;
use crate::{ReadErrorKind, Unknown, UpsReading};
use forebay_types::{Fault, Remedy};
use server::{Act, Server, identity, list};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// Timeout for a UPS that never answers.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout for a UPS that answers, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn source(server: &Server) -> NutSource {
    source_with(server, PATIENCE)
}

fn source_with(server: &Server, timeout: Duration) -> NutSource {
    let address = NutAddress { name: "lab".into(), host: "127.0.0.1".into(), port: server.port };
    NutSource::new(address, timeout)
}

fn kind(observation: UpsObservation) -> ReadErrorKind {
    observation.unwrap_err().kind()
}

fn credentials() -> Credentials {
    Credentials { user: "watch".into(), password: "a \"pw\"".into() }
}

#[test]
fn readings_share_one_connection() {
    let server = Server::start(|_, _| Act::Reply(list("OL", 90)));
    let mut source = source(&server);
    for _ in 0..3 {
        let reading = source.read().unwrap();
        assert_eq!((reading.charge_percent, reading.age_ms), (Some(90.0), 0));
    }
    assert_eq!(server.lines(), ["LIST VAR lab"; 3]);
    assert_eq!(server.connections(), 1);
}

#[test]
fn reports_every_server_failure_within_the_timeout() {
    let cases: [(fn() -> Act, ReadErrorKind); 9] = [
        (|| Act::Hang, ReadErrorKind::TimedOut),
        (|| Act::Drip(list("OL", 90)), ReadErrorKind::TimedOut),
        (|| Act::ReplyAndClose(String::new()), ReadErrorKind::Closed),
        (|| Act::ReplyAndClose("BEGIN LIST VAR lab\nVAR lab ups.st".into()), ReadErrorKind::Closed),
        (|| Act::Reply("\u{0}\"\"\"garbage\n".into()), ReadErrorKind::Malformed),
        (|| Act::Reply("x".repeat(9000)), ReadErrorKind::Malformed),
        (|| Act::Reply("OK\n".into()), ReadErrorKind::Malformed),
        (|| Act::Reply(list("OL", 90) + "VAR lab ups.status \"OL\"\n"), ReadErrorKind::Malformed),
        (|| Act::Reply("ERR DATA-STALE\n".into()), ReadErrorKind::Refused),
    ];
    for (index, (act, expected)) in cases.into_iter().enumerate() {
        let server = Server::start(move |_, _| act());
        let timeout = if expected == ReadErrorKind::TimedOut { TIMEOUT } else { PATIENCE };
        let trouble = source_with(&server, timeout).read().unwrap_err();
        assert_eq!(trouble.kind(), expected, "case {index}: {trouble}");
    }
}

#[test]
fn a_setting_that_cannot_be_sent_is_no_malformed_reply() {
    let server = Server::start(|_, _| Act::Reply(list("OL", 90)));
    let name = "x".repeat(600);
    let address = NutAddress { name, host: "127.0.0.1".into(), port: server.port };
    assert_eq!(kind(NutSource::new(address, PATIENCE).read()), ReadErrorKind::Argument);
}

#[test]
fn backs_off_from_an_unreachable_server() {
    let mut server = Server::start(|_, _| Act::Reply(list("OL", 90)));
    let mut source = source(&server);
    assert!(source.read().is_ok());
    server.stop();
    assert_eq!(kind(source.read()), ReadErrorKind::Closed);
    assert_eq!(kind(source.read()), ReadErrorKind::Unreachable, "at once again, and then not");
    let begin = Instant::now();
    for _ in 0..1000 {
        assert_eq!(kind(source.read()), ReadErrorKind::Unreachable);
    }
    // Two attempts at once, then one after each pause of a second or more.
    let attempts_max = 3 + begin.elapsed().as_secs();
    assert!(u64::from(source.failure_count()) <= attempts_max, "{}", source.failure_count());
}

#[test]
fn the_remedy_of_an_error_is_shown_but_is_not_part_of_its_message() {
    let mut server = Server::start(|_, _| Act::Reply(list("OL", 90)));
    server.stop();
    let error = source(&server).read().unwrap_err();
    let remedy = "check that upsd runs and listens there";
    assert_eq!(error.remedy(), Remedy::from(remedy));
    assert!(!error.to_string().contains(remedy), "{error}");
    let shown = format!("{error}: {remedy}");
    assert_eq!(Unknown::ReadFailed(error).to_string(), shown);
}

#[test]
fn reconnects_to_a_server_that_comes_back() {
    let count = AtomicUsize::new(0);
    let server = Server::start(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        1 => Act::ReplyAndClose("BEGIN".into()),
        2 => Act::Reply("ERR DATA-STALE\n".into()),
        _ => Act::Reply(list("OL", 90)),
    });
    let mut source = source(&server);
    assert!(source.read().is_ok());
    assert_eq!(kind(source.read()), ReadErrorKind::Closed);
    assert_eq!(kind(source.read()), ReadErrorKind::Refused);
    assert!(source.read().is_ok());
    assert_eq!(server.connections(), 2, "stale data is no reason for another connection");
}

#[test]
fn logs_in_first_and_logs_out_on_release() {
    let server = Server::start(|_, line| match line.split(' ').next() {
        Some("LIST") => Act::Reply(list("OL", 90)),
        Some("LOGOUT") => Act::ReplyAndClose("OK Goodbye\n".into()),
        _ => Act::Reply("OK\n".into()),
    });
    let mut source = source(&server).with_login(credentials());
    source.read().unwrap();
    source.release();
    source.read().unwrap();
    assert_eq!(
        server.lines(),
        [
            "USERNAME watch",
            "PASSWORD \"a \\\"pw\\\"\"",
            "LOGIN lab",
            "LIST VAR lab",
            "LOGOUT",
            "LIST VAR lab"
        ]
    );
    assert!(!format!("{:?}", credentials()).contains("pw"));
}

#[test]
fn wrong_password_is_an_error() {
    let server = Server::start(|_, line| match line.split(' ').next() {
        Some("LOGIN") => Act::Reply("ERR ACCESS-DENIED\n".into()),
        Some("LIST") => Act::Reply(list("OL", 90)),
        _ => Act::Reply("OK\n".into()),
    });
    let trouble = source(&server).with_login(credentials()).read().unwrap_err();
    assert_eq!(trouble.kind(), ReadErrorKind::Refused);
    assert!(trouble.explained().ends_with(": check upsd.users"), "{trouble}");
}

#[test]
fn tls_hides_the_password_and_verifies_the_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (right, config) = identity("127.0.0.1");
    let (wrong, _) = identity("127.0.0.1");
    let authority = |pem: &str| {
        let path = directory.path().join("ca.pem");
        fs::write(&path, pem).unwrap();
        Authority::from_pem_file(&path).unwrap()
    };
    let server = Server::start_tls(config, |_, line| match line.split(' ').next() {
        Some("STARTTLS") => Act::Encrypt,
        Some("LIST") => Act::Reply(list("OL", 90)),
        _ => Act::Reply("OK\n".into()),
    });
    let with = |pem| source(&server).with_login(credentials()).with_tls(authority(pem));
    let mut good = with(&right);
    assert_eq!(good.read().unwrap().charge_percent, Some(90.0));
    assert!(good.read().is_ok());
    assert_eq!(server.plain_lines(), ["STARTTLS"]);
    let trouble = with(&wrong).read().unwrap_err();
    assert_eq!(trouble.kind(), ReadErrorKind::Tls, "{trouble}");
    // A certificate for another name.
    let mut other = with(&right);
    other.set_host("localhost");
    assert_eq!(kind(other.read()), ReadErrorKind::Tls);
}

#[test]
fn sends_nothing_without_required_tls() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    fs::write(&path, identity("localhost").0).unwrap();
    let authority = Authority::from_pem_file(&path).unwrap();
    for answer in ["ERR FEATURE-NOT-CONFIGURED\n", "OK STARTTLS\nOK\n", "\n"] {
        let server = Server::start(move |_, _| Act::Reply(answer.into()));
        let source = source(&server).with_login(credentials()).with_tls(authority.clone());
        let mut source = source;
        assert!(source.read().is_err(), "{answer}");
        assert_eq!(server.lines(), ["STARTTLS"]);
    }
    for bad in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        fs::write(&path, bad).unwrap();
        assert!(Authority::from_pem_file(&path).is_err(), "{bad}");
    }
    assert!(Authority::from_pem_file(&directory.path().join("none")).is_err());
}

#[test]
fn poller_delivers_until_it_is_dropped() {
    let server = Server::start(|_, line| match line {
        "LOGOUT" => Act::ReplyAndClose("OK Goodbye\n".into()),
        _ => Act::Reply(list("OL", 90)),
    });
    let (sender, receiver) = mpsc::sync_channel(4);
    // The sink must not block, so it drops observations if the channel is full.
    let sink = Box::new(move |word| drop(sender.try_send(word)));
    let watch = Poller::start(source(&server), Duration::from_millis(20), sink).unwrap();
    for _ in 0..5 {
        let word: UpsObservation = receiver.recv_timeout(PATIENCE).unwrap();
        assert!(word.is_ok());
    }
    assert!(watch.release(PATIENCE));
    assert!(server.lines().contains(&"LOGOUT".to_owned()));
    drop(watch);
    while receiver.try_recv().is_ok() {}
    assert!(receiver.recv().is_err(), "the sink is gone");
}

fn command(script: &str, timeout: Duration) -> UpsObservation {
    let arguments = vec!["-c".into(), script.into()];
    CommandSource::new("sh".into(), arguments, timeout).read()
}

#[test]
fn parses_the_output_of_a_command() {
    let script = "echo ups.status: OL; echo battery.charge: 88; echo noise >&2";
    let word = command(script, PATIENCE);
    assert_eq!(word.unwrap().charge_percent, Some(88.0));
}

#[test]
fn failing_hanging_or_verbose_command_is_an_error() {
    for (script, expected) in [
        ("echo ups.status: OL; exit 3", ReadErrorKind::Command),
        ("echo ups.status: OL; kill -9 $$", ReadErrorKind::Command),
        ("exec sleep 60", ReadErrorKind::TimedOut),
        ("echo ups.status: OL; sleep 60 & exit 0", ReadErrorKind::TimedOut),
        ("exec >&-; sleep 60", ReadErrorKind::TimedOut),
        ("trap '' TERM; while :; do :; done", ReadErrorKind::TimedOut),
        ("yes 'a: b'", ReadErrorKind::Command),
        ("echo Connection failure", ReadErrorKind::Malformed),
        ("true", ReadErrorKind::Malformed),
    ] {
        let timeout = if expected == ReadErrorKind::TimedOut { TIMEOUT } else { PATIENCE };
        let trouble = command(script, timeout).unwrap_err();
        assert_eq!(trouble.kind(), expected, "{script}: {trouble}");
    }
    let mut missing = CommandSource::new("no-such-program".into(), vec![], PATIENCE);
    assert_eq!(kind(missing.read()), ReadErrorKind::Command);
}

#[test]
fn timeout_kills_the_children_of_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pid");
    // On a loaded machine the command may be killed before it prints the child's id.
    let script = format!("sleep 3600 & echo $! > '{}'; wait", path.display());
    let mut timeout = TIMEOUT;
    let pid = loop {
        assert!(command(&script, timeout).is_err());
        match fs::read_to_string(&path) {
            Ok(pid) if pid.ends_with('\n') => break pid,
            _ => timeout *= 2,
        }
        assert!(timeout < PATIENCE, "the command does not answer");
    };
    let state = |pid: &str| fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    let begin = Instant::now();
    // The new parent may take a moment to reap the child.
    while state(&pid).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(begin.elapsed() < PATIENCE, "it still runs");
        std::thread::yield_now();
    }
}

#[test]
fn reading_has_the_age_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ups");
    let mut source = FileSource::new(&path);
    assert_eq!(kind(source.read()), ReadErrorKind::File);
    let begin = Instant::now();
    fs::write(&path, "ups.status: OL\nbattery.charge: 88\n").unwrap();
    let reading = source.read().unwrap();
    assert_eq!(reading.charge_percent, Some(88.0));
    // The file system's clock has a coarser resolution.
    assert!(u128::from(reading.age_ms) <= begin.elapsed().as_millis() + 100);
    let touch = |time: SystemTime| {
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    let begin = Instant::now();
    touch(SystemTime::now() - Duration::from_secs(100));
    let age_ms = source.read().unwrap().age_ms;
    // The file system's clock has a coarser resolution.
    let oldest_ms = 100_100 + begin.elapsed().as_millis() as u64;
    assert!((100_000..=oldest_ms).contains(&age_ms), "{age_ms}");
    let begin = Instant::now();
    touch(SystemTime::now() + Duration::from_secs(1));
    let age_ms = source.read().unwrap().age_ms;
    assert!(u128::from(age_ms) <= begin.elapsed().as_millis(), "clocks differ a little");
    touch(SystemTime::now() + Duration::from_secs(60));
    assert_eq!(kind(source.read()), ReadErrorKind::File);
}

#[test]
fn rejects_files_that_are_not_regular() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ups");
    for text in ["".to_owned(), "what\n".to_owned(), "a: b\n".repeat(20_000)] {
        fs::write(&path, text).unwrap();
        assert_eq!(kind(FileSource::new(&path).read()), ReadErrorKind::File);
    }
    fs::write(&path, b"a: \xff\n").unwrap();
    assert_eq!(kind(FileSource::new(&path).read()), ReadErrorKind::File);
    assert_eq!(kind(FileSource::new(directory.path()).read()), ReadErrorKind::File);
    assert_eq!(kind(FileSource::new("/dev/zero").read()), ReadErrorKind::File);
}

#[test]
fn all_sources_deliver_the_same_reading() {
    let server = Server::start(|_, _| Act::Reply(list("OL CHRG", 83)));
    let by_server = source(&server).read().unwrap();
    let text = "ups.status: OL CHRG\nbattery.charge: 83\nbattery.runtime: 1800\n";
    assert_eq!(by_server, UpsReading::from_lines(text).unwrap());
    assert_eq!(by_server, command(&format!("printf '{text}'"), PATIENCE).unwrap());
}
