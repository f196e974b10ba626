//! `forebay rescue` on what a killed daemon left behind.

use crate::common::random::Random;
use crate::process::{Daemon, output_of};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 16 * MIB;
const LINES: u64 = SIZE_BYTES / 4096;

/// A directory with disks, and a journal that all of them share.
struct Place {
    directory: tempfile::TempDir,
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{} {}", self.out, self.err))
    }
}

fn content(line: u64, version: u64) -> Vec<u8> {
    Random::new(line << 32 | version).bytes(4096)
}

impl Place {
    fn new(disks: &[&str]) -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap() };
        for disk in disks {
            let bytes: Vec<u8> = (0..LINES).flat_map(|line| content(line, 0)).collect();
            std::fs::write(place.path(disk), bytes).unwrap();
        }
        std::fs::File::create(place.path("journal")).unwrap().set_len(40 * MIB).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn volume(&self, name: &str, disk: &str) -> String {
        let (disk, journal) = (self.path(disk), self.path("journal"));
        format!(
            "{name}={},mode=write-back,protection=journal,journal={}",
            disk.display(),
            journal.display()
        )
    }

    /// A daemon that serves each of these disks as a volume of the same name.
    fn serve(&self, disks: &[&str]) -> Daemon {
        let volumes: Vec<String> = disks.iter().map(|disk| self.volume(disk, disk)).collect();
        Daemon::start(self.directory.path(), "epoll", "64MiB", &volumes)
    }

    fn rescue(&self, arguments: &[&str]) -> Ran {
        run(self.directory.path(), arguments)
    }

    fn disk(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

fn run(directory: &Path, arguments: &[&str]) -> Ran {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .arg("rescue")
            .args(arguments)
            .env("FOREBAY_STATE", directory.join("state"))
            .current_dir(directory),
    );
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Writes lines and kills the daemon; returns what the disk must hold in the end.
fn write_and_kill(place: &Place, disk: &str, daemon: Daemon) -> Vec<u8> {
    let mut expected = place.disk(disk);
    let mut client = daemon.client(disk);
    let mut random = Random::new(5);
    for version in 1..300 {
        let line = random.below(LINES);
        let bytes = content(line, version);
        client.write(line * 4096, &bytes).unwrap();
        expected[line as usize * 4096..][..4096].copy_from_slice(&bytes);
    }
    // A piece of a line, and zeroes.
    client.write(8192 + 512, &[7; 512]).unwrap();
    expected[8192 + 512..8192 + 1024].fill(7);
    daemon.kill();
    expected
}

#[test]
fn what_a_journal_holds_is_brought_to_its_disk_and_marked_as_done() {
    let place = Place::new(&["a", "b"]);
    let daemon = place.serve(&["a", "b"]);
    let busy = place.rescue(&["list", "journal"]);
    assert_eq!(busy.code, Some(2), "{}", busy.err);
    assert!(busy.err.contains("is in use"), "{}", busy.err);
    let mut other = daemon.client("b");
    other.write(0, &content(0, 9)).unwrap();
    drop(other);
    let expected = write_and_kill(&place, "a", daemon);

    let list = place.rescue(&["list", "journal", "--json"]).json();
    assert_eq!((&list["kind"], &list["state"]), (&"journal".into(), &"whole".into()), "{list}");
    assert_eq!(list["volumes"][0]["name"], "a");
    assert!(list["volumes"][0]["held_bytes"].as_u64().unwrap() >= 290 * 4096, "{list}");
    assert_eq!(list["volumes"][1]["held_bytes"], 4096, "{list}");
    let shown = place.rescue(&["list", "journal"]);
    assert!(shown.out.contains("VOLUME") && shown.out.contains("not closed"), "{}", shown.out);
    assert_eq!(place.rescue(&["verify", "journal"]).code, Some(0));

    let to = place.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let journal = place.disk("journal");
    let before = place.disk("a");
    let dry = place.rescue(&[&apply[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, Some(0), "{}", dry.err);
    assert!(dry.out.contains("would be written"), "{}", dry.out);
    assert!(place.disk("a") == before && place.disk("journal") == journal, "nothing is written");
    let ran = place.rescue(&apply);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(place.disk("a") == expected);
    let list = place.rescue(&["list", "journal", "--json"]).json();
    assert_eq!(list["volumes"][0]["released"], "applied", "{list}");
    assert_eq!(
        (&list["volumes"][0]["records"], &list["volumes"][1]["released"]),
        (&0.into(), &"no".into())
    );

    // Somebody goes on with the disk, and the daemon brings back nothing over that.
    let mut bytes = place.disk("a");
    bytes[..8192].fill(3);
    std::fs::write(place.path("a"), &bytes).unwrap();
    let daemon = place.serve(&["a", "b"]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == bytes);
    assert!(daemon.client("b").read(0, 4096).unwrap() == content(0, 9));
    daemon.stop();
    assert!(place.disk("a") == bytes);
    assert!(place.disk("b")[..4096] == content(0, 9));
}

#[test]
fn what_is_given_up_is_not_brought_back() {
    let place = Place::new(&["a"]);
    let daemon = place.serve(&["a"]);
    let before = place.disk("a");
    write_and_kill(&place, "a", daemon);
    let asked = place.rescue(&["discard", "journal", "--volume", "a"]);
    assert_eq!(asked.code, Some(1));
    assert!(asked.err.contains("--yes"), "{}", asked.err);
    let ran = place.rescue(&["discard", "journal", "--volume", "a", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    std::fs::write(place.path("a"), &before).unwrap();
    let daemon = place.serve(&["a"]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == before);
    daemon.stop();
    let unknown = place.rescue(&["discard", "journal", "--volume", "z", "--yes"]);
    assert!(unknown.err.contains("has no volume 'z'"), "{}", unknown.err);
}

#[test]
fn a_journal_that_was_given_up_or_is_damaged_is_applied_only_on_demand() {
    let place = Place::new(&["a"]);
    let daemon = place.serve(&["a"]);
    let expected = write_and_kill(&place, "a", daemon);
    let id = place.rescue(&["list", "journal", "--json"]).json()["id"].as_str().unwrap().to_owned();
    let mark = place.path(&format!("state/journal-{id}.failed"));
    std::fs::write(&mark, "failed at 1: input/output error\nvolume a\nvolumes 1\n").unwrap();
    let to = place.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let ran = place.rescue(&apply);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("was given up") && ran.err.contains("--force"), "{}", ran.err);
    // The failure was another volume's.
    std::fs::write(&mark, "failed at 1: input/output error\nvolume z\nvolumes 1\n").unwrap();
    assert_eq!(place.rescue(&[&apply[..], &["--dry-run"]].concat()).code, Some(0));

    // A byte of the payload of the first batch.
    let whole = place.disk("journal");
    let mut damaged = whole.clone();
    damaged[(128 << 10) + 200] ^= 1;
    std::fs::write(place.path("journal"), &damaged).unwrap();
    let verify = place.rescue(&["verify", "journal"]);
    assert_eq!(verify.code, Some(1), "{}", verify.err);
    assert!(verify.out.contains("DAMAGED") && verify.out.contains("batch 0"), "{}", verify.out);
    let ran = place.rescue(&apply);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("--accept-loss"), "{}", ran.err);
    std::fs::write(place.path("journal"), &whole).unwrap();
    let ran = place.rescue(&apply);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(place.disk("a") == expected);

    let mut wiped = whole;
    wiped[..128 << 10].fill(9);
    std::fs::write(place.path("journal"), &wiped).unwrap();
    let verify = place.rescue(&["verify", "journal"]);
    assert_eq!(verify.code, Some(2));
    assert!(verify.err.contains("holds no journal"), "{}", verify.err);
}

#[test]
fn a_disk_of_another_size_is_written_only_on_demand() {
    let place = Place::new(&["a"]);
    let daemon = place.serve(&["a"]);
    let expected = write_and_kill(&place, "a", daemon);
    std::fs::File::create(place.path("other")).unwrap().set_len(SIZE_BYTES / 2).unwrap();
    let to = place.path("other").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to, "--json"];
    let ran = place.rescue(&apply);
    assert!(ran.err.contains("another size") && ran.err.contains("--force"), "{}", ran.err);
    let forced = [&apply[..], &["--force"]].concat();
    let ran = place.rescue(&forced);
    assert!(ran.err.contains("beyond the end"), "{}", ran.err);
    let ran = place.rescue(&[&forced[..], &["--accept-loss"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said = ran.json();
    let [written, lost] = ["written_bytes", "lost_bytes"].map(|key| said[key].as_u64().unwrap());
    assert!(written > 0 && lost > 0, "{said}");
    // Where it was written it has what the volume had.
    let other = place.disk("other");
    let differing = other
        .chunks(4096)
        .zip(expected.chunks(4096))
        .filter(|(here, there)| here != there && here.iter().any(|&byte| byte != 0));
    assert!(differing.count() <= 1, "but for the line of which a piece was written");
}

/// A start that is expected to fail, and what it says.
fn refused(place: &Place, volume: &str, more: &[&str]) -> String {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--io", "epoll", "--memory", "64MiB", "--volume", volume])
            .args(more)
            .arg("--state")
            .arg(place.path("state"))
            .arg("--nbd")
            .arg(format!("unix:{}", place.path("refused.sock").display())),
    );
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_disk_that_was_changed_behind_the_journals_back_is_refused_until_somebody_decides() {
    let place = Place::new(&["a"]);
    let daemon = place.serve(&["a"]);
    let original = place.disk("a");
    let mut client = daemon.client("a");
    for line in 0..40 {
        client.write(line * 4096, &content(line, 1)).unwrap();
    }
    drop(client);
    daemon.kill();
    let left = place.disk("a");
    let mut expected = original;
    for line in 0..40 {
        expected[line as usize * 4096..][..4096].copy_from_slice(&content(line, 1));
    }
    // An old backup of the disk lies in its place.
    let backup: Vec<u8> = (0..LINES).flat_map(|line| content(line, 77)).collect();
    std::fs::write(place.path("a"), &backup).unwrap();
    let error = refused(&place, &place.volume("a", "a"), &[]);
    for part in ["samples differ", "of volume 'a'", "rescue apply", "--accept-changed-disk a"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(place.disk("a") == backup, "nothing is written to it");
    let to = place.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let ran = place.rescue(&apply);
    assert!(ran.err.contains("samples differ") && ran.err.contains("--force"), "{}", ran.err);

    // The disk as it was is known under another path as well, by its content.
    std::fs::write(place.path("moved"), &left).unwrap();
    let moved = place.path("moved").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &moved];
    assert_eq!(place.rescue(&[&apply[..], &["--dry-run"]].concat()).code, Some(0));
    let journal = place.disk("journal");
    let daemon =
        Daemon::start(place.directory.path(), "epoll", "64MiB", &[place.volume("a", "moved")]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == expected);
    daemon.stop();
    assert!(place.disk("moved") == expected);

    // Or the operator says that the backup is what he wants to go on with.
    std::fs::write(place.path("journal"), &journal).unwrap();
    let word = ["--accept-changed-disk", "a"];
    let volumes = [place.volume("a", "a")];
    let daemon = Daemon::start_with(place.directory.path(), "epoll", "64MiB", &volumes, &word);
    let mut mixed = backup;
    mixed[..40 * 4096].copy_from_slice(&expected[..40 * 4096]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == mixed);
    daemon.stop();
}
