//! The dirty quota of a shard: how many lines are dirty, and how many may be.

use super::volume_quota::{Gauge, VolumeDirty};
use crate::index::shares::ShareLines;
use forebay_types::{VolumeId, WriteShare};

/// If no line has become dirty for this long, in milliseconds, the dirty limit counts as far away.
const WRITERS_IDLE_MS: u64 = 500;
/// The longest time between two ticks that is counted as dirty time, in milliseconds. Longer
/// intervals had no dirty lines, because ticks stop then.
const TICK_MS_MAX: u64 = 1_000;

/// Destage operations that an array of a few disks can do at once. More would only delay each other
/// and reads.
const OPERATIONS_MAX: u32 = 32;

/// The limits of dirty data in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Lines of a slab, the unit in which memory is given back.
    pub slab_lines: usize,
    /// The dirty limit in lines. At the limit, writers are throttled.
    pub dirty_lines_max: usize,
    /// The background limit in lines. Above it, dirty lines are destaged before they reach their
    /// age.
    pub dirty_lines_background: usize,
    /// Dirty lines are destaged between one and two times this age, in milliseconds, and up to 40 s
    /// later while the elevator runs without reaching them. Above the background limit, age is
    /// ignored.
    pub dirty_age_ms: u64,
    /// Destage operations of one volume in flight in this shard, for a flush, a change of mode or a
    /// run of an ordered volume.
    pub destage_operations_max: u32,
    /// Destage operations in flight per volume, over all shards, while writers are throttled.
    /// Otherwise their number rises as the dirty limit nears.
    pub destage_operations_all: u32,
}

impl ShardConfig {
    /// The default of [`ShardConfig::dirty_age_ms`].
    pub const DIRTY_AGE_MS: u64 = 5_000;
    /// The default of [`ShardConfig::slab_lines`]: a huge page of 2 MiB.
    pub const SLAB_LINES: usize = 512;

    /// Background destage operations in flight, over all shards: from `at_background` at the
    /// background limit up to the maximum at the dirty limit. The number rises and falls with the
    /// dirty lines, so it settles where the disk keeps up with the writers.
    pub(crate) fn operations_for(&self, dirty_lines: usize, at_background: u32) -> u32 {
        let range = self.dirty_lines_max.saturating_sub(self.dirty_lines_background).max(1) as u64;
        let over = dirty_lines.saturating_sub(self.dirty_lines_background) as u64;
        let most = self.destage_operations_all.max(1);
        let more = u64::from(most.saturating_sub(at_background)) * over.min(range) / range;
        at_background.min(most) + more as u32
    }

    /// Lines between `dirty_lines` and the dirty limit, and between the background limit and the
    /// dirty limit.
    pub(crate) fn distance(&self, dirty_lines: usize) -> (u64, u64) {
        let all = self.dirty_lines_max.saturating_sub(self.dirty_lines_background);
        let left = self.dirty_lines_max.saturating_sub(dirty_lines).min(all);
        (left as u64, all as u64)
    }

    /// Dirty lines at which throttling ends: somewhat below the dirty limit. Otherwise each
    /// completed destage would end it, and the disk would get one operation at a time.
    pub(crate) const fn dirty_lines_recovered(&self) -> usize {
        self.dirty_lines_max.saturating_sub(self.dirty_lines_max / 16 + 1)
    }

    /// The defaults for a shard of `slots` lines.
    pub const fn for_slots(slots: usize) -> Self {
        Self {
            slab_lines: Self::SLAB_LINES,
            // A third of the pool stays clean, so that reads find lines and a write always finds a
            // line to evict.
            dirty_lines_max: slots - slots / 3,
            dirty_lines_background: slots / 2,
            dirty_age_ms: Self::DIRTY_AGE_MS,
            destage_operations_max: OPERATIONS_MAX / 2,
            destage_operations_all: OPERATIONS_MAX,
        }
    }

    /// The configuration of one of `shards` such shards, which share the disks.
    #[must_use]
    pub fn among(self, shards: usize) -> Self {
        let each = OPERATIONS_MAX / u32::try_from(shards).unwrap_or(u32::MAX).max(1);
        let most = self.destage_operations_max;
        Self { destage_operations_max: each.max(2).min(most), ..self }
    }

