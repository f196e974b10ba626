//! Tests of the metrics: a strict parser of the format, and what the alert rules and the dashboard
//! use.

use super::*;
use crate::Manager;
use crate::fake::FakeManager;
use forebay_api::{
    BackendIos, CacheRatio, HeldVolume, JournalState, JournalStatus, LatencyBucket, LatencySummary,
    MemorySizing, PowerStatus, SiteSummary, SizeClass, UpsStatus, VaultStatus, VolumeStatus,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A name with characters that must be escaped in a label.
const HARD_NAME: &str = "a\"b\\c\nd ü{},=";

/// A server with everything that metrics can show.
fn full() -> Measurements {
    let mut status = FakeManager::new(&["disk=/dev/sdb"]).status();
    let volume = status.volumes.remove(0);
    let volume = |name: &str| {
        let mut volume = VolumeStatus { name: name.into(), ..volume.clone() };
        let counters = &mut volume.counters;
        (counters.reads, counters.read_bytes) = (10, 50_000);
        counters.uncached_reads.insert("miss".into(), 4);
        counters.uncached_writes.insert("fua".into(), 2);
        counters.backend_causes.insert("demand".into(), BackendIos { reads: 3, ..<_>::default() });
        (counters.saved_ios, counters.saved_bytes) = (-5, 1 << 60);
        let class = |up_to_bytes, requests| SizeClass { up_to_bytes, requests };
        counters.pattern.read_sizes = vec![class(512, 3), class(8192, 7)];
        volume
    };
    status.volumes = vec![volume("disk"), volume(HARD_NAME)];
    status.memory.cache_ratio = Some(CacheRatio { write_bytes: 7, ..CacheRatio::default() });
    status.memory.sizing = Some(MemorySizing::default());
    let commit =
        LatencySummary { count: 3, mean_us: 2.0, p50_us: 1.0, ..LatencySummary::default() };
    let journal = JournalStatus { name: "/dev/sdc".into(), commit, ..JournalStatus::default() };
    status.journals = vec![JournalStatus { state: JournalState::Degraded, ..journal }];
    let ups = |name: &str, charge_percent| UpsStatus {
        name: name.into(),
        charge_percent,
        runtime_seconds: Some(300),
        load_percent: Some(20.0),
        ..UpsStatus::default()
    };
    status.power = Some(PowerStatus {
        dump_seconds: Some(7.5),
        battery_seconds: Some(600),
        supplies: vec![ups("rack", Some(79.0)), ups("old", None)],
        ..PowerStatus::default()
    });
    status.site = Some(SiteSummary { hosts: 3, ..SiteSummary::default() });
    status.vault = Some(VaultStatus {
        write_bytes_per_second: Some(1 << 30),
        held: vec![HeldVolume { volume: "disk".into(), bytes: 5 }],
        ..VaultStatus::default()
    });
    let bucket = |up_to_us, count| LatencyBucket { up_to_us, count };
    // Finer buckets below the first upper bound, between two, at one, and above the last one.
    let buckets = vec![bucket(1.024, 1), bucket(4.608, 2), bucket(8.192, 4), bucket(9e7, 8)];
    let histogram = LatencyHistogram { sum_us: 5e6, buckets };
    let classes = ["read_hit", "read_miss", "write_memory", "write_disk", "flush", "trim"];
    let classes =
        classes.into_iter().chain(["disk_read", "disk_write", "disk_flush", "disk_erase"]);
    let histograms: BTreeMap<_, _> =
        classes.map(|class| (class.to_owned(), histogram.clone())).collect();
    Measurements { status, histograms: vec![histograms, BTreeMap::new()] }
}

/// A sample: its name, its labels, and its value.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

/// Parses a line with a sample, and fails on anything that the format forbids.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let name = line[..end].to_owned();
    assert!(is_name(&name), "{line}");
    let (mut labels, mut rest) = (BTreeMap::new(), &line[end..]);
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(is_name(label) && !label.starts_with("__"), "{line}");
            let (mut text, mut chars) = (String::new(), value.char_indices());
            let after = loop {
                match chars.next().unwrap() {
                    (at, '"') => break &value[at + 1..],
                    (_, '\\') => text.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("unknown escape {c}: {line}"),
                    }),
                    (_, c) => text.push(c),
                }
            };
            assert_eq!(labels.insert(label.to_owned(), text), None, "{line}");
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => break rest = after.strip_prefix('}').unwrap(),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    assert!(!value.contains(' '), "{line}");
    let value = value.parse().unwrap();
    Sample { name, labels, value }
}

