//! `bare-server`: serves RAM over a Unix socket. The baseline.

use anyhow::{Context, Result};
use clap::Parser;
use forebay_bench::{area::SharedArea, bare};
use std::path::PathBuf;
use std::sync::Arc;

/// Serve RAM over NBD on a Unix socket, with batching and without a cache.
#[derive(Parser)]
struct BareServerArgs {
    /// Listening socket.
    #[arg(long)]
    socket: PathBuf,
    /// Size of the export in bytes.
    #[arg(long = "size", default_value_t = 256 << 20)]
    size_bytes: u64,
}

fn main() -> Result<()> {
    let arguments = BareServerArgs::parse();
    let size = usize::try_from(arguments.size_bytes).context("--size")?;
    bare::serve(&arguments.socket, Arc::new(SharedArea::new(size)?))
}
