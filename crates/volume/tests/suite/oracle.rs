//! The dispatcher against a simple oracle: a list of the values that each sector may hold.
//!
//! The workload makes requests wait for each other, evicts lines, bypasses the cache, forwards
//! answers to the other worker, prefetches streams, preloads lines, and erases many regions at
//! once.

use crate::world::{Machine, SECTORS, VOLUME, WORKERS, changes};
use forebay_engine::{PreloadKind, Slot};
use forebay_types::{
    ByteRange, GRANULE_BYTES, LINE_BYTES, Mode, PinnedRanges, REGION_BYTES, SECTOR_BYTES,
};
use forebay_volume::RequestKind;
use proptest::prelude::*;
use std::sync::Arc;

/// Sectors of a region.
const REGION: u64 = REGION_BYTES / SECTOR_BYTES;

#[derive(Clone, Debug)]
enum Act {
    Request {
        worker: usize,
        kind: RequestKind,
        range: ByteRange,
    },
    /// The next read of a sequential reader.
    Follow {
        worker: usize,
        sectors: u64,
    },
    Steps(Vec<usize>),
    Tick(u64),
    /// Pins or unpins a range.
    Pin {
        pins: bool,
        range: ByteRange,
    },
    Mode(Mode),
    Frozen(bool),
}

fn range() -> impl Strategy<Value = ByteRange> {
    // Small ranges in a small area, which overlap, and some that span regions.
    let small = (0u64..96, 1u64..40);
    let border = (1u64..9, 0u64..40, 1u64..80);
    let border = border.prop_map(|(region, before, len)| (region * REGION - before, len));
    let large = (0u64..SECTORS - 4200, 1000u64..4200);
    prop_oneof![6 => small, 3 => border, 1 => large]
        .prop_map(|(from, len)| ByteRange::new(from * SECTOR_BYTES, len * SECTOR_BYTES))
}

/// A range of whole regions, or a little more or less.
fn regions() -> impl Strategy<Value = ByteRange> {
    (0u64..9, 1u64..10, prop::option::of(0u64..20)).prop_map(|(first, regions, shift)| {
        let from = first * REGION + shift.unwrap_or(0);
        let end = (first + regions) * REGION - shift.unwrap_or(0);
        ByteRange::new(from * SECTOR_BYTES, (end.min(SECTORS) - from) * SECTOR_BYTES)
    })
}

fn kind() -> impl Strategy<Value = RequestKind> {
    prop_oneof![
        6 => Just(RequestKind::Read),
        5 => Just(RequestKind::Write { fua: false }),
        1 => Just(RequestKind::Write { fua: true }),
        1 => Just(RequestKind::Zero { fua: false, unmap: true }),
        1 => Just(RequestKind::Flush),
        1 => Just(RequestKind::Prefetch),
        2 => (any::<u32>(), preload_kind())
            .prop_map(|(lines, kind)| RequestKind::Preload { lines, kind }),
    ]
}

fn preload_kind() -> impl Strategy<Value = PreloadKind> {
    let kinds = [PreloadKind::Warm, PreloadKind::Hot, PreloadKind::Forecast, PreloadKind::Pinned];
    prop::sample::select(kinds.to_vec())
}

/// The granule of a range, as far as it is inside the volume.
fn granule_of(range: ByteRange) -> ByteRange {
    let start = range.offset / GRANULE_BYTES * GRANULE_BYTES;
    ByteRange::new(start, GRANULE_BYTES.min(SECTORS * SECTOR_BYTES - start))
}

fn act() -> impl Strategy<Value = Act> {
    let request = (0..WORKERS, kind(), range()).prop_map(|(worker, kind, range)| Act::Request {
        worker,
        kind,
        range,
    });
    let zero = RequestKind::Zero { fua: false, unmap: false };
    let erase = (0..WORKERS, regions()).prop_map(move |(worker, range)| Act::Request {
        worker,
        kind: zero,
        range,
    });
    let follow =
        (0..WORKERS, 1u64..300).prop_map(|(worker, sectors)| Act::Follow { worker, sectors });
    let steps = prop::collection::vec(0usize..64, 0..12).prop_map(Act::Steps);
    let mode = prop::sample::select(Mode::ALL.to_vec()).prop_map(Act::Mode);
    prop_oneof![
        8 => request,
        1 => erase,
        3 => follow,
        6 => steps,
        1 => (1u64..400).prop_map(Act::Tick),
        1 => mode,
        1 => any::<bool>().prop_map(Act::Frozen),
        1 => (any::<bool>(), range()).prop_map(|(pins, range)| Act::Pin { pins, range }),
    ]
}

