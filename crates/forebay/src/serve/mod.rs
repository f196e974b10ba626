//! The daemon: starts the runtime from a configuration, serves its volumes, and stops in order.

mod battery;
mod check;
mod claims;
mod control;
mod journals;
mod listen;
mod manager;
mod members;
mod power;
mod presence;
mod report;
mod successor;
mod tls;
mod vault;
mod warm_lists;

use crate::keeper::{self, Kept};
use crate::reliance::{GivenUp, Reliances};
use crate::report::{sentence_of, with_remedy};
use crate::signals::{Signal, Signals};
use anyhow::Context;
pub(crate) use check::check;
use control::ControlServers;
use forebay_config::{Config, Ecc, IoEngine, KeptMemory, MemInfo, MemorySetting, Workers};
use forebay_control::{Manager, Server, StateDir};
use forebay_frontend_nbd::NbdServer;
use forebay_runtime::{Descriptors, Engine, Runtime, RuntimeConfig, Timeouts};
use forebay_types::{Action, Size};
use journals::Journals;
pub(crate) use journals::identity;
use listen::Bound;
use manager::Daemon;
pub(crate) use members::Members;
use presence::PresenceMonitor;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use successor::Successor;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use warm_lists::StateWarmLists;

/// Maximum number of workers with `workers=auto`: more gain nothing on common machines.
const WORKERS_AUTO_MAX: usize = 8;

/// How long a start waits for disks and addresses that are in use.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// The same after a kill: the kernel releases the files of an io_uring in the background, after the
/// process has exited. On a loaded machine this takes long.
const KILLED_WAIT: Duration = Duration::from_secs(60);

/// Safety checks that the operator overrides, by volume name. They are options of the command line.
/// A keeper passes them on until a server has served with them; systemd does so until the unit is
/// changed.
#[derive(Debug, Default)]
pub(crate) struct ServeOverrides {
    /// Volumes to serve even if their disks do not match their fingerprints.
    pub(crate) accepted_disks: Vec<String>,
    /// Volumes to serve without the data in a missing journal or vault.
    pub(crate) given_up: GivenUp,
}

/// Serves the volumes of `config` until a signal or a client stops the daemon.
///
/// # Errors
/// Fails if the daemon cannot start.
pub(crate) fn run(config: Config, overrides: ServeOverrides) -> anyhow::Result<ExitCode> {
    let mut kept = Kept::take(config.keeper)?;
    let state = StateDir::take_within(&config.state, IN_USE_WAIT)?;
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the control server")?;
    let entered = tokio.enter();
    // Before the start, which a signal must not interrupt.
    let signals = Signals::listen().context("cannot install signal handlers")?;
    let control = Server::bind(&state)?;
    let in_use_wait = if state.was_killed() { KILLED_WAIT } else { IN_USE_WAIT };
    let pool = kept.pool.take();
    let successor = Successor::new(kept.successor.take(), pool.as_ref())
        .context("cannot duplicate the descriptor of the pool")?;
    let (mut daemon, bound) = start(config, pool, overrides, in_use_wait)?;
    daemon.set_successor(successor);
    daemon.set_rolled_back(kept.is_rollback);
    let daemon = Arc::new(daemon);
    let mut keeper_socket = kept.take_socket().context("cannot read from the keeper's socket")?;
    let control_servers =
        Arc::new(ControlServers::new(tokio.handle().clone(), Arc::clone(&daemon) as _));
    let presence = PresenceMonitor::start(Arc::clone(&daemon), state, Arc::clone(&control_servers))
        .context("cannot start the thread that monitors files in use")?;
    // Nothing below may fail: writes are acknowledged from now on, and only a stop or an upgrade
    // keeps what is not on the disks.
    // The keeper is told before the first client is accepted. Otherwise it would take a server that
    // is killed in between for one that could not start.
    tokio.block_on(keeper::serving(&mut keeper_socket));
    bound.into_iter().for_each(|bound| daemon.accept(bound));
    control_servers.serve(control);
    tokio.block_on(wait_for_stop(&daemon, signals, keeper_socket));
    // Before the control servers end, as it may start another one.
    drop(presence);
    tokio.block_on(control_servers.end());
    drop(entered);
    // Does not wait for commands: one that opens a hanging disk may never return.
    tokio.shutdown_background();
    if daemon.is_upgrade() {
        tracing::info!("exiting for an upgrade, the keeper holds the pool");
        return Ok(ExitCode::from(keeper::UPGRADE_CODE));
    }
    kept.release();
    tracing::info!("shutdown complete, all dirty data flushed");
    Ok(ExitCode::SUCCESS)
}

/// Logs how many clients the remaining file descriptors allow. Called once everything else is open.
fn report_descriptors() {
    let descriptors = Descriptors::read();
    // Without /proc, the log overstates the number of clients, which is no reason to fail.
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let (Descriptors { limit, reserved }, clients) =
        (descriptors, descriptors.clients_beside(used));
    tracing::info!(limit, used, reserved, clients, "file descriptors");
    if clients == 0 {
        tracing::warn!(
            limit,
            "too few file descriptors for any client: raise the limit (ulimit -n, or LimitNOFILE= \
             of the service)"
        );
    }
}

