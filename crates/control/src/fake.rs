//! A fake manager for tests of the server and of its clients: volumes are entries in a list, and
//! their dirty data is a number that operations count down.

use crate::{
    AnalysisManager, ClientManager, DeviceManager, DiskManager, Manager, Measurements, ProgressFn,
    StatisticsManager, TraceSink, configured_status, convert::invalid, geometry_status,
    with_settings,
};
use forebay_api::{
    Analysis, AnalysisPhase, AnalysisRequest, AnalysisState, AnalysisStatus, BackgroundStatus,
    ConnectDevice, ConnectedClient, ConnectedClients, ConnectedDevice, DiscardRequest, Discarded,
    DrillReport, ErrorKind, GatherSource, GatherStatus, History, HistoryPoint, JournalStatus,
    LearnStatus, Memory, MissingVolume, PatrolStatus, PeriodStatistics, Periods, PinState,
    PinStatus, Problem, Progress, ServeDevice, ServedDevice, SiteStatus, SlowRequest, SlowRequests,
    Statistics, StatisticsOfVolume, Status, TraceEnd, TraceRequest, TraceSummary, UnservedWrites,
    VolumeSize, VolumeStatus, WarmUpStatus,
};
use forebay_config::{MemorySetting, ResolvedGeometry, ServerChange, VolumeChange, VolumeSpec};
use forebay_types::{DiskGeometry, LINE_BYTES, PinnedRanges};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An operation counts down in this many steps.
pub const STEPS: u64 = 4;

/// The process id in its status, which no Linux process can have.
pub const PID: u32 = i32::MAX as u32;

/// The bounds of the memory that can be set.
const LIMIT_BYTES_MIN: u64 = 128 << 20;
const LIMIT_BYTES_MAX: u64 = 1 << 30;

/// The list of volumes, and a switch that pauses operations.
#[derive(Debug, Default)]
pub struct FakeManager {
    state: Mutex<FakeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FakeState {
    volumes: Vec<(VolumeSpec, VolumeStatus)>,
    is_paused: bool,
    /// The number of calls that are paused.
    paused: usize,
    is_stopped: bool,
    /// The memory that was set.
    limit_bytes: Option<u64>,
    analysis: AnalysisStatus,
    /// The numbers of the clients that were disconnected.
    disconnected: Vec<u64>,
}

impl FakeManager {
    /// A manager with these volumes of 1 GiB, in the form of the command line.
    ///
    /// # Panics
    /// If a volume is invalid or named twice.
    pub fn new(volumes: &[&str]) -> Self {
        let fake = Self::default();
        for text in volumes {
            let spec = text.parse().expect("the test's volumes are valid");
            fake.add_volume(spec).expect("the test names each volume once");
        }
        fake
    }

    /// Sets the dirty bytes of a volume, and some of its counters.
    pub fn set_dirty(&self, name: &str, dirty_bytes: u64) {
        let mut state = self.lock();
        for (_, volume) in state.volumes.iter_mut().filter(|(_, volume)| volume.name == name) {
            volume.dirty_bytes = dirty_bytes;
            volume.cached_bytes = 2 * dirty_bytes;
            (volume.counters.reads, volume.counters.read_hits) = (1000, 875);
            volume.counters.writes = 20;
        }
    }

    /// Pauses operations after their first progress, and calls that may wait for disks, until
    /// [`FakeManager::resume`].
    pub fn pause(&self) {
        self.lock().is_paused = true;
    }

    /// Resumes operations.
    pub fn resume(&self) {
        self.lock().is_paused = false;
        self.changed.notify_all();
    }

