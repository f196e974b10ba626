//! The order in which the shards of a volume destage its dirty lines.
//!
//! A disk is written fastest in ascending order, and an array coalesces writes only if adjacent
//! ones arrive together. Each shard knows only the dirty lines of its own regions. So the shards of
//! a volume share an elevator, which ascends through the volume and then starts again at the
//! beginning (C-LOOK). It runs while any of them has a backlog or throttled writers. Each shard
//! publishes its next stop; the shard with the nearest stop destages there and publishes its next
//! one. Lines that become dirty ahead of the elevator are destaged in the same round.
//!
//! Whole stripes precede other lines. Every sixteenth operation is for other lines, so that they do
//! not starve.

use super::destage_rate::DestageRate;
use super::flush_share::FlushShare;
use super::scale::RateScale;
use super::slices::Slices;
use crate::LineKey;
use forebay_types::LINE_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// One in this many operations is for lines outside of whole stripes.
const REST_EVERY: u32 = 16;
/// A flush has in flight beside reads what the disk takes in this time, in milliseconds.
const SWEEP_MS: usize = 100;
/// Maximum shards: each has one bit in a word.
const SHARDS_MAX: usize = 64;

/// The most that may be in flight while clients read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightWindow {
    pub operations: u32,
    pub lines: usize,
}

/// The next stop of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElevatorStop {
    /// A dirty line that waits for its destage.
    pub key: LineKey,
    /// Whether it is the first line of a stripe whose lines all wait.
    pub whole: bool,
    /// The number of operations, over all shards, that this shard wants in flight; zero if it has
    /// neither a backlog nor throttled writers.
    pub operations: u32,
}

/// The stop of one shard. Meaningless if its bit in `stops` is not set.
#[derive(Debug, Default)]
struct PublishedStop {
    /// The line, shifted left by one; the lowest bit is zero if it begins a whole stripe.
    position: AtomicU64,
    operations: AtomicU32,
}

/// The elevator of a volume. Its content is advisory: if two shards change it at once, a few
/// destages may be out of order.
#[derive(Debug)]
pub struct Elevator {
    /// The current positions: for whole stripes, and for other lines.
    lines: [AtomicU64; 2],
    /// Operations in flight over all shards, their lines, and the number of operations dispatched.
    in_flight: AtomicU32,
    lines_in_flight: AtomicUsize,
    started: AtomicU32,
    /// The most lines in flight, if the size of the array's cache is known.
    lines_max: Option<usize>,
    /// `lines_max` was reached, and more than half of these lines are still in flight.
    full: AtomicBool,
    /// A bit for each shard with a stop, and for each shard that requires the elevator to run.
    stops: AtomicU64,
    running: AtomicU64,
    /// A bit for each shard that has paused the elevator.
    pauses: AtomicU64,
    /// Reads of the disk started over all shards, which slow down the destages of all of them.
    reads: AtomicU64,
    /// Throttled parts of all shards, and the lines that they need.
    throttled: AtomicU32,
    throttled_lines: AtomicUsize,
    /// Reads of the disk that have completed.
    reads_ended: AtomicU64,
    /// Set if the disk has one arm.
    slices: Option<Slices>,
    scale: RateScale,
    rate: DestageRate,
    flush_share: FlushShare,
    by_shard: Box<[PublishedStop]>,
}

impl Elevator {
    /// The elevator of a volume in `shards` shards, on a disk that collects `stripe_cache_bytes` of
    /// writes before it destages them; see [`forebay_types::DiskGeometry::stripe_cache_bytes`]. If
    /// it `has_one_arm`, reads and destages take turns.
    ///
    /// # Panics
    /// Unless there are 1 to 64 shards.
    pub fn new(shards: usize, stripe_cache_bytes: u64, has_one_arm: bool) -> Arc<Self> {
        assert!((1..=SHARDS_MAX).contains(&shards), "1 to {SHARDS_MAX} shards share an elevator");
        Arc::new(Self {
            lines: Default::default(),
            in_flight: AtomicU32::new(0),
            lines_in_flight: AtomicUsize::new(0),
            started: AtomicU32::new(0),
            lines_max: (stripe_cache_bytes > 0)
                .then_some((stripe_cache_bytes / LINE_BYTES * 5 / 4) as usize),
            full: AtomicBool::new(false),
            stops: AtomicU64::new(0),
            running: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            throttled: AtomicU32::new(0),
            throttled_lines: AtomicUsize::new(0),
            reads_ended: AtomicU64::new(0),
            slices: has_one_arm.then(Slices::default),
            scale: RateScale::default(),
            rate: DestageRate::default(),
            flush_share: FlushShare::default(),
            by_shard: (0..shards).map(|_| PublishedStop::default()).collect(),
        })
    }