/// Resolves the memory setting on this machine.
fn memory_bytes(setting: MemorySetting, kept: KeptMemory) -> anyhow::Result<u64> {
    let machine = MemInfo::read().map_err(|error| {
        let error =
            anyhow::Error::new(error).context("cannot read the size of the machine's memory");
        with_remedy(error, Action::set("memory", "SIZE"))
    })?;
    Ok(machine.resolve(setting, kept)?)
}

/// The memory of the pool in a file that a keeper holds.
fn kept_memory(pool: &OwnedFd) -> KeptMemory {
    let pool = pool.as_fd();
    KeptMemory {
        used_bytes: forebay_runtime::used_bytes_in(pool),
        limit_bytes: forebay_runtime::limit_bytes_in(pool),
    }
}

/// Starts the runtime, adds the volumes, and binds the addresses for clients, of which none is
/// accepted yet. Waits up to `in_use_wait` for each disk and address.
fn start(
    config: Config,
    pool: Option<OwnedFd>,
    overrides: ServeOverrides,
    in_use_wait: Duration,
) -> anyhow::Result<(Daemon, Vec<Bound>)> {
    if let Err(error) = Descriptors::raise() {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    let kept = pool.as_ref().map(kept_memory).unwrap_or_default();
    let memory_bytes = memory_bytes(config.memory, kept)?;
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
    tracing::info!(memory = %Size(memory_bytes), io_engine = runtime.engine(), "runtime started");
    let reliances = Reliances::new(&config.state, config.vault.as_deref(), overrides.given_up);
    let reliances = Arc::new(reliances);
    runtime.keep_vault_record(Arc::clone(&reliances) as _);
    runtime.keep_journal_record(Arc::clone(&reliances) as _);
    runtime.keep_warm_lists(Arc::new(StateWarmLists::new(&config.state)));
    if let Some(name) = &config.vault {
        vault::open(&runtime, name, &config.state, &reliances, in_use_wait)?;
    }
    let volumes = config.volumes.clone();
    let listeners = config.nbd.clone();
    let journals = Journals::new(&config.state, &volumes, overrides.accepted_disks, reliances);
    let mut daemon = Daemon::new(runtime, nbd, config, tls, journals);
    daemon.wait_while_in_use(in_use_wait);
    for spec in volumes {
        daemon.add_volume(spec)?;
    }
    daemon.report_unserved();
    daemon.monitor_power()?;
    let bound = listeners.iter().map(|address| daemon.bind(address));
    let bound = bound.collect::<anyhow::Result<Vec<_>>>()?;
    daemon.wait_while_in_use(Duration::ZERO);
    report_descriptors();
    Ok((daemon, bound))
}

/// Handles signals until one, or a client of the control server, has stopped the daemon. No error
/// or panic ends this earlier: without a stop, the process must not exit.
async fn wait_for_stop(
    daemon: &Arc<Daemon>,
    mut signals: Signals,
    mut keeper_socket: Option<UnixStream>,
) {
    // A stop does not wait for it: it may flush a volume for hours, or open a disk that hangs.
    let mut reload = JoinSet::new();
    let mut is_reload_due = false;
    loop {
        if is_reload_due && reload.is_empty() {
            is_reload_due = false;
            let daemon = Arc::clone(daemon);
            reload.spawn_blocking(move || daemon.reload());
        }
        let signal = tokio::select! {
            biased;
            () = daemon.stopped() => return,
            signal = signals.next() => signal,
            () = keeper::wait_until_gone(&mut keeper_socket) => {
                tracing::error!("keeper exited, stopping: the pool would not outlive this process");
                Signal::Stop
            }
            Some(ended) = reload.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!(%panic, "reload failed");
                }
                continue;
            }
        };
        match signal {
            Signal::Reload => is_reload_due = true,
            Signal::Stop => match stop(daemon).await {
                Ok(()) => return,
                // Exiting now would lose the data that the disk refuses.
                Err(error) => {
                    keeper::continuing(&mut keeper_socket).await;
                    tracing::error!(error, "shutdown failed, continuing to serve");
                }
            },
        }
    }
}

/// Stops the daemon.
///
/// # Errors
/// The daemon continues to serve after an error, which may be a panic.
async fn stop(daemon: &Arc<Daemon>) -> Result<(), String> {
    tracing::info!("flushing dirty data before shutdown");
    let stopping = Arc::clone(daemon);
    let stopped = tokio::task::spawn_blocking(move || {
        stopping.stop(&|progress| {
            let left = Size(progress.dirty_bytes_left);
            tracing::info!(%left, "flushing dirty data");
        })
    });
    let stopped = stopped.await.map_err(|panic| panic.to_string())?;
    stopped.map_err(|problem| sentence_of(&problem))
}