    /// Waits until this many calls or operations are paused.
    pub fn wait_paused(&self, count: usize) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| state.paused < count));
    }

    fn wait_while_paused(&self) {
        let mut state = self.lock();
        state.paused += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| state.is_paused);
        waited.unwrap_or_else(PoisonError::into_inner).paused -= 1;
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Waits until it is stopped.
    pub fn wait_stopped(&self) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| !state.is_stopped));
    }

    /// Locks the state. Ignores poisoning: the panics of tests are deliberate, and change no state.
    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the dirty data of the selected volumes down to zero.
    fn clean(&self, is_selected: impl Fn(&str) -> bool, progress: ProgressFn<'_>) {
        let total: u64 = self.dirty_bytes(&is_selected);
        for step in 0..=STEPS {
            let left = total - total * step / STEPS;
            progress(Progress { dirty_bytes_left: left, dirty_bytes_total: total });
            self.wait_while_paused();
        }
        for (_, volume) in self.lock().volumes.iter_mut().filter(|(_, v)| is_selected(&v.name)) {
            volume.dirty_bytes = 0;
        }
    }

    fn dirty_bytes(&self, is_selected: impl Fn(&str) -> bool) -> u64 {
        let volumes = self.volume_list().into_iter();
        volumes.filter(|volume| is_selected(&volume.name)).map(|volume| volume.dirty_bytes).sum()
    }

    /// The journals of the volumes, with example figures. The journal `broken` has failed.
    fn journals(&self) -> Vec<JournalStatus> {
        let mut journals: Vec<JournalStatus> = Vec::new();
        for name in self.lock().volumes.iter().filter_map(|(spec, _)| spec.config.journal.as_ref())
        {
            if journals.iter().all(|journal| journal.name != *name) {
                let id = format!("{:032x}", journals.len() + 1);
                journals.push(journal(name, id));
            }
        }
        journals
    }

    /// The pinned ranges of a volume.
    fn pins(&self, name: &str) -> Result<PinnedRanges, Problem> {
        let state = self.lock();
        let spec = state.volumes.iter().map(|(spec, _)| spec).find(|spec| spec.name == name);
        Ok(spec.ok_or_else(|| Problem::unknown_volume(name))?.config.pin.clone())
    }

    /// Checks that no disk fails.
    fn check_all(&self) -> Result<(), Problem> {
        if self.volume_list().iter().any(|volume| volume.name == "broken") {
            self.check("broken")?;
        }
        Ok(())
    }

    /// Checks that the volume exists. The disk of the volume `broken` fails; the volume `faulty`
    /// panics.
    fn check(&self, name: &str) -> Result<(), Problem> {
        if !self.volume_list().iter().any(|volume| volume.name == name) {
            return Err(Problem::unknown_volume(name));
        }
        assert!(name != "faulty", "a deliberate panic of a test");
        if name == "broken" {
            return Err(Problem::new(
                ErrorKind::Failed,
                "volume 'broken': its disk cannot be written",
                "replace it",
            ));
        }
        Ok(())
    }
}

impl ClientManager for FakeManager {
    /// A client of each volume.
    fn list(&self) -> ConnectedClients {
        let gone = self.lock().disconnected.clone();
        let named = (1..).zip(self.volume_list());
        let clients = named.filter(|(id, _)| !gone.contains(id)).map(|(id, volume)| {
            let (volume, client) = (Some(volume.name), format!("process {id} (fake)"));
            ConnectedClient { id, volume, client, ..ConnectedClient::default() }
        });
        ConnectedClients { instance: 1, clients: clients.collect() }
    }

    fn disconnect(&self, id: u64) -> Result<ConnectedClient, Problem> {
        let found = ClientManager::list(self).clients.into_iter().find(|client| client.id == id);
        let client = found.ok_or_else(|| Problem::unknown_client(id))?;
        self.lock().disconnected.push(id);
        Ok(client)
    }

    fn slow_requests(&self, name: Option<&str>) -> Option<SlowRequests> {
        let volumes = self.volume_list();
        let is_selected = |volume: &&VolumeStatus| name.is_none_or(|name| volume.name == name);
        let slow = volumes.iter().filter(is_selected);
        let requests: Vec<_> = slow
            .map(|volume| SlowRequest { volume: volume.name.clone(), ..SlowRequest::default() })
            .collect();
        let is_known = name.is_none() || !requests.is_empty();
        let total = requests.len() as u64;
        is_known.then_some(SlowRequests { total, requests, ..SlowRequests::default() })
    }
}

impl AnalysisManager for FakeManager {
    fn status(&self) -> AnalysisStatus {
        self.lock().analysis.clone()
    }

    fn result(&self) -> Analysis {
        Analysis { status: AnalysisManager::status(self), batches: Vec::new() }
    }

    fn start(&self, request: AnalysisRequest) -> Result<AnalysisStatus, Problem> {
        self.check_all()?;
        let (state, phase) = (AnalysisState::Running, Some(AnalysisPhase::Measure));
        self.lock().analysis =
            AnalysisStatus { state, phase, request, ..AnalysisStatus::default() };
        Ok(AnalysisManager::status(self))
    }

    fn stop(&self) -> Result<AnalysisStatus, Problem> {
        self.lock().analysis.state = AnalysisState::Stopped;
        Ok(AnalysisManager::status(self))
    }
}

