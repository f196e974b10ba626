//! Detection of streams of reads, and the size of their prefetch.
//!
//! The table is called only for misses and for the first use of a marked line, so other hits cost
//! nothing here. Misses that follow one another make a stream: forward, backward, or at equal
//! distances. Each prefetched window carries a mark on the line that the client reads first. When
//! the client reads that line, the next window is fetched, so the client has one window to read
//! while another is in flight.
//!
//! A window is at most a quarter of what the client has read of the stream so far, or one more
//! read, and at most two windows are unread. So a stream that ends has prefetched in vain at most
//! about half of the bytes that the client has read. Small windows double each time, larger ones
//! only when the client has caught up with the prefetch: a slow reader gets a small window, a fast
//! one as much as the latency of its disk requires.
//!
//! Prefetch limits itself: the table compares the bytes that it has requested with the prefetched
//! bytes that clients have read, which its owner reports. While clients read less than five sixths
//! of them, a new stream needs a longer run, an existing stream continues only with a read at the
//! expected position, and all windows are small. Otherwise random reads near hundreds of streams
//! would be taken for reads of these streams.
//!
//! On a hard disk, a seek costs as much as a megabyte, so some bytes in vain are cheaper than a
//! read that was not foreseen: see [`Streams::set_split_cost`]. There, a window is half of what was
//! read, and half of the prefetched bytes may be in vain.

mod course;
mod detector;

use course::Course;
use detector::Detector;
use forebay_policy::SplitCost;
use forebay_types::{ByteRange, LINE_BYTES};

/// Streams followed per volume.
const STREAMS_MAX: usize = 512;
/// A stream is forgotten after this many misses and used marks of other streams.
const STALE_EVENTS: u64 = 1 << 14;
/// Up to this size in bytes, a window doubles even if the client has not caught up. Also the limit
/// of all windows while clients read few of the prefetched bytes.
const WINDOW_RAMP_BYTES: u64 = 128 << 10;
/// Largest window, in bytes: at 5 ms per read, enough for a client of 1.6 GB/s.
const WINDOW_MAX_BYTES: u64 = 8 << 20;
/// The unread windows of the active streams, two each, take at most the pool divided by this. More
/// would be evicted unread once the small queue of the policy is short. Windows of up to
/// [`WINDOW_RAMP_BYTES`] are exempt: they are few, or the client reads in vain.
const UNREAD_POOL_SHARE: u64 = 16;
/// A stream whose last use is at most this many misses and used marks ago shares the pool with the
/// others.
const ACTIVE_EVENTS: u64 = 1 << 9;
/// The largest distance of a read from the expected position at which it still belongs to the
/// stream, in bytes. For a shorter stream, the limit is the bytes read of it so far.
const SLACK_BYTES: u64 = 256 << 10;
/// The limit of the credit: bytes that may be prefetched in vain before longer runs are required. A
/// fetched byte costs one.
const CREDIT_MAX_BYTES: i64 = 4 << 20;
/// Bytes in vain cost little on a disk where transferring this many takes at most three quarters of
/// the time of the I/O: see [`SplitCost::threshold_bytes`].
const CHEAP_BYTES_FROM: u64 = 1 << 20;

/// How much may be prefetched in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thrift {
    /// A window is at most what was read of the stream, divided by this.
    window_divisor: u64,
    /// What a prefetched byte earns when a client reads it, in hundredths of a byte.
    earned_percent: u64,
}

impl Thrift {
    /// Where each byte costs, as on flash.
    const SPARING: Self = Self { window_divisor: 4, earned_percent: 120 };
    /// Where a seek costs as much as many bytes.
    const GENEROUS: Self = Self { window_divisor: 2, earned_percent: 200 };
}

/// A window to prefetch: one range, or several at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchPlan {
    /// The first range; all of its lines are to be fetched.
    pub first: ByteRange,
    /// From the start of one range to the start of the next, in bytes.
    pub step: i64,
    /// The number of ranges.
    pub count: u32,
    /// The line whose first use requests the next window.
    pub mark: u64,
    /// The length of the reads of the client, in bytes. A client that reads less at a time would
    /// wait for the end of an I/O that is longer.
    pub read_bytes: u64,
}

impl PrefetchPlan {
    /// The ranges, in the order in which the client will read them.
    pub fn ranges(self) -> impl Iterator<Item = ByteRange> {
        let ByteRange { offset, len } = self.first;
        let at = move |index: u32| offset.wrapping_add_signed(i64::from(index) * self.step);
        (0..self.count).map(move |index| ByteRange::new(at(index), len))
    }
}

