//! Starts of the built program with a vault, without it, and with another one.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::power::{Feed, House, SIZE_BYTES, assert_all, content, lines, write_all};
use crate::process::{Daemon, output_of};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Runs the program; what it ends with, and all that it says.
pub(crate) fn ran(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(arguments)
            .env("FOREBAY_STATE", directory.join("state")),
    );
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn disk(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    std::fs::File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    path.display().to_string()
}

#[test]
fn a_volume_under_a_supply_alone_is_not_added_without_a_vault() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (one, other) = (disk(there, "a.img"), disk(there, "b.img"));
    let supply = format!("lab=file:{}", there.join("supply").display());
    let volumes = [format!("a={one}")];
    let daemon = Daemon::start_with(there, "epoll", "64MiB", &volumes, &["--ups", &supply]);
    let spec = format!("b={other},mode=write-back,protection=ups");
    let (code, said) = ran(there, &["volume", "add", &spec]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["volume 'b': protection=ups, but there is no vault", "--vault PATH", "journal="] {
        assert!(said.contains(part), "{said}");
    }
    daemon.stop();
}

/// Slow enough that hardly anything reaches it between a power failure and the end.
pub(crate) fn slow_house() -> House {
    House::new("delay(write=400ms):", |path| format!("lab=file:{}", path.join("supply").display()))
}

/// Acknowledges what only a dump keeps, has the power fail, and the server end.
pub(crate) fn fail_power(house: &House) -> Feed {
    let feed = Feed::start(house.path("supply"));
    let daemon = house.start();
    house.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let mut client = daemon.client("disk");
    write_all(&mut client);
    feed.say("OB DISCHRG LB");
    wait_until("the vault has it", PATIENCE, || {
        let dump = house.status().vault.unwrap().last_dump;
        dump.is_some_and(|dump| dump.verified)
    });
    drop(client);
    daemon.kill();
    let missing = lines().filter(|&line| house.on_disk(line) != content(line)).count();
    assert!(missing > 10, "the disk lacks only {missing} lines");
    feed.say("OL");
    feed
}

/// The disk under another protection.
fn bare(house: &House) -> String {
    let (backing, _) = house.volume.split_once(",mode").unwrap();
    format!("{backing},mode=write-back,protection=none,accept-loss=yes")
}

fn put(house: &House, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let disk = std::fs::File::options().write(true).open(house.path("disk.img")).unwrap();
    disk.write_all_at(bytes, offset).unwrap();
}

/// A start that is expected to fail, and what it says.
fn refused(house: &House, volume: &str, more: &[&str]) -> String {
    let socket = format!("unix:{}", house.path("refused.sock").display());
    let fixed = ["serve", "--io", "epoll", "--memory", "96MiB", "--nbd", &socket, "--volume"];
    let (code, said) = ran(&house.path(""), &[&fixed, &[volume][..], more].concat());
    assert_eq!(code, Some(1), "{said}");
    said
}

fn start_bare(house: &House, more: &[&str]) -> Daemon {
    Daemon::start_with(&house.path(""), "auto", "96MiB", &[bare(house)], more)
}

