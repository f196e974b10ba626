//! The size of the cache beside programs that come and go.

use super::*;
use SizeReason::{GroupLimit, Growing, Minimum, NoneToSpare, Short, Stalled, Waiting, Wanted};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// A cache of 1 GiB, all of it in use, beside a reserve of 400 MiB. It keeps 128 MiB in any case.
fn sample(now_ms: u64, available_mib: u64, size_mib: u64) -> MemorySample {
    MemorySample {
        now_ms,
        available_bytes: available_mib * MIB,
        reserve_bytes: 400 * MIB,
        size_bytes: size_mib * MIB,
        least_bytes: 128 * MIB,
        wanted_bytes: 1024 * MIB,
        step_bytes: 1,
        ..MemorySample::default()
    }
}

/// The size in MiB and the reason.
fn decided(sizer: &mut Sizer, sample: &MemorySample) -> (u64, SizeReason) {
    let decision = sizer.decide(sample);
    (decision.bytes / MIB, decision.reason)
}

#[test]
fn the_cache_shrinks_at_once_by_the_missing_memory() {
    let mut sizer = Sizer::default();
    let mut decide = |sample: MemorySample| decided(&mut sizer, &sample);
    assert_eq!(decide(sample(0, 350, 1024)), (1024, Wanted), "an eighth of the reserve");
    // A program has taken 50 MiB in 100 ms, and may take half as much in the next 50.
    assert_eq!(decide(sample(100, 300, 1024)), (899, Short));
    assert_eq!(decide(sample(200, 350, 899)), (899, NoneToSpare));
    assert_eq!(decide(sample(7_200, 0, 899)), (496, Short), "2.5 MiB in 50 ms");
    assert_eq!(decide(sample(7_300, 0, 496)), (128, Short), "not below the minimum");
    assert_eq!(decide(sample(7_400, 0, 128)), (128, Minimum));
}

#[test]
fn memory_still_being_given_back_counts_as_available_for_a_while() {
    let mut sizer = Sizer::default();
    assert_eq!(decided(&mut sizer, &sample(0, 300, 1024)), (924, Short));
    let pending = |now_ms| MemorySample { pending_bytes: 100 * MIB, ..sample(now_ms, 300, 924) };
    assert_eq!(decided(&mut sizer, &pending(100)), (924, NoneToSpare));
    // It is dirty, and its disk hangs.
    assert_eq!(decided(&mut sizer, &pending(PENDING_MS)), (824, Short));
}

#[test]
fn a_shrink_begins_with_memory_that_was_not_taken_yet() {
    let unused = MemorySample { unused_bytes: 500 * MIB, ..sample(0, 300, 1024) };
    assert_eq!(decided(&mut Sizer::default(), &unused), (424, Short));
    // And it is no memory to spare for a growth.
    let mut sizer = Sizer::default();
    let unused = |now_ms, unused_mib: u64| MemorySample {
        unused_bytes: unused_mib * MIB,
        ..sample(now_ms, 900, 800)
    };
    assert_eq!(decided(&mut sizer, &unused(0, 400)), (800, NoneToSpare));
    assert_eq!(decided(&mut sizer, &unused(0, 300)), (800, Waiting { left_ms: WAIT_MS_MIN }));
    assert_eq!(decided(&mut sizer, &unused(WAIT_MS_MIN, 300)), (850, Growing));
}

#[test]
fn without_a_reserve_the_cache_keeps_its_size() {
    let none = MemorySample {
        reserve_bytes: 0,
        stalled_us: u64::MAX / 100,
        limit_events: 7,
        ..sample(0, 0, 1024)
    };
    assert_eq!(decided(&mut Sizer::default(), &none), (1024, Wanted));
}

