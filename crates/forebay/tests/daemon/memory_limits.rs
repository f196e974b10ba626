//! How the daemon chooses its memory at the start, on machines that are folders with the kernel's
//! files.

use crate::crash::SIZE_BYTES;
use crate::kept::reconnect;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, output_of, run_forebay};
use std::path::Path;
use std::process::Command;

fn write(machine: &Path, path: &str, text: &str) {
    let path = machine.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Sets the memory of a machine.
pub fn set_memory(machine: &Path, total_mib: u64, available_mib: u64) {
    let (total, available) = (total_mib << 10, available_mib << 10);
    let text = format!("MemTotal: {total} kB\nMemFree: 9 kB\nMemAvailable: {available} kB\n");
    write(machine, "proc/meminfo", &text);
}

/// A machine with 8 GiB, of which 6 GiB are available.
pub fn machine() -> tempfile::TempDir {
    let machine = tempfile::tempdir().unwrap();
    set_memory(machine.path(), 8192, 6144);
    machine
}

/// The same, with the process in a control group of version 2 with a limit.
pub fn container(limit_mib: u64, used_mib: u64) -> tempfile::TempDir {
    let machine = machine();
    write(machine.path(), "proc/self/cgroup", "0::/user.slice/x/inner\n");
    let group = "sys/fs/cgroup/user.slice/x";
    write(machine.path(), &format!("{group}/inner/memory.max"), "max\n");
    write(machine.path(), &format!("{group}/memory.max"), &format!("{}\n", limit_mib * MIB));
    write(machine.path(), &format!("{group}/memory.current"), &format!("{}\n", used_mib * MIB));
    machine
}

/// Starts a daemon that must be refused, and returns the last line of its output. The check of the
/// configuration must say the same.
fn refusal(machine: &Path, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run = |first: &[&str]| {
        let output = output_of(
            Command::new(env!("CARGO_BIN_EXE_forebay"))
                .args([first, &["--keeper", "no", "--log", "error"], arguments].concat())
                .env("FOREBAY_STATE", directory.path().join("state"))
                .env("FOREBAY_MEMORY_ROOT", machine)
                .current_dir(directory.path()),
        );
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        text.trim_end().to_owned()
    };
    let text = run(&["serve"]);
    assert_eq!(run(&["serve", "--check"]), text);
    text
}

/// Starts a daemon that must be accepted, and returns the memory that it has chosen, in MiB.
fn accepted(machine: &Path, memory: &str, arguments: &[&str]) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_on(machine, directory.path(), memory, arguments);
    let bytes = daemon.status()["memory"]["limit_bytes"].as_u64().unwrap();
    daemon.stop();
    bytes / MIB
}

#[test]
fn a_set_size_that_leaves_the_system_too_little_is_refused() {
    let machine = machine();
    assert_eq!(
        refusal(machine.path(), &["--memory", "6044MiB"]),
        "forebay: memory 6044MiB leaves 100MiB of the 6GiB available, less than the 500MiB that \
         are reserved for the system: start the server with --memory 5644MiB or \
         --memory-reserve 100MiB"
    );
    assert_eq!(
        refusal(machine.path(), &["--memory", "7GiB", "--memory-reserve", "0"]),
        "forebay: memory 7GiB exceeds the 6GiB available: start the server with --memory 3GiB"
    );
    let reserve = &["--memory-reserve", "100MiB"][..];
    assert_eq!(accepted(machine.path(), "5644MiB", &[]), 5644, "as the remedy says");
    assert_eq!(accepted(machine.path(), "6044MiB", reserve), 6044, "as the other remedy says");
}

#[test]
fn a_refusal_names_the_control_group_that_limits() {
    let container = container(900, 100);
    assert_eq!(
        refusal(container.path(), &["--memory", "700MiB"]),
        "forebay: memory 700MiB leaves 100MiB of the 800MiB available (the control group \
         /user.slice/x allows 900MiB), less than the 225MiB that are reserved for the system: \
         start the server with --memory 575MiB or --memory-reserve 100MiB"
    );
    assert_eq!(accepted(container.path(), "575MiB", &[]), 575);
}

