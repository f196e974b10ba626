//! `bare-server`: serves RAM over a Unix socket and does nothing else: the baseline.

use anyhow::{Context, Result};
use clap::Parser;
use forebay_bench::{area::Area, bare};
use std::path::PathBuf;
use std::sync::Arc;

/// Serve RAM over NBD on a Unix socket, batching, caching nothing.
#[derive(Parser)]
struct Arguments {
    /// Where to listen.
    #[arg(long)]
    socket: PathBuf,
    /// Size of the export in bytes.
    #[arg(long = "size", default_value_t = 256 << 20)]
    size_bytes: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let size = usize::try_from(arguments.size_bytes).context("--size")?;
    bare::serve(&arguments.socket, Arc::new(Area::new(size)?))
}
