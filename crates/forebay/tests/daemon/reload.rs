//! Reloads of the configuration file.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file, on_one_line};
use forebay_nbd::NbdCommand;
use rustix::process::Signal;
use std::path::Path;

/// A volume in a configuration file.
fn volume(name: &str, backing: &str) -> String {
    format!(
        "[[volume]]\nname = '{name}'\nbacking = '{backing}'\nmode = 'write-back'\n\
         protection = 'none'\naccept-loss = true\n"
    )
}

/// Writes the configuration file.
fn configure(directory: &Path, volumes: &[String]) {
    std::fs::write(directory.join("forebay.toml"), volumes.concat()).unwrap();
}

/// Creates a disk, and returns its path.
fn disk(directory: &Path, name: &str) -> String {
    make_file(directory.join(name), MIB);
    directory.join(name).display().to_string()
}

/// Starts a daemon with the configuration file.
fn start(directory: &Path) -> Daemon {
    let file = directory.join("forebay.toml").display().to_string();
    Daemon::start_with(directory, "epoll", "64MiB", &[], &["--config", &file])
}

#[test]
fn a_stop_begins_while_a_reload_waits_for_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let hanging = format!("delay(write=forever):{}", disk(there, "disk.img"));
    let other = volume("other", &disk(there, "other.img"));
    configure(there, &[volume("disk", &hanging), other.clone()]);
    let daemon = start(there);
    daemon.client("disk").write(0, &[7; 4096]).unwrap();
    configure(there, &[other]);
    daemon.signal(Signal::HUP);
    // A reload that a stop precedes is refused.
    wait_until("the reload removes the volume", PATIENCE, || {
        let (_, said) = daemon.run(&["volume", "set", "disk", "mode=write-back"]);
        said.contains("is being changed by another command")
    });
    daemon.terminate();
    daemon.wait_for_log_times("flushing dirty data before shutdown", 1);
    let log = daemon.log_so_far();
    assert!(!log.contains("configuration change failed"), "the reload has ended: {log}");
}

#[test]
fn the_removal_of_most_volumes_has_to_be_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = ["a", "b", "c"].map(|name| volume(name, &disk(there, name)));
    configure(there, &volumes);
    let daemon = start(there);
    let served = || daemon.status()["volumes"].as_array().unwrap().len();
    configure(there, &[]);
    daemon.signal(Signal::HUP);
    daemon.wait_for_log_times("it would remove 3 of 3 volumes, a, b, c", 1);
    daemon.wait_for_log("run `forebay reload --remove` if that is meant");
    configure(there, &volumes[..1]);
    let (code, said) = daemon.run(&["reload"]);
    assert!(code == Some(1) && said.contains("it would remove 2 of 3 volumes, b, c"), "{said}");
    assert_eq!(served(), 3);
    // A part of the file's changes is not applied either.
    configure(there, &[volume("d", &disk(there, "d"))]);
    assert_eq!(daemon.run(&["reload"]).0, Some(1));
    assert_eq!(served(), 3);
    configure(there, &volumes[..2]);
    assert_eq!(daemon.run(&["reload"]), (Some(0), "the configuration file is applied\n".into()));
    assert_eq!(served(), 2);
    configure(there, &[]);
    assert_eq!(daemon.run(&["reload", "--remove"]).0, Some(0));
    assert_eq!(served(), 0);
    // What fails reaches the one who asked.
    configure(there, &[volume("e", "/none")]);
    let (code, said) = daemon.run(&["reload"]);
    assert!(code == Some(1) && said.contains("'/none' does not exist"), "{said}");
    daemon.stop();
}

#[test]
fn two_volumes_exchange_their_disks_in_one_reload() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (one, two) = (disk(there, "one.img"), disk(there, "two.img"));
    configure(there, &[volume("a", &one), volume("b", &two)]);
    let daemon = start(there);
    daemon.client("a").write(0, &[1; 4096]).unwrap();
    daemon.client("b").write(0, &[2; 4096]).unwrap();
    configure(there, &[volume("a", &two), volume("b", &one)]);
    daemon.signal(Signal::HUP);
    daemon.wait_for_log_times("volume added", 4);
    assert_eq!(daemon.client("a").read(0, 4096).unwrap(), [2; 4096]);
    assert_eq!(daemon.client("b").read(0, 4096).unwrap(), [1; 4096]);
    daemon.stop();
}

