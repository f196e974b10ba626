//! Starts the built program, as a daemon or for one command, and observes its process.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

pub const MIB: u64 = 1 << 20;

/// What a server maps of its program and libraries, as a rule.
const PROGRAM_BYTES: u64 = 16 * MIB;
/// Volume options for write-back without protection.
pub const UNPROTECTED: &str = "mode=write-back,protection=none,accept-loss=yes";

/// Other programs on the machine must not slow down background work that a test waits for.
const QUIET: [&str; 2] = ["--background", "full"];

/// How much of a daemon's log a failed test prints, in bytes.
const LOG_BYTES_PRINTED: usize = 16 << 10;

/// The log of the daemons on a socket.
fn log_path(socket: &Path) -> PathBuf {
    socket.with_file_name("log")
}

/// Creates a sparse file.
pub fn make_file(path: impl AsRef<Path>, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// Runs `forebay` in `directory` with its state directory there. Returns the exit code and the
/// output, standard output first.
pub fn run_forebay(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = output_of(
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(arguments)
            .env("FOREBAY_STATE", directory.join("state"))
            .current_dir(directory),
    );
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Runs `forebay serve`, asserts that the start fails, and returns the output.
pub fn failed_start(directory: &Path, arguments: &[&str]) -> String {
    let socket = format!("unix:{}", directory.join("refused.sock").display());
    let fixed = ["serve", "--io", "epoll", "--memory", "96MiB", "--keeper", "no", "--nbd", &socket];
    let (code, text) = run_forebay(directory, &[&fixed, arguments].concat());
    assert_eq!(code, Some(1), "{text}");
    text
}

/// A text without the line breaks and blanks that depend on its width.
pub fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The status of the daemon whose state is in `directory`.
pub fn status(directory: &Path) -> serde_json::Value {
    let (code, text) = run_forebay(directory, &["status", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Runs a command to completion.
///
/// # Panics
/// Like [`wait_for_exit`].
pub fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait_for_exit(command.spawn().unwrap())
}

/// Waits until a process exits.
///
/// # Panics
/// If the process still runs after [`PATIENCE`], for example a server whose start should have
/// failed. The process is killed; the message contains its standard error.
pub fn wait_for_exit(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, output) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    output.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let output = output.recv_timeout(PATIENCE).unwrap();
        panic!("the process does not exit: {}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Returns true if a server greets its clients on a socket, which it does once it has opened its
/// volumes, or has given up those with `nofail=yes` for now. The kernel accepts connections before:
/// from when the socket is bound, and for a killed process with an io_uring until the ring is torn
/// down.
pub fn is_served(socket: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(socket) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    greets(stream)
}

/// Returns true if a server is at the other end.
pub fn greets(mut stream: impl Read) -> bool {
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).is_ok() && greeting == *b"NBDMAGIC"
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
    /// The child is a keeper.
    is_kept: bool,
    /// The NBD socket.
    pub socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with its state in `directory` and waits until it accepts clients.
    pub fn start(directory: &Path, io: &str, memory: &str, volumes: &[String]) -> Self {
        Self::start_with(directory, io, memory, volumes, &[])
    }

    /// Starts a daemon with a keeper.
    pub fn start_kept(directory: &Path, io: &str, memory: &str, volumes: &[String]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, io, memory, volumes);
        command.args(["--keeper", "yes"]);
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon with a keeper and with extra arguments.
    pub fn start_kept_given(directory: &Path, volumes: &[String], arguments: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "64MiB", volumes);
        command.args(["--keeper", "yes"]).args(arguments);
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon with a keeper that listens also on a TCP port of its choice.
    pub fn start_kept_on_tcp(directory: &Path, io: &str, volumes: &[String]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, io, "96MiB", volumes);
        command.args(["--keeper", "yes", "--nbd", "tcp:127.0.0.1:0"]);
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon with a keeper and with environment variables.
    pub fn start_kept_among(
        directory: &Path,
        volumes: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "64MiB", volumes);
        command.args(["--keeper", "yes"]).envs(variables.iter().copied());
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon with a keeper from the executable at `program`.
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

    /// As [`Self::start_kept_from`], with environment variables.
    pub fn start_kept_from_among(
        program: &Path,
        directory: &Path,
        volumes: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Self::command(program, directory, "auto", "64MiB", volumes);
        command.args(["--keeper", "yes"]).envs(variables.iter().copied());
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon with a keeper and a configuration file.
    pub fn start_kept_with(directory: &Path, file: &Path) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "64MiB", &[]);
        command.args(["--keeper", "yes", "--config"]).arg(file);
        Self::spawn_kept(command, directory)
    }

    /// Starts a daemon in a control group, given by its directory.
    pub fn start_in_group(
        group: &Path,
        directory: &Path,
        memory: &str,
        volumes: &[String],
        arguments: &[&str],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let serve = Self::command(program, directory, "auto", memory, volumes);
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(serve.get_program()).args(serve.get_args());
        command.args(arguments).stdin(Stdio::null());
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Starts a daemon without a keeper whose memory is set in a configuration file.
    pub fn start_configured(directory: &Path, file: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let socket = directory.join("nbd.sock");
        command.args(["serve", "--keeper", "no", "--workers", "2", "--log", "info"]).args(QUIET);
        command.arg("--config");
        command.arg(file).arg("--state").arg(directory.join("state"));
        command.arg("--nbd").arg(format!("unix:{}", socket.display())).stdin(Stdio::null());
        Self::spawn(command, socket)
    }

    /// Starts a daemon that sees the memory of the machine in the folder `machine`, with extra
    /// arguments.
    pub fn start_on(machine: &Path, directory: &Path, memory: &str, arguments: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", memory, &[]);
        command.env("FOREBAY_MEMORY_ROOT", machine).args(["--keeper", "no"]).args(arguments);
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Starts a daemon that reads the time from the file `clock`.
    pub fn start_at(clock: &Path, directory: &Path, volume: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "64MiB", &[volume.to_owned()]);
        command.env("FOREBAY_CLOCK", clock).args(["--keeper", "no"]);
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Like [`Self::start_on`], with a keeper and a volume.
    pub fn start_kept_on(machine: &Path, directory: &Path, memory: &str, volume: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", memory, &[volume.to_owned()]);
        command.env("FOREBAY_MEMORY_ROOT", machine).args(["--keeper", "yes"]);
        Self::spawn_kept(command, directory)
    }

    fn spawn_kept(command: Command, directory: &Path) -> Self {
        let mut daemon = Self::spawn(command, directory.join("nbd.sock"));
        daemon.is_kept = true;
        daemon
    }

    /// Starts a server as a service manager does: with environment variables and a stored
    /// descriptor.
    pub fn start_under(
        directory: &Path,
        volume: &str,
        variables: &[(&str, &str)],
        stored: Option<std::os::fd::OwnedFd>,
    ) -> Self {
        // The shell moves the descriptor to 3 and sets LISTEN_PID to the process id.
        let mut command = Command::new("sh");
        let script = match stored {
            Some(_) => {
                "exec 3<>/dev/fd/0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 \
                        LISTEN_FDNAMES=forebay-pool exec \"$@\""
            }
            None => "exec \"$@\" </dev/null",
        };
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_forebay")]);
        command.args(["serve", "--memory", "64MiB", "--workers", "2", "--log", "info"]).args(QUIET);
        command.args(["--volume", volume, "--state"]).arg(directory.join("state"));
        command.arg("--nbd").arg(format!("unix:{}", directory.join("nbd.sock").display()));
        command.envs(variables.iter().copied());
        if let Some(stored) = stored {
            command.stdin(Stdio::from(stored));
        }
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// As [`Self::start_under`], with the pool and a queue of connections from the descriptor
    /// store.
    pub fn start_with_store(
        directory: &Path,
        volume: &str,
        variables: &[(&str, &str)],
        stored: Option<(&std::os::fd::OwnedFd, Option<&std::os::fd::OwnedFd>)>,
    ) -> Self {
        let Some((pool, queue)) = stored else {
            return Self::start_under(directory, volume, variables, None);
        };
        let Some(queue) = queue else {
            return Self::start_under(
                directory,
                volume,
                variables,
                Some(pool.try_clone().unwrap()),
            );
        };
        let mut command = Command::new("sh");
        let script = "exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_PID=$$ LISTEN_FDS=2 \
                      LISTEN_FDNAMES=forebay-pool:forebay-connections exec \"$@\"";
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_forebay")]);
        command.args(["serve", "--memory", "64MiB", "--workers", "2", "--log", "info"]).args(QUIET);
        command.args(["--volume", volume, "--state"]).arg(directory.join("state"));
        command.arg("--nbd").arg(format!("unix:{}", directory.join("nbd.sock").display()));
        command.envs(variables.iter().copied());
        command.stdin(pool.try_clone().unwrap()).stdout(queue.try_clone().unwrap());
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Starts a daemon without a keeper and with extra arguments.
    pub fn start_with(
        directory: &Path,
        io: &str,
        memory: &str,
        volumes: &[String],
        arguments: &[&str],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, io, memory, volumes);
        // Killing the process must also destroy the pool.
        command.args(["--keeper", "no"]).args(arguments);
        Self::spawn(command, directory.join("nbd.sock"))
    }

    /// Starts a daemon whose log goes to a pipe. `--keeper` is among the arguments.
    pub fn start_on_pipe(
        log: std::os::fd::OwnedFd,
        directory: &Path,
        volume: &str,
        arguments: &[&str],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let mut command = Self::command(program, directory, "auto", "96MiB", &[volume.to_owned()]);
        command.args(arguments);
        let mut daemon = Self::spawn_logging_to(log, command, directory.join("nbd.sock"));
        daemon.is_kept = arguments.contains(&"yes");
        daemon
    }

    /// Starts a daemon with a limit on open descriptors.
    pub fn start_limited(directory: &Path, io: &str, volume: &str, descriptors: u32) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let inner = Self::command(program, directory, io, "64MiB", &[volume.to_owned()]);
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {descriptors} && exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(program).args(inner.get_args());
        command.args(["--keeper", "no"]).stdin(Stdio::null());
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
            .args(["serve", "--io", io, "--memory", memory, "--workers", "2", "--log", "info"])
            .args(QUIET)
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

    /// Spawns a daemon and waits until it accepts clients. Its log goes to a file beside the
    /// socket; if the test fails, its end is printed.
    pub fn spawn(command: Command, socket: PathBuf) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log_path(&socket));
        Self::spawn_logging_to(log.unwrap(), command, socket)
    }

    /// As [`Self::spawn`], with another standard error.
    pub fn spawn_logging_to(log: impl Into<Stdio>, mut command: Command, socket: PathBuf) -> Self {
        command.stderr(log);
        // Another test may just have started a process, which has the program that this one has
        // written open for writing until it executes its own.
        let mut child = command.spawn();
        while child.as_ref().is_err_and(|it| it.kind() == ErrorKind::ExecutableFileBusy) {
            std::thread::sleep(Duration::from_millis(10));
            child = command.spawn();
        }
        let mut daemon = Self { child: child.unwrap(), is_kept: false, socket };
        wait_until("the daemon accepts clients", PATIENCE, || {
            let status = daemon.exit_status();
            assert!(status.is_none(), "the daemon exited: {status:?}");
            is_served(&daemon.socket)
        });
        daemon
    }

    /// Sets whether the child is a keeper.
    pub fn set_kept(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// What the log of all daemons on this socket has by now. A thread of its own writes it, so a
    /// line may be missing for a while: [`Self::wait_for_log`] is for what it has to say.
    pub fn log_so_far(&self) -> String {
        std::fs::read_to_string(log_path(&self.socket)).unwrap()
    }

    /// Waits until the log has a text.
    pub fn wait_for_log(&self, text: &str) {
        wait_until(text, PATIENCE, || self.log_so_far().contains(text));
    }

    /// Waits until the log has a text this many times.
    pub fn wait_for_log_times(&self, text: &str, times: usize) {
        wait_until(text, PATIENCE, || self.log_so_far().matches(text).count() == times);
    }

    /// Connects a client to a volume.
    pub fn client(&self, volume: &str) -> Client {
        Client::new(&self.socket, volume)
    }

    /// Kills the child with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The process id of the server, which is not the child if there is a keeper.
    pub fn server(&self) -> rustix::process::Pid {
        let keeper = self.child.id();
        if !self.is_kept {
            return rustix::process::Pid::from_child(&self.child);
        }
        let children = format!("/proc/{keeper}/task/{keeper}/children");
        let mut found = None;
        wait_until("the keeper has started a server", PATIENCE, || {
            let children = std::fs::read_to_string(&children).unwrap();
            found = children.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
            found.is_some()
        });
        found.unwrap()
    }

    /// Kills the server; the keeper then starts another one.
    pub fn kill_server(&self) {
        rustix::process::kill_process(self.server(), rustix::process::Signal::KILL).unwrap();
    }

    /// Kills the keeper only.
    pub fn kill_keeper(mut self) {
        assert!(self.is_kept);
        self.is_kept = false;
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The exit status of the child, if it has exited.
    pub fn exit_status(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends a signal to the child.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the child until [`Daemon::thaw`]. On a loaded machine its threads run on for a while
    /// after the signal, so waits until none does.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until("all threads of the daemon are stopped", PATIENCE, || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                // A thread may end meanwhile.
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
                stat.is_ok_and(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" T "))
            })
        });
    }

    /// Lets the child continue.
    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Runs `forebay` against this daemon; like [`run_forebay`].
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        run_forebay(self.socket.parent().unwrap(), arguments)
    }

    /// The daemon's status.
    pub fn status(&self) -> serde_json::Value {
        status(self.socket.parent().unwrap())
    }

    /// Waits until a volume is served. A start does not wait long for one with `nofail=yes`, and
    /// another server could have it first.
    pub fn wait_for_volume(&self, name: &str) {
        wait_until(name, PATIENCE, || {
            let status = self.status();
            status["volumes"].as_array().unwrap().iter().any(|volume| volume["name"] == name)
        });
    }

    /// The number of connected clients, from the daemon's status.
    pub fn connections(&self) -> u64 {
        self.status()["connections"].as_u64().unwrap()
    }

    /// Returns true if every descriptor below `end` is open.
    pub fn has_descriptors_below(&self, end: u32) -> bool {
        let directory = format!("/proc/{}/fd", self.child.id());
        (0..end).all(|fd| Path::new(&directory).join(fd.to_string()).is_symlink())
    }

    /// Stops the daemon cleanly.
    pub fn stop(self) {
        self.terminate();
        self.wait();
    }

    /// Waits until the daemon exits with code 0.
    pub fn wait(self) {
        self.wait_for_code(0);
    }

    /// Waits until the daemon exits with a code.
    pub fn wait_for_code(mut self, code: i32) {
        let mut status = None;
        wait_until("the daemon exits", PATIENCE, || {
            status = self.exit_status();
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(code), "{status:?}");
    }

    /// Resident set size in bytes: current and peak. Of the program, [`PROGRAM_BYTES`] count at
    /// most.
    pub fn rss_bytes(&self) -> (u64, u64) {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            kib << 10
        };
        // How much of the program's file is mapped depends on how the page cache has read it, and
        // the kernel takes it back when memory is short.
        let excess = field("RssFile:").saturating_sub(PROGRAM_BYTES);
        (field("VmRSS:") - excess, field("VmHWM:") - excess)
    }

    /// CPU time used, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// The process id of the child.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_kept && self.exit_status().is_none() {
            self.kill_server();
        }
        let exit = self.exit_status();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Ok(log) = std::fs::read(log_path(&self.socket))
        {
            let end = &log[log.len().saturating_sub(LOG_BYTES_PRINTED)..];
            let state = exit.map_or("is running".to_owned(), |exit| format!("has ended, {exit}"));
            eprintln!("the daemon {state}; its log:\n{}", String::from_utf8_lossy(end));
        }
    }
}
