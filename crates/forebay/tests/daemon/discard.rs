//! `forebay volume discard`: a volume whose disk refuses its data is removed, and the data is in a
//! file that `forebay rescue` applies.

use crate::common::random::Random;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, run_forebay};
use std::path::Path;

const SIZE_BYTES: u64 = 8 * MIB;

/// Writes single sectors, lines and several lines, and returns what the volume holds.
fn write(daemon: &Daemon, volume: &str, seed: u64) -> Vec<u8> {
    let (mut client, mut random) = (daemon.client(volume), Random::new(seed));
    let mut expected = vec![0; SIZE_BYTES as usize];
    for at in 0..300 {
        let sectors = [1, 3, 8, 40][random.below(4) as usize];
        let offset = random.below(SIZE_BYTES / 512 - sectors) * 512;
        let bytes = vec![(at % 255 + 1) as u8; sectors as usize * 512];
        assert_eq!(client.write(offset, &bytes), Ok(()));
        expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    expected
}

/// The disk refuses each write. It is a file, which is compared from outside.
fn what_a_disk_refuses_is_in_the_file(blocks: &str, settings: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (there, at) = (directory.path(), |name: &str| directory.path().join(name));
    for disk in ["disk.img", "other.img"] {
        make_file(at(disk), SIZE_BYTES);
    }
    make_file(at("journal"), 40 * MIB);
    let journal = at("journal").display().to_string();
    let settings = settings.replace("JOURNAL", &journal);
    let disk = at("disk.img").display().to_string();
    let volumes = [
        format!("a={blocks}error(kind=write):{disk},{settings}"),
        format!("b={},{UNPROTECTED}", at("other.img").display()),
    ];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let (expected, other) = (write(&daemon, "a", 1), write(&daemon, "b", 2));
    let kept = daemon.client("a");
    let fails = |arguments: &[&str], expected: &[&str]| {
        let (code, text) = daemon.run(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    };
    let discard = ["volume", "discard", "a"];
    fails(
        &["stop", "--force"],
        &["of volume 'a' to its backing store", "forebay volume discard a"],
    );
    fails(&discard, &["may not be on its disk", "--save FILE", "--yes"]);
    fails(&[&discard[..], &["--yes"]].concat(), &["volume 'a' has clients", "--force"]);
    let unsaved = [&discard[..], &["--force", "--save", &disk]].concat();
    fails(&unsaved, &["nothing is given up", "name a file that does not exist"]);
    drop(kept);
    let file = at("a.saved").display().to_string();
    let (code, text) = daemon.run(&[&discard[..], &["--save", &file]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("that its disk lacks are in"), "{text}");
    assert!(daemon.log().contains("dirty data given up volume=\"a\""), "{}", daemon.log());
    assert_eq!(daemon.run(&["volume", "add", &format!("a={disk}")]).0, Some(0), "it has left");
    daemon.stop();
    assert!(read(&at("disk.img")) == vec![0; SIZE_BYTES as usize], "the disk took nothing");
    assert!(read(&at("other.img")) == other, "the other volume is on its disk");

    let rescue = |arguments: &[&str]| run_forebay(there, &[&["rescue"][..], arguments].concat());
    assert_eq!(rescue(&["verify", &file]).0, Some(0));
    // The disk is not served under the name that it had.
    let apply = ["apply", &file, "--volume", "a", "--to", &disk, "--accept-older", "--force"];
    let (code, text) = rescue(&apply);
    assert_eq!(code, Some(0), "{text}");
    assert!(read(&at("disk.img")) == expected, "each acknowledged write is there");
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn what_a_disk_of_512_bytes_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("", UNPROTECTED);
}

#[test]
fn what_a_disk_of_4096_bytes_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("blocks(size=4096):", UNPROTECTED);
}

#[test]
fn what_the_disk_of_a_journalled_volume_refuses_is_in_the_file() {
    let settings = "mode=write-back,protection=journal,journal=JOURNAL";
    what_a_disk_refuses_is_in_the_file("", settings);
}

#[test]
fn what_the_disk_of_an_ordered_volume_refuses_is_in_the_file() {
    what_a_disk_refuses_is_in_the_file("", &format!("{UNPROTECTED},ordered=yes"));
}

#[test]
fn a_volume_is_given_up_without_a_file_and_its_disk_takes_all_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, SIZE_BYTES);
    let volume = format!("a=error(kind=write,range=1MiB-2MiB):{},{UNPROTECTED}", disk.display());
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[volume]);
    let mut client = daemon.client("a");
    for offset in [0, MIB, 3 * MIB] {
        assert_eq!(client.write(offset, &[7; 4096]), Ok(()));
    }
    drop(client);
    let (code, text) = daemon.run(&["volume", "discard", "a", "--yes"]);
    assert_eq!((code, &*text), (Some(0), "volume 'a' is removed; 4.0 KiB given up\n"));
    daemon.stop();
    let bytes = read(&disk);
    let taken = [0, MIB, 3 * MIB].map(|offset| bytes[offset as usize] == 7);
    assert_eq!(taken, [true, false, true]);
}
