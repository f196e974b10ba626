//! The cost of checksum and parity per line, compared with a bare copy.
//!
//! All loops take turns over the same lines in the same random order: one only copies 4 KiB, the
//! others run one function of `forebay-ecc` each, with each implementation that the processor
//! supports. They measure the CPU time of the thread. Prints medians over the rounds of ratios
//! within a round.

use clap::Parser;
use forebay_bench::area::SharedArea;
use forebay_bench::content::LoadRandom;
use forebay_bench::cpu::thread_ns;
use forebay_bench::table::median;
use forebay_ecc::{
    CheckOutcome, Code, LINE_PARITY_BYTES, Line, LineParity, checksum, checksum_sectors, seed,
};
use forebay_types::{LINE_BYTES, Size};
use std::hint::black_box;

#[derive(Parser)]
struct EccArgs {
    /// Memory for lines; parity comes on top. The default fits an L2 cache, to measure computation;
    /// give more to include memory.
    #[arg(long, default_value = "512KiB")]
    memory: Size,
    /// Rounds of each loop.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Lines per loop and round.
    #[arg(long, default_value_t = 4_000)]
    lines: usize,
}

/// Lines, their parity, and a page as copy target.
struct EccPool<'a> {
    lines: &'a mut [Line],
    parities: Vec<LineParity>,
    page: Box<Line>,
}

/// The work of one loop on one line.
type Each = Box<dyn Fn(&mut EccPool<'_>, usize)>;

/// One loop.
struct LoopCase {
    name: String,
    each: Each,
}

fn main() {
    let arguments = EccArgs::parse();
    let count = ((arguments.memory.bytes() / LINE_BYTES) as usize).max(1);
    let mut area = SharedArea::new(count * LINE_BYTES as usize).expect("memory for the lines");
    let mut random = LoadRandom::new(7);
    for word in area.bytes_mut().as_chunks_mut::<8>().0 {
        *word = random.next_u64().to_le_bytes();
    }
    let (lines, _) = area.bytes_mut().as_chunks_mut::<{ LINE_BYTES as usize }>();
    let mut pool = EccPool {
        lines,
        parities: vec![[0; LINE_PARITY_BYTES]; count],
        page: Box::new([0; LINE_BYTES as usize]),
    };
    let places: Vec<usize> =
        (0..arguments.lines).map(|_| random.next_u64() as usize % count).collect();
    for (line, parity) in pool.lines.iter().zip(&mut pool.parities) {
        Code::detect().encode(line, parity);
    }
    let cases = cases();
    let mut times = vec![Vec::with_capacity(arguments.rounds); cases.len()];
    for _ in 0..arguments.rounds {
        for (case, times) in cases.iter().zip(&mut times) {
            let started = thread_ns();
            for &at in &places {
                (case.each)(&mut pool, at);
            }
            times.push((thread_ns() - started) as f64 / places.len() as f64);
        }
    }
    println!("{count} lines of 4 KiB, medians of {} rounds", arguments.rounds);
    println!("information, without limits: how fast each implementation is on this processor");
    println!("{:<34} {:>10} {:>8} {:>12}", "", "ns / line", "GB/s", "copies");
    for (case, of_case) in cases.iter().zip(&times) {
        let ratios: Vec<f64> =
            of_case.iter().zip(&times[0]).map(|(time, copy)| time / copy).collect();
        let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let (ns, copies) = (middle(of_case), middle(&ratios));
        let speed = LINE_BYTES as f64 / ns;
        println!("{:<34} {ns:>10.1} {speed:>8.2} {copies:>12.2}", case.name);
    }
}

fn cases() -> Vec<LoopCase> {
    let mut cases = Vec::new();
    let mut case = |name: String, each: Each| {
        cases.push(LoopCase { name, each });
    };
    case(
        "bare copy".to_owned(),
        Box::new(|pool, at| {
            pool.page.copy_from_slice(&pool.lines[at]);
            black_box(&mut pool.page);
        }),
    );
    case(
        "checksum".to_owned(),
        Box::new(|pool, at| {
            black_box(checksum(seed(1, at as u64), &pool.lines[at]));
        }),
    );
    case(
        "checksums of eight sectors".to_owned(),
        Box::new(|pool, at| {
            black_box(checksum_sectors(seed(1, at as u64), &pool.lines[at]));
        }),
    );
    for code in Code::available() {
        let name = |of: &str| format!("{:<11} {of}", code.name());
        case(
            name("encode"),
            Box::new(move |pool, at| code.encode(&pool.lines[at], &mut pool.parities[at])),
        );
        case(
            name("encode one sector"),
            Box::new(move |pool, at| {
                let sector = &pool.lines[at].as_chunks().0[at % 8];
                let parity = &mut pool.parities[at].as_chunks_mut().0[at % 8];
                code.encode_sector(sector, parity);
            }),
        );
        case(
            name("verify"),
            Box::new(move |pool, at| {
                assert_eq!(code.damaged(&pool.lines[at], &pool.parities[at]), 0);
            }),
        );
        case(
            name("correct six bytes of a group"),
            Box::new(move |pool, at| {
                for byte in 0..6 {
                    pool.lines[at][at % 64 * 64 + byte * 9] ^= 0x5a;
                }
                let outcome = code.correct(&mut pool.lines[at], &mut pool.parities[at]);
                assert_eq!(outcome, CheckOutcome::Corrected { bytes: 6 });
            }),
        );
    }
    cases
}
