//! A Forebay server for a scenario, with its counters.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Timeout for the start and the stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Stopped when dropped.
pub struct Forebay {
    /// Its NBD socket.
    pub socket: PathBuf,
    /// Its process.
    pub pid: u32,
    program: PathBuf,
    state: PathBuf,
    child: Child,
}

impl Forebay {
    /// Starts the program in `programs` with `volumes` (each `NAME=BACKING[,KEY=VALUE...]`), a pool
    /// of `memory_bytes` and `more` arguments, with all its files in `dir`.
    ///
    /// # Errors
    /// If it does not start; the message has its output.
    pub fn start(
        programs: &Path,
        dir: &Path,
        volumes: &[String],
        memory_bytes: u64,
        more: &[&str],
    ) -> Result<Self> {
        Self::start_watched(programs, dir, volumes, memory_bytes, more, &mut |_| ())
    }

    /// Like [`Forebay::start`]; calls `watch` with the process id every few milliseconds until the
    /// server is up.
    pub fn start_watched(
        programs: &Path,
        dir: &Path,
        volumes: &[String],
        memory_bytes: u64,
        more: &[&str],
        watch: &mut dyn FnMut(u32),
    ) -> Result<Self> {
        let program = programs.join("forebay");
        let (socket, state) = (dir.join("socket"), dir.join("state"));
        let log = File::create(dir.join("log"))?;
        let mut command = Command::new(&program);
        command.args(["serve", "--keeper", "no", "--state"]).arg(&state);
        command.arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.arg("--memory").arg(memory_bytes.to_string()).args(more);
        for volume in volumes {
            command.arg("--volume").arg(volume);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("starting {}: build it first", program.display()))?;
        let mut server = Self { socket, pid: child.id(), program, state, child };
        server.wait_until_open(watch).with_context(|| {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            format!("forebay did not start; its output: {}", log.trim())
        })?;
        Ok(server)
    }

    /// Kills it, as a crash would.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it in order.
    pub fn stop(mut self) -> Result<()> {
        self.terminate()?;
        let ended = self.end_within(PATIENCE)?;
        let status = ended.with_context(|| format!("it did not stop within {PATIENCE:?}"))?;
        ensure!(status.success(), "the stop ended with {status}: see the server's log");
        Ok(())
    }

    fn wait_until_open(&mut self, watch: &mut dyn FnMut(u32)) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(Instant::now() < deadline, "its socket did not open in {PATIENCE:?}");
            watch(self.pid);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The socket of its control API.
    pub fn control_socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// The current counters of a volume.
    pub fn counters(&self, volume: &str) -> Result<CounterSnapshot> {
        CounterSnapshot::parse(&self.command(&["status", "--json"])?, volume)
    }

    /// The current counters of the only journal.
    pub fn journal(&self) -> Result<CounterSnapshot> {
        let status = self.status()?;
        let journals = status["journals"].as_array().context("the status has no journals")?;
        Ok(CounterSnapshot(journals.first().context("there is no journal")?.clone()))
    }

    /// The complete status.
    pub fn status(&self) -> Result<Value> {
        let status = self.command(&["status", "--json"])?;
        serde_json::from_str(&status).context("the status is not JSON")
    }

    /// A figure of the memory in the status, in bytes.
    ///
    /// # Errors
    /// If there is none of that name: a missing figure is not zero.
    pub fn memory(&self, name: &str) -> Result<u64> {
        let bytes = self.status()?["memory"][name].as_u64();
        bytes.with_context(|| format!("the status has no memory {name:?}"))
    }

    /// The memory of the process, the pool included, in bytes.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid))?;
        let pages = statm.split_whitespace().nth(1).context("no resident pages in statm")?;
        Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
    }

    /// Runs a `forebay` command against the server. Returns its output.
    ///
    /// # Errors
    /// If the command fails; the message has its output.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .arg("--state")
            .arg(&self.state)
            .output()
            .with_context(|| format!("running forebay {arguments:?}"))?;
        ensure!(
            output.status.success(),
            "forebay {arguments:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends it SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("cannot signal the server")
    }

    /// Waits for it to exit; `None` after `limit`.
    pub fn end_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Forebay {
    fn drop(&mut self) {
        // A killed process no longer has an id.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // The measurement is over: ignore failures.
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The counters of one volume at one moment.
#[derive(Clone, Debug)]
pub struct CounterSnapshot(Value);

impl CounterSnapshot {
    /// Takes the counters of `volume` out of a status in JSON.
    pub fn parse(status: &str, volume: &str) -> Result<Self> {
        let status: Value = serde_json::from_str(status).context("the status is not JSON")?;
        let volumes = status["volumes"].as_array().context("the status has no volumes")?;
        let found = volumes.iter().find(|one| one["name"] == volume);
        let found = found.with_context(|| format!("the status has no volume {volume:?}"))?;
        Ok(Self(found["counters"].clone()))
    }

    /// One counter.
    ///
    /// # Errors
    /// If there is none of that name: a missing figure is not zero.
    pub fn get(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().with_context(|| format!("the status has no counter {name:?}"))
    }

    /// The increase of one counter since `before`.
    pub fn since(&self, before: &Self, name: &str) -> Result<u64> {
        Ok(self.get(name)?.saturating_sub(before.get(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_volume() {
        let status = r#"{"volumes": [{"name": "a", "counters": {"reads": 1}},
            {"name": "b", "counters": {"reads": 20}}]}"#;
        let counters = CounterSnapshot::parse(status, "b").unwrap();
        assert_eq!(counters.get("reads").unwrap(), 20);
        assert!(counters.get("hits").is_err());
        assert!(CounterSnapshot::parse(status, "c").is_err());
        let before = CounterSnapshot::parse(status, "a").unwrap();
        assert_eq!(counters.since(&before, "reads").unwrap(), 19);
    }
}
