//! Direct access to the backing store, without the server: filled before it starts, and compared
//! after it has stopped.

use super::oracle::VolumeOracle;
use super::stamp::{self, SECTOR_BYTES, SectorContent};
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes per read or write.
const PIECE_BYTES: usize = 1 << 20;
/// One of this many pieces starts as zeroes, and as a hole if the backing store is a file.
const HOLE_EVERY: u32 = 5;
/// Alignment of memory for direct I/O, in bytes.
const DIRECT_BYTES: usize = 65536;
/// Timeout for the start of a disk process.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sectors in a piece.
const PIECE_SECTORS: u32 = (PIECE_BYTES / SECTOR_BYTES) as u32;

/// Fills the file or device at `path` with the initial content, and returns its model.
pub fn make(path: &Path, seed: u32) -> Result<VolumeOracle> {
    let about = || format!("making the content of {}", path.display());
    let mut file = OpenOptions::new().read(true).write(true).open(path).with_context(about)?;
    let bytes = file.seek(SeekFrom::End(0)).with_context(about)?;
    ensure!(
        bytes >= PIECE_BYTES as u64 && bytes.is_multiple_of(SECTOR_BYTES as u64),
        "{} has {bytes} bytes, which are not whole sectors of 1 MiB at least",
        path.display()
    );
    let is_file = file.metadata().with_context(about)?.is_file();
    if is_file {
        file.set_len(0).with_context(about)?;
        file.set_len(bytes).with_context(about)?;
    }
    let mut oracle = VolumeOracle::new(seed, u32::try_from(bytes / SECTOR_BYTES as u64)?);
    let mut piece = vec![0; PIECE_BYTES];
    for (number, first) in (0..).zip((0..oracle.sectors()).step_by(PIECE_SECTORS as usize)) {
        let is_hole = number % HOLE_EVERY == HOLE_EVERY - 1;
        let content = if is_hole { SectorContent::Zero } else { SectorContent::Stamp(0) };
        let end = (first + PIECE_SECTORS).min(oracle.sectors());
        piece.truncate((end - first) as usize * SECTOR_BYTES);
        for (sector, bytes) in (first..).zip(piece.chunks_exact_mut(SECTOR_BYTES)) {
            stamp::fill(bytes, seed, sector, content);
        }
        if is_hole {
            oracle.begin_with_zeroes(first..end);
        }
        if !(is_hole && is_file) {
            let at = u64::from(first) * SECTOR_BYTES as u64;
            file.seek(SeekFrom::Start(at)).with_context(about)?;
            file.write_all(&piece).with_context(about)?;
        }
    }
    file.sync_all().with_context(about)?;
    Ok(oracle)
}

/// Compares the whole file or device with the model after the server has stopped.
pub fn compare(path: &Path, oracle: &mut VolumeOracle) -> Result<()> {
    let mut file = open_for_reading(path)?;
    let mut memory = vec![0; PIECE_BYTES + DIRECT_BYTES];
    let start = memory.as_ptr().align_offset(DIRECT_BYTES);
    for first in (0..oracle.sectors()).step_by(PIECE_SECTORS as usize) {
        let len = PIECE_SECTORS.min(oracle.sectors() - first) as usize * SECTOR_BYTES;
        let piece = &mut memory[start..start + len];
        file.read_exact(piece).with_context(|| format!("reading {}", path.display()))?;
        oracle.settle(first, piece, "the backing store after the stop")?;
    }
    Ok(())
}

/// With direct I/O if available, to bypass the page cache.
fn open_for_reading(path: &Path) -> Result<File> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let file = match direct {
        Err(error) if error.kind() == ErrorKind::InvalidInput => File::open(path),
        result => result,
    };
    file.with_context(|| format!("opening {} beside the server", path.display()))
}

/// A disk that is a process with a socket, such as an NBD server. Killed when dropped.
pub struct DiskProcess {
    command: String,
    socket: PathBuf,
    child: Option<Child>,
}

impl DiskProcess {
    /// A disk that the shell's `command` serves at `socket`. Not started yet.
    pub fn new(command: String, socket: PathBuf) -> Self {
        Self { command, socket, child: None }
    }

    /// Starts it, unless it is running.
    pub fn start(&mut self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let _ = std::fs::remove_file(&self.socket);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {}", self.command)).stdin(Stdio::null());
        let child = self.child.insert(command.spawn().context("starting the disk")?);
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&self.socket).is_err() {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "the disk ended at once: {}", self.command);
            ensure!(Instant::now() < deadline, "nothing answers at {}", self.socket.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether it is running. nbdkit 1.32 may fail an assertion shortly after its client was
    /// killed.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it: its memory is lost.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for DiskProcess {
    fn drop(&mut self) {
        // Ignore failures.
        let _ = self.kill();
    }
}
