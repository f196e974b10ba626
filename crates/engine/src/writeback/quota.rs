//! How much may be dirty in a shard, and how much is.

/// Where nothing became dirty for so long, in milliseconds, the dirty limit counts as far away.
const WRITERS_GONE_MS: u64 = 500;
/// Time between two ticks that counts at most, in milliseconds: without dirty lines there are none.
const TICK_MS_MAX: u64 = 1_000;

/// As many destage operations as an array of some disks can do at once. More of them would only
/// have each other, and reads, wait.
const OPERATIONS_MAX: u32 = 32;

/// How much may be dirty, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Lines that may be dirty at once; beyond it, writes wait for the disk.
    pub dirty_lines_max: usize,
    /// Lines above which dirty ones are written back without waiting for their age.
    pub dirty_lines_background: usize,
    /// Dirty lines are written back between one and two times this age, in milliseconds, and up to
    /// 40 s later while the elevator runs and does not come by.
    pub dirty_age_ms: u64,
    /// Destage operations in flight per volume while a flush or a change of mode waits for them.
    pub destage_operations_max: u32,
    /// Destage operations in flight per volume, from all shards, while a writer waits for them.
    /// Otherwise there are the more of them, the nearer the limit is.
    pub destage_operations_all: u32,
}

impl ShardConfig {
    /// The default of [`ShardConfig::dirty_age_ms`].
    pub const DIRTY_AGE_MS: u64 = 5_000;

    /// Destage operations in flight that nobody waits for, from all shards, where so many lines are
    /// dirty in this one, and so many operations are due while there are few. As they rise and fall
    /// with what is dirty, that settles where the disk takes as much as is written.
    fn operations_for(&self, dirty_lines: usize, at_leisure: u32) -> u32 {
        let range = self.dirty_lines_max.saturating_sub(self.dirty_lines_background).max(1) as u64;
        let over = dirty_lines.saturating_sub(self.dirty_lines_background) as u64;
        let most = self.destage_operations_all.max(1);
        let more = u64::from(most.saturating_sub(at_leisure)) * over.min(range) / range;
        at_leisure.min(most) + more as u32
    }

    /// Lines that may still get dirty where so many are, and all those between the background limit
    /// and the dirty limit.
    fn distance(&self, dirty_lines: usize) -> (u64, u64) {
        let all = self.dirty_lines_max.saturating_sub(self.dirty_lines_background);
        let left = self.dirty_lines_max.saturating_sub(dirty_lines).min(all);
        (left as u64, all as u64)
    }

    /// Dirty lines below which writers are not throttled any more: some less than may be dirty, so
    /// that the disk is given more than one thing to do.
    const fn dirty_lines_enough(&self) -> usize {
        self.dirty_lines_max.saturating_sub(self.dirty_lines_max / 16 + 1)
    }

    /// The defaults for a shard of `slots` lines.
    pub const fn for_slots(slots: usize) -> Self {
        Self {
            // A third of the pool stays clean, so that reads are served and a write always finds
            // a line to take the place of.
            dirty_lines_max: slots - slots / 3,
            dirty_lines_background: slots / 2,
            dirty_age_ms: Self::DIRTY_AGE_MS,
            destage_operations_max: OPERATIONS_MAX / 2,
            destage_operations_all: OPERATIONS_MAX,
        }
    }

    /// The same for one of `shards` such shards of one cache, as it is one disk that is written.
    #[must_use]
    pub fn among(self, shards: usize) -> Self {
        let each = OPERATIONS_MAX / u32::try_from(shards).unwrap_or(u32::MAX).max(1);
        let most = self.destage_operations_max;
        Self { destage_operations_max: each.clamp(2, most), ..self }
    }
}

