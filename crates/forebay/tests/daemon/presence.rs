//! Devices and files deleted or replaced under a running daemon, and unsafe choices of them.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::metrics::{over_control, value};
use crate::power::{UpsMachine, content};
use crate::process::{Daemon, MIB, failed_start, make_file};
use forebay_api::{BlockingClient, JournalState, JournalStatus, Status, VolumeState};
use std::fs;
use std::path::{Path, PathBuf};

/// A directory with a disk and a journal.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        make_file(place.path("disk.img"), 16 * MIB);
        make_file(place.path("journal"), 40 * MIB);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn here(&self) -> &Path {
        self.0.path()
    }

    fn volume(&self) -> String {
        let (disk, journal) = (self.path("disk.img"), self.path("journal"));
        let (disk, journal) = (disk.display(), journal.display());
        format!("disk={disk},mode=write-back,protection=journal,journal={journal}")
    }

    fn start(&self) -> Daemon {
        Daemon::start(self.here(), "auto", "64MiB", &[self.volume()])
    }

    fn try_status(&self) -> Option<Status> {
        BlockingClient::new(self.path("state/control.sock")).ok()?.status().ok()
    }

    fn status(&self) -> Status {
        self.try_status().unwrap()
    }

    fn journal(&self) -> JournalStatus {
        self.status().journals.remove(0)
    }

    fn on_disk(&self, line: usize) -> Vec<u8> {
        fs::read(self.path("disk.img")).unwrap()[line * 4096..][..4096].to_vec()
    }

    /// Returns true if the state directory has a file with this suffix.
    fn has_record(&self, suffix: &str) -> bool {
        let mut entries = fs::read_dir(self.path("state")).into_iter().flatten();
        entries.any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(suffix))
    }

    fn failed_start(&self, volume: &str) -> String {
        failed_start(self.here(), &["--volume", volume])
    }
}

fn failure(status: &JournalStatus) -> Option<String> {
    (status.state == JournalState::Failed).then(|| status.state_reason.clone().unwrap())
}

#[test]
fn a_journal_that_is_deleted_fails_at_once_and_does_not_block_the_next_start() {
    let place = Place::new();
    let daemon = place.start();
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    assert_eq!(failure(&place.journal()), None);
    fs::rename(place.path("journal"), place.path("away")).unwrap();
    wait_until("the journal fails", PATIENCE, || failure(&place.journal()).is_some());
    assert_eq!(failure(&place.journal()).as_deref(), Some("it was renamed or moved"));
    client.write(4096, &content(1)).unwrap();
    assert_eq!(place.on_disk(1), content(1), "writes go through");
    wait_until("the pool is drained", PATIENCE, || place.status().volumes[0].dirty_bytes == 0);
    drop(client);
    daemon.stop();
    assert_eq!(place.on_disk(0), content(0));

    let said = place.failed_start(&place.volume());
    assert!(said.contains("journal' does not exist"), "{said}");
    fs::rename(place.path("away"), place.path("journal")).unwrap();
    let daemon = place.start();
    let mut client = daemon.client("disk");
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(failure(&place.journal()), None, "a new journal is in use");
    assert_eq!(client.read(4096, 4096).unwrap(), content(1));
    drop(client);
    daemon.stop();
}

#[test]
fn a_failed_journal_stays_available_for_a_rescue_after_a_kill() {
    let place = Place::new();
    // The disk never completes a write, so it cannot have all data before the kill.
    let stuck = place.volume().replacen("disk=", "disk=delay(write=forever):", 1);
    let daemon = Daemon::start(place.here(), "auto", "64MiB", &[stuck]);
    daemon.client("disk").write(0, &content(0)).unwrap();
    fs::rename(place.path("journal"), place.path("away")).unwrap();
    // The daemon acknowledges writes without the journal only after recording its failure.
    wait_until("the failure is recorded", PATIENCE, || place.has_record(".failed"));
    assert!(failure(&place.journal()).is_some());
    daemon.kill();
    fs::rename(place.path("away"), place.path("journal")).unwrap();
    let said = place.failed_start(&place.volume());
    assert!(said.contains("given up as lost"), "{said}");
}

