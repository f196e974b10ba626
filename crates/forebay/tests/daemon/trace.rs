//! `forebay trace`: what clients sent is in the file, exactly, and the lab reads it.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, wait_for_exit};
use forebay_lab::trace::{Op, Request, Trace};
use forebay_nbd::NbdCommand as Verb;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const HEADER: &str = "time_us,volume,op,offset_bytes,length_bytes,latency_us,served";

fn start(directory: &Path) -> Daemon {
    let volumes = ["a", "b"].map(|name| {
        let path = directory.join(format!("{name}.img"));
        make_file(&path, 16 * MIB);
        format!("{name}={},{UNPROTECTED},prefetch=no", path.display())
    });
    Daemon::start_with(directory, "auto", "64MiB", &volumes, &[])
}

/// Starts to record, with further arguments, and waits until the recording is on.
fn record(directory: &Path, arguments: &[&str]) -> Child {
    let program = env!("CARGO_BIN_EXE_forebay");
    record_by(Command::new(program).arg("trace"), directory, arguments)
}

fn record_by(command: &mut Command, directory: &Path, arguments: &[&str]) -> Child {
    let file = directory.join("t.csv");
    let _ = std::fs::remove_file(&file);
    let command = command.args(arguments).args(["--output", "t.csv"]).current_dir(directory);
    command.env("FOREBAY_STATE", directory.join("state")).stdin(Stdio::null());
    let earlier = logged(directory, "trace recording started");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the recording is on", PATIENCE, || {
        let exit = child.try_wait().unwrap();
        let is_on =
            lines(directory).len() > 1 && logged(directory, "trace recording started") > earlier;
        is_on || exit.is_some_and(|exit| panic!("it has ended: {exit}"))
    });
    child
}

/// The lines of the file, with the header.
fn lines(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("t.csv")).unwrap_or_default();
    text.split('\n').map(str::to_owned).collect()
}

/// Waits until the file has this many requests, and ends the recording.
fn end(directory: &Path, mut recording: Child, requests: usize) {
    wait_until("all requests are in the file", PATIENCE, || lines(directory).len() > requests + 1);
    recording.kill().unwrap();
    recording.wait().unwrap();
    wait_until_over(directory);
}

/// Waits until the server has noticed that a recording is over, so that another one can begin.
fn wait_until_over(directory: &Path) {
    wait_until("the recording has ended", PATIENCE, || {
        let [on, over] = ["started", "ended"]
            .map(|event| logged(directory, &format!("trace recording {event}")));
        on == over
    });
}

/// How often the log has an event by now.
fn logged(directory: &Path, event: &str) -> usize {
    std::fs::read_to_string(directory.join("log")).unwrap().matches(event).count()
}

fn replayed(directory: &Path) -> Vec<(u32, Op, u64, u64)> {
    let trace = Trace::open(&directory.join("t.csv")).unwrap();
    let times = trace.requests.iter().map(|request| request.time_us);
    assert!(times.clone().is_sorted() && times.clone().next() == Some(0), "{trace:?}");
    let row = |it: &Request| (it.volume, it.op, it.offset_bytes, it.length_bytes);
    trace.requests.iter().map(row).collect()
}

/// Sends requests to the volumes `a` and `b`, one at a time, and returns them.
fn load(clients: &mut [Client; 2]) -> Vec<(u32, Op, u64, u64)> {
    let mut sent = Vec::new();
    for n in 0..200u64 {
        let volume = (n % 3 == 0) as usize;
        let client = &mut clients[volume];
        // Aligned and not, within a region and over its border.
        let (offset, len) = (n * 37 % 15 * MIB + n * 512 + (n % 2) * 1_044_480, 512 << (n % 7));
        let op = if n % 5 < 3 { Op::Read } else { Op::Write };
        match op {
            Op::Write => assert_eq!(client.write(offset, &vec![1; len as usize]), Ok(())),
            _ => assert!(client.read(offset, len).is_ok()),
        }
        sent.push((volume as u32, op, offset, len));
        if n % 50 == 0 {
            assert_eq!(client.flush(), Ok(()), "is not in a trace");
            assert_eq!(client.call(Verb::Trim, 0, 15 * MIB, 4096).result, Ok(()));
        }
    }
    sent
}

