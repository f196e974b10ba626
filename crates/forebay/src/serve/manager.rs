//! Carries out the requests of the control server and of signals on the runtime.

pub(super) mod add;
pub(super) mod analyses;
mod describe;
mod device;
mod disk;
mod leave;
pub(super) mod listeners;
pub(super) mod missing;
pub(super) mod monitors;
mod moves;
mod ownership;
mod reload;
pub(super) mod remove;
pub(super) mod vigil;

pub(super) use leave::leave_if_machine_stops;

use super::activated::ActivatedAddresses;
use super::analysis::{self, Analyzer};
use super::background::Background;
use super::battery::Batteries;
use super::calibrations::Calibrations;
use super::changes::{log_frozen, reporter};
use super::claims::{Claim, Claims};
use super::clients::{self, ClientsOf};
use super::control::ControlServers;
use super::division::division;
use super::handover::ToNext;
use super::journals::{Journals, Name};
use super::notes::Notes;
use super::periodic::Periodic;
use super::power::{Means, PowerMonitor};
use super::ratio::Ratio;
use super::saves::{self, Saves};
use super::site::WatchedSite;
use super::sizing::Sizing;
use super::statistics::{self, Observer};
use super::successor::Successor;
use super::vault::VaultDumpTarget;
use super::{report, trace, vault};
use crate::report::{problem as problem_of, problem_of_kind};
use device::ServedDevices;
use disk::VolumeDisks;
use forebay_api::{
    DiscardRequest, Discarded, DrillReport, ErrorKind, Memory, PowerStatus, Problem, SiteStatus,
    Status, TraceRequest, TraceSummary, VolumeStatus,
};
use forebay_config::{CacheRatio, Config, Listen, ServerChange, VolumeChange, VolumeSpec};
use forebay_control::{
    AnalysisManager, ClientManager, DeviceManager, DiskManager, Manager, Measurements, ProgressFn,
    SocketFile, StatisticsManager, TraceSink,
};
use forebay_frontend_nbd::{NbdServer, TlsSetup};
use forebay_frontend_ublk::UblkServer;
use forebay_frontend_vhost::VhostServer;
use forebay_runtime::{
    CalibrateError, PinError, Runtime, RuntimeStatus, VolumeError, memory_status,
};
use forebay_types::PinnedRanges;
use listeners::OpenListener;
use missing::MissingVolumes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use vigil::Vigils;

/// How long a change waits for another one of the same volume.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The running daemon.
pub(super) struct Daemon {
    runtime: Arc<Runtime>,
    sizing: Sizing,
    ratio: Ratio,
    background: Background,
    saves: Arc<Saves>,
    notes: Notes,
    /// Volumes that cannot be served yet.
    missing: MissingVolumes,
    vigils: Vigils,
    /// Held during a reload.
    reloading: Mutex<()>,
    /// Why the last reload has not applied the whole file.
    reload_failure: Mutex<Option<String>>,
    nbd: Arc<NbdServer>,
    ublk: Arc<UblkServer>,
    vhost: Arc<VhostServer>,
    /// Held while the sockets for virtual machine monitors change; whether they are served.
    monitors: Mutex<bool>,
    power: OnceLock<PowerMonitor>,
    site: WatchedSite,
    tls: TlsSetup,
    state: Mutex<DaemonState>,
    claims: Claims,
    journals: Arc<Journals>,
    calibrations: Arc<Calibrations>,
    /// How long adding a volume or a listener waits for a disk or address in use.
    in_use_wait: Duration,
    activated: ActivatedAddresses,
    stopped: Notify,
    /// Statistics over time.
    statistics: Arc<Observer>,
    /// The analysis of the benefit.
    analyzer: Arc<Analyzer>,
    clients: ClientsOf,
    /// The program that an upgrade starts; `None` without a keeper or a descriptor store.
    successor: Option<Successor>,
    /// The program of an upgrade exited before it served.
    is_rolled_back: bool,
    /// The dashboard and the server of metrics, once they are served.
    control: OnceLock<Weak<ControlServers>>,
    is_upgrade: AtomicBool,
    /// What goes to the next server at an upgrade.
    to_next: Arc<ToNext>,
}