/// The dirty lines of all volumes of a shard against its limits.
#[derive(Debug)]
pub(crate) struct Quota {
    config: ShardConfig,
    /// Dirty lines, and older versions of lines that are dirty.
    dirty_lines: usize,
    /// Lines of destages in flight, clean ones that go along among them.
    destaging_lines: usize,
    /// When a line became dirty last, in milliseconds.
    dirtied_ms: u64,
    /// Parts that are throttled.
    throttled: usize,
    /// Up to when the age of dirty lines is in the counters, in milliseconds.
    counted_ms: u64,
}

impl Quota {
    pub(crate) const fn new(config: ShardConfig) -> Self {
        Self {
            config,
            dirty_lines: 0,
            destaging_lines: 0,
            dirtied_ms: 0,
            throttled: 0,
            counted_ms: 0,
        }
    }

    pub(crate) const fn config(&self) -> &ShardConfig {
        &self.config
    }

    pub(crate) const fn dirty_lines(&self) -> usize {
        self.dirty_lines
    }

    pub(crate) const fn throttled(&self) -> usize {
        self.throttled
    }

    /// Lines that may still get dirty.
    #[inline]
    pub(crate) const fn free_lines(&self) -> usize {
        self.config.dirty_lines_max.saturating_sub(self.dirty_lines)
    }

    /// Whether more is dirty than may wait for its age.
    pub(crate) const fn is_over_background(&self) -> bool {
        self.dirty_lines > self.config.dirty_lines_background
    }

    /// The same, leaving out what is on its way to the disk.
    pub(crate) const fn has_backlog(&self) -> bool {
        self.dirty_lines.saturating_sub(self.destaging_lines) > self.config.dirty_lines_background
    }

    /// Whether throttled parts may go on: a bit less than the limit is dirty, so that the disk is
    /// given more than one thing to do.
    pub(crate) const fn has_recovered(&self) -> bool {
        self.dirty_lines <= self.config.dirty_lines_enough()
    }

    /// How far the dirty limit is; see [`super::token_bucket::TokenBucket::fill`].
    pub(crate) fn distance(&self, now_ms: u64) -> (u64, u64) {
        let are_gone = now_ms > self.dirtied_ms + WRITERS_GONE_MS;
        self.config.distance(if are_gone { 0 } else { self.dirty_lines })
    }

    /// Operations that the elevator may have in flight because of what is dirty here.
    pub(crate) fn operations_for(&self, at_leisure: u32) -> u32 {
        self.config.operations_for(self.dirty_lines, at_leisure)
    }

    /// A clean line has become dirty.
    #[inline]
    pub(crate) const fn dirtied(&mut self, now_ms: u64) {
        self.dirty_lines += 1;
        self.dirtied_ms = now_ms;
    }

    /// Dirty lines were found at a start, or an older version is kept of a dirty line.
    pub(crate) const fn found_dirty(&mut self, lines: usize) {
        self.dirty_lines += lines;
    }

    /// A line is clean, or an older version on the disk.
    #[inline]
    pub(crate) const fn cleaned(&mut self) {
        assert!(self.dirty_lines > 0, "more lines became clean than were dirty");
        self.dirty_lines -= 1;
    }

    pub(crate) const fn destage_began(&mut self, lines: usize) {
        self.destaging_lines += lines;
    }

    pub(crate) const fn destage_ended(&mut self, lines: usize) {
        assert!(self.destaging_lines >= lines, "more destages ended than began");
        self.destaging_lines -= lines;
    }

    pub(crate) const fn throttle(&mut self) {
        self.throttled += 1;
    }

    pub(crate) const fn admitted(&mut self, parts: usize) {
        assert!(self.throttled >= parts, "more parts were let go on than were throttled");
        self.throttled -= parts;
    }

    /// The milliseconds since the last call, for the counters of dirty time.
    pub(crate) fn passed_ms(&mut self, now_ms: u64) -> u64 {
        let passed_ms = now_ms.saturating_sub(self.counted_ms).min(TICK_MS_MAX);
        self.counted_ms = now_ms;
        passed_ms
    }
}
