//! Monitors the UPSes and carries out the decisions of the power controller.
//!
//! One thread per UPS polls it. The monitor's thread passes the observations to the controller, and
//! asks it for a decision at least every 20 ms unless it dumps, because a reading that is not
//! renewed expires. It enables and disables write-back for the volumes under a UPS, destages their
//! dirty data when mains fails, and dumps it to the vault when the battery runs low, in the steps
//! that [`PowerSequence`] orders. Then it notifies the servers of the UPSes that power may be cut.
//!
//! Volumes in memory are saved when mains fails, and again after a dump, as far as the time
//! suffices. The monitor waits for no file but the vault, and acts before it logs.

use super::battery::Batteries;
use super::saves::Saves;
use crate::report::{misconfigured, sentence};
use anyhow::{Context, anyhow};
use forebay_api::{PowerStatus, UpsStatus};
use forebay_config::{Ups, UpsSettings, UpsSource};
use forebay_power::drivers::{
    Authority, CommandSource, Credentials, FileSource, NutAddress, NutSource, ObservationSink,
    Poller, now_ms,
};
use forebay_power::{
    Exposure, Expression, PowerController, PowerDecision, PowerState, Rules, UpsObservation,
};
use forebay_protect::{DumpStep, PowerOrder, PowerSequence};
use forebay_runtime::{DumpReport, Runtime};
use forebay_threads::Thread;
use forebay_types::{Action, Remedy, Size, VolumeId};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two polls of a UPS, and the time limit of one.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the monitor waits for an observation before it decides again.
const TICK: Duration = Duration::from_millis(20);
/// Time between two flushes of the disks: it limits what their caches hold when power fails.
const SYNC_INTERVAL_MS: u64 = 2000;
/// How long a dump waits for the flushes of the disks.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Time before a failed dump is tried again.
const DUMP_RETRY_MS: u64 = 1000;
/// How long to wait for the server of a UPS to accept the notice that power may be cut.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The place for dirty data when the battery runs low.
pub(super) trait DumpTarget: Send + Sync {
    /// The measured write speed of a dump, in bytes per second.
    fn bytes_per_second(&self) -> Option<u64>;

    /// Writes the dirty data of these volumes and reads it back.
    fn dump(&self, volumes: &[VolumeId]) -> anyhow::Result<DumpReport>;

    /// Called when the machine changes to battery power or back. On battery, a target writes only
    /// dumps.
    fn set_on_battery(&self, on_battery: bool);

    /// Discards the dump. The pool or the disks have its data.
    fn empty(&self) -> anyhow::Result<()>;
}

/// What the monitor controls, and where it keeps its records.
pub(super) struct Means {
    pub(super) runtime: Arc<Runtime>,
    pub(super) dump_target: Option<Arc<dyn DumpTarget>>,
    pub(super) batteries: Batteries,
    pub(super) saves: Arc<Saves>,
}

