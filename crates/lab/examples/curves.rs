//! Compares the miss-ratio curves that the engine estimates with the exact ones of LRU, over the
//! traces in the folder `FOREBAY_TRACES`, and prints the errors as Markdown. Takes some minutes:
//!
//! ```text
//! FOREBAY_TRACES=... cargo run --release -p forebay-lab --example curves
//! ```
//!
//! Each volume of a trace has an estimator in each shard of the pool, with the memory that the
//! engine would give it. Errors are absolute differences of miss ratios, at eleven sizes from an
//! eighth of the pool to eight pools. Sizes with room for all blocks of a volume are left out:
//! there, every estimate is right.

use forebay_engine::LineKey;
use forebay_lab::trace::{MIX_DEV, Trace, TraceError};
use forebay_policy::testing::{ExactCurve, key};
use forebay_policy::{
    CurveConfig, CurveEstimator, Hint, LineAccess, Miniatures, MissRatioCurve, SizeCounts,
};
use forebay_types::{LINE_BYTES, Size, Stripes, VolumeId};
use forebay_volume::shard_of;
use std::collections::{BTreeMap, HashSet};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TRACES: [&str; 20] = [
    "cloudphysics_2h",
    "arc_P3",
    "arc_P6",
    "arc_OLTP",
    "msr_web0",
    "hp_ajw",
    "cas_rocksdb_ycsb",
    "disksim_postmark",
    "lirs_sprite",
    "tencent_1326",
    "tencent_2706",
    "tencent_3906",
    "msrcut_rw_20_80.105",
    "lirs_multi1",
    "lirs_cs",
    "lirs_gli",
    "lirs_2_pools",
    "lirs_loop",
    "lirs_zigzag",
    "lirs_scan",
];
/// The sizes of the pool.
const POOLS: [u64; 4] = [16 << 20, 64 << 20, 256 << 20, 4 << 30];
/// The runtime makes shards of at least this size, and with two workers at most this many.
const SHARD_BYTES_MIN: u64 = 16 << 20;
const SHARDS_MAX: u64 = 8;
/// Sizes of the cache, in eighths of the pool.
const EIGHTHS: [u64; 11] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// Volumes with fewer blocks are left out: every size in the table holds them completely.
const BLOCKS_MIN: usize = 512;