#[test]
fn waiting_programs_and_full_groups_count_only_near_the_reserve() {
    let reason = |available_mib, stalled_us, limit_events| {
        let mut sizer = Sizer::default();
        sizer.decide(&sample(1_000, available_mib, 1024));
        let sample =
            MemorySample { stalled_us, limit_events, ..sample(1_100, available_mib, 1024) };
        decided(&mut sizer, &sample)
    };
    assert_eq!(reason(799, 10_000, 0), (974, Stalled));
    assert_eq!(reason(799, 9_999, 0), (1024, Wanted), "less than a tenth of 100 ms");
    assert_eq!(reason(799, 0, 1), (974, GroupLimit));
    assert_eq!(reason(800, 100_000, 9), (1024, Wanted), "twice the reserve");
    assert_eq!(reason(349, 10_000, 1), (973, Short), "what is missing is known");
}

#[test]
fn programs_that_still_wait_just_after_a_shrink_do_not_count() {
    let mut sizer = Sizer::default();
    sizer.decide(&sample(1_000, 500, 1024));
    let mut waiting = |now_ms, size_mib| {
        let figures = MemorySample { stalled_us: 25_000, ..sample(now_ms, 500, size_mib) };
        decided(&mut sizer, &figures)
    };
    assert_eq!(waiting(1_025, 1024), (974, Stalled));
    assert_eq!(waiting(1_050, 974), (974, NoneToSpare));
    assert_eq!(waiting(1_124, 974), (974, NoneToSpare));
    assert_eq!(waiting(1_125, 974), (924, Stalled));
}

#[test]
fn memory_is_expected_to_be_taken_no_longer_than_it_was() {
    let missing = |elapsed_ms: u64| {
        let mut sizer = Sizer::default();
        sizer.decide(&sample(1_000, 400, 1024));
        1024 - decided(&mut sizer, &sample(1_000 + elapsed_ms, 300, 1024)).0
    };
    assert_eq!(missing(25), 100 + 100, "100 MiB in 25 ms, and again in the next 25");
    assert_eq!(missing(50), 100 + 100);
    assert_eq!(missing(100), 100 + 50);
}

#[test]
fn memory_is_taken_again_in_steps_after_it_was_free_for_a_while() {
    let mut sizer = Sizer::default();
    let mut decide = |sample: MemorySample| decided(&mut sizer, &sample);
    assert_eq!(decide(sample(0, 250, 1024)), (874, Short));
    // 100 MiB beyond the reserve are a margin, and 16 MiB the least of a step.
    assert_eq!(decide(sample(1_000, 531, 874)), (874, NoneToSpare));
    assert_eq!(decide(sample(50_000, 531, 874)), (874, NoneToSpare));
    assert_eq!(decide(sample(51_000, 600, 874)), (874, Waiting { left_ms: 30_000 }));
    assert_eq!(decide(sample(80_999, 600, 874)), (874, Waiting { left_ms: 1 }));
    assert_eq!(decide(sample(81_000, 600, 874)), (924, Growing), "half of 100 MiB");
    assert_eq!(decide(sample(85_999, 900, 924)), (924, Waiting { left_ms: 1 }));
    assert_eq!(decide(sample(86_000, 900, 924)), (1024, Growing), "all that is wanted");
    assert_eq!(decide(sample(100_000, 900, 1024)), (1024, Wanted));
}

#[test]
fn a_growth_is_a_multiple_of_the_step() {
    let mut sizer = Sizer::default();
    let step = |now_ms, available_mib| MemorySample {
        step_bytes: 128 * MIB,
        ..sample(now_ms, available_mib, 512)
    };
    assert_eq!(decided(&mut sizer, &step(0, 755)), (512, NoneToSpare), "half of 255 MiB");
    assert_eq!(decided(&mut sizer, &step(1, 1_200)), (512, Waiting { left_ms: WAIT_MS_MIN }));
    assert_eq!(decided(&mut sizer, &step(1 + WAIT_MS_MIN, 1_200)), (768, Growing), "of 350 MiB");
}

#[test]
fn a_moment_without_spare_memory_begins_the_wait_anew() {
    let mut sizer = Sizer::default();
    let mut decide = |sample: MemorySample| decided(&mut sizer, &sample);
    assert_eq!(decide(sample(0, 900, 512)), (512, Waiting { left_ms: 30_000 }));
    assert_eq!(decide(sample(20_000, 450, 512)), (512, NoneToSpare));
    assert_eq!(decide(sample(20_001, 900, 512)), (512, Waiting { left_ms: 30_000 }));
    assert_eq!(decide(sample(50_000, 900, 512)), (512, Waiting { left_ms: 1 }));
    assert_eq!(decide(sample(50_001, 900, 512)), (712, Growing));
}

