//! What was counted of a volume in the past: intervals of five seconds for an hour, of five minutes
//! for a day, and of an hour for ten days. Pure: the time is an argument, and is that of the
//! system, so that the intervals of all volumes end together. Those of five seconds end with the
//! process, the others survive a restart.

use forebay_api::{History, HistoryPoint};
use forebay_format::{NumberGroup, pack, unpack};
use forebay_runtime::{LatencyClass, VolumeStatistics};
use std::collections::VecDeque;

/// The length of the intervals in seconds, and how many are kept.
const RINGS: [(u64, usize); 3] = [(5, 720), (300, 288), (3_600, 240)];
/// The first ring that is kept over restarts.
const KEPT: usize = 1;
const POINTS: usize = RINGS[1].1 + RINGS[2].1;
/// Volumes with intervals of five seconds: about 60 KiB for each.
pub(super) const FINE_VOLUMES: usize = 64;

/// The latencies of a point, in the order of its numbers.
const LATENCIES: [LatencyClass; 6] = [
    LatencyClass::ReadHit,
    LatencyClass::ReadMiss,
    LatencyClass::WriteMemory,
    LatencyClass::WriteDisk,
    LatencyClass::DiskRead,
    LatencyClass::DiskWrite,
];

/// The numbers of a point: its end and length, 14 counts, a count and a sum in nanoseconds for each
/// latency, and the state at its end.
const NUMBERS: usize = 2 + 14 + 2 * LATENCIES.len() + 2;

/// How the points of a volume are kept over restarts: one ring after the other, the oldest point
/// first. Each ring is padded with zeroes at its end.
pub(super) fn groups() -> Vec<NumberGroup> {
    vec![("history".to_owned(), POINTS * NUMBERS)]
}

/// What a volume holds at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PastContent {
    pub dirty_bytes: u64,
    pub cached_bytes: u64,
}

/// A point as plain numbers, so that it can be added to that of another volume, and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PastPoint([u64; NUMBERS]);

/// The past of a volume.
#[derive(Debug)]
pub(super) struct Past {
    rings: [Ring; RINGS.len()],
    /// Whether it has intervals of five seconds.
    is_fine: bool,
}

#[derive(Debug)]
struct Ring {
    /// When the interval in progress began, and what had been counted then, packed.
    begun: (u64, Vec<u8>),
    /// The ends of intervals, and their packed points.
    points: VecDeque<(u64, Vec<u8>)>,
}

impl Past {
    /// A past that continues now. `kept` are its points as [`Past::kept`] returned them; others are
    /// dropped.
    pub(super) fn new(kept: Option<&[u8]>, total: &[u64], now_s: u64, is_fine: bool) -> Self {
        let numbers = kept.and_then(|kept| unpack(kept, POINTS * NUMBERS)).unwrap_or_default();
        let (points, _) = numbers.as_chunks::<NUMBERS>();
        let mut points = points.iter();
        let rings = std::array::from_fn(|at| {
            let mut ring = Ring { begun: (now_s, pack(total)), points: VecDeque::new() };
            let most = if at < KEPT { 0 } else { RINGS[at].1 };
            for point in points.by_ref().take(most).filter(|point| point[0] != 0) {
                ring.points.push_back((point[0], pack(point)));
            }
            ring
        });
        Self { rings, is_fine }
    }

    /// Takes the total of a volume. Ends the intervals that are over.
    pub(super) fn observe(&mut self, total: &[u64], content: PastContent, now_s: u64) {
        let first = if self.is_fine { 0 } else { KEPT };
        for (ring, (interval_s, most)) in self.rings.iter_mut().zip(RINGS).skip(first) {
            let (begun_s, before) = &ring.begun;
            if now_s / interval_s == begun_s / interval_s {
                continue;
            }
            let before = unpack(before, total.len()).expect("packed by this ring");
            let added = total.iter().zip(before).map(|(now, then)| now.wrapping_sub(then));
            let added = VolumeStatistics::from_numbers(&added.collect::<Vec<_>>());
            let point = PastPoint::new(&added, content, *begun_s, now_s);
            ring.begun = (now_s, pack(total));
            // The clock may have been set back.
            let oldest_s = now_s.saturating_sub(interval_s * most as u64);
            ring.points.retain(|(ended_s, _)| (oldest_s..now_s).contains(ended_s));
            ring.points.push_back((now_s, pack(&point.0)));
            let excess = ring.points.len().saturating_sub(most);
            ring.points.drain(..excess);
        }
    }

    /// The points, packed, to be kept over restarts.
    pub(super) fn kept(&self) -> Vec<u8> {
        let mut numbers = Vec::with_capacity(POINTS * NUMBERS);
        for (ring, (_, most)) in self.rings.iter().zip(RINGS).skip(KEPT) {
            let end = numbers.len() + most * NUMBERS;
            for point in ring.points() {
                numbers.extend_from_slice(&point.0);
            }
            numbers.resize(end, 0);
        }
        pack(&numbers)
    }
}

