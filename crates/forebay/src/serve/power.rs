//! The supplies at work: read by threads of their own, judged by the guard, and what follows told
//! to the runtime.
//!
//! One thread asks the guard many times a second, because silence is news as well. It opens and
//! closes write-back for the volumes under supplies, has what is dirty brought to the disks when
//! mains fails, and has it dumped to the vault when the battery runs low. In this order, then:
//! writes are halted, the dump is made and read back, the disks' own caches are flushed, and only
//! then the server of the supply is told that the power may go.

use super::battery::Batteries;
use anyhow::Context;
use forebay_api::{PowerStatus, SupplyStatus};
use forebay_config::{Supply, SupplyPlace, UpsSettings};
use forebay_power::drivers::{
    Authority, CommandSource, Credentials, FileSource, NutAddress, NutSource, Poller, now_ms,
};
use forebay_power::{
    Decision, Exposure, Expression, Observation, PowerController, PowerState, Rules,
};
use forebay_runtime::Runtime;
use forebay_types::{Size, VolumeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a supply is read, and how long a reading may take.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the guard is asked.
const TICK: Duration = Duration::from_millis(20);
/// How often the disks are told to make stable what they have been given: what is left in their
/// caches has to be flushed when power fails.
const SYNC_EVERY: Duration = Duration::from_secs(2);
/// How long disks have for that once the dump is made.
const SYNC_MAX: Duration = Duration::from_secs(10);
/// After a dump that failed.
const DUMP_AGAIN: Duration = Duration::from_secs(1);
/// How long the server of a supply has to take our leave.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// What takes what is dirty when power goes.
pub(super) trait Refuge: Send + Sync {
    /// How fast it was measured to do that, in bytes per second.
    fn bytes_per_second(&self) -> Option<u64>;

    /// Saves what is dirty of these volumes, and reads it back. Returns how many bytes that were.
    fn dump(&self, volumes: &[VolumeId]) -> anyhow::Result<u64>;

    /// Is told whenever power begins or ceases to come from a battery.
    fn on_battery(&self, on_battery: bool);

    /// Forgets what was saved: the pool still has it, or the disks.
    fn empty(&self) -> anyhow::Result<()>;
}

/// The watch over supplies, until it is stopped.
pub(super) struct Power {
    common: Arc<Common>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and those who ask it share.
struct Common {
    status: Mutex<PowerStatus>,
    stopping: AtomicBool,
}

impl Power {
    /// Begins to watch the supplies that the settings name; `None` if they name none.
    pub(super) fn start(
        settings: &UpsSettings,
        runtime: Arc<Runtime>,
        refuge: Option<Arc<dyn Refuge>>,
        batteries: Batteries,
    ) -> anyhow::Result<Option<Self>> {
        if settings.supplies.is_empty() {
            return Ok(None);
        }
        let expression = Expression::parse(&settings.needed).context("--ups-needed")?;
        let named = expression.names();
        let known = |name: &str| settings.supplies.iter().find(|supply| supply.name == name);
        if let Some(name) = named.iter().find(|name| known(name).is_none()) {
            anyhow::bail!("--ups-needed names '{name}', which is no supply: add --ups {name}@HOST");
        }
        if let Some(idle) = settings.supplies.iter().find(|supply| !named.contains(&supply.name)) {
            anyhow::bail!("--ups-needed leaves out '{}': name it, or do not watch it", idle.name);
        }
        let (tell, inbox) = mpsc::channel();
        let mut watches = Vec::new();
        let mut supplies = Vec::new();
        for (index, name) in named.iter().enumerate() {
            let supply = known(name).expect("looked up just now");
            let tell = tell.clone();
            let sink = Box::new(move |observation: Observation| {
                // The receiver is gone only when nobody wants to know any more.
                let _ = tell.send((index, Instant::now(), observation));
            });
            watches.push(watch(supply, settings, sink)?);
            supplies.push(supply.clone());
        }
        let rules = rules(settings)?;
        let common =
            Arc::new(Common { status: Mutex::default(), stopping: AtomicBool::new(false) });
        let mut warden = Warden {
            guard: PowerController::new(expression, rules),
            supplies,
            needed: settings.needed.clone(),
            watches,
            inbox,
            runtime,
            refuge,
            batteries,
            common: Arc::clone(&common),
            dirty_bytes: 0,
            allowed: false,
            changes: 0,
            changed_at: Instant::now(),
            change_ms: None,
            synced_at: Instant::now(),
            dump: Dump::None,
            on_battery: false,
        };
        // So that the first who asks is told something that is true.
        warden.step(None);
        let thread =
            std::thread::Builder::new().name("warden".into()).spawn(move || warden.run())?;
        Ok(Some(Self { common, thread: Mutex::new(Some(thread)) }))
    }

    /// How power stands.
    pub(super) fn status(&self) -> PowerStatus {
        self.common.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the watch: everything is on the disks, and what was saved is of no interest any more.
    pub(super) fn stop(&self) {
        self.common.stopping.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn rules(settings: &UpsSettings) -> anyhow::Result<Rules> {
    let rules = Rules {
        charge_off_percent: f64::from(settings.charge_off_percent),
        charge_on_percent: f64::from(settings.charge_on_percent),
        settle_ms: u64::from(settings.settle_seconds) * 1000,
        margin_seconds: settings.margin_seconds,
        ..Rules::default()
    };
    Ok(rules.checked()?)
}

fn watch(
    supply: &Supply,
    settings: &UpsSettings,
    sink: forebay_power::drivers::Sink,
) -> anyhow::Result<Poller> {
    let watch = match &supply.place {
        SupplyPlace::Nut(address) => {
            let address: NutAddress = address.parse().with_context(|| format!("--ups {supply}"))?;
            let mut source = NutSource::new(address, INTERVAL);
            if let Some((user, password)) = &settings.login {
                let (user, password) = (user.clone(), password.0.clone());
                source = source.with_login(Credentials { user, password });
            }
            if let Some(ca) = &settings.ca {
                source = source.with_tls(Authority::from_pem_file(ca)?);
            }
            Poller::start(source, INTERVAL, sink)
        }
        SupplyPlace::Command(words) => {
            let (program, arguments) = words.split_first().expect("a command has a first word");
            let source = CommandSource::new(program.clone(), arguments.to_vec(), INTERVAL);
            Poller::start(source, INTERVAL, sink)
        }
        SupplyPlace::File(path) => Poller::start(FileSource::new(path), INTERVAL, sink),
    };
    Ok(watch?)
}

/// How far the saving of what is dirty has come.
enum Dump {
    /// There is no need.
    None,
    /// It has failed, and is tried again then.
    Failed(Instant),
    /// It is being made, and the volumes are halted.
    UnderWay,
    /// It is made, and the volumes are halted.
    Made,
}

/// The thread.
struct Warden {
    guard: PowerController,
    supplies: Vec<Supply>,
    needed: String,
    watches: Vec<Poller>,
    inbox: Receiver<(usize, Instant, Observation)>,
    runtime: Arc<Runtime>,
    refuge: Option<Arc<dyn Refuge>>,
    batteries: Batteries,
    common: Arc<Common>,
    /// What was dirty a moment ago.
    dirty_bytes: u64,
    allowed: bool,
    changes: u64,
    changed_at: Instant,
    change_ms: Option<u64>,
    synced_at: Instant,
    dump: Dump,
    /// What the refuge was told last.
    on_battery: bool,
}

impl Warden {
    fn run(mut self) {
        while !self.common.stopping.load(Ordering::Relaxed) {
            let heard = match self.inbox.recv_timeout(TICK) {
                Ok((supply, at, observation)) => {
                    self.guard.observe(supply, now_ms(), observation);
                    self.see_batteries();
                    Some(at)
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(TICK);
                    None
                }
            };
            self.step(heard);
        }
        self.end();
    }

    /// How long batteries last is remembered.
    fn see_batteries(&mut self) {
        for (name, _, reading) in self.guard.supplies() {
            if let Some(reading) = reading {
                self.batteries.observe(name, reading);
            }
        }
    }

    /// Nothing is dirty any more, or never was: what was saved is not to be loaded again.
    fn end(&mut self) {
        self.forget_dump();
        self.release();
    }

    fn exposure(&self) -> Exposure {
        let speed = self.refuge.as_ref().and_then(|refuge| refuge.bytes_per_second());
        Exposure { dirty_bytes: self.dirty_bytes, vault_bytes_per_second: speed }
    }

    /// Looks at how things stand, and does what follows. `heard` is when the news came, if there
    /// was any.
    fn step(&mut self, heard: Option<Instant>) {
        let decision = self.guard.decide(now_ms(), &self.exposure());
        let allowed = decision.write_back_allowed && !matches!(self.dump, Dump::Made);
        let dirty_bytes_max = if allowed { decision.dirty_bytes_max } else { 0 };
        self.dirty_bytes = self.runtime.set_power(dirty_bytes_max);
        if allowed != self.allowed {
            self.allowed = allowed;
            self.changes += 1;
            // What was acknowledged so far may be in the disks' caches.
            self.runtime.request_power_sync();
            self.changed_at = Instant::now();
            self.change_ms = heard.map(|heard| heard.elapsed().as_millis() as u64);
            match allowed {
                true => tracing::info!("{}; {}", decision.reason, decision.forecast),
                false => tracing::warn!("{}; {} dirty", decision.reason, Size(self.dirty_bytes)),
            }
        }
        // Before the limit is reached, so that writers need not wait for it.
        let is_much = self.dirty_bytes > dirty_bytes_max / 4 * 3;
        if self.dirty_bytes > 0 && (decision.drain_now || is_much) {
            self.runtime.drain_power();
            if !allowed {
                // A drain ends with a flush of the disk, which what became dirty during the drain
                // may have missed.
                self.runtime.request_power_sync();
            }
        } else {
            if self.synced_at.elapsed() >= SYNC_EVERY {
                self.synced_at = Instant::now();
                self.runtime.request_power_sync();
            }
            self.runtime.start_power_syncs();
        }
        self.tell_refuge(&decision);
        self.show(&decision);
        self.save(&decision);
    }

    /// A refuge writes nothing of its own accord while each second of the battery counts.
    fn tell_refuge(&mut self, decision: &Decision) {
        let on_battery =
            matches!(decision.state, PowerState::OnBattery { .. } | PowerState::Critical(_));
        if on_battery != self.on_battery
            && let Some(refuge) = &self.refuge
        {
            refuge.on_battery(on_battery);
        }
        self.on_battery = on_battery;
    }

    /// Saves what is dirty when that is due, and forgets it when power is back for good.
    fn save(&mut self, decision: &Decision) {
        match (decision.dump_now, &self.dump) {
            (false, Dump::None) | (true, Dump::Made) => {}
            (false, _) => {
                tracing::info!("{}; writes are taken again", decision.reason);
                self.forget_dump();
            }
            (true, Dump::Failed(again)) if Instant::now() < *again => {}
            (true, _) => {
                tracing::warn!("{}; writes are halted", decision.reason);
                self.runtime.halt_power(true);
                // Who looks meanwhile, which may be long, sees why writes fail.
                self.dump = Dump::UnderWay;
                self.show(decision);
                self.dump = match self.dump() {
                    Ok(()) => Dump::Made,
                    Err(error) => {
                        tracing::error!(
                            "what is dirty is not in safety: {}",
                            crate::report::sentence(&error)
                        );
                        Dump::Failed(Instant::now() + DUMP_AGAIN)
                    }
                };
                self.show(decision);
                if matches!(self.dump, Dump::Made) {
                    self.release();
                }
            }
        }
    }

    fn dump(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let volumes = self.runtime.power_volumes();
        let bytes = match &self.refuge {
            Some(refuge) => refuge.dump(&volumes)?,
            None if self.dirty_bytes == 0 => 0,
            None => anyhow::bail!("there is no vault, and {} are dirty", Size(self.dirty_bytes)),
        };
        let unsynced = self.runtime.sync_power(SYNC_MAX);
        anyhow::ensure!(
            unsynced.is_empty(),
            "the dump is made, but the disks of these volumes do not say that what they were given \
             before is stable: {}",
            unsynced.join(", ")
        );
        let ms = begun.elapsed().as_millis();
        tracing::warn!("{} are saved and verified, in {ms} ms; power may go", Size(bytes));
        Ok(())
    }

    /// What was saved is not needed: it is dirty in the pool still, or on the disks.
    fn forget_dump(&mut self) {
        if matches!(self.dump, Dump::None) {
            return;
        }
        // Before any write is newer than it.
        if let Some(refuge) = &self.refuge
            && let Err(error) = refuge.empty()
        {
            tracing::error!(
                "writes stay halted, as the vault can't be emptied: {}",
                crate::report::sentence(&error)
            );
            self.dump = Dump::Failed(Instant::now() + DUMP_AGAIN);
            return;
        }
        self.dump = Dump::None;
        self.runtime.halt_power(false);
    }

    fn release(&self) {
        for (watch, supply) in self.watches.iter().zip(&self.supplies) {
            if !watch.release(RELEASE_MAX) {
                tracing::warn!("the server of supply '{supply}' was not told that we are safe");
            }
        }
    }

    fn show(&self, decision: &Decision) {
        let supplies = self.guard.supplies().zip(&self.supplies);
        let supplies = supplies.map(|((name, verdict, reading), supply)| SupplyStatus {
            name: name.to_owned(),
            place: supply.to_string(),
            verdict: verdict.to_string(),
            status: reading.and_then(|reading| Some(reading.status.as_ref()?.to_string())),
            charge_percent: reading.and_then(|reading| reading.charge_percent),
            runtime_seconds: reading.and_then(|reading| reading.runtime_seconds),
            load_percent: reading.and_then(|reading| reading.load_percent),
            model: reading.and_then(|reading| reading.model.clone()),
            battery_test: reading.and_then(|reading| reading.test_result.clone()),
            battery_date: reading.and_then(|reading| reading.battery_date.clone()),
            battery_ages: self.batteries.ages(name),
        });
        let status = PowerStatus {
            write_back_allowed: self.allowed,
            reason: decision.reason.clone(),
            changes: self.changes,
            since_seconds: self.changed_at.elapsed().as_secs(),
            change_ms: self.change_ms,
            dirty_bytes: self.dirty_bytes,
            dirty_bytes_max: if self.allowed { decision.dirty_bytes_max } else { 0 },
            dump_seconds: decision.forecast.dump_ms.map(|ms| ms as f64 / 1000.0),
            battery_seconds: decision.forecast.battery_seconds,
            forecast: decision.forecast.to_string(),
            halted: !matches!(self.dump, Dump::None),
            needed: self.needed.clone(),
            supplies: supplies.collect(),
        };
        *self.common.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
