//! The analysis of the benefit, through the built program: verdicts, interruptions in each phase,
//! bad input, and a disk that is full while the report is written.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::metrics::{over_control, value};
use crate::process::{Daemon, MIB, output_of, run_forebay};
use forebay_nbd::NbdCommand;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const KIB: u64 = 1 << 10;
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn analysis(daemon: &Daemon) -> Value {
    let (code, text) = daemon.run(&["analyze", "status", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

fn wait_for(daemon: &Daemon, field: &str, value: &str) {
    wait_until(value, PATIENCE, || analysis(daemon)[field] == value);
}

/// A generator of random numbers (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Random reads of 4 KiB of the first `bytes` of a volume until `end` is set. Calls `each` with the
/// time that each read has taken, in seconds.
fn read_randomly(
    daemon: &Daemon,
    volume: &str,
    bytes: u64,
    end: &AtomicBool,
    mut each: impl FnMut(f64),
) {
    let (mut client, mut state) = (daemon.client(volume), 7);
    while !end.load(Ordering::Relaxed) {
        let offset = random(&mut state) % (bytes / (4 * KIB)) * 4 * KIB;
        let begun = Instant::now();
        client.read(offset, 4 * KIB).unwrap();
        each(begun.elapsed().as_secs_f64());
    }
}

/// The report of a daemon as JSON, and its file.
fn report(daemon: &Daemon, directory: &Path) -> Value {
    let file = directory.join("report.json");
    let (code, text) = daemon.run(&["analyze", "report", "--json", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_load_that_fits_memory_has_a_benefit_and_the_report_is_written_in_all_forms() {
    let directory = tempfile::tempdir().unwrap();
    let disk = "disk=delay(read=4ms,write=4ms):memory:64MiB,prefetch=no".to_owned();
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[disk]);
    let (code, text) = daemon.run(&["analyze", "report"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no analysis to report"), "{text}");
    // A cache that still fills has no steady benefit.
    for offset in (0..4 * MIB).step_by(MIB as usize) {
        daemon.client("disk").read(offset, MIB).unwrap();
    }
    let lengths = ["--measure", "2s", "--learn", "2s", "--accelerate", "14s"];
    let start = ["analyze", "start", "--yes", "--hold-out", "30"];
    let (code, text) = daemon.run(&[&start[..], &lengths].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("phase 'measure'") && text.contains("volumes: disk"), "{text}");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| read_randomly(&daemon, "disk", 4 * MIB, &end, drop));
        wait_for(&daemon, "phase", "learn");
        let part = report(&daemon, directory.path());
        assert_eq!(part["volumes"][0]["kind"], "too-little-data");
        wait_for(&daemon, "state", "complete");
        end.store(true, Ordering::Relaxed);
    });
    let found = report(&daemon, directory.path());
    let volume = &found["volumes"][0];
    assert_eq!((&volume["kind"], &volume["of"]), (&"benefit".into(), &"all".into()), "{volume}");
    let beside = &volume["reads"]["with_held_out_regions"];
    let held = beside["mean_without_cache_seconds"].as_f64().unwrap();
    assert!(held > 0.004, "the disk takes 4 ms: {beside}");
    let judged = &found["status"]["subject"];
    assert_eq!(
        (&judged["version"], &judged["memory_bytes"]),
        (&VERSION.into(), &(64 * MIB).into())
    );
    let judged = &judged["volumes"][0];
    assert_eq!(
        (&judged["mode"], &judged["size_bytes"]),
        (&"write-through".into(), &(64 * MIB).into())
    );
    assert!(judged["backing"].as_str().unwrap().ends_with("memory:64MiB"), "{judged}");
    // The phase without the cache: each read went to the disk.
    let phases = &found["volumes"][0]["phases"];
    let disk_ios = phases["measure"]["disk_ios_per_request"].as_f64().unwrap();
    assert!((0.95..1.05).contains(&disk_ios), "{phases}");
    let (code, text) = daemon.run(&["analyze", "report"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("volume 'disk': reads are ") && text.contains("times as fast"), "{text}");
    assert!(text.contains("judged: write-through, read-ahead off; disk delay("), "{text}");
    let (html, csv) = (directory.path().join("a.html"), directory.path().join("a.csv"));
    let files = ["--html", html.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    let (code, text) = daemon.run(&[&["analyze", "report"][..], &files].concat());
    assert_eq!(code, Some(0), "{text}");
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(
        page.contains("times as fast")
            && page.contains("Judged: write-through")
            && page.contains("</html>"),
        "{page}"
    );
    let lines = std::fs::read_to_string(&csv).unwrap().lines().count();
    assert_eq!(lines, 1 + found["batches"].as_array().unwrap().len());
    // Nothing is held out any more.
    let mut client = daemon.client("disk");
    client.read(0, 4 * KIB).unwrap();
    let reads = || daemon.status()["volumes"][0]["counters"]["backend_reads"].as_u64().unwrap();
    let before = reads();
    client.read(0, 4 * KIB).unwrap();
    assert_eq!(reads(), before);
    daemon.stop();
}

/// With half of the regions held out, 640 reads per second are more than an interval of 12.5 s
/// needs.
#[test]
fn a_busy_volume_is_compared_for_a_part_of_the_time_only() {
    let directory = tempfile::tempdir().unwrap();
    let daemon =
        Daemon::start(directory.path(), "auto", "64MiB", &["disk=memory:32MiB".to_owned()]);
    let lengths = ["--measure", "1s", "--learn", "1s", "--accelerate", "10m"];
    let start = ["analyze", "start", "--yes", "--hold-out", "50"];
    assert_eq!(daemon.run(&[&start[..], &lengths].concat()).0, Some(0));
    let end = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        // Small requests, many at once, so that the volume is busy on a slow machine, too.
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut client, mut state) = (daemon.client("disk"), 7);
                while !end.load(Ordering::Relaxed) {
                    let sent: Vec<_> = (0..64)
                        .map(|_| {
                            let offset = random(&mut state) % (32 * MIB / 512) * 512;
                            client.send(NbdCommand::Read, 0, offset, 512, &[])
                        })
                        .collect();
                    sent.into_iter().for_each(|cookie| client.wait(cookie).result.unwrap());
                }
            });
        }
        // One of `measure`, one of `learn`.
        wait_until("an interval is complete", PATIENCE, || analysis(&daemon)["batches"] == 3);
        end.store(true, Ordering::Relaxed);
        report(&daemon, directory.path())
    });
    let batch = &report["batches"][2];
    let volume = &batch["volumes"][0];
    let part = volume["compared_seconds"].as_f64().unwrap() / batch["seconds"].as_f64().unwrap();
    assert!(part < 1.0, "{part}");
    let requests = |side: &str| -> u64 {
        let classes = volume[side].as_array().unwrap();
        classes.iter().map(|class| class["requests"].as_u64().unwrap()).sum()
    };
    let (held, served) = (requests("held_reads"), requests("served_reads"));
    let all = volume["reads"].as_u64().unwrap();
    assert!(held > 0 && held + served < all, "{held} and {served} of {all}");
    let (code, text) = daemon.run(&["analyze", "report"]);
    assert!(code == Some(0) && text.contains("compared during"), "{text}");
    daemon.stop();
}