#[test]
fn the_lab_replays_exactly_what_was_sent() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    let mut clients = ["a", "b"].map(|name| daemon.client(name));
    assert!(clients[0].read(0, 4096).is_ok(), "before the recording");
    let recording = record(there, &["a", "b", "--time", "1h"]);
    let sent = load(&mut clients);
    end(there, recording, sent.len());
    assert_eq!(replayed(there), sent);
    // The volumes have the numbers of the command; others are not recorded.
    let recording = record(there, &["b", "--time", "1h"]);
    let sent: Vec<_> = load(&mut clients).into_iter().filter(|(volume, ..)| *volume == 1).collect();
    end(there, recording, sent.len());
    assert!(
        replayed(there).into_iter().eq(sent.into_iter().map(|(_, op, at, len)| (0, op, at, len)))
    );
    daemon.stop();
}

#[test]
fn each_request_has_a_response_time_and_says_how_it_was_served() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    let mut client = daemon.client("a");
    let recording = record(there, &["a"]);
    assert!(client.read(MIB, 4096).is_ok());
    assert!(client.read(MIB, 4096).is_ok());
    assert_eq!(client.write(0, &[1; 512]), Ok(()));
    assert_eq!(client.write_fua(0, &[1; 512]), Ok(()));
    assert!(client.read(16 * MIB - 4096, 8192).is_err(), "refused, and not recorded");
    assert_eq!(daemon.run(&["volume", "set", "a", "mode=bypass"]).0, Some(0));
    assert!(client.read(0, 1024).is_ok());
    end(there, recording, 5);
    let lines = lines(there);
    assert_eq!(lines[0], HEADER);
    let rows: Vec<Vec<&str>> = lines[1..6].iter().map(|line| line.split(',').collect()).collect();
    let served: Vec<_> = rows.iter().map(|row| (row[2], row[3], row[4], row[6])).collect();
    let expected = [
        ("R", "1048576", "4096", "miss"),
        ("R", "1048576", "4096", "pool"),
        ("W", "0", "512", "pool"),
        ("W", "0", "512", "fua"),
        ("R", "0", "1024", "bypass"),
    ];
    assert_eq!(served, expected);
    assert!(rows.iter().all(|row| row[5].parse::<u64>().is_ok()), "{lines:?}");
    daemon.stop();
}

#[test]
fn an_anonymous_trace_keeps_order_sizes_and_reuse() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let sizes = 64 << 30;
    make_file(there.join("a.img"), sizes);
    let volume = format!("a={},prefetch=no", there.join("a.img").display());
    let daemon = Daemon::start_with(there, "auto", "64MiB", &[volume], &[]);
    let mut client = daemon.client("a");
    let recording = record(there, &["a", "--anonymize", "--time", "1h"]);
    let offset = |n: u64| ((n * 7 % 64) << 30) + n % 3 * 4096;
    for n in 0..100 {
        assert!(client.read(offset(n), 4096).is_ok());
    }
    end(there, recording, 100);
    let found = replayed(there);
    let offsets: Vec<u64> = found.iter().map(|(_, _, offset, _)| *offset).collect();
    assert_eq!(offsets.len(), 100);
    for (n, at) in offsets.iter().enumerate() {
        assert_eq!(at % (1 << 30), offset(n as u64) % (1 << 30), "the place in its region");
        for (other, other_at) in offsets.iter().enumerate() {
            let same = offset(n as u64) >> 30 == offset(other as u64) >> 30;
            assert_eq!(at >> 30 == other_at >> 30, same, "{n} {other}");
        }
    }
    // Of the 64! possible orders, only one is the original one.
    assert!((0..100).any(|n| offsets[n as usize] != offset(n)));
    let (code, text) = (std::fs::read_to_string(there.join("t.csv")).unwrap(), "a.img");
    assert!(!code.contains(text));
    daemon.stop();
}

