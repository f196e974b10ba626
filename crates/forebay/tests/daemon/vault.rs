//! Starts of the built program with its vault, without it, and with another one.

use crate::power::{FileUps, SIZE_BYTES, UpsMachine, assert_all, content, lines, write_all};
use crate::process::{Daemon, MIB, UNPROTECTED, failed_start, make_file, run_forebay};
use std::path::Path;

fn disk(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    make_file(&path, 16 * MIB);
    path.display().to_string()
}

#[test]
fn a_volume_protected_only_by_a_ups_needs_a_vault() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (one, other) = (disk(there, "a.img"), disk(there, "b.img"));
    let ups = format!("lab=file:{}", there.join("ups").display());
    let volumes = [format!("a={one}")];
    let daemon = Daemon::start_with(there, "epoll", "64MiB", &volumes, &["--ups", &ups]);
    let spec = format!("b={other},mode=write-back,protection=ups");
    let (code, said) = run_forebay(there, &["volume", "add", &spec]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["volume 'b': protection=ups, but there is no vault", "--vault PATH", "journal="] {
        assert!(said.contains(part), "{said}");
    }
    daemon.stop();
}

/// Attempts to have the power fail before the disk has taken everything.
const POWER_FAILURES_MAX: u32 = 20;

/// A machine whose power has failed and is back: it acknowledged writes that only its vault holds,
/// and was killed. On a loaded machine even a slow disk may take everything before the kill; then
/// another machine is tried.
pub(crate) fn machine_after_power_failure() -> (UpsMachine, FileUps) {
    for _ in 0..POWER_FAILURES_MAX {
        let (machine, ups, daemon) = UpsMachine::in_write_back("delay(write=400ms):");
        let mut client = daemon.client("disk");
        write_all(&mut client);
        ups.set_status("OB DISCHRG LB");
        machine.wait_for_dump();
        drop(client);
        daemon.kill();
        ups.set_status("OL");
        if machine.is_disk_behind() {
            return (machine, ups);
        }
    }
    panic!("the disk has taken everything before the kill, {POWER_FAILURES_MAX} times");
}

/// The same volume without protection.
fn unprotected(machine: &UpsMachine) -> String {
    let (backing, _) = machine.volume.split_once(",mode").unwrap();
    format!("{backing},{UNPROTECTED}")
}

fn put(machine: &UpsMachine, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let disk = std::fs::File::options().write(true).open(machine.path("disk.img")).unwrap();
    disk.write_all_at(bytes, offset).unwrap();
}

/// Asserts that the start fails, with the machine's UPS and `vault` if given. Returns its output.
fn refused(machine: &UpsMachine, volume: &str, vault: Option<&str>) -> String {
    let mut arguments = vec!["--volume", volume];
    if let Some(vault) = vault {
        arguments.extend(["--ups", &machine.ups, "--vault", vault]);
    }
    failed_start(machine.directory(), &arguments)
}

fn start_unprotected(machine: &UpsMachine, more: &[&str]) -> Daemon {
    Daemon::start_with(machine.directory(), "auto", "96MiB", &[unprotected(machine)], more)
}