#[test]
fn an_analysis_continues_after_a_kill_in_each_phase_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let disk = || vec!["disk=memory:16MiB".to_owned()];
    let start = || Daemon::start(directory.path(), "auto", "64MiB", &disk());
    let long = "1h";
    for (phase, lengths) in [
        ("measure", [long, "1s", "1s"]),
        ("learn", ["1s", long, "1s"]),
        ("accelerate", ["1s", "1s", long]),
    ] {
        let daemon = start();
        let [measure, learn, accelerate] = lengths;
        let lengths = ["--measure", measure, "--learn", learn, "--accelerate", accelerate];
        let (code, text) = daemon.run(&[&["analyze", "start", "--yes"][..], &lengths].concat());
        assert_eq!(code, Some(0), "{text}");
        wait_for(&daemon, "phase", phase);
        let batches = analysis(&daemon)["batches"].clone();
        drop(daemon);
        let daemon = start();
        let status = analysis(&daemon);
        assert_eq!((&status["state"], &status["phase"]), (&"running".into(), &phase.into()));
        assert_eq!(status["batches"], batches, "complete intervals are kept: {status}");
        let (_, text) = daemon.run(&["analyze", "status"]);
        assert!(text.contains(&format!("interrupted in the phase '{phase}'")), "{text}");
        let (code, text) = daemon.run(&["analyze", "start", "--yes"]);
        assert_eq!(code, Some(1));
        assert!(text.contains("an analysis is running") && text.contains("analyze stop"), "{text}");
        let (code, text) = daemon.run(&["analyze", "stop"]);
        assert_eq!(code, Some(0), "{text}");
        let (_, text) = daemon.run(&["analyze", "report"]);
        assert!(text.contains("stopped before its end"), "{text}");
        daemon.stop();
    }
}

