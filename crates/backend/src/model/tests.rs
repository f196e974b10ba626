//! The models in virtual time, against the known behaviour of such disks.

use super::*;
use crate::random::Random;
use crate::{Backend, Blocking, MemoryBackend, OpenOptions, conformance};
use forebay_types::{ByteRange, Fault};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
const READ: IoKind = IoKind::Read;
const WRITE: IoKind = IoKind::Write { fua: false };

/// Keeps `depth` I/Os in flight until `count` have completed. Returns the end time and the longest
/// latency.
fn run(
    model: &mut dyn DiskModel,
    depth: u64,
    count: u64,
    mut next: impl FnMut() -> (IoKind, ByteRange),
) -> (u64, u64) {
    let (mut now_ns, mut given, mut longest_ns) = (0, 0, 0);
    let mut started = Vec::new();
    for done in 0..count {
        while given < count && given - done < depth {
            let (kind, range) = next();
            model.enqueue(now_ns, given, kind, range.offset, range.len);
            started.push(now_ns);
            given += 1;
        }
        let next_ns = model.next_completion().expect("something is in flight");
        assert!(next_ns >= now_ns, "time never goes back");
        now_ns = next_ns;
        // The completion may be that of a cached write, which has been answered before.
        let id = loop {
            if let Some(id) = model.pop(now_ns) {
                break id;
            }
            now_ns = model.next_completion().expect("something is in flight");
        };
        longest_ns = longest_ns.max(now_ns - started[id as usize]);
    }
    (now_ns, longest_ns)
}

fn random_reads_per_second(spec: HddSpec, depth: u64, count: u64) -> u64 {
    let size_bytes = spec.size_bytes;
    let mut random = Random::new(42);
    let mut hdd = Hdd::new(spec);
    let next = || (READ, ByteRange::new(random.below(size_bytes / 4096) * 4096, 4096));
    let (end_ns, _) = run(&mut hdd, depth, count, next);
    count * SECOND_NS / end_ns
}

fn sequential_bytes_per_second(spec: HddSpec, kind: IoKind, len: u64, depth: u64) -> u64 {
    let mut hdd = Hdd::new(spec);
    let mut offset = 0;
    let next = || {
        let range = ByteRange::new(offset, len);
        offset += len;
        (kind, range)
    };
    let count = (256 << 20) / len;
    let (end_ns, _) = run(&mut hdd, depth, count, next);
    ((count * len) as u128 * u128::from(SECOND_NS) / u128::from(end_ns)) as u64
}

#[test]
fn a_hard_disk_has_realistic_random_read_rates() {
    for size_bytes in [8 * GIB, 4096 * GIB] {
        let spec = HddSpec::new(size_bytes);
        let one = random_reads_per_second(spec.clone(), 1, 4000);
        let queued = random_reads_per_second(spec, 32, 8000);
        println!("{size_bytes}: depth 1: {one}/s, depth 32: {queued}/s");
        assert!((75..=120).contains(&one), "{one}");
        assert!((180..=250).contains(&queued), "{queued}");
    }
}

#[test]
fn deeper_queues_and_better_schedulers_help() {
    let at = |scheduler, depth| {
        random_reads_per_second(HddSpec { scheduler, ..HddSpec::new(64 * GIB) }, depth, 4000)
    };
    let fifo = at(Scheduler::Fifo, 32);
    let elevator = at(Scheduler::Elevator, 32);
    let shortest = at(Scheduler::ShortestPositioning, 32);
    println!("depth 32: fifo {fifo}/s, elevator {elevator}/s, ncq {shortest}/s");
    assert!(fifo < 90 && fifo < elevator && elevator < shortest);
    let by_depth: Vec<u64> =
        [1, 4, 16, 64].map(|depth| at(Scheduler::ShortestPositioning, depth)).into();
    println!("depths 1, 4, 16, 64: {by_depth:?}");
    assert!(by_depth.is_sorted());
    // The queue depth is 32, so 64 are not much better.
    assert!(by_depth[3] < shortest + shortest / 10);
}

