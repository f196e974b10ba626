//! The daemon: starts the runtime from a configuration, serves its volumes, and stops cleanly.

mod activated;
mod analysis;
mod background;
mod battery;
mod calibrations;
mod changes;
mod check;
mod claims;
mod clients;
mod clock;
mod condition;
mod control;
mod dashboard;
mod division;
mod handover;
mod journals;
mod listen;
mod manager;
mod memory;
mod metrics;
mod notes;
mod outlook;
mod periodic;
#[cfg(debug_assertions)]
mod planted;
mod power;
mod presence;
mod progress;
mod ratio;
mod report;
mod saves;
mod shutdown;
mod site;
mod sizing;
mod slow;
mod statistics;
mod successor;
mod tls;
mod trace;
mod vault;
mod volume_files;
mod wait;
mod watchdog;

use crate::keeper::{self, KeeperLink};
use crate::reliance::{GivenUp, Reliances};
use crate::signals::Signals;
use activated::ActivatedSocket;
use anyhow::Context;
pub(crate) use check::check;
use control::ControlServers;
use forebay_config::{Config, Ecc, IoEngine, VolumeSpec, Workers};
use forebay_control::{ControlServer, StateDir};
use forebay_frontend::FrontEndPair;
use forebay_frontend_nbd::{NbdServer, TlsSetup};
use forebay_frontend_ublk::UblkServer;
use forebay_frontend_vhost::VhostServer;
use forebay_runtime::{Descriptors, Engine, Runtime, RuntimeConfig, Timeouts};
use forebay_threads::Thread;
use forebay_types::Size;
use handover::{FromPrevious, ToNext};
use journals::Journals;
use listen::BoundListener;
use manager::Daemon;
use manager::add::Opening;
use manager::monitors::BoundMonitor;
use progress::StartProgress;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use successor::Successor;
pub(crate) use successor::announcement;
use volume_files::VolumeFiles;
use wait::{End, wait_for_stop};

/// Maximum number of workers with `workers=auto`: more gain nothing on common machines.
const WORKERS_AUTO_MAX: usize = 8;

/// How long a start waits for disks and addresses that are in use.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// The same after a kill: the kernel releases the files of an io_uring in the background, after the
/// process has exited. On a loaded machine this can take long.
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
    let mut kept = KeeperLink::take(config.keeper)?;
    let activated = activated::take()?;
    let state = StateDir::take_within(&config.state, IN_USE_WAIT)?;
    let tokio = control_runtime()?;
    let entered = tokio.enter();
    // Before the start, which a signal must not interrupt.
    let mut signals = Signals::listen().context("cannot install signal handlers")?;
    let control = ControlServer::bind(&state)?;
    let in_use_wait = if state.was_killed() { KILLED_WAIT } else { IN_USE_WAIT };
    let metrics = config.metrics.map(|address| metrics::bind(address, in_use_wait, &[]));
    let metrics = metrics.transpose()?;
    let dashboard = dashboard::open_with_link(&config, state.path(), in_use_wait, &[])?;
    let pool = kept.pool.take();
    let mut previous = FromPrevious::of(&mut kept);
    let successor = Successor::of(&mut kept, pool.as_ref())
        .context("cannot duplicate the descriptor of the pool")?;
    let progress = StartProgress::observe(&kept)?;
    let (mut daemon, bound, may_be_missing) =
        start(config, pool, overrides, in_use_wait, (&progress, &mut previous, activated))?;
    daemon.set_successor(successor, kept.is_rollback);
    let daemon = Arc::new(daemon);
    let monitors = complete_start(&daemon, may_be_missing, in_use_wait)?;
    drop(progress);
    let watchdog = watchdog::start(&kept, Arc::clone(daemon.runtime()))?;
    let extend = Arc::new(kept.progress().context("cannot duplicate the keeper's socket")?);
    let mut keeper_socket = kept.take_socket().context("cannot set up the keeper's socket")?;
    let control_servers =
        Arc::new(ControlServers::new(tokio.handle().clone(), Arc::clone(&daemon) as _));
    let presence = presence::start(Arc::clone(&daemon), state, Arc::clone(&control_servers))
        .context("cannot start the thread that monitors files in use")?;
    let watchers = (start_watchers(&daemon)?, watchdog);
    #[cfg(debug_assertions)]
    planted::start()?;
    // Nothing below may fail: writes are acknowledged from now on, and only a stop or an upgrade
    // keeps what is not on the disks.
    previous.take_connections();
    // Notify the keeper before the first client is accepted. Otherwise it would count a server that
    // is killed in between as one that could not start.
    tokio.block_on(keeper::notify_serving(&mut keeper_socket));
    bound.into_iter().for_each(|bound| daemon.accept(bound));
    previous.serve();
    manager::monitors::accept(&daemon, monitors);
    control_servers.serve(control);
    if let Some(metrics) = metrics {
        control_servers.serve_metrics(metrics);
    }
    if let Some(dashboard) = dashboard {
        control_servers.serve_dashboard(dashboard);
    }
    daemon.set_control(&control_servers);
    let next_signal = async || signals.next().await;
    let end = tokio.block_on(wait_for_stop(&daemon, next_signal, keeper_socket, extend));
    // Before the control servers end, as it may start another one.
    drop((presence, watchers));
    tokio.block_on(control_servers.end());
    drop(entered);
    // Does not wait for commands: one that opens a hanging disk may never return.
    tokio.shutdown_background();
    if daemon.is_upgrade() {
        tracing::info!("exiting for an upgrade, the pool is kept");
        return Ok(ExitCode::from(keeper::UPGRADE_CODE));
    }
    kept.release();
    match end {
        End::Stopped => tracing::info!("shutdown complete, all dirty data flushed"),
        End::Left => tracing::error!("shutdown complete, not all dirty data flushed"),
    }
    Ok(ExitCode::SUCCESS)
}

