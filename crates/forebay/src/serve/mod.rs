//! The daemon: reads the configuration, wires the parts together, and waits for the end.

mod battery;
mod check;
mod claims;
mod journals;
mod listen;
mod manager;
mod members;
mod power;
mod report;
mod successor;
mod tls;
mod vault;
mod watch;

use crate::keeper::{self, Kept};
use crate::reliance::{GivenUp, Reliances};
use crate::report::{sentence_of, with_remedy};
use crate::signals::{Signal, Signals};
use anyhow::Context;
pub(crate) use check::check;
use forebay_config::{Config, Ecc, IoEngine, MemInfo, MemorySetting, Workers};
use forebay_control::{Manager, Server, StateDir};
use forebay_frontend_nbd::NbdServer;
use forebay_runtime::{Descriptors, Engine, Runtime, RuntimeConfig, Timeouts};
use forebay_types::{Action, Size};
use journals::Journals;
pub(crate) use journals::identity;
use manager::Daemon;
pub(crate) use members::Members;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use watch::Watch;

/// More workers than this gain nothing where nobody has asked for them.
const WORKERS_AUTO_MAX: usize = 8;

/// How long a start waits for the disks and addresses of a killed predecessor: where it used
/// io_uring, the kernel gives them back a moment after it is gone.
const IN_USE_WAIT: Duration = Duration::from_secs(5);

/// What the operator takes upon himself for one start, by the names of volumes.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// Their disks are the right ones, whatever they look like.
    pub(crate) changed_disks: Vec<String>,
    /// What is in a journal or a vault that is not there is lost.
    pub(crate) given_up: GivenUp,
}

/// Serves the volumes of `config` until it is told to stop.
///
/// # Errors
/// The daemon can't be started, or can't write all dirty data to the disks when it stops.
pub(crate) fn run(config: Config, words: Words) -> anyhow::Result<ExitCode> {
    let mut kept = Kept::take(config.keeper)?;
    let state = StateDir::take_within(&config.state, IN_USE_WAIT)?;
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the control server can't start")?;
    let inside = tokio.enter();
    // Before anything that a signal must not tear.
    let signals = Signals::listen().context("signals can't be handled")?;
    let control = Server::bind(&state)?;
    let mut daemon = start(config, kept.pool.take(), words)?;
    daemon.set_successor(kept.successor.take());
    let daemon = Arc::new(daemon);
    kept.serving();
    let line = kept.line().context("the keeper can't be listened to")?;
    let (leave, left) = tokio::sync::watch::channel(false);
    let manager: Arc<dyn Manager> = Arc::clone(&daemon) as _;
    let mut ended = left.clone();
    let end = async move {
        let _ = ended.wait_for(|end| *end).await;
    };
    let serving = Arc::new(Mutex::new(vec![tokio.spawn(control.run(Arc::clone(&manager), end))]));
    let (handle, servers) = (tokio.handle().clone(), Arc::clone(&serving));
    let serve_again: watch::ServeControl = Box::new(move |state| {
        let control = Server::bind(state)?;
        let mut ended = left.clone();
        let end = async move {
            let _ = ended.wait_for(|end| *end).await;
        };
        let server = handle.spawn(control.run(Arc::clone(&manager), end));
        servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        Ok(())
    });
    let watch = Watch::start(Arc::clone(&daemon), state, serve_again)
        .context("the files that are in use can't be watched")?;
    tokio.block_on(wait(&daemon, signals, line))?;
    // The receiver is the control server, which ends with it.
    let _ = leave.send(true);
    // It might start another one.
    drop(watch);
    let servers = std::mem::take(&mut *serving.lock().unwrap_or_else(PoisonError::into_inner));
    for server in servers {
        tokio.block_on(server)??;
    }
    drop(inside);
    // A command that hangs in a disk's opening has nothing to lose.
    tokio.shutdown_background();
    if daemon.is_upgrade() {
        tracing::info!("the pool is left to the next process");
        return Ok(ExitCode::from(keeper::UPGRADE_CODE));
    }
    tracing::info!("everything is on the disks; good-bye");
    Ok(ExitCode::SUCCESS)
}

