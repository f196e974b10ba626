use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

const GIB: u64 = 1 << 30;
const KIB: u64 = 1 << 10;

fn read(offset: u64) -> ByteRange {
    ByteRange::new(offset, LINE_BYTES)
}

/// A cache whose disk answers at once.
struct Cache {
    streams: Streams,
    /// By line: whether it was fetched and not read yet, and whether it is marked.
    lines: HashMap<u64, (bool, bool)>,
    /// The lines in the order of their arrival. The oldest are evicted above the limit.
    arrived: VecDeque<u64>,
    lines_max: usize,
    volume_bytes: u64,
    missed: u64,
    prefetched: u64,
    used: u64,
}

impl Cache {
    fn new(volume_bytes: u64) -> Self {
        Self {
            streams: Streams::new(volume_bytes, 4 * GIB),
            lines: HashMap::new(),
            arrived: VecDeque::new(),
            lines_max: usize::MAX,
            volume_bytes,
            missed: 0,
            prefetched: 0,
            used: 0,
        }
    }

    fn insert(&mut self, line: u64, state: (bool, bool)) {
        self.lines.insert(line, state);
        self.arrived.push_back(line);
        if self.arrived.len() > self.lines_max
            && let Some(oldest) = self.arrived.pop_front()
        {
            self.lines.remove(&oldest);
        }
    }

    fn read(&mut self, range: ByteRange) {
        let mut has_missed = false;
        for line in lines(range) {
            let Some(state) = self.lines.get_mut(&line) else {
                self.missed += 1;
                has_missed = true;
                self.insert(line, (false, false));
                continue;
            };
            let (is_fetched, is_marked) = std::mem::take(state);
            if is_fetched {
                self.used += 1;
                self.streams.on_use(LINE_BYTES);
            }
            if is_marked {
                let plan = self.streams.on_mark(line);
                self.fetch(plan);
            }
        }
        if has_missed {
            let plan = self.streams.on_miss(range);
            self.fetch(plan);
        }
    }

    fn fetch(&mut self, plan: Option<PrefetchPlan>) {
        let Some(plan) = plan else { return };
        assert!(plan.count > 0);
        for range in plan.ranges() {
            assert!(range.len > 0 && range.end() <= self.volume_bytes, "{plan:?}");
            for line in lines(range) {
                let is_marked = line == plan.mark;
                if let Some(state) = self.lines.get_mut(&line) {
                    state.1 |= is_marked;
                } else {
                    self.prefetched += 1;
                    self.insert(line, (true, is_marked));
                }
            }
        }
    }
}

fn lines(range: ByteRange) -> std::ops::Range<u64> {
    range.offset / LINE_BYTES..range.end().div_ceil(LINE_BYTES)
}

