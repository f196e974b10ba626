//! All short workloads keep their guarantees.

use forebay_lab::enumerate::{Bug, Limits, Summary, Workloads, run, scripts};
use forebay_lab::sim::Sabotage;

fn enumerate(length: u32, orders: u64, images: u64) -> Summary {
    let limits = Limits { orders, random_orders: 20, images };
    run(&Workloads::Length(length), &limits, None, 2)
}

/// Checks that the manual says this count before these words.
fn assert_in_manual(count: u64, words: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manual/lab.md");
    let manual = std::fs::read_to_string(path).expect("the manual is in the repository");
    let manual = manual.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = match count {
        0..1000 => count.to_string(),
        _ => format!("{},{:03}", count / 1000, count % 1000),
    };
    let sentence = format!(" {count} {words}");
    assert!(manual.contains(&sentence), "docs/manual/lab.md does not say:{sentence}");
}

#[test]
fn the_manual_has_the_current_counts() {
    assert_in_manual(Sabotage::ALL.len() as u64, "in the driver, the disk and the journal");
    assert_in_manual(scripts().len() as u64, "scripted workloads");
}

#[test]
fn each_single_operation_survives_every_crash() {
    let summary = enumerate(1, 2000, 1024);
    assert!(summary.failures.is_empty(), "{summary}");
    let tally = summary.tally;
    assert_eq!(tally.workloads, tally.all_orders, "{summary}");
    assert!(tally.crash_points > 500, "{summary}");
    // Only a write of two lines can leave more images.
    assert!(tally.complete * 10 > tally.different() * 9, "{summary}");
}

#[test]
fn each_pair_of_operations_survives_every_crash() {
    let summary = enumerate(2, 2000, 32);
    assert!(summary.failures.is_empty(), "{summary}");
    let tally = summary.tally;
    assert_eq!(tally.workloads, tally.all_orders, "{summary}");
    assert!(tally.crash_points > 30_000, "{summary}");
    assert_in_manual(tally.workloads, "workloads and more than 30,000 crash points");
    assert!(tally.complete * 3 > tally.different() * 2, "{summary}");
}

#[test]
#[ignore = "takes many minutes"]
fn slow_each_triple_of_operations_survives_every_crash() {
    let summary = enumerate(3, 200, 8);
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.tally.all_orders * 10 > summary.tally.workloads * 9, "{summary}");
    assert!(summary.tally.crash_points > 1_000_000, "{summary}");
    assert_in_manual(summary.tally.workloads, "workloads and more than a million crash points");
}

#[test]
fn random_workloads_survive_crashes() {
    let limits = Limits { orders: 1, random_orders: 5, images: 16 };
    let summary = run(&Workloads::Seeds(0..100), &limits, None, 2);
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.tally.crash_points > 5_000, "{summary}");
}

#[test]
fn counts_do_not_depend_on_threads() {
    let limits = Limits { orders: 10, random_orders: 5, images: 4 };
    let counts = [1, 3].map(|threads| run(&Workloads::Seeds(0..20), &limits, None, threads).tally);
    assert_eq!(counts[0], counts[1]);
}

/// The bugs that workloads of at most two operations show.
const FOUND: [Sabotage; 20] = [
    Sabotage::SkipCopy,
    Sabotage::SkipFill,
    Sabotage::LoseFua,
    Sabotage::FlushEarly,
    Sabotage::LeakPin,
    Sabotage::LoseWrite,
    Sabotage::MisdirectWrite,
    Sabotage::TearWrite,
    Sabotage::IgnoreZero,
    Sabotage::SkipForget,
    Sabotage::SkipEraseNote,
    Sabotage::LoseBatch,
    Sabotage::TearBatch,
    Sabotage::LoseSuperblock,
    Sabotage::IgnoreBarrier,
    Sabotage::LoseGeneration,
    Sabotage::SkipRestore,
    Sabotage::SkipVaultLine,
    Sabotage::SkipPowerFlush,
    Sabotage::EmptyVaultEarly,
];

#[test]
fn short_workloads_show_planted_bugs() {
    std::panic::set_hook(Box::new(|_| {}));
    let limits = Limits { orders: 200, random_orders: 1, images: 16 };
    for bug in FOUND {
        let mut lengths = [1, 2].into_iter();
        let found = lengths.find_map(|length| {
            let summary = run(&Workloads::Length(length), &limits, Some(Bug::Driver(bug)), 2);
            summary.failures.into_iter().next()
        });
        let (_, failure) = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        println!("{}: {}", bug.name(), failure.workload);
        assert!(!failure.message.is_empty() && !failure.events.is_empty());
    }
}