/// A stream. Positions are those of [`Course`].
#[derive(Clone, Copy, Debug)]
struct StreamEntry {
    course: Course,
    /// The bytes that the client has read of it.
    used: u64,
    /// The expected position of the next read.
    next: u64,
    /// The end of the prefetched windows; 0 before the first.
    ahead: u64,
    /// The marked line and its position.
    mark: Option<(u64, u64)>,
    window: u64,
    /// Whether the client has caught up with the prefetch since the last window.
    is_starved: bool,
    /// The length of the last read that missed.
    read_bytes: u64,
    last_used: u64,
}

impl StreamEntry {
    /// The position of a read that continues the stream.
    fn position(&self, range: ByteRange) -> Option<u64> {
        let position = self.course.position(range)?;
        if self.ahead == 0 {
            return (position == self.next).then_some(position);
        }
        // Random reads near a short stream are not part of it.
        let slack = SLACK_BYTES.min(self.used).max(self.course.unit());
        let (from, to) = (self.next.saturating_sub(slack), self.ahead.max(self.next) + slack);
        (from..=to).contains(&position).then_some(position)
    }

    /// Whether a read was expected at this position: at the end of the last known read, or at the
    /// start of the newest window, because hits before that window are not reported.
    fn expects(&self, position: u64) -> bool {
        let of_window = |(_, start)| start <= position && position < start + self.course.unit();
        position == self.next || self.mark.is_some_and(of_window)
    }

    /// Whether a window of it is unread and the client may be about to read it.
    fn is_active(&self, clock: u64) -> bool {
        self.mark.is_some() && clock - self.last_used <= ACTIVE_EVENTS
    }

    /// Records a read, and those before it that were hits.
    fn advance(&mut self, position: u64, bytes: u64) {
        self.used += bytes;
        if self.expects(position) {
            self.used += position.saturating_sub(self.next);
        }
        self.next = self.next.max(position + bytes);
    }
}

/// The streams of one volume.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<StreamEntry>,
    detector: Detector,
    volume_bytes: u64,
    pool_bytes: u64,
    clock: u64,
    credit: i64,
    thrift: Thrift,
    /// The stream to check next for staleness.
    hand: usize,
    /// Whether the last read that missed continued a stream.
    is_last_followed: bool,
}

impl Streams {
    /// An empty table for a volume of `volume_bytes` and a pool of `pool_bytes`.
    pub fn new(volume_bytes: u64, pool_bytes: u64) -> Self {
        Self {
            streams: Vec::new(),
            detector: Detector::default(),
            volume_bytes,
            pool_bytes,
            clock: 0,
            credit: CREDIT_MAX_BYTES,
            thrift: Thrift::SPARING,
            hand: 0,
            is_last_followed: false,
        }
    }

    /// Notes what an I/O costs on the volume's disk. Until then, bytes are taken to be dear.
    pub const fn set_split_cost(&mut self, cost: &SplitCost) {
        let is_cheap = cost.threshold_bytes >= CHEAP_BYTES_FROM;
        self.thrift = if is_cheap { Thrift::GENEROUS } else { Thrift::SPARING };
    }

    /// Notes that the pool holds `pool_bytes` from now on: longer windows would be evicted unread.
    pub const fn set_pool(&mut self, pool_bytes: u64) {
        self.pool_bytes = pool_bytes;
    }

    /// Notes that the volume has grown to `volume_bytes`.
    pub const fn grow(&mut self, volume_bytes: u64) {
        self.volume_bytes = volume_bytes;
    }

    /// Records a read that missed. Returns the window to prefetch, if any.
    pub fn on_miss(&mut self, range: ByteRange) -> Option<PrefetchPlan> {
        self.clock += 1;
        self.forget_stale();
        let mut numbered = self.streams.iter().enumerate();
        let found = numbered.find_map(|(at, stream)| Some((at, stream.position(range)?)));
        self.is_last_followed = found.is_some();
        if let Some((at, position)) = found {
            return self.proceed(at, position, range);
        }
        let run = self.detector.on_miss(range, self.credit <= 0, self.volume_bytes)?;
        let position = run.course.position(range)?;
        let next = position + run.course.length(range);
        let stream = StreamEntry {
            course: run.course,
            used: run.bytes.min(next),
            next,
            ahead: 0,
            mark: None,
            window: (4 * range.len).max(WINDOW_RAMP_BYTES).min(run.bytes),
            is_starved: false,
            read_bytes: range.len,
            last_used: self.clock,
        };
        let at = self.insert(stream);
        self.plan(at)
    }

