use super::*;
use crate::load::Pattern;

const MIB: u64 = 1 << 20;

/// `reads` thousand reads and `writes` thousand writes in 10 seconds. Each takes 5 ms.
fn load(reads: u64, writes: u64) -> Load {
    Load {
        seconds: 10.0,
        reads: reads * 1_000,
        writes: writes * 1_000,
        read_wait_ms: reads * 5_000,
        write_wait_ms: writes * 5_000,
        ..Load::default()
    }
}

fn point(mib: u64, low: f64, high: f64, ahead: f64) -> Point {
    Point { bytes: mib * MIB, from_empty: low, low, high, ahead }
}

/// A prediction for requests of 4 KiB.
fn prediction(load: &Load, sequential_writes: u64, points: &[Point]) -> Prediction {
    let pattern = Pattern {
        reads: load.reads,
        writes: load.writes,
        read_bytes: load.reads * 4_096,
        write_bytes: load.writes * 4_096,
        sequential_writes: sequential_writes * 1_000,
        ..Pattern::default()
    };
    let points = points.to_vec();
    Prediction { pattern, touched_bytes: 0, read_bytes: 0, rate: 1.0, points }
}

fn basis<'a>(load: &'a Load, prediction: &'a Prediction) -> Basis<'a> {
    Basis { load, prediction: Some(prediction), self_caching: &[], memory_bytes: None }
}

/// The name of the reason, for requests that take 5 ms and a prediction with one point.
fn name(reads: u64, writes: u64, sequential_writes: u64, point: Point) -> &'static str {
    let load = load(reads, writes);
    let prediction = prediction(&load, sequential_writes, &[point]);
    verdict(&basis(&load, &prediction)).reason.name()
}

#[test]
fn reads_decide_while_there_are_enough() {
    let good = point(64, 0.8, 0.82, 0.0);
    assert_eq!(name(90, 10, 0, good), "reuse");
    assert_eq!(name(70, 30, 0, good), "reuse-and-writes");
    assert_eq!(name(70, 30, 30, good), "reuse", "sequential writes need no gathering");
    assert_eq!(name(90, 10, 0, point(64, 0.1, 0.12, 0.0)), "little-reuse");
    assert_eq!(name(90, 10, 0, point(64, 0.1, 0.9, 0.0)), "watch-longer");
    assert_eq!(name(90, 10, 0, point(64, 0.9, 0.9, 0.88)), "read-ahead");
}

#[test]
fn loads_of_writes_are_judged_by_the_writes() {
    let good = point(64, 0.8, 0.82, 0.0);
    assert_eq!(name(5, 95, 90, good), "log");
    assert_eq!(name(5, 95, 10, good), "small-writes");
    let load = Load { write_wait_ms: 30_000, ..load(0, 100) };
    let prediction = prediction(&load, 0, &[good]);
    assert_eq!(verdict(&basis(&load, &prediction)).reason.name(), "write-heavy", "0.3 ms");
}

#[test]
fn little_is_said_of_little() {
    let good = point(64, 0.8, 0.82, 0.0);
    assert_eq!(name(0, 0, 0, good), "idle");
    let few = Load { reads: REQUESTS_MIN - 1, ..load(0, 0) };
    let prediction = prediction(&few, 0, &[good]);
    assert_eq!(verdict(&basis(&few, &prediction)).reason, Reason::TooFew);
    let many = load(90, 10);
    assert_eq!(verdict(&basis(&many, &prediction)).reason, Reason::TooFew, "most were lost");
    let unseen =
        Basis { load: &many, prediction: None, self_caching: &[], memory_bytes: Some(MIB) };
    let advice = verdict(&unseen);
    assert_eq!((advice.reason, advice.expected), (Reason::NotSampled, None));
    let writes = load(1, 99);
    assert_eq!(verdict(&Basis { load: &writes, ..unseen }).reason, Reason::WriteHeavy);
    for name in ["idle", "too-few", "not-sampled", "watch-longer"] {
        let unknown = [Reason::Idle, Reason::TooFew, Reason::NotSampled, Reason::WatchLonger];
        assert!(unknown.iter().any(|reason| reason.name() == name && reason.is_unknown()));
    }
}

#[test]
fn fast_devices_and_scans_on_quick_ones_are_left_out() {
    let fast = Load { read_wait_ms: 9_000, ..load(90, 0) };
    let good = prediction(&fast, 0, &[point(64, 0.99, 0.99, 0.0)]);
    assert_eq!(verdict(&basis(&fast, &good)).reason, Reason::Fast, "0.1 ms");
    let quick = Load { read_wait_ms: 45_000, ..load(90, 0) };
    let scan = prediction(&quick, 0, &[point(64, 0.99, 0.99, 0.95)]);
    assert_eq!(verdict(&basis(&quick, &scan)).reason, Reason::ScanOnly, "0.5 ms");
}

#[test]
fn an_application_with_a_cache_of_its_own_needs_a_better_reason() {
    let mysqld = SelfCaching { name: "mysqld".into(), pid: 7, resident_bytes: 900 * MIB };
    let load = load(90, 10);
    let judge = |low: f64| {
        let prediction = prediction(&load, 0, &[point(64, low, low, 0.0)]);
        let mysqld = [mysqld.clone()];
        verdict(&Basis { self_caching: &mysqld, ..basis(&load, &prediction) }).reason
    };
    assert_eq!(judge(0.6), Reason::Reuse);
    assert_eq!(judge(0.4), Reason::SelfCaching(mysqld.clone()));
    assert!(judge(0.4).to_string().starts_with("mysqld (process 7) bypasses the page cache"));
}

#[test]
fn the_memory_is_the_least_beyond_which_more_brings_little() {
    let load = load(90, 10);
    let shares = |shares: &[(u64, f64)]| {
        let points: Vec<_> =
            shares.iter().map(|&(mib, share)| point(mib, share, share, 0.0)).collect();
        let prediction = prediction(&load, 0, &points);
        verdict(&basis(&load, &prediction)).expected.unwrap().point.bytes / MIB
    };
    assert_eq!(shares(&[(16, 0.5), (32, 0.7), (64, 0.74), (128, 0.75)]), 32);
    assert_eq!(shares(&[(16, 0.3), (32, 0.31), (64, 0.32), (128, 0.9)]), 128, "past a plateau");
    assert_eq!(shares(&[(16, 0.9)]), 16);
}

#[test]
fn a_given_memory_is_not_exceeded() {
    let load = load(90, 10);
    let points = [point(16, 0.1, 0.1, 0.0), point(64, 0.9, 0.9, 0.0)];
    let prediction = prediction(&load, 0, &points);
    let judge = |mib: u64| {
        let basis = Basis { memory_bytes: Some(mib * MIB), ..basis(&load, &prediction) };
        verdict(&basis)
    };
    assert_eq!(judge(63).reason, Reason::LittleReuse);
    assert_eq!(judge(64).reason, Reason::Reuse);
    assert_eq!(judge(1).expected.unwrap().point.bytes, 16 * MIB, "the least that is known");
}

#[test]
fn times_follow_from_the_shares() {
    let load = load(100, 0);
    let prediction = prediction(&load, 0, &[point(64, 0.5, 0.75, 0.0)]);
    let advice = verdict(&basis(&load, &prediction));
    let expected = advice.expected.unwrap();
    assert!(advice.watch_longer);
    assert_eq!(expected.read_us, 5_000.0);
    assert_eq!(expected.cached_us, (1_295.0, 2_540.0));
    // 10,000 reads per second wait 2,460 us less each.
    assert!((expected.saved - 24.6).abs() < 1e-9, "{expected:?}");
}
