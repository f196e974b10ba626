//! Compares one eviction over the lines of all volumes with a share for each volume, and prints the
//! tables of `docs/decisions/0032-one-eviction-for-all-volumes.md`. The second one needs the traces
//! in the folder `FOREBAY_TRACES`. Takes some minutes:
//!
//! ```text
//! FOREBAY_TRACES=... cargo run --release -p forebay-lab --example partition
//! ```

use forebay_lab::partition::{Accesses, Comparison, loads};
use forebay_lab::trace::{Trace, TraceError};
use std::path::Path;

/// The lines of the cache, and the number of accesses per line of the cache.
const LINES: u32 = 8_192;
const ROUNDS: usize = 40;

/// The traces of volumes that share a cache.
const PAIRS: [[&str; 2]; 8] = [
    ["cloudphysics_2h", "arc_OLTP"],
    ["arc_P3", "msr_web0"],
    ["cas_rocksdb_ycsb", "arc_OLTP"],
    ["disksim_postmark", "cloudphysics_2h"],
    ["hp_ajw", "msr_web0"],
    ["arc_P6", "disksim_postmark"],
    ["lirs_loop", "lirs_sprite"],
    ["tencent_1326", "arc_OLTP"],
];
/// The maximum number of accesses taken from each trace.
const ACCESSES_MAX: usize = 600_000;
/// The cache as a share of the distinct lines.
const SHARES: [f64; 2] = [0.05, 0.2];

fn main() -> Result<(), TraceError> {
    let found = loads(LINES).into_iter().map(|load| {
        let accesses = load.draw(ROUNDS * LINES as usize, 1);
        accesses.compare(load.name, LINES as usize)
    });
    show("load", found);
    let Some(folder) = std::env::var_os("FOREBAY_TRACES") else { return Ok(()) };
    let mut found = Vec::new();
    for names in PAIRS {
        let load = |name: &str| Trace::open(&Path::new(&folder).join(format!("{name}.csv.zst")));
        let (one, other) = (load(names[0])?, load(names[1])?);
        let accesses = Accesses::of_traces(&[&one, &other], ACCESSES_MAX);
        let distinct = accesses.distinct();
        for share in SHARES {
            let name = format!("{} and {}, {:.0} %", names[0], names[1], share * 100.0);
            found.push(accesses.compare(&name, (distinct as f64 * share) as usize));
        }
    }
    show("traces, and the cache in percent of their lines", found.into_iter());
    Ok(())
}

/// Prints a table, and the means below it.
fn show(title: &str, found: impl Iterator<Item = Comparison>) {
    let columns =
        "lru | weir | equal shares | shares by curves | the same, one policy | best fixed";
    println!("\n| {title} | {columns} |");
    println!("| --- |{}", " ---: |".repeat(6));
    let (mut sums, mut count) = ([0.0; 6], 0.0);
    for row in found {
        println!("{row}");
        sums.iter_mut().zip(row.ratios()).for_each(|(sum, ratio)| *sum += ratio);
        count += 1.0;
    }
    let means: String = sums.iter().map(|sum| format!(" {:.3} |", sum / count)).collect();
    println!("| **mean** |{means}");
}
