//! `forebay top` of the built program, in a pseudo-terminal.

use super::terminal::{Terminal, shown};
use super::{run_alone, with_daemon_at};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;

/// What the program writes last: it shows the cursor and leaves the alternate screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

fn kill(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn it_draws_follows_the_size_and_leaves_the_terminal_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    with_daemon_at(directory.path(), &["disk=/dev/sdb", "db=/dev/sdc"], |_| {
        let terminal = Terminal::new(80, 24);
        let before = shown(&terminal.settings());
        let mut child = terminal.spawn(directory.path(), &["top", "--interval", "0.1"]);
        let at = terminal.wait_for("\x1b[?1049h", 0);
        let at = terminal.wait_for("q quit", at);
        assert!(!terminal.has_echo());
        assert!(terminal.written().contains("write-through"));
        terminal.press("?");
        // Only characters that differ from those before are written.
        let at = terminal.wait_for("Keys;", at);
        terminal.press("x");
        terminal.resize(70, 4);
        let at = terminal.wait_for("columns", at);
        terminal.resize(100, 30);
        let at = terminal.wait_for("q quit", at);
        // Ctrl-Z stops it, with the terminal restored meanwhile.
        terminal.press("\x1a");
        let at = terminal.wait_for(LEAVE, at);
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        assert_eq!(shown(&terminal.settings()), before);
        kill(&child, Signal::CONT);
        let at = terminal.wait_for("q quit", at);
        terminal.press("q");
        terminal.wait_for(LEAVE, at);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(shown(&terminal.settings()), before);
        // The cursor may be shown once more.
        assert!(terminal.written().trim_end_matches("\x1b[?25h").ends_with("\x1b[?1049l"));
    });
}

#[test]
fn a_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    with_daemon_at(directory.path(), &["disk=/dev/sdb"], |_| {
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let terminal = Terminal::new(80, 24);
            let before = shown(&terminal.settings());
            let mut child = terminal.spawn(directory.path(), &["top"]);
            let at = terminal.wait_for("q quit", 0);
            kill(&child, signal);
            terminal.wait_for(LEAVE, at);
            assert_eq!(child.wait().unwrap().code(), Some(0), "{signal:?}");
            assert_eq!(shown(&terminal.settings()), before);
        }
    });
}

#[test]
fn a_server_that_goes_away_is_said_to_be_and_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(100, 24);
    let mut running = None;
    with_daemon_at(directory.path(), &["disk=/dev/sdb"], |_| {
        let child = terminal.spawn(directory.path(), &["top", "--interval", "0.1"]);
        running = Some((child, terminal.wait_for("q quit", 0)));
    });
    let (mut child, at) = running.unwrap();
    let at = terminal.wait_for("NOT UP TO DATE", at);
    let at = terminal.wait_for("no forebay answers at", at);
    with_daemon_at(directory.path(), &["another=/dev/sdc"], |_| {
        let at = terminal.wait_for("another", at);
        terminal.press("q");
        terminal.wait_for(LEAVE, at);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    });
}

#[test]
fn without_a_terminal_or_a_server_it_is_an_error() {
    let ran = run_alone(&["top"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    let sentence = "forebay: top needs a terminal for its input and output: use `forebay \
                    status --watch`, which prints to files and pipes\n";
    assert_eq!(ran.err, sentence);
    let directory = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(80, 24);
    let mut child = terminal.spawn(directory.path(), &["top"]);
    terminal.wait_for("no forebay answers at", 0);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!terminal.written().contains("\x1b[?1049h"), "the screen was not changed");
}
