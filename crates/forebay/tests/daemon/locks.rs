//! Locks on devices and the state directory, including locks that briefly outlive their process.

use crate::process::{Daemon, failed_start, make_file, output_of, wait_for_exit};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts a process that locks a file until its standard input closes, for at most `seconds`.
fn lock_file(path: &Path, seconds: &str) -> Child {
    let mut child = Command::new("flock")
        .arg(path)
        .args(["sh", "-c", &format!("echo locked; exec timeout {seconds} cat")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 7];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    child
}

fn disk(directory: &Path) -> String {
    let path = directory.join("disk.img");
    make_file(&path, 1 << 20);
    format!("disk={}", path.display())
}

#[test]
fn a_start_waits_for_locks_that_are_soon_released() {
    for locked in ["disk.img", "state/lock"] {
        let directory = tempfile::tempdir().unwrap();
        let volume = disk(directory.path());
        std::fs::create_dir(directory.path().join("state")).unwrap();
        let path = directory.path().join(locked);
        std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut holder = lock_file(&path, "1");
        let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[volume]);
        assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]), "{locked}");
        daemon.stop();
        holder.wait().unwrap();
    }
}

#[test]
fn a_start_gives_up_on_a_held_lock_after_5_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let volume = disk(directory.path());
    let mut holder = lock_file(&directory.path().join("disk.img"), "60");
    let text = failed_start(directory.path(), &["--volume", &volume]);
    assert!(text.contains("is in use by another process or volume"), "{text}");
    assert!(text.contains("file in use, waiting for its release"), "{text}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[test]
fn a_volume_that_is_served_already_is_refused_for_its_name_and_not_for_its_lock() {
    let directory = tempfile::tempdir().unwrap();
    let volume = disk(directory.path());
    let volumes = std::slice::from_ref(&volume);
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", volumes);
    let (code, said) = daemon.run(&["volume", "add", &volume]);
    let expected = "there is already a volume named 'disk': choose another name";
    assert!(code == Some(1) && said.contains(expected), "{said}");
    daemon.stop();
}

/// Starts a second daemon, which should fail, in a directory of its own.
fn spawn_second(name: &str, arguments: &[&str]) -> (tempfile::TempDir, Child) {
    let directory = tempfile::tempdir().unwrap();
    let ups = format!("lab=file:{}", directory.path().join("ups").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--keeper", "no", "--memory", "64MiB", "--io", "epoll"]);
    command.args(["--ups", &ups]).args(arguments);
    if name != "state" {
        command.arg("--state").arg(directory.path().join("state"));
    }
    let socket = directory.path().join("nbd.sock");
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    (directory, child)
}

#[test]
fn no_other_process_can_open_a_daemons_devices_under_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let volume = disk(directory.path());
    let own = |name: &str| {
        make_file(at(name), 1 << 20);
        at(name)
    };
    make_file(at("journal"), 40 << 20);
    let (journal, vault) = (at("journal"), at("vault"));
    let ups = format!("lab=file:{}", at("ups"));
    let daemon = Daemon::start_with(
        directory.path(),
        "epoll",
        "64MiB",
        &[format!("{volume},mode=write-back,protection=journal+ups,journal={journal}")],
        &["--ups", &ups, "--vault", &vault],
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
                "disk.img" => spawn_second(name, &["--volume", &format!("x={path}")]),
                "journal" => {
                    let spec = format!("x={own},protection=journal,journal={path}");
                    spawn_second(name, &["--volume", &spec])
                }
                "vault" => spawn_second(name, &["--volume", &format!("x={own}"), "--vault", &path]),
                _ => spawn_second(name, &["--volume", &format!("x={own}"), "--state", &path]),
            };
            let rescue = (name == "journal" || name == "vault").then(|| {
                let mut rescue = Command::new(env!("CARGO_BIN_EXE_forebay"));
                output_of(rescue.args(["rescue", "list", &path]))
            });
            tried.push((path, child, rescue));
        }
    }
    for (path, (_directory, child), rescue) in tried {
        let output = wait_for_exit(child);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{path}: {text}");
        assert!(text.contains("in use") && text.contains(&path), "{path}: {text}");
        if let Some(output) = rescue {
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{path}: {text}");
            assert!(text.contains("in use") && text.contains(&path), "{path}: {text}");
        }
    }
    daemon.stop();
}

