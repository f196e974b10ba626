//! The settings of a volume in the terms of the runtime.

use forebay_config::{ReadLatency, TlsUse, VolumeSpec, WriteBackSpec};
use forebay_runtime::{Limits, ReadTarget, VolumeChange};
use std::time::Duration;

/// The settings that can change while the volume is served.
pub(super) fn runtime_change(spec: &VolumeSpec) -> VolumeChange {
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
