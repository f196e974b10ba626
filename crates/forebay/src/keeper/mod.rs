//! The keeper: a supervisor process that holds the pool's memory across server restarts.
//!
//! With a keeper configured, `forebay serve` itself becomes the keeper. It creates the memory
//! file, starts the server as a child that inherits the descriptor, forwards signals, and restarts
//! the server if it dies; the new server adopts the pool unchanged. The keeper does nothing else,
//! so it has few ways to fail. A socket pair connects the two: the server writes one byte now and
//! then while its start makes progress, one once it serves clients, and one each time that it
//! cannot stop as requested; it shuts down cleanly when the keeper's end closes.
//!
//! For systemd, the keeper is the main process of the service, and notifications of others may be
//! ignored. So the keeper passes the first two on, and the server does not notify systemd itself.

mod connections;
pub(crate) mod handover;
mod rules;
pub(crate) mod systemd;

pub(crate) use connections::{HandoverSource, HandoverTarget};
pub(crate) use rules::UPGRADE_CODE;

use crate::arguments::without_overrides;
use crate::report::{sentence, with_remedy};
use crate::signals::{Signal as Request, Signals};
use anyhow::{Context, anyhow};
use forebay_config::KeeperMode;
use forebay_types::Bytes;
use rules::{Action, Exit, Program, RestartPolicy, ServerRun};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind};

/// The environment variable that a keeper sets for its server: the descriptor numbers of the pool
/// and of the socket, and the path of the program, separated by commas. An empty one counts as
/// unset.
pub(crate) const VARIABLE: &str = "FOREBAY_KEEPER";
/// The environment variable that a keeper sets for a server that it starts again after the program
/// of an upgrade exited before it served.
const ROLLBACK_VARIABLE: &str = "FOREBAY_ROLLED_BACK";
/// Sent by the server during a start or a stop that makes progress.
const PROGRESS: u8 = b'P';
/// Sent by the server at intervals while its workers answer, if systemd waits for that.
const ALIVE: u8 = b'A';
/// Sent by the server just before it accepts clients.
const SERVING: u8 = b'S';
/// Sent by the server when a stop that a signal requested has failed, so that it continues.
const CONTINUING: u8 = b'C';
/// How often the keeper looks for a sign of life in the time that systemd waits for one.
const LOOKS_MAX: u32 = 3;
/// How long the keeper collects pending signals before it waits for the operator's decision.
/// Signals sent before are not that decision.
const SIGNALS_DRAIN: Duration = Duration::from_millis(10);
/// The keeper's own executable, even if its file has been replaced or deleted.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The content of [`VARIABLE`].
#[derive(Debug, PartialEq, Eq)]
struct Handoff {
    pool: RawFd,
    socket: RawFd,
    successor: Option<PathBuf>,
}

impl Handoff {
    fn to_text(&self) -> OsString {
        let mut text = OsString::from(format!("{},{}", self.pool, self.socket));
        if let Some(path) = &self.successor {
            text.push(",");
            text.push(path);
        }
        text
    }

    fn parse(text: &OsStr) -> Option<Self> {
        let mut fields = text.as_bytes().splitn(3, |&byte| byte == b',');
        let mut number = || -> Option<RawFd> { str::from_utf8(fields.next()?).ok()?.parse().ok() };
        let (pool, socket) = (number()?, number()?);
        let successor = fields.next().map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Some(Self { pool, socket, successor })
    }
}

/// A server's connection to its keeper or service manager.
#[derive(Debug, Default)]
pub(crate) struct KeeperLink {
    /// The pool's memory file; `None` if the pool ends with the process.
    pub pool: Option<OwnedFd>,
    socket: Option<StdStream>,
    /// The service manager stores the pool.
    is_stored: bool,
    /// The program that an upgrade starts; `None` without a keeper or descriptor store.
    pub successor: Option<PathBuf>,
    /// The program of an upgrade exited before it served, and this one runs again.
    pub is_rollback: bool,
    /// The sockets that the previous server has handed over.
    pub source: HandoverSource,
    /// Where this one hands over its own.
    pub target: HandoverTarget,
}

impl KeeperLink {
    /// Returns true if a keeper started this process.
    pub(crate) fn is_child() -> bool {
        Self::handoff().is_some()
    }