#[test]
fn the_status_reports_a_disk_replaced_by_another_file() {
    let place = Place::new();
    let daemon = place.start();
    assert_eq!(place.status().volumes[0].state, VolumeState::Serving);
    make_file(place.path("other"), 16 * MIB);
    fs::rename(place.path("disk.img"), place.path("away")).unwrap();
    fs::rename(place.path("other"), place.path("disk.img")).unwrap();
    let failing = || place.status().volumes[0].state == VolumeState::Failing;
    wait_until("the volume is failing", PATIENCE, failing);
    let reason = place.status().volumes.remove(0).state_reason.unwrap();
    assert!(reason.contains("another file or device has taken its place"), "{reason}");
    let alert = place.status().alerts.remove(0);
    assert!(alert.is_about("disk") && alert.text.contains(&reason), "{alert:?}");
    let metrics = over_control(place.here());
    assert_eq!(value(&metrics, r#"forebay_alerts{severity="error"}"#), 1.0);
    fs::rename(place.path("away"), place.path("disk.img")).unwrap();
    wait_until("the volume recovers", PATIENCE, || !failing());
    daemon.stop();
}

#[test]
fn write_back_under_a_ups_ends_when_the_vault_is_deleted() {
    let (machine, _ups, daemon) = UpsMachine::in_write_back("");
    fs::rename(machine.path("vault"), machine.path("away")).unwrap();
    machine.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let reason = machine.status().vault.unwrap().state_reason.unwrap();
    assert!(reason.contains("it was renamed or moved"), "{reason}");
    fs::rename(machine.path("away"), machine.path("vault")).unwrap();
    machine.wait_for_power("write-back resumes", |power| power.write_back_allowed);
    daemon.stop();
}

#[test]
fn a_deleted_state_directory_is_recreated_with_its_sockets_and_records() {
    let place = Place::new();
    let daemon = place.start();
    daemon.client("disk").write(0, &content(0)).unwrap();
    let relies = || place.has_record(".relied");
    assert!(relies());
    fs::remove_dir_all(place.path("state")).unwrap();
    wait_until("the control socket answers", PATIENCE, || place.try_status().is_some());
    wait_until("the reliance record is back", PATIENCE, relies);
    fs::remove_file(place.path("journal")).unwrap();
    wait_until("the journal has failed", PATIENCE, || failure(&place.journal()).is_some());
    daemon.client("disk").write(4096, &content(1)).unwrap();
    assert!(place.has_record(".failed"));
    let (code, said) = daemon.run(&["stop"]);
    assert_eq!(code, Some(0), "{said}");
    daemon.wait();
    assert_eq!(place.on_disk(1), content(1));
    // The socket of the former control server was deleted with the directory.
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(!log.contains("cannot remove"), "{log}");
}

#[test]
fn a_step_of_the_recreation_of_the_state_directory_that_failed_is_repeated() {
    let place = Place::new();
    let daemon = place.start();
    daemon.client("disk").write(0, &content(0)).unwrap();
    let mut records = fs::read_dir(place.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let record = records.find(|path| path.extension().is_some_and(|it| it == "relied")).unwrap();
    // A directory that is in the way of the record's temporary file.
    let name = record.file_name().unwrap().to_str().unwrap();
    fs::create_dir_all(place.path("next").join(format!("{name}.new"))).unwrap();
    fs::rename(place.path("state"), place.path("away")).unwrap();
    fs::rename(place.path("next"), place.path("state")).unwrap();
    daemon.wait_for_log("cannot recreate the state directory");
    fs::remove_dir(place.path("state").join(format!("{name}.new"))).unwrap();
    wait_until("the control socket answers", PATIENCE, || place.try_status().is_some());
    assert!(place.has_record(".relied"));
    daemon.wait_for_log("state directory recreated");
    daemon.stop();
}

#[test]
fn memory_is_refused_as_a_journal() {
    let place = Place::new();
    let disk = place.path("disk.img");
    for journal in ["memory:64MiB", "delay(write=1ms):memory:64MiB"] {
        let volume =
            format!("disk={},mode=write-back,protection=journal,journal={journal}", disk.display());
        let said = place.failed_start(&volume);
        assert!(
            said.contains("is memory of this process") && said.contains("journal=PATH"),
            "{said}"
        );
    }
}

#[test]
fn memory_is_refused_as_a_vault() {
    let place = Place::new();
    for vault in ["memory:256MiB", "delay(write=1ms):memory:256MiB"] {
        let said = failed_start(place.here(), &["--vault", vault]);
        assert!(said.contains("is memory of this process") && said.contains("--vault PATH"));
        assert!(!place.path(vault).exists(), "no file of that name is created");
    }
}

#[test]
fn a_world_writable_state_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::create_dir(place.path("state")).unwrap();
    fs::set_permissions(place.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = place.failed_start(&format!("disk={}", place.path("disk.img").display()));
    assert!(said.contains("chmod o-w"), "{said}");
}
