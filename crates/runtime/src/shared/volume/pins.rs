//! The pinned ranges of a volume.
//!
//! A shard keeps the lines of pinned ranges that it has ([`forebay_engine::Shard::pinned`]); the
//! thread of the warm-ups reads those that it lacks.

use crate::platform::locks::Lock;
use forebay_types::{Blame, Bytes, Fault, PinnedRanges, Remedy};
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
    /// Ranges with the lines that each shard owns of them.
    pub(crate) fn new(ranges: PinnedRanges, lines_by_shard: Vec<u64>) -> Self {
        Self { ranges: Arc::new(ranges), lines_by_shard, ..Self::default() }
    }

    /// The lines of the ranges in one shard.
    pub(crate) fn lines_in(&self, shard: usize) -> u64 {
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
