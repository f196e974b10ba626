//! Starts of the built program without the journal that it was killed with, with another one, and
//! with one that was emptied.

use crate::process::Daemon;
use crate::vault::ran;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const LINE: usize = 4096;

/// A disk that takes nothing for a while, and two journals.
struct House {
    directory: tempfile::TempDir,
}

fn content(line: u64) -> Vec<u8> {
    vec![line as u8 + 1; LINE]
}

impl House {
    fn new() -> Self {
        let house = Self { directory: tempfile::tempdir().unwrap() };
        let sizes = [("disk.img", 16), ("other.img", 16), ("journal", 40), ("fresh", 40)];
        for (name, mib) in sizes {
            let file = std::fs::File::create(house.at(name)).unwrap();
            file.set_len(mib * MIB).unwrap();
        }
        house
    }

    fn here(&self) -> &Path {
        self.directory.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.here().join(name)
    }

    /// A volume on one of the disks, with a journal.
    fn with(&self, name: &str, journal: &str) -> String {
        let (bare, journal) = (self.bare(name), self.at(journal));
        format!("{bare},mode=write-back,protection=journal,journal={}", journal.display())
    }

    /// The same without one.
    fn bare(&self, name: &str) -> String {
        format!("{name}=delay(write=5s):{}", self.at(&format!("{name}.img")).display())
    }

    fn start(&self, volumes: &[String], more: &[&str]) -> Daemon {
        Daemon::start_with(self.here(), "epoll", "64MiB", volumes, more)
    }

    /// Acknowledges what the journal alone has, and is killed.
    fn killed(&self, volumes: &[String], names: &[&str]) {
        let daemon = self.start(volumes, &[]);
        for name in names {
            let mut client = daemon.client(name);
            (0..8).for_each(|line| client.write(line * LINE as u64, &content(line)).unwrap());
        }
        daemon.kill();
        for name in names {
            let disk = std::fs::read(self.at(&format!("{name}.img"))).unwrap();
            assert!(disk[..8 * LINE].iter().all(|&byte| byte == 0), "the disk has it already");
        }
    }

    /// A start that is expected to be refused, and to change nothing; and what it says.
    fn refused(&self, volumes: &[String]) -> String {
        let devices = ["disk.img", "other.img", "journal", "fresh"];
        let before = devices.map(|name| std::fs::read(self.at(name)).unwrap());
        let records = self.records();
        let socket = format!("unix:{}", self.at("refused.sock").display());
        let mut arguments = vec!["serve", "--io", "epoll", "--memory", "64MiB", "--keeper", "no"];
        arguments.extend(["--nbd", &socket]);
        volumes.iter().for_each(|volume| arguments.extend(["--volume", volume]));
        let (code, said) = ran(self.here(), &arguments);
        assert_eq!(code, Some(1), "{said}");
        for (name, bytes) in devices.iter().zip(before) {
            assert!(std::fs::read(self.at(name)).unwrap() == bytes, "{name} has changed: {said}");
        }
        assert_eq!(self.records(), records);
        said
    }

    /// What is on record in the state directory of journals, with the content of each file.
    fn records(&self) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(self.at("state")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let names = names.filter(|name| name.starts_with("journal-"));
        let text = |name: &String| std::fs::read_to_string(self.at("state").join(name)).unwrap();
        let mut records: Vec<_> = names.map(|name| (name.clone(), text(&name))).collect();
        records.sort();
        records
    }