#[test]
fn nothing_written_during_an_analysis_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let settings = "mode=write-back,protection=none,accept-loss=yes";
    let image = directory.path().join("disk.img");
    crate::process::make_file(&image, 16 * MIB);
    let volume = format!("disk={},{settings}", image.display());
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[volume]);
    let mut client = daemon.client("disk");
    let offsets = || (0..16 * MIB).step_by(512 * KIB as usize);
    // Dirty before the phase without the cache.
    for offset in offsets() {
        client.write(offset, &[1; 4096]).unwrap();
    }
    let lengths = ["--measure", "1h", "--learn", "1s", "--accelerate", "1s"];
    assert_eq!(daemon.run(&[&["analyze", "start", "--yes"][..], &lengths].concat()).0, Some(0));
    for offset in offsets() {
        assert_eq!(client.read(offset, 4096).unwrap(), [1; 4096]);
        client.write(offset + 1024, &[2; 1024]).unwrap();
        let read = client.read(offset, 4096).unwrap();
        assert_eq!((read[1023], read[1024], read[2047], read[2048]), (1, 2, 2, 1));
    }
    assert_eq!(daemon.run(&["analyze", "stop"]).0, Some(0));
    for offset in offsets() {
        let read = client.read(offset, 4096).unwrap();
        assert_eq!((read[1023], read[1024], read[2047], read[2048]), (1, 2, 2, 1));
    }
    daemon.stop();
    let content = std::fs::read(&image).unwrap();
    for offset in offsets().map(|offset| offset as usize) {
        assert_eq!((content[offset], content[offset + 1024]), (1, 2));
    }
}

