//! The statistics of one volume as tables.

use forebay_api::{
    Counters, Latencies, LatencySummary, Memory, PeriodStatistics, Periods, SizeClass, Statistics,
    VolumeStatus,
};
use forebay_terminal::columns::{lines, table};
use forebay_terminal::units::{bytes, count, latency_us, percent};
use std::collections::BTreeMap;

/// All statistics of a volume: an overview, then tables of periods, requests, reasons, latencies,
/// the disk's I/Os and sizes. Tables without content are left out.
pub(super) fn statistics(volume: &VolumeStatus, memory: &Memory, over_time: &Periods) -> String {
    let counters = &volume.counters;
    [
        overview(volume, memory),
        format!("\n{}", periods(over_time)),
        requests(counters),
        reasons(counters),
        latencies(&volume.latency),
        disk(volume),
        sizes(counters),
    ]
    .concat()
}

/// What was counted of all volumes, and of each, by period.
pub(super) fn all(statistics: &Statistics) -> String {
    let of = |name: &str, over_time: &Periods| format!("{name}\n{}", periods(over_time));
    let mut text = match statistics.volumes.len() {
        0 => return "no volume is served\n".into(),
        1 => String::new(),
        _ => of("all volumes", &statistics.all) + "\n",
    };
    let volumes = statistics.volumes.iter().map(|volume| of(&volume.name, &volume.periods));
    text += &volumes.collect::<Vec<_>>().join("\n");
    text
}

/// A table with a row for each period.
fn periods(periods: &Periods) -> String {
    let mut table = table([
        "PERIOD",
        "READS",
        "WRITES",
        "HIT",
        "SAVED I/O",
        "SAVED",
        "HIT P99",
        "MISS P99",
        "BUSY",
    ]);
    for (name, period) in [
        ("5 min", &periods.last_5_minutes),
        ("hour", &periods.last_hour),
        ("day", &periods.last_day),
        ("total", &periods.total),
    ] {
        let PeriodStatistics { seconds, counters, latency, disk, .. } = period;
        let per_second = |value: f64| (*seconds > 0).then(|| value / *seconds as f64);
        let p99 = |summary: &LatencySummary| match summary.count {
            0 => "-".to_owned(),
            _ => latency_us(summary.p99_us),
        };
        table.add_row([
            name.to_owned(),
            count(counters.reads),
            count(counters.writes),
            percent(counters.hit_ratio()),
            signed(counters.saved_ios, count),
            signed(counters.saved_bytes, bytes),
            p99(&latency.read_hit),
            p99(&latency.read_miss),
            percent(per_second(disk.busy_seconds)),
        ]);
    }
    lines(table, &[0])
}

fn overview(volume: &VolumeStatus, memory: &Memory) -> String {
    let counters = &volume.counters;
    let requests = counters.reads + counters.writes;
    let hits = counters.read_hits + counters.deferred_writes;
    let sequential = counters.pattern.sequential_reads + counters.pattern.sequential_writes;
    let share = |part: u64| percent((requests > 0).then(|| part as f64 / requests as f64));
    let mean = |bytes: u64, requests: u64| bytes / requests.max(1);
    let pattern = format!(
        "{} reads, {} sequential, {} unaligned",
        percent(counters.read_ratio()),
        share(sequential),
        share(counters.pattern.unaligned),
    );
    let (read, write) =
        (mean(counters.read_bytes, counters.reads), mean(counters.write_bytes, counters.writes));
    let dirty = &volume.write_back;
    let rows = [
        ("name", volume.name.clone()),
        ("total memory", bytes(memory.pool_bytes)),
        (
            "memory used by this volume",
            format!("{}, {} dirty", bytes(volume.cached_bytes), bytes(volume.dirty_bytes)),
        ),
        ("admitted, evicted", both(counters.admitted_bytes, counters.evicted_bytes)),
        ("I/O pattern", pattern),
        ("mean read, mean write", both(read, write)),
        ("reads", count(counters.reads)),
        ("reads %", percent(counters.read_ratio())),
        ("writes", count(counters.writes)),
        ("hits (reads and writes)", count(hits)),
        ("hits %", percent(counters.hit_ratio())),
        ("misses", count(requests.saturating_sub(hits))),
        ("I/Os saved", signed(counters.saved_ios, count)),
        ("bytes saved", signed(counters.saved_bytes, bytes)),
        ("read ahead, of it used", both(counters.prefetched_bytes, counters.prefetch_used_bytes)),
        ("preloaded, of it used", both(counters.preloaded_bytes, counters.preload_used_bytes)),
        ("urgent, normal destages", format!("{}, {}", count(dirty.urgent), count(dirty.normal))),
        (
            "flushes, trims, zeroes",
            format!(
                "{}, {}, {}",
                count(counters.flushes),
                count(counters.trims),
                count(counters.zeroes)
            ),
        ),
        (
            "errors, of the disk",
            format!("{}, {}", count(counters.errors), count(counters.backend_errors)),
        ),
    ];
    rows.iter().map(|(label, value)| format!("{label:<27} {value}\n")).collect()
}