    /// The same configuration for a shard of `slots` lines with this share for dirty lines; `None`
    /// leaves the limits as they are.
    #[must_use]
    pub const fn with_share(self, share: Option<WriteShare>, slots: usize) -> Self {
        let Some(share) = share else { return self };
        let dirty_lines_max = share.of(slots);
        // The same proportion as by default.
        let dirty_lines_background = dirty_lines_max - dirty_lines_max / 4;
        Self { dirty_lines_max, dirty_lines_background, ..self }
    }

    /// The same configuration with this dirty limit.
    #[must_use]
    pub(crate) const fn with_maximum(self, dirty_lines_max: usize) -> Self {
        // Destaged early, so that writers seldom wait.
        Self { dirty_lines_max, dirty_lines_background: dirty_lines_max / 2, ..self }
    }

    /// The dirty limit and the background limit of a part of `lines` of `all` lines, rounded down.
    const fn part_of(&self, lines: usize, all: usize) -> (usize, usize) {
        let all = if all == 0 { 1 } else { all as u64 };
        let max = self.dirty_lines_max as u64 * lines as u64 / all;
        let background = self.dirty_lines_background as u64 * lines as u64 / all;
        (max as usize, background as usize)
    }

    /// The same configuration for a shard that holds only `lines` of `all` lines.
    pub(super) fn scaled(self, lines: usize, all: usize) -> Self {
        let scale = |limit: usize| match limit {
            0 => 0,
            limit => (limit as u64 * lines as u64 / all.max(1) as u64).max(1) as usize,
        };
        Self {
            dirty_lines_max: scale(self.dirty_lines_max),
            dirty_lines_background: scale(self.dirty_lines_background),
            ..self
        }
    }
}

/// The dirty lines of all volumes of a shard, and its limits. Borrowed from
/// [`crate::Shard::quota`].
#[derive(Debug)]
pub struct DirtyQuota {
    /// The configured limits, for all lines of the shard.
    full: ShardConfig,
    /// The share for dirty lines that replaces these limits.
    share: Option<WriteShare>,
    /// The lines of the shard.
    slots: usize,
    /// The lines that the shard may hold beside pinned ranges.
    lines: usize,
    /// The limits for these lines.
    config: ShardConfig,
    /// Dirty lines, including frozen slots.
    dirty_lines: usize,
    /// Lines of destages in flight, including clean ones in whole stripes.
    destaging_lines: usize,
    /// When a line last became dirty, in milliseconds.
    last_dirtied_ms: u64,
    /// The limits of the common part: of the lines that no volume is guaranteed. Without shares,
    /// the same as `config`.
    common: ShardConfig,
    /// Dirty lines in the common part.
    common_lines: usize,
    /// The dirty lines of each volume, indexed by its number.
    volumes: Vec<VolumeDirty>,
    /// Whether a volume has shares, or limits of its own.
    has_shares: bool,
    /// Throttled parts.
    throttled: usize,
    /// The time up to which the dirty time of lines has been counted, in milliseconds.
    counted_ms: u64,
}

impl DirtyQuota {
    pub(crate) const fn new(config: ShardConfig, slots: usize) -> Self {
        Self {
            full: config,
            share: None,
            slots,
            lines: slots,
            config,
            dirty_lines: 0,
            destaging_lines: 0,
            last_dirtied_ms: 0,
            common: config,
            common_lines: 0,
            volumes: Vec::new(),
            has_shares: false,
            throttled: 0,
            counted_ms: 0,
        }
    }

    /// The current limits.
    pub const fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// Scales the limits: the shard holds at most `lines` lines beside pinned ranges. `shares` has
    /// the lines of each volume that has shares.
    pub(crate) fn set_lines(
        &mut self,
        lines: usize,
        shares: impl Iterator<Item = (VolumeId, ShareLines)>,
    ) {
        self.lines = lines;
        self.volumes.iter_mut().for_each(|of| of.lines = ShareLines::default());
        for (volume, lines) in shares {
            self.of_mut(volume).lines = lines;
        }
        self.apply();
    }

