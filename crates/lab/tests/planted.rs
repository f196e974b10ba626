//! The simulator finds each bug that can be planted around the engine and, with the feature
//! `sabotage`, inside it.

use forebay_lab::sim::{Failure, Sabotage, SimOptions, run};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seeds tried for each bug; some bugs need a machine that few seeds produce.
const SEEDS_MAX: u64 = 10_000;

/// Seeds for bugs that few seeds show. They are tried first; if one no longer shows its bug, the
/// search continues.
const KNOWN_SEEDS: [(Sabotage, &[u64]); 3] = [
    (Sabotage::SkipClosingSync, &[61, 63, 126]),
    (Sabotage::SkipRecord, &[114, 167, 190]),
    (Sabotage::FenceAll, &[59, 136]),
];

fn first_failure(known: &[u64], plant: impl Fn(&mut SimOptions)) -> Option<Failure> {
    known.iter().copied().chain(0..SEEDS_MAX).find_map(|seed| {
        let mut options = SimOptions::new(seed, 1000);
        plant(&mut options);
        run(options).err()
    })
}

/// Searches for each of these bugs, on two threads.
fn find_each<B: Copy + Sync>(bugs: &[B], find: impl Fn(B) + Sync) {
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let search = || {
        while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            find(bug);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(search);
        search();
    });
}

#[test]
fn every_planted_bug_of_driver_and_disk_is_found() {
    find_each(&Sabotage::ALL, |bug| {
        let known =
            KNOWN_SEEDS.iter().find(|known| known.0 == bug).map_or(&[][..], |known| known.1);
        let found = first_failure(known, |options| options.sabotage = Some(bug));
        let found = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        println!("{}: seed {}: {}", bug.name(), found.seed, first_line(&found.message));
        assert!(found.to_string().contains(&format!("--seed {}", found.seed)));
        assert!(!found.events.is_empty(), "a failure has events");
    });
}

#[cfg(feature = "sabotage")]
#[test]
fn every_planted_bug_of_the_engine_is_found() {
    find_each(&forebay_engine::PlantedBug::ALL, |bug| {
        let found = first_failure(&[], |options| options.planted = Some(bug));
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", found.seed, first_line(&found.message));
    });
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[test]
#[ignore = "searches for each bug twice"]
fn slow_every_planted_bug_is_found_within_ten_minutes() {
    std::panic::set_hook(Box::new(|_| {}));
    for bug in forebay_lab::enumerate::Bug::all() {
        let found = bug.find(std::time::Duration::from_secs(600));
        assert!(found.simulated.is_some() || found.enumerated.is_some(), "{bug} is not found");
    }
}
