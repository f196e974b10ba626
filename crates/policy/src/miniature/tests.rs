use super::lines::{Arrival, MiniatureLines};
use super::*;
use crate::testing::key;
use crate::{Eviction, Lines, Slot, Weir};
use proptest::prelude::*;
use std::collections::HashMap;

/// A prediction from so many sampled accesses, with these miss ratios.
pub(crate) fn predicted(sampled: f64, ratios: [f64; PoolSize::COUNT]) -> SizePrediction {
    let now = ratios[PoolSize::Now as usize];
    let mut counts = SizeCounts::default();
    counts.set(sampled, ratios.map(|ratio| ratio * sampled));
    counts.prediction(1.0, AccessCounts { accesses: sampled, misses: now * sampled })
}

const READ: LineAccess = LineAccess {
    hint: Hint::Normal,
    is_hit: false,
    was_ahead: false,
    admits: true,
    dirty_share: None,
};

/// A cache of `slots` lines with the policy and nothing else.
struct FullCache {
    policy: Weir,
    keys: Vec<u64>,
    slots: HashMap<u64, Slot>,
}

impl Lines for Vec<u64> {
    fn is_evictable(&self, _slot: Slot) -> bool {
        true
    }

    fn key(&self, slot: Slot) -> u64 {
        self[slot as usize]
    }
}

impl FullCache {
    fn new(slots: usize) -> Self {
        Self { policy: Weir::new(slots), keys: Vec::with_capacity(slots), slots: HashMap::new() }
    }

    /// Whether the line was there.
    fn read(&mut self, key: u64) -> bool {
        if let Some(&slot) = self.slots.get(&key) {
            self.policy.on_hit(slot);
            return true;
        }
        let slot = if self.keys.len() < self.keys.capacity() {
            self.keys.push(key);
            self.keys.len() as Slot - 1
        } else {
            let slot = self.policy.evict(key, Hint::Normal, &self.keys).unwrap();
            self.slots.remove(&std::mem::replace(&mut self.keys[slot as usize], key));
            slot
        };
        self.policy.on_insert(slot, key, Hint::Normal);
        self.slots.insert(key, slot);
        false
    }
}

const LINES: u64 = 16_384;