#[test]
fn no_command_starves() {
    // A stream of reads near the edge must not starve one read far away.
    let mut hdd = Hdd::new(HddSpec::new(1024 * GIB));
    let mut random = Random::new(1);
    let mut number = 0;
    let next = || {
        number += 1;
        let offset = if number == 100 { 1000 * GIB } else { random.below(1 << 18) * 4096 };
        (READ, ByteRange::new(offset, 4096))
    };
    let (_, longest_ns) = run(&mut hdd, 32, 4000, next);
    assert!(longest_ns < 2 * SECOND_NS, "{longest_ns}");
}

#[test]
fn a_hard_disk_has_realistic_sequential_rates() {
    let spec = HddSpec::new(1024 * GIB);
    for (len, depth, least) in
        [(64 << 10, 1, 100), (1 << 20, 1, 100), (256 << 10, 8, 100), (4096, 1, 50)]
    {
        let rate = sequential_bytes_per_second(spec.clone(), READ, len, depth) / 1_000_000;
        println!("sequential reads of {len}, depth {depth}: {rate} MB/s");
        assert!((least..=127).contains(&rate), "{len} {depth}: {rate}");
    }
    // Without a cache, a write that just misses its sector waits a revolution.
    let lone = sequential_bytes_per_second(spec.clone(), WRITE, 64 << 10, 1) / 1_000_000;
    let queued = sequential_bytes_per_second(spec.clone(), WRITE, 64 << 10, 8) / 1_000_000;
    let cached = HddSpec { has_write_cache: true, ..spec };
    let cached = sequential_bytes_per_second(cached, WRITE, 64 << 10, 1) / 1_000_000;
    println!("sequential writes of 64 KiB: {lone} MB/s alone, {queued} queued, {cached} cached");
    assert!(lone < 12 && queued > 90 && cached > 90);
}

#[test]
fn a_write_cache_answers_at_once_and_a_flush_waits_for_it() {
    let mut hdd = Hdd::new(HddSpec { has_write_cache: true, ..HddSpec::new(64 * GIB) });
    let mut random = Random::new(5);
    for id in 0..100 {
        hdd.enqueue(id * 1000, id, WRITE, random.below(1 << 20) * 4096, 4096);
    }
    hdd.enqueue(200_000, 100, IoKind::Flush, 0, 0);
    // The flush does not wait for this write, which is submitted after it.
    hdd.enqueue(200_000, 101, WRITE, 0, 4096);
    let mut done = Vec::new();
    let mut now_ns = 200_000;
    while done.len() < 102 {
        now_ns = hdd.next_completion().unwrap().max(now_ns);
        while let Some(id) = hdd.pop(now_ns) {
            done.push((id, now_ns));
        }
    }
    let flushed_ns = done.iter().find(|(id, _)| *id == 100).unwrap().1;
    let written_ns = done.iter().filter(|(id, _)| *id < 100).map(|d| d.1).max().unwrap();
    assert!(written_ns < 1_000_000, "{written_ns}");
    // 100 random writes at some 250 a second.
    assert!((200_000_000..900_000_000).contains(&flushed_ns), "{flushed_ns}");
    // A read of dirty data needs no head movement, a FUA write does.
    hdd.enqueue(SECOND_NS * 2, 200, WRITE, 0, 8192);
    hdd.enqueue(SECOND_NS * 2, 201, READ, 4096, 4096);
    hdd.enqueue(SECOND_NS * 2, 202, IoKind::Write { fua: true }, GIB, 4096);
    let done: Vec<u64> = std::iter::from_fn(|| hdd.pop(SECOND_NS * 2 + 1_000_000)).collect();
    assert!(done.contains(&200) && !done.contains(&202), "{done:?}");
}