#[test]
fn a_volume_is_refused_while_its_newest_data_is_in_a_missing_vault() {
    let (machine, ups) = machine_after_power_failure();
    let vault = machine.path("vault").display().to_string();
    let before: Vec<_> = lines().map(|line| machine.on_disk(line)).collect();
    let journal = machine.path("journal");
    make_file(&journal, 40 * MIB);
    let journaled = unprotected(&machine).replace(
        "protection=none,accept-loss=yes",
        &format!("protection=journal,journal={}", journal.display()),
    );
    let other = machine.path("other").display().to_string();
    for (volume, given) in
        [(&unprotected(&machine), None), (&journaled, None), (&machine.volume, Some(&*other))]
    {
        let said = refused(&machine, volume, given);
        for part in ["volume 'disk'", &format!("--vault {vault}"), "--accept-lost-vault disk"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // A missing vault is not created anew.
    std::fs::rename(machine.path("vault"), machine.path("away")).unwrap();
    let said = refused(&machine, &machine.volume, Some(&vault));
    assert!(said.contains("does not exist") && said.contains("data of disk"), "{said}");
    assert!(!machine.path("vault").exists());
    std::fs::rename(machine.path("away"), machine.path("vault")).unwrap();
    assert!(lines().zip(before).all(|(line, bytes)| machine.on_disk(line) == bytes));
    // The vault is not loaded into a disk that was modified since.
    let last = SIZE_BYTES - 4096;
    put(&machine, last, &[3; 4096]);
    let said = refused(&machine, &machine.volume, Some(&vault));
    for part in ["samples differ", "--accept-changed-disk disk", "rescue apply"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    put(&machine, last, &[0; 4096]);

    let daemon = machine.start();
    assert_all(&mut daemon.client("disk"));
    daemon.stop();
    drop(ups);
    // After a clean shutdown, the volume needs no vault.
    let daemon = start_unprotected(&machine, &[]);
    assert_all(&mut daemon.client("disk"));
    daemon.stop();
}

#[test]
fn accepting_a_lost_vault_voids_its_data_for_good() {
    let (machine, _ups) = machine_after_power_failure();
    let vault = machine.path("vault").display().to_string();
    let daemon = start_unprotected(&machine, &["--accept-lost-vault", "disk"]);
    let mut client = daemon.client("disk");
    client.write_fua(0, &content(99)).unwrap();
    drop(client);
    daemon.kill();
    // The loss needs to be accepted only once.
    start_unprotected(&machine, &[]).stop();
    let said = refused(&machine, &machine.volume, Some(&vault));
    assert!(said.contains("its disk is newer") && said.contains("rescue discard"), "{said}");
    let to = machine.path("disk.img").display().to_string();
    let apply = ["rescue", "apply", &vault, "--volume", "disk", "--to", &to];
    let (code, said) = run_forebay(machine.directory(), &apply);
    assert!(code == Some(1) && said.contains("older than the disk"), "{said}");
    let discard = ["rescue", "discard", &vault, "--volume", "disk", "--yes"];
    assert_eq!(run_forebay(machine.directory(), &discard).0, Some(0));
    let daemon = machine.start();
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(99));
    daemon.stop();
}

#[test]
fn rescue_apply_writes_a_vaults_data_to_the_disk_once() {
    let (machine, _ups) = machine_after_power_failure();
    let vault = machine.path("vault").display().to_string();
    let rescue =
        |arguments: &[&str]| run_forebay(machine.directory(), &[&["rescue"], arguments].concat());
    let (code, said) = rescue(&["list", &vault, "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&list["kind"], &list["state"]), (&"vault".into(), &"whole".into()), "{list}");
    // The disk may have taken some of it before the dump.
    let missing = lines().filter(|&line| machine.on_disk(line) != content(line)).count() as u64;
    let held = list["volumes"][0]["held_bytes"].as_u64().unwrap();
    assert!((missing * 4096..=60 * 4096).contains(&held), "{missing} are missing: {list}");
    let (_, said) = rescue(&["list", &vault]);
    assert!(said.contains(": vault ") && said.contains("sealed"), "{said}");
    assert_eq!(rescue(&["verify", &vault]).0, Some(0));

    // Flip a bit in the first batch.
    let whole = std::fs::read(&vault).unwrap();
    let mut damaged = whole.clone();
    damaged[(128 << 10) + 4096] ^= 1;
    std::fs::write(&vault, &damaged).unwrap();
    let (code, said) = rescue(&["verify", &vault]);
    assert!(code == Some(1) && said.contains("DAMAGED"), "{said}");
    let to = machine.path("disk.img").display().to_string();
    let apply = ["apply", &vault, "--volume", "disk", "--to", &to, "--force"];
    let (code, said) = rescue(&apply);
    assert!(code == Some(1) && said.contains("--accept-loss"), "{said}");
    std::fs::write(&vault, &whole).unwrap();

    // The rescue cannot identify the disk: its specification lacks the delay layer.
    let (code, said) = rescue(&apply[..6]);
    assert!(code == Some(1) && said.contains("--force"), "{said}");
    assert!(std::fs::read(&vault).unwrap() == whole, "the vault is unchanged");
    let (code, said) = rescue(&apply);
    assert_eq!(code, Some(0), "{said}");
    assert!(lines().all(|line| machine.on_disk(line) == content(line)));
    let (_, said) = rescue(&["list", &vault]);
    assert!(said.contains("applied"), "{said}");
    // The volume no longer needs the vault, and the dump is not restored again.
    let daemon = start_unprotected(&machine, &[]);
    daemon.client("disk").write(0, &content(99)).unwrap();
    daemon.stop();
    let daemon = machine.start();
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(99));
    assert!(machine.status().vault.unwrap().held.is_empty());
    daemon.stop();
}
