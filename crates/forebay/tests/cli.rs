//! The command line of the built program: output, streams and exit codes. The daemon is a real
//! control server with a fake manager behind it.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

#[path = "cli/advise.rs"]
mod advise;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/watch.rs"]
mod watch;

use forebay_control::{ControlServer, StateDir, fake::FakeManager};
use forebay_types::{PROGRAM_SETTINGS, VOLUME_SETTINGS};
use std::{
    path::Path,
    process::{Command, Output},
    sync::Arc,
    thread,
};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(state: &Path, arguments: &[&str]) -> Ran {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(arguments)
        .env_remove("XDG_RUNTIME_DIR")
        .env("FOREBAY_STATE", state)
        .current_dir(state)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// Runs a test against a daemon that serves these volumes.
fn with_daemon(volumes: &[&str], test: impl FnOnce(&FakeManager, &dyn Fn(&[&str]) -> Ran)) {
    let directory = tempfile::tempdir().unwrap();
    with_daemon_at(directory.path(), volumes, |fake| {
        test(fake, &|arguments| run(directory.path(), arguments));
    });
}

/// Runs a test against a daemon with this state directory.
fn with_daemon_at(directory: &Path, volumes: &[&str], test: impl FnOnce(&FakeManager)) {
    let state = StateDir::take(directory).unwrap();
    let server = ControlServer::bind(&state).unwrap();
    let fake = Arc::new(FakeManager::new(volumes));
    let manager = fake.clone();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(server.run(manager, async { drop(ended.await) })).unwrap();
    });
    test(&fake);
    drop(end);
    serving.join().unwrap();
}

/// Runs the program without a daemon.
fn run_alone(arguments: &[&str]) -> Ran {
    run(tempfile::tempdir().unwrap().path(), arguments)
}

#[test]
fn help_shows_every_setting() {
    let directory = tempfile::tempdir().unwrap();
    let help = |arguments: &[&str]| run(directory.path(), arguments).out;
    let (serve, add) = (help(&["serve", "--help"]), help(&["volume", "add", "--help"]));
    let set = help(&["volume", "set", "--help"]);
    for setting in VOLUME_SETTINGS {
        let shown = format!(" {}={}\n", setting.key, setting.values);
        assert!(serve.contains(&shown) && add.contains(&shown), "{shown}: {serve}{add}");
        assert_eq!(set.contains(&shown), setting.is_live, "{shown}: {set}");
    }
    for setting in PROGRAM_SETTINGS {
        let is_in_file_only = ["ups-user", "ups-password", "ups-ca"].contains(&setting.key);
        let shown = format!(" --{} <", setting.key);
        assert_eq!(serve.contains(&shown), !is_in_file_only, "{shown}: {serve}");
    }
}

#[test]
fn version_and_help_go_to_standard_output() {
    let ran = run_alone(&["--version"]);
    assert_eq!((ran.code, ran.out), (Some(0), format!("forebay {}\n", env!("CARGO_PKG_VERSION"))));
    for arguments in [&["--help"][..], &["serve", "--help"], &["volume", "--help"]] {
        let ran = run_alone(arguments);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        assert!(ran.out.contains("Usage: forebay"), "{}", ran.out);
    }
}