#[test]
fn the_default_is_an_eighth_of_what_is_available() {
    assert_eq!(accepted(machine().path(), "auto", &[]), 768);
    assert_eq!(accepted(container(4096, 1024).path(), "auto", &[]), 384);
    assert_eq!(accepted(container(700, 475).path(), "auto", &[]), 50, "the rest is reserved");
    let reserve = &["--memory-reserve", "100MiB"][..];
    assert_eq!(accepted(container(700, 500).path(), "auto", reserve), 64);
}

#[test]
fn small_machines_and_containers_need_a_set_size() {
    let small = machine();
    set_memory(small.path(), 480, 300);
    assert_eq!(
        refusal(small.path(), &[]),
        "forebay: the machine has 480MiB of memory, less than the 512MiB that memory=auto \
         requires: use a larger machine, or start the server with --memory 32MiB"
    );
    assert_eq!(accepted(small.path(), "60MiB", &[]), 60);
    assert_eq!(
        refusal(small.path(), &["--memory", "61MiB"]),
        "forebay: memory 61MiB leaves 239MiB of the 300MiB available, less than the 240MiB that \
         are reserved for the system: start the server with --memory 60MiB or \
         --memory-reserve 239MiB"
    );
    assert_eq!(
        refusal(container(300, 20).path(), &[]),
        "forebay: the control group /user.slice/x allows 300MiB of memory, less than the 512MiB \
         that memory=auto requires: raise the limit, or start the server with --memory 32MiB"
    );
    assert_eq!(accepted(container(300, 20).path(), "64MiB", &[]), 64);
    assert_eq!(
        refusal(container(2048, 1748).path(), &[]),
        "forebay: too little memory is free: 300MiB available (the control group /user.slice/x \
         allows 2GiB), of which 500MiB are reserved for the system: raise the limit, or start the \
         server with --memory-reserve 268MiB"
    );
}

#[test]
fn a_machine_whose_memory_is_unknown_needs_a_set_size() {
    let unknown = tempfile::tempdir().unwrap();
    let refused = refusal(unknown.path(), &[]);
    assert!(refused.contains("cannot read the size of the machine's memory"), "{refused}");
    assert!(refused.ends_with("start the server with --memory SIZE"), "{refused}");
    assert_eq!(accepted(unknown.path(), "64MiB", &[]), 64);
}

#[test]
fn a_kept_pool_is_adopted_although_it_leaves_the_system_too_little() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let path = directory.path().join("disk.img");
    make_file(&path, SIZE_BYTES);
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept_on(machine.path(), directory.path(), "64MiB", &volume);
    daemon.client("disk").write(4096, &[7; 4096]).unwrap();
    set_memory(machine.path(), 8192, 300);
    assert!(refusal(machine.path(), &["--memory", "64MiB"]).contains("reserved for the system"));

    let before = daemon.server();
    let (code, text) = run_forebay(directory.path(), &["upgrade"]);
    assert_eq!(code, Some(0), "{text}");
    assert_ne!(daemon.server(), before);
    daemon.wait_for_log("the kept pool leaves the system too little memory, continuing with it");
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), [7; 4096]);
    daemon.stop();
    assert_eq!(std::fs::read(&path).unwrap()[4096..8192], [7; 4096]);
}

#[test]
fn an_upgrade_after_memory_was_given_to_other_programs_is_not_refused() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let path = directory.path().join("disk.img");
    make_file(&path, SIZE_BYTES);
    let volume = format!("disk={},{UNPROTECTED}", path.display());
    let daemon = Daemon::start_kept_on(machine.path(), directory.path(), "512MiB", &volume);
    daemon.client("disk").write(4096, &[7; 4096]).unwrap();
    let limit = |field: &str| daemon.status()["memory"][field].as_u64().unwrap();
    let least = limit("limit_bytes_min");
    let (code, text) = daemon.run(&["set", &format!("memory={least}")]);
    assert_eq!(code, Some(0), "{text}");
    set_memory(machine.path(), 8192, 200);
    assert!(refusal(machine.path(), &["--memory", "512MiB"]).contains("exceeds the 200MiB"));

    let before = daemon.server();
    let (code, text) = run_forebay(directory.path(), &["upgrade"]);
    assert_eq!(code, Some(0), "{text}");
    assert_ne!(daemon.server(), before);
    assert_eq!(reconnect(&daemon).read(4096, 4096).unwrap(), [7; 4096]);
    assert_eq!(limit("limit_bytes"), least);
    daemon.stop();
}
