//! A full file system under journal and state directory.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::power::content;
use crate::process::{Daemon, MIB, failed_start, make_file, on_one_line, status};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own, mounted until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(directory: &Path, bytes: u64) -> Self {
        let (image, at) = (directory.join("file-system"), directory.join("mounted"));
        make_file(&image, bytes);
        fs::create_dir(&at).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        Self(at)
    }

    /// Takes all space that is left.
    fn fill(&self) {
        for (number, bytes) in [MIB as usize, 4096].into_iter().enumerate() {
            let mut file = File::create(self.0.join(format!("other-{number}"))).unwrap();
            while file.write_all(&vec![1; bytes]).is_ok() {}
            let _ = file.sync_all();
        }
        let mut file = File::create(self.0.join("last")).unwrap();
        assert!(file.write_all(&[1; 4096]).and_then(|()| file.sync_all()).is_err());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a daemon that a failed test killed may take a moment to end.
        run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn volume(directory: &Path, journal: &Path) -> String {
    let (disk, journal) = (directory.join("disk.img"), journal.display());
    format!("disk={},mode=write-back,protection=journal,journal={journal}", disk.display())
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_journal_that_fails_on_a_full_file_system_stops_no_write() {
    let directory = tempfile::tempdir().unwrap();
    make_file(directory.path().join("disk.img"), 16 * MIB);
    let mounted = Mounted::new(directory.path(), 64 * MIB);
    let journal = mounted.0.join("journal");
    make_file(&journal, 40 * MIB);
    let state = directory.path().join("state");
    std::os::unix::fs::symlink(&mounted.0, &state).unwrap();
    let spec = volume(directory.path(), &journal);
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", std::slice::from_ref(&spec));
    mounted.fill();
    let mut client = daemon.client("disk");
    // The journal was sparse, and has its blocks.
    for line in 0..2048 {
        client.write(line * 4096, &content(line)).unwrap();
    }
    assert_eq!(status(directory.path())["journals"][0]["state"], "working");
    fs::remove_file(&journal).unwrap();
    wait_until("the journal fails", PATIENCE, || {
        status(directory.path())["journals"][0]["state"] == "failed"
    });
    client.write(0, &content(7)).unwrap();
    client.flush().unwrap();
    assert!(
        fs::read_dir(&mounted.0)
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_str().unwrap().ends_with(".failed") })
    );
    drop(client);
    daemon.stop();
    assert_eq!(fs::read(directory.path().join("disk.img")).unwrap()[..4096], content(7));
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_journal_without_space_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    make_file(directory.path().join("disk.img"), 16 * MIB);
    let mounted = Mounted::new(directory.path(), 64 * MIB);
    let journal = mounted.0.join("journal");
    make_file(&journal, 400 * MIB);
    let spec = volume(directory.path(), &journal);
    let said = on_one_line(&failed_start(directory.path(), &["--volume", &spec]));
    assert!(said.contains("cannot allocate 400MiB for the journal"), "{said}");
    assert!(said.contains("No space left"), "{said}");
    assert!(said.contains("free space, or name another file or device"), "{said}");
    let head = fs::read(&journal).unwrap()[..4096].to_vec();
    assert_eq!(head, [0; 4096], "nothing was written");
}
