//! The engine's hit path compared with a bare copy: the cost of finding a line.
//!
//! Three loops take turns over the same memory and the same random places. The first only copies 4
//! KiB; it knows all places in advance, so the processor overlaps the copies. The second looks up a
//! line in the engine, copies and releases it, like a lone request: the cache misses on index, line
//! and data are serialized. The third does the same with the next two requests known, and
//! prefetches their memory, like the server. They measure the CPU time of the thread. Prints
//! medians over the rounds, medians of the ratios within a round, and the allocations of the second
//! and third loop. A missed limit exits with 1.

use clap::Parser;
use forebay_bench::allocations::{Counting, allocations};
use forebay_bench::area::SharedArea;
use forebay_bench::content::LoadRandom;
use forebay_bench::cpu::thread_ns;
use forebay_bench::figures::{FigureLimit, FigureList};
use forebay_bench::table::median;
use forebay_engine::{
    Attempt, Hints, LineKey, LineMeta, MemoryStep, Outbox, Part, PartId, Place, ReadOutcome,
    Segment, Shard, ShardConfig, WriteOutcome, WriteTerms, set_pool_share,
};
use forebay_policy::{Miniatures, Weir};
use forebay_types::{ByteRange, LINE_BYTES, Mode, PoolShare, Size, VolumeId};
use std::hint::black_box;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
struct EngineHitArgs {
    /// Memory of the pool.
    #[arg(long, default_value = "256MiB")]
    memory: Size,
    /// Rounds of each loop.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Lines per round.
    #[arg(long, default_value_t = 200_000)]
    lines: usize,
    /// Guarantee the volume half of the pool.
    #[arg(long)]
    shares: bool,
    /// Limit for a hit among others, as a multiple of a bare copy.
    #[arg(long, default_value_t = 1.5)]
    ratio_max: f64,
    /// Limit for a hit alone, as a multiple of a bare copy.
    #[arg(long, default_value_t = 2.0)]
    ratio_alone_max: f64,
}

/// Bytes of engine metadata per line with all lines dirty and no parity, without the metadata that
/// the runtime keeps beside the data, and without the miniatures of the policy, which take a larger
/// share of a small shard.
const METADATA_BYTES_MAX: f64 = 40.0;
const VOLUME: VolumeId = VolumeId(0);

fn main() -> ExitCode {
    let arguments = EngineHitArgs::parse();
    let slots = (arguments.memory.bytes() / LINE_BYTES) as usize - SPARE;
    let mut pool = SharedArea::new(arguments.memory.bytes() as usize).expect("memory for the pool");
    // Written, so that every line has its own memory.
    let pool = pool.bytes_mut();
    pool.fill(1);
    let mut shard = warm(slots + SPARE);
    if arguments.shares {
        let half = PoolShare::of_percent(50, 100).expect("a half can be guaranteed");
        set_pool_share(&mut shard, VOLUME, half);
    }
    let usage = shard.usage();
    let places = places(arguments.lines, slots as u64);
    let mut page = vec![0u8; LINE_BYTES as usize];
    let [mut bare, mut alone, mut among] = [(); 3].map(|()| Vec::with_capacity(arguments.rounds));
    let mut allocated = 0;
    let hints = shard.slots().hints();
    let mut segments: Vec<Segment> = Vec::with_capacity(4);
    let mut out = Outbox::default();
    for _ in 0..arguments.rounds {
        bare.push(time(&places, |line| copy(pool, line, &mut page)));
        let before = allocations();
        alone.push(time(&places, |line| {
            read(&mut shard, line, &mut segments, &mut out, |slot| copy(pool, slot, &mut page));
        }));
        let mut behind = places.iter();
        among.push(time(&places, |line| {
            behind.next();
            look_ahead(&hints, pool, behind.as_slice());
            read(&mut shard, line, &mut segments, &mut out, |slot| copy(pool, slot, &mut page));
        }));
        allocated += allocations() - before;
    }
    let metadata_bytes = usage.metadata_bytes as f64 - Miniatures::bytes_max(slots) as f64;
    let per_line = metadata_bytes / usage.capacity_lines as f64;
    let (fill, write) = writes(&mut shard, pool, &places, arguments.rounds);
    let mut figures = FigureList::default();
    let ratio_max = FigureLimit::AtMost(arguments.ratio_max);
    let ratio_alone_max = FigureLimit::AtMost(arguments.ratio_alone_max);
    add_pair(&mut figures, ["bare copy of 4 KiB, ns", "read hit alone, ns"], &bare, &alone);
    figures.add("read hit alone / bare copy", median_ratio(&bare, &alone), ratio_alone_max);
    figures.add("read hit among others, ns", median_of(&among), FigureLimit::Information);
    figures.add("read hit among others / bare copy", median_ratio(&bare, &among), ratio_max);
    figures.add("allocations", allocated as f64, FigureLimit::AtMost(0.0));
    add_pair(&mut figures, ["bare copy into the pool, ns", "write hit, ns"], &fill, &write);
    figures.add("write hit / bare copy", median_ratio(&fill, &write), FigureLimit::Information);
    figures.add("metadata per line, bytes", per_line, FigureLimit::AtMost(METADATA_BYTES_MAX));
    println!("pool {}, {slots} lines, policy weir", arguments.memory);
    figures.print()
}

