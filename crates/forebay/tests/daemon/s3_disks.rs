//! Volumes whose disk is on S3, over a small server of the test: kills, takeovers, outages.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, failed_start, make_file};
use crate::s3_server::S3Server;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;
const LIMITS: &str = "&size=8MiB&object=1MiB&buffer=2MiB&keep=0s";

/// A store, and directories that stand for hosts.
struct Place {
    store: S3Server,
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { store: S3Server::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn host(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn backing(&self, options: &str) -> String {
        self.store.volume(self.directory.path(), "vm", options)
    }

    fn volume(&self, settings: &str) -> String {
        format!("v={},{settings}", self.backing(LIMITS))
    }

    fn start(&self, host: &str, settings: &str) -> Daemon {
        Daemon::start(&self.host(host), "auto", "64MiB", &[self.volume(settings)])
    }
}

/// What a block has after its `version`th write.
fn block(number: u64, version: u32) -> Vec<u8> {
    let mut bytes = vec![version as u8; BLOCK as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version of a block; 0 if it was never written.
fn version(number: u64, bytes: &[u8]) -> u32 {
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    let expected = if version == 0 { vec![0; BLOCK as usize] } else { block(number, version) };
    assert!(bytes == expected, "block {number} is torn or of another place");
    version
}

fn versions(daemon: &Daemon) -> Vec<u32> {
    let mut client = daemon.client("v");
    let mut versions = Vec::new();
    for first in (0..BLOCKS).step_by(64) {
        let bytes = client.read(first * BLOCK, 64 * BLOCK).unwrap();
        for (index, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
            versions.push(version(first + index as u64, bytes));
        }
    }
    versions
}

/// Writes at random from host to host, with a kill between. What was flushed is there, whatever
/// else is; nothing is torn.
fn kills_lose_nothing(settings: &str, needs_flush: bool, rounds: u64) {
    let place = Place::new();
    // A flush that does not wait for the store is noticed.
    place.store.set(|faults| faults.delay = Duration::from_millis(10));
    let mut random = Random::new(5);
    let (mut written, mut durable) = (vec![0u32; BLOCKS as usize], vec![0u32; BLOCKS as usize]);
    for round in 0..rounds {
        let host = if needs_flush { format!("host{round}") } else { "host".to_owned() };
        let daemon = place.start(&host, settings);
        let found = versions(&daemon);
        for number in 0..BLOCKS as usize {
            let range = durable[number]..=written[number];
            assert!(range.contains(&found[number]), "round {round}, block {number}: {range:?}");
        }
        (written, durable) = (found.clone(), found);
        let mut client = daemon.client("v");
        for step in 0..1500 {
            let number = random.below(BLOCKS) as usize;
            written[number] += 1;
            let data = block(number as u64, written[number]);
            client.write(number as u64 * BLOCK, &data).unwrap();
            if !needs_flush {
                durable[number] = written[number];
            } else if step % 250 == 200 {
                client.flush().unwrap();
                durable.clone_from(&written);
            }
        }
        if needs_flush && round % 2 == 0 {
            client.flush().unwrap();
            durable.clone_from(&written);
        }
        daemon.kill();
    }
    // What was written several times over does not stay.
    let daemon = place.start("last", settings);
    daemon.stop();
    let bytes: u64 = place.store.objects().iter().map(|(_, bytes)| bytes).sum();
    assert!(bytes < 64 * MIB, "{bytes} bytes are kept of a volume of 8 MiB");
}

#[test]
fn what_was_flushed_is_on_the_next_host_after_a_kill() {
    kills_lose_nothing("mode=write-through", true, 8);
}

#[test]
fn what_a_journal_has_is_there_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    make_file(&journal, 64 * MIB);
    let journal = journal.display();
    let settings = format!("mode=write-back,protection=journal,journal={journal}");
    let place = Place::new();
    let mut random = Random::new(6);
    let mut written = vec![0u32; BLOCKS as usize];
    for round in 0..4 {
        let daemon = place.start("host", &settings);
        assert!(versions(&daemon) == written, "round {round}");
        let mut client = daemon.client("v");
        for _ in 0..1500 {
            let number = random.below(BLOCKS) as usize;
            written[number] += 1;
            client.write(number as u64 * BLOCK, &block(number as u64, written[number])).unwrap();
        }
        daemon.kill();
    }
    let daemon = place.start("host", &settings);
    assert!(versions(&daemon) == written);
    daemon.stop();
    // Without the journal, everything is on the disk.
    let daemon = place.start("other", "mode=write-through");
    assert!(versions(&daemon) == written);
    daemon.stop();
}

fn missing(daemon: &Daemon) -> (String, bool) {
    let status = daemon.status();
    let missing = &status["missing"][0];
    let reason = missing["reason"].as_str().unwrap_or_default().to_owned();
    (reason, missing["taken_over"].as_bool().unwrap_or_default())
}

#[test]
fn a_second_server_is_refused_and_named_the_first() {
    let place = Place::new();
    let first = place.start("one", "mode=write-through");
    let volume = place.volume("mode=write-through");
    let said = failed_start(&place.host("two"), &["--volume", &volume]);
    assert!(said.contains("is in use by process") && said.contains("forebay takeover"), "{said}");
    first.client("v").write(0, &[1; 4096]).unwrap();
    first.stop();
    let second = place.start("two", "mode=write-through");
    assert_eq!(second.client("v").read(0, 4096).unwrap(), [1; 4096]);
    second.stop();
}

/// Takes the volume over once it is reported who has it.
fn take_over(daemon: &Daemon) {
    wait_until("the owner is named", PATIENCE, || {
        missing(daemon).0.contains("is in use by process")
    });
    let (code, text) = daemon.run(&["takeover", "v"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn an_idle_former_owner_takes_the_volume_back_when_it_is_told_to() {
    let place = Place::new();
    let settings = "mode=write-through,nofail=yes";
    let first = place.start("one", settings);
    first.wait_for_volume("v");
    let second = place.start("two", settings);
    take_over(&second);
    let mut client = second.client("v");
    client.write(0, &block(0, 7)).unwrap();
    client.flush().unwrap();
    // It has asked nothing of the store since, and so it believes to have the volume.
    let (code, text) = first.run(&["takeover", "v"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(version(0, &first.client("v").read(0, BLOCK).unwrap()), 7);
    first.stop();
    second.stop();
}

#[test]
fn a_former_owner_that_wakes_up_changes_nothing() {
    let place = Place::new();
    let first = place.start("one", "mode=write-through");
    let mut client = first.client("v");
    client.write(0, &block(0, 1)).unwrap();
    client.flush().unwrap();
    // Accepted, and not flushed; and one that is on its way to the store.
    client.write(BLOCK, &block(1, 1)).unwrap();
    place.store.set(|faults| faults.holds = Some("/0000"));
    let flushing = thread::spawn(move || (client.flush(), client));
    thread::sleep(Duration::from_millis(300));
    first.freeze();
    place.store.set(|faults| faults.holds = None);
    let second = place.start("two", "mode=write-through,nofail=yes");
    take_over(&second);
    let mut theirs = second.client("v");
    assert_eq!(version(0, &theirs.read(0, BLOCK).unwrap()), 1);
    for number in 0..64 {
        theirs.write(number * BLOCK, &block(number, 7)).unwrap();
    }
    theirs.flush().unwrap();
    first.thaw();
    // Its flush was on its way before: it may have arrived, but nothing after it may. Its clients
    // see an error, or the end of the connection.
    let more = thread::spawn(move || {
        let (flushed, mut client) = flushing.join().unwrap();
        flushed.unwrap();
        for number in 0..64 {
            client.write(number * BLOCK, &block(number, 3)).unwrap();
        }
        client.flush().unwrap();
    });
    assert!(more.join().is_err(), "a former owner acknowledges what is lost");
    wait_until("the former owner has ended the volume", PATIENCE, || missing(&first).1);
    for number in 0..64 {
        assert_eq!(version(number, &theirs.read(number * BLOCK, BLOCK).unwrap()), 7);
    }
    first.stop();
    second.stop();
    let third = place.start("three", "mode=write-through");
    assert!(versions(&third)[..64].iter().all(|version| *version == 7));
    third.stop();
}

#[test]
fn a_server_that_was_asleep_notices_without_writing() {
    let place = Place::new();
    let first = place.start("one", "mode=write-through");
    first.client("v").write_fua(0, &block(0, 1)).unwrap();
    first.freeze();
    let second = place.start("two", "mode=write-through,nofail=yes");
    take_over(&second);
    // Longer than what counts as a pause.
    thread::sleep(Duration::from_secs(12));
    first.thaw();
    wait_until("the former owner has ended the volume", PATIENCE, || missing(&first).1);
    first.stop();
    second.stop();
}

#[test]
fn an_outage_of_the_store_is_a_pause_and_shown() {
    let place = Place::new();
    let daemon = place.start("host", "mode=write-through");
    let mut client = daemon.client("v");
    for answer in [(500, "InternalError"), (503, "SlowDown"), (403, "ExpiredToken")] {
        place.store.set(|faults| faults.answers = Some(answer));
        let mut waiting = daemon.client("v");
        let flush = thread::spawn(move || {
            waiting.write(0, &[1; 4096]).unwrap();
            waiting.flush().unwrap();
        });
        wait_until("the volume is stalled", PATIENCE, || {
            daemon.status()["volumes"][0]["state"] == "stalled"
        });
        assert!(!flush.is_finished(), "nothing was stored");
        place.store.set(|faults| faults.answers = None);
        flush.join().unwrap();
    }
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    daemon.wait_for_log("SlowDown");
    daemon.stop();
}

#[test]
fn credentials_can_be_replaced_while_a_volume_is_served() {
    let place = Place::new();
    let daemon = place.start("host", "mode=write-through");
    place.store.set(|faults| faults.key = "SECOND".into());
    let mut client = daemon.client("v");
    let flush = thread::spawn(move || {
        client.write(0, &[1; 4096]).unwrap();
        client.flush().unwrap();
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!flush.is_finished(), "the key is refused");
    S3Server::credentials(place.directory.path(), "SECOND");
    flush.join().unwrap();
    daemon.stop();
}

#[test]
fn trims_cost_no_requests() {
    let place = Place::new();
    let volume = format!("v={},mode=write-through", place.backing("&size=2TiB"));
    let daemon = Daemon::start(&place.host("host"), "auto", "64MiB", &[volume]);
    let mut client = daemon.client("v");
    client.write(1 << 36, &[1; 4096]).unwrap();
    client.flush().unwrap();
    let (begin, before) = (Instant::now(), place.store.counts());
    // As mkfs does, in large pieces.
    let (mut offset, end, piece) = (0, 128u64 << 30, 2u64 << 30);
    while offset < end {
        client.call(forebay_nbd::NbdCommand::Trim, 0, offset, piece).result.unwrap();
        offset += piece;
    }
    client.flush().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(place.store.counts().puts, before.puts + 1);
    assert_eq!(client.read(1 << 36, 4096).unwrap(), [0; 4096]);
    daemon.stop();
}

#[test]
fn a_served_volume_that_is_idle_makes_no_request() {
    let place = Place::new();
    let daemon = place.start("host", "mode=write-through");
    let mut client = daemon.client("v");
    for number in 0..200 {
        client.write(number * BLOCK, &block(number, 1)).unwrap();
    }
    client.flush().unwrap();
    // The owner is checked once more after the last read.
    place.store.wait_until_idle(Duration::from_secs(13));
    let before = place.store.counts();
    thread::sleep(Duration::from_secs(12));
    assert_eq!(place.store.counts(), before);
    daemon.stop();
}

#[test]
fn a_name_is_checked_without_a_request() {
    let place = Place::new();
    let host = place.host("host");
    let volume = format!("v={}", place.backing("&size=1GiB"));
    let checked = run_check(&host, &volume);
    assert_eq!(checked.0, Some(0), "{}", checked.1);
    assert_eq!(place.store.counts().requests(), 0);
    let (code, text) = run_check(&host, &volume.replace("size=", "sise="));
    assert!(code != Some(0) && text.contains("the options are size"), "{text}");
}

fn run_check(host: &Path, volume: &str) -> (Option<i32>, String) {
    crate::process::run_forebay(host, &["serve", "--check", "--volume", volume])
}
