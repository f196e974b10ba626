//! A missed limit makes a benchmark exit with 1, and the manual names existing programs and
//! options.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::Path;
use std::process::{Command, Output};

const ENGINE_HIT: &str = env!("CARGO_BIN_EXE_engine-hit");

fn engine_hit(ratio_max: &str) -> (Option<i32>, String) {
    let small = ["--memory", "16MiB", "--rounds", "3", "--lines", "2000"];
    let limits = ["--ratio-max", ratio_max, "--ratio-alone-max", ratio_max];
    said(&Command::new(ENGINE_HIT).args(small).args(limits).output().unwrap())
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_missed_limit_ends_a_benchmark_with_1() {
    // A hit includes the copy that it is compared with.
    let (code, text) = engine_hit("0.1");
    assert!(code == Some(1) && text.contains("<= 0.10 MISSED"), "{code:?} {text}");
    assert!(text.contains("\n2 limits missed."), "{text}");
    let (code, text) = engine_hit("1000000");
    assert!(code == Some(0) && text.contains("\n0 limits missed."), "{code:?} {text}");
    assert!(text.contains("information"), "{text}");
}

#[test]
fn every_benchmark_that_the_manual_starts_takes_the_options_it_gives() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual/benchmarks.md");
    let page = std::fs::read_to_string(page).unwrap();
    let programs = Path::new(ENGINE_HIT).parent().unwrap();
    let help = |line: &str| {
        let mut words = line.split_whitespace();
        let program = programs.join(words.next().unwrap());
        said(&Command::new(program).args(words).arg("--help").output().unwrap())
    };
    let lines = page.lines().filter_map(|line| line.strip_prefix("    target/release/"));
    let mut count = 0;
    for line in lines {
        let (code, text) = help(line);
        assert_eq!(code, Some(0), "{line}: {text}");
        count += 1;
    }
    assert!(count > 10, "{count}");
    assert_ne!(help("engine-hit --no-such-option").0, Some(0));
}