fn add_pair(figures: &mut FigureList, names: [&str; 2], bare: &[f64], engine: &[f64]) {
    for (name, times) in names.into_iter().zip([bare, engine]) {
        figures.add(name, median_of(times), FigureLimit::Information);
    }
}

fn median_of(times: &[f64]) -> f64 {
    median(times).unwrap_or(f64::NAN)
}

/// The median of the ratios within a round: a disturbance affects both loops of a round.
fn median_ratio(bare: &[f64], engine: &[f64]) -> f64 {
    let ratios: Vec<f64> = bare.iter().zip(engine).map(|(bare, engine)| engine / bare).collect();
    median_of(&ratios)
}

/// A read hit of one line.
fn read(
    shard: &mut Shard<Vec<LineMeta>>,
    line: u64,
    segments: &mut Vec<Segment>,
    out: &mut Outbox,
    mut copy: impl FnMut(u64),
) {
    let (outcome, _) = shard.read(&part(line), Attempt::default(), segments, out);
    assert_eq!(outcome, ReadOutcome::Ready);
    for segment in segments.drain(..) {
        let Place::Slot { slot, .. } = segment.place else { unreachable!("a hit") };
        copy(u64::from(slot));
        shard.release(slot);
    }
}

/// Prefetches memory for the next two requests: the index of the second, and the data of the first.
fn look_ahead(hints: &Hints, pool: &[u8], behind: &[u64]) {
    if let Some(&line) = behind.get(1) {
        prefetch(hints.bucket_address(LineKey::new(VOLUME, line)));
    }
    if let Some(&line) = behind.first()
        && let Some(slot) = hints.slot(LineKey::new(VOLUME, line))
    {
        prefetch(pool[slot as usize * LINE_BYTES as usize..].as_ptr());
    }
}

/// Prefetches memory into the processor cache.
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Overwrites dirty lines: as bare copies, and through the engine.
fn writes(
    shard: &mut Shard<Vec<LineMeta>>,
    pool: &mut [u8],
    places: &[u64],
    rounds: usize,
) -> (Vec<f64>, Vec<f64>) {
    let page = vec![2u8; LINE_BYTES as usize];
    let mut out = Outbox::default();
    let (mut bare, mut engine) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare.push(time(places, |line| {
            let at = line as usize * LINE_BYTES as usize;
            pool[at..at + LINE_BYTES as usize].copy_from_slice(&page);
        }));
        engine.push(time(places, |line| {
            let terms = WriteTerms::default();
            let outcome = shard.write(&part(line), terms, Attempt::default(), &mut out);
            assert_eq!(outcome, WriteOutcome::Done);
            for step in out.memory.drain(..) {
                let at = |slot: u32, offset: u32| (slot * LINE_BYTES as u32 + offset) as usize;
                match step {
                    MemoryStep::Fill { slot, offset, len, .. } => {
                        let at = at(slot, offset);
                        pool[at..at + len as usize].copy_from_slice(&page[..len as usize]);
                    }
                    MemoryStep::Copy { from, to, offset, len } => {
                        let from = at(from, offset);
                        pool.copy_within(from..from + len as usize, at(to, offset));
                    }
                    MemoryStep::Verify { .. } => unreachable!("no line is sealed here"),
                }
            }
            shard.finish_call();
        }));
    }
    (bare, engine)
}

/// Free slots, as in a pool that is one third clean.
const SPARE: usize = 8;

/// A shard with the first lines of a volume in its slots, and a few free slots.
fn warm(slots: usize) -> Shard<Vec<LineMeta>> {
    let policy = Box::new(Weir::new(slots));
    let mut config = ShardConfig::for_slots(slots);
    config.dirty_lines_max = slots;
    let mut shard = Shard::new(vec![LineMeta::FREE; slots], policy, config);
    shard.add_volume(VOLUME, slots as u64 * LINE_BYTES, Mode::WriteBack);
    let mut out = Outbox::default();
    // An odd stride visits every line once, in an order that defeats the hardware prefetcher.
    let lines = (slots - SPARE) as u64;
    for at in 0..lines {
        let line = at.wrapping_mul(0x9e37_79b1) % lines;
        let outcome = shard.write(&part(line), WriteTerms::default(), Attempt::default(), &mut out);
        assert_eq!(outcome, WriteOutcome::Done);
        out.memory.clear();
        shard.finish_call();
    }
    shard
}

fn part(line: u64) -> Part {
    let range = ByteRange::new(line * LINE_BYTES, LINE_BYTES);
    Part { id: PartId(0), volume: VOLUME, range, restores: false }
}

/// Random lines, the same for both loops.
fn places(count: usize, lines: u64) -> Vec<u64> {
    let mut random = LoadRandom::new(7);
    (0..count).map(|_| random.next_u64() % lines).collect()
}

fn copy(pool: &[u8], line: u64, page: &mut [u8]) {
    let at = line as usize * LINE_BYTES as usize;
    page.copy_from_slice(&pool[at..at + LINE_BYTES as usize]);
    black_box(page);
}

fn time(places: &[u64], mut each: impl FnMut(u64)) -> f64 {
    let started = thread_ns();
    for &line in places {
        each(line);
    }
    (thread_ns() - started) as f64 / places.len() as f64
}
