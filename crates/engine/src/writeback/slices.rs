//! Time slices: how destages and reads share a disk with one arm.
//!
//! Such a disk serves one request at a time, nearby ones first. A destage between two reads costs
//! it two seeks, whatever its length; and while destages in ascending order are always in flight,
//! it serves no read. So it gets destages in slices: the operations of a slice at once, and the
//! next slice when reads have had their turn.
//!
//! What a slice takes from the reads is the longest time in it in which none completes. It grows
//! while that is below the target, and the turn of the reads is as long. A slice that waits in the
//! disk's queue while reads complete takes nothing from them.
//!
//! Content is advisory, as that of [`super::elevator`].

use super::elevator::FlightWindow;
use super::read_meter::ReadMeter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The target for what a slice takes from the reads, in multiples of the duration of a read between
/// slices, and at most, in milliseconds.
const TARGET_READS: u64 = 4;
const TARGET_MS_MAX: u64 = 160;
/// Without reads for this long, in milliseconds, their turn ends.
const READS_IDLE_MS: u64 = 2;
/// Reads that must be timed between slices before slices grow.
const READS_ENOUGH: u64 = 64;
/// One in this many slices is followed by a turn of the reads in which they are timed.
const TIMED_EVERY: u32 = 16;

/// The slices of a volume.
#[derive(Debug, Default)]
pub(super) struct Slices {
    /// The lines of a slice, as learned; zero if nothing was learned.
    lines: AtomicUsize,
    /// Slices so far.
    count: AtomicU32,
    /// A slice is open: its limit in lines, the lines and the operations started, and the longest
    /// time in which no read completed.
    is_open: AtomicBool,
    limit: AtomicUsize,
    started: AtomicUsize,
    operations: AtomicU32,
    gap_ms: AtomicU64,
    /// The throttled writers and the reads in flight at its start.
    writers: AtomicU32,
    reads_in_flight: AtomicU64,
    /// The start of the slice, or of the time since.
    begun_ms: AtomicU64,
    /// The turn of the reads ends at this time, or when this many reads are complete.
    turn_until_ms: AtomicU64,
    reads_due: AtomicU64,
    /// Reads complete, and the time of the last one.
    reads: AtomicU64,
    last_read_ms: AtomicU64,
    /// The reads between slices.
    between: ReadMeter,
}

impl Slices {
    /// Counts a read as completed; `in_flight` were in flight until then.
    pub(super) fn count_read(&self, in_flight: u64, now_ms: u64) {
        self.reads.fetch_add(1, Relaxed);
        let last_ms = self.last_read_ms.swap(now_ms, Relaxed);
        let passed_ms = now_ms.saturating_sub(last_ms.max(self.begun_ms.load(Relaxed)));
        if self.is_open.load(Relaxed) {
            self.gap_ms.fetch_max(passed_ms, Relaxed);
        } else {
            self.between.add(in_flight, passed_ms);
        }
    }

    /// Counts a destage over `lines` lines as started.
    pub(super) fn count_start(&self, lines: usize) {
        self.started.fetch_add(lines, Relaxed);
        self.operations.fetch_add(1, Relaxed);
    }

    /// The lines that the next destage may have. If no slice is open, begins one, unless it is the
    /// turn of the reads.
    pub(super) fn lines_left(
        &self,
        window: FlightWindow,
        reads_in_flight: u64,
        destages_in_flight: u32,
        now_ms: u64,
    ) -> usize {
        if destages_in_flight == 0 || !self.is_open.load(Relaxed) {
            if self.is_turn_of_reads(reads_in_flight, now_ms) {
                return 0;
            }
            self.is_open.store(true, Relaxed);
            self.begun_ms.store(now_ms, Relaxed);
            self.limit.store(self.lines.load(Relaxed).max(window.lines), Relaxed);
            self.started.store(0, Relaxed);
            self.operations.store(0, Relaxed);
            self.gap_ms.store(0, Relaxed);
            self.writers.store(window.operations, Relaxed);
            self.reads_in_flight.store(reads_in_flight.max(1), Relaxed);
        }
        self.limit.load(Relaxed).saturating_sub(self.started.load(Relaxed))
    }

    fn is_turn_of_reads(&self, reads_in_flight: u64, now_ms: u64) -> bool {
        let idle_since_ms = self.last_read_ms.load(Relaxed) + READS_IDLE_MS;
        (reads_in_flight > 0 || now_ms < idle_since_ms)
            && now_ms < self.turn_until_ms.load(Relaxed)
            && self.reads.load(Relaxed) < self.reads_due.load(Relaxed)
    }

