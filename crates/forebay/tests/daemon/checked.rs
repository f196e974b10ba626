//! What a start and `serve --check` refuse: memory in the place of a disk, limits, and disks that
//! cannot be served. The check says what the start would.

use crate::process::{Daemon, MIB, failed_start, make_file, run_forebay};
use std::process::Command;

/// Checks that a start and a check with these arguments fail, both for the reasons `parts`.
fn assert_refused(directory: &std::path::Path, arguments: &[&str], parts: &[&str]) {
    for check in [&[][..], &["--check"]] {
        let text = failed_start(directory, &[check, arguments].concat());
        for part in parts {
            assert!(text.contains(part), "{check:?} {arguments:?}: {text}");
        }
    }
}

/// A folder in memory, removed on drop; `None` if there is no such place.
fn in_memory() -> Option<tempfile::TempDir> {
    tempfile::TempDir::new_in("/dev/shm").ok()
}

#[test]
fn a_journal_or_vault_in_memory_protects_nothing() {
    let Some(memory) = in_memory() else { return };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let there = |name: &str| memory.path().join(name).display().to_string();
    make_file(at("disk"), MIB);
    make_file(there("journal"), 40 << 20);
    let state = at("state");
    let journaled = |journal: &str| {
        format!("disk={},mode=write-back,protection=journal,journal={journal}", at("disk"))
    };
    let is_memory = "is in memory (tmpfs), which a power failure or reset erases";
    for journal in [there("journal"), format!("delay():{}", there("journal"))] {
        let volume = journaled(&journal);
        let parts = [is_memory, "protection=none,accept-loss=yes"];
        assert_refused(directory.path(), &["--state", &state, "--volume", &volume], &parts);
    }
    let ups = format!("lab=file:{}", at("ups"));
    std::fs::write(at("ups"), "ups.status: OL\n").unwrap();
    let vault = there("vault");
    make_file(&vault, 80 << 20);
    let arguments = ["--state", &state, "--ups", &ups, "--vault", &vault];
    assert_refused(directory.path(), &arguments, &[is_memory, "it keeps nothing"]);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&vault).unwrap());
    assert_eq!(blocks, 0, "nothing was allocated or written");
    // Nor can their records be there.
    make_file(at("journal"), 40 << 20);
    let (state, volume) = (there("state"), journaled(&at("journal")));
    let parts = ["needs a state directory that outlives a reboot"];
    assert_refused(directory.path(), &["--state", &state, "--volume", &volume], &parts);
}

#[test]
fn a_check_says_what_a_start_would() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    make_file(at("disk"), MIB);
    make_file(at("odd"), 1000);
    make_file(at("small"), MIB);
    make_file(at("image"), 0);
    let state = at("state");
    let (disk, small) = (at("disk"), at("small"));
    let huge = format!("x=memory:1TiB?save={}", at("image"));
    let journaled = format!("x={disk},protection=journal,journal={small}");
    for (volume, part) in [
        ("x=nbds://h/x", "nbds needs tls-certificates"),
        ("x=nbds://h/x?tls-certificates=none", "cannot read certificates from"),
        ("x=delay(speed=1):memory:1MiB", "has no option 'speed'"),
        (&format!("x={}", at("odd")), "not a multiple of 512"),
        (&journaled, "it needs at least"),
        (&huge, "volume 'x' takes 1"),
    ] {
        assert_refused(directory.path(), &["--state", &state, "--volume", volume], &[part]);
    }
    // A disk that is served may be checked.
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[format!("x={disk}")]);
    let check = ["serve", "--check", "--memory", "64MiB", "--volume", &format!("x={disk}")];
    let (code, said) = run_forebay(directory.path(), &check);
    assert_eq!(code, Some(0), "{said}");
    daemon.stop();
}

#[test]
fn a_limit_of_file_sizes_is_reported_before_it_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk").display().to_string();
    make_file(&disk, 512 * MIB);
    // In units of 1 KiB or 512 bytes: between the memory and the disk.
    let run = |blocks: u32, arguments: &[&str]| {
        let script = format!("ulimit -f {blocks} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_forebay"), "serve"]);
        command.args(["--keeper", "no", "--memory", "64MiB", "--io", "epoll"]).args(arguments);
        command.arg("--state").arg(directory.path().join("state"));
        let output = crate::process::output_of(&mut command);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for check in [&[][..], &["--check"]] {
        for (blocks, part) in [(20_000, "the cache takes up to 64"), (300_000, "has 512")] {
            let (code, text) = run(blocks, &[check, &[&disk]].concat());
            assert!(code == Some(1) && text.contains(part), "{code:?} {text}");
            assert!(text.contains("(ulimit -f)") && text.contains("raise the limit"), "{text}");
        }
    }
}

#[test]
fn a_journal_on_the_volumes_own_disk_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    make_file(at("disk"), MIB);
    make_file(at("journal"), 40 << 20);
    let spec =
        format!("disk={},mode=write-back,protection=journal,journal={}", at("disk"), at("journal"));
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[spec]);
    let notes = daemon.status()["volumes"][0]["notes"].to_string();
    // On a file system whose disks are not known, as of a server, nothing can be said.
    if notes != "null" {
        let note = "its journal is on the volume's own disk";
        assert!(notes.contains(note), "{notes}");
        daemon.wait_for_log(note);
        let (_, shown) = daemon.run(&["status"]);
        assert!(crate::process::on_one_line(&shown).contains(note), "{shown}");
    }
    daemon.stop();
}

#[test]
fn a_reserved_volume_needs_a_disk_that_can_be_reserved() {
    let directory = tempfile::tempdir().unwrap();
    let [disk, other, journal] = ["disk", "other", "journal"].map(|name| {
        let path = directory.path().join(name).display().to_string();
        make_file(&path, 64 * MIB);
        path
    });
    let volume = format!("x={disk},reserve=yes");
    let check = ["serve", "--check", "--memory", "64MiB", "--volume", &volume];
    let (code, said) = run_forebay(directory.path(), &check);
    assert!(code != Some(0) && said.contains("has no persistent reservations"), "{said}");
    let volume = format!("x={disk},protection=journal,journal={journal}");
    let daemon = Daemon::start_with(directory.path(), "auto", "96MiB", &[volume], &[]);
    for (settings, part) in [
        (format!("protection=journal,journal={journal}"), "share a journal, and only one"),
        (String::from("mode=write-through"), "has no persistent reservations"),
    ] {
        let volume = format!("y={other},reserve=yes,{settings}");
        let (code, said) = daemon.run(&["volume", "add", &volume]);
        assert!(code == Some(1) && said.replace('\n', " ").contains(part), "{said}");
    }
    daemon.stop();
}