/// Monitors the UPSes in a thread until it is stopped.
pub(super) struct PowerMonitor {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a decision means for the volumes.
fn order_of(decision: &PowerDecision) -> PowerOrder {
    let PowerDecision { dirty_bytes_max, drain_now, dump_now, .. } = *decision;
    PowerOrder { dirty_bytes_max, drain_now, dump_now }
}

/// The state shared with the monitor's thread.
struct Shared {
    status: Mutex<PowerStatus>,
    stopping: AtomicBool,
}

impl PowerMonitor {
    /// Starts to monitor the configured UPSes. Returns `None` if there are none.
    pub(super) fn start(settings: &UpsSettings, means: Means) -> anyhow::Result<Option<Self>> {
        if settings.upses.is_empty() {
            return Ok(None);
        }
        let MonitorPlan { expression, rules, upses } = MonitorPlan::new(settings)?;
        let (sender, observations) = mpsc::channel();
        let mut monitored = Vec::new();
        for (index, (ups, start)) in upses.into_iter().enumerate() {
            let sender = sender.clone();
            let sink: ObservationSink = Box::new(move |observation: UpsObservation| {
                // Fails only once the monitor's thread has ended.
                let _ = sender.send((index, Instant::now(), observation));
            });
            monitored.push((ups, start(sink)?));
        }
        let controller = PowerController::new(expression, rules);
        let needed = settings.needed.clone();
        // The dump ends before the margin begins. Half of the margin is for saves of volumes in
        // memory.
        let save_time = Duration::from_secs(u64::from(settings.margin_seconds)) / 2;
        let mut monitor =
            MonitorThread::new(controller, needed, monitored, observations, means, save_time);
        let shared = Arc::clone(&monitor.shared);
        // Sets the first status.
        monitor.step(None);
        let thread = Thread::named("power-monitor").spawn(move || monitor.run())?;
        Ok(Some(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    pub(super) fn status(&self) -> PowerStatus {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops and joins the thread, which first discards the dump. Called once all dirty data is
    /// flushed.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Checks the settings of the UPSes without polling one.
///
/// # Errors
/// As [`PowerMonitor::start`] for settings that it refuses.
pub(super) fn check(settings: &UpsSettings) -> anyhow::Result<()> {
    if settings.upses.is_empty() { Ok(()) } else { MonitorPlan::new(settings).map(drop) }
}

/// Starts to poll a UPS.
type StartPoller = Box<dyn FnOnce(ObservationSink) -> io::Result<Poller>>;

/// The checked settings of a monitor.
struct MonitorPlan {
    expression: Expression,
    rules: Rules,
    /// In the order of the expression's names.
    upses: Vec<(Ups, StartPoller)>,
}

impl MonitorPlan {
    fn new(settings: &UpsSettings) -> anyhow::Result<Self> {
        let expression = Expression::parse(&settings.needed).context("--ups-needed")?;
        let named = expression.names();
        let mut upses = Vec::new();
        for name in named {
            let Some(ups) = settings.upses.iter().find(|ups| ups.name == *name) else {
                let error = anyhow!("--ups-needed names '{name}', which is not a configured UPS");
                let remedy = Remedy::from(Action::set("ups", format!("{name}@HOST")));
                return Err(misconfigured(error, remedy.or("remove it from the expression")));
            };
            upses.push((ups.clone(), poller(ups, settings)?));
        }
        if let Some(idle) = settings.upses.iter().find(|ups| !named.contains(&ups.name)) {
            let error = anyhow!("--ups-needed does not name the UPS '{}'", idle.name);
            return Err(misconfigured(error, "add it to the expression, or remove its --ups"));
        }
        let rules = Rules {
            charge_off_percent: f64::from(settings.charge_off_percent),
            charge_on_percent: f64::from(settings.charge_on_percent),
            settle_ms: u64::from(settings.settle_seconds) * 1000,
            margin_seconds: settings.margin_seconds,
            ..Rules::default()
        };
        Ok(Self { rules: rules.checked()?, expression, upses })
    }
}

fn poller(ups: &Ups, settings: &UpsSettings) -> anyhow::Result<StartPoller> {
    Ok(match &ups.source {
        UpsSource::Nut(address) => {
            let address: NutAddress = address.parse().with_context(|| format!("--ups {ups}"))?;
            let mut source = NutSource::new(address, POLL_INTERVAL);
            if let Some((user, password)) = &settings.login {
                let (user, password) = (user.clone(), password.0.clone());
                source = source.with_login(Credentials { user, password });
            }
            if let Some(ca) = &settings.ca {
                source = source.with_tls(Authority::from_pem_file(ca)?);
            }
            Box::new(move |sink| Poller::start(source, POLL_INTERVAL, sink))
        }
        UpsSource::Command(words) => {
            let (program, arguments) =
                words.split_first().expect("the configuration requires a program");
            let source = CommandSource::new(program.clone(), arguments.to_vec(), POLL_INTERVAL);
            Box::new(move |sink| Poller::start(source, POLL_INTERVAL, sink))
        }
        UpsSource::File(path) => {
            let source = FileSource::new(path);
            Box::new(move |sink| Poller::start(source, POLL_INTERVAL, sink))
        }
    })
}

/// Why power may not be cut, or writes stay halted.
#[derive(PartialEq, Eq)]
enum Failure {
    /// Some dirty data is only in memory.
    Unsaved(String),
    /// All dirty data is in the vault, or there was none, but the disks of these volumes have not
    /// flushed their caches.
    Unflushed(Vec<String>),
    /// The vault cannot be emptied.
    Unemptied(String),
}

impl Failure {
    fn log(&self) {
        match self {
            Self::Unsaved(error) => {
                tracing::error!(error, "dump failed, dirty data is not protected");
            }
            Self::Unflushed(volumes) => {
                let volumes = volumes.join(", ");
                tracing::error!(
                    volumes,
                    "dump complete, but disks not flushed, data in their caches is not protected"
                );
            }
            Self::Unemptied(error) => {
                tracing::error!(error, "cannot empty the vault, writes stay halted");
            }
        }
    }
}

struct MonitorThread {
    controller: PowerController,
    needed: String,
    upses: Vec<(Ups, Poller)>,
    observations: Receiver<(usize, Instant, UpsObservation)>,
    means: Means,
    /// How long the notice that power may be cut waits for saves of volumes in memory.
    save_time: Duration,
    /// When that notice is sent at the latest, once there is a dump.
    release_at: Option<Instant>,
    shared: Arc<Shared>,
    /// Dirty bytes of the volumes under a UPS, as of the last step.
    dirty_bytes: u64,
    /// How often write-back was enabled or disabled.
    changes: u64,
    changed_at: Instant,
    /// Time from the observation to the last change that it caused.
    change_ms: Option<u64>,
    sequence: PowerSequence,
    /// Why the last step of a dump failed, until one succeeds.
    failure: Option<Failure>,
    /// When the dump was begun, and its report once it is written.
    dump: (Instant, DumpReport),
    on_battery: bool,
}

impl MonitorThread {
    fn new(
        controller: PowerController,
        needed: String,
        upses: Vec<(Ups, Poller)>,
        observations: Receiver<(usize, Instant, UpsObservation)>,
        means: Means,
        save_time: Duration,
    ) -> Self {
        let shared = Shared { status: Mutex::default(), stopping: AtomicBool::new(false) };
        Self {
            controller,
            needed,
            upses,
            observations,
            means,
            save_time,
            release_at: None,
            shared: Arc::new(shared),
            dirty_bytes: 0,
            changes: 0,
            changed_at: Instant::now(),
            change_ms: None,
            sequence: PowerSequence::new(SYNC_INTERVAL_MS, DUMP_RETRY_MS),
            failure: None,
            dump: (Instant::now(), DumpReport::default()),
            on_battery: false,
        }
    }

    fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let observed_at = match self.observations.recv_timeout(TICK) {
                Ok((ups, at, observation)) => {
                    self.controller.observe(ups, now_ms(), observation);
                    self.record_batteries();
                    Some(at)
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(TICK);
                    None
                }
            };
            self.step(observed_at);
        }
        // No data is dirty, so the next start must not load the dump.
        self.sequence.handle_stop();
        self.advance_dump(None);
        self.release();
    }

    fn record_batteries(&mut self) {
        for (name, _, reading) in self.controller.upses() {
            if let Some(reading) = reading {
                self.means.batteries.observe(name, reading);
            }
        }
    }

    fn exposure(&self) -> Exposure {
        let speed = self.means.dump_target.as_ref().and_then(|target| target.bytes_per_second());
        Exposure { dirty_bytes: self.dirty_bytes, vault_bytes_per_second: speed }
    }

    /// Gets a decision and carries it out. `observed_at` is the time of the observation that caused
    /// this step, if one did.
    fn step(&mut self, observed_at: Option<Instant>) {
        let decision = self.controller.decide(now_ms(), &self.exposure());
        let limit = self.sequence.handle_order(order_of(&decision));
        self.dirty_bytes = self.means.runtime.ups().set_limit(limit);
        let has_switched = self.sequence.has_switched();
        if has_switched {
            self.changes += 1;
            self.changed_at = Instant::now();
            self.change_ms = observed_at.map(|at| at.elapsed().as_millis() as u64);
        }
        let upkeep = self.sequence.handle_dirty(self.dirty_bytes, now_ms());
        if upkeep.request_sync {
            self.means.runtime.ups().request_sync();
        }
        match upkeep.drain {
            true => self.means.runtime.ups().drain(),
            false => self.means.runtime.ups().start_syncs(),
        }
        self.update_on_battery(&decision);
        self.update_status(&decision);
        if has_switched {
            let (reason, dirty) = (&decision.reason, Size(self.dirty_bytes));
            match self.sequence.is_allowed() {
                true => tracing::info!(reason, forecast = %decision.forecast, "write-back on"),
                false => tracing::warn!(reason, %dirty, "write-back off"),
            }
        }
        self.advance_dump(Some(&decision));
        self.release_when_saved();
    }

    fn update_on_battery(&mut self, decision: &PowerDecision) {
        let on_battery =
            matches!(decision.state, PowerState::OnBattery { .. } | PowerState::Critical(_));
        if on_battery != self.on_battery
            && let Some(target) = &self.means.dump_target
        {
            target.set_on_battery(on_battery);
        }
        if on_battery && !self.on_battery {
            self.means.saves.start_for_power(self.time_before_dump(decision));
        }
        self.on_battery = on_battery;
    }

    /// The time until a dump has to begin.
    fn time_before_dump(&self, decision: &PowerDecision) -> Duration {
        let PowerState::OnBattery { left_seconds } = decision.state else { return Duration::ZERO };
        let dump = Duration::from_millis(decision.forecast.dump_ms.unwrap_or(u64::MAX));
        Duration::from_secs(left_seconds).saturating_sub(2 * self.save_time).saturating_sub(dump)
    }

    /// Carries out the steps of a dump or of its end, after this decision; `None` at a stop.
    fn advance_dump(&mut self, decision: Option<&PowerDecision>) {
        loop {
            let volumes = self.means.runtime.ups().ids();
            let was_halted = self.sequence.is_halted();
            let Some(step) = self.sequence.poll_dump(&volumes, now_ms()) else { return };
            // From now on until the dump is complete again, power may not be cut.
            self.release_at = None;
            if let (DumpStep::Halt, Some(decision)) = (step, decision) {
                if !was_halted {
                    tracing::warn!(reason = decision.reason, "writes halted, dumping dirty data");
                }
                // A dump can take long; meanwhile the status says why writes fail.
                self.update_status(decision);
            }
            let result = self.carry_out(step);
            self.sequence.handle_done(result.is_ok(), now_ms());
            match result {
                Ok(()) => self.end_step(step, decision),
                Err(failure) => self.fail_step(failure),
            }
            if let Some(decision) = decision {
                self.update_status(decision);
            }
        }
    }

    fn carry_out(&mut self, step: DumpStep) -> Result<(), Failure> {
        let Means { runtime, dump_target, .. } = &self.means;
        match step {
            DumpStep::Halt => {
                runtime.ups().halt(true);
                self.dump.0 = Instant::now();
            }
            DumpStep::Dump => self.dump.1 = self.dump_volumes()?,
            DumpStep::FlushDisks => {
                // A flush that failed during the dump fails again here; one that was late gets more
                // time.
                let unflushed = runtime.ups().sync(SYNC_TIMEOUT);
                if !unflushed.is_empty() {
                    return Err(Failure::Unflushed(unflushed));
                }
            }
            DumpStep::EmptyVault => {
                let emptied = dump_target.as_ref().map_or(Ok(()), |target| target.empty());
                emptied.map_err(|error| Failure::Unemptied(sentence(&error)))?;
            }
            DumpStep::Resume => drop(runtime.ups().halt(false)),
        }
        Ok(())
    }

    fn end_step(&mut self, step: DumpStep, decision: Option<&PowerDecision>) {
        match step {
            DumpStep::FlushDisks => {
                let (begun, report) = &self.dump;
                tracing::warn!(
                    size = %Size(report.bytes),
                    sealed_ms = report.sealed_ms,
                    relocated_batches = report.failures,
                    total_ms = begun.elapsed().as_millis() as u64,
                    "dump complete and verified"
                );
                self.failure = None;
                self.release_at = Some(Instant::now() + self.save_time);
                self.means.saves.start_for_power(self.save_time);
            }
            DumpStep::Resume => {
                self.failure = None;
                if let Some(PowerDecision { reason, .. }) = decision {
                    tracing::info!(reason, "dump discarded, accepting writes again");
                }
            }
            DumpStep::Halt | DumpStep::Dump | DumpStep::EmptyVault => {}
        }
    }

    /// Logs a failure, unless the attempt before failed in the same way: the latched failure of a
    /// disk stays until the operator ends it.
    fn fail_step(&mut self, failure: Failure) {
        if self.failure.as_ref() != Some(&failure) {
            failure.log();
        }
        self.failure = Some(failure);
    }

    fn dump_volumes(&self) -> Result<DumpReport, Failure> {
        match &self.means.dump_target {
            Some(target) => {
                let dumped = target.dump(self.sequence.dumped());
                dumped.map_err(|error| Failure::Unsaved(sentence(&error)))
            }
            None if self.dirty_bytes == 0 => Ok(DumpReport::default()),
            None => {
                let dirty = Size(self.dirty_bytes);
                Err(Failure::Unsaved(format!("there is no vault for {dirty} of dirty data")))
            }
        }
    }

    /// After a dump, notifies the servers of the UPSes when the volumes in memory are saved, or
    /// when the time for that is over.
    fn release_when_saved(&mut self) {
        let is_due = |at: &mut Instant| !self.means.saves.is_busy() || Instant::now() >= *at;
        if self.release_at.take_if(is_due).is_some() {
            self.release();
            tracing::warn!("dirty data is safe, power may be cut");
        }
    }

    /// Notifies the servers of the UPSes that the data is safe and power may be cut.
    fn release(&self) {
        for (ups, poller) in &self.upses {
            if !poller.release(RELEASE_TIMEOUT) {
                tracing::warn!(%ups, "cannot notify the UPS's server that power may be cut");
            }
        }
    }

    fn update_status(&self, decision: &PowerDecision) {
        let upses = self.controller.upses().zip(&self.upses);
        let upses = upses.map(|((name, state, reading), (ups, _))| UpsStatus {
            name: name.to_owned(),
            place: ups.to_string(),
            state: state.to_string(),
            status: reading.and_then(|reading| Some(reading.status.as_ref()?.to_string())),
            charge_percent: reading.and_then(|reading| reading.charge_percent),
            runtime_seconds: reading.and_then(|reading| reading.runtime_seconds),
            load_percent: reading.and_then(|reading| reading.load_percent),
            model: reading.and_then(|reading| reading.model.clone()),
            battery_test: reading.and_then(|reading| reading.test_result.clone()),
            battery_date: reading.and_then(|reading| reading.battery_date.clone()),
            battery_ages: self.means.batteries.aging(name),
        });
        let status = PowerStatus {
            write_back_allowed: self.sequence.is_allowed(),
            reason: decision.reason.clone(),
            changes: self.changes,
            since_seconds: self.changed_at.elapsed().as_secs(),
            change_ms: self.change_ms,
            dirty_bytes: self.dirty_bytes,
            dirty_bytes_max: if self.sequence.is_allowed() { decision.dirty_bytes_max } else { 0 },
            dump_seconds: decision.forecast.dump_ms.map(|ms| ms as f64 / 1000.0),
            battery_seconds: decision.forecast.battery_seconds,
            forecast: decision.forecast.to_string(),
            halted: self.sequence.is_halted(),
            needed: self.needed.clone(),
            supplies: upses.collect(),
        };
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

#[cfg(test)]
mod tests;