fn play(mode: Mode, acts: Vec<Act>) {
    let mut machine = Machine::new(mode);
    let mut pinned = PinnedRanges::default();
    let mut reader = 0;
    for (number, act) in acts.into_iter().enumerate() {
        match act {
            Act::Request { worker, kind, range } => {
                let value = if changes(kind) && !matches!(kind, RequestKind::Zero { .. }) {
                    1 + (number % 250) as u8
                } else {
                    0
                };
                let range = match kind {
                    RequestKind::Preload { .. } => granule_of(range),
                    _ => range,
                };
                machine.submit(worker, kind, range, value);
            }
            Act::Follow { worker, sectors } => {
                let sectors = sectors.min(SECTORS - reader);
                let range = ByteRange::new(reader * SECTOR_BYTES, sectors * SECTOR_BYTES);
                machine.submit(worker, RequestKind::Read, range, 0);
                reader = (reader + sectors) % SECTORS;
            }
            Act::Steps(choices) => {
                for choice in choices {
                    machine.step(choice);
                }
            }
            Act::Tick(ms) => machine.tick(ms),
            Act::Pin { pins, range } => {
                let change = if pins { PinnedRanges::add } else { PinnedRanges::remove };
                change(&mut pinned, range);
                let ranges = Arc::new(pinned.clone());
                for shard in &mut machine.world.shards {
                    shard.pinned().set(VOLUME, &ranges, ranges.lines());
                    shard.pinned().follow(VOLUME, 0, Slot::MAX);
                }
            }
            Act::Frozen(is_frozen) => {
                for shard in &mut machine.world.shards {
                    shard.volume_mut(VOLUME).set_frozen(is_frozen);
                }
            }
            Act::Mode(mode) => {
                for shard in &mut machine.world.shards {
                    shard.volume_mut(VOLUME).set_mode(mode);
                }
            }
        }
    }
    machine.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn requests_of_two_workers_agree_with_the_oracle(
        mode in prop::sample::select(Mode::ALL.to_vec()),
        acts in prop::collection::vec(act(), 1..120),
    ) {
        play(mode, acts);
    }
}

#[test]
fn a_stream_is_read_ahead_across_regions_with_few_large_ios() {
    let mut machine = Machine::new(Mode::WriteThrough);
    let mut reads = 0;
    let lines = SECTORS / 8;
    for line in 0..lines {
        let range = ByteRange::new(line * LINE_BYTES, LINE_BYTES);
        machine.submit(0, RequestKind::Read, range, 0);
        while machine.step(0) {
            reads += 1;
        }
    }
    assert!(reads < lines as usize / 8, "{reads} I/Os for {lines} reads");
    let counters = machine.world.shards.iter().map(|shard| *shard.volume(VOLUME).counters());
    let prefetched: u64 = counters.map(|counters| counters.prefetch_used_lines).sum();
    assert!(prefetched > lines / 2, "{prefetched} of {lines} lines were read ahead and used");
    machine.finish();
}

/// The adjacent I/Os of a turn are one I/O to the disk.
#[test]
fn a_request_over_regions_is_split_for_the_shards_and_coalesced_for_the_disk() {
    let mut machine = Machine::new(Mode::Bypass);
    let range = ByteRange::new(1 << 19, 2 << 20);
    machine.submit(0, RequestKind::Write { fua: false }, range, 9);
    assert_eq!(machine.world.ios.len(), 1, "three parts, one I/O");
    machine.submit(1, RequestKind::Read, range, 0);
    assert_eq!(machine.world.answered, 0);
    while machine.step(0) {}
    assert_eq!(machine.world.answered, 2);
    assert!(machine.world.disk[1 << 10..5 << 10].iter().all(|&value| value == 9));
    machine.finish();
}

