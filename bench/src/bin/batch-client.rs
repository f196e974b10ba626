//! `batch-client`: drives an NBD server with batches of requests and prints the results as JSON.

use anyhow::Result;
use clap::Parser;
use forebay_bench::load::LoadParams;

/// Drive an NBD server on a Unix socket with batches of requests.
#[derive(Parser)]
struct BatchClientArgs {
    #[command(flatten)]
    load: LoadParams,
    /// Write the whole span once before the measurement.
    #[arg(long)]
    prefill: bool,
}

fn main() -> Result<()> {
    let arguments = BatchClientArgs::parse();
    if arguments.prefill {
        arguments.load.prefill().run()?;
    }
    let outcome = arguments.load.run()?;
    println!("{}", serde_json::to_string_pretty(&outcome)?);
    Ok(())
}