#[test]
fn the_same_seed_gives_the_same_times() {
    let times = |seed| {
        let mut hdd = Hdd::new(HddSpec { seed, ..HddSpec::new(GIB) });
        let mut random = Random::new(9);
        run(&mut hdd, 8, 200, || (READ, ByteRange::new(random.below(GIB / 512) * 512, 512)))
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
fn an_ssd_works_in_parallel_up_to_its_bandwidth() {
    let rate = |depth, len: u64| {
        let mut ssd = Ssd::new(SsdSpec::default());
        let (end_ns, _) = run(&mut ssd, depth, 10_000, || (READ, ByteRange::new(0, len)));
        10_000 * SECOND_NS / end_ns
    };
    // 80 µs and 2 µs for the bytes.
    assert!((12_000..12_400).contains(&rate(1, 4096)), "{}", rate(1, 4096));
    assert!((370_000..400_000).contains(&rate(32, 4096)), "{}", rate(32, 4096));
    let megabytes = rate(32, 1 << 20);
    assert!((2000..=2048).contains(&megabytes), "{megabytes}");
    // More depth than dies gains nothing.
    assert!(rate(128, 4096) < rate(32, 4096) * 21 / 20);
}

#[test]
fn an_ssd_flushes_earlier_writes() {
    let mut ssd = Ssd::new(SsdSpec::default());
    let written_ns = ssd.service(0, WRITE, 1 << 20);
    let flushed_ns = ssd.service(1000, IoKind::Flush, 0);
    assert_eq!(flushed_ns, written_ns + SsdSpec::default().flush_latency_ns);
}

proptest! {
    /// Every I/O is answered once, and not before its arrival, on every disk and with any schedule;
    /// a model that is polled late answers in the same order as one polled on time.
    #[test]
    fn every_command_is_answered_once(
        commands in proptest::collection::vec(
            (0u64..20_000_000, 0u8..5, 0u64..1000, 1u64..64),
            1..60,
        ),
        has_write_cache: bool,
        which in 0..4usize,
        scheduler in 0..3usize,
    ) {
        let scheduler =
            [Scheduler::Fifo, Scheduler::Elevator, Scheduler::ShortestPositioning][scheduler];
        let make = || -> Box<dyn DiskModel> {
            let spec = HddSpec { has_write_cache, scheduler, queue_depth: 4, ..HddSpec::new(GIB) };
            let (drive, level) = match which {
                0 => return Box::new(Hdd::new(spec)),
                1 => return Box::new(Ssd::new(SsdSpec::default())),
                2 => (Drive::Fixed(1_000_000), Level::Raid5),
                _ => (Drive::Hdd(spec), Level::Raid10),
            };
            let array = ArraySpec::new(level, 4, 8 << 10, 1).unwrap();
            Box::new(ArrayModel::new(array, &drive, GIB))
        };
        let kinds = [READ, WRITE, IoKind::Flush, IoKind::Discard, IoKind::Zero { unmap: true }];
        let (mut punctual, mut late) = (make(), make());
        let mut answered: Vec<(u64, u64)> = Vec::new();
        let (mut now_ns, mut arrived) = (0, Vec::new());
        let drain = |model: &mut Box<dyn DiskModel>, until_ns: u64, out: &mut Vec<(u64, u64)>| {
            while let Some(next_ns) = model.next_completion().filter(|&ns| ns <= until_ns) {
                while let Some(id) = model.pop(next_ns) {
                    out.push((id, next_ns));
                }
            }
        };
        for (id, &(wait_ns, kind, place, sectors)) in commands.iter().enumerate() {
            now_ns += wait_ns;
            drain(&mut punctual, now_ns, &mut answered);
            for model in [&mut punctual, &mut late] {
                model.enqueue(now_ns, id as u64, kinds[kind as usize], place << 20, sectors * 512);
            }
            arrived.push(now_ns);
        }
        drain(&mut punctual, u64::MAX, &mut answered);
        let order: Vec<u64> = std::iter::from_fn(|| late.pop(u64::MAX / 2)).collect();
        prop_assert_eq!(order, answered.iter().map(|a| a.0).collect::<Vec<_>>());
        prop_assert!(answered.iter().all(|&(id, at_ns)| at_ns >= arrived[id as usize]));
        let mut ids: Vec<u64> = answered.iter().map(|a| a.0).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..commands.len() as u64).collect::<Vec<_>>());
        prop_assert!(punctual.next_completion().is_none());
    }
}

