//! `forebay advise` of block devices and volumes. Observations of devices need root and loop
//! devices; the tests of refused arguments do not.

use super::{run_alone, with_daemon};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn what_is_no_block_device_and_impossible_times_are_refused() {
    for (arguments, code, text) in [
        (&["no-such-disk"][..], 1, "there is no block device no-such-disk: see the names with"),
        (&["/dev/null"], 2, "/dev/null is not a block device: name the device that it is on"),
        (&["."], 2, ". is not a block device"),
        (&["sdb", "--time", "0s"], 2, "--time 0s is invalid: write 1s to 1d"),
        (&["sdb", "--time", "10d"], 2, "--time 10d is invalid"),
        (&["sdb", "--time", "99999999999999999999d"], 2, "is invalid: write 1s to 1d"),
        (&["sdb", "--time=-1s"], 2, "--time -1s is invalid"),
        (&["sdb", "--time", "60"], 2, "--time 60 is invalid"),
        (&["sdb", "--memory", "4KiB"], 2, "--memory 4KiB is invalid: write 1MiB to 64TiB"),
        (&["sdb", "--memory", "1GB"], 2, "invalid size '1GB'"),
        (&["sdb", "--all"], 2, "cannot be used with"),
    ] {
        let ran = run_alone(&[&["advise"], arguments].concat());
        assert_eq!((ran.code, &*ran.out), (Some(code), ""), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(text), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn without_a_device_the_volumes_of_the_server_are_judged() {
    with_daemon(&["disk=/dev/sdb", "db=/dev/sdc,mode=bypass"], |_, forebay| {
        let ran = forebay(&["advise"]);
        assert_eq!((ran.code, &*ran.err), (Some(0), ""));
        assert!(ran.out.starts_with("2 volumes of the running server\n"), "{}", ran.out);
        assert!(ran.out.contains("\ndisk: "), "{}", ran.out);
        assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
        let json = forebay(&["advise", "--json"]).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let names: Vec<_> = (0..2).map(|at| &json["volumes"][at]["name"]).collect();
        assert_eq!(names, ["disk", "db"]);
    });
    with_daemon(&[], |_, forebay| {
        let ran = forebay(&["advise"]);
        assert!(ran.out.starts_with("no volume is served; name block devices"), "{}", ran.out);
    });
    let ran = run_alone(&["advise"]);
    assert_eq!((ran.code, &*ran.out), (Some(1), ""), "no server runs");
}

/// A loop device over a file; removed when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(directory: &Path) -> Self {
        let path = directory.join("disk.img");
        fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let path = path.to_str().unwrap();
        let output = Command::new("losetup").args(["-f", "--show", path]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    /// Starts an observation, and waits until it traces.
    fn observe(&self, arguments: &[&str]) -> Observation {
        let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args([&["advise", &self.0], arguments].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut observation = Observation(child);
        let event = instance(observation.0.id()).join("events/block/block_bio_queue/enable");
        let begin = Instant::now();
        while !fs::read_to_string(&event).is_ok_and(|text| text.trim() == "1") {
            assert!(begin.elapsed() < PATIENCE, "it does not trace");
            assert_eq!(observation.0.try_wait().unwrap(), None, "it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        observation
    }

    /// Reads or writes blocks of 4 KiB, past the page cache.
    fn dd(&self, arguments: &[&str]) {
        let output = Command::new("dd").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn read(&self, blocks: u32) {
        let count = format!("count={blocks}");
        self.dd(&[&format!("if={}", self.0), "of=/dev/null", "bs=4k", "iflag=direct", &count]);
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().unwrap();
    }
}

fn instance(pid: u32) -> std::path::PathBuf {
    Path::new(INSTANCES).join(format!("forebay-advise-{pid}"))
}

/// An observation of a device; killed when dropped.
struct Observation(Child);

impl Observation {
    /// Ends it with this signal. Returns its exit code and its output.
    fn end(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let code = self.0.wait().unwrap().code();
        assert!(!instance(self.0.id()).exists(), "the instance is left");
        (code, text)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[test]
#[ignore = "needs root, tracefs and loop devices"]
fn kernel_requests_of_a_device_are_counted_and_predicted() {
    let directory = tempfile::tempdir().unwrap();
    let device = LoopDevice::new(directory.path());
    let child = device.observe(&["--json", "--time", "1h", "--memory", "64MiB"]);
    device.read(2_000);
    device.read(2_000);
    device.dd(&[
        "if=/dev/zero",
        &format!("of={}", device.0),
        "bs=4k",
        "count=100",
        "seek=5000",
        "oflag=direct",
        "conv=fsync",
    ]);
    let (code, text) = child.end(rustix::process::Signal::INT);
    assert_eq!(code, Some(0), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = &report["devices"][0];
    assert_eq!((&report["sampled"], &report["lost_events"]), (&true.into(), &0.into()), "{text}");
    let prediction = &found["prediction"];
    // Other programs may probe a new device.
    let near = |value: &serde_json::Value, count: u64| {
        (count..count + 100).contains(&value.as_u64().unwrap())
    };
    assert!(near(&found["load"]["reads"], 4_000) && near(&prediction["reads"], 4_000), "{text}");
    assert!(near(&found["load"]["writes"], 100) && near(&prediction["writes"], 100), "{text}");
    assert!(prediction["sequential_read_share"].as_f64().unwrap() > 0.9, "{text}");
    let points = prediction["points"].as_array().unwrap();
    let last = points.last().unwrap()["read_hit_ratio_min"].as_f64().unwrap();
    assert!(last > 0.95, "the second pass hits: {text}");
}

#[test]
#[ignore = "needs root, tracefs and loop devices"]
fn kernel_an_idle_device_and_a_signal_end_with_a_report() {
    let directory = tempfile::tempdir().unwrap();
    let device = LoopDevice::new(directory.path());
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::HUP] {
        // Reads by programs that probe a new device must not count.
        std::thread::sleep(Duration::from_millis(300));
        let (code, text) = device.observe(&["--time", "1d"]).end(signal);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(": no recommendation"), "{text}");
    }
}

#[test]
#[ignore = "needs root, tracefs and loop devices"]
fn kernel_an_instance_that_a_killed_process_has_left_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let device = LoopDevice::new(directory.path());
    let mut killed = device.observe(&["--time", "1d"]);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert!(instance(killed.0.id()).exists());
    let next = device.observe(&["--time", "1d"]);
    assert!(!instance(killed.0.id()).exists());
    next.end(rustix::process::Signal::INT);
}
