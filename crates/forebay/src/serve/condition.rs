//! Whether each volume is served without errors: its state, and the log of its changes.
//!
//! A thread of its own looks every second, and waits for no disk. A disk that does not answer gets
//! a line when that is found, further ones at doubling intervals, and one at the end.

use super::manager::Daemon;
use super::periodic::Periodic;
use forebay_api::VolumeState;
use forebay_runtime::{DiskStall, VolumeCondition};
use forebay_threads::Thread;
use forebay_types::{Bytes, SECTOR_BYTES};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which the volumes are inspected.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread that logs changes of the volumes' states, and disks that do not answer.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(daemon: Arc<Daemon>) -> io::Result<Periodic> {
    let mut log = ConditionLog::default();
    Periodic::start(Thread::named("disk-watch"), INTERVAL, move || {
        let events = log.update(Instant::now(), &daemon.runtime().volumes().conditions());
        events.iter().for_each(ConditionEvent::log);
    })
}

/// The state of a volume, and why it is not served without errors.
pub(super) fn state_of(condition: &VolumeCondition) -> (VolumeState, Option<String>) {
    let is_stalled = condition.stall.is_some() && !condition.half_added;
    let reason = reason_of(condition);
    let state = match (is_stalled, condition.is_closed && !condition.half_added, &reason) {
        (true, ..) => VolumeState::Stalled,
        (_, true, _) => VolumeState::Flushing,
        (.., Some(_)) => VolumeState::Failing,
        (.., None) => VolumeState::Serving,
    };
    (state, reason)
}

fn reason_of(condition: &VolumeCondition) -> Option<String> {
    let name = &condition.name;
    if condition.half_added {
        return Some(format!(
            "it is not served: its addition failed, and could not be undone because of its disk. \
             Run `forebay volume remove {name}` when the disk works again, and add it again"
        ));
    }
    if let Some(stall) = &condition.stall {
        let others = match stall.ios - 1 {
            0 => String::new(),
            1 => ", and 1 other I/O for long".to_owned(),
            others => format!(", and {others} other I/Os for long"),
        };
        let (operation, seconds) = (stall.operation, stall.waited.as_secs());
        return Some(format!("the disk has not answered a {operation} for {seconds} s{others}"));
    }
    if let Some(error) = condition.flush_failure {
        return Some(format!(
            "a flush of the backing store failed ({error}): data written before it may be lost. \
             FLUSH and FUA fail until the disk has been checked and `forebay volume trust {name}` \
             is run"
        ));
    }
    if let Some(displaced) = condition.displaced {
        return Some(format!(
            "{}: {displaced}. The volume is served from the open file, which the next start will \
             not find: copy it elsewhere, or move it back",
            condition.disk
        ));
    }
    if condition.lost_sectors > 0 {
        let lost = Bytes(condition.lost_sectors * SECTOR_BYTES);
        return Some(format!(
            "{lost} of dirty data was damaged in memory beyond repair. Reads of them and FLUSH \
             fail until they are written again, or given up with `forebay volume trust {name}`"
        ));
    }
    let refuses = condition.refused_lines > 0;
    refuses.then(|| "the backing store refuses dirty data, which is kept and retried".to_owned())
}

/// A disk that does not answer, as the API shows it.
pub(super) fn stall(stall: &DiskStall) -> forebay_api::DiskStall {
    forebay_api::DiskStall {
        operation: stall.operation.into(),
        cause: stall.cause.name().into(),
        offset: stall.range.map(|range| range.offset),
        length: stall.range.map(|range| range.len),
        waited_ms: stall.waited.as_millis() as u64,
        ios: stall.ios,
    }
}

/// What has been logged of the volumes.
#[derive(Default)]
struct ConditionLog {
    volumes: HashMap<String, Logged>,
}

struct Logged {
    state: VolumeState,
    stall: Option<LoggedStall>,
}

/// A disk that does not answer, as it was last logged.
#[derive(Clone, Copy)]
struct LoggedStall {
    began: Instant,
    /// How long it will not have answered at the next line.
    next: Duration,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum ConditionEvent {
    State { volume: String, from: VolumeState, to: VolumeState, reason: Option<String> },
    Stall { volume: String, disk: String, stall: DiskStall, is_first: bool },
    Answer { volume: String, disk: String, took: Duration },
}

impl ConditionLog {
    /// Compares the volumes with those of the last call.
    fn update(&mut self, now: Instant, conditions: &[VolumeCondition]) -> Vec<ConditionEvent> {
        let mut events = Vec::new();
        let mut before = std::mem::take(&mut self.volumes);
        for condition in conditions {
            let (state, reason) = state_of(condition);
            // A volume that is being added begins in the state `flushing`.
            let begins_as = match state {
                VolumeState::Flushing => VolumeState::Flushing,
                _ => VolumeState::Serving,
            };
            let logged = before.remove(&condition.name);
            let logged = logged.unwrap_or(Logged { state: begins_as, stall: None });
            if logged.state != state {
                let (volume, from) = (condition.name.clone(), logged.state);
                events.push(ConditionEvent::State { volume, from, to: state, reason });
            }
            let stall = update_stall(logged.stall, condition, now, &mut events);
            self.volumes.insert(condition.name.clone(), Logged { state, stall });
        }
        events
    }
}

fn update_stall(
    logged: Option<LoggedStall>,
    condition: &VolumeCondition,
    now: Instant,
    events: &mut Vec<ConditionEvent>,
) -> Option<LoggedStall> {
    let (volume, disk) = (condition.name.clone(), condition.disk.clone());
    let Some(stall) = condition.stall.clone() else {
        events.extend(logged.map(|LoggedStall { began, .. }| {
            let took = now.saturating_duration_since(began);
            ConditionEvent::Answer { volume, disk, took }
        }));
        return None;
    };
    let waited = stall.waited;
    match logged {
        Some(logged) if now.saturating_duration_since(logged.began) < logged.next => Some(logged),
        _ => {
            let began = logged.map_or_else(|| now.checked_sub(waited), |it| Some(it.began));
            let began = began.unwrap_or(now);
            let next = now.saturating_duration_since(began) * 2;
            events.push(ConditionEvent::Stall { volume, disk, stall, is_first: logged.is_none() });
            Some(LoggedStall { began, next })
        }
    }
}

impl ConditionEvent {
    fn log(&self) {
        match self {
            Self::State { volume, from, to, reason } => {
                let is_bad = matches!(to, VolumeState::Failing | VolumeState::Stalled);
                let reason = reason.as_deref();
                match is_bad {
                    true => tracing::error!(volume, %from, %to, reason, "volume state changed"),
                    false => tracing::info!(volume, %from, %to, reason, "volume state changed"),
                }
            }
            Self::Stall { volume, disk, stall, is_first } => {
                let text = match is_first {
                    true => "disk does not answer",
                    false => "disk still does not answer",
                };
                tracing::warn!(
                    volume,
                    disk,
                    operation = stall.operation,
                    cause = stall.cause.name(),
                    offset = stall.range.map(|range| range.offset),
                    length = stall.range.map(|range| range.len),
                    waited_s = stall.waited.as_secs(),
                    ios = stall.ios,
                    "{text}"
                );
            }
            Self::Answer { volume, disk, took } => {
                let took_s = took.as_secs();
                tracing::warn!(volume, disk, took_s, "disk answers again");
            }
        }
    }
}

#[cfg(test)]
mod tests;
