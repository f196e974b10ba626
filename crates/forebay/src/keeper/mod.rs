//! The keeper: holds the pool's memory while servers come and go.
//!
//! `forebay serve` becomes the keeper when it is to have one. It makes the memory file, starts the
//! server as its child with the file's descriptor, passes signals on, and starts another one when
//! the server dies; that one finds the pool as it was. It does nothing else, so there is little
//! that could end it. Both ends of a socket pair tell each other that they are there: the server
//! writes a byte when it serves, and stops in order when the keeper is gone.

mod rules;
pub(crate) mod systemd;

pub(crate) use rules::UPGRADE_CODE;

use anyhow::Context;
use forebay_config::KeeperMode;
use rules::{Ending, Life, Next, Program, Rules};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::Instant;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind};

/// Tells a server that it has a keeper: the numbers of the pool's descriptor and of the line, and
/// the path of the program.
pub(crate) const VARIABLE: &str = "FOREBAY_KEEPER";
/// What the server writes when it serves.
const SERVING: &[u8] = b"S";
/// The keeper's own program, whatever has become of the file it was started from.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A server's connection to what keeps its pool.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The pool's memory file; none if the pool is to end with the process.
    pub pool: Option<OwnedFd>,
    line: Option<StdStream>,
    /// The path of the program that an upgrade starts; none if nobody keeps the pool.
    pub successor: Option<PathBuf>,
}

impl Kept {
    /// Whether a keeper started this process.
    pub(crate) fn is_child() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }

    /// Takes over what a keeper or the service manager has left open for this process. Without
    /// either, and where the service manager keeps descriptors, it is given one.
    ///
    /// # Errors
    /// What was promised is not there.
    pub(crate) fn take(mode: KeeperMode) -> anyhow::Result<Self> {
        if let Some(text) = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()) {
            let mut fields = text.splitn(3, ',');
            let mut number = || fields.next().and_then(|text| text.parse::<RawFd>().ok());
            let (Some(pool), Some(line)) = (number(), number()) else {
                anyhow::bail!("{VARIABLE}='{text}' is not from a keeper: unset it");
            };
            let successor = fields.next().map(PathBuf::from);
            let taken = |number| {
                forebay_runtime::inherit(number)
                    .with_context(|| format!("{VARIABLE}='{text}' is not from a keeper: unset it"))
            };
            let line = StdStream::from(taken(line)?);
            return Ok(Self { pool: Some(taken(pool)?), line: Some(line), successor });
        }
        if mode != KeeperMode::Auto || !systemd::keeps_descriptors() {
            return Ok(Self::default());
        }
        let pool = match systemd::stored_pool() {
            Some(number) => forebay_runtime::inherit(number).context("the stored pool is gone")?,
            None => {
                let pool = forebay_runtime::new_pool_file()?;
                systemd::store(pool.as_fd()).context("the pool can't be stored with systemd")?;
                pool
            }
        };
        Ok(Self { pool: Some(pool), line: None, successor: std::env::current_exe().ok() })
    }

    /// Says that clients are served.
    pub(crate) fn serving(&mut self) {
        if let Some(line) = &mut self.line {
            // A keeper that is gone shows itself at the other end.
            let _ = io::Write::write_all(line, SERVING);
        }
        systemd::ready();
    }

    /// What [`wait_until_gone`] waits on.
    ///
    /// # Errors
    /// The line can't be waited for.
    pub(crate) fn line(&mut self) -> io::Result<Option<UnixStream>> {
        let Some(line) = self.line.take() else { return Ok(None) };
        line.set_nonblocking(true)?;
        UnixStream::from_std(line).map(Some)
    }
}

/// Waits until the keeper is gone; for ever, if there is none.
pub(crate) async fn wait_until_gone(line: &mut Option<UnixStream>) {
    match line {
        Some(open) => while matches!(open.read(&mut [0; 16]).await, Ok(1..)) {},
        None => std::future::pending().await,
    }
    *line = None;
}

/// Whether this process is to become a keeper.
pub(crate) fn is_wanted(mode: KeeperMode) -> bool {
    let by_itself = match mode {
        KeeperMode::No => false,
        KeeperMode::Yes => true,
        KeeperMode::Auto => !systemd::keeps_descriptors(),
    };
    by_itself && !Kept::is_child()
}

/// A running server.
struct Server {
    child: Child,
    line: UnixStream,
    /// Since when it serves clients.
    serving: Option<Instant>,
}

impl Server {
    fn start(pool: &OwnedFd, program: &PathBuf, path: &Path) -> anyhow::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        // There is one thread here, so nobody else starts a program meanwhile.
        fcntl_setfd(pool, FdFlags::empty())?;
        fcntl_setfd(&theirs, FdFlags::empty())?;
        let mut told = OsString::from(format!("{},{},", pool.as_raw_fd(), theirs.as_raw_fd()));
        told.push(path);
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        command.arg0(arguments.next().unwrap_or_else(|| "forebay".into())).args(arguments);
        // Of its own group, so that a terminal's Control-C comes once, and from here.
        let child = command.env(VARIABLE, told).process_group(0).spawn();
        fcntl_setfd(pool, FdFlags::CLOEXEC)?;
        let child = child.with_context(|| format!("{} can't be started", program.display()))?;
        ours.set_nonblocking(true)?;
        Ok(Self { child, line: UnixStream::from_std(ours)?, serving: None })
    }

    fn pass(&self, signal: Signal) {
        // It fails only where the server has ended, and that is noticed elsewhere.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

/// The signals that a keeper passes on.
struct Passed {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    child: unix::Signal,
}

impl Passed {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
            child: unix::signal(SignalKind::child())?,
        })
    }

    /// The next one but those of children.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

