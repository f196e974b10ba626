//! The suite of backends over a real store, which `scripts/s3.sh` names.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use forebay_backend::{Backend, Blocking, OpenOptions, conformance};
use std::sync::Arc;
use std::time::Instant;

/// A name without options for sizes, in `S3_TEST_BACKING`.
fn name(prefix: &str, options: &str) -> String {
    let backing = std::env::var("S3_TEST_BACKING").unwrap();
    let (place, given) = backing.split_once('?').unwrap_or((&backing, ""));
    format!("{place}/{prefix}?{given}&{options}")
}

fn open(name: &str) -> Arc<dyn Backend> {
    forebay_backend::open(name, &OpenOptions::default()).unwrap()
}

#[test]
#[ignore = "needs a store"]
fn a_real_store_passes_the_suite_of_backends() {
    forebay_backend_s3::register();
    let name = name("suite", "size=64MiB&object=1MiB");
    let backend = open(&name);
    conformance::check(&backend);
    let disk = Blocking::new(&*backend);
    disk.write(0, &[1; 4096], true).unwrap();
    drop(backend);
    let mut bytes = [0; 4096];
    Blocking::new(&*open(&name)).read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4096]);
}

/// Prints the figures of docs/manual/s3.md.
#[test]
#[ignore = "needs a store, and prints figures"]
fn figures_of_a_real_store() {
    forebay_backend_s3::register();
    let backend = open(&name("figures", "size=4GiB"));
    let disk = Blocking::new(&*backend);
    let mut latencies: Vec<_> = (0..200u64)
        .map(|number| {
            let begin = Instant::now();
            disk.write(number * 4096, &[number as u8; 4096], true).unwrap();
            begin.elapsed()
        })
        .collect();
    latencies.sort();
    println!("durable 4 KiB: median {:?}, p99 {:?}", latencies[100], latencies[198]);
    let count = 100_000u64;
    let begin = Instant::now();
    for number in 0..count {
        let at = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 20) * 4096;
        disk.write(at, &[number as u8; 4096], false).unwrap();
    }
    disk.flush().unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    println!("random 4 KiB, flushed at the end: {:.0}/s", count as f64 / seconds);
    let begin = Instant::now();
    let piece = vec![7; 1 << 20];
    for number in 0..512u64 {
        disk.write(number << 20, &piece, false).unwrap();
    }
    disk.flush().unwrap();
    println!("in order: {:.0} MiB/s", 512.0 / begin.elapsed().as_secs_f64());
    let mut bytes = [0; 4096];
    let begin = Instant::now();
    for number in 0..500u64 {
        let at = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 17) * 4096;
        disk.read(at, &mut bytes).unwrap();
    }
    println!("read 4 KiB, one at a time: {:?}", begin.elapsed() / 500);
}