#[test]
fn two_adjacent_misses_make_a_stream() {
    let mut streams = Streams::new(GIB, GIB);
    assert_eq!(streams.on_miss(read(0)), None);
    let plan = streams.on_miss(read(4096)).unwrap();
    assert_eq!((plan.first, plan.count), (ByteRange::new(8192, 4096), 1));
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
fn reads_of_every_size_and_direction_are_prefetched() {
    for len in [512, 4 * KIB, 24 * KIB, 64 * KIB, 1024 * KIB, 2048 * KIB] {
        let count = (256 << 20) / len;
        for descends in [false, true] {
            let mut cache = Cache::new(GIB);
            for index in 0..count.min(4_096) {
                let offset = index * len;
                let offset = if descends { GIB - len - offset } else { offset };
                cache.read(ByteRange::new(offset, len));
            }
            let lines_per_read = len.div_ceil(LINE_BYTES);
            let missed = cache.missed / lines_per_read;
            assert!(missed <= 2, "{missed} of {count} reads of {len} bytes, {descends}");
        }
    }
}

#[test]
fn the_window_grows_with_what_was_read_and_then_only_when_the_client_catches_up() {
    let mut streams = Streams::new(GIB, GIB);
    streams.on_miss(read(0));
    let mut plan = streams.on_miss(read(4096)).unwrap();
    // A quarter of what was read, but at least a line, until a window has 128 KiB.
    let mut windows = vec![];
    while plan.first.offset < 2 << 20 {
        windows.push(plan.first.len / KIB);
        let next = streams.on_mark(plan.mark).unwrap();
        assert_eq!(next.first.offset, plan.first.end());
        plan = next;
    }
    let (growing, grown) = windows.split_at(22);
    let first = [4, 4, 4, 4, 4, 4, 8, 8, 8, 12, 12, 16, 20, 24, 28, 36, 40, 52, 60, 72, 88, 108];
    assert_eq!(growing, first);
    assert!(grown.iter().all(|&kib| kib == 128), "{grown:?}");
    // The client catches up with the window, which is still in flight.
    assert_eq!(streams.on_miss(read(plan.first.offset)), None);
    let next = streams.on_mark(plan.mark).unwrap();
    assert_eq!(next.first.len, 260 * KIB);
}

#[test]
fn more_is_read_ahead_where_a_seek_costs_as_much_as_many_bytes() {
    let threshold = |threshold_bytes| SplitCost {
        threshold_bytes,
        fixed_ns: 8_000_000,
        bytes_per_second: Some(150 << 20),
    };
    let window_after_1mib = |cost: Option<SplitCost>| {
        let mut cache = Cache::new(GIB);
        cost.iter().for_each(|cost| cache.streams.set_split_cost(cost));
        (0..256).for_each(|line| cache.read(read(line * LINE_BYTES)));
        cache.prefetched * LINE_BYTES - (1 << 20)
    };
    let flash = window_after_1mib(Some(threshold(256 << 10)));
    let hard_disk = window_after_1mib(Some(threshold(4 << 20)));
    assert_eq!(window_after_1mib(None), flash);
    assert!(hard_disk > flash, "{hard_disk} and {flash}");
}

#[test]
fn windows_end_with_the_volume_and_fit_the_pool() {
    let mut streams = Streams::new(64 << 10, 1 << 20);
    streams.on_miss(ByteRange::new(0, 20 * KIB));
    let plan = streams.on_miss(ByteRange::new(20 * KIB, 20 * KIB)).unwrap();
    assert_eq!(plan.first.end(), 60 << 10);
    let last = streams.on_mark(plan.mark).unwrap();
    assert_eq!(last.first.end(), 64 << 10);
    assert_eq!(streams.on_mark(last.mark), None);
    let mut tiny = Streams::new(GIB, 16 * 4096);
    tiny.on_miss(read(0));
    assert_eq!(tiny.on_miss(read(4096)).unwrap().first.len, 4096);
    // A pool that is resized.
    let mut cache = Cache::new(GIB);
    let longest = |cache: &mut Cache, line: u64| {
        let before = cache.prefetched;
        cache.read(read(line * LINE_BYTES));
        (cache.prefetched - before) * LINE_BYTES
    };
    cache.streams.set_pool(1 << 20);
    assert!((0..4_096).all(|line| longest(&mut cache, line) <= 64 * KIB));
    cache.streams.set_pool(GIB);
    assert!((4_096..8_192).any(|line| longest(&mut cache, line) > 64 * KIB));
    let mut descending = Streams::new(10_000, GIB);
    descending.on_miss(ByteRange::new(9_000, 1_000));
    let plan = descending.on_miss(ByteRange::new(8_192, 808)).unwrap();
    assert_eq!((plan.first, plan.mark), (ByteRange::new(4_096, 4_096), 1));
}

/// In the pool of each test size, a tenth of which holds new lines: windows of four streams that
/// each take their own limit are evicted unread, and then more reads miss than without prefetch.
#[test]
fn streams_read_at_once_share_the_pool() {
    for pool_bytes in [32 << 20, 64 << 20, 256 << 20_u64] {
        let mut cache = Cache::new(4 * GIB);
        cache.streams.set_pool(pool_bytes);
        cache.lines_max = (pool_bytes / LINE_BYTES / 10) as usize;
        let mut read_of = [0; 4];
        let mut state = 1_u64;
        for _ in 0..4096 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let stream = (state >> 62) as usize;
            let offset = stream as u64 * GIB + read_of[stream];
            read_of[stream] += 128 * KIB;
            cache.read(ByteRange::new(offset, 128 * KIB));
        }
        let lines = 4096 * 128 * KIB / LINE_BYTES;
        assert!(cache.missed < lines / 10, "{} of {lines} lines missed", cache.missed);
        let unused = cache.prefetched - cache.used;
        assert!(unused < lines / 10, "{unused} of {lines} lines read ahead in vain");
        // Alone, a stream has longer windows.
        let [of_four, alone] = [4 * 32, 4 << 10].map(|reads| {
            for _ in 0..reads {
                cache.read(ByteRange::new(read_of[0], 128 * KIB));
                read_of[0] += 128 * KIB;
            }
            cache.streams.window_max()
        });
        assert!(alone >= 2 * of_four, "{of_four}, then {alone}");
    }
}

#[test]
fn unused_windows_suspend_prefetch() {
    let mut streams = Streams::new(1 << 50, GIB);
    let mut bytes = 0;
    for i in 0..100_000 {
        streams.on_miss(read(i << 26));
        let plan = streams.on_miss(read((i << 26) + 4096));
        bytes += plan.map_or(0, |plan| plan.first.len);
    }
    assert_eq!(bytes, CREDIT_MAX_BYTES as u64);
    // A long run is prefetched nevertheless, and the reads of its lines earn the credit back.
    let mut cache = Cache { streams, ..Cache::new(1 << 50) };
    (0..1_000).for_each(|line| cache.read(read((1 << 49) + line * LINE_BYTES)));
    assert!(cache.missed <= 16, "{}", cache.missed);
    assert!(cache.streams.credit > 0);
}

