//! Statistics over time: totals outlive the server, periods do not.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, run_forebay};
use std::path::Path;

fn start(directory: &Path, names: &[&str]) -> Daemon {
    let volume = |name: &&str| {
        let path = directory.join(format!("{name}.img"));
        if !path.exists() {
            make_file(&path, 16 * MIB);
        }
        format!("{name}={},{UNPROTECTED},gather-below=off", path.display())
    };
    let volumes: Vec<String> = names.iter().map(volume).collect();
    Daemon::start_with(directory, "auto", "64MiB", &volumes, &[])
}

fn statistics(directory: &Path) -> serde_json::Value {
    let (code, text) = run_forebay(directory, &["stats", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The statistics of a volume, or of all.
fn of(directory: &Path, volume: Option<&str>) -> serde_json::Value {
    let all = statistics(directory);
    let Some(name) = volume else { return all["all"].clone() };
    let volumes = all["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
}

/// The writes of a volume, or of all, in total and in the last hour.
fn writes(directory: &Path, volume: Option<&str>) -> (u64, u64) {
    let of = of(directory, volume);
    let count = |period: &str| of[period]["counters"]["writes"].as_u64().unwrap();
    (count("total"), count("last_hour"))
}

fn write(daemon: &Daemon, volume: &str, count: u64) {
    let mut client = daemon.client(volume);
    for n in 0..count {
        assert_eq!(client.write(n * 4096, &[1; 4096]), Ok(()));
    }
}

#[test]
fn totals_are_kept_over_restarts_and_by_volume() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, &["a", "b"]);
    write(&daemon, "a", 5);
    write(&daemon, "b", 2);
    assert_eq!((writes(there, Some("a")), writes(there, None)), ((5, 5), (7, 7)));
    daemon.stop();
    let daemon = start(there, &["a"]);
    assert_eq!(writes(there, Some("a")), (5, 0), "periods begin with the server");
    write(&daemon, "a", 3);
    assert_eq!(writes(there, Some("a")), (8, 3));
    // The total of a volume that is removed and added again continues.
    assert_eq!(daemon.run(&["volume", "remove", "a"]).0, Some(0));
    let volume = format!("a={},{UNPROTECTED}", there.join("a.img").display());
    assert_eq!(daemon.run(&["volume", "add", &volume]).0, Some(0));
    write(&daemon, "a", 1);
    assert_eq!(writes(there, Some("a")), (9, 1));
    daemon.stop();
    let daemon = start(there, &["a", "b"]);
    assert_eq!((writes(there, Some("a")), writes(there, Some("b"))), ((9, 0), (2, 0)));
    let (code, text) = daemon.run(&["stats", "a"]);
    assert!(code == Some(0) && text.contains("\nwrites                      0\n"), "{text}");
    let (code, text) = daemon.run(&["stats", "nix"]);
    assert!(code == Some(1) && text.contains("no volume 'nix'"), "{text}");
    daemon.stop();
}

#[test]
fn another_disk_of_the_same_name_has_totals_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, &["a"]);
    write(&daemon, "a", 5);
    daemon.stop();
    let other = there.join("other.img");
    make_file(&other, 16 * MIB);
    let volume = format!("a={},{UNPROTECTED}", other.display());
    let daemon = Daemon::start_with(there, "auto", "64MiB", &[volume], &[]);
    assert_eq!(writes(there, Some("a")), (0, 0));
    write(&daemon, "a", 1);
    daemon.stop();
    let daemon = start(there, &["a"]);
    assert_eq!(writes(there, Some("a")), (5, 0));
    daemon.stop();
}

#[test]
fn what_a_stop_or_a_removal_destages_is_in_the_totals() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, &["a"]);
    write(&daemon, "a", 5);
    daemon.stop();
    let bytes = || {
        let counters = of(there, Some("a"))["total"]["counters"].clone();
        ["write_bytes", "backend_write_bytes"].map(|name| counters[name].as_u64().unwrap())
    };
    let daemon = start(there, &["a"]);
    assert_eq!(bytes(), [5 * 4096; 2]);
    write(&daemon, "a", 7);
    assert_eq!(daemon.run(&["volume", "remove", "a"]).0, Some(0));
    let volume = format!("a={},{UNPROTECTED}", there.join("a.img").display());
    assert_eq!(daemon.run(&["volume", "add", &volume]).0, Some(0));
    assert_eq!(bytes(), [12 * 4096; 2]);
    daemon.stop();
}

#[test]
fn one_volume_has_histograms_that_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, &["a"]);
    write(&daemon, "a", 5);
    let (code, text) = daemon.run(&["stats", "a", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let one: serde_json::Value = serde_json::from_str(&text).unwrap();
    for period in ["total", "last_5_minutes", "last_hour", "last_day"] {
        let histogram = &one[period]["histograms"]["write_memory"];
        let buckets = histogram["buckets"].as_array().unwrap();
        let count = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>();
        let longest = buckets.last().unwrap()["up_to_us"].as_f64().unwrap();
        let sum = histogram["sum_us"].as_f64().unwrap();
        assert!(count == 5 && sum > 0.0 && sum <= 5.0 * longest, "{histogram}");
    }
    let (code, text) = daemon.run(&["stats"]);
    assert!(code == Some(0) && text.starts_with("a\nPERIOD "), "{text}");
    daemon.stop();
}

#[test]
fn unusable_totals_are_logged_and_put_aside_and_begin_at_zero() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let daemon = start(there, &["a"]);
    write(&daemon, "a", 5);
    daemon.stop();
    let path = there.join("state/statistics.totals");
    let good = std::fs::read(&path).unwrap();
    let (mut damaged, mut newer) = (good.clone(), good.clone());
    let middle = good.len() / 2;
    damaged[middle] ^= 1;
    newer[8] += 1;
    for (bad, reason, times) in [
        (&damaged[..], "its checksum is wrong", 1),
        (&good[..middle], "its checksum is wrong", 2),
        (&good[..3], "it is not a file of statistics", 1),
        (&newer[..], "its version is 2, not 1", 1),
    ] {
        std::fs::write(&path, bad).unwrap();
        let daemon = start(there, &["a"]);
        // The log is written by a thread of its own.
        wait_until(reason, PATIENCE, || {
            let log = daemon.log_so_far();
            let warnings = log.lines().filter(|line| line.contains("statistics are unusable"));
            warnings.filter(|line| line.contains(reason)).count() == times
        });
        assert_eq!(writes(there, Some("a")), (0, 0));
        assert_eq!(std::fs::read(path.with_extension("unusable")).unwrap(), bad);
        write(&daemon, "a", 2);
        daemon.stop();
        let daemon = start(there, &["a"]);
        assert_eq!(writes(there, Some("a")), (2, 0));
        daemon.stop();
    }
}

#[test]
fn totals_that_cannot_be_kept_end_neither_service_nor_stop() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let path = there.join("state/statistics.totals");
    let daemon = start(there, &["a"]);
    std::fs::create_dir(path.with_extension("totals.new")).unwrap();
    write(&daemon, "a", 5);
    assert_eq!(writes(there, Some("a")), (5, 5));
    daemon.stop();
    let log = std::fs::read_to_string(there.join("log")).unwrap();
    assert!(log.contains("cannot keep statistics"), "{log}");
    assert!(!path.exists());
}