    /// What a keeper has handed to this process.
    fn handoff() -> Option<OsString> {
        std::env::var_os(VARIABLE).filter(|text| !text.is_empty())
    }

    /// Takes over the descriptors inherited from a keeper or the service manager. If the service
    /// manager stores descriptors but has no pool yet, creates one and stores it there.
    ///
    /// # Errors
    /// Fails if [`VARIABLE`] is malformed, if a promised descriptor is not open, or if the pool
    /// cannot be created or stored.
    pub(crate) fn take(mode: KeeperMode) -> anyhow::Result<Self> {
        if let Some(text) = Self::handoff() {
            let foreign = || format!("{VARIABLE}='{}' was not set by a keeper", text.display());
            let remedy = "unset the variable";
            let Some(Handoff { pool, socket, successor }) = Handoff::parse(&text) else {
                return Err(with_remedy(anyhow!(foreign()), remedy));
            };
            let inherit = |number| {
                let inherited = forebay_runtime::inherit(number).with_context(foreign);
                inherited.map_err(|error| with_remedy(error, remedy))
            };
            let socket = StdStream::from(inherit(socket)?);
            let (pool, socket) = (Some(inherit(pool)?), Some(socket));
            let is_rollback = std::env::var_os(ROLLBACK_VARIABLE).is_some();
            let (source, target) = connections::of_keeper();
            let is_stored = false;
            return Ok(Self { pool, socket, is_stored, successor, is_rollback, source, target });
        }
        if mode != KeeperMode::Auto || !systemd::keeps_descriptors() {
            return Ok(Self::default());
        }
        let pool = match systemd::stored_pool() {
            Some(number) => forebay_runtime::inherit(number)
                .context("cannot open the pool stored with systemd")?,
            None => {
                let pool = forebay_runtime::new_pool_file()?;
                systemd::store(pool.as_fd()).context("cannot store the pool with systemd")?;
                pool
            }
        };
        let successor = std::env::current_exe().ok();
        let (source, target) = connections::of_store();
        let pool = Some(pool);
        Ok(Self { pool, is_stored: true, successor, source, target, ..Self::default() })
    }

    /// Releases the pool after an orderly stop. A keeper process exits by itself.
    pub(crate) fn release(&self) {
        if self.is_stored {
            systemd::remove();
        }
    }

    /// A function that notifies the keeper, or else the service manager, that the start or the stop
    /// makes progress. Call it before [`KeeperLink::take_socket`].
    ///
    /// # Errors
    /// Fails if the socket cannot be duplicated.
    pub(crate) fn progress(&self) -> io::Result<impl Fn() + Send + Sync + use<>> {
        self.notifier(PROGRESS, systemd::notify_progress)
    }

    /// A function that notifies the keeper, or else the service manager, that the server lives.
    /// Call it before [`KeeperLink::take_socket`].
    ///
    /// # Errors
    /// Fails if the socket cannot be duplicated.
    pub(crate) fn alive(&self) -> io::Result<impl Fn() + Send + Sync + use<>> {
        self.notifier(ALIVE, systemd::notify_alive)
    }

    fn notifier(&self, message: u8, notify: fn()) -> io::Result<impl Fn() + Send + Sync + use<>> {
        let socket = self.socket.as_ref().map(StdStream::try_clone).transpose()?;
        Ok(move || match &socket {
            Some(socket) => drop((&*socket).write_all(&[message])),
            None => notify(),
        })
    }

    /// Takes the socket to the keeper, for [`notify_serving`] and [`wait_until_gone`].
    ///
    /// # Errors
    /// Fails if the socket cannot be made non-blocking or registered with tokio.
    pub(crate) fn take_socket(&mut self) -> io::Result<Option<UnixStream>> {
        let Some(socket) = self.socket.take() else { return Ok(None) };
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket).map(Some)
    }
}

/// Notifies the keeper, or else the service manager, that the server is about to accept clients,
/// which can already connect.
pub(crate) async fn notify_serving(socket: &mut Option<UnixStream>) {
    match socket {
        // If the keeper is gone, `wait_until_gone` detects it.
        Some(socket) => drop(socket.write_all(&[SERVING]).await),
        None => systemd::notify_ready(),
    }
}

