//! The observation: the kernel's counters before and after, and the requests meanwhile.

use super::counters::Counters;
use super::devices::BlockDevice;
use super::processes::Openers;
use super::trace::{Instance, TraceEvent};
use super::{Host, Roots};
use anyhow::{Context, anyhow};
use forebay_advice::{AccessLog, Load, SelfCaching};
use forebay_terminal::with_remedy;
use forebay_types::ByteRange;
use std::io;
use std::time::{Duration, Instant};

/// The interval between reads of the trace. The buffer of each processor holds the events of this
/// time.
const PERIOD: Duration = Duration::from_millis(20);
/// The most devices that are traced at once: the kernel bounds the length of a filter.
const TRACED_MAX: usize = 64;
/// If loop devices cause at least this share of a disk's requests, they are to be cached instead of
/// the disk.
const LOOPS_SHARE: f64 = 0.5;

/// What was observed of all devices.
pub(super) struct Observation {
    pub(super) seconds: f64,
    /// Why the requests themselves were not observed.
    pub(super) unsampled: Option<String>,
    /// The number of lost events, and of the others.
    pub(super) lost: u64,
    pub(super) seen: u64,
    pub(super) devices: Vec<Observed>,
}

/// What was observed of one device.
pub(super) struct Observed {
    pub(super) device: BlockDevice,
    pub(super) load: Load,
    pub(super) log: Option<AccessLog>,
    pub(super) self_caching: Vec<SelfCaching>,
    /// Why nothing is advised, whatever the load.
    pub(super) excluded: Option<String>,
}

/// Observes the devices for this time, or until a signal ends a pause.
///
/// # Errors
/// The counters of a device cannot be read, or all devices are removed meanwhile.
pub(super) fn observe(
    roots: &Roots,
    devices: Vec<BlockDevice>,
    time: Duration,
    host: Host<'_>,
) -> anyhow::Result<Observation> {
    let before = devices.iter().map(|device| Before::read(roots, device));
    let before = before.collect::<anyhow::Result<Vec<_>>>()?;
    let mut openers = Openers::find(roots);
    let mut sample = LoadSample::new(&devices);
    let began = Instant::now();
    let unsampled = sample.take(roots, &devices, began + time, host.pause)?;
    openers.add(Openers::find(roots));
    finish(roots, devices, before, sample, Finish { began, unsampled, openers, warn: host.warn })
}

/// The counters at the start.
struct Before {
    counters: Counters,
    /// The requests of the loop devices on it.
    carried: u64,
}

impl Before {
    fn read(roots: &Roots, device: &BlockDevice) -> anyhow::Result<Self> {
        let counters = Counters::read(roots, &device.name).map_err(|error| {
            let error = anyhow::Error::new(error);
            let error = error.context(format!("cannot read the counters of {}", device.name));
            with_remedy(error, "see the names with `lsblk`")
        })?;
        Ok(Self { counters, carried: carried(roots, device) })
    }
}

/// The requests to the devices.
struct LoadSample {
    logs: Vec<AccessLog>,
    lost: u64,
    seen: u64,
}

impl LoadSample {
    fn new(devices: &[BlockDevice]) -> Self {
        let logs = devices.iter().map(|device| AccessLog::new(device.size_bytes)).collect();
        Self { logs, lost: 0, seen: 0 }
    }

    /// Takes the sample. If requests cannot be traced, only waits, and returns the reason.
    fn take(
        &mut self,
        roots: &Roots,
        devices: &[BlockDevice],
        until: Instant,
        pause: &mut dyn FnMut(Duration) -> bool,
    ) -> anyhow::Result<Option<String>> {
        let mut numbers: Vec<_> = devices.iter().map(|device| device.traced).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut instance = None;
        let mut unsampled = None;
        if numbers.len() > TRACED_MAX {
            unsampled = Some(format!("more than {TRACED_MAX} devices are observed at once"));
        } else {
            match Instance::start(&roots.tracing, &numbers) {
                Ok(started) => instance = Some(started),
                Err(error) => unsampled = Some(reason(&error)),
            }
        }
        while Instant::now() < until {
            if pause(PERIOD.min(until.saturating_duration_since(Instant::now()))) {
                break;
            }
            if let Some(Err(error)) = instance.as_mut().map(|it| self.drain(it, devices)) {
                unsampled = Some(reason(&error));
                instance = None;
            }
        }
        if let Some(mut instance) = instance {
            instance.stop();
            self.drain(&mut instance, devices).context("cannot read the trace")?;
            self.lost = instance.lost();
        }
        Ok(unsampled)
    }

