//! The built program: its output and exit codes.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

use std::process::Command;

const TRACE: &str = "time_us,volume,op,offset_bytes,length_bytes\n\
                     1,0,R,0,4096\n2,0,W,4096,8192\n3,0,R,0,4096\n";

/// Runs the program beside a trace; returns its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("t.csv"), TRACE).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-lab"));
    let output = command.args(arguments).current_dir(&directory).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_subcommand_runs() {
    for (arguments, begin, part) in [
        (&["replay", "t.csv", "--memory", "4KiB"][..], "| trace | memory |", "| t "),
        (&["run"], "cache-effect ", "\ndisk-trouble "),
        (&["sim", "--seed", "7", "--seeds", "2", "--operations", "50"], "2 runs, 0 failed\n", ""),
        (&["site", "--seed", "7", "--seeds", "3"], "3 schedules, 0 failed\n", "takeovers"),
        (&["enumerate", "--operations", "1", "--threads", "1"], "140 workloads", ""),
        (&["--version"], "forebay-lab ", ""),
    ] {
        let (code, out, err) = run(arguments);
        assert_eq!((code, &*err), (0, ""), "{arguments:?}");
        assert!(out.starts_with(begin) && out.contains(part), "{arguments:?}: {out}");
    }
}

#[test]
fn a_broken_guarantee_or_an_unreadable_file_fails() {
    let planted = &["sim", "--seeds", "8", "--sabotage", "lose-write"];
    let (code, out, err) = run(planted);
    assert_eq!((code, out.contains("again: forebay-lab sim --seed ")), (1, true), "{out}");
    assert!(err.starts_with("forebay-lab: ") && err.contains(" broke a guarantee"), "{err}");
    let (code, out, err) = run(&["replay", "none.csv"]);
    assert_eq!((code, &*out), (1, ""));
    assert!(err.contains("none.csv"), "{err}");
}

#[test]
fn a_wrong_command_line_is_rejected_with_a_remedy() {
    for (arguments, sentence) in [
        (&["run", "cash-effect"][..], "choose one of cache-effect, disk-time"),
        (&["run", "--report", "x.html"], "required arguments were not provided"),
        (&["sim", "--sabotage", "x"], "no planted bug 'x': choose one of skip-copy, "),
        (&["replay", "t.csv", "--policy", "fifo"], "no eviction policy 'fifo': choose one of lru"),
        (&["site", "--sabotage", "x"], "no planted bug 'x': choose one of fence-expires, "),
        (&["simulate"], "unrecognized subcommand"),
        (&[], "Usage: forebay-lab"),
    ] {
        let (code, out, err) = run(arguments);
        assert_eq!((code, &*out), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(sentence), "{arguments:?}: {err}");
    }
}

#[test]
fn echoed_arguments_do_not_act_on_the_terminal() {
    let bad = "\x1b[2J\x07\u{9b}1m\u{202e}";
    for arguments in [&["replay", bad][..], &["run", bad]] {
        let (code, _, err) = run(arguments);
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(code != 0 && !err.contains(acts), "{arguments:?}: {err:?}");
        assert!(err.contains("\\u{9b}1m\\u{202e}"), "{arguments:?}: {err}");
    }
}
