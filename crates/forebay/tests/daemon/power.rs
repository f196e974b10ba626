//! The built program with a UPS and a vault: mode changes and data safety across power failures.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::nut_lab::NutLab;
use crate::process::{Daemon, MIB, make_file};
use forebay_api::{BlockingClient, DrillReport, JournalState, PowerStatus, Status, VolumeSettings};
use forebay_nbd::NbdCommand;
use forebay_types::{Fault, IoError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const SIZE_BYTES: u64 = 64 * MIB;

/// A UPS simulated by a status file that a thread rewrites every 50 ms.
pub(crate) struct FileUps {
    status: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileUps {
    pub(crate) fn start(path: PathBuf) -> Self {
        let status = Arc::new(Mutex::new("OL".to_owned()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(&status), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let status = shared.lock().unwrap().clone();
                let text =
                    format!("ups.status: {status}\nbattery.charge: 100\nbattery.runtime: 1800\n");
                let temporary = path.with_extension("new");
                std::fs::write(&temporary, text).unwrap();
                std::fs::rename(&temporary, &path).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { status, stop, thread: Some(thread) }
    }

    pub(crate) fn set_status(&self, status: &str) {
        status.clone_into(&mut self.status.lock().unwrap());
    }
}

impl Drop for FileUps {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A machine with a disk, a vault and a UPS, in a directory of its own.
pub(crate) struct UpsMachine {
    directory: TempDir,
    pub(crate) volume: String,
    /// The argument of `--ups`.
    pub(crate) ups: String,
}

impl UpsMachine {
    /// Stacks `layers` on the disk. The UPS is the file `ups`; see [`Self::start_ups`].
    pub(crate) fn new(layers: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk.img");
        make_file(&disk, SIZE_BYTES);
        let volume = format!("disk={layers}{},mode=write-back,protection=ups", disk.display());
        let ups = format!("lab=file:{}", directory.path().join("ups").display());
        Self { directory, volume, ups }
    }

    /// A machine whose daemon writes back under a safe UPS.
    pub(crate) fn in_write_back(layers: &str) -> (Self, FileUps, Daemon) {
        let machine = Self::new(layers);
        let (ups, daemon) = (machine.start_ups(), machine.start());
        machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
        (machine, ups, daemon)
    }

    pub(crate) fn start_ups(&self) -> FileUps {
        FileUps::start(self.path("ups"))
    }

    /// The directory of the machine.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
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
            &["--ups", &self.ups, "--ups-settle-seconds", "1", "--vault", &vault],
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

    /// Waits until the vault holds a verified dump.
    pub(crate) fn wait_for_dump(&self) {
        wait_until("the dump is verified", PATIENCE, || {
            let dump = self.status().vault.unwrap().last_dump;
            dump.is_some_and(|dump| dump.verified)
        });
    }

    /// Whether the disk lacks much of what [`write_all`] wrote.
    pub(crate) fn is_disk_behind(&self) -> bool {
        lines().filter(|&line| self.on_disk(line) != content(line)).count() > 10
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

/// Lines far apart, so that the disk gets one write for each.
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
fn the_ups_switches_write_back_and_dirty_data_is_flushed_on_battery() {
    let machine = UpsMachine::new("");
    let ups = machine.start_ups();
    let daemon = machine.start();
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    assert_eq!(machine.on_disk(0), content(0), "no write-back before the UPS is known to be safe");
    machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let power = machine.power();
    assert!(power.dirty_bytes_max > 0 && power.battery_seconds == Some(1800), "{power:?}");
    assert!(power.forecast.starts_with("if mains failed now: dump 0 s, battery"), "{power:?}");
    client.write(4096, &content(1)).unwrap();
    client.flush().unwrap();
    assert_eq!(machine.on_disk(1), vec![0; 4096], "a flush is answered from the pool");
    write_all(&mut client);
    ups.set_status("OB DISCHRG");
    machine.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let volume = machine.status().volumes.remove(0);
    assert_eq!(volume.effective_mode, forebay_api::Mode::WriteThrough);
    assert!(volume.effective_mode_reason.unwrap().contains("on battery"));
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(machine.on_disk(2), content(2), "writes go through on battery");
    let (code, said) = daemon.run(&["drill"]);
    assert!(code == Some(1) && said.contains("on mains power"), "{said}");
    machine.wait_for_power("dirty data is drained", |power| power.dirty_bytes == 0);
    for line in lines() {
        assert_eq!(machine.on_disk(line), content(line));
    }
    ups.set_status("OL CHRG");
    machine.wait_for_power("write-back resumes", |power| power.write_back_allowed);
    drop(client);
    daemon.stop();
}

/// Regression: a drill without dirty data passed without saving anything.
#[test]
fn a_drill_without_dirty_data_rehearses_with_as_much_as_may_be_dirty() {
    let (machine, _ups, daemon) = UpsMachine::in_write_back("");
    let (code, said) = daemon.run(&["drill", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let report: DrillReport = serde_json::from_str(&said).unwrap();
    assert!(report.test_data && report.saved_in_time && report.verified, "{report:?}");
    assert_eq!(report.dirty_bytes, 0);
    // The budget of a battery for half an hour is larger than the pool.
    let most = report.dirty_bytes_max.unwrap();
    assert!(most < machine.power().dirty_bytes_max && most > 16 * MIB, "{report:?}");
    assert_eq!(most, machine.status().memory.cache_ratio.unwrap().write_bytes);
    assert_eq!(report.bytes, most / 4096 * 4096);
    assert!(report.verdict.starts_with("nothing was dirty; as much as may be dirty was saved: "));
    let (code, said) = daemon.run(&["drill"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("dirty: 0 B, saved: ") && said.contains(" of test data, "), "{said}");
    daemon.stop();
}

#[test]
fn dirty_data_dumped_at_low_battery_is_restored_from_the_vault() {
    // The disk is too slow to take much while the battery lasts, on a loaded machine too.
    let (machine, ups, daemon) = UpsMachine::in_write_back("delay(write=5s):");
    let mut client = daemon.client("disk");
    write_all(&mut client);
    ups.set_status("OB DISCHRG LB");
    machine.wait_for_power("writes are halted", |power| power.halted);
    assert_eq!(client.write(0, &content(7)), Err(IoError::Shutdown));
    assert_eq!(client.call(NbdCommand::Trim, 0, 0, 4096).result, Err(IoError::Shutdown));
    assert_all(&mut client);
    machine.wait_for_dump();
    drop(client);
    daemon.kill();
    assert!(machine.is_disk_behind(), "the disk has taken everything before the kill");

    ups.set_status("OL");
    let daemon = machine.start();
    assert_all(&mut daemon.client("disk"));
    assert!(
        machine.status().vault.unwrap().held.is_empty(),
        "the vault is empty after the restore"
    );
    for line in lines() {
        assert_eq!(machine.on_disk(line), content(line));
    }
    machine.wait_for_power("write-back resumes", |power| power.write_back_allowed);
    daemon.stop();
}

#[test]
fn a_calibration_that_empties_the_battery_halts_no_writes() {
    let (machine, ups, daemon) = UpsMachine::in_write_back("");
    let mut client = daemon.client("disk");
    write_all(&mut client);
    ups.set_status("OB CAL LB");
    machine.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    client.write(0, &content(7)).unwrap();
    assert_eq!(machine.on_disk(0), content(7), "writes go through");
    machine.wait_for_power("dirty data is drained", |power| power.dirty_bytes == 0);
    let power = machine.power();
    assert!(!power.halted, "{power:?}");
    // A forced shutdown counts in a calibration too.
    ups.set_status("FSD OB CAL LB");
    machine.wait_for_power("writes are halted", |power| power.halted);
    ups.set_status("OL");
    machine.wait_for_power("write-back resumes", |power| power.write_back_allowed);
    drop(client);
    daemon.stop();
}

/// Fails the journal, writes `version` of each line, and cuts the power once the vault has them.
fn fail_journal_and_cut_power(machine: &UpsMachine, ups: &FileUps, daemon: Daemon, version: u64) {
    let mut client = daemon.client("disk");
    if machine.path("journal").exists() {
        std::fs::rename(machine.path("journal"), machine.path("away")).unwrap();
    }
    wait_until("the journal fails", PATIENCE, || {
        machine.status().journals[0].state == JournalState::Failed
    });
    machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
    lines().for_each(|line| client.write(line * 4096, &content(line + version)).unwrap());
    ups.set_status("OB DISCHRG LB");
    machine.wait_for_dump();
    drop(client);
    daemon.kill();
    let behind = lines().filter(|&line| machine.on_disk(line) != content(line + version)).count();
    assert!(behind > 10, "the disk has taken everything before the kill");
    ups.set_status("OL");
}

fn assert_version(daemon: &Daemon, version: u64) {
    let mut client = daemon.client("disk");
    for line in lines() {
        assert_eq!(client.read(line * 4096, 4096).unwrap(), content(line + version), "{line}");
    }
}

#[test]
fn a_volume_whose_journal_failed_before_a_power_cut_is_served_from_the_vault() {
    let mut machine = UpsMachine::new("delay(write=5s):");
    make_file(machine.path("journal"), 40 * MIB);
    let journal = format!("protection=journal+ups,journal={}", machine.path("journal").display());
    machine.volume = machine.volume.replace("protection=ups", &journal);
    let ups = machine.start_ups();
    fail_journal_and_cut_power(&machine, &ups, machine.start(), 0);
    // Without the device, and with it: its records are older than the vault.
    for comes_back in [false, true] {
        if comes_back {
            std::fs::rename(machine.path("away"), machine.path("journal")).unwrap();
        }
        let daemon = machine.start();
        assert_version(&daemon, if comes_back { 1000 } else { 0 });
        let status = machine.status();
        assert_eq!(status.journals[0].state, JournalState::Failed);
        let reason = status.journals[0].state_reason.clone().unwrap();
        assert!(reason.contains("volume 'disk' is served without it"), "{reason}");
        daemon.wait_for_log("without its failed journal, under its UPS alone");
        if comes_back {
            daemon.stop();
        } else {
            fail_journal_and_cut_power(&machine, &ups, daemon, 1000);
        }
    }
    // After the orderly stop, the device can be used for a new journal.
    let daemon = machine.start();
    assert_eq!(machine.status().journals[0].state, JournalState::Working);
    assert_version(&daemon, 1000);
    daemon.stop();
}

#[test]
fn a_volume_whose_journal_fails_after_the_dump_is_dumped_as_well() {
    let mut machine = UpsMachine::new("delay(write=5s):");
    make_file(machine.path("journal"), 40 * MIB);
    let journal = format!("protection=journal+ups,journal={}", machine.path("journal").display());
    machine.volume = machine.volume.replace("protection=ups", &journal);
    let ups = machine.start_ups();
    let daemon = machine.start();
    machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
    write_all(&mut daemon.client("disk"));
    ups.set_status("OB DISCHRG LB");
    machine.wait_for_dump();
    let dumped = || machine.status().vault.unwrap().last_dump.unwrap().bytes;
    assert_eq!(dumped(), 0, "the journal has everything");
    std::fs::rename(machine.path("journal"), machine.path("away")).unwrap();
    wait_until("the volume is dumped", 2 * PATIENCE, || dumped() > 0);
    assert_eq!(daemon.client("disk").write(0, &content(7)), Err(IoError::Shutdown));
    daemon.kill();
    assert!(machine.is_disk_behind(), "the disk has taken everything before the kill");

    ups.set_status("OL");
    let daemon = machine.start();
    assert_all(&mut daemon.client("disk"));
    daemon.stop();
}

#[test]
fn a_dump_is_logged_once() {
    let (_machine, ups, daemon) = UpsMachine::in_write_back("");
    let mut client = daemon.client("disk");
    write_all(&mut client);
    ups.set_status("OB DISCHRG LB");
    daemon.wait_for_log("power may be cut");
    drop(client);
    daemon.wait_for_log_times("dump complete", 1);
}

#[test]
fn a_dump_whose_disk_does_not_flush_is_not_logged_as_failed() {
    let (_machine, ups, daemon) = UpsMachine::in_write_back("error(kind=flush):");
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    ups.set_status("OB DISCHRG LB");
    daemon.wait_for_log("disks not flushed");
    drop(client);
    let log = daemon.log_so_far();
    assert!(!log.contains("dump failed") && !log.contains("power may be cut"), "{log}");
}

/// Under a safe UPS, acknowledged zeroes may still be in the disk's cache. The daemon also flushes
/// the disk every two seconds, so a single round could pass by chance.
#[test]
fn the_disk_cache_is_flushed_as_soon_as_the_ups_is_unsafe() {
    let machine = UpsMachine::new("volatile():");
    std::fs::write(machine.path("disk.img"), vec![1; SIZE_BYTES as usize]).unwrap();
    let ups = machine.start_ups();
    let daemon = machine.start();
    let mut client = daemon.client("disk");
    for round in 0..6 {
        machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
        client.call(NbdCommand::WriteZeroes, 0, round * 4096, 4096).result.unwrap();
        ups.set_status("OB DISCHRG");
        machine.wait_for_power("write-back ends", |power| !power.write_back_allowed);
        wait_until("the disk is flushed", PATIENCE, || machine.on_disk(round) == vec![0; 4096]);
        ups.set_status("OL");
    }
    drop(client);
    daemon.stop();
}

#[test]
fn a_power_failure_while_the_ups_is_unsafe_loses_no_acknowledged_write() {
    let (machine, ups, daemon) = UpsMachine::in_write_back("volatile():");
    let mut client = daemon.client("disk");
    for line in lines() {
        client.write(line * 4096, &content(line)).unwrap();
    }
    ups.set_status("OL RB");
    machine.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let reason = machine.status().volumes.remove(0).effective_mode_reason.unwrap();
    assert!(reason.ends_with("acknowledged from the disk's stable storage"), "{reason}");
    for line in lines() {
        client.write((line + 1) * 4096, &content(line)).unwrap();
    }
    client.call(NbdCommand::WriteZeroes, 0, 4096, 4096).result.unwrap();
    wait_until("earlier dirty data is on stable storage", PATIENCE, || {
        lines().all(|line| machine.on_disk(line) == content(line))
    });
    drop(client);
    daemon.kill();

    ups.set_status("OL");
    let daemon = machine.start();
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
fn unsafe_supply_disk_cache_acknowledges_writes_from_the_disk_cache() {
    let mut machine = UpsMachine::new("volatile():");
    machine.volume += ",unsafe-supply=disk-cache";
    let daemon = machine.start();
    let mut client = daemon.client("disk");
    client.write(4096, &content(1)).unwrap();
    assert_eq!(machine.on_disk(1), vec![0; 4096]);
    let volume = machine.status().volumes.remove(0);
    assert_eq!(volume.unsafe_supply.as_deref(), Some("disk-cache"));
    assert!(volume.effective_mode_reason.unwrap().contains("which a power failure loses"));
    let control = BlockingClient::new(machine.path("state/control.sock")).unwrap();
    let settings = VolumeSettings::from([("unsafe-supply", "stable")]);
    let volume = control.set_volume("disk", &settings).unwrap();
    assert_eq!(volume.unsafe_supply.as_deref(), Some("stable"));
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(machine.on_disk(2), content(2));
    let settings = VolumeSettings::from([("unsafe-supply", "never")]);
    let error = control.set_volume("disk", &settings).unwrap_err().explained();
    assert!(error.contains("unknown unsafe-supply 'never': use stable or disk-cache"), "{error}");
    drop(client);
    daemon.stop();
}

/// Measures, for each UPS event, how long the built program takes to change the mode.
#[test]
#[ignore = "needs nut-server"]
fn tool_each_state_of_a_real_nut_server_changes_the_mode() {
    let mut lab = NutLab::start();
    let mut machine = UpsMachine::new("");
    machine.ups = format!("lab@127.0.0.1:{}", lab.port);
    let daemon = machine.start();
    let mut client = daemon.client("disk");
    machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
    println!("| event | new mode | ms from the event | ms from its detection | reason |");
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
        while machine.power().write_back_allowed {
            assert!(begin.elapsed() < 3 * PATIENCE, "{name} does not end write-back");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ms = begin.elapsed().as_millis();
        let power = machine.power();
        let detected = power.change_ms.map_or("timeout".to_owned(), |ms| ms.to_string());
        println!("| {name} | write-through | {ms} | {detected} | {} |", power.reason);
        machine.wait_for_power("no dirty data is at risk", |power| {
            power.dirty_bytes == 0 || power.halted
        });
        let begin = Instant::now();
        undo(&mut lab);
        machine.wait_for_power("write-back resumes", |power| power.write_back_allowed);
        println!("| recovery from {name} | write-back | {} | | |", begin.elapsed().as_millis());
    }
    assert_all(&mut client);
    drop(client);
    daemon.stop();
    for line in lines() {
        assert_eq!(machine.on_disk(line), content(line));
    }
}