/// Waits until the keeper closes its end of the socket. Without a keeper, never returns.
pub(crate) async fn wait_until_gone(socket: &mut Option<UnixStream>) {
    match socket {
        Some(open) => while matches!(open.read(&mut [0; 16]).await, Ok(1..)) {},
        None => std::future::pending().await,
    }
    *socket = None;
}

/// Notifies the keeper that the server continues, because a requested stop has failed.
pub(crate) async fn notify_continuing(socket: &mut Option<UnixStream>) {
    if let Some(socket) = socket {
        // If the keeper is gone, `wait_until_gone` detects it.
        let _ = socket.write_all(&[CONTINUING]).await;
    }
}

/// Returns true if this process should become a keeper.
pub(crate) fn is_wanted(mode: KeeperMode) -> bool {
    let needs_keeper = match mode {
        KeeperMode::No => false,
        KeeperMode::Yes => true,
        KeeperMode::Auto => !systemd::keeps_descriptors(),
    };
    needs_keeper && !KeeperLink::is_child()
}

/// A running server.
struct Server {
    child: Child,
    socket: UnixStream,
    /// When it began to serve clients.
    serving_since: Option<Instant>,
    /// Looks of the keeper since it last said that its workers answer.
    silent_looks: u32,
}

/// What a keeper keeps while servers are replaced.
struct Kept {
    pool: OwnedFd,
    /// The ends of the queue of sockets: the one that receives, and the one that sends.
    queue: (OwnedFd, OwnedFd),
    /// Until when the queue waits for a server that takes the sockets.
    queue_until: Option<Instant>,
}

impl Kept {
    /// Makes an empty pool and an empty queue.
    fn new() -> anyhow::Result<Self> {
        let pool = forebay_runtime::new_pool_file();
        let pool = pool.context("cannot create the pool's memory file")?;
        let queue = handover::queue().context("cannot create the queue of connections")?;
        Ok(Self { pool, queue, queue_until: None })
    }

    /// Called when a server has exited, which may have handed over sockets.
    fn on_exit(&mut self) {
        if handover::waiting_since(self.queue.0.as_fd()).is_some() {
            self.queue_until.get_or_insert_with(|| Instant::now() + handover::wait_max());
        }
    }

    /// Closes the sockets that no server has taken.
    fn close_queue(&mut self, reason: &str) {
        self.queue_until = None;
        if handover::discard(self.queue.0.as_fd()) > 0 {
            tracing::warn!(reason, "closing the connections that no server has taken over");
        }
    }

    /// Waits until the sockets have waited long enough. Without any, never returns.
    async fn queue_expires(until: Option<Instant>) {
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    }
}