#[test]
fn an_invalid_command_line_exits_with_2_and_a_remedy() {
    for (arguments, sentence) in [
        (&["sevre"][..], "unrecognized subcommand 'sevre'"),
        (&["lab", "sim", "--seed", "7"], "the lab is another program: `forebay-lab`"),
        (&[], "Usage: forebay"),
        (&["serve", "--volume", "d"], "forebay: volume \"d\" has no backing: write NAME=BACKING"),
        (
            &["serve", "--volume", "d=/x,mode=write-back"],
            "forebay: volume 'd': write-back without a protection loses acknowledged writes when \
             the power fails or the program is killed: write protection=journal,journal=PATH or \
             protection=ups to keep them, protection=none,accept-loss=yes to accept that, or use \
             mode=write-through\n",
        ),
        (&["serve", "/a/x.img", "/b/x.img"], "forebay: two volumes are called 'x': give one"),
        (&["serve", "--memory", "1GB"], "forebay: invalid memory size '1GB': units are powers of"),
        (&["serve", "--nbd", "tcp:x"], "forebay: listener 'tcp:x' has no port: write unix:PATH"),
        (&["serve", "--io", "kqueue"], "forebay: unknown I/O engine 'kqueue': use auto, "),
        (&["serve", "--tls", "forced"], "forebay: tls: there is no certificate: add tls-cert FILE"),
        (
            &["serve", "--config", "none.toml"],
            "forebay: configuration file none.toml cannot be read",
        ),
        (
            &["serve", "--volume", "d=/x,mode=write-back,protection=ups"],
            "forebay: volume 'd': protection=ups, but no UPS is configured: start the server with \
             --ups NAME@HOST:PORT\n",
        ),
        (
            &["serve", "--ups", "a", "--volume", "d=/x,mode=write-back,protection=ups"],
            "forebay: volume 'd': protection=ups, but there is no vault for dirty data when the \
             battery runs low: start the server with --vault PATH, or write \
             protection=journal,journal=PATH\n",
        ),
        (&["serve", "--ups", "@x"], "forebay: UPS \"@x\" needs a name of letters, digits"),
        (&["serve", "--ups", "a", "--ups", "a@b"], "forebay: ups: two UPSes are called 'a'"),
        (&["serve", "--ups-threshold", "79"], "forebay: ups: there are settings, but no UPS"),
        (&["volume", "set", "d", "mode"], "forebay: 'mode' is not KEY=VALUE: write mode=write-"),
        (&["volume", "set", "d"], "required arguments were not provided"),
    ] {
        let ran = run_alone(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(sentence), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn control_characters_in_arguments_are_escaped_on_output() {
    // Erase screen, bell, a C1 escape, and the right-to-left override.
    let bad = "\x1b[2J\x07\u{9b}1m\u{202e}";
    let (with, volume) = (|text: &str| format!("{text}{bad}"), format!("d=/x,{bad}=1"));
    for arguments in [
        &[with("x").as_str()][..],
        &["serve", "--volume", &volume],
        &["serve", &with("/none/"), "--memory", "64MiB"],
        &["serve", "--nbd", &with("tcp:")],
        &["serve", "--io", bad],
        &["serve", "--memory", bad],
        &["serve", "--config", &with("none")],
        &["serve", &with("--")],
        &["volume", "set", "d", bad],
        &["volume", "set", "d", &with("mode=")],
    ] {
        let ran = run_alone(arguments);
        assert_ne!(ran.code, Some(0), "{arguments:?}");
        let is_unsafe = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.err.contains(is_unsafe), "{arguments:?}: {:?}", ran.err);
        // clap itself drops ESC and BEL from its messages.
        assert!(ran.err.contains("\\u{9b}1m\\u{202e}"), "{arguments:?}: {}", ran.err);
    }
    let ran = run_alone(&["volume", "set", "d\nx", "mode"]);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    with_daemon(&["disk=/dev/sdb"], |_, forebay| {
        let ran = forebay(&["volume", "flush", bad]);
        assert!(ran.err.starts_with("forebay: no volume '\\u{1b}[2J"), "{}", ran.err);
        // The right-to-left override is no control character, but would garble a table.
        let added = forebay(&["volume", "add", "x\u{202e}=/dev/y"]);
        assert_eq!(
            added.out.split(':').next(),
            Some("volume 'x\\u{202e}' is served"),
            "{}",
            added.err
        );
        assert!(!forebay(&["volume", "list"]).out.contains('\u{202e}'));
    });
}

#[test]
fn a_configuration_error_names_the_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f.toml"), "[[volume]]\nname = 'a'\nbakcing = '/x'\n")
        .unwrap();
    let ran = run(directory.path(), &["serve", "--config", "f.toml"]);
    assert_eq!(ran.code, Some(2));
    let sentence =
        "forebay: f.toml:3:1: volume 'a': unknown volume setting 'bakcing': did you mean";
    assert!(ran.err.starts_with(sentence), "{}", ran.err);
}

#[test]
fn commands_without_a_daemon_suggest_starting_one() {
    for arguments in [&["status"][..], &["stop"], &["volume", "list"], &["volume", "flush", "a"]] {
        let ran = run_alone(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
        assert!(ran.err.starts_with("forebay: no forebay answers at /"), "{}", ran.err);
        assert!(ran.err.contains("start one with `forebay serve`"), "{}", ran.err);
    }
}

#[test]
fn status_prints_a_table_or_json() {
    with_daemon(&["disk=/dev/sdb", "db=/dev/sdc,mode=bypass"], |fake, forebay| {
        fake.set_dirty("disk", 10 << 20);
        let ran = forebay(&["status"]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        for part in [
            "ok       forebay 0.0.1-fake serves 2 volumes to 3 clients, up 1 h 2 min\n",
            "requests            1.0 k since the start, 85.8 % served from memory\n",
            "memory              20 MiB of 512 MiB in use, 10 MiB dirty\n",
            "VOLUME  MODE           STATE     SIZE  HIT %   REQS    HIT   MISS  DIRTY  CACHED\n",
            "disk    write-through  serving   1.0G   85.8   1.0k      -      -    10M     20M\n",
            "db      bypass         serving   1.0G      -      0      -      -      0       0\n",
        ] {
            assert!(ran.out.contains(part), "{part}\n{}", ran.out);
        }
        let all = forebay(&["status", "--all"]).out;
        for part in [
            "  process             2147483647, version 0.0.1-fake\n",
            "  workers             2 on epoll; polled for 1 s\n",
            "  listening at        tcp:[::1]:10809\n",
            "  total               limit 1.0 GiB, 4.0 MiB of it for the index\n",
            "  patrol              parity, the first walk has not ended; no damage found\n",
            "ok       volume disk: serving, write-through, 1.0 GiB\n",
            "ok       volume db: serving, bypass, 1.0 GiB\n",
        ] {
            assert!(all.contains(part), "{part}\n{all}");
        }
        let one = forebay(&["status", "db"]).out;
        assert!(all.ends_with(&one) && one.starts_with("ok       volume db: "), "{one}");
        let json: serde_json::Value =
            serde_json::from_str(&forebay(&["status", "--json"]).out).unwrap();
        assert_eq!(json["volumes"][0]["counters"]["read_hits"], 875);
        let one: serde_json::Value =
            serde_json::from_str(&forebay(&["status", "disk", "--json"]).out).unwrap();
        assert_eq!(one, json["volumes"][0]);
        let ran = forebay(&["status", "nix"]);
        let sentence = "forebay: no volume 'nix': see the names with `forebay volume list`\n";
        assert_eq!((ran.code, ran.err.as_str()), (Some(1), sentence));
        let json: serde_json::Value =
            serde_json::from_str(&forebay(&["volume", "list", "--json"]).out).unwrap();
        assert_eq!(json[1]["mode"], "bypass");
    });
}

#[test]
fn volumes_are_added_changed_flushed_and_removed() {
    with_daemon(&["disk=/dev/sdb"], |fake, forebay| {
        let output = |arguments: &[&str]| {
            let ran = forebay(arguments);
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
            ran.out
        };
        fake.set_dirty("disk", 1 << 20);
        assert_eq!(output(&["volume", "flush", "disk"]), "volume 'disk' is flushed\n");
        assert_eq!(output(&["volume", "trust", "disk"]), "volume 'disk' is trusted again\n");
        assert_eq!(
            output(&["volume", "add", "b=delay(read=1ms,write=1ms):b.img,read-only=yes"]),
            "volume 'b' is served: 1.0 GiB, write-through, read-only\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&output(&["volume", "list", "--json"])).unwrap();
        let backing = json[1]["backing"].as_str().unwrap();
        assert!(backing.starts_with("delay(read=1ms,write=1ms):/"), "absolute: {backing}");
        assert!(backing.ends_with("/b.img"), "{backing}");
        assert_eq!(
            output(&["volume", "set", "b", "mode=bypass", "read-only=no"]),
            "volume 'b' is changed: 1.0 GiB, bypass\n"
        );
        assert!(!output(&["status"]).contains("journal"), "no journal is in use");
        let journaled = "vm=/vm,mode=write-back,protection=journal,journal=error(rate=0):j";
        assert_eq!(
            output(&["volume", "add", journaled]),
            "volume 'vm' is served: 1.0 GiB, write-back\n"
        );
        let json: serde_json::Value = serde_json::from_str(&output(&["status", "--json"])).unwrap();
        let journal = json["volumes"][2]["journal"].as_str().unwrap();
        assert!(journal.starts_with("error(rate=0):/") && journal.ends_with("/j"), "{journal}");
        assert_eq!(json["journals"][0]["name"], journal);
        assert!(output(&["status"]).contains("\njournals            working, "));
        assert!(output(&["status", "--all"]).contains(&format!("\nJournal {journal}\n")));
        assert_eq!(output(&["volume", "remove", "b"]), "volume 'b' is removed\n");
        assert!(!output(&["volume", "list"]).contains("\nb "), "volume b is gone");
        fake.set_dirty("disk", 1 << 20);
        let refused = forebay(&["volume", "discard", "disk"]);
        assert_eq!(refused.code, Some(1));
        assert!(
            refused.err.contains("1MiB of volume 'disk' may not be on its disk"),
            "{}",
            refused.err
        );
        assert_eq!(
            output(&["volume", "discard", "disk", "--yes"]),
            "volume 'disk' is removed; 1.0 MiB given up\n"
        );
    });
}

#[test]
fn a_request_refused_by_the_daemon_exits_with_1_and_its_message() {
    with_daemon(&["disk=/dev/sdb", "broken=/x"], |_, forebay| {
        for (arguments, sentence) in [
            (
                &["volume", "remove", "nix"][..],
                "forebay: no volume 'nix': list the volumes to see their names\n",
            ),
            (
                &["volume", "flush", "broken"],
                "forebay: volume 'broken': its disk cannot be written: replace it\n",
            ),
            (&["stop"], "forebay: volume 'broken': its disk cannot be written: replace it\n"),
            (
                &["volume", "add", "disk=/x"],
                "forebay: volume 'disk' is served already: choose another name\n",
            ),
            (
                &["volume", "set", "disk", "mode=write-back"],
                "forebay: volume 'disk': write-back without a protection loses acknowledged \
                 writes when the power fails or the program is killed: write \
                 protection=journal,journal=PATH or protection=ups to keep them, \
                 protection=none,accept-loss=yes to accept that, or use mode=write-through\n",
            ),
            (
                &["volume", "set", "disk", "protection=ups"],
                "forebay: volume 'disk': protection cannot change from unstated to ups while \
                 the volume is served: remove the volume, and add it again with the new settings\n",
            ),
        ] {
            let ran = forebay(arguments);
            assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{arguments:?}");
            assert_eq!(ran.err, sentence);
        }
    });
}

#[test]
fn stop_waits_until_everything_is_written() {
    with_daemon(&["disk=/dev/sdb"], |fake, forebay| {
        fake.set_dirty("disk", 1 << 30);
        let ran = forebay(&["stop"]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "forebay has stopped\n"));
        assert!(fake.is_stopped());
    });
}

#[test]
fn a_closed_output_pipe_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .arg("--help")
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_drill_exits_with_1_if_data_would_have_been_lost() {
    with_daemon(&["disk=/dev/sdb"], |fake, forebay| {
        fake.set_dirty("disk", 1 << 30);
        let ran = forebay(&["drill"]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        for part in
            ["everything dirty was saved", "1.0 GiB", "battery: 640 s", "stable after 1.5 s"]
        {
            assert!(ran.out.contains(part), "{part}: {}", ran.out);
        }
        let ran = forebay(&["drill", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["saved_in_time"], true);
    });
    with_daemon(&["slow=/dev/sdb"], |_, forebay| {
        let ran = forebay(&["drill"]);
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert!(ran.out.contains("drill of 2026-02-28T13:05:09Z"), "{}", ran.out);
        assert!(ran.err.contains(": replace the battery"), "{}", ran.err);
    });
    with_daemon(&["broken=/dev/sdb"], |_, forebay| {
        let ran = forebay(&["drill"]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
        assert!(ran.err.contains("its disk cannot be written: replace it"), "{}", ran.err);
    });
}
