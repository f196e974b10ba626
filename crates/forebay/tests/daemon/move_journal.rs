//! Volumes that leave their journal for another one by a reload, while they are served.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file, on_one_line};
use forebay_nbd::NbdCommand;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DISK_BYTES: u64 = 32 * MIB;
const JOURNAL_BYTES: u64 = 40 * MIB;

/// The content of the block `at`, as the `version`th write of it leaves it.
fn content(at: u64, version: u64) -> Vec<u8> {
    (0..512).flat_map(|word: u64| (at << 40 | version << 12 | word).to_le_bytes()).collect()
}

struct Place {
    directory: tempfile::TempDir,
    block_bytes: u32,
    keeper: &'static str,
}

impl Place {
    fn new(block_bytes: u32, keeper: &'static str) -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap(), block_bytes, keeper };
        make_file(place.at("disk.img"), DISK_BYTES);
        for journal in ["a", "b", "c", "d"] {
            make_file(place.at(journal), JOURNAL_BYTES);
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Configures the volume with these settings. `DIR` in them is the directory.
    fn configure(&self, settings: &str) {
        let text = format!(
            "nbd = ['unix:DIR/nbd.sock']\n[[volume]]\nname = 'disk'\n\
             backing = 'blocks(size={}):DIR/disk.img'\n{settings}\n",
            self.block_bytes
        );
        let text = text.replace("DIR", self.directory.path().to_str().unwrap());
        fs::write(self.at("forebay.toml"), text).unwrap();
    }

    /// Configures the volume with this journal.
    fn name_journal(&self, journal: &str) {
        self.configure(&format!(
            "mode = 'write-back'\nprotection = 'journal'\njournal = 'DIR/{journal}'"
        ));
    }

    fn start(&self) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["serve", "--memory", "64MiB", "--workers", "2", "--keeper", self.keeper]);
        command.arg("--state").arg(self.at("state")).arg("--config").arg(self.at("forebay.toml"));
        command.stdin(Stdio::null());
        let mut daemon = Daemon::spawn(command, self.at("nbd.sock"));
        daemon.set_kept(self.keeper == "yes");
        daemon
    }

    /// Whether the server was killed before it began to move the volume.
    fn relies_on_former_without_a_move(&self) -> bool {
        let files: Vec<_> = fs::read_dir(self.at("state")).unwrap().flatten().collect();
        let is =
            |file: &fs::DirEntry, ext: &str| file.path().extension().is_some_and(|it| it == ext);
        let text = |file: &fs::DirEntry| fs::read_to_string(file.path()).unwrap_or_default();
        let former = format!("journal {}\n", self.at("a").display());
        let relies = |file: &fs::DirEntry| {
            is(file, "relied") && text(file).contains(&former) && text(file).contains("relies disk")
        };
        files.iter().any(relies) && !files.iter().any(|file| is(file, "moves"))
    }

    /// Compares the disk from outside. Blocks in `unsure` may have the next version, too.
    fn compare(&self, written: &BTreeMap<u64, u64>, unsure: &BTreeMap<u64, u64>) {
        let disk = fs::File::open(self.at("disk.img")).unwrap();
        for (&at, &version) in written {
            let mut found = vec![0; 4096];
            disk.read_exact_at(&mut found, at * 4096).unwrap();
            let is_next = || unsure.get(&at).is_some_and(|&next| found == content(at, next));
            assert!(found == content(at, version) || is_next(), "block {at}, version {version}");
        }
    }
}

