//! Starts of the built program with a vault, without it, and with another one.

use crate::process::Daemon;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Runs the program; what it ends with, and all that it says.
fn ran(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(arguments)
        .env("FOREBAY_STATE", directory.join("state"))
        .output()
        .unwrap();
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
