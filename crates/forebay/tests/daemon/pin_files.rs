//! Files on a file system on a volume are pinned, and followed when they move.
//!
//! The kernel's client is nbdfuse with a loop device over it, because few kernels of test machines
//! have an NBD client; `scripts/kernel.sh` uses that one.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file, output_of, wait_for_exit};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const LINE: u64 = 4096;
const DISK_BYTES: u64 = 512 * MIB;
/// No measurement of the disk, and no I/O but that of clients and pins.
const QUIET: &str = "prefetch=no,gather-below=off,warm=no,learn=no";

fn start(directory: &Path) -> Daemon {
    let volume = |name: &str| {
        let path = directory.join(format!("{name}.img"));
        make_file(&path, DISK_BYTES);
        format!("{name}={},{QUIET}", path.display())
    };
    Daemon::start(directory, "auto", "64MiB", &[volume("disk"), volume("other")])
}

/// Runs a command that fails. Returns its text.
fn refused(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = daemon.run(arguments);
    assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {code:?}: {text}");
    text
}

fn succeed(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = daemon.run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

/// The setting `pin` of a volume: `none`, or its ranges.
fn pins(daemon: &Daemon, volume: usize) -> String {
    let status = daemon.status();
    status["volumes"][volume]["settings"]["pin"].as_str().unwrap_or("none").to_owned()
}

#[test]
fn files_that_are_not_on_the_volume_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    let beside = directory.path().join("disk.img").display().to_string();
    for command in ["pin", "unpin"] {
        for (file, reason) in [
            ("./nosuch", "cannot find ./nosuch in volume 'disk': No such file or directory"),
            ("./", "it is not a regular file: name a regular file"),
            ("/dev/null", "it is not a regular file"),
            ("/proc/version", "it is on a proc file system, which is on no single block device"),
            // The disk itself is a file of another file system. Which one depends on the machine.
            (&*beside, "cannot find "),
        ] {
            let text = refused(&daemon, &[command, "disk", file]);
            assert!(text.contains(reason), "{command} {file}: {text}");
            // A range beside it is not pinned either.
            refused(&daemon, &[command, "disk", "0+1MiB", file]);
        }
        let text = refused(&daemon, &[command, "nosuch", "./x"]);
        assert!(text.contains("no volume 'nosuch'"), "{text}");
    }
    for (arguments, reason) in [
        (&["--follow", "0+4096"][..], "ranges stay where they are, and cannot be followed"),
        (&["--follow=0", "./x"], "--follow=0 is not a number of seconds: write 1 to 86400"),
        (&["--follow=x", "./x"], "--follow=x is not a number of seconds"),
        (&["--follow", "./nosuch"], "No such file or directory"),
    ] {
        let text = refused(&daemon, &[&["pin", "disk"], arguments].concat());
        assert!(text.contains(reason), "{arguments:?}: {text}");
    }
    assert_eq!([pins(&daemon, 0), pins(&daemon, 1)], ["none", "none"]);
    daemon.stop();
}

/// Runs a program that succeeds. Returns its output.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = output_of(Command::new(program).args(arguments));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The volume `disk`, mounted through nbdfuse and a loop device. Undone when dropped.
struct Mounted {
    /// The program of the mount, which ends when it is unmounted.
    nbdfuse: Child,
    fuse: PathBuf,
    device: String,
    at: PathBuf,
}

impl Mounted {
    /// Makes an ext4 in blocks of `block_bytes`: on the whole device, or on a partition that begins
    /// at this sector.
    fn new(directory: &Path, daemon: &Daemon, block_bytes: u64, sector: Option<u64>) -> Self {
        let (fuse, at) = (directory.join("fuse"), directory.join("mnt"));
        fs::create_dir(&fuse).unwrap();
        fs::create_dir(&at).unwrap();
        let image = fuse.join("disk").display().to_string();
        let url = format!("nbd+unix:///disk?socket={}", daemon.socket.display());
        let mut nbdfuse = Command::new("nbdfuse");
        let nbdfuse = nbdfuse.args([&image, &url]).stdin(Stdio::null()).spawn().unwrap();
        wait_until("nbdfuse has mounted", PATIENCE, || Path::new(&image).exists());
        let device = run("losetup", &["-f", "--show", &image]);
        let mounted = Self { nbdfuse, fuse, device, at };
        let mut part = mounted.device.clone();
        if let Some(sector) = sector {
            // Without a table on the disk, which not every kernel reads.
            let sectors = DISK_BYTES / 512 - sector;
            run("addpart", &[&part, "1", &sector.to_string(), &sectors.to_string()]);
            part += "p1";
        }
        wait_until("the device is there", PATIENCE, || Path::new(&part).exists());
        run("mkfs.ext4", &["-q", "-F", "-b", &block_bytes.to_string(), &part]);
        run("mount", &["-o", "noatime", &part, &mounted.path("")]);
        mounted
    }