struct DaemonState {
    config: Config,
    /// The volumes of the runtime, in the order they were added.
    volumes: Vec<VolumeSpec>,
    /// The addresses for NBD clients.
    listeners: Vec<OpenListener>,
    /// The socket files for virtual machine monitors.
    sockets: Vec<Arc<SocketFile>>,
    /// All data is on the disks, and the files of sockets are removed.
    has_stopped: bool,
    /// Volumes that are not served and have dirty data in the pool. A stop was refused because of
    /// them; the next stop that a client requests discards their data.
    given_up: Vec<String>,
}

impl DaemonState {
    /// Keeps a socket's file until the server stops. Replaces the entry of one that was deleted.
    fn keep_socket(&mut self, file: SocketFile) {
        self.sockets.retain(|old| old.path() != file.path());
        self.sockets.push(Arc::new(file));
    }

    /// Gives up the file of a socket.
    fn take_socket(&mut self, address: &Listen) -> Vec<Arc<SocketFile>> {
        let Listen::Unix { path, .. } = address else { return Vec::new() };
        self.sockets.extract_if(.., |file| file.path() == path).collect()
    }
}

impl Daemon {
    pub(super) fn new(
        runtime: Arc<Runtime>,
        (nbd, ublk, vhost): (Arc<NbdServer>, Arc<UblkServer>, Arc<VhostServer>),
        to_next: Arc<ToNext>,
        config: Config,
        tls: TlsSetup,
        journals: Journals,
        ratio: CacheRatio,
    ) -> Self {
        let calibrations = Arc::new(Calibrations::open(config.state.join("calibrations.json")));
        let statistics = Arc::new(Observer::open(&config.state, &runtime));
        let sizing = Sizing::new(Arc::clone(&runtime), config.memory);
        let ratio = Ratio::new(Arc::clone(&runtime), ratio);
        let background = Background::new(Arc::clone(&runtime), config.background, config.polling);
        let saves = Saves::new(Arc::clone(&runtime));
        let analyzer = Arc::new(Analyzer::open(&config.state, &runtime));
        let clients = ClientsOf { runtime: Arc::clone(&runtime), instance: to_next.instance() };
        let state = DaemonState {
            config,
            volumes: Vec::new(),
            listeners: Vec::new(),
            sockets: Vec::new(),
            has_stopped: false,
            given_up: Vec::new(),
        };
        Self {
            runtime,
            sizing,
            ratio,
            background,
            saves,
            notes: Notes::default(),
            missing: MissingVolumes::default(),
            vigils: Vigils::default(),
            reloading: Mutex::default(),
            reload_failure: Mutex::default(),
            nbd,
            ublk,
            vhost,
            monitors: Mutex::default(),
            power: OnceLock::new(),
            site: WatchedSite::default(),
            tls,
            state: Mutex::new(state),
            claims: Claims::new(CLAIM_WAIT),
            journals: Arc::new(journals),
            calibrations,
            statistics,
            analyzer,
            clients,
            in_use_wait: Duration::ZERO,
            activated: ActivatedAddresses::default(),
            stopped: Notify::new(),
            successor: None,
            control: OnceLock::new(),
            is_rolled_back: false,
            is_upgrade: AtomicBool::new(false),
            to_next,
        }
    }

    /// Sets the program that an upgrade starts, and whether that of the last upgrade exited before
    /// it served, so that this one runs again.
    pub(super) fn set_successor(&mut self, successor: Option<Successor>, is_rolled_back: bool) {
        (self.successor, self.is_rolled_back) = (successor, is_rolled_back);
    }

    /// Sets the servers of the dashboard and of metrics, which a reload may change.
    pub(super) fn set_control(&self, control: &Arc<ControlServers>) {
        // Fails only if they are set already.
        let _ = self.control.set(Arc::downgrade(control));
    }

    fn control(&self) -> Option<Arc<ControlServers>> {
        self.control.get()?.upgrade()
    }

    /// Returns true if the daemon has stopped for an upgrade, with its pool intact.
    pub(super) fn is_upgrade(&self) -> bool {
        self.is_upgrade.load(Ordering::Relaxed)
    }

    /// Sets how long adding a volume or a listener waits for a disk or address in use.
    pub(super) const fn set_in_use_wait(&mut self, wait: Duration) {
        self.in_use_wait = wait;
    }