impl Server {
    fn start(
        kept: &Kept,
        program: &PathBuf,
        path: &Path,
        arguments: &[OsString],
        is_rollback: bool,
    ) -> anyhow::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        // Nothing after the start of the child may fail: without a `Server`, the child would use
        // the pool at the same time as its successor.
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        // The keeper starts nothing but servers, and only one at a time.
        let Kept { pool, queue: (receiver, sender), .. } = kept;
        for inherited in [pool, receiver, sender] {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }
        fcntl_setfd(&theirs, FdFlags::empty())?;
        let handoff = Handoff {
            pool: pool.as_raw_fd(),
            socket: theirs.as_raw_fd(),
            successor: Some(path.to_owned()),
        };
        let mut command = Command::new(program);
        command.env_remove(systemd::SOCKET_VARIABLE);
        command.arg0(std::env::args_os().next().unwrap_or_else(|| "forebay".into()));
        command.args(arguments);
        match is_rollback {
            true => command.env(ROLLBACK_VARIABLE, "1"),
            false => command.env_remove(ROLLBACK_VARIABLE),
        };
        // In its own process group, so that it receives a terminal's Ctrl-C once, from the keeper.
        let queue = format!("{},{}", receiver.as_raw_fd(), sender.as_raw_fd());
        command.env(VARIABLE, handoff.to_text()).env(connections::VARIABLE, queue);
        let child = command.process_group(0).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, socket, serving_since: None, silent_looks: 0 })
    }

    /// Handles bytes that the server has sent. Returns true if it has begun to serve.
    fn on_message(&mut self, bytes: &[u8], is_stop_due: &mut bool) -> bool {
        let was_serving = self.serving_since.is_some();
        for byte in bytes {
            match *byte {
                PROGRESS => systemd::notify_progress(),
                ALIVE => self.silent_looks = 0,
                SERVING => {
                    self.serving_since = Some(Instant::now());
                    self.silent_looks = 0;
                    systemd::notify_ready();
                }
                CONTINUING => *is_stop_due = false,
                _ => {}
            }
        }
        !was_serving && self.serving_since.is_some()
    }

    /// Called when it has said nothing for a third of the timeout. Kills it if it serves and that
    /// was too often. systemd would kill this process as well, and with it the pool. Time is not
    /// measured, because both processes may have been frozen together.
    fn look(&mut self) {
        self.silent_looks += 1;
        if self.serving_since.is_some() && self.silent_looks > LOOKS_MAX {
            tracing::error!("the server hangs, and is killed: the next one has the pool");
            // Fails only if the server has exited, which `supervise` detects.
            let _ = self.child.kill();
        }
    }

    fn forward(&self, signal: Signal) {
        // Fails only if the server has exited, which `supervise` detects.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

/// The signals that a keeper forwards to its server, and SIGCHLD.
struct KeeperSignals {
    forwarded: Signals,
    child: unix::Signal,
    /// A stop was requested, and no server has carried it out yet: if the current one dies first,
    /// the next one has to.
    is_stop_due: bool,
}

impl KeeperSignals {
    fn listen() -> io::Result<Self> {
        let child = unix::signal(SignalKind::child())?;
        Ok(Self { forwarded: Signals::listen()?, child, is_stop_due: false })
    }

    /// Waits while no server runs. If a signal requests a stop meanwhile, the next server is
    /// stopped. A request to reload needs no action, because each server reads the configuration.
    async fn pause(&mut self, delay: Duration) {
        let end = tokio::time::sleep(delay);
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                signal = self.forwarded.next() => self.is_stop_due |= signal == Request::Stop,
                () = &mut end => return,
            }
        }
    }
}

/// Holds a pool and restarts the server on it until the server exits after an orderly stop.
///
/// # Errors
/// Fails if the keeper gives up on a server whose pool is clean, or the operator discards a dirty
/// pool.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    // An upgrade starts the program that is at this path at that time.
    let path = std::env::current_exe().context("cannot find the path of this program")?;
    let kept = Kept::new()?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio.block_on(keep(kept, path))
}

async fn keep(mut kept: Kept, path: PathBuf) -> anyhow::Result<ExitCode> {
    let mut signals = KeeperSignals::listen().context("cannot install signal handlers")?;
    let mut policy = RestartPolicy::new();
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut is_rollback = false;
    let watchdog = systemd::watchdog_timeout();
    if let Some(timeout) = watchdog {
        tokio::spawn(notify_alive(timeout / LOOKS_MAX));
    }
    loop {
        let program = match policy.program {
            Program::Own => OWN_PROGRAM.into(),
            Program::AtPath => path.clone(),
        };
        let run = match Server::start(&kept, &program, &path, &arguments, is_rollback) {
            Ok(server) => supervise(server, &mut signals, &mut kept, watchdog).await,
            Err(error) => {
                tracing::error!(error = sentence(&error), "cannot start the server");
                ServerRun { exit: Exit::Unknown, served: None, is_dirty: false }
            }
        };
        kept.on_exit();
        if run.served.is_some() {
            // The operator accepted the state found at that start, not at the next ones.
            arguments = without_overrides(arguments);
        }
        match policy.next_action(run) {
            Action::Exit(code) => return Ok(ExitCode::from(code)),
            Action::Restart(delay) => {
                is_rollback = program == path && policy.program == Program::Own;
                tracing::warn!(
                    exit = ?run.exit,
                    served = ?run.served,
                    delay = ?delay,
                    is_rollback,
                    "server exited, restarting on the same pool"
                );
                signals.pause(delay).await;
            }
            Action::GiveUp => {
                kept.close_queue("the server failed repeatedly");
                wait_for_operator(&kept.pool, &mut signals).await?;
                policy.reset();
            }
        }
    }
}

/// Notifies systemd at intervals that the keeper lives, also while no server does.
async fn notify_alive(interval: Duration) {
    loop {
        systemd::notify_alive();
        tokio::time::sleep(interval).await;
    }
}

