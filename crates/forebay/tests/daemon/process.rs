//! A daemon in a process of its own, and what the system says of it.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
    /// Where clients connect.
    pub socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with its state in `directory`, and waits until clients can connect.
    pub fn start(directory: &Path, io: &str, memory: &str, volumes: &[String]) -> Self {
        Self::start_with(directory, io, memory, volumes, &[])
    }

    /// The same with more arguments.
    pub fn start_with(
        directory: &Path,
        io: &str,
        memory: &str,
        volumes: &[String],
        arguments: &[&str],
    ) -> Self {
        let socket = directory.join("nbd.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(["serve", "--io", io, "--memory", memory, "--workers", "2", "--log", "warn"])
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .args(arguments)
            .stdin(Stdio::null());
        for volume in volumes {
            command.args(["--volume", volume]);
        }
        Self::spawn(command, socket)
    }

    /// Starts a command that is a daemon, and waits until clients can connect.
    pub fn spawn(mut command: Command, socket: PathBuf) -> Self {
        let mut daemon = Self { child: command.spawn().unwrap(), socket };
        wait_until("the daemon answers", PATIENCE, || {
            // What was killed a moment ago keeps its disk locked until the kernel has taken its
            // rings apart: a start waits for that.
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon has given up: {ended:?}");
            UnixStream::connect(&daemon.socket).is_ok()
        });
        daemon
    }

    /// A client of a volume.
    pub fn client(&self, volume: &str) -> Client {
        Client::new(&self.socket, volume)
    }

    /// Ends it without a word, as a kernel out of memory would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal to stop.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) {
        self.terminate();
        assert!(self.child.wait().unwrap().success());
    }

    /// Memory that it has in use, in bytes, and the most it ever had.
    pub fn rss_bytes(&self) -> (u64, u64) {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            kib << 10
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Processor time that it has used, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let behind_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = behind_name.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
