//! Checks and chores of this repository: `cargo run -p xtask -- tidy`.

mod tidy;

use anyhow::{Result, bail};
use std::path::Path;
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The parent of this crate's directory is the repository.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => report(&tidy::check(root)?),
        ["tidy", other] => report(&tidy::check(Path::new(other))?),
        _ => bail!("usage: xtask tidy [ROOT]    check the form of the source"),
    }
}

fn report(findings: &[tidy::Finding]) -> Result<ExitCode> {
    for finding in findings {
        println!("{finding}");
    }
    println!("tidy: {} findings", findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