#[test]
fn a_volume_is_not_served_older_than_what_its_vault_holds() {
    let house = slow_house();
    let feed = fail_power(&house);
    let vault = house.path("vault").display().to_string();
    let before: Vec<_> = lines().map(|line| house.on_disk(line)).collect();
    let journal = disk(&house.path(""), "journal");
    std::fs::File::create(house.path("journal")).unwrap().set_len(40 * MIB).unwrap();
    let journaled = bare(&house).replace(
        "protection=none,accept-loss=yes",
        &format!("protection=journal,journal={journal}"),
    );
    let other = house.path("other").display().to_string();
    for (volume, more) in [
        (&bare(&house), &[][..]),
        (&journaled, &[]),
        (&house.volume, &["--ups", &house.supply, "--vault", &other]),
    ] {
        let said = refused(&house, volume, more);
        for part in ["volume 'disk'", &format!("--vault {vault}"), "--accept-lost-vault disk"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // Where it is gone, none is made in its place.
    std::fs::rename(house.path("vault"), house.path("away")).unwrap();
    let said = refused(&house, &house.volume, &["--ups", &house.supply, "--vault", &vault]);
    assert!(said.contains("is not there") && said.contains("data of disk"), "{said}");
    assert!(!house.path("vault").exists());
    std::fs::rename(house.path("away"), house.path("vault")).unwrap();
    assert!(lines().zip(before).all(|(line, bytes)| house.on_disk(line) == bytes));
    // Nor for a disk that somebody has changed since.
    let last = SIZE_BYTES - 4096;
    put(&house, last, &[3; 4096]);
    let said = refused(&house, &house.volume, &["--ups", &house.supply, "--vault", &vault]);
    for part in ["samples differ", "--accept-changed-disk disk", "rescue apply"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    put(&house, last, &[0; 4096]);

    let daemon = house.start();
    assert_all(&mut daemon.client("disk"));
    daemon.stop();
    drop(feed);
    // Stopped in order, it needs no vault.
    let daemon = start_bare(&house, &[]);
    assert_all(&mut daemon.client("disk"));
    daemon.stop();
}

#[test]
fn what_a_lost_vault_held_is_given_up_on_the_operators_word_for_good() {
    let house = slow_house();
    let _feed = fail_power(&house);
    let vault = house.path("vault").display().to_string();
    let daemon = start_bare(&house, &["--accept-lost-vault", "disk"]);
    let mut client = daemon.client("disk");
    client.write_fua(0, &content(99)).unwrap();
    drop(client);
    daemon.kill();
    // The word was for once, and is not needed twice.
    start_bare(&house, &[]).stop();
    let said = refused(&house, &house.volume, &["--ups", &house.supply, "--vault", &vault]);
    assert!(said.contains("its disk is newer") && said.contains("rescue discard"), "{said}");
    let to = house.path("disk.img").display().to_string();
    let (code, said) =
        ran(&house.path(""), &["rescue", "apply", &vault, "--volume", "disk", "--to", &to]);
    assert!(code == Some(1) && said.contains("older than the disk"), "{said}");
    let discard = ["rescue", "discard", &vault, "--volume", "disk", "--yes"];
    assert_eq!(ran(&house.path(""), &discard).0, Some(0));
    let daemon = house.start();
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(99));
    daemon.stop();
}

#[test]
fn what_a_vault_holds_is_brought_to_its_disk_and_marked_as_done() {
    let house = slow_house();
    let _feed = fail_power(&house);
    let vault = house.path("vault").display().to_string();
    let rescue = |arguments: &[&str]| ran(&house.path(""), &[&["rescue"], arguments].concat());
    let (code, said) = rescue(&["list", &vault, "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&list["kind"], &list["state"]), (&"vault".into(), &"whole".into()), "{list}");
    assert_eq!(list["volumes"][0]["held_bytes"], 60 * 4096, "{list}");
    let (_, said) = rescue(&["list", &vault]);
    assert!(said.contains(": vault ") && said.contains("sealed"), "{said}");
    assert_eq!(rescue(&["verify", &vault]).0, Some(0));

    // A wrong bit in what was written first.
    let whole = std::fs::read(&vault).unwrap();
    let mut damaged = whole.clone();
    damaged[(128 << 10) + 4096] ^= 1;
    std::fs::write(&vault, &damaged).unwrap();
    let (code, said) = rescue(&["verify", &vault]);
    assert!(code == Some(1) && said.contains("DAMAGED"), "{said}");
    let to = house.path("disk.img").display().to_string();
    let apply = ["apply", &vault, "--volume", "disk", "--to", &to, "--force"];
    let (code, said) = rescue(&apply);
    assert!(code == Some(1) && said.contains("--accept-loss"), "{said}");
    std::fs::write(&vault, &whole).unwrap();

    // The disk has other words here than when it was served.
    let (code, said) = rescue(&apply[..6]);
    assert!(code == Some(1) && said.contains("--force"), "{said}");
    assert!(std::fs::read(&vault).unwrap() == whole, "nothing is marked as done");
    let (code, said) = rescue(&apply);
    assert_eq!(code, Some(0), "{said}");
    assert!(lines().all(|line| house.on_disk(line) == content(line)));
    let (_, said) = rescue(&["list", &vault]);
    assert!(said.contains("applied"), "{said}");
    // It needs the vault no more, and what was in it is not brought back.
    let daemon = start_bare(&house, &[]);
    daemon.client("disk").write(0, &content(99)).unwrap();
    daemon.stop();
    let daemon = house.start();
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(99));
    assert!(house.status().vault.unwrap().held.is_empty());
    daemon.stop();
}
