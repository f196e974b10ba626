use super::*;
use forebay_advice::AccessLog;
use forebay_types::{ByteRange, LINE_BYTES};

const MIB: u64 = 1 << 20;

fn device(name: &str) -> BlockDevice {
    BlockDevice {
        name: name.into(),
        size_bytes: 1 << 40,
        traced: (8, 0),
        start_bytes: 0,
        is_rotational: true,
        numbers: vec![(8, 0)],
        holders: Vec::new(),
        loops: Vec::new(),
        is_memory: false,
    }
}

/// A device with these accesses in a minute, each of which took 8 ms.
fn observed(name: &str, accesses: impl IntoIterator<Item = (u64, bool)>) -> Observed {
    let mut log = AccessLog::new(1 << 40);
    for (line, is_write) in accesses {
        log.record(ByteRange::new(line * LINE_BYTES, LINE_BYTES), is_write);
    }
    let pattern = *log.pattern();
    let load = Load {
        reads: pattern.reads,
        writes: pattern.writes,
        read_bytes: pattern.read_bytes,
        write_bytes: pattern.write_bytes,
        read_wait_ms: pattern.reads * 8,
        write_wait_ms: pattern.writes * 8,
        busy_ms: 57_000,
        ..Load::default()
    };
    let device = device(name);
    Observed { device, load, log: Some(log), self_caching: Vec::new(), excluded: None }
}

/// Random reads of some lines, with this many writes after each.
fn random(lines: u64, writes: u64) -> impl Iterator<Item = (u64, bool)> {
    let mut dice = 1u64;
    (0..60_000u64).map(move |n| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((dice >> 33) % lines * 37, n % (writes + 1) > 0)
    })
}

fn observation(devices: Vec<Observed>) -> Observation {
    Observation { seconds: 60.0, unsampled: None, lost: 0, seen: 120_000, devices }
}

fn shown(observation: Observation, memory_mib: u64) -> String {
    let text = show::report(&judge(observation, memory_mib * MIB, true));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

#[test]
fn a_device_whose_data_is_read_again_is_to_be_cached() {
    let text = shown(observation(vec![observed("sdb", random(16_000, 0))]), 1_024);
    let expected = [
        "sdb observed for 1 min",
        "sdb: cache it, write-through, with 64 MiB",
        "because             data is read again, so memory serves it",
        "load                1.0 k reads/s of 4.0 KiB, 0 writes/s of 0 B, 0 flushes/s;",
        "latency             a read takes 8.0 ms, a write -",
        "to cache it         forebay serve --volume sdb=/dev/sdb --memory ",
    ];
    for line in expected {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("together"), "{text}");
}

#[test]
fn a_log_is_left_out_and_an_idle_device_gets_no_verdict() {
    let log = observed("sdc", (0..20_000).map(|n| (n, true)));
    let idle = observed("sdd", []);
    let text = shown(observation(vec![log, idle]), 1_024);
    assert!(text.contains("sdc: leave it out"), "{text}");
    assert!(text.contains("nearly all requests are sequential writes"), "{text}");
    assert!(text.contains("sdd: no recommendation"), "{text}");
    assert!(text.contains("nothing was read or written in 1 min"), "{text}");
}

#[test]
fn scarce_memory_goes_to_the_device_that_gains_most() {
    let small = observed("small", random(8_000, 0));
    let large = observed("large", random(40_000, 1));
    let text = shown(observation(vec![large, small]), 64);
    assert!(text.contains("small: cache it, write-through, with 32 MiB"), "{text}");
    assert!(text.contains("memory for data     64 MiB of 64 MiB (given)"), "{text}");
    assert!(text.contains("large: cache it, write-back, with 32 MiB"), "{text}");
    assert!(text.contains("write-back needs protection=journal"), "{text}");
}

#[test]
fn what_is_excluded_gets_no_memory() {
    let mut disk = observed("sda", random(8_000, 0));
    disk.excluded = Some("dm-0 lies on it; cache that instead".into());
    let report = judge(observation(vec![disk]), 64 * MIB, false);
    assert_eq!(report.devices[0].memory_bytes(), None);
    let json = json::report(&report);
    let device = &json["devices"][0];
    assert_eq!((&device["advice"], &device["mode"]), (&"leave-out".into(), &().into()));
    assert_eq!(device["because"], "dm-0 lies on it; cache that instead");
    assert!(show::report(&report).contains("sda: leave it out"));
}

#[test]
fn without_a_sample_the_report_says_what_is_missing() {
    let mut disk = observed("sda", random(8_000, 0));
    disk.log = None;
    let mut observation = observation(vec![disk]);
    observation.unsampled = Some("only root may trace requests".into());
    let text = shown(observation, 1_024);
    assert!(text.contains("note  only root may trace requests; the counters alone"), "{text}");
    assert!(text.contains("sda: no recommendation"), "{text}");
}

#[test]
fn lost_requests_are_reported() {
    let mut observation = observation(vec![observed("sdb", random(8_000, 0))]);
    (observation.lost, observation.seen) = (30_000, 90_000);
    let text = shown(observation, 1_024);
    assert!(text.contains("25.0 % of the requests came too fast"), "{text}");
}

#[test]
fn json_has_the_prediction_of_each_size() {
    let report = judge(observation(vec![observed("sdb", random(16_000, 0))]), 1 << 30, true);
    let json = json::report(&report);
    let device = &json["devices"][0];
    assert_eq!((&device["advice"], &device["mode"]), (&"cache".into(), &"write-through".into()));
    let points = device["prediction"]["points"].as_array().unwrap();
    let bytes: Vec<_> = points.iter().map(|point| point["bytes"].as_u64().unwrap() >> 20).collect();
    assert_eq!(bytes, [16, 32, 64]);
    assert!(device["expected"]["point"]["read_hit_ratio_min"].as_f64().unwrap() > 0.9, "{device}");
    assert_eq!(json["sampled"], true);
}
