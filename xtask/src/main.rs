//! Checks and figures of this repository: `cargo xtask tidy` and others.

mod lines;
mod source;
mod structure;
mod tidy;
mod tree;

use anyhow::{Result, bail};
use std::path::Path;
use std::process::ExitCode;

use structure::Structure;
use tree::Tree;

const USAGE: &str = "usage: xtask COMMAND [ROOT]
  tidy       check the form of the source
  lines      count the lines of code, comments and tests
  structure  measure circles of modules, names, closures, spread types, assertions";

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The repository is the parent of this crate's directory, known at build time.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let (command, root) = match arguments.as_slice() {
        [command] => (command.as_str(), root),
        [command, root] => (command.as_str(), Path::new(root)),
        _ => bail!(USAGE),
    };
    match command {
        "tidy" => {
            let tree = Tree::read(root)?;
            let mut findings = tidy::check(&tree);
            tidy::ratchets::check(&Structure::of(&tree), &mut findings);
            Ok(report(&findings))
        }
        "lines" => {
            print!("{}", lines::table(&Tree::read(root)?));
            Ok(ExitCode::SUCCESS)
        }
        "structure" => {
            print!("{}", Structure::of(&Tree::read(root)?));
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!(USAGE),
    }
}

fn report(findings: &[tidy::Finding]) -> ExitCode {
    for finding in findings {
        println!("{finding}");
    }
    println!("tidy: {} findings", findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
