//! Starts after a kill with the journal missing, replaced by another one, or wiped.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, failed_start, is_served, make_file, run_forebay};
use std::path::{Path, PathBuf};

const LINE: usize = 4096;

/// Two disks that delay writes, and two journals.
struct Fixture {
    directory: tempfile::TempDir,
}

fn content(line: u64) -> Vec<u8> {
    vec![line as u8 + 1; LINE]
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        let sizes = [("disk.img", 16), ("other.img", 16), ("journal", 40), ("fresh", 40)];
        for (name, mib) in sizes {
            make_file(fixture.at(name), mib * MIB);
        }
        fixture
    }

    fn here(&self) -> &Path {
        self.directory.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.here().join(name)
    }

    /// A volume on disk `name`, with a journal.
    fn with(&self, name: &str, journal: &str) -> String {
        let (bare, journal) = (self.bare(name), self.at(journal));
        format!("{bare},mode=write-back,protection=journal,journal={}", journal.display())
    }

    /// A volume on disk `name`, without a journal.
    fn bare(&self, name: &str) -> String {
        format!("{name}=delay(write=5s):{}", self.at(&format!("{name}.img")).display())
    }

    fn start(&self, volumes: &[String], more: &[&str]) -> Daemon {
        Daemon::start_with(self.here(), "epoll", "64MiB", volumes, more)
    }

    /// Runs a daemon that acknowledges writes, and kills it while only the journal has them.
    fn write_and_kill(&self, volumes: &[String], names: &[&str]) {
        let daemon = self.start(volumes, &[]);
        for name in names {
            let mut client = daemon.client(name);
            (0..8).for_each(|line| client.write(line * LINE as u64, &content(line)).unwrap());
        }
        daemon.kill();
        for name in names {
            let disk = std::fs::read(self.at(&format!("{name}.img"))).unwrap();
            assert!(disk[..8 * LINE].iter().all(|&byte| byte == 0), "{name} has data already");
        }
    }

    /// Asserts that a start fails without changing a device or record. Returns its output.
    fn failed_start(&self, volumes: &[String]) -> String {
        let devices = ["disk.img", "other.img", "journal", "fresh"];
        let before = devices.map(|name| std::fs::read(self.at(name)).unwrap());
        let records = self.records();
        let arguments: Vec<&str> = volumes.iter().flat_map(|volume| ["--volume", volume]).collect();
        let said = failed_start(self.here(), &arguments);
        for (name, bytes) in devices.iter().zip(before) {
            assert!(std::fs::read(self.at(name)).unwrap() == bytes, "{name} has changed: {said}");
        }
        assert_eq!(self.records(), records);
        said
    }

    /// The names and contents of all journal records in the state directory, without their spares.
    fn records(&self) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(self.at("state")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let names = names.filter(|name| name.starts_with("journal-") && !name.ends_with(".new"));
        let text = |name: &String| std::fs::read_to_string(self.at("state").join(name)).unwrap();
        let mut records: Vec<_> = names.map(|name| (name.clone(), text(&name))).collect();
        records.sort();
        records
    }

    /// Asserts that an error names the volume, the journal and the remedies.
    fn assert_missing_journal(&self, said: &str, volume: &str) {
        let journal = self.at("journal").display().to_string();
        let word = format!("--accept-lost-journal {volume}");
        for part in [&format!("volume '{volume}'"), &journal, "rescue apply", &word] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

fn assert_all(daemon: &Daemon, name: &str) {
    let mut client = daemon.client(name);
    for line in 0..8 {
        assert_eq!(client.read(line * LINE as u64, LINE as u64).unwrap(), content(line), "{line}");
    }
}

#[test]
fn a_volume_is_refused_while_its_newest_data_is_in_a_missing_journal() {
    let fixture = Fixture::new();
    fixture.write_and_kill(&[fixture.with("disk", "journal")], &["disk"]);
    let [(name, text)] = &fixture.records()[..] else { panic!("{:?}", fixture.records()) };
    let journal = fixture.at("journal").display().to_string();
    assert!(name.ends_with(".relied"), "{name}");
    assert_eq!(*text, format!("journal {journal}\nrelies disk\nlines 1\n"));

    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.bare("disk")]), "disk");
    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.with("disk", "fresh")]), "disk");
    let whole = std::fs::read(&journal).unwrap();
    // The superblocks were wiped, then the whole journal.
    for from in [128 << 10, whole.len()] {
        let emptied = [&vec![0; from][..], &whole[from..]].concat();
        std::fs::write(&journal, emptied).unwrap();
        fixture.assert_missing_journal(
            &fixture.failed_start(&[fixture.with("disk", "journal")]),
            "disk",
        );
        // Nor is the wiped device formatted for another volume.
        fixture.assert_missing_journal(
            &fixture.failed_start(&[fixture.with("other", "journal")]),
            "disk",
        );
    }
    std::fs::write(&journal, whole).unwrap();

    // If the file is gone, whatever the configured path, no new file is suggested.
    std::fs::rename(&journal, fixture.at("away")).unwrap();
    for configured in ["journal", "none"] {
        let volume = fixture.with("disk", configured);
        let said = failed_start(fixture.here(), &["--volume", &volume]);
        for part in [&journal, "restore that journal", "--accept-lost-journal disk"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("truncate"), "{said}");
    }
    std::fs::rename(fixture.at("away"), &journal).unwrap();

    let daemon = fixture.start(&[fixture.with("disk", "journal")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
    // After a clean shutdown, the volume needs no journal.
    assert_eq!(fixture.records(), []);
    let daemon = fixture.start(&[fixture.bare("disk")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
}

#[test]
fn accepting_a_lost_journal_voids_its_data_for_good() {
    let fixture = Fixture::new();
    fixture.write_and_kill(&[fixture.with("disk", "journal")], &["disk"]);
    let fresh = [fixture.with("disk", "fresh")];
    let daemon = fixture.start(&fresh, &["--accept-lost-journal", "disk"]);
    let mut client = daemon.client("disk");
    assert_eq!(client.read(0, LINE as u64).unwrap(), [0; LINE]);
    client.write(0, &content(99)).unwrap();
    drop(client);
    daemon.kill();
    // The old journal is now stale, and the volume relies on the fresh one.
    let said = fixture.failed_start(&[fixture.with("disk", "journal")]);
    assert!(said.contains("--accept-lost-journal disk") && said.contains("fresh"), "{said}");
    let daemon = fixture.start(&fresh, &[]);
    assert_eq!(daemon.client("disk").read(0, LINE as u64).unwrap(), content(99));
    daemon.stop();
    let said = fixture.failed_start(&[fixture.with("disk", "journal")]);
    assert!(said.contains("older than the disks") && said.contains("zeroes"), "{said}");
    let (journal, to) = (fixture.at("journal"), fixture.at("disk.img"));
    let (journal, to) = (journal.to_str().unwrap(), to.to_str().unwrap());
    let (code, said) =
        run_forebay(fixture.here(), &["rescue", "apply", journal, "--volume", "disk", "--to", to]);
    assert!(code == Some(1) && said.contains("older than the disk"), "{said}");
}

#[test]
fn accepting_a_lost_journal_affects_only_the_named_volume() {
    let fixture = Fixture::new();
    let both = [fixture.with("disk", "journal"), fixture.with("other", "journal")];
    fixture.write_and_kill(&both, &["disk", "other"]);
    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.bare("other")]), "other");
    let word = ["--accept-lost-journal", "disk"];
    fixture.start(&[fixture.bare("disk")], &word).stop();
    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.bare("other")]), "other");
    // The journal's data of "disk" is void, and of "other" still current.
    let daemon = fixture.start(&[fixture.bare("disk"), fixture.with("other", "journal")], &[]);
    assert_eq!(daemon.client("disk").read(0, LINE as u64).unwrap(), [0; LINE]);
    assert_all(&daemon, "other");
    daemon.stop();
}