    /// Ends the slice: no destage is in flight any more.
    pub(super) fn end(&self, now_ms: u64) {
        if !self.is_open.swap(false, Relaxed) {
            return;
        }
        let began_ms = self.begun_ms.swap(now_ms, Relaxed);
        let tail_ms = now_ms.saturating_sub(self.last_read_ms.load(Relaxed).max(began_ms));
        let lost_ms = tail_ms.max(self.gap_ms.load(Relaxed));
        self.adapt(lost_ms);
        // Reads had a part of their turn while the slice waited in the disk's queue.
        let had_ms = now_ms.saturating_sub(began_ms).saturating_sub(lost_ms);
        let is_timed = self.count.fetch_add(1, Relaxed).is_multiple_of(TIMED_EVERY);
        let timed_ms = match is_timed || self.between.reads() < READS_ENOUGH {
            true => TARGET_MS_MAX,
            false => 0,
        };
        let turn_ms = lost_ms.saturating_sub(had_ms).max(timed_ms);
        self.turn_until_ms.store(now_ms + turn_ms, Relaxed);
        // Each reader gets as many turns as each writer has had.
        let turns = self.operations.load(Relaxed) / self.writers.load(Relaxed).max(1);
        let due = u64::from(turns.max(1)) * self.reads_in_flight.load(Relaxed);
        self.reads_due.store(self.reads.load(Relaxed) + due, Relaxed);
    }

    /// Adapts the length of slices to the time that the last one took from the reads.
    fn adapt(&self, lost_ms: u64) {
        let (limit, lines) = (self.limit.load(Relaxed), self.started.load(Relaxed));
        let target_ms = match self.between.reads() >= READS_ENOUGH {
            true => (TARGET_READS * self.between.mean_us() / 1_000).min(TARGET_MS_MAX),
            false => 0,
        };
        if lost_ms > target_ms + target_ms / 4 {
            self.lines.store(lines.min(limit) / 4 * 3, Relaxed);
        } else if lost_ms <= target_ms && lines >= limit - limit / 8 {
            let more = if lost_ms * 2 <= target_ms { limit } else { limit / 4 };
            self.lines.store(limit + more.max(1), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: FlightWindow = FlightWindow { operations: 2, lines: 8 };

    /// Reads in the pauses of a disk that takes 10 ms for each of two readers.
    fn read(slices: &Slices, count: u64, now_ms: &mut u64) {
        for _ in 0..count {
            *now_ms += 10;
            slices.count_read(2, *now_ms);
        }
    }

    /// A slice that the disk serves at once, at a millisecond for ten lines.
    fn slice(slices: &Slices, now_ms: &mut u64) -> usize {
        let lines = slices.lines_left(WINDOW, 2, 0, *now_ms);
        if lines > 0 {
            slices.count_start(lines);
            assert_eq!(slices.lines_left(WINDOW, 2, 1, *now_ms), 0);
            *now_ms += 10 + lines as u64 / 10;
            slices.end(*now_ms);
        }
        lines
    }

    #[test]
    fn a_slice_grows_until_it_takes_from_the_reads_what_it_may() {
        let (slices, mut now_ms) = (Slices::default(), 1_000);
        assert_eq!(slice(&slices, &mut now_ms), WINDOW.lines);
        let sizes: Vec<_> = (0..400)
            .map(|_| {
                read(&slices, 4, &mut now_ms);
                slice(&slices, &mut now_ms)
            })
            .collect();
        let last = &sizes[300..];
        // Two reads take 20 ms each, so the target is 80 ms.
        let in_range = |lines: &&usize| **lines == 0 || (400..=1_000).contains(*lines);
        assert!(last.iter().all(|lines| in_range(&lines)), "{last:?}");
    }

    #[test]
    fn reads_have_as_long_a_turn_unless_the_slice_waited_for_them() {
        let (slices, mut now_ms) = (Slices::default(), 1_000);
        for _ in 0..40 {
            read(&slices, 4, &mut now_ms);
            slice(&slices, &mut now_ms);
        }
        let turn = || slices.turn_until_ms.load(Relaxed);
        while slices.count.load(Relaxed) % TIMED_EVERY != 1 {
            read(&slices, 8, &mut now_ms);
            slice(&slices, &mut now_ms);
        }
        read(&slices, 8, &mut now_ms);
        let began_ms = now_ms;
        assert!(slice(&slices, &mut now_ms) > 0);
        assert_eq!(turn() - now_ms, now_ms - began_ms);
        assert_eq!(slice(&slices, &mut now_ms), 0, "it is the turn of the reads");
        now_ms = turn();
        // While this one waits, reads complete.
        slices.count_start(slices.lines_left(WINDOW, 2, 0, now_ms));
        read(&slices, 20, &mut now_ms);
        slices.end(now_ms + 5);
        assert_eq!(turn(), now_ms + 5);
    }

    #[test]
    fn without_reads_their_turn_ends() {
        let (slices, mut now_ms) = (Slices::default(), 1_000);
        read(&slices, 4, &mut now_ms);
        slice(&slices, &mut now_ms);
        slices.count_read(1, now_ms);
        assert_eq!(slices.lines_left(WINDOW, 0, 0, now_ms), 0, "the next read may follow");
        assert!(slices.lines_left(WINDOW, 0, 0, now_ms + READS_IDLE_MS) > 0);
    }
}