#[test]
fn what_cannot_be_recorded_is_refused_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    std::fs::write(there.join("old.csv"), "keep me").unwrap();
    for (arguments, code, said) in [
        (&["nix", "--output", "new.csv"][..], 1, "no volume 'nix'"),
        (&["a", "b", "a", "--output", "new.csv"], 1, "volume 'a' is named twice"),
        (&["a", "--output", "old.csv"], 1, "old.csv exists: name a new file"),
        (&["a", "--output", "no/such/new.csv"], 1, "cannot create no/such/new.csv"),
        (&["a", "--output", "new.csv", "--time", "8d"], 2, "--time 8d is not a time"),
        (&["a", "--output", "new.csv", "--time", "0"], 2, "--time 0 is not a time"),
        (&["a", "--output", "new.csv", "--time", "1y"], 2, "--time 1y is not a time"),
        (&["a", "--output", "new.csv", "--max-size", "1KiB"], 2, "at least 4KiB"),
    ] {
        let (exit, text) = daemon.run(&[&["trace"], arguments].concat());
        assert!(exit == Some(code) && text.contains(said), "{arguments:?}: {text}");
        assert!(!there.join("new.csv").exists(), "{arguments:?}");
    }
    assert_eq!(std::fs::read(there.join("old.csv")).unwrap(), b"keep me");
    let recording = record(there, &["a"]);
    let (exit, text) = daemon.run(&["trace", "b", "--output", "new.csv"]);
    assert!(exit == Some(1) && text.contains("another recording is in progress"), "{text}");
    assert!(!there.join("new.csv").exists());
    end(there, recording, 0);
    daemon.stop();
}

#[test]
fn a_recording_ends_by_its_size_its_time_and_the_stop_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    let mut client = daemon.client("a");
    let mut recording = record(there, &["a", "b", "--time", "1h", "--max-size", "4KiB"]);
    while recording.try_wait().unwrap().is_none() {
        assert!(client.read(0, 4096).is_ok());
    }
    let output = wait_for_exit(recording);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("; size limit reached\n"), "{text}");
    assert!(text.contains(", 0 is volume 'a', 1 is volume 'b'"), "{text}");
    let found = replayed(there);
    let len = std::fs::metadata(there.join("t.csv")).unwrap().len();
    assert!((4000..=4096).contains(&len) && found.len() > 80, "{len}");

    let recording = record(there, &["a", "--time", "1s"]);
    let output = wait_for_exit(recording);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("t.csv: 0 requests, {} B, 0 is volume 'a'\n", HEADER.len() + 1));
    assert!(output.status.success());

    let recording = record(there, &["a", "--time", "1h"]);
    assert!(client.read(0, 4096).is_ok());
    drop(client);
    daemon.stop();
    let output = wait_for_exit(recording);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("; server stopping\n"), "{text}");
    assert_eq!(replayed(there), [(0, Op::Read, 0, 4096)]);
}

#[test]
fn a_recording_whose_client_is_gone_ends_and_another_one_can_begin() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    let mut client = daemon.client("a");
    end(there, record(there, &["a", "--time", "1h"]), 0);
    daemon.wait_for_log("client gone");
    let recording = record(there, &["a", "--time", "1h"]);
    assert!(client.read(0, 4096).is_ok());
    end(there, recording, 1);
    daemon.stop();
}

#[test]
fn a_full_disk_ends_the_recording_and_keeps_whole_lines() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there);
    let mut client = daemon.client("a");
    // A limit of the file's size fails a write as a full disk does.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_forebay"), "trace"]);
    let mut recording = record_by(&mut command, there, &["a", "--time", "1h"]);
    while recording.try_wait().unwrap().is_none() {
        assert!(client.read(0, 4096).is_ok());
    }
    let output = wait_for_exit(recording);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot write the trace t.csv, and the recording has ended"), "{text}");
    assert!(replayed(there).len() > 50);
    assert!(std::fs::read(there.join("t.csv")).unwrap().ends_with(b"\n"));
    assert!(client.read(MIB, 4096).is_ok());
    wait_until_over(there);
    daemon.stop();
}