/// The samples of each family: its kind and its samples, in the order of the text.
type Families = BTreeMap<String, (String, Vec<Sample>)>;

/// Parses metrics: a HELP and a TYPE line, then the samples of the family, each once.
fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'));
    let mut families = Families::new();
    let (mut now, mut seen, mut help) = (String::new(), BTreeSet::new(), None);
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            let (name, text) = line.split_once(' ').unwrap();
            assert!(text.ends_with('.') && !text.contains('\\'), "{line}");
            assert_eq!(help.replace(name), None, "{line}");
        } else if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(help.take(), Some(name), "HELP and TYPE follow one another");
            let family = (kind.to_owned(), Vec::new());
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is not one group");
            now = name.to_owned();
        } else {
            let sample = sample(line);
            let (kind, samples) = families.get_mut(&now).unwrap();
            let suffix = sample.name.strip_prefix(&now).unwrap();
            let suffixes: &[&str] = match kind.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "summary" => &["", "_sum", "_count"],
                "counter" | "gauge" => &[""],
                kind => panic!("{kind}"),
            };
            assert!(suffixes.contains(&suffix), "{line}");
            assert_eq!(kind == "counter", now.ends_with("_total"), "{line}");
            let series = line.rsplit_once(' ').unwrap().0.to_owned();
            assert!(seen.insert(series), "twice: {line}");
            samples.push(sample);
        }
    }
    assert_eq!(help, None);
    families
}

/// The samples of each histogram of a family, by all labels but `le`.
fn histograms(samples: &[Sample]) -> BTreeMap<Vec<(String, String)>, Vec<Sample>> {
    let mut groups: BTreeMap<_, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        let labels = sample.labels.iter().filter(|(name, _)| *name != "le");
        let labels: Vec<_> = labels.map(|(name, value)| (name.clone(), value.clone())).collect();
        groups.entry(labels).or_default().push(sample.clone());
    }
    groups
}

#[test]
fn all_metrics_follow_the_rules_of_the_format() {
    let families = parse(&metrics(&full()));
    for (name, (kind, samples)) in &families {
        assert!(name.starts_with("forebay_") && !samples.is_empty(), "{name} has no sample");
        for sample in samples {
            let is_signed = name.starts_with("forebay_volume_saved_");
            assert!(sample.value >= 0.0 || is_signed, "{sample:?}");
        }
        for (labels, samples) in histograms(samples).iter().filter(|_| kind == "histogram") {
            let (sum, count) = (&samples[samples.len() - 2], samples.last().unwrap());
            assert!(sum.name.ends_with("_sum") && count.name.ends_with("_count"), "{labels:?}");
            let buckets = &samples[..samples.len() - 2];
            let end = |sample: &Sample| match sample.label("le") {
                "+Inf" => f64::INFINITY,
                end => end.parse().unwrap(),
            };
            for pair in buckets.windows(2) {
                assert!(end(&pair[0]) < end(&pair[1]), "{pair:?}");
                assert!(pair[0].value <= pair[1].value, "{pair:?}");
            }
            let last = buckets.last().unwrap();
            assert_eq!((end(last), last.value), (f64::INFINITY, count.value), "{labels:?}");
        }
    }
    assert!(families.len() > 90, "{}", families.len());
}

