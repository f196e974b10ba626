//! Journals and vaults that are not as they were left, given to the daemon and to the rescue: each
//! is refused with a sentence that names it and says what is to be done, and nothing is changed.

use crate::power::House;
use crate::vault::{fail_power, ran, slow_house};
use std::path::Path;

const MIB: usize = 1 << 20;
/// Where the batches begin.
const LOG: usize = 128 << 10;

/// What is done to a device, what a start says of it, how the rescue ends and what that says.
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
    let replace = if is_vault { overwrite } else { "replace it" };
    let (lost, wrong) = match is_vault {
        true => {
            ("does not hold everything of volume 'disk'", "holds something that is not a vault")
        }
        false => ("is damaged", "holds something that is not a journal"),
    };
    vec![
        Case { what: "no length", change: Vec::clear, said: "0", remedy: "", rescue: (2, "") },
        Case {
            what: "truncated below what one needs",
            change: |bytes| bytes.truncate(MIB),
            said: "it needs",
            remedy: "name a file or device of its own",
            rescue: (2, "was made"),
        },
        Case {
            what: "truncated",
            change: |bytes| bytes.truncate(bytes.len() - MIB),
            said: if is_vault { "it needs" } else { "was made" },
            remedy: if is_vault { "name a file or device of its own" } else { replace },
            rescue: (2, "was made"),
        },
        Case {
            what: "of another version",
            change: |bytes| both_copies(bytes, 8, 8),
            said: "format 9",
            remedy: replace,
            rescue: (2, "format 9"),
        },
        Case {
            what: "with a wrong bit in both superblocks",
            change: |bytes| both_copies(bytes, 40, 1),
            said: "damaged superblock",
            remedy: replace,
            rescue: (2, "damaged superblock"),
        },
        Case {
            what: "something else",
            change: |bytes| bytes[..LOG].fill(7),
            said: wrong,
            remedy: overwrite,
            rescue: (2, "holds no journal and no vault"),
        },
        Case {
            what: "with a wrong bit in its content",
            change: |bytes| bytes[LOG + 4096] ^= 1,
            said: lost,
            remedy: "accept-loss=yes",
            rescue: (1, "DAMAGED"),
        },
        Case {
            what: "with a batch that is gone",
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
        let (ended, output) = ran(directory, serve);
        assert_eq!(ended, Some(1), "{what}: {output}");
        assert!(output.contains(path) || output.contains("'disk'"), "{what}: {output}");
        for part in [said, remedy] {
            assert!(output.contains(part), "{what}: no {part:?} in: {output}");
        }
        let (ended, output) = ran(directory, &["rescue", "verify", path]);
        assert_eq!(ended, Some(code), "{what}: {output}");
        assert!(output.contains(text) && output.contains(path), "{what}: {output}");
        assert!(std::fs::read(path).unwrap() == bytes, "{what}: the device has changed");
        let now = std::fs::read(directory.join("disk.img")).unwrap();
        assert!(now == disk, "{what}: the disk has changed");
    }
    std::fs::write(path, &whole).unwrap();
}

#[test]
fn a_vault_that_is_not_as_it_was_left_is_named_and_nothing_is_changed() {
    let house: House = slow_house();
    let _feed = fail_power(&house);
    let vault = house.path("vault").display().to_string();
    let socket = format!("unix:{}", house.path("refused.sock").display());
    let fixed = ["serve", "--io", "epoll", "--memory", "96MiB", "--keeper", "no"];
    let named = ["--nbd", &socket, "--volume", &house.volume, "--ups", &house.supply];
    let serve = [&fixed[..], &named, &["--vault", &vault]].concat();
    try_all(&house.path(""), &vault, true, &serve);
    // As it was it is loaded.
    house.start().stop();
}

#[test]
fn a_journal_that_is_not_as_it_was_left_is_named_and_nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for (name, bytes) in [("disk.img", 16 * MIB), ("journal", 40 * MIB)] {
        std::fs::File::create(at(name)).unwrap().set_len(bytes as u64).unwrap();
    }
    let (disk, journal) = (at("disk.img"), at("journal"));
    let volume =
        format!("disk=delay(write=5s):{disk},mode=write-back,protection=journal,journal={journal}");
    let volumes = [volume.clone()];
    let daemon = crate::process::Daemon::start(directory.path(), "epoll", "64MiB", &volumes);
    let mut client = daemon.client("disk");
    for line in 0..200 {
        client.write(line * 4096, &[line as u8 + 1; 4096]).unwrap();
    }
    drop(client);
    daemon.kill();
    let socket = format!("unix:{}", directory.path().join("refused.sock").display());
    let fixed = ["serve", "--io", "epoll", "--memory", "64MiB", "--keeper", "no"];
    let serve = [&fixed[..], &["--nbd", &socket, "--volume", &volume]].concat();
    try_all(directory.path(), &journal, false, &serve);
}

/// A device that has no room is one that fails: the journal is given up, and the volume goes on.
#[test]
fn a_journal_and_a_vault_without_room_are_said_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for (name, bytes) in [("disk.img", 16 * MIB), ("journal", 40 * MIB)] {
        std::fs::File::create(at(name)).unwrap().set_len(bytes as u64).unwrap();
    }
    let full = "error(kind=write,errno=ENOSPC):";
    let socket = format!("unix:{}", directory.path().join("refused.sock").display());
    let fixed = ["serve", "--io", "epoll", "--memory", "64MiB", "--keeper", "no", "--nbd", &socket];
    let (disk, journal) = (at("disk.img"), at("journal"));
    let journaled =
        format!("disk={disk},mode=write-back,protection=journal,journal={full}{journal}");
    std::fs::File::create(at("vault")).unwrap().set_len(200 * MIB as u64).unwrap();
    let vault = format!("{full}{}", at("vault"));
    let bare = format!("disk={disk}");
    for more in [&["--volume", &journaled][..], &["--volume", &bare, "--vault", &vault]] {
        let (code, said) = ran(directory.path(), &[&fixed[..], more].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("no space") && said.contains(&directory.path().display().to_string()),
            "{said}"
        );
    }
    assert!(std::fs::read(at("disk.img")).unwrap().iter().all(|&byte| byte == 0));
}