    /// Whether the last read that missed continued a stream. The first reads of one do not.
    pub const fn is_last_followed(&self) -> bool {
        self.is_last_followed
    }

    /// Records the first use of a marked line. Returns the next window to prefetch, if any.
    pub fn on_mark(&mut self, line: u64) -> Option<PrefetchPlan> {
        self.clock += 1;
        let is_marked =
            |stream: &StreamEntry| stream.mark.is_some_and(|(marked, _)| marked == line);
        let at = self.streams.iter().position(is_marked)?;
        let stream = &mut self.streams[at];
        stream.last_used = self.clock;
        let (_, position) = stream.mark?;
        stream.advance(position, stream.course.unit());
        stream.mark = None;
        self.plan(at)
    }

    /// Records that clients have read this many bytes for the first time since their prefetch. May
    /// be called late, for many reads at once.
    pub fn on_use(&mut self, bytes: u64) {
        let earned = bytes.saturating_mul(self.thrift.earned_percent) / 100;
        let earned = earned.min(2 * CREDIT_MAX_BYTES as u64);
        self.credit = (self.credit + earned as i64).min(CREDIT_MAX_BYTES);
    }

    /// Continues a stream with a miss.
    fn proceed(&mut self, at: usize, position: u64, range: ByteRange) -> Option<PrefetchPlan> {
        let stream = &mut self.streams[at];
        stream.last_used = self.clock;
        let may_continue = self.credit > 0 || stream.expects(position);
        stream.advance(position, stream.course.length(range));
        stream.is_starved = stream.ahead > 0;
        stream.read_bytes = range.len;
        // A miss before `ahead` needs no new window: the prefetch is still in flight, or its lines
        // were evicted unused.
        let is_beyond = position >= stream.ahead;
        if is_beyond && may_continue { self.plan(at) } else { None }
    }

    fn insert(&mut self, stream: StreamEntry) -> usize {
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let numbered = self.streams.iter().enumerate();
        let oldest = numbered.min_by_key(|(_, stream)| stream.last_used);
        let at = oldest.map_or(0, |(at, _)| at);
        self.streams[at] = stream;
        at
    }

    /// Forgets a stream that has not been used for long. Each call checks one stream.
    fn forget_stale(&mut self) {
        if self.hand >= self.streams.len() {
            self.hand = 0;
        } else if self.clock - self.streams[self.hand].last_used > STALE_EVENTS {
            self.streams.swap_remove(self.hand);
        } else {
            self.hand += 1;
        }
    }

    /// The largest window, in bytes, that a stream may have beside the others, in whole lines.
    fn window_max(&self) -> u64 {
        let active = self.streams.iter().filter(|stream| stream.is_active(self.clock)).count();
        let active = active.max(1) as u64;
        let of_all = self.pool_bytes / UNREAD_POOL_SHARE;
        let share = (of_all / (2 * active)).max(WINDOW_RAMP_BYTES);
        share.min(of_all).min(WINDOW_MAX_BYTES) / LINE_BYTES * LINE_BYTES
    }

    fn plan(&mut self, at: usize) -> Option<PrefetchPlan> {
        let window_max = self.window_max();
        let stream = &mut self.streams[at];
        if stream.ahead > 0 && (stream.is_starved || stream.window < WINDOW_RAMP_BYTES) {
            stream.window *= 2;
        }
        stream.is_starved = false;
        let course = stream.course;
        let unit = course.unit();
        let limit = if self.credit > 0 { u64::MAX } else { WINDOW_RAMP_BYTES.max(unit) };
        let limit = limit.min(window_max);
        let earned = (stream.used / self.thrift.window_divisor).max(stream.read_bytes).max(unit);
        stream.window = stream.window.min(earned).min(limit);
        let start = stream.ahead.max(stream.next).next_multiple_of(unit);
        let units = (stream.window / unit).min(course.units_max());
        let end = (start + units * unit).min(course.end(self.volume_bytes));
        if end <= start {
            return None;
        }
        let plan = course.plan(start, end, stream.read_bytes);
        stream.ahead = end.next_multiple_of(unit);
        stream.mark = Some((plan.mark, start));
        self.credit = (self.credit - (end - start) as i64).max(-CREDIT_MAX_BYTES);
        Some(plan)
    }
}

#[cfg(test)]
mod tests;
