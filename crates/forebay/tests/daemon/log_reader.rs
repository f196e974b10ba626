//! The built program while the reader of its log hangs: standard error is a full pipe that is not
//! read.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::power::{UpsMachine, assert_all, content, write_all};
use crate::process::{Daemon, MIB, UNPROTECTED, make_file};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

/// A pipe for the log of a daemon.
struct LogPipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl LogPipe {
    fn new() -> Self {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        Self { reader, writer }
    }

    /// The end for the daemon.
    fn end(&self) -> OwnedFd {
        self.writer.try_clone().unwrap()
    }

    /// Fills the pipe, so that a write to it blocks.
    fn fill(&self) {
        // Opened again, because the daemon's own end must stay blocking.
        let path = format!("/proc/self/fd/{}", self.writer.as_raw_fd());
        let filler = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let filler = filler.unwrap();
        for size in [4096, 1] {
            while rustix::io::write(&filler, &[b'.'; 4096][..size]) != Err(Errno::AGAIN) {}
        }
    }

    /// Reads until the daemon and its keeper have exited.
    fn read_to_end(self) -> String {
        drop(self.writer);
        let mut text = Vec::new();
        File::from(self.reader).read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[test]
fn dirty_data_is_dumped_at_low_battery_although_the_log_is_not_read() {
    // The disk is too slow to take much while the battery lasts.
    let machine = UpsMachine::new("delay(write=5s):");
    let (ups, log) = (machine.start_ups(), LogPipe::new());
    let vault = machine.path("vault").display().to_string();
    let arguments = ["--ups", &machine.ups, "--ups-settle-seconds", "1", "--vault", &vault];
    let daemon = Daemon::start_on_pipe(
        log.end(),
        machine.directory(),
        &machine.volume,
        &[&["--keeper", "no"], &arguments[..]].concat(),
    );
    machine.wait_for_power("write-back begins", |power| power.write_back_allowed);
    let mut client = daemon.client("disk");
    write_all(&mut client);
    log.fill();
    ups.set_status("OB DISCHRG LB");
    machine.wait_for_power("writes are halted", |power| power.halted);
    assert!(client.write(0, &content(7)).is_err(), "no write is acknowledged any more");
    machine.wait_for_dump();
    assert_all(&mut client);
    let (code, said) = daemon.run(&["status"]);
    assert_eq!(code, Some(0), "{said}");
    ups.set_status("OL");
    machine.wait_for_power("the dump is discarded", |power| !power.halted);
    drop(client);
    daemon.stop();
}

#[test]
fn sigterm_flushes_and_ends_a_daemon_whose_log_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, MIB);
    let volume = format!("disk={},{UNPROTECTED}", disk.display());
    let log = LogPipe::new();
    let daemon = Daemon::start_on_pipe(log.end(), directory.path(), &volume, &["--keeper", "no"]);
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    log.fill();
    drop(client);
    daemon.stop();
    assert_eq!(std::fs::read(&disk).unwrap()[..4096], content(0));
    assert!(!log.read_to_end().contains("shutdown complete"), "the pipe was full");
}

#[test]
fn a_journal_that_fails_while_the_log_is_not_read_does_not_hang_writes() {
    let directory = tempfile::tempdir().unwrap();
    let [disk, journal] = ["disk.img", "journal"].map(|name| directory.path().join(name));
    make_file(&disk, 16 * MIB);
    make_file(&journal, 40 * MIB);
    let (at, on) = (disk.display(), journal.display());
    let volume = format!("disk={at},mode=write-back,protection=journal,journal={on}");
    let log = LogPipe::new();
    let daemon = Daemon::start_on_pipe(log.end(), directory.path(), &volume, &["--keeper", "no"]);
    let mut client = daemon.client("disk");
    client.write(0, &content(0)).unwrap();
    log.fill();
    std::fs::rename(&journal, directory.path().join("away")).unwrap();
    wait_until("the journal has failed", PATIENCE, || {
        daemon.status()["journals"][0]["state"].as_str() == Some("failed")
    });
    client.write(4096, &content(1)).unwrap();
    assert_eq!(std::fs::read(&disk).unwrap()[4096..8192], content(1));
    drop(client);
    daemon.stop();
    assert_eq!(std::fs::read(&disk).unwrap()[..4096], content(0));
}

#[test]
fn a_keeper_whose_log_is_not_read_starts_the_next_server() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, MIB);
    let volume = format!("disk={},{UNPROTECTED}", disk.display());
    let log = LogPipe::new();
    let daemon = Daemon::start_on_pipe(log.end(), directory.path(), &volume, &["--keeper", "yes"]);
    daemon.client("disk").write(0, &content(0)).unwrap();
    log.fill();
    let killed = daemon.server();
    daemon.kill_server();
    wait_until("the next server serves", PATIENCE, || {
        let (code, said) = daemon.run(&["status", "--json"]);
        let pid = format!("\"pid\": {}", killed.as_raw_nonzero());
        code == Some(0) && !said.contains(&pid)
    });
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(0));
    daemon.stop();
}

#[test]
fn the_last_lines_of_the_log_come_out_before_the_exit() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, MIB);
    let volume = format!("disk={}", disk.display());
    let log = LogPipe::new();
    let daemon = Daemon::start_on_pipe(log.end(), directory.path(), &volume, &["--keeper", "no"]);
    daemon.stop();
    let log = log.read_to_end();
    assert!(log.contains("shutdown complete, all dirty data flushed"), "{log}");
}

/// A helper thread's panic must not leave a server behind that only seems to work.
#[cfg(debug_assertions)]
#[test]
fn a_panic_of_a_helper_thread_aborts_the_server_and_the_keeper_starts_the_next() {
    use std::io::Write;
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.img");
    make_file(&disk, MIB);
    // The disk never gets the data.
    let volume = format!("disk=delay(write=forever):{},{UNPROTECTED}", disk.display());
    let pipe = directory.path().join("panic");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let daemon = Daemon::start_kept_among(
        directory.path(),
        &[volume],
        &[("FOREBAY_PANIC_PIPE", pipe.to_str().unwrap())],
    );
    let first = daemon.server();
    daemon.client("disk").write(0, &content(0)).unwrap();
    File::options().write(true).open(&pipe).unwrap().write_all(b"!").unwrap();
    let pid = format!("\"pid\": {}", first.as_raw_nonzero());
    wait_until("the next server serves", PATIENCE, || {
        let (code, said) = daemon.run(&["status", "--json"]);
        code == Some(0) && !said.contains(&pid)
    });
    assert_eq!(daemon.client("disk").read(0, 4096).unwrap(), content(0));
    for text in ["thread 'planted' panicked at ", "planted by a test", "exit=Signal(6)"] {
        daemon.wait_for_log(text);
    }
}
