//! Detection of sequential streams, and the size of their prefetch.
//!
//! The table is called only for misses and for the first use of a marked line, so other hits cost
//! nothing here. Two consecutive misses at adjacent offsets make a stream. Each prefetched window
//! carries a mark on its first line. When the client reads that line, the next window is fetched,
//! so the client has one window to read while another is in flight. A window doubles only when the
//! client has caught up with the prefetch: a slow reader gets a small window, a fast one as much as
//! the latency of its disk requires.
//!
//! Prefetch limits itself: the table counts the windows whose mark was reached. If there are few,
//! it requires longer runs before it starts.

use forebay_types::{ByteRange, LINE_BYTES};

/// Streams tracked per volume. Few volumes have more than sixteen sequential readers at once.
const STREAMS_MAX: usize = 16;
/// First window, in bytes.
const WINDOW_FIRST_BYTES: u64 = 128 << 10;
/// Largest window, in bytes: at 5 ms per read, enough for a client of 1.6 GB/s.
const WINDOW_MAX_BYTES: u64 = 8 << 20;
/// Reads of at least this many bytes gain nothing from prefetch.
const LARGE_READ_BYTES: u64 = 512 << 10;
/// How far a read may be from the expected offset, before or after it, and still belong to the
/// stream, in bytes.
const SLACK_BYTES: u64 = 256 << 10;
/// Consecutive misses that make a stream: normally, and while the client uses few windows.
const RUN_MIN: u32 = 2;
const RUN_MIN_CAUTIOUS: u32 = 16;
/// The credit for windows: a window costs one, its use earns two.
const CREDIT_MAX: i32 = 32;

/// A window to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The bytes, from a line border on.
    pub range: ByteRange,
    /// The line whose first use requests the next window.
    pub mark: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The expected offset of the next read, in bytes.
    next: u64,
    /// The end of the prefetched windows, in bytes; 0 before the first.
    ahead: u64,
    window: u64,
    /// Consecutive adjacent misses.
    run: u32,
    /// Whether the client has caught up with the prefetch since the last window.
    is_starved: bool,
    last_used: u64,
}

/// The streams of one volume.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    volume_bytes: u64,
    window_max: u64,
    clock: u64,
    credit: i32,
}

impl Streams {
    /// An empty table for a volume of `volume_bytes` and a pool of `pool_bytes`. A window takes at
    /// most a sixteenth of the pool.
    pub fn new(volume_bytes: u64, pool_bytes: u64) -> Self {
        let window_max = (pool_bytes / 16).min(WINDOW_MAX_BYTES) / LINE_BYTES * LINE_BYTES;
        Self { streams: Vec::new(), volume_bytes, window_max, clock: 0, credit: CREDIT_MAX }
    }

    /// Records a read that missed. Returns the window to prefetch, if any.
    pub fn on_miss(&mut self, range: ByteRange) -> Option<Plan> {
        self.clock += 1;
        let clock = self.clock;
        let belongs = |stream: &Stream| {
            let end = stream.ahead.max(stream.next);
            stream.next == range.offset
                || (stream.ahead > 0
                    && range.offset >= stream.next.saturating_sub(SLACK_BYTES)
                    && range.offset <= end + SLACK_BYTES)
        };
        let Some(at) = self.streams.iter().position(belongs) else {
            self.begin(range);
            return None;
        };
        let stream = &mut self.streams[at];
        stream.last_used = clock;
        stream.run += 1;
        stream.next = stream.next.max(range.end());
        if range.len >= LARGE_READ_BYTES {
            return None;
        }
        if range.offset < stream.ahead {
            // The prefetch is still in flight, or its lines were evicted unused.
            stream.is_starved = true;
            return None;
        }
        let run_min = if self.credit > 0 { RUN_MIN } else { RUN_MIN_CAUTIOUS };
        if stream.run < run_min {
            return None;
        }
        if stream.ahead == 0 {
            stream.window = WINDOW_FIRST_BYTES.max(4 * range.len);
        } else {
            stream.is_starved = true;
        }
        self.plan(at)
    }

    /// Records the first use of a marked line. Returns the next window to prefetch, if any.
    pub fn on_mark(&mut self, line: u64) -> Option<Plan> {
        self.clock += 1;
        self.credit = (self.credit + 2).min(CREDIT_MAX);
        let offset = line * LINE_BYTES;
        let at = self.streams.iter().position(|stream| {
            offset < stream.ahead && offset + 2 * stream.window + SLACK_BYTES >= stream.ahead
        })?;
        let stream = &mut self.streams[at];
        stream.last_used = self.clock;
        stream.next = stream.next.max(offset + LINE_BYTES);
        self.plan(at)
    }