#[test]
fn one_file_cannot_serve_two_roles_in_a_daemon_under_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    make_file(at("file"), 80 << 20);
    make_file(at("other"), 80 << 20);
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    let (file, other, link) = (at("file"), at("other"), at("link"));
    let journaled = format!("x={file},protection=journal,journal={link}");
    let mirrored = format!("x={other},protection=journal,journal={file},journal-mirror={link}");
    let tried = [
        spawn_second("", &["--volume", &format!("x={file}"), "--volume", &format!("y={link}")]),
        spawn_second("", &["--volume", &journaled]),
        spawn_second("", &["--volume", &mirrored]),
        spawn_second("", &["--volume", &format!("x={file}"), "--vault", &link]),
    ];
    for (_directory, child) in tried {
        let output = wait_for_exit(child);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let named = text.contains(&file) || text.contains(&link);
        assert!(text.contains("in use") && named, "{text}");
    }
}

#[test]
fn a_disk_of_a_virtual_machine_is_refused_and_an_image_served_by_name_only() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (volume, path) = (disk(there), there.join("disk.img"));
    // A lock of `fcntl` on all of the file, as of libvirt's lock daemon on one byte.
    let machine = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&machine, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let text = failed_start(there, &["--volume", &volume]);
    assert!(text.contains("is in use by another process or volume"), "{text}");
    drop(machine);
    let mut image = std::fs::File::options().write(true).open(&path).unwrap();
    std::io::Write::write_all(&mut image, b"QFI\xFB\0\0\0\x03").unwrap();
    drop(image);
    for arguments in [&["--volume", &volume][..], &["--check", "--volume", &volume]] {
        let text = failed_start(there, arguments);
        assert!(text.contains("is a disk image in the format qcow2, not a raw disk"), "{text}");
        assert!(text.contains("add format=raw to the volume"), "{text}");
    }
    let daemon = Daemon::start(there, "epoll", "64MiB", &[format!("{volume},format=raw")]);
    assert_eq!(daemon.client("disk").read(0, 512).unwrap()[..3], *b"QFI");
    daemon.stop();
}

#[test]
fn a_volume_with_the_content_of_an_image_is_served_again_after_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let spec =
        format!("{},mode=write-back,protection=none,accept-loss=yes", disk(directory.path()));
    let daemon = Daemon::start_kept(directory.path(), "epoll", "64MiB", &[spec]);
    let mut sector = [0; 512];
    sector[..8].copy_from_slice(b"QFI\xFB\0\0\0\x03");
    let mut client = daemon.client("disk");
    client.write(0, &sector).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.kill_server();
    daemon.wait_for_log_times("listening for NBD clients", 2);
    assert_eq!(daemon.client("disk").read(0, 512).unwrap(), sector);
    daemon.stop();
}