fn open(spec: &str) -> Arc<dyn Backend> {
    crate::open(spec, &OpenOptions::default()).unwrap()
}

#[test]
fn live_models_pass_the_suite() {
    // A fast disk, to keep the suite short, and an SSD over its own backing.
    conformance::check(&open("model:hdd?size=16MiB&rpm=100000&seek=10us&transfer=10GiB/s"));
    conformance::check(&open("model:ssd?backing=memory:16MiB&read-latency=20us"));
    conformance::check(&open("model:fixed?size=16MiB&latency=5us"));
}

#[test]
fn live_arrays_pass_the_suite() {
    for array in [
        "raid0?drives=3&chunk=8KiB&drive-size=4MiB",
        "raid1?drives=2&drive-size=9MiB",
        "raid5?drives=5&chunk=4KiB&drive-size=4MiB",
        "raid5?drives=5&chunk=16KiB&degraded=1&drive-size=4MiB",
        "raid6?drives=6&chunk=64KiB&degraded=2&size=9MiB",
        "raid10?drives=4&chunk=8KiB&degraded=2&backing=memory:9000KiB",
    ] {
        conformance::check(&open(&format!("model:{array}&drive=fixed&drive-latency=2us")));
    }
    conformance::check(&open(
        "model:raid6?drives=4&chunk=8KiB&drive-size=8MiB&drive=ssd&drive-read-latency=5us",
    ));
    let array = open("model:raid5?drives=3&chunk=8KiB&drive-size=1MiB");
    let geometry = array.description().geometry;
    assert_eq!(geometry.rotational, Some(true), "hard disks unless told otherwise");
    assert_eq!((geometry.stripe_bytes, geometry.chunk_bytes), (16 << 10, 8 << 10));
    let mirror = open("model:raid1?drives=2&drive-size=1MiB").description().geometry;
    assert!(!mirror.has_stripes());
    assert_eq!(array.description().size_bytes(), 2 << 20);
    let shown = "model:raid5?drives=15&chunk=8KiB&drive=fixed&drive-latency=5ms&drive-size=256MiB";
    assert_eq!(open(shown).description().size_bytes(), 14 << 28);
}

#[test]
fn a_model_without_a_store_has_the_size_and_layout_of_its_name() {
    let name = "model:raid5?drives=15&chunk=8KiB&drive=hdd&drive-size=1TiB";
    let (model, size_bytes) = timing(name).unwrap();
    assert_eq!(size_bytes, 14 << 40, "no store of this size is needed");
    let geometry = model.geometry();
    assert_eq!((geometry.stripe_bytes, geometry.chunk_bytes), (112 << 10, 8 << 10));
    let (model, size_bytes) = timing("hdd?size=1GiB").unwrap();
    assert_eq!((size_bytes, model.geometry().has_stripes()), (GIB, false));
    let error = |name| timing(name).err().map(|error| error.explained()).unwrap();
    assert_eq!(error("model:hdd"), "model:hdd needs size: add size=8GiB");
    assert!(error("model:hdd?size=513B").contains("multiple of 512"));
    assert!(error("model:ssd?backing=x").starts_with("model:ssd has no option 'backing'"));
    assert!(error("model:raid5?drives=3").starts_with("model:raid5 needs drive-size"));
}