impl StatisticsManager for FakeManager {
    fn all(&self) -> Statistics {
        let volumes = self.volume_list().into_iter().map(|volume| {
            let total = PeriodStatistics {
                seconds: 0,
                counters: volume.counters,
                latency: volume.latency,
                disk: volume.disk,
                ..PeriodStatistics::default()
            };
            let last_hour = PeriodStatistics { seconds: 3700, ..total.clone() };
            let periods = Periods { total, last_hour, ..Periods::default() };
            StatisticsOfVolume { name: volume.name, periods }
        });
        Statistics { seconds: 3725, volumes: volumes.collect(), ..Statistics::default() }
    }

    fn history(&self, name: Option<&str>, fine: bool) -> Option<History> {
        let volumes = self.volume_list();
        let is_selected = |volume: &&VolumeStatus| name.is_none_or(|name| volume.name == name);
        let selected = volumes.iter().filter(is_selected);
        let reads = selected.clone().map(|volume| volume.counters.reads).sum();
        let point = HistoryPoint { ended_at: 600, seconds: 300, reads, ..HistoryPoint::default() };
        let is_known = name.is_none() || selected.count() > 0;
        let five_seconds = if fine { vec![point.clone()] } else { Vec::new() };
        let five_minutes = vec![point];
        is_known.then(|| History { now: 700, five_seconds, five_minutes, hours: Vec::new() })
    }

    fn of_volume(&self, name: &str) -> Option<StatisticsOfVolume> {
        self.all().volumes.into_iter().find(|volume| volume.name == name)
    }
}

impl Manager for FakeManager {
    fn site(&self) -> Option<SiteStatus> {
        None
    }

    fn measurements(&self) -> Measurements {
        let status = Manager::status(self);
        Measurements { histograms: vec![BTreeMap::new(); status.volumes.len()], status }
    }

    fn statistics(&self) -> &dyn StatisticsManager {
        self
    }

    fn status(&self) -> Status {
        let volumes = self.volume_list();
        let dirty_bytes = self.dirty_bytes(|_| true);
        // A guard in the expression below would be held until its end.
        let limit_bytes = self.lock().limit_bytes.unwrap_or(LIMIT_BYTES_MAX);
        Status {
            version: "0.0.1-fake".into(),
            pid: PID,
            uptime_seconds: 3725,
            io_engine: "epoll".into(),
            workers: 2,
            polled_ms: 1_500,
            memory: Memory {
                limit_bytes,
                sizing: None,
                limit_bytes_min: LIMIT_BYTES_MIN,
                limit_bytes_max: LIMIT_BYTES_MAX,
                pool_bytes: 512 << 20,
                used_bytes: volumes.iter().map(|volume| volume.cached_bytes).sum(),
                dirty_bytes,
                cache_ratio: None,
                metadata_bytes: 4 << 20,
                pinned_bytes: 0,
                pinned_bytes_max: 256 << 20,
            },
            patrol: PatrolStatus { ecc: "parity".into(), ..PatrolStatus::default() },
            background: BackgroundStatus { setting: "auto".into(), ..BackgroundStatus::default() },
            connections: 3,
            listeners: vec!["tcp:[::1]:10809".into()],
            volumes,
            journals: self.journals(),
            ..Status::default()
        }
    }

    fn set_server(&self, change: &ServerChange) -> Result<Memory, Problem> {
        let bytes = match change.memory {
            Some(MemorySetting::Bytes(bytes)) => bytes,
            Some(MemorySetting::Auto) | None => LIMIT_BYTES_MAX,
        };
        if !(LIMIT_BYTES_MIN..=LIMIT_BYTES_MAX).contains(&bytes) {
            let message = format!("memory {bytes} is out of bounds");
            return Err(Problem::new(ErrorKind::Invalid, message, "set another one"));
        }
        self.lock().limit_bytes = Some(bytes);
        Ok(Manager::status(self).memory)
    }

    fn volume(&self, name: &str) -> Option<VolumeStatus> {
        self.volume_list().into_iter().find(|volume| volume.name == name)
    }

    fn volume_list(&self) -> Vec<VolumeStatus> {
        self.lock().volumes.iter().map(|(_, volume)| volume.clone()).collect()
    }

    fn add_volume(&self, spec: VolumeSpec) -> Result<VolumeStatus, Problem> {
        self.wait_while_paused();
        let mut state = self.lock();
        if state.volumes.iter().any(|(_, volume)| volume.name == spec.name) {
            return Err(Problem::new(
                ErrorKind::VolumeExists,
                format!("volume '{}' is served already", spec.name),
                "choose another name",
            ));
        }
        let volume = VolumeStatus { size_bytes: 1 << 30, ..show(&spec, VolumeStatus::default()) };
        state.volumes.push((spec, volume.clone()));
        Ok(volume)
    }

