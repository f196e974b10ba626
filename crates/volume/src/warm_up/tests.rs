use super::*;
use forebay_types::{ByteRange, GRANULE_LINES, LINE_BYTES, PinnedRanges};
use proptest::prelude::*;

fn granule(index: u64, lines: u32, value: u8) -> Granule {
    Granule { index, lines, value }
}

/// Granules with these numbers, each with a single line that is not hot.
fn cool(indexes: std::ops::Range<u64>) -> Vec<Granule> {
    indexes.map(|index| granule(index, 1, 1)).collect()
}

const IDLE: Conditions = Conditions {
    now_ms: 0,
    is_read: false,
    alone: DemandReads { count: 0, us: 0 },
    beside: DemandReads { count: 0, us: 0 },
    has_room: true,
    share: BackgroundShare::Full,
};

const READ: Conditions = Conditions { is_read: true, ..IDLE };

/// Polls until the loader waits or ends. Returns the reads.
fn reads(loader: &mut Loader, conditions: &Conditions) -> (Vec<Granule>, LoaderStep) {
    let mut reads = Vec::new();
    loop {
        match loader.poll(conditions) {
            LoaderStep::Read(granule) => reads.push(granule),
            step => return (reads, step),
        }
    }
}

#[test]
fn an_idle_disk_gets_a_few_reads_at_a_time_hot_ones_first_and_in_order() {
    let mut list = cool(0..4);
    list.extend([granule(7, 0b11, 14), granule(3_000, 1, 4)]);
    let mut loader = Loader::new(list);
    assert_eq!(loader.planned_lines(), 7);
    let (first, step) = reads(&mut loader, &IDLE);
    let indexes = |reads: &[Granule]| reads.iter().map(|read| read.index).collect::<Vec<_>>();
    assert_eq!(indexes(&first), [7, 3_000, 0, 1]);
    assert!(matches!(step, LoaderStep::Wait(_)));
    loader.complete(first[1], true);
    let (next, _) = reads(&mut loader, &IDLE);
    assert_eq!(indexes(&next), [2]);
    assert_eq!(indexes(&loader.remaining()), [0, 1, 2, 3, 7]);
    for read in [first[0], first[2], first[3], next[0]] {
        loader.complete(read, true);
    }
    let (last, _) = reads(&mut loader, &IDLE);
    assert_eq!(indexes(&last), [3]);
    loader.complete(last[0], true);
    assert_eq!(loader.poll(&IDLE), LoaderStep::Ended(LoaderEnd::Loaded));
    assert_eq!((loader.done_lines(), loader.remaining().len()), (7, 0));
}

#[test]
fn an_empty_list_is_loaded_at_once() {
    assert_eq!(Loader::new(Vec::new()).poll(&IDLE), LoaderStep::Ended(LoaderEnd::Loaded));
    let full = Conditions { has_room: false, ..IDLE };
    assert_eq!(Loader::new(Vec::new()).poll(&full), LoaderStep::Ended(LoaderEnd::Loaded));
}

#[test]
fn nothing_is_read_once_the_pool_is_full() {
    let mut loader = Loader::new(cool(0..10));
    let (first, _) = reads(&mut loader, &IDLE);
    let full = Conditions { has_room: false, ..IDLE };
    assert!(matches!(loader.poll(&full), LoaderStep::Wait(_)), "reads are in flight");
    first.iter().for_each(|&read| loader.complete(read, true));
    // Slots that are freed later are left to the clients.
    assert_eq!(loader.poll(&IDLE), LoaderStep::Ended(LoaderEnd::Full));
    assert!(loader.remaining().is_empty());
}

#[test]
fn a_cancelled_warm_up_ends_with_its_reads_in_flight() {
    let mut loader = Loader::new(cool(0..10));
    let (first, _) = reads(&mut loader, &IDLE);
    loader.cancel();
    for read in first {
        assert!(matches!(loader.poll(&IDLE), LoaderStep::Wait(_)));
        loader.complete(read, true);
    }
    assert_eq!(loader.poll(&IDLE), LoaderStep::Ended(LoaderEnd::Cancelled));
}

#[test]
fn a_failing_disk_ends_the_warm_up_but_single_bad_sectors_do_not() {
    let mut loader = Loader::new(cool(0..100));
    let mut reads = 0;
    let end = loop {
        match loader.poll(&IDLE) {
            LoaderStep::Read(granule) => {
                reads += 1;
                // Every other one of the first 40 reads fails, and then all fail.
                loader.complete(granule, reads <= 40 && reads % 2 == 0);
            }
            LoaderStep::Ended(end) => break end,
            LoaderStep::Wait(_) => unreachable!("no read is in flight"),
        }
    };
    assert_eq!((end, reads), (LoaderEnd::Failing, 40 + ERRORS_MAX));
}