#[derive(Debug, thiserror::Error)]
enum ExampleError {
    #[error("FOREBAY_TRACES is not set; set it to the folder that holds the traces")]
    NoFolder,
    #[error("{0}")]
    Trace(#[from] TraceError),
}

fn main() -> Result<(), ExampleError> {
    let folder = std::env::var_os("FOREBAY_TRACES").ok_or(ExampleError::NoFolder)?;
    let folder = PathBuf::from(folder);
    let mut traces =
        TRACES.map(|name| open(&folder, name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    traces.push(Trace::mix_dev(&traces)?);
    println!("## Errors against the exact curve of LRU\n");
    println!(
        "| trace | pool | shards | sizes | rate | mean error | largest | error at the pool's size |"
    );
    println!(
        "| ----- | ---: | -----: | ----: | ---: | ---------: | ------: | -----------------------: |"
    );
    let mut all: BTreeMap<u64, Errors> = BTreeMap::new();
    for trace in &traces {
        let load = Load::new(trace);
        for pool_bytes in POOLS {
            let errors = load.errors(pool_bytes);
            if errors.sizes > 0 {
                print_row(&trace.name, pool_bytes, &errors);
                all.entry(pool_bytes).or_default().add(&errors);
            }
        }
    }
    for (pool_bytes, errors) in all {
        print_row("**all**", pool_bytes, &errors);
    }
    println!("\n{MIX_DEV} has one estimator for each of its volumes.");
    print_costs();
    Ok(())
}

fn open(folder: &Path, name: &str) -> Result<Trace, TraceError> {
    Trace::open(&folder.join(format!("{name}.csv.zst")))
}

const fn shards_of(pool_bytes: u64) -> u64 {
    let shards = pool_bytes / SHARD_BYTES_MIN;
    if shards > SHARDS_MAX { SHARDS_MAX } else { shards }
}

fn print_row(name: &str, pool_bytes: u64, errors: &Errors) {
    let at_pool = match errors.at_pool_count {
        0 => "-".to_owned(),
        count => format!("{:.4}", errors.at_pool / f64::from(count)),
    };
    println!(
        "| {name} | {} | {} | {} | 1/{:.0} | {:.4} | {:.4} | {at_pool} |",
        Size(pool_bytes),
        shards_of(pool_bytes),
        errors.sizes,
        f64::from(errors.estimators) / errors.rate,
        errors.sum / f64::from(errors.sizes),
        errors.max,
    );
}

/// The blocks that each volume of a trace accesses, in order, and the exact curves.
struct Load {
    accesses: Vec<(VolumeId, u64)>,
    exact: BTreeMap<VolumeId, (ExactCurve, usize)>,
}

/// Sums over sizes and volumes.
#[derive(Default)]
struct Errors {
    sizes: u32,
    sum: f64,
    max: f64,
    at_pool_count: u32,
    at_pool: f64,
    /// The sum of the sampling rates at the end.
    rate: f64,
    estimators: u32,
}

impl Errors {
    fn add(&mut self, other: &Self) {
        self.sizes += other.sizes;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.at_pool_count += other.at_pool_count;
        self.at_pool += other.at_pool;
        self.rate += other.rate;
        self.estimators += other.estimators;
    }
}

impl Load {
    fn new(trace: &Trace) -> Self {
        let mut accesses = Vec::new();
        let mut of_volume: BTreeMap<VolumeId, Vec<u64>> = BTreeMap::new();
        for request in &trace.requests {
            let volume = VolumeId(request.volume as u16);
            for block in request.blocks() {
                accesses.push((volume, block));
                of_volume.entry(volume).or_default().push(block);
            }
        }
        let exact = of_volume.into_iter().map(|(volume, blocks)| {
            let distinct = blocks.iter().collect::<HashSet<_>>().len();
            (volume, (ExactCurve::new(&blocks), distinct))
        });
        Self { accesses, exact: exact.collect() }
    }

    /// Estimates the curves with the memory that a pool would give them.
    fn errors(&self, pool_bytes: u64) -> Errors {
        let shards = shards_of(pool_bytes) as usize;
        let shard_lines = (pool_bytes / LINE_BYTES) as usize / shards;
        let config = CurveConfig::for_shard(shard_lines);
        let mut estimators: BTreeMap<VolumeId, Vec<CurveEstimator>> = BTreeMap::new();
        for (&volume, limit) in self.exact.keys().zip(config.limits(shard_lines, self.exact.len()))
        {
            let estimator = |_| {
                let mut estimator = CurveEstimator::new(config);
                estimator.set_limit(limit);
                estimator
            };
            estimators.insert(volume, (0..shards).map(estimator).collect());
        }
        for &(volume, block) in &self.accesses {
            let shard = shard_of(volume, Stripes::NONE, block * LINE_BYTES, shards);
            if let Some(of_volume) = estimators.get_mut(&volume) {
                of_volume[shard].record(LineKey::new(volume, block).hash());
            }
        }
        let mut errors = Errors::default();
        for (volume, (exact, distinct)) in &self.exact {
            let shards = &estimators[volume];
            if *distinct >= BLOCKS_MIN
                && let Some(curve) = sum(shards)
            {
                errors.compare(&curve, exact, *distinct, pool_bytes);
                errors.rate += shards.iter().map(CurveEstimator::rate).sum::<f64>();
                errors.estimators += shards.len() as u32;
            }
        }
        errors
    }
}

fn sum(shards: &[CurveEstimator]) -> Option<MissRatioCurve> {
    let mut curves = shards.iter().filter_map(CurveEstimator::curve);
    let mut sum = curves.next()?;
    curves.for_each(|curve| sum.add(&curve));
    Some(sum)
}

impl Errors {
    fn compare(&mut self, curve: &MissRatioCurve, exact: &ExactCurve, distinct: usize, pool: u64) {
        for eighths in EIGHTHS {
            let bytes = pool / 8 * eighths;
            let lines = (bytes / LINE_BYTES) as usize;
            let Some(estimate) = curve.miss_ratio(bytes) else { continue };
            if lines > distinct {
                continue;
            }
            let error = (estimate - exact.miss_ratio(lines)).abs();
            self.sizes += 1;
            self.sum += error;
            self.max = self.max.max(error);
            if eighths == 8 {
                self.at_pool_count += 1;
                self.at_pool += error;
            }
        }
    }
}

/// The number of lines that the time measurement accesses.
const COST_LINES: u64 = 1 << 20;
/// The fastest batch counts: other work on the machine can only slow a batch down.
const COST_BATCHES: u64 = 16;
const COST_BATCH_LEN: u64 = 1 << 18;

/// Time of an access at random lines, in a shard of 256 MiB: hash alone, not sampled, sampled.
fn print_costs() {
    println!("\n## Costs, in nanoseconds per access\n");
    let hash_ns = fastest_ns(|n| {
        black_box(key(n % COST_LINES));
    });
    let config = CurveConfig::for_shard(1 << 16);
    let time = |rate_max| {
        let mut estimator = CurveEstimator::new(CurveConfig { rate_max, ..config });
        estimator.set_limit(1 << 20);
        let access = fastest_ns(|n| {
            estimator.record(key(n % COST_LINES));
        });
        black_box(&estimator);
        access
    };
    println!("| access | ns |\n| ------ | -: |");
    println!("| hash of the line | {hash_ns:.2} |");
    println!("| hash, and not sampled | {:.2} |", time(1e-9));
    println!("| hash, and as the engine samples | {:.2} |", time(config.rate_max));
    let mut all = CurveEstimator::new(CurveConfig { rate_max: 1.0, ..config });
    all.set_limit(1 << 20);
    let sampled_ns = fastest_ns(|n| {
        all.record(key(mixed(n) % 2_000));
    });
    println!("| hash, and sampled | {sampled_ns:.2} |");
    print_cost_of_miniatures("hit", 500, true);
    print_cost_of_miniatures("hit or miss, by size", 2_000, false);
    print_cost_of_miniatures("miss", 1 << 20, false);
}

/// Time of a sampled access in the miniatures, over so many sampled lines.
fn print_cost_of_miniatures(name: &str, lines: u64, is_hit: bool) {
    let mut miniatures = Miniatures::new(1 << 16);
    let mut counts = SizeCounts::default();
    let access = LineAccess {
        hint: Hint::Normal,
        is_hit,
        was_ahead: false,
        admits: true,
        dirty_share: None,
    };
    let access_ns = fastest_ns(|n| {
        // The upper half of the hash decides that it is sampled.
        miniatures.access(key(mixed(n) % lines) & 0xffff_ffff, access, &mut counts);
    });
    black_box(&counts);
    println!("| hash, and {name} in the miniatures | {access_ns:.2} |");
}

fn mixed(n: u64) -> u64 {
    key(n) >> 7
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
