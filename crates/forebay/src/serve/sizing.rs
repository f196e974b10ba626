//! The size of the cache while the server runs: the one that the operator has set, or one that
//! grows as long as that brings hits; and less while memory is short. [`SizeControl`], which the
//! simulator uses too, decides; a thread reads the figures of the machine and of the control
//! groups, and the runtime carries the decisions out.
//!
//! Settings that were changed by a command are recorded in the pool, so that the next server uses
//! them, too.

mod driver;
mod words;

pub(super) use driver::start;

use super::memory;
use crate::report::{problem as problem_of, problem_of_kind};
use forebay_api::{ErrorKind, MemorySizing, MemoryState, Problem};
use forebay_config::{MemInfo, MemorySetting, MemorySettings, ServerChange};
use forebay_runtime::{
    GrowthReason, MachineFigures, MemoryBounds, MemorySample, MemoryUse, ResizeError, Runtime,
    SizeControl, SizeDecision, SizeReason, SizeSettings, gain_per_doubling,
};
use forebay_types::{Action, Fault, Size};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sizes of the cache, and how they are decided.
pub(super) struct Sizing {
    runtime: Arc<Runtime>,
    /// Held while a size is decided and set, so that no decision is based on former settings.
    state: Mutex<SizingState>,
}

struct SizingState {
    settings: MemorySettings,
    /// Those of the settings that a command has changed.
    changed: ServerChange,
    control: SizeControl,
    last: Option<Last>,
    log: ShortageLog,
}

/// The last decision.
struct Last {
    sample: MemorySample,
    decision: SizeDecision,
    /// The control group that limits the available memory.
    limited_by: Option<String>,
}

/// The figures of the machine and the control groups at one moment.
struct Figures {
    /// The time since the machine's boot, or since the start if that is unknown, in milliseconds.
    now_ms: u64,
    machine: MemInfo,
    /// How long a program waited for memory since the last figures, in microseconds.
    stalled_us: u64,
    /// How often a control group reached a limit since then.
    limit_events: u64,
}

