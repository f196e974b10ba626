//! `forebay advise`: which block devices to cache, in which mode, with how much memory, and the
//! expected benefit.
//!
//! Devices are observed for a while: the kernel's counters before and after, and, for root, their
//! requests through a tracing instance that ends with the observation. Nothing is read from the
//! devices or written to them.
//!
//! Without a device, it judges the volumes of a running server.

mod counters;
mod devices;
mod json;
mod observe;
mod processes;
mod show;
mod trace;
mod volumes;

use anyhow::{Context, anyhow};
use clap::Args;
use devices::BlockDevice;
use forebay_advice::{
    Advice, Basis, Claim, Load, Prediction, Reason, SelfCaching, share_memory, verdict,
};
use forebay_api::{Statistics, Status};
use forebay_terminal::units::seconds_with_unit;
use forebay_terminal::{misconfigured, print, print_json, with_remedy};
use forebay_types::{Mode, Size};
use observe::{Observation, Observed};
use std::path::PathBuf;
use std::time::Duration;

/// Without `--memory`, the machine's memory divided by this number is shared among the devices.
const MEMORY_SHARE: u64 = 2;
/// The length of an observation without `--time`.
const TIME: Duration = Duration::from_secs(60);

/// Arguments of `forebay advise`.
#[derive(Args, Debug)]
pub struct AdviseArguments {
    /// Block devices to observe, each as a path or as a name below /dev [default: judge the volumes
    /// of a running forebay]
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Observe all block devices
    #[arg(long, conflicts_with = "devices")]
    all: bool,
    /// Observation time, 1s to 1d [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = observation_time)]
    time: Option<Duration>,
    /// Memory that a cache may have for data [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = observation_memory)]
    memory: Option<Size>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AdviseArguments {
    /// Whether block devices are to be observed, or else the volumes of a server judged.
    pub fn has_devices(&self) -> bool {
        self.all || !self.devices.is_empty()
    }
}

/// Parses the length of an observation: a number with a unit.
fn observation_time(text: &str) -> Result<Duration, String> {
    let seconds = seconds_with_unit(text).filter(|seconds| (1..=86_400).contains(seconds));
    let error = || format!("--time {text} is invalid: write 1s to 1d, as in 60s, 10m or 2h");
    seconds.map(Duration::from_secs).ok_or_else(error)
}

/// Parses the memory that is divided between observed devices: from a MiB to 64 TiB.
fn observation_memory(text: &str) -> Result<Size, String> {
    let size = text.parse::<Size>().map_err(|error| format!("--memory: {error}"))?;
    if (1 << 20..=64 << 40).contains(&size.bytes()) {
        return Ok(size);
    }
    Err(format!("--memory {text} is invalid: write 1MiB to 64TiB"))
}

/// What the program lends to an observation.
pub struct Host<'a> {
    /// Prints a warning.
    pub warn: fn(&str),
    /// Waits so long; returns true if a signal asks for the end. Signals are handled from the start
    /// on, as one that kills the process would leave the tracing instance behind.
    pub pause: &'a mut dyn FnMut(Duration) -> bool,
}

/// Where the kernel's files are.
#[derive(Clone, Debug)]
struct Roots {
    sys: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
    tracing: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        let tracing = PathBuf::from("/sys/kernel/tracing");
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), tracing }
    }
}

/// A device with its advice.
struct Judged {
    device: BlockDevice,
    load: Load,
    prediction: Option<Prediction>,
    self_caching: Vec<SelfCaching>,
    /// Why nothing is advised, whatever the load.
    excluded: Option<String>,
    advice: Advice,
}

/// The advice for all devices.
struct AdviceReport {
    seconds: f64,
    /// Why requests were not observed.
    unsampled: Option<String>,
    /// The number of events that the kernel dropped, and of those that it reported.
    lost: u64,
    seen: u64,
    /// The memory that was divided, and whether the user gave it.
    memory_bytes: u64,
    is_memory_given: bool,
    devices: Vec<Judged>,
}

/// Observes block devices, and prints which to cache.
///
/// # Errors
/// A name is no block device, or the kernel's counters cannot be read.
pub fn advise_devices(arguments: &AdviseArguments, host: Host<'_>) -> anyhow::Result<()> {
    let roots = Roots::default();
    let devices = selected(&roots, arguments, host.warn)?;
    let memory_bytes = match arguments.memory {
        Some(size) => size.bytes(),
        None => memory_total(&roots)? / MEMORY_SHARE,
    };
    let observation = observe::observe(&roots, devices, arguments.time.unwrap_or(TIME), host)?;
    let report = judge(observation, memory_bytes, arguments.memory.is_some());
    if arguments.json {
        return print_json(&json::report(&report));
    }
    print(&show::report(&report))
}

