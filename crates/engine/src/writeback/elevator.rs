//! In which order the dirty lines of a volume go to its disk.
//!
//! A disk is written fastest in order of place, and an array makes few I/Os of many writes only
//! where neighbours come together. Each shard knows the dirty lines of its own regions. So the
//! shards of a volume share an elevator, which goes up through all of the volume and then begins
//! again at its start (C-LOOK). It runs while too much is dirty in any of them. Each then says
//! where its next stop is; who is the next on the way goes, and says where the one after that is.
//! What gets dirty ahead of the elevator goes in the same round.
//!
//! Whole stripes go before the rest, and every sixteenth operation is one of the rest, which
//! otherwise might never go.

use crate::LineKey;
use forebay_types::LINE_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// One operation in so many is for what is not a whole stripe.
const REST_EVERY: u32 = 16;
/// Shards whose stops fit into one word.
const SHARDS_MAX: usize = 64;

/// Where a shard would have the elevator stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// A dirty line that is not on its way to the disk.
    pub key: LineKey,
    /// It is the first one of a stripe all of which is dirty.
    pub whole: bool,
    /// As many operations of all shards as may be in flight because too much is dirty in this one;
    /// none where it is not.
    pub operations: u32,
}

/// The stop of one shard, without meaning where its bits are not set.
#[derive(Debug, Default)]
struct Place {
    place: AtomicU64,
    operations: AtomicU32,
}

/// See the module's description. What is in it is advice: where two shards change it at once, the
/// order suffers for a moment, and nothing else.
#[derive(Debug)]
pub struct Elevator {
    /// The lines from which on it goes: for whole stripes, and for the rest.
    lines: [AtomicU64; 2],
    /// Operations of all shards that are in flight, their lines, and how many it has let go.
    in_flight: AtomicU32,
    lines_in_flight: AtomicUsize,
    started: AtomicU32,
    /// Lines that the disk is given at once, where that is known.
    lines_max: Option<usize>,
    /// It was given as many, and gets the next when it has done half of them.
    full: AtomicBool,
    /// A bit for each shard with a stop, and for each in which too much is dirty.
    stops: AtomicU64,
    calls: AtomicU64,
    /// A bit for each shard for whose sake it stands still.
    holds: AtomicU64,
    by_shard: Box<[Place]>,
}

impl Elevator {
    /// One for a volume in so many shards, from 1 to 64, on a disk that holds so many bytes of
    /// writes before it has done them, as [`forebay_types::DiskGeometry::held_bytes`] says.
    ///
    /// # Panics
    /// If there are more shards.
    pub fn new(shards: usize, held_bytes: u64) -> Arc<Self> {
        assert!((1..=SHARDS_MAX).contains(&shards), "1 to {SHARDS_MAX} shards share an elevator");
        Arc::new(Self {
            lines: Default::default(),
            in_flight: AtomicU32::new(0),
            lines_in_flight: AtomicUsize::new(0),
            started: AtomicU32::new(0),
            lines_max: (held_bytes > 0).then_some((held_bytes / LINE_BYTES * 5 / 4) as usize),
            full: AtomicBool::new(false),
            stops: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            by_shard: (0..shards).map(|_| Place::default()).collect(),
        })
    }

    /// Whether it runs.
    pub(crate) fn is_called(&self) -> bool {
        self.calls.load(Relaxed) != 0
    }

    /// Whether this shard has one.
    pub(crate) fn has_stop(&self, shard: usize) -> bool {
        self.stops.load(Relaxed) >> shard & 1 != 0
    }

    /// The line from which on it goes, to whole stripes or to the rest.
    pub(crate) fn line(&self, whole: bool) -> u64 {
        self.lines[usize::from(!whole)].load(Relaxed)
    }

    /// Says where the next stop of a shard is. Whether it begins to run with that: the others have
    /// not said where they have one, or that was long ago.
    pub(crate) fn call(&self, shard: usize, stop: Option<Stop>) -> bool {
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
        if let Some(Stop { key, whole, operations }) = stop {
            let place = &self.by_shard[shard];
            place.place.store(key.line() << 1 | u64::from(!whole), Relaxed);
            place.operations.store(operations, Relaxed);
        }
        set(&self.stops, stop.is_some());
        set(&self.calls, stop.is_some_and(|stop| stop.operations > 0))
    }

    /// Whether a shard has not said that it would have the elevator stop at a line, or at a place
    /// before that one.
    pub(crate) fn is_news(&self, shard: usize, line: u64, whole: bool) -> bool {
        if !self.has_stop(shard) {
            return true;
        }
        let place = self.by_shard[shard].place.load(Relaxed);
        let is_whole = place & 1 == 0;
        let way = |line| way(self.line(whole), line);
        if whole == is_whole { way(line) < way(place >> 1) } else { whole }
    }

    /// It stands still until something has ended that this shard has in flight: what goes out of
    /// order is far from all else, and a disk that takes what is near first would never come to it.
    pub(crate) fn hold(&self, shard: usize) {
        self.holds.fetch_or(1 << shard, Relaxed);
    }

    /// That has ended.
    pub(crate) fn release(&self, shard: usize) {
        if self.holds.load(Relaxed) >> shard & 1 != 0 {
            self.holds.fetch_and(!(1 << shard), Relaxed);
        }
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.by_shard.len()
    }