impl Sizing {
    /// The sizing of a runtime with the configured settings, and with those recorded in its pool.
    pub(super) fn new(runtime: Arc<Runtime>, configured: MemorySettings) -> Self {
        let recorded = words::decode(runtime.memory_settings());
        let (settings, changed) = match configured.with(&recorded) {
            Ok(settings) => (settings, recorded),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "memory settings recorded in the pool contradict the configuration, ignored"
                );
                (configured, ServerChange::default())
            }
        };
        let control = SizeControl::new(runtime.memory_bounds().now_bytes);
        let log = ShortageLog::default();
        let state = Mutex::new(SizingState { settings, changed, control, last: None, log });
        Self { runtime, state }
    }

    fn state(&self) -> MutexGuard<'_, SizingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes settings as a command requests. The next server uses them, too, if it adopts the
    /// pool.
    ///
    /// # Errors
    /// A size is out of bounds, contradicts another one, or does not leave the system its reserve.
    /// Nothing changes then.
    pub(super) fn set(&self, change: &ServerChange) -> Result<(), Problem> {
        let mut state = self.state();
        self.apply(&mut state, change)?;
        let ServerChange { memory, memory_min, memory_max, memory_reserve, .. } = *change;
        let changed = &mut state.changed;
        changed.memory = memory.or(changed.memory);
        changed.memory_min = memory_min.or(changed.memory_min);
        changed.memory_max = memory_max.or(changed.memory_max);
        changed.memory_reserve = memory_reserve.or(changed.memory_reserve);
        self.runtime.record_memory_settings(words::encode(changed));
        Ok(())
    }

    /// Changes settings because the configuration has changed.
    ///
    /// # Errors
    /// As [`Sizing::set`].
    pub(super) fn configure(&self, change: &ServerChange) -> Result<(), Problem> {
        let mut state = self.state();
        self.apply(&mut state, change)?;
        // The configuration overrides what commands have set.
        let changed = &mut state.changed;
        changed.memory = changed.memory.filter(|_| change.memory.is_none());
        changed.memory_min = changed.memory_min.filter(|_| change.memory_min.is_none());
        changed.memory_max = changed.memory_max.filter(|_| change.memory_max.is_none());
        changed.memory_reserve = changed.memory_reserve.filter(|_| change.memory_reserve.is_none());
        self.runtime.record_memory_settings(words::encode(changed));
        Ok(())
    }

    fn apply(&self, state: &mut SizingState, change: &ServerChange) -> Result<(), Problem> {
        let invalid =
            |error: &dyn Fault| Problem::of(ErrorKind::Invalid, error, &Action::to_string);
        let settings = state.settings.with(change).map_err(|error| invalid(&error))?;
        let bounds = self.runtime.memory_bounds();
        if let Some(MemorySetting::Bytes(bytes)) = change.memory {
            self.runtime.check_memory(bytes).map_err(|error| problem_of(&error))?;
        }
        for (key, setting) in [("memory-min", change.memory_min), ("memory-max", change.memory_max)]
        {
            check_bound(key, setting, &bounds)?;
        }
        let is_size_set = change.memory.is_some();
        let (bytes, control) = state.control.changed(&sizes(&settings), &bounds, is_size_set);
        if bytes > bounds.now_bytes {
            let pool_bytes = self.runtime.pool_used_bytes();
            let asked_bytes = match change.memory {
                Some(MemorySetting::Bytes(asked_bytes)) => asked_bytes,
                _ => bytes,
            };
            memory::check_growth(asked_bytes, settings.reserve, pool_bytes)
                .map_err(|error| invalid(&error))?;
        }
        if bytes != bounds.now_bytes {
            self.runtime.set_memory(bytes).map_err(|error| match error {
                ResizeError::Stopping => problem_of_kind(ErrorKind::Stopping, &error),
                error => problem_of(&error),
            })?;
        }
        (state.settings, state.control) = (settings, control);
        // Until the next sample, the last decision would describe other settings.
        state.last = None;
        tracing::info!(
            memory = %settings.memory,
            min = %settings.min,
            max = %settings.max,
            reserve = %settings.reserve,
            size = %Size(self.runtime.memory_bounds().now_bytes),
            "memory set"
        );
        Ok(())
    }

    /// Checks that there is memory for a volume in memory beside the cache and the reserve.
    ///
    /// # Errors
    /// There is too little.
    pub(super) fn check_beside(&self, volume: &str, bytes: u64) -> Result<(), Problem> {
        let reserve = self.state().settings.reserve;
        let cache_bytes = self.runtime.memory_bounds().now_bytes;
        let all_bytes = cache_bytes.saturating_add(bytes);
        let checked = memory::check_growth(all_bytes, reserve, self.runtime.pool_used_bytes());
        checked.map_err(|error| {
            let message = format!(
                "volume '{volume}' takes {} of memory beside the cache's {}: {error}",
                Size(bytes),
                Size(cache_bytes)
            );
            let remedy = "make the volume or the cache smaller, or free memory";
            Problem::new(ErrorKind::Invalid, message, remedy)
        })
    }

    /// Decides from the figures, and carries the decision out. Returns after how many milliseconds
    /// the figures are to be read again at the latest.
    fn follow(&self, figures: &Figures) -> u64 {
        let mut state = self.state();
        let (found, settings) = (self.runtime.memory_use(), sizes(&state.settings));
        if state.control.is_growth_due(&settings, figures.now_ms) {
            self.decide_growth(&mut state, &found, figures.now_ms);
        }
        let machine = MachineFigures {
            now_ms: figures.now_ms,
            available_bytes: figures.machine.available.bytes,
            excess_bytes: figures.machine.excess_bytes,
            reserve_bytes: state.settings.reserve_bytes(&figures.machine),
            stalled_us: figures.stalled_us,
            limit_events: figures.limit_events,
        };
        let (sample, decision) = state.control.decide(&settings, &found, &machine);
        let group = figures.machine.available.group.as_ref();
        let limited_by = group.map(|group| group.name.clone());
        state.log.report(&sample, &decision, limited_by.as_deref());
        if decision.bytes != sample.size_bytes
            && let Err(error) = self.runtime.set_memory(decision.bytes)
            // Ranges may have been pinned meanwhile: the next decision considers them.
            && !matches!(error, ResizeError::Stopping | ResizeError::Pinned { .. })
        {
            tracing::warn!(%error, "cannot change the size of the cache");
        }
        state.last = Some(Last { sample, decision, limited_by });
        decision.next_ms
    }

    /// Decides whether the cache should be larger, because that would bring hits.
    fn decide_growth(&self, state: &mut SizingState, found: &MemoryUse, now_ms: u64) {
        let Ok(status) = self.runtime.status() else { return };
        let sizes_of = status.volumes.into_iter().filter_map(|volume| volume.sizes);
        let sizes_of: Vec<_> = sizes_of.collect();
        let former_bytes = state.control.target_bytes();
        // Counts lines, not allocated memory: memory is allocated ahead of its use.
        let memory = &status.memory;
        let used_bytes = memory.used_bytes + memory.patrol.parity_slot_bytes;
        let unused_bytes = memory.pool_bytes.saturating_sub(used_bytes);
        let gain = gain_per_doubling(&sizes_of);
        let settings = sizes(&state.settings);
        state.control.decide_growth(&settings, &found.bounds, now_ms, unused_bytes, gain);
        if let reason @ GrowthReason::Gain { gain } = state.control.growth_reason() {
            tracing::info!(
                memory = %Size(state.control.target_bytes()),
                former = %Size(former_bytes),
                gain,
                reason = reason.sentence(),
                "more memory would bring hits"
            );
        }
    }

    /// The last decision; `None` before the first one, and while the machine's memory is unknown.
    pub(super) fn status(&self) -> Option<MemorySizing> {
        let state = self.state();
        let Last { sample, decision, limited_by } = state.last.as_ref()?;
        let mut reason = decision.sentence(sample);
        let bounds = self.runtime.memory_bounds();
        let max_bytes = match state.settings.memory {
            MemorySetting::Auto => sizes(&state.settings).most_bytes(&bounds),
            MemorySetting::Bytes(_) => sample.wanted_bytes,
        };
        if (state.settings.memory, decision.reason) == (MemorySetting::Auto, SizeReason::Wanted) {
            reason += "; ";
            reason += &state.control.growth_reason().sentence();
        }
        Some(MemorySizing {
            memory: state.settings.memory.to_string(),
            max_bytes,
            wanted_bytes: sample.wanted_bytes,
            min_bytes: sample.least_bytes,
            reserve_bytes: sample.reserve_bytes,
            available_bytes: sample.available_bytes,
            limited_by: limited_by.clone(),
            state: match decision.reason {
                SizeReason::Wanted => MemoryState::Steady,
                reason if reason.is_short() => MemoryState::Short,
                SizeReason::Growing => MemoryState::Growing,
                _ => MemoryState::Recovering,
            },
            reason,
        })
    }
}