#[test]
fn a_program_that_comes_and_goes_doubles_the_wait_up_to_a_limit() {
    let mut sizer = Sizer::default();
    let (mut now_ms, mut waits) = (0, Vec::new());
    for _ in 0..8 {
        assert_eq!(sizer.decide(&sample(now_ms, 300, 1024)).reason, Short);
        let begun = now_ms;
        while sizer.decide(&sample(now_ms, 900, 512)).reason != Growing {
            now_ms += 1_000;
        }
        waits.push((now_ms - begun) / 1_000);
        now_ms += 1_000;
    }
    assert_eq!(waits, [30, 60, 120, 240, 480, 960, 960, 960]);
    // After a long time without a shortage, the next wait is short again.
    now_ms += 4 * WAIT_MS_MAX;
    assert_eq!(sizer.decide(&sample(now_ms, 300, 1024)).reason, Short);
    assert_eq!(sizer.wait_ms, WAIT_MS_MIN);
}

#[test]
fn new_bounds_apply_at_once() {
    let lower = MemorySample { wanted_bytes: 300 * MIB, ..sample(0, 4_000, 512) };
    assert_eq!(decided(&mut Sizer::default(), &lower), (300, Wanted));
    let higher = MemorySample { least_bytes: 600 * MIB, ..sample(0, 0, 512) };
    assert_eq!(decided(&mut Sizer::default(), &higher).0, 600);
}

#[test]
fn samples_are_frequent_when_memory_runs_short() {
    let next_ms = |available_mib| Sizer::default().decide(&sample(0, available_mib, 1024)).next_ms;
    assert_eq!(next_ms(400 + 40_000), INTERVAL_MS_MAX);
    assert_eq!(next_ms(300 + 2_000), 500, "4 GiB per second, to three quarters of the reserve");
    assert_eq!(next_ms(500), 50, "where the cache stops growing");
    let large = |available_mib| {
        let reserve_bytes = 8_000 * MIB;
        let sample = MemorySample { reserve_bytes, ..sample(0, available_mib, 1024) };
        Sizer::default().decide(&sample).next_ms
    };
    assert_eq!((large(8_000), large(7_600)), (100, INTERVAL_MS_MIN), "a large reserve");
    assert_eq!(next_ms(0), INTERVAL_MS_MIN);
    let least = Sizer::default().decide(&sample(0, 0, 128));
    assert_eq!((least.reason, least.next_ms), (Minimum, INTERVAL_MS_MAX), "nothing to give back");
}

#[test]
fn a_reason_is_a_sentence() {
    let sentence = |sample: MemorySample| Sizer::default().decide(&sample).sentence(&sample);
    assert_eq!(sentence(sample(0, 900, 1024)), "there is enough memory for this size");
    assert_eq!(
        sentence(sample(0, 300, 1024)),
        "memory is short: 300MiB available, 400MiB reserved for the system"
    );
    assert_eq!(sentence(sample(0, 900, 1000)), "the cache grows if memory stays free for 30 s");
}

/// Found by the simulator: the limit of a group was lowered to a sixteenth of the cache, and each
/// sample gave back no more than the reserve.
#[test]
fn a_limit_far_below_the_cache_is_met_by_one_shrink() {
    let over = |size_mib, excess_mib: u64| MemorySample {
        excess_bytes: excess_mib * MIB,
        reserve_bytes: 64 * MIB,
        ..sample(0, 0, size_mib)
    };
    assert_eq!(decided(&mut Sizer::default(), &over(1024, 500)), (460, Short));
    assert_eq!(decided(&mut Sizer::default(), &over(1024, 5_000)), (128, Short));
    // What is still being given back counts, as without an excess.
    let mut sizer = Sizer::default();
    assert_eq!(decided(&mut sizer, &over(1024, 500)), (460, Short));
    let pending = MemorySample { pending_bytes: 564 * MIB, ..over(460, 500) };
    assert_eq!(decided(&mut sizer, &pending).0, 460);
    let more = MemorySample { excess_bytes: 600 * MIB, ..pending };
    assert_eq!(decided(&mut sizer, &more), (360, Short));
}

