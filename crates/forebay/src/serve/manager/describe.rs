//! What the server says of itself and of its volumes: their status, from the runtime's figures and
//! from what the daemon knows beside them.

use super::{Daemon, problem};
use crate::alerts::alerts;
use crate::serve::{report, vault};
use forebay_api::{DurabilityClass, Memory, PowerStatus, Problem, Status, VolumeStatus};
use forebay_config::VolumeSpec;
use forebay_runtime::{MemoryStatus, RuntimeStatus, VolumeStatus as RuntimeVolume, memory_status};
use std::collections::HashMap;
use std::sync::PoisonError;

/// Describes a volume: its specification, the runtime's figures of it and of the memory, the power,
/// and the widest stripe.
pub(super) type Report =
    fn(&VolumeSpec, &RuntimeVolume, &MemoryStatus, Option<&PowerStatus>, u64) -> VolumeStatus;

impl Daemon {
    pub(super) fn spec_of(&self, name: &str) -> Result<VolumeSpec, Problem> {
        let found = self.state().volumes.iter().find(|spec| spec.name == name).cloned();
        found.ok_or_else(|| self.missing.problem(name))
    }

    /// The figures of all volumes without their miss-ratio curves, which take long to copy.
    pub(super) fn volume_figures(&self) -> Vec<RuntimeVolume> {
        self.runtime.status_without_curves().map(|figures| figures.volumes).unwrap_or_default()
    }

    pub(super) fn memory(&self, memory: &MemoryStatus) -> Memory {
        let ratio = self.ratio.status(memory, self.power_status().as_ref());
        report::memory(memory, self.sizing.status(), ratio)
    }

    /// Logs the effective cache ratio if it has changed. Not for each of many volumes: it depends
    /// on all of them.
    pub(in crate::serve) fn log_ratio(&self) {
        self.ratio
            .log(&self.ratio.status(&memory_status(&self.runtime), self.power_status().as_ref()));
    }

    pub(super) fn volume_status(&self, name: &str) -> Result<VolumeStatus, Problem> {
        let spec = self.spec_of(name)?;
        let figures = self.runtime.status_of(name).map_err(problem)?;
        let describe = self.describe(&figures.memory, report::volume);
        Ok(describe(&spec, &figures.volumes[0]))
    }

    /// The volumes of the runtime, in the order in which they were added, as `report` describes
    /// each.
    pub(super) fn volumes(&self, figures: &RuntimeStatus, report: Report) -> Vec<VolumeStatus> {
        let by_name: HashMap<&str, _> =
            figures.volumes.iter().map(|volume| (&*volume.name, volume)).collect();
        let describe = self.describe(&figures.memory, report);
        let state = self.state();
        let pairs = state.volumes.iter().filter_map(|spec| Some((spec, by_name.get(&*spec.name)?)));
        pairs.map(|(spec, volume)| describe(spec, volume)).collect()
    }

    /// Describes volumes, with what the daemon knows of them beside the runtime.
    pub(super) fn describe(
        &self,
        memory: &MemoryStatus,
        report: Report,
    ) -> impl Fn(&VolumeSpec, &RuntimeVolume) -> VolumeStatus {
        let (power, stripe_bytes_max) = (self.power_status(), self.runtime.stripe_bytes_max());
        let off = self.analyzer.cache_off();
        move |spec, volume| {
            let mut status = report(spec, volume, memory, power.as_ref(), stripe_bytes_max);
            status.notes = self.notes.of(&spec.name);
            status.shared = volume.is_shared;
            let is_shared = volume.is_shared && self.journals.is_shared(spec);
            status.class = DurabilityClass::of(spec.config.mode.into(), is_shared);
            match off.as_ref().filter(|off| off.names.contains(&spec.name)) {
                Some(off) => report::with_cache_off(status, off.off.clone()),
                None => status,
            }
        }
    }

    /// The status of the server, with the volumes as `report` describes them. `figures` are those
    /// of the runtime; without them, as during a stop, the status has only the fields that do not
    /// depend on the runtime.
    pub(super) fn status_with(&self, figures: Option<&RuntimeStatus>, report: Report) -> Status {
        let state = self.state();
        let base = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            rolled_back: self.is_rolled_back,
            reload_failure: self
                .reload_failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            listeners: state.listeners.iter().map(|it| it.address.clone()).collect(),
            io_engine: self.runtime.engine().to_owned(),
            ..Status::default()
        };
        drop(state);
        let Some(figures) = figures else { return Status { alerts: alerts(&base), ..base } };
        let status = Status {
            uptime_seconds: figures.uptime_seconds,
            workers: figures.workers as u32,
            polled_ms: figures.polled_us / 1_000,
            memory: self.memory(&figures.memory),
            patrol: report::patrol(figures),
            background: self.background.status(),
            log: crate::logging::status(),
            connections: figures.connections,
            journals: self.journals.status(),
            volumes: self.volumes(figures, report),
            missing: self.missing.status(),
            power: self.power_status(),
            vault: self.runtime.volumes().protectors().vault().map(|vault| vault::status(&vault)),
            ..base
        };
        let mut alerts = alerts(&status);
        let (site, of_site) = self.site.summary().unzip();
        alerts.extend(of_site.unwrap_or_default());
        alerts.sort_by_key(|alert| alert.severity);
        Status { site, alerts, ..status }
    }
}