/// The settings in bytes.
fn sizes(settings: &MemorySettings) -> SizeSettings {
    let size = |setting| match setting {
        MemorySetting::Auto => None,
        MemorySetting::Bytes(bytes) => Some(bytes),
    };
    let MemorySettings { memory, min, max, .. } = *settings;
    SizeSettings { memory: size(memory), min: size(min), max: size(max) }
}

/// Checks that the pool can have a minimum or maximum.
fn check_bound(
    key: &str,
    setting: Option<MemorySetting>,
    bounds: &MemoryBounds,
) -> Result<(), Problem> {
    let most = Size(bounds.most_bytes);
    match setting {
        Some(MemorySetting::Bytes(bytes)) if bytes > most.bytes() => {
            let size = Size(bytes);
            let message =
                format!("{key} {size} exceeds the maximum of {most}, which is fixed at the start");
            let remedy = format!("set {key} to {most} or less, or restart the server with more");
            Err(Problem::new(ErrorKind::Invalid, message, remedy))
        }
        _ => Ok(()),
    }
}

/// Logs the beginning and the end of a shortage, and each growth, but not each step of a shrink.
#[derive(Default)]
struct ShortageLog {
    is_short: bool,
    is_least: bool,
}

impl ShortageLog {
    fn report(&mut self, sample: &MemorySample, decision: &SizeDecision, limited_by: Option<&str>) {
        let whole = |bytes: u64| Size(bytes >> 20 << 20);
        let (memory, available) = (Size(decision.bytes), whole(sample.available_bytes));
        let reserve = whole(sample.reserve_bytes);
        if !decision.reason.is_short() {
            if decision.bytes > sample.size_bytes {
                let wanted = Size(sample.wanted_bytes);
                let reason = decision.sentence(sample);
                tracing::info!(%memory, %wanted, %available, %reserve, reason, "cache grows");
            }
            // The next shrink is a shortage of its own only after the end of this one.
            if decision.reason == SizeReason::Wanted || decision.bytes > sample.size_bytes {
                (self.is_short, self.is_least) = (false, false);
            }
            return;
        }
        if decision.bytes < sample.size_bytes && !self.is_short {
            let (former, reason) = (Size(sample.size_bytes), decision.sentence(sample));
            tracing::warn!(
                %memory,
                %former,
                %available,
                %reserve,
                limited_by,
                reason,
                "memory is short, the cache shrinks"
            );
        }
        let is_least = decision.bytes == sample.least_bytes;
        if is_least && !self.is_least {
            tracing::warn!(
                %memory,
                %available,
                %reserve,
                limited_by,
                "memory is short, the cache is at its minimum"
            );
        }
        (self.is_short, self.is_least) = (true, self.is_least || is_least);
    }
}