type Load = (&'static str, fn(u64) -> u64);

/// The line of each access.
const LOADS: [Load; 5] = [
    ("uniform", |n| key(n) % (3 * LINES)),
    ("hot set", |n| match key(n) % 10 {
        0..8 => key(n + (1 << 40)) % (LINES * 4 / 10),
        _ => key(n + (1 << 41)) % (4 * LINES),
    }),
    ("zipf 1", |n| {
        let share = (key(n) >> 11) as f64 / (1u64 << 53) as f64;
        ((4 * LINES) as f64).powf(share) as u64
    }),
    ("loop", |n| n % (LINES * 3 / 2)),
    ("loop and hot set", |n| match n % 2 {
        0 => LINES + n / 2 % LINES,
        _ => key(n) % (LINES / 2),
    }),
];

#[test]
fn miniatures_predict_what_the_policy_misses_with_other_sizes() {
    const PASSES: u64 = 24;
    for (name, line) in LOADS {
        let mut miniatures = Miniatures::new(LINES as usize);
        let mut caches =
            PoolSize::ALL.map(|size| (FullCache::new(size.of(LINES) as usize), [0.0; 2]));
        let mut counts = SizeCounts::default();
        let mut real = AccessCounts::default();
        for n in 0..PASSES * LINES {
            if n % LINES == 0 {
                counts.pass_time(10.0, real);
            }
            let key = key(line(n));
            let is_counted = n >= PASSES * LINES * 2 / 3;
            for (at, (cache, [all, missed])) in caches.iter_mut().enumerate() {
                let is_miss = f64::from(u8::from(!cache.read(key)));
                if is_counted {
                    *all += 1.0;
                    *missed += is_miss;
                }
                if at == PoolSize::Now as usize {
                    real.accesses += 1.0;
                    real.misses += is_miss;
                }
            }
            miniatures.access(key, READ, &mut counts);
        }
        miniatures.self_check();
        let prediction = counts.prediction(miniatures.rate(), real);
        for (size, (_, [all, missed])) in PoolSize::ALL.into_iter().zip(&caches) {
            let (found, exact) = (prediction.miss_ratio(size).unwrap(), missed / all);
            println!("{name}, {size:?}: {found:.3}, exact {exact:.3}");
            assert!((found - exact).abs() < 0.06, "{name}, {size:?}: {found:.3}, exact {exact:.3}");
        }
    }
}

/// Miniatures that sample every line given to them, and the counts of one volume.
struct Sampled(Miniatures, SizeCounts, f64);

impl Sampled {
    fn new(slots: usize) -> Self {
        Self(Miniatures::new(slots), SizeCounts::default(), 0.0)
    }

    /// A sampled line.
    fn hash(line: u64) -> u64 {
        key(line) & 0xffff_ffff
    }

    fn access(&mut self, line: u64, access: LineAccess) -> Option<ReadKind> {
        self.2 += 1.0;
        self.0.access(Self::hash(line), access, &mut self.1)
    }

    fn read(&mut self, lines: impl IntoIterator<Item = u64>) {
        for line in lines {
            self.access(line, READ);
        }
    }

    /// The sampled accesses that each size missed more or less than the present one.
    fn changes(&self) -> [f64; PoolSize::COUNT] {
        let half = AccessCounts { accesses: 2.0 * self.2, misses: self.2 };
        let prediction = self.1.prediction(1.0, half);
        PoolSize::ALL.map(|size| -prediction.hits_gained(size))
    }
}

#[test]
fn what_was_read_ahead_is_missed_at_no_size() {
    let mut sampled = Sampled::new(16 * 100);
    // Each pass fits, and would not fit half.
    for line in (0..900).map(|n| n % 90) {
        sampled.0.prefetch(Sampled::hash(line));
        let ahead = LineAccess { was_ahead: true, ..READ };
        assert_eq!(sampled.access(line, ahead), Some(ReadKind::Ahead));
    }
    assert_eq!(sampled.changes(), [0.0; 4]);
}

#[test]
fn what_is_read_in_sequence_is_missed_at_no_size_while_the_pool_has_it() {
    let mut sampled = Sampled::new(16 * 100);
    let hit = LineAccess { is_hit: true, ..READ };
    sampled.read(0..60);
    (0..60).for_each(|line| sampled.0.set_in_sequence(Sampled::hash(line), true));
    for line in (0..600).map(|n| n % 60) {
        assert_eq!(sampled.access(line, hit), Some(ReadKind::InSequence));
    }
    assert_eq!(sampled.changes(), [0.0; 4]);
    // A miss shows that it is not read ahead.
    sampled.read(0..60);
    for line in (0..600).map(|n| n % 60) {
        assert_eq!(sampled.access(line, hit), Some(ReadKind::Hit));
    }
    let [half, _, twice, _] = sampled.changes();
    assert!(half > 50.0 && twice == 0.0, "{:?}", sampled.changes());
}

#[test]
fn accesses_that_are_not_admitted_change_nothing() {
    let mut sampled = Sampled::new(16 * 100);
    for n in 0..1_000 {
        sampled.access(n % 300, LineAccess { admits: false, ..READ });
    }
    assert_eq!(sampled.changes(), [0.0; 4]);
    // Nothing of it is there.
    sampled.read(0..40);
    assert_eq!(sampled.changes(), [0.0; 4], "all sizes miss the first access");
}

#[test]
fn preloaded_and_erased_lines_are_there_or_not() {
    let mut sampled = Sampled::new(16 * 100);
    // Warm-ups use free slots only: half has 50.
    (0..80).for_each(|line| sampled.0.preload(Sampled::hash(line), Hint::Hot));
    sampled.read(0..80);
    let [half, _, twice, _] = sampled.changes();
    assert!(half >= 30.0 && twice == 0.0, "{:?}", sampled.changes());
    // Erased lines are missed at all sizes.
    let before = sampled.changes();
    (0..10).for_each(|line| sampled.0.remove(Sampled::hash(line)));
    sampled.read(0..10);
    let [half, _, twice, _] = sampled.changes();
    assert!(half <= before[0] && twice == 0.0, "{:?}", sampled.changes());
}

#[test]
fn miniatures_follow_the_size_of_the_shard() {
    let mut sampled = Sampled::new(16 * 400);
    sampled.read((0..4_000).map(|n| n % 150));
    assert_eq!(sampled.changes()[1..], [0.0; 3]);
    assert_eq!(sampled.0.set_lines(16 * 100, 0), 0.25);
    sampled.0.self_check();
    let before = sampled.changes();
    sampled.read((0..4_000).map(|n| n % 150));
    let after = sampled.changes();
    assert!(after[2] - before[2] < -500.0, "150 lines no longer fit: {after:?}");
    // The lines that the policy does not evict are those of the smallest sizes first.
    sampled.0.set_lines(16 * 100, 16 * 60);
    sampled.0.self_check();
    assert_eq!(sampled.0.set_lines(16 * 400, 0), 4.0);
    sampled.0.self_check();
}

/// The counts of a volume, and those of its shard.
#[derive(Default)]
struct Counted(SizeCounts, AccessCounts);

impl Counted {
    /// Lets some time pass with this miss ratio. Returns the ratio that results.
    fn pass(&mut self, seconds: u64, miss_ratio: f64) -> f64 {
        for _ in 0..seconds / 10 {
            self.1.accesses += 1_000.0;
            self.1.misses += 1_000.0 * miss_ratio;
            self.0.pass_time(10.0, self.1);
        }
        self.0.prediction(1.0, self.1).miss_ratio(PoolSize::Now).unwrap()
    }
}

#[test]
fn young_counts_are_soon_forgotten_and_old_ones_in_an_hour() {
    let mut counts = Counted::default();
    let pass = Counted::pass;
    assert_eq!(pass(&mut counts, 60, 1.0), 1.0);
    // An empty cache misses everything in the first minute.
    assert!(pass(&mut counts, 240, 0.1) < 0.12);
    assert!(pass(&mut counts, 24 * 3_600, 0.1) < 0.101);
    let after_an_hour = pass(&mut counts, 3_600, 0.5);
    assert!((after_an_hour - 0.3).abs() < 0.01, "half of the way: {after_an_hour}");
    // Half the size: what was counted before says nothing.
    counts.0.resize(0.5, counts.1);
    assert!(pass(&mut counts, 600, 0.8) > 0.79);
    // An eighth more: half of it.
    counts.0.resize(1.125, counts.1);
    let found = pass(&mut counts, 60, 0.2);
    assert!((0.5..0.8).contains(&found), "{found}");
}

#[test]
fn dirty_lines_displace_others() {
    let clean = LineAccess { hint: Hint::Write, ..READ };
    let ratio = |dirty_share| {
        let mut sampled = Sampled::new(16 * 100);
        for n in 0..20_000u64 {
            // Many lines are written once, few are read again and again.
            sampled.access(1_000 + n, LineAccess { dirty_share, ..clean });
            sampled.access(key(n) % 80, READ);
        }
        sampled.0.self_check();
        sampled.changes()
    };
    let (without, with) = (ratio(None), ratio(Some(0.6)));
    // Of 100 lines, 60 are dirty, so half of the 80 have a place. All have one in 200.
    let twice = PoolSize::Twice as usize;
    assert!(with[twice] < -5_000.0 && without[twice] > -1_000.0, "{without:?} {with:?}");
}

#[test]
fn the_memory_of_miniatures_is_bounded() {
    for (slots, bytes_per_line) in [
        (512, 18.0),
        (4_096, 13.5),
        (16_384, 3.4),
        (32_768, 1.7),
        (65_536, 0.85),
        (1 << 20, 0.8),
        (1 << 24, 0.05),
    ] {
        let bytes = Miniatures::bytes_max(slots) as f64 / slots as f64;
        assert!((bytes_per_line * 0.9..bytes_per_line).contains(&bytes), "{slots}: {bytes}");
        let mut miniatures = Miniatures::new(slots);
        assert_eq!(miniatures.heap_bytes(), 0, "no memory before the first access");
        miniatures.access(u64::MAX, READ, &mut SizeCounts::default());
        assert_eq!(miniatures.heap_bytes(), 0, "the line is not sampled");
        miniatures.access(0, READ, &mut SizeCounts::default());
        miniatures.self_check();
        let share = miniatures.heap_bytes() as f64 / Miniatures::bytes_max(slots) as f64;
        assert!((0.9..=1.0).contains(&share), "{slots}: {share} of the bound");
    }
}

proptest! {
    #[test]
    fn lines_are_found_after_any_insertions_and_removals(
        steps in prop::collection::vec((any::<bool>(), 0u32..60), 1..400),
    ) {
        let mut lines = MiniatureLines::new(40);
        let mut expected: HashMap<u32, Slot> = HashMap::new();
        for (is_insertion, line) in steps {
            // Many have the same place in the table.
            let line = line << 27 | line;
            match (is_insertion, expected.get(&line).copied()) {
                (true, None) => {
                    if let Some(slot) = lines.take_free() {
                        lines.insert(slot, line, Arrival::Used);
                        expected.insert(line, slot);
                    }
                }
                (false, Some(slot)) => {
                    lines.remove(slot);
                    lines.release(slot);
                    expected.remove(&line);
                }
                _ => {}
            }
            lines.self_check();
            prop_assert_eq!(lines.len(), expected.len());
            for (&line, &slot) in &expected {
                prop_assert_eq!(lines.find(line), Some(slot));
            }
        }
    }
}
