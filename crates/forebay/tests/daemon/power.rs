//! Supplies and a vault under the built program: what a power failure leaves behind.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::nut_lab::NutLab;
use crate::process::Daemon;
use forebay_api::{BlockingClient, PowerStatus, Status, VolumeSettings};
use forebay_nbd::Command;
use forebay_types::{Fault, IoError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
pub(crate) const SIZE_BYTES: u64 = 64 * MIB;

/// A supply that exists in a file, which is written anew several times a second.
pub(crate) struct Feed {
    words: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    pub(crate) fn start(path: PathBuf) -> Self {
        let words = Arc::new(Mutex::new("OL".to_owned()));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, over) = (Arc::clone(&words), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let status = theirs.lock().unwrap().clone();
                let text =
                    format!("ups.status: {status}\nbattery.charge: 100\nbattery.runtime: 1800\n");
                let beside = path.with_extension("new");
                std::fs::write(&beside, text).unwrap();
                std::fs::rename(&beside, &path).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { words, stop, thread: Some(thread) }
    }

    pub(crate) fn say(&self, status: &str) {
        status.clone_into(&mut self.words.lock().unwrap());
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A directory with a disk and a vault, and the daemon over it.
pub(crate) struct House {
    directory: TempDir,
    pub(crate) volume: String,
    pub(crate) supply: String,
}

impl House {
    /// `layers` stand before the disk.
    pub(crate) fn new(layers: &str, supply: impl FnOnce(&Path) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk.img");
        std::fs::File::create(&disk).unwrap().set_len(SIZE_BYTES).unwrap();
        let volume = format!("disk={layers}{},mode=write-back,protection=ups", disk.display());
        let supply = supply(directory.path());
        Self { directory, volume, supply }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn start(&self) -> Daemon {
        let vault = format!("{}", self.path("vault").display());
        Daemon::start_with(
            self.directory.path(),
            "auto",
            "96MiB",
            std::slice::from_ref(&self.volume),
            &["--ups", &self.supply, "--ups-settle-seconds", "1", "--vault", &vault],
        )
    }

    pub(crate) fn status(&self) -> Status {
        let client = BlockingClient::new(self.path("state/control.sock")).unwrap();
        client.status().unwrap()
    }

    pub(crate) fn power(&self) -> PowerStatus {
        self.status().power.unwrap()
    }

    pub(crate) fn wait_for_power(
        &self,
        what: &str,
        mut is_there: impl FnMut(&PowerStatus) -> bool,
    ) {
        wait_until(what, 2 * PATIENCE, || is_there(&self.power()));
    }

    pub(crate) fn on_disk(&self, line: u64) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; 4096];
        let disk = std::fs::File::open(self.path("disk.img")).unwrap();
        disk.read_exact_at(&mut bytes, line * 4096).unwrap();
        bytes
    }
}

pub(crate) fn content(line: u64) -> Vec<u8> {
    (line + 1).to_le_bytes().repeat(512)
}

/// Lines far from each other, so that each is a write of its own for the disk.
pub(crate) fn lines() -> impl Iterator<Item = u64> {
    (0..60).map(|at| at * 37)
}

pub(crate) fn write_all(client: &mut Client) {
    for line in lines() {
        client.write(line * 4096, &content(line)).unwrap();
    }
    client.flush().unwrap();
}

pub(crate) fn assert_all(client: &mut Client) {
    for line in lines() {
        assert_eq!(client.read(line * 4096, 4096).unwrap(), content(line), "line {line}");
    }
}

#[test]
fn a_supply_switches_write_back_and_what_is_dirty_reaches_the_disk() {
    let house = House::new("", |path| format!("lab=file:{}", path.join("supply").display()));
    let feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    assert_eq!(house.on_disk(0), content(0), "nothing is acknowledged from memory yet");
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let power = house.power();
    assert!(power.dirty_bytes_max > 0 && power.battery_seconds == Some(1800), "{power:?}");
    assert!(power.forecast.starts_with("if mains failed now: dump 0 s, battery"), "{power:?}");
    client.write(4096, &content(1)).unwrap();
    client.flush().unwrap();
    assert_eq!(house.on_disk(1), vec![0; 4096], "the pool answers for the disk");
    write_all(&mut client);
    feed.say("OB DISCHRG");
    house.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let volume = house.status().volumes.remove(0);
    assert_eq!(volume.effective_mode, forebay_api::Mode::WriteThrough);
    assert!(volume.effective_mode_reason.unwrap().contains("mains has failed"));
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(house.on_disk(2), content(2), "writes go through on battery");
    house.wait_for_power("what is dirty is drained", |power| power.dirty_bytes == 0);
    for line in lines() {
        assert_eq!(house.on_disk(line), content(line));
    }
    feed.say("OL CHRG");
    house.wait_for_power("write-back is back", |power| power.write_back_allowed);
    drop(client);
    daemon.stop();
}

#[test]
fn what_the_disk_lacks_when_power_goes_comes_back_from_the_vault() {
    // A disk so slow that hardly anything reaches it while the battery lasts.
    let house = House::new("delay(write=2s):", |path| {
        format!("lab=file:{}", path.join("supply").display())
    });
    let feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let mut client = daemon.client("disk");
    write_all(&mut client);
    feed.say("OB DISCHRG LB");
    house.wait_for_power("writes are halted", |power| power.halted);
    assert_eq!(client.write(0, &content(7)), Err(IoError::Shutdown));
    assert_eq!(client.call(Command::Trim, 0, 0, 4096).result, Err(IoError::Shutdown));
    assert_all(&mut client);
    wait_until("the vault has it", PATIENCE, || {
        let dump = house.status().vault.unwrap().last_dump;
        dump.is_some_and(|dump| dump.verified)
    });
    drop(client);
    daemon.kill();
    let missing = lines().filter(|&line| house.on_disk(line) != content(line)).count();
    assert!(missing > 10, "the disk lacks only {missing} lines");

    feed.say("OL");
    let daemon = house.start();
    assert_all(&mut daemon.client("disk"));
    assert!(house.status().vault.unwrap().held.is_empty(), "the disk has it, the vault is empty");
    for line in lines() {
        assert_eq!(house.on_disk(line), content(line));
    }
    house.wait_for_power("write-back is back", |power| power.write_back_allowed);
    daemon.stop();
}

/// Zeroes lie in the disk's cache when they are acknowledged under a safe UPS. They are flushed
/// every two seconds besides, so one round alone would prove little.
#[test]
fn the_disk_s_cache_is_flushed_as_soon_as_the_ups_is_not_safe() {
    let house =
        House::new("volatile():", |path| format!("lab=file:{}", path.join("supply").display()));
    std::fs::write(house.path("disk.img"), vec![1; SIZE_BYTES as usize]).unwrap();
    let feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    let mut client = daemon.client("disk");
    for round in 0..6 {
        house.wait_for_power("write-back begins", |power| power.write_back_allowed);
        client.call(Command::WriteZeroes, 0, round * 4096, 4096).result.unwrap();
        feed.say("OB DISCHRG");
        house.wait_for_power("write-back ends", |power| !power.write_back_allowed);
        wait_until("the disk is flushed", PATIENCE, || house.on_disk(round) == vec![0; 4096]);
        feed.say("OL");
    }
    drop(client);
    daemon.stop();
}

#[test]
fn a_power_failure_while_the_ups_is_not_safe_loses_nothing_acknowledged() {
    let house =
        House::new("volatile():", |path| format!("lab=file:{}", path.join("supply").display()));
    let feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let mut client = daemon.client("disk");
    for line in lines() {
        client.write(line * 4096, &content(line)).unwrap();
    }
    feed.say("OL RB");
    house.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let reason = house.status().volumes.remove(0).effective_mode_reason.unwrap();
    assert!(reason.ends_with("acknowledged from the disk's stable storage"), "{reason}");
    for line in lines() {
        client.write((line + 1) * 4096, &content(line)).unwrap();
    }
    client.call(Command::WriteZeroes, 0, 4096, 4096).result.unwrap();
    wait_until("what was dirty is on stable storage", PATIENCE, || {
        lines().all(|line| house.on_disk(line) == content(line))
    });
    drop(client);
    daemon.kill();

    feed.say("OL");
    let daemon = house.start();
    let mut client = daemon.client("disk");
    assert_all(&mut client);
    assert_eq!(client.read(4096, 4096).unwrap(), vec![0; 4096]);
    for line in lines().skip(1) {
        let found = client.read((line + 1) * 4096, 4096).unwrap();
        assert_eq!(found, content(line), "line {}", line + 1);
    }
    drop(client);
    daemon.stop();
}

#[test]
fn the_operator_may_choose_the_disk_s_cache_for_writes_that_the_ups_does_not_cover() {
    let mut house =
        House::new("volatile():", |path| format!("lab=file:{}", path.join("supply").display()));
    house.volume += ",unsafe-supply=disk-cache";
    let daemon = house.start();
    let mut client = daemon.client("disk");
    client.write(4096, &content(1)).unwrap();
    assert_eq!(house.on_disk(1), vec![0; 4096]);
    let volume = house.status().volumes.remove(0);
    assert_eq!(volume.unsafe_supply.as_deref(), Some("disk-cache"));
    assert!(volume.effective_mode_reason.unwrap().contains("which a power failure loses"));
    let control = BlockingClient::new(house.path("state/control.sock")).unwrap();
    let settings = VolumeSettings::from([("unsafe-supply", "stable")]);
    let volume = control.set_volume("disk", &settings).unwrap();
    assert_eq!(volume.unsafe_supply.as_deref(), Some("stable"));
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(house.on_disk(2), content(2));
    let settings = VolumeSettings::from([("unsafe-supply", "never")]);
    let error = control.set_volume("disk", &settings).unwrap_err().explained();
    assert!(error.contains("no unsafe-supply 'never': use stable or disk-cache"), "{error}");
    drop(client);
    daemon.stop();
}

/// What a real server shows, event by event: how long it takes until the built program has
/// changed the mode.
#[test]
#[ignore = "needs nut-server"]
fn tool_each_state_of_a_real_server_changes_the_mode() {
    let mut lab = NutLab::start();
    let house = House::new("", |_| format!("lab@127.0.0.1:{}", lab.port));
    let daemon = house.start();
    let mut client = daemon.client("disk");
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    println!("| event | mode afterwards | ms from the event | of it since we heard | reason |");
    println!("| --- | --- | --- | --- | --- |");
    type Act = fn(&mut NutLab);
    let events: [(&str, Act, Act); 9] = [
        ("OB", |lab| lab.set("ups.status", "OB DISCHRG"), |lab| lab.set("ups.status", "OL")),
        ("OB LB", |lab| lab.set("ups.status", "OB DISCHRG LB"), |lab| lab.set("ups.status", "OL")),
        ("OL RB", |lab| lab.set("ups.status", "OL RB"), |lab| lab.set("ups.status", "OL")),
        ("OL BYPASS", |lab| lab.set("ups.status", "OL BYPASS"), |lab| lab.set("ups.status", "OL")),
        ("charge 78", |lab| lab.set("battery.charge", "78"), |lab| lab.set("battery.charge", "85")),
        (
            "runtime 60",
            |lab| lab.set("battery.runtime", "60"),
            |lab| {
                lab.set("battery.runtime", "1800");
            },
        ),
        ("driver hangs (stale)", |lab| lab.stop_driver(true), |lab| lab.stop_driver(false)),
        (
            "FSD",
            |lab| lab.force_shutdown(),
            |lab| {
                lab.kill_server();
                lab.start_server();
            },
        ),
        ("server dead", NutLab::kill_server, NutLab::start_server),
    ];
    for (name, act, undo) in events {
        write_all(&mut client);
        let begin = Instant::now();
        act(&mut lab);
        while house.power().write_back_allowed {
            assert!(begin.elapsed() < 3 * PATIENCE, "{name} changes nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ms = begin.elapsed().as_millis();
        let power = house.power();
        let heard = power.change_ms.map_or("silence".to_owned(), |ms| ms.to_string());
        println!("| {name} | write-through | {ms} | {heard} | {} |", power.reason);
        house.wait_for_power("it is in safety", |power| power.dirty_bytes == 0 || power.halted);
        let begin = Instant::now();
        undo(&mut lab);
        house.wait_for_power("write-back is back", |power| power.write_back_allowed);
        println!("| back from {name} | write-back | {} | | |", begin.elapsed().as_millis());
    }
    assert_all(&mut client);
    drop(client);
    daemon.stop();
    for line in lines() {
        assert_eq!(house.on_disk(line), content(line));
    }
}