/// Runs a tool of QEMU, and returns what it wrote.
fn qemu(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = output_of(Command::new(program).args(arguments));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
#[ignore = "needs qemu-utils"]
fn tool_qemu_and_a_daemon_refuse_what_the_other_one_has() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let (volume, path) = (disk(there), there.join("disk.img").display().to_string());
    let write = &["-f", "raw", "-c", "write 0 512", &path][..];
    let read = &["-r", "-f", "raw", "-c", "read 0 512", &path][..];
    for (spec, may_read) in [(volume.clone(), false), (format!("{volume},read-only=yes"), true)] {
        let daemon = Daemon::start(there, "epoll", "64MiB", &[spec]);
        let (is_written, said) = qemu("qemu-io", write);
        assert!(!is_written && said.contains("lock"), "{said}");
        let (is_read, said) = qemu("qemu-io", read);
        assert_eq!(is_read, may_read, "{said}");
        daemon.stop();
    }
    let (is_written, said) = qemu("qemu-io", write);
    assert!(is_written, "{said}");
    // A program of QEMU that holds the image until its standard input ends.
    for (more, may_read) in [(&[][..], false), (&["-r"], true)] {
        let mut holder = Command::new("qemu-io");
        holder.args(more).args(["-f", "raw", &path]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"read 0 512\n").unwrap();
        // Its prompt, and the start of the answer.
        let mut answer = [0; 12];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut answer).unwrap();
        let text = failed_start(there, &["--volume", &volume]);
        assert!(text.contains("QEMU has locked it"), "{text}");
        let spec = format!("{volume},read-only=yes");
        if may_read {
            Daemon::start(there, "epoll", "64MiB", &[spec]).stop();
        } else {
            assert!(failed_start(there, &["--volume", &spec]).contains("QEMU has locked it"));
        }
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }
    // An image that qemu-img makes is recognised.
    for format in ["qcow2", "vmdk", "vhdx", "vpc", "vdi", "qed", "parallels"] {
        let image = there.join(format).display().to_string();
        let (is_made, said) = qemu("qemu-img", &["create", "-q", "-f", format, &image, "4M"]);
        assert!(is_made, "{said}");
        let text = failed_start(there, &["--check", &image]);
        assert!(text.contains("is a disk image in the format"), "{format}: {text}");
    }
}

/// A loop device over a file, detached on drop.
struct LoopDevice(String);

impl LoopDevice {
    fn new(path: &str) -> Self {
        Self::with(&[path])
    }

    fn with(arguments: &[&str]) -> Self {
        let output =
            Command::new("losetup").args(["-f", "--show"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().unwrap();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_one_file_cannot_serve_two_roles_through_loop_devices() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for name in ["file", "other"] {
        make_file(at(name), 80 << 20);
    }
    let (file, other) = (at("file"), at("other"));
    let (first, second) = (LoopDevice::new(&file), LoopDevice::new(&file));
    let (first, second) = (&first.0, &second.0);
    let journaled =
        |disk: &str, journal: &str| format!("x={disk},protection=journal,journal={journal}");
    let mirrored = format!("{},journal-mirror={second}", journaled(&other, first));
    let pairs = [(&file, first), (first, &file), (first, second)];
    assert_alias_refused(&["--volume", &mirrored]);
    for (one, two) in pairs {
        let (x, y) = (format!("x={one}"), format!("y={two}"));
        assert_alias_refused(&["--volume", &x, "--volume", &y]);
        assert_alias_refused(&["--volume", &journaled(one, two)]);
        assert_alias_refused(&["--volume", &x, "--vault", two]);
    }
    // Nor can two daemons share it.
    let (x, y) = (format!("x={file}"), format!("y={first}"));
    for (served, refused) in [(&x, &y), (&y, &x)] {
        let volumes = std::slice::from_ref(served);
        let daemon = Daemon::start(directory.path(), "epoll", "64MiB", volumes);
        assert_alias_refused(&["--volume", refused]);
        daemon.stop();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_the_status_names_the_tail_of_a_disk_that_is_not_exported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file").display().to_string();
    make_file(&file, (1 << 20) + 512);
    let device = LoopDevice::with(&["--sector-size=4096", &file]);
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &[format!("disk={}", device.0)]);
    let volume = daemon.status()["volumes"][0].clone();
    assert_eq!(volume["size_bytes"], 1 << 20);
    let (_, shown) = daemon.run(&["status"]);
    for text in [volume["notes"].to_string(), shown.replace("\n         ", " ")] {
        assert!(text.contains("the last 512 bytes of its disk are less than a block"), "{text}");
    }
    daemon.stop();
}

/// Asserts that a daemon with these arguments refuses to start because a device has two names.
fn assert_alias_refused(arguments: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let text = failed_start(directory.path(), arguments);
    assert!(text.contains("is in use under another name"), "{arguments:?}: {text}");
}