    fn path(&self, name: &str) -> String {
        self.at.join(name).display().to_string()
    }

    /// Writes random data to a file, of which no two lines are equal.
    fn write(&self, name: &str, offset: u64, len: u64) {
        let bytes = Random::new(offset + len).bytes(len as usize);
        let file =
            File::options().create(true).truncate(false).write(true).open(self.at.join(name));
        let file = file.unwrap();
        file.write_all_at(&bytes, offset).unwrap();
        file.sync_all().unwrap();
    }

    /// Whether every sector of a file is in the pinned ranges of the volume, as a client reads it.
    fn is_pinned(&self, daemon: &Daemon, name: &str) -> bool {
        let mut sectors = HashSet::new();
        let mut client = daemon.client("disk");
        let text = pins(daemon, 0);
        for range in text.split(',').filter(|text| *text != "none") {
            let (offset, len) = range.split_once('+').unwrap();
            let bytes = |text: &str| text.parse::<forebay_types::Size>().unwrap().0;
            for at in (0..bytes(len)).step_by(LINE as usize) {
                let line = client.read(bytes(offset) + at, LINE).unwrap();
                sectors.extend(line.chunks(512).map(<[u8]>::to_vec));
            }
        }
        fs::read(self.at.join(name)).unwrap().chunks(512).all(|sector| sectors.contains(sector))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for (program, arguments) in [
            ("umount", [self.path("")].to_vec()),
            ("delpart", [self.device.clone(), "1".into()].to_vec()),
            ("losetup", ["-d".into(), self.device.clone()].to_vec()),
            ("fusermount3", ["-u".into(), self.fuse.display().to_string()].to_vec()),
        ] {
            let _ = Command::new(program).args(arguments).stderr(Stdio::null()).status();
        }
        let _ = self.nbdfuse.kill();
        let _ = self.nbdfuse.wait();
    }
}

fn wait_until_loaded(daemon: &Daemon) {
    wait_until("the pins are loaded", PATIENCE, || {
        daemon.status()["volumes"][0]["pins"]["state"] == "loaded"
    });
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    daemon.status()["volumes"][0]["counters"][name].as_u64().unwrap()
}

fn a_file_is_pinned_where_it_is(block_bytes: u64, sector: Option<u64>) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    let mounted = Mounted::new(directory.path(), &daemon, block_bytes, sector);
    mounted.write("file", 0, 3 * MIB + 700);
    // A hole, and more behind it.
    mounted.write("file", 6 * MIB, MIB);
    let file = mounted.path("file");
    let text = succeed(&daemon, &["pin", "disk", &file]);
    assert!(text.starts_with(&format!("{file} has 4.0 MiB in ")), "{text}");
    assert!(!text.contains("not compared"), "{text}");
    assert!(mounted.is_pinned(&daemon, "file"), "{text}");
    wait_until_loaded(&daemon);
    let pinned = daemon.status()["volumes"][0]["pins"]["pinned_bytes"].as_u64().unwrap();
    assert!((4 * MIB..=4 * MIB + 64 * LINE).contains(&pinned), "{pinned}");

    // After reads of ten times the pool, the file's data is still in memory.
    let pool = daemon.status()["memory"]["pool_bytes"].as_u64().unwrap();
    let mut client = daemon.client("disk");
    for offset in (0..10 * pool).step_by(MIB as usize) {
        client.read(offset % DISK_BYTES, MIB).unwrap();
    }
    let before = counter(&daemon, "read_misses") + counter(&daemon, "read_partial_hits");
    assert!(mounted.is_pinned(&daemon, "file"));
    let after = counter(&daemon, "read_misses") + counter(&daemon, "read_partial_hits");
    assert_eq!(after, before, "each read of it is a hit");

    // The wrong volume has the same size, but not the file.
    let text = refused(&daemon, &["pin", "other", &file]);
    assert!(text.contains("other data is at its place in the volume, so loop"), "{text}");
    // A file that exceeds the quota changes nothing.
    let pinned = pins(&daemon, 0);
    mounted.write("large", 0, pool / 2 + MIB);
    let text = refused(&daemon, &["pin", "disk", &mounted.path("large")]);
    assert!(text.contains("half of the memory for data"), "{text}");
    // Nor does one without data on the disk.
    File::create(mounted.at.join("empty")).unwrap().set_len(MIB).unwrap();
    let text = refused(&daemon, &["pin", "disk", &mounted.path("empty")]);
    assert!(text.contains("no data of the files is on the disk"), "{text}");
    run("fallocate", &["-l", "1MiB", &mounted.path("reserved")]);
    let text = refused(&daemon, &["pin", "disk", &mounted.path("reserved")]);
    assert!(text.contains("; not pinned: 1.0 MiB allocated but not written"), "{text}");
    assert_eq!([pins(&daemon, 0), pins(&daemon, 1)], [pinned, "none".into()]);

    assert!(succeed(&daemon, &["unpin", "disk", &file]).ends_with(" has no pinned ranges\n"));
    drop((client, mounted));
    daemon.stop();
}