/// A disk whose client reads take `alone_us`, or `beside_us` while it preloads, one after the
/// other. Returns the preloads in `ms` milliseconds, each of which takes `read_ms`.
fn preloads_beside(ms: u64, alone_us: u64, beside_us: u64, read_ms: u64) -> u64 {
    let mut loader = Loader::new(cool(0..1_000_000));
    let mut conditions = READ;
    let mut in_flight: Option<(Granule, u64)> = None;
    let (mut preloads, mut next_us) = (0, 0);
    for now_ms in 0..ms {
        conditions.now_ms = now_ms;
        if let Some((granule, end_ms)) = in_flight
            && end_ms <= now_ms
        {
            loader.complete(granule, true);
            in_flight = None;
        }
        if let LoaderStep::Read(granule) = loader.poll(&conditions) {
            assert!(in_flight.is_none(), "one preload at a time beside clients");
            preloads += 1;
            in_flight = Some((granule, now_ms + read_ms));
        }
        while next_us < now_ms * 1_000 {
            let (reads, us) = match in_flight {
                Some(_) => (&mut conditions.beside, beside_us),
                None => (&mut conditions.alone, alone_us),
            };
            reads.count += 1;
            reads.us += us;
            next_us += us;
        }
    }
    preloads
}

#[test]
fn preloads_that_slow_clients_down_are_rare() {
    // A hard disk: 8 ms for a read, and as much again for a preload before it.
    let preloads = preloads_beside(100_000, 8_000, 16_000, 8);
    assert!((90..=130).contains(&preloads), "{preloads} in 100 s");
}

#[test]
fn preloads_that_no_client_notices_go_faster() {
    // An SSD: 100 us for a read, and hardly more beside a preload.
    let preloads = preloads_beside(100_000, 100, 105, 1);
    assert!(preloads > 10_000, "{preloads} in 100 s");
}

#[test]
fn without_client_reads_to_compare_with_the_rate_stays_low() {
    // Every client read overlaps a preload, so there is nothing to compare them with.
    let mut loader = Loader::new(cool(0..1_000));
    let mut conditions = READ;
    let mut count = 0;
    for now_ms in (0..60_000).step_by(10) {
        conditions.now_ms = now_ms;
        conditions.beside.count += 10;
        conditions.beside.us += 1_000;
        if let LoaderStep::Read(granule) = loader.poll(&conditions) {
            count += 1;
            loader.complete(granule, true);
        }
    }
    assert!((55..=61).contains(&count), "{count} in a minute");
}

#[test]
fn a_pause_of_the_clients_is_used_at_once() {
    let mut loader = Loader::new(cool(0..100));
    let (first, step) = reads(&mut loader, &READ);
    assert_eq!((first.len(), step), (1, LoaderStep::Wait(POLL_MS)));
    loader.complete(first[0], true);
    let (none, _) = reads(&mut loader, &Conditions { now_ms: 10, ..READ });
    assert!(none.is_empty(), "the next read beside clients is not due");
    let (next, _) = reads(&mut loader, &Conditions { now_ms: 20, ..IDLE });
    assert_eq!(next.len(), IDLE_READS_MAX as usize);
}

/// The reads of a loader in `ms` milliseconds without clients, each of which takes `read_ms`, and
/// the most that were in flight.
fn preloads_with(share: BackgroundShare, ms: u64, read_ms: u64) -> (u64, usize) {
    let mut loader = Loader::new(cool(0..1_000_000));
    let mut in_flight: Vec<(Granule, u64)> = Vec::new();
    let (mut preloads, mut most) = (0, 0);
    for now_ms in 0..ms {
        while let Some(at) = in_flight.iter().position(|(_, end_ms)| *end_ms <= now_ms) {
            loader.complete(in_flight.swap_remove(at).0, true);
        }
        let (begun, _) = reads(&mut loader, &Conditions { now_ms, share, ..IDLE });
        preloads += begun.len() as u64;
        in_flight.extend(begun.into_iter().map(|granule| (granule, now_ms + read_ms)));
        most = most.max(in_flight.len());
    }
    (preloads, most)
}