#[test]
fn metrics_have_the_figures_of_the_server() {
    let families = parse(&metrics(&full()));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let family = ["", "_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| families.get(&format!("forebay_{}", name.strip_suffix(suffix)?)));
        let (_, samples) = family.unwrap_or_else(|| panic!("no {name}"));
        let has = |sample: &&Sample| {
            sample.name == format!("forebay_{name}")
                && labels.iter().all(|(label, value)| sample.label(label) == *value)
        };
        let found: Vec<_> = samples.iter().filter(has).collect();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0].value
    };
    let disk = ("volume", "disk");
    let latency = "volume_request_duration_seconds";
    let hit = ("kind", "read_hit");
    let size = [disk, ("op", "read")];
    for (name, labels, expected) in [
        ("build_info", &[("version", "0.0.1-fake"), ("io_engine", "epoll")][..], 1.0),
        ("memory_dirty_limit_bytes", &[], 7.0),
        ("volume_size_bytes", &[("volume", HARD_NAME)], (1_u64 << 30) as f64),
        ("volume_saved_ios", &[disk], -5.0),
        ("volume_saved_bytes", &[disk], (1_u64 << 60) as f64),
        ("volume_uncached_requests_total", &[disk, ("op", "write"), ("reason", "fua")], 2.0),
        ("volume_disk_cause_ios_total", &[disk, ("op", "read"), ("cause", "demand")], 3.0),
        ("volume_request_size_bytes_bucket", &[size[0], size[1], ("le", "512")], 3.0),
        ("volume_request_size_bytes_bucket", &[size[0], size[1], ("le", "4096")], 3.0),
        ("volume_request_size_bytes_bucket", &[size[0], size[1], ("le", "8192")], 10.0),
        ("volume_request_size_bytes_sum", &size, 50_000.0),
        ("volume_request_duration_seconds_bucket", &[disk, hit, ("le", "0.000004096")], 1.0),
        ("volume_request_duration_seconds_bucket", &[disk, hit, ("le", "0.000008192")], 7.0),
        ("volume_request_duration_seconds_bucket", &[disk, hit, ("le", "17.179869184")], 7.0),
        ("volume_request_duration_seconds_bucket", &[disk, hit, ("le", "+Inf")], 15.0),
        ("volume_request_duration_seconds_sum", &[disk, hit], 5.0),
        ("journal_state", &[("journal", "/dev/sdc"), ("state", "degraded")], 1.0),
        ("journal_state", &[("journal", "/dev/sdc"), ("state", "failed")], 0.0),
        ("journal_commit_duration_seconds", &[("quantile", "0.5")], 1e-6),
        ("journal_commit_duration_seconds_sum", &[], 6e-6),
        ("ups_charge_ratio", &[("ups", "rack")], 0.79),
        ("vault_held_bytes", &[], 5.0),
    ] {
        let found = value(name, labels);
        assert!((found - expected).abs() <= expected.abs() * 1e-9, "{name}: {found}");
    }
    let of_unused = |sample: &Sample| sample.label("volume") == HARD_NAME;
    let latencies = &families[&format!("forebay_{latency}")].1;
    assert!(!latencies.iter().any(of_unused), "a class without latencies has no histogram");
}

#[test]
fn a_server_without_volumes_has_metrics_and_one_that_stops_too() {
    let families = parse(&metrics(&Measurements::default()));
    assert_eq!(families["forebay_connections"].1.len(), 1);
    assert!(families["forebay_volume_size_bytes"].1.is_empty());
}

/// Every name that begins with `forebay_` in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("forebay_")).map(str::to_owned).collect()
}

fn contributed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

#[test]
fn alert_rules_the_dashboard_and_the_manual_name_only_metrics_that_exist() {
    let families = parse(&metrics(&full()));
    let samples = families.values().flat_map(|(_, samples)| samples);
    let mut exist: BTreeSet<&str> = samples.map(|sample| sample.name.as_str()).collect();
    let check = |page: &str, exist: &BTreeSet<&str>| {
        let text = std::fs::read_to_string(contributed(page)).unwrap();
        let used = names_in(&text);
        let wrong: Vec<_> = used.iter().filter(|name| !exist.contains(name.as_str())).collect();
        assert!(used.len() > 5 && wrong.is_empty(), "{page}: {wrong:?}");
        text
    };
    check("prometheus/forebay.rules.yml", &exist);
    check("prometheus/forebay.rules.test.yml", &exist);
    check("grafana/forebay.json", &exist);
    // The manual names a histogram without the suffixes that its samples have.
    exist.extend(families.keys().map(String::as_str));
    let manual = check("../docs/manual/metrics.md", &exist);
    let missing: Vec<_> =
        families.keys().filter(|name| !manual.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "metrics.md lacks {missing:?}");
}

#[test]
fn the_dashboard_has_panels_with_queries_on_its_variables() {
    let text = std::fs::read_to_string(contributed("grafana/forebay.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance", "volume"]);
    let (mut ids, mut queries) = (BTreeSet::new(), 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("forebay_") && query.contains("$instance"), "{query}");
            queries += 1;
        }
    }
    assert!(queries > 30, "{queries}");
}