    /// Sets the most lines of a volume that may be dirty; `None` is the limit of the shard. If more
    /// are dirty, its writers are throttled until writeback has reduced them.
    pub(crate) fn set_lines_max(&mut self, volume: VolumeId, lines_max: Option<usize>) {
        self.of_mut(volume).lines_max = lines_max;
        self.apply();
    }

    /// Sets the share of the shard for dirty lines; `None` is the limit of its configuration. If
    /// more lines are dirty than the new limit allows, writers are throttled until writeback has
    /// reduced them.
    pub fn set_share(&mut self, share: Option<WriteShare>) {
        self.share = share;
        self.apply();
    }

    /// Derives all limits from the lines and the share for dirty lines. The limits of the parts add
    /// up to those of the shard.
    fn apply(&mut self) {
        self.config = self.limits_with(self.share);
        self.common = self.config;
        let full = self.full.with_share(self.share, self.slots);
        for of in &mut self.volumes {
            let min = of.lines.min;
            of.own = full.part_of(min, self.slots);
            self.common.dirty_lines_max -= of.own.0.min(self.common.dirty_lines_max);
            self.common.dirty_lines_background -= of.own.1.min(self.common.dirty_lines_background);
            of.limit_alone(full, self.slots);
        }
        self.common_lines = self.volumes.iter().map(VolumeDirty::common_lines).sum();
        self.has_shares = self.volumes.iter().any(VolumeDirty::has_limits);
    }

    fn of_mut(&mut self, volume: VolumeId) -> &mut VolumeDirty {
        let at = usize::from(volume.0);
        if self.volumes.len() <= at {
            self.volumes.resize(at + 1, VolumeDirty::default());
        }
        &mut self.volumes[at]
    }