#[test]
fn while_others_wait_one_read_at_a_time_takes_its_share_of_the_time() {
    let idle_reads = IDLE_READS_MAX as usize;
    assert_eq!(preloads_with(BackgroundShare::Full, 10_000, 10), (4_000, idle_reads));
    for (share, expected) in [(BackgroundShare::Reduced, 250), (BackgroundShare::Least, 63)] {
        let (preloads, most) = preloads_with(share, 10_000, 10);
        assert_eq!(most, 1);
        assert!((expected - 3..=expected).contains(&preloads), "{preloads} with {share}");
    }
    // The pause is limited, however slow the disk is.
    let (preloads, _) = preloads_with(BackgroundShare::Least, 60_000, 5_000);
    assert_eq!(preloads, 10);
}

#[test]
fn reads_resume_at_once_with_the_full_share_and_the_longer_pause_counts_beside_clients() {
    let mut loader = Loader::new(cool(0..100));
    let held = Conditions { share: BackgroundShare::Least, ..IDLE };
    let (first, _) = reads(&mut loader, &held);
    assert_eq!(first.len(), 1);
    loader.complete(first[0], true);
    let (none, _) = reads(&mut loader, &Conditions { now_ms: 10, ..held });
    assert!(none.is_empty());
    let (next, _) = reads(&mut loader, &Conditions { now_ms: 20, ..IDLE });
    assert_eq!(next.len(), IDLE_READS_MAX as usize);
    next.iter().for_each(|&read| loader.complete(read, true));
    // Beside clients, the next read is due a second after the last. The share alone would allow it
    // sooner.
    let beside = |now_ms| Conditions { now_ms, share: BackgroundShare::Least, ..READ };
    for now_ms in [24, 200, 1_010] {
        assert!(reads(&mut loader, &beside(now_ms)).0.is_empty(), "{now_ms}");
    }
    assert_eq!(reads(&mut loader, &beside(1_020)).0.len(), 1);
}

#[test]
fn pinned_ranges_are_read_in_granules_with_the_lines_that_are_pinned() {
    let mut pins = PinnedRanges::default();
    for (first, lines) in [(3, 2), (7, 1), (30, 70), (200, 1)] {
        pins.add(ByteRange::new(first * LINE_BYTES, lines * LINE_BYTES));
    }
    let granules = granules_of(&pins);
    let lines = granules.iter().flat_map(|granule| {
        let bits = (0..GRANULE_LINES).filter(|bit| granule.lines >> bit & 1 != 0);
        bits.map(|bit| granule.index * GRANULE_LINES + bit)
    });
    assert!(lines.eq((0..1_000).filter(|&line| pins.contains(line))), "{granules:?}");
    let indexes: Vec<u64> = granules.iter().map(|granule| granule.index).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 6]);
    assert_eq!(granules_of(&PinnedRanges::default()), []);
}

proptest! {
    #[test]
    fn every_granule_is_read_once_whatever_happens(
        indexes in prop::collection::btree_map(0u64..500, (1u32.., 1u8..7), 0..60),
        events in prop::collection::vec(
            (any::<bool>(), 0u64..200, 0usize..100, 0u64..9_000, 0usize..3), 0..400,
        ),
    ) {
        let list: Vec<Granule> = indexes
            .into_iter()
            .map(|(index, (lines, value))| granule(index, lines, lines.count_ones() as u8 * value))
            .collect();
        let mut loader = Loader::new(list.clone());
        let (mut conditions, mut in_flight, mut seen) = (IDLE, Vec::new(), Vec::new());
        let settle = (0..2_000).map(|_| (false, 100, 0, 0, 2));
        for (is_read, ms, pick, us, share) in events.into_iter().chain(settle) {
            conditions.now_ms += ms;
            conditions.share = BackgroundShare::ALL[share];
            conditions.is_read = is_read;
            if is_read {
                let beside = !in_flight.is_empty();
                let reads = if beside { &mut conditions.beside } else { &mut conditions.alone };
                reads.count += 1;
                reads.us += us;
            }
            match loader.poll(&conditions) {
                LoaderStep::Read(granule) => {
                    in_flight.push(granule);
                    seen.push(granule);
                    prop_assert!(in_flight.len() <= IDLE_READS_MAX as usize);
                }
                LoaderStep::Wait(ms) => {
                    prop_assert!((1..=POLL_MS).contains(&ms));
                    if !in_flight.is_empty() {
                        let ended = in_flight.swap_remove(pick % in_flight.len());
                        loader.complete(ended, true);
                    }
                }
                LoaderStep::Ended(end) => prop_assert_eq!(end, LoaderEnd::Loaded),
            }
        }
        seen.sort_unstable_by_key(|granule| granule.index);
        prop_assert_eq!(seen, list);
    }
}
