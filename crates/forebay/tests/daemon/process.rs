//! A daemon in a process of its own, and what the system says of it.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

/// Runs a command that ends by itself, and gives how it ended and what it printed.
///
/// # Panics
///
/// As [`ended`] does.
pub fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command.spawn().unwrap())
}

/// Waits until a process has ended, and gives how it did and what it printed.
///
/// # Panics
///
/// If it still runs after [`PATIENCE`], as a server does whose start was to be refused. It is
/// killed, and the message has what it said.
pub fn ended(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, output) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    output.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let output = output.recv_timeout(PATIENCE).unwrap();
        panic!("a process does not end: {}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Whether a process listens at a socket. For a moment after one was killed, the kernel takes
/// connections on its behalf, and ends them with its rings.
pub fn is_answered(socket: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(socket) else { return false };
    let listener = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
    Path::new("/proc").join(listener.as_raw_nonzero().to_string()).exists()
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
    /// It has a keeper, which is the child.
    is_kept: bool,
    /// Where clients connect.
    pub socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with its state in `directory`, and waits until clients can connect.
    pub fn start(directory: &Path, io: &str, memory: &str, volumes: &[String]) -> Self {
        Self::start_with(directory, io, memory, volumes, &[])
    }

    /// The same with a keeper.
    pub fn start_kept(directory: &Path, io: &str, memory: &str, volumes: &[String]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, io, memory, volumes);
        command.args(["--keeper", "yes"]);
        Self::spawn_kept(command, directory)
    }

    /// The same from another file of the program.
    pub fn start_kept_from(
        program: &Path,
        directory: &Path,
        memory: &str,
        volumes: &[String],
    ) -> Self {
        let mut command = Self::command(program, directory, "auto", memory, volumes);
        command.args(["--keeper", "yes"]);
        Self::spawn_kept(command, directory)
    }

    /// The same with a configuration file, and a log.
    pub fn start_kept_with(directory: &Path, log: std::fs::File, file: &Path) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "64MiB", &[]);
        command.args(["--keeper", "yes", "--config"]).arg(file).stderr(log);
        Self::spawn_kept(command, directory)
    }

    fn spawn_kept(command: Command, directory: &Path) -> Self {
        let mut daemon = Self::spawn(command, directory.join("nbd.sock"));
        daemon.is_kept = true;
        daemon
    }

    /// Starts a server as a service manager does: with these variables, and a descriptor that it
    /// has stored.
    pub fn start_under(
        directory: &Path,
        volume: &str,
        variables: &[(&str, &str)],
        stored: Option<std::os::fd::OwnedFd>,
    ) -> Self {
        // The shell puts the descriptor where it belongs, and knows the number of the process.
        let mut command = Command::new("sh");
        let script = match stored {
            Some(_) => {
                "exec 3<>/dev/fd/0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 \
                        LISTEN_FDNAMES=forebay-pool exec \"$@\""
            }
            None => "exec \"$@\" </dev/null",
        };
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_forebay")]);
        command.args(["serve", "--memory", "64MiB", "--workers", "2", "--log", "warn"]);
        command.args(["--volume", volume, "--state"]).arg(directory.join("state"));
        command.arg("--nbd").arg(format!("unix:{}", directory.join("nbd.sock").display()));
        command.envs(variables.iter().copied());
        if let Some(stored) = stored {
            command.stdin(Stdio::from(stored));
        }
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// The same with more arguments.
    pub fn start_with(
        directory: &Path,
        io: &str,
        memory: &str,
        volumes: &[String],
        arguments: &[&str],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, io, memory, volumes);
        // What kills the process is to end the pool as well.
        command.args(["--keeper", "no"]).args(arguments);
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Starts it where no process may have more than so many descriptors.
    pub fn start_limited(directory: &Path, io: &str, volume: &str, descriptors: u32) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let inner = Self::command(program, directory, io, "64MiB", &[volume.to_owned()]);
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {descriptors} && exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(program).args(inner.get_args());
        let log = std::fs::File::create(directory.join("log")).unwrap();
        command.args(["--keeper", "no"]).stdin(Stdio::null()).stderr(log);
        Self::spawn(command, directory.join("nbd.sock"))
    }

    fn command(
        program: &Path,
        directory: &Path,
        io: &str,
        memory: &str,
        volumes: &[String],
    ) -> Command {
        let socket = directory.join("nbd.sock");
        let mut command = Command::new(program);
        command
            .args(["serve", "--io", io, "--memory", memory, "--workers", "2", "--log", "warn"])
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .stdin(Stdio::null());
        for volume in volumes {
            command.args(["--volume", volume]);
        }
        command
    }

    /// Starts a command that is a daemon, and waits until clients can connect.
    pub fn spawn(mut command: Command, socket: PathBuf) -> Self {
        let mut daemon = Self { child: command.spawn().unwrap(), is_kept: false, socket };
        wait_until("the daemon answers", PATIENCE, || {
            // What was killed a moment ago keeps its disk locked until the kernel has taken its
            // rings apart: a start waits for that.
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon has given up: {ended:?}");
            is_answered(&daemon.socket)
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

    /// The process that serves.
    pub fn server(&self) -> rustix::process::Pid {
        let keeper = self.child.id();
        if !self.is_kept {
            return rustix::process::Pid::from_child(&self.child);
        }
        let children = format!("/proc/{keeper}/task/{keeper}/children");
        let mut found = None;
        wait_until("there is a server", PATIENCE, || {
            let children = std::fs::read_to_string(&children).unwrap();
            found = children.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
            found.is_some()
        });
        found.unwrap()
    }

    /// Kills the server, and leaves the keeper to start another one.
    pub fn kill_server(&self) {
        rustix::process::kill_process(self.server(), rustix::process::Signal::KILL).unwrap();
    }

    /// Kills the keeper, and leaves the server.
    pub fn kill_keeper(mut self) {
        assert!(self.is_kept);
        self.is_kept = false;
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether the child, a keeper or a server, has ended, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends it a signal to stop.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Has the program ask it something: how that ended, and all that was printed.
    pub fn ask(&self, arguments: &[&str]) -> (Option<i32>, String) {
        crate::vault::ran(self.socket.parent().unwrap(), arguments)
    }

    /// How many clients it says it has.
    pub fn connections(&self) -> u64 {
        let (code, status) = self.ask(&["status", "--json"]);
        assert_eq!(code, Some(0), "{status}");
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["connections"].as_u64().unwrap()
    }

    /// Whether it has every descriptor below this one open.
    pub fn has_descriptors_below(&self, end: u32) -> bool {
        let directory = format!("/proc/{}/fd", self.child.id());
        (0..end).all(|fd| Path::new(&directory).join(fd.to_string()).is_symlink())
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(self) {
        self.terminate();
        self.wait();
    }

    /// Waits until it has ended well.
    pub fn wait(mut self) {
        let mut ended = None;
        wait_until("the daemon ends", PATIENCE, || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
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
        if self.is_kept && self.ended().is_none() {
            self.kill_server();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
