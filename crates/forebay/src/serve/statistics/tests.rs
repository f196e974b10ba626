//! Tests of the totals by identity, and of their file.

use super::*;
use forebay_runtime::ArmTimes;
use forebay_types::VolumeId;

/// A volume of which `reads` hits were counted.
fn volume(name: &str, identity: u8, id: u16, reads: u64) -> NamedStatistics {
    let mut statistics = VolumeStatistics::default();
    statistics.requests.read_hits = reads;
    NamedStatistics {
        id: VolumeId(id),
        name: name.into(),
        identity: [identity; 32],
        disk_in_flight: u64::from(id),
        dirty_lines: 0,
        cached_lines: 0,
        statistics,
        arms: ArmTimes::default(),
    }
}

fn reads(history: &History, name: &str) -> u64 {
    history.volume_statistics(name).unwrap().periods.total.counters.reads
}

#[test]
fn totals_belong_to_the_name_and_the_backing() {
    let directory = tempfile::tempdir().unwrap();
    let history = History::open(directory.path());
    history.observe(|| vec![volume("a", 1, 0, 5), volume("b", 2, 1, 7)]);
    assert_eq!((reads(&history, "a"), reads(&history, "b")), (5, 7));
    let all = history.statistics();
    assert_eq!((all.all.total.counters.reads, all.all.total.disk.in_flight), (12, 1));
    assert_eq!(all.volumes.len(), 2);
    // The same name with another disk, although its number is the same and its counters are higher.
    history.observe(|| vec![volume("a", 3, 0, 9), volume("b", 2, 1, 8)]);
    assert_eq!((reads(&history, "a"), reads(&history, "b")), (9, 8));
    // The first disk again.
    history.observe(|| vec![volume("a", 1, 0, 1)]);
    assert_eq!(reads(&history, "a"), 6);
    assert_eq!(history.volume_statistics("b"), None);
    history.save();
    let history = History::open(directory.path());
    history.observe(|| vec![volume("a", 3, 4, 0), volume("b", 2, 5, 1)]);
    assert_eq!((reads(&history, "a"), reads(&history, "b")), (9, 9));
    history.observe(Vec::new);
    assert_eq!(history.statistics().all, Periods::default());
}

#[test]
fn the_totals_of_the_volumes_served_last_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let history = History::open(directory.path());
    let one = |n: usize| {
        let mut one = volume(&format!("v{n}"), 0, 0, 1 + n as u64);
        one.identity[..8].copy_from_slice(&(n as u64).to_le_bytes());
        vec![one]
    };
    for n in 0..UNSERVED_MAX + 2 {
        history.observe(|| one(n));
    }
    history.observe(|| one(0));
    assert_eq!(reads(&history, "v0"), 1, "the oldest one began again");
    history.observe(|| one(2));
    assert_eq!(reads(&history, "v2"), 3 + 3);
}

#[test]
fn the_past_is_kept_over_restarts_and_while_a_volume_is_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let points = |history: &History, name| {
        let past = history.past(name, false).unwrap().five_minutes;
        past.iter().map(|point| (point.ended_at, point.reads)).collect::<Vec<_>>()
    };
    let history = History::open(directory.path());
    history.state().observe(vec![volume("a", 1, 0, 5), volume("b", 2, 1, 0)], 0, 600);
    history.state().observe(vec![volume("a", 1, 0, 7), volume("b", 2, 1, 3)], 300, 900);
    assert_eq!([points(&history, Some("a")), points(&history, None)], [[(900, 7)], [(900, 10)]]);
    assert_eq!(history.past(Some("c"), false), None);
    history.state().observe(vec![volume("b", 2, 1, 3)], 310, 910);
    history.save();
    let history = History::open(directory.path());
    history.state().observe(vec![volume("a", 1, 0, 0)], 0, 930);
    assert_eq!(points(&history, Some("a")), [(900, 7)]);
    history.state().observe(vec![volume("a", 1, 0, 1)], 270, 1200);
    assert_eq!(points(&history, Some("a")), [(900, 7), (1200, 1)]);
    let dirty = NamedStatistics { dirty_lines: 2, ..volume("a", 1, 0, 1) };
    history.state().observe(vec![dirty], 570, 1500);
    assert_eq!(history.past(None, false).unwrap().five_minutes[2].dirty_bytes, 2 * LINE_BYTES);
}

#[test]
fn totals_that_have_not_changed_are_not_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("statistics.totals");
    let history = History::open(directory.path());
    history.observe(|| vec![volume("a", 1, 0, 5)]);
    history.save();
    std::fs::remove_file(&path).unwrap();
    history.observe(|| vec![volume("a", 1, 0, 5)]);
    history.save();
    assert!(!path.exists());
    history.observe(|| vec![volume("a", 1, 0, 6)]);
    history.save();
    assert!(path.exists());
}

#[test]
fn an_unusable_file_is_put_aside_and_one_that_cannot_be_read_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("statistics.totals");
    let history = History::open(directory.path());
    history.observe(|| vec![volume("a", 1, 0, 5)]);
    history.save();
    let good = std::fs::read(&path).unwrap();
    let mut newer = good.clone();
    newer[8] += 1;
    for bad in [&newer[..], &good[..good.len() - 1], b"", b"x"] {
        std::fs::write(&path, bad).unwrap();
        let history = History::open(directory.path());
        assert!(!path.exists());
        assert_eq!(std::fs::read(path.with_extension("unusable")).unwrap(), bad);
        history.observe(|| vec![volume("a", 1, 0, 2)]);
        assert_eq!(reads(&history, "a"), 2);
        history.save();
        assert!(StatisticsFile::decode(&std::fs::read(&path).unwrap()).is_ok());
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let history = History::open(directory.path());
    history.observe(|| vec![volume("a", 1, 0, 2)]);
    history.save();
    assert!(path.is_dir(), "what could not be read is not replaced");
}

#[test]
fn histograms_are_shown_for_one_volume_and_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let history = History::open(directory.path());
    let count = VolumeStatistics::default().into_numbers().len();
    let counted = VolumeStatistics::from_numbers(&vec![3; count]);
    let named = |n: u8| NamedStatistics { statistics: counted.clone(), ..volume("v", n, 0, 0) };
    history.observe(|| vec![named(1), NamedStatistics { name: "w".into(), ..named(2) }]);
    let one = history.volume_statistics("v").unwrap().periods.last_hour;
    assert_eq!(one.histograms.len(), 10);
    for (name, histogram) in &one.histograms {
        let latencies: u64 = histogram.buckets.iter().map(|bucket| bucket.count).sum();
        let json = serde_json::to_value(&one.latency).unwrap();
        assert_eq!(json[name]["count"].as_u64(), Some(latencies), "{name}");
    }
    let all = history.statistics();
    let of_both = &all.all.total.histograms["disk_read"].buckets;
    assert!(of_both.iter().all(|bucket| bucket.count == 6));
    assert!(all.volumes.iter().all(|volume| volume.periods.total.histograms.is_empty()));
}