    /// Counts a read of the disk that starts in any shard.
    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    /// Counts a throttled part that needs `lines` lines.
    pub(crate) fn count_throttled(&self, lines: usize) {
        self.throttled.fetch_add(1, Relaxed);
        self.throttled_lines.fetch_add(lines, Relaxed);
    }

    /// Counts a throttled part as admitted.
    pub(crate) fn count_admitted(&self, lines: usize) {
        self.throttled.fetch_sub(1, Relaxed);
        self.throttled_lines.fetch_sub(lines, Relaxed);
    }

    /// Counts a read as completed.
    pub(crate) fn count_read_end(&self, now_ms: u64) {
        let in_flight = self.reads_in_flight();
        self.reads_ended.fetch_add(1, Relaxed);
        match &self.slices {
            Some(slices) => slices.count_read(in_flight, now_ms),
            None => self.scale.count_read(in_flight, now_ms),
        }
    }

    fn reads_in_flight(&self) -> u64 {
        self.reads().saturating_sub(self.reads_ended.load(Relaxed))
    }

    /// What may be in flight near the dirty limit while clients read: as much as the throttled
    /// writers would have in flight without a cache, and at least one operation over `lines_min`
    /// lines. So a read waits no longer than without a cache, and the writers wait instead. Of many
    /// writers beside few reads, half: without a cache, writers that flush have a write in flight
    /// only half of the time.
    pub(crate) fn window(&self, lines_min: usize) -> FlightWindow {
        let throttled = self.throttled.load(Relaxed);
        let reads = u32::try_from(self.reads_in_flight()).unwrap_or(u32::MAX);
        // Slices are fair by themselves.
        let least = if self.slices.is_some() { throttled } else { throttled.div_ceil(2) };
        let operations = reads.saturating_mul(2).clamp(least, throttled);
        let lines = self.throttled_lines.load(Relaxed) * operations as usize;
        FlightWindow {
            operations: operations.max(1),
            lines: lines.div_ceil(throttled.max(1) as usize).max(lines_min),
        }
    }

    /// The lines that the next operation may have in flight; zero if the window is full.
    pub(crate) fn lines_left(&self, window: FlightWindow, now_ms: u64) -> usize {
        let in_flight = self.in_flight.load(Relaxed);
        if let Some(slices) = &self.slices {
            return slices.lines_left(window, self.reads_in_flight(), in_flight, now_ms);
        }
        let scale = self.scale.limit(now_ms);
        if in_flight >= window.operations * scale {
            return 0;
        }
        (window.lines * scale as usize).saturating_sub(self.lines_in_flight.load(Relaxed))
    }

    /// The lines that the next destage of a flush may have beside reads: as many may be in flight
    /// as the disk takes in [`SWEEP_MS`], and at least `least`.
    pub(crate) fn sweep_lines_left(&self, least: usize) -> usize {
        let most = self.rate.lines_in(SWEEP_MS).max(least);
        most.saturating_sub(self.lines_in_flight.load(Relaxed))
    }

    pub(super) const fn flush_share(&self) -> &FlushShare {
        &self.flush_share
    }

    /// Whether the disk has one arm.
    pub(crate) const fn has_one_arm(&self) -> bool {
        self.slices.is_some()
    }

