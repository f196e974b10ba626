//! Damaged, truncated and foreign journals and vaults: the daemon and the rescue refuse each with
//! an error that names it and a remedy, and change nothing.

use crate::process::{Daemon, MIB, failed_start, make_file, run_forebay};
use crate::vault::machine_after_power_failure;
use std::path::Path;

/// The offset of the first batch.
const LOG: usize = 128 << 10;

/// A change of a device, the expected error and remedy of a start, and the expected exit code and
/// output of `rescue verify`.
struct Case {
    what: &'static str,
    change: fn(&mut Vec<u8>),
    said: &'static str,
    remedy: &'static str,
    rescue: (i32, &'static str),
}

fn both_copies(bytes: &mut [u8], at: usize, value: u8) {
    for copy in [0, 64 << 10] {
        bytes[copy + at] ^= value;
    }
}

fn cases(is_vault: bool) -> Vec<Case> {
    let overwrite = "overwrite its first 128 KiB";
    let (lost, wrong) = match is_vault {
        true => ("lacks dirty data of volume 'disk'", "does not hold a vault of forebay"),
        false => ("is damaged", "does not hold a journal of forebay"),
    };
    vec![
        Case { what: "empty", change: Vec::clear, said: "0", remedy: "", rescue: (2, "") },
        Case {
            what: "truncated below the minimum",
            change: |bytes| bytes.truncate(MIB as usize),
            said: "it needs",
            remedy: "name a larger file or device",
            rescue: (2, "when it was created"),
        },
        Case {
            what: "truncated",
            change: |bytes| bytes.truncate(bytes.len() - MIB as usize),
            said: if is_vault { "it needs" } else { "when it was created" },
            remedy: if is_vault { "name a larger file or device" } else { "restore its size" },
            rescue: (2, "when it was created"),
        },
        Case {
            what: "of another version",
            change: |bytes| both_copies(bytes, 8, 8),
            said: "format 9",
            remedy: "start the version that wrote it",
            rescue: (2, "format 9"),
        },
        Case {
            what: "bit flip in both superblocks",
            change: |bytes| both_copies(bytes, 40, 1),
            said: "damaged superblock",
            remedy: overwrite,
            rescue: (2, "damaged superblock"),
        },
        Case {
            what: "foreign content",
            change: |bytes| bytes[..LOG].fill(7),
            said: wrong,
            remedy: overwrite,
            rescue: (2, "holds no journal and no vault"),
        },
        Case {
            what: "bit flip in a payload",
            change: |bytes| bytes[LOG + 4096] ^= 1,
            said: lost,
            remedy: "accept-loss=yes",
            rescue: (1, "DAMAGED"),
        },
        Case {
            what: "zeroed batch",
            change: |bytes| bytes[LOG..LOG + 4096].fill(0),
            said: lost,
            remedy: "accept-loss=yes",
            rescue: (1, "DAMAGED"),
        },
    ]
}

/// Tries each case on the device at `path`.
fn try_all(directory: &Path, path: &str, is_vault: bool, serve: &[&str]) {
    let whole = std::fs::read(path).unwrap();
    let disk = std::fs::read(directory.join("disk.img")).unwrap();
    for Case { what, change, said, remedy, rescue: (code, text) } in cases(is_vault) {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(path, &bytes).unwrap();
        let output = failed_start(directory, serve);
        assert!(output.contains(path) || output.contains("'disk'"), "{what}: {output}");
        for part in [said, remedy] {
            assert!(output.contains(part), "{what}: no {part:?} in: {output}");
        }
        let (actual, output) = run_forebay(directory, &["rescue", "verify", path]);
        assert_eq!(actual, Some(code), "{what}: {output}");
        assert!(output.contains(text) && output.contains(path), "{what}: {output}");
        assert!(std::fs::read(path).unwrap() == bytes, "{what}: the device has changed");
        let now = std::fs::read(directory.join("disk.img")).unwrap();
        assert!(now == disk, "{what}: the disk has changed");
    }
    std::fs::write(path, &whole).unwrap();
}

#[test]
fn a_damaged_vault_is_refused_with_a_remedy_and_left_unchanged() {
    let (machine, _ups) = machine_after_power_failure();
    let vault = machine.path("vault").display().to_string();
    let serve = ["--volume", &machine.volume, "--ups", &machine.ups, "--vault", &vault];
    try_all(machine.directory(), &vault, true, &serve);
    // The restored vault is loaded.
    machine.start().stop();
}

#[test]
fn a_damaged_journal_is_refused_with_a_remedy_and_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for (name, bytes) in [("disk.img", 16 * MIB), ("journal", 40 * MIB)] {
        make_file(at(name), bytes);
    }
    let (disk, journal) = (at("disk.img"), at("journal"));
    let volume =
        format!("disk=delay(write=5s):{disk},mode=write-back,protection=journal,journal={journal}");
    let volumes = std::slice::from_ref(&volume);
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", volumes);
    let mut client = daemon.client("disk");
    for line in 0..200 {
        client.write(line * 4096, &[line as u8 + 1; 4096]).unwrap();
    }
    drop(client);
    daemon.kill();
    try_all(directory.path(), &journal, false, &["--volume", &volume]);
}

#[test]
fn a_start_reports_a_journal_or_vault_without_space_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for (name, bytes) in [("disk.img", 16 * MIB), ("journal", 40 * MIB)] {
        make_file(at(name), bytes);
    }
    let full = "error(kind=write,errno=ENOSPC):";
    let (disk, journal) = (at("disk.img"), at("journal"));
    let journaled =
        format!("disk={disk},mode=write-back,protection=journal,journal={full}{journal}");
    make_file(at("vault"), 200 * MIB);
    let vault = format!("{full}{}", at("vault"));
    let bare = format!("disk={disk}");
    for more in [&["--volume", &journaled][..], &["--volume", &bare, "--vault", &vault]] {
        let said = failed_start(directory.path(), more);
        assert!(
            said.contains("no space") && said.contains(&directory.path().display().to_string()),
            "{said}"
        );
    }
    assert!(std::fs::read(at("disk.img")).unwrap().iter().all(|&byte| byte == 0));
}