fn reload(daemon: &Daemon) {
    let (code, said) = daemon.run(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
}

fn refused(daemon: &Daemon) -> String {
    let (code, said) = daemon.run(&["reload"]);
    assert_eq!(code, Some(1), "{said}");
    on_one_line(&said)
}

/// The names of the open journals.
fn journals(daemon: &Daemon) -> Vec<String> {
    let status = daemon.status();
    let name = |journal: &serde_json::Value| {
        let name = Path::new(journal["name"].as_str().unwrap()).file_name().unwrap();
        name.to_str().unwrap().to_owned()
    };
    status["journals"].as_array().map(|all| all.iter().map(name).collect()).unwrap_or_default()
}

/// What clients have written: the acknowledged version of each block, and the one in flight.
#[derive(Default)]
struct Written {
    acknowledged: Mutex<BTreeMap<u64, u64>>,
    in_flight: Mutex<BTreeMap<u64, u64>>,
    count: AtomicU64,
    has_ended: AtomicBool,
}

impl Written {
    /// Writes blocks, and reads them back, until the end or until the connection breaks, which is
    /// an error unless `may_break`.
    fn write(&self, mut connection: Client, client: u64, may_break: bool) {
        let mut round = 0_u64;
        while !self.has_ended.load(Ordering::Relaxed) {
            let at = (round * 37 % 500) * 4 + client;
            let version = self.acknowledged.lock().unwrap().get(&at).map_or(1, |it| it + 1);
            self.in_flight.lock().unwrap().insert(at, version);
            let bytes = content(at, version);
            let cookie = connection.try_send(NbdCommand::Write, 0, at * 4096, 4096, &bytes);
            match cookie.and_then(|cookie| connection.try_wait(cookie)) {
                Some(answer) => answer.result.unwrap(),
                None if may_break => return,
                None => panic!("the connection broke"),
            }
            self.acknowledged.lock().unwrap().insert(at, version);
            self.in_flight.lock().unwrap().remove(&at);
            self.count.fetch_add(1, Ordering::Relaxed);
            round += 1;
        }
    }

    fn wait_for_more(&self) {
        let before = self.count.load(Ordering::Relaxed);
        wait_until("clients write", PATIENCE, || self.count.load(Ordering::Relaxed) > before + 50);
    }
}

fn moves_under_load(block_bytes: u32) {
    let place = Place::new(block_bytes, "no");
    place.name_journal("a");
    let daemon = place.start();
    let written = Written::default();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (connection, written) = (daemon.client("disk"), &written);
            scope.spawn(move || written.write(connection, client, false));
        }
        for journal in ["b", "a", "c"] {
            written.wait_for_more();
            place.name_journal(journal);
            reload(&daemon);
            assert_eq!(journals(&daemon), [journal], "the former one is closed");
        }
        written.wait_for_more();
        // Without a journal, and back to one.
        place.configure("mode = 'write-through'");
        reload(&daemon);
        assert_eq!(journals(&daemon), Vec::<String>::new());
        written.wait_for_more();
        place.name_journal("b");
        reload(&daemon);
        written.wait_for_more();
        // By a command.
        let journal = format!("journal={}", place.at("d").display());
        let (code, said) = daemon.run(&["volume", "set", "disk", &journal]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(journals(&daemon), ["d"]);
        written.wait_for_more();
        written.has_ended.store(true, Ordering::Relaxed);
    });
    // What the disk lacks is in the last journal alone.
    place.name_journal("d");
    daemon.kill();
    for journal in ["a", "b", "c"] {
        fs::remove_file(place.at(journal)).unwrap();
    }
    place.start().stop();
    place.compare(&written.acknowledged.lock().unwrap(), &BTreeMap::new());
}

#[test]
fn a_volume_moves_under_load_on_a_disk_with_blocks_of_512_bytes() {
    moves_under_load(512);
}

#[test]
fn a_volume_moves_under_load_on_a_disk_with_blocks_of_4096_bytes() {
    moves_under_load(4096);
}

