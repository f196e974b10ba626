//! The pinned ranges of volumes, and how much may be pinned.
//!
//! A shard keeps the lines of pinned ranges that it has ([`forebay_engine::Shard::pinned`]); the
//! thread of the warm-ups reads those that it lacks. This module decides what may be pinned: half
//! of the pool for all volumes together, and in no shard more than it retains. Both limits scale
//! with the pool, and the pool is not shrunk below the size that the pinned ranges need.

use crate::locks::Lock;
use crate::pool::{Pool, SLAB_BYTES};
use crate::shared::Volume;
use forebay_engine::retained_lines_max;
use forebay_types::{Blame, Bytes, Fault, LINE_BYTES, PinnedRanges, Remedy};
use forebay_volume::pinned_lines_by_shard;
use std::sync::Arc;

/// Why ranges of a volume are not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// A range ends past the end of the volume.
    #[error(
        "a range to be pinned ends beyond the end of volume '{name}' ({:#})",
        Bytes(*size_bytes)
    )]
    BeyondEnd {
        /// The volume.
        name: String,
        /// Its size.
        size_bytes: u64,
    },
    /// There is too little memory for the ranges.
    #[error(
        "the pinned ranges of volume '{name}' would take {:#} of memory: all \
         volumes together may pin {:#}, half of the memory for data, and others have pinned \
         {:#}",
        Bytes(*needed_bytes), Bytes(*bytes_max), Bytes(*others_bytes)
    )]
    Quota {
        /// The volume.
        name: String,
        /// Bytes of all lines of its ranges.
        needed_bytes: u64,
        /// Bytes of the pinned ranges of other volumes.
        others_bytes: u64,
        /// The limit for all volumes.
        bytes_max: u64,
    },
    /// One shard of the pool has too little memory for its part of the ranges.
    #[error(
        "the pinned ranges of volume '{name}' and others would take {:#} in one \
         shard of the cache, which can pin at most {:#}",
        Bytes(*needed_bytes), Bytes(*bytes_max)
    )]
    Uneven {
        /// The volume.
        name: String,
        /// Bytes of the lines in that shard.
        needed_bytes: u64,
        /// The limit of a shard.
        bytes_max: u64,
    },
}

impl Fault for PinError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::BeyondEnd { .. } => "pin ranges inside the volume".into(),
            Self::Quota { .. } | Self::Uneven { .. } => {
                Remedy::from("pin less").or("unpin other ranges first")
            }
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

/// A snapshot of the pins of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinStatus {
    /// Lines of its pinned ranges.
    pub pinned_lines: u64,
    /// Pinned lines that are in the pool, in whole or in part.
    pub loaded_lines: u64,
    /// Why the ranges with which the volume was added are not pinned.
    pub refused: Option<PinError>,
    /// The disk fails reads of pinned lines that are not in the pool.
    pub is_failing: bool,
}

/// The pinned ranges of a volume, as its management sees them.
#[derive(Debug, Default)]
pub(crate) struct VolumePins(Lock<Pins>);

/// Pinned ranges and what they take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    /// The ranges, clipped to the volume.
    pub ranges: Arc<PinnedRanges>,
    /// The lines of the ranges that each shard owns; empty if nothing was ever pinned.
    pub lines_by_shard: Vec<u64>,
    refused: Option<PinError>,
    is_failing: bool,
}

impl Pins {
    /// The lines of the ranges in one shard.
    fn lines_in(&self, shard: usize) -> u64 {
        self.lines_by_shard.get(shard).copied().unwrap_or_default()
    }
}

impl VolumePins {
    pub(crate) fn get(&self) -> Pins {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, pins: Pins) {
        *self.0.lock() = pins;
    }

    /// Records why the ranges with which the volume was added are not pinned.
    pub(crate) fn set_refused(&self, error: PinError) {
        self.0.lock().refused = Some(error);
    }

    /// Records whether the disk fails the reads of lines that are not in the pool.
    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.0.lock().is_failing = is_failing;
    }

    pub(crate) fn status(&self, loaded_lines: u64) -> PinStatus {
        let pins = self.0.lock();
        PinStatus {
            pinned_lines: pins.ranges.lines(),
            loaded_lines,
            refused: pins.refused.clone(),
            is_failing: pins.is_failing,
        }
    }
}

/// The lines of the pool that all volumes together may pin.
pub(crate) fn pinned_lines_max(pool: &Pool) -> u64 {
    pool.recorded_lines() as u64 * pool.shards() as u64 / 2
}