fn both(first: u64, second: u64) -> String {
    format!("{}, {}", bytes(first), bytes(second))
}

/// A difference, with a sign if it is negative.
fn signed(value: i64, shown: fn(u64) -> String) -> String {
    format!("{}{}", if value < 0 { "-" } else { "" }, shown(value.unsigned_abs()))
}

fn requests(counters: &Counters) -> String {
    let mut table =
        table(["REQUESTS", "COUNT", "BYTES", "HITS", "PARTIAL", "MISSES", "HIT", "SEQUENTIAL"]);
    let share = |part: u64, all: u64| percent((all > 0).then(|| part as f64 / all as f64));
    let pattern = &counters.pattern;
    table.add_row([
        "reads".to_owned(),
        count(counters.reads),
        bytes(counters.read_bytes),
        count(counters.read_hits),
        count(counters.read_partial_hits),
        count(counters.read_misses),
        share(counters.read_hits, counters.reads),
        share(pattern.sequential_reads, counters.reads),
    ]);
    table.add_row([
        "writes".to_owned(),
        count(counters.writes),
        bytes(counters.write_bytes),
        count(counters.write_hits),
        count(counters.write_partial_hits),
        count(counters.write_misses),
        share(counters.write_hits, counters.writes),
        share(pattern.sequential_writes, counters.writes),
    ]);
    format!("\n{}", lines(table, &[0]))
}