#[test]
fn random_reads_of_a_cached_span_are_not_read_ahead() {
    for len in [4 * KIB, 64 * KIB, 256 * KIB] {
        let mut cache = Cache { lines_max: 1 << 17, ..Cache::new(2 * GIB) };
        let mut dice = 1u64;
        for _ in 0..(16 * GIB / len).min(400_000) {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            cache.read(ByteRange::new((dice >> 33) % (2 * GIB / len) * len, len));
        }
        let (missed, vain) = (cache.missed, cache.prefetched - cache.used);
        let allowed = 2 * CREDIT_MAX_BYTES as u64 / LINE_BYTES + missed / 200;
        assert!(vain <= allowed, "{vain} of {} in vain, {missed} missed", cache.prefetched);
    }
}

#[test]
fn hundreds_of_interleaved_streams_are_distinguished() {
    for descends in [false, true] {
        let mut cache = Cache::new(1 << 45);
        for index in 1..=256 {
            for base in (1..=200).map(|at| at << 36) {
                let at = index * LINE_BYTES;
                cache.read(read(if descends { base - at } else { base + at }));
            }
        }
        // A few streams share an entry of the table, and are found two misses later.
        assert!(cache.missed < 6 * 200, "{}", cache.missed);
        assert!(cache.used > 250 * 200 - 6 * 200);
    }
}

#[test]
fn reads_at_equal_distances_are_prefetched_in_both_directions() {
    for step in [32 << 10, -36 << 10, 4_608, -9_216] {
        let mut cache = Cache::new(GIB);
        for index in 0..1_000 {
            let offset = (GIB / 2).checked_add_signed(index * step).unwrap();
            cache.read(ByteRange::new(offset, 2_048));
        }
        assert!(cache.missed < 20, "{} of 1000 at a distance of {step}", cache.missed);
    }
}

#[test]
fn a_stream_at_equal_distances_ends_with_the_volume() {
    let mut cache = Cache::new(10 << 20);
    for offset in (0..10 << 20).step_by(64 << 10) {
        cache.read(read(offset));
    }
    assert!(cache.missed < 8, "{}", cache.missed);
    assert_eq!(cache.prefetched, cache.used);
}

#[test]
fn a_stale_stream_is_forgotten() {
    let mut streams = Streams::new(1 << 50, GIB);
    streams.on_miss(read(0));
    streams.on_miss(read(4096)).unwrap();
    (1..=STALE_EVENTS).for_each(|at| assert_eq!(streams.on_miss(read((at * 7919) << 22)), None));
    assert_eq!(streams.streams.len(), 1);
    (1..=2).for_each(|at| assert_eq!(streams.on_miss(read((at * 7927) << 23)), None));
    assert!(streams.streams.is_empty());
}

/// Files of these sizes, in lines, are read from the start to the end, in pieces of some lines.
fn read_files(files: &[u64], piece: u64) -> Cache {
    let mut cache = Cache::new(1 << 50);
    for (number, &size) in files.iter().enumerate() {
        let start = (number as u64 + 1) << 34;
        for line in (0..size).step_by(piece as usize) {
            let len = piece.min(size - line) * LINE_BYTES;
            cache.read(ByteRange::new(start + line * LINE_BYTES, len));
        }
    }
    cache
}

proptest! {
    #[test]
    fn prefetch_in_vain_is_at_most_half_of_the_bytes_read_and_two_reads_of_each_stream(
        files in prop::collection::vec(1u64..600, 1..60), piece in 1u64..40,
    ) {
        let cache = read_files(&files, piece);
        let total: u64 = files.iter().sum();
        let vain = cache.prefetched - cache.used;
        let of_reads = 2 * piece * files.len() as u64;
        prop_assert!(vain <= total / 2 + of_reads, "{vain} of {}", cache.prefetched);
        prop_assert_eq!(cache.missed + cache.used, total);
    }

    #[test]
    fn no_sequence_of_reads_plans_outside_of_the_volume(
        reads in prop::collection::vec((0u64..2_000, 1u64..100, any::<bool>()), 0..400),
        sectors in 1_000u64..3_000,
    ) {
        let mut cache = Cache::new(sectors * 512);
        let mut next = 0;
        for (at, len, goes_on) in reads {
            let start = if goes_on { next } else { at % sectors };
            let end = (start + len).min(sectors);
            if start < end {
                cache.read(ByteRange::new(start * 512, (end - start) * 512));
            }
            next = end;
        }
        prop_assert!(cache.used <= cache.prefetched);
    }
}