    fn set_volume(&self, name: &str, change: VolumeChange) -> Result<VolumeStatus, Problem> {
        self.wait_while_paused();
        let mut state = self.lock();
        let entry = state.volumes.iter_mut().find(|(spec, _)| spec.name == name);
        let (spec, volume) = entry.ok_or_else(|| Problem::unknown_volume(name))?;
        *spec = spec.with(&change).map_err(invalid)?;
        *volume = show(spec, volume.clone());
        Ok(volume.clone())
    }

    fn pin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem> {
        let pins = self.pins(name)?.with(&ranges);
        self.set_volume(name, VolumeChange::pins(pins))
    }

    fn unpin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem> {
        let pins = self.pins(name)?.without(&ranges, 1 << 30);
        self.set_volume(name, VolumeChange::pins(pins))
    }

    fn remove_volume(&self, name: &str, _: bool, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.flush_volume(name, progress)?;
        self.lock().volumes.retain(|(spec, _)| spec.name != name);
        Ok(())
    }

    fn flush_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.check(name)?;
        self.clean(|candidate| candidate == name, progress);
        Ok(())
    }

    fn save_volume(&self, name: &str) -> Result<(), Problem> {
        self.check(name)
    }

    fn discard_volume(&self, name: &str, request: &DiscardRequest) -> Result<Discarded, Problem> {
        self.check(name)?;
        let mut state = self.lock();
        let lost = state.volumes.iter().find(|(spec, _)| spec.name == name);
        let bytes = lost.map_or(0, |(_, volume)| volume.dirty_bytes);
        state.volumes.retain(|(spec, _)| spec.name != name);
        Ok(Discarded { bytes, saved_to: request.save_to.clone(), may_lack_more: false })
    }

    fn devices(&self) -> Box<dyn DeviceManager + '_> {
        Box::new(FakeDevices(self))
    }

    fn disks(&self) -> Box<dyn DiskManager + '_> {
        Box::new(FakeDisks(self))
    }

    fn analysis(&self) -> &dyn AnalysisManager {
        self
    }

    fn drill(&self) -> Result<DrillReport, Problem> {
        self.check_all()?;
        self.wait_while_paused();
        Ok(DrillReport {
            begun_at: "2026-02-28T13:05:09Z".into(),
            vault: "/v".into(),
            saved_in_time: self.volume_list().iter().all(|volume| volume.name != "slow"),
            verdict: "everything dirty was saved".into(),
            dirty_bytes: self.dirty_bytes(|_| true),
            bytes: self.dirty_bytes(|_| true),
            write_ms: 1500,
            disks_ms: 1600,
            total_ms: 2500,
            bytes_per_second: 1 << 30,
            verified: true,
            same_bytes: self.dirty_bytes(|_| true),
            battery_seconds: Some(640),
            dirty_bytes_max: Some(4 << 30),
            path: Some("/s/drills/2026-02-28T13-05-09Z.json".into()),
            ..DrillReport::default()
        })
    }

    fn clients(&self) -> &dyn ClientManager {
        self
    }

    /// Sends one request for each volume. If the sink refuses one, the recording ends for its size.
    fn record_trace(
        &self,
        request: &TraceRequest,
        sink: TraceSink<'_>,
    ) -> Result<TraceSummary, Problem> {
        request.volumes.iter().try_for_each(|name| self.check(name))?;
        let mut end = TraceEnd::Time;
        for volume in 0..request.volumes.len() {
            self.wait_while_paused();
            if !sink(format!("0,{volume},R,0,4096,7,pool\n").into()) {
                end = TraceEnd::Size;
                break;
            }
        }
        Ok(TraceSummary { requests: request.volumes.len() as u64, dropped: 3, end })
    }

    fn stop(&self, _: bool, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.check_all()?;
        self.clean(|_| true, progress);
        self.lock().is_stopped = true;
        self.changed.notify_all();
        Ok(())
    }

    fn reload(&self, _: bool) -> Result<(), Problem> {
        Ok(())
    }

    fn upgrade(&self) -> Result<(), Problem> {
        self.wait_while_paused();
        self.lock().is_stopped = true;
        self.changed.notify_all();
        Ok(())
    }
}