/// The kernel's files may contain anything. Sums of such figures overflowed.
#[test]
fn absurd_figures_give_a_size_within_the_bounds() {
    let absurd = [0, 1, u64::MAX / 2, u64::MAX / 1_024 * 1_024, u64::MAX];
    for value in absurd {
        for field in 0..7 {
            let mut sizer = Sizer::default();
            // Twice, as the first sample has no predecessor.
            for now_ms in [1_000, 1_100] {
                for other in absurd {
                    let mut sample = sample(now_ms, other >> 20, 1024);
                    match field {
                        0 => sample.available_bytes = value,
                        1 => sample.reserve_bytes = value,
                        2 => sample.stalled_us = value,
                        3 => sample.limit_events = value,
                        4 => sample.now_ms = value,
                        5 => sample.pending_bytes = value,
                        _ => sample.excess_bytes = value,
                    }
                    let decision = sizer.decide(&sample);
                    assert!(
                        (sample.least_bytes..=sample.wanted_bytes).contains(&decision.bytes),
                        "{decision:?} on {sample:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_long_time_without_a_shortage_ends_the_longer_waits_at_once() {
    let mut sizer = Sizer::default();
    let mut now_ms = 0;
    for _ in 0..6 {
        assert_eq!(sizer.decide(&sample(now_ms, 300, 1024)).reason, Short);
        while sizer.decide(&sample(now_ms, 900, 512)).reason != Growing {
            now_ms += 1_000;
        }
        now_ms += 1_000;
    }
    // The cache has the size that was wanted. Hours later, a larger one is wanted.
    now_ms += 4 * WAIT_MS_MAX;
    assert_eq!(decided(&mut sizer, &sample(now_ms, 2_000, 1024)), (1024, Wanted));
    let larger = MemorySample { wanted_bytes: 1_200 * MIB, ..sample(now_ms, 2_000, 1024) };
    assert_eq!(decided(&mut sizer, &larger), (1024, Waiting { left_ms: WAIT_MS_MIN }));
}

proptest! {
    /// Whatever happens, the size stays within its bounds, and a shrink never leaves a shortage
    /// that a smaller cache could have avoided.
    #[test]
    fn decisions_stay_within_the_bounds(
        steps in prop::collection::vec((0u64..60_000, 0u64..4096, 0u64..512), 1..200),
    ) {
        let mut sizer = Sizer::default();
        let (mut now_ms, mut size_bytes) = (0, 1024 * MIB);
        for (pause_ms, available_mib, unused_mib) in steps {
            now_ms += pause_ms;
            let unused_bytes = (unused_mib * MIB).min(size_bytes);
            let sample =
                MemorySample { size_bytes, unused_bytes, ..sample(now_ms, available_mib, 0) };
            let decision = sizer.decide(&sample);
            prop_assert!((sample.least_bytes..=sample.wanted_bytes).contains(&decision.bytes));
            let is_short = sample.available_bytes < 350 * MIB;
            prop_assert_eq!(decision.reason.is_short(), is_short);
            let taken_bytes = size_bytes - unused_bytes;
            if is_short {
                let left = sample.available_bytes + taken_bytes.saturating_sub(decision.bytes);
                let is_enough = left >= sample.reserve_bytes;
                prop_assert!(is_enough || decision.bytes == sample.least_bytes);
            } else if decision.bytes > size_bytes {
                let left = sample.available_bytes - unused_bytes - (decision.bytes - size_bytes);
                prop_assert!(left >= sample.reserve_bytes);
            } else {
                prop_assert_eq!(decision.bytes, size_bytes);
            }
            size_bytes = decision.bytes;
        }
    }
}