#[test]
fn an_array_reports_its_layout() {
    let spec = ArraySpec::new(Level::Raid6, 8, 64 << 10, 1).unwrap();
    let size_bytes = spec.size_bytes(1 << 20).unwrap();
    let memory = Arc::new(MemoryBackend::new(size_bytes).unwrap());
    let model = ArrayModel::new(spec, &Drive::Fixed(1000), 1 << 20);
    let array = ModelBackend::new("array", memory, Box::new(model), size_bytes);
    let shape = array.array().unwrap();
    assert_eq!((shape.chunk_bytes(), shape.stripe_bytes()), (64 << 10, 6 * (64 << 10)));
    assert_eq!(array.description().geometry.rotational, Some(false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Reads return the written data, with any drives missing.
    #[test]
    fn an_array_agrees_with_plain_bytes(
        ios in proptest::collection::vec((0u64..200, 1u64..80, proptest::option::of(1u8..)), 1..60),
        which in 0..8usize,
    ) {
        let array = open(&format!(
            "model:{}&drive-size=96KiB&drive=fixed&drive-latency=1us",
            [
                "raid0?drives=3&chunk=4KiB", "raid1?drives=3&degraded=2",
                "raid5?drives=3&chunk=8KiB", "raid5?drives=4&chunk=4KiB&degraded=1",
                "raid6?drives=5&chunk=16KiB", "raid6?drives=5&chunk=4KiB&degraded=2",
                "raid10?drives=4&chunk=8KiB&degraded=2", "raid10?drives=5&chunk=4KiB&degraded=1",
            ][which],
        ));
        let size = array.description().size_bytes() as usize;
        let (blocking, mut plain) = (Blocking::new(&*array), vec![0u8; size]);
        for (place, sectors, written) in ios {
            let start = place as usize * 512 % size;
            let end = size.min(start + sectors as usize * 512);
            if let Some(byte) = written {
                plain[start..end].fill(byte);
                blocking.write(start as u64, &plain[start..end], byte % 4 == 0).unwrap();
            } else {
                let mut bytes = vec![0xA5; end - start];
                blocking.read(start as u64, &mut bytes).unwrap();
                prop_assert_eq!(&bytes, &plain[start..end]);
            }
        }
    }
}

#[test]
fn a_live_disk_takes_the_time_of_its_model() {
    let backend = open("model:hdd?size=8GiB&seed=3");
    assert_eq!(backend.description().geometry.rotational, Some(true));
    let blocking = Blocking::new(&*backend);
    let mut random = Random::new(2);
    let started = Instant::now();
    let mut model = Hdd::new(HddSpec { seed: 3, ..HddSpec::new(8 * GIB) });
    let mut modelled_ns = 0;
    let mut bytes = vec![0; 4096];
    for _ in 0..20 {
        let offset = random.below(2 << 20) * 4096;
        modelled_ns = model.service(modelled_ns, READ, offset, 4096);
        blocking.read(offset, &mut bytes).unwrap();
    }
    let (took, modelled) = (started.elapsed(), Duration::from_nanos(modelled_ns));
    // A late start changes the rotational delay. The excess over the modelled time depends on the
    // machine; `measure_a_live_ssd` prints it.
    assert!(took > modelled / 2, "{took:?} for {modelled:?}");
    assert_eq!(backend.io_count().unwrap().reads, 20);
    assert_eq!(backend.io_count().unwrap().read_bytes, 20 * 4096);
}

#[test]
fn a_closed_disk_answers_io_in_flight() {
    let slow = SsdSpec { read_latency_ns: 3600 * SECOND_NS, ..SsdSpec::default() };
    let memory = Arc::new(MemoryBackend::new(1 << 20).unwrap());
    let disk = ModelBackend::new("slow", memory, Box::new(Ssd::new(slow)), 1 << 20);
    let wait = crate::IoWait::new(1);
    let mut bytes = [0; 512];
    // SAFETY: `bytes` outlives the answer, which comes two lines below.
    let buffers = vec![unsafe { crate::Buffer::new(bytes.as_mut_ptr(), bytes.len()) }];
    let done = crate::IoToken::new(wait.clone(), 0);
    disk.submit(crate::Io { kind: READ, offset: 0, len: 512, buffers: buffers.into(), done });
    assert_eq!(wait.answer(0), None);
    drop(disk);
    assert_eq!(wait.all(), [Err(forebay_types::IoError::Io)]);
}

#[test]
fn malformed_model_names_are_refused() {
    let error = |spec: &str| crate::open(spec, &OpenOptions::default()).err().unwrap().explained();
    for (spec, message) in [
        (
            "model:tape",
            "there is no model 'tape': use one of model:hdd, model:ssd, model:fixed and \
             model:raid0, raid1, raid5, raid6, raid10",
        ),
        ("model:hdd", "model:hdd needs size: add size=8GiB"),
        (
            "model:hdd?size=1GiB&speed=1",
            "model:hdd has no option 'speed': the options are size, backing, rpm, seek, \
             transfer, queue, scheduler, write-cache, seed",
        ),
        ("model:hdd?size=1GiB&rpm=7", "model:hdd: rpm='7' is invalid: write it like 7200"),
        (
            "model:ssd?size=1001",
            "1001B is not a valid size for a modelled disk: give a multiple of 512 bytes, like \
             size=8GiB",
        ),
        (
            "model:ssd?size=2MiB&backing=memory:1MiB",
            "the backing store 'memory:1MiB' has 1MiB, too little for a modelled disk of 2MiB: \
             remove size=, or make the store larger",
        ),
    ] {
        assert_eq!(error(spec), message);
    }
    for (spec, message) in [
        ("raid5?drive-size=1MiB", "model:raid5 needs drives: add drives=15"),
        ("raid5?drives=3", "model:raid5 needs drive-size: add drive-size=1GiB"),
        ("raid5?drives=2&drive-size=1MiB", "raid5 has 3 to 64 drives, not 2: give drives=3 to 64"),
        (
            "raid1?drives=2&chunk=8KiB",
            "model:raid1 has no option 'chunk': the options are size, backing, drives, degraded, \
             drive, drive-size, drive-rpm, drive-seek, drive-transfer, drive-queue, \
             drive-scheduler, drive-write-cache, drive-seed",
        ),
        (
            "raid5?drives=3&drive=fixed&drive-latency=5",
            "model:raid5: drive-latency='5' is invalid: write it like 5ms",
        ),
        ("raid5?drives=3&drive=fixed", "model:raid5 needs drive-latency: add drive-latency=5ms"),
        (
            "raid5?drives=3&drive=tape",
            "model:raid5: drive='tape' is invalid: write it like hdd, ssd or fixed",
        ),
        (
            "raid5?drives=3&drive-size=1MiB&size=2MiB",
            "size and drive-size are both given: keep one of them",
        ),
        (
            "raid5?drives=3&chunk=8KiB&backing=memory:8KiB",
            "an array of 8KiB is not a whole number of stripes of 16KiB: give size=16KiB, or the \
             size of a drive with drive-size=",
        ),
        ("fixed?size=1MiB", "model:fixed needs latency: add latency=5ms"),
    ] {
        assert_eq!(error(&format!("model:{spec}")), message);
    }
    let nested = open("model:hdd?backing=model:ssd%3fbacking=memory:1MiB%26parallel=1&seek=1us");
    assert_eq!(nested.description().size_bytes(), 1 << 20);
}

#[test]
fn a_disk_is_closed_while_it_answers() {
    // Dropping the backend must not race with timer events.
    for round in 0..200 {
        let backend = open("model:ssd?size=1MiB&read-latency=5us&flush-latency=5us");
        let wait = crate::IoWait::new(32);
        for tag in 0..32 {
            let done = crate::IoToken::new(wait.clone(), tag);
            let (kind, buffers) = (IoKind::Discard, Vec::new());
            backend.submit(crate::Io {
                kind,
                offset: tag * 512,
                len: 512,
                buffers: buffers.into(),
                done,
            });
        }
        if round % 2 == 0 {
            wait.answer(0);
        }
        drop(backend);
        assert_eq!(wait.all().len(), 32);
    }
}

#[test]
#[ignore = "measures, and needs an idle machine"]
fn measure_a_live_ssd() {
    let backend = open("model:ssd?size=1MiB");
    let blocking = Blocking::new(&*backend);
    let mut times_us: Vec<f64> = (0..5000)
        .map(|_| {
            let started = Instant::now();
            blocking.read(0, &mut [0; 4096]).unwrap();
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times_us.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times_us[(times_us.len() as f64 * share) as usize];
    println!("82 us modelled: p50 {:.0}, p90 {:.0}, p99 {:.0} us", at(0.5), at(0.9), at(0.99));
}