    /// The shard with the next stop. `None` where nobody has one, where as many operations are in
    /// flight as may be, and while it stands still.
    pub(crate) fn next(&self) -> Option<usize> {
        let lines = [self.line(true), self.line(false)];
        // Now and then the rest comes first.
        let favoured = u64::from(self.started.load(Relaxed) % REST_EVERY == REST_EVERY - 1);
        let (mut stops, calls) = (self.stops.load(Relaxed), self.calls.load(Relaxed));
        let (mut operations, mut next) = (0, None);
        while stops != 0 {
            let shard = stops.trailing_zeros() as usize;
            stops &= stops - 1;
            let place = &self.by_shard[shard];
            if calls >> shard & 1 != 0 {
                operations = operations.max(place.operations.load(Relaxed));
            }
            let place = place.place.load(Relaxed);
            let (place, rest) = (place >> 1, place & 1);
            let way = way(lines[rest as usize], place) | (rest ^ favoured) << 63;
            if next.is_none_or(|(least, _)| way < least) {
                next = Some((way, shard));
            }
        }
        let (_, shard) = next.filter(|_| self.holds.load(Relaxed) == 0)?;
        (self.in_flight.load(Relaxed) < operations).then_some(shard)
    }

    /// It has stopped there.
    pub(crate) fn stopped(&self, stop: &Stop) {
        self.lines[usize::from(!stop.whole)].store(stop.key.line(), Relaxed);
        self.started.fetch_add(1, Relaxed);
    }

    /// An operation that writes back so many lines has started.
    pub(crate) fn began(&self, lines: usize) {
        self.in_flight.fetch_add(1, Relaxed);
        self.lines_in_flight.fetch_add(lines, Relaxed);
    }

    /// One has ended.
    pub(crate) fn ended(&self, lines: usize) {
        let before = self.in_flight.fetch_sub(1, Relaxed);
        let lines_before = self.lines_in_flight.fetch_sub(lines, Relaxed);
        assert!(before > 0 && lines_before >= lines, "more operations ended than began");
    }

    /// Whether more may be in flight of the volume, where so many lines of each shard may be dirty.
    ///
    /// Half of them stay: who writes in order would otherwise have the elevator at his heels, and
    /// what he writes taken to the disk in small pieces. An array that holds writes itself, while
    /// it makes whole stripes of them, gets a quarter more than it holds, and then nothing until
    /// half of that is done: with more it would take pieces of all of them, and with one at a time
    /// its disks would get small ones.
    pub(crate) fn has_room(&self, dirty_lines_max: usize) -> bool {
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

/// How far it is from where the elevator is to a line. Lines have 48 bits: those behind it are
/// beyond all that are ahead of it. The highest bit is not set.
const fn way(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & (u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VolumeId;

    fn stop(line: u64, whole: bool) -> Option<Stop> {
        Some(Stop { key: LineKey::new(VolumeId(3), line), whole, operations: 4 })
    }

    fn went(elevator: &Elevator, stop: Option<Stop>) {
        elevator.began(1);
        elevator.stopped(&stop.unwrap());
    }

    #[test]
    fn it_goes_up_and_begins_again() {
        let elevator = Elevator::new(3, 0);
        assert_eq!(elevator.next(), None);
        elevator.call(0, stop(50, false));
        elevator.call(1, stop(40, false));
        assert_eq!(elevator.next(), Some(1));
        went(&elevator, stop(40, false));
        elevator.call(1, stop(41, false));
        elevator.call(2, stop(39, false));
        assert_eq!(elevator.next(), Some(1), "what is behind it waits");
        went(&elevator, stop(41, false));
        elevator.call(1, None);
        assert!(!elevator.has_stop(1));
        assert_eq!(elevator.next(), Some(0));
        went(&elevator, stop(50, false));
        elevator.call(0, None);
        assert_eq!(elevator.next(), Some(2));
        elevator.call(2, None);
        assert!(!elevator.is_called());
    }

    #[test]
    fn no_more_are_in_flight_than_somebody_asks_for() {
        let elevator = Elevator::new(2, 0);
        elevator.call(0, stop(1, false));
        (0..4).for_each(|_| elevator.began(1));
        assert_eq!(elevator.next(), None);
        let hurried = Stop { operations: 5, ..stop(2, false).unwrap() };
        elevator.call(1, Some(hurried));
        assert_eq!(elevator.next(), Some(0), "it is all one disk");
        elevator.began(1);
        assert_eq!(elevator.next(), None);
        elevator.ended(1);
        assert_eq!(elevator.next(), Some(0));
    }

    #[test]
    fn whole_stripes_go_first_and_the_rest_goes_too() {
        let elevator = Elevator::new(2, 0);
        let stops = [stop(1, false), stop(100, true)];
        elevator.call(0, stops[0]);
        elevator.call(1, stops[1]);
        let shards: Vec<_> = (0..32)
            .map(|_| {
                let next = elevator.next().unwrap();
                went(&elevator, stops[next]);
                elevator.ended(1);
                next
            })
            .collect();
        assert_eq!(shards.iter().filter(|&&shard| shard == 0).count(), 2);
        assert_eq!((shards[0], shards[15], shards[31]), (1, 0, 0));
    }

    #[test]
    fn half_of_what_may_be_dirty_stays() {
        let elevator = Elevator::new(2, 0);
        assert!(elevator.has_room(0), "one operation may always be in flight");
        elevator.began(7);
        assert!(elevator.has_room(8));
        elevator.began(1);
        assert!(!elevator.has_room(8));
    }

    #[test]
    fn an_array_is_given_a_quarter_more_than_it_holds_and_then_half_of_that() {
        let elevator = Elevator::new(2, 16 * LINE_BYTES);
        (0..20).for_each(|_| {
            assert!(elevator.has_room(1_000));
            elevator.began(1);
        });
        for lines in (10..20).rev() {
            assert!(!elevator.has_room(1_000), "{lines} more");
            elevator.ended(1);
        }
        assert!(elevator.has_room(1_000));
        assert_eq!(elevator.in_flight.load(Relaxed), 10);
    }
}