#[test]
fn a_preload_is_answered_when_its_lines_are_in_the_pool() {
    let mut machine = Machine::new(Mode::WriteThrough);
    let kind = RequestKind::Preload { lines: 0x8000_00ff, kind: PreloadKind::Hot };
    let range = ByteRange::new(0, GRANULE_BYTES);
    machine.submit(0, kind, range, 0);
    assert_eq!(machine.world.answered, 0, "the reads are in flight");
    while machine.step(1) {}
    assert_eq!(machine.world.answered, 1);
    machine.submit(1, RequestKind::Read, ByteRange::new(0, 8 * LINE_BYTES), 0);
    assert_eq!(machine.world.answered, 2, "a hit");
    // Everything is in the pool.
    machine.submit(1, kind, range, 0);
    assert_eq!(machine.world.answered, 3);
    machine.finish();
    let mut bypass = Machine::new(Mode::Bypass);
    bypass.submit(0, kind, range, 0);
    assert_eq!((bypass.world.answered, bypass.world.ios.len()), (1, 0));
    bypass.finish();
}

#[test]
fn misses_and_uses_of_preloads_are_needs() {
    let mut machine = Machine::new(Mode::WriteThrough);
    let read = |machine: &mut Machine, line: u64, lines: u64| {
        let range = ByteRange::new(line * LINE_BYTES, lines * LINE_BYTES);
        machine.submit(0, RequestKind::Read, range, 0);
        while machine.step(1) {}
        std::mem::take(&mut machine.world.needs)
    };
    let needed = |line: u64, lines: u64| {
        (ByteRange::new(line * LINE_BYTES, lines * LINE_BYTES), lines as u32)
    };
    assert_eq!(read(&mut machine, 0, 2), [needed(0, 2)]);
    assert_eq!(read(&mut machine, 0, 2), [], "it is in the pool anyway");
    // A request over two regions.
    assert_eq!(read(&mut machine, 254, 4), [needed(254, 4)]);
    let kind = RequestKind::Preload { lines: 0b11, kind: PreloadKind::Forecast };
    machine.submit(0, kind, ByteRange::new(4 * GRANULE_BYTES, GRANULE_BYTES), 0);
    while machine.step(1) {}
    assert_eq!(machine.world.needs, [], "no client has read it yet");
    assert_eq!(read(&mut machine, 128, 1), [needed(128, 1)]);
    assert_eq!(
        read(&mut machine, 128, 3),
        [needed(129, 1), needed(128, 3)].map(|mut it| {
            // Two of the three lines are there.
            it.1 = 1;
            it
        })
    );
    // A stream is read ahead; only its beginning is needed.
    let beginning: usize = (0..40).map(|line| read(&mut machine, 600 + line, 1).len()).sum();
    assert!((1..=3).contains(&beginning), "{beginning} reads of a stream");
    machine.finish();
}

#[test]
fn nothing_of_a_frozen_volume_is_read_ahead_preloaded_or_needed() {
    let mut machine = Machine::new(Mode::WriteThrough);
    let run = |machine: &mut Machine, kind, line: u64, lines: u64| {
        machine.submit(0, kind, ByteRange::new(line * LINE_BYTES, lines * LINE_BYTES), 0);
        while machine.step(1) {}
    };
    let counters = |machine: &Machine| {
        let shards = machine.world.shards.iter();
        let both = shards.map(|shard| *shard.volume(VOLUME).counters());
        both.fold([0; 3], |sum, of| {
            let of = [of.prefetched_lines, of.preloaded_lines, of.pin_loaded_lines];
            std::array::from_fn(|at| sum[at] + of[at])
        })
    };
    for shard in &mut machine.world.shards {
        shard.volume_mut(VOLUME).set_frozen(true);
    }
    (0..40).for_each(|line| run(&mut machine, RequestKind::Read, 600 + line, 1));
    run(&mut machine, RequestKind::Prefetch, 0, 64);
    for kind in [PreloadKind::Warm, PreloadKind::Hot, PreloadKind::Forecast, PreloadKind::Pinned] {
        run(&mut machine, RequestKind::Preload { lines: u32::MAX, kind }, 128, 32);
    }
    assert_eq!(counters(&machine), [0; 3], "no range is pinned");
    assert_eq!(std::mem::take(&mut machine.world.needs), []);
    for shard in &mut machine.world.shards {
        shard.volume_mut(VOLUME).set_frozen(false);
    }
    (40..80).for_each(|line| run(&mut machine, RequestKind::Read, 600 + line, 1));
    assert!(counters(&machine)[0] > 0, "the stream is read ahead again");
    machine.finish();
}
