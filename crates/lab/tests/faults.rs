//! Each single I/O fails, and each place of a journal is damaged.

use forebay_lab::enumerate::{FaultKind, RotSummary, rot, scripts, sweep_faults};

#[test]
fn every_single_fault_is_survived() {
    let summary = sweep_faults(&scripts());
    assert!(summary.failures.is_empty(), "{summary}");
    for (kind, runs) in FaultKind::ALL.iter().zip(summary.runs) {
        assert!(runs > 100, "{runs} faults of the kind '{kind}' are few\n{summary}");
    }
    assert!(summary.errors > 100 && summary.refused_starts > 100, "{summary}");
    assert!(summary.crashes > 100, "{summary}");
}

fn damage(step: usize, bits_each: u8) -> RotSummary {
    let mut summary = RotSummary::default();
    scripts().iter().step_by(step).for_each(|workload| summary.add(rot(workload, bits_each)));
    summary
}

#[test]
fn journal_damage_is_detected_and_loses_one_batch_at_most() {
    let summary = damage(11, 1);
    assert!(summary.failures.is_empty() && summary.broken == 0, "{summary}");
    assert!(summary.journals > 5 && summary.reported > 10_000, "{summary}");
    assert!(summary.flips > 100_000 && summary.latent > 200, "{summary}");
}

#[test]
#[ignore = "takes minutes"]
fn slow_every_wrong_bit_of_a_journal_is_detected() {
    let summary = damage(1, 8);
    assert!(summary.failures.is_empty() && summary.broken == 0, "{summary}");
    assert!(summary.journals == 80 && summary.flips > 10_000_000, "{summary}");
}