impl Ring {
    fn points(&self) -> impl Iterator<Item = PastPoint> {
        self.points.iter().map(|(_, packed)| {
            let numbers = unpack(packed, NUMBERS).expect("packed by this ring");
            PastPoint(numbers.try_into().expect("as many as were asked for"))
        })
    }
}

/// The past of one volume, or the sum of several, with the intervals of five seconds if they are
/// wanted and all have them.
pub(super) fn history<'a>(
    pasts: impl Iterator<Item = &'a Past> + Clone,
    now: u64,
    is_fine: bool,
) -> History {
    let is_fine = is_fine && pasts.clone().all(|past| past.is_fine);
    let [five_seconds, five_minutes, hours] = std::array::from_fn(|ring| {
        let interval_s = RINGS[ring].0;
        let mut sums = std::collections::BTreeMap::new();
        if ring < KEPT && !is_fine {
            return Vec::new();
        }
        for point in pasts.clone().flat_map(|past| past.rings[ring].points()) {
            // Intervals of several volumes end in the same observation, or nearly so.
            let sum = sums.entry(point.0[0] / interval_s).or_insert(PastPoint([0; NUMBERS]));
            sum.add(&point);
        }
        sums.values().map(PastPoint::shown).collect()
    });
    History { now, five_seconds, five_minutes, hours }
}

impl PastPoint {
    fn new(added: &VolumeStatistics, content: PastContent, begun_s: u64, ended_s: u64) -> Self {
        let counters = super::counters(added);
        let latencies = LATENCIES.map(|class| added.latencies.of(class));
        let mut numbers = vec![
            ended_s,
            ended_s.saturating_sub(begun_s),
            counters.reads,
            counters.writes,
            counters.read_hits,
            counters.deferred_writes,
            counters.read_bytes,
            counters.write_bytes,
            counters.flushes + counters.trims + counters.zeroes,
            counters.errors,
            counters.backend_reads,
            counters.backend_writes,
            counters.backend_read_bytes,
            counters.backend_write_bytes,
            counters.backend_flushes + counters.backend_erases,
            added.disk_busy_ns,
        ];
        for latency in latencies {
            numbers.extend([latency.count(), (latency.sum_us() * 1000.0) as u64]);
        }
        numbers.extend([content.dirty_bytes, content.cached_bytes]);
        Self(numbers.try_into().expect("as many as are listed above"))
    }

    fn add(&mut self, other: &Self) {
        let [ended_s, seconds] = [0, 1].map(|at| self.0[at].max(other.0[at]));
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        (self.0[0], self.0[1]) = (ended_s, seconds);
    }

