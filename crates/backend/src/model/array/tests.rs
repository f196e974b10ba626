use super::layout::{BLOCK_BYTES, DRIVE_COUNT_MAX};
use super::{Array, ArrayModel, ArraySpec, Drive, DriveIo, Level};
use crate::IoKind;
use crate::model::{DiskModel, HddSpec};
use crate::random::Random;
use forebay_types::{ByteRange, Fault};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;
const MS_NS: u64 = 1_000_000;
const READ: IoKind = IoKind::Read;
const WRITE: IoKind = IoKind::Write { fua: false };
const LEVELS: [Level; 5] = [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10];

fn spec(level: Level, drives: u32, degraded: u32) -> ArraySpec {
    ArraySpec::new(level, drives, 8 * KIB, degraded).unwrap()
}

fn model(spec: ArraySpec) -> ArrayModel {
    ArrayModel::new(spec, &Drive::Fixed(5 * MS_NS), 64 << 20)
}

/// Completes all I/O in flight. Returns the end time.
fn drain(model: &mut ArrayModel) -> u64 {
    let mut now_ns = 0;
    while let Some(next_ns) = model.next_completion() {
        now_ns = next_ns;
        while model.pop(now_ns).is_some() {}
    }
    now_ns
}

/// Drive reads and writes for concurrent I/Os.
fn cost(model: &mut ArrayModel, ios: &[(IoKind, u64, u64)]) -> (u64, u64) {
    let total = |model: &ArrayModel| {
        model
            .drive_counts()
            .iter()
            .fold((0, 0), |(reads, writes), count| (reads + count.reads, writes + count.writes))
    };
    let before = total(model);
    let now_ns = model.next_completion().unwrap_or(0);
    for (id, &(kind, offset, len)) in ios.iter().enumerate() {
        model.enqueue(now_ns, id as u64, kind, offset, len);
    }
    drain(model);
    let after = total(model);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn a_write_has_the_cost_of_its_part_of_the_stripe() {
    // There are 14 data chunks in each parity case, so differences come from the parity.
    for (level, drives, len_kib, reads, writes) in [
        // A full stripe reads nothing.
        (Level::Raid5, 15, 112, 0, 15),
        (Level::Raid6, 16, 112, 0, 16),
        // A block: the old block and the old parity.
        (Level::Raid5, 15, 4, 2, 2),
        (Level::Raid6, 16, 4, 3, 3),
        // Two chunks: 2 and parity are fewer than the other 12.
        (Level::Raid5, 15, 16, 3, 3),
        // Seven chunks: the other 7 are fewer than 7 and parity.
        (Level::Raid5, 15, 56, 7, 8),
        (Level::Raid5, 15, 64, 6, 9),
        (Level::Raid6, 16, 64, 6, 10),
        // Two stripes: their blocks on each drive are adjacent and merged.
        (Level::Raid5, 15, 224, 0, 15),
        (Level::Raid0, 15, 4, 0, 1),
        (Level::Raid0, 15, 64, 0, 8),
        (Level::Raid1, 3, 64, 0, 3),
        (Level::Raid10, 4, 8, 0, 2),
        (Level::Raid10, 4, 16, 0, 4),
        // Pieces are submitted one by one: two of a drive are dispatched before a third could be
        // merged.
        (Level::Raid10, 5, 40, 0, 10),
        (Level::Raid10, 4, 64, 0, 12),
    ] {
        let mut model = model(spec(level, drives, 0));
        let seen = cost(&mut model, &[(WRITE, 0, len_kib * KIB)]);
        assert_eq!(seen, (reads, writes), "{level:?} of {drives}, {len_kib} KiB");
    }
}

#[test]
fn a_partial_block_write_reads_the_block_first() {
    let mut model = model(spec(Level::Raid5, 3, 0));
    assert_eq!(cost(&mut model, &[(WRITE, 512, 1024)]), (2, 2));
    // Both methods need two reads, so the first write reads both data blocks; the second finds its
    // block being read, and is written with the first.
    let halves = [(WRITE, 32 * KIB, 2048), (WRITE, 40 * KIB, 2048)];
    assert_eq!(cost(&mut model, &halves), (2, 3));
}

#[test]
fn cached_blocks_of_a_stripe_are_not_read_again() {
    let mut model = model(spec(Level::Raid5, 15, 0));
    assert_eq!(cost(&mut model, &[(WRITE, 0, 64 * KIB)]), (6, 9));
    assert_eq!(cost(&mut model, &[(WRITE, 64 * KIB, 48 * KIB)]), (0, 7));
    assert_eq!(cost(&mut model, &[(WRITE, 4 * KIB, 4 * KIB)]), (0, 2));
    // The stripe stays cached until 256 others have evicted it. Each row of chunks has two stripes.
    for row in 1..=128 {
        assert_eq!(cost(&mut model, &[(WRITE, row * 112 * KIB, 112 * KIB)]), (0, 15));
    }
    assert_eq!(cost(&mut model, &[(WRITE, 4 * KIB, 4 * KIB)]), (2, 2));
}

#[test]
fn writes_that_wait_for_one_stripe_go_together() {
    // One block of each of 14 chunks. The first write reads its old block and the parity; the
    // others, which arrive meanwhile, read their old blocks; then all are written with one parity.
    let ios: Vec<_> = (0..14).map(|chunk| (WRITE, chunk * 8 * KIB, 4 * KIB)).collect();
    let mut together = model(spec(Level::Raid5, 15, 0));
    assert_eq!(cost(&mut together, &ios), (14, 15));
    let mut alone = model(spec(Level::Raid5, 15, 0));
    let (reads, writes) = ios.iter().fold((0, 0), |(reads, writes), io| {
        let seen = cost(&mut alone, &[*io]);
        (reads + seen.0, writes + seen.1)
    });
    // Alone, each writes its block and parity, and all but one read their block.
    assert_eq!(writes, 28);
    assert!(reads >= 13, "{reads}");
}

#[test]
fn a_read_goes_to_the_drives_that_have_it() {
    for (level, drives, degraded, offset_kib, len_kib, reads) in [
        (Level::Raid5, 15, 0, 0, 64, 8),
        (Level::Raid6, 16, 0, 0, 4, 1),
        (Level::Raid1, 3, 0, 0, 64, 1),
        (Level::Raid1, 3, 2, 0, 64, 1),
        (Level::Raid10, 4, 2, 0, 16, 2),
        // The missing drive 0 has the first chunk of the first row: all others are read.
        (Level::Raid5, 15, 1, 0, 4, 14),
        (Level::Raid6, 16, 1, 16, 4, 1),
        // In the last row of the parity rotation, the missing drive has the parity.
        (Level::Raid5, 15, 1, 14 * 112, 64, 8),
        (Level::Raid5, 15, 1, 8, 4, 1),
    ] {
        let mut model = model(spec(level, drives, degraded));
        let seen = cost(&mut model, &[(READ, offset_kib * KIB, len_kib * KIB)]);
        assert_eq!(seen, (reads, 0), "{level:?} of {drives}, {offset_kib} + {len_kib} KiB");
    }
}

#[test]
fn a_degraded_array_writes_without_the_missing_drive() {
    for (level, drives, degraded, offset_kib, len_kib, reads, writes) in [
        // The missing block itself: only the parity is written, computed from the other data
        // blocks.
        (Level::Raid5, 15, 1, 0, 4, 13, 1),
        // Its neighbour: as without a missing drive.
        (Level::Raid5, 15, 1, 8, 4, 2, 2),
        // With the parity missing, read-modify-write is impossible.
        (Level::Raid5, 15, 1, 14 * 112, 4, 13, 1),
        (Level::Raid5, 15, 1, 0, 112, 0, 14),
        // One of the four unchanged blocks is missing: the old content is read.
        (Level::Raid5, 15, 1, 32, 80, 11, 11),
        // Half of the missing block changes: the other half needs all available blocks.
        (Level::Raid5, 15, 1, 0, 2, 14, 1),
        (Level::Raid10, 4, 2, 0, 16, 0, 2),
        (Level::Raid1, 2, 1, 0, 16, 0, 1),
    ] {
        let mut model = model(spec(level, drives, degraded));
        let seen = cost(&mut model, &[(WRITE, offset_kib * KIB, len_kib * KIB)]);
        assert_eq!(seen, (reads, writes), "{level:?} of {drives}, {offset_kib} + {len_kib} KiB");
    }
}

#[test]
fn an_io_larger_than_the_stripe_cache_is_done_in_parts() {
    for degraded in [0, 1] {
        let mut model = model(spec(Level::Raid5, 3, degraded));
        let (reads, _) = cost(&mut model, &[(WRITE, 0, 16 << 20), (READ, 0, 16 << 20)]);
        assert!(reads > 0);
        let written: u64 = model.drive_counts().iter().map(|count| count.write_bytes).sum();
        assert_eq!(written, if degraded == 0 { 24 << 20 } else { 16 << 20 });
    }
}

#[test]
fn a_flush_waits_for_writes_and_goes_to_every_drive() {
    let mut array = Array::new(spec(Level::Raid5, 3, 1));
    let take = |array: &mut Array| {
        array.run();
        std::iter::from_fn(|| array.poll_drive_io()).collect::<Vec<DriveIo>>()
    };
    array.begin(1, WRITE, ByteRange::new(0, 16 * KIB));
    array.begin(2, IoKind::Flush, ByteRange::new(0, 0));
    array.begin(3, WRITE, ByteRange::new(16 * KIB, 16 * KIB));
    let writes = take(&mut array);
    // Two blocks in each chunk, two drives of three, two stripes.
    assert_eq!(writes.len(), 8);
    assert!(writes.iter().all(|io| io.kind == WRITE && io.drive != 0));
    for io in &writes[..4] {
        array.drive_done(io.id);
    }
    let flushes = take(&mut array);
    assert_eq!(array.poll_done(), Some(1));
    assert_eq!(
        flushes.iter().map(|io| (io.drive, io.kind)).collect::<Vec<_>>(),
        [(1, IoKind::Flush), (2, IoKind::Flush)]
    );
    flushes.iter().for_each(|io| array.drive_done(io.id));
    assert!(take(&mut array).is_empty());
    assert_eq!(array.poll_done(), Some(2));
    assert_eq!(array.poll_done(), None);
}

#[test]
fn a_fua_write_has_fua_on_every_drive() {
    let mut array = Array::new(spec(Level::Raid5, 3, 0));
    array.begin(1, IoKind::Write { fua: true }, ByteRange::new(0, 16 * KIB));
    array.run();
    let kinds: Vec<IoKind> =
        std::iter::from_fn(|| array.poll_drive_io()).map(|io| io.kind).collect();
    assert_eq!(kinds, [IoKind::Write { fua: true }; 6]);
}

#[test]
fn full_stripe_writes_are_much_faster() {
    // 15 drives with chunks of 8 KiB: single writes of 64 KiB, and of nine full stripes.
    let rate = |drive: &Drive, len: u64| {
        let mut model = ArrayModel::new(spec(Level::Raid5, 15, 0), drive, GIB);
        let (mut now_ns, count) = (0, (32 << 20) / len);
        for number in 0..count {
            model.enqueue(now_ns, number, WRITE, number * len, len);
            now_ns = drain(&mut model);
        }
        count * len * 1000 / (now_ns / 1000)
    };
    let fixed = (Drive::Fixed(5 * MS_NS), 5_600..=5_800, 200_000..=207_000);
    let hdd = (Drive::Hdd(HddSpec::new(GIB)), 4_400..=4_800, 105_000..=120_000);
    for (drive, few, many) in [fixed, hdd] {
        let (small, full) = (rate(&drive, 64 * KIB), rate(&drive, 1008 * KIB));
        println!("64 KiB: {small} kB/s; full stripes: {full} kB/s");
        assert!(few.contains(&small), "{small}");
        assert!(many.contains(&full), "{full}");
    }
}

#[test]
fn every_block_has_a_place_of_its_own() {
    for level in LEVELS {
        for drives in level.drive_count_min()..9 {
            let spec = spec(level, drives, 0);
            let size_bytes = spec.stripe_bytes() * 24;
            let drive_bytes = spec.drive_bytes(size_bytes).unwrap();
            assert_eq!(spec.size_bytes(drive_bytes), Ok(size_bytes), "{spec:?}");
            let mut taken = HashSet::new();
            for block in 0..size_bytes / BLOCK_BYTES {
                let range = ByteRange::new(block * BLOCK_BYTES, BLOCK_BYTES);
                let pieces: Vec<_> = spec.pieces(range).collect();
                assert_eq!(pieces.len(), 1);
                let places: Vec<_> = spec.places(&pieces[0]).collect();
                for &(drive, offset) in &places {
                    assert!(offset + BLOCK_BYTES <= drive_bytes && drive < drives, "{spec:?}");
                    assert!(taken.insert((drive, offset)), "{spec:?}: {block}");
                    if matches!(level, Level::Raid5 | Level::Raid6) {
                        let row = spec.row(offset / spec.chunk_bytes());
                        assert_ne!(row.data & 1 << drive, 0, "{spec:?}: data is not on parity");
                        assert_eq!(row.data & row.parity, 0);
                        assert_eq!((row.data | row.parity).count_ones(), drives);
                    }
                }
                let on: HashSet<u32> = places.iter().map(|place| place.0).collect();
                assert_eq!(on.len(), places.len(), "{spec:?}: copies are on different drives");
            }
        }
    }
}

#[test]
fn each_block_survives_the_missing_drives() {
    for level in LEVELS {
        for drives in level.drive_count_min()..9 {
            for degraded in 0..drives {
                let Ok(spec) = ArraySpec::new(level, drives, 4 * KIB, degraded) else { continue };
                assert_eq!(spec.missing().count_ones(), degraded);
                for block in 0..2 * u64::from(drives) {
                    let range = ByteRange::new(block * BLOCK_BYTES, BLOCK_BYTES);
                    let piece = spec.pieces(range).next().unwrap();
                    let left =
                        spec.places(&piece).filter(|place| spec.missing() >> place.0 & 1 == 0);
                    let has_parity = matches!(level, Level::Raid5 | Level::Raid6);
                    assert!(has_parity || left.count() > 0, "{spec:?}: {block}");
                }
            }
        }
    }
}

#[test]
fn impossible_arrays_are_refused_with_a_remedy() {
    let error = |level, drives, chunk, degraded| {
        ArraySpec::new(level, drives, chunk, degraded).unwrap_err().explained()
    };
    assert_eq!(
        error(Level::Raid5, 2, 8 * KIB, 0),
        "raid5 has 3 to 64 drives, not 2: give drives=3 to 64"
    );
    assert!(error(Level::Raid0, DRIVE_COUNT_MAX + 1, 8 * KIB, 0).starts_with("raid0 has 2 to 64"));
    for chunk in [0, 512, 2048, 12 * KIB, 2 << 30] {
        let message = error(Level::Raid5, 3, chunk, 0);
        assert!(message.contains("give a power of two from 4KiB to 1GiB"), "{message}");
    }
    assert_eq!(
        error(Level::Raid6, 8, 8 * KIB, 3),
        "raid6 of 8 drives works with up to 2 of them missing, not 3: give degraded=2 \
         or less"
    );
    let array = spec(Level::Raid5, 15, 0);
    assert_eq!(
        array.drive_bytes(1 << 20).unwrap_err().explained(),
        "an array of 1MiB is not a whole number of stripes of 112KiB: give size=1008KiB, or the \
         size of a drive with drive-size="
    );
    assert_eq!(
        array.size_bytes(9 * KIB).unwrap_err().explained(),
        "a drive of 9KiB is not a whole number of chunks of 8KiB: give drive-size=8KiB"
    );
    assert_eq!(array.size_within(1 << 20), 1008 * KIB);
}

#[test]
fn the_error_for_a_size_of_drives_is_true_of_odd_mirrors_and_of_huge_arrays() {
    let error = |level, drives, drive_bytes| {
        spec(level, drives, 0).size_bytes(drive_bytes).unwrap_err().explained()
    };
    // The chunks of three drives and their copies repeat every second row.
    assert_eq!(
        error(Level::Raid10, 3, 24 * KIB),
        "a drive of 24KiB is not an even number of chunks of 8KiB: give drive-size=16KiB"
    );
    assert_eq!(
        error(Level::Raid5, 15, u64::MAX - (8 * KIB - 1)),
        "an array of 15 drives of 18014398509481976KiB has more than 16 EiB: give a smaller \
         drive-size"
    );
}

/// The known blocks of a parity array, and those in flight, derived from its drive I/Os alone.
#[derive(Default)]
struct Watch {
    /// Known blocks, by stripe and drive.
    known: HashSet<(u64, u32)>,
    /// Blocks being written.
    writing: HashMap<u64, u64>,
}

impl Watch {
    /// Checks that the known blocks suffice for the writes of one stripe.
    fn writes(&mut self, spec: &ArraySpec, key: u64, blocks: u64, whole: u64) {
        let row = spec.row(key / (spec.chunk_bytes() / BLOCK_BYTES));
        let known = (0..spec.drive_count())
            .filter(|&drive| self.known.contains(&(key, drive)))
            .fold(0, |set, drive| set | 1u64 << drive);
        let all = row.data | row.parity;
        let reconstructs = all & !row.missing & !known == 0 || row.data & !whole & !known == 0;
        let modifies = (blocks | row.parity) & !known == 0;
        assert!(reconstructs || modifies, "{row:?}: {blocks:b} from {known:b}");
        assert_eq!(row.parity & !row.missing & !blocks, 0, "parity is written with the data");
        let before = self.writing.insert(key, blocks);
        assert!(before.is_none_or(|left| left == 0), "two writes of a stripe in flight");
        self.known.extend(
            (0..spec.drive_count())
                .filter(|d| (blocks | row.parity) >> d & 1 == 1)
                .map(|d| (key, d)),
        );
    }
}

proptest! {
    /// For any I/O in any order: parity is never computed from unread blocks, a stripe has one
    /// write in flight, a missing drive gets no I/O, and each I/O is answered once.
    #[test]
    fn parity_is_computed_from_known_blocks(
        ios in proptest::collection::vec((0u64..96, 1u64..60, 0u8..3), 1..60),
        is_raid6: bool,
        drives in 4u32..8,
        degraded in 0u32..3,
        seed: u64,
    ) {
        let (level, degraded) =
            if is_raid6 { (Level::Raid6, degraded) } else { (Level::Raid5, degraded.min(1)) };
        let spec = spec(level, drives, degraded);
        let mut array = Array::new(spec);
        let (mut random, mut watch) = (Random::new(seed), Watch::default());
        // Blocks completely overwritten, by stripe, since its last write.
        let mut whole: HashMap<u64, u64> = HashMap::new();
        let (mut in_flight, mut answered): (Vec<DriveIo>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut next = 0;
        while next < ios.len() || !in_flight.is_empty() {
            if next < ios.len() && (in_flight.is_empty() || random.below(2) == 0) {
                let (place, len, kind) = ios[next];
                let range = ByteRange::new(place * 1024, len * 1024);
                let kind = [READ, WRITE, IoKind::Flush][kind as usize];
                if kind == WRITE {
                    for piece in spec.pieces(range) {
                        let (drive, offset) = spec.places(&piece).next().unwrap();
                        let first = offset.div_ceil(BLOCK_BYTES);
                        let end = (offset + piece.len) / BLOCK_BYTES;
                        (first..end).for_each(|key| *whole.entry(key).or_default() |= 1 << drive);
                    }
                }
                array.begin(next as u64, kind, range);
                next += 1;
            } else {
                let io = in_flight.swap_remove(random.below(in_flight.len() as u64) as usize);
                let key = io.offset / BLOCK_BYTES;
                match io.kind {
                    // A read outside the stripe cache may be shorter.
                    READ if io.len == BLOCK_BYTES => drop(watch.known.insert((key, io.drive))),
                    WRITE => *watch.writing.get_mut(&key).unwrap() &= !(1 << io.drive),
                    _ => {}
                }
                array.drive_done(io.id);
            }
            array.run();
            let mut writes: HashMap<u64, u64> = HashMap::new();
            while let Some(io) = array.poll_drive_io() {
                prop_assert_eq!(spec.missing() >> io.drive & 1, 0);
                if io.kind == WRITE {
                    prop_assert_eq!(io.len, BLOCK_BYTES);
                    *writes.entry(io.offset / BLOCK_BYTES).or_default() |= 1 << io.drive;
                }
                in_flight.push(io);
            }
            for (key, blocks) in writes {
                watch.writes(&spec, key, blocks, whole.remove(&key).unwrap_or(0));
            }
            answered.extend(std::iter::from_fn(|| array.poll_done()));
        }
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..ios.len() as u64).collect::<Vec<_>>());
    }
}