fn journal(name: &str, id: String) -> JournalStatus {
    let journal = JournalStatus {
        name: name.to_owned(),
        id,
        capacity_bytes: 1 << 30,
        used_bytes: 64 << 20,
        records: 3000,
        batches: 500,
        written_bytes: 16 << 20,
        payload_bytes: 12 << 20,
        checkpoints: 7,
        kept_bytes: 4096,
        walks: 3,
        walked_bytes: 48 << 20,
        unserved: vec![UnservedWrites { volume: "old".into(), bytes: 1 << 20 }],
        ..JournalStatus::default()
    };
    journal.with_errors((name == "broken").then(|| "a write failed".into()), None)
}

/// The status of a volume after its specification changed.
fn show(spec: &VolumeSpec, status: VolumeStatus) -> VolumeStatus {
    let mut pins = spec.config.pin.clone();
    pins.clip(1 << 30);
    let pinned_bytes = pins.lines() * LINE_BYTES;
    let state = if pins.is_empty() { PinState::None } else { PinState::Loaded };
    VolumeStatus {
        pins: PinStatus { state, pinned_bytes, loaded_bytes: pinned_bytes, ..PinStatus::default() },
        warm_up: WarmUpStatus { enabled: spec.config.warm, ..status.warm_up },
        learn: LearnStatus { enabled: spec.config.learn, ..status.learn },
        geometry: geometry_status(&ResolvedGeometry::new(
            &spec.config,
            &DiskGeometry::default(),
            1 << 30,
        )),
        size_bytes: status.size_bytes,
        gather: status.gather,
        cached_bytes: status.cached_bytes,
        dirty_bytes: status.dirty_bytes,
        counters: status.counters,
        ..with_settings(configured_status(spec), spec)
    }
}

/// Devices of volumes of 1 GiB.
struct FakeDisks<'a>(&'a FakeManager);

impl DiskManager for FakeDisks<'_> {
    fn trust(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem> {
        self.0.flush_volume(name, progress)
    }

    /// Every volume is served here already.
    fn take_over(&self, name: &str) -> Result<VolumeStatus, Problem> {
        self.0.check(name)?;
        self.0.volume(name).ok_or_else(|| Problem::unknown_volume(name))
    }

    /// It stays served.
    fn stand_by(&self, name: &str, progress: ProgressFn<'_>) -> Result<MissingVolume, Problem> {
        self.0.flush_volume(name, progress)?;
        Ok(MissingVolume { name: name.to_owned(), standby: true, ..MissingVolume::default() })
    }

    /// Each time, the volume has grown to twice its size.
    fn resize(&self, name: &str) -> Result<VolumeSize, Problem> {
        self.0.check(name)?;
        let mut state = self.0.lock();
        let entry = state.volumes.iter_mut().find(|(spec, _)| spec.name == name);
        let (_, volume) = entry.ok_or_else(|| Problem::unknown_volume(name))?;
        let former_bytes = volume.size_bytes;
        volume.size_bytes *= 2;
        Ok(VolumeSize { size_bytes: volume.size_bytes, former_bytes })
    }

    /// Sets and returns rounded values of a hard disk.
    fn calibrate(&self, name: &str) -> Result<VolumeStatus, Problem> {
        self.0.check(name)?;
        self.0.wait_while_paused();
        let mut state = self.0.lock();
        let entry = state.volumes.iter_mut().find(|(spec, _)| spec.name == name);
        let (_, volume) = entry.ok_or_else(|| Problem::unknown_volume(name))?;
        volume.gather = GatherStatus {
            below_bytes: 4 << 20,
            source: GatherSource::Measured,
            measured_below_bytes: Some(4 << 20),
            fixed_us: Some(12_500.0),
            bytes_per_second: Some(100 << 20),
            not_measured: None,
        };
        Ok(volume.clone())
    }
}

struct FakeDevices<'a>(&'a FakeManager);

impl DeviceManager for FakeDevices<'_> {
    fn serve(&self, volume: &str, _request: &ServeDevice) -> Result<ServedDevice, Problem> {
        self.0.check(volume)?;
        Ok(ServedDevice { pid: 1, size_bytes: 1 << 30, ..ServedDevice::default() })
    }

    fn connect(&self, volume: &str, _request: &ConnectDevice) -> Result<ConnectedDevice, Problem> {
        let device = self.serve(volume, &ServeDevice::default())?;
        Ok(ConnectedDevice { device, unix: Some("/run/nbd.sock".into()), ..Default::default() })
    }
}
