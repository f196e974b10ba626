//! Runs I/O patterns on modelled arrays in virtual time, and compares with measurements.
//!
//!     cargo run --release -p forebay-backend --example arrays -- FILE
//!
//! Each line of FILE is a pattern, `LEVEL DRIVES CHUNK_KIB DEGRADED MS ORDER KIND SIZE_KIB DEPTH
//! COUNT [KB_PER_S]`: MS is the time of a drive per I/O, ORDER is `sequential` or `random`, KIND
//! `read` or `write`, and the last field a measured rate, in thousands of bytes per second. A
//! leading word `measured` is ignored, and so are lines that are not patterns. Fails if the model
//! is not within 25 % of the measurement.

use forebay_backend::IoKind;
use forebay_backend::model::{ArrayModel, ArraySpec, DiskModel, Drive, Level};
use std::process::ExitCode;

/// Usable size of a disk of 64 MiB under md.
const DRIVE_BYTES: u64 = 60 << 20;
/// Permitted deviation from the measurement.
const TOLERANCE: f64 = 0.25;

struct AccessPattern {
    spec: ArraySpec,
    service_ns: u64,
    is_random: bool,
    kind: IoKind,
    len: u64,
    depth: u64,
    count: u64,
    measured_kilobytes: Option<f64>,
}

fn parse(line: &str) -> Option<AccessPattern> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let level = Level::named(fields.first()?)?;
    let (drives, degraded) = (u32::try_from(number(1)?).ok()?, u32::try_from(number(3)?).ok()?);
    Some(AccessPattern {
        spec: ArraySpec::new(level, drives, number(2)? << 10, degraded).ok()?,
        service_ns: number(4)? * 1_000_000,
        is_random: *fields.get(5)? == "random",
        kind: if *fields.get(6)? == "read" { IoKind::Read } else { IoKind::Write { fua: false } },
        len: number(7)? << 10,
        depth: number(8)?,
        count: number(9)?,
        measured_kilobytes: fields.get(10).and_then(|rate| rate.parse().ok()),
    })
}

/// Thousands of bytes per second.
fn modelled_kilobytes(pattern: &AccessPattern) -> Option<f64> {
    let places = pattern.spec.size_bytes(DRIVE_BYTES).ok()? / pattern.len;
    let mut model = ArrayModel::new(pattern.spec, &Drive::Fixed(pattern.service_ns), DRIVE_BYTES);
    let (mut now_ns, mut given, mut done, mut random) = (0, 0, 0, 1u64);
    while done < pattern.count {
        while given < pattern.count && given - done < pattern.depth {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = if pattern.is_random { random >> 33 } else { given };
            model.enqueue(now_ns, given, pattern.kind, place % places * pattern.len, pattern.len);
            given += 1;
        }
        now_ns = model.next_completion()?;
        while model.pop(now_ns).is_some() {
            done += 1;
        }
    }
    Some((pattern.count * pattern.len) as f64 * 1e6 / now_ns as f64)
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("arrays: no file of patterns given: see the top of examples/arrays.rs");
        return ExitCode::FAILURE;
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("arrays: {path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut compared, mut far) = (0, 0);
    println!("{:56} {:>10} {:>10} {:>7}", "pattern", "measured", "modelled", "ratio");
    for line in text.lines() {
        let line = line.trim_start_matches("measured ");
        let Some(pattern) = parse(line) else { continue };
        let Some(modelled) = modelled_kilobytes(&pattern) else {
            eprintln!("arrays: '{line}' describes no valid array");
            return ExitCode::FAILURE;
        };
        let name = line.split_whitespace().take(9).collect::<Vec<_>>().join(" ");
        print!("{name:56} ");
        let Some(measured) = pattern.measured_kilobytes else {
            println!("{:>10} {:>10.2}", "", modelled / 1000.0);
            continue;
        };
        let ratio = modelled / measured;
        let is_far = (ratio - 1.0).abs() > TOLERANCE;
        compared += 1;
        far += u32::from(is_far);
        let remark = if is_far { "  too far" } else { "" };
        println!("{:>10.2} {:>10.2} {ratio:>7.2}{remark}", measured / 1000.0, modelled / 1000.0);
    }
    println!("{compared} compared, in MB/s; {far} not within {:.0} %", TOLERANCE * 100.0);
    if far == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
