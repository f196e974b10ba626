//! The dirty quota of a shard: how many lines are dirty, and how many may be.

use forebay_types::WriteShare;

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
    fn operations_for(&self, dirty_lines: usize, at_background: u32) -> u32 {
        let range = self.dirty_lines_max.saturating_sub(self.dirty_lines_background).max(1) as u64;
        let over = dirty_lines.saturating_sub(self.dirty_lines_background) as u64;
        let most = self.destage_operations_all.max(1);
        let more = u64::from(most.saturating_sub(at_background)) * over.min(range) / range;
        at_background.min(most) + more as u32
    }

    /// Lines between `dirty_lines` and the dirty limit, and between the background limit and the
    /// dirty limit.
    fn distance(&self, dirty_lines: usize) -> (u64, u64) {
        let all = self.dirty_lines_max.saturating_sub(self.dirty_lines_background);
        let left = self.dirty_lines_max.saturating_sub(dirty_lines).min(all);
        (left as u64, all as u64)
    }

    /// Dirty lines at which throttling ends: somewhat below the dirty limit. Otherwise each
    /// completed destage would end it, and the disk would get one operation at a time.
    const fn dirty_lines_recovered(&self) -> usize {
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

    /// The same configuration for a shard that holds only `lines` of `all` lines.
    fn scaled(self, lines: usize, all: usize) -> Self {
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
            throttled: 0,
            counted_ms: 0,
        }
    }

    /// The current limits.
    pub const fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// Scales the limits: the shard holds at most `lines` lines beside pinned ranges.
    pub(crate) fn set_lines(&mut self, lines: usize) {
        self.lines = lines;
        self.config = self.limits_with(self.share);
    }

    /// Sets the share of the shard for dirty lines; `None` is the limit of its configuration. If
    /// more lines are dirty than the new limit allows, writers are throttled until writeback has
    /// reduced them.
    pub fn set_share(&mut self, share: Option<WriteShare>) {
        self.share = share;
        self.config = self.limits_with(share);
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

    /// Lines that may still become dirty.
    #[inline]
    pub(crate) const fn free_lines(&self) -> usize {
        self.config.dirty_lines_max.saturating_sub(self.dirty_lines)
    }

    /// Whether enough clean lines are left to evict some for a preload: fewer lines are dirty than
    /// the limit that applies without a configured share for dirty lines.
    pub(crate) fn leaves_clean_lines(&self) -> bool {
        self.dirty_lines < self.limits_with(None).dirty_lines_max
    }

    /// Whether the dirty lines exceed the background limit.
    pub(crate) const fn is_over_background(&self) -> bool {
        self.dirty_lines > self.config.dirty_lines_background
    }

    /// Whether the dirty lines that are not in flight exceed the background limit.
    pub(crate) const fn has_backlog(&self) -> bool {
        self.dirty_lines.saturating_sub(self.destaging_lines) > self.config.dirty_lines_background
    }

    /// Whether throttling may end; see [`ShardConfig::dirty_lines_recovered`].
    pub(crate) const fn has_recovered(&self) -> bool {
        self.dirty_lines <= self.config.dirty_lines_recovered()
    }

    /// The distance to the dirty limit and its maximum, the distance from the background limit to
    /// the dirty limit, in lines. Without recent writers, the distance is the maximum.
    pub(crate) fn distance(&self, now_ms: u64) -> (u64, u64) {
        self.config.distance(if self.are_writers_idle(now_ms) { 0 } else { self.dirty_lines })
    }

    /// Whether no line has become dirty lately.
    pub(crate) const fn are_writers_idle(&self, now_ms: u64) -> bool {
        now_ms > self.last_dirtied_ms + WRITERS_IDLE_MS
    }

    /// The number of operations that this shard wants the elevator to have in flight.
    pub(crate) fn operations_for(&self, at_background: u32) -> u32 {
        self.config.operations_for(self.dirty_lines, at_background)
    }

    /// Counts a line that has become dirty.
    #[inline]
    pub(crate) const fn count_dirtied(&mut self, now_ms: u64) {
        self.dirty_lines += 1;
        self.last_dirtied_ms = now_ms;
    }

    /// Counts dirty lines of an adopted table, or a frozen slot.
    pub(crate) const fn add_dirty(&mut self, lines: usize) {
        self.dirty_lines += lines;
    }

    /// Counts a line that has become clean, or a frozen slot that was freed.
    #[inline]
    pub(crate) const fn count_cleaned(&mut self) {
        assert!(self.dirty_lines > 0, "more lines were cleaned than were dirty");
        self.dirty_lines -= 1;
    }

    pub(crate) const fn count_destage_start(&mut self, lines: usize) {
        self.destaging_lines += lines;
    }

    pub(crate) const fn count_destage_end(&mut self, lines: usize) {
        assert!(self.destaging_lines >= lines, "more lines left destages than entered them");
        self.destaging_lines -= lines;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_follow_the_size_and_return_to_those_of_all_lines() {
        let mut quota = DirtyQuota::new(ShardConfig::for_slots(600), 600);
        let limits = |quota: &DirtyQuota| {
            (quota.config().dirty_lines_max, quota.config().dirty_lines_background)
        };
        assert_eq!(limits(&quota), (400, 300));
        quota.set_lines(60);
        assert_eq!(limits(&quota), (40, 30));
        quota.set_lines(1);
        assert_eq!(limits(&quota), (1, 1), "a limit above zero stays above zero");
        quota.set_lines(600);
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
        quota.set_lines(60);
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
                    quota.set_lines(lines - retained);
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
