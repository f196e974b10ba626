//! Learning the time of day: data that was needed at nine on two days is in memory before nine on
//! the third. The daemon reads the time from a file.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const DISK_BYTES: u64 = 64 * MIB;
const PART: u64 = 16 << 10;
/// Monday, 23 November 2026, 00:00 UTC.
const MONDAY: u64 = 1_795_392_000;
const DAY: u64 = 24 * 3_600;
/// The time zone: an hour east of UTC.
const EAST: i64 = 3_600;

/// A directory with a disk and a clock.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        make_file(directory.path().join("disk.img"), DISK_BYTES);
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Sets the clock to a local time of a day from Monday on, such as 9 h, 0 min and 0 s.
    fn set(&self, day: u64, [hours, minutes, seconds]: [u64; 3]) {
        let second = hours * 3_600 + minutes * 60 + seconds;
        self.set_clocks(MONDAY + day * DAY + second, EAST, second);
    }

    /// Sets local time, its offset from UTC, and the clock that does not jump, in seconds.
    fn set_clocks(&self, local: u64, offset: i64, elapsed: u64) {
        let utc = local.checked_add_signed(-offset).unwrap();
        let new = self.path().join("clock.new");
        fs::write(&new, format!("{utc} {offset} {elapsed}")).unwrap();
        fs::rename(new, self.path().join("clock")).unwrap();
    }

    fn start(&self, settings: &str) -> Daemon {
        // Nothing but the history brings data into memory before a client reads it.
        let disk = self.path().join("disk.img").display().to_string();
        let volume = format!("disk={disk},warm=no,prefetch=no,gather-below=off{settings}");
        Daemon::start_at(&self.path().join("clock"), self.path(), &volume)
    }

    /// The files in the state directory with this extension.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("state")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == extension)).collect()
    }

    fn history(&self) -> PathBuf {
        let [path] = &self.files("history")[..] else { panic!("one history") };
        path.clone()
    }

    /// Reads parts at nine on a day, and has it learned.
    fn learn(&self, day: u64, parts: &[u64]) {
        self.set(day, [8, 59, 50]);
        let daemon = self.start("");
        wait_for_slot(&daemon, day, "08:45");
        self.set(day, [9, 0, 0]);
        wait_for_slot(&daemon, day, "09:00");
        read(&daemon, parts);
        assert_eq!(counter(&daemon, "read_misses"), parts.len() as u64, "memory is empty");
        self.set(day, [9, 15, 0]);
        wait_for_slot(&daemon, day, "09:15");
        assert!(learned(&daemon)["regions"].as_u64().unwrap() > 0);
        daemon.stop();
    }
}

fn volume_status(daemon: &Daemon) -> serde_json::Value {
    daemon.status()["volumes"][0].clone()
}

fn learned(daemon: &Daemon) -> serde_json::Value {
    volume_status(daemon)["learn"].clone()
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    volume_status(daemon)["counters"][name].as_u64().unwrap()
}

fn wait_for_slot(daemon: &Daemon, day: u64, time: &str) {
    let day = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"][day as usize % 7];
    let slot = format!("{day} {time}");
    wait_until(&slot, PATIENCE, || learned(daemon)["slot"] == slot.as_str());
}

fn read(daemon: &Daemon, parts: &[u64]) {
    let mut client = daemon.client("disk");
    for &part in parts {
        client.read(part * PART, PART).unwrap();
    }
}

/// Parts all over the disk, and some adjacent ones.
fn parts() -> Vec<u64> {
    (0..DISK_BYTES / PART).filter(|part| part % 97 == 5 || (1_000..1_020).contains(part)).collect()
}

