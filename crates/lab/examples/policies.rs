//! Compares all eviction policies over the traces in the folder `FOREBAY_TRACES` and prints the
//! tables of `docs/policies.md` as Markdown. Fails if weir exceeds a limit of that page. Takes some
//! minutes:
//!
//! ```text
//! FOREBAY_TRACES=... cargo run --release -p forebay-lab --example policies
//! ```

use forebay_lab::policies::PolicyKind;
use forebay_lab::replay::{self, Memory, ReplayError, ReplayPlan, Table, Workload};
use forebay_lab::trace::{MIX_DEV, Trace, TraceError};
use forebay_policy::{Hint, Lines, Slot};
use std::path::{Path, PathBuf};
use std::time::Instant;

const CORE: [&str; 9] = [
    "cloudphysics_2h",
    "arc_P3",
    "arc_P6",
    "arc_OLTP",
    "msr_web0",
    "hp_ajw",
    "cas_rocksdb_ycsb",
    "disksim_postmark",
    "lirs_sprite",
];
const SMALL: [&str; 7] = [
    "tencent_1326",
    "tencent_2706",
    "tencent_3906",
    "msrcut_rw_20_80.105",
    "lirs_multi1",
    "lirs_cs",
    "lirs_gli",
];
/// Synthetic loops and scans.
const PATTERNS: [&str; 4] = ["lirs_2_pools", "lirs_loop", "lirs_zigzag", "lirs_scan"];
/// Sizes as shares of the distinct blocks of a trace.
const SHARES: [f64; 5] = [0.001, 0.01, 0.03, 0.1, 0.3];
/// The smallest caches that get a row, in the core group and in the small one.
const CORE_LINES_MIN: usize = 100;
const SMALL_LINES_MIN: usize = 16;

/// The limits of `docs/policies.md`: the means of weir, and its excess over LRU in a single cell.
const CORE_MEAN_MAX: f64 = 0.6440;
const CORE_ABOVE_LRU_MAX: f64 = 0.07;
const SMALL_MEAN_MAX: f64 = 0.7110;
const SMALL_ABOVE_LRU_MAX: f64 = 0.02;
const WARM_MEAN_MAX: f64 = 0.6690;
const WARM_ABOVE_LRU_MAX: f64 = 0.075;