#[test]
fn one_device_of_a_mirrored_journal_is_enough_to_start() {
    let fixture = Fixture::new();
    let mirror = format!(",journal-mirror={}", fixture.at("fresh").display());
    fixture.write_and_kill(&[fixture.with("disk", "journal") + &mirror], &["disk"]);
    let said = fixture.failed_start(&[fixture.bare("disk")]);
    fixture.assert_missing_journal(&said, "disk");
    assert!(said.contains(fixture.at("fresh").to_str().unwrap()), "{said}");
    let daemon = fixture.start(&[fixture.with("disk", "fresh")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
    fixture.start(&[fixture.bare("disk")], &[]).stop();
}

#[test]
fn rescue_apply_and_discard_end_the_reliance_on_a_journal() {
    let fixture = Fixture::new();
    let (journal, to) = (fixture.at("journal"), fixture.at("disk.img"));
    let (journal, to) = (journal.to_str().unwrap(), to.to_str().unwrap());
    fixture.write_and_kill(&[fixture.with("disk", "journal")], &["disk"]);
    let apply = ["rescue", "apply", journal, "--volume", "disk", "--to", to, "--force"];
    let (code, said) = run_forebay(fixture.here(), &apply);
    assert_eq!(code, Some(0), "{said}");
    let daemon = fixture.start(&[fixture.bare("disk")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();

    fixture.write_and_kill(&[fixture.with("other", "journal")], &["other"]);
    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.bare("other")]), "other");
    let (code, _) =
        run_forebay(fixture.here(), &["rescue", "discard", journal, "--volume", "other"]);
    assert_eq!(code, Some(1));
    fixture.assert_missing_journal(&fixture.failed_start(&[fixture.bare("other")]), "other");
    let discard = ["rescue", "discard", journal, "--volume", "other", "--yes"];
    assert_eq!(run_forebay(fixture.here(), &discard).0, Some(0));
    fixture.start(&[fixture.bare("other")], &[]).stop();
}

#[test]
fn a_removed_or_write_through_volume_relies_on_no_journal() {
    let fixture = Fixture::new();
    let daemon = fixture.start(&[fixture.with("disk", "journal")], &[]);
    daemon.client("disk").write(0, &content(1)).unwrap();
    assert_eq!(fixture.records().len(), 1);
    assert_eq!(run_forebay(fixture.here(), &["volume", "remove", "disk"]).0, Some(0));
    assert_eq!(fixture.records(), []);
    let through = fixture.with("disk", "journal").replace("mode=write-back", "mode=write-through");
    assert_eq!(run_forebay(fixture.here(), &["volume", "add", &through]).0, Some(0));
    daemon.client("disk").write(0, &content(2)).unwrap();
    assert_eq!(fixture.records(), []);
    assert_eq!(
        run_forebay(fixture.here(), &["volume", "set", "disk", "mode=write-back"]).0,
        Some(0)
    );
    assert_eq!(fixture.records().len(), 1);
    daemon.stop();
    assert_eq!(fixture.records(), []);
}

/// An adopted pool is newer than any journal. A server that adopts it can therefore start without
/// the journal, whose records are void from then on.
#[test]
fn an_adopted_pool_continues_without_its_journal_and_voids_it() {
    let fixture = Fixture::new();
    let key = |key: &str, value: &str| format!("{key} = \"{value}\"\n");
    let section = |more: &str| {
        let (name, backing) = (key("name", "disk"), fixture.bare("disk").replace("disk=", ""));
        let text = format!("[[volume]]\n{name}{}{more}", key("backing", &backing));
        std::fs::write(fixture.at("forebay.toml"), text).unwrap();
    };
    let journal = fixture.at("journal").display().to_string();
    let mode = key("mode", "write-back");
    section(&format!("{mode}{}{}", key("protection", "journal"), key("journal", &journal)));
    let daemon = Daemon::start_kept_with(fixture.here(), &fixture.at("forebay.toml"));
    let mut client = daemon.client("disk");
    (0..8).for_each(|line| client.write(line * LINE as u64, &content(line)).unwrap());
    drop(client);
    section(&format!("{mode}{}accept-loss = true\n", key("protection", "none")));
    let before = daemon.server();
    daemon.kill_server();
    wait_until("the next server accepts clients", PATIENCE, || {
        daemon.server() != before && is_served(&daemon.socket)
    });
    assert_all(&daemon, "disk");
    daemon.wait_for_log("recorded journal missing, not needed");
    daemon.stop();
    let said = fixture.failed_start(&[fixture.with("disk", "journal")]);
    assert!(said.contains("older than the disks"), "{said}");
}