    /// Starts the power monitor if the configuration names a UPS.
    pub(super) fn monitor_power(&self) -> anyhow::Result<()> {
        let (settings, state_dir) = {
            let state = self.state();
            (state.config.ups.clone(), state.config.state.clone())
        };
        let batteries = Batteries::open(state_dir.join("batteries.json"));
        let dump_target = self
            .runtime
            .volumes()
            .protectors()
            .vault()
            .map(|vault| Arc::new(VaultDumpTarget(vault)) as _);
        let means = Means {
            runtime: Arc::clone(&self.runtime),
            dump_target,
            batteries,
            saves: Arc::clone(&self.saves),
        };
        if let Some(power) = PowerMonitor::start(&settings, means)? {
            // Fails only if a power monitor is already running.
            let _ = self.power.set(power);
        }
        Ok(())
    }

    /// Starts to watch the site that the configuration names.
    pub(super) fn watch_site(&self) -> anyhow::Result<()> {
        let watch = self.site.prepare(&self.state().config)?;
        self.site.replace(watch);
        Ok(())
    }

    fn power_status(&self) -> Option<PowerStatus> {
        self.power.get().map(PowerMonitor::status)
    }

    /// Logs the data that the pool and the journals hold of volumes that are not served.
    pub(super) fn report_unserved(&self) {
        for (volume, bytes) in self.runtime.volumes().close_adoption() {
            tracing::warn!(
                bytes,
                %volume,
                "pool holds dirty data of a volume that is not served, keeping it"
            );
        }
        self.journals.report_unserved();
    }

    fn state(&self) -> MutexGuard<'_, DaemonState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(super) const fn background(&self) -> &Background {
        &self.background
    }

    pub(super) const fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Waits until the daemon has stopped.
    pub(super) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Stops at the request of a signal. Waits for a stop that a client has requested, and begins
    /// if that one fails. Gives up no data, because a service manager may repeat the signal by
    /// itself.
    pub(super) fn stop_for_signal(&self, progress: ProgressFn<'_>) -> Result<(), Problem> {
        let claim = self.claims.everything_after_another();
        self.stop_claimed(claim, &[], progress).map_err(problem)
    }

    /// Reports progress. When all data is on the disks, observes the counters once more, so that
    /// the statistics include everything.
    fn observing<'a>(&'a self, progress: ProgressFn<'a>) -> impl FnMut(u64) + 'a {
        let mut report = reporter(progress);
        move |left| {
            report(left);
            if left == 0 {
                self.statistics.observe();
            }
        }
    }

    /// Starts the threads that keep the statistics, end the intervals of an analysis, and save
    /// volumes in memory. Dropping the result ends them.
    pub(super) fn start_keeping(&self) -> std::io::Result<[Periodic; 3]> {
        let statistics = statistics::start(&self.statistics)?;
        Ok([statistics, analysis::start(&self.analyzer)?, saves::start(&self.saves)?])
    }

    fn stop_claimed(
        &self,
        claim: Claim<'_>,
        given_up: &[String],
        progress: ProgressFn<'_>,
    ) -> Result<(), VolumeError> {
        clients::log_connected(&self.runtime, None);
        self.runtime.stop_without(given_up, self.observing(progress))?;
        self.journals.settle_replaced();
        self.statistics.save();
        // A change that has been waiting for a disk must not use a closed journal.
        claim.keep();
        if let Some(power) = self.power.get() {
            power.stop();
        }
        let mut listeners = {
            let mut state = self.state();
            state.has_stopped = true;
            remove_files(std::mem::take(&mut state.sockets));
            std::mem::take(&mut state.listeners)
        };
        listeners::remove_files(&mut listeners);
        self.stopped.notify_one();
        Ok(())
    }

    /// Changes settings of a volume that the caller has claimed.
    fn change_claimed(&self, name: &str, change: &VolumeChange) -> Result<(), Problem> {
        let old = self.spec_of(name)?;
        let spec = old.with(change).map_err(|error| problem_of(&error))?;
        add::check_tls(self, &spec)?;
        vigil::check(&spec)?;
        let config = spec.config.clone();
        match Name::of(&spec) == Name::of(&old) {
            true => {
                self.runtime.volumes().change(name, config, change.has("pin")).map_err(problem)?;
            }
            false => moves::change(self, (&old, &spec), change.has("pin"))?,
        }
        if spec.config.frozen != old.config.frozen {
            log_frozen(name, spec.config.frozen);
        }
        let mut state = self.state();
        for entry in state.volumes.iter_mut().filter(|entry| entry.name == name) {
            entry.clone_from(&spec);
        }
        self.journals.set_beats(&state.volumes);
        Ok(())
    }
}

