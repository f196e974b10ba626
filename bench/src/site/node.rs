//! One host's server of a volume, which can be killed and frozen like a host.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Timeout for the start and for ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the server of a host is started.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Directory of the built programs.
    pub programs: PathBuf,
    /// Directory for the files of this host.
    pub dir: PathBuf,
    /// The volume, as `forebay serve` takes it.
    pub volume: String,
    /// Whether its pool survives the server.
    pub has_keeper: bool,
    /// A further address that it listens at, without TLS.
    pub nbd: Option<String>,
    /// Words before the command, such as `unshare --pid --fork`.
    pub wrapper: Vec<String>,
    /// Shell commands that cut the host off from the stores, and that connect it again.
    pub network: Option<[String; 2]>,
}

/// A running server, with everything that it has started.
pub struct Node {
    setup: NodeSetup,
    child: Child,
}

impl Node {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// If it does not start; the message has its output.
    pub fn start(setup: &NodeSetup) -> Result<Self> {
        std::fs::create_dir_all(&setup.dir)?;
        let program = setup.programs.join("forebay");
        let mut words = setup.wrapper.iter().map(Path::new).chain([&*program]);
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words).args(["serve", "--memory", "64MiB"]);
        command.args(["--keeper", if setup.has_keeper { "yes" } else { "no" }]);
        command.arg("--state").arg(setup.dir.join("state"));
        command.arg("--nbd").arg(format!("unix:{}", setup.dir.join("socket").display()));
        if let Some(nbd) = &setup.nbd {
            command.args(["--nbd", nbd, "--tls", "off"]);
        }
        command.args(["--volume", &setup.volume]);
        let log = File::options().create(true).append(true).open(setup.dir.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let mut node = Self { setup: setup.clone(), child };
        let deadline = Instant::now() + PATIENCE;
        while !node.command(&["status", "--json"])?.status.success() {
            if let Some(status) = node.child.try_wait()? {
                bail!(
                    "the server has ended with {status}: see {}",
                    setup.dir.join("log").display()
                );
            }
            ensure!(Instant::now() < deadline, "the server does not answer within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(node)
    }

    /// Its NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.setup.dir.join("socket")
    }

    /// Runs a `forebay` command against the server.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn command(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.setup.programs.join("forebay"));
        command.args(arguments).arg("--state").arg(self.setup.dir.join("state"));
        command.output().with_context(|| format!("running {command:?}"))
    }

    /// Sends a signal to all processes of the host. A keeper's server has a process group of its
    /// own.
    fn signal_all(&self, signal: Signal) -> Result<()> {
        for process in self.stop_all()? {
            // It may have ended.
            let _ = kill_process(process, signal);
        }
        Ok(())
    }

    /// Stops all processes, parents first, so that they start none meanwhile.
    fn stop_all(&self) -> Result<Vec<Pid>> {
        let mut processes = vec![Pid::from_child(&self.child)];
        kill_process(processes[0], Signal::STOP)?;
        let mut next = 0;
        while let Some(&process) = processes.get(next) {
            for child in children(process) {
                let _ = kill_process(child, Signal::STOP);
                processes.push(child);
            }
            next += 1;
        }
        Ok(processes)
    }

    /// Stops all processes of the host, as if it was suspended.
    ///
    /// # Errors
    /// If they have ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Lets them continue.
    ///
    /// # Errors
    /// If they have ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    /// Cuts the host off from the stores. Its clients still reach its server.
    ///
    /// # Errors
    /// If there is no command for it, or it fails.
    pub fn cut_off(&self) -> Result<()> {
        self.run_of_network(0)
    }

    /// Connects it again.
    ///
    /// # Errors
    /// If there is no command for it, or it fails.
    pub fn reconnect(&self) -> Result<()> {
        self.run_of_network(1)
    }

    fn run_of_network(&self, which: usize) -> Result<()> {
        let commands = self.setup.network.as_ref().context("no command cuts the network")?;
        let output = Command::new("sh").args(["-c", &commands[which]]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", commands[which]);
        Ok(())
    }

    /// Kills the server alone: a keeper starts the next one.
    ///
    /// # Errors
    /// If it is not found.
    pub fn kill_server(&self) -> Result<()> {
        self.signal_server(Signal::KILL)
    }

    /// Stops the server in order, with its keeper.
    ///
    /// # Errors
    /// If it does not stop.
    pub fn stop(&mut self) -> Result<()> {
        self.signal_server(Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the server does not stop within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn signal_server(&self, signal: Signal) -> Result<()> {
        let mut server = Pid::from_child(&self.child);
        // The innermost process: wrapper, keeper, server.
        while let Some(&child) = children(server).first() {
            server = child;
        }
        Ok(kill_process(server, signal)?)
    }

    /// Kills everything, as a power failure of the host, and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn reboot(&mut self) -> Result<()> {
        self.kill()?;
        *self = Self::start(&self.setup.clone())?;
        Ok(())
    }

    /// Kills everything, as a power failure of the host.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        // It may have ended by itself.
        let _ = self.signal_all(Signal::KILL);
        self.child.wait()?;
        Ok(())
    }
}

/// The processes that the first thread of a process has started.
fn children(process: Pid) -> Vec<Pid> {
    let process = process.as_raw_nonzero();
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().filter_map(|it| it.parse().ok().and_then(Pid::from_raw)).collect()
}

impl Drop for Node {
    fn drop(&mut self) {
        // The test is over: failures are ignored.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper's server has a process group of its own, and once ran on while its host slept.
    #[test]
    fn a_host_sleeps_with_the_processes_of_other_groups() {
        let script = "set -m; sleep 1000 & wait";
        let child = Command::new("bash").args(["-c", script]).process_group(0).spawn().unwrap();
        let setup = NodeSetup {
            programs: PathBuf::new(),
            dir: PathBuf::new(),
            volume: String::new(),
            nbd: None,
            has_keeper: true,
            wrapper: Vec::new(),
            network: None,
        };
        let mut node = Node { setup, child };
        let shell = Pid::from_child(&node.child);
        let sleeper = loop {
            match children(shell).first() {
                Some(&sleeper) if state(sleeper) == Some('S') => break sleeper,
                _ => std::thread::yield_now(),
            }
        };
        node.freeze().unwrap();
        while state(sleeper) != Some('T') || state(shell) != Some('T') {
            std::thread::yield_now();
        }
        node.thaw().unwrap();
        while state(sleeper) == Some('T') {
            std::thread::yield_now();
        }
        node.kill().unwrap();
        // Whichever process has inherited it waits for it.
        while state(sleeper).is_some_and(|state| state != 'Z') {
            std::thread::yield_now();
        }
    }

    fn state(process: Pid) -> Option<char> {
        let process = process.as_raw_nonzero();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}