/// What runs the control servers.
fn control_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name(Thread::named("control").name())
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the control server")
}

/// Adds the volumes that may be missing, and does what needs all volumes. Returns the sockets for
/// virtual machine monitors.
fn complete_start(
    daemon: &Arc<Daemon>,
    may_be_missing: Vec<VolumeSpec>,
    in_use_wait: Duration,
) -> anyhow::Result<Vec<BoundMonitor>> {
    manager::analyses::describe(daemon);
    manager::missing::add_all(daemon, may_be_missing, in_use_wait)
        .context("cannot start a thread for a volume that may be missing")?;
    daemon.log_ratio();
    daemon.report_unserved();
    daemon.monitor_power()?;
    daemon.watch_site()?;
    let monitors = manager::monitors::bind_all(daemon)?;
    report_descriptors();
    Ok(monitors)
}

/// Starts the threads that act at intervals. Dropping the result ends them.
fn start_watchers(daemon: &Arc<Daemon>) -> anyhow::Result<impl Sized> {
    let outlook = outlook::start(Arc::clone(daemon))
        .context("cannot start the thread that reports the memory outlook")?;
    let sizer = sizing::start(Arc::clone(daemon))
        .context("cannot start the thread that sizes the cache")?;
    let background = background::start(Arc::clone(daemon))
        .context("cannot start the thread that watches for other programs that wait")?;
    let condition = condition::start(Arc::clone(daemon))
        .context("cannot start the thread that watches the disks")?;
    let missing = manager::missing::start(Arc::clone(daemon))
        .context("cannot start the thread that tries missing volumes again")?;
    let taken_over = manager::remove::start(Arc::clone(daemon))
        .context("cannot start the thread that ends volumes that were taken over")?;
    let slow = slow::start(Arc::clone(daemon))
        .context("cannot start the thread that logs slow requests")?;
    let kept = daemon
        .start_keeping()
        .context("cannot start the threads that keep statistics and save volumes in memory")?;
    Ok((outlook, sizer, background, condition, missing, taken_over, slow, kept))
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

/// The settings of the runtime.
fn runtime_config(config: &Config, memory_bytes: u64, start_bytes: u64) -> RuntimeConfig {
    RuntimeConfig {
        memory_bytes,
        start_bytes,
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
    }
}

/// Starts the runtime, adds the volumes, and binds the addresses for clients, of which none is
/// accepted yet. Waits up to `in_use_wait` for each disk and address. Returns the volumes that are
/// still to be added, because they may be missing.
fn start(
    config: Config,
    pool: Option<OwnedFd>,
    overrides: ServeOverrides,
    in_use_wait: Duration,
    (progress, previous, activated): (&StartProgress, &mut FromPrevious, Vec<ActivatedSocket>),
) -> anyhow::Result<(Daemon, Vec<BoundListener>, Vec<VolumeSpec>)> {
    if let Err(error) = Descriptors::raise() {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    let kept = pool.as_ref().map(memory::of_pool).unwrap_or_default();
    let memory = memory::choose(&config, kept)?;
    let tls = TlsSetup::new(tls::load(&config.tls)?);
    let settings = runtime_config(&config, memory.bytes, memory.start_bytes);
    let (nbd, ublk, vhost) = (NbdServer::new(), UblkServer::new(), VhostServer::new());
    let of_blocks = FrontEndPair { first: Arc::clone(&ublk), second: Arc::clone(&vhost) };
    let front_ends = FrontEndPair { first: Arc::clone(&nbd), second: Arc::new(of_blocks) };
    let (clock, interval) = clock::clock();
    let mut timeouts = Timeouts::default();
    timeouts.clock = interval.unwrap_or(timeouts.clock);
    let runtime = Arc::new(Runtime::start_over(settings, timeouts, pool, &Arc::new(front_ends))?);
    progress.include(&runtime);
    let ratio = ratio::begin(&runtime, config.cache_ratio);
    let memory = Size(memory.start_bytes);
    tracing::info!(%memory, io_engine = runtime.engine(), "runtime started");
    let reliances = Reliances::new(&config.state, config.vault.as_deref(), overrides.given_up);
    let reliances = Arc::new(reliances);
    runtime.volumes().protectors().keep_vault_record(Arc::clone(&reliances) as _);
    runtime.volumes().protectors().keep_journal_record(Arc::clone(&reliances) as _);
    let files = Arc::new(VolumeFiles(config.state.clone()));
    runtime.keep_warm_lists(Arc::clone(&files) as _);
    runtime.keep_histories(files, clock);
    if let Some(name) = &config.vault {
        vault::open(&runtime, name, &config.state, &reliances, in_use_wait)?;
    }
    let volumes = config.volumes.clone();
    volumes.iter().try_for_each(manager::vigil::check)?;
    let journals = Journals::new(&config.state, &volumes, overrides.accepted_disks, reliances);
    let next = Arc::new(ToNext::new(Arc::clone(&runtime), Arc::clone(&nbd)));
    previous.set_next(Arc::clone(&next));
    let mut daemon = Daemon::new(runtime, (nbd, ublk, vhost), next, config, tls, journals, ratio);
    daemon.set_in_use_wait(in_use_wait);
    let (may_be_missing, required) =
        volumes.into_iter().partition(|spec| spec.config.nofail || spec.config.standby);
    let required: Vec<VolumeSpec> = required;
    for spec in required {
        manager::add::add(&daemon, spec, &Opening::of(&daemon))?;
    }
    let bound = manager::listeners::bind_all(&mut daemon, activated, previous)?;
    daemon.set_in_use_wait(Duration::ZERO);
    Ok((daemon, bound, may_be_missing))
}