/// Keeps a pool, and servers over it, until one ends by itself.
///
/// # Errors
/// Servers die again and again, or can't be started.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    // What is at this path later is what an upgrade starts.
    let path = std::env::current_exe().context("the program's own path can't be found")?;
    let pool = forebay_runtime::new_pool_file().context("no memory for the pool")?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio.block_on(keep(&pool, path))
}

async fn keep(pool: &OwnedFd, path: PathBuf) -> anyhow::Result<ExitCode> {
    let mut signals = Passed::listen().context("signals can't be handled")?;
    let mut rules = Rules::new();
    let mut stopping = false;
    loop {
        let program = match rules.program {
            Program::Own => OWN_PROGRAM.into(),
            Program::AtPath => path.clone(),
        };
        let life = match Server::start(pool, &program, &path) {
            Ok(server) => attend(server, &mut signals, &mut stopping, pool).await?,
            Err(error) if rules.program == Program::AtPath => {
                tracing::error!("{}", crate::report::sentence(&error));
                let is_dirty = forebay_runtime::dirty_bytes_in(pool.as_fd()) > 0;
                Life { ending: Ending::Code(1), served: None, is_dirty }
            }
            Err(error) => return Err(error),
        };
        match rules.follow(life) {
            Next::End(code) => return Ok(ExitCode::from(code)),
            Next::Again(pause) => {
                tracing::warn!(
                    "the server has ended ({:?}); another one takes its pool over{}",
                    life.ending,
                    if program == path && rules.program == Program::Own {
                        ", of the version before: the new one does not serve"
                    } else {
                        ""
                    }
                );
                tokio::time::sleep(pause).await;
            }
            Next::GiveUp => {
                wait_for_help(pool, &mut signals).await?;
                rules.forgive();
            }
        }
    }
}

/// Passes signals on until the server has ended.
async fn attend(
    mut server: Server,
    signals: &mut Passed,
    stopping: &mut bool,
    pool: &OwnedFd,
) -> anyhow::Result<Life> {
    let mut byte = [0; 1];
    let mut is_open = true;
    loop {
        if let Some(status) = server.child.try_wait()? {
            // What it has said last is still on the line.
            if server.serving.is_none() && server.line.try_read(&mut byte).is_ok_and(|n| n > 0) {
                server.serving = Some(Instant::now());
            }
            let ending = match (status.code(), status.signal()) {
                (Some(code), _) => Ending::Code(code),
                (None, signal) => Ending::Signal(signal.unwrap_or_default()),
            };
            // Only what has ended by itself may be the end.
            let is_dirty = matches!(ending, Ending::Code(_))
                && forebay_runtime::dirty_bytes_in(pool.as_fd()) > 0;
            let served = server.serving.map(|since| since.elapsed());
            return Ok(Life { ending, served, is_dirty });
        }
        tokio::select! {
            _ = signals.child.recv() => {}
            read = server.line.read(&mut byte), if is_open => match read {
                Ok(1..) => {
                    server.serving = Some(Instant::now());
                    if *stopping {
                        // The one before was told, and died of something else.
                        server.pass(Signal::TERM);
                    }
                }
                Ok(0) | Err(_) => is_open = false,
            },
            signal = async {
                tokio::select! {
                    _ = signals.terminate.recv() => Signal::TERM,
                    _ = signals.interrupt.recv() => Signal::TERM,
                    _ = signals.hangup.recv() => Signal::HUP,
                }
            } => {
                *stopping |= signal == Signal::TERM;
                server.pass(signal);
            }
        }
    }
}

/// Servers die too soon. With nothing in the pool that no disk has, that is the end; otherwise the
/// pool is held until somebody has seen to it.
async fn wait_for_help(pool: &OwnedFd, signals: &mut Passed) -> anyhow::Result<()> {
    let dirty_bytes = forebay_runtime::dirty_bytes_in(pool.as_fd());
    if dirty_bytes == 0 {
        anyhow::bail!(
            "the server has died again and again, and is not started any more: see why in the \
             lines above"
        );
    }
    tracing::error!(
        "the server has died again and again, and is not started any more. {dirty_bytes} bytes \
         that no disk has are in the pool, which process {} holds: see why in the lines above, \
         mend it and send SIGHUP to try again, or SIGTERM to lose them",
        std::process::id()
    );
    match signals.next().await {
        Signal::HUP => Ok(()),
        _ => anyhow::bail!("given up: {dirty_bytes} bytes that no disk had are lost"),
    }
}
