use super::*;

const W1: u64 = stamp(0, 0, 1);
const W2: u64 = stamp(0, 0, 2);
const OLD: u64 = stamp(0, 0, 0);

const WRITE: RequestKind = RequestKind::Write { fua: false };

fn oracle() -> Oracle {
    Oracle::new(0, 1, true)
}

#[test]
fn a_read_sees_the_last_write_or_one_in_flight() {
    let mut oracle = oracle();
    oracle.submit(WRITE, [0], 10, 10);
    assert!(oracle.check_read(0, OLD, 11) && oracle.check_read(0, W1, 11));
    oracle.end([0], 10, 20, Some(Promise::Seen));
    assert!(oracle.check_read(0, OLD, 19), "this read began before the write had ended");
    assert!(!oracle.check_read(0, OLD, 21) && oracle.check_read(0, W1, 21));
    assert!(!oracle.check_read(0, W2, 21), "not submitted");
}

#[test]
fn either_of_two_concurrent_writes_may_win_until_a_read() {
    let mut oracle = oracle();
    oracle.submit(WRITE, [0], 10, 10);
    oracle.submit(WRITE, [0], 11, 10);
    oracle.end([0], 11, 20, Some(Promise::Seen));
    oracle.end([0], 10, 21, Some(Promise::Seen));
    assert!(oracle.check_read(0, W1, 30));
    assert!(!oracle.check_read(0, W2, 31), "the first read saw the other write");
    assert!(oracle.check_read(0, W1, 31));
}

#[test]
fn a_failed_write_may_or_may_not_have_been_done() {
    let mut oracle = oracle();
    oracle.submit(WRITE, [0], 10, 10);
    oracle.end([0], 10, 20, None);
    assert!(oracle.check_read(0, OLD, 30));
    assert!(!oracle.check_read(0, W1, 31), "the first read did not see it");
}

#[test]
fn a_crash_may_lose_writes_without_a_guarantee() {
    for (promise, process, power) in [
        (Promise::Seen, true, true),
        (Promise::OnDisk, false, true),
        (Promise::Stable, false, false),
    ] {
        let mut oracle = oracle();
        oracle.submit(WRITE, [0], 10, 10);
        oracle.end([0], 10, 20, Some(promise));
        assert_eq!(oracle.check_crash(0, OLD, Crash::Process), process, "{promise:?}");
        assert_eq!(oracle.check_crash(0, OLD, Crash::Power), power, "{promise:?}");
        assert!(oracle.check_crash(0, W1, Crash::Power));
        oracle.flush(15);
        assert_eq!(oracle.check_crash(0, OLD, Crash::Power), power, "the write had not ended then");
        oracle.flush(21);
        assert!(
            !oracle.check_crash(0, OLD, Crash::Process)
                && !oracle.check_crash(0, OLD, Crash::Power)
        );
    }
}

#[test]
fn a_trimmed_sector_may_have_any_earlier_content() {
    let mut oracle = oracle();
    oracle.submit(RequestKind::Trim { fua: false }, [0], 10, 10);
    oracle.end([0], 10, 20, Some(Promise::OnDisk));
    assert!(
        oracle.check_read(0, ZERO, 21)
            && oracle.check_read(0, OLD, 22)
            && oracle.check_read(0, ZERO, 23)
    );
    assert!(!oracle.check_read(0, stamp(0, 1, 0), 24) && !oracle.check_read(0, POISON, 24));
    oracle.submit(WRITE, [0], 30, 30);
    oracle.end([0], 30, 40, Some(Promise::Seen));
    assert!(!oracle.check_read(0, ZERO, 41) && oracle.check_read(0, W1, 41));
}

#[test]
fn old_writes_are_pruned_but_not_the_newest() {
    let mut oracle = oracle();
    for at in 0..1000 {
        let moment = 10 + at * 2;
        oracle.submit(WRITE, [0], moment, moment);
        oracle.end([0], moment, moment + 1, Some(Promise::Stable));
    }
    assert!(oracle.sectors[0].candidates.len() <= PRUNE_AT + 1);
    assert!(
        !oracle.check_read(0, stamp(0, 0, 999), 5000)
            && oracle.check_read(0, stamp(0, 0, 1000), 5000)
    );
    assert!(!oracle.check_crash(0, OLD, Crash::Power));
}
