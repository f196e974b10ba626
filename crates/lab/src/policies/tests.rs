//! All policies keep the contract of [`forebay_policy::Eviction`]. Policies with an exact
//! definition hold the same lines as an oracle that uses plain vectors of line numbers.

use super::PolicyKind;
use forebay_policy::Hint;
use forebay_policy::testing::{PolicyDriver, check_bounded_work, check_contract, steps};
use proptest::prelude::*;

mod oracles;

use oracles::{NaiveArc, NaiveLru, NaiveSieve, NaiveTwoQ, Oracle};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_policy_keeps_its_contract(steps in steps(), capacity in 1usize..80) {
        for kind in PolicyKind::ALL {
            check_contract(kind.build(capacity), capacity, &steps);
        }
    }

    #[test]
    fn exact_policies_hold_the_same_lines_as_their_oracles(
        lines in prop::collection::vec((0u64..120, 0u64..120), 1..1500),
        capacity in 4usize..60,
    ) {
        let oracles: [(PolicyKind, Box<dyn Oracle>); 4] = [
            (PolicyKind::Lru, Box::new(NaiveLru::new(capacity))),
            (PolicyKind::Sieve, Box::new(NaiveSieve::new(capacity))),
            (PolicyKind::TwoQ, Box::new(NaiveTwoQ::new(capacity))),
            (PolicyKind::Arc, Box::new(NaiveArc::new(capacity))),
        ];
        for (kind, mut oracle) in oracles {
            let mut driver = PolicyDriver::new(kind.build(capacity), capacity);
            for (i, &(a, b)) in lines.iter().enumerate() {
                let line = a.min(b);
                driver.access(line, Hint::Normal);
                oracle.access(line);
                let mut held: Vec<u64> = driver.shard.residents.iter().flatten().copied().collect();
                let mut expected = oracle.residents();
                held.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(held, expected, "{} after access {} to {}", kind, i, line);
            }
        }
    }
}

#[test]
fn evictions_do_bounded_work_and_finally_succeed() {
    for kind in PolicyKind::ALL {
        check_bounded_work(|capacity| kind.build(capacity));
    }
}

#[test]
fn names_round_trip() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(kind.build(16).name(), kind.name());
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = "fifo".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.starts_with("no eviction policy 'fifo': choose one of lru, arc"), "{error}");
}