/// The smallest shard, in lines of whole slabs, with which all these ranges may be pinned; zero if
/// there are none.
pub(crate) fn shard_lines_min(pool: &Pool, pins: &[Pins]) -> usize {
    let shards = pool.shards();
    let half = pins.iter().map(|pins| pins.ranges.lines()).sum::<u64>();
    let lines_in = |shard| pins.iter().map(|pins| pins.lines_in(shard)).sum::<u64>();
    // A shard of whole slabs retains five eighths of its lines.
    let most = (0..shards).map(|shard| (lines_in(shard) * 8).div_ceil(5)).max().unwrap_or(0);
    let lines = (half * 2).div_ceil(shards as u64).max(most);
    (lines.next_multiple_of(SLAB_BYTES / LINE_BYTES) as usize).min(pool.shard_slots())
}

/// Checks whether these ranges may replace the pinned ranges of a volume, beside the pinned ranges
/// of the other volumes. Ranges that take no more than before are accepted, even beyond the quota.
/// `shards` is the number of shards.
pub(crate) fn check(
    pool: &Pool,
    shards: usize,
    volume: &Volume,
    ranges: &PinnedRanges,
    others: &[Pins],
) -> Result<Pins, PinError> {
    let size_bytes = volume.backend.description().size_bytes;
    let mut ranges = ranges.clone();
    if ranges.is_all() {
        ranges.clip(size_bytes);
    }
    let name = volume.name.clone();
    if !ranges.fits(size_bytes) {
        return Err(PinError::BeyondEnd { name, size_bytes });
    }
    let (before, lines) = (volume.pins.get(), ranges.lines());
    let others_lines = others.iter().map(|pins| pins.ranges.lines()).sum::<u64>();
    let lines_max = pinned_lines_max(pool);
    if lines > before.ranges.lines() && others_lines + lines > lines_max {
        return Err(PinError::Quota {
            name,
            needed_bytes: lines.saturating_mul(LINE_BYTES),
            others_bytes: others_lines * LINE_BYTES,
            bytes_max: lines_max * LINE_BYTES,
        });
    }
    let lines_by_shard = pinned_lines_by_shard((volume.id, volume.stripes), &ranges, shards);
    let lines_max = retained_lines_max(pool.recorded_lines()) as u64;
    for (shard, &lines) in lines_by_shard.iter().enumerate() {
        let all = lines + others.iter().map(|pins| pins.lines_in(shard)).sum::<u64>();
        if lines > before.lines_in(shard) && all > lines_max {
            let (needed_bytes, bytes_max) = (all * LINE_BYTES, lines_max * LINE_BYTES);
            return Err(PinError::Uneven { name, needed_bytes, bytes_max });
        }
    }
    Ok(Pins { ranges: Arc::new(ranges), lines_by_shard, ..Pins::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{MIB, quiet_config, volume};
    use crate::{Runtime, VolumeError};
    use forebay_backend::MemoryBackend;
    use forebay_types::{ByteRange, Stripes};
    use forebay_volume::shard_of;

    #[test]
    fn a_shard_that_would_get_too_much_refuses() {
        let server = forebay_frontend_nbd::NbdServer::new();
        let runtime = Runtime::start(quiet_config(256 * MIB), &server).unwrap();
        let (shards, pool) = (runtime.shared().shards.len(), &runtime.shared().pool);
        assert!(shards > 1, "all lines are in one shard");
        let disk = Arc::new(MemoryBackend::new(1 << 30).unwrap());
        runtime.add_volume(volume("v", disk)).unwrap();
        let id = runtime.named("v").unwrap().id;
        // Rows of four regions that belong to the first shard.
        let row_bytes = 4 * MIB;
        let mut rows = (0..1 << 30)
            .step_by(row_bytes as usize)
            .filter(|&offset| shard_of(id, Stripes::NONE, offset, shards) == 0);
        let fits = retained_lines_max(pool.shard_slots()) as u64 * LINE_BYTES / row_bytes;
        let mut pins = PinnedRanges::default();
        for offset in rows.by_ref().take(fits as usize) {
            pins.add(ByteRange::new(offset, row_bytes));
            runtime.set_pins("v", &pins).unwrap();
        }
        let before = runtime.status().unwrap().memory.pinned_bytes;
        assert_eq!(before, fits * row_bytes);
        let mut more = pins.clone();
        more.add(ByteRange::new(rows.next().unwrap(), row_bytes));
        let refused = runtime.set_pins("v", &more);
        let Err(VolumeError::Pin(PinError::Uneven { needed_bytes, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(needed_bytes, (fits + 1) * row_bytes);
        assert_eq!(runtime.status().unwrap().memory.pinned_bytes, before);
        // Other shards have space.
        let mut others = (0..1 << 30)
            .step_by(row_bytes as usize)
            .filter(|&offset| shard_of(id, Stripes::NONE, offset, shards) == 1);
        pins.add(ByteRange::new(others.next().unwrap(), row_bytes));
        runtime.set_pins("v", &pins).unwrap();
        runtime.stop(|_| {}).unwrap();
    }
}
