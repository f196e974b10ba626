//! Files that the daemon depends on and that are taken away while it runs.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::power::{Feed, House, content};
use crate::process::Daemon;
use crate::vault::ran;
use forebay_api::{BlockingClient, JournalState, JournalStatus, Status, VolumeState};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// A directory with a disk and a journal.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.make("disk.img", 16 * MIB);
        place.make("journal", 40 * MIB);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn here(&self) -> &Path {
        self.0.path()
    }

    fn make(&self, name: &str, bytes: u64) {
        File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
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

    /// Whether there is a record with this ending in the state directory.
    fn has_record(&self, ending: &str) -> bool {
        let mut entries = fs::read_dir(self.path("state")).into_iter().flatten();
        entries.any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(ending))
    }

    /// What a start says that is expected to fail.
    fn refused(&self, volume: &str) -> String {
        let socket = format!("unix:{}", self.path("refused.sock").display());
        let arguments = ["serve", "--memory", "64MiB", "--keeper", "no", "--nbd", &socket];
        let (code, said) = ran(self.here(), &[&arguments[..], &["--volume", volume]].concat());
        assert_eq!(code, Some(1), "{said}");
        said
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
    wait_until("it is noticed", PATIENCE, || failure(&place.journal()).is_some());
    assert_eq!(failure(&place.journal()).as_deref(), Some("it was deleted"));
    client.write(4096, &content(1)).unwrap();
    assert_eq!(place.on_disk(1), content(1), "writes go through");
    wait_until("the pool is drained", PATIENCE, || place.status().volumes[0].dirty_bytes == 0);
    drop(client);
    daemon.stop();
    assert_eq!(place.on_disk(0), content(0));

    let said = place.refused(&place.volume());
    assert!(said.contains("journal' does not exist"), "{said}");
    fs::rename(place.path("away"), place.path("journal")).unwrap();
    let daemon = place.start();
    let mut client = daemon.client("disk");
    client.write(2 * 4096, &content(2)).unwrap();
    assert_eq!(failure(&place.journal()), None, "it is a new journal");
    assert_eq!(client.read(4096, 4096).unwrap(), content(1));
    drop(client);
    daemon.stop();
}

#[test]
fn a_failed_journal_is_kept_for_a_rescue_where_the_daemon_was_killed() {
    let place = Place::new();
    // The disk takes nothing, or it might have everything before the daemon is killed.
    let stuck = place.volume().replacen("disk=", "disk=delay(write=forever):", 1);
    let daemon = Daemon::start(place.here(), "auto", "64MiB", &[stuck]);
    daemon.client("disk").write(0, &content(0)).unwrap();
    fs::rename(place.path("journal"), place.path("away")).unwrap();
    // Writes are acknowledged without the journal only after its failure has been recorded.
    wait_until("the failure is recorded", PATIENCE, || place.has_record(".failed"));
    assert!(failure(&place.journal()).is_some());
    daemon.kill();
    fs::rename(place.path("away"), place.path("journal")).unwrap();
    let said = place.refused(&place.volume());
    assert!(said.contains("failed earlier"), "{said}");
}

#[test]
fn a_disk_that_is_renamed_over_is_named_in_the_status() {
    let place = Place::new();
    let daemon = place.start();
    assert_eq!(place.status().volumes[0].state, VolumeState::Serving);
    place.make("other", 16 * MIB);
    fs::rename(place.path("disk.img"), place.path("away")).unwrap();
    fs::rename(place.path("other"), place.path("disk.img")).unwrap();
    let failing = || place.status().volumes[0].state == VolumeState::Failing;
    wait_until("it is noticed", PATIENCE, failing);
    let reason = place.status().volumes.remove(0).state_reason.unwrap();
    assert!(reason.contains("another file or device has taken its place"), "{reason}");
    fs::rename(place.path("away"), place.path("disk.img")).unwrap();
    wait_until("it is back", PATIENCE, || !failing());
    daemon.stop();
}

#[test]
fn write_back_under_a_ups_ends_when_the_vault_is_deleted() {
    let house = House::new("", |path| format!("lab=file:{}", path.join("supply").display()));
    let _feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    fs::rename(house.path("vault"), house.path("away")).unwrap();
    house.wait_for_power("write-back ends", |power| !power.write_back_allowed);
    let reason = house.status().vault.unwrap().state_reason.unwrap();
    assert!(reason.contains("it was deleted"), "{reason}");
    fs::rename(house.path("away"), house.path("vault")).unwrap();
    house.wait_for_power("write-back is back", |power| power.write_back_allowed);
    daemon.stop();
}

#[test]
fn a_state_directory_that_is_deleted_is_made_anew_with_its_sockets_and_records() {
    let place = Place::new();
    let daemon = place.start();
    daemon.client("disk").write(0, &content(0)).unwrap();
    let relies = || place.has_record(".relied");
    assert!(relies());
    fs::remove_dir_all(place.path("state")).unwrap();
    wait_until("the daemon can be asked", PATIENCE, || place.try_status().is_some());
    wait_until("the record is there", PATIENCE, relies);
    fs::remove_file(place.path("journal")).unwrap();
    wait_until("the journal has failed", PATIENCE, || failure(&place.journal()).is_some());
    daemon.client("disk").write(4096, &content(1)).unwrap();
    assert!(place.has_record(".failed"));
    let (code, said) = ran(place.here(), &["stop"]);
    assert_eq!(code, Some(0), "{said}");
    daemon.wait();
    assert_eq!(place.on_disk(1), content(1));
}

#[test]
fn memory_is_refused_as_a_journal() {
    let place = Place::new();
    let disk = place.path("disk.img");
    for journal in ["memory:64MiB", "delay(write=1ms):memory:64MiB"] {
        let volume =
            format!("disk={},mode=write-back,protection=journal,journal={journal}", disk.display());
        let said = place.refused(&volume);
        assert!(
            said.contains("is memory of this process") && said.contains("journal=PATH"),
            "{said}"
        );
    }
}

#[test]
fn memory_is_refused_as_a_vault() {
    let place = Place::new();
    let socket = format!("unix:{}", place.path("refused.sock").display());
    let fixed = ["serve", "--memory", "64MiB", "--keeper", "no", "--nbd", &socket, "--vault"];
    for vault in ["memory:256MiB", "delay(write=1ms):memory:256MiB"] {
        let (code, said) = ran(place.here(), &[&fixed[..], &[vault]].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("is memory of this process") && said.contains("--vault PATH"));
        let made = [place.path(vault), vault.into()];
        assert!(made.iter().all(|path| !path.exists()), "no file is called so");
    }
}

#[test]
fn a_state_directory_that_every_user_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::create_dir(place.path("state")).unwrap();
    fs::set_permissions(place.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = place.refused(&format!("disk={}", place.path("disk.img").display()));
    assert!(said.contains("chmod o-w"), "{said}");
}