    fn of(&self, volume: VolumeId) -> VolumeDirty {
        self.volumes.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    /// The limits that apply with a share for dirty lines, at the current size of the shard.
    pub fn limits_with(&self, share: Option<WriteShare>) -> ShardConfig {
        self.limits_at(share, self.lines)
    }

    /// The limits that apply with a share for dirty lines, if the shard holds at most `lines` lines
    /// beside pinned ranges.
    pub(crate) fn limits_at(&self, share: Option<WriteShare>, lines: usize) -> ShardConfig {
        self.full.with_share(share, self.slots).scaled(lines, self.slots)
    }

    /// Dirty lines, including frozen slots.
    pub const fn dirty_lines(&self) -> usize {
        self.dirty_lines
    }

    pub(crate) const fn throttled(&self) -> usize {
        self.throttled
    }

    /// Lines of a volume that may still become dirty.
    #[inline]
    pub(crate) fn free_lines(&self, volume: VolumeId) -> usize {
        let common = self.common.dirty_lines_max.saturating_sub(self.common_lines);
        if self.has_shares { self.free_lines_by_share(volume, common) } else { common }
    }

    #[cold]
    fn free_lines_by_share(&self, volume: VolumeId, common: usize) -> usize {
        let of = self.of(volume);
        let free = common + of.own_free_lines();
        let largest = of.largest.map(|limits| limits.dirty_lines_max);
        largest.map_or(free, |max| free.min(max.saturating_sub(of.dirty_lines)))
    }

    /// The most lines of a volume that may be dirty at once.
    pub(crate) fn lines_max(&self, volume: VolumeId) -> usize {
        let maxima = self.gauges(volume).map(|gauge| gauge.limits.dirty_lines_max);
        maxima.min().expect("there is a gauge")
    }

    /// What limits the dirty lines of a volume: the shard, and its largest share.
    fn gauges(&self, volume: VolumeId) -> impl Iterator<Item = Gauge> {
        let (destaging_lines, limits) = (self.destaging_lines, self.common);
        let common = Gauge { dirty_lines: self.common_lines, destaging_lines, limits };
        let of = if self.has_shares { self.of(volume) } else { VolumeDirty::default() };
        std::iter::once(of.with_common(common)).chain(of.largest_gauge())
    }

    /// Whether enough clean lines are left to evict some for a preload: fewer lines are dirty than
    /// the limit that applies without a configured share for dirty lines.
    pub(crate) fn leaves_clean_lines(&self) -> bool {
        self.dirty_lines < self.limits_with(None).dirty_lines_max
    }

    /// Whether the dirty lines exceed the background limit of a volume.
    pub(crate) fn is_over_background(&self, volume: VolumeId) -> bool {
        self.gauges(volume).any(|gauge| gauge.is_over_background())
    }

    /// Whether the dirty lines that are not in flight exceed the background limit of a volume.
    pub(crate) fn has_backlog(&self, volume: VolumeId) -> bool {
        self.gauges(volume).any(|gauge| gauge.has_backlog())
    }

    /// Whether the throttling of a volume may end; see [`ShardConfig::dirty_lines_recovered`].
    pub(crate) fn has_recovered(&self, volume: VolumeId) -> bool {
        self.gauges(volume).all(|gauge| gauge.has_recovered())
    }

    /// The distance of a volume to its dirty limit and the maximum of the distance, that from the
    /// background limit to the dirty limit, in lines. Without recent writers, the distance is the
    /// maximum.
    pub(crate) fn distance(&self, volume: VolumeId, now_ms: u64) -> (u64, u64) {
        let are_idle = self.are_writers_idle(now_ms);
        let distances = self.gauges(volume).map(|gauge| gauge.distance(are_idle));
        distances.reduce(nearer).expect("there is a gauge")
    }

    /// Whether no line has become dirty lately.
    pub(crate) const fn are_writers_idle(&self, now_ms: u64) -> bool {
        now_ms > self.last_dirtied_ms + WRITERS_IDLE_MS
    }

    /// The number of operations that this shard wants the elevator of a volume to have in flight.
    pub(crate) fn operations_for(&self, volume: VolumeId, at_background: u32) -> u32 {
        let operations = self
            .gauges(volume)
            .map(|gauge| gauge.limits.operations_for(gauge.dirty_lines, at_background));
        operations.max().expect("there is a gauge")
    }

    /// Counts a line of a volume that has become dirty.
    #[inline]
    pub(crate) fn count_dirtied(&mut self, volume: VolumeId, now_ms: u64) {
        self.add_dirty(volume);
        self.last_dirtied_ms = now_ms;
    }

    /// Counts a dirty line of an adopted table, or a frozen slot.
    #[inline]
    pub(crate) fn add_dirty(&mut self, volume: VolumeId) {
        self.dirty_lines += 1;
        let of = self.of_mut(volume);
        of.dirty_lines += 1;
        let is_common = of.dirty_lines > of.own.0;
        self.common_lines += usize::from(is_common);
    }

    /// Counts a line that has become clean, or a frozen slot that was freed.
    #[inline]
    pub(crate) fn count_cleaned(&mut self, volume: VolumeId) {
        let of = self.of_mut(volume);
        assert!(of.dirty_lines > 0, "more lines were cleaned than were dirty");
        let was_common = of.dirty_lines > of.own.0;
        of.dirty_lines -= 1;
        self.common_lines -= usize::from(was_common);
        self.dirty_lines -= 1;
    }

    pub(crate) fn count_destage_start(&mut self, volume: VolumeId, lines: usize) {
        self.destaging_lines += lines;
        self.of_mut(volume).destaging_lines += lines;
    }

    pub(crate) fn count_destage_end(&mut self, volume: VolumeId, lines: usize) {
        assert!(self.destaging_lines >= lines, "more lines left destages than entered them");
        self.destaging_lines -= lines;
        self.of_mut(volume).destaging_lines -= lines;
    }

    /// How many lines of a volume may be dirty besides those of other volumes, because of its
    /// guaranteed share, and how many in all, because of its largest share.
    pub fn limits_of(&self, volume: VolumeId) -> (usize, Option<usize>) {
        let of = self.of(volume);
        (of.own.0, of.largest.map(|limits| limits.dirty_lines_max))
    }

    /// Panics if the sums are wrong.
    pub(crate) fn self_check(&self) {
        let (mut dirty, mut destaging, mut common) = (0, 0, 0);
        for of in &self.volumes {
            dirty += of.dirty_lines;
            destaging += of.destaging_lines;
            common += of.common_lines();
        }
        assert_eq!(dirty, self.dirty_lines, "dirty lines of all volumes");
        assert_eq!(destaging, self.destaging_lines, "lines in destages");
        assert_eq!(common, self.common_lines, "dirty lines in the common part");
    }

    pub(crate) const fn count_throttled(&mut self) {
        self.throttled += 1;
    }

    pub(crate) const fn count_admitted(&mut self, parts: usize) {
        assert!(self.throttled >= parts, "more parts were admitted than throttled");
        self.throttled -= parts;
    }

    /// The milliseconds since the last call, for the counters of dirty time.
    pub(crate) fn take_passed_ms(&mut self, now_ms: u64) -> u64 {
        let passed_ms = now_ms.saturating_sub(self.counted_ms).min(TICK_MS_MAX);
        self.counted_ms = now_ms;
        passed_ms
    }
}

/// The nearer one of two distances to a limit, each with its maximum.
fn nearer(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let is_nearer =
        u128::from(other.0) * u128::from(one.1) < u128::from(one.0) * u128::from(other.1);
    if is_nearer { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets the lines of a shard without shares.
    fn set_lines(quota: &mut DirtyQuota, lines: usize) {
        quota.set_lines(lines, std::iter::empty());
    }

    #[test]
    fn the_limits_follow_the_size_and_return_to_those_of_all_lines() {
        let mut quota = DirtyQuota::new(ShardConfig::for_slots(600), 600);
        let limits = |quota: &DirtyQuota| {
            (quota.config().dirty_lines_max, quota.config().dirty_lines_background)
        };
        assert_eq!(limits(&quota), (400, 300));
        set_lines(&mut quota, 60);
        assert_eq!(limits(&quota), (40, 30));
        set_lines(&mut quota, 1);
        assert_eq!(limits(&quota), (1, 1), "a limit above zero stays above zero");
        set_lines(&mut quota, 600);
        assert_eq!(limits(&quota), (400, 300));
    }

    #[test]
    fn a_share_replaces_the_limits_and_follows_the_size() {
        let mut quota = DirtyQuota::new(ShardConfig::for_slots(600), 600);
        let limits = |quota: &DirtyQuota| {
            (quota.config().dirty_lines_max, quota.config().dirty_lines_background)
        };
        let share = |percent| WriteShare::of_percent(percent);
        quota.set_share(share(50));
        assert_eq!(limits(&quota), (300, 225));
        set_lines(&mut quota, 60);
        assert_eq!(limits(&quota), (30, 22));
        assert_eq!(quota.limits_with(share(75)).dirty_lines_max, 45);
        quota.set_share(share(75));
        assert_eq!(limits(&quota), (45, 33));
        quota.set_share(share(0));
        assert_eq!(limits(&quota), (0, 0), "nothing may be dirty");
        quota.set_share(None);
        assert_eq!(limits(&quota), (40, 30));
    }

    #[test]
    fn the_dirty_limits_leave_clean_lines_beside_the_pinned_ones() {
        for all in 1..200 {
            for lines in 1..=all {
                let retained = crate::retained_lines_max(lines);
                let largest = WriteShare::all().last();
                for share in [None, largest] {
                    let mut quota = DirtyQuota::new(ShardConfig::for_slots(all), all);
                    quota.set_share(share);
                    set_lines(&mut quota, lines - retained);
                    let limits = quota.config();
                    let (most, background) =
                        (limits.dirty_lines_max, limits.dirty_lines_background);
                    let has_clean = lines < 3 || most + retained < lines;
                    assert!(has_clean && background <= most, "{most} of {lines} of {all}");
                    assert!(most > 0 || (share.is_some() && all < 2), "nothing of {lines}");
                }
            }
        }
    }

    #[test]
    fn a_shard_among_others_has_at_most_the_configured_operations() {
        for (most, shards, expected) in [(16, 1, 16), (16, 4, 8), (16, 64, 2), (1, 1, 1), (1, 4, 1)]
        {
            let config = ShardConfig { destage_operations_max: most, ..ShardConfig::for_slots(64) };
            let operations = config.among(shards).destage_operations_max;
            assert_eq!(operations, expected, "{most} for one of {shards} shards");
        }
    }
}
