//! What an analysis of the benefit judges: the server and its volumes as they are at its start.

use super::Daemon;
use forebay_api::{AnalysisSubject, AnalyzedVolume, Status, VolumeStatus};
use forebay_control::Manager;
use std::sync::Arc;

/// Has each analysis record what it judges.
pub(in crate::serve) fn describe(daemon: &Arc<Daemon>) {
    let judged = Arc::downgrade(daemon);
    daemon.analyzer.describe_by(move || Some(subject(judged.upgrade()?.status())));
}

fn subject(status: Status) -> AnalysisSubject {
    AnalysisSubject {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        version: status.version,
        memory_bytes: status.memory.limit_bytes,
        volumes: status.volumes.into_iter().map(analyzed).collect(),
    }
}

fn analyzed(volume: VolumeStatus) -> AnalyzedVolume {
    AnalyzedVolume {
        name: volume.name,
        backing: volume.backing,
        size_bytes: volume.size_bytes,
        rotational: volume.geometry.rotational,
        stripe_bytes: volume.geometry.stripe_bytes,
        mode: volume.mode.to_string(),
        protection: volume.protection,
        ordered: volume.ordered,
        prefetch: volume.prefetch,
    }
}
