//! The engine misses what the policy misses: with short and long requests, in one shard in
//! write-through, with nothing read ahead. Lines that cannot be evicted yet, and slots that wait
//! for their lines, must not make the policy evict others than it would alone.

use forebay_lab::replay::Workload;
use forebay_lab::replay::engine::{EngineRow, EngineSetup, replay};
use forebay_lab::trace::{Op, Request, Trace};
use std::path::Path;

const LINE: u64 = 4096;
/// Lines of a long request.
const LONG: u64 = 128;
/// The largest differences of the miss ratios.
const EQUAL_MAX: f64 = 0.01;
const RECORDED_MAX: f64 = 0.005;
/// The smallest caches, for requests as in the trace and for long ones, of which they hold 32.
const LINES_MIN: usize = 1_000;
const LONG_LINES_MIN: usize = 32 * LONG as usize;

/// A generator of numbers that is the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % sides
    }

    /// A number below `sides`; small ones are much more likely.
    fn skewed(&mut self, sides: u64) -> u64 {
        let at = (0..3).map(|_| self.below(sides)).min().unwrap_or(0);
        at * at / sides
    }
}

fn request(op: Op, line: u64, lines: u64) -> Request {
    let (offset_bytes, length_bytes) = (line * LINE, lines * LINE);
    Request { time_us: 0, offset_bytes, length_bytes, volume: 0, op }
}

/// Whole files of 4 to 100 lines are read, and one in five times written anew.
fn files(dice: &mut Dice) -> Request {
    let file = dice.skewed(1_500);
    let op = if dice.below(5) == 0 { Op::Write } else { Op::Read };
    request(op, file * 128, 4 + file * 7 % 97)
}

/// Single lines of a set are read, beside long writes to other places.
fn long_writes(dice: &mut Dice) -> Request {
    match dice.below(24) {
        0 => request(Op::Write, 100_000 + dice.below(250) * LONG, LONG),
        _ => request(Op::Read, dice.skewed(20_000), 1),
    }
}

/// The same beside long reads.
fn long_reads(dice: &mut Dice) -> Request {
    match dice.below(24) {
        0 => request(Op::Read, 100_000 + dice.below(250) * 256, 250),
        _ => request(Op::Read, dice.skewed(20_000), 1),
    }
}

/// Single lines are read and written.
fn single_lines(dice: &mut Dice) -> Request {
    let op = if dice.below(3) == 0 { Op::Write } else { Op::Read };
    request(op, dice.skewed(60_000), 1)
}

fn traces() -> Vec<Trace> {
    let generated = |name: &str, count: u64, make: fn(&mut Dice) -> Request| {
        let mut dice = Dice(7);
        Trace { name: name.to_owned(), requests: (0..count).map(|_| make(&mut dice)).collect() }
    };
    let passes = (0..6_000).map(|at| request(Op::Read, at % 1_500 * 16, 16)).collect();
    vec![
        generated("files", 12_000, files),
        generated("long writes", 60_000, long_writes),
        generated("long reads", 60_000, long_reads),
        generated("single lines", 200_000, single_lines),
        Trace { name: "loop".to_owned(), requests: passes },
    ]
}

/// The trace in whole lines. A read of a line of which only some sectors were written misses in the
/// engine and hits in the policy, which does not know sectors.
fn in_lines(trace: &Trace) -> Trace {
    let requests = trace.requests.iter().map(|it| {
        let (first, last) = it.blocks().into_inner();
        Request { offset_bytes: first * LINE, length_bytes: (last + 1 - first) * LINE, ..*it }
    });
    Trace { name: trace.name.clone(), requests: requests.collect() }
}

/// The trace with a long request for each of its first ones.
fn in_long_requests(trace: &Trace) -> Trace {
    let Trace { name, mut requests } = in_lines(trace);
    requests.truncate(30_000);
    requests.iter_mut().for_each(|it| it.length_bytes = LONG * LINE);
    Trace { name: format!("{name}, {LONG} lines each"), requests }
}

/// Replays a trace at 1, 10 and 30 % of its lines, from `lines_min` on. Returns a line of text for
/// each size at which the engine differs from the policy by more than `max`, and prints all.
fn differences(trace: &Trace, max: f64, lines_min: usize) -> Vec<String> {
    let workload = Workload::new(trace);
    let mut found = Vec::new();
    for percent in [1, 10, 30] {
        let lines = workload.block_count() * percent / 100;
        if lines < lines_min {
            continue;
        }
        let row = replay(trace, &workload, lines, EngineSetup::BARE)
            .expect("the lab replays its own traces");
        let EngineRow { policy_miss_ratio, policy_access_miss_ratio, .. } = row;
        let pairs = [
            ("reads", policy_miss_ratio, row.miss_ratio()),
            ("reads and writes", policy_access_miss_ratio, row.access_miss_ratio()),
        ];
        for (what, policy, engine) in pairs {
            let name = &trace.name;
            let text = format!("{name}, {percent} %, {what}: {policy:.4} and {engine:.4}");
            println!("{text}, {:+.4}", engine - policy);
            if (engine - policy).abs() > max {
                found.push(text);
            }
        }
    }
    found
}

#[test]
fn the_engine_misses_what_the_policy_misses() {
    let found: Vec<String> = traces()
        .iter()
        .flat_map(|trace| {
            let mut found = differences(&in_lines(trace), EQUAL_MAX, LINES_MIN);
            found.extend(differences(&in_long_requests(trace), EQUAL_MAX, LONG_LINES_MIN));
            found
        })
        .collect();
    assert!(found.is_empty(), "policy and engine: {found:#?}");
}

/// The same for the recorded block traces in the folder `FOREBAY_TRACES`.
#[test]
#[ignore = "needs traces in FOREBAY_TRACES, and a release build"]
fn the_engine_misses_what_the_policy_misses_on_recorded_traces() {
    let folder = std::env::var_os("FOREBAY_TRACES").expect("FOREBAY_TRACES is a folder of traces");
    let names = [
        "cloudphysics_2h",
        "arc_P3",
        "arc_P6",
        "msr_web0",
        "hp_ajw",
        "cas_rocksdb_ycsb",
        "disksim_postmark",
        "msrcut_rw_20_80.105",
        "llm_opt7b",
    ];
    let mut found = Vec::new();
    for name in names {
        let trace = Trace::open(&Path::new(&folder).join(format!("{name}.csv.zst"))).unwrap();
        found.extend(differences(&in_lines(&trace), RECORDED_MAX, LINES_MIN));
        found.extend(differences(&in_long_requests(&trace), EQUAL_MAX, LONG_LINES_MIN));
    }
    assert!(found.is_empty(), "policy and engine: {found:#?}");
}