    fn assert_names_all(&self, said: &str, volume: &str) {
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
fn a_volume_is_not_served_older_than_what_its_journal_holds() {
    let house = House::new();
    house.killed(&[house.with("disk", "journal")], &["disk"]);
    let [(name, text)] = &house.records()[..] else { panic!("{:?}", house.records()) };
    let journal = house.at("journal").display().to_string();
    assert!(name.ends_with(".relied"), "{name}");
    assert_eq!(*text, format!("journal {journal}\nrelies disk\nlines 1\n"));

    house.assert_names_all(&house.refused(&[house.bare("disk")]), "disk");
    house.assert_names_all(&house.refused(&[house.with("disk", "fresh")]), "disk");
    let whole = std::fs::read(&journal).unwrap();
    // Its head was zeroed, and all of it.
    for from in [128 << 10, whole.len()] {
        let emptied = [&vec![0; from][..], &whole[from..]].concat();
        std::fs::write(&journal, emptied).unwrap();
        house.assert_names_all(&house.refused(&[house.with("disk", "journal")]), "disk");
        // Nor is it made anew for others.
        house.assert_names_all(&house.refused(&[house.with("other", "journal")]), "disk");
    }
    std::fs::write(&journal, whole).unwrap();

    let daemon = house.start(&[house.with("disk", "journal")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
    // Stopped in order, it needs no journal.
    assert_eq!(house.records(), []);
    let daemon = house.start(&[house.bare("disk")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
}

#[test]
fn what_a_lost_journal_held_is_given_up_on_the_operators_word_for_good() {
    let house = House::new();
    house.killed(&[house.with("disk", "journal")], &["disk"]);
    let fresh = [house.with("disk", "fresh")];
    let daemon = house.start(&fresh, &["--accept-lost-journal", "disk"]);
    let mut client = daemon.client("disk");
    assert_eq!(client.read(0, LINE as u64).unwrap(), [0; LINE]);
    client.write(0, &content(99)).unwrap();
    drop(client);
    daemon.kill();
    // The word was for once; the other journal is relied upon now, and this one is older.
    let said = house.refused(&[house.with("disk", "journal")]);
    assert!(said.contains("--accept-lost-journal disk") && said.contains("fresh"), "{said}");
    let daemon = house.start(&fresh, &[]);
    assert_eq!(daemon.client("disk").read(0, LINE as u64).unwrap(), content(99));
    daemon.stop();
    let said = house.refused(&[house.with("disk", "journal")]);
    assert!(said.contains("older than the disks") && said.contains("zeroes"), "{said}");
    let (journal, to) = (house.at("journal"), house.at("disk.img"));
    let (journal, to) = (journal.to_str().unwrap(), to.to_str().unwrap());
    let (code, said) =
        ran(house.here(), &["rescue", "apply", journal, "--volume", "disk", "--to", to]);
    assert!(code == Some(1) && said.contains("older than the disk"), "{said}");
}

#[test]
fn each_volume_of_a_shared_journal_relies_on_it_by_itself() {
    let house = House::new();
    let both = [house.with("disk", "journal"), house.with("other", "journal")];
    house.killed(&both, &["disk", "other"]);
    house.assert_names_all(&house.refused(&[house.bare("other")]), "other");
    let word = ["--accept-lost-journal", "disk"];
    house.start(&[house.bare("disk")], &word).stop();
    house.assert_names_all(&house.refused(&[house.bare("other")]), "other");
    // What it holds of the one is void, and of the other it is the newest.
    let daemon = house.start(&[house.bare("disk"), house.with("other", "journal")], &[]);
    assert_eq!(daemon.client("disk").read(0, LINE as u64).unwrap(), [0; LINE]);
    assert_all(&daemon, "other");
    daemon.stop();
}

#[test]
fn one_half_of_a_mirrored_journal_is_enough_to_go_on() {
    let house = House::new();
    let mirror = format!(",journal-mirror={}", house.at("fresh").display());
    house.killed(&[house.with("disk", "journal") + &mirror], &["disk"]);
    let said = house.refused(&[house.bare("disk")]);
    house.assert_names_all(&said, "disk");
    assert!(said.contains(house.at("fresh").to_str().unwrap()), "{said}");
    let daemon = house.start(&[house.with("disk", "fresh")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();
    house.start(&[house.bare("disk")], &[]).stop();
}

#[test]
fn a_rescue_ends_the_reliance_on_a_journal() {
    let house = House::new();
    let (journal, to) = (house.at("journal"), house.at("disk.img"));
    let (journal, to) = (journal.to_str().unwrap(), to.to_str().unwrap());
    house.killed(&[house.with("disk", "journal")], &["disk"]);
    let apply = ["rescue", "apply", journal, "--volume", "disk", "--to", to, "--force"];
    let (code, said) = ran(house.here(), &apply);
    assert_eq!(code, Some(0), "{said}");
    let daemon = house.start(&[house.bare("disk")], &[]);
    assert_all(&daemon, "disk");
    daemon.stop();

    house.killed(&[house.with("other", "journal")], &["other"]);
    house.assert_names_all(&house.refused(&[house.bare("other")]), "other");
    let (code, _) = ran(house.here(), &["rescue", "discard", journal, "--volume", "other"]);
    assert_eq!(code, Some(1));
    house.assert_names_all(&house.refused(&[house.bare("other")]), "other");
    let discard = ["rescue", "discard", journal, "--volume", "other", "--yes"];
    assert_eq!(ran(house.here(), &discard).0, Some(0));
    house.start(&[house.bare("other")], &[]).stop();
}

#[test]
fn a_volume_that_is_removed_or_writes_through_relies_on_no_journal() {
    let house = House::new();
    let daemon = house.start(&[house.with("disk", "journal")], &[]);
    daemon.client("disk").write(0, &content(1)).unwrap();
    assert_eq!(house.records().len(), 1);
    assert_eq!(ran(house.here(), &["volume", "remove", "disk"]).0, Some(0));
    assert_eq!(house.records(), []);
    let through = house.with("disk", "journal").replace("mode=write-back", "mode=write-through");
    assert_eq!(ran(house.here(), &["volume", "add", &through]).0, Some(0));
    daemon.client("disk").write(0, &content(2)).unwrap();
    assert_eq!(house.records(), []);
    assert_eq!(ran(house.here(), &["volume", "set", "disk", "mode=write-back"]).0, Some(0));
    assert_eq!(house.records().len(), 1);
    daemon.stop();
    assert_eq!(house.records(), []);
}

/// What the pool of the server before has is newer than any journal: it goes on without, and the
/// journal is never believed again.
#[test]
fn a_pool_goes_on_without_its_journal_and_voids_it() {
    let house = House::new();
    let key = |key: &str, value: &str| format!("{key} = \"{value}\"\n");
    let section = |more: &str| {
        let (name, backing) = (key("name", "disk"), house.bare("disk").replace("disk=", ""));
        let text = format!("[[volume]]\n{name}{}{more}", key("backing", &backing));
        std::fs::write(house.at("forebay.toml"), text).unwrap();
    };
    let journal = house.at("journal").display().to_string();
    let mode = key("mode", "write-back");
    section(&format!("{mode}{}{}", key("protection", "journal"), key("journal", &journal)));
    let log = std::fs::File::create(house.at("log")).unwrap();
    let daemon = Daemon::start_kept_with(house.here(), log, &house.at("forebay.toml"));
    let mut client = daemon.client("disk");
    (0..8).for_each(|line| client.write(line * LINE as u64, &content(line)).unwrap());
    drop(client);
    section(&format!("{mode}{}accept-loss = true\n", key("protection", "none")));
    let before = daemon.server();
    daemon.kill_server();
    crate::common::wait_until("the next one answers", crate::common::client::PATIENCE, || {
        daemon.server() != before && crate::process::is_answered(&daemon.socket)
    });
    assert_all(&daemon, "disk");
    daemon.stop();
    let said = std::fs::read_to_string(house.at("log")).unwrap();
    assert!(said.contains("recorded journal missing, not needed"), "{said}");
    let said = house.refused(&[house.with("disk", "journal")]);
    assert!(said.contains("older than the disks"), "{said}");
}
