//! The kernel's page cache in front of an export: the export is mounted as a file with nbdfuse, and
//! read with ordinary reads.
//!
//! The kernel reads ahead as much as it does by default for such a mount.

use crate::servers;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for the mount.
const PATIENCE: Duration = Duration::from_secs(20);

/// An export as a file. Unmounted when dropped.
pub struct ExportMount {
    dir: tempfile::TempDir,
    file: PathBuf,
    child: Child,
}

impl ExportMount {
    /// Why exports cannot be mounted here, if they cannot.
    pub fn obstacle() -> Option<String> {
        if !Path::new("/dev/fuse").exists() {
            return Some("there is no /dev/fuse".to_owned());
        }
        let runs = |program: &&str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let missing = ["nbdfuse", "fusermount3"].into_iter().find(|program| !runs(program));
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Mounts an export of the server behind `socket`.
    ///
    /// # Errors
    /// If the file does not appear; see [`ExportMount::obstacle`].
    pub fn new(socket: &Path, export: &str) -> Result<Self> {
        let dir = servers::work_dir()?;
        let file = dir.path().join("disk");
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let mut command = Command::new("nbdfuse");
        command.arg("--readonly").arg(&file).arg(uri).stdin(Stdio::null());
        let child = command.spawn().context("starting nbdfuse: install libnbd-bin")?;
        let mut mount = Self { dir, file, child };
        let deadline = Instant::now() + PATIENCE;
        while !mount.file.exists() {
            if let Some(status) = mount.child.try_wait()? {
                bail!("nbdfuse ended with {status}");
            }
            ensure!(Instant::now() < deadline, "nbdfuse did not mount in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(mount)
    }

    /// Reads from `start` on for so many seconds, `block_bytes` at a time. Returns bytes per
    /// second.
    ///
    /// # Errors
    /// If a read fails or the file ends.
    pub fn stream(&self, start: u64, block_bytes: u64, seconds: f64) -> Result<f64> {
        let file = File::open(&self.file).context("opening the mounted export")?;
        let mut block = vec![0; block_bytes as usize];
        let begin = Instant::now();
        let mut done_bytes = 0;
        while begin.elapsed().as_secs_f64() < seconds {
            file.read_exact_at(&mut block, start + done_bytes)?;
            done_bytes += block_bytes;
        }
        Ok(done_bytes as f64 / begin.elapsed().as_secs_f64())
    }
}

impl Drop for ExportMount {
    fn drop(&mut self) {
        // Cleanup after the measurement: failures are ignored.
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-z"]).arg(self.dir.path()).status();
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