/// A mounted file system would lose its disk.
#[test]
fn a_volume_with_clients_is_removed_or_replaced_only_if_that_is_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (one, two, three) =
        (disk(there, "one.img"), disk(there, "two.img"), disk(there, "three.img"));
    let others = [volume("b", &two), volume("c", &disk(there, "four.img"))].concat();
    configure(there, &[volume("a", &one), others.clone()]);
    let daemon = start(there);
    let mut client = daemon.client("a");
    client.write(0, &[1; 4096]).unwrap();
    for changed in [String::new(), volume("a", &three)] {
        configure(there, &[changed, others.clone()]);
        let (code, said) = daemon.run(&["reload"]);
        assert_eq!(code, Some(1), "{said}");
        let said = on_one_line(&said);
        for part in ["volume 'a' has clients: process", "or cut them off with `forebay reload --re"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "the client goes on");
        let alert = &daemon.status()["alerts"][0];
        assert_eq!(alert["kind"], "configuration", "{alert}");
    }
    assert_eq!(daemon.run(&["reload", "--remove"]).0, Some(0));
    let alerts = daemon.status()["alerts"].clone();
    assert!(!alerts.to_string().contains("configuration"), "{alerts}");
    let cookie = client.try_send(NbdCommand::Read, 0, 0, 4096, &[]);
    assert!(cookie.and_then(|cookie| client.try_wait(cookie)).is_none(), "it is cut off");
    assert_eq!(daemon.client("a").read(0, 4096).unwrap(), [0; 4096], "the other disk");
    daemon.stop();
}

#[test]
fn another_path_of_the_same_disk_is_no_other_disk() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let one = disk(there, "one.img");
    configure(there, &[volume("a", &one)]);
    let daemon = start(there);
    let mut client = daemon.client("a");
    client.write(0, &[1; 4096]).unwrap();
    let link = there.join("by-id").display().to_string();
    std::os::unix::fs::symlink(&one, &link).unwrap();
    for _ in 0..2 {
        configure(there, &[volume("a", &link)]);
        let (code, said) = daemon.run(&["reload"]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "the client stays");
    }
    assert_eq!(daemon.status()["volumes"][0]["backing"], one.as_str());
    drop(client);
    daemon.stop();
}

#[test]
fn another_path_of_the_same_journal_is_no_other_journal() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (disk, journal) = (disk(there, "disk.img"), there.join("journal"));
    make_file(journal.clone(), 48 * MIB);
    let volume = |journal: &Path| {
        format!(
            "[[volume]]\nname = 'a'\nbacking = '{disk}'\nmode = 'write-back'\n\
             protection = 'journal'\njournal = '{}'\n",
            journal.display()
        )
    };
    configure(there, &[volume(&journal)]);
    let daemon = start(there);
    daemon.client("a").write(0, &[1; 4096]).unwrap();
    let link = there.join("by-id");
    std::os::unix::fs::symlink(&journal, &link).unwrap();
    configure(there, &[volume(&link)]);
    let (code, said) = daemon.run(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(daemon.status()["volumes"][0]["journal"], journal.to_str().unwrap());
    daemon.stop();
}

#[test]
fn a_replacement_that_fails_is_repeated_by_the_next_reload() {
    const FAILED: &str = "configuration change failed";
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (one, two) = (disk(there, "one.img"), disk(there, "two.img"));
    configure(there, &[volume("a", &one)]);
    let daemon = start(there);
    daemon.client("a").write(0, &[1; 4096]).unwrap();
    configure(there, &[volume("a", &two.replace("two", "tow"))]);
    daemon.signal(Signal::HUP);
    daemon.wait_for_log_times(FAILED, 1);
    let mut client = daemon.client("a");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "the disk does not exist");
    drop(client);
    configure(there, &[volume("a", &two)]);
    let used = std::fs::File::open(&two).unwrap();
    used.lock().unwrap();
    for attempt in 2..4 {
        daemon.signal(Signal::HUP);
        daemon.wait_for_log_times(FAILED, attempt);
        let volumes = daemon.status()["volumes"].clone();
        assert!(volumes.as_array().unwrap().is_empty(), "the disk is in use: {volumes}");
    }
    // A child of another test may have the file open, too, between fork and exec.
    used.unlock().unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for_log_times("volume added", 2);
    assert_eq!(daemon.client("a").read(0, 4096).unwrap(), [0; 4096]);
    daemon.stop();
}
