//! `forebay rescue` on the journal of a killed daemon.

use crate::common::random::Random;
use crate::crash::{LINES, SIZE_BYTES, content};
use crate::process::{Daemon, MIB, failed_start, make_file, output_of};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// The version of all lines of a new disk.
const INITIAL: u64 = 1000;

/// A directory with disks and a journal that they share.
struct Fixture {
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

impl Fixture {
    fn new(disks: &[&str]) -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        for disk in disks {
            let bytes: Vec<u8> = (0..LINES).flat_map(|line| content(line, INITIAL)).collect();
            std::fs::write(fixture.path(disk), bytes).unwrap();
        }
        make_file(fixture.path("journal"), 40 * MIB);
        fixture
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

    /// Starts a daemon that serves each disk as a volume of the same name.
    fn serve(&self, disks: &[&str]) -> Daemon {
        let volumes: Vec<String> = disks.iter().map(|disk| self.volume(disk, disk)).collect();
        Daemon::start(self.directory.path(), "epoll", "64MiB", &volumes)
    }

    fn rescue(&self, arguments: &[&str]) -> Ran {
        self.rescue_with(Some("state"), arguments)
    }

    /// Runs `forebay rescue` with this state directory.
    fn rescue_with(&self, state: Option<&str>, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("rescue").args(arguments).current_dir(self.directory.path());
        command
            .env_remove("FOREBAY_STATE")
            .envs(state.map(|name| ("FOREBAY_STATE", self.path(name))));
        let output = output_of(&mut command);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn disk(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

/// Writes lines and kills the daemon; returns the expected final content of the disk.
fn write_and_kill(fixture: &Fixture, disk: &str, daemon: Daemon) -> Vec<u8> {
    let mut expected = fixture.disk(disk);
    let mut client = daemon.client(disk);
    let mut random = Random::new(5);
    for version in 1..300 {
        let line = random.below(LINES);
        let bytes = content(line, version);
        client.write(line * 4096, &bytes).unwrap();
        expected[line as usize * 4096..][..4096].copy_from_slice(&bytes);
    }
    // Part of a line.
    client.write(8192 + 512, &[7; 512]).unwrap();
    expected[8192 + 512..8192 + 1024].fill(7);
    daemon.kill();
    expected
}

#[test]
fn apply_writes_a_journals_data_to_the_disk_once() {
    let fixture = Fixture::new(&["a", "b"]);
    let daemon = fixture.serve(&["a", "b"]);
    let busy = fixture.rescue(&["list", "journal"]);
    assert_eq!(busy.code, Some(2), "{}", busy.err);
    assert!(busy.err.contains("is in use"), "{}", busy.err);
    let mut other = daemon.client("b");
    other.write(0, &content(0, 9)).unwrap();
    drop(other);
    let expected = write_and_kill(&fixture, "a", daemon);

    let list = fixture.rescue(&["list", "journal", "--json"]).json();
    assert_eq!((&list["kind"], &list["state"]), (&"journal".into(), &"whole".into()), "{list}");
    assert_eq!(list["volumes"][0]["name"], "a");
    assert!(list["volumes"][0]["held_bytes"].as_u64().unwrap() >= 290 * 4096, "{list}");
    assert_eq!(list["volumes"][1]["held_bytes"], 4096, "{list}");
    let shown = fixture.rescue(&["list", "journal"]);
    assert!(shown.out.contains("VOLUME") && shown.out.contains("not closed"), "{}", shown.out);
    assert_eq!(fixture.rescue(&["verify", "journal"]).code, Some(0));

    let to = fixture.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let journal = fixture.disk("journal");
    let before = fixture.disk("a");
    let dry = fixture.rescue(&[&apply[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, Some(0), "{}", dry.err);
    assert!(dry.out.contains("would be written"), "{}", dry.out);
    assert!(
        fixture.disk("a") == before && fixture.disk("journal") == journal,
        "nothing is written"
    );
    let ran = fixture.rescue(&apply);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(fixture.disk("a") == expected);
    let list = fixture.rescue(&["list", "journal", "--json"]).json();
    assert_eq!(list["volumes"][0]["released"], "applied", "{list}");
    assert_eq!(
        (&list["volumes"][0]["records"], &list["volumes"][1]["released"]),
        (&0.into(), &"no".into())
    );

    // The disk changes after the rescue, and a daemon must not replay the journal over it.
    let mut bytes = fixture.disk("a");
    bytes[..8192].fill(3);
    std::fs::write(fixture.path("a"), &bytes).unwrap();
    let daemon = fixture.serve(&["a", "b"]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == bytes);
    assert!(daemon.client("b").read(0, 4096).unwrap() == content(0, 9));
    daemon.stop();
    assert!(fixture.disk("a") == bytes);
    assert!(fixture.disk("b")[..4096] == content(0, 9));
}

#[test]
fn discarded_data_is_never_replayed() {
    let fixture = Fixture::new(&["a"]);
    let daemon = fixture.serve(&["a"]);
    let before = fixture.disk("a");
    write_and_kill(&fixture, "a", daemon);
    let asked = fixture.rescue(&["discard", "journal", "--volume", "a"]);
    assert_eq!(asked.code, Some(1));
    assert!(asked.err.contains("--yes"), "{}", asked.err);
    let ran = fixture.rescue(&["discard", "journal", "--volume", "a", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    std::fs::write(fixture.path("a"), &before).unwrap();
    let daemon = fixture.serve(&["a"]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == before);
    daemon.stop();
    let unknown = fixture.rescue(&["discard", "journal", "--volume", "z", "--yes"]);
    assert!(unknown.err.contains("has no volume 'z'"), "{}", unknown.err);
}

#[test]
fn apply_needs_an_override_for_a_failed_or_damaged_journal() {
    let fixture = Fixture::new(&["a"]);
    let daemon = fixture.serve(&["a"]);
    let expected = write_and_kill(&fixture, "a", daemon);
    let id =
        fixture.rescue(&["list", "journal", "--json"]).json()["id"].as_str().unwrap().to_owned();
    let mark = fixture.path(&format!("state/journal-{id}.failed"));
    std::fs::write(&mark, "failed at 1: input/output error\nvolume a\nvolumes 1\n").unwrap();
    let to = fixture.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let ran = fixture.rescue(&apply);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("was given up") && ran.err.contains("--force"), "{}", ran.err);
    // The failure mark names another volume.
    std::fs::write(&mark, "failed at 1: input/output error\nvolume z\nvolumes 1\n").unwrap();
    assert_eq!(fixture.rescue(&[&apply[..], &["--dry-run"]].concat()).code, Some(0));

    // Damage the payload of the first batch.
    let whole = fixture.disk("journal");
    let mut damaged = whole.clone();
    damaged[(128 << 10) + 200] ^= 1;
    std::fs::write(fixture.path("journal"), &damaged).unwrap();
    let verify = fixture.rescue(&["verify", "journal"]);
    assert_eq!(verify.code, Some(1), "{}", verify.err);
    assert!(verify.out.contains("DAMAGED") && verify.out.contains("batch 0"), "{}", verify.out);
    let ran = fixture.rescue(&apply);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("--accept-loss"), "{}", ran.err);
    std::fs::write(fixture.path("journal"), &whole).unwrap();
    let ran = fixture.rescue(&apply);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(fixture.disk("a") == expected);

    let mut wiped = whole;
    wiped[..128 << 10].fill(9);
    std::fs::write(fixture.path("journal"), &wiped).unwrap();
    let verify = fixture.rescue(&["verify", "journal"]);
    assert_eq!(verify.code, Some(2));
    assert!(verify.err.contains("holds no journal"), "{}", verify.err);
}

#[test]
fn apply_without_the_record_of_a_reliance_needs_the_operators_word() {
    let fixture = Fixture::new(&["a"]);
    let daemon = fixture.serve(&["a"]);
    let expected = write_and_kill(&fixture, "a", daemon);
    let before = fixture.disk("a");
    let to = fixture.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let cases: [&[&str]; 3] = [&[], &["--force"], &["--dry-run"]];
    for state in [None, Some("another")] {
        for more in cases {
            let ran = fixture.rescue_with(state, &[&apply[..], more].concat());
            assert_eq!(ran.code, Some(1), "{}", ran.out);
            for part in ["may have newer data", "--state", "--accept-older"] {
                assert!(ran.err.contains(part), "{}", ran.err);
            }
        }
        let list = fixture.rescue_with(state, &["list", "journal"]);
        assert!(list.out.contains("volume 'a'") && list.out.contains("newer data"), "{}", list.out);
    }
    assert!(fixture.disk("a") == before, "nothing is written");
    assert!(!fixture.rescue(&["list", "journal"]).out.contains("newer data"));
    let ran = fixture.rescue_with(None, &[&apply[..], &["--accept-older"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(fixture.disk("a") == expected);
}

#[test]
fn apply_needs_an_override_for_a_disk_of_another_size() {
    let fixture = Fixture::new(&["a"]);
    let daemon = fixture.serve(&["a"]);
    let expected = write_and_kill(&fixture, "a", daemon);
    make_file(fixture.path("other"), SIZE_BYTES / 2);
    let to = fixture.path("other").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to, "--json"];
    let ran = fixture.rescue(&apply);
    assert!(ran.err.contains("smaller, ") && ran.err.contains("--force"), "{}", ran.err);
    let forced = [&apply[..], &["--force"]].concat();
    let ran = fixture.rescue(&forced);
    assert!(ran.err.contains("beyond the end"), "{}", ran.err);
    let ran = fixture.rescue(&[&forced[..], &["--accept-loss"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said = ran.json();
    let [written, lost] = ["written_bytes", "lost_bytes"].map(|key| said[key].as_u64().unwrap());
    assert!(written > 0 && lost > 0, "{said}");
    // The written lines have the volume's content.
    let other = fixture.disk("other");
    let differing = other
        .chunks(4096)
        .zip(expected.chunks(4096))
        .filter(|(here, there)| here != there && here.iter().any(|&byte| byte != 0));
    assert!(differing.count() <= 1, "only the partly written line may differ");
}

#[test]
fn a_disk_modified_since_the_kill_is_refused_until_the_operator_accepts_it() {
    let fixture = Fixture::new(&["a"]);
    let daemon = fixture.serve(&["a"]);
    let original = fixture.disk("a");
    let mut client = daemon.client("a");
    for line in 0..40 {
        client.write(line * 4096, &content(line, 1)).unwrap();
    }
    drop(client);
    daemon.kill();
    let left = fixture.disk("a");
    let mut expected = original;
    for line in 0..40 {
        expected[line as usize * 4096..][..4096].copy_from_slice(&content(line, 1));
    }
    // The disk is replaced by a backup.
    let backup: Vec<u8> = (0..LINES).flat_map(|line| content(line, 77)).collect();
    std::fs::write(fixture.path("a"), &backup).unwrap();
    let error = failed_start(fixture.directory.path(), &["--volume", &fixture.volume("a", "a")]);
    for part in ["samples differ", "of volume 'a'", "rescue apply", "--accept-changed-disk a"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(fixture.disk("a") == backup, "the start does not write to it");
    let to = fixture.path("a").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &to];
    let ran = fixture.rescue(&apply);
    assert!(ran.err.contains("samples differ") && ran.err.contains("--force"), "{}", ran.err);

    // The original disk is recognized by its content under another path.
    std::fs::write(fixture.path("moved"), &left).unwrap();
    let moved = fixture.path("moved").display().to_string();
    let apply = ["apply", "journal", "--volume", "a", "--to", &moved];
    assert_eq!(fixture.rescue(&[&apply[..], &["--dry-run"]].concat()).code, Some(0));
    let journal = fixture.disk("journal");
    let daemon =
        Daemon::start(fixture.directory.path(), "epoll", "64MiB", &[fixture.volume("a", "moved")]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == expected);
    daemon.stop();
    assert!(fixture.disk("moved") == expected);

    // The operator accepts the backup.
    std::fs::write(fixture.path("journal"), &journal).unwrap();
    let accept = ["--accept-changed-disk", "a"];
    let volumes = [fixture.volume("a", "a")];
    let daemon = Daemon::start_with(fixture.directory.path(), "epoll", "64MiB", &volumes, &accept);
    let mut mixed = backup;
    mixed[..40 * 4096].copy_from_slice(&expected[..40 * 4096]);
    assert!(daemon.client("a").read(0, SIZE_BYTES).unwrap() == mixed);
    daemon.stop();
}
