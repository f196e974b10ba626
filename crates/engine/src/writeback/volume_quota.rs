//! The dirty lines of one volume, and what its shares of the shard leave for them.
//!
//! A shard's lines consist of a part for each volume with a guaranteed share and of the common
//! part. In each, the same proportion may be dirty. The dirty lines of a volume first fill its own
//! part; those beyond it are in the common part, with those of all other volumes. So volumes that
//! have filled the common part do not throttle the writers of a volume whose own part has room, and
//! the clean lines that others may evict never run out. A volume with a largest share also has the
//! dirty limit of a shard of that size.

use super::quota::ShardConfig;
use crate::index::shares::ShareLines;

/// Dirty lines, and the limits that apply to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    pub dirty_lines: usize,
    /// Lines of destages in flight.
    pub destaging_lines: usize,
    pub limits: ShardConfig,
}

impl Gauge {
    /// Whether the dirty lines exceed the background limit.
    pub(crate) const fn is_over_background(&self) -> bool {
        self.dirty_lines > self.limits.dirty_lines_background
    }

    /// Whether the dirty lines that are not in flight exceed the background limit.
    pub(crate) const fn has_backlog(&self) -> bool {
        self.dirty_lines.saturating_sub(self.destaging_lines) > self.limits.dirty_lines_background
    }

    /// The distance to the dirty limit, and its maximum. See [`ShardConfig::distance`].
    pub(crate) fn distance(&self, are_writers_idle: bool) -> (u64, u64) {
        self.limits.distance(if are_writers_idle { 0 } else { self.dirty_lines })
    }

    /// Whether throttling may end; see [`ShardConfig::dirty_lines_recovered`].
    pub(crate) const fn has_recovered(&self) -> bool {
        self.dirty_lines <= self.limits.dirty_lines_recovered()
    }
}

/// The dirty lines of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VolumeDirty {
    /// Dirty lines, including frozen slots.
    pub dirty_lines: usize,
    pub destaging_lines: usize,
    pub lines: ShareLines,
    /// The most lines that may be dirty, whatever the size of the shard.
    pub lines_max: Option<usize>,
    /// The dirty limit and the background limit of its own part.
    pub own: (usize, usize),
    /// The limits of its largest share, or of [`Self::lines_max`] if that is less.
    pub largest: Option<ShardConfig>,
}

impl VolumeDirty {
    /// Derives the limits of the volume alone from its largest share of a shard, whose limits for
    /// all `slots` lines are `full`.
    pub(crate) fn limit_alone(&mut self, full: ShardConfig, slots: usize) {
        let share = self.lines.max.map(|lines| full.scaled(lines, slots));
        let limits = share.unwrap_or(full);
        let fixed = self.lines_max.filter(|&lines| lines < limits.dirty_lines_max);
        self.largest = fixed.map(|lines| limits.with_maximum(lines)).or(share);
    }

    /// Whether it has a part or limits of its own.
    pub(crate) const fn has_limits(&self) -> bool {
        self.lines.min > 0 || self.largest.is_some()
    }

    /// Dirty lines in the common part.
    pub(crate) const fn common_lines(&self) -> usize {
        self.dirty_lines.saturating_sub(self.own.0)
    }

    /// Lines that may still become dirty in its own part.
    pub(crate) const fn own_free_lines(&self) -> usize {
        self.own.0.saturating_sub(self.dirty_lines)
    }

    /// The gauge of its largest share.
    pub(crate) fn largest_gauge(&self) -> Option<Gauge> {
        let Self { dirty_lines, destaging_lines, .. } = *self;
        self.largest.map(|limits| Gauge { dirty_lines, destaging_lines, limits })
    }

    /// The gauge of its own part and the common one together.
    pub(crate) fn with_common(&self, common: Gauge) -> Gauge {
        let limits = ShardConfig {
            dirty_lines_max: common.limits.dirty_lines_max + self.own.0,
            dirty_lines_background: common.limits.dirty_lines_background + self.own.1,
            ..common.limits
        };
        let dirty_lines = common.dirty_lines + self.dirty_lines.min(self.own.0);
        Gauge { dirty_lines, limits, ..common }
    }
}
