//! What a volume would miss with other sizes of the pool: which accesses count, and how.

use crate::instant::{InstantDisk, SLOTS};
use crate::rig::{LINE, VOLUME};
use forebay_engine::size_prediction;
use forebay_policy::PoolSize;
use forebay_types::{ByteRange, HoldOut, Mode, PinnedRanges};
use std::sync::Arc;

/// Lines of a set that fits the pool, but not half of it.
const LINES: u64 = 3000;

impl InstantDisk {
    fn pass_time(&mut self, seconds: f64) {
        self.shard.volume_mut(VOLUME).pass_time(seconds);
    }

    /// Reads the set `passes` times, in an order that is no stream.
    fn read_set(&mut self, passes: u64) {
        (0..passes * LINES).for_each(|n| self.read(n * 1_009 % LINES));
    }

    /// The miss ratios with half the pool, all of it and twice the pool.
    fn ratios(&self) -> [f64; 3] {
        let prediction = size_prediction(&self.shard, VOLUME);
        [PoolSize::Half, PoolSize::Now, PoolSize::Twice]
            .map(|size| prediction.miss_ratio(size).unwrap())
    }
}

#[test]
fn a_set_that_fits_the_pool_would_miss_in_half_of_it() {
    let mut driver = InstantDisk::new(Mode::WriteThrough);
    driver.read_set(1);
    assert_eq!(driver.ratios(), [1.0; 3], "first accesses miss at every size");
    driver.pass_time(60.0);
    driver.read_set(8);
    driver.pass_time(60.0);
    let [half, now, twice] = driver.ratios();
    // Half has 2,048 of 3,000 lines.
    assert!((0.2..0.5).contains(&half) && now < 0.1 && twice <= now, "{half} {now} {twice}");
}

#[test]
fn accesses_that_the_pool_does_not_admit_differ_at_no_size() {
    let mut bypassed = InstantDisk::new(Mode::Bypass);
    bypassed.read_set(2);
    assert!(!bypassed.shard.volume(VOLUME).admits_accesses());
    assert_eq!(bypassed.ratios(), [1.0; 3]);
    let mut frozen = InstantDisk::new(Mode::WriteThrough);
    frozen.shard.volume_mut(VOLUME).set_frozen(true);
    frozen.read_set(2);
    assert!(!frozen.shard.volume(VOLUME).admits_accesses());
    assert_eq!(frozen.ratios(), [1.0; 3]);
    // Those of held-out regions do not count at all.
    let mut held_out = InstantDisk::new(Mode::WriteThrough);
    held_out.read_set(3);
    let before = size_prediction(&held_out.shard, VOLUME);
    held_out.shard.volume_mut(VOLUME).set_hold_out(HoldOut::ALL);
    held_out.read_set(2);
    held_out.write(7);
    assert_eq!(size_prediction(&held_out.shard, VOLUME), before);
}

#[test]
fn what_a_stream_reads_ahead_would_miss_at_no_size() {
    let mut driver = InstantDisk::new(Mode::WriteThrough);
    // Passes over more than the pool, all of it read ahead.
    for line in (0..4).flat_map(|_| 0..SLOTS as u64 * 2) {
        if line % 16 == 0 {
            driver.prefetch(line, 16);
        }
        driver.read(line);
    }
    assert_eq!(driver.ratios(), [0.0; 3]);
}

#[test]
fn what_is_read_in_sequence_from_the_pool_would_be_read_ahead_in_a_smaller_one() {
    let mut driver = InstantDisk::new(Mode::WriteThrough);
    let pass = |driver: &mut InstantDisk| (0..LINES).for_each(|line| driver.read(line));
    (0..40).for_each(|_| pass(&mut driver));
    driver.pass_time(600.0);
    driver.pass_time(600.0);
    (0..10).for_each(|_| pass(&mut driver));
    driver.pass_time(600.0);
    let [half, now, _] = driver.ratios();
    assert!(half - now < 0.1, "{half} {now}");
    // The same lines in another order are not read ahead.
    driver.read_set(40);
    driver.pass_time(600.0);
    driver.read_set(20);
    driver.pass_time(600.0);
    let [half, now, _] = driver.ratios();
    assert!(half - now > 0.2, "{half} {now}");
}

#[test]
fn pinned_lines_are_in_a_pool_of_any_size() {
    let mut driver = InstantDisk::new(Mode::WriteThrough);
    let mut pins = PinnedRanges::default();
    pins.add(ByteRange::new(0, 1500 * LINE));
    let lines = pins.lines();
    driver.shard.pinned().set(VOLUME, &Arc::new(pins), lines);
    for line in (0..10).flat_map(|_| 0..1500) {
        driver.read(line * 7 % 1500);
    }
    let [half, now, twice] = driver.ratios();
    assert!(half == now && now == twice, "{half} {now} {twice}");
}

#[test]
fn a_change_of_the_size_starts_anew() {
    let mut driver = InstantDisk::new(Mode::WriteThrough);
    driver.read_set(9);
    driver.pass_time(60.0);
    let accesses = |driver: &InstantDisk| size_prediction(&driver.shard, VOLUME).accesses();
    let before = accesses(&driver);
    driver.resize(SLOTS / 2);
    assert!(accesses(&driver) < before / 20.0, "{} of {before}", accesses(&driver));
    driver.shard.self_check();
    driver.read_set(6);
    let [half, now, twice] = driver.ratios();
    // What was half before is all now.
    assert!(half > now && (0.2..0.5).contains(&now) && twice < 0.1, "{half} {now} {twice}");
}