impl Manager for Daemon {
    fn status(&self) -> Status {
        let figures = self.runtime.status().ok();
        let division = figures.as_ref().and_then(division);
        Status { division, ..self.status_with(figures.as_ref(), report::volume) }
    }

    fn site(&self) -> Option<SiteStatus> {
        self.site.status()
    }

    fn measurements(&self) -> Measurements {
        let figures = self.runtime.status_without_curves().ok();
        let status = self.status_with(figures.as_ref(), report::figures);
        let figures = figures.iter().flat_map(|figures| &figures.volumes);
        let latencies: HashMap<&str, _> =
            figures.map(|volume| (&*volume.name, &volume.latencies)).collect();
        let of_volume = |volume: &VolumeStatus| {
            latencies.get(&*volume.name).map(|latencies| statistics::histograms(latencies))
        };
        let histograms = status.volumes.iter().map(|it| of_volume(it).unwrap_or_default());
        Measurements { histograms: histograms.collect(), status }
    }

    fn set_server(&self, change: &ServerChange) -> Result<Memory, Problem> {
        self.ratio.set(change, || match change.has_memory() {
            true => self.sizing.set(change),
            false => Ok(()),
        })?;
        self.background.set(change.background);
        self.log_ratio();
        Ok(self.memory(&memory_status(&self.runtime)))
    }

    fn statistics(&self) -> &dyn StatisticsManager {
        &*self.statistics
    }

    fn volume_list(&self) -> Vec<VolumeStatus> {
        let figures = self.runtime.status();
        figures.map(|figures| self.volumes(&figures, report::volume)).unwrap_or_default()
    }

    fn add_volume(&self, spec: VolumeSpec) -> Result<VolumeStatus, Problem> {
        let name = spec.name.clone();
        add::add(self, spec, &add::Opening::of(self))?;
        self.log_ratio();
        self.volume_status(&name)
    }

    fn volume(&self, name: &str) -> Option<VolumeStatus> {
        self.volume_status(name).ok()
    }

    fn set_volume(&self, name: &str, change: VolumeChange) -> Result<VolumeStatus, Problem> {
        let _claim = self.claims.volume(name)?;
        self.change_claimed(name, &change)?;
        changed(self, name)
    }

    fn pin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem> {
        let _claim = self.claims.volume(name)?;
        let (pins, _) = pins_and_size(self, name, &ranges)?;
        self.change_claimed(name, &VolumeChange::pins(pins.with(&ranges)))?;
        changed(self, name)
    }

    fn unpin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem> {
        let _claim = self.claims.volume(name)?;
        let (pins, size_bytes) = pins_and_size(self, name, &ranges)?;
        self.change_claimed(name, &VolumeChange::pins(pins.without(&ranges, size_bytes)))?;
        changed(self, name)
    }

    fn remove_volume(
        &self,
        name: &str,
        force: bool,
        progress: ProgressFn<'_>,
    ) -> Result<(), Problem> {
        remove::remove(self, name, force, progress)?;
        self.log_ratio();
        Ok(())
    }

