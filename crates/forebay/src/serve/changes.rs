//! The settings and the progress of changes in the terms of the runtime and of the API.

use forebay_api::Progress;
use forebay_config::{ReadLatency, TlsUse, VolumeSpec, WriteBackSpec};
use forebay_control::ProgressFn;
use forebay_runtime::{Limits, ReadTarget, VolumeChange};
use std::cell::Cell;
use std::time::Duration;

/// The settings that can change while the volume is served. `has_pins` if the pinned ranges are to
/// be replaced.
pub(super) fn runtime_change(spec: &VolumeSpec, has_pins: bool) -> VolumeChange {
    VolumeChange {
        description: spec.description.clone().unwrap_or_default(),
        mode: spec.mode,
        read_only: spec.read_only,
        frozen: spec.frozen,
        prefetch: spec.prefetch,
        warm: spec.warm,
        learn: spec.learn,
        gather_below: spec.gather_below.set(),
        write_back: limits(&spec.write_back),
        slow: spec.slow_us.map(Duration::from_micros),
        tls_only: spec.tls == TlsUse::Required,
        unsafe_ups: spec.unsafe_supply,
        pins: has_pins.then(|| spec.pin.clone()),
    }
}

/// The limits of its writeback.
pub(super) fn limits(spec: &WriteBackSpec) -> Limits {
    Limits {
        target: match spec.read_latency {
            ReadLatency::Idle => ReadTarget::Idle,
            ReadLatency::Off => ReadTarget::Off,
            ReadLatency::Micros(us) => ReadTarget::Micros(us),
        },
        bytes: spec.rate.unwrap_or(u64::MAX),
        ios: spec.iops.unwrap_or(u64::MAX),
        age_s: spec.age_s.unwrap_or(u64::MAX),
    }
}

/// Logs that a volume was frozen or thawed.
pub(super) fn log_frozen(volume: &str, is_frozen: bool) {
    match is_frozen {
        true => tracing::info!(%volume, "volume frozen, it admits nothing into memory"),
        false => tracing::info!(%volume, "volume thawed"),
    }
}

/// Reports the remaining dirty bytes as progress. The total is the largest value so far.
pub(super) fn reporter(progress: ProgressFn<'_>) -> impl FnMut(u64) {
    let total = Cell::new(0);
    move |left| {
        total.set(left.max(total.get()));
        progress(Progress { dirty_bytes_left: left, dirty_bytes_total: total.get() });
    }
}