    fn drain(&mut self, instance: &mut Instance, devices: &[BlockDevice]) -> io::Result<()> {
        instance.drain(|event| {
            self.seen += 1;
            self.record(event, devices);
        })
    }

    fn record(&mut self, event: TraceEvent, devices: &[BlockDevice]) {
        for (device, log) in devices.iter().zip(&mut self.logs) {
            if device.traced == event.device
                && let Some(offset) = device.place(event.offset, event.len)
            {
                log.record(ByteRange::new(offset, event.len), event.is_write);
            }
        }
    }
}

/// Why the kernel refuses to trace, in words for its user.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "only root may trace requests".to_owned(),
        io::ErrorKind::NotFound => {
            "this kernel has no tracing at /sys/kernel/tracing, or no events of block devices"
                .to_owned()
        }
        _ => format!("the kernel refuses to trace requests: {error}"),
    }
}

/// What [`finish`] needs besides the counters and the sample.
struct Finish {
    began: Instant,
    unsampled: Option<String>,
    openers: Openers,
    warn: fn(&str),
}

fn finish(
    roots: &Roots,
    devices: Vec<BlockDevice>,
    before: Vec<Before>,
    sample: LoadSample,
    finish: Finish,
) -> anyhow::Result<Observation> {
    let Finish { began, unsampled, openers, warn } = finish;
    let seconds = began.elapsed().as_secs_f64();
    let mut observed = Vec::new();
    for ((device, before), log) in devices.into_iter().zip(before).zip(sample.logs) {
        let after = match Counters::read(roots, &device.name) {
            Ok(after) => after,
            Err(_) => {
                warn(&format!("{} disappeared during the observation", device.name));
                continue;
            }
        };
        let load = after.since(before.counters);
        let carried = carried(roots, &device).saturating_sub(before.carried);
        let excluded = excluded(&device, &load, carried, &openers);
        let self_caching = openers.self_caching(&device);
        let log = unsampled.is_none().then_some(log);
        observed.push(Observed { device, load, log, self_caching, excluded });
    }
    exclude_overlaps(&mut observed);
    if observed.is_empty() {
        let error = anyhow!("all devices disappeared during the observation");
        return Err(with_remedy(error, "see the names with `lsblk`"));
    }
    let LoadSample { lost, seen, .. } = sample;
    Ok(Observation { seconds, unsampled, lost, seen, devices: observed })
}

/// Why a device is not to be cached, whatever its load.
fn excluded(device: &BlockDevice, load: &Load, carried: u64, openers: &Openers) -> Option<String> {
    if device.is_memory {
        return Some("it is a memory device".to_owned());
    }
    if let Some(pid) = openers.server_of(device) {
        return Some(format!(
            "a Forebay serves it already (process {pid}); `forebay advise` without a device says \
             more"
        ));
    }
    if let Some(first) = device.holders.first() {
        let others = if device.holders.len() > 1 { " and others" } else { "" };
        return Some(format!("{first}{others} lies on it; cache that instead"));
    }
    let first = device.loops.first()?;
    let is_carrier = load.requests() > 0 && carried as f64 >= load.requests() as f64 * LOOPS_SHARE;
    is_carrier.then(|| format!("most of its load is that of {first}, whose file lies on it"))
}

/// The requests of the loop devices on a device, since they appeared.
fn carried(roots: &Roots, device: &BlockDevice) -> u64 {
    let requests = |name: &String| {
        let counters = Counters::read(roots, name).unwrap_or_default();
        counters.since(Counters::default()).requests()
    };
    device.loops.iter().map(requests).sum()
}

/// Excludes partitions whose disk is observed too.
fn exclude_overlaps(observed: &mut [Observed]) {
    let disks: Vec<_> = observed
        .iter()
        .filter(|it| it.device.start_bytes == 0 && it.device.numbers.contains(&it.device.traced))
        .map(|it| (it.device.traced, it.device.name.clone()))
        .collect();
    for it in observed {
        let disk = disks
            .iter()
            .find(|(traced, name)| *traced == it.device.traced && *name != it.device.name);
        if let Some((_, name)) = disk {
            it.excluded
                .get_or_insert(format!("it is a part of {name}, which is judged as a whole"));
        }
    }
}