    fn begin(&mut self, range: ByteRange) {
        let stream = Stream {
            next: range.end(),
            ahead: 0,
            window: WINDOW_FIRST_BYTES,
            run: 1,
            is_starved: false,
            last_used: self.clock,
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.last_used) {
            *oldest = stream;
        }
    }

    fn plan(&mut self, at: usize) -> Option<Plan> {
        let stream = &mut self.streams[at];
        if stream.is_starved {
            stream.window *= 2;
            stream.is_starved = false;
        }
        stream.window = stream.window.min(self.window_max);
        let start = stream.ahead.max(stream.next).next_multiple_of(LINE_BYTES);
        let end = (start + stream.window).min(self.volume_bytes);
        if stream.window == 0 || end <= start {
            return None;
        }
        stream.ahead = end.next_multiple_of(LINE_BYTES);
        self.credit = (self.credit - 1).max(0);
        Some(Plan { range: ByteRange::new(start, end - start), mark: start / LINE_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn read(offset: u64) -> ByteRange {
        ByteRange::new(offset, LINE_BYTES)
    }

    #[test]
    fn two_adjacent_misses_make_a_stream() {
        let mut streams = Streams::new(GIB, GIB);
        assert_eq!(streams.on_miss(read(0)), None);
        let plan = streams.on_miss(read(4096)).unwrap();
        assert_eq!(plan.range, ByteRange::new(8192, WINDOW_FIRST_BYTES));
        assert_eq!(plan.mark, 2);
    }

    #[test]
    fn random_misses_make_no_stream() {
        let mut streams = Streams::new(GIB, GIB);
        for i in 0..1000 {
            assert_eq!(streams.on_miss(read(i * 7919 % 1009 * (1 << 20))), None);
        }
    }

    #[test]
    fn the_window_grows_only_when_the_client_catches_up() {
        let mut streams = Streams::new(GIB, GIB);
        streams.on_miss(read(0));
        let first = streams.on_miss(read(4096)).unwrap();
        let second = streams.on_mark(first.mark).unwrap();
        assert_eq!(second.range.len, first.range.len);
        assert_eq!(second.range.offset, first.range.end());
        // The client catches up with the second window, which is still in flight.
        assert_eq!(streams.on_miss(read(second.range.offset)), None);
        let third = streams.on_mark(second.mark).unwrap();
        assert_eq!(third.range.len, 2 * first.range.len);
    }

    #[test]
    fn windows_end_with_the_volume_and_fit_the_pool() {
        let mut streams = Streams::new(64 << 10, 1 << 20);
        streams.on_miss(read(0));
        let plan = streams.on_miss(read(4096)).unwrap();
        assert_eq!(plan.range.end(), 64 << 10);
        assert_eq!(streams.on_mark(plan.mark), None);
        let mut tiny = Streams::new(GIB, 16 * 4096);
        tiny.on_miss(read(0));
        assert_eq!(tiny.on_miss(read(4096)).unwrap().range.len, 4096);
    }

    #[test]
    fn large_reads_are_not_prefetched() {
        let mut streams = Streams::new(GIB, GIB);
        for i in 0..64 {
            assert_eq!(streams.on_miss(ByteRange::new(i << 20, 1 << 20)), None);
        }
    }

    #[test]
    fn unused_windows_suspend_prefetch() {
        let mut streams = Streams::new(1 << 40, GIB);
        let mut plans = 0;
        for i in 0..1000 {
            streams.on_miss(read(i << 26));
            plans += u32::from(streams.on_miss(read((i << 26) + 4096)).is_some());
        }
        assert_eq!(plans, CREDIT_MAX as u32);
    }

    #[test]
    fn interleaved_streams_are_distinguished() {
        let mut streams = Streams::new(1 << 40, GIB);
        let bases: Vec<u64> = (0..8).map(|i| i << 32).collect();
        for &base in &bases {
            streams.on_miss(read(base));
        }
        for &base in &bases {
            assert_eq!(streams.on_miss(read(base + 4096)).unwrap().range.offset, base + 8192);
        }
    }
}