#[test]
#[ignore = "needs root, nbdfuse and loop devices"]
fn kernel_a_file_on_a_volume_is_pinned_where_it_is() {
    a_file_is_pinned_where_it_is(4096, None);
}

#[test]
#[ignore = "needs root, nbdfuse and loop devices"]
fn kernel_a_file_in_small_blocks_on_a_misaligned_partition_is_pinned_where_it_is() {
    a_file_is_pinned_where_it_is(1024, Some(2049));
}

/// Starts `forebay pin disk FILE --follow=1`. Its errors go to the file `errors`.
fn follow(directory: &Path, file: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["pin", "disk", file, "--follow=1"])
        .env("FOREBAY_STATE", directory.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("errors")).unwrap())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "needs root, nbdfuse and loop devices"]
fn kernel_a_followed_file_is_pinned_until_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    let mounted = Mounted::new(directory.path(), &daemon, 4096, None);
    let file = mounted.path("file");
    mounted.write("file", 0, MIB);
    // The operator's own pin stays whatever happens.
    succeed(&daemon, &["pin", "disk", "500MiB+4KiB"]);
    let own = "500MiB+4KiB";
    let child = follow(directory.path(), &file);
    let is_pinned = || mounted.is_pinned(&daemon, "file");
    wait_until("the file is pinned", PATIENCE, is_pinned);
    mounted.write("file", MIB, MIB);
    wait_until("what was appended is pinned", PATIENCE, is_pinned);
    // A program that saves a file writes another one and renames it.
    mounted.write("new", 3 * MIB, 2 * MIB);
    let former = pins(&daemon, 0);
    fs::rename(mounted.at.join("new"), mounted.at.join("file")).unwrap();
    wait_until("the new file is pinned", PATIENCE, is_pinned);
    for range in former.split(',').filter(|range| *range != own) {
        assert!(!pins(&daemon, 0).contains(range), "{range} of {former}: {}", pins(&daemon, 0));
    }
    // The file exceeds the quota: the command goes on with the ranges that it has pinned.
    let pool = daemon.status()["memory"]["pool_bytes"].as_u64().unwrap();
    mounted.write("file", 8 * MIB, pool / 2);
    let errors = || fs::read_to_string(directory.path().join("errors")).unwrap();
    wait_until("the quota is reported", PATIENCE, || errors().contains("half of the memory"));
    assert_ne!(pins(&daemon, 0), own);
    File::options().write(true).open(&file).unwrap().set_len(6 * MIB).unwrap();
    wait_until("the file is pinned again", PATIENCE, is_pinned);
    fs::remove_file(&file).unwrap();
    let output = wait_for_exit(child);
    let text = errors();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("warning: not followed at the moment: the pinned ranges of"), "{text}");
    let end = format!("forebay: cannot find {file} in volume 'disk': No such file or directory");
    assert!(text.lines().last().unwrap().starts_with(&end), "{text}");
    assert_eq!(pins(&daemon, 0), own);

    // A signal ends it without an error.
    mounted.write("file", 0, MIB);
    let child = follow(directory.path(), &file);
    wait_until("the file is pinned", PATIENCE, is_pinned);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = wait_for_exit(child);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(pins(&daemon, 0), own);
    drop(mounted);
    daemon.stop();
}
