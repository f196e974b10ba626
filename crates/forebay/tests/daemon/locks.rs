//! Locks that outlive their process for a moment, as after a SIGKILL.

use crate::process::{Daemon, ended, output_of};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that has a file locked until its standard input ends, at the latest after `seconds`.
fn hold(path: &Path, seconds: &str) -> Child {
    let mut child = Command::new("flock")
        .arg(path)
        .args(["sh", "-c", &format!("echo locked; exec timeout {seconds} cat")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child
}

fn disk(directory: &Path) -> String {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    format!("disk={}", path.display())
}

#[test]
fn a_start_waits_for_locks_that_are_given_back_a_moment_later() {
    for locked in ["disk.img", "state/lock"] {
        let directory = tempfile::tempdir().unwrap();
        let volume = disk(directory.path());
        std::fs::create_dir(directory.path().join("state")).unwrap();
        let path = directory.path().join(locked);
        std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut holder = hold(&path, "1");
        let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[volume]);
        assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]), "{locked}");
        daemon.stop();
        holder.wait().unwrap();
    }
}

#[test]
fn a_start_does_not_wait_for_ever_and_says_that_it_waits() {
    let directory = tempfile::tempdir().unwrap();
    let volume = disk(directory.path());
    let mut holder = hold(&directory.path().join("disk.img"), "60");
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--keeper", "no", "--memory", "64MiB", "--volume", &volume, "--state"])
            .arg(directory.path().join("state")),
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is in use by another process or volume"), "{text}");
    assert!(text.contains("tried for 5 s"), "{text}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

/// A start that is to be refused, in a directory of its own.
fn second(name: &str, arguments: &[&str]) -> (tempfile::TempDir, Child) {
    let directory = tempfile::tempdir().unwrap();
    let supply = format!("lab=file:{}", directory.path().join("supply").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--keeper", "no", "--memory", "64MiB", "--io", "epoll"]);
    command.args(["--ups", &supply]).args(arguments);
    if name != "state" {
        command.arg("--state").arg(directory.path().join("state"));
    }
    let socket = directory.path().join("nbd.sock");
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    (directory, child)
}

#[test]
fn what_one_daemon_has_no_other_gets_by_whatever_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let volume = disk(directory.path());
    let own = |name: &str| {
        let file = std::fs::File::create(directory.path().join(name)).unwrap();
        file.set_len(1 << 20).unwrap();
        at(name)
    };
    std::fs::File::create(at("journal")).unwrap().set_len(40 << 20).unwrap();
    let (journal, vault) = (at("journal"), at("vault"));
    let supply = format!("lab=file:{}", at("supply"));
    let daemon = Daemon::start_with(
        directory.path(),
        "epoll",
        "64MiB",
        &[format!("{volume},mode=write-back,protection=journal+ups,journal={journal}")],
        &["--ups", &supply, "--vault", &vault],
    );
    let mut tried = Vec::new();
    for (number, name) in ["disk.img", "journal", "vault", "state"].into_iter().enumerate() {
        let (link, twin) = (at(&format!("{name}.link")), at(&format!("{name}.twin")));
        std::os::unix::fs::symlink(at(name), &link).unwrap();
        let mut names = vec![at(name), link];
        if name != "state" {
            std::fs::hard_link(at(name), &twin).unwrap();
            names.push(twin);
        }
        for (other, path) in names.into_iter().enumerate() {
            let own = own(&format!("own{number}{other}"));
            let child = match name {
                "disk.img" => second(name, &["--volume", &format!("x={path}")]),
                "journal" => {
                    let spec = format!("x={own},protection=journal,journal={path}");
                    second(name, &["--volume", &spec])
                }
                "vault" => second(name, &["--volume", &format!("x={own}"), "--vault", &path]),
                _ => second(name, &["--volume", &format!("x={own}"), "--state", &path]),
            };
            let looked = (name == "journal" || name == "vault").then(|| {
                let mut rescue = Command::new(env!("CARGO_BIN_EXE_forebay"));
                output_of(rescue.args(["rescue", "list", &path]))
            });
            tried.push((path, child, looked));
        }
    }
    for (path, (_directory, child), looked) in tried {
        let output = ended(child);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{path}: {text}");
        assert!(text.contains("in use") && text.contains(&path), "{path}: {text}");
        if let Some(output) = looked {
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{path}: {text}");
            assert!(text.contains("in use") && text.contains(&path), "{path}: {text}");
        }
    }
    daemon.stop();
}

#[test]
fn one_file_is_not_two_things_of_one_daemon_by_whatever_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::File::create(at("file")).unwrap().set_len(80 << 20).unwrap();
    std::fs::File::create(at("other")).unwrap().set_len(80 << 20).unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    let (file, other, link) = (at("file"), at("other"), at("link"));
    let journaled = format!("x={file},protection=journal,journal={link}");
    let mirrored = format!("x={other},protection=journal,journal={file},journal-mirror={link}");
    let tried = [
        second("", &["--volume", &format!("x={file}"), "--volume", &format!("y={link}")]),
        second("", &["--volume", &journaled]),
        second("", &["--volume", &mirrored]),
        second("", &["--volume", &format!("x={file}"), "--vault", &link]),
    ];
    for (_directory, child) in tried {
        let output = ended(child);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let named = text.contains(&file) || text.contains(&link);
        assert!(text.contains("in use") && named, "{text}");
    }
}

/// A loop device over a file, given back at the end.
struct Loop(String);

impl Loop {
    fn new(path: &str) -> Self {
        let output = Command::new("losetup").args(["-f", "--show", path]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().unwrap();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_one_file_is_not_two_things_of_one_daemon_through_loop_devices() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for name in ["file", "other"] {
        std::fs::File::create(at(name)).unwrap().set_len(80 << 20).unwrap();
    }
    let (file, other) = (at("file"), at("other"));
    let (first, second) = (Loop::new(&file), Loop::new(&file));
    let (first, second) = (&first.0, &second.0);
    let journaled =
        |disk: &str, journal: &str| format!("x={disk},protection=journal,journal={journal}");
    let mirrored = format!("{},journal-mirror={second}", journaled(&other, first));
    let pairs = [(&file, first), (first, &file), (first, second)];
    let mut tried = vec![second_start(&["--volume", &mirrored])];
    for (one, two) in pairs {
        let (x, y) = (format!("x={one}"), format!("y={two}"));
        tried.push(second_start(&["--volume", &x, "--volume", &y]));
        tried.push(second_start(&["--volume", &journaled(one, two)]));
        tried.push(second_start(&["--volume", &x, "--vault", two]));
    }
    for (arguments, code, text) in tried {
        assert_eq!(code, Some(1), "{arguments}: {text}");
        assert!(text.contains("is in use under another name"), "{arguments}: {text}");
    }
    // And not of two daemons.
    let (x, y) = (format!("x={file}"), format!("y={first}"));
    for (served, refused) in [(&x, &y), (&y, &x)] {
        let volumes = std::slice::from_ref(served);
        let daemon = Daemon::start(directory.path(), "epoll", "64MiB", volumes);
        let (_, code, text) = second_start(&["--volume", refused]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("is in use under another name"), "{text}");
        daemon.stop();
    }
}

/// A start that is to be refused, with its arguments, how it ended and what it said.
fn second_start(arguments: &[&str]) -> (String, Option<i32>, String) {
    let (_directory, child) = second("", arguments);
    let output = ended(child);
    (arguments.join(" "), output.status.code(), String::from_utf8(output.stderr).unwrap())
}
