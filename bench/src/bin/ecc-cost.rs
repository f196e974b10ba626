//! The cost of memory protection for write hits and read hits.
//!
//! A server runs for each of `off`, `checksum` and `parity`, all over volumes in memory and in
//! write-back, with a pool that holds the whole volume. They take turns under the same load, so
//! that other load on the machine affects all of them. Prints medians over the rounds: requests per
//! second, CPU time of the whole server per request, and both relative to `off` in the same round.
//! A missed limit exits with 1.

use anyhow::Result;
use clap::Parser;
use forebay_bench::figures::FigureList;
use forebay_bench::load::LoadOp;
use forebay_bench::ways::{LoadPlan, Ways};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
struct EccCostArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 64)]
    depth: u32,
}

/// Bytes of each volume.
const VOLUME_BYTES: u64 = 64 << 20;
/// Minimum rate of hits under `checksum` and `parity`, relative to `off`.
const WRITE_SHARE_MIN: f64 = 0.75;
const READ_SHARE_MIN: f64 = 0.9;

fn main() -> Result<ExitCode> {
    let EccCostArgs { programs, rounds, seconds, depth } = EccCostArgs::parse();
    let mut ways = Ways::new(LoadPlan { volume_bytes: VOLUME_BYTES, depth, busy: false });
    for way in ["off", "checksum", "parity"] {
        ways.start(&programs, way, "", &["--ecc", way])?;
    }
    let mut figures = FigureList::default();
    ways.compare(rounds, seconds, LoadOp::Write, |_| WRITE_SHARE_MIN, &mut figures)?;
    ways.compare(rounds, seconds, LoadOp::Read, |_| READ_SHARE_MIN, &mut figures)?;
    println!("requests of 4 KiB that hit, medians of {rounds} rounds");
    Ok(figures.print())
}