#[derive(Debug, thiserror::Error)]
enum ExampleError {
    #[error("FOREBAY_TRACES is not set; set it to the folder that holds the traces")]
    NoFolder,
    #[error("{0}")]
    Trace(#[from] TraceError),
    #[error("{0}")]
    Replay(#[from] ReplayError),
    #[error("weir exceeds {0} of its limits; they are listed above")]
    Limits(usize),
}

fn main() -> Result<(), ExampleError> {
    let folder = std::env::var_os("FOREBAY_TRACES").ok_or(ExampleError::NoFolder)?;
    let folder = PathBuf::from(folder);
    let mut core = open_all(&folder, &CORE)?;
    let mix = Trace::mix_dev(&core)?;
    core.push(mix);
    let core: Vec<Workload> = core.iter().map(Workload::new).collect();
    let table = compare(&core, CORE_LINES_MIN)?;
    println!("## Core traces and {MIX_DEV}\n\n{table}");
    print_left_out(&table);
    let small = compare(&open_workloads(&folder, &SMALL)?, SMALL_LINES_MIN)?;
    println!("## Small traces\n\n{small}");
    let patterns = compare(&open_workloads(&folder, &PATTERNS)?, SMALL_LINES_MIN)?;
    println!("## Patterns\n\n{patterns}");
    let warm = compare_warm(&core[..CORE.len()])?;
    println!("## Core traces, each after another one\n\n{warm}");
    print_costs();
    check_limits(&[
        ("core", &table, Limit { mean: CORE_MEAN_MAX, above_lru: CORE_ABOVE_LRU_MAX }),
        ("small", &small, Limit { mean: SMALL_MEAN_MAX, above_lru: SMALL_ABOVE_LRU_MAX }),
        ("warm", &warm, Limit { mean: WARM_MEAN_MAX, above_lru: WARM_ABOVE_LRU_MAX }),
    ])
}

/// The limits for weir in one group.
struct Limit {
    /// The mean miss ratio.
    mean: f64,
    /// The excess of one cell over LRU, as a share of LRU's misses.
    above_lru: f64,
}

/// Prints each exceeded limit; fails if there is one.
fn check_limits(groups: &[(&str, &Table, Limit)]) -> Result<(), ExampleError> {
    let mut exceeded = 0;
    for (group, table, limit) in groups {
        let column = |kind: PolicyKind| {
            let name = kind.to_string();
            table.columns.iter().position(|column| *column == name)
        };
        let (weir, lru) = (column(PolicyKind::Weir), column(PolicyKind::Lru));
        let (weir, lru) = weir.zip(lru).expect("every group compares weir and LRU");
        let mean = table.means()[weir];
        if mean > limit.mean {
            println!("{group}: the mean of weir is {mean:.4}, its limit {:.4}", limit.mean);
            exceeded += 1;
        }
        for row in &table.rows {
            let above = row.cells[weir].miss_ratio() / row.cells[lru].miss_ratio() - 1.0;
            if above > limit.above_lru {
                let (above, max) = (100.0 * above, 100.0 * limit.above_lru);
                println!(
                    "{group}: {} at {} lines: weir misses {above:.1} % more than LRU, limit {max}",
                    row.trace, row.capacity_lines
                );
                exceeded += 1;
            }
        }
    }
    if exceeded == 0 { Ok(()) } else { Err(ExampleError::Limits(exceeded)) }
}

fn open_workloads(folder: &Path, names: &[&str]) -> Result<Vec<Workload>, TraceError> {
    Ok(open_all(folder, names)?.iter().map(Workload::new).collect())
}

fn open_all(folder: &Path, names: &[&str]) -> Result<Vec<Trace>, TraceError> {
    names.iter().map(|name| Trace::open(&folder.join(format!("{name}.csv.zst")))).collect()
}

/// Each workload in a cache that another one has filled, as in a server whose load changes. The
/// other one is the nearest before it, in the order of the traces, with enough blocks.
fn compare_warm(workloads: &[Workload]) -> Result<Table, ReplayError> {
    let share_max = SHARES.into_iter().fold(0.0, f64::max);
    let mut warm = Vec::new();
    for (i, workload) in workloads.iter().enumerate() {
        let mut before = workloads[..i].iter().rev().chain(workloads[i + 1..].iter().rev());
        let blocks_min = share_max * workload.block_count() as f64;
        let other = before.find(|other| other.block_count() as f64 >= blocks_min);
        warm.extend(other.map(|other| workload.after(other)));
    }
    let plan = ReplayPlan {
        policies: vec![PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Weir],
        with_opt: false,
        memories: SHARES.map(Memory::Share).to_vec(),
        lines_min: CORE_LINES_MIN,
    };
    replay::run(&warm, &plan)
}

fn compare(workloads: &[Workload], lines_min: usize) -> Result<Table, ReplayError> {
    let plan = ReplayPlan {
        policies: PolicyKind::ALL.to_vec(),
        with_opt: true,
        memories: SHARES.map(Memory::Share).to_vec(),
        lines_min,
    };
    replay::run(workloads, &plan)
}

/// Prints, for each trace, the two policies with the best means over all other traces: whether the
/// choice of a policy depends on one trace.
fn print_left_out(table: &Table) {
    let policies = table.columns.len() - 1; // The last column is OPT.
    println!("## Means with one trace left out\n");
    println!("| left out | best on the rest | its mean | next best | its mean |");
    println!("| -------- | ---------------- | -------: | --------- | -------: |");
    let mut traces: Vec<&str> = table.rows.iter().map(|row| row.trace.as_str()).collect();
    traces.dedup();
    for left_out in traces {
        let means = table.means_where(|row| row.trace != left_out);
        let mut ranks: Vec<usize> = (0..policies).collect();
        ranks.sort_by(|&a, &b| means[a].total_cmp(&means[b]));
        let (best, next) = (ranks[0], ranks[1]);
        println!(
            "| {left_out} | {} | {:.4} | {} | {:.4} |",
            table.columns[best], means[best], table.columns[next], means[next]
        );
    }
    println!();
}

/// Keys computed from slot and generation: a table of keys would occupy the processor's caches.
struct Synthetic {
    generation: u64,
}

impl Lines for Synthetic {
    fn is_evictable(&self, _slot: Slot) -> bool {
        true
    }

    fn key(&self, slot: Slot) -> u64 {
        mix((self.generation << 32) | u64::from(slot))
    }
}

fn mix(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const COST_LINES: usize = 1 << 20;
/// The fastest batch counts: other work on the machine can only slow a batch down.
const COST_BATCHES: u64 = 16;
const COST_BATCH_LEN: u64 = 1 << 18;

/// Time of a hit and of a miss with its eviction, at random slots, and bytes per line.
fn print_costs() {
    println!("## Costs at {COST_LINES} lines, 4 GiB of data\n");
    println!("| policy | hit, ns | miss and eviction, ns | metadata, bytes per line |");
    println!("| ------ | ------: | --------------------: | -----------------------: |");
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(COST_LINES);
        let mut lines = Synthetic { generation: 0 };
        for slot in 0..COST_LINES as u32 {
            policy.on_insert(slot, lines.key(slot), Hint::Normal);
        }
        let hit_ns = fastest_ns(|n| policy.on_hit(mix(n) as u32 % COST_LINES as u32));
        let miss_ns = fastest_ns(|n| {
            lines.generation = 1 + n / COST_LINES as u64;
            let key = mix(u64::MAX - n);
            if let Some(slot) = policy.evict(key, Hint::Normal, &lines) {
                policy.on_insert(slot, key, Hint::Normal);
            }
        });
        let bytes = policy.metadata_bytes() as f64 / COST_LINES as f64;
        println!("| {kind} | {hit_ns:.1} | {miss_ns:.1} | {bytes:.1} |");
    }
}

/// Nanoseconds per call in the fastest batch; `call` receives the number of the call.
fn fastest_ns(mut call: impl FnMut(u64)) -> f64 {
    let mut fastest = f64::INFINITY;
    for batch in 0..COST_BATCHES {
        let start = Instant::now();
        for n in batch * COST_BATCH_LEN..(batch + 1) * COST_BATCH_LEN {
            call(n);
        }
        fastest = fastest.min(start.elapsed().as_nanos() as f64 / COST_BATCH_LEN as f64);
    }
    fastest
}
