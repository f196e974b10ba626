//! The measured servers: each is started in its own directory, and stopped when dropped.
//!
//! Each one serves the same number of bytes from RAM, in its best way: nbdkit from its memory
//! plugin, the file servers from a file on tmpfs, through the page cache. Forebay serves a memory
//! volume with a pool that holds all of it, so that every request of a filled volume is a hit.

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The name of the export, for all servers.
pub const EXPORT: &str = "bench";
/// Timeout for opening the socket, and for the exit.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum ServerKind {
    /// The bare server of this package: the baseline.
    Bare,
    /// Forebay.
    Forebay,
    /// nbdkit with its memory plugin.
    Nbdkit,
    /// qemu-nbd on a file on tmpfs.
    QemuNbd,
    /// nbd-server on a file on tmpfs.
    NbdServer,
    /// qemu-storage-daemon on a file on tmpfs.
    QemuStorageDaemon,
}

impl ServerKind {
    /// All of them, the baseline first.
    pub const ALL: [Self; 6] = [
        Self::Bare,
        Self::Forebay,
        Self::Nbdkit,
        Self::QemuNbd,
        Self::NbdServer,
        Self::QemuStorageDaemon,
    ];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Forebay => "forebay",
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
            Self::NbdServer => "nbd-server",
            Self::QemuStorageDaemon => "qemu-storage-daemon",
        }
    }

    /// Whether it is a third-party server.
    pub const fn is_peer(self) -> bool {
        !matches!(self, Self::Bare | Self::Forebay)
    }
}

/// Directories and sizes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory of the programs built from this repository.
    pub programs: PathBuf,
    /// Directory for sockets and images. It must be on tmpfs, to exclude disks.
    pub dir: PathBuf,
    /// Bytes that each server serves.
    pub size_bytes: u64,
    /// Settings of Forebay's volume, as in `mode=bypass`; empty for none.
    pub forebay_options: String,
}

/// A running server.
pub struct BenchServer {
    /// Its kind.
    pub kind: ServerKind,
    /// Its Unix socket.
    pub socket: PathBuf,
    /// The process whose CPU time counts, with its children.
    pub pid: u32,
    child: Option<Child>,
    image: Option<PathBuf>,
}

impl BenchServer {
    /// Starts one and waits until it accepts connections.
    pub fn start(kind: ServerKind, setup: &Setup) -> Result<Self> {
        let dir = setup.dir.join(kind.name());
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let socket = dir.join("socket");
        let image = matches!(
            kind,
            ServerKind::QemuNbd | ServerKind::NbdServer | ServerKind::QemuStorageDaemon
        )
        .then(|| dir.join("image"));
        if let Some(image) = &image {
            File::create(image)?.set_len(setup.size_bytes)?;
        }
        let mut command = command(kind, setup, &dir, &socket)?;
        let log = File::create(dir.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| {
            let program = command.get_program().to_string_lossy();
            format!("starting {program}: install it, or leave {} out", kind.name())
        })?;
        // From here on, dropping the server kills the child on any failure.
        let mut server = Self { kind, socket, pid: child.id(), child: Some(child), image };
        server.wait_until_open().with_context(|| {
            let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
            format!("{} did not start; its output: {}", kind.name(), log.trim())
        })?;
        if kind == ServerKind::NbdServer {
            // It serves several clients only as a daemon, which is not a child process.
            let text = fs::read_to_string(dir.join("pid")).context("nbd-server wrote no pid")?;
            server.pid = text.trim().parse().context("the pid file of nbd-server")?;
        }
        Ok(server)
    }

    fn wait_until_open(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if UnixStream::connect(&self.socket).is_ok() {
                return Ok(());
            }
            if self.kind != ServerKind::NbdServer
                && let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("it ended with {status}");
            }
            ensure!(Instant::now() < deadline, "its socket did not open in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // Cleanup after the measurement: failures are ignored.
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if let Some(child) = &mut self.child {
            let deadline = Instant::now() + PATIENCE;
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    let _ = child.kill();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
    }
}

fn command(kind: ServerKind, setup: &Setup, dir: &Path, socket: &Path) -> Result<Command> {
    let size = setup.size_bytes.to_string();
    let image = dir.join("image").to_string_lossy().into_owned();
    let path = socket.to_string_lossy().into_owned();
    let program = |name: &str| Command::new(setup.programs.join(name));
    let mut command = match kind {
        ServerKind::Bare => program("bare-server"),
        ServerKind::Forebay => program("forebay"),
        other => Command::new(other.name()),
    };
    match kind {
        ServerKind::Bare => {
            command.args(["--socket", &path, "--size", &size]);
        }
        ServerKind::Forebay => {
            // The pool is 1.5 times as large as the volume, to avoid evictions.
            let pool = (setup.size_bytes / 2 * 3).max(64 << 20).to_string();
            let comma = if setup.forebay_options.is_empty() { "" } else { "," };
            let volume = format!("{EXPORT}=memory:{size}{comma}{}", setup.forebay_options);
            command.args(["serve", "--keeper", "no", "--volume", &volume]);
            command.args(["--nbd", &format!("unix:{path}"), "--memory", &pool]);
            command.arg("--state").arg(dir.join("state"));
        }
        ServerKind::Nbdkit => {
            command.args(["-f", "-U", &path, "memory", &size, "allocator=malloc"]);
        }
        ServerKind::QemuNbd => {
            command.args(["-t", "-f", "raw", "-x", EXPORT, "-k", &path, "--shared=64"]);
            command.args(["--cache=writeback", &image]);
        }
        ServerKind::NbdServer => {
            let config = dir.join("config");
            let text = format!("[generic]\nunixsock = {path}\n[{EXPORT}]\nexportname = {image}\n");
            fs::write(&config, text)?;
            command.arg("-C").arg(config).arg("-p").arg(dir.join("pid"));
        }
        ServerKind::QemuStorageDaemon => {
            command.args(["--blockdev", &format!("driver=file,node-name=disk,filename={image}")]);
            let server = format!("addr.type=unix,addr.path={path},max-connections=64");
            command.args(["--nbd-server", &server, "--export"]);
            command.arg(format!("type=nbd,id=e,node-name=disk,writable=on,name={EXPORT}"));
        }
    }
    Ok(command)
}

/// The directory of the running program.
pub fn own_programs() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding the running program")?;
    Ok(own.parent().context("the running program is in no directory")?.to_path_buf())
}

/// A new directory, on tmpfs if available.
pub fn work_dir() -> Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("forebay-bench.");
        builder
    };
    builder()
        .tempdir_in("/dev/shm")
        .or_else(|_| builder().tempdir())
        .context("making a directory for sockets and images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_start_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup {
            programs: dir.path().to_path_buf(),
            dir: dir.path().to_path_buf(),
            size_bytes: 1 << 20,
            forebay_options: String::new(),
        };
        let Err(error) = BenchServer::start(ServerKind::Bare, &setup) else {
            panic!("no program, no error")
        };
        assert!(format!("{error:#}").contains("bare-server"), "{error:#}");

        // A program that exits at once is reported with its output.
        let program = dir.path().join("bare-server");
        fs::write(&program, "#!/bin/sh\necho no room >&2\nexit 3\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        let Err(error) = BenchServer::start(ServerKind::Bare, &setup) else {
            panic!("it ended, no error")
        };
        let text = format!("{error:#}");
        assert!(text.contains("no room") && text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let mut names: Vec<_> = ServerKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ServerKind::ALL.len());
    }
}
