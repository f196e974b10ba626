//! Whether volumes are served without errors. Cheap enough to be asked every second.

use super::VolumeService;
use crate::disk::DiskStall;
use forebay_backend::Displaced;
use forebay_types::{IoError, VolumeId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What may be wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCondition {
    /// The volume.
    pub name: String,
    /// Its disk.
    pub disk: String,
    /// See [`crate::VolumeStatus::is_closed`].
    pub is_closed: bool,
    /// See [`crate::VolumeStatus::half_added`].
    pub half_added: bool,
    /// See [`crate::VolumeStatus::flush_failure`].
    pub flush_failure: Option<IoError>,
    /// See [`crate::VolumeStatus::stall`].
    pub stall: Option<DiskStall>,
    /// See [`crate::VolumeStatus::displaced`].
    pub displaced: Option<Displaced>,
    /// See [`crate::VolumeStatus::lost_sectors`].
    pub lost_sectors: u64,
    /// See [`crate::VolumeStatus::refused_lines`].
    pub refused_lines: u64,
}

impl VolumeService {
    /// Whether the volumes are served without errors. No disk and no worker can delay the answer.
    pub fn conditions(&self) -> Vec<VolumeCondition> {
        let mut stalls = self.stalls();
        let volumes = self.shared.volumes.all();
        let mut conditions: Vec<_> = volumes
            .iter()
            .map(|volume| VolumeCondition {
                name: volume.name.clone(),
                disk: volume.backend.description().name.clone(),
                is_closed: volume.is_closed.load(Ordering::Relaxed),
                half_added: volume.half_added.load(Ordering::Relaxed),
                flush_failure: volume.flush.failure(),
                stall: stalls.remove(&volume.id),
                displaced: volume.disk.presence.displaced(),
                lost_sectors: 0,
                refused_lines: 0,
            })
            .collect();
        for number in 0..self.shared.shards.len() {
            let shard = self.shared.shard(number);
            for (volume, condition) in volumes.iter().zip(&mut conditions) {
                if shard.has_volume(volume.id) {
                    let volume = shard.volume(volume.id);
                    condition.lost_sectors += volume.lost_sectors();
                    condition.refused_lines += volume.refused_lines() as u64;
                }
            }
        }
        conditions
    }

    /// The disks that do not answer.
    pub(super) fn stalls(&self) -> HashMap<VolumeId, DiskStall> {
        self.shared.unanswered.stalls(Instant::now(), self.shared.timeouts.stall)
    }
}
