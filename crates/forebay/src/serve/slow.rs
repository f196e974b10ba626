//! The slow requests of clients, for the log and the API.
//!
//! The log has a line for each volume with slow requests, at most one in ten seconds: the slowest,
//! and the number of the others. The workers do not write it, so a slow log delays no client.

use super::manager::Daemon;
use super::periodic::Periodic;
use super::vault::utc;
use forebay_api::{SlowRequests, SlowWait};
use forebay_runtime::{
    Runtime, Served, SlowLog, SlowRequest, SlowUnlogged, VolumeSlow, WaitingRequest,
};
use forebay_threads::Thread;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The interval at which slow requests are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread that logs slow requests.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(daemon: Arc<Daemon>) -> io::Result<Periodic> {
    Periodic::start(Thread::named("slow-log"), INTERVAL, move || {
        SlowLog::of(daemon.runtime()).take_unlogged(Instant::now()).iter().for_each(log);
    })
}

fn log(SlowUnlogged { name, slowest, others }: &SlowUnlogged) {
    tracing::warn!(
        volume = name,
        at = utc_of(slowest.at),
        operation = slowest.operation,
        fua = slowest.is_fua,
        requests = slowest.requests,
        offset = slowest.range.map(|range| range.offset),
        length = slowest.range.map(|range| range.len),
        took_ms = slowest.took.as_millis() as u64,
        served = slowest.served.map(Served::name),
        waits = waits_text(slowest),
        ios = slowest.ios(),
        errors = slowest.errors(),
        others,
        "slow request"
    );
}

/// As in `write 3 ms, disk 812 ms`, in whole milliseconds and in the order of the waits.
fn waits_text(slow: &SlowRequest) -> String {
    let waits = slow.waits();
    let waits = waits.iter().filter(|wait| wait.took.as_millis() > 0);
    let texts = waits.map(|wait| format!("{} {} ms", wait.what, wait.took.as_millis()));
    texts.collect::<Vec<_>>().join(", ")
}

fn utc_of(at: SystemTime) -> String {
    utc(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The slow requests of one volume, or of all, as the API shows them; `None` if there is no such
/// volume.
pub(super) fn report(runtime: &Runtime, name: Option<&str>) -> Option<SlowRequests> {
    let log = SlowLog::of(runtime);
    let volumes = match name {
        Some(name) => vec![log.volume(name).ok()?],
        None => log.volumes(),
    };
    let waiting = log.waiting(name);
    let merged = merge(&volumes);
    let (waiting_total, waiting) = (waiting.total, waiting.oldest.iter().map(wait).collect());
    Some(SlowRequests { waiting_total, waiting, ..merged })
}

fn wait(waiting: &WaitingRequest) -> forebay_api::WaitingRequest {
    forebay_api::WaitingRequest {
        volume: waiting.volume.clone(),
        operation: waiting.operation.into(),
        fua: waiting.is_fua,
        offset: waiting.range.map(|range| range.offset),
        length: waiting.range.map(|range| range.len),
        waited_us: waiting.waited.as_micros() as u64,
    }
}

/// Merges the requests of volumes in the order of their answers.
fn merge(volumes: &[VolumeSlow]) -> SlowRequests {
    let mut requests = Vec::new();
    for VolumeSlow { name, requests: of_volume, .. } in volumes {
        requests.extend(of_volume.iter().map(|slow| (&**name, slow)));
    }
    requests.sort_by_key(|(_, slow)| slow.at);
    SlowRequests {
        total: volumes.iter().map(|slow| slow.total).sum(),
        requests: requests.into_iter().map(|(name, slow)| convert(name, slow)).collect(),
        ..SlowRequests::default()
    }
}

fn convert(volume: &str, slow: &SlowRequest) -> forebay_api::SlowRequest {
    let us = |time: Duration| time.as_micros() as u64;
    let mut waits: Vec<SlowWait> = Vec::new();
    let mut rest_us = us(slow.took);
    for wait in slow.waits() {
        let (what, longest_us) = (wait.what.to_owned(), us(wait.longest));
        rest_us -= us(wait.took);
        waits.push(SlowWait { what, us: us(wait.took), times: wait.times, longest_us });
    }
    // The times below a microsecond.
    if let Some(last) = waits.last_mut() {
        last.us += rest_us;
    }
    forebay_api::SlowRequest {
        at: utc_of(slow.at),
        volume: volume.to_owned(),
        operation: slow.operation.into(),
        fua: slow.is_fua,
        requests: slow.requests,
        offset: slow.range.map(|range| range.offset),
        length: slow.range.map(|range| range.len),
        took_us: us(slow.took),
        served: slow.served.map(|served| served.name().to_owned()),
        waits,
        ios: slow.ios(),
        errors: slow.errors(),
    }
}