    /// Reads counted so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Whether the elevator runs.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Relaxed) != 0
    }

    pub(crate) fn has_stop(&self, shard: usize) -> bool {
        self.stops.load(Relaxed) >> shard & 1 != 0
    }

    /// The current position, for whole stripes or for other lines.
    pub(crate) fn line(&self, whole: bool) -> u64 {
        self.lines[usize::from(!whole)].load(Relaxed)
    }

    /// Publishes the next stop of a shard. Returns whether the elevator starts to run: the other
    /// shards then have no stop, or an outdated one.
    pub(crate) fn publish(&self, shard: usize, stop: Option<ElevatorStop>) -> bool {
        let set = |bits: &AtomicU64, on: bool| {
            let is_on = bits.load(Relaxed) >> shard & 1 != 0;
            match on {
                true if !is_on => bits.fetch_or(1 << shard, Relaxed) == 0,
                false if is_on => {
                    bits.fetch_and(!(1 << shard), Relaxed);
                    false
                }
                _ => false,
            }
        };
        if let Some(ElevatorStop { key, whole, operations }) = stop {
            let published = &self.by_shard[shard];
            published.position.store(key.line() << 1 | u64::from(!whole), Relaxed);
            published.operations.store(operations, Relaxed);
        }
        set(&self.stops, stop.is_some());
        set(&self.running, stop.is_some_and(|stop| stop.operations > 0))
    }

    /// Whether a line precedes the published stop of its shard.
    pub(crate) fn precedes_stop(&self, shard: usize, line: u64, whole: bool) -> bool {
        if !self.has_stop(shard) {
            return true;
        }
        let position = self.by_shard[shard].position.load(Relaxed);
        let is_whole = position & 1 == 0;
        let distance = |line| distance(self.line(whole), line);
        if whole == is_whole { distance(line) < distance(position >> 1) } else { whole }
    }

    /// Pauses the elevator until an operation of this shard completes. This follows a destage out
    /// of order, which is far from the others: a disk that serves nearby writes first would never
    /// reach it while the elevator went on.
    pub(crate) fn pause(&self, shard: usize) {
        self.pauses.fetch_or(1 << shard, Relaxed);
    }

    /// Lets the elevator continue after [`Elevator::pause`].
    pub(crate) fn unpause(&self, shard: usize) {
        if self.pauses.load(Relaxed) >> shard & 1 != 0 {
            self.pauses.fetch_and(!(1 << shard), Relaxed);
        }
    }

    /// The number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.by_shard.len()
    }

    /// The shard with the next stop. `None` if no shard has one, if the maximum number of
    /// operations is in flight, or while the elevator is paused.
    pub(crate) fn next(&self) -> Option<usize> {
        let lines = [self.line(true), self.line(false)];
        // One in `REST_EVERY` times, other lines precede whole stripes.
        let favoured = u64::from(self.started.load(Relaxed) % REST_EVERY == REST_EVERY - 1);
        let (mut stops, running) = (self.stops.load(Relaxed), self.running.load(Relaxed));
        let (mut operations, mut next) = (0, None);
        while stops != 0 {
            let shard = stops.trailing_zeros() as usize;
            stops &= stops - 1;
            let published = &self.by_shard[shard];
            if running >> shard & 1 != 0 {
                operations = operations.max(published.operations.load(Relaxed));
            }
            let position = published.position.load(Relaxed);
            let (line, rest) = (position >> 1, position & 1);
            let distance = distance(lines[rest as usize], line) | (rest ^ favoured) << 63;
            if next.is_none_or(|(least, _)| distance < least) {
                next = Some((distance, shard));
            }
        }
        let (_, shard) = next.filter(|_| self.pauses.load(Relaxed) == 0)?;
        (self.in_flight.load(Relaxed) < operations).then_some(shard)
    }

    /// Moves the current position to a stop.
    pub(crate) fn move_to(&self, stop: &ElevatorStop) {
        self.lines[usize::from(!stop.whole)].store(stop.key.line(), Relaxed);
        self.started.fetch_add(1, Relaxed);
    }

    /// Counts an operation over `lines` lines as started.
    pub(crate) fn count_start(&self, lines: usize) {
        self.in_flight.fetch_add(1, Relaxed);
        self.lines_in_flight.fetch_add(lines, Relaxed);
        self.slices.iter().for_each(|slices| slices.count_start(lines));
    }

    /// Counts an operation over `lines` lines as completed.
    pub(crate) fn count_end(&self, lines: usize, now_ms: u64) {
        self.rate.count_end(lines, now_ms);
        let before = self.in_flight.fetch_sub(1, Relaxed);
        if before == 1 {
            self.slices.iter().for_each(|slices| slices.end(now_ms));
        }
        let lines_before = self.lines_in_flight.fetch_sub(lines, Relaxed);
        assert!(before > 0 && lines_before >= lines, "more operations completed than started");
    }

    /// Whether more lines of the volume may be in flight, if each shard may have `dirty_lines_max`
    /// dirty lines.
    ///
    /// At most half of them are in flight. Otherwise destage catches up with a sequential writer
    /// and issues small I/Os. An array that collects writes into whole stripes gets a quarter more
    /// than it holds, and then nothing until half of that is done: with more, it would destage
    /// incomplete stripes; if refilled one by one, its disks would get small I/Os.
    pub(crate) fn may_add_lines(&self, dirty_lines_max: usize) -> bool {
        let lines = self.lines_in_flight.load(Relaxed);
        let half = dirty_lines_max * self.shards() / 2;
        let Some(lines_max) = self.lines_max else { return lines == 0 || lines < half };
        let most = half.min(lines_max);
        if lines >= most {
            self.full.store(true, Relaxed);
        } else if lines <= most / 2 {
            self.full.store(false, Relaxed);
        }
        lines == 0 || !self.full.load(Relaxed)
    }
}