/// Says how many clients there are descriptors for, now that everything else is open.
fn report_descriptors() {
    let descriptors = Descriptors::read();
    // Where the system does not list them, their number is not worth a failed start.
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let (Descriptors { limit, reserved }, clients) =
        (descriptors, descriptors.clients_beside(used));
    tracing::info!(limit, used, reserved, clients, "file descriptors");
    if clients == 0 {
        tracing::warn!(
            limit,
            "no client can connect for want of file descriptors: raise the limit (ulimit -n, or \
             LimitNOFILE= of the service)"
        );
    }
}

/// What the setting comes to on this machine.
fn memory_bytes(setting: MemorySetting) -> anyhow::Result<u64> {
    let machine = MemInfo::read().map_err(|error| {
        let error = anyhow::Error::new(error).context("the machine's memory can't be read");
        with_remedy(error, Action::set("memory", "SIZE"))
    })?;
    Ok(machine.resolve(setting)?)
}

/// Starts the runtime, opens the volumes, and lets clients in.
fn start(config: Config, pool: Option<OwnedFd>, words: Words) -> anyhow::Result<Daemon> {
    if let Err(error) = Descriptors::raise() {
        tracing::warn!(%error, "the limit of file descriptors stays as it is");
    }
    let memory_bytes = memory_bytes(config.memory)?;
    let tls = tls::load(&config.tls)?;
    let settings = RuntimeConfig {
        memory_bytes,
        workers: match config.workers {
            Workers::Count(count) => count,
            Workers::Auto => {
                std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_AUTO_MAX)
            }
        },
        engine: match config.io {
            IoEngine::Auto => Engine::Auto,
            IoEngine::IoUring => Engine::IoUring,
            IoEngine::Epoll => Engine::Epoll,
        },
        journals: journals::count(&config.volumes) + usize::from(config.vault.is_some()),
        ecc: match config.ecc {
            Ecc::Parity => forebay_runtime::Ecc::Parity,
            Ecc::Checksum => forebay_runtime::Ecc::Checksum,
            Ecc::Off => forebay_runtime::Ecc::Off,
        },
    };
    let nbd = NbdServer::new();
    let runtime = Runtime::start_over(settings, Timeouts::default(), pool, &nbd)?;
    tracing::info!("{} of memory, clients and files by {}", Size(memory_bytes), runtime.engine());
    let reliances = Reliances::new(&config.state, config.vault.as_deref(), words.given_up);
    let reliances = Arc::new(reliances);
    runtime.keep_vault_record(Arc::clone(&reliances) as _);
    runtime.keep_journal_record(Arc::clone(&reliances) as _);
    if let Some(name) = &config.vault {
        vault::open(&runtime, name, &config.state, &reliances, IN_USE_WAIT)?;
    }
    let volumes = config.volumes.clone();
    let listeners = config.nbd.clone();
    let journals = Journals::new(&config.state, &volumes, words.changed_disks, reliances);
    let mut daemon = Daemon::new(runtime, nbd, config, tls, journals);
    daemon.wait_while_in_use(IN_USE_WAIT);
    for spec in volumes {
        daemon.add_volume(spec)?;
    }
    daemon.report_unserved();
    daemon.watch_power()?;
    for address in listeners {
        daemon.listen(&address)?;
    }
    daemon.wait_while_in_use(Duration::ZERO);
    report_descriptors();
    Ok(daemon)
}

/// Waits until a signal or a client of the control server says stop, and it has been done.
async fn wait(
    daemon: &Arc<Daemon>,
    mut signals: Signals,
    mut line: Option<UnixStream>,
) -> anyhow::Result<()> {
    loop {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = keeper::wait_until_gone(&mut line) => {
                tracing::error!("the keeper is gone, and with this process the pool would be");
                Signal::Stop
            }
            () = daemon.stopped() => return Ok(()),
        };
        let daemon = Arc::clone(daemon);
        match signal {
            Signal::Reload => tokio::task::spawn_blocking(move || daemon.reload()).await?,
            Signal::Stop => {
                tracing::info!("stopping: what is dirty goes to the disks first");
                let stopping = tokio::task::spawn_blocking(move || {
                    daemon.stop(&|progress| {
                        tracing::info!("{} left", Size(progress.dirty_bytes_left));
                    })
                });
                match stopping.await? {
                    Ok(()) => return Ok(()),
                    // Leaving now would lose what the disk does not take.
                    Err(problem) => tracing::error!("not stopped: {}", sentence_of(&problem)),
                }
            }
        }
    }
}