#[test]
fn what_was_needed_at_nine_is_in_memory_before_nine_on_the_third_day() {
    let (place, parts) = (Place::new(), parts());
    let bytes = parts.len() as u64 * PART;
    place.learn(0, &parts);
    place.learn(1, &parts);
    place.set(2, [8, 54, 50]);
    let daemon = place.start("");
    wait_for_slot(&daemon, 2, "08:45");
    assert_eq!(learned(&daemon)["observed_slots"], 2);
    assert_eq!(learned(&daemon)["forecast"], serde_json::Value::Null, "it is too early");
    place.set(2, [8, 55, 10]);
    wait_until("the preload", PATIENCE, || counter(&daemon, "preloaded_bytes") == bytes);
    let forecast = learned(&daemon)["forecast"].clone();
    assert_eq!(forecast["slot"], "Wed 09:00", "{forecast}");
    assert_eq!(forecast["bytes"], bytes, "{forecast}");
    assert_eq!(
        (&forecast["weekly_regions"], &forecast["beyond_budget_bytes"]),
        (&0.into(), &0.into())
    );
    place.set(2, [9, 0, 0]);
    wait_for_slot(&daemon, 2, "09:00");
    wait_until("all reads of the preload have ended", PATIENCE, || {
        volume_status(&daemon)["cached_bytes"] == bytes
    });
    read(&daemon, &parts);
    assert_eq!(counter(&daemon, "read_misses"), 0, "{}", daemon.log_so_far());
    place.set(2, [9, 10, 30]);
    wait_until("a score", PATIENCE, || !learned(&daemon)["score"].is_null());
    let score = learned(&daemon)["score"].clone();
    assert_eq!((&score["slot"], &score["used_bytes"]), (&"Wed 09:00".into(), &bytes.into()));
    assert_eq!(score["preloaded_bytes"], bytes);
    let (code, text) = daemon.run(&["status", "--all"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("\n  last forecast       "), "{text}");
    for text in ["access history loaded", "daily_regions", "forecast scored", "preload ended"] {
        daemon.wait_for_log(text);
    }
    // What was preloaded and used counts as needed: the history still has it.
    place.set(2, [9, 15, 0]);
    wait_for_slot(&daemon, 2, "09:15");
    assert_eq!(learned(&daemon)["observed_slots"], 3);
    daemon.stop();
    place.set(3, [8, 56, 0]);
    let daemon = place.start("");
    wait_until("the next day's preload", PATIENCE, || counter(&daemon, "preloaded_bytes") == bytes);
    daemon.stop();
}

/// Regression: the first use of data that was preloaded for an earlier quarter of an hour counted
/// for the current one.
#[test]
fn a_score_counts_no_use_of_what_was_preloaded_for_an_earlier_time() {
    let place = Place::new();
    let all = parts();
    let (first, second) = all.split_at(all.len() / 2);
    for day in 0..2 {
        place.set(day, [8, 59, 50]);
        let daemon = place.start("");
        wait_for_slot(&daemon, day, "08:45");
        for (minute, parts, slot, next) in [(0, first, "09:00", 15), (15, second, "09:15", 30)] {
            place.set(day, [9, minute, 0]);
            wait_for_slot(&daemon, day, slot);
            read(&daemon, parts);
            place.set(day, [9, next, 0]);
        }
        wait_for_slot(&daemon, day, "09:30");
        daemon.stop();
    }
    let bytes = |parts: &[u64]| parts.len() as u64 * PART;
    let score = |daemon: &Daemon, slot: &str| {
        let name = format!("the score of {slot}");
        wait_until(&name, PATIENCE, || learned(daemon)["score"]["slot"] == slot);
        let score = learned(daemon)["score"].clone();
        (score["preloaded_bytes"].as_u64().unwrap(), score["used_bytes"].as_u64().unwrap())
    };
    place.set(2, [8, 55, 10]);
    let daemon = place.start("");
    let preloaded = |bytes| {
        wait_until("the preload", PATIENCE, || volume_status(&daemon)["cached_bytes"] == bytes);
    };
    preloaded(bytes(first));
    place.set(2, [9, 0, 0]);
    wait_for_slot(&daemon, 2, "09:00");
    let (in_time, late) = first.split_at(first.len() * 3 / 4);
    read(&daemon, in_time);
    place.set(2, [9, 10, 30]);
    assert_eq!(score(&daemon, "Wed 09:00"), (bytes(first), bytes(in_time)));
    preloaded(bytes(&all));
    place.set(2, [9, 15, 0]);
    wait_for_slot(&daemon, 2, "09:15");
    read(&daemon, late);
    read(&daemon, &second[..2]);
    assert_eq!(counter(&daemon, "read_misses"), 0);
    place.set(2, [9, 25, 30]);
    assert_eq!(score(&daemon, "Wed 09:15"), (bytes(second), 2 * PART));
    daemon.stop();
}

#[test]
fn a_volume_that_is_added_during_a_preload_does_not_end_its_wait() {
    let (place, parts) = (Place::new(), parts());
    let bytes = parts.len() as u64 * PART;
    place.learn(0, &parts);
    place.learn(1, &parts);
    place.set(2, [8, 55, 10]);
    let daemon = place.start("");
    wait_until("the preload", PATIENCE, || volume_status(&daemon)["cached_bytes"] == bytes);
    let other = place.path().join("other.img");
    make_file(&other, 2 * DISK_BYTES);
    let other = format!("other={},warm=no,prefetch=no", other.display());
    let (code, said) = daemon.run(&["volume", "add", &other]);
    assert_eq!(code, Some(0), "{said}");
    wait_until("the other volume learns", PATIENCE, || {
        daemon.status()["volumes"][1]["learn"]["slot"] == "Wed 08:45"
    });
    place.set(2, [9, 0, 0]);
    wait_for_slot(&daemon, 2, "09:00");
    // More data than fits into the pool. Preloaded data that was not used yet is evicted last.
    let mut client = daemon.client("other");
    for offset in (0..2 * DISK_BYTES).step_by(MIB as usize) {
        client.read(offset, MIB).unwrap();
    }
    read(&daemon, &parts);
    assert_eq!(counter(&daemon, "read_misses"), 0);
    daemon.stop();
}

#[test]
fn learning_can_be_turned_off_and_on() {
    let (place, parts) = (Place::new(), parts());
    place.learn(0, &parts);
    place.learn(1, &parts);
    let history = fs::read(place.history()).unwrap();
    place.set(2, [8, 54, 50]);
    let daemon = place.start(",learn=no");
    place.set(2, [8, 55, 10]);
    read(&daemon, &parts[..3]);
    let status = learned(&daemon);
    assert_eq!((&status["enabled"], &status["state"]), (&false.into(), &"off".into()), "{status}");
    let (code, text) = daemon.run(&["volume", "set", "disk", "learn=yes"]);
    assert_eq!(code, Some(0), "{text}");
    // What is in memory already is not read again.
    let bytes = (parts.len() as u64 - 3) * PART;
    wait_until("the preload", PATIENCE, || counter(&daemon, "preloaded_bytes") == bytes);
    assert_eq!(volume_status(&daemon)["settings"]["learn"], true);
    let (code, text) = daemon.run(&["volume", "set", "disk", "learn=no"]);
    assert_eq!(code, Some(0), "{text}");
    wait_until("off", PATIENCE, || learned(&daemon)["state"] == "off");
    daemon.stop();
    assert_eq!(fs::read(place.history()).unwrap(), history, "it is kept for a later yes");
}

#[test]
fn a_history_that_cannot_be_used_is_put_aside_and_begins_anew() {
    let (place, parts) = (Place::new(), parts());
    place.learn(0, &parts);
    let good = fs::read(place.history()).unwrap();
    let check = |reason: &str| {
        let bad = fs::metadata(place.history()).unwrap().len();
        let _ = fs::remove_file(place.path().join("log"));
        place.set(1, [8, 59, 50]);
        let daemon = place.start("");
        wait_for_slot(&daemon, 1, "08:45");
        daemon.wait_for_log_times("access history ignored", 1);
        daemon.wait_for_log(reason);
        assert_eq!(learned(&daemon)["observed_slots"], 0, "{reason}");
        assert!(place.files("history").is_empty(), "{reason}");
        let [aside] = &place.files("unusable")[..] else { panic!("{reason}") };
        assert_eq!(fs::metadata(aside).unwrap().len(), bad, "{reason}");
        place.set(1, [9, 0, 0]);
        wait_for_slot(&daemon, 1, "09:00");
        read(&daemon, &parts);
        place.set(1, [9, 15, 0]);
        wait_for_slot(&daemon, 1, "09:15");
        assert_eq!(learned(&daemon)["observed_slots"], 1, "{reason}");
        assert_eq!(counter(&daemon, "errors"), 0);
        daemon.stop();
        // Of the same length: another day, the same regions.
        assert_eq!(fs::metadata(place.history()).unwrap().len(), good.len() as u64, "{reason}");
    };
    let change = |change: &dyn Fn(&mut Vec<u8>), reason| {
        let mut changed = good.clone();
        change(&mut changed);
        fs::write(place.history(), changed).unwrap();
        check(reason);
    };
    change(&|bytes| bytes[100] ^= 1, "its checksum is wrong");
    change(&|bytes| bytes[8] = 9, "its version is 9");
    change(&|bytes| bytes.truncate(300), "its length is wrong");
    change(&|bytes| bytes.clear(), "it is not an access history");
    // Sparse: more than the daemon may read.
    File::options().write(true).open(place.history()).unwrap().set_len(1 << 40).unwrap();
    check("it is longer than");
    // The disk is smaller now. One that has grown keeps its history.
    make_file(place.path().join("disk.img"), DISK_BYTES - 4096);
    check("it belongs to a disk of 64 MiB");
}

#[test]
fn a_clock_that_jumps_and_a_time_zone_that_changes_teach_nothing_wrong() {
    let (place, parts) = (Place::new(), parts());
    let nine = MONDAY + 9 * 3_600;
    place.set_clocks(nine, EAST, 0);
    let daemon = place.start("");
    wait_for_slot(&daemon, 0, "09:00");
    read(&daemon, &parts[..2]);
    // Five minutes have passed; the clock says an hour more.
    place.set_clocks(nine + 3_900, EAST, 300);
    wait_for_slot(&daemon, 0, "10:00");
    read(&daemon, &parts[2..4]);
    place.set_clocks(nine + 4_500, EAST, 900);
    wait_for_slot(&daemon, 0, "10:15");
    assert_eq!(learned(&daemon)["observed_slots"], 0, "neither slot was whole");
    // The zone is another one: it is 11:15.
    place.set_clocks(nine + 4_500 + 3_600, 2 * EAST, 900);
    wait_for_slot(&daemon, 0, "11:15");
    place.set_clocks(nine + 5_400 + 3_600, 2 * EAST, 1_800);
    wait_for_slot(&daemon, 0, "11:30");
    assert_eq!(learned(&daemon)["observed_slots"], 0, "it was not whole");
    read(&daemon, &parts[4..6]);
    place.set_clocks(nine + 6_300 + 3_600, 2 * EAST, 2_700);
    wait_for_slot(&daemon, 0, "11:45");
    let status = learned(&daemon);
    assert_eq!(status["observed_slots"], 1, "{status}");
    // A clock that runs backwards, and one that is wrong by decades.
    place.set_clocks(nine, EAST, 2_700);
    wait_for_slot(&daemon, 0, "09:00");
    place.set_clocks(10 * 365 * DAY, EAST, 2_700);
    wait_until("1979", PATIENCE, || learned(&daemon)["slot"] != "Mon 09:00");
    assert_eq!(learned(&daemon)["observed_slots"], 1);
    daemon.wait_for_log_times("the clock has jumped", 2);
    daemon.wait_for_log_times("the time zone has changed", 2);
    daemon.stop();
}

#[test]
fn a_removed_volume_leaves_no_history_and_no_warm_list() {
    let (place, parts) = (Place::new(), parts());
    place.learn(0, &parts);
    place.set(1, [8, 59, 50]);
    let daemon = place.start("");
    wait_for_slot(&daemon, 1, "08:45");
    assert_eq!(learned(&daemon)["observed_slots"], 1, "a stop keeps it");
    let (code, text) = daemon.run(&["volume", "set", "disk", "warm=yes"]);
    assert_eq!(code, Some(0), "{text}");
    read(&daemon, &parts);
    fs::write(place.history().with_extension("unusable"), "an earlier one").unwrap();
    daemon.stop();
    let count = |extension| place.files(extension).len();
    assert_eq!([count("history"), count("unusable"), count("list")], [1; 3]);
    let daemon = place.start("");
    wait_for_slot(&daemon, 1, "08:45");
    let (code, text) = daemon.run(&["volume", "remove", "disk"]);
    assert_eq!(code, Some(0), "{text}");
    wait_until("nothing is left", PATIENCE, || {
        [count("history"), count("unusable"), count("list")] == [0; 3]
    });
    // A volume that gets its name begins anew.
    let disk = place.path().join("disk.img").display().to_string();
    let (code, text) = daemon.run(&["volume", "add", &format!("disk={disk},gather-below=off")]);
    assert_eq!(code, Some(0), "{text}");
    wait_for_slot(&daemon, 1, "08:45");
    assert_eq!(learned(&daemon)["observed_slots"], 0);
    assert_eq!(volume_status(&daemon)["warm_up"]["state"], "none");
    read(&daemon, &parts);
    daemon.stop();
    assert_eq!([count("history"), count("list")], [0, 1], "the list of the new volume");
}

#[test]
fn a_preload_that_finds_no_room_evicts_nothing_and_ends() {
    let (place, parts) = (Place::new(), parts());
    place.learn(0, &parts);
    place.learn(1, &parts);
    place.set(2, [8, 54, 50]);
    let daemon = place.start("");
    wait_for_slot(&daemon, 2, "08:45");
    let memory = |field: &str| daemon.status()["memory"][field].as_u64().unwrap();
    // Rows of four regions belong to the two shards in turn. The whole rows at the front are read,
    // and of the next two rows as much as still fits into each shard.
    let (pool_bytes, row) = (memory("pool_bytes"), 4 * MIB);
    let (front, rest) = (pool_bytes / (2 * row) * 2 * row, pool_bytes % (2 * row) / 2);
    assert!(front + 2 * row <= DISK_BYTES, "{pool_bytes}");
    let mut client = daemon.client("disk");
    let mut read_all = || {
        for (offset, bytes) in [(0, front), (front, rest), (front + row, rest)] {
            for at in (offset..offset + bytes).step_by(PART as usize) {
                client.read(at, PART.min(offset + bytes - at)).unwrap();
            }
        }
    };
    read_all();
    assert_eq!(memory("used_bytes"), pool_bytes);
    let misses = counter(&daemon, "read_misses");
    // All of it is used again and again.
    (0..4).for_each(|_| read_all());
    place.set(2, [8, 55, 10]);
    daemon.wait_for_log("preload ended");
    let is_outside = |part: &&u64| **part * PART >= front + row + rest;
    assert!(parts.iter().filter(is_outside).count() > 10);
    assert_eq!(learned(&daemon)["forecast"]["slot"], "Wed 09:00");
    assert_eq!(counter(&daemon, "preloaded_bytes"), 0, "{}", daemon.log_so_far());
    read_all();
    assert_eq!(counter(&daemon, "read_misses"), misses, "what was used is still there");
    // There is nothing to score.
    place.set(2, [9, 0, 0]);
    wait_for_slot(&daemon, 2, "09:00");
    place.set(2, [9, 10, 30]);
    place.set(2, [9, 15, 0]);
    wait_for_slot(&daemon, 2, "09:15");
    let status = learned(&daemon);
    assert_eq!(
        (&status["score"], &status["state"]),
        (&serde_json::Value::Null, &"learning".into())
    );
    assert_eq!(counter(&daemon, "errors"), 0);
    drop(client);
    daemon.stop();
}
