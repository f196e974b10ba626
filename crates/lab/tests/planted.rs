//! The simulator finds each bug that can be planted around the engine and, with the feature
//! `sabotage`, inside it.

use forebay_lab::sim::{Failure, Sabotage, SimOptions, run};
use std::fmt::Debug;
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

/// Searches for each of these bugs, on two threads. Panics of the runs are not shown.
fn find_each<B: Copy + Debug + Send + Sync>(
    bugs: &[B],
    find: impl Fn(B) -> Option<Failure> + Sync,
) {
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let search = || {
        let mut missed = Vec::new();
        while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            match find(bug) {
                Some(found) => {
                    println!("{bug:?}: seed {}: {}", found.seed, first_line(&found.message));
                }
                None => missed.push(bug),
            }
        }
        missed
    };
    let missed = std::thread::scope(|scope| {
        let other = scope.spawn(search);
        [search(), other.join().unwrap_or_default()].concat()
    });
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(next.into_inner() >= bugs.len() + 2, "each thread has searched to the end");
}

#[test]
fn every_planted_bug_of_driver_and_disk_is_found() {
    find_each(&Sabotage::ALL, |bug| {
        let known =
            KNOWN_SEEDS.iter().find(|known| known.0 == bug).map_or(&[][..], |known| known.1);
        let found = first_failure(known, |options| options.sabotage = Some(bug));
        found.filter(|found| {
            let names_seed = found.to_string().contains(&format!("--seed {}", found.seed));
            names_seed && !found.events.is_empty()
        })
    });
}

#[cfg(feature = "sabotage")]
#[test]
fn every_planted_bug_of_the_engine_is_found() {
    find_each(&forebay_engine::PlantedBug::ALL, |bug| {
        first_failure(&[], |options| options.planted = Some(bug))
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