    fn flush_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.runtime.volumes().flush(name, reporter(progress)).map_err(problem)
    }

    fn save_volume(&self, name: &str) -> Result<(), Problem> {
        self.saves.save(name).map_err(problem)
    }

    fn discard_volume(&self, name: &str, request: &DiscardRequest) -> Result<Discarded, Problem> {
        let discarded = remove::discard(self, name, request)?;
        self.log_ratio();
        Ok(discarded)
    }

    fn devices(&self) -> Box<dyn DeviceManager + '_> {
        Box::new(ServedDevices(self))
    }

    fn disks(&self) -> Box<dyn DiskManager + '_> {
        Box::new(VolumeDisks(self))
    }

    fn analysis(&self) -> &dyn AnalysisManager {
        &*self.analyzer
    }

    fn drill(&self) -> Result<DrillReport, Problem> {
        let (volumes, power) = (self.runtime.ups().ids(), self.power_status());
        let state_dir = self.state().config.state.clone();
        let pool_bytes = memory_status(&self.runtime).dirty_bytes_max;
        let vault = self.runtime.volumes().protectors().vault();
        vault::drill(vault.as_ref(), &volumes, power.as_ref(), pool_bytes, &state_dir)
    }

    fn clients(&self) -> &dyn ClientManager {
        &self.clients
    }

    fn record_trace(
        &self,
        request: &TraceRequest,
        sink: TraceSink<'_>,
    ) -> Result<TraceSummary, Problem> {
        let volumes = self.volume_figures();
        let size_bytes = |name: &str| {
            let volume = volumes.iter().find(|volume| volume.name == name);
            volume.map_or(0, |volume| volume.backing.size_bytes())
        };
        trace::record(&self.runtime, request, size_bytes, sink)
    }

    fn stop(&self, force: bool, progress: ProgressFn<'_>) -> Result<(), Problem> {
        if !force {
            clients::refuse_connected(&self.runtime, None)?;
        }
        let claim = self.claims.everything()?;
        let given_up = self.state().given_up.clone();
        self.stop_claimed(claim, &given_up, progress).map_err(|error| {
            if let VolumeError::Unserved { name, .. } = &error {
                // The remedy in the answer is to repeat the command.
                self.state().given_up.push(name.clone());
            }
            problem(error)
        })
    }

    fn reload(&self, removes: bool) -> Result<(), Problem> {
        self.apply_file(removes)
    }

    fn upgrade(&self) -> Result<(), Problem> {
        let Some(successor) = &self.successor else {
            let message = "no keeper holds the pool while the program is replaced";
            let remedy = "stop and start the server, from now on with --keeper auto";
            return Err(Problem::new(ErrorKind::Invalid, message.to_owned(), remedy));
        };
        // Without a claim: the check may take long, and other commands run meanwhile.
        let continues_clients = successor.check(&self.activated)?;
        let claim = self.claims.everything()?;
        if continues_clients {
            self.nbd.begin_handover();
        } else {
            successor.log_closing();
        }
        if let Err(error) = self.runtime.pause() {
            self.to_next.take_back();
            return Err(problem(error));
        }
        self.statistics.observe();
        self.statistics.save();
        // From here on the next process uses pool and journals.
        claim.keep();
        if continues_clients {
            self.to_next.hand_over(&successor.target);
        }
        self.is_upgrade.store(true, Ordering::Relaxed);
        self.stopped.notify_one();
        Ok(())
    }
}

/// Lists a volume as served.
fn add_served(daemon: &Daemon, spec: VolumeSpec) {
    let mut state = daemon.state();
    state.volumes.push(spec);
    daemon.journals.set_beats(&state.volumes);
}

/// Lists a volume as served no more.
fn forget_served(daemon: &Daemon, name: &str) {
    let mut state = daemon.state();
    state.volumes.retain(|spec| spec.name != name);
    daemon.journals.set_beats(&state.volumes);
}

/// The pinned ranges of a volume, and its size. Refuses ranges that are not inside it.
fn pins_and_size(
    daemon: &Daemon,
    name: &str,
    ranges: &PinnedRanges,
) -> Result<(PinnedRanges, u64), Problem> {
    let (spec, size_bytes) = (daemon.spec_of(name)?, daemon.volume_status(name)?.size_bytes);
    if !ranges.is_all() && !ranges.fits(size_bytes) {
        let name = name.to_owned();
        return Err(problem(PinError::BeyondEnd { name, size_bytes }.into()));
    }
    Ok((spec.config.pin, size_bytes))
}

/// Reports a volume that a command has changed.
fn changed(daemon: &Daemon, name: &str) -> Result<VolumeStatus, Problem> {
    let spec = daemon.spec_of(name)?;
    let RuntimeStatus { memory, volumes, .. } = daemon.runtime.status_of(name).map_err(problem)?;
    daemon.ratio.log(&daemon.ratio.status(&memory, daemon.power_status().as_ref()));
    Ok(daemon.describe(&memory, report::volume)(&spec, &volumes[0]))
}

/// The API's error for a failed change of a volume.
pub(super) fn problem(error: VolumeError) -> Problem {
    let kind = match &error {
        VolumeError::NameInUse(_)
        | VolumeError::HalfAdded(_)
        | VolumeError::BackingInUse { .. } => ErrorKind::VolumeExists,
        VolumeError::Unknown(_) => ErrorKind::UnknownVolume,
        VolumeError::Stopping => ErrorKind::Stopping,
        VolumeError::Leaving(_) | VolumeError::Calibrate(CalibrateError::Busy(_)) => {
            ErrorKind::Busy
        }
        _ => return problem_of(&error),
    };
    problem_of_kind(kind, &error)
}

/// Removes the files of sockets.
fn remove_files(sockets: Vec<Arc<SocketFile>>) {
    for file in sockets {
        if let Err(error) = file.remove() {
            tracing::warn!(%error, "cannot remove socket file");
        }
    }
}