/// Kills the server, or with `keeper` no also what would keep the pool, this long after a move has
/// begun. Then starts it, with the former journal if the new one is refused.
fn kill_after(delay: Duration, block_bytes: u32, keeper: &'static str) {
    let place = Place::new(block_bytes, keeper);
    place.name_journal("a");
    let daemon = place.start();
    let written = Written::default();
    std::thread::scope(|scope| {
        for client in 0..2 {
            let (connection, written) = (daemon.client("disk"), &written);
            scope.spawn(move || written.write(connection, client, true));
        }
        written.wait_for_more();
        place.name_journal("b");
        let (daemon, place) = (&daemon, &place);
        scope.spawn(move || daemon.run(&["reload"]));
        std::thread::sleep(delay);
        match place.keeper {
            "yes" => daemon.kill_server(),
            _ => daemon.signal(rustix::process::Signal::KILL),
        }
    });
    let daemon = match keeper {
        "yes" => {
            wait_until("another server serves", PATIENCE, || {
                let (code, _) = daemon.run(&["status"]);
                code == Some(0) && crate::process::is_served(&daemon.socket)
            });
            daemon
        }
        _ => {
            drop(daemon);
            if place.relies_on_former_without_a_move() {
                // As the refusal of the start says.
                place.name_journal("a");
                let daemon = place.start();
                place.name_journal("b");
                reload(&daemon);
                daemon
            } else {
                place.start()
            }
        }
    };
    assert_eq!(journals(&daemon).last().map(String::as_str), Some("b"));
    let mut client = daemon.client("disk");
    let acknowledged = written.acknowledged.lock().unwrap().clone();
    let in_flight = written.in_flight.lock().unwrap().clone();
    for (&at, &version) in &acknowledged {
        let found = client.read(at * 4096, 4096).unwrap();
        let is_next = || in_flight.get(&at).is_some_and(|&next| found == content(at, next));
        assert!(found == content(at, version) || is_next(), "block {at} after {delay:?}");
    }
    drop(client);
    daemon.stop();
    place.compare(&acknowledged, &in_flight);
}

#[test]
fn a_kill_of_the_server_at_any_moment_of_a_move_loses_nothing() {
    for (round, ms) in [0, 10, 20, 35, 50, 70, 100, 150, 250].into_iter().enumerate() {
        kill_after(Duration::from_millis(ms), [512, 4096][round % 2], "yes");
    }
}

#[test]
fn a_power_failure_at_any_moment_of_a_move_loses_nothing() {
    for (round, ms) in [0, 10, 20, 35, 50, 70, 100, 150, 250].into_iter().enumerate() {
        kill_after(Duration::from_millis(ms), [4096, 512][round % 2], "no");
    }
}

#[test]
fn what_is_no_journal_is_refused_and_nothing_changes() {
    let place = Place::new(512, "no");
    place.name_journal("a");
    let daemon = place.start();
    daemon.client("disk").write(0, &content(0, 1)).unwrap();
    fs::write(place.at("small"), vec![0; 4096]).unwrap();
    fs::write(place.at("data"), vec![7; JOURNAL_BYTES as usize]).unwrap();
    let used = fs::File::open(place.at("c")).unwrap();
    used.lock().unwrap();
    for (journal, said) in [
        ("none", "does not exist"),
        ("small", "but it needs at least"),
        ("data", "does not hold a journal"),
        ("c", "in use"),
        ("disk.img", "in use"),
    ] {
        place.name_journal(journal);
        let text = refused(&daemon);
        assert!(text.contains(said), "{journal}: {text}");
        assert_eq!(journals(&daemon), ["a"]);
    }
    daemon.client("disk").write(4096, &content(1, 1)).unwrap();
    assert!(daemon.status()["volumes"][0]["dirty_bytes"].as_u64().unwrap() > 0);
    assert_eq!(fs::read(place.at("data")).unwrap(), vec![7; JOURNAL_BYTES as usize]);
    // The next reload repeats the move.
    // A child of another test may have the file open, too, between fork and exec.
    used.unlock().unwrap();
    place.name_journal("c");
    reload(&daemon);
    assert_eq!(journals(&daemon), ["c"]);
    daemon.stop();
}

#[test]
fn a_volume_moves_to_and_from_a_mirrored_journal() {
    let place = Place::new(4096, "no");
    place.name_journal("a");
    let daemon = place.start();
    daemon.client("disk").write(0, &content(0, 1)).unwrap();
    let settings = "mode = 'write-back'\nprotection = 'journal'\njournal = 'DIR/b'\n\
                    journal-mirror = 'DIR/c'";
    place.configure(settings);
    reload(&daemon);
    assert_eq!(journals(&daemon), ["b"]);
    daemon.client("disk").write(4096, &content(1, 1)).unwrap();
    daemon.kill();
    let daemon = place.start();
    assert_eq!(daemon.client("disk").read(4096, 4096).unwrap(), content(1, 1));
    place.name_journal("a");
    reload(&daemon);
    assert_eq!(journals(&daemon), ["a"]);
    daemon.client("disk").write(8192, &content(2, 1)).unwrap();
    daemon.stop();
    place.compare(&(0..3).map(|at| (at, 1)).collect(), &BTreeMap::new());
}