    fn shown(&self) -> HistoryPoint {
        let [
            ended_at,
            seconds,
            reads,
            writes,
            read_hits,
            deferred_writes,
            read_bytes,
            write_bytes,
            other_requests,
            errors,
            backend_reads,
            backend_writes,
            backend_read_bytes,
            backend_write_bytes,
            backend_others,
            disk_busy_ns,
            latencies @ ..,
            dirty_bytes,
            cached_bytes,
        ] = self.0;
        let (pairs, _) = latencies.as_chunks::<2>();
        // Whole nanoseconds, so that the figures are short.
        let mean_us = |at: usize| {
            let [count, sum_ns] = pairs[at];
            (sum_ns / count.max(1)) as f64 / 1000.0
        };
        let of_clients = reads + writes + other_requests;
        let of_disk = backend_reads + backend_writes + backend_others;
        HistoryPoint {
            ended_at,
            seconds,
            reads,
            writes,
            read_hits,
            deferred_writes,
            read_bytes,
            write_bytes,
            other_requests,
            errors,
            backend_reads,
            backend_writes,
            backend_read_bytes,
            backend_write_bytes,
            saved_ios: of_clients.wrapping_sub(of_disk).cast_signed(),
            read_hit_us: mean_us(0),
            read_miss_us: mean_us(1),
            write_memory_us: mean_us(2),
            write_disk_us: mean_us(3),
            disk_read_us: mean_us(4),
            disk_write_us: mean_us(5),
            disk_busy_seconds: (disk_busy_ns / 1_000_000) as f64 / 1000.0,
            dirty_bytes,
            cached_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of a volume that has served so many reads from memory.
    fn total(reads: u64) -> Vec<u64> {
        let mut statistics = VolumeStatistics::default();
        statistics.requests.read_hits = reads;
        statistics.into_numbers()
    }

    fn content(dirty_bytes: u64) -> PastContent {
        PastContent { dirty_bytes, cached_bytes: 2 * dirty_bytes }
    }

    /// One read each second up to `until_s`, observed every half a minute.
    fn run(past: &mut Past, from_s: u64, until_s: u64) {
        for now_s in (from_s..=until_s).step_by(30) {
            past.observe(&total(now_s), content(now_s), now_s);
        }
    }

    fn shown(past: &Past) -> History {
        history(std::iter::once(past), 0, false)
    }

    #[test]
    fn intervals_end_with_the_clock_and_the_oldest_are_dropped() {
        let days = 12 * 86_400;
        let mut past = Past::new(None, &total(1_000_050), 1_000_050, true);
        run(&mut past, 1_000_050, 1_000_050 + days);
        let History { five_minutes, hours, .. } = shown(&past);
        for (points, (interval_s, most)) in [five_minutes, hours].iter().zip(&RINGS[KEPT..]) {
            let (interval_s, most) = (*interval_s, *most);
            assert_eq!(points.len(), most);
            assert!(
                points.windows(2).all(|pair| pair[0].ended_at + interval_s == pair[1].ended_at)
            );
            for point in points {
                assert!(point.ended_at % interval_s < 30, "{point:?}");
                assert_eq!((point.seconds, point.reads), (interval_s, interval_s));
                assert_eq!(point.read_hits, interval_s);
                assert_eq!([point.dirty_bytes, point.cached_bytes / 2], [point.ended_at; 2]);
                assert_eq!(point.saved_ios, interval_s.cast_signed());
            }
        }
    }

    #[test]
    fn the_points_are_kept_and_continue_after_a_gap() {
        let mut past = Past::new(None, &total(0), 900, true);
        run(&mut past, 900, 9_000);
        let before = shown(&past);
        let mut past = Past::new(Some(&past.kept()), &total(0), 20_010, true);
        assert_eq!(shown(&past), before);
        past.observe(&total(7), content(1), 20_100);
        let after = shown(&past);
        assert_eq!(after.five_minutes.len(), before.five_minutes.len() + 1);
        let last = after.five_minutes.last().unwrap();
        assert_eq!((last.ended_at, last.seconds, last.reads), (20_100, 90, 7));
        assert_eq!(shown(&Past::new(Some(b"\x80"), &total(0), 0, true)), History::default());
    }

    #[test]
    fn the_last_hour_has_intervals_of_five_seconds_if_they_are_wanted() {
        let mut past = Past::new(None, &total(1_000), 1_000, true);
        for now_s in (1_000..=8_000).step_by(5) {
            past.observe(&total(now_s), content(now_s), now_s);
        }
        let fine = history(std::iter::once(&past), 0, true).five_seconds;
        assert_eq!(fine.len(), 720);
        assert!(fine.windows(2).all(|pair| pair[0].ended_at + 5 == pair[1].ended_at));
        assert!(fine.iter().all(|point| (point.seconds, point.reads) == (5, 5)));
        assert!(shown(&past).five_seconds.is_empty(), "not wanted");
        let mut coarse = Past::new(None, &total(0), 0, false);
        coarse.observe(&total(9), content(0), 600);
        let both = history([&past, &coarse].into_iter(), 0, true);
        assert!(both.five_seconds.is_empty() && !both.five_minutes.is_empty());
    }

    #[test]
    fn points_after_the_present_are_dropped_when_the_clock_is_set_back() {
        let mut past = Past::new(None, &total(0), 90_000, true);
        run(&mut past, 90_000, 99_000);
        past.observe(&total(99_000), content(0), 93_010);
        let ends = shown(&past).five_minutes.iter().map(|point| point.ended_at).collect::<Vec<_>>();
        assert!(ends.is_sorted() && ends.last() == Some(&93_010), "{ends:?}");
    }

    #[test]
    fn volumes_add_up() {
        let mut pasts = [(); 2].map(|()| Past::new(None, &total(0), 0, true));
        for past in &mut pasts {
            past.observe(&total(5), content(3), 310);
        }
        pasts[1].observe(&total(6), content(4), 615);
        let sum = history(pasts.iter(), 0, true).five_minutes;
        let figures = sum.iter().map(|it| (it.ended_at, it.seconds, it.reads, it.dirty_bytes));
        assert_eq!(figures.collect::<Vec<_>>(), [(310, 310, 10, 6), (615, 305, 1, 4)]);
    }

    #[test]
    fn latencies_are_means() {
        let mut statistics = VolumeStatistics::default();
        let count = statistics.clone().into_numbers().len();
        statistics = VolumeStatistics::from_numbers(&vec![1; count]);
        let mut past = Past::new(None, &vec![0; count], 0, true);
        past.observe(&statistics.clone().into_numbers(), content(0), 300);
        let point = &shown(&past).five_minutes[0];
        let expected = statistics.latencies.of(LatencyClass::DiskRead).mean_us();
        assert!((point.disk_read_us - expected).abs() <= 0.001, "{point:?}");
    }
}
