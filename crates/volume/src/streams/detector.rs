//! Finds streams among misses.
//!
//! Misses wait in tables of fixed size, by a hash of the offset at which the stream would continue,
//! so that the cost of a miss does not depend on the number of interleaved streams. A random miss
//! touches five entries.

use super::course::Course;
use forebay_types::{ByteRange, LINE_BYTES};

/// Entries of each table of adjacent misses. Of two hundred interleaved streams, a third lose their
/// entry to another stream, and need two more misses to be found.
const ADJACENT: usize = 512;
/// Zones in which misses at equal distances are detected, and their size in bytes.
const ZONES: usize = 64;
const ZONE_BYTES: u64 = 16 << 20;
/// The largest distance. Reads farther apart are seldom a pattern.
const STEP_BYTES_MAX: u64 = 1 << 20;
/// Consecutive adjacent misses that make a stream: normally, and while clients read few of the
/// prefetched bytes.
const RUN_MIN: u32 = 2;
const RUN_MIN_CAUTIOUS: u32 = 5;
/// If more than this number of misses lie between two adjacent ones, these may be adjacent by
/// chance, so the stream needs one more miss.
const RECENT_MISSES: u32 = 64;
/// Consecutive equal distances that make a stream.
const STRIDES_MIN: u32 = 3;
const STRIDES_MIN_CAUTIOUS: u32 = 5;

/// A stream that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundStream {
    pub course: Course,
    /// The bytes that were read in this order.
    pub bytes: u64,
}

/// Adjacent misses.
#[derive(Clone, Copy, Debug)]
struct Adjacent {
    /// The border at which the next miss would begin or, if the reads descend, end.
    border: u64,
    bytes: u64,
    misses: u32,
    /// The number of the last miss.
    last: u32,
}

impl Adjacent {
    /// No miss: its border lies beyond every volume.
    const NONE: Self = Self { border: u64::MAX / 2, bytes: 0, misses: 0, last: 0 };
}

/// Misses in a zone at equal distances.
#[derive(Clone, Copy, Debug)]
struct Strided {
    zone: u64,
    last: u64,
    step: i64,
    len: u64,
    strides: u32,
}

/// The misses of one volume that may become streams.
#[derive(Debug, Default)]
pub(super) struct Detector {
    /// Empty before the first miss, as many volumes are idle.
    ascending: Vec<Adjacent>,
    descending: Vec<Adjacent>,
    zones: Vec<Strided>,
    /// Misses so far; wraps.
    misses: u32,
}

impl Detector {
    /// Records a miss that belongs to no stream. Returns the stream that it completes, if any. A
    /// cautious detector requires more misses.
    pub(super) fn on_miss(
        &mut self,
        range: ByteRange,
        cautious: bool,
        volume_bytes: u64,
    ) -> Option<FoundStream> {
        if self.ascending.is_empty() {
            self.ascending = vec![Adjacent::NONE; ADJACENT];
            self.descending = vec![Adjacent::NONE; ADJACENT];
            let none = Strided { zone: u64::MAX, last: 0, step: 0, len: 0, strides: 0 };
            self.zones = vec![none; ZONES];
        }
        self.misses = self.misses.wrapping_add(1);
        let (start, end) = (range.offset, range.end());
        let misses = if cautious { RUN_MIN_CAUTIOUS } else { RUN_MIN };
        let (first, last) = (start / LINE_BYTES, end.div_ceil(LINE_BYTES));
        let bytes = (last - first) * LINE_BYTES;
        let ascends = |border: u64| start.wrapping_sub(border) < LINE_BYTES;
        let next = Adjacent { border: end, bytes, misses: 1, last: self.misses };
        let keys = (start.div_ceil(LINE_BYTES), last);
        if let Some(bytes) = follow(&mut self.ascending, keys, ascends, next, misses) {
            return Some(FoundStream { course: Course::Forward, bytes });
        }
        let descends = |border: u64| border.wrapping_sub(end) < LINE_BYTES;
        let next = Adjacent { border: start, ..next };
        let keys = (end / LINE_BYTES, first);
        if let Some(bytes) = follow(&mut self.descending, keys, descends, next, misses) {
            return Some(FoundStream { course: Course::backward(volume_bytes), bytes });
        }
        self.stride(range, if cautious { STRIDES_MIN_CAUTIOUS } else { STRIDES_MIN })
    }

    fn stride(&mut self, range: ByteRange, strides: u32) -> Option<FoundStream> {
        let ByteRange { offset, len } = range;
        let number = offset / ZONE_BYTES;
        let zone = &mut self.zones[place(number, ZONES)];
        if zone.zone != number {
            *zone = Strided { zone: number, last: offset, step: 0, len, strides: 0 };
            return None;
        }
        let step = offset.wrapping_sub(zone.last).cast_signed();
        let is_equal = step == zone.step && len == zone.len;
        let has_gaps = (len + 1..=STEP_BYTES_MAX).contains(&step.unsigned_abs());
        zone.strides = if is_equal { zone.strides + 1 } else { u32::from(has_gaps) };
        (zone.last, zone.step, zone.len) = (offset, step, len);
        if !has_gaps || zone.strides < strides {
            return None;
        }
        zone.strides = 0;
        let first = offset.wrapping_add_signed(-(i64::from(strides) * step));
        let course = Course::Strided { first, step, len };
        Some(FoundStream { course, bytes: u64::from(strides + 1) * len })
    }
}

/// Adds a miss, `run`, to the run of misses whose entry is under the key `before` and whose border
/// `meets` this miss. If the run then has `misses` misses, it leaves the table, and its bytes are
/// returned; otherwise it waits under the key `after`. Reads smaller than a line miss once per
/// line, so borders in the same line count as equal.
fn follow(
    table: &mut [Adjacent],
    (before, after): (u64, u64),
    meets: impl Fn(u64) -> bool,
    mut run: Adjacent,
    mut misses: u32,
) -> Option<u64> {
    let entry = &mut table[place(before, ADJACENT)];
    if meets(entry.border) {
        run.bytes += entry.bytes;
        run.misses += entry.misses;
        misses += u32::from(run.last.wrapping_sub(entry.last) > RECENT_MISSES);
        *entry = Adjacent::NONE;
    }
    if run.misses >= misses {
        return Some(run.bytes);
    }
    table[place(after, ADJACENT)] = run;
    None
}

/// The entry of a number in a table of `len` entries, a power of two.
const fn place(number: u64, len: usize) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - len.ilog2())) as usize
}
