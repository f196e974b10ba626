//! `forebay status --watch` of the built program.

use super::terminal::{Terminal, shown};
use super::{run_alone, with_daemon_at};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

fn watch(state: &Path, stdout: impl Into<Stdio>) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["status", "--watch", "0.1"])
        .env("FOREBAY_STATE", state)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn without_a_terminal_each_interval_has_a_block_and_a_restart_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let mut running = None;
    with_daemon_at(there, &["disk=/dev/sdb"], |_| {
        let mut child = watch(there, Stdio::piped());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = |part: &str| loop {
            let line = lines.next().unwrap().unwrap();
            assert!(!line.contains('\x1b'), "{line:?}");
            if line.contains(part) {
                break;
            }
        };
        next("ok       forebay 0.0.1-fake serves 1 volume");
        next("none since the start");
        next("  REQS  ");
        next("none in the last 0.");
        next("  REQ/S  ");
        next("none in the last 0.");
        running = Some((child, lines));
    });
    let (mut child, lines) = running.unwrap();
    // The server is gone: it says so, and goes on when another one answers.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut error = String::new();
    errors.read_line(&mut error).unwrap();
    assert!(error.starts_with("forebay: warning: no forebay answers at "), "{error}");
    with_daemon_at(there, &["other=/dev/sdc"], |_| {
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line.starts_with("other ")));
        interrupt(&child);
        lines.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    });
}

#[test]
fn a_closed_pipe_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    with_daemon_at(directory.path(), &["disk=/dev/sdb"], |_| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = watch(directory.path(), writer);
        drop(reader);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "");
    });
}

#[test]
fn a_server_that_does_not_answer_at_first_is_an_error() {
    let ran = run_alone(&["status", "--watch"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.starts_with("forebay: no forebay answers at /"), "{}", ran.err);
}

#[test]
fn on_a_terminal_it_redraws_and_leaves_the_terminal_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    with_daemon_at(directory.path(), &["disk=/dev/sdb"], |_| {
        let terminal = Terminal::new(80, 24);
        let before = shown(&terminal.settings());
        let mut child = terminal.spawn(directory.path(), &["status", "--watch", "0.1"]);
        // The alternate screen, without a cursor; nothing is cleared before it is overwritten.
        let at = terminal.wait_for("\x1b[?1049h\x1b[?25l", 0);
        assert!(!terminal.has_echo());
        let at = terminal.wait_for("every 0.1 s; Ctrl-C ends", at);
        let at = terminal.wait_for("\x1b[H", at);
        let at = terminal.wait_for("none in the last 0.", at);
        let at = terminal.wait_for("every 0.1 s; Ctrl-C ends", at);
        assert!(!terminal.written().contains("\x1b[2J"));
        // A terminal that is too low has fewer lines.
        terminal.resize(80, 5);
        let at = terminal.wait_for("more lines", at);
        // It can be stopped and continued.
        terminal.press("\x1a");
        let at = terminal.wait_for("\x1b[?25h\x1b[?1049l", at);
        // The process that was started becomes the program.
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let is_stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.unwrap().contains(") T ")
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
        assert_eq!(shown(&terminal.settings()), before);
        kill_process(pid, Signal::CONT).unwrap();
        let at = terminal.wait_for("\x1b[?1049h\x1b[?25l", at);
        terminal.press("\x03");
        terminal.wait_for("\x1b[?25h\x1b[?1049l", at);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(shown(&terminal.settings()), before);
        assert!(terminal.written().ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l"));
    });
}