fn reasons(counters: &Counters) -> String {
    let of = |kind: &str, reasons: &BTreeMap<String, u64>| {
        let mut list: Vec<_> = reasons.iter().collect();
        list.sort_by_key(|&(_, &requests)| std::cmp::Reverse(requests));
        let list: Vec<_> = list
            .iter()
            .map(|(reason, requests)| format!("{reason} {}", count(**requests)))
            .collect();
        match list.is_empty() {
            true => String::new(),
            false => format!("{kind} not served from memory: {}\n", list.join(", ")),
        }
    };
    let text = of("reads", &counters.uncached_reads) + &of("writes", &counters.uncached_writes);
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn latencies(latency: &Latencies) -> String {
    let rows: [(&str, &LatencySummary); 10] = [
        ("read hit", &latency.read_hit),
        ("read miss", &latency.read_miss),
        ("write to memory", &latency.write_memory),
        ("write to disk", &latency.write_disk),
        ("flush", &latency.flush),
        ("trim, zero", &latency.trim),
        ("disk: read", &latency.disk_read),
        ("disk: write", &latency.disk_write),
        ("disk: flush", &latency.disk_flush),
        ("disk: trim, zero", &latency.disk_erase),
    ];
    let mut table = table(["LATENCY", "COUNT", "MEAN", "P50", "P99", "P99.9", "MAX"]);
    let used: Vec<_> = rows.iter().filter(|(_, summary)| summary.count > 0).collect();
    for (name, summary) in &used {
        table.add_row([
            (*name).to_owned(),
            count(summary.count),
            latency_us(summary.mean_us),
            latency_us(summary.p50_us),
            latency_us(summary.p99_us),
            latency_us(summary.p999_us),
            latency_us(summary.max_us),
        ]);
    }
    if used.is_empty() { String::new() } else { format!("\n{}", lines(table, &[0])) }
}

fn disk(volume: &VolumeStatus) -> String {
    let causes = &volume.counters.backend_causes;
    if causes.is_empty() {
        return String::new();
    }
    let mut table = table(["DISK I/O FOR", "READS", "BYTES", "WRITES", "BYTES"]);
    for (cause, ios) in causes {
        table.add_row([
            cause.clone(),
            count(ios.reads),
            bytes(ios.read_bytes),
            count(ios.writes),
            bytes(ios.write_bytes),
        ]);
    }
    format!("\n{}", lines(table, &[0]))
}

fn sizes(counters: &Counters) -> String {
    let of = |kind: &str, classes: &[SizeClass], all: u64| {
        let share = |class: &SizeClass| {
            let share = class.requests as f64 / all.max(1) as f64 * 100.0;
            format!("{} {share:.0} %", bytes(class.up_to_bytes))
        };
        let list: Vec<_> = classes.iter().map(share).collect();
        match list.is_empty() {
            true => String::new(),
            false => wrapped(&format!("{kind} by size up to:"), &list),
        }
    };
    let pattern = &counters.pattern;
    let text = of("reads", &pattern.read_sizes, counters.reads)
        + &of("writes", &pattern.write_sizes, counters.writes);
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// The width that lines keep to.
const WIDTH: usize = 80;

/// A heading and the items of a list, separated by commas, in lines of at most [`WIDTH`].
fn wrapped(heading: &str, items: &[String]) -> String {
    let mut text = heading.to_owned();
    let mut width = heading.len();
    for (at, item) in items.iter().enumerate() {
        let comma = if at + 1 < items.len() { "," } else { "" };
        if width + 1 + item.len() + comma.len() > WIDTH {
            text.push_str("\n ");
            width = 1;
        }
        text += &format!(" {item}{comma}");
        width += 1 + item.len() + comma.len();
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{BackendIos, DiskUse, IoPattern, StatisticsOfVolume};

    fn volume() -> VolumeStatus {
        let summary = |count, mean_us: f64| LatencySummary {
            count,
            mean_us,
            p50_us: mean_us * 0.9,
            p99_us: mean_us * 3.0,
            p999_us: mean_us * 9.0,
            max_us: mean_us * 20.0,
        };
        let sizes = |list: &[(u64, u64)]| {
            let class = |&(up_to_bytes, requests)| SizeClass { up_to_bytes, requests };
            list.iter().map(class).collect()
        };
        let ios = |reads, read_bytes, writes, write_bytes| BackendIos {
            reads,
            read_bytes,
            writes,
            write_bytes,
        };
        let counters = Counters {
            reads: 1_000_000,
            writes: 250_000,
            read_bytes: 8 << 30,
            write_bytes: 1 << 30,
            flushes: 12,
            read_hits: 900_000,
            read_partial_hits: 1000,
            read_misses: 99_000,
            write_hits: 125_000,
            write_misses: 125_000,
            deferred_writes: 240_000,
            uncached_reads: [("miss".into(), 90_000), ("io-in-flight".into(), 10_000)].into(),
            uncached_writes: [("fua".into(), 10_000)].into(),
            pattern: IoPattern {
                sequential_reads: 250_000,
                sequential_writes: 0,
                unaligned: 12_500,
                read_sizes: sizes(&[(4096, 500_000), (16_384, 500_000)]),
                write_sizes: (0..17)
                    .map(|n| SizeClass { up_to_bytes: 512 << n, requests: 9 })
                    .collect(),
            },
            backend_causes: [
                ("demand".into(), ios(90_000, 720 << 20, 10_000, 40 << 20)),
                ("destage".into(), ios(0, 0, 20_000, 960 << 20)),
            ]
            .into(),
            saved_ios: 1_130_012,
            saved_bytes: -(7 << 30),
            ..Counters::default()
        };
        let latency = Latencies {
            read_hit: summary(900_000, 42.4),
            read_miss: summary(100_000, 8_400.0),
            write_memory: summary(240_000, 55.0),
            disk_read: summary(90_000, 8_200.0),
            ..Latencies::default()
        };
        VolumeStatus {
            name: "disk".into(),
            cached_bytes: 40 << 20,
            dirty_bytes: 1 << 20,
            counters,
            latency,
            ..VolumeStatus::default()
        }
    }

    fn over_time() -> Periods {
        let VolumeStatus { counters, latency, .. } = volume();
        let disk = DiskUse { in_flight: 1, busy_seconds: 30.0, wait_seconds: 120.0 };
        let histograms = BTreeMap::new();
        let last_5_minutes = PeriodStatistics { seconds: 300, counters, latency, disk, histograms };
        let total = PeriodStatistics { seconds: 0, ..last_5_minutes.clone() };
        Periods { total, last_5_minutes, ..Periods::default() }
    }

    #[test]
    fn all_statistics_of_a_volume_fit_in_80_columns() {
        let memory = Memory { pool_bytes: 52 << 20, ..Memory::default() };
        let text = statistics(&volume(), &memory, &over_time());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/client/statistics.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(path).unwrap(), "run with UPDATE_GOLDEN=1");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(WIDTH), "{longest:?} columns");
    }

    #[test]
    fn a_volume_without_requests_has_an_overview_and_no_ratios() {
        let text = statistics(&VolumeStatus::default(), &Memory::default(), &Periods::default());
        assert!(text.contains("hits %                      -\n"), "{text}");
        assert_eq!(text.matches("\n\n").count(), 2, "{text}");
    }

    #[test]
    fn volumes_are_added_up_if_there_are_several() {
        let of = |name: &str| StatisticsOfVolume { name: name.into(), periods: over_time() };
        let mut shown = Statistics { volumes: vec![of("a")], all: over_time(), seconds: 9 };
        let titles = |shown: &Statistics| {
            let text = all(shown);
            let first = text.split("\n\n").map(|table| table.lines().next().unwrap().to_owned());
            first.collect::<Vec<_>>()
        };
        assert_eq!(titles(&shown), ["a"]);
        shown.volumes.push(of("b"));
        assert_eq!(titles(&shown), ["all volumes", "a", "b"]);
        assert_eq!(all(&Statistics::default()), "no volume is served\n");
    }
}