/// Judges the volumes of the running server, of which `served` has the figures.
///
/// # Errors
/// Those of `served`; and the arguments are of an observation.
pub fn advise_volumes(
    arguments: &AdviseArguments,
    served: impl FnOnce() -> anyhow::Result<(Status, Statistics)>,
) -> anyhow::Result<()> {
    if arguments.time.is_some() || arguments.memory.is_some() {
        let error = anyhow!("--time and --memory are for block devices, and none is named");
        let remedy = "name some, as in `forebay advise /dev/sdb`, or use --all";
        return Err(misconfigured(error, remedy));
    }
    let (status, statistics) = served()?;
    let judged = volumes::judge(&status, &statistics);
    if arguments.json {
        return print_json(&volumes::json(&judged));
    }
    print(&volumes::text(&judged))
}

/// The devices that the command line names, or all.
fn selected(
    roots: &Roots,
    arguments: &AdviseArguments,
    warn: fn(&str),
) -> anyhow::Result<Vec<BlockDevice>> {
    if arguments.all {
        let devices = devices::all(roots).context("cannot list the block devices")?;
        if devices.is_empty() {
            let error = anyhow!("this machine has no block device to observe");
            return Err(with_remedy(error, "name one, as in `forebay advise /dev/sdb`"));
        }
        return Ok(devices);
    }
    let mut devices: Vec<BlockDevice> = Vec::new();
    for name in &arguments.devices {
        let device = devices::find(roots, name)?;
        if devices.iter().any(|other| other.name == device.name) {
            warn(&format!("{} is named twice", device.name));
        } else {
            devices.push(device);
        }
    }
    Ok(devices)
}

/// The memory of the machine, in bytes.
fn memory_total(roots: &Roots) -> anyhow::Result<u64> {
    let file = roots.proc.join("meminfo");
    let text = std::fs::read_to_string(&file);
    let total = text.ok().and_then(|text| processes::kib_of(&text, "MemTotal:"));
    total.ok_or_else(|| {
        let error = anyhow!("{} does not say how much memory there is", file.display());
        with_remedy(error, "say how much a cache may have with --memory SIZE")
    })
}

/// Judges each device alone, and again with its share if they want more memory than there is.
fn judge(observation: Observation, memory_bytes: u64, is_memory_given: bool) -> AdviceReport {
    let mut judged: Vec<Judged> = observation
        .devices
        .into_iter()
        .map(|observed| judge_alone(observed, observation.seconds, memory_bytes))
        .collect();
    let wanted: u64 = judged.iter().filter_map(Judged::memory_bytes).sum();
    if wanted > memory_bytes {
        let shares =
            share_memory(&judged.iter().map(Judged::claim).collect::<Vec<_>>(), memory_bytes);
        for (judged, share) in judged.iter_mut().zip(shares) {
            if judged.advice.reason.mode().is_some() {
                judged.advice = judged.judge(Some(share));
            }
        }
    }
    AdviceReport {
        seconds: observation.seconds,
        unsampled: observation.unsampled,
        lost: observation.lost,
        seen: observation.seen,
        memory_bytes,
        is_memory_given,
        devices: judged,
    }
}

fn judge_alone(observed: Observed, seconds: f64, memory_bytes: u64) -> Judged {
    let Observed { device, load, log, self_caching, excluded } = observed;
    let load = Load { seconds, ..load };
    let prediction = log.map(|log| log.predict(memory_bytes));
    let advice = Advice { reason: Reason::Idle, expected: None, watch_longer: false };
    let mut judged = Judged { device, load, prediction, self_caching, excluded, advice };
    judged.advice = judged.judge(None);
    judged
}

impl Judged {
    fn judge(&self, memory_bytes: Option<u64>) -> Advice {
        verdict(&Basis {
            load: &self.load,
            prediction: self.prediction.as_ref(),
            self_caching: &self.self_caching,
            memory_bytes,
        })
    }

    /// The mode in which to cache it; `None` if it should not be cached.
    fn mode(&self) -> Option<Mode> {
        self.advice.reason.mode().filter(|_| self.excluded.is_none())
    }

    fn is_cached(&self) -> bool {
        self.mode().is_some()
    }

    /// The memory for data that it should have; `None` if it should not be cached.
    fn memory_bytes(&self) -> Option<u64> {
        let expected = self.advice.expected.filter(|_| self.is_cached());
        expected.map(|expected| expected.point.bytes)
    }

    /// The gain from memory: the time that reads would wait less, in milliseconds.
    fn claim(&self) -> Claim {
        if !self.is_cached() {
            return Claim::default();
        }
        let points = self.prediction.iter().flat_map(|prediction| &prediction.points);
        let wait = self.load.read_wait_ms as f64;
        Claim { points: points.map(|point| (point.bytes, point.low * wait)).collect() }
    }
}

#[cfg(test)]
mod tests;