/// Forwards signals to the server until it exits. Kills a server that hangs for the time of the
/// `watchdog`.
async fn supervise(
    mut server: Server,
    signals: &mut KeeperSignals,
    kept: &mut Kept,
    watchdog: Option<Duration>,
) -> ServerRun {
    let look = watchdog.map_or(Duration::MAX, |timeout| timeout / LOOKS_MAX);
    let mut bytes = [0; 16];
    let mut is_open = true;
    loop {
        let exit = match server.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or_default()),
            }),
            // There is no such child: it has exited.
            Err(error) => {
                tracing::error!(%error, "cannot get the exit status of the server");
                Some(Exit::Unknown)
            }
        };
        if let Some(exit) = exit {
            // The server may have sent something just before it exited.
            while let Ok(count @ 1..) = server.socket.try_read(&mut bytes) {
                server.on_message(&bytes[..count], &mut signals.is_stop_due);
            }
            // The policy needs this for no other exit, so the pool need not be scanned.
            let is_dirty = matches!(exit, Exit::Code(_))
                && forebay_runtime::dirty_bytes_in(kept.pool.as_fd()) > 0;
            let served = server.serving_since.map(|since| since.elapsed());
            return ServerRun { exit, served, is_dirty };
        }
        tokio::select! {
            _ = signals.child.recv() => {}
            () = tokio::time::sleep(look), if watchdog.is_some() => server.look(),
            () = Kept::queue_expires(kept.queue_until) => {
                kept.close_queue("no server has served in time");
            }
            read = server.socket.read(&mut bytes), if is_open => match read {
                Ok(count @ 1..) => {
                    let has_begun = server.on_message(&bytes[..count], &mut signals.is_stop_due);
                    if has_begun {
                        // Those that it has not taken, it does not take any more.
                        kept.close_queue("the server does not continue them");
                    }
                    if has_begun && signals.is_stop_due {
                        // The previous server received SIGTERM but crashed before it stopped.
                        server.forward(Signal::TERM);
                    }
                }
                Ok(0) | Err(_) => is_open = false,
            },
            signal = signals.forwarded.next() => match signal {
                Request::Stop => {
                    signals.is_stop_due = true;
                    server.forward(Signal::TERM);
                }
                Request::Reload => server.forward(Signal::HUP),
            },
        }
    }
}

/// Called when the server has crashed, or failed to start, several times. If the pool is clean,
/// returns an error, which ends the keeper; otherwise holds the pool until SIGHUP, which retries,
/// or SIGTERM, which discards it.
async fn wait_for_operator(pool: &OwnedFd, signals: &mut KeeperSignals) -> anyhow::Result<()> {
    let dirty_bytes = forebay_runtime::dirty_bytes_in(pool.as_fd());
    if dirty_bytes == 0 {
        let error = anyhow!("the server failed repeatedly and is not restarted");
        return Err(with_remedy(error, "see its log above"));
    }
    signals.pause(SIGNALS_DRAIN).await;
    tracing::error!(
        dirty_bytes,
        pid = std::process::id(),
        "the server failed repeatedly and is not restarted; the keeper holds its dirty data: fix \
         the cause logged above and send SIGHUP to retry, or SIGTERM to discard the data"
    );
    match signals.forwarded.next().await {
        Request::Reload => Ok(()),
        Request::Stop => {
            anyhow::bail!("stopped by a signal: {} of dirty data is lost", Bytes(dirty_bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_path_that_is_no_text_is_handed_over() {
        for path in [&b"/opt/forebay"[..], b"/opt/f\xff,1/forebay", b""] {
            let successor = Some(OsStr::from_bytes(path).into());
            let handoff = Handoff { pool: 5, socket: 17, successor };
            assert_eq!(Handoff::parse(&handoff.to_text()), Some(handoff));
        }
        assert_eq!(
            Handoff::parse(OsStr::new("5,17")),
            Some(Handoff { pool: 5, socket: 17, successor: None })
        );
        for foreign in ["", "5", "5,", "five,17", "5,17x,/opt"] {
            assert_eq!(Handoff::parse(OsStr::new(foreign)), None, "{foreign}");
        }
        assert_eq!(Handoff::parse(OsStr::from_bytes(b"5,\xff")), None);
    }
}