/// The first phase serves the volumes without the cache: everything that shows a volume says so.
#[test]
fn a_volume_whose_cache_is_off_for_an_analysis_says_so_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:16MiB".to_owned(), "past=memory:16MiB,mode=bypass".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    let metric = || {
        let series = "forebay_volume_cache_off_seconds_left{volume=\"disk\"}";
        value(&over_control(directory.path()), series)
    };
    assert_eq!(metric(), 0.0);
    let start = ["analyze", "start", "--yes", "--measure", "2h", "--learn", "1h"];
    let (code, text) = daemon.run(&start);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("for 2 h 0 min, volume disk will be served without the cache"), "{text}");
    let status = daemon.status();
    let [disk, past] = [&status["volumes"][0], &status["volumes"][1]];
    assert_eq!(
        (&disk["mode"], &disk["effective_mode"]),
        (&"write-through".into(), &"bypass".into())
    );
    assert_eq!(disk["cache_off"]["since"], analysis(&daemon)["begun_at"]);
    let left = disk["cache_off"]["seconds_left"].as_u64().unwrap();
    assert!((6000..=7200).contains(&left), "{disk}");
    assert!((6000.0..=7200.0).contains(&metric()));
    assert!(past["cache_off"].is_null(), "{past}");
    for arguments in [&["status"][..], &["status", "disk"]] {
        let (_, text) = daemon.run(arguments);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["its cache is off since 2", "for an analysis", "analyze stop"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert_eq!(daemon.run(&["status", "--check"]).0, Some(3));
    assert_eq!(daemon.run(&["analyze", "stop"]).0, Some(0));
    assert!(daemon.status()["volumes"][0]["cache_off"].is_null());
    assert_eq!(daemon.run(&["status", "--check"]).0, Some(0));
    assert_eq!(metric(), 0.0);
    daemon.stop();
}

#[test]
fn without_a_terminal_an_analysis_starts_with_yes_only() {
    let directory = tempfile::tempdir().unwrap();
    let daemon =
        Daemon::start(directory.path(), "auto", "64MiB", &["disk=memory:16MiB".to_owned()]);
    let (code, text) = daemon.run(&["analyze", "start"]);
    assert_eq!(code, Some(1), "{text}");
    for part in ["volume disk", "without the cache", "at most 1 h", "--yes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(analysis(&daemon)["state"], "none");
    daemon.stop();
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:16MiB".to_owned(), "past=memory:16MiB,mode=bypass".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    for (arguments, expected) in [
        (&["nosuch"][..], "no volume 'nosuch'"),
        (&["past"], "bypass"),
        (&["--measure", "8d"], "'measure' cannot take 691200 s"),
        (&["--learn", "0s"], "'learn' cannot take 0 s"),
        (&["--accelerate", "ten"], "as in 10m"),
        (&["--hold-out", "0"], "0 percent"),
        (&["--hold-out", "51"], "51 percent"),
        (&["--hold-out", "-1"], "-1"),
    ] {
        let (code, text) = daemon.run(&[&["analyze", "start", "--yes"][..], arguments].concat());
        assert!(code == Some(1) || code == Some(2), "{code:?} {text}");
        assert!(text.contains(expected), "{text}");
    }
    let (code, text) = daemon.run(&["analyze", "stop"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no analysis is running"), "{text}");
    assert_eq!(analysis(&daemon)["state"], "none");
    daemon.stop();
}

#[test]
fn a_report_that_finds_no_space_leaves_the_former_one_and_can_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let daemon =
        Daemon::start(directory.path(), "auto", "64MiB", &["disk=memory:16MiB".to_owned()]);
    let lengths = ["--measure", "1s", "--learn", "1s", "--accelerate", "1s"];
    assert_eq!(daemon.run(&[&["analyze", "start", "--yes"][..], &lengths].concat()).0, Some(0));
    wait_for(&daemon, "state", "complete");
    let page = directory.path().join("page.html");
    std::fs::write(&page, "the former one").unwrap();
    // As on a full disk, a write fails in the middle of the file: it may have a block of 512 bytes.
    let script = "trap \"\" XFSZ; ulimit -f 1; exec \"$@\"";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, "sh", env!("CARGO_BIN_EXE_forebay"), "analyze", "report"]);
    limited.arg("--html").arg(&page).env("FOREBAY_STATE", directory.path().join("state"));
    let output = output_of(&mut limited);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write") && text.contains("page.html"), "{text}");
    assert!(text.contains("can be repeated"), "{text}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "the former one");
    assert!(!directory.path().join("page.html.new").exists(), "no part of it takes space");
    let arguments = ["analyze", "report", "--html", page.to_str().unwrap()];
    let (code, text) = run_forebay(directory.path(), &arguments);
    assert_eq!(code, Some(0), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    daemon.stop();
}

/// A modelled hard disk with two loads: memory can hold a large part of the data of the first one,
/// and hardly any of the second. In both, most requests go to the disk, so the client adds little
/// to the response times.
#[test]
#[ignore = "takes minutes"]
fn slow_the_verdict_on_a_modelled_disk_is_what_a_client_sees() {
    for (name, bytes, expected) in
        [("near", 80 * MIB, "benefit"), ("uniform", 63 << 30, "no-measurable-benefit")]
    {
        let directory = tempfile::tempdir().unwrap();
        let disk = "disk=model:hdd?size=64GiB,warm=no,learn=no".to_owned();
        let daemon = Daemon::start(directory.path(), "auto", "96MiB", &[disk]);
        let lengths = ["--measure", "60s", "--learn", "120s", "--accelerate", "120s"];
        let start = ["analyze", "start", "--yes", "--hold-out", "5"];
        assert_eq!(daemon.run(&[&start[..], &lengths].concat()).0, Some(0));
        let (end, phase) = (AtomicBool::new(false), std::sync::Mutex::new(String::new()));
        let mut seen = std::collections::BTreeMap::<String, (u32, f64)>::new();
        std::thread::scope(|scope| {
            let seen = &mut seen;
            scope.spawn(|| {
                read_randomly(&daemon, "disk", bytes, &end, |seconds| {
                    let sums = seen.entry(phase.lock().unwrap().clone()).or_default();
                    *sums = (sums.0 + 1, sums.1 + seconds);
                });
            });
            let slow = 20 * PATIENCE;
            wait_until("the analysis is complete", slow, || {
                let status = analysis(&daemon);
                *phase.lock().unwrap() = status["phase"].as_str().unwrap_or_default().to_owned();
                status["state"] == "complete"
            });
            end.store(true, Ordering::Relaxed);
        });
        let found = report(&daemon, directory.path());
        let volume = &found["volumes"][0];
        let beside = &volume["reads"]["with_held_out_regions"];
        let mean = |phase: &str| seen[phase].1 / f64::from(seen[phase].0);
        // The client's mean in the last phase includes held-out and served requests.
        let held = beside["held_out_requests"].as_f64().unwrap();
        let part = held / (held + beside["served_requests"].as_f64().unwrap());
        let slow = beside["mean_without_cache_seconds"].as_f64().unwrap();
        let served = (mean("accelerate") - part * slow) / (1.0 - part);
        let gain = mean("measure") / served;
        println!("{name}: {}; a client measures {gain:.2} times as fast", volume["verdict"]);
        assert_eq!(volume["kind"], expected, "{volume}");
        let bound = |name: &str| volume["times_as_fast"][name].as_f64().unwrap();
        assert!((bound("low_95")..bound("high_95")).contains(&gain), "{gain} is not in {volume}");
        daemon.stop();
    }
}