/// The distance from the elevator to a line. Lines have 48 bits, so lines behind the elevator are
/// farther than all lines ahead of it. The highest bit is clear.
const fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & (u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VolumeId;

    fn stop(line: u64, whole: bool) -> Option<ElevatorStop> {
        Some(ElevatorStop { key: LineKey::new(VolumeId(3), line), whole, operations: 4 })
    }

    fn dispatch(elevator: &Elevator, stop: Option<ElevatorStop>) {
        elevator.count_start(1);
        elevator.move_to(&stop.unwrap());
    }

    #[test]
    fn the_elevator_ascends_and_wraps_around() {
        let elevator = Elevator::new(3, 0, false);
        assert_eq!(elevator.next(), None);
        elevator.publish(0, stop(50, false));
        elevator.publish(1, stop(40, false));
        assert_eq!(elevator.next(), Some(1));
        dispatch(&elevator, stop(40, false));
        elevator.publish(1, stop(41, false));
        elevator.publish(2, stop(39, false));
        assert_eq!(elevator.next(), Some(1), "a line behind the elevator waits");
        dispatch(&elevator, stop(41, false));
        elevator.publish(1, None);
        assert!(!elevator.has_stop(1));
        assert_eq!(elevator.next(), Some(0));
        dispatch(&elevator, stop(50, false));
        elevator.publish(0, None);
        assert_eq!(elevator.next(), Some(2));
        elevator.publish(2, None);
        assert!(!elevator.is_running());
    }

    #[test]
    fn operations_in_flight_are_limited_by_the_highest_demand() {
        let elevator = Elevator::new(2, 0, false);
        elevator.publish(0, stop(1, false));
        (0..4).for_each(|_| elevator.count_start(1));
        assert_eq!(elevator.next(), None);
        let demanding = ElevatorStop { operations: 5, ..stop(2, false).unwrap() };
        elevator.publish(1, Some(demanding));
        assert_eq!(elevator.next(), Some(0), "the limit applies to all shards together");
        elevator.count_start(1);
        assert_eq!(elevator.next(), None);
        elevator.count_end(1, 0);
        assert_eq!(elevator.next(), Some(0));
    }

    #[test]
    fn whole_stripes_precede_other_lines_without_starving_them() {
        let elevator = Elevator::new(2, 0, false);
        let stops = [stop(1, false), stop(100, true)];
        elevator.publish(0, stops[0]);
        elevator.publish(1, stops[1]);
        let shards: Vec<_> = (0..32)
            .map(|_| {
                let next = elevator.next().unwrap();
                dispatch(&elevator, stops[next]);
                elevator.count_end(1, 0);
                next
            })
            .collect();
        assert_eq!(shards.iter().filter(|&&shard| shard == 0).count(), 2);
        assert_eq!((shards[0], shards[15], shards[31]), (1, 0, 0));
    }

    #[test]
    fn at_most_half_of_the_dirty_limit_is_in_flight() {
        let elevator = Elevator::new(2, 0, false);
        assert!(elevator.may_add_lines(0), "one operation may always be in flight");
        elevator.count_start(7);
        assert!(elevator.may_add_lines(8));
        elevator.count_start(1);
        assert!(!elevator.may_add_lines(8));
    }

    #[test]
    fn beside_reads_as_much_is_in_flight_as_the_throttled_writers_sent() {
        let elevator = Elevator::new(2, 0, false);
        let left = || elevator.lines_left(elevator.window(2), 0);
        assert_eq!(left(), 2, "one operation without throttled writers");
        (0..3).for_each(|_| elevator.count_throttled(8));
        assert_eq!(left(), 16, "half of the writers beside few reads");
        (0..2).for_each(|_| elevator.count_read());
        assert_eq!(left(), 24);
        elevator.count_start(20);
        assert_eq!(left(), 4);
        elevator.count_admitted(8);
        assert_eq!(left(), 0);
        elevator.count_end(20, 0);
        (0..2).for_each(|_| elevator.count_start(1));
        assert_eq!(left(), 0, "two writers wait");
    }

    #[test]
    fn an_array_gets_a_quarter_more_than_it_holds_and_is_refilled_at_half() {
        let elevator = Elevator::new(2, 16 * LINE_BYTES, false);
        (0..20).for_each(|_| {
            assert!(elevator.may_add_lines(1_000));
            elevator.count_start(1);
        });
        for lines in (10..20).rev() {
            assert!(!elevator.may_add_lines(1_000), "{lines} more");
            elevator.count_end(1, 0);
        }
        assert!(elevator.may_add_lines(1_000));
        assert_eq!(elevator.in_flight.load(Relaxed), 10);
    }
}
